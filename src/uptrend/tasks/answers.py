"""Answers as text: read from what was said, corrupted, written in other forms, and sorted into
classes.

The reader is independent of every taskset's own. It is strict (`says`), lenient (`says_leniently`),
or sure that a text is wrong (`is_surely_wrong`); what lies between is not judged.

At the end, the reader (`extract`) and the grader (`grade`) of our own tasks with short answers, for
training and evaluation alike.
"""

import json
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Literal, TypeVar

from uptrend.records import Message, Reward, Task, Tool

T = TypeVar("T")

# Characters at the end of a text in which an answer is looked for: what comes long before the end
# is work.
READ_CHARACTERS = 2000
_BOX = re.compile(r"\\boxed\s*\{([^{}]*)\}")
_MARK = re.compile(r"####\s*(.+)")
_NAMED = re.compile(r"answer(?:\s+is|\s*:|\s*=)\s*([^\n]+)", re.IGNORECASE)
_NUMBER = re.compile(r"[-+]?\d[\d,]*(?:\.\d+)?")
_EDGES = " \t\r\n.,;:!?'\"`*_$()[]"


# Reading


def fold(text: str) -> str:
    """Return a text as it is compared: case, spaces and punctuation at its edges do not matter."""
    return " ".join(text.lower().split()).strip(_EDGES)


def answer_of(text: str) -> str:
    """Return what a text gives as its answer: inside the last tags, or its first line."""
    tagged = _inside_tags(text)
    if tagged is not None:
        return fold(tagged)
    return fold(text.strip().partition("\n")[0][:READ_CHARACTERS])


def final_answer(solution: str) -> str:
    """Return the answer out of a worked solution: behind ####, in a box or in tags; all of it where
    there is none.
    """
    for pattern in (_MARK, _BOX):
        marked = pattern.findall(solution)
        if marked:
            return str(marked[-1]).strip()
    tagged = _inside_tags(solution)
    return (solution if tagged is None else tagged).strip()


def _inside_tags(text: str) -> str | None:
    """Return what stands in the last answer tags; None where there are none."""
    begin = text.rfind("<answer>")
    inside, end, _ = text[begin + len("<answer>") :].partition("</answer>")
    return inside if begin >= 0 and end else None


@lru_cache(maxsize=4096)  # groups say the same thing often
def says(text: str, gold: str) -> bool:
    """Return True where the answer is the gold one, word for word, plainly or where answers are
    put.
    """
    return answer_of(text) == fold(gold) and bool(fold(gold))


def says_leniently(text: str, gold: str) -> bool:
    """Return True where a person would take it as gold: boxed, in a sentence, or a number in
    another format.
    """
    return bool(({fold(gold), number_of(gold)} - {""}) & _readings(text))


@lru_cache(maxsize=4096)
def _readings(text: str) -> frozenset[str]:
    """Return every answer that a text can be taken for."""
    end = text[-READ_CHARACTERS:]
    parts = [answer_of(text)]
    for pattern in (_BOX, _MARK, _NAMED):
        parts += pattern.findall(end)[-1:]
    readings = {fold(part) for part in parts} | {number_of(part) for part in parts}
    if len(text) <= READ_CHARACTERS:
        numbers = {number_of(part) for part in _NUMBER.findall(end)}
        if len(numbers) == 1:
            readings |= numbers
    return frozenset(readings - {""})


@lru_cache(maxsize=4096)
def is_surely_wrong(text: str, gold: str) -> bool:
    """Return True for another answer: numbers of which none is near gold, or nothing of gold's
    words.
    """
    value = value_of(gold)
    if math.isnan(value):
        return fold(gold) not in fold(text) and not _NUMBER.search(gold)
    # the same number may be written otherwise
    if re.search(r"[\\/%^√]|\d[eE]|[-+*=]\s*\d.*[-+*=]\s*\d", text):
        return False
    numbers = [float(part.replace(",", "")) for part in _NUMBER.findall(text)]
    return all(
        abs(number - value) > 0.01 * abs(value) and abs(number) != abs(value) for number in numbers
    )


def number_of(text: str) -> str:
    """Return a text that is one number without its formatting; empty for any other."""
    numbers = _NUMBER.findall(text)
    bare_text = fold(text).lstrip("=≈ ").replace("\\", "")
    if len(numbers) != 1 or len(bare_text) > len(numbers[0]) + 2:
        return ""
    value = float(numbers[0].replace(",", ""))
    return str(int(value)) if value.is_integer() else repr(value)


def value_of(text: str) -> float:
    """Return the one number that a text is; NaN for any other."""
    return float(number_of(text) or "nan")


def bare_answer(answer: str) -> str:
    """Return an answer without format: its number, or its folded words."""
    return number_of(answer) or fold(answer)


def plain_question(text: str) -> str:
    """Return a question without case, spaces and punctuation that carry nothing."""
    return " ".join(re.sub(r"[?!.,;:\"'`]+(?=\s|$)", " ", text.lower()).split())


_OPERATION = re.compile(r"(?<![\d.)*/^])(-?\d+)\s*([-+*×])\s*(-?\d+)(?!\s*[-+*/^×.\d)])")


def computed_result(prompt: str) -> float:
    """Return the result of the only operation on whole numbers that a prompt asks for; NaN where
    there is none.
    """
    operations = _OPERATION.findall(prompt)
    if len(operations) != 1 or len(re.findall(r"\d+", prompt)) != 2:
        return math.nan
    left, sign, right = operations[0]
    a = int(left)
    b = int(right)
    if sign == "+":
        return float(a + b)
    return float(a - b if sign == "-" else a * b)


# Gold answers in the rows of a dataset that nobody described

# Names of columns that hold right answers, likeliest first.
GOLD_COLUMNS = (
    "answer",
    "answers",
    "gold",
    "gold_answer",
    "ground_truth",
    "solution",
    "target",
    "final_answer",
    "expected",
    "expected_answer",
    "correct_answer",
    "reference_answer",
    "label",
    "labels",
    "result",
)


def gold_column(row: Mapping[str, Any]) -> str | None:
    """Return the column of a row that holds the right answer, by its name."""
    lowered = {key.lower(): key for key in row}
    return next(
        (
            lowered[name]
            for name in GOLD_COLUMNS
            if name in lowered and gold_text(row[lowered[name]])
        ),
        None,
    )


def gold_text(value: Any) -> str:
    """Return a gold answer as text; empty where the value holds none."""
    if isinstance(value, str | bool | int | float):
        return str(value)
    if isinstance(value, list | tuple) and value:
        return gold_text(value[0])
    if isinstance(value, Mapping):
        return next((gold_text(value[key]) for key in GOLD_COLUMNS if key in value), "")
    return ""


# Wrong answers

# Texts without any answer.
EMPTY_TEXT = ""
GARBAGE_TEXT = "@@ ??"
# Mere length.
LONG_TEXT = " ".join(["therefore"] * 200)
# Text that says every small number.
SMALL_NUMBERS = range(-20, 41)


def other_answers(
    gold: str, answers: Iterable[str], value: Callable[[str], float | None] = value_of
) -> list[str]:
    """Return those answers that are not gold in other words, by the number that `value` reads."""
    own = value(gold)
    has_number = own is not None and not math.isnan(own)
    others = [answer for answer in answers if answer.casefold() != gold.casefold()]
    return [answer for answer in others if value(answer) != own] if has_number else others


def near_miss(gold: str) -> str:
    """Return a wrong answer of the same kind."""
    if re.fullmatch(r"-?\d[\d,]*", gold):
        return str(int(gold.replace(",", "")) + 1)
    if re.fullmatch(r"-?\d+\.\d+", gold):
        return str(float(gold) + 1)
    return gold[::-1] + "x"


# Forms in which reward functions in the wild want an answer.
ANSWER_FORMATS = (
    "{}",
    " {}",
    "#### {}",
    "\\boxed{{{}}}",
    "$\\boxed{{{}}}$",
    "<answer>{}</answer>",
    "<answer>\n{}\n</answer>",
    "<think>\n...\n</think>\n<answer>\n{}\n</answer>",
    "<think>\n...\n</think>\n\\boxed{{{}}}",
    "<reasoning>\n...\n</reasoning>\n<answer>\n{}\n</answer>\n",
    "Answer: {}",
    "The answer is {}.",
    "... Therefore, the final answer is {}",
    '{{"answer": "{}"}}',
    "```\n{}\n```",
)


def _json_value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def _as_python(answer: str) -> str:
    value = _json_value(answer)
    return str(value) if isinstance(value, bool | list | dict) else answer


def _first_of_list(answer: str) -> str:
    value = _json_value(answer)
    return str(value[0]) if isinstance(value, list) and value else answer


# An answer that is no text is recorded as JSON: a reward may compare with str() of it, or look into
# a list of synonyms.
PARTS: dict[str, Callable[[str], str]] = {
    "": lambda answer: answer,
    "the answer as Python prints it": _as_python,
    "the first of a list of answers": _first_of_list,
}


@dataclass(frozen=True)
class Form:
    """A way to write an answer: the words around it, and the part of it that is taken."""

    words: str
    part: str = ""

    def write(self, answer: str) -> str:
        """Return an answer in this form."""
        return self.words.format(PARTS[self.part](answer))

    @property
    def example(self) -> str:
        """The form of the word GOLD, quoted."""
        return repr(self.words.format("GOLD"))

    def __str__(self) -> str:
        return f"{self.example} with {self.part}" if self.part else self.example


def forms_of(answers: Sequence[str]) -> list[Form]:
    """Return every form in which these answers can be written, the plain one first."""
    parts = [
        name
        for name, take in PARTS.items()
        if not name or any(take(answer) != answer for answer in answers)
    ]
    return [Form(words, part) for part in parts for words in ANSWER_FORMATS]


# Classes of answers

# Kinds of answers on which parsers fail, by what a gold answer has: an average over all of them
# hides one.
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
# Tasks of each class that are tried at least, and as a share of all.
MIN_PER_CLASS = 3
CLASS_SHARE = 1 / 8
# How much oftener members of a class must be rejected than others: a class that is rejected as
# often explains nothing.
MIN_CLASS_GAP = 0.6
# Rejected members that name a class: one may be an odd row.
MIN_CLASS_MEMBERS = 2


def draw_every_class(items: Sequence[T], gold: Callable[[T], str], count: int) -> list[T]:
    """Return at most `count` items: some of every class of gold answers that there is, then the
    rest in its order.
    """
    per_class = max(MIN_PER_CLASS, int(count * CLASS_SHARE))
    places: dict[int, None] = {}
    for holds in CLASSES.values():
        members = [place for place, item in enumerate(items) if holds(gold(item))]
        places.update(dict.fromkeys(members[:per_class]))
    places.update(dict.fromkeys(range(len(items))))
    return [items[place] for place in list(places)[:count]]


def name_class(rejected: Sequence[str], accepted: Sequence[str]) -> str:
    """Name what sets rejected gold answers apart from accepted ones, with counts; empty where no
    class does.
    """
    largest_gap = MIN_CLASS_GAP
    name = ""
    for class_name, holds in CLASSES.items():
        members_out = sum(map(holds, rejected))
        members = members_out + sum(map(holds, accepted))
        others_out = len(rejected) - members_out
        others = len(rejected) + len(accepted) - members
        if members_out < MIN_CLASS_MEMBERS or not others:
            continue
        gap = members_out / members - others_out / others
        if gap > largest_gap:
            largest_gap = gap
            name = (
                f"{members_out} of {members} that are {class_name}, {others_out} of {others} others"
            )
    return name


# Tasks with short answers

INTEGER_PATTERN = re.compile(r"-?[0-9]+")
Rule = Literal["exact", "partial", "rich"]
Place = Literal["start", "end"]
# Rewards of a wrong number: up to this distance from the answer, this much.
NEAR_MISSES: dict[Rule, tuple[tuple[float, float], ...]] = {
    "partial": ((1, 0.5), (5, 0.25)),
    "rich": ((1, 0.7), (2, 0.4), (5, 0.1), (10, -0.2), (math.inf, -0.5)),
}


def extract(completion: str, place: Place = "start") -> str:
    """Return the answer in what a model said: a number at its start, else its first word; empty
    where it is silent.

    With `place` "end", the last number of the first line that has text: what stands before it is
    how it was found.
    """
    text = completion.strip()
    if place == "end":
        numbers = INTEGER_PATTERN.findall(text.partition("\n")[0])
        return numbers[-1] if numbers else ""
    if number := INTEGER_PATTERN.match(text):
        return number.group()
    return fold_word(text.split(maxsplit=1)[0]) if text else ""


def fold_word(word: str) -> str:
    """Return a word as it is compared: case and trailing punctuation do not matter."""
    return word.lower().rstrip(".,;:!?'\")")


def is_right(completion: str, answer: str, place: Place = "start") -> bool:
    """Return True where a completion is the answer."""
    return extract(completion, place) == fold_word(answer)


def read_number(text: str, base: int) -> int | None:
    """Return the value of an extracted answer, or None for what is no number in this base."""
    if not INTEGER_PATTERN.fullmatch(text):
        return None
    try:
        return int(text, base)
    except ValueError:  # a digit that the base lacks, or more digits than Python will read
        return None


def grade(rule: Rule, completion: str, task: Task, place: Place = "start") -> Reward:
    """Return the reward of a completion under a rule; answers that are no numbers are always graded
    exactly.
    """
    correct = is_right(completion, task.answer, place)
    applied: Rule = rule if task.data.get("base") else "exact"
    value = 1.0 if correct else _grade_wrong(applied, extract(completion, place), task)
    return Reward.of(applied, value, -1.0, 1.0, correct)


def _grade_wrong(rule: Rule, said: str, task: Task) -> float:
    if rule == "exact":
        return -1.0
    value, answer = (read_number(text, task.data["base"]) for text in (said, task.answer))
    if value is None or answer is None:
        return -1.0
    for most, earned in NEAR_MISSES[rule]:
        if abs(value - answer) <= most:
            return earned
    a = task.data.get("a")
    b = task.data.get("b")
    is_other_operation = (
        isinstance(a, int) and isinstance(b, int) and value in (a + b, a - b, a * b)
    )
    return -0.5 if is_other_operation else -1.0


class OneTurn:
    """A play that ends with the first thing that the model says; silence is graded as an empty
    answer.
    """

    tools: Sequence[Tool] = ()

    def __init__(self, task: Task, rule: Rule, place: Place = "start", examples: str = "") -> None:
        first, *others = task.messages
        # Here and not in the task: whether it is held out depends on the question alone.
        self.messages = (replace(first, content=examples + first.content), *others)
        self._task = task
        self._rule = rule
        self._place = place
        self._said = ""

    async def respond(self, message: Message) -> Sequence[Message] | None:
        self._said = message.content
        return None

    async def score(self) -> Reward:
        return grade(self._rule, self._said, self._task, self._place)

    async def close(self) -> None:
        """Nothing is held."""
