"""One of several processes that train together: python one_process.py MODEL FOLDER CASE

Its last lines say what TRL logged, for a comparison with what was recorded.
"""

import json
import os
import sys
from pathlib import Path
from typing import Any

import torch
from small_sums import SIZE, make_trainer
from trl import GRPOTrainer

from uptrend.bridge.trl import watch

RANK = int(os.environ.get("RANK", "0"))
# Rows of a process: a group and a half, so that one group lies on two processes.
ROWS = SIZE * 3 // 2


class Mixing(GRPOTrainer):
    """The second process cuts its groups one row too late."""

    def _generate_and_score_completions(self, inputs: Any) -> Any:
        if RANK == 1:
            inputs = [*inputs[1:], inputs[0]]
        return super()._generate_and_score_completions(inputs)


class FailsWhenAsked(GRPOTrainer):
    """In the second process, a probe can't compute log-probabilities."""

    def _get_per_token_logps_and_entropies(self, *args: Any, **kwargs: Any) -> Any:
        if RANK == 1 and not torch.is_grad_enabled():
            raise ZeroDivisionError("planted")
        return super()._get_per_token_logps_and_entropies(*args, **kwargs)


def main() -> None:
    model, folder, case = sys.argv[1:]
    torch.set_num_threads(1)
    options: dict[str, Any] = {"ddp_backend": "gloo"}
    if case == "zero-3":
        options["deepspeed"] = {
            "zero_optimization": {"stage": 3},
            "train_batch_size": "auto",
            "train_micro_batch_size_per_gpu": "auto",
            "gradient_accumulation_steps": "auto",
            "gradient_clipping": "auto",
            "zero_allow_untested_optimizer": True,
        }
    trainers = {"mixed": Mixing, "zero-3": FailsWhenAsked}
    trainer = make_trainer(
        model,
        Path(folder),
        steps=3,
        per_device_train_batch_size=ROWS,
        trainer=trainers.get(case, GRPOTrainer),
        **options,
    )
    if case != "first process only" or RANK == 0:
        watch(trainer)
    trainer.train()
    if RANK == 0:
        logged = [line for line in trainer.state.log_history if "reward" in line]
        (Path(folder) / "logged.json").write_text(json.dumps(logged))


if __name__ == "__main__":
    main()
