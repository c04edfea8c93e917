"""Binary files of trackers: TensorBoard's event files and W&B's offline runs, read without either
package.

Both hold protocol buffers, which are decoded here without a schema; the numbers of the fields that
matter are named.
"""

import contextlib
import json
import struct
from collections.abc import Iterator
from typing import Any

from uptrend.bridge.importers.readers import Log, LogFile, Row, RowBuffer
from uptrend.records.files import VALUE_BYTES

# A decoded field: a varint, or the raw bytes of anything else.
Field = int | bytes


def _fields(data: bytes) -> Iterator[tuple[int, Field]]:
    """Yield the numbered fields of a message in order; ValueError where it is torn."""
    at = 0
    while at < len(data):
        key, at = _varint(data, at)
        if key & 7 == 0:
            value, at = _varint(data, at)
            yield key >> 3, value
            continue
        # Fixed-width numbers have 8 or 4 bytes; a text or a message has its length before it.
        size = {1: 8, 5: 4}.get(key & 7)
        if key & 7 == 2:
            size, at = _varint(data, at)
        if size is None or at + size > len(data):
            raise ValueError("a torn message")
        yield key >> 3, data[at : at + size]
        at += size


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """Return the number that begins at a place, and where it ends."""
    value = shift = 0
    while at < len(data) and shift <= 63:
        value |= (data[at] & 0x7F) << shift
        at += 1
        if data[at - 1] < 0x80:
            return value, at
        shift += 7
    raise ValueError("a torn number")


def _signed(value: Field) -> int:
    if not isinstance(value, int):
        raise ValueError("a number was expected")
    return value - (1 << 64) if value >= 1 << 63 else value


def _text(value: Field) -> str:
    return value.decode("utf-8", errors="replace") if isinstance(value, bytes) else ""


def _messages(data: bytes, number: int) -> Iterator[bytes]:
    return (value for key, value in _fields(data) if key == number and isinstance(value, bytes))


# ---- TensorBoard. A file is a chain of records: length (8 bytes), its checksum (4), an Event, its
# checksum (4). Event: wall_time 1, step 2, summary 5. Summary: value 1. Value: tag 1, simple_value
# 2, tensor 8. TensorProto: dtype 1, content 4, or the number in float_val 5 or double_val 6.
_EVENT_HEAD = 12
_DTYPES = {1: "<f", 2: "<d", 3: "<i", 9: "<q"}


def read_events(file: LogFile) -> list[Log] | None:
    """Return the scalars of an event file, one row per step in the order of writing; None where it
    is none.
    """
    length = int.from_bytes(file.head[:8], "little")
    # Any text's first 8 bytes are a huge number; a first Event is a few bytes.
    if not 0 < length <= min(len(file.head), file.size):
        return None
    try:
        begun = dict(_fields(file.head[_EVENT_HEAD : _EVENT_HEAD + length])).get(1)
    except ValueError:
        return None
    if not isinstance(begun, bytes) or len(begun) != 8:
        return None
    data = file.data()
    rows = RowBuffer(file.path)
    row: Row = {}
    at = 0
    is_torn = False
    # Checksums are not tested: a bad one spoils no scalar.
    while at + _EVENT_HEAD <= len(data):
        (length,) = struct.unpack_from("<Q", data, at)
        record = data[at + _EVENT_HEAD : at + _EVENT_HEAD + length]
        is_torn = len(record) < length
        for step, time, tag, value in _scalars(record):
            # A step that comes again after another one is a new row: a resumed run wrote it.
            if not row or row["step"] != step or tag in row:
                if row:
                    rows.add(row, VALUE_BYTES * len(row))
                row = {"step": step, "time": time}
            row[tag] = value
        at += _EVENT_HEAD + length + 4
    if row:
        rows.add(row, VALUE_BYTES * len(row))
    notes = ("The event file is cut off; what came before was read.",) if is_torn else ()
    return [Log(rows.rows, notes=notes, every=rows.every)]


def _scalars(record: bytes) -> Iterator[tuple[int, float, str, float]]:
    """Yield step, time, tag and value of each scalar of an Event, up to where it is damaged."""
    try:
        event = dict(_fields(record))
        time = event.get(1)
        step = _signed(event.get(2, 0))
        seconds = struct.unpack("<d", time)[0] if isinstance(time, bytes) else 0.0
        for summary in _messages(record, 5):
            for value in _messages(summary, 1):
                parts = dict(_fields(value))
                if (found := _scalar(parts)) is not None:
                    yield step, seconds, _text(parts.get(1, b"")), found
    except (ValueError, struct.error):
        return


def _scalar(parts: dict[int, Field]) -> float | None:
    """Return the number of a Value: the simple one, or that of a tensor that holds one."""
    simple = parts.get(2)
    tensor = parts.get(8)
    if isinstance(simple, bytes):
        return float(struct.unpack("<f", simple)[0])
    if not isinstance(tensor, bytes):
        return None
    held = dict(_fields(tensor))
    dtype = held.get(1)
    layout = _DTYPES.get(dtype, "") if isinstance(dtype, int) else ""
    for value, form in ((held.get(5), "<f"), (held.get(6), "<d"), (held.get(4), layout)):
        if form and isinstance(value, bytes) and len(value) == struct.calcsize(form):
            return float(struct.unpack(form, value)[0])
    return None


# ---- W&B. After 7 bytes of header, run-ID.wandb is a LevelDB log: blocks of 32 KiB with pieces of
# checksum (4 bytes), length (2) and kind (1: whole, 2: first, 3: middle, 4: last piece); joined,
# each is a Record of wandb_internal.proto. Record: history 2, config 5, run 17. Run: config 4,
# display name 8. History: item 1, step 2. Config: item 1. Item: key 1, nested key 2, value as JSON
# 16.
_BLOCK = 32768
_PIECE_HEAD = 7
_START = 7
_WHOLE = 1
_FIRST = 2
_LAST = 4


def read_wandb(file: LogFile) -> list[Log] | None:
    """Return history, config and name of an offline run; None where the file is none."""
    if not file.head.startswith(b":W&B"):
        return None
    rows = RowBuffer(file.path)
    facts: dict[str, Any] = {}
    notes: list[str] = []
    name = ""
    for record in _records(file.data()):
        try:
            for history in _messages(record, 2):
                row = _items(history)
                for step in _messages(history, 2):
                    row.setdefault("_step", _signed(dict(_fields(step)).get(1, 0)))
                if row:
                    rows.add(row, len(history) + VALUE_BYTES * len(row))
            runs = list(_messages(record, 17))
            for config in (
                *_messages(record, 5),
                *(config for run in runs for config in _messages(run, 4)),
            ):
                facts |= _items(config)
            for title in (title for run in runs for title in _messages(run, 8)):
                name = _text(title)
        except ValueError:
            notes.append("A damaged record of the .wandb file was left out.")
    # W&B keeps its own bookkeeping in the config, under one key.
    settings = {key: value for key, value in facts.items() if not key.startswith("_wandb")}
    return [
        Log(rows.rows, name, facts=settings, notes=tuple(dict.fromkeys(notes)), every=rows.every)
    ]


def _records(data: bytes) -> Iterator[bytes]:
    """Yield the records, joined from their pieces; one that is torn at the end is left out."""
    at = _START
    pieces = b""
    while at + _PIECE_HEAD <= len(data):
        left = _BLOCK - at % _BLOCK
        if left < _PIECE_HEAD:
            at += left
            continue
        length = int.from_bytes(data[at + 4 : at + 6], "little")
        kind = data[at + 6]
        piece = data[at + _PIECE_HEAD : at + _PIECE_HEAD + length]
        at += _PIECE_HEAD + length
        if not _WHOLE <= kind <= _LAST:
            # Zeros to the end of the block, or damage: the next block begins anew.
            at += _BLOCK - at % _BLOCK
            continue
        pieces = piece if kind in (_WHOLE, _FIRST) else pieces + piece
        if kind in (_WHOLE, _LAST):
            yield pieces


def _items(message: bytes) -> dict[str, Any]:
    """Return the named values of a message; nested names are joined as W&B shows them."""
    found: dict[str, Any] = {}
    for item in _messages(message, 1):
        names = list[str]()
        value = None
        for key, field in _fields(item):
            text = _text(field)
            if key in (1, 2) and text:
                names.append(text)
            elif key == 16:
                with contextlib.suppress(ValueError, RecursionError):
                    value = json.loads(text)
        found["/".join(names)] = value
    return found
