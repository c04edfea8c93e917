"""Tasks that a run trains on, by their ids and families, and held-out evaluations."""

import math

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
from uptrend.doctor.checks.rewards import EVALUATIONS, stands_still
from uptrend.doctor.groups import group_sum, rollout_evidence
from uptrend.doctor.trend import SIGNIFICANCE_LEVEL, HeldoutChange, trend_until
from uptrend.present.formatting import number
from uptrend.records import Evidence, RecordError, Role, TrendKind
from uptrend.records.table import RolloutTable
from uptrend.stats.intervals import normal_reach, wilson
from uptrend.stats.trend import start

DUPLICATES = "data.duplicates"
EXCEEDS = "data.batch-exceeds"
RIGHT = "reward/correct/share"
ENTROPY = "learner/entropy/mean"
LENGTH = "sampling/length/mean"

# Steps, and groups in each half of the run, that an order of tasks must show in; deviations from
# chance that a difference between the halves must have, and the share of tasks that must have
# moved.
STEPS = 4
GROUPS = 16
SURE = 5.0
SHIFTED = 0.3


@check("data.order", columns=["group"])
def order(case: Case) -> Answer:
    """Report families that come in another mix late than early; a curriculum in the config is no
    fault.
    """
    if case.value("tasks.stages"):
        return None
    rows = []
    family = []
    prompt = []
    for r in case.tables:
        if r.group_n is not None:
            heads = np.unique(r.group_n, return_index=True)[1]
            rows.append(r)
            family.append(np.array([name or "" for name in r.texts("family")])[heads])
            prompt.append(
                np.bincount(r.rollout_t[r.role_t == Role.PROMPT], minlength=len(r))[heads]
            )
    half = len(rows) // 2
    if (
        len(rows) < STEPS
        or min(sum(map(len, family[:half])), sum(map(len, family[half:]))) < GROUPS
    ):
        return Lacking(f"fewer than {STEPS} steps, or {GROUPS} groups early and late")
    # of one kind: data that is sorted shows in the prompts' lengths
    if len(set(np.concatenate(family))) < 2:
        middle = np.median(np.concatenate(prompt))
        family = [np.where(lengths > middle, "long prompts", "short prompts") for lengths in prompt]
    early = np.concatenate(family[:half])
    late = np.concatenate(family[half:])
    names = np.union1d(early, late)
    if len(names) < 2:
        return None
    counts = np.array([[np.sum(part == name) for name in names] for part in (early, late)], float)
    shares = counts / counts.sum(axis=1, keepdims=True)
    moved = np.abs(shares[0] - shares[1])
    expected = counts.sum(axis=1, keepdims=True) * counts.sum(axis=0) / counts.sum()
    statistic = float(((counts - expected) ** 2 / expected).sum())
    freedom = len(names) - 1
    # Deviations of chi-squared from chance (Wilson and Hilferty 1931).
    part = 2 / (9 * freedom)
    deviations = (np.cbrt(statistic / freedom) - (1 - part)) / np.sqrt(part)
    if deviations < SURE or moved.sum() / 2 < SHIFTED:
        return None
    most = int(moved.argmax())
    text = (
        f"{names[most]} is {shares[0, most]:.0%} of the tasks early and {shares[1, most]:.0%} late"
    )
    return Found(
        WARNING, PROOF, PAGE_SUMMARY, [Evidence(text, float(moved.sum() / 2), step=rows[half].step)]
    )


# Different tasks / those that random draws would give, in the first steps and in all steps read.
VARIED_AT_FIRST = 0.9
VARIED = 0.6


@check(DUPLICATES, EXCEEDS, columns=["task"])
def repeats(case: Case) -> Answer:
    """Report steps with more groups than there are tasks, the same task twice in a step, and too
    few different ones.
    """
    rows = [r for r in case.tables if r.task_n is not None]
    drawn = list[list[str]]()
    second = []
    for r in rows:
        if r.group_n is None or r.task_n is None:
            return Lacking("no group ids")
        # The task of each group that was learned from, and rollouts whose task an earlier group of
        # the step has too.
        drawn.append(_drawn(r))
        # tasks are numbered from 0, so that first[task] is its place
        first = np.unique(r.task_n, return_index=True)[1]
        second.append(np.asarray((r.group_n[first][r.task_n] != r.group_n) & r.kept_n))
    if not rows:
        return Lacking("some rollouts have no task id")
    declared = _task_count(case)
    most = max(map(len, drawn))
    total = sum(map(len, drawn))
    unique = sum(len(set(d)) for d in drawn)
    there = declared or len({task for step in drawn for task in step})
    if most > there and (declared or len(rows) >= STEPS):
        shown = Evidence(
            f"a step has {most} groups, and there are {there} tasks", most, step=rows[0].step
        )
        return Found(WARNING, PROOF, PAGE_SUMMARY, [shown], EXCEEDS)
    if unique < 0.9 * total:
        text = (
            f"of {total} groups in {len(rows)} steps {total - unique} have a task that another"
            " group of the step has"
        )
        return Found(
            WARNING,
            PROOF,
            PAGE_SUMMARY,
            [rollout_evidence(rows, second, text, unique / total)],
            DUPLICATES,
        )
    if declared is None or case.value("tasks.stages"):
        return None
    for steps, least in ((FIRST_STEPS_READ, VARIED_AT_FIRST), (len(rows), VARIED)):
        tasks = [task for step in drawn[:steps] for task in step]
        expected = declared * (1 - np.exp(-len(tasks) / declared))
        different = len(set(tasks))
        if (
            len(tasks) >= 20
            and different < least * expected
            and different < 0.9 * min(len(tasks), declared)
        ):
            text = (
                f"{different} different tasks in {len(tasks)} groups, where {declared} should give"
                f" {expected:.0f}"
            )
            shown = Evidence(text, different / expected, step=rows[:steps][-1].step)
            return Found(WARNING, PROOF, PAGE_SUMMARY, [shown], DUPLICATES)
    return None


def _drawn(r: RolloutTable) -> list[str]:
    """Return the task of each group of a step that was learned from."""
    assert r.group_n is not None
    heads = np.unique(r.group_n[r.kept_n], return_index=True)[1]
    return [str(task) for task in np.array(r.texts("task"))[r.kept_n][heads]]


def _task_count(case: Case) -> int | None:
    """Return the number of tasks that there are, else that were asked for; None where neither is
    known.
    """
    count = case.view.info.get("tasks", {}).get("count") or case.value("tasks.train")
    return int(count) if isinstance(count, int) and count > 0 else None


@check("data.leak", columns=["task"])
def leak(case: Case) -> Answer:
    """Report held-out tasks that are trained on."""
    rows = [r for r in case.tables if r.task_n is not None]
    if not rows:
        return Lacking("some rollouts have no task id")
    held = set[str]()
    for line in (*case.view.evals[:1], *case.view.evals[-1:]):
        try:
            held.update(
                task
                for task in case.view.read_heldout(int(line["step"])).column("task").to_pylist()
                if task
            )
        except (RecordError, KeyError):
            continue
    if not held:
        return Lacking("no held-out rollouts were kept")
    flags = [np.array([task in held for task in r.texts("task")], np.bool_) for r in rows]
    trained = {task for r in rows for task in r.texts("task") if task}
    shared = trained & held
    if not shared:
        return None
    text = (
        f"{len(shared)} of {len(held)} held-out tasks are among the {len(trained)} trained on in"
        f" {len(rows)} steps"
    )
    return Found(
        CRITICAL,
        PROOF,
        PAGE_SUMMARY,
        [rollout_evidence(rows, flags, text, len(shared) / len(held))],
    )


# Share by which right answers in training must have left those held out, and how often each task
# was met then.
GAP = 0.15
MET = 2
# Times that each task was met from which on a gap between the two, beyond their errors, is enough.
OFTEN = 5


def times_met(case: Case) -> float:
    """Return how often a task was met on average; 0 where it is not known."""
    drawn = [task for r in case.tables if r.group_n is not None for task in _drawn(r)]
    per_step = len(drawn) / len(case.tables) if drawn else case.value("sampling.groups", 0)
    tasks = _task_count(case)
    seen = len(set(drawn))
    # the config may ask for more tasks than there are
    if len(drawn) >= 20 and seen < 0.9 * len(drawn):
        tasks = next(
            n
            for n in range(seen, 10 * len(drawn))
            if n * (1 - math.exp(-len(drawn) / n)) >= seen - 0.5
        )
    return len(case.view.steps) * per_step / tasks if tasks and per_step else 0.0


@check("data.memorized", "optimizer.lr-large", "reward.hackable")
def heldout_falls(case: Case) -> Answer:
    """Report right answers in training that leave those held out behind, and held-out scores that
    fall.
    """
    right = case.summary(RIGHT)
    change = case.heldout
    if change is None:
        return Lacking("it takes two held-out evaluations", "data.memorized")
    left = _left_behind(case, right, change)
    rounds = times_met(case)
    levels = f"{number(change.first)} to {number(change.last)}"
    shown = [
        Evidence(
            f"Held out {change.effect:+.3g} by step {change.steps[-1]}.",
            change.effect,
            "eval",
            change.steps[-1],
        )
    ]
    if right is not None and left and not 0 < rounds < MET:
        trained = f"Right answers in training went from {right.first:.0%} to {right.last:.0%}"
        met = f" Each task was met about {rounds:.0f} times." if rounds else ""
        shown.insert(
            0,
            case.evidence(right.metric, f"Right in training {right.first:.3g} → {right.last:.3g}."),
        )
        summary = f"{trained}, and held out from {levels}: the run learned its tasks by heart.{met}"
        return Found(WARNING, SIGNAL, summary, shown, "data.memorized")
    if not change.fell or case.collapse is not None:
        return None
    fell = f"The held-out score fell from {levels} (p = {max(change.chance, 1e-4):.2g})"
    is_alone = (
        case.trend.kind is not TrendKind.FALLING
        and right is None
        and len(change.scores) >= EVALUATIONS
    )
    if is_alone or (case.is_learning and not (right and right.rises)):
        text = (
            f"{fell}, and the training reward did not: what is learned holds for its tasks or its"
            " reward alone."
        )
        return Found(WARNING, SIGNAL, text, shown, "reward.hackable")
    # Whatever else is wrong with rewards or masks lets it fall as well, and shows by itself. So
    # without updates that are seen to be large it is a suspicion, and a note where sampled answers
    # in training are as good as before.
    text = (
        f"{fell}, and the training reward did not make up for it: the learning rate may be too"
        " large."
    )
    large = _large_steps(case, right)
    is_sure = (
        large
        or case.trend.kind is TrendKind.FALLING
        or change.chance * (len(change.scores) - 1) < SIGNIFICANCE_LEVEL / 10
    )
    return Found(
        warn_if(bool(is_sure)),
        SIGNAL if large else SUSPICION,
        text,
        shown + large,
        "optimizer.lr-large",
    )


def _left_behind(case: Case, right: CurveSummary | None, change: HeldoutChange) -> bool:
    """Tell whether training tasks are solved more often than those held out, which fell or did not
    follow.
    """
    rise = trend_until(case.view, RIGHT, change.steps[-1])
    if right is None or rise is None or rise.effect - change.effect < GAP:
        return False
    unit = math.sqrt(max(0.01, right.last * (1 - right.last)))
    is_worse = change.fell and right.last - change.last > GAP
    if is_worse or (case.is_learning and stands_still(case, RIGHT, unit, change)):
        return True
    if change.interval is None or times_met(case) < OFTEN or not case.is_learning:
        return False
    error = math.hypot(rise.error, (change.interval[1] - change.interval[0]) / 2 / normal_reach())
    return (
        change.effect <= 0
        and rise.effect - change.effect > normal_reach(SIGNIFICANCE_LEVEL / 5) * error
    )


# An update / the weights' length, of which 0.001 is usual, and change of the log of entropy, that
# are large.
STRIDE = 0.005
STIRRED = 0.5


def _large_steps(case: Case, right: CurveSummary | None) -> list[Evidence]:
    """Return what shows that steps were large: their length, the entropy, or training answers that
    fell as well.
    """
    shown = list[Evidence]()
    metrics = case.view.metrics
    entropy = case.summary(ENTROPY)
    if case.has("weights/update/norm", "weights/norm") and not case.value("model.lora"):
        stride = float(np.nanmedian(metrics["weights/update/norm"] / metrics["weights/norm"]))
        shown += (
            [Evidence(f"A step is {stride:.1%} of the weights' length.", stride)]
            if stride > STRIDE
            else []
        )
    if entropy is not None and min(entropy.initial, entropy.last) < math.exp(-STIRRED) * max(
        entropy.initial, entropy.last
    ):
        shown.append(
            case.evidence(entropy.metric, f"Entropy {entropy.initial:.3g} → {entropy.last:.3g}.")
        )
    if right is not None and (first := float(right.values[0])) > max(
        2 * right.last, right.last + GAP
    ):
        shown.append(
            case.evidence(
                RIGHT, f"Right in training {first:.3g} at first, {right.last:.3g} at last."
            )
        )
    return shown


@check("eval.unlike-training", needs=[RIGHT, "sampling/rollouts/count", ENTROPY, LENGTH])
def unlike_training(case: Case) -> Answer:
    """Compare the first evaluation with the training steps beside it, which the same model
    sampled.
    """
    entry = next(
        (
            e
            for e in case.view.evals
            if isinstance(e.get("accuracy"), int | float) and e.get("tasks")
        ),
        {},
    )
    steps, rights = case.curve(RIGHT)
    near = np.abs(steps - int(entry.get("step", 0))) <= FIRST_STEPS_READ
    named, evaluated = (case.view.info.get(key, {}).get("name") for key in ("tasks", "eval"))
    if not entry or not near.any() or not named or named != evaluated:
        return None  # another taskset may be harder
    # Rollouts of one task are alike: a group counts as two.
    count = (
        2
        * float(case.curve("sampling/rollouts/count")[1][0])
        * near.sum()
        / max(2, case.value("sampling.size", 2))
    )
    (told, low, high), (held, least, most) = (
        (share, *wilson(round(share * n), n, SIGNIFICANCE_LEVEL / 10))
        for share, n in (
            (float(rights[near].mean()), round(count)),
            (float(entry["accuracy"]), int(entry["tasks"])),
        )
    )
    # A wrong greedy answer is at least as likely as the right one, so that sampled ones are right
    # in at most half of such tasks. And a greedy answer is as likely as exp(−entropy of the text)
    # or more, on average.
    sure = math.exp(-start(case.curve(ENTROPY)[1], 0.05) * start(case.curve(LENGTH)[1], 0.05))
    # What most of a group says is what the model says greedily, nearly always.
    wins, groups = _won(case, int(entry.get("step", 0)) + FIRST_STEPS_READ)
    chance = _chance_of_more(wins, groups, round(held * int(entry["tasks"])), int(entry["tasks"]))
    if low <= (1 + most) / 2 and high >= least * sure and chance >= SIGNIFICANCE_LEVEL / 50:
        return None
    rates = f"{told:.0%} of training rollouts and {held:.0%} of held-out tasks"
    shown = Evidence(
        f"99.5% intervals {low:.2f} to {high:.2f}, and {least:.2f} to {most:.2f}.",
        held - told,
        "eval",
    )
    return Found(
        WARNING, SIGNAL, f"One model is right in {rates}: prompts or scorers differ.", [shown]
    )


def _chance_of_more(wins: int, groups: int, others: int, tasks: int) -> float:
    """Return Fisher's exact chance of so many wins among the groups, if groups and tasks were
    alike.
    """
    total = wins + others
    ways = [
        math.comb(groups, k) * math.comb(tasks, total - k)
        for k in range(wins, min(groups, total) + 1)
    ]
    return sum(ways) / math.comb(groups + tasks, total)


def _won(case: Case, until: int) -> tuple[int, int]:
    """Return how many groups up to a step have more right rollouts than wrong ones, and how many
    groups there are.
    """
    wins = groups = 0
    for g in case.grouped_steps:
        correct = g.table.by_rollout("correct")[g.index_n]
        if g.table.step <= until and np.isfinite(correct).all():
            wins += int((group_sum(correct, g.group_n) > 0.5 * g.size_g).sum())
            groups += len(g.size_g)
    return wins, groups


@check("eval.noise")
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
    on = f" on {change.tasks} tasks" if change.tasks else ""
    inside = (
        f"The held-out change of {change.effect:+.3g}{on} lies inside its 95% interval, {low:+.3g}"
        f" to {high:+.3g}"
    )
    shown = Evidence(
        f"{change.first:.3g} → {change.last:.3g}.", change.effect, "eval", change.steps[-1]
    )
    return Found(NOTE, PROOF, f"{inside}: it shows neither a gain nor a loss.", [shown])
