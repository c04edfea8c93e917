"""Tasks that a run trains on, by their ids and families, and held-out evaluations."""

import math

import numpy as np

from uptrend.doctor.case import FIRST, Case
from uptrend.doctor.check import AS_PAGE, Answer, Found, Lacking, check
from uptrend.doctor.checks.rewards import falls_alone, stands_still
from uptrend.doctor.curves import LEVEL, Curve, trend_until
from uptrend.doctor.rank import CRITICAL, NOTE, PROOF, SIGNAL, SUSPICION, WARNING
from uptrend.doctor.rows import Rows, seen_in
from uptrend.doctor.trend import HeldOutChange
from uptrend.records import Evidence, RecordError
from uptrend.stats.formatting import number
from uptrend.stats.intervals import wilson

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
        drawn.append(_drawn(r))
        first = np.unique(r.task_n, return_index=True)[1]  # tasks are numbered from 0, so that first[task] is its place
        second.append(np.asarray((r.group_n[first][r.task_n] != r.group_n) & r.kept_n))
    if not rows:
        return Lacking("some rollouts have no task id")
    declared = _task_count(case)
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


def _drawn(r: Rows) -> list[str]:
    """Return the task of each group of a step that was learned from."""
    assert r.group_n is not None
    heads = np.unique(r.group_n[r.kept_n], return_index=True)[1]
    return [str(task) for task in np.array(r.texts("task"))[r.kept_n][heads]]


def _task_count(case: Case) -> int | None:
    """Return the number of tasks that there are, else that were asked for; None where neither is known."""
    count = case.view.info.get("tasks", {}).get("count") or case.value("tasks.train")
    return int(count) if isinstance(count, int) and count > 0 else None


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


def times_met(case: Case) -> float:
    """Return how often a task was met on average; 0 where it is not known."""
    drawn = [task for r in case.rows if r.group_n is not None for task in _drawn(r)]
    per_step = len(drawn) / len(case.rows) if drawn else case.value("sampling.groups", 0)
    tasks = _task_count(case)
    # The config may ask for more tasks than there are. As many as drawn at random would repeat so often.
    if len(drawn) >= 20 and len(set(drawn)) < 0.9 * len(drawn):
        seen = tasks = len(set(drawn))
        for _ in range(50):
            tasks = seen / (1 - math.exp(-len(drawn) / tasks))
    return len(case.view.steps) * per_step / tasks if tasks and per_step else 0.0


@check("data.memorized", "optimizer.lr-large", "reward.hackable")
def held_out_falls(case: Case) -> Answer:
    """Report right answers in training that leave those held out behind, and held-out scores that fall."""
    right, change = case.course("reward/correct/share"), case.held_out
    if change is None:
        return Lacking("it takes two held-out evaluations", "data.memorized")
    left, rounds = _left_behind(case, right, change), times_met(case)
    held_out = f"{number(change.first)} to {number(change.last)}"
    shown = [Evidence(f"Held out {change.effect:+.3g} by step {change.at[-1]}.", change.effect, "eval", change.at[-1])]
    if right is not None and left and not 0 < rounds < MET:
        trained = f"Right answers in training went from {right.first:.0%} to {right.last:.0%}"
        met = f" Each task was met about {rounds:.0f} times." if rounds else ""
        shown.insert(0, case.evidence(right.metric, f"Right in training {right.first:.3g} → {right.last:.3g}."))
        summary = f"{trained}, and held out from {held_out}: the run learned its tasks by heart.{met}"
        return Found(WARNING, SIGNAL, summary, shown, "data.memorized")
    if not change.fell or case.collapse is not None:
        return None
    fell = f"The held-out score fell from {held_out} (p = {max(change.chance, 1e-4):.2g})"
    if case.is_learning and (right is None or not right.rises):
        text = f"{fell}, while the training reward rose: the reward may be had without the task."
        return Found(WARNING, SIGNAL, text, shown, "reward.hackable")
    # Whatever else is wrong with rewards or masks lets it fall as well, and is shown by itself: only updates that are
    # seen to be large make this more than a suspicion.
    at = f" of {rate:.2g}" if (rate := case.value("learning.lr")) else ""
    text = f"{fell}, and the training reward did not make up for it: steps at a learning rate{at} do more harm than good."
    large = _large_steps(case)
    return Found(WARNING, SIGNAL if large else SUSPICION, text, shown + large, "optimizer.lr-large")


def _left_behind(case: Case, right: Curve | None, change: HeldOutChange) -> bool:
    """Tell whether right answers in training rose, and those held out did not follow or fell."""
    rise = trend_until(case.view, right.metric, change.at[-1]) if right is not None else None
    if right is None or rise is None or rise.effect - change.effect < GAP:
        return False
    if change.fell and right.last - change.last > GAP:  # its own tasks are solved more often than those held out
        return True
    unit = math.sqrt(max(0.01, right.last * (1 - right.last)))
    if case.is_learning and stands_still(case, right.metric, unit, change):
        return True
    return falls_alone(case, rise, unit, change)


# Times the usual length of an update, 0.001 of the weights', and change of the entropy, that are large.
STRIDE, STIRRED = 0.005, 0.5


def _large_steps(case: Case) -> list[Evidence]:
    shown = []
    if case.has("weights/update/norm", "weights/norm") and not case.value("model.lora"):
        stride = float(np.nanmedian(case.view.metrics["weights/update/norm"] / case.view.metrics["weights/norm"]))
        if stride > STRIDE:
            shown.append(Evidence(f"A step changes {stride:.1%} of the weights' length.", stride, "weights/update/norm"))
    entropy = case.course("learner/entropy/mean")
    if entropy is not None and abs(math.log(max(entropy.last, 1e-9) / max(entropy.begin, 1e-9))) > STIRRED:
        shown.append(case.evidence(entropy.metric, f"Entropy {entropy.begin:.3g} → {entropy.last:.3g}."))
    return shown


# Held-out and training score of one model, at the first evaluation and the steps beside it: steps compared.
BESIDE = 3


@check("eval.unlike-training")
def unlike_training(case: Case) -> Answer:
    """Compare the first evaluation with the training steps beside it, which the same model sampled."""
    steps, rights = case.curve("reward/correct/share")
    counted = [e for e in case.view.evals if isinstance(e.get("accuracy"), int | float) and e.get("tasks")]
    if not counted or not len(rights):
        return Lacking("it takes the share of right answers in training and held-out accuracy on a known number of tasks")
    named = [case.view.info.get(key, {}).get("name") for key in ("tasks", "eval")]
    first = counted[0]
    near = np.flatnonzero(np.abs(steps - int(first.get("step", 0))) <= BESIDE)[:BESIDE]
    per_step, entropy = case.curve("sampling/rollouts/count")[1], case.course("learner/entropy/mean")
    if not len(near) or named[0] != named[1]:  # another taskset may be harder
        return None
    rollouts = int(per_step[:BESIDE].mean()) * len(near) if len(per_step) else 0
    if not rollouts:
        return Lacking("it is not known how many rollouts a step has")
    # Rollouts of one task are alike: a group counts as two.
    size = int(case.value("sampling.size") or 1)
    told, trials = float(rights[near].mean()), max(1, 2 * rollouts // max(size, 2))
    low, high = wilson(round(told * trials), trials, LEVEL / 10)
    held, tasks = float(first["accuracy"]), int(first["tasks"])
    least, most = wilson(round(held * tasks), tasks, LEVEL / 10)
    # A greedy answer that is wrong is at least as likely as the right one, so that sampled ones are right in at most
    # half of such tasks; and it is as likely as exp(−entropy of the text) or more, on average.
    length = case.course("sampling/length/mean")
    sure = math.exp(-entropy.begin * length.begin) if entropy is not None and length is not None else 0.0
    if low <= most + (1 - most) / 2 and high >= least * sure:
        return None
    text = f"The same model is right in {told:.0%} of training rollouts and {held:.0%} of held-out tasks at step {steps[near[0]]}"
    shown = Evidence(f"95% intervals {low:.2g} to {high:.2g} and {least:.2g} to {most:.2g}.", held - told, "eval")
    return Found(WARNING, SIGNAL, f"{text}: prompts or scorers differ.", [shown])


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
    moved = f"The held-out change of {change.effect:+.3g}{on}" if change.effect else f"The held-out score{on} is the same"
    inside = f"{moved}{' lies inside' if change.effect else ', within'} its 95% interval, {low:+.3g} to {high:+.3g}"
    shown = Evidence(f"{change.first:.3g} → {change.last:.3g}.", change.effect, "eval", change.at[-1])
    return Found(NOTE, PROOF, f"{inside}: it shows neither a gain nor a loss.", [shown])
