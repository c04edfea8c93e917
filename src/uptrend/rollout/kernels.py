"""Triton kernels of a decoding step on a GPU, one new token per row. Import it only where there is
Triton.

n = row, h = hidden, d = head dimension, g = query head of a group that shares a key-value head, l =
place in a page.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def _attend(
    qkv,
    out,
    cos,
    sin,
    keys,
    values,
    table,
    rows,
    positions,
    q_norm,
    k_norm,
    head_stride,
    width,
    scaling,
    epsilon,
    heads: tl.constexpr,
    shared: tl.constexpr,
    group: tl.constexpr,
    group_rows: tl.constexpr,
    size: tl.constexpr,
    page: tl.constexpr,
    has_norm: tl.constexpr,
):
    n = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1).to(tl.int64)
    seat = tl.load(rows + n)
    position = tl.load(positions + seat)
    d = tl.arange(0, size)
    g = tl.arange(0, group_rows)
    at = tl.arange(0, page)
    # Rope turns each channel together with its partner in the other half.
    partner = (d + size // 2) % size
    sign = tl.where(d < size // 2, -1.0, 1.0)
    c = tl.load(cos + position * size + d)
    s = sign * tl.load(sin + position * size + d)
    row = qkv + n * (heads + 2 * shared) * size

    q_at = row + (head * group + g[:, None]) * size
    is_query = g[:, None] < group
    q = tl.load(q_at + d[None, :], mask=is_query, other=0.0).to(tl.float32)
    q_partner = tl.load(q_at + partner[None, :], mask=is_query, other=0.0).to(tl.float32)
    k_at = row + (heads + head) * size
    k = tl.load(k_at + d).to(tl.float32)
    k_partner = tl.load(k_at + partner).to(tl.float32)
    v = tl.load(row + (heads + shared + head) * size + d)
    if has_norm:
        q_scale = tl.rsqrt(tl.sum(q * q, 1) / size + epsilon)[:, None]
        k_scale = tl.rsqrt(tl.sum(k * k, 0) / size + epsilon)
        q *= q_scale * tl.load(q_norm + d).to(tl.float32)[None, :]
        q_partner *= q_scale * tl.load(q_norm + partner).to(tl.float32)[None, :]
        k *= k_scale * tl.load(k_norm + d).to(tl.float32)
        k_partner *= k_scale * tl.load(k_norm + partner).to(tl.float32)
    dtype = keys.dtype.element_ty
    q = (q * c[None, :] + q_partner * s[None, :]).to(dtype)
    k = (k * c + k_partner * s).to(dtype)

    table += seat * width
    slot = tl.load(table + position // page) * page + position % page
    keys += head * head_stride
    values += head * head_stride
    tl.store(keys + slot * size + d, k)
    tl.store(values + slot * size + d, v.to(dtype))

    # The new token is in registers: attention begins with it and goes on over the pages of those
    # before.
    top = tl.sum(q.to(tl.float32) * k.to(tl.float32)[None, :], 1) * scaling
    total = tl.full([group_rows], 1.0, tl.float32)
    seen = tl.zeros([group_rows, size], tl.float32) + v.to(tl.float32)[None, :]
    for first in range(0, position, page):
        slots = tl.load(table + first // page) * page + at
        is_past = first + at < position
        k_page = tl.load(
            keys + slots[:, None] * size + d[None, :], mask=is_past[:, None], other=0.0
        )
        v_page = tl.load(
            values + slots[:, None] * size + d[None, :], mask=is_past[:, None], other=0.0
        )
        scores = tl.dot(q, tl.trans(k_page)) * scaling
        scores = tl.where(is_past[None, :], scores, float("-inf"))
        new_top = tl.maximum(top, tl.max(scores, 1))
        p = tl.exp(scores - new_top[:, None])
        shrink = tl.exp(top - new_top)
        total = total * shrink + tl.sum(p, 1)
        seen = seen * shrink[:, None] + tl.dot(p.to(dtype), v_page)
        top = new_top
    out_at = out + (n * heads + head * group + g[:, None]) * size + d[None, :]
    tl.store(out_at, (seen / total[:, None]).to(out.dtype.element_ty), mask=is_query)


@triton.jit
def _add_norm(x, y, weight, out, width, epsilon, block: tl.constexpr, has_y: tl.constexpr):
    n = tl.program_id(0)
    h = tl.arange(0, block)
    inside = h < width
    z = tl.load(x + n * width + h, mask=inside, other=0.0)
    if has_y:
        z += tl.load(y + n * width + h, mask=inside, other=0.0).to(tl.float32)
        tl.store(x + n * width + h, z, mask=inside)
    z *= tl.rsqrt(tl.sum(z * z, 0) / width + epsilon)
    z *= tl.load(weight + h, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + n * width + h, z.to(out.dtype.element_ty), mask=inside)


@triton.jit
def _gate(gate_up, out, width, block: tl.constexpr):
    n = tl.program_id(0)
    h = tl.program_id(1) * block + tl.arange(0, block)
    inside = h < width
    gate = tl.load(gate_up + 2 * n * width + h, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(gate_up + (2 * n + 1) * width + h, mask=inside, other=0.0).to(tl.float32)
    tl.store(
        out + n * width + h, (gate * tl.sigmoid(gate) * up).to(out.dtype.element_ty), mask=inside
    )


def attend(
    qkv_n: Tensor,
    cos_ld: Tensor,
    sin_ld: Tensor,
    pool: Tensor,
    table_np: Tensor,
    rows_n: Tensor,
    positions_n: Tensor,
    page: int,
    heads: int,
    scaling: float,
    epsilon: float,
    q_norm: Tensor | None,
    k_norm: Tensor | None,
) -> Tensor:
    """Turn queries and keys by their positions, write keys and values into pages, attend; [n, heads
    * d].

    `pool` is one layer's, [2, key-value heads, slots, d]; `table_np` and `positions_n` are by seat,
    and `rows_n` has the seat of each row. Queries and keys are normed where there are weights for
    it.
    """
    n, (_, shared, slots, size) = len(qkv_n), pool.shape
    out = torch.empty(n, heads * size, dtype=qkv_n.dtype, device=qkv_n.device)
    group = heads // shared
    assert all(x.is_contiguous() for x in (rows_n, qkv_n, table_np))
    _attend[n, shared](
        qkv_n,
        out,
        cos_ld,
        sin_ld,
        pool[0],
        pool[1],
        table_np,
        rows_n,
        positions_n,
        qkv_n if q_norm is None else q_norm,
        qkv_n if k_norm is None else k_norm,
        slots * size,
        table_np.shape[1],
        scaling,
        epsilon,
        heads,
        shared,
        group,
        max(16, triton.next_power_of_2(group)),
        size,
        page,
        q_norm is not None,
        num_warps=4,
    )
    return out


def add_norm(
    x_nh: Tensor, y_nh: Tensor | None, weight_h: Tensor, epsilon: float, dtype: torch.dtype
) -> Tensor:
    """Add y to x in place; return the root-mean-square norm of the sum."""
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


def gate(gate_up: Tensor) -> Tensor:
    """Return silu(gate) * up."""
    n = len(gate_up)
    width = gate_up.shape[1] // 2
    out = torch.empty(n, width, dtype=gate_up.dtype, device=gate_up.device)
    _gate[n, triton.cdiv(width, 1024)](gate_up, out, width, 1024, num_warps=4)
    return out


@triton.jit
def _pick(
    logits,
    rows,
    uniforms,
    stops,
    budget,
    turn,
    positions,
    done,
    tokens,
    ids,
    logprobs,
    v,
    width,
    temperature,
    is_greedy: tl.constexpr,
    block: tl.constexpr,
):
    n = tl.program_id(0)
    seat = tl.load(rows + n)
    is_done = tl.load(done + seat) != 0
    said = tl.load(turn + seat)
    position = tl.load(positions + seat)
    place = tl.where(is_done, width - 1, said)  # the last column is written by those that are done
    at = tl.arange(0, block)
    z_at = logits + n.to(tl.int64) * v
    top = -float("inf")
    best = 0
    mass = 0.0
    for start in range(0, v, block):
        z = tl.load(z_at + start + at, mask=start + at < v, other=-float("inf")) / temperature
        highest = tl.max(z, 0)
        best = tl.where(highest > top, start + tl.argmax(z, 0), best)
        higher = tl.maximum(top, highest)
        mass = mass * tl.exp(top - higher) + tl.sum(tl.exp(z - higher), 0)
        top = higher
    token = best
    if not is_greedy:
        # The first token at which the running sum passes u times the whole, among those with any
        # mass.
        aim = tl.minimum(tl.load(uniforms + seat * width + place), 1 - 1e-6) * mass
        before = 0.0
        token = -1
        last = best
        for start in range(0, v, block):
            if token < 0:
                z = (
                    tl.load(z_at + start + at, mask=start + at < v, other=-float("inf"))
                    / temperature
                )
                p = tl.exp(z - top)
                upto = before + tl.cumsum(p, 0)
                first = tl.min(tl.where((upto > aim) & (p > 0), start + at, v), 0)
                last = tl.maximum(last, tl.max(tl.where(p > 0, start + at, 0), 0))
                token = tl.where(first < v, first, token)
                before += tl.sum(p, 0)
        token = tl.where(token < 0, last, token)  # rounding left u just past the sum
    logprob = tl.load(z_at + token) / temperature - top - tl.log(mass)
    tl.store(ids + seat * width + place, token)
    tl.store(logprobs + seat * width + place, logprob)
    if not is_done:
        ends = (tl.load(stops + token) != 0) | (said + 1 >= tl.load(budget + seat))
        tl.store(tokens + seat, token)
        tl.store(turn + seat, said + 1)
        tl.store(positions + seat, position + 1)
        tl.store(done + seat, ends.to(tl.int8))


def pick(
    logits_nv: Tensor, rows_n: Tensor, state: Any, stops_v: Tensor, temperature: float
) -> None:
    """Choose each row's next token with its random number and note it in the state; 0 takes the
    likeliest.
    """
    s = state
    assert all(x.is_contiguous() for x in (rows_n, logits_nv))
    _pick[len(logits_nv),](
        logits_nv,
        rows_n,
        s.uniforms_nm,
        stops_v.view(torch.int8),
        s.budget,
        s.turn,
        s.positions,
        s.done.view(torch.int8),
        s.tokens,
        s.ids_nm,
        s.logprobs_nm,
        logits_nv.shape[1],
        s.ids_nm.shape[1],
        temperature or 1.0,
        temperature == 0,
        4096,
        num_warps=8,
    )
