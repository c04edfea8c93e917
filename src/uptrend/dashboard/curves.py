"""Curves of a run: columns of metrics.jsonl, read on from where the last reading ended, and thinned
for a plot.
"""

import contextlib
import hashlib
import io
import os
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj

from uptrend.present.drawing import Integers, stretch_means, stretches
from uptrend.records import Run
from uptrend.records.directory import LINES_FILES
from uptrend.records.files import MAX_CELLS, MAX_LOG_BYTES, check_cells, check_size, open_file
from uptrend.records.lines import MAX_DEPTH, parse_line, read_lines
from uptrend.records.renamed import upgrade_metrics
from uptrend.records.view import Floats

METRICS_FILE = LINES_FILES["rollouts"]
STEP_KEY = "step"
TIME_KEY = "time"
ROLLOUTS_KEY = "sampling/rollouts/count"
# Size of a metrics.jsonl from which on its columns are kept as a file in the index.
MIN_INDEXED_BYTES = 8_000_000
# Columns that are kept in memory, over all runs.
MAX_BYTES_IN_MEMORY = 200_000_000
# Bytes before the end of the last reading. If they are the same, so is the file, only longer.
TAIL_BYTES = 512
DIGEST_CHARACTERS = 16
# Cells of the table that a piece of a file may become at most, a share of what a whole one may.
MAX_CELLS_PER_PIECE = MAX_CELLS // 4
# Bytes that Arrow's reader takes at a time. A line has to fit.
ARROW_BLOCK_BYTES = 1 << 24
# Points of a curve unless a page asks for another number.
DEFAULT_POINTS = 600
# Significant digits of a point on a plot, and of one in a table's cell.
POINT_DIGITS = 6
SPARKLINE_DIGITS = 4


@dataclass
class _Reading:
    """Part of a file that has been read."""

    table: pa.Table
    offset: int
    tail: str
    """Digest of the last bytes before the offset."""
    size: int
    """Bytes that the table takes, counted once: counting takes as long as reading a small file."""
    is_in_file: bool = False


class Columns:
    """Columns of metrics files, each read once and then only where it grew; those of large files
    are kept as files.
    """

    def __init__(self) -> None:
        # The one that was used last comes last.
        self._readings: OrderedDict[Path, _Reading] = OrderedDict()

    def of_run(
        self, run: Run, file: Path, min_indexed_bytes: int = MIN_INDEXED_BYTES
    ) -> tuple[pa.Table, bool]:
        """Return the metrics of a run, one row per step, and True if `file` has them too.

        Values that are no numbers are left out.
        """
        path = run.path / METRICS_FILE
        if run.schema == 1:  # other names, and nulls that mean something else
            return _from_records(upgrade_metrics(line) for line in read_lines(path)), False

        size = os.path.getsize(path) if path.exists() else 0
        reading = self._readings.pop(path, None) or _from_file(file)
        if reading is not None:
            is_shorter = size < reading.offset
            if is_shorter or reading.tail != _tail(path, reading.offset):
                reading = None  # another file by the same name
        if reading is None or size > reading.offset:
            reading = _read_on(path, reading, size)
            if reading.offset > min_indexed_bytes:
                reading.is_in_file = _to_file(reading, file)

        self._readings[path] = reading
        while len(self._readings) > 1 and self._bytes_in_memory() > MAX_BYTES_IN_MEMORY:
            self._readings.popitem(last=False)
        return reading.table, reading.is_in_file

    def _bytes_in_memory(self) -> int:
        return sum(reading.size for reading in self._readings.values())


def _read_on(path: Path, before: _Reading | None, size: int) -> _Reading:
    """Read a file from where the last reading ended."""
    check_size(path, size, MAX_LOG_BYTES)
    start = before.offset if before else 0
    with open_file(path) if size else io.BytesIO() as file:
        file.seek(start)
        data = file.read(size - start)
    data = data[: data.rfind(b"\n") + 1]  # a line that is being written is read next time
    end = start + len(data)
    table = parse(data)
    if before is not None and len(table):
        table = _concatenate([before.table, table])
    elif before is not None:
        table = before.table
    return _Reading(table, end, _tail(path, end), table.nbytes)


def _to_file(reading: _Reading, file: Path) -> bool:
    """Write a reading to a file; return False if the disk refuses it."""
    metadata = {"offset": str(reading.offset), "tail": reading.tail}
    table = reading.table.combine_chunks().replace_schema_metadata(metadata)
    try:
        write_columns(table, file)
    except OSError:
        return False
    return True


def _from_file(file: Path) -> _Reading | None:
    """Map the reading in a file; None if there is none, or it is damaged."""
    try:
        table = pa.ipc.open_file(pa.memory_map(str(file))).read_all()
        os.utime(file)  # files that were not used for long are removed
        metadata = table.schema.metadata
        offset = int(metadata[b"offset"])
        tail = metadata[b"tail"].decode()
    except (OSError, pa.ArrowInvalid, KeyError, TypeError, ValueError):
        return None
    # A mapped table takes no memory of its own.
    return _Reading(table, offset, tail, size=0, is_in_file=True)


def write_columns(table: pa.Table, file: Path) -> None:
    """Write columns as a file that is mapped, not read.

    It is written under another name first, so that no reader maps half of it.
    """
    file.parent.mkdir(parents=True, exist_ok=True)
    unfinished = file.with_suffix(f".{os.getpid()}")
    with pa.OSFile(str(unfinished), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)
    unfinished.replace(file)


def _tail(path: Path, offset: int) -> str:
    """Return a digest of the last bytes before an offset."""
    if not offset:
        return ""
    length = min(offset, TAIL_BYTES)
    with open_file(path) as file:
        file.seek(offset - length)
        tail = file.read(length)
    return hashlib.sha256(tail).hexdigest()[:DIGEST_CHARACTERS]


def parse(data: bytes) -> pa.Table:
    """Return the numbers of JSON lines as a table; damaged lines are left out."""
    return _concatenate([_parse_piece(piece) for piece in _split_lines(data)])


def _split_lines(data: bytes) -> Iterator[memoryview]:
    """Split lines into pieces that make no large table even if no two values have the same name."""
    view = memoryview(data)
    begin = 0
    end = 0
    n_rows = 0
    n_values = 0
    for line in data.split(b"\n"):
        n_values_of_line = line.count(b":")
        n_cells = (n_rows + 1) * (n_values + n_values_of_line)
        if n_cells > MAX_CELLS_PER_PIECE and n_rows:
            yield view[begin:end]
            begin = end
            n_rows = 0
            n_values = 0
        n_rows += 1
        n_values += n_values_of_line
        end += len(line) + 1
    yield view[begin:]


def _parse_piece(piece: memoryview) -> pa.Table:
    lines = bytes(piece).split(b"\n")
    # Arrow's reader ends the process at a value that is nested too deep.
    max_depth = max(line.count(b"[") + line.count(b"{") for line in lines)
    if max_depth <= MAX_DEPTH:
        options = pj.ReadOptions(block_size=ARROW_BLOCK_BYTES)
        with contextlib.suppress(pa.ArrowInvalid, UnicodeError):
            table = _numbers(pj.read_json(pa.BufferReader(piece), read_options=options))
            if STEP_KEY in table.column_names:
                return table
    # Arrow wants the same type of a value in all lines. One by one, a damaged line loses nothing
    # but itself.
    records = (parse_line(line, METRICS_FILE) for line in lines)
    return _from_records(record for record in records if record is not None)


def _concatenate(tables: Sequence[pa.Table]) -> pa.Table:
    """Return tables one after the other; each may have columns that the others lack."""
    tables = [table for table in tables if len(table)]
    if len(tables) < 2:
        return tables[0] if tables else pa.table({})
    names: set[str] = set()
    for table in tables:
        names.update(table.column_names)
    check_cells(METRICS_FILE, sum(map(len, tables)), len(names))
    return pa.concat_tables(tables, promote_options="permissive").combine_chunks()


def _from_records(records: Iterable[Mapping[str, Any]]) -> pa.Table:
    rows: list[dict[str, float]] = []
    keys: dict[str, None] = {}  # a set in the order of their first row
    for record in records:
        row = {}
        for key, value in record.items():
            if isinstance(value, int | float) and not isinstance(value, bool):
                row[key] = value
        rows.append(row)
        keys |= dict.fromkeys(row)
    check_cells(METRICS_FILE, len(rows), len(keys))
    columns = {}
    for key in keys:
        values = [row.get(key) for row in rows]
        columns[key] = pa.array(values)
    return _numbers(pa.table(columns))


def _numbers(table: pa.Table) -> pa.Table:
    """Return the numeric columns, the step as integers and the others as floats; rows without a
    step are left out.
    """
    names = table.column_names
    if STEP_KEY not in names:
        return pa.table({})
    step_kind = table.schema.field(STEP_KEY).type
    if not pa.types.is_integer(step_kind):
        return pa.table({})
    columns = {}
    for name, kind in zip(names, table.schema.types, strict=True):
        if pa.types.is_integer(kind) or pa.types.is_floating(kind):
            number = pa.int64() if name == STEP_KEY else pa.float64()
            columns[name] = table[name].cast(number, safe=False)
    numbers = pa.table(columns)
    has_step = pc.greater_equal(numbers[STEP_KEY], 0)  # null where the step is
    if pc.all(has_step, skip_nulls=False).as_py():
        return numbers
    return numbers.filter(has_step)


def steps_of(table: pa.Table) -> Integers:
    """Return the steps of a table, which has no columns if it is empty."""
    if not len(table):
        return np.zeros(0, np.int64)
    steps: Integers = table[STEP_KEY].to_numpy()
    return steps


def values_of(table: pa.Table, name: str) -> Floats:
    """Return a column as floats, NaN where it has no value; all NaN if the table lacks it."""
    if name not in table.column_names:
        return np.full(len(table), np.nan)
    values: Floats = table[name].to_numpy().astype(np.float64, copy=False)
    return values


def from_columns(steps: Sequence[int], columns: Mapping[str, Floats]) -> pa.Table:
    """Return the columns of another trainer's log as a table."""
    arrays = {STEP_KEY: pa.array(steps, pa.int64())}
    for name, values in columns.items():
        if name != STEP_KEY:
            arrays[name] = pa.array(values)
    return pa.table(arrays)


def thin(
    table: pa.Table,
    keys: Iterable[str],
    points: int = DEFAULT_POINTS,
    first: int | None = None,
    last: int | None = None,
) -> dict[str, Any]:
    """Return curves over the same steps, from `first` to `last`, each with at most `points` points.

    Of more steps than that, a point is the mean of neighbors, and `low` and `high` are their
    extremes, so that no spike is lost. `rollouts` and `time` are other axes: rollouts sampled so
    far, and seconds since the first step.
    """
    steps = steps_of(table)
    begin = 0 if first is None else int(np.searchsorted(steps, first))
    end = len(steps) if last is None else int(np.searchsorted(steps, last, "right"))
    chosen = slice(begin, end)
    steps = steps[chosen]
    firsts = stretches(len(steps), max(2, points))
    is_whole = len(firsts) == len(steps)

    curves: dict[str, dict[str, list[float | None]]] = {}
    for key in keys:
        values = values_of(table, key)[chosen]
        if np.isfinite(values).any():
            curves[key] = {"mean": _rounded(values)} if is_whole else _thinned(values, firsts)

    # A point's place on an axis is that of the last step that it stands for.
    lasts = firsts
    if len(firsts):
        lasts = np.append(firsts[1:], len(steps)) - 1
    rollouts = np.cumsum(np.nan_to_num(values_of(table, ROLLOUTS_KEY)))
    times = values_of(table, TIME_KEY)
    if len(times):
        times = times - times[0]
    axes: dict[str, Any] = {"step": steps[lasts].tolist()}
    other_axes = {"rollouts": rollouts[chosen], "time": times[chosen]}
    for name, axis in other_axes.items():
        if len(axis) and np.nanmax(axis, initial=0.0) > 0:
            axes[name] = _rounded(axis[lasts])
    return {**axes, "curves": curves, "thinned": not is_whole}


def _thinned(values: Floats, firsts: Integers) -> dict[str, list[float | None]]:
    """Return mean and extremes of each stretch of a curve; null where it has no finite value."""
    is_finite = np.isfinite(values)
    finite_or_high = np.where(is_finite, values, np.inf)
    finite_or_low = np.where(is_finite, values, -np.inf)
    return {
        "mean": _rounded(stretch_means(values, firsts)),
        "low": _rounded(np.minimum.reduceat(finite_or_high, firsts)),
        "high": _rounded(np.maximum.reduceat(finite_or_low, firsts)),
    }


def _rounded(values: Floats) -> list[float | None]:
    """Return numbers with the digits of a point, null where they are not finite."""
    rounded: list[float | None] = []
    for value in np.asarray(values, np.float64).tolist():
        rounded.append(float(f"{value:.{POINT_DIGITS}g}") if np.isfinite(value) else None)
    return rounded


def sparkline(values: Floats, points: int = 40) -> list[float | None]:
    """Return a curve in a few means, for a table's cell."""
    finite = values[np.isfinite(values)]
    means = stretch_means(finite, stretches(len(finite), points))
    return [float(f"{mean:.{SPARKLINE_DIGITS}g}") for mean in means]
