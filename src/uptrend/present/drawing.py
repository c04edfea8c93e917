"""Curves in fewer or smoother points, and style and output of every picture: matplotlib figures as
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
STYLE: dict[str, Any] = tomllib.loads(
    Path(__file__).with_name("style.toml").read_text(encoding="utf-8")
)
INK = STYLE["text.color"]
FAINT = STYLE["grid.color"]
# A float has no more digits of a percentage.
MAX_DECIMALS = 13
# Part of a curve over which it is smoothed: wide enough to see a trend in noise, narrow enough to
# see a collapse.
SMOOTHED = 15


def stretches(points: int, most: int) -> Integers:
    """Return where the stretches of a curve begin: as many as its points, and at most `most` of
    about equal length.
    """
    return np.linspace(0, points, max(0, min(points, most)), endpoint=False).astype(np.int64)


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
    """Return a curve as means over at most so many stretches, each at its first step."""
    begins = stretches(len(steps), most)
    means = stretch_means(values, begins)
    return tuple((int(step), float(mean)) for step, mean in zip(steps[begins], means, strict=True))


def smooth(values: Sequence[float]) -> list[float]:
    """Return a curve as its moving mean, for a line over its noise."""
    return moving_mean(values, max(1, len(values) // SMOOTHED))


def moving_mean(values: Sequence[float], window: int) -> list[float]:
    """Return the mean of each value with its neighbors, `window` values in all; fewer at the
    ends.
    """
    half = window // 2
    near = [values[max(0, i - half) : i + half + 1] for i in range(len(values))]
    return [sum(part) / len(part) for part in near]


@contextmanager
def plotting(**style: Any) -> Iterator[Any]:
    """Yield matplotlib's pyplot with our style, drawing to memory; figures made inside are closed
    at the end.
    """
    import matplotlib

    matplotlib.use("agg")
    import matplotlib.pyplot as plt

    before = set(plt.get_fignums())
    with plt.rc_context():
        # what a matplotlibrc says, such as one that lies in the current folder, has no place
        matplotlib.rcdefaults()
        plt.rcParams.update(STYLE | style)
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
    """Return a figure as an SVG element for a page, with a label for readers.

    It is transparent, in the page's ink color, and takes the page's `--c0` to `--c5` and `--line`
    where it has them.
    """
    text = io.StringIO()
    figure.savefig(
        text,
        format="svg",
        transparent=True,
        metadata=dict.fromkeys(("Date", "Creator", "Format", "Type")),
    )
    svg = text.getvalue()
    # A style element inside an SVG holds for the whole page, and a page needs no namespaces.
    svg = re.sub(
        r'<style.*?</style>| xmlns(:xlink)?="[^"]*"', "", svg[svg.index("<svg") :], flags=re.DOTALL
    )
    # the other ids (axes_1, …) repeat in every picture of a page
    referenced = set(re.findall(r"#([\w-]+)", svg))
    svg = re.sub(r' id="([^"]*)"', lambda match: match[0] if match[1] in referenced else "", svg)
    # A hundredth of a point is enough in paths (texts keep their digits): a page has dozens of
    # pictures.
    svg = re.sub(r' d="[^"]*"', lambda match: re.sub(r"(\.\d\d)\d+", r"\1", match[0]), svg)
    svg = svg.replace(INK, "currentColor").replace(FAINT, f"var(--line, {FAINT})")
    for place, color in enumerate(COLORS):
        svg = svg.replace(color, f"var(--c{place}, {color})")
    return svg.replace("<svg", f'<svg role="img" aria-label="{html.escape(label)}"', 1)


def show_shares(axes: Any, whole: float = 1.0) -> None:
    """Label the heights of a plot in percent, with as many digits as its ticks need to differ."""
    from matplotlib.ticker import Formatter

    class ShareFormatter(Formatter):  # type: ignore[misc, unused-ignore]
        def __call__(self, value: float, pos: int | None = None) -> str:  # noqa: ARG002 (matplotlib's signature)
            return f"{100 * value / whole:.{_digits([100 * tick / whole for tick in self.locs])}f}%"

    axes.yaxis.set_major_formatter(ShareFormatter())


def _digits(ticks: Sequence[float]) -> int:
    """Return the decimals that numbers a step apart need, so that none is rounded by a visible part
    of the step.
    """
    step = min((abs(b - a) for a, b in itertools.pairwise(ticks)), default=0.0)
    decimals = range(MAX_DECIMALS)
    return next(
        (n for n in decimals if all(abs(round(t, n) - t) <= step / 100 for t in ticks)),
        MAX_DECIMALS,
    )
