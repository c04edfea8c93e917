"""Probes of the user's own reward functions: what a right answer earns, and whether the order of rows matters.

A function is called with fresh copies of the rows, with every random generator put back afterwards. Judges that are
models, asynchronous functions and slow ones are not called.
"""

import copy
import inspect
import re
import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from uptrend.bridge.trl.batch import TrlBatch, as_numpy, last_text
from uptrend.bridge.trl.findings_log import FindingsLog
from uptrend.bridge.trl.learner_probe import answer_logprobs, quiet, same_randomness
from uptrend.bridge.trl.rollouts import RewardRange
from uptrend.doctor.answers import CLASSES, name_class
from uptrend.doctor.checks.golds import is_positive, texts_agree
from uptrend.records import Basis, Evidence, Severity
from uptrend.stats.intervals import Spread, spread_of
from uptrend.tasks.rewards import RENDERINGS

TASKS = 4  # tasks whose gold answers are scored
PATIENCE = 2.0  # seconds that all extra calls together may take
SLOW = 1.0  # seconds that scoring a generation may take for the functions to be called again
ROWS = 48  # rows of the dataset whose answers the model is probed with
DISTINCT = 6  # different answers that are needed: with fewer, another prompt's answer is often right
TEXTS = 500  # rows of the dataset whose texts are compared
# Names of columns that hold right answers, likeliest first.
COLUMNS = (
    "answer", "answers", "gold", "gold_answer", "ground_truth", "solution", "target", "final_answer", "expected",
    "expected_answer", "correct_answer", "reference_answer", "label", "labels", "result",
)  # fmt: skip
Floats = NDArray[np.float64]
Row = tuple[Any, Any, dict[str, Any]]  # prompt, completion and row of the dataset, as TRL passes them
Gold = tuple[int, float, float, str]  # function that tells right from wrong, what it gives each, and the answers' form
# Answer column, and the reward functions that read it and accepted no gold answer: the run's own rewards decide.
Suspects = tuple[str, list[str]]


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


# Calling reward functions again


class Scorer:
    """Calls the user's reward functions again."""

    def __init__(self, trainer: Any, batch: TrlBatch, column: str) -> None:
        self._trainer, self.batch, self.column, self._seconds = trainer, batch, column, 0.0
        self.failures = list[str]()
        self.functions = [
            i for i, f in enumerate(trainer.reward_funcs)
            if callable(f) and not isinstance(f, torch.nn.Module)
            and not any(map(inspect.iscoroutinefunction, (f, type(f).__call__)))
        ]  # fmt: skip

    @property
    def is_spent(self) -> bool:
        """True once the extra calls have taken all the time that they may."""
        return self._seconds > PATIENCE

    def names_column(self, function: int) -> bool:
        """Return True where a function's code names the answer's column."""
        called = self._trainer.reward_funcs[function]
        code = getattr(called, "__code__", None) or getattr(type(called).__call__, "__code__", None)
        return code is not None and self.column in (*code.co_varnames, *code.co_consts)

    def call(self, function: int, rows: Sequence[Row]) -> Floats:
        """Return what one function gives each of these rows; NaN for those that it fails on, which are kept."""
        try:
            return self._call(function, rows)
        except Exception as error:  # the user's code may fail in any way
            if len(rows) == 1:
                self.failures.append(f"{error!r} on {last_text(rows[0][1])[-40:]!r}")
                return np.array([np.nan])
            return np.concatenate([self.call(function, [row]) for row in rows])

    def _call(self, function: int, rows: Sequence[Row]) -> Floats:
        """Give a function TRL's own arguments."""
        trainer, began = self._trainer, time.perf_counter()
        prompts, completions, examples = (copy.deepcopy(list(column)) for column in zip(*rows, strict=True))
        keys = [key for key in examples[0] if key not in ("prompt", "completion", "completion_ids")]
        given = trainer.reward_funcs[function](
            prompts=prompts,
            completions=completions,
            completion_ids=trainer._tokenizer(list(map(last_text, completions)), add_special_tokens=False)["input_ids"],
            **{key: [example[key] for example in examples] for key in keys},
            trainer_state=trainer.state,
            log_extra=lambda *_: None,
            log_metric=lambda *_: None,
        )
        self._seconds += time.perf_counter() - began
        return np.array([np.nan if value is None else float(value) for value in given])

    def recorded(self, function: int) -> Floats:
        """Return what TRL recorded of one function."""
        return as_numpy(self.batch.rewards)[:, function].astype(np.float64)

    def tasks(self, dataset: Any = None) -> list[tuple[Any, str, str, dict[str, Any]]]:
        """Return a few different tasks: prompt, right answer, wrong answer, row.

        They are the generation's, or a dataset's, of every class of answers that it has.
        """
        examples = list(self.batch.examples)
        if dataset is not None:
            drawn = [dataset[n] for n in sorted(set(np.linspace(0, len(dataset) - 1, TEXTS).astype(int).tolist()))]
            kinds = [
                [e for e in drawn if holds(core_of(answer_of(e.get(self.column))))][:8] for holds in CLASSES.values()
            ]
            examples = [example for kind in [*kinds, drawn[:8]] for example in kind]
        found = {str(e["prompt"]): e for e in reversed(examples) if answer_of(e.get(self.column))}
        rows = list(reversed(found.values()))[: TASKS if dataset is None else ROWS]
        cores = [core_of(answer_of(row[self.column])) for row in rows]
        return [(row["prompt"], core, corrupted(core, cores), row) for core, row in zip(cores, rows, strict=True)]


def _row(prompt: Any, text: str, example: dict[str, Any]) -> Row:
    """Return a text as TRL would pass it as the completion of this prompt."""
    return prompt, text if isinstance(prompt, str) else [{"role": "assistant", "content": text}], example


def gold_of(scorer: Scorer, sign: int = 1) -> Gold | None:
    """Find the reward function and the form in which it tells right answers best; with sign -1, pays them less."""
    best: Gold | None = None
    for function in scorer.functions:
        rows: tuple[list[Row], list[Row]] = ([], [])
        for form in RENDERINGS:
            for prompt, *answers, example in scorer.tasks():
                for side, answer in zip(rows, answers, strict=True):
                    side.append(_row(prompt, form.format(answer), example))
        right, wrong = (scorer.call(function, side).reshape(len(RENDERINGS), -1) for side in rows)
        for n in np.flatnonzero((sign * right > sign * wrong).mean(1) >= 0.75):
            value = float(np.nanmean(right[n]))
            if best is None or sign * value > sign * best[1]:
                best = function, value, float(np.nanmean(wrong[n])), RENDERINGS[n]
    return best


def cut_of(scorer: Scorer) -> tuple[int, str] | None:
    """Return the function that cuts as many characters off a completion as the prompt has, and the answer's form.

    Behind a filler of the prompt's length a right answer is told from a wrong one; behind one that is shorter by
    the answer's own length, and without any, it is not. The border moves with the prompt, so it is no least length.
    """
    for function in scorer.functions:
        for form in RENDERINGS[:8]:
            rows: list[list[Row]] = [[], [], []]
            for prompt, *answers, example in scorer.tasks():
                length = len(last_text(prompt))
                for text in map(form.format, answers):
                    for kind, filler in enumerate((length, max(0, length - len(text)), 0)):
                        rows[kind].append(_row(prompt, "x" * filler + text, example))
            # Right and wrong answers take turns: every right one must earn more than the wrong one behind it.
            scores = [scorer.call(function, kind) for kind in rows]
            if [bool((score[0::2] > score[1::2]).all()) for score in scores] == [True, False, False]:
                return function, form
    return None


# Findings


def probe_rewards(
    trainer: Any, batch: TrlBatch, scoring: float, scale: RewardRange, log: FindingsLog
) -> Suspects | None:
    """Re-score gold answers, corrupted ones and the generation itself through the user's reward functions."""
    column, reason = gold_column(batch.examples[0]), ""
    if getattr(trainer, "environments", None):
        reason = "environments own the rewards"
    elif column is None:
        reason = "the dataset has no column that looks like an answer"
    elif scoring > SLOW:
        reason = f"the reward functions take {scoring:.1f} s per generation; above {SLOW:g} s they are not called again"
    if reason or column is None:
        for id in ("reward.gold-rejected", "reward.misaligned"):
            log.event("not-probed", id=id, reason=reason)
        return None
    scorer = Scorer(trainer, batch, column)
    with same_randomness():
        cut = cut_of(scorer)
        if cut is not None:
            name, form = scale.names[cut[0]], cut[1].format("GOLD")
            summary = f"The reward function {name} cuts the prompt's length off each completion, but TRL's completions "
            summary += "do not hold the prompt: right answers are cut away before they are looked at."
            text = "Behind a filler as long as the prompt it does; behind one that is shorter by the answer's own "
            text += "length it does not. The border moves with each task's prompt."
            earned = Evidence(f"A gold answer written as {form!r} earns no more than a wrong one.", step=batch.step)
            log.say("reward.gold-rejected", Severity.CRITICAL, summary, [earned, Evidence(text)])
            return None
        gold = None if scorer.is_spent else gold_of(scorer)
        if failed := scorer.failures:
            summary = f"A reward function fails on some answers, which ends the training: {failed[0]}."
            log.say("reward.error-scored", Severity.WARNING, summary, [Evidence(f"So it did {len(failed)} times.")])
        _judge_order(log, scorer, trainer.num_generations, scale.names)
        flipped = gold_of(scorer, -1) if gold is None and not scorer.is_spent else None
        weight = scale.weights[(gold or flipped or (0,))[0]]
        if flipped or (gold and weight <= 0):
            judge, right, wrong, form = flipped or gold  # type: ignore[misc]
            summary = (
                f"Right answers earn less than wrong ones: {scale.names[judge]}, of weight {weight:g}, gives them "
            )
            text = f"Written as {form.format('GOLD')!r}, gold answers get {right:g} and wrong ones {wrong:g}."
            id = "advantage.sign" if weight else "reward.component-dead"
            log.say(
                id, Severity.CRITICAL, f"{summary}{right:g}, wrong ones {wrong:g}.", [Evidence(text, step=batch.step)]
            )
            return None
        if gold is None:
            named = [scale.names[f] for f in scorer.functions if scorer.names_column(f)]
            return (column, named) if named and not scorer.is_spent else None
        judge, right, wrong, form = gold
        told = f"written as {form.format('GOLD')!r}, gold answers earn {right:g}, wrong ones {wrong:g}"
        if not _judge_classes(trainer, log, scorer, gold, scale.names[judge]):
            log.event("acquitted", id="reward.gold-rejected", reason=told)
        scale.judge, scale.right = judge, right
        bounds = np.full((2, len(scale.names)), np.nan)
        bounds[:, judge] = right, wrong
        scale.widen(bounds)
        if not scorer.is_spent and hasattr(trainer.train_dataset, "__getitem__"):
            _judge_alignment(trainer, log, scorer, judge)
    return None


def _judge_classes(trainer: Any, log: FindingsLog, scorer: Scorer, gold: Gold, name: str) -> bool:
    """Score gold of every class in the dataset, and texts without an answer; return True where gold is low."""
    function, top, _, form = gold
    if scorer.is_spent or not hasattr(trainer.train_dataset, "__getitem__"):
        return False
    tasks = scorer.tasks(trainer.train_dataset)
    texts = ("", "@@ ??", " ".join(map(str, range(-20, 41))), " ".join(["therefore"] * 200))
    right, wrong, *lax = (
        scorer.call(function, [_row(task[0], form.format(task[k]), task[3]) for task in tasks]) if isinstance(k, int)
        else scorer.call(function, [_row(task[0], k, task[3]) for task in tasks])
        for k in (1, 2, *texts)
    )  # fmt: skip
    low = ~(right > wrong)
    golds = [[task[1] for task, is_low in zip(tasks, low, strict=True) if bool(is_low) is k] for k in (True, False)]
    if low.sum() > max(1, 0.03 * len(low)):
        named = name_class(*golds) or f"{low.sum()} of {len(low)}"
        text = (
            f"Gold answers such as {', '.join(map(repr, golds[0][:4]))} earn no more than wrong ones; others {top:g}."
        )
        severity = Severity.CRITICAL if low.mean() > 0.1 else Severity.WARNING
        summary = f"The reward function {name} rejects gold answers of one kind: {named}."
        log.say("reward.gold-rejected", severity, summary, [Evidence(text, float(low.mean()), step=scorer.batch.step)])
    for text, given in zip((*texts, "another answer"), (*lax, wrong), strict=True):
        if (given >= top - 1e-6).mean() >= 0.5:
            summary = f"The reward function {name} pays {text[:40]!r} as much as the right answer: {top:g}."
            shown = Evidence(
                f"So it does on {(given >= top - 1e-6).sum()} of {len(given)} tasks.", step=scorer.batch.step
            )
            log.say("reward.hackable", Severity.WARNING, summary, [shown])
    return bool(low.any())


def _judge_order(log: FindingsLog, scorer: Scorer, size: int, names: Sequence[str]) -> None:
    """Check that moving whole groups moves their rewards with them."""
    batch, count, step = scorer.batch, scorer.batch.size, scorer.batch.step
    if count % size or count // size < 2:
        return
    rows = list(zip(batch.prompts, batch.completions, batch.examples, strict=True))
    places = np.arange(count).reshape(-1, size)[::-1].reshape(-1)
    for function in scorer.functions:
        if scorer.is_spent:
            return
        name, recorded = names[function], scorer.recorded(function)
        again, turned = scorer.call(function, rows), scorer.call(function, [rows[i] for i in places])
        changed = int((~np.isclose(turned, recorded[places], atol=1e-5, equal_nan=True)).sum())
        if not np.allclose(again, recorded, atol=1e-5, equal_nan=True):
            summary = f"The reward function {name} gave other scores to the same rollouts when asked again."
            shown = Evidence(f"{count} rollouts of step {step}.", step=step)
            log.say("reward.nondeterministic", Severity.NOTE, summary, [shown], Basis.SIGNAL)
        elif changed:
            summary = f"The reward function {name} scores completions against other prompts' answers: "
            summary += "rewards change when groups change places."
            text = f"With the groups in reverse order, {changed} of {count} rollouts got another reward."
            log.say("reward.misaligned", Severity.CRITICAL, summary, [Evidence(text, float(changed), step=step)])


# Answers and prompts that do not belong together. Three things would show that they do: completions are right more
# often by their own answers than by those of other prompts; the model finds an answer likelier behind its own prompt
# than behind another; numbers or words of an answer have something to do with those of its prompt. Each alone may fail
# on a healthy run, so the column is called misaligned only where all three fail.
def _judge_alignment(trainer: Any, log: FindingsLog, scorer: Scorer, judge: int) -> None:
    own = own_against_others(scorer, judge, trainer.num_generations)
    prompts, answers = rows_of(trainer.train_dataset, scorer.column, TEXTS)
    is_few = len(answers) < 2 * DISTINCT or len(set(answers)) < DISTINCT
    if is_positive(own) or is_few or texts_agree(list(map(last_text, prompts)), answers):
        return
    every = max(1, len(answers) // ROWS)
    known = likelier_behind_its_own(trainer, prompts[::every][:ROWS], answers[::every][:ROWS])
    # An effect of half a deviation is small for a model that knows anything: it must be excluded.
    if known is None or known.mean + 2.0 * _error(known) >= 0.5 * known.deviation:
        return
    summary = f"The answers in the column {scorer.column!r} do not belong to their prompts: nothing ties them together."
    text = f"The model finds answers {known.mean:+.2f} ± {_error(known):.2f} nats likelier behind their own prompts "
    text += f"than behind others' ({known.seeds} rows); with the right ones it is well above 0."
    evidence = [
        Evidence(text, known.mean, step=scorer.batch.step),
        Evidence(f"Numbers, words and lengths of {len(answers)} prompts say nothing about their answers."),
    ]
    if own is not None:
        text = f"Completions earn {own.mean:+.3f} ± {_error(own):.3f} more by their own answers than by other prompts'."
        evidence.append(Evidence(text, own.mean, step=scorer.batch.step))
    log.say("reward.misaligned", Severity.CRITICAL, summary, evidence, Basis.SIGNAL)


def _error(gains: Spread) -> float:
    return float(gains.deviation / gains.seeds**0.5)


def own_against_others(scorer: Scorer, judge: int, size: int) -> Spread | None:
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
        others = scorer.call(judge, list(zip(batch.prompts, batch.completions, examples, strict=True)))
        differs = np.array([answers[i] != answers[j] for i, j in enumerate(moved)])
        gains.append(np.where(differs, own - others, np.nan))
    known = ~np.isnan(gains)  # a reward may be None, and another group's answer the same
    by_row = np.where(known.any(0), np.nansum(gains, axis=0) / np.maximum(1, known.sum(0)), np.nan)
    by_group = [np.nanmean(group) for group in by_row.reshape(-1, size) if not np.isnan(group).all()]
    return spread_of(np.array(by_group)) if len(by_group) > 1 else None


def likelier_behind_its_own(trainer: Any, prompts: Sequence[Any], answers: Sequence[str]) -> Spread | None:
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
    return spread_of(np.array(gains)) if len(gains) > 1 else None


def rows_of(dataset: Any, column: str, most: int) -> tuple[list[Any], list[str]]:
    """Return prompts and answers of evenly spread rows of a dataset, each prompt once."""
    count = len(dataset)
    found: dict[str, tuple[Any, str]] = {}
    for place in sorted(set(np.linspace(0, count - 1, min(most, count)).astype(int).tolist())):
        row = dataset[place]
        if answer := core_of(answer_of(row.get(column))):
            found.setdefault(str(row["prompt"]), (row["prompt"], answer))
    return [prompt for prompt, _ in found.values()], [answer for _, answer in found.values()]
