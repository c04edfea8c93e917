"""reward.constant: one value on every rollout for several steps, whatever the value."""

import numpy as np

from uptrend.doctor.check import Outcome, finding
from uptrend.doctor.curves import REWARD, height
from uptrend.doctor.trend import trend_of
from uptrend.records import CannotTell, Confidence, Evidence, RunView, Severity, TrendKind
from uptrend.records.view import Floats

FEWEST = 5
"""Steps of one value in a row that chance does not make."""


def check(view: RunView) -> Outcome:
    """Find the longest stretch in which every rollout had one reward."""
    steps, values = view.curve(REWARD)
    if len(values) == 0:
        return [CannotTell("reward.constant", "no reward was logged")]
    begin, length = _longest_stretch(values, _spread_at(view))
    if length < FEWEST:
        return []
    share, value = length / len(values), float(values[begin])
    is_top = trend_of(view).kind is TrendKind.LEARNING and height(view, value) > 0.95
    severity = Severity.NOTE
    if not is_top and (share >= 0.5 or begin + length == len(values)):
        severity = Severity.CRITICAL if share >= 0.5 else Severity.WARNING
    text = f"Every rollout had the reward {value:.3g} on {length} logged steps in a row, from step {steps[begin]}"
    where = Evidence(f"That is {share:.0%} of the run.", value, REWARD, int(steps[begin]))
    return [finding(view, "reward.constant", severity, Confidence.HIGH, f"{text}: there was nothing to learn from.",
                    [where])]  # fmt: skip


def _spread_at(view: RunView) -> Floats:
    """The rewards' deviation at the points that have a reward; NaN where it was not logged."""
    finite = np.isfinite(view.metrics[REWARD])
    for metric in ("reward/std", "reward/group_std/mean"):
        if view.has(metric):
            return view.metrics[metric][finite]
    return np.full(int(finite.sum()), np.nan)


def _longest_stretch(values: Floats, spread: Floats) -> tuple[int, int]:
    """Where the longest run of equal, spreadless points begins, and how long it is."""
    flat = ~(spread > 1e-9)
    best, begin = (0, 0), 0
    for at in range(len(values)):
        if not flat[at]:
            begin = at + 1
            continue
        if values[at] != values[begin]:
            begin = at
        best = max(best, (at - begin + 1, begin), key=lambda pair: pair[0])
    return best[1], best[0]
