"""Rows, settings and trainers that several cases share."""

import random
import re
from typing import Any

from benchmarks.faults.blind.case import Job

RESULT = {"+": lambda a, b: a + b, "-": lambda a, b: a - b, "*": lambda a, b: a * b}
NUMBER = re.compile(r"-?\d+")
PLAIN = {"sampling.max_tokens": 6, "learning.lr": 5e-5, "eval.every": 10, "tasks.chat": False, "checkpoints.every": 0}


def sums(count: int, operations: str = "+-", low: int = 0, high: int = 20, seed: int = 7) -> list[dict[str, Any]]:
    """Different questions in random order, as `question`, `answer` and the operands."""
    everything = [(a, o, b) for a in range(low, high + 1) for o in operations for b in range(low, high + 1)]
    random.Random(seed).shuffle(everything)
    return [
        {"question": f"Calculate: {a} {o} {b} = ", "answer": str(RESULT[o](a, b)), "a": a, "b": b, "operation": o}
        for a, o, b in everything[:count]
    ]


def columns(rows: list[dict[str, Any]], **renamed: str) -> Any:
    """Rows as a dataset for TRL: `prompt` and `answer`."""
    from datasets import Dataset

    return Dataset.from_list([{"prompt": row["question"], "answer": row["answer"]} | {
        new: row[old] for new, old in renamed.items()} for row in rows])  # fmt: skip


def exact_match(completions: list[str], answer: list[str], **_: Any) -> list[float]:
    """1 for the right answer alone."""
    return [float(said.strip() == right) for said, right in zip(completions, answer, strict=True)]


def number_said(text: str) -> int | None:
    """The first whole number of a text."""
    found = NUMBER.search(text)
    return int(found[0]) if found else None


def near(completions: list[str], answer: list[str], **_: Any) -> list[float]:
    """1 for the right answer, less the further off, 0 without a number."""
    said = [number_said(text) for text in completions]
    return [0.0 if n is None else 1 / (1 + abs(n - int(right))) for n, right in zip(said, answer, strict=True)]


def settings(job: Job, **changed: Any) -> Any:
    """GRPOConfig for a CPU, as short as these runs are."""
    from trl import GRPOConfig

    given: dict[str, Any] = {
        "output_dir": str(job.folder / "out"), "per_device_train_batch_size": 64, "num_generations": 8,
        "max_completion_length": 6, "max_steps": 20, "learning_rate": 5e-5, "lr_scheduler_type": "constant",
        "temperature": 1.0, "use_cpu": True, "bf16": False, "gradient_checkpointing": False, "save_strategy": "no",
        "report_to": [], "logging_steps": 1, "disable_tqdm": True, "seed": job.seed,
    }  # fmt: skip
    return GRPOConfig(**given | changed)


def load(job: Job, **how: Any) -> Any:
    """The model that starts."""
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(job.model, **how)


def grpo(job: Job, rewards: Any = exact_match, data: Any = None, kind: Any = None, given: Any = None,
         model: Any = None, **changed: Any) -> Any:  # fmt: skip
    """A trainer with these settings; `given` are further arguments of the trainer."""
    from transformers import AutoTokenizer
    from trl import GRPOTrainer

    tokenizer = AutoTokenizer.from_pretrained(job.model, padding_side="left")
    return (kind or GRPOTrainer)(
        model=load(job) if model is None else model, reward_funcs=rewards, args=settings(job, **changed),
        train_dataset=columns(sums(600)) if data is None else data,
        **{"processing_class": tokenizer} | (given or {}),
    )  # fmt: skip
