"""The wire format of protocol buffers, read without a schema: enough for event files and W&B's records."""

from collections.abc import Iterator

_VARINT, _EIGHT, _BYTES, _FOUR = 0, 1, 2, 5

Value = int | bytes


def fields(data: bytes) -> Iterator[tuple[int, Value]]:
    """The fields of a message in order, numbered; fixed-width numbers as their raw bytes. ValueError where torn."""
    at = 0
    while at < len(data):
        key, at = _varint(data, at)
        kind = key & 7
        if kind == _VARINT:
            value, at = _varint(data, at)
            yield key >> 3, value
            continue
        size, at = _size(data, at, kind)
        if at + size > len(data):
            raise ValueError("a torn message")
        yield key >> 3, data[at : at + size]
        at += size


def _size(data: bytes, at: int, kind: int) -> tuple[int, int]:
    if kind == _BYTES:
        return _varint(data, at)
    if kind == _EIGHT:
        return 8, at
    if kind == _FOUR:
        return 4, at
    raise ValueError(f"no such kind of field: {kind}")


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        if at >= len(data) or shift > 63:
            raise ValueError("a torn number")
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7


def signed(value: Value) -> int:
    """A varint as a signed number; ValueError where the field is none."""
    if not isinstance(value, int):
        raise ValueError("a number was expected")
    return value - (1 << 64) if value >= 1 << 63 else value
