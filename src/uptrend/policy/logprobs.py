"""Log-probabilities and entropies of chosen tokens without ever holding all logits.

Logits over the vocabulary are the largest tensor of a step (16,384 tokens × 49,152 words × 4 bytes
is 3.2 GB). They are made a chunk at a time, and once more in the backward pass:

    log p(y) = z_y - logsumexp(z),   z = h Wᵀ / temperature
    ∂ log p(y) / ∂z = onehot(y) - p,   ∂H / ∂z = -p (log p + H)

A sampler may change the distribution further: it leaves tokens out (top-p, top-k, min-p) or turns
down tokens that the context holds (a repetition penalty). Then p is the changed distribution's,
over the same tokens as the sampler's.

m = token, v = vocabulary, h = hidden, k = token that could be drawn, s = sequence, t = its token.
"""

from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor

# Logits per chunk: 256 MiB of fp32, and as much again for their gradient.
CHUNK_ELEMENTS = 1 << 26
# Logit of a token that is left out: exp gives 0, and 0 times it is still 0.
LEFT_OUT_LOGIT = -1e30


@dataclass(frozen=True)
class Shaping:
    """Changes of the distributions that tokens were drawn from, beside the temperature."""

    # Tokens that could be drawn, filled up with any of them; None for all.
    support_mk: Tensor | None = None
    penalty: float = 1.0  # repetition penalty
    contexts_st: Tensor | None = None  # with a penalty: ids of each sequence
    lines_m: Tensor | None = None  # sequence of each token
    places_m: Tensor | None = None  # its place there: the tokens before it are its context

    def seen(self, part: slice, width: int) -> Tensor | None:
        """Return the tokens of the vocabulary that the contexts of some tokens hold; None without a
        penalty.
        """
        if self.contexts_st is None or self.lines_m is None or self.places_m is None:
            return None
        ids_mt = self.contexts_st[self.lines_m[part]]
        places_m1 = self.places_m[part, None]
        before_mt = torch.arange(ids_mt.shape[1], device=ids_mt.device) < places_m1
        ids_mt = torch.where(before_mt, ids_mt, ids_mt[:, :1])  # the first one is in every context
        seen_mv = torch.zeros(len(ids_mt), width, dtype=torch.bool, device=ids_mt.device)
        return seen_mv.scatter_(1, ids_mt, True)


NO_SHAPING = Shaping()


def penalize(logits_nv: Tensor, seen_nv: Tensor, penalty: float) -> Tensor:
    """Apply a repetition penalty (Keskar et al. 2019, arXiv 1909.05858), as transformers and vLLM
    do.
    """
    return logits_nv * _slope(logits_nv, seen_nv, penalty)


def _slope(logits_nv: Tensor, seen_nv: Tensor, penalty: float) -> Tensor:
    """Return the factor of each logit: towards smaller probabilities for tokens seen before."""
    slope_nv = torch.where(logits_nv > 0, 1 / penalty, penalty)
    return slope_nv.masked_fill_(~seen_nv, 1)


def token_logprobs(
    hidden_mh: Tensor,
    weight_vh: Tensor,
    targets_m: Tensor,
    temperature: float,
    chunk: int = CHUNK_ELEMENTS,
    shaping: Shaping = NO_SHAPING,
) -> tuple[Tensor, Tensor]:
    """Compute each target's log-probability and its distribution's entropy, both with gradients."""
    size = max(1, chunk // weight_vh.shape[0])
    logprobs, entropies = _TokenLogprobs.apply(
        hidden_mh, weight_vh, targets_m, temperature, size, shaping
    )  # type: ignore[no-untyped-call]
    return logprobs, entropies


class _TokenLogprobs(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden_mh: Tensor,
        weight_vh: Tensor,
        targets_m: Tensor,
        temperature: float,
        size: int,
        shaping: Shaping,
    ) -> tuple[Tensor, Tensor]:
        ctx.set_materialize_grads(False)  # no gradient of the entropy, no work for it
        kind = hidden_mh.device.type
        ctx.compute_dtype = weight_vh.dtype
        if torch.is_autocast_enabled(kind):
            ctx.compute_dtype = torch.get_autocast_dtype(kind)
        logprobs: list[Tensor] = []
        entropies: list[Tensor] = []
        totals: list[Tensor] = []
        # A product over the vocabulary takes a CPU longer than keeping the result.
        keeps_logits = kind == "cpu" and size >= len(targets_m) and hidden_mh.requires_grad
        ctx.logits_and_slope = None
        with torch.autocast(kind, enabled=False):
            weight = weight_vh.to(ctx.compute_dtype)
            for part, h, y in _chunks(hidden_mh.to(ctx.compute_dtype), targets_m, size):
                z, slope = _logits(h, weight, temperature, shaping, part)
                logprob, entropy, total = by_device(z).reduce(z, y)
                logprobs.append(logprob)
                entropies.append(entropy)
                totals.append(total)
                if keeps_logits:  # reducing left the total subtracted
                    ctx.logits_and_slope = z.add_(total[:, None]), slope
        logprobs_m = torch.cat(logprobs)
        entropies_m = torch.cat(entropies)
        totals_m = torch.cat(totals)
        ctx.save_for_backward(hidden_mh, weight_vh, targets_m, totals_m, entropies_m)
        ctx.temperature = temperature
        ctx.size = size
        ctx.shaping = shaping
        return logprobs_m, entropies_m

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        hidden_mh, weight_vh, targets_m, totals_m, entropies_m = ctx.saved_tensors
        by_logprob_m, by_entropy_m = grads
        grad_hidden = torch.empty_like(hidden_mh)
        grad_weight: Tensor | None = None
        with torch.autocast(hidden_mh.device.type, enabled=False):
            weight = weight_vh.to(ctx.compute_dtype)
            for part, h, y in _chunks(hidden_mh.to(ctx.compute_dtype), targets_m, ctx.size):
                z, slope = ctx.logits_and_slope or _logits(
                    h, weight, ctx.temperature, ctx.shaping, part
                )
                grad_z = by_device(z).grad_logits(
                    z,
                    y,
                    totals_m[part],
                    entropies_m[part],
                    None if by_logprob_m is None else by_logprob_m[part],
                    None if by_entropy_m is None else by_entropy_m[part],
                )
                if slope is not None:
                    grad_z = grad_z.mul_(slope)
                grad_z = grad_z.to(ctx.compute_dtype)
                grad_h = _product(grad_z, weight).mul_(1 / ctx.temperature)
                grad_hidden[part] = grad_h.to(grad_hidden.dtype)
                if ctx.needs_input_grad[1]:
                    share = _product(grad_z.T, h).mul_(1 / ctx.temperature).to(weight_vh.dtype)
                    grad_weight = share if grad_weight is None else grad_weight.add_(share)
        return grad_hidden, grad_weight, None, None, None, None


class _Plain:
    """Results from the logits of a chunk, by torch's own functions; `z` may be overwritten."""

    @staticmethod
    def reduce(z: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the targets' log-probabilities, the entropies and the logarithms of the sums."""
        total = torch.logsumexp(z, -1)
        logprob = z.gather(-1, y[:, None]).squeeze(-1) - total
        p = z.sub_(total[:, None]).exp()
        return logprob, -(p.mul_(z)).sum(-1), total

    @staticmethod
    def grad_logits(
        z: Tensor,
        y: Tensor,
        total: Tensor,
        entropy: Tensor,
        grad_logprob: Tensor | None,
        grad_entropy: Tensor | None,
    ) -> Tensor:
        """Return the gradient by the logits."""
        logp = z.sub_(total[:, None])
        p = logp.exp()
        by_entropy = None  # to be subtracted
        if grad_entropy is not None:
            by_entropy = grad_entropy[:, None] * p * (logp + entropy[:, None])
        if grad_logprob is None:
            return torch.zeros_like(p) if by_entropy is None else -by_entropy
        grad = p.mul_(-grad_logprob[:, None])
        grad.scatter_add_(-1, y[:, None], grad_logprob[:, None])
        return grad if by_entropy is None else grad.sub_(by_entropy)


def by_device(z: Tensor) -> Any:
    """Return the implementation for logits on their device: on a GPU one kernel each, where Triton
    is there.
    """
    if z.device.type == "cuda" and find_spec("triton") is not None:
        from uptrend.policy import kernels

        return kernels
    return _Plain


def _product(a: Tensor, b: Tensor) -> Tensor:
    """Multiply matrices; products in low precision are summed, and returned, in fp32."""
    if a.dtype == torch.float32 or a.device.type != "cuda":
        return a @ b
    return torch.mm(a, b, out_dtype=torch.float32)


def _logits(
    h: Tensor, weight: Tensor, temperature: float, shaping: Shaping, part: slice
) -> tuple[Tensor, Tensor | None]:
    """Compute a chunk's logits, and the penalty's factor of each where there is one."""
    z = _product(h, weight.T).float()
    seen = shaping.seen(part, z.shape[1])
    slope = None
    if seen is not None:
        slope = _slope(z, seen, shaping.penalty)
        z.mul_(slope)
    if temperature != 1:
        z.div_(temperature)
    if shaping.support_mk is not None:
        is_left_out = torch.ones_like(z, dtype=torch.bool)
        is_left_out.scatter_(1, shaping.support_mk[part], False)
        z.masked_fill_(is_left_out, LEFT_OUT_LOGIT)
    return z, slope


def _chunks(hidden_mh: Tensor, targets_m: Tensor, size: int) -> list[tuple[slice, Tensor, Tensor]]:
    parts = [slice(start, start + size) for start in range(0, len(targets_m), size)]
    return [(part, hidden_mh[part], targets_m[part]) for part in parts]
