"""A check: one function that judges one cause by a run's records. It never loads torch.

    @check("optimizer.skipped-updates", needs=["optimizer/updates/count"], at_least=5)
    def skipped_updates(case: Case) -> Found | None:
        ...

The decorator answers "cannot tell" if a metric, a column of the rollouts or enough points are
missing; `make_finding` adds what the cause's page knows. `rank` makes a differential diagnosis of
findings: one per cause, symptoms folded under what explains them, likeliest first.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from dataclasses import dataclass, replace

from uptrend.doctor.case import Case
from uptrend.doctor.catalogue import (
    CATALOGUE,
    Kind,
    all_symptoms,
    complete_fix,
    confidence_of,
    is_mostly_wrong,
    resolve_experiment,
    settings_in_force,
)
from uptrend.records import Basis, CannotTell, Confidence, Evidence, Finding, Fix, RunView, Severity

CRITICAL = Severity.CRITICAL
WARNING = Severity.WARNING
NOTE = Severity.NOTE
PROOF = Basis.PROOF
SIGNAL = Basis.SIGNAL
SUSPICION = Basis.SUSPICION
# Worst first.
SEVERITY_ORDER = list(Severity)
# Surest first.
BASIS_ORDER = list(Basis)

# Evidence that shows a cause directly first.
KIND_ORDER = [Kind.INVARIANT, Kind.PROBE, Kind.CURVE]

Outcomes = list[Finding | CannotTell]
# Causes that are usually symptoms of others. Scalars show that nothing is learned, and not why, so
# that without rollouts these are no more than warnings.
SYMPTOM_IDS = ("reward.constant", "advantage.dead-groups-low", "advantage.dead-groups-high")

# Summary of a finding that the first sentence of the cause's page describes in full.
PAGE_SUMMARY = ""


@dataclass(frozen=True)
class Found:
    """A cause that a check sees."""

    severity: Severity
    basis: Basis
    summary: str
    """One sentence that names the cause, with its figures; `PAGE_SUMMARY` if these are in the
    evidence.
    """
    evidence: Sequence[Evidence]
    id: str = ""
    """The cause; needed only from a check that decides between several."""
    fix: Fix | None = None
    """Fix that the evidence chose; None for that of the cause's page."""
    since: int | None = None
    """Step from which it shows, where its first metric does not say so."""


@dataclass(frozen=True)
class Lacking:
    """Data that a check turns out to lack while it judges."""

    needs: str
    id: str = ""
    """The cause; empty for all causes of the check."""


Answer = Found | Lacking | Sequence[Found | Lacking | None] | None


def warn_if(is_fault: bool) -> Severity:
    """Return a warning for a fault, and a note for what is only worth knowing."""
    return WARNING if is_fault else NOTE


def severity_by_share(share: float, critical: float, warning: float = 0.0) -> Severity:
    """Return the severity of a fault by the share that it affects."""
    return CRITICAL if share >= critical else warn_if(share >= warning)


@dataclass(frozen=True)
class Check:
    """A function that judges causes, and the data that it needs."""

    ids: Sequence[str]
    """The cause that it judges; several if one measurement decides between them."""
    judge: Callable[[Case], Answer]
    needs: Sequence[str] = ()
    """Metrics that must all be logged."""
    columns: Sequence[str] | None = None
    """Columns that rollouts must have; () for rollouts alone, None if none are needed."""
    at_least: int = 0
    """Points that the run must have."""
    by_source: bool = False
    """True if it is about tasks and their rewards: each of several sources is judged alone."""

    def __call__(self, case: Case) -> Outcomes:
        """Return the findings of this check, or why it cannot tell."""
        reason = self._why_not(case)
        answer = Lacking(reason) if reason else self.judge(case)
        parts = answer if isinstance(answer, Sequence) else [answer]
        outcomes: Outcomes = []
        for part in parts:
            if isinstance(part, Lacking):
                ids = [part.id] if part.id else self.ids
                outcomes += [CannotTell(id, part.needs) for id in ids]
            elif part is not None:
                assert part.id or len(self.ids) == 1, (
                    f"{self.ids}: a check of several causes must name its finding's"
                )
                id = part.id or self.ids[0]
                finding = make_finding(
                    case.view, id, part.severity, part.basis, part.summary, part.evidence, part.fix
                )
                outcomes.append(replace(finding, since=_since(case, part)))
        return outcomes

    def alarms(self, case: Case) -> list[Finding]:
        """Return the findings of this check that ask for action."""
        return alarms(outcome for outcome in self(case) if isinstance(outcome, Finding))

    def _why_not(self, case: Case) -> str:
        """Return why a run can't be judged; empty if it can."""
        if len(case.view.steps) < self.at_least:
            return f"fewer than {self.at_least} points"
        missing = [metric for metric in self.needs if not case.has(metric)]
        if missing:
            return f"{' and '.join(missing)} not logged"
        return "" if self.columns is None else case.why_no_rollouts(self.columns)


def _since(case: Case, part: Found) -> int | None:
    """Return the step from which a cause shows: its own, or that of the first metric in its
    evidence; None without either.
    """
    if part.since is not None:
        return part.since
    metrics = [piece.metric for piece in part.evidence if case.has(piece.metric)]
    return case.onset(metrics[0]) if metrics else None


def check(
    *ids: str,
    needs: Sequence[str] = (),
    columns: Sequence[str] | None = None,
    at_least: int = 0,
    by_source: bool = False,
) -> Callable[[Callable[[Case], Answer]], Check]:
    """Make a check of a function that judges these causes."""
    return lambda judge: Check(ids, judge, needs, columns, at_least, by_source)


def make_finding(
    view: RunView,
    id: str,
    severity: Severity,
    basis: Basis,
    summary: str,
    evidence: Sequence[Evidence],
    fix: Fix | None = None,
) -> Finding:
    """Return a finding with what its page knows, and with a fix of its own if there is one.

    Without rollouts a cause that only they can prove is a signal at most.
    """
    cause = CATALOGUE[id].for_run(view)
    if not view.rollout_steps:
        is_proven_by_scalars = cause.kind is Kind.CURVE or cause.in_scalars
        if basis is PROOF and not is_proven_by_scalars:
            basis = SIGNAL
        if severity is CRITICAL and id in SYMPTOM_IDS:
            severity = WARNING
    source = "records" if view.rollout_steps else "scalars"
    confidence, measured = confidence_of(id, basis, source)
    settings = settings_in_force(view)
    return Finding(
        id=id,
        severity=severity,
        basis=basis,
        summary=summary or cause.what,
        evidence=tuple(evidence),
        rivals=cause.rivals,
        experiment=resolve_experiment(cause, settings),
        fix=complete_fix(fix or cause.fix, view.trainer, settings),
        confidence=confidence,
        measured=measured,
        is_doubted=is_mostly_wrong(id, source),
        page=f"uptrend explain {id}",
    )


def alarms(findings: Iterable[Finding]) -> list[Finding]:
    """Return the findings that ask for action."""
    return [finding for finding in findings if finding.severity is not NOTE]


def is_at_least(finding: Finding, severity: Severity) -> bool:
    """Return True if a finding is as bad as this, or worse."""
    return SEVERITY_ORDER.index(finding.severity) <= SEVERITY_ORDER.index(severity)


def rank(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Return causes in the order in which to look at them, each with its symptoms under it."""
    ordered = sorted(_merge_same_cause(findings), key=_sort_key)
    ids = {finding.id for finding in ordered}
    causes: list[Finding] = []
    for finding in ordered:
        if any(_explains(other, finding, ids) for other in ordered):
            continue  # it stands under its cause
        symptoms = [other for other in ordered if _explains(finding, other, ids)]
        # A cause is as bad as the worst of its symptoms.
        severities = [finding.severity, *(symptom.severity for symptom in symptoms)]
        worst = min(severities, key=SEVERITY_ORDER.index)
        causes.append(replace(finding, severity=worst, explains=tuple(symptoms)))
    return tuple(sorted(_demote_doubted(causes), key=_sort_key))


def _merge_same_cause(findings: Iterable[Finding]) -> list[Finding]:
    """Return one finding per cause: the worst and surest, with the evidence of all."""
    by_cause: dict[str, list[Finding]] = {}
    for finding in findings:
        by_cause.setdefault(finding.id, []).append(finding)
    merged: list[Finding] = []
    for same in by_cause.values():
        same.sort(key=_sort_key)
        evidence = dict.fromkeys(piece for finding in same for piece in finding.evidence)
        merged.append(replace(same[0], evidence=tuple(evidence)))
    return merged


def _explains(cause: Finding, symptom: Finding, ids: Set[str]) -> bool:
    """Return True if one finding is a symptom of the other: the catalogue says so, and the cause is
    sure enough and did not come later.

    A symptom is seen and its cause concluded, so the cause may be one degree less sure, but never a
    mere guess: two suspicions stand side by side. And a note explains nothing away: what asks for
    no action can't account for what does. What was there before the first update is no effect of
    what came after it.
    """
    if cause.id == symptom.id or cause.severity is NOTE:
        return False
    if symptom.since == 0 and cause.since:
        return False
    is_guess = cause.basis is SUSPICION
    if is_guess and symptom.severity is not NOTE:
        return False
    less_sure = BASIS_ORDER.index(cause.basis) - BASIS_ORDER.index(symptom.basis)
    max_less_sure = 0 if is_guess else 1
    if less_sure > max_less_sure:
        return False
    if symptom.id in all_symptoms(cause.id, ids):
        return True
    return bool(symptom.since) and symptom.id in CATALOGUE[cause.id].leads_to


def _demote_doubted(causes: Sequence[Finding]) -> Iterator[Finding]:
    """Yield causes; a doubted one that stands alone and proves nothing becomes a note that says
    why.
    """
    is_alone = all(cause.is_doubted for cause in alarms(causes))
    for cause in causes:
        is_proven = any(finding.basis is PROOF for finding in (cause, *alarms(cause.explains)))
        if is_alone and cause.is_doubted and not is_proven and cause.severity is not NOTE:
            reason = (
                f"{cause.measured}: it is what another cause looks like, so look for what is behind"
                " it"
            )
            yield replace(cause, severity=NOTE, measured=reason)
        else:
            yield cause


def _sort_key(finding: Finding) -> tuple[bool, bool, int, int, bool, int, int]:
    """Order alarms before notes, then by trust from trials, severity, basis, time, number of
    symptoms and kind of evidence.
    """
    return (
        finding.severity is NOTE,
        finding.confidence is Confidence.LOW,
        SEVERITY_ORDER.index(finding.severity),
        BASIS_ORDER.index(finding.basis),
        bool(finding.since),
        -len(finding.explains),
        KIND_ORDER.index(CATALOGUE[finding.id].kind),
    )
