"""Lengths and endings: sampling.length-collapse, sampling.no-stop and context.completion-truncated."""

import numpy as np

from uptrend.doctor.check import Outcome, finding
from uptrend.doctor.checks import kl, learning_rate, precision, rate_by_size
from uptrend.doctor.curves import REWARD, course, cut_by_length, height
from uptrend.doctor.rank import alarms
from uptrend.doctor.trend import trend_of
from uptrend.records import CannotTell, Confidence, Evidence, Finding, RunView, Severity, TrendKind
from uptrend.records.view import Floats
from uptrend.stats.trend import rank_correlation, residuals

COLLAPSE, NO_STOP, CUT = "sampling.length-collapse", "sampling.no-stop", "context.completion-truncated"
METRIC = "sampling/ended/length/share"
MANY = 0.25
"""Share of rollouts cut by length, in some part of the run, that is worth a note."""
NEARLY_ALL = 0.9
PAID = 0.1
"""Margin by which right completions outnumber those that end by themselves, where cut ones are paid."""
FEWEST = 5
UPDATES = frozenset({"optimizer.lr-small", "optimizer.schedule", "optimizer.frozen", "kl.strangles",
                     "precision.update-underflow"})  # fmt: skip
"""Causes by which the policy does not move, whatever its completions look like."""


def check(view: RunView) -> Outcome:
    """Look at how rollouts end and at how long they are."""
    cut = cut_by_length(view)
    outcome: Outcome = []
    if len(cut) == 0:
        outcome += [CannotTell(id, "it was not logged how completions ended") for id in (NO_STOP, CUT)]
    elif len(cut) >= FEWEST:
        found = _endings(view, cut)
        outcome += [found] if found else []
    collapsed = _collapse(view)
    return [*outcome, collapsed] if collapsed else outcome


def _endings(view: RunView, cut: Floats) -> Finding | None:
    quarters = [float(part.mean()) for part in np.array_split(cut, 4)]
    if max(quarters) < MANY:
        return None
    harm, why = _harm(view, cut)
    always = min(quarters) >= NEARLY_ALL
    told = ", ".join(f"{q:.2f}" for q in quarters)
    head = "Nearly every completion ended" if always else f"Up to {max(quarters):.0%} of completions were cut"
    return finding(
        view,
        NO_STOP if always else CUT,
        Severity.WARNING if harm else Severity.NOTE,
        Confidence.MEDIUM if harm and not is_unmoved(view) else Confidence.LOW,
        f"{head} by the length limit{f', {why}' if why else ', which may be harmless if the answer comes first'}.",
        [Evidence(f"Cut by length, by quarters of the run: {told}.", max(quarters), METRIC), *_limit(view)],
    )


def is_unmoved(view: RunView) -> bool:
    """Tell whether the updates already explain why the policy stays where it is: then its endings need not."""
    outcomes = (o for module in (kl, learning_rate, precision, rate_by_size) for o in module.check(view))
    return any(f.id in UPDATES for f in alarms(o for o in outcomes if isinstance(o, Finding)))


def _harm(view: RunView, cut: Floats) -> tuple[bool, str]:
    """Tell whether cut completions score lower, as far as the curves of a step show it, and why."""
    rewards = view.curve(REWARD)[1]
    trend = trend_of(view).kind
    if len(rewards) == len(cut) >= 20 and float(np.std(residuals(cut, 1))) > 0.02:
        together = rank_correlation(residuals(cut, 1), residuals(rewards, 1))
        if together < -max(0.3, 3 / np.sqrt(len(cut))):
            return True, f"and steps with more of them score lower (rank correlation {together:+.2f})"
    if (
        trend is TrendKind.FALLING
        and float(cut[-(len(cut) // 4 or 1) :].mean()) - float(cut[: len(cut) // 4 or 1].mean()) > MANY
    ):
        return True, "and the reward fell as they became more"
    is_low = len(rewards) > 0 and height(view, float(np.median(rewards))) < 0.5
    if trend is TrendKind.FLAT and is_low and float(np.median(cut)) >= NEARLY_ALL and not _is_paid_cut(view, cut):
        return True, "and the reward does not rise from where it lies"
    return False, ""


def _is_paid_cut(view: RunView, cut: Floats) -> bool:
    """Tell whether more completions are right than end by themselves: then those that are cut are right too."""
    right = view.curve("reward/correct/share")[1]
    return len(right) > 0 and float(np.median(right)) > 1 - float(np.median(cut)) + PAID


def _limit(view: RunView) -> list[Evidence]:
    limit = view.value("sampling.max_tokens")
    return [Evidence(f"The limit is {limit} tokens.", float(limit), "sampling/length/max")] if limit else []


def _collapse(view: RunView) -> Finding | None:
    length = course(view, "sampling/length/mean")
    if length is None or len(length.values) < 10 or length.begin < 8:
        return None
    least = min(float(np.median(part)) for part in np.array_split(length.values, 4))
    if least > 0.55 * length.begin:
        return None
    is_fault = trend_of(view).kind is TrendKind.FALLING and length.last < 0.25 * length.begin
    return finding(
        view,
        COLLAPSE,
        Severity.WARNING if is_fault else Severity.NOTE,
        Confidence.MEDIUM if is_fault else Confidence.LOW,
        f"Completions shrank from {length.begin:.0f} to {least:.0f} tokens{' with the reward' * is_fault}.",
        [
            length.evidence(
                f"In its shortest quarter {least / length.begin:.0%} of its start; {length.last:.0f} tokens at the end."
            )
        ],
    )
