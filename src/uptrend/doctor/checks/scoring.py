"""Scores of single rollouts: given where nothing failed, to each rollout, and to the one that
earned them.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace

import numpy as np

from uptrend.doctor.answers import (
    CUT_ENDINGS,
    MIN_ROLLOUTS,
    MIN_WRONG_SCORES,
    UNFINISHED_ENDINGS,
    Answers,
    read_answer_rewards,
    read_answers,
    why_no_answers,
    why_no_scores,
)
from uptrend.doctor.case import Case
from uptrend.doctor.catalogue import takes_several_turns
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
from uptrend.doctor.checks.advantages import ALL_DEAD, suspect_of_dead_run
from uptrend.doctor.checks.rewards import constant_reward
from uptrend.doctor.checks.tools import too_many_failed
from uptrend.doctor.groups import count_flags, rollout_evidence, subset_evidence
from uptrend.doctor.trend import REWARD_METRIC
from uptrend.records import Evidence, RewardOutOfBounds, boundary_of
from uptrend.records.table import Flags, RolloutTable
from uptrend.tasks.answers import answer_of, fold
from uptrend.tasks.proof import bounds_that_hold, furthest_outside

# Share of rollouts with an error and a reward from which it is no accident of a few.
MIN_ERROR_SHARE = 0.01
# Share of rollouts without a reward from which the rest is a selection.
MIN_LOST_SHARE = 0.05
# Share of rollouts without a reward from which scoring never happens, and an error is not the
# exception.
UNSCORED_SHARE = 0.5
# Shares of rollouts that run out of turns, time or tokens, and of these that earn the least, where
# a reward waits for an event that hardly ever happens.
MIN_RAN_OUT_SHARE = 0.9
MIN_BOTTOM_SHARE = 0.95
# Share of wrong answers that are paid from which a reward pays for other things than answers.
PAYS_FOR_OTHER_THINGS = 0.5
# Shares of right answers that are refused, and of rewarded ones that say something else, of
# misaligned rewards.
MIN_MISALIGNED_SHARE = 0.3
# Shares of these that say another task's answer from which that is the reason, and from which that
# is proven.
MIN_OTHERS_SHARE = 0.5
PROVEN_OTHERS_SHARE = 0.8
# Places by which rewards are tried against the answers beside theirs; shares of rewards that must
# fit there, and that may fit their own place. Rewards that hardly vary fit anywhere.
MAX_PLACES = 16
MIN_MOVED_FIT = 0.95
MAX_OWN_FIT = 0.85
VARYING_REWARDS = (0.1, 0.9)
# Share of groups with right and wrong answers that have one reward where it was spread over them;
# and the share of one value above which the scorer always says the same.
MIN_FLAT_SHARE = 0.9
MAX_ONE_VALUE_SHARE = 0.8


@check("reward.error-scored")
def error_scored(case: Case) -> Answer:
    """Report rollouts that failed and have a reward all the same, or that fail so often that
    scoring is broken.
    """
    failed = too_many_failed(case, by_tool=False)
    raised = _commonest_error(case.tables) if isinstance(failed, Found) else None
    if isinstance(failed, Found) and raised is not None:
        summary = failed.summary.partition(":")[0]
        failed = replace(
            failed, summary=f"{summary}: {raised.text}.", evidence=[*failed.evidence, raised]
        )
    if lacking := why_no_scores(case):
        return [Lacking(lacking), failed]
    rows = case.tables
    total = sum(map(len, rows))
    # An error while closing comes after the score, and changes nothing.
    errors = [
        np.array([boundary_of(e) not in ("", "close") for e in r.texts("error")], np.bool_)
        for r in rows
    ]
    flags = [is_error & np.isfinite(r.reward_n) for r, is_error in zip(rows, errors, strict=True)]
    count = count_flags(flags)
    if not count:
        return failed
    error = next(
        r.texts("error")[int(f.argmax())] for r, f in zip(rows, flags, strict=True) if f.any()
    )
    text = f"{count} of {total} rollouts have an error and a reward, such as {str(error)[:80]!r}"
    severity = warn_if(count >= MIN_ERROR_SHARE * total)
    return [
        failed,
        Found(severity, PROOF, PAGE_SUMMARY, [rollout_evidence(rows, flags, text, count / total)]),
    ]


@check("reward.out-of-bounds")
def out_of_bounds(case: Case) -> Answer:
    """Report rollouts that failed because their reward left its bounds."""
    if lacking := why_no_scores(case):
        return Lacking(lacking)
    rows = case.tables
    total = sum(map(len, rows))
    errors_by_step = [
        [RewardOutOfBounds.read(error or "") for error in r.texts("error")] for r in rows
    ]
    errors = [error for step in errors_by_step for error in step if error is not None]
    if not errors:
        return None
    furthest = furthest_outside(errors)
    bounds = {
        name: f"[{low:.9g}, {high:.9g}]" for name, (low, high) in bounds_that_hold(errors).items()
    }
    functions = case.value("tasks.reward")
    if len(bounds) == 1 and not (isinstance(functions, list | tuple) and len(functions) > 1):
        right = f"set tasks.bounds = {bounds[furthest.name]}"
    else:  # each function has a pair of its own
        right = "in tasks.bounds, set " + " and ".join(
            f"those of {name} to {pair}" for name, pair in bounds.items()
        )
    share = len(errors) / total
    flags = [np.array([error is not None for error in step], np.bool_) for step in errors_by_step]
    shown = rollout_evidence(
        rows, flags, f"{len(errors)} of {total} rollouts have no reward for that", share
    )
    severity = CRITICAL if share >= MIN_LOST_SHARE else WARNING
    return Found(severity, PROOF, f"{furthest.sentence}: {right}.", [shown])


@check("reward.never-computed")
def never_computed(case: Case) -> Answer:
    """Report runs in which nothing is scored, or what would give a reward hardly ever happens."""
    is_awaited = takes_several_turns(case.view)
    is_known = case.value("sampling.max_turns") is not None
    unpaid = never_paid(case) if is_awaited or not is_known else None
    if unpaid is not None and unpaid.value == 0:
        text = (
            "The event that gives a reward may never occur: count it in a few rollouts to"
            " settle it."
        )
        return Found(NOTE, SUSPICION, text, [unpaid])
    if lacking := why_no_scores(case):
        return Lacking(lacking)
    unscored = _never_scored(case.tables)
    # Where a task has one turn, its message is scored, whatever it says.
    if unscored is not None or _missing_scores(case.tables) or not is_awaited:
        return unscored
    return _awaited(case)


def _never_scored(rows: list[RolloutTable]) -> Found | None:
    """Find runs of which most rollouts have no reward."""
    total = sum(map(len, rows))
    unscored = [np.isnan(r.reward_n) for r in rows]
    count = count_flags(unscored)
    if count < UNSCORED_SHARE * total:
        return None
    evidence = [
        rollout_evidence(
            rows,
            unscored,
            f"{count} of {total} rollouts have no reward",
            count / total,
            REWARD_METRIC,
        )
    ]
    because = ""
    raised = _commonest_error(rows)
    if raised is not None:
        evidence.append(raised)
        because = f": {raised.text}"
    return Found(CRITICAL, PROOF, f"Most rollouts were never scored{because}.", evidence)


def _awaited(case: Case) -> Found | None:
    """Find rollouts of several turns that run out before anything gives a reward."""
    rows = case.tables
    total = sum(map(len, rows))
    # One turn may have too few tokens for what gives a reward.
    endings = CUT_ENDINGS if (case.value("sampling.max_turns") or 1) > 1 else UNFINISHED_ENDINGS
    ran_out = [np.isin(r.ended_n, endings) for r in rows]
    # A reward that can be negative and is 0 for everybody was not earned either.
    is_nothing = not any(np.any(r.reward_n) for r in rows)
    at_low = [is_nothing | (r.reward_n <= r.by_rollout("reward_low") + 1e-6) for r in rows]
    low = [is_out & is_low for is_out, is_low in zip(ran_out, at_low, strict=True)]
    count = count_flags(ran_out)
    bottom = count_flags(low)
    if (
        total < MIN_ROLLOUTS
        or count < MIN_RAN_OUT_SHARE * total
        or bottom < MIN_BOTTOM_SHARE * count
    ):
        return None
    text = (
        f"{count} of {total} rollouts ran out of turns, time or tokens, and {bottom} of these"
        " earned the least"
    )
    shown = rollout_evidence(rows, low, text, count / total, "sampling/ended/turn-limit/share")
    return Found(WARNING, SIGNAL, PAGE_SUMMARY, [shown])


def never_paid(case: Case) -> Evidence | None:
    """Return evidence where scalars alone show that no rollout was ever paid more than the
    least.
    """
    # Broken scorers are more common than tasks of which not one attempt succeeds. With rollouts,
    # those decide.
    steps, values = case.curve(REWARD_METRIC)
    if (
        case.view.rollout_steps
        or not constant_reward.alarms(case)
        or np.ptp(values) > 0
        or values[0] > 0
    ):
        return None
    value = float(values[0])
    return Evidence(
        f"{value:.3g} at each of {len(values)} points, from the first on.",
        value,
        REWARD_METRIC,
        int(steps[0]),
    )


def _commonest_error(rows: list[RolloutTable]) -> Evidence | None:
    """Return what the scorer said most often where it failed, with its count."""
    errors = [[(error or "").partition("score: ")[2] for error in r.texts("error")] for r in rows]
    counts = Counter(error for step in errors for error in step if error)
    if not counts:
        return None
    commonest, count = counts.most_common(1)[0]
    flags = [np.array([error == commonest for error in step], np.bool_) for step in errors]
    text = f"{count} of {sum(map(len, rows))} rollouts failed with {commonest[:120]}"
    if len(counts) > 1:
        text += f", others in {len(counts) - 1} other ways"
    return rollout_evidence(rows, flags, text, float(count))


def _missing_scores(rows: list[RolloutTable]) -> list[Flags]:
    """Flag rollouts without a reward, and without an error that says why; empty where there is
    none.
    """
    flags = [
        np.isnan(r.reward_n) & np.array([not e for e in r.texts("error")], np.bool_) for r in rows
    ]
    return flags if count_flags(flags) else []


@check("reward.misaligned")
def misaligned(case: Case) -> Answer:
    """Report scores against the answers of other tasks, or of other rollouts."""
    if lacking := why_no_answers(case):
        return Lacking(lacking)
    steps = case.cached(read_answers)
    return _moved(steps) or (None if _pays_for_other_things(case) else _of_other_tasks(steps))


def _pays_for_other_things(case: Case) -> bool:
    paid = case.cached(read_answer_rewards)
    return paid is not None and (paid.is_inverted or paid.paid_wrong_share >= PAYS_FOR_OTHER_THINGS)


def _of_other_tasks(steps: list[Answers]) -> Found | None:
    """Find right answers that are refused, and rewarded ones that say another task's answer."""
    refused = [step.right_n & ~step.rewarded_n for step in steps]
    strange = [step.rewarded_n & ~step.right_n for step in steps]
    right = count_flags(step.right_n for step in steps)
    rewarded = count_flags(step.rewarded_n for step in steps)
    n_refused = count_flags(refused)
    n_strange = count_flags(strange)
    if min(n_refused, n_strange) < MIN_WRONG_SCORES or n_refused < MIN_MISALIGNED_SHARE * right:
        return None
    if n_strange < MIN_MISALIGNED_SHARE * rewarded:
        return None
    # Words that are refused where they are right and paid where they are wrong: the scorer reads
    # them, for other tasks.
    refused_words = {
        word for step, flags in zip(steps, refused, strict=True) for word in _words(step, flags)
    }
    others = 0
    for step, flags in zip(steps, strange, strict=True):
        golds = refused_words.union(map(fold, step.gold_n))
        others += sum(word in golds for word in _words(step, flags))
    share = others / n_strange
    if share < MIN_OTHERS_SHARE:  # it pays for something else, or the answer is in earlier turns
        return None
    refusals = (
        f"{n_refused} of {right} rollouts that say their task's answer are not counted as right"
    )
    payments = f"{n_strange} of {rewarded} that are counted as right say something else; "
    payments += f"{share:.0%} of these say another task's answer"
    evidence = [
        subset_evidence(steps, refused, refusals, n_refused / right),
        subset_evidence(steps, strange, payments, share),
    ]
    return Found(
        CRITICAL, PROOF if share >= PROVEN_OTHERS_SHARE else SIGNAL, PAGE_SUMMARY, evidence
    )


def _words(step: Answers, flags: Flags) -> Iterable[str]:
    return (answer_of(step.response_n[n]) for n in np.flatnonzero(flags))


def _moved(steps: list[Answers]) -> Found | None:
    """Find rewards that belong to the rollout some places before or after, in the order of a
    step.
    """
    rewarded = np.concatenate([step.rewarded_n for step in steps])
    least, most = VARYING_REWARDS
    if len(rewarded) < MIN_ROLLOUTS or not least < rewarded.mean() < most:
        return None

    def agreement(places: int) -> float:
        return float(
            np.mean(
                np.concatenate([np.roll(step.right_n, places) == step.rewarded_n for step in steps])
            )
        )

    best = max((places for places in range(-MAX_PLACES, MAX_PLACES + 1) if places), key=agreement)
    fits = agreement(best)
    own = agreement(0)
    if fits < MIN_MOVED_FIT or own > MAX_OWN_FIT:
        return None
    text = (
        f"{fits:.0%} of rewards are those of the rollout {abs(best)} places"
        f" {'before' if best > 0 else 'after'}"
    )
    off = [step.right_n != step.rewarded_n for step in steps]
    return Found(
        CRITICAL,
        PROOF,
        PAGE_SUMMARY,
        [subset_evidence(steps, off, f"{text}, {own:.0%} their own", fits)],
    )


@check("reward.wrong-length")
def wrong_length(case: Case) -> Answer:
    """Report fewer rewards than rollouts, or one reward spread over all rollouts of a group or
    step.
    """
    if suspect_of_dead_run(case) == "reward.wrong-length":
        text = (
            "All rollouts of a step have one reward, and another one at the next: one score may be"
            " spread over all."
        )
        return Found(WARNING, SIGNAL, text, [ALL_DEAD])
    too_few = None if why_no_scores(case) else _too_few_scores(case.tables)
    if lacking := why_no_answers(case):
        return [too_few, Lacking(lacking)]
    return [too_few, None if case.cached(misaligned.judge) else case.cached(spread_reward)]


def _too_few_scores(rows: list[RolloutTable]) -> Found | None:
    """Find rollouts without a reward that nothing explains, beside others that have one."""
    total = sum(map(len, rows))
    unexplained = _missing_scores(rows)
    count = count_flags(unexplained)
    if not count or count_flags(np.isnan(r.reward_n) for r in rows) >= UNSCORED_SHARE * total:
        return None
    text = f"{count} of {total} rollouts have no reward, and no error says why"
    return Found(
        CRITICAL,
        PROOF,
        PAGE_SUMMARY,
        [rollout_evidence(rows, unexplained, text, count / total, REWARD_METRIC)],
    )


def spread_reward(case: Case) -> Found | None:
    """Find groups in which right and wrong answers earn the same, and some of them not the least
    that there is.
    """
    steps = case.cached(read_answers)
    mixed = 0
    flat = 0
    raised = 0
    flags: list[Flags] = []
    for step in steps:
        is_flat = np.zeros(len(step.index_n), np.bool_)
        for task in np.unique(step.task_n[step.right_n]):
            of_task = step.task_n == task
            if step.right_n[of_task].all():
                continue
            mixed += 1
            if np.ptp(step.reward_n[of_task]) == 0:
                flat += 1
                raised += not step.low_n[of_task].any()
                is_flat |= of_task
        flags.append(is_flat)
    if raised < MIN_WRONG_SCORES or flat < MIN_FLAT_SHARE * mixed:
        return None
    rewards = np.concatenate(
        [step.reward_n[is_flat] for step, is_flat in zip(steps, flags, strict=True)]
    )
    if np.unique(rewards, return_counts=True)[1].max() > MAX_ONE_VALUE_SHARE * len(rewards):
        # one reward for everything: a scorer that always says the same, not one that says it once
        return None
    text = (
        f"in {flat} of {mixed} groups with right and wrong answers all rollouts have the same"
        " reward"
    )
    return Found(
        CRITICAL,
        PROOF,
        PAGE_SUMMARY,
        [subset_evidence(steps, flags, text, flat / mixed, "reward/group_std/mean")],
    )
