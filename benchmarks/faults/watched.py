"""TRL runs that are watched: a handful of faults as a user's own script would have them, and
healthy ones.

Run with `python -m benchmarks.faults watched --to DIR`; needs TRL. The trainers are those of the
bridge's tests.
"""

import json
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from tests.bridge_trl.small_sums import SIZE, make_trainer, right, sums, text_of
from trl import GRPOTrainer

from uptrend.bridge.trl import watch
from uptrend.policy.known import find_model


@dataclass(frozen=True)
class Watched:
    """One run."""

    name: str
    """A word for it."""
    fault: str | None = None
    """What is planted; None where it is healthy."""
    options: dict[str, Any] = field(default_factory=dict)
    """What `make_trainer` is given."""
    alter: Callable[[Any], None] = lambda _: None
    """Changes the trainer once it is made."""


def _cuts(prompts: list[Any], completions: list[Any], answer: list[str], **_: Any) -> list[float]:
    return right(
        [text_of(c)[len(text_of(p)) :] for p, c in zip(prompts, completions, strict=True)], answer
    )


def _misplaced(completions: list[Any], answer: list[str], **_: Any) -> list[float]:
    return right(completions, [answer[i // SIZE] for i in range(len(completions))])


def _by_prompt(prompts: list[str], **_: Any) -> list[float]:
    return [float(len(prompt) % 2) for prompt in prompts]


def _chancy(completions: list[Any], answer: list[str], **_: Any) -> list[float]:
    return [value if random.random() > 0.2 else 1 - value for value in right(completions, answer)]


def _constant(completions: list[Any], **_: Any) -> list[float]:
    return [0.0] * len(completions)


def _shuffled() -> list[dict[str, Any]]:
    rows = sums(chat=False)
    answers = [row["answer"] for row in rows]
    random.Random(1).shuffle(answers)
    return [{**row, "answer": answer} for row, answer in zip(rows, answers, strict=True)]


class Blind(GRPOTrainer):
    """The learner's attention leaves the prompt out."""

    def _get_per_token_logps_and_entropies(
        self, model: Any, ids: Any, mask: Any, keep: int, **rest: Any
    ) -> Any:
        mask = mask.clone()
        mask[:, :-keep] = 0
        return super()._get_per_token_logps_and_entropies(model, ids, mask, keep, **rest)


class Casting(GRPOTrainer):
    """Sampling casts the weights that train, as continuous batching does."""

    def _generate_single_turn(self, *args: Any, **kwargs: Any) -> Any:
        self.model.to(torch.bfloat16)
        return super()._generate_single_turn(*args, **kwargs)


class Mixing(GRPOTrainer):
    """Groups are cut one row too late."""

    def _generate_and_score_completions(self, inputs: Any) -> Any:
        return super()._generate_and_score_completions([*inputs[1:], inputs[0]])


class Unending(GRPOTrainer):
    """The last token of every completion is left out of the loss."""

    def _generate_and_score_completions(self, inputs: Any) -> Any:
        out = super()._generate_and_score_completions(inputs)
        last = out["completion_mask"].sum(1) - 1
        out["completion_mask"][torch.arange(len(last)), last] = 0
        return out


class Negated(GRPOTrainer):
    """Advantages have the wrong sign."""

    def _generate_and_score_completions(self, inputs: Any) -> Any:
        out = super()._generate_and_score_completions(inputs)
        out["advantages"] = -out["advantages"]
        return out


def _drop(trainer: Any) -> None:
    for layer in trainer.model.model.layers:
        layer.self_attn.attention_dropout = 0.3
    trainer.model.config.attention_dropout = 0.3


def _keep_likely(trainer: Any) -> None:
    # TRL passes no min-p unless it is asked for one, and `generate()` fills in the model's own.
    trainer.model.generation_config.min_p = 0.5


RUNS = (
    Watched("slice", "reward.gold-rejected", {"reward": _cuts}),
    Watched("index", "reward.misaligned", {"reward": _misplaced}),
    Watched("shuffled answers", "reward.misaligned", {"rows": _shuffled()}),
    Watched("noisy", "reward.nondeterministic", {"reward": _chancy}),
    Watched("constant", "reward.constant", {"reward": _constant, "steps": 6}),
    Watched("bf16", "precision.update-underflow", {"dtype": torch.bfloat16, "lr": 5e-6, "bf16": True}),
    Watched("cast", "precision.update-underflow", {"trainer": Casting, "lr": 5e-6}),
    Watched("batch scale", "advantage.metric-blind", {"reward": _by_prompt, "scale_rewards": "batch"}),
    Watched(
        "batch scale, dapo", "advantage.metric-blind", {"scale_rewards": "batch", "loss_type": "dapo", "steps": 20}
    ),
    Watched("blind", "mask.attention-blind", {"trainer": Blind}),
    Watched("mixed", "advantage.wrong-groups", {"trainer": Mixing}),
    Watched("negated", "advantage.sign", {"trainer": Negated}),
    Watched("stops", "mask.stop-untrained", {"trainer": Unending}),
    Watched("dropout", "policy.dropout-on", {}, _drop),
    Watched("min-p of the files", "sampling.hidden-settings", {}, _keep_likely),
    Watched("healthy"),
    Watched("healthy, kl", options={"beta": 0.04, "steps": 20}),
    Watched("healthy, dr_grpo", options={"loss_type": "dr_grpo", "scale_rewards": False, "steps": 20}),
    Watched("healthy, bf16 arithmetic", options={"bf16": True, "lr": 2e-5, "steps": 10}),
)  # fmt: skip


def watch_all(to: Path) -> None:
    """Train each, watched; what was found goes to watched.json."""
    folder = find_model("tiny")
    told = []
    for number, run in enumerate(RUNS):
        found = list(_found(run, folder, to / f"watched-{number}"))
        alarms = [(f["id"], _step(f)) for f in found if f["severity"] != "note"]
        told.append({"name": run.name, "fault": run.fault, "alarms": alarms})
        print(run.name, "|", run.fault, "|", alarms, flush=True)
    (to / "watched.json").write_text(json.dumps(told, indent=1))


def _found(run: Watched, folder: str, to: Path) -> Iterator[dict[str, Any]]:
    random.seed(0)
    trainer = make_trainer(folder, to, **{"steps": 3, **run.options})
    run.alter(trainer)
    path = watch(trainer).path
    trainer.train()
    file = path / "findings.json"
    yield from json.loads(file.read_text())["findings"] if file.exists() else ()


def _step(finding: dict[str, Any]) -> int | None:
    return next((e["step"] for e in finding["evidence"] if e["step"] is not None), None)
