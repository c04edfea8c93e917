"""Runs that learn in few steps, looked at while they train: no finding may say that their policy
stands still.
"""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import uptrend
from uptrend.config import load_config, to_table
from uptrend.doctor.check import alarms
from uptrend.doctor.diagnose import diagnose
from uptrend.records import Report, RunView, from_lines, view_of

ROOT = Path(__file__).parents[2]
STEPS, WEIGHTS = 25, 134_515_008
# Courses of the accuracy, by the share of the way that the learning rate has gone.
COURSES = {
    "evenly": lambda way: way,
    "at once": lambda way: 1 - np.exp(-4 * way),
    "late": lambda way: way**2,
}


def strong_learner(course: str, planned: int, warmup: int, seed: int) -> RunView:
    """Return recipes/h200.toml cut to 25 steps, from 41% to 67%, as its metrics were: no KL, one
    update per step.
    """
    random = np.random.default_rng(seed)
    step = np.arange(1, STEPS + 1)
    rates = (
        2e-5
        * 0.5
        * (1 + np.cos(np.pi * (step - 1) / planned))
        * np.minimum(1, step / max(1, warmup))
    )
    way = np.append(0, np.cumsum(rates)[:-1]) / rates.sum()
    lines = [
        line_of(random, *at)
        for at in zip(step, rates, 0.41 + 0.26 * COURSES[course](way), strict=True)
    ]
    told = [f"learning.steps={planned}", f"learning.warmup={warmup}"]
    return from_lines(
        lines,
        source="h200",
        name="h200",
        config=to_table(load_config(ROOT / "recipes" / "h200.toml", told)),
        info={"model": {"parameters": WEIGHTS, "trainable": WEIGHTS}},
        evals=({"step": 0, "accuracy": 0.41, "tasks": 200},),
    )


def test_the_middle_of_a_warm_up_says_nothing_of_the_schedule() -> None:
    view = strong_learner("evenly", planned=500, warmup=50, seed=0)
    ids = {finding.id for cause in diagnose(view).findings for finding in (cause, *cause.explains)}
    assert "optimizer.schedule" not in ids


def line_of(random: np.random.Generator, step: int, rate: float, accuracy: float) -> dict[str, Any]:
    """Return a metrics line of 32 groups of 16, in which dead groups were drawn once more."""
    right = random.binomial(16, random.beta(2.4 * accuracy, 2.4 * (1 - accuracy), 32))
    is_dead = (right == 0) | (right == 16)
    right[is_dead] = random.binomial(
        16, random.beta(2.4 * accuracy, 2.4 * (1 - accuracy), int(is_dead.sum()))
    )
    mean, low, high = (
        float(right.mean()) / 16,
        float(np.mean(right == 0)),
        float(np.mean(right == 16)),
    )
    return {
        "step": int(step),
        "reward/mean": mean,
        "reward/correct/share": mean,
        "reward/std": (mean * (1 - mean)) ** 0.5,
        "advantage/dead/share": low + high,
        "advantage/dead_low/share": low,
        "advantage/dead_high/share": high,
        "learner/entropy/mean": 0.6 - 0.5 * (accuracy - 0.41) + 0.02 * random.standard_normal(),
        "gradient/norm/before": 1.2 * float(np.exp(0.2 * random.standard_normal())),
        "optimizer/lr": float(rate),
        "optimizer/updates/count": 1.0,
        "optimizer/skipped/count": 0.0,
        # Adam's first step is as long as the rate for every weight; later ones are about a third of
        # it.
        "weights/update/norm": float(rate) * WEIGHTS**0.5 * (1.0 if step == 1 else 0.35),
        "weights/norm": 2120.25,
        "weights/changed/share": 0.99,
    }


def live_reports(view: RunView) -> list[Report]:
    """Return the reports of a run after each of its steps."""
    ends = range(1, len(view.steps) + 1)
    return [diagnose(from_lines(view_lines(view)[:end], **rest_of(view))) for end in ends]


def view_lines(view: RunView) -> list[dict[str, Any]]:
    """Return the metrics lines of a view."""
    return [
        {
            "step": int(step),
            **{
                key: float(values[i])
                for key, values in view.metrics.items()
                if np.isfinite(values[i])
            },
        }
        for i, step in enumerate(view.steps)
    ]


def rest_of(view: RunView) -> dict[str, Any]:
    """Return what a view has beside its metrics."""
    return {key: getattr(view, key) for key in ("source", "name", "config", "info", "evals")}


@pytest.mark.parametrize("warmup", [0, 10])
@pytest.mark.parametrize("planned", [STEPS, 400])
@pytest.mark.parametrize("course", COURSES)
def test_a_strong_learner_is_not_said_to_stand_still(
    course: str, planned: int, warmup: int
) -> None:
    for seed in range(4):
        reports = live_reports(strong_learner(course, planned, warmup, seed))
        named = {finding.id for report in reports for finding in report.findings}
        assert "optimizer.lr-small" not in named, f"seed {seed}"


def test_a_rate_that_is_a_thousand_times_too_small_is_named() -> None:
    view = strong_learner("evenly", STEPS, 0, 0)
    random = np.random.default_rng(1)
    lines = [line_of(random, step, 2e-8, 0.41) for step in view.steps]
    config = to_table(
        load_config(ROOT / "recipes" / "h200.toml", [f"learning.steps={STEPS}", "learning.lr=2e-8"])
    )
    (finding,) = alarms(diagnose(from_lines(lines, **rest_of(view) | {"config": config})).findings)
    assert finding.id == "optimizer.lr-small"


@pytest.mark.slow
def test_a_real_run_that_learns_its_few_tasks_is_not_said_to_stand_still(tmp_path: Path) -> None:
    told = [
        "learning.steps=20",
        "learning.lr=2e-4",
        "tasks.train=48",
        "tasks.reward=exact",
        "eval.tasks=40",
    ]
    run = uptrend.train(
        ROOT / "recipes" / "tiny.toml", overrides=told, runs=tmp_path, progress=False
    )
    reports = live_reports(view_of(run))
    assert "optimizer.lr-small" not in {
        finding.id for report in reports for finding in report.findings
    }
