"""Probes of the user's own reward functions: what a right answer earns, and whether the order of
rows matters.

A function is called with fresh copies of the rows, many at once, with every random generator put
back afterwards. Judges that are models, asynchronous functions and slow ones are not called.
"""

import copy
import inspect
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from uptrend.bridge.trl.batch import TrlBatch, as_numpy, last_text
from uptrend.bridge.trl.findings_log import FindingsLog
from uptrend.bridge.trl.learner_probe import answer_logprobs, quiet, same_randomness
from uptrend.bridge.trl.rollouts import RewardRange
from uptrend.doctor.checks.golds import is_positive, texts_agree
from uptrend.records import Basis, Evidence, Message, Reward, Severity, Task
from uptrend.stats.intervals import Spread, spread_of
from uptrend.tasks.answers import (
    ANSWER_FORMATS,
    EMPTY_TEXT,
    GARBAGE_TEXT,
    LONG_TEXT,
    SMALL_NUMBERS,
    Form,
    draw_every_class,
    final_answer,
    gold_column,
    gold_text,
    near_miss,
    other_answers,
)
from uptrend.tasks.proof import (
    CRITICAL_REJECTED_SHARE,
    MIN_PAID_CHEATERS_SHARE,
    ScoredPlay,
    ScoredTask,
    describe_rejections,
    judge_form,
    pays_cheater,
    split_golds,
)

# Tasks of the generation whose gold answers are tried in every form.
FORM_TASKS = 4
# Seconds that all extra calls together may take.
CALLS_TIMEOUT_S = 2.0
# Seconds that scoring a generation may take for the functions to be called again.
MAX_SCORING_S = 1.0
# Rows of the dataset whose answers are scored, and of which the model is asked for probabilities.
PROBED_ROWS = 48
# Different answers that are needed: with fewer, another prompt's answer is often right.
MIN_DIFFERENT_ANSWERS = 6
# Rows of the dataset whose texts are compared.
COMPARED_ROWS = 500
# Forms without much text around the answer, of which a prompt's length can be cut off.
SHORT_FORMS = 8
# Rejected gold answers up to which a dataset's odd rows explain them: so many, or this share.
MAX_ODD_ROWS = 1
MAX_ODD_SHARE = 0.03
# Size, in deviations, of an effect that is small for a model that knows anything.
SMALL_EFFECT = 0.5
# Scores that differ by less are equal.
EQUAL = 1e-5

Floats = NDArray[np.float64]
# Writes a right or wrong answer to a task.
Writer = Callable[[Task, str], str]
# prompt, completion and row of the dataset, as TRL passes them
Row = tuple[Any, Any, dict[str, Any]]
# Answer column, and the reward functions that read it and accepted no gold answer: the run's own
# rewards decide.
Suspects = tuple[str, list[str]]


@dataclass(frozen=True)
class GoldJudge:
    """A reward function that tells right answers from wrong ones, and what they earn in the form
    that it wants.
    """

    function: int
    name: str
    form: Form
    right: float
    wrong: float


# Tasks, made of the dataset's rows


def answers_of(rows: Sequence[dict[str, Any]]) -> list[str]:
    """Return the right answers of a dataset's rows; empty where they hold none."""
    column = gold_column(rows[0])
    return [_answer_in(row, column) if column else "" for row in rows]


def _answer_in(row: dict[str, Any], column: str) -> str:
    return final_answer(gold_text(row.get(column)))


def tasks_of(rows: Sequence[dict[str, Any]], column: str) -> list[Task]:
    """Return a task for each different prompt of a dataset's rows that has an answer."""
    tasks: dict[str, Task] = {}
    for row in rows:
        answer = _answer_in(row, column)
        prompt = str(row["prompt"])
        if answer:
            message = Message("user", last_text(row["prompt"]))
            tasks.setdefault(prompt, Task((message,), answer, "", data={"row": row}, id=prompt))
    return list(tasks.values())


# Calling reward functions again


class Scorer:
    """Calls the user's reward functions again."""

    def __init__(self, trainer: Any, batch: TrlBatch, column: str) -> None:
        self._trainer = trainer
        self.batch = batch
        self.column = column
        self._seconds = 0.0
        self.failures: list[str] = []
        self.functions = [
            place for place, function in enumerate(trainer.reward_funcs) if _can_be_called(function)
        ]

    @property
    def is_spent(self) -> bool:
        """True once the extra calls have taken all the time that they may."""
        return self._seconds > CALLS_TIMEOUT_S

    @cached_property
    def tasks(self) -> list[Task]:
        """A few tasks of the generation."""
        return tasks_of(self.batch.examples, self.column)[:FORM_TASKS]

    @cached_property
    def dataset_tasks(self) -> list[Task]:
        """Tasks from the whole length of the dataset; none where it can only be iterated."""
        dataset = self._trainer.train_dataset
        if not hasattr(dataset, "__getitem__"):
            return []
        places = np.linspace(0, len(dataset) - 1, COMPARED_ROWS).astype(int)
        return tasks_of([dataset[place] for place in sorted(set(places.tolist()))], self.column)

    def names_column(self, function: int) -> bool:
        """Return True where a function's code names the answer's column."""
        called = self._trainer.reward_funcs[function]
        code = getattr(called, "__code__", None) or getattr(type(called).__call__, "__code__", None)
        return code is not None and self.column in (*code.co_varnames, *code.co_consts)

    def call(self, function: int, rows: Sequence[Row]) -> Floats:
        """Return what one function gives each of these rows; NaN for those that it fails on, which
        are kept.
        """
        try:
            return self._call(function, rows)
        except Exception as error:  # the user's code may fail in any way
            if len(rows) == 1:
                self.failures.append(f"{error!r} on {last_text(rows[0][1])[-40:]!r}")
                return np.array([np.nan])
            return np.concatenate([self.call(function, [row]) for row in rows])

    def _call(self, function: int, rows: Sequence[Row]) -> Floats:
        """Give a function TRL's own arguments."""
        trainer = self._trainer
        began = time.perf_counter()
        prompts, completions, examples = (
            copy.deepcopy(list(column)) for column in zip(*rows, strict=True)
        )
        keys = [key for key in examples[0] if key not in ("prompt", "completion", "completion_ids")]
        given = trainer.reward_funcs[function](
            prompts=prompts,
            completions=completions,
            completion_ids=trainer._tokenizer(
                list(map(last_text, completions)), add_special_tokens=False
            )["input_ids"],
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

    def score(self, function: int, answers: Sequence[tuple[Task, str]]) -> list[ScoredPlay]:
        """Return what one function gives each of these answers."""
        rows = [row_of(task, text) for task, text in answers]
        totals = self.call(function, rows).tolist()
        return [
            ScoredPlay(
                ((text,),),
                None if math.isnan(total) else Reward(total, math.nan, math.nan, correct=False),
            )
            for (_, text), total in zip(answers, totals, strict=True)
        ]

    def try_tasks(
        self, function: int, tasks: Sequence[Task], writers: Sequence[Writer]
    ) -> list[list[ScoredTask]]:
        """Score gold and a wrong answer of each task as each writer writes them; two calls for all
        of them.
        """
        golds = [task.answer for task in tasks]
        wrongs: list[str] = []
        for place, gold in enumerate(golds):
            others = other_answers(gold, golds)
            wrongs.append(others[place % len(others)] if others else near_miss(gold))
        right, wrong = (
            self.score(
                function,
                [(task, write(task, answer)) for write in writers for task, answer in pairs],
            )
            for pairs in (
                list(zip(tasks, golds, strict=True)),
                list(zip(tasks, wrongs, strict=True)),
            )
        )
        every_task = [task for _ in writers for task in tasks]
        tried = [
            ScoredTask(task, [gold], [other])
            for task, gold, other in zip(every_task, right, wrong, strict=True)
        ]
        return [tried[start : start + len(tasks)] for start in range(0, len(tried), len(tasks))]


def _can_be_called(function: Any) -> bool:
    is_async = any(map(inspect.iscoroutinefunction, (function, type(function).__call__)))
    return callable(function) and not isinstance(function, torch.nn.Module) and not is_async


def row_of(task: Task, text: str) -> Row:
    """Return a text as TRL would pass it as the completion of this task."""
    row = task.data["row"]
    prompt = row["prompt"]
    return (
        prompt,
        text if isinstance(prompt, str) else [{"role": "assistant", "content": text}],
        row,
    )


def in_form(form: Form) -> Writer:
    """Return a writer of plain answers in a form."""
    return lambda _, answer: form.write(answer)


def find_judge(scorer: Scorer, names: Sequence[str], sign: int = 1) -> GoldJudge | None:
    """Find the reward function and the form in which it tells right answers best; with sign -1,
    pays them less.
    """
    forms = [Form(words) for words in ANSWER_FORMATS]
    judges: list[GoldJudge] = []
    for function in scorer.functions:
        tried_by_form = scorer.try_tasks(function, scorer.tasks, list(map(in_form, forms)))
        for form, tried in zip(forms, tried_by_form, strict=True):
            earned = judge_form(tried, sign)
            if earned is not None:
                judges.append(GoldJudge(function, names[function], form, *earned))
    return max(judges, key=lambda judge: sign * judge.right, default=None)


def find_prompt_cutter(scorer: Scorer) -> tuple[int, Form] | None:
    """Return the function that cuts as many characters off a completion as the prompt has, and the
    answer's form.

    Behind a filler of the prompt's length a right answer is told from a wrong one; behind one that
    is shorter by the answer's own length, and without any, it is not. The border moves with the
    prompt, so it is no least length.
    """
    for function in scorer.functions:
        for form in map(Form, ANSWER_FORMATS[:SHORT_FORMS]):
            writers = [partial(_behind_filler, form, kind) for kind in range(3)]
            tried_by_filler = scorer.try_tasks(function, scorer.tasks, writers)
            told_apart = [
                all(each.earned > each.rival for each in tried) for tried in tried_by_filler
            ]
            if told_apart == [True, False, False]:
                return function, form
    return None


def _behind_filler(form: Form, kind: int, task: Task, answer: str) -> str:
    """Write an answer behind a filler as long as the prompt, one that is shorter by the answer, or
    none.
    """
    text = form.write(answer)
    length = len(task.messages[0].content)
    return "x" * (length, length - len(text), 0)[kind] + text


# Findings


def probe_rewards(
    trainer: Any, batch: TrlBatch, scoring: float, scale: RewardRange, log: FindingsLog
) -> Suspects | None:
    """Re-score gold answers, corrupted ones and the generation itself through the user's reward
    functions.
    """
    column = gold_column(batch.examples[0])
    reason = ""
    if getattr(trainer, "environments", None):
        reason = "environments own the rewards"
    elif column is None:
        reason = "the dataset has no column that looks like an answer"
    elif scoring > MAX_SCORING_S:
        limit = f"above {MAX_SCORING_S:g} s they are not called again"
        reason = f"the reward functions take {scoring:.1f} s per generation; {limit}"
    if reason or column is None:
        for id in ("reward.gold-rejected", "reward.misaligned"):
            log.event("not-probed", id=id, reason=reason)
        return None
    scorer = Scorer(trainer, batch, column)
    with same_randomness():
        if _judge_cut(log, scorer, scale.names):
            return None
        judge = None if scorer.is_spent else find_judge(scorer, scale.names)
        if scorer.failures:
            summary = (
                "A reward function fails on some answers, which ends the training:"
                f" {scorer.failures[0]}."
            )
            times = f"So it did {len(scorer.failures)} times."
            log.say("reward.error-scored", Severity.WARNING, summary, [Evidence(times)])
        _judge_order(log, scorer, trainer.num_generations, scale.names)
        if _judge_sign(log, scorer, judge, scale):
            return None
        if judge is None:
            named = [
                scale.names[function]
                for function in scorer.functions
                if scorer.names_column(function)
            ]
            return (column, named) if named and not scorer.is_spent else None
        if not _judge_classes(log, scorer, judge):
            earned = f"gold answers earn {judge.right:g}, wrong ones {judge.wrong:g}"
            log.event(
                "acquitted", id="reward.gold-rejected", reason=f"written as {judge.form}, {earned}"
            )
        scale.judge = judge.function
        scale.right = judge.right
        bounds = np.full((2, len(scale.names)), np.nan)
        bounds[:, judge.function] = (judge.right, judge.wrong)
        scale.widen(bounds)
        if not scorer.is_spent and scorer.dataset_tasks:
            _judge_alignment(trainer, log, scorer, judge.function)
    return None


def _judge_cut(log: FindingsLog, scorer: Scorer, names: Sequence[str]) -> bool:
    """Report a function that looks behind the prompt in a completion that does not hold it."""
    cutter = find_prompt_cutter(scorer)
    if cutter is None:
        return False
    function, form = cutter
    summary = (
        f"The reward function {names[function]} cuts the prompt's length off each completion, but"
        " TRL's completions do not hold the prompt: right answers are cut away before they are"
        " looked at."
    )
    text = (
        "Behind a filler as long as the prompt it does; behind one that is shorter by the answer's"
        " own length it does not. The border moves with each task's prompt."
    )
    earned = Evidence(
        f"A gold answer written as {form} earns no more than a wrong one.", step=scorer.batch.step
    )
    log.say("reward.gold-rejected", Severity.CRITICAL, summary, [earned, Evidence(text)])
    return True


def _judge_sign(
    log: FindingsLog, scorer: Scorer, judge: GoldJudge | None, scale: RewardRange
) -> bool:
    """Report a function that pays right answers less than wrong ones, or whose weight does."""
    flipped = find_judge(scorer, scale.names, -1) if judge is None and not scorer.is_spent else None
    suspect = flipped or judge
    if suspect is None:
        return False
    weight = scale.weights[suspect.function]
    if flipped is None and weight > 0:
        return False
    summary = (
        f"Right answers earn less than wrong ones: {suspect.name}, of weight {weight:g}, gives"
        f" them {suspect.right:g}, wrong ones {suspect.wrong:g}."
    )
    text = (
        f"Written as {suspect.form}, gold answers get {suspect.right:g} and wrong ones"
        f" {suspect.wrong:g}."
    )
    id = "advantage.sign" if weight else "reward.component-dead"
    log.say(id, Severity.CRITICAL, summary, [Evidence(text, step=scorer.batch.step)])
    return True


def _judge_classes(log: FindingsLog, scorer: Scorer, judge: GoldJudge) -> bool:
    """Score gold of every class in the dataset, and texts without an answer; return True where gold
    is low.
    """
    if scorer.is_spent or not scorer.dataset_tasks:
        return False
    tasks = draw_every_class(scorer.dataset_tasks, lambda task: task.answer, PROBED_ROWS)
    (tried,) = scorer.try_tasks(judge.function, tasks, [in_form(judge.form)])
    accepted, rejected = split_golds(tried)
    if len(rejected) > max(MAX_ODD_ROWS, MAX_ODD_SHARE * len(tried)):
        share = len(rejected) / len(tried)
        severity = Severity.CRITICAL if share > CRITICAL_REJECTED_SHARE else Severity.WARNING
        summary = describe_rejections(f"The reward function {judge.name}", accepted, rejected)
        examples = ", ".join(repr(each.task.answer) for each in rejected[:4])
        text = (
            f"Gold answers such as {examples} earn no more than wrong ones; others {judge.right:g}."
        )
        log.say(
            "reward.gold-rejected",
            severity,
            summary,
            [Evidence(text, share, step=scorer.batch.step)],
        )
    _judge_texts(log, scorer, judge, tried)
    return bool(rejected)


def _judge_texts(
    log: FindingsLog, scorer: Scorer, judge: GoldJudge, tried: Sequence[ScoredTask]
) -> None:
    """Report texts without the answer that are paid as it is."""
    plays = {"another answer": [play for each in tried for play in each.others]}
    for text in (EMPTY_TEXT, GARBAGE_TEXT, " ".join(map(str, SMALL_NUMBERS)), LONG_TEXT):
        plays[text] = scorer.score(judge.function, [(each.task, text) for each in tried])
    for text, scored in plays.items():
        paid = sum(pays_cheater(play, judge.right) for play in scored)
        if paid >= MIN_PAID_CHEATERS_SHARE * len(scored):
            summary = (
                f"The reward function {judge.name} pays {text[:40]!r} as much as the right answer: "
                f"{judge.right:g}."
            )
            evidence = Evidence(
                f"So it does on {paid} of {len(scored)} tasks.", step=scorer.batch.step
            )
            log.say("reward.hackable", Severity.WARNING, summary, [evidence])


def _judge_order(log: FindingsLog, scorer: Scorer, size: int, names: Sequence[str]) -> None:
    """Check that moving whole groups moves their rewards with them."""
    batch = scorer.batch
    count = scorer.batch.size
    step = scorer.batch.step
    if count % size or count // size < 2:
        return
    rows = list(zip(batch.prompts, batch.completions, batch.examples, strict=True))
    places = np.arange(count).reshape(-1, size)[::-1].reshape(-1)
    for function in scorer.functions:
        if scorer.is_spent:
            return
        name = names[function]
        recorded = scorer.recorded(function)
        again = scorer.call(function, rows)
        turned = scorer.call(function, [rows[i] for i in places])
        changed = int((~np.isclose(turned, recorded[places], atol=EQUAL, equal_nan=True)).sum())
        if not np.allclose(again, recorded, atol=EQUAL, equal_nan=True):
            summary = (
                f"The reward function {name} gave other scores to the same rollouts when asked"
                " again."
            )
            shown = Evidence(f"{count} rollouts of step {step}.", step=step)
            log.say("reward.nondeterministic", Severity.NOTE, summary, [shown], Basis.SIGNAL)
        elif changed:
            summary = (
                f"The reward function {name} scores completions against other prompts' answers: "
                "rewards change when groups change places."
            )
            text = (
                f"With the groups in reverse order, {changed} of {count} rollouts got another"
                " reward."
            )
            log.say(
                "reward.misaligned",
                Severity.CRITICAL,
                summary,
                [Evidence(text, float(changed), step=step)],
            )


# Answers and prompts that do not belong together. Three things would show that they do: completions
# are right more often by their own answers than by those of other prompts; the model finds an
# answer likelier behind its own prompt than behind another; numbers or words of an answer have
# something to do with those of its prompt. Each alone may fail on a healthy run, so the column is
# called misaligned only where all three fail.
def _judge_alignment(trainer: Any, log: FindingsLog, scorer: Scorer, judge: int) -> None:
    own = own_against_others(scorer, judge, trainer.num_generations)
    tasks = scorer.dataset_tasks
    answers = [task.answer for task in tasks]
    is_few = len(answers) < 2 * MIN_DIFFERENT_ANSWERS or len(set(answers)) < MIN_DIFFERENT_ANSWERS
    if (
        is_positive(own)
        or is_few
        or texts_agree([task.messages[0].content for task in tasks], answers)
    ):
        return
    known = likelier_behind_its_own(
        trainer, tasks[:: max(1, len(tasks) // PROBED_ROWS)][:PROBED_ROWS]
    )
    # A small effect must be excluded, by two standard errors.
    if known is None or known.mean + 2.0 * _error(known) >= SMALL_EFFECT * known.deviation:
        return
    summary = (
        f"The answers in the column {scorer.column!r} do not belong to their prompts: nothing ties"
        " them together."
    )
    text = (
        f"The model finds answers {known.mean:+.2f} ± {_error(known):.2f} nats likelier behind"
        f" their own prompts than behind others' ({known.seeds} rows); with the right ones it is"
        " well above 0."
    )
    evidence = [
        Evidence(text, known.mean, step=scorer.batch.step),
        Evidence(
            f"Numbers, words and lengths of {len(answers)} prompts say nothing about their answers."
        ),
    ]
    if own is not None:
        text = (
            f"Completions earn {own.mean:+.3f} ± {_error(own):.3f} more by their own answers than"
            " by other prompts'."
        )
        evidence.append(Evidence(text, own.mean, step=scorer.batch.step))
    log.say("reward.misaligned", Severity.CRITICAL, summary, evidence, Basis.SIGNAL)


def _error(gains: Spread) -> float:
    return float(gains.deviation / gains.seeds**0.5)


def own_against_others(scorer: Scorer, judge: int, size: int) -> Spread | None:
    """Compare what completions earn by their own answers and by another group's, over groups."""
    batch = scorer.batch
    column = scorer.column
    answers = [str(example.get(column)) for example in batch.examples]
    if len(set(answers)) < 2 or batch.size < 2 * size:
        return None
    own = scorer.recorded(judge)
    gains = []
    for shift in range(1, min(4, batch.size // size)):
        moved = np.roll(np.arange(batch.size), -shift * size)
        examples = [
            {**e, column: batch.examples[i][column]}
            for e, i in zip(batch.examples, moved, strict=True)
        ]
        others = scorer.call(
            judge, list(zip(batch.prompts, batch.completions, examples, strict=True))
        )
        differs = np.array([answers[i] != answers[j] for i, j in enumerate(moved)])
        gains.append(np.where(differs, own - others, np.nan))
    known = ~np.isnan(gains)  # a reward may be None, and another group's answer the same
    by_row = np.where(known.any(0), np.nansum(gains, axis=0) / np.maximum(1, known.sum(0)), np.nan)
    by_group = [
        np.nanmean(group) for group in by_row.reshape(-1, size) if not np.isnan(group).all()
    ]
    return spread_of(np.array(by_group)) if len(by_group) > 1 else None


def likelier_behind_its_own(trainer: Any, tasks: Sequence[Task]) -> Spread | None:
    """Compare the model's log-probability of answers behind their own prompts and behind others',
    in nats.
    """
    device = trainer.accelerator.device
    rows = trainer._tokenize_prompts([task.data["row"]["prompt"] for task in tasks])[0]
    prompts = [torch.tensor(ids).to(device) for ids in rows]
    gains = []
    with quiet(trainer):
        for place, task in enumerate(tasks):
            following = [*range(place + 1, len(tasks)), *range(place)]
            other = next((n for n in following if tasks[n].answer != task.answer), None)
            ids = trainer._tokenizer(task.answer, add_special_tokens=False)["input_ids"]
            if other is not None and ids:
                answer = torch.tensor(ids).to(device)
                own = answer_logprobs(trainer, prompts[place], answer).sum()
                gains.append(own - answer_logprobs(trainer, prompts[other], answer).sum())
    return spread_of(np.array(gains)) if len(gains) > 1 else None
