"""Parts that verbs share: their options, and printing JSON and files."""

import json
import sys
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from typer.core import TyperGroup

from uptrend.config.load import dotted_keys, nearest
from uptrend.records import RecordError, Run
from uptrend.records.files import write_atomically
from uptrend.records.renamed import current


def complete_runs() -> list[str]:
    """Return the names under ./runs, for shell completion; shells add paths if no name fits."""
    return sorted(path.parent.name for path in Path("runs").glob("*/run.json"))


def complete_recipes() -> list[str]:
    """Return the recipes here and under ./recipes, for shell completion."""
    return sorted(map(str, [*Path().glob("*.toml"), *Path("recipes").glob("**/*.toml")]))


def complete_keys() -> list[str]:
    """Return config keys with their equals sign, for shell completion."""
    return [f"{key}=" for key in dotted_keys()]


Format = Literal["text", "json"]
FailOn = Literal["critical", "warning"]
AsFormat = Annotated[Format, typer.Option("--format", "-f", help="Output format.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]
Overrides = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="Override one config value: --set learning.lr=2e-5. Repeatable.",
        autocompletion=complete_keys,
    ),
]
RunArgument = Annotated[
    str, typer.Argument(help="Run directory, or a name under ./runs.", autocompletion=complete_runs)
]
RunsFolder = Annotated[Path, typer.Option(help="Folder for run directories.")]
LabFolder = Annotated[Path, typer.Option("--dir", help="Folder of the lab.")]
Quiet = Annotated[bool, typer.Option("--quiet", help="Print only the outcome.")]


def open_run(name: str | Path, folder: Path = Path("runs")) -> Run:
    """Open a run by its path, or by its name under ./runs."""
    for path in (Path(name), folder / name):
        if (path / "run.json").exists():
            return Run(path)
    if Path(name).exists():
        raise RecordError(
            f"{name} is no run of Uptrend: it has no run.json. Other trainers' logs: uptrend"
            f" doctor {name}"
        )
    names = sorted(path.parent.name for path in folder.glob("*/run.json"))
    hint = nearest(str(name), names)
    if not hint and names:
        hint = f" {folder}/ holds {', '.join(names)}."
    raise RecordError(f"There is no run at {name} or {folder / name}.{hint}")


class Commands(TyperGroup):
    """Commands under a verb; one that is called by an older name runs, with a note."""

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        # Old names are listed with their verb: "lab old-name".
        current_command = current(f"{ctx.info_name} {cmd_name}")
        current_name = current_command.rpartition(" ")[2]
        return super().get_command(ctx, current_name)


def make_app(help: str) -> typer.Typer:
    """Make a verb with commands under it."""
    # Help texts hold [sections] and code: no markup.
    return typer.Typer(
        cls=Commands, help=help, no_args_is_help=True, add_completion=False, rich_markup_mode=None
    )


def print_json(value: Any) -> None:
    """Print one JSON value on stdout."""
    print(json.dumps(value, indent=2, ensure_ascii=False, default=str))


def write_text(text: str, out: Path | None) -> None:
    """Write a text to a file, or to stdout if there is none."""
    if out is None:
        sys.stdout.write(text)
    else:
        write_atomically(out, text.encode())
        typer.echo(f"Wrote {out}", err=True)
