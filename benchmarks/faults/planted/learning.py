"""The optimizer: rates, schedules, skipped updates, weights that do not move, gradients that do not
add up.
"""

import random
from dataclasses import replace
from typing import Any

import torch
from benchmarks.faults.fault import Alter, Fault, Strength, learner, of_parts, of_settings, wrapped

from uptrend.config import Learning
from uptrend.policy.optimizer import Applied, Optimizer
from uptrend.policy.weights import FlatWeights


class Elsewhere(Optimizer):
    """Optimizer over a copy of the weights: what it moves is not what the model uses."""

    def __init__(self, flat: FlatWeights, learning: Learning) -> None:
        super().__init__(flat, learning)
        copy = torch.nn.Parameter(flat.values.data.clone())
        copy.grad = flat.values.grad
        self.adamw = torch.optim.AdamW([copy], lr=learning.lr)


class PlainDescent(Optimizer):
    """Plain gradient descent, whose updates shrink with a clipped gradient."""

    def __init__(self, flat: FlatWeights, learning: Learning) -> None:
        super().__init__(flat, learning)
        self.adamw = torch.optim.SGD([flat.values], lr=learning.lr)  # type: ignore[assignment]


class Skipping(Optimizer):
    """Optimizer with a loss scaler that finds a share of the gradients not finite."""

    def __init__(self, flat: FlatWeights, learning: Learning, share: float) -> None:
        super().__init__(flat, learning)
        self._gradient, self._share, self._random = flat.gradient, share, random.Random(0)

    def apply(self, lr: float) -> Applied:
        """Skip some updates."""
        if self._random.random() >= self._share:
            return super().apply(lr)
        self._gradient.zero_()
        return Applied(float("inf"), float("inf"), skipped=True)


def optimizer(make: Any) -> Alter:
    """Learn with another optimizer."""
    return wrapped(optimizer=lambda _: make)


def _skipping(share: float) -> Alter:
    return optimizer(lambda flat, learning: Skipping(flat, learning, share))


def _no_backward(objective: Any) -> Any:
    """Cut the loss off from the weights: gradients are 0 everywhere."""

    def run(*given: Any) -> Any:
        loss, sums = objective(*given)
        return loss * 0.0, sums

    return run


def _spoiled(objective: Any) -> Any:
    """Make the loss NaN from the third micro-batch on."""
    calls = 0

    def run(*given: Any) -> Any:
        nonlocal calls
        calls += 1
        loss, sums = objective(*given)
        bad = loss * (float("nan") if calls > 2 else 1.0)
        return bad, replace(sums, policy_loss=bad.detach())

    return run


def _own_mean(objective: Any) -> Any:
    """Divide each micro-batch by its own tokens."""

    def run(logprobs: Any, entropy: Any, part: Any, learning: Any) -> Any:
        weights_bt = part.weights_bt / part.weights_bt.sum().clamp(min=1e-9)
        return objective(logprobs, entropy, replace(part, weights_bt=weights_bt), learning)

    return run


def _decayed(rate: Any) -> Any:
    return lambda learning, step: rate(learning, step) * 0.8**step


FAULTS = (
    of_parts("optimizer.clip-tight", optimizer(PlainDescent), {"learning.max_grad_norm": 1e-4, "learning.lr": 1e-2},
             steps=30, fix=("learning.max_grad_norm",)),
    of_settings("optimizer.lr-small", {"learning.lr": 1e-9}, {"learning.lr": 1e-8}, steps=40, seeds=1,
                probe="step-size"),
    of_settings("optimizer.lr-large", {"learning.lr": 1e-2}, {"learning.lr": 3e-2}, steps=40, seeds=2,
                also=("run.collapsed", "sampling.entropy-collapse"), fix=("learning.lr",)),
    Fault("optimizer.schedule", (
        Strength("schedule-eats", learner(schedule=_decayed), probe="schedule"),
        Strength("warm-up of 600", settings={"learning.steps": 600, "learning.warmup": 600, "learning.lr": 1e-6})),
        steps=25, fix=("learning.schedule", "learning.warmup")),
    Fault("optimizer.skipped-updates", (Strength("9 of 10", _skipping(0.9)), Strength("half", _skipping(0.5))),
          also=("run.nonfinite",)),
    Fault("optimizer.frozen", (Strength("optimizer-elsewhere", optimizer(Elsewhere), probe="movement"),
                               Strength("no gradient", learner(objective=_no_backward)))),
    Fault("optimizer.accumulation", (Strength("mean-by-micro-batch", learner(objective=_own_mean), {
        "learning.tokens": 128}, probe="accumulation"),)),
    Fault("precision.update-underflow", (
        Strength("bf16-small-lr", settings={"model.weights": "bf16", "learning.lr": 5e-6}, probe="movement"),
        Strength("lr 1e-6", settings={"model.weights": "bf16", "learning.lr": 1e-6})), fix=("model.weights",)),
    of_parts("run.nonfinite", learner(objective=_spoiled), also=("optimizer.skipped-updates",)),
)  # fmt: skip
