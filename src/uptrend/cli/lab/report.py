"""`uptrend lab report`: the whole lab as one page, as Markdown or as JSON. No torch."""

import json
import sys
import webbrowser
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from uptrend.lab.journal.page import page
from uptrend.lab.journal.report import to_markdown, to_table
from uptrend.lab.notebook import Notebook
from uptrend.records import LabError
from uptrend.records.directory import write_whole

PAGE = "report.html"


class JournalFormat(StrEnum):
    """How to tell it."""

    MARKDOWN = "markdown"
    JSON = "json"
    HTML = "html"


def command(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The lab's folder.")] = Path(),
    html: Annotated[bool, typer.Option("--html", help=f"One self-contained page: DIR/{PAGE} unless --out.")] = False,
    format: Annotated[
        JournalFormat | None, typer.Option("--format", "-f", help="How to tell it; Markdown unless told.")
    ] = None,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="Write it there.")] = None,
    opens: Annotated[bool, typer.Option("--open", help="Open the page in a browser.")] = False,
) -> None:
    """Tell a whole lab: the question, the roadmap, every hypothesis with its verdict, the runs and the log.

    \b
    uptrend lab report debug --html --open
    uptrend lab report debug --format markdown > debug.md
    uptrend lab report debug --format json | jq '.hypotheses[].status'

    The page needs neither run directories nor a network. The JSON: docs/journal.md.
    """
    if (html or opens) and format not in (None, JournalFormat.HTML):
        raise LabError(f"--{'html' if html else 'open'} and --format {format} ask for two things: leave one out.")
    notebook = Notebook(folder)
    chosen = JournalFormat.HTML if html or opens else format or JournalFormat.MARKDOWN
    text = _text(notebook, chosen)
    place = out or (folder / PAGE if chosen is JournalFormat.HTML else None)
    if place is None:
        sys.stdout.write(text)
        return
    write_whole(place, text.encode())
    typer.echo(f"Wrote {place}", err=True)
    if opens:
        webbrowser.open(place.resolve().as_uri())


def _text(notebook: Notebook, format: JournalFormat) -> str:
    if format is JournalFormat.HTML:
        return page(notebook)
    if format is JournalFormat.MARKDOWN:
        return to_markdown(notebook)
    return json.dumps(to_table(notebook), indent=1, ensure_ascii=False, allow_nan=False) + "\n"
