"""run.too-short: the run can't show the effect sought."""

import math

import numpy as np

from uptrend.doctor.check import Outcome, finding
from uptrend.doctor.curves import LEVEL, REWARD, rollout_spread
from uptrend.doctor.trend import FEWEST_POINTS, SMALLEST, trend_of
from uptrend.records import CannotTell, Confidence, Evidence, RunView, Severity, Trend, TrendKind
from uptrend.records.view import Floats
from uptrend.stats.formatting import plural
from uptrend.stats.trend import measure_trend, points_for

ID = "run.too-short"
ENOUGH = 0.8
"""The power that a run should have."""
OUT_OF_REACH = 100
"""So many times the points are not advice."""
NOTHING = 0.001
"""A spread between rollouts below this share of what the mean moved through is none."""
FEW = 50
"""Logged points below which even a trend that shows is worth repeating."""


def check(view: RunView) -> Outcome:
    """Say the power for the smallest effect that matters, and how many points would do."""
    values = view.curve(REWARD)[1]
    if len(values) == 0:
        return [CannotTell(ID, "no reward was logged")]
    trend = trend_of(view)
    power = trend.power if trend.power is not None else 0.0
    is_untold = trend.kind is TrendKind.TOO_SHORT
    if power >= ENOUGH or _is_decided(trend, len(values)):
        return []
    smallest = SMALLEST * rollout_spread(view)
    if trend.power is not None and smallest < NOTHING * float(np.ptp(values)):
        return [CannotTell(ID, "rollouts hardly differ, so that there is no scale for an effect")]
    return [
        finding(
            view,
            ID,
            Severity.NOTE,  # the trend says it already, and a short run is no fault of the recipe
            Confidence.HIGH if is_untold else Confidence.MEDIUM,
            _told(values, smallest, power, trend),
            [Evidence(f"{_shows(smallest, power)}.", power, REWARD, int(view.steps[-1]))],
        )
    ]


def _is_decided(trend: Trend, points: int) -> bool:
    """Whether nobody would ask for more: it falls, it surely rises by much, or it has been flat for long."""
    if trend.kind is TrendKind.FLAT:
        return points >= 4 * FEWEST_POINTS
    if trend.kind is not TrendKind.LEARNING or trend.effect is None or trend.interval is None:
        return trend.kind is TrendKind.FALLING
    return points >= FEW or trend.interval[0] > trend.effect / 2


def _shows(smallest: float, power: float) -> str:
    return f"a change of {smallest:.2g}, the smallest that matters, would show in {power:.0%} of such runs"


def _told(values: Floats, smallest: float, power: float, trend: Trend) -> str:
    """How little so many points can show, and how many would do."""
    count = plural(len(values), "point")
    if trend.power is None:
        return f"{count} of reward can't show a trend: {FEWEST_POINTS} are the least."
    shows = _shows(smallest, power)
    if trend.kind is TrendKind.LEARNING:
        return f"The trend shows on {count} alone, so that it is worth repeating: {shows}."
    needed = _points_needed(values, smallest)
    if needed > OUT_OF_REACH * len(values):
        return f"With {count} and this noise, {shows}. More steps alone will not do: sample more a step."
    return f"With {count} and this noise, {shows}." + (
        f" It would take about {float(f'{needed:.2g}'):,.0f} points." if needed > len(values) else ""
    )


def _points_needed(values: Floats, smallest: float) -> int:
    """How many such points would show the smallest effect that matters."""
    line = measure_trend(values)
    if line is None or smallest <= 0:
        return 0
    # The noise of independent points that would give this trend its error.
    return points_for(smallest, line.error * math.sqrt(len(values) / 12), ENOUGH, LEVEL / 2)
