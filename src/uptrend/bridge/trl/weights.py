"""Effect of TRL's updates on the weights: how far they move, how many change, and their precision.

About 65,000 weights are sampled, as evenly spread blocks that stay the same all run long. The
trainer waits for a copy of them and its comparison with the last one to be queued on their device,
and not for the device: the figures are read on another thread.
"""

import hashlib
from collections import Counter
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from uptrend.bridge.trl.batch import HALF, TrlStep
from uptrend.bridge.trl.findings_log import FindingsLog
from uptrend.policy.weights import Movement, change_of, group_of, movable_part, movement_of
from uptrend.records import Basis, Evidence, Severity
from uptrend.records.dialects import our_value

SAMPLE = 1 << 16  # about how many weights are sampled
BLOCK = 256
SEVERAL = 3  # times in a row that something must happen to be no accident
LOST = 0.5  # share of weights that move, below which most of each update is lost
CHANGED = "weights/changed/share"
UNDERFLOW = "precision.update-underflow"


@dataclass(frozen=True)
class Snapshot:
    """Sampled weights at one moment."""

    values: Tensor  # all of them, side by side
    dtypes: dict[str, int]  # number of trainable weights by precision

    @property
    def precision(self) -> str:
        """Precision of most weights."""
        return max(self.dtypes, key=lambda kind: self.dtypes[kind], default="")


# change_of each layer group, and the later of the two snapshots compared
Move = tuple[Tensor, Snapshot]


class WatchedWeights:
    """Trainable weights of a model that another program trains."""

    def __init__(self, model: Any) -> None:
        named = [(group_of(name), p) for name, p in model.named_parameters() if p.requires_grad]
        named.sort(key=lambda item: item[0])  # a group's weights lie side by side in a snapshot
        self._parameters = [p for _, p in named]
        self._total = sum(p.numel() for p in self._parameters)
        self._every = max(1, self._total // SAMPLE)
        # places of a group, and weights per sampled one
        self._groups: dict[str, tuple[slice, float]] = {}
        start = 0
        for group in dict.fromkeys(name for name, _ in named):
            own = [p for name, p in named if name == group]
            sampled = sum(len(self._sample(p)) for p in own)
            self._groups[group] = (
                slice(start, start + sampled),
                sum(p.numel() for p in own) / max(1, sampled),
            )
            start += sampled

    def dtypes(self) -> dict[str, int]:
        """Return the number of trainable weights by precision."""
        counts: Counter[str] = Counter()
        for parameter in self._parameters:
            counts[str(parameter.dtype)] += parameter.numel()
        return dict(counts)

    def snapshot(self) -> Snapshot:
        """Copy the sampled weights."""
        # Each time from the parameters: a trainer may put other tensors into them.
        samples = [self._sample(p) for p in self._parameters]
        return Snapshot(torch.cat(samples) if samples else torch.zeros(0), self.dtypes())

    def compare(self, before: Snapshot, after: Snapshot) -> Move:
        """Sum up the change by layer group, without waiting for the device."""
        groups = self._groups.values()
        rows = [
            change_of(before.values[places], after.values[places], scale)
            for places, scale in groups
        ]
        return torch.stack(rows) if rows else torch.zeros(0, 3), after

    def movement(self, move: Move) -> Movement:
        """Return norms of the weights and of their change, by layer group, and the share that
        changed.
        """
        return movement_of(self._groups, move[0], max(1, self._total))

    def digest(self) -> str:
        """Return a fingerprint of every bit of the trainable weights, from sums that are made on
        their device.
        """
        digest = hashlib.blake2b(digest_size=16)
        for parameter in self._parameters:
            values = parameter.detach().contiguous().view(-1).view(torch.uint8)
            whole = values.numel() // (8 * BLOCK) * (8 * BLOCK)
            if values.storage_offset() % 8:  # 8-byte words must begin at their own places
                values = values.clone()
            words = values[:whole].view(torch.int64).view(-1, BLOCK)
            for part in (words.sum(0), words.sum(1), values[whole:]):
                digest.update(part.cpu().numpy().tobytes())
        return digest.hexdigest()

    def _sample(self, parameter: Any) -> Tensor:
        values: Tensor = parameter.detach().reshape(-1)
        if self._every == 1:
            return values if len(values) <= SAMPLE else values[: SAMPLE // 16]
        blocks = len(values) // BLOCK
        if blocks < self._every:
            return values[: max(1, len(values) // self._every)]
        return values[: blocks * BLOCK].view(blocks, BLOCK)[:: self._every].reshape(-1)


def dtype_name(kind: str) -> str:
    """Return our name of a torch dtype, `bf16` for `torch.bfloat16`."""
    return str(our_value("model.weights", kind.removeprefix("torch."), "trl"))


def movable_share(weights: Snapshot, lr: float) -> float:
    """Return the share of weights that an update of size `lr`, which Adam's is about everywhere,
    changes.
    """
    # values of mixed precision were widened
    dtype = getattr(torch, weights.precision.removeprefix("torch."))
    return movable_part(weights.values.to(dtype), lr) if len(weights.values) else 1.0


def judge_cast(log: FindingsLog, before: Snapshot, now: Snapshot, lr: float, step: int) -> None:
    """Report that the trainer has cast its own weights: from here on, all is learned in that
    precision.
    """
    if now.precision not in HALF or before.precision in HALF:
        return
    share = movable_share(now, lr)
    cast = f"{dtype_name(before.precision)}→{dtype_name(now.precision)}"
    lost = ": most of each update rounds to nothing" if share < LOST else ""
    summary = f"The trained weights were cast {cast} while the run went on{lost}."
    text = (
        f"weights were cast {cast} at step {step}, in the generation before its update "
        "(use_transformers_continuous_batching does so when bf16 or fp16 is set)."
    )
    moves = f"An update of the learning rate's size, {lr:g}, changes {share:.1%} of them."
    evidence = [Evidence(text, step=step), Evidence(moves, share, CHANGED, step)]
    log.say(UNDERFLOW, Severity.CRITICAL if share < LOST else Severity.WARNING, summary, evidence)


def strange_sampler(sampled_by: Snapshot | str | None, learner: Snapshot) -> str:
    """Return what sampled instead of the trained weights; empty where these did."""
    if sampled_by is None:
        return "another model (the trained one did not run)"
    if isinstance(sampled_by, str):
        return "the base model (the adapters were off)"
    # see judge_cast
    is_own = sampled_by.dtypes != learner.dtypes or torch.equal(sampled_by.values, learner.values)
    return "" if is_own else "other weights than those that train"


def judge_repeated(
    log: FindingsLog, id: str, times: int, summary: str, step: int, is_sure: bool = True
) -> None:
    """Report what has happened so often in a row that it is no accident."""
    if times >= SEVERAL:
        sure = (Severity.CRITICAL, Basis.PROOF) if is_sure else (Severity.WARNING, Basis.SIGNAL)
        shown = Evidence(
            f"{times} times in a row, up to step {step}, by all weights that are sampled.",
            step=step,
        )
        log.say(id, sure[0], summary, [shown], sure[1])


def judge_update(
    log: FindingsLog, step: TrlStep, changed: float, weights: Snapshot, lr: float
) -> None:
    """Report an update of half-precision weights that changes few bits, now and at the full
    learning rate.
    """
    gradient = float(step.gradient or 0.0)
    if weights.precision not in HALF or changed >= LOST or not gradient > 0 or not step.lr > 0:
        return
    share = movable_share(weights, lr)
    name = dtype_name(weights.precision)
    if share >= LOST:
        return
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
    evidence = [Evidence(text, changed, CHANGED, step.step), Evidence(moves, share)]
    log.say(UNDERFLOW, Severity.CRITICAL, summary, evidence)
