"""A file's bytes and text: unzipped, without a byte-order mark, and told apart from what is no text."""

import gzip
import zlib
from pathlib import Path

from uptrend.records.errors import RecordError

_MARKS = ((b"\xff\xfe", "utf-16"), (b"\xfe\xff", "utf-16"), (b"\xef\xbb\xbf", "utf-8-sig"))


def read_bytes(path: Path) -> bytes:
    """A file's content, unzipped where it is gzip, cut off or not."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise RecordError(f"{path} could not be read: {error.strerror or error}.") from None
    if data[:2] == b"\x1f\x8b":
        data = _unzip(path, data)
    if not data.strip():
        raise RecordError(f"{path} is empty: nothing was logged to it.")
    return data


def _unzip(path: Path, data: bytes) -> bytes:
    """A torn archive gives what can be had of it."""
    try:
        return gzip.decompress(data)
    except (OSError, EOFError, zlib.error):
        try:
            return zlib.decompressobj(wbits=31).decompress(data)
        except zlib.error:
            raise RecordError(f"{path} looks like gzip, but can't be unzipped.") from None


def to_text(path: Path, data: bytes) -> str:
    """The text of a file; a binary file of no known kind is an error."""
    for mark, encoding in _MARKS:
        if data.startswith(mark):
            return data.decode(encoding, errors="replace")
    if b"\0" in data[:8192]:
        raise RecordError(
            f"{path} is a binary file of no kind that is known here (TensorBoard events, W&B's .wandb and Parquet are)."
        )
    return data.decode("utf-8", errors="replace")
