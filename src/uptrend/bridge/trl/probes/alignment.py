"""Whether answers stand beside their own prompts: three ways in which they would have to show it.

The completions must be right more often by their own answers than by those of other prompts; where they are not,
the model must at least find an answer likelier behind its own prompt than behind another; and numbers or words of
an answer must have something to do with those of its prompt. Only where all three fail is the column called
misaligned. Each alone may fail on a healthy run.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from uptrend.bridge.trl.probes.gold import NUMBER, answer_of, core_of, number_in
from uptrend.bridge.trl.probes.learner import answer_logprobs, quiet
from uptrend.bridge.trl.probes.rescoring import Scorer
from uptrend.stats.trend import rank_correlation

LOOK = 48
"""Rows of the dataset whose answers the model is asked about."""
DISTINCT = 6
"""Different answers that are needed: with fewer, another prompt's answer is often right."""
TEXTS = 500
"""Rows of the dataset whose texts are compared."""


@dataclass(frozen=True)
class Pair:
    """A mean difference and its standard error."""

    mean: float
    error: float
    count: int

    @property
    def shows(self) -> bool:
        """Whether it is above 0 by more than noise."""
        return bool(self.mean > 2.0 * self.error + 1e-9)

    @property
    def excludes(self) -> bool:
        """Whether an effect of half a deviation, small for a model that knows anything, can be excluded."""
        return bool(self.mean + 2.0 * self.error < 0.5 * self.error * self.count**0.5)


def own_against_others(scorer: Scorer, judge: int, size: int) -> Pair | None:
    """How much more completions earn by their own answers than by another group's, over groups."""
    batch, column = scorer.batch, scorer.column
    answers = [str(example.get(column)) for example in batch.examples]
    if len(set(answers)) < 2 or batch.size < 2 * size:
        return None
    own = batch.rewards[:, judge].double().cpu().numpy()
    gains = []
    for shift in range(1, min(4, batch.size // size)):
        moved = np.roll(np.arange(batch.size), -shift * size)
        examples = [
            {**e, column: batch.examples[i][column]} for e, i in zip(batch.examples, moved, strict=True)
        ]  # fmt: skip
        others = scorer.call(judge, batch.prompts, batch.completions, examples)
        differs = np.array([answers[i] != answers[j] for i, j in enumerate(moved)])
        gains.append(np.where(differs, own - others, np.nan))
    by_group = np.nanmean(np.stack(gains), axis=0).reshape(-1, size)
    means = np.array([np.nanmean(group) for group in by_group if not np.isnan(group).all()])
    return _pair(means)


def likelier_behind_its_own(trainer: Any, prompts: Sequence[Any], answers: Sequence[str]) -> Pair:
    """How many nats likelier the model finds answers behind their own prompts than behind others'."""
    ids = [torch.tensor(i) for i in trainer._tokenize_prompts(list(prompts))[0]]
    said = [torch.tensor(trainer._tokenizer(a, add_special_tokens=False)["input_ids"]) for a in answers]
    device = trainer.accelerator.device
    gains = []
    with quiet(trainer):
        for i, answer in enumerate(said):
            other = next((j for j in _after(i, len(said)) if answers[j] != answers[i]), None)
            if other is None or not len(answer):
                continue
            own, theirs = (
                answer_logprobs(trainer, ids[k].to(device), answer.to(device)).sum() for k in (i, other)
            )  # fmt: skip
            gains.append(own - theirs)
    return _pair(np.array(gains))


def texts_agree(prompts: Sequence[str], answers: Sequence[str]) -> bool:
    """Whether answers have anything to do with their prompts: in their numbers, or in their words."""
    numbers = [number_in(answer) for answer in answers]
    have = [i for i, number in enumerate(numbers) if number is not None and NUMBER.search(prompts[i])]
    if len(have) >= 16:
        values = np.array([numbers[i] for i in have], float)
        for summary in (max, sum, len, min):
            found = [summary([abs(float(n)) for n in NUMBER.findall(prompts[i])]) for i in have]
            if abs(rank_correlation(np.array(found, float), values)) > 3.0 / len(have) ** 0.5:
                return True
    own = np.array([answer.lower() in prompt.lower() for prompt, answer in zip(prompts, answers, strict=True)])
    others = np.array(
        [answer.lower() in prompt.lower() for prompt, answer in zip(prompts, np.roll(answers, 1), strict=True)]
    )
    if _pair(own.astype(float) - others.astype(float)).shows:
        return True
    lengths = rank_correlation(*(np.array([len(t) for t in texts], float) for texts in (prompts, answers)))
    return bool(abs(lengths) > 3.0 / max(1, len(prompts)) ** 0.5)


def rows_of(dataset: Any, column: str, most: int) -> tuple[list[Any], list[str]]:
    """Prompts and answers of evenly spread rows of a dataset, each prompt once."""
    count = len(dataset)
    places = sorted(set(np.linspace(0, count - 1, min(most, count)).astype(int).tolist()))
    found: dict[str, tuple[Any, str]] = {}
    for place in places:
        row = dataset[place]
        answer = core_of(answer_of(row.get(column)))
        if answer:
            found.setdefault(str(row["prompt"]), (row["prompt"], answer))
    pairs = list(found.values())
    return [prompt for prompt, _ in pairs], [answer for _, answer in pairs]


def plain_text(prompt: Any) -> str:
    """What a prompt asks: its last message."""
    return prompt if isinstance(prompt, str) else str(prompt[-1].get("content") or "")


def _after(start: int, count: int) -> list[int]:
    return [(start + step) % count for step in range(1, count)]


def _pair(values: NDArray[np.float64]) -> Pair:
    if len(values) < 2:
        return Pair(0.0, float("inf"), len(values))
    return Pair(float(values.mean()), float(values.std(ddof=1) / len(values) ** 0.5), len(values))
