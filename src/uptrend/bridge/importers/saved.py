"""Files of rollouts that trainers saved, as one set per run: found by their content, indexed by
step, and read one step at a time.

A file may have one step, named in its path, or many, named in its records. Nothing is read beyond
the bounds below; what is left out is noted.
"""

import contextlib
import math
import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from uptrend.bridge.importers.episodes import STEP_LIMIT, is_evaluation_record, read_record, step_of
from uptrend.bridge.importers.readers import (
    Log,
    Row,
    columns_in,
    decompress,
    fold_name,
    parse_number,
)
from uptrend.bridge.importers.rollouts import (
    drop_unrelated_parts,
    find_format,
    is_of_format,
    step_metrics,
    to_table,
)
from uptrend.bridge.importers.runs import step_column
from uptrend.present.formatting import plural
from uptrend.records.dialects import SavedFormat, names_for
from uptrend.records.errors import DAMAGE_ERRORS, RecordError, damage_as_error
from uptrend.records.files import (
    MAX_FILE_BYTES,
    MAX_LOG_BYTES,
    MAX_TABLE_ROWS,
    megabytes,
    open_named,
    read_batches,
)
from uptrend.records.lines import parse_line
from uptrend.records.view import Floats, RunView

# Bytes of a line: 500,000 tokens with three figures each take as much.
MAX_LINE_BYTES = 16 << 20
# Rollouts of a step, and bytes of their lines: what is beyond changes no check. Their values as
# Python objects take several times the bytes.
MAX_STEP_ROLLOUTS = 20_000
MAX_STEP_BYTES = MAX_FILE_BYTES
# Bytes of a file of many steps that are searched for where a step begins, and of all files of a
# set that are read for its curve; of larger ones some parts and some steps are read.
MAX_INDEXED_BYTES = MAX_LOG_BYTES
MAX_CURVE_BYTES = MAX_LOG_BYTES
# Rollouts that are read for a curve: 1,000 steps of 512, which take half a minute.
MAX_CURVE_ROLLOUTS = 600_000
# Windows of a larger file that are searched, evenly apart.
N_WINDOWS = 16
# Segments of a file, each with consecutive lines of one step: where steps are mixed, every line is
# one.
MAX_SEGMENTS = 200_000
# Steps whose rollouts stay in memory.
N_CACHED_STEPS = 2
# First lines by which a file is recognized: the first may be torn or a header. Steps of which the
# first readable one shows the columns.
N_HEAD_LINES = 3
# Rows by which attempts are told from points of a curve.
N_HEAD_ROWS = 50
# Damaged lines of a step that are tolerated before it is given up.
MAX_BROKEN_LINES = 1000

LINE_SUFFIXES = (".jsonl", ".ndjson", ".jsonl.gz", ".json")
_STEP_FOLDER = re.compile(r"(?:global_)?(?:step|iteration|iter|rollout)[_-]?(\d+)(?:_evals)?")
_STEP_FILE = re.compile(
    r"(?:(?:global_)?(?:step|rollouts?|completions|iteration|train|eval|batch)[_-]?)?(\d{1,9})"
    r"|.*[_-](?:step|iteration|iter|batch)[_-]?(\d{1,9})"
)
# `val_generations` and `test_5` hold evaluations; `test_run` and `eval-lr-3e-6` are names of runs.
_HELDOUT_NAME = re.compile(
    r"(?i)(?:dumped[_-])?(?:evals?|val|valid|validation|test|held[_-]?out)"
    r"(?:[_-](?:\d+|step.*|data|set|rollouts?|generations?|completions?|samples?|results?|dumps?))*"
)
# Files of whatever a trainer pickles: opening one could run any code.
_PICKLED_ROLLOUTS = re.compile(r"(?i)(rollout|train)_data|dumped_data|debug_rollout")
PICKLE_SUFFIXES = (".pt", ".pkl", ".pickle")

NOTE_ON_GROUPS = (
    "Rollouts are grouped by the text of their prompt within a step: the log has no group ids."
)
NOTE_ON_SUMS = (
    "A rollout's reward is the sum of its parts: TRL logs neither the total nor the weights with"
    " completions."
)
# What checks read, and how the sentence on what is missing names it.
NEEDED_COLUMNS = {
    "messages": "texts",
    "reward": "rewards",
    "answer": "gold answers",
    "ended": "endings",
    "ids": "token ids",
    "sampler": "the sampler's log-probabilities",
    "learner": "the learner's log-probabilities",
}


@dataclass(frozen=True)
class SavedFile:
    """File of rollouts, as its path and its first record describe it."""

    path: Path
    format: SavedFormat
    step: int | None
    """Step of all its records; None if they name steps of their own, or none."""
    steps_within: bool
    """True if its records name steps, of which there may be many."""
    is_heldout: bool
    place: Path
    """Folder above those that are named by a step."""
    kind: str
    """Rest of its path, the same for the files of all steps."""

    @property
    def folder_is_a_step(self) -> bool:
        """True if its folder holds the files of one step alone."""
        return is_step_folder(self.path.parent.name)

    def read_all(self, limit: int) -> Iterator[tuple[int, Row]]:
        """Yield position and content of its records."""
        return _records(FileSegment(self.path), limit)


@dataclass(frozen=True)
class FileSegment:
    """Consecutive bytes of a file: the whole of it, or those with records of one step."""

    path: Path
    start: int = 0
    end: int | None = None
    counter: str | None = None
    """Column by which rows of other steps are left out."""

    @property
    def size(self) -> int:
        """Bytes that are read for it; of an archive also those before it."""
        if self.end is not None:
            return self.end if self.path.suffix == ".gz" else self.end - self.start
        try:
            return self.path.stat().st_size - self.start
        except OSError:
            return 0


def recognize_file(path: Path, below: Path) -> SavedFile | None:
    """Return a file of rollouts by its first record; None for any other file.

    `below` is the folder that is searched: names above it say nothing.
    """
    is_parquet = path.suffix == ".parquet"
    if not is_parquet and not path.name.endswith(LINE_SUFFIXES):
        return None
    try:
        with damage_as_error(path):
            record = _first_record(path)
    except (RecordError, OSError):
        return None
    format = find_format(record) if record else None
    if format is None or record is None:
        return None

    place, kind, path_step = _split_path(path, below)
    own_step = step_of(record, format)
    if format.name == "plain":
        own_step = _own_step(record, format, _counter_in([record]))
    names = (*path.relative_to(below).parts[:-1], path.stem) if path.is_relative_to(below) else ()
    is_heldout = is_evaluation_record(record, format) or any(map(_HELDOUT_NAME.fullmatch, names))
    # An episode's own step is that of its dispatch; the file's is the one that learned from it.
    has_path_step = path_step is not None and (
        own_step is None or own_step == path_step or format.reader != "plain"
    )
    return SavedFile(
        path,
        format,
        step=path_step if has_path_step else None,
        steps_within=own_step is not None,
        is_heldout=is_heldout,
        place=place,
        kind=kind,
    )


def _first_record(path: Path) -> Row | None:
    """Return the first record among the first lines of a file; None if they hold none."""
    if path.suffix == ".parquet":
        return next((row for row, _ in _parquet_rows(FileSegment(path), 1)), None)
    records = (record for record, _ in islice(_lines(FileSegment(path)), N_HEAD_LINES))
    return next((record for record in records if record is not None), None)


def _split_path(path: Path, below: Path) -> tuple[Path, str, int | None]:
    """Return the folder above the step's, the rest of the path with numbers as #, and the step."""
    folders = path.parent.relative_to(below).parts if path.is_relative_to(below) else ()
    for depth, name in enumerate(folders):
        match = _STEP_FOLDER.fullmatch(name)
        if match:
            rest = "/".join((*folders[depth + 1 :], path.name))
            return below.joinpath(*folders[:depth]), re.sub(r"\d+", "#", rest), int(match[1])
    match = _STEP_FILE.fullmatch(path.name.partition(".")[0])
    kind = path.name if match is None else re.sub(r"\d+", "#", path.name)
    return path.parent, kind, int(match[1] or match[2]) if match else None


def is_step_folder(name: str) -> bool:
    """Return True for a folder that holds files of one step."""
    return _STEP_FOLDER.fullmatch(name) is not None


def is_pickled_rollouts(path: Path) -> bool:
    """Return True for a pickle that holds rollouts by its name: it is never opened."""
    is_pickle = path.suffix in PICKLE_SUFFIXES
    return is_pickle and _PICKLED_ROLLOUTS.search("/".join(path.parts[-3:])) is not None


def why_pickled(paths: Sequence[Path]) -> str:
    """Return why pickles of rollouts are not read, and what to save instead."""
    return (
        f"{plural(len(paths), 'file')} such as {paths[0]} were not read: opening a pickle runs"
        " whatever code is in it. Write your own as JSON lines instead; the page on other"
        " trainers' logs has the command."
    )


def _records(segment: FileSegment, limit: int) -> Iterator[tuple[int, Row]]:
    """Yield the records of a segment with their positions, `limit` of them at most."""
    if segment.path.suffix == ".parquet":
        rows: Iterator[Row] = (row for row, _ in _parquet_rows(segment, limit))
    else:
        rows = (record for record, _ in _lines(segment) if record is not None)
    yield from enumerate(islice(rows, limit))


def _parquet_rows(segment: FileSegment, limit: int) -> Iterator[tuple[Row, int]]:
    """Yield rows of a Parquet file with their bytes in memory: a text that a thousand rows share is
    in the file once.
    """
    for batch in read_batches(segment.path, max_rows=limit):
        row_bytes = batch.nbytes // max(1, len(batch))
        for row in batch.to_pylist():
            yield row, row_bytes


def _lines(segment: FileSegment) -> Iterator[tuple[Row | None, bytes]]:
    """Yield the lines of a segment with their records; None for a damaged one, and for the rest of
    one that is too long.
    """
    for line, _ in _raw_lines(segment):
        if not line.isspace():
            yield (parse_line(line) if len(line) < MAX_LINE_BYTES else None), line


def _raw_lines(segment: FileSegment) -> Iterator[tuple[bytes, int]]:
    """Yield the lines of a segment with the positions where they end."""
    with open_named(segment.path) as raw:
        file = decompress(raw)
        if file is raw:
            file.seek(segment.start)
        else:
            _skip(file, segment.start)
        position = segment.start
        while segment.end is None or position < segment.end:
            line = file.readline(MAX_LINE_BYTES)
            if not line:
                return
            position += len(line)
            yield line, position


def _skip(file: Any, count: int) -> None:
    while count > 0:
        chunk = file.read(min(count, 1 << 20))
        if not chunk:
            return
        count -= len(chunk)


@dataclass
class _FileIndex:
    """Segments of a file by the step of their records."""

    segments: dict[int, list[FileSegment]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


def _index_file(file: SavedFile, counter: str | None) -> _FileIndex:
    """Find where the steps of a file are; of a file that is too large, in some windows of it."""
    index = _FileIndex()
    size = FileSegment(file.path).size
    if file.path.suffix == ".parquet":
        return _index_parquet(file, counter)
    if size <= MAX_INDEXED_BYTES:
        _index_window(file, counter, FileSegment(file.path), index)
        return index

    window_bytes = MAX_INDEXED_BYTES // N_WINDOWS
    starts = np.linspace(0, size - window_bytes, N_WINDOWS).astype(np.int64).tolist()
    for start in starts:
        window = FileSegment(file.path, start, start + window_bytes)
        window_index = _FileIndex()
        _index_window(file, counter, window, window_index)
        # The first and last step of a window may go on beyond it, and their groups with them.
        steps = list(window_index.segments)
        whole_steps = steps[1:-1] if start else steps[:-1]
        for step in whole_steps or steps:
            index.segments.setdefault(step, []).extend(window_index.segments[step])
    index.notes.append(
        f"{file.path} has {megabytes(size)}: {N_WINDOWS} parts of it of {megabytes(window_bytes)}"
        f" each were searched, and hold {plural(len(index.segments), 'step')}."
    )
    return index


def _index_window(
    file: SavedFile, counter: str | None, window: FileSegment, index: _FileIndex
) -> None:
    """Add the segments of a window's steps to an index: one for lines of a step in a row."""
    find_step = _step_finder(file.format, counter)
    last_step: int | None = None
    n_segments = 0
    next_start = window.start
    for line, end in _raw_lines(window):
        start = next_start
        next_start = end
        # A window that begins within a line begins with the rest of it.
        is_rest_of_line = start == window.start and start > 0
        step = None if is_rest_of_line else find_step(line)
        # The size on disk says nothing of an archive's content.
        if end - window.start > MAX_INDEXED_BYTES:
            index.notes.append(f"{file.path}: only its first {megabytes(start)} were read.")
            return
        if step is None:
            continue
        segments = index.segments.setdefault(step, [])
        if step == last_step and segments and segments[-1].end == start:
            segments[-1] = replace(segments[-1], end=end)
        elif n_segments == MAX_SEGMENTS:
            index.notes.append(
                f"{file.path}: its steps are mixed, and only the first {MAX_SEGMENTS:,} places were"
                " read."
            )
            return
        else:
            n_segments += 1
            segments.append(FileSegment(file.path, start, end))
        last_step = step


def _step_finder(format: SavedFormat, counter: str | None) -> Callable[[bytes], int | None]:
    """Return a function that returns the step of a line; None if the line names none."""
    name = b'"%s"' % (counter or "").encode()
    pattern = re.compile(re.escape(name) + rb"\s*:\s*(-?\d{1,9})\s*[,}]")

    def find_step(line: bytes) -> int | None:
        # One name and one number need no parser: a quote inside of a text is written as \".
        if counter is not None and line.count(name) == 1:
            match = pattern.search(line)
            if match:
                return int(match[1])
        record = parse_line(line)
        return None if record is None else _own_step(record, format, counter)

    return find_step


def _own_step(record: Row, format: SavedFormat, counter: str | None) -> int | None:
    if counter is None:
        return step_of(record, format)
    number = parse_number(record.get(counter))
    return int(number) if number is not None and abs(number) < STEP_LIMIT else None


def _index_parquet(file: SavedFile, counter: str | None) -> _FileIndex:
    """Return the whole of a Parquet file for each of its steps: rows of others are left out when
    a step is read.
    """
    index = _FileIndex()
    column = counter or next(iter(file.format.columns.get("step", ())), "step")
    steps: set[int] = set()
    n_rows = 0
    for batch in read_batches(file.path, [column]):
        n_rows += len(batch)
        for row in batch.to_pylist():
            step = _own_step(row, file.format, column)
            if step is not None:
                steps.add(step)
    if n_rows >= MAX_TABLE_ROWS:
        index.notes.append(f"{file.path}: only its first {MAX_TABLE_ROWS:,} rows were read.")
    for step in sorted(steps):
        index.segments[step] = [FileSegment(file.path, counter=column)]
    return index


def _counter_in(rows: Sequence[Row]) -> str | None:
    """Return the column that counts steps in the first rows of a file, which may be one step's."""
    columns = {fold_name(column): column for column in columns_in(rows)}
    for name in names_for("counters"):
        if name in columns:
            values = [parse_number(row.get(columns[name])) for row in rows]
            numbers = [value for value in values if value is not None and math.isfinite(value)]
            # Some rows may lack theirs.
            if 2 * len(numbers) > len(rows) and all(number.is_integer() for number in numbers):
                return columns[name]
    return None


class SavedRollouts:
    """Rollouts of one run in files of one format, or in memory, by step."""

    def __init__(
        self,
        format: SavedFormat,
        source: str,
        trainer: str,
        is_heldout: bool = False,
        name: str = "",
    ) -> None:
        self.format = format
        self.source = source
        self.trainer = trainer
        self.is_heldout = is_heldout
        self.name = name
        self.has_steps = True
        """False for attempts that belong to no step: all of them are at step 0."""
        self.notes: list[str] = []
        self.exports: SavedRollouts | None = None
        """The same rollouts as the trainer saw them, by token, if it saved these too."""
        self._part_names: frozenset[str] | None = None
        self._segments: dict[int, list[FileSegment]] = {}
        self._rows: dict[int, list[Row]] = {}
        self._counter: str | None = None
        self.read = lru_cache(maxsize=N_CACHED_STEPS)(self._read)

    @classmethod
    def of_files(cls, files: Sequence[SavedFile]) -> "SavedRollouts":
        """Return the rollouts of files of one format."""
        first = files[0]
        source = str(first.path if len(files) == 1 else first.place)
        trainer = first.format.trainer_of(str(first.path))
        saved = cls(first.format, source, trainer, first.is_heldout)
        for file in files:
            try:
                with damage_as_error(file.path):
                    saved._add_file(file)
            except (RecordError, OSError) as error:
                saved.notes.append(f"Left out: {error}")
        saved._segments = dict(sorted(saved._segments.items()))
        return saved

    @classmethod
    def of_log(cls, log: Log, source: str, format: SavedFormat) -> "SavedRollouts":
        """Return the rollouts of a log that is in memory."""
        saved = cls(format, source, format.trainer_of(source), name=log.name)
        saved.notes += log.notes
        saved._counter = step_column(log.rows)
        saved.has_steps = saved._counter is not None
        by_step: dict[int, list[Row]] = {}
        for row in log.rows:
            step = _own_step(row, format, saved._counter) if saved.has_steps else 0
            if step is not None:
                by_step.setdefault(step, []).append(row)
        saved._rows = dict(sorted(by_step.items()))
        return saved

    def _add_file(self, file: SavedFile) -> None:
        if file.step is not None:
            self._segments.setdefault(file.step, []).append(FileSegment(file.path))
            return
        counter = next(iter(file.format.columns.get("step", ())), None)
        if file.format.name == "plain":
            counter = _counter_in([row for _, row in file.read_all(N_HEAD_ROWS)])
        if not file.steps_within or (counter is None and file.format.name == "plain"):
            self.has_steps = False
            self._segments.setdefault(0, []).append(FileSegment(file.path))
            return
        self._counter = counter
        index = _index_file(file, counter)
        self.notes += index.notes
        for step, segments in index.segments.items():
            self._segments.setdefault(step, []).extend(segments)

    @property
    def steps(self) -> list[int]:
        """Steps that have rollouts, ascending."""
        return list(self._segments or self._rows)

    @property
    def size(self) -> int:
        """Bytes that are read for all steps, one step at a time."""
        return sum(segment.size for segments in self._segments.values() for segment in segments)

    def restrict_parts(self, names: Iterable[str]) -> None:
        """Let only columns of these names be parts of the reward, if there are any."""
        known = frozenset(names)
        if known and self.format.extras:
            self._part_names = known
            self.read.cache_clear()

    def _rows_of(self, step: int, with_texts: bool = True) -> Iterator[Row]:
        """Yield the rows of a step's rollouts, up to a bound."""
        if step not in self._segments and step not in self._rows:
            raise RecordError(f"There are no rollouts of step {step}.")
        count = 0
        size = 0
        n_broken = 0
        n_nonfinite = 0
        for record, position, n_bytes in self._records_of(step):
            size += n_bytes
            if size > MAX_STEP_BYTES or count >= MAX_STEP_ROLLOUTS:
                self._note(
                    f"Step {step} has more than {megabytes(MAX_STEP_BYTES)} or"
                    f" {MAX_STEP_ROLLOUTS:,} rollouts: the first {count:,} were read."
                )
                return
            rows: list[Row] = []
            if record is not None:
                with contextlib.suppress(*DAMAGE_ERRORS):
                    rows = list(read_record(record, self.format, position, with_texts))
            if not rows:
                n_broken += 1
                if n_broken > MAX_BROKEN_LINES:
                    break
                continue
            for row in rows:
                # Further sequences of a rollout are rows of their own.
                if not row.get("sequence"):
                    count += 1
                row = self._with_parts(row)
                # One such reward would be the mean of its step.
                if not math.isfinite(row.get("reward") or 0.0):
                    row["reward"] = None
                    n_nonfinite += 1
                yield row
        if n_nonfinite:
            self._note(
                f"Step {step}: {plural(n_nonfinite, 'reward')} not finite, taken as missing."
            )
        if n_broken:
            lines = plural(n_broken, "record")
            were = "was" if n_broken == 1 else "were"
            self._note(f"Step {step}: {lines} could not be read and {were} left out.")

    def _records_of(self, step: int) -> Iterator[tuple[Row | None, int, int]]:
        """Yield the records of a step with their positions and sizes."""
        for row in self._rows.get(step, ()):
            yield row, 0, 0
        for segment in self._segments.get(step, ()):
            if segment.path.suffix == ".parquet":
                counter = segment.counter
                for position, (row, n_bytes) in enumerate(_parquet_rows(segment, MAX_TABLE_ROWS)):
                    if counter is None or _own_step(row, self.format, counter) == step:
                        yield row, position, n_bytes
                continue
            for position, (record, line) in enumerate(_lines(segment)):
                # Signs of the format: other rows of the file are something else.
                is_rollout = record is not None and is_of_format(record, self.format)
                yield record if is_rollout else None, position, len(line)

    def _with_parts(self, row: Row) -> Row:
        """Return a row with only the parts of its reward that the run's log names."""
        if self._part_names is not None:
            parts = [part for part in row["parts"] if part["name"] in self._part_names]
            row["parts"] = parts
            if self.format.name == "trl":  # it saves no total: see NOTE_ON_SUMS
                values = [part["value"] for part in parts]
                row["reward"] = sum(values) if values else None
        return row

    def _note(self, note: str) -> None:
        if note not in self.notes:
            self.notes.append(note)

    def _read(self, step: int) -> pa.Table:
        """Return the rollouts of a step."""
        rows: list[Row] = []
        exported = self._exported(step)
        for row in self._rows_of(step):
            exports = exported.get(tuple(row.get("ids") or ()), [])
            rows.append(row | _take_closest(exports, row))
        drop_unrelated_parts(rows)
        with damage_as_error(Path(self.source)):
            table, n_broken = to_table(rows, step, self.name)
        if n_broken:
            self._note(f"Step {step}: {plural(n_broken, 'rollout')} with damaged values left out.")
        return table

    def _exported(self, step: int) -> dict[tuple[Any, ...], list[Row]]:
        """Return what the trainer saw of the sequences of a step, by their token ids."""
        by_ids: dict[tuple[Any, ...], list[Row]] = {}
        if self.exports is not None and step in self.exports.steps:
            for row in self.exports._rows_of(step):
                by_ids.setdefault(tuple(row["ids"]), []).append(row)
        return by_ids

    def metrics(self, step: int) -> dict[str, float]:
        """Return the metrics of a step that its rollouts give; none if they are damaged."""
        try:
            with damage_as_error(Path(self.source)):
                rows = list(self._rows_of(step, with_texts=False))
                drop_unrelated_parts(rows)
                return step_metrics(rows, step)
        except (RecordError, OSError) as error:
            self._note(f"Left out: {error}")
            return {}

    def curve(self) -> tuple[list[int], dict[str, Floats]]:
        """Return steps and metrics of the steps that are read."""
        steps = self.steps
        first_metrics = self.metrics(steps[0]) if steps else {}
        count = len(steps) * first_metrics.get("sampling/rollouts/count", 0.0)
        load = max(self.size / MAX_CURVE_BYTES, count / MAX_CURVE_ROLLOUTS)
        stride = max(1, math.ceil(load))
        if stride > 1:
            self._note(
                f"There are about {count:,.0f} rollouts in {len(steps):,} steps: the curve made"
                f" from them has one step in {stride}."
            )
        points: list[dict[str, float]] = []
        known_steps: list[int] = []
        for step in steps[::stride]:
            metrics = self.metrics(step)
            if metrics:
                known_steps.append(step)
                points.append(metrics)
        columns: dict[str, Floats] = {}
        for key in columns_in(points):
            columns[key] = np.array([point.get(key, np.nan) for point in points])
        return known_steps, columns

    def notes_on_columns(self) -> list[str]:
        """Return sentences on groups and rewards, and on what was not saved."""
        notes: list[str] = []
        table = self._first_table()
        if table is None:
            return notes
        rows = islice(self._rows_of(self.steps[0]), 1)
        if any(row.get("group") is None for row in rows):
            notes.append(NOTE_ON_GROUPS)
        if self.format.name == "trl":
            notes.append(NOTE_ON_SUMS)
        missing = []
        for column, name in NEEDED_COLUMNS.items():
            if table[column].null_count < len(table):
                continue
            format_name = "tokens" if column == "ids" else column
            remedy = self.format.missing.get(format_name)
            missing.append(f"{name} ({remedy})" if remedy else name)
        if missing:
            notes.append(f"Not in these rollouts: {'; '.join(missing)}.")
        return notes

    def _first_table(self) -> pa.Table | None:
        for step in self.steps[:N_HEAD_LINES]:
            try:
                with damage_as_error(Path(self.source)):
                    table = self.read(step)
            except (RecordError, OSError):
                continue
            if len(table):
                return table
        return None

    def view(self) -> RunView:
        """Return the rollouts as a run of their own: a curve, or evaluations."""
        steps, metrics = self.curve()
        if not steps:
            why = " ".join(self.notes) or "no record could be read."
            raise RecordError(f"{self.source} holds no rollouts: {why}")
        is_evaluation = self.is_heldout or not self.has_steps
        empty = RunView(
            source=self.source,
            trainer=self.trainer,
            name=self.name,
            steps=np.zeros(0, dtype=np.int64),
            metrics={},
            notes=(),
        )
        if is_evaluation:
            return self.add_evaluations(empty)
        note = "Only rollouts were found: the curve is made from them."
        # Reading the columns may add to the notes.
        notes_on_columns = self.notes_on_columns()
        return replace(
            empty,
            steps=np.array(steps, dtype=np.int64),
            metrics=metrics,
            rollout_steps=tuple(self.steps),
            read_rollouts=self.read,
            notes=(*self.notes, note, *notes_on_columns),
        )

    def add_evaluations(self, view: RunView) -> RunView:
        """Add the rollouts to a view as its evaluations; checks of a view without rollouts of
        training read those of the last evaluation instead.
        """
        evals = [dict(result) for result in view.evals]
        known_steps = {result.get("step") for result in evals}
        for step in self.steps:
            if step in known_steps:
                continue
            table = self.read(step)
            reward = self.metrics(step).get("reward/mean", np.nan)
            tasks = len(set(table["task"].to_pylist()))
            result = {"step": step, "reward": reward, "tasks": tasks}
            evals.append({key: value for key, value in result.items() if not np.isnan(value)})
        evals.sort(key=lambda result: result.get("step", 0))
        notes = [*view.notes, *self.notes]
        if not self.has_steps:
            notes.append(
                "The rows are attempts without a step: they are read as one evaluation, not as a"
                " curve."
            )
        if not view.rollout_steps:
            notes += self.notes_on_columns()
            last = self.steps[-1]
            view = replace(view, rollout_steps=(last,), read_rollouts=self.read)
            if self.has_steps:
                notes.append(
                    "No rollouts of training were saved: those of the evaluation after step"
                    f" {last} are judged."
                )
        return replace(view, evals=tuple(evals), read_heldout=self.read, notes=tuple(notes))

    def add_to(self, view: RunView, is_proven: bool) -> RunView:
        """Add the rollouts to the run of a log, with the metrics that the log lacks."""
        if self.is_heldout or not self.has_steps:
            return self.add_evaluations(view)
        self.restrict_parts(view.parts())
        steps, curves = self.curve()
        metrics = dict(view.metrics)
        point_by_step = {step: point for point, step in enumerate(view.steps.tolist())}
        shared_steps = [(n, step) for n, step in enumerate(steps) if step in point_by_step]
        for name, values in curves.items():
            if view.has(name) or name == "sampling/rollouts/count":
                continue
            column = np.full(len(view.steps), np.nan)
            for n, step in shared_steps:
                column[point_by_step[step]] = values[n]
            if np.isfinite(column).any():
                metrics[name] = column
        notes = list(view.notes)
        if self.source != view.source:
            why = "their rewards are the same" if is_proven else "they lie beside it"
            notes.append(f"Its rollouts are those of {self.source}: {why}.")
        notes_on_columns = self.notes_on_columns()
        return replace(
            view,
            trainer=self.trainer if view.trainer == "unknown" else view.trainer,
            metrics=metrics,
            rollout_steps=tuple(self.steps),
            read_rollouts=self.read,
            notes=(*notes, *self.notes, *notes_on_columns),
        )


# Difference of one log-probability in two files that is rounding: episodes have four decimals.
LOGPROB_ROUNDING = 1e-3
EXPORTED_COLUMNS = ("learner", "weights", "advantages")


def _take_closest(exports: list[Row], row: Row) -> Row:
    """Take a sequence's export out of those with its token ids, and return its columns: equal
    sequences differ in their log-probabilities. Empty if there is none.
    """
    for number, export in enumerate(exports):
        pairs = zip(export.get("sampler") or (), row.get("sampler") or (), strict=False)
        gaps = [abs(one - other) for one, other in pairs if one is not None and other is not None]
        if max(gaps, default=0.0) <= LOGPROB_ROUNDING:
            del exports[number]
            return {name: export[name] for name in EXPORTED_COLUMNS if name in export}
    return {}


def is_rollouts(rows: Sequence[Row]) -> SavedFormat | None:
    """Return the format of rows that are attempts (a text and its reward) and not points of a
    curve; None for others.
    """
    head = rows[:N_HEAD_ROWS]
    formats = [format for format in map(find_format, head) if format is not None]
    # Half of the rows may lack one of the two: errors have no reward, and tool calls no text.
    return formats[0] if len(formats) * 2 > len(head) else None


def collect(files: Sequence[SavedFile]) -> list[SavedRollouts]:
    """Return files as sets: one per run, and one for its evaluations."""
    by_set: dict[tuple[str, Path, str, bool], list[SavedFile]] = {}
    for file in files:
        key = (file.format.name, file.place, file.kind, file.is_heldout)
        by_set.setdefault(key, []).append(file)

    # prime-rl saves every episode, and those that a step learned from once more.
    for key in list(by_set):
        name, place, kind, is_heldout = key
        learned_key = (name, place, kind.replace("all/", "effective/"), is_heldout)
        if learned_key != key and learned_key in by_set:
            del by_set[key]

    # It saves its exports of tokens in a folder beside that of the episodes.
    exports: dict[Path, SavedRollouts] = {}  # by the folder that has both
    sets: list[tuple[Path, SavedRollouts]] = []
    for (name, place, _, _), members in by_set.items():
        saved = SavedRollouts.of_files(members)
        if name == "token-exports":
            exports[place.parent] = saved
        else:
            sets.append((place, saved))
    for place, saved in sets:
        if saved.format.reader == "episodes" and place.parent in exports and not saved.is_heldout:
            saved.exports = exports.pop(place.parent)
    return [*(saved for _, saved in sets), *exports.values()]


def agrees(saved: SavedRollouts, view: RunView) -> bool:
    """Return True if a run's logged rewards are those of the rollouts, at some steps of both."""
    logged_steps, rewards = view.curve("reward/mean")
    logged = dict(zip(logged_steps.tolist(), rewards.tolist(), strict=True))
    shared = [step for step in saved.steps if step in logged]
    # A reward that never changes may be any run's.
    if not shared or np.ptp(rewards) == 0:
        return False
    places = np.unique(np.linspace(0, len(shared) - 1, MAX_COMPARED_STEPS).round().astype(int))
    for place in places.tolist():
        step = shared[place]
        reward = saved.metrics(step).get("reward/mean", np.nan)
        if not np.isclose(reward, logged[step], rtol=REWARD_ROUNDING, atol=REWARD_ROUNDING):
            return False
    return True


# Steps whose rewards are compared, and the difference that is rounding: consoles print four digits.
MAX_COMPARED_STEPS = 4
REWARD_ROUNDING = 1e-3


def shares_steps(saved: SavedRollouts, view: RunView) -> bool:
    """Return True if rollouts may be a run's by their steps: most lie between its first and its
    last.
    """
    if not len(view.steps):
        return False
    first = int(view.steps[0])
    last = int(view.steps[-1])
    # Rollouts and log may count from different ends of a step.
    n_within = sum(first - 1 <= step <= last + 1 for step in saved.steps)
    return 2 * n_within > len(saved.steps)


def place_of(source: str) -> Path:
    """Return the folder of a source, as it really is."""
    path = Path(os.path.realpath(source))
    return path if path.is_dir() else path.parent
