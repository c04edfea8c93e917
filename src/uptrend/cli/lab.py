"""`uptrend lab`: test hypotheses by experiment; here its files: init, new, list, report,
roadmap and import.
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
from uptrend.cli.console import AsFormat, Format, LabFolder, make_app, print_json, write_text
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
from uptrend.lab.roadmap import roadmap_of
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
PAGE_FILE = "report.html"
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
    finding: Annotated[
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
    if what and finding:
        raise LabError(
            f"--from names what to start from, and so does {what[0]}: leave one of them out."
        )
    if finding:
        draft = _from_finding(notebook, finding, recipe)
        _write(notebook, with_title(draft, title))
    elif not what:
        draft = blank_draft(notebook.next_id(), recipe, notebook.folder)
        _write(notebook, with_title(draft, title), is_complete=False)
    for name in what or ():
        existing = notebook.hypotheses
        next_id = notebook.next_id()
        if re.fullmatch(r"h\d+", name):
            is_taken = any(hypothesis.id == name for hypothesis in existing)
            id = next_id if is_taken else name
            draft = draft_from_ready(name, id, recipe, notebook.folder, existing)
        else:
            draft = draft_from_cause(next_id, find_cause(name), recipe, notebook.folder)
        _write(notebook, with_title(draft, title))


def _from_finding(notebook: Notebook, name: str, recipe: Path | None) -> Draft:
    """Start from RUN#ID, a cause that the doctor finds in a run; without a recipe, on the run's own
    config.
    """
    run, _, id = name.rpartition("#")
    if not run or not id:
        raise LabError(
            f"--from {name}: write a run and a finding of it, for example"
            " runs/quickstart#kl.strangles."
        )
    id = current(id)
    report = diagnose(run)
    findings = {}
    for cause in report.findings:
        for finding in (cause, *cause.explains):
            findings[finding.id] = finding
    if id not in findings:
        raise LabError(
            f"The doctor finds no {id} in {run}; it finds {', '.join(findings) or 'nothing'}."
        )
    if recipe is None:
        recipe = _write_recipe(notebook, Path(report.source))
    return draft_from_cause(
        notebook.next_id(), find_cause(id), recipe, notebook.folder, findings[id]
    )


def _write_recipe(notebook: Notebook, source: Path) -> Path:
    """Write a run's config as a recipe of the lab, without the machine that it ran on."""
    if not (source / "run.json").is_file():
        raise LabError(f"{source} has no config of Uptrend: name a recipe with --recipe.")
    run = Run(source)
    text = to_recipe({key: value for key, value in run.config.items() if key != "compute"})
    recipe = notebook.folder / "recipes" / f"{run.name}.toml"
    recipe.parent.mkdir(exist_ok=True)
    # The same recipe is written once; another one of this name is never overwritten, as verdicts
    # refer to it.
    number = 1
    while recipe.exists() and recipe.read_text(encoding="utf-8") != text:
        number += 1
        recipe = recipe.with_name(f"{run.name}-{number}.toml")
    write_atomically(recipe, text.encode())
    return recipe


def _write(notebook: Notebook, draft: Draft, is_complete: bool = True) -> None:
    """Write the file; a hypothesis that comes with its arms must be decidable."""
    hypothesis = draft.hypothesis
    if is_complete and hypothesis.arms:
        check(hypothesis, notebook.folder)
    path = notebook.add(hypothesis, draft.prose)
    typer.echo(f"{hypothesis.id}  {path}  {hypothesis.title}")
    if is_complete and not hypothesis.arms:
        typer.echo("A probe decides it: its validation method names the probe.")
        return
    advice = "Next" if is_complete else "Fill in its title, arms and criteria, then"
    typer.echo(f"{advice}: uptrend lab run {hypothesis.id} --dir {notebook.folder}")


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
    if ready:
        _list_ready(format)
        return
    console = terminal()
    notebook = Notebook(folder)
    hypotheses, broken = notebook.readable
    if format == "json":
        tables = []
        for hypothesis in hypotheses:
            table = _to_table(hypothesis)
            table["outcome"] = notebook.outcome_of(hypothesis)
            table["path"] = str(notebook.path_of(hypothesis.id))
            tables.append(table)
        print_json({"hypotheses": tables, "broken": broken})
        return
    if hypotheses:
        console.print(_hypotheses_table(hypotheses, notebook.outcome_of))
    elif not broken:
        console.print(
            f"There are no hypotheses in {folder}/. Start one with: uptrend lab new --dir {folder}"
        )
    for reason in broken:
        console.print(f"can't be read: {reason}", style="red")


def _list_ready(format: Format) -> None:
    """List ready hypotheses, and causes of the catalogue that have an experiment."""
    hypotheses = [draft.hypothesis for draft in all_ready().values()]
    experiment_by_cause = {}
    for id, cause in CATALOGUE.items():
        if cause.experiment.arms:
            experiment_by_cause[id] = resolve_experiment(cause)
    if format == "json":
        causes = []
        for id, experiment in experiment_by_cause.items():
            causes.append({"id": id, "claim": experiment.claim, "arms": list(experiment.arms)})
        print_json({"ready": [_to_table(each) for each in hypotheses], "causes": causes})
        return
    console = terminal()
    console.print("Ready, as uptrend lab new h01:")
    console.print(_hypotheses_table(hypotheses, lambda hypothesis: str(hypothesis.status)))
    console.print("\nFrom the catalogue, as uptrend lab new kl.strangles --recipe RECIPE:")
    rows = [(id, experiment.claim) for id, experiment in experiment_by_cause.items()]
    console.print(columns("id", "claim", rows=rows))


def _hypotheses_table(
    hypotheses: list[Hypothesis], outcome_of: Callable[[Hypothesis], str]
) -> Table:
    rows = []
    for hypothesis in hypotheses:
        row = (
            hypothesis.id,
            hypothesis.priority,
            f"{STATUS_MARKS[hypothesis.status]} {outcome_of(hypothesis)}",
            hypothesis.confidence or NO_VALUE,
            titled(hypothesis),
            ", ".join(arm.name for arm in hypothesis.arms) or "a probe decides",
        )
        rows.append(row)
    return columns("id", "priority", "status", "confidence", "hypothesis", "arms", rows=rows)


def _to_table(hypothesis: Hypothesis) -> dict[str, Any]:
    arms = {}
    for arm in hypothesis.arms:
        arms[arm.name] = {"control": arm.is_control, "overrides": arm.overrides}
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
    return {**_pick(hypothesis, *keys), "arms": arms}


app.command("run")(experiments.run)
app.command("judge")(experiments.judge)
app.command("sweep")(experiments.sweep)


@app.command("report")
def report(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Folder of the lab.")] = Path(),
    html: Annotated[
        bool,
        typer.Option("--html", help=f"Write one self-contained page: DIR/{PAGE_FILE}, or --out."),
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
        out = out or folder / PAGE_FILE
        write_text(page(notebook), out)
    elif format == "json":
        text = json.dumps(to_table(notebook), indent=1, ensure_ascii=False, allow_nan=False)
        write_text(text + "\n", out)
    else:
        write_text(to_markdown(notebook), out)
    if opens and out:
        webbrowser.open(out.resolve().as_uri())


@app.command("roadmap")
def roadmap(
    run: Annotated[Path, typer.Argument(help="A run, or another trainer's log.", readable=False)],
    out: Annotated[Path | None, typer.Option("--out", "-o", help="Write to this file.")] = None,
) -> None:
    """Plan tests for a run that does not learn.

    \b
    uptrend lab roadmap runs/quickstart
    uptrend lab roadmap outputs/trainer_state.json \\
        --out debug/02-roadmap.md

    The causes that remain by the doctor's differential, in phases by how likely they are: what each
    is, the command that decides it, its cost, and what is known of it; then those that are
    excluded, by which evidence.
    """
    write_text(roadmap_of(diagnose(run)), out)


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
    notebook = Notebook(into) if is_lab(into) else Notebook.init(into)
    imported = import_journals(files, notebook)
    if format == "json":
        print_json(_import_table(imported))
        return
    rows = []
    for journal in imported.journals:
        spans = []
        for first, last in journal.prose:
            spans.append(str(first) if first == last else f"{first}–{last}")
        counts = map(str, _counts(journal).values())
        rows.append((journal.name, *counts, ", ".join(spans) or "none"))
    console = terminal()
    count_headings = _counts(imported.journals[0])
    console.print(columns("file", *count_headings, "lines kept as prose", rows=rows))
    console.print(
        f"\nNew in {into}/: {len(imported.ids)} hypotheses, {imported.entries} log entries;"
        f" {imported.already} were there already. All are pending: nothing was run here.\nNext:"
        f" uptrend lab list --dir {into}",
        soft_wrap=True,
    )


def _counts(journal: Journal) -> dict[str, int]:
    experiments = journal.experiments
    runs: set[str] = set()
    for experiment in experiments:
        runs.update(experiment.runs)
    return {
        "experiments": len(experiments),
        "hypotheses": len(journal.hypotheses),
        "statuses": sum(bool(item.statuses) for item in (*experiments, *journal.hypotheses)),
        "runs": len(runs),
        "figures": sum(len(experiment.figures) for experiment in experiments),
        "commands": sum(len(experiment.commands) for experiment in experiments),
    }


def _import_table(imported: Imported) -> dict[str, Any]:
    """Return an import as plain values, as `--format json` prints it."""
    files: list[dict[str, Any]] = []
    experiments: list[dict[str, Any]] = []
    hypotheses: list[dict[str, Any]] = []
    for journal in imported.journals:
        file = {
            **_pick(journal, "name", "title", "is_problem", "prose"),
            "lines": sum(bool(line.text.strip()) for line in journal.lines),
            "recognized": len(journal.recognized),
            **_counts(journal),
        }
        files.append(file)
        for item in journal.experiments:
            experiment = {
                "file": journal.name,
                "line": item.lines[0].number,
                "status": reported(item.statuses),
                **_pick(item, "key", "title", "date", "runs", "settings", "commands", "outcome"),
                "figures": [_pick(figure, "name", "value", "line") for figure in item.figures],
            }
            experiments.append(experiment)
        for item in journal.hypotheses:
            hypothesis = {
                "id": imported.ids.get(hypothesis_key(item, journal)),
                "named": item.key,
                "claim": item.title,
                "file": journal.name,
                "line": item.lines[0].number,
                "reported": reported(item.statuses),
                **_pick(item, "priority", "confidence", "notes", "runs"),
            }
            hypotheses.append(hypothesis)
    return {
        "files": files,
        "experiments": experiments,
        "hypotheses": hypotheses,
        "new": {"hypotheses": len(imported.ids), "entries": imported.entries},
        "already": imported.already,
        "written": [str(path) for path in imported.written],
    }


def _pick(source: object, *names: str) -> dict[str, Any]:
    return {name: getattr(source, name) for name in names}
