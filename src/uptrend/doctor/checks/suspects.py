"""Hidden causes that dead groups or a constant reward suggest where only scalars were kept.

Nothing here speaks without an alarm of dead groups or of a constant reward, and none of it is sure: each finding says
what record would settle it, and a mere guess is a note. With rollouts the checks that read them decide instead.

    reward.wrong-length           all groups of every step dead, the whole batch alike, and the value moves from step
                                  to step: one score was spread over all
    config.group-of-one           all groups of every step dead though rollouts of a batch differ: nothing is compared
    reward.gold-rejected          one lowest reward for all from the first step on: broken scorers are more common than
                                  tasks of which not one attempt succeeds
    reward.never-computed         the same, and the value is 0, which is also what an event leaves that never came
    reward.strict-parser          the same, and the value is another, which something must have given
"""

import numpy as np

from uptrend.doctor.check import Outcome, finding
from uptrend.doctor.checks import dead_groups, reward_constant
from uptrend.doctor.curves import REWARD, course
from uptrend.doctor.curves import dead_groups as dead_share
from uptrend.doctor.rank import alarms
from uptrend.records import Confidence, Evidence, Finding, RunView, Severity
from uptrend.records.view import Floats

ALL = 0.999
"""The share of dead groups that leaves none alive."""
SURE_OF_ITSELF = 0.1
"""Nats a token below which completions of one prompt are mostly one text."""
WHY = {
    "reward.gold-rejected": "The scorer may reject every answer: score a few gold answers to settle it.",
    "reward.never-computed": "The event that gives a reward may never occur: count it in a few rollouts to settle it.",
    "reward.strict-parser": "The scorer may fail to read the answers: read a few rollouts to settle it.",
    "reward.wrong-length": "All rollouts of a step have one reward, and another one at the next: one score may be "
    "spread over all. The rewards of one batch, with its texts, would settle it.",
    "config.group-of-one": "Rollouts of a step differ in their rewards, and those of a group never do: groups may have "
    "one rollout each, or the reward sees the prompt alone. The group size would settle it.",
}


def check(view: RunView) -> Outcome:
    """Ask what may lie behind an alarm."""
    if view.rollout_steps:
        return []
    if _alarms(reward_constant.check(view)):
        return [*_unpaid(view)]
    dead = _alarms(dead_groups.check(view))
    found = same_for_all(view) if dead else None
    return [found] if found else []


def _alarms(outcome: Outcome) -> list[Finding]:
    return alarms(o for o in outcome if isinstance(o, Finding))


def _unpaid(view: RunView) -> list[Finding]:
    """Scorers that may be broken, where not one rollout was ever paid more than the least."""
    steps, values = view.curve(REWARD)
    if np.ptp(values) > 0 or values[0] > 0:
        return []
    value = float(values[0])
    shown = Evidence(f"{value:.3g} at each of {len(values)} points, from the first on.", value, REWARD, int(steps[0]))
    other = "reward.never-computed" if value == 0 else "reward.strict-parser"
    return [_suspect(view, id, Confidence.LOW, shown) for id in ("reward.gold-rejected", other)]


def same_for_all(view: RunView) -> Finding | None:
    """Not a single live group in the whole run, though rewards do move."""
    spread, entropy = _batch_spread(view), course(view, "learner/entropy/mean")
    if float(dead_share(view).min()) < ALL or spread is None:
        return None
    shown = Evidence("All groups of every step are dead.", 1.0, "advantage/dead/share")
    if float(spread.max()) < 1e-6 < float(np.ptp(view.curve(REWARD)[1])):
        return _suspect(view, "reward.wrong-length", Confidence.MEDIUM, shown)
    if float(np.median(spread)) > 1e-6 and entropy is not None and entropy.begin > SURE_OF_ITSELF:
        return _suspect(view, "config.group-of-one", Confidence.LOW, shown)
    return None


def _batch_spread(view: RunView) -> Floats | None:
    """The deviation of rewards over whole batches: as logged, or of the sole component that they consist of."""
    if view.has("reward/std"):
        return view.curve("reward/std")[1]
    parts = [view.curve(f"reward/part/{name}/std")[1] for name in view.parts()]
    return parts[0] if len(parts) == 1 and len(parts[0]) else None


def _suspect(view: RunView, id: str, confidence: Confidence, shown: Evidence) -> Finding:
    severity = Severity.NOTE if confidence is Confidence.LOW else Severity.WARNING
    return finding(view, id, severity, confidence, WHY[id], [shown])
