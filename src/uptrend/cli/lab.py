"""`uptrend lab`: test hypotheses by experiment; here its files: init, new, list, report and import.
No torch.
"""

import json
import re
import webbrowser
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from rich.table import Table

from uptrend.cli import experiments
from uptrend.cli.console import AsFormat, LabFolder, make_app, print_json, write_text
from uptrend.config.tables import to_recipe
from uptrend.doctor.catalogue import CATALOGUE, resolve_experiment
from uptrend.lab.draft import (
    Draft,
    all_ready,
    blank_draft,
    draft_from_cause,
    draft_from_ready,
    find_cause,
    with_title,
)
from uptrend.lab.importing import Imported, hypothesis_key, import_journals
from uptrend.lab.importing.reading import Journal, reported
from uptrend.lab.journal.page import page, to_markdown, to_table
from uptrend.lab.measure import titled
from uptrend.lab.notebook import STATUS_MARKS, Notebook, is_lab
from uptrend.lab.refuse import check
from uptrend.present.formatting import NO_VALUE
from uptrend.present.terminal import columns, terminal
from uptrend.records import Hypothesis, LabError, Run
from uptrend.records.files import write_atomically
from uptrend.records.renamed import current
from uptrend.runner import diagnose

app = make_app("""Test one suspicion at a time; the verdict is computed.

    \b
    uptrend lab init debug              make a lab
    uptrend lab new h01 h03 --dir debug add ready hypotheses
    uptrend lab run h01 --dir debug     run it, and judge it
    uptrend lab report debug --html     write the journal
    """)
PAGE = "report.html"
JournalFormat = Literal["markdown", "json", "html"]


@app.command("init")
def init(
    folder: Annotated[
        Path, typer.Argument(help="Folder of the lab; made if it is missing.", metavar="DIR")
    ],
    problem: Annotated[str, typer.Option(help="The problem in one sentence.")] = "",
) -> None:
    """Make a lab.

    \b
    uptrend lab init debug --problem "Reward stays at 65%."
    """
    notebook = Notebook.init(folder, problem)
    typer.echo(
        f"Made {notebook.folder}/ with README.md, 00-problem-statement.md and"
        " 01-experiments-log.md."
    )
    typer.echo(
        f"Next: uptrend lab new --dir {notebook.folder} --recipe RECIPE, or uptrend lab list"
        " --ready"
    )


@app.command("new")
def new(
    what: Annotated[
        list[str] | None, typer.Argument(help="Ready hypotheses (h03) or ids (kl.strangles).")
    ] = None,
    folder: LabFolder = Path("."),
    recipe: Annotated[Path | None, typer.Option(help="Recipe that the arms start from.")] = None,
    title: Annotated[str, typer.Option(help="The claim in a few words.")] = "",
    found: Annotated[
        str, typer.Option("--from", help="A finding of the doctor.", metavar="RUN#ID")
    ] = "",
) -> None:
    """Start a hypothesis.

    \b
    uptrend lab new h01 h03 --dir debug
    uptrend lab new kl.strangles --dir debug \\
        --recipe recipes/arithmetic/baseline.toml
    uptrend lab new --dir debug \\
        --from runs/quickstart#kl.strangles
    uptrend lab new --dir debug --recipe recipes/tiny.toml \\
        --title "A larger group learns more"

    It is a Markdown file with arms and criteria, each explained there. `uptrend lab list --ready`
    lists ready ones.
    """
    notebook = Notebook(folder)
    if what and found:
        raise LabError(
            f"--from names what to start from, and so does {what[0]}: leave one of them out."
        )
    if found:
        _write(notebook, with_title(_from_finding(notebook, found, recipe), title))
    elif not what:
        _write(
            notebook,
            with_title(blank_draft(notebook.next_id(), recipe, notebook.folder), title),
            is_whole=False,
        )
    for named in what or ():
        there = notebook.hypotheses
        next_id = notebook.next_id()
        if re.fullmatch(r"h\d+", named):
            id = next_id if any(h.id == named for h in there) else named
            draft = draft_from_ready(named, id, recipe, notebook.folder, there)
        else:
            draft = draft_from_cause(next_id, find_cause(named), recipe, notebook.folder)
        _write(notebook, with_title(draft, title))


def _from_finding(notebook: Notebook, found: str, recipe: Path | None) -> Draft:
    """Start from a cause that the doctor finds in a run, on the run's own config unless a recipe is
    given.
    """
    run, _, id = found.rpartition("#")
    if not run or not id:
        raise LabError(
            f"--from {found}: write a run and a finding of it, for example"
            " runs/quickstart#kl.strangles."
        )
    id = current(id)
    report = diagnose(run)
    findings = {
        finding.id: finding for cause in report.findings for finding in (cause, *cause.explains)
    }
    if id not in findings:
        raise LabError(
            f"The doctor finds no {id} in {run}; it finds {', '.join(findings) or 'nothing'}."
        )
    # the run's config becomes a recipe of the lab, without the machine that it ran on
    if recipe is None:
        source = Path(report.source)
        if not (source / "run.json").is_file():
            raise LabError(f"{source} has no config of Uptrend: name a recipe with --recipe.")
        opened = Run(source)
        place = 1
        text = to_recipe({key: value for key, value in opened.config.items() if key != "compute"})
        recipe = notebook.folder / "recipes" / f"{opened.name}.toml"
        recipe.parent.mkdir(exist_ok=True)
        # The same recipe is written once; another one of this name is never overwritten, as
        # verdicts refer to it.
        while recipe.exists() and recipe.read_text(encoding="utf-8") != text:
            place += 1
            recipe = recipe.with_name(f"{opened.name}-{place}.toml")
        write_atomically(recipe, text.encode())
    return draft_from_cause(
        notebook.next_id(), find_cause(id), recipe, notebook.folder, findings[id]
    )


def _write(notebook: Notebook, draft: Draft, is_whole: bool = True) -> None:
    """Write the file; a hypothesis that comes with its arms must be decidable."""
    h = draft.hypothesis
    if is_whole and h.arms:
        check(h, notebook.folder)
    path = notebook.add(h, draft.prose)
    typer.echo(f"{h.id}  {path}  {h.title}")
    if is_whole and not h.arms:
        typer.echo("A probe decides it: its validation method names the probe.")
    else:
        before = "Next" if is_whole else "Fill in its title, arms and criteria, then"
        typer.echo(f"{before}: uptrend lab run {h.id} --dir {notebook.folder}")


@app.command("list")
def list_hypotheses(
    folder: LabFolder = Path("."),
    ready: Annotated[
        bool, typer.Option("--ready", help="List what a hypothesis can start from.")
    ] = False,
    format: AsFormat = "text",
) -> None:
    """List hypotheses, or ready ones to start from.

    \b
    uptrend lab list --dir debug
    uptrend lab list --ready
    """
    console = terminal()
    if ready:
        hypotheses = [draft.hypothesis for draft in all_ready().values()]
        causes = {
            id: resolve_experiment(cause)
            for id, cause in CATALOGUE.items()
            if cause.experiment.arms
        }
        if format == "json":
            listed = [
                {"id": id, "claim": one.claim, "arms": list(one.arms)} for id, one in causes.items()
            ]
            print_json({"ready": [_hypothesis_row(h) for h in hypotheses], "causes": listed})
            return
        console.print("Ready, as uptrend lab new h01:")
        console.print(_table(hypotheses, lambda h: str(h.status)))
        console.print("\nFrom the catalogue, as uptrend lab new kl.strangles --recipe RECIPE:")
        console.print(
            columns(
                "id", "claim", rows=[(id, experiment.claim) for id, experiment in causes.items()]
            )
        )
        return
    notebook = Notebook(folder)
    hypotheses, broken = notebook.readable
    if format == "json":
        listed = [
            {
                **_hypothesis_row(h),
                "outcome": notebook.outcome_of(h),
                "path": str(notebook.path_of(h.id)),
            }
            for h in hypotheses
        ]
        print_json({"hypotheses": listed, "broken": broken})
        return
    if hypotheses:
        console.print(_table(hypotheses, notebook.outcome_of))
    elif not broken:
        console.print(
            f"There are no hypotheses in {folder}/. Start one with: uptrend lab new --dir {folder}"
        )
    for reason in broken:
        console.print(f"can't be read: {reason}", style="red")


def _table(hypotheses: list[Hypothesis], outcome_of: Callable[[Hypothesis], str]) -> Table:
    rows = []
    for h in hypotheses:
        arms = ", ".join(arm.name for arm in h.arms) or "a probe decides"
        status = f"{STATUS_MARKS[h.status]} {outcome_of(h)}"
        rows.append((h.id, h.priority, status, h.confidence or NO_VALUE, titled(h), arms))
    return columns("id", "priority", "status", "confidence", "hypothesis", "arms", rows=rows)


def _hypothesis_row(h: Hypothesis) -> dict[str, Any]:
    keys = (
        "id",
        "title",
        "priority",
        "status",
        "confidence",
        "cause",
        "explains",
        "recipe",
        "metric",
        "direction",
        "smallest",
        "seeds",
        "prerequisites",
    )
    return _pick(h, *keys) | {
        "arms": {a.name: {"control": a.is_control, "overrides": a.overrides} for a in h.arms}
    }


app.command("run")(experiments.run)
app.command("judge")(experiments.judge)
app.command("sweep")(experiments.sweep)


@app.command("report")
def report(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Folder of the lab.")] = Path(),
    html: Annotated[
        bool, typer.Option("--html", help=f"Write one self-contained page: DIR/{PAGE}, or --out.")
    ] = False,
    format: Annotated[
        JournalFormat | None, typer.Option("--format", "-f", help="Default: markdown.")
    ] = None,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="Write to this file.")] = None,
    opens: Annotated[bool, typer.Option("--open", help="Open the page in a browser.")] = False,
) -> None:
    """Report a whole lab, as a page or text.

    \b
    uptrend lab report debug --html --open
    uptrend lab report debug > debug.md
    uptrend lab report debug --format json

    The page needs neither run directories nor a network.
    """
    if (html or opens) and format not in (None, "html"):
        raise LabError(
            f"--{'html' if html else 'open'} and --format {format} ask for two things: leave one"
            " out."
        )
    notebook = Notebook(folder)
    if html or opens or format == "html":
        out = out or folder / PAGE
        write_text(page(notebook), out)
    elif format == "json":
        write_text(
            json.dumps(to_table(notebook), indent=1, ensure_ascii=False, allow_nan=False) + "\n",
            out,
        )
    else:
        write_text(to_markdown(notebook), out)
    if opens and out:
        webbrowser.open(out.resolve().as_uri())


@app.command("import")
def import_files(
    files: Annotated[
        list[Path], typer.Argument(help="Journals in Markdown or plain text.", readable=False)
    ],
    into: Annotated[Path, typer.Option("--into", help="Folder of the lab; made if it is missing.")],
    format: AsFormat = "text",
) -> None:
    """Read hand-written journals into a lab.

    \b
    uptrend lab import notes/*.md --into debug
    uptrend lab import journal.txt --into debug --format json

    Reported results stay reports: every hypothesis is pending. Importing the same text again adds
    nothing.
    """
    brought = import_journals(files, Notebook(into) if is_lab(into) else Notebook.init(into))
    if format == "json":
        print_json(_plain_import(brought))
        return
    rows = []
    for journal in brought.journals:
        spans = ", ".join(
            str(first) if first == last else f"{first}–{last}" for first, last in journal.prose
        )
        rows.append((journal.name, *map(str, _counts(journal).values()), spans or "none"))
    console = terminal()
    console.print(columns("file", *_counts(brought.journals[0]), "lines kept as prose", rows=rows))
    console.print(
        f"\nNew in {into}/: {len(brought.ids)} hypotheses, {brought.entries} log entries;"
        f" {brought.already} were there already. All are pending: nothing was run here.\nNext:"
        f" uptrend lab list --dir {into}",
        soft_wrap=True,
    )


def _counts(journal: Journal) -> dict[str, int]:
    experiments = journal.experiments
    return {
        "experiments": len(experiments),
        "hypotheses": len(journal.hypotheses),
        "statuses": sum(bool(one.statuses) for one in (*experiments, *journal.hypotheses)),
        "runs": len({run for one in experiments for run in one.runs}),
        "figures": sum(len(one.figures) for one in experiments),
        "commands": sum(len(one.commands) for one in experiments),
    }


def _plain_import(brought: Imported) -> dict[str, Any]:
    files = list[Any]()
    experiments = list[Any]()
    hypotheses = list[Any]()
    for journal in brought.journals:
        lines = {
            "lines": sum(bool(line.text.strip()) for line in journal.lines),
            "recognized": len(journal.recognized),
        }
        files.append(
            _pick(journal, "name", "title", "is_problem", "prose") | lines | _counts(journal)
        )
        for one in (*journal.experiments, *journal.hypotheses):
            where = {"file": journal.name, "line": one.lines[0].number}
            if one.kind == "experiment":
                figures = [_pick(figure, "name", "value", "line") for figure in one.figures]
                about = _pick(
                    one, "key", "title", "date", "runs", "settings", "commands", "outcome"
                )
                experiments.append(
                    {**where, "status": reported(one.statuses), **about, "figures": figures}
                )
            else:
                ids = {
                    "id": brought.ids.get(hypothesis_key(one, journal)),
                    "named": one.key,
                    "claim": one.title,
                }
                about = _pick(one, "priority", "confidence", "notes", "runs")
                hypotheses.append({**ids, **where, "reported": reported(one.statuses), **about})
    new = {"hypotheses": len(brought.ids), "entries": brought.entries}
    told = {"files": files, "experiments": experiments, "hypotheses": hypotheses, "new": new}
    return {**told, "already": brought.already, "written": [str(path) for path in brought.written]}


def _pick(source: object, *names: str) -> dict[str, Any]:
    return {name: getattr(source, name) for name in names}
