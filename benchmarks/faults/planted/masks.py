"""Masks and tokens: what the learner sees, what it trains, and whether that is what was sampled."""

from dataclasses import replace
from typing import Any

import numpy as np
from benchmarks.faults.fault import Fault, Strength
from benchmarks.faults.planted.known import known
from tests.doctor.planted_faults import on_lines, swapped

from uptrend.records import Role
from uptrend.training import loop


def _deaf(line: Any, roles: np.ndarray) -> Any:
    """Attention sees the question, and no tool's result."""
    return replace(line, visible=line.visible & (roles != int(Role.TOOL)))


def _last_turn(line: Any, roles: np.ndarray) -> Any:  # noqa: ARG001
    """Only the last thing that the model says is trained."""
    places = line.sampled
    starts = np.flatnonzero(np.diff(places, prepend=-2) > 1)
    return replace(line, sampled=places[starts[-1] :] if len(starts) else places)


def _trained_with_tools(make: Any) -> Any:
    """A tool's tokens count as the model's own, with a log-probability of 0 where nobody sampled them."""

    def run(rollouts: Any, config: Any) -> Any:
        filled = []
        for rollout in rollouts:
            tokens = [replace(s, sampler=np.where(s.roles == Role.TOOL, 0.0, s.sampler).astype(np.float32))
                      for s in rollout.sequences]  # fmt: skip
            filled.append(replace(rollout, sequences=tuple(tokens)))
        return make(filled, config)

    return run


def _tools_trained() -> Any:
    from benchmarks.faults.planted.reward import both

    return both(known("tools-trained").plant(), swapped(loop, "experience", _trained_with_tools))


FAULTS = (
    Fault(
        "mask.attention-blind", (known("attention-blind"), Strength("to tools alone", on_lines(_deaf), two_turns=True))
    ),
    Fault("mask.tool-trained", (Strength("tools too", _tools_trained, {"sampling.max_tokens": 30}),), two_turns=True),
    Fault(
        "mask.model-untrained",
        (known("half-untrained"), Strength("all but the last turn", on_lines(_last_turn), two_turns=True)),
    ),
    Fault("mask.stop-untrained", (known("stop-untrained"),)),
    Fault("tokens.retokenized", (known("other-ids"),)),
    Fault("tokens.template", (known("double-first-token"),)),
    Fault("tokens.padding", (known("left-over-positions"), known("rows-unmasked"))),
)
