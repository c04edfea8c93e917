"""The trend on training reward, and the held-out change beside it."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from curve_runs import evaluations, flat, healthy, ramp
from uptrend.doctor.held_out import held_out_change, is_learned
from uptrend.doctor.trend import trend_of
from uptrend.records import Run, RunView, TrendKind, view_of


def test_a_constant_reward_is_said_in_one_figure() -> None:
    trend = trend_of(healthy(**{"reward/mean": np.full(120, 0.25)}))
    assert trend.kind is TrendKind.FLAT
    assert trend.sentence == "Constant: training reward 0.25 at each of 120 points to step 120."


def test_learning_with_its_interval_and_power() -> None:
    trend = trend_of(healthy())
    low, high = trend.interval or (0, 0)
    assert trend.kind is TrendKind.LEARNING
    assert low < 0.4 < high
    assert trend.effect == pytest.approx(0.4, abs=0.05)
    assert trend.power is not None
    assert trend.power > 0.8
    assert "0.343 in the first quarter and 0.651 in the last" in trend.sentence


def test_falling_flat_and_too_short() -> None:
    assert trend_of(healthy(**{"reward/mean": ramp(0.7, 0.3, noise=0.05)})).kind is TrendKind.FALLING
    assert trend_of(healthy(**{"reward/mean": flat()})).kind is TrendKind.FLAT
    assert trend_of(healthy(8, **{"reward/mean": flat(0.3, 8)})).kind is TrendKind.TOO_SHORT
    assert trend_of(healthy(3)).kind is TrendKind.TOO_SHORT
    noisy = healthy(30, **{"reward/mean": flat(0.3, 30, 0.4), "reward/group_std/mean": 0.3})
    assert trend_of(noisy).kind is TrendKind.TOO_SHORT


def test_a_short_run_with_a_plain_trend_is_not_too_short() -> None:
    assert trend_of(healthy(12, **{"reward/mean": ramp(0.1, 0.9, 12, 0.03)})).kind is TrendKind.LEARNING


def test_a_collapse_is_falling_although_no_line_fits() -> None:
    rewards = np.concatenate([np.full(5, 0.89), [0.4], np.full(34, 0.001)]) + flat(0, 40, 0.01)
    assert trend_of(healthy(40, **{"reward/mean": rewards})).kind is TrendKind.FALLING


def test_a_step_up_is_learning_although_no_line_fits() -> None:
    rewards = np.concatenate([flat(-0.4, 26, 0.1), flat(0.9, 24, 0.01)])
    trend = trend_of(healthy(50, **{"reward/mean": rewards, "reward/group_std/mean": 0.15}))
    assert (trend.kind, trend.sentence.partition(":")[0]) == (TrendKind.LEARNING, "It rose at once and stayed there")
    slow = np.cumsum(np.random.default_rng(0).normal(0, 0.02, 50))  # a walk that no rollout would notice
    assert trend_of(healthy(50, **{"reward/mean": slow, "reward/group_std/mean": 0.5})).kind is not TrendKind.LEARNING


@pytest.mark.parametrize(
    "dead",
    [{"advantage/dead/share": 0.99}, {"weights/update/norm": 0.0},
     {"learner/entropy/mean": np.exp(ramp(0, -9)), "gradient/norm/before": np.exp(ramp(0, -14)), "reward/max": 2.0}],
)  # fmt: skip
def test_a_drift_without_learning_is_flat(dead: dict[str, object]) -> None:
    assert trend_of(healthy(**dead)).kind is TrendKind.FLAT


def test_a_constant_reward_is_flat() -> None:
    assert trend_of(healthy(**{"reward/mean": 1.0})).kind is TrendKind.FLAT


def test_no_reward() -> None:
    trend = trend_of(RunView(source="log", trainer="unknown", name="", steps=np.arange(9), metrics={}))
    assert (trend.kind, trend.effect, trend.power) == (TrendKind.TOO_SHORT, None, None)


def test_held_out_stands_beside_and_does_not_enter() -> None:
    trend = trend_of(healthy(evals=evaluations(0.6, 0.4, tasks=100)))
    assert trend.kind is TrendKind.LEARNING
    assert trend.held_out["effect"] == pytest.approx(-0.2)
    low, high = trend.held_out["interval"]
    assert low == pytest.approx(-0.334, abs=0.01)
    assert high == pytest.approx(-0.066, abs=0.01)


def test_held_out_is_paired_where_rollouts_were_kept(make_run: Callable[..., Path]) -> None:
    view = view_of(Run(make_run("run", steps=20, rights=(15, 28))))
    held_out = trend_of(view).held_out
    assert (held_out["effect"], held_out["tasks"]) == (pytest.approx(13 / 40), 40)
    assert held_out["interval"][0] < 13 / 40 < held_out["interval"][1]


def test_the_last_verdict_is_kept_for_its_own_run_only() -> None:
    rising, falling = healthy(), healthy(**{"reward/mean": ramp(0.7, 0.3, noise=0.05)})
    assert [trend_of(v).kind for v in (rising, falling, rising)] == [
        TrendKind.LEARNING,
        TrendKind.FALLING,
        TrendKind.LEARNING,
    ]
    assert trend_of(rising) is trend_of(rising)


def test_of_several_attempts_the_greedy_answer_is_paired() -> None:
    """Twenty tasks, all wrong before and all right after; attempts, which follow in the file, say the opposite."""
    tasks = [str(n) for n in range(20)]

    def held_out(step: int) -> pa.Table:
        return pa.table({"task": [*tasks, *tasks], "correct": [step > 0] * 20 + [step == 0] * 20})

    evals = [{"step": step, "accuracy": float(step > 0), "tasks": 20} for step in (0, 10)]
    view = replace(healthy(), evals=evals, held_out=held_out)
    change = held_out_change(view)
    assert change is not None
    assert change.interval == (1.0, 1.0)
    assert is_learned(view)
    assert not is_learned(replace(view, evals=evals[:1]))
