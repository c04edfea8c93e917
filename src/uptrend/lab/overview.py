"""Pages of a lab: those of a new one, and the status table and roadmap of its README."""

from collections.abc import Mapping, Sequence

from uptrend.lab.hypothesis_file import in_order
from uptrend.records import Hypothesis, Priority, Status
from uptrend.stats.formatting import NONE, markdown_table
from uptrend.stats.pages import render

NO_PROBLEM = "*What does not happen that should? Say it with its figures.*"

MARKS = {
    Status.PENDING: "⏳",
    Status.TESTING: "🧪",
    Status.VALIDATED: "✅",
    Status.INVALIDATED: "❌",
    Status.INCONCLUSIVE: "🤔",
}
"""Symbols of statuses in a table."""

PHASES = {
    Priority.HIGH: "Phase 1: high priority, test these first",
    Priority.MEDIUM: "Phase 2: medium priority",
    Priority.LOW: "Phase 3: low priority",
}


def new_pages(name: str, problem: str) -> dict[str, str]:
    """Return the pages of a new lab by file name."""
    templates = {
        "README.md": "readme.md",
        "00-problem-statement.md": "problem.md",
        "01-experiments-log.md": "log.md",
    }
    told = {"name": name, "problem": problem.strip() or NO_PROBLEM}
    return {page: render(f"lab/templates/{template}", **told) + "\n" for page, template in templates.items()}


def status_table(hypotheses: Sequence[Hypothesis], links: Mapping[str, str], notes: Mapping[str, str]) -> str:
    """Return one row per hypothesis: priority, status, confidence and a note, such as its verdict's sentence."""
    if not hypotheses:
        return "No hypotheses yet. Write one with `uptrend lab new`."
    rows = []
    for h in hypotheses:
        name = f"[{h.id.upper()}: {h.title}]({links[h.id]})" if h.id in links else h.title
        rows.append((name, h.priority, f"{MARKS[h.status]} {h.status}", h.confidence or NONE, notes.get(h.id, "")))
    return markdown_table(("Hypothesis", "Priority", "Status", "Confidence", "Notes"), rows)


def phases(hypotheses: Sequence[Hypothesis]) -> dict[str, list[Hypothesis]]:
    """Return the hypotheses still to decide by phase, each after its prerequisites; empty phases are left out."""
    is_open = [h for h in hypotheses if h.status in (Status.PENDING, Status.TESTING, Status.INCONCLUSIVE)]
    by_phase = {phase: in_order([h for h in is_open if h.priority is priority]) for priority, phase in PHASES.items()}
    return {phase: found for phase, found in by_phase.items() if found}


def roadmap(hypotheses: Sequence[Hypothesis]) -> str:
    """Return Markdown of the hypotheses still to decide, by phase, and then of those decided."""
    to_do = phases(hypotheses)
    is_open = {h.id for found in to_do.values() for h in found}
    lines = list[str]()
    for phase, found in to_do.items():
        lines += [f"### {phase}", ""]
        for h in found:
            first = [name.upper() for name in h.prerequisites if name in is_open]
            after = f" (after {', '.join(first)})" if first else ""
            why = f" {h.explains}" if h.explains else ""
            how = f"`uptrend lab run {h.id}`" if h.arms else "No arms: its file says what decides."
            lines.append(f"- {MARKS[h.status]} **{h.id.upper()}: {h.title}**{after}.{why} {how}")
        lines.append("")
    decided = [f"- {MARKS[h.status]} {h.id.upper()}: {h.title}" for h in hypotheses if h.id not in is_open]
    lines += ["### Decided", "", *decided] if decided else []
    return "\n".join(lines).strip() or "Nothing to test yet."
