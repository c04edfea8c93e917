"""A log's rows as runs: restarts split, resumed runs joined, evaluations set apart, summaries
dropped.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

from uptrend.bridge.importers.readers import Log, Row, columns_in, number
from uptrend.bridge.importers.steps import starts, step_column, without_repeats
from uptrend.present.formatting import plural
from uptrend.records.dialects import (
    LOGGERS,
    is_bookkeeping,
    matches,
    metric_names,
    names_for,
    plain_name,
)


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
            value = number(rows[at].get(column))
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
        name in metric_names(trainer) for trainer in LOGGERS
    )


def evaluation(row: Row, step: int) -> dict[str, Any]:
    """Return an evaluation with the keys of evals.jsonl as far as known, and its own names; empty
    where it has none.
    """
    numbers = {
        plain_name(key): number(value) for key, value in row.items() if not matches(key, "cost")
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
        training if any(value == value and number(value) is not None for value in values) else {}
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
