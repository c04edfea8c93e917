"""The mathematics of learning from rewards: pure functions on tensors, no model and no loop.

    rewards ─ advantages ─┐
    roles   ─ masks ──────┼─ prepare (weights, once per update) ─ objective (one micro-batch) ─ loss, sums
    log-probabilities ────┘                  losses

Every loss is Σ_bt weight_bt · term_bt. The weights are computed once, over all that one optimizer
update sees, so micro-batches only add up: their size changes memory and speed, never the gradient.

Shapes, in the names of tensors: b = row (one sequence of a rollout), t = token (padded), n =
rollout. Log-probabilities stand at the token that they score. What lies outside the loss mask may
hold anything.
"""  # noqa: E501 (a table)

from uptrend.algo.advantages import advantages
from uptrend.algo.losses import ESTIMATORS, LOSSES, Loss, Terms, kl_penalty
from uptrend.algo.masks import attended_mask, loss_mask
from uptrend.algo.objective import Batch, Sums, correction_weights, objective, prepare

__all__ = [
    "ESTIMATORS",
    "LOSSES",
    "Batch",
    "Loss",
    "Sums",
    "Terms",
    "advantages",
    "attended_mask",
    "correction_weights",
    "kl_penalty",
    "loss_mask",
    "objective",
    "prepare",
]
