"""Rates that nobody trains with, whatever else was logged.

optimizer.lr-small    the rate is never as large as the least in use
optimizer.schedule    it rises so slowly that a tenth of the planned steps, the longest usual warm-up, leaves it below
                      the least that recipes aim for: the warm-up eats the run, or leads to nothing
optimizer.lr-large    it is larger than anybody's, and the reward falls or groups answer all alike: a step of Adam moves
                      every weight by about the rate, and 2e-3 is a good part of a weight
optimizer.frozen,     it is as large as that, and nothing moves at all: updates do not arrive, or a clip cuts them to
optimizer.clip-tight  nothing, as under plain descent

Full fine-tuning uses about 5e-7 to 1e-5, adapters up to some 1e-4.
"""

import numpy as np

from uptrend.doctor.check import Outcome, finding
from uptrend.doctor.curves import course, dead_groups
from uptrend.doctor.trend import trend_of
from uptrend.records import Confidence, Evidence, Finding, RunView, Severity, TrendKind
from uptrend.records.view import Floats

LEAST, USUAL, MOST = 1e-7, 5e-7, 2e-3
WARM_UP = 0.1
"""The share of a run that the longest usual warm-up takes."""
WASTED = 0.5
"""The share of dead groups that a broken model leaves."""
UNMOVED = 0.1
"""How far entropy may have gone, relatively, in a run in which nothing moves."""
FEWEST, LONG = 10, 20
RATE = "optimizer/lr"


def check(view: RunView) -> Outcome:
    """Compare the rates of the run with what anybody uses."""
    steps, rates = view.curve(RATE)
    if (
        len(rates) < FEWEST or trend_of(view).kind is TrendKind.LEARNING
    ):  # the check of learning rates says what is lacking
        return []
    largest, at = float(rates.max()), int(steps[int(np.argmax(rates))])
    shown = Evidence(f"The largest rate is {largest:.2g}, at step {at}.", largest, RATE, at)
    if largest >= MOST:
        return [*_large(view, largest, shown)]
    found = _crawling(view, rates, shown) if rates[-1] > 1.5 * np.median(rates) else _small(view, largest, shown)
    return [found] if found else []


def _small(view: RunView, largest: float, shown: Evidence) -> Finding | None:
    if not 0 < largest < LEAST:
        return None
    text = f"The learning rate is never above {largest:.2g}, at which no run moves: {LEAST:g} is the least in use."
    return finding(view, "optimizer.lr-small", Severity.WARNING, Confidence.MEDIUM, text, [shown])


def _crawling(view: RunView, rates: Floats, shown: Evidence) -> Finding | None:
    """A rate that rises evenly from the first step to the last, and gets nowhere within a usual warm-up."""
    planned, rises = view.value("learning.steps", 0), np.diff(rates)
    if len(rates) < LONG or not planned or not np.allclose(rises, rises.mean(), rtol=0.05) or rises.mean() <= 0:
        return None
    gaps = np.diff(view.curve(RATE)[0])
    reached = float(rises.sum() / gaps.sum()) * WARM_UP * planned
    if reached >= USUAL:
        return None
    text = (
        f"The learning rate still rises, and so slowly that after a tenth of {planned} steps it is {reached:.2g}: its "
        f"warm-up eats the run, or leads to nothing."
    )
    return finding(view, "optimizer.schedule", Severity.WARNING, Confidence.MEDIUM, text, [shown])


def _large(view: RunView, largest: float, shown: Evidence) -> list[Finding]:
    dead, entropy = dead_groups(view), course(view, "learner/entropy/mean")
    if trend_of(view).kind is TrendKind.FALLING or (len(dead) > 0 and float(dead.mean()) >= WASTED):
        text = f"The learning rate is {largest:.2g}, at which a step breaks a model: nobody uses more than {MOST:g}."
        return [finding(view, "optimizer.lr-large", Severity.WARNING, Confidence.MEDIUM, text, [shown])]
    if view.has("weights/update/norm") or entropy is None or len(entropy.values) < LONG:
        return []  # what the weights did is known, or nothing is
    if abs(entropy.last / entropy.first - 1) > UNMOVED or entropy.rises or entropy.falls:
        return []
    text = (
        f"Nothing moves at a learning rate of {largest:.2g}, at which Adam would break a model: updates do not arrive, "
        f"or are clipped to nothing. Weights before and after a step would settle it."
    )
    also = entropy.evidence(f"Entropy {entropy.first:.3g} → {entropy.last:.3g}.")
    ids = ("optimizer.clip-tight", "optimizer.frozen")
    return [finding(view, id, Severity.WARNING, Confidence.LOW, text, [shown, also]) for id in ids]
