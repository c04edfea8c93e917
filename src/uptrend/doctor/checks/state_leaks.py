"""Whether two rollouts of a task that did exactly the same were shown different things (task.state-leaks).

Everything before an answer of the task is the key: the same words and calls must bring the same answer. Numbers
are left out of the comparison, because clocks and durations differ by right.
"""

import re

from uptrend.doctor.check import Outcome, finding
from uptrend.doctor.kept import cannot_tell, read_rows
from uptrend.doctor.rows import Rows
from uptrend.records import CannotTell, Confidence, Evidence, RunView, Severity

ID = "task.state-leaks"
NUMBERS = re.compile(r"\d+")


def check(view: RunView) -> Outcome:
    """Compare what the task answered to equal histories, in the first step and the last."""
    lacking = cannot_tell(view, [ID], "messages", "task")
    if lacking:
        return [*lacking]
    rows = [r for r in read_rows(view) if r.has("messages", "task")]
    repeated, differing = 0, list[tuple[Rows, int, str]]()
    for r in dict.fromkeys((rows[0], rows[-1])):
        again, others = _compare(r)
        repeated, differing = repeated + again, differing + others
    if not repeated:
        return [CannotTell(ID, "no two rollouts of a task did the same and were answered")]
    if len(differing) < 2 or len(differing) < 0.02 * repeated:
        return []
    r, rollout, said = differing[0]
    text = f"{len(differing)} of {repeated} answers of the task differ from the first one to the very same history"
    evidence = [
        Evidence(text, len(differing) / repeated, step=r.step, rollout=r.name(rollout)),
        Evidence(f"such as {said!r}"),
    ]
    summary = "The same actions bring different observations: rollouts share state, or the task is random."
    return [finding(view, ID, Severity.WARNING, Confidence.MEDIUM, summary, evidence)]


def _compare(r: Rows) -> tuple[int, list[tuple[Rows, int, str]]]:
    """How many answers came to a history that had one already, and which of them were other ones."""
    first: dict[int, str] = {}
    repeated, differing = 0, list[tuple[Rows, int, str]]()
    tasks = r.texts("task")
    for n, messages in enumerate(r.messages_n):
        history, spoken = hash(tasks[n]), False
        for message in messages:
            role, content = message["role"], message["content"] or ""
            if spoken and role in ("tool", "user"):
                plain = NUMBERS.sub("#", content)
                repeated += history in first
                if first.setdefault(history, plain) != plain:
                    differing.append((r, n, content[:80]))
            spoken |= role == "assistant"
            history = hash((history, role, content, message["calls"]))
    return repeated, differing
