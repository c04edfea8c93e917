"""run.too-short: the run can't show the effect sought."""

import math

from uptrend.doctor.check import Outcome, finding
from uptrend.doctor.curves import REWARD, rollout_spread
from uptrend.doctor.statistics.power import points_for
from uptrend.doctor.statistics.trend import measure_trend
from uptrend.doctor.verdict import FEWEST_POINTS, SMALLEST, judge
from uptrend.records import CannotTell, Confidence, Evidence, RunView, Severity, Trend
from uptrend.records.view import Floats

ID = "run.too-short"
ENOUGH = 0.8
"""The power that a run should have."""
FEW = 50
"""Logged points below which even a trend that shows is worth repeating."""


def check(view: RunView) -> Outcome:
    """Say the power for the smallest effect that matters, and how many points would do."""
    values = view.curve(REWARD)[1]
    if len(values) == 0:
        return [CannotTell(ID, "no reward was logged")]
    verdict = judge(view)
    power = verdict.power if verdict.power is not None else 0.0
    is_untold = verdict.trend is Trend.TOO_SHORT
    is_decided = verdict.trend in (Trend.LEARNING, Trend.FALLING) and len(values) >= FEW
    if power >= ENOUGH or is_decided or (verdict.trend is Trend.FLAT and len(values) >= 4 * FEWEST_POINTS):
        return []
    smallest = SMALLEST * rollout_spread(view)
    needed = _points_needed(values, smallest)
    tail = f" It would take about {needed} logged points." if needed > len(values) else ""
    return [
        finding(
            view,
            ID,
            Severity.NOTE,  # the verdict says it already, and a short run is no fault of the recipe
            Confidence.HIGH if is_untold else Confidence.MEDIUM,
            f"{len(values)} points with this noise show a change of {smallest:.2g} in {power:.0%} of runs.{tail}",
            [Evidence(f"Power {power:.0%} for a change of {smallest:.2g}.", power, REWARD, int(view.steps[-1]))],
        )
    ]


def _points_needed(values: Floats, smallest: float) -> int:
    """How many such points would show the smallest effect that matters."""
    line = measure_trend(values)
    if line is None or smallest <= 0:
        return 0
    # The noise of independent points that would give this trend its error.
    return points_for(smallest, line.error * math.sqrt(len(values) / 12))
