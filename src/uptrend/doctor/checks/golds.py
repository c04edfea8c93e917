"""Gold answers that can't be right: two of one question, against what the prompt gives, or of other
prompts.
"""

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from uptrend.doctor.answers import (
    MIN_ROLLOUTS,
    MIN_WRONG_SCORES,
    UNFINISHED_ENDINGS,
    Answers,
    read_answers,
    why_no_answers,
)
from uptrend.doctor.case import Case
from uptrend.doctor.check import (
    CRITICAL,
    NOTE,
    PROOF,
    SIGNAL,
    SUSPICION,
    WARNING,
    Answer,
    Found,
    Lacking,
    check,
    severity_by_share,
    warn_if,
)
from uptrend.doctor.groups import count_flags, subset_evidence
from uptrend.records import Evidence
from uptrend.records.table import Flags, Floats
from uptrend.stats.intervals import Spread, spread_of
from uptrend.stats.trend import rank_correlation
from uptrend.tasks.answers import answer_of, bare, computed_result, fold, plain_question, value_of

# Share of questions from which contradicting gold answers are more than typing errors, which a run
# survives.
MIN_CONTRADICTED_SHARE = 0.02
# Gold answers that must be checkable, or model's answers to compare with, for a judgment on all of
# them.
MIN_CHECKABLE = MIN_ROLLOUTS // 2
# Share of gold answers that a prompt's operation must give, to be what is asked; and to be what may
# be asked.
MIN_FITTING_SHARE = 0.6
MIN_MAYBE_FITTING_SHARE = 0.3
# How much oftener the model must say the operation's result than gold where they differ.
MIN_MODEL_ODDS = 3
# Share of wrong gold answers from which training goes the wrong way.
CRITICAL_WRONG_SHARE = 0.1
# Different gold answers that are needed: with fewer, another prompt's is often right.
MIN_DIFFERENT_GOLDS = 6
# Answers that agree with another prompt's gold by chance: gold is tied to prompts where its own are
# above twice these and this share.
MIN_OWN_SHARE = 0.05
# Share of answers that are the operation's result from which the model gives what is asked, and
# share of golds that are it up to which they are not that.
MIN_MODEL_RESULTS = 0.25
MAX_GOLD_RESULTS = 0.2
# Numbers in answers and prompts that it takes to correlate them; standard errors (1/√n) of a rank
# correlation, and of a mean gain, from which they are no chance.
MIN_PAIRS = 16
MAX_CORRELATION_ERRORS = 3.0
MAX_GAIN_ERRORS = 2.0
# Share of rollouts of a task that give the same answer where a model is sure of it; fewer rollouts
# tell nothing.
AGREEING_SHARE = 0.9
MIN_VOTES = 4
# Share of right rollouts from which what a model agrees on says something of gold.
MIN_RIGHT_SHARE = 0.5
# Tasks, and their share, on which a model must be sure of another answer.
MIN_OUTVOTED = 5
MIN_OUTVOTED_SHARE = 0.1


@check("data.wrong-gold")
def contradicting_golds(case: Case) -> Answer:
    """Report questions that occur with more than one gold answer."""
    if lacking := why_no_answers(case):
        return Lacking(lacking)
    first_gold: dict[str, str] = {}
    contradicted: set[str] = set()
    steps = case.cached(read_answers)
    flags: list[Flags] = []
    for step in steps:
        is_other = np.zeros(len(step.index_n), np.bool_)
        for n, (place, gold) in enumerate(zip(step.index_n, step.gold_n, strict=True)):
            question = plain_question(step.table.question_n[place])
            if first_gold.setdefault(question, bare(gold)) != bare(gold):
                is_other[n] = True
                contradicted.add(question)
        flags.append(is_other)
    if not contradicted:
        return None
    share = len(contradicted) / len(first_gold)
    example = sorted(contradicted)[0][-80:]
    text = (
        f"{len(contradicted)} of {len(first_gold)} questions have more than one gold answer, such"
        f" as {example!r}"
    )
    summary = (
        f"{len(contradicted)} questions have different gold answers, so at least one of each is"
        " wrong."
    )
    shown = subset_evidence(steps, flags, text, share)
    return Found(warn_if(share >= MIN_CONTRADICTED_SHARE), PROOF, summary, [shown])


@check("data.wrong-gold")
def unfit_golds(case: Case) -> Answer:
    """Report gold answers that contradict their prompts, that belong to others, or that the model
    outvotes.
    """
    if why_no_answers(case) or case.cached(contradicting_golds.judge):
        return None
    steps = case.cached(read_answers)
    answers: dict[str, tuple[str, str]] = {}
    for step in steps:
        for place, gold, text in zip(step.index_n, step.gold_n, step.response_n, strict=True):
            if step.table.ended_n[place] not in UNFINISHED_ENDINGS:
                answers[step.table.question_n[place]] = (gold, text)
    return judge_golds(answers) or _outvoted(steps)


@dataclass(frozen=True)
class GoldTable:
    """Prompts with their gold answers and a model's answers, and what these are as numbers; NaN for
    what is none.
    """

    prompts: Sequence[str]
    golds: Sequence[str]
    answers: Sequence[str]
    """Empty where the model was not asked."""
    results: Floats
    """Results of the operations that prompts ask for."""
    gold_values: Floats
    answer_values: Floats

    @property
    def misfits(self) -> list[int]:
        """RolloutTable in which gold is a number, and not the prompt's result."""
        is_other = np.isfinite(self.results - self.gold_values) & (self.results != self.gold_values)
        return np.flatnonzero(is_other).tolist()

    @property
    def examples(self) -> str:
        """A few of them, in words."""
        return "; ".join(
            f"{self.prompts[n][-40:]!r} has {self.golds[n]!r}" for n in self.misfits[:4]
        )


def judge_golds(gold_and_text: Mapping[str, tuple[str, str]]) -> Found | None:
    """Judge gold answers, with what the model said, by prompt: some that contradict it, or all of
    other prompts.
    """
    prompts = list(gold_and_text)
    golds = [gold for gold, _ in gold_and_text.values()]
    answers = [answer_of(text) for _, text in gold_and_text.values()]
    results = np.array([computed_result(prompt) for prompt in prompts])
    gold_values = np.array([value_of(gold) for gold in golds])
    answer_values = np.array([value_of(answer) for answer in answers])
    table = GoldTable(prompts, golds, answers, results, gold_values, answer_values)
    return _against_results(table) or _of_other_prompts(table)


def _against_results(table: GoldTable) -> Found | None:
    """Find gold answers that are not what their prompts ask to compute, where most are, or where
    the model says so.
    """
    misfits = table.misfits
    fitting = int((table.results == table.gold_values).sum())
    checkable = fitting + len(misfits)
    text = f"{len(misfits)} of {checkable} gold answers are not what their prompt gives"
    if len(misfits) < MIN_WRONG_SCORES or fitting < MIN_MAYBE_FITTING_SHARE * checkable:
        return None
    if checkable >= MIN_CHECKABLE and fitting >= MIN_FITTING_SHARE * checkable:
        share = len(misfits) / checkable
        summary = f"{len(misfits)} of {checkable} gold answers are wrong."
        evidence = Evidence(f"{text}: {table.examples}", share)
        return Found(
            severity_by_share(share, critical=CRITICAL_WRONG_SHARE), PROOF, summary, [evidence]
        )
    # Where the operation fits only many, the model decides: it says the result where gold says
    # something else.
    answers = table.answer_values[misfits]
    as_result = int((answers == table.results[misfits]).sum())
    as_gold = int((answers == table.gold_values[misfits]).sum())
    if as_result < max(MIN_WRONG_SCORES, MIN_MODEL_ODDS * as_gold):
        return None
    text = (
        f"{text}, and the model says the latter in {as_result}, gold in {as_gold}: {table.examples}"
    )
    summary = f"{len(misfits)} of {checkable} gold answers seem to be wrong."
    return Found(WARNING, SIGNAL, summary, [Evidence(text, as_result)])


def _of_other_prompts(table: GoldTable) -> Found | None:
    """Find a model whose answers have to do with the prompts, and gold answers that have to do with
    neither.
    """
    answered = [n for n, answer in enumerate(table.answers) if answer]
    prompts = [table.prompts[n] for n in answered]
    golds = [table.golds[n] for n in answered]
    answers = [table.answers[n] for n in answered]
    if len(answered) < MIN_CHECKABLE or len(set(golds)) < MIN_DIFFERENT_GOLDS:
        return None
    bare_golds = np.array(list(map(bare, golds)))
    bare_answers = np.array(list(map(bare, answers)))
    own = float((bare_golds == bare_answers).mean())
    others = float(np.mean([np.roll(bare_golds, shift) == bare_answers for shift in (1, 2, 3)]))
    # The model computes what prompts ask for, and gold answers are hardly ever that.
    computed = table.results == table.answer_values
    are_results = table.results[computed] == table.gold_values[computed]
    is_proven = (
        computed.sum() > MIN_MODEL_RESULTS * len(answered)
        and are_results.mean() <= MAX_GOLD_RESULTS
    )
    if not is_proven:
        if (
            own > 2 * others + MIN_OWN_SHARE
            or texts_agree(prompts, golds)
            or texts_agree(golds, answers)
        ):
            return None
        if not texts_agree(prompts, answers):
            return None
    text = (
        f"{own:.0%} of {len(answers)} answers are their own prompt's gold, {others:.0%} another's:"
        f" {table.examples}"
    )
    summary = (
        "The gold answers do not belong to their prompts: what the model says depends on these, the"
        " golds do not."
    )
    return Found(CRITICAL, SIGNAL, summary, [Evidence(text, own)])


def texts_agree(prompts: Sequence[str], answers: Sequence[str]) -> bool:
    """Return True where answers have anything to do with their prompts: in length, in numbers or in
    words.
    """
    if _correlate(
        np.array(list(map(len, prompts)), float), np.array(list(map(len, answers)), float)
    ):
        return True
    asked: list[list[float]] = []
    values: list[float] = []
    for prompt, answer in zip(prompts, answers, strict=True):
        prompt_numbers = _numbers(prompt)
        answer_numbers = _numbers(answer.replace(",", ""))
        if prompt_numbers and answer_numbers:
            asked.append(prompt_numbers)
            values.append(answer_numbers[-1])
    if len(values) >= MIN_PAIRS:
        for feature in PROMPT_FEATURES:
            if _correlate(np.array(list(map(feature, asked)), float), np.array(values)):
                return True
    own = np.array(_are_quoted(prompts, answers), float)
    others = np.array(_are_quoted(prompts, [*answers[-1:], *answers[:-1]]), float)
    return is_positive(spread_of(own - others))


# Figures of a prompt's numbers that the result of a task may go with.
PROMPT_FEATURES: tuple[Callable[[list[float]], float], ...] = (
    max,
    sum,
    len,
    min,
    lambda numbers: abs(numbers[0]) - abs(numbers[-1]),
    lambda numbers: abs(numbers[0]),
)


def _numbers(text: str) -> list[float]:
    return [float(number) for number in re.findall(r"-?\d+(?:\.\d+)?", text)]


def _correlate(a: Floats, b: Floats) -> bool:
    return bool(abs(rank_correlation(a, b)) > MAX_CORRELATION_ERRORS / len(a) ** 0.5)


def _are_quoted(prompts: Sequence[str], answers: Sequence[str]) -> list[bool]:
    return [
        answer.lower() in prompt.lower() for prompt, answer in zip(prompts, answers, strict=True)
    ]


def is_positive(gains: Spread | None) -> bool:
    """Return True where a mean gain is above 0 by more than noise."""
    return (
        gains is not None
        and gains.mean > MAX_GAIN_ERRORS * gains.deviation / gains.seeds**0.5 + 1e-9
    )


def is_outvoted(texts: Sequence[str], gold: str) -> bool:
    """Return True where nearly all texts agree on an answer that is not gold."""
    answer, votes = Counter(map(answer_of, texts)).most_common(1)[0]
    return votes >= AGREEING_SHARE * len(texts) and answer not in ("", fold(gold))


def _outvoted(steps: list[Answers]) -> Found | None:
    """Find a model that is mostly right, and sure of another answer than the gold on a good part of
    the tasks.
    """
    sure = 0
    tasks = 0
    flags: list[Flags] = []
    for step in steps:
        against = np.zeros(len(step.index_n), np.bool_)
        for task in np.unique(step.task_n):
            places = np.flatnonzero(step.task_n == task)
            if len(places) < MIN_VOTES:
                continue
            tasks += 1
            texts = [step.response_n[n] for n in places]
            if is_outvoted(texts, step.gold_n[places[0]]) and not step.rewarded_n[places].any():
                sure += 1
                against[places] = True
        flags.append(against)
    right_share = count_flags(step.rewarded_n for step in steps) / sum(
        len(step.index_n) for step in steps
    )
    if right_share < MIN_RIGHT_SHARE or sure < MIN_OUTVOTED or sure < MIN_OUTVOTED_SHARE * tasks:
        return None
    text = (
        f"on {sure} of {tasks} tasks nearly all rollouts agree on an answer that is not the"
        " gold one"
    )
    summary = (
        "The model is mostly right and sure of other answers than the gold ones on some tasks: look"
        " at these."
    )
    return Found(NOTE, SUSPICION, summary, [subset_evidence(steps, flags, text, sure / tasks)])
