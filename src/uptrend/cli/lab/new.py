"""`uptrend lab new`: start a hypothesis by hand, from the ready ones, from a cause, or from a doctor's finding."""

import re
from pathlib import Path
from typing import Annotated

import typer

from uptrend.config.tables import to_recipe
from uptrend.lab.draft import Draft, by_hand, find_cause, of_cause, retitled
from uptrend.lab.notebook import Notebook
from uptrend.lab.ready import of_ready
from uptrend.lab.refuse import check
from uptrend.records import Finding, LabError, Run
from uptrend.records.directory import write_whole
from uptrend.records.renamed import current
from uptrend.runner import diagnose

READY = re.compile(r"h\d+")


def command(
    what: Annotated[
        list[str] | None,
        typer.Argument(help="Ready ones (h03) or catalogue ids (kl.strangles); nothing for a file to fill in."),
    ] = None,
    folder: Annotated[Path, typer.Option("--dir", help="The lab's folder.")] = Path("."),
    recipe: Annotated[Path | None, typer.Option(help="The recipe that the arms start from.")] = None,
    title: Annotated[str, typer.Option(help="The claim in a few words.")] = "",
    found: Annotated[str, typer.Option("--from", help="A finding of the doctor's, as RUN#ID.", metavar="RUN#ID")] = "",
) -> None:
    """Start a hypothesis: a Markdown file with its arms, its criteria and what is still to be said.

    \b
    uptrend lab new --dir debug --recipe recipes/tiny.toml --title "A larger group learns more"
    uptrend lab new kl.strangles --dir debug --recipe recipes/arithmetic/baseline.toml
    uptrend lab new h01 h03 --dir debug
    uptrend lab new --dir debug --from runs/quickstart#kl.strangles

    What there is to start from: uptrend lab list --ready. The file's keys: docs/hypotheses.md.
    """
    notebook = Notebook(folder)
    if what and found:
        raise LabError(f"--from names what to start from, and so does {what[0]}: leave one of them out.")
    if found:
        _write(notebook, retitled(_from_finding(notebook, found, recipe), title))
    elif not what:
        _write(notebook, retitled(by_hand(notebook.next_id(), recipe, notebook.folder), title), is_whole=False)
    for named in what or ():
        _write(notebook, retitled(_from_name(notebook, named, recipe), title))


def _from_name(notebook: Notebook, named: str, recipe: Path | None) -> Draft:
    if not READY.fullmatch(named):
        return of_cause(notebook.next_id(), find_cause(named), recipe, notebook.folder)
    there = notebook.hypotheses
    id = notebook.next_id() if any(h.id == named for h in there) else named
    return of_ready(named, id, recipe, notebook.folder, there)


def _from_finding(notebook: Notebook, found: str, recipe: Path | None) -> Draft:
    """The cause that the doctor found in a run, on the run's own config where no recipe is named."""
    run, _, id = found.rpartition("#")
    if not run or not id:
        raise LabError(f"--from {found}: write a run and a finding of it, for example runs/quickstart#kl.strangles.")
    id = current(id)
    report = diagnose(run)
    finding = next((one for one in _all(report.findings) if one.id == id), None)
    if finding is None:
        there = ", ".join(one.id for one in _all(report.findings)) or "nothing"
        raise LabError(f"The doctor finds no {id} in {run}; it finds {there}.")
    recipe = recipe or _recipe_of(notebook, Path(report.source))
    return of_cause(notebook.next_id(), find_cause(id), recipe, notebook.folder, finding)


def _all(findings: tuple[Finding, ...]) -> list[Finding]:
    return [one for finding in findings for one in (finding, *_all(finding.explains))]


def _recipe_of(notebook: Notebook, run: Path) -> Path:
    """The config of a run, written as a recipe of the lab's; the machine that it ran on is left out."""
    if not (run / "run.json").is_file():
        raise LabError(f"{run} has no config of Uptrend's: name a recipe with --recipe.")
    opened = Run(run)
    text = to_recipe({key: value for key, value in opened.config.items() if key != "compute"})
    folder = notebook.folder / "recipes"
    folder.mkdir(exist_ok=True)
    names = (f"{opened.name}{'' if place == 1 else f'-{place}'}.toml" for place in range(1, 1000))
    path = next(folder / name for name in names if _is_free(folder / name, text))
    write_whole(path, text.encode())
    return path


def _is_free(path: Path, text: str) -> bool:
    return not path.exists() or path.read_text(encoding="utf-8") == text


def _write(notebook: Notebook, draft: Draft, is_whole: bool = True) -> None:
    """Write the file; one that comes with its arms must be one that can be decided."""
    h = draft.hypothesis
    if is_whole and h.arms:
        check(h, notebook.folder)
    path = notebook.add(h, draft.prose)
    typer.echo(f"{h.id}  {path}  {h.title}")
    if not is_whole:
        typer.echo(
            f"Fill in its title, its arms and its criteria, then: uptrend lab run {h.id} --dir {notebook.folder}"
        )
    elif h.arms:
        typer.echo(f"Next: uptrend lab run {h.id} --dir {notebook.folder}")
    else:
        typer.echo("A probe decides it: its validation method says which.")
