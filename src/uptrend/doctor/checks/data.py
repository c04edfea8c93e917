"""Tasks that a run trains on, by their ids and families, and held-out evaluations."""

import math

import numpy as np

from uptrend.doctor.case import FIRST, Case
from uptrend.doctor.check import AS_PAGE, Answer, Found, Lacking, check
from uptrend.doctor.checks.rewards import falls_alone, stands_still
from uptrend.doctor.curves import trend_until
from uptrend.doctor.rank import CRITICAL, NOTE, PROOF, SIGNAL, WARNING
from uptrend.doctor.rows import seen_in
from uptrend.records import Evidence, RecordError

DUPLICATES, EXCEEDS = "data.duplicates", "data.batch-exceeds"

# Steps, and groups in each half of the run, that an order of tasks must show in; deviations from chance that a
# difference between the halves must have, and the share of tasks that must have moved.
STEPS, GROUPS, SURE, SHIFTED = 4, 16, 5.0, 0.3


@check("data.order", columns=["group"])
def order(case: Case) -> Answer:
    """Report families that come in another mix late than early; a curriculum in the config is no fault."""
    if case.value("tasks.stages"):
        return None
    rows, family = [], []
    for r in case.rows:
        if r.group_n is not None:
            heads = np.unique(r.group_n, return_index=True)[1]
            rows.append(r)
            family.append(np.array([name or "" for name in r.texts("family")])[heads])
    half = len(rows) // 2
    if len(rows) < STEPS or min(sum(map(len, family[:half])), sum(map(len, family[half:]))) < GROUPS:
        return Lacking(f"fewer than {STEPS} steps, or {GROUPS} groups early and late")
    early, late = np.concatenate(family[:half]), np.concatenate(family[half:])
    names = np.union1d(early, late)
    if len(names) < 2:
        return None
    counts = np.array([[np.sum(part == name) for name in names] for part in (early, late)], float)
    shares = counts / counts.sum(axis=1, keepdims=True)
    moved = np.abs(shares[0] - shares[1])
    expected = counts.sum(axis=1, keepdims=True) * counts.sum(axis=0) / counts.sum()
    statistic, freedom = float(((counts - expected) ** 2 / expected).sum()), len(names) - 1
    # Deviations of chi-squared from chance (Wilson and Hilferty 1931).
    part = 2 / (9 * freedom)
    deviations = (np.cbrt(statistic / freedom) - (1 - part)) / np.sqrt(part)
    if deviations < SURE or moved.sum() / 2 < SHIFTED:
        return None
    most = int(moved.argmax())
    text = f"{names[most]} is {shares[0, most]:.0%} of the tasks early and {shares[1, most]:.0%} late"
    return Found(WARNING, PROOF, AS_PAGE, [Evidence(text, float(moved.sum() / 2), step=rows[half].step)])


# Different tasks / those that random draws would give, in the first steps and in all steps read.
VARIED_AT_FIRST, VARIED = 0.9, 0.6


@check(DUPLICATES, EXCEEDS, columns=["task"])
def repeats(case: Case) -> Answer:
    """Report steps with more groups than there are tasks, the same task twice in a step, and too few different ones."""
    rows = [r for r in case.rows if r.task_n is not None]
    drawn, second = list[list[str]](), []
    for r in rows:
        if r.group_n is None or r.task_n is None:
            return Lacking("no group ids")
        # The task of each group that was learned from, and rollouts whose task an earlier group of the step has too.
        heads = np.unique(r.group_n[r.kept_n], return_index=True)[1]
        drawn.append([str(task) for task in np.array(r.texts("task"))[r.kept_n][heads]])
        first = np.unique(r.task_n, return_index=True)[1]  # tasks are numbered from 0, so that first[task] is its place
        second.append(np.asarray((r.group_n[first][r.task_n] != r.group_n) & r.kept_n))
    if not rows:
        return Lacking("some rollouts have no task id")
    count = case.view.info.get("tasks", {}).get("count") or case.value("tasks.train")
    declared = int(count) if isinstance(count, int) and count > 0 else None
    most, total, unique = max(map(len, drawn)), sum(map(len, drawn)), sum(len(set(d)) for d in drawn)
    if declared is not None and most > declared:
        shown = Evidence(f"a step has {most} groups, and there are {declared} tasks", most, step=rows[0].step)
        return Found(WARNING, PROOF, AS_PAGE, [shown], EXCEEDS)
    if unique < 0.9 * total:
        text = f"of {total} groups in {len(rows)} steps {total - unique} have a task that another group of the step has"
        return Found(WARNING, PROOF, AS_PAGE, [seen_in(rows, second, text, unique / total)], DUPLICATES)
    if declared is None or case.value("tasks.stages"):
        return None
    for steps, least in ((FIRST, VARIED_AT_FIRST), (len(rows), VARIED)):
        tasks = [task for step in drawn[:steps] for task in step]
        expected, different = declared * (1 - np.exp(-len(tasks) / declared)), len(set(tasks))
        if len(tasks) >= 20 and different < least * expected and different < 0.9 * min(len(tasks), declared):
            text = f"{different} different tasks in {len(tasks)} groups, where {declared} should give {expected:.0f}"
            shown = Evidence(text, different / expected, step=rows[:steps][-1].step)
            return Found(WARNING, PROOF, AS_PAGE, [shown], DUPLICATES)
    return None


@check("data.leak", columns=["task"])
def leak(case: Case) -> Answer:
    """Report held-out tasks that are trained on."""
    rows = [r for r in case.rows if r.task_n is not None]
    if not rows:
        return Lacking("some rollouts have no task id")
    held = set[str]()
    for line in (*case.view.evals[:1], *case.view.evals[-1:]):
        try:
            held.update(task for task in case.view.held_out(int(line["step"])).column("task").to_pylist() if task)
        except (RecordError, KeyError):
            continue
    if not held:
        return Lacking("no held-out rollouts were kept")
    flags = [np.array([task in held for task in r.texts("task")], np.bool_) for r in rows]
    trained = {task for r in rows for task in r.texts("task") if task}
    shared = trained & held
    if not shared:
        return None
    text = f"{len(shared)} of {len(held)} held-out tasks are among the {len(trained)} trained on in {len(rows)} steps"
    return Found(CRITICAL, PROOF, AS_PAGE, [seen_in(rows, flags, text, len(shared) / len(held))])


# Share by which right answers in training must have left those held out, and how often each task was met then.
GAP, MET = 0.15, 2


@check("data.memorized")
def memorized(case: Case) -> Answer:
    """Report right answers on the tasks trained on that leave those held out behind."""
    right, change = case.course("reward/correct/share"), case.held_out
    if right is None or change is None:
        return Lacking("it takes the share of right answers in training and two held-out evaluations")
    unit = math.sqrt(max(0.01, right.last * (1 - right.last)))
    rise = trend_until(case.view, right.metric, change.at[-1])
    if rise is None or rise.effect - change.effect < GAP:
        return None
    is_left_behind = case.is_learning and stands_still(case, right.metric, unit, change)
    if not is_left_behind and not falls_alone(case, rise, unit, change):
        return None
    tasks, groups = case.value("tasks.train", 0), case.value("sampling.groups", 0)
    rounds = len(case.view.steps) * groups / tasks if tasks and groups else 0.0
    if 0 < rounds < MET:
        return None
    trained = f"Right answers in training went from {right.first:.0%} to {right.last:.0%}"
    held_out = f"held out from {change.first:.0%} to {change.last:.0%}"
    met = f" Each task was met about {rounds:.0f} times." if rounds else ""
    shown = [
        case.evidence(right.metric, f"Right in training {right.first:.3g} → {right.last:.3g}."),
        Evidence(f"Held out {change.effect:+.3g} by step {change.at[-1]}.", change.effect, "eval", change.at[-1]),
    ]
    summary = f"{trained}, and {held_out}: the run learned its tasks by heart.{met}"
    return Found(WARNING, SIGNAL, summary, shown)


@check("eval.noise")
def eval_noise(case: Case) -> Answer:
    """Report a held-out change that lies inside its own interval."""
    change = case.held_out
    if change is None:
        return Lacking("fewer than two held-out evaluations")
    if change.interval is None:
        return Lacking("it is not known over how many tasks the evaluations went")
    low, high = change.interval
    if not low <= 0 <= high:
        return None
    on = f" on {change.tasks} tasks" if change.tasks else ""
    inside = f"The held-out change of {change.effect:+.3g}{on} lies inside its 95% interval, {low:+.3g} to {high:+.3g}"
    shown = Evidence(f"{change.first:.3g} → {change.last:.3g}.", change.effect, "eval", change.at[-1])
    return Found(NOTE, PROOF, f"{inside}: it shows neither a gain nor a loss.", [shown])
