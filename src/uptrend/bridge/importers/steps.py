"""Steps of a log's rows: the column that counts them, runs that a column names, restarts, and
repeated values.
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import groupby, pairwise

from uptrend.bridge.importers.readers import Log, Row, columns_in, folded, number
from uptrend.records.dialects import is_bookkeeping, names_for, plain_name

# Learning rates in a row that, repeated, tell a restart.
_SCHEDULE = 5
# Fewest blocks of equal points, and the share of points in blocks of one length, that tell repeated
# values.
_BLOCKS = 5
_SHARE = 0.8


def step_column(rows: Sequence[Row]) -> str | None:
    """Return the column that counts steps in most rows, and moves; None where there is none."""
    columns = {folded(column): column for column in columns_in(rows)}
    for column in (columns[name] for name in names_for("counters") if name in columns):
        values = [
            found
            for row in rows
            if (found := number(row.get(column))) is not None and found == found
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
    steps = next((column for column in first if folded(column) in names_for("counters")), None)
    if steps is None:
        return None
    # Fifty rows are enough to see a column of texts.
    texts = {
        key
        for row in rows[:50]
        for key, value in row.items()
        if isinstance(value, str) and number(value) is None
    }
    named = [column for column in first if folded(column) in names_for("runs")]
    for column in dict.fromkeys([*named, *sorted(texts)]):
        values = [row.get(column) for row in rows]
        if any(value is None or isinstance(value, list | dict) for value in values):
            continue
        # A run has at least three points; a column with more names counts something else.
        if not 2 <= len(set(values)) <= max(2, len(rows) // 3):
            continue
        # Steps never fall within a name, but do over all rows.
        numbered = [
            (row[column], step) for row in rows if (step := number(row.get(steps))) is not None
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
    rates = [number(row.get(rate or "")) for row in rows]
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
    for at, value in enumerate(number(row.get(growing)) for row in rows):
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
    steps = [math.nan if (step := number(row.get(counter))) is None else step for row in rows]
    return {at for at in found if at in repeats or not steps[at - 1] < steps[at]}


def _first_column(rows: Sequence[Row], role: str) -> str | None:
    """Find the surest column of a role among the first rows."""
    columns = {folded(column): column for column in reversed(columns_in(rows[:3]))}
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
