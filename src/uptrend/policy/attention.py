"""Attention over sequences that stand back to back in one row, each seeing its own keys alone.

Sequences of all lengths then go through the model without padding, in few shapes. A segment is a
stretch of queries with its keys: the last query sees all of them, the one before all but the last,
and so on. Segments that begin with the same prompt may share its tokens: each has the prompt's keys
among its own.

t = token (query), k = key, n = segment.
"""

import inspect
from itertools import pairwise
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention.varlen import varlen_attn

from uptrend.records import ModelError

NAME = "uptrend"
# Keywords that transformers passes to every attention and that change nothing of it: positions are
# in the rotated queries and keys already, and a cache was asked before.
_HARMLESS = {"position_ids", "use_cache", "output_attentions"}
# torch 2.11's lacks query heads that share keys; keys and values are repeated there.
_HAS_GROUPS = "enable_gqa" in inspect.signature(varlen_attn).parameters


class Packed(NamedTuple):
    """Segments of a row."""

    # int32, first query of each segment, and their number at the end; filled up with that number
    starts_n: Tensor
    key_starts_n: Tensor  # the same of keys
    longest: int  # most queries of a segment, or more
    longest_keys: int  # the same of keys
    # place of each key among the tokens; None where the keys are the queries' own
    keys_k: Tensor | None = None


def register() -> str:
    """Make this attention known to transformers; return its name there."""
    from transformers import AttentionInterface

    AttentionInterface.register(NAME, attend)
    return NAME


def attend(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    scaling: float,
    dropout: float = 0.0,
    packed: Packed | None = None,
    sliding_window: int | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Attend as transformers asks for it; without segments, as its own `sdpa` does.

    Raises ModelError for a term of attention that is not here (`s_aux`, `softcap`): without it the
    log-probabilities would be another model's.
    """
    terms = [name for name, term in kwargs.items() if term is not None and name not in _HARMLESS]
    if kwargs.get("is_causal") is True:
        terms.remove("is_causal")
    if terms:
        kind = getattr(getattr(module, "config", None), "model_type", type(module).__name__)
        raise ModelError(
            f"the attention of {kind} takes {' and '.join(terms)}, which is not done here"
        )
    if packed is None:
        from transformers.integrations.sdpa_attention import sdpa_attention_forward

        if sliding_window and key.shape[2] > sliding_window:
            # transformers makes no masks for an attention of ours, and those from here know of no
            # window.
            if attention_mask is None:
                attention_mask = causal(query.shape[2], key.shape[2], device=query.device)[
                    None, None
                ]
            attention_mask = attention_mask & (
                attention_mask.flip(-1).cumsum(-1).flip(-1) <= sliding_window
            )
        out, _ = sdpa_attention_forward(
            module, query, key, value, attention_mask, dropout=dropout, scaling=scaling, **kwargs
        )
        return out, None
    q_thd, k_khd, v_khd = (x[0].transpose(0, 1) for x in (query, key, value))
    if packed.keys_k is not None:
        # In fp32 because the gradients of a key that many segments see are added up.
        k_khd, v_khd = (
            x.float().index_select(0, packed.keys_k).to(x.dtype) for x in (k_khd, v_khd)
        )
    by_device = attend_on_gpu if query.device.type == "cuda" else attend_one_by_one
    return by_device(q_thd, k_khd, v_khd, packed, scaling, sliding_window or None)[None], None


def causal(
    queries: int, keys: int, window: int | None = None, device: torch.device | None = None
) -> Tensor:
    """Return which keys each query sees, [t, k]: those up to its own, of them the last `window`."""
    seen_tk = torch.ones(queries, keys, dtype=torch.bool, device=device).tril(keys - queries)
    return seen_tk if window is None else seen_tk.triu(keys - queries - window + 1)


def attend_on_gpu(
    q_thd: Tensor,
    k_khd: Tensor,
    v_khd: Tensor,
    packed: Packed,
    scaling: float,
    window: int | None = None,
) -> Tensor:
    """Attend in one kernel, which takes bf16; rotated queries and keys come in fp32."""
    q_thd, k_khd, v_khd = (x.to(torch.bfloat16) for x in (q_thd, k_khd, v_khd))
    options: dict[str, Any] = {
        "scale": scaling,
        "window_size": (-1 if window is None else window - 1, 0),
    }
    if _HAS_GROUPS:
        options["enable_gqa"] = True
    elif (share := q_thd.shape[1] // k_khd.shape[1]) > 1:
        k_khd, v_khd = (x.repeat_interleave(share, 1) for x in (k_khd, v_khd))
    lengths = packed.starts_n, packed.key_starts_n, packed.longest, packed.longest_keys
    out = varlen_attn(q_thd, k_khd, v_khd, *lengths, **options)
    assert isinstance(out, Tensor)
    return out


def attend_one_by_one(
    q_thd: Tensor,
    k_khd: Tensor,
    v_khd: Tensor,
    packed: Packed,
    scaling: float,
    window: int | None = None,
) -> Tensor:
    """Attend segment by segment; those of one shape together."""
    edges = packed.starts_n.tolist()
    key_edges = packed.key_starts_n.tolist()
    shapes: dict[tuple[int, int], list[int]] = {}
    for n, (start, stop) in enumerate(pairwise(edges)):
        if stop > start:
            shapes.setdefault((stop - start, key_edges[n + 1] - key_edges[n]), []).append(n)
    outs = []
    places = []
    for (queries, keys), segments in shapes.items():
        at = torch.tensor([edges[n] for n in segments])[:, None] + torch.arange(queries)
        key_at = torch.tensor([key_edges[n] for n in segments])[:, None] + torch.arange(keys)
        q = q_thd[at].transpose(1, 2)
        k = k_khd[key_at].transpose(1, 2)
        v = v_khd[key_at].transpose(1, 2)
        is_cut = window is not None and keys > window
        mask = causal(queries, keys, window) if is_cut or queries not in (1, keys) else None
        out = F.scaled_dot_product_attention(
            q,
            k,
            v,
            attn_mask=mask,
            is_causal=mask is None and queries > 1,
            scale=scaling,
            enable_gqa=True,
        )
        outs.append(out.transpose(1, 2).flatten(0, 1))
        places.append(at.flatten())
    if len(outs) == 1 and len(outs[0]) == len(q_thd):
        return outs[0]
    return torch.zeros_like(q_thd).index_copy(0, torch.cat(places), torch.cat(outs))


def mask_of(packed: Packed, tokens: int) -> Tensor:
    """Return the segments as a mask of who sees whom, [1, 1, t, t]: for models whose attention is
    not told of them.
    """
    device = packed.starts_n.device
    seen_tt = torch.eye(tokens, dtype=torch.bool)  # tokens of no segment see themselves
    keys = torch.arange(tokens) if packed.keys_k is None else packed.keys_k.cpu()
    edges = packed.starts_n.tolist()
    key_edges = packed.key_starts_n.tolist()
    for n, (start, stop) in enumerate(pairwise(edges)):
        own = keys[key_edges[n] : key_edges[n + 1]]
        for i in range(stop - start):
            seen_tt[start + i, own[: len(own) - (stop - start) + i + 1]] = True
    return seen_tt[None, None].to(device)
