"""The verdict on a hypothesis, computed from its runs: by criteria that were fixed beforehand, seeds as the unit."""

from collections.abc import Mapping, Sequence

from uptrend.lab.compare import compare, interval_and_p
from uptrend.lab.confidence import confidence_of
from uptrend.lab.foresee import Plan, plan
from uptrend.lab.pairs import Pairs, pair
from uptrend.lab.rules import alpha_of, status_by
from uptrend.lab.together import adjust
from uptrend.lab.units import amount
from uptrend.records.finding import Confidence
from uptrend.records.hypothesis import Comparison, Hypothesis, Measured, Status, Verdict
from uptrend.stats.intervals import spread_of

__all__ = ["Plan", "adjust", "is_decided", "judge", "plan"]


def judge(
    h: Hypothesis,
    measured: Sequence[Measured],
    *,
    stopped_early: bool = False,
    refused: Mapping[str, str] = {},
    void: str = "",
) -> Verdict:
    """What the runs say of the hypothesis; refused arms are left out, and a void experiment decides nothing."""
    pairs = [pair(h, measured, arm.name) for arm in h.treated if not {arm.name, h.control.name} & set(refused)]
    by_sequence = stopped_early or any(one.waiting for one in pairs)
    compared = [compare(h, one, by_sequence, is_void=bool(void)) for one in pairs if one.seeds]
    status = Status.INCONCLUSIVE if void else _overall(h, [one.status for one in compared])
    deciding = [one for one in compared if one.status is status]
    blemishes = _blemishes(pairs, stopped_early, refused)
    confidence, because = confidence_of(h, status, deciding, blemishes)
    if status is Status.INVALIDATED and (idle := _nobody_learned(h, pairs)):
        confidence, because = Confidence.LOW, idle
    return Verdict(
        hypothesis=h.id,
        status=status,
        confidence=confidence,
        because="the experiment is void" if void else because,
        sentence=_sentence(h, status, compared, pairs, refused, void),
        comparisons=tuple(compared),
        stopped_early=stopped_early,
        void=void,
        refused=dict(refused),
    )


def is_decided(h: Hypothesis, measured: Sequence[Measured]) -> Status | None:
    """Whether the confidence sequence has an answer already; it may be asked after every seed."""
    statuses = [_by_sequence(h, pair(h, measured, arm.name)) for arm in h.treated]
    status = _overall(h, statuses)
    return None if status is Status.INCONCLUSIVE else status


def _by_sequence(h: Hypothesis, pairs: Pairs) -> Status:
    if len(pairs.seeds) < 2:
        return Status.INCONCLUSIVE
    interval, p = interval_and_p(spread_of(pairs.differences), alpha_of(h), by_sequence=True)
    means = [sum(run.value for run in side) / len(side) for side in (pairs.control, pairs.treated)]
    return status_by(h, interval, means[0], means[1], p)


def _overall(h: Hypothesis, statuses: Sequence[Status]) -> Status:
    """One arm is enough to validate; to invalidate takes all of them."""
    if Status.VALIDATED in statuses:
        return Status.VALIDATED
    is_excluded = len(statuses) == len(h.treated) and all(status is Status.INVALIDATED for status in statuses)
    return Status.INVALIDATED if is_excluded else Status.INCONCLUSIVE


def _blemishes(pairs: Sequence[Pairs], stopped_early: bool, refused: Mapping[str, str]) -> list[str]:
    """What keeps any verdict of this experiment from high confidence."""
    said = [f"arm {arm} was refused" for arm in refused]
    if stopped_early:
        said.append("judged by the confidence sequence")
    if any(one.broken or (one.waiting and not stopped_early) for one in pairs):
        said.append("seeds are missing")
    return said


def _nobody_learned(h: Hypothesis, pairs: Sequence[Pairs]) -> str:
    """That neither side got better by what matters: settings of runs that do not learn can hardly differ."""
    sides = [side for one in pairs for side in (one.control, one.treated) if side]
    if not h.metric.startswith("eval/") or not sides or any(run.before is None for side in sides for run in side):
        return ""
    rises = [sum(run.value - (run.before or 0.0) for run in side) / len(side) for side in sides]
    if max(rises) >= h.smallest:
        return ""
    return f"no arm got better by {amount(h.metric, h.smallest)}, so that runs which hardly learn were compared"


def _sentence(
    h: Hypothesis,
    status: Status,
    compared: Sequence[Comparison],
    pairs: Sequence[Pairs],
    refused: Mapping[str, str],
    void: str,
) -> str:
    """The verdict with every arm's figures, the deciding ones first."""
    said = [f"Void: {void.rstrip('.')}. The figures decide nothing."] if void else []
    ordered = sorted(compared, key=lambda one: one.status is not status)
    if len(h.treated) > 1 and not void:
        said.append(f"{str(status).capitalize()} over {len(h.treated)} arms.")
    said += [one.sentence for one in ordered]
    said += [f"Arm {one.arm} and {h.control.name} have no seed in common." for one in pairs if not one.seeds]
    said += [f"Arm {arm} was refused: {reason.rstrip('.')}." for arm, reason in refused.items()]
    if h.control.name in refused:
        said.append("Without the control there is nothing to compare with.")
    return " ".join(said)
