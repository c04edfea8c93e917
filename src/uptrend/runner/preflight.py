"""The probes as one report: for `uptrend preflight`, and before the first step of a run."""

import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from uptrend.config.tables import to_toml
from uptrend.doctor.report import finding_table
from uptrend.records import Finding, Severity
from uptrend.records.renamed import current
from uptrend.runner.prepare import Prepared, leaves_chat_open

if TYPE_CHECKING:
    from uptrend.doctor.probes.bench import Bench
    from uptrend.doctor.probes.probe import Result

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

    def refusal(self, allows: Collection[str]) -> Finding | None:
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
    prepared: Prepared, names: Iterable[str], groups: int, started: Callable[[str], None] = lambda _: None
) -> "Iterator[Result]":
    """Run the named probes one by one; `started` receives each name before its probe runs."""
    from uptrend.doctor.probes import run_probes

    yield from run_probes(_bench(prepared, groups), names, started)


def _bench(prepared: Prepared, groups: int) -> "Bench":
    from uptrend.doctor.probes.bench import Bench

    p = prepared
    return Bench(p.config, p.policy, p.pool, p.held_out, groups, p.components, has_compared_chat=p.has_compared_chat)


def ask_cheap_probes(prepared: Prepared) -> Preflight:
    """Run the probes that come before every run."""
    from uptrend.doctor.probes import PROBES, differential

    began = time.perf_counter()
    cheap = [name for name, probe in PROBES.items() if probe.cheap]
    results = list(ask_probes(prepared, cheap, FEW_GROUPS))
    return Preflight(prepared.config.name, results, differential(results), time.perf_counter() - began)


def settle_chat(prepared: Prepared) -> Prepared:
    """Decide `model.chat = "auto"` of a new run: where neither model nor tasks say how to ask, both ways are compared.

    All ranks call this.
    """
    if prepared.config.model.chat != "auto":
        return prepared
    has_template = bool(prepared.policy.tokenizer.chat_template)
    chat = has_template
    note = ""
    has_compared = False
    if has_template and leaves_chat_open(prepared.pool, prepared.held_out):
        if prepared.policy.is_sharded:
            note = "model.chat = true: the two ways of asking can't be compared on sharded weights."
        else:
            decision = _compare_chat(prepared) if prepared.ranks.rank == 0 else (True, "", False)
            chat, note, has_compared = prepared.ranks.broadcast(decision)
    model = replace(prepared.config.model, chat=chat)
    notes = (*prepared.notes, note) if note else prepared.notes
    return replace(prepared, config=replace(prepared.config, model=model), notes=notes, has_compared_chat=has_compared)


def _compare_chat(prepared: Prepared) -> tuple[bool, str, bool]:
    """Return the better way to ask, the sentence that says why, and True where both were tried."""
    from uptrend.doctor.probes.bench import random_state_kept
    from uptrend.doctor.probes.rollouts import compare_renderings

    bench = _bench(prepared, FEW_GROUPS)
    if bench.stage.taskset.chat is not None:
        return True, "model.chat = true: the model has a chat template.", False
    if bench.tools:
        return True, "model.chat = true: the tasks have tools, which the model's chat template shows.", False
    with random_state_kept(prepared.policy):
        renderings = compare_renderings(bench)
    note = (
        f"model.chat = {to_toml(renderings.chat_is_better)}: {renderings.as_chat:.0%} of {renderings.rollouts} "
        f"answers are right through the chat template, {renderings.as_text:.0%} to raw text."
    )
    return renderings.chat_is_better, note, True
