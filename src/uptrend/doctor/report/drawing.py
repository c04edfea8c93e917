"""How pictures look, whoever draws them: colors, the style for matplotlib, and the mean that is drawn over noise."""

from collections.abc import Sequence

COLORS = ("#2463a8", "#d1662b", "#2f8f5b", "#8a4fa3", "#b3902a", "#4a4f57")
"""Apart from each other for color-blind eyes too."""
INK, FAINT = "#22262b", "#d9dde2"

STYLE = {
    "font.family": "sans-serif",
    "font.size": 10,
    "text.color": INK,
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    "axes.linewidth": 0.8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlesize": 11,
    "axes.titlelocation": "left",
    "axes.titleweight": "bold",
    "axes.grid": True,
    "axes.grid.axis": "y",
    "axes.axisbelow": True,
    "grid.color": FAINT,
    "grid.linewidth": 0.7,
    "xtick.color": INK,
    "ytick.color": INK,
    "legend.frameon": False,
    "svg.hashsalt": "uptrend",
}


def moving_mean(values: Sequence[float], window: int) -> list[float]:
    """The mean of each value with its neighbors, `window` values in all; fewer at the ends."""
    half = window // 2
    near = [values[max(0, i - half) : i + half + 1] for i in range(len(values))]
    return [sum(part) / len(part) for part in near]
