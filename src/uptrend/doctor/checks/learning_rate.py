"""Step sizes: optimizer.lr-small, lr-large, schedule, dead-steps and skipped-updates."""

import numpy as np

from uptrend.doctor.check import Outcome, finding
from uptrend.doctor.collapse import find_collapse
from uptrend.doctor.curves import course, dead_groups
from uptrend.doctor.held_out import is_learned
from uptrend.doctor.penalties import entropy_weight
from uptrend.doctor.trend import trend_of
from uptrend.records import CannotTell, Confidence, Evidence, Finding, RunView, Severity, TrendKind

SMALL, LARGE, SCHEDULE = "optimizer.lr-small", "optimizer.lr-large", "optimizer.schedule"
DEAD, SKIPPED = "optimizer.dead-steps", "optimizer.skipped-updates"
NEAR = 0.01
"""KL at the end of a run below which the policy has hardly left its start."""
LEAVING = 5.0
"""Final KL / first-quarter KL above which the policy is still moving."""
MOVED = 0.002
"""The same by weights: the path of all updates against the weights' length."""
LEAP = 0.01
"""The share of the weights' length that no single update should be; adapters, which start at 0, aside."""
CLIPPED = 0.2
"""The share of clipped tokens from which updates are too large."""
USED = 0.2
"""The share of the rate asked for that a schedule must leave on average."""
HEAVY = 0.1
"""The weight of an entropy bonus, ten times what is usual, from which it may rule the update."""
FEWEST = 10


def check(view: RunView) -> Outcome:
    """Look at rates, gradients and how far the policy went."""
    if len(view.steps) < FEWEST:
        return [CannotTell(id, f"fewer than {FEWEST} points") for id in (SMALL, LARGE, SCHEDULE, DEAD)]
    outcome: Outcome = [f for f in (_large(view), _schedule(view), _skipped(view), _dead(view)) if f]
    if not view.has("kl/reference/mean") and not view.has("weights/update/norm", "weights/norm"):
        return [*outcome, CannotTell(SMALL, "neither KL nor the size of updates was logged")]
    small = _small(view)
    return [*outcome, small] if small else outcome


def _small(view: RunView) -> Finding | None:
    """The policy hardly left its start; a warning where the reward did not rise and groups were alive."""
    kl, trend = course(view, "kl/reference/mean"), trend_of(view).kind
    by_kl = kl is not None and bool(kl.values.any()) and 0 <= kl.last < (1e-3 if trend is TrendKind.LEARNING else NEAR)
    path = _path(view)
    if is_learned(view):
        return None
    if not by_kl and not (path is not None and path < MOVED and trend is not TrendKind.LEARNING):
        return None
    dead = dead_groups(view)
    is_dead = len(dead) > 0 and float(dead.mean()) > 0.9
    rate = view.value("learning.lr")
    shown = []
    if kl is not None and by_kl:
        shown.append(kl.evidence(f"KL to the reference {kl.first:.2g} in the first quarter, {kl.last:.2g} at the end."))
    gradient = course(view, "gradient/norm/before")
    if gradient is not None and gradient.last > 0:
        shown.append(gradient.evidence(f"Gradient {gradient.last:.2g}: there is something to learn from."))
    if path is not None:
        shown.append(
            Evidence(f"All updates together are {path:.2g} of the weights' length.", path, "weights/update/norm")
        )
    is_long = trend in (TrendKind.FLAT, TrendKind.FALLING) or (
        trend is TrendKind.TOO_SHORT and int(view.steps[-1]) >= 50
    )
    # A policy that leaves slowly but ever faster is on its way, and only needs time.
    is_on_its_way = kl is not None and by_kl and kl.last > LEAVING * max(kl.first, 0.0)
    fault = is_long and not is_on_its_way
    return finding(
        view,
        SMALL,
        Severity.WARNING if fault and not is_dead else Severity.NOTE,
        Confidence.MEDIUM,
        f"The policy hardly left its start{f' at a learning rate of {rate:.2g}' if rate else ''}: updates are too "
        f"small or too few to show.",
        shown,
    )


def _path(view: RunView) -> float | None:
    """The sum of the updates' lengths against the weights' length."""
    update, norm = view.curve("weights/update/norm")[1], view.curve("weights/norm")[1]
    return float(update.sum() / norm[0]) if len(update) and len(norm) and norm[0] > 0 else None


def _leap(view: RunView) -> float:
    """The median length of an update against the weights' length; 0 where they were not logged."""
    if not view.has("weights/update/norm", "weights/norm"):
        return 0.0
    return float(np.nanmedian(view.metrics["weights/update/norm"] / view.metrics["weights/norm"]))


def _large(view: RunView) -> Finding | None:
    clipped = [c for name in ("clip/low/share", "clip/high/share", "clip/region/share") if (c := course(view, name))]
    most = max(clipped, key=lambda c: c.last, default=None)
    trend, collapse = trend_of(view).kind, find_collapse(view)
    if most is not None and most.last > CLIPPED:
        text = f"{most.last:.0%} of tokens are clipped: updates leave the region that they were computed for."
        severity = Severity.NOTE if trend is TrendKind.LEARNING else Severity.WARNING
        return finding(
            view, LARGE, severity, Confidence.MEDIUM, text, [most.evidence(f"Clipped share {most.last:.2f}.")]
        )
    leap = _leap(view)
    if leap > LEAP and trend is not TrendKind.LEARNING and not view.value("model.lora"):
        text = (
            f"A step changes the weights by {leap:.1%} of their length, and the reward does not rise: too large a step."
        )
        shown = Evidence(f"Update over weights {leap:.3g}; about 0.001 is usual.", leap, "weights/update/norm")
        return finding(view, LARGE, Severity.WARNING, Confidence.MEDIUM, text, [shown])
    steps, rates = view.curve("optimizer/lr")
    if collapse is None or len(rates) == 0:
        return None
    if abs(entropy_weight(view)) >= HEAVY:  # a bonus that heavy is the likelier reason of a fall
        return None
    step = int(view.curve("reward/mean")[0][collapse.index - 1])
    rate = float(np.interp(step, steps, rates))
    if rate < 0.5 * float(rates.max()):
        return None
    text = f"The reward fell from {collapse.best:.3g} to {collapse.last:.3g} near step {step}, at a rate of {rate:.2g}"
    shown = Evidence(f"Learning rate {rate:.2g} of at most {rates.max():.2g} at the fall.", rate, "optimizer/lr", step)
    return finding(
        view, LARGE, Severity.WARNING, Confidence.MEDIUM, f"{text}, near its peak: steps are too large.", [shown]
    )


def _schedule(view: RunView) -> Finding | None:
    steps, rates = view.curve("optimizer/lr")
    asked = view.value("learning.lr")
    if len(rates) < FEWEST or not isinstance(asked, int | float) or asked <= 0:
        return None
    used = float(rates.mean()) / asked
    if used >= USED:
        return None
    is_fault = trend_of(view).kind in (TrendKind.FLAT, TrendKind.FALLING)
    text = f"The schedule left {used:.0%} of the learning rate on average: warm-up or decay ate the run."
    shown = Evidence(f"Mean rate {rates.mean():.2g} of {asked:.2g}.", used, "optimizer/lr", int(steps[-1]))
    return finding(view, SCHEDULE, Severity.WARNING if is_fault else Severity.NOTE, Confidence.MEDIUM, text, [shown])


def _skipped(view: RunView) -> Finding | None:
    steps, skipped = view.curve("optimizer/skipped/count")
    total = float(skipped.sum())
    if total == 0:
        return None
    share = total / max(total, total + float(view.curve("optimizer/updates/count")[1].sum()))
    at = int(steps[int(np.argmax(skipped > 0))])
    text = (
        f"{total:.0f} updates were not applied ({share:.0%} of them), the first at step {at}, while steps counted on."
    )
    shown = Evidence(f"Skipped from step {at} on.", total, "optimizer/skipped/count", at)
    severity = Severity.CRITICAL if share > 0.2 else Severity.WARNING
    return finding(view, SKIPPED, severity, Confidence.HIGH, text, [shown])


def _dead(view: RunView) -> Finding | None:
    gradient = view.curve("gradient/norm/before")[1]
    share = float(np.mean(gradient == 0)) if len(gradient) else 0.0
    if share < 0.2:
        return None
    is_fault = trend_of(view).kind in (TrendKind.FLAT, TrendKind.FALLING)
    text = f"The gradient is exactly 0 at {share:.0%} of the logged points: those steps changed nothing."
    shown = Evidence(f"{int((gradient == 0).sum())} of {len(gradient)} points.", share, "gradient/norm/before")
    return finding(view, DEAD, Severity.WARNING if is_fault else Severity.NOTE, Confidence.HIGH, text, [shown])
