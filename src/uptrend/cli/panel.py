"""The live panel of a run in a terminal of 60 to 120 columns."""

from rich.console import Console, ConsoleOptions, RenderResult
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from uptrend.cli.console import phase_bar
from uptrend.cli.progress import RunProgress
from uptrend.cli.sparkline import sparkline
from uptrend.cli.summary import phases
from uptrend.stats.formatting import duration, number, percent

ROWS = {
    "reward": "reward/mean",
    "dead groups": "advantage/dead/share",
    "length": "sampling/length/mean",
    "KL": "kl/reference/mean",
    "entropy": "learner/entropy/mean",
    "gradient": "gradient/norm/before",
}
NAME, VALUE = 11, 25
"""The widths of the first two columns; the curves have the rest."""
RECENT = 20
"""Steps over which the time by phase is averaged."""


class RunPanel:
    """Draws a RunProgress as it is at the moment of drawing."""

    def __init__(self, progress: RunProgress) -> None:
        self.progress = progress

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        width = min(options.max_width, 120)
        yield Panel(self._body(width - 4), title=Text(self.progress.title), title_align="left", width=width)

    def _body(self, width: int) -> Table:
        body = Table.grid(expand=True)
        body.add_row(self._bar(width))
        body.add_row(self._rows(width))
        return body

    def _bar(self, width: int) -> Table:
        progress = self.progress
        left = progress.seconds_left
        words = f"{progress.step}/{progress.steps}"
        if progress.step == progress.start:
            words += "  first step" if progress.evaluations else "  evaluating"
        elif left is not None and progress.step < progress.steps:
            words += f"  {duration(left)} left"
        line = Table.grid(padding=(0, 2, 0, 0))
        bar = ProgressBar(total=max(progress.steps, 1), completed=progress.step, width=width - len(words) - 3)
        line.add_row(bar, words)
        return line

    def _rows(self, width: int) -> Table:
        table = Table.grid(padding=(0, 2, 0, 0))
        table.add_column(style="dim", no_wrap=True, width=NAME)
        table.add_column(no_wrap=True)
        room = max(1, width - NAME - VALUE - 4)
        for name, key in ROWS.items():
            values = self.progress.curve(key)
            if any(value is not None for value in values):
                line = Text(f"{self._value(key):<{VALUE}} ")
                table.add_row(name, line.append(sparkline(values, room), "cyan"))
            if key == "reward/mean" and self.progress.evaluations:
                table.add_row("held-out", self._held_out(room))
        if seconds := phases(self.progress.metrics[-RECENT:]):
            table.add_row("step time", phase_bar(seconds, width // 5, width - NAME - 2))
        return table

    def _value(self, key: str) -> str:
        value = self.progress.last(key)
        if key != "advantage/dead/share":
            return number(value)
        low, high = (percent(self.progress.last(f"advantage/dead_{end}/share"), 0) for end in ("low", "high"))
        return f"{percent(value, 0)} ({low} low, {high} high)"

    def _held_out(self, room: int) -> Text:
        before, after = self.progress.before, self.progress.after
        words = Text(f"{percent(before.accuracy)} → " if before and after else "")
        rose = before and after and after.accuracy > before.accuracy
        words.append(str(after or before), "bold green" if rose else "bold")
        words.pad_right(VALUE + 1 - words.cell_len)
        return words.append(sparkline([e.accuracy for e in self.progress.evaluations], room), "green")
