"""Types and helpers that all readers share: a file's content, the log made of it, and numbers in
any notation.
"""

import contextlib
import gzip
import io
import sys
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
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
MOST = 10_000
# Bytes, by `size_in_memory`, of rows that are held until it is known how many there are.
MAX_ROWS = 600_000_000
# Bytes of content that is held; what is larger is read again for each look at it.
MAX_HELD = 64 << 20
# Bytes of a tracker's binary file, and of a console's text, which are read whole.
MAX_BINARY = 512 << 20
MAX_CONSOLE = 256 << 20
# Characters of a line; what is beyond counts as another line, which is damaged then.
MAX_LINE = 16 << 20
# Bytes that are read at a time, and those by which a format is told.
_PIECE = 1 << 20
_HEAD = 8192
_GZIP = b"\x1f\x8b"
_TORN = (EOFError, gzip.BadGzipFile, zlib.error)
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
    name: str = ""  # name of the run, where the format has one
    # trainer that wrote it, where the format tells; else it is recognized by the names
    trainer: str = ""
    # Settings that the log mentions, under the trainer's names, nested as found.
    facts: Mapping[str, Any] = field(default_factory=dict)
    # last step of a progress bar; 0 without one. Rows without a step are spread over it.
    last_step: int = 0
    notes: tuple[str, ...] = ()  # sentences on how the log was read
    every: int = 1  # n where `rows` holds every n-th of the file's most frequent kind


@dataclass(frozen=True)
class LogFile:
    """One file, decompressed where it is gzip."""

    path: Path  # place of the file
    size: int  # bytes of its content
    head: bytes  # first bytes of its content
    held: bytes | None = None  # content; None where it is large

    @property
    def first(self) -> str:
        """First character that is no space; empty where spaces alone begin it."""
        return self.head.decode(self._encoding, errors="ignore").lstrip()[:1]

    @property
    def _encoding(self) -> str:
        return next(
            (name for mark, name in _BYTE_ORDER_MARKS if self.head.startswith(mark)), "utf-8"
        )

    def data(self, most: int = MAX_BINARY) -> bytes:
        """Return the content; RecordError where it is too large to be in memory whole."""
        check_size(self.path, self.size, most)
        if self.held is not None:
            return self.held
        content = io.BytesIO()
        for piece in _pieces(self.path):
            content.write(piece)
        return content.getvalue()  # no copy, as a join of pieces would be

    def text(self) -> str:
        """Return the content as text; RecordError for a binary file, and for one that is too
        large.
        """
        self._check_text()
        return self.data(MAX_FILE_BYTES).decode(self._encoding, errors="replace")

    def console(self) -> str:
        """Return the content as text in which numbers with a name are looked for."""
        if self.held is not None or self._encoding != "utf-8":
            return self.text()
        self._check_text()
        # One byte per character: names and numbers are ASCII, and one emoji makes every character
        # take four bytes.
        return self.data(MAX_CONSOLE).decode("latin-1")

    def lines(self) -> Iterator[str]:
        """Yield the lines, however many there are; RecordError for a binary file."""
        self._check_text()
        raw = open_named(self.path) if self.held is None else io.BytesIO(self.held)
        with raw, contextlib.suppress(*_TORN):
            content = _content_of(raw) if self.held is None else raw
            with io.TextIOWrapper(content, self._encoding, errors="replace") as file:
                while line := file.readline(MAX_LINE):
                    yield line

    def _check_text(self) -> None:
        if b"\0" in self.head and not self._encoding.startswith("utf-16"):
            raise RecordError(
                f"{self.path} is a binary file of no kind that is known here "
                "(TensorBoard events, W&B's .wandb and Parquet are)."
            )


def open_log(path: Path) -> LogFile:
    """Open a file, decompressed where it is gzip; of a torn archive, as much as can be had."""
    try:
        size, head, held = _measure(path)
    except OSError as error:
        raise RecordError(f"{path} could not be read: {error.strerror or error}.") from None
    if held is not None and not held.strip():
        raise RecordError(f"{path} is empty: nothing was logged to it.")
    return LogFile(path, size, head, held)


def _measure(path: Path) -> tuple[int, bytes, bytes | None]:
    """Return the bytes that a file's content has, the first of them, and all where they are few."""
    check_size(path, path.stat().st_size, MAX_LOG_BYTES)
    size = 0
    held = bytearray()
    is_large = False
    # What a gzip file says of its size is its maker's choice: it is decompressed once to be
    # counted.
    for piece in _pieces(path):
        size += len(piece)
        check_size(path, size, MAX_LOG_BYTES)
        is_large = is_large or size > MAX_HELD
        if not is_large:
            held += piece
    if is_large and not path.is_file():
        raise RecordTooLarge(
            f"{path} is no file and has more than {megabytes(MAX_HELD)}: write it to a file first."
        )
    return size, bytes(held[:_HEAD]), None if is_large else bytes(held)


def _content_of(file: BinaryIO) -> BinaryIO:
    """Return what reads the content of an open file."""
    start = cast(io.BufferedReader, file).peek(2)[:2]
    return cast(BinaryIO, gzip.GzipFile(fileobj=file)) if start == _GZIP else file


def _pieces(path: Path) -> Iterator[bytes]:
    """Yield the content of a file in pieces."""
    count = 0
    with open_named(path) as file:
        content = cast(io.BufferedReader, _content_of(file))
        try:
            # `read` would lose what comes before a tear.
            while piece := content.read1(_PIECE):
                count += 1
                yield piece
        except _TORN:
            if not count:
                raise RecordError(f"{path} looks like gzip, but can't be unzipped.") from None


class RowBuffer:
    """Rows of a log in order; where all would take too much memory, every n-th of those that are
    frequent.
    """

    def __init__(self, path: Path) -> None:
        self.rows: list[Row] = []
        self.count = 0
        """Rows that were added."""
        self._path = path
        self._sizes: list[int] = []
        self._size = 0
        self._seen: Counter[tuple[str, ...]] = Counter()
        self._every: dict[tuple[str, ...], int] = {}

    @property
    def every(self) -> int:
        """The n of the most frequent kind of rows."""
        return max(self._every.values(), default=1)

    def add(self, row: Row, size: int) -> None:
        """Add a row that takes about so many bytes."""
        self.count += 1
        # else each row has names of its own
        row = {sys.intern(name): value for name, value in row.items()}
        kind = tuple(row)
        place = self._seen[kind]
        self._seen[kind] += 1
        if place % self._every.get(kind, 1):
            return
        self.rows.append(row)
        self._sizes.append(size)
        self._size += size
        if self._size > MAX_ROWS:
            self._thin()

    def _thin(self) -> None:
        """Leave out every other row of the frequent kinds."""
        counts = Counter(map(tuple, self.rows))
        for kind, count in counts.items():
            if count > MOST:
                self._every[kind] = 2 * self._every.get(kind, 1)
        places: Counter[tuple[str, ...]] = Counter()
        kept = list[bool]()
        for row in self.rows:
            kind = tuple(row)
            kept.append(counts[kind] <= MOST or places[kind] % 2 == 0)
            places[kind] += 1
        self.rows = list(compress(self.rows, kept))
        self._sizes = list(compress(self._sizes, kept))
        self._size = sum(self._sizes)
        if self._size > 0.75 * MAX_ROWS:
            raise RecordTooLarge(
                f"{self._path} is too large: its rows have too many different columns."
            )


def number(value: Any) -> float | None:
    """Return a value as a number, numerals in strings and percentages included; None where it is
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


def flatten(table: Mapping[str, Any], separator: str = "/", depth: int = 4) -> Row:
    """Return a nested table as one level with joined names; lists stay as they are."""
    found: Row = {}
    for key, value in table.items():
        if isinstance(value, Mapping) and depth:
            leaves = flatten(value, separator, depth - 1)
            found |= {f"{key}{separator}{name}": leaf for name, leaf in leaves.items()}
        else:
            found[str(key)] = value
    return found


def columns_in(rows: Iterable[Row]) -> list[str]:
    """Return every column that any row has, in the order of first appearance."""
    return list(dict.fromkeys(chain.from_iterable(rows)))


def folded(column: str) -> str:
    """Return a column's plain name in lower case, as the lists of `dialects.toml` have it."""
    return plain_name(column).lower()


def stride(count: int) -> int:
    """Return which rows of so many are read: every n-th."""
    return max(1, -(-count // MOST))


def thinned(log: Log) -> tuple[list[Row], str]:
    """Return every n-th of the most frequent kind of rows and all others, and a note; few rows stay
    as they are.
    """
    if len(log.rows) <= MOST:
        return log.rows, ""
    kinds = [tuple(row) for row in log.rows]
    ((usual, count),) = Counter(kinds).most_common(1)
    every = stride(count)
    seen = 0
    kept = list[Row]()
    for row, kind in zip(log.rows, kinds, strict=True):
        seen += kind == usual
        if kind != usual or seen % every == 1 % every:
            kept.append(row)
    total = f"{count * log.every:,}"
    part = every * log.every
    return (
        kept,
        (
            f"The log has {total} rows of one kind; every {part}th of them was read."
            if part > 1
            else ""
        ),
    )
