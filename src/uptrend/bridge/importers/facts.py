"""Settings under other trainers' names, as the nested table of a recipe."""

from collections.abc import Mapping
from typing import Any

from uptrend.bridge.importers.log import flatten, number

# Our key, and the names that mean it, the surest first. A dotted name is matched at the end of a nested key.
NAMES: dict[str, tuple[str, ...]] = {
    "sampling.size": (
        "num_generations", "rollout.n", "rollout_n", "rollouts_per_example", "group_size", "num_rollouts_per_prompt",
        "num_samples_per_prompt_rollout", "n_samples_per_prompt", "samples_per_prompt", "generations_per_prompt",
        "num_samples_per_prompt", "grpo_group_size", "group_size_g",
    ),
    "sampling.max_tokens": (
        "max_completion_length", "max_new_tokens", "max_response_length", "response_length", "generate_max_len",
        "sampling.max_tokens", "max_tokens",
    ),
    "sampling.temperature": ("rollout.temperature", "sampling.temperature", "temperature"),
    "sampling.groups": ("data.train_batch_size", "prompts_per_step", "num_unique_prompts_rollout", "groups_per_batch"),
    "learning.lr": ("optim.lr", "learning_rate", "actor_learning_rate", "lr"),
    "learning.steps": ("max_steps", "total_training_steps", "train_steps", "num_steps", "total_steps"),
    "learning.kl.beta": ("beta", "kl_loss_coef", "kl_coeff", "kl_coef", "kl_beta", "init_kl_coef", "kl_penalty_coef"),
    "learning.loss": ("loss_type",),
    "learning.scale": ("scale_rewards",),
    "learning.max_grad_norm": ("max_grad_norm", "grad_clip", "max_norm"),
    "learning.updates": ("num_iterations", "ppo_epochs"),
    "model.name": ("model_name_or_path", "model_name", "model_id", "base_model", "model.path"),
    "model.lora.r": ("lora_rank", "lora_r", "peft.r", "lora.r", "lora_config.r"),
    "model.lora.alpha": ("lora_alpha", "peft.alpha", "lora.alpha"),
}  # fmt: skip

KNOWN = frozenset(name.rpartition(".")[2] for names in NAMES.values() for name in names) | {
    "n", "use_kl_loss", "use_kl_in_reward", "per_device_train_batch_size", "train_batch_size", "adv_estimator",
    "gradient_accumulation_steps",
}  # fmt: skip
_TEXTS = ("learning.loss", "learning.scale", "model.name")


def config_of(facts: Mapping[str, Any], trainer: str) -> dict[str, Any]:
    """What the facts say, nested as a recipe is; names that mean nothing here are left out."""
    flat = {key.replace("/", ".").lower(): _bare(value) for key, value in flatten(_unwrapped(facts), ".", 8).items()}
    config: dict[str, Any] = {}
    for key, names in NAMES.items():
        value = _find(flat, names)
        if value is not None and (key in _TEXTS or _is_number(value)):
            _put(config, key, value if key in _TEXTS else _whole(value))
    _repair(config, flat, trainer)
    return config


def _unwrapped(facts: Mapping[str, Any]) -> dict[str, Any]:
    """W&B keeps each setting as `{"value": …, "desc": …}` in its config files."""
    return {
        key: value["value"] if isinstance(value, Mapping) and "value" in value and len(value) <= 2 else value
        for key, value in facts.items()
    }


def _bare(value: Any) -> Any:
    return value.get("value") if isinstance(value, Mapping) else value


def _find(flat: Mapping[str, Any], names: tuple[str, ...]) -> Any:
    for name in names:
        for key, value in flat.items():
            if value is not None and (key == name or key.endswith("." + name)):
                return value
    return None


def _is_number(value: Any) -> bool:
    return not isinstance(value, bool) and number(value) is not None


def _whole(value: Any) -> int | float:
    found = number(value)
    assert found is not None
    return int(found) if found == int(found) and not isinstance(value, float) else found


def _put(config: dict[str, Any], key: str, value: Any) -> None:
    *tables, last = key.split(".")
    for table in tables:
        config = config.setdefault(table, {})
    config[last] = value


def _repair(config: dict[str, Any], flat: Mapping[str, Any], trainer: str) -> None:
    """Settings whose meaning hangs on another: verl's KL is off unless asked for, and rank 0 is no LoRA."""
    if trainer == "verl":
        if "size" not in config.get("sampling", {}) and _is_number(flat.get("n")):
            _put(config, "sampling.size", _whole(flat["n"]))
        if _find(flat, ("use_kl_loss",)) is False and _find(flat, ("use_kl_in_reward",)) is not True:
            _put(config, "learning.kl.beta", 0.0)
        batch = _find(flat, ("train_batch_size",))
        if _is_number(batch):
            _put(config, "sampling.groups", _whole(batch))
    if config.get("model", {}).get("lora", {}).get("r") == 0:
        del config["model"]["lora"]
    scale = config.get("learning", {}).get("scale")
    if scale in (True, False, "true", "false", "True", "False"):
        _put(config, "learning.scale", "group" if str(scale).lower() == "true" else "none")
    if config.get("learning", {}).get("steps", 1) <= 0:
        del config["learning"]["steps"]
