"""Choosing tokens from logits with one uniform number a token.

Inverse transform: the token at which the cumulative probability passes u. One number a token from the
rollout's own generator makes a rollout independent of who else is in the batch.

n = row, v = vocabulary.
"""

import torch
from torch import Tensor

from uptrend.rollout.sampler import Limits


def choose(logits_nv: Tensor, uniforms_n: Tensor, limits: Limits) -> tuple[Tensor, Tensor]:
    """A token a row, and its log-probability in the distribution that it was drawn from."""
    logits = logits_nv.float()
    if limits.temperature == 0:
        token_n = logits.argmax(-1)
    else:
        logits = _truncate(logits / limits.temperature, limits)
        cumulative = torch.softmax(logits, -1).cumsum(-1)
        aim = uniforms_n[:, None].clamp(max=1 - 1e-6) * cumulative[:, -1:]
        token_n = (cumulative <= aim).sum(-1)
    chosen = logits.gather(-1, token_n[:, None]).squeeze(-1)
    return token_n, chosen - torch.logsumexp(logits, -1)


def _truncate(logits: Tensor, limits: Limits) -> Tensor:
    """Leave out what top-k and top-p leave out; the likeliest token always stays."""
    if 0 < limits.top_k < logits.shape[-1]:
        least = logits.topk(limits.top_k, -1).values[:, -1:]
        logits = logits.masked_fill(logits < least, -torch.inf)
    if limits.top_p < 1:
        ordered, order = logits.sort(-1, descending=True)
        p = torch.softmax(ordered, -1)
        beyond = p.cumsum(-1) - p >= limits.top_p  # what came before already reached it
        logits = logits.masked_fill(torch.zeros_like(beyond).scatter(-1, order, beyond), -torch.inf)
    return logits
