"""Parts that verbs share: options, console and tables, sparklines, and Ctrl-C during a run."""

import itertools
import json
import math
import os
import signal
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from rich.console import Console, RenderableType
from rich.table import Table

from uptrend.records import Run
from uptrend.stats.formatting import NONE, percent
from uptrend.training.observer import Stop

BLOCKS = "▁▂▃▄▅▆▇█"


class Format(StrEnum):
    """Output formats of most verbs."""

    TEXT = "text"
    JSON = "json"


class FailOn(StrEnum):
    """Least severity at which the exit code is 1."""

    CRITICAL = "critical"
    WARNING = "warning"


AsFormat = Annotated[Format, typer.Option("--format", "-f", help="Output format.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]
Sets = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Override one config value: --set learning.lr=2e-5. Repeatable."),
]
RunArgument = Annotated[str, typer.Argument(help="Run directory, or a name under ./runs.")]
RunsFolder = Annotated[Path, typer.Option(help="Folder for run directories.")]
Quiet = Annotated[bool, typer.Option("--quiet", help="Print only the outcome.")]


def terminal(**options: Any) -> Console:
    """Return a console as wide as the terminal, or wide enough for all columns where there is none."""
    # A pipe has no width; 80 columns would hide what a script greps for.
    stream = sys.stderr if options.get("stderr") else sys.stdout
    width = None if stream.isatty() or "COLUMNS" in os.environ else 160
    # Names of runs and tasks may contain brackets: no markup.
    return Console(**{"width": width, "highlight": False, "markup": False, "emoji": False, **options})


def print_json(value: Any) -> None:
    """Print one JSON value on stdout."""
    print(json.dumps(value, indent=2, ensure_ascii=False))


def columns(
    *headings: str, rows: Iterable[Sequence[RenderableType]], right: Sequence[str] = (), wraps: str = ""
) -> Table:
    """Make a table without lines; without headings, its first column is dim.

    `right` names the columns to align right. With `wraps`, only this column is wrapped where space is short.
    """
    table = Table(box=None, pad_edge=False, header_style="dim", padding=(0, 2, 0, 0), show_header=bool(headings))
    for heading in headings:
        justify: Literal["right", "left"] = "right" if heading in right else "left"
        table.add_column(heading, overflow="fold", justify=justify, no_wrap=wraps not in ("", heading))
    if not headings:
        table.add_column(style="dim", no_wrap=True)
    for row in rows:
        table.add_row(*row)
    return table


def sparkline(values: Sequence[float | None], width: int, low: float | None = None, high: float | None = None) -> str:
    """Draw values in at most `width` blocks, each the mean of its share; a space where there is no number.

    The scale runs from the least to the largest mean. Give `low` and `high` to compare two lines.
    """
    means = bucket_means(values, width)
    finite = [mean for mean in means if mean is not None]
    bottom = min(finite, default=0.0) if low is None else low
    span = (max(finite, default=0.0) if high is None else high) - bottom
    line = ""
    for mean in means:
        if mean is None:
            line += " "
        else:
            place = int((mean - bottom) / span * 8) if span > 0 else 3
            line += BLOCKS[max(0, min(7, place))]
    return line


def bucket_means(values: Sequence[float | None], width: int) -> list[float | None]:
    """Return the means of `width` neighboring shares of the values; the values themselves if there are fewer."""
    count = min(len(values), max(width, 0))
    edges = [len(values) * i // count for i in range(count + 1)] if count else [0]
    # A metric that is absent or not finite in some steps still has a mean over the others of its share.
    shares = [[v for v in values[a:b] if v is not None and math.isfinite(v)] for a, b in itertools.pairwise(edges)]
    return [sum(share) / len(share) if share else None for share in shares]


def phase_shares(seconds: dict[str, float]) -> str:
    """Format the shares of a step's time, the largest first: sample 60%, update 30%."""
    total = sum(seconds.values()) or math.nan
    shares = {phase: seconds[phase] / total for phase in sorted(seconds, key=lambda phase: -seconds[phase])}
    return ", ".join(f"{phase} {percent(share, 0)}" for phase, share in shares.items() if share >= 0.01) or NONE


class InterruptObserver:
    """Observer that stops the run after the step during which the user pressed Ctrl-C."""

    is_asked = False

    def interrupt(self, *_: object) -> None:
        """Handle SIGINT: the first waits for the step, the second does not."""
        if self.is_asked:
            raise KeyboardInterrupt
        self.is_asked = True
        with suppress(RuntimeError):  # the signal came while this very stream was being written
            print("Stopping after this step; Ctrl-C again ends at once.", file=sys.stderr, flush=True)

    def before(self, run: Run) -> None:
        """Do nothing."""

    def step(self, record: object) -> Stop | None:  # noqa: ARG002 (an observer's signature)
        """Stop if asked to."""
        return Stop("interrupted by the user", by="user") if self.is_asked else None

    def after(self, run: Run) -> None:
        """Do nothing."""


@contextmanager
def stop_on_interrupt() -> Iterator[InterruptObserver]:
    """Treat Ctrl-C as a request to stop after the step."""
    observer = InterruptObserver()
    before = signal.signal(signal.SIGINT, observer.interrupt)
    try:
        yield observer
    finally:
        signal.signal(signal.SIGINT, before)
