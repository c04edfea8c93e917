"""Tasks that a run trains on, by their ids and families, and held-out evaluations."""

import math

import numpy as np

from uptrend.doctor.case import FIRST, Case
from uptrend.doctor.check import Found, Lacking, check
from uptrend.doctor.checks.rewards import falls_alone, stands_still
from uptrend.doctor.curves import trend_until
from uptrend.doctor.rows import Flags, Floats, Rows, point
from uptrend.records import Confidence, Evidence, RecordError, Severity, TrendKind

DUPLICATES, EXCEEDS = "data.duplicates", "data.batch-exceeds"

# Steps, and groups in each half of the run, that an order of tasks must show in.
STEPS, GROUPS = 4, 16
# Deviations that a difference between the halves must be away from chance.
SURE = 5.0
# Share by which right answers in training must have left those held out, and how often each task was met then.
GAP, MET = 0.15, 2
# Different tasks / those that random draws would give, in the first steps and in all steps read.
VARIED_AT_FIRST, VARIED = 0.9, 0.6


@check("data.order", columns=["group"])
def order(case: Case) -> Found | Lacking | None:
    """Report families that come in another mix late than early; a curriculum in the config is no fault."""
    if case.view.value("tasks.stages"):
        return None
    rows = [r for r in case.rows if r.group_n is not None]
    heads = [np.unique(r.group_n, return_index=True)[1] for r in rows if r.group_n is not None]
    family = [np.array([f or "" for f in r.texts("family")])[h] for r, h in zip(rows, heads, strict=True)]
    half = len(rows) // 2
    if len(rows) < STEPS or min(sum(map(len, heads[:half])), sum(map(len, heads[half:]))) < GROUPS:
        return Lacking(f"fewer than {STEPS} steps, or {GROUPS} groups early and late")
    early, late = np.concatenate(family[:half]), np.concatenate(family[half:])
    names = np.union1d(early, late)
    if len(names) < 2:
        return None
    counts = np.array([[np.sum(part == name) for name in names] for part in (early, late)], float)
    shares = counts / counts.sum(axis=1, keepdims=True)
    moved = float(np.abs(shares[0] - shares[1]).sum() / 2)
    if _chi_squared_deviations(counts) < SURE or moved < 0.3:
        return None
    most = int(np.abs(shares[0] - shares[1]).argmax())
    text = f"{names[most]} is {shares[0, most]:.0%} of the tasks early and {shares[1, most]:.0%} late"
    summary = "Tasks come in an order: what the run trains on late is not what it trained on early."
    return Found(Severity.WARNING, Confidence.HIGH, summary, [Evidence(text, moved, step=rows[half].step)])


def _chi_squared_deviations(counts: Floats) -> float:
    """Return how many deviations chi-squared is from chance (Wilson and Hilferty 1931)."""
    expected = counts.sum(axis=1, keepdims=True) * counts.sum(axis=0) / counts.sum()
    statistic, freedom = float(((counts - expected) ** 2 / expected).sum()), counts.shape[1] - 1
    part = 2 / (9 * freedom)
    return float((np.cbrt(statistic / freedom) - (1 - part)) / np.sqrt(part))


@check(DUPLICATES, EXCEEDS, columns=["task"])
def repeats(case: Case) -> Found | Lacking | None:
    """Report steps with more groups than there are tasks, the same task twice in a step, and too few different ones."""
    rows = [r for r in case.rows if r.task_n is not None]
    if not rows or any(r.group_n is None for r in rows):
        return Lacking("no group ids" if rows else "some rollouts have no task id")
    count = case.view.info.get("tasks", {}).get("count") or case.view.value("tasks.train")
    declared = int(count) if isinstance(count, int) and count > 0 else None
    drawn = [_drawn(r) for r in rows]
    most, total, unique = max(map(len, drawn)), sum(map(len, drawn)), sum(len(set(d)) for d in drawn)
    if declared is not None and most > declared:
        shown = Evidence(f"a step has {most} groups, and there are {declared} tasks", most, step=rows[0].step)
        summary = "A step draws more tasks than there are, so that some come twice in it."
        return Found(Severity.WARNING, Confidence.HIGH, summary, [shown], EXCEEDS)
    if unique < 0.9 * total:
        text = f"of {total} groups in {len(rows)} steps {total - unique} have a task that another group of the step has"
        summary = "Steps hold the same task several times: there are fewer different tasks than groups."
        shown = Evidence(text, unique / total, **point(rows, [_second_group(r) for r in rows]))
        return Found(Severity.WARNING, Confidence.HIGH, summary, [shown], DUPLICATES)
    if declared is None or case.view.value("tasks.stages"):
        return None
    for steps, least in ((FIRST, VARIED_AT_FIRST), (len(rows), VARIED)):
        tasks = [task for step in drawn[:steps] for task in step]
        expected, different = declared * (1 - np.exp(-len(tasks) / declared)), len(set(tasks))
        if len(tasks) >= 20 and different < least * expected and different < 0.9 * min(len(tasks), declared):
            text = f"{different} different tasks in {len(tasks)} groups, where {declared} should give {expected:.0f}"
            summary = "The run trains on far fewer different tasks than its taskset claims to have."
            shown = Evidence(text, different / expected, step=rows[:steps][-1].step)
            return Found(Severity.WARNING, Confidence.HIGH, summary, [shown], DUPLICATES)
    return None


def _drawn(r: Rows) -> list[str]:
    """Return the task of each group that was learned from."""
    assert r.group_n is not None
    first = np.unique(r.group_n[r.kept_n], return_index=True)[1]
    return [str(task) for task in np.array(r.texts("task"))[r.kept_n][first]]


def _second_group(r: Rows) -> Flags:
    """Flag rollouts whose task an earlier group of the step has too."""
    assert r.group_n is not None
    assert r.task_n is not None
    first = np.unique(r.task_n, return_index=True)[1]  # tasks are numbered from 0, so that first[task] is its place
    return np.asarray((r.group_n[first][r.task_n] != r.group_n) & r.kept_n)


@check("data.leak", columns=["task"])
def leak(case: Case) -> Found | Lacking | None:
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
    summary = "Held-out tasks are trained on: held-out accuracy measures memory."
    shown = Evidence(text, len(shared) / len(held), **point(rows, flags))
    return Found(Severity.CRITICAL, Confidence.HIGH, summary, [shown])


@check("data.memorized")
def memorized(case: Case) -> Found | Lacking | None:
    """Report right answers on the tasks trained on that leave those held out behind."""
    view, right, change = case.view, case.course("reward/correct/share"), case.held_out
    if right is None or change is None:
        return Lacking("it takes the share of right answers in training and two held-out evaluations")
    unit = math.sqrt(max(0.01, right.last * (1 - right.last)))
    rise = trend_until(view, right.metric, change.steps[1])
    if rise is None or rise.effect - change.effect < GAP:
        return None
    is_left_behind = case.trend.kind is TrendKind.LEARNING and stands_still(case, right.metric, unit, change)
    if not is_left_behind and not falls_alone(case, rise, unit, change):
        return None
    tasks, groups = view.value("tasks.train", 0), view.value("sampling.groups", 0)
    rounds = len(view.steps) * groups / tasks if tasks and groups else 0.0
    if 0 < rounds < MET:
        return None
    trained = f"Right answers in training went from {right.first:.0%} to {right.last:.0%}"
    held_out = f"held out from {change.first:.0%} to {change.last:.0%}"
    met = f" Each task was met about {rounds:.0f} times." if rounds else ""
    text = f"Held out {change.effect:+.3g} by step {change.steps[1]}."
    shown = [
        right.evidence(f"Right in training {right.first:.3g} → {right.last:.3g}."),
        Evidence(text, change.effect, "eval", change.steps[1]),
    ]
    summary = f"{trained}, and {held_out}: the run learned its tasks by heart.{met}"
    return Found(Severity.WARNING, Confidence.MEDIUM, summary, shown)


@check("eval.noise")
def eval_noise(case: Case) -> Found | Lacking | None:
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
    text = f"{inside}: it shows neither a gain nor a loss."
    shown = Evidence(f"{change.first:.3g} → {change.last:.3g}.", change.effect, "eval", change.steps[1])
    return Found(Severity.NOTE, Confidence.HIGH, text, [shown])
