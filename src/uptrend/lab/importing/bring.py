"""From journals to a lab's files: hypotheses, log entries, the problem statement, and pages for the rest.

What the journals say goes into blocks of the machine's, which a later import of a longer journal writes anew.
Hypotheses are files that people go on with: one that is there is left alone.
"""

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from uptrend.lab import blocks, template
from uptrend.lab.importing.found import FoundExperiment, FoundHypothesis, Journal
from uptrend.lab.importing.journal import read_journal
from uptrend.lab.importing.text import entry, key_of, mark_of, prose
from uptrend.lab.notebook import PROBLEM, Notebook
from uptrend.records import Hypothesis, Priority
from uptrend.records.directory import plain_disk_errors, write_whole

KEPT = "imported"
"""The folder of what is neither an experiment nor a hypothesis."""


@dataclass
class Brought:
    """What an import read and wrote."""

    journals: list[Journal] = field(default_factory=list)
    """The sources, read."""
    ids: dict[str, str] = field(default_factory=dict)
    """The lab's id of each new hypothesis, by its key."""
    entries: int = 0
    """New entries of the log."""
    already: int = 0
    """Hypotheses and experiments that were there from an earlier import."""
    written: list[Path] = field(default_factory=list)
    """Files that were made or changed."""


def bring(paths: Sequence[Path], notebook: Notebook) -> Brought:
    """Read journals into a lab; what an earlier import brought is not brought again."""
    brought = Brought([read_journal(path) for path in paths])
    _add_hypotheses(notebook, brought)
    for journal in brought.journals:
        _add_entries(notebook, brought, journal)
        if journal.is_problem:
            _add_problem(notebook, brought, journal)
        else:
            _add_rest(notebook, brought, journal)
    notebook.refresh()
    return brought


def _add_hypotheses(notebook: Notebook, brought: Brought) -> None:
    """New ones as files; numbered ones first, since they keep their numbers where those are free."""
    texts = [path.read_text(encoding="utf-8") for path in (notebook.folder / "hypotheses").glob("h*.md")]
    found = [(one, journal) for journal in brought.journals for one in journal.hypotheses]
    new = list[tuple[FoundHypothesis, Journal, str]]()
    for one, journal in sorted(found, key=lambda pair: not pair[0].id):
        key = hypothesis_key(one, journal)
        if any(mark_of(key) in text for text in texts):
            brought.already += 1
        else:
            new.append((one, journal, key))
    numbers = _numbers([one for one, _, _ in new], notebook)
    for (one, journal, key), id in zip(new, numbers, strict=True):
        named = {other.id: other_id for (other, _, _), other_id in zip(new, numbers, strict=True) if other.id}
        brought.ids[key] = id
        brought.written.append(notebook.add(_hypothesis(one, id, named), prose(one, journal.name, key)))


def _numbers(new: Sequence[FoundHypothesis], notebook: Notebook) -> list[str]:
    """An id for each: its own where it is free, the next otherwise."""
    taken = {path.name.partition("-")[0] for path in (notebook.folder / "hypotheses").glob("h[0-9]*.md")}
    given = list[str]()
    for one in new:
        last = max((int(id[1:]) for id in (*taken, *given)), default=0)
        is_free = one.id and one.id not in taken and one.id not in given
        given.append(one.id if is_free else f"h{last + 1:02d}")
    return given


def _hypothesis(one: FoundHypothesis, id: str, named: dict[str, str]) -> Hypothesis:
    """What a file's front matter can say: no recipe and no arms yet, and nothing was run."""
    first = [f"h{int(number):02d}" for number in re.findall(r"\bH(\d+)", one.fields.get("Prerequisites", ""))]
    return Hypothesis(
        id,
        one.claim.rstrip(".") or f"{one.id.upper()}, as it was called",
        recipe="",
        arms=(),
        priority=Priority(one.priority or "medium"),
        explains=one.fields.get("Impact", ""),
        prerequisites=tuple(named[other] for other in first if other in named),
    )


def hypothesis_key(one: FoundHypothesis, journal: Journal) -> str:
    """By what a later import knows a hypothesis."""
    return key_of(journal.title, "hypothesis", one.id or one.claim)


def _keys(journal: Journal) -> Iterator[tuple[FoundExperiment, str]]:
    """By what a later import knows each experiment; of several that are called the same, by their place too."""
    seen = Counter[str]()
    for one in journal.experiments:
        name = one.key or one.title
        seen[name] += 1
        yield one, key_of(journal.title, "experiment", name, str(seen[name]))


def _add_entries(notebook: Notebook, brought: Brought, journal: Journal) -> None:
    text = before = notebook.log.read_bytes().decode() if notebook.log.exists() else template.LOG
    for one, key in _keys(journal):
        is_new = blocks.get(text, f"imported {key}") is None
        text = blocks.put(text, f"imported {key}", entry(one, journal.name))
        brought.entries += is_new
        brought.already += not is_new
    if text != before:
        _write(brought, notebook.log, text)


def _add_problem(notebook: Notebook, brought: Brought, journal: Journal) -> None:
    """A problem statement takes the place of the empty one; one that somebody wrote is added to."""
    path = notebook.folder / PROBLEM
    there = path.read_bytes().decode() if path.exists() else ""
    before = "" if there == template.PROBLEM.format(problem=template.NO_PROBLEM) else there
    text = "\n".join(line.text for line in journal.lines)
    new = blocks.put(before, f"imported {key_of(journal.title)}", text)
    if new != there:
        _write(brought, path, new)


def _add_rest(notebook: Notebook, brought: Brought, journal: Journal) -> None:
    """What is left of a journal, with a line where something went elsewhere."""
    path = notebook.folder / KEPT / f"{Path(journal.name).stem}.md"
    with plain_disk_errors(path.parent):
        path.parent.mkdir(exist_ok=True)
    there = path.read_bytes().decode() if path.exists() else ""
    new = blocks.put(there, f"imported {key_of(journal.title)}", _rest(journal))
    if new != there:
        _write(brought, path, new)


def _rest(journal: Journal) -> str:
    """The journal's lines in order, those that went elsewhere as one line that says where."""
    lines, last = list[str](), ""
    for line in journal.lines:
        went = journal.elsewhere.get(line.number, "")
        if went and went != last:
            is_hypothesis = re.fullmatch(r"h\d+", went)
            place = "[hypotheses](../hypotheses/)" if is_hypothesis else "[log](../01-experiments-log.md)"
            lines += [f"*→ {went.upper() if is_hypothesis else went}: in the {place}*", ""]
        elif not went:
            lines.append(line.text)
        last = went
    return "\n".join(lines)


def _write(brought: Brought, path: Path, text: str) -> None:
    write_whole(path, text.encode())
    if path not in brought.written:
        brought.written.append(path)
