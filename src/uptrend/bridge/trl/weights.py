"""Effect of TRL's updates on the weights: how far they move, how many change, and their precision.

About 65,000 weights are looked at, as evenly spread blocks that stay the same all run long. The
trainer waits for a copy of them and its comparison with the last one, on the device where they lie, and not for the
device: the figures are read on another thread.
"""

import hashlib
from collections import Counter
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from uptrend.policy.weights import Movement, group_of

LOOK = 1 << 16
"""About how many weights are looked at."""
BLOCK = 256


@dataclass(frozen=True)
class Snapshot:
    """The looked-at weights at one moment."""

    values: Tensor
    """All of them, side by side."""
    dtypes: dict[str, int]
    """Number of trainable weights by precision."""


@dataclass(frozen=True)
class Move:
    """Two snapshots, compared on their device."""

    figures: Tensor
    """One row a layer group: squares of the change, squares of the weights, how many changed."""
    after: Snapshot
    """The later one."""


class Span(NamedTuple):
    """A layer group's place in a snapshot."""

    start: int
    end: int
    scale: float
    """Number of weights that each sampled one stands for."""


class WatchedWeights:
    """The trainable weights of a model that somebody else trains."""

    def __init__(self, model: Any) -> None:
        named = [(group_of(name), p) for name, p in model.named_parameters() if p.requires_grad]
        named.sort(key=lambda item: item[0])  # a group's weights lie side by side
        self._parameters = [p for _, p in named]
        self._sizes = [p.numel() for p in self._parameters]
        self.total = sum(self._sizes)
        self._every = max(1, self.total // LOOK)
        self._looks: list[Tensor] = []
        self._views: list[Tensor] = []
        self._places: list[tuple[int, torch.dtype]] = []
        self._dtypes: dict[str, int] = {}
        self._look_again()
        self._spans: dict[str, Span] = {}
        start = 0
        for group in dict.fromkeys(name for name, _ in named):
            own = [i for i, (name, _) in enumerate(named) if name == group]
            looked = sum(self._looks[i].numel() for i in own)
            self._spans[group] = Span(start, start + looked, sum(self._sizes[i] for i in own) / max(1, looked))
            start += looked

    def dtypes(self) -> dict[str, int]:
        """Number of trainable weights by precision."""
        self._look_again()
        return self._dtypes

    def snapshot(self) -> Snapshot:
        """Copy the looked-at weights."""
        self._look_again()
        return Snapshot(torch.cat(self._views) if self._views else torch.zeros(0), self._dtypes)

    def compare(self, before: Snapshot, after: Snapshot) -> Move:
        """Sums by layer group, without waiting for the device."""
        then, now = before.values.float(), after.values.float()
        change, differs = now - then, now != then
        rows = [
            torch.stack([change[a:b].dot(change[a:b]), now[a:b].dot(now[a:b]), torch.count_nonzero(differs[a:b])])
            for a, b, _ in self._spans.values()
        ]
        return Move(torch.stack(rows) if rows else torch.zeros(0, 3), after)

    def movement(self, move: Move) -> Movement:
        """Return norms of the weights and of their change, by layer group, and the share that changed."""
        scaled = {
            group: [value * span.scale for value in row]
            for (group, span), row in zip(self._spans.items(), move.figures.tolist(), strict=True)
        }
        moved, length, changed = (sum(row[i] for row in scaled.values()) for i in range(3))
        return Movement(
            norm=length**0.5,
            update=moved**0.5,
            by_group={group: row[0] ** 0.5 for group, row in scaled.items()},
            changed=min(1.0, changed / max(1, self.total)),
        )

    def digest(self) -> str:
        """A fingerprint of every bit of the trainable weights, from sums that are made on their device."""
        digest = hashlib.blake2b(digest_size=16)
        for parameter in self._parameters:
            values = parameter.detach().contiguous().view(-1).view(torch.uint8)
            whole = values.numel() // (8 * BLOCK) * (8 * BLOCK)
            if values.storage_offset() % 8:
                values = values.clone()
            words = values[:whole].view(torch.int64).view(-1, BLOCK)
            for part in (words.sum(0), words.sum(1), values[whole:]):
                digest.update(part.cpu().numpy().tobytes())
        return digest.hexdigest()

    def _look_again(self) -> None:
        """Views of the looked-at weights, made anew where a trainer has put other tensors into its parameters."""
        places = [(p.data_ptr(), p.dtype) for p in self._parameters]
        if places == self._places:
            return
        self._looks = [self._look(p) for p in self._parameters]
        self._views = [block for look in self._looks for block in (look if look.dim() == 2 else (look,))]
        views = all(p.is_contiguous() for p in self._parameters)  # what is not has to be copied each time
        self._places = places if views else []
        counts: Counter[str] = Counter()
        for parameter, size in zip(self._parameters, self._sizes, strict=True):
            counts[str(parameter.dtype)] += size
        self._dtypes = dict(counts)

    def _look(self, parameter: Any) -> Tensor:
        values: Tensor = parameter.detach()
        if self._every == 1 or not values.is_contiguous():
            return values.reshape(-1) if values.numel() <= LOOK else values.reshape(-1)[: LOOK // 16]
        blocks = values.numel() // BLOCK
        if blocks < self._every:
            return values.reshape(-1)[: max(1, values.numel() // self._every)]
        return values.view(-1)[: blocks * BLOCK].view(blocks, BLOCK)[:: self._every]


def movable_share(snapshot: Snapshot, dtype: torch.dtype, lr: float) -> float:
    """The share of weights that an update of size `lr` changes in a precision: Adam's is about that, everywhere."""
    values = snapshot.values.to(dtype)
    return float(((values.float() - lr).to(dtype) != values).float().mean()) if len(values) else 1.0
