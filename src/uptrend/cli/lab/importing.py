"""`uptrend lab import`: bring journals that people kept by hand into a lab."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from uptrend.cli.console import terminal
from uptrend.cli.lab.listing import AsFormat
from uptrend.cli.options import Format
from uptrend.lab.importing import Imported, hypothesis_key, import_journals
from uptrend.lab.importing.reading import Journal, JournalItem, reported
from uptrend.lab.notebook import Notebook, is_lab


def command(
    files: Annotated[list[Path], typer.Argument(help="Journals in Markdown or plain text.", readable=False)],
    into: Annotated[Path, typer.Option("--into", help="The lab's folder; made where it is not there.")],
    format: AsFormat = Format.TEXT,
) -> None:
    """Read journals into a lab: experiments, hypotheses, statuses, run ids and figures; the rest is kept as prose.

    \b
    uptrend lab import notes/*.md --into debug
    uptrend lab import journal.txt --into debug --format json

    What was reported stays a report: nothing was run here, so every hypothesis is pending. A second import of the same
    text adds nothing.
    """
    brought = import_journals(files, Notebook(into) if is_lab(into) else Notebook.init(into))
    if format is Format.JSON:
        print(json.dumps(to_table(brought), indent=2, ensure_ascii=False))
    else:
        _tell(brought, into)


def to_table(brought: Imported) -> dict[str, Any]:
    """An import as JSON has it."""
    experiments = [_experiment(one, journal) for journal in brought.journals for one in journal.experiments]
    hypotheses = [
        {"id": brought.ids.get(hypothesis_key(one, journal)), **_hypothesis(one, journal)}
        for journal in brought.journals
        for one in journal.hypotheses
    ]
    return {
        "files": [_journal(journal) for journal in brought.journals],
        "experiments": experiments,
        "hypotheses": hypotheses,
        "new": {"hypotheses": len(brought.ids), "entries": brought.entries},
        "already": brought.already,
        "written": [str(path) for path in brought.written],
    }


def counts(journal: Journal) -> dict[str, int]:
    """How much of each kind was recognized in a file."""
    both: Sequence[JournalItem] = (*journal.experiments, *journal.hypotheses)
    return {
        "experiments": len(journal.experiments),
        "hypotheses": len(journal.hypotheses),
        "statuses": sum(bool(one.statuses) for one in both),
        "runs": len({run for one in journal.experiments for run in one.runs}),
        "figures": sum(len(one.figures) for one in journal.experiments),
        "commands": sum(len(one.commands) for one in journal.experiments),
        "repaired": journal.repaired,
    }


def _journal(journal: Journal) -> dict[str, Any]:
    written = [line for line in journal.lines if line.text.strip()]
    return {
        "name": journal.name,
        "title": journal.title,
        "is_problem": journal.is_problem,
        "lines": len(written),
        "recognized": len(journal.recognized),
        **counts(journal),
        "prose": journal.prose,
    }


def _experiment(one: JournalItem, journal: Journal) -> dict[str, Any]:
    return {
        "file": journal.name,
        "line": one.lines[0].number,
        "key": one.key,
        "title": one.title,
        "date": one.date,
        "runs": one.runs,
        "status": reported(one.statuses),
        "settings": one.settings,
        "figures": [{"name": figure.name, "value": figure.value, "line": figure.line} for figure in one.figures],
        "commands": one.commands,
        "outcome": one.outcome,
    }


def _hypothesis(one: JournalItem, journal: Journal) -> dict[str, Any]:
    return {
        "file": journal.name,
        "line": one.lines[0].number,
        "named": one.key,
        "claim": one.title,
        "priority": one.priority,
        "reported": reported(one.statuses),
        "confidence": one.confidence,
        "notes": one.notes,
        "runs": one.runs,
    }


def _tell(brought: Imported, into: Path) -> None:
    console = terminal()
    names = ("experiments", "hypotheses", "statuses", "runs", "figures", "commands", "repaired")
    table = Table("file", *names, "lines kept as prose", box=None, pad_edge=False)
    for journal in brought.journals:
        found = counts(journal)
        spans = ", ".join(str(first) if first == last else f"{first}–{last}" for first, last in journal.prose)
        table.add_row(journal.name, *(str(found[name]) for name in names), spans or "none")
    console.print(table)
    console.print(
        f"\nNew in {into}/: {len(brought.ids)} hypotheses, {brought.entries} log entries; "
        f"{brought.already} were there already. All are pending: what was reported was not run here.",
        soft_wrap=True,
    )
    console.print(f"Next: uptrend lab list --dir {into}, or ready ones with arms: uptrend lab list --ready")
