"""A check: one function that judges one cause by a run's records. It never loads torch.

    @check("optimizer.skipped-updates", needs=["optimizer/updates/count"], at_least=5)
    def skipped_updates(case: Case) -> Found | None:
        ...

The decorator answers "cannot tell" where a metric, a column of the rollouts or enough points are missing; `finding`
adds what the cause's page knows.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from uptrend.doctor.case import Case
from uptrend.doctor.catalogue import CATALOGUE, resolve_experiment, resolve_fix
from uptrend.doctor.rank import alarms
from uptrend.records import CannotTell, Confidence, Evidence, Finding, RunView, Severity

Outcome = list[Finding | CannotTell]

PAGES = "docs/findings/{id}.md"


@dataclass(frozen=True)
class Found:
    """A cause that a check sees."""

    severity: Severity
    confidence: Confidence
    summary: str
    """One sentence that names the cause, with its figures."""
    evidence: Sequence[Evidence]
    id: str = ""
    """The cause; needed only from a check that decides between several."""


@dataclass(frozen=True)
class Lacking:
    """A check that found out only while it judged that it lacks data."""

    needs: str
    """The missing data, or why what is there does not do."""
    id: str = ""
    """The cause; empty for all causes of the check."""


Answer = Found | Lacking | Sequence[Found | Lacking] | None


@dataclass(frozen=True)
class Check:
    """A judge with what it needs."""

    ids: tuple[str, ...]
    """The cause that it judges; several where one measurement decides between them."""
    judge: Callable[[Case], Answer]
    needs: tuple[str, ...] = ()
    """Metrics that must all be logged."""
    any_of: tuple[str, ...] = ()
    """Metrics of which at least one must be logged."""
    columns: tuple[str, ...] | None = None
    """Columns that rollouts must have; () for rollouts alone, None where none are needed."""
    at_least: int = 0
    """Points that the run must have."""

    def __call__(self, case: Case) -> Outcome:
        """Return the findings of this check, or why it cannot tell."""
        lacking = self.lacks(case)
        answer = [Lacking(lacking)] if lacking else self.judge(case)
        answers = [] if answer is None else [answer] if isinstance(answer, Found | Lacking) else answer
        return [outcome for given in answers for outcome in self._outcomes(case, given)]

    def alarms(self, case: Case) -> list[Finding]:
        """Return the findings of this check that ask for something to be done."""
        return alarms(outcome for outcome in self(case) if isinstance(outcome, Finding))

    def lacks(self, case: Case) -> str:
        """Return what this check lacks; empty where it has all it needs."""
        view = case.view
        if len(view.steps) < self.at_least:
            return f"fewer than {self.at_least} points"
        missing = [metric for metric in self.needs if not view.has(metric)]
        if missing:
            return f"{' and '.join(missing)} not logged"
        if self.any_of and not any(view.has(metric) for metric in self.any_of):
            return f"none of {', '.join(self.any_of)} was logged"
        return "" if self.columns is None else case.why_no_rollouts(self.columns)

    def _outcomes(self, case: Case, given: Found | Lacking) -> Outcome:
        if isinstance(given, Lacking):
            return [CannotTell(id, given.needs) for id in ([given.id] if given.id else self.ids)]
        assert given.id or len(self.ids) == 1, f"{self.ids}: a check of several causes must name the one it found"
        id = given.id or self.ids[0]
        return [finding(case.view, id, given.severity, given.confidence, given.summary, given.evidence)]


def check(
    *ids: str,
    needs: Sequence[str] = (),
    any_of: Sequence[str] = (),
    columns: Sequence[str] | None = None,
    at_least: int = 0,
) -> Callable[[Callable[[Case], Answer]], Check]:
    """Make a check of a function that judges these causes."""

    def decorate(judge: Callable[[Case], Answer]) -> Check:
        return Check(ids, judge, tuple(needs), tuple(any_of), None if columns is None else tuple(columns), at_least)

    return decorate


def finding(
    view: RunView,
    id: str,
    severity: Severity,
    confidence: Confidence,
    summary: str,
    evidence: Sequence[Evidence],
) -> Finding:
    """Return a finding with what its page knows; without rollouts a cause that hides in them is only suspected."""
    cause = CATALOGUE[id]
    hidden = cause.kind != "C" and not cause.in_scalars and not view.rollout_steps
    if hidden and confidence is Confidence.HIGH:
        confidence = Confidence.MEDIUM
    return Finding(
        id=id,
        severity=severity,
        confidence=confidence,
        summary=summary,
        evidence=tuple(evidence),
        rivals=cause.rivals,
        experiment=resolve_experiment(cause.experiment, view),
        fix=resolve_fix(cause.fix, view),
        page=PAGES.format(id=id),
    )
