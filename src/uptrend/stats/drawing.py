"""Style and output of every picture: matplotlib figures as PNG files, or as SVG that takes a page's ink color.

matplotlib is imported when the first picture is drawn, never when the package is.
"""

import io
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

COLORS = ("#2463a8", "#d1662b", "#2f8f5b", "#8a4fa3", "#b3902a", "#4a4f57")
"""Colors that color-blind readers can tell apart, too."""
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
    "svg.hashsalt": "uptrend",  # the same picture gives the same file
    "svg.fonttype": "none",  # text stays text: it can be searched and takes the page's font
}


@contextmanager
def plotting(**style: Any) -> Iterator[Any]:
    """Yield matplotlib's pyplot with our style, drawing to memory; figures made inside are closed at the end."""
    import matplotlib

    matplotlib.use("agg")
    import matplotlib.pyplot as plt

    before = set(plt.get_fignums())
    with plt.rc_context(STYLE | style):
        try:
            yield plt
        finally:
            for number in set(plt.get_fignums()) - before:
                plt.close(number)


def save(figure: Any, path: Path, dpi: int = 100) -> Path:
    """Write a figure in the format of the path's ending."""
    figure.savefig(path, dpi=dpi, metadata={"Date": None} if path.suffix == ".svg" else None)
    return path


def to_svg(figure: Any, label: str) -> str:
    """Return a figure as an SVG element for a page: transparent, in the page's ink color, with a label for readers."""
    text = io.StringIO()
    figure.savefig(text, format="svg", transparent=True, metadata={"Date": None})
    svg = text.getvalue()
    svg = svg[svg.index("<svg") :].replace(INK, "currentColor").replace(FAINT, "var(--line, #d9dde2)")
    return svg.replace("<svg", f'<svg role="img" aria-label="{label.replace(chr(34), "")}"', 1)


def moving_mean(values: Sequence[float], window: int) -> list[float]:
    """Return the mean of each value with its neighbors, `window` values in all; fewer at the ends."""
    half = window // 2
    near = [values[max(0, i - half) : i + half + 1] for i in range(len(values))]
    return [sum(part) / len(part) for part in near]
