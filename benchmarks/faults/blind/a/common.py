"""What the cases of this split share: rows of sums, readers of answers, and a TRL trainer with usual settings."""

import random
import re
from collections.abc import Callable, Sequence
from typing import Any

from benchmarks.faults.blind.case import Job

Row = dict[str, Any]
USUAL: dict[str, Any] = {
    "sampling.groups": 8, "sampling.size": 8, "sampling.max_tokens": 6, "sampling.temperature": 0.8,
    "learning.lr": 3e-5, "eval.every": 10,
}  # fmt: skip
PLAIN: dict[str, Any] = {**USUAL, "tasks.chat": False}


def solve(a: int, op: str, b: int) -> int:
    """Return the result of an operation."""
    return {"+": a + b, "-": a - b, "*": a * b}[op]


def sums(
    count: int = 400, ops: str = "+-", a: tuple[int, int] = (0, 20), b: tuple[int, int] = (0, 20), seed: int = 7,
    end: str = " ",
) -> list[Row]:  # fmt: skip
    """Return at most `count` different questions, shuffled."""
    every = [(x, op, y) for x in range(a[0], a[1] + 1) for op in ops for y in range(b[0], b[1] + 1)]
    random.Random(seed).shuffle(every)
    return [
        {"prompt": f"Calculate: {x} {op} {y} ={end}", "answer": str(solve(x, op, y)), "a": x, "op": op, "b": y}
        for x, op, y in every[:count]
    ]


def number_in(text: str) -> int | None:
    """Return the number at the start of a text."""
    found = re.match(r"\s*(-?\d{1,9})(?!\d)", text)
    return int(found[1]) if found else None


def exact(prompts: list[str], completions: list[str], answer: list[str], **_: Any) -> list[float]:
    """TRL's form of a reward: 1 for the answer, else 0."""
    return [float(said.strip() == right) for said, right in zip(completions, answer, strict=True)]


def right(prompt: str, completion: str, answer: str) -> float:
    """Uptrend's form: 1 for the answer, else 0."""
    return float(completion.strip() == answer)


def trl_trainer(
    job: Job, rows: Sequence[Row], rewards: Callable[..., Any] | list[Any], *, kind: Any = None, model: Any = None,
    with_: dict[str, Any] | None = None, **settings: Any,
) -> Any:  # fmt: skip
    """Return a GRPOTrainer on the tiny model; `settings` go to GRPOConfig, `with_` to the trainer."""
    from datasets import Dataset
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from trl import GRPOConfig, GRPOTrainer

    usual = {
        "per_device_train_batch_size": 48, "num_generations": 8, "max_completion_length": 6, "max_steps": 24,
        "learning_rate": 5e-5, "temperature": 0.8, "lr_scheduler_type": "constant", "use_cpu": True, "bf16": False,
        "gradient_checkpointing": False, "save_strategy": "no", "report_to": [], "logging_steps": 1,
        "disable_tqdm": True, "seed": job.seed, "output_dir": str(job.folder / "out"),
    }  # fmt: skip
    given = {"processing_class": AutoTokenizer.from_pretrained(job.model), **(with_ or {})}
    return (kind or GRPOTrainer)(
        model=AutoModelForCausalLM.from_pretrained(job.model) if model is None else model,
        reward_funcs=rewards, args=GRPOConfig(**{**usual, **settings}), train_dataset=Dataset.from_list(list(rows)),
        **given,
    )  # fmt: skip
