"""Checks of KL, rates, weights and the gap between sampler and learner on curves."""

import numpy as np
import pytest

from curve_runs import evaluations, findings, flat, healthy, lacks, ramp, severities
from uptrend.records import RunView, Severity

EMPTY = RunView(source="log", trainer="unknown", name="", steps=np.arange(30), metrics={})
KL = "kl/reference/mean"


def test_kl_that_runs_away_for_nothing() -> None:
    view = healthy(**{KL: ramp(0, 3), "reward/mean": flat()})
    found = findings(view, "kl")["kl.runaway"]
    assert found.severity is Severity.WARNING
    assert found.evidence[0].value == pytest.approx(2.63, abs=0.05)
    assert severities(healthy(**{KL: ramp(0, 3)}), "kl") == {"kl.runaway": Severity.NOTE}
    assert findings(healthy(), "kl") == {}


def test_a_heavy_penalty_strangles() -> None:
    still = {KL: 2e-5, "reward/mean": flat()}
    view = healthy(config={"learning": {"kl": {"beta": 1.0}}}, **still)
    assert severities(view, "kl") == {"kl.strangles": Severity.WARNING}
    assert findings(healthy(config={"learning": {"kl": {"beta": 0.001}}}, **still), "kl") == {}


def test_kl_at_the_first_step() -> None:
    off = healthy(**{KL: 0.3 + 0.05 * np.linspace(0, 1, 120)})
    assert severities(off, "kl") == {"kl.reference": Severity.WARNING}
    ramps = healthy(**{KL: np.concatenate([[0.03], np.full(119, 0.5)])})
    assert findings(ramps, "kl") == {}


def test_an_estimator_that_cannot_be_negative() -> None:
    view = healthy(**{KL: ramp(0, -0.5)})
    assert severities(view, "kl") == {"kl.sign": Severity.CRITICAL}
    assert findings(healthy(trainer="verl", **{KL: ramp(0, -0.5)}), "kl") == {}


def test_dead_groups_leave_the_pull_of_the_penalty() -> None:
    dead = {"advantage/dead/share": 0.99, "reward/mean": flat(0.5, noise=0.02)}
    view = healthy(config={"learning": {"kl": {"beta": 0.04}}}, **dead)
    assert severities(view, "kl")["kl.dead-group-pull"] is Severity.WARNING
    assert severities(healthy(**dead), "kl")["kl.dead-group-pull"] is Severity.NOTE
    assert findings(healthy(config={"learning": {"kl": {"beta": 0.0}}}, **dead), "kl") == {}


def test_no_kl() -> None:
    assert "kl.runaway" in lacks(healthy(without=(KL,)), "kl")
    assert "kl.runaway" in lacks(healthy(**{KL: 0.0}), "kl")


def test_a_rate_too_small_to_move_the_policy() -> None:
    view = healthy(**{KL: ramp(0.0002, 0.0004), "reward/mean": flat()})
    assert severities(view, "learning_rate") == {"optimizer.lr-small": Severity.WARNING}
    # One that leaves ever faster is on its way.
    leaving = healthy(**{KL: 1e-5 * np.exp(ramp(0, 6)), "reward/mean": flat()})
    assert severities(leaving, "learning_rate") == {"optimizer.lr-small": Severity.NOTE}
    assert findings(healthy(), "learning_rate") == {}
    assert "optimizer.lr-small" in lacks(healthy(without=(KL,)), "learning_rate")


def test_a_rate_too_small_by_the_weights() -> None:
    moved = {"weights/update/norm": 1e-5, "weights/norm": 47.0}
    view = healthy(without=(KL,), **moved, **{"reward/mean": flat()})
    assert severities(view, "learning_rate") == {"optimizer.lr-small": Severity.WARNING}
    assert findings(healthy(without=(KL,), **moved), "learning_rate") == {}
    # Rewards of a few tasks a step may be too noisy to rise, while the model plainly learns.
    learned = healthy(without=(KL,), **moved, **{"reward/mean": flat()}, evals=evaluations(0.38, 0.66))
    assert findings(learned, "learning_rate") == {}
    barely = healthy(without=(KL,), **moved, **{"reward/mean": flat()}, evals=evaluations(0.38, 0.42))
    assert severities(barely, "learning_rate") == {"optimizer.lr-small": Severity.WARNING}


def test_a_rate_too_large() -> None:
    clipped = healthy(**{"clip/high/share": 0.4, "reward/mean": flat()})
    assert severities(clipped, "learning_rate") == {"optimizer.lr-large": Severity.WARNING}
    rewards = np.concatenate([ramp(0.3, 0.8, 40, 0.03), flat(0.05, 80, 0.02)])
    fallen = healthy(**{"reward/mean": rewards, "optimizer/lr": 1e-4})
    assert severities(fallen, "learning_rate") == {"optimizer.lr-large": Severity.WARNING}
    late = healthy(**{"reward/mean": rewards, "optimizer/lr": np.where(np.arange(120) < 30, 1e-4, 1e-6)})
    assert findings(late, "learning_rate") == {}


def test_a_rate_too_large_by_the_weights() -> None:
    leaps = {"weights/update/norm": 1.5, "weights/norm": 47.0}
    view = healthy(**leaps, **{"reward/mean": flat()})
    assert severities(view, "learning_rate") == {"optimizer.lr-large": Severity.WARNING}
    assert findings(healthy(**leaps), "learning_rate") == {}
    small = healthy(**{"weights/update/norm": 0.06, "weights/norm": 47.0, "reward/mean": flat()})
    assert findings(small, "learning_rate") == {}


def test_a_schedule_that_ate_the_run() -> None:
    view = healthy(config={"learning": {"lr": 1e-5}}, **{"optimizer/lr": ramp(0, 1.4e-7), "reward/mean": flat()})
    assert severities(view, "learning_rate") == {"optimizer.schedule": Severity.WARNING}


def test_steps_without_a_gradient_and_skipped_updates() -> None:
    dead = healthy(**{"gradient/norm/before": np.where(np.arange(120) % 3 == 0, 0.0, 0.5), "reward/mean": flat()})
    assert severities(dead, "learning_rate") == {"optimizer.dead-steps": Severity.WARNING}
    skipped = np.where(np.arange(120) % 2 == 0, 1, 0)
    view = healthy(**{"optimizer/skipped/count": skipped, "optimizer/updates/count": 1 - skipped})
    found = findings(view, "learning_rate")["optimizer.skipped-updates"]
    assert (found.severity, found.evidence[0].step) == (Severity.CRITICAL, 1)


def test_tight_clipping_is_a_fault_of_sgd_alone() -> None:
    large = {"gradient/norm/before": 5.0}
    sgd = healthy(config={"learning": {"optimizer": "sgd", "max_grad_norm": 0.01}}, **large)
    assert severities(sgd, "clip_tight") == {"optimizer.clip-tight": Severity.WARNING}
    assert findings(healthy(config={"learning": {"max_grad_norm": 0.01}}, **large), "clip_tight") == {}


def test_updates_that_round_to_nothing() -> None:
    few = {"weights/changed/share": 0.03, "weights/update/norm": 0.01}
    assert severities(healthy(**few, **{"reward/mean": flat()}), "precision") == {
        "precision.update-underflow": Severity.CRITICAL
    }
    assert severities(healthy(**few), "precision") == {"precision.update-underflow": Severity.WARNING}
    assert findings(healthy(**{"weights/changed/share": 0.999, "weights/update/norm": 0.01}), "precision") == {}


def test_frozen_weights_and_steps_that_had_no_gradient() -> None:
    frozen = healthy(**{"weights/changed/share": 0.0, "weights/update/norm": 0.0})
    assert severities(frozen, "precision") == {"optimizer.frozen": Severity.CRITICAL}
    idle = healthy(**{"weights/update/norm": 0.0, "gradient/norm/before": 0.0})
    assert findings(idle, "precision") == {}
    assert lacks(healthy(), "precision") == {"precision.update-underflow", "optimizer.frozen"}


def test_a_sampler_that_never_gets_the_weights() -> None:
    view = healthy(**{"sampler/kl/mean": ramp(1e-5, 0.4)})
    assert severities(view, "sampler_gap") == {"sync.stale-weights": Severity.CRITICAL}
    # A policy that turns to noise widens every gap.
    noisy = healthy(**{"sampler/kl/mean": ramp(1e-5, 0.05), "learner/entropy/mean": ramp(0.2, 6)})
    assert findings(noisy, "sampler_gap") == {}


@pytest.mark.parametrize(
    ("metric", "value"), [("sampler/kl/mean", 0.5), ("sampler/ratio/mean", 0.2), ("sampler/ess/share", 0.1)]
)
def test_a_sampler_that_disagrees_from_the_start(metric: str, value: float) -> None:
    found = findings(healthy(**{metric: value}), "sampler_gap")["precision.mismatch"]
    assert (found.severity, found.evidence[0].metric) == (Severity.CRITICAL, metric)


def test_a_gap_that_opens_late_and_a_healthy_one() -> None:
    late = healthy(**{"sampler/ess/share": ramp(1.0, 0.1)})
    assert severities(late, "sampler_gap") == {"sync.off-policy": Severity.WARNING}
    assert findings(healthy(**{"sampler/kl/mean": 0.002, "sampler/ratio/mean": 1.0}), "sampler_gap") == {}
    assert lacks(EMPTY, "sampler_gap") == {"precision.mismatch", "sync.stale-weights", "sync.off-policy"}


def test_dropout_in_the_learner() -> None:
    off = {"learner/ratio/mean": ramp(1.0, 1.0, noise=0.02)}
    assert severities(healthy(trainer="uptrend", **off), "sampler_gap") == {"policy.dropout-on": Severity.WARNING}
    twice = healthy(trainer="uptrend", config={"learning": {"updates": 2}}, **off)
    assert findings(twice, "sampler_gap") == {}
