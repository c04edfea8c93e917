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
from uptrend.lab.measure import amount, effect_text, headroom, interval_text, level
from uptrend.present.formatting import p_value
from uptrend.records import Comparison, Confidence, Direction, Hypothesis, Measured, Status, Verdict
from uptrend.records.metrics import is_first_step, name_of
from uptrend.stats.comparison import benjamini_hochberg, fewest_seeds, mcnemar, outliers, sign_flip
from uptrend.stats.intervals import likely_deviation, mean_squares, spread_of

# Paired seeds for each level of confidence. The least one-sided p of the sign-flip test is 2**-5 =
# 0.031 with 5 seeds, below the usual alpha of 0.05. With 8 its least two-sided p is 0.008, which
# leaves room where arms or hypotheses share alpha.
MEDIUM_CONFIDENCE_SEEDS = 5
HIGH_CONFIDENCE_SEEDS = 8
# Accepted share of false ones among the validated hypotheses of a family.
FALSE_DISCOVERY_RATE = 0.05
EFFECT_WORDS = {Direction.UP: "a rise", Direction.DOWN: "a fall", Direction.EITHER: "a difference"}


def judge(
    hypothesis: Hypothesis,
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

    `healthy` is the evidence that the control does not have the cause which the claim is about, so
    that no cure was tested. `unseen` is the reason why that could not be told, which makes a
    verdict less sure.
    """
    paired_arms: list[Pairs] = []
    for arm in hypothesis.treated:
        if arm.name not in refused and hypothesis.control.name not in refused:
            paired_arms.append(pair(hypothesis, measured, arm.name))
    is_waiting = any(pairs.waiting for pairs in paired_arms)
    by_sequence = stopped_early or is_waiting
    nothing_to_cure = ""
    if not void:
        nothing_to_cure = healthy or _why_no_room(hypothesis, paired_arms)

    comparisons: list[Comparison] = []
    for pairs in paired_arms:
        if not pairs.seeds:
            continue
        comparison = compare(hypothesis, pairs, by_sequence)
        if nothing_to_cure:  # more seeds would not make the control ill
            comparison = replace(comparison, status=Status.INCONCLUSIVE, seeds_needed=None)
        is_tested = not (void or nothing_to_cure)
        sentence = _sentence(hypothesis, pairs, comparison, by_sequence, is_tested=is_tested)
        comparisons.append(replace(comparison, sentence=sentence))
    status = Status.INCONCLUSIVE
    if not void:
        status = _overall(hypothesis, [comparison.status for comparison in comparisons])

    blemishes = [f"arm {arm} was refused" for arm in refused]
    if stopped_early:
        blemishes.append("judged by the confidence sequence")
    if any(pairs.broken for pairs in paired_arms) or (is_waiting and not stopped_early):
        blemishes.append("seeds are missing")
    confidence, because = _confidence(hypothesis, status, comparisons, blemishes)
    if status is Status.INVALIDATED and _is_without_gain(hypothesis, paired_arms):
        confidence = Confidence.LOW
        because = (
            f"no arm got better by {amount(hypothesis.metric, hypothesis.smallest)}, so that runs"
            " which hardly learn were compared"
        )
    if unseen and status is not Status.INCONCLUSIVE:
        confidence = Confidence.LOW
        because = unseen
    if void:
        because = "the experiment is void"
    elif nothing_to_cure:
        because = nothing_to_cure

    sentence = _render_sentences(
        "verdict",
        hypothesis=hypothesis,
        status=status,
        # The deciding ones first.
        comparisons=sorted(comparisons, key=lambda comparison: comparison.status is not status),
        paired_arms=paired_arms,
        refused=refused,
        void=void,
        nothing_to_cure=nothing_to_cure,
    )
    return Verdict(
        hypothesis.id,
        status,
        confidence,
        because,
        sentence,
        tuple(comparisons),
        stopped_early=stopped_early,
        void=void,
        refused=dict(refused),
        nothing_to_cure=nothing_to_cure,
    )


def _why_no_room(hypothesis: Hypothesis, paired_arms: Sequence[Pairs]) -> str:
    """Return why a control is healthy by the metric itself: the smallest effect that matters does
    not fit beside it. Empty if it does.
    """
    metric = hypothesis.metric
    levels = [run.value for pairs in paired_arms for run in pairs.control]
    is_open = is_first_step(metric) or hypothesis.direction is Direction.EITHER
    if not hypothesis.cause or not levels or is_open:
        return ""
    mean = sum(levels) / len(levels)
    if headroom(metric, hypothesis.direction, mean) >= hypothesis.smallest:
        return ""
    effect = f"{EFFECT_WORDS[hypothesis.direction]} of {amount(metric, hypothesis.smallest)}"
    return (
        f"{name_of(metric)} is {level(metric, mean)} in {hypothesis.control.name}, which leaves no"
        f" room for {effect}"
    )


def is_decided(hypothesis: Hypothesis, measured: Sequence[Measured]) -> Status | None:
    """Return the confidence sequence's answer, if it has one; may be called after every seed."""
    statuses: list[Status] = []
    for arm in hypothesis.treated:
        pairs = pair(hypothesis, measured, arm.name)
        if len(pairs.seeds) > 1:
            interval, _ = interval_and_p(hypothesis, pairs, by_sequence=True)
            statuses.append(status_of(hypothesis, pairs, interval))
    status = _overall(hypothesis, statuses)
    return None if status is Status.INCONCLUSIVE else status


def _overall(hypothesis: Hypothesis, statuses: Sequence[Status]) -> Status:
    """Return the status over all arms: one is enough to validate, to invalidate takes all."""
    if Status.VALIDATED in statuses:
        return Status.VALIDATED
    is_complete = len(statuses) == len(hypothesis.treated)
    if is_complete and all(status is Status.INVALIDATED for status in statuses):
        return Status.INVALIDATED
    return Status.INCONCLUSIVE


def _confidence(
    hypothesis: Hypothesis,
    status: Status,
    comparisons: Sequence[Comparison],
    blemishes: Sequence[str],
) -> tuple[Confidence, str]:
    """Return the confidence in a status and the rule that gave it."""
    if status is Status.INCONCLUSIVE:
        fewest = least_seeds(hypothesis)
        if comparisons and all(len(comparison.seeds) < fewest for comparison in comparisons):
            return Confidence.LOW, f"fewer than {fewest} paired seeds decide nothing"
        return Confidence.LOW, "neither criterion is met"

    # One arm is enough to validate, so the surest counts; to invalidate takes all of them, so the
    # least sure does.
    grades: list[tuple[Confidence, str]] = []
    for comparison in comparisons:
        if comparison.status is status:
            grades.append(_confidence_of_arm(hypothesis, comparison, blemishes))
    surest_first = list(Confidence)
    grades.sort(key=lambda grade: surest_first.index(grade[0]))
    return grades[0] if status is Status.VALIDATED else grades[-1]


def _is_without_gain(hypothesis: Hypothesis, paired_arms: Sequence[Pairs]) -> bool:
    """Return True if no arm, the control included, gained the smallest effect that matters.

    Settings of runs that do not learn can hardly differ. False where the start is not known.
    """
    if not hypothesis.metric.startswith("eval/"):
        return False
    mean_gains: list[float] = []
    for pairs in paired_arms:
        for runs in (pairs.control, pairs.treated):
            gains = [run.value - run.before for run in runs if run.before is not None]
            if len(gains) < len(runs):
                return False
            if gains:
                mean_gains.append(sum(gains) / len(gains))
    return max(mean_gains) < hypothesis.smallest


def _confidence_of_arm(
    hypothesis: Hypothesis, comparison: Comparison, blemishes: Sequence[str]
) -> tuple[Confidence, str]:
    """Return the confidence in one arm's status and the rule that gave it."""
    n_seeds = len(comparison.seeds)
    differences = np.array(comparison.differences)
    is_either = hypothesis.direction is Direction.EITHER
    if n_seeds < MEDIUM_CONFIDENCE_SEEDS:
        return (
            Confidence.LOW,
            f"{n_seeds} paired seeds; {MEDIUM_CONFIDENCE_SEEDS} are the least for medium",
        )

    p = comparison.sign_flip_both if is_either else comparison.sign_flip
    if is_first_step(hypothesis.metric):
        # Its interval is the sign test, inverted: they agree by construction.
        p = alpha_of(hypothesis) / 2
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
    elif comparison.status is not Status.VALIDATED:
        # One-sided: that the smallest effect that matters is not there.
        side = -1 if is_either and differences.mean() < 0 else 1
        p = sign_flip(side * differences - hypothesis.smallest).down
    if p > hypothesis.alpha:
        return Confidence.LOW, f"the exact sign-flip test does not agree (p {p_value(p)} one-sided)"

    doubts: list[str] = []
    if n_seeds < HIGH_CONFIDENCE_SEEDS:
        doubts.append(f"{n_seeds} paired seeds; {HIGH_CONFIDENCE_SEEDS} are the least for high")
    elif 2 * p > alpha_of(hypothesis):
        doubts.append(f"the exact sign-flip test agrees one-sided only (p {p_value(p)})")
    if comparison.tasks_too is not None:
        interval = towards(hypothesis, comparison.tasks_too)
        if comparison.status is Status.INVALIDATED:
            holds_over_tasks = interval.high < hypothesis.smallest
        else:
            holds_over_tasks = interval.low > 0
        if not holds_over_tasks:
            doubts.append("it holds on these tasks; over tasks too the interval does not decide")
    if doubts or blemishes:
        return Confidence.MEDIUM, "; ".join([*doubts, *blemishes])

    over_tasks = "; the metric has no tasks to cross"
    if comparison.tasks_too is not None:
        over_tasks = ", so does the interval over tasks"
    because = (
        f"{n_seeds} paired seeds, the exact sign-flip test agrees{over_tasks}, nothing was left out"
    )
    return Confidence.HIGH, because


def _sentence(
    hypothesis: Hypothesis,
    pairs: Pairs,
    comparison: Comparison,
    by_sequence: bool,
    *,
    is_tested: bool,
) -> str:
    """Word an arm's figures and their limits, with its status where the claim was tested."""
    metric = hypothesis.metric
    spread = spread_of(pairs.differences)
    table = pairs.table

    # One seed compares two models, task by task.
    task_differences = pairs.sign * table[0] if len(pairs.seeds) == 1 else np.zeros(0)
    higher = int((task_differences > 0).sum())
    lower = int((task_differences < 0).sum())

    more_tasks = None
    if comparison.status is Status.INCONCLUSIVE and min(table.shape) > 1:
        task_variance = float(mean_squares(table)[2])
        more_tasks = tasks_to_decide(
            hypothesis,
            spread.mean,
            likely_deviation(spread),
            spread.seeds,
            table.shape[1],
            task_variance,
        )

    unreached: dict[str, int] = {}
    runs_by_arm = {hypothesis.control.name: pairs.control, pairs.arm: pairs.treated}
    for name, runs in runs_by_arm.items():
        count = sum(not run.reached for run in runs)
        if count:
            unreached[name] = count

    return _render_sentences(
        "comparison",
        hypothesis=hypothesis,
        pairs=pairs,
        comparison=comparison,
        by_sequence=by_sequence,
        is_tested=is_tested,
        least_seeds=least_seeds(hypothesis),
        is_ranked=is_first_step(metric),
        claimed=EFFECT_WORDS[hypothesis.direction],
        smallest=amount(metric, hypothesis.smallest),
        claimed_interval=towards(hypothesis, comparison.interval),
        seeds_for_level=fewest_seeds(1 - comparison.level),
        effect=effect_text(metric, pairs.sign * comparison.interval.effect),
        interval=interval_text(metric, comparison.interval, pairs.sign),
        tasks=len(task_differences),
        higher=higher,
        lower=lower,
        mcnemar=mcnemar(higher, lower),
        is_equal=spread.deviation == 0,
        outliers=[pairs.seeds[i] for i in outliers(pairs.differences)],
        unreached=unreached,
        more_tasks=more_tasks,
    )


def _render_sentences(template: str, **values: Any) -> str:
    """Render a template of sentences, and join its white space."""
    text = templates().get_template(f"{template}.jinja").render(values)
    return " ".join(text.split())


def adjust(verdicts: Sequence[Verdict]) -> list[Verdict]:
    """Adjust the p of hypotheses judged together (Benjamini and Hochberg).

    A validated one whose adjusted p is above 5% becomes inconclusive.
    """
    family = [
        verdict
        for verdict in verdicts
        if verdict.comparisons and not verdict.void and not verdict.nothing_to_cure
    ]
    if len(family) < 2:
        return list(verdicts)

    # Each by its best arm; one that went against the claim, unvalidated, is no evidence.
    ps: list[float] = []
    for verdict in family:
        arm_ps = [1.0]
        for comparison in verdict.comparisons:
            if comparison.status is Status.VALIDATED or comparison.interval.effect > 0:
                arm_ps.append(_scaled_p(comparison))
        ps.append(min(arm_ps))
    # By identity: a verdict holds dicts, so that it has no hash.
    adjusted_ps = dict(zip(map(id, family), benjamini_hochberg(ps), strict=True))

    adjusted: list[Verdict] = []
    for verdict in verdicts:
        if id(verdict) in adjusted_ps:
            verdict = _adjust_verdict(verdict, adjusted_ps[id(verdict)], len(family))
        adjusted.append(verdict)
    return adjusted


def _scaled_p(comparison: Comparison) -> float:
    """Scale a p so that 5% is the level that it was judged at: shared among arms, or halved for
    early stops.
    """
    return min(1.0, comparison.p * FALSE_DISCOVERY_RATE / (1 - comparison.level))


def _adjust_verdict(verdict: Verdict, p: float, n_hypotheses: int) -> Verdict:
    """Write an adjusted p into a verdict, which no longer is validated if it is too large."""
    comparisons: list[Comparison] = []
    for comparison in verdict.comparisons:
        comparison = replace(comparison, p_adjusted=max(p, _scaled_p(comparison)))
        if p > FALSE_DISCOVERY_RATE and comparison.status is Status.VALIDATED:
            comparison = replace(comparison, status=Status.INCONCLUSIVE)
        comparisons.append(comparison)
    verdict = replace(verdict, comparisons=tuple(comparisons))
    if verdict.status is not Status.VALIDATED:
        return verdict

    advice = ""
    if min(len(comparison.seeds) for comparison in comparisons) < HIGH_CONFIDENCE_SEEDS:
        advice = (
            f" Run {HIGH_CONFIDENCE_SEEDS} seeds or more where several hypotheses are judged"
            " together."
        )
    if p <= FALSE_DISCOVERY_RATE:
        sentence = f"{verdict.sentence} Among {n_hypotheses} hypotheses, adjusted p {p_value(p)}."
        return replace(verdict, sentence=sentence + advice)
    reason = (
        f"validated by itself, and not among {n_hypotheses} hypotheses judged together (adjusted p"
        f" {p_value(p)})"
    )
    return replace(
        verdict,
        status=Status.INCONCLUSIVE,
        confidence=Confidence.LOW,
        because=reason,
        sentence=f"Inconclusive: {reason}. By itself: {verdict.sentence}{advice}",
    )
