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

PART_TYPE = pa.struct(
    [
        ("name", pa.string()),
        ("value", pa.float64()),
        ("low", pa.float64()),
        ("high", pa.float64()),
        ("weight", pa.float64()),
    ]
)
MESSAGE_TYPE = pa.struct(
    [
        ("role", pa.string()),
        ("content", pa.string()),
        ("calls", pa.string()),
        ("problem", pa.string()),
    ]
)
COMMAND_TYPE = pa.struct(
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
PLAIN_COLUMNS = ("step", "group", "index", "task", "family", "answer", "seed", "error", "seconds")
# Token columns that every sequence has; the others are empty until an update has seen it.
SAMPLER_COLUMNS = ("turns", "roles", "versions", "sampler")

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
        ("messages", pa.list_(MESSAGE_TYPE)),
        ("reward", pa.float64()),
        ("reward_low", pa.float64()),
        ("reward_high", pa.float64()),
        ("correct", pa.bool_()),
        ("parts", pa.list_(PART_TYPE)),
        ("turn_rewards", pa.list_(pa.float64())),
        ("ended", pa.string()),
        ("error", pa.string()),
        ("seconds", pa.float64()),
        ("kept", pa.bool_()),
        ("commands", pa.list_(COMMAND_TYPE)),
        ("sandbox_failures", pa.int32()),
        ("source", pa.string()),
        *((name, pa.list_(kind)) for name, kind in TOKEN_COLUMNS.items()),
    ],
    metadata={"uptrend.schema": str(SCHEMA_VERSION)},
)


def column_meanings() -> Mapping[str, str]:
    """Return the meaning of each column."""
    return tomllib.loads(Path(__file__).with_name("columns.toml").read_text(encoding="utf-8"))


def rollouts_table(run: str, rollouts: Iterable[Rollout]) -> pa.Table:
    """Return the rows of some rollouts; one that failed before its first token has a row too,
    without tokens.
    """
    rows: list[dict[str, Any]] = []
    sequences: list[Sequence | None] = []  # by row
    for rollout in rollouts:
        values = _to_row(rollout)
        for number, sequence in enumerate(rollout.sequences or (None,)):
            rows.append(values | {"run": run, "sequence": number})
            sequences.append(sequence)

    columns = []
    for field in ROLLOUT_SCHEMA:
        if field.name in TOKEN_COLUMNS:
            columns.append(_token_column(sequences, field.name))
        else:
            columns.append(pa.array([row[field.name] for row in rows], field.type))
    return pa.Table.from_arrays(columns, schema=ROLLOUT_SCHEMA)


def _to_row(rollout: Rollout) -> dict[str, Any]:
    """Return the columns that all sequences of a rollout share."""
    row = {name: getattr(rollout, name) for name in PLAIN_COLUMNS}
    row["messages"] = [_to_message_row(message) for message in rollout.messages]
    row["ended"] = str(rollout.ended)
    row["kept"] = rollout.kept
    row["commands"] = [vars(command) for command in rollout.commands]
    row["sandbox_failures"] = rollout.sandbox_failures
    row["source"] = rollout.source or None

    reward = rollout.reward
    if reward is None:
        row |= dict.fromkeys(("reward", "reward_low", "reward_high", "correct", "turn_rewards"))
        row["parts"] = []
        return row
    row["reward"] = reward.total
    row["reward_low"] = _nan_to_null(reward.low)
    row["reward_high"] = _nan_to_null(reward.high)
    row["correct"] = reward.correct
    row["turn_rewards"] = list(reward.turns) or None
    row["parts"] = []
    for part in reward.parts:
        bounds = {"low": _nan_to_null(part.low), "high": _nan_to_null(part.high)}
        row["parts"].append(vars(part) | bounds)
    return row


def _nan_to_null(bound: float) -> float | None:
    return None if math.isnan(bound) else bound


def _null_to_nan(bound: float | None) -> float:
    return math.nan if bound is None else bound


def _to_message_row(message: Message) -> dict[str, str | None]:
    calls = [{"name": call.name, "arguments": dict(call.arguments)} for call in message.calls]
    return {
        "role": message.role,
        "content": message.content,
        "calls": json.dumps(calls, ensure_ascii=False) if calls else None,
        "problem": message.problem or None,
    }


def _token_column(sequences: list[Sequence | None], name: str) -> pa.Array:
    """Make a list column straight from the arrays: NaN log-probabilities and unsampled versions
    become null.
    """
    kind = TOKEN_COLUMNS[name]
    values: list[Any] = []  # by row
    for sequence in sequences:
        values.append(None if sequence is None else getattr(sequence, name))
    present = [value for value in values if value is not None]

    # The items of all lists, one after another.
    if pa.types.is_list(kind):
        items = _concatenate_lists(present)
        sizes = [0 if value is None else len(value[0]) for value in values]
    else:
        items = _concatenate_numbers(present, name)
        sizes = [0 if value is None else len(value) for value in values]
    column = pa.ListArray.from_arrays(_offsets(sizes), items)
    if len(present) == len(values):
        return column
    is_absent = pa.array([value is None for value in values])
    return pc.if_else(is_absent, pa.scalar(None, pa.list_(kind)), column)


def _concatenate_numbers(arrays: list[NDArray[Any]], name: str) -> pa.Array:
    kind = TOKEN_COLUMNS[name]
    numbers = np.concatenate(arrays) if arrays else np.zeros(0, kind.to_pandas_dtype())
    is_null = None
    if name == "versions":
        is_null = numbers < 0
    elif kind == pa.float32():
        is_null = np.isnan(numbers)
    return pa.array(numbers, kind, mask=is_null)


def _concatenate_lists(pairs: list[tuple[NDArray[Any], NDArray[Any]]]) -> pa.Array:
    """Return the inner lists of a column of lists of lists, each row a pair of their sizes and all
    their items.
    """
    no_items = np.zeros(0, np.int32)
    sizes = np.concatenate([no_items, *(sizes for sizes, _ in pairs)])
    items = np.concatenate([no_items, *(items for _, items in pairs)])
    return pa.ListArray.from_arrays(_offsets(sizes), pa.array(items, pa.int32()))


def _offsets(sizes: list[int] | NDArray[Any]) -> pa.Array:
    ends = np.cumsum(sizes)
    return pa.array(np.concatenate([[0], ends]).astype(np.int32))


def rollouts_of(table: pa.Table) -> list[Rollout]:
    """Return the rollouts of a table, in its order; a row whose sequence is 0 begins the next
    one.
    """
    # A table of an older version lacks some of today's columns. Joined with an empty table that has
    # them all, it gets them, as nulls.
    tables = [ROLLOUT_SCHEMA.empty_table(), table]
    table = pa.concat_tables(tables, promote_options="default").combine_chunks()
    rows = table.drop_columns(list(TOKEN_COLUMNS)).to_pylist()
    columns = {name: _to_arrays(table[name], name) for name in TOKEN_COLUMNS}
    rollouts = []
    for start, end in pairwise([*find_first_rows(table).tolist(), len(rows)]):
        rollouts.append(_rollout_of(rows[start], _sequences_of(columns, range(start, end))))
    return rollouts


def find_first_rows(table: pa.Table) -> NDArray[np.int64]:
    """Return the first row of each rollout: the table's first, and each whose sequence is 0 or
    unknown.
    """
    sequence = pc.fill_null(table["sequence"].combine_chunks(), 0).to_numpy(zero_copy_only=False)
    begins = sequence <= 0
    begins[:1] = True  # whatever its sequence: the rows before it may be missing
    return np.flatnonzero(begins)


def _rollout_of(row: dict[str, Any], sequences: tuple[Sequence, ...]) -> Rollout:
    commands: list[Executed] = []
    for command in row["commands"] or ():
        # `said` is null in rows from before outputs were recorded.
        commands.append(Executed(**(command | {"said": command["said"] or ""})))
    return Rollout(
        **{name: row[name] for name in PLAIN_COLUMNS},
        messages=tuple(_message_of(message) for message in row["messages"] or ()),
        sequences=sequences,
        reward=_reward_of(row),
        ended=Ending(row["ended"]),
        kept=row["kept"] is not False,  # null in rows from before groups could be dropped
        commands=tuple(commands),
        sandbox_failures=row["sandbox_failures"] or 0,
        source=row["source"] or "",
    )


def _reward_of(row: dict[str, Any]) -> Reward | None:
    if row["reward"] is None:
        return None
    parts: list[Part] = []
    for part in row["parts"] or ():
        low = _null_to_nan(part["low"])
        high = _null_to_nan(part["high"])
        parts.append(Part(part["name"], part["value"], low, high, part["weight"]))
    return Reward(
        total=row["reward"],
        low=_null_to_nan(row["reward_low"]),
        high=_null_to_nan(row["reward_high"]),
        correct=row["correct"],
        parts=tuple(parts),
        turns=tuple(row["turn_rewards"] or ()),
    )


def _message_of(row: dict[str, Any]) -> Message:
    calls = json.loads(row["calls"] or "[]")
    tool_calls = tuple(ToolCall(call["name"], call["arguments"]) for call in calls)
    return Message(row["role"], row["content"], tool_calls, row["problem"] or "")


def _sequences_of(
    columns: dict[str, list[NDArray[Any] | None]], rows: range
) -> tuple[Sequence, ...]:
    """Return the sequences of a rollout's rows; a row without tokens has none."""
    rows_with_tokens = [row for row in rows if columns["ids"][row] is not None]
    for name in SAMPLER_COLUMNS:
        if any(columns[name][row] is None for row in rows_with_tokens):
            raise RecordError(
                f"These rollouts have no column {name}: not all that was sampled was kept."
            )
    sequences = []
    for row in rows_with_tokens:
        arrays: dict[str, Any] = {name: column[row] for name, column in columns.items()}
        sequences.append(Sequence(**arrays))
    return tuple(sequences)


def _to_arrays(column: pa.ChunkedArray, name: str) -> list[Any]:
    """Return a list column as one array per row, None where the list is null; null items become
    NaN, or -1 for versions.

    Lists of lists become pairs: the sizes of the inner ones, and their items one after another.
    """
    lists = column.combine_chunks()
    kind = TOKEN_COLUMNS[name]
    arrays: Iterable[Any]
    if pa.types.is_list(kind):
        # Of the rows [[5, 6], [7]] and [[8]]:
        inner_lists = lists.flatten()  # [5, 6], [7], [8]
        sizes_by_row = _split(count_items(inner_lists), count_items(lists))  # [2, 1], [1]
        numbers = inner_lists.flatten().to_numpy(zero_copy_only=False)  # 5, 6, 7, 8
        count_by_row = np.array([sizes.sum() for sizes in sizes_by_row], int)  # 3, 1
        numbers_by_row = _split(numbers, count_by_row)  # [5, 6, 7], [8]
        arrays = zip(sizes_by_row, numbers_by_row, strict=True)
    else:
        items = lists.flatten()
        if name == "versions":
            items = pc.fill_null(items, -1)
        numbers = items.to_numpy(zero_copy_only=False)
        numbers = numbers.astype(kind.to_pandas_dtype(), copy=False)
        arrays = _split(numbers, count_items(lists))
    is_null = lists.is_null().to_pylist()
    return [None if null else array for array, null in zip(arrays, is_null, strict=True)]


def count_items(lists: pa.ListArray) -> NDArray[np.int32]:
    """Return the length of each list; 0 where it is null."""
    sizes: NDArray[np.int32] = pc.fill_null(pc.list_value_length(lists), 0).to_numpy(
        zero_copy_only=False
    )
    return sizes


def _split(values: NDArray[Any], sizes: NDArray[Any]) -> list[NDArray[Any]]:
    return np.split(values, np.cumsum(sizes)[:-1]) if len(sizes) else []
