"""A lab's hypotheses at a glance: the README's status table and its roadmap by priority."""

from collections.abc import Mapping, Sequence

from uptrend.lab.hypothesis_file import in_order
from uptrend.records import Hypothesis, Priority, Status
from uptrend.stats.formatting import NONE, markdown_table

MARKS = {
    Status.PENDING: "⏳",
    Status.TESTING: "🧪",
    Status.VALIDATED: "✅",
    Status.INVALIDATED: "❌",
    Status.INCONCLUSIVE: "🤔",
}
"""How a status is drawn in a table."""

PHASES = {
    Priority.HIGH: "Phase 1: high priority, test these first",
    Priority.MEDIUM: "Phase 2: medium priority",
    Priority.LOW: "Phase 3: low priority",
}

OPEN = (Status.PENDING, Status.TESTING, Status.INCONCLUSIVE)


def status_table(hypotheses: Sequence[Hypothesis], links: Mapping[str, str], notes: Mapping[str, str]) -> str:
    """One line a hypothesis: priority, status, confidence and a note, such as its verdict's sentence."""
    if not hypotheses:
        return "No hypotheses yet. Write one with `uptrend lab new`."
    rows = []
    for h in hypotheses:
        name = f"[{h.id.upper()}: {h.title}]({links[h.id]})" if h.id in links else h.title
        rows.append((name, h.priority, f"{MARKS[h.status]} {h.status}", h.confidence or NONE, notes.get(h.id, "")))
    return markdown_table(("Hypothesis", "Priority", "Status", "Confidence", "Notes"), rows)


def roadmap(hypotheses: Sequence[Hypothesis]) -> str:
    """What is still open, by priority, each after its prerequisites; then what is decided."""
    is_open = {h.id for h in hypotheses if h.status in OPEN}
    lines = list[str]()
    for priority, phase in PHASES.items():
        of_phase = [h for h in hypotheses if h.priority is priority and h.id in is_open]
        if of_phase:
            lines += [f"### {phase}", "", *(_step(h, is_open) for h in in_order(of_phase)), ""]
    decided = [f"- {MARKS[h.status]} {h.id.upper()}: {h.title}" for h in hypotheses if h.id not in is_open]
    lines += ["### Decided", "", *decided] if decided else []
    return "\n".join(lines).strip() or "Nothing to test yet."


def _step(h: Hypothesis, is_open: set[str]) -> str:
    first = [name.upper() for name in h.prerequisites if name in is_open]
    after = f" (after {', '.join(first)})" if first else ""
    why = f" {h.explains}" if h.explains else ""
    how = f"`uptrend lab run {h.id}`" if h.arms else "No arms: its file says what decides."
    return f"- {MARKS[h.status]} **{h.id.upper()}: {h.title}**{after}.{why} {how}"
