"""Distance from the reference: kl.strangles, kl.runaway, kl.dead-group-pull, kl.reference and kl.sign."""

import numpy as np

from uptrend.doctor.check import Outcome, finding
from uptrend.doctor.curves import Curve, course, dead_groups, rollout_spread
from uptrend.doctor.held_out import held_out_change
from uptrend.doctor.penalties import kl_weight
from uptrend.doctor.trend import trend_of
from uptrend.records import CannotTell, Confidence, Evidence, Finding, RunView, Severity, TrendKind

METRIC = "kl/reference/mean"
IDS = ("kl.strangles", "kl.runaway", "kl.dead-group-pull", "kl.reference", "kl.sign")
FAR = 1.0
"""Nats a token that no fine-tuning needs."""
SPIKE = 100.0
LARGE_BETA = 0.1
NEAR = 1e-3
"""KL below which the policy has not left its start."""
HELD, WEIGHTY = 0.05, 0.1
"""KL that a penalty may hold the policy to, and what that penalty must weigh, where advantages are about 1."""
RULES = 2.5
"""How many times the policy's own gradient the whole one is, where the penalty rules it."""
GRADIENT = "gradient/norm/before"
SAME = 0.02
"""KL of a model from itself that kernels and quantized weights may leave; public logs have up to 0.0032."""
FEWEST = 10


def check(view: RunView) -> Outcome:
    """Look at the KL curve with what the reward did."""
    kl = course(view, METRIC)
    if kl is None or not kl.values.any():
        return [CannotTell(id, "no KL was logged") for id in IDS]
    found = (_reference(view, kl), _sign(view, kl), _runaway(view, kl), _strangles(view, kl), _pull(view, kl))
    return [f for f in found if f is not None]


def _reference(view: RunView, kl: Curve) -> Finding | None:
    """At the first step, policy and reference are the same model. Points that average several steps say nothing."""
    steps = view.curve(METRIC)[0]
    first = float(kl.values[0])
    if len(steps) < 5 or steps[0] > 1 or steps[1] - steps[0] > 1 or first < SAME:
        return None
    if first < 0.25 * float(np.median(kl.values[1:5])):
        return None
    text = f"KL to the reference is {first:.3g} at the first step, where both should be one model"
    shown = Evidence(f"KL {first:.3g} at step {steps[0]}.", first, METRIC, int(steps[0]))
    return finding(view, "kl.reference", Severity.WARNING, Confidence.MEDIUM, f"{text}.", [shown])


def _sign(view: RunView, kl: Curve) -> Finding | None:
    """k2 and k3 can't be negative; a trainer that may have logged k1 is not judged."""
    known = view.trainer == "trl" or (view.trainer == "uptrend" and view.value("learning.kl.estimator", "k3") != "k1")
    at = int(np.argmin(kl.values))
    if not known or float(kl.values[at]) > -1e-3:
        return None
    step, value = int(view.curve(METRIC)[0][at]), float(kl.values[at])
    text = f"The KL estimate is {value:.3g} at step {step}, and this estimator can't be negative"
    shown = Evidence(f"KL {value:.3g}.", value, METRIC, step)
    return finding(view, "kl.sign", Severity.CRITICAL, Confidence.HIGH, f"{text}: its sign is wrong.", [shown])


def _runaway(view: RunView, kl: Curve) -> Finding | None:
    begin, most = float(kl.values[:3].min()), float(kl.values.max())
    is_far = kl.last > FAR and kl.last > 5 * max(begin, 0)
    if len(kl.values) < FEWEST or not (is_far or most > SPIKE):
        return None
    trend, change = trend_of(view), held_out_change(view)
    gained = (trend.effect or 0.0) / max(rollout_spread(view), 1e-12)
    pays = trend.kind is TrendKind.LEARNING and gained > 0.5 and not (change and change.effect <= 0)
    severity = Severity.NOTE if pays and most < SPIKE else Severity.WARNING
    return finding(
        view,
        "kl.runaway",
        severity,
        Confidence.HIGH if kl.last > FAR and not pays else Confidence.MEDIUM,
        f"KL to the reference went from {begin:.3g} to {kl.last:.3g} nats a token (at most {most:.3g}) for a change of "
        f"the reward of {trend.effect or 0.0:+.3g}.",
        [kl.evidence(f"KL {begin:.3g} → {kl.last:.3g}.")],
    )


def _strangles(view: RunView, kl: Curve) -> Finding | None:
    """Only where the penalty is known to be heavy; otherwise a small learning rate explains it as well."""
    beta = kl_weight(view)
    if trend_of(view).kind is TrendKind.LEARNING or len(kl.values) < FEWEST or beta < LARGE_BETA:
        return None
    is_held = kl.last < HELD and (beta * kl.last >= WEIGHTY or _rules(view, kl))
    if kl.last > NEAR and not is_held:
        return None
    return finding(
        view,
        "kl.strangles",
        Severity.WARNING,
        Confidence.MEDIUM,
        f"With beta {beta:g} the policy stays within {kl.last:.2g} nats of the reference and does not learn.",
        [kl.evidence(f"KL {kl.last:.2g} at the end of the run.")],
    )


def _rules(view: RunView, kl: Curve) -> bool:
    """Whether the penalty's gradient outweighs the policy's: at the first step, where KL is 0, the latter is alone."""
    if not view.has(GRADIENT) or abs(float(kl.values[0])) > 1e-6:
        return False
    norms = view.curve(GRADIENT)[1]
    return float(np.median(norms[1:])) > RULES * float(norms[0]) > 0


def _pull(view: RunView, kl: Curve) -> Finding | None:
    dead = dead_groups(view)
    gradient = course(view, GRADIENT)
    beta = view.value("learning.kl.beta", None)
    if len(dead) < FEWEST or float(dead.mean()) < 0.9 or beta == 0 or gradient is None or gradient.last <= 0:
        return None
    is_known = bool(beta) and trend_of(view).kind is not TrendKind.LEARNING
    return finding(
        view,
        "kl.dead-group-pull",
        Severity.WARNING if is_known else Severity.NOTE,
        Confidence.HIGH if is_known else Confidence.LOW,
        f"{dead.mean():.0%} of groups are dead, so that nearly all of the gradient is the KL penalty's pull back.",
        [
            kl.evidence(f"KL {kl.last:.3g}."),
            gradient.evidence(f"Gradient {gradient.last:.3g} although groups are dead."),
        ],
    )
