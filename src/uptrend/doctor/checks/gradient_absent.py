"""optimizer.frozen from scalars: groups differ, so that there is something to learn from, and no gradient ever arrives.

The gradient of a step is exactly 0 where all of its groups are dead. Where some are alive at every step and it is 0 all
the same, the loss is cut off from the weights: nothing requires a gradient, or something detaches it on the way.
"""

import numpy as np

from uptrend.doctor.check import Outcome, finding
from uptrend.doctor.curves import REWARD
from uptrend.doctor.trend import trend_of
from uptrend.records import Confidence, Evidence, RunView, Severity, TrendKind

ID = "optimizer.frozen"
GRADIENT, DEAD = "gradient/norm/before", "advantage/dead/share"
ALIVE = 0.9
"""Fewer dead groups than this share leave something to learn from at that step."""
KL, MOVED = "kl/reference/mean", 1e-3
"""A policy that has gone so far was moved by something."""
FEWEST = 5


def check(view: RunView) -> Outcome:
    """Look for gradients that are 0 at every step with live groups."""
    if not view.has(GRADIENT, DEAD, REWARD):  # the check of weights says what is lacking
        return []
    gradient, dead = view.metrics[GRADIENT], view.metrics[DEAD]
    norms = gradient[np.isfinite(gradient) & (dead < ALIVE) & np.isfinite(view.metrics[REWARD])]
    if len(norms) < FEWEST or norms.any() or trend_of(view).kind is TrendKind.LEARNING:
        return []
    if float(view.curve(KL)[1].max(initial=0.0)) > MOVED:  # a norm that somebody rounded away
        return []
    text = f"The gradient is exactly 0 at all of {len(norms)} steps that had live groups: it never reaches the weights."
    shown = Evidence(f"0 at each of {len(norms)} steps with fewer than {ALIVE:.0%} dead groups.", 0.0, GRADIENT)
    return [finding(view, ID, Severity.CRITICAL, Confidence.MEDIUM, text, [shown])]
