"""Curves of a run: columns read from the end of metrics.jsonl as it grows, and thinned for a
picture.
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

from uptrend.present.drawing import stretch_means, stretches
from uptrend.records import Run
from uptrend.records.directory import LINES_FILES
from uptrend.records.files import MAX_CELLS, MAX_LOG_BYTES, check_cells, check_size, open_file
from uptrend.records.lines import MAX_DEPTH, parse_line, read_lines
from uptrend.records.renamed import upgrade_metrics
from uptrend.records.view import Floats

# From this size on, the columns of a metrics.jsonl are kept in the index.
LARGE = 8_000_000
# Bytes of columns that are held in memory over all runs.
HELD = 200_000_000
# Bytes before the end of what was read by which a file is known to be the same one, only longer.
TAIL = 512
POINTS = 600
METRICS = LINES_FILES["rollouts"]
STEP = "step"
TIME = "time"
ROLLOUTS = "sampling/rollouts/count"


@dataclass
class _Read:
    """Part of a file that was read."""

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
        self._held: OrderedDict[Path, _Read] = OrderedDict()

    def of_run(self, run: Run, file: Path, large: int = LARGE) -> tuple[pa.Table, bool]:
        """Return the metrics of a run, one row per step, and if `file` has them too; what is no
        number is left out.
        """
        path = run.path / METRICS
        if run.schema == 1:  # other names, and nulls that mean something else
            return _from_records(upgrade_metrics(line) for line in read_lines(path)), False
        size = os.path.getsize(path) if path.exists() else 0
        read = self._held.pop(path, None) or _from_file(file)
        if read is not None and (size < read.offset or read.tail != _digest(path, read.offset)):
            read = None
        if read is None or size > read.offset:
            read = _read_on(path, read, size)
            if read.offset > large:
                read.is_in_file = _to_file(read, file)
        self._held[path] = read
        while len(self._held) > 1 and sum(read.size for read in self._held.values()) > HELD:
            self._held.popitem(last=False)
        return read.table, read.is_in_file


def _read_on(path: Path, before: _Read | None, size: int) -> _Read:
    check_size(path, size, MAX_LOG_BYTES)
    start = before.offset if before else 0
    with open_file(path) if size else io.BytesIO() as file:
        file.seek(start)
        data = file.read(size - start)
    data = data[: data.rfind(b"\n") + 1]  # a line that is being written is read next time
    table = parse(data)
    if before is not None:
        table = _joined([before.table, table]) if len(table) else before.table
    return _Read(table, start + len(data), _digest(path, start + len(data)), table.nbytes)


def _to_file(read: _Read, file: Path) -> bool:
    known = {"offset": str(read.offset), "tail": read.tail}
    try:
        write_columns(read.table.combine_chunks().replace_schema_metadata(known), file)
    except OSError:
        return False
    return True


def _from_file(file: Path) -> _Read | None:
    try:
        table = pa.ipc.open_file(pa.memory_map(str(file))).read_all()
        os.utime(file)
        known = table.schema.metadata
        # Mapped, not in memory.
        return _Read(table, int(known[b"offset"]), known[b"tail"].decode(), 0, is_in_file=True)
    except (OSError, pa.ArrowInvalid, KeyError, TypeError, ValueError):
        return None


def write_columns(table: pa.Table, file: Path) -> None:
    """Write columns as a file that is mapped, not read; beside its place first, so that nobody maps
    half of it.
    """
    file.parent.mkdir(parents=True, exist_ok=True)
    beside = file.with_suffix(f".{os.getpid()}")
    with pa.OSFile(str(beside), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)
    beside.replace(file)


def _digest(path: Path, offset: int) -> str:
    if not offset:
        return ""
    with open_file(path) as file:
        file.seek(max(0, offset - TAIL))
        return hashlib.sha256(file.read(min(offset, TAIL))).hexdigest()[:16]


def parse(data: bytes) -> pa.Table:
    """Return the numbers of JSON lines as a table; damaged lines are left out."""
    return _joined([_parse_piece(piece) for piece in _pieces_of(data)])


def _pieces_of(data: bytes) -> Iterator[memoryview]:
    """Yield lines, as many at a time as make no large table even if no two values of theirs have
    the same name.
    """
    view = memoryview(data)
    begin = 0
    end = 0
    rows = 0
    values = 0
    for line in data.split(b"\n"):
        names = line.count(b":")
        if (rows + 1) * (values + names) > MAX_CELLS // 4 and rows:
            yield view[begin:end]
            begin = end
            rows = 0
            values = 0
        rows = rows + 1
        values = values + names
        end = end + len(line) + 1
    yield view[begin:]


def _parse_piece(piece: memoryview) -> pa.Table:
    lines = bytes(piece).split(b"\n")
    # Arrow's reader ends the process at a value that is nested too deep.
    if max(line.count(b"[") + line.count(b"{") for line in lines) <= MAX_DEPTH:
        options = pj.ReadOptions(block_size=1 << 24)
        with contextlib.suppress(pa.ArrowInvalid, UnicodeError):
            table = _numbers(pj.read_json(pa.BufferReader(piece), read_options=options))
            if STEP in table.column_names:
                return table
    # Columns want all lines to be of one kind: one by one, a damaged line costs itself alone.
    records = (parse_line(line, METRICS) for line in lines)
    return _from_records(record for record in records if record is not None)


def _joined(tables: Sequence[pa.Table]) -> pa.Table:
    """Return tables one after the other; each may have columns that the others lack."""
    tables = [table for table in tables if len(table)]
    if len(tables) < 2:
        return tables[0] if tables else pa.table({})
    names = set[str]().union(*(table.column_names for table in tables))
    check_cells(METRICS, sum(map(len, tables)), len(names))
    return pa.concat_tables(tables, promote_options="permissive").combine_chunks()


def _from_records(records: Iterable[Mapping[str, Any]]) -> pa.Table:
    rows = [
        {
            key: value
            for key, value in record.items()
            if isinstance(value, int | float) and not isinstance(value, bool)
        }
        for record in records
    ]
    keys = dict.fromkeys(key for row in rows for key in row)
    check_cells(METRICS, len(rows), len(keys))
    return _numbers(pa.table({key: pa.array([row.get(key) for row in rows]) for key in keys}))


def _numbers(table: pa.Table) -> pa.Table:
    """Return the numeric columns, as floats but for the step; rows without a step are left out."""
    if STEP not in table.column_names or not pa.types.is_integer(table.schema.field(STEP).type):
        return pa.table({})
    kept = {}
    for name, kind in zip(table.column_names, table.schema.types, strict=True):
        if pa.types.is_integer(kind) or pa.types.is_floating(kind):
            kept[name] = table[name].cast(pa.int64() if name == STEP else pa.float64(), safe=False)
    whole = pa.table(kept)
    is_step = pc.greater_equal(whole[STEP], 0)  # null where there is none
    return whole if pc.all(is_step, skip_nulls=False).as_py() else whole.filter(is_step)


def values_of(table: pa.Table, name: str) -> Floats:
    """Return a column as floats, NaN where it has no value; of a column that is not there, all
    NaN.
    """
    if name not in table.column_names:
        return np.full(len(table), np.nan)
    values: Floats = table[name].to_numpy().astype(np.float64, copy=False)
    return values


def from_columns(steps: Sequence[int], columns: Mapping[str, Floats]) -> pa.Table:
    """Return the columns of another trainer's log as a table."""
    return pa.table(
        {
            STEP: pa.array(steps, pa.int64()),
            **{k: pa.array(v) for k, v in columns.items() if k != STEP},
        }
    )


def thin(
    table: pa.Table,
    keys: Iterable[str],
    points: int = POINTS,
    first: int | None = None,
    last: int | None = None,
) -> dict[str, Any]:
    """Return curves over the same steps, each with at most so many points.

    Beyond that number a point is the mean of neighbors, and `low` and `high` are their extremes, so
    that no spike is lost. `rollouts` and `time` are other axes: rollouts sampled by then, and
    seconds since the first step.
    """
    steps = table[STEP].to_numpy() if len(table) else np.zeros(0, np.int64)
    begin = 0 if first is None else int(np.searchsorted(steps, first))
    end = len(steps) if last is None else int(np.searchsorted(steps, last, "right"))
    steps = steps[begin:end]
    firsts = stretches(len(steps), max(2, points))
    is_whole = len(firsts) == len(steps)
    curves = {}
    for key in keys:
        values = values_of(table, key)[begin:end]
        if not np.isfinite(values).any():
            continue
        curves[key] = {"mean": short(values)} if is_whole else _pieces(values, firsts)
    ends = np.append(firsts[1:], len(steps)) - 1 if len(firsts) else firsts
    axes = {"rollouts": np.cumsum(np.nan_to_num(values_of(table, ROLLOUTS)))[begin:end]}
    moments = values_of(table, TIME)
    axes["time"] = (moments - moments[0])[begin:end] if len(moments) else moments
    usable = {
        name: short(axis[ends])
        for name, axis in axes.items()
        if len(axis) and np.nanmax(axis, initial=0.0) > 0
    }
    return {"step": steps[ends].tolist(), **usable, "curves": curves, "thinned": not is_whole}


def _pieces(values: Floats, firsts: Any) -> dict[str, list[float | None]]:
    finite = np.isfinite(values)
    means = stretch_means(values, firsts)
    lows = np.minimum.reduceat(np.where(finite, values, np.inf), firsts)
    highs = np.maximum.reduceat(np.where(finite, values, -np.inf), firsts)
    return {"mean": short(means), "low": short(lows), "high": short(highs)}


def short(values: Floats) -> list[float | None]:
    """Return numbers with six digits, null where they are not finite."""
    return [
        float(f"{v:.6g}") if np.isfinite(v) else None
        for v in np.asarray(values, np.float64).tolist()
    ]


def sparkline(values: Floats, pieces: int = 40) -> list[float | None]:
    """Return a curve in a few means, for a table's cell."""
    finite = values[np.isfinite(values)]
    return [float(f"{mean:.4g}") for mean in stretch_means(finite, stretches(len(finite), pieces))]
