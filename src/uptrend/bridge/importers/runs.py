"""A log's rows as runs: the column that counts steps, restarts split, resumed runs joined,
evaluations set apart, summaries and repeated values dropped.
"""

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import groupby, pairwise
from typing import Any

from uptrend.bridge.importers.readers import Log, Row, columns_in, fold_name, parse_number
from uptrend.present.formatting import plural
from uptrend.records.dialects import (
    METRIC_DIALECTS,
    is_bookkeeping,
    matches,
    metric_names,
    names_for,
    plain_name,
)

# Learning rates in a row that, repeated, tell a restart.
_SCHEDULE = 5
# Fewest blocks of equal points, and the share of points in blocks of one length, that tell repeated
# values.
_BLOCKS = 5
_SHARE = 0.8


@dataclass
class Segment:
    """One run of a log."""

    points: dict[int, Row] = field(default_factory=dict)  # row of each step
    # evaluations in order, as `evaluation` returns them
    evals: list[dict[str, Any]] = field(default_factory=list)
    repeated: int = 0  # number of points that were written again, by a resumed run or twice
    resumed: bool = False  # true where it went back to an earlier step and on from there


def split_runs(log: Log) -> tuple[list[Segment], Log]:
    """Return the runs in a log in order, and the log with the notes and settings found on the
    way.
    """
    rows, summaries = _without_summaries(log.rows)
    notes = list(log.notes)
    facts = log.facts
    column = step_column(rows)
    if column is None:
        # A callback besides the trainer may have printed each row again.
        kept, times = without_repeats(dict(enumerate(rows)))
        rows = list(kept.values())
        if times > 1:
            notes.append(f"Each row was written {times} times over; the distinct ones were kept.")
    # Rows of several runs may follow each other in one file, as a console's do that is appended to.
    begin = starts(rows, column)
    held_out = {column for column in columns_in(rows) if is_evaluation(column)}
    parted = [_part(row, held_out) for row in rows]
    stride = (
        1
        if begin
        else max(1, log.last_step // max(1, sum(bool(training) for training, _ in parted)))
    )
    if column is None:
        apart = f", {stride} steps apart" if stride > 1 else ""
        notes.append(f"The rows have no step; they were numbered in order{apart}.")
    found = [Segment()]
    without_step = numbered = 0
    step: int | None
    for at, (training, results) in enumerate(parted):
        if at in begin and found[-1].points:
            found.append(Segment())
        if column is None:  # training rows a stride apart, each run from its beginning
            step = numbered = (0 if at in begin else numbered) + stride * bool(training)
        else:
            value = parse_number(rows[at].get(column))
            # NaN fails the comparison too; damaged event files hold steps beyond any real one.
            step = None if value is None or not abs(value) < 2**62 else int(value)
        if step is None:
            without_step += 1
            # A row without a step often holds settings, such as the first line of a home-made log.
            facts = {**rows[at], **facts}
            continue
        if training:
            summaries += not _add(found, step, training)
        result = evaluation(results, step)
        evals = found[-1].evals
        if result and evals and evals[-1]["step"] == step:
            evals[-1].update(result)
        elif result:
            evals.append(result)
    notes += _notes(found, summaries, without_step)
    return [run for run in found if run.points or run.evals], replace(
        log, notes=tuple(notes), facts=facts
    )


def _without_summaries(rows: list[Row]) -> tuple[list[Row], int]:
    """Return the rows that are points, without columns that only summarize; and the number of rows
    left out.
    """
    telling = {column for column in columns_in(rows) if matches(column, "summary")}
    if not telling:
        return rows, 0
    kept = []
    for row in rows:
        present = [column for column, value in row.items() if value is not None]
        # A row that summarizes the run may hold a reward too: the mean of all.
        is_point = any(plain_name(column) in names_for("points") for column in present)
        if telling.isdisjoint(present) or is_point:
            kept.append({key: value for key, value in row.items() if key not in telling})
    return kept, len(rows) - len(kept)


@cache
def is_evaluation(column: str) -> bool:
    """Return True for a column of an evaluation: it has the prefix of one and is no known metric of
    training.
    """
    name = plain_name(column)
    return matches(column, "evaluation") and not any(
        name in metric_names(trainer) for trainer in METRIC_DIALECTS
    )


def evaluation(row: Row, step: int) -> dict[str, Any]:
    """Return an evaluation with the keys of evals.jsonl as far as known, and its own names; empty
    where it has none.
    """
    numbers = {
        plain_name(key): parse_number(value)
        for key, value in row.items()
        if not matches(key, "cost")
    }
    found = {
        key: value for key, value in numbers.items() if value is not None and math.isfinite(value)
    }
    if not found:
        return {}

    def shortest(role: str) -> str | None:  # the whole before its components
        names = [name for name in found if matches(name, role) and not matches(name, "spread")]
        return min(names, key=len, default=None)

    result: dict[str, Any] = {"step": step}
    accuracy = shortest("accuracy")
    reward = shortest("reward") or shortest("mean_reward")
    if accuracy is not None:
        result["accuracy"] = found[accuracy]
    if reward is not None and reward != accuracy:
        result["reward"] = found[reward]
    return result | found


def _part(row: Row, held_out: set[str]) -> tuple[Row, Row]:
    """Split a row into training and held-out values; a row whose training values are all missing
    trains nothing.
    """
    results = {key: value for key, value in row.items() if key in held_out}
    training = {
        key: value for key, value in row.items() if key not in held_out and value is not None
    }
    values = (value for key, value in training.items() if not is_bookkeeping(key))
    return (
        training
        if any(value == value and parse_number(value) is not None for value in values)
        else {}
    ), results


def _add(found: list[Segment], step: int, row: Row) -> bool:
    """Add a row to the latest run, or to a new one; return False for a row that only summarizes the
    run.
    """
    run = found[-1]
    before = run.points.get(step)
    last = next(reversed(run.points), 0)
    # Most metrics are in the latest point too: this is no late half of an earlier point.
    metrics = [key for key in row if not is_bookkeeping(key)]
    is_alike = step <= last and sum(key in run.points.get(last, {}) for key in metrics) * 2 > len(
        metrics
    )
    # no NaN
    known = [
        key for key in metrics if before is not None and key in before and row[key] == row[key]
    ]
    differs = before is not None and any(before[key] != row[key] for key in known)
    # A row of the same step adds to the point: trackers write reward and KL by different calls.
    if before is not None and not differs and (step == last or not is_alike):
        run.points[step] = before | row
    # A short row at the last step that contradicts it gives means over the whole run.
    elif before is not None and step == last and len(row) * 2 < len(before) and len(run.points) > 1:
        return False
    # Back at the first step or before it: a new run, whatever else the row says.
    elif is_alike and step < last and step <= next(iter(run.points)):
        found.append(Segment({step: row}))
    else:
        if before is not None or (is_alike and step < last):
            # A resumed run's later values count; what the interrupted one did beyond is dropped.
            later = [at for at in run.points if at >= step]
            run.repeated += len(later)
            run.resumed = run.resumed or len(later) > 1
            for at in later:
                del run.points[at]
        run.points[step] = row
    return True


def _notes(found: list[Segment], summaries: int, without_step: int) -> Iterator[str]:
    runs = sum(bool(run.points) for run in found)
    if runs > 1:
        yield (
            f"The log holds {runs} runs one after the other: steps or schedule start again; each is"
            " judged alone."
        )
    if summaries:
        yield f"Left out {plural(summaries, 'row')} that only summarized the run."
    if without_step:
        yield f"Left out {plural(without_step, 'row')} without a step."
    for run in found:
        if run.resumed:
            yield (
                "The run was resumed from an earlier step: later values replaced"
                f" {plural(run.repeated, 'point')}."
            )
        elif run.repeated:
            yield f"Written twice: {plural(run.repeated, 'step')}; the later values count."


def step_column(rows: Sequence[Row]) -> str | None:
    """Return the column that counts steps in most rows, and moves; None where there is none."""
    columns = {fold_name(column): column for column in columns_in(rows)}
    for column in (columns[name] for name in names_for("counters") if name in columns):
        values = [
            found
            for row in rows
            if (found := parse_number(row.get(column))) is not None and found == found
        ]
        is_whole = all(value == int(value) for value in values if abs(value) < 1e15)
        # Rows of evaluations or system metrics may lack the counter.
        is_usual = len(values) * 10 >= len(rows) * 6
        moves = len(set(values)) > 1 or len(rows) == 1
        # A counter goes up far more often than down; a batch size, or a batch within an epoch, does
        # not.
        ups = sum(after > before for before, after in pairwise(values))
        downs = sum(after < before for before, after in pairwise(values))
        if is_whole and is_usual and moves and ups >= 3 * downs:
            return column
    return None


def by_run(log: Log) -> list[Log]:
    """Split a log by a column that names the run, where steps climb within each name but not
    overall.
    """
    column = _naming_column(log.rows)
    if column is None:
        return [log]
    parts: dict[str, list[Row]] = {}
    for row in log.rows:
        value = row.get(column)
        name = (
            str(int(value))
            if isinstance(value, float) and value == int(value)
            else str(value or "")
        )
        parts.setdefault(name, []).append({key: item for key, item in row.items() if key != column})
    notes = (*log.notes, f"The log holds {len(parts)} runs, told apart by its column {column!r}.")
    return [
        replace(log, rows=rows, name=name or log.name, last_step=0, notes=notes)
        for name, rows in parts.items()
    ]


def _naming_column(rows: list[Row]) -> str | None:
    """Find the column that names runs: one that is called so, else one of texts."""
    first = rows[0] if rows else {}
    steps = next((column for column in first if fold_name(column) in names_for("counters")), None)
    if steps is None:
        return None
    # Fifty rows are enough to see a column of texts.
    texts = {
        key
        for row in rows[:50]
        for key, value in row.items()
        if isinstance(value, str) and parse_number(value) is None
    }
    named = [column for column in first if fold_name(column) in names_for("runs")]
    for column in dict.fromkeys([*named, *sorted(texts)]):
        values = [row.get(column) for row in rows]
        if any(value is None or isinstance(value, list | dict) for value in values):
            continue
        # A run has at least three points; a column with more names counts something else.
        if not 2 <= len(set(values)) <= max(2, len(rows) // 3):
            continue
        # Steps never fall within a name, but do over all rows.
        numbered = [
            (row[column], step)
            for row in rows
            if (step := parse_number(row.get(steps))) is not None
        ]
        falls = any(after <= before for (_, before), (_, after) in pairwise(numbered))
        together = sorted(numbered, key=lambda entry: str(entry[0]))
        if falls and all(
            one[0] != other[0] or one[1] <= other[1] for one, other in pairwise(together)
        ):
            return column
    return None


def starts(rows: Sequence[Row], counter: str | None) -> set[int]:
    """Return the first row of each run but the first: where something that only grows begins
    again.
    """
    rate = _first_column(rows, "rates")
    growing = _first_column(rows, "growing")
    rates = [parse_number(row.get(rate or "")) for row in rows]
    head = rates[:_SCHEDULE]
    repeats = set[int]()
    # A warmup gives distinct rates, which hardly repeat by chance; a constant one tells nothing.
    if len(rates) >= 2 * _SCHEDULE and None not in head and len(set(head)) == _SCHEDULE:
        places = range(_SCHEDULE, len(rates) - _SCHEDULE + 1)
        repeats = {at for at in places if rates[at : at + _SCHEDULE] == head}
    if growing is None:
        return set() if counter is not None else repeats
    found: set[int] = set()
    first = None
    top = 0.0
    for at, value in enumerate(parse_number(row.get(growing)) for row in rows):
        if value is None or value != value:
            continue
        if first is None:
            first = value
        # A resumed run falls back a little; only a fall to the beginning, or about there and far
        # below what was reached, is a restart.
        elif value < top and (
            value <= first or (value <= 1.5 * first and value < 0.5 * top) or value < 0.01 * top
        ):
            found.add(at)
            first = value
            top = value
        top = max(top, value)
    # W&B's _step counts calls, and goes on over a restart.
    if counter is None or plain_name(counter) == "_step":
        return found
    # Where a counter climbs on, a new epoch 0 is a new stage of one run, unless the schedule
    # repeats as well.
    steps = [math.nan if (step := parse_number(row.get(counter))) is None else step for row in rows]
    return {at for at in found if at in repeats or not steps[at - 1] < steps[at]}


def _first_column(rows: Sequence[Row], role: str) -> str | None:
    """Find the surest column of a role among the first rows."""
    columns = {fold_name(column): column for column in reversed(columns_in(rows[:3]))}
    return next((columns[name] for name in names_for(role) if name in columns), None)


def without_repeats(points: Mapping[int, Row]) -> tuple[dict[int, Row], int]:
    """Drop exact repeats where a log writes each value until the next is known; return how often
    each was written.
    """

    def measured(step: int) -> Row:
        """Return what a point measures; NaN, which differs from itself, as None."""
        row = points[step].items()
        return {
            key: value if value == value else None for key, value in row if not is_bookkeeping(key)
        }

    blocks = [list(block) for _, block in groupby(points, measured)]
    lengths = Counter(len(block) for block in blocks)
    length = max(lengths, key=lambda size: size * lengths[size], default=1)
    # A run that is constant by itself has few blocks, and one with few possible values has blocks
    # of any length.
    if len(blocks) < _BLOCKS or length == 1 or length * lengths[length] < _SHARE * len(points):
        return dict(points), 1
    return {block[0]: points[block[0]] for block in blocks}, length
