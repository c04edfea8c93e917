"""Rewards over the run: one value for all, components, and a reward that rises without the task.

Suffixes: n = rollout, g = group, both within one step.
"""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from uptrend.doctor.case import Case, CurveSummary
from uptrend.doctor.check import (
    NOTE,
    PROOF,
    SIGNAL,
    SUSPICION,
    WARNING,
    Answer,
    Found,
    Lacking,
    check,
    severity_by_share,
    warn_if,
)
from uptrend.doctor.groups import group_sum
from uptrend.doctor.trend import REWARD_METRIC, SIGNIFICANCE_LEVEL, HeldoutChange, trend_until
from uptrend.records import Evidence, TrendKind
from uptrend.records.rollout import OVERLONG_PART
from uptrend.records.table import Floats
from uptrend.stats.trend import rank_correlation

CORRECT_METRIC = "reward/correct/share"
LENGTH_METRIC = "sampling/length/mean"

# Steps of one value in a row that chance does not make.
CONSTANT_STEPS = 5
# Standard deviation of rewards that is 0 up to rounding.
MAX_CONSTANT_DEVIATION = 1e-9
# Share of the run from which a stretch of one value is critical, and more than a note even if the
# reward moved again after it.
CRITICAL_CONSTANT_SHARE = 0.5
# A share, or a height in the reward's range, from which on little is left to gain.
NEAR_TOP = 0.95


@check("reward.constant", needs=[REWARD_METRIC], by_source=True)
def constant_reward(case: Case) -> Found | None:
    """Report the longest stretch in which every rollout had one reward, whatever the value."""
    steps, values = case.curve(REWARD_METRIC)
    begin, length = _longest_constant_stretch(case, values)
    if length < CONSTANT_STEPS:
        return None
    share = length / len(values)
    value = float(values[begin])
    first_step = int(steps[begin])
    is_top = case.is_learning and case.scaled_reward(value) > NEAR_TOP
    # A shorter stretch after which the reward moved again is a note.
    is_past = share < CRITICAL_CONSTANT_SHARE and begin + length < len(values)
    severity = severity_by_share(share, CRITICAL_CONSTANT_SHARE)
    if is_top or is_past or _tasks_are_hard(case, value):
        severity = NOTE
    summary = (
        f"Every rollout had the reward {value:.3g} on {length} logged steps in a row, from step"
        f" {first_step}: there was nothing to learn from."
    )
    evidence = Evidence(f"That is {share:.0%} of the run.", value, REWARD_METRIC, first_step)
    return Found(severity, PROOF, summary, [evidence])


def _longest_constant_stretch(case: Case, values: Floats) -> tuple[int, int]:
    """Return the first point and the length of the longest stretch in which rewards of all rollouts
    are one value.
    """
    metrics = case.view.metrics
    is_constant = np.ones(len(values), np.bool_)
    for metric in ("reward/std", "reward/group_std/mean"):
        if case.has(metric):
            deviation = metrics[metric][np.isfinite(metrics[REWARD_METRIC])]
            # Where no deviation was logged, equal means have to do.
            is_constant = ~(deviation > MAX_CONSTANT_DEVIATION)
            break

    longest = (0, 0)
    begin = 0
    length = 0
    for i in range(len(values)):
        if not is_constant[i]:
            length = 0
            continue
        if length and values[i] == values[i - 1]:
            length += 1
        else:
            begin = i
            length = 1
        if length > longest[1]:
            longest = (begin, length)
    return longest


def _tasks_are_hard(case: Case, value: float) -> bool:
    """Return True if a low reward is the tasks' doing, not the scorer's: preflight's gold answers
    were paid.
    """
    passed_probes: set[str] = set()
    for event in case.view.events:
        if event.get("event") != "preflight":
            continue
        for probe in event.get("probes", ()):
            if probe.get("ok") and not probe.get("skipped"):
                passed_probes.add(probe.get("name"))
    if "gold" not in passed_probes or not case.tables:
        return False
    table = case.tables[0]
    bounds = [table.numbers("reward_low"), table.numbers("reward_high")]
    return value < float(np.nanmean(bounds))


# Components are told apart by their names: paid for how an answer looks, or for being right.
FORMAT_WORDS = re.compile(
    r"format|length|style|structur|xml|tag|json|schema|syntax|compil|pars|think|brev|concise|verbos|diversity|"
    r"penalt|repeti|langu|soft|strict|polite|cosine"
)
ANSWER_WORDS = re.compile(
    r"correct|accura|answer|exact|solve|equation|outcome|env|success|win|f1|pass|test|terminal|truth|gold|verif|task|"
    r"trace|action|match|score"
)
# A part so named measures the answer, whatever else its name has: parsed_correct. format_exact
# measures the form.
CORRECTNESS_WORDS = re.compile(r"correct|accura|exact")
# Rise, in deviations between rollouts, up to which a component stands still.
MAX_STILL_RISE = 0.1
# Shares of the variance: below the first a component teaches nothing, from the second on it is all
# that is taught.
DEAD_VARIANCE = 0.02
DOMINANT_VARIANCE = 0.7
# Correlation of two components' changes from which they are one thing, counted twice, and the
# points that it takes.
MIN_DOUBLED_CORRELATION = 0.99
MIN_DOUBLED_POINTS = 20
# Points below which components are not judged.
MIN_PART_POINTS = 10
# Range of a component that is constant up to rounding, as a share of its level.
MAX_FIXED_RANGE = 1e-6


@dataclass(frozen=True)
class PartCurve:
    """One component of the reward, by its mean over the rollouts of a step."""

    name: str
    mean: CurveSummary
    variance: float
    """Variance that it brings: between rollouts where that was logged, and of its mean over the
    run.
    """

    @property
    def is_format(self) -> bool:
        """True where its name says that it pays for how an answer looks."""
        name = self.name.lower()
        is_correctness = CORRECTNESS_WORDS.search(name) and "format" not in name
        return bool(FORMAT_WORDS.search(name)) and not is_correctness

    def stands_still(self, spread: float) -> bool:
        """Return True if it did not rise, and noise can't hide a rise that matters; `spread` is the
        deviation between rollouts.
        """
        line = self.mean.trend
        if line is None or self.mean.rises:
            return False
        _, highest_rise = line.interval()
        return highest_rise < MAX_STILL_RISE * spread


def parts_of(case: Case) -> list[PartCurve]:
    """Return the components whose means were logged, less those that are differences of others."""
    parts: list[PartCurve] = []
    for name in case.view.parts():
        mean = case.summary(f"reward/part/{name}/mean")
        # A penalty for length that no rollout incurs is as it should be.
        if mean is None or "_minus_" in name or name == OVERLONG_PART:
            continue
        deviations = case.curve(f"reward/part/{name}/std")[1]
        variance = float(np.var(mean.values))
        if len(deviations):
            variance += float(np.mean(deviations**2))
        parts.append(PartCurve(name, mean, variance))
    return parts


@check("reward.component-dead", "reward.component-dominates", by_source=True)
def components(case: Case) -> Answer:
    """Divide the reward's variance among its components: parts that teach nothing, and parts that
    teach alone.
    """
    parts = case.cached(parts_of)
    if len(parts) < 2 or len(parts[0].mean.values) < MIN_PART_POINTS:
        return Lacking(
            f"fewer than two components of the reward were logged over {MIN_PART_POINTS} steps"
        )
    total = sum(part.variance for part in parts)
    if total == 0:
        return Lacking("no component of the reward ever varied", "reward.component-dominates")
    answers: list[Found | None] = []
    for part in parts:
        share = part.variance / total
        if share < DEAD_VARIANCE:
            answers.append(_dead(case, part, share))
    return [*answers, _dominant(case, parts, total), _doubled(parts)]


def _dead(case: Case, part: PartCurve, share: float) -> Found:
    """Describe a component that brings hardly any variance; a fault where it is never earned."""
    values = part.mean.values
    last = part.mean.last
    is_fixed = float(np.ptp(values)) <= MAX_FIXED_RANGE * max(1.0, abs(last))
    # One that is constant above 0 may be earned by every rollout, rightly; one stuck at 0 or below
    # is earned by none.
    is_never_earned = is_fixed and last <= 0
    has_run_on = case.trend.kind is not TrendKind.TOO_SHORT
    is_fault = is_never_earned and has_run_on and not part.is_format
    stays = "is constant at" if is_fixed else "hardly moves from"
    summary = (
        f"The component {part.name} {stays} {last:.3g} all run long, so that it teaches nothing."
    )
    text = (
        f"{part.name} brings {share:.2%} of the reward's variance; {values.min():.3g} to"
        f" {values.max():.3g} over {len(values)} points."
    )
    evidence = case.evidence(part.mean.metric, text)
    basis = PROOF if is_fixed else SIGNAL
    return Found(warn_if(is_fault), basis, summary, [evidence], "reward.component-dead")


def _dominant(case: Case, parts: list[PartCurve], total: float) -> Found | None:
    """Find a format component that brings most of the variance."""
    largest = max(parts, key=lambda part: part.variance)
    share = largest.variance / total
    answer_parts = [part for part in parts if not part.is_format]
    if share < DOMINANT_VARIANCE or not largest.is_format or not answer_parts:
        return None
    is_still = all(part.stands_still(case.rollout_spread) for part in answer_parts)
    summary = (
        f"{largest.name} brings {share:.0%} of the reward's variance: the run learns that, and"
        " hardly the task."
    )
    evidence = _levels(case, [largest, *answer_parts])
    severity = warn_if(is_still and case.is_learning)
    return Found(severity, SIGNAL, summary, evidence, "reward.component-dominates")


def _levels(case: Case, parts: list[PartCurve]) -> list[Evidence]:
    """Return the first and last level of each component."""
    evidence: list[Evidence] = []
    for part in parts:
        text = f"{part.name}: {part.mean.first:.3g} → {part.mean.last:.3g}."
        evidence.append(case.evidence(part.mean.metric, text))
    return evidence


def _doubled(parts: list[PartCurve]) -> Found | None:
    """Find two components that are numerically one series: one signal with twice the weight."""
    for one, other in combinations(parts, 2):
        n_points = len(one.mean.values)
        if len(other.mean.values) != n_points or n_points < MIN_DOUBLED_POINTS:
            continue
        # Differences, so that two that merely rise together are not taken for one.
        one_moves = np.diff(one.mean.values)
        other_moves = np.diff(other.mean.values)
        if np.ptp(one_moves) == 0 or np.ptp(other_moves) == 0:
            continue
        correlation = float(np.corrcoef(one_moves, other_moves)[0, 1])
        if correlation > MIN_DOUBLED_CORRELATION:
            summary = (
                f"The components {one.name} and {other.name} are one series, so that one thing is"
                " paid for twice."
            )
            text = f"Their changes from step to step correlate at {correlation:.3f}."
            evidence = Evidence(text, correlation, one.mean.metric)
            return Found(NOTE, PROOF, summary, [evidence], "reward.component-dominates")
    return None


# A component about the answer counts as never earned if it always stays below this share of the
# highest level to which a component rose.
MAX_FLOOR_SHARE = 0.05
# Share of the training score's rise up to which the held-out one did not follow.
MAX_FOLLOWED_SHARE = 0.5
# Evaluations below which a fall may be one bad draw.
MIN_EVALUATIONS = 4
# Evaluations from which those after the first quarter are judged alone.
MIN_LATE_EVALUATIONS = 8
# Share of training's rise by which a held-out score at the same level may lie below it.
MAX_LEVEL_GAP = 0.25
# Least variance of right answers, so that a share of 0 or 1 has a unit too: by chance all answers
# may be alike.
MIN_SHARE_VARIANCE = 0.01


@check("reward.hackable", by_source=True)
def hackable(case: Case) -> Answer:
    """Report a reward that rises while what it stands for does not."""
    change = case.heldout
    parts = case.cached(parts_of)
    right = case.summary(CORRECT_METRIC)
    if not case.is_learning:
        return None
    if change is None and len(parts) < 2 and right is None:
        return Lacking("neither held-out evaluations nor components of the reward were logged")

    if change is not None and right is None:
        finding = _describe_unfollowed_rise(case, change)
        if finding:
            return finding
    finding = _only_format(case, parts)
    if finding or right is None or not right.falls:
        return finding
    summary = (
        f"The reward rose while the share of right answers fell from {right.first:.0%} to"
        f" {right.last:.0%}."
    )
    text = f"Right answers {right.first:.3g} → {right.last:.3g}."
    return Found(WARNING, PROOF, summary, [case.evidence(CORRECT_METRIC, text)])


def _describe_unfollowed_rise(case: Case, change: HeldoutChange) -> Found | None:
    """Describe a rise that the held-out score did not follow at all, or only at its first
    evaluations; None if it followed.
    """
    first = change.steps[0]
    last = change.steps[-1]
    line = trend_until(case.view, REWARD_METRIC, last)
    if line is None:
        return None
    if not heldout_did_not_follow(case, REWARD_METRIC, case.rollout_spread, change):
        return None
    how = f"did not follow ({change.first:.3g} → {change.last:.3g})"
    if change.interval is not None and change.interval[0] > 0:
        later = change.scores[len(change.scores) // 4 :]
        how = (
            f"only at its first evaluations (then {min(later):.3g} to {max(later):.3g} in"
            f" {len(later)} of them)"
        )
    summary = (
        f"The training reward rose by {line.effect:.3g} and the held-out figure {how}: the reward"
        " can be earned without solving the task."
    )
    rise = f"Training reward {line.effect:+.3g} to that step."
    heldout = (
        f"Held out {change.effect:+.3g} between steps {first} and {last}, {len(change.scores)}"
        " evaluations."
    )
    evidence = [
        Evidence(rise, line.effect, REWARD_METRIC, last),
        Evidence(heldout, change.effect, "eval", last),
    ]
    return Found(WARNING, SIGNAL, summary, evidence)


def _only_format(case: Case, parts: list[PartCurve]) -> Found | None:
    """Find a rise of format components alone, or a component about the answer that lies at its
    floor throughout.
    """
    risen = [part for part in parts if part.mean.rises]
    answer_parts = [part for part in parts if not part.is_format]

    # Components about the answer that lie at their floor, else those that stand still.
    highest = max((abs(part.mean.last) for part in risen), default=0.0)
    floored: list[PartCurve] = []
    for part in answer_parts:
        if float(abs(part.mean.values).max()) < MAX_FLOOR_SHARE * highest:
            floored.append(part)
    unearned = floored
    if not floored:
        unearned = [part for part in answer_parts if part.stands_still(case.rollout_spread)]
    risen = [part for part in risen if part not in floored]
    if not risen or not unearned:
        return None
    if any(_may_pay_answer(part, is_answer_floored=bool(floored)) for part in risen):
        return None

    steepest = max(risen, key=lambda part: part.mean.last - part.mean.first)
    rise = f"{steepest.mean.first:.3g} → {steepest.mean.last:.3g}"
    level = f"{unearned[0].name} stayed at {unearned[0].mean.last:.3g}"
    summary = (
        f"What rose is {steepest.name} ({rise}), while {level}: the reward can be earned without"
        " solving the task."
    )
    return Found(WARNING, SIGNAL, summary, _levels(case, [steepest, *unearned]))


def _may_pay_answer(part: PartCurve, is_answer_floored: bool) -> bool:
    """Return True if a component may pay for the answer: one named so, and one of an unknown kind
    unless another component is known to be the answer's, and lies at its floor.
    """
    if part.is_format:
        return False
    return not is_answer_floored or ANSWER_WORDS.search(part.name.lower()) is not None


def heldout_did_not_follow(case: Case, metric: str, spread: float, change: HeldoutChange) -> bool:
    """Return True if the held-out score surely rose much less than a training score did over the
    same steps; `spread` is the training score's deviation between rollouts.
    """
    # The two may have different scales, so that each is measured in its own deviation between
    # rollouts.
    rise = _sure_rise(case, metric, spread, change, 0)
    if rise <= 0 or change.interval is None:
        return False
    heldout_spread = _heldout_spread(change, spread)
    low, high = change.interval
    if low <= 0 and high / heldout_spread < MAX_FOLLOWED_SHARE * rise:
        return True

    # Later evaluations alone, too: a first one before the model knew the format would hide that
    # nothing came after. They are compared with what training gained after them: once a task is
    # solved, neither score rises.
    if len(change.scores) < MIN_LATE_EVALUATIONS:
        return False
    n_skipped = len(change.scores) // 4
    later = change.scores[n_skipped:]
    line = trend_until(case.view, metric, change.steps[-1])
    level = case.summary(metric)
    is_at_training_level = False
    if line is not None and level is not None:
        is_at_training_level = min(later) >= level.last - MAX_LEVEL_GAP * line.effect
    # Of a score beyond 0 to 1 it is not known where the top is.
    is_share = min(change.scores) >= 0 and max(later) <= 1
    is_near_top = is_share and min(later) >= NEAR_TOP
    if is_at_training_level or is_near_top:
        return False
    later_rise = _sure_rise(case, metric, spread, change, n_skipped)
    return float(np.ptp(later)) / heldout_spread < MAX_FOLLOWED_SHARE * later_rise


def _sure_rise(
    case: Case, metric: str, spread: float, change: HeldoutChange, n_skipped: int
) -> float:
    """Return the least that a training score rose since an evaluation, in units of `spread`; 0
    where it may not have.
    """
    first_step = change.steps[n_skipped] if n_skipped else -1
    line = trend_until(case.view, metric, change.steps[-1], first_step)
    if line is None or line.p > SIGNIFICANCE_LEVEL or line.effect <= 0 or spread <= 0:
        return 0.0
    lowest_rise, _ = line.interval()
    return lowest_rise / spread


def _heldout_spread(change: HeldoutChange, spread: float) -> float:
    """Return the deviation of the held-out score between rollouts: a share has its own, anything
    else training's `spread`.
    """
    if not 0 <= change.last <= 1:
        return spread
    # Right or wrong varies by p (1 − p).
    return math.sqrt(max(MIN_SHARE_VARIANCE, change.last * (1 - change.last)))


# Length at the end / at first, for more than a note, and for a note.
HACKED_GROWTH = 1.5
NOTED_GROWTH = 1.15
# Rank correlation of length and reward from which they go together.
MIN_LENGTH_CORRELATION = 0.5
# Held-out change below which the score did not follow.
MAX_HELDOUT_RISE = 0.02
# Shares cut by length in the first and the last quarter, where answers have grown into their limit,
# and the points that a quarter takes.
MAX_EARLY_CUT = 0.25
MIN_LATE_CUT = 0.9
MIN_QUARTER_POINTS = 3
# Correlation of changes between neighboring steps, and of rollouts in a group, from which longer
# answers pay.
MIN_PAID_CORRELATION = 0.3


@check("reward.length-hacking", needs=[LENGTH_METRIC, REWARD_METRIC], by_source=True)
def length_hacking(case: Case) -> Found | None:
    """Report answers that grow, with a reward that grows with them and nothing else."""
    length = case.summary(LENGTH_METRIC)
    assert length is not None
    growth = length.last / length.initial if length.initial > 0 else 1.0
    if growth < NOTED_GROWTH or not (length.rises or growth >= HACKED_GROWTH):
        return None
    lengths = case.view.metrics[LENGTH_METRIC]
    rewards = case.view.metrics[REWARD_METRIC]
    has_both = np.isfinite(lengths) & np.isfinite(rewards)
    lengths = lengths[has_both]
    rewards = rewards[has_both]
    over_steps = rank_correlation(lengths, rewards)
    in_groups = _paid_by_length(case)
    # Length and reward go together in any two curves that rise; where longer rollouts of a group
    # earn no more than its others, length is not what pays.
    if in_groups is not None and in_groups < MIN_PAID_CORRELATION:
        return None

    correlation = over_steps if in_groups is None else in_groups
    is_grown = case.is_learning and growth >= HACKED_GROWTH
    is_paid = is_grown and correlation > MIN_LENGTH_CORRELATION
    grew_into_limit = is_paid and _grew_into_limit(case, lengths, rewards)
    heldout_did_not_rise = is_paid and _heldout_did_not_rise(case.heldout)
    summary = f"Completions grew from {length.initial:.0f} to {length.last:.0f} tokens"
    if over_steps > MIN_LENGTH_CORRELATION:
        summary += ", together with the reward"
    elif over_steps < -MIN_LENGTH_CORRELATION:
        summary += ", and the reward fell as they did"
    if grew_into_limit:
        summary += ", until nearly all are cut by the limit"
    if heldout_did_not_rise:
        summary += ", and the held-out figure does not follow"

    growth_text = f"Length × {growth:.2f} from the first steps to the last quarter."
    within = "" if in_groups is None else f", {in_groups:+.2f} between rollouts of a group"
    correlation_text = f"Rank correlation of length and reward {over_steps:+.2f}{within}."
    evidence = [
        case.evidence(LENGTH_METRIC, growth_text),
        Evidence(correlation_text, over_steps, REWARD_METRIC),
    ]
    if grew_into_limit or heldout_did_not_rise:
        return Found(WARNING, SIGNAL, f"{summary}.", evidence)
    return Found(NOTE, SUSPICION, f"{summary}.", evidence)


def _heldout_did_not_rise(change: HeldoutChange | None) -> bool:
    """Return True if the held-out score was measured, and did not surely rise."""
    if change is None or change.interval is None:
        return False
    return change.interval[0] <= 0 and change.effect < MAX_HELDOUT_RISE


def _paid_by_length(case: Case) -> float | None:
    """Return the correlation of length and reward between the rollouts of a group; None where it is
    not known.
    """
    lengths: list[Floats] = []
    rewards: list[Floats] = []
    for step in case.grouped_steps:
        if step.table.has("roles"):
            length_n = step.table.model_length_n[step.index_n].astype(np.float64)
            mean_length_g = group_sum(length_n, step.group_n) / step.size_g
            lengths.append(length_n - mean_length_g[step.group_n])
            rewards.append(step.centered_n)
    if not lengths:
        return None
    x = np.concatenate(lengths)
    y = np.concatenate(rewards)
    if not len(x):
        return None
    return float(x @ y / math.sqrt((x @ x) * (y @ y) or 1.0))


def _grew_into_limit(case: Case, lengths: Floats, rewards: Floats) -> bool:
    """Return True if answers grew until nearly all are cut, and steps with longer ones pay more."""
    # Reasoning that pays grows too, but has to end in order to answer. Two curves that both rise go
    # together anyway, so that their changes from step to step are compared as well.
    cut = case.cut_by_length
    quarter = len(cut) // 4
    if quarter < MIN_QUARTER_POINTS:
        return False
    early_cut = float(cut[:quarter].mean())
    late_cut = float(cut[-quarter:].mean())
    if early_cut > MAX_EARLY_CUT or late_cut < MIN_LATE_CUT:
        return False
    correlation = np.corrcoef(np.diff(lengths), np.diff(rewards))[0, 1]
    return float(correlation) > MIN_PAID_CORRELATION


# Steps at either end whose upper bounds are compared: of all rollouts, and of groups, for which
# MIN_BOUND_STEPS steps have to do.
STEPS_PER_END = 3
GROUP_STEPS_PER_END = 2
# Share of its size that the mean upper bound must move by, between the ends and between groups, and
# deviations of its noise.
MIN_BOUND_MOVE = 0.2
MIN_GROUP_BOUND_MOVE = 0.1
MIN_BOUND_DEVIATIONS = 3
# Move of bounds that is only rounding.
BOUND_TOLERANCE = 1e-9
# Steps, and groups in each half of them, that a correlation takes, and its deviations from chance.
MIN_BOUND_STEPS = 4
MIN_HALF_GROUPS = 16
MIN_ORDER_DEVIATIONS = 5.0


@check("reward.scale-moves", columns=["reward_high"], by_source=True)
def scale_moves(case: Case) -> Answer:
    """Report bounds of the reward that change over the run, so that its curve shows the order of
    the tasks.
    """
    # TRL states no bounds: the largest reward seen so far stands for them.
    if case.view.trainer == "trl":
        return Lacking("bounds of the reward are not declared")
    by_group = None
    if not case.value("tasks.stages"):  # a curriculum in the config is no fault of the order
        by_group = _bounds_by_group(case)
    return [_bounds_at_ends(case), by_group]


def _bounds_at_ends(case: Case) -> Found | Lacking | None:
    """Compare the mean upper bound of the first steps with that of the last."""
    bounds_by_step = [table.numbers("reward_high") for table in case.tables]
    lacking = Lacking(
        f"rollouts with bounds of their rewards were kept at fewer than {2 * STEPS_PER_END} steps"
    )
    if len(bounds_by_step) < 2 * STEPS_PER_END:
        return lacking
    first_bounds = _finite(bounds_by_step[:STEPS_PER_END])
    last_bounds = _finite(bounds_by_step[-STEPS_PER_END:])
    if not len(first_bounds) or not len(last_bounds):
        return lacking
    first = float(first_bounds.mean())
    last = float(last_bounds.mean())
    # A mix of bounds that is shuffled scatters between steps by its own deviation over the root of
    # the tasks.
    means = [np.nanmean(bounds) for bounds in bounds_by_step[:STEPS_PER_END]]
    noise = float(np.std(means))
    size = max(abs(first), abs(last))
    least = max(MIN_BOUND_MOVE * size, MIN_BOUND_DEVIATIONS * noise, BOUND_TOLERANCE)
    if abs(last - first) <= least:
        return None
    return _moved(first, last, case.tables[-1].step, evidence_value=last)


def _finite(parts: Sequence[Floats]) -> Floats:
    """Return the finite values of all parts."""
    values = np.concatenate(parts)
    return values[np.isfinite(values)]


def _bounds_by_group(case: Case) -> Found | Lacking | None:
    """Correlate the upper bounds of groups with their steps."""
    steps: list[int] = []
    bounds_by_step: list[Floats] = []  # one bound per group
    for table in case.tables:
        if table.group_n is not None:
            _, first_of_group = np.unique(table.group_n, return_index=True)
            bounds_by_step.append(table.numbers("reward_high")[first_of_group])
            steps.append(table.step)
    half = len(steps) // 2
    n_first_half = sum(map(len, bounds_by_step[:half]))
    n_second_half = sum(map(len, bounds_by_step[half:]))
    if len(steps) < MIN_BOUND_STEPS or min(n_first_half, n_second_half) < MIN_HALF_GROUPS:
        return Lacking(f"fewer than {MIN_BOUND_STEPS} steps, or {MIN_HALF_GROUPS} groups in a half")

    bounds = np.concatenate(bounds_by_step)
    step_of_group = np.repeat(steps, [len(part) for part in bounds_by_step])
    is_finite = np.isfinite(bounds)
    bounds = bounds[is_finite]
    if len(bounds) < 2 * MIN_HALF_GROUPS or np.ptp(bounds) == 0:
        return None
    correlation = float(np.corrcoef(step_of_group[is_finite], bounds)[0, 1])
    first = float(np.nanmean(np.concatenate(bounds_by_step[:GROUP_STEPS_PER_END])))
    last = float(np.nanmean(np.concatenate(bounds_by_step[-GROUP_STEPS_PER_END:])))
    # The standard error of a correlation of independent values is 1/sqrt(n).
    is_ordered = abs(correlation) * np.sqrt(len(bounds)) >= MIN_ORDER_DEVIATIONS
    is_far = abs(last - first) >= MIN_GROUP_BOUND_MOVE * abs(first)
    if not is_ordered or not is_far:
        return None
    return _moved(first, last, steps[-1], evidence_value=last - first)


def _moved(first: float, last: float, step: int, *, evidence_value: float) -> Found:
    """Describe an upper bound that moved; its evidence has the level at the end, or the change."""
    summary = (
        f"The most that a rollout can earn moves from {first:.3g} to {last:.3g} on average over"
        " the run: its reward curve shows the order of the tasks."
    )
    text = f"Mean upper bound {first:.3g} at first, {last:.3g} at last."
    return Found(WARNING, PROOF, summary, [Evidence(text, evidence_value, "reward/max", step)])
