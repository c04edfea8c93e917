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

# Name of this attention in transformers.
ATTENTION_NAME = "uptrend"
# Keywords that transformers passes to every attention and that change nothing of it: positions are
# in the rotated queries and keys already, and a cache comes before.
_IGNORED_KEYWORDS = {"position_ids", "use_cache", "output_attentions"}
# torch 2.11's lacks query heads that share keys; keys and values are repeated there.
_HAS_GROUPS = "enable_gqa" in inspect.signature(varlen_attn).parameters


class Packed(NamedTuple):
    """Segments of a row."""

    # First query of each segment, and their number at the end; filled up with that number [int32].
    starts_n: Tensor
    key_starts_n: Tensor  # the same of keys
    longest: int  # maximum queries of a segment, or more
    longest_keys: int  # the same of keys
    # Place of each key among the tokens; None where the keys are the queries' own.
    keys_k: Tensor | None = None


def register() -> str:
    """Make this attention known to transformers; return its name there."""
    from transformers import AttentionInterface

    AttentionInterface.register(ATTENTION_NAME, attend)
    return ATTENTION_NAME


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
    terms = [
        name for name, term in kwargs.items() if term is not None and name not in _IGNORED_KEYWORDS
    ]
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
            attention_mask = _within_window(query, key, attention_mask, sliding_window)
        out, _ = sdpa_attention_forward(
            module, query, key, value, attention_mask, dropout=dropout, scaling=scaling, **kwargs
        )
        return out, None

    q_thd = query[0].transpose(0, 1)
    k_khd = key[0].transpose(0, 1)
    v_khd = value[0].transpose(0, 1)
    if packed.keys_k is not None:
        # In fp32 because the gradients of a key that many segments see are added up.
        k_khd = k_khd.float().index_select(0, packed.keys_k).to(k_khd.dtype)
        v_khd = v_khd.float().index_select(0, packed.keys_k).to(v_khd.dtype)
    attend_segments = attend_on_gpu if query.device.type == "cuda" else attend_one_by_one
    out_thd = attend_segments(q_thd, k_khd, v_khd, packed, scaling, sliding_window or None)
    return out_thd[None], None


def _within_window(query: Tensor, key: Tensor, mask: Tensor | None, window: int) -> Tensor:
    """Return a mask that leaves each query the last `window` keys that it sees.

    transformers makes no masks for an attention of ours, and those from here know of no window.
    """
    if mask is None:
        mask = causal(query.shape[2], key.shape[2], device=query.device)[None, None]
    keys_from_here = mask.flip(-1).cumsum(-1).flip(-1)  # seen ones, this one included
    return mask & (keys_from_here <= window)


def causal(
    queries: int, keys: int, window: int | None = None, device: torch.device | None = None
) -> Tensor:
    """Return a mask of the keys that each query sees, [t, k]: those up to its own, of them the last
    `window`.
    """
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
    q_thd = q_thd.to(torch.bfloat16)
    k_khd = k_khd.to(torch.bfloat16)
    v_khd = v_khd.to(torch.bfloat16)
    options: dict[str, Any] = {
        "scale": scaling,
        "window_size": (-1 if window is None else window - 1, 0),
    }
    heads_per_key = q_thd.shape[1] // k_khd.shape[1]
    if _HAS_GROUPS:
        options["enable_gqa"] = True
    elif heads_per_key > 1:
        k_khd = k_khd.repeat_interleave(heads_per_key, 1)
        v_khd = v_khd.repeat_interleave(heads_per_key, 1)
    out_thd = varlen_attn(
        q_thd,
        k_khd,
        v_khd,
        packed.starts_n,
        packed.key_starts_n,
        packed.longest,
        packed.longest_keys,
        **options,
    )
    assert isinstance(out_thd, Tensor)
    return out_thd


def attend_one_by_one(
    q_thd: Tensor,
    k_khd: Tensor,
    v_khd: Tensor,
    packed: Packed,
    scaling: float,
    window: int | None = None,
) -> Tensor:
    """Attend segment by segment; those of one shape together."""
    starts = packed.starts_n.tolist()
    key_starts = packed.key_starts_n.tolist()
    segments_by_shape: dict[tuple[int, int], list[int]] = {}
    for n, (start, stop) in enumerate(pairwise(starts)):
        if stop > start:
            shape = (stop - start, key_starts[n + 1] - key_starts[n])
            segments_by_shape.setdefault(shape, []).append(n)

    outs: list[Tensor] = []
    places: list[Tensor] = []
    for (queries, keys), segments in segments_by_shape.items():
        first_queries = torch.tensor([starts[n] for n in segments])
        first_keys = torch.tensor([key_starts[n] for n in segments])
        query_places = first_queries[:, None] + torch.arange(queries)
        key_places = first_keys[:, None] + torch.arange(keys)
        # One query sees all keys, and as many queries as keys are what `is_causal` means.
        is_cut = window is not None and keys > window
        mask = causal(queries, keys, window) if is_cut or queries not in (1, keys) else None
        out = F.scaled_dot_product_attention(
            q_thd[query_places].transpose(1, 2),
            k_khd[key_places].transpose(1, 2),
            v_khd[key_places].transpose(1, 2),
            attn_mask=mask,
            is_causal=mask is None and queries > 1,
            scale=scaling,
            enable_gqa=True,
        )
        outs.append(out.transpose(1, 2).flatten(0, 1))
        places.append(query_places.flatten())
    if len(outs) == 1 and len(outs[0]) == len(q_thd):
        return outs[0]
    return torch.zeros_like(q_thd).index_copy(0, torch.cat(places), torch.cat(outs))


def mask_of(packed: Packed, tokens: int) -> Tensor:
    """Return the segments as a mask of the keys that each token sees, [1, 1, t, t]: for models that
    do not pass segments on to their attention.
    """
    seen_tt = torch.eye(tokens, dtype=torch.bool)  # tokens of no segment see themselves
    keys = torch.arange(tokens) if packed.keys_k is None else packed.keys_k.cpu()
    starts = packed.starts_n.tolist()
    key_starts = packed.key_starts_n.tolist()
    for n, (start, stop) in enumerate(pairwise(starts)):
        segment_keys = keys[key_starts[n] : key_starts[n + 1]]
        for token in range(start, stop):
            # The last query sees all keys, the one before all but the last, and so on.
            n_seen = len(segment_keys) - (stop - 1 - token)
            seen_tt[token, segment_keys[:n_seen]] = True
    return seen_tt[None, None].to(packed.starts_n.device)
