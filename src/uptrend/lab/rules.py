"""The level at which a hypothesis is judged, and its criteria applied to an interval."""

from uptrend.lab import criteria
from uptrend.records.hypothesis import INVALIDATED_IF, VALIDATED_IF, Direction, Hypothesis, Interval, Status


def alpha_of(h: Hypothesis) -> float:
    """Each arm's share of alpha.

    Shared among the arms (Bonferroni). A directional claim errs on one side only, so that the sequence and the final
    interval, each two-sided at this level, err together as often as it says. A claim of either direction errs on both,
    and where it may stop early each of the two gets half.
    """
    share = h.alpha / len(h.treated)
    return share / 2 if h.direction is Direction.EITHER and h.stops_early else share


def has_own_criteria(h: Hypothesis) -> bool:
    """Whether the criteria are other than the usual two."""
    return (h.validated_if.strip(), h.invalidated_if.strip()) != (VALIDATED_IF, INVALIDATED_IF)


def status_by(h: Hypothesis, interval: Interval, control: float, arm: float, p: float) -> Status:
    """What the criteria say of an interval; invalidated first: an effect may be there and smaller than matters."""
    values = {**towards(h, interval), "smallest": h.smallest, "control": control, "arm": arm, "p": p}
    if criteria.parse(h.invalidated_if).holds(values):
        return Status.INVALIDATED
    return Status.VALIDATED if criteria.parse(h.validated_if).holds(values) else Status.INCONCLUSIVE


def towards(h: Hypothesis, interval: Interval) -> dict[str, float]:
    """Effect, low and high as criteria see them: a claim of either direction is read on the side that it fell to.

    There `low > 0` says that the interval excludes 0, and `high < smallest` that it lies within ± smallest.
    """
    if h.direction is Direction.EITHER and interval.effect < 0:
        return {"effect": -interval.effect, "low": -interval.high, "high": -interval.low}
    return {"effect": interval.effect, "low": interval.low, "high": interval.high}
