"""The probes as one report: for `uptrend preflight`, and before the first step of a run."""

import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from uptrend.doctor.report import finding_table
from uptrend.records import Finding, Severity
from uptrend.records.renamed import current
from uptrend.runner.prepare import CHEAP_PROBE_GROUPS

if TYPE_CHECKING:
    from uptrend.doctor.probes.probe import Result
    from uptrend.training.components import RunContext

# Version of the JSON form.
FORMAT_VERSION = 1


@dataclass(frozen=True)
class Preflight:
    """Results of the probes on one recipe."""

    recipe: str  # name or path
    results: "Sequence[Result]"  # one per probe
    findings: Sequence[Finding]  # causes in order, symptoms folded under them
    seconds: float

    def refusal(self, allows: Collection[str] = ()) -> Finding | None:
        """Return the first critical finding whose id is not in `allows`."""
        allowed = {current(id) for id in allows}
        for finding in self.findings:
            if finding.severity == Severity.CRITICAL and finding.id not in allowed:
                return finding
        return None

    @property
    def n_completed(self) -> int:
        """Number of probes that applied and did not fail."""
        return sum(not result.skipped and not result.error for result in self.results)

    @property
    def failed(self) -> "Sequence[Result]":
        """Probes that ended in an exception."""
        return [result for result in self.results if result.error]

    @property
    def findings_in_words(self) -> str:
        """Number of findings by severity, such as "1 critical, 2 warnings found"."""
        parts = []
        for severity in Severity:
            count = sum(finding.severity == severity for finding in self.findings)
            if count:
                # The noun of "critical" is left out: "2 critical", but "2 warnings".
                ending = "s" if count > 1 and severity != Severity.CRITICAL else ""
                parts.append(f"{count} {severity.value}{ending}")
        if not parts:
            return "nothing found"
        return ", ".join(parts) + " found"

    def to_table(self) -> dict[str, Any]:
        """Return plain values, for `--format json` and for events.jsonl."""
        probes = []
        for result in self.results:
            row = {
                "name": result.name,
                "ok": result.ok,
                "figure": result.figure,
                "skipped": result.skipped,
                "error": result.error,
                "seconds": round(result.seconds, 2),
                "findings": [finding.id for finding in result.findings],
            }
            if result.source:
                row["source"] = result.source
            probes.append(row)
        causes = []
        symptoms = []
        for cause in self.findings:
            causes.append(finding_table(cause))
            symptoms += [finding_table(symptom, cause.id) for symptom in cause.explains]
        return {
            "version": FORMAT_VERSION,
            "recipe": self.recipe,
            "passed": self.refusal() is None and not self.failed,
            "seconds": round(self.seconds, 2),
            "probes": probes,
            "findings": [*causes, *symptoms],
        }


def run_named_probes(
    context: "RunContext",
    names: Iterable[str],
    groups: int,
    started: Callable[[str], None] = lambda _: None,
) -> "Iterator[Result]":
    """Run the named probes one by one; `started` receives each name before its probe runs."""
    from uptrend.doctor.probes import run_probes
    from uptrend.doctor.probes.bench import Bench

    yield from run_probes(Bench(context, groups), names, started)


def run_cheap_probes(context: "RunContext") -> Preflight:
    """Run the probes that come before every run."""
    from uptrend.doctor.probes import PROBES, differential

    began = time.perf_counter()
    cheap = [name for name, probe in PROBES.items() if probe.cheap]
    results = list(run_named_probes(context, cheap, CHEAP_PROBE_GROUPS))
    findings = differential(results)
    seconds = time.perf_counter() - began
    return Preflight(context.config.name, results, findings, seconds)
