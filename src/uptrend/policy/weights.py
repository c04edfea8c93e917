"""All weights that train, side by side in one buffer, and the measurement of what an update moved.

Parameters and their gradients become views of two flat tensors, ordered by layer group. Clipping, the
optimizer and the measurement are then a few operations over long vectors instead of thousands over short ones, and a
checkpoint of the optimizer is three tensors.

Up to some millions, every weight is measured. Of more than that, a fixed sixteenth stands for the rest (evenly
spread blocks, the same at every step): remembering all of them would cost their memory once more."""

import re
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

GROUPS = {
    "embedding": ("embed", "lm_head", "wte"),
    "attention": ("attn", "attention"),
    "mlp": ("mlp", "feed_forward", "experts"),
    "norm": ("norm",),
}
# Names of norms and biases, as transformers' Trainer.get_decay_parameter_names has them (beside all of nn.LayerNorm).
NOT_DECAYED = re.compile(r"bias|layernorm|rmsnorm|(?:^|\.)norm(?:$|\.)|_norm(?:$|\.)")


@dataclass(frozen=True)
class Slot:
    """Place of one parameter in the flat tensor."""

    name: str  # the parameter's name in the model
    group: str  # its layer group
    start: int  # its first element in the flat tensor
    shape: torch.Size
    decays: bool  # false for norms and biases, which weight decay leaves alone


class FlatWeights:
    """The trainable weights of a model as one parameter."""

    def __init__(self, model: nn.Module) -> None:
        named = [(n, p) for n, p in model.named_parameters() if p.requires_grad]
        named.sort(key=lambda item: [*GROUPS, "other"].index(group_of(item[0])))
        kinds = {p.dtype for _, p in named}
        assert len(kinds) == 1, f"weights that train must have one precision, not {kinds}"
        total = sum(p.numel() for _, p in named)
        device, dtype = named[0][1].device, kinds.pop()
        self.values = nn.Parameter(torch.empty(total, device=device, dtype=dtype))
        self.values.grad = torch.zeros(total, device=device, dtype=dtype)
        self.slots: list[Slot] = []
        self._parameters = [p for _, p in named]
        layer_norms = tuple(f"{name}." for name, module in model.named_modules() if isinstance(module, nn.LayerNorm))
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
        """Return a parameter's part of the flat tensor, or of another one of the same order, in its shape."""
        whole = self.values.data if flat is None else flat
        return whole[slot.start : slot.start + slot.shape.numel()].view(slot.shape)

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
    """Return the layer group that a parameter's name belongs to; a norm inside attention is a norm."""
    if "norm" in name:
        return "norm"
    return next((group for group, words in GROUPS.items() if any(word in name for word in words)), "other")


BLOCK, EVERY = 4096, 16
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

    def __init__(self, flat: FlatWeights) -> None:
        self._flat, self._spans = flat, flat.spans()
        self._every = 1 if flat.values.numel() < SMALL else EVERY
        self._before: dict[str, Tensor] = {}

    def before(self) -> None:
        """Remember the weights, ahead of a step's first update."""
        self._before = {group: self._measured(span).clone() for group, span in self._spans.items()}

    def after(self) -> Movement:
        """Measure the change, after a step's last update."""
        figures = []
        for group, span in self._spans.items():
            now = self._measured(span)
            figures.append(change_of(self._before[group], now, (span.stop - span.start) / max(1, now.numel())))
        return movement_of(self._spans, torch.stack(figures), self._flat.values.numel())

    def digest(self) -> str:
        """Compute a fingerprint of the measured weights: processes that train together have the same."""
        return digest_of(self._measured(span).contiguous() for span in self._spans.values())

    def _measured(self, span: slice) -> Tensor:
        stretch = self._flat.values.data[span]
        blocks = stretch.numel() // BLOCK
        if self._every == 1 or blocks < 2 * self._every:
            return stretch
        return stretch[: blocks * BLOCK].view(blocks, BLOCK)[:: self._every]


def change_of(then: Tensor, now: Tensor, scale: float) -> Tensor:
    """Sum up a layer group's squared change, squared weights and changed weights; `scale` is weights per sampled one.

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


def movable_share(flat: FlatWeights, lr: float) -> float:
    """Return the share of weights that a step of size `lr` changes at their precision.

    Adam's update is about the learning rate for every weight, whatever its gradient; a bf16 weight moves
    only if that exceeds half the distance to its neighbor (about |w| / 512).
    """
    return movable_part(flat.values.data, lr)


def movable_part(values: Tensor, lr: float) -> float:
    """Return the same share of some weights."""
    moved = torch.zeros((), dtype=torch.long, device=values.device)
    for chunk in torch.split(values, 1 << 24):
        moved += ((chunk.float() - lr).to(chunk.dtype) != chunk).sum()
    return float(moved) / values.numel()


def digest(flat: FlatWeights) -> str:
    """Compute a fingerprint of the weights' bits, on their device; equal weights have equal fingerprints."""
    return digest_of([flat.values.data])


def digest_of(tensors: Iterable[Tensor]) -> str:
    """Compute the fingerprint of several tensors as if they stood side by side."""
    plain = weighted = start = 0
    for values in tensors:
        bits = values.detach().reshape(-1).view(torch.int32 if values.element_size() == 4 else torch.int16)
        for chunk in torch.split(bits, 1 << 24):
            places = torch.arange(start, start + chunk.numel(), device=chunk.device) % 65521 + 1
            plain += int(chunk.long().sum())
            weighted += int((chunk.long() * places).sum())
            start += chunk.numel()
    return f"{plain % 2**64:016x}{weighted % 2**64:016x}"
