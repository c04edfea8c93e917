"""Scores of single rollouts: given only where nothing failed, to each rollout, and to the one that
earned them.

n = rollout (in `Answers`: answer).
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np

from uptrend.doctor.answers import (
    LIMIT_ENDINGS,
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
from uptrend.doctor.checks.advantages import ALL_DEAD_EVIDENCE, suspect_of_dead_run
from uptrend.doctor.checks.rewards import constant_reward
from uptrend.doctor.checks.tools import too_many_failed
from uptrend.doctor.groups import count_flags, rollout_evidence, subset_evidence
from uptrend.doctor.trend import REWARD_METRIC
from uptrend.present.formatting import plural
from uptrend.records import Evidence, RewardOutOfBounds, boundary_of
from uptrend.records.table import Flags, RolloutTable
from uptrend.tasks.answers import answer_of, fold
from uptrend.tasks.proof import bounds_that_hold, furthest_outside

# Share of rollouts with an error and a reward from which it is no accident of a few.
MIN_ERROR_SHARE = 0.01
# Share of rollouts that lost their reward from which the rest is a selection.
MIN_LOST_SHARE = 0.05
# Share of rollouts without a reward from which scoring never happens, and an error is not the
# exception.
UNSCORED_SHARE = 0.5
# A reward that waits for an event that hardly ever happens: share of rollouts that run out of
# turns, time or tokens, and share of these that earn the least.
MIN_RAN_OUT_SHARE = 0.9
MIN_BOTTOM_SHARE = 0.95
# Rewards this close are the same number.
REWARD_TOLERANCE = 1e-6
# Share of wrong answers that are paid from which a reward pays for other things than answers.
PAYS_FOR_OTHER_THINGS = 0.5
# Rewards for other tasks' answers: shares of right answers that are refused, and of rewarded ones
# that are not right.
MIN_MISALIGNED_SHARE = 0.3
# Share of rewarded answers that are not right and give another task's answer: from the first on
# that is the reason, from the second on it is proven.
MIN_OTHERS_SHARE = 0.5
PROVEN_OTHERS_SHARE = 0.8
# Rewards that went to a neighbor in the step: distance up to which neighbors are tried, share of
# rewards that must fit there, and share that may fit their own rollout.
MAX_DISTANCE = 16
MIN_MOVED_FIT = 0.95
MAX_OWN_FIT = 0.85
# Range of the share of rewarded rollouts outside of which rewards hardly vary and fit anywhere.
MIN_REWARDED_SHARE = 0.1
MAX_REWARDED_SHARE = 0.9
# One score spread over a group: share of groups with right and wrong answers that have one reward.
MIN_FLAT_SHARE = 0.9
# Share of one value among these rewards above which the scorer always returns the same.
MAX_ONE_VALUE_SHARE = 0.8
# Beginnings of errors that are no failures of the scorer: `Undecided` is its own answer.
NOT_FAILURES = ("Undecided", RewardOutOfBounds.__name__)
# Characters of an error in the evidence.
ERROR_CHARACTERS = 80
SCORER_ERROR_CHARACTERS = 120


@check("reward.error-scored", by_source=True)
def error_scored(case: Case) -> Answer:
    """Report failed rollouts that have a reward all the same, or that are so many that scoring is
    broken.
    """
    failed = too_many_failed(case, by_tool=False)
    if isinstance(failed, Found):
        failed = _with_commonest_error(failed, case.tables)
    if lacking := why_no_scores(case):
        return [Lacking(lacking), failed]
    if not isinstance(failed, Found):
        failed = _scorer_raised(case.tables) or failed
    return [failed, _errors_with_reward(case.tables)]


def _scorer_raised(tables: list[RolloutTable]) -> Found | None:
    """Find runs, however short, most of whose rollouts the scorer failed on."""
    rollouts = sum(map(len, tables))
    count = sum(len(_scorer_errors(table)) for table in tables)
    error = _commonest_error(tables)
    if error is None or count < UNSCORED_SHARE * rollouts:
        return None
    summary = f"The scorer failed on {count / rollouts:.0%} of rollouts: {error.text}."
    return Found(CRITICAL, PROOF, summary, [error])


def _with_commonest_error(failed: Found, tables: list[RolloutTable]) -> Found:
    """Return the finding with the error that scorers raised most often."""
    error = _commonest_error(tables)
    if error is None:
        return failed
    headline = failed.summary.partition(":")[0]
    return replace(failed, summary=f"{headline}: {error.text}.", evidence=[*failed.evidence, error])


def _errors_with_reward(tables: list[RolloutTable]) -> Found | None:
    """Find rollouts that have an error and a reward."""
    rollouts = sum(map(len, tables))
    flags: list[Flags] = []
    example = ""
    for table in tables:
        errors = table.texts("error")
        # An error while closing comes after the score, and changes nothing.
        has_failed = [boundary_of(error) not in ("", "close") for error in errors]
        is_scored_error = np.array(has_failed, np.bool_) & np.isfinite(table.reward_n)
        if is_scored_error.any() and not example:
            example = str(errors[int(is_scored_error.argmax())])
        flags.append(is_scored_error)
    count = count_flags(flags)
    if not count:
        return None
    text = (
        f"{count} of {rollouts} rollouts have an error and a reward, such as"
        f" {example[:ERROR_CHARACTERS]!r}"
    )
    evidence = rollout_evidence(tables, flags, text, count / rollouts)
    return Found(warn_if(count >= MIN_ERROR_SHARE * rollouts), PROOF, PAGE_SUMMARY, [evidence])


def _commonest_error(tables: list[RolloutTable]) -> Evidence | None:
    """Return the error that scorers raised most often, with its count."""
    errors_by_table = [_scorer_errors(table) for table in tables]
    counts: Counter[str] = Counter()
    for errors in errors_by_table:
        counts.update(errors.values())
    if not counts:
        return None
    commonest, count = counts.most_common(1)[0]
    rollouts = sum(map(len, tables))
    text = f"{count} of {rollouts} rollouts failed with {commonest[:SCORER_ERROR_CHARACTERS]}"
    if len(counts) > 1:
        text += f", others in {plural(len(counts) - 1, 'other way')}"
    flags: list[Flags] = []
    for table, errors in zip(tables, errors_by_table, strict=True):
        is_commonest = [errors.get(n) == commonest for n in range(len(table))]
        flags.append(np.array(is_commonest, np.bool_))
    return rollout_evidence(tables, flags, text, float(count))


def _scorer_errors(table: RolloutTable) -> dict[int, str]:
    """Return what scorers failed with, by rollout. A scorer that can't tell has not failed, and
    bounds have a check of their own.
    """
    errors: dict[int, str] = {}
    for n, text in enumerate(table.texts("error")):
        error = (text or "").partition("score: ")[2]
        if error and not error.startswith(NOT_FAILURES):
            errors[n] = error
    return errors


@check("reward.out-of-bounds", by_source=True)
def out_of_bounds(case: Case) -> Answer:
    """Report rollouts that failed because their reward left its bounds."""
    if lacking := why_no_scores(case):
        return Lacking(lacking)
    rollouts = sum(map(len, case.tables))
    errors: list[RewardOutOfBounds] = []
    flags: list[Flags] = []
    for table in case.tables:
        is_outside = np.zeros(len(table), np.bool_)
        for n, text in enumerate(table.texts("error")):
            error = RewardOutOfBounds.read(text or "")
            if error is not None:
                errors.append(error)
                is_outside[n] = True
        flags.append(is_outside)
    if not errors:
        return None
    share = len(errors) / rollouts
    severity = CRITICAL if share >= MIN_LOST_SHARE else WARNING
    summary = f"{furthest_outside(errors).sentence}: {_right_bounds(case, errors)}."
    text = f"{len(errors)} of {rollouts} rollouts have no reward for that"
    return Found(severity, PROOF, summary, [rollout_evidence(case.tables, flags, text, share)])


def _right_bounds(case: Case, errors: Sequence[RewardOutOfBounds]) -> str:
    """Return how to set bounds that hold all rewards."""
    bounds: dict[str, str] = {}
    for name, (low, high) in bounds_that_hold(errors).items():
        bounds[name] = f"[{low:.9g}, {high:.9g}]"
    functions = case.value("tasks.reward")
    has_several_functions = isinstance(functions, list | tuple) and len(functions) > 1
    if len(bounds) == 1 and not has_several_functions:
        return f"set tasks.bounds = {bounds[furthest_outside(errors).name]}"
    # Each function has a pair of its own.
    settings = [f"those of {name} to {pair}" for name, pair in bounds.items()]
    return f"in tasks.bounds, set {' and '.join(settings)}"


@check("reward.never-computed", by_source=True)
def never_computed(case: Case) -> Answer:
    """Report runs in which nothing is scored, or what would give a reward hardly ever happens."""
    has_several_turns = takes_several_turns(case.view)
    turns_are_known = case.value("sampling.max_turns") is not None
    if has_several_turns or not turns_are_known:
        unpaid = never_paid(case)
        if unpaid is not None and unpaid.value == 0:
            summary = (
                "The event that gives a reward may never occur: count it in a few rollouts to"
                " settle it."
            )
            return Found(NOTE, SUSPICION, summary, [unpaid])
    if lacking := why_no_scores(case):
        return Lacking(lacking)
    unscored = _never_scored(case.tables)
    if unscored is not None:
        return unscored
    # Where a task has one turn, its message is scored, whatever it says.
    if not has_several_turns or count_flags(_unexplained_losses(case.tables)):
        return None
    return _event_never_reached(case)


def never_paid(case: Case) -> Evidence | None:
    """Return evidence where curves alone show that no rollout ever earned more than the least."""
    # Broken scorers are more common than tasks of which not one attempt succeeds. With rollouts,
    # those decide.
    if case.view.rollout_steps or not constant_reward.alarms(case):
        return None
    steps, rewards = case.curve(REWARD_METRIC)
    if np.ptp(rewards) > 0 or rewards[0] > 0:
        return None
    reward = float(rewards[0])
    text = f"{reward:.3g} at each of {len(rewards)} points, from the first on."
    return Evidence(text, reward, REWARD_METRIC, int(steps[0]))


def _never_scored(tables: list[RolloutTable]) -> Found | None:
    """Find runs of which most rollouts have no reward."""
    rollouts = sum(map(len, tables))
    flags = [np.isnan(table.reward_n) for table in tables]
    count = count_flags(flags)
    if count < UNSCORED_SHARE * rollouts or _scorer_raised(tables) is not None:
        return None
    text = f"{count} of {rollouts} rollouts have no reward"
    evidence = rollout_evidence(tables, flags, text, count / rollouts, REWARD_METRIC)
    return Found(CRITICAL, PROOF, "Most rollouts were never scored.", [evidence])


def _event_never_reached(case: Case) -> Found | None:
    """Find rollouts of several turns that run out before anything gives a reward."""
    tables = case.tables
    # One turn may have too few tokens for what gives a reward.
    endings = LIMIT_ENDINGS if (case.value("sampling.max_turns") or 1) > 1 else UNFINISHED_ENDINGS
    # A reward that can be negative and is 0 for every rollout was not earned either.
    is_always_0 = not any(np.any(table.reward_n) for table in tables)
    ran_out: list[Flags] = []
    unpaid: list[Flags] = []
    for table in tables:
        is_out = np.isin(table.ended_n, endings)
        least_n = table.numbers("reward_low") + REWARD_TOLERANCE
        ran_out.append(is_out)
        unpaid.append(is_out & (is_always_0 | (table.reward_n <= least_n)))

    rollouts = sum(map(len, tables))
    n_ran_out = count_flags(ran_out)
    n_unpaid = count_flags(unpaid)
    if rollouts < MIN_ROLLOUTS or n_ran_out < MIN_RAN_OUT_SHARE * rollouts:
        return None
    if n_unpaid < MIN_BOTTOM_SHARE * n_ran_out:
        return None
    text = (
        f"{n_ran_out} of {rollouts} rollouts ran out of turns, time or tokens, and {n_unpaid} of"
        " these earned the least"
    )
    metric = "sampling/ended/turn-limit/share"
    evidence = rollout_evidence(tables, unpaid, text, n_ran_out / rollouts, metric)
    return Found(WARNING, SIGNAL, PAGE_SUMMARY, [evidence])


@check("reward.misaligned")
def misaligned(case: Case) -> Answer:
    """Report scores that went to other rollouts, or that are for the answers of other tasks."""
    if lacking := why_no_answers(case):
        return Lacking(lacking)
    steps = case.cached(read_answers)
    moved = _moved_rewards(steps)
    if moved is not None or _pays_for_other_things(case):
        return moved
    return _rewards_of_other_tasks(steps)


def _moved_rewards(steps: list[Answers]) -> Found | None:
    """Find rewards that fit the rollout some distance before or after, in the order of a step."""
    rewarded = np.concatenate([step.rewarded_n for step in steps])
    is_varied = MIN_REWARDED_SHARE < rewarded.mean() < MAX_REWARDED_SHARE
    if len(rewarded) < MIN_ROLLOUTS or not is_varied:
        return None

    def fit_at(distance: int) -> float:
        right = np.concatenate([np.roll(step.right_n, distance) for step in steps])
        return float((right == rewarded).mean())

    own_fit = fit_at(0)
    distances = [*range(-MAX_DISTANCE, 0), *range(1, MAX_DISTANCE + 1)]
    best = max(distances, key=fit_at)
    best_fit = fit_at(best)
    if best_fit < MIN_MOVED_FIT or own_fit > MAX_OWN_FIT:
        return None
    direction = "before" if best > 0 else "after"
    text = (
        f"{best_fit:.0%} of rewards are those of the rollout {abs(best)} places {direction},"
        f" {own_fit:.0%} their own"
    )
    flags = [step.right_n != step.rewarded_n for step in steps]
    return Found(CRITICAL, PROOF, PAGE_SUMMARY, [subset_evidence(steps, flags, text, best_fit)])


def _pays_for_other_things(case: Case) -> bool:
    """Return True where what is paid is no answer at all, so that it is no other task's either."""
    paid = case.cached(read_answer_rewards)
    return paid is not None and (paid.is_inverted or paid.paid_wrong_share >= PAYS_FOR_OTHER_THINGS)


def _rewards_of_other_tasks(steps: list[Answers]) -> Found | None:
    """Find right answers that are refused, and rewarded ones that give another task's answer."""
    refused = [step.right_n & ~step.rewarded_n for step in steps]
    strange = [step.rewarded_n & ~step.right_n for step in steps]
    n_right = count_flags(step.right_n for step in steps)
    n_rewarded = count_flags(step.rewarded_n for step in steps)
    n_refused = count_flags(refused)
    n_strange = count_flags(strange)
    if min(n_refused, n_strange) < MIN_WRONG_SCORES:
        return None
    if n_refused < MIN_MISALIGNED_SHARE * n_right or n_strange < MIN_MISALIGNED_SHARE * n_rewarded:
        return None

    # Words that are refused where they are right and paid where they are wrong: the scorer reads
    # them, for other tasks.
    refused_words: set[str] = set()
    for step, flags in zip(steps, refused, strict=True):
        refused_words.update(_answers_of(step, flags))
    n_others = 0
    for step, flags in zip(steps, strange, strict=True):
        other_golds = refused_words.union(map(fold, step.gold_n))
        n_others += sum(answer in other_golds for answer in _answers_of(step, flags))
    share = n_others / n_strange
    if share < MIN_OTHERS_SHARE:  # it pays for something else, or the answer is in earlier turns
        return None

    refusals = (
        f"{n_refused} of {n_right} rollouts that say their task's answer are not counted as right"
    )
    payments = (
        f"{n_strange} of {n_rewarded} that are counted as right say something else; {share:.0%} of"
        " these say another task's answer"
    )
    evidence = [
        subset_evidence(steps, refused, refusals, n_refused / n_right),
        subset_evidence(steps, strange, payments, share),
    ]
    return Found(
        CRITICAL, PROOF if share >= PROVEN_OTHERS_SHARE else SIGNAL, PAGE_SUMMARY, evidence
    )


def _answers_of(step: Answers, flags: Flags) -> Iterable[str]:
    return (answer_of(step.response_n[n]) for n in np.flatnonzero(flags))


@check("reward.wrong-length")
def wrong_length(case: Case) -> Answer:
    """Report fewer rewards than rollouts, or one reward spread over all rollouts of a group or
    step.
    """
    if suspect_of_dead_run(case) == "reward.wrong-length":
        summary = (
            "All rollouts of a step have one reward, and another one at the next: one score may be"
            " spread over all."
        )
        return Found(WARNING, SIGNAL, summary, [ALL_DEAD_EVIDENCE])
    too_few = None if why_no_scores(case) else _too_few_scores(case.tables)
    if lacking := why_no_answers(case):
        return [too_few, Lacking(lacking)]
    return [too_few, None if case.cached(misaligned.judge) else case.cached(spread_reward)]


def _too_few_scores(tables: list[RolloutTable]) -> Found | None:
    """Find rollouts without a reward that nothing explains, beside others that have one."""
    rollouts = sum(map(len, tables))
    unexplained = _unexplained_losses(tables)
    count = count_flags(unexplained)
    n_unscored = count_flags(np.isnan(table.reward_n) for table in tables)
    if not count or n_unscored >= UNSCORED_SHARE * rollouts:
        return None
    text = f"{count} of {rollouts} rollouts have no reward, and no error says why"
    evidence = rollout_evidence(tables, unexplained, text, count / rollouts, REWARD_METRIC)
    return Found(CRITICAL, PROOF, PAGE_SUMMARY, [evidence])


def _unexplained_losses(tables: list[RolloutTable]) -> list[Flags]:
    """Flag rollouts without a reward, and without an error that says why."""
    flags: list[Flags] = []
    for table in tables:
        has_no_error = [not error for error in table.texts("error")]
        flags.append(np.isnan(table.reward_n) & np.array(has_no_error, np.bool_))
    return flags


def spread_reward(case: Case) -> Found | None:
    """Find groups in which right and wrong answers earn the same, in some of them more than the
    least.
    """
    steps = case.cached(read_answers)
    mixed = 0
    flat = 0
    flat_above_least = 0
    flags: list[Flags] = []
    rewards_of_flat = []
    for step in steps:
        is_in_flat = np.zeros(len(step.index_n), np.bool_)
        for task in np.unique(step.task_n[step.right_n]):
            of_task = step.task_n == task
            if step.right_n[of_task].all():
                continue
            mixed += 1
            if np.ptp(step.reward_n[of_task]) == 0:
                flat += 1
                flat_above_least += not step.low_n[of_task].any()
                is_in_flat |= of_task
        flags.append(is_in_flat)
        rewards_of_flat.append(step.reward_n[is_in_flat])
    if flat_above_least < MIN_WRONG_SCORES or flat < MIN_FLAT_SHARE * mixed:
        return None

    # One reward for everything is a scorer that always returns the same, not one score per group.
    rewards = np.concatenate(rewards_of_flat)
    _, counts = np.unique(rewards, return_counts=True)
    if counts.max() > MAX_ONE_VALUE_SHARE * len(rewards):
        return None
    text = (
        f"in {flat} of {mixed} groups with right and wrong answers all rollouts have the same"
        " reward"
    )
    evidence = subset_evidence(steps, flags, text, flat / mixed, "reward/group_std/mean")
    return Found(CRITICAL, PROOF, PAGE_SUMMARY, [evidence])
