"""Hidden causes of sampling that dead groups suggest where only scalars were kept."""

from uptrend.doctor.case import Case
from uptrend.doctor.check import Outcome, finding
from uptrend.doctor.checks.advantages import LOW, SURE_OF_ITSELF, unexplained_dead_groups
from uptrend.doctor.checks.length import is_unmoved
from uptrend.doctor.curves import course, cut_by_length
from uptrend.records import Confidence, Evidence, Finding, RunView, Severity

CUT = 0.95
BRIEF = 4
"""Tokens in which hardly any answer fits."""
WHY = {
    "sampling.temperature-low": "There is almost no entropy from the first steps on, and rollouts of a group get one "
    "reward: they may be copies. The temperature, or the texts of one group, would settle it.",
    "context.completion-truncated": "Nearly all completions are cut after a few tokens, and most groups fail alike: "
    "they may be cut before they answer. The texts of one group would settle it.",
    "sampling.no-stop": "Nearly all completions are cut by the length limit, and most groups fail alike: they may "
    "never stop by themselves. The texts of one group would settle it.",
}


def check(view: RunView) -> Outcome:
    """Ask what may lie behind an alarm."""
    dead = unexplained_dead_groups(Case(view))
    found = dead and (_copies(view) or _unfinished(view, dead))
    return [found] if found else []


def _copies(view: RunView) -> Finding | None:
    """Rollouts that are nearly deterministic before anything was learned."""
    entropy = course(view, "learner/entropy/mean")
    if entropy is None or entropy.begin >= SURE_OF_ITSELF:
        return None
    shown = Evidence(f"Entropy {entropy.begin:.2g} at first.", entropy.begin, entropy.metric, int(view.steps[0]))
    return _suspect(view, "sampling.temperature-low", Confidence.MEDIUM, shown)


def _unfinished(view: RunView, dead: str) -> Finding | None:
    """Completions that are cut before they answer."""
    cut, longest = cut_by_length(view), course(view, "sampling/length/max")
    if len(cut) == 0 or float(cut.min()) < CUT or dead != LOW:
        return None
    share = float(cut.min())
    shown = Evidence(f"At least {share:.0%} cut at every step.", share, "sampling/ended/length/share")
    is_brief = longest is not None and longest.last <= BRIEF
    confidence = Confidence.LOW if is_unmoved(view) else Confidence.MEDIUM
    return _suspect(view, "context.completion-truncated" if is_brief else "sampling.no-stop", confidence, shown)


def _suspect(view: RunView, id: str, confidence: Confidence, shown: Evidence) -> Finding:
    severity = Severity.NOTE if confidence is Confidence.LOW else Severity.WARNING
    return finding(view, id, severity, confidence, WHY[id], [shown])
