"""How an experiment goes, in the terminal: a table that redraws itself, or plain lines where there is none."""

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from uptrend.lab.journal.verdicts import level
from uptrend.lab.measure import measure
from uptrend.lab.plan import PlannedRun
from uptrend.lab.workers.work import Outcome
from uptrend.records import Run, UptrendError
from uptrend.stats.formatting import duration, percent

CELL = 7
"""Columns of the terminal that a seed takes."""
MOST = 4
"""Tables that are shown at once; of more, those that are done make way."""


@dataclass(frozen=True)
class Board:
    """What is shown together: the runs of one hypothesis, or of a sweep."""

    title: str
    """What it is about."""
    metric: str
    """What its runs are compared by."""
    planned_runs: Sequence[PlannedRun]
    """Its runs."""
    refused: Mapping[str, str] = field(default_factory=dict)
    """Arms that were refused; grows as the work goes on."""

    @property
    def arms(self) -> list[str]:
        """In their order."""
        return list(dict.fromkeys(planned.arm for planned in self.planned_runs))


class LabLineView:
    """One line for each thing that happens."""

    def __init__(self, boards: Sequence[Board], console: Console, clock: Callable[[], float] = time.monotonic) -> None:
        self.boards, self.console, self.clock = boards, console, clock
        self.running: dict[str, float] = {}
        self.outcomes: dict[str, Outcome] = {}
        self.values: dict[tuple[str, str], float] = {}
        self.seconds: list[float] = []
        self.most_at_once = 0

    def __enter__(self) -> "LabLineView":
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing to leave."""

    def began(self, planned: PlannedRun, note: str = "") -> None:
        """Say it, and remember that it goes."""
        self.running[planned.hash] = self.clock()
        self.most_at_once = max(self.most_at_once, len(self.running))
        self.say(f"{self._name(planned)}: begun{f' ({note})' if note else ''}")

    def tick(self) -> None:
        """Nothing to say."""

    def ended(self, outcome: Outcome) -> None:
        """Say how it ended, and what is left."""
        self._take(outcome)
        line = f"{self._name(outcome.planned)}: {_word(outcome)}"
        line += "".join(
            f", {board.metric} {self._value(board, outcome.planned)}" for board in self._of(outcome.planned)
        )
        if outcome.seconds is not None:
            line += f", {duration(outcome.seconds)}"
        self.say(f"{line}{f': {outcome.reason}' if outcome.reason else ''}  [{self.progress()}]")

    def say(self, line: str) -> None:
        """One plain line, however long."""
        self.console.print(line, soft_wrap=True, markup=False, highlight=False)

    def _take(self, outcome: Outcome) -> None:
        planned = outcome.planned
        self.running.pop(planned.hash, None)
        self.outcomes[planned.hash] = outcome
        if outcome.seconds is not None and outcome.status == "finished":
            self.seconds.append(outcome.seconds)
        for board in self._of(planned):
            if outcome.status == "finished":
                self.values[board.title, planned.hash] = _value_of(planned, board.metric)

    def _of(self, planned: PlannedRun) -> list[Board]:
        return [board for board in self.boards if any(own.hash == planned.hash for own in board.planned_runs)]

    def _name(self, planned: PlannedRun) -> str:
        own = [(board, e) for board in self.boards for e in board.planned_runs if e.hash == planned.hash]
        titles = ", ".join(f"{board.title.partition(' ')[0]} {e.arm}" for board, e in own)
        return f"{titles}, seed {planned.seed}"

    def _value(self, board: Board, planned: PlannedRun) -> str:
        return level(board.metric, self.values.get((board.title, planned.hash)))

    def progress(self) -> str:
        """How many runs are done, and how long the rest will take at this pace."""
        runs = {e.hash: e for board in self.boards for e in board.planned_runs if e.arm not in board.refused}
        left = [planned for hash, planned in runs.items() if hash not in self.outcomes]
        words = f"{len(runs) - len(left)} of {len(runs)} runs"
        if self.seconds and left:
            work = sum(1 - _steps(planned) if planned.hash in self.running else 1.0 for planned in left)
            at_once = max(1, min(self.most_at_once, len(left)))
            words += f", about {duration(work * fmean(self.seconds) / at_once)} left"
        return words


class LabLiveView(LabLineView):
    """A table that redraws itself; lines only for what a table can't tell."""

    def __enter__(self) -> "LabLiveView":
        self._live = Live(get_renderable=self.draw, console=self.console, refresh_per_second=2)
        self._live.start(refresh=True)
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    def began(self, planned: PlannedRun, note: str = "") -> None:
        """Remember that it goes."""
        self.running[planned.hash] = self.clock()
        self.most_at_once = max(self.most_at_once, len(self.running))
        if note:
            self.say(f"{self._name(planned)}: {note}")

    def ended(self, outcome: Outcome) -> None:
        """Take it in; a failure is said in words too."""
        self._take(outcome)
        if outcome.reason:
            self.say(f"{self._name(outcome.planned)}: {_word(outcome)}: {outcome.reason}")

    def draw(self) -> RenderableType:
        """The table as things stand."""
        going = [b for b in self.boards if any(e.hash not in self.outcomes for e in b.planned_runs)]
        shown = self.boards if len(self.boards) <= MOST else going[:MOST]
        return Group(*(self._table(board) for board in shown), Text(self.progress(), "dim"))

    def _table(self, board: Board) -> Table:
        seeds = list(dict.fromkeys(planned.seed for planned in board.planned_runs))
        name = min(24, max(len(arm) for arm in board.arms))
        fits = self.console.width >= name + CELL * (len(seeds) + 1) + 4
        table = Table(title=Text(board.title, "bold"), title_justify="left", box=None, padding=(0, 1, 0, 0))
        table.add_column("arm", width=name, no_wrap=True, header_style="dim")
        for heading in (
            [*(f"seed {seed}" if seed < 10 else f"s {seed}" for seed in seeds), "mean"] if fits else ["runs"]
        ):
            table.add_column(heading, justify="right" if fits else "left", no_wrap=True, header_style="dim")
        for arm in board.arms:
            runs = [planned for planned in board.planned_runs if planned.arm == arm]
            table.add_row(arm, *(self._cells(board, arm, runs) if fits else [self._short(board, arm, runs)]))
        return table

    def _cells(self, board: Board, arm: str, runs: Sequence[PlannedRun]) -> list[Text]:
        return [*(self._cell(board, arm, planned) for planned in runs), Text(self._mean(board, runs), "bold")]

    def _cell(self, board: Board, arm: str, planned: PlannedRun) -> Text:
        if (board.title, planned.hash) in self.values:
            return Text(self._value(board, planned), "green")
        if planned.hash in self.running:
            return Text(percent(_steps(planned), 0), "cyan")
        if arm in board.refused:
            return Text("refused", "red")
        outcome = self.outcomes.get(planned.hash)
        return Text("·", "dim") if outcome is None else Text(outcome.status, "red")

    def _short(self, board: Board, arm: str, runs: Sequence[PlannedRun]) -> Text:
        """An arm in few columns: counts instead of cells."""
        if arm in board.refused:
            return Text("refused", "red")
        done = sum((board.title, planned.hash) in self.values for planned in runs)
        words = Text(f"{done}/{len(runs)}")
        going = [_steps(planned) for planned in runs if planned.hash in self.running]
        words.append(f" {len(going)} at {percent(fmean(going), 0)}" if going else "", "cyan")
        return words.append(f" {self._mean(board, runs)}", "bold")

    def _mean(self, board: Board, runs: Sequence[PlannedRun]) -> str:
        known = [self.values[board.title, e.hash] for e in runs if (board.title, e.hash) in self.values]
        return level(board.metric, fmean(known)) if known else ""


def choose_view(boards: Sequence[Board], quiet: bool = False) -> LabLineView:
    """The view for a terminal, or for a file or pipe; on stderr where stdout is for a program."""
    console = Console(stderr=quiet, highlight=False, markup=False, emoji=False)
    is_terminal = (sys.stderr if quiet else sys.stdout).isatty()
    return LabLiveView(boards, console) if is_terminal else LabLineView(boards, console)


def _word(outcome: Outcome) -> str:
    return "there already" if outcome.was_there else outcome.status


def _steps(planned: PlannedRun) -> float:
    """The share of its steps that a run has done."""
    path = planned.folder / "metrics.jsonl"
    try:
        return path.read_bytes().count(b"\n") / max(1, int(planned.config["learning"]["steps"]))
    except OSError:
        return 0.0


def _value_of(planned: PlannedRun, metric: str) -> float:
    try:
        return measure(Run(planned.folder), metric, planned.arm, planned.seed, planned.folder).value
    except UptrendError:
        return float("nan")  # the verdict says what is wrong with it
