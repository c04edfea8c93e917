"""The loss of one update, as the sum of what its micro-batches add.

    L = Σ_bt w_bt · (term_bt · correction_bt + beta · kl_bt) − entropy · Σ_bt v_bt · H_bt

w are the loss's weights and v the entropy's (1 / trained tokens), both made once for the whole
update (`prepare`), so losses, gradients and sums of micro-batches (`objective`) simply add up.

b = row, t = token.
"""

from dataclasses import dataclass, fields, replace

import torch
from torch import Tensor

from uptrend.algo.losses import ESTIMATORS, LOSSES, Clips, mean_of_tokens
from uptrend.algo.masks import number_rollouts, rollout_sum, within
from uptrend.config.schema import Estimator, Learning


@dataclass(frozen=True)
class Batch:
    """The tokens of one optimizer update, or of one of its micro-batches."""

    mask_bt: Tensor
    rollouts_bt: Tensor
    """Number of the rollout that each token belongs to."""
    advantages_bt: Tensor
    weights_bt: Tensor
    """Each token's weight in the loss, from counts over the whole update."""
    entropy_weights_bt: Tensor
    """The same in the entropy bonus: the mean over all trained tokens of the update."""
    old_bt: Tensor | None
    """Log-probabilities before the step's first update; None where this is the first: they are the
    same.
    """
    sampler_bt: Tensor | None
    """The sampler's log-probabilities, for a correction."""
    reference_bt: Tensor | None
    """The reference's log-probabilities, for a KL penalty."""
    count: int
    """Number of rollouts of the update."""

    def tokens(self, rows_m: Tensor, places_m: Tensor, is_real_m: Tensor) -> "Batch":
        """Return some of the tokens, by row and place, as one row: a micro-batch. Those not real
        only fill up.

        All of a rollout's have to be among them where the loss or the correction sums over
        rollouts.
        """
        tensors = {f.name: getattr(self, f.name) for f in fields(self) if f.name.endswith("_bt")}
        index_m = rows_m * self.mask_bt.shape[1] + places_m
        some = {name: x.reshape(-1)[index_m][None] for name, x in tensors.items() if x is not None}
        some["mask_bt"] &= is_real_m
        return replace(self, **some)


def prepare(
    mask_bt: Tensor,
    rollouts_b: Tensor,
    advantages_bt: Tensor,
    learning: Learning,
    max_tokens: int,
    *,
    old_bt: Tensor | None = None,
    sampler_bt: Tensor | None = None,
    reference_bt: Tensor | None = None,
) -> Batch:
    """Weigh the tokens of one whole update; `max_tokens` is the most that a rollout may sample."""
    assert sampler_bt is not None or learning.correction == "none", (
        "a correction needs the sampler's log-probabilities"
    )
    assert reference_bt is not None or learning.kl.beta == 0, (
        "a KL penalty needs the reference's log-probabilities"
    )
    loss = LOSSES[learning.loss]
    rollouts_bt, count = number_rollouts(rollouts_b, mask_bt)
    return Batch(
        mask_bt=mask_bt,
        rollouts_bt=rollouts_bt,
        advantages_bt=advantages_bt,
        weights_bt=loss.weights(mask_bt, rollouts_bt, count, max_tokens),
        entropy_weights_bt=mean_of_tokens(mask_bt, rollouts_bt, count, max_tokens),
        old_bt=old_bt,
        sampler_bt=sampler_bt,
        reference_bt=reference_bt,
        count=count,
    )


@dataclass(frozen=True)
class Sums:
    """Detached scalars that add up over micro-batches; the loss is policy + kl − entropy bonus."""

    # They stay tensors, so that a micro-batch does not wait for the device.

    policy_loss: Tensor
    kl_loss: Tensor
    entropy_bonus: Tensor
    clipped_low: Tensor
    """Trained tokens whose gradient the lower clip cut."""
    clipped_high: Tensor
    ratio: Tensor
    """Σ π/π_old over trained tokens."""
    kl: Tensor
    """Σ k3 to the reference over trained tokens, whatever the estimator; 0 without a reference."""
    entropy: Tensor
    """Σ H over trained tokens."""
    correction: Tensor
    """Σ of the weights that correct for the sampler, over trained tokens."""
    masked: Tensor
    """Trained tokens that a correction leaves out."""
    tokens: Tensor

    def __add__(self, other: "Sums") -> "Sums":
        return Sums(*(getattr(self, f.name) + getattr(other, f.name) for f in fields(self)))


def objective(
    logprobs_bt: Tensor, entropy_bt: Tensor, batch: Batch, learning: Learning
) -> tuple[Tensor, Sums]:
    """Return the micro-batch's part of the loss, and its sums; the two tensors are the learner's,
    now.
    """
    mask_bt = batch.mask_bt
    clips = Clips.of(learning)
    old_bt = logprobs_bt.detach() if batch.old_bt is None else batch.old_bt
    sampler_bt = old_bt if batch.sampler_bt is None else batch.sampler_bt
    rollouts = batch.rollouts_bt, batch.count
    terms = LOSSES[learning.loss].terms(
        logprobs_bt, old_bt, batch.advantages_bt, mask_bt, *rollouts, clips
    )
    correction_bt = correction_weights(old_bt, sampler_bt, mask_bt, *rollouts, learning)
    policy = (batch.weights_bt * terms.loss_bt * correction_bt).sum()
    kl = (
        learning.kl.beta * (batch.weights_bt * _kl(logprobs_bt, batch, learning.kl.estimator)).sum()
    )
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
        correction=within(correction_bt, mask_bt).sum(),
        masked=((correction_bt == 0) & mask_bt).sum(),
        tokens=mask_bt.sum(),
    )
    return policy + kl - bonus, sums


def correction_weights(
    learner_bt: Tensor,
    sampler_bt: Tensor,
    mask_bt: Tensor,
    rollouts_bt: Tensor,
    count: int,
    learning: Learning,
) -> Tensor:
    """Return importance weights from sampler to learner, truncated or masked, by token: [B, T], no
    gradient.

    With correction "sequence" the ratio is the product over all trained tokens of the rollout.
    """
    # A sampler in another precision, with other kernels or with older weights gives the same tokens
    # other probabilities. The ratio corrects the expectation, and truncating it bounds the
    # variance, at the price of a little bias (Ionides 2008, "Truncated Importance Sampling").
    # Masking trusts no token whose ratio is outside the bounds: such a token is rather a fault of
    # the sampler than news (IcePop 2025, in Ring-1T, arXiv 2510.18855).
    log_ratio_bt = within(learner_bt - sampler_bt, mask_bt).detach()
    if learning.correction == "none":
        return torch.ones_like(log_ratio_bt)
    if learning.correction == "sequence":
        log_ratio_bt = rollout_sum(log_ratio_bt, rollouts_bt, count)
    ratio_bt = log_ratio_bt.exp()
    low = learning.correction_floor
    high = learning.correction_cap
    if learning.correction_mode == "truncate":
        return ratio_bt.clamp(low, high)
    return ratio_bt.masked_fill((ratio_bt < low) | (ratio_bt > high), 0)


def _kl(logprobs_bt: Tensor, batch: Batch, estimator: Estimator) -> Tensor:
    """Return the estimator by token; 0 without a reference, and for k1, which acts in the
    reward.
    """
    if batch.reference_bt is None or estimator == "k1":
        return torch.zeros_like(logprobs_bt)
    # Masked before the exponential: what lies outside must not overflow into the gradient.
    inside = within(logprobs_bt, batch.mask_bt), within(batch.reference_bt, batch.mask_bt)
    return ESTIMATORS[estimator](*inside)
