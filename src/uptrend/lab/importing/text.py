"""How imported experiments and hypotheses read in a lab: a few facts, then the journal's own words, quoted."""

import hashlib
from collections.abc import Sequence

from uptrend.lab import blocks
from uptrend.lab.importing.found import FoundExperiment, FoundHypothesis
from uptrend.lab.importing.marks import reported
from uptrend.lab.importing.outline import OutlineLine
from uptrend.stats.formatting import markdown_table

NOT_RUN_HERE = "Nothing of it was run here"
OWN = ("Hypothesis", "Experiment", "Listed", "Status", "Prerequisites")
"""Fields that are told elsewhere."""
METHODS = ("Test", "Config", "Configuration", "Changes", "Script", "Dataset", "Batch size", "Num generations", "Time")
REASONS = ("Impact", "Reasoning", "Rationale", "Expected", "Expected outcome", "Expected benefits")


def key_of(*names: str) -> str:
    """A short hash of what something is called, by which a later import of a longer journal knows it."""
    return hashlib.sha256("\n".join(names).encode()).hexdigest()[:10]


def mark_of(key: str) -> str:
    """What stands in a hypothesis's file so that a second import knows it."""
    return f"<!-- imported {key} -->"


def entry(one: FoundExperiment, source: str) -> str:
    """An entry of the experiments log."""
    code = f"{one.key}: " if one.key and one.key not in one.runs else ""
    runs = f" ({', '.join(one.runs)})" if one.runs else ""
    told = reported(one.statuses)
    said = f"Reported: {told}." if told else "No outcome was reported." if not one.outcome else ""
    outcome = f"{one.outcome.rstrip('.')}." if one.outcome else ""
    facts = {
        "runs": ", ".join(f"`{run}`" for run in one.runs),
        "settings": "; ".join(f"{name} = {value}" for name, value in one.settings.items()),
        "figures": ", ".join(dict.fromkeys(f"{figure.name} {figure.value:g}" for figure in one.figures)),
    }
    rows = [(name, text) for name, text in facts.items() if text]
    table = markdown_table(("", ""), rows) if rows else ""
    where = f"{NOT_RUN_HERE}; from {source}, {spans(one.lines)}:"
    day = f"{one.date}: " if one.date else ""
    head = f"## {day}{code}{one.title}{runs}"
    return _joined(head, " ".join(part for part in (said, outcome) if part), table, where, quoted(one.lines))


def prose(one: FoundHypothesis, source: str, key: str) -> dict[str, str]:
    """The sections of a hypothesis's file."""
    fields = {name: text for name, text in one.fields.items() if text}
    told = reported(one.statuses) or "pending"
    sure = f", confidence {one.confidence}" if one.confidence else ""
    notes = f": {one.notes.strip('*')}" if one.notes else ""
    runs = f" Runs: {', '.join(f'`{run}`' for run in one.runs)}." if one.runs else ""
    others = {name: text for name, text in fields.items() if name not in (*OWN, *METHODS, *REASONS, "Issue")}
    return {
        "Description": _joined(fields.get("Issue", one.claim), _listed(others)),
        "Why it explains the behavior": _listed({name: fields[name] for name in REASONS if name in fields}),
        "Validation method": _joined(
            _listed({name: fields[name] for name in METHODS if name in fields}),
            "*It has no arms yet: write a recipe and arms above (docs/hypotheses.md), then it can be run.*",
        ),
        "Invalidation criteria": "*The source names none. Which result would make you drop it?*",
        "Results": _joined(
            blocks.put("", "results", f"{NOT_RUN_HERE} yet, so that its status is pending.").strip(),
            f"Reported: {told}{sure}{notes}.{runs}",
        ),
        "As it was written": _joined(f"From {source}, {spans(one.lines)}:", quoted(one.lines), mark_of(key)),
    }


def spans(lines: Sequence[OutlineLine]) -> str:
    """Where some lines stand: lines 106–118 and 160–167."""
    parts = list[list[int]]()
    for number in (line.number for line in lines):
        if parts and number == parts[-1][-1] + 1:
            parts[-1] = [parts[-1][0], number]
        else:
            parts.append([number, number])
    said = [str(first) if first == last else f"{first}–{last}" for first, last in parts]
    return f"line{'s' if len(said) > 1 or '–' in said[0] else ''} {' and '.join(said)}"


def quoted(lines: Sequence[OutlineLine]) -> str:
    """Lines as a quotation, so that their headings are not the page's."""
    texts = [line.text for line in lines]
    while texts and not texts[-1].strip():
        texts.pop()
    return "\n".join(f"> {text}" if text.strip() else ">" for text in texts)


def _listed(fields: dict[str, str]) -> str:
    return "\n".join(f"- **{name}**: {text}" for name, text in fields.items())


def _joined(*parts: str) -> str:
    return "\n\n".join(part for part in parts if part)
