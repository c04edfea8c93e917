"""TRL trainers on small sums, healthy or with one fault, as a user would write them."""

import random
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import GRPOConfig, GRPOTrainer

Reward = Callable[..., list[float]]
GROUPS, SIZE = 4, 4


def text_of(said: Any) -> str:
    """A prompt or completion as text, conversational or not."""
    return said if isinstance(said, str) else str(said[-1]["content"])


def right(completions: list[Any], answer: list[str], **_: Any) -> list[float]:
    """1 where the first number is the answer."""
    found = [re.search(r"-?\d+", text_of(completion)) for completion in completions]
    return [
        float(bool(number) and number.group() == gold)
        for number, gold in zip(found, answer, strict=True)
    ]


def sums(chat: bool, count: int = 200, most: int = 15) -> list[dict[str, Any]]:
    """Rows of a dataset: a sum, and its answer."""
    draw = random.Random(0)
    rows: dict[str, dict[str, Any]] = {}
    while len(rows) < count:
        a, b = draw.randint(0, most), draw.randint(0, most)
        ask = (
            f"What is {a} + {b}? Answer with the number only."
            if chat
            else f"Calculate: {a} + {b} = "
        )
        rows[ask] = {
            "prompt": [{"role": "user", "content": ask}] if chat else ask,
            "answer": str(a + b),
        }
    return list(rows.values())


def make_trainer(
    model: str | Path,
    folder: Path,
    *,
    reward: Reward | list[Reward] = right,
    rows: list[dict[str, Any]] | None = None,
    steps: int = 3,
    lr: float = 1e-4,
    dtype: torch.dtype = torch.float32,
    trainer: type[GRPOTrainer] = GRPOTrainer,
    held_out: int = 0,
    **options: Any,
) -> GRPOTrainer:
    """A trainer on the CPU with a model from a folder."""
    tokenizer = AutoTokenizer.from_pretrained(model)
    chat = Path(model).name != "tiny"
    settings: dict[str, Any] = {
        "output_dir": str(folder), "per_device_train_batch_size": GROUPS * SIZE, "num_generations": SIZE,
        "max_completion_length": 8, "learning_rate": lr, "max_steps": steps, "lr_scheduler_type": "constant",
        "report_to": [], "use_cpu": True, "bf16": False, "save_strategy": "no", "logging_steps": 1,
        "disable_tqdm": True, "gradient_checkpointing": False, "seed": 3,
    }  # fmt: skip
    data = Dataset.from_list(rows or sums(chat))
    return trainer(
        model=AutoModelForCausalLM.from_pretrained(model, dtype=dtype),
        reward_funcs=reward,
        args=GRPOConfig(**{**settings, **options}),
        train_dataset=data,
        eval_dataset=data.select(range(held_out)) if held_out else None,
        processing_class=tokenizer,
    )
