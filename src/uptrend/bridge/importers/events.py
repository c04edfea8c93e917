"""TensorBoard's event files, read without TensorBoard: scalars alone, whatever else is in them.

A file is a chain of records: length (8 bytes), its checksum (4), an Event message, its checksum (4). An Event has
wall_time = 1, step = 2, summary = 5; a Summary has value = 1; a Value has tag = 1, simple_value = 2, tensor = 8.
"""

import struct
from collections.abc import Iterator
from typing import Any

from uptrend.bridge.importers.log import Log, Row
from uptrend.bridge.importers.protobuf import Value, fields, signed

_HEAD = 12
# Kinds of tensor that hold numbers, by TensorFlow's DataType, and how struct reads one of them.
_KINDS = {1: "<f", 2: "<d", 3: "<i", 9: "<q"}
# The fields of a TensorProto that hold a number outright: float, double, int and int64.
_NUMBERS = {5: "<f", 6: "<d"}


def is_events(data: bytes) -> bool:
    """Whether this is a chain of records whose first is an Event."""
    if len(data) < _HEAD + 4:
        return False
    (length,) = struct.unpack("<Q", data[:8])
    if not 0 < length <= min(len(data), 1 << 20):
        return False
    try:
        found = dict(fields(data[_HEAD : _HEAD + length]))
    except ValueError:
        return False
    return isinstance(found.get(1), bytes) and len(found[1]) == 8  # type: ignore[arg-type]


def read_events(data: bytes) -> Log:
    """A row a step, in the order of writing: a step that comes again after another starts a new row."""
    rows: list[Row] = []
    facts: dict[str, Any] = {}
    torn = False
    for record, whole in _records(data):
        torn = torn or not whole
        for step, time, tag, value in _scalars(record):
            if not rows or rows[-1]["step"] != step or tag in rows[-1]:
                rows.append({"step": step, "time": time})
            rows[-1][tag] = value
    notes = ["The event file is cut off; what came before was read."] if torn else []
    return Log(rows, facts=facts, notes=notes)


def _records(data: bytes) -> Iterator[tuple[bytes, bool]]:
    """The records, and whether each is whole. Checksums are not tested: a bad one spoils no scalar here."""
    at = 0
    while at + _HEAD <= len(data):
        (length,) = struct.unpack_from("<Q", data, at)
        end = at + _HEAD + length
        if end > len(data):
            yield b"", False
            return
        yield data[at + _HEAD : end], True
        at = end + 4


def _scalars(record: bytes) -> Iterator[tuple[int, float, str, float]]:
    step, time, summaries = 0, 0.0, []
    try:
        for key, value in fields(record):
            if key == 1 and isinstance(value, bytes):
                (time,) = struct.unpack("<d", value)
            elif key == 2:
                step = signed(value)
            elif key == 5 and isinstance(value, bytes):
                summaries.append(value)
        for summary in summaries:
            for key, value in fields(summary):
                if key == 1 and isinstance(value, bytes):
                    tag, found = _tagged(value)
                    if found is not None:
                        yield step, time, tag, found
    except (ValueError, struct.error):
        return


def _tagged(message: bytes) -> tuple[str, float | None]:
    tag, found = "", None
    for key, value in fields(message):
        if not isinstance(value, bytes):
            continue
        if key == 1:
            tag = value.decode("utf-8", errors="replace")
        elif key == 2:
            (found,) = struct.unpack("<f", value)
        elif key == 8:
            found = _tensor(value)
    return tag, found


def _tensor(message: bytes) -> float | None:
    """The number of a tensor that holds one: dtype = 1, shape = 2, content = 4, or the number itself."""
    parts: dict[int, Value] = dict(fields(message))
    kind, content = parts.get(1), parts.get(4)
    for key, form in _NUMBERS.items():
        value = parts.get(key)
        if isinstance(value, bytes) and len(value) == struct.calcsize(form):
            return float(struct.unpack(form, value)[0])
    layout = _KINDS.get(kind) if isinstance(kind, int) else None
    if layout and isinstance(content, bytes) and len(content) == struct.calcsize(layout):
        return float(struct.unpack(layout, content)[0])
    return None
