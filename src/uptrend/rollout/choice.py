"""Choosing tokens from logits with one uniform number a token.

Inverse transform: the token at which the cumulative probability passes u. One number a token from the
rollout's own generator makes a rollout independent of who else is in the batch. The sum runs in two levels,
over blocks of the vocabulary and then inside the block that u falls into: a running sum over the whole
vocabulary would take longer than the model's own step on a GPU.

n = row, v = vocabulary, c = block, w = place in a block.
"""

import torch
from torch import Tensor

from uptrend.rollout.sampler import Limits

BLOCK = 256


def choose(logits_nv: Tensor, uniforms_n: Tensor, limits: Limits) -> tuple[Tensor, Tensor]:
    """A token a row, and its log-probability in the distribution that it was drawn from."""
    logits = logits_nv.float()
    if limits.temperature not in (0, 1):
        logits = logits / limits.temperature
    logits = _truncate(logits, limits)
    top_n, best_n = logits.max(-1)
    mass_ncw = _blocks((logits - top_n[:, None]).exp_())
    mass_nc = mass_ncw.sum(-1)
    total_n = mass_nc.sum(-1)
    token_n = best_n if limits.temperature == 0 else _invert(mass_ncw, mass_nc, uniforms_n)
    chosen_n = logits.gather(-1, token_n[:, None]).squeeze(-1)
    return token_n, chosen_n - top_n - total_n.log()


def _blocks(mass_nv: Tensor) -> Tensor:
    """The vocabulary cut into blocks, the last filled up with nothing."""
    missing = -mass_nv.shape[-1] % BLOCK
    if missing:
        mass_nv = torch.nn.functional.pad(mass_nv, (0, missing))
    return mass_nv.reshape(len(mass_nv), -1, BLOCK)


def _invert(mass_ncw: Tensor, mass_nc: Tensor, uniforms_n: Tensor) -> Tensor:
    """Where the running sum passes u times the whole; never a token without mass."""
    sum_nc = mass_nc.cumsum(-1)
    aim_n = uniforms_n.clamp(max=1 - 1e-6) * sum_nc[:, -1]
    block_n = (sum_nc <= aim_n[:, None]).sum(-1).clamp(max=mass_nc.shape[-1] - 1)
    before_n = (sum_nc - mass_nc).gather(-1, block_n[:, None])
    inside_nw = mass_ncw[torch.arange(len(block_n), device=block_n.device), block_n]
    sum_nw = inside_nw.cumsum(-1) + before_n
    passed_nw = sum_nw > aim_n[:, None]
    # Rounding can leave u just past the block's own sum: then its last token with any mass is meant.
    last_n = BLOCK - 1 - (inside_nw > 0).flip(-1).int().argmax(-1)
    place_n = torch.where(passed_nw.any(-1), (passed_nw & (inside_nw > 0)).int().argmax(-1), last_n)
    return block_n * BLOCK + place_n


def _truncate(logits: Tensor, limits: Limits) -> Tensor:
    """Leave out what top-k and top-p leave out; the likeliest token always stays."""
    if limits.temperature == 0:
        return logits
    if 0 < limits.top_k < logits.shape[-1]:
        least = logits.topk(limits.top_k, -1).values[:, -1:]
        logits = logits.masked_fill(logits < least, -torch.inf)
    if limits.top_p < 1:
        ordered, order = logits.sort(-1, descending=True)
        p = torch.softmax(ordered, -1)
        beyond = p.cumsum(-1) - p >= limits.top_p  # what came before already reached it
        logits = logits.masked_fill(torch.zeros_like(beyond).scatter(-1, order, beyond), -torch.inf)
    return logits
