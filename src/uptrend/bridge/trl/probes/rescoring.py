"""Questions to the user's own reward functions: what a right answer earns, and whether the order of rows matters.

A function is called with fresh copies of the rows, with every generator of random numbers put back afterwards.
Judges that are models, asynchronous functions and slow ones are not asked.
"""

import copy
import inspect
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from uptrend.bridge.trl.batch import TrlBatch
from uptrend.bridge.trl.probes.gold import RENDERINGS, answer_of, core_of, corrupted

TASKS = 4
"""Tasks whose gold answers are scored."""
PATIENCE = 2.0
"""Seconds that all extra calls together may take."""


@dataclass(frozen=True)
class RescoredRow:
    """One thing to score."""

    prompt: Any
    text: str
    example: dict[str, Any]


@dataclass(frozen=True)
class Gold:
    """What the reward functions give right and wrong answers."""

    judge: int | None
    """The function that tells them apart, if any does."""
    right: float
    """What it gives a right one."""
    wrong: float
    """What it gives a wrong one."""
    rendering: str
    """How the answer was written there."""


class Scorer:
    """Calls the user's reward functions again."""

    def __init__(self, trainer: Any, batch: TrlBatch, column: str) -> None:
        self._trainer, self.batch, self.column = trainer, batch, column
        self.seconds = 0.0
        self.functions = [i for i, f in enumerate(trainer.reward_funcs) if _is_plain(f)]

    @property
    def is_spent(self) -> bool:
        """Whether the extra calls have taken all the time that they may."""
        return self.seconds > PATIENCE

    def names_column(self, function: int) -> bool:
        """Whether a function's code speaks of the answer's column."""
        called = self._trainer.reward_funcs[function]
        code = getattr(called, "__code__", None) or getattr(type(called).__call__, "__code__", None)
        return code is not None and self.column in (*code.co_varnames, *code.co_consts)

    def score(self, function: int, rows: Sequence[RescoredRow]) -> NDArray[np.float64]:
        """What one function gives each of these rows."""
        conversational = not isinstance(rows[0].prompt, str)
        completions = [[{"role": "assistant", "content": r.text}] if conversational else r.text for r in rows]
        return self.call(function, [r.prompt for r in rows], completions, [r.example for r in rows])

    def call(
        self, function: int, prompts: Sequence[Any], completions: Sequence[Any], examples: Sequence[dict[str, Any]]
    ) -> NDArray[np.float64]:
        """One call, with TRL's own arguments."""
        trainer, began = self._trainer, time.perf_counter()
        texts = [c if isinstance(c, str) else str(c[-1].get("content") or "") for c in completions]
        keys = [key for key in examples[0] if key not in ("prompt", "completion", "completion_ids")]
        given = trainer.reward_funcs[function](
            prompts=copy.deepcopy(list(prompts)),
            completions=copy.deepcopy(list(completions)),
            completion_ids=trainer._tokenizer(texts, add_special_tokens=False)["input_ids"],
            **{key: copy.deepcopy([example[key] for example in examples]) for key in keys},
            trainer_state=trainer.state,
            log_extra=lambda *_: None,
            log_metric=lambda *_: None,
        )
        self.seconds += time.perf_counter() - began
        return np.array([np.nan if value is None else float(value) for value in given])


def tasks_of(batch: TrlBatch, column: str) -> list[tuple[Any, str, str, dict[str, Any]]]:
    """A few different tasks of a generation: prompt, right answer, wrong answer, row."""
    found: dict[str, tuple[Any, dict[str, Any]]] = {}
    for prompt, example in zip(batch.prompts, batch.examples, strict=True):
        if answer_of(example.get(column)):
            found.setdefault(str(prompt), (prompt, example))
    rows = list(found.values())[:TASKS]
    cores = [core_of(answer_of(example[column])) for _, example in rows]
    return [
        (prompt, core, corrupted(core, cores), example)
        for (prompt, example), core in zip(rows, cores, strict=True)
    ]  # fmt: skip


def gold_of(scorer: Scorer) -> Gold:
    """Whether any reward function tells right answers from wrong ones, in any way of writing them."""
    tasks = tasks_of(scorer.batch, scorer.column)
    best = Gold(None, np.nan, np.nan, "")
    for function in scorer.functions:
        right, wrong = (
            scorer.score(
                function,
                [RescoredRow(p, form.format(a[which]), row) for form in RENDERINGS for p, *a, row in tasks],
            ).reshape(len(RENDERINGS), -1)
            for which in (0, 1)
        )
        tells = (right > wrong).mean(1) >= 0.75
        for form in np.flatnonzero(tells):
            value = float(np.nanmean(right[form]))
            if best.judge is None or value > best.right:
                best = Gold(function, value, float(np.nanmean(wrong[form])), RENDERINGS[form])
    return best


def cut_of(scorer: Scorer) -> tuple[int, str] | None:
    """The function that cuts as many characters off a completion as the prompt has, and how the answer was written.

    Behind a filler of the prompt's length a right answer is told from a wrong one; behind one that is shorter by
    the answer's own length, and without any, it is not. The border moves with the prompt, so it is no least length.
    """
    tasks = tasks_of(scorer.batch, scorer.column)
    for function in scorer.functions:
        for form in RENDERINGS[:8]:
            rows = {0: [], 1: [], 2: []}  # type: dict[int, list[RescoredRow]]
            for prompt, right, wrong, example in tasks:
                length = len(prompt) if isinstance(prompt, str) else len(str(prompt[-1].get("content") or ""))
                for answer in (right, wrong):
                    text = form.format(answer)
                    fillers = (length, max(0, length - len(text)), 0)
                    for kind, filler in enumerate(fillers):
                        rows[kind].append(RescoredRow(prompt, "x" * filler + text, example))
            if any(len(row.text) > 2 * len(rows[0][i].text) for i, row in enumerate(rows[2])):
                continue
            told = [_tells(scorer.score(function, rows[kind])) for kind in (0, 1, 2)]
            if told[0] and not told[1] and not told[2]:
                return function, form
    return None


def _tells(scores: NDArray[np.float64]) -> bool:
    """Whether every right answer (even places) earned more than the wrong one beside it."""
    return bool((scores[0::2] > scores[1::2]).all())


def order_matters(scorer: Scorer, function: int, size: int) -> tuple[int, int] | None:
    """Rows whose reward changed when groups changed places, of how many; None where a second call differs by itself."""
    batch = scorer.batch
    recorded = batch.rewards[:, function].double().cpu().numpy()
    places = np.arange(batch.size).reshape(-1, size)[::-1].reshape(-1)
    same = np.arange(batch.size)
    again, turned = (
        scorer.call(
            function,
            [batch.prompts[i] for i in order],
            [batch.completions[i] for i in order],
            [batch.examples[i] for i in order],
        )
        for order in (same, places)
    )
    if not np.allclose(again, recorded, atol=1e-5, equal_nan=True):
        return None
    differ = ~np.isclose(turned, recorded[places], atol=1e-5, equal_nan=True)
    return int(differ.sum()), batch.size


def _is_plain(function: Any) -> bool:
    asynchronous = any(inspect.iscoroutinefunction(f) for f in (function, type(function).__call__))
    return callable(function) and not isinstance(function, torch.nn.Module) and not asynchronous
