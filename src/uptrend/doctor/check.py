"""A check: one function that judges one cause by a run's records. It never loads torch.

    @check("optimizer.skipped-updates", needs=["optimizer/updates/count"], at_least=5)
    def skipped_updates(case: Case) -> Found | None:
        ...

The decorator answers "cannot tell" where a metric, a column of the rollouts or enough points are
missing; `make_finding` adds what the cause's page knows. `rank` makes a differential diagnosis of
findings: one per cause, symptoms folded under what explains them, likeliest first.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from dataclasses import dataclass, replace

from uptrend.doctor.case import Case
from uptrend.doctor.catalogue import (
    CATALOGUE,
    all_symptoms,
    complete_fix,
    confidence_of,
    is_mostly_wrong,
    resolve_experiment,
    settings_in_force,
)
from uptrend.records import Basis, CannotTell, Confidence, Evidence, Finding, RunView, Severity

CRITICAL = Severity.CRITICAL
WARNING = Severity.WARNING
NOTE = Severity.NOTE
PROOF = Basis.PROOF
SIGNAL = Basis.SIGNAL
SUSPICION = Basis.SUSPICION
# Worst first, and surest first.
SEVERITY_ORDER = list(Severity)
BASIS_ORDER = list(Basis)

Outcomes = list[Finding | CannotTell]
SYMPTOMS = ("reward.constant", "advantage.dead-groups-low", "advantage.dead-groups-high")

# A summary where the first sentence of the cause's page says it as well.
PAGE_SUMMARY = ""


@dataclass(frozen=True)
class Found:
    """A cause that a check sees."""

    severity: Severity
    basis: Basis
    summary: str
    """One sentence that names the cause, with its figures; `PAGE_SUMMARY` where these are in the
    evidence.
    """
    evidence: Sequence[Evidence]
    id: str = ""
    """The cause; needed only from a check that decides between several."""


@dataclass(frozen=True)
class Lacking:
    """Data that a check lacks, which it found out only while it judged."""

    needs: str
    id: str = ""
    """The cause; empty for all causes of the check."""


Answer = Found | Lacking | Sequence[Found | Lacking | None] | None


def warn_if(is_fault: bool) -> Severity:
    """Return a warning for a fault, and a note for what is only worth knowing."""
    return WARNING if is_fault else NOTE


def severity_by_share(share: float, critical: float, warning: float = 0.0) -> Severity:
    """Return the severity of a fault that affects this share, by the shares from which it is
    worse.
    """
    return CRITICAL if share >= critical else warn_if(share >= warning)


@dataclass(frozen=True)
class Check:
    """A judge with what it needs."""

    ids: Sequence[str]
    """The cause that it judges; several where one measurement decides between them."""
    judge: Callable[[Case], Answer]
    needs: Sequence[str] = ()
    """Metrics that must all be logged."""
    columns: Sequence[str] | None = None
    """Columns that rollouts must have; () for rollouts alone, None where none are needed."""
    at_least: int = 0
    """Points that the run must have."""

    def __call__(self, case: Case) -> Outcomes:
        """Return the findings of this check, or why it cannot tell."""
        lacking = self._lacks(case)
        outcomes = Outcomes()
        answer = Lacking(lacking) if lacking else self.judge(case)
        for given in answer if isinstance(answer, Sequence) else [answer]:
            if isinstance(given, Lacking):
                outcomes += [
                    CannotTell(id, given.needs) for id in ([given.id] if given.id else self.ids)
                ]
            elif given is not None:
                assert given.id or len(self.ids) == 1, (
                    f"{self.ids}: a check of several causes must name its finding's"
                )
                id = given.id or self.ids[0]
                told = (given.severity, given.basis, given.summary, given.evidence)
                outcomes.append(make_finding(case.view, id, *told))
        return outcomes

    def alarms(self, case: Case) -> list[Finding]:
        """Return the findings of this check that ask for something to be done."""
        return alarms(outcome for outcome in self(case) if isinstance(outcome, Finding))

    def _lacks(self, case: Case) -> str:
        if len(case.view.steps) < self.at_least:
            return f"fewer than {self.at_least} points"
        if missing := [metric for metric in self.needs if not case.has(metric)]:
            return f"{' and '.join(missing)} not logged"
        return "" if self.columns is None else case.why_no_rollouts(self.columns)


def check(
    *ids: str, needs: Sequence[str] = (), columns: Sequence[str] | None = None, at_least: int = 0
) -> Callable[[Callable[[Case], Answer]], Check]:
    """Make a check of a function that judges these causes."""
    return lambda judge: Check(ids, judge, needs, columns, at_least)


def make_finding(
    view: RunView,
    id: str,
    severity: Severity,
    basis: Basis,
    summary: str,
    evidence: Sequence[Evidence],
) -> Finding:
    """Return a finding with what its page knows; without rollouts a cause that hides in them is
    only suspected.
    """
    cause = CATALOGUE[id].fitting(view)
    if basis is PROOF and cause.kind != "C" and not cause.in_scalars and not view.rollout_steps:
        basis = SIGNAL
    if severity is CRITICAL and id in SYMPTOMS and not view.rollout_steps:
        severity = WARNING  # scalars show that nothing is learned, and not why
    source = "records" if view.rollout_steps else "scalars"
    confidence, measured = confidence_of(id, basis, source)
    return Finding(
        id=id,
        severity=severity,
        basis=basis,
        summary=summary or cause.what,
        evidence=tuple(evidence),
        rivals=cause.rivals,
        experiment=resolve_experiment(cause, settings_in_force(view)),
        fix=complete_fix(cause.fix, view.trainer, settings_in_force(view)),
        confidence=confidence,
        measured=measured,
        is_doubted=is_mostly_wrong(id, source),
        page=f"uptrend explain {id}",
    )


def rank(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Return causes in the order in which to look at them, each with its symptoms under it."""
    ordered = sorted(_merged(findings), key=_place)
    ids = {finding.id for finding in ordered}
    causes: list[Finding] = []
    for finding in ordered:
        if not any(_explains(other, finding, ids) for other in ordered):
            symptoms = tuple(other for other in ordered if _explains(finding, other, ids))
            # A cause is as bad as the worst of its symptoms.
            worst = min(
                (finding, *symptoms), key=lambda f: SEVERITY_ORDER.index(f.severity)
            ).severity
            causes.append(replace(finding, severity=worst, explains=symptoms))
    return tuple(sorted(_unsure(causes), key=_place))


def _unsure(causes: Sequence[Finding]) -> Iterator[Finding]:
    """Yield causes; a doubted one that stands alone and proves nothing becomes a note that says
    why.
    """
    is_alone = all(cause.is_doubted for cause in alarms(causes))
    for cause in causes:
        is_proven = any(finding.basis is PROOF for finding in (cause, *alarms(cause.explains)))
        is_note = is_alone and cause.is_doubted and not is_proven and cause.severity is not NOTE
        why = (
            f"{cause.measured}: it is what another cause looks like, so look for what is behind it"
        )
        yield replace(cause, severity=NOTE, measured=why) if is_note else cause


def alarms(findings: Iterable[Finding]) -> list[Finding]:
    """Return the findings that ask for something to be done."""
    return [finding for finding in findings if finding.severity is not NOTE]


def is_at_least(finding: Finding, severity: Severity) -> bool:
    """Tell whether a finding is as bad as this, or worse."""
    return SEVERITY_ORDER.index(finding.severity) <= SEVERITY_ORDER.index(severity)


def _merged(findings: Iterable[Finding]) -> list[Finding]:
    """Merge the findings of one cause: the surest is kept, with the evidence of all."""
    listed = list(findings)
    merged = []
    for id in dict.fromkeys(finding.id for finding in listed):
        same = sorted((finding for finding in listed if finding.id == id), key=_place)
        evidence = dict.fromkeys(e for finding in same for e in finding.evidence)
        merged.append(replace(same[0], evidence=tuple(evidence)))
    return merged


def _explains(cause: Finding, symptom: Finding, found: Set[str]) -> bool:
    """Tell whether one is a symptom of the other: the catalogue says so, and the cause is sure
    enough.

    A symptom is seen and its cause concluded, so the cause may be one degree less sure, but never a
    mere guess: two suspicions stand side by side. And a note explains nothing away: what asks for
    no action can't account for what does.
    """
    is_guess = cause.basis is SUSPICION
    if (
        cause.id == symptom.id
        or cause.severity is NOTE
        or (is_guess and symptom.severity is not NOTE)
    ):
        return False
    less_sure = BASIS_ORDER.index(cause.basis) - BASIS_ORDER.index(symptom.basis)
    return less_sure <= (0 if is_guess else 1) and symptom.id in all_symptoms(cause.id, found)


def _place(finding: Finding) -> tuple[bool, bool, int, int, int, int]:
    """Return the place in the order: alarms first, of these what trials trust first, then worst and
    surest first.
    """
    is_note = finding.severity is NOTE
    is_distrusted = finding.confidence is Confidence.LOW
    is_worse = SEVERITY_ORDER.index(finding.severity)
    is_surer = BASIS_ORDER.index(finding.basis)
    kind = "IPC".index(CATALOGUE[finding.id].kind)
    return is_note, is_distrusted, is_worse, is_surer, -len(finding.explains), kind
