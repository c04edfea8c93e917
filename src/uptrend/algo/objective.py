"""The loss of one update, as the sum of what its micro-batches add.

    L = Σ_bt w_bt · (term_bt · correction_bt + beta · kl_bt) − entropy · Σ_bt v_bt · H_bt

w are the loss's weights and v the entropy's (1 / trained tokens), both made once for the whole
update (`prepare`), so losses, gradients and sums of micro-batches (`objective`) simply add up.

b = row, t = token.
"""

from dataclasses import dataclass, fields, replace

import torch
from torch import Tensor

from uptrend.algo.losses import ESTIMATORS, Clips, find_loss, mean_of_tokens
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
    """Log-probabilities before the step's first update; None in the first, where they are the
    policy's own.
    """
    sampler_bt: Tensor | None
    """The sampler's log-probabilities, for a correction."""
    reference_bt: Tensor | None
    """The reference's log-probabilities, for a KL penalty."""
    count: int
    """Number of rollouts of the update."""

    def tokens(self, rows_m: Tensor, places_m: Tensor, is_real_m: Tensor) -> "Batch":
        """Return a micro-batch: the tokens with these rows and places, in one row. Tokens that are
        not real are filler.

        It needs all tokens of a rollout if the loss or the correction sums over rollouts.
        """
        index_m = rows_m * self.mask_bt.shape[1] + places_m
        chosen: dict[str, Tensor] = {}
        for f in fields(self):
            value = getattr(self, f.name)
            if isinstance(value, Tensor):
                chosen[f.name] = value.reshape(-1)[index_m][None]
        chosen["mask_bt"] &= is_real_m
        return replace(self, **chosen)  # type: ignore[arg-type]


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
    """Weigh the tokens of one whole update, in which a rollout may sample `max_tokens` tokens."""
    assert sampler_bt is not None or learning.correction == "none", (
        "a correction needs the sampler's log-probabilities"
    )
    assert reference_bt is not None or learning.kl.beta == 0, (
        "a KL penalty needs the reference's log-probabilities"
    )
    loss = find_loss(learning.loss)
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
    """Return the micro-batch's part of the loss, and its sums.

    `logprobs_bt` and `entropy_bt` are those of the policy as it is, with gradients.
    """
    mask_bt = batch.mask_bt
    old_bt = logprobs_bt.detach() if batch.old_bt is None else batch.old_bt
    sampler_bt = old_bt if batch.sampler_bt is None else batch.sampler_bt

    terms = find_loss(learning.loss).terms(
        logprobs_bt,
        old_bt,
        batch.advantages_bt,
        mask_bt,
        batch.rollouts_bt,
        batch.count,
        Clips.of(learning),
    )
    correction_bt = correction_weights(
        old_bt, sampler_bt, mask_bt, batch.rollouts_bt, batch.count, learning
    )
    policy_loss = (batch.weights_bt * terms.loss_bt * correction_bt).sum()

    kl_bt = _kl(logprobs_bt, batch, learning.kl.estimator)
    kl_loss = learning.kl.beta * (batch.weights_bt * kl_bt).sum()

    entropy_bt = within(entropy_bt, mask_bt)
    bonus = learning.entropy * (batch.entropy_weights_bt * entropy_bt).sum()

    sums = Sums(
        policy_loss=policy_loss.detach(),
        kl_loss=kl_loss.detach(),
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
    return policy_loss + kl_loss - bonus, sums


def correction_weights(
    learner_bt: Tensor,
    sampler_bt: Tensor,
    mask_bt: Tensor,
    rollouts_bt: Tensor,
    count: int,
    learning: Learning,
) -> Tensor:
    """Return each token's importance weight from sampler to learner, truncated or masked, without
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
    is_outside_bt = (ratio_bt < low) | (ratio_bt > high)
    return ratio_bt.masked_fill(is_outside_bt, 0)


def _kl(logprobs_bt: Tensor, batch: Batch, estimator: Estimator) -> Tensor:
    """Return the estimate by token; 0 without a reference, and for k1, which acts in the reward."""
    if batch.reference_bt is None or estimator == "k1":
        return torch.zeros_like(logprobs_bt)
    # Masked before the exponential: values outside must not overflow into the gradient.
    learner_bt = within(logprobs_bt, batch.mask_bt)
    reference_bt = within(batch.reference_bt, batch.mask_bt)
    return ESTIMATORS[estimator](learner_bt, reference_bt)
