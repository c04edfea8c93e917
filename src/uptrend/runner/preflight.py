"""The probes as one report: for `uptrend preflight`, and before the first step of a run."""

import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from uptrend.doctor.report import finding_table
from uptrend.records import Finding, RunDirectory, Severity
from uptrend.records.renamed import current
from uptrend.training.observer import Stop

if TYPE_CHECKING:
    from uptrend.doctor.probes.probe import Result
    from uptrend.runner.prepare import Prepared

FEW_GROUPS = 4  # groups that the cheap probes play before a run, where seconds count
VERSION = 1  # of the JSON form


@dataclass(frozen=True)
class Preflight:
    """Results of the probes on one recipe."""

    recipe: str  # name or path
    results: "Sequence[Result]"  # one per probe
    findings: Sequence[Finding]  # causes in order, symptoms folded under them
    seconds: float

    def is_grave(self, severities: Collection[Severity] = (Severity.CRITICAL,)) -> bool:
        """Tell whether a finding has one of these severities."""
        return any(f.severity in severities for f in self.findings)

    @property
    def asked(self) -> int:
        """Number of probes that applied and went through."""
        return sum(not r.skipped and not r.error for r in self.results)

    @property
    def failed(self) -> "Sequence[Result]":
        """Probes that ended in an exception."""
        return [r for r in self.results if r.error]

    @property
    def count(self) -> str:
        """Number of findings by severity, in words."""
        counts = {s: sum(f.severity == s for f in self.findings) for s in Severity}
        told = [f"{n} {s.value}{'s' if n > 1 and s != Severity.CRITICAL else ''}" for s, n in counts.items() if n]
        return ", ".join(told) + " found" if told else "nothing found"

    def to_table(self) -> dict[str, Any]:
        """Plain values, as `--format json` prints them and events.jsonl keeps them."""
        return {
            "version": VERSION,
            "recipe": self.recipe,
            "passed": not self.is_grave() and not self.failed,
            "seconds": round(self.seconds, 2),
            "probes": [
                {
                    "name": r.name, "ok": r.ok, "figure": r.figure, "skipped": r.skipped, "error": r.error,
                    "seconds": round(r.seconds, 2), "findings": [f.id for f in r.findings],
                }
                for r in self.results
            ],
            "findings": [
                *(finding_table(cause) for cause in self.findings),
                *(finding_table(symptom, cause.id) for cause in self.findings for symptom in cause.explains),
            ],
        }  # fmt: skip


def ask_probes(
    prepared: "Prepared", names: Iterable[str], groups: int, started: Callable[[str], None] = lambda _: None
) -> "Iterator[Result]":
    """Run the named probes one by one; `started` receives each name before its probe runs."""
    from uptrend.doctor.probes import run_probes
    from uptrend.doctor.probes.bench import Bench

    p = prepared
    yield from run_probes(Bench(p.config, p.policy, p.pool, p.held_out, groups, p.components), names, started)


def check_first(
    prepared: "Prepared", directory: RunDirectory, allows: Collection[str]
) -> tuple[Preflight, Stop | None]:
    """Run the cheap probes before a run and record them; a critical finding that is not allowed stops it."""
    from uptrend.doctor.probes import PROBES, differential

    began = time.perf_counter()
    results = list(ask_probes(prepared, [name for name, probe in PROBES.items() if probe.cheap], FEW_GROUPS))
    report = Preflight(prepared.config.name, results, differential(results), time.perf_counter() - began)
    directory.event("preflight", **report.to_table())
    allowed = {current(id) for id in allows}
    grave = next((f for f in report.findings if f.severity == Severity.CRITICAL and f.id not in allowed), None)
    return report, None if grave is None else Stop(grave.summary, by="preflight", finding=grave.id)
