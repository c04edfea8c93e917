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

# Parts of parameter names by layer group; a norm inside attention is a norm.
NAME_PARTS_BY_GROUP = {
    "embedding": ("embed", "lm_head", "wte"),
    "attention": ("attn", "attention"),
    "mlp": ("mlp", "feed_forward", "experts"),
    "norm": ("norm",),
}
# Names of norms and biases, which weight decay leaves alone, as transformers'
# Trainer.get_decay_parameter_names has them (beside all of nn.LayerNorm).
NOT_DECAYED_PATTERN = re.compile(r"bias|layernorm|rmsnorm|(?:^|\.)norm(?:$|\.)|_norm(?:$|\.)")


# Of more weights than `MAX_MEASURED`, every sixteenth block is measured.
MAX_MEASURED = 1 << 24
BLOCK_SIZE = 4096
MEASURED_BLOCK_EVERY = 16
# Weights that are converted at once, so that a copy of all of them is never needed.
CHUNK_SIZE = 1 << 24
# Prime below 2^16, after which the factors of a fingerprint's weighted sum repeat.
FACTOR_PERIOD = 65521


@dataclass(frozen=True)
class Slot:
    """Place of one parameter in the flat tensor."""

    name: str  # the parameter's name in the model
    group: str  # its layer group
    start: int  # its first element in the flat tensor
    shape: torch.Size
    decays: bool  # false for norms and biases, which weight decay leaves alone

    @property
    def stop(self) -> int:
        """Place behind its last element in the flat tensor."""
        return self.start + self.shape.numel()


class Stretch(NamedTuple):
    """Weights of one layer group that stand side by side in the flat order of all weights."""

    group: str
    start: int  # place of the first one
    values: Tensor


class FlatWeights:
    """The trainable weights of a model as one parameter.

    All but `values` and `gradient` is the same where a process holds a part of the weights
    (sharded.py).
    """

    def __init__(self, model: nn.Module) -> None:
        named = [(n, p) for n, p in model.named_parameters() if p.requires_grad]
        order = [*NAME_PARTS_BY_GROUP, "other"]
        named.sort(key=lambda item: order.index(group_of(item[0])))
        self._parameters = [parameter for _, parameter in named]
        dtypes = {parameter.dtype for parameter in self._parameters}
        assert len(dtypes) == 1, f"weights that train must have one precision, not {dtypes}"
        dtype = dtypes.pop()
        device = self._parameters[0].device
        total = sum(parameter.numel() for parameter in self._parameters)
        self.values = nn.Parameter(torch.empty(total, device=device, dtype=dtype))
        self.values.grad = torch.zeros(total, device=device, dtype=dtype)

        layer_norms: list[str] = []  # prefixes of their parameters' names
        for name, module in model.named_modules():
            if isinstance(module, nn.LayerNorm):
                layer_norms.append(f"{name}.")
        self.slots: list[Slot] = []
        start = 0
        with torch.no_grad():
            for name, parameter in named:
                is_norm_or_bias = bool(
                    NOT_DECAYED_PATTERN.search(name.lower()) or name.startswith(tuple(layer_norms))
                )
                slot = Slot(name, group_of(name), start, parameter.shape, not is_norm_or_bias)
                self.slots.append(slot)
                parameter.data = self.view(slot).copy_(parameter)
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
        if flat is None:
            flat = self.values.data
        return flat[slot.start : slot.stop].view(slot.shape)

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
        stretches: list[Stretch] = []
        for group, span in self.spans().items():
            stretches.append(Stretch(group, span.start, self.values.data[span]))
        return stretches

    def sum_over_processes(self, sums: Tensor) -> Tensor:
        """Add up, in place, sums of all processes that hold a part; return them. Here, they are
        whole already.
        """
        return sums

    def put(self, slot: Slot, whole: Tensor) -> None:
        """Replace one parameter, in place."""
        self.view(slot).copy_(whole)

    @property
    def gradient(self) -> Tensor:
        """The flat gradient."""
        assert self.values.grad is not None
        return self.values.grad

    def spans(self) -> dict[str, slice]:
        """Return each layer group's stretch of the flat tensor."""
        spans: dict[str, slice] = {}
        for slot in self.slots:
            first = spans.get(slot.group, slice(slot.start, slot.start)).start
            spans[slot.group] = slice(first, slot.stop)
        return spans

    def decayed(self) -> list[Tensor]:
        """Return views of the weights that weight decay shrinks, neighbors as one."""
        edges: list[list[int]] = []
        for slot in self.slots:
            if not slot.decays:
                continue
            if edges and edges[-1][1] == slot.start:
                edges[-1][1] = slot.stop
            else:
                edges.append([slot.start, slot.stop])
        return [self.values.data[start:stop] for start, stop in edges]


def group_of(name: str) -> str:
    """Return the layer group that a parameter's name belongs to; a norm inside attention is a
    norm.
    """
    if "norm" in name:
        return "norm"
    for group, parts in NAME_PARTS_BY_GROUP.items():
        if any(part in name for part in parts):
            return group
    return "other"


@dataclass(frozen=True)
class Movement:
    """Change of the trained weights in a step."""

    norm: float  # length of all weights after it
    update: float  # length of the change
    by_group: dict[str, float]  # length of the change by layer group
    changed: float  # share of weights whose bits changed


class WeightMeter:
    """Remembers the weights before a step and measures what moved after it."""

    def __init__(self, weights: FlatWeights) -> None:
        self._weights = weights
        self._every = 1 if weights.total < MAX_MEASURED else MEASURED_BLOCK_EVERY
        self._before: list[Tensor] = []

    def remember(self) -> None:
        """Remember the weights, before a step's first update."""
        self._before = []
        for stretch in self._weights.stretches():
            self._before.append(self._measured(stretch.values).clone())

    def movement(self) -> Movement:
        """Measure the change since `remember`, after a step's last update."""
        stretches = self._weights.stretches()
        groups = list(dict.fromkeys(slot.group for slot in self._weights.slots))
        changes = torch.zeros(len(groups), 3, device=stretches[0].values.device)
        for before, stretch in zip(self._before, stretches, strict=True):
            after = self._measured(stretch.values)
            scale = stretch.values.numel() / max(1, after.numel())
            changes[groups.index(stretch.group)] += change_of(before, after, scale)
        changes = self._weights.sum_over_processes(changes)
        return movement_of(groups, changes, self._weights.total)

    def digest(self) -> str:
        """Compute a fingerprint of the measured weights: processes that train together have the
        same.
        """
        stretches = self._weights.stretches()
        parts = [(stretch.start, self._measured(stretch.values)) for stretch in stretches]
        return _digest(parts, self._weights.sum_over_processes)

    def _measured(self, values: Tensor) -> Tensor:
        """Return those of a stretch's weights that are measured."""
        n_blocks = values.numel() // BLOCK_SIZE
        if self._every == 1 or n_blocks < 2 * self._every:
            return values
        blocks = values[: n_blocks * BLOCK_SIZE].view(n_blocks, BLOCK_SIZE)
        return blocks[:: self._every]


def change_of(before: Tensor, after: Tensor, scale: float) -> Tensor:
    """Sum up a layer group's squared change, squared weights and changed weights; `scale` is
    weights per sampled one.

    The sums stay on the device, so that a caller need not wait for it.
    """
    n_changed = (after != before).sum() * scale
    before = before.float()
    after = after.float()
    squared_change = (after - before).square().sum() * scale
    squared_weights = after.square().sum() * scale
    return torch.stack([squared_change, squared_weights, n_changed])


def movement_of(groups: Iterable[str], changes: Tensor, total: int) -> Movement:
    """Make the movement of all weights from `change_of` each layer group."""
    squared_change, squared_weights, n_changed = changes.double().cpu().unbind(1)
    update_by_group = squared_change.sqrt().tolist()
    return Movement(
        norm=float(squared_weights.sum().sqrt()),
        update=float(squared_change.sum().sqrt()),
        by_group=dict(zip(groups, update_by_group, strict=True)),
        changed=min(1.0, float(n_changed.sum()) / total),
    )


def movable_share(weights: FlatWeights, lr: float) -> float:
    """Return the share of weights that a step of size `lr` changes at their precision.

    Adam's update is about the learning rate for every weight, whatever its gradient; a bf16 weight
    moves only if that exceeds half the distance to its neighbor (about |w| / 512).
    """
    counts = [_count_movable(stretch.values, lr) for stretch in weights.stretches()]
    n_movable = weights.sum_over_processes(torch.stack(counts).sum())
    return float(n_movable) / weights.total


def movable_part(values: Tensor, lr: float) -> float:
    """Return the same share of some weights."""
    return float(_count_movable(values, lr)) / values.numel()


def _count_movable(values: Tensor, lr: float) -> Tensor:
    count = torch.zeros((), dtype=torch.long, device=values.device)
    for chunk in torch.split(values, CHUNK_SIZE):
        count += ((chunk.float() - lr).to(chunk.dtype) != chunk).sum()
    return count


def digest(weights: FlatWeights) -> str:
    """Compute a fingerprint of the weights' bits, on their device; equal weights have equal
    fingerprints.
    """
    parts = [(stretch.start, stretch.values) for stretch in weights.stretches()]
    return _digest(parts, weights.sum_over_processes)


def digest_of(tensors: Iterable[Tensor]) -> str:
    """Compute the fingerprint of several tensors as if they stood side by side."""

    def with_starts() -> Iterable[tuple[int, Tensor]]:
        start = 0
        for values in tensors:
            yield start, values
            start += values.numel()

    return _digest(with_starts(), lambda sums: sums)


def _digest(
    parts: Iterable[tuple[int, Tensor]], sum_over_processes: Callable[[Tensor], Tensor]
) -> str:
    """Compute a fingerprint of parts with their places: the sum of all bits, and the same with a
    factor by place.
    """
    # Sums wrap at 64 bits, on every device alike: those of parts add up to those of the whole.
    sums = torch.zeros(2, dtype=torch.long)
    device = sums.device
    for start, values in parts:
        device = values.device
        int_dtype = torch.int32 if values.element_size() == 4 else torch.int16
        bits = values.detach().reshape(-1).view(int_dtype)
        for chunk in torch.split(bits, CHUNK_SIZE):
            stop = start + chunk.numel()
            factors = torch.arange(start, stop, device=device) % FACTOR_PERIOD + 1
            words = chunk.long()
            sums += torch.stack([words.sum(), (words * factors).sum()]).cpu()
            start = stop
    plain, weighted = sum_over_processes(sums.to(device)).tolist()
    return f"{plain % 2**64:016x}{weighted % 2**64:016x}"
