"""Checks of reward curves: constant, components, hackable, length, memorized."""

import numpy as np

from curve_runs import evaluations, findings, flat, healthy, lacks, ramp
from uptrend.records import RunView, Severity

EMPTY = RunView(source="log", trainer="unknown", name="", steps=np.arange(30), metrics={})


def test_memorized() -> None:
    right = {"reward/correct/share": ramp(0.3, 0.95, noise=0.03)}
    found = findings(healthy(evals=evaluations(0.3, 0.3, tasks=400, every=120), **right), "memorized")
    assert found["data.memorized"].severity is Severity.WARNING
    assert findings(healthy(evals=evaluations(0.3, 0.8, tasks=400, every=120), **right), "memorized") == {}
    assert lacks(healthy(**right), "memorized") == {"data.memorized"}


def test_held_out_that_falls_alone() -> None:
    bent = {"reward/mean": ramp(0.4, 0.41, noise=0.1, seed=4), "reward/correct/share": ramp(0.4, 0.43, noise=0.1)}
    fall = evaluations(0.4, 0.1, 0.08, 0.1, 0.07, tasks=80, every=30)
    few = {"tasks": {"train": 12}, "sampling": {"groups": 12}}
    assert set(findings(healthy(evals=fall, **bent, config=few), "memorized")) == {"data.memorized"}
    many = {"tasks": {"train": 2000}, "sampling": {"groups": 12}}
    assert findings(healthy(evals=fall, **bent, config=many), "memorized") == {}, "each task was met once at most"
    once = evaluations(0.4, 0.5, 0.45, 0.1, tasks=20, every=40)
    assert findings(healthy(evals=once, **bent, config=few), "memorized") == {}, "one bad draw of 20 tasks"


def test_an_early_evaluation_is_compared_with_training_up_to_it() -> None:
    right = {"reward/correct/share": np.concatenate([flat(0.3, 40, 0.03), ramp(0.3, 0.95, 80, 0.03)])}
    view = healthy(evals=evaluations(0.3, 0.28, tasks=400, every=40), **right)
    assert findings(view, "memorized") == {}
