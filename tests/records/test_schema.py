"""A rollout becomes rows, and the rows say all that it said."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from synthetic import rollout_of
from uptrend.records import Ending, Message, Part, Reward, Role, Rollout, Run, Sequence, ToolCall, rollouts_table
from uptrend.records.schema import ROLLOUTS, TOKEN_COLUMNS

NAN = np.nan


def tool_rollout() -> Rollout:
    """Two sequences: the second is the history as a template rewrote it, with a tool's answer in it."""
    first = Sequence(
        ids=np.array([10, 11, 12], np.int32),
        turns=np.array([0, 0, 0], np.int32),
        roles=np.array([Role.PROMPT, Role.MODEL, Role.MODEL], np.int8),
        versions=np.array([-1, 3, 3], np.int32),
        sampler=np.array([NAN, -0.5, -0.25], np.float32),
        weights=np.array([0, 1, 1], np.float32),
        attended=np.array([True, True, True]),
        advantages=np.array([0, 1.5, 1.5], np.float32),
        learner=np.array([NAN, -0.5, -0.375], np.float32),
        reference=np.array([NAN, -0.75, -0.5], np.float32),
    )
    second = Sequence(
        ids=np.array([10, 20, 21, 13], np.int32),
        turns=np.array([0, 1, 1, 1], np.int32),
        roles=np.array([Role.PROMPT, Role.TOOL, Role.TOOL, Role.MODEL], np.int8),
        versions=np.array([-1, -1, -1, 4], np.int32),
        sampler=np.array([NAN, NAN, NAN, -1.0], np.float32),
    )
    said = (
        Message("system", "You have tools."),
        Message("user", "Größe?"),
        Message("assistant", "<call>", (ToolCall("search", {"query": "größe", "n": 3}),)),
        Message("tool", "12"),
        Message("assistant", "12"),
    )
    parts = (Part("answer", 1.0, 0.0, 1.0), Part("format", 0.5, -1.0, 1.0, 0.2))
    reward = Reward(1.1, -0.2, 1.2, True, parts)
    return Rollout(
        7, "g3", 2, "t9", "lookup", "12", 2**40, said, (first, second), reward, Ending.TURN_LIMIT, None, 1.25
    )


def test_every_field_survives_the_disk(tmp_path: Path) -> None:
    pq.write_table(rollouts_table("demo", [tool_rollout()]), tmp_path / "r.parquet")
    rows = pq.read_table(tmp_path / "r.parquet").to_pylist()
    assert [row["sequence"] for row in rows] == [0, 1]
    for row in rows:
        assert {k: row[k] for k in ("run", "step", "group", "index", "task", "family", "answer", "seed")} == {
            "run": "demo", "step": 7, "group": "g3", "index": 2, "task": "t9", "family": "lookup",
            "answer": "12", "seed": 2**40,
        }  # fmt: skip
        assert (row["reward"], row["reward_low"], row["reward_high"], row["correct"]) == (
            1.1,
            -0.2,
            1.2,
            True,
        )
        assert row["parts"] == [
            {"name": "answer", "value": 1.0, "low": 0.0, "high": 1.0, "weight": 1.0},
            {"name": "format", "value": 0.5, "low": -1.0, "high": 1.0, "weight": 0.2},
        ]
        assert (row["ended"], row["error"], row["seconds"], row["kept"]) == ("turn-limit", None, 1.25, True)
        assert [m["role"] for m in row["messages"]] == ["system", "user", "assistant", "tool", "assistant"]
        assert json.loads(row["messages"][2]["calls"]) == [{"name": "search", "arguments": {"query": "größe", "n": 3}}]
        assert row["messages"][1] == {"role": "user", "content": "Größe?", "calls": None, "problem": None}


def test_a_call_that_could_not_be_read_says_why() -> None:
    said = (Message("assistant", "<tool>{", problem="It is not closed."), Message("assistant", "12"))
    (row,) = rollouts_table("demo", [replace(rollout_of(1), messages=said)]).to_pylist()
    assert [m["problem"] for m in row["messages"]] == ["It is not closed.", None]


def test_messages_that_were_written_before_problems_were(make_run: Callable[..., Path]) -> None:
    path = make_run("demo", steps=2)
    (part,) = (path / "rollouts" / "000001").iterdir()
    table = pq.read_table(part)
    older = [[{k: m[k] for k in ("role", "content", "calls")} for m in row] for row in table["messages"].to_pylist()]
    place = table.schema.get_field_index("messages")
    pq.write_table(table.set_column(place, "messages", [older]), part)
    rows = Run(path).rollouts().to_pylist()
    assert {row["step"] for row in rows} == {1, 2}
    assert {m["problem"] for row in rows for m in row["messages"]} == {None}
    assert all(m["content"] for row in rows for m in row["messages"])


def test_tokens_are_null_where_nothing_was_sampled() -> None:
    first, second = rollouts_table("demo", [tool_rollout()]).to_pylist()
    assert first["ids"] == [10, 11, 12]
    assert first["versions"] == [None, 3, 3]
    assert first["sampler"] == [None, -0.5, -0.25]
    assert first["weights"] == [0, 1, 1]
    assert first["attended"] == [True, True, True]
    assert first["advantages"] == [0, 1.5, 1.5]
    assert first["learner"] == [None, -0.5, -0.375]
    assert first["reference"] == [None, -0.75, -0.5]
    assert second["roles"] == [Role.PROMPT, Role.TOOL, Role.TOOL, Role.MODEL]
    assert second["turns"] == [0, 1, 1, 1]
    assert second["versions"] == [None, None, None, 4]


def test_columns_that_the_learner_did_not_fill_are_null_lists() -> None:
    table = rollouts_table("demo", [tool_rollout()])
    for name in ("weights", "attended", "advantages", "learner", "reference"):
        assert table[name].is_null().to_pylist() == [False, True], name
    only_sampled = rollouts_table("demo", [rollout_of(1)])
    assert only_sampled["attended"].to_pylist() == [None]


def test_types_are_the_schema_s_whatever_numpy_gave() -> None:
    wide = Sequence(
        ids=np.arange(2),
        turns=np.zeros(2, np.int64),
        roles=np.zeros(2, np.int64),
        versions=np.full(2, -1),
        sampler=np.full(2, NAN),
        weights=np.zeros(2),
    )
    table = rollouts_table("demo", [replace(rollout_of(1), sequences=(wide,)), tool_rollout()])
    assert table.schema.equals(ROLLOUTS, check_metadata=True)
    assert table.schema.metadata == {b"uptrend.schema": b"2"}
    for name, kind in TOKEN_COLUMNS.items():
        assert table.schema.field(name).type == pa.list_(kind)


def test_an_unscored_rollout_has_no_reward_and_says_why() -> None:
    failed = replace(rollout_of(1), reward=None, ended=Ending.TASK_ERROR, error="score: no number")
    (row,) = rollouts_table("demo", [failed]).to_pylist()
    assert [row[k] for k in ("reward", "reward_low", "reward_high", "correct")] == [None] * 4
    assert row["parts"] == []
    assert (row["ended"], row["error"]) == ("task-error", "score: no number")


def test_a_rollout_that_failed_before_its_first_token_keeps_its_row() -> None:
    failed = replace(rollout_of(1), sequences=(), reward=None, ended=Ending.TASK_ERROR, error="open: no file")
    rows = rollouts_table("demo", [failed, rollout_of(1, index=1)]).to_pylist()
    assert [(row["index"], row["ids"]) for row in rows] == [(0, None), (1, [1, 2, 3, 4, 5])]


def test_no_rollouts_are_an_empty_table() -> None:
    table = rollouts_table("demo", [])
    assert table.num_rows == 0
    assert table.schema.equals(ROLLOUTS)
