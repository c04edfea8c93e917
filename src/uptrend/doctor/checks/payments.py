"""Payment of answers: right ones, wrong ones, and the same one again.

Suffix: n = answer, of a step or, in `AnswerRewards`, of all steps; in `Repeats`, n = rollout.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from uptrend.doctor.answers import (
    MIN_ROLLOUTS,
    MIN_WRONG_SCORES,
    REWARD_TOLERANCE,
    Answers,
    fix_of,
    read_answer_rewards,
    read_answers,
    why_no_answers,
)
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
    severity_by_share,
    warn_if,
)
from uptrend.doctor.checks.scoring import misaligned, never_paid, spread_reward
from uptrend.doctor.groups import count_flags, rollout_evidence, subset_evidence
from uptrend.doctor.trend import REWARD_METRIC
from uptrend.records import Ending, Evidence
from uptrend.records.table import Flags, Floats, Ints, RolloutTable
from uptrend.tasks.answers import name_class, remedy_of_class
from uptrend.tasks.proof import Remedy

# Rollouts of a kind that are surer than `MIN_WRONG_SCORES`.
MIN_SURE_ROLLOUTS = 2 * MIN_WRONG_SCORES
# Surely right, and surely wrong, answers whose parts of the reward can be compared.
MIN_COMPARED_ANSWERS = MIN_ROLLOUTS // 2
# Turns on average above which a task may ask for more than its last answer.
SEVERAL_TURNS = 1.1
# Characters of an answer, and examples, that evidence quotes.
QUOTED_CHARACTERS = 30
MAX_QUOTED_ANSWERS = 3
MAX_QUOTED_GOLDS = 6

Suspect = Callable[[Case], Answer]


@check("reward.gold-rejected", by_source=True)
def gold_rejected(case: Case) -> Answer:
    """Report answers that say the gold answer, word for word, and are not rewarded."""
    unpaid = never_paid(case)
    if unpaid is not None:
        summary = "The scorer may reject every answer: score a few gold answers to settle it."
        return Found(NOTE, SUSPICION, summary, [unpaid])
    lacking = why_no_answers(case)
    if lacking:
        return Lacking(lacking)
    if _has_any(case, misaligned.judge, spread_reward, _drowned, _rescaled):
        return None
    inverted = case.cached(_inverted)
    if inverted is not None:
        return replace(inverted, severity=WARNING)
    return case.cached(_rejected) or case.cached(_rejected_class)


@check("advantage.sign", by_source=True)
def inverted_reward(case: Case) -> Answer:
    """Report a cost that is used as a reward."""
    if why_no_answers(case) or _has_any(case, misaligned.judge, spread_reward, _drowned):
        return None
    return case.cached(_inverted)


def _has_any(case: Case, *suspects: Suspect) -> bool:
    """Return True where one of these causes, which would explain what is paid, is there."""
    return any(isinstance(case.cached(suspect), Found) for suspect in suspects)


def _inverted(case: Case) -> Found | None:
    """Find a reward that pays wrong answers more than right ones."""
    paid = case.cached(read_answer_rewards)
    if paid is None or not paid.is_inverted:
        return None
    right = paid.earnings.right
    wrong = paid.earnings.wrong
    right_mean = float(right.mean())
    wrong_mean = float(wrong.mean())
    summary = "Right answers earn less than wrong ones: a sign of the reward is flipped."
    text = (
        f"{len(right)} right answers earn {right_mean:.3g}, {len(wrong)} wrong ones"
        f" {wrong_mean:.3g} on average"
    )
    right_by_step = paid.split_by_step(paid.right_n)
    evidence = subset_evidence(paid.steps, right_by_step, text, right_mean - wrong_mean)
    return Found(CRITICAL, PROOF, summary, [evidence])


# Tasks on which the strict reader must disagree with the scorer: one may be odd.
MIN_REJECTED_TASKS = 2
# Share of right answers that are not counted as right from which the scorer rejects them; and of
# these, the share that earned the least, below which they are paid in part.
MIN_REJECTED_SHARE = 0.5
MIN_LEAST_SHARE = 0.5


def _rejected(case: Case) -> Found | None:
    """Find finished rollouts that say the gold answer and are not counted as right."""
    steps = case.cached(read_answers)
    rejected = []
    n_right = 0
    n_at_lowest = 0
    for step in steps:
        right_n = step.right_n & step.finished_n
        rejected_n = right_n & ~step.rewarded_n
        rejected.append(rejected_n)
        n_right += int(right_n.sum())
        n_at_lowest += int((rejected_n & step.low_n).sum())
    n_rejected = count_flags(rejected)
    if n_rejected < max(MIN_WRONG_SCORES, MIN_REJECTED_SHARE * n_right):
        return None
    if _count_tasks(steps, rejected) < MIN_REJECTED_TASKS:
        return None

    paid = case.cached(read_answer_rewards)
    are_separated = paid is not None and paid.earnings.are_separated
    # Without bounds nothing says what counts as right: to earn more than wrong ones is enough.
    if are_separated and not _is_bounded(steps):
        return None
    # Right answers that earn as wrong ones do earned the least, whatever the bounds are.
    n_wrong = 0 if paid is None else len(paid.earnings.wrong)
    if n_wrong >= MIN_SURE_ROLLOUTS and not are_separated:
        n_at_lowest = n_rejected

    text = (
        f"{n_rejected} of {n_right} rollouts that say the gold answer are not counted as right;"
        f" {n_at_lowest} earned the least"
    )
    evidence = subset_evidence(steps, rejected, text, n_rejected / n_right)
    # A task may ask for more than its last answer, and pay for what there is of it; or for other
    # words around it, which only a probe with gold answers in such words can exclude.
    is_paid_in_part = n_at_lowest < MIN_LEAST_SHARE * n_rejected
    if is_paid_in_part:
        return Found(NOTE, SUSPICION, PAGE_SUMMARY, [evidence])
    return Found(CRITICAL, SIGNAL, PAGE_SUMMARY, [evidence])


def _is_bounded(steps: Sequence[Answers]) -> bool:
    """Return True where the upper bound of some reward is known."""
    return any(np.isfinite(step.table.numbers("reward_high")).any() for step in steps)


# Part of the way from what wrong answers earn to what accepted ones do: a right answer is paid as
# wrong ones are up to the first, and is accepted above the second.
MAX_REJECTED_PART = 0.1
MIN_ACCEPTED_PART = 0.5
# Share of tasks whose right answers are rejected from which they are a class, and from which it is
# critical; share of them that may be accepted on another occasion.
MIN_CLASS_SHARE = 0.03
CRITICAL_CLASS_SHARE = 0.1
MAX_TORN_SHARE = 0.2


def _rejected_class(case: Case) -> Found | None:
    """Find tasks whose right answers are paid as wrong ones, in words that are accepted on other
    tasks.
    """
    paid = case.cached(read_answer_rewards)
    if paid is None or not paid.earnings.are_separated:
        return None
    base = paid.earnings.base
    gap = paid.earnings.top - base
    accepted_n = paid.right_n & (paid.reward_n > base + gap * MIN_ACCEPTED_PART)
    form_counts = Counter(paid.form_n[accepted_n].tolist())
    common_forms = [form for form, count in form_counts.items() if count >= MIN_WRONG_SCORES]
    rejected_n = paid.right_n & (paid.reward_n <= base + MAX_REJECTED_PART * gap)
    rejected_n &= np.isin(paid.form_n, common_forms)

    # A task that pays on one occasion and not on another shows noise, not a class.
    accepted_tasks = set(paid.task_n[accepted_n].tolist())
    torn_tasks = set(paid.task_n[rejected_n].tolist()) & accepted_tasks
    rejected_tasks = set(paid.task_n[rejected_n].tolist()) - torn_tasks
    right_tasks = rejected_tasks | accepted_tasks
    gold_by_task = dict(zip(paid.task_n.tolist(), paid.gold_n, strict=True))
    rejected_golds = [gold_by_task[task] for task in sorted(rejected_tasks)]
    accepted_golds = [gold_by_task[task] for task in sorted(accepted_tasks)]
    class_name = name_class(rejected_golds, accepted_golds)

    # Several rollouts of a class that has a name are surer than of one that has none.
    is_sure = class_name and rejected_n.sum() >= MIN_SURE_ROLLOUTS
    min_tasks = MIN_REJECTED_TASKS if is_sure else MIN_WRONG_SCORES
    share = len(rejected_tasks) / max(1, len(right_tasks))
    if len(rejected_tasks) < min_tasks or share < MIN_CLASS_SHARE:
        return None
    if len(torn_tasks) > MAX_TORN_SHARE * len(rejected_tasks):
        return None
    # A task of several turns may ask for more than its last answer: there a class of answers must
    # explain it.
    if case.cached(_has_several_turns) and not class_name:
        return None

    summary = (
        f"The reward rejects the right answers of {share:.0%} of tasks, always of the same ones."
    )
    if class_name:
        summary = f"The reward rejects right answers of one kind: {class_name}."
    # The shortest, and of these the first by the alphabet: a set has no order of its own.
    examples = sorted(set(rejected_golds), key=lambda gold: (len(gold), gold))
    quoted = ", ".join(map(repr, examples[:MAX_QUOTED_GOLDS]))
    text = (
        f"on {len(rejected_tasks)} of {len(right_tasks)} tasks with right answers these are paid as"
        f" wrong ones are, such as {quoted}"
    )
    shown_n = rejected_n & np.isin(paid.task_n, list(rejected_tasks))
    evidence = subset_evidence(paid.steps, paid.split_by_step(shown_n), text, share)
    sentence = remedy_of_class(rejected_golds, accepted_golds)
    fix = fix_of(Remedy(sentence, "")) if sentence else None
    severity = severity_by_share(share, critical=CRITICAL_CLASS_SHARE)
    return Found(severity, PROOF, summary, [evidence], fix=fix)


def _has_several_turns(case: Case) -> bool:
    turns = case.curve("sampling/turns/mean")[1]
    return len(turns) > 0 and float(turns.mean()) > SEVERAL_TURNS


def _count_tasks(steps: Sequence[Answers], flags: Sequence[Flags]) -> int:
    """Return the number of tasks with a flagged answer; a task of two steps counts twice."""
    pairs = zip(steps, flags, strict=True)
    return sum(len(np.unique(step.task_n[flags_n])) for step, flags_n in pairs)


# Shares of surely wrong answers that are paid as right ones from which it is a fault, and critical.
MIN_WRONG_PAID_SHARE = 0.03
CRITICAL_WRONG_PAID_SHARE = 0.5


@check("reward.gold-rejected", by_source=True)
def pays_wrong_answers(case: Case) -> Answer:
    """Report a reward that pays surely wrong answers as it pays right ones."""
    lacking = why_no_answers(case)
    if lacking:
        return Lacking(lacking)
    paid = case.cached(read_answer_rewards)
    explanations = (misaligned.judge, spread_reward, _inverted, _conflicting, _drowned, _rescaled)
    if paid is None or _has_any(case, *explanations):
        return None
    flags_n = paid.paid_wrong_n
    share = paid.paid_wrong_share
    n_tasks = len(set(paid.task_n[flags_n].tolist()))
    if n_tasks < MIN_WRONG_SCORES or share < MIN_WRONG_PAID_SHARE or _has_several_turns(case):
        return None

    summary = (
        f"{share:.0%} of wrong answers are paid as right ones: the reward can be had without the"
        " answer."
    )
    replies: list[str] = []
    for step in paid.steps:
        replies += step.response_n
    gold_by_reply = {replies[n]: paid.gold_n[n] for n in np.flatnonzero(flags_n)}
    quoted = []
    for reply, gold in list(gold_by_reply.items())[:MAX_QUOTED_ANSWERS]:
        quoted.append(f"{reply[-QUOTED_CHARACTERS:]!r} for {gold!r}")
    text = (
        f"{flags_n.sum()} of {len(paid.earnings.wrong)} wrong answers earn as much as right ones"
        f" ({paid.earnings.top:.3g}): {'; '.join(quoted)}"
    )
    evidence = subset_evidence(paid.steps, paid.split_by_step(flags_n), text, share)
    return Found(
        severity_by_share(share, critical=CRITICAL_WRONG_PAID_SHARE), PROOF, summary, [evidence]
    )


@check("reward.scale-moves", by_source=True)
def moving_scale(case: Case) -> Answer:
    """Report a reward whose scale depends on when it is given."""
    return None if why_no_answers(case) else case.cached(_rescaled)


# Steps in which right answers must earn ever more or less, and by which part of it from the first
# to the last; within a step they may differ by this part.
MIN_LEVELS = 4
MIN_RESCALING = 0.2
MAX_LEVEL_SPREAD = 1e-3


def _rescaled(case: Case) -> Found | None:
    """Find right answers that all earn the same within a step, and ever more or less from step to
    step.
    """
    steps = [step for step in case.cached(read_answers) if step.right_n.sum() >= MIN_WRONG_SCORES]
    if len(steps) < MIN_LEVELS:
        return None
    levels = []
    for step in steps:
        earned = step.reward_n[step.right_n]
        largest = max(1e-9, float(np.abs(earned).max()))
        if np.ptp(earned) > MAX_LEVEL_SPREAD * largest:
            return None
        levels.append(float(np.median(earned)))
    moves = np.diff(levels)
    if not (moves > 0).all() and not (moves < 0).all():
        return None
    first_level = levels[0]
    last_level = levels[-1]
    rescaling = last_level - first_level
    if abs(rescaling) < MIN_RESCALING * max(abs(first_level), abs(last_level)):
        return None

    summary = "The same answer earns more or less as the run goes on: the scale moves."
    first_step = steps[0].table.step
    last_step = steps[-1].table.step
    text = (
        f"A right answer earns {first_level:.3g} at step {first_step} and {last_level:.3g} at step"
        f" {last_step}."
    )
    return Found(WARNING, PROOF, summary, [Evidence(text, rescaling, REWARD_METRIC, last_step)])


@check("reward.nondeterministic", columns=["reward", "task"], by_source=True)
def nondeterministic(case: Case) -> Found | None:
    """Report the same tokens on the same task with two rewards, where nothing else explains
    them.
    """
    return None if _has_any(case, misaligned.judge, spread_reward) else case.cached(_conflicting)


# Rollouts that repeat another's tokens: share with another reward that is a fault, and critical.
MIN_CONFLICT_SHARE = 0.01
CRITICAL_CONFLICT_SHARE = 0.2


def _conflicting(case: Case) -> Found | None:
    """Find rollouts with the tokens of an earlier one of their task and another reward."""
    repeats = case.cached(read_repeats)
    conflicts = [sign_n != 0 for sign_n in repeats.signs]
    n_conflicts = count_flags(conflicts)
    if n_conflicts < max(MIN_WRONG_SCORES, MIN_CONFLICT_SHARE * repeats.count):
        return None
    share = n_conflicts / repeats.count
    text = (
        f"{n_conflicts} of {repeats.count} rollouts that say exactly what another of their group"
        " says have another reward"
    )
    evidence = rollout_evidence(repeats.rows, conflicts, text, share)
    return Found(
        severity_by_share(share, critical=CRITICAL_CONFLICT_SHARE), PROOF, PAGE_SUMMARY, [evidence]
    )


# Repeating rollouts whose reward falls, or rises, and the share of the opposite that is chance.
MIN_WORN_ROLLOUTS = 10
MAX_OPPOSITE_SHARE = 0.1


@check("task.state-leaks", columns=["ids", "reward", "task"], by_source=True)
def worn_tasks(case: Case) -> Found | None:
    """Report rewards of equal rollouts that only ever fall, or rise, from the first of them to the
    next.
    """
    if not isinstance(case.cached(_conflicting), Found) or case.cached(misaligned.judge):
        return None
    repeats = case.cached(read_repeats)
    falling = [sign_n < 0 for sign_n in repeats.signs]
    rising = [sign_n > 0 for sign_n in repeats.signs]
    is_falling = count_flags(falling) > count_flags(rising)
    flags = falling if is_falling else rising
    n_alike = count_flags(flags)
    n_opposite = count_flags(rising if is_falling else falling)
    if n_alike < MIN_WORN_ROLLOUTS or n_opposite > MAX_OPPOSITE_SHARE * n_alike:
        return None

    change = "less" if is_falling else "more"
    summary = (
        f"What a rollout earns depends on those before it: equal ones earn {change} each time."
    )
    text = (
        f"{n_alike} rollouts earn {change} than an earlier one that says the same, {n_opposite} do"
        " not"
    )
    return Found(CRITICAL, PROOF, summary, [rollout_evidence(repeats.rows, flags, text, n_alike)])


@dataclass(frozen=True)
class Repeats:
    """Rollouts with the tokens of an earlier one of their task."""

    rows: list[RolloutTable]
    signs: list[Ints]
    """For each step, 1 for rollouts that earn more than the first of their tokens, -1 for less, 0
    for all others.
    """
    count: int
    """Number of rollouts that repeat another, over all steps."""


def read_repeats(case: Case) -> Repeats:
    """Compare the rewards of rollouts that say the same."""
    rows = case.tables_with("ids", "reward", "task")
    signs = []
    count = 0
    for table in rows:
        sign_n, n_repeated = _compare_repeats(table)
        signs.append(sign_n)
        count += n_repeated
    return Repeats(rows, signs, count)


def _compare_repeats(table: RolloutTable) -> tuple[Ints, int]:
    """Return the sign of each rollout's reward less that of the first with its tokens, and the
    number of rollouts that are not the first.
    """
    sign_n = np.zeros(len(table), np.int64)
    n_repeated = 0
    if table.task_n is None:
        return sign_n, n_repeated
    ids = table.read_tokens("ids")
    gold_n = table.texts("answer")
    first_reward: dict[tuple[int, str | None, bytes, str], float] = {}
    # Rollouts without tokens do not occur in `rollout_t`, and are not compared.
    for n, start in zip(*np.unique(table.rollout_t, return_index=True), strict=True):
        reward = table.reward_n[n]
        if not np.isfinite(reward):
            continue
        end = np.searchsorted(table.rollout_t, n, "right")
        tokens = ids[start:end].tobytes()
        # The gold answer is part of the key: one question with two golds is another fault.
        key = (int(table.task_n[n]), gold_n[n], tokens, str(table.ended_n[n]))
        n_repeated += key in first_reward
        gain = reward - first_reward.setdefault(key, reward)
        if abs(gain) > REWARD_TOLERANCE:
            sign_n[n] = np.sign(gain)
    return sign_n, n_repeated


# Rollouts in which a lenient reader must find what the scorer did not, or which a limit must have
# cut in the middle of their answer.
MIN_LOST_ANSWERS = 10
# Shares of them, over chance, from which they are reported, and a warning.
MIN_LOST_SHARE = 0.05
WARNING_LOST_SHARE = 0.2
# Answers cut / those that begin another task's gold answer, below which the beginning is chance.
MIN_CUT_OVER_CHANCE = 2


@check("context.completion-truncated", by_source=True)
def cut_answers(case: Case) -> Answer:
    """Report answers that were begun rightly and cut by the length limit."""
    lacking = why_no_answers(case)
    if lacking:
        return Lacking(lacking)
    steps = case.cached(read_answers)
    flags = []
    n_by_chance = 0
    for step in steps:
        is_cut = step.table.ended_n[step.index_n] == Ending.LENGTH.value
        is_cut &= ~step.rewarded_n
        flags.append(is_cut & _are_begun(step.response_n, step.gold_n))
        n_by_chance += int(
            (is_cut & _are_begun(step.response_n, step.golds_of_other_tasks())).sum()
        )
    n_cut = count_flags(flags)
    n_answers = sum(len(step.index_n) for step in steps)
    if n_cut < MIN_LOST_ANSWERS or _count_tasks(steps, flags) < MIN_WRONG_SCORES:
        return None
    if n_cut - n_by_chance < MIN_LOST_SHARE * n_answers:
        return None
    if n_cut < MIN_CUT_OVER_CHANCE * n_by_chance:
        return None

    summary = (
        "Answers are cut by the length limit before they are complete: sampling.max_tokens is too"
        " small for some."
    )
    text = (
        f"{n_cut} of {n_answers} rollouts are cut in the middle of their task's answer"
        f" ({n_by_chance} by chance)"
    )
    return Found(WARNING, PROOF, summary, [subset_evidence(steps, flags, text, n_cut / n_answers)])


def _are_begun(replies: Sequence[str], golds: Sequence[str]) -> Flags:
    """Flag replies that are the beginning of their gold answer, and not all of it."""
    flags_n = np.zeros(len(replies), np.bool_)
    for n, (reply, gold) in enumerate(zip(replies, golds, strict=True)):
        reply = reply.strip()
        gold = gold.strip()
        flags_n[n] = bool(reply) and reply != gold and gold.startswith(reply)
    return flags_n


@check("reward.strict-parser", by_source=True)
def strict_parser(case: Case) -> Answer:
    """Report answers that a lenient reader finds where the scorer did not."""
    unpaid = never_paid(case)
    if unpaid is not None and unpaid.value != 0:
        summary = "The scorer may fail to read the answers: read a few rollouts to settle it."
        return Found(NOTE, SUSPICION, summary, [unpaid])
    lacking = why_no_answers(case)
    if lacking:
        return Lacking(lacking)

    steps = case.cached(read_answers)
    accepted = []
    n_wrong = 0
    n_by_chance = 0
    for step in steps:
        is_wrong = ~step.rewarded_n & ~step.right_n
        accepted.append(step.accepted(step.gold_n, is_wrong))
        n_wrong += int(is_wrong.sum())
        n_by_chance += int(step.accepted(step.golds_of_other_tasks(), is_wrong).sum())
    n_accepted = count_flags(accepted)
    share = (n_accepted - n_by_chance) / max(n_wrong, 1)
    if n_accepted < MIN_LOST_ANSWERS or share < MIN_LOST_SHARE:
        return None
    if _count_tasks(steps, accepted) < MIN_WRONG_SCORES:
        return None

    summary = f"The scorer does not read {share:.0%} of what it calls wrong as a person would."
    text = (
        f"a lenient reader takes {n_accepted} of {n_wrong} wrong rollouts for right"
        f" ({n_by_chance} by chance)"
    )
    evidence = subset_evidence(steps, accepted, text, share)
    return Found(warn_if(share >= WARNING_LOST_SHARE), SIGNAL, summary, [evidence])


@check("reward.component-dominates", columns=["parts", "reward"], by_source=True)
def drowned_answers(case: Case) -> Answer:
    """Report a part of the reward that brings most of its variance and pays right answers no more
    than wrong ones.
    """
    return case.cached(_drowned)


# Share of a reward's variance from which a part rules it.
RULING_SHARE = 0.7
# (Mean of right answers − mean of wrong ones) / deviation of a part that has little to do with the
# answer. Far below, its sign is flipped, which is another cause.
MIN_UNRELATED_EFFECT = -1.2
MAX_UNRELATED_EFFECT = 0.2


def _drowned(case: Case) -> Found | Lacking | None:
    """Find a part of the reward that rules it and has little to do with the answer."""
    paid = case.cached(read_answer_rewards)
    lacking = Lacking(f"fewer than {MIN_COMPARED_ANSWERS} answers are surely right or wrong")
    if paid is None or case.cached(_has_several_turns):
        return lacking
    if not all(table.has("parts") for table in case.tables):
        return lacking
    if min(len(paid.earnings.right), len(paid.earnings.wrong)) < MIN_COMPARED_ANSWERS:
        return lacking

    values_by_part = _read_parts(paid.steps)
    if len(values_by_part) < 2:
        return None
    total_variance = sum(float(np.nanvar(value_n)) for value_n in values_by_part.values())
    for name, value_n in values_by_part.items():
        right_n = value_n[paid.right_n & np.isfinite(value_n)]
        wrong_n = value_n[paid.wrong_n & np.isfinite(value_n)]
        if min(len(right_n), len(wrong_n)) < MIN_COMPARED_ANSWERS:
            continue
        share = float(np.nanvar(value_n)) / max(total_variance, 1e-12)
        right_mean = right_n.mean()
        wrong_mean = wrong_n.mean()
        gap = right_mean - wrong_mean
        lowest_gap = MIN_UNRELATED_EFFECT * np.nanstd(value_n)
        highest_gap = MAX_UNRELATED_EFFECT * np.nanstd(value_n)
        if share >= RULING_SHARE and lowest_gap < gap < highest_gap:
            summary = (
                f"{name} brings {share:.0%} of the reward's variance and does not pay for right"
                " answers."
            )
            text = f"{name} gives right answers {right_mean:.3g} and wrong ones {wrong_mean:.3g}"
            return Found(WARNING, SIGNAL, summary, [Evidence(text, share)])
    return None


def _read_parts(steps: Sequence[Answers]) -> dict[str, Floats]:
    """Return the value of each part of the reward for all answers; NaN where an answer has no such
    part: a function that returns None for it says nothing of it.
    """
    parts_n: list[dict[str, float]] = []
    for step in steps:
        parts_of_step = step.table.parts_n
        parts_n += [parts_of_step[n] for n in step.index_n]
    names = set[str]().union(*parts_n)
    return {
        name: np.array([parts.get(name, np.nan) for parts in parts_n]) for name in sorted(names)
    }
