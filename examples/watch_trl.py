"""A GRPO run of TRL that Uptrend watches: one line, a run directory, and whatever is wrong said on
the way.

    python examples/watch_trl.py                  # healthy
    python examples/watch_trl.py --fault cut      # a reward that cuts the prompt off the completion
    uptrend doctor trl-out/uptrend                # the first one; a second is trl-out/uptrend-2

The model is `tiny`, a transformer of a million parameters that knows a little arithmetic: seconds
on a CPU. Give `--model FOLDER` for one of your own.
"""

import argparse
import random
import re
from typing import Any

import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import GRPOConfig, GRPOTrainer

from uptrend.bridge.trl import watch

FAULTS = ("none", "cut", "shuffled", "bf16", "batch", "blind")


def sums(shuffled: bool) -> Dataset:
    """Two hundred different sums with their answers."""
    draw = random.Random(0)
    asked = draw.sample([(a, b) for a in range(16) for b in range(16)], 200)
    answers = [str(a + b) for a, b in asked]
    if shuffled:
        draw.shuffle(answers)
    return Dataset.from_dict(
        {"prompt": [f"Calculate: {a} + {b} = " for a, b in asked], "answer": answers}
    )


def right(completions: list[str], answer: list[str], **_: Any) -> list[float]:
    """1 where the first number is the answer."""
    found = [re.search(r"-?\d+", completion) for completion in completions]
    return [
        float(number is not None and number.group() == gold)
        for number, gold in zip(found, answer, strict=True)
    ]


def cut(prompts: list[str], completions: list[str], answer: list[str], **_: Any) -> list[float]:
    """The same, but TRL's completions do not begin with the prompt."""
    shorter = [
        completion[len(prompt) :] for prompt, completion in zip(prompts, completions, strict=True)
    ]
    return right(shorter, answer)


class Blind(GRPOTrainer):
    """Builds the attention mask from the loss mask: the learner never sees the prompt."""

    def _get_per_token_logps_and_entropies(
        self, model: Any, input_ids: Any, attention_mask: Any, logits_to_keep: int, **rest: Any
    ) -> Any:
        attention_mask = attention_mask.clone()
        attention_mask[:, :-logits_to_keep] = 0
        return super()._get_per_token_logps_and_entropies(
            model, input_ids, attention_mask, logits_to_keep, **rest
        )


def tiny() -> str:
    """The folder of Uptrend's tiny model, which is inside the package."""
    from uptrend.policy.known import find_model

    return find_model("tiny")


def main() -> None:
    """Train a few steps, watched."""
    options = argparse.ArgumentParser()
    options.add_argument("--fault", choices=FAULTS, default="none")
    options.add_argument("--model", default="")
    options.add_argument("--steps", type=int, default=10)
    options.add_argument("--out", default="trl-out")
    given = options.parse_args()
    half = given.fault == "bf16"
    folder = given.model or tiny()
    trainer = (Blind if given.fault == "blind" else GRPOTrainer)(
        model=AutoModelForCausalLM.from_pretrained(
            folder, dtype=torch.bfloat16 if half else torch.float32
        ),
        processing_class=AutoTokenizer.from_pretrained(folder),
        reward_funcs=cut if given.fault == "cut" else right,
        train_dataset=sums(shuffled=given.fault == "shuffled"),
        args=GRPOConfig(
            output_dir=given.out,
            per_device_train_batch_size=64,
            num_generations=8,
            max_completion_length=8,
            max_steps=given.steps,
            learning_rate=5e-6 if half else 1e-4,
            lr_scheduler_type="constant",
            scale_rewards="batch" if given.fault == "batch" else "group",
            bf16=half,
            use_cpu=not torch.cuda.is_available(),
            gradient_checkpointing=False,
            logging_steps=1,
            save_strategy="no",
            report_to=[],
        ),
    )

    watching = watch(trainer)  # the one line

    trainer.train()
    print(f"\nThe run is in {watching.path}: uptrend doctor {watching.path}")


if __name__ == "__main__":
    main()
