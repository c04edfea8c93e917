"""What TRL's updates do to the weights: how far they move, how many change at all, and in which precision they are.

About a quarter of a million weights are looked at, as evenly spread blocks that stay the same all run long. A
snapshot after each update is all that the trainer waits for; snapshots are compared elsewhere.
"""

import hashlib
from collections import Counter
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from uptrend.policy.flat import group_of

LOOK = 1 << 18
"""About how many weights are looked at."""
BLOCK = 1024


@dataclass(frozen=True)
class Snapshot:
    """The looked-at weights at one moment."""

    values: Tensor
    """All of them, side by side."""
    dtypes: dict[str, int]
    """How many trainable weights there are in each precision."""


@dataclass(frozen=True)
class Movement:
    """What happened between two snapshots."""

    metrics: dict[str, float]
    """Under the names of docs/metrics.md."""
    changed: float
    """The share of weights whose bits changed."""


class Weights:
    """The trainable weights of a model that somebody else trains."""

    def __init__(self, model: Any) -> None:
        named = [(group_of(name), p) for name, p in model.named_parameters() if p.requires_grad]
        named.sort(key=lambda item: item[0])  # a group's weights lie side by side
        self._parameters = [p for _, p in named]
        self.total = sum(p.numel() for p in self._parameters)
        self._every = max(1, self.total // LOOK)
        self._spans: dict[str, tuple[int, float]] = {}
        for group in dict.fromkeys(name for name, _ in named):
            own = [p for name, p in named if name == group]
            looked = sum(self._look(p).numel() for p in own)
            self._spans[group] = (looked, sum(p.numel() for p in own) / max(1, looked))

    def dtypes(self) -> dict[str, int]:
        """How many trainable weights there are in each precision."""
        counts: Counter[str] = Counter()
        for parameter in self._parameters:
            counts[str(parameter.dtype)] += parameter.numel()
        return dict(counts)

    def snapshot(self) -> Snapshot:
        """Copy the looked-at weights."""
        looks = [self._look(p).reshape(-1) for p in self._parameters]
        return Snapshot(torch.cat(looks) if looks else torch.zeros(0), self.dtypes())

    def _look(self, parameter: Any) -> Tensor:
        values: Tensor = parameter.detach()
        if self._every == 1 or not values.is_contiguous():
            return values.reshape(-1) if values.numel() <= LOOK else values.reshape(-1)[: LOOK // 16]
        blocks = values.numel() // BLOCK
        if blocks < self._every:
            return values.reshape(-1)[: max(1, values.numel() // self._every)]
        return values.view(-1)[: blocks * BLOCK].view(blocks, BLOCK)[:: self._every]

    def movement(self, before: Snapshot, after: Snapshot) -> Movement:
        """Lengths of the weights and of their change, by layer group, and the share that changed."""
        then, now = (shot.values.float().cpu() for shot in (before, after))
        figures: dict[str, Tensor] = {}
        start = 0
        for group, (size, scale) in self._spans.items():
            a, b = then[start : start + size], now[start : start + size]
            sums = [(b - a).square().sum(), b.square().sum(), (a != b).sum()]
            figures[group] = torch.stack([value.double() * scale for value in sums])
            start += size
        whole = torch.stack(list(figures.values())).sum(0).tolist() if figures else [0.0] * 3
        moved, length, changed = whole
        by_group = {f"weights/update/{group}/norm": float(sums[0]) ** 0.5 for group, sums in figures.items()}
        share = min(1.0, changed / max(1, self.total))
        return Movement(
            {
                "weights/norm": length**0.5,
                "weights/update/norm": moved**0.5,
                "weights/changed/share": share,
                **by_group,
            },
            share,
        )

    def digest(self) -> str:
        """A fingerprint of every bit of the trainable weights."""
        digest = hashlib.blake2b(digest_size=16)
        for parameter in self._parameters:
            values = parameter.detach().contiguous().cpu().view(-1)
            digest.update(values.view(torch.uint8).numpy().data)
        return digest.hexdigest()


def movable_share(snapshot: Snapshot, dtype: torch.dtype, lr: float) -> float:
    """The share of weights that an update of size `lr` changes in a precision: Adam's is about that, everywhere."""
    values = snapshot.values.to(dtype)
    return float(((values.float() - lr).to(dtype) != values).float().mean()) if len(values) else 1.0
