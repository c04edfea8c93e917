"""Log-probabilities and entropies of chosen tokens without ever holding all logits.

Logits over the vocabulary are the largest tensor of a step (16,384 tokens × 49,152 words × 4 bytes is 3.2 GB).
They are made a chunk at a time, and once more in the backward pass:

    log p(y) = z_y - logsumexp(z),   z = h Wᵀ / temperature
    ∂ log p(y) / ∂z = onehot(y) - p,   ∂H / ∂z = -p (log p + H)

m = token, v = vocabulary, h = hidden.
"""

from typing import Any

import torch
from torch import Tensor

# Logits per chunk: 256 MiB of fp32, and as much again for their gradient.
CHUNK_ELEMENTS = 1 << 26


def token_logprobs(
    hidden_mh: Tensor, weight_vh: Tensor, targets_m: Tensor, temperature: float, chunk: int = CHUNK_ELEMENTS
) -> tuple[Tensor, Tensor]:
    """Compute each target's log-probability and its distribution's entropy, both with gradients."""
    size = max(1, chunk // weight_vh.shape[0])
    logprobs, entropies = _TokenLogprobs.apply(hidden_mh, weight_vh, targets_m, temperature, size)  # type: ignore[no-untyped-call]
    return logprobs, entropies


class _TokenLogprobs(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, hidden_mh: Tensor, weight_vh: Tensor, targets_m: Tensor, temperature: float, size: int
    ) -> tuple[Tensor, Tensor]:
        ctx.set_materialize_grads(False)  # no gradient of the entropy, no work for it
        logprobs, entropies, totals = [], [], []
        for h, y in _chunks(hidden_mh, targets_m, size):
            z = _logits(h, weight_vh, temperature)
            total = torch.logsumexp(z, -1)
            logprobs.append(z.gather(-1, y[:, None]).squeeze(-1) - total)
            totals.append(total)
            p = z.sub_(total[:, None]).exp()
            entropies.append(-(p.mul_(z)).sum(-1))
        entropies_m, kind = torch.cat(entropies), hidden_mh.device.type
        ctx.save_for_backward(hidden_mh, weight_vh, targets_m, torch.cat(totals), entropies_m)
        ctx.temperature, ctx.size = temperature, size
        ctx.compute = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else None
        return torch.cat(logprobs), entropies_m

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        hidden_mh, weight_vh, targets_m, totals, entropies = ctx.saved_tensors
        compute = ctx.compute or weight_vh.dtype
        weight = weight_vh.to(compute)
        grad_hidden = torch.empty_like(hidden_mh)
        grad_weight: Tensor | None = None
        start = 0
        with torch.autocast(hidden_mh.device.type, enabled=False):
            for h, y in _chunks(hidden_mh, targets_m, ctx.size):
                part = slice(start, start + len(h))
                start += len(h)
                h = h.to(compute)
                z = _logits(h, weight, ctx.temperature).sub_(totals[part, None])
                grad_logprob, grad_entropy = (None if grad is None else grad[part] for grad in grads)
                grad_z = _grad_logits(z, y, grad_logprob, grad_entropy, entropies[part])
                grad_z = grad_z.div_(ctx.temperature).to(compute)
                grad_hidden[part] = (grad_z @ weight).to(grad_hidden.dtype)
                if ctx.needs_input_grad[1]:
                    share = (grad_z.T @ h).to(weight_vh.dtype)
                    grad_weight = share if grad_weight is None else grad_weight.add_(share)
        return grad_hidden, grad_weight, None, None, None


def _grad_logits(
    logp: Tensor, y: Tensor, grad_logprob: Tensor | None, grad_entropy: Tensor | None, entropy: Tensor
) -> Tensor:
    p = logp.exp()
    bonus = None if grad_entropy is None else grad_entropy[:, None] * p * (logp + entropy[:, None])
    if grad_logprob is None:
        return torch.zeros_like(p) if bonus is None else -bonus
    grad = p.mul_(-grad_logprob[:, None])
    grad.scatter_add_(-1, y[:, None], grad_logprob[:, None])
    return grad if bonus is None else grad.sub_(bonus)


def _logits(h: Tensor, weight: Tensor, temperature: float) -> Tensor:
    return torch.nn.functional.linear(h, weight).float().div_(temperature)


def _chunks(hidden_mh: Tensor, targets_m: Tensor, size: int) -> list[tuple[Tensor, Tensor]]:
    return list(zip(torch.split(hidden_mh, size), torch.split(targets_m, size), strict=True))
