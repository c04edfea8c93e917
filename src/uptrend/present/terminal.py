"""Output in a terminal: a console, tables without lines, and curves as blocks."""

import math
import os
import sys
from collections.abc import Iterable, Sequence
from typing import Any, Literal

import numpy as np
from rich.console import Console, RenderableType
from rich.table import Table

from uptrend.present.drawing import stretch_means, stretches
from uptrend.present.formatting import NO_VALUE, percent, visible
from uptrend.records.metrics import find_metric

BLOCK_HEIGHTS = "▁▂▃▄▅▆▇█"
# Least height of a curve's scale, as a share of the metric's bounds, or of its largest value if it
# has no bounds.
MIN_SPAN_SHARE = 0.1
# Columns of an output that is no terminal: enough for the widest table.
PIPE_WIDTH = 160


def terminal(**options: Any) -> Console:
    """Return a console as wide as the terminal, or wide enough for all columns without one."""
    # A pipe has no width; rich's 80 columns would cut texts that a script greps for.
    stream = sys.stderr if options.get("stderr") else sys.stdout
    has_width = stream.isatty() or "COLUMNS" in os.environ
    # Names of runs and tasks may contain brackets: no markup.
    defaults = {
        "width": None if has_width else PIPE_WIDTH,
        "highlight": False,
        "markup": False,
        "emoji": False,
    }
    return Console(**(defaults | options))


def columns(
    *headings: str,
    rows: Iterable[Sequence[RenderableType]],
    right: Sequence[str] = (),
    wraps: str = "",
) -> Table:
    """Make a table without lines; without headings, its first column is dim.

    `right` names the columns to align right. With `wraps`, only that column is wrapped if space is
    short.
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
        # A name that reverses the text behind it would let one row pass for another.
        cells = [visible(cell) if isinstance(cell, str) else cell for cell in row]
        table.add_row(*cells)
    return table


def sparkline(
    values: Sequence[float | None],
    width: int,
    low: float | None = None,
    high: float | None = None,
    metric: str = "",
) -> str:
    """Draw values in at most `width` blocks, each the mean of its stretch; a space stands for a
    stretch without numbers.

    The scale runs from the least to the largest mean, and is never finer than `MIN_SPAN_SHARE` of
    the metric's bounds or of the values' size: a curve that hardly moves is drawn flat. Pass `low`
    and `high` to compare two lines.
    """
    floats = np.array(values, dtype=np.float64)  # NaN for None
    means = stretch_means(floats, stretches(len(floats), width)).tolist()
    finite = [mean for mean in means if not math.isnan(mean)]
    bottom = min(finite, default=0.0) if low is None else low
    top = max(finite, default=0.0) if high is None else high

    least_span = MIN_SPAN_SHARE * _full_span(metric, bottom, top)
    span = top - bottom
    if span < least_span:
        # The middle of the values comes to the middle of a block, so that noise does not step over
        # an edge.
        bottom = (bottom + top) / 2 - least_span * 3.5 / 8
        span = least_span

    line = ""
    for mean in means:
        if math.isnan(mean):
            line += " "
        elif span > 0:
            height = int((mean - bottom) / span * 8)
            line += BLOCK_HEIGHTS[max(0, min(7, height))]
        else:
            line += BLOCK_HEIGHTS[3]
    return line


def _full_span(metric: str, bottom: float, top: float) -> float:
    """Return the distance of a metric's bounds, or without bounds the size of the values."""
    known = find_metric(metric) if metric else None
    if known is None or known.low is None or known.high is None:
        return max(abs(bottom), abs(top))
    return known.high - known.low


# Phases below 1% of a step are left out: chosen, they tell nothing about where its time goes.
MIN_PHASE_SHARE = 0.01


def phase_shares(seconds: dict[str, float]) -> str:
    """Format the shares of a step's time, the largest first: sample 60%, update 30%."""
    total = sum(seconds.values()) or math.nan
    parts = []
    for phase in sorted(seconds, key=lambda phase: -seconds[phase]):
        share = seconds[phase] / total
        if share >= MIN_PHASE_SHARE:
            parts.append(f"{phase} {percent(share, 0)}")
    return ", ".join(parts) or NO_VALUE
