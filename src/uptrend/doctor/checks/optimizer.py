"""Step sizes: updates that are not made, do not arrive, or are too small or too large.

`usual_learning_rates` says which rates suit a model. A step of Adam moves every weight by about the
rate, and 2e-3 is a good part of a weight.
"""

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
from uptrend.doctor.trend import REWARD_METRIC
from uptrend.records import Evidence, TrendKind
from uptrend.records.table import Ints
from uptrend.records.view import Floats

RATE = "optimizer/lr"
KL = "kl/reference/mean"
ENTROPY = "learner/entropy/mean"
BEFORE = "gradient/norm/before"
AFTER = "gradient/norm/after"
UPDATE = "weights/update/norm"
NORM = "weights/norm"
CHANGED = "weights/changed/share"
SKIPPED = "optimizer/skipped/count"
MADE = "optimizer/updates/count"

# Points that a judgment by curves takes, and one by how they run on.
FEWEST = 10
LONG = 20
# Rates where the size is not known: the least in use, the least that recipes aim for, and more than
# anybody uses.
LEAST = 1e-7
USUAL = 5e-7
MOST = 2e-3
# How many times below or above the usual rates for a model's size a rate is too small or too large.
RATE_FACTOR = 10.0


@check("optimizer.skipped-updates")
def skipped_updates(case: Case) -> Answer:
    """Report steps whose update was not applied."""
    steps, skipped = case.curve(SKIPPED)
    at, made = case.curve(MADE)
    unmoved = _unmoved_steps(case)
    points = max(len(at), len(steps), len(unmoved) and len(case.view.steps))
    idle = np.union1d(at[made == 0], unmoved)
    if not points:
        return Lacking("neither made nor skipped updates were counted")
    lost = float(skipped.sum())
    total = float(skipped.sum() + made.sum())
    is_long = len(case.view.steps) >= FEWEST and lost > 0
    of_updates = lost / total if total else 1.0
    share = max(of_updates, len(idle) / points)
    is_enough = is_long or points >= 5 or len(idle) == points
    # In a short run a few skips are an fp16 loss scaler that settles.
    if not is_enough or not (lost or len(idle)) or (share < 0.02 and not is_long):
        return None
    severity = warn_if(is_long or share >= 0.1)
    if share >= 0.5 or (is_long and of_updates > 0.2):
        severity = CRITICAL
    first = int(idle[0] if len(idle) else steps[np.flatnonzero(skipped)[0]])
    text = (
        f"{lost:.0f} of {total:.0f} updates were skipped, and {len(idle)} of {points} steps made"
        " none"
    )
    shown = Evidence(text, share, SKIPPED, first)
    return Found(severity, PROOF, PAGE_SUMMARY, [shown])


def _unmoved_steps(case: Case) -> Ints:
    """Return steps with a gradient and a rate that changed no weight, where others did: their
    update was lost.
    """
    if not case.has(UPDATE, BEFORE, RATE):
        return np.zeros(0, np.int64)
    update, gradient, rate = (case.view.metrics[metric] for metric in (UPDATE, BEFORE, RATE))
    is_still = (update == 0) & (gradient > 0) & (rate > 0)
    moved = np.flatnonzero(update > 0)
    # The small rates of a warm-up may round to nothing.
    is_still &= rate >= (rate[moved].min() if len(moved) else np.inf)
    return case.view.steps[is_still] if is_still.sum() >= 3 else np.zeros(0, np.int64)


# Share of steps without a gradient from which they are worth a word.
DEAD_SHARE = 0.2


@check("optimizer.dead-steps")
def dead_steps(case: Case) -> Answer:
    """Report steps with a gradient of exactly 0: a share of many, or every single one of a few."""
    gradient = case.curve(BEFORE)[1]
    if len(case.view.steps) < FEWEST and not case.is_certainly_idle:
        return Lacking(f"fewer than {FEWEST} points")
    share = float(np.mean(gradient == 0)) if len(gradient) else 0.0
    if share < DEAD_SHARE:
        return None
    text = (
        f"The gradient is exactly 0 at {share:.0%} of the logged points: those steps changed"
        " nothing."
    )
    shown = Evidence(f"{int((gradient == 0).sum())} of {len(gradient)} points.", share, BEFORE)
    return Found(warn_if(case.is_stuck or case.is_certainly_idle), PROOF, text, [shown])


@check("optimizer.lr-small")
def small_rate(case: Case) -> Answer:
    """Report a policy that hardly left its start, steps that round to nothing in fp32, and a rate
    below any in use.
    """
    answers = list[Found | Lacking | None]()
    if len(case.view.steps) < FEWEST:
        answers.append(Lacking(f"fewer than {FEWEST} points"))
    elif not case.has(KL) and not case.has(UPDATE, NORM):
        answers.append(Lacking("neither KL nor the size of updates was logged"))
    else:
        answers.append(_hardly_left(case))
    # nothing is more precise: what rounds to nothing is too small a step
    if case.value("model.weights") == "fp32":
        answers.append(_rounded(case))
    largest = _largest_rate(case)
    least = _extremes(case)[0]
    if largest is not None and not _is_rising(case) and 0 < (rate := largest[0]) < least:
        text = (
            f"The learning rate is never above {rate:.2g}: below {least:.1g} such a model does not"
            " move."
        )
        answers.append(Found(WARNING, SIGNAL, text, [largest[1]]))
    return answers


# KL at the end of a run below which the policy has hardly left its start, and that of a run that
# learns all the same.
NEAR = 0.01
NEAR_AND_LEARNING = 1e-3
# The same by weights: the path of all updates against the weights' length, as far as it would lead
# in a run of at least so many steps at the configured rate. A shorter run, or one that still warms
# up, may only need time: 26 points of accuracy were gained by 25 updates of 0.0006 in all.
MOVED = 0.002
FULL_RUN = 100
# Final KL / first-quarter KL above which the policy is still moving.
LEAVING = 5.0


def _hardly_left(case: Case) -> Found | None:
    """Report a policy near its start; a warning where the reward did not rise and groups were
    alive.
    """
    if case.has_gained:
        return None  # accuracy that moved was moved by the policy
    kl = case.summary(KL)
    gradient = case.summary(BEFORE)
    nearest = NEAR_AND_LEARNING if case.is_learning else NEAR
    is_near = kl is not None and bool(kl.values.any()) and 0 <= kl.last < nearest
    path, full_path = _paths(case)
    is_short_way = full_path is not None and full_path < MOVED and not case.is_learning
    if not (is_near or is_short_way):
        return None
    shown = []
    if kl is not None and is_near:
        text = f"KL to the reference {kl.first:.2g} in the first quarter, {kl.last:.2g} at the end."
        shown.append(case.evidence(KL, text))
    if gradient is not None and gradient.last > 0:
        shown.append(
            case.evidence(
                BEFORE, f"Gradient {gradient.last:.2g}: there is something to learn from."
            )
        )
    if path is not None:
        shown.append(
            Evidence(f"All updates together are {path:.2g} of the weights' length.", path, UPDATE)
        )
    is_long = case.is_stuck or (
        case.trend.kind is TrendKind.TOO_SHORT and int(case.view.steps[-1]) >= 50
    )
    # no run of usual length would have moved it
    is_long |= full_path is not None and full_path < MOVED / 5
    is_dead = len(case.dead_groups) > 0 and float(case.dead_groups.mean()) > 0.9
    # A policy that leaves slowly but ever faster is on its way, and only needs time.
    is_on_its_way = kl is not None and is_near and kl.last > LEAVING * max(kl.first, 0.0)
    at = f" at a learning rate of {rate:.2g}" if (rate := case.value("learning.lr")) else ""
    text = f"The policy hardly left its start{at}: updates are too small or too few to show."
    return Found(warn_if(is_long and not is_on_its_way and not is_dead), SIGNAL, text, shown)


def _paths(case: Case) -> tuple[float | None, float | None]:
    """Return all updates / the weights' length: of the steps that were made, and of a full run at
    the configured rate.

    Both are None where updates were not measured.
    """
    update = case.curve(UPDATE)[1]
    norm = case.curve(NORM)[1]
    if not len(update) or not len(norm) or norm[0] <= 0:
        return None, None
    path = float(update.sum() / norm[0])
    steps = max(FULL_RUN, int(case.value("learning.steps") or 0))
    # A step of Adam is as long as the rate: in a warm-up, or late in a decay, steps say little of
    # the others.
    rates = case.curve(RATE)[1]
    configured = case.value("learning.lr")
    mean_rate = float(rates.mean()) if len(rates) else 0.0
    usual = configured if isinstance(configured, int | float) else mean_rate
    faster = max(1.0, usual / mean_rate) if mean_rate > 0 else 1.0
    return path, path * faster * max(1.0, steps / len(update))


# Share of clipped tokens, and of the weights' length in one update, from which updates are too
# large. Adapters, which start at 0, are not judged by length.
CLIPPED = 0.2
LEAP = 0.01
# Weight of an entropy bonus, ten times what is usual, from which it may rule the update.
HEAVY = 0.1
# Nats by which an update may move its own tokens on average: the clip range is about 0.2.
MAX_MOVE = 1.0
# Share of dead groups from which a model that does not learn answers all alike.
BROKEN_DEAD_SHARE = 0.5


@check("optimizer.lr-large", at_least=FEWEST)
def large_rate(case: Case) -> Answer:
    """Report updates that leave their region or break the model, and a rate above any in use."""
    found = [_clipped(case) or _leaps(case) or _fell_at_the_peak(case)]
    largest = _largest_rate(case)
    most = _extremes(case)[1]
    if largest is not None and largest[0] >= most and _is_broken(case):
        text = (
            f"The learning rate is {largest[0]:.2g}; from {most:.1g} on, a step breaks such a"
            " model."
        )
        found.append(Found(WARNING, SIGNAL, text, [largest[1]]))
    return found


def _extremes(case: Case) -> tuple[float, float]:
    """Return a rate below which no model of this size moves, and one from which a step breaks
    it.
    """
    known = settings_in_force(case.view)
    low, high = usual_learning_rates(known)
    if not known("model.parameters"):
        return LEAST, MOST
    return low / RATE_FACTOR, high * RATE_FACTOR


def _clipped(case: Case) -> Found | None:
    clipped = [c for side in ("low", "high", "region") if (c := case.summary(f"clip/{side}/share"))]
    most = max(clipped, key=lambda c: c.last, default=None)
    # A range of some thousandths, as GSPO has for whole sequences, clips much by design.
    if most is None or most.last <= CLIPPED or 0 < (case.value("learning.clip_low") or 1.0) < 0.05:
        return None
    text = (
        f"{most.last:.0%} of tokens are clipped: updates leave the region that they were computed"
        " for."
    )
    shown = case.evidence(most.metric, f"Clipped share {most.last:.2f}.")
    # Where the range is not known it may be such a one.
    is_fault = (
        case.trend.kind is TrendKind.FALLING
        if case.value("learning.clip_low") is None
        else not case.is_learning
    )
    return Found(warn_if(is_fault), SIGNAL, text, [shown])


def _leaps(case: Case) -> Found | None:
    moved = case.summary("learner/moved/mean")
    if (
        moved is not None
        and len(moved.values) >= 3
        and np.median(moved.values) > MAX_MOVE
        and not case.is_learning
    ):
        text = (
            f"One update moves log-probabilities of its own tokens by {moved.last:.2g} nats on"
            " average: too far."
        )
        return Found(WARNING, SIGNAL, text, [case.evidence(moved.metric, "More than 0.1 is much.")])
    if not case.has(UPDATE, NORM) or case.is_learning or case.value("model.lora"):
        return None
    leap = float(np.nanmedian(case.view.metrics[UPDATE] / case.view.metrics[NORM]))
    if leap <= LEAP:
        return None
    text = (
        f"A step changes the weights by {leap:.1%} of their length, and the reward does not rise:"
        " too large a step."
    )
    shown = Evidence(f"Update over weights {leap:.3g}; about 0.001 is usual.", leap, UPDATE)
    return Found(WARNING, SIGNAL, text, [shown])


def _fell_at_the_peak(case: Case) -> Found | None:
    steps, rates = case.curve(RATE)
    # An entropy bonus that heavy is the likelier reason of a fall.
    if case.collapse is None or len(rates) == 0 or abs(case.entropy_weight) >= HEAVY:
        return None
    step = int(case.curve(REWARD_METRIC)[0][case.collapse.index - 1])
    rate = float(np.interp(step, steps, rates))
    most = float(rates.max())
    if rate < 0.5 * most:
        return None
    fell = (
        f"The reward fell from {case.collapse.best:.3g} to {case.collapse.last:.3g} near step"
        f" {step}"
    )
    text = f"{fell}, at a rate of {rate:.2g}, near its peak: steps are too large."
    shown = Evidence(
        f"Learning rate {rate:.2g} of at most {most:.2g} at the fall.", rate, RATE, step
    )
    return Found(WARNING, SIGNAL, text, [shown])


# Share of the rate asked for that a schedule must leave on average, and share of a run that a
# warm-up takes at most.
USED = 0.2
WARM_UP = 0.1
# Share of the rate asked for below which nothing can be learned.
NO_RATE = 0.001


@check("optimizer.schedule", at_least=FEWEST)
def schedule(case: Case) -> list[Found]:
    """Report a schedule that leaves little of the rate asked for, or a warm-up that gets
    nowhere.
    """
    found = list[Found]()
    steps, rates = case.curve(RATE)
    asked = case.value("learning.lr")
    warmup = case.value("learning.warmup") or 0
    steps_planned = case.value("learning.steps") or 0
    # In the middle of a warm-up nothing is known yet of the rates that follow it.
    is_warming_up = len(steps) > 0 and steps[-1] < warmup < steps_planned
    if not is_warming_up and len(rates) >= FEWEST and isinstance(asked, int | float) and asked > 0:
        used = float(rates.mean()) / asked
        if used < USED:
            text = (
                f"The schedule left {used:.0%} of the learning rate on average: warm-up or decay"
                " ate the run."
            )
            shown = Evidence(
                f"Mean rate {rates.mean():.2g} of {asked:.2g}.", used, RATE, int(steps[-1])
            )
            sure = (CRITICAL, PROOF) if used < NO_RATE else (warn_if(not case.is_learning), SIGNAL)
            found.append(Found(*sure, text, [shown]))
    largest = _largest_rate(case)
    planned = case.value("learning.steps", 0)
    if (
        largest is None
        or largest[0] >= MOST
        or not _is_rising(case)
        or len(rates) < LONG
        or not planned
    ):
        return found
    # A rate that rises evenly from the first step to the last is still warming up.
    rises = np.diff(rates)
    reached = float(rises.sum() / np.diff(steps).sum()) * WARM_UP * planned
    if np.allclose(rises, rises.mean(), rtol=0.05) and rises.mean() > 0 and reached < USUAL:
        slow = f"so slowly that after a tenth of {planned} steps it is {reached:.2g}"
        text = (
            f"The learning rate still rises, {slow}: its warm-up eats the run, or leads to nothing."
        )
        found.append(Found(WARNING, SIGNAL, text, [largest[1]]))
    return found


# Relative distance of an update from rate × clipped gradient in plain descent.
PLAIN = 0.1
# Gradient / limit from which a clip takes the larger part of it, at nearly every step.
MIN_CUT = 2.0


@check("optimizer.clip-tight")
def tight_clip(case: Case) -> Answer:
    """Report gradients that are all cut where the updates shrink with them.

    Adam cancels a constant rescale: its update is about the rate times the root of the number of
    weights, however small the gradient. Under plain descent the update is the rate times the
    gradient, and a clip sets its length. The lengths show which of the two it is, whatever the
    optimizer is called.
    """
    still = _nothing_moves(case)
    metrics = case.view.metrics
    limit = case.value("learning.max_grad_norm", 0)
    gradient = case.summary(BEFORE)
    if not limit or gradient is None or float(np.quantile(gradient.values, 0.05)) < MIN_CUT * limit:
        return still
    is_plain = str(case.value("learning.optimizer", "adamw")).lower() == "sgd"
    # Adam divides by the gradient's own size plus 1e-8: below that it is plain descent, and hardly
    # moves.
    is_plain |= limit / np.sqrt(settings_in_force(case.view)("model.parameters") or 1.0) < 1e-9
    if not is_plain and case.has(UPDATE, RATE, AFTER):
        asked = metrics[RATE] * metrics[AFTER]
        update = metrics[UPDATE]
        known = np.isfinite(asked) & np.isfinite(update) & (np.nan_to_num(asked) > 0)
        is_plain = known.sum() >= 5 and bool(
            (np.abs(update[known] / asked[known] - 1) < PLAIN).all()
        )
    if not is_plain:
        return still
    text = (
        f"Every gradient is cut to {limit:g} from about {gradient.last:.3g}, and updates shrink"
        " with it."
    )
    shown = [case.evidence(BEFORE, "Clipped at every step.")]
    if (length := case.summary(UPDATE)) is not None:
        shown.append(case.evidence(UPDATE, f"An update is {length.last:.2g} long."))
    return [still, Found(WARNING, SIGNAL, text, shown)]


# Share of dead groups below which a step has something to learn from; steps that it takes, and KL
# of a moved policy.
ALIVE = 0.9
ALIVE_STEPS = 5
MOVED_KL = 1e-3
# Relative change of entropy below which nothing moved.
UNMOVED = 0.1


@check("optimizer.frozen")
def frozen(case: Case) -> Answer:
    """Report weights that never move, and gradients that never reach them."""
    _, update, lacking = _weight_changes(case)
    found = None
    if not lacking and _is_frozen(update):
        text = (
            f"No trained weight changed in {len(update)} steps with a gradient: the optimizer moves"
            " nothing."
        )
        shown = Evidence(
            "Length of the update exactly 0 at every step.", 0.0, UPDATE, int(case.view.steps[-1])
        )
        found = Found(CRITICAL, PROOF, text, [shown])
    return [
        _no_gradient(case),
        _nothing_moves(case),
        _mostly_still(case),
        Lacking(lacking) if lacking else found,
    ]


# Share of all weights below which hardly anything trains, and rate above which fp32 rounds no
# update away.
MOVING = 0.1
ROUNDS = 1e-7


def _mostly_still(case: Case) -> Found | None:
    """Report a full training in fp32 that moves few weights: others were frozen, or never given to
    the optimizer.
    """
    changed, update, lacking = _weight_changes(case)
    model = {"trainable": 1, "parameters": 1, **(case.view.info.get("model") or {})}
    moving_share = changed[changed > 0]
    share = (
        float(np.median(moving_share if len(moving_share) else 1.0))
        * model["trainable"]
        / model["parameters"]
    )
    if (
        lacking
        or not _never_rounds(case)
        or not update.any()
        or case.value("model.lora")
        or share >= MOVING
    ):
        return None
    parts = (
        m
        for m in case.view.metrics
        if m.count("/") == 3 and "/update/" in m and case.curve(m)[1].any()
    )
    moving = ", ".join(sorted(metric.split("/")[2] for metric in parts))
    text = (
        f"Only {share:.2%} of the model's weights ever change ({moving}), without adapters: the"
        " rest is frozen."
    )
    shown = Evidence(
        f"Share of all weights whose bits an update changes: {share:.2g}.", share, CHANGED
    )
    return Found(warn_if(not case.is_learning), PROOF, text, [shown])


def _never_rounds(case: Case) -> bool:
    return case.value("model.weights") == "fp32" and (case.value("learning.lr") or 0.0) >= ROUNDS


def _no_gradient(case: Case) -> Found | None:
    """Report gradients of exactly 0 at every step with live groups: the loss is cut off from the
    weights.
    """
    if not case.has(BEFORE, "advantage/dead/share", REWARD_METRIC):
        return None
    gradient, dead, reward = (
        case.view.metrics[metric] for metric in (BEFORE, "advantage/dead/share", REWARD_METRIC)
    )
    norms = gradient[np.isfinite(gradient) & (dead < ALIVE) & np.isfinite(reward)]
    # Where the policy moved all the same, somebody rounded the norm away.
    has_moved = case.is_learning or float(case.curve(KL)[1].max(initial=0.0)) > MOVED_KL
    if len(norms) < ALIVE_STEPS or norms.any() or has_moved:
        return None
    text = (
        f"The gradient is exactly 0 at all of {len(norms)} steps that had live groups: it never"
        " reaches the weights."
    )
    shown = Evidence(
        f"0 at each of {len(norms)} steps with fewer than {ALIVE:.0%} dead groups.", 0.0, BEFORE
    )
    return Found(CRITICAL, SIGNAL, text, [shown])


def _nothing_moves(case: Case) -> Found | None:
    """Report entropy that stands still at a rate at which Adam breaks a model: no update
    arrives.
    """
    largest = _largest_rate(case)
    entropy = case.summary(ENTROPY)
    if largest is None or largest[0] < MOST or _is_broken(case):
        return None
    if case.has(UPDATE) or entropy is None or len(entropy.values) < LONG:
        return None  # what the weights did is known, or nothing is
    if abs(entropy.last / entropy.first - 1) > UNMOVED or entropy.rises or entropy.falls:
        return None
    still = (
        f"Nothing moves at a learning rate of {largest[0]:.2g}, at which Adam would break a model"
    )
    text = (
        f"{still}: updates do not arrive, or are clipped to nothing. Weights around a step would"
        " settle it."
    )
    also = case.evidence(ENTROPY, f"Entropy {entropy.first:.3g} → {entropy.last:.3g}.")
    return Found(WARNING, SUSPICION, text, [largest[1], also])


# Share of weights that must change bits in a step with a gradient, and the steps it takes to say
# so.
CHANGED_LEAST = 0.5
CHANGED_STEPS = 3


@check("precision.update-underflow")
def underflow(case: Case) -> Answer:
    """Report updates too small for the precision of the weights."""
    changed, update, lacking = _weight_changes(case)
    if not lacking and len(changed) == 0 and not _is_frozen(update):
        lacking = "the share of weights that changed was not logged"
    if lacking:
        return Lacking(lacking)
    return None if case.value("model.weights") == "fp32" else _rounded(case)


def _rounded(case: Case) -> Found | None:
    changed, update, lacking = _weight_changes(case)
    if lacking or len(changed) < 2 or _is_frozen(update) or _never_rounds(case):
        return None
    # the first step of an adapter moves one of its two halves only
    typical = float(np.median(changed[1:]))
    if typical >= CHANGED_LEAST:
        return None
    precision = case.value("model.weights", "the weights' precision")
    rate = case.value("learning.lr")
    at = f"in {precision} at a learning rate of {rate:.2g}" if rate else f"in {precision}"
    text = (
        f"Only {typical:.1%} of the weights change bits in a step, {at}: most updates round to"
        " nothing."
    )
    severity = CRITICAL if typical < 0.1 and not case.is_learning else WARNING
    return Found(
        severity,
        PROOF,
        text,
        [Evidence(f"Median share of weights changed {typical:.3g}.", typical, CHANGED)],
    )


def _weight_changes(case: Case) -> tuple[Floats, Floats, str]:
    """Return shares of changed weights and lengths of updates where there were a gradient and a
    rate, or why not.
    """
    metrics = case.view.metrics
    unknown = np.full(len(case.view.steps), np.nan)
    driven = np.ones(len(unknown), np.bool_)
    for cause in (BEFORE, RATE):
        if case.has(cause):
            driven &= np.nan_to_num(metrics[cause]) > 0
    changed, update = (metrics.get(metric, unknown)[driven] for metric in (CHANGED, UPDATE))
    changed = changed[np.isfinite(changed)]
    update = update[np.isfinite(update)]
    points = max(len(changed), len(update))
    if points == 0:
        return changed, update, "no changes of the weights were logged"
    return (
        changed,
        update,
        "" if points >= CHANGED_STEPS else f"fewer than {CHANGED_STEPS} steps with a gradient",
    )


def _is_frozen(update: Floats) -> bool:
    return len(update) >= CHANGED_STEPS and not update.any()


def _largest_rate(case: Case) -> tuple[float, Evidence] | None:
    """Return the largest rate of a run that does not learn; None where it learns, or with too few
    rates to judge.
    """
    steps, rates = case.curve(RATE)
    if len(rates) < FEWEST or case.is_learning:
        return None
    largest = float(rates.max())
    at = int(steps[int(np.argmax(rates))])
    return largest, Evidence(f"The largest rate is {largest:.2g}, at step {at}.", largest, RATE, at)


def _is_rising(case: Case) -> bool:
    rates = case.curve(RATE)[1]
    return bool(rates[-1] > 1.5 * np.median(rates))


def _is_broken(case: Case) -> bool:
    """Tell whether the reward falls, or many groups answer all alike."""
    dead = case.dead_groups
    return case.trend.kind is TrendKind.FALLING or (
        len(dead) > 0 and float(dead.mean()) >= BROKEN_DEAD_SHARE
    )
