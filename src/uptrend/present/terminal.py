"""What is shown in a terminal: a console, tables without lines, and curves as blocks."""

import math
import os
import sys
from collections.abc import Iterable, Sequence
from typing import Any, Literal

import numpy as np
from rich.console import Console, RenderableType
from rich.table import Table

from uptrend.present.drawing import stretch_means, stretches
from uptrend.present.formatting import NONE, percent, visible
from uptrend.records.metrics import find_metric

BLOCKS = "▁▂▃▄▅▆▇█"
# Least height of a curve's scale, as a share of the metric's bounds, or of its largest value where
# it has none.
LEAST_SPAN = 0.1


def terminal(**options: Any) -> Console:
    """Return a console as wide as the terminal, or wide enough for all columns where there is
    none.
    """
    # A pipe has no width; 80 columns would hide what a script greps for.
    stream = sys.stderr if options.get("stderr") else sys.stdout
    width = None if stream.isatty() or "COLUMNS" in os.environ else 160
    # Names of runs and tasks may contain brackets: no markup.
    return Console(
        **{"width": width, "highlight": False, "markup": False, "emoji": False, **options}
    )


def columns(
    *headings: str,
    rows: Iterable[Sequence[RenderableType]],
    right: Sequence[str] = (),
    wraps: str = "",
) -> Table:
    """Make a table without lines; without headings, its first column is dim.

    `right` names the columns to align right. With `wraps`, only this column is wrapped where space
    is short.
    """
    table = Table(
        box=None,
        pad_edge=False,
        header_style="dim",
        padding=(0, 2, 0, 0),
        show_header=bool(headings),
    )
    for heading in headings:
        justify: Literal["right", "left"] = "right" if heading in right else "left"
        table.add_column(
            heading, overflow="fold", justify=justify, no_wrap=wraps not in ("", heading)
        )
    if not headings:
        table.add_column(style="dim", no_wrap=True)
    for row in rows:
        # A name that reverses what follows would let one row pass for another.
        table.add_row(*(visible(cell) if isinstance(cell, str) else cell for cell in row))
    return table


def sparkline(
    values: Sequence[float | None],
    width: int,
    low: float | None = None,
    high: float | None = None,
    metric: str = "",
) -> str:
    """Draw values in at most `width` blocks, each the mean of its share; a space where there is no
    number.

    The scale runs from the least to the largest mean, and is never finer than `LEAST_SPAN` of the
    metric's bounds or of the values' size: what hardly moves is drawn flat. Give `low` and `high`
    to compare two lines.
    """
    floats = np.array([math.nan if value is None else value for value in values], dtype=np.float64)
    means = stretch_means(floats, stretches(len(floats), width)).tolist()
    finite = [mean for mean in means if not math.isnan(mean)]
    bottom = min(finite, default=0.0) if low is None else low
    top = max(finite, default=0.0) if high is None else high
    known = find_metric(metric) if metric else None
    is_bounded = known is not None and known.low is not None and known.high is not None
    full = known.high - known.low if is_bounded else max(abs(bottom), abs(top))  # type: ignore[union-attr, operator]
    span = top - bottom
    if span < LEAST_SPAN * full:
        # The middle of the values comes to the middle of a block, so that noise does not step over
        # an edge.
        bottom = (bottom + top) / 2 - LEAST_SPAN * full * 3.5 / 8
        span = LEAST_SPAN * full
    line = ""
    for mean in means:
        if math.isnan(mean):
            line += " "
        else:
            place = int((mean - bottom) / span * 8) if span > 0 else 3
            line += BLOCKS[max(0, min(7, place))]
    return line


def phase_shares(seconds: dict[str, float]) -> str:
    """Format the shares of a step's time, the largest first: sample 60%, update 30%."""
    total = sum(seconds.values()) or math.nan
    shares = {
        phase: seconds[phase] / total
        for phase in sorted(seconds, key=lambda phase: -seconds[phase])
    }
    return (
        ", ".join(
            f"{phase} {percent(share, 0)}" for phase, share in shares.items() if share >= 0.01
        )
        or NONE
    )
