"""`uptrend convert`: recipes from the settings of TRL and prime-rl, and back."""

import ast
import shlex
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from uptrend.bridge.convert import Converted, read_any, write_prime_rl, write_trl
from uptrend.cli.console import AsJson, print_json
from uptrend.config.tables import to_toml
from uptrend.records import ConfigError
from uptrend.records.files import write_atomically


def command(
    file: Annotated[
        Path,
        typer.Argument(
            help="TRL's train.py or dumped GRPOConfig (.json), prime-rl's rl.toml, or a recipe."
        ),
    ],
    to: Annotated[
        Literal["trl", "prime-rl"] | None,
        typer.Option("--to", help="Write a recipe for this trainer."),
    ] = None,
    out: Annotated[Path, typer.Option("--out", help="Folder for what is written.")] = Path(),
    flags: Annotated[
        str, typer.Option(help="Flags that train.py is started with, as one text.")
    ] = "",
    processes: Annotated[
        int, typer.Option(min=1, help="Number of processes that train.py is started with.")
    ] = 1,
    force: Annotated[bool, typer.Option("--force", help="Overwrite files that are there.")] = False,
    as_json: AsJson = False,
) -> None:
    """Turn a TRL script or a prime-rl config into a recipe, or a recipe into theirs.

    \b
    uptrend convert train.py --out mine
    uptrend convert train.py --flags "--learning_rate 1e-5"
    uptrend convert rl.toml --json
    uptrend convert recipe.toml --to trl

    A script is read, never run; its reward functions are copied to rewards.py. What has no
    equivalent is listed here and at the end of the file, and so are values that come from the other
    trainer's defaults.
    """
    found = read_any(file, _read_flags(shlex.split(flags)), processes)
    told: dict[str, Any]
    if isinstance(found, Converted):
        if to:
            raise ConfigError(
                f"{file} is {found.trainer}'s: convert it to a recipe first, without --to."
            )
        files = {"recipe.toml": found.recipe(), **found.files}
        told = {
            "from": found.trainer,
            "defaults": found.defaults,
            "lost": found.lost,
            "left_out": found.machinery,
        }
    elif to is None:
        raise ConfigError(f"{file} is a recipe: say --to trl or --to prime-rl.")
    else:
        name = {"trl": "train.py", "prime-rl": "rl.toml"}[to]
        text, lost = write_trl(found, file, out / name) if to == "trl" else write_prime_rl(found)
        files = {name: text}
        told = {"to": to, "lost": lost}
    if there := [name for name in files if (out / name).exists() and not force]:
        raise ConfigError(
            f"{out / there[0]} exists: say --force to overwrite it, or --out for another folder."
        )
    out.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        write_atomically(out / name, text.encode())
    told["written"] = [str(out / name) for name in files]
    if as_json:
        print_json(told)
        return
    for key, value in told.get("defaults", {}).items():
        typer.echo(f"default         {key} = {to_toml(value)}")
    for key, why in told["lost"].items():
        typer.echo(f"not translated  {key}: {why}")
    if told.get("left_out"):
        typer.echo(f"left out        {', '.join(told['left_out'])}")
    typer.echo(f"Wrote {', '.join(told['written'])}")


def _read_flags(words: list[str]) -> dict[str, Any]:
    """Read --key value, --key=value, --key a b and --key as a parser of arguments does."""
    found = dict[str, list[Any]]()
    key = ""
    for word in [
        part for each in words for part in (each.split("=", 1) if each.startswith("--") else [each])
    ]:
        if word.startswith("--"):
            found[key := word.removeprefix("--").replace("-", "_")] = []
            continue
        if not key:
            raise ConfigError(f"{word!r} stands after no flag: write --key value.")
        try:
            found[key].append(ast.literal_eval(word))
        except (ValueError, SyntaxError):
            found[key].append(word)
    return {key: values[0] if len(values) == 1 else values or True for key, values in found.items()}
