"""Distance from the reference, on curves."""

from typing import Any

import numpy as np
import pytest

from curve_runs import findings, flat, healthy, lacks, ramp, severities
from uptrend.records import Severity

REWARD, KL, LOSS, NORM = "reward/mean", "kl/reference/mean", "loss/total", "gradient/norm/before"
NOTE, WARNING, CRITICAL = Severity.NOTE, Severity.WARNING, Severity.CRITICAL
STILL = {KL: 2e-5, REWARD: flat()}
DEAD = {"advantage/dead/share": 0.99, REWARD: flat(0.5, noise=0.02)}
HELD_KL = np.concatenate([[0.0], np.abs(flat(0.006, 119, 0.003))])
RULED = np.concatenate([[2.0], np.full(119, 20.0)])
HELD = {REWARD: flat(), KL: HELD_KL, LOSS: 10 * HELD_KL, NORM: RULED, "config": {}}


def beta(value: float) -> dict[str, Any]:
    return {"config": {"learning": {"kl": {"beta": value}}}}


CASES: dict[str, tuple[dict[str, Any], dict[str, Severity]]] = {
    "healthy": ({}, {}),
    "runs away for nothing": ({KL: ramp(0, 3), REWARD: flat()}, {"kl.runaway": WARNING}),
    "runs away for a reward": ({KL: ramp(0, 3)}, {"kl.runaway": NOTE}),
    "a heavy penalty strangles": (STILL | beta(1.0), {"kl.strangles": WARNING}),
    "a light one does not": (STILL | beta(0.001), {}),
    "a penalty that only the loss gives away": (HELD, {"kl.strangles": WARNING}),
    "a light one in the loss": (HELD | {LOSS: 0.01 * HELD_KL}, {}),
    "one that does not rule the gradient": (HELD | {NORM: 2.0}, {}),
    "another reference": ({KL: 0.3 + 0.05 * np.linspace(0, 1, 120)}, {"kl.reference": WARNING}),
    "a first step that already moved": ({KL: np.concatenate([[0.03], np.full(119, 0.5)])}, {}),
    "an estimator that can't be negative": ({KL: ramp(0, -0.5)}, {"kl.sign": CRITICAL}),
    "an estimator that may be": ({KL: ramp(0, -0.5), "trainer": "verl"}, {}),
    "dead groups leave the pull": (DEAD | beta(0.04), {"kl.dead-group-pull": WARNING}),
    "dead groups without a known penalty": (DEAD, {"kl.dead-group-pull": NOTE}),
    "dead groups without a penalty": (DEAD | beta(0.0), {}),
}


@pytest.mark.parametrize(("bent", "expected"), CASES.values(), ids=CASES)
def test_kl(bent: dict[str, Any], expected: dict[str, Severity]) -> None:
    assert severities(healthy(**bent), "kl.") == expected


def test_the_evidence_is_the_level_at_the_end() -> None:
    found = findings(healthy(**{KL: ramp(0, 3), REWARD: flat()}), "kl.runaway")["kl.runaway"]
    assert found.evidence[0].value == pytest.approx(2.63, abs=0.05)


def test_a_kl_that_was_not_logged_or_not_computed() -> None:
    for view in (healthy(without=(KL,)), healthy(**{KL: 0.0})):
        assert lacks(view, "kl.") == {"kl.runaway", "kl.strangles", "kl.reference", "kl.sign", "kl.dead-group-pull"}
