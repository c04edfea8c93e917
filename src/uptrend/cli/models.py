"""`uptrend models`: list, pull and show models."""

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from uptrend.policy.known import KNOWN, home, local_folder, need_train_extra
from uptrend.records import ModelError

app = typer.Typer(help="List, pull and show models.", no_args_is_help=True, rich_markup_mode=None)
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]


@app.command("list")
def list_models(as_json: Json = False) -> None:
    """The models that need no hub, and whether they are on this machine."""
    folders = {name: local_folder(name) for name in KNOWN}
    rows = [{**vars(m), "cached": [str(folder)] if (folder := folders[m.name]) else []} for m in KNOWN.values()]
    if as_json:
        typer.echo(json.dumps({"home": str(home()), "models": rows}, indent=2))
        return
    table = Table("name", "parameters", "from", "license", "costs", "cached", box=None, pad_edge=False)
    for row in rows:
        table.add_row(
            row["name"],
            row["parameters"],
            row["source"],
            row["license"],
            row["download"],
            "yes" if row["cached"] else "no",
        )
    Console().print(table)
    typer.echo(f"\nCache: {home()} (set UPTREND_HOME to move it). Any hub id or folder works as model.name too.")


@app.command()
def pull(
    name: Annotated[str, typer.Argument(help="A known model.")],
    gguf: Annotated[
        Path | None,
        typer.Option(help="smollm2-135m's GGUF file, where it is already here and there is no network."),
    ] = None,
) -> None:
    """Get a model into the cache."""
    typer.echo(str(_find(name, gguf)))


@app.command()
def show(
    name: Annotated[str, typer.Argument(help="A known model, a hub id or a folder.")], as_json: Json = False
) -> None:
    """A model's shape, stop tokens and files, pulling it first where need be."""
    from transformers import AutoConfig, AutoTokenizer

    folder = _find(name, None)
    config = AutoConfig.from_pretrained(folder)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    figures = {
        "name": name,
        "folder": str(folder),
        "type": config.model_type,
        "layers": config.num_hidden_layers,
        "hidden": config.hidden_size,
        "vocabulary": config.vocab_size,
        "context": getattr(config, "max_position_embeddings", None),
        "end of turn": tokenizer.eos_token,
        "chat template": bool(tokenizer.chat_template),
        "bytes": sum(f.stat().st_size for f in Path(folder).rglob("*") if f.is_file()),
    }
    if as_json:
        typer.echo(json.dumps(figures, indent=2))
        return
    for key, value in figures.items():
        typer.echo(
            f"{key:14} {value:,}" if isinstance(value, int) and not isinstance(value, bool) else f"{key:14} {value}"
        )


def _find(name: str, gguf: Path | None) -> str:
    need_train_extra()
    from uptrend.policy.known import find_model, smollm2

    if gguf is not None:
        if name != "smollm2-135m":
            raise ModelError("--gguf is for smollm2-135m.")
        return str(smollm2(gguf))
    return find_model(name)
