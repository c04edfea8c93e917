"""`uptrend models`: list, pull and show models."""

from pathlib import Path
from typing import Annotated

import typer

from uptrend.cli.console import AsJson, columns, print_json, terminal
from uptrend.policy.known import KNOWN, home, local_folder, need_train_extra
from uptrend.records import ModelError
from uptrend.stats.formatting import size

app = typer.Typer(help="List, pull and show models.", no_args_is_help=True, rich_markup_mode=None)


@app.command("list")
def list_models(as_json: AsJson = False) -> None:
    """List the models that need no hub."""
    folders = {name: local_folder(name) for name in KNOWN}
    models = [{**vars(m), "cached": [str(folder)] if (folder := folders[m.name]) else []} for m in KNOWN.values()]
    if as_json:
        print_json({"home": str(home()), "models": models})
        return
    keys = ("name", "parameters", "source", "license", "download")
    rows = [(*(model[key] for key in keys), "yes" if model["cached"] else "no") for model in models]
    terminal().print(columns("name", "parameters", "from", "license", "costs", "cached", rows=rows))
    typer.echo(f"\nCache: {home()} (UPTREND_HOME moves it).\nAny hub id or folder works as model.name too.")


@app.command()
def pull(
    name: Annotated[str, typer.Argument(help="Known model.")],
    gguf: Annotated[Path | None, typer.Option(help="GGUF file of smollm2-135m, to work without a network.")] = None,
) -> None:
    """Get a model into the cache and print its folder.

    \b
    uptrend models pull smollm2-135m
    """
    typer.echo(_find(name, gguf))


@app.command()
def show(name: Annotated[str, typer.Argument(help="Known model, hub id or folder.")], as_json: AsJson = False) -> None:
    """Show a model's shape, stop token and size.

    \b
    uptrend models show tiny --json
    """
    folder = _find(name, None)  # names the missing extra, before transformers is imported
    from transformers import AutoConfig, AutoTokenizer

    config = AutoConfig.from_pretrained(folder)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    figures = {
        "name": name,
        "folder": folder,
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
        print_json(figures)
    else:
        rows = [(key, size(value) if key == "bytes" else str(value)) for key, value in figures.items()]
        terminal().print(columns(rows=rows))


def _find(name: str, gguf: Path | None) -> str:
    need_train_extra()
    from uptrend.policy.known import find_model, smollm2

    if gguf is None:
        return find_model(name)
    if name != "smollm2-135m":
        raise ModelError("--gguf is for smollm2-135m.")
    return str(smollm2(gguf))
