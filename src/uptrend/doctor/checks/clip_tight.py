"""optimizer.clip-tight: every gradient is cut, and the updates shrink with it.

Adam cancels a constant rescale: its update is about the rate times the root of the number of weights, however small the
gradient. Under plain descent the update is the rate times the gradient, and a clip sets its length. Which of the two it
is shows in the lengths, whatever the optimizer is called.
"""

import numpy as np

from uptrend.doctor.check import Outcome, finding
from uptrend.doctor.curves import Curve, course
from uptrend.records import Confidence, Evidence, RunView, Severity

ID = "optimizer.clip-tight"
BEFORE, AFTER = "gradient/norm/before", "gradient/norm/after"
UPDATE, RATE = "weights/update/norm", "optimizer/lr"
PLAIN = 0.1
"""How far the update may be from the rate times the clipped gradient, relatively, in plain descent."""
FEWEST = 5


def check(view: RunView) -> Outcome:
    """Ask whether all gradients are cut, and what is left of the update."""
    limit, gradient = view.value("learning.max_grad_norm", 0), course(view, BEFORE)
    if not limit or gradient is None or float(np.quantile(gradient.values, 0.05)) < 2 * limit:
        return []
    is_named = str(view.value("learning.optimizer", "adamw")).lower() == "sgd"
    if not is_named and not _is_plain(view):
        return []
    text = f"Every gradient is cut to {limit:g} from about {gradient.last:.3g}, and updates shrink with it."
    shown = [gradient.evidence("Clipped at every step."), *_length(course(view, UPDATE))]
    return [finding(view, ID, Severity.WARNING, Confidence.MEDIUM, text, shown)]


def _is_plain(view: RunView) -> bool:
    """Whether an update is the rate times the gradient, at every step."""
    if not view.has(UPDATE, RATE, AFTER):
        return False
    asked = view.metrics[RATE] * view.metrics[AFTER]
    known = np.isfinite(asked) & np.isfinite(view.metrics[UPDATE]) & (np.nan_to_num(asked) > 0)
    ratio = view.metrics[UPDATE][known] / asked[known]
    return len(ratio) >= FEWEST and bool((np.abs(ratio - 1) < PLAIN).all())


def _length(update: Curve | None) -> list[Evidence]:
    return [] if update is None else [update.evidence(f"An update is {update.last:.2g} long.")]
