"""Silence on healthy curves, and on any part of them."""

import numpy as np
import pytest

from curve_runs import evaluations, healthy, ramp
from uptrend.doctor.checks import CHECKS
from uptrend.records import Finding, RunView, Severity

CURVES = [
    "clip_tight", "collapsed", "completions_empty", "dead_groups", "entropy", "eval_noise", "gradient_absent",
    "group_of_one", "kl", "learning_rate", "length", "length_bias", "memorized", "nonfinite", "precision",
    "rate_by_size", "restarts", "reward_components", "reward_constant", "reward_hackable", "reward_length_hacking",
    "reward_scale_moves", "sampler_differs", "sampler_gap", "suspects", "tools", "too_short",
]  # fmt: skip


def alarms(view: RunView) -> list[Finding]:
    found = [f for name in CURVES for f in CHECKS[name](view) if isinstance(f, Finding)]
    return [f for f in found if f.severity is not Severity.NOTE]


def test_every_check_of_curves_is_there() -> None:
    assert set(CURVES) <= CHECKS.keys()


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("steps", [40, 120, 400])
def test_no_alarm_on_a_run_that_learns(steps: int, seed: int) -> None:
    way = np.linspace(0, 1, steps)
    view = healthy(
        steps,
        seed,
        evals=evaluations(0.3, 0.42, 0.5, 0.57, 0.66, every=steps // 5),
        **{"reward/part/correctness/mean": ramp(0.1, 0.5, steps, 0.05), "reward/part/correctness/std": 0.4,
           "reward/part/format/mean": 0.2 + 0.0 * way, "reward/part/format/std": 0.02},
    )  # fmt: skip
    assert alarms(view) == []


def test_no_alarm_on_a_run_that_has_learned_all() -> None:
    way = np.linspace(0, 1, 300)
    view = healthy(
        300,
        **{"reward/mean": 1 - 0.7 * np.exp(-8 * way), "advantage/dead/share": 0.95 * (1 - np.exp(-8 * way)),
           "reward/group_std/mean": 0.4 * np.exp(-8 * way), "learner/entropy/mean": 0.02 + np.exp(-8 * way)},
    )  # fmt: skip
    assert alarms(view) == []


@pytest.mark.parametrize("points", [3, 6, 9, 15, 25, 60])
def test_no_alarm_while_a_run_of_ours_is_young(points: int) -> None:
    assert alarms(healthy(points, trainer="uptrend", **{"optimizer/lr": 1e-5})) == []


def test_nothing_breaks_on_an_empty_log() -> None:
    view = RunView(source="log", trainer="unknown", name="", steps=np.zeros(0, np.int64), metrics={})
    assert [f for name in CURVES for f in CHECKS[name](view) if isinstance(f, Finding)] == []
