"""From rows back to rollouts: the inverse of `schema.rollouts_table`."""

import json
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from uptrend.records.errors import RecordError
from uptrend.records.reward import Part, Reward
from uptrend.records.rollout import Ending, Rollout, Sequence
from uptrend.records.schema import ROLLOUTS, TOKEN_COLUMNS
from uptrend.records.task import Message, ToolCall

OF_THE_SAMPLER = ("turns", "roles", "versions", "sampler")
"""Token columns that every sequence has; the others are empty until an update has seen it."""


def rollouts_of(table: pa.Table) -> list[Rollout]:
    """The rollouts of a table, in its order; a row whose sequence is 0 begins the next one."""
    table = pa.concat_tables([ROLLOUTS.empty_table(), table], promote_options="default").combine_chunks()
    rows = table.select([name for name in ROLLOUTS.names if name not in TOKEN_COLUMNS]).to_pylist()
    columns = {name: _arrays(table[name], name) for name in TOKEN_COLUMNS}
    starts = [*(at for at, row in enumerate(rows) if not row["sequence"]), len(rows)]
    return [_rollout(rows[a], _sequences(columns, range(a, b))) for a, b in pairwise(starts)]


def _rollout(row: dict[str, Any], sequences: tuple[Sequence, ...]) -> Rollout:
    plain = ("step", "group", "index", "task", "family", "answer", "seed", "error", "seconds")
    return Rollout(
        **{name: row[name] for name in plain},
        messages=tuple(_message(m) for m in row["messages"] or ()),
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


def _message(said: dict[str, Any]) -> Message:
    calls = tuple(ToolCall(call["name"], call["arguments"]) for call in json.loads(said["calls"] or "[]"))
    return Message(said["role"], said["content"], calls, said["problem"] or "")


def _sequences(columns: dict[str, list[NDArray[Any] | None]], rows: range) -> tuple[Sequence, ...]:
    """The sequences of one rollout; none where it failed before its first token."""
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
    """A list column as an array a row, None where the list is null; nulls become NaN, or -1 for versions."""
    lists = column.combine_chunks()
    flat = lists.flatten()
    values = (pc.fill_null(flat, -1) if name == "versions" else flat).to_numpy(zero_copy_only=False)
    values = values.astype(TOKEN_COLUMNS[name].to_pandas_dtype(), copy=False)
    sizes = pc.fill_null(pc.list_value_length(lists), 0).to_numpy(zero_copy_only=False)
    cut = np.split(values, np.cumsum(sizes)[:-1]) if len(sizes) else []
    return [None if absent else part for part, absent in zip(cut, lists.is_null().to_pylist(), strict=True)]
