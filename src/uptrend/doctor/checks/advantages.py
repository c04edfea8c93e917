"""Groups and advantages: groups that hold one task and differ, and advantages that their own
rewards give.
"""

import math
from itertools import pairwise

import numpy as np

from uptrend.doctor.case import Case
from uptrend.doctor.check import (
    CRITICAL,
    NOTE,
    PAGE_SUMMARY,
    PROOF,
    SIGNAL,
    SUSPICION,
    WARNING,
    Answer,
    Found,
    Lacking,
    check,
)
from uptrend.doctor.checks.rewards import constant_reward
from uptrend.doctor.groups import (
    STD_EPSILON,
    GroupedRollouts,
    group_sum,
    recompute_advantages,
    subset_evidence,
)
from uptrend.doctor.trend import REWARD_METRIC
from uptrend.records import Basis, Evidence, TrendKind
from uptrend.records.table import Floats
from uptrend.stats.intervals import normal_reach

WRONG = "advantage.wrong-groups"
SIGN = "advantage.sign"
BLOWN = "advantage.blow-up"
AT_BOTTOM = "advantage.dead-groups-low"
AT_TOP = "advantage.dead-groups-high"
ONE = "config.group-of-one"
DEAD = "advantage/dead/share"
SIZE = "advantage/abs/mean"
ALL_DEAD = Evidence("All groups of every step are dead.", 1.0, DEAD)


@check(ONE)
def group_of_one(case: Case) -> Answer:
    """Report groups of one rollout: by the config, by group ids, or suspected from scalars."""
    answers = list[Found | Lacking]()
    share = _share_of_singles(case)
    if lacking := case.why_no_rollouts(["group"]):
        answers.append(Lacking(lacking))
    elif share >= 0.5:
        text = (
            f"{share:.0%} of {sum(len(g.size_g) for g in case.grouped_steps)} groups have one"
            " rollout, by their ids"
        )
        first = case.grouped_steps[0].table
        answers.append(
            Found(
                CRITICAL,
                PROOF,
                PAGE_SUMMARY,
                [Evidence(text, share, step=first.step, rollout=first.name(0))],
            )
        )
    size = case.value("sampling.size", 0)
    if not isinstance(size, int | float) or int(size) == 0:
        answers.append(Lacking("the group size is not known"))
    elif int(size) == 1:
        text = (
            "Groups have 1 rollout, so that the advantage is the raw score or 0, and never a"
            " comparison."
        )
        answers.append(
            Found(CRITICAL, PROOF, text, [Evidence("Rollouts per group: 1.", 1.0, "sampling.size")])
        )
    if suspect_of_dead_run(case) == ONE:
        differ = "Rollouts of a step differ in their rewards, and those of a group never do"
        text = f"{differ}: groups may have one rollout each, or the reward sees the prompt alone."
        answers.append(Found(NOTE, SUSPICION, text, [ALL_DEAD]))
    return answers


# Left by fp32 and the deviation's epsilon, relative to the largest advantage of the group; and
# groups in which more must be left to prove a fault.
TOLERANCE = 2e-3
SEVERAL = 3
# Trainers whose advantages are centered by group unless their config says otherwise.
CENTERED = ("uptrend", "trl", "verifiers", "prime-rl")
# A deviation, as a part of the reward's range, that is rounding or noise rather than a difference.
SLIM = 1e-3


@check(WRONG, SIGN, BLOWN, columns=["group", "reward"])
def advantages_by_group(case: Case) -> Answer:
    """Recompute advantages by group ids, never by position, and compare: their groups, their sign
    and their size.
    """
    if not case.grouped_steps:
        return Lacking("some rollouts have no group id or no reward")
    steps = [g for g in case.grouped_steps if g.advantage_n is not None]
    return [_membership(case, steps), _size(case, steps), _backwards(case)]


def _backwards(case: Case) -> Found | None:
    """Report updates that make rewarded rollouts less likely: the sign is lost after the
    advantages.
    """
    steps, means = case.curve("learner/response/mean")
    # An update that moves tokens by nats has left the region in which its own direction counts.
    is_far = (
        float(
            np.median(
                case.curve("learner/moved/mean")[1] if case.has("learner/moved/mean") else 0.0
            )
        )
        > 1
    )
    if (
        len(means) < SEVERAL
        or is_far
        or means.max() >= 0
        or means.mean() > -2 * means.std() / len(means) ** 0.5
    ):
        return None
    text = (
        f"Each of {len(means)} updates made its rewarded rollouts less likely, by"
        f" {-means.mean():.2g} nats a token."
    )
    summary = (
        "The update goes the wrong way: advantages are right, and the loss has the opposite sign."
    )
    shown = Evidence(text, float(means.mean()), "learner/response/mean", int(steps[0]))
    return Found(CRITICAL, PROOF, summary, [shown], SIGN)


def _membership(case: Case, steps: list[GroupedRollouts]) -> Found | Lacking | None:
    """Judge the groups that advantages belong to, and their sign."""
    if _share_of_singles(case) >= 0.5:
        return None
    if mixed := _mixed(case.grouped_steps):
        return mixed
    if not steps:
        return Lacking("no advantages were recorded", WRONG)
    is_penalized = (
        case.value("learning.kl.estimator") == "k1" and (case.value("learning.kl.beta") or 0) > 0
    )
    is_penalized |= case.value("learning.credit") == "turn"
    if is_penalized or (
        case.view.trainer not in CENTERED and case.value("learning.baseline") is None
    ):
        return Lacking(
            "advantages hold more than rewards: a penalty, another baseline, or turns of their own",
            WRONG,
        )
    # Covariances of rewards and advantages, in groups that have both.
    together = [group_sum(g.centered_n * _advantage(g), g.group_n) for g in steps]
    signs = np.concatenate([t[~g.dead_g & (t != 0)] for t, g in zip(together, steps, strict=True)])
    if len(signs) < 3 or np.mean(signs < 0) < 0.9:
        return _wrong(case, steps)
    wrong = [(g.centered_n > 0) & (_advantage(g) < 0) for g in steps]
    text = (
        f"in {np.mean(signs < 0):.0%} of {len(signs)} live groups the better rollouts have the"
        " lower advantages"
    )
    return Found(
        CRITICAL,
        PROOF,
        PAGE_SUMMARY,
        [subset_evidence(steps, wrong, text, float(np.mean(signs < 0)))],
        SIGN,
    )


def _mixed(steps: list[GroupedRollouts]) -> Found | None:
    flags = []
    groups = 0
    total = sum(len(g.size_g) for g in steps)
    for g in steps:
        if g.table.task_n is None:
            return None
        task = g.table.task_n[g.index_n]
        first_g = np.zeros(len(g.size_g), np.int64)
        first_g[g.group_n[::-1]] = task[::-1]
        flags.append(task != first_g[g.group_n])
        groups += len(np.unique(g.group_n[flags[-1]]))
    if not groups:
        return None
    shown = subset_evidence(
        steps,
        flags,
        f"{groups} of {total} groups hold rollouts of more than one task",
        groups / total,
    )
    return Found(CRITICAL, PROOF, PAGE_SUMMARY, [shown], WRONG)


def _wrong(case: Case, steps: list[GroupedRollouts]) -> Found | None:
    """Find groups whose advantages do not sum to 0, or, where the formula is known, are other
    ones.
    """
    scale = case.value("learning.scale")
    baseline = case.value("learning.baseline")
    is_exact = (
        case.view.trainer in ("uptrend", "trl")
        and scale in ("group", "batch", "none")
        and baseline is not None
    )
    bad = []
    count = 0
    sums = 0
    total = 0
    worst = 0.0
    for g in steps:
        assert g.advantage_n is not None
        largest_g = _largest(g)
        mean_g = np.abs(group_sum(_advantage(g), g.group_n)) / g.size_g
        rounding_g = _rounding(g, scale)
        off_g = mean_g > np.maximum(TOLERANCE * np.maximum(largest_g, 0.1), rounding_g)
        sums += int(off_g.sum())
        if is_exact:
            off_n = np.abs(_advantage(g) - recompute_advantages(g, scale, baseline))
            is_off_n = (
                off_n > np.maximum(TOLERANCE * np.maximum(largest_g, 1), rounding_g)[g.group_n]
            )
            off_g |= group_sum(is_off_n.astype(float), g.group_n) > 0
        # A rollout without tokens has no advantage.
        off_g &= group_sum(np.isnan(g.advantage_n).astype(float), g.group_n) == 0
        worst = max(worst, float(mean_g[off_g].max(initial=0.0)))
        count = count + int(off_g.sum())
        total = total + len(off_g)
        bad.append(off_g[g.group_n])
    if not count:
        return None
    is_sure = count >= SEVERAL
    if is_sure and not sums and all(_is_multiple(g, scale) for g in steps):
        text = (
            f"{count} of {total} groups have advantages that are a multiple of what their rewards"
            " give"
        )
        summary = (
            "Advantages are not scaled as the recipe says: groups are right, and the size is not."
        )
        return Found(
            WARNING, PROOF, summary, [subset_evidence(steps, bad, text, count / total, SIZE)], BLOWN
        )
    text = f"{count} of {total} groups have advantages that their own rewards do not give"
    evidence = [subset_evidence(steps, bad, text, count / total)]
    if sums:
        text = f"in {sums} of them advantages do not sum to 0 (their mean is up to {worst:.2g})"
        evidence.append(subset_evidence(steps, bad, text, worst, SIZE))
    return Found(
        CRITICAL if is_sure else NOTE, PROOF if is_sure else SIGNAL, PAGE_SUMMARY, evidence, WRONG
    )


def _rounding(g: GroupedRollouts, scale: str | None) -> Floats:
    """Return what the group's mean, rounded in fp32 and divided by almost 0, may leave of an
    advantage.
    """
    size_g = np.zeros(len(g.size_g))
    np.maximum.at(size_g, g.group_n, np.abs(g.reward_n))
    spread = (
        float(np.std(g.reward_n)) if scale == "batch" else 1.0 if scale == "none" else g.deviation_g
    )
    return np.asarray(8 * np.finfo(np.float32).eps * size_g / (spread + STD_EPSILON))


def _is_multiple(g: GroupedRollouts, scale: str | None) -> bool:
    """Tell whether advantages lie on one line with the rewards of their own group, in every
    group.
    """
    squares = group_sum(g.centered_n**2, g.group_n)
    slope = group_sum(g.centered_n * _advantage(g), g.group_n) / np.maximum(squares, 1e-12)
    off_n = np.abs(_advantage(g) - slope[g.group_n] * g.centered_n)
    left_g = np.maximum(
        TOLERANCE * np.maximum(_largest(g), 0.1), abs(float(np.median(slope))) * _rounding(g, scale)
    )
    return bool((off_n <= left_g[g.group_n]).all() and (slope[~g.dead_g] > 0).all())


def _size(case: Case, steps: list[GroupedRollouts]) -> Found | Lacking | None:
    """Judge advantages that no rewards of a group can give, and deviations of almost 0 that are
    divided by.
    """
    scale = case.value("learning.scale")
    if scale is None or not steps:
        return Lacking("no advantages, or no word on how they are scaled", BLOWN)
    if scale != "group":
        return None
    worst = 0.0
    bound = 0.0
    flags = []
    for g in steps:
        size_n = g.size_g[g.group_n].astype(float)
        most_n = np.sqrt(np.maximum(size_n - 1, 1))  # G rewards give √(G−1) at most
        if case.value("learning.baseline") == "leave_one_out":
            most_n *= size_n / np.maximum(size_n - 1, 1)
        over_n = np.abs(_advantage(g)) / most_n
        flags.append(over_n > 1.05)
        if over_n.max(initial=0) > max(worst, 1.05):
            worst = float(over_n.max())
            bound = float(most_n[over_n.argmax()])
    if not worst:
        return _slim(case.grouped_steps)
    text = (
        f"an advantage of {worst * bound:.3g}, where groups of this size can give {bound:.2g} at"
        " most"
    )
    return Found(
        CRITICAL,
        PROOF,
        PAGE_SUMMARY,
        [subset_evidence(steps, flags, text, worst * bound, SIZE)],
        BLOWN,
    )


def _slim(steps: list[GroupedRollouts]) -> Found | None:
    """Find groups whose rewards differ by next to nothing, which scaling makes as loud as real
    differences.
    """
    slim = 0
    live = 0
    flags = []
    for g in steps:
        low, high = (g.table.by_rollout(f"reward_{side}")[g.index_n] for side in ("low", "high"))
        spread = (
            float(np.nanmax(high) - np.nanmin(low))
            if np.isfinite(high).any()
            else float(np.ptp(g.reward_n))
        )
        slim_g = (
            ~g.dead_g & (g.deviation_g < SLIM * spread) & (g.deviation_g > _rounding(g, "none"))
        )
        slim = slim + int(slim_g.sum())
        live = live + int((~g.dead_g).sum())
        flags.append(slim_g[g.group_n])
    if slim < 3 or slim < 0.1 * live:
        return None
    text = (
        f"{slim} of {live} live groups have rewards that differ by less than {SLIM:g} of the"
        " reward's range"
    )
    summary = (
        "Scaling by the group's deviation turns differences of next to nothing into full"
        " advantages."
    )
    shown = subset_evidence(steps, flags, text, slim / live, "reward/group_std/mean")
    return Found(WARNING, SIGNAL, summary, [shown], BLOWN)


# The deviation up to which TRL takes a group for dead (`torch.isclose` with 0).
TRL_LIMIT = 1e-8


@check("advantage.metric-blind", columns=["group", "reward"])
def metric_blind(case: Case) -> Answer:
    """Compare the logged share of dead groups with the one that true group ids give at the same
    step.
    """
    # A watched TRL run has the true share under our name, and TRL's own beside it.
    is_trl = case.has("trl/frac_reward_zero_std")
    metric = "trl/frac_reward_zero_std" if is_trl else DEAD
    at = {int(step): float(value) for step, value in zip(*case.curve(metric), strict=True)}
    pairs = [
        (g, float(np.mean(g.dead_g)), at[g.table.step])
        for g in case.grouped_steps
        if g.table.step in at
    ]
    if not pairs:
        return Lacking(
            "no share of dead groups was logged"
            if case.grouped_steps
            else "some rollouts have no group id"
        )
    off = [
        (g, true, said)
        for g, true, said in pairs
        if abs(true - said) > max(0.05, 0.6 / len(g.size_g))
    ]
    # Another trainer's line may be a mean over several steps: one that differs proves nothing.
    if not off or (case.view.trainer != "uptrend" and len(off) < max(2, len(pairs) / 2)):
        return None
    g, true, said = max(off, key=lambda pair: abs(pair[1] - pair[2]))
    text = (
        f"at step {g.table.step} {true:.0%} of the groups are dead by their ids, and the trainer"
        f" logged {said:.0%}"
    )
    summary = (
        f"The trainer's own share of dead groups is wrong in {len(off)} of {len(pairs)} steps"
        " looked at"
    )
    shown = [subset_evidence([g], [g.dead_g[g.group_n]], text, true - said, metric)]
    if is_trl and (left := _rounding_left(case, off)):
        shown.append(
            Evidence(
                f"Rounding leaves a deviation of up to {left:.2g}; TRL's limit is {TRL_LIMIT:g}.",
                left,
            )
        )
        why = (
            "rewards of a group are equal, and TRL takes what rounding in fp32 leaves for a"
            " difference"
        )
        return Found(
            NOTE, PROOF, f"{summary}: {why}. That is harmless, and no setting changes it.", shown
        )
    # With scale_rewards = "batch", TRL misses dead groups by design: worth a warning where nearly
    # all are.
    dead = np.mean([true for _, true, _ in pairs])
    told = np.mean([said for _, _, said in pairs])
    is_small = is_trl and (dead < NEARLY_ALL or dead - told < 0.2)
    return Found(NOTE if is_small else WARNING, PROOF, f"{summary}.", shown)


def _rounding_left(case: Case, off: list[tuple[GroupedRollouts, float, float]]) -> float:
    """Return the deviation that rounding leaves TRL of equal rewards, where that explains every
    dead group it missed.

    0 where it does not, and where TRL takes another deviation than a group's own.
    """
    # Each function's rewards scaled by themselves have no name of ours.
    if case.value("learning.scale") not in ("group", "none"):
        return 0.0
    most = 0.0
    for g, true, said in off:
        lowest = np.full(len(g.size_g), np.inf)
        highest = np.full(len(g.size_g), -np.inf)
        np.minimum.at(lowest, g.group_n, g.reward_n)
        np.maximum.at(highest, g.group_n, g.reward_n)
        # The mean of equal rewards that fp32 can't add exactly is off by one unit in the last
        # place: TRL's of eight times 0.2 has a deviation of 1.6e-8.
        unit_g = np.spacing(np.abs(highest).astype(np.float32)).astype(np.float64)
        left_g = unit_g * np.sqrt(g.size_g / np.maximum(g.size_g - 1, 1))
        is_explained = g.dead_g & (lowest == highest) & (left_g > TRL_LIMIT)
        if said > true or is_explained.sum() < (true - said) * len(g.size_g) - 0.5:
            return 0.0
        most = max(most, float(left_g[is_explained].max()))
    return most


# The share of dead groups from which most of a step is wasted, and the share in some quarter that
# is worth a note.
MOST = 0.5
NOTED = 0.4
NEARLY_ALL = 0.9
FEWEST = 5


@check(AT_BOTTOM, AT_TOP)
def dead_groups(case: Case) -> Answer:
    """Report groups whose rollouts all score alike, by parts of the run and by where the reward
    lies.
    """
    dead = case.dead_groups
    if len(dead) == 0:
        return _narrowing(case) or Lacking("no share of dead groups was logged")
    if len(dead) < FEWEST and not case.is_certainly_idle:
        return Lacking(f"fewer than {FEWEST} steps")
    mean = float(dead.mean())
    quarters = [float(part.mean()) for part in _quarters(dead)]
    if max(quarters) < NOTED:
        return _narrowing(case)
    side, basis, known_by = _side(case, int(np.argmax(quarters)))
    is_short = case.trend.kind is TrendKind.TOO_SHORT
    severity = WARNING
    # A run that learns all the same is told, not warned; so is one that is dead because it has
    # learned.
    if case.is_learning or mean < MOST or (is_short and min(mean, quarters[-1]) < 0.6):
        severity = NOTE
    elif mean >= NEARLY_ALL and not is_short:
        severity = CRITICAL
    if basis is SIGNAL and dead.min() > 0.999:
        basis = PROOF  # that nothing can be learned is certain, whatever the reason
    place = ("probably " if basis is SUSPICION else "") + (
        "at the bottom" if side == AT_BOTTOM else "at the top"
    )
    ends = f"{quarters[0]:.0%} in the first quarter, {quarters[-1]:.0%} in the last"
    text = (
        f"{mean:.0%} of groups had no spread in their rewards ({ends}), most of them {place}: they"
        " have no gradient."
    )
    by_quarter = f"Dead groups by quarters: {', '.join(f'{q:.2f}' for q in quarters)}."
    return Found(severity, basis, text, [Evidence(by_quarter, mean, DEAD), known_by], side)


def _quarters(values: Floats) -> list[Floats]:
    """Split a curve into quarters, the same points in several where there are fewer than four."""
    ends = np.linspace(0, len(values), 5).round().astype(int)
    return [values[begin : max(end, begin + 1)] for begin, end in pairwise(ends)]


def _side(case: Case, quarter: int) -> tuple[str, Basis, Evidence]:
    """Decide whether dead groups lie at the bottom or at the top; with the evidence for it."""
    low = case.summary("advantage/dead_low/share")
    high = case.summary("advantage/dead_high/share")
    if low is not None and high is not None:
        counts = [float(_quarters(c.values)[quarter].mean()) for c in (low, high)]
        text = f"Counted: {counts[0]:.2f} at the lower bound and {counts[1]:.2f} at the upper."
        return (
            AT_BOTTOM if counts[0] >= counts[1] else AT_TOP,
            PROOF,
            Evidence(text, max(counts), low.metric),
        )
    level = float(_quarters(case.curve(REWARD_METRIC)[1])[quarter].mean())
    # Means alone do not show how high a reward goes; one that stays between 0 and 1 is taken to go
    # to 1.
    is_share = (
        case.reward_range[0] >= 0 and case.reward_range[1] <= 1 and not case.has("reward/max")
    )
    at = level if is_share else case.scaled_reward(level)
    text = (
        f"Their side was not logged; judged by the reward, {level:.3g}, which lies at {at:.0%} of"
        " its range."
    )
    side = AT_TOP if at > 0.5 else AT_BOTTOM
    sure = SIGNAL if at < 0.25 or at > 0.75 else SUSPICION
    return side, sure, Evidence(text, level, REWARD_METRIC)


# Spread within groups against the range of rewards, and against its own start, below which groups
# hardly differ.
SMALL = 0.15
SHRUNK = 0.65


def _narrowing(case: Case) -> Found | None:
    """Note a reward that has leveled out high, with little spread to learn from."""
    reward = case.summary(REWARD_METRIC)
    within = case.summary("reward/group_std/mean")
    spread = within or case.summary("reward/std")
    if (
        reward is None
        or spread is None
        or len(reward.values) < 20
        or case.scaled_reward(reward.last) < 0.75
    ):
        return None
    is_small = within is not None and within.last < SMALL * float(np.ptp(case.reward_range))
    middle = float(np.median(np.array_split(reward.values, 4)[2]))
    is_level = (
        abs(reward.last - middle) <= 0.25 * max(abs(reward.last - reward.first), 1e-12)
        or not reward.rises
    )
    if not is_small and not (is_level and spread.last < SHRUNK * spread.first):
        return None
    text = (
        f"The reward lies at {reward.last:.3g}, high in its range, with little spread to learn from"
    )
    moves = (
        f"Spread {spread.first:.3g} → {spread.last:.3g}; reward {reward.first:.3g} →"
        f" {reward.last:.3g}."
    )
    return Found(
        NOTE,
        SUSPICION,
        f"{text}: it may be near its ceiling.",
        [case.evidence(spread.metric, moves)],
        AT_TOP,
    )


# Steps compared at either end, rollouts of each kind there, the gain of wrong rollouts beyond right
# ones against their first length, and standard errors (rollouts of one task are alike, so the
# nominal error is too small).
ENDS = 3
FEWEST_OF_A_KIND = 30
GROWTH = 0.3
STANDARD_ERRORS = 5.0


@check("advantage.length-bias", columns=["correct", "roles"])
def length_bias(case: Case) -> Answer:
    """Report wrong rollouts that lengthen faster than right ones from the start to the end of the
    run.
    """
    rows = case.tables
    if len(rows) < 2 * ENDS:
        return Lacking(f"rollouts of fewer than {2 * ENDS} steps were kept")
    lengths = []
    for part in (rows[:ENDS], rows[-ENDS:]):
        for is_right in (1.0, 0.0):
            chosen = [r.lengths_n[r.by_rollout("correct") == is_right] for r in part]
            lengths.append(np.concatenate(chosen).astype(np.float64))
    if min(map(len, lengths)) < FEWEST_OF_A_KIND:
        return Lacking(
            f"fewer than {FEWEST_OF_A_KIND} right or wrong rollouts at one end of the run"
        )
    right, wrong, right_late, wrong_late = (float(part.mean()) for part in lengths)
    gained = (wrong_late - wrong) - (right_late - right)
    error = math.sqrt(sum(float(part.var(ddof=1)) / len(part) for part in lengths))
    if gained < max(GROWTH * wrong, 2.0, STANDARD_ERRORS * error):
        return None
    grew = f"Wrong rollouts grew from {wrong:.0f} to {wrong_late:.0f} tokens"
    also = f"right ones from {right:.0f} to {right_late:.0f}"
    text = (
        f"{grew} and {also}: a mean over each rollout's tokens lets long wrong answers off lightly."
    )
    told = f"Wrong ones gained {gained:.3g} tokens more (± {normal_reach() * error:.2g})."
    return Found(WARNING, SIGNAL, text, [Evidence(told, gained, "", rows[-1].step)])


def suspect_of_dead_run(case: Case) -> str:
    """Return the cause to suspect where scalars show not one live group, though rewards move; empty
    for none.
    """
    dead = case.dead_groups
    view = case.view
    # With rollouts the checks that read them decide instead.
    if (
        view.rollout_steps
        or len(dead) < FEWEST
        or float(dead.min()) < 0.999
        or constant_reward.alarms(case)
    ):
        return ""
    # The deviation of rewards over whole batches: as logged, or of the sole component that they
    # consist of.
    parts = view.parts()
    spread = case.curve("reward/std")[1]
    if not len(spread) and len(parts) == 1:
        spread = case.curve(f"reward/part/{parts[0]}/std")[1]
    if not len(spread):
        return ""
    entropy = case.summary("learner/entropy/mean")
    if float(np.max(spread)) < 1e-6 < float(np.ptp(case.curve(REWARD_METRIC)[1])):
        return "reward.wrong-length"
    # Below a tenth of a nat per token, completions of one prompt are mostly one text.
    return (
        ONE
        if float(np.median(spread)) > 1e-6 and entropy is not None and entropy.initial > 0.1
        else ""
    )


def unexplained_dead_groups(case: Case) -> str:
    """Return the id of an alarm of dead groups that only scalars show and that nothing about
    rewards explains.
    """
    if case.view.rollout_steps or constant_reward.alarms(case) or suspect_of_dead_run(case):
        return ""
    return next((finding.id for finding in dead_groups.alarms(case)), "")


def _share_of_singles(case: Case) -> float:
    return (
        float(np.mean(np.concatenate([g.size_g for g in case.grouped_steps]) == 1))
        if case.grouped_steps
        else 0.0
    )


def _largest(g: GroupedRollouts) -> Floats:
    largest = np.zeros(len(g.size_g))
    np.maximum.at(largest, g.group_n, np.abs(_advantage(g)))
    return largest


def _advantage(g: GroupedRollouts) -> Floats:
    """Return the recorded advantages; a rollout without tokens has 0."""
    assert g.advantage_n is not None
    return np.nan_to_num(g.advantage_n)
