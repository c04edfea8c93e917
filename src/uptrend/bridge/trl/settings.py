"""TRL's arguments as a recipe: run.json of a watched run."""

import json
import platform
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

from uptrend.config.tables import nest
from uptrend.records.dialects import our_value, read_setting
from uptrend.records.schema import VERSION

PACKAGES = ("trl", "torch", "transformers", "accelerate", "peft", "datasets", "vllm", "pyarrow")
# Settings that are arguments of TRL under another name; the rest of a recipe is computed.
TRANSLATED = (
    "seed",
    "model.gradient_checkpointing",
    "sampling.size",
    "sampling.temperature",
    "sampling.top_p",
    "sampling.top_k",
    "sampling.min_p",
    "sampling.repetition_penalty",
    "sampling.max_tokens",
    "learning.lr",
    "learning.schedule",
    "learning.loss",
    "learning.scale",
    "learning.clip_low",
    "learning.kl.beta",
    "learning.entropy",
    "learning.mask_truncated",
    "learning.updates",
    "learning.max_grad_norm",
    "learning.weight_decay",
    "learning.beta1",
    "learning.beta2",
)


def describe_run(trainer: Any, path: Path, dtypes: Mapping[str, int]) -> dict[str, Any]:
    """Return run.json: TRL's settings under our keys where they have one, and all as TRL has
    them.
    """
    parameters = list(trainer.model.parameters())
    config = recipe(trainer, dtypes)
    return {
        "schema": VERSION,
        "name": path.name,
        "trainer": "trl",
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "uptrend": _or_none(metadata.version, "uptrend") or "unknown",
        "python": platform.python_version(),
        "packages": {
            name: found for name in PACKAGES if (found := _or_none(metadata.version, name))
        },
        "machine": {
            "device": str(trainer.accelerator.device),
            "processes": trainer.accelerator.num_processes,
        },
        "config": config,
        "raw": json.loads(json.dumps(trainer.args.to_dict(), default=str)),
        "tasks": {"name": "trl dataset", "train": _or_none(len, trainer.train_dataset)},
        "eval": {
            "name": "trl dataset",
            "tasks": _or_none(len, getattr(trainer, "eval_dataset", None)),
        },
        "model": {
            "name": config["model"]["name"],
            "parameters": sum(p.numel() for p in parameters),
            "trainable": sum(p.numel() for p in parameters if p.requires_grad),
            "special": special_ids(trainer.processing_class),
        },
        "notes": [],
    }


def special_ids(tokenizer: Any) -> list[int]:
    """Return the ids of tokens that are no text, such as those that end a turn."""
    tokens = getattr(getattr(tokenizer, "tokenizer", tokenizer), "added_tokens_decoder", {})
    return sorted(int(id) for id, token in tokens.items() if token.special)


def recipe(trainer: Any, dtypes: Mapping[str, int]) -> dict[str, Any]:
    """Return TRL's arguments as the nested table of a recipe; those without an equivalent are only
    in `raw`.
    """
    args = trainer.args
    model = trainer.model
    steps = int(trainer.state.max_steps or args.max_steps)
    turns: int | None = 1
    if getattr(trainer, "tools", None) or getattr(trainer, "environments", None):
        # TRL limits calls of tools, and the answer comes after the last of them.
        calls = getattr(args, "max_tool_calling_iterations", None)
        turns = None if calls is None else int(calls) + 1

    def argument(name: str) -> Any:
        value = getattr(args, name, None)
        return getattr(value, "value", value)  # an enumeration's value

    told = {key: read_setting(key, "trl", argument) for key in TRANSLATED}
    if argument("multi_objective_aggregation") == "normalize_then_sum":
        # each function's rewards are scaled by themselves, which no name of ours says
        told["learning.scale"] = None
    return nest(
        {
            "name": Path(args.output_dir).name,
            "model.name": str(getattr(model.config, "_name_or_path", "") or type(model).__name__),
            "model.weights": dtype_name(
                max(dtypes, key=lambda kind: dtypes[kind], default="torch.float32")
            ),
            **_lora(model),
            "tasks.name": "trl dataset",
            "tasks.train": _or_none(len, trainer.train_dataset) or 0,
            "sampling.groups": args.generation_batch_size // args.num_generations,
            "sampling.max_turns": turns,
            **told,
            "sampling.top_k": told["sampling.top_k"] or 0,
            "learning.steps": steps,
            "learning.warmup": args.get_warmup_steps(steps),
            "learning.baseline": "mean",
            "learning.clip_high": args.epsilon if args.epsilon_high is None else args.epsilon_high,
            "learning.kl.estimator": "k3",
            "learning.minibatches": max(
                1, round(args.steps_per_generation / args.gradient_accumulation_steps)
            ),
        }
    )


def dtype_name(kind: str) -> str:
    """Return our name of a torch dtype, `bf16` for `torch.bfloat16`."""
    return str(our_value("model.weights", kind.removeprefix("torch."), "trl"))


def _lora(model: Any) -> dict[str, Any]:
    adapters = getattr(model, "peft_config", None)
    adapter = adapters.get("default") if isinstance(adapters, Mapping) else None
    if adapter is None or not hasattr(adapter, "lora_alpha"):
        return {}
    alpha = float(adapter.lora_alpha)
    dropout = float(adapter.lora_dropout)
    return {"model.lora.r": adapter.r, "model.lora.alpha": alpha, "model.lora.dropout": dropout}


def _or_none(ask: Callable[[Any], Any], given: Any) -> Any:
    """Return the version of a package or the length of a dataset; None where there is none."""
    try:
        return ask(given)
    except (TypeError, metadata.PackageNotFoundError):
        return None
