"""What TRL was told, in the words of a recipe: run.json of a watched run."""

import platform
from collections.abc import Mapping
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

from uptrend.records.schema import VERSION

PACKAGES = ("trl", "torch", "transformers", "accelerate", "peft", "datasets", "vllm", "pyarrow")
SCALES = {"true": "group", "false": "none", "group": "group", "batch": "batch", "none": "none"}
SCHEDULES = {"constant": "constant", "constant_with_warmup": "constant", "linear": "linear", "cosine": "cosine"}
DTYPES = {"torch.float32": "fp32", "torch.bfloat16": "bf16", "torch.float16": "fp16"}


def describe_run(trainer: Any, path: Path, dtypes: Mapping[str, int]) -> dict[str, Any]:
    """run.json: TRL's settings under our keys as far as they are known, and as TRL wrote them."""
    model = trainer.model
    parameters = list(model.parameters())
    return {
        "schema": VERSION,
        "name": path.name,
        "trainer": "trl",
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "uptrend": _version("uptrend") or "unknown",
        "python": platform.python_version(),
        "packages": {name: found for name in PACKAGES if (found := _version(name))},
        "machine": {"device": str(trainer.accelerator.device), "processes": trainer.accelerator.num_processes},
        "config": recipe(trainer, dtypes),
        "raw": _plain(trainer.args.to_dict()),
        "tasks": {"name": "trl dataset", "train": _length(trainer.train_dataset)},
        "eval": {"name": "trl dataset", "tasks": _length(getattr(trainer, "eval_dataset", None))},
        "model": {
            "name": _model_name(model),
            "parameters": sum(p.numel() for p in parameters),
            "trainable": sum(p.numel() for p in parameters if p.requires_grad),
        },
        "notes": [],
    }


def recipe(trainer: Any, dtypes: Mapping[str, int]) -> dict[str, Any]:
    """TRL's arguments as the nested table of a recipe; what has no equal there is only in `raw`."""
    args = trainer.args
    updates_a_batch = args.steps_per_generation / args.gradient_accumulation_steps
    return {
        "name": Path(args.output_dir).name,
        "seed": args.seed,
        "model": {
            "name": _model_name(trainer.model),
            "weights": DTYPES.get(max(dtypes, key=lambda kind: dtypes[kind], default=""), "fp32"),
            **_lora(trainer.model),
            "gradient_checkpointing": bool(args.gradient_checkpointing),
        },
        "tasks": {"name": "trl dataset", "train": _length(trainer.train_dataset) or 0},
        "sampling": {
            "groups": args.generation_batch_size // args.num_generations,
            "size": args.num_generations,
            "temperature": args.temperature,
            "top_p": args.top_p,
            "top_k": args.top_k or 0,
            "max_tokens": args.max_completion_length,
            "max_turns": _max_turns(trainer),
        },
        "learning": {
            "steps": int(trainer.state.max_steps or args.max_steps),
            "lr": args.learning_rate,
            "schedule": SCHEDULES.get(_word(args.lr_scheduler_type), _word(args.lr_scheduler_type)),
            "warmup": args.get_warmup_steps(int(trainer.state.max_steps or args.max_steps)),
            "loss": "gspo" if _is_gspo(args) else args.loss_type,
            "scale": SCALES.get(str(args.scale_rewards).lower(), str(args.scale_rewards)),
            "baseline": "mean",
            "clip_low": args.epsilon,
            "clip_high": args.epsilon if args.epsilon_high is None else args.epsilon_high,
            "kl": {"beta": args.beta, "estimator": "k3"},
            "entropy": args.entropy_coef,
            "mask_truncated": args.mask_truncated_completions,
            "updates": args.num_iterations,
            "minibatches": max(1, round(updates_a_batch)),
            "max_grad_norm": args.max_grad_norm,
            "weight_decay": args.weight_decay,
            "beta1": args.adam_beta1,
            "beta2": args.adam_beta2,
        },
    }  # fmt: skip


def _max_turns(trainer: Any) -> int | None:
    """One without tools; with them, TRL's limit and the answer after it, if it has one."""
    if not (getattr(trainer, "tools", None) or getattr(trainer, "environments", None)):
        return 1
    most = getattr(trainer.args, "max_tool_calling_iterations", None)
    return None if most is None else int(most) + 1


def _is_gspo(args: Any) -> bool:
    return bool(args.importance_sampling_level == "sequence" and args.loss_type == "grpo")


def _model_name(model: Any) -> str:
    return str(getattr(model.config, "_name_or_path", "") or type(model).__name__)


def _lora(model: Any) -> dict[str, Any]:
    """The adapter's settings, where the model has one."""
    adapters = getattr(model, "peft_config", None)
    adapter = adapters.get("default") if isinstance(adapters, Mapping) else None
    if adapter is None or not hasattr(adapter, "lora_alpha"):
        return {}
    return {"lora": {"r": adapter.r, "alpha": float(adapter.lora_alpha), "dropout": float(adapter.lora_dropout)}}


def _length(dataset: Any) -> int | None:
    try:
        return len(dataset)
    except TypeError:
        return None


def _word(choice: Any) -> str:
    return str(getattr(choice, "value", choice))


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _plain(value: Any) -> Any:
    """What JSON can hold of a value; the rest as its text."""
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value if isinstance(value, str | int | float | bool | None) else str(value)
