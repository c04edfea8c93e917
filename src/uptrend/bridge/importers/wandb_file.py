"""W&B's own file of an offline run (`run-ID.wandb`), read without W&B: history, config and the run's name.

After 7 bytes of header it is a LevelDB log: blocks of 32 KiB with records of checksum (4 bytes), length (2) and
kind (1: whole, 2: first, 3: middle, 4: last piece); each record is a Record message of wandb_internal.proto.
"""

import json
from collections.abc import Iterator
from typing import Any

from uptrend.bridge.importers.log import Log, Row
from uptrend.bridge.importers.protobuf import Value, fields, signed

MAGIC = b":W&B"
_BLOCK, _HEAD, _START = 32768, 7, 7
_WHOLE, _FIRST, _MIDDLE, _LAST = 1, 2, 3, 4
# Fields of Record, and of what is in it.
_HISTORY, _CONFIG, _RUN = 2, 5, 17
_KEY, _NESTED, _JSON = 1, 2, 16


def read_wandb(data: bytes) -> Log:
    """A row a line of history; the config as W&B keeps it, a value a key."""
    log = Log([], trainer="")
    for record in _records(data):
        try:
            _take(log, record)
        except ValueError:
            log.notes.append("A damaged record of the .wandb file was left out.")
    return log


def _take(log: Log, record: bytes) -> None:
    for key, value in fields(record):
        if not isinstance(value, bytes):
            continue
        if key == _HISTORY:
            row = _history(value)
            if row:
                log.rows.append(row)
        elif key == _CONFIG:
            log.facts.update(_config(value))
        elif key == _RUN:
            _take_run(log, value)


def _take_run(log: Log, message: bytes) -> None:
    for key, value in fields(message):
        if key == 4 and isinstance(value, bytes):
            log.facts.update(_config(value))
        elif key == 8 and isinstance(value, bytes):
            log.name = value.decode("utf-8", errors="replace")


def _history(message: bytes) -> Row:
    row: Row = {}
    for key, value in fields(message):
        if key == 1 and isinstance(value, bytes):
            name, found = _item(value)
            row[name] = found
        elif key == 2 and isinstance(value, bytes):
            step = dict(fields(value)).get(1, 0)
            row.setdefault("_step", signed(step))
    return row


def _config(message: bytes) -> dict[str, Any]:
    items = [_item(value) for key, value in fields(message) if key == 1 and isinstance(value, bytes)]
    return {name: value for name, value in items if not name.startswith("_wandb")}


def _item(message: bytes) -> tuple[str, Any]:
    """A named value; nested names are joined as W&B shows them."""
    names: list[str] = []
    found: Any = None
    for key, value in fields(message):
        text = _text(value)
        if key in (_KEY, _NESTED) and text:
            names.append(text)
        elif key == _JSON:
            found = _parsed(text)
    return "/".join(names), found


def _text(value: Value) -> str:
    return value.decode("utf-8", errors="replace") if isinstance(value, bytes) else ""


def _parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return None


def _records(data: bytes) -> Iterator[bytes]:
    """The records put together from their pieces; what was torn off at the end is left out."""
    at, pieces = _START, b""
    while at + _HEAD <= len(data):
        room = _BLOCK - at % _BLOCK
        if room < _HEAD:
            at += room
            continue
        length, kind = int.from_bytes(data[at + 4 : at + 6], "little"), data[at + 6]
        piece = data[at + _HEAD : at + _HEAD + length]
        at += _HEAD + length
        if kind == _WHOLE:
            yield piece
        elif kind == _FIRST:
            pieces = piece
        elif kind in (_MIDDLE, _LAST):
            pieces += piece
            if kind == _LAST:
                yield pieces
        else:
            at += _BLOCK - at % _BLOCK
