"""Which tasks come, in what order, whether they fit, and what cutting them costs."""

from dataclasses import replace

import numpy as np
import pytest

from tampered import Row, findings, tampered, untold, without
from uptrend.doctor.checks import (
    prompt_limit,
    task_order,
    task_repeats,
    truncation_by_rollout,
)
from uptrend.records import RunView, Severity


def test_the_same_task_twice_in_a_step(tiny: RunView) -> None:
    def repeat(rows: list[Row]) -> None:
        for n, row in enumerate(rows):
            row["task"] = rows[n % 32]["task"]

    found = findings(task_repeats.check, tampered(tiny, repeat))["data.duplicates"]
    assert found.evidence[0].value == 0.5
    assert found.evidence[0].rollout == "1/000001-0004/0"


def test_fewer_tasks_than_the_taskset_claims(tiny: RunView) -> None:
    def only(rows: list[Row]) -> None:
        for n, row in enumerate(rows):
            row["task"] = f"task {n // 8}"

    found = findings(task_repeats.check, tampered(tiny, only))["data.duplicates"]
    assert found.evidence[0].text.startswith("8 different tasks in 24 groups")
    claims_nothing = tampered(tiny, only, info={}, config={})
    assert findings(task_repeats.check, claims_nothing) == {}


def test_more_groups_than_tasks(tiny: RunView) -> None:
    view = replace(tiny, info={**tiny.info, "tasks": {"count": 5}})
    assert findings(task_repeats.check, view)["data.batch-exceeds"].evidence[0].text == (
        "a step has 8 groups, and there are 5 tasks"
    )


def test_held_out_tasks_that_are_trained_on(tiny: RunView) -> None:
    held = tiny.held_out(0).column("task")[3].as_py()

    def leak(rows: list[Row]) -> None:
        for row in rows[8:16]:
            row["task"] = held

    found = findings(task_repeats.check, tampered(tiny, leak))["data.leak"]
    assert found.severity is Severity.CRITICAL
    assert found.evidence[0].text.startswith("1 of 16 held-out tasks")
    assert found.evidence[0].rollout == "1/000001-0001/0"
    assert untold(task_repeats.check, replace(tiny, evals=()))["data.leak"] == "no held-out rollouts were kept"


def test_families_in_order(tiny: RunView) -> None:
    def sort(rows: list[Row]) -> None:
        for row in rows:
            row["family"] = "2hop" if row["step"] <= 2 else "4hop"

    found = findings(task_order.check, tampered(tiny, sort))
    assert set(found) == {"data.order"}
    assert found["data.order"].evidence[0].value == 1.0
    stages = {**tiny.config, "tasks": {**tiny.config["tasks"], "stages": [{"start": 3}]}}
    assert task_order.check(tampered(tiny, sort, config=stages)) == []


@pytest.mark.parametrize("seed", range(20))
def test_families_in_no_order(tiny: RunView, seed: int) -> None:
    def shuffle(rows: list[Row]) -> None:
        random = np.random.default_rng([seed, rows[0]["step"]])
        for n in range(8):
            hops = int(random.integers(2, 5))
            for row in rows[8 * n : 8 * n + 8]:
                row["family"], row["reward_high"] = f"{hops}hop", hops / 2

    assert findings(task_order.check, tampered(tiny, shuffle)) == {}


def test_prompts_that_do_not_fit(tiny: RunView) -> None:
    def refuse(rows: list[Row]) -> None:
        for row in rows[:8]:
            row["error"], row["reward"] = "prompt: 900 tokens exceed sampling.max_prompt = 512", None

    found = findings(prompt_limit.check, tampered(tiny, refuse))["context.prompt-truncated"]
    assert (found.severity, found.evidence[0].value) == (Severity.WARNING, 1 / 8)


def test_prompts_that_are_cut(tiny: RunView) -> None:
    prompt = sum(role == 0 for role in tiny.read_rollouts(1).to_pylist()[0]["roles"])
    cut = replace(tiny, trainer="trl", config={"sampling": {"max_prompt": prompt}})
    assert "context.prompt-truncated" in findings(prompt_limit.check, cut)
    roomy = replace(tiny, trainer="trl", config={"sampling": {"max_prompt": 10 * prompt}})
    assert prompt_limit.check(roomy) == []
    assert "no limit" in untold(prompt_limit.check, replace(cut, config={}))["context.prompt-truncated"]


def cut_rows(rows: list[Row], share: float, costs: bool) -> None:
    random = np.random.default_rng(rows[0]["step"])
    for row in rows:
        is_cut = random.random() < share
        row["ended"] = "length" if is_cut else "stop-token"
        row["correct"] = bool(random.random() < (0.0 if is_cut and costs else 0.6))
        row["reward"] = 1.0 if row["correct"] else -1.0


@pytest.mark.parametrize(
    ("share", "costs", "expected"),
    [
        (0.4, True, {"context.completion-truncated"}),
        (0.4, False, set()),
        (0.05, True, set()),
        (1.0, True, {"sampling.no-stop"}),
        (1.0, False, set()),
    ],
)
def test_rollouts_that_are_cut(tiny: RunView, share: float, costs: bool, expected: set[str]) -> None:
    view = tampered(tiny, lambda rows: cut_rows(rows, share, costs))
    assert set(findings(truncation_by_rollout.check, view)) == expected
    assert set(untold(truncation_by_rollout.check, without(view, "ended")).values()) == {
        "rollouts have no column ended"
    }
