"""From sequences to what goes through the model: micro-batches that share prompts and respect a token budget.

The rollouts of a group begin with the same prompt. Where it pays, several of them go through the model as one
row, the prompt once and the tails behind it:

    prompt prompt prompt | tail 1 tail 1 | tail 2 tail 2 tail 2 | …

Each tail sees the prompt and itself, at the positions that it would have alone; gradients add up in the
prompt. The result is the same as row by row, to rounding (tested), with fewer tokens to compute.

b = sequence, r = row through the model, t = place in it, m = sampled token, s = sampled token within its sequence.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Ints = NDArray[np.int64]
# Rows that stay in one micro-batch, each a list of sequences: all of a rollout's, for sums over whole rollouts.
Unit = list[list[int]]
# Prompts are shared where that costs less than this part of going row by row.
WORTH_IT = 0.8


@dataclass(frozen=True)
class Line:
    """One sequence, as the learner needs it."""

    ids: Ints  # all its tokens
    sampled: Ints  # places of those that the model wrote
    visible: NDArray[np.bool_]  # true for tokens that attention may see
    prompt: int  # number of its first tokens that are the task's prompt
    group: int  # its group
    rollout: int  # its rollout


@dataclass(frozen=True)
class Cost:
    """Multiplications that the model needs."""

    token: float  # per token: the weights of the layers
    pair: float  # per pair of tokens, for attention


@dataclass(frozen=True)
class Grain:
    """Multiples that shapes are rounded up to, so that few of them occur and a GPU's graphs are reused."""

    width: int = 8  # tokens per row; attention kernels like multiples of 8
    sampled: int = 1  # sampled tokens per micro-batch; the ones filled in are written to a column that nobody reads


@dataclass(frozen=True)
class Micro:
    """Micro-batch: what goes through the model at once."""

    lines: Tensor  # its sequences, by number
    ids_rt: Tensor  # token ids, padded to the right
    positions_rt: Tensor | None  # position that each token would have alone; None where that is its place
    mask: Tensor | None  # attention mask, bool [r, 1, t, t]; None for plain causal attention
    predictors_m: Tensor  # place, in the flattened rows, of the hidden state that predicts each sampled token
    targets_m: Tensor  # the sampled tokens
    # Each sampled token's row of `lines` and its place among that line's sampled tokens; filler goes behind them.
    at_m: tuple[Tensor, Tensor]
    numbers: tuple[int, ...]  # the same sequences, for the host
    padding: float  # share of `ids_rt` that is padding
    support_mk: Tensor | None = None  # tokens that each sampled one was drawn from; None for all
    contexts_st: Tensor | None = None  # ids of each line, for a repetition penalty
    places_m: Tensor | None = None  # place of each sampled token in its line, for the same

    @property
    def tensors(self) -> tuple[Tensor | None, ...]:
        """Inputs of a forward pass, in order."""
        shaping = self.support_mk, self.contexts_st, self.places_m
        return self.ids_rt, self.positions_rt, self.mask, self.predictors_m, self.targets_m, *shaping, *self.at_m

    def to(self, device: torch.device) -> "Micro":
        tensors = (self.lines, *self.tensors)
        moved: list[Any] = [None if x is None else x.to(device, non_blocking=True) for x in tensors]
        lines, ids, positions, mask, predictors, targets, *shaping, line_m, place_m = moved
        parts = lines, ids, positions, mask, predictors, targets, (line_m, place_m)
        return Micro(*parts, self.numbers, self.padding, *shaping)


def pack(
    lines: Sequence[Line], numbers: Sequence[int], budget: int, cost: Cost, grain: Grain, longest: int
) -> list[Micro]:
    """Make micro-batches of at most `budget` tokens, padding included; a rollout longer than that goes alone."""
    units: list[Unit] = []
    for group in _group_by(numbers, [lines[i].group for i in numbers]):
        units += _share(lines, group, cost, budget, grain)
    longest_of = {id(unit): max(_length(lines, row) for row in unit) for unit in units}
    units.sort(key=lambda unit: -longest_of[id(unit)])  # similar lengths together: less padding
    batches: list[list[list[int]]] = []
    while units:
        rows = max(1, budget // _round_up(longest_of[id(units[0])], grain.width))
        most = max(1, rows // max(map(len, units)))
        # Even shares rather than a full batch and a remainder: one shape, one graph.
        share = -(-len(units) // -(-len(units) // most))
        batches.append([row for unit in units[:share] for row in unit])
        units = units[share:]
    return [_lay_out(lines, batch, grain, longest) for batch in batches]


def _share(lines: Sequence[Line], group: list[int], cost: Cost, budget: int, grain: Grain) -> list[Unit]:
    """Cut a group into rows, with as many rollouts per row as is cheapest."""
    rollouts = _group_by(group, [lines[i].rollout for i in group])
    prompt = lines[group[0]].ids[: lines[group[0]].prompt]
    is_shared = all(
        len(r) == 1 and lines[r[0]].prompt == len(prompt) and np.array_equal(lines[r[0]].ids[: len(prompt)], prompt)
        for r in rollouts
    )
    if not is_shared:
        return [[[i] for i in r] for r in rollouts]
    singles = [r[0] for r in rollouts]
    tails = np.array([len(lines[i].ids) - len(prompt) for i in singles])
    sizes = sorted({*(1 << k for k in range(len(singles).bit_length())), len(singles)})
    prices = {size: _price(tails, len(prompt), size, cost, budget, grain) for size in sizes}
    best = min(sizes, key=lambda size: prices[size])
    # Shared rows come in many shapes and need a mask: they have to save a good part of the work.
    size = best if prices[best] < WORTH_IT * prices[1] else 1
    return [[singles[i : i + size]] for i in range(0, len(singles), size)]


def _price(tails: Ints, prompt: int, size: int, cost: Cost, budget: int, grain: Grain) -> float:
    """Return the cost of a group with `size` rollouts per row; infinite where such a row exceeds the budget."""
    widths = prompt + np.add.reduceat(tails, np.arange(0, len(tails), size))
    widths = -(-widths // grain.width) * grain.width
    if size > 1 and widths.max() > budget:
        return float("inf")
    # A plain causal row computes half of its pairs, in a kernel about twice as fast as one with a mask.
    pairs = 0.25 if size == 1 else 1.0
    return float(cost.token * widths.sum() + cost.pair * pairs * (widths * widths).sum())


def _length(lines: Sequence[Line], row: list[int]) -> int:
    prompt = lines[row[0]].prompt
    return prompt + sum(len(lines[i].ids) - prompt for i in row)


def _lay_out(lines: Sequence[Line], rows: list[list[int]], grain: Grain, longest: int) -> Micro:
    width = _round_up(max(_length(lines, row) for row in rows), grain.width)
    ids, positions = np.zeros((2, len(rows), width), np.int64)
    part = np.full((len(rows), width), -1, np.int64)  # -1 is padding, 0 a shared prompt, n the n-th tail
    visible = np.zeros((len(rows), width), bool)
    predictors, targets, at_line, at_place = [], [], [], []
    order = [i for row in rows for i in row]
    place = 0
    for r, row in enumerate(rows):
        start = lines[row[0]].prompt if len(row) > 1 else 0
        if start:
            ids[r, :start], visible[r, :start] = lines[row[0]].ids[:start], lines[row[0]].visible[:start]
            positions[r, :start], part[r, :start] = np.arange(start), 0
        end = start
        for number, i in enumerate(row, 1):
            line = lines[i]
            tail = slice(end, end + len(line.ids) - start)
            ids[r, tail], visible[r, tail] = line.ids[start:], line.visible[start:]
            positions[r, tail], part[r, tail] = np.arange(start, len(line.ids)), number
            before = line.sampled - 1  # the token whose hidden state predicts it
            predictors.append(r * width + np.where(before < start, before, before - start + end))
            targets.append(line.ids[line.sampled])
            at_line.append(np.full(len(line.sampled), place))
            at_place.append(np.arange(len(line.sampled)))
            end, place = tail.stop, place + 1
    sampled = sum(map(len, targets))
    multiple = max(grain.sampled, len(order) * longest // 8) if grain.sampled > 1 else 1
    filler = np.zeros(_round_up(sampled, multiple) - sampled, np.int64)
    is_plain = all(len(row) == 1 for row in rows) and bool((visible == (part >= 0)).all())
    tensor = torch.from_numpy
    return Micro(
        lines=torch.tensor(order),
        ids_rt=tensor(ids),
        positions_rt=None if is_plain else tensor(positions),
        mask=None if is_plain else see(tensor(part), tensor(visible)),
        predictors_m=tensor(np.concatenate([*predictors, filler])),
        targets_m=tensor(np.concatenate([*targets, filler])),
        at_m=(tensor(np.concatenate([*at_line, filler])), tensor(np.concatenate([*at_place, filler + longest]))),
        numbers=tuple(order),
        padding=float((part < 0).mean()),
    )


def see(part_rt: Tensor, visible_rt: Tensor) -> Tensor:
    """Make the attention mask: backwards, to the prompt (part 0) and one's own part, never to hidden tokens.

    Every place sees itself, so that padding has something to attend to and gives no NaN.
    """
    width = part_rt.shape[1]
    backwards = torch.ones(width, width, dtype=torch.bool).tril()
    related = (part_rt[:, :, None] == part_rt[:, None, :]) | (part_rt[:, None, :] == 0)
    seen = backwards & related & visible_rt[:, None, :]
    return (seen | torch.eye(width, dtype=torch.bool))[:, None]


def _group_by(items: Sequence[int], keys: Sequence[int]) -> list[list[int]]:
    found: dict[int, list[int]] = {}
    for item, key in zip(items, keys, strict=True):
        found.setdefault(key, []).append(item)
    return list(found.values())


def _round_up(number: int, multiple: int) -> int:
    return -(-number // multiple) * multiple
