"""Completions: entropy, lengths, endings, prompts, and groups that are all alike; on curves and on rollouts."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from curve_runs import findings, flat, healthy, lacks, ramp, severities
from tampered import Row, tampered, without
from uptrend.doctor.checks.sampling import dead_share, fit_beta
from uptrend.doctor.diagnose import diagnose
from uptrend.records import Confidence, RunView, Severity

REWARD, ENTROPY = "reward/mean", "learner/entropy/mean"
LENGTH, CUT = "sampling/length/mean", "sampling/ended/length/share"
DEAD, LONGEST, RIGHT = "advantage/dead/share", "sampling/length/max", "reward/correct/share"
NOTE, WARNING, CRITICAL = Severity.NOTE, Severity.WARNING, Severity.CRITICAL
TRUNCATED, NO_STOP, COLD = "context.completion-truncated", "sampling.no-stop", "sampling.temperature-low"
EMPTY = RunView(source="log", trainer="unknown", name="", steps=np.arange(30), metrics={})

GONE = {ENTROPY: np.exp(ramp(0, -6))}
TOP = GONE | {REWARD: flat(0.97, noise=0.01), "reward/min": 0.0, "reward/max": 1.0}
SOME_CUT = 0.4 + 0.15 * np.random.default_rng(3).standard_normal(120)
STUCK = {CUT: 1.0, REWARD: flat(-0.3), "reward/min": -1.0, "reward/max": 1.0}
PAID = {REWARD: np.concatenate([flat(0.6, 60, 0.03), flat(0.0, 60, 0.03)]),
        ENTROPY: np.concatenate([flat(0.7, 60, 0.02), flat(0.25, 60, 0.02)]), "optimizer/lr": 1e-5}  # fmt: skip
COPIES = {DEAD: 0.8, REWARD: flat(0.6, noise=0.02), ENTROPY: 0.04}
FAILING = {DEAD: 0.8, REWARD: flat(0.1, noise=0.02), CUT: 1.0, "reward/max": 1.0, "reward/min": 0.0}
COLLAPSE = "sampling.entropy-collapse"

CASES: dict[str, tuple[dict[str, Any], dict[str, Severity]]] = {
    "healthy": ({}, {}),
    "entropy that goes while the reward is flat": (GONE | {REWARD: flat()}, {COLLAPSE: WARNING}),
    "entropy that goes while the reward rises": (GONE, {COLLAPSE: NOTE}),
    "entropy that goes at the top": (TOP, {COLLAPSE: NOTE}),
    "entropy that goes below the top": (TOP | {REWARD: flat(0.7, noise=0.01)}, {COLLAPSE: WARNING}),
    "entropy that goes as the reward falls": (TOP | {REWARD: ramp(0.99, 0.92, noise=0.002)}, {COLLAPSE: WARNING}),
    "entropy spent before the run": ({ENTROPY: ramp(0.04, 0.015), REWARD: flat()}, {COLLAPSE: WARNING}),
    "entropy that a bonus of the wrong sign takes": (PAID | {"loss/total": 5 * PAID[ENTROPY]}, {COLLAPSE: WARNING}),
    "entropy that explodes": (
        {ENTROPY: ramp(0.2, 6.0), REWARD: ramp(0.8, 0.0, noise=0.03)}, {"sampling.entropy-explosion": CRITICAL}),
    "cut completions that score lower": (
        {CUT: SOME_CUT, REWARD: 0.6 - 0.5 * SOME_CUT + flat(0, noise=0.02)}, {TRUNCATED: WARNING}),
    "completions that become longer as the reward falls": (
        {CUT: ramp(0.0, 0.8), REWARD: ramp(0.8, 0.1, noise=0.03)}, {TRUNCATED: WARNING}),
    "cut completions that learn": ({CUT: 1.0}, {NO_STOP: NOTE}),
    "cut completions that stay low": (STUCK | {RIGHT: 0.02}, {NO_STOP: WARNING}),
    "more right than end by themselves": (STUCK | {RIGHT: 0.35}, {NO_STOP: NOTE}),
    "endings that name others only": ({"without": (CUT,), "sampling/ended/stop-token/share": 1.0}, {}),
    "lengths that collapse with the reward": (
        {LENGTH: ramp(200, 3), REWARD: ramp(0.8, 0.1, noise=0.03)}, {"sampling.length-collapse": WARNING}),
    "lengths that collapse while it rises": ({LENGTH: ramp(200, 3)}, {"sampling.length-collapse": NOTE}),
    "completions without a token": ({LENGTH: 0.0, REWARD: np.nan}, {"context.prompt-truncated": CRITICAL}),
    "copies from the first step on": (COPIES, {COLD: WARNING}),
    "copies where rollouts can be asked": (COPIES | {"rollout_steps": (1, 2)}, {}),
    "copies that learn": ({DEAD: 0.8, ENTROPY: 0.04}, {}),
    "no dead groups": ({REWARD: flat(), ENTROPY: 0.04}, {}),
    "cut after few tokens where groups fail": (FAILING | {LONGEST: 2.0}, {TRUNCATED: WARNING, NO_STOP: WARNING}),
    "cut with room where groups fail": (FAILING | {LONGEST: 512.0}, {NO_STOP: WARNING}),
    "cut where groups succeed": (FAILING | {REWARD: flat(0.95, noise=0.02)}, {NO_STOP: NOTE}),
    "cut where the reward is spread wrongly": (
        FAILING | {DEAD: 1.0, LONGEST: 2.0, "reward/std": 0.0}, {NO_STOP: WARNING}),
    "cut where updates are too small": (
        FAILING | {LONGEST: 512.0, "optimizer/lr": 1e-9, "config": {}}, {NO_STOP: WARNING}),
}  # fmt: skip


@pytest.mark.parametrize(("bent", "expected"), CASES.values(), ids=CASES)
def test_completions_as_curves(bent: dict[str, Any], expected: dict[str, Severity]) -> None:
    assert severities(healthy(**bent), ("sampling.", "context.")) == expected


def test_a_fall_of_entropy_that_is_normal_is_said_to_be() -> None:
    for bent, why in ((GONE, "while the reward rose"), (TOP, "near its top")):
        assert why in findings(healthy(**bent), COLLAPSE)[COLLAPSE].summary


def test_updates_that_explain_more_make_endings_less_sure() -> None:
    unmoved, _ = CASES["cut where updates are too small"]
    for bent, confidence in ((FAILING, Confidence.MEDIUM), (unmoved, Confidence.LOW)):
        assert findings(healthy(**bent), NO_STOP)[NO_STOP].confidence is confidence


def test_copies_are_the_first_suspicion() -> None:
    assert diagnose(healthy(**COPIES)).findings[0].id == COLD
    late = COPIES | {ENTROPY: np.where(np.arange(120) < 30, 0.7, 0.04)}
    assert findings(healthy(**late), COLD) == {}


def test_what_is_lacking() -> None:
    unlogged = {COLLAPSE, "sampling.entropy-explosion", NO_STOP, TRUNCATED}
    assert unlogged <= lacks(EMPTY, ("sampling.", "context."))
    assert COLLAPSE not in lacks(healthy(), "sampling.")


def repeated(rows: list[Row]) -> None:
    """Every rollout says what the first of its group says; one group is right, or another cause would explain it."""
    for n, row in enumerate(rows):
        for name in ("ids", "roles", "turns", "sampler", "versions", "weights", "attended", "advantages", "learner"):
            row[name] = rows[n - n % 8][name]
        row["correct"] = n < 8
        row["reward"] = 1.0 if row["correct"] else -1.0


def test_groups_that_say_one_thing(tiny: RunView) -> None:
    view = tampered(tiny, repeated)
    assert severities(view, COLD) == {COLD: NOTE}
    cold = replace(view, config={**view.config, "sampling": {**view.config["sampling"], "temperature": 0.1}})
    found = findings(cold, COLD)[COLD]
    assert (found.severity, found.evidence[0].value) == (WARNING, 1 / 8)

    def constant(rows: list[Row]) -> None:
        repeated(rows)
        for row in rows:
            row["reward"], row["correct"] = -1.0, False

    assert findings(tampered(tiny, constant), COLD) == {}, "a constant reward is no matter of temperature"


def test_groups_that_are_too_small(tiny: RunView) -> None:
    def shrink(rows: list[Row]) -> list[Row]:
        random = np.random.default_rng(rows[0]["step"])
        kept = [row for n, row in enumerate(rows) if n % 8 < 2]
        for row in kept:
            row["correct"] = bool(random.random() < 0.12)
            row["reward"] = 1.0 if row["correct"] else -1.0
        return kept

    found = findings(tampered(tiny, shrink), "sampling.few")["sampling.few-generations"]
    assert found.severity is WARNING
    assert found.evidence[0].value > 0.2  # type: ignore[operator]


def test_the_predicted_dead_share_is_that_of_simulated_groups() -> None:
    random = np.random.default_rng(0)
    p = random.beta(0.5, 1.5, size=200_000)
    alpha, beta = fit_beta(random.binomial(6, p) / 6, 6)
    assert (alpha, beta) == pytest.approx((0.5, 1.5), rel=0.05)
    for size in (4, 16):
        wins = random.binomial(size, p)
        assert dead_share(alpha, beta, size) == pytest.approx(np.mean((wins == 0) | (wins == size)), abs=0.01)


def test_prompts_that_do_not_fit(tiny: RunView) -> None:
    def refuse(rows: list[Row]) -> None:
        for row in rows[:8]:
            row["error"], row["reward"] = "prompt: 900 tokens exceed sampling.max_prompt = 512", None

    found = findings(tampered(tiny, refuse), "context.prompt")["context.prompt-truncated"]
    assert (found.severity, found.evidence[0].value) == (WARNING, 1 / 8)


@pytest.mark.parametrize(("times", "found"), [(1, {"context.prompt-truncated": WARNING}), (10, {})])
def test_prompts_at_the_limit_of_another_trainer(tiny: RunView, times: int, found: dict[str, Severity]) -> None:
    prompt = sum(role == 0 for role in tiny.read_rollouts(1).to_pylist()[0]["roles"])
    view = replace(tiny, trainer="trl", config={"sampling": {"max_prompt": times * prompt}})
    assert severities(view, "context.prompt") == found
    assert lacks(replace(view, config={}), "context.prompt") == {"context.prompt-truncated"}


@pytest.mark.parametrize(
    ("share", "costs", "expected"),
    [(0.4, True, {TRUNCATED}), (0.4, False, set()), (0.05, True, set()), (1.0, True, {NO_STOP}), (1.0, False, set())],
)
def test_rollouts_that_are_cut(tiny: RunView, share: float, costs: bool, expected: set[str]) -> None:
    def cut(rows: list[Row]) -> None:
        random = np.random.default_rng(rows[0]["step"])
        for row in rows:
            is_cut = random.random() < share
            row["ended"] = "length" if is_cut else "stop-token"
            row["correct"] = bool(random.random() < (0.0 if is_cut and costs else 0.6))
            row["reward"] = 1.0 if row["correct"] else -1.0

    view = tampered(tiny, cut)
    assert set(findings(view, (TRUNCATED, NO_STOP))) == expected
    assert {TRUNCATED, NO_STOP} <= lacks(without(view, "ended"), (TRUNCATED, NO_STOP))
