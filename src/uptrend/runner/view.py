"""Views of a run in a terminal: a live panel, lines, or only the outcome; and what the cheap probes
found.
"""

import os
import re
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from statistics import median
from typing import TYPE_CHECKING, Any

from rich.console import Console, Group
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from uptrend.config.tables import to_toml
from uptrend.doctor.report import FINDING_STYLES
from uptrend.present.formatting import duration, estimate, number, percent, plural
from uptrend.present.terminal import columns, phase_shares, sparkline
from uptrend.records import Evaluation, Finding, Run, Severity
from uptrend.records.directory import describe_location
from uptrend.records.machine import count_cores
from uptrend.records.metrics import shown_metrics
from uptrend.records.summary import HeldoutSummary, before_and_after, heldout, heldout_sets, phases
from uptrend.training.observer import StepRecord

if TYPE_CHECKING:
    from uptrend.doctor.probes.probe import Result
    from uptrend.runner.preflight import Preflight

Curve = tuple[str, str, list[float | None], str]
# Widths of the panel's first two columns; the curves have the rest.
NAME_WIDTH = 11
VALUE_WIDTH = 25
# Steps over which the time by phase is averaged, and which a slow step is compared with.
RECENT_STEPS = 20
# Slow steps: times the usual, how many in a row, their least seconds, and earlier steps that show
# what is usual.
SLOW_RATIO = 3.0
SLOW_STEPS = 2
SLOW_SECONDS = 1.0
MIN_STEPS = 5


def count_epochs(run: Run) -> str:
    """Say how often a run comes to each of its tasks: 40 examples, 4 per step, 10 steps per epoch,
    20 epochs.
    """
    stages = [] if run.info.get("kind") else (run.info.get("tasks") or {}).get("stages", [])
    groups = run.config.get("sampling", {}).get("groups", 1)
    sentences: list[str] = []
    ends = [*(stage["start"] for stage in stages[1:]), (run.steps or 0) + 1]
    for stage, end in zip(stages, ends, strict=True) if stages else ():
        # what is left of an epoch is not drawn: no step repeats a task
        steps = max(1, stage["count"] // groups)
        epochs = number(max(0, end - stage["start"]) / steps)
        counted = (
            f"{plural(stage['count'], 'example')}, {groups} per step, {plural(steps, 'step')} per"
            " epoch"
        )
        begins = f"from step {stage['start']} on " if sentences else ""
        sentences.append(f"{begins}{counted}, {epochs} epoch{'' if epochs == '1' else 's'}")
    return "; ".join(sentences)


def choose_view(quiet: bool, is_terminal: bool) -> "QuietView":
    """Return the view for a terminal, for a file or pipe, or for nobody."""
    if quiet:
        return QuietView()
    return LiveView() if is_terminal else LineView()


class View:
    """Prints plain lines."""

    def __init__(self, console: Console) -> None:
        self.console = console

    def say(self, line: str) -> None:
        """Print a plain line, however long."""
        self.console.print(line, soft_wrap=True, markup=False, highlight=False)


class QuietView(View):
    """View that prints only the outcome; the others add to it."""

    title = ""
    start = 0
    steps = 0
    size = 0
    known = 0
    """Steps of the run that this process did not make."""
    is_slow = False
    is_quiet = True

    def __init__(
        self, console: Console | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        super().__init__(console or Console(highlight=False))
        self.clock = clock
        self.metrics: list[dict[str, Any]] = []
        self.evaluations: list[HeldoutSummary] = []
        self.sets: dict[str, list[HeldoutSummary]] = {}
        """Evaluations on further held-out sets, by label."""
        self.times: list[tuple[float, int]] = []
        """Clock and step after every step that this process made."""

    def before(self, run: Run) -> None:
        """Start from what the run directory holds, and print its notes."""
        self.title = f"{run.name} · {run.config['model']['name']} · {run.config['tasks']['name']}"
        self.start = run.start
        self.steps = run.steps or 0
        self.size = run.config.get("sampling", {}).get("size", 0)
        self.known = len(run.metric_lines)
        self.metrics = list(run.metric_lines)
        self.evaluations = heldout(run)
        self.sets = heldout_sets(run)
        if not self.is_quiet and not self.known:  # who resumes a run has named it
            # A warm start and a replay are named after what they are of.
            name = re.sub(r"-\d+$", "", run.name) if run.info.get("kind") else run.config["name"]
            self.say(f"Recording to {describe_location(run.path, name)}")
        for note in run.info.get("notes", ()):
            self.say(f"note: {note}")
        if not self.is_quiet and (epochs := count_epochs(run)):
            self.say(epochs)

    def step(self, record: StepRecord) -> None:
        """Add a step."""
        if record.metrics:
            self.metrics.append(record.metrics)
        if record.evaluation is not None:
            self.evaluations.append(_summary(record.evaluation))
        for label, held in record.sets.items():
            self.sets.setdefault(label, []).append(_summary(held))
        self.times.append((self.clock(), self.last_step))

    def note_slow_steps(self) -> None:
        """Print one line per slow period: steps that take much longer, and not because they sampled
        more tokens.
        """
        timed = [
            line for line in self.metrics[self.known :] if line.get("seconds/step") is not None
        ]
        last = timed[-SLOW_STEPS:]
        before = timed[-SLOW_STEPS - RECENT_STEPS : -SLOW_STEPS]
        if len(before) < MIN_STEPS:
            return
        seconds = median(line["seconds/step"] for line in before)
        tokens = median(map(self._sampled, before)) or 1.0
        times = [
            line["seconds/step"] / seconds / max(1.0, self._sampled(line) / tokens) for line in last
        ]
        is_slow = min(times) > SLOW_RATIO and last[-1]["seconds/step"] > SLOW_SECONDS
        if is_slow and not self.is_slow:
            cores = count_cores()
            load = os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0
            why = (
                f" {load:.0f} processes compete for {plural(cores, 'core')}."
                if load > cores + 1
                else ""
            )
            if why and "OMP_WAIT_POLICY" not in os.environ:
                # Not set for everybody: on quiet cores it slows small models.
                why += " OMP_WAIT_POLICY=PASSIVE keeps threads that wait from taking them."
            took = duration(last[-1]["seconds/step"])
            usual = duration(seconds)
            self.say(f"note: step {self.last_step} took {took}; {usual} is usual.{why}")
        self.is_slow = is_slow

    def _sampled(self, line: Mapping[str, Any]) -> float:
        """Return how many tokens a step sampled, with groups that were replaced; 0 where it is
        unknown.
        """
        rollouts = (
            line.get("sampling/rollouts/count", 0)
            + line.get("sampling/resampled/groups", 0) * self.size
        )
        return float(rollouts * (line.get("sampling/length/mean") or 0.0))

    def after(self, run: Run) -> None:
        """Print held-out accuracy before and after, and the run's path."""
        for name, evaluations in {"Held-out accuracy": self.evaluations, **self.sets}.items():
            held = "not evaluated"
            if evaluations:
                before, after = self.accuracies(evaluations)
                start = f"{_accuracy(before)} before" if before else "not evaluated before"
                end = (
                    f"{_accuracy(after)} after step {after.step}"
                    if after
                    else "not evaluated after"
                )
                held = f"{start}, {end}; {evaluations[-1].tasks} tasks, 95% intervals"
            self.say(f"{name}: {held}.")
        self.say(f"Run: {run.path}")

    @property
    def last_step(self) -> int:
        """Last step done."""
        return int(self.metrics[-1]["step"]) if self.metrics else self.start

    def accuracies(
        self, evaluations: Sequence[HeldoutSummary]
    ) -> tuple[HeldoutSummary | None, HeldoutSummary | None]:
        """Evaluation before the first step, and the last one of a trained model."""
        return before_and_after(evaluations, self.start)

    @property
    def time_left(self) -> str:
        """Estimated time for the rest; empty until two steps have been timed, and at the end."""
        # Counted from the first evaluation or step of this process: loading the model says nothing
        # about the pace.
        (start, first), (now, step) = (
            (self.times[0], self.times[-1]) if self.times else ((0.0, 0), (0.0, 0))
        )
        if step <= first or step >= self.steps:
            return ""
        pace = (now - start) / (step - first)
        return f"{duration(max(0.0, pace * (self.steps - step) - (self.clock() - now)))} left"

    def figure(self, key: str) -> str:
        """Format a metric's last value; dead groups with the end at which their rewards lie."""
        last = self.metrics[-1] if self.metrics else {}
        if key != "advantage/dead/share":
            return number(last.get(key))
        share, low, high = (
            percent(last.get(f"advantage/{end}/share"), 0)
            for end in ("dead", "dead_low", "dead_high")
        )
        return f"{share} ({low} low, {high} high)"


def _accuracy(held: HeldoutSummary) -> str:
    return estimate(held.accuracy, held.low, held.high)


def _summary(e: Evaluation) -> HeldoutSummary:
    return HeldoutSummary(e.step, e.accuracy, e.low, e.high, e.correct, e.tasks)


class LineView(QuietView):
    """View that prints one line per step, at most one per second, and one per evaluation."""

    is_quiet = False
    printed: float | None = None
    """Clock of the last line."""

    def step(self, record: StepRecord) -> None:
        super().step(record)
        self.note_slow_steps()
        # Tiny models do dozens of steps per second: a log of every one would be slower than the
        # training.
        is_due = self.printed is None or self.clock() - self.printed >= 1
        if record.metrics and (
            is_due or record.step >= self.steps or record.evaluation is not None
        ):
            self.printed = self.clock()
            line = f"step {self.last_step}/{self.steps}"
            for key, name in shown_metrics("terminal").items():
                line += (
                    f"  {name} {self.figure(key)}" if record.metrics.get(key) is not None else ""
                )
            seconds = duration(record.metrics.get("seconds/step"))
            self.say(f"{line}  {seconds} per step  {self.time_left}".rstrip())
        if record.evaluation is not None:
            for name, (*_, held) in {"held-out": self.evaluations, **self.sets}.items():
                self.say(
                    f"{name} after step {held.step}: {_accuracy(held)} of {held.tasks} tasks, 95%"
                    " interval"
                )


class LiveView(QuietView):
    """Panel that redraws itself, for terminals of 60 to 120 columns."""

    is_quiet = False

    def before(self, run: Run) -> None:
        super().before(run)
        self._live = Live(get_renderable=self.draw, console=self.console, refresh_per_second=4)
        self._live.start(refresh=True)

    def step(self, record: StepRecord) -> None:
        super().step(record)
        self.note_slow_steps()
        self._live.refresh()

    def after(self, run: Run) -> None:
        self._live.stop()
        super().after(run)

    def draw(self) -> Panel:
        """Draw the run as it is now: progress, then figures with their curves."""
        width = min(self.console.width, 120)
        state = self.time_left
        if self.last_step == self.start:
            state = "first step" if self.evaluations else "evaluating"
        progress = Table.grid(padding=(0, 2, 0, 0), expand=True)
        progress.add_column(ratio=1)
        progress.add_row(
            ProgressBar(max(self.steps, 1), self.last_step),
            f"{self.last_step}/{self.steps}  {state}",
        )
        return Panel(
            Group(progress, self._figures(width - 4)),
            title=Text(self.title),
            title_align="left",
            width=width,
        )

    def _figures(self, width: int) -> Table:
        curves: list[Curve] = [
            (name, self.figure(key), [line.get(key) for line in self.metrics], key)
            for key, name in shown_metrics("terminal").items()
        ]
        held = list[Curve]()
        for name, evaluations in {"held-out": self.evaluations, **self.sets}.items():
            before, after = self.accuracies(evaluations)
            start = f"{percent(before.accuracy)} → " if before and after else ""
            last = after or before
            value = f"{start}{_accuracy(last)}" if last else ""
            held.append((name, value, [e.accuracy for e in evaluations], "eval/accuracy"))
        curves[2:2] = held  # after the reward
        rows = []
        for name, value, values, metric in curves:
            if any(each is not None for each in values):
                line = sparkline(
                    values, max(1, width - NAME_WIDTH - VALUE_WIDTH - 4), metric=metric
                )
                rows.append(
                    (f"{name:{NAME_WIDTH}}", Text(f"{value:<{VALUE_WIDTH}} ").append(line, "cyan"))
                )
        if seconds := phases(self.metrics[-RECENT_STEPS:]):
            rows.append(
                ("step time", Text(phase_shares(seconds), overflow="ellipsis", no_wrap=True))
            )
        return columns(rows=rows)


def print_preflight(report: "Preflight | None") -> None:
    """Print on stderr that the cheap probes begin (None), or what they found."""
    if report is None:
        print("preflight: probing model, tasks and reward before the first step…", file=sys.stderr)
        return
    asked = f"{plural(report.asked, 'probe')}{failures(report)}"
    print(f"preflight: {report.count} by {asked}, {duration(report.seconds)}", file=sys.stderr)
    for result in report.failed:
        print(result_line(result).plain, file=sys.stderr)
    for line in finding_lines([f for f in report.findings if f.severity != Severity.NOTE]):
        print(line.plain, file=sys.stderr)


def failures(report: "Preflight") -> str:
    """Format the number of probes that failed, to follow the number that were asked."""
    return f", {len(report.failed)} failed" if report.failed else ""


def result_line(result: "Result") -> Text:
    """Format what a probe found, in one line."""
    if result.error:
        return Text(f"! {result.name:14}failed: {result.error}", "bold red")
    if result.skipped:
        return Text(f"– {result.name:14}not asked: {result.skipped}", "dim")
    mark = ("✓ ", "green") if result.ok else ("✗ ", "bold red")
    return Text.assemble(
        mark, f"{result.name:14}", result.figure, (f"  {duration(result.seconds)}", "dim")
    )


def finding_lines(findings: Sequence[Finding]) -> Iterator[Text]:
    """Format findings with their evidence and fix."""
    for finding in findings:
        yield Text.assemble(
            "\n", (f"{finding.severity.value}  {finding.id}", FINDING_STYLES[finding.severity])
        )
        yield Text(f"  {finding.summary}")
        for evidence in finding.evidence:
            yield Text(
                f"  · {evidence.text}"
                + (f" (rollout {evidence.rollout})" if evidence.rollout else "")
            )
        if finding.explains:
            yield Text(f"  also explains: {', '.join(f.id for f in finding.explains)}")
        if finding.fix is not None and finding.fix.sentence:
            yield Text(f"  fix: {finding.fix.sentence}")
        for key, value in (finding.fix.changes.get("uptrend", {}) if finding.fix else {}).items():
            yield Text(f"       --set {key}={to_toml(value) if isinstance(value, bool) else value}")
        yield Text(f"  {finding.page}")
