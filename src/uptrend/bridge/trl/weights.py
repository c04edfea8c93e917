"""Effect of TRL's updates on the weights: how far they move, how many change, and their precision.

About 65,000 weights are sampled, as evenly spread blocks that stay the same all run long. The
trainer waits for a copy of them and its comparison with the last one to be queued on their device,
and not for the device: the figures are read on another thread.
"""

import hashlib
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from uptrend.bridge.trl.batch import HALF_DTYPES, TrlStep
from uptrend.bridge.trl.findings_log import FindingsLog
from uptrend.policy.weights import Movement, change_of, group_of, movable_part, movement_of
from uptrend.records import Basis, Evidence, Severity
from uptrend.records.dialects import our_value
from uptrend.training.metrics import weight_metrics

SAMPLED_WEIGHTS = 1 << 16  # about; see WatchedWeights._sample
BLOCK_SIZE = 256  # weights that are sampled side by side
# Times in a row that something must happen to be no accident.
MIN_REPEATS = 3
# Share of weights that an update changes, below which most of it is lost.
MIN_CHANGED_SHARE = 0.5
CHANGED_METRIC = "weights/changed/share"
UNDERFLOW_ID = "precision.update-underflow"


@dataclass(frozen=True)
class Snapshot:
    """Sampled weights at one moment."""

    values: Tensor  # all of them, side by side
    dtypes: dict[str, int]  # number of trainable weights by precision

    @property
    def precision(self) -> str:
        """Precision of most weights."""
        return most_common(self.dtypes, default="")


# change_of each layer group, and the later of the two snapshots compared
Move = tuple[Tensor, Snapshot]


class WatchedWeights:
    """Trainable weights of a model that another program trains; where processes hold only parts of
    them, this one's.
    """

    def __init__(self, model: Any, *, is_copy: bool = False) -> None:
        # DeepSpeed learns in fp32 and copies that into the model's weights, whatever their
        # precision: which of their bits change then says nothing.
        self._is_copy = is_copy
        named = [(group_of(name), p) for name, p in model.named_parameters() if p.requires_grad]
        named.sort(key=lambda item: item[0])  # a group's weights lie side by side in a snapshot
        self._parameters = [parameter for _, parameter in named]
        self._total = sum(own_part(parameter).numel() for parameter in self._parameters)
        self._every = max(1, self._total // SAMPLED_WEIGHTS)

        weights_by_group: Counter[str] = Counter()
        sampled_by_group: Counter[str] = Counter()
        for group, parameter in named:
            weights_by_group[group] += own_part(parameter).numel()
            sampled_by_group[group] += len(self._sample(parameter))
        # Places of a group in a snapshot, and weights per sampled one.
        self._groups: dict[str, tuple[slice, float]] = {}
        start = 0
        for group, sampled in sampled_by_group.items():
            scale = weights_by_group[group] / max(1, sampled)
            self._groups[group] = (slice(start, start + sampled), scale)
            start += sampled

    def dtypes(self) -> dict[str, int]:
        """Return the number of trainable weights by precision."""
        counts: Counter[str] = Counter()
        for parameter in self._parameters:
            counts[str(parameter.dtype)] += size_of(parameter)
        return dict(counts)

    def snapshot(self) -> Snapshot:
        """Copy the sampled weights."""
        # Each time from the parameters: a trainer may put other tensors into them.
        samples = [self._sample(parameter) for parameter in self._parameters]
        values = torch.cat(samples) if samples else torch.zeros(0)
        return Snapshot(values, self.dtypes())

    def compare(self, before: Snapshot, after: Snapshot) -> Move:
        """Sum up the change by layer group, without waiting for the device."""
        changes: list[Tensor] = []
        for places, scale in self._groups.values():
            changes.append(change_of(before.values[places], after.values[places], scale))
        return torch.stack(changes) if changes else torch.zeros(0, 3), after

    def movement(self, move: Move) -> Movement:
        """Return norms of the weights and of their change, by layer group, and the share that
        changed.
        """
        changes, _ = move
        return movement_of(self._groups, changes, max(1, self._total))

    def metrics(self, move: Move) -> dict[str, Any]:
        """Return the metrics of a move; without the share that changed where it says nothing."""
        metrics = weight_metrics(self.movement(move))
        _, after = move
        if self._is_copy and after.precision in HALF_DTYPES:
            del metrics[CHANGED_METRIC]
        return metrics

    def digest(self) -> str:
        """Return a fingerprint of every bit of the trainable weights, from sums that are made on
        their device.
        """
        digest = hashlib.blake2b(digest_size=16)
        for parameter in self._parameters:
            values = own_part(parameter).contiguous().view(-1).view(torch.uint8)
            if values.storage_offset() % 8:  # 8-byte words must begin at their own places
                values = values.clone()
            block_bytes = 8 * BLOCK_SIZE
            end = values.numel() // block_bytes * block_bytes  # of the last whole block
            words = values[:end].view(torch.int64).view(-1, BLOCK_SIZE)
            for part in (words.sum(0), words.sum(1), values[end:]):
                digest.update(part.cpu().numpy().tobytes())
        return digest.hexdigest()

    def _sample(self, parameter: Any) -> Tensor:
        """Return one of `_every` weights, as evenly spread blocks; the first ones where those are
        fewer than a block each.
        """
        values = own_part(parameter).reshape(-1)
        if self._every == 1:
            is_small = len(values) <= SAMPLED_WEIGHTS
            return values if is_small else values[: SAMPLED_WEIGHTS // 16]
        n_blocks = len(values) // BLOCK_SIZE
        if n_blocks < self._every:
            return values[: max(1, len(values) // self._every)]
        blocks = values[: n_blocks * BLOCK_SIZE].view(n_blocks, BLOCK_SIZE)
        return blocks[:: self._every].reshape(-1)


def own_part(parameter: Any) -> Tensor:
    """Return the part of a weight that this process holds: all of it, unless ZeRO-3 or FSDP keep it
    in parts.
    """
    part = getattr(parameter, "ds_tensor", parameter)  # by ZeRO-3, which empties the parameter
    return to_local(part.detach())


def to_local(tensor: Any) -> Tensor:
    """Return this process's part of a DTensor, by which FSDP 2 keeps weights; others as they
    are.
    """
    local: Tensor = tensor.to_local() if hasattr(tensor, "to_local") else tensor
    return local


def size_of(parameter: Any) -> int:
    """Return the number of values of a weight over all processes."""
    return int(getattr(parameter, "ds_numel", parameter.numel()))


def most_common(dtypes: Mapping[str, int], default: str) -> str:
    """Return the precision of most weights."""
    return max(dtypes, key=lambda kind: dtypes[kind], default=default)


def dtype_name(kind: str) -> str:
    """Return our name of a torch dtype, `bf16` for `torch.bfloat16`."""
    return str(our_value("model.weights", kind.removeprefix("torch."), "trl"))


def movable_share(weights: Snapshot, lr: float) -> float:
    """Return the share of weights that an update of size `lr`, which Adam's is about everywhere,
    changes.
    """
    if not len(weights.values):
        return 1.0
    # A snapshot widens values of mixed precision.
    dtype = getattr(torch, weights.precision.removeprefix("torch."))
    return movable_part(weights.values.to(dtype), lr)


def judge_cast(log: FindingsLog, before: Snapshot, now: Snapshot, lr: float, step: int) -> None:
    """Report that the trainer has cast its own weights: from here on, all is learned in that
    precision.
    """
    if now.precision not in HALF_DTYPES or before.precision in HALF_DTYPES:
        return
    share = movable_share(now, lr)
    cast = f"{dtype_name(before.precision)}→{dtype_name(now.precision)}"
    is_lost = share < MIN_CHANGED_SHARE
    loss = ": most of each update rounds to nothing" if is_lost else ""
    summary = f"The trained weights were cast {cast} while the run went on{loss}."
    occasion = (
        f"weights were cast {cast} at step {step}, in the generation before its update "
        "(use_transformers_continuous_batching does so when bf16 or fp16 is set)."
    )
    moves = f"An update of the learning rate's size, {lr:g}, changes {share:.1%} of them."
    evidence = [Evidence(occasion, step=step), Evidence(moves, share, CHANGED_METRIC, step)]
    severity = Severity.CRITICAL if is_lost else Severity.WARNING
    log.report(UNDERFLOW_ID, severity, summary, evidence)


def name_wrong_sampler(sampled_by: Snapshot | Literal["base"] | None, learner: Snapshot) -> str:
    """Return a name for what sampled instead of the trained weights; empty where these did.

    `sampled_by` has the weights of the trained model as it ran, or "base" where its adapters were
    off; None where it did not run.
    """
    if sampled_by is None:
        return "another model (the trained one did not run)"
    if isinstance(sampled_by, str):
        return "the base model (the adapters were off)"
    # Weights that were cast since are the same ones; judge_cast reports them. FSDP 1 brings its
    # parts together while the model runs, and then they can't be compared.
    is_cast = sampled_by.dtypes != learner.dtypes
    is_gathered = sampled_by.values.shape != learner.values.shape
    if is_cast or is_gathered or torch.equal(sampled_by.values, learner.values):
        return ""
    return "other weights than those that train"


def judge_repeated(
    log: FindingsLog, id: str, times: int, summary: str, step: int, is_sure: bool = True
) -> None:
    """Report what has happened so often in a row that it is no accident."""
    if times < MIN_REPEATS:
        return
    text = f"{times} times in a row, up to step {step}, by all weights that are sampled."
    severity = Severity.CRITICAL if is_sure else Severity.WARNING
    basis = Basis.PROOF if is_sure else Basis.SIGNAL
    log.report(id, severity, summary, [Evidence(text, step=step)], basis)


def judge_update(log: FindingsLog, step: TrlStep, weights: Snapshot, lr: float) -> None:
    """Report an update of half-precision weights that changes few bits, now and at the full
    learning rate.
    """
    gradient = float(step.gradient or 0.0)
    changed = step.moved.get(CHANGED_METRIC, 1.0)
    is_half = weights.precision in HALF_DTYPES
    if not is_half or changed >= MIN_CHANGED_SHARE or not gradient > 0 or not step.lr > 0:
        return
    # A warm-up step changes few weights, too: judged is an update at the full learning rate.
    share = movable_share(weights, lr)
    if share >= MIN_CHANGED_SHARE:
        return
    name = dtype_name(weights.precision)
    summary = (
        f"The weights are {name} and the learning rate is {lr:g}: most of each update rounds to"
        " nothing."
    )
    text = (
        f"Step {step.step} changed the bits of {changed:.1%} of the weights, at a gradient of"
        f" length {gradient:.3g}."
    )
    moves = (
        f"An update of the learning rate's size changes {share:.1%} of {name} weights; of fp32"
        " weights, all."
    )
    evidence = [Evidence(text, changed, CHANGED_METRIC, step.step), Evidence(moves, share)]
    log.report(UNDERFLOW_ID, Severity.CRITICAL, summary, evidence)
