"""Tasks, evaluations, and rollouts as rows: what the columns hold, and that the rows become the
same rollouts again.
"""

# ruff: noqa: I001 (names of records side by side)

import json
import math
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from synthetic import evaluation_of, rollout_of
from uptrend.records import (
    Ending, Evaluation, Executed, Message, Part, RecordError, Reward, Role, Rollout, Run, Sequence, Task, ToolCall,
    rollouts_of, rollouts_table, tasks_hash,
)  # fmt: skip
from uptrend.records.schema import ROLLOUT_SCHEMA, TOKEN_COLUMNS

LEARNED = ("weights", "attended", "advantages", "learner", "reference", "support")
ASK = (Message("user", "2 + 3 ="),)
numbers, texts = st.floats(allow_nan=False), st.text(max_size=5)


def test_a_task_is_known_by_its_question_and_a_list_by_questions_answers_and_order() -> None:
    one, two = Task(ASK, "5", "add"), Task((Message("user", "1 + 1 ="),), "2", "add")
    assert one.id == Task(ASK, "6", "other", 3.0, {"a": 1}).id
    assert len({one.id, two.id, Task((Message("system", "2 + 3 ="),), "5", "add").id}) == 3
    assert tasks_hash([one, two]) == tasks_hash([one, two]) != tasks_hash([two, one])
    assert tasks_hash([one]) != tasks_hash([Task(ASK, "6", "add")])


def test_accuracy_is_the_share_right_and_nothing_without_tasks() -> None:
    assert evaluation_of(0, 30, 40).accuracy == 0.75
    assert math.isnan(Evaluation(0, 0, 0, 0.0, 1.0, 0, 0.0, {}, {}, {}, 0.0).accuracy)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | numbers.filter(math.isfinite) | texts,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(texts, inner, max_size=2),
    max_leaves=3,
)
calls = st.builds(ToolCall, texts, st.dictionaries(texts, json_values, max_size=2))
speakers = st.sampled_from(["system", "user", "assistant", "tool"])
messages = st.builds(Message, speakers, texts, st.lists(calls, max_size=2).map(tuple), texts)
parts = st.builds(Part, texts, numbers, numbers, numbers, numbers)
small = st.integers(-(2**31), 2**31 - 1)
commands = st.builds(
    Executed, small, texts, numbers, small, texts, st.none() | numbers, st.booleans()
)
plain_rewards = st.builds(
    Reward, numbers, numbers, numbers, st.booleans(), st.lists(parts, max_size=3).map(tuple)
)
rewards = plain_rewards | plain_rewards.map(
    lambda r: replace(r, turns=(r.total, 0.0) if math.isfinite(r.total) else ())
)


@st.composite
def sequences(draw: st.DrawFn) -> Sequence:
    size = draw(st.integers(0, 6))
    elements: dict[str, Any] = {
        "versions": st.integers(-1, 2**31 - 1),
        "roles": st.sampled_from([*map(int, Role)]),
    }

    def column(name: str) -> Any:
        if name in LEARNED and draw(st.booleans()):
            return None
        if name == "support":
            sizes = draw(hnp.arrays(np.int32, size, elements=st.integers(0, 3)))
            return sizes, draw(hnp.arrays(np.int32, int(sizes.sum())))
        return draw(
            hnp.arrays(TOKEN_COLUMNS[name].to_pandas_dtype(), size, elements=elements.get(name))
        )

    return Sequence(**{name: column(name) for name in TOKEN_COLUMNS})


rollouts = st.builds(
    Rollout,
    **dict.fromkeys(("step", "index"), small),
    **dict.fromkeys(("group", "task", "family", "answer"), texts),
    seed=st.integers(-(2**63), 2**63 - 1),
    messages=st.lists(messages, max_size=3).map(tuple),
    sequences=st.lists(sequences(), max_size=3).map(tuple),
    reward=st.none() | rewards,
    ended=st.sampled_from(Ending),
    error=st.none() | texts,
    seconds=numbers,
    kept=st.booleans(),
    commands=st.lists(commands, max_size=2).map(tuple),
    sandbox_failures=st.integers(0, 9),
)


@settings(
    max_examples=50, deadline=None, phases=(Phase.generate,)
)  # a failing example is small enough as it is
@given(st.lists(rollouts, max_size=4))
def test_rollouts_survive_the_disk_to_the_bit(made: list[Rollout]) -> None:
    buffer = pa.BufferOutputStream()
    pq.write_table(rollouts_table("demo", made), buffer, compression="zstd")
    read = rollouts_of(pq.read_table(pa.BufferReader(buffer.getvalue())))
    assert [replace(one, sequences=()) for one in read] == [
        replace(one, sequences=()) for one in made
    ]
    for one, other in zip(made, read, strict=True):
        for a, b in zip(one.sequences, other.sequences, strict=True):
            for name in (field.name for field in fields(Sequence)):
                x, y = getattr(a, name), getattr(b, name)
                for u, v in zip(x, y, strict=True) if isinstance(x, tuple) else [(x, y)]:
                    assert getattr(u, "dtype", None) == getattr(v, "dtype", None), name
                    np.testing.assert_array_equal(u, v, err_msg=name)


# Two sequences as they stand on disk: the second is the history as a template rewrote it, with a
# tool's answer in it.
FIRST: dict[str, Any] = {
    "ids": [10, 11, 12], "turns": [0, 0, 0], "roles": [0, 1, 1], "versions": [None, 3, 3],
    "sampler": [None, -0.5, -0.25], "weights": [0, 1, 1], "attended": [True] * 3, "advantages": [0, 1.5, 1.5],
    "learner": [None, -0.5, -0.375], "reference": [None, -0.75, -0.5], "support": [[], [11, 30], [12]],
}  # fmt: skip
SECOND: dict[str, Any] = {
    "ids": [10, 20, 21, 13], "turns": [0, 1, 1, 1], "roles": [0, 2, 2, 1], "versions": [None, None, None, 4],
    "sampler": [None, None, None, -1.0],
}  # fmt: skip


def in_memory(columns: dict[str, Any]) -> Sequence:
    """Return the sequence with NaN, and -1 for versions, where the disk has null; as int64 and
    float64.
    """
    nothing = {"versions": -1}
    plain = {name: x for name, x in columns.items() if name != "support"}
    arrays = {
        name: np.array([nothing.get(name, np.nan) if v is None else v for v in x])
        for name, x in plain.items()
    }
    lists = columns.get("support")
    support = (
        None
        if lists is None
        else (np.array([*map(len, lists)]), np.array([i for part in lists for i in part]))
    )
    return Sequence(**arrays, support=support)


def test_the_columns_hold_what_the_page_says() -> None:
    calls = (ToolCall("search", {"query": "größe", "n": 3}),)
    said = (
        Message("user", "Größe?"),
        Message("assistant", "<call>", calls),
        Message("assistant", "<tool>{", problem="It is not closed."),
    )
    reward = Reward(
        1.1,
        -0.2,
        1.2,
        True,
        (Part("answer", 1.0, 0.0, 1.0), Part("format", 0.5, -1.0, 1.0, 0.2)),
        (0.25, 0.85),
    )
    both = (in_memory(FIRST), in_memory(SECOND))
    ran = (Executed(1, "python a.py", 0.5, -9, "memory", 0.75, True, "killed"),)
    made = Rollout(
        7,
        "g3",
        2,
        "t9",
        "lookup",
        "12",
        2**40,
        said,
        both,
        reward,
        Ending.TURN_LIMIT,
        None,
        1.25,
        True,
        ran,
        2,
    )
    table = rollouts_table("demo", [made])
    assert table.schema.equals(ROLLOUT_SCHEMA, check_metadata=True)
    assert table.schema.metadata == {b"uptrend.schema": b"2"}
    shared = {
        "run": "demo", "step": 7, "group": "g3", "index": 2, "task": "t9", "family": "lookup", "answer": "12",
        "seed": 2**40, "reward": 1.1, "reward_low": -0.2, "reward_high": 1.2, "correct": True,
        "turn_rewards": [0.25, 0.85],
        "parts": [
            {"name": "answer", "value": 1.0, "low": 0.0, "high": 1.0, "weight": 1.0},
            {"name": "format", "value": 0.5, "low": -1.0, "high": 1.0, "weight": 0.2},
        ],
        "messages": [
            {"role": "user", "content": "Größe?", "calls": None, "problem": None},
            {"role": "assistant", "content": "<call>", "problem": None,
             "calls": '[{"name": "search", "arguments": {"query": "größe", "n": 3}}]'},
            {"role": "assistant", "content": "<tool>{", "calls": None, "problem": "It is not closed."},
        ],
        "ended": "turn-limit", "error": None, "seconds": 1.25, "kept": True,
        "commands": [{"turn": 1, "command": "python a.py", "seconds": 0.5, "code": -9, "stopped": "memory",
                      "score": 0.75, "error": True, "said": "killed"}],
        "sandbox_failures": 2, "source": None,
    }  # fmt: skip
    assert table.to_pylist() == [
        shared | {"sequence": 0, **FIRST},
        shared | {"sequence": 1, **SECOND} | dict.fromkeys(LEARNED),
    ]


def test_a_rollout_that_failed_keeps_its_row() -> None:
    failed = replace(
        rollout_of(1), sequences=(), reward=None, ended=Ending.TASK_ERROR, error="open: no file"
    )
    row, other = rollouts_table("demo", [failed, rollout_of(1, index=1)]).to_pylist()
    assert [row[k] for k in ("reward", "reward_low", "reward_high", "correct", "ids")] == [None] * 5
    assert (row["parts"], row["ended"], row["error"]) == ([], "task-error", "open: no file")
    assert (other["index"], other["ids"], other["attended"]) == (1, [1, 2, 3, 4, 5], None)
    assert rollouts_table("demo", []).schema.equals(ROLLOUT_SCHEMA)


def test_files_of_an_older_writer(make_run: Callable[..., Path]) -> None:
    """They lack the columns `kept`, `commands` and `sandbox_failures`, and the field `problem`."""
    path = make_run("demo", steps=2)
    (part,) = (path / "rollouts" / "000001").iterdir()
    table = pq.read_table(part).drop_columns(["kept", "commands", "sandbox_failures"])
    older = [
        [{k: m[k] for k in ("role", "content", "calls")} for m in row]
        for row in table["messages"].to_pylist()
    ]
    pq.write_table(
        table.set_column(table.schema.get_field_index("messages"), "messages", [older]), part
    )
    rows = Run(path).rollouts().to_pylist()
    assert [(row["step"], row["kept"]) for row in rows] == [(1, None), (2, True)]
    assert {m["problem"] for row in rows for m in row["messages"]} == {None}
    assert [
        (r.kept, json.dumps([m.content for m in r.messages]))
        for r in rollouts_of(Run(path).rollouts())
    ] == [(True, '["2 + 3 =", "5"]')] * 2


def test_rows_without_the_sampler_s_probabilities_are_refused() -> None:
    table = rollouts_table("demo", [rollout_of(1)]).drop_columns(["sampler"])
    with pytest.raises(RecordError, match="no column sampler"):
        rollouts_of(table)
