"""Old place of comparisons with the held-out score; goes away with the last check of the old form."""

from uptrend.doctor.case import Case
from uptrend.doctor.checks import rewards
from uptrend.doctor.trend import HeldOutChange
from uptrend.records import RunView
from uptrend.stats.trend import TrendTest


def stands_still(view: RunView, metric: str, unit: float, change: HeldOutChange) -> bool:
    """Tell whether the held-out score surely rose much less than a training score."""
    return rewards.stands_still(Case(view), metric, unit, change)


def falls_alone(view: RunView, rise: TrendTest | None, unit: float, change: HeldOutChange) -> bool:
    """Tell whether the held-out score surely fell while training did not."""
    return rewards.falls_alone(Case(view), rise, unit, change)
