"""Views of a run (live panel, lines, or only the outcome) and of an experiment (lines, and a live table)."""

import os
import re
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from statistics import fmean, median
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from uptrend.cli.console import columns, phase_shares, sparkline
from uptrend.lab.journal.verdicts import level
from uptrend.lab.measure import measure
from uptrend.lab.plan import PlannedRun
from uptrend.lab.workers import Outcome, Progress
from uptrend.present.formatting import duration, estimate, number, percent, plural
from uptrend.records import Evaluation, Run, UptrendError
from uptrend.records.directory import place_in_words
from uptrend.records.machine import count_cores
from uptrend.records.metrics import figures
from uptrend.records.summary import HeldoutSummary, before_and_after, heldout, heldout_sets, phases
from uptrend.runner.log import count_epochs
from uptrend.training.observer import Observer, StepRecord, Stop

Curve = tuple[str, str, list[float | None], str]
NAME, VALUE = 11, 25
"""Widths of the panel's first two columns; the curves have the rest."""
RECENT = 20
"""Steps over which the time by phase is averaged, and which a slow step is compared with."""
SLOW, SLOW_STEPS, SLOW_SECONDS, ENOUGH = 3.0, 2, 1.0, 5
"""Slow steps: times the usual, how many in a row, their least seconds, and earlier steps that show what is usual."""


def choose_view(quiet: bool, is_terminal: bool) -> "QuietView":
    """Return the view for a terminal, for a file or pipe, or for nobody."""
    if quiet:
        return QuietView()
    return LiveView() if is_terminal else LineView()


class InterruptObserver(Observer):
    """Observer that stops the run after the step during which the user pressed Ctrl-C."""

    is_asked = False

    def interrupt(self, *_: object) -> None:
        """Handle SIGINT: the first waits for the step, the second does not."""
        if self.is_asked:
            raise KeyboardInterrupt
        self.is_asked = True
        with suppress(RuntimeError):  # the signal came while this very stream was being written
            print("Stopping after this step; Ctrl-C again ends at once.", file=sys.stderr, flush=True)

    def before(self, run: Run) -> None: ...

    def after(self, run: Run) -> None: ...

    def step(self, record: StepRecord | None) -> Stop | None:  # noqa: ARG002 (an observer's signature)
        """Stop if asked to."""
        return Stop("interrupted by the user", by="user") if self.is_asked else None


@contextmanager
def stop_on_interrupt() -> Iterator[InterruptObserver]:
    """Treat Ctrl-C as a request to stop after the step."""
    observer = InterruptObserver()
    before = signal.signal(signal.SIGINT, observer.interrupt)
    try:
        yield observer
    finally:
        signal.signal(signal.SIGINT, before)


class View:
    """Prints plain lines."""

    def __init__(self, console: Console) -> None:
        self.console = console

    def say(self, line: str) -> None:
        """Print a plain line, however long."""
        self.console.print(line, soft_wrap=True, markup=False, highlight=False)


class QuietView(View):
    """View that prints only the outcome; the others add to it."""

    title, start, steps, size = "", 0, 0, 0
    known = 0
    """Steps of the run that this process did not make."""
    is_slow, is_quiet = False, True

    def __init__(self, console: Console | None = None, clock: Callable[[], float] = time.monotonic) -> None:
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
        self.start, self.steps = run.start, run.steps or 0
        self.size, self.known = run.config.get("sampling", {}).get("size", 0), len(run.metric_lines)
        self.metrics, self.evaluations, self.sets = list(run.metric_lines), heldout(run), heldout_sets(run)
        if not self.is_quiet and not self.known:  # who resumes a run has named it
            # A warm start and a replay are named after what they are of.
            name = re.sub(r"-\d+$", "", run.name) if run.info.get("kind") else run.config["name"]
            self.say(f"Recording to {place_in_words(run.path, name)}")
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
        """Print one line per slow period: steps that take much longer, and not because they sampled more tokens."""
        timed = [line for line in self.metrics[self.known :] if line.get("seconds/step") is not None]
        last, before = timed[-SLOW_STEPS:], timed[-SLOW_STEPS - RECENT : -SLOW_STEPS]
        if len(before) < ENOUGH:
            return
        seconds, tokens = median(line["seconds/step"] for line in before), median(map(self._sampled, before)) or 1.0
        times = [line["seconds/step"] / seconds / max(1.0, self._sampled(line) / tokens) for line in last]
        is_slow = min(times) > SLOW and last[-1]["seconds/step"] > SLOW_SECONDS
        if is_slow and not self.is_slow:
            cores = count_cores()
            load = os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0
            why = f" {load:.0f} processes compete for {plural(cores, 'core')}." if load > cores + 1 else ""
            if (
                why and "OMP_WAIT_POLICY" not in os.environ
            ):  # not set for everybody: on quiet cores it slows small models
                why += " OMP_WAIT_POLICY=PASSIVE keeps threads that wait from taking them."
            took, usual = duration(last[-1]["seconds/step"]), duration(seconds)
            self.say(f"note: step {self.last_step} took {took}; {usual} is usual.{why}")
        self.is_slow = is_slow

    def _sampled(self, line: Mapping[str, Any]) -> float:
        """Return how many tokens a step sampled, with groups that were replaced; 0 where it is unknown."""
        rollouts = line.get("sampling/rollouts/count", 0) + line.get("sampling/resampled/groups", 0) * self.size
        return float(rollouts * (line.get("sampling/length/mean") or 0.0))

    def after(self, run: Run) -> None:
        """Print held-out accuracy before and after, and the run's path."""
        for name, evaluations in {"Held-out accuracy": self.evaluations, **self.sets}.items():
            held = "not evaluated"
            if evaluations:
                before, after = self.accuracies(evaluations)
                start = f"{_accuracy(before)} before" if before else "not evaluated before"
                end = f"{_accuracy(after)} after step {after.step}" if after else "not evaluated after"
                held = f"{start}, {end}; {evaluations[-1].tasks} tasks, 95% intervals"
            self.say(f"{name}: {held}.")
        self.say(f"Run: {run.path}")

    @property
    def last_step(self) -> int:
        """Last step done."""
        return int(self.metrics[-1]["step"]) if self.metrics else self.start

    def accuracies(self, evaluations: Sequence[HeldoutSummary]) -> tuple[HeldoutSummary | None, HeldoutSummary | None]:
        """Evaluation before the first step, and the last one of a trained model."""
        return before_and_after(evaluations, self.start)

    @property
    def time_left(self) -> str:
        """Estimated time for the rest; empty until two steps have been timed, and at the end."""
        # Counted from the first evaluation or step of this process: loading the model says nothing about the pace.
        (start, first), (now, step) = (self.times[0], self.times[-1]) if self.times else ((0.0, 0), (0.0, 0))
        if step <= first or step >= self.steps:
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
        # Tiny models do dozens of steps per second: a log of every one would be slower than the training.
        is_due = self.printed is None or self.clock() - self.printed >= 1
        if record.metrics and (is_due or record.step >= self.steps or record.evaluation is not None):
            self.printed = self.clock()
            line = f"step {self.last_step}/{self.steps}"
            for key, name in figures("terminal").items():
                line += f"  {name} {self.figure(key)}" if record.metrics.get(key) is not None else ""
            self.say(f"{line}  {duration(record.metrics.get('seconds/step'))} per step  {self.time_left}".rstrip())
        if record.evaluation is not None:
            for name, (*_, held) in {"held-out": self.evaluations, **self.sets}.items():
                self.say(f"{name} after step {held.step}: {_accuracy(held)} of {held.tasks} tasks, 95% interval")


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
        progress.add_row(ProgressBar(max(self.steps, 1), self.last_step), f"{self.last_step}/{self.steps}  {state}")
        return Panel(Group(progress, self._figures(width - 4)), title=Text(self.title), title_align="left", width=width)

    def _figures(self, width: int) -> Table:
        curves: list[Curve] = [
            (name, self.figure(key), [line.get(key) for line in self.metrics], key)
            for key, name in figures("terminal").items()
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
                line = sparkline(values, max(1, width - NAME - VALUE - 4), metric=metric)
                rows.append((f"{name:{NAME}}", Text(f"{value:<{VALUE}} ").append(line, "cyan")))
        if seconds := phases(self.metrics[-RECENT:]):
            rows.append(("step time", Text(phase_shares(seconds), overflow="ellipsis", no_wrap=True)))
        return columns(rows=rows)


@dataclass(frozen=True)
class Board:
    """Runs that are shown together: those of a hypothesis, or of a sweep."""

    title: str
    metric: str
    planned_runs: Sequence[PlannedRun]
    refused: Mapping[str, str] = field(default_factory=dict)
    """Refused arms with the reason; grows during the experiment."""


class LabView(View, Progress):
    """One line for every run that starts or ends; in a terminal, a live table under them."""

    def __init__(self, boards: Sequence[Board], console: Console) -> None:
        super().__init__(console)
        self.boards = boards
        self.running: set[str] = set()
        self.outcomes: dict[str, Outcome] = {}
        self.values: dict[tuple[str, str], float] = {}
        self.seconds: list[float] = []
        self.most_at_once = 0
        self._live = Live(get_renderable=self.draw, console=console, refresh_per_second=2)

    def __enter__(self) -> "LabView":
        if self.console.is_terminal:
            self._live.start(refresh=True)
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    def began(self, planned: PlannedRun, note: str = "") -> None:
        self.running.add(planned.hash)
        self.most_at_once = max(self.most_at_once, len(self.running))
        self.say(f"{self._name(planned)}: begun{f' ({note})' if note else ''}")

    def tick(self) -> None: ...

    def ended(self, outcome: Outcome) -> None:
        """Print how a run ended, its value, and what is left."""
        planned = outcome.planned
        self.running.discard(planned.hash)
        self.outcomes[planned.hash] = outcome
        if outcome.seconds is not None and outcome.status == "finished":
            self.seconds.append(outcome.seconds)
        line = f"{self._name(planned)}: {'there already' if outcome.was_there else outcome.status}"
        for board in [board for board in self.boards if any(own.hash == planned.hash for own in board.planned_runs)]:
            if outcome.status == "finished":
                self.values[board.title, planned.hash] = _measured(planned, board.metric)
            line += f", {board.metric} {level(board.metric, self.values.get((board.title, planned.hash)))}"
        line += "" if outcome.seconds is None else f", {duration(outcome.seconds)}"
        line += f": {outcome.reason}" if outcome.reason else ""
        self.say(f"{line}  [{self.progress()}]")

    def progress(self) -> str:
        """Format the number of finished runs and the time left at the present pace."""
        runs = {e.hash: e for board in self.boards for e in board.planned_runs if e.arm not in board.refused}
        left = [planned for hash, planned in runs.items() if hash not in self.outcomes]
        text = f"{len(runs) - len(left)} of {len(runs)} runs"
        if self.seconds and left:
            work = sum(1 - _share_done(planned) if planned.hash in self.running else 1.0 for planned in left)
            # Runs side by side share the work; towards the end there are fewer than could run.
            at_once = max(1, min(self.most_at_once, len(left)))
            text += f", about {duration(work * fmean(self.seconds) / at_once)} left"
        return text

    def draw(self) -> Group:
        """Draw one table per board: arms with the value of every seed and their mean."""
        # A terminal cuts off what is too high for it: tables that are done make room for the others.
        going = [b for b in self.boards if any(e.hash not in self.outcomes for e in b.planned_runs)]
        return Group(*(self._table(board) for board in going or self.boards), Text(self.progress(), "dim"))

    def _table(self, board: Board) -> Table:
        rows = []
        for arm in dict.fromkeys(planned.arm for planned in board.planned_runs):
            runs = [planned for planned in board.planned_runs if planned.arm == arm]
            known = [self.values[board.title, e.hash] for e in runs if (board.title, e.hash) in self.values]
            cells = Text("  ").join(self._cell(board, planned) for planned in runs)  # wraps where it is too long
            rows.append((arm, cells, Text(level(board.metric, fmean(known)) if known else "", "bold")))
        table = columns("arm", "by seed", "mean", rows=rows, right=["mean"])
        table.title, table.title_justify, table.title_style = board.title, "left", "bold"
        return table

    def _cell(self, board: Board, planned: PlannedRun) -> Text:
        if (board.title, planned.hash) in self.values:
            return Text(level(board.metric, self.values[board.title, planned.hash]), "green")
        if planned.hash in self.running:
            return Text(percent(_share_done(planned), 0), "cyan")
        if planned.arm in board.refused:
            return Text("refused", "red")
        outcome = self.outcomes.get(planned.hash)
        return Text("·", "dim") if outcome is None else Text(outcome.status, "red")

    def _name(self, planned: PlannedRun) -> str:
        own = [(board, e) for board in self.boards for e in board.planned_runs if e.hash == planned.hash]
        titles = ", ".join(f"{board.title.partition(' ')[0]} {e.arm}" for board, e in own)
        return f"{titles}, seed {planned.seed}"


def _share_done(planned: PlannedRun) -> float:
    try:
        lines = (planned.folder / "metrics.jsonl").read_bytes().count(b"\n")
    except OSError:
        return 0.0
    return lines / max(1, int(planned.config["learning"]["steps"]))


def _measured(planned: PlannedRun, metric: str) -> float:
    try:
        return measure(Run(planned.folder), metric, planned.arm, planned.seed, planned.folder).value
    except UptrendError:
        return float("nan")  # the verdict says what is wrong with it
