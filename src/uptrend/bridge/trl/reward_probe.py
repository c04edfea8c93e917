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

from uptrend.bridge.trl.batch import TrlBatch, as_float64, last_text
from uptrend.bridge.trl.findings_log import FindingsLog
from uptrend.bridge.trl.learner_probe import answer_logprobs, quiet, same_randomness
from uptrend.bridge.trl.rollouts import RewardRange
from uptrend.doctor.checks.golds import is_positive, texts_depend
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
# Lengths of fillers before an answer, which reveal a function that cuts off the prompt's length.
FILLER_LENGTHS = ("prompt", "prompt without answer", "none")
# Rejected gold answers, and their share, up to which a dataset's odd rows explain them.
MAX_ODD_ROWS = 1
MAX_ODD_SHARE = 0.03
# Size, in deviations, of an effect that is small for a model that knows anything.
SMALL_EFFECT = 0.5
# Scores that differ by less are equal.
SCORE_TOLERANCE = 1e-5
# Characters of a completion, and of a paid text, that a message quotes; rejected gold answers.
QUOTED_COMPLETION = 40
QUOTED_TEXT = 40
QUOTED_GOLDS = 4
# Shifts of groups by which completions are compared with other prompts' answers.
MAX_GROUP_SHIFTS = 3

Floats = NDArray[np.float64]
# Writes a right or wrong answer to a task.
Writer = Callable[[Task, str], str]
# Prompt, completion and row of the dataset, as TRL passes them.
Row = tuple[Any, Any, dict[str, Any]]
# Answer column, and the reward functions that read it and accepted no gold answer: the run's own
# rewards decide.
Suspects = tuple[str, list[str]]


@dataclass(frozen=True)
class GoldJudge:
    """A reward function that tells right answers from wrong ones, with its rewards of both in the
    form that it wants.
    """

    function: int
    name: str
    form: Form
    right: float
    wrong: float


# Tasks from the dataset's rows


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
        if not answer:
            continue
        prompt = str(row["prompt"])
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
        # Places of the functions that can be called, among those of the trainer.
        self.functions = [
            i for i, function in enumerate(trainer.reward_funcs) if _can_be_called(function)
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
        rows = [dataset[place] for place in sorted(set(places.tolist()))]
        return tasks_of(rows, self.column)

    def names_column(self, function: int) -> bool:
        """Return True where a function's code names the answer's column."""
        reward_func = self._trainer.reward_funcs[function]
        code = getattr(reward_func, "__code__", None)
        if code is None:  # an object that can be called
            code = getattr(type(reward_func).__call__, "__code__", None)
        return code is not None and self.column in (*code.co_varnames, *code.co_consts)

    def call(self, function: int, rows: Sequence[Row]) -> Floats:
        """Return the rewards that one function gives rows; NaN for those that it fails on, which
        `failures` lists.
        """
        try:
            return self._call(function, rows)
        except Exception as error:  # the user's code may fail in any way
            if len(rows) == 1:
                completion = last_text(rows[0][1])[-QUOTED_COMPLETION:]
                self.failures.append(f"{error!r} on {completion!r}")
                return np.array([np.nan])
            return np.concatenate([self.call(function, [row]) for row in rows])

    def _call(self, function: int, rows: Sequence[Row]) -> Floats:
        """Call a function with TRL's own arguments."""
        trainer = self._trainer
        began = time.perf_counter()
        # Each column is copied at once, so that rows that share an object still do.
        prompts, completions, examples = map(_deep_copies, zip(*rows, strict=True))
        texts = list(map(last_text, completions))
        columns: dict[str, list[Any]] = {}
        for key in examples[0]:
            if key not in ("prompt", "completion", "completion_ids"):
                columns[key] = [example[key] for example in examples]
        rewards = trainer.reward_funcs[function](
            prompts=prompts,
            completions=completions,
            completion_ids=trainer._tokenizer(texts, add_special_tokens=False)["input_ids"],
            **columns,
            trainer_state=trainer.state,
            log_extra=lambda *_: None,
            log_metric=lambda *_: None,
        )
        self._seconds += time.perf_counter() - began
        return np.array([np.nan if reward is None else float(reward) for reward in rewards])

    def recorded(self, function: int) -> Floats:
        """Return the rewards that TRL recorded of one function."""
        return as_float64(self.batch.rewards)[:, function]

    def score(self, function: int, answers: Sequence[tuple[Task, str]]) -> list[ScoredPlay]:
        """Score answers to tasks with one function."""
        rows = [row_of(task, text) for task, text in answers]
        totals = self.call(function, rows).tolist()
        plays: list[ScoredPlay] = []
        for (_, text), total in zip(answers, totals, strict=True):
            reward = None
            if not math.isnan(total):
                reward = Reward(total, math.nan, math.nan, correct=False)
            plays.append(ScoredPlay(((text,),), reward))
        return plays

    def try_tasks(
        self, function: int, tasks: Sequence[Task], writers: Sequence[Writer]
    ) -> list[list[ScoredTask]]:
        """Score gold and a wrong answer of each task as each writer writes them; two calls for all
        of them.
        """
        golds = [task.answer for task in tasks]
        right_answers: list[tuple[Task, str]] = []
        wrong_answers: list[tuple[Task, str]] = []
        for write in writers:
            for i, task in enumerate(tasks):
                others = other_answers(task.answer, golds)
                wrong = others[i % len(others)] if others else near_miss(task.answer)
                right_answers.append((task, write(task, task.answer)))
                wrong_answers.append((task, write(task, wrong)))

        right_plays = self.score(function, right_answers)
        wrong_plays = self.score(function, wrong_answers)
        scored: list[ScoredTask] = []
        for (task, _), gold, other in zip(right_answers, right_plays, wrong_plays, strict=True):
            scored.append(ScoredTask(task, [gold], [other]))
        return [scored[start : start + len(tasks)] for start in range(0, len(scored), len(tasks))]


def _deep_copies(column: Sequence[Any]) -> list[Any]:
    return copy.deepcopy(list(column))


def _can_be_called(function: Any) -> bool:
    is_async = any(map(inspect.iscoroutinefunction, (function, type(function).__call__)))
    return callable(function) and not isinstance(function, torch.nn.Module) and not is_async


def row_of(task: Task, text: str) -> Row:
    """Return a text as TRL would pass it as the completion of this task."""
    row = task.data["row"]
    prompt = row["prompt"]
    completion: Any = text
    if not isinstance(prompt, str):
        completion = [{"role": "assistant", "content": text}]
    return prompt, completion, row


def in_form(form: Form) -> Writer:
    """Return a writer of plain answers in a form."""
    return lambda _, answer: form.write(answer)


def find_judge(scorer: Scorer, names: Sequence[str], sign: int = 1) -> GoldJudge | None:
    """Find the reward function, and its form, that tells right answers best; with sign -1, that
    pays them less than wrong ones.
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
            writers = [partial(_behind_filler, form, length) for length in FILLER_LENGTHS]
            tried_by_filler = scorer.try_tasks(function, scorer.tasks, writers)
            pays_right_more: list[bool] = []  # by filler
            for tried in tried_by_filler:
                pays_right_more.append(all(each.earned > each.rival for each in tried))
            if pays_right_more == [True, False, False]:
                return function, form
    return None


def _behind_filler(form: Form, length: str, task: Task, answer: str) -> str:
    """Write an answer behind a filler of one of `FILLER_LENGTHS`."""
    text = form.write(answer)
    prompt_length = len(task.messages[0].content)
    if length == "prompt":
        return "x" * prompt_length + text
    if length == "prompt without answer":
        return "x" * (prompt_length - len(text)) + text
    return text


# Findings


def probe_rewards(
    trainer: Any,
    batch: TrlBatch,
    scoring_seconds: float,
    reward_range: RewardRange,
    log: FindingsLog,
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
    elif scoring_seconds > MAX_SCORING_S:
        reason = (
            f"the reward functions take {scoring_seconds:.1f} s per generation; above"
            f" {MAX_SCORING_S:g} s they are not called again"
        )
    if reason or column is None:
        for id in ("reward.gold-rejected", "reward.misaligned"):
            log.event("not-probed", id=id, reason=reason)
        return None
    with same_randomness():
        return _judge_rewards(trainer, Scorer(trainer, batch, column), reward_range, log)


def _judge_rewards(
    trainer: Any, scorer: Scorer, reward_range: RewardRange, log: FindingsLog
) -> Suspects | None:
    """Run the probes, as far as the time for extra calls lasts."""
    names = reward_range.names
    if _judge_cut(log, scorer, names):
        return None
    judge = None if scorer.is_spent else find_judge(scorer, names)
    if scorer.failures:
        summary = (
            "A reward function fails on some answers, which ends the training:"
            f" {scorer.failures[0]}."
        )
        evidence = Evidence(f"So it did {len(scorer.failures)} times.")
        log.report("reward.error-scored", Severity.WARNING, summary, [evidence])
    _judge_order(log, scorer, trainer.num_generations, names)
    if _judge_sign(log, scorer, judge, reward_range):
        return None
    if judge is None:
        suspects = [names[i] for i in scorer.functions if scorer.names_column(i)]
        return (scorer.column, suspects) if suspects and not scorer.is_spent else None

    if not _judge_classes(log, scorer, judge):
        reason = (
            f"written as {judge.form}, gold answers earn {judge.right:g}, wrong ones"
            f" {judge.wrong:g}"
        )
        log.event("acquitted", id="reward.gold-rejected", reason=reason)
    reward_range.judge = judge.function
    reward_range.right = judge.right
    bounds = np.full((2, len(names)), np.nan)
    bounds[:, judge.function] = (judge.right, judge.wrong)
    reward_range.widen(bounds)
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
    log.report("reward.gold-rejected", Severity.CRITICAL, summary, [earned, Evidence(text)])
    return True


def _judge_sign(
    log: FindingsLog, scorer: Scorer, judge: GoldJudge | None, reward_range: RewardRange
) -> bool:
    """Report a function that pays right answers less than wrong ones, or whose weight does."""
    flipped = None
    if judge is None and not scorer.is_spent:
        flipped = find_judge(scorer, reward_range.names, -1)
    suspect = flipped or judge
    if suspect is None:
        return False
    weight = reward_range.weights[suspect.function]
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
    log.report(id, Severity.CRITICAL, summary, [Evidence(text, step=scorer.batch.step)])
    return True


def _judge_classes(log: FindingsLog, scorer: Scorer, judge: GoldJudge) -> bool:
    """Score gold of every class in the dataset, and texts without an answer; return True where
    gold is rejected.
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
        examples = ", ".join(repr(each.task.answer) for each in rejected[:QUOTED_GOLDS])
        text = (
            f"Gold answers such as {examples} earn no more than wrong ones; others {judge.right:g}."
        )
        evidence = Evidence(text, share, step=scorer.batch.step)
        log.report("reward.gold-rejected", severity, summary, [evidence])
    _judge_texts(log, scorer, judge, tried)
    return bool(rejected)


def _judge_texts(
    log: FindingsLog, scorer: Scorer, judge: GoldJudge, tried: Sequence[ScoredTask]
) -> None:
    """Report texts without the answer that earn as much as the answer."""
    plays_by_text: dict[str, list[ScoredPlay]] = {"another answer": []}
    for each in tried:
        plays_by_text["another answer"] += each.others
    for text in (EMPTY_TEXT, GARBAGE_TEXT, " ".join(map(str, SMALL_NUMBERS)), LONG_TEXT):
        plays_by_text[text] = scorer.score(judge.function, [(each.task, text) for each in tried])
    for text, plays in plays_by_text.items():
        n_paid = sum(pays_cheater(play, judge.right) for play in plays)
        if n_paid >= MIN_PAID_CHEATERS_SHARE * len(plays):
            summary = (
                f"The reward function {judge.name} pays {text[:QUOTED_TEXT]!r} as much as the right"
                f" answer: {judge.right:g}."
            )
            evidence = Evidence(
                f"So it does on {n_paid} of {len(plays)} tasks.", step=scorer.batch.step
            )
            log.report("reward.hackable", Severity.WARNING, summary, [evidence])


def _judge_order(log: FindingsLog, scorer: Scorer, size: int, names: Sequence[str]) -> None:
    """Check that moving whole groups moves their rewards with them."""
    batch = scorer.batch
    count = batch.size
    step = batch.step
    if count % size or count // size < 2:
        return
    rows = list(zip(batch.prompts, batch.completions, batch.examples, strict=True))
    places = np.arange(count).reshape(-1, size)[::-1].reshape(-1)  # groups in reverse order
    reversed_rows = [rows[i] for i in places]
    for function in scorer.functions:
        if scorer.is_spent:
            return
        name = names[function]
        recorded = scorer.recorded(function)
        again = scorer.call(function, rows)
        moved = scorer.call(function, reversed_rows)
        is_same = np.isclose(moved, recorded[places], atol=SCORE_TOLERANCE, equal_nan=True)
        n_changed = int((~is_same).sum())
        if not np.allclose(again, recorded, atol=SCORE_TOLERANCE, equal_nan=True):
            summary = (
                f"The reward function {name} gave other scores to the same rollouts when asked"
                " again."
            )
            evidence = Evidence(f"{count} rollouts of step {step}.", step=step)
            log.report("reward.nondeterministic", Severity.NOTE, summary, [evidence], Basis.SIGNAL)
        elif n_changed:
            summary = (
                f"The reward function {name} scores completions against other prompts' answers: "
                "rewards change when groups change places."
            )
            text = (
                f"With the groups in reverse order, {n_changed} of {count} rollouts got another"
                " reward."
            )
            evidence = Evidence(text, float(n_changed), step=step)
            log.report("reward.misaligned", Severity.CRITICAL, summary, [evidence])


# Answers and prompts that do not belong together. Three things would show that they do: completions
# are right more often by their own answers than by those of other prompts; the model finds an
# answer likelier behind its own prompt than behind another; numbers or words of an answer have
# something to do with those of its prompt. Each alone may fail on a healthy run, so the column is
# called misaligned only where all three fail.
def _judge_alignment(trainer: Any, log: FindingsLog, scorer: Scorer, judge: int) -> None:
    by_completions = own_against_others(scorer, judge, trainer.num_generations)
    if is_positive(by_completions):
        return

    tasks = scorer.dataset_tasks
    answers = [task.answer for task in tasks]
    if len(answers) < 2 * MIN_DIFFERENT_ANSWERS or len(set(answers)) < MIN_DIFFERENT_ANSWERS:
        return
    if texts_depend([task.messages[0].content for task in tasks], answers):
        return

    spread_tasks = tasks[:: max(1, len(tasks) // PROBED_ROWS)]
    by_model = likelier_behind_its_own(trainer, spread_tasks[:PROBED_ROWS])
    if by_model is None:
        return
    # A small effect must be excluded, by two standard errors.
    if by_model.mean + 2.0 * _error(by_model) >= SMALL_EFFECT * by_model.deviation:
        return

    summary = (
        f"The answers in the column {scorer.column!r} do not belong to their prompts: nothing ties"
        " them together."
    )
    text = (
        f"The model finds answers {by_model.mean:+.2f} ± {_error(by_model):.2f} nats likelier"
        f" behind their own prompts than behind others' ({by_model.seeds} rows); with the right"
        " ones it is well above 0."
    )
    unrelated = (
        f"Numbers, words and lengths of {len(answers)} prompts say nothing about their answers."
    )
    evidence = [Evidence(text, by_model.mean, step=scorer.batch.step), Evidence(unrelated)]
    if by_completions is not None:
        text = (
            f"Completions earn {by_completions.mean:+.3f} ± {_error(by_completions):.3f} more by"
            " their own answers than by other prompts'."
        )
        evidence.append(Evidence(text, by_completions.mean, step=scorer.batch.step))
    log.report("reward.misaligned", Severity.CRITICAL, summary, evidence, Basis.SIGNAL)


def _error(gains: Spread) -> float:
    return float(gains.deviation / gains.seeds**0.5)


def own_against_others(scorer: Scorer, judge: int, size: int) -> Spread | None:
    """Compare the rewards of completions by their own answers with those by another group's,
    over groups.
    """
    batch = scorer.batch
    column = scorer.column
    answers = [str(example.get(column)) for example in batch.examples]
    if len(set(answers)) < 2 or batch.size < 2 * size:
        return None
    own = scorer.recorded(judge)
    gains: list[Floats] = []  # by shift; NaN where another group's answer is the same
    for shift in range(1, min(MAX_GROUP_SHIFTS + 1, batch.size // size)):
        places = np.roll(np.arange(batch.size), -shift * size)
        rows: list[Row] = []
        for i, place in enumerate(places):
            example = {**batch.examples[i], column: batch.examples[place][column]}
            rows.append((batch.prompts[i], batch.completions[i], example))
        differs = np.array([answers[i] != answers[place] for i, place in enumerate(places)])
        gains.append(np.where(differs, own - scorer.call(judge, rows), np.nan))

    is_known = ~np.isnan(gains)  # a reward may be None, too
    n_known = is_known.sum(0)
    gain_sums = np.nansum(gains, axis=0)
    gain_by_row = np.where(n_known > 0, gain_sums / np.maximum(1, n_known), np.nan)
    gain_by_group: list[float] = []
    for group in gain_by_row.reshape(-1, size):
        if not np.isnan(group).all():
            gain_by_group.append(float(np.nanmean(group)))
    return spread_of(np.array(gain_by_group)) if len(gain_by_group) > 1 else None


def likelier_behind_its_own(trainer: Any, tasks: Sequence[Task]) -> Spread | None:
    """Compare the model's log-probability of answers behind their own prompts and behind others',
    in nats.
    """
    device = trainer.accelerator.device
    rows = trainer._tokenize_prompts([task.data["row"]["prompt"] for task in tasks])[0]
    prompts = [torch.tensor(ids).to(device) for ids in rows]
    gains: list[float] = []
    with quiet(trainer):
        for i, task in enumerate(tasks):
            other = _next_with_other_answer(tasks, i)
            ids = trainer._tokenizer(task.answer, add_special_tokens=False)["input_ids"]
            if other is not None and ids:
                answer = torch.tensor(ids).to(device)
                own_sum = answer_logprobs(trainer, prompts[i], answer).sum()
                other_sum = answer_logprobs(trainer, prompts[other], answer).sum()
                gains.append(own_sum - other_sum)
    return spread_of(np.array(gains)) if len(gains) > 1 else None


def _next_with_other_answer(tasks: Sequence[Task], start: int) -> int | None:
    """Return the next task, going round, whose answer is not that of task `start`."""
    following: list[int] = [*range(start + 1, len(tasks)), *range(start)]
    for place in following:
        if tasks[place].answer != tasks[start].answer:
            return place
    return None
