"""Types and helpers that all readers share: a file's content, the log made of it, and numbers in any notation."""

import gzip
import zlib
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any

from uptrend.records.dialects import plain_name
from uptrend.records.errors import RecordError

Row = dict[str, Any]
# Rows of one kind beyond which only every n-th is read: no curve needs more points, and a large log takes minutes.
MOST = 10_000
_BYTE_ORDER_MARKS = ((b"\xff\xfe", "utf-16"), (b"\xfe\xff", "utf-16"), (b"\xef\xbb\xbf", "utf-8-sig"))


@dataclass(frozen=True)
class Log:
    """One log as its trainer wrote it, before any translation."""

    rows: list[Row]  # one dictionary per logged point, in the order of the file, under the trainer's names
    name: str = ""  # name of the run, where the format has one
    trainer: str = ""  # trainer that wrote it, where the format tells; else it is recognized by the names
    # Settings that the log mentions, under the trainer's names, nested as found.
    facts: Mapping[str, Any] = field(default_factory=dict)
    last_step: int = 0  # last step of a progress bar; 0 without one. Rows without a step are spread over it.
    notes: tuple[str, ...] = ()  # sentences on how the log was read


@dataclass(frozen=True)
class LogFile:
    """Content of one file."""

    path: Path  # place of the file
    data: bytes  # content, decompressed

    @cached_property
    def text(self) -> str:
        """Content as text; RecordError for a binary file."""
        for mark, encoding in _BYTE_ORDER_MARKS:
            if self.data.startswith(mark):
                return self.data.decode(encoding, errors="replace")
        if b"\0" in self.data[:8192]:
            raise RecordError(
                f"{self.path} is a binary file of no kind that is known here "
                "(TensorBoard events, W&B's .wandb and Parquet are)."
            )
        return self.data.decode("utf-8", errors="replace")


def open_log(path: Path) -> LogFile:
    """Read a file, decompressed where it is gzip; of a torn archive, as much as can be had."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise RecordError(f"{path} could not be read: {error.strerror or error}.") from None
    if data[:2] == b"\x1f\x8b":
        try:
            data = gzip.decompress(data)
        except (OSError, EOFError, zlib.error):
            try:
                data = zlib.decompressobj(wbits=31).decompress(data)
            except zlib.error:
                raise RecordError(f"{path} looks like gzip, but can't be unzipped.") from None
    if not data.strip():
        raise RecordError(f"{path} is empty: nothing was logged to it.")
    return LogFile(path, data)


def number(value: Any) -> float | None:
    """Return a value as a number, numerals in strings and percentages included; None where it is none."""
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


def thinned(rows: list[Row]) -> tuple[list[Row], str]:
    """Return every n-th of the most frequent kind of rows and all others, and a note; few rows stay as they are."""
    if len(rows) <= MOST:
        return rows, ""
    kinds = [tuple(row) for row in rows]
    ((usual, count),) = Counter(kinds).most_common(1)
    every, seen, kept = stride(count), 0, list[Row]()
    for row, kind in zip(rows, kinds, strict=True):
        seen += kind == usual
        if kind != usual or seen % every == 1 % every:
            kept.append(row)
    return (
        kept,
        f"The log has {len(rows):,} rows; of {count:,} of one kind, every {every}th was read." if every > 1 else "",
    )
