"""One arm against the control: every figure that a verdict rests on."""

from dataclasses import replace

import numpy as np

from uptrend.lab.foresee import foresee, seeds_to_decide
from uptrend.lab.pairs import Pairs
from uptrend.lab.rules import alpha_of, status_by
from uptrend.lab.sentences import tell
from uptrend.records.hypothesis import Comparison, Direction, Hypothesis, Interval, Status
from uptrend.stats.comparison import paired_p, sequence_p, sign_flip
from uptrend.stats.intervals import (
    Spread,
    chance_of_improvement,
    crossed_interval,
    interval_of,
    iqm_difference,
    likely_deviation,
    sequence_interval,
    spread_of,
    student_reach,
)


def compare(h: Hypothesis, pairs: Pairs, by_sequence: bool, *, is_void: bool = False) -> Comparison:
    """Compare an arm with the control on their common seeds, by the confidence sequence or by Student's interval.

    The sentence of a void comparison has figures and no verdict.
    """
    alpha, differences = alpha_of(h), pairs.differences
    spread = spread_of(differences)
    interval, p = interval_and_p(spread, alpha, by_sequence)
    control, arm = (float(np.mean([run.value for run in side])) for side in (pairs.control, pairs.treated))
    status = status_by(h, interval, control, arm, p) if spread.seeds > 1 else Status.INCONCLUSIVE
    flipped = sign_flip(differences)
    likely = likely_deviation(spread)
    is_open = status is Status.INCONCLUSIVE and spread.seeds > 1
    comparison = Comparison(
        arm=pairs.arm,
        seeds=pairs.seeds,
        differences=tuple(float(d) for d in differences),
        control_mean=control,
        arm_mean=arm,
        interval=interval,
        level=1 - alpha,
        p=p,
        p_adjusted=None,
        sign_flip=min(flipped.up, flipped.down) if h.direction is Direction.EITHER else flipped.up,
        sign_flip_both=flipped.both,
        sign_flip_least=2.0**-spread.seeds,
        improvement=_improvement(pairs, h.alpha),
        tasks_too=crossed_interval(pairs.table, alpha),
        iqm=_across_tasksets(pairs, h.alpha),
        power=foresee(h, h.smallest, likely, spread.seeds, control).validated,
        seeds_needed=_more_seeds(h, spread, control) if is_open else None,
        status=status,
        sentence="",
    )
    return replace(comparison, sentence=tell(h, pairs, comparison, by_sequence, is_void=is_void))


def interval_and_p(spread: Spread, alpha: float, by_sequence: bool) -> tuple[Interval, float]:
    """The interval that decides, and the p that goes with it."""
    if by_sequence:
        return sequence_interval(spread, alpha), sequence_p(spread)
    return interval_of(spread, student_reach(spread.seeds, alpha), alpha), paired_p(spread)


def _more_seeds(h: Hypothesis, spread: Spread, control: float) -> int | None:
    """How many seeds would decide: one more at least, where these should have been enough and were not."""
    needed = seeds_to_decide(h, spread.mean, likely_deviation(spread), control)
    return None if needed is None else max(needed, spread.seeds + 1)


def _improvement(pairs: Pairs, alpha: float) -> Interval:
    control, arm = pairs.by_family or tuple(
        pairs.sign * np.array([[run.value] for run in side]) for side in (pairs.control, pairs.treated)
    )
    return chance_of_improvement(arm, control, alpha)


def _across_tasksets(pairs: Pairs, alpha: float) -> Interval | None:
    scores = pairs.by_family
    return iqm_difference(scores[1], scores[0], alpha) if scores else None
