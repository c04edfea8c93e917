"""Faults in rewards, datasets and settings around TRL's trainer."""

import math
from typing import Any

from benchmarks.faults.blind.a.common import exact, number_in, sums, trl_trainer
from benchmarks.faults.blind.case import Job, fault


@fault("reward.gold-rejected", "reward.strict-parser")
def number_against_text(job: Job) -> None:
    """The answer column holds integers and the completion is text, so they are never equal."""

    def same(completions: list[str], answer: list[Any], **_: Any) -> list[float]:
        made = (str(right) if not job.planted else right for right in answer)
        return [float(said.strip() == right) for said, right in zip(completions, made, strict=True)]

    rows = [{**row, "answer": int(row["answer"])} for row in sums()]
    job.watch(trl_trainer(job, rows, same, max_steps=20))


@fault("reward.misaligned")
def answers_by_position(job: Job) -> None:
    """Answers are taken from the list in the order of the file, while the trainer shuffles and repeats prompts."""
    rows = sums(ops="+")
    answers = [row["answer"] for row in rows]
    seen = 0

    def score(completions: list[str], answer: list[str], **_: Any) -> list[float]:
        nonlocal seen
        wanted = [answers[(seen + i // 8) % len(answers)] for i in range(len(completions))] if job.planted else answer
        seen += len(completions) // 8
        return [float(said.strip() == right) for said, right in zip(completions, wanted, strict=True)]

    job.watch(trl_trainer(job, rows, score))


@fault("reward.wrong-length", "reward.constant")
def batch_mean_for_everyone(job: Job) -> None:
    """The function returns the batch's accuracy, repeated for every completion."""

    def accuracy(completions: list[str], answer: list[str], **_: Any) -> list[float]:
        scores = exact([], completions, answer)
        return [sum(scores) / len(scores)] * len(scores) if job.planted else scores

    job.watch(trl_trainer(job, sums(), accuracy, max_steps=20))


@fault("reward.component-dead", "reward.strict-parser")
def closeness_is_never_read(job: Job) -> None:
    """The second reward looks for "Answer: 7", which no completion holds, and is always 0."""

    def closeness(completions: list[str], answer: list[str], **_: Any) -> list[float]:
        marker = "Answer:" if job.planted else ""
        found = [number_in(said.partition(marker)[2] if marker else said) for said in completions]
        return [
            0.0 if said is None else math.exp(-abs(said - int(right)) / 4)
            for said, right in zip(found, answer, strict=True)
        ]

    job.watch(trl_trainer(job, sums(ops="+-*"), [exact, closeness]))


@fault("advantage.sign")
def distance_as_reward(job: Job) -> None:
    """The distance from the answer, a cost, is returned as the reward."""

    def distance(completions: list[str], answer: list[str], **_: Any) -> list[float]:
        found = [number_in(said) for said in completions]
        off = [20.0 if said is None else min(20.0, abs(said - int(right))) for said, right in zip(found, answer)]
        return [cost / 20 if job.planted else -cost / 20 for cost in off]

    job.watch(trl_trainer(job, sums(), distance))


@fault("data.duplicates", "data.memorized")
def appended_once_too_often(job: Job) -> None:
    """The rows of one shard were appended thirty times: 360 rows hold a dozen questions."""
    rows = sums(12, ops="+-*", a=(2, 20), b=(2, 20)) * 30 if job.planted else sums(360, ops="+-*")
    job.watch(trl_trainer(job, rows, exact))


@fault("sampling.truncated-distribution")
def nucleus_of_the_chat_demo(job: Job) -> None:
    """Top-p and top-k were copied from a chat demo; the learner's probabilities know nothing of them."""
    sampling = {"top_p": 0.6, "top_k": 4} if job.planted else {}
    job.watch(trl_trainer(job, sums(), exact, **sampling))


@fault("sync.off-policy")
def many_passes_over_old_rollouts(job: Job) -> None:
    """Each batch of rollouts is used for sixteen updates at a high learning rate, to save sampling."""
    passes = 16 if job.planted else 1
    job.watch(trl_trainer(job, sums(), exact, learning_rate=1e-4, max_steps=48, num_iterations=passes))


@fault("optimizer.lr-large")
def rate_without_a_digit(job: Job) -> None:
    """The learning rate was typed as 5e-3 for 5e-5."""
    job.watch(trl_trainer(job, sums(), exact, learning_rate=5e-3 if job.planted else 5e-5))


@fault("kl.sign")
def penalty_with_a_minus(job: Job) -> None:
    """The penalty was thought of as part of the reward and given with a minus."""
    job.watch(trl_trainer(job, sums(), exact, beta=-0.3 if job.planted else 0.03))


@fault("sampling.no-stop")
def another_end_token(job: Job) -> None:
    """The tokenizer was told that a turn ends with a token the model never says after an answer."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer, model = AutoTokenizer.from_pretrained(job.model), AutoModelForCausalLM.from_pretrained(job.model)
    if job.planted:
        tokenizer.eos_token = "<turn>"
        model.generation_config.eos_token_id = tokenizer.eos_token_id
    job.watch(trl_trainer(
        job, sums(), exact, model=model, with_={"processing_class": tokenizer}, max_completion_length=12,
    ))  # fmt: skip


@fault("precision.update-underflow")
def weights_in_bf16(job: Job) -> None:
    """The model was loaded in bf16 and trained at 1e-5."""
    import torch
    from transformers import AutoModelForCausalLM

    dtype = torch.bfloat16 if job.planted else torch.float32
    model = AutoModelForCausalLM.from_pretrained(job.model, dtype=dtype)
    job.watch(trl_trainer(job, sums(), exact, model=model, learning_rate=1e-5, max_steps=50))


@fault("optimizer.schedule")
def warmup_of_a_long_run(job: Job) -> None:
    """The warm-up of a run of twenty thousand steps was kept for one of thirty."""
    warmup = 1000 if job.planted else 3
    job.watch(trl_trainer(job, sums(), exact, lr_scheduler_type="constant_with_warmup", warmup_steps=warmup))
