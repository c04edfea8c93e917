"""What the page's charts are drawn on: a frame with its ticks, as SVG, without a library."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape

WIDTH, HEIGHT = 340, 224
LEFT, RIGHT, TOP, BOTTOM = 44, 12, 12, 36


@dataclass(frozen=True)
class Frame:
    """Where data lies on the picture."""

    across: tuple[float, float]
    """The least and the greatest of what runs to the right."""
    up: tuple[float, float]
    """Of what runs upwards."""
    height: int = HEIGHT
    left: int = LEFT
    top: int = TOP

    @property
    def floor(self) -> int:
        """Where the axis below lies."""
        return self.height - BOTTOM

    def x(self, value: float) -> float:
        """How far to the right."""
        return self.left + (WIDTH - self.left - RIGHT) * _share(value, self.across)

    def y(self, value: float) -> float:
        """How far down."""
        return self.floor - (self.floor - self.top) * _share(value, self.up)


def _share(value: float, ends: tuple[float, float]) -> float:
    return (value - ends[0]) / ((ends[1] - ends[0]) or 1.0)


def ticks(low: float, high: float, about: int = 5) -> list[float]:
    """Round numbers between two ends."""
    rough = (high - low) / about or 1.0
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * nice for nice in (1, 2, 2.5, 5, 10) if power * nice >= rough * 0.999)
    first = math.ceil(low / step - 1e-9)
    return [round(i * step, 12) for i in range(first, math.floor(high / step + 1e-9) + 1)]


def padded(values: Iterable[float], share: float = 0.06) -> tuple[float, float]:
    """The ends of what is to be shown, with a little room beyond."""
    known = [value for value in values if math.isfinite(value)] or [0.0, 1.0]
    low, high = min(known), max(known)
    room = (high - low) * share or abs(high) * share or 1.0
    return low - room, high + room


def grid(frame: Frame, percent: bool) -> list[str]:
    """Lines across with their values, in per cent or as they are."""
    drawn = list[str]()
    for tick in ticks(*frame.up):
        y = frame.y(tick)
        said = f"{100 * tick:g}%" if percent else f"{tick:g}"
        drawn.append(f'<path class="grid" d="M{frame.left} {y:.1f}H{WIDTH - RIGHT}"/>')
        drawn.append(f'<text x="{frame.left - 6}" y="{y + 4:.1f}" text-anchor="end">{_minus(said)}</text>')
    return drawn


def below(frame: Frame, name: str, scale: float = 1.0) -> str:
    """The axis below: its line, its ticks and its name."""
    drawn = [f'<path class="axis" d="M{frame.left} {frame.floor}H{WIDTH - RIGHT}"/>']
    for tick in ticks(scale * frame.across[0], scale * frame.across[1]):
        x = frame.x(tick / scale)
        drawn.append(f'<path class="axis" d="M{x:.1f} {frame.floor}v4"/>')
        drawn.append(f'<text x="{x:.1f}" y="{frame.floor + 16}" text-anchor="middle">{_minus(f"{tick:g}")}</text>')
    middle = (frame.left + WIDTH - RIGHT) / 2
    return "".join(
        [*drawn, f'<text class="name" x="{middle}" y="{frame.height - 4}" text-anchor="middle">{name}</text>']
    )


def svg(parts: Sequence[str], title: str, height: int = HEIGHT) -> str:
    """A picture of these parts."""
    head = f'<svg class="chart" viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{escape(title)}">'
    return head + "".join(parts) + "</svg>"


def _minus(text: str) -> str:
    return text.replace("-", "−")
