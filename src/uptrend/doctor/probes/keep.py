"""Everything that a probe may disturb, put back bit for bit."""

import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor

from uptrend.policy.policy import Policy


@contextmanager
def kept(policy: Policy, weights: Tensor) -> Iterator[None]:
    """Weights come back from their copy, gradients are cleared, and the rest is as `steady` leaves it."""
    try:
        with steady(policy):
            yield
    finally:
        policy.flat.values.data.copy_(weights)
        policy.flat.gradient.zero_()


@contextmanager
def steady(policy: Policy) -> Iterator[None]:
    """Random states and the model's mode come back."""
    chance = random.getstate(), np.random.get_state(), torch.get_rng_state()
    on_devices = torch.cuda.get_rng_state_all() if torch.cuda.is_available() else []
    training = policy.model.training
    try:
        yield
    finally:
        policy.model.train(training)
        random.setstate(chance[0])
        np.random.set_state(chance[1])
        torch.set_rng_state(chance[2])
        if on_devices:
            torch.cuda.set_rng_state_all(on_devices)
