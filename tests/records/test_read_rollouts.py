"""Rows become the rollouts that they were made of, to the bit."""

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

from synthetic import rollout_of
from uptrend.records import (
    Ending,
    Message,
    Part,
    RecordError,
    Reward,
    Role,
    Rollout,
    Run,
    Sequence,
    ToolCall,
    rollouts_of,
    rollouts_table,
)
from uptrend.records.schema import TOKEN_COLUMNS

LEARNED = ("weights", "attended", "advantages", "learner", "reference")
numbers = st.floats(allow_nan=False)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | numbers.filter(math.isfinite) | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=3,
)
calls = st.builds(
    ToolCall, st.text(min_size=1, max_size=4), st.dictionaries(st.text(max_size=4), json_values, max_size=2)
)
messages = st.builds(
    Message,
    st.sampled_from(["system", "user", "assistant", "tool"]),
    st.text(max_size=12),
    st.lists(calls, max_size=2).map(tuple),
    st.text(max_size=5),
)
parts = st.builds(Part, st.text(max_size=5), numbers, numbers, numbers, numbers)
rewards = st.builds(Reward, numbers, numbers, numbers, st.booleans(), st.lists(parts, max_size=3).map(tuple))


@st.composite
def sequences(draw: st.DrawFn) -> Sequence:
    size = draw(st.integers(0, 6))

    def column(name: str) -> Any:
        kind = np.dtype(TOKEN_COLUMNS[name].to_pandas_dtype())
        elements: Any = None
        if name == "versions":
            elements = st.integers(-1, 2**31 - 1)
        elif name == "roles":
            elements = st.sampled_from([int(role) for role in Role])
        return draw(hnp.arrays(kind, size, elements=elements))

    return Sequence(
        **{name: column(name) if name not in LEARNED or draw(st.booleans()) else None for name in TOKEN_COLUMNS}
    )


int32 = st.integers(-(2**31), 2**31 - 1)
rollouts = st.builds(
    Rollout,
    step=int32,
    group=st.text(max_size=5),
    index=int32,
    task=st.text(max_size=5),
    family=st.text(max_size=5),
    answer=st.text(max_size=5),
    seed=st.integers(-(2**63), 2**63 - 1),
    messages=st.lists(messages, max_size=3).map(tuple),
    sequences=st.lists(sequences(), max_size=3).map(tuple),
    reward=st.none() | rewards,
    ended=st.sampled_from(Ending),
    error=st.none() | st.text(max_size=5),
    seconds=numbers,
    kept=st.booleans(),
)


def assert_same(one: Rollout, other: Rollout) -> None:
    assert replace(one, sequences=()) == replace(other, sequences=())
    assert len(one.sequences) == len(other.sequences)
    for a, b in zip(one.sequences, other.sequences, strict=True):
        for field in fields(Sequence):
            x, y = getattr(a, field.name), getattr(b, field.name)
            assert (x is None) == (y is None), field.name
            if x is not None:
                assert x.dtype == y.dtype
                np.testing.assert_array_equal(x, y, err_msg=field.name)


@settings(max_examples=50, deadline=None, phases=(Phase.generate,))  # a failing example is small enough as it is
@given(st.lists(rollouts, max_size=4))
def test_rollouts_survive_the_disk(made: list[Rollout]) -> None:
    buffer = pa.BufferOutputStream()
    pq.write_table(rollouts_table("demo", made), buffer, compression="zstd")
    read = rollouts_of(pq.read_table(pa.BufferReader(buffer.getvalue())))
    assert len(read) == len(made)
    for one, other in zip(made, read, strict=True):
        assert_same(one, other)


def test_the_parts_of_a_step_are_read_one_after_another(make_run: Callable[..., Path]) -> None:
    run = Run(make_run("demo", steps=2))
    for part in run.path.glob("rollouts/000001/*"):
        part.unlink()
    for number in (0, 1):
        table = rollouts_table("demo", [rollout_of(1, f"g{number}", i) for i in range(3)])
        pq.write_table(table, run.path / "rollouts" / "000001" / f"part-{number}.parquet")
    assert [(r.group, r.index) for r in rollouts_of(run.rollouts(1))] == [
        ("g0", 0), ("g0", 1), ("g0", 2), ("g1", 0), ("g1", 1), ("g1", 2),
    ]  # fmt: skip


def test_a_rollout_written_before_groups_were_dropped_was_kept() -> None:
    table = rollouts_table("demo", [rollout_of(1)]).drop_columns(["kept"])
    (read,) = rollouts_of(table)
    assert read.kept


def test_rows_without_the_sampler_s_probabilities_are_refused() -> None:
    table = rollouts_table("demo", [rollout_of(1)]).drop_columns(["sampler"])
    with pytest.raises(RecordError, match="no column sampler"):
        rollouts_of(table)
