"""What a second reader makes of the answers that were counted as wrong, and of the gold answers themselves.

reward.strict-parser  a lenient reader finds the answer where the scorer did not
data.wrong-gold       one question has two gold answers, or the model agrees with itself and never with the gold
"""

from collections import Counter

import numpy as np

from uptrend.doctor.answers import Answers, answers_of, others_golds, somehow_right
from uptrend.doctor.check import Outcome, finding
from uptrend.doctor.kept import cannot_tell, point, read_rows
from uptrend.doctor.reading import answer_of, fold
from uptrend.records import CannotTell, Confidence, Evidence, Finding, RunView, Severity

IDS = ("reward.strict-parser", "data.wrong-gold")
NOTED, WARNED = 0.05, 0.2
"""Shares of the wrong rollouts that the second reader must accept, over what it accepts by chance."""


def check(view: RunView) -> Outcome:
    """Read once more, more kindly."""
    lacking = cannot_tell(view, IDS, "reward", "task", "answer", "messages")
    if lacking:
        return [*lacking]
    steps = [a for a in (answers_of(r) for r in read_rows(view)) if a is not None]
    if not steps:
        return [CannotTell(id, "no scored rollout has a gold answer and a text") for id in IDS]
    found = [_strict(view, steps), _contradicted(view, steps) or _outvoted(view, steps)]
    return [f for f in found if f is not None]


def _strict(view: RunView, steps: list[Answers]) -> Finding | None:
    wrong = [~a.rewarded_n & ~a.right_n for a in steps]
    accepted = [somehow_right(a, a.gold_n, flags) for a, flags in zip(steps, wrong, strict=True)]
    chance = sum(int(somehow_right(a, others_golds(a), flags).sum()) for a, flags in zip(steps, wrong, strict=True))
    count, total = (sum(int(flags.sum()) for flags in kind) for kind in (accepted, wrong))
    tasks = sum(len(np.unique(a.task_n[flags])) for a, flags in zip(steps, accepted, strict=True))
    share = (count - chance) / max(total, 1)
    if count < 10 or tasks < 3 or share < NOTED:
        return None
    text = f"a lenient reader takes {count} of {total} wrong rollouts for right ({chance} by chance)"
    where = point([a.rows for a in steps], [a.whole(f) for a, f in zip(steps, accepted, strict=True)])
    summary = f"The scorer does not read {share:.0%} of what it calls wrong as a person would."
    severity = Severity.WARNING if share >= WARNED else Severity.NOTE
    return finding(view, "reward.strict-parser", severity, Confidence.MEDIUM, summary, [Evidence(text, share, **where)])


def _contradicted(view: RunView, steps: list[Answers]) -> Finding | None:
    """One task, two gold answers."""
    golds: dict[str, str] = {}
    flags = []
    for a in steps:
        tasks = a.rows.texts("task")
        other = [golds.setdefault(tasks[n] or "", fold(g)) != fold(g) for n, g in zip(a.place_n, a.gold_n, strict=True)]
        flags.append(a.whole(np.array(other, np.bool_)))
    bad = {a.rows.texts("task")[n] for a, f in zip(steps, flags, strict=True) for n in np.flatnonzero(f)}
    if not bad:
        return None
    text = f"{len(bad)} of {len(golds)} tasks have more than one gold answer"
    evidence = [Evidence(text, len(bad) / len(golds), **point([a.rows for a in steps], flags))]
    summary = "The same question has different gold answers, so at least one of them is wrong."
    severity = Severity.WARNING if len(bad) >= 0.02 * len(golds) else Severity.NOTE
    return finding(view, "data.wrong-gold", severity, Confidence.HIGH, summary, evidence)


def _outvoted(view: RunView, steps: list[Answers]) -> Finding | None:
    """A model that is mostly right, and sure of another answer than the gold on a good part of the tasks."""
    sure, tasks, flags = 0, 0, []
    for a in steps:
        against = np.zeros(len(a.place_n), np.bool_)
        for task in np.unique(a.task_n):
            of = np.flatnonzero(a.task_n == task)
            if len(of) < 4:
                continue
            tasks += 1
            said, votes = Counter(answer_of(a.said_n[n]) for n in of).most_common(1)[0]
            if votes >= 0.9 * len(of) and said and said != fold(a.gold_n[of[0]]) and not a.rewarded_n[of].any():
                sure += 1
                against[of] = True
        flags.append(a.whole(against))
    right = sum(int(a.rewarded_n.sum()) for a in steps) / sum(len(a.place_n) for a in steps)
    if right < 0.5 or sure < 5 or sure < 0.1 * tasks:
        return None
    text = f"on {sure} of {tasks} tasks nearly all rollouts agree on an answer that is not the gold one"
    evidence = [Evidence(text, sure / tasks, **point([a.rows for a in steps], flags))]
    summary = "The model is mostly right and sure of other answers than the gold ones on some tasks: look at these."
    return finding(view, "data.wrong-gold", Severity.NOTE, Confidence.LOW, summary, evidence)
