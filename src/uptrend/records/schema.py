"""Parquet schema of rollouts, one row per sequence: rollouts to rows and back.

The version is the run directory's. A reader of version N reads every version up to N: columns are only added, and names
of lines that changed are in renamed.toml. Version 2 came with Uptrend 0.2: American spelling, events with typed fields,
and a metric that does not exist at a step is absent from its line.
"""

import json
from collections.abc import Iterable
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from uptrend.records.errors import RecordError
from uptrend.records.rollout import Ending, Message, Part, Reward, Rollout, Sequence, ToolCall

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


OF_THE_SAMPLER = ("turns", "roles", "versions", "sampler")
"""Token columns that every sequence has; the others are empty until an update has seen it."""


def rollouts_of(table: pa.Table) -> list[Rollout]:
    """Return the rollouts of a table, in its order; a row whose sequence is 0 begins the next one."""
    table = pa.concat_tables([ROLLOUTS.empty_table(), table], promote_options="default").combine_chunks()
    rows = table.select([name for name in ROLLOUTS.names if name not in TOKEN_COLUMNS]).to_pylist()
    columns = {name: _arrays(table[name], name) for name in TOKEN_COLUMNS}
    starts = [*(at for at, row in enumerate(rows) if not row["sequence"]), len(rows)]
    return [_rollout_of(rows[a], _sequences(columns, range(a, b))) for a, b in pairwise(starts)]


def _rollout_of(row: dict[str, Any], sequences: tuple[Sequence, ...]) -> Rollout:
    plain = ("step", "group", "index", "task", "family", "answer", "seed", "error", "seconds")
    return Rollout(
        **{name: row[name] for name in plain},
        messages=tuple(_message_of(m) for m in row["messages"] or ()),
        sequences=sequences,
        reward=_reward(row),
        ended=Ending(row["ended"]),
        kept=row["kept"] is not False,  # null where it was written before groups could be dropped
    )


def _reward(row: dict[str, Any]) -> Reward | None:
    if row["reward"] is None:
        return None
    parts = tuple(Part(**part) for part in row["parts"] or ())
    return Reward(row["reward"], row["reward_low"], row["reward_high"], row["correct"], parts)


def _message_of(said: dict[str, Any]) -> Message:
    calls = tuple(ToolCall(call["name"], call["arguments"]) for call in json.loads(said["calls"] or "[]"))
    return Message(said["role"], said["content"], calls, said["problem"] or "")


def _sequences(columns: dict[str, list[NDArray[Any] | None]], rows: range) -> tuple[Sequence, ...]:
    """Return the sequences of one rollout; none where it failed before its first token."""
    return tuple(
        _sequence({name: column[at] for name, column in columns.items()})
        for at in rows
        if columns["ids"][at] is not None
    )


def _sequence(arrays: dict[str, Any]) -> Sequence:
    if lacking := [name for name in OF_THE_SAMPLER if arrays[name] is None]:
        raise RecordError(f"These rollouts have no column {lacking[0]}: not all that was sampled was kept.")
    return Sequence(**arrays)


def _arrays(column: pa.ChunkedArray, name: str) -> list[NDArray[Any] | None]:
    """Return a list column as one array per row, None where the list is null; nulls become NaN, or -1 for versions."""
    lists = column.combine_chunks()
    flat = lists.flatten()
    values = (pc.fill_null(flat, -1) if name == "versions" else flat).to_numpy(zero_copy_only=False)
    values = values.astype(TOKEN_COLUMNS[name].to_pandas_dtype(), copy=False)
    sizes = pc.fill_null(pc.list_value_length(lists), 0).to_numpy(zero_copy_only=False)
    cut = np.split(values, np.cumsum(sizes)[:-1]) if len(sizes) else []
    return [None if absent else part for part, absent in zip(cut, lists.is_null().to_pylist(), strict=True)]
