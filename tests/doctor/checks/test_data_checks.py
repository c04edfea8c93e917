"""Tasks that come twice, in an order, or from the held-out set; and held-out figures."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from curve_runs import evaluations, findings, flat, healthy, lacks, ramp, severities
from tampered import Row, tampered
from uptrend.records import RunView, Severity

REWARD, RIGHT = "reward/mean", "reward/correct/share"
BY_HEART = {RIGHT: ramp(0.3, 0.95, noise=0.03)}
LATE = {RIGHT: np.concatenate([flat(0.3, 40, 0.03), ramp(0.3, 0.95, 80, 0.03)])}
WAVERING = {REWARD: ramp(0.4, 0.41, noise=0.1, seed=4), RIGHT: ramp(0.4, 0.43, noise=0.1)}
FALL = evaluations(0.4, 0.1, 0.08, 0.1, 0.07, tasks=80, every=30)
FEW = {"tasks": {"train": 12}, "sampling": {"groups": 12}}
MANY = {"tasks": {"train": 2000}, "sampling": {"groups": 12}}
ONE_BAD_DRAW = evaluations(0.4, 0.5, 0.45, 0.1, tasks=20, every=40)
MEMORIZED, NOISE = {"data.memorized": Severity.WARNING}, {"eval.noise": Severity.NOTE}


def over_the_run(first: float, last: float, every: int = 120) -> dict[str, Any]:
    return {"evals": evaluations(first, last, tasks=400, every=every)}


CURVES: dict[str, tuple[dict[str, Any], dict[str, Severity]]] = {
    "training that leaves held out behind": (BY_HEART | over_the_run(0.3, 0.3), MEMORIZED),
    "held out that follows": (BY_HEART | over_the_run(0.3, 0.8), {}),
    "an evaluation before training rose": (LATE | over_the_run(0.3, 0.28, 40), NOISE),
    "held out that falls alone": (WAVERING | {"evals": FALL, "config": FEW}, MEMORIZED),
    "tasks that were met once at most": (WAVERING | {"evals": FALL, "config": MANY}, {}),
    "one bad draw of 20 tasks": (WAVERING | {"evals": ONE_BAD_DRAW, "config": FEW}, {}),
    "a change inside its interval": ({"evals": evaluations(0.5, 0.53, tasks=100)}, NOISE),
    "a change beyond it": ({"evals": evaluations(0.3, 0.6, tasks=100)}, {}),
}  # fmt: skip


@pytest.mark.parametrize(("bent", "expected"), CURVES.values(), ids=CURVES)
def test_held_out_figures(bent: dict[str, Any], expected: dict[str, Severity]) -> None:
    found = severities(healthy(**bent), ("data.", "eval."))
    if "data.memorized" in expected:
        found = {id: severity for id, severity in found.items() if id != "eval.noise"}
    assert found == expected


def test_what_held_out_figures_need() -> None:
    assert {"data.memorized", "eval.noise"} <= lacks(healthy(**BY_HEART), ("data.", "eval."))
    uncounted = healthy(evals=({"step": 0, "reward": 0.3}, {"step": 20, "reward": 0.5}))
    assert "eval.noise" in lacks(uncounted, "eval.")


def tasks_from(name: Callable[[int, list[Row]], str]) -> Callable[[list[Row]], None]:
    def edit(rows: list[Row]) -> None:
        names = [name(n, rows) for n in range(len(rows))]
        for row, task in zip(rows, names, strict=True):
            row["task"] = task

    return edit


def test_the_same_task_twice_in_a_step(tiny: RunView) -> None:
    found = findings(tampered(tiny, tasks_from(lambda n, rows: rows[n % 32]["task"])), "data.")["data.duplicates"]
    assert (found.evidence[0].value, found.evidence[0].rollout) == (0.5, "1/000001-0004/0")


def test_fewer_tasks_than_the_taskset_claims(tiny: RunView) -> None:
    only = tasks_from(lambda n, _: f"task {n // 8}")
    found = findings(tampered(tiny, only), "data.")["data.duplicates"]
    assert found.evidence[0].text.startswith("8 different tasks in 24 groups")
    assert findings(tampered(tiny, only, info={}, config={}), "data.duplicates") == {}, "it claims nothing"


def test_more_groups_than_tasks(tiny: RunView) -> None:
    view = replace(tiny, info={**tiny.info, "tasks": {"count": 5}})
    assert findings(view, "data.")["data.batch-exceeds"].evidence[0].value == 8


def test_held_out_tasks_that_are_trained_on(tiny: RunView) -> None:
    held = tiny.held_out(0).column("task")[3].as_py()
    view = tampered(tiny, tasks_from(lambda n, rows: held if 8 <= n < 16 else rows[n]["task"]))
    found = findings(view, "data.leak")["data.leak"]
    assert found.severity is Severity.CRITICAL
    assert (found.evidence[0].value, found.evidence[0].rollout) == (1 / 16, "1/000001-0001/0")
    assert "data.leak" in lacks(replace(tiny, evals=()), "data.")


def test_families_in_order(tiny: RunView) -> None:
    def sort(rows: list[Row]) -> None:
        for row in rows:
            row["family"] = "2hop" if row["step"] <= 2 else "4hop"
            row["reward_high"] = 1.0 if row["step"] <= 2 else 2.0

    causes = ("data.order", "reward.scale")
    found = findings(tampered(tiny, sort), causes)
    assert {id: f.evidence[0].value for id, f in found.items()} == {"data.order": 1.0, "reward.scale-moves": 1.0}
    stages = {**tiny.config, "tasks": {**tiny.config["tasks"], "stages": [{"start": 3}]}}
    assert findings(tampered(tiny, sort, config=stages), causes) == {}


def test_families_in_no_order(tiny: RunView) -> None:
    for seed in range(20):
        random = np.random.default_rng(seed)

        def shuffle(rows: list[Row], random: np.random.Generator = random) -> None:
            for n, hops in enumerate(random.integers(2, 5, size=8)):
                for row in rows[8 * n : 8 * n + 8]:
                    row["family"], row["reward_high"] = f"{hops}hop", hops / 2

        assert findings(tampered(tiny, shuffle), ("data.order", "reward.scale")) == {}
