"""Observers that show a run in the terminal: a live panel, plain lines, or only the outcome."""

import time
from collections.abc import Callable
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from uptrend.cli.console import columns, phase_shares, sparkline
from uptrend.cli.summary import HeldOutSummary, held_out, phases
from uptrend.records import Run
from uptrend.stats.formatting import duration, number, percent
from uptrend.training.observer import StepRecord

FIGURES = {
    "loss": "warmstart/loss/mean",
    "reward": "reward/mean",
    "dead groups": "advantage/dead/share",
    "length": "sampling/length/mean",
    "KL": "kl/reference/mean",
    "entropy": "learner/entropy/mean",
    "gradient": "gradient/norm/before",
}
NAME, VALUE = 11, 25
"""Widths of the panel's first two columns; the curves have the rest."""
RECENT = 20
"""Steps over which the time by phase is averaged."""


def choose_view(quiet: bool, is_terminal: bool) -> "QuietView":
    """Return the view for a terminal, for a file or pipe, or for nobody."""
    if quiet:
        return QuietView()
    return LiveView() if is_terminal else LineView()


class QuietView:
    """View that prints only the outcome; the others add to it."""

    def __init__(self, console: Console | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self.console = console or Console(highlight=False)
        self.clock = clock
        self.title, self.start, self.steps = "", 0, 0
        self.metrics: list[dict[str, Any]] = []
        self.evaluations: list[HeldOutSummary] = []
        self.times: list[tuple[float, int]] = []
        """Clock and step after every step that this process made."""

    def before(self, run: Run) -> None:
        """Start from what the run directory holds, and print its notes."""
        self.title = f"{run.name} · {run.config['model']['name']} · {run.config['tasks']['name']}"
        self.start, self.steps = run.start, run.steps or 0
        self.metrics, self.evaluations = list(run.metric_lines), held_out(run)
        for note in run.info.get("notes", ()):
            self.say(f"note: {note}")

    def step(self, record: StepRecord) -> None:
        """Add a step."""
        if record.metrics:
            self.metrics.append(record.metrics)
        if record.evaluation is not None:
            self.evaluations.append(
                HeldOutSummary.of({**vars(record.evaluation), "accuracy": record.evaluation.accuracy})
            )
        self.times.append((self.clock(), self.last_step))

    def after(self, run: Run) -> None:
        """Print held-out accuracy before and after, and the run's path."""
        before, after = self.accuracies
        if before is None and after is None:
            self.say("Held-out accuracy: not evaluated.")
        else:
            start = f"{before} before" if before else "not evaluated before"
            end = f"{after} after step {after.step}" if after else "not evaluated after"
            self.say(f"Held-out accuracy: {start}, {end}; {self.evaluations[-1].tasks} tasks, 95% intervals.")
        self.say(f"Run: {run.path}")

    def say(self, line: str) -> None:
        """Print a plain line, however long."""
        self.console.print(line, soft_wrap=True, markup=False, highlight=False)

    @property
    def last_step(self) -> int:
        """Last step done."""
        return int(self.metrics[-1]["step"]) if self.metrics else self.start

    @property
    def accuracies(self) -> tuple[HeldOutSummary | None, HeldOutSummary | None]:
        """Evaluation before the first step, and the last one of a trained model."""
        before = next((e for e in self.evaluations if e.step == self.start), None)
        return before, next((e for e in reversed(self.evaluations) if e.step > self.start), None)

    @property
    def time_left(self) -> str:
        """Estimated time for the rest; empty until two steps have been timed, and at the end."""
        if not self.times or self.last_step >= self.steps:
            return ""
        # Counted from the first evaluation or step of this process: loading the model says nothing about the pace.
        (start, first), (now, step) = self.times[0], self.times[-1]
        if step <= first:
            return ""
        pace = (now - start) / (step - first)
        return f"{duration(max(0.0, pace * (self.steps - step) - (self.clock() - now)))} left"

    def figure(self, key: str) -> str:
        """Format a metric's last value; dead groups with the end at which their rewards lie."""
        last = self.metrics[-1] if self.metrics else {}
        if key != "advantage/dead/share":
            return number(last.get(key))
        share, low, high = (percent(last.get(f"advantage/{end}/share"), 0) for end in ("dead", "dead_low", "dead_high"))
        return f"{share} ({low} low, {high} high)"


class LineView(QuietView):
    """View that prints one line per step, at most one per second, and one per evaluation."""

    printed: tuple[float, int] | None = None
    """Clock and step of the last line."""

    def step(self, record: StepRecord) -> None:
        """Print the step, unless the last line is younger than a second."""
        super().step(record)
        # Tiny models do dozens of steps per second: a log of every one would be slower than the training.
        is_due = self.printed is None or self.clock() - self.printed[0] >= 1
        if record.metrics and (is_due or record.step >= self.steps or record.evaluation is not None):
            self._print_step()
        if record.evaluation is not None:
            held = self.evaluations[-1]
            self.say(f"held-out after step {held.step}: {held} of {held.tasks} tasks, 95% interval")

    def after(self, run: Run) -> None:
        """Print the last step if it was passed over, then the outcome."""
        if self.printed is not None and self.last_step > self.printed[1]:
            self._print_step()
        super().after(run)

    def _print_step(self) -> None:
        self.printed = self.clock(), self.last_step
        last = self.metrics[-1]
        parts = [f"step {self.last_step}/{self.steps}"]
        parts += [f"{name} {self.figure(key)}" for name, key in FIGURES.items() if last.get(key) is not None]
        if last.get("seconds/step") is not None:
            parts.append(f"{duration(last['seconds/step'])} per step")
        self.say("  ".join(filter(None, [*parts, self.time_left])))


class LiveView(QuietView):
    """Panel that redraws itself, for terminals of 60 to 120 columns."""

    def before(self, run: Run) -> None:
        """Draw the panel."""
        super().before(run)
        self._live = Live(get_renderable=self.draw, console=self.console, refresh_per_second=4)
        self._live.start(refresh=True)

    def step(self, record: StepRecord) -> None:
        """Draw it again."""
        super().step(record)
        self._live.refresh()

    def after(self, run: Run) -> None:
        """Leave the last panel, and print the outcome."""
        self._live.stop()
        super().after(run)

    def draw(self) -> Panel:
        """Draw the run as it is now."""
        width = min(self.console.width, 120)
        body = Group(self._progress(width - 4), self._figures(width - 4))
        return Panel(body, title=Text(self.title), title_align="left", width=width)

    def _progress(self, width: int) -> Table:
        state = self.time_left
        if self.last_step == self.start:
            state = "first step" if self.evaluations else "evaluating"
        text = f"{self.last_step}/{self.steps}  {state}".rstrip()
        bar = ProgressBar(total=max(self.steps, 1), completed=self.last_step, width=width - len(text) - 3)
        line = Table.grid(padding=(0, 2, 0, 0))
        line.add_row(bar, text)
        return line

    def _figures(self, width: int) -> Table:
        space = max(1, width - NAME - VALUE - 4)
        rows: list[tuple[str, Text]] = []
        for name, key in FIGURES.items():
            values = [line.get(key) for line in self.metrics]
            if any(value is not None for value in values):
                line = Text(f"{self.figure(key):<{VALUE}} ")
                rows.append((name, line.append(sparkline(values, space), "cyan")))
            if key == "reward/mean" and self.evaluations:
                rows.append(("held-out", self._held_out(space)))
        if seconds := phases(self.metrics[-RECENT:]):
            rows.append(("step time", Text(phase_shares(seconds), overflow="ellipsis", no_wrap=True)))
        return columns(rows=[(f"{name:{NAME}}", line) for name, line in rows])

    def _held_out(self, space: int) -> Text:
        before, after = self.accuracies
        text = Text(f"{percent(before.accuracy)} → " if before and after else "")
        has_risen = before and after and after.accuracy > before.accuracy
        text.append(str(after or before), "bold green" if has_risen else "bold")
        text.pad_right(VALUE + 1 - text.cell_len)
        return text.append(sparkline([e.accuracy for e in self.evaluations], space), "green")
