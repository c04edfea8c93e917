"""The losses, each Σ_bt weight_bt · term_bt, and estimates of the KL divergence from the reference.

`weights` sees all rows of one optimizer update at once and does all counting (tokens, lengths,
rollouts); `terms` sees one micro-batch and holds all gradients. So a micro-batch never needs to
know how many others there are.

The clipped surrogate is PPO's (Schulman et al. 2017, arXiv 1707.06347), with r = π/π_old:

    term = −min(r · A, clamp(r, 1 − clip_low, 1 + clip_high) · A)

With clip_max, r is also at most that where A < 0, which PPO leaves unbounded: one token whose
probability rose a lot would outweigh all others (two-sided clipping, INTELLECT-2 2025, arXiv
2505.07291).

    grpo     1/N Σ_i 1/|o_i| Σ_t term          Shao et al. 2024, arXiv 2402.03300, eq. 3
    dapo     1/Σ_i|o_i| Σ_i Σ_t term           Yu et al. 2025, arXiv 2503.14476, eq. 8
    bnpo     the same; the name that TRL uses
    dr_grpo  1/(N · max_tokens) Σ_i Σ_t term   Liu et al. 2025, arXiv 2503.20783
    gspo     1/N Σ_i term with one ratio per rollout, exp(mean_t log r)    Zheng et al. 2025, arXiv 2507.18071
    cispo    −1/Σ_i|o_i| Σ_i Σ_t stop_gradient(min(r, clip_high)) A log π  MiniMax-M1 2025, arXiv 2506.13585

b = row, t = token. A new loss is one entry in `LOSSES`, or a function that a recipe names.
"""  # noqa: E501 (a table)

import functools
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from uptrend.algo.masks import rollout_sum, within
from uptrend.config.functions import load_named
from uptrend.config.schema import Learning


@dataclass(frozen=True)
class Terms:
    """Each token's part of a loss; 0 and False outside the mask."""

    loss_bt: Tensor
    """The term to be weighted and summed; the only field with a gradient."""
    ratio_bt: Tensor
    """π / π_old, before clipping."""
    clipped_low_bt: Tensor
    """True where the lower clip cuts the gradient."""
    clipped_high_bt: Tensor


def mean_of_rollouts(mask_bt: Tensor, rollouts_bt: Tensor, count: int, _max_tokens: int) -> Tensor:
    """Return 1 / (rollouts · tokens of this rollout): the mean over rollouts of each one's token
    mean.
    """
    # Every rollout is counted, also those with nothing to train: leaving some out must not make the
    # rest count more.
    tokens_bt = rollout_sum(mask_bt.long(), rollouts_bt, count).clamp(min=1)
    return mask_bt / (tokens_bt * count)


def mean_of_tokens(mask_bt: Tensor, _rollouts_bt: Tensor, _count: int, _max_tokens: int) -> Tensor:
    """Return 1 / trained tokens of the update."""
    return mask_bt / mask_bt.sum().clamp(min=1)


def fixed_length(mask_bt: Tensor, _rollouts_bt: Tensor, count: int, max_tokens: int) -> Tensor:
    """Return 1 / (rollouts · maximum tokens of a rollout)."""
    return mask_bt / (count * max_tokens)


@dataclass(frozen=True)
class Clips:
    """Bounds of the ratio."""

    low: float
    high: float
    most: float = 0.0
    """Bound on the side that PPO leaves open; 0 for none."""

    @classmethod
    def of(cls, learning: Learning) -> "Clips":
        return cls(learning.clip_low, learning.clip_high, learning.clip_max)


# (ratio_bt, advantages_bt, logprobs_bt, clips) -> the loss, and where the lower and the upper clip
# cut it
Surrogate = Callable[[Tensor, Tensor, Tensor, Clips], tuple[Tensor, Tensor, Tensor]]


def clipped(
    ratio_bt: Tensor, advantages_bt: Tensor, _logprobs_bt: Tensor, clips: Clips
) -> tuple[Tensor, Tensor, Tensor]:
    """Return PPO's clipped surrogate."""
    clamped_bt = ratio_bt.clamp(1 - clips.low, 1 + clips.high)
    low_bt = (ratio_bt < 1 - clips.low) & (advantages_bt < 0)
    high_bt = (ratio_bt > 1 + clips.high) & (advantages_bt > 0)
    if clips.most:
        high_bt = high_bt | (ratio_bt > clips.most) & (advantages_bt < 0)
        ratio_bt = ratio_bt.clamp(max=clips.most)
    loss_bt = -torch.minimum(ratio_bt * advantages_bt, clamped_bt * advantages_bt)
    return loss_bt, low_bt, high_bt


def bounded(
    ratio_bt: Tensor, advantages_bt: Tensor, logprobs_bt: Tensor, clips: Clips
) -> tuple[Tensor, Tensor, Tensor]:
    """Weight each token's log-probability by its ratio, detached and at most `clips.high`."""
    ratio_bt = ratio_bt.detach()
    loss_bt = -ratio_bt.clamp(max=clips.high) * advantages_bt * logprobs_bt
    high_bt = (ratio_bt > clips.high) & (advantages_bt != 0)
    low_bt = torch.zeros_like(high_bt)
    return loss_bt, low_bt, high_bt


@dataclass(frozen=True)
class Loss:
    """Weights of tokens, and the surrogate of the ratio π / π_old."""

    weights: Callable[[Tensor, Tensor, int, int], Tensor]
    """(mask_bt, rollouts_bt, count, max_tokens) over a whole update -> each token's weight, 0
    outside the mask.
    """
    surrogate: Surrogate = clipped
    whole_rollouts: bool = False
    """True where the ratio is the geometric mean over a rollout, whose tokens need to be in the
    same micro-batch.
    """

    def terms(
        self,
        logprobs_bt: Tensor,
        old_bt: Tensor,
        advantages_bt: Tensor,
        mask_bt: Tensor,
        rollouts_bt: Tensor,
        count: int,
        clips: Clips,
    ) -> Terms:
        """Return the terms of a micro-batch."""
        log_ratio_bt = within(logprobs_bt - old_bt, mask_bt)
        ratio_bt = log_ratio_bt.exp()
        if self.whole_rollouts:
            tokens_bt = rollout_sum(mask_bt.long(), rollouts_bt, count).clamp(min=1)
            ratio_bt = (rollout_sum(log_ratio_bt, rollouts_bt, count) / tokens_bt).exp()
        loss_bt, low_bt, high_bt = self.surrogate(
            ratio_bt, within(advantages_bt, mask_bt), within(logprobs_bt, mask_bt), clips
        )
        return Terms(
            loss_bt=loss_bt,
            ratio_bt=within(ratio_bt, mask_bt).detach(),
            clipped_low_bt=low_bt,
            clipped_high_bt=high_bt,
        )


LOSSES: dict[str, Loss] = {
    # Every rollout counts the same, so a token of a short answer weighs more: long wrong answers
    # are punished least.
    "grpo": Loss(mean_of_rollouts),
    # In TRL the mean is over a micro-batch and depends on how rows are split. Here weights always
    # cover the whole update, which leaves DAPO's weighting; the name is kept for recipes that use
    # it.
    "bnpo": Loss(mean_of_tokens),
    # No length in the denominator, so none is favored. The paper also drops the division by the
    # group's deviation, which favors tasks that are almost always or almost never solved: use it
    # with scale = "none".
    "dr_grpo": Loss(fixed_length),
    # Every token counts the same: long wrong answers are punished in full. The paper's other ideas
    # are options of any loss: clip-higher (clip_high = 0.28), dynamic sampling (sampling.resample),
    # overlong filtering (mask_truncated), the soft overlong penalty (sampling.overlong).
    "dapo": Loss(mean_of_tokens),
    # Rewards are given to whole rollouts, so the ratio is the rollout's too: single tokens with a
    # noisy ratio (from a mixture of experts) no longer clip. The mean ratio stays near 1: the paper
    # clips at 3e-4 and 4e-4.
    "gspo": Loss(mean_of_rollouts, whole_rollouts=True),
    # PPO's clip silences a token once its ratio leaves the range, and the rare tokens that turn a
    # chain of thought ("However", "Wait") leave it first. Here they keep learning with a bounded
    # weight. The bound is on the ratio itself (5, say, not 1 + ε), and there is none below.
    "cispo": Loss(mean_of_tokens, bounded),
}


def find_loss(name: str) -> Loss:
    """Return the loss of this name, or one of a user's own, as `module:function`.

    That is a `Loss`, or a surrogate, `(ratio_bt, advantages_bt, logprobs_bt, clips)`, which returns
    the loss of each token, with or without where the clips cut it. Each token then counts the same.
    """
    return LOSSES.get(name) or _load_loss(name)


@functools.cache
def _load_loss(name: str) -> Loss:
    own = load_named(name, "loss", lambda own: callable(own) or isinstance(own, Loss))
    if isinstance(own, Loss):
        return own

    def surrogate(
        ratio_bt: Tensor, advantages_bt: Tensor, logprobs_bt: Tensor, clips: Clips
    ) -> tuple[Tensor, Tensor, Tensor]:
        outcome = own(ratio_bt, advantages_bt, logprobs_bt, clips)
        if isinstance(outcome, tuple):
            return outcome
        uncut_bt = torch.zeros_like(ratio_bt, dtype=torch.bool)
        return outcome, uncut_bt, uncut_bt

    return Loss(mean_of_tokens, surrogate)


# The distance to the reference is estimated from one sampled token each, with d = log π(token) −
# log π_ref(token) (Schulman 2020, "Approximating KL Divergence",
# http://joschu.net/blog/kl-approx.html). As losses, on-policy, they pull differently: k2's gradient
# is d · ∇ log π, whose mean is the gradient of KL(π ‖ π_ref); k3's is (1 − exp(−d)) · ∇ log π,
# whose mean is the gradient of KL(π_ref ‖ π). k1 in the loss would do nothing but add noise: its
# gradient is ∇ log π, and Σ_tokens π · ∇ log π = ∇ Σ_tokens π = ∇ 1 = 0. Subtracted from the
# reward, it multiplies ∇ log π instead, and E[d · ∇ log π] is the gradient of KL(π ‖ π_ref). So k2
# and k3 act in the loss, k1 in the reward.


def k1(learner_bt: Tensor, reference_bt: Tensor) -> Tensor:
    """Return d: unbiased, but noisy and often negative."""
    return learner_bt - reference_bt


def k2(learner_bt: Tensor, reference_bt: Tensor) -> Tensor:
    """Return d² / 2: biased, never negative."""
    return (learner_bt - reference_bt) ** 2 / 2


def k3(learner_bt: Tensor, reference_bt: Tensor) -> Tensor:
    """Return exp(−d) − 1 + d: unbiased, never negative; GRPO's choice (Shao et al. 2024, eq. 4)."""
    back_bt = reference_bt - learner_bt
    return torch.expm1(back_bt) - back_bt


# TRL 1.16 multiplies k3 by π/π_old by default (DeepSeek-V3.2 2025, arXiv 2512.02556);
# on-policy that is k2's gradient exactly.
ESTIMATORS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {"k1": k1, "k2": k2, "k3": k3}


def kl_penalty(learner_bt: Tensor, reference_bt: Tensor, mask_bt: Tensor) -> Tensor:
    """Return each row's Σ_t k1 without gradient; beta times this is subtracted from the reward,
    before advantages.
    """
    return within(k1(learner_bt, reference_bt), mask_bt).sum(dim=1).detach()
