"""Gold answers that can't be right.

One question has two of them, they contradict their prompts or belong to other prompts, or a model
that is mostly right agrees on other answers. The surest of these is reported alone: each check
gives way to those above it.

n = prompt.
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
from uptrend.tasks.answers import (
    answer_of,
    bare_answer,
    computed_result,
    fold,
    plain_question,
    value_of,
)

# Prompts below which no judgment on all golds is possible.
MIN_CHECKABLE = MIN_ROLLOUTS // 2

# Share of questions with two golds below which these are a few typing errors, which a run survives.
MIN_CONTRADICTED_SHARE = 0.02
# Characters of a question that an example quotes.
QUESTION_CHARACTERS = 80


@check("data.wrong-gold", by_source=True)
def contradicting_golds(case: Case) -> Answer:
    """Report questions that occur with more than one gold answer."""
    lacking = why_no_answers(case)
    if lacking:
        return Lacking(lacking)

    steps = case.cached(read_answers)
    first_gold: dict[str, str] = {}
    contradicted: set[str] = set()
    flags: list[Flags] = []
    for step in steps:
        contradicts = np.zeros(len(step.index_n), np.bool_)
        for n, place in enumerate(step.index_n):
            question = plain_question(step.table.question_n[place])
            gold = bare_answer(step.gold_n[n])
            if first_gold.setdefault(question, gold) != gold:
                contradicts[n] = True
                contradicted.add(question)
        flags.append(contradicts)
    if not contradicted:
        return None

    share = len(contradicted) / len(first_gold)
    example = min(contradicted)[-QUESTION_CHARACTERS:]
    text = (
        f"{len(contradicted)} of {len(first_gold)} questions have more than one gold answer, such"
        f" as {example!r}"
    )
    summary = (
        f"{len(contradicted)} questions have different gold answers, so at least one of each is"
        " wrong."
    )
    evidence = subset_evidence(steps, flags, text, share)
    return Found(warn_if(share >= MIN_CONTRADICTED_SHARE), PROOF, summary, [evidence])


@check("data.wrong-gold", by_source=True)
def unfit_golds(case: Case) -> Answer:
    """Report gold answers that contradict their prompts, or that belong to other prompts."""
    if why_no_answers(case) or case.cached(contradicting_golds.judge):
        return None  # a surer check reports it
    gold_and_text: dict[str, tuple[str, str]] = {}
    for step in case.cached(read_answers):
        for n, place in enumerate(step.index_n):
            if step.table.ended_n[place] not in UNFINISHED_ENDINGS:
                prompt = step.table.question_n[place]
                gold_and_text[prompt] = (step.gold_n[n], step.response_n[n])
    return judge_golds(gold_and_text)


# Share of a task's rollouts that agree where the model is sure, and rollouts below which agreement
# says nothing.
AGREEING_SHARE = 0.9
MIN_VOTES = 4
# Share of right rollouts below which the model's agreement is no argument against a gold.
MIN_RIGHT_SHARE = 0.5
# Outvoted tasks, and their share, below which they are a few odd tasks.
MIN_OUTVOTED = 5
MIN_OUTVOTED_SHARE = 0.1


@check("data.wrong-gold", by_source=True)
def outvoted_golds(case: Case) -> Answer:
    """Report a model that is mostly right, and sure of another answer than gold on many tasks."""
    if why_no_answers(case):
        return None
    if case.cached(contradicting_golds.judge) or case.cached(unfit_golds.judge):
        return None  # a surer check reports it

    steps = case.cached(read_answers)
    tasks = 0
    outvoted = 0
    flags: list[Flags] = []
    for step in steps:
        is_outvoting = np.zeros(len(step.index_n), np.bool_)
        for task in np.unique(step.task_n):
            members = np.flatnonzero(step.task_n == task)
            if len(members) < MIN_VOTES:
                continue
            tasks += 1
            texts = [step.response_n[n] for n in members]
            is_any_rewarded = bool(step.rewarded_n[members].any())
            if not is_any_rewarded and is_outvoted(texts, step.gold_n[members[0]]):
                outvoted += 1
                is_outvoting[members] = True
        flags.append(is_outvoting)

    rewarded = count_flags(step.rewarded_n for step in steps)
    answers = sum(len(step.index_n) for step in steps)
    if rewarded / answers < MIN_RIGHT_SHARE:
        return None
    if outvoted < max(MIN_OUTVOTED, MIN_OUTVOTED_SHARE * tasks):
        return None
    text = (
        f"on {outvoted} of {tasks} tasks nearly all rollouts agree on an answer that is not the"
        " gold one"
    )
    summary = (
        "The model is mostly right and sure of other answers than the gold ones on some tasks: look"
        " at these."
    )
    evidence = subset_evidence(steps, flags, text, outvoted / tasks)
    return Found(NOTE, SUSPICION, summary, [evidence])


def is_outvoted(texts: Sequence[str], gold: str) -> bool:
    """Return True where nearly all texts agree on an answer that is not gold."""
    answer, votes = Counter(map(answer_of, texts)).most_common(1)[0]
    return votes >= AGREEING_SHARE * len(texts) and answer not in ("", fold(gold))


# Characters of a prompt, and number of prompts, that examples quote.
PROMPT_CHARACTERS = 40
MAX_EXAMPLES = 4


@dataclass(frozen=True)
class GoldTable:
    """Prompts with their gold answers and a model's answers, as texts and as numbers.

    A number is NaN where the text is none.
    """

    prompts: Sequence[str]
    golds: Sequence[str]
    answers: Sequence[str]
    """Empty where the model was not asked."""
    result_n: Floats
    """Result of the operation that the prompt asks for."""
    gold_value_n: Floats
    answer_value_n: Floats

    @property
    def misfits(self) -> list[int]:
        """Numbers of the prompts whose gold is a number other than the computed result."""
        is_checkable = np.isfinite(self.result_n - self.gold_value_n)
        is_other = is_checkable & (self.result_n != self.gold_value_n)
        return np.flatnonzero(is_other).tolist()

    @property
    def examples(self) -> str:
        """A few misfits, in words."""
        examples: list[str] = []
        for n in self.misfits[:MAX_EXAMPLES]:
            prompt = self.prompts[n][-PROMPT_CHARACTERS:]
            examples.append(f"{prompt!r} has {self.golds[n]!r}")
        return "; ".join(examples)


def judge_golds(gold_and_text: Mapping[str, tuple[str, str]]) -> Found | None:
    """Find golds that contradict their prompts or belong to others.

    `gold_and_text` has, by prompt, the gold answer and the model's text (empty where there is
    none).
    """
    prompts = list(gold_and_text)
    golds: list[str] = []
    answers: list[str] = []
    for gold, text in gold_and_text.values():
        golds.append(gold)
        answers.append(answer_of(text))
    table = GoldTable(
        prompts,
        golds,
        answers,
        result_n=np.array([computed_result(prompt) for prompt in prompts]),
        gold_value_n=np.array([value_of(gold) for gold in golds]),
        answer_value_n=np.array([value_of(answer) for answer in answers]),
    )
    return _golds_against_results(table) or _golds_of_other_prompts(table)


# Share of golds that are their prompt's computed result from which that result is surely what the
# task asks for.
MIN_FITTING_SHARE = 0.6
# The same share from which it may be, and the model's answers decide.
MIN_MAYBE_FITTING_SHARE = 0.3
# Model's answers that are the computed result / that are gold, where the two differ.
MIN_MODEL_ODDS = 3
# Share of wrong golds from which training goes the wrong way.
CRITICAL_WRONG_SHARE = 0.1


def _golds_against_results(table: GoldTable) -> Found | None:
    """Find golds that are not what their prompts ask to compute."""
    misfits = table.misfits
    fitting = int((table.result_n == table.gold_value_n).sum())
    checkable = fitting + len(misfits)
    if len(misfits) < MIN_WRONG_SCORES or fitting < MIN_MAYBE_FITTING_SHARE * checkable:
        return None
    text = f"{len(misfits)} of {checkable} gold answers are not what their prompt gives"

    # Most golds are the computed result, so those that are not are wrong.
    if checkable >= MIN_CHECKABLE and fitting >= MIN_FITTING_SHARE * checkable:
        share = len(misfits) / checkable
        summary = f"{len(misfits)} of {checkable} gold answers are wrong."
        evidence = Evidence(f"{text}: {table.examples}", share)
        return Found(
            severity_by_share(share, critical=CRITICAL_WRONG_SHARE), PROOF, summary, [evidence]
        )

    # Only some golds are the computed result: the model decides, by answering with the result where
    # gold is another.
    answers = table.answer_value_n[misfits]
    saying_result = int((answers == table.result_n[misfits]).sum())
    saying_gold = int((answers == table.gold_value_n[misfits]).sum())
    if saying_result < max(MIN_WRONG_SCORES, MIN_MODEL_ODDS * saying_gold):
        return None
    text += (
        f"; of these the model answers {saying_result} with what the prompt gives, {saying_gold}"
        f" with gold: {table.examples}"
    )
    summary = f"{len(misfits)} of {checkable} gold answers seem to be wrong."
    return Found(WARNING, SIGNAL, summary, [Evidence(text, saying_result)])


# Different golds below which another prompt's gold is often right.
MIN_DIFFERENT_GOLDS = 6
# Distances to the prompts whose golds show how often an answer is gold by chance.
NEIGHBOR_DISTANCES = (1, 2, 3)
# An answer's own gold belongs to its prompt where it agrees this many times as often as chance,
# plus this share.
MIN_CHANCE_RATIO = 2
MIN_OWN_SHARE = 0.05


def _golds_of_other_prompts(table: GoldTable) -> Found | None:
    """Find golds that depend neither on the prompts nor on answers that do depend on these."""
    prompts: list[str] = []
    golds: list[str] = []
    answers: list[str] = []
    for prompt, gold, answer in zip(table.prompts, table.golds, table.answers, strict=True):
        if answer:
            prompts.append(prompt)
            golds.append(gold)
            answers.append(answer)
    if len(answers) < MIN_CHECKABLE or len(set(golds)) < MIN_DIFFERENT_GOLDS:
        return None

    gold_n = np.array([bare_answer(gold) for gold in golds])
    answer_n = np.array([bare_answer(answer) for answer in answers])
    own_share = float((gold_n == answer_n).mean())
    neighbor_matches = [np.roll(gold_n, distance) == answer_n for distance in NEIGHBOR_DISTANCES]
    chance_share = float(np.mean(neighbor_matches))

    # Where the model computes what prompts ask for and golds hardly ever are that, nothing else
    # needs to be compared.
    if not _computes_other_results(table, len(answers)):
        if own_share > MIN_CHANCE_RATIO * chance_share + MIN_OWN_SHARE:
            return None
        if texts_depend(prompts, golds) or texts_depend(golds, answers):
            return None
        # Answers that do not depend on their prompts either say nothing about the golds.
        if not texts_depend(prompts, answers):
            return None

    text = (
        f"{own_share:.0%} of {len(answers)} answers are their own prompt's gold,"
        f" {chance_share:.0%} another's: {table.examples}"
    )
    summary = (
        "The gold answers do not belong to their prompts: what the model says depends on these, the"
        " golds do not."
    )
    return Found(CRITICAL, SIGNAL, summary, [Evidence(text, own_share)])


# Share of answers that are the computed result from which the model does what the prompt asks, and
# share of golds among these results up to which the golds do not.
MIN_MODEL_RESULTS = 0.25
MAX_GOLD_RESULTS = 0.2


def _computes_other_results(table: GoldTable, n_answers: int) -> bool:
    """Return True where the model gives computed results that gold answers hardly ever are."""
    is_computed = table.result_n == table.answer_value_n
    if is_computed.sum() <= MIN_MODEL_RESULTS * n_answers:
        return False
    is_gold = table.result_n[is_computed] == table.gold_value_n[is_computed]
    return bool(is_gold.mean() <= MAX_GOLD_RESULTS)


def texts_depend(sources: Sequence[str], targets: Sequence[str]) -> bool:
    """Return True where each text depends on its source, by length, by numbers or by words: answers
    on their prompts, for example.
    """
    return (
        _lengths_depend(sources, targets)
        or _numbers_depend(sources, targets)
        or _words_depend(sources, targets)
    )


def _lengths_depend(sources: Sequence[str], targets: Sequence[str]) -> bool:
    source_lengths = np.array([len(source) for source in sources], float)
    target_lengths = np.array([len(target) for target in targets], float)
    return _are_correlated(source_lengths, target_lengths)


# Pairs of numbers below which their correlation says nothing.
MIN_PAIRS = 16
# Features of a prompt's numbers, one of which the result of a task usually grows with.
PROMPT_FEATURES: tuple[Callable[[list[float]], float], ...] = (
    max,
    sum,
    len,
    min,
    lambda numbers: abs(numbers[0]) - abs(numbers[-1]),
    lambda numbers: abs(numbers[0]),
)


def _numbers_depend(sources: Sequence[str], targets: Sequence[str]) -> bool:
    source_numbers: list[list[float]] = []
    target_numbers: list[float] = []
    for source, target in zip(sources, targets, strict=True):
        in_source = _numbers(source)
        in_target = _numbers(target.replace(",", ""))
        if in_source and in_target:
            source_numbers.append(in_source)
            target_numbers.append(in_target[-1])
    if len(target_numbers) < MIN_PAIRS:
        return False
    for feature in PROMPT_FEATURES:
        features = np.array([feature(numbers) for numbers in source_numbers], float)
        if _are_correlated(features, np.array(target_numbers)):
            return True
    return False


def _words_depend(sources: Sequence[str], targets: Sequence[str]) -> bool:
    """Return True where sources quote their own target more often than the one before it."""
    own = _are_quoted(sources, targets)
    previous = _are_quoted(sources, [*targets[-1:], *targets[:-1]])
    return is_positive(spread_of(own - previous))


def _numbers(text: str) -> list[float]:
    return [float(number) for number in re.findall(r"-?\d+(?:\.\d+)?", text)]


# Standard errors, 1/√n each, above which a rank correlation is no chance.
MAX_CORRELATION_ERRORS = 3.0


def _are_correlated(x: Floats, y: Floats) -> bool:
    return bool(abs(rank_correlation(x, y)) > MAX_CORRELATION_ERRORS / len(x) ** 0.5)


def _are_quoted(sources: Sequence[str], targets: Sequence[str]) -> Floats:
    pairs = zip(sources, targets, strict=True)
    return np.array([target.lower() in source.lower() for source, target in pairs], float)


# Standard errors above which a mean gain is no chance.
MAX_GAIN_ERRORS = 2.0
# Gain that is only rounding, where all gains are equal.
ROUNDING_GAIN = 1e-9


def is_positive(gains: Spread | None) -> bool:
    """Return True where a mean gain is above 0 by more than noise."""
    if gains is None:
        return False
    noise = MAX_GAIN_ERRORS * gains.deviation / gains.seeds**0.5
    return bool(gains.mean > noise + ROUNDING_GAIN)
