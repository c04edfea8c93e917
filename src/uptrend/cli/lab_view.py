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

    def has(self, planned: PlannedRun) -> bool:
        """Return True if a run is, or equals, one of these."""
        return any(own.hash == planned.hash for own in self.planned_runs)


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
        status = "there already" if outcome.was_there else outcome.status
        line = f"{self._name(planned)}: {status}"
        for board in self.boards:
            if not board.has(planned):
                continue
            if outcome.status == "finished":
                self.values[board.title, planned.hash] = _measure(planned, board.metric)
            value = self.values.get((board.title, planned.hash))
            line += f", {board.metric} {level(board.metric, value)}"
        if outcome.seconds is not None:
            line += f", {duration(outcome.seconds)}"
        if outcome.reason:
            line += f": {outcome.reason}"
        self.say(f"{line}  [{self.progress()}]")

    def progress(self) -> str:
        """Format the number of finished runs and the time left at the present pace."""
        runs: dict[str, PlannedRun] = {}  # a run that two boards show counts once
        for board in self.boards:
            for planned in board.planned_runs:
                if planned.arm not in board.refused:
                    runs[planned.hash] = planned
        left = [planned for hash, planned in runs.items() if hash not in self.outcomes]
        text = f"{len(runs) - len(left)} of {len(runs)} runs"
        if self.seconds and left:
            runs_left = float(len(left))
            for planned in left:
                if planned.hash in self.running:
                    runs_left -= _share_done(planned)
            # Runs side by side share the work; towards the end there are fewer than could run.
            at_once = max(1, min(self.most_at_once, len(left)))
            text += f", about {duration(runs_left * fmean(self.seconds) / at_once)} left"
        return text

    def draw(self) -> Group:
        """Draw one table per board: arms with the value of every seed and their mean."""
        # A terminal cuts off tables that are too high for it: finished ones make way for others.
        unfinished = []
        for board in self.boards:
            if any(planned.hash not in self.outcomes for planned in board.planned_runs):
                unfinished.append(board)
        tables = [self._table(board) for board in unfinished or self.boards]
        return Group(*tables, Text(self.progress(), "dim"))

    def _table(self, board: Board) -> Table:
        rows = []
        for arm in dict.fromkeys(planned.arm for planned in board.planned_runs):
            cells = []
            values = []
            for planned in board.planned_runs:
                if planned.arm == arm:
                    cells.append(self._cell(board, planned))
                    value = self.values.get((board.title, planned.hash))
                    if value is not None:
                        values.append(value)
            mean = level(board.metric, fmean(values)) if values else ""
            # One text for all seeds: it is wrapped where the terminal is too narrow.
            rows.append((arm, Text("  ").join(cells), Text(mean, "bold")))
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
        if outcome is None:
            return Text("·", "dim")
        return Text(outcome.status, "red")

    def _name(self, planned: PlannedRun) -> str:
        """Name a run by every arm that it belongs to: hypotheses share runs."""
        arms = []
        for board in self.boards:
            id = board.title.partition(" ")[0]
            for own in board.planned_runs:
                if own.hash == planned.hash:
                    arms.append(f"{id} {own.arm}")
        return f"{', '.join(arms)}, seed {planned.seed}"


def _share_done(planned: PlannedRun) -> float:
    try:
        lines = (planned.folder / "metrics.jsonl").read_bytes().count(b"\n")
    except OSError:
        return 0.0
    return lines / max(1, int(planned.config["learning"]["steps"]))


def _measure(planned: PlannedRun, metric: str) -> float:
    try:
        return measure(Run(planned.folder), metric, planned.arm, planned.seed, planned.folder).value
    except UptrendError:
        return float("nan")  # the verdict gives the reason
