"""The optimizer: rates, schedules, skipped updates, weights that do not move, gradients that do not add up."""

import random
from dataclasses import replace
from typing import Any

import torch
from benchmarks.faults.fault import Fault, Strength, of_plant, of_settings
from benchmarks.faults.planted.known import known
from tests.doctor.planted_faults import swapped

from uptrend.policy.optimizer import Applied, Optimizer
from uptrend.training import learner


def _skipping(share: float) -> Any:
    """A loss scaler that finds most gradients not finite."""

    def wrap(apply: Any) -> Any:
        chance = random.Random(0)

        def run(self: Optimizer, lr: float) -> Applied:
            if chance.random() < share:
                self._flat.gradient.zero_()
                return Applied(float("inf"), float("inf"), skipped=True)
            return apply(self, lr)  # type: ignore[no-any-return]

        return run

    return lambda: swapped(Optimizer, "apply", wrap)


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

    def run(self: Optimizer, flat: Any, learning: Any) -> None:
        init(self, flat, learning)
        self.adamw = torch.optim.SGD([flat.values], lr=learning.lr)  # type: ignore[assignment]

    return run


FAULTS = (
    of_plant("optimizer.clip-tight", lambda: swapped(Optimizer, "__init__", _plain_descent),
             {"learning.max_grad_norm": 1e-4, "learning.lr": 1e-2}, steps=30, fix=("learning.max_grad_norm",)),
    of_settings("optimizer.lr-small", {"learning.lr": 1e-9}, {"learning.lr": 1e-8}, steps=40, seeds=1),
    of_settings("optimizer.lr-large", {"learning.lr": 1e-2}, {"learning.lr": 3e-2}, steps=40, seeds=2,
                also=("run.collapsed", "sampling.entropy-collapse"), fix=("learning.lr",)),
    Fault("optimizer.schedule", (known("schedule-eats"), Strength("warm-up of 600", settings={
        "learning.steps": 600, "learning.warmup": 600, "learning.lr": 1e-6})), steps=25,
          fix=("learning.schedule", "learning.warmup")),
    Fault("optimizer.skipped-updates", (Strength("9 of 10", _skipping(0.9)), Strength("half", _skipping(0.5))),
          also=("run.nonfinite",)),
    Fault("optimizer.frozen", (known("optimizer-elsewhere"),
                               Strength("no gradient", lambda: swapped(learner, "objective", _no_backward)))),
    Fault("optimizer.accumulation", (known("mean-by-micro-batch", learning__tokens=128),)),
    Fault("precision.update-underflow", (known("bf16-small-lr"), Strength("lr 1e-6", settings={
        "model.weights": "bf16", "learning.lr": 1e-6})), fix=("model.weights",)),
    of_plant("run.nonfinite", _spoiled(2), also=("optimizer.skipped-updates",)),
)  # fmt: skip
