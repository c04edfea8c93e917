"""Importing journals that were kept by hand: hypotheses, log entries, the problem statement, and pages for the rest.

Imported text goes into blocks of the machine's, which a later import of a longer journal writes anew. Hypotheses are
files that people go on with: one that is there is left alone.
"""

import hashlib
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path

from uptrend.lab import blocks
from uptrend.lab.importing.reading import FIELDS, Found, Journal, OutlineLine, read_journal, reported
from uptrend.lab.notebook import LOG, PROBLEM, Notebook
from uptrend.lab.overview import new_pages
from uptrend.records import Hypothesis, Priority
from uptrend.records.lines import plain_disk_errors, write_whole
from uptrend.stats.formatting import markdown_table
from uptrend.stats.pages import render

__all__ = ["Imported", "hypothesis_key", "import_journals"]

KEPT = "imported"
"""Folder of what is neither an experiment nor a hypothesis."""


@dataclass
class Imported:
    """Result of an import."""

    journals: list[Journal]
    """Sources, read."""
    ids: dict[str, str] = field(default_factory=dict)
    """The lab's id of each new hypothesis, by its key."""
    entries: int = 0
    """New entries of the log."""
    already: int = 0
    """Hypotheses and experiments that were there from an earlier import."""
    written: list[Path] = field(default_factory=list)
    """Files that were made or changed."""


def import_journals(paths: Sequence[Path], notebook: Notebook) -> Imported:
    """Read journals into a lab; what an earlier import brought is not brought again."""
    imported = Imported([read_journal(path) for path in paths])
    _add_hypotheses(notebook, imported)
    for journal in imported.journals:
        _add_entries(notebook, imported, journal)
        text = "\n".join(line.text for line in journal.lines) if journal.is_problem else _rest(journal)
        page = PROBLEM if journal.is_problem else f"{KEPT}/{Path(journal.name).stem}.md"
        _put(notebook, imported, page, {_key(journal.title): text})
    notebook.refresh()
    return imported


def hypothesis_key(one: Found, journal: Journal) -> str:
    """Return the key by which a later import knows a hypothesis."""
    return _key(journal.title, "hypothesis", one.key or one.title)


def _key(*names: str) -> str:
    return hashlib.sha256("\n".join(names).encode()).hexdigest()[:10]


def _add_hypotheses(notebook: Notebook, imported: Imported) -> None:
    """Write new hypotheses; numbered ones go first, since they keep their numbers where those are free."""
    files = list((notebook.folder / "hypotheses").glob("h[0-9]*.md"))
    there = "\n".join(path.read_text(encoding="utf-8") for path in files)
    found = [(one, journal) for journal in imported.journals for one in journal.hypotheses]
    new = [(one, journal) for one, journal in found if _mark(hypothesis_key(one, journal)) not in there]
    new.sort(key=lambda pair: not pair[0].key)
    imported.already += len(found) - len(new)
    taken = [path.name.partition("-")[0] for path in files]
    ids = list[str]()
    for one, _ in new:
        last = max((int(id[1:]) for id in (*taken, *ids)), default=0)
        ids.append(one.key if one.key and one.key not in (*taken, *ids) else f"h{last + 1:02d}")
    named = {one.key: id for (one, _), id in zip(new, ids, strict=True) if one.key}
    for (one, journal), id in zip(new, ids, strict=True):
        key = hypothesis_key(one, journal)
        first = [f"h{int(number):02d}" for number in re.findall(r"\bH(\d+)", one.fields.get("Prerequisites", ""))]
        h = Hypothesis(
            id,
            one.title.rstrip(".") or f"{one.key.upper()}, as it was called",
            recipe="",
            arms=(),
            priority=Priority(one.priority or "medium"),
            explains=one.fields.get("Impact", ""),
            prerequisites=tuple(named[other] for other in first if other in named),
        )
        imported.ids[key] = id
        imported.written.append(notebook.add(h, _prose(one, journal.name, key)))


def _add_entries(notebook: Notebook, imported: Imported, journal: Journal) -> None:
    """Write entries of the log; of several experiments that are called the same, the place is part of the key."""
    seen, entries = Counter[str](), dict[str, str]()
    for one in journal.experiments:
        name = one.key or one.title
        seen[name] += 1
        facts = {
            "runs": ", ".join(f"`{run}`" for run in one.runs),
            "settings": "; ".join(f"{name} = {value}" for name, value in one.settings.items()),
            "figures": ", ".join(dict.fromkeys(f"{figure.name} {figure.value:g}" for figure in one.figures)),
        }
        entries[_key(journal.title, "experiment", name, str(seen[name]))] = render(
            "lab/templates/imported-entry.md",
            one=one,
            status=reported(one.statuses),
            facts=[(fact, text) for fact, text in facts.items() if text],
            source=journal.name,
            where=_spans(one.lines),
            quoted=_quoted(one.lines),
            markdown_table=markdown_table,
        )
    new = _put(notebook, imported, LOG, entries)
    imported.entries += new
    imported.already += len(entries) - new


def _put(notebook: Notebook, imported: Imported, page: str, texts: dict[str, str]) -> int:
    """Write texts into blocks of a page, by key, and count the new ones; the empty page of a new lab is replaced."""
    path = notebook.folder / page
    with plain_disk_errors(path.parent):
        path.parent.mkdir(exist_ok=True)
    there = path.read_bytes().decode() if path.exists() else ""
    empty = new_pages("", "").get(page, "")
    text = there if page == LOG and there else empty if page == LOG else "" if there == empty else there
    new = sum(blocks.get(text, f"{KEPT} {key}") is None for key in texts)
    for key, content in texts.items():
        text = blocks.put(text, f"{KEPT} {key}", content)
    if text != there and texts:
        write_whole(path, text.encode())
        imported.written += [path] if path not in imported.written else []
    return new


def _rest(journal: Journal) -> str:
    """Return a journal's lines in order, those that went elsewhere as one line with a link."""
    lines = list[str]()
    for went, own in groupby(journal.lines, lambda line: journal.elsewhere.get(line.number, "")):
        is_hypothesis = re.fullmatch(r"h\d+", went)
        place = "[hypotheses](../hypotheses/)" if is_hypothesis else f"[log](../{LOG})"
        note = [f"*→ {went.upper() if is_hypothesis else went}: in the {place}*", ""]
        lines += note if went else [line.text for line in own]
    return "\n".join(lines)


def _prose(one: Found, source: str, key: str) -> dict[str, str]:
    """Return the sections of a hypothesis's file."""
    known = {name for kind in ("elsewhere", "method", "reason", "description") for name in FIELDS[kind]}
    told = reported(one.statuses) or "pending"
    sure = f", confidence {one.confidence}" if one.confidence else ""
    notes = f": {one.notes.strip('*')}" if one.notes else ""
    runs = f" Runs: {', '.join(f'`{run}`' for run in one.runs)}." if one.runs else ""
    sections = {
        "Description": (one.fields.get("Issue") or one.title, _fields(one, [n for n in one.fields if n not in known])),
        "Why it explains the behavior": (_fields(one, FIELDS["reason"]),),
        "Validation method": (
            _fields(one, FIELDS["method"]),
            "*It has no arms yet: write a recipe and arms above (docs/hypotheses.md), then it can be run.*",
        ),
        "Invalidation criteria": ("*The source names none. Which result would make you drop it?*",),
        "Results": (
            blocks.put("", "results", "Nothing of it was run here yet, so that its status is pending.").strip(),
            f"Reported: {told}{sure}{notes}.{runs}",
        ),
        "As it was written": (f"From {source}, {_spans(one.lines)}:", _quoted(one.lines), _mark(key)),
    }
    return {name: "\n\n".join(part for part in parts if part) for name, parts in sections.items()}


def _mark(key: str) -> str:
    return f"<!-- imported {key} -->"


def _fields(one: Found, names: Iterable[str]) -> str:
    return "\n".join(f"- **{name}**: {one.fields[name]}" for name in names if one.fields.get(name))


def _spans(lines: Sequence[OutlineLine]) -> str:
    """Name the places of some lines: lines 106–118 and 160–167."""
    stretches = [
        [n for _, n in run] for _, run in groupby(enumerate(line.number for line in lines), lambda p: p[1] - p[0])
    ]
    said = [f"{run[0]}–{run[-1]}" if len(run) > 1 else str(run[0]) for run in stretches]
    return f"line{'s' if len(lines) > 1 else ''} {' and '.join(said)}"


def _quoted(lines: Sequence[OutlineLine]) -> str:
    """Quote lines, so that their headings are not the page's."""
    text = "\n".join(line.text for line in lines).rstrip()
    return "\n".join(f"> {line}" if line.strip() else ">" for line in text.split("\n"))
