"""AdamW over the flat weights, the schedule of its learning rate, and clipping.

AdamW: Loshchilov and Hutter, "Decoupled weight decay regularization" (ICLR 2019).
"""

import math
from dataclasses import dataclass

import torch

from uptrend.config import Learning
from uptrend.policy.weights import FlatWeights


@dataclass(frozen=True)
class Applied:
    """Result of one optimizer call."""

    norm_before: float  # the gradient's length as it came
    norm_after: float  # its length after clipping
    skipped: bool  # true where the gradient was not finite and the weights were left alone


class Optimizer:
    """One AdamW over one long parameter."""

    def __init__(self, flat: FlatWeights, learning: Learning) -> None:
        self._flat, self._max_norm = flat, learning.max_grad_norm
        self._decay, self._decayed = learning.weight_decay, flat.decayed()
        betas = (learning.beta1, learning.beta2)
        # Decay is made here, since it spares norms and biases and AdamW would decay the one parameter whole.
        self.adamw = torch.optim.AdamW([flat.values], lr=learning.lr, betas=betas, weight_decay=0.0, fused=True)

    @property
    def has_memory(self) -> bool:
        """True after the first step, which makes AdamW's memory."""
        return bool(self.adamw.state)

    def apply(self, lr: float) -> Applied:
        """Clip, step, and clear the gradient; a gradient that is not finite is counted, not applied."""
        gradient = self._flat.gradient
        norm = float(torch.linalg.vector_norm(gradient, dtype=torch.float32))
        if not math.isfinite(norm):
            gradient.zero_()
            return Applied(norm, norm, skipped=True)
        shrink = min(1.0, self._max_norm / (norm + 1e-6)) if self._max_norm > 0 else 1.0
        if shrink < 1.0:
            gradient.mul_(shrink)
        for group in self.adamw.param_groups:
            group["lr"] = lr
        if self._decay > 0 and self._decayed:
            torch._foreach_mul_(self._decayed, 1 - lr * self._decay)
        self.adamw.step()
        gradient.zero_()
        return Applied(norm, norm * shrink, skipped=False)


def learning_rate(learning: Learning, step: int) -> float:
    """Return the learning rate of a step, from 1: a linear warm-up, then constant, or down to 0 after the last step."""
    if step <= learning.warmup:
        return learning.lr * step / learning.warmup
    if learning.schedule == "constant":
        return learning.lr
    gone = (step - 1 - learning.warmup) / max(1, learning.steps - learning.warmup)
    if learning.schedule == "linear":
        return learning.lr * (1 - gone)
    return learning.lr * 0.5 * (1 + math.cos(math.pi * gone))
