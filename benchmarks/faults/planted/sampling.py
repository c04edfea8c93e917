"""Sampling: too cold, too few, cut off, never ending, or from another distribution than the learner's."""

from contextlib import AbstractContextManager
from typing import Any

from benchmarks.faults.fault import Fault, Strength, of_settings
from benchmarks.faults.planted.known import known
from tests.doctor.planted_faults import swapped

from uptrend.policy.policy import Policy

UNUSED = 0
"""A token that no model here ever says."""


def _deaf() -> AbstractContextManager[Any]:
    """The stop tokens are not known to the sampler."""
    return swapped(Policy, "stop_ids", lambda _: property(lambda _: (UNUSED,)))


FAULTS = (
    Fault("sampling.temperature-low", (known("temperature-low"), Strength("0.05", settings={
        "sampling.temperature": 0.05})), fix=("sampling.temperature",)),
    Fault("sampling.few-generations", (known("groups-of-two", tasks__reward="exact"),),
          also=("advantage.dead-groups-low",), fix=("sampling.size",)),
    of_settings("sampling.entropy-collapse", {"learning.entropy": -5.0, "learning.lr": 3e-4}, steps=40, seeds=2,
                fix=("learning.entropy", "learning.clip_high")),
    of_settings("sampling.entropy-explosion", {"learning.entropy": 10.0, "learning.lr": 5e-4}, steps=30, seeds=2,
                fix=("learning.entropy", "sampling.temperature")),
    Fault("sampling.truncated-distribution", (known("temperature-ignored", sampling__temperature=0.6),
                                              known("top-p"),
                                              Strength("top-k 3", settings={"sampling.top_k": 3}))),
    Fault("sampling.no-stop", (Strength("stop ids unknown", _deaf, {"sampling.max_tokens": 16}),),
          also=("context.completion-truncated", "reward.gold-rejected")),
    of_settings("context.completion-truncated", {"sampling.max_tokens": 1}, {"sampling.max_tokens": 2}),
    of_settings("context.prompt-truncated", {"sampling.max_prompt": 10}, {"sampling.max_prompt": 20},
                fix=("sampling.max_prompt", "sampling.context")),
)  # fmt: skip
