"""How numbers are said in the terminal: the same in every command."""

import math
import os
import sys
from typing import Any

from rich.console import Console
from rich.text import Text

PHASES = {
    "sample": ("█", "cyan"),
    "score": ("▒", "green"),
    "update": ("▓", "magenta"),
    "record": ("░", "yellow"),
    "evaluate": ("▒", "blue"),
    "checkpoint": ("░", "red"),
}
"""The phases of a step in their order, with the block and the color that stand for each."""


def terminal() -> Console:
    """Where tables go: as wide as the terminal is, and wide enough for all columns where there is none."""
    width = None if sys.stdout.isatty() or "COLUMNS" in os.environ else 160
    return Console(width=width, highlight=False, markup=False, emoji=False)  # names are names


def percent(fraction: float | None, digits: int = 1) -> str:
    """A fraction as 37.5%."""
    return "–" if fraction is None or not math.isfinite(fraction) else f"{100 * fraction:.{digits}f}%"


def number(value: Any) -> str:
    """A number in about four characters that count."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return "–" if value is None else str(value)
    if isinstance(value, float) and not math.isfinite(value):
        return "–"
    return f"{value:,}" if isinstance(value, int) else f"{value:.4g}"


def duration(seconds: float) -> str:
    """A time as 0.8 s, 12 s, 3 min or 2 h 5 min."""
    if seconds < 10:
        return f"{seconds:.1f} s"
    if seconds < 100:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 100 else f"{minutes // 60} h {minutes % 60} min"


def size(count: int) -> str:
    """Bytes as 1.2 MB."""
    amount, unit = float(count), "B"
    for unit in ("B", "kB", "MB", "GB", "TB"):  # noqa: B007 (read after the loop)
        if amount < 1000:
            break
        amount /= 1000
    return f"{amount:.0f} B" if unit == "B" else f"{amount:.1f} {unit}"


def phase_bar(seconds: dict[str, float], width: int, room: int) -> Text:
    """How a step's time is spent: a bar of `width`, and the largest shares in words, as `room` allows."""
    total = sum(seconds.values())
    if total <= 0:
        return Text("–")
    shares = {phase: seconds.get(phase, 0.0) / total for phase in PHASES}
    bar, filled, spent = Text(), 0, 0.0
    for phase, (block, color) in PHASES.items():
        spent += shares[phase]
        bar.append(block * (round(width * spent) - filled), color)
        filled = round(width * spent)
    for phase in sorted(PHASES, key=lambda phase: -shares[phase]):
        block, color = PHASES[phase]
        words = f" {phase} {100 * shares[phase]:.0f}%"
        if shares[phase] >= 0.01 and bar.cell_len + 3 + len(words) <= room:
            bar.append(f"  {block}", color).append(words)
    return bar
