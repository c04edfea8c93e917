"""Triton kernels of a decoding step on a GPU, one new token per row. Importing it needs Triton.

n = row, s = slot (see `decoding`), h = hidden, d = head dimension, g = query head of a group that
shares a key-value head, c = cell of a page (see `cache`), p = page of a slot, v = vocabulary.
In the kernels, names like `q_gd` are blocks of values; names without a suffix are numbers, and
parameters the addresses of tensors.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

# `tl.dot` multiplies blocks of at least 16 rows; groups of fewer query heads are filled up.
MIN_DOT_ROWS = 16
# Channels per program of the gate, and logits per pass of a program that chooses a token.
GATE_BLOCK = 1024
LOGITS_BLOCK = 4096


def rope_write_attend(
    qkv_n: Tensor,
    *,
    cos_ld: Tensor,
    sin_ld: Tensor,
    pool: Tensor,
    table_sp: Tensor,
    slots_n: Tensor,
    positions_s: Tensor,
    page_tokens: int,
    query_heads: int,
    scaling: float,
    epsilon: float,
    q_norm_d: Tensor | None,
    k_norm_d: Tensor | None,
) -> Tensor:
    """Turn queries and keys by their positions, write keys and values into pages, and attend;
    return the attended values, [n, heads * d].

    `pool` is one layer's, [2, key-value heads, cells, d]; `cos_ld` and `sin_ld` have a row for each
    position. With `q_norm_d` and `k_norm_d`, queries and keys are normed first.
    """
    n = len(qkv_n)
    _, kv_heads, n_cells, head_dim = pool.shape
    out = torch.empty(n, query_heads * head_dim, dtype=qkv_n.dtype, device=qkv_n.device)
    group = query_heads // kv_heads
    assert all(x.is_contiguous() for x in (slots_n, qkv_n, table_sp))
    # One program for each row and key-value head: all query heads that share it.
    _rope_write_attend[n, kv_heads](
        qkv_n,
        out,
        cos_ld,
        sin_ld,
        pool[0],
        pool[1],
        table_sp,
        slots_n,
        positions_s,
        # Without weights, an address that is not read.
        qkv_n if q_norm_d is None else q_norm_d,
        qkv_n if k_norm_d is None else k_norm_d,
        n_cells * head_dim,
        table_sp.shape[1],
        scaling,
        epsilon,
        query_heads,
        kv_heads,
        group,
        max(MIN_DOT_ROWS, triton.next_power_of_2(group)),
        head_dim,
        page_tokens,
        q_norm_d is not None,
        num_warps=4,
    )
    return out


@triton.jit
def _rope_write_attend(
    qkv,
    out,
    cos,
    sin,
    keys,
    values,
    table,
    slots,
    positions,
    q_norm,
    k_norm,
    head_stride,
    table_width,
    scaling,
    epsilon,
    query_heads: tl.constexpr,
    kv_heads: tl.constexpr,
    group: tl.constexpr,
    group_rows: tl.constexpr,
    head_dim: tl.constexpr,
    page_tokens: tl.constexpr,
    has_norm: tl.constexpr,
):
    # 64 bits: addresses in a large pool do not fit into 32.
    n = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1).to(tl.int64)
    slot = tl.load(slots + n)
    position = tl.load(positions + slot)
    d = tl.arange(0, head_dim)
    g = tl.arange(0, group_rows)
    c = tl.arange(0, page_tokens)

    # RoPE turns each channel together with its partner in the other half.
    partner_d = (d + head_dim // 2) % head_dim
    sign_d = tl.where(d < head_dim // 2, -1.0, 1.0)
    cos_d = tl.load(cos + position * head_dim + d)
    sin_d = sign_d * tl.load(sin + position * head_dim + d)

    # A row of qkv: all query heads, all keys, all values. Queries of one group follow each other.
    row = qkv + n * (query_heads + 2 * kv_heads) * head_dim
    q_address = row + (head * group + g[:, None]) * head_dim
    is_query = g[:, None] < group
    q_gd = tl.load(q_address + d[None, :], mask=is_query, other=0.0).to(tl.float32)
    q_partner_gd = tl.load(q_address + partner_d[None, :], mask=is_query, other=0.0).to(tl.float32)
    k_address = row + (query_heads + head) * head_dim
    k_d = tl.load(k_address + d).to(tl.float32)
    k_partner_d = tl.load(k_address + partner_d).to(tl.float32)
    v_d = tl.load(row + (query_heads + kv_heads + head) * head_dim + d)
    if has_norm:
        q_scale = tl.rsqrt(tl.sum(q_gd * q_gd, 1) / head_dim + epsilon)[:, None]
        k_scale = tl.rsqrt(tl.sum(k_d * k_d, 0) / head_dim + epsilon)
        q_gd *= q_scale * tl.load(q_norm + d).to(tl.float32)[None, :]
        q_partner_gd *= q_scale * tl.load(q_norm + partner_d).to(tl.float32)[None, :]
        k_d *= k_scale * tl.load(k_norm + d).to(tl.float32)
        k_partner_d *= k_scale * tl.load(k_norm + partner_d).to(tl.float32)
    dtype = keys.dtype.element_ty
    q_gd = (q_gd * cos_d[None, :] + q_partner_gd * sin_d[None, :]).to(dtype)
    k_d = (k_d * cos_d + k_partner_d * sin_d).to(dtype)

    # Write the new key and value into the cell of their position.
    table += slot * table_width
    page = tl.load(table + position // page_tokens)
    cell = page * page_tokens + position % page_tokens
    keys += head * head_stride
    values += head * head_stride
    tl.store(keys + cell * head_dim + d, k_d)
    tl.store(values + cell * head_dim + d, v_d.to(dtype))

    # Softmax in one pass over the pages (as in FlashAttention): sums are kept relative to the
    # highest score so far, and shrink when a higher one comes. The new token is in registers:
    # attention begins with it and goes on over the pages of those before.
    top_g = tl.sum(q_gd.to(tl.float32) * k_d.to(tl.float32)[None, :], 1) * scaling
    total_g = tl.full([group_rows], 1.0, tl.float32)
    sum_gd = tl.zeros([group_rows, head_dim], tl.float32) + v_d.to(tl.float32)[None, :]
    for first in range(0, position, page_tokens):
        cells_c = tl.load(table + first // page_tokens) * page_tokens + c
        is_past = first + c < position
        cells_cd = cells_c[:, None] * head_dim + d[None, :]
        k_cd = tl.load(keys + cells_cd, mask=is_past[:, None], other=0.0)
        v_cd = tl.load(values + cells_cd, mask=is_past[:, None], other=0.0)
        scores_gc = tl.dot(q_gd, tl.trans(k_cd)) * scaling
        scores_gc = tl.where(is_past[None, :], scores_gc, float("-inf"))
        new_top_g = tl.maximum(top_g, tl.max(scores_gc, 1))
        p_gc = tl.exp(scores_gc - new_top_g[:, None])
        shrink_g = tl.exp(top_g - new_top_g)
        total_g = total_g * shrink_g + tl.sum(p_gc, 1)
        sum_gd = sum_gd * shrink_g[:, None] + tl.dot(p_gc.to(dtype), v_cd)
        top_g = new_top_g
    out_address = out + (n * query_heads + head * group + g[:, None]) * head_dim + d[None, :]
    tl.store(out_address, (sum_gd / total_g[:, None]).to(out.dtype.element_ty), mask=is_query)


def add_norm_(
    x_nh: Tensor, y_nh: Tensor | None, weight_h: Tensor, epsilon: float, dtype: torch.dtype
) -> Tensor:
    """Add y to x in place, if there is one; return the root-mean-square norm of x then."""
    out = torch.empty_like(x_nh, dtype=dtype)
    width = x_nh.shape[1]
    _add_norm[len(x_nh),](
        x_nh,
        x_nh if y_nh is None else y_nh,
        weight_h,
        out,
        width,
        epsilon,
        triton.next_power_of_2(width),
        y_nh is not None,
        num_warps=4,
    )
    return out


@triton.jit
def _add_norm(x, y, weight, out, width, epsilon, block: tl.constexpr, has_y: tl.constexpr):
    n = tl.program_id(0)
    h = tl.arange(0, block)
    is_inside = h < width
    x_address = x + n * width + h
    sum_h = tl.load(x_address, mask=is_inside, other=0.0)
    if has_y:
        y_h = tl.load(y + n * width + h, mask=is_inside, other=0.0)
        sum_h += y_h.to(tl.float32)
        tl.store(x_address, sum_h, mask=is_inside)
    normed_h = sum_h * tl.rsqrt(tl.sum(sum_h * sum_h, 0) / width + epsilon)
    normed_h *= tl.load(weight + h, mask=is_inside, other=0.0).to(tl.float32)
    tl.store(out + n * width + h, normed_h.to(out.dtype.element_ty), mask=is_inside)


def gate(gate_up: Tensor) -> Tensor:
    """Return silu(gate) * up, for gate and up side by side in each row."""
    n = len(gate_up)
    width = gate_up.shape[1] // 2
    out = torch.empty(n, width, dtype=gate_up.dtype, device=gate_up.device)
    _gate[n, triton.cdiv(width, GATE_BLOCK)](gate_up, out, width, GATE_BLOCK, num_warps=4)
    return out


@triton.jit
def _gate(gate_up, out, width, block: tl.constexpr):
    n = tl.program_id(0)
    h = tl.program_id(1) * block + tl.arange(0, block)
    is_inside = h < width
    gate_address = gate_up + 2 * n * width + h
    up_address = gate_up + (2 * n + 1) * width + h
    gate_h = tl.load(gate_address, mask=is_inside, other=0.0).to(tl.float32)
    up_h = tl.load(up_address, mask=is_inside, other=0.0).to(tl.float32)
    gated_h = gate_h * tl.sigmoid(gate_h) * up_h
    tl.store(out + n * width + h, gated_h.to(out.dtype.element_ty), mask=is_inside)


def pick(
    logits_nv: Tensor, slots_n: Tensor, state: Any, endings_ev: Tensor, temperature: float
) -> None:
    """Choose each row's next token with its random number and store it in the state; 0 takes the
    likeliest.

    Does the same as `decoding.choose` and what follows it there, in one launch.
    """
    assert all(x.is_contiguous() for x in (slots_n, logits_nv, endings_ev))
    _pick[len(logits_nv),](
        logits_nv,
        slots_n,
        state.uniforms_sm,
        endings_ev,
        state.max_tokens_s,
        state.n_sampled_s,
        state.endings_s,
        state.positions_s,
        state.done_s.view(torch.int8),
        state.tokens_s,
        state.ids_sm,
        state.logprobs_sm,
        logits_nv.shape[1],
        state.ids_sm.shape[1],
        temperature or 1.0,
        temperature == 0,
        LOGITS_BLOCK,
        num_warps=8,
    )


@triton.jit
def _pick(
    logits,
    slots,
    uniforms,
    ending_table,
    max_tokens,
    n_sampled,
    endings,
    positions,
    done,
    tokens,
    ids,
    logprobs,
    vocabulary,
    n_columns,
    temperature,
    is_greedy: tl.constexpr,
    block: tl.constexpr,
):
    n = tl.program_id(0)
    slot = tl.load(slots + n)
    is_done = tl.load(done + slot) != 0
    count = tl.load(n_sampled + slot)
    position = tl.load(positions + slot)
    # The last column is written by slots that are done.
    column = tl.where(is_done, n_columns - 1, count)
    v = tl.arange(0, block)
    row = logits + n.to(tl.int64) * vocabulary

    # The likeliest token, and the sum of exp(z - top) in one pass: what was summed shrinks when a
    # higher logit comes.
    top = -float("inf")
    best = 0
    mass = 0.0
    for start in range(0, vocabulary, block):
        is_inside = start + v < vocabulary
        z = tl.load(row + start + v, mask=is_inside, other=-float("inf")) / temperature
        block_top = tl.max(z, 0)
        best = tl.where(block_top > top, start + tl.argmax(z, 0), best)
        new_top = tl.maximum(top, block_top)
        mass = mass * tl.exp(top - new_top) + tl.sum(tl.exp(z - new_top), 0)
        top = new_top

    token = best
    if not is_greedy:
        # The first token at which the running sum passes u times the whole, among those with any
        # mass. Below 1, as MAX_UNIFORM in `decoding`.
        uniform = tl.load(uniforms + slot * n_columns + column)
        target = tl.minimum(uniform, 1 - 1e-6) * mass
        before = 0.0
        token = -1
        last = best
        for start in range(0, vocabulary, block):
            if token < 0:
                is_inside = start + v < vocabulary
                z = tl.load(row + start + v, mask=is_inside, other=-float("inf")) / temperature
                p = tl.exp(z - top)
                upto = before + tl.cumsum(p, 0)
                passes = (upto > target) & (p > 0)
                first = tl.min(tl.where(passes, start + v, vocabulary), 0)
                last = tl.maximum(last, tl.max(tl.where(p > 0, start + v, 0), 0))
                token = tl.where(first < vocabulary, first, token)
                before += tl.sum(p, 0)
        token = tl.where(token < 0, last, token)  # rounding left u just past the sum

    logprob = tl.load(row + token) / temperature - top - tl.log(mass)
    tl.store(ids + slot * n_columns + column, token)
    tl.store(logprobs + slot * n_columns + column, logprob)
    if not is_done:
        # State of the automaton that ends turns: -1 where it ends, as ENDED in `endings`.
        ending = tl.load(ending_table + tl.load(endings + slot) * vocabulary + token)
        tl.store(endings + slot, tl.maximum(ending, 0).to(tl.int64))
        is_stop = ending < 0
        is_full = count + 1 >= tl.load(max_tokens + slot)
        is_last = is_stop | is_full
        tl.store(tokens + slot, token)
        tl.store(n_sampled + slot, count + 1)
        tl.store(positions + slot, position + 1)
        tl.store(done + slot, is_last.to(tl.int8))
