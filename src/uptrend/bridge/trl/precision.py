"""Findings on precision: updates that round to nothing, and weights that are cast during the run."""

from dataclasses import dataclass

import torch

from uptrend.bridge.trl.findings_log import FindingsLog
from uptrend.bridge.trl.settings import dtype_name
from uptrend.bridge.trl.weights import Snapshot, movable_share
from uptrend.records import Confidence, Evidence, Severity

HALF = {"torch.bfloat16": torch.bfloat16, "torch.float16": torch.float16}
LOST = 0.5
"""Below this share of weights that move, most of each update is lost."""


@dataclass(frozen=True)
class TracedUpdate:
    """One update of the optimizer, as its traces show it."""

    step: int
    changed: float
    """The share of weights whose bits changed."""
    gradient: float
    lr: float


def common(dtypes: dict[str, int]) -> str:
    """The precision that most of the weights have."""
    return max(dtypes, key=lambda kind: dtypes[kind], default="")


def judge_cast(findings_log: FindingsLog, before: dict[str, int], now: Snapshot, lr: float, step: int) -> None:
    """The trainer cast its own weights: everything from here on is learned in that precision."""
    was, becomes = common(before), common(now.dtypes)
    if becomes not in HALF or was in HALF:
        return
    share = movable_share(now, HALF[becomes], lr)
    said = f"{dtype_name(was)}→{dtype_name(becomes)}"
    findings_log.say(
        "precision.update-underflow",
        Severity.CRITICAL if share < LOST else Severity.WARNING,
        Confidence.HIGH,
        f"The trained weights were cast {said} while the run went on: most of each update rounds to nothing."
        if share < LOST
        else f"The trained weights were cast {said} while the run went on.",
        [
            Evidence(f"weights were cast {said} at step {step}, in the generation before its update "
                     "(use_transformers_continuous_batching does so when bf16 or fp16 is set).", step=step),
            Evidence(f"An update of the learning rate's size, {lr:g}, changes {share:.1%} of them.", share,
                     "weights/changed/share", step),
        ],
    )  # fmt: skip


def judge_update(findings_log: FindingsLog, update: TracedUpdate, weights: Snapshot, lr: float) -> None:
    """With weights of half precision, an update that hardly changes any bits is lost, now and at the full rate."""
    kind = common(weights.dtypes)
    if kind not in HALF or update.changed >= LOST or not update.gradient > 0 or not update.lr > 0:
        return
    share = movable_share(weights, HALF[kind], lr)
    if share >= LOST:
        return
    name = dtype_name(kind)
    findings_log.say(
        "precision.update-underflow",
        Severity.CRITICAL,
        Confidence.HIGH,
        f"The weights are {name} and the learning rate is {lr:g}: most of each update rounds to nothing.",
        [
            Evidence(f"Step {update.step} changed the bits of {update.changed:.1%} of the weights, at a gradient of "
                     f"length {update.gradient:.3g}.", update.changed, "weights/changed/share", update.step),
            Evidence(f"An update of the learning rate's size changes {share:.1%} of {name} weights; of fp32 weights, "
                     "all.", share),
        ],
    )  # fmt: skip
