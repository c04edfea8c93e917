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

# The limits were chosen by hand, each for the reason beside it.

# First learning rates of a log that mark a restart where they come again.
N_SCHEDULE_RATES = 5
# Blocks of equal points, and share of all points in blocks of one length, from which values are
# repeated. A run that is constant by itself has few blocks, and one with few possible values has
# blocks of any length.
MIN_REPEAT_BLOCKS = 5
MIN_REPEATED_SHARE = 0.8
# Share of rows that have a step counter: rows of evaluations or system metrics may lack it.
MIN_COUNTED_SHARE = 0.6
# Rises of a counter / falls. A batch size, or a batch within an epoch, falls more often.
MIN_RISES_PER_FALL = 3
# Above this a float holds no fractions that could be tested.
MAX_TESTED_COUNT = 1e15
# Damaged event files have steps beyond any real one.
MAX_STEP = 2**62
# Rows that are searched for the first column of a role, and for columns of texts.
N_HEAD_ROWS = 3
N_ROWS_WITH_TEXTS = 50
# Fewest points of a run where a column names runs: one with more names counts something else.
MIN_POINTS_PER_NAME = 3
# A value that only grows, such as an epoch, falls: a restart if value / first value of the run and
# value / its highest are both below the first two limits, or the latter is below the third. A
# resumed run falls less.
MAX_RESTART_TO_FIRST = 1.5
MAX_RESTART_TO_TOP = 0.5
MAX_SURE_RESTART_TO_TOP = 0.01


@dataclass
class Segment:
    """One run of a log."""

    points: dict[int, Row] = field(default_factory=dict)  # row of each step
    # evaluations in order, as `read_evaluation` returns them
    evals: list[dict[str, Any]] = field(default_factory=list)
    n_rewritten: int = 0  # points that were written again, by a resumed run or twice
    is_resumed: bool = False  # true if it went back to an earlier step and on from there


def split_runs(log: Log) -> tuple[list[Segment], Log]:
    """Return the runs in a log in order, and the log with the notes and settings that came up."""
    rows, n_summaries = _without_summaries(log.rows)
    notes = list(log.notes)
    column = step_column(rows)
    if column is None:
        # A callback besides the trainer may have printed each row again.
        distinct, times = without_repeats(dict(enumerate(rows)))
        rows = list(distinct.values())
        if times > 1:
            notes.append(f"Each row was written {times} times over; the distinct ones were kept.")

    # Rows of several runs may follow each other in one file, as a console's do that is appended to.
    restarts = find_restarts(rows, column)
    eval_columns = {name for name in columns_in(rows) if is_evaluation(name)}
    parted = [_part(row, eval_columns) for row in rows]
    stride = 1
    if not restarts:
        n_training_rows = sum(bool(training) for training, _ in parted)
        stride = max(1, log.last_step // max(1, n_training_rows))
    if column is None:
        apart = f", {stride} steps apart" if stride > 1 else ""
        notes.append(f"The rows have no step; they were numbered in order{apart}.")

    segments = [Segment()]
    facts = log.facts
    n_without_step = 0
    number = 0
    step: int | None
    for index, (training, results) in enumerate(parted):
        if index in restarts and segments[-1].points:
            segments.append(Segment())
        if column is None:
            # Training rows are a stride apart, and each run counts from its beginning.
            if index in restarts:
                number = 0
            if training:
                number += stride
            step = number
        else:
            step = _parse_step(rows[index].get(column))
        if step is None:
            n_without_step += 1
            # A row without a step often holds settings, such as the first line of a home-made log.
            facts = {**rows[index], **facts}
            continue

        if training and not _add_point(segments, step, training):
            n_summaries += 1
        result = read_evaluation(results, step)
        evals = segments[-1].evals
        if result and evals and evals[-1]["step"] == step:
            evals[-1].update(result)
        elif result:
            evals.append(result)

    notes += _notes_on(segments, n_summaries, n_without_step)
    runs = [segment for segment in segments if segment.points or segment.evals]
    return runs, replace(log, notes=tuple(notes), facts=facts)


def _parse_step(value: Any) -> int | None:
    number = parse_number(value)
    # NaN fails the comparison too.
    if number is None or not abs(number) < MAX_STEP:
        return None
    return int(number)


def _without_summaries(rows: list[Row]) -> tuple[list[Row], int]:
    """Return the rows that are points, without columns that only summarize; and the number of rows
    left out.
    """
    summary_columns = {column for column in columns_in(rows) if matches(column, "summary")}
    if not summary_columns:
        return rows, 0
    points: list[Row] = []
    for row in rows:
        present = [column for column, value in row.items() if value is not None]
        # A row that summarizes the run may hold a reward too: the mean of all.
        is_point = any(plain_name(column) in names_for("points") for column in present)
        if is_point or summary_columns.isdisjoint(present):
            points.append({key: row[key] for key in row if key not in summary_columns})
    return points, len(rows) - len(points)


@cache
def is_evaluation(column: str) -> bool:
    """Return True for a column of an evaluation: it has the prefix of one and is no known metric of
    training.
    """
    if not matches(column, "evaluation"):
        return False
    name = plain_name(column)
    return not any(name in metric_names(trainer) for trainer in METRIC_DIALECTS)


def read_evaluation(row: Row, step: int) -> dict[str, Any]:
    """Return an evaluation with the keys of evals.jsonl as far as known, and its own names; empty
    if it has no number.
    """
    values: dict[str, float | None] = {}
    for key, value in row.items():
        if not matches(key, "cost"):
            values[plain_name(key)] = parse_number(value)
    numbers: dict[str, float] = {}
    for name, number in values.items():
        if number is not None and math.isfinite(number):
            numbers[name] = number
    if not numbers:
        return {}

    result: dict[str, Any] = {"step": step}
    accuracy = _shortest_name(numbers, "accuracy")
    reward = _shortest_name(numbers, "reward") or _shortest_name(numbers, "mean_reward")
    if accuracy is not None:
        result["accuracy"] = numbers[accuracy]
    if reward is not None and reward != accuracy:
        result["reward"] = numbers[reward]
    return result | numbers


def _shortest_name(names: Mapping[str, float], role: str) -> str | None:
    """Find the shortest name of a role: the whole rather than one of its components."""
    candidates = [name for name in names if matches(name, role)]
    means = [name for name in candidates if not matches(name, "spread")]
    return min(means, key=len, default=None)


def _part(row: Row, eval_columns: set[str]) -> tuple[Row, Row]:
    """Split a row into training and held-out values; a row whose training values are all missing
    trains nothing.
    """
    results: Row = {}
    training: Row = {}
    for key, value in row.items():
        if key in eval_columns:
            results[key] = value
        elif value is not None:
            training[key] = value
    metrics = [value for key, value in training.items() if not is_bookkeeping(key)]
    is_training = any(value == value and parse_number(value) is not None for value in metrics)
    return training if is_training else {}, results


def _add_point(segments: list[Segment], step: int, row: Row) -> bool:
    """Add a row to the latest run, or to a new one; return False for a row that only summarizes the
    run.
    """
    run = segments[-1]
    point = run.points.get(step)
    last_step = next(reversed(run.points), 0)
    last_point = run.points.get(last_step, {})
    metrics = [key for key in row if not is_bookkeeping(key)]
    # Most metrics are in the latest point too: this is no late half of an earlier point.
    n_shared = sum(key in last_point for key in metrics)
    is_alike = step <= last_step and n_shared * 2 > len(metrics)
    goes_back = is_alike and step < last_step

    if point is not None:
        # A row of the same step adds to the point: trackers write reward and KL by different calls.
        if not _contradicts(row, point, metrics) and (step == last_step or not is_alike):
            run.points[step] = point | row
            return True
        # A short row at the last step that contradicts it gives means over the whole run.
        is_short = len(row) * 2 < len(point)
        if is_short and step == last_step and len(run.points) > 1:
            return False
    # Back at the first step or before it: a new run, whatever else the row says.
    if goes_back and step <= next(iter(run.points)):
        segments.append(Segment({step: row}))
        return True
    if point is not None or goes_back:
        # A resumed run's later values count; what the interrupted one did beyond is dropped.
        replaced = [later for later in run.points if later >= step]
        run.n_rewritten += len(replaced)
        run.is_resumed = run.is_resumed or len(replaced) > 1
        for later in replaced:
            del run.points[later]
    run.points[step] = row
    return True


def _contradicts(row: Row, point: Row, metrics: list[str]) -> bool:
    """Return True if a row has another value than a point for a metric of both."""
    for key in metrics:
        is_nan = row[key] != row[key]
        if key in point and not is_nan and point[key] != row[key]:
            return True
    return False


def _notes_on(segments: list[Segment], n_summaries: int, n_without_step: int) -> Iterator[str]:
    n_runs = sum(bool(segment.points) for segment in segments)
    if n_runs > 1:
        yield (
            f"The log holds {n_runs} runs one after the other: steps or schedule start again; each"
            " is judged alone."
        )
    if n_summaries:
        yield f"Left out {plural(n_summaries, 'row')} that only summarized the run."
    if n_without_step:
        yield f"Left out {plural(n_without_step, 'row')} without a step."
    for segment in segments:
        if segment.is_resumed:
            yield (
                "The run was resumed from an earlier step: later values replaced"
                f" {plural(segment.n_rewritten, 'point')}."
            )
        elif segment.n_rewritten:
            yield f"Written twice: {plural(segment.n_rewritten, 'step')}; the later values count."


def step_column(rows: Sequence[Row]) -> str | None:
    """Return the column that counts steps in most rows, and moves; None if there is none."""
    columns = {fold_name(column): column for column in columns_in(rows)}
    for name in names_for("counters"):
        if name not in columns:
            continue
        column = columns[name]
        values: list[float] = []
        for row in rows:
            value = parse_number(row.get(column))
            if value is not None and not math.isnan(value):
                values.append(value)

        testable = [value for value in values if abs(value) < MAX_TESTED_COUNT]
        is_whole = all(value == int(value) for value in testable)
        is_usual = len(values) >= MIN_COUNTED_SHARE * len(rows)
        moves = len(set(values)) > 1 or _are_one_point(rows)
        rises = sum(after > before for before, after in pairwise(values))
        falls = sum(after < before for before, after in pairwise(values))
        if is_whole and is_usual and moves and rises >= MIN_RISES_PER_FALL * falls:
            return column
    return None


def _are_one_point(rows: Sequence[Row]) -> bool:
    """Return True for one row, and for several that share no metric: parts of one point."""
    metrics: list[str] = []
    for row in rows:
        metrics += [column for column in row if not is_bookkeeping(column)]
    return len(rows) == 1 or len(metrics) == len(set(metrics))


def split_by_name(log: Log) -> list[Log]:
    """Split a log by a column that names the run, if steps climb within each name but not
    overall.
    """
    column = _naming_column(log.rows)
    if column is None:
        return [log]
    rows_by_name: dict[str, list[Row]] = {}
    for row in log.rows:
        value = row.get(column)
        name = str(value or "")
        # Numbers such as seeds may be read as 0.0 and 1.0; NaN and infinity stay as they are.
        if isinstance(value, float) and value.is_integer():
            name = str(int(value))
        others = {key: row[key] for key in row if key != column}
        rows_by_name.setdefault(name, []).append(others)

    note = f"The log holds {len(rows_by_name)} runs, told apart by its column {column!r}."
    whole = replace(log, last_step=0, notes=(*log.notes, note))
    logs: list[Log] = []
    for name, rows in rows_by_name.items():
        logs.append(replace(whole, rows=rows, name=name or log.name))
    return logs


def _naming_column(rows: list[Row]) -> str | None:
    """Find the column that names runs: one that is called so, else one of texts."""
    first = rows[0] if rows else {}
    counters = [column for column in first if fold_name(column) in names_for("counters")]
    if not counters:
        return None
    candidates = [column for column in first if fold_name(column) in names_for("runs")]
    candidates += sorted(_text_columns(rows[:N_ROWS_WITH_TEXTS]))
    for column in dict.fromkeys(candidates):
        values = [row.get(column) for row in rows]
        if any(value is None or isinstance(value, list | dict) for value in values):
            continue
        max_names = max(2, len(rows) // MIN_POINTS_PER_NAME)
        if not 2 <= len(set(values)) <= max_names:
            continue
        if _climbs_by_name_alone(rows, column, counters[0]):
            return column
    return None


def _text_columns(rows: list[Row]) -> set[str]:
    columns: set[str] = set()
    for row in rows:
        for key, value in row.items():
            if isinstance(value, str) and parse_number(value) is None:
                columns.add(key)
    return columns


def _climbs_by_name_alone(rows: list[Row], column: str, counter: str) -> bool:
    """Return True if steps never fall within a name, but do over all rows."""
    steps: list[float] = []
    steps_by_name: dict[Any, list[float]] = {}
    for row in rows:
        step = parse_number(row.get(counter))
        if step is not None:
            steps.append(step)
            steps_by_name.setdefault(row[column], []).append(step)
    if not any(after <= before for before, after in pairwise(steps)):
        return False
    return all(_never_falls(own_steps) for own_steps in steps_by_name.values())


def _never_falls(steps: list[float]) -> bool:
    return all(before <= after for before, after in pairwise(steps))


def find_restarts(rows: Sequence[Row], counter: str | None) -> set[int]:
    """Return the first row of each run but the first: something that only grows begins again."""
    repeats = _repeated_schedules(rows)
    growing = _first_column(rows, "growing")
    if growing is None:
        return set() if counter is not None else repeats
    falls = _falls_to_beginning([parse_number(row.get(growing)) for row in rows])
    # W&B's _step counts calls, and goes on over a restart.
    if counter is None or plain_name(counter) == "_step":
        return falls

    steps: list[float] = []
    for row in rows:
        step = parse_number(row.get(counter))
        steps.append(math.nan if step is None else step)
    restarts: set[int] = set()
    for index in falls:
        # Where a counter climbs on, a new epoch 0 is a new stage of one run, unless the schedule
        # repeats as well.
        climbs_on = steps[index - 1] < steps[index]
        if index in repeats or not climbs_on:
            restarts.add(index)
    return restarts


def _repeated_schedules(rows: Sequence[Row]) -> set[int]:
    """Return the rows from which the first learning rates come again."""
    column = _first_column(rows, "rates") or ""
    rates = [parse_number(row.get(column)) for row in rows]
    head = rates[:N_SCHEDULE_RATES]
    # A warmup gives distinct rates, which hardly repeat by chance; a constant rate tells nothing.
    is_distinct = None not in head and len(set(head)) == N_SCHEDULE_RATES
    if len(rates) < 2 * N_SCHEDULE_RATES or not is_distinct:
        return set()
    last = len(rates) - N_SCHEDULE_RATES
    indices = range(N_SCHEDULE_RATES, last + 1)
    return {index for index in indices if rates[index : index + N_SCHEDULE_RATES] == head}


def _falls_to_beginning(values: Sequence[float | None]) -> set[int]:
    """Return where values that only grow begin again; a resumed run, which falls back a little,
    does not.
    """
    falls: set[int] = set()
    first = None
    top = 0.0
    for index, value in enumerate(values):
        if value is None or math.isnan(value):
            continue
        if first is None:
            first = value
        elif value < top:
            is_near_first = value <= MAX_RESTART_TO_FIRST * first
            is_far_below = value < MAX_RESTART_TO_TOP * top
            is_tiny = value < MAX_SURE_RESTART_TO_TOP * top
            if value <= first or (is_near_first and is_far_below) or is_tiny:
                falls.add(index)
                first = value
                top = value
        top = max(top, value)
    return falls


def _first_column(rows: Sequence[Row], role: str) -> str | None:
    """Find the surest column of a role among the first rows."""
    names = columns_in(rows[:N_HEAD_ROWS])
    # Reversed, so that of columns with one plain name the first remains.
    columns = {fold_name(column): column for column in reversed(names)}
    return next((columns[name] for name in names_for(role) if name in columns), None)


def without_repeats(points: Mapping[int, Row]) -> tuple[dict[int, Row], int]:
    """Drop exact repeats if a log writes each value until the next is known; return the points and
    the number of times that each was written.
    """

    def measurements(step: int) -> Row:
        """Return the metrics of a point; NaN, which differs from itself, as None."""
        metrics: Row = {}
        for key, value in points[step].items():
            if not is_bookkeeping(key):
                metrics[key] = value if value == value else None
        return metrics

    blocks = [list(block) for _, block in groupby(points, measurements)]
    n_by_length = Counter(len(block) for block in blocks)
    length = max(n_by_length, key=lambda size: size * n_by_length[size], default=1)
    n_repeated = length * n_by_length[length]
    is_repeated = length > 1 and n_repeated >= MIN_REPEATED_SHARE * len(points)
    if len(blocks) < MIN_REPEAT_BLOCKS or not is_repeated:
        return dict(points), 1
    return {block[0]: points[block[0]] for block in blocks}, length
