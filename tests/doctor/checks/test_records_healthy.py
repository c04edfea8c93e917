"""Rollouts as checks read them."""

from dataclasses import replace

import numpy as np

from uptrend.doctor.checks import examine
from uptrend.doctor.kept import chosen_steps, read_rows
from uptrend.records import RunView


def test_few_steps_are_read_and_each_once(tiny: RunView) -> None:
    asked: list[int] = []

    def read(step: int) -> object:
        asked.append(step)
        return tiny.read_rollouts(1 + step % 4)

    view = replace(tiny, rollout_steps=tuple(range(1, 101)), read_rollouts=read)  # type: ignore[arg-type]
    assert chosen_steps(view) == (1, 2, 3, 22, 42, 61, 81, 100)
    examine(view)
    assert asked == [1, 2, 3, 22, 42, 61, 81, 100]


def test_rows_are_what_the_table_says(musique: RunView) -> None:
    (rows,) = [r for r in read_rows(musique) if r.step == 1]
    table = musique.read_rollouts(1).to_pylist()
    assert len(rows) == len(table) == 64
    assert rows.said_n == [
        next(m["content"] for m in reversed(r["messages"]) if m["role"] == "assistant") for r in table
    ]
    sampler = rows.tokens("sampler")
    assert sampler is not None
    for n in (0, 17, 63):
        mine = rows.rollout_t == n
        np.testing.assert_array_equal(rows.role_t[mine], table[n]["roles"])
        np.testing.assert_array_equal(sampler[mine], np.array(table[n]["sampler"], float))
        assert rows.lengths_n[n] == sum(role == 1 for role in table[n]["roles"])
        assert rows.name(n) == f"1/{table[n]['group']}/{table[n]['index']}"
    assert rows.lag_n is not None
    assert (rows.lag_n == 0).all()
