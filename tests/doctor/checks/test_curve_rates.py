"""Rates that nobody trains with, clips that set an update's length, and penalties that the loss gives away."""

import numpy as np

from curve_runs import findings, flat, healthy, severities
from uptrend.records import Confidence, Severity

RATE, LOSS, KL = "optimizer/lr", "loss/total", "kl/reference/mean"
ENTROPY, DEAD = "learner/entropy/mean", "advantage/dead/share"
NORM = "gradient/norm/before"
FLAT = {"reward/mean": flat()}


def test_a_rate_below_any_in_use() -> None:
    assert severities(healthy(**FLAT, **{RATE: 1e-8}), "rate_by_size") == {"optimizer.lr-small": Severity.WARNING}
    for usual in (5e-7, 1e-5, 3e-4):
        assert findings(healthy(**FLAT, **{RATE: usual}), "rate_by_size") == {}
    assert findings(healthy(**{RATE: 1e-8}), "rate_by_size") == {}, "it learns all the same"


def test_a_warm_up_that_leads_nowhere() -> None:
    planned = {"config": {"learning": {"steps": 600}}}
    crawl = healthy(30, **planned, **{"reward/mean": flat(steps=30), RATE: np.arange(1, 31) * 1e-6 / 600})
    found = findings(crawl, "rate_by_size")["optimizer.schedule"]
    assert "after a tenth of 600 steps it is 1e-07" in found.summary
    # The first steps of a usual warm-up have small rates too.
    usual = healthy(30, **planned, **{"reward/mean": flat(steps=30), RATE: np.arange(1, 31) * 1e-6 / 60})
    assert findings(usual, "rate_by_size") == {}


def test_a_rate_above_any_in_use_breaks_the_model_or_never_arrives() -> None:
    broken = healthy(**FLAT, **{RATE: 0.01, DEAD: 0.8})
    assert severities(broken, "rate_by_size") == {"optimizer.lr-large": Severity.WARNING}
    still = healthy(**FLAT, **{RATE: 0.01, ENTROPY: flat(0.7, noise=0.02)})
    found = findings(still, "rate_by_size")
    assert set(found) == {"optimizer.clip-tight", "optimizer.frozen"}
    assert {f.confidence for f in found.values()} == {Confidence.LOW}
    moved = healthy(**FLAT, **{RATE: 0.01})  # its entropy falls by a third
    assert findings(moved, "rate_by_size") == {}


def test_a_clip_that_sets_the_length_of_updates_whatever_the_optimizer_is_called() -> None:
    clipped = {"gradient/norm/after": 1e-4, NORM: 5.0, RATE: 0.01, **FLAT}
    config = {"learning": {"max_grad_norm": 1e-4}}
    plain = healthy(config=config, **clipped, **{"weights/update/norm": 1.004e-6})
    assert severities(plain, "clip_tight") == {"optimizer.clip-tight": Severity.WARNING}
    adam = healthy(config=config, **clipped, **{"weights/update/norm": 0.5})
    assert findings(adam, "clip_tight") == {}


def test_a_penalty_that_only_the_loss_gives_away_strangles() -> None:
    kl = np.concatenate([[0.0], np.abs(flat(0.006, 119, 0.003))])
    norms = np.concatenate([[2.0], np.full(119, 20.0)])
    held = healthy(**FLAT, **{KL: kl, LOSS: 10 * kl, NORM: norms}, config={})
    assert severities(held, "kl") == {"kl.strangles": Severity.WARNING}
    assert findings(healthy(**FLAT, **{KL: kl, LOSS: 0.01 * kl, NORM: norms}, config={}), "kl") == {}
    # Where the gradient stays what it was, the penalty does not rule it.
    assert findings(healthy(**FLAT, **{KL: kl, LOSS: 10 * kl, NORM: 2.0}, config={}), "kl") == {}


def test_a_bonus_that_only_the_loss_gives_away_is_not_blamed_on_the_rate() -> None:
    fall = np.concatenate([flat(0.6, 60, 0.03), flat(0.0, 60, 0.03)])
    entropy = np.concatenate([flat(0.7, 60, 0.02), flat(0.25, 60, 0.02)])
    bent = {"reward/mean": fall, ENTROPY: entropy, RATE: 1e-5}
    assert "optimizer.lr-large" in findings(healthy(**bent), "learning_rate")
    paid = healthy(**bent, **{LOSS: 5 * entropy})
    assert findings(paid, "learning_rate") == {}
    assert severities(paid, "entropy") == {"sampling.entropy-collapse": Severity.WARNING}


def test_sampler_and_learner_by_their_mean_difference() -> None:
    gap = "sampler/gap/mean"
    assert findings(healthy(**{gap: 0.01}), "sampler_differs") == {}
    assert set(findings(healthy(**{gap: 0.15}), "sampler_differs")) == {"precision.mismatch"}
    assert set(findings(healthy(**{gap: 2.0}), "sampler_differs")) == {
        "precision.mismatch", "mask.attention-blind", "tokens.padding",
    }  # fmt: skip
    late = np.concatenate([[1e-6], np.full(119, 0.05)])
    assert severities(healthy(**{gap: late}), "sampler_differs") == {"sync.stale-weights": Severity.CRITICAL}
    # One that widens at the end only is a policy that turns to noise.
    assert findings(healthy(**{gap: np.linspace(0.007, 0.06, 120)}), "sampler_differs") == {}
