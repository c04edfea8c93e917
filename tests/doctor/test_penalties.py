"""The weights of penalties, read off the loss where no config tells them."""

import numpy as np
import pytest

from curve_runs import flat, healthy, ramp
from uptrend.doctor.penalties import entropy_weight, kl_weight

KL, ENTROPY, LOSS = "kl/reference/mean", "learner/entropy/mean", "loss/total"


def test_a_loss_that_follows_kl_shows_beta() -> None:
    kl = np.abs(flat(0.02, noise=0.015))
    noise = flat(0.0, noise=0.003)
    assert kl_weight(healthy(**{KL: kl, LOSS: 10 * kl + noise})) == pytest.approx(10, rel=0.02)
    assert kl_weight(healthy(**{KL: kl, LOSS: noise})) == 0
    assert kl_weight(healthy(without=(LOSS,), **{KL: kl})) == 0


def test_a_loss_that_follows_entropy_shows_the_bonus_and_its_sign() -> None:
    entropy = ramp(0.7, 0.1, noise=0.02)
    assert entropy_weight(healthy(**{ENTROPY: entropy, LOSS: -0.5 * entropy})) == pytest.approx(0.5)
    assert entropy_weight(healthy(**{ENTROPY: entropy, LOSS: 5 * entropy})) == pytest.approx(-5)
    # A constant that something else adds is no bonus, though a steady entropy is a constant too.
    assert entropy_weight(healthy(**{ENTROPY: flat(0.7, noise=0.02), LOSS: ramp(3.5, 3.5, noise=0.01, seed=2)})) == 0
    assert entropy_weight(healthy()) == 0


def test_the_config_goes_before_the_loss() -> None:
    kl = np.abs(flat(0.02, noise=0.015))
    view = healthy(config={"learning": {"kl": {"beta": 0.04}, "entropy": 0.01}}, **{KL: kl, LOSS: 10 * kl})
    assert (kl_weight(view), entropy_weight(view)) == (0.04, 0.01)
