"""Step sizes: updates that are not made, do not arrive, or are too small or too large.

`usual_learning_rates` says which rates suit a model. A step of Adam moves every weight by about the
rate, and 2e-3 is a good part of a weight.
"""

from dataclasses import dataclass, replace

import numpy as np

from uptrend.doctor.case import Case
from uptrend.doctor.catalogue import settings_in_force, usual_learning_rates
from uptrend.doctor.check import (
    CRITICAL,
    PAGE_SUMMARY,
    PROOF,
    SIGNAL,
    SUSPICION,
    WARNING,
    Answer,
    Found,
    Lacking,
    check,
    warn_if,
)
from uptrend.doctor.checks.operation import AFTER_FALL_SHARE
from uptrend.doctor.trend import REWARD_METRIC
from uptrend.records import Evidence, TrendKind
from uptrend.records.table import Ints
from uptrend.records.view import Floats

RATE_METRIC = "optimizer/lr"
KL_METRIC = "kl/reference/mean"
ENTROPY_METRIC = "learner/entropy/mean"
DEAD_GROUPS_METRIC = "advantage/dead/share"
DEVIATION_METRIC = "reward/group_std/mean"
CUT_METRIC = "sampling/ended/length/share"
# The norm of the gradient before and after it is clipped.
GRADIENT_METRIC = "gradient/norm/before"
CLIPPED_GRADIENT_METRIC = "gradient/norm/after"
UPDATE_METRIC = "weights/update/norm"
WEIGHTS_METRIC = "weights/norm"
CHANGED_METRIC = "weights/changed/share"
SKIPPED_METRIC = "optimizer/skipped/count"
APPLIED_METRIC = "optimizer/updates/count"
# A token's own log-probability, before and after one update.
MOVED_METRIC = "learner/moved/mean"

# Points that a judgment of a curve's levels takes, and one of its course.
MIN_POINTS = 10
MIN_COURSE_POINTS = 20
# Rates where the model's size is not known: the least in use, the least that recipes aim for, and
# more than anyone uses.
MIN_RATE = 1e-7
MIN_TARGET_RATE = 5e-7
MAX_RATE = 2e-3
# Factor below or above the usual rates for a model's size from which a rate is too small or too
# large.
RATE_FACTOR = 10.0

# Points from which skipped updates are judged; fewer only where every step made none.
MIN_SKIP_POINTS = 5
# Shares of skipped updates, or of steps without one, from which they are a note, a warning, and
# critical. In a short run a few skips are an fp16 loss scaler that settles; in a long one any skip
# is a warning, and a smaller share critical.
MIN_SKIPPED_SHARE = 0.02
WARNING_SKIPPED_SHARE = 0.1
CRITICAL_SKIPPED_SHARE = 0.5
CRITICAL_SKIPPED_SHARE_LONG = 0.2


@check("optimizer.skipped-updates")
def skipped_updates(case: Case) -> Answer:
    """Report steps whose update was not applied."""
    skip_steps, skipped = case.curve(SKIPPED_METRIC)
    applied_steps, applied = case.curve(APPLIED_METRIC)
    unmoved_steps = _unmoved_steps(case)
    n_points = max(len(applied_steps), len(skip_steps))
    if len(unmoved_steps):
        n_points = max(n_points, len(case.view.steps))
    if n_points == 0:
        return Lacking("neither made nor skipped updates were counted")

    idle_steps = np.union1d(applied_steps[applied == 0], unmoved_steps)
    n_skipped = float(skipped.sum())
    n_updates = float(skipped.sum() + applied.sum())
    if not n_skipped and not len(idle_steps):
        return None

    skipped_share = n_skipped / n_updates if n_updates else 1.0
    share = max(skipped_share, len(idle_steps) / n_points)
    # A long run is reported for any skip, a short one for a share of them at enough points.
    skips_in_long_run = len(case.view.steps) >= MIN_POINTS and n_skipped > 0
    has_enough_points = n_points >= MIN_SKIP_POINTS or len(idle_steps) == n_points
    if not skips_in_long_run and (not has_enough_points or share < MIN_SKIPPED_SHARE):
        return None

    severity = warn_if(skips_in_long_run or share >= WARNING_SKIPPED_SHARE)
    skips_many_in_long_run = skips_in_long_run and skipped_share > CRITICAL_SKIPPED_SHARE_LONG
    if share >= CRITICAL_SKIPPED_SHARE or skips_many_in_long_run:
        severity = CRITICAL
    text = (
        f"{n_skipped:.0f} of {n_updates:.0f} updates were skipped, and {len(idle_steps)} of"
        f" {n_points} steps made none"
    )
    first_step = int(idle_steps[0] if len(idle_steps) else skip_steps[np.flatnonzero(skipped)[0]])
    return Found(severity, PROOF, PAGE_SUMMARY, [Evidence(text, share, SKIPPED_METRIC, first_step)])


# Steps with a gradient and without a change, below which a lost update may be a coincidence.
MIN_UNMOVED_STEPS = 3


def _unmoved_steps(case: Case) -> Ints:
    """Return steps with a gradient and a rate that changed no weight, where others did: their
    update was lost.
    """
    no_steps = np.zeros(0, np.int64)
    if not case.has(UPDATE_METRIC, GRADIENT_METRIC, RATE_METRIC):
        return no_steps
    update = case.view.metrics[UPDATE_METRIC]
    gradient = case.view.metrics[GRADIENT_METRIC]
    rate = case.view.metrics[RATE_METRIC]
    has_moved = update > 0
    if not has_moved.any():
        return no_steps

    # The small rates of a warm-up may round to nothing: only a rate at which another step moved
    # weights counts.
    is_unmoved = (update == 0) & (gradient > 0) & (rate > 0)
    is_unmoved &= rate >= rate[has_moved].min()
    return case.view.steps[is_unmoved] if is_unmoved.sum() >= MIN_UNMOVED_STEPS else no_steps


# Share of steps without a gradient from which they are reported.
MIN_DEAD_STEP_SHARE = 0.2


@check("optimizer.dead-steps")
def dead_steps(case: Case) -> Answer:
    """Report steps with a gradient of exactly 0: a share of many, or every single one of a few."""
    if len(case.view.steps) < MIN_POINTS and not case.is_certainly_idle:
        return Lacking(f"fewer than {MIN_POINTS} points")
    gradient = case.curve(GRADIENT_METRIC)[1]
    share = float(np.mean(gradient == 0)) if len(gradient) else 0.0
    if share < MIN_DEAD_STEP_SHARE:
        return None

    summary = (
        f"The gradient is exactly 0 at {share:.0%} of the logged points: those steps changed"
        " nothing."
    )
    text = f"{int((gradient == 0).sum())} of {len(gradient)} points."
    severity = warn_if(case.is_stuck or case.is_certainly_idle)
    return Found(severity, PROOF, summary, [Evidence(text, share, GRADIENT_METRIC)])


@check("optimizer.lr-small")
def small_rate(case: Case) -> Answer:
    """Report a policy that hardly left its start, steps that round to nothing in fp32, and a rate
    below any in use.
    """
    # No weights are more precise than fp32: what rounds to nothing there is too small a step.
    rounded = _rounded(case) if case.value("model.weights") == "fp32" else None
    return [_hardly_left(case), rounded, _below_usual_rates(case)]


# KL at the end of a run below which the policy has hardly left its start, and that of a run that
# learns all the same.
NEAR_KL = 0.01
NEAR_KL_LEARNING = 1e-3
# The same by weights: the path of all updates / the weights' length, as far as it would lead in a
# run of at least so many steps at the configured rate. A shorter run, or one that still warms up,
# may only need time: 26 points of accuracy were gained by 25 updates of 0.0006 in all.
MIN_PATH = 0.002
FULL_RUN_STEPS = 100
# A path with which no run of usual length leaves its start, however short this one was.
MIN_PATH_OF_ANY_RUN = MIN_PATH / 5
# Steps that leave the start at a usual rate, in a run too short to show a trend.
MIN_STEPS_TO_LEAVE = 50
# Share of dead groups from which these explain a policy at its start.
MOSTLY_DEAD_SHARE = 0.9
# Final KL / first-quarter KL above which the policy is still moving.
LEAVING_KL_RATIO = 5.0


def _hardly_left(case: Case) -> Found | Lacking | None:
    """Report a policy near its start; a warning where the reward did not rise and groups were
    alive.
    """
    if len(case.view.steps) < MIN_POINTS:
        return Lacking(f"fewer than {MIN_POINTS} points")
    if not case.has(KL_METRIC) and not case.has(UPDATE_METRIC, WEIGHTS_METRIC):
        return Lacking("neither KL nor the size of updates was logged")
    # Accuracy that moved was moved by the policy.
    if case.has_gained:
        return None

    kl = case.summary(KL_METRIC)
    max_kl = NEAR_KL_LEARNING if case.is_learning else NEAR_KL
    # A KL of 0 throughout was not computed, unless small numbers are printed as 0.
    is_measured = kl is not None and (bool(kl.values.any()) or case.has_rounded_zeros)
    is_near = kl is not None and is_measured and 0 <= kl.last < max_kl
    path = _path(case)
    full_path = None if path is None else _full_path(case, path)
    is_short_path = full_path is not None and full_path < MIN_PATH and not case.is_learning
    if not is_near and not is_short_path:
        return None

    evidence = []
    if kl is not None and is_near:
        text = f"KL to the reference {kl.first:.2g} in the first quarter, {kl.last:.2g} at the end."
        evidence.append(case.evidence(KL_METRIC, text))
    gradient = case.summary(GRADIENT_METRIC)
    if gradient is not None and gradient.last > 0:
        text = f"Gradient {gradient.last:.2g}: there is something to learn from."
        evidence.append(case.evidence(GRADIENT_METRIC, text))
    if path is not None:
        text = f"All updates together are {path:.2g} of the weights' length."
        evidence.append(Evidence(text, path, UPDATE_METRIC))

    is_undecided = case.trend.kind is TrendKind.TOO_SHORT
    has_had_time = is_undecided and int(case.view.steps[-1]) >= MIN_STEPS_TO_LEAVE
    is_tiny_path = full_path is not None and full_path < MIN_PATH_OF_ANY_RUN
    is_fault = case.is_stuck or has_had_time or is_tiny_path
    # A policy that leaves slowly but ever faster only needs time.
    is_leaving = kl is not None and is_near and kl.last > LEAVING_KL_RATIO * max(kl.first, 0.0)
    dead = case.dead_groups
    is_dead = len(dead) > 0 and float(dead.mean()) > MOSTLY_DEAD_SHARE
    severity = warn_if(is_fault and not is_leaving and not is_dead)

    rate = case.value("learning.lr")
    at_rate = f" at a learning rate of {rate:.2g}" if rate else ""
    summary = (
        f"The policy hardly left its start{at_rate}: updates are too small or too few to show."
    )
    return Found(severity, SIGNAL, summary, evidence)


def _path(case: Case) -> float | None:
    """Return the length of all updates / the weights' length; None where these were not logged."""
    update = case.curve(UPDATE_METRIC)[1]
    weights = case.curve(WEIGHTS_METRIC)[1]
    if not len(update) or not len(weights) or weights[0] <= 0:
        return None
    return float(update.sum() / weights[0])


def _full_path(case: Case, path: float) -> float:
    """Return a path as long as it would be after a full run at the configured rate."""
    n_updates = len(case.curve(UPDATE_METRIC)[1])
    full_steps = max(FULL_RUN_STEPS, int(case.value("learning.steps") or 0))
    # A step of Adam is as long as the rate: in a warm-up, or late in a decay, steps say little of
    # the others.
    rates = case.curve(RATE_METRIC)[1]
    mean_rate = float(rates.mean()) if len(rates) else 0.0
    configured = case.value("learning.lr")
    full_rate = configured if isinstance(configured, int | float) else mean_rate
    speedup = max(1.0, full_rate / mean_rate) if mean_rate > 0 else 1.0
    return path * speedup * max(1.0, full_steps / n_updates)


def _below_usual_rates(case: Case) -> Found | None:
    """Report a rate that is below any in use, and does not rise."""
    largest = _largest_rate(case)
    lowest_rate = _extreme_rates(case)[0]
    if largest is None or _is_rising(case) or not 0 < largest.rate < lowest_rate:
        return None
    summary = (
        f"The learning rate is never above {largest.rate:.2g}: below {lowest_rate:.1g} such a"
        " model does not move."
    )
    return Found(WARNING, SIGNAL, summary, [largest.evidence])


def updates_per_step(case: Case) -> int:
    """Return the number of updates that a step makes from the same rollouts."""
    passes = case.value("learning.updates") or 1
    minibatches = case.value("learning.minibatches") or 1
    return max(1, int(passes) * int(minibatches))


@check("optimizer.lr-large", "sync.off-policy", at_least=MIN_POINTS)
def large_rate(case: Case) -> Answer:
    """Report updates that leave their region or break the model, and a rate above any in use."""
    too_large = (
        _clipped(case)
        or _moves_tokens_far(case)
        or _moves_weights_far(case)
        or _fell_at_peak_rate(case)
    )
    unusual = _above_usual_rates(case)
    # A check of several causes names its finding's.
    return [_named(too_large), _named(unusual)]


def _named(finding: Found | None) -> Found | None:
    """Return a finding with a cause: a large rate, unless it names another."""
    if finding is None:
        return None
    return replace(finding, id=finding.id or "optimizer.lr-large")


# Sides of the clip range that are logged.
CLIP_SIDES = ("low", "high", "region")
# Share of clipped tokens from which updates are too large.
MAX_CLIPPED_SHARE = 0.2
# A clip range of some thousandths, as GSPO has for whole sequences, clips much by design.
NARROW_CLIP_RANGE = 0.05


def _clipped(case: Case) -> Found | None:
    """Report updates of which many tokens are clipped."""
    curves = []
    for side in CLIP_SIDES:
        curve = case.summary(f"clip/{side}/share")
        if curve is not None:
            curves.append(curve)
    if not curves:
        return None
    most_clipped = max(curves, key=lambda curve: curve.last)
    clip_range = case.value("learning.clip_low")
    is_narrow = bool(clip_range) and 0 < clip_range < NARROW_CLIP_RANGE
    if most_clipped.last <= MAX_CLIPPED_SHARE or is_narrow:
        return None

    summary = (
        f"{most_clipped.last:.0%} of tokens are clipped: updates leave the region that they were"
        " computed for."
    )
    evidence = case.evidence(most_clipped.metric, f"Clipped share {most_clipped.last:.2f}.")
    is_fault = not case.is_learning
    # An unknown range may be a narrow one, which only a fall of the reward excludes.
    if clip_range is None:
        is_fault = case.trend.kind is TrendKind.FALLING
    return Found(warn_if(is_fault), SIGNAL, summary, [evidence])


# Nats by which an update may move its own tokens on average: the clip range is about 0.2.
MAX_TOKEN_MOVE = 1.0
MIN_TOKEN_MOVES = 3


def _moves_tokens_far(case: Case) -> Found | None:
    """Report updates that move the log-probabilities of their own tokens too far."""
    moved = case.summary(MOVED_METRIC)
    if moved is None or len(moved.values) < MIN_TOKEN_MOVES or case.is_learning:
        return None
    if np.median(moved.values) <= MAX_TOKEN_MOVE:
        return None
    summary = (
        f"One update moves log-probabilities of its own tokens by {moved.last:.2g} nats on"
        " average: too far."
    )
    return Found(WARNING, SIGNAL, summary, [case.evidence(MOVED_METRIC, "More than 0.1 is much.")])


# One update / the weights' length from which updates are too large. Adapters, which start at 0, are
# not judged by length.
MAX_UPDATE_RATIO = 0.01


def _moves_weights_far(case: Case) -> Found | None:
    """Report steps that are long against the weights: by long updates, or by many on the same
    rollouts.
    """
    if not case.has(UPDATE_METRIC, WEIGHTS_METRIC) or case.is_learning or case.value("model.lora"):
        return None
    ratios = case.view.metrics[UPDATE_METRIC] / case.view.metrics[WEIGHTS_METRIC]
    ratio = float(np.nanmedian(ratios))
    if ratio <= MAX_UPDATE_RATIO:
        return None
    updates = updates_per_step(case)
    if ratio / updates <= LARGE_UPDATE_SHARE:
        summary = (
            f"{updates} updates on the same rollouts change the weights by {ratio:.1%} of their"
            " length: the later ones learn from what another policy did."
        )
        text = f"A step is {ratio:.3g} of the weights' length, an update {ratio / updates:.2g}."
        evidence = [Evidence(text, ratio, UPDATE_METRIC)]
        return Found(WARNING, SIGNAL, summary, evidence, "sync.off-policy")
    summary = (
        f"A step changes the weights by {ratio:.1%} of their length, and the reward does not rise:"
        " too large a step."
    )
    text = f"Update over weights {ratio:.3g}; about 0.001 is usual."
    return Found(WARNING, SIGNAL, summary, [Evidence(text, ratio, UPDATE_METRIC)])


# Part of the largest rate from which a rate is near its peak.
NEAR_PEAK = 0.5


def _fell_at_peak_rate(case: Case) -> Found | None:
    """Report a reward that collapsed while the rate was near its peak and the policy moved far.

    A fall alone proves nothing about steps: the scorer, the tasks or a bonus may have made it.
    """
    steps, rates = case.curve(RATE_METRIC)
    collapse = case.collapse
    if collapse is None or len(rates) == 0 or abs(case.entropy_weight) >= HEAVY_ENTROPY_WEIGHT:
        return None
    reward_steps, _ = case.curve(REWARD_METRIC)
    step = int(reward_steps[collapse.index - 1])  # the last one before the fall
    rate = float(np.interp(step, steps, rates))
    peak_rate = float(rates.max())
    # A fall is dated at its middle: its signs may come a little later.
    last_sign_step = step + int(AFTER_FALL_SHARE * (steps[-1] - steps[0]))
    signs = signs_of_large_steps(case, last_sign_step)
    if rate < NEAR_PEAK * peak_rate or not signs:
        return None
    summary = (
        f"The reward fell from {collapse.best:.3g} to {collapse.last:.3g} near step {step}, at a"
        f" rate of {rate:.2g}, near its peak, and steps were large."
    )
    text = f"Learning rate {rate:.2g} of at most {peak_rate:.2g} at the fall."
    evidence = [*signs, Evidence(text, rate, RATE_METRIC, step)]
    return Found(WARNING, SIGNAL, summary, evidence)


# Weight of an entropy bonus, ten times what is usual, from which it is the likelier reason of a
# fall.
HEAVY_ENTROPY_WEIGHT = 0.1
# An update / the weights' length from which it is large; 0.001 is usual.
LARGE_UPDATE_SHARE = 0.005
# Nats by which one update moves its own tokens on average, from which that is much.
LARGE_TOKEN_MOVE = 0.3
# Nats of KL that neighboring points may differ by, in a policy whose KL grows slowly.
LARGE_KL_JUMP = 0.5
# Change of the log of entropy between neighboring points that is large, and the smallest change in
# nats: near 0 a log says little.
LARGE_ENTROPY_JUMP = 0.5
MIN_ENTROPY_JUMP = 0.05
# Largest gradient / the median of those up to the same step, from which it is a spike.
GRADIENT_SPIKE = 10.0
MIN_SPIKE_POINTS = 5
# Rate / the largest usual one for the model's size, from which it is a sign by itself.
UNUSUAL_RATE_FACTOR = 3.0


def signs_of_large_steps(case: Case, until: int) -> list[Evidence]:
    """Return evidence that updates up to a step were large, by the policy or the weights that they
    moved; a reward or a held-out score is none.
    """
    signs = [
        _long_update(case),
        _moved_tokens(case),
        _kl_jump(case, until),
        _entropy_jump(case, until),
        _gradient_spike(case, until),
        _clipped_before(case, until),
        _unusual_rate(case),
    ]
    return [sign for sign in signs if sign is not None]


def _long_update(case: Case) -> Evidence | None:
    if not case.has(UPDATE_METRIC, WEIGHTS_METRIC) or case.value("model.lora"):
        return None
    share = float(
        np.nanmedian(case.view.metrics[UPDATE_METRIC] / case.view.metrics[WEIGHTS_METRIC])
    )
    share /= updates_per_step(case)
    if share <= LARGE_UPDATE_SHARE:
        return None
    return Evidence(f"An update is {share:.1%} of the weights' length.", share, UPDATE_METRIC)


def _moved_tokens(case: Case) -> Evidence | None:
    moves = case.curve(MOVED_METRIC)[1]
    if len(moves) < MIN_TOKEN_MOVES or np.median(moves) <= LARGE_TOKEN_MOVE:
        return None
    move = float(np.median(moves))
    return Evidence(f"One update moves its own tokens by {move:.2g} nats.", move, MOVED_METRIC)


def _kl_jump(case: Case, until: int) -> Evidence | None:
    steps, kl = case.curve(KL_METRIC)
    jumps = np.diff(kl[steps <= until])
    if not len(jumps) or jumps.max() < LARGE_KL_JUMP:
        return None
    point = int(np.argmax(jumps)) + 1
    text = f"KL to the reference {kl[point - 1]:.2g} → {kl[point]:.2g} at step {steps[point]}."
    return Evidence(text, float(kl[point]), KL_METRIC, int(steps[point]))


def _entropy_jump(case: Case, until: int) -> Evidence | None:
    steps, entropy = case.curve(ENTROPY_METRIC)
    before = entropy[steps <= until]
    if len(before) < 2 or before.min() <= 0:
        return None
    is_large = np.abs(np.diff(np.log(before))) >= LARGE_ENTROPY_JUMP
    is_large &= np.abs(np.diff(before)) >= MIN_ENTROPY_JUMP
    if not is_large.any():
        return None
    point = int(np.argmax(is_large)) + 1
    text = f"Entropy {entropy[point - 1]:.2g} → {entropy[point]:.2g} at step {steps[point]}."
    return Evidence(text, float(entropy[point]), ENTROPY_METRIC, int(steps[point]))


def _gradient_spike(case: Case, until: int) -> Evidence | None:
    steps, norms = case.curve(GRADIENT_METRIC)
    before = norms[steps <= until]
    if len(before) < MIN_SPIKE_POINTS or np.median(before) <= 0:
        return None
    median = float(np.median(before))
    point = int(np.argmax(before))
    norm = float(before[point])
    if norm < GRADIENT_SPIKE * median:
        return None
    text = f"Gradient {norm:.2g} at step {steps[point]}, {median:.2g} in the median before."
    return Evidence(text, norm, GRADIENT_METRIC, int(steps[point]))


def _clipped_before(case: Case, until: int) -> Evidence | None:
    for side in CLIP_SIDES:
        metric = f"clip/{side}/share"
        steps, shares = case.curve(metric)
        before = shares[steps <= until]
        if len(before) and before.max() > MAX_CLIPPED_SHARE:
            point = int(np.argmax(before))
            text = f"{before[point]:.0%} of tokens clipped at step {steps[point]}."
            return Evidence(text, float(before[point]), metric, int(steps[point]))
    return None


def _unusual_rate(case: Case) -> Evidence | None:
    """Return evidence of a rate above those that suit the model, where its size is known."""
    known = settings_in_force(case.view)
    rates = case.curve(RATE_METRIC)[1]
    if not known("model.parameters") or not len(rates):
        return None
    _, highest = usual_learning_rates(known)
    if rates.max() <= UNUSUAL_RATE_FACTOR * highest:
        return None
    text = f"Learning rate {rates.max():.2g}; up to {highest:.2g} suits a model of this size."
    return Evidence(text, float(rates.max()), RATE_METRIC)


def _above_usual_rates(case: Case) -> Found | None:
    """Report a rate that is above any in use where the model broke."""
    largest = _largest_rate(case)
    highest_rate = _extreme_rates(case)[1]
    if largest is None or largest.rate < highest_rate or not _is_broken(case):
        return None
    summary = (
        f"The learning rate is {largest.rate:.2g}; from {highest_rate:.1g} on, a step breaks such"
        " a model."
    )
    return Found(WARNING, SIGNAL, summary, [largest.evidence])


def _extreme_rates(case: Case) -> tuple[float, float]:
    """Return a rate below which no model of this size moves, and one from which a step breaks
    it.
    """
    known = settings_in_force(case.view)
    if not known("model.parameters"):
        return MIN_RATE, MAX_RATE
    low, high = usual_learning_rates(known)
    return low / RATE_FACTOR, high * RATE_FACTOR


# Share of dead groups from which a model that does not learn answers all alike.
BROKEN_DEAD_SHARE = 0.5


def _is_broken(case: Case) -> bool:
    """Return True where the reward falls, or many groups came to answer all alike; those of the
    first step do so before any update.
    """
    if case.trend.kind is TrendKind.FALLING:
        return True
    dead = case.dead_groups
    if len(dead) == 0 or float(dead[0]) >= BROKEN_DEAD_SHARE:
        return False
    return float(dead.mean()) >= BROKEN_DEAD_SHARE


@check("optimizer.schedule")
def schedule(case: Case) -> Answer:
    """Report a schedule that leaves little of the configured rate or none, or a warm-up that gets
    nowhere.
    """
    zero = _no_rate(case)
    if zero is not None or len(case.view.steps) >= MIN_POINTS:
        return zero or [_little_rate_left(case), _endless_warmup(case)]
    return Lacking(f"fewer than {MIN_POINTS} points")


# Points with a rate of 0 that are more than the first step of a warm-up and the last of a decay.
MIN_ZERO_RATES = 3


def _no_rate(case: Case) -> Found | None:
    """Report a rate of exactly 0 at every point: no update changes anything."""
    steps, rates = case.curve(RATE_METRIC)
    if len(rates) < MIN_ZERO_RATES or rates.any() or case.has_rounded_zeros or case.is_learning:
        return None
    points = f"each of {len(rates)} points"
    summary = f"The learning rate is exactly 0 at {points}: no update changes anything."
    evidence = Evidence("Learning rate 0.", 0.0, RATE_METRIC, int(steps[-1]))
    return Found(CRITICAL, PROOF, summary, [evidence])


# Part of the configured rate that a schedule must leave on average, and part below which nothing
# can be learned.
MIN_RATE_SHARE = 0.2
NO_RATE_SHARE = 0.001


def _little_rate_left(case: Case) -> Found | None:
    """Report a schedule whose mean rate is far below the configured one."""
    steps, rates = case.curve(RATE_METRIC)
    configured = case.value("learning.lr")
    if len(rates) < MIN_POINTS or not isinstance(configured, int | float) or configured <= 0:
        return None
    # In the middle of a warm-up nothing is known yet of the rates that follow it.
    warmup_steps = case.value("learning.warmup") or 0
    planned_steps = case.value("learning.steps") or 0
    if steps[-1] < warmup_steps < planned_steps:
        return None
    share = float(rates.mean()) / configured
    if share >= MIN_RATE_SHARE:
        return None

    summary = (
        f"The schedule left {share:.0%} of the learning rate on average: warm-up or decay ate the"
        " run."
    )
    text = f"Mean rate {rates.mean():.2g} of {configured:.2g}."
    evidence = Evidence(text, share, RATE_METRIC, int(steps[-1]))
    if share < NO_RATE_SHARE:
        return Found(CRITICAL, PROOF, summary, [evidence])
    return Found(warn_if(not case.is_learning), SIGNAL, summary, [evidence])


# Share of a run that the longest usual warm-up takes.
MAX_WARMUP_SHARE = 0.1
# Relative difference between the increments of a rate that rises evenly.
INCREMENT_TOLERANCE = 0.05


def _endless_warmup(case: Case) -> Found | None:
    """Report a rate that rises so slowly that a usual warm-up would leave it too small."""
    largest = _largest_rate(case)
    steps, rates = case.curve(RATE_METRIC)
    planned_steps = case.value("learning.steps", 0)
    if largest is None or largest.rate >= MAX_RATE or not planned_steps:
        return None
    if len(rates) < MIN_COURSE_POINTS or not _is_rising(case):
        return None

    # A rate that rises evenly from the first step to the last is still warming up.
    increments = np.diff(rates)
    is_even = np.allclose(increments, increments.mean(), rtol=INCREMENT_TOLERANCE)
    increase_per_step = increments.sum() / np.diff(steps).sum()
    reached_rate = float(increase_per_step) * MAX_WARMUP_SHARE * planned_steps
    if not is_even or increments.mean() <= 0 or reached_rate >= MIN_TARGET_RATE:
        return None
    summary = (
        f"The learning rate still rises, so slowly that after a tenth of {planned_steps} steps it"
        f" is {reached_rate:.2g}: its warm-up eats the run, or leads to nothing."
    )
    return Found(WARNING, SIGNAL, summary, [largest.evidence])


@check("optimizer.clip-tight")
def tight_clip(case: Case) -> Answer:
    """Report gradients that are all cut where the updates shrink with them.

    Adam cancels a constant rescale: its update is about the rate times the root of the number of
    weights, however small the gradient. Under plain descent the update is the rate times the
    gradient, and a clip sets its length. The lengths show which of the two it is, whatever the
    optimizer is called.
    """
    # Where nothing moves, the same finding stands under `optimizer.frozen`: either may be why.
    return [_nothing_moves(case), _all_cut(case)]


# Gradient / limit from which a clip takes the larger part of it, and the quantile of gradients that
# must be as large: at nearly every step.
MIN_CUT_RATIO = 2.0
CUT_QUANTILE = 0.05


def _all_cut(case: Case) -> Found | None:
    """Report gradients that are cut at nearly every step under plain descent."""
    limit = case.value("learning.max_grad_norm", 0)
    gradient = case.summary(GRADIENT_METRIC)
    if not limit or gradient is None:
        return None
    small_gradient = float(np.quantile(gradient.values, CUT_QUANTILE))
    if small_gradient < MIN_CUT_RATIO * limit or not _is_plain_descent(case, limit):
        return None

    summary = (
        f"Every gradient is cut to {limit:g} from about {gradient.last:.3g}, and updates shrink"
        " with it."
    )
    evidence = [case.evidence(GRADIENT_METRIC, "Clipped at every step.")]
    update = case.summary(UPDATE_METRIC)
    if update is not None:
        evidence.append(case.evidence(UPDATE_METRIC, f"An update is {update.last:.2g} long."))
    return Found(WARNING, SIGNAL, summary, evidence)


# A clipped gradient of one weight that is a tenth of the 1e-8 by which Adam's denominator exceeds
# the gradient's own size: below that Adam is plain descent, and hardly moves.
MAX_PLAIN_GRADIENT = 1e-9
# Relative distance of an update from rate × clipped gradient in plain descent, and the steps that
# show it.
PLAIN_TOLERANCE = 0.1
MIN_PLAIN_STEPS = 5


def _is_plain_descent(case: Case, limit: float) -> bool:
    """Return True where an update is the rate times the clipped gradient."""
    optimizer = str(case.value("learning.optimizer", "adamw")).lower()
    n_weights = settings_in_force(case.view)("model.parameters") or 1.0
    # The root of the mean square over the weights of a gradient whose norm is the limit.
    gradient_per_weight = limit / np.sqrt(n_weights)
    if optimizer == "sgd" or gradient_per_weight < MAX_PLAIN_GRADIENT:
        return True
    if not case.has(UPDATE_METRIC, RATE_METRIC, CLIPPED_GRADIENT_METRIC):
        return False
    metrics = case.view.metrics
    update = metrics[UPDATE_METRIC]
    plain_update = metrics[RATE_METRIC] * metrics[CLIPPED_GRADIENT_METRIC]
    is_known = np.isfinite(plain_update) & np.isfinite(update) & (np.nan_to_num(plain_update) > 0)
    ratios = update[is_known] / plain_update[is_known]
    return len(ratios) >= MIN_PLAIN_STEPS and bool((np.abs(ratios - 1) < PLAIN_TOLERANCE).all())


@check("optimizer.frozen")
def frozen(case: Case) -> Answer:
    """Report weights that never move, and gradients that never reach them."""
    return [
        _no_gradient(case),
        _nothing_moves(case),
        _few_weights_move(case),
        _no_weight_moves(case),
    ]


def _no_weight_moves(case: Case) -> Found | Lacking | None:
    """Report updates of length 0 at every step with a gradient."""
    changes = _weight_changes(case)
    if changes.lacking:
        return Lacking(changes.lacking)
    if not changes.are_zero:
        return None
    summary = (
        f"No trained weight changed in {len(changes.lengths)} steps with a gradient: the optimizer"
        " moves nothing."
    )
    text = "Length of the update exactly 0 at every step."
    evidence = Evidence(text, 0.0, UPDATE_METRIC, int(case.view.steps[-1]))
    return Found(CRITICAL, PROOF, summary, [evidence])


# Share of all weights below which hardly anything trains.
MIN_MOVING_SHARE = 0.1


def _few_weights_move(case: Case) -> Found | None:
    """Report a full training in fp32 that moves few weights: others were frozen, or never given to
    the optimizer.
    """
    changes = _weight_changes(case)
    if changes.lacking or not changes.lengths.any():
        return None
    if not _never_rounds(case) or case.value("model.lora"):
        return None
    model = {"trainable": 1, "parameters": 1, **(case.view.info.get("model") or {})}
    moving_shares = changes.shares[changes.shares > 0]
    typical_share = float(np.median(moving_shares)) if len(moving_shares) else 1.0
    share = typical_share * model["trainable"] / model["parameters"]
    if share >= MIN_MOVING_SHARE:
        return None

    # A part of the model has a metric such as weights/update/PART/norm.
    moving_parts = []
    for metric in case.view.metrics:
        is_of_part = metric.count("/") == 3 and "/update/" in metric
        if is_of_part and case.curve(metric)[1].any():
            moving_parts.append(metric.split("/")[2])
    summary = (
        f"Only {share:.2%} of the model's weights ever change ({', '.join(sorted(moving_parts))}),"
        " without adapters: the rest is frozen."
    )
    text = f"Share of all weights whose bits an update changes: {share:.2g}."
    evidence = Evidence(text, share, CHANGED_METRIC)
    return Found(warn_if(not case.is_learning), PROOF, summary, [evidence])


# Share of dead groups below which a step has something to learn from; where it was not logged,
# deviation of the rewards within groups above which it has.
MAX_DEAD_SHARE = 0.9
MIN_LIVE_DEVIATION = 1e-6
# Such steps from which a gradient of 0 is no accident; one is enough in an excerpt of a few lines.
MIN_LIVE_STEPS = 5
# KL of a policy that moved.
MOVED_KL = 1e-3


def _no_gradient(case: Case) -> Found | None:
    """Report gradients of exactly 0 at every step with live groups: the loss is cut off from the
    weights.
    """
    if not case.has(GRADIENT_METRIC, REWARD_METRIC) or case.has_rounded_zeros:
        return None
    gradient = case.view.metrics[GRADIENT_METRIC]
    reward = case.view.metrics[REWARD_METRIC]
    if case.has(DEAD_GROUPS_METRIC):
        is_live = case.view.metrics[DEAD_GROUPS_METRIC] < MAX_DEAD_SHARE
    elif case.has(DEVIATION_METRIC):
        is_live = case.view.metrics[DEVIATION_METRIC] > MIN_LIVE_DEVIATION
    else:
        return None
    # A trainer may leave cut completions out of the loss, and with all of them cut all of it.
    cut = case.view.metrics.get(CUT_METRIC)
    if cut is not None:
        is_live &= np.nan_to_num(cut) < 1
    norms = gradient[np.isfinite(gradient) & is_live & np.isfinite(reward)]
    min_steps = 1 if case.is_excerpt else MIN_LIVE_STEPS
    if len(norms) < min_steps or norms.any():
        return None
    # Where the policy moved all the same, the norm was rounded to 0 in the log.
    highest_kl = float(case.curve(KL_METRIC)[1].max(initial=0.0))
    if case.is_learning or highest_kl > MOVED_KL:
        return None

    steps = "a step" if len(norms) == 1 else f"all of {len(norms)} steps"
    summary = (
        f"The gradient is exactly 0 at {steps} that had live groups: it never reaches the weights."
    )
    text = f"0 at {steps} with fewer than {MAX_DEAD_SHARE:.0%} dead groups."
    evidence = [Evidence(text, 0.0, GRADIENT_METRIC)]
    kl = case.curve(KL_METRIC)[1]
    if len(kl) and not kl.any():
        evidence.append(Evidence("The KL is 0 as well: the policy did not move.", 0.0, KL_METRIC))
    severity = CRITICAL if len(norms) >= MIN_LIVE_STEPS else WARNING
    return Found(severity, SIGNAL, summary, evidence)


# Relative change of entropy below which nothing moved.
MAX_ENTROPY_CHANGE = 0.1


def _nothing_moves(case: Case) -> Found | None:
    """Report entropy that stands still at a rate at which Adam breaks a model: no update
    arrives.
    """
    largest = _largest_rate(case)
    entropy = case.summary(ENTROPY_METRIC)
    if largest is None or largest.rate < MAX_RATE or _is_broken(case):
        return None
    # With the length of updates it is known what the weights did.
    if case.has(UPDATE_METRIC) or entropy is None or len(entropy.values) < MIN_COURSE_POINTS:
        return None
    relative_change = abs(entropy.last / entropy.first - 1)
    if relative_change > MAX_ENTROPY_CHANGE or entropy.rises or entropy.falls:
        return None

    summary = (
        f"Nothing moves at a learning rate of {largest.rate:.2g}, at which Adam would break a"
        " model: updates do not arrive, or are clipped to nothing. Weights around a step would"
        " settle it."
    )
    text = f"Entropy {entropy.first:.3g} → {entropy.last:.3g}."
    return Found(
        WARNING, SUSPICION, summary, [largest.evidence, case.evidence(ENTROPY_METRIC, text)]
    )


@check("precision.update-underflow")
def underflow(case: Case) -> Answer:
    """Report updates too small for the precision of the weights."""
    changes = _weight_changes(case)
    if changes.lacking:
        return Lacking(changes.lacking)
    if len(changes.shares) == 0 and not changes.are_zero:
        return Lacking("the share of weights that changed was not logged")
    return None if case.value("model.weights") == "fp32" else _rounded(case)


# Share of weights that must change bits in a step with a gradient, and share below which it is
# critical.
MIN_CHANGED_SHARE = 0.5
CRITICAL_CHANGED_SHARE = 0.1


def _rounded(case: Case) -> Found | None:
    """Report steps in which most weights keep their bits."""
    changes = _weight_changes(case)
    if changes.lacking or len(changes.shares) < 2 or changes.are_zero or _never_rounds(case):
        return None
    # The first step of an adapter moves only one of its two halves.
    typical_share = float(np.median(changes.shares[1:]))
    if typical_share >= MIN_CHANGED_SHARE:
        return None

    precision = case.value("model.weights", "the weights' precision")
    rate = case.value("learning.lr")
    at_rate = f" at a learning rate of {rate:.2g}" if rate else ""
    summary = (
        f"Only {typical_share:.1%} of the weights change bits in a step, in {precision}{at_rate}:"
        " most updates round to nothing."
    )
    is_critical = typical_share < CRITICAL_CHANGED_SHARE and not case.is_learning
    text = f"Median share of weights changed {typical_share:.3g}."
    evidence = Evidence(text, typical_share, CHANGED_METRIC)
    return Found(CRITICAL if is_critical else WARNING, PROOF, summary, [evidence])


# Rate from which fp32 rounds no update away.
MIN_FP32_RATE = 1e-7


def _never_rounds(case: Case) -> bool:
    """Return True where weights are fp32, and the rate is large enough for it."""
    rate = case.value("learning.lr") or 0.0
    return case.value("model.weights") == "fp32" and rate >= MIN_FP32_RATE


# Steps with a gradient that a judgment of changed weights takes.
MIN_CHANGE_STEPS = 3


@dataclass(frozen=True)
class WeightChanges:
    """Changes of the weights at the steps that had a gradient and a rate."""

    shares: Floats
    """Share of weights whose bits changed, at each step that logged it."""
    lengths: Floats
    """Length of the update, at each step that logged it."""
    lacking: str
    """Reason why they can't be judged; empty where they can."""

    @property
    def are_zero(self) -> bool:
        """True where no update changed a weight."""
        return len(self.lengths) >= MIN_CHANGE_STEPS and not self.lengths.any()


def _weight_changes(case: Case) -> WeightChanges:
    metrics = case.view.metrics
    is_driven = np.ones(len(case.view.steps), np.bool_)
    for metric in (GRADIENT_METRIC, RATE_METRIC):
        if case.has(metric):
            is_driven &= np.nan_to_num(metrics[metric]) > 0

    unlogged = np.full(len(case.view.steps), np.nan)
    shares = metrics.get(CHANGED_METRIC, unlogged)[is_driven]
    lengths = metrics.get(UPDATE_METRIC, unlogged)[is_driven]
    shares = shares[np.isfinite(shares)]
    lengths = lengths[np.isfinite(lengths)]
    n_points = max(len(shares), len(lengths))
    lacking = ""
    if n_points == 0:
        lacking = "no changes of the weights were logged"
    elif n_points < MIN_CHANGE_STEPS:
        lacking = f"fewer than {MIN_CHANGE_STEPS} steps with a gradient"
    return WeightChanges(shares, lengths, lacking)


@dataclass(frozen=True)
class LargestRate:
    """The largest learning rate of a run."""

    rate: float
    step: int

    @property
    def evidence(self) -> Evidence:
        text = f"The largest rate is {self.rate:.2g}, at step {self.step}."
        return Evidence(text, self.rate, RATE_METRIC, self.step)


def _largest_rate(case: Case) -> LargestRate | None:
    """Return the largest rate of a run that does not learn; None where it learns, or with too few
    rates to judge.
    """
    steps, rates = case.curve(RATE_METRIC)
    if len(rates) < MIN_POINTS or case.is_learning:
        return None
    largest = int(np.argmax(rates))
    return LargestRate(float(rates[largest]), int(steps[largest]))


# Last rate / median rate above which a schedule still rises.
RISING_RATIO = 1.5


def _is_rising(case: Case) -> bool:
    rates = case.curve(RATE_METRIC)[1]
    return bool(rates[-1] > RISING_RATIO * np.median(rates))
