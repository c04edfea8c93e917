"""Step sizes: updates that are not made, do not arrive, or are too small or too large.

Full fine-tuning uses rates of about 5e-7 to 1e-5, adapters up to some 1e-4. A step of Adam moves every weight by about
the rate, and 2e-3 is a good part of a weight.
"""

import numpy as np

from uptrend.doctor.case import Case
from uptrend.doctor.check import Found, Lacking, check
from uptrend.doctor.curves import REWARD
from uptrend.records import Confidence, Evidence, Severity, TrendKind
from uptrend.records.view import Floats

RATE, KL, ENTROPY = "optimizer/lr", "kl/reference/mean", "learner/entropy/mean"
BEFORE, AFTER = "gradient/norm/before", "gradient/norm/after"
UPDATE, NORM, CHANGED = "weights/update/norm", "weights/norm", "weights/changed/share"
SKIPPED, MADE = "optimizer/skipped/count", "optimizer/updates/count"

# Points that a judgment by curves takes, and one by how they run on.
FEWEST, LONG = 10, 20
# Rates: the least in use, the least that recipes aim for, and more than anybody uses.
LEAST, USUAL, MOST = 1e-7, 5e-7, 2e-3
# KL at the end of a run below which the policy has hardly left its start, and that of a run that learns all the same.
NEAR, NEAR_AND_LEARNING = 0.01, 1e-3
# The same by weights: the path of all updates against the weights' length.
MOVED = 0.002
# Final KL / first-quarter KL above which the policy is still moving.
LEAVING = 5.0
# Share of the weights' length that no single update should be; adapters, which start at 0, aside.
LEAP = 0.01
# Share of clipped tokens from which updates are too large.
CLIPPED = 0.2
# Weight of an entropy bonus, ten times what is usual, from which it may rule the update.
HEAVY = 0.1
# Share of the rate asked for that a schedule must leave on average.
USED = 0.2
# Share of a run that the longest usual warm-up takes.
WARM_UP = 0.1
# Share of dead groups that a broken model leaves.
WASTED = 0.5
# Relative change of entropy below which nothing moved.
UNMOVED = 0.1
# Share of weights that must change bits in a step with a gradient, and the steps it takes to say so.
CHANGED_LEAST, CHANGED_STEPS = 0.5, 3
# Relative distance of an update from rate × clipped gradient in plain descent.
PLAIN = 0.1
# Share of dead groups below which a step has something to learn from; steps that it takes, and KL of a moved policy.
ALIVE, ALIVE_STEPS, MOVED_KL = 0.9, 5, 1e-3


@check("optimizer.skipped-updates", any_of=[SKIPPED, MADE])
def skipped_updates(case: Case) -> Found | None:
    """Report steps whose update was not applied."""
    steps, skipped = case.view.curve(SKIPPED)
    at, made = case.view.curve(MADE)
    idle = at[made == 0]
    lost, total = float(skipped.sum()), float(skipped.sum() + made.sum())
    points = max(len(at), len(steps))
    is_long = len(case.view.steps) >= FEWEST and lost > 0
    if not is_long and points < 5 and not (len(idle) and len(idle) == points):
        return None
    of_updates = lost / total if total else 1.0
    share = max(of_updates, len(idle) / points)
    # In a short run a few skips are an fp16 loss scaler that settles.
    if not (lost or len(idle)) or (share < 0.02 and not is_long):
        return None
    severity = Severity.WARNING if is_long or share >= 0.1 else Severity.NOTE
    if share >= 0.5 or (is_long and of_updates > 0.2):
        severity = Severity.CRITICAL
    first = int(idle[0] if len(idle) else steps[np.flatnonzero(skipped)[0]])
    text = f"{lost:.0f} of {total:.0f} updates were skipped, and {len(idle)} of {points} steps made none"
    summary = "Steps are counted whose updates were never made."
    return Found(severity, Confidence.HIGH, summary, [Evidence(text, share, SKIPPED, first)])


@check("optimizer.dead-steps", at_least=FEWEST)
def dead_steps(case: Case) -> Found | None:
    """Report steps with a gradient of exactly 0."""
    gradient = case.view.curve(BEFORE)[1]
    share = float(np.mean(gradient == 0)) if len(gradient) else 0.0
    if share < 0.2:
        return None
    text = f"The gradient is exactly 0 at {share:.0%} of the logged points: those steps changed nothing."
    shown = Evidence(f"{int((gradient == 0).sum())} of {len(gradient)} points.", share, BEFORE)
    return Found(Severity.WARNING if _is_stuck(case) else Severity.NOTE, Confidence.HIGH, text, [shown])


@check("optimizer.lr-small")
def small_rate(case: Case) -> list[Found | Lacking]:
    """Report a policy that hardly left its start, steps that round to nothing in fp32, and a rate below any in use."""
    view, answers = case.view, list[Found | Lacking | None]()
    if len(view.steps) < FEWEST:
        answers.append(Lacking(f"fewer than {FEWEST} points"))
    elif not view.has(KL) and not view.has(UPDATE, NORM):
        answers.append(Lacking("neither KL nor the size of updates was logged"))
    else:
        answers.append(_hardly_left(case))
    if view.value("model.weights") == "fp32":  # nothing is more precise: what rounds to nothing is too small a step
        answers.append(_rounded(case))
    largest = _largest_rate(case)
    if largest is not None and not _is_rising(case) and 0 < (rate := largest[0]) < LEAST:
        text = f"The learning rate is never above {rate:.2g}, at which no run moves: {LEAST:g} is the least in use."
        answers.append(Found(Severity.WARNING, Confidence.MEDIUM, text, [largest[1]]))
    return [answer for answer in answers if answer]


def _hardly_left(case: Case) -> Found | None:
    """Report a policy near its start; a warning where the reward did not rise and groups were alive."""
    view, kl, trend = case.view, case.course(KL), case.trend.kind
    is_learning = trend is TrendKind.LEARNING
    is_near = kl is not None and bool(kl.values.any()) and 0 <= kl.last < (NEAR_AND_LEARNING if is_learning else NEAR)
    update, norm = view.curve(UPDATE)[1], view.curve(NORM)[1]
    path = float(update.sum() / norm[0]) if len(update) and len(norm) and norm[0] > 0 else None
    is_short_way = path is not None and path < MOVED and not is_learning
    if case.is_learned or not (is_near or is_short_way):
        return None
    shown = []
    if kl is not None and is_near:
        shown.append(kl.evidence(f"KL to the reference {kl.first:.2g} in the first quarter, {kl.last:.2g} at the end."))
    gradient = case.course(BEFORE)
    if gradient is not None and gradient.last > 0:
        shown.append(gradient.evidence(f"Gradient {gradient.last:.2g}: there is something to learn from."))
    if path is not None:
        shown.append(Evidence(f"All updates together are {path:.2g} of the weights' length.", path, UPDATE))
    is_long = _is_stuck(case) or (trend is TrendKind.TOO_SHORT and int(view.steps[-1]) >= 50)
    is_dead = len(case.dead_groups) > 0 and float(case.dead_groups.mean()) > 0.9
    # A policy that leaves slowly but ever faster is on its way, and only needs time.
    is_on_its_way = kl is not None and is_near and kl.last > LEAVING * max(kl.first, 0.0)
    is_fault = is_long and not is_on_its_way and not is_dead
    at = f" at a learning rate of {rate:.2g}" if (rate := view.value("learning.lr")) else ""
    text = f"The policy hardly left its start{at}: updates are too small or too few to show."
    return Found(Severity.WARNING if is_fault else Severity.NOTE, Confidence.MEDIUM, text, shown)


@check("optimizer.lr-large", at_least=FEWEST)
def large_rate(case: Case) -> list[Found]:
    """Report updates that leave their region or break the model, and a rate above any in use."""
    found = [_clipped(case) or _leaps(case) or _fell_at_the_peak(case)]
    largest = _largest_rate(case)
    if largest is not None and largest[0] >= MOST and _is_broken(case):
        text = f"The learning rate is {largest[0]:.2g}, at which a step breaks a model: nobody uses more than {MOST:g}."
        found.append(Found(Severity.WARNING, Confidence.MEDIUM, text, [largest[1]]))
    return [f for f in found if f]


def _clipped(case: Case) -> Found | None:
    clipped = [c for side in ("low", "high", "region") if (c := case.course(f"clip/{side}/share"))]
    most = max(clipped, key=lambda c: c.last, default=None)
    if most is None or most.last <= CLIPPED:
        return None
    text = f"{most.last:.0%} of tokens are clipped: updates leave the region that they were computed for."
    severity = Severity.NOTE if case.trend.kind is TrendKind.LEARNING else Severity.WARNING
    return Found(severity, Confidence.MEDIUM, text, [most.evidence(f"Clipped share {most.last:.2f}.")])


def _leaps(case: Case) -> Found | None:
    """Report updates that are long against the weights."""
    view = case.view
    if not view.has(UPDATE, NORM) or case.trend.kind is TrendKind.LEARNING or view.value("model.lora"):
        return None
    leap = float(np.nanmedian(view.metrics[UPDATE] / view.metrics[NORM]))
    if leap <= LEAP:
        return None
    text = f"A step changes the weights by {leap:.1%} of their length, and the reward does not rise: too large a step."
    shown = Evidence(f"Update over weights {leap:.3g}; about 0.001 is usual.", leap, UPDATE)
    return Found(Severity.WARNING, Confidence.MEDIUM, text, [shown])


def _fell_at_the_peak(case: Case) -> Found | None:
    """Report a collapse of the reward while the rate was near its largest."""
    steps, rates = case.view.curve(RATE)
    # An entropy bonus that heavy is the likelier reason of a fall.
    if case.collapse is None or len(rates) == 0 or abs(case.entropy_weight) >= HEAVY:
        return None
    step = int(case.view.curve(REWARD)[0][case.collapse.index - 1])
    rate, most = float(np.interp(step, steps, rates)), float(rates.max())
    if rate < 0.5 * most:
        return None
    fell = f"The reward fell from {case.collapse.best:.3g} to {case.collapse.last:.3g} near step {step}"
    text = f"{fell}, at a rate of {rate:.2g}, near its peak: steps are too large."
    shown = Evidence(f"Learning rate {rate:.2g} of at most {most:.2g} at the fall.", rate, RATE, step)
    return Found(Severity.WARNING, Confidence.MEDIUM, text, [shown])


@check("optimizer.schedule", at_least=FEWEST)
def schedule(case: Case) -> list[Found]:
    """Report a schedule that leaves little of the rate asked for, or a warm-up that gets nowhere."""
    found = list[Found]()
    steps, rates = case.view.curve(RATE)
    asked = case.view.value("learning.lr")
    if len(rates) >= FEWEST and isinstance(asked, int | float) and asked > 0:
        used = float(rates.mean()) / asked
        if used < USED:
            text = f"The schedule left {used:.0%} of the learning rate on average: warm-up or decay ate the run."
            shown = Evidence(f"Mean rate {rates.mean():.2g} of {asked:.2g}.", used, RATE, int(steps[-1]))
            severity = Severity.WARNING if _is_stuck(case) else Severity.NOTE
            found.append(Found(severity, Confidence.MEDIUM, text, [shown]))
    largest, planned = _largest_rate(case), case.view.value("learning.steps", 0)
    if largest is None or largest[0] >= MOST or not _is_rising(case) or len(rates) < LONG or not planned:
        return found
    # A rate that rises evenly from the first step to the last is still warming up.
    rises = np.diff(rates)
    reached = float(rises.sum() / np.diff(steps).sum()) * WARM_UP * planned
    if np.allclose(rises, rises.mean(), rtol=0.05) and rises.mean() > 0 and reached < USUAL:
        slow = f"so slowly that after a tenth of {planned} steps it is {reached:.2g}"
        text = f"The learning rate still rises, {slow}: its warm-up eats the run, or leads to nothing."
        found.append(Found(Severity.WARNING, Confidence.MEDIUM, text, [largest[1]]))
    return found


@check("optimizer.clip-tight")
def tight_clip(case: Case) -> list[Found]:
    """Report gradients that are all cut where the updates shrink with them.

    Adam cancels a constant rescale: its update is about the rate times the root of the number of weights, however small
    the gradient. Under plain descent the update is the rate times the gradient, and a clip sets its length. The lengths
    show which of the two it is, whatever the optimizer is called.
    """
    view, found = case.view, [_nothing_moves(case)]
    limit, gradient = view.value("learning.max_grad_norm", 0), case.course(BEFORE)
    if limit and gradient is not None and float(np.quantile(gradient.values, 0.05)) >= 2 * limit:
        is_plain = str(view.value("learning.optimizer", "adamw")).lower() == "sgd"
        if not is_plain and view.has(UPDATE, RATE, AFTER):
            asked, update = view.metrics[RATE] * view.metrics[AFTER], view.metrics[UPDATE]
            known = np.isfinite(asked) & np.isfinite(update) & (np.nan_to_num(asked) > 0)
            is_plain = known.sum() >= 5 and bool((np.abs(update[known] / asked[known] - 1) < PLAIN).all())
        if is_plain:
            text = f"Every gradient is cut to {limit:g} from about {gradient.last:.3g}, and updates shrink with it."
            shown = [gradient.evidence("Clipped at every step.")]
            if (length := case.course(UPDATE)) is not None:
                shown.append(length.evidence(f"An update is {length.last:.2g} long."))
            found.append(Found(Severity.WARNING, Confidence.MEDIUM, text, shown))
    return [f for f in found if f]


@check("optimizer.frozen")
def frozen(case: Case) -> list[Found | Lacking]:
    """Report weights that never move, and gradients that never reach them."""
    _, update, lacking = _weight_changes(case)
    answers: list[Found | Lacking | None] = [_no_gradient(case), _nothing_moves(case)]
    if lacking:
        answers.append(Lacking(lacking))
    elif _is_frozen(update):
        text = f"No trained weight changed in {len(update)} steps with a gradient: the optimizer moves nothing."
        shown = Evidence("Length of the update exactly 0 at every step.", 0.0, UPDATE, int(case.view.steps[-1]))
        answers.append(Found(Severity.CRITICAL, Confidence.HIGH, text, [shown]))
    return [answer for answer in answers if answer]


def _no_gradient(case: Case) -> Found | None:
    """Report gradients of exactly 0 at every step with live groups: the loss is cut off from the weights."""
    view = case.view
    if not view.has(BEFORE, "advantage/dead/share", REWARD):
        return None
    gradient, dead = view.metrics[BEFORE], view.metrics["advantage/dead/share"]
    norms = gradient[np.isfinite(gradient) & (dead < ALIVE) & np.isfinite(view.metrics[REWARD])]
    # Where the policy moved all the same, somebody rounded the norm away.
    has_moved = case.trend.kind is TrendKind.LEARNING or float(view.curve(KL)[1].max(initial=0.0)) > MOVED_KL
    if len(norms) < ALIVE_STEPS or norms.any() or has_moved:
        return None
    text = f"The gradient is exactly 0 at all of {len(norms)} steps that had live groups: it never reaches the weights."
    shown = Evidence(f"0 at each of {len(norms)} steps with fewer than {ALIVE:.0%} dead groups.", 0.0, BEFORE)
    return Found(Severity.CRITICAL, Confidence.MEDIUM, text, [shown])


def _nothing_moves(case: Case) -> Found | None:
    """Report entropy that stands still at a rate at which Adam breaks a model: no update arrives."""
    largest, entropy = _largest_rate(case), case.course(ENTROPY)
    if largest is None or largest[0] < MOST or _is_broken(case):
        return None
    if case.view.has(UPDATE) or entropy is None or len(entropy.values) < LONG:
        return None  # what the weights did is known, or nothing is
    if abs(entropy.last / entropy.first - 1) > UNMOVED or entropy.rises or entropy.falls:
        return None
    still = f"Nothing moves at a learning rate of {largest[0]:.2g}, at which Adam would break a model"
    text = f"{still}: updates do not arrive, or are clipped to nothing. Weights around a step would settle it."
    also = entropy.evidence(f"Entropy {entropy.first:.3g} → {entropy.last:.3g}.")
    return Found(Severity.WARNING, Confidence.LOW, text, [largest[1], also])


@check("precision.update-underflow")
def underflow(case: Case) -> Found | Lacking | None:
    """Report updates too small for the precision of the weights."""
    changed, update, lacking = _weight_changes(case)
    if not lacking and len(changed) == 0 and not _is_frozen(update):
        lacking = "the share of weights that changed was not logged"
    if lacking:
        return Lacking(lacking)
    return None if case.view.value("model.weights") == "fp32" else _rounded(case)


def _rounded(case: Case) -> Found | None:
    """Report weights of which most keep their bits in a step."""
    changed, update, lacking = _weight_changes(case)
    if lacking or len(changed) < 2 or _is_frozen(update):
        return None
    typical = float(np.median(changed[1:]))  # the first step of an adapter moves one of its two halves only
    if typical >= CHANGED_LEAST:
        return None
    precision, rate = case.view.value("model.weights", "the weights' precision"), case.view.value("learning.lr")
    at = f"in {precision} at a learning rate of {rate:.2g}" if rate else f"in {precision}"
    text = f"Only {typical:.1%} of the weights change bits in a step, {at}: most updates round to nothing."
    is_critical = typical < 0.1 and case.trend.kind is not TrendKind.LEARNING
    shown = Evidence(f"Median share of weights changed {typical:.3g}.", typical, CHANGED)
    return Found(Severity.CRITICAL if is_critical else Severity.WARNING, Confidence.HIGH, text, [shown])


def _weight_changes(case: Case) -> tuple[Floats, Floats, str]:
    """Return shares of changed weights and lengths of updates where there were a gradient and a rate, or why not."""
    metrics = case.view.metrics
    unknown = np.full(len(case.view.steps), np.nan)
    driven = np.ones(len(case.view.steps), np.bool_)
    for cause in (BEFORE, RATE):
        if case.view.has(cause):
            driven &= np.nan_to_num(metrics[cause]) > 0
    changed, update = (metrics.get(metric, unknown)[driven] for metric in (CHANGED, UPDATE))
    changed, update = changed[np.isfinite(changed)], update[np.isfinite(update)]
    points = max(len(changed), len(update))
    if points == 0:
        return changed, update, "no changes of the weights were logged"
    return changed, update, "" if points >= CHANGED_STEPS else f"fewer than {CHANGED_STEPS} steps with a gradient"


def _is_frozen(update: Floats) -> bool:
    return len(update) >= CHANGED_STEPS and not update.any()


def _largest_rate(case: Case) -> tuple[float, Evidence] | None:
    """Return the largest rate of a run that does not learn; None where it learns, or with too few rates to judge."""
    steps, rates = case.view.curve(RATE)
    if len(rates) < FEWEST or case.trend.kind is TrendKind.LEARNING:
        return None
    largest, at = float(rates.max()), int(steps[int(np.argmax(rates))])
    return largest, Evidence(f"The largest rate is {largest:.2g}, at step {at}.", largest, RATE, at)


def _is_rising(case: Case) -> bool:
    rates = case.view.curve(RATE)[1]
    return bool(rates[-1] > 1.5 * np.median(rates))


def _is_broken(case: Case) -> bool:
    """Tell whether the reward falls, or groups answer all alike."""
    dead = case.dead_groups
    return case.trend.kind is TrendKind.FALLING or (len(dead) > 0 and float(dead.mean()) >= WASTED)


def _is_stuck(case: Case) -> bool:
    return case.trend.kind in (TrendKind.FLAT, TrendKind.FALLING)
