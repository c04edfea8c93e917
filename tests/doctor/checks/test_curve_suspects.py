"""Hidden causes that an alarm suggests where only scalars were kept, and their silence without one."""

import numpy as np

from curve_runs import findings, flat, healthy, severities
from uptrend.doctor.diagnose import diagnose
from uptrend.records import RunView, Severity

DEAD, STD = "advantage/dead/share", "reward/std"
ENTROPY, CUT = "learner/entropy/mean", "sampling/ended/length/share"
PART = "reward/part/exact"


def dead(share: float = 1.0, reward: float = 0.1, **bent: object) -> RunView:
    return healthy(**{DEAD: share, "reward/mean": flat(reward, noise=0.02), **bent})


def test_rollouts_that_are_copies_from_the_first_step_on() -> None:
    view = dead(0.8, 0.6, **{ENTROPY: 0.04})
    assert set(findings(view, "suspects")) == {"sampling.temperature-low"}
    assert diagnose(view).findings[0].id == "sampling.temperature-low"
    late = dead(0.8, 0.6, **{ENTROPY: np.where(np.arange(120) < 30, 0.7, 0.04)})
    assert findings(late, "suspects") == {}


def test_completions_that_are_cut_where_groups_fail_alike() -> None:
    cut = {CUT: 1.0, "reward/max": 1.0, "reward/min": 0.0}
    assert set(findings(dead(0.8, **cut, **{"sampling/length/max": 2.0}), "suspects")) == {
        "context.completion-truncated"
    }
    assert set(findings(dead(0.8, **cut, **{"sampling/length/max": 512.0}), "suspects")) == {"sampling.no-stop"}
    assert findings(dead(0.8, 0.95, **cut), "suspects") == {}, "a terse task that is solved loses nothing"


def test_no_alarm_no_suspicion() -> None:
    quiet = {ENTROPY: 0.04, CUT: 1.0, f"{PART}/mean": flat(0.1), f"{PART}/std": 0.0}
    assert findings(healthy(**quiet, **{"reward/mean": flat()}), "suspects") == {}
    assert findings(healthy(**{DEAD: 0.8, ENTROPY: 0.04}), "suspects") == {}, "it learns all the same"


def test_no_suspicion_where_rollouts_can_be_asked() -> None:
    assert findings(dead(0.8, 0.6, **{ENTROPY: 0.04}, rollout_steps=(1, 2)), "suspects") == {}


def test_a_gradient_that_never_arrives() -> None:
    still = {"gradient/norm/before": 0.0, "reward/mean": flat(), "kl/reference/mean": 1e-7}
    assert severities(healthy(**still), "gradient_absent") == {"optimizer.frozen": Severity.CRITICAL}
    assert findings(healthy(**still | {"kl/reference/mean": 0.05}), "gradient_absent") == {}, "the policy did move"
    assert findings(dead(0.99, **{"gradient/norm/before": 0.0}), "gradient_absent") == {}, "dead groups have none"
    assert findings(healthy(**{"gradient/norm/before": 0.0}), "gradient_absent") == {}, "one that learns has one"


def test_completions_without_a_token() -> None:
    empty = {"sampling/length/mean": 0.0, "reward/mean": np.nan}
    nothing = healthy(nonfinite={"learner/entropy/mean": (1, 2, 3)}, **empty)
    assert severities(nothing, "completions_empty") == {"context.prompt-truncated": Severity.CRITICAL}
    assert findings(healthy(nonfinite={"learner/entropy/mean": (1, 2)}, **empty), "nonfinite") == {}
    assert findings(healthy(), "completions_empty") == {}
