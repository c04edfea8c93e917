"""What answers earn: right ones, wrong ones, and the same one again."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from uptrend.doctor.answers import (
    MIN_ROLLOUTS,
    MIN_WRONG_SCORES,
    Answers,
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
from uptrend.records.table import Flags, Ints, RolloutTable
from uptrend.tasks.answers import name_class

# Tasks on which the strict reader must disagree with the scorer: one may be odd.
MIN_REJECTED_TASKS = 2
# Share of right answers that are not counted as right from which the scorer rejects them; and of
# these, the share that earned the least, below which they are paid in part.
MIN_REJECTED_SHARE = 0.5
MIN_LEAST_SHARE = 0.5
# A right answer is paid as wrong ones are up to this part of the way from what those earn to what
# accepted ones do, and is accepted from half of it on.
AS_WRONG = 0.1
# Share of tasks whose right answers are rejected from which they are a class, and from which it is
# critical; share of them that may be accepted on another occasion.
MIN_CLASS_SHARE = 0.03
CRITICAL_CLASS_SHARE = 0.1
MAX_TORN_SHARE = 0.2
# Shares of surely wrong answers that are paid as right ones from which it is a fault, and critical.
MIN_WRONG_PAID_SHARE = 0.03
CRITICAL_WRONG_PAID_SHARE = 0.5
# Turns on average above which a task may ask for more than its last answer.
SEVERAL_TURNS = 1.1
# Rollouts in which the lenient reader must find what the scorer did not, and shares of the wrong
# ones, over chance.
MIN_LOST_ANSWERS = 10
NOTED = 0.05
WARNED = 0.2
# Rollouts that repeat another's tokens: share with another reward that is a fault, and critical;
# those whose reward falls, or rises, and the share of the opposite that is chance.
MIN_CONFLICT_SHARE = 0.01
CRITICAL_CONFLICT_SHARE = 0.2
MIN_WORN_ROLLOUTS = 10
MAX_OPPOSITE_SHARE = 0.1
# Steps in which right answers must earn ever more or less, and by which part of it from the first
# to the last; within a step they may differ by this part.
MIN_LEVELS = 4
MIN_RESCALING = 0.2
MAX_LEVEL_SPREAD = 1e-3
# Share of a reward's variance from which a part rules it; between these deviations from wrong
# answers to right ones it has little to do with the answer: far below, its sign is flipped.
RULING_SHARE = 0.7
UNRELATED = (-1.2, 0.2)

Suspect = Callable[[Case], Answer]


def _is_any(case: Case, suspects: Sequence[Suspect]) -> bool:
    """Return True where one of these, which would explain what is seen, is there."""
    return any(isinstance(case.cached(suspect), Found) for suspect in suspects)


def _count_tasks(steps: Sequence[Answers], flags: Sequence[Flags]) -> int:
    return sum(
        len(np.unique(step.task_n[flags_n])) for step, flags_n in zip(steps, flags, strict=True)
    )


@check("reward.gold-rejected")
def gold_rejected(case: Case) -> Answer:
    """Report answers that say the gold answer, word for word, and are not rewarded."""
    unpaid = never_paid(case)
    if unpaid is not None:
        text = "The scorer may reject every answer: score a few gold answers to settle it."
        return Found(NOTE, SUSPICION, text, [unpaid])
    if lacking := why_no_answers(case):
        return Lacking(lacking)
    if _is_any(case, (misaligned.judge, spread_reward, _drowned, _rescaled)):
        return None
    inverted = case.cached(_inverted)
    if inverted is not None:
        return replace(inverted, severity=WARNING)
    return case.cached(_rejected) or case.cached(_rejected_class)


@check("advantage.sign")
def inverted_reward(case: Case) -> Answer:
    """Report a cost that is used as a reward."""
    if why_no_answers(case) or _is_any(case, (misaligned.judge, spread_reward, _drowned)):
        return None
    return case.cached(_inverted)


def _inverted(case: Case) -> Found | None:
    """Find a reward that pays wrong answers more than right ones."""
    paid = case.cached(read_answer_rewards)
    if paid is None or not paid.is_inverted:
        return None
    right = float(paid.earnings.right.mean())
    wrong = float(paid.earnings.wrong.mean())
    rights = f"{len(paid.earnings.right)} right answers earn {right:.3g}"
    text = f"{rights}, {len(paid.earnings.wrong)} wrong ones {wrong:.3g} on average"
    shown = [subset_evidence(paid.steps, paid.split_by_step(paid.right_n), text, right - wrong)]
    return Found(
        CRITICAL,
        PROOF,
        "Right answers earn less than wrong ones: a sign of the reward is flipped.",
        shown,
    )


def _rejected(case: Case) -> Found | None:
    """Find finished rollouts that say the gold answer and are not counted as right."""
    steps = case.cached(read_answers)
    right = [step.right_n & step.finished_n for step in steps]
    rejected = [flags & ~step.rewarded_n for step, flags in zip(steps, right, strict=True)]
    n_right = count_flags(right)
    n_rejected = count_flags(rejected)
    if n_rejected < max(MIN_WRONG_SCORES, MIN_REJECTED_SHARE * n_right):
        return None
    if _count_tasks(steps, rejected) < MIN_REJECTED_TASKS:
        return None
    paid = case.cached(read_answer_rewards)
    is_bounded = any(np.isfinite(step.table.by_rollout("reward_high")).any() for step in steps)
    are_told_apart = paid is not None and paid.earnings.are_told_apart
    # nobody said what counts as right: to earn more than wrong ones is enough
    if are_told_apart and not is_bounded:
        return None
    at_low = count_flags(flags & step.low_n for step, flags in zip(steps, rejected, strict=True))
    if paid is not None and len(paid.earnings.wrong) >= 2 * MIN_WRONG_SCORES and not are_told_apart:
        at_low = n_rejected
    # A task may ask for more than its last answer, and pay for what there is of it; or for other
    # words around it, which only a probe with gold answers in such words can exclude.
    is_paid_in_part = at_low < MIN_LEAST_SHARE * n_rejected
    rejections = (
        f"{n_rejected} of {n_right} rollouts that say the gold answer are not counted as right"
    )
    shown = subset_evidence(
        steps, rejected, f"{rejections}; {at_low} earned the least", n_rejected / n_right
    )
    if is_paid_in_part:
        return Found(NOTE, SUSPICION, PAGE_SUMMARY, [shown])
    return Found(CRITICAL, SIGNAL, PAGE_SUMMARY, [shown])


def _rejected_class(case: Case) -> Found | None:
    """Find tasks whose right answers are paid as wrong ones, in words that are accepted on other
    tasks.
    """
    paid = case.cached(read_answer_rewards)
    if paid is None or not paid.earnings.are_told_apart:
        return None
    base = paid.earnings.base
    gap = paid.earnings.top - base
    accepted = paid.right_n & (paid.reward_n > base + gap / 2)
    form_counts = Counter(paid.form_n[accepted].tolist())
    common_forms = [form for form, count in form_counts.items() if count >= MIN_WRONG_SCORES]
    rejected = (
        paid.right_n & (paid.reward_n <= base + AS_WRONG * gap) & np.isin(paid.form_n, common_forms)
    )
    fine = set(paid.task_n[accepted].tolist())
    # paid on one occasion and not on another: noise, not a class
    torn = set(paid.task_n[rejected].tolist()) & fine
    tasks = set(paid.task_n[rejected].tolist()) - torn
    golds = dict(zip(paid.task_n.tolist(), paid.gold_n, strict=True))
    class_name = name_class(
        [golds[task] for task in sorted(tasks)], [golds[task] for task in sorted(fine)]
    )
    # Several rollouts of a class that has a name are surer than of one that has none.
    is_sure = class_name and rejected.sum() >= 2 * MIN_WRONG_SCORES
    share = len(tasks) / max(1, len(tasks | fine))
    if (
        len(tasks) < (MIN_REJECTED_TASKS if is_sure else MIN_WRONG_SCORES)
        or share < MIN_CLASS_SHARE
    ):
        return None
    # A task of several turns may ask for more than its last answer: there a class of answers must
    # explain it.
    if len(torn) > MAX_TORN_SHARE * len(tasks) or (case.cached(_has_turns) and not class_name):
        return None
    flags = paid.split_by_step(rejected & np.isin(paid.task_n, list(tasks)))
    examples = ", ".join(
        map(repr, sorted({golds[task] for task in tasks}, key=lambda gold: (len(gold), gold))[:6])
    )
    text = (
        f"on {len(tasks)} of {len(tasks | fine)} tasks with right answers these are paid as wrong"
        " ones are"
    )
    shown = subset_evidence(paid.steps, flags, f"{text}, such as {examples}", share)
    summary = (
        f"The reward rejects the right answers of {share:.0%} of tasks, always of the same ones."
    )
    if class_name:
        summary = f"The reward rejects right answers of one kind: {class_name}."
    return Found(severity_by_share(share, critical=CRITICAL_CLASS_SHARE), PROOF, summary, [shown])


def _has_turns(case: Case) -> bool:
    turns = case.curve("sampling/turns/mean")[1]
    return len(turns) > 0 and float(turns.mean()) > SEVERAL_TURNS


def _rescaled(case: Case) -> Found | None:
    """Find right answers that all earn the same within a step, and ever more or less from step to
    step.
    """
    steps = [step for step in case.cached(read_answers) if step.right_n.sum() >= MIN_WRONG_SCORES]
    earned = [step.reward_n[step.right_n] for step in steps]
    levels = np.array([float(np.median(rewards)) for rewards in earned])
    is_level = all(
        np.ptp(e) <= MAX_LEVEL_SPREAD * max(1e-9, float(np.abs(e).max())) for e in earned
    )
    moves = np.diff(levels)
    if len(levels) < MIN_LEVELS or not is_level or not ((moves > 0).all() or (moves < 0).all()):
        return None
    first = levels[0]
    last = levels[-1]
    if abs(last - first) < MIN_RESCALING * max(abs(first), abs(last)):
        return None
    last_step = steps[-1].table.step
    text = (
        f"A right answer earns {first:.3g} at step {steps[0].table.step} and {last:.3g} at step"
        f" {last_step}."
    )
    shown = Evidence(text, float(last - first), REWARD_METRIC, last_step)
    return Found(
        WARNING,
        PROOF,
        "The same answer earns more or less as the run goes on: the scale moves.",
        [shown],
    )


@check("reward.scale-moves")
def moving_scale(case: Case) -> Answer:
    """Report a reward whose scale depends on when it is given."""
    return None if why_no_answers(case) else case.cached(_rescaled)


@check("reward.nondeterministic", columns=["reward", "task"])
def nondeterministic(case: Case) -> Found | None:
    """Report the same tokens on the same task with two rewards, where nothing else explains
    them.
    """
    return None if _is_any(case, (misaligned.judge, spread_reward)) else case.cached(_conflicting)


def _conflicting(case: Case) -> Found | None:
    rows = case.tables_with("ids", "reward", "task")
    counts = [_conflicts(r) for r in rows]
    flags = [changed != 0 for _, changed in counts]
    repeated = sum(count for count, _ in counts)
    conflicts = count_flags(flags)
    if conflicts < max(MIN_WRONG_SCORES, MIN_CONFLICT_SHARE * repeated):
        return None
    share = conflicts / repeated
    text = (
        f"{conflicts} of {repeated} rollouts that say exactly what another of their group says have"
        " another reward"
    )
    shown = rollout_evidence(rows, flags, text, share)
    return Found(
        severity_by_share(share, critical=CRITICAL_CONFLICT_SHARE), PROOF, PAGE_SUMMARY, [shown]
    )


@check("task.state-leaks", columns=["ids", "reward", "task"])
def worn_tasks(case: Case) -> Found | None:
    """Report rewards of equal rollouts that only ever fall, or rise, from the first of them to the
    next.
    """
    if not isinstance(case.cached(_conflicting), Found) or case.cached(misaligned.judge):
        return None
    rows = case.tables_with("ids", "reward", "task")
    changes = [changed for _, changed in map(_conflicts, rows)]
    falling = [changed < 0 for changed in changes]
    rising = [changed > 0 for changed in changes]
    is_falling = count_flags(falling) > count_flags(rising)
    flags = falling if is_falling else rising
    most = count_flags(flags)
    least = count_flags(rising if is_falling else falling)
    if most < MIN_WORN_ROLLOUTS or least > MAX_OPPOSITE_SHARE * most:
        return None
    way = "less" if is_falling else "more"
    text = f"{most} rollouts earn {way} than an earlier one that says the same, {least} do not"
    summary = f"What a rollout earns depends on those before it: equal ones earn {way} each time."
    return Found(CRITICAL, PROOF, summary, [rollout_evidence(rows, flags, text, most)])


def _conflicts(r: RolloutTable) -> tuple[int, Ints]:
    """Count rollouts with the tokens of an earlier one of their task; say with a sign which earn
    less or more.
    """
    change_n = np.zeros(len(r), np.int64)
    repeated = 0
    if r.task_n is None:
        return repeated, change_n
    ids = r.read_tokens("ids")
    golds = r.texts("answer")  # one question with two golds is another fault
    first_reward: dict[tuple[int, str | None, bytes, str], float] = {}
    # Rollouts without tokens have no place in `rollout_t`, and are not compared.
    for n, start in zip(*np.unique(r.rollout_t, return_index=True), strict=True):
        if not np.isfinite(r.reward_n[n]):
            continue
        end = np.searchsorted(r.rollout_t, n, "right")
        key = (int(r.task_n[n]), golds[n], ids[start:end].tobytes(), str(r.ended_n[n]))
        repeated += key in first_reward
        gain = r.reward_n[n] - first_reward.setdefault(key, r.reward_n[n])
        if abs(gain) > 1e-6:
            change_n[n] = np.sign(gain)
    return repeated, change_n


@check("context.completion-truncated")
def cut_answers(case: Case) -> Answer:
    """Report answers that were begun rightly and cut by the length limit."""
    if lacking := why_no_answers(case):
        return Lacking(lacking)
    steps = case.cached(read_answers)
    flags: list[Flags] = []
    chance = 0
    for step in steps:
        is_cut = (step.table.ended_n[step.index_n] == Ending.LENGTH.value) & ~step.rewarded_n
        flags.append(_are_begun(step.response_n, step.gold_n) & is_cut)
        chance += int((_are_begun(step.response_n, step.golds_of_other_tasks()) & is_cut).sum())
    count = count_flags(flags)
    total = sum(len(step.index_n) for step in steps)
    if count < MIN_LOST_ANSWERS or _count_tasks(steps, flags) < MIN_WRONG_SCORES:
        return None
    if count - chance < NOTED * total or count < 2 * chance:
        return None
    text = (
        f"{count} of {total} rollouts are cut in the middle of their task's answer ({chance} by"
        " chance)"
    )
    summary = (
        "Answers are cut by the length limit before they are complete: sampling.max_tokens is too"
        " small for some."
    )
    return Found(WARNING, PROOF, summary, [subset_evidence(steps, flags, text, count / total)])


def _are_begun(texts: Sequence[str], golds: Sequence[str]) -> Flags:
    """Flag texts that are the beginning of their gold answer."""
    pairs = [(text.strip(), gold.strip()) for text, gold in zip(texts, golds, strict=True)]
    return np.array(
        [bool(text) and text != gold and gold.startswith(text) for text, gold in pairs], np.bool_
    )


@check("reward.strict-parser")
def strict_parser(case: Case) -> Answer:
    """Report answers that a lenient reader finds where the scorer did not."""
    unpaid = never_paid(case)
    if unpaid is not None and unpaid.value != 0:
        text = "The scorer may fail to read the answers: read a few rollouts to settle it."
        return Found(NOTE, SUSPICION, text, [unpaid])
    if lacking := why_no_answers(case):
        return Lacking(lacking)
    steps = case.cached(read_answers)
    wrong = [~step.rewarded_n & ~step.right_n for step in steps]
    accepted = [step.accepted(step.gold_n, flags) for step, flags in zip(steps, wrong, strict=True)]
    by_chance = [
        step.accepted(step.golds_of_other_tasks(), flags)
        for step, flags in zip(steps, wrong, strict=True)
    ]
    count = count_flags(accepted)
    chance = count_flags(by_chance)
    total = count_flags(wrong)
    share = (count - chance) / max(total, 1)
    if (
        count < MIN_LOST_ANSWERS
        or _count_tasks(steps, accepted) < MIN_WRONG_SCORES
        or share < NOTED
    ):
        return None
    text = (
        f"a lenient reader takes {count} of {total} wrong rollouts for right ({chance} by chance)"
    )
    summary = f"The scorer does not read {share:.0%} of what it calls wrong as a person would."
    return Found(
        warn_if(share >= WARNED), SIGNAL, summary, [subset_evidence(steps, accepted, text, share)]
    )


@check("reward.component-dominates", columns=["parts", "reward"])
def drowned_answers(case: Case) -> Answer:
    """Report a part of the reward that brings most of its variance and pays right answers no more
    than wrong ones.
    """
    return case.cached(_drowned)


def _drowned(case: Case) -> Found | Lacking | None:
    paid = case.cached(read_answer_rewards)
    enough = MIN_ROLLOUTS // 2
    if paid is None or case.cached(_has_turns) or not all(r.has("parts") for r in case.tables):
        return Lacking(f"fewer than {enough} answers are surely right or wrong")
    if min(len(paid.earnings.right), len(paid.earnings.wrong)) < enough:
        return Lacking(f"fewer than {enough} answers are surely right or wrong")
    parts_n = [
        part for step in paid.steps for part in np.array(step.table.parts_n, object)[step.index_n]
    ]
    names = sorted({name for parts in parts_n for name in parts})
    values = {name: np.array([parts.get(name, 0.0) for parts in parts_n]) for name in names}
    total = sum(float(np.var(value)) for value in values.values())
    if len(names) < 2:
        return None
    for name, value in values.items():
        share = float(np.var(value)) / max(total, 1e-12)
        right = value[paid.right_n].mean()
        wrong = value[paid.wrong_n].mean()
        least, most = UNRELATED
        if share >= RULING_SHARE and least * value.std() < right - wrong < most * value.std():
            text = f"{name} gives right answers {right:.3g} and wrong ones {wrong:.3g}"
            summary = (
                f"{name} brings {share:.0%} of the reward's variance and does not pay for right"
                " answers."
            )
            return Found(WARNING, SIGNAL, summary, [Evidence(text, share)])
    return None


@check("reward.gold-rejected")
def pays_wrong_answers(case: Case) -> Answer:
    """Report a reward that pays surely wrong answers as it pays right ones."""
    if lacking := why_no_answers(case):
        return Lacking(lacking)
    paid = case.cached(read_answer_rewards)
    if paid is None or _is_any(
        case, (misaligned.judge, spread_reward, _inverted, _conflicting, _drowned, _rescaled)
    ):
        return None
    flags = paid.paid_wrong_n
    share = paid.paid_wrong_share
    tasks = len(set(paid.task_n[flags].tolist()))
    if tasks < MIN_WRONG_SCORES or share < MIN_WRONG_PAID_SHARE or _has_turns(case):
        return None
    texts = [text for step in paid.steps for text in step.response_n]
    golds = {texts[n]: paid.gold_n[n] for n in np.flatnonzero(flags)}
    examples = "; ".join(f"{text[-30:]!r} for {gold!r}" for text, gold in list(golds.items())[:3])
    wrong = len(paid.earnings.wrong)
    text = (
        f"{flags.sum()} of {wrong} wrong answers earn as much as right ones"
        f" ({paid.earnings.top:.3g}): {examples}"
    )
    summary = (
        f"{share:.0%} of wrong answers are paid as right ones: the reward can be had without the"
        " answer."
    )
    shown = subset_evidence(paid.steps, paid.split_by_step(flags), text, share)
    return Found(
        severity_by_share(share, critical=CRITICAL_WRONG_PAID_SHARE), PROOF, summary, [shown]
    )
