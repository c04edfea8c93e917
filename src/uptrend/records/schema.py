"""Parquet schema of rollouts, one row per sequence: rollouts to rows and back.

The version is the run directory's. A reader of version N reads every version up to N: columns are
only added, and names of lines that changed are in renamed.toml. Version 2 came with Uptrend 0.2:
American spelling, events with typed fields, and a metric that does not exist at a step is absent
from its line.
"""

import json
import math
import tomllib
from collections.abc import Iterable, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from uptrend.records.errors import RecordError
from uptrend.records.rollout import (
    Ending,
    Executed,
    Message,
    Part,
    Reward,
    Rollout,
    Sequence,
    ToolCall,
)

SCHEMA_VERSION = 2

_PART = pa.struct(
    [("name", pa.string()), *((name, pa.float64()) for name in ("value", "low", "high", "weight"))]
)
_MESSAGE = pa.struct([(name, pa.string()) for name in ("role", "content", "calls", "problem")])
_COMMAND = pa.struct(
    [
        ("turn", pa.int32()),
        ("command", pa.string()),
        ("seconds", pa.float64()),
        ("code", pa.int32()),
        ("stopped", pa.string()),
        ("score", pa.float64()),
        ("error", pa.bool_()),
        ("said", pa.string()),
    ]
)
# Columns that are fields of a rollout as they are.
_SAME = ("step", "group", "index", "task", "family", "answer", "seed", "error", "seconds")
# Token columns that every sequence has; the others are empty until an update has seen it.
_OF_THE_SAMPLER = ("turns", "roles", "versions", "sampler")

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
    "support": pa.list_(pa.int32()),
}

ROLLOUT_SCHEMA = pa.schema(
    [
        ("run", pa.string()),
        ("step", pa.int32()),
        ("group", pa.string()),
        ("index", pa.int32()),
        ("sequence", pa.int32()),
        ("task", pa.string()),
        ("family", pa.string()),
        ("answer", pa.string()),
        ("seed", pa.int64()),
        ("messages", pa.list_(_MESSAGE)),
        ("reward", pa.float64()),
        ("reward_low", pa.float64()),
        ("reward_high", pa.float64()),
        ("correct", pa.bool_()),
        ("parts", pa.list_(_PART)),
        ("turn_rewards", pa.list_(pa.float64())),
        ("ended", pa.string()),
        ("error", pa.string()),
        ("seconds", pa.float64()),
        ("kept", pa.bool_()),
        ("commands", pa.list_(_COMMAND)),
        ("sandbox_failures", pa.int32()),
        *((name, pa.list_(kind)) for name, kind in TOKEN_COLUMNS.items()),
    ],
    metadata={"uptrend.schema": str(SCHEMA_VERSION)},
)


def column_meanings() -> Mapping[str, str]:
    """Return the meaning of each column."""
    return tomllib.loads(Path(__file__).with_name("columns.toml").read_text(encoding="utf-8"))


def rollouts_table(run: str, rollouts: Iterable[Rollout]) -> pa.Table:
    """Make the rows of some rollouts; one that failed before its first token has a row too, without
    tokens.
    """
    pairs = [(r, i, s) for r in rollouts for i, s in enumerate(r.sequences or (None,))]
    rows = [_row_of(r) | {"run": run, "sequence": i} for r, i, _ in pairs]
    columns = [
        (
            _token_column([s for _, _, s in pairs], field.name)
            if field.name in TOKEN_COLUMNS
            else pa.array([row[field.name] for row in rows], field.type)
        )
        for field in ROLLOUT_SCHEMA
    ]
    return pa.Table.from_arrays(columns, schema=ROLLOUT_SCHEMA)


def _row_of(r: Rollout) -> dict[str, Any]:
    reward = r.reward
    return {name: getattr(r, name) for name in _SAME} | {
        "messages": [_message(m) for m in r.messages],
        "reward": None if reward is None else reward.total,
        "reward_low": None if reward is None else _known(reward.low),
        "reward_high": None if reward is None else _known(reward.high),
        "correct": None if reward is None else reward.correct,
        "parts": [] if reward is None else [_part(part) for part in reward.parts],
        "turn_rewards": list(reward.turns) if reward is not None and reward.turns else None,
        "ended": str(r.ended),
        "kept": r.kept,
        "commands": [vars(command) for command in r.commands],
        "sandbox_failures": r.sandbox_failures,
    }


def _known(bound: float) -> float | None:
    return None if math.isnan(bound) else bound


def _bound(kept: float | None) -> float:
    return math.nan if kept is None else kept


def _part(part: Part) -> dict[str, Any]:
    if math.isnan(part.low) or math.isnan(part.high):
        return vars(part) | {"low": _known(part.low), "high": _known(part.high)}
    return vars(part)


def _message(message: Message) -> dict[str, str | None]:
    calls = [{"name": call.name, "arguments": dict(call.arguments)} for call in message.calls]
    said = json.dumps(calls, ensure_ascii=False) if calls else None
    return {
        "role": message.role,
        "content": message.content,
        "calls": said,
        "problem": message.problem or None,
    }


def _token_column(sequences: list[Sequence | None], name: str) -> pa.Array:
    """Make a list column straight from the arrays: NaN log-probabilities and unsampled versions
    become null.
    """
    kind = TOKEN_COLUMNS[name]
    found: list[Any] = [None if s is None else getattr(s, name) for s in sequences]
    # A list of lists has the inner ones' sizes in the place of its values.
    arrays: list[NDArray[Any] | None] = [a[0] if isinstance(a, tuple) else a for a in found]
    present = [a for a in arrays if a is not None]
    if pa.types.is_list(kind):
        inner = np.concatenate([np.zeros(0, np.int32), *(a[1] for a in found if a is not None)])
        items = pa.ListArray.from_arrays(
            _offsets([int(n) for a in present for n in a]), pa.array(inner, pa.int32())
        )
    else:
        values = np.concatenate(present) if present else np.zeros(0, kind.to_pandas_dtype())
        missing = (
            values < 0 if name == "versions" else np.isnan(values) if kind == pa.float32() else None
        )
        items = pa.array(values, kind, mask=missing)
    column = pa.ListArray.from_arrays(_offsets([0 if a is None else len(a) for a in arrays]), items)
    if len(present) == len(arrays):
        return column
    absent = pa.array([a is None for a in arrays])
    return pc.if_else(absent, pa.scalar(None, pa.list_(kind)), column)


def _offsets(sizes: list[int]) -> pa.Array:
    return pa.array(np.concatenate([[0], np.cumsum(sizes)]).astype(np.int32))


def rollouts_of(table: pa.Table) -> list[Rollout]:
    """Return the rollouts of a table, in its order; a row whose sequence is 0 begins the next
    one.
    """
    table = pa.concat_tables(
        [ROLLOUT_SCHEMA.empty_table(), table], promote_options="default"
    ).combine_chunks()
    rows = table.drop_columns(list(TOKEN_COLUMNS)).to_pylist()
    columns = {name: _arrays(table[name], name) for name in TOKEN_COLUMNS}
    starts = [*find_first_rows(table).tolist(), len(rows)]
    return [_rollout_of(rows[a], _sequences(columns, range(a, b))) for a, b in pairwise(starts)]


def find_first_rows(table: pa.Table) -> NDArray[np.int64]:
    """Return the first row of each rollout: one whose sequence is 0, or is not known; and the first
    of all.
    """
    sequence = pc.fill_null(table["sequence"].combine_chunks(), 0).to_numpy(zero_copy_only=False)
    begins = ~(sequence > 0)
    begins[:1] = True
    return np.flatnonzero(begins)


def _rollout_of(row: dict[str, Any], sequences: tuple[Sequence, ...]) -> Rollout:
    low, high = (_bound(row[key]) for key in ("reward_low", "reward_high"))
    parts = tuple(
        Part(part["name"], part["value"], _bound(part["low"]), _bound(part["high"]), part["weight"])
        for part in row["parts"] or ()
    )
    turns = tuple(row["turn_rewards"] or ())
    return Rollout(
        **{name: row[name] for name in _SAME},
        messages=tuple(_message_of(m) for m in row["messages"] or ()),
        sequences=sequences,
        reward=(
            None
            if row["reward"] is None
            else Reward(row["reward"], low, high, row["correct"], parts, turns)
        ),
        ended=Ending(row["ended"]),
        kept=row["kept"] is not False,  # null where it was written before groups could be dropped
        # `said` is null where it was written before outputs were kept
        commands=tuple(
            Executed(**(command | {"said": command["said"] or ""}))
            for command in row["commands"] or ()
        ),
        sandbox_failures=row["sandbox_failures"] or 0,
    )


def _message_of(said: dict[str, Any]) -> Message:
    calls = tuple(
        ToolCall(call["name"], call["arguments"]) for call in json.loads(said["calls"] or "[]")
    )
    return Message(said["role"], said["content"], calls, said["problem"] or "")


def _sequences(columns: dict[str, list[NDArray[Any] | None]], rows: range) -> tuple[Sequence, ...]:
    sampled = [at for at in rows if columns["ids"][at] is not None]
    if lacking := [name for name in _OF_THE_SAMPLER for at in sampled if columns[name][at] is None]:
        raise RecordError(
            f"These rollouts have no column {lacking[0]}: not all that was sampled was kept."
        )
    arrays: list[dict[str, Any]] = [
        {name: column[at] for name, column in columns.items()} for at in sampled
    ]
    return tuple(Sequence(**each) for each in arrays)


def _arrays(column: pa.ChunkedArray, name: str) -> list[Any]:
    """Return a list column as one array per row, None where the list is null; nulls become NaN, or
    -1 for versions.

    Lists of lists become pairs: the sizes of the inner ones, and their values in a row.
    """
    lists = column.combine_chunks()
    kind = TOKEN_COLUMNS[name]
    flat = lists.flatten()
    absent = lists.is_null().to_pylist()
    if pa.types.is_list(kind):
        sizes = _split(count_items(flat), count_items(lists))
        values = _split(
            flat.flatten().to_numpy(zero_copy_only=False),
            np.array([each.sum() for each in sizes], int),
        )
        return [None if gone else (n, v) for gone, n, v in zip(absent, sizes, values, strict=True)]
    plain = (pc.fill_null(flat, -1) if name == "versions" else flat).to_numpy(zero_copy_only=False)
    parts = _split(plain.astype(kind.to_pandas_dtype(), copy=False), count_items(lists))
    return [None if gone else part for gone, part in zip(absent, parts, strict=True)]


def count_items(lists: pa.ListArray) -> NDArray[np.int32]:
    """Return the length of each list; 0 where it is null."""
    sizes: NDArray[np.int32] = pc.fill_null(pc.list_value_length(lists), 0).to_numpy(
        zero_copy_only=False
    )
    return sizes


def _split(values: NDArray[Any], sizes: NDArray[Any]) -> list[NDArray[Any]]:
    return np.split(values, np.cumsum(sizes)[:-1]) if len(sizes) else []
