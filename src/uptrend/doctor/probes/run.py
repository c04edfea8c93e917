"""Running probes on a bench, one after another, and putting what they found in the order of causes."""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from uptrend.doctor.catalogue import CATALOGUE
from uptrend.doctor.probes import PROBES, SYMPTOMS
from uptrend.doctor.probes.bench import Bench
from uptrend.doctor.probes.keep import steady
from uptrend.doctor.probes.result import Result
from uptrend.records import Finding, Severity

RANK = {Severity.CRITICAL: 0, Severity.WARNING: 1, Severity.NOTE: 2}


def run_probes(bench: Bench, names: Iterable[str], begin: Callable[[str], None] | None = None) -> Iterator[Result]:
    """Each probe's result as it comes; weights, gradients, random states and mode are as before after each."""
    for name in names:
        if begin is not None:
            begin(name)
        began = time.perf_counter()
        with steady(bench.policy):
            result = PROBES[name].ask(bench)
        yield replace(result, name=name, seconds=time.perf_counter() - began)


def differential(results: Sequence[Result]) -> tuple[Finding, ...]:
    """All findings, causes first: by severity, then in the order of the probes; symptoms are folded under causes."""
    found = {finding.id: finding for result in reversed(results) for finding in reversed(result.findings)}
    order = list(dict.fromkeys(f.id for result in results for f in result.findings))
    ranked = sorted(found.values(), key=lambda f: (RANK[f.severity], order.index(f.id)))
    parents = {finding.id: _cause(finding, ranked) for finding in ranked}
    symptoms: dict[str, list[Finding]] = {}
    for finding in ranked:
        if (root := _root(finding.id, parents)) != finding.id:
            symptoms.setdefault(root, []).append(finding)
    causes = [finding for finding in ranked if parents[finding.id] is None]
    return tuple(replace(cause, explains=tuple(symptoms.get(cause.id, ()))) for cause in causes)


def _cause(finding: Finding, ranked: Sequence[Finding]) -> str | None:
    """The first of the others that explains it; of two that explain each other, the one that ranks higher."""
    mine = ranked.index(finding)
    for place, other in enumerate(ranked):
        if finding.id not in _explained(other.id) or place == mine:
            continue
        is_note = other.severity is Severity.NOTE and finding.severity is not Severity.NOTE
        if not is_note and (place < mine or other.id not in _explained(finding.id)):
            return other.id
    return None


def _root(id: str, parents: Mapping[str, str | None]) -> str:
    seen = {id}
    while (parent := parents[id]) is not None and parent not in seen:
        seen.add(parent)
        id = parent
    return id


def _explained(cause: str) -> set[str]:
    return {*CATALOGUE[cause].explains, *SYMPTOMS.get(cause, ())}
