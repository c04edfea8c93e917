"""The doctor's words on a run: findings, checks that lacked data, and the report that holds
both.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from html import escape
from typing import Any


class Severity(StrEnum):
    """Weight of a finding."""

    CRITICAL = "critical"
    """The run can't learn what it is meant to, or its figures can't be believed."""
    WARNING = "warning"
    """The run learns less than it could, or will soon not."""
    NOTE = "note"
    """Worth knowing; nothing has to be done."""


class Basis(StrEnum):
    """What a finding rests on."""

    PROOF = "proof"
    """Something that must hold does not, beyond rounding."""
    SIGNAL = "signal"
    """A measurement beyond its noise, which other causes could give too."""
    SUSPICION = "suspicion"
    """Something that goes with the cause; what would show it was not recorded."""


class Confidence(StrEnum):
    """Certainty. Of a finding: how often such findings were right in trials, shrunk toward the mean
    of their kind.
    """

    HIGH = "high"
    """Right in at least 90%, by five runs of its own or more."""
    MEDIUM = "medium"
    """Right in 60 to 90%."""
    LOW = "low"
    """Right in fewer."""


class TrendKind(StrEnum):
    """Course of the training reward over the run."""

    LEARNING = "learning"
    FLAT = "flat"
    FALLING = "falling"
    TOO_SHORT = "too-short"


@dataclass(frozen=True)
class Evidence:
    """One observation behind a finding."""

    text: str
    value: float | None = None
    metric: str = ""
    step: int | None = None
    """None for the whole run."""
    rollout: str = ""
    """A rollout that shows it, as `step/group/index`: `uptrend runs show RUN --rollout 12/abc/3`
    opens it.
    """


@dataclass(frozen=True)
class Rival:
    """Another cause that looks the same."""

    id: str
    """Its id in the catalogue, or a plain name where it is no fault."""
    tells_apart: str


@dataclass(frozen=True)
class Times:
    """A config value relative to the one the run had."""

    factor: float

    @property
    def in_words(self) -> str:
        """The same inside a sentence."""
        part = {2: "half", 3: "a third", 4: "a quarter"}.get(round(1 / self.factor))
        return f"{part} of its value" if part and self.factor < 1 else str(self)

    def __str__(self) -> str:
        return (
            f"{self.factor:g} × its value"
            if self.factor >= 1
            else f"its value / {1 / self.factor:g}"
        )


@dataclass(frozen=True)
class Limit:
    """A config value that is changed only where the run's own lies on the wrong side of it."""

    value: Any
    is_minimum: bool
    """True where the run should have at least this, False where at most."""
    off: Any = None
    """A value that means none at all, and so lies on the wrong side whatever its size."""

    def applied_to(self, now: Any) -> Any:
        """Return the value that a run should have which has this one now; None where that is not
        known.
        """
        if not isinstance(now, int | float) or isinstance(now, bool) or now == self.off:
            return self.value
        return max(now, self.value) if self.is_minimum else min(now, self.value)


@dataclass(frozen=True)
class Experiment:
    """Test that decides between a cause and its rivals, as the lab can run it."""

    claim: str
    """One sentence; of a comparison of arms it ends with what is measured, generated from the
    metric. A cause's may have `{learning.lr}` where the arms' values belong, and `{steps}`.
    """
    probe: str = ""
    """A probe of `uptrend preflight` that settles it without training; empty where there is
    none.
    """
    arms: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Config overrides of each arm by Uptrend's keys, the control among them as {}; empty where a
    probe settles it.
    """
    metric: str = "eval/accuracy"
    direction: str = "up"
    """Claimed direction of the arm against the control: up or down."""
    smallest: float = 0.05
    steps: int = 0
    """Steps per arm; 0 for those of the recipe."""


@dataclass(frozen=True)
class Fix:
    """Change that removes a cause."""

    sentence: str
    """One or more sentences. A cause's has `{learning.lr}` where the value of that change
    belongs.
    """
    changes: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """The same as config differences, by trainer. A cause gives ours and what only another trainer
    has; a finding has ours translated for every trainer that has such a setting, without what is in
    force in the run.
    """
    untranslated: tuple[str, ...] = ()
    """Keys of ours whose value suits no other trainer."""
    notes: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    in_force: Mapping[str, Any] = field(default_factory=dict)
    """What the cause would change and the run has already, in its trainer's words."""


@dataclass(frozen=True)
class Finding:
    """One named cause."""

    id: str
    severity: Severity
    basis: Basis
    summary: str
    evidence: tuple[Evidence, ...]
    confidence: Confidence = Confidence.MEDIUM
    """How often such a finding was right where it could be checked."""
    measured: str = ""
    """The count behind the confidence, in words."""
    is_doubted: bool = False
    """True where another cause lay behind nearly every trial run in which this one was named
    first.
    """
    rivals: tuple[Rival, ...] = ()
    experiment: Experiment | None = None
    fix: Fix | None = None
    explains: tuple["Finding", ...] = ()
    """Findings that are symptoms of this one."""
    page: str = ""


@dataclass(frozen=True)
class CannotTell:
    """A check that lacked its data."""

    id: str
    needs: str
    """Data that it would need, or why what is there does not do."""


@dataclass(frozen=True)
class Trend:
    """Change of the training reward, and the chance that this run would have shown one."""

    kind: TrendKind
    sentence: str
    effect: float | None = None
    """The fitted change of the mean reward from the first step to the last."""
    interval: tuple[float, float] | None = None
    """Its 95% interval, corrected for autocorrelation."""
    power: float | None = None
    """The chance that this run would have shown the smallest effect that matters."""
    held_out: Mapping[str, Any] = field(default_factory=dict)
    """The held-out change: first, last, effect, interval, tasks; empty where nothing was held
    out.
    """
    headline: str = ""
    """The kind in words, qualified where held-out scores or findings disagree with it."""

    @property
    def in_words(self) -> str:
        """The headline; the kind alone where nobody has judged what else is seen."""
        return self.headline or str(self.kind)


@dataclass(frozen=True)
class Report:
    """Everything that the doctor says of one run."""

    source: str
    trainer: str
    name: str
    steps: int
    trend: Trend
    findings: tuple[Finding, ...]
    """The causes, likeliest first; symptoms folded under them."""
    cannot_tell: tuple[CannotTell, ...]
    missing: tuple[str, ...] = ()
    """Kinds of evidence that the run lacks, each with how to get it."""
    notes: tuple[str, ...] = ()
    """Sentences on how the log was read."""
    step: int = 0
    """Last step that it knows; 0 before the first."""
    unknown: tuple[str, ...] = ()
    curve: tuple[tuple[int, float], ...] = ()
    """Step and mean training reward, thinned for a picture."""
    runs: tuple["Report", ...] = ()
    """Of a file that holds several runs, the report of each; then this one is the longest run's."""

    def __repr__(self) -> str:
        found = "".join(f"\n  {f.severity.value}  {f.id}: {f.summary}" for f in self.findings)
        return f"Report({self.source!r}, {self.steps} steps, {self.trend.in_words}){found}"

    def _repr_html_(self) -> str:
        """Return a table for notebooks: trend, then each finding with its fix."""
        trend = f"{self.trend.in_words}: {self.trend.sentence}"
        rows = [("report", f"{self.source} {dated(self.step)}"), ("trend", trend)]
        for f in self.findings:
            rows.append(
                (f"{f.severity.value}: {f.id}", f"{f.summary} {f.fix.sentence if f.fix else ''}")
            )
        return html_table(rows)


def headline(report: Mapping[str, Any]) -> str:
    """Return what a report in its JSON form says of a run, in words: its trend, qualified by what
    else is seen. Reports of 0.1 have the trend alone.
    """
    return str(report.get("headline") or report["trend"])


def causes(report: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the findings of a report in its JSON form that are causes, not symptoms of others."""
    return [finding for finding in report["findings"] if finding["symptom_of"] is None]


def dated(step: int) -> str:
    """Return the date of a report in words."""
    return f"after step {step}" if step > 0 else "before the first step"


def html_table(rows: Iterable[tuple[str, str]]) -> str:
    """Return rows of a heading and a text as HTML, for notebooks."""
    cells = "".join(
        f"<tr><th>{escape(key)}</th><td>{escape(value)}</td></tr>" for key, value in rows
    )
    return f"<table>{cells}</table>"
