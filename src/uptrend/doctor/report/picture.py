"""A reward curve as SVG, without a library."""

from collections.abc import Sequence

WIDTH, HEIGHT, LEFT, BOTTOM = 800, 180, 50, 22


def picture(curve: Sequence[tuple[int, float]]) -> str:
    """The training reward over steps; nothing where fewer than two points are known."""
    if len(curve) < 2:
        return ""
    steps, rewards = [step for step, _ in curve], [reward for _, reward in curve]
    low, high = min(rewards), max(rewards)
    span = (high - low) or 1.0
    across = (steps[-1] - steps[0]) or 1
    points = " ".join(
        f"{LEFT + (WIDTH - LEFT - 5) * (step - steps[0]) / across:.1f},"
        f"{5 + (HEIGHT - BOTTOM - 10) * (1 - (reward - low) / span):.1f}"
        for step, reward in curve
    )
    floor = HEIGHT - BOTTOM
    return (
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="training reward by step">'
        f'<path d="M{LEFT} 0V{floor}H{WIDTH}" fill="none" stroke="currentColor" opacity=".3"/>'
        f'<polyline points="{points}" fill="none" stroke="#1f6fb5" stroke-width="2"/>'
        f'<text x="{LEFT - 6}" y="12" text-anchor="end">{high:.3g}</text>'
        f'<text x="{LEFT - 6}" y="{floor}" text-anchor="end">{low:.3g}</text>'
        f'<text x="{LEFT}" y="{HEIGHT - 6}">step {steps[0]}</text>'
        f'<text x="{WIDTH - 5}" y="{HEIGHT - 6}" text-anchor="end">training reward, step {steps[-1]}</text></svg>'
    )
