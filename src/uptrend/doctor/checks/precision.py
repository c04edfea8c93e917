"""Do the weights move? precision.update-underflow and optimizer.frozen."""

import numpy as np

from uptrend.doctor.check import Outcome, finding
from uptrend.doctor.trend import trend_of
from uptrend.records import CannotTell, Confidence, Evidence, Finding, RunView, Severity, TrendKind
from uptrend.records.view import Floats

UNDERFLOW, FROZEN, SMALL = "precision.update-underflow", "optimizer.frozen", "optimizer.lr-small"
CHANGED = 0.5
"""The share of weights that must change bits in a step with a gradient."""
FEWEST = 3


def check(view: RunView) -> Outcome:
    """Look at the weights' changes on steps that had a gradient and a rate."""
    changed, update = _where_driven(view, "weights/changed/share"), _where_driven(view, "weights/update/norm")
    outcome: Outcome = []
    if len(update) == 0 and len(changed) == 0:
        return [CannotTell(id, "no changes of the weights were logged") for id in (UNDERFLOW, FROZEN)]
    if max(len(update), len(changed)) < FEWEST:
        return [CannotTell(id, f"fewer than {FEWEST} steps with a gradient") for id in (UNDERFLOW, FROZEN)]
    if len(update) >= FEWEST and not update.any():
        return [_frozen(view, len(update))]
    if len(changed) == 0:
        return [*outcome, CannotTell(UNDERFLOW, "the share of weights that changed was not logged")]
    # The first step of an adapter moves one of its two halves only.
    typical = float(np.median(changed[1:]))
    return [_underflow(view, typical)] if typical < CHANGED else outcome


def _where_driven(view: RunView, metric: str) -> Floats:
    if not view.has(metric):
        return np.zeros(0)
    values = view.metrics[metric]
    driven = np.isfinite(values)
    for cause in ("gradient/norm/before", "optimizer/lr"):
        if view.has(cause):
            driven &= np.nan_to_num(view.metrics[cause]) > 0
    return np.asarray(values[driven])


def _frozen(view: RunView, steps: int) -> Finding:
    text = f"No trained weight changed in {steps} steps although there was a gradient: the optimizer moves nothing."
    shown = Evidence("Length of the update exactly 0 at every step.", 0.0, "weights/update/norm", int(view.steps[-1]))
    return finding(view, FROZEN, Severity.CRITICAL, Confidence.HIGH, text, [shown])


def _underflow(view: RunView, typical: float) -> Finding:
    is_learning = trend_of(view).kind is TrendKind.LEARNING
    precision, rate = view.value("model.weights", "the weights' precision"), view.value("learning.lr")
    text = (
        f"Only {typical:.1%} of the weights change bits in a step, in {precision}"
        f"{f' at a learning rate of {rate:.2g}' if rate else ''}: most updates round to nothing."
    )
    severity = Severity.CRITICAL if typical < 0.1 and not is_learning else Severity.WARNING
    shown = Evidence(f"Median share of weights changed {typical:.3g}.", typical, "weights/changed/share")
    # Nothing is more precise than fp32: what rounds to nothing there is too small a step.
    return finding(view, SMALL if precision == "fp32" else UNDERFLOW, severity, Confidence.HIGH, text, [shown])
