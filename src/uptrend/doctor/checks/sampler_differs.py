"""How far sampler and learner are apart on the same tokens, where only the mean difference was logged, as by TRL.

    |log π_learner − log π_sampler|, mean over tokens       about 0.01 in bf16, 1e-6 in fp32

precision.mismatch    apart from the first step on, when both have the same weights
mask.attention-blind, suspected beside it where it is a whole nat: no rounding does that, but a learner that does not
tokens.padding        see what the sampler saw does
sync.stale-weights    nothing at the first step, and apart from the second on: the first update never got there
"""

import numpy as np

from uptrend.doctor.check import Outcome, finding
from uptrend.records import Confidence, Evidence, Finding, RunView, Severity

METRIC = "sampler/gap/mean"
APART = 0.08
"""Nats that no numerics explain: public logs have 0.01, smollm2-135m in bf16 has 0.05."""
ELSEWHERE = 1.0
"""Nats from which the learner must be reading something else."""
LEFT_BEHIND, TIMES = 0.02, 10.0
"""The difference from the second step on, and against the first step's, where an update did not arrive."""
FEWEST = 4
FIRST = 5
"""How many of the first steps are looked at: later a policy that turns to noise widens every gap."""


def check(view: RunView) -> Outcome:
    """Look at the difference at the first steps; the check of the sampler's gap says what is lacking."""
    steps, gaps = view.curve(METRIC)
    if len(gaps) < FEWEST:
        return []
    begin, later = float(np.median(gaps[:FIRST])), float(np.median(gaps[1:FIRST]))
    shown = Evidence(f"Mean difference {', '.join(f'{g:.2g}' for g in gaps[:FIRST])} at first.", begin, METRIC,
                     int(steps[0]))  # fmt: skip
    if steps[0] <= 1 and later > max(LEFT_BEHIND, TIMES * float(gaps[0])):
        return [_stale(view, float(gaps[0]), later, shown)]
    return [*_apart(view, begin, shown)] if begin > APART else []


def _stale(view: RunView, first: float, later: float, shown: Evidence) -> Finding:
    text = (
        f"Sampler and learner agree at the first step ({first:.2g} nats a token) and no longer after it ({later:.2g}): "
        f"the sampler does not get the new weights. Its log-probabilities before and after a synchronization settle it."
    )
    return finding(view, "sync.stale-weights", Severity.CRITICAL, Confidence.MEDIUM, text, [shown])


def _apart(view: RunView, begin: float, shown: Evidence) -> list[Finding]:
    text = f"Sampler and learner differ by {begin:.2g} nats a token from the first steps on; 0.01 is usual."
    found = [finding(view, "precision.mismatch", Severity.CRITICAL, Confidence.MEDIUM, text, [shown])]
    reasons = {
        "mask.attention-blind": "The learner may not see the prompt: swap it, and its log-probabilities must move.",
        "tokens.padding": "The learner may read padded rows wrongly: score one rollout alone and in a batch.",
    }
    if begin > ELSEWHERE:
        found += [finding(view, id, Severity.WARNING, Confidence.LOW, why, [shown]) for id, why in reasons.items()]
    return found
