"""sampling.entropy-collapse and sampling.entropy-explosion."""

from uptrend.doctor.check import Outcome, finding
from uptrend.doctor.curves import REWARD, Curve, course, height
from uptrend.doctor.penalties import entropy_weight
from uptrend.doctor.trend import trend_of
from uptrend.records import CannotTell, Confidence, Finding, RunView, Severity, TrendKind

COLLAPSE, EXPLOSION = "sampling.entropy-collapse", "sampling.entropy-explosion"
GONE = 0.1
"""The share of its start below which entropy has collapsed, while the reward does not rise."""
NOTED = 0.5
"""The share below which its fall is worth a note, whatever the reward does."""
EMPTY = 0.05
"""Nats below which there is nothing left to explore with, where the start is that low already."""
FEWEST = 10
NEAR_TOP = 0.9
"""Where in its range a reward has little left to learn, so that certainty is what was asked for."""


def check(view: RunView) -> Outcome:
    """Compare entropy at the end with its start, and with what the reward did."""
    entropy = course(view, "learner/entropy/mean")
    if entropy is None:
        return [CannotTell(id, "no entropy was logged") for id in (COLLAPSE, EXPLOSION)]
    if len(entropy.values) < FEWEST or entropy.first <= 0:
        return []
    found = _collapse(view, entropy) or _explosion(view, entropy)
    return [found] if found else []


def _collapse(view: RunView, entropy: Curve) -> Finding | None:
    begin = float(entropy.values[:3].mean())
    share = entropy.last / max(begin, entropy.first)
    trend = trend_of(view).kind
    is_stuck = trend in (TrendKind.FLAT, TrendKind.FALLING)
    is_spent = is_stuck and entropy.last < EMPTY and entropy.first < EMPTY and share < 0.7
    if share >= NOTED and not is_spent:
        return None
    is_paid = entropy_weight(view) < 0  # a bonus of the wrong sign asks for it
    is_empty = (share < GONE or is_spent) and not _is_at_the_top(view, trend)
    is_fault = is_stuck and (is_empty or is_paid)
    return finding(
        view,
        COLLAPSE,
        Severity.WARNING if is_fault else Severity.NOTE,
        _sure(is_fault, share < GONE or is_paid),
        f"Entropy fell from {begin:.3g} to {entropy.last:.3g} nats {_meanwhile(view, is_fault)}.",
        [entropy.evidence(f"Entropy at {share:.1%} of its start.")],
    )


def _meanwhile(view: RunView, is_fault: bool) -> str:
    """What the reward did, and what that makes of the fall."""
    if is_fault:
        return "while the reward stood still: there is nothing left to explore with"
    trend = trend_of(view).kind
    if _is_at_the_top(view, trend):
        return "with the reward near its top: a policy that is right grows sure, and that is normal"
    if trend is TrendKind.LEARNING:
        return "while the reward rose: a policy that learns grows sure, and that is normal"
    return "over the run"


def _is_at_the_top(view: RunView, trend: TrendKind) -> bool:
    """Whether the reward stays near the largest that rollouts got; of means alone that can't be said."""
    reward = course(view, REWARD)
    if reward is None or trend is TrendKind.FALLING or not view.has("reward/max"):
        return False
    return height(view, reward.last) >= NEAR_TOP


def _sure(is_fault: bool, is_plain: bool) -> Confidence:
    if not is_fault:
        return Confidence.LOW
    return Confidence.HIGH if is_plain else Confidence.MEDIUM


def _explosion(view: RunView, entropy: Curve) -> Finding | None:
    begin = float(entropy.values[:3].mean())
    if entropy.last < 3 * begin or entropy.last - begin < 0.5:
        return None
    is_fault = trend_of(view).kind is TrendKind.FALLING
    return finding(
        view,
        EXPLOSION,
        Severity.CRITICAL
        if is_fault
        else Severity.NOTE
        if trend_of(view).kind is TrendKind.LEARNING
        else Severity.WARNING,
        Confidence.HIGH if is_fault else Confidence.MEDIUM,
        f"Entropy grew from {begin:.3g} to {entropy.last:.3g} nats: the text has turned towards noise.",
        [entropy.evidence(f"Entropy × {entropy.last / begin:.1f}.")],
    )
