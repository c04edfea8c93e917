"""Thinning and smoothing of curves, and style and output of every picture: matplotlib figures as
PNG files, or as SVG that takes a page's ink color.

matplotlib is imported when the first picture is drawn, never when the package is.
"""

import html
import io
import itertools
import re
import tomllib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from uptrend.records.view import Floats

Integers = NDArray[np.int64]

# Colors that color-blind readers can tell apart, too.
COLORS = ("#2463a8", "#d1662b", "#2f8f5b", "#8a4fa3", "#b3902a", "#4a4f57")
STYLE_FILE = Path(__file__).with_name("style.toml")
PLOT_STYLE: dict[str, Any] = tomllib.loads(STYLE_FILE.read_text(encoding="utf-8"))
INK = PLOT_STYLE["text.color"]
GRID_COLOR = PLOT_STYLE["grid.color"]
# A float has no more digits of a percentage.
MAX_DECIMALS = 13
# A curve is smoothed over one part in this many: wide enough to see a trend in noise, narrow enough
# to see a collapse.
SMOOTHING_WINDOWS = 15


def stretches(points: int, most: int) -> Integers:
    """Return the first points of the stretches of a curve, at most `most` of about equal length."""
    count = max(0, min(points, most))
    return np.linspace(0, points, count, endpoint=False).astype(np.int64)


def stretch_means(values: Floats, begins: Integers) -> Floats:
    """Return the mean of each stretch's finite values, NaN where it has none."""
    if not len(begins):
        return np.zeros(0)
    finite = np.isfinite(values)
    counts = np.add.reduceat(finite.astype(np.float64), begins)
    sums = np.add.reduceat(np.where(finite, values, 0.0), begins)
    with np.errstate(invalid="ignore", divide="ignore"):
        means: Floats = sums / counts
    return means


def thin_curve(steps: Integers, values: Floats, most: int = 200) -> tuple[tuple[int, float], ...]:
    """Return a curve as means over at most `most` stretches, each at its first step."""
    begins = stretches(len(steps), most)
    means = stretch_means(values, begins)
    return tuple(zip(steps[begins].tolist(), means.tolist(), strict=True))


def smooth(values: Sequence[float]) -> list[float]:
    """Return a curve as its moving mean, for a line over its noise."""
    return moving_mean(values, max(1, len(values) // SMOOTHING_WINDOWS))


def moving_mean(values: Sequence[float], window: int) -> list[float]:
    """Return the mean of each value and its neighbors, over a window that is cut at the ends."""
    half = window // 2
    means = []
    for i in range(len(values)):
        near = values[max(0, i - half) : i + half + 1]
        means.append(sum(near) / len(near))
    return means


@contextmanager
def plotting(**style: Any) -> Iterator[Any]:
    """Yield matplotlib's pyplot with our style, drawing to memory; close figures made inside at the
    end.
    """
    import matplotlib

    matplotlib.use("agg")
    import matplotlib.pyplot as plt

    open_before = set(plt.get_fignums())
    with plt.rc_context():
        # A matplotlibrc, such as one in the current folder, must not change our pictures.
        matplotlib.rcdefaults()
        plt.rcParams.update(PLOT_STYLE | style)
        try:
            yield plt
        finally:
            for number in set(plt.get_fignums()) - open_before:
                plt.close(number)


def save(figure: Any, path: Path, dpi: int = 100) -> Path:
    """Write a figure in the format of the path's ending."""
    # Without a date, the same picture gives the same file.
    metadata = {"Date": None} if path.suffix == ".svg" else None
    figure.savefig(path, dpi=dpi, metadata=metadata)
    return path


def to_svg(figure: Any, label: str) -> str:
    """Return a figure as an SVG element for a page, with a label for screen readers.

    It is transparent, in the page's ink color, and takes the page's `--c0` to `--c5` and `--line`
    if the page defines them.
    """
    text = io.StringIO()
    figure.savefig(
        text,
        format="svg",
        transparent=True,
        metadata=dict.fromkeys(("Date", "Creator", "Format", "Type")),
    )
    svg = text.getvalue()
    svg = svg[svg.index("<svg") :]

    # A style element inside an SVG holds for the whole page, and a page needs no namespaces.
    svg = re.sub(r'<style.*?</style>| xmlns(:xlink)?="[^"]*"', "", svg, flags=re.DOTALL)

    # Ids without a reference (axes_1, …) repeat in every picture of a page.
    referenced = set(re.findall(r"#([\w-]+)", svg))
    svg = re.sub(r' id="([^"]*)"', lambda match: match[0] if match[1] in referenced else "", svg)

    # A hundredth of a point is enough in paths (texts keep their digits): a page has dozens of
    # pictures.
    svg = re.sub(r' d="[^"]*"', lambda match: re.sub(r"(\.\d\d)\d+", r"\1", match[0]), svg)

    svg = svg.replace(INK, "currentColor")
    svg = svg.replace(GRID_COLOR, f"var(--line, {GRID_COLOR})")
    for i, color in enumerate(COLORS):
        svg = svg.replace(color, f"var(--c{i}, {color})")
    return svg.replace("<svg", f'<svg role="img" aria-label="{html.escape(label)}"', 1)


def show_shares(axes: Any, whole: float = 1.0) -> None:
    """Label the heights of a plot in percent, with as many digits as its ticks need to differ."""
    from matplotlib.ticker import Formatter

    class ShareFormatter(Formatter):  # type: ignore[misc, unused-ignore]
        def __call__(self, value: float, pos: int | None = None) -> str:  # noqa: ARG002 (matplotlib's signature)
            decimals = _decimals_for([100 * tick / whole for tick in self.locs])
            return f"{100 * value / whole:.{decimals}f}%"

    axes.yaxis.set_major_formatter(ShareFormatter())


def _decimals_for(ticks: Sequence[float]) -> int:
    """Return the decimals with which no tick is rounded by more than a hundredth of their step."""
    step = min((abs(b - a) for a, b in itertools.pairwise(ticks)), default=0.0)
    for decimals in range(MAX_DECIMALS):
        errors = [abs(round(tick, decimals) - tick) for tick in ticks]
        if all(error <= step / 100 for error in errors):
            return decimals
    return MAX_DECIMALS
