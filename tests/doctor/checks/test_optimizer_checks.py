"""Step sizes, on curves: updates that are not made, do not arrive, or are too small or too large."""

from typing import Any

import numpy as np
import pytest

from curve_runs import evaluations, findings, flat, healthy, lacks, ramp, severities
from uptrend.records import Confidence, Severity

REWARD, KL, LOSS, ENTROPY = "reward/mean", "kl/reference/mean", "loss/total", "learner/entropy/mean"
RATE, NORM, AFTER, DEAD = "optimizer/lr", "gradient/norm/before", "gradient/norm/after", "advantage/dead/share"
UPDATE, WEIGHTS, CHANGED = "weights/update/norm", "weights/norm", "weights/changed/share"
SKIPPED, MADE = "optimizer/skipped/count", "optimizer/updates/count"
NOTE, WARNING, CRITICAL = Severity.NOTE, Severity.WARNING, Severity.CRITICAL
CAUSES = ("optimizer.", "precision.update")

EVERY_OTHER = np.where(np.arange(120) % 2 == 0, 1.0, 0.0)
FELL = np.concatenate([ramp(0.3, 0.8, 40, 0.03), flat(0.05, 80, 0.02)])
FLAT = {REWARD: flat()}
SMALL = FLAT | {"without": (KL,), UPDATE: 1e-5, WEIGHTS: 47.0}
LEAPS = {UPDATE: 1.5, WEIGHTS: 47.0}
SHRUNK = FLAT | {AFTER: 1e-4, NORM: 5.0, RATE: 0.01, "config": {"learning": {"max_grad_norm": 1e-4}}}
NO_GRADIENT = FLAT | {NORM: 0.0, KL: 1e-7}
ROUNDED = {CHANGED: 0.03, UPDATE: 0.01}
BONUS_FALL = np.concatenate([flat(0.7, 60, 0.02), flat(0.25, 60, 0.02)])
BONUS = {REWARD: np.concatenate([flat(0.6, 60, 0.03), flat(0.0, 60, 0.03)]), ENTROPY: BONUS_FALL, RATE: 1e-5}


def clip(**learning: Any) -> dict[str, Any]:
    return {NORM: 5.0, "config": {"learning": learning}}


def warm_up(steps: int) -> dict[str, Any]:
    return {"steps": 30, REWARD: flat(steps=30), RATE: np.arange(1, 31) * 1e-6 / steps,
            "config": {"learning": {"steps": 600}}}  # fmt: skip


CASES: dict[str, tuple[dict[str, Any], dict[str, Severity]]] = {
    "healthy": ({}, {}),
    "half of the updates skipped": (
        {SKIPPED: EVERY_OTHER, MADE: 1 - EVERY_OTHER}, {"optimizer.skipped-updates": CRITICAL}),
    "one update skipped": (
        {SKIPPED: np.eye(120)[4], MADE: 20.0}, {"optimizer.skipped-updates": WARNING}),
    "one update skipped in a short run": ({"steps": 8, SKIPPED: np.eye(8)[3], MADE: 20.0, REWARD: flat(steps=8)}, {}),
    "some skipped in a short run": (
        {"steps": 8, SKIPPED: np.eye(8)[3], MADE: 2.0, REWARD: flat(steps=8)}, {"optimizer.skipped-updates": NOTE}),
    "no step of a short run made one": (
        {"steps": 3, MADE: 0.0, REWARD: flat(steps=3)}, {"optimizer.skipped-updates": CRITICAL}),
    "too few steps to judge skips": ({"steps": 4, SKIPPED: [0, 1, 0, 0], MADE: 1.0, REWARD: flat(steps=4)}, {}),
    "steps without a gradient": (
        FLAT | {NORM: np.where(np.arange(120) % 3 == 0, 0.0, 0.5)}, {"optimizer.dead-steps": WARNING}),
    "a policy that stays at its start": (FLAT | {KL: ramp(0.0002, 0.0004)}, {"optimizer.lr-small": WARNING}),
    "a policy that leaves ever faster": (FLAT | {KL: 1e-5 * np.exp(ramp(0, 6))}, {"optimizer.lr-small": NOTE}),
    "weights that hardly move": (SMALL, {"optimizer.lr-small": WARNING}),
    "weights that hardly move and learn": ({k: v for k, v in SMALL.items() if k != REWARD}, {}),
    "held-out tasks that learn": (SMALL | {"evals": evaluations(0.38, 0.66)}, {}),
    "held-out tasks that hardly do": (SMALL | {"evals": evaluations(0.38, 0.42)}, {"optimizer.lr-small": WARNING}),
    "a rate below any in use": (FLAT | {RATE: 1e-8, "config": {}}, {"optimizer.lr-small": WARNING}),
    "a rate below any in use that learns": ({RATE: 1e-8, "config": {}}, {}),
    "usual rates": (FLAT | {RATE: 5e-7, "config": {}}, {}),
    "adapters' rates": (FLAT | {RATE: 3e-4, "config": {}}, {}),
    "clipped tokens": (FLAT | {"clip/high/share": 0.4}, {"optimizer.lr-large": WARNING}),
    "clipped tokens that learn": ({"clip/high/share": 0.4}, {"optimizer.lr-large": NOTE}),
    "long updates": (FLAT | LEAPS, {"optimizer.lr-large": WARNING}),
    "long updates that learn": (LEAPS, {}),
    "updates of usual length": (FLAT | {UPDATE: 0.06, WEIGHTS: 47.0}, {}),
    "a fall at the peak of the rate": ({REWARD: FELL, RATE: 1e-4}, {"optimizer.lr-large": WARNING}),
    "a fall long after it": ({REWARD: FELL, RATE: np.where(np.arange(120) < 30, 1e-4, 1e-6)}, {}),
    "a fall with entropy": (BONUS, {"optimizer.lr-large": WARNING}),
    "a fall by an entropy bonus that only the loss gives away": (BONUS | {LOSS: 5 * BONUS_FALL}, {}),
    "a rate that breaks the model": (FLAT | {RATE: 0.01, DEAD: 0.8}, {"optimizer.lr-large": WARNING}),
    "a rate at which nothing moves": (
        FLAT | {RATE: 0.01, ENTROPY: flat(0.7, noise=0.02)},
        {"optimizer.clip-tight": WARNING, "optimizer.frozen": WARNING}),
    "a large rate at which entropy falls": (FLAT | {RATE: 0.01}, {}),
    "a schedule that ate the run": (FLAT | {RATE: ramp(0, 1.4e-7)}, {"optimizer.schedule": WARNING}),
    "a warm-up that leads nowhere": (warm_up(600), {"optimizer.schedule": WARNING}),
    "a usual warm-up": (warm_up(60), {}),
    "a clip under plain descent": (clip(optimizer="sgd", max_grad_norm=0.01), {"optimizer.clip-tight": WARNING}),
    "a clip under Adam": (clip(max_grad_norm=0.01), {}),
    "updates as long as the clip makes them": (SHRUNK | {UPDATE: 1.004e-6}, {"optimizer.clip-tight": WARNING}),
    "updates as long as Adam makes them": (SHRUNK | {UPDATE: 0.5}, {}),
    "updates that round to nothing": (FLAT | ROUNDED, {"precision.update-underflow": CRITICAL}),
    "some that do in a run that learns": (ROUNDED, {"precision.update-underflow": WARNING}),
    "updates that round to nothing in fp32": (
        FLAT | ROUNDED | {"config": {"model": {"weights": "fp32"}}}, {"optimizer.lr-small": CRITICAL}),
    "weights that all change": ({CHANGED: 0.999, UPDATE: 0.01}, {}),
    "frozen weights": ({CHANGED: 0.0, UPDATE: 0.0}, {"optimizer.frozen": CRITICAL}),
    "a gradient that never arrives": (
        NO_GRADIENT, {"optimizer.frozen": CRITICAL, "optimizer.dead-steps": WARNING, "optimizer.lr-small": WARNING}),
    "a gradient rounded to 0 while the policy moves": (NO_GRADIENT | {KL: 0.05}, {"optimizer.dead-steps": WARNING}),
    "a gradient of 0 where groups are dead": (NO_GRADIENT | {KL: 0.05, DEAD: 0.99}, {"optimizer.dead-steps": WARNING}),
    "a gradient of 0 in a run that learns": ({NORM: 0.0}, {"optimizer.dead-steps": NOTE}),
}  # fmt: skip


@pytest.mark.parametrize(("bent", "expected"), CASES.values(), ids=CASES)
def test_step_sizes(bent: dict[str, Any], expected: dict[str, Severity]) -> None:
    assert severities(healthy(**bent), CAUSES) == expected


def test_skipped_updates_with_their_share() -> None:
    found = findings(healthy(**CASES["half of the updates skipped"][0]), "optimizer.skipped")
    evidence = found["optimizer.skipped-updates"].evidence[0]
    assert (evidence.value, evidence.step) == (0.5, 1)


def test_suspicions_are_told_as_such() -> None:
    found = findings(healthy(**CASES["a rate at which nothing moves"][0]), "optimizer.")
    assert {f.confidence for f in found.values()} == {Confidence.LOW}


@pytest.mark.parametrize(
    ("bent", "lacking"),
    [
        ({"without": (KL,)}, {"optimizer.lr-small"}),
        ({"steps": 8}, {"optimizer.lr-small", "optimizer.lr-large", "optimizer.schedule", "optimizer.dead-steps"}),
        ({UPDATE: 0.01}, {"precision.update-underflow"}),
        ({MADE: 1.0}, set()),
    ],
)
def test_what_is_lacking(bent: dict[str, Any], lacking: set[str]) -> None:
    unknown = {"optimizer.skipped-updates", "optimizer.frozen", "precision.update-underflow"}
    known = {UPDATE: {"optimizer.frozen", "precision.update-underflow"}, MADE: {"optimizer.skipped-updates"}}
    left = unknown.difference(*(known.get(metric, ()) for metric in bent))
    assert lacks(healthy(**bent), CAUSES) == lacking | left
