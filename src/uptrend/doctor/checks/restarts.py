"""run.restarts-concatenated and run.resume-jump: one log of several runs, and a level that shifts at a resume."""

import numpy as np

from uptrend.doctor.check import Outcome, finding
from uptrend.doctor.curves import REWARD, rollout_spread
from uptrend.doctor.statistics.shift import shift_at
from uptrend.records import Confidence, Evidence, Finding, RunView, Severity

FEWEST = 6
WINDOW = 15
"""Points on either side of a resume that are compared."""


def check(view: RunView) -> Outcome:
    """Read the reader's notes for runs in a row, and the events for resumes."""
    found: list[Finding] = []
    for note in view.notes:
        if "one after the other" in note or "start again" in note:
            found.append(
                finding(view, "run.restarts-concatenated", Severity.NOTE, Confidence.HIGH, note, [Evidence(note)])
            )
            break
    last = 0  # a resume goes on from the last step that an event before it names: a checkpoint, or where it stopped
    for event in view.events:
        last = int(event.get("step") or last)
        if event.get("event") == "resumed":
            jump = _jump(view, last)
            found += [jump] if jump else []
    return [*found]


def _jump(view: RunView, step: int) -> Finding | None:
    """A level shift exactly at a resume, against the noise of its neighbourhood."""
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
