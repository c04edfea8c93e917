"""A log's rows as runs: restarts split, resumes spliced, rows of one step joined, summaries dropped."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from uptrend.bridge.importers.evaluations import evaluation, is_evaluation
from uptrend.bridge.importers.log import Log, Row, columns_in, number
from uptrend.bridge.importers.repeats import without_repeats
from uptrend.bridge.importers.steps import starts, step_column
from uptrend.bridge.importers.summaries import without_summaries
from uptrend.records.dialects import is_bookkeeping
from uptrend.stats.formatting import plural


@dataclass
class Segment:
    """One run of a log: its points by step, and its evaluations."""

    points: dict[int, Row] = field(default_factory=dict)
    evals: list[dict[str, Any]] = field(default_factory=list)
    repeated: int = 0
    """How many points were written again, by a resumed run or twice."""
    resumed: bool = False
    """Whether it went back to an earlier step and on from there."""

    @property
    def last(self) -> int:
        return next(reversed(self.points), 0)


@dataclass
class Dropped:
    """What was left out, by reason."""

    summaries: int = 0
    without_step: list[Row] = field(default_factory=list)


def segments_of(log: Log) -> list[Segment]:
    """The runs in a log, in order; notes and settings found on the way are added to the log."""
    rows, summaries = without_summaries(log.rows)
    dropped = Dropped(summaries)
    held_out_columns = {column for column in columns_in(rows) if is_evaluation(column)}
    column = step_column(rows)
    if column is None:
        rows = _once(log, rows)
    begin = starts(rows, column)
    found = [Segment()]
    number_of = _numbering(log, rows, column, begin, held_out_columns)
    for at, row in enumerate(rows):
        if at in begin and found[-1].points:
            found.append(Segment())
        training, held_out = _parted(row, held_out_columns)
        step = number_of[at]
        if step is None:
            dropped.without_step.append(row)
            continue
        if training:
            _add(found, step, training, dropped)
        result = evaluation(held_out, step) if held_out else None
        if result is not None:
            _add_evaluation(found[-1], result)
    _write_notes(log, found, dropped)
    return [segment for segment in found if segment.points or segment.evals]


def _once(log: Log, rows: list[Row]) -> list[Row]:
    """Rows that were printed several times over, by a callback besides the trainer, say, once each."""
    kept, times = without_repeats(dict(enumerate(rows)))
    if times > 1:
        log.notes.append(f"Each row was written {times} times over; the distinct ones were kept.")
    return list(kept.values())


def _numbering(log: Log, rows: list[Row], column: str | None, begin: set[int], held_out: set[str]) -> list[int | None]:
    """Each row's step; where nothing counts them, training rows are numbered, spread over a progress bar's length."""
    if column is not None:
        return [_whole(row.get(column)) for row in rows]
    trains = [bool(_parted(row, held_out)[0]) for row in rows]
    count = max(1, sum(trains))
    stride = max(1, log.last_step // count) if not begin else 1
    log.notes.append(
        "The rows have no step; they were numbered in order" + (f", {stride} steps apart." if stride > 1 else ".")
    )
    steps: list[int | None] = []
    step = 0
    for at, is_training in enumerate(trains):
        step = (0 if at in begin else step) + stride * is_training
        steps.append(step)
    return steps


def _whole(value: Any) -> int | None:
    found = number(value)
    return None if found is None or not abs(found) < 2**62 else int(found)


def _parted(row: Row, columns: set[str]) -> tuple[Row, Row]:
    """A row's training and held-out values; a row whose training values are all missing trains nothing."""
    held_out: Row = {}
    if not columns.isdisjoint(row):
        held_out = {key: value for key, value in row.items() if key in columns}
        row = {key: value for key, value in row.items() if key not in columns}
    if None in row.values():
        row = {key: value for key, value in row.items() if value is not None}
    return (row if any(_measures(key, value) for key, value in row.items()) else {}), held_out


def _measures(key: str, value: Any) -> bool:
    return not is_bookkeeping(key) and value == value and number(value) is not None


def _add(found: list[Segment], step: int, row: Row, dropped: Dropped) -> None:
    segment = found[-1]
    first = next(iter(segment.points), step)
    before = segment.points.get(step)
    alike = bool(segment.points) and step <= segment.last and _same_kind(segment, row)
    if before is not None and not _differ(before, row) and (step == segment.last or not alike):
        segment.points[step] = before | row
    elif before is not None and step == segment.last and len(row) * 2 < len(before) and len(segment.points) > 1:
        dropped.summaries += 1
    elif alike and step < segment.last and step <= first:
        found.append(Segment({step: row}))
    elif before is not None or (alike and step < segment.last):
        _go_back(segment, step)
        segment.points[step] = row
    else:
        segment.points[step] = row


def _differ(before: Row, after: Row) -> bool:
    return any(
        key in before and before[key] != value and not is_bookkeeping(key) and value == value
        for key, value in after.items()
    )


def _same_kind(segment: Segment, row: Row) -> bool:
    """Whether the latest point has the same metrics, so that this row is no late half of an earlier point."""
    latest = segment.points[segment.last]
    shared = sum(key in latest for key in row if not is_bookkeeping(key))
    return shared * 2 > len(row) - sum(map(is_bookkeeping, row))


def _go_back(segment: Segment, step: int) -> None:
    """A resumed run's later values count; what the interrupted one did beyond is gone."""
    later = [at for at in segment.points if at >= step]
    segment.repeated += len(later)
    segment.resumed = segment.resumed or len(later) > 1
    for at in later:
        del segment.points[at]


def _add_evaluation(segment: Segment, result: dict[str, Any]) -> None:
    latest = segment.evals[-1] if segment.evals else None
    if latest is not None and latest["step"] == result["step"]:
        latest.update(result)
    else:
        segment.evals.append(result)


def _write_notes(log: Log, found: list[Segment], dropped: Dropped) -> None:
    log.runs = max(1, sum(bool(segment.points) for segment in found))
    log.notes.extend(_notes(found, dropped, log.runs))
    for row in dropped.without_step:
        log.facts = {**row, **log.facts}


def _notes(found: list[Segment], dropped: Dropped, runs: int) -> Iterator[str]:
    if runs > 1:
        yield f"The log holds {runs} runs one after the other: steps or schedule start again; each is judged alone."
    if dropped.summaries:
        yield f"Left out, as only summing the run up: {plural(dropped.summaries, 'row')}."
    if dropped.without_step:
        yield f"Left out, as without a step: {plural(len(dropped.without_step), 'row')}."
    for segment in found:
        if segment.resumed:
            yield (
                f"The run was resumed from an earlier step: {plural(segment.repeated, 'point')} of before the resume "
                "gave way to the later ones."
            )
        elif segment.repeated:
            yield f"Written twice: {plural(segment.repeated, 'step')}; the later values count."
