"""What can't work, said before anything starts."""

import re
from functools import reduce
from typing import Any

from uptrend.config.schema import Config
from uptrend.records import ConfigError

AT_LEAST = {
    "seed": 0,
    "tasks.seed": 0,
    "tasks.train": 1,
    "eval.seed": 0,
    "eval.tasks": 1,
    "eval.every": 0,
    "eval.attempts": 0,
    "sampling.groups": 1,
    "sampling.top_k": 0,
    "sampling.max_tokens": 1,
    "sampling.max_turns": 1,
    "sampling.max_prompt": 0,
    "sampling.resample": 0,
    "sampling.rows": 0,
    "learning.steps": 1,
    "learning.clip_low": 0,
    "learning.clip_high": 0,
    "learning.kl.beta": 0,
    "learning.updates": 1,
    "learning.max_grad_norm": 0,
    "learning.weight_decay": 0,
    "learning.tokens": 1,
    "warmstart.tasks": 1,
    "warmstart.epochs": 1,
    "warmstart.batch": 1,
    "warmstart.warmup": 0,
    "checkpoints.every": 0,
    "checkpoints.keep": 1,
    "compute.threads": 0,
}
"""The least that these may be."""

ABOVE_ZERO = ("learning.lr", "warmstart.lr", "learning.correction_cap")
BELOW_ONE = ("learning.beta1", "learning.beta2")
NOT_EMPTY = ("model.name", "tasks.name", "eval.name")


def check(config: Config) -> None:
    """Raise a ConfigError at the first value that can't work, naming its key and what would be right."""
    for key, least in AT_LEAST.items():
        value = _at(config, key)
        _need(value >= least, f"{key} = {value} should be {'at least 1' if least else '0 or more'}.")
    for key in ABOVE_ZERO:
        _need(_at(config, key) > 0, f"{key} = {_at(config, key)} should be above 0.")
    for key in BELOW_ONE:
        _need(0 <= _at(config, key) < 1, f"{key} = {_at(config, key)} should be at least 0 and below 1.")
    for key in NOT_EMPTY:
        _need(_at(config, key).strip(), f"{key} is empty.")
    _check_name(config.name)
    _check_model(config)
    _check_stages(config)
    _check_sampling(config)
    _check_learning(config)
    device = config.compute.device
    right = re.fullmatch(r"auto|cpu|cuda(:\d+)?", device)
    _need(right, f"compute.device = {device!r} should be auto, cpu or cuda.")


def _check_name(name: str) -> None:
    _need(
        re.fullmatch(r"[^\s./\\][^/\\\x00]*", name),
        f"name = {name!r} becomes a folder: use letters, digits and hyphens, for example arithmetic-lr-2e-5.",
    )


def _check_model(config: Config) -> None:
    lora = config.model.lora
    if lora is None:
        return
    _need(lora.r >= 1, f"model.lora.r = {lora.r} should be at least 1.")
    _need(lora.alpha > 0, f"model.lora.alpha = {lora.alpha} should be above 0.")
    _need(0 <= lora.dropout < 1, f"model.lora.dropout = {lora.dropout} should be at least 0 and below 1.")


def _check_stages(config: Config) -> None:
    starts: list[int] = []
    for i, stage in enumerate(config.tasks.stages):
        start = stage.get("start")
        if isinstance(start, bool) or not isinstance(start, int):
            raise ConfigError(f"tasks.stages[{i}].start = {start!r} should be the step at which it begins.")
        starts.append(start)
    in_order = not starts or (starts[0] == 1 and starts == sorted(set(starts)))
    _need(
        in_order,
        f"tasks.stages start at {starts}: the first should start at 1, and each later than the one before.",
    )


def _check_sampling(config: Config) -> None:
    s = config.sampling
    _need(
        s.size >= 2,
        f"sampling.size = {s.size}: a group of one has nothing to compare with. Use at least 2; 8 or 16 learn well.",
    )
    _need(
        s.temperature > 0,
        f"sampling.temperature = {s.temperature}: all rollouts of a group would be the same. Use 0.7 to 1.0.",
    )
    _need(0 < s.top_p <= 1, f"sampling.top_p = {s.top_p} should be above 0 and at most 1.")
    _need(
        s.context > s.max_tokens,
        f"sampling.context = {s.context} should exceed sampling.max_tokens = {s.max_tokens}: it holds the prompt too.",
    )
    _need(all(s.stop), "sampling.stop holds an empty text, which would end every turn at once.")


def _check_learning(config: Config) -> None:
    w, groups = config.learning, config.sampling.groups
    _need(
        0 <= w.warmup <= w.steps,
        f"learning.warmup = {w.warmup} should be between 0 and learning.steps = {w.steps}.",
    )
    _need(
        w.minibatches >= 1 and groups % w.minibatches == 0,
        f"learning.minibatches = {w.minibatches} should divide sampling.groups = {groups}.",
    )
    if w.loss == "cispo":
        _need(
            w.clip_high >= 1,
            f"learning.clip_high = {w.clip_high}: cispo clips the ratio itself at clip_high. "
            "Use 1 or more, for example 5.",
        )
    else:
        _need(w.clip_low < 1, f"learning.clip_low = {w.clip_low} should be below 1.")
    _need(
        not w.skip_dead or (w.kl.beta == 0 and w.entropy == 0),
        "learning.skip_dead = true needs learning.kl.beta = 0 and learning.entropy = 0: "
        "with either of them dead groups teach too.",
    )


def _at(config: Config, key: str) -> Any:
    return reduce(getattr, key.split("."), config)


def _need(holds: object, otherwise: str) -> None:
    if not holds:
        raise ConfigError(otherwise)
