"""All weights that train, side by side in one buffer, and the measurement of what an update moved.

Parameters and their gradients become views of two flat tensors, ordered by layer group. Clipping,
the optimizer and the measurement are then a few operations over long vectors instead of thousands
over short ones, and a checkpoint of the optimizer is three tensors.

Up to some millions, every weight is measured. Of more than that, a fixed sixteenth stands for the
rest (evenly spread blocks, the same at every step): remembering all of them would cost their memory
once more.
"""

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn

GROUPS = {
    "embedding": ("embed", "lm_head", "wte"),
    "attention": ("attn", "attention"),
    "mlp": ("mlp", "feed_forward", "experts"),
    "norm": ("norm",),
}
# Names of norms and biases, as transformers' Trainer.get_decay_parameter_names has them (beside all
# of nn.LayerNorm).
NOT_DECAYED = re.compile(r"bias|layernorm|rmsnorm|(?:^|\.)norm(?:$|\.)|_norm(?:$|\.)")


@dataclass(frozen=True)
class Slot:
    """Place of one parameter in the flat tensor."""

    name: str  # the parameter's name in the model
    group: str  # its layer group
    start: int  # its first element in the flat tensor
    shape: torch.Size
    decays: bool  # false for norms and biases, which weight decay leaves alone


class Stretch(NamedTuple):
    """Weights of one layer group that stand side by side in the flat order of all weights."""

    group: str
    start: int  # place of the first one
    values: Tensor


class FlatWeights:
    """The trainable weights of a model as one parameter.

    What is not about `values` and `gradient` is also there where a process holds a part of the
    weights (sharded.py).
    """

    def __init__(self, model: nn.Module) -> None:
        named = [(n, p) for n, p in model.named_parameters() if p.requires_grad]
        named.sort(key=lambda item: [*GROUPS, "other"].index(group_of(item[0])))
        kinds = {p.dtype for _, p in named}
        assert len(kinds) == 1, f"weights that train must have one precision, not {kinds}"
        total = sum(p.numel() for _, p in named)
        device = named[0][1].device
        dtype = kinds.pop()
        self.values = nn.Parameter(torch.empty(total, device=device, dtype=dtype))
        self.values.grad = torch.zeros(total, device=device, dtype=dtype)
        self.slots: list[Slot] = []
        self._parameters = [p for _, p in named]
        layer_norms = tuple(
            f"{name}." for name, module in model.named_modules() if isinstance(module, nn.LayerNorm)
        )
        start = 0
        with torch.no_grad():
            for name, parameter in named:
                decays = not (NOT_DECAYED.search(name.lower()) or name.startswith(layer_norms))
                self.slots.append(Slot(name, group_of(name), start, parameter.shape, decays))
                view = self.values.data[start : start + parameter.numel()].view(parameter.shape)
                parameter.data = view.copy_(parameter)
                start += parameter.numel()
        self.attach_gradients()

    def attach_gradients(self) -> None:
        """Make every parameter's gradient a view of the flat one; autograd then adds into it."""
        assert self.values.grad is not None
        for slot, parameter in zip(self.slots, self._parameters, strict=True):
            parameter.grad = self.view(slot, self.values.grad)

    def view(self, slot: Slot, flat: Tensor | None = None) -> Tensor:
        """Return a parameter's part of the flat tensor, or of another one of the same order, in its
        shape.
        """
        whole = self.values.data if flat is None else flat
        return whole[slot.start : slot.start + slot.shape.numel()].view(slot.shape)

    @property
    def total(self) -> int:
        """Number of all weights."""
        return self.values.numel()

    @property
    def dtype(self) -> torch.dtype:
        """Their precision."""
        return self.values.dtype

    def stretches(self) -> list[Stretch]:
        """Return the weights that this process holds: here all, by layer group."""
        return [
            Stretch(group, span.start, self.values.data[span])
            for group, span in self.spans().items()
        ]

    def add_up(self, figures: Tensor) -> Tensor:
        """Add up figures of all processes that hold a part, in place; return them. Here, they are
        whole already.
        """
        return figures

    def put(self, slot: Slot, whole: Tensor) -> None:
        """Replace one parameter, in place."""
        self.view(slot).copy_(whole)

    @property
    def gradient(self) -> Tensor:
        """The flat gradient."""
        assert self.values.grad is not None
        return self.values.grad

    def spans(self) -> dict[str, slice]:
        """Each layer group's stretch of the flat tensor."""
        spans: dict[str, slice] = {}
        for slot in self.slots:
            first = spans.get(slot.group, slice(slot.start, slot.start)).start
            spans[slot.group] = slice(first, slot.start + slot.shape.numel())
        return spans

    def decayed(self) -> list[Tensor]:
        """Stretches of the flat tensor that weight decay shrinks, as views; neighbors are one."""
        edges: list[list[int]] = []
        for slot in self.slots:
            if slot.decays and edges and edges[-1][1] == slot.start:
                edges[-1][1] += slot.shape.numel()
            elif slot.decays:
                edges.append([slot.start, slot.start + slot.shape.numel()])
        return [self.values.data[start:stop] for start, stop in edges]


def group_of(name: str) -> str:
    """Return the layer group that a parameter's name belongs to; a norm inside attention is a
    norm.
    """
    if "norm" in name:
        return "norm"
    return next(
        (group for group, words in GROUPS.items() if any(word in name for word in words)), "other"
    )


BLOCK = 4096
EVERY = 16
# Fewer weights than this are all measured.
SMALL = 1 << 24


@dataclass(frozen=True)
class Movement:
    """Change of the trained weights in a step."""

    norm: float  # the length of all weights after it
    update: float  # the length of the change
    by_group: dict[str, float]  # the length of the change by layer group
    changed: float  # the share of weights whose bits changed


class WeightMeter:
    """Remembers the weights before a step and measures what moved after it."""

    def __init__(self, weights: FlatWeights) -> None:
        self._weights = weights
        self._every = 1 if weights.total < SMALL else EVERY
        self._before: list[Tensor] = []

    def before(self) -> None:
        """Remember the weights, ahead of a step's first update."""
        self._before = [
            self._measured(values).clone() for _, _, values in self._weights.stretches()
        ]

    def after(self) -> Movement:
        """Measure the change, after a step's last update."""
        stretches = self._weights.stretches()
        groups = list(dict.fromkeys(slot.group for slot in self._weights.slots))
        figures = torch.zeros(len(groups), 3, device=stretches[0].values.device)
        for then, (group, _, values) in zip(self._before, stretches, strict=True):
            now = self._measured(values)
            figures[groups.index(group)] += change_of(
                then, now, values.numel() / max(1, now.numel())
            )
        return movement_of(groups, self._weights.add_up(figures), self._weights.total)

    def digest(self) -> str:
        """Compute a fingerprint of the measured weights: processes that train together have the
        same.
        """
        parts = ((start, self._measured(values)) for _, start, values in self._weights.stretches())
        return _digest(parts, self._weights.add_up)

    def _measured(self, stretch: Tensor) -> Tensor:
        blocks = stretch.numel() // BLOCK
        if self._every == 1 or blocks < 2 * self._every:
            return stretch
        return stretch[: blocks * BLOCK].view(blocks, BLOCK)[:: self._every]


def change_of(then: Tensor, now: Tensor, scale: float) -> Tensor:
    """Sum up a layer group's squared change, squared weights and changed weights; `scale` is
    weights per sampled one.

    The sums stay on the device, so that a caller need not wait for it.
    """
    moved = (now.float() - then.float()).square().sum() * scale
    return torch.stack([moved, now.float().square().sum() * scale, (now != then).sum() * scale])


def movement_of(groups: Iterable[str], figures: Tensor, total: int) -> Movement:
    """Make the movement of all weights from `change_of` each layer group."""
    moved, length, changed = figures.double().cpu().unbind(1)
    return Movement(
        norm=float(length.sum().sqrt()),
        update=float(moved.sum().sqrt()),
        by_group={group: float(m.sqrt()) for group, m in zip(groups, moved, strict=True)},
        changed=min(1.0, float(changed.sum()) / total),
    )


def movable_share(weights: FlatWeights, lr: float) -> float:
    """Return the share of weights that a step of size `lr` changes at their precision.

    Adam's update is about the learning rate for every weight, whatever its gradient; a bf16 weight
    moves only if that exceeds half the distance to its neighbor (about |w| / 512).
    """
    moved = torch.stack([_movable(values, lr) for _, _, values in weights.stretches()]).sum()
    return float(weights.add_up(moved)) / weights.total


def movable_part(values: Tensor, lr: float) -> float:
    """Return the same share of some weights."""
    return float(_movable(values, lr)) / values.numel()


def _movable(values: Tensor, lr: float) -> Tensor:
    moved = torch.zeros((), dtype=torch.long, device=values.device)
    for chunk in torch.split(values, 1 << 24):
        moved += ((chunk.float() - lr).to(chunk.dtype) != chunk).sum()
    return moved


def digest(weights: FlatWeights) -> str:
    """Compute a fingerprint of the weights' bits, on their device; equal weights have equal
    fingerprints.
    """
    return _digest(((start, values) for _, start, values in weights.stretches()), weights.add_up)


def digest_of(tensors: Iterable[Tensor]) -> str:
    """Compute the fingerprint of several tensors as if they stood side by side."""

    def placed() -> Iterable[tuple[int, Tensor]]:
        start = 0
        for values in tensors:
            yield start, values
            start += values.numel()

    return _digest(placed(), lambda sums: sums)


def _digest(parts: Iterable[tuple[int, Tensor]], add_up: Callable[[Tensor], Tensor]) -> str:
    # Sums wrap at 64 bits, on every device alike: those of parts add up to those of the whole.
    sums = torch.zeros(2, dtype=torch.long)
    device = sums.device
    for start, values in parts:
        device = values.device
        bits = (
            values.detach()
            .reshape(-1)
            .view(torch.int32 if values.element_size() == 4 else torch.int16)
        )
        for chunk in torch.split(bits, 1 << 24):
            places = torch.arange(start, start + chunk.numel(), device=device) % 65521 + 1
            sums += torch.stack([chunk.long().sum(), (chunk.long() * places).sum()]).cpu()
            start += chunk.numel()
    plain, weighted = add_up(sums.to(device)).tolist()
    return f"{plain % 2**64:016x}{weighted % 2**64:016x}"
