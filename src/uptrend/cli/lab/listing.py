"""`uptrend lab list`: a lab's hypotheses, or what there is to start one from."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from uptrend.cli.console import terminal
from uptrend.cli.options import Format
from uptrend.doctor.catalogue import CATALOGUE
from uptrend.lab.draft import all_ready
from uptrend.lab.notebook import Notebook
from uptrend.lab.overview import MARKS
from uptrend.records import Hypothesis
from uptrend.stats.formatting import NONE

AsFormat = Annotated[Format, typer.Option("--format", "-f", help="How to tell it.")]


def command(
    folder: Annotated[Path, typer.Option("--dir", help="The lab's folder.")] = Path("."),
    ready: Annotated[bool, typer.Option("--ready", help="What a hypothesis can be started from instead.")] = False,
    format: AsFormat = Format.TEXT,
) -> None:
    """List the hypotheses of a lab, or the ready ones.

    \b
    uptrend lab list --dir debug
    uptrend lab list --ready
    uptrend lab list --dir debug --format json
    """
    if ready:
        _tell_ready(format)
        return
    notebook = Notebook(folder)
    hypotheses, broken = notebook.readable
    if format is Format.JSON:
        told = [{**_plain(h), "path": str(notebook.path_of(h.id))} for h in hypotheses]
        _print_json({"hypotheses": told, "broken": broken})
        return
    console = terminal()
    if hypotheses:
        console.print(_table(hypotheses))
    elif not broken:
        console.print(f"There are no hypotheses in {folder}/. Start one with: uptrend lab new --dir {folder}")
    for reason in broken:
        console.print(f"can't be read: {reason}", style="red")


def _tell_ready(format: Format) -> None:
    hypotheses = [draft.hypothesis for draft in all_ready().values()]
    causes = {id: cause.experiment for id, cause in CATALOGUE.items() if cause.experiment.arms}
    if format is Format.JSON:
        told = [{"id": id, "claim": one.claim, "arms": list(one.arms)} for id, one in causes.items()]
        _print_json({"ready": [_plain(h) for h in hypotheses], "causes": told})
        return
    console = terminal()
    console.print("Ready, as uptrend lab new h01:")
    console.print(_table(hypotheses))
    console.print("\nFrom the catalogue, as uptrend lab new kl.strangles --recipe RECIPE:")
    table = Table("id", "what it tests", box=None, pad_edge=False)
    for id, experiment in causes.items():
        table.add_row(id, experiment.claim)
    console.print(table)


def _table(hypotheses: list[Hypothesis]) -> Table:
    table = Table("id", "priority", "status", "confidence", "hypothesis", "arms", box=None, pad_edge=False)
    for h in hypotheses:
        arms = ", ".join(arm.name for arm in h.arms) or "a probe decides"
        status = f"{MARKS[h.status]} {h.status}"
        table.add_row(h.id, h.priority, status, h.confidence or NONE, h.title, arms)
    return table


def _plain(h: Hypothesis) -> dict[str, Any]:
    """A hypothesis as JSON has it."""
    return {
        "id": h.id,
        "title": h.title,
        "priority": h.priority,
        "status": h.status,
        "confidence": h.confidence,
        "cause": h.cause,
        "explains": h.explains,
        "recipe": h.recipe,
        "metric": h.metric,
        "direction": h.direction,
        "smallest": h.smallest,
        "seeds": h.seeds,
        "arms": {arm.name: {"control": arm.is_control, "overrides": arm.overrides} for arm in h.arms},
        "prerequisites": h.prerequisites,
    }


def _print_json(value: dict[str, Any]) -> None:
    print(json.dumps(value, indent=2, ensure_ascii=False))
