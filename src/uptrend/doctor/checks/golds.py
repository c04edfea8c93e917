"""Gold answers that can't be right: two of one question, against what the prompt gives, or of other prompts."""

import math
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from uptrend.doctor.answers import (
    ENOUGH,
    FEWEST,
    UNFINISHED,
    Answers,
    answer_of,
    bare,
    fold,
    plain_question,
    read_answers,
    value_of,
    why_no_answers,
)
from uptrend.doctor.case import Case
from uptrend.doctor.check import Answer, Found, Lacking, by_share, check, warn_if
from uptrend.doctor.groups import count_flags, seen_among
from uptrend.doctor.rank import CRITICAL, NOTE, PROOF, SIGNAL, SUSPICION, WARNING
from uptrend.records import Evidence
from uptrend.records.table import Flags
from uptrend.stats.intervals import Spread, spread_of
from uptrend.stats.trend import rank_correlation


@check("data.wrong-gold")
def wrong_gold(case: Case) -> Answer:
    """Report a question with two gold answers, or a model that agrees with itself and never with the gold answer."""
    if lacking := why_no_answers(case):
        return Lacking(lacking)
    steps = case.once(read_answers)
    golds, bad, flags, given = dict[str, str](), set[str](), [], dict[str, tuple[str, str]]()
    for a in steps:
        asked = a.rows.question_n
        tasks = [plain_question(asked[n]) for n in a.place_n]
        pairs = zip(tasks, map(bare, a.gold_n), strict=True)
        flags.append(np.array([golds.setdefault(task, gold) != gold for task, gold in pairs], np.bool_))
        bad |= {tasks[n] for n in np.flatnonzero(flags[-1])}
        told = zip(a.place_n, a.gold_n, a.said_n, a.rows.ended_n[a.place_n], strict=True)
        given |= {asked[n]: (gold, said) for n, gold, said, ended in told if ended not in UNFINISHED}
    if not bad:
        return unfit_golds(given) or _outvoted(steps)
    text = f"{len(bad)} of {len(golds)} questions have more than one gold answer, such as {sorted(bad)[0][-80:]!r}"
    shown = seen_among(steps, flags, text, len(bad) / len(golds))
    summary = f"{len(bad)} questions have different gold answers, so at least one of each is wrong."
    return Found(warn_if(len(bad) >= 0.02 * len(golds)), PROOF, summary, [shown])


_SUM = re.compile(r"(?<![\d.)*/^])(-?\d+)\s*([-+*×])\s*(-?\d+)(?!\s*[-+*/^×.\d)])")


def reckon(prompt: str) -> float:
    """Return the result of the only operation on whole numbers that a prompt asks for; NaN where there is none."""
    found = _SUM.findall(prompt)
    if len(found) != 1 or len(re.findall(r"\d+", prompt)) != 2:
        return math.nan
    a, sign, b = found[0]
    return float({"+": int(a) + int(b), "-": int(a) - int(b)}.get(sign, int(a) * int(b)))


def unfit_golds(given: Mapping[str, tuple[str, str]]) -> Found | None:
    """Judge gold answers, with what the model said, by prompt: some that contradict it, or all of other prompts."""
    prompts, golds, said = list(given), [gold for gold, _ in given.values()], [answer_of(s) for _, s in given.values()]
    results, values = np.array(list(map(reckon, prompts))), np.array(list(map(value_of, golds)))
    known = np.isfinite(results) & np.isfinite(values)
    fits = known & (results == values)
    bad = np.flatnonzero(known & ~fits)
    examples = "; ".join(f"{prompts[n][-40:]!r} has {golds[n]!r}" for n in bad[:4])
    # Where the reckoning fits most golds it is what is asked, and the rest is wrong.
    if known.sum() >= ENOUGH / 2 and len(bad) >= FEWEST and fits.sum() >= 0.6 * known.sum():
        text = f"{len(bad)} of {known.sum()} gold answers are not what their prompt gives: {examples}"
        share, summary = len(bad) / int(known.sum()), f"{len(bad)} of {known.sum()} gold answers are wrong."
        return Found(by_share(share, critical=0.1), PROOF, summary, [Evidence(text, share)])
    # Where it fits many, the model decides: it says the result where gold says something else.
    as_result, as_gold = (sum(value_of(said[n]) == of[n] for n in bad) for of in (results, values))
    if fits.sum() >= 0.3 * known.sum() and as_result >= max(FEWEST, 3 * as_gold):
        text = (
            f"{len(bad)} of {known.sum()} gold answers are not what their prompt gives, and the model says the latter"
        )
        shown = Evidence(f"{text} in {as_result}, gold in {as_gold}: {examples}", as_result)
        return Found(WARNING, SIGNAL, f"{len(bad)} of {known.sum()} gold answers seem to be wrong.", [shown])
    heard = [n for n, text in enumerate(said) if text]
    reckoned = [n for n in heard if results[n] == value_of(said[n])]  # the model gives what is asked
    is_misfit = 4 * len(reckoned) > len(heard) and not fits[reckoned].mean() > 0.2
    prompts, golds, said = ([of[n] for n in heard] for of in (prompts, golds, said))
    if len(heard) < ENOUGH / 2 or len(set(golds)) < 6:
        return None
    wanted, spoken = np.array(list(map(bare, golds))), np.array(list(map(bare, said)))
    own, others = float((wanted == spoken).mean()), float(np.mean([np.roll(wanted, k) == spoken for k in (1, 2, 3)]))
    # The model's answers have to do with the prompts, and the gold ones with neither.
    is_tied = own > 2 * others + 0.05 or texts_agree(prompts, golds) or texts_agree(golds, said)
    if not is_misfit and (is_tied or not texts_agree(prompts, said)):
        return None
    text = f"{own:.0%} of {len(said)} answers are their own prompt's gold, {others:.0%} another's: {examples}"
    summary = "The gold answers do not belong to their prompts: what the model says depends on these, the golds do not."
    return Found(CRITICAL, SIGNAL, summary, [Evidence(text, own)])


def texts_agree(prompts: Sequence[str], answers: Sequence[str]) -> bool:
    """Return True where answers have anything to do with their prompts: in numbers, in words or in length."""
    numbers = [re.findall(r"-?\d+(?:\.\d+)?", answer.replace(",", "")) for answer in answers]
    asked = [[float(n) for n in re.findall(r"-?\d+(?:\.\d+)?", prompt)] for prompt in prompts]
    have = [i for i, found in enumerate(numbers) if found and asked[i]]
    pairs: list[tuple[list[Any], list[Any]]] = [([len(p) for p in prompts], [len(a) for a in answers])]
    if len(have) >= 16:
        values = [float(numbers[i][-1]) for i in have]
        features: tuple[Callable[[list[float]], float], ...] = (
            max, sum, len, min, lambda given: abs(given[0]) - abs(given[-1]), lambda given: abs(given[0])
        )  # fmt: skip
        pairs += [([feature(asked[i]) for i in have], values) for feature in features]
    # A rank correlation without a cause has a deviation of about 1/√n; three of them are the limit.
    if any(abs(rank_correlation(np.array(a, float), np.array(b, float))) > 3.0 / len(a) ** 0.5 for a, b in pairs):
        return True
    own, others = (
        np.array([answer.lower() in prompt.lower() for prompt, answer in zip(prompts, given, strict=True)], float)
        for given in (answers, np.roll(answers, 1))
    )
    return is_positive(spread_of(own - others))


def is_positive(gains: Spread | None) -> bool:
    """Return True where a mean gain is above 0 by more than noise."""
    return gains is not None and gains.mean > 2.0 * gains.deviation / gains.seeds**0.5 + 1e-9


def _outvoted(steps: list[Answers]) -> Found | None:
    """Find a model that is mostly right, and sure of another answer than the gold on a good part of the tasks."""
    sure, tasks, flags = 0, 0, list[Flags]()
    for a in steps:
        against = np.zeros(len(a.place_n), np.bool_)
        for task in np.unique(a.task_n):
            of = np.flatnonzero(a.task_n == task)
            if len(of) < 4:
                continue
            tasks += 1
            said, votes = Counter(answer_of(a.said_n[n]) for n in of).most_common(1)[0]
            if votes >= 0.9 * len(of) and said and said != fold(a.gold_n[of[0]]) and not a.rewarded_n[of].any():
                sure += 1
                against[of] = True
        flags.append(against)
    right = count_flags(a.rewarded_n for a in steps) / sum(len(a.place_n) for a in steps)
    if right < 0.5 or sure < 5 or sure < 0.1 * tasks:
        return None
    text = f"on {sure} of {tasks} tasks nearly all rollouts agree on an answer that is not the gold one"
    summary = "The model is mostly right and sure of other answers than the gold ones on some tasks: look at these."
    return Found(NOTE, SUSPICION, summary, [seen_among(steps, flags, text, sure / tasks)])
