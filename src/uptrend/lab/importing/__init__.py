"""Importing journals that were kept by hand: hypotheses, log entries, the problem statement, and
pages for the rest.

Imported text goes into marked blocks, which a later import of a longer journal writes anew.
Hypotheses are files that people go on editing: one that exists is left alone.
"""

import hashlib
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Any

from uptrend.lab.hypothesis_file import get_block, put_block, sections
from uptrend.lab.importing.reading import FIELD_NAMES, Journal, JournalItem, read_journal, reported
from uptrend.lab.notebook import IMPORTED_FOLDER, LOG_PAGE, PROBLEM_PAGE, Notebook, new_pages
from uptrend.present.formatting import cell, render
from uptrend.records import Hypothesis, Priority
from uptrend.records.files import explain_disk_errors, write_atomically

__all__ = ["Imported", "hypothesis_key", "import_journals"]

# Characters of the hash by which a later import recognizes a text.
KEY_LENGTH = 10


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
        entries = _log_entries(journal)
        n_new = _put_blocks(notebook, imported, LOG_PAGE, entries)
        imported.entries += n_new
        imported.already += len(entries) - n_new

        page = f"{IMPORTED_FOLDER}/{Path(journal.name).stem}.md"
        if journal.is_problem:
            page = PROBLEM_PAGE
        text = _page_text(journal)
        _put_blocks(notebook, imported, page, {_key(journal.title): text})
    notebook.refresh()
    return imported


def hypothesis_key(hypothesis: JournalItem, journal: Journal) -> str:
    """Return the key by which a later import recognizes a hypothesis."""
    return _key(journal.title, "hypothesis", hypothesis.key or hypothesis.title)


def _key(*names: str) -> str:
    """Hash names into a key."""
    return hashlib.sha256("\n".join(names).encode()).hexdigest()[:KEY_LENGTH]


def _add_hypotheses(notebook: Notebook, imported: Imported) -> None:
    """Write the hypotheses that the lab does not have yet."""
    files = list((notebook.folder / "hypotheses").glob("h[0-9]*.md"))
    texts = "\n".join(path.read_text(encoding="utf-8") for path in files)
    new: list[tuple[JournalItem, Journal]] = []
    for journal in imported.journals:
        for item in journal.hypotheses:
            if hypothesis_key(item, journal) in texts:
                imported.already += 1
            else:
                new.append((item, journal))
    # Numbered ones go first, since they keep their numbers where those are free.
    new.sort(key=lambda pair: not pair[0].key)

    existing_ids = [path.name.partition("-")[0] for path in files]
    new_ids = _assign_ids([item for item, _ in new], existing_ids)
    ids_by_number: dict[str, str] = {}
    for (item, _), id in zip(new, new_ids, strict=True):
        if item.key:
            ids_by_number[item.key] = id

    for (item, journal), id in zip(new, new_ids, strict=True):
        numbers = re.findall(r"\bH(\d+)", item.fields.get("Prerequisites", ""))
        named = [f"h{int(number):02d}" for number in numbers]
        hypothesis = Hypothesis(
            id,
            title=item.title.rstrip(".") or f"{item.key.upper()}, as it was called",
            recipe="",
            arms=(),
            priority=Priority(item.priority or "medium"),
            explains=item.fields.get("Impact", ""),
            prerequisites=tuple(ids_by_number[name] for name in named if name in ids_by_number),
        )
        key = hypothesis_key(item, journal)
        text = _render("imported-hypothesis.md", item, journal.name, fields=FIELD_NAMES, key=key)
        imported.ids[key] = id
        imported.written.append(notebook.add(hypothesis, sections(text)))


def _assign_ids(hypotheses: Sequence[JournalItem], existing_ids: Sequence[str]) -> list[str]:
    """Return an id for each new hypothesis: its own number where that is free, else the next."""
    taken = list(existing_ids)
    for hypothesis in hypotheses:
        id = hypothesis.key
        if not id or id in taken:
            numbers = [int(other[1:]) for other in taken]
            id = f"h{max(numbers, default=0) + 1:02d}"
        taken.append(id)
    return taken[len(existing_ids) :]


def _log_entries(journal: Journal) -> dict[str, str]:
    """Return the log's entry of each experiment, by key."""
    n_seen = Counter[str]()
    entries: dict[str, str] = {}
    for experiment in journal.experiments:
        name = experiment.key or experiment.title
        # Of several experiments of one name, the number is part of the key.
        n_seen[name] += 1
        key = _key(journal.title, "experiment", name, str(n_seen[name]))
        entries[key] = _render("imported-entry.md", experiment, journal.name)
    return entries


def _render(template: str, item: JournalItem, source: str, **values: Any) -> str:
    """Render an item's facts and its lines as a quotation, so that headings among them are not the
    page's.
    """
    numbers = _spans([line.number for line in item.lines])
    word = "lines" if len(item.lines) > 1 else "line"
    text = "\n".join(line.text for line in item.lines)
    quoted: list[str] = []
    for line in text.rstrip().split("\n"):
        quoted.append(f"> {line}" if line.strip() else ">")
    figures = [f"{figure.name} {figure.value:g}" for figure in item.figures]
    return render(
        f"lab/templates/{template}",
        cell=cell,
        item=item,
        status=reported(item.statuses),
        figures=dict.fromkeys(figures),
        where=f"{source}, {word} {numbers}",
        quoted="\n".join(quoted),
        **values,
    )


def _spans(numbers: Sequence[int]) -> str:
    """Format line numbers, consecutive ones as a span: 3–7 and 12."""
    spans: list[tuple[int, int]] = []
    for number in numbers:
        if spans and number == spans[-1][1] + 1:
            first, _ = spans[-1]
            spans[-1] = (first, number)
        else:
            spans.append((number, number))
    texts: list[str] = []
    for first, last in spans:
        texts.append(f"{first}–{last}" if last > first else str(first))
    return " and ".join(texts)


def _put_blocks(notebook: Notebook, imported: Imported, page: str, texts: Mapping[str, str]) -> int:
    """Write texts into blocks of a page, by key, and count the new ones."""
    path = notebook.folder / page
    before = path.read_bytes().decode() if path.exists() else ""
    template = new_pages("", "").get(page, "")
    text = before or template
    if page == PROBLEM_PAGE and before == template:  # not filled in yet: the journal's replaces it
        text = ""
    n_new = 0
    for key, content in texts.items():
        name = f"{IMPORTED_FOLDER} {key}"
        if get_block(text, name) is None:
            n_new += 1
        text = put_block(text, name, content)
    if texts and text != before:
        with explain_disk_errors(path.parent):
            path.parent.mkdir(exist_ok=True)
        write_atomically(path, text.encode())
        if path not in imported.written:
            imported.written.append(path)
    return n_new


def _page_text(journal: Journal) -> str:
    """Return a problem statement whole; of another journal the lines in order, those that went
    elsewhere as one line with a link.
    """
    if journal.is_problem:
        return "\n".join(line.text for line in journal.lines)
    lines: list[str] = []
    by_target = groupby(journal.lines, lambda line: journal.moved_to.get(line.number, ""))
    for target, stretch in by_target:
        if not target:
            lines += [line.text for line in stretch]
        elif re.fullmatch(r"h\d+", target):
            lines += [f"*→ {target.upper()}: in the [hypotheses](../hypotheses/)*", ""]
        else:
            lines += [f"*→ {target}: in the [log](../{LOG_PAGE})*", ""]
    return "\n".join(lines)
