"""Probes of what the model's rollouts show: dead groups, temperature, parsing, endings, evaluation,
and power.
"""

import copy
import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from uptrend.doctor.check import CRITICAL, NOTE, SIGNAL, SUSPICION, WARNING
from uptrend.doctor.checks.golds import (
    MIN_CONTRADICTED_SHARE,
    MIN_RIGHT_SHARE,
    is_outvoted,
    judge_golds,
)
from uptrend.doctor.checks.sampling import HOT
from uptrend.doctor.probes.bench import Bench, by_group, make_evidence
from uptrend.doctor.probes.data import question
from uptrend.doctor.probes.probe import NEEDS_SCORES, Answer, probe, require
from uptrend.records import Ending, Fix, Role, Rollout
from uptrend.stats.intervals import all_right, wilson
from uptrend.stats.trend import points_for, power_of_rise
from uptrend.tasks.answers import bare, says_somehow
from uptrend.tasks.proof import play_scripts
from uptrend.tasks.taskset import known_gold


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
        return [len(set(r)) < 2 for r in self.rewards]

    @property
    def dead_share(self) -> float:
        """Share of dead groups."""
        return sum(self.dead) / max(1, len(self.rewards))

    @property
    def tops(self) -> list[int]:
        """Number of rollouts at the top."""
        return [
            sum(x >= high - 1e-6 for x in r)
            for r, high in zip(self.rewards, self.highs, strict=True)
        ]

    @property
    def pass_rate(self) -> float:
        """Mean share of rollouts at the top."""
        return float(np.mean([k / len(r) for k, r in zip(self.tops, self.rewards, strict=True)]))


def pass_rates(rollouts: Iterable[Rollout]) -> PassRates:
    """Collect groups by their id."""
    groups = by_group(r for r in rollouts if r.reward).values()
    rewards = [[r.reward for r in group if r.reward] for group in groups]
    said = [
        len({b"".join(s.ids[s.sampled].tobytes() for s in r.sequences) for r in g}) / len(g)
        for g in groups
    ]
    totals = tuple(tuple(reward.total for reward in group) for group in rewards)
    # Where nobody said what a reward can be, the least and the most that was earned are its bounds.
    least, most = (f((x for group in totals for x in group), default=0.0) for f in (min, max))
    lows = tuple(least if np.isnan(group[0].low) else group[0].low for group in rewards)
    highs = tuple(most if np.isnan(group[0].high) else group[0].high for group in rewards)
    return PassRates(totals, lows, highs, float(np.mean(said)) if said else 0.0)


def predict_dead(groups: PassRates, size: int) -> float:
    """Predict the share of dead groups at another size."""
    if len({x for r in groups.rewards for x in r}) > 2:
        # Unbiased where the size is at most what was played; half a rollout of something else is
        # taken to be about.
        chances = [
            sum(all_right(k, len(r) + 0.5 - k, size) for k in Counter(r).values())
            for r in groups.rewards
        ]
        return float(np.mean(chances))
    # A group's chance p of earning the most is seen through its n rollouts, k of them at the top: p
    # ~ Beta(a + k, b + n − k), with a and b fitted to all groups by moments. A group of G is then
    # all top or all not with chance E[pᴳ] + E[(1−p)ᴳ].
    tops = np.array(groups.tops)
    counts = np.array([len(r) for r in groups.rewards])
    shares = tops / counts
    mean = float(np.clip(shares.mean(), 0.02, 0.98))
    spread = max(float(shares.var()) - mean * (1 - mean) / counts.mean(), 1e-3)
    total = float(np.clip(mean * (1 - mean) / spread - 1, 0.2, 10))
    a = mean * total + tops
    b = (1 - mean) * total + counts - tops
    return float(
        np.mean([all_right(x, y, size) + all_right(y, x, size) for x, y in zip(a, b, strict=True)])
    )


# Share of groups that the whole interval of dead ones must lie above, and of those predicted.
MIN_DEAD_SHARE = 0.5


@probe(
    "dead-groups",
    finds=["advantage.dead-groups-low", "advantage.dead-groups-high"],
    need=NEEDS_SCORES,
)
def dead_groups(bench: Bench) -> Answer:
    """Count groups that are all wrong or all right, and predict them at other sizes."""
    groups = pass_rates(bench.played)
    size = bench.config.sampling.size
    sides = zip(groups.dead, groups.rewards, groups.lows, groups.highs, strict=True)
    dead = [(rewards[0], least, most) for is_dead, rewards, least, most in sides if is_dead]
    low = sum(x <= least + 1e-6 for x, least, _ in dead)
    high = sum(x >= most - 1e-6 for x, _, most in dead)
    sizes = ", ".join(
        f"{predict_dead(groups, g):.0%} at {g}" for g in dict.fromkeys((size, 16, 32))
    )
    n = len(groups.rewards)
    rate = groups.pass_rate
    yield (
        f"pass rate {rate:.0%}; {len(dead)} of {n} groups dead ({low} low, {high} high); predicted"
        f" by size: {sizes}"
    )
    text = f"pass rate {rate:.1%}; dead groups predicted: {sizes}"
    if wilson(low, n)[0] > MIN_DEAD_SHARE:
        summary = (
            f"{low} of {n} groups are all wrong and teach nothing: the model needs easier tasks or"
            " larger groups."
        )
        yield bench.finding(
            "advantage.dead-groups-low", WARNING, summary, text, low / n, basis=SIGNAL
        )
    elif wilson(high, n)[0] > MIN_DEAD_SHARE:
        summary = (
            f"{high} of {n} groups are all right and teach nothing: the model needs harder tasks."
        )
        yield bench.finding(
            "advantage.dead-groups-high", WARNING, summary, text, high / n, basis=SIGNAL
        )


NONE = 64  # rollouts of which one is right where a model can do 5% of its tasks (95%)


@probe(
    "none-right",
    finds=["advantage.dead-groups-low", "reward.constant", "reward.never-computed"],
    need=NEEDS_SCORES,
)
def none_right(bench: Bench) -> Answer:
    """Count right rollouts; where there are none, play up to 64, and look at what still varies."""
    require(bench.config.sampling.max_turns == 1, "rollouts have several turns: see paid")
    golds = [r.reward.total for r in bench.demonstrations if r.reward]
    # Where nobody said what a reward can be, earning as much as a gold answer does is right too.
    enough = float(np.median(golds)) if golds else np.inf
    is_known = bool(golds) or any(r.reward and not np.isnan(r.reward.high) for r in bench.played)

    def count(rollouts: list[Rollout]) -> tuple[int, list[float]]:
        rewards = [r.reward for r in rollouts if r.reward]
        return sum(x.correct or x.is_best or x.total >= enough for x in rewards), [
            x.total for x in rewards
        ]

    played = bench.played
    right, totals = count(played)
    if (not right or len(set(totals)) == 1) and len(played) < NONE:
        played = [
            *played,
            *bench.play(
                [(task, bench.stage.taskset) for task in bench.stage.tasks[:16]], 4, "more"
            ),
        ]
        right, totals = count(played)
    low = min(totals)
    high = max(totals)
    said = len({r.response for r in played})
    yield f"{right} of {len(totals)} rollouts are right; rewards from {low:.3g} to {high:.3g}"
    # At a bound that is known, it is a matter of how hard the tasks are.
    bounds = {bound for r in played if r.reward for bound in (r.reward.low, r.reward.high)}
    is_constant = low == high and low not in bounds and enough in (low, np.inf)
    if (right and not is_constant) or len(totals) < NONE or said < 2:
        return
    text = (
        f"{len(totals)} rollouts of {len({r.task for r in played})} tasks, {said} different answers"
    )
    if is_constant:
        summary = f"Every rollout earns {low:g}, whatever it says: the reward is constant."
        yield bench.finding(
            "reward.constant", CRITICAL if golds else WARNING, summary, text, low, basis=SIGNAL
        )
    elif low == high:
        summary = (
            f"{len(totals)} rollouts, none right: all earn {low:g}, and nothing can be learned from"
            " them."
        )
        yield bench.finding("advantage.dead-groups-low", WARNING, summary, text, 0.0, basis=SIGNAL)
    elif is_known:
        text += f"; rewards from {low:.3g} to {high:.3g}" + f", gold's is {enough:.3g}" * bool(
            golds
        )
        cut = sum(r.ended is Ending.TURN_LIMIT for r in played)
        if cut > 0.5 * len(played):
            summary = (
                f"{len(totals)} rollouts, none right: the task would go on after the last turn that"
                " is allowed."
            )
            yield bench.finding(
                "reward.never-computed",
                WARNING,
                summary,
                text,
                0.0,
                basis=SIGNAL,
                fix=bench.more_turns,
            )
        else:
            # A task of one turn waits for no event. A model that is weak at first may still learn
            # from the rest.
            summary = (
                f"{len(totals)} rollouts, none right yet: so far only the rest of the reward"
                " varies."
            )
            yield bench.finding("advantage.dead-groups-low", NOTE, summary, text, 0.0, basis=SIGNAL)


# Different texts / rollouts of a group up to which these are alike, where so many groups are dead;
# and by how much fewer must be dead at temperature 1.
MAX_DISTINCT_SHARE = 0.3
MIN_ALIKE_DEAD_SHARE = 0.4
MIN_DEAD_FALL = 0.25
OPEN = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0}  # the model's own distribution


@probe(
    "temperature",
    finds=["sampling.temperature-low", "sampling.entropy-explosion"],
    need=NEEDS_SCORES,
)
def temperature(bench: Bench) -> Answer:
    """Compare what a group's rollouts say; where it hardly varies or is noise, sample 8 tasks at
    temperature 1.
    """
    s = bench.config.sampling
    groups = pass_rates(bench.played)
    set_to = {key: getattr(s, key) for key, plain in OPEN.items() if getattr(s, key) != plain}
    named = " and ".join(f"sampling.{key} = {value:g}" for key, value in set_to.items())
    yield f"{groups.distinct:.0%} of a group's rollouts differ at temperature {s.temperature:g}"
    is_alike = groups.distinct <= MAX_DISTINCT_SHARE
    is_alike &= groups.dead_share >= MIN_ALIKE_DEAD_SHARE
    is_hot = s.temperature > HOT
    if not set_to or not (is_alike or is_hot):
        return
    tasks = bench.drawn[:8]
    warm = pass_rates(bench.play(tasks, s.size, "warm", **OPEN))
    cold = pass_rates(r for r in bench.rollouts if r.task in {task.id for task, _ in tasks})
    before = cold.dead_share
    after = warm.dead_share
    fix = Fix(
        "Sample from the model's own distribution.",
        {"uptrend": {f"sampling.{k}": OPEN[k] for k in set_to}},
    )
    yield f"; at 1 {warm.distinct:.0%} do, and dead groups go from {before:.0%} to {after:.0%}"
    means = [[float(np.mean(r)) for r in side.rewards] for side in (cold, warm)]
    gains = np.subtract(means[1], means[0]) if len(means[0]) == len(means[1]) > 3 else np.zeros(1)
    if is_hot and gains.mean() > 2 * gains.std() / max(1, len(gains) - 1) ** 0.5:
        summary = f"{named} turns answers into noise: without, they earn {gains.mean():.2g} more."
        text = (
            f"mean reward {np.mean(means[0]):.3g} as it is, {np.mean(means[1]):.3g} from the"
            " model's own distribution"
        )
        yield bench.finding(
            "sampling.entropy-explosion", WARNING, summary, text, gains.mean(), fix=fix
        )
    elif is_alike and after <= before - MIN_DEAD_FALL:
        summary = (
            f"{named} makes a group's rollouts the same: at temperature 1 fewer groups are dead."
        )
        text = f"dead groups {before:.0%} as it is, {after:.0%} at 1 on the same {len(tasks)} tasks"
        # All groups dead and every rollout a copy: such a run can't learn at all.
        is_still = before == 1 and len(cold.rewards) > 3 and cold.distinct * s.size <= 1
        severity = CRITICAL if is_still else WARNING
        yield bench.finding(
            "sampling.temperature-low", severity, summary, text, groups.dead_share, fix=fix
        )


# Tasks, and rollouts of each, that are asked both with the chat template and without.
RENDERED_TASKS = 8
RENDERED_ROLLOUTS = 4
# Smaller gains than this do not outweigh that a chat template is how a model was taught.
MIN_RENDERING_GAIN = 0.2
# Share of right answers from which a model understands how it is asked.
UNDERSTOOD_SHARE = 0.5


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
    taskset = bench.stage.taskset
    tasks = [(task, taskset) for task in bench.stage.tasks[:RENDERED_TASKS]]
    answers: dict[bool, list[bool]] = {}
    for chat in (True, False):
        # Seed 0: all seeds and arms of an experiment have to come to the same answer.
        config = replace(bench.config, model=replace(bench.config.model, chat=chat), seed=0)
        rollouts = bench.play_under(config, tasks, RENDERED_ROLLOUTS, "renderings")
        # One that could not be scored is no right answer.
        answers[chat] = [r.reward is not None and r.reward.correct for r in rollouts]
    as_chat = float(np.mean(answers[True]))
    as_text = float(np.mean(answers[False]))
    return Renderings(
        as_chat, as_text, len(answers[True]), not is_clearly_more(answers[False], as_chat)
    )


def is_clearly_more(answers: Sequence[bool], share: float) -> bool:
    """Return True where right answers are more than a share by an amount that matters, and not by
    chance.
    """
    if not answers:
        return False
    low, _ = wilson(sum(answers), len(answers))
    return float(np.mean(answers)) >= share + MIN_RENDERING_GAIN and low > share


@probe("template", finds=["tokens.template"], need=NEEDS_SCORES)
def template(bench: Bench) -> Answer:
    """Where most answers are wrong, ask 8 of the tasks with the chat template if it is off, without
    if it is on.
    """
    tasks = bench.drawn[:8]
    kind = bench.stage.taskset
    require(
        bench.policy.tokenizer.chat_template and not bench.tools,
        "no chat template, or tools that need one",
    )
    require(not bench.has_compared_chat, "both ways were compared, and the better one is asked")
    asked = [r for r in bench.rollouts if r.reward and r.task in {task.id for task, _ in tasks}]
    is_set_by_tasks = kind.chat is not None
    is_chat = (kind.chat if is_set_by_tasks else bench.config.model.chat) is not False
    now = float(np.mean([r.reward.correct for r in asked if r.reward])) if asked else 0.0
    yield f"{now:.0%} of answers are right {'with' if is_chat else 'without'} the chat template"
    if now >= UNDERSTOOD_SHARE or not asked:
        return
    other = copy.copy(kind)
    try:
        other.chat = not is_chat  # type: ignore[misc]
    except AttributeError:
        require(False, "the taskset renders its own prompts")
    answers = [
        r.reward.correct
        for r in bench.play([(t, other) for t, _ in tasks], 4, "template")
        if r.reward
    ]
    then = float(np.mean(answers)) if answers else 0.0
    yield f", {then:.0%} {'without' if is_chat else 'with'} it"
    if is_clearly_more(answers, now):
        on_off = ("with", "without") if is_chat else ("without", "with")
        summary = (
            f"{on_off[0].capitalize()} its chat template the model is right in {now:.0%},"
            f" {on_off[1]} in {then:.0%}."
        )
        text = f"{len(asked)} and {len(answers)} rollouts of the same {len(tasks)} tasks"
        sections = ("tasks", "eval") if is_set_by_tasks else ("model",)
        fix = Fix(
            "Ask as the model was taught.",
            {"uptrend": {f"{at}.chat": not is_chat for at in sections}},
        )
        severity = CRITICAL if now == 0 and len(asked) >= 16 else WARNING
        yield bench.finding(
            "tokens.template", severity, summary, text, then - now, basis=SIGNAL, fix=fix
        )


# Size of a group with which smaller ones are compared.
LARGE_GROUP = 16


@probe("group-size", finds=["sampling.few-generations"], need=NEEDS_SCORES)
def group_size(bench: Bench) -> Answer:
    """Predict dead groups at this size and at 16."""
    size = bench.config.sampling.size
    played = bench.played
    require(size < LARGE_GROUP, f"groups of {size} are large enough to say nothing")
    if size < 4:  # too few to know how often a task is solved
        played = bench.play(bench.drawn[:8], 8, "larger")
    groups = pass_rates(played)
    now = predict_dead(groups, size)
    then = predict_dead(groups, LARGE_GROUP)
    yield f"predicted dead groups: {now:.0%} of groups of {size}, "
    yield f"{then:.0%} of groups of {LARGE_GROUP}"
    if now >= MIN_DEAD_SHARE and then <= now / 2:
        summary = (
            f"Groups of {size} are too small: {now:.0%} of them will be all right or all wrong."
        )
        text = f"{then:.0%} would be in groups of {LARGE_GROUP}"
        text += f", at the same pass rate of {groups.pass_rate:.0%}"
        yield bench.finding("sampling.few-generations", WARNING, summary, text, now, basis=SIGNAL)


# Share of wrong rollouts with the right answer in another form above which the parser loses them.
MIN_LOST_SHARE = 0.02


@probe("parser", finds=["reward.strict-parser"], cheap=False)
def parser(bench: Bench) -> Answer:
    """Read leniently what was counted wrong: a strict parser loses right answers."""
    wrong = [r for r in bench.rollouts if r.reward is not None and not r.reward.correct]
    require(wrong, "no rollout was counted wrong")
    lost = [r for r in wrong if says_somehow(r.response, r.answer) and not _earns_as_gold(bench, r)]
    share = len(lost) / len(wrong)
    yield f"a lenient reader accepts {len(lost)} of {len(wrong)} rollouts that were counted wrong"
    if len(lost) > 2 and share > MIN_LOST_SHARE:
        summary = (
            f"The parser rejects right answers: {share:.0%} of wrong rollouts hold the answer in"
            " another form."
        )
        different = list({r.response: r for r in lost}.items())[:3]
        evidence = [
            make_evidence(f"{words[-80:]!r} for {r.answer!r}", share, r) for words, r in different
        ]
        yield bench.finding("reward.strict-parser", WARNING, summary, evidence, basis=SIGNAL)


def _earns_as_gold(bench: Bench, rollout: Rollout) -> bool:
    """Tell whether a rollout earns what gold does: without bounds nobody said what counts as
    right.
    """
    if (
        rollout.reward is None
        or not np.isnan(rollout.reward.high)
        or rollout.task not in bench.tasks
    ):
        return False
    task, taskset = bench.tasks[rollout.task]
    golds = [
        play.reward.total
        for play in play_scripts(taskset, task, known_gold(taskset, task))
        if play.reward
    ]
    return any(rollout.reward.total >= total - 1e-6 for total in golds)


# Tasks whose gold answers are compared with a model's answers; tasks that are compared with their
# prompts alone.
ANSWERED_TASKS = 48
CHECKED_TASKS = 500
# Groups that must be played, and share of them in which the model must agree on another answer than
# gold.
MIN_VOTING_GROUPS = 8
MIN_OUTVOTED_GROUPS = 0.2


@probe("wrong-gold", finds=["data.wrong-gold"], cheap=False)
def wrong_gold(bench: Bench) -> Answer:
    """Report questions with two golds, and groups agreed on one wrong answer where the model is
    mostly right.
    """
    for judge in (_contradicting_golds, _unfit_golds, _outvoted_golds):
        parts = list(judge(bench))
        yield from parts
        if parts:
            return


def _contradicting_golds(bench: Bench) -> Answer:
    golds: dict[tuple[str, str], dict[str, str]] = {}
    for task in (task for stage in bench.pool.stages for task in stage.tasks):
        # The same words about other documents may differ; a row holds the answer itself.
        about = json.dumps(
            {key: value for key, value in task.data.items() if key != "row"}, sort_keys=True
        )
        answers = golds.setdefault((question(task), about), {})
        answers.setdefault(bare(task.answer), task.answer)
    contradicted = [(asked, answers) for (asked, _), answers in golds.items() if len(answers) > 1]
    if not contradicted:
        return
    share = len(contradicted) / len(golds)
    asked, answers = contradicted[0]
    summary = (
        f"{len(contradicted)} of {len(golds)} questions have more than one gold answer: at least"
        " one is wrong."
    )
    text = f"{asked[:80]!r} has the golds {', '.join(sorted(answers.values()))}"
    yield summary
    severity = CRITICAL if share >= MIN_CONTRADICTED_SHARE else WARNING
    yield bench.finding("data.wrong-gold", severity, summary, text, share)


def _unfit_golds(bench: Bench) -> Answer:
    stage = bench.stage
    tasks = [task for stage in bench.pool.stages for task in stage.tasks]
    answers = {question(task): (task.answer, "") for task in tasks[:CHECKED_TASKS]}
    for rollout in bench.play(
        [(task, stage.taskset) for task in stage.tasks[:ANSWERED_TASKS]], 1, "golds"
    ):
        if rollout.task in bench.tasks:
            answers[question(bench.tasks[rollout.task][0])] = (rollout.answer, rollout.response)
    fault = judge_golds(answers)
    if fault is not None:
        yield fault.summary
        yield bench.finding(
            "data.wrong-gold", fault.severity, fault.summary, fault.evidence, basis=fault.basis
        )


def _outvoted_golds(bench: Bench) -> Answer:
    groups = list(by_group(r for r in bench.rollouts if r.reward).values())
    correct = [r.reward.correct for group in groups for r in group if r.reward]
    right = sum(correct) / max(1, len(correct))
    is_good = len(groups) >= MIN_VOTING_GROUPS and right >= MIN_RIGHT_SHARE
    require(
        is_good, f"the model is right in {right:.0%}: what it agrees on says nothing about gold"
    )
    outvoted = [
        group[0]
        for group in groups
        if is_outvoted([r.response for r in group], group[0].answer)
        and not any(r.reward.correct for r in group if r.reward)
    ]
    share = len(outvoted) / len(groups)
    yield f"{len(outvoted)} of {len(groups)} groups agree on another answer than gold"
    if share >= MIN_OUTVOTED_GROUPS:
        first = outvoted[0]
        summary = (
            f"In {len(outvoted)} of {len(groups)} groups nearly all rollouts give one answer that"
            " is not gold."
        )
        text = f"{first.response[-40:]!r} against {first.answer!r}"
        yield bench.finding("data.wrong-gold", NOTE, summary, text, share, first, SUSPICION)


@probe("endings", finds=["context.completion-truncated", "sampling.no-stop"], cheap=False)
def endings(bench: Bench) -> Answer:
    """Count endings; where many are cut, play the same rollouts on with twice the budget."""
    rollouts = bench.rollouts
    s = bench.config.sampling
    end = bench.policy.tokenizer.eos_token_id
    sequences = [(r, t.ids, t.sampled) for r in rollouts for t in r.sequences]
    stopped = len(
        {
            id(r)
            for r, ids, sampled in sequences
            if np.isin(ids[sampled], bench.policy.stop_ids).any()
        }
    )
    share = sum(r.is_truncated for r in rollouts) / len(rollouts)
    yield f"{share:.0%} of {len(rollouts)} rollouts are cut by length, {stopped} say a stop token"
    goes_on = [
        r for r, ids, sampled in sequences if (sampled[:-1] & sampled[1:] & (ids[:-1] == end)).any()
    ]
    if goes_on:
        summary = (
            f"{len(goes_on)} of {len(rollouts)} rollouts go on after the tokenizer's end token: it"
            " stops nothing."
        )
        text = f"token {end} is sampled, and more after it"
        part = len(goes_on) / len(rollouts)
        yield bench.finding(
            "sampling.no-stop", CRITICAL if part > 0.5 else WARNING, summary, text, part, goes_on[0]
        )
    if goes_on or share <= 0.15:
        return
    roomy = {"max_tokens": 2 * s.max_tokens, "context": 2 * s.context}
    plain, more = (bench.play(bench.drawn[:8], 4, "budget", **limits) for limits in ({}, roomy))
    pairs = [(a.reward, b.reward) for a, b in zip(plain, more, strict=True)]
    gains = [after.total - before.total for before, after in pairs if before and after] or [0.0]
    gain = float(np.mean(gains))
    noise = float(np.std(gains) / max(1, len(gains) - 1) ** 0.5)
    yield f"; twice the budget changes the reward by {gain:+.2f} ± {noise:.2f}"
    text = f"{share:.0%} are cut; {gain:+.3f} ± {noise:.3f} with twice the tokens"
    ended = 1 - sum(r.is_truncated for r in more) / len(more)
    nearly_all = share >= 0.95
    # Where more room lets it stop, room is what was missing.
    never = ended < 0.02 and (stopped == 0 or (nearly_all and stopped < 0.02 * len(rollouts)))
    span = np.nanmax([1e-9, *(r.reward.high - r.reward.low for r in rollouts if r.reward)])
    if gain > 2 * noise and gain > 0.05 * span:
        what = (
            "The model never stops, and the budget cuts it off"
            if never
            else "The budget cuts answers off"
        )
        summary = (
            f"{what}: with twice sampling.max_tokens and sampling.context the same rollouts earn"
            f" {gain:.2f} more."
        )
        cause = "sampling.no-stop" if never and nearly_all else "context.completion-truncated"
        yield bench.finding(cause, WARNING, summary, text, share)
    elif nearly_all and never:
        summary = (
            "The model hardly ever stops by itself; the answer comes first, so that costs time and"
            " no reward."
        )
        yield bench.finding("sampling.no-stop", NOTE, summary, text, share)


@probe("evaluation", finds=["eval.unlike-training"], cheap=False)
def evaluation(bench: Bench) -> Answer:
    """Play 8 held-out tasks greedily by both tasksets, and score up to 64 rollouts by both."""
    ours = bench.stage.taskset
    theirs = bench.heldout.taskset
    tasks = bench.heldout.tasks[:8]
    is_alike = type(ours) is type(theirs)
    require(is_alike, f"[eval] is another taskset ({theirs.name}) than [tasks] ({ours.name})")
    by_eval, by_train = (
        bench.play([(t, ts) for t in tasks], 1, "eval", temperature=0.0) for ts in (theirs, ours)
    )
    pairs = [(a.sequences[0], b.sequences[0]) for a, b in zip(by_eval, by_train, strict=True)]
    asked = sum(
        not np.array_equal(a.ids[a.roles == Role.PROMPT], b.ids[b.roles == Role.PROMPT])
        for a, b in pairs
    )
    known = {t.id: t for t in bench.heldout.tasks} | {
        id: task for id, (task, _) in bench.tasks.items()
    }
    rollouts = [
        r for r in [*by_eval, *bench.rollouts][:64] if r.reward is not None and r.task in known
    ]
    again = [
        bench.replay(rollouts, [(known[r.task], ts) for r in rollouts]) for ts in (theirs, ours)
    ]
    right = [[p.reward is not None and p.reward.correct for p in scored] for scored in again]
    unlike = [r for r, a, b in zip(rollouts, *right, strict=True) if a != b]
    yield (
        f"{len(unlike)} of {len(rollouts)} rollouts are right by one path and wrong by the other; "
    )
    yield f"{asked} of {len(tasks)} prompts differ"
    if unlike:
        share = len(unlike) / len(rollouts)
        summary = (
            f"Evaluation does not score as training does: {len(unlike)} of {len(rollouts)} rollouts"
            " differ."
        )
        severity = CRITICAL if share > 0.1 else WARNING
        text = f"{share:.0%} of the same rollouts"
        yield bench.finding("eval.unlike-training", severity, summary, text, share, unlike[0])
    elif asked:
        summary = (
            "Held-out tasks are not asked as training tasks are: [eval] and [tasks] render"
            " different prompts."
        )
        yield bench.finding(
            "eval.unlike-training",
            WARNING,
            summary,
            f"{asked} of {len(tasks)} prompts differ",
            asked,
        )


@probe("power", finds=["run.too-short"], cheap=False)
def power(bench: Bench) -> Answer:
    """Compute the power of the planned steps to show a straight rise by a tenth of the range,
    one-sided at 5%.
    """
    groups = pass_rates(bench.played)
    steps = bench.config.learning.steps
    means = [float(np.mean(r)) for r in groups.rewards]
    require(len(means) > 3, "too few groups were scored to know the noise")
    rise = 0.1 * max(high - low for high, low in zip(groups.highs, groups.lows, strict=True))
    noise = float(np.std(means, ddof=1)) / bench.config.sampling.groups**0.5
    reached = power_of_rise(rise, noise, steps, 0.05)
    yield (
        f"{steps} steps show a rise of {rise:.2g} in reward with power {reached:.0%} (a step's"
        f" noise: {noise:.2g})"
    )
    if reached < 0.8:
        summary = (
            f"{steps} steps are too few to show a rise of 10% of the range: power {reached:.0%}."
        )
        text = f"{points_for(rise, noise, 0.8, 0.05)} steps of this size would have 80%"
        yield bench.finding("run.too-short", NOTE, summary, text, reached, basis=SIGNAL)
