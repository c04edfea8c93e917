"""Distance from the reference: a penalty that holds the policy or lets it go, and estimates that
can't be right.
"""

from collections.abc import Callable

import numpy as np

from uptrend.doctor.case import Case, CurveSummary
from uptrend.doctor.check import (
    CRITICAL,
    NOTE,
    PROOF,
    SIGNAL,
    SUSPICION,
    WARNING,
    Check,
    Found,
    Lacking,
    check,
    warn_if,
)
from uptrend.records import Evidence

KL = "kl/reference/mean"
GRADIENT = "gradient/norm/before"
FEWEST = 10


def _check_kl(id: str) -> Callable[[Callable[[Case, CurveSummary], Found | None]], Check]:
    """Make a check of a function that judges the KL curve; one of zeros alone was not computed."""

    def decorate(judge: Callable[[Case, CurveSummary], Found | None]) -> Check:
        def judge_case(case: Case) -> Found | Lacking | None:
            kl = case.summary(KL)
            return (
                Lacking("no KL was logged")
                if kl is None or not kl.values.any()
                else judge(case, kl)
            )

        return check(id)(judge_case)

    return decorate


# KL of a model from itself that kernels and quantized weights may leave; public logs have up to
# 0.0032.
SAME = 0.02


@_check_kl("kl.reference")
def reference(case: Case, kl: CurveSummary) -> Found | None:
    """Report a KL at the first step, where policy and reference are one model."""
    steps = case.curve(KL)[0]
    first = float(kl.values[0])
    # Points that average several steps say nothing of the first.
    if len(steps) < 5 or steps[0] > 1 or steps[1] - steps[0] > 1 or first < SAME:
        return None
    if first < 0.25 * float(np.median(kl.values[1:5])):
        return None
    text = f"KL to the reference is {first:.3g} at the first step, where both should be one model."
    return Found(
        WARNING,
        SIGNAL,
        text,
        [Evidence(f"KL {first:.3g} at step {steps[0]}.", first, KL, int(steps[0]))],
    )


# KL that rounding does not leave of an estimate that is 0.
NEGATIVE_KL = -1e-3


@_check_kl("kl.sign")
def sign(case: Case, kl: CurveSummary) -> Found | None:
    """Report a negative k2 or k3; a trainer that may have logged k1 is not judged."""
    trainer = case.view.trainer
    at = int(np.argmin(kl.values))
    is_known = trainer == "trl" or (
        trainer == "uptrend" and case.value("learning.kl.estimator", "k3") != "k1"
    )
    step = int(case.curve(KL)[0][at])
    value = float(kl.values[at])
    if not is_known or value > NEGATIVE_KL:
        return None
    text = (
        f"The KL estimate is {value:.3g} at step {step}, and this estimator can't be negative: its"
        " sign is wrong."
    )
    return Found(CRITICAL, PROOF, text, [Evidence(f"KL {value:.3g}.", value, KL, step)])


# Nats per token that no fine-tuning needs, and that no policy comes back from.
FAR = 1.0
SPIKE = 100.0
# KL at the end / KL at first above which a policy is on its way, not far from the start.
MIN_KL_GROWTH = 5.0


@_check_kl("kl.runaway")
def runaway(case: Case, kl: CurveSummary) -> Found | None:
    """Report a policy that goes far from the reference; a note where the reward pays for it."""
    begin = float(kl.values[:3].min())
    most = float(kl.values.max())
    is_far = kl.last > FAR and kl.last > MIN_KL_GROWTH * max(begin, 0)
    if len(kl.values) < FEWEST or not (is_far or most > SPIKE):
        return None
    effect = case.trend.effect or 0.0
    change = case.heldout
    is_gain = case.is_learning and effect / max(case.rollout_spread, 1e-12) > 0.5
    pays = is_gain and not (change and change.effect <= 0)
    went = (
        f"KL to the reference went from {begin:.3g} to {kl.last:.3g} nats per token (at most"
        f" {most:.3g})"
    )
    basis = PROOF if kl.last > FAR and not pays else SIGNAL
    shown = case.evidence(KL, f"KL {begin:.3g} → {kl.last:.3g}.")
    summary = f"{went} for a change of the reward of {effect:+.3g}."
    return Found(warn_if(not pays or most >= SPIKE), basis, summary, [shown])


# Weight of a penalty that may hold the policy; KL below which it has not left its start.
LARGE_BETA = 0.1
NEAR = 1e-3
# KL that a penalty may hold the policy to, and what beta × KL must weigh, where advantages are
# about 1.
HELD = 0.05
WEIGHTY = 0.1
# Whole gradient / the policy's own, above which the penalty rules it; less is enough for a weight
# that is heavy.
RULES = 2.5
HEAVY = 0.5
RULES_HEAVY = 2.0


@_check_kl("kl.strangles")
def strangles(case: Case, kl: CurveSummary) -> Found | None:
    """Report a policy that a heavy penalty holds; without one a small learning rate explains it as
    well.
    """
    beta = case.kl_weight
    norms = case.curve(GRADIENT)[1]
    if case.is_learning or case.has_gained or len(kl.values) < FEWEST or beta < LARGE_BETA:
        return None
    # near a reference that follows it, the policy is not held
    if case.value("learning.kl.reset_every"):
        return None
    # At the first step, where KL is 0, the gradient is the policy's alone.
    is_ruled = len(norms) > 0 and abs(float(kl.values[0])) <= 1e-6
    is_ruled = (
        is_ruled
        and float(np.median(norms[1:]))
        > (RULES_HEAVY if beta >= HEAVY else RULES) * float(norms[0])
        > 0
    )
    # The best policy under the penalty is the reference times exp(advantage / beta): so far can a
    # text move.
    given = [
        np.ptp(g.advantage_n[np.isfinite(g.advantage_n)])
        for g in case.grouped_steps
        if g.advantage_n is not None
    ]
    is_tight = len(given) > 0 and 0 < float(np.median(given)) < 1.5 * beta
    if kl.last > NEAR and not (
        kl.last < HELD and (beta * kl.last >= WEIGHTY or is_ruled or is_tight)
    ):
        return None
    text = (
        f"With beta {beta:g} the policy stays within {kl.last:.2g} nats of the reference and does"
        " not learn."
    )
    return Found(
        WARNING, SIGNAL, text, [case.evidence(KL, f"KL {kl.last:.2g} at the end of the run.")]
    )


# Share of dead groups from which the penalty has the gradient nearly to itself.
MIN_DEAD_SHARE = 0.9


@_check_kl("kl.dead-group-pull")
def pull(case: Case, kl: CurveSummary) -> Found | None:
    """Report a gradient that is the penalty's alone, because groups are dead."""
    dead = case.dead_groups
    gradient = case.summary(GRADIENT)
    beta = case.value("learning.kl.beta")
    if (
        len(dead) < FEWEST
        or float(dead.mean()) < MIN_DEAD_SHARE
        or beta == 0
        or gradient is None
        or gradient.last <= 0
    ):
        return None
    text = (
        f"{dead.mean():.0%} of groups are dead, so that nearly all of the gradient is the KL"
        " penalty's pull back."
    )
    left = case.evidence(GRADIENT, f"Gradient {gradient.last:.3g} although groups are dead.")
    shown = [case.evidence(KL, f"KL {kl.last:.3g}."), left]
    return (
        Found(WARNING, PROOF, text, shown)
        if beta and not case.is_learning
        else Found(NOTE, SUSPICION, text, shown)
    )
