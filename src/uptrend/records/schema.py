"""Parquet schema of rollouts: one row per sequence, and how rollouts become rows.

The version is the run directory's. A reader of version N reads every version up to N: columns are only added, and names
of lines that changed are in renamed.toml. Version 2 came with Uptrend 0.2: American spelling, events with typed fields,
and a metric that does not exist at a step is absent from its line.
"""

import json
from collections.abc import Iterable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from uptrend.records.rollout import Rollout, Sequence
from uptrend.records.task import Message

VERSION = 2

_PART = pa.struct(
    [("name", pa.string()), ("value", pa.float64()), ("low", pa.float64()), ("high", pa.float64()),
     ("weight", pa.float64())]
)  # fmt: skip
_MESSAGE = pa.struct(
    [("role", pa.string()), ("content", pa.string()), ("calls", pa.string()), ("problem", pa.string())]
)

TOKEN_COLUMNS: dict[str, pa.DataType] = {
    "ids": pa.int32(),
    "turns": pa.int32(),
    "roles": pa.int8(),
    "versions": pa.int32(),
    "sampler": pa.float32(),
    "weights": pa.float32(),
    "attended": pa.bool_(),
    "advantages": pa.float32(),
    "learner": pa.float32(),
    "reference": pa.float32(),
}

ROLLOUTS = pa.schema(
    [
        pa.field("run", pa.string()),
        pa.field("step", pa.int32()),
        pa.field("group", pa.string()),
        pa.field("index", pa.int32()),
        pa.field("sequence", pa.int32()),
        pa.field("task", pa.string()),
        pa.field("family", pa.string()),
        pa.field("answer", pa.string()),
        pa.field("seed", pa.int64()),
        pa.field("messages", pa.list_(_MESSAGE)),
        pa.field("reward", pa.float64()),
        pa.field("reward_low", pa.float64()),
        pa.field("reward_high", pa.float64()),
        pa.field("correct", pa.bool_()),
        pa.field("parts", pa.list_(_PART)),
        pa.field("ended", pa.string()),
        pa.field("error", pa.string()),
        pa.field("seconds", pa.float64()),
        pa.field("kept", pa.bool_()),
        *(pa.field(name, pa.list_(kind)) for name, kind in TOKEN_COLUMNS.items()),
    ],
    metadata={"uptrend.schema": str(VERSION)},
)


def rollouts_table(run: str, rollouts: Iterable[Rollout]) -> pa.Table:
    """Make the rows of some rollouts; one that failed before its first token has a row too, without tokens."""
    rows = [(r, i, s) for r in rollouts for i, s in enumerate(r.sequences or (None,))]
    plain: dict[str, list[Any]] = {name: [] for name in ROLLOUTS.names if name not in TOKEN_COLUMNS}
    for rollout, index, _ in rows:
        for name, value in _plain_columns(run, rollout, index).items():
            plain[name].append(value)
    columns = [
        _token_column([s for _, _, s in rows], field.name)
        if field.name in TOKEN_COLUMNS
        else pa.array(plain[field.name], field.type)
        for field in ROLLOUTS
    ]
    return pa.Table.from_arrays(columns, schema=ROLLOUTS)


def _plain_columns(run: str, r: Rollout, sequence: int) -> dict[str, Any]:
    reward = r.reward
    return {
        "run": run,
        "step": r.step,
        "group": r.group,
        "index": r.index,
        "sequence": sequence,
        "task": r.task,
        "family": r.family,
        "answer": r.answer,
        "seed": r.seed,
        "messages": [_message(m) for m in r.messages],
        "reward": None if reward is None else reward.total,
        "reward_low": None if reward is None else reward.low,
        "reward_high": None if reward is None else reward.high,
        "correct": None if reward is None else reward.correct,
        "parts": [] if reward is None else [vars(part) for part in reward.parts],
        "ended": str(r.ended),
        "error": r.error,
        "seconds": r.seconds,
        "kept": r.kept,
    }


def _message(message: Message) -> dict[str, str | None]:
    calls = [{"name": call.name, "arguments": dict(call.arguments)} for call in message.calls]
    return {
        "role": message.role,
        "content": message.content,
        "calls": json.dumps(calls, ensure_ascii=False) if calls else None,
        "problem": message.problem or None,
    }


def _token_column(sequences: list[Sequence | None], name: str) -> pa.Array:
    """Make a list column straight from the arrays: NaN log-probabilities and unsampled versions become null."""
    kind = TOKEN_COLUMNS[name]
    arrays: list[NDArray[Any] | None] = [None if s is None else getattr(s, name) for s in sequences]
    sizes = [0 if a is None else len(a) for a in arrays]
    offsets = pa.array(np.concatenate([[0], np.cumsum(sizes)]).astype(np.int32))
    present = [a for a in arrays if a is not None]
    values = np.concatenate(present) if present else np.zeros(0, kind.to_pandas_dtype())
    missing = values < 0 if name == "versions" else np.isnan(values) if kind == pa.float32() else None
    column = pa.ListArray.from_arrays(offsets, pa.array(values, kind, mask=missing))
    if len(present) == len(arrays):
        return column
    absent = pa.array([a is None for a in arrays])
    return pc.if_else(absent, pa.scalar(None, pa.list_(kind)), column)
