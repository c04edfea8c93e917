"""Groups and advantages: groups that hold one task and differ, and advantages that their own
rewards give.

Suffixes: n = rollout, g = group, both within one step.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
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
    warn_if,
)
from uptrend.doctor.checks.rewards import constant_reward
from uptrend.doctor.groups import (
    STD_EPSILON,
    GroupedRollouts,
    RewardGroups,
    group_sum,
    recompute_advantages,
    subset_evidence,
)
from uptrend.doctor.trend import REWARD_METRIC
from uptrend.records import Basis, Evidence, Severity, TrendKind
from uptrend.records.rollout import LIMIT_ENDINGS
from uptrend.records.table import Flags, Floats
from uptrend.stats.intervals import normal_reach

WRONG_GROUPS = "advantage.wrong-groups"
FLIPPED_SIGN = "advantage.sign"
BLOW_UP = "advantage.blow-up"
REJECTED = "advantage.rejected-in-baseline"
AT_BOTTOM = "advantage.dead-groups-low"
AT_TOP = "advantage.dead-groups-high"
GROUP_OF_ONE = "config.group-of-one"

DEAD_METRIC = "advantage/dead/share"
TRL_DEAD_METRIC = "trl/frac_reward_zero_std"
ADVANTAGE_METRIC = "advantage/abs/mean"
RESPONSE_METRIC = "learner/response/mean"
ALL_DEAD_EVIDENCE = Evidence("All groups of every step are dead.", 1.0, DEAD_METRIC)

# Share of groups with one rollout from which the groups themselves are the fault.
MIN_SINGLE_SHARE = 0.5


@check(GROUP_OF_ONE)
def group_of_one(case: Case) -> Answer:
    """Report groups of one rollout: by group ids, by the config, or suspected from scalars."""
    return [_singles_by_id(case), _singles_by_config(case), _singles_by_scalars(case)]


def _singles_by_id(case: Case) -> Found | Lacking | None:
    lacking = case.why_no_rollouts(["group"])
    if lacking:
        return Lacking(lacking)
    share = _share_of_singles(case)
    if share < MIN_SINGLE_SHARE:
        return None
    n_groups = sum(len(groups.size_g) for groups in case.grouped_steps)
    text = f"{share:.0%} of {n_groups} groups have one rollout, by their ids"
    first = case.grouped_steps[0].table
    evidence = Evidence(text, share, step=first.step, rollout=first.name(0))
    return Found(CRITICAL, PROOF, PAGE_SUMMARY, [evidence])


def _singles_by_config(case: Case) -> Found | Lacking | None:
    size = case.value("sampling.size", 0)
    if not isinstance(size, int | float) or int(size) == 0:
        return Lacking("the group size is not known")
    if int(size) != 1:
        return None
    summary = (
        "Groups have 1 rollout, so that the advantage is the raw score or 0, and never a"
        " comparison."
    )
    evidence = Evidence("Rollouts per group: 1.", 1.0, "sampling.size")
    return Found(CRITICAL, PROOF, summary, [evidence])


def _singles_by_scalars(case: Case) -> Found | None:
    if suspect_of_dead_run(case) != GROUP_OF_ONE:
        return None
    summary = (
        "Rollouts of a step differ in their rewards, and those of a group never do: groups may have"
        " one rollout each, or the reward sees the prompt alone."
    )
    return Found(NOTE, SUSPICION, summary, [ALL_DEAD_EVIDENCE])


def _share_of_singles(case: Case) -> float:
    if not case.grouped_steps:
        return 0.0
    sizes = np.concatenate([groups.size_g for groups in case.grouped_steps])
    return float(np.mean(sizes == 1))


@check(WRONG_GROUPS, FLIPPED_SIGN, BLOW_UP, columns=["group", "reward"])
def advantages_by_group(case: Case) -> Answer:
    """Recompute advantages by group ids, never by position, and compare: their groups, their sign
    and their size.
    """
    if not case.grouped_steps:
        return Lacking("some rollouts have no group id or no reward")
    steps = [groups for groups in case.grouped_steps if groups.advantage_n is not None]
    return [_groups_and_sign(case, steps), _advantage_size(case, steps), _backwards(case)]


# Trainers whose advantages are centered by group unless their config says otherwise.
CENTERING_TRAINERS = ("uptrend", "trl", "verifiers", "prime-rl")


def _groups_and_sign(case: Case, steps: list[GroupedRollouts]) -> Found | Lacking | None:
    """Judge the groups that advantages belong to, and their sign."""
    if _share_of_singles(case) >= MIN_SINGLE_SHARE:
        return None
    mixed = _mixed_tasks(case.grouped_steps)
    if mixed:
        return mixed
    if not steps:
        return Lacking("no advantages were recorded", WRONG_GROUPS)

    beta = case.value("learning.kl.beta") or 0
    is_penalized = case.value("learning.kl.estimator") == "k1" and beta > 0
    is_by_turn = case.value("learning.credit") == "turn"
    is_centering = case.view.trainer in CENTERING_TRAINERS
    is_unknown = not is_centering and case.value("learning.baseline") is None
    if is_penalized or is_by_turn or is_unknown:
        return Lacking(
            "advantages hold more than rewards: a penalty, another baseline, or turns of their own",
            WRONG_GROUPS,
        )
    return _flipped_sign(steps) or _wrong_advantages(case, steps)


def _mixed_tasks(steps: list[GroupedRollouts]) -> Found | None:
    """Report groups with rollouts of more than one task."""
    flags = []
    n_mixed = 0
    for groups in steps:
        if groups.table.task_n is None:
            return None
        task_n = groups.table.task_n[groups.index_n]
        # The last assignment to an index counts: in reverse, that of a group's first rollout.
        first_task_g = np.zeros(len(groups.size_g), np.int64)
        first_task_g[groups.group_n[::-1]] = task_n[::-1]
        is_other_n = task_n != first_task_g[groups.group_n]
        flags.append(is_other_n)
        n_mixed += len(np.unique(groups.group_n[is_other_n]))
    if not n_mixed:
        return None
    n_groups = sum(len(groups.size_g) for groups in steps)
    text = f"{n_mixed} of {n_groups} groups hold rollouts of more than one task"
    evidence = subset_evidence(steps, flags, text, n_mixed / n_groups)
    return Found(CRITICAL, PROOF, PAGE_SUMMARY, [evidence], WRONG_GROUPS)


# Live groups, and the share of them, in which better rollouts must have lower advantages.
MIN_FLIPPED_GROUPS = 3
MIN_FLIPPED_SHARE = 0.9


def _flipped_sign(steps: list[GroupedRollouts]) -> Found | None:
    """Report advantages that fall as rewards rise, within nearly all groups."""
    covariances_of_steps = []
    flags = []
    for groups in steps:
        advantage_n = _advantage(groups)
        covariance_g = group_sum(groups.centered_n * advantage_n, groups.group_n)
        covariances_of_steps.append(covariance_g[~groups.dead_g & (covariance_g != 0)])
        flags.append((groups.centered_n > 0) & (advantage_n < 0))
    covariances = np.concatenate(covariances_of_steps)
    if len(covariances) < MIN_FLIPPED_GROUPS:
        return None
    share = float(np.mean(covariances < 0))
    if share < MIN_FLIPPED_SHARE:
        return None
    text = (
        f"in {share:.0%} of {len(covariances)} live groups the better rollouts have the lower"
        " advantages"
    )
    evidence = subset_evidence(steps, flags, text, share)
    return Found(CRITICAL, PROOF, PAGE_SUMMARY, [evidence], FLIPPED_SIGN)


# Groups in which more than rounding must be left to prove a fault.
MIN_WRONG_GROUPS = 3


def _wrong_advantages(case: Case, steps: list[GroupedRollouts]) -> Found | None:
    """Find groups whose advantages do not sum to 0, or, where the formula is known, are other
    ones.
    """
    scale = case.value("learning.scale")
    baseline = case.value("learning.baseline")
    is_formula_known = (
        case.view.trainer in ("uptrend", "trl")
        and scale in ("group", "batch", "none")
        and baseline is not None
    )
    flags = []
    n_wrong = 0
    n_uncentered = 0
    worst_mean = 0.0
    for groups in steps:
        advantage_n = _advantage(groups)
        rounding_g = _rounding(groups, scale)
        mean_g = np.abs(group_sum(advantage_n, groups.group_n)) / groups.size_g
        is_wrong_g = mean_g > _tolerance(groups, SMALL_ADVANTAGE, rounding_g)
        n_uncentered += int(is_wrong_g.sum())
        if is_formula_known:
            error_n = np.abs(advantage_n - recompute_advantages(groups, scale, baseline))
            is_wrong_n = error_n > _tolerance(groups, UNIT_ADVANTAGE, rounding_g)[groups.group_n]
            is_wrong_g |= group_sum(is_wrong_n.astype(float), groups.group_n) > 0
        # A rollout without tokens has no advantage: what its group lacks is no fault.
        has_none_n = np.isnan(_recorded(groups)).astype(float)
        is_wrong_g &= group_sum(has_none_n, groups.group_n) == 0

        worst_mean = max(worst_mean, float(mean_g[is_wrong_g].max(initial=0.0)))
        n_wrong += int(is_wrong_g.sum())
        flags.append(is_wrong_g[groups.group_n])
    if not n_wrong:
        return None

    n_groups = sum(len(groups.size_g) for groups in steps)
    share = n_wrong / n_groups
    is_sure = n_wrong >= MIN_WRONG_GROUPS
    if is_sure and not n_uncentered and all(_is_multiple(groups, scale) for groups in steps):
        summary = (
            "Advantages are not scaled as the recipe says: groups are right, and the size is not."
        )
        text = (
            f"{n_wrong} of {n_groups} groups have advantages that are a multiple of what their"
            " rewards give"
        )
        evidence = subset_evidence(steps, flags, text, share, ADVANTAGE_METRIC)
        return Found(WARNING, PROOF, summary, [evidence], BLOW_UP)

    text = f"{n_wrong} of {n_groups} groups have advantages that their own rewards do not give"
    observations = [subset_evidence(steps, flags, text, share)]
    if n_uncentered:
        text = (
            f"in {n_uncentered} of them advantages do not sum to 0 (their mean is up to"
            f" {worst_mean:.2g})"
        )
        observations.append(subset_evidence(steps, flags, text, worst_mean, ADVANTAGE_METRIC))
    if is_sure:
        return Found(CRITICAL, PROOF, PAGE_SUMMARY, observations, WRONG_GROUPS)
    return Found(NOTE, SIGNAL, PAGE_SUMMARY, observations, WRONG_GROUPS)


# Groups with rejected rollouts whose advantages must be those of all scored rollouts, and of no
# others.
MIN_REJECTED_GROUPS = 3


@check(REJECTED, columns=["group", "reward", "advantages", "weights"])
def rejected_in_baseline(case: Case) -> Answer:
    """Report rollouts that are left out of the loss and still count in their group's baseline."""
    scale = case.value("learning.scale")
    baseline = case.value("learning.baseline")
    if scale not in ("group", "none") or baseline is None:
        return Lacking("how advantages are computed is not known")
    if case.value("learning.correction_mode") == "mask":
        return None  # the mask comes after the comparison, and is meant to
    n_judged = 0
    n_contaminated = 0
    flags = []
    steps = []
    for groups in case.grouped_steps:
        rejected_n = _rejected(groups)
        if groups.advantage_n is None or not rejected_n.any():
            continue
        judged_g, contaminated_g = _contaminated_groups(groups, rejected_n, scale, baseline)
        n_judged += int(judged_g.sum())
        n_contaminated += int(contaminated_g.sum())
        steps.append(groups)
        flags.append(rejected_n & contaminated_g[groups.group_n])
    if n_contaminated < MIN_REJECTED_GROUPS or 2 * n_contaminated < n_judged:
        return None
    text = (
        f"in {n_contaminated} of {n_judged} groups with rejected rollouts, the advantages of the"
        " others are those that the rewards of all give"
    )
    evidence = subset_evidence(steps, flags, text, n_contaminated / n_judged)
    return Found(WARNING, PROOF, PAGE_SUMMARY, [evidence], REJECTED)


def _rejected(groups: GroupedRollouts) -> Flags:
    """Flag scored rollouts of which no token is trained, unless they were cut: leaving these out
    changes no comparison by design.
    """
    table = groups.table
    weight_t = np.nan_to_num(table.read_tokens("weights"))
    n_trained_n = np.bincount(table.rollout_t[weight_t != 0], minlength=len(table))
    has_tokens_n = table.model_length_n > 0
    is_cut_n = np.isin(table.ended_n, [ending.value for ending in LIMIT_ENDINGS])
    return np.asarray((has_tokens_n & (n_trained_n == 0) & ~is_cut_n)[groups.index_n])


def _contaminated_groups(
    groups: GroupedRollouts, rejected_n: Flags, scale: str, baseline: str
) -> tuple[Flags, Flags]:
    """Return the groups in which rejected rollouts would change the others' advantages, and those
    in which they did.
    """
    trained_n = ~rejected_n
    n_groups = len(groups.size_g)
    has_both_g = (np.bincount(groups.group_n[rejected_n], minlength=n_groups) > 0) & (
        np.bincount(groups.group_n[trained_n], minlength=n_groups) > 1
    )
    of_all_n = recompute_advantages(groups, scale, baseline)
    codes, own_group_n = np.unique(groups.group_n[trained_n], return_inverse=True)
    of_trained_n = np.full(len(rejected_n), np.nan)
    if len(codes):
        trained = RewardGroups(own_group_n.astype(np.int64), groups.reward_n[trained_n])
        of_trained_n[trained_n] = recompute_advantages(trained, scale, baseline)

    def worst_g(error_n: Floats) -> Floats:
        worst = np.zeros(n_groups)
        np.maximum.at(worst, groups.group_n[trained_n], np.nan_to_num(error_n[trained_n]))
        return worst

    tolerance_g = _tolerance(groups, UNIT_ADVANTAGE, _rounding(groups, scale))
    judged_g = has_both_g & (worst_g(np.abs(of_all_n - of_trained_n)) > 2 * tolerance_g)
    contaminated_g = judged_g & (worst_g(np.abs(_recorded(groups) - of_all_n)) <= tolerance_g)
    return judged_g, contaminated_g


def _is_multiple(groups: GroupedRollouts, scale: str | None) -> bool:
    """Return True where each group's advantages are its centered rewards times one positive
    factor.
    """
    advantage_n = _advantage(groups)
    # The slope of a least-squares line through the origin, by group.
    squares_g = group_sum(groups.centered_n**2, groups.group_n)
    covariance_g = group_sum(groups.centered_n * advantage_n, groups.group_n)
    slope_g = covariance_g / np.maximum(squares_g, 1e-12)
    error_n = np.abs(advantage_n - slope_g[groups.group_n] * groups.centered_n)
    rounding_g = abs(float(np.median(slope_g))) * _rounding(groups, scale)
    tolerance_g = _tolerance(groups, SMALL_ADVANTAGE, rounding_g)
    is_on_line = bool((error_n <= tolerance_g[groups.group_n]).all())
    return is_on_line and bool((slope_g[~groups.dead_g] > 0).all())


# Left by fp32 and the deviation's epsilon, relative to the largest advantage of the group, or to
# these where it is smaller: for a mean of advantages, and for a single one.
RELATIVE_TOLERANCE = 2e-3
SMALL_ADVANTAGE = 0.1
UNIT_ADVANTAGE = 1.0
# Units in fp32's last place of the largest reward by which a group's mean may be off.
ROUNDING_UNITS = 8


def _tolerance(groups: GroupedRollouts, min_advantage: float, rounding_g: Floats) -> Floats:
    """Return the error of an advantage that proves nothing, by group."""
    largest_g = np.zeros(len(groups.size_g))
    np.maximum.at(largest_g, groups.group_n, np.abs(_advantage(groups)))
    return np.maximum(RELATIVE_TOLERANCE * np.maximum(largest_g, min_advantage), rounding_g)


def _rounding(groups: GroupedRollouts, scale: str | None) -> Floats:
    """Return what the group's mean, rounded in fp32 and divided by almost 0, may leave of an
    advantage.
    """
    largest_reward_g = np.zeros(len(groups.size_g))
    np.maximum.at(largest_reward_g, groups.group_n, np.abs(groups.reward_n))
    divisor: Floats | float = groups.deviation_g
    if scale == "batch":
        divisor = float(np.std(groups.reward_n))
    elif scale == "none":
        divisor = 1.0
    unit = np.finfo(np.float32).eps
    return np.asarray(ROUNDING_UNITS * unit * largest_reward_g / (divisor + STD_EPSILON))


def _recorded(groups: GroupedRollouts) -> Floats:
    assert groups.advantage_n is not None
    return groups.advantage_n


def _advantage(groups: GroupedRollouts) -> Floats:
    """Return the recorded advantages; a rollout without tokens has 0."""
    return np.nan_to_num(_recorded(groups))


def _advantage_size(case: Case, steps: list[GroupedRollouts]) -> Found | Lacking | None:
    """Judge advantages that no rewards of a group can give, and deviations of almost 0 that are
    divided by.
    """
    scale = case.value("learning.scale")
    if scale is None or not steps:
        return Lacking("no advantages, or no word on how they are scaled", BLOW_UP)
    if scale != "group":
        return None
    return _impossible_advantages(case, steps) or _slim_groups(case.grouped_steps)


# Advantage / largest possible one from which rounding does not explain it.
MAX_BOUND_RATIO = 1.05


def _impossible_advantages(case: Case, steps: list[GroupedRollouts]) -> Found | None:
    """Report advantages that are larger than any rewards of their group can give."""
    is_leave_one_out = case.value("learning.baseline") == "leave_one_out"
    flags = []
    worst_ratio = MAX_BOUND_RATIO
    bound = 0.0
    for groups in steps:
        # One reward apart from all others has the largest advantage: √(G−1) for G rollouts.
        size_n = groups.size_g[groups.group_n].astype(float)
        bound_n = np.sqrt(np.maximum(size_n - 1, 1))
        if is_leave_one_out:
            bound_n *= size_n / np.maximum(size_n - 1, 1)
        ratio_n = np.abs(_advantage(groups)) / bound_n
        flags.append(ratio_n > MAX_BOUND_RATIO)
        if ratio_n.max(initial=0) > worst_ratio:
            worst_ratio = float(ratio_n.max())
            bound = float(bound_n[ratio_n.argmax()])
    if not bound:
        return None
    largest = worst_ratio * bound
    text = f"an advantage of {largest:.3g}, where groups of this size can give {bound:.2g} at most"
    evidence = subset_evidence(steps, flags, text, largest, ADVANTAGE_METRIC)
    return Found(CRITICAL, PROOF, PAGE_SUMMARY, [evidence], BLOW_UP)


# A deviation, as a part of the reward's range, that is rounding or noise rather than a difference.
MAX_SLIM_DEVIATION = 1e-3
# Groups, and the share of live ones, whose deviations must be as small.
MIN_SLIM_GROUPS = 3
MIN_SLIM_SHARE = 0.1


def _slim_groups(steps: list[GroupedRollouts]) -> Found | None:
    """Find groups whose rewards differ by next to nothing, which scaling makes as large as real
    differences.
    """
    n_slim = 0
    n_live = 0
    flags = []
    for groups in steps:
        low_n = groups.table.numbers("reward_low")[groups.index_n]
        high_n = groups.table.numbers("reward_high")[groups.index_n]
        reward_range = float(np.ptp(groups.reward_n))
        if np.isfinite(high_n).any():
            reward_range = float(np.nanmax(high_n) - np.nanmin(low_n))
        is_small_g = groups.deviation_g < MAX_SLIM_DEVIATION * reward_range
        is_real_g = groups.deviation_g > _rounding(groups, "none")
        is_slim_g = ~groups.dead_g & is_small_g & is_real_g
        n_slim += int(is_slim_g.sum())
        n_live += int((~groups.dead_g).sum())
        flags.append(is_slim_g[groups.group_n])
    if n_slim < MIN_SLIM_GROUPS or n_slim < MIN_SLIM_SHARE * n_live:
        return None
    summary = (
        "Scaling by the group's deviation turns differences of next to nothing into full"
        " advantages."
    )
    text = (
        f"{n_slim} of {n_live} live groups have rewards that differ by less than"
        f" {MAX_SLIM_DEVIATION:g} of the reward's range"
    )
    evidence = subset_evidence(steps, flags, text, n_slim / n_live, "reward/group_std/mean")
    return Found(WARNING, SIGNAL, summary, [evidence], BLOW_UP)


# Updates that must each make their rewarded rollouts less likely, and standard errors by which
# their mean must lie below 0.
MIN_BACKWARD_UPDATES = 3
BACKWARD_STANDARD_ERRORS = 2
# Nats by which an update moves its own tokens from which it has left the region in which its
# direction counts.
MAX_TOKEN_MOVE = 1


def _backwards(case: Case) -> Found | None:
    """Report updates that make rewarded rollouts less likely: the sign is lost after the
    advantages.
    """
    steps, responses = case.curve(RESPONSE_METRIC)
    if len(responses) < MIN_BACKWARD_UPDATES or responses.max() >= 0:
        return None
    standard_error = responses.std() / len(responses) ** 0.5
    if responses.mean() > -BACKWARD_STANDARD_ERRORS * standard_error:
        return None
    moved = case.curve("learner/moved/mean")[1]
    if len(moved) and float(np.median(moved)) > MAX_TOKEN_MOVE:
        return None
    summary = (
        "The update goes the wrong way: advantages are right, and the loss has the opposite sign."
    )
    text = (
        f"Each of {len(responses)} updates made its rewarded rollouts less likely, by"
        f" {-responses.mean():.2g} nats a token."
    )
    evidence = Evidence(text, float(responses.mean()), RESPONSE_METRIC, int(steps[0]))
    return Found(CRITICAL, PROOF, summary, [evidence], FLIPPED_SIGN)


@dataclass(frozen=True)
class DeadShares:
    """Share of dead groups of one step, by true groups and as the trainer logged it."""

    groups: GroupedRollouts
    true: float
    logged: float

    @property
    def gap(self) -> float:
        return self.true - self.logged


# Shares that differ by more are not one share: this much, or by more than half a group.
MAX_SHARE_GAP = 0.05
MAX_GROUP_GAP = 0.6
# Steps of another trainer that must differ, and the part of the steps looked at: a line of its log
# may be a mean over several steps.
MIN_WRONG_STEPS = 2
MIN_WRONG_STEPS_PART = 0.5
# TRL's gap from which its metric hides something. With scale_rewards = "batch", it misses dead
# groups by design.
MIN_HIDDEN_SHARE = 0.2


@check("advantage.metric-blind", columns=["group", "reward"])
def metric_blind(case: Case) -> Answer:
    """Compare the logged share of dead groups with the one that true group ids give at the same
    step.
    """
    # A watched TRL run has the true share under our name, and TRL's own beside it.
    is_trl = case.has(TRL_DEAD_METRIC)
    metric = TRL_DEAD_METRIC if is_trl else DEAD_METRIC
    steps, logged_shares = case.curve(metric)
    logged_by_step = dict(zip(steps.tolist(), logged_shares.tolist(), strict=True))
    shares = []
    for groups in case.grouped_steps:
        logged = logged_by_step.get(groups.table.step)
        if logged is not None:
            shares.append(DeadShares(groups, float(np.mean(groups.dead_g)), logged))
    if not case.grouped_steps:
        return Lacking("some rollouts have no group id")
    if not shares:
        return Lacking("no share of dead groups was logged")

    wrong = []
    for share in shares:
        if abs(share.gap) > max(MAX_SHARE_GAP, MAX_GROUP_GAP / len(share.groups.size_g)):
            wrong.append(share)
    if not wrong:
        return None
    min_wrong_steps = max(MIN_WRONG_STEPS, MIN_WRONG_STEPS_PART * len(shares))
    if case.view.trainer != "uptrend" and len(wrong) < min_wrong_steps:
        return None

    summary = (
        f"The trainer's own share of dead groups is wrong in {len(wrong)} of {len(shares)} steps"
        " looked at"
    )
    worst = max(wrong, key=lambda share: abs(share.gap))
    text = (
        f"at step {worst.groups.table.step} {worst.true:.0%} of the groups are dead by their ids,"
        f" and the trainer logged {worst.logged:.0%}"
    )
    dead_n = worst.groups.dead_g[worst.groups.group_n]
    evidence = [subset_evidence([worst.groups], [dead_n], text, worst.gap, metric)]
    rounding = _trl_rounding(case, wrong) if is_trl else 0.0
    if rounding:
        text = f"Rounding leaves a deviation of up to {rounding:.2g}; TRL's limit is {TRL_LIMIT:g}."
        evidence.append(Evidence(text, rounding))
        reason = (
            "rewards of a group are equal, and TRL takes what rounding in fp32 leaves for a"
            " difference. That is harmless, and no setting changes it."
        )
        return Found(NOTE, PROOF, f"{summary}: {reason}", evidence)

    mean_true = np.mean([share.true for share in shares])
    mean_logged = np.mean([share.logged for share in shares])
    is_little_hidden = mean_true < NEARLY_ALL_DEAD or mean_true - mean_logged < MIN_HIDDEN_SHARE
    severity = NOTE if is_trl and is_little_hidden else WARNING
    return Found(severity, PROOF, f"{summary}.", evidence)


# The deviation up to which TRL takes a group for dead (`torch.isclose` with 0).
TRL_LIMIT = 1e-8


def _trl_rounding(case: Case, wrong: Sequence[DeadShares]) -> float:
    """Return the deviation that rounding leaves TRL of equal rewards, where that explains every
    dead group it missed.

    0 where it does not, and where TRL takes another deviation than a group's own.
    """
    # TRL's mode that scales each reward function's rewards by themselves has no name in our config.
    if case.value("learning.scale") not in ("group", "none"):
        return 0.0
    largest = 0.0
    for share in wrong:
        groups = share.groups
        lowest_g = np.full(len(groups.size_g), np.inf)
        highest_g = np.full(len(groups.size_g), -np.inf)
        np.minimum.at(lowest_g, groups.group_n, groups.reward_n)
        np.maximum.at(highest_g, groups.group_n, groups.reward_n)
        # The mean of equal rewards that fp32 can't add exactly is off by one unit in the last
        # place: TRL's of eight times 0.2 has a deviation of 1.6e-8.
        unit_g = np.spacing(np.abs(highest_g).astype(np.float32)).astype(np.float64)
        deviation_g = unit_g * np.sqrt(groups.size_g / np.maximum(groups.size_g - 1, 1))
        is_explained_g = groups.dead_g & (lowest_g == highest_g) & (deviation_g > TRL_LIMIT)
        # A logged mean is rounded: half a group less is as good as all of them.
        n_missed = share.gap * len(groups.size_g)
        if n_missed < 0 or is_explained_g.sum() < n_missed - 0.5:
            return 0.0
        largest = max(largest, float(deviation_g[is_explained_g].max()))
    return largest


# Share of dead groups from which most of a step is wasted, and share in some quarter of the run
# that is worth a note.
MOSTLY_DEAD = 0.5
NOTED_DEAD = 0.4
# Share from which nearly nothing can be learned, and the share of a mean over groups that are all
# dead, up to rounding.
NEARLY_ALL_DEAD = 0.9
ALL_DEAD_SHARE = 0.999
# Mean and last share from which a run too short to show a trend is warned.
MOSTLY_DEAD_SHORT = 0.6
MIN_STEPS = 5


@check(AT_BOTTOM, AT_TOP, by_source=True)
def dead_groups(case: Case) -> Answer:
    """Report groups whose rollouts all score alike, by parts of the run and by where the reward
    lies.
    """
    dead = case.dead_groups
    if len(dead) == 0:
        return _narrowing(case) or Lacking("no share of dead groups was logged")
    is_all_dead = float(dead.min()) > ALL_DEAD_SHARE
    if len(dead) < MIN_STEPS and case.is_excerpt and is_all_dead:
        return _all_dead_lines(case, len(dead))
    if len(dead) < MIN_STEPS and not case.is_certainly_idle:
        return Lacking(f"fewer than {MIN_STEPS} steps")
    quarters = [float(quarter.mean()) for quarter in _quarters(dead)]
    if max(quarters) < NOTED_DEAD:
        return _narrowing(case)

    mean = float(dead.mean())
    side, basis, side_evidence = _side(case, quarter=int(np.argmax(quarters)))
    position = "at the bottom" if side == AT_BOTTOM else "at the top"
    if basis is SUSPICION:
        position = f"probably {position}"
    # Whatever the side is: without any spread it is certain that nothing can be learned.
    if basis is SIGNAL and dead.min() > ALL_DEAD_SHARE:
        basis = PROOF
    summary = (
        f"{mean:.0%} of groups had no spread in their rewards ({quarters[0]:.0%} in the first"
        f" quarter, {quarters[-1]:.0%} in the last), most of them {position}: they have no"
        " gradient."
    )
    shares = ", ".join(f"{share:.2f}" for share in quarters)
    evidence = [Evidence(f"Dead groups by quarters: {shares}.", mean, DEAD_METRIC), side_evidence]
    return Found(_severity_of_dead(case, mean, quarters[-1]), basis, summary, evidence, side)


def _all_dead_lines(case: Case, n_lines: int) -> Found:
    """Report a few lines in which no group has any spread: a fact of each of them. At the top they
    may come from the end of a run that has learned.
    """
    side, basis, side_evidence = _side(case, quarter=0)
    position = "at the bottom" if side == AT_BOTTOM else "at the top"
    if basis is SUSPICION:
        position = f"probably {position}"
    lines = "this line" if n_lines == 1 else f"these {n_lines} lines"
    summary = (
        f"In {lines} no group has any spread in its rewards, {position}: every advantage is 0, so"
        " that nothing is learned."
    )
    evidence = [Evidence("Dead groups: all.", 1.0, DEAD_METRIC), side_evidence]
    is_surely_top = side == AT_TOP and basis is SIGNAL
    severity = warn_if(not is_surely_top)
    # That nothing is learned is certain, whatever the side.
    return Found(severity, PROOF, summary, evidence, side)


def _severity_of_dead(case: Case, mean: float, last_quarter: float) -> Severity:
    """Return the severity of this mean share of dead groups."""
    # A run that learns all the same gets a note; so does one that is dead because it has learned.
    if case.is_learning or mean < MOSTLY_DEAD:
        return NOTE
    if case.trend.kind is TrendKind.TOO_SHORT:
        return NOTE if min(mean, last_quarter) < MOSTLY_DEAD_SHORT else WARNING
    return CRITICAL if mean >= NEARLY_ALL_DEAD else WARNING


def _quarters(values: Floats) -> list[Floats]:
    """Split a curve into quarters, the same points in several where there are fewer than four."""
    ends = np.linspace(0, len(values), 5).round().astype(int)
    return [values[begin : max(end, begin + 1)] for begin, end in pairwise(ends)]


# Distance of the reward from either end of its range, as a part of it, within which the side of
# dead groups is a signal; between them it is a suspicion.
NEAR_END = 0.25


def _side(case: Case, quarter: int) -> tuple[str, Basis, Evidence]:
    """Decide whether dead groups lie at the bottom or at the top; with the evidence for it."""
    low = case.summary("advantage/dead_low/share")
    high = case.summary("advantage/dead_high/share")
    if low is not None and high is not None:
        low_share = float(_quarters(low.values)[quarter].mean())
        high_share = float(_quarters(high.values)[quarter].mean())
        text = f"Counted: {low_share:.2f} at the lower bound and {high_share:.2f} at the upper."
        side = AT_BOTTOM if low_share >= high_share else AT_TOP
        return side, PROOF, Evidence(text, max(low_share, high_share), low.metric)

    reward = float(_quarters(case.curve(REWARD_METRIC)[1])[quarter].mean())
    # Means alone do not show how high a reward goes; one that stays between 0 and 1 is taken to go
    # to 1.
    lowest, highest = case.reward_range
    has_top = case.has("reward/max")
    is_share = lowest >= 0 and highest <= 1 and not (has_top and highest > lowest)
    height = reward if is_share else case.scaled_reward(reward)
    if not is_share and case.is_excerpt and len(case.dead_groups) < MIN_STEPS:
        # Of a few points the highest is no top. Rewards that nobody earns are the commoner fault,
        # unless every component is earned.
        text = (
            f"Their side was not logged, and {reward:.3g} says little without the rewards' range."
        )
        parts = [case.curve(f"reward/part/{part}/mean")[1] for part in case.view.parts()]
        is_earned = len(parts) > 1 and all(part.min(initial=np.inf) > 0 for part in parts)
        side = AT_TOP if is_earned else AT_BOTTOM
        return side, SUSPICION, Evidence(text, reward, REWARD_METRIC)
    text = (
        f"Their side was not logged; judged by the reward, {reward:.3g}, which lies at"
        f" {height:.0%} of its range."
    )
    side = AT_TOP if height > 0.5 else AT_BOTTOM
    is_near_end = height < NEAR_END or height > 1 - NEAR_END
    return side, SIGNAL if is_near_end else SUSPICION, Evidence(text, reward, REWARD_METRIC)


# Spread within groups against the range of rewards, and against its own start, below which groups
# hardly differ.
MAX_NARROW_SPREAD = 0.15
MAX_SPREAD_RATIO = 0.65
# Points that a judgment of a narrowing takes, and the part of the reward's range from which a
# reward is high.
MIN_NARROWING_POINTS = 20
HIGH_REWARD = 0.75
# Part of the reward's whole change from the third quarter's median to the last level, up to which
# the reward has leveled out.
MAX_LATE_CHANGE = 0.25


def _narrowing(case: Case) -> Found | None:
    """Note a reward that has leveled out high, with little spread to learn from."""
    reward = case.summary(REWARD_METRIC)
    spread_in_groups = case.summary("reward/group_std/mean")
    spread = spread_in_groups or case.summary("reward/std")
    if reward is None or spread is None or len(reward.values) < MIN_NARROWING_POINTS:
        return None
    if case.scaled_reward(reward.last) < HIGH_REWARD:
        return None

    reward_range = float(np.ptp(case.reward_range))
    is_narrow = (
        spread_in_groups is not None and spread_in_groups.last < MAX_NARROW_SPREAD * reward_range
    )
    third_quarter = float(np.median(np.array_split(reward.values, 4)[2]))
    whole_change = max(abs(reward.last - reward.first), 1e-12)
    is_level = abs(reward.last - third_quarter) <= MAX_LATE_CHANGE * whole_change
    is_level = is_level or not reward.rises
    has_shrunk = spread.last < MAX_SPREAD_RATIO * spread.first
    if not is_narrow and not (is_level and has_shrunk):
        return None

    summary = (
        f"The reward lies at {reward.last:.3g}, high in its range, with little spread to learn"
        " from: it may be near its ceiling."
    )
    text = (
        f"Spread {spread.first:.3g} → {spread.last:.3g}; reward {reward.first:.3g} →"
        f" {reward.last:.3g}."
    )
    return Found(NOTE, SUSPICION, summary, [case.evidence(spread.metric, text)], AT_TOP)


# Steps compared at either end, and rollouts of each kind that there must be.
COMPARED_STEPS = 3
MIN_ROLLOUTS_OF_A_KIND = 30
# Tokens that wrong rollouts must gain over right ones: a part of their first length, a number, and
# standard errors (rollouts of one task are alike, so the nominal error is too small).
MIN_GROWTH = 0.3
MIN_GAINED_TOKENS = 2.0
STANDARD_ERRORS = 5.0


@check("advantage.length-bias", columns=["correct", "roles"], by_source=True)
def length_bias(case: Case) -> Answer:
    """Report wrong rollouts that lengthen faster than right ones from the start to the end of the
    run, or shrink less.
    """
    tables = case.tables
    if len(tables) < 2 * COMPARED_STEPS:
        return Lacking(f"rollouts of fewer than {2 * COMPARED_STEPS} steps were kept")
    # Lengths of right and of wrong rollouts at the start, then of both at the end.
    lengths = []
    for tables_of_end in (tables[:COMPARED_STEPS], tables[-COMPARED_STEPS:]):
        for correct in (1.0, 0.0):
            chosen = [t.model_length_n[t.numbers("correct") == correct] for t in tables_of_end]
            lengths.append(np.concatenate(chosen).astype(np.float64))
    if min(map(len, lengths)) < MIN_ROLLOUTS_OF_A_KIND:
        return Lacking(
            f"fewer than {MIN_ROLLOUTS_OF_A_KIND} right or wrong rollouts at one end of the run"
        )

    right_first, wrong_first, right_last, wrong_last = (float(part.mean()) for part in lengths)
    gained = (wrong_last - wrong_first) - (right_last - right_first)
    error = math.sqrt(sum(float(part.var(ddof=1)) / len(part) for part in lengths))
    if gained < max(MIN_GROWTH * wrong_first, MIN_GAINED_TOKENS, STANDARD_ERRORS * error):
        return None
    summary = (
        f"Wrong rollouts went from {wrong_first:.0f} to {wrong_last:.0f} tokens and right ones from"
        f" {right_first:.0f} to {right_last:.0f}: a mean over each rollout's tokens lets long wrong"
        " answers off lightly and pays short right ones more."
    )
    text = f"Wrong ones gained {gained:.3g} tokens on right ones (± {normal_reach() * error:.2g})."
    return Found(WARNING, SIGNAL, summary, [Evidence(text, gained, "", tables[-1].step)])


# Deviation of rewards below which they are one value.
MIN_DEVIATION = 1e-6
# Nats per token below which completions of one prompt are mostly one text.
MIN_ENTROPY = 0.1


def suspect_of_dead_run(case: Case) -> str:
    """Return the cause to suspect where scalars show not one live group, though rewards move; empty
    for none.
    """
    # With rollouts the checks that read them decide instead.
    dead = case.dead_groups
    if case.view.rollout_steps or len(dead) < MIN_STEPS or float(dead.min()) < ALL_DEAD_SHARE:
        return ""
    if constant_reward.alarms(case):
        return ""

    # The deviation of rewards over whole batches: as logged, or of the sole component that they
    # consist of.
    parts = case.view.parts()
    batch_std = case.curve("reward/std")[1]
    if not len(batch_std) and len(parts) == 1:
        batch_std = case.curve(f"reward/part/{parts[0]}/std")[1]
    if not len(batch_std):
        return ""
    reward = case.curve(REWARD_METRIC)[1]
    if float(np.max(batch_std)) < MIN_DEVIATION < float(np.ptp(reward)):
        return "reward.wrong-length"
    entropy = case.summary("learner/entropy/mean")
    is_varied = entropy is not None and entropy.initial > MIN_ENTROPY
    return GROUP_OF_ONE if is_varied and float(np.median(batch_std)) > MIN_DEVIATION else ""


def unexplained_dead_groups(case: Case) -> str:
    """Return the id of an alarm of dead groups that only scalars show and that nothing about
    rewards explains.
    """
    if case.view.rollout_steps or constant_reward.alarms(case) or suspect_of_dead_run(case):
        return ""
    return next((finding.id for finding in dead_groups.alarms(case)), "")
