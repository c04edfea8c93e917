"""Rewards over the run: constant, components, hackable, length."""

from typing import Any

import numpy as np
import pytest

from curve_runs import STEPS, evaluations, findings, flat, healthy, lacks, ramp, severities
from tampered import each, tampered
from uptrend.doctor.diagnose import diagnose
from uptrend.records import Confidence, RunView, Severity

NOTE, WARNING, CRITICAL = Severity.NOTE, Severity.WARNING, Severity.CRITICAL
REWARD, SPREAD, CORRECT = "reward/mean", "reward/group_std/mean", "reward/correct/share"
LENGTH, CUT = "sampling/length/mean", "sampling/ended/length/share"
CONSTANT, DEAD, DOMINATES = "reward.constant", "reward.component-dead", "reward.component-dominates"
HACKABLE, LONGER, SCALE = "reward.hackable", "reward.length-hacking", "reward.scale-moves"
CAUSES = (CONSTANT, DEAD, DOMINATES, HACKABLE, LONGER)
EMPTY = RunView(source="log", trainer="unknown", name="", steps=np.arange(30), metrics={})

WAY = np.linspace(0, 1, STEPS)
RISE = ramp(0.1, 0.9, noise=0.05)
SOLVED = {REWARD: 1 - 0.6 * np.exp(-12 * WAY), SPREAD: 0.05}
EARLY = {REWARD: np.where(WAY < 0.2, 0.5 + 5 * WAY, 1.5) + ramp(0, 0, noise=0.03)}
RESTS = evaluations(0.3, 0.6, *[0.7] * 8, every=12)
FALL = evaluations(0.4, 0.1, 0.08, 0.1, 0.07, tasks=80, every=30)
GROWING = {LENGTH: ramp(200, 420, noise=5)}
STEP = np.concatenate([np.zeros(40), np.linspace(0, 1, 40), np.ones(40)])
WAVER = 0.05 * np.random.default_rng(3).standard_normal(STEPS)
PAID = {LENGTH: 3 + 9 * (STEP + WAVER), REWARD: -0.5 + 1.4 * (STEP + WAVER)}
INTO_LIMIT = {CUT: np.clip(2 * STEP - 1, 0, 1)}


def parts(**means: object) -> dict[str, object]:
    return {f"reward/part/{name}/mean": value for name, value in means.items()}


def held_out(*scores: float, tasks: int = 400, every: int = 20) -> dict[str, Any]:
    return {"evals": evaluations(*scores, tasks=tasks, every=every)}


CASES: dict[str, tuple[dict[str, Any], dict[str, Severity]]] = {
    "healthy": ({}, {}),
    "constant at -1": ({REWARD: -1.0, SPREAD: 0.0}, {CONSTANT: CRITICAL}),
    "constant at 0": ({REWARD: 0.0, SPREAD: 0.0}, {CONSTANT: CRITICAL}),
    "constant at 1": ({REWARD: 1.0, SPREAD: 0.0}, {CONSTANT: CRITICAL}),
    "a constant mean with spread": ({REWARD: 0.5}, {}),
    "constant at the end": (
        {REWARD: np.append(flat(0.5, 90), np.zeros(30)), SPREAD: np.append(np.full(90, 0.3), np.zeros(30))},
        {CONSTANT: WARNING}),
    "constant at the top after learning": (
        {REWARD: np.append(ramp(0.2, 0.9, 80, 0.03), np.ones(40)),
         SPREAD: np.append(np.full(80, 0.3), np.zeros(40))}, {CONSTANT: NOTE}),
    "a component at its floor": (
        parts(equation=0.0, format=ramp(0.1, 0.5, noise=0.05)) | {REWARD: ramp(0.1, 0.5, noise=0.05)},
        {DEAD: WARNING, DOMINATES: WARNING, HACKABLE: WARNING}),
    "a component that everybody earns": (parts(correctness=ramp(0.1, 0.5, noise=0.05), format=1.0), {DEAD: NOTE}),
    "format that rises alone": (
        parts(json_format=RISE, env=flat(0.96, noise=0.001)) | {REWARD: RISE + 0.96},
        {DEAD: NOTE, DOMINATES: WARNING, HACKABLE: WARNING}),
    "noise that could hide a rise of the answer": (
        parts(format=ramp(0.7, 1.0, noise=0.02), correctness=ramp(0.3, 0.34, noise=0.15))
        | {REWARD: ramp(0.7, 1.0, noise=0.02)}, {DOMINATES: NOTE}),
    "one thing paid for twice": (
        parts(terminal=RISE, schema_score=RISE * 1.01, other=ramp(0, 1, noise=0.1, seed=9)), {DOMINATES: NOTE}),
    "components that never vary": (parts(one=0.0, two=0.0), {}),
    "fewer right answers": ({CORRECT: ramp(0.6, 0.3, noise=0.03)}, {HACKABLE: WARNING}),
    "held out stands still": (held_out(0.3, 0.31, 0.29, 0.3, 0.31, 0.3), {HACKABLE: WARNING}),
    "held out follows": (held_out(0.3, 0.4, 0.5, 0.6, 0.65, 0.7, tasks=200), {}),
    "too few tasks to tell": (held_out(0.3, 0.35, tasks=20, every=120), {}),
    "held out rests at the top": (held_out(0.4, 0.97, *[1.0] * 8, tasks=200, every=12) | SOLVED, {}),
    "both rest": ({"evals": RESTS} | EARLY, {}),
    "only training goes on": ({"evals": RESTS, REWARD: ramp(0.5, 1.5, noise=0.03)}, {HACKABLE: WARNING}),
    "another scale that may follow": (
        {REWARD: ramp(0, 4, noise=0.4), SPREAD: 4.0} | held_out(0.5, 0.62, tasks=60, every=120), {}),
    "held out falls alone": ({"evals": FALL, REWARD: ramp(0.4, 0.41, noise=0.1, seed=4)}, {HACKABLE: WARNING}),
    "training falls with it": ({"evals": FALL, REWARD: ramp(0.5, 0.2, noise=0.05)}, {}),
    "length that pays without the task": (
        GROWING | held_out(0.3, 0.29, tasks=200, every=STEPS), {LONGER: WARNING, HACKABLE: WARNING}),
    "length that pays with the task": (GROWING | held_out(0.3, 0.7, tasks=200, every=STEPS), {LONGER: NOTE}),
    "length that costs": (GROWING | {REWARD: ramp(0.7, 0.3, noise=0.03)}, {LONGER: NOTE}),
    "length into its limit": (PAID | INTO_LIMIT, {LONGER: WARNING}),
    "length that ends by itself": (PAID | {CUT: 0.05}, {LONGER: NOTE}),
    # Both rise, and from step to step they have nothing to do with each other: rambling after a right answer.
    "length apart from the reward": (
        PAID | INTO_LIMIT | {REWARD: -0.5 + 1.4 * STEP + ramp(0, 0, noise=0.1, seed=5)}, {LONGER: NOTE}),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_curves(name: str) -> None:
    bent, expected = CASES[name]
    assert severities(healthy(**bent), CAUSES) == expected


def test_figures() -> None:
    constant = findings(healthy(**CASES["constant at -1"][0]), CONSTANT)[CONSTANT]
    assert (constant.evidence[0].value, constant.evidence[0].step) == (-1.0, 1)
    hacked = findings(healthy(**CASES["format that rises alone"][0]), HACKABLE)[HACKABLE]
    assert hacked.confidence is Confidence.MEDIUM
    assert [e.metric.split("/")[2] for e in hacked.evidence] == ["json_format", "env"]


def test_what_is_lacking() -> None:
    assert lacks(healthy(), CAUSES) == {DEAD, DOMINATES, HACKABLE}
    assert {CONSTANT, LONGER, SCALE} <= lacks(EMPTY, "reward.")


def test_bounds_in_order(tiny: RunView) -> None:
    rising = each(lambda row: row.update(reward_high=1.0 if row["step"] <= 2 else 2.0))
    found = findings(tampered(tiny, rising), SCALE)[SCALE]
    assert (found.severity, found.evidence[0].value) == (WARNING, 1.0)
    stages = {**tiny.config, "tasks": {**tiny.config["tasks"], "stages": [{"start": 3}]}}
    assert findings(tampered(tiny, rising, config=stages), SCALE) == {}


@pytest.mark.parametrize("seed", range(5))
def test_bounds_in_no_order(tiny: RunView, seed: int) -> None:
    def shuffle(row: dict[str, Any]) -> None:
        group = int(row["group"].rpartition("-")[2])
        row["reward_high"] = int(np.random.default_rng([seed, row["step"], group]).integers(2, 5)) / 2

    assert findings(tampered(tiny, each(shuffle)), SCALE) == {}


def test_a_lowest_reward_for_all_is_told_first_and_the_scorer_suspected_after_it() -> None:
    report = diagnose(healthy(**{REWARD: -1.0, SPREAD: 0.0, "advantage/dead/share": 1.0}))
    assert report.findings[0].id == CONSTANT
    told = {f.id: (f.severity, f.confidence) for f in report.findings}
    for id in ("reward.gold-rejected", "reward.strict-parser"):
        assert told[id] == (NOTE, Confidence.LOW)
