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
        str, typer.Option(help="Flags that train.py is started with, in one string.")
    ] = "",
    processes: Annotated[
        int, typer.Option(min=1, help="Number of processes that train.py is started with.")
    ] = 1,
    force: Annotated[bool, typer.Option("--force", help="Overwrite existing files.")] = False,
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
    source = read_any(file, _read_flags(shlex.split(flags)), processes)
    summary: dict[str, Any]
    if isinstance(source, Converted):
        if to:
            raise ConfigError(
                f"{file} is {source.trainer}'s: convert it to a recipe first, without --to."
            )
        files = {"recipe.toml": source.recipe(), **source.files}
        summary = {
            "from": source.trainer,
            "defaults": source.defaults,
            "lost": source.lost,
            "left_out": source.machinery,
        }
    elif to is None:
        raise ConfigError(f"{file} is a recipe: say --to trl or --to prime-rl.")
    else:
        if to == "trl":
            name = "train.py"
            text, lost = write_trl(source, file, out / name)
        else:
            name = "rl.toml"
            text, lost = write_prime_rl(source)
        files = {name: text}
        summary = {"to": to, "lost": lost}

    for name in files:
        if (out / name).exists() and not force:
            raise ConfigError(
                f"{out / name} exists: say --force to overwrite it, or --out for another folder."
            )
    out.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        write_atomically(out / name, text.encode())
    summary["written"] = [str(out / name) for name in files]

    if as_json:
        print_json(summary)
        return
    for key, value in summary.get("defaults", {}).items():
        typer.echo(f"default         {key} = {to_toml(value)}")
    for key, reason in summary["lost"].items():
        typer.echo(f"not translated  {key}: {reason}")
    if summary.get("left_out"):
        typer.echo(f"left out        {', '.join(summary['left_out'])}")
    typer.echo(f"Wrote {', '.join(summary['written'])}")


def _read_flags(words: list[str]) -> dict[str, Any]:
    """Read --key value, --key=value, --key a b and --key, as argparse does."""
    parts: list[str] = []
    for word in words:
        if word.startswith("--"):
            parts += word.split("=", 1)
        else:
            parts.append(word)

    values_by_key: dict[str, list[Any]] = {}
    key = ""
    for part in parts:
        if part.startswith("--"):
            key = part.removeprefix("--").replace("-", "_")
            values_by_key[key] = []
            continue
        if not key:
            raise ConfigError(f"{part!r} stands after no flag: write --key value.")
        try:
            values_by_key[key].append(ast.literal_eval(part))
        except (ValueError, SyntaxError):
            values_by_key[key].append(part)

    flags: dict[str, Any] = {}
    for key, values in values_by_key.items():
        if len(values) == 1:
            flags[key] = values[0]
        else:
            flags[key] = values or True  # a flag without values is a switch
    return flags
