"""Distance from the reference: a penalty that holds the policy or lets it go, and estimates that
can't be right. KL is in nats per token.
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

KL_METRIC = "kl/reference/mean"
GRADIENT_METRIC = "gradient/norm/before"
RATE_METRIC = "optimizer/lr"
CHANGED_METRIC = "weights/changed/share"
# Points that a judgment of a curve's levels takes: a quarter of fewer is one or two points.
MIN_POINTS = 10

Judge = Callable[[Case, CurveSummary], Found | Lacking | None]


def check_kl(id: str) -> Callable[[Judge], Check]:
    """Make a check of a function that judges the KL curve.

    The check cannot tell without a logged KL. One that is 0 throughout was not computed.
    """

    def decorate(judge: Judge) -> Check:
        def judge_case(case: Case) -> Found | Lacking | None:
            kl = case.summary(KL_METRIC)
            if kl is None:
                return Lacking("no KL was logged")
            if not kl.values.any():
                return Lacking("the KL is 0 at every point")
            return judge(case, kl)

        return check(id)(judge_case)

    return decorate


# KL of a model from itself that kernels and quantized weights may leave; public logs have up to
# 0.0032.
MAX_OWN_KL = 0.02
# A KL between two different models is there from the first step and training adds little to it. One
# below this part of the median of the next points was made by training.
POINTS_AFTER_FIRST = 4
MIN_FIRST_KL_RATIO = 0.25


@check_kl("kl.reference")
def reference(case: Case, kl: CurveSummary) -> Found | None:
    """Report a KL at the first step, where policy and reference are one model."""
    steps = case.curve(KL_METRIC)[0]
    if len(steps) <= POINTS_AFTER_FIRST:
        return None
    # Points that average several steps do not show the first step's KL.
    if steps[0] > 1 or steps[1] - steps[0] > 1:
        return None

    first_kl = float(kl.values[0])
    next_kl = float(np.median(kl.values[1 : 1 + POINTS_AFTER_FIRST]))
    if first_kl < MAX_OWN_KL or first_kl < MIN_FIRST_KL_RATIO * next_kl:
        return None

    summary = (
        f"KL to the reference is {first_kl:.3g} at the first step, where both should be one model."
    )
    first_step = int(steps[0])
    text = f"KL {first_kl:.3g} at step {first_step}."
    return Found(WARNING, SIGNAL, summary, [Evidence(text, first_kl, KL_METRIC, first_step)])


# Points of a KL of exactly 0 that are no start of a run, and the share of weights that updates must
# change: where they round to nothing, the policy stays where it is.
MIN_ZERO_KL_POINTS = 20
MIN_CHANGED_SHARE = 0.5


@check("kl.reference", at_least=MIN_ZERO_KL_POINTS)
def reference_that_follows(case: Case) -> Found | Lacking | None:
    """Report a weighted KL of exactly 0 all run long although updates move the policy: its
    reference moves with it.
    """
    steps, kl = case.curve(KL_METRIC)
    gradient = case.curve(GRADIENT_METRIC)[1]
    beta = case.value("learning.kl.beta")
    if not isinstance(beta, int | float) or not len(gradient):
        return Lacking("the weight of the KL or the gradient is not known")
    has_moved = float(gradient.min()) > 0 and float(case.curve(RATE_METRIC)[1].max(initial=0.0)) > 0
    changed = case.summary(CHANGED_METRIC)
    if changed is not None and changed.last < MIN_CHANGED_SHARE:
        has_moved = False
    is_zero = len(kl) >= MIN_ZERO_KL_POINTS and not kl.any() and not case.has_rounded_zeros
    if beta <= 0 or not is_zero or not has_moved:
        return None
    summary = (
        f"KL to the reference is exactly 0 at each of {len(kl)} points with beta {beta:g}, although"
        " updates move the policy: the reference moves with it, and the penalty holds nothing."
    )
    evidence = Evidence("KL 0 at every point.", 0.0, KL_METRIC, int(steps[-1]))
    return Found(WARNING, SIGNAL, summary, [evidence])


# Rounding leaves less than this of an estimate that is 0. The mean of k1 over the tokens of a step
# is noisy, but never this far below 0: its standard error is about 1 / sqrt(tokens).
NEGATIVE_KL = -1e-3
NEGATIVE_KL_OF_ANY_ESTIMATOR = -0.1


@check_kl("kl.sign")
def sign(case: Case, kl: CurveSummary) -> Found | None:
    """Report a negative k2 or k3, and lines with a KL too far below 0 for any estimator."""
    # TRL logs k3; of the estimators, only k1 may be negative.
    is_never_negative = case.view.trainer == "trl"
    if case.view.trainer == "uptrend":
        is_never_negative = case.value("learning.kl.estimator", "k3") != "k1"

    lowest = int(np.argmin(kl.values))
    lowest_kl = float(kl.values[lowest])
    step = int(case.curve(KL_METRIC)[0][lowest])
    is_far_below = float(np.median(kl.values)) < NEGATIVE_KL_OF_ANY_ESTIMATOR
    if not is_never_negative and case.is_excerpt and is_far_below:
        summary = (
            f"The KL estimate is {kl.last:.3g}: below 0 by more than the noise of any estimator, so"
            " that its tokens or its sign are wrong."
        )
        return Found(WARNING, SIGNAL, summary, [case.evidence(KL_METRIC, f"KL {kl.last:.3g}.")])
    if not is_never_negative or lowest_kl > NEGATIVE_KL:
        return None

    summary = (
        f"The KL estimate is {lowest_kl:.3g} at step {step}, and this estimator can't be negative:"
        " its sign is wrong."
    )
    return Found(
        CRITICAL, PROOF, summary, [Evidence(f"KL {lowest_kl:.3g}.", lowest_kl, KL_METRIC, step)]
    )


# Nats per token that no fine-tuning needs at the end of a run, and that no policy comes back from.
FAR_KL = 1.0
SPIKE_KL = 100.0
# Nats per token at which text of one policy is noise to the other, wherever in a run a line stood.
LOST_KL = 10.0
# Final KL / first KL above which a policy is leaving its start. Below it, the reference was another
# model from the first step on, which is `kl.reference`.
MIN_KL_GROWTH = 5.0
# The least of the first points is the KL at the start: one point may be a spike.
START_POINTS = 3
# Rise of the reward, in deviations between rollouts, that pays for a distance.
MIN_REWARD_RISE = 0.5


@check_kl("kl.runaway")
def runaway(case: Case, kl: CurveSummary) -> Found | None:
    """Report a policy that goes far from the reference; a note where the reward pays for it."""
    start_kl = float(kl.values[:START_POINTS].min())
    highest_kl = float(kl.values.max())
    if case.is_excerpt and len(kl.values) < MIN_POINTS and kl.last > LOST_KL:
        return _lost(case, kl)
    is_far = kl.last > FAR_KL and kl.last > MIN_KL_GROWTH * max(start_kl, 0)
    if len(kl.values) < MIN_POINTS or not (is_far or highest_kl > SPIKE_KL):
        return None

    reward_change = case.trend.effect or 0.0
    rise_in_deviations = reward_change / max(case.rollout_spread, 1e-12)
    has_risen = case.is_learning and rise_in_deviations > MIN_REWARD_RISE
    fails_heldout = case.heldout is not None and case.heldout.effect <= 0
    is_paid_for = has_risen and not fails_heldout

    summary = (
        f"KL to the reference went from {start_kl:.3g} to {kl.last:.3g} nats per token (at most"
        f" {highest_kl:.3g}) for a change of the reward of {reward_change:+.3g}."
    )
    severity = warn_if(not is_paid_for or highest_kl >= SPIKE_KL)
    basis = PROOF if kl.last > FAR_KL and not is_paid_for else SIGNAL
    evidence = case.evidence(KL_METRIC, f"KL {start_kl:.3g} → {kl.last:.3g}.")
    return Found(severity, basis, summary, [evidence])


def _lost(case: Case, kl: CurveSummary) -> Found:
    """Describe a few lines with a KL that no readable policy has."""
    summary = (
        f"KL to the reference is {kl.last:.3g} nats per token: the policy no longer writes what the"
        " reference could."
    )
    return Found(WARNING, SIGNAL, summary, [case.evidence(KL_METRIC, f"KL {kl.last:.3g}.")])


# Weight of a penalty that may hold the policy; with a smaller one, a learning rate that is too
# small explains a policy at its start as well.
MIN_BETA = 0.1
# KL below which the policy has not left its start.
NEAR_KL = 1e-3
# KL below which a penalty may still hold a policy that has left its start.
MAX_HELD_KL = 0.05
# beta × KL that weighs in a loss, where advantages are about 1.
MIN_PENALTY = 0.1
# Whole gradient / the policy's own, above which the penalty rules it: for any weight, and for a
# heavy one, of which a smaller ratio is enough.
RULING_GRADIENT_RATIO = 2.5
HEAVY_BETA = 0.5
RULING_GRADIENT_RATIO_HEAVY = 2.0
# Largest |KL| at the first step of a policy that is its reference, up to rounding.
MAX_START_KL = 1e-6
# Nats that advantages / beta allow a text to move, below which the penalty holds the policy.
TIGHT_NATS = 1.5


@check_kl("kl.strangles")
def strangles(case: Case, kl: CurveSummary) -> Found | None:
    """Report a policy that a heavy penalty holds at its start."""
    if case.is_learning or case.has_gained or len(kl.values) < MIN_POINTS:
        return None
    # Close to a reference that follows it, a policy may have gone far.
    beta = case.kl_weight
    if beta < MIN_BETA or case.value("learning.kl.reset_every"):
        return None
    if kl.last > NEAR_KL and not _is_held_near(case, kl):
        return None

    summary = (
        f"With beta {beta:g} the policy stays within {kl.last:.2g} nats of the reference and does"
        " not learn."
    )
    evidence = case.evidence(KL_METRIC, f"KL {kl.last:.2g} at the end of the run.")
    return Found(WARNING, SIGNAL, summary, [evidence])


def _is_held_near(case: Case, kl: CurveSummary) -> bool:
    """Return True where a small KL weighs in the loss, rules the gradient, or is all that the
    penalty allows.
    """
    if kl.last >= MAX_HELD_KL:
        return False
    beta = case.kl_weight
    return beta * kl.last >= MIN_PENALTY or _rules_gradient(case, kl) or _is_tight(case)


def _rules_gradient(case: Case, kl: CurveSummary) -> bool:
    """Return True where the penalty makes most of the gradient."""
    # At the first step, where KL is 0, the gradient is the policy's alone.
    norms = case.curve(GRADIENT_METRIC)[1]
    if len(norms) < 2 or norms[0] <= 0 or abs(float(kl.values[0])) > MAX_START_KL:
        return False
    ratio = RULING_GRADIENT_RATIO_HEAVY if case.kl_weight >= HEAVY_BETA else RULING_GRADIENT_RATIO
    return float(np.median(norms[1:])) > ratio * float(norms[0])


def _is_tight(case: Case) -> bool:
    """Return True where advantages are small against the weight of the penalty."""
    # The best policy under the penalty is the reference times exp(advantage / beta): no text can
    # move further than the range of advantages / beta.
    ranges = []
    for group in case.grouped_steps:
        if group.advantage_n is not None:
            finite = np.isfinite(group.advantage_n)
            ranges.append(float(np.ptp(group.advantage_n[finite])))
    return bool(ranges) and 0 < float(np.median(ranges)) < TIGHT_NATS * case.kl_weight


# Steps with dead groups alone, a KL and no gradient, from which on the penalty has none. A KL that
# is made by updates and not by rounding gives a gradient in any precision.
MIN_STEPS_WITHOUT_GRADIENT = 3
MIN_PULLING_KL = 1e-3
# Share of dead groups that is all of them up to rounding.
ALL_DEAD_SHARE = 0.999


@check_kl("kl.no-gradient")
def no_gradient(case: Case, kl: CurveSummary) -> Found | Lacking | None:
    """Report a penalty that adds nothing to the gradient: 0 at steps where nothing else could."""
    beta = case.value("learning.kl.beta")
    if not isinstance(beta, int | float) or beta <= 0 or case.value("learning.skip_dead"):
        return None
    if case.value("learning.kl.estimator") == "k1":
        return None  # it acts through the rewards
    metrics = case.view.metrics
    dead = metrics.get("advantage/dead/share")
    gradient = metrics.get(GRADIENT_METRIC)
    if dead is None or gradient is None:
        return Lacking("dead groups and the gradient's length are not both logged")
    # NaN fails each comparison.
    shows_penalty = (dead > ALL_DEAD_SHARE) & (metrics[KL_METRIC] > MIN_PULLING_KL)
    at = np.flatnonzero(shows_penalty & np.isfinite(gradient))
    if len(at) < MIN_STEPS_WITHOUT_GRADIENT or gradient[at].any():
        return None
    if not np.nan_to_num(gradient).any():
        return None  # nothing has a gradient, which is another fault
    step = int(case.view.steps[at[0]])
    summary = (
        f"At {len(at)} steps all groups are dead and the gradient is 0, at a KL of up to"
        f" {kl.values.max():.2g}: the penalty of {beta:g} has none."
    )
    return Found(CRITICAL, PROOF, summary, [Evidence("Gradient 0.", 0.0, GRADIENT_METRIC, step)])


# Share of dead groups from which the penalty has the gradient nearly to itself.
MIN_DEAD_SHARE = 0.9


@check_kl("kl.dead-group-pull")
def pull(case: Case, kl: CurveSummary) -> Found | None:
    """Report a gradient that is the penalty's alone, because groups are dead."""
    dead = case.dead_groups
    if len(dead) < MIN_POINTS or float(dead.mean()) < MIN_DEAD_SHARE:
        return None
    beta = case.value("learning.kl.beta")
    gradient = case.summary(GRADIENT_METRIC)
    if beta == 0 or gradient is None or gradient.last <= 0:
        return None

    summary = (
        f"{dead.mean():.0%} of groups are dead, so that nearly all of the gradient is the KL"
        " penalty's pull back."
    )
    evidence = [
        case.evidence(KL_METRIC, f"KL {kl.last:.3g}."),
        case.evidence(GRADIENT_METRIC, f"Gradient {gradient.last:.3g} although groups are dead."),
    ]
    # A KL may be logged without a penalty: only a known weight proves one.
    if beta and not case.is_learning:
        return Found(WARNING, PROOF, summary, evidence)
    return Found(NOTE, SUSPICION, summary, evidence)
