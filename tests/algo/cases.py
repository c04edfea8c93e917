"""Made-up updates: ragged masks, tokens far enough off-policy that every clip is active."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from uptrend.algo import Batch, Sums, objective, prepare
from uptrend.config.schema import Kl, Learning

MAX_TOKENS = 12
NAMES = ("grpo", "bnpo", "dr_grpo", "dapo", "gspo", "cispo")


def learning_for(loss: str, **changes: object) -> Learning:
    """Clips at which the made-up ratios are cut on both sides."""
    clips = {"clip_low": 0.15, "clip_high": 1.1 if loss == "cispo" else 0.25}
    if loss == "gspo":
        clips = {"clip_low": 0.04, "clip_high": 0.06}
    return replace(Learning(loss=loss), **clips, **changes)


@dataclass(frozen=True)
class Case:
    """One update's tensors, and the learner's numbers now."""

    logprobs_bt: Tensor
    entropy_bt: Tensor
    mask_bt: Tensor
    rollouts_b: Tensor
    advantages_bt: Tensor
    old_bt: Tensor
    sampler_bt: Tensor
    reference_bt: Tensor

    def batch(self, learning: Learning) -> Batch:
        """The whole update, weighed."""
        others = {key: getattr(self, key) for key in ("old_bt", "sampler_bt", "reference_bt")}
        return prepare(
            self.mask_bt, self.rollouts_b, self.advantages_bt, learning, MAX_TOKENS, **others
        )

    def learn(self, learning: Learning, *parts: Tensor) -> tuple[Tensor, Sums, Tensor, Tensor]:
        """Loss, sums, and the gradients by log-probability and by entropy, added up over
        micro-batches.
        """
        batch = self.batch(learning)
        logprobs = self.logprobs_bt.detach().requires_grad_()
        entropy = self.entropy_bt.detach().requires_grad_()
        total, sums = torch.zeros(()), None
        for rows in parts or (torch.arange(len(self.mask_bt)),):
            loss, more = objective(
                *(x[rows].reshape(1, -1) for x in (logprobs, entropy)), some(batch, rows), learning
            )
            loss.backward()
            total, sums = total + loss.detach(), more if sums is None else sums + more
        assert sums is not None and logprobs.grad is not None and entropy.grad is not None  # noqa: PT018
        return total, sums, logprobs.grad, entropy.grad


def some(batch: Batch, rows: Tensor) -> Batch:
    """The tokens of some rows."""
    places = torch.arange(batch.mask_bt.shape[1])
    return batch.tokens(
        rows.repeat_interleave(len(places)), places.repeat(len(rows)), torch.tensor(True)
    )


def make_case(
    seed: int, rollouts_b: list[int], tokens: int = 9, dtype: torch.dtype = torch.float64
) -> Case:
    """Random rows with holes in their masks (a tool's tokens), one row with nothing to train."""
    g = torch.Generator().manual_seed(seed)
    shape = (len(rollouts_b), tokens)

    def normal(scale: float) -> Tensor:
        return scale * torch.randn(shape, generator=g, dtype=torch.float64).to(dtype)

    lengths = torch.randint(2, tokens + 1, (len(rollouts_b), 1), generator=g)
    mask_bt = (torch.arange(tokens)[None] < lengths) & (torch.rand(shape, generator=g) < 0.8)
    mask_bt[:, 0] = True
    mask_bt[-1] = False
    numbers = torch.tensor(rollouts_b)
    advantages_n = torch.randn(int(numbers.max()) + 1, generator=g, dtype=torch.float64).to(dtype)
    logprobs_bt = -normal(1.0).abs() - 0.1
    return Case(
        logprobs_bt=logprobs_bt,
        entropy_bt=normal(1.0).abs(),
        mask_bt=mask_bt,
        rollouts_b=numbers,
        advantages_bt=advantages_n[numbers][:, None].expand(shape),
        old_bt=logprobs_bt + normal(0.3),
        sampler_bt=logprobs_bt + normal(0.5),
        reference_bt=logprobs_bt + normal(0.4),
    )


def kl(beta: float, estimator: str = "k3") -> Kl:
    """A penalty."""
    return Kl(beta=beta, estimator=estimator)  # type: ignore[arg-type]
