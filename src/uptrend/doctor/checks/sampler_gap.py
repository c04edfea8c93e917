"""Sampler against learner, from scalars: precision.mismatch, sync.stale-weights, sync.off-policy, policy.dropout-on."""

import numpy as np

from uptrend.doctor.check import Outcome, finding
from uptrend.doctor.curves import Curve, course
from uptrend.records import CannotTell, Confidence, Evidence, Finding, RunView, Severity

MISMATCH, STALE = "precision.mismatch", "sync.stale-weights"
OFF, DROPOUT = "sync.off-policy", "policy.dropout-on"
KL, RATIO, ESS = "sampler/kl/mean", "sampler/ratio/mean", "sampler/ess/share"
GAP = "sampler/gap/mean"
"""Has a check of its own."""
APART = 0.1
"""KL of learner from sampler that no numerics explain; 0.01 is healthy."""
GROWN = 0.02
"""And the least that a growing one must have reached."""


def check(view: RunView) -> Outcome:
    """Look at the gap at the start of the run, and at whether it grows."""
    outcome: Outcome = []
    dropout = _dropout(view)
    outcome += [dropout] if dropout else []
    gap = course(view, KL)
    if gap is None and not any(map(view.has, (RATIO, ESS, GAP))):
        return [*outcome, *(CannotTell(id, "no sampler-learner mismatch was logged") for id in (MISMATCH, STALE, OFF))]
    found = (gap and _stale(view, gap)) or _mismatch(view, gap) or _off_policy(view)
    return [*outcome, found] if found else outcome


def _stale(view: RunView, gap: Curve) -> Finding | None:
    """A sampler that keeps its first weights falls behind a little at every step, from nothing."""
    begin = float(np.median(gap.values[:3]))
    if len(gap.values) < 8 or gap.last < GROWN or gap.last < 10 * max(begin, 1e-12) or not gap.rises:
        return None
    parts = [float(np.median(part)) for part in np.array_split(gap.values, 4)]
    entropy = course(view, "learner/entropy/mean")
    # A policy that turns to noise widens every gap: then the gap is the symptom.
    if parts != sorted(parts) or (entropy is not None and entropy.last > 2 * entropy.first):
        return None
    text = f"Sampler and learner part a little more at every step ({begin:.2g} → {gap.last:.2g} nats a token)"
    shown = gap.evidence(f"Mismatch by quarters: {', '.join(f'{p:.2g}' for p in parts)}.")
    return finding(view, STALE, Severity.CRITICAL, Confidence.MEDIUM,
                   f"{text}: the sampler does not get the new weights.", [shown])  # fmt: skip


def _mismatch(view: RunView, gap: Curve | None) -> Finding | None:
    """Wrong from the first steps on, when both have the same weights."""
    ratio, ess = course(view, RATIO), course(view, ESS)
    begins = {c.metric: float(np.median(c.values[:5])) for c in (gap, ratio, ess) if c is not None}
    wrong = [
        Evidence(f"KL of learner from sampler {begins[KL]:.2g}; below 0.01 is healthy.", begins[KL], KL)
        for _ in [0] if begins.get(KL, 0.0) > APART
    ] + [
        Evidence(f"Mean ratio {begins[RATIO]:.3g}; 1 is exact.", begins[RATIO], RATIO)
        for _ in [0] if not 0.5 <= begins.get(RATIO, 1.0) <= 2
    ] + [
        Evidence(f"Effective share {begins[ESS]:.2g} of the tokens; 1 is exact.", begins[ESS], ESS)
        for _ in [0] if begins.get(ESS, 1.0) < 0.3
    ]  # fmt: skip
    if not wrong:
        return None
    text = "Sampler and learner disagree on the same tokens from the first steps on"
    return finding(view, MISMATCH, Severity.CRITICAL, Confidence.MEDIUM,
                   f"{text}: the learner corrects another model's words. {wrong[0].text}", wrong)  # fmt: skip


def _off_policy(view: RunView) -> Finding | None:
    ratio, ess = course(view, RATIO), course(view, ESS)
    is_far = ratio is not None and not 0.5 <= ratio.last <= 2
    if not is_far and (ess is None or ess.last >= 0.3):
        return None
    curve = ratio if is_far and ratio is not None else ess
    assert curve is not None
    text = f"The data the learner gets is no longer its own ({curve.metric} {curve.first:.3g} → {curve.last:.3g})."
    return finding(
        view, OFF, Severity.WARNING, Confidence.LOW, text, [curve.evidence("Healthy at first, and not now.")]
    )


def _dropout(view: RunView) -> Finding | None:
    """With one update on a step's rollouts, new and old probabilities come from the same weights."""
    ratio = course(view, "learner/ratio/mean")
    if view.trainer != "uptrend" or ratio is None:
        return None
    if view.value("learning.updates", 1) != 1 or view.value("learning.minibatches", 1) != 1:
        return None
    worst = float(np.abs(ratio.values - 1).max())
    if worst < 1e-3:
        return None
    text = (
        f"The ratio of new to old probability is off 1 by {worst:.2g} on the same weights: the learner has dropout on."
    )
    return finding(
        view, DROPOUT, Severity.WARNING, Confidence.HIGH, text, [ratio.evidence(f"Off by up to {worst:.2g}.")]
    )
