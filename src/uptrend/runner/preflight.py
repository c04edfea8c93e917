"""The probes as one report: for `uptrend preflight`, and before the first step of a run."""

import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from uptrend.doctor.report import finding_table
from uptrend.records import Finding, Severity
from uptrend.records.renamed import current
from uptrend.runner.prepare import FEW_GROUPS

if TYPE_CHECKING:
    from uptrend.doctor.probes.probe import Result
    from uptrend.training.components import RunContext

VERSION = 1  # of the JSON form


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
        critical = (f for f in self.findings if f.severity == Severity.CRITICAL)
        return next((f for f in critical if f.id not in allowed), None)

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
        told = [
            f"{n} {s.value}{'s' if n > 1 and s != Severity.CRITICAL else ''}"
            for s, n in counts.items()
            if n
        ]
        return ", ".join(told) + " found" if told else "nothing found"

    def to_table(self) -> dict[str, Any]:
        """Plain values, as `--format json` prints them and events.jsonl keeps them."""
        return {
            "version": VERSION,
            "recipe": self.recipe,
            "passed": self.refusal() is None and not self.failed,
            "seconds": round(self.seconds, 2),
            "probes": [
                {
                    "name": r.name,
                    "ok": r.ok,
                    "figure": r.figure,
                    "skipped": r.skipped,
                    "error": r.error,
                    "seconds": round(r.seconds, 2),
                    "findings": [f.id for f in r.findings],
                }
                for r in self.results
            ],
            "findings": [
                *(finding_table(cause) for cause in self.findings),
                *(
                    finding_table(symptom, cause.id)
                    for cause in self.findings
                    for symptom in cause.explains
                ),
            ],
        }


def ask_probes(
    context: "RunContext",
    names: Iterable[str],
    groups: int,
    started: Callable[[str], None] = lambda _: None,
) -> "Iterator[Result]":
    """Run the named probes one by one; `started` receives each name before its probe runs."""
    from uptrend.doctor.probes import run_probes
    from uptrend.doctor.probes.bench import Bench

    yield from run_probes(Bench(context, groups), names, started)


def ask_cheap_probes(context: "RunContext") -> Preflight:
    """Run the probes that come before every run."""
    from uptrend.doctor.probes import PROBES, differential

    began = time.perf_counter()
    cheap = [name for name, probe in PROBES.items() if probe.cheap]
    results = list(ask_probes(context, cheap, FEW_GROUPS))
    return Preflight(
        context.config.name, results, differential(results), time.perf_counter() - began
    )
