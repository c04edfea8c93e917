"""Everything about an update's tokens that does not change while it is made.

b = row, t = token.
"""

from dataclasses import dataclass, fields, replace

import torch
from torch import Tensor

from uptrend.algo.losses import LOSSES
from uptrend.algo.losses.surrogate import mean_of_tokens
from uptrend.config.schema import Learning


@dataclass(frozen=True)
class Batch:
    """The rows of one optimizer update, or of one of its micro-batches."""

    mask_bt: Tensor
    """The loss mask."""
    rollouts_b: Tensor
    """Which rollout each row belongs to; any numbers."""
    advantages_bt: Tensor
    """Each token's advantage."""
    weights_bt: Tensor
    """Each token's weight in the loss, from counts over the whole update."""
    entropy_weights_bt: Tensor
    """Each token's weight in the entropy bonus: the mean over all trained tokens of the update."""
    old_bt: Tensor | None
    """Log-probabilities before the step's first update; None where this is the first: they are the same."""
    sampler_bt: Tensor | None
    """The sampler's log-probabilities, for a correction."""
    reference_bt: Tensor | None
    """The reference's log-probabilities, for a KL penalty."""
    whole_rollouts: bool
    """Whether a micro-batch has to hold all rows of a rollout."""

    def rows(self, rows: Tensor, length: int | None = None) -> "Batch":
        """Some of the rows, by number, cut to their first `length` tokens: a micro-batch."""
        if self.whole_rollouts:
            missing_b = torch.isin(self.rollouts_b, self.rollouts_b[rows]) & self.mask_bt.any(dim=1)
            missing_b[rows] = False
            assert not missing_b.any(), "this loss needs all rows of a rollout in one micro-batch"
        tensors = {f.name: getattr(self, f.name) for f in fields(self) if f.name.endswith("_bt")}
        cut = {name: x[rows, :length] for name, x in tensors.items() if x is not None}
        return replace(self, rollouts_b=self.rollouts_b[rows], **cut)


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
    assert sampler_bt is not None or learning.correction == "none", "a correction needs the sampler's log-probabilities"
    assert reference_bt is not None or learning.kl.beta == 0, "a KL penalty needs the reference's log-probabilities"
    loss = LOSSES[learning.loss]
    return Batch(
        mask_bt=mask_bt,
        rollouts_b=rollouts_b,
        advantages_bt=advantages_bt,
        weights_bt=loss.weights(mask_bt, rollouts_b, max_tokens),
        entropy_weights_bt=mean_of_tokens(mask_bt, rollouts_b, max_tokens),
        old_bt=old_bt,
        sampler_bt=sampler_bt,
        reference_bt=reference_bt,
        whole_rollouts=loss.whole_rollouts or learning.correction == "sequence",
    )
