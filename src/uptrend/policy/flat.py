"""All weights that train, side by side in one buffer.

Parameters and their gradients become views of two flat tensors, ordered by layer group. Clipping, the
optimizer and the measurement of what an update moved are then a few operations over long vectors instead of
thousands over short ones, and a checkpoint of the optimizer is three tensors.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

GROUPS = {
    "embedding": ("embed", "lm_head", "wte"),
    "attention": ("attn", "attention"),
    "mlp": ("mlp", "feed_forward", "experts"),
    "norm": ("norm",),
}


@dataclass(frozen=True)
class Slot:
    """Where one parameter lies."""

    name: str
    """The parameter's name in the model."""
    group: str
    """Its layer group."""
    start: int
    """Its first element in the flat tensor."""
    shape: torch.Size
    """Its shape."""


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
        start = 0
        with torch.no_grad():
            for name, parameter in named:
                slot = Slot(name, group_of(name), start, parameter.shape)
                view = self.values.data[start : start + parameter.numel()].view(parameter.shape)
                view.copy_(parameter)
                parameter.data = view
                self.slots.append(slot)
                start += parameter.numel()
        self.attach_gradients()

    def attach_gradients(self) -> None:
        """Make every parameter's gradient a view of the flat one; autograd then adds into it."""
        assert self.values.grad is not None
        for slot, parameter in zip(self.slots, self._parameters, strict=True):
            stretch = self.values.grad[slot.start : slot.start + parameter.numel()]
            parameter.grad = stretch.view(parameter.shape)

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


def group_of(name: str) -> str:
    """The layer group that a parameter's name belongs to; a norm inside attention is a norm."""
    if "norm" in name:
        return "norm"
    return next((group for group, words in GROUPS.items() if any(word in name for word in words)), "other")
