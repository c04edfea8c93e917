"""Probes of the user's own reward functions: what a right answer earns, and whether the order of rows matters.

A function is called with fresh copies of the rows, with every random generator put back afterwards. Judges that are
models, asynchronous functions and slow ones are not called.
"""

import copy
import inspect
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from uptrend.bridge.trl.batch import TrlBatch
from uptrend.bridge.trl.findings_log import FindingsLog
from uptrend.bridge.trl.guard import same_randomness
from uptrend.bridge.trl.learner_probe import answer_logprobs, quiet
from uptrend.bridge.trl.rollouts import RewardRange
from uptrend.records import Confidence, Evidence, Severity
from uptrend.stats.trend import rank_correlation

TASKS = 4
"""Tasks whose gold answers are scored."""
PATIENCE = 2.0
"""Seconds that all extra calls together may take."""
SLOW = 1.0
"""Seconds that scoring a generation may take for the functions to be called again."""
ROWS = 48
"""Rows of the dataset whose answers the model is probed with."""
DISTINCT = 6
"""Different answers that are needed: with fewer, another prompt's answer is often right."""
TEXTS = 500
"""Rows of the dataset whose texts are compared."""
COLUMNS = (
    "answer", "answers", "gold", "gold_answer", "ground_truth", "solution", "target", "final_answer", "expected",
    "expected_answer", "correct_answer", "reference_answer", "label", "labels", "result",
)  # fmt: skip
"""Names of columns that hold right answers, likeliest first."""
RENDERINGS = (
    "{}", " {}", "#### {}", "\\boxed{{{}}}", "$\\boxed{{{}}}$", "<answer>{}</answer>", "<answer>\n{}\n</answer>",
    "<think>\n...\n</think>\n<answer>\n{}\n</answer>", "<think>\n...\n</think>\n\\boxed{{{}}}",
    "<reasoning>\n...\n</reasoning>\n<answer>\n{}\n</answer>\n", "Answer: {}", "The answer is {}.",
    "... Therefore, the final answer is {}", '{{"answer": "{}"}}', "```\n{}\n```",
)  # fmt: skip
"""Forms in which reward functions in the wild want an answer."""
NUMBER = re.compile(r"-?\d+(?:\.\d+)?")

Floats = NDArray[np.float64]
Suspects = tuple[str, list[str]]
"""Answer column, and the reward functions that read it and accepted no gold answer: the run's own rewards decide."""


# Gold answers: where a dataset keeps them


def gold_column(example: Mapping[str, Any]) -> str | None:
    """Return the column of a dataset's row that holds the right answer, by its name."""
    lowered = {key.lower(): key for key in example}
    return next((lowered[name] for name in COLUMNS if name in lowered and answer_of(example[lowered[name]])), None)


def answer_of(value: Any) -> str:
    """Return a gold answer as text; empty where the value holds none."""
    if isinstance(value, str | bool | int | float):
        return str(value)
    if isinstance(value, list | tuple) and value:
        return answer_of(value[0])
    if isinstance(value, Mapping):
        return next((answer_of(value[key]) for key in COLUMNS if key in value), "")
    return ""


def answers_of(examples: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the right answers of a dataset's rows; empty where they hold none."""
    column = gold_column(examples[0])
    return [core_of(answer_of(example.get(column))) if column else "" for example in examples]


def core_of(answer: str) -> str:
    """Return the answer itself, out of a worked solution: behind ####, in a box or in tags."""
    if "####" in answer:
        return answer.rsplit("####", 1)[1].strip()
    boxed = re.findall(r"\\boxed\{([^{}]*)\}", answer)
    found = boxed or re.findall(r"<answer>(.*?)</answer>", answer, re.DOTALL)
    return found[-1].strip() if found else answer.strip()


def corrupted(core: str, others: Sequence[str]) -> str:
    """Return a wrong answer of the same kind."""
    if re.fullmatch(r"-?\d[\d,]*", core):
        return str(int(core.replace(",", "")) + 1)
    if re.fullmatch(r"-?\d+\.\d+", core):
        return str(float(core) + 1)
    other = next((other for other in others if other.strip().lower() != core.strip().lower()), "")
    return other or core[::-1] + "x"


def plain_text(prompt: Any) -> str:
    """Return what a prompt asks: its last message."""
    return prompt if isinstance(prompt, str) else str(prompt[-1].get("content") or "")


# Calling reward functions again


@dataclass(frozen=True)
class RescoredRow:
    """One completion to score."""

    prompt: Any
    text: str
    example: dict[str, Any]


@dataclass(frozen=True)
class Gold:
    """Rewards of right and wrong answers."""

    judge: int | None = None  # function that tells them apart, if any does
    right: float = np.nan  # what it gives a right one
    wrong: float = np.nan  # what it gives a wrong one
    rendering: str = ""  # form of the answer there


class Scorer:
    """Calls the user's reward functions again."""

    def __init__(self, trainer: Any, batch: TrlBatch, column: str) -> None:
        self._trainer, self.batch, self.column = trainer, batch, column
        self._seconds = 0.0
        self.functions = [i for i, f in enumerate(trainer.reward_funcs) if _is_plain(f)]

    @property
    def is_spent(self) -> bool:
        """True once the extra calls have taken all the time that they may."""
        return self._seconds > PATIENCE

    def names_column(self, function: int) -> bool:
        """Return True where a function's code names the answer's column."""
        called = self._trainer.reward_funcs[function]
        code = getattr(called, "__code__", None) or getattr(type(called).__call__, "__code__", None)
        return code is not None and self.column in (*code.co_varnames, *code.co_consts)

    def score(self, function: int, rows: Sequence[RescoredRow]) -> Floats:
        """Return what one function gives each of these rows."""
        conversational = not isinstance(rows[0].prompt, str)
        completions = [[{"role": "assistant", "content": r.text}] if conversational else r.text for r in rows]
        return self.call(function, [r.prompt for r in rows], completions, [r.example for r in rows])

    def call(
        self, function: int, prompts: Sequence[Any], completions: Sequence[Any], examples: Sequence[dict[str, Any]]
    ) -> Floats:
        """Make one call, with TRL's own arguments."""
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
        self._seconds += time.perf_counter() - began
        return np.array([np.nan if value is None else float(value) for value in given])

    def recorded(self, function: int) -> Floats:
        """Return what TRL recorded of one function."""
        rewards: Floats = self.batch.rewards[:, function].double().cpu().numpy()
        return rewards

    def tasks(self) -> list[tuple[Any, str, str, dict[str, Any]]]:
        """Return a few different tasks of the generation: prompt, right answer, wrong answer, row."""
        found: dict[str, tuple[Any, dict[str, Any]]] = {}
        for prompt, example in zip(self.batch.prompts, self.batch.examples, strict=True):
            if answer_of(example.get(self.column)):
                found.setdefault(str(prompt), (prompt, example))
        rows = list(found.values())[:TASKS]
        cores = [core_of(answer_of(example[self.column])) for _, example in rows]
        both = zip(rows, cores, strict=True)
        return [(prompt, core, corrupted(core, cores), example) for (prompt, example), core in both]


def _is_plain(function: Any) -> bool:
    asynchronous = any(inspect.iscoroutinefunction(f) for f in (function, type(function).__call__))
    return callable(function) and not isinstance(function, torch.nn.Module) and not asynchronous


def gold_of(scorer: Scorer) -> Gold:
    """Find the reward function and the form in which it tells right answers from wrong ones best."""
    tasks = scorer.tasks()
    best = Gold()
    for function in scorer.functions:
        right, wrong = (
            scorer.score(
                function,
                [RescoredRow(p, form.format(a[which]), row) for form in RENDERINGS for p, *a, row in tasks],
            ).reshape(len(RENDERINGS), -1)
            for which in (0, 1)
        )
        for form in np.flatnonzero((right > wrong).mean(1) >= 0.75):
            value = float(np.nanmean(right[form]))
            if best.judge is None or value > best.right:
                best = Gold(function, value, float(np.nanmean(wrong[form])), RENDERINGS[form])
    return best


def cut_of(scorer: Scorer) -> tuple[int, str] | None:
    """Return the function that cuts as many characters off a completion as the prompt has, and the answer's form.

    Behind a filler of the prompt's length a right answer is told from a wrong one; behind one that is shorter by
    the answer's own length, and without any, it is not. The border moves with the prompt, so it is no least length.
    """
    tasks = scorer.tasks()
    for function in scorer.functions:
        for form in RENDERINGS[:8]:
            rows: list[list[RescoredRow]] = [[], [], []]
            for prompt, right, wrong, example in tasks:
                length = len(plain_text(prompt))
                for text in (form.format(right), form.format(wrong)):
                    for kind, filler in enumerate((length, max(0, length - len(text)), 0)):
                        rows[kind].append(RescoredRow(prompt, "x" * filler + text, example))
            # Right and wrong answers take turns: every right one must earn more than the wrong one behind it.
            scores = [scorer.score(function, kind) for kind in rows]
            told = [bool((score[0::2] > score[1::2]).all()) for score in scores]
            if told == [True, False, False]:
                return function, form
    return None


def order_matters(scorer: Scorer, function: int, size: int) -> int | None:
    """Count the rows whose reward changes when groups change places; None where a second call differs by itself."""
    batch, recorded = scorer.batch, scorer.recorded(function)
    same = np.arange(batch.size)
    places = same.reshape(-1, size)[::-1].reshape(-1)
    columns = (batch.prompts, batch.completions, batch.examples)
    again, turned = (
        scorer.call(function, *([column[i] for i in order] for column in columns)) for order in (same, places)
    )
    if not np.allclose(again, recorded, atol=1e-5, equal_nan=True):
        return None
    return int((~np.isclose(turned, recorded[places], atol=1e-5, equal_nan=True)).sum())


# Findings


def probe_rewards(
    trainer: Any, batch: TrlBatch, scoring: float, scale: RewardRange, log: FindingsLog
) -> Suspects | None:
    """Re-score gold answers, corrupted ones and the generation itself through the user's reward functions."""
    column = gold_column(batch.examples[0])
    reason = ""
    if getattr(trainer, "environments", None):
        reason = "environments own the rewards"
    elif column is None:
        reason = "the dataset has no column that looks like an answer"
    elif scoring > SLOW:
        reason = f"the reward functions take {scoring:.1f} s per generation; above {SLOW:g} s they are not called again"
    if reason or column is None:
        for id in ("reward.gold-rejected", "reward.misaligned"):
            log.cannot_tell(id, reason)
        return None
    scorer = Scorer(trainer, batch, column)
    with same_randomness():
        cut = cut_of(scorer)
        if cut is not None:
            _report_cut(log, scale.names[cut[0]], cut[1], batch.step)
            return None
        gold = Gold() if scorer.is_spent else gold_of(scorer)
        _judge_order(log, scorer, trainer.num_generations, scale)
        if gold.judge is None:
            named = [scale.names[f] for f in scorer.functions if scorer.names_column(f)]
            return (column, named) if named and not scorer.is_spent else None
        form = gold.rendering.format("GOLD")
        log.rule_out(
            "reward.gold-rejected", f"written as {form!r}, gold answers earn {gold.right:g}, wrong ones {gold.wrong:g}"
        )
        scale.judge, scale.right = gold.judge, gold.right
        bounds = np.full((2, len(scale.names)), np.nan)
        bounds[:, gold.judge] = gold.right, gold.wrong
        scale.widen(bounds)
        _judge_alignment(trainer, log, scorer, gold.judge)
    return None


def _report_cut(log: FindingsLog, name: str, form: str, step: int) -> None:
    log.say(
        "reward.gold-rejected", Severity.CRITICAL, Confidence.HIGH,
        f"The reward function {name} cuts the prompt's length off each completion, but TRL's completions do not "
        "hold the prompt: right answers are cut away before they are looked at.",
        [Evidence(f"A gold answer written as {form.format('GOLD')!r} earns no more than a wrong one.", step=step),
         Evidence("Behind a filler as long as the prompt it does; behind one that is shorter by the answer's own "
                  "length it does not. The border moves with each task's prompt.")],
    )  # fmt: skip


def _judge_order(log: FindingsLog, scorer: Scorer, size: int, scale: RewardRange) -> None:
    """Check that moving whole groups moves their rewards with them."""
    count, step = scorer.batch.size, scorer.batch.step
    if count % size or count // size < 2:
        return
    for function in scorer.functions:
        if scorer.is_spent:
            return
        changed = order_matters(scorer, function, size)
        if changed is None:
            log.say(
                "reward.nondeterministic", Severity.NOTE, Confidence.MEDIUM,
                f"The reward function {scale.names[function]} gave other scores to the same rollouts when asked again.",
                [Evidence(f"{count} rollouts of step {step}.", step=step)],
            )  # fmt: skip
        elif changed:
            log.say(
                "reward.misaligned", Severity.CRITICAL, Confidence.HIGH,
                f"The reward function {scale.names[function]} scores completions against other prompts' answers: "
                "rewards change when groups change places.",
                [Evidence(f"With the groups in reverse order, {changed} of {count} rollouts got another reward.",
                          float(changed), step=step)],
            )  # fmt: skip


# Answers and prompts that do not belong together. Three things would show that they do: completions are right more
# often by their own answers than by those of other prompts; the model finds an answer likelier behind its own prompt
# than behind another; numbers or words of an answer have something to do with those of its prompt. Each alone may fail
# on a healthy run, so the column is called misaligned only where all three fail.


@dataclass(frozen=True)
class Pair:
    """Mean difference of pairs, and its standard error."""

    mean: float
    error: float
    count: int

    @classmethod
    def of(cls, values: Floats) -> "Pair":
        """Sum up differences; below two, nothing is known."""
        if len(values) < 2:
            return cls(0.0, float("inf"), len(values))
        return cls(float(values.mean()), float(values.std(ddof=1) / len(values) ** 0.5), len(values))

    @property
    def shows(self) -> bool:
        """True where it is above 0 by more than noise."""
        return bool(self.mean > 2.0 * self.error + 1e-9)

    @property
    def excludes(self) -> bool:
        """True where an effect of half a deviation, small for a model that knows anything, can be excluded."""
        return bool(self.mean + 2.0 * self.error < 0.5 * self.error * self.count**0.5)


def _judge_alignment(trainer: Any, log: FindingsLog, scorer: Scorer, judge: int) -> None:
    if scorer.is_spent or not hasattr(trainer.train_dataset, "__getitem__"):
        return
    own = own_against_others(scorer, judge, trainer.num_generations)
    if own is not None and own.shows:
        return
    prompts, answers = rows_of(trainer.train_dataset, scorer.column, TEXTS)
    if len(answers) < 2 * DISTINCT or len(set(answers)) < DISTINCT:
        return
    if texts_agree([plain_text(prompt) for prompt in prompts], answers):
        return
    every = max(1, len(answers) // ROWS)
    known = likelier_behind_its_own(trainer, prompts[::every][:ROWS], answers[::every][:ROWS])
    if not known.excludes:
        return
    log.say(
        "reward.misaligned", Severity.CRITICAL, Confidence.MEDIUM,
        f"The answers in the column {scorer.column!r} do not belong to their prompts: nothing ties the two together.",
        [Evidence(f"The model finds answers {known.mean:+.2f} ± {known.error:.2f} nats likelier behind their own "
                  f"prompts than behind others' ({known.count} rows); with the right ones it is well above 0.",
                  known.mean, step=scorer.batch.step),
         Evidence(f"Numbers, words and lengths of {len(answers)} prompts say nothing about their answers."),
         *([] if own is None else
           [Evidence(f"Completions earn {own.mean:+.3f} ± {own.error:.3f} more by their own answers than by "
                     "other prompts'.", own.mean, step=scorer.batch.step)])],
    )  # fmt: skip


def own_against_others(scorer: Scorer, judge: int, size: int) -> Pair | None:
    """Compare what completions earn by their own answers and by another group's, over groups."""
    batch, column = scorer.batch, scorer.column
    answers = [str(example.get(column)) for example in batch.examples]
    if len(set(answers)) < 2 or batch.size < 2 * size:
        return None
    own = scorer.recorded(judge)
    gains = []
    for shift in range(1, min(4, batch.size // size)):
        moved = np.roll(np.arange(batch.size), -shift * size)
        examples = [{**e, column: batch.examples[i][column]} for e, i in zip(batch.examples, moved, strict=True)]
        others = scorer.call(judge, batch.prompts, batch.completions, examples)
        differs = np.array([answers[i] != answers[j] for i, j in enumerate(moved)])
        gains.append(np.where(differs, own - others, np.nan))
    known = ~np.isnan(gains)  # a reward may be None, and another group's answer the same
    by_row = np.where(known.any(0), np.nansum(gains, axis=0) / np.maximum(1, known.sum(0)), np.nan)
    by_group = by_row.reshape(-1, size)
    return Pair.of(np.array([np.nanmean(group) for group in by_group if not np.isnan(group).all()]))


def likelier_behind_its_own(trainer: Any, prompts: Sequence[Any], answers: Sequence[str]) -> Pair:
    """Compare the model's log-probability of answers behind their own prompts and behind others', in nats."""
    device, count = trainer.accelerator.device, len(answers)
    ids = [torch.tensor(i).to(device) for i in trainer._tokenize_prompts(list(prompts))[0]]
    said = [torch.tensor(trainer._tokenizer(a, add_special_tokens=False)["input_ids"]).to(device) for a in answers]
    gains = []
    with quiet(trainer):
        for i, answer in enumerate(said):
            next_ones = ((i + step) % count for step in range(1, count))
            other = next((j for j in next_ones if answers[j] != answers[i]), None)
            if other is not None and len(answer):
                own, theirs = (answer_logprobs(trainer, ids[k], answer).sum() for k in (i, other))
                gains.append(own - theirs)
    return Pair.of(np.array(gains))


def texts_agree(prompts: Sequence[str], answers: Sequence[str]) -> bool:
    """Return True where answers have anything to do with their prompts: in numbers, in words or in length."""
    numbers = [NUMBER.findall(answer.replace(",", "")) for answer in answers]
    have = [i for i, found in enumerate(numbers) if found and NUMBER.search(prompts[i])]
    if len(have) >= 16:
        values = np.array([float(numbers[i][-1]) for i in have])
        for summary in (max, sum, len, min):
            found = [summary([abs(float(n)) for n in NUMBER.findall(prompts[i])]) for i in have]
            if abs(rank_correlation(np.array(found, float), values)) > 3.0 / len(have) ** 0.5:
                return True
    own, others = (
        np.array([answer.lower() in prompt.lower() for prompt, answer in zip(prompts, given, strict=True)], float)
        for given in (answers, np.roll(answers, 1))
    )
    if Pair.of(own - others).shows:
        return True
    lengths = rank_correlation(*(np.array([len(t) for t in texts], float) for texts in (prompts, answers)))
    return bool(abs(lengths) > 3.0 / max(1, len(prompts)) ** 0.5)


def rows_of(dataset: Any, column: str, most: int) -> tuple[list[Any], list[str]]:
    """Return prompts and answers of evenly spread rows of a dataset, each prompt once."""
    count = len(dataset)
    found: dict[str, tuple[Any, str]] = {}
    for place in sorted(set(np.linspace(0, count - 1, min(most, count)).astype(int).tolist())):
        row = dataset[place]
        answer = core_of(answer_of(row.get(column)))
        if answer:
            found.setdefault(str(row["prompt"]), (row["prompt"], answer))
    return [prompt for prompt, _ in found.values()], [answer for _, answer in found.values()]
