"""All checks are silent on runs without a fault, and say so where records are missing."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from curve_runs import evaluations, healthy, ramp
from tampered import without
from uptrend.doctor.case import Case
from uptrend.doctor.check import alarms
from uptrend.doctor.checks import ALL_CHECKS, run_checks
from uptrend.records import CannotTell, Finding, RunView
from uptrend.records.schema import TOKEN_COLUMNS

EMPTY = RunView(source="log", trainer="unknown", name="", steps=np.zeros(0, np.int64), metrics={})


def found(view: RunView) -> list[Finding]:
    return [f for f in run_checks(Case(view)) if isinstance(f, Finding)]


@pytest.mark.parametrize("steps", [40, 120, 400])
def test_no_alarm_on_curves_that_rise(steps: int) -> None:
    correct = {
        "reward/part/correctness/mean": ramp(0.1, 0.5, steps, 0.05),
        "reward/part/correctness/std": 0.4,
    }
    form = {"reward/part/format/mean": 0.2, "reward/part/format/std": 0.02}
    evals = evaluations(0.3, 0.42, 0.5, 0.57, 0.66, every=steps // 5)
    for seed in range(6):
        assert alarms(found(healthy(steps, seed, evals=evals, **correct, **form))) == []
    assert found(EMPTY) == []


def test_no_alarm_on_a_run_that_has_learned_all() -> None:
    left = np.exp(-8 * np.linspace(0, 1, 300))
    groups = {"advantage/dead/share": 0.95 * (1 - left), "reward/group_std/mean": 0.4 * left}
    view = healthy(
        300, **groups, **{"reward/mean": 1 - 0.7 * left, "learner/entropy/mean": 0.02 + left}
    )
    assert alarms(found(view)) == []


@pytest.mark.parametrize("points", [3, 6, 9, 15, 25, 60])
def test_no_alarm_while_a_run_of_ours_is_young(points: int) -> None:
    assert alarms(found(healthy(points, trainer="uptrend", **{"optimizer/lr": 1e-5}))) == []


def test_no_alarm_on_real_runs(tiny: RunView, musique: RunView) -> None:
    for view in (tiny, musique):
        assert [(f.id, f.summary) for f in alarms(found(view)) if f.id != "run.too-short"] == []


def test_a_trainer_that_keeps_only_texts_and_rewards_is_no_alarm(tiny: RunView) -> None:
    columns = ("group", "task", "answer", "correct", "parts", "ended", "kept", "reward_low", "reward_high", "family",
               "sequence", "index", "error")  # fmt: skip
    bare = replace(without(tiny, *TOKEN_COLUMNS, *columns), trainer="trl", config={}, info={})
    nothing = replace(without(tiny, *tiny.read_rollouts(1).column_names), trainer="unknown")
    for view in (bare, nothing):
        assert alarms(found(view)) == []


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"rollout_steps": ()}, "no rollouts were kept"),
        ({"warm": True}, "a warm start learns from an expert's"),
    ],
)
def test_without_sampled_rollouts_checks_that_read_them_say_why(
    tiny: RunView, changes: dict[str, Any], reason: str
) -> None:
    if changes.pop("warm", False):
        changes = {"metrics": {**tiny.metrics, "warmstart/loss/mean": np.ones(len(tiny.steps))}}
    case = Case(replace(tiny, **changes))
    assert case.tables == []
    readers = [check for check in ALL_CHECKS if check.columns is not None]
    assert len(readers) > 5
    for check in readers:
        outcome = check(case)
        assert {
            o.id for o in outcome if isinstance(o, CannotTell) and o.needs.startswith(reason)
        } == set(check.ids)


def test_few_steps_are_read_and_each_once(tiny: RunView) -> None:
    asked: list[int] = []

    def read(step: int) -> Any:
        asked.append(step)
        return tiny.read_rollouts(1 + step % 4)

    case = Case(replace(tiny, rollout_steps=tuple(range(1, 101)), read_rollouts=read))
    for check in ALL_CHECKS:
        check(case)
    assert asked == list(case.steps_read) == [1, 2, 3, 22, 42, 61, 81, 100]


def test_rows_are_what_the_table_says(musique: RunView) -> None:
    rows = Case(musique).tables[0]
    table = musique.read_rollouts(1).to_pylist()
    assert len(rows) == len(table) == 64
    assert rows.response_n == [
        next(m["content"] for m in reversed(r["messages"]) if m["role"] == "assistant")
        for r in table
    ]
    sampler = rows.read_tokens("sampler")
    for n in (0, 17, 63):
        mine = rows.rollout_t == n
        np.testing.assert_array_equal(rows.role_t[mine], table[n]["roles"])
        np.testing.assert_array_equal(sampler[mine], np.array(table[n]["sampler"], float))
        assert rows.model_length_n[n] == sum(role == 1 for role in table[n]["roles"])
        assert rows.name(n) == f"1/{table[n]['group']}/{table[n]['index']}"
    assert rows.lag_n is not None
    assert (rows.lag_n == 0).all()
