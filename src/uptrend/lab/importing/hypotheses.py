"""Hypotheses of a journal: « H03: KL Divergence Bug », rows of a status table, and « **Hypothesis**: … »."""

import re
from collections.abc import Sequence
from dataclasses import replace

from uptrend.lab.importing.experiments import CLAIM
from uptrend.lab.importing.found import FoundExperiment, FoundHypothesis
from uptrend.lab.importing.marks import PRIORITIES, cells_in, fields_in, status_in
from uptrend.lab.importing.outline import OutlineLine, Section

NUMBERED = re.compile(r"H(\d+)\b[:.]\s*(.+)")
LISTED = re.compile(r"\bh(\d+)-([a-z0-9-]+)\.md\b\s*#?\s*(?:\[(\w+)\])?\s*(.*)")
DRAWN = re.compile(r"[^\w\s()/:.,'-]+")


def numbered(sections: Sequence[Section]) -> tuple[list[FoundHypothesis], dict[int, str]]:
    """Hypotheses that have a number: sections, lines of a drawn folder and table rows, all told of one together."""
    own = _sections(sections)
    lines = [line for section in sections for line in section.lines]
    listed = [one for line in lines if (one := _of_listing(line))]
    rows = [one for line in lines if (one := _of_row(line))]
    found = dict[str, FoundHypothesis]()
    for one in (*own, *listed, *rows):
        found[one.id] = _join(found[one.id], one) if one.id in found else one
    where = {line.number: one.id for one in own for line in one.lines}
    return sorted(found.values(), key=lambda one: int(one.id[1:])), where


def _sections(sections: Sequence[Section]) -> list[FoundHypothesis]:
    """Those that have a section of their own, with the sections under it."""
    found, level = list[FoundHypothesis](), 0
    for section in sections:
        heading = NUMBERED.match(section.title)
        if heading:
            found.append(_of_section(f"h{int(heading[1]):02d}", heading[2], section))
            level = section.level
        elif level and section.level > level:
            found[-1] = _join(found[-1], _of_section(found[-1].id, "", section))
        else:
            level = 0
    return found


def claimed(experiments: Sequence[FoundExperiment]) -> list[FoundHypothesis]:
    """Hypotheses that an experiment states without a number; its statuses are theirs."""
    found = list[FoundHypothesis]()
    for one in experiments:
        for place, line in enumerate(one.lines):
            claim = "" if line.in_code else fields_in(line.text).get(CLAIM, "")
            if claim:
                told = _until_heading(one.lines[place:])
                fields = {name: text for other in told for name, text in fields_in(other.text).items()}
                found.append(
                    FoundHypothesis(
                        "",
                        claim,
                        told,
                        statuses=one.statuses,
                        fields={"Experiment": one.title, **fields},
                        runs=one.runs,
                    )
                )
    return found


def _of_section(id: str, title: str, section: Section) -> FoundHypothesis:
    texts = [line.text for line in section.body if not line.in_code]
    fields = {name: text for line in texts for name, text in fields_in(line).items()}
    flagged = re.search(r"\[(\w+)", title)
    statuses = tuple(word for text in texts if (word := status_in(text)))
    priority = PRIORITIES.get(flagged[1].lower(), "") if flagged else ""
    claim = DRAWN.sub("", re.sub(r"\*\*\[.*?\]\*\*", "", title)).strip()
    return FoundHypothesis(id, claim, section.lines, priority, statuses, fields=fields)


def _of_row(line: OutlineLine) -> FoundHypothesis | None:
    """A status table's row: hypothesis, priority, status, confidence, notes."""
    cells = cells_in(line.text)
    name = NUMBERED.match(cells[0]) if len(cells) == 5 else None
    if name is None or line.in_code:
        return None
    status, sure = status_in(cells[2]), PRIORITIES.get(cells[3].lower(), "")
    statuses = (status,) if status else ()
    id, priority = f"h{int(name[1]):02d}", PRIORITIES.get(cells[1].lower(), "")
    return FoundHypothesis(id, name[2], (line,), priority, statuses, sure, cells[4])


def _of_listing(line: OutlineLine) -> FoundHypothesis | None:
    """A line of a drawn folder: h03-kl-divergence-bug.md  # [MED] ✅ PARTIALLY VALIDATED - …"""
    match = LISTED.search(line.text)
    if match is None:
        return None
    status = status_in(match[4])
    claim = match[2].replace("-", " ").capitalize()
    return FoundHypothesis(
        f"h{int(match[1]):02d}",
        claim,
        (line,),
        PRIORITIES.get((match[3] or "").lower(), ""),
        (status,) if status else (),
        fields={"Listed": match[4]} if match[4] else {},
    )


def _join(one: FoundHypothesis, other: FoundHypothesis) -> FoundHypothesis:
    """Two mentions as one; the first one's words stay."""
    return replace(
        one,
        lines=one.lines + other.lines,
        priority=one.priority or other.priority,
        statuses=one.statuses + other.statuses,
        confidence=one.confidence or other.confidence,
        notes=one.notes or other.notes,
        fields={**one.fields, **other.fields},
    )


def _until_heading(lines: Sequence[OutlineLine]) -> tuple[OutlineLine, ...]:
    """Lines up to the next heading."""
    ends = (place for place, line in enumerate(lines) if line.text.startswith("#") and not line.in_code)
    return tuple(lines[: next(ends, len(lines))])
