"""Tasks that a run trains on, by their ids and families, and held-out evaluations."""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from uptrend.doctor.case import FIRST_STEPS_READ, Case, CurveSummary
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
from uptrend.doctor.checks.optimizer import signs_of_large_steps
from uptrend.doctor.checks.rewards import (
    MIN_EVALUATIONS,
    MIN_SHARE_VARIANCE,
    heldout_did_not_follow,
)
from uptrend.doctor.groups import group_sum, rollout_evidence
from uptrend.doctor.trend import SIGNIFICANCE_LEVEL, HeldoutChange, trend_until
from uptrend.present.formatting import number
from uptrend.records import Evidence, RecordError, Role, TrendKind
from uptrend.records.table import Flags, Floats, RolloutTable
from uptrend.stats.intervals import normal_reach, wilson
from uptrend.stats.trend import start

DUPLICATES_ID = "data.duplicates"
EXCEEDS_ID = "data.batch-exceeds"
CORRECT_METRIC = "reward/correct/share"
ENTROPY_METRIC = "learner/entropy/mean"
LENGTH_METRIC = "sampling/length/mean"

# An order of tasks: steps, and groups in each half of the run, below which the halves differ by
# chance.
MIN_STEPS = 4
MIN_GROUPS = 16
# Deviations of chi-squared from chance, and share of tasks in another family, from which the
# halves differ by order.
MIN_ORDER_DEVIATIONS = 5.0
MIN_SHIFTED_SHARE = 0.3


@check("data.order", columns=["group"], by_source=True)
def order(case: Case) -> Answer:
    """Report families that come in another mix late than early; a curriculum in the config is no
    fault.
    """
    if case.value("tasks.stages"):
        return None
    tables = []
    families = []
    prompt_lengths = []
    for table in case.tables:
        if table.group_n is not None:
            # One rollout per group stands for its task.
            _, heads = np.unique(table.group_n, return_index=True)
            family_n = np.array([family or "" for family in table.texts("family")])
            is_prompt_t = table.role_t == Role.PROMPT
            length_n = np.bincount(table.rollout_t[is_prompt_t], minlength=len(table))
            tables.append(table)
            families.append(family_n[heads])
            prompt_lengths.append(length_n[heads])

    half = len(tables) // 2
    early_groups = sum(map(len, families[:half]))
    late_groups = sum(map(len, families[half:]))
    if len(tables) < MIN_STEPS or min(early_groups, late_groups) < MIN_GROUPS:
        return Lacking(f"fewer than {MIN_STEPS} steps, or {MIN_GROUPS} groups early and late")

    # Data of one family that is sorted shows in the prompts' lengths.
    if len(set(np.concatenate(families))) < 2:
        middle = np.median(np.concatenate(prompt_lengths))
        families = [
            np.where(lengths > middle, "long prompts", "short prompts")
            for lengths in prompt_lengths
        ]
    early = np.concatenate(families[:half])
    late = np.concatenate(families[half:])
    names = np.union1d(early, late)
    if len(names) < 2:
        return None

    early_counts = [np.sum(early == name) for name in names]
    late_counts = [np.sum(late == name) for name in names]
    counts = np.array([early_counts, late_counts], float)
    early_share, late_share = counts / counts.sum(axis=1, keepdims=True)
    change = np.abs(early_share - late_share)
    shifted_share = float(change.sum() / 2)
    if _chi_squared_deviations(counts) < MIN_ORDER_DEVIATIONS or shifted_share < MIN_SHIFTED_SHARE:
        return None
    most = int(change.argmax())
    text = (
        f"{names[most]} is {early_share[most]:.0%} of the tasks early and {late_share[most]:.0%}"
        " late"
    )
    evidence = Evidence(text, shifted_share, step=tables[half].step)
    return Found(WARNING, PROOF, PAGE_SUMMARY, [evidence])


def _chi_squared_deviations(counts: Floats) -> float:
    """Return how many deviations chi-squared of a table of two rows lies above chance."""
    expected = counts.sum(axis=1, keepdims=True) * counts.sum(axis=0) / counts.sum()
    statistic = float(((counts - expected) ** 2 / expected).sum())
    freedom = counts.shape[1] - 1
    # The cube root of chi-squared / freedom is nearly normal, with mean 1 − v and variance v
    # (Wilson and Hilferty 1931).
    variance = 2 / (9 * freedom)
    return float((np.cbrt(statistic / freedom) - (1 - variance)) / np.sqrt(variance))


# Share of different tasks among groups, from which the others are accidents.
MIN_UNIQUE_SHARE = 0.9
# Different tasks / those that random draws would give, in the first steps and in all steps read.
MIN_VARIETY_AT_FIRST = 0.9
MIN_VARIETY = 0.6
# Groups below which their variety is chance.
MIN_DRAWS = 20


@check(DUPLICATES_ID, EXCEEDS_ID, columns=["task"], by_source=True)
def repeats(case: Case) -> Answer:
    """Report steps with more groups than there are tasks, the same task twice in a step, and too
    few different ones.
    """
    tables = [table for table in case.tables if table.task_n is not None]
    if not tables:
        return Lacking("some rollouts have no task id")
    if any(table.group_n is None for table in tables):
        return Lacking("no group ids")
    drawn = [_drawn_tasks(table) for table in tables]
    return (
        _more_groups_than_tasks(case, tables, drawn)
        or _repeated_within_steps(tables, drawn)
        or _too_few_different(case, tables, drawn)
    )


def _drawn_tasks(table: RolloutTable) -> list[str]:
    """Return the task of each group of a step that was learned from."""
    assert table.group_n is not None
    _, heads = np.unique(table.group_n[table.kept_n], return_index=True)
    return [str(task) for task in np.array(table.texts("task"))[table.kept_n][heads]]


def _task_count(case: Case) -> int | None:
    """Return the number of tasks, recorded or else configured; None where neither is known."""
    count = case.view.info.get("tasks", {}).get("count") or case.value("tasks.train")
    return int(count) if isinstance(count, int) and count > 0 else None


def _more_groups_than_tasks(
    case: Case, tables: list[RolloutTable], drawn: list[list[str]]
) -> Found | None:
    declared = _task_count(case)
    tasks = declared or len(set().union(*drawn))
    groups = max(map(len, drawn))
    # Without a declared number, few steps do not show all tasks.
    if groups <= tasks or (declared is None and len(tables) < MIN_STEPS):
        return None
    text = f"a step has {groups} groups, and there are {tasks} tasks"
    evidence = Evidence(text, groups, step=tables[0].step)
    return Found(WARNING, PROOF, PAGE_SUMMARY, [evidence], EXCEEDS_ID)


def _repeated_within_steps(tables: list[RolloutTable], drawn: list[list[str]]) -> Found | None:
    groups = sum(map(len, drawn))
    unique = sum(len(set(tasks)) for tasks in drawn)
    if unique >= MIN_UNIQUE_SHARE * groups:
        return None
    text = (
        f"of {groups} groups in {len(tables)} steps {groups - unique} have a task that another"
        " group of the step has"
    )
    flags = [_flag_repeats(table) for table in tables]
    evidence = rollout_evidence(tables, flags, text, unique / groups)
    return Found(WARNING, PROOF, PAGE_SUMMARY, [evidence], DUPLICATES_ID)


def _flag_repeats(table: RolloutTable) -> Flags:
    """Flag rollouts that were learned from and whose task an earlier group of the step has."""
    assert table.group_n is not None
    assert table.task_n is not None
    # Tasks are numbered from 0, so that entry i belongs to task i.
    _, first_rollout = np.unique(table.task_n, return_index=True)
    first_group = table.group_n[first_rollout]
    return np.asarray((first_group[table.task_n] != table.group_n) & table.kept_n)


def _too_few_different(
    case: Case, tables: list[RolloutTable], drawn: list[list[str]]
) -> Found | None:
    """Find draws with fewer different tasks than random ones have; a curriculum is no fault."""
    declared = _task_count(case)
    if declared is None or case.value("tasks.stages"):
        return None
    for steps, min_variety in (
        (FIRST_STEPS_READ, MIN_VARIETY_AT_FIRST),
        (len(tables), MIN_VARIETY),
    ):
        draws = sum(map(len, drawn[:steps]))
        different = len(set().union(*drawn[:steps]))
        expected = declared * (1 - np.exp(-draws / declared))
        if draws < MIN_DRAWS or different >= MIN_UNIQUE_SHARE * min(draws, declared):
            continue
        if different < min_variety * expected:
            text = (
                f"{different} different tasks in {draws} groups, where {declared} should give"
                f" {expected:.0f}"
            )
            evidence = Evidence(text, different / expected, step=tables[:steps][-1].step)
            return Found(WARNING, PROOF, PAGE_SUMMARY, [evidence], DUPLICATES_ID)
    return None


@check("data.leak", columns=["task"])
def leak(case: Case) -> Answer:
    """Report held-out tasks that are trained on."""
    tables = [table for table in case.tables if table.task_n is not None]
    if not tables:
        return Lacking("some rollouts have no task id")
    if not len(case.view.steps):
        return Lacking("no rollouts of training were kept")
    heldout_tasks = _heldout_tasks(case)
    if not heldout_tasks:
        return Lacking("no held-out rollouts were kept")
    trained: set[str] = set()
    flags: list[Flags] = []
    for table in tables:
        tasks = table.texts("task")
        trained.update(filter(None, tasks))
        flags.append(np.array([task in heldout_tasks for task in tasks], np.bool_))
    leaked = trained & heldout_tasks
    if not leaked:
        return None
    text = (
        f"{len(leaked)} of {len(heldout_tasks)} held-out tasks are among the {len(trained)} trained"
        f" on in {len(tables)} steps"
    )
    evidence = rollout_evidence(tables, flags, text, len(leaked) / len(heldout_tasks))
    return Found(CRITICAL, PROOF, PAGE_SUMMARY, [evidence])


def _heldout_tasks(case: Case) -> set[str]:
    """Return the tasks of the first and the last evaluation, as far as these can be read."""
    tasks: set[str] = set()
    for entry in (*case.view.evals[:1], *case.view.evals[-1:]):
        try:
            column = case.view.read_heldout(int(entry["step"])).column("task")
        except (RecordError, KeyError):
            continue
        tasks.update(filter(None, column.to_pylist()))
    return tasks


# Share by which right answers in training must have left those held out.
MIN_GAP = 0.15
# Times that each task was met from which a run can know its tasks by heart.
MIN_TIMES_MET = 2
# Times from which a gap between the two, beyond their errors, is enough.
MIN_TIMES_MET_OFTEN = 5
# p-values below which that gap is no chance, and below which a held-out fall is sure even where
# nothing else shows large steps.
GAP_LEVEL = SIGNIFICANCE_LEVEL / 5
SURE_FALL_LEVEL = SIGNIFICANCE_LEVEL / 10
# Smallest p-value that is printed.
MIN_PRINTED_P = 1e-4


def times_met(case: Case) -> float:
    """Return how often a task was met on average; 0 where it is not known."""
    drawn: list[str] = []
    for table in case.tables:
        if table.group_n is not None:
            drawn += _drawn_tasks(table)
    per_step = len(drawn) / len(case.tables) if drawn else case.value("sampling.groups", 0)
    tasks = _task_count(case)
    different = len(set(drawn))
    # Draws that repeat themselves show how many tasks there are: the config may ask for more.
    if len(drawn) >= MIN_DRAWS and different < MIN_UNIQUE_SHARE * len(drawn):
        tasks = _estimate_tasks(len(drawn), different)
    return len(case.view.steps) * per_step / tasks if tasks and per_step else 0.0


def _estimate_tasks(draws: int, different: int) -> int:
    """Return the number of tasks among which random draws show as many different ones."""
    tasks = different
    while tasks * (1 - math.exp(-draws / tasks)) < different - 0.5:
        tasks += 1
    return tasks


@check("data.memorized", "optimizer.lr-large", "reward.hackable", "run.collapsed", by_source=True)
def heldout_falls(case: Case) -> Answer:
    """Report right answers in training that leave those held out behind, and held-out scores that
    fall.
    """
    change = case.heldout
    if change is None:
        return Lacking("it takes two held-out evaluations", "data.memorized")
    memorized = _memorized(case, change)
    if memorized is not None:
        return memorized
    if not change.fell or case.collapse is not None:
        return None
    return _rewarded_alone(case, change) or _fell_by_large_steps(case, change)


def _heldout_evidence(change: HeldoutChange) -> Evidence:
    step = change.steps[-1]
    text = f"Held out {change.effect:+.3g} by step {step}."
    return Evidence(text, change.effect, "eval", step)


def _heldout_levels(change: HeldoutChange) -> str:
    return f"{number(change.first)} to {number(change.last)}"


def _memorized(case: Case, change: HeldoutChange) -> Found | None:
    """Find training tasks that are learned while held-out ones are not."""
    right = case.summary(CORRECT_METRIC)
    if right is None or not _is_left_behind(case, right, change):
        return None
    times = times_met(case)
    if 0 < times < MIN_TIMES_MET:
        return None
    text = f"Right in training {right.first:.3g} → {right.last:.3g}."
    evidence = [case.evidence(right.metric, text), _heldout_evidence(change)]
    met = f" Each task was met about {times:.0f} times." if times else ""
    summary = (
        f"Right answers in training went from {right.first:.0%} to {right.last:.0%}, and held out"
        f" from {_heldout_levels(change)}: the run learned its tasks by heart.{met}"
    )
    return Found(WARNING, SIGNAL, summary, evidence, "data.memorized")


def _is_left_behind(case: Case, right: CurveSummary, change: HeldoutChange) -> bool:
    """Return True where training tasks are solved more often than held-out ones, which fell or did
    not follow.
    """
    rise = trend_until(case.view, CORRECT_METRIC, change.steps[-1])
    if rise is None or rise.effect - change.effect < MIN_GAP:
        return False
    if change.fell and right.last - change.last > MIN_GAP:
        return True
    if not case.is_learning:
        return False
    deviation = math.sqrt(max(MIN_SHARE_VARIANCE, right.last * (1 - right.last)))
    if heldout_did_not_follow(case, CORRECT_METRIC, deviation, change):
        return True
    if change.interval is None or times_met(case) < MIN_TIMES_MET_OFTEN:
        return False
    low, high = change.interval
    error = math.hypot(rise.error, (high - low) / 2 / normal_reach())
    is_sure = rise.effect - change.effect > normal_reach(GAP_LEVEL) * error
    return change.effect <= 0 and is_sure


def _fall_in_words(change: HeldoutChange) -> str:
    p = max(change.chance, MIN_PRINTED_P)
    return f"The held-out score fell from {_heldout_levels(change)} (p = {p:.2g})"


def _rewarded_alone(case: Case, change: HeldoutChange) -> Found | None:
    """Find a held-out score that falls while the training reward does not."""
    right = case.summary(CORRECT_METRIC)
    # Without right answers in training, several evaluations must show it.
    is_all_we_know = right is None and len(change.scores) >= MIN_EVALUATIONS
    does_not_fall = is_all_we_know and case.trend.kind is not TrendKind.FALLING
    rises_elsewhere = case.is_learning and not (right and right.rises)
    if not does_not_fall and not rises_elsewhere:
        return None
    summary = (
        f"{_fall_in_words(change)}, and the training reward did not: what is learned holds for its"
        " tasks or its reward alone."
    )
    return Found(WARNING, SIGNAL, summary, [_heldout_evidence(change)], "reward.hackable")


def _fell_by_large_steps(case: Case, change: HeldoutChange) -> Found:
    """Blame large steps for a held-out score that falls, where they were seen; else only say that
    it fell.
    """
    signs = signs_of_large_steps(case, change.steps[-1])
    later_evaluations = len(change.scores) - 1
    is_sure = (
        bool(signs)
        or case.trend.kind is TrendKind.FALLING
        or change.chance * later_evaluations < SURE_FALL_LEVEL
    )
    fall = f"{_fall_in_words(change)}, and the training reward did not make up for it"
    evidence = [*signs, _heldout_evidence(change)]
    if signs:
        summary = f"{fall}: steps were large, and broke what the model could do."
        return Found(WARNING, SIGNAL, summary, evidence, "optimizer.lr-large")
    # Whatever is wrong with rewards, masks or the evaluation lets it fall as well.
    summary = f"{fall}. Nothing shows that steps were large: look at rewards, masks and evaluation."
    return Found(warn_if(is_sure), SUSPICION, summary, evidence, "run.collapsed")


# The intervals of both rates are 99.5% ones.
RATE_LEVEL = SIGNIFICANCE_LEVEL / 10
# Chance below which groups that mostly answer right can't be of the evaluated kind.
MAJORITY_LEVEL = SIGNIFICANCE_LEVEL / 50
# Part of a curve that its level before training is measured on.
FIRST_SHARE = 0.05


@check(
    "eval.unlike-training",
    needs=[CORRECT_METRIC, "sampling/rollouts/count", ENTROPY_METRIC, LENGTH_METRIC],
    by_source=True,
)
def unlike_training(case: Case) -> Answer:
    """Compare the first evaluation with the training steps beside it, which the same model
    sampled.
    """
    entry = _first_evaluation(case)
    training_name = case.view.info.get("tasks", {}).get("name")
    eval_name = case.view.info.get("eval", {}).get("name")
    if entry is None or not training_name or training_name != eval_name:
        return None  # another taskset may be harder
    eval_step = int(entry.get("step", 0))
    steps, right_shares = case.curve(CORRECT_METRIC)
    is_near = np.abs(steps - eval_step) <= FIRST_STEPS_READ
    if not is_near.any():
        return None

    # Rollouts of one task are alike: a group counts as two.
    rollouts_per_step = float(case.curve("sampling/rollouts/count")[1][0])
    group_size = max(2, case.value("sampling.size", 2))
    rollouts = round(2 * rollouts_per_step * is_near.sum() / group_size)
    training = float(right_shares[is_near].mean())
    training_low, training_high = wilson(round(training * rollouts), rollouts, RATE_LEVEL)

    tasks = int(entry["tasks"])
    heldout = float(entry["accuracy"])
    heldout_right = round(heldout * tasks)
    heldout_low, heldout_high = wilson(heldout_right, tasks, RATE_LEVEL)

    # A wrong greedy answer is at least as likely as the right one, so that sampled ones are right
    # in at most half of such tasks.
    max_training = (1 + heldout_high) / 2
    # And a greedy answer is as likely as exp(−entropy of the text) or more, on average.
    entropy = start(case.curve(ENTROPY_METRIC)[1], FIRST_SHARE)
    length = start(case.curve(LENGTH_METRIC)[1], FIRST_SHARE)
    min_training = heldout_low * math.exp(-entropy * length)
    # What most of a group says is what the model says greedily, nearly always.
    won, groups = _groups_mostly_right(case, eval_step + FIRST_STEPS_READ)
    chance = _chance_of_more(won, groups, heldout_right, tasks)
    is_within = training_low <= max_training and training_high >= min_training
    if is_within and chance >= MAJORITY_LEVEL:
        return None

    text = (
        f"99.5% intervals {training_low:.2f} to {training_high:.2f}, and {heldout_low:.2f} to"
        f" {heldout_high:.2f}."
    )
    summary = (
        f"One model is right in {training:.0%} of training rollouts and {heldout:.0%} of held-out"
        " tasks: prompts or scorers differ."
    )
    return Found(WARNING, SIGNAL, summary, [Evidence(text, heldout - training, "eval")])


def _first_evaluation(case: Case) -> Mapping[str, Any] | None:
    for entry in case.view.evals:
        if isinstance(entry.get("accuracy"), int | float) and entry.get("tasks"):
            return entry
    return None


def _groups_mostly_right(case: Case, last_step: int) -> tuple[int, int]:
    """Return the number of groups up to a step with more right rollouts than wrong ones, and of all
    groups.
    """
    won = 0
    groups = 0
    for group in case.grouped_steps:
        correct_n = group.table.numbers("correct")[group.index_n]
        if group.table.step <= last_step and np.isfinite(correct_n).all():
            correct_g = group_sum(correct_n, group.group_n)
            won += int((correct_g > 0.5 * group.size_g).sum())
            groups += len(group.size_g)
    return won, groups


def _chance_of_more(won: int, groups: int, right: int, tasks: int) -> float:
    """Return Fisher's exact chance that as many groups or more are won, if groups and tasks are
    alike.
    """
    total = won + right
    ways = 0
    for k in range(won, min(groups, total) + 1):
        ways += math.comb(groups, k) * math.comb(tasks, total - k)
    return ways / math.comb(groups + tasks, total)


@check("eval.noise", by_source=True)
def eval_noise(case: Case) -> Answer:
    """Report a held-out change that lies inside its own interval."""
    change = case.heldout
    if change is None:
        return Lacking("fewer than two held-out evaluations")
    if change.interval is None:
        return Lacking("it is not known over how many tasks the evaluations went")
    low, high = change.interval
    if not low <= 0 <= high:
        return None
    tasks = f" on {change.tasks} tasks" if change.tasks else ""
    summary = (
        f"The held-out change of {change.effect:+.3g}{tasks} lies inside its 95% interval,"
        f" {low:+.3g} to {high:+.3g}: it shows neither a gain nor a loss."
    )
    text = f"{change.first:.3g} → {change.last:.3g}."
    evidence = Evidence(text, change.effect, "eval", change.steps[-1])
    return Found(NOTE, PROOF, summary, [evidence])
