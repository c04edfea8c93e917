"""Findings on one of several sources of tasks: each says for which it holds."""

from collections.abc import Container, Iterable, Mapping
from dataclasses import replace

from uptrend.doctor.check import SEVERITY_ORDER, Outcomes
from uptrend.records import CannotTell, Evidence, Finding, Fix, RunView
from uptrend.records.metrics import source_metric


def name_sources(outcomes_by_label: Mapping[str, Outcomes], view: RunView) -> Outcomes:
    """Return the outcomes of one check on each source, with the source's label in their words."""
    findings: dict[str, list[Finding]] = {}  # by label
    undecided: Outcomes = []
    for label, outcomes in outcomes_by_label.items():
        for outcome in outcomes:
            if isinstance(outcome, CannotTell):
                undecided.append(replace(outcome, needs=f"{label}: {outcome.needs}"))
            else:
                findings.setdefault(label, []).append(outcome)
    return [*undecided, *join_sources(findings, view.metrics)]


def join_sources(
    findings_by_label: Mapping[str, Iterable[Finding]], metrics: Container[str] = ()
) -> list[Finding]:
    """Return one finding per cause that says for which sources it holds: the worst, with the
    evidence of all. Evidence names a source's own metric where `metrics` has it.
    """
    by_cause: dict[str, dict[str, Finding]] = {}  # by cause and label
    for label, findings in findings_by_label.items():
        for finding in findings:
            by_label = by_cause.setdefault(finding.id, {})
            by_label[label] = _worse(by_label.get(label), finding)
    return [_join(by_label, metrics) for by_label in by_cause.values()]


def _worse(one: Finding | None, other: Finding) -> Finding:
    """Return the worse of two findings on one cause in one source, with the evidence of both."""
    if one is None:
        return other
    worst = min(one, other, key=lambda finding: SEVERITY_ORDER.index(finding.severity))
    return replace(worst, evidence=(*one.evidence, *other.evidence))


def _join(by_label: Mapping[str, Finding], metrics: Container[str]) -> Finding:
    """Return the findings on one cause, by source, as one that names the sources."""
    worst = min(by_label, key=lambda label: SEVERITY_ORDER.index(by_label[label].severity))
    finding = by_label[worst]
    evidence: list[Evidence] = []
    others = [label for label in by_label if label != worst]
    for label in (worst, *others):
        own_evidence = by_label[label].evidence
        evidence += [_name_evidence(label, piece, metrics) for piece in own_evidence]
    # Sources in which it is as bad: a note elsewhere does not ask for the same change.
    equals = [label for label in others if by_label[label].severity is finding.severity]
    summary = f"In {worst}: {finding.summary}"
    if equals:
        summary += f" The same holds in {' and '.join(equals)}."
    return replace(
        finding,
        summary=summary,
        evidence=tuple(evidence),
        fix=None if finding.fix is None else _name_fix(worst, finding.fix),
    )


def _name_evidence(label: str, piece: Evidence, metrics: Container[str]) -> Evidence:
    own_metric = source_metric(label, piece.metric)
    metric = own_metric if own_metric in metrics else piece.metric
    return replace(piece, text=f"{label}: {piece.text}", metric=metric)


def _name_fix(label: str, fix: Fix) -> Fix:
    """Return a fix whose changes of `[tasks]` are those of this source."""
    changes = fix.changes.get("uptrend", {})
    own_changes = {_own_key(label, key): value for key, value in changes.items()}
    return replace(
        fix,
        changes={**fix.changes, "uptrend": own_changes},
        in_force={_own_key(label, key): value for key, value in fix.in_force.items()},
    )


def _own_key(label: str, key: str) -> str:
    """Return the key of one source for a key of `[tasks]`; any other key as it is."""
    section, _, rest = key.partition(".")
    return f"tasks.{label}.{rest}" if section == "tasks" else key
