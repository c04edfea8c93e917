"""Which column counts the steps, and where a count starts again."""

from collections.abc import Sequence
from itertools import pairwise

from uptrend.bridge.importers.log import Log, Row, columns_in, number
from uptrend.records.dialects import plain_name

_COUNTERS = (
    "global_step", "training/global_step", "trainer/global_step", "step", "training_step", "train_step", "steps",
    "progress/step", "progress/batch", "batch_index", "iteration", "iter", "update", "update_step", "batch", "_step",
)  # fmt: skip
# Columns that only ever grow within a run.
_GROWING = ("epoch", "progress/epoch", "training/epoch", "num_tokens", "num_input_tokens_seen", "_runtime")
_RUN_NAMES = ("run", "run_name", "run_id", "arm", "experiment", "experiment_name", "exp", "seed", "trial")
_SCHEDULE = 5


def step_column(rows: Sequence[Row]) -> str | None:
    """The column that counts steps in most rows, and moves; None where there is none."""
    columns = {plain_name(column).lower(): column for column in columns_in(rows)}
    for counter in _COUNTERS:
        column = columns.get(counter)
        if column is None:
            continue
        values = [found for row in rows if (found := number(row.get(column))) is not None and found == found]
        whole = all(value == int(value) for value in values if abs(value) < 1e15)
        enough = len(values) * 10 >= len(rows) * 6
        if whole and enough and (len(set(values)) > 1 or len(rows) == 1) and _climbs(values):
            return column
    return None


def _climbs(values: list[float]) -> bool:
    """A counter goes up far more often than down; a batch size or a batch within an epoch does not."""
    ups = sum(after > before for before, after in pairwise(values))
    downs = sum(after < before for before, after in pairwise(values))
    return ups >= 3 * downs


def by_run(log: Log) -> list[Log]:
    """The log taken apart by a column that names the run, where steps climb within each name but not overall."""
    names = _naming_column(log.rows)
    if names is None:
        return [log]
    parts: dict[str, list[Row]] = {}
    for row in log.rows:
        parts.setdefault(_shown(row.get(names)), []).append({k: v for k, v in row.items() if k != names})
    note = f"The log holds {len(parts)} runs, told apart by its column {names!r}."
    return [Log(rows, name or log.name, log.trainer, log.facts, 0, [*log.notes, note]) for name, rows in parts.items()]


def _shown(value: object) -> str:
    return str(int(value)) if isinstance(value, float) and value == int(value) else str(value or "")


def _naming_column(rows: list[Row]) -> str | None:
    texts = {
        column for row in rows[:50] for column, value in row.items() if isinstance(value, str) and number(value) is None
    }
    named = [column for column in rows[0] if plain_name(column).lower() in _RUN_NAMES] if rows else []
    candidates = list(dict.fromkeys([*named, *sorted(texts)]))
    steps = next((c for c in rows[0] if plain_name(c).lower() in _COUNTERS), None) if candidates and rows else None
    for column in candidates:
        values = [row.get(column) for row in rows]
        if any(value is None or isinstance(value, list | dict) for value in values):
            continue
        if 2 <= len(set(values)) <= max(2, len(rows) // 3) and steps is not None and _parts_climb(rows, column, steps):
            return column
    return None


def _parts_climb(rows: list[Row], names: str, steps: str) -> bool:
    last: dict[object, float] = {}
    latest, falls = float("-inf"), False
    for row in rows:
        step = number(row.get(steps))
        if step is None:
            continue
        falls = falls or step <= latest
        latest = step
        if step < last.get(row[names], float("-inf")):
            return False
        last[row[names]] = step
    return falls


def starts(rows: Sequence[Row], counter: str | None) -> set[int]:
    """Where something that only grows begins again: the first row of each run but the first.

    Where a counter of steps climbs on, a new epoch 0 is a new stage of one run, unless the schedule repeats as well.
    """
    rates = [number(row.get(_lr(rows))) for row in rows]
    name = next((c for column in _GROWING for row in rows[:3] for c in row if plain_name(c).lower() == column), None)
    if name is None:
        return set() if counter is not None else _repeats(rates)
    found = _falls([number(row.get(name)) for row in rows])
    if counter is None or plain_name(counter) == "_step":
        return found
    return {at for at in found if _goes_back(rows, counter, at)} | (found & _repeats(rates))


def _goes_back(rows: Sequence[Row], counter: str, at: int) -> bool:
    before, after = number(rows[at - 1].get(counter)), number(rows[at].get(counter))
    return before is None or after is None or after <= before


def _lr(rows: Sequence[Row]) -> str:
    names = ("learning_rate", "lr", "actor/lr", "optim/lr")
    return next((c for row in rows[:3] for c in row if plain_name(c).lower() in names), "")


def _falls(values: list[float | None]) -> set[int]:
    """Falls back to where it began, or about there and far below what was reached."""
    found: set[int] = set()
    first, top = None, 0.0
    for at, value in enumerate(values):
        if value is None or value != value:
            continue
        if first is None:
            first = value
        elif value < top and (value <= first or (value <= 1.5 * first and value < 0.5 * top) or value < 0.01 * top):
            found.add(at)
            first, top = value, value
        top = max(top, value)
    return found


def _repeats(values: list[float | None]) -> set[int]:
    """Where the learning rates of the beginning come again, number for number; a constant one tells nothing."""
    head = values[:_SCHEDULE]
    if len(values) < 2 * _SCHEDULE or None in head or len(set(head)) < _SCHEDULE:
        return set()
    return {at for at in range(_SCHEDULE, len(values) - _SCHEDULE + 1) if values[at : at + _SCHEDULE] == head}
