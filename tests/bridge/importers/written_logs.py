"""Small logs in other trainers' formats, written here byte by byte so that no reader checks
itself.
"""

import csv
import io
import json
import struct
from pathlib import Path
from typing import Any

from uptrend.bridge.importers import read_views
from uptrend.records.view import RunView

Row = dict[str, Any]


def trl_rows(count: int, first: int = 1) -> list[Row]:
    """Make rows as TRL logs them, at steps first, first + 1, …: the reward is step / 100."""
    return [
        {
            "loss": 0.001 * step, "grad_norm": 0.5 + 0.01 * (step % 7), "learning_rate": 1e-5 * (1 - step / 1000),
            "num_tokens": 100.0 * step, "completions/mean_length": 50.0 + step, "completions/max_length": 128.0,
            "completions/clipped_ratio": 0.25, "rewards/correct/mean": step / 200, "rewards/correct/std": 0.4,
            "rewards/format/mean": step / 200, "rewards/format/std": 0.1, "reward": step / 100, "reward_std": 0.3,
            "frac_reward_zero_std": 0.25, "kl": 0.001 * step, "entropy": 1.0 - step / 1000,
            "clip_ratio/region_mean": 0.01, "epoch": step / 100, "step": step,
        }
        for step in range(first, first + count)
    ]  # fmt: skip


def state(rows: list[Row]) -> str:
    """Write a Trainer's state."""
    return json.dumps(
        {"global_step": rows[-1]["step"], "max_steps": 500, "log_history": rows}, indent=2
    )


def lines(rows: list[Row]) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


def console(rows: list[Row]) -> str:
    """Print dictionaries as TRL does, without a step."""
    return "".join(
        str({key: value for key, value in row.items() if key != "step"}) + "\n" for row in rows
    )


def table(rows: list[Row], delimiter: str = ",") -> str:
    file = io.StringIO()
    writer = csv.DictWriter(file, list(rows[0]), delimiter=delimiter)
    writer.writeheader()
    writer.writerows(rows)
    return file.getvalue()


def event_file(rows: list[Row], tensors: bool = False) -> bytes:
    """Write a TensorBoard event file: one record per scalar, checksums left 0."""
    records = [_message((1, 9.5), (3, b"brain.Event:2"))]
    for row in rows:
        for key, value in row.items():
            if key != "step":
                packed = struct.pack("<f", value)
                scalar = (8, _message((1, 1), (4, packed))) if tensors else (2, packed)
                summary = _message((1, _message((1, key.encode()), scalar, floats=(2,))))
                records.append(_message((1, 10.0 + row["step"]), (2, row["step"]), (5, summary)))
    return b"".join(struct.pack("<QI", len(record), 0) + record + bytes(4) for record in records)


def wandb_file(rows: list[Row], config: Row, name: str) -> bytes:
    """Write an offline run's file: blocks of 32 KiB, long records in pieces."""
    items = [
        _message((1, key.encode()), (16, json.dumps(value).encode()))
        for key, value in config.items()
    ]
    settings = _message(*((1, item) for item in items))
    records = [_message((1, 1), (17, _message((1, b"abc"), (4, settings), (8, name.encode()))))]
    for at, row in enumerate(rows):
        history = [
            _message((2, key.encode()), (16, json.dumps(value).encode()))
            for key, value in row.items()
        ]
        records.append(
            _message((2, _message(*((1, item) for item in history), (2, _message((1, at))))))
        )
    return _leveldb(records)


def _leveldb(records: list[bytes]) -> bytes:
    data = b":W&B" + bytes(3)
    for record in records:
        begun = False
        while True:
            room = 32768 - len(data) % 32768
            if room < 7:
                data += bytes(room)
                continue
            piece, record = record[: room - 7], record[room - 7 :]
            kind = (4 if begun else 1) if not record else (3 if begun else 2)
            data += bytes(4) + struct.pack("<HB", len(piece), kind) + piece
            begun = True
            if not record:
                break
    return data


def _message(*fields: tuple[int, Any], floats: tuple[int, ...] = ()) -> bytes:
    """Write a protocol buffer: varints, floats as 8 bytes, bytes by length, or as 4 bytes in
    `floats`.
    """
    data = b""
    for number, value in fields:
        if isinstance(value, int):
            data += _varint(number << 3) + _varint(value)
        elif isinstance(value, float):
            data += _varint(number << 3 | 1) + struct.pack("<d", value)
        elif number in floats:
            data += _varint(number << 3 | 5) + value
        else:
            data += _varint(number << 3 | 2) + _varint(len(value)) + value
    return data


def _varint(value: int) -> bytes:
    data = b""
    while value > 0x7F:
        data += bytes([value & 0x7F | 0x80])
        value >>= 7
    return data + bytes([value])


def write(path: Path, content: str | bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def only(path: Path) -> RunView:
    """Read the one run of a log."""
    (view,) = read_views(path)
    return view


def read(rows: list[Row], folder: Path) -> RunView:
    """Read the one run of rows, written as JSON lines."""
    return only(write(folder / "log.jsonl", lines(rows)))


def noted(view: RunView, text: str) -> bool:
    return text in " ".join(view.notes)
