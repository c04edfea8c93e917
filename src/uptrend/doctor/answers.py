"""Answers of rollouts, read by a second reader that is independent of every taskset's own: strict, and lenient."""

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np
from numpy.typing import NDArray

from uptrend.doctor.case import Case
from uptrend.doctor.groups import Chosen
from uptrend.records import Ending
from uptrend.records.table import Flags, Floats, Ints

# Rollouts below which their endings are chance, and rollouts that must show a wrong score.
ENOUGH = 32
FEWEST = 3
# Rollouts that ended so had more to say: their last words are no answer yet.
UNFINISHED = (Ending.TURN_LIMIT.value, Ending.TIME_LIMIT.value, Ending.CONTEXT_FULL.value)
RAN_OUT = (*UNFINISHED, Ending.LENGTH.value)
_BOX = re.compile(r"\\boxed\s*\{([^{}]*)\}")
_MARK = re.compile(r"####\s*(.+)")
_NAMED = re.compile(r"answer(?:\s+is|\s*:|\s*=)\s*([^\n]+)", re.IGNORECASE)
_NUMBER = re.compile(r"[-+]?\d[\d,]*(?:\.\d+)?")
_EDGES = " \t\r\n.,;:!?'\"`*_$()[]"
# Characters in which an answer is looked for.
LONGEST = 2000


def fold(text: str) -> str:
    """Return a text as it is compared: case, spaces and punctuation at its edges do not matter."""
    return " ".join(text.lower().split()).strip(_EDGES)


def answer_of(text: str) -> str:
    """Return what a text gives as its answer: inside the last tags, or its first line."""
    begin = text.rfind("<answer>")
    if begin >= 0 and "</answer>" in text[begin:]:
        return fold(text[begin + len("<answer>") :].partition("</answer>")[0])
    return fold(text.strip().partition("\n")[0][:LONGEST])


@lru_cache(maxsize=4096)  # groups say the same thing often
def says(text: str, gold: str) -> bool:
    """Tell whether the answer is the gold one, word for word, plainly or where answers are put."""
    return answer_of(text) == fold(gold) and bool(fold(gold))


def says_somehow(text: str, gold: str) -> bool:
    """Tell whether a person would take it as the gold answer: boxed, in a sentence, or a number in another format."""
    return bool(({fold(gold), number_of(gold)} - {""}) & _readings(text))


@lru_cache(maxsize=4096)
def _readings(text: str) -> frozenset[str]:
    """Return every answer that a text can be taken for."""
    end = text[-LONGEST:]  # what comes long before the end is work, not an answer
    given = [*_BOX.findall(end)[-1:], *_MARK.findall(end)[-1:], *_NAMED.findall(end)[-1:], answer_of(text)]
    numbers = {number_of(part) for part in _NUMBER.findall(end)} if len(text) <= LONGEST else set()
    alone = numbers if len(numbers) == 1 else set()
    return frozenset({fold(part) for part in given} | {number_of(part) for part in given} | alone) - {""}


def number_of(text: str) -> str:
    """Return a text that is one number without its formatting; empty for any other."""
    found = _NUMBER.findall(text)
    bare = fold(text).lstrip("=≈ ").replace("\\", "")
    if len(found) != 1 or len(bare) > len(found[0]) + 2:
        return ""
    value = float(found[0].replace(",", ""))
    return str(int(value)) if value.is_integer() else repr(value)


# Kinds of answers on which parsers fail, by what a gold answer has: an average over all of them hides one.
CLASSES: dict[str, Callable[[str], bool]] = {
    "negative": lambda gold: value_of(gold) < 0,
    "zero": lambda gold: value_of(gold) == 0,
    "a decimal": lambda gold: bool(re.fullmatch(r"[-+]?[\d,]*\.\d+", gold)),
    "written with thousands separators": lambda gold: bool(re.search(r"\d,\d{3}", gold)),
    "a number of two digits or more": lambda gold: bool(re.fullmatch(r"[-+]?\d{2,}", gold)),
    "no number": lambda gold: math.isnan(value_of(gold)),
    "several words": lambda gold: len(gold.split()) > 1,
    "written with capitals": lambda gold: gold != gold.lower(),
    "written with signs or punctuation": lambda gold: bool(re.search(r"[^\w\s.,+-]|[.,]$", gold)),
    "longer than 8 characters": lambda gold: len(gold) > 8,
}


def value_of(text: str) -> float:
    """Return the one number that a text is; NaN for any other."""
    return float(number_of(text) or "nan")


def name_class(rejected: Sequence[str], accepted: Sequence[str]) -> str:
    """Name what sets rejected gold answers apart from accepted ones, with counts; empty where no class does."""
    best, told = 0.6, ""
    for name, holds in CLASSES.items():
        out, kept = sum(map(holds, rejected)), sum(map(holds, accepted))
        rest = len(rejected) + len(accepted) - out - kept
        inside, outside = out / max(1, out + kept), (len(rejected) - out) / max(1, rest)
        # An average class explains nothing: its members must be rejected, and others not.
        if out >= 2 and rest and inside - outside > best:
            best = inside - outside
            told = f"{out} of {out + kept} that are {name}, {len(rejected) - out} of {rest} others"
    return told


@dataclass(frozen=True)
class Answers(Chosen):
    """The scored rollouts of one step that said something to a task with a gold answer."""

    said_n: list[str]
    gold_n: list[str]
    task_n: Ints
    right_n: Flags
    """True where the strict reader finds the gold answer."""
    rewarded_n: Flags
    """True where the run counted it as right."""
    low_n: Flags
    """True where it earned the least that there is."""
    reward_n: Floats
    wrong_n: Flags
    """True where it is wrong for certain: it gives another answer, and the gold one nowhere."""

    def accepted(self, golds: Sequence[str], among_n: Flags) -> Flags:
        """Flag those of some rollouts that the lenient reader takes for these gold answers."""
        trios = zip(among_n, self.said_n, golds, strict=True)
        return np.array([bool(is_among) and says_somehow(said, gold) for is_among, said, gold in trios], np.bool_)

    def golds_of_others(self) -> list[str]:
        """Return for each rollout the gold answer of the next task of its step; its own where there is no other."""
        gold_of = dict(zip(self.task_n.tolist(), self.gold_n, strict=True))
        tasks = sorted(gold_of)
        following = dict(zip(tasks, tasks[1:] + tasks[:1], strict=True))
        return [gold_of[following[task]] for task in self.task_n.tolist()]


def read_answers(case: Case) -> list[Answers]:
    """Return the answers of each step that has texts, gold answers, tasks and rewards."""
    found = []
    for r in case.rows_with("messages", "answer", "reward"):
        said, gold = r.response_n, r.texts("answer")
        scored = np.isfinite(r.reward_n) & np.array([e is None for e in r.texts("error")], np.bool_)
        place = np.array([n for n in np.flatnonzero(scored) if said[n] is not None and gold[n]], np.int64)
        if r.task_n is None or not len(place):
            continue
        texts, golds = [said[n] or "" for n in place], [gold[n] or "" for n in place]
        right = np.array(list(map(says, texts, golds)), np.bool_)
        reward, low, high, correct = (
            r.by_rollout(key)[place] for key in ("reward", "reward_low", "reward_high", "correct")
        )
        low = np.where(np.isfinite(low), low, np.nanmin(reward))
        high = np.where(np.isfinite(high), high, np.nanmax(reward))
        rewarded = np.where(np.isfinite(correct), correct != 0, reward >= high - 1e-6).astype(np.bool_)
        is_low = (reward <= low + 1e-6) & (high > low)
        wrong = np.array(list(map(is_surely_wrong, texts, golds)), np.bool_) & ~right
        found.append(Answers(r, place, texts, golds, r.task_n[place], right, rewarded, is_low, reward, wrong))
    return found


@lru_cache(maxsize=4096)
def is_surely_wrong(text: str, gold: str) -> bool:
    """Tell whether a text gives another answer: numbers of which none is near gold, or nothing of gold's words."""
    value = value_of(gold)
    if math.isnan(value):
        return fold(gold) not in fold(text) and not _NUMBER.search(gold)
    if re.search(r"[\\/%^√]|\d[eE]|[-+*=]\s*\d.*[-+*=]\s*\d", text):  # the same number may be written otherwise
        return False
    numbers = [float(found.replace(",", "")) for found in _NUMBER.findall(text)]
    return all(abs(number - value) > 0.01 * abs(value) and abs(number) != abs(value) for number in numbers)


def _form(text: str, gold: str) -> str:
    before, _, after = text.rpartition(gold)
    return re.sub(r"\d+", "0", f"{before[-40:]}{{}}{after[:40]}")


@dataclass(frozen=True)
class Payment:
    """What right and wrong answers earn, over all steps that are read; arrays are by answer."""

    steps: list[Answers]
    right_n: Flags
    wrong_n: Flags
    reward_n: Floats
    task_n: NDArray[np.str_]
    gold_n: list[str]
    form_n: NDArray[np.str_]

    def among(self, flags: Flags) -> list[Flags]:
        """Return flags of all answers by step."""
        return np.split(flags, np.cumsum([len(a.place_n) for a in self.steps])[:-1])

    @cached_property
    def top(self) -> float:
        """What a right answer earns where it is accepted."""
        return float(np.quantile(self.reward_n[self.right_n], 0.9)) if self.right_n.any() else math.nan

    @cached_property
    def base(self) -> float:
        """What a wrong answer earns as a rule."""
        return float(np.median(self.reward_n[self.wrong_n])) if self.wrong_n.any() else math.nan

    @cached_property
    def lax(self) -> float:
        """Share of surely wrong answers that earn as much as right ones."""
        is_paid = self.top > np.min(self.reward_n)
        return float((self.reward_n[self.wrong_n] >= self.top - 1e-6).mean()) if is_paid and self.wrong_n.any() else 0.0

    @property
    def is_inverted(self) -> bool:
        """True where right answers earn less than wrong ones as a rule."""
        if min(self.right_n.sum(), self.wrong_n.sum()) < 2 * FEWEST:
            return False
        # Against other tasks' answers a wrong one is paid now and then, but not as a rule.
        return float(np.median(self.reward_n[self.right_n])) < self.base


def payment(case: Case) -> Payment | None:
    """Read what right and wrong answers earn; None without answers."""
    steps = [a for a in case.once(read_answers) if len(a.place_n)]
    if not steps:
        return None
    tasks = [np.array(a.rows.texts("task"), np.str_)[a.place_n] for a in steps]
    # A rollout that was cut off may have had more to say.
    ended = np.concatenate([~np.isin(a.rows.ended_n[a.place_n], UNFINISHED) for a in steps])
    return Payment(
        steps, np.concatenate([a.right_n for a in steps]) & ended, np.concatenate([a.wrong_n for a in steps]) & ended,
        np.concatenate([a.reward_n for a in steps]), np.concatenate(tasks), [gold for a in steps for gold in a.gold_n],
        np.concatenate([list(map(_form, a.said_n, a.gold_n)) for a in steps]),
    )  # fmt: skip


def plain_question(text: str) -> str:
    """Return a question without case, spaces and punctuation that carry nothing."""
    return " ".join(re.sub(r"[?!.,;:\"'`]+(?=\s|$)", " ", text.lower()).split())


def bare(answer: str) -> str:
    return number_of(answer) or fold(answer)


def why_no_scores(case: Case) -> str:
    # Our own rollouts always have a place for a score.
    return case.why_no_rollouts(() if case.view.trainer == "uptrend" else ("reward",))


def why_no_answers(case: Case) -> str:
    lacking = case.why_no_rollouts(["reward", "task", "answer", "messages"])
    return lacking or ("" if case.once(read_answers) else "no scored rollout has a gold answer and a text")
