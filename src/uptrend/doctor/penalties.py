"""What the penalties of a run weigh: as its config says, else as its loss shows.

    loss = policy part + beta · KL − bonus · entropy

With centered advantages and one update a batch the policy part is 0 by construction, so that a loss which follows KL or
entropy at one ratio all run long shows a weight that nobody logged.
"""

import numpy as np

from uptrend.records import RunView
from uptrend.records.view import Floats

LOSS, KL, ENTROPY = "loss/total", "kl/reference/mean", "learner/entropy/mean"
FEWEST = 10
ALIKE = 0.95
"""The correlation with the loss from which a penalty is what moves it."""
LEFT = 0.1
"""The share of the loss, in squares, that one ratio may leave unexplained."""


def kl_weight(view: RunView) -> float:
    """The weight of the KL penalty; 0 where nothing shows one."""
    told = view.value("learning.kl.beta")
    return float(told) if isinstance(told, int | float) else max(0.0, _ratio(view, KL))


def entropy_weight(view: RunView) -> float:
    """The weight of the entropy bonus, negative where low entropy is paid; 0 where nothing shows one."""
    told = view.value("learning.entropy")
    return float(told) if isinstance(told, int | float) else -_ratio(view, ENTROPY)


def _ratio(view: RunView, metric: str) -> float:
    """Of the loss to a metric, where the loss follows it; 0 where it does not."""
    if not view.has(LOSS, metric):
        return 0.0
    loss, values = view.metrics[LOSS], view.metrics[metric]
    both = np.isfinite(loss) & np.isfinite(values)
    return _slope(values[both], loss[both]) if both.sum() >= FEWEST else 0.0


def _slope(x: Floats, y: Floats) -> float:
    """Of a line through the origin that explains y; 0 where none does."""
    if np.ptp(x) == 0 or np.ptp(y) == 0 or abs(np.corrcoef(x, y)[0, 1]) < ALIKE:
        return 0.0
    slope = float(x @ y / (x @ x))
    return slope if float(np.sum((y - slope * x) ** 2)) < LEFT * float(y @ y) else 0.0
