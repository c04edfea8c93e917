"""run.collapsed: the reward fell from its best and stayed down; says what went first."""

import numpy as np

from uptrend.doctor.check import Outcome, finding
from uptrend.doctor.collapse import SHORTEST, find_collapse
from uptrend.doctor.curves import REWARD
from uptrend.records import CannotTell, Confidence, Evidence, RunView, Severity
from uptrend.stats.trend import robust_spread

SIGNALS = {
    "kl/reference/mean": "KL",
    "learner/entropy/mean": "entropy",
    "sampling/length/mean": "length",
    "gradient/norm/before": "the gradient",
    "sampler/kl/mean": "the gap between sampler and learner",
}


def check(view: RunView) -> Outcome:
    """Find a fall that was not made good, and order what moved before it."""
    steps, values = view.curve(REWARD)
    if len(values) < SHORTEST:
        return [CannotTell("run.collapsed", f"fewer than {SHORTEST} points of reward")]
    collapse = find_collapse(view)
    if collapse is None:
        return []
    step = int(steps[collapse.index - 1])
    moved = sorted(
        (at, name, metric) for metric, name in SIGNALS.items() if (at := _departure(view, metric, step)) is not None
    )
    text = f"The reward fell from {collapse.best:.3g} to {collapse.last:.3g} near step {step} and stayed down"
    first = f"; {moved[0][1]} went first, at step {moved[0][0]}" if moved else ""
    evidence = [Evidence(f"Best level {collapse.best:.3g}, last {collapse.last:.3g}.", collapse.last, REWARD, step)]
    evidence += [Evidence(f"{name} left its range at step {at}.", None, metric, at) for at, name, metric in moved]
    return [finding(view, "run.collapsed", Severity.CRITICAL, Confidence.HIGH, f"{text}{first}.", evidence)]


def _departure(view: RunView, metric: str, fall: int) -> int | None:
    """The first step, up to a little after the fall, from which a metric stays outside its early range."""
    steps, values = view.curve(metric)
    early = values[: max(4, int(np.searchsorted(steps, fall)) // 2)]
    if len(values) < 8 or len(early) < 4:
        return None
    reach = 5 * max(robust_spread(early), float(np.std(early)) / 2, 1e-3 * abs(float(np.median(early))), 1e-9)
    outside = np.abs(values - float(np.median(early))) > reach
    for at in range(len(early), len(values) - 2):
        if outside[at : at + 3].all():
            return int(steps[at]) if steps[at] <= fall + 0.1 * (steps[-1] - steps[0]) else None
    return None
