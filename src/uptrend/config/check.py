"""What can't work, said before anything starts."""

from uptrend.config.schema import Config
from uptrend.records import ConfigError


def check(config: Config) -> None:
    """Raise a ConfigError at the first value that can't work, naming its key and what would be right."""
    _check_sampling(config)
    _check_learning(config)
    for key, value in {
        "eval.tasks": config.eval.tasks,
        "tasks.train": config.tasks.train,
        "checkpoints.keep": config.checkpoints.keep,
    }.items():
        _need(value >= 1, f"{key} = {value} should be at least 1.")
    for key, value in {
        "eval.every": config.eval.every,
        "eval.attempts": config.eval.attempts,
        "checkpoints.every": config.checkpoints.every,
        "compute.threads": config.compute.threads,
    }.items():
        _need(value >= 0, f"{key} = {value} should be 0 or more.")
    device = config.compute.device
    _need(device in ("auto", "cpu") or device.startswith("cuda"), f"compute.device = {device!r} should be auto, cpu or cuda.")
    if (lora := config.model.lora) is not None:
        _need(lora.r >= 1, f"model.lora.r = {lora.r} should be at least 1.")
        _need(lora.alpha > 0, f"model.lora.alpha = {lora.alpha} should be above 0.")
        _need(0 <= lora.dropout < 1, f"model.lora.dropout = {lora.dropout} should be at least 0 and below 1.")
    starts = [stage.get("start") for stage in config.tasks.stages]
    _need(all(isinstance(s, int) and s >= 1 for s in starts), "Each of tasks.stages needs a start: the step, from 1, at which it begins.")
    _need(not starts or (starts[0] == 1 and starts == sorted(set(starts))), f"tasks.stages start at {starts}: the first should start at 1, and each later than the one before.")


def _check_sampling(config: Config) -> None:
    s = config.sampling
    _need(s.groups >= 1, f"sampling.groups = {s.groups} should be at least 1.")
    _need(s.size >= 2, f"sampling.size = {s.size}: a group of one has nothing to compare with. Use at least 2; 8 or 16 learn well.")
    _need(s.temperature > 0, f"sampling.temperature = {s.temperature}: all rollouts of a group would be the same. Use 0.7 to 1.0.")
    _need(0 < s.top_p <= 1, f"sampling.top_p = {s.top_p} should be above 0 and at most 1.")
    _need(s.top_k >= 0, f"sampling.top_k = {s.top_k} should be 0 (all tokens) or more.")
    _need(s.max_tokens >= 1, f"sampling.max_tokens = {s.max_tokens} should be at least 1.")
    _need(s.max_turns >= 1, f"sampling.max_turns = {s.max_turns} should be at least 1.")
    _need(s.context > s.max_tokens, f"sampling.context = {s.context} should exceed sampling.max_tokens = {s.max_tokens}: it holds the prompt too.")
    _need(s.resample >= 0, f"sampling.resample = {s.resample} should be 0 or more.")
    _need(s.rows >= 0, f"sampling.rows = {s.rows} should be 0 (all at once) or more.")
    _need(all(s.stop), "sampling.stop holds an empty text, which would end every turn at once.")


def _check_learning(config: Config) -> None:
    w = config.learning
    _need(w.steps >= 1, f"learning.steps = {w.steps} should be at least 1.")
    _need(w.lr > 0, f"learning.lr = {w.lr} should be above 0.")
    _need(0 <= w.warmup <= w.steps, f"learning.warmup = {w.warmup} should be between 0 and learning.steps = {w.steps}.")
    _need(w.kl.beta >= 0, f"learning.kl.beta = {w.kl.beta} should be 0 or more.")
    _need(w.updates >= 1, f"learning.updates = {w.updates} should be at least 1.")
    _need(w.minibatches >= 1 and config.sampling.groups % w.minibatches == 0, f"learning.minibatches = {w.minibatches} should divide sampling.groups = {config.sampling.groups}.")
    _need(w.clip_low >= 0 and w.clip_high >= 0, "learning.clip_low and learning.clip_high should be 0 or more.")
    _need(w.loss == "cispo" or w.clip_low < 1, f"learning.clip_low = {w.clip_low} should be below 1.")
    _need(w.loss != "cispo" or w.clip_high >= 1, f"learning.clip_high = {w.clip_high}: cispo clips the ratio itself at clip_high. Use 1 or more, for example 5.")
    _need(w.correction_cap > 0, f"learning.correction_cap = {w.correction_cap} should be above 0.")
    _need(w.max_grad_norm >= 0, f"learning.max_grad_norm = {w.max_grad_norm} should be 0 (never clip) or more.")
    _need(w.tokens >= 1, f"learning.tokens = {w.tokens} should be at least 1.")
    _need(0 <= w.beta1 < 1 and 0 <= w.beta2 < 1, "learning.beta1 and learning.beta2 should be at least 0 and below 1.")


def _need(holds: bool, otherwise: str) -> None:
    if not holds:
        raise ConfigError(otherwise)
