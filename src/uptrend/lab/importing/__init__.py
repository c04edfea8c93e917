"""Importing journals that were kept by hand: hypotheses, log entries, the problem statement, and
pages for the rest.

Imported text goes into blocks of the machine's, which a later import of a longer journal writes
anew. Hypotheses are files that people go on with: one that is there is left alone.
"""

import hashlib
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Any

from uptrend.lab.hypothesis_file import get_block, put_block, sections
from uptrend.lab.importing.reading import FIELDS, Journal, JournalItem, read_journal, reported
from uptrend.lab.notebook import LOG, PROBLEM, Notebook, new_pages
from uptrend.present.formatting import cell, render
from uptrend.records import Hypothesis, Priority
from uptrend.records.files import explain_disk_errors, write_atomically

__all__ = ["Imported", "hypothesis_key", "import_journals"]

# Folder of what is neither an experiment nor a hypothesis.
KEPT = "imported"


@dataclass
class Imported:
    """Result of an import."""

    journals: list[Journal]
    # the lab's id of each new hypothesis, by its key
    ids: dict[str, str] = field(default_factory=dict)
    entries: int = 0  # new entries of the log
    already: int = 0  # hypotheses and experiments that were there from an earlier import
    written: list[Path] = field(default_factory=list)  # files that were made or changed


def import_journals(paths: Sequence[Path], notebook: Notebook) -> Imported:
    """Read journals into a lab; what an earlier import brought is not brought again."""
    imported = Imported([read_journal(path) for path in paths])
    _add_hypotheses(notebook, imported)
    for journal in imported.journals:
        seen = Counter[str]()
        entries = dict[str, str]()
        for one in journal.experiments:
            name = one.key or one.title
            # of several experiments that are called the same, the place is part of the key
            seen[name] += 1
            key = _key(journal.title, "experiment", name, str(seen[name]))
            entries[key] = _render("imported-entry.md", one, journal.name)
        new = _put(notebook, imported, LOG, entries)
        imported.entries += new
        imported.already += len(entries) - new
        text = (
            "\n".join(line.text for line in journal.lines) if journal.is_problem else _rest(journal)
        )
        page = PROBLEM if journal.is_problem else f"{KEPT}/{Path(journal.name).stem}.md"
        _put(notebook, imported, page, {_key(journal.title): text})
    notebook.refresh()
    return imported


def hypothesis_key(one: JournalItem, journal: Journal) -> str:
    """Return the key by which a later import knows a hypothesis."""
    return _key(journal.title, "hypothesis", one.key or one.title)


def _key(*names: str) -> str:
    return hashlib.sha256("\n".join(names).encode()).hexdigest()[:10]


def _add_hypotheses(notebook: Notebook, imported: Imported) -> None:
    # Write new hypotheses; numbered ones go first, since they keep their numbers where those are
    # free.
    files = list((notebook.folder / "hypotheses").glob("h[0-9]*.md"))
    there = "\n".join(path.read_text(encoding="utf-8") for path in files)
    found = [(one, journal) for journal in imported.journals for one in journal.hypotheses]
    new = [(one, journal) for one, journal in found if hypothesis_key(one, journal) not in there]
    new.sort(key=lambda pair: not pair[0].key)
    imported.already += len(found) - len(new)
    taken = [path.name.partition("-")[0] for path in files]
    for one, _ in new:
        last = max((int(id[1:]) for id in taken), default=0)
        taken.append(one.key if one.key and one.key not in taken else f"h{last + 1:02d}")
    ids = taken[len(files) :]
    named = {one.key: id for (one, _), id in zip(new, ids, strict=True) if one.key}
    for (one, journal), id in zip(new, ids, strict=True):
        key = hypothesis_key(one, journal)
        first = [
            f"h{int(number):02d}"
            for number in re.findall(r"\bH(\d+)", one.fields.get("Prerequisites", ""))
        ]
        title = one.title.rstrip(".") or f"{one.key.upper()}, as it was called"
        waits = tuple(named[other] for other in first if other in named)
        priority = Priority(one.priority or "medium")
        explains = one.fields.get("Impact", "")
        hypothesis = Hypothesis(id, title, "", (), priority, explains=explains, prerequisites=waits)
        text = _render("imported-hypothesis.md", one, journal.name, fields=FIELDS, key=key)
        imported.ids[key] = id
        imported.written.append(notebook.add(hypothesis, sections(text)))


def _render(template: str, one: JournalItem, source: str, **more: Any) -> str:
    # Render facts and quoted lines; a quotation keeps their headings from being the page's.
    spans = list[str]()
    for _, pairs in groupby(
        enumerate(line.number for line in one.lines), lambda pair: pair[1] - pair[0]
    ):
        numbers = [number for _, number in pairs]
        spans.append(f"{numbers[0]}–{numbers[-1]}" if len(numbers) > 1 else str(numbers[0]))
    where = f"{source}, line{'s' if len(one.lines) > 1 else ''} {' and '.join(spans)}"
    lines = "\n".join(line.text for line in one.lines).rstrip().split("\n")
    quoted = "\n".join(f"> {line}" if line.strip() else ">" for line in lines)
    figures = dict.fromkeys(f"{figure.name} {figure.value:g}" for figure in one.figures)
    told = {
        "one": one,
        "status": reported(one.statuses),
        "figures": figures,
        "where": where,
        "quoted": quoted,
    }
    return render(f"lab/templates/{template}", cell=cell, **told, **more)


def _put(notebook: Notebook, imported: Imported, page: str, texts: dict[str, str]) -> int:
    # Write texts into blocks of a page, by key, and count the new ones; an empty problem statement
    # is replaced.
    path = notebook.folder / page
    there = path.read_bytes().decode() if path.exists() else ""
    empty = new_pages("", "").get(page, "")
    text = "" if page == PROBLEM and there == empty else there or empty
    new = sum(get_block(text, f"{KEPT} {key}") is None for key in texts)
    for key, content in texts.items():
        text = put_block(text, f"{KEPT} {key}", content)
    if texts and text != there:
        with explain_disk_errors(path.parent):
            path.parent.mkdir(exist_ok=True)
        write_atomically(path, text.encode())
        imported.written += [path] if path not in imported.written else []
    return new


def _rest(journal: Journal) -> str:
    # A journal's lines in order, those that went elsewhere as one line with a link.
    lines = list[str]()
    for went, own in groupby(journal.lines, lambda line: journal.elsewhere.get(line.number, "")):
        is_hypothesis = re.fullmatch(r"h\d+", went)
        place = "[hypotheses](../hypotheses/)" if is_hypothesis else f"[log](../{LOG})"
        note = [f"*→ {went.upper() if is_hypothesis else went}: in the {place}*", ""]
        lines += note if went else [line.text for line in own]
    return "\n".join(lines)
