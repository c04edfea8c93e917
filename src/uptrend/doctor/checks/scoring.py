"""Scores of single rollouts: given where nothing failed, to the rollout that earned them, for the answer it says."""

import math
from collections import Counter
from dataclasses import replace

import numpy as np

from uptrend.doctor.answers import (
    MIN_ROLLOUTS,
    MIN_WRONG_SCORES,
    RAN_OUT,
    UNFINISHED,
    Answers,
    payment,
    read_answers,
    why_no_answers,
    why_no_scores,
)
from uptrend.doctor.case import Case
from uptrend.doctor.catalogue import takes_several_turns
from uptrend.doctor.check import AS_PAGE, Answer, Found, Lacking, by_share, check, warn_if
from uptrend.doctor.checks.advantages import ALL_DEAD, suspect_of_dead_run
from uptrend.doctor.checks.rewards import constant_reward
from uptrend.doctor.checks.tools import too_many_failed
from uptrend.doctor.curves import REWARD
from uptrend.doctor.rank import CRITICAL, NOTE, PROOF, SIGNAL, SUSPICION, WARNING
from uptrend.doctor.rows import Flags, Rows, count_flags, seen_among, seen_in
from uptrend.records import Ending, Evidence, RewardOutOfBounds, boundary_of
from uptrend.tasks.answers import answer_of, fold, name_class

# Places by which rewards are tried against the answers beside theirs.
MOST_PLACES = 16
# Shares of the wrong rollouts that the lenient reader accepts, over what it accepts by chance.
NOTED, WARNED = 0.05, 0.2


@check("reward.error-scored")
def error_scored(case: Case) -> Answer:
    """Report rollouts that failed and have a reward all the same, or that fail so often that scoring is broken."""
    failed = too_many_failed(case, by_tool=False)
    if isinstance(failed, Found) and (raised := _raised(case.rows)):
        summary = failed.summary.partition(":")[0]
        failed = replace(failed, summary=f"{summary}: {raised.text}.", evidence=[*failed.evidence, raised])
    if lacking := why_no_scores(case):
        return [Lacking(lacking), failed]
    rows, total = case.rows, sum(map(len, case.rows))
    # An error while closing comes after the score, and changes nothing.
    errors = [np.array([boundary_of(e) not in ("", "close") for e in r.texts("error")], np.bool_) for r in rows]
    flags = [f & np.isfinite(r.reward_n) for r, f in zip(rows, errors, strict=True)]
    count = count_flags(flags)
    if not count:
        return failed
    error = next(r.texts("error")[int(f.argmax())] for r, f in zip(rows, flags, strict=True) if f.any())
    text = f"{count} of {total} rollouts have an error and a reward, such as {str(error)[:80]!r}"
    severity, shown = warn_if(count >= 0.01 * total), seen_in(rows, flags, text, count / total)
    return [failed, Found(severity, PROOF, AS_PAGE, [shown])]


# The share of rollouts without a reward from which the rest is a selection.
MANY_LOST = 0.05


@check("reward.out-of-bounds")
def out_of_bounds(case: Case) -> Answer:
    """Report rollouts that failed because their reward left its bounds."""
    if lacking := why_no_scores(case):
        return Lacking(lacking)
    return case.once(_out_of_bounds)


def _out_of_bounds(case: Case) -> Found | None:
    rows, total = case.rows, sum(map(len, case.rows))
    read = [[RewardOutOfBounds.read(error or "") for error in r.texts("error")] for r in rows]
    errors = [error for of in read for error in of if error is not None]
    if not errors:
        return None
    flags = [np.array([error is not None for error in of], np.bool_) for of in read]
    furthest = max(errors, key=lambda error: max(error.value - error.high, error.low - error.value))
    lows: dict[str, float] = {}
    highs: dict[str, float] = {}
    for error in errors:
        lows[error.name] = min(error.low, error.value, lows.get(error.name, math.inf))
        highs[error.name] = max(error.high, error.value, highs.get(error.name, -math.inf))
    bounds = {name: f"[{lows[name]:.9g}, {highs[name]:.9g}]" for name in lows}
    functions = case.value("tasks.reward")
    if len(bounds) == 1 and not (isinstance(functions, list | tuple) and len(functions) > 1):
        right = f"set tasks.bounds = {bounds[furthest.name]}"
    else:  # each function has a pair of its own
        right = "in tasks.bounds, set " + " and ".join(f"those of {name} to {pair}" for name, pair in bounds.items())
    summary = f"{furthest.sentence}: {right}."
    share = len(errors) / total
    shown = seen_in(rows, flags, f"{len(errors)} of {total} rollouts have no reward for that", share)
    return Found(CRITICAL if share >= MANY_LOST else WARNING, PROOF, summary, [shown])


@check("reward.never-computed")
def never_computed(case: Case) -> Answer:
    """Report runs in which nothing is scored, or what would give a reward hardly ever happens."""
    is_awaited = takes_several_turns(case.view)
    is_known = case.value("sampling.max_turns") is not None
    if (is_awaited or not is_known) and (paid := _never_paid(case)) is not None and paid.value == 0:
        text = "The event that gives a reward may never occur: count it in a few rollouts to settle it."
        return Found(NOTE, SUSPICION, text, [paid])
    if lacking := why_no_scores(case):
        return Lacking(lacking)
    rows, total = case.rows, sum(map(len, case.rows))
    unscored = [np.isnan(r.reward_n) for r in rows]
    if (count := count_flags(unscored)) >= 0.5 * total:
        shown = seen_in(rows, unscored, f"{count} of {total} rollouts have no reward", count / total, REWARD)
        raised = _raised(rows)
        because = f": {raised.text}" if raised else ""
        evidence = [shown, *([raised] if raised else [])]
        return Found(CRITICAL, PROOF, f"Most rollouts were never scored{because}.", evidence)
    if _missing_scores(rows):
        return None
    if not is_awaited:  # the one message is scored, whatever it says
        return None
    # Rollouts of several turns that run out before anything gives a reward; one turn may be too few of them.
    ran_out = RAN_OUT if (case.value("sampling.max_turns") or 1) > 1 else UNFINISHED
    out = [np.isin(r.ended_n, ran_out) for r in rows]
    # A reward that can be negative and is 0 for everybody was not earned either.
    is_nothing = not any(np.any(r.reward_n) for r in rows)
    low = [f & (is_nothing | (r.reward_n <= r.by_rollout("reward_low") + 1e-6)) for r, f in zip(rows, out, strict=True)]
    count, bottom = count_flags(out), count_flags(low)
    if total < MIN_ROLLOUTS or count < 0.9 * total or bottom < 0.95 * count:
        return None
    text = f"{count} of {total} rollouts ran out of turns, time or tokens, and {bottom} of these earned the least"
    shown = seen_in(rows, low, text, count / total, "sampling/ended/turn-limit/share")
    return Found(WARNING, SIGNAL, AS_PAGE, [shown])


@check("reward.misaligned")
def misaligned(case: Case) -> Answer:
    """Report scores against the answers of other tasks: right answers rejected, and rewarded ones that say others."""
    if lacking := why_no_answers(case):
        return Lacking(lacking)
    steps, paid = case.once(read_answers), case.once(payment)
    if moved := _moved(steps):
        return moved
    if paid is not None and (paid.is_inverted or paid.paid_wrong_share >= 0.5):  # it pays for other things than answers
        return None
    rejected, strange = [a.right_n & ~a.rewarded_n for a in steps], [a.rewarded_n & ~a.right_n for a in steps]
    right, rewarded = count_flags(a.right_n for a in steps), count_flags(a.rewarded_n for a in steps)
    out, odd = count_flags(rejected), count_flags(strange)
    if min(out, odd) < MIN_WRONG_SCORES or out < 0.3 * right or odd < 0.3 * rewarded:
        return None
    # Words that are refused where they are right and paid where they are wrong: the scorer reads them, for other tasks.
    refused = {answer_of(a.said_n[n]) for a, flags in zip(steps, rejected, strict=True) for n in np.flatnonzero(flags)}
    anothers = 0
    for a, flags in zip(steps, strange, strict=True):
        golds = refused | set(map(fold, a.gold_n))
        anothers += sum(answer_of(a.said_n[n]) in golds for n in np.flatnonzero(flags))
    fits = anothers / odd
    if fits < 0.5:  # it pays for something else, or the answer is in earlier turns
        return None
    text = f"{out} of {right} rollouts that say their task's answer are not counted as right"
    rest = f"{odd} of {rewarded} that are counted as right say something else"
    other = f"{rest}; {fits:.0%} of these say another task's answer"
    evidence = [seen_among(steps, rejected, text, out / right), seen_among(steps, strange, other, fits)]
    return Found(CRITICAL, PROOF if fits >= 0.8 else SIGNAL, AS_PAGE, evidence)


def _moved(steps: list[Answers]) -> Found | None:
    """Find rewards that belong to the rollout some places before or after, in the order of a step."""
    right, paid = ([getattr(a, side) for a in steps] for side in ("right_n", "rewarded_n"))
    whole = np.concatenate(paid)
    if len(whole) < MIN_ROLLOUTS or not 0.1 < whole.mean() < 0.9:
        return None

    def agreement(places: int) -> float:
        return float(np.mean(np.concatenate([np.roll(r, places) == p for r, p in zip(right, paid, strict=True)])))

    best = max((k for k in range(-MOST_PLACES, MOST_PLACES + 1) if k), key=agreement)
    fits, own = agreement(best), agreement(0)
    if fits < 0.95 or own > 0.85:
        return None
    text = f"{fits:.0%} of rewards are those of the rollout {abs(best)} places {'before' if best > 0 else 'after'}"
    off = [r != p for r, p in zip(right, paid, strict=True)]
    return Found(CRITICAL, PROOF, AS_PAGE, [seen_among(steps, off, f"{text}, {own:.0%} their own", fits)])


@check("reward.wrong-length")
def wrong_length(case: Case) -> Answer:
    """Report fewer rewards than rollouts, or one reward spread over all rollouts of a group or step."""
    if suspect_of_dead_run(case) == "reward.wrong-length":
        text = "All rollouts of a step have one reward, and another one at the next: one score may be spread over all."
        return Found(WARNING, SIGNAL, text, [ALL_DEAD])
    answers: list[Found | Lacking | None] = []
    if not why_no_scores(case):
        rows, total = case.rows, sum(map(len, case.rows))
        unexplained, unscored = _missing_scores(rows), count_flags(np.isnan(r.reward_n) for r in rows)
        if unexplained and unscored < 0.5 * total:
            count = count_flags(unexplained)
            text = f"{count} of {total} rollouts have no reward, and no error says why"
            shown = seen_in(rows, unexplained, text, count / total, REWARD)
            answers.append(Found(CRITICAL, PROOF, AS_PAGE, [shown]))
    if lacking := why_no_answers(case):
        return [*answers, Lacking(lacking)]
    return [*answers, None if case.once(misaligned.judge) else case.once(_broadcast)]


@check("reward.gold-rejected")
def gold_rejected(case: Case) -> Answer:
    """Report answers that say the gold answer, word for word, and are not rewarded."""
    if paid := _never_paid(case):
        text = "The scorer may reject every answer: score a few gold answers to settle it."
        return Found(NOTE, SUSPICION, text, [paid])
    if lacking := why_no_answers(case):
        return Lacking(lacking)
    if any(isinstance(case.once(other), Found) for other in (misaligned.judge, _broadcast, _drowned, _rescaled)):
        return None
    inverted = case.once(_inverted)
    if inverted is not None:
        return replace(inverted, severity=WARNING)
    return case.once(_rejected) or case.once(_rejected_class)


@check("advantage.sign")
def inverted_reward(case: Case) -> Answer:
    """Report a cost that is used as a reward."""
    others = (misaligned.judge, _broadcast, _drowned)
    is_other = why_no_answers(case) or any(isinstance(case.once(other), Found) for other in others)
    return None if is_other else case.once(_inverted)


def _rescaled(case: Case) -> Found | None:
    """Find right answers that all earn the same within a step, and ever more or less from step to step."""
    steps = [a for a in case.once(read_answers) if a.right_n.sum() >= MIN_WRONG_SCORES]
    earned = [a.rows.reward_n[a.place_n][a.right_n] for a in steps]
    levels = np.array([float(np.median(e)) for e in earned])
    is_level = all(np.ptp(e) <= 1e-3 * max(1e-9, float(np.abs(e).max())) for e in earned)
    moves = np.diff(levels)
    if len(levels) < 4 or not is_level or not ((moves > 0).all() or (moves < 0).all()):
        return None
    if abs(levels[-1] - levels[0]) < 0.2 * max(abs(levels[0]), abs(levels[-1])):
        return None
    text = f"A right answer earns {levels[0]:.3g} at step {steps[0].rows.step} and {levels[-1]:.3g} at step "
    shown = Evidence(f"{text}{steps[-1].rows.step}.", float(levels[-1] - levels[0]), REWARD, steps[-1].rows.step)
    return Found(WARNING, PROOF, "The same answer earns more or less as the run goes on: the scale moves.", [shown])


@check("reward.scale-moves")
def moving_scale(case: Case) -> Answer:
    """Report a reward whose scale depends on when it is given."""
    return None if why_no_answers(case) else case.once(_rescaled)


@check("reward.nondeterministic", columns=["reward", "task"])
def nondeterministic(case: Case) -> Found | None:
    """Report the same tokens on the same task with two rewards, where nothing else explains them."""
    is_other = any(isinstance(case.once(other), Found) for other in (misaligned.judge, _broadcast))
    return None if is_other else case.once(_conflicting)


def _conflicting(case: Case) -> Found | None:
    rows = case.rows_with("ids", "reward", "task")
    counts = [_conflicts(r) for r in rows]
    repeated, bad = sum(again for again, _ in counts), count_flags(flags for _, flags in counts)
    if bad < MIN_WRONG_SCORES or bad < 0.01 * repeated:
        return None
    text = f"{bad} of {repeated} rollouts that say exactly what another of their group says have another reward"
    shown = seen_in(rows, [flags for _, flags in counts], text, bad / repeated)
    return Found(by_share(bad / repeated, critical=0.2), PROOF, AS_PAGE, [shown])


@check("task.state-leaks", columns=["ids", "reward", "task"])
def worn_tasks(case: Case) -> Found | None:
    """Report rewards of equal rollouts that only ever fall, or rise, from the first of them to the next."""
    if not isinstance(case.once(_conflicting), Found) or case.once(misaligned.judge):
        return None
    rows = case.rows_with("ids", "reward", "task")
    counts = [_conflicts(r, sign) for sign in (-1, 1) for r in rows]
    down, up = (count_flags(flags for _, flags in half) for half in (counts[: len(rows)], counts[len(rows) :]))
    if max(down, up) < 10 or min(down, up) > 0.1 * max(down, up):
        return None
    way = "less" if down > up else "more"
    text = f"{max(down, up)} rollouts earn {way} than an earlier one that says the same, {min(down, up)} do not"
    summary = f"What a rollout earns depends on those before it: equal ones earn {way} each time."
    flags = [flags for _, flags in (counts[: len(rows)] if down > up else counts[len(rows) :])]
    return Found(CRITICAL, PROOF, summary, [seen_in(rows, flags, text, max(down, up))])


@check("context.completion-truncated")
def cut_answers(case: Case) -> Answer:
    """Report answers that were begun rightly and cut by the length limit."""
    if lacking := why_no_answers(case):
        return Lacking(lacking)
    steps = case.once(read_answers)
    flags, chance = list[Flags](), 0
    for a in steps:
        is_cut = (a.rows.ended_n[a.place_n] == Ending.LENGTH.value) & ~a.rewarded_n
        begun, by_chance = ([_begins(s, g) for s, g in zip(a.said_n, of, strict=True)]
                            for of in (a.gold_n, a.golds_of_others()))  # fmt: skip
        flags.append(np.array(begun, np.bool_) & is_cut)
        chance += int((np.array(by_chance, np.bool_) & is_cut).sum())
    count, total = count_flags(flags), sum(len(a.place_n) for a in steps)
    tasks = sum(len(np.unique(a.task_n[of])) for a, of in zip(steps, flags, strict=True))
    if count < 10 or tasks < MIN_WRONG_SCORES or count - chance < NOTED * total or count < 2 * chance:
        return None
    text = f"{count} of {total} rollouts are cut in the middle of their task's answer ({chance} by chance)"
    summary = "Answers are cut by the length limit before they are complete: sampling.max_tokens is too small for some."
    return Found(WARNING, PROOF, summary, [seen_among(steps, flags, text, count / total)])


def _begins(said: str, gold: str) -> bool:
    begun, whole = said.strip(), gold.strip()
    return bool(begun) and begun != whole and whole.startswith(begun)


@check("reward.strict-parser")
def strict_parser(case: Case) -> Answer:
    """Report answers that a lenient reader finds where the scorer did not."""
    if (paid := _never_paid(case)) is not None and paid.value != 0:
        text = "The scorer may fail to read the answers: read a few rollouts to settle it."
        return Found(NOTE, SUSPICION, text, [paid])
    if lacking := why_no_answers(case):
        return Lacking(lacking)
    steps = case.once(read_answers)
    wrong = [~a.rewarded_n & ~a.right_n for a in steps]
    accepted = [a.accepted(a.gold_n, flags) for a, flags in zip(steps, wrong, strict=True)]
    chance = count_flags(a.accepted(a.golds_of_others(), flags) for a, flags in zip(steps, wrong, strict=True))
    count, total = count_flags(accepted), count_flags(wrong)
    tasks = sum(len(np.unique(a.task_n[flags])) for a, flags in zip(steps, accepted, strict=True))
    share = (count - chance) / max(total, 1)
    if count < 10 or tasks < 3 or share < NOTED:
        return None
    text = f"a lenient reader takes {count} of {total} wrong rollouts for right ({chance} by chance)"
    summary = f"The scorer does not read {share:.0%} of what it calls wrong as a person would."
    return Found(warn_if(share >= WARNED), SIGNAL, summary, [seen_among(steps, accepted, text, share)])


def _raised(rows: list[Rows]) -> Evidence | None:
    """Return what the scorer said most often where it failed, with its count."""
    errors = [[(e or "").partition("score: ")[2] for e in r.texts("error")] for r in rows]
    most = Counter(error for of in errors for error in of if error).most_common(1)
    if not most:
        return None
    flags = [np.array([error == most[0][0] for error in of], np.bool_) for of in errors]
    kinds = len({error for of in errors for error in of if error})
    text = f"{most[0][1]} of {sum(map(len, rows))} rollouts failed with {most[0][0][:120]}"
    return seen_in(rows, flags, text + f", others in {kinds - 1} other ways" * (kinds > 1), float(most[0][1]))


def _missing_scores(rows: list[Rows]) -> list[Flags]:
    """Flag rollouts without a reward, and without an error that says why; empty where there is none."""
    flags = [np.isnan(r.reward_n) & np.array([not e for e in r.texts("error")], np.bool_) for r in rows]
    return flags if count_flags(flags) else []


def _never_paid(case: Case) -> Evidence | None:
    """Return evidence where scalars alone show that no rollout was ever paid more than the least."""
    # Broken scorers are more common than tasks of which not one attempt succeeds. With rollouts, those decide.
    steps, values = case.curve(REWARD)
    if case.view.rollout_steps or not constant_reward.alarms(case) or np.ptp(values) > 0 or values[0] > 0:
        return None
    value = float(values[0])
    return Evidence(f"{value:.3g} at each of {len(values)} points, from the first on.", value, REWARD, int(steps[0]))


def _broadcast(case: Case) -> Found | None:
    """Find groups in which right and wrong answers earn the same, and some of them not the least that there is."""
    steps = case.once(read_answers)
    flat, raised, mixed, flags = 0, 0, 0, list[Flags]()
    for a in steps:
        reward_n = a.rows.reward_n[a.place_n]
        same_n = np.zeros(len(a.place_n), np.bool_)
        for task in np.unique(a.task_n[a.right_n]):
            of_n = a.task_n == task
            if a.right_n[of_n].all():
                continue
            mixed += 1
            if np.ptp(reward_n[of_n]) == 0:
                flat, raised = flat + 1, raised + (not a.low_n[of_n].any())
                same_n |= of_n
        flags.append(same_n)
    if raised < MIN_WRONG_SCORES or flat < 0.9 * mixed:
        return None
    values = Counter(float(a.reward_n[n]) for a, same in zip(steps, flags, strict=True) for n in np.flatnonzero(same))
    if max(values.values()) > 0.8 * values.total():
        return None  # one reward for everything: a scorer that always says the same, not one that says it once
    text = f"in {flat} of {mixed} groups with right and wrong answers all rollouts have the same reward"
    return Found(CRITICAL, PROOF, AS_PAGE, [seen_among(steps, flags, text, flat / mixed, "reward/group_std/mean")])


def _rejected(case: Case) -> Found | None:
    """Find finished rollouts that say the gold answer and are not counted as right."""
    steps = case.once(read_answers)
    said = [a.right_n & ~np.isin(a.rows.ended_n[a.place_n], UNFINISHED) for a in steps]
    rejected = [flags & ~a.rewarded_n for flags, a in zip(said, steps, strict=True)]
    right, out = count_flags(said), count_flags(rejected)
    tasks = sum(len(np.unique(a.task_n[flags])) for a, flags in zip(steps, rejected, strict=True))
    if out < MIN_WRONG_SCORES or tasks < 2 or out < 0.5 * right:
        return None
    at_low, paid = count_flags(flags & a.low_n for a, flags in zip(steps, rejected, strict=True)), case.once(payment)
    is_bounded = any(np.isfinite(a.rows.by_rollout("reward_high")).any() for a in steps)
    is_told = paid is not None and paid.earnings.top > paid.earnings.base
    if is_told and not is_bounded:  # nobody said what counts as right: to earn more than wrong answers is enough
        return None
    if paid is not None and paid.wrong_n.sum() >= 2 * MIN_WRONG_SCORES and not is_told:
        at_low = out
    text = f"{out} of {right} rollouts that say the gold answer are not counted as right; {at_low} earned the least"
    # A task may ask for more than its last answer, and pay for what there is of it; or for other words around it, which
    # only a probe with gold answers in such words can exclude.
    sure = (NOTE, SUSPICION) if at_low < 0.5 * out else (CRITICAL, SIGNAL)
    return Found(*sure, AS_PAGE, [seen_among(steps, rejected, text, out / right)])


def _inverted(case: Case) -> Found | None:
    """Find a reward that pays wrong answers more than right ones."""
    paid = case.once(payment)
    if paid is None or not paid.is_inverted:
        return None
    right, wrong = (float(paid.reward_n[side].mean()) for side in (paid.right_n, paid.wrong_n))
    text = (
        f"{paid.right_n.sum()} right answers earn {right:.3g}, {paid.wrong_n.sum()} wrong ones {wrong:.3g} on average"
    )
    shown = [seen_among(paid.steps, paid.among(paid.right_n), text, right - wrong)]
    return Found(CRITICAL, PROOF, "Right answers earn less than wrong ones: a sign of the reward is flipped.", shown)


def _rejected_class(case: Case) -> Found | None:
    """Find tasks whose right answers are paid as wrong ones, in words that are accepted on other tasks."""
    paid = case.once(payment)
    if paid is None or not paid.earnings.top > paid.earnings.base:
        return None
    rejected = paid.right_n & (paid.reward_n <= paid.earnings.base + 0.1 * (paid.earnings.top - paid.earnings.base))
    accepted = paid.right_n & (paid.reward_n > (paid.earnings.base + paid.earnings.top) / 2)
    common = {f for f, n in Counter(paid.form_n[accepted].tolist()).items() if n >= MIN_WRONG_SCORES}
    rejected &= np.isin(paid.form_n, list(common))
    tasks, fine = set(paid.task_n[rejected].tolist()), set(paid.task_n[accepted].tolist())
    torn = tasks & fine  # paid on one occasion and not on another: noise, not a class
    tasks -= torn
    golds = dict(zip(paid.task_n.tolist(), paid.gold_n, strict=True))
    share = len(tasks) / max(1, len(tasks | fine))
    named = name_class([golds[task] for task in sorted(tasks)], [golds[task] for task in sorted(fine)])
    # A task of several turns may ask for more than its last answer: there a class of answers must explain it.
    is_long = case.once(_has_turns)
    enough = 2 if named and rejected.sum() >= 2 * MIN_WRONG_SCORES else MIN_WRONG_SCORES
    if len(tasks) < enough or len(torn) > 0.2 * len(tasks) or share < 0.03 or (is_long and not named):
        return None
    flags = rejected & np.isin(paid.task_n, list(tasks))
    text = f"on {len(tasks)} of {len(tasks | fine)} tasks with right answers these are paid as wrong ones are"
    examples = sorted({golds[task] for task in tasks}, key=len)[:6]
    shown = seen_among(paid.steps, paid.among(flags), f"{text}, such as {', '.join(map(repr, examples))}", share)
    summary = f"The reward rejects right answers of one kind: {named}." if named else ""
    summary = summary or f"The reward rejects the right answers of {share:.0%} of tasks, always of the same ones."
    return Found(by_share(share, critical=0.1), PROOF, summary, [shown])


def _has_turns(case: Case) -> bool:
    turns = case.curve("sampling/turns/mean")[1]
    return len(turns) > 0 and float(turns.mean()) > 1.1


@check("reward.component-dominates", columns=["parts", "reward"])
def drowned_answers(case: Case) -> Answer:
    """Report a part of the reward that brings most of its variance and pays right answers no more than wrong ones."""
    return case.once(_drowned)


def _drowned(case: Case) -> Found | Lacking | None:
    paid = case.once(payment)
    is_kept = all(r.has("parts") for r in case.rows)
    if (
        not paid
        or not is_kept
        or min(paid.right_n.sum(), paid.wrong_n.sum()) < MIN_ROLLOUTS / 2
        or case.once(_has_turns)
    ):
        return Lacking(f"fewer than {MIN_ROLLOUTS // 2} answers are surely right or wrong")
    given = [part for a in paid.steps for part in np.array(a.rows.parts_n, object)[a.place_n]]
    names = sorted({name for parts in given for name in parts})
    values = {name: np.array([parts.get(name, 0.0) for parts in given]) for name in names}
    total = sum(float(np.var(value)) for value in values.values())
    for name, value in values.items():
        share, right, wrong = float(np.var(value)) / max(total, 1e-12), value[paid.right_n], value[paid.wrong_n]
        # Within these deviations it has little to do with the answer; far below, its sign is flipped.
        is_apart = -1.2 * value.std() < right.mean() - wrong.mean() < 0.2 * value.std()
        if len(names) > 1 and share >= 0.7 and is_apart:
            text = f"{name} gives right answers {right.mean():.3g} and wrong ones {wrong.mean():.3g}"
            summary = f"{name} brings {share:.0%} of the reward's variance and does not pay for right answers."
            return Found(WARNING, SIGNAL, summary, [Evidence(text, share)])
    return None


@check("reward.gold-rejected")
def pays_wrong_answers(case: Case) -> Answer:
    """Report a reward that pays surely wrong answers as it pays right ones."""
    if lacking := why_no_answers(case):
        return Lacking(lacking)
    paid = case.once(payment)
    others = (misaligned.judge, _broadcast, _inverted, _conflicting, _drowned, _rescaled)
    if paid is None or any(isinstance(case.once(other), Found) for other in others):
        return None
    flags = paid.wrong_n & (paid.reward_n >= paid.earnings.top - 1e-6)
    tasks, count = len(set(paid.task_n[flags].tolist())), int(paid.wrong_n.sum())
    if tasks < MIN_WRONG_SCORES or paid.paid_wrong_share < 0.03 or _has_turns(case):
        return None
    said = [text for a, of in zip(paid.steps, paid.among(flags), strict=True) for text in np.array(a.said_n)[of]]
    golds = [gold for gold, is_paid in zip(paid.gold_n, flags, strict=True) if is_paid]
    examples = "; ".join(
        f"{text[-30:]!r} for {gold!r}" for text, gold in list(dict(zip(said, golds, strict=True)).items())[:3]
    )
    text = f"{flags.sum()} of {count} wrong answers earn as much as right ones ({paid.earnings.top:.3g}): {examples}"
    share = f"{paid.paid_wrong_share:.0%}"
    summary = f"{share} of wrong answers are paid as right ones: the reward can be had without the answer."
    shown = seen_among(paid.steps, paid.among(flags), text, paid.paid_wrong_share)
    return Found(by_share(paid.paid_wrong_share, critical=0.5), PROOF, summary, [shown])


def _conflicts(r: Rows, sign: int = 0) -> tuple[int, Flags]:
    """Count rollouts with the tokens of an earlier one of their task, and flag those that earn something else.

    With a sign, only those that earn less (-1) or more (1).
    """
    flags, repeated = np.zeros(len(r), np.bool_), 0
    if r.task_n is None:
        return 0, flags
    ids, golds = r.read_tokens("ids"), r.texts("answer")  # one question with two golds is another fault
    first: dict[tuple[int, str | None, bytes, str], float] = {}
    # Rollouts without tokens have no place in `rollout_t`, and are not compared.
    for n, start in zip(*np.unique(r.rollout_t, return_index=True), strict=True):
        if not np.isfinite(r.reward_n[n]):
            continue
        end = np.searchsorted(r.rollout_t, n, "right")
        key = (int(r.task_n[n]), golds[n], ids[start:end].tobytes(), str(r.ended_n[n]))
        repeated += key in first
        gain = r.reward_n[n] - first.setdefault(key, r.reward_n[n])
        flags[n] = abs(gain) > 1e-6 and (not sign or gain * sign > 0)
    return repeated, flags
