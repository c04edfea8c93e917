"""The terminal: a console for tables, and the bar of a step's phases."""

import os
import sys

from rich.console import Console
from rich.text import Text

from uptrend.stats.formatting import NONE, percent

PHASES = {
    "sample": ("█", "cyan"),
    "score": ("▒", "green"),
    "update": ("▓", "magenta"),
    "record": ("░", "yellow"),
    "evaluate": ("▒", "blue"),
    "checkpoint": ("░", "red"),
}
"""Phases of a step in their order, with the block and the color that stand for each."""


def terminal() -> Console:
    """Return a console as wide as the terminal, or wide enough for all columns where there is none."""
    width = None if sys.stdout.isatty() or "COLUMNS" in os.environ else 160
    return Console(width=width, highlight=False, markup=False, emoji=False)  # names are names


def phase_bar(seconds: dict[str, float], width: int, room: int) -> Text:
    """Draw the shares of a step's time: a bar of `width`, and the largest shares in words, as `room` allows."""
    total = sum(seconds.values())
    if total <= 0:
        return Text(NONE)
    shares = {phase: seconds.get(phase, 0.0) / total for phase in PHASES}
    bar, filled, spent = Text(), 0, 0.0
    for phase, (block, color) in PHASES.items():
        spent += shares[phase]
        bar.append(block * (round(width * spent) - filled), color)
        filled = round(width * spent)
    for phase in sorted(PHASES, key=lambda phase: -shares[phase]):
        block, color = PHASES[phase]
        words = f" {phase} {percent(shares[phase], 0)}"
        if shares[phase] >= 0.01 and bar.cell_len + 3 + len(words) <= room:
            bar.append(f"  {block}", color).append(words)
    return bar
