"""Checks of recorded rollouts are silent on runs without a fault, and say so where records are missing."""

from dataclasses import replace

import numpy as np
import pytest

from tampered import untold, without
from uptrend.doctor.checks import CHECKS
from uptrend.doctor.kept import chosen_steps, read_rows
from uptrend.records import Finding, RunView, Severity
from uptrend.records.schema import TOKEN_COLUMNS

BY_ROLLOUT = [
    "advantage_by_group", "advantage_by_rollout", "attention_by_role", "group_diversity", "mask_by_role",
    "policy_versions", "prompt_limit", "reward_missing", "reward_reading", "reward_rescored", "sampler_gap_by_token",
    "state_leaks", "task_order", "task_repeats", "token_identity", "tool_use_by_rollout", "truncation_by_rollout",
]  # fmt: skip
SCALARS = ["process_digests", "skipped_updates"]


@pytest.mark.parametrize("name", [*BY_ROLLOUT, *SCALARS])
def test_a_healthy_run_has_no_alarm(name: str, tiny: RunView, musique: RunView) -> None:
    for view in (tiny, musique):
        found = [f for f in CHECKS[name](view) if isinstance(f, Finding)]
        assert [(f.id, f.summary) for f in found if f.severity is not Severity.NOTE] == []


@pytest.mark.parametrize("name", BY_ROLLOUT)
def test_without_rollouts_nothing_can_be_told(name: str, tiny: RunView) -> None:
    told = untold(CHECKS[name], replace(tiny, rollout_steps=()))
    assert told
    assert set(told.values()) == {"no rollouts were kept"}


@pytest.mark.parametrize("name", BY_ROLLOUT)
def test_a_warm_start_is_no_sampled_run(name: str, tiny: RunView) -> None:
    warm = replace(tiny, metrics={**tiny.metrics, "warmstart/loss/mean": np.ones(len(tiny.steps))})
    assert "expert's rollouts" in next(iter(untold(CHECKS[name], warm).values()))


@pytest.mark.parametrize("name", BY_ROLLOUT)
def test_a_trainer_that_keeps_only_texts_and_rewards_is_no_alarm(name: str, tiny: RunView) -> None:
    bare = replace(without(tiny, *TOKEN_COLUMNS, "group", "task", "answer", "correct", "parts", "ended", "kept",
                           "reward_low", "reward_high", "family", "sequence", "index", "error"),
                   trainer="trl", config={}, info={})  # fmt: skip
    outcome = CHECKS[name](bare)
    assert [f for f in outcome if isinstance(f, Finding)] == []
    assert outcome or name in ("reward_missing", "tool_use_by_rollout")  # what they look at was kept


@pytest.mark.parametrize("name", BY_ROLLOUT)
def test_columns_that_were_all_dropped_are_no_alarm(name: str, tiny: RunView) -> None:
    outcome = CHECKS[name](replace(without(tiny, *tiny.read_rollouts(1).column_names), trainer="unknown"))
    assert [f for f in outcome if isinstance(f, Finding)] == []


def test_few_steps_are_read_and_each_once(tiny: RunView) -> None:
    asked: list[int] = []

    def read(step: int) -> object:
        asked.append(step)
        return tiny.read_rollouts(1 + step % 4)

    view = replace(tiny, rollout_steps=tuple(range(1, 101)), read_rollouts=read)  # type: ignore[arg-type]
    assert chosen_steps(view) == (1, 2, 3, 22, 42, 61, 81, 100)
    for name in BY_ROLLOUT:
        CHECKS[name](view)
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
