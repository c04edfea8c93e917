"""What one micro-batch adds to the loss of an update.

    L = Σ_bt w_bt · (term_bt · correction_bt + beta · kl_bt) − entropy · Σ_bt v_bt · H_bt

w are the loss's weights and v the entropy's (1 / trained tokens), both made once for the whole update, so
losses, gradients and sums of micro-batches simply add up.

b = row, t = token.
"""

from dataclasses import dataclass, fields

import torch
from torch import Tensor

from uptrend.algo.batch import Batch
from uptrend.algo.correction import correction_weights
from uptrend.algo.kl import ESTIMATORS
from uptrend.algo.losses import LOSSES
from uptrend.algo.masks import within
from uptrend.config.schema import Estimator, Learning


@dataclass(frozen=True)
class Sums:
    """Detached scalars that add up over micro-batches; the loss is policy + kl − entropy bonus.

    They stay tensors, so that a micro-batch does not wait for the device.
    """

    policy_loss: Tensor
    """Σ w · term · correction."""
    kl_loss: Tensor
    """beta · Σ w · kl."""
    entropy_bonus: Tensor
    """entropy · Σ v · H."""
    clipped_low: Tensor
    """Trained tokens whose gradient the lower clip cut."""
    clipped_high: Tensor
    """Trained tokens whose gradient the upper clip cut."""
    ratio: Tensor
    """Σ π/π_old over trained tokens."""
    kl: Tensor
    """Σ k3 to the reference over trained tokens, whatever the estimator; 0 without a reference."""
    entropy: Tensor
    """Σ H over trained tokens."""
    tokens: Tensor
    """How many tokens are trained."""

    def __add__(self, other: "Sums") -> "Sums":
        """The sums over both."""
        return Sums(*(getattr(self, f.name) + getattr(other, f.name) for f in fields(self)))


def objective(logprobs_bt: Tensor, entropy_bt: Tensor, batch: Batch, learning: Learning) -> tuple[Tensor, Sums]:
    """The micro-batch's part of the loss, and its sums; the two tensors are the learner's, now."""
    mask_bt, clips = batch.mask_bt, (learning.clip_low, learning.clip_high)
    old_bt = logprobs_bt.detach() if batch.old_bt is None else batch.old_bt
    terms = LOSSES[learning.loss].terms(logprobs_bt, old_bt, batch.advantages_bt, mask_bt, batch.rollouts_b, *clips)
    policy = (batch.weights_bt * terms.loss_bt * _correction(old_bt, batch, learning)).sum()
    kl = learning.kl.beta * (batch.weights_bt * _kl(logprobs_bt, batch, learning.kl.estimator)).sum()
    entropy_bt = within(entropy_bt, mask_bt)
    bonus = learning.entropy * (batch.entropy_weights_bt * entropy_bt).sum()
    sums = Sums(
        policy_loss=policy.detach(),
        kl_loss=kl.detach(),
        entropy_bonus=bonus.detach(),
        clipped_low=terms.clipped_low_bt.sum(),
        clipped_high=terms.clipped_high_bt.sum(),
        ratio=terms.ratio_bt.sum(),
        kl=_kl(logprobs_bt.detach(), batch, "k3").sum(),
        entropy=entropy_bt.detach().sum(),
        tokens=mask_bt.sum(),
    )
    return policy + kl - bonus, sums


def _correction(old_bt: Tensor, batch: Batch, learning: Learning) -> Tensor:
    """The truncated importance weights from sampler to learner; ones where none are asked for."""
    sampler_bt = old_bt if batch.sampler_bt is None else batch.sampler_bt
    level, cap = learning.correction, learning.correction_cap
    return correction_weights(old_bt, sampler_bt, batch.mask_bt, batch.rollouts_b, level=level, cap=cap)


def _kl(logprobs_bt: Tensor, batch: Batch, estimator: Estimator) -> Tensor:
    """The estimator by token; 0 without a reference, and for k1, which acts in the reward."""
    if batch.reference_bt is None or estimator == "k1":
        return torch.zeros_like(logprobs_bt)
    # Masked before the exponential: what lies outside must not overflow into the gradient.
    inside = within(logprobs_bt, batch.mask_bt), within(batch.reference_bt, batch.mask_bt)
    return ESTIMATORS[estimator](*inside)
