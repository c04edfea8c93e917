"""Observers that show a run in the terminal: a live panel, plain lines, or only the end."""

import time
from collections.abc import Callable

from rich.console import Console
from rich.live import Live

from uptrend.cli.panel import RunPanel
from uptrend.cli.progress import RunProgress
from uptrend.records import Run
from uptrend.stats.formatting import duration, number, percent
from uptrend.training.observer import StepRecord


def choose_view(quiet: bool, is_terminal: bool) -> "QuietView":
    """The view for a terminal, for a file or pipe, or for somebody who wants none."""
    if quiet:
        return QuietView()
    return LiveView() if is_terminal else LineView()


class QuietView:
    """Nothing but the final lines."""

    def __init__(self, console: Console | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self.console = console or Console(highlight=False)
        self.progress = RunProgress(clock)

    def before(self, run: Run) -> None:
        """Take in what the run directory holds, and pass on what its maker wants known."""
        self.progress.begin(run)
        for note in run.info.get("notes", ()):
            self.say(f"note: {note}")

    def step(self, record: StepRecord) -> None:
        """Take in a step."""
        self.progress.add(record)

    def after(self, run: Run) -> None:
        """Say how it went, and where it lies."""
        for line in (result(self.progress), f"Run: {run.path}"):
            self.say(line)

    def say(self, line: str) -> None:
        """One plain line, however long."""
        self.console.print(line, soft_wrap=True, markup=False, highlight=False)


class LineView(QuietView):
    """One line a step, at most one a second; evaluations on their own line."""

    def __init__(self, console: Console | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(console, clock)
        self._said_at: float | None = None
        self._said_step = 0

    def step(self, record: StepRecord) -> None:
        """Say it, unless the last line is younger than a second."""
        super().step(record)
        due = self._said_at is None or self.progress.clock() - self._said_at >= 1
        last = record.step >= self.progress.steps
        if record.metrics and (due or last or record.evaluation is not None):
            self._say_step()
        if record.evaluation is not None:
            held = self.progress.evaluations[-1]
            self.say(f"held-out after step {held.step}: {held} of {held.tasks} tasks, 95% interval")

    def after(self, run: Run) -> None:
        """Say the last step, if it was passed over, then the end."""
        if self.progress.step > self._said_step and self._said_at is not None:
            self._say_step()
        super().after(run)

    def _say_step(self) -> None:
        self._said_at, self._said_step = self.progress.clock(), self.progress.step
        self.say(step_line(self.progress))


class LiveView(QuietView):
    """A panel that redraws itself."""

    def before(self, run: Run) -> None:
        """Draw the panel."""
        super().before(run)
        panel = RunPanel(self.progress)
        self._live = Live(panel, console=self.console, refresh_per_second=4)
        self._live.start()

    def step(self, record: StepRecord) -> None:
        """Draw it anew."""
        super().step(record)
        self._live.refresh()

    def after(self, run: Run) -> None:
        """Leave the last panel standing, and say the end."""
        self._live.stop()
        super().after(run)


WORDS = {
    "loss": "warmstart/loss/mean",
    "reward": "reward/mean",
    "length": "sampling/length/mean",
    "kl": "kl/reference/mean",
    "entropy": "learner/entropy/mean",
    "gradient": "gradient/norm/before",
}


def step_line(progress: RunProgress) -> str:
    """The last step in one line."""
    words = [f"step {progress.step}/{progress.steps}"]
    for word, key in WORDS.items():
        if (value := progress.last(key)) is not None:
            words.append(f"{word} {number(value)}")
    if (dead := progress.last("advantage/dead/share")) is not None:
        low, high = (percent(progress.last(f"advantage/dead_{end}/share"), 0) for end in ("low", "high"))
        words.append(f"dead {percent(dead, 0)} (low {low}, high {high})")
    if (seconds := progress.last("seconds/step")) is not None:
        words.append(f"{duration(seconds)} a step")
    if (left := progress.seconds_left) is not None and progress.step < progress.steps:
        words.append(f"{duration(left)} left")
    return "  ".join(words)


def result(progress: RunProgress) -> str:
    """Held-out accuracy before and after, with 95% intervals."""
    before, after = progress.before, progress.after
    if before is None and after is None:
        return "Held-out accuracy: not evaluated."
    start = f"{before} before" if before else "not evaluated before"
    end = f"{after} after step {after.step}" if after else "not evaluated after"
    tasks = (after or before or progress.evaluations[0]).tasks
    return f"Held-out accuracy: {start}, {end}; {tasks} tasks, 95% intervals."
