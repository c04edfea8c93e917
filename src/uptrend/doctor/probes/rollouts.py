"""Probes of what the model's rollouts show: dead groups, temperature, parsing, endings, evaluation,
and power.
"""

import copy
import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from uptrend.doctor.check import CRITICAL, NOTE, SIGNAL, SUSPICION, WARNING
from uptrend.doctor.checks.golds import (
    MIN_CONTRADICTED_SHARE,
    MIN_RIGHT_SHARE,
    is_outvoted,
    judge_golds,
)
from uptrend.doctor.checks.sampling import HOT_TEMPERATURE
from uptrend.doctor.probes.bench import Bench, by_group, make_evidence
from uptrend.doctor.probes.data import question
from uptrend.doctor.probes.probe import NEEDS_SCORES, Answer, probe, require
from uptrend.records import Ending, Fix, Role, Rollout, Task
from uptrend.stats.intervals import all_right, wilson
from uptrend.stats.trend import points_for, power_of_rise
from uptrend.tasks.answers import bare_answer, says_leniently
from uptrend.tasks.functions import without_remote
from uptrend.tasks.proof import play_scripts
from uptrend.tasks.taskset import known_gold

# Rewards that are this near to a bound, or to each other, are at it: sums of parts are rounded.
REWARD_TOLERANCE = 1e-6
# Tasks and rollouts of each that are played again under other limits.
COMPARED_TASKS = 8
COMPARED_ROLLOUTS = 4
MAX_EXAMPLES = 3


@dataclass(frozen=True)
class PassRates:
    """Rewards of the groups that were played, one entry per group with a scored rollout."""

    rewards: tuple[tuple[float, ...], ...]
    lows: tuple[float, ...]  # least possible reward
    highs: tuple[float, ...]  # largest possible reward
    distinct: float  # mean share of a group's rollouts that say something different

    @property
    def dead(self) -> list[bool]:
        """True for groups whose rewards are all equal."""
        return [len(set(totals)) < 2 for totals in self.rewards]

    @property
    def dead_share(self) -> float:
        """Share of dead groups."""
        return sum(self.dead) / max(1, len(self.rewards))

    @property
    def tops(self) -> list[int]:
        """Number of rollouts of each group with the largest possible reward."""
        counts = []
        for totals, high in zip(self.rewards, self.highs, strict=True):
            counts.append(sum(total >= high - REWARD_TOLERANCE for total in totals))
        return counts

    @property
    def pass_rate(self) -> float:
        """Mean share of rollouts with the largest possible reward."""
        return float(np.mean(np.array(self.tops) / self.sizes))

    @property
    def sizes(self) -> NDArray[np.int64]:
        """Number of scored rollouts of each group."""
        return np.array([len(totals) for totals in self.rewards])


def pass_rates(rollouts: Iterable[Rollout]) -> PassRates:
    """Collect the rewards of scored rollouts by the id of their group."""
    totals = list[tuple[float, ...]]()
    lows = list[float]()
    highs = list[float]()
    distinct_shares = list[float]()
    for group in by_group(rollout for rollout in rollouts if rollout.reward).values():
        rewards = [rollout.reward for rollout in group if rollout.reward]
        totals.append(tuple(reward.total for reward in rewards))
        lows.append(rewards[0].low)
        highs.append(rewards[0].high)
        distinct_shares.append(len({_sampled_bytes(rollout) for rollout in group}) / len(group))
    # If the bounds of a reward are not stated, they are the least and the most that was earned.
    earned = [total for group_totals in totals for total in group_totals]
    least = min(earned, default=0.0)
    most = max(earned, default=0.0)
    return PassRates(
        rewards=tuple(totals),
        lows=tuple(least if np.isnan(low) else low for low in lows),
        highs=tuple(most if np.isnan(high) else high for high in highs),
        distinct=float(np.mean(distinct_shares)) if distinct_shares else 0.0,
    )


def _sampled_bytes(rollout: Rollout) -> bytes:
    """Return the tokens that the model sampled in a rollout, as a key."""
    return b"".join(sequence.ids[sequence.sampled].tobytes() for sequence in rollout.sequences)


# Limits of the distribution of pass rates that is fitted to a few groups: distance of its mean from
# 0 and 1, its variance, and the number of rollouts that it weighs as much as.
MIN_MEAN_RATE = 0.02
MIN_RATE_VARIANCE = 1e-3
MIN_PRIOR_ROLLOUTS = 0.2
MAX_PRIOR_ROLLOUTS = 10


def predict_dead(groups: PassRates, size: int) -> float:
    """Predict the share of dead groups at another size."""
    values = {total for totals in groups.rewards for total in totals}
    return _predict_by_value(groups, size) if len(values) > 2 else _predict_by_top(groups, size)


def _predict_by_value(groups: PassRates, size: int) -> float:
    """Predict dead groups of many-valued rewards: a group is dead if all earn one of its values.

    Unbiased for sizes up to the one that was played. To be able to predict larger ones, half a
    rollout with another reward is added to each group.
    """
    chances = list[float]()
    for totals in groups.rewards:
        chance = 0.0
        for count in Counter(totals).values():
            chance += all_right(count, len(totals) + 0.5 - count, size)
        chances.append(chance)
    return float(np.mean(chances))


def _predict_by_top(groups: PassRates, size: int) -> float:
    """Predict dead groups of two-valued rewards, with a distribution of pass rates over groups.

    A group's chance p of earning the most is seen through its n rollouts, k of them at the top:
    p ~ Beta(a + k, b + n − k), with a and b fitted to all groups by moments. A group of G is then
    all top or all not with chance E[pᴳ] + E[(1−p)ᴳ].
    """
    tops = np.array(groups.tops)
    sizes = groups.sizes
    rates = tops / sizes
    mean = float(np.clip(rates.mean(), MIN_MEAN_RATE, 1 - MIN_MEAN_RATE))
    # Of the variance between groups, chance within them explains the second part.
    variance = float(rates.var()) - mean * (1 - mean) / sizes.mean()
    prior = mean * (1 - mean) / max(variance, MIN_RATE_VARIANCE) - 1
    prior = float(np.clip(prior, MIN_PRIOR_ROLLOUTS, MAX_PRIOR_ROLLOUTS))
    chances = list[float]()
    for top, n in zip(tops, sizes, strict=True):
        a = mean * prior + top
        b = (1 - mean) * prior + n - top
        chances.append(all_right(a, b, size) + all_right(b, a, size))
    return float(np.mean(chances))


# Share of groups that the whole interval of dead ones must lie above, and of those predicted.
MIN_DEAD_SHARE = 0.5
# Sizes for which dead groups are predicted, beside the recipe's own.
PREDICTED_SIZES = (16, 32)


@probe(
    "dead-groups",
    finds=["advantage.dead-groups-low", "advantage.dead-groups-high"],
    need=NEEDS_SCORES,
    by_source=True,
)
def dead_groups(bench: Bench) -> Answer:
    """Count groups that are all wrong or all right, and predict them at other sizes."""
    groups = pass_rates(bench.played)
    n_groups = len(groups.rewards)
    n_dead = sum(groups.dead)
    n_low = 0
    n_high = 0
    rows = zip(groups.dead, groups.rewards, groups.lows, groups.highs, strict=True)
    for is_dead, totals, low, high in rows:
        if is_dead:
            n_low += totals[0] <= low + REWARD_TOLERANCE
            n_high += totals[0] >= high - REWARD_TOLERANCE

    predictions = []
    for size in dict.fromkeys((bench.config.sampling.size, *PREDICTED_SIZES)):
        predictions.append(f"{predict_dead(groups, size):.0%} at {size}")
    by_size = ", ".join(predictions)
    yield f"pass rate {groups.pass_rate:.0%}; {n_dead} of {n_groups} groups dead "
    yield f"({n_low} low, {n_high} high); predicted by size: {by_size}"

    text = f"pass rate {groups.pass_rate:.1%}; dead groups predicted: {by_size}"
    if wilson(n_low, n_groups)[0] > MIN_DEAD_SHARE:
        id = "advantage.dead-groups-low"
        summary = (
            f"{n_low} of {n_groups} groups are all wrong and teach nothing: the model needs easier"
            " tasks or larger groups."
        )
        yield bench.finding(id, WARNING, summary, text, n_low / n_groups, basis=SIGNAL)
    elif wilson(n_high, n_groups)[0] > MIN_DEAD_SHARE:
        id = "advantage.dead-groups-high"
        summary = (
            f"{n_high} of {n_groups} groups are all right and teach nothing: the model needs harder"
            " tasks."
        )
        yield bench.finding(id, WARNING, summary, text, n_high / n_groups, basis=SIGNAL)


# Rollouts of which one is right where a model can do 5% of its tasks (95%).
MIN_ROLLOUTS_NONE_RIGHT = 64
# Tasks, and rollouts of each, that are played to reach that number.
MORE_TASKS = 16
MORE_ROLLOUTS = 4
# Share of rollouts that end by the turn limit, from which turns are what is missing.
MIN_CUT_SHARE = 0.5


@probe(
    "none-right",
    finds=["advantage.dead-groups-low", "reward.constant", "reward.never-computed"],
    need=NEEDS_SCORES,
    by_source=True,
)
def none_right(bench: Bench) -> Answer:
    """Count right rollouts; if there are none, play up to 64, and see what still varies."""
    require(bench.config.sampling.max_turns == 1, "rollouts have several turns: see paid")
    gold_totals = [rollout.reward.total for rollout in bench.demonstrations if rollout.reward]
    # If the bounds of a reward are not stated, earning as much as a gold answer is right too.
    gold_total = float(np.median(gold_totals)) if gold_totals else np.inf

    played = bench.played
    totals = _totals(played)
    n_right = _count_right(played, gold_total)
    if (not n_right or len(set(totals)) == 1) and len(played) < MIN_ROLLOUTS_NONE_RIGHT:
        taskset = bench.stage.taskset
        more_tasks = [(task, taskset) for task in bench.stage.tasks[:MORE_TASKS]]
        played = played + bench.play(more_tasks, MORE_ROLLOUTS, "more")
        totals = _totals(played)
        n_right = _count_right(played, gold_total)
    low = min(totals)
    high = max(totals)
    n_responses = len({rollout.response for rollout in played})
    yield f"{n_right} of {len(totals)} rollouts are right; rewards from {low:.3g} to {high:.3g}"

    # Rewards that are all at a known bound are a matter of how hard the tasks are.
    bounds = set[float]()
    for rollout in played:
        if rollout.reward:
            bounds |= {rollout.reward.low, rollout.reward.high}
    is_constant = low == high and low not in bounds and gold_total in (low, np.inf)
    is_enough = len(totals) >= MIN_ROLLOUTS_NONE_RIGHT and n_responses > 1
    if not is_enough or (n_right and not is_constant):
        return

    n_tasks = len({rollout.task for rollout in played})
    text = f"{len(totals)} rollouts of {n_tasks} tasks, {n_responses} different answers"
    is_bounded = any(r.reward and not np.isnan(r.reward.high) for r in bench.played)
    if is_constant:
        severity = CRITICAL if gold_totals else WARNING
        summary = f"Every rollout earns {low:g}, whatever it says: the reward is constant."
        yield bench.finding("reward.constant", severity, summary, text, low, basis=SIGNAL)
    elif low == high:
        summary = (
            f"{len(totals)} rollouts, none right: all earn {low:g}, and nothing can be learned from"
            " them."
        )
        yield bench.finding("advantage.dead-groups-low", WARNING, summary, text, 0.0, basis=SIGNAL)
    elif gold_totals or is_bounded:
        text += f"; rewards from {low:.3g} to {high:.3g}"
        if gold_totals:
            text += f", gold's is {gold_total:.3g}"
        yield from _varying_rewards(bench, played, text)


def _totals(rollouts: Sequence[Rollout]) -> list[float]:
    """Return the rewards of rollouts that were scored."""
    return [rollout.reward.total for rollout in rollouts if rollout.reward]


def _count_right(rollouts: Sequence[Rollout], gold_total: float) -> int:
    """Count rollouts that are right, or earn the most, or as much as gold."""
    count = 0
    for rollout in rollouts:
        reward = rollout.reward
        if reward:
            count += reward.correct or reward.is_best or reward.total >= gold_total
    return count


def _varying_rewards(bench: Bench, played: Sequence[Rollout], text: str) -> Answer:
    """Report rollouts of which none is right though their rewards vary."""
    n_scored = len(_totals(played))
    n_cut = sum(rollout.ended is Ending.TURN_LIMIT for rollout in played)
    if n_cut > MIN_CUT_SHARE * len(played):
        id = "reward.never-computed"
        severity = WARNING
        fix = bench.more_turns
        summary = (
            f"{n_scored} rollouts, none right: the task would go on after the last turn that is"
            " allowed."
        )
    else:
        # A task of one turn waits for no event. A model that is weak at first may still learn
        # from the rest.
        id = "advantage.dead-groups-low"
        severity = NOTE
        fix = None
        summary = f"{n_scored} rollouts, none right yet: so far only the rest of the reward varies."
    yield bench.finding(id, severity, summary, text, 0.0, basis=SIGNAL, fix=fix)


# The model's own distribution.
UNSHAPED_SAMPLING = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0}
# Different texts / rollouts of a group up to which these are alike, if the share of dead groups is
# that large; and by how much it must fall at temperature 1.
MAX_DISTINCT_SHARE = 0.3
MIN_ALIKE_DEAD_SHARE = 0.4
MIN_DEAD_FALL = 0.25
# Groups that must all be dead, and copies of one text, for a run that can't learn at all.
MIN_COPIED_GROUPS = 4
# Groups without which a gain is chance, and standard errors that it must exceed.
MIN_GAIN_GROUPS = 4
MIN_GAIN_ERRORS = 2


@probe(
    "temperature",
    finds=["sampling.temperature-low", "sampling.entropy-explosion"],
    need=NEEDS_SCORES,
    by_source=True,
)
def temperature(bench: Bench) -> Answer:
    """Compare a group's rollouts; if they hardly vary or are noise, play 8 tasks unshaped."""
    sampling = bench.config.sampling
    groups = pass_rates(bench.played)
    yield (
        f"{groups.distinct:.0%} of a group's rollouts differ at temperature"
        f" {sampling.temperature:g}"
    )
    is_alike = groups.distinct <= MAX_DISTINCT_SHARE and groups.dead_share >= MIN_ALIKE_DEAD_SHARE
    is_hot = sampling.temperature > HOT_TEMPERATURE
    shaping: dict[str, float] = {}
    for key, unshaped_value in UNSHAPED_SAMPLING.items():
        value = getattr(sampling, key)
        if value != unshaped_value:
            shaping[key] = value
    if not shaping or not (is_alike or is_hot):
        return

    tasks = bench.drawn[:COMPARED_TASKS]
    ids = {task.id for task, _ in tasks}
    own = pass_rates(rollout for rollout in bench.rollouts if rollout.task in ids)
    unshaped = pass_rates(bench.play(tasks, sampling.size, "warm", **UNSHAPED_SAMPLING))
    yield f"; at 1 {unshaped.distinct:.0%} do, and dead groups go from "
    yield f"{own.dead_share:.0%} to {unshaped.dead_share:.0%}"

    own_means = _group_means(own)
    unshaped_means = _group_means(unshaped)
    gains = np.zeros(1)
    if len(own_means) == len(unshaped_means) >= MIN_GAIN_GROUPS:
        gains = np.subtract(unshaped_means, own_means)
    gain = float(gains.mean())
    settings = " and ".join(f"sampling.{key} = {value:g}" for key, value in shaping.items())
    changes = {f"sampling.{key}": UNSHAPED_SAMPLING[key] for key in shaping}
    fix = Fix("Sample from the model's own distribution.", {"uptrend": changes})
    if is_hot and gain > MIN_GAIN_ERRORS * _standard_error(gains):
        summary = f"{settings} turns answers into noise: without, they earn {gain:.2g} more."
        text = (
            f"mean reward {np.mean(own_means):.3g} as it is, {np.mean(unshaped_means):.3g} from the"
            " model's own distribution"
        )
        yield bench.finding("sampling.entropy-explosion", WARNING, summary, text, gain, fix=fix)
    elif is_alike and unshaped.dead_share <= own.dead_share - MIN_DEAD_FALL:
        n_texts = own.distinct * sampling.size
        is_copied = own.dead_share == 1 and len(own.rewards) >= MIN_COPIED_GROUPS and n_texts <= 1
        severity = CRITICAL if is_copied else WARNING
        summary = (
            f"{settings} makes a group's rollouts the same: at temperature 1 fewer groups are dead."
        )
        text = (
            f"dead groups {own.dead_share:.0%} as it is, {unshaped.dead_share:.0%} at 1 on the same"
            f" {len(tasks)} tasks"
        )
        yield bench.finding(
            "sampling.temperature-low", severity, summary, text, groups.dead_share, fix=fix
        )


def _group_means(groups: PassRates) -> list[float]:
    """Return the mean reward of each group."""
    return [float(np.mean(totals)) for totals in groups.rewards]


def _standard_error(values: NDArray[np.float64]) -> float:
    """Return the standard error of a mean."""
    return float(np.std(values) / max(1, len(values) - 1) ** 0.5)


# Tasks, and rollouts of each, that are played both with the chat template and without.
RENDERED_TASKS = 8
RENDERED_ROLLOUTS = 4
# Smaller gains than this do not outweigh that a chat template is how a model was taught.
MIN_RENDERING_GAIN = 0.2
# Share of right answers from which a model understands how it is asked.
UNDERSTOOD_SHARE = 0.5
# Rollouts of which none must be right to stop a run for its template.
MIN_NOT_UNDERSTOOD = 16


@dataclass(frozen=True)
class Renderings:
    """Shares of right answers to the same tasks, asked in two ways."""

    as_chat: float
    as_text: float
    rollouts: int  # asked each way
    chat_is_better: bool  # raw text has to be clearly better to be chosen


def compare_renderings(bench: Bench) -> Renderings:
    """Ask a few tasks with the chat template and as raw text; for tasks that leave the choice to
    `model.chat`.
    """
    with without_remote():
        chat_answers = _answers_asked(bench, as_chat=True)
        text_answers = _answers_asked(bench, as_chat=False)
    as_chat = float(np.mean(chat_answers))
    return Renderings(
        as_chat=as_chat,
        as_text=float(np.mean(text_answers)),
        rollouts=len(chat_answers),
        chat_is_better=not is_clearly_more(text_answers, as_chat),
    )


def _answers_asked(bench: Bench, *, as_chat: bool) -> list[bool]:
    """Ask a few tasks in one way; return True for each right answer, False for a failed one."""
    taskset = bench.stage.taskset
    tasks = [(task, taskset) for task in bench.stage.tasks[:RENDERED_TASKS]]
    # Seed 0: all seeds and arms of an experiment have to come to the same answer.
    config = replace(bench.config, model=replace(bench.config.model, chat=as_chat), seed=0)
    rollouts = bench.play_under(config, tasks, RENDERED_ROLLOUTS, "renderings")
    return [r.reward is not None and r.reward.correct for r in rollouts]


def is_clearly_more(answers: Sequence[bool], share: float) -> bool:
    """Return True where right answers are more than a share by an amount that matters, and not by
    chance.
    """
    if not answers:
        return False
    low, _ = wilson(sum(answers), len(answers))
    return float(np.mean(answers)) >= share + MIN_RENDERING_GAIN and low > share


@probe("template", finds=["tokens.template"], need=NEEDS_SCORES, by_source=True)
def template(bench: Bench) -> Answer:
    """Ask 8 tasks the other way, with or without chat template, if most answers are wrong."""
    taskset = bench.stage.taskset
    has_choice = bench.policy.tokenizer.chat_template and not bench.tools
    require(has_choice, "no chat template, or tools that need one")
    require(not bench.has_compared_chat, "both ways were compared, and the better one is asked")
    tasks = bench.drawn[:COMPARED_TASKS]
    ids = {task.id for task, _ in tasks}
    own_answers = _right_answers(rollout for rollout in bench.rollouts if rollout.task in ids)
    own_share = float(np.mean(own_answers)) if own_answers else 0.0
    is_set_by_tasks = taskset.chat is not None
    is_chat = (taskset.chat if is_set_by_tasks else bench.config.model.chat) is not False
    own_way = "with" if is_chat else "without"
    other_way = "without" if is_chat else "with"
    yield f"{own_share:.0%} of answers are right {own_way} the chat template"
    if own_share >= UNDERSTOOD_SHARE or not own_answers:
        return

    other_taskset = copy.copy(taskset)
    try:
        other_taskset.chat = not is_chat  # type: ignore[misc]
    except AttributeError:
        require(False, "the taskset renders its own prompts")
    other_tasks = [(task, other_taskset) for task, _ in tasks]
    other_answers = _right_answers(bench.play(other_tasks, COMPARED_ROLLOUTS, "template"))
    other_share = float(np.mean(other_answers)) if other_answers else 0.0
    yield f", {other_share:.0%} {other_way} it"
    if is_clearly_more(other_answers, own_share):
        is_lost = own_share == 0 and len(own_answers) >= MIN_NOT_UNDERSTOOD
        summary = (
            f"{own_way.capitalize()} its chat template the model is right in {own_share:.0%},"
            f" {other_way} in {other_share:.0%}."
        )
        text = (
            f"{len(own_answers)} and {len(other_answers)} rollouts of the same {len(tasks)} tasks"
        )
        sections = ("tasks", "eval") if is_set_by_tasks else ("model",)
        changes = {f"{section}.chat": not is_chat for section in sections}
        yield bench.finding(
            "tokens.template",
            CRITICAL if is_lost else WARNING,
            summary,
            text,
            other_share - own_share,
            basis=SIGNAL,
            fix=Fix("Ask as the model was taught.", {"uptrend": changes}),
        )


def _right_answers(rollouts: Iterable[Rollout]) -> list[bool]:
    """Return True for each right rollout, of those that were scored."""
    return [rollout.reward.correct for rollout in rollouts if rollout.reward]


# Size of a group with which smaller ones are compared.
LARGE_GROUP = 16
# Size below which a group shows too little of how often its task is solved, and the size played
# instead.
MIN_TELLING_SIZE = 4
TELLING_SIZE = 8


@probe("group-size", finds=["sampling.few-generations"], need=NEEDS_SCORES, by_source=True)
def group_size(bench: Bench) -> Answer:
    """Predict dead groups at this size and at 16."""
    size = bench.config.sampling.size
    require(size < LARGE_GROUP, f"groups of {size} are large enough to say nothing")
    played = bench.played
    if size < MIN_TELLING_SIZE:
        played = bench.play(bench.drawn[:COMPARED_TASKS], TELLING_SIZE, "larger")
    groups = pass_rates(played)
    own = predict_dead(groups, size)
    large = predict_dead(groups, LARGE_GROUP)
    yield f"predicted dead groups: {own:.0%} of groups of {size}, "
    yield f"{large:.0%} of groups of {LARGE_GROUP}"
    if own >= MIN_DEAD_SHARE and large <= own / 2:
        summary = (
            f"Groups of {size} are too small: {own:.0%} of them will be all right or all wrong."
        )
        text = (
            f"{large:.0%} would be in groups of {LARGE_GROUP}, at the same pass rate of"
            f" {groups.pass_rate:.0%}"
        )
        yield bench.finding("sampling.few-generations", WARNING, summary, text, own, basis=SIGNAL)


# Rollouts, and share of wrong ones, with the right answer in another form, above which the parser
# loses them.
MIN_LOST = 3
MIN_LOST_SHARE = 0.02
# Characters of a rollout's end that a finding quotes.
QUOTED_CHARACTERS = 80


@probe("parser", finds=["reward.strict-parser"], cheap=False, by_source=True)
def parser(bench: Bench) -> Answer:
    """Read leniently what was counted wrong: a strict parser loses right answers."""
    wrong = [r for r in bench.rollouts if r.reward is not None and not r.reward.correct]
    require(wrong, "no rollout was counted wrong")
    lost = []
    for rollout in wrong:
        is_right = says_leniently(rollout.response, rollout.answer)
        if is_right and not _earns_as_gold(bench, rollout):
            lost.append(rollout)
    share = len(lost) / len(wrong)
    yield f"a lenient reader accepts {len(lost)} of {len(wrong)} rollouts that were counted wrong"
    if len(lost) >= MIN_LOST and share > MIN_LOST_SHARE:
        summary = (
            f"The parser rejects right answers: {share:.0%} of wrong rollouts hold the answer in"
            " another form."
        )
        by_response = {rollout.response: rollout for rollout in lost}
        evidence = []
        for response, rollout in list(by_response.items())[:MAX_EXAMPLES]:
            text = f"{response[-QUOTED_CHARACTERS:]!r} for {rollout.answer!r}"
            evidence.append(make_evidence(text, share, rollout))
        yield bench.finding("reward.strict-parser", WARNING, summary, evidence, basis=SIGNAL)


def _earns_as_gold(bench: Bench, rollout: Rollout) -> bool:
    """Return True if a rollout earns what gold does; without bounds nothing else is right."""
    reward = rollout.reward
    if reward is None or not np.isnan(reward.high) or rollout.task not in bench.tasks:
        return False
    task, taskset = bench.tasks[rollout.task]
    for play in play_scripts(taskset, task, known_gold(taskset, task)):
        if play.reward and reward.total >= play.reward.total - REWARD_TOLERANCE:
            return True
    return False


# Tasks whose gold answers are compared with a model's answers; tasks that are compared with their
# prompts alone.
ANSWERED_TASKS = 48
CHECKED_TASKS = 500
# Groups that must be played, and share of them in which the model must agree on another answer than
# gold.
MIN_VOTING_GROUPS = 8
MIN_OUTVOTED_GROUPS = 0.2
# Characters that a finding quotes of an answer.
QUOTED_ANSWER_CHARACTERS = 40


@probe("wrong-gold", finds=["data.wrong-gold"], cheap=False, by_source=True)
def wrong_gold(bench: Bench) -> Answer:
    """Report questions with two golds, golds that do not fit, and golds that the model outvotes."""
    for judge in (_contradicting_golds, _unfit_golds, _outvoted_golds):
        parts = list(judge(bench))
        yield from parts
        if parts:
            return


def _training_tasks(bench: Bench) -> list[Task]:
    return [task for stage in bench.pool.stages for task in stage.tasks]


def _contradicting_golds(bench: Bench) -> Answer:
    """Report questions that occur with more than one gold answer."""
    golds: dict[tuple[str, str], dict[str, str]] = {}  # by question: spellings by bare answer
    for task in _training_tasks(bench):
        # The same words about other documents may differ; a row holds the answer itself.
        about = {key: value for key, value in task.data.items() if key != "row"}
        key = (question(task), json.dumps(about, sort_keys=True))
        golds.setdefault(key, {}).setdefault(bare_answer(task.answer), task.answer)
    contradicted = {key: answers for key, answers in golds.items() if len(answers) > 1}
    if not contradicted:
        return
    share = len(contradicted) / len(golds)
    summary = (
        f"{len(contradicted)} of {len(golds)} questions have more than one gold answer: at least"
        " one is wrong."
    )
    yield summary
    (words, _), answers = next(iter(contradicted.items()))
    text = f"{words[:QUOTED_CHARACTERS]!r} has the golds {', '.join(sorted(answers.values()))}"
    severity = CRITICAL if share >= MIN_CONTRADICTED_SHARE else WARNING
    yield bench.finding("data.wrong-gold", severity, summary, text, share)


def _unfit_golds(bench: Bench) -> Answer:
    """Report golds that contradict their prompts, or belong to other prompts."""
    answers: dict[str, tuple[str, str]] = {}  # by question: gold, and the model's response
    for task in _training_tasks(bench)[:CHECKED_TASKS]:
        answers[question(task)] = (task.answer, "")
    stage = bench.stage
    tasks = [(task, stage.taskset) for task in stage.tasks[:ANSWERED_TASKS]]
    for rollout in bench.play(tasks, 1, "golds"):
        if rollout.task in bench.tasks:
            task, _ = bench.tasks[rollout.task]
            answers[question(task)] = (rollout.answer, rollout.response)
    fault = judge_golds(answers)
    if fault is not None:
        yield fault.summary
        yield bench.finding(
            "data.wrong-gold", fault.severity, fault.summary, fault.evidence, basis=fault.basis
        )


def _outvoted_golds(bench: Bench) -> Answer:
    """Report golds that a model which is mostly right agrees against."""
    groups = list(by_group(r for r in bench.rollouts if r.reward).values())
    right = _right_answers(bench.rollouts)
    right_share = sum(right) / max(1, len(right))
    is_good = len(groups) >= MIN_VOTING_GROUPS and right_share >= MIN_RIGHT_SHARE
    reason = f"the model is right in {right_share:.0%}: what it agrees on says nothing about gold"
    require(is_good, reason)
    outvoted = []
    for group in groups:
        responses = [rollout.response for rollout in group]
        if is_outvoted(responses, group[0].answer) and not any(_right_answers(group)):
            outvoted.append(group[0])
    share = len(outvoted) / len(groups)
    yield f"{len(outvoted)} of {len(groups)} groups agree on another answer than gold"
    if share >= MIN_OUTVOTED_GROUPS:
        first = outvoted[0]
        summary = (
            f"In {len(outvoted)} of {len(groups)} groups nearly all rollouts give one answer that"
            " is not gold."
        )
        text = f"{first.response[-QUOTED_ANSWER_CHARACTERS:]!r} against {first.answer!r}"
        yield bench.finding("data.wrong-gold", NOTE, summary, text, share, first, SUSPICION)


# Share of rollouts that are cut, above which the same ones are played with twice the budget; and
# from which nearly all are.
MIN_CUT_BY_LENGTH = 0.15
NEARLY_ALL = 0.95
# Share of rollouts that stop below which a model never does.
MIN_STOPPING_SHARE = 0.02
# Share of rollouts that go on after the end token from which training must not start.
CRITICAL_GOING_ON_SHARE = 0.5
# Gain of twice the budget that matters: standard errors, and part of the reward's range.
MIN_BUDGET_GAIN_ERRORS = 2
MIN_BUDGET_GAIN = 0.05


@probe(
    "endings",
    finds=["context.completion-truncated", "sampling.no-stop"],
    cheap=False,
    by_source=True,
)
def endings(bench: Bench) -> Answer:
    """Count endings; where many are cut, play the same rollouts on with twice the budget."""
    rollouts = bench.rollouts
    end_token = bench.policy.tokenizer.eos_token_id
    stopped = set[int]()  # numbers of rollouts with a stop token
    going_on = list[Rollout]()  # those with a sampled end token, and a sampled token after it
    for number, rollout in enumerate(rollouts):
        for sequence in rollout.sequences:
            ids = sequence.ids
            is_sampled = sequence.sampled
            if np.isin(ids[is_sampled], bench.policy.stop_ids).any():
                stopped.add(number)
            if (is_sampled[:-1] & is_sampled[1:] & (ids[:-1] == end_token)).any():
                going_on.append(rollout)
    cut_share = _cut_share(rollouts)
    yield f"{cut_share:.0%} of {len(rollouts)} rollouts are cut by length, "
    yield f"{len(stopped)} say a stop token"

    if going_on:
        share = len(going_on) / len(rollouts)
        severity = CRITICAL if share > CRITICAL_GOING_ON_SHARE else WARNING
        summary = (
            f"{len(going_on)} of {len(rollouts)} rollouts go on after the tokenizer's end token: it"
            " stops nothing."
        )
        text = f"token {end_token} is sampled, and more after it"
        yield bench.finding("sampling.no-stop", severity, summary, text, share, going_on[0])
    elif cut_share > MIN_CUT_BY_LENGTH:
        yield from _judge_budget(bench, cut_share, len(stopped))


def _cut_share(rollouts: Sequence[Rollout]) -> float:
    return sum(rollout.is_truncated for rollout in rollouts) / len(rollouts)


def _judge_budget(bench: Bench, cut_share: float, n_stopped: int) -> Answer:
    """Play the same rollouts with twice the budget; report a budget that costs reward, and a model
    that never stops.
    """
    rollouts = bench.rollouts
    sampling = bench.config.sampling
    tasks = bench.drawn[:COMPARED_TASKS]
    plain = bench.play(tasks, COMPARED_ROLLOUTS, "budget")
    longer = bench.play(
        tasks,
        COMPARED_ROLLOUTS,
        "budget",
        max_tokens=2 * sampling.max_tokens,
        context=2 * sampling.context,
    )
    gains = list[float]()
    for before, after in zip(plain, longer, strict=True):
        if before.reward and after.reward:
            gains.append(after.reward.total - before.reward.total)
    gain = float(np.mean(gains or [0.0]))
    noise = _standard_error(np.array(gains or [0.0]))
    yield f"; twice the budget changes the reward by {gain:+.2f} ± {noise:.2f}"

    nearly_all_cut = cut_share >= NEARLY_ALL
    hardly_stops = nearly_all_cut and n_stopped < MIN_STOPPING_SHARE * len(rollouts)
    # A model that stops within a larger budget lacked budget.
    stopping_share = 1 - _cut_share(longer)
    never_stops = stopping_share < MIN_STOPPING_SHARE and (n_stopped == 0 or hardly_stops)
    ranges = [rollout.reward.high - rollout.reward.low for rollout in rollouts if rollout.reward]
    reward_range = np.nanmax([1e-9, *ranges])  # NaN if the bounds are not stated
    text = f"{cut_share:.0%} are cut; {gain:+.3f} ± {noise:.3f} with twice the tokens"
    if gain > MIN_BUDGET_GAIN_ERRORS * noise and gain > MIN_BUDGET_GAIN * reward_range:
        id = "context.completion-truncated"
        subject = "The budget cuts answers off"
        if never_stops:
            subject = "The model never stops, and the budget cuts it off"
            if nearly_all_cut:
                id = "sampling.no-stop"
        summary = (
            f"{subject}: with twice sampling.max_tokens and sampling.context the same rollouts earn"
            f" {gain:.2f} more."
        )
        yield bench.finding(id, WARNING, summary, text, cut_share)
    elif nearly_all_cut and never_stops:
        summary = (
            "The model hardly ever stops by itself; the answer comes first, so that costs time and"
            " no reward."
        )
        yield bench.finding("sampling.no-stop", NOTE, summary, text, cut_share)


# Held-out tasks that are played by both tasksets, and rollouts that both score.
EVALUATED_TASKS = 8
EVALUATED_ROLLOUTS = 64
# Share of rollouts that the two score otherwise, above which accuracies can't be compared at all.
CRITICAL_UNLIKE_SHARE = 0.1


@probe("evaluation", finds=["eval.unlike-training"], cheap=False, by_source=True)
def evaluation(bench: Bench) -> Answer:
    """Play 8 held-out tasks greedily by both tasksets, and score up to 64 rollouts by both."""
    train_taskset = bench.stage.taskset
    eval_taskset = bench.heldout.taskset
    is_alike = type(train_taskset) is type(eval_taskset)
    names = f"[eval] is another taskset ({eval_taskset.name}) than [tasks] ({train_taskset.name})"
    require(is_alike, names)

    # Both tasksets ask the same tasks.
    tasks = bench.heldout.tasks[:EVALUATED_TASKS]
    by_eval = bench.play([(task, eval_taskset) for task in tasks], 1, "eval", temperature=0.0)
    by_train = bench.play([(task, train_taskset) for task in tasks], 1, "eval", temperature=0.0)
    n_other_prompts = 0
    for eval_rollout, train_rollout in zip(by_eval, by_train, strict=True):
        n_other_prompts += _prompt_ids(eval_rollout) != _prompt_ids(train_rollout)

    # Both tasksets score the same rollouts.
    known = {task.id: task for task in bench.heldout.tasks}
    known |= {id: task for id, (task, _) in bench.tasks.items()}
    rollouts = []
    for rollout in [*by_eval, *bench.rollouts][:EVALUATED_ROLLOUTS]:
        if rollout.reward is not None and rollout.task in known:
            rollouts.append(rollout)
    scored_tasks = [known[rollout.task] for rollout in rollouts]
    eval_plays = bench.replay(rollouts, [(task, eval_taskset) for task in scored_tasks])
    train_plays = bench.replay(rollouts, [(task, train_taskset) for task in scored_tasks])
    unlike = []
    for rollout, eval_play, train_play in zip(rollouts, eval_plays, train_plays, strict=True):
        is_right_by_eval = eval_play.reward is not None and eval_play.reward.correct
        is_right_by_train = train_play.reward is not None and train_play.reward.correct
        if is_right_by_eval != is_right_by_train:
            unlike.append(rollout)

    differing = f"{n_other_prompts} of {len(tasks)} prompts differ"
    yield f"{len(unlike)} of {len(rollouts)} rollouts are right by one path and "
    yield "wrong by the other; "
    yield differing
    if unlike:
        share = len(unlike) / len(rollouts)
        severity = CRITICAL if share > CRITICAL_UNLIKE_SHARE else WARNING
        summary = (
            f"Evaluation does not score as training does: {len(unlike)} of {len(rollouts)} rollouts"
            " differ."
        )
        text = f"{share:.0%} of the same rollouts"
        yield bench.finding("eval.unlike-training", severity, summary, text, share, unlike[0])
    elif n_other_prompts:
        summary = (
            "Held-out tasks are not asked as training tasks are: [eval] and [tasks] render"
            " different prompts."
        )
        yield bench.finding("eval.unlike-training", WARNING, summary, differing, n_other_prompts)


def _prompt_ids(rollout: Rollout) -> list[int]:
    """Return the prompt's tokens of a rollout's first sequence."""
    sequence = rollout.sequences[0]
    ids: list[int] = sequence.ids[sequence.roles == int(Role.PROMPT)].tolist()
    return ids


# The rise that a run should be able to show, as a part of the reward's range; the chance to see it
# (the usual power); and the level of its one-sided test.
SMALLEST_RISE = 0.1
MIN_POWER = 0.8
TEST_LEVEL = 0.05
# Groups without which the noise of rewards is not known.
MIN_NOISE_GROUPS = 4


@probe("power", finds=["run.too-short"], cheap=False)
def power(bench: Bench) -> Answer:
    """Compute the power of the planned steps to show a straight rise by a tenth of the range."""
    groups = pass_rates(bench.played)
    steps = bench.config.learning.steps
    means = _group_means(groups)
    require(len(means) >= MIN_NOISE_GROUPS, "too few groups were scored to know the noise")
    ranges = np.subtract(groups.highs, groups.lows)
    rise = SMALLEST_RISE * float(ranges.max())
    noise = float(np.std(means, ddof=1)) / bench.config.sampling.groups**0.5
    reached = power_of_rise(rise, noise, steps, TEST_LEVEL)
    yield f"{steps} steps show a rise of {rise:.2g} in reward with power {reached:.0%} "
    yield f"(a step's noise: {noise:.2g})"
    if reached < MIN_POWER:
        summary = (
            f"{steps} steps are too few to show a rise of {SMALLEST_RISE:.0%} of the range: power"
            f" {reached:.0%}."
        )
        n_points = points_for(rise, noise, MIN_POWER, TEST_LEVEL)
        text = f"{n_points} steps of this size would have {MIN_POWER:.0%}"
        yield bench.finding("run.too-short", NOTE, summary, text, reached, basis=SIGNAL)
