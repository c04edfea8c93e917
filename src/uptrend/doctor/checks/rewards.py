"""Rewards over the run: one value for all, components, and a reward that rises without the task."""

import math
import re
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

CORRECT = "reward/correct/share"
LENGTH = "sampling/length/mean"

# Steps of one value in a row that chance does not make.
CONSTANT_STEPS = 5
# A share, or a place in the reward's range, from which on little is left to gain.
TOP = 0.95


@check("reward.constant", needs=[REWARD_METRIC])
def constant_reward(case: Case) -> Found | None:
    """Report the longest stretch in which every rollout had one reward, whatever the value."""
    steps, values = case.curve(REWARD_METRIC)
    metrics = case.view.metrics
    spread = np.full(len(values), np.nan)
    if logged := [metric for metric in ("reward/std", "reward/group_std/mean") if case.has(metric)]:
        spread = metrics[logged[0]][np.isfinite(metrics[REWARD_METRIC])]
    is_flat = ~(spread > 1e-9)
    goes_on = np.append(False, is_flat[1:] & is_flat[:-1] & (values[1:] == values[:-1]))
    begins = np.flatnonzero(is_flat & ~goes_on)
    lengths = np.bincount(np.cumsum(is_flat & ~goes_on)[is_flat], minlength=len(begins) + 1)[1:]
    length = int(lengths.max(initial=0))
    if length < CONSTANT_STEPS:
        return None
    begin = int(begins[lengths.argmax()])
    share = length / len(values)
    value = float(values[begin])
    is_top = case.is_learning and case.scaled_reward(value) > TOP
    # A stretch that the run left again is worth knowing, unless it is half of the run.
    is_past = share < 0.5 and begin + length < len(values)
    severity = (
        NOTE
        if is_top or is_past or _is_hard(case, value)
        else severity_by_share(share, critical=0.5)
    )
    text = (
        f"Every rollout had the reward {value:.3g} on {length} logged steps in a row, from step"
        f" {steps[begin]}"
    )
    shown = Evidence(f"That is {share:.0%} of the run.", value, REWARD_METRIC, int(steps[begin]))
    return Found(severity, PROOF, f"{text}: there was nothing to learn from.", [shown])


def _is_hard(case: Case, value: float) -> bool:
    """Tell whether a reward at the bottom is the tasks' doing: gold answers were said to the
    scorer, and it paid.
    """
    passed = {
        p.get("name")
        for e in case.view.events
        if e.get("event") == "preflight"
        for p in e.get("probes", ())
        if p.get("ok") and not p.get("skipped")
    }
    ends = [r.by_rollout(f"reward_{side}") for r in case.tables[:1] for side in ("low", "high")]
    return "gold" in passed and bool(ends) and value < float(np.nanmean(ends))


# Components are told apart by their names: paid for how an answer looks, or for being right.
FORMAT = re.compile(
    r"format|length|style|structur|xml|tag|json|schema|syntax|compil|pars|think|brev|concise|verbos|diversity|"
    r"penalt|repeti|langu|soft|strict|polite|cosine"
)
RIGHT = re.compile(
    r"correct|accura|answer|exact|solve|equation|outcome|env|success|win|f1|pass|test|terminal|truth|gold|verif|task|"
    r"trace|action|match|score"
)
# A part so named measures the answer, whatever else its name has: parsed_correct. format_exact
# measures the form.
CORRECTNESS = re.compile(r"correct|accura|exact")
# The rise, in deviations between rollouts, that a component which stands still can at most have
# had.
NOTHING = 0.1
# Shares of the variance: below the first a component teaches nothing, from the second on it is all
# that is taught.
DEAD = 0.02
DOMINANT = 0.7
# Correlation of two components' changes from which they are one thing, counted twice.
SAME = 0.99
FEWEST_STEPS = 10


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
        is_correctness = CORRECTNESS.search(name) and "format" not in name
        return bool(FORMAT.search(name)) and not is_correctness

    def stands_still(self, unit: float) -> bool:
        """Tell whether noise can't hide a rise that matters."""
        line = self.mean.trend
        return line is not None and not self.mean.rises and line.interval()[1] < NOTHING * unit


def parts_of(case: Case) -> list[PartCurve]:
    """Return the components whose means were logged, less those that are differences of others."""
    found = []
    for name in case.view.parts():
        mean = case.summary(f"reward/part/{name}/mean")
        # A penalty for length that nobody incurs is as it should be.
        if mean is not None and "_minus_" not in name and name != OVERLONG_PART:
            between = case.curve(f"reward/part/{name}/std")[1]
            inside = float(np.mean(between**2)) if len(between) else 0.0
            found.append(PartCurve(name, mean, inside + float(np.var(mean.values))))
    return found


@check("reward.component-dead", "reward.component-dominates")
def components(case: Case) -> Answer:
    """Share out the reward's variance among its components: parts that teach nothing, and parts
    that teach alone.
    """
    parts = case.cached(parts_of)
    if len(parts) < 2 or len(parts[0].mean.values) < FEWEST_STEPS:
        return Lacking(
            f"fewer than two components of the reward were logged over {FEWEST_STEPS} steps"
        )
    total = sum(part.variance for part in parts)
    if total == 0:
        return Lacking("no component of the reward ever varied", "reward.component-dominates")
    dead = [
        _dead(case, part, part.variance / total) for part in parts if part.variance / total < DEAD
    ]
    return [*dead, _dominant(case, parts, total), _doubled(parts)]


def _dead(case: Case, part: PartCurve, share: float) -> Found:
    values = part.mean.values
    last = part.mean.last
    is_fixed = float(np.ptp(values)) <= 1e-6 * max(1.0, abs(last))
    # One that is constant above 0 may be earned by everybody, rightly; one stuck at 0 or below is
    # earned by nobody.
    is_floor = (
        is_fixed and last <= 0 and not part.is_format and case.trend.kind is not TrendKind.TOO_SHORT
    )
    stays = "is constant at" if is_fixed else "hardly moves from"
    text = f"The component {part.name} {stays} {last:.3g} all run long, so that it teaches nothing."
    spans = f"{values.min():.3g} to {values.max():.3g} over {len(values)} points"
    shown = case.evidence(
        part.mean.metric, f"{part.name} brings {share:.2%} of the reward's variance; {spans}."
    )
    return Found(
        warn_if(is_floor), PROOF if is_fixed else SIGNAL, text, [shown], "reward.component-dead"
    )


def _dominant(case: Case, parts: list[PartCurve], total: float) -> Found | None:
    part = max(parts, key=lambda p: p.variance)
    share = part.variance / total
    others = [p for p in parts if not p.is_format]
    if share < DOMINANT or not part.is_format or not others:
        return None
    is_still = all(p.stands_still(case.rollout_spread) for p in others)
    text = (
        f"{part.name} brings {share:.0%} of the reward's variance: the run learns that, and hardly"
        " the task."
    )
    shown = _courses(case, [part, *others])
    return Found(
        warn_if(is_still and case.is_learning), SIGNAL, text, shown, "reward.component-dominates"
    )


def _courses(case: Case, parts: list[PartCurve]) -> list[Evidence]:
    return [
        case.evidence(p.mean.metric, f"{p.name}: {p.mean.first:.3g} → {p.mean.last:.3g}.")
        for p in parts
    ]


def _doubled(parts: list[PartCurve]) -> Found | None:
    """Find two components that are numerically one series: one signal with twice the weight."""
    for one, other in combinations(parts, 2):
        if len(one.mean.values) != len(other.mean.values) or len(one.mean.values) < 20:
            continue
        # Differences, so that two that merely rise together are not taken for one.
        moves = np.diff(one.mean.values), np.diff(other.mean.values)
        likeness = (
            float(np.corrcoef(*moves)[0, 1])
            if np.ptp(moves[0]) > 0 and np.ptp(moves[1]) > 0
            else 0.0
        )
        if likeness > SAME:
            text = (
                f"The components {one.name} and {other.name} are one series, so that one thing is"
                " paid for twice."
            )
            shown = Evidence(
                f"Their changes from step to step correlate at {likeness:.3f}.",
                likeness,
                one.mean.metric,
            )
            return Found(NOTE, PROOF, text, [shown], "reward.component-dominates")
    return None


# A component that never reaches this share of another, with the answer in neither's name, has not
# been earned.
FLOOR = 0.05
# The share of the training score's rise that the held-out one can at most have moved by.
HALF = 0.5
# Evaluations below which a fall may be one bad draw.
EVALUATIONS = 4
# The share of training's rise that a held-out score at the same level may lie below it.
STILL = 0.25


@check("reward.hackable")
def hackable(case: Case) -> Answer:
    """Report a reward that rises while what it stands for does not."""
    change = case.heldout
    parts = case.cached(parts_of)
    right = case.summary(CORRECT)
    if not case.is_learning:
        return None
    if change is None and len(parts) < 2 and right is None:
        return Lacking("neither held-out evaluations nor components of the reward were logged")
    found = (_beside_heldout(case, change) if change and right is None else None) or _only_format(
        case, parts
    )
    if found or right is None or not right.falls:
        return found
    text = (
        f"The reward rose while the share of right answers fell from {right.first:.0%} to"
        f" {right.last:.0%}."
    )
    shown = case.evidence(CORRECT, f"Right answers {right.first:.3g} → {right.last:.3g}.")
    return Found(WARNING, PROOF, text, [shown])


def _beside_heldout(case: Case, change: HeldoutChange) -> Found | None:
    """Judge a held-out score that did not follow: not at all, or not beyond its first
    evaluations.
    """
    first = change.steps[0]
    last = change.steps[-1]
    line = trend_until(case.view, REWARD_METRIC, last)
    told = (
        f"Held out {change.effect:+.3g} between steps {first} and {last}, {len(change.scores)}"
        " evaluations."
    )
    shown = [Evidence(told, change.effect, "eval", last)]
    moved = f"{change.first:.3g} → {change.last:.3g}"
    if line is None or not stands_still(case, REWARD_METRIC, case.rollout_spread, change):
        return None
    rested = f"did not follow ({moved})"
    if change.interval is not None and change.interval[0] > 0:
        later = change.scores[len(change.scores) // 4 :]
        rested = (
            f"only at its first evaluations (then {min(later):.3g} to {max(later):.3g} in"
            f" {len(later)} of them)"
        )
    text = f"The training reward rose by {line.effect:.3g} and the held-out figure {rested}"
    shown.insert(
        0,
        Evidence(
            f"Training reward {line.effect:+.3g} to that step.", line.effect, REWARD_METRIC, last
        ),
    )
    return Found(WARNING, SIGNAL, f"{text}: the reward may be had without the task.", shown)


def _only_format(case: Case, parts: list[PartCurve]) -> Found | None:
    """Find a rise of format components alone, or a component about the answer that lies at its
    floor throughout.
    """
    risen = [p for p in parts if p.mean.rises]
    largest = max((abs(p.mean.last) for p in risen), default=0.0)
    floored = [
        p for p in parts if not p.is_format and float(abs(p.mean.values).max()) < FLOOR * largest
    ]
    risen = [p for p in risen if p not in floored]
    still = floored or [p for p in parts if not p.is_format and p.stands_still(case.rollout_spread)]
    if (
        not risen
        or not still
        or any(not p.is_format and RIGHT.search(p.name.lower()) for p in risen)
    ):
        return None
    if not floored and not all(p.is_format for p in risen):
        return None
    carrier = max(risen, key=lambda p: p.mean.last - p.mean.first)
    left = still[0]
    rose = f"What rose is {carrier.name} ({carrier.mean.first:.3g} → {carrier.mean.last:.3g})"
    text = (
        f"{rose}, while {left.name} stayed at {left.mean.last:.3g}: the reward may be had without"
        " the task."
    )
    return Found(WARNING, SIGNAL, text, _courses(case, [carrier, *still]))


def stands_still(case: Case, metric: str, unit: float, change: HeldoutChange) -> bool:
    """Tell whether the held-out score surely rose much less than a training score did over the same
    steps.
    """
    # The two may have different scales, so that each is measured in its own deviation between
    # rollouts.
    rise = _sure_rise(case, metric, unit, change, 0)
    if rise <= 0 or change.interval is None:
        return False
    own = _deviation(change, unit)
    if change.interval[0] <= 0 and change.interval[1] / own < HALF * rise:
        return True
    # Later evaluations alone, too: a first one before the model knew the format would hide that
    # nothing came after. They are compared with what training gained after them: once a task is
    # solved, both rest.
    skipped = len(change.scores) // 4
    later = change.scores[skipped:]
    line = trend_until(case.view, metric, change.steps[-1])
    level = case.summary(metric)
    is_level = (
        line is not None and level is not None and min(later) >= level.last - STILL * line.effect
    )
    is_top = min(change.scores) >= 0 and TOP <= min(later) <= max(later) <= 1
    if len(change.scores) < 8 or is_level or is_top:
        return False
    return float(np.ptp(later)) / own < HALF * _sure_rise(case, metric, unit, change, skipped)


def _sure_rise(case: Case, metric: str, unit: float, change: HeldoutChange, skipped: int) -> float:
    """Return the least that a training score rose since an evaluation, in deviations; 0 where it
    may not have.
    """
    line = trend_until(
        case.view, metric, change.steps[-1], change.steps[skipped] if skipped else -1
    )
    if line is None or line.p > SIGNIFICANCE_LEVEL or line.effect <= 0 or unit <= 0:
        return 0.0
    return line.interval()[0] / unit


def _deviation(change: HeldoutChange, unit: float) -> float:
    """Return the deviation of the held-out score between rollouts: a share has its own, anything
    else training's.
    """
    return math.sqrt(max(0.01, change.last * (1 - change.last))) if 0 <= change.last <= 1 else unit


# Growth of answers for more than a note, and for a note.
GROWTH = 1.5
NOTED = 1.15
# Rank correlation of length and reward that says that they go together.
TOGETHER = 0.5
# The shares cut by length at first and at last, where answers have grown into their limit.
ENDED = 0.25
UNENDED = 0.9
# Correlation of changes between neighboring steps, where longer answers pay.
STEP_BY_STEP = 0.3


@check("reward.length-hacking", needs=[LENGTH, REWARD_METRIC])
def length_hacking(case: Case) -> Found | None:
    """Report answers that grow, with a reward that grows with them and nothing else."""
    length = case.summary(LENGTH)
    change = case.heldout
    assert length is not None
    growth = length.last / length.initial if length.initial > 0 else 1.0
    if growth < NOTED or not (length.rises or growth >= GROWTH):
        return None
    lengths = case.view.metrics[LENGTH]
    rewards = case.view.metrics[REWARD_METRIC]
    both = np.isfinite(lengths) & np.isfinite(rewards)
    together = rank_correlation(lengths[both], rewards[both])
    inside = _paid_by_length(case)
    # two curves that rise go together; longer rollouts earn no more
    if inside is not None and inside < STEP_BY_STEP:
        return None
    is_paid = (
        case.is_learning
        and growth >= GROWTH
        and (together if inside is None else inside) > TOGETHER
    )
    is_empty = (
        change is not None
        and change.interval is not None
        and change.interval[0] <= 0
        and change.effect < 0.02
    )
    is_boundless = is_paid and _runs_into_its_limit(case, lengths[both], rewards[both])
    text = f"Completions grew from {length.initial:.0f} to {length.last:.0f} tokens"
    if abs(together) > TOGETHER:
        text += (
            ", together with the reward" if together > 0 else ", and the reward fell as they did"
        )
    if is_boundless:
        text += ", until nearly all are cut by the limit"
    if is_paid and is_empty:
        text += ", and the held-out figure does not follow"
    within = "" if inside is None else f", {inside:+.2f} between rollouts of a group"
    evidence = [
        case.evidence(LENGTH, f"Length × {growth:.2f} from the first steps to the last quarter."),
        Evidence(
            f"Rank correlation of length and reward {together:+.2f}{within}.",
            together,
            REWARD_METRIC,
        ),
    ]
    sure = (WARNING, SIGNAL) if is_paid and (is_empty or is_boundless) else (NOTE, SUSPICION)
    return Found(*sure, f"{text}.", evidence)


def _paid_by_length(case: Case) -> float | None:
    """Return the correlation of length and reward between the rollouts of a group; None where it is
    not known.
    """
    steps = [
        (g, g.table.lengths_n[g.index_n].astype(np.float64))
        for g in case.grouped_steps
        if g.table.has("roles")
    ]
    x = np.concatenate(
        [n - (group_sum(n, g.group_n) / g.size_g)[g.group_n] for g, n in steps] or [np.zeros(0)]
    )
    y = np.concatenate([g.centered_n for g, _ in steps] or [np.zeros(0)])
    return float(x @ y / math.sqrt((x @ x) * (y @ y) or 1.0)) if len(x) else None


def _runs_into_its_limit(case: Case, lengths: Floats, rewards: Floats) -> bool:
    """Tell whether answers grew until nearly all are cut, and steps with longer ones pay more."""
    # Reasoning that pays grows too, but has to end in order to answer. Two curves that both rise go
    # together anyway, so that their changes from step to step are compared as well.
    cut = case.cut_by_length
    quarter = len(cut) // 4
    if quarter < 3 or float(cut[:quarter].mean()) > ENDED or float(cut[-quarter:].mean()) < UNENDED:
        return False
    return float(np.corrcoef(np.diff(lengths), np.diff(rewards))[0, 1]) > STEP_BY_STEP


# Bounds: steps at either end that are compared, how far the mean upper bound must move against its
# size, the steps and the groups in each half that a correlation needs, and its deviations from
# chance.
ENDS = 3
MOVED = 0.2
STEPS = 4
GROUPS = 16
DEVIATIONS = 5.0


@check("reward.scale-moves", columns=["reward_high"])
def scale_moves(case: Case) -> Answer:
    """Report bounds of the reward that change over the run, so that its curve shows the order of
    the tasks.
    """
    # which states no bounds: the largest reward seen so far stands for them
    if case.view.trainer == "trl":
        return Lacking("bounds of the reward are not declared")
    # A curriculum that the config states is no fault of the order.
    return [_bounds_at_ends(case), None if case.value("tasks.stages") else _bounds_by_group(case)]


def _bounds_at_ends(case: Case) -> Found | Lacking | None:
    tops = [r.by_rollout("reward_high") for r in case.tables]
    ends = [
        np.concatenate(part)[np.isfinite(np.concatenate(part))]
        for part in (tops[:ENDS], tops[-ENDS:])
    ]
    if len(tops) < 2 * ENDS or not len(ends[0]) or not len(ends[1]):
        return Lacking(
            f"rollouts with bounds of their rewards were kept at fewer than {2 * ENDS} steps"
        )
    first, last = (float(end.mean()) for end in ends)
    # A mix of bounds that is shuffled scatters between steps by its own deviation over the root of
    # the tasks.
    noise = float(np.std([np.nanmean(top) for top in tops[:ENDS]]))
    is_far = abs(last - first) > max(MOVED * max(abs(first), abs(last)), 3 * noise, 1e-9)
    return _moved(first, last, last, case.tables[-1].step) if is_far else None


def _bounds_by_group(case: Case) -> Found | Lacking | None:
    rows = [(r, r.group_n) for r in case.tables if r.group_n is not None]
    high = [
        r.by_rollout("reward_high")[np.unique(group_n, return_index=True)[1]] for r, group_n in rows
    ]
    half = len(high) // 2
    if len(high) < STEPS or min(sum(map(len, high[:half])), sum(map(len, high[half:]))) < GROUPS:
        return Lacking(f"fewer than {STEPS} steps, or {GROUPS} groups in a half")
    step = np.repeat([r.step for r, _ in rows], [len(h) for h in high])
    bound = np.concatenate(high)
    step = step[np.isfinite(bound)]
    bound = bound[np.isfinite(bound)]
    if len(bound) < 2 * GROUPS or np.ptp(bound) == 0:
        return None
    correlation = float(np.corrcoef(step, bound)[0, 1])
    first, last = (float(np.nanmean(np.concatenate(part))) for part in (high[:2], high[-2:]))
    is_far = abs(correlation) * np.sqrt(len(bound)) >= DEVIATIONS and abs(
        last - first
    ) >= 0.1 * abs(first)
    return _moved(first, last, last - first, rows[-1][0].step) if is_far else None


def _moved(first: float, last: float, value: float, step: int) -> Found:
    text = (
        f"The most that a rollout can earn moves from {first:.3g} to {last:.3g} on average over"
        " the run"
    )
    shown = Evidence(
        f"Mean upper bound {first:.3g} at first, {last:.3g} at last.", value, "reward/max", step
    )
    return Found(WARNING, PROOF, f"{text}: its reward curve shows the order of the tasks.", [shown])
