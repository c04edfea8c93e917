"""run.restarts-concatenated and run.resume-jump: one log of several runs, and a level that shifts at a resume."""

import numpy as np

from uptrend.doctor.check import Outcome, finding
from uptrend.doctor.curves import REWARD, rollout_spread
from uptrend.records import Confidence, Evidence, Finding, RunView, Severity
from uptrend.stats.trend import shift_at

FEWEST = 6
WEIGHTS = "weights/norm"
TIMES = 5.0
"""How many times the largest move around it the weights' length jumps by, where they were not restored."""
WINDOW = 15
"""Points on either side of a resume that are compared."""


def check(view: RunView) -> Outcome:
    """Tell of runs in a row in one log, and of level shifts at resumes."""
    found: list[Finding] = []
    if view.runs_in_log > 1:
        text = f"The log holds {view.runs_in_log} runs one after the other; each is judged alone."
        shown = Evidence(text, view.runs_in_log)
        found.append(finding(view, "run.restarts-concatenated", Severity.NOTE, Confidence.HIGH, text, [shown]))
    last = 0  # a resume goes on from the last step that an event before it names: a checkpoint, or where it stopped
    for event in view.events:
        last = int(event.get("step") or last)
        if event.get("event") == "resumed":
            jump = _weights_jump(view, last) or _jump(view, last)
            found += [jump] if jump else []
    return [*found]


def _weights_jump(view: RunView, step: int) -> Finding | None:
    """Weights whose length changes at a resume as at no step around it: they were not restored."""
    steps, norms = view.curve(WEIGHTS)
    at = int(np.searchsorted(steps, step, side="right"))
    first = max(1, at - WINDOW)
    moves = np.abs(np.diff(norms[first - 1 : at + WINDOW]))  # moves[i] is the one to point first + i
    if at - first < FEWEST or len(moves) - (at - first) <= FEWEST:
        return None
    jump, usual = float(moves[at - first]), float(np.delete(moves, at - first).max())
    if jump < TIMES * usual or jump == 0:
        return None
    text = f"The weights' length jumped from {norms[at - 1]:.6g} to {norms[at]:.6g} where the run was resumed, at step"
    shown = Evidence(f"The largest move of {len(moves) - 1} steps around it is {usual:.2g}.", jump, WEIGHTS, step)
    return finding(view, "run.resume-jump", Severity.WARNING, Confidence.HIGH,
                   f"{text} {step}: they were not restored.", [shown])  # fmt: skip


def _jump(view: RunView, step: int) -> Finding | None:
    """A level shift exactly at a resume, against the noise of its neighborhood."""
    steps, values = view.curve(REWARD)
    at = int(np.searchsorted(steps, step, side="right"))
    window = values[max(0, at - WINDOW) : at + WINDOW]
    index = at - max(0, at - WINDOW)
    if index < FEWEST or len(window) - index < FEWEST:
        return None
    shift = shift_at(window, index)
    if abs(shift.z) < 5 or abs(shift.change) < 0.25 * rollout_spread(view):
        return None
    text = f"The reward jumped from {shift.before:.3g} to {shift.after:.3g} where the run was resumed, at step {step}"
    shown = Evidence(f"A shift of {shift.z:.1f} standard errors.", shift.change, REWARD, step)
    return finding(view, "run.resume-jump", Severity.WARNING, Confidence.MEDIUM,
                   f"{text}: something was not restored.", [shown])  # fmt: skip
