"""What all readers share: a file's content, the log made of it, and numbers in any notation."""

import contextlib
import gzip
import io
import sys
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, compress
from pathlib import Path
from typing import Any, BinaryIO, cast

from uptrend.records.dialects import plain_name
from uptrend.records.errors import RecordError, RecordTooLarge
from uptrend.records.files import MAX_FILE_BYTES, MAX_LOG_BYTES, check_size, megabytes, open_named

Row = dict[str, Any]
# Rows of one kind beyond which only every n-th is read: no curve needs more points, and a large log
# takes minutes.
MAX_ROWS_PER_KIND = 10_000
# Bytes, by `size_in_memory`, of rows that a RowBuffer collects before it thins them; and the share
# of it below which thinning has to bring them.
MAX_BUFFER_BYTES = 600_000_000
MAX_SHARE_THINNED = 0.75
# Bytes of content that stays in memory; larger content is read from disk again each time.
MAX_CACHED_BYTES = 64 << 20
# Bytes of a tracker's binary file, and of a console's text, which are read whole.
MAX_BINARY_BYTES = 512 << 20
MAX_CONSOLE_BYTES = 256 << 20
# Characters of a line. The rest of a longer one counts as another line, which is damaged then.
MAX_LINE_CHARACTERS = 16 << 20
# Levels of a nested row that become names.
MAX_DEPTH = 4
# Bytes that are read at a time, and those by which a format is recognized.
_CHUNK_BYTES = 1 << 20
_HEAD_BYTES = 8192
_GZIP_MAGIC = b"\x1f\x8b"
_GZIP_ERRORS = (EOFError, gzip.BadGzipFile, zlib.error)
_BYTE_ORDER_MARKS = (
    (b"\xff\xfe", "utf-16"),
    (b"\xfe\xff", "utf-16"),
    (b"\xef\xbb\xbf", "utf-8-sig"),
)


@dataclass(frozen=True)
class Log:
    """One log as its trainer wrote it, before any translation."""

    # one dictionary per logged point, in the order of the file, under the trainer's names
    rows: list[Row]
    name: str = ""  # name of the run, if the format has one
    # trainer that wrote it, if the format is one trainer's; else it is recognized by the names
    trainer: str = ""
    # settings in the log, under the trainer's names, nested as they are there
    facts: Mapping[str, Any] = field(default_factory=dict)
    # last step of a progress bar; 0 without one. Rows without a step are spread over it.
    last_step: int = 0
    notes: tuple[str, ...] = ()  # sentences on how the log was read
    every: int = 1  # n if `rows` holds every n-th of the file's most frequent kind
    rollouts: Sequence[Row] = ()  # rollouts that were logged beside the points
    # versions of packages, by name, from a file beside the log
    packages: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class LogFile:
    """One file, decompressed if it is gzip."""

    path: Path
    size: int  # bytes of its content
    head: bytes  # first bytes of its content
    cached: bytes | None = None  # content; None if it is large

    @property
    def first(self) -> str:
        """First character that is no space; empty if spaces alone begin it."""
        return self.head.decode(self._encoding, errors="ignore").lstrip()[:1]

    @property
    def _encoding(self) -> str:
        for mark, encoding in _BYTE_ORDER_MARKS:
            if self.head.startswith(mark):
                return encoding
        return "utf-8"

    def data(self, max_bytes: int = MAX_BINARY_BYTES) -> bytes:
        """Return the content; RecordError if it is too large for memory."""
        check_size(self.path, self.size, max_bytes)
        if self.cached is not None:
            return self.cached
        content = io.BytesIO()
        for chunk in _read_chunks(self.path):
            content.write(chunk)
        return content.getvalue()  # no copy, as a join of chunks would be

    def text(self) -> str:
        """Return the content as text; RecordError if it is binary or too large."""
        self._check_text()
        return self.data(MAX_FILE_BYTES).decode(self._encoding, errors="replace")

    def console(self) -> str:
        """Return the content as text to search for names and numbers."""
        if self.cached is not None or self._encoding != "utf-8":
            return self.text()
        self._check_text()
        # One byte per character: names and numbers are ASCII, and one emoji makes every character
        # take four bytes.
        return self.data(MAX_CONSOLE_BYTES).decode("latin-1")

    def lines(self) -> Iterator[str]:
        """Yield the lines of content of any size; RecordError if it is binary."""
        self._check_text()
        raw = open_named(self.path) if self.cached is None else io.BytesIO(self.cached)
        with raw, contextlib.suppress(*_GZIP_ERRORS):
            content = decompress(raw) if self.cached is None else raw
            with io.TextIOWrapper(content, self._encoding, errors="replace") as file:
                while line := file.readline(MAX_LINE_CHARACTERS):
                    yield line

    def _check_text(self) -> None:
        if b"\0" in self.head and not self._encoding.startswith("utf-16"):
            raise RecordError(
                f"{self.path} is a binary file of no kind that is known here "
                "(TensorBoard events, W&B's .wandb and Parquet are)."
            )


def open_log(path: Path) -> LogFile:
    """Open a file, decompressed if it is gzip; of a torn archive, the part before the tear."""
    try:
        file = _measure(path)
    except OSError as error:
        raise RecordError(f"{path} could not be read: {error.strerror or error}.") from None
    if file.cached is not None and not file.cached.strip():
        raise RecordError(f"{path} is empty: nothing was logged to it.")
    return file


def log_of_bytes(path: Path, data: bytes) -> LogFile:
    """Return content that came from no file as a log, decompressed if it is gzip; `path` is its
    name in errors.
    """
    if data.startswith(_GZIP_MAGIC):
        # Of a torn archive, the part before the tear.
        with contextlib.suppress(*_GZIP_ERRORS):
            data = zlib.decompressobj(zlib.MAX_WBITS | 16).decompress(data, MAX_CACHED_BYTES)
    if not data.strip():
        raise RecordError(f"{path} is empty: paste lines that a trainer printed, or pipe its log.")
    return LogFile(path, len(data), data[:_HEAD_BYTES], cached=data)


def _measure(path: Path) -> LogFile:
    """Count the bytes of a file's content, and keep them if they are few."""
    check_size(path, path.stat().st_size, MAX_LOG_BYTES)
    size = 0
    content = bytearray()
    is_large = False
    # The size in a gzip file may be wrong: it is decompressed once to be counted.
    for chunk in _read_chunks(path):
        size += len(chunk)
        check_size(path, size, MAX_LOG_BYTES)
        is_large = is_large or size > MAX_CACHED_BYTES
        if not is_large:
            content += chunk
    if is_large and not path.is_file():
        raise RecordTooLarge(
            f"{path} is no file and has more than {megabytes(MAX_CACHED_BYTES)}: write it to a file"
            " first."
        )
    head = bytes(content[:_HEAD_BYTES])
    return LogFile(path, size, head, cached=None if is_large else bytes(content))


def decompress(file: BinaryIO) -> BinaryIO:
    """Return an open file, or a reader of what it compresses."""
    magic = cast(io.BufferedReader, file).peek(2)[:2]
    if magic == _GZIP_MAGIC:
        return cast(BinaryIO, gzip.GzipFile(fileobj=file))
    return file


def _read_chunks(path: Path) -> Iterator[bytes]:
    """Yield the content of a file in chunks."""
    is_empty = True
    with open_named(path) as file:
        content = cast(io.BufferedReader, decompress(file))
        try:
            # `read` would lose what comes before a tear.
            while chunk := content.read1(_CHUNK_BYTES):
                is_empty = False
                yield chunk
        except _GZIP_ERRORS:
            if is_empty:
                raise RecordError(f"{path} looks like gzip, but can't be unzipped.") from None


class RowBuffer:
    """Rows of a log in order. If all of them would take too much memory, every n-th of the frequent
    kinds.
    """

    def __init__(self, path: Path) -> None:
        self.rows: list[Row] = []
        self.count = 0
        """Rows that were added."""
        self._path = path
        self._sizes: list[int] = []
        self._size = 0
        # By the columns of a kind of rows.
        self._counts: Counter[tuple[str, ...]] = Counter()
        self._strides: dict[tuple[str, ...], int] = {}

    @property
    def every(self) -> int:
        """The n of the most frequent kind of rows."""
        return max(self._strides.values(), default=1)

    def add(self, row: Row, size: int) -> None:
        """Add a row that takes about `size` bytes."""
        self.count += 1
        # Interned, since each row of a file has strings of its own for the same names.
        row = {sys.intern(name): value for name, value in row.items()}
        kind = tuple(row)
        index = self._counts[kind]
        self._counts[kind] += 1
        if index % self._strides.get(kind, 1):
            return
        self.rows.append(row)
        self._sizes.append(size)
        self._size += size
        if self._size > MAX_BUFFER_BYTES:
            self._thin()

    def _thin(self) -> None:
        """Leave out every other row of the frequent kinds."""
        counts = Counter(map(tuple, self.rows))
        for kind, count in counts.items():
            if count > MAX_ROWS_PER_KIND:
                self._strides[kind] = 2 * self._strides.get(kind, 1)

        indices: Counter[tuple[str, ...]] = Counter()
        selected: list[bool] = []
        for row in self.rows:
            kind = tuple(row)
            is_rare = counts[kind] <= MAX_ROWS_PER_KIND
            selected.append(is_rare or indices[kind] % 2 == 0)
            indices[kind] += 1
        self.rows = list(compress(self.rows, selected))
        self._sizes = list(compress(self._sizes, selected))
        self._size = sum(self._sizes)
        if self._size > MAX_SHARE_THINNED * MAX_BUFFER_BYTES:
            raise RecordTooLarge(
                f"{self._path} is too large: its rows have too many different columns."
            )


def parse_number(value: Any) -> float | None:
    """Return a value as a number, numerals and percentages in strings included; None if it is
    none.
    """
    if isinstance(value, int | float):
        return float(value)
    if not isinstance(value, str):
        return None
    text = value.strip()
    try:
        return float(text[:-1]) / 100 if text.endswith("%") else float(text)
    except ValueError:
        return None


def flatten(table: Mapping[str, Any], separator: str = "/", depth: int = MAX_DEPTH) -> Row:
    """Return a nested table as one level with joined names; lists stay as they are."""
    flat: Row = {}
    for key, value in table.items():
        if isinstance(value, Mapping) and depth:
            for name, leaf in flatten(value, separator, depth - 1).items():
                flat[f"{key}{separator}{name}"] = leaf
        else:
            flat[str(key)] = value
    return flat


def columns_in(rows: Iterable[Row]) -> list[str]:
    """Return the columns of all rows in the order of first appearance."""
    return list(dict.fromkeys(chain.from_iterable(rows)))


def fold_name(column: str) -> str:
    """Return a column's plain name in lower case, as the lists of `dialects.toml` have it."""
    return plain_name(column).lower()


def stride_for(count: int) -> int:
    """Return the n with which every n-th of `count` rows is read."""
    return max(1, -(-count // MAX_ROWS_PER_KIND))


def thin_rows(log: Log) -> tuple[list[Row], str]:
    """Return every n-th of the most frequent kind of rows and all others, and a note; few rows stay
    as they are.
    """
    if len(log.rows) <= MAX_ROWS_PER_KIND:
        return log.rows, ""
    kinds = [tuple(row) for row in log.rows]
    usual, count = Counter(kinds).most_common(1)[0]
    stride = stride_for(count)

    selected: list[Row] = []
    n_usual = 0
    for row, kind in zip(log.rows, kinds, strict=True):
        n_usual += kind == usual
        if kind != usual or n_usual % stride == 1 % stride:
            selected.append(row)

    # The log itself may already hold every n-th row of its file.
    total_stride = stride * log.every
    note = ""
    if total_stride > 1:
        total = count * log.every
        note = f"The log has {total:,} rows of one kind; every {total_stride}th of them was read."
    return selected, note
