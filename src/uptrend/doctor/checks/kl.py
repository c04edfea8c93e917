"""Distance from the reference: a penalty that holds the policy or lets it go, and estimates that can't be right."""

from collections.abc import Callable

import numpy as np

from uptrend.doctor.case import Case
from uptrend.doctor.check import Check, Found, Lacking, check
from uptrend.doctor.curves import Curve
from uptrend.records import Confidence, Evidence, Severity, TrendKind

KL, GRADIENT = "kl/reference/mean", "gradient/norm/before"
FEWEST = 10

# Nats per token that no fine-tuning needs, and that no policy comes back from.
FAR, SPIKE = 1.0, 100.0
# Weight of a penalty that may hold the policy; KL below which it has not left its start.
LARGE_BETA, NEAR = 0.1, 1e-3
# KL that a penalty may hold the policy to, and what beta × KL must weigh, where advantages are about 1.
HELD, WEIGHTY = 0.05, 0.1
# Whole gradient / the policy's own, above which the penalty rules it.
RULES = 2.5
# KL of a model from itself that kernels and quantized weights may leave; public logs have up to 0.0032.
SAME = 0.02


def _check_kl(id: str) -> Callable[[Callable[[Case, Curve], Found | None]], Check]:
    """Make a check of a function that judges the KL curve; one of zeros alone was not computed."""

    def decorate(judge: Callable[[Case, Curve], Found | None]) -> Check:
        def judge_case(case: Case) -> Found | Lacking | None:
            kl = case.course(KL)
            return Lacking("no KL was logged") if kl is None or not kl.values.any() else judge(case, kl)

        return check(id)(judge_case)

    return decorate


@_check_kl("kl.reference")
def reference(case: Case, kl: Curve) -> Found | None:
    """Report a KL at the first step, where policy and reference are one model."""
    steps, first = case.view.curve(KL)[0], float(kl.values[0])
    # Points that average several steps say nothing of the first.
    if len(steps) < 5 or steps[0] > 1 or steps[1] - steps[0] > 1 or first < SAME:
        return None
    if first < 0.25 * float(np.median(kl.values[1:5])):
        return None
    text = f"KL to the reference is {first:.3g} at the first step, where both should be one model."
    shown = Evidence(f"KL {first:.3g} at step {steps[0]}.", first, KL, int(steps[0]))
    return Found(Severity.WARNING, Confidence.MEDIUM, text, [shown])


@_check_kl("kl.sign")
def sign(case: Case, kl: Curve) -> Found | None:
    """Report a negative k2 or k3; a trainer that may have logged k1 is not judged."""
    view, at = case.view, int(np.argmin(kl.values))
    known = view.trainer == "trl" or (view.trainer == "uptrend" and view.value("learning.kl.estimator", "k3") != "k1")
    step, value = int(view.curve(KL)[0][at]), float(kl.values[at])
    if not known or value > -1e-3:
        return None
    text = f"The KL estimate is {value:.3g} at step {step}, and this estimator can't be negative: its sign is wrong."
    return Found(Severity.CRITICAL, Confidence.HIGH, text, [Evidence(f"KL {value:.3g}.", value, KL, step)])


@_check_kl("kl.runaway")
def runaway(case: Case, kl: Curve) -> Found | None:
    """Report a policy that goes far from the reference; a note where the reward pays for it."""
    begin, most = float(kl.values[:3].min()), float(kl.values.max())
    is_far = kl.last > FAR and kl.last > 5 * max(begin, 0)
    if len(kl.values) < FEWEST or not (is_far or most > SPIKE):
        return None
    effect, change = case.trend.effect or 0.0, case.held_out
    is_gain = case.trend.kind is TrendKind.LEARNING and effect / max(case.rollout_spread, 1e-12) > 0.5
    pays = is_gain and not (change and change.effect <= 0)
    went = f"KL to the reference went from {begin:.3g} to {kl.last:.3g} nats per token (at most {most:.3g})"
    text = f"{went} for a change of the reward of {effect:+.3g}."
    severity = Severity.NOTE if pays and most < SPIKE else Severity.WARNING
    confidence = Confidence.HIGH if kl.last > FAR and not pays else Confidence.MEDIUM
    return Found(severity, confidence, text, [kl.evidence(f"KL {begin:.3g} → {kl.last:.3g}.")])


@_check_kl("kl.strangles")
def strangles(case: Case, kl: Curve) -> Found | None:
    """Report a policy that a heavy penalty holds; without one a small learning rate explains it as well."""
    beta = case.kl_weight
    if case.trend.kind is TrendKind.LEARNING or len(kl.values) < FEWEST or beta < LARGE_BETA:
        return None
    is_held = kl.last < HELD and (beta * kl.last >= WEIGHTY or _penalty_rules(case, kl))
    if kl.last > NEAR and not is_held:
        return None
    text = f"With beta {beta:g} the policy stays within {kl.last:.2g} nats of the reference and does not learn."
    shown = kl.evidence(f"KL {kl.last:.2g} at the end of the run.")
    return Found(Severity.WARNING, Confidence.MEDIUM, text, [shown])


def _penalty_rules(case: Case, kl: Curve) -> bool:
    """Tell whether the penalty's gradient outweighs the policy's, which is alone at the first step, where KL is 0."""
    if not case.view.has(GRADIENT) or abs(float(kl.values[0])) > 1e-6:
        return False
    norms = case.view.curve(GRADIENT)[1]
    return float(np.median(norms[1:])) > RULES * float(norms[0]) > 0


@_check_kl("kl.dead-group-pull")
def pull(case: Case, kl: Curve) -> Found | None:
    """Report a gradient that is the penalty's alone, because groups are dead."""
    dead, gradient, beta = case.dead_groups, case.course(GRADIENT), case.view.value("learning.kl.beta")
    if len(dead) < FEWEST or float(dead.mean()) < 0.9 or beta == 0 or gradient is None or gradient.last <= 0:
        return None
    is_known = bool(beta) and case.trend.kind is not TrendKind.LEARNING
    text = f"{dead.mean():.0%} of groups are dead, so that nearly all of the gradient is the KL penalty's pull back."
    left = gradient.evidence(f"Gradient {gradient.last:.3g} although groups are dead.")
    shown = [kl.evidence(f"KL {kl.last:.3g}."), left]
    if is_known:
        return Found(Severity.WARNING, Confidence.HIGH, text, shown)
    return Found(Severity.NOTE, Confidence.LOW, text, shown)
