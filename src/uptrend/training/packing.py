"""From sequences to the model's inputs: micro-batches of tokens back to back, within a
token budget.

A micro-batch is one row of tokens. Each sequence is a segment of it that no other sequence attends
to (policy/attention.py), at the positions that it would have alone: no padding at any
lengths. Only tokens that matter are there: none after the last one that predicts a sampled token.

The rollouts of a group begin with the same prompt. Where it pays, the prompt is there once, and its
keys are among those of every rollout behind it:

    prompt prompt prompt | tail 1 tail 1 | tail 2 tail 2 tail 2 | …

Gradients add up in the prompt. The result is the same as sequence by sequence, to rounding
(tested).

On a GPU sizes are filled up to one of few, so that a graph captured once serves the steps to come.

b = sequence, t = token of the row, k = key, n = segment, m = sampled token, s = sampled token of
its sequence.
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
NO_PLACES = np.zeros(0, np.int64)
# A size that came before is used again if it makes a row at most this many times as long as needed.
MAX_GROWTH = 1.15
# Smallest `longest` of a size, so that short sequences of any length share one.
MIN_LONGEST = 128


@dataclass(frozen=True)
class TrainSequence:
    """One sequence, as the learner needs it."""

    ids: Ints  # all its tokens
    sampled: Ints  # places of those that the model wrote; never 0, where its prompt begins
    attended: NDArray[np.bool_]  # true for tokens that attention may see
    prompt: int  # length of the task's prompt, with which it begins
    group: int
    rollout: int

    @property
    def width(self) -> int:
        """Number of its tokens up to the last that predicts one."""
        return int(self.sampled[-1]) if len(self.sampled) else 0


class Size(NamedTuple):
    """Numbers that make the shapes of a micro-batch."""

    tokens: int
    keys: int  # 0 if each segment's keys are its own tokens
    segments: int
    sampled: int
    longest: int  # maximum tokens or keys of a segment


# Sizes between each power of two and the next; with 1, the power itself. Every token goes through
# the whole model, so tokens come in the smallest steps: at most an eighth is added to them.
SIZES_PER_DOUBLING = Size(tokens=8, keys=4, segments=1, sampled=4, longest=1)


@dataclass
class Shapes:
    """Sizes that micro-batches are filled up to; on a GPU few of them, each with a graph of its
    own.
    """

    is_free: bool = True  # True if any size will do
    known: list[Size] = field(default_factory=list)

    def fit(self, least: Size) -> Size:
        """Return a size that holds at least this much, and remember it for later calls."""
        if self.is_free:
            return least
        size = self._choose(least)
        if size not in self.known:
            self.known = sorted([*self.known, size])
        return size

    def _choose(self, least: Size) -> Size:
        """Return a size that came before if it wastes little, else a round one."""
        for size in self.known:
            is_large_enough = all(have >= need for have, need in zip(size, least, strict=True))
            wastes_little = size.tokens <= MAX_GROWTH * least.tokens
            # Shared and unshared rows are different graphs: only one of them has keys of its own.
            is_same_kind = bool(size.keys) == bool(least.keys)
            if is_large_enough and wastes_little and is_same_kind:
                return size
        rounded = Size(*map(_round_up, least, SIZES_PER_DOUBLING))
        return rounded._replace(longest=max(MIN_LONGEST, rounded.longest))


def _round_up(number: int, sizes_per_doubling: int) -> int:
    """Round up to one of a few sizes between each power of two and the next; see
    SIZES_PER_DOUBLING.
    """
    if number == 0:
        return 0
    power = 1 << (number - 1).bit_length()
    if sizes_per_doubling == 1:
        return power
    # From power / 2 to power in equal steps.
    grain = max(1, power // (2 * sizes_per_doubling))
    return -(-number // grain) * grain


@dataclass(frozen=True)
class MicroBatch:
    """Sequences that go through the model at once."""

    numbers: tuple[int, ...]  # numbers of its sequences, among those that were packed
    ids_t: Tensor
    positions_t: Tensor  # position that each token would have alone
    starts_n: Tensor  # first token of each segment; see Packed
    key_starts_n: Tensor
    longest: int  # maximum tokens or keys of a segment
    keys_k: Tensor | None  # place of each key; None if each segment's keys are its own tokens
    predictors_m: Tensor  # place of the hidden state that predicts each sampled token
    targets_m: Tensor  # the sampled tokens
    # Each sampled token's index in `numbers`, and its place among that sequence's sampled tokens:
    # where its log-probability goes in a tensor [b, s]. Filler has the place behind the last.
    sequences_m: Tensor
    places_m: Tensor
    padding: float  # share of `ids_t` that only fills up
    support_mk: Tensor | None = None  # tokens that each sampled one was drawn from; None for all
    contexts_st: Tensor | None = None  # ids of each sequence, for a repetition penalty
    ends_m: Tensor | None = None  # place of each sampled token in its sequence, for the same

    @property
    def inputs(self) -> tuple[Any, ...]:
        """Inputs of a forward pass, in the order of INPUT_NAMES."""
        return tuple(getattr(self, name) for name in INPUT_NAMES)

    def to(self, device: torch.device) -> "MicroBatch":
        """Return the same on a device."""
        moved: dict[str, Tensor] = {}
        for f in fields(self):
            value = getattr(self, f.name)
            if isinstance(value, Tensor):
                moved[f.name] = value.to(device, non_blocking=True)
        return replace(self, **moved)  # type: ignore[arg-type]


INPUT_NAMES = (
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


@dataclass(frozen=True)
class _Unit:
    """Sequences that stay in one micro-batch: all of a rollout's, for sums over whole rollouts, or
    rollouts that share one prompt.
    """

    numbers: list[int]  # numbers of its sequences
    tokens: int


@dataclass
class _Bin:
    """Units of one micro-batch."""

    units: list[_Unit] = field(default_factory=list)
    tokens: int = 0


def pack(
    sequences: Sequence[TrainSequence],
    numbers: Sequence[int],
    budget: int,
    min_saving: float,
    shapes: Shapes,
    sampled_places: int,
) -> list[MicroBatch]:
    """Pack the sequences with these numbers into micro-batches of at most `budget` tokens, about
    equal in size; a rollout longer than that goes alone.

    Prompts are shared if that saves at least the share `min_saving` of a group's tokens.
    `sampled_places` is the number of columns for sampled tokens, s, in the caller's tensors [b, s].
    """
    units: list[_Unit] = []
    for group in _group_by(numbers, [sequences[b].group for b in numbers]):
        units += _units_of_group(sequences, group, budget, min_saving)
    units.sort(key=lambda unit: -unit.tokens)
    tokens = sum(unit.tokens for unit in units)
    count = -(-tokens // budget)
    while True:
        bins = _spread(units, count)
        if all(each.tokens <= budget or len(each.units) == 1 for each in bins):
            break
        count += 1
    return [_make_micro_batch(sequences, each.units, shapes, sampled_places) for each in bins]


def _spread(units: list[_Unit], count: int) -> list[_Bin]:
    """Put units, the largest first, each into the bin that is emptiest by then; leave out bins that
    stay empty.
    """
    bins = [_Bin() for _ in range(count)]
    for unit in units:
        emptiest = min(bins, key=lambda each: each.tokens)
        emptiest.units.append(unit)
        emptiest.tokens += unit.tokens
    return [each for each in bins if each.units]


def _units_of_group(
    sequences: Sequence[TrainSequence], group: list[int], budget: int, min_saving: float
) -> list[_Unit]:
    """Return a group's units: each rollout alone, or as many as fit with the prompt that they
    share.
    """
    alone: list[_Unit] = []
    for numbers in _group_by(group, [sequences[b].rollout for b in group]):
        alone.append(_Unit(numbers, sum(sequences[b].width for b in numbers)))

    prompt = sequences[group[0]].prompt
    saved_tokens = (len(alone) - 1) * prompt
    all_tokens = sum(unit.tokens for unit in alone)
    if saved_tokens < min_saving * all_tokens or not _have_one_prompt(sequences, group, alone):
        return alone

    units: list[_Unit] = []
    for unit in alone:
        tail = unit.tokens - prompt
        if units and units[-1].tokens + tail <= budget:
            last = units[-1]
            units[-1] = _Unit([*last.numbers, *unit.numbers], last.tokens + tail)
        else:
            units.append(unit)
    return units


def _have_one_prompt(
    sequences: Sequence[TrainSequence], group: list[int], rollouts: list[_Unit]
) -> bool:
    """Return True if all rollouts have one sequence, and it begins with the same prompt."""
    first = sequences[group[0]]
    prompt = first.prompt
    if prompt == 0 or len(group) > len(rollouts):
        return False
    for b in group:
        other = sequences[b]
        if other.prompt != prompt:
            return False
        if not np.array_equal(other.ids[:prompt], first.ids[:prompt]):
            return False
        if not np.array_equal(other.attended[:prompt], first.attended[:prompt]):
            return False
    return True


class _Row:
    """Collects the tokens, segments and keys of a micro-batch."""

    def __init__(self) -> None:
        self.ids = list[Ints]()
        self.positions = list[Ints]()
        self.keys = list[Ints]()  # places, segment by segment
        self.tokens = 0
        self.widths = list[int]()  # tokens of each segment
        self.key_widths = list[int]()
        self.is_shared = False  # True if a segment has keys before its own tokens

    def add(self, ids: Ints, positions: Ints, keys_before: Ints) -> Ints:
        """Add a segment that also attends to the places `keys_before`; return the places of its
        tokens.
        """
        places = np.arange(self.tokens, self.tokens + len(ids))
        self.ids.append(ids)
        self.positions.append(positions)
        self.keys += [keys_before, places]
        self.widths.append(len(ids))
        self.key_widths.append(len(keys_before) + len(ids))
        self.is_shared |= len(keys_before) > 0
        self.tokens += len(ids)
        return places

    def add_sequence(
        self, sequence: TrainSequence, start: int, stop: int, keys_before: Ints
    ) -> Ints:
        """Add a sequence's tokens from `start` to `stop`; return the place of each, -1 for those
        left out.

        A token that attention may not see is a segment by itself if it predicts something, and left
        out otherwise.
        """
        attended = sequence.attended[start:stop]
        if attended.all():
            return self.add(sequence.ids[start:stop], np.arange(start, stop), keys_before)

        places = np.full(stop - start, -1)
        is_predictor = np.isin(np.arange(stop), sequence.sampled - 1)
        # Stretches of tokens that are all seen, or all unseen, by turns.
        edges = [start, *(np.flatnonzero(np.diff(attended)) + start + 1), stop]
        for begin, end in pairwise(edges):
            if sequence.attended[begin]:
                own = self.add(sequence.ids[begin:end], np.arange(begin, end), keys_before)
                places[begin - start : end - start] = own
                keys_before = np.concatenate([keys_before, own])
            else:
                for i in np.flatnonzero(is_predictor[begin:end]) + begin:
                    own = self.add(sequence.ids[i : i + 1], np.array([i]), keys_before)
                    places[i - start] = own[0]
        return places

    def fill_up(self, least: Size, shapes: Shapes) -> Size:
        """Fill up to a size that holds `least`, with segments that no token attends to; return the
        size.
        """
        if shapes.is_free:
            return least
        size, n_segments = self._find_size(least, shapes)
        missing_tokens = size.tokens - self.tokens
        missing_keys = size.keys - least.keys
        fillers = np.array_split(np.zeros(missing_tokens, np.int64), n_segments)
        key_shares = np.array_split(np.zeros(missing_keys), n_segments)
        for ids, keys in zip(fillers, key_shares, strict=True):
            # Further keys are its own first token again.
            repeats = max(0, len(keys) - len(ids))
            self.add(ids, np.arange(len(ids)), np.full(repeats, self.tokens))
        return size

    def _find_size(self, least: Size, shapes: Shapes) -> tuple[Size, int]:
        """Return a size that holds `least` and all that fills it up, and the number of filling
        segments.

        Each of them has at least one token, and no more keys than the longest. Filling takes
        segments and keys, for which a larger size may be needed, which takes more filling: sizes
        are tried until one holds its own filling. That ends, because what is asked for only grows
        and a round number is rounded to itself: tokens soon stay the same, then keys and segments.
        """
        n_segments = 1
        n_tokens = 1
        while True:
            size = shapes.fit(
                least._replace(
                    tokens=self.tokens + n_tokens,
                    keys=least.keys + n_tokens if self.is_shared else 0,
                    segments=least.segments + n_segments,
                )
            )
            missing_tokens = size.tokens - self.tokens
            missing_keys = size.keys - least.keys
            needed_segments = -(-max(missing_tokens, missing_keys) // size.longest)
            # In a row with shared keys every filling token needs a key of its own, so the trial has
            # to have asked for keys of exactly as many tokens.
            holds_keys = missing_tokens == n_tokens or not self.is_shared
            if needed_segments <= n_segments and holds_keys:
                return size, n_segments
            n_segments = max(n_segments, needed_segments)
            n_tokens = max(missing_tokens, needed_segments)


def _make_micro_batch(
    sequences: Sequence[TrainSequence], units: list[_Unit], shapes: Shapes, sampled_places: int
) -> MicroBatch:
    """Lay units out in one row."""
    row = _Row()
    order = list[int]()
    predictors = list[Ints]()  # of each sequence, in the same order
    for unit in units:
        first = sequences[unit.numbers[0]]
        # Several rollouts in a unit share their prompt; a rollout's several sequences do not.
        is_shared = len({sequences[b].rollout for b in unit.numbers}) > 1
        start = first.prompt if is_shared else 0
        prompt_places = NO_PLACES
        if start:
            prompt_places = row.add_sequence(first, 0, start, NO_PLACES)
        prompt_keys = prompt_places[first.attended[:start]]
        for b in unit.numbers:
            sequence = sequences[b]
            tail_places = NO_PLACES
            if sequence.width > start:
                tail_places = row.add_sequence(sequence, start, sequence.width, prompt_keys)
            places = np.concatenate([prompt_places, tail_places])
            # The token before predicts each; there is one, because a prompt comes first.
            predictors.append(places[sequence.sampled - 1])
            order.append(b)

    counts = [len(places) for places in predictors]
    sampled = sum(counts)
    used_tokens = row.tokens
    least = Size(
        tokens=used_tokens,
        keys=sum(row.key_widths) if row.is_shared else 0,
        segments=len(row.widths),
        sampled=sampled,
        longest=max(row.key_widths),
    )
    size = row.fill_up(least, shapes)

    # Filler among the sampled tokens: predicted by token 0, and written behind the last place.
    filler = np.zeros(size.sampled - sampled, np.int64)
    targets = [sequences[b].ids[sequences[b].sampled] for b in order]
    indices = np.repeat(np.arange(len(order)), counts)
    places_in_sequence = [np.arange(count) for count in counts]
    return MicroBatch(
        numbers=tuple(order),
        ids_t=_joined(row.ids),
        positions_t=_joined(row.positions),
        starts_n=_segment_starts(row.widths, size.segments),
        key_starts_n=_segment_starts(
            row.key_widths if row.is_shared else row.widths, size.segments
        ),
        longest=size.longest,
        keys_k=_joined(row.keys) if row.is_shared else None,
        predictors_m=_joined([*predictors, filler]),
        targets_m=_joined([*targets, filler]),
        sequences_m=_joined([indices, filler]),
        places_m=_joined([*places_in_sequence, filler + sampled_places]),
        padding=1 - used_tokens / size.tokens,
    )


def _joined(parts: Sequence[Ints]) -> Tensor:
    return torch.from_numpy(np.concatenate(parts))


def _segment_starts(widths: list[int], segments: int) -> Tensor:
    """Return the first token of each segment and the end of the last, repeated up to a number of
    segments.
    """
    edges = np.cumsum([0, *widths])
    end = np.full(segments + 1 - len(edges), edges[-1])
    return torch.from_numpy(np.concatenate([edges, end]).astype(np.int32))


def _group_by(items: Sequence[int], keys: Sequence[int]) -> list[list[int]]:
    """Group items with equal keys, in the order in which the keys first come."""
    groups: dict[int, list[int]] = {}
    for item, key in zip(items, keys, strict=True):
        groups.setdefault(key, []).append(item)
    return list(groups.values())
