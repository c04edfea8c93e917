"""Which tasks a run trains on, by their ids.

data.batch-exceeds  a step has more groups than there are tasks
data.duplicates     tasks come again within a step, or fewer different ones come than there should be
data.leak           a held-out task is trained on
"""

import numpy as np

from uptrend.doctor.check import Outcome, finding
from uptrend.doctor.kept import FIRST, cannot_tell, point, read_rows
from uptrend.doctor.rows import Flags, Rows
from uptrend.records import CannotTell, Confidence, Evidence, Finding, RecordError, RunView, Severity

IDS = ("data.duplicates", "data.batch-exceeds", "data.leak")


def check(view: RunView) -> Outcome:
    """Count unique tasks, and look for held-out ones among them."""
    lacking = cannot_tell(view, IDS, "task")
    if lacking:
        return [*lacking]
    rows = [r for r in read_rows(view) if r.task_n is not None]
    if not rows:
        return [CannotTell(id, "some rollouts have no task id") for id in IDS]
    repeats: Outcome = [CannotTell(id, "no group ids") for id in IDS[:2]]
    if all(r.group_n is not None for r in rows):
        found = _exceeds(view, rows) or _repeated(view, rows) or _few(view, rows)
        repeats = [found] if found else []
    return [*repeats, *_leaked(view, rows)]


def _drawn(r: Rows) -> list[str]:
    """The task of each group that was learned from."""
    assert r.group_n is not None
    first = np.unique(r.group_n[r.kept_n], return_index=True)[1]
    tasks = np.array(r.texts("task"))[r.kept_n]
    return [str(task) for task in tasks[first]]


def _exceeds(view: RunView, rows: list[Rows]) -> Finding | None:
    count = _declared(view)
    most = max(len(_drawn(r)) for r in rows)
    if count is None or most <= count:
        return None
    text = f"a step has {most} groups, and there are {count} tasks"
    summary = "A step draws more tasks than there are, so that some come twice in it."
    return finding(
        view,
        "data.batch-exceeds",
        Severity.WARNING,
        Confidence.HIGH,
        summary,
        [Evidence(text, most, step=rows[0].step)],
    )


def _repeated(view: RunView, rows: list[Rows]) -> Finding | None:
    """The same task in two groups of a step."""
    drawn = [_drawn(r) for r in rows]
    total, unique = sum(map(len, drawn)), sum(len(set(d)) for d in drawn)
    if unique >= 0.9 * total:
        return None
    flags = [_second_group(r) for r in rows]
    text = f"of {total} groups in {len(rows)} steps {total - unique} have a task that another group of the step has"
    summary = "Steps hold the same task several times: there are fewer different tasks than groups."
    evidence = [Evidence(text, unique / total, **point(rows, flags))]
    return finding(view, "data.duplicates", Severity.WARNING, Confidence.HIGH, summary, evidence)


def _few(view: RunView, rows: list[Rows]) -> Finding | None:
    """Fewer different tasks than drawing from the declared number at random would give."""
    count = _declared(view)
    if count is None or view.value("tasks.stages"):
        return None
    for some, least in ((rows[:FIRST], 0.9), (rows, 0.6)):
        drawn = [task for r in some for task in _drawn(r)]
        expected = count * (1 - np.exp(-len(drawn) / count))
        unique = len(set(drawn))
        if len(drawn) >= 20 and unique < least * expected and unique < 0.9 * min(len(drawn), count):
            text = (
                f"{unique} different tasks in {len(drawn)} groups, where {expected:.0f} were to be expected of {count}"
            )
            summary = "The run trains on far fewer different tasks than its taskset claims to have."
            evidence = [Evidence(text, unique / expected, step=some[-1].step)]
            return finding(view, "data.duplicates", Severity.WARNING, Confidence.HIGH, summary, evidence)
    return None


def _leaked(view: RunView, rows: list[Rows]) -> Outcome:
    held = set[str]()
    for line in (*view.evals[:1], *view.evals[-1:]):
        try:
            held.update(t for t in view.held_out(int(line["step"])).column("task").to_pylist() if t)
        except (RecordError, KeyError):
            continue
    if not held:
        return [CannotTell("data.leak", "no held-out rollouts were kept")]
    flags = [np.array([task in held for task in r.texts("task")], np.bool_) for r in rows]
    shared = {task for r in rows for task in r.texts("task") if task in held}
    if not shared:
        return []
    trained = {task for r in rows for task in r.texts("task")}
    text = f"{len(shared)} of {len(held)} held-out tasks are among the {len(trained)} trained on in {len(rows)} steps"
    summary = "Held-out tasks are trained on: held-out accuracy measures memory."
    evidence = [Evidence(text, len(shared) / len(held), **point(rows, flags))]
    return [finding(view, "data.leak", Severity.CRITICAL, Confidence.HIGH, summary, evidence)]


def _second_group(r: Rows) -> Flags:
    """Rollouts whose task an earlier group of the step has too."""
    assert r.group_n is not None
    assert r.task_n is not None
    first = {
        int(task): int(r.group_n[place]) for task, place in zip(*np.unique(r.task_n, return_index=True), strict=True)
    }
    return np.array([first[int(t)] != g for t, g in zip(r.task_n, r.group_n, strict=True)], np.bool_) & r.kept_n


def _declared(view: RunView) -> int | None:
    """How many tasks there are, as the run says."""
    count = view.info.get("tasks", {}).get("count") or view.value("tasks.train")
    return int(count) if isinstance(count, int) and count > 0 else None
