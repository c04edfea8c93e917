"""View of an experiment in a terminal: lines, and a live table of arms and seeds."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from uptrend.lab.measure import level, measure
from uptrend.lab.plan import PlannedRun
from uptrend.lab.workers import Outcome, Progress
from uptrend.present.formatting import duration, percent
from uptrend.present.terminal import columns
from uptrend.records import Run, UptrendError
from uptrend.runner.view import View


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
        for board in [
            board
            for board in self.boards
            if any(own.hash == planned.hash for own in board.planned_runs)
        ]:
            if outcome.status == "finished":
                self.values[board.title, planned.hash] = _measured(planned, board.metric)
            line += (
                f", {board.metric}"
                f" {level(board.metric, self.values.get((board.title, planned.hash)))}"
            )
        line += "" if outcome.seconds is None else f", {duration(outcome.seconds)}"
        line += f": {outcome.reason}" if outcome.reason else ""
        self.say(f"{line}  [{self.progress()}]")

    def progress(self) -> str:
        """Format the number of finished runs and the time left at the present pace."""
        runs = {
            e.hash: e
            for board in self.boards
            for e in board.planned_runs
            if e.arm not in board.refused
        }
        left = [planned for hash, planned in runs.items() if hash not in self.outcomes]
        text = f"{len(runs) - len(left)} of {len(runs)} runs"
        if self.seconds and left:
            work = sum(
                1 - _share_done(planned) if planned.hash in self.running else 1.0
                for planned in left
            )
            # Runs side by side share the work; towards the end there are fewer than could run.
            at_once = max(1, min(self.most_at_once, len(left)))
            text += f", about {duration(work * fmean(self.seconds) / at_once)} left"
        return text

    def draw(self) -> Group:
        """Draw one table per board: arms with the value of every seed and their mean."""
        # A terminal cuts off what is too high for it: tables that are done make room for the
        # others.
        going = [b for b in self.boards if any(e.hash not in self.outcomes for e in b.planned_runs)]
        return Group(
            *(self._table(board) for board in going or self.boards), Text(self.progress(), "dim")
        )

    def _table(self, board: Board) -> Table:
        rows = []
        for arm in dict.fromkeys(planned.arm for planned in board.planned_runs):
            runs = [planned for planned in board.planned_runs if planned.arm == arm]
            known = [
                self.values[board.title, e.hash]
                for e in runs
                if (board.title, e.hash) in self.values
            ]
            # wraps where it is too long
            cells = Text("  ").join(self._cell(board, planned) for planned in runs)
            rows.append(
                (arm, cells, Text(level(board.metric, fmean(known)) if known else "", "bold"))
            )
        table = columns("arm", "by seed", "mean", rows=rows, right=["mean"])
        table.title = board.title
        table.title_justify = "left"
        table.title_style = "bold"
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
        own = [
            (board, e)
            for board in self.boards
            for e in board.planned_runs
            if e.hash == planned.hash
        ]
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
