"""config.group-of-one: a group of 1 has nothing to be compared with."""

from uptrend.doctor.check import Outcome, finding
from uptrend.doctor.curves import group_size
from uptrend.records import CannotTell, Confidence, Evidence, RunView, Severity


def check(view: RunView) -> Outcome:
    """Read the group size from the config."""
    size = group_size(view)
    if size == 0:
        return [CannotTell("config.group-of-one", "the group size is not known")]
    if size > 1:
        return []
    text = "Groups have 1 rollout, so that the advantage is the raw score or 0, and never a comparison."
    shown = Evidence("Rollouts a group: 1.", 1.0, "sampling.size")
    return [finding(view, "config.group-of-one", Severity.CRITICAL, Confidence.HIGH, text, [shown])]
