"""`uptrend lab init`: make a lab's folder."""

from pathlib import Path
from typing import Annotated

import typer

from uptrend.lab.notebook import Notebook


def command(
    folder: Annotated[Path, typer.Argument(help="The lab's folder; made where it is not there.", metavar="DIR")],
    problem: Annotated[str, typer.Option(help="What does not happen that should, in a sentence.")] = "",
) -> None:
    """Make a lab: problem statement, hypotheses, experiments log, results, fixes.

    \b
    uptrend lab init debug --problem "Reward stays at 65% through 20 configurations."
    uptrend lab new optimizer.lr-large --dir debug --recipe recipes/tiny.toml
    """
    notebook = Notebook.init(folder, problem)
    typer.echo(f"Made {notebook.folder}/ with README.md, 00-problem-statement.md and 01-experiments-log.md.")
    typer.echo(f"Next: uptrend lab new --dir {notebook.folder} --recipe RECIPE, or uptrend lab list --ready")
