"""Results of the doctor on a run: findings, checks that lacked data, and the report with both."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from html import escape
from typing import Any


class Severity(StrEnum):
    """Weight of a finding."""

    CRITICAL = "critical"
    """The run can't learn its task, or its figures can't be trusted."""
    WARNING = "warning"
    """The run learns less than it could, or will soon stop learning."""
    NOTE = "note"
    """Worth knowing; no action is needed."""


class Basis(StrEnum):
    """Kind of evidence that a finding rests on."""

    PROOF = "proof"
    """A condition that must hold does not, beyond rounding."""
    SIGNAL = "signal"
    """A measurement beyond its noise, which other causes could have too."""
    SUSPICION = "suspicion"
    """An observation that goes with the cause; the data that would prove it was not recorded."""


class Confidence(StrEnum):
    """Certainty. For a finding, the share of such findings that were right in trials, shrunk toward
    the mean of their kind.
    """

    HIGH = "high"
    """Right in at least 90%, in five runs of its own or more."""
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
    """Id in the catalogue, or a plain name if it is no fault."""
    tells_apart: str


@dataclass(frozen=True)
class Multiplied:
    """A config value relative to the one the run had: that value times `factor`."""

    factor: float

    @property
    def in_words(self) -> str:
        """Value inside a sentence: "half of its value", "10 × its value"."""
        # Exact: Python computes 1 / (1 / n) as n for these n.
        part = {1 / 2: "half", 1 / 3: "a third", 1 / 4: "a quarter"}.get(self.factor)
        return f"{part} of its value" if part else str(self)

    def __str__(self) -> str:
        if self.factor >= 1:
            return f"{self.factor:g} × its value"
        return f"its value / {1 / self.factor:g}"


@dataclass(frozen=True)
class Limit:
    """A bound of a config value. It changes only runs that break it.

    With a minimum of 16, a run that has 8 gets 16 and one that has 32 keeps 32. With a maximum of
    1.0 and `off` 0, a run that has 0.5 keeps it, and one that has 0 (switched off) gets 1.0.
    """

    value: Any
    is_minimum: bool
    """True if the run should have at least this value, False if at most."""
    off: Any = None
    """Value that switches the setting off, such as 0: it breaks the bound, whatever its size."""

    def applied_to(self, current: Any) -> Any:
        """Return the value for a run that has `current`: the bound itself if `current` is off or no
        number.
        """
        is_number = isinstance(current, int | float) and not isinstance(current, bool)
        if not is_number or current == self.off:
            return self.value
        return max(current, self.value) if self.is_minimum else min(current, self.value)


@dataclass(frozen=True)
class Experiment:
    """Test that decides between a cause and its rivals, as the lab can run it."""

    claim: str
    """One sentence; for a comparison of arms it ends with the measured outcome, generated from the
    metric. A cause's may have placeholders for the arms' values, such as `{learning.lr}`, and
    `{steps}`.
    """
    probe: str = ""
    """Probe of `uptrend preflight` that settles it without training; empty for none."""
    arms: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Config overrides of each arm by Uptrend's keys, the control among them as {}; empty if a
    probe settles it.
    """
    metric: str = "eval/accuracy"
    direction: str = "up"
    """Claimed direction of the arm against the control: up or down."""
    smallest: float = 0.05
    """Smallest effect that matters, in the metric's unit."""
    steps: int = 0
    """Steps per arm; 0 for those of the recipe."""


@dataclass(frozen=True)
class Fix:
    """Change that removes a cause."""

    sentence: str
    """One or more sentences. A cause's has placeholders for the values of its changes, such as
    `{learning.lr}`.
    """
    changes: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Config differences of the fix, by trainer. A cause has ours and those of settings that only
    another trainer has; a finding has ours translated for every trainer with such a setting,
    without those in force in the run.
    """
    untranslated: tuple[str, ...] = ()
    """Our keys whose value no other trainer can have."""
    notes: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Remarks on translated settings by trainer, each as `its key: text`."""
    in_force: Mapping[str, Any] = field(default_factory=dict)
    """Changes that the run has already, in its trainer's words."""


@dataclass(frozen=True)
class Finding:
    """One named cause."""

    id: str
    severity: Severity
    basis: Basis
    summary: str
    evidence: tuple[Evidence, ...]
    confidence: Confidence = Confidence.MEDIUM
    """Share of such findings that were right in trials, as a grade."""
    measured: str = ""
    """Counts behind the confidence, in words."""
    since: int | None = None
    """Step from which its sign shows, 0 for one that was there before the first update; None where
    that is not known.
    """
    is_doubted: bool = False
    """True if nearly every trial run in which this cause was named first had another one."""
    rivals: tuple[Rival, ...] = ()
    experiment: Experiment | None = None
    fix: Fix | None = None
    explains: tuple["Finding", ...] = ()
    """Findings that are symptoms of this one."""
    page: str = ""
    """Command that prints the cause's page: `uptrend explain ID`."""


@dataclass(frozen=True)
class NormalSign:
    """A value in a log that looks like a fault and is none, with the answer to the question."""

    id: str
    text: str
    """Why it is normal, with the value."""
    otherwise: str
    """When it would not be."""


@dataclass(frozen=True)
class CannotTell:
    """A check that lacked its data."""

    id: str
    needs: str
    """Data that it would need, or why the present data is not enough."""


@dataclass(frozen=True)
class Trend:
    """Change of the training reward, and the probability that this run would have shown one."""

    kind: TrendKind
    sentence: str
    effect: float | None = None
    """Fitted change of the mean reward from the first step to the last."""
    interval: tuple[float, float] | None = None
    """95% interval of the change, corrected for autocorrelation."""
    power: float | None = None
    """Probability that this run would have shown the smallest effect that matters."""
    held_out: Mapping[str, Any] = field(default_factory=dict)
    """Held-out change: first, last, effect, interval, tasks; empty without held-out tasks."""
    headline: str = ""
    """Kind in words, qualified if held-out scores or findings disagree with it."""

    @property
    def in_words(self) -> str:
        """Headline; the kind alone if there is none yet."""
        return self.headline or str(self.kind)


class Standing(StrEnum):
    """State of a cause in the differential of a run that does not learn."""

    SUPPORTED = "supported"
    """A finding names it."""
    POSSIBLE = "possible"
    """Nothing that was recorded decides it."""
    EXCLUDED = "excluded"
    """A setting, a probe, or records that would show it speak against it."""


@dataclass(frozen=True)
class Suspect:
    """A cause in a differential."""

    id: str
    standing: Standing
    probability: float
    """Share of trial runs like this one whose cause it was, as far as is known."""
    evidence: tuple[str, ...]
    """Sentences on what supports or excludes it, or why nothing decides it."""


@dataclass(frozen=True)
class NextStep:
    """Test that splits the causes that remain."""

    name: str
    sentence: str
    command: str
    """Command of a shell, or line of code, that works for this run."""
    splits: tuple[str, ...]
    """Ids of the causes that it decides, likeliest first."""
    probability: float
    """Probability that the cause is one of them."""
    steps: int
    """Its cost as training steps of this run."""
    seconds: float | None = None
    """The same in time; None where the run did not say how long a step takes."""


@dataclass(frozen=True)
class Differential:
    """Causes that remain for a run that does not learn, and what to do next."""

    suspects: tuple[Suspect, ...]
    """Supported ones in the order of the findings, then possible and excluded ones, the likeliest
    first.
    """
    elsewhere: float
    """Probability that the cause has no page, or that nothing is wrong."""
    next_steps: tuple[NextStep, ...]
    """The cheapest test that splits what remains best, then what is best after it."""

    def with_standing(self, *standings: Standing) -> list[Suspect]:
        """Return the suspects of these standings, in order."""
        return [suspect for suspect in self.suspects if suspect.standing in standings]


@dataclass(frozen=True)
class Report:
    """All results of the doctor on one run."""

    source: str
    trainer: str
    name: str
    steps: int
    trend: Trend
    findings: tuple[Finding, ...]
    """Causes, likeliest first; symptoms are folded under them."""
    cannot_tell: tuple[CannotTell, ...]
    normal: tuple[NormalSign, ...] = ()
    """Values that look like faults and are none; of other trainers' logs."""
    missing: tuple[str, ...] = ()
    """Kinds of evidence that the run lacks, each with how to get it."""
    notes: tuple[str, ...] = ()
    """Sentences on how the log was read."""
    step: int = 0
    """Last step that it covers; 0 before the first."""
    differential: Differential | None = None
    """Causes that remain; None for a run that learns."""
    unknown: tuple[str, ...] = ()
    """Columns of the log that were not recognized."""
    curve: tuple[tuple[int, float], ...] = ()
    """Step and mean training reward, thinned for a picture."""
    runs: tuple["Report", ...] = ()
    """Reports of all runs in a file of several; this one is then the longest run's."""

    def __repr__(self) -> str:
        lines = [f"Report({self.source!r}, {self.steps} steps, {self.trend.in_words})"]
        for finding in self.findings:
            lines.append(f"  {finding.severity.value}  {finding.id}: {finding.summary}")
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        """Return a table for notebooks: trend, then each finding with its fix."""
        trend = f"{self.trend.in_words}: {self.trend.sentence}"
        rows = [("report", f"{self.source} {dated(self.step)}"), ("trend", trend)]
        for finding in self.findings:
            fix = finding.fix.sentence if finding.fix else ""
            rows.append((f"{finding.severity.value}: {finding.id}", f"{finding.summary} {fix}"))
        return html_table(rows)


def headline(report: Mapping[str, Any]) -> str:
    """Return the headline of a report in its JSON form: its trend, qualified by its findings.
    Reports of 0.1 have the trend alone.
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
