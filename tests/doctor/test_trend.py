"""Readings of a run's curves: the trend of the training reward, the held-out change beside it,
penalties' weights.
"""

from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from curve_runs import evaluations, flat, healthy, ramp
from uptrend.doctor.case import Case
from uptrend.records import TrendKind

REWARD, SPREAD, ENTROPY = "reward/mean", "reward/group_std/mean", "learner/entropy/mean"
LEARNING, FLAT, FALLING, SHORT = (
    TrendKind.LEARNING,
    TrendKind.FLAT,
    TrendKind.FALLING,
    TrendKind.TOO_SHORT,
)
COLLAPSED = np.concatenate([np.full(5, 0.89), [0.4], np.full(34, 0.001)]) + flat(0, 40, 0.01)
AT_ONCE = np.concatenate([flat(-0.4, 26, 0.1), flat(0.9, 24, 0.01)])
SLOW = np.cumsum(np.random.default_rng(0).normal(0, 0.02, 50))
FROZEN = {
    ENTROPY: np.exp(ramp(0, -9)),
    "gradient/norm/before": np.exp(ramp(0, -14)),
    "reward/max": 2.0,
}

SLIGHT = ramp(0.3, 0.4, 30, 0.05, seed=4)
NO_GRADIENT = {"gradient/norm/before": 0.0, "kl/reference/mean": 0.0}

TRENDS: dict[str, tuple[dict[str, Any], TrendKind]] = {
    "a rise": ({}, LEARNING),
    "a fall": ({REWARD: ramp(0.7, 0.3, noise=0.05)}, FALLING),
    "nothing": ({REWARD: flat()}, FLAT),
    "eight points": ({"steps": 8, REWARD: flat(0.3, 8)}, SHORT),
    "three points": ({"steps": 3}, SHORT),
    "noise in which a change could hide": (
        {"steps": 30, REWARD: flat(0.3, 30, 0.4), SPREAD: 0.3},
        SHORT,
    ),
    "a plain rise in twelve points": ({"steps": 12, REWARD: ramp(0.1, 0.9, 12, 0.03)}, LEARNING),
    "a collapse that no line fits": ({"steps": 40, REWARD: COLLAPSED}, FALLING),
    "a step up that no line fits": ({"steps": 50, REWARD: AT_ONCE, SPREAD: 0.15}, LEARNING),
    "a walk that no rollout would notice": ({"steps": 50, REWARD: SLOW, SPREAD: 0.5}, FLAT),
    "a drift of dead groups": ({"advantage/dead/share": 0.99}, FLAT),
    "a drift without updates": ({"weights/update/norm": 0.0}, FLAT),
    "a drift with updates that teach nothing": (
        {"weights/update/norm": 1e-7, "weights/norm": 47.0},
        FLAT,
    ),
    "a small rise without a gradient": ({"steps": 30, REWARD: SLIGHT, **NO_GRADIENT}, FLAT),
    "a small rise with one": ({"steps": 30, REWARD: SLIGHT}, LEARNING),
    "a rise beyond chance without a gradient": (NO_GRADIENT, LEARNING),
    "a drift of a frozen policy": (FROZEN, FLAT),
    "a constant": ({REWARD: 1.0}, FLAT),
    "a replay": ({"info": {"kind": "replay"}}, SHORT),
    "no reward": ({"without": (REWARD,)}, SHORT),
}


@pytest.mark.parametrize("name", TRENDS)
def test_trends(name: str) -> None:
    bent, kind = TRENDS[name]
    trend = Case(healthy(**bent)).trend
    assert trend.kind is kind, trend.sentence


def risen_and_fallen(seed: int) -> np.ndarray:
    """Return a noisy reward that rises, falls and stays down, so that no straight line fits it."""
    random = np.random.default_rng(seed)
    ends = (0.1, random.uniform(1, 3), random.uniform(-1, 0.3))
    lengths = (random.integers(5, 30), random.integers(5, 30))
    parts = [np.linspace(ends[i], ends[i + 1], length) for i, length in enumerate(lengths)]
    level = np.concatenate([*parts, np.full(int(random.integers(5, 30)), ends[2])])
    return level + random.uniform(0.02, 0.5) * random.standard_normal(len(level))


def test_a_headline_agrees_with_the_interval_beside_it() -> None:
    curves = [healthy(**bent) for bent, _ in TRENDS.values()]
    for seed in range(150):
        values = risen_and_fallen(seed)
        curves += [healthy(len(values), **{REWARD: sign * values}) for sign in (1, -1)]
    for view in curves:
        trend = Case(view).trend
        low, high = trend.interval or (0.0, 0.0)
        agrees = {LEARNING: low > 0, FALLING: high < 0, SHORT: low <= 0 <= high, FLAT: True}
        assert agrees[trend.kind], trend.sentence


def test_figures_of_a_trend() -> None:
    trend = Case(healthy()).trend
    low, high = trend.interval or (0, 0)
    assert low < 0.4 < high
    assert trend.effect == pytest.approx(0.4, abs=0.05)
    assert (trend.power or 0) > 0.8
    assert "0.343 in the first quarter and 0.651 in the last" in trend.sentence
    assert Case(healthy(without=(REWARD,))).trend.effect is None


def test_held_out_stands_beside_and_does_not_enter() -> None:
    trend = Case(healthy(evals=evaluations(0.6, 0.4, tasks=100))).trend
    assert trend.kind is LEARNING
    assert trend.held_out["effect"] == pytest.approx(-0.2)
    assert trend.held_out["interval"] == pytest.approx((-0.334, -0.066), abs=0.01)


def test_held_out_without_counts_scatters_about_its_line() -> None:
    scores = (
        {"step": step, "reward": score} for step, score in enumerate((0.1, 0.2, 0.3, 0.4, 0.5, 0.6))
    )
    change = Case(healthy(evals=tuple(scores))).heldout
    assert change is not None
    assert change.interval == pytest.approx((0.304, 0.696), abs=1e-3)
    assert not change.paired


def test_of_several_attempts_the_greedy_answer_is_paired() -> None:
    """Twenty tasks, all wrong before and all right after; attempts, which follow in the file, say
    the opposite.
    """
    tasks = [str(n) for n in range(20)]

    def held_out(step: int) -> pa.Table:
        return pa.table({"task": [*tasks, *tasks], "correct": [step > 0] * 20 + [step == 0] * 20})

    evals = tuple({"step": step, "accuracy": float(step > 0), "tasks": 20} for step in (0, 10))
    view = replace(healthy(), evals=evals, read_heldout=held_out)
    change = Case(view).heldout
    assert change is not None
    assert change.interval == (pytest.approx(0.76, abs=0.01), 1.0)
    assert Case(view).has_learned
    assert not Case(replace(view, evals=evals[:1])).has_learned


KL, LOSS = "kl/reference/mean", "loss/total"
MOVES, NOISE, FADES = (
    np.abs(flat(0.02, noise=0.015)),
    flat(0.0, noise=0.003),
    ramp(0.7, 0.1, noise=0.02),
)


@pytest.mark.parametrize(
    ("bent", "kl", "entropy"),
    [
        ({KL: MOVES, LOSS: 10 * MOVES + NOISE}, 10, 0),
        ({KL: MOVES, LOSS: NOISE}, 0, 0),
        ({"without": (LOSS,), KL: MOVES}, 0, 0),
        ({ENTROPY: FADES, LOSS: -0.5 * FADES}, 0, 0.5),
        ({ENTROPY: FADES, LOSS: 5 * FADES}, 0, -5),
        # A constant that something else adds is no bonus, though a steady entropy is a constant
        # too.
        ({ENTROPY: flat(0.7, noise=0.02), LOSS: ramp(3.5, 3.5, noise=0.01, seed=2)}, 0, 0),
        (
            {
                KL: MOVES,
                LOSS: 10 * MOVES,
                "config": {"learning": {"kl": {"beta": 0.04}, "entropy": 0.01}},
            },
            0.04,
            0.01,
        ),
    ],
)
def test_the_weights_of_penalties_are_read_off_the_loss(
    bent: dict[str, Any], kl: float, entropy: float
) -> None:
    case = Case(healthy(**bent))
    assert (case.kl_weight, case.entropy_weight) == (
        pytest.approx(kl, rel=0.02),
        pytest.approx(entropy),
    )
