"""The verdict on a hypothesis, computed from its runs: by criteria that were fixed beforehand,
seeds as the unit.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from uptrend.lab import templates
from uptrend.lab.compare import (
    Pairs,
    alpha_of,
    compare,
    interval_and_p,
    least_seeds,
    pair,
    status_of,
    tasks_to_decide,
    towards,
)
from uptrend.lab.measure import amount, effect_text, interval_text, level, room
from uptrend.present.formatting import p_value
from uptrend.records import Comparison, Confidence, Direction, Hypothesis, Measured, Status, Verdict
from uptrend.records.metrics import first_step, name_of
from uptrend.stats.comparison import benjamini_hochberg, fewest_seeds, mcnemar, outliers, sign_flip
from uptrend.stats.intervals import likely_deviation, mean_squares, spread_of

MANY_SEEDS = 8
ENOUGH_SEEDS = 5
# Accepted share of false ones among the validated of a family.
RATE = 0.05
CLAIMED = {Direction.UP: "a rise", Direction.DOWN: "a fall", Direction.EITHER: "a difference"}


def judge(
    h: Hypothesis,
    measured: Sequence[Measured],
    *,
    stopped_early: bool = False,
    refused: Mapping[str, str] = {},
    void: str = "",
    healthy: str = "",
    unseen: str = "",
) -> Verdict:
    """Judge a hypothesis by its runs; refused arms are left out, and a void experiment decides
    nothing.

    `healthy` says by what the control does not have the cause that the claim is about, and `unseen`
    why that could not be told: a cure of what is not there was not tested, and one of what may not
    be there is not sure.
    """
    pairs = [
        pair(h, measured, arm.name)
        for arm in h.treated
        if not {arm.name, h.control.name} & set(refused)
    ]
    by_sequence = stopped_early or any(one.waiting for one in pairs)
    nothing_to_cure = "" if void else healthy or _why_no_room(h, pairs)
    compared = list[Comparison]()
    for one in [one for one in pairs if one.seeds]:
        found = compare(h, one, by_sequence)
        if nothing_to_cure:  # more seeds would not make the control ill
            found = replace(found, status=Status.INCONCLUSIVE, seeds_needed=None)
        sentence = _sentence(h, one, found, by_sequence, is_tested=not (void or nothing_to_cure))
        compared.append(replace(found, sentence=sentence))
    status = Status.INCONCLUSIVE if void else _overall(h, [one.status for one in compared])
    deciding = [one for one in compared if one.status is status]
    blemishes = [f"arm {arm} was refused" for arm in refused]
    blemishes += ["judged by the confidence sequence"] if stopped_early else []
    if any(one.broken or (one.waiting and not stopped_early) for one in pairs):
        blemishes.append("seeds are missing")
    confidence = Confidence.LOW
    because = "neither criterion is met"
    if status is not Status.INCONCLUSIVE:
        # One arm is enough to validate, so the surest counts; to invalidate takes all of them, so
        # the least sure does.
        graded = [_confidence_of_arm(h, comparison, blemishes) for comparison in deciding]
        ranked = sorted(graded, key=lambda one: list(Confidence).index(one[0]))
        confidence, because = ranked[0] if status is Status.VALIDATED else ranked[-1]
    # Settings of runs that do not learn can hardly differ.
    sides = [side for one in pairs for side in (one.control, one.treated) if side]
    gains = [[run.value - run.before for run in side if run.before is not None] for side in sides]
    is_known = h.metric.startswith("eval/") and [len(gain) for gain in gains] == [
        len(side) for side in sides
    ]
    if (
        status is Status.INVALIDATED
        and is_known
        and max(sum(gain) / len(gain) for gain in gains) < h.smallest
    ):
        confidence = Confidence.LOW
        because = (
            f"no arm got better by {amount(h.metric, h.smallest)}, so that runs which hardly learn"
            " were compared"
        )
    if unseen and status is not Status.INCONCLUSIVE:
        confidence = Confidence.LOW
        because = unseen
    if (
        status is Status.INCONCLUSIVE
        and compared
        and all(len(one.seeds) < least_seeds(h) for one in compared)
    ):
        because = f"fewer than {least_seeds(h)} paired seeds decide nothing"
    deciding_first = sorted(compared, key=lambda one: one.status is not status)
    sentence = _say(
        "verdict",
        h=h,
        status=status,
        compared=deciding_first,
        pairs=pairs,
        refused=refused,
        void=void,
        nothing_to_cure=nothing_to_cure,
    )
    because = "the experiment is void" if void else nothing_to_cure or because
    return Verdict(
        h.id,
        status,
        confidence,
        because,
        sentence,
        tuple(compared),
        stopped_early=stopped_early,
        void=void,
        refused=dict(refused),
        nothing_to_cure=nothing_to_cure,
    )


def _why_no_room(h: Hypothesis, pairs: Sequence[Pairs]) -> str:
    # A control that is healthy by the metric itself: the smallest effect that matters does not fit
    # beside it.
    levels = [run.value for one in pairs for run in one.control]
    if not h.cause or not levels or first_step(h.metric) or h.direction is Direction.EITHER:
        return ""
    mean = sum(levels) / len(levels)
    if room(h.metric, h.direction, mean) >= h.smallest:
        return ""
    by = f"{CLAIMED[h.direction]} of {amount(h.metric, h.smallest)}"
    shown = level(h.metric, mean)
    return f"{name_of(h.metric)} is {shown} in {h.control.name}, which leaves no room for {by}"


def is_decided(h: Hypothesis, measured: Sequence[Measured]) -> Status | None:
    """Return the confidence sequence's answer, if it has one already; it may be asked after every
    seed.
    """
    pairs = [pair(h, measured, arm.name) for arm in h.treated]
    status = _overall(
        h,
        [status_of(h, one, interval_and_p(h, one, True)[0]) for one in pairs if len(one.seeds) > 1],
    )
    return None if status is Status.INCONCLUSIVE else status


def _overall(h: Hypothesis, statuses: Sequence[Status]) -> Status:
    # one arm is enough to validate; to invalidate takes all of them
    if Status.VALIDATED in statuses:
        return Status.VALIDATED
    is_excluded = len(statuses) == len(h.treated) and all(
        status is Status.INVALIDATED for status in statuses
    )
    return Status.INVALIDATED if is_excluded else Status.INCONCLUSIVE


def _confidence_of_arm(
    h: Hypothesis, one: Comparison, blemishes: Sequence[str]
) -> tuple[Confidence, str]:
    # The confidence and the rule that gave it.
    seeds = len(one.seeds)
    differences = np.array(one.differences)
    if seeds < ENOUGH_SEEDS:
        return Confidence.LOW, f"{seeds} paired seeds; {ENOUGH_SEEDS} are the least for medium"
    p = one.sign_flip_both if h.direction is Direction.EITHER else one.sign_flip
    if first_step(h.metric):
        p = alpha_of(h) / 2  # its interval is the sign test, inverted: they agree by construction
    elif spread_of(differences).deviation == 0:
        return (
            Confidence.LOW,
            "the difference is the same in all seeds, so that its spread is unknown",
        )
    elif outliers(differences):
        return (
            Confidence.LOW,
            "one seed stands apart from the others, which no interval over seeds allows for",
        )
    elif one.status is not Status.VALIDATED:
        # One-sided: that the smallest effect that matters is not there.
        side = -1 if h.direction is Direction.EITHER and differences.mean() < 0 else 1
        p = sign_flip(side * differences - h.smallest).down
    if p > h.alpha:
        return Confidence.LOW, f"the exact sign-flip test does not agree (p {p_value(p)} one-sided)"
    lacking = list[str]()
    if seeds < MANY_SEEDS:
        lacking.append(f"{seeds} paired seeds; {MANY_SEEDS} are the least for high")
    elif 2 * p > alpha_of(h):
        lacking.append(f"the exact sign-flip test agrees one-sided only (p {p_value(p)})")
    if one.tasks_too is not None:
        seen = towards(h, one.tasks_too)
        if not (seen.high < h.smallest if one.status is Status.INVALIDATED else seen.low > 0):
            lacking.append("it holds on these tasks; over tasks too the interval does not decide")
    if lacking or blemishes:
        return Confidence.MEDIUM, "; ".join([*lacking, *blemishes])
    tasks = (
        ", so does the interval over tasks"
        if one.tasks_too
        else "; the metric has no tasks to cross"
    )
    return (
        Confidence.HIGH,
        f"{seeds} paired seeds, the exact sign-flip test agrees{tasks}, nothing was left out",
    )


def _sentence(
    h: Hypothesis, pairs: Pairs, one: Comparison, by_sequence: bool, *, is_tested: bool
) -> str:
    # Write an arm's figures (templates/comparison.jinja): with its verdict where the claim was
    # tested, and its limits.
    differences = pairs.differences
    table = pairs.table
    spread = spread_of(differences)
    moves = pairs.sign * table[0] if len(pairs.seeds) == 1 else np.zeros(0)
    higher = int((moves > 0).sum())
    lower = int((moves < 0).sum())
    more_tasks = None
    if one.status is Status.INCONCLUSIVE and min(table.shape) > 1:
        rest = float(mean_squares(table)[2])
        more_tasks = tasks_to_decide(
            h, spread.mean, likely_deviation(spread), spread.seeds, table.shape[1], rest
        )
    sides = {h.control.name: pairs.control, pairs.arm: pairs.treated}
    never = {name: sum(not run.reached for run in side) for name, side in sides.items()}
    return _say(
        "comparison",
        h=h,
        pairs=pairs,
        one=one,
        by_sequence=by_sequence,
        is_tested=is_tested,
        least_seeds=least_seeds(h),
        is_ranked=first_step(h.metric) is not None,
        claimed=CLAIMED[h.direction],
        least=amount(h.metric, h.smallest),
        seen=towards(h, one.interval),
        fewest=fewest_seeds(1 - one.level),
        effect=effect_text(h.metric, pairs.sign * one.interval.effect),
        interval=interval_text(h.metric, one.interval, pairs.sign),
        tasks=len(moves),
        higher=higher,
        lower=lower,
        mcnemar=mcnemar(higher, lower),
        is_equal=spread.deviation == 0,
        apart=[pairs.seeds[index] for index in outliers(differences)],
        never={name: count for name, count in never.items() if count},
        more_tasks=more_tasks,
    )


def _say(template: str, **values: Any) -> str:
    # Render sentences of which each stands on a line, or several.
    return " ".join(templates().get_template(f"{template}.jinja").render(values).split())


def adjust(verdicts: Sequence[Verdict]) -> list[Verdict]:
    """Adjust the p of hypotheses judged together (Benjamini and Hochberg).

    A validated one whose adjusted p is above 5% becomes inconclusive.
    """
    counted = [
        one for one in verdicts if one.comparisons and not one.void and not one.nothing_to_cure
    ]
    if len(counted) < 2:
        return list(verdicts)
    ps = list[float]()
    # each by its best arm; one that went against the claim, unvalidated, is no evidence
    for verdict in counted:
        claims = [
            one
            for one in verdict.comparisons
            if one.status is Status.VALIDATED or one.interval.effect > 0
        ]
        ps.append(min((_scaled_p(one) for one in claims), default=1.0))
    adjusted = dict(zip(map(id, counted), benjamini_hochberg(ps), strict=True))
    return [
        _adjusted(one, adjusted[id(one)], len(counted)) if id(one) in adjusted else one
        for one in verdicts
    ]


def _scaled_p(comparison: Comparison) -> float:
    # Scale a p so that 5% is the level that it was judged at: shared among arms, or halved for
    # early stops.
    return min(1.0, comparison.p * RATE / (1 - comparison.level))


def _adjusted(verdict: Verdict, p: float, count: int) -> Verdict:
    comparisons = [replace(one, p_adjusted=max(p, _scaled_p(one))) for one in verdict.comparisons]
    if p > RATE:
        open_ = {Status.VALIDATED: Status.INCONCLUSIVE}
        comparisons = [
            replace(one, status=open_.get(one.status, one.status)) for one in comparisons
        ]
    verdict = replace(verdict, comparisons=tuple(comparisons))
    if verdict.status is not Status.VALIDATED:
        return verdict
    few = min(len(one.seeds) for one in comparisons) < MANY_SEEDS
    asks = (
        f" Run {MANY_SEEDS} seeds or more where several hypotheses are judged together."
        if few
        else ""
    )
    if p <= RATE:
        return replace(
            verdict,
            sentence=f"{verdict.sentence} Among {count} hypotheses, adjusted p {p_value(p)}.{asks}",
        )
    reason = (
        f"validated by itself, and not among {count} hypotheses judged together (adjusted p"
        f" {p_value(p)})"
    )
    sentence = f"Inconclusive: {reason}. By itself: {verdict.sentence}{asks}"
    verdict = replace(verdict, status=Status.INCONCLUSIVE, confidence=Confidence.LOW)
    return replace(verdict, because=reason, sentence=sentence)
