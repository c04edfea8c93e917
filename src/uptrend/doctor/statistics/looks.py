"""A trend that may be looked for every few steps of a run that goes on: alpha is spent over the looks.

Successive looks share most of their data, and what is new grows with the curve's doublings, not with the looks. So
each doubling of the points gets a share of alpha, 1/(k+1)(k+2) of it for the k-th, and each look within a doubling a
quarter of that share; and ρ gets two standard errors more, for far tails feel a wrong ρ most.

Measured with tests/doctor/statistics/size_and_power.py: 200 steps looked at every 5 from the 32nd on, 250 curves:
a trend was ever seen where there was none in 4.0 / 3.6 / 1.6 / 9.6% at autocorrelation 0 / .3 / .6 / .9; a rise of
one noise deviation over the 200 steps was seen by the end in 57%, of two in 100% (125 curves).
"""

from uptrend.doctor.statistics.trend import TrendTest, measure_trend
from uptrend.records.view import Floats

FIRST_LOOK = 32
LOOKS_A_DOUBLING = 4.0


def level_at(points: int, alpha: float = 0.05) -> float:
    """The level at which a look after so many points may be tested; 0 before the first."""
    if points < FIRST_LOOK:
        return 0.0
    doubling = (points // FIRST_LOOK).bit_length() - 1
    return alpha / ((doubling + 1) * (doubling + 2)) / LOOKS_A_DOUBLING


def seen_trend(values: Floats, alpha: float = 0.05) -> TrendTest | None:
    """The trend so far if it can be told at this look, whatever looks came before; none otherwise."""
    trend = measure_trend(values, caution=2.0)
    return trend if trend is not None and trend.p < level_at(len(values), alpha) else None
