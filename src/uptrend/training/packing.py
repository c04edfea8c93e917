"""From sequences to what goes through the model: micro-batches of tokens back to back, within a
token budget.

A micro-batch is one row of tokens. Each sequence is a segment of it, seen by nobody else
(policy/attention.py), at the positions that it would have alone: no padding, whatever the lengths.
Only tokens that matter are there: none after the last one that predicts a sampled token.

The rollouts of a group begin with the same prompt. Where it pays, the prompt is there once, and its
keys are among those of every rollout behind it:

    prompt prompt prompt | tail 1 tail 1 | tail 2 tail 2 tail 2 | …

Gradients add up in the prompt. The result is the same as sequence by sequence, to rounding
(tested).

On a GPU sizes are filled up to one of few, so that a graph captured once serves the steps to come.

b = sequence, t = token through the model, k = key, n = segment, m = sampled token, s = sampled
token of its sequence.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Ints = NDArray[np.int64]
# Sequences that stay in one micro-batch: all of a rollout's, for sums over whole rollouts, or
# rollouts with one prompt.
Unit = list[int]


@dataclass(frozen=True)
class TrainSequence:
    """One sequence, as the learner needs it."""

    ids: Ints  # all its tokens
    sampled: Ints  # places of those that the model wrote
    attended: NDArray[np.bool_]  # true for tokens that attention may see
    prompt: int  # number of its first tokens that are the task's prompt
    group: int  # its group
    rollout: int  # its rollout

    @property
    def width(self) -> int:
        """Number of its tokens up to the last that predicts one."""
        return int(self.sampled[-1]) if len(self.sampled) else 0


class Size(NamedTuple):
    """Numbers that make the shapes of a micro-batch."""

    tokens: int
    keys: int  # 0 where each segment's keys are its own tokens
    segments: int
    sampled: int
    longest: int  # most tokens or keys of a segment


@dataclass
class Shapes:
    """Sizes that micro-batches are filled up to; on a GPU few of them, each with a graph of its
    own.
    """

    is_free: bool = True  # true where any size will do
    known: list[Size] = field(default_factory=list)

    def fit(self, least: Size) -> Size:
        """Return a size that holds so much: one that came before if it wastes little, else a round
        one.
        """
        if self.is_free:
            return least
        for size in self.known:
            holds = all(have >= need for have, need in zip(size, least, strict=True))
            if holds and size.tokens <= 1.15 * least.tokens and bool(size.keys) == bool(least.keys):
                return size
        new = Size(
            _round(least.tokens, 8),
            _round(least.keys, 4),
            _round(least.segments, 1),
            _round(least.sampled, 4),
            max(128, _round(least.longest, 1)),
        )
        self.known = sorted([*self.known, new])
        return new


def _round(number: int, steps: int) -> int:
    """Round up to a size of which there are so many between a power of two and the next."""
    power = 1 << max(0, number - 1).bit_length()
    grain = power if steps == 1 else max(1, power // (2 * steps))
    return -(-number // grain) * grain if number else 0


@dataclass(frozen=True)
class MicroBatch:
    """MicroBatch-batch: what goes through the model at once."""

    numbers: tuple[int, ...]  # its sequences
    ids_t: Tensor  # token ids
    positions_t: Tensor  # position that each token would have alone
    starts_n: Tensor  # first token of each segment; see Packed
    key_starts_n: Tensor
    longest: int
    keys_k: Tensor | None  # place of each key; None where each segment's keys are its own tokens
    predictors_m: Tensor  # place of the hidden state that predicts each sampled token
    targets_m: Tensor  # the sampled tokens
    # Each sampled token's number among `numbers` and its place among that sequence's sampled
    # tokens; filler goes behind them.
    sequences_m: Tensor
    places_m: Tensor
    padding: float  # share of `ids_t` that only fills up
    support_mk: Tensor | None = None  # tokens that each sampled one was drawn from; None for all
    contexts_st: Tensor | None = None  # ids of each sequence, for a repetition penalty
    ends_m: Tensor | None = None  # place of each sampled token in its sequence, for the same

    @property
    def inputs(self) -> tuple[Any, ...]:
        """Inputs of a forward pass, in order."""
        return tuple(getattr(self, name) for name in INPUTS)

    def to(self, device: torch.device) -> "MicroBatch":
        tensors = {
            f.name: getattr(self, f.name)
            for f in fields(self)
            if isinstance(getattr(self, f.name), Tensor)
        }
        return replace(
            self, **{name: x.to(device, non_blocking=True) for name, x in tensors.items()}
        )


INPUTS = (
    "ids_t",
    "positions_t",
    "starts_n",
    "key_starts_n",
    "longest",
    "keys_k",
    "predictors_m",
    "targets_m",
    "support_mk",
    "contexts_st",
    "sequences_m",
    "ends_m",
)


def pack(
    sequences: Sequence[TrainSequence],
    numbers: Sequence[int],
    budget: int,
    worth: float,
    shapes: Shapes,
    longest: int,
) -> list[MicroBatch]:
    """Make micro-batches of at most `budget` tokens, as even as may be; a rollout longer than that
    goes alone.

    Prompts are shared where that saves at least the share `worth` of a group's tokens. `longest` is
    the number of places that a sequence has for sampled tokens.
    """
    units: list[tuple[Unit, int]] = []
    for group in _group_by(numbers, [sequences[i].group for i in numbers]):
        units += _units(sequences, group, budget, worth)
    units.sort(key=lambda unit: -unit[1])
    count = -(-sum(size for _, size in units) // budget)
    while True:
        bins = _spread(units, count)
        if all(size <= budget or len(unit) == 1 for unit, size in bins):
            break
        count += 1
    return [_lay_out(sequences, [u for u, _ in unit], shapes, longest) for unit, _ in bins]


def _spread(units: list[tuple[Unit, int]], count: int) -> list[tuple[list[tuple[Unit, int]], int]]:
    """Put units, the largest first, into the emptiest of so many bins."""
    bins: list[tuple[list[tuple[Unit, int]], int]] = [([], 0) for _ in range(count)]
    for unit in units:
        i = min(range(count), key=lambda i: bins[i][1])
        bins[i] = ([*bins[i][0], unit], bins[i][1] + unit[1])
    return [filled for filled in bins if filled[0]]


def _units(
    sequences: Sequence[TrainSequence], group: list[int], budget: int, worth: float
) -> list[tuple[Unit, int]]:
    """Return a group's units with their tokens: rollouts alone, or as many with the prompt that
    they share as fit.
    """
    rollouts = _group_by(group, [sequences[i].rollout for i in group])
    alone = [(rollout, sum(sequences[i].width for i in rollout)) for rollout in rollouts]
    first = sequences[group[0]]
    prompt = first.prompt
    same = (first.ids[: first.prompt], first.attended[: first.prompt])
    tails = [tokens - prompt for _, tokens in alone]
    is_shared = prompt and all(
        len(r) == 1
        and sequences[r[0]].prompt == prompt
        and all(
            map(
                np.array_equal,
                same,
                (sequences[r[0]].ids[:prompt], sequences[r[0]].attended[:prompt]),
            )
        )
        for r in rollouts
    )
    if not is_shared or (len(rollouts) - 1) * prompt < worth * sum(tokens for _, tokens in alone):
        return alone
    units: list[tuple[Unit, int]] = []
    for rollout, tail in zip(rollouts, tails, strict=True):
        if units and units[-1][1] + tail <= budget:
            units[-1] = ([*units[-1][0], *rollout], units[-1][1] + tail)
        else:
            units.append((rollout, prompt + tail))
    return units


class _Row:
    """Collects the tokens, segments and predictions of a micro-batch."""

    def __init__(self) -> None:
        self.ids = list[Ints]()
        self.positions = list[Ints]()
        self.keys = list[Ints]()
        self.tokens = 0
        self.widths = list[int]()
        self.key_widths = list[int]()
        self.is_shared = False

    def add(self, ids: Ints, positions: Ints, before: Ints) -> Ints:
        """Add a segment with the keys before it; return the places of its tokens."""
        places = np.arange(self.tokens, self.tokens + len(ids))
        self.ids.append(ids)
        self.positions.append(positions)
        self.keys += [before, places]
        self.widths.append(len(ids))
        self.key_widths.append(len(before) + len(ids))
        self.is_shared |= len(before) > 0
        self.tokens += len(ids)
        return places


EMPTY = np.zeros(0, np.int64)


def _add_sequence(row: _Row, sequence: TrainSequence, start: int, stop: int, prompt: Ints) -> Ints:
    """Add a sequence's tokens from `start` to `stop` behind the places of its prompt; return the
    place of each.

    A token that attention may not see is a segment by itself if it predicts something, and left out
    otherwise.
    """
    if sequence.attended[start:stop].all():
        return row.add(sequence.ids[start:stop], np.arange(start, stop), prompt)
    places = np.full(stop - start, -1)
    before = prompt
    edges = [start, *(np.flatnonzero(np.diff(sequence.attended[start:stop])) + start + 1), stop]
    predicts = np.isin(np.arange(stop), sequence.sampled - 1)
    for begin, end in pairwise(edges):
        if sequence.attended[begin]:
            places[begin - start : end - start] = row.add(
                sequence.ids[begin:end], np.arange(begin, end), before
            )
            before = np.concatenate([before, places[begin - start : end - start]])
        else:
            for i in np.flatnonzero(predicts[begin:end]) + begin:
                places[i - start] = row.add(sequence.ids[i : i + 1], np.array([i]), before)[0]
    return places


def _lay_out(
    sequences: Sequence[TrainSequence], units: list[Unit], shapes: Shapes, longest: int
) -> MicroBatch:
    row = _Row()
    order = list[int]()
    predictors = list[Ints]()
    for unit in units:
        first = sequences[unit[0]]
        shared = EMPTY
        start = first.prompt if len({sequences[i].rollout for i in unit}) > 1 else 0
        heads = _add_sequence(row, first, 0, start, EMPTY) if start else EMPTY
        shared = heads[first.attended[:start]]
        for i in unit:
            sequence = sequences[i]
            tail = (
                _add_sequence(row, sequence, start, sequence.width, shared)
                if sequence.width > start
                else EMPTY
            )
            predictors.append(np.concatenate([heads, tail])[sequence.sampled - 1])
            order.append(i)
    counts = [len(places) for places in predictors]
    sampled = sum(counts)
    least = Size(
        row.tokens,
        sum(row.key_widths) if row.is_shared else 0,
        len(row.widths),
        sampled,
        max(row.key_widths),
    )
    size, used = _filled(row, least, shapes)
    extra = np.zeros(size.sampled - sampled, np.int64)
    edges, key_edges = (
        np.cumsum([0, *widths])
        for widths in (row.widths, row.key_widths if row.is_shared else row.widths)
    )
    tail = np.zeros(size.segments + 1 - len(edges), np.int64)
    starts, key_starts = (
        torch.from_numpy(np.concatenate([x, tail + x[-1]]).astype(np.int32))
        for x in (edges, key_edges)
    )
    tensor = torch.from_numpy
    return MicroBatch(
        numbers=tuple(order),
        ids_t=tensor(np.concatenate(row.ids)),
        positions_t=tensor(np.concatenate(row.positions)),
        starts_n=starts,
        key_starts_n=key_starts,
        longest=size.longest,
        keys_k=tensor(np.concatenate(row.keys)) if row.is_shared else None,
        predictors_m=tensor(np.concatenate([*predictors, extra])),
        targets_m=tensor(
            np.concatenate([*(sequences[i].ids[sequences[i].sampled] for i in order), extra])
        ),
        sequences_m=tensor(np.concatenate([np.repeat(np.arange(len(order)), counts), extra])),
        places_m=tensor(np.concatenate([*(np.arange(count) for count in counts), extra + longest])),
        padding=1 - used / size.tokens,
    )


def _filled(row: _Row, least: Size, shapes: Shapes) -> tuple[Size, int]:
    """Fill a row up to a size, with segments that nobody looks at; return it and the tokens that
    are no filler.
    """
    used = row.tokens
    if shapes.is_free:
        return least, used
    # Each filling segment has a token at least, and no more keys than the longest.
    parts = fill = 1
    while True:
        keys = least.keys + fill if row.is_shared else 0
        size = shapes.fit(
            least._replace(tokens=used + fill, keys=keys, segments=least.segments + parts)
        )
        needed = -(-max(size.tokens - used, size.keys - least.keys) // size.longest)
        if needed <= parts and (size.tokens - used == fill or not row.is_shared):
            break
        parts = max(parts, needed)
        fill = max(size.tokens - used, needed)
    tokens = np.array_split(np.zeros(size.tokens - used, np.int64), parts)
    widths = [len(part) for part in np.array_split(np.zeros(size.keys - least.keys), parts)]
    for ids, width in zip(tokens, widths, strict=True):
        # Further keys are its own first token again.
        row.add(ids, np.arange(len(ids)), np.full(max(0, width - len(ids)), row.tokens))
    return size, used


def _group_by(items: Sequence[int], keys: Sequence[int]) -> list[list[int]]:
    found: dict[int, list[int]] = {}
    for item, key in zip(items, keys, strict=True):
        found.setdefault(key, []).append(item)
    return list(found.values())
