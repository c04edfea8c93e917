"""Train and evaluate on MuSiQue, under the flags that a public research effort used for it.

Flags become a recipe and nothing else: `--dry-run` prints it. What the recipe means is in
docs/guide/musique.md.

    python scripts/train_musique.py train --datasets "bdsaglam/musique-mini,answerable,train[:100]" --max-steps 50
    accelerate launch --num-processes 2 --config-file configs/zero3.yaml scripts/train_musique.py train --datasets atlas
    python scripts/train_musique.py evaluate --model runs/musique --datasets "bdsaglam/musique,answerable,validation"
"""

import json
import math
import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal

try:
    import typer

    import uptrend  # noqa: F401 (asked for by name)
except ModuleNotFoundError as missing:
    sys.exit(
        f"error: {missing.name} is not installed. Install Uptrend with all that this script uses, in its checkout: "
        "pip install '.[hub,retrieval,train]'"
    )

from uptrend.cli.main import call
from uptrend.config import Config, load_config, to_table
from uptrend.policy.known import need_extra
from uptrend.records import ConfigError, RecordError
from uptrend.runner.prepare import need_extras
from uptrend.tasks.pool import make_heldout, make_pool, resolve_options
from uptrend.tasksets.musique import retrieval
from uptrend.tasksets.musique.retrieval import RetrieverName as Retriever

LossType = Literal["grpo", "dr_grpo", "bnpo"]
HUB = "bdsaglam/musique,answerable,train"
EVERYTHING = 1_000_000
"""More questions than any dataset has."""
TRIAL: dict[str, Any] = {
    "batch_size": 8,
    "num_generations": 4,
    "gradient_accumulation_steps": 1,
    "max_new_tokens": 64,
    "max_turns": 3,
    "eval_tasks": 8,
    "gradient_checkpointing": False,
}
"""Flags of the model that tries the script out, where they are not given: a step takes seconds on a
CPU.
"""

app = typer.Typer(
    add_completion=False, no_args_is_help=True, rich_markup_mode=None, help="MuSiQue with GRPO."
)


def _set_defaults(context: typer.Context, model: str) -> str:
    """Make the flags that are not given those of a trial, where the model is only there to try the
    script.
    """
    if model == "tiny":
        context.default_map = TRIAL
    return model


@app.command()
def train(
    context: typer.Context,
    model: Annotated[
        str,
        typer.Option(
            help="A known model, a hub id, or a folder. tiny tries the script: other flags are small then.",
            is_eager=True,
            callback=_set_defaults,
        ),
    ] = "Qwen/Qwen2.5-7B-Instruct",
    datasets: Annotated[
        str,
        typer.Option(
            help="Hub datasets as path,config,split[:N] joined by ;, a .jsonl file, or the word atlas."
        ),
    ] = HUB,
    train_tasks: Annotated[
        int | None,
        typer.Option(min=1, help="The most questions to train on: all, or 500 of the atlas."),
    ] = None,
    eval_datasets: Annotated[
        str | None,
        typer.Option(help="What to evaluate on; a quarter of the training source otherwise."),
    ] = None,
    eval_tasks: Annotated[int, typer.Option(help="Held-out questions.")] = 200,
    noise_rate: Annotated[
        float, typer.Option(help="The chance that a paragraph without support is kept.")
    ] = 1.0,
    retriever: Annotated[Retriever, typer.Option(help="What finds documents.")] = "hybrid",
    max_prompt_length: Annotated[
        int, typer.Option(help="The most tokens of the first prompt.")
    ] = 4096,
    max_new_tokens: Annotated[
        int, typer.Option(help="The most tokens that the model says in a turn.")
    ] = 1024,
    max_completion_length: Annotated[
        int, typer.Option(help="The most tokens after the first prompt, tool results included.")
    ] = 4096,
    max_turns: Annotated[int, typer.Option(help="The most turns.")] = 10,
    temperature: Annotated[float, typer.Option(help="Divides the logits.")] = 0.5,
    batch_size: Annotated[
        int, typer.Option(min=1, help="Rollouts of one accumulation, in each process.")
    ] = 8,
    num_generations: Annotated[int, typer.Option(min=1, help="Rollouts a question.")] = 8,
    gradient_accumulation_steps: Annotated[
        int, typer.Option(min=1, help="Accumulations a step.")
    ] = 8,
    kl_beta: Annotated[float, typer.Option(help="The weight of the KL penalty.")] = 0.04,
    scale_rewards: Annotated[
        bool, typer.Option(help="Divide advantages by the group's deviation.")
    ] = True,
    scale_by_hops: Annotated[
        bool, typer.Option(help="Let four hops earn twice what two earn.")
    ] = False,
    loss_type: Annotated[LossType, typer.Option(help="How tokens are weighted.")] = "grpo",
    num_iterations: Annotated[int, typer.Option(help="Passes over a step's rollouts.")] = 1,
    peft: Annotated[bool, typer.Option(help="Train adapters, or all weights.")] = True,
    lora_r: Annotated[int, typer.Option(help="The adapters' rank.")] = 16,
    lora_alpha: Annotated[float, typer.Option(help="Their output is scaled by alpha / r.")] = 32.0,
    gradient_checkpointing: Annotated[
        bool, typer.Option(help="Less memory, a third more time.")
    ] = True,
    learning_rate: Annotated[float, typer.Option(help="The learning rate.")] = 1e-5,
    max_grad_norm: Annotated[
        float, typer.Option(help="Longer gradients are shortened to it.")
    ] = 0.1,
    bf16: Annotated[
        bool, typer.Option("--bf16", help="Accepted: arithmetic on a GPU is bf16 anyway.")
    ] = False,
    max_steps: Annotated[
        int | None, typer.Option(min=1, help="One pass over the questions otherwise.")
    ] = None,
    logging_steps: Annotated[
        int | None, typer.Option(help="Accepted: every step is recorded anyway.")
    ] = None,
    save_steps: Annotated[
        int, typer.Option(help="A checkpoint every so many steps; 0 for the last alone.")
    ] = 100,
    eval_steps: Annotated[
        int, typer.Option(help="Evaluate every so many steps; 0 for first and last.")
    ] = 20,
    output_dir: Annotated[
        Path | None, typer.Option(help="The run directory; runs/musique otherwise.")
    ] = None,
    data_parallel_size: Annotated[
        int | None,
        typer.Option(min=1, help="Processes, where accelerate launch or torchrun started several."),
    ] = None,
    seed: Annotated[int, typer.Option(help="The run's seed.")] = 0,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the recipe, and end.")] = False,
) -> None:
    """Train a model on questions of several hops, and record everything."""
    groups = _groups(
        batch_size, gradient_accumulation_steps * _processes(data_parallel_size), num_generations
    )
    runs, name = _place(output_dir)
    source, rules = (
        _source(datasets),
        {"noise_rate": noise_rate, "retriever": retriever, "scale_by_hops": scale_by_hops},
    )
    evaluated = source if eval_datasets is None else _source(eval_datasets)
    config = load_config(
        {
            "name": name or "musique",
            "seed": seed,
            "model": {
                "name": model,
                "gradient_checkpointing": gradient_checkpointing,
                **({"lora": {"r": lora_r, "alpha": lora_alpha}} if peft else {}),
            },
            "tasks": {
                "name": "musique",
                "train": train_tasks or (EVERYTHING if source else 500),
                "split": "quarter" if eval_datasets is None else "train",
                **source,
                **rules,
            },
            "eval": {
                "name": "musique",
                "tasks": eval_tasks,
                "every": eval_steps,
                "split": "quarter" if eval_datasets is None else "heldout",
                **evaluated,
                **rules,
            },
            "sampling": {
                "groups": groups,
                "size": num_generations,
                "temperature": temperature,
                "max_tokens": max_new_tokens,
                "max_turns": max_turns,
                "max_prompt": max_prompt_length,
                "context": max_prompt_length + max_completion_length,
            },
            "learning": {
                "lr": learning_rate,
                "warmup": 0,
                "loss": loss_type,
                "scale": "group" if scale_rewards else "none",
                "kl": {"beta": kl_beta},
                "updates": num_iterations,
                "max_grad_norm": max_grad_norm,
                **({"steps": max_steps} if max_steps else {}),
            },
            "checkpoints": {"every": save_steps},
        }
    )
    config = resolve_options(config)
    if trial := _trial_flags(context):
        _say(f"--model tiny tries the script out. Not given, so small: {trial}.")
    if bf16:
        _say(
            "--bf16: arithmetic on a GPU is bf16 already, and weights that train stay fp32, or small steps are lost."
        )
    if logging_steps is not None:
        _say("--logging-steps: every step is recorded, in metrics.jsonl of the run directory.")
    downloads = "datasets" in source | evaluated
    if downloads and not dry_run:
        _need_packages(config)
    counts = not (downloads and dry_run)  # a dry run downloads nothing
    if counts:
        config = _counted(config, one_pass=max_steps is None)
    if dry_run:
        typer.echo(_as_toml(config, has_steps=counts or max_steps is not None))
    else:
        _train(config, runs, name)


@app.command()
def evaluate(
    model: Annotated[
        str, typer.Option(help="A run directory, a known model, a hub id, or a folder.")
    ],
    datasets: Annotated[
        str | None,
        typer.Option(help="As for train; every question is held out. A run's own otherwise."),
    ] = None,
    retriever: Annotated[
        Retriever | None, typer.Option(help="A run's own, or hybrid, otherwise.")
    ] = None,
    noise_rate: Annotated[float | None, typer.Option(help="A run's own, or 1, otherwise.")] = None,
    max_new_tokens: Annotated[
        int | None, typer.Option(help="A run's own, or 1024, otherwise.")
    ] = None,
    max_turns: Annotated[int | None, typer.Option(help="A run's own, or 10, otherwise.")] = None,
    limit: Annotated[
        int | None,
        typer.Option(min=1, help="The most questions: all, or 200 of the atlas, otherwise."),
    ] = None,
    output: Annotated[Path, typer.Option(help="One object a question, as JSON lines.")] = Path(
        "evaluation.jsonl"
    ),
) -> None:
    """Score a model or a run's last checkpoint, greedily, and show every part of the reward by
    hops.
    """
    from uptrend.cli.evaluate import print_scored, score
    from uptrend.runner.evaluation import count_musique, musique_of, source_overrides

    tasks, overrides = musique_of(model), []
    if datasets is not None:
        source = _source(datasets)
        there = count_musique(Path(source.get("file", ""))) or (EVERYTHING if source else 200)
        overrides = source_overrides(**source, tasks=min(limit or there, there))
    elif tasks is not None:
        raise ConfigError(
            f"{model} brings no questions of its own: say which with --datasets, for example --datasets {HUB}, "
            "a .jsonl file in MuSiQue's schema, or the word atlas."
        )
    elif limit is not None:
        overrides = [f"eval.tasks={limit}"]
    default = {"eval.retriever": "hybrid", "eval.noise_rate": 1.0, "sampling.max_tokens": 1024,
               "sampling.max_turns": 10, "sampling.context": 8192}  # fmt: skip
    given = {"eval.retriever": retriever, "eval.noise_rate": noise_rate, "sampling.max_tokens": max_new_tokens,
             "sampling.max_turns": max_turns}  # fmt: skip
    wanted = ({} if tasks is None else default) | {
        key: value for key, value in given.items() if value is not None
    }
    overrides += [f"{key}={value}" for key, value in wanted.items()]
    print_scored(score(model, tasks, overrides, out=output))
    typer.echo(f"Answers: {output}")


def _trial_flags(context: typer.Context) -> str:
    """Return the flags that have a trial's value because they were not given."""
    small = []
    for name, value in TRIAL.items():
        source = context.get_parameter_source(name)
        if source is not None and source.name == "DEFAULT_MAP":
            flag = name.replace("_", "-")
            small.append(f"--no-{flag}" if value is False else f"--{flag} {value}")
    return ", ".join(small)


def _need_packages(config: Config) -> None:
    """Raise MissingExtra before questions are downloaded, which may take minutes."""
    need_extras(config)
    need_extra("datasets", "hub")
    for options in (config.tasks.options, config.eval.options):
        retrieval.retriever(options["retriever"], options["embedder"])


def _source(text: str) -> dict[str, str]:
    """Where questions come from, as options of the taskset; none for the atlas."""
    if text.strip() == "atlas":
        return {}
    if text.endswith(".jsonl") and ";" not in text:
        return {"file": text}
    if any(part.strip() == "atlas" or part.strip().endswith(".jsonl") for part in text.split(";")):
        raise ConfigError(
            f"--datasets {text}: use one .jsonl file, or the word atlas, or hub datasets joined by ;."
        )
    from uptrend.tasksets.musique.rows import read_sources

    if not read_sources(text):
        raise ConfigError(f"--datasets is empty; use path,config,split, for example {HUB}.")
    return {"datasets": text}


def _groups(batch: int, accumulation: int, generations: int) -> int:
    """How many questions a step has: all its rollouts, by the rollouts of each."""
    rollouts = batch * accumulation
    if rollouts % generations == 0:
        return rollouts // generations
    unit = generations // math.gcd(accumulation, generations)
    fitting = [n for n in range(2, rollouts + 1) if rollouts % n == 0]
    nearest = min(fitting, key=lambda n: abs(n - generations), default=None)
    raise ConfigError(
        f"--batch-size {batch} × --gradient-accumulation-steps {accumulation} are {rollouts} rollouts a step, which "
        f"--num-generations {generations} does not divide. Use --batch-size {math.ceil(batch / unit) * unit}"
        + (f", or --num-generations {nearest}." if nearest else ".")
    )


def _processes(asked: int | None) -> int:
    """Return the number of processes that train together; each brings its batch, as with other
    trainers.
    """
    there = int(os.environ.get("WORLD_SIZE") or 1)
    if asked not in (None, there):
        raise ConfigError(
            f"--data-parallel-size {asked}, and there {'is one process' if there == 1 else f'are {there}'}. Start as "
            f"many: accelerate launch --num-processes {asked} --config-file configs/ddp.yaml scripts/train_musique.py …"
        )
    return there


def _place(output_dir: Path | None) -> tuple[Path, str | None]:
    """The folder of runs and the run's name in it."""
    if output_dir is None:
        return Path("runs"), None
    path = output_dir if output_dir.name not in ("", "..") else output_dir.resolve()
    if (path / "run.json").exists():
        raise RecordError(
            f"{path} already holds a run. Choose another --output-dir, or go on with: uptrend train --resume {path}"
        )
    return path.parent, path.name


def _counted(config: Config, *, one_pass: bool) -> Config:
    """With as many questions as there are, and, for one pass over them, as many steps: only a look
    at them tells.
    """
    # Which questions there are does not depend on what finds their documents, and golden needs no
    # model to be there.
    looked_at = replace(
        config,
        tasks=replace(config.tasks, options=config.tasks.options | {"retriever": "golden"}),
        eval=replace(config.eval, options=config.eval.options | {"retriever": "golden"}),
    )
    (stage,) = make_pool(looked_at, make_heldout(looked_at)).stages
    count = len(stage.tasks)
    steps = max(1, count // config.sampling.groups) if one_pass else config.learning.steps
    return replace(
        config,
        tasks=replace(config.tasks, train=count),
        learning=replace(config.learning, steps=steps),
    )


def _train(config: Config, runs: Path, name: str | None) -> None:
    from uptrend.runner.observers import terminal_observers
    from uptrend.runner.runs import train_recipe

    with terminal_observers(doctor=False) as observers:
        run = train_recipe(config, runs=runs, name=name, observers=observers)
    if run.status == "stopped" and run.checkpoints:
        typer.echo(
            f"Stopped after step {run.last_step}. Go on with: uptrend train --resume {run.path}"
        )


def _as_toml(config: Config, *, has_steps: bool) -> str:
    """A recipe that `uptrend train` takes, with every value."""
    lines = (
        []
        if has_steps
        else ["# One pass: learning.steps is counted when the run has read its questions."]
    )
    table = to_table(config)
    if not has_steps:
        del table["learning"]["steps"]
    lines += [
        f"{key} = {_value(value)}" for key, value in table.items() if not isinstance(value, dict)
    ]
    for section, values in table.items():
        if isinstance(values, dict):
            lines += ["", f"[{section}]"]
            lines += [
                f"{key} = {_value(value)}" for key, value in values.items() if value is not None
            ]
    return "\n".join(lines)


def _value(value: Any) -> str:
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{key} = {_value(item)}" for key, item in value.items()) + " }"
    return json.dumps(value, ensure_ascii=False)


def _say(text: str) -> None:
    typer.echo(text, err=True)


if __name__ == "__main__":
    call(app)
