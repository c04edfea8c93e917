"""Views of a run in a terminal: a live panel, lines, or only the outcome; and the report of the
cheap probes.
"""

import os
import re
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
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
from uptrend.present.formatting import duration, estimate, number, percent, plural, visible
from uptrend.present.terminal import columns, phase_shares, sparkline
from uptrend.records import Evaluation, Finding, Fix, Run, Severity
from uptrend.records.directory import describe_location
from uptrend.records.machine import count_cores
from uptrend.records.metrics import shown_metrics
from uptrend.records.summary import HeldoutSummary, before_and_after, heldout, heldout_sets, phases
from uptrend.records.view import taskset_names
from uptrend.training.observer import StepRecord

if TYPE_CHECKING:
    from uptrend.doctor.probes.probe import Result
    from uptrend.runner.preflight import Preflight

# Widths of the panel's first two columns, and of the gaps between three; the curves have the rest.
NAME_WIDTH = 11
VALUE_WIDTH = 25
GAPS_WIDTH = 4
# Width of the panel's border with its padding.
BORDER_WIDTH = 4
MAX_PANEL_WIDTH = 120
# Curves above those of held-out accuracy: the reward's.
CURVES_BEFORE_HELDOUT = 2
# Seconds between two lines of a run. Tiny models do dozens of steps per second: a log of every one
# would be slower than the training.
LINE_INTERVAL_S = 1.0
# Characters of the error of a failed rollout: file, line and message fit.
MAX_ERROR_CHARACTERS = 160
# Steps over which the time by phase is averaged, and which a slow step is compared with.
RECENT_STEPS = 20
# Steps are slow where this many in a row take this many times the usual, and more than this long;
# and fewer earlier steps than this don't say what is usual.
SLOW_RATIO = 3.0
SLOW_STEPS = 2
MIN_SLOW_STEP_S = 1.0
MIN_USUAL_STEPS = 5


def count_epochs(run: Run) -> str:
    """Describe how often a run plays each of its tasks, such as "40 examples, 4 per step, 10 steps
    per epoch, 20 epochs"; empty for a warm start and a replay.
    """
    if run.info.get("kind"):
        return ""
    tasks = run.info.get("tasks") or {}
    groups = run.config.get("sampling", {}).get("groups", 1)
    steps = run.steps or 0
    if "sources" not in tasks:
        return _count_epochs(tasks.get("stages", []), groups, steps)
    sentences: list[str] = []
    for source in tasks["sources"]:
        own_groups = groups * source["share"]
        sentences.append(f"{source['label']}: {_count_epochs(source['stages'], own_groups, steps)}")
    return "\n".join(sentences)


def _count_epochs(stages: Sequence[Mapping[str, Any]], groups: float, steps: int) -> str:
    """Describe how often the tasks of these stages are played, by groups per step."""
    if not stages:
        return ""
    starts = [stage["start"] for stage in stages]
    ends = [*starts[1:], steps + 1]
    sentences: list[str] = []
    for stage, end in zip(stages, ends, strict=True):
        # Tasks that are left at the end of an epoch are not drawn: no step repeats a task.
        epoch_steps = max(1, int(stage["count"] / groups))
        epochs = number(max(0, end - stage["start"]) / epoch_steps)
        start = f"from step {stage['start']} on " if sentences else ""
        sentences.append(
            f"{start}{plural(stage['count'], 'example')}, {number(groups)} per step,"
            f" {plural(epoch_steps, 'step')} per epoch,"
            f" {epochs} epoch{'' if epochs == '1' else 's'}"
        )
    return "; ".join(sentences)


def choose_view(quiet: bool, is_terminal: bool) -> "QuietView":
    """Return the view of the outcome alone, for a terminal, or for a file or pipe."""
    if quiet:
        return QuietView()
    if is_terminal:
        return LiveView()
    return LineView()


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
    group_size = 0
    n_earlier = 0
    """Number of steps of the run that an earlier process recorded."""
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
        """Clock and step after every step of this process."""
        self.errors: Counter[str] = Counter()
        """Number of failed rollouts by error; of those that no line has shown, where lines are
        printed.
        """

    def before(self, run: Run) -> None:
        """Start from what the run directory holds, and print its notes."""
        self.title = f"{run.name} · {run.config['model']['name']} · {taskset_names(run.config)}"
        self.start = run.start
        self.steps = run.steps or 0
        self.group_size = run.config.get("sampling", {}).get("size", 0)
        self.n_earlier = len(run.metric_lines)
        self.metrics = list(run.metric_lines)
        self.evaluations = heldout(run)
        self.sets = heldout_sets(run)
        # A user who resumes a run has named its directory.
        if not self.is_quiet and not self.n_earlier:
            name = run.config["name"]
            if run.info.get("kind"):  # a warm start or a replay is named after its source
                name = re.sub(r"-\d+$", "", run.name)
            self.say(f"Recording to {describe_location(run.path, name)}")
        for note in run.info.get("notes", ()):
            self.say(f"note: {note}")
        epochs = count_epochs(run)
        if epochs and not self.is_quiet:
            self.say(epochs)

    def step(self, record: StepRecord) -> None:
        """Add a step."""
        if record.metrics:
            self.metrics.append(record.metrics)
        # Reading a column of rollouts makes it: the count says if there is a failure to show.
        if record.metrics.get("sampling/failed/count"):
            errors = [rollout.error for rollout in record.rollouts]
            self.errors.update(error for error in errors if error is not None)
        if record.evaluation is not None:
            self.evaluations.append(_summary(record.evaluation))
        for label, evaluation in record.sets.items():
            self.sets.setdefault(label, []).append(_summary(evaluation))
        self.times.append((self.clock(), self.last_step))

    def note_slow_steps(self) -> None:
        """Print one line per slow period: steps that take much longer, and not because they sampled
        more tokens.
        """
        own_lines = self.metrics[self.n_earlier :]
        timed = [line for line in own_lines if line.get("seconds/step") is not None]
        last = timed[-SLOW_STEPS:]
        before = timed[-SLOW_STEPS - RECENT_STEPS : -SLOW_STEPS]
        if len(before) < MIN_USUAL_STEPS:
            return
        usual_seconds = median(line["seconds/step"] for line in before)
        usual_tokens = median(map(self._count_tokens, before)) or 1.0
        slowdowns = []
        for line in last:
            token_ratio = self._count_tokens(line) / usual_tokens
            slowdowns.append(line["seconds/step"] / usual_seconds / max(1.0, token_ratio))
        last_seconds = last[-1]["seconds/step"]
        is_slow = min(slowdowns) > SLOW_RATIO and last_seconds > MIN_SLOW_STEP_S
        if is_slow and not self.is_slow:
            self.say(
                f"note: step {self.last_step} took {duration(last_seconds)};"
                f" {duration(usual_seconds)} is usual.{_blame_load()}"
            )
        self.is_slow = is_slow

    def _count_tokens(self, line: Mapping[str, Any]) -> float:
        """Return the number of tokens that a step sampled, with groups that were replaced; 0 where
        it is unknown.
        """
        replaced_groups = line.get("sampling/resampled/groups", 0)
        rollouts = line.get("sampling/rollouts/count", 0) + replaced_groups * self.group_size
        return float(rollouts * (line.get("sampling/length/mean") or 0.0))

    def after(self, run: Run) -> None:
        """Print held-out accuracy before and after, and the run's path."""
        for name, evaluations in {"Held-out accuracy": self.evaluations, **self.sets}.items():
            if not evaluations:
                self.say(f"{name}: not evaluated.")
                continue
            before, after = self.accuracies(evaluations)
            start = "not evaluated before"
            if before:
                start = f"{_accuracy(before)} before"
            end = "not evaluated after"
            if after:
                end = f"{_accuracy(after)} after step {after.step}"
            tasks = evaluations[-1].tasks
            self.say(f"{name}: {start}, {end}; {tasks} tasks, 95% intervals.")
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
        if not self.times:
            return ""
        # Counted from the first evaluation or step of this process: loading the model says nothing
        # about the pace.
        start_time, start_step = self.times[0]
        step_time, step = self.times[-1]
        if step <= start_step or step >= self.steps:
            return ""
        pace = (step_time - start_time) / (step - start_step)
        since_step = self.clock() - step_time
        left = pace * (self.steps - step) - since_step
        return f"{duration(max(0.0, left))} left"

    @property
    def failures(self) -> str:
        """Number of failed rollouts, and the error of most of them; empty for none."""
        if not self.errors:
            return ""
        ((error, _),) = self.errors.most_common(1)
        text = visible(error)
        if len(text) > MAX_ERROR_CHARACTERS:
            text = f"{text[:MAX_ERROR_CHARACTERS]}…"
        return f"{self.errors.total()} ({text})"

    def figure(self, key: str) -> str:
        """Format a metric's last value; dead groups with the end at which their rewards lie."""
        last = self.metrics[-1] if self.metrics else {}
        if key != "advantage/dead/share":
            return number(last.get(key))
        share = percent(last.get("advantage/dead/share"), 0)
        low = percent(last.get("advantage/dead_low/share"), 0)
        high = percent(last.get("advantage/dead_high/share"), 0)
        return f"{share} ({low} low, {high} high)"


def _blame_load() -> str:
    """Return the sentence on a machine with more running processes than cores; empty otherwise."""
    cores = count_cores()
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0
    if load <= cores + 1:
        return ""
    sentence = f" {load:.0f} processes compete for {plural(cores, 'core')}."
    if "OMP_WAIT_POLICY" not in os.environ:
        # Advice, not a default: on quiet cores it slows small models.
        sentence += " OMP_WAIT_POLICY=PASSIVE keeps threads that wait from taking them."
    return sentence


def _accuracy(summary: HeldoutSummary) -> str:
    return estimate(summary.accuracy, summary.low, summary.high)


def _summary(evaluation: Evaluation) -> HeldoutSummary:
    return HeldoutSummary(
        evaluation.step,
        evaluation.accuracy,
        evaluation.low,
        evaluation.high,
        evaluation.correct,
        evaluation.tasks,
    )


class LineView(QuietView):
    """View that prints one line per step, at most one per second, and one per evaluation."""

    is_quiet = False
    line_time: float | None = None
    """Clock of the last line."""

    def step(self, record: StepRecord) -> None:
        super().step(record)
        self.note_slow_steps()
        is_due = self.line_time is None or self.clock() - self.line_time >= LINE_INTERVAL_S
        is_last = record.step >= self.steps
        if record.metrics and (is_due or is_last or record.evaluation is not None):
            self.line_time = self.clock()
            line = f"step {self.last_step}/{self.steps}"
            for key, name in shown_metrics("terminal", self.metrics).items():
                if record.metrics.get(key) is not None:
                    line += f"  {name} {self.figure(key)}"
            if self.failures:
                line += f"  failed {self.failures}"
                self.errors.clear()
            seconds = duration(record.metrics.get("seconds/step"))
            self.say(f"{line}  {seconds} per step  {self.time_left}".rstrip())
        if record.evaluation is not None:
            for name, evaluation in {"held-out": record.evaluation, **record.sets}.items():
                failed = f", {evaluation.failed} failed" if evaluation.failed else ""
                accuracy = _accuracy(_summary(evaluation))
                self.say(
                    f"{name} after step {evaluation.step}: {accuracy} of"
                    f" {evaluation.tasks} tasks, 95% interval{failed}"
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
        width = min(self.console.width, MAX_PANEL_WIDTH)
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
            Group(progress, self._figures(width - BORDER_WIDTH)),
            title=Text(self.title),
            title_align="left",
            width=width,
        )

    def _figures(self, width: int) -> Table:
        curves = self._metric_curves()
        curves[CURVES_BEFORE_HELDOUT:CURVES_BEFORE_HELDOUT] = self._heldout_curves()
        name_width = max(NAME_WIDTH, *(len(curve.name) for curve in curves))
        curve_width = max(1, width - name_width - VALUE_WIDTH - GAPS_WIDTH)
        rows = []
        for curve in curves:
            if all(value is None for value in curve.values):
                continue
            figure = Text(f"{curve.figure:<{VALUE_WIDTH}} ")
            line = sparkline(curve.values, curve_width, metric=curve.metric)
            rows.append((f"{curve.name:{name_width}}", figure.append(line, "cyan")))
        if self.failures:
            failed = Text(self.failures, "red", overflow="ellipsis", no_wrap=True)
            rows.append(("failed", failed))
        seconds = phases(self.metrics[-RECENT_STEPS:])
        if seconds:
            shares = Text(phase_shares(seconds), overflow="ellipsis", no_wrap=True)
            rows.append(("step time", shares))
        return columns(rows=rows)

    def _metric_curves(self) -> list["Curve"]:
        curves = []
        for key, name in shown_metrics("terminal", self.metrics).items():
            values = [line.get(key) for line in self.metrics]
            curves.append(Curve(name, self.figure(key), values, key))
        return curves

    def _heldout_curves(self) -> list["Curve"]:
        curves = []
        for name, evaluations in {"held-out": self.evaluations, **self.sets}.items():
            before, after = self.accuracies(evaluations)
            last = after or before
            figure = _accuracy(last) if last else ""
            if before and after:
                figure = f"{percent(before.accuracy)} → {figure}"
            accuracies: list[float | None] = [each.accuracy for each in evaluations]
            curves.append(Curve(name, figure, accuracies, "eval/accuracy"))
        return curves


@dataclass(frozen=True)
class Curve:
    """One row of the panel: a metric's name, its last figure and its course."""

    name: str
    figure: str
    values: list[float | None]
    metric: str


def print_preflight(report: "Preflight | None") -> None:
    """Print on stderr that the cheap probes begin (None), or their report."""
    if report is None:
        print("preflight: probing model, tasks and reward before the first step…", file=sys.stderr)
        return
    probes = f"{plural(report.n_completed, 'probe')}{failures(report)}"
    summary = f"preflight: {report.findings_in_words} by {probes}, {duration(report.seconds)}"
    print(summary, file=sys.stderr)
    for result in report.failed:
        print(result_line(result).plain, file=sys.stderr)
    alarms = [finding for finding in report.findings if finding.severity != Severity.NOTE]
    for line in finding_lines(alarms):
        print(line.plain, file=sys.stderr)


def failures(report: "Preflight") -> str:
    """Format the number of probes that failed, to follow the number of those that completed."""
    return f", {len(report.failed)} failed" if report.failed else ""


def result_line(result: "Result") -> Text:
    """Format the result of a probe in one line."""
    source = f"{result.source}: " if result.source else ""
    if result.error:
        return Text(f"! {result.name:14}{source}failed: {result.error}", "bold red")
    if result.skipped:
        return Text(f"– {result.name:14}{source}not asked: {result.skipped}", "dim")
    mark = ("✓ ", "green") if result.ok else ("✗ ", "bold red")
    return Text.assemble(
        mark, f"{result.name:14}", source, result.figure, (f"  {duration(result.seconds)}", "dim")
    )


def finding_lines(findings: Sequence[Finding]) -> Iterator[Text]:
    """Format findings with their evidence and fix."""
    for finding in findings:
        yield Text.assemble(
            "\n", (f"{finding.severity.value}  {finding.id}", FINDING_STYLES[finding.severity])
        )
        yield Text(f"  {finding.summary}")
        for evidence in finding.evidence:
            rollout = f" (rollout {evidence.rollout})" if evidence.rollout else ""
            yield Text(f"  · {evidence.text}{rollout}")
        if finding.explains:
            symptoms = ", ".join(symptom.id for symptom in finding.explains)
            yield Text(f"  also explains: {symptoms}")
        if finding.fix is not None:
            yield from _fix_lines(finding.fix)
        yield Text(f"  {finding.page}")


def _fix_lines(fix: Fix) -> Iterator[Text]:
    if fix.sentence:
        yield Text(f"  fix: {fix.sentence}")
    for key, value in fix.changes.get("uptrend", {}).items():
        text = to_toml(value) if isinstance(value, bool) else value
        yield Text(f"       --set {key}={text}")
