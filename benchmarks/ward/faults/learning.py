"""The optimiser: rates, schedules, skipped updates, weights that do not move, gradients that do not add up."""

import random
from dataclasses import replace
from typing import Any

import torch
from benchmarks.ward.fault import Fault, Strength, of_plant, of_settings
from benchmarks.ward.faults.known import known
from tests.doctor.plants import swapped

from uptrend.policy.optimiser import Applied, Optimiser
from uptrend.train import learner


def _skipping(share: float) -> Any:
    """A loss scaler that finds most gradients not finite."""

    def wrap(apply: Any) -> Any:
        chance = random.Random(0)

        def run(self: Optimiser, lr: float) -> Applied:
            if chance.random() < share:
                self._flat.gradient.zero_()
                return Applied(float("inf"), float("inf"), skipped=True)
            return apply(self, lr)  # type: ignore[no-any-return]

        return run

    return lambda: swapped(Optimiser, "apply", wrap)


def _no_backward(objective: Any) -> Any:
    """The loss is cut off from the weights: gradients are 0 everywhere."""

    def run(*x: Any) -> Any:
        loss, sums = objective(*x)
        return loss * 0.0, sums

    return run


def _spoiled(from_step: int) -> Any:
    """From some update on the loss is NaN."""

    def wrap(objective: Any) -> Any:
        calls = [0]

        def run(*x: Any) -> Any:
            loss, sums = objective(*x)
            calls[0] += 1
            bad = loss * (float("nan") if calls[0] > from_step else 1.0)
            return bad, replace(sums, policy_loss=bad.detach())

        return run

    return lambda: swapped(learner, "objective", wrap)


def _plain_descent(init: Any) -> Any:
    """Plain gradient descent, whose updates shrink with a clipped gradient."""

    def run(self: Optimiser, flat: Any, learning: Any) -> None:
        init(self, flat, learning)
        self.adamw = torch.optim.SGD([flat.values], lr=learning.lr)  # type: ignore[assignment]

    return run


FAULTS = (
    of_plant("optimiser.clip-tight", lambda: swapped(Optimiser, "__init__", _plain_descent),
             {"learning.max_grad_norm": 1e-4, "learning.lr": 1e-2}, steps=30, fix=("learning.max_grad_norm",)),
    of_settings("optimiser.lr-small", {"learning.lr": 1e-9}, {"learning.lr": 1e-8}, steps=40, seeds=1),
    of_settings("optimiser.lr-large", {"learning.lr": 1e-2}, {"learning.lr": 3e-2}, steps=40, seeds=2,
                also=("run.collapsed", "sampling.entropy-collapse"), fix=("learning.lr",)),
    Fault("optimiser.schedule", (known("schedule-eats"), Strength("warm-up of 600", settings={
        "learning.steps": 600, "learning.warmup": 600, "learning.lr": 1e-6})), steps=25,
          fix=("learning.schedule", "learning.warmup")),
    Fault("optimiser.skipped-updates", (Strength("9 of 10", _skipping(0.9)), Strength("half", _skipping(0.5))),
          also=("run.nonfinite",)),
    Fault("optimiser.frozen", (known("optimiser-elsewhere"),
                               Strength("no gradient", lambda: swapped(learner, "objective", _no_backward)))),
    Fault("optimiser.accumulation", (known("mean-by-micro-batch", learning__tokens=128),)),
    Fault("precision.update-underflow", (known("bf16-small-lr"), Strength("lr 1e-6", settings={
        "model.weights": "bf16", "learning.lr": 1e-6})), fix=("model.weights",)),
    of_plant("run.nonfinite", _spoiled(2), also=("optimiser.skipped-updates",)),
)  # fmt: skip
