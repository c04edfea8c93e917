"""Binary files of trackers: TensorBoard's event files, W&B's offline runs and Trackio's databases,
read without their packages.

The first two hold protocol buffers, which are decoded here without a schema; the numbers of the
fields that matter are named.
"""

import contextlib
import json
import sqlite3
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

from uptrend.bridge.importers.readers import MAX_BUFFER_BYTES, Log, LogFile, Row, RowBuffer
from uptrend.records.errors import RecordError
from uptrend.records.files import VALUE_BYTES, size_in_memory
from uptrend.records.lines import parse_object

# A decoded field: a varint, or the raw bytes of anything else.
Field = int | bytes

# How a field is stored, in the lowest 3 bits of its key (protobuf.dev/programming-guides/encoding).
_WIRE_TYPE_BITS = 3
_VARINT_TYPE = 0
_LENGTH_TYPE = 2
_FIXED_BYTES = {1: 8, 5: 4}  # by wire type
_MAX_VARINT_BITS = 64


def _fields(data: bytes) -> Iterator[tuple[int, Field]]:
    """Yield the numbered fields of a message in order; ValueError if it is torn."""
    position = 0
    while position < len(data):
        key, position = _varint(data, position)
        number = key >> _WIRE_TYPE_BITS
        wire_type = key & ((1 << _WIRE_TYPE_BITS) - 1)
        if wire_type == _VARINT_TYPE:
            value, position = _varint(data, position)
            yield number, value
            continue
        # A text or a message has its length before it.
        if wire_type == _LENGTH_TYPE:
            size, position = _varint(data, position)
        elif wire_type in _FIXED_BYTES:
            size = _FIXED_BYTES[wire_type]
        else:
            raise ValueError("a torn message")
        end = position + size
        if end > len(data):
            raise ValueError("a torn message")
        yield number, data[position:end]
        position = end


def _varint(data: bytes, position: int) -> tuple[int, int]:
    """Return the number that begins at a position, and where it ends."""
    value = 0
    shift = 0
    while position < len(data) and shift < _MAX_VARINT_BITS:
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        is_last = byte < 0x80
        if is_last:
            return value, position
        shift += 7
    raise ValueError("a torn number")


def _signed(value: Field) -> int:
    if not isinstance(value, int):
        raise ValueError("a number was expected")
    return value - (1 << 64) if value >= 1 << 63 else value


def _text(value: Field) -> str:
    return value.decode("utf-8", errors="replace") if isinstance(value, bytes) else ""


def _messages(data: bytes, number: int) -> Iterator[bytes]:
    """Yield the messages of one field of a message."""
    for key, value in _fields(data):
        if key == number and isinstance(value, bytes):
            yield value


# ---- TensorBoard. A file is a chain of records: length (8 bytes), its checksum (4), an Event, its
# checksum (4).
_RECORD_HEAD_BYTES = 12
_CHECKSUM_BYTES = 4
# Fields of an Event.
_EVENT_TIME = 1
_EVENT_STEP = 2
_EVENT_SUMMARY = 5
# Fields of a Summary and of its Values.
_SUMMARY_VALUE = 1
_VALUE_TAG = 1
_VALUE_NUMBER = 2
_VALUE_TENSOR = 8
# Fields of a TensorProto: its number is in the content, or in the field of its type.
_TENSOR_DTYPE = 1
_TENSOR_CONTENT = 4
_TENSOR_FLOAT = 5
_TENSOR_DOUBLE = 6
_FORMAT_BY_DTYPE = {1: "<f", 2: "<d", 3: "<i", 9: "<q"}


def read_events(file: LogFile) -> list[Log] | None:
    """Return the scalars of an event file, one row per step in the order of writing; None if it is
    none.
    """
    length = int.from_bytes(file.head[:8], "little")
    # Any text's first 8 bytes are a huge number; a first Event is a few bytes.
    if not 0 < length <= min(len(file.head), file.size):
        return None
    first_event = file.head[_RECORD_HEAD_BYTES : _RECORD_HEAD_BYTES + length]
    try:
        time = dict(_fields(first_event)).get(_EVENT_TIME)
    except ValueError:
        return None
    if not isinstance(time, bytes) or len(time) != struct.calcsize("<d"):
        return None

    data = file.data()
    buffer = RowBuffer(file.path)
    row: Row = {}
    position = 0
    is_torn = False
    # Checksums are not tested: a bad one spoils no scalar.
    while position + _RECORD_HEAD_BYTES <= len(data):
        (length,) = struct.unpack_from("<Q", data, position)
        begin = position + _RECORD_HEAD_BYTES
        record = data[begin : begin + length]
        is_torn = len(record) < length
        for step, seconds, tag, value in _scalars(record):
            # A step that comes again after another one is a new row: a resumed run wrote it.
            if row and (row["step"] != step or tag in row):
                buffer.add(row, VALUE_BYTES * len(row))
                row = {}
            if not row:
                row = {"step": step, "time": seconds}
            row[tag] = value
        position = begin + length + _CHECKSUM_BYTES
    if row:
        buffer.add(row, VALUE_BYTES * len(row))
    notes = ("The event file is cut off; what came before was read.",) if is_torn else ()
    return [Log(buffer.rows, notes=notes, every=buffer.every)]


def _scalars(record: bytes) -> Iterator[tuple[int, float, str, float]]:
    """Yield step, time, tag and value of each scalar of an Event, up to where it is damaged."""
    try:
        event = dict(_fields(record))
        step = _signed(event.get(_EVENT_STEP, 0))
        time = event.get(_EVENT_TIME)
        seconds = struct.unpack("<d", time)[0] if isinstance(time, bytes) else 0.0
        for summary in _messages(record, _EVENT_SUMMARY):
            for message in _messages(summary, _SUMMARY_VALUE):
                value = dict(_fields(message))
                number = _scalar(value)
                if number is not None:
                    yield step, seconds, _text(value.get(_VALUE_TAG, b"")), number
    except (ValueError, struct.error):
        return


def _scalar(value: dict[int, Field]) -> float | None:
    """Return the number of a Value: the simple one, or that of a tensor that holds one."""
    simple = value.get(_VALUE_NUMBER)
    if isinstance(simple, bytes):
        return float(struct.unpack("<f", simple)[0])
    message = value.get(_VALUE_TENSOR)
    if not isinstance(message, bytes):
        return None

    tensor = dict(_fields(message))
    dtype = tensor.get(_TENSOR_DTYPE)
    content_format = _FORMAT_BY_DTYPE.get(dtype, "") if isinstance(dtype, int) else ""
    formats = {_TENSOR_FLOAT: "<f", _TENSOR_DOUBLE: "<d", _TENSOR_CONTENT: content_format}
    for key, format in formats.items():
        packed = tensor.get(key)
        if format and isinstance(packed, bytes) and len(packed) == struct.calcsize(format):
            return float(struct.unpack(format, packed)[0])
    return None


# ---- W&B. After a header, run-ID.wandb is a LevelDB log: blocks with pieces of checksum (4 bytes),
# length (2) and kind (1); joined, each is a Record of wandb_internal.proto.
_FILE_HEADER_BYTES = 7
_BLOCK_BYTES = 32 * 1024
_PIECE_HEAD_BYTES = 7
_WHOLE_PIECE = 1
_FIRST_PIECE = 2
_LAST_PIECE = 4  # 3 is one in the middle
# Fields of a Record.
_RECORD_HISTORY = 2
_RECORD_CONFIG = 5
_RECORD_RUN = 17
# Fields of a run, of a history, and of a history's step.
_RUN_CONFIG = 4
_RUN_DISPLAY_NAME = 8
_HISTORY_STEP = 2
_STEP_NUMBER = 1
# Fields of a history or a config, and of its items, whose values are JSON.
_ITEM_FIELD = 1
_ITEM_KEYS = (1, 2)  # plain, and nested
_ITEM_VALUE = 16


def read_wandb(file: LogFile) -> list[Log] | None:
    """Return history, config and name of an offline run; None if the file is none."""
    if not file.head.startswith(b":W&B"):
        return None
    buffer = RowBuffer(file.path)
    facts: dict[str, Any] = {}
    notes: list[str] = []
    name = ""
    for record in _records(file.data()):
        try:
            for history in _messages(record, _RECORD_HISTORY):
                row = _items(history)
                for message in _messages(history, _HISTORY_STEP):
                    step = dict(_fields(message)).get(_STEP_NUMBER, 0)
                    row.setdefault("_step", _signed(step))
                if row:
                    buffer.add(row, len(history) + VALUE_BYTES * len(row))
            configs = list(_messages(record, _RECORD_CONFIG))
            runs = list(_messages(record, _RECORD_RUN))
            for run in runs:
                configs += _messages(run, _RUN_CONFIG)
            for config in configs:
                facts |= _items(config)
            for run in runs:
                for title in _messages(run, _RUN_DISPLAY_NAME):
                    name = _text(title)
        except ValueError:
            notes.append("A damaged record of the .wandb file was left out.")

    # W&B keeps its own bookkeeping in the config, under one key.
    settings = {key: facts[key] for key in facts if not key.startswith("_wandb")}
    log = Log(
        buffer.rows, name, facts=settings, notes=tuple(dict.fromkeys(notes)), every=buffer.every
    )
    return [log]


def _records(data: bytes) -> Iterator[bytes]:
    """Yield the records, joined from their pieces; one that is torn at the end is left out."""
    position = _FILE_HEADER_BYTES
    pieces = b""
    while position + _PIECE_HEAD_BYTES <= len(data):
        left_in_block = _BLOCK_BYTES - position % _BLOCK_BYTES
        if left_in_block < _PIECE_HEAD_BYTES:
            position += left_in_block
            continue
        begin = position + _PIECE_HEAD_BYTES
        length = int.from_bytes(data[position + 4 : position + 6], "little")
        kind = data[position + 6]
        piece = data[begin : begin + length]
        position = begin + length
        if not _WHOLE_PIECE <= kind <= _LAST_PIECE:
            # Zeros to the end of the block, or damage: the next block begins anew.
            position += _BLOCK_BYTES - position % _BLOCK_BYTES
            continue
        pieces = piece if kind in (_WHOLE_PIECE, _FIRST_PIECE) else pieces + piece
        if kind in (_WHOLE_PIECE, _LAST_PIECE):
            yield pieces


def _items(message: bytes) -> dict[str, Any]:
    """Return the named values of a message; nested names are joined as W&B shows them."""
    values: dict[str, Any] = {}
    for item in _messages(message, _ITEM_FIELD):
        names: list[str] = []
        value = None
        for number, field in _fields(item):
            text = _text(field)
            if number in _ITEM_KEYS and text:
                names.append(text)
            elif number == _ITEM_VALUE:
                with contextlib.suppress(ValueError, RecursionError):
                    value = json.loads(text)
        values["/".join(names)] = value
    return values


# ---- Trackio. A project is an SQLite database: `metrics` has one row per call with a JSON object,
# in which a table of completions is a value; `traces` has conversations with what was said of them.
_SQLITE_MAGIC = b"SQLite format 3\0"
_TABLE_TYPE = "trackio.table"
# Bytes of one value, rows of one table, and millions of SQLite's instructions: a database of others
# may hold anything.
MAX_VALUE_BYTES = 64 << 20
MAX_DATABASE_ROWS = 1_000_000
MAX_MEGA_INSTRUCTIONS = 2_000
# Bytes of points and rollouts, by `size_in_memory`.
MAX_DATABASE_BYTES = MAX_BUFFER_BYTES


def read_trackio(file: LogFile) -> list[Log] | None:
    """Return the runs of a Trackio project with their rollouts; None if the file is none."""
    if not file.head.startswith(_SQLITE_MAGIC):
        return None
    points: dict[str, dict[int, Row]] = {}  # by run and step
    rollouts: dict[str, list[Row]] = {}
    notes: list[str] = []
    size = 0
    try:
        with contextlib.closing(_connect(file.path)) as database:
            for run, step, text in _select(database, "metrics", "metrics"):
                row = parse_object(text)
                size += size_in_memory(text)
                if row is None or size > MAX_DATABASE_BYTES:
                    continue
                tables = [name for name, value in row.items() if isinstance(value, dict)]
                for name in tables:
                    value = row.pop(name)
                    items = value.get("_value") if value.get("_type") == _TABLE_TYPE else None
                    if isinstance(items, list):
                        completions = (item for item in items if isinstance(item, dict))
                        logged = rollouts.setdefault(run, [])
                        logged.extend({"step": step} | completion for completion in completions)
                # One call logs times, another losses: what has one step is one point.
                point = points.setdefault(run, {}).setdefault(step, {"step": step})
                point |= row
            for run, step, text, metadata in _select(database, "traces", "messages", "metadata"):
                size += size_in_memory(text)
                rollout = _trace(step, text, metadata)
                if rollout and size <= MAX_DATABASE_BYTES:
                    rollouts.setdefault(run, []).append(rollout)
    except sqlite3.Error as error:
        raise RecordError(f"{file.path} is a damaged database: {error}.") from None
    if size > MAX_DATABASE_BYTES:
        notes.append("The project has more than is read: its first points and completions were.")
    if Path(f"{file.path}-wal").exists() and Path(f"{file.path}-wal").stat().st_size:
        notes.append("What the tracker has not yet written into the database itself was not read.")
    logs: list[Log] = []
    for run in dict.fromkeys([*points, *rollouts]):
        by_step = points.get(run, {})
        # A step of which only completions were logged is no point.
        rows = [by_step[step] for step in sorted(by_step) if len(by_step[step]) > 1]
        logs.append(Log(rows, run, notes=tuple(notes), rollouts=rollouts.get(run, ())))
    return logs


def _connect(path: Path) -> sqlite3.Connection:
    """Open a database that is only read: its schema runs no functions, and it makes no files."""
    database = sqlite3.connect(f"file:{quote(str(path))}?mode=ro&immutable=1", uri=True)
    database.text_factory = lambda data: data.decode("utf-8", "replace")
    database.execute("pragma trusted_schema=off")
    database.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, MAX_VALUE_BYTES)
    calls = iter(range(MAX_MEGA_INSTRUCTIONS))
    database.set_progress_handler(lambda: next(calls, None) is None, 1_000_000)
    return database


def _select(database: sqlite3.Connection, table: str, *columns: str) -> Iterator[Any]:
    """Yield run, step and columns of a table in order, texts as str; nothing if there is no such
    table.
    """
    query = "select 1 from sqlite_master where type = 'table' and name = ?"
    if database.execute(query, [table]).fetchone() is None:
        return
    names = ", ".join(("run_name", "step", *columns))
    for run, step, *values in database.execute(
        f"select {names} from {table} order by rowid limit {MAX_DATABASE_ROWS}"
    ):
        texts = [
            value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
            for value in values
        ]
        if isinstance(step, int):
            yield str(run), step, *texts


def _trace(step: int, text: str, metadata: str) -> Row | None:
    """Return a conversation as a rollout, with its metadata; None if the model said nothing."""
    # A list of messages is no object by itself.
    messages = (parse_object(f'{{"messages": {text}}}') or {}).get("messages")
    if not isinstance(messages, list) or not all(isinstance(item, dict) for item in messages):
        return None
    roles = [message.get("role") for message in messages]
    if "assistant" not in roles:
        return None
    first = roles.index("assistant")
    facts = parse_object(metadata) or {}
    return {"step": step, **facts, "prompt": messages[:first], "completion": messages[first:]}
