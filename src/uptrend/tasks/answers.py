"""Answers as text: read from completions, corrupted, written in other forms, and sorted into
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
from itertools import chain, zip_longest
from typing import Any, Literal, TypeVar

from uptrend.records import Message, Reward, Task, Tool

T = TypeVar("T")

# Characters at the end of a text in which an answer is looked for: what comes long before the end
# is work.
READ_CHARACTERS = 2000
# Entries of each cache of readings: the rollouts of a group often have the same text.
CACHED_TEXTS = 4096
# Numbers within this share of the gold one may be roundings of it.
MAX_ROUNDING_SHARE = 0.01
# Characters that formatting may add to a text that is one number.
MAX_FORMAT_CHARACTERS = 2
_BOX_PATTERN = re.compile(r"\\boxed\s*\{([^{}]*)\}")
_MARK_PATTERN = re.compile(r"####\s*(.+)")
_SENTENCE_PATTERN = re.compile(r"answer(?:\s+is|\s*:|\s*=)\s*([^\n]+)", re.IGNORECASE)
_NUMBER_PATTERN = re.compile(r"[-+]?\d[\d,]*(?:\.\d+)?")
# Numbers with a sign before zero, or with zeros before other digits.
_ODD_NUMBER_PATTERN = re.compile(r"[-+]0+(?:\.0*)?$|[-+]?0\d")
# Fractions, powers, percentages, exponents and sums: notations of numbers that are not read.
_NOTATION_PATTERN = re.compile(r"[\\/%^√]|\d[eE]|[-+*=]\s*\d.*[-+*=]\s*\d")
_EDGE_CHARACTERS = " \t\r\n.,;:!?'\"`*_$()[]"


# Reading


def fold(text: str) -> str:
    """Return a text as it is compared: case, spaces and punctuation at its edges do not matter."""
    return " ".join(text.lower().split()).strip(_EDGE_CHARACTERS)


def answer_of(text: str) -> str:
    """Return the answer of a text: inside its last tags, or its first line."""
    tagged = _inside_tags(text)
    if tagged is not None:
        return fold(tagged)
    return fold(text.strip().partition("\n")[0][:READ_CHARACTERS])


def final_answer(solution: str) -> str:
    """Return the answer out of a worked solution: behind ####, in a box or in tags; a solution
    without any of these is an answer itself.
    """
    for pattern in (_MARK_PATTERN, _BOX_PATTERN):
        marked = pattern.findall(solution)
        if marked:
            return str(marked[-1]).strip()
    tagged = _inside_tags(solution)
    return (solution if tagged is None else tagged).strip()


def _inside_tags(text: str) -> str | None:
    """Return the text in the last answer tags; None without any."""
    begin = text.rfind("<answer>")
    inside, end, _ = text[begin + len("<answer>") :].partition("</answer>")
    return inside if begin >= 0 and end else None


@lru_cache(maxsize=CACHED_TEXTS)
def says(text: str, gold: str) -> bool:
    """Return True if the answer is the gold one, word for word, in tags or plainly."""
    return answer_of(text) == fold(gold) and bool(fold(gold))


def says_leniently(text: str, gold: str) -> bool:
    """Return True if a person would accept it as gold: boxed, in a sentence, or a number in
    another format.
    """
    gold_readings = {fold(gold), number_of(gold)} - {""}
    return bool(gold_readings & _readings(text))


@lru_cache(maxsize=CACHED_TEXTS)
def _readings(text: str) -> frozenset[str]:
    """Return every answer that a text can be taken for."""
    end = text[-READ_CHARACTERS:]
    parts = [answer_of(text)]
    for pattern in (_BOX_PATTERN, _MARK_PATTERN, _SENTENCE_PATTERN):
        parts += pattern.findall(end)[-1:]
    readings: set[str] = set()
    for part in parts:
        readings |= {fold(part), _written_number(part)}
    if len(text) <= READ_CHARACTERS:
        numbers = {_written_number(part) for part in _NUMBER_PATTERN.findall(end)}
        if len(numbers) == 1:
            readings |= numbers
    return frozenset(readings - {""})


def _written_number(text: str) -> str:
    """Return a number without its formatting; empty for one that nobody writes, such as -0 or 007:
    a scorer that takes it for wrong reads strictly, but loses nothing.
    """
    bare_text = fold(text).lstrip("=≈ ")
    return "" if _ODD_NUMBER_PATTERN.match(bare_text) else number_of(text)


@lru_cache(maxsize=CACHED_TEXTS)
def is_surely_wrong(text: str, gold: str) -> bool:
    """Return True for another answer: numbers of which none is near gold, or nothing of gold's
    words.
    """
    value = value_of(gold)
    if math.isnan(value):
        return fold(gold) not in fold(text) and not _NUMBER_PATTERN.search(gold)
    if _NOTATION_PATTERN.search(text):
        return False
    for part in _NUMBER_PATTERN.findall(text):
        number = float(part.replace(",", ""))
        is_near = abs(number - value) <= MAX_ROUNDING_SHARE * abs(value)
        # The right digits with another sign are not surely wrong: a minus may be a hyphen.
        if is_near or abs(number) == abs(value):
            return False
    return True


def number_of(text: str) -> str:
    """Return a text that is one number without its formatting; empty for any other."""
    numbers = _NUMBER_PATTERN.findall(text)
    bare_text = fold(text).lstrip("=≈ ").replace("\\", "")
    if len(numbers) != 1 or len(bare_text) > len(numbers[0]) + MAX_FORMAT_CHARACTERS:
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


_OPERATION_PATTERN = re.compile(r"(?<![\d.)*/^])(-?\d+)\s*([-+*×])\s*(-?\d+)(?!\s*[-+*/^×.\d)])")


def computed_result(prompt: str) -> float:
    """Return the result of the only operation on whole numbers that a prompt asks for; NaN for any
    other prompt.
    """
    operations = _OPERATION_PATTERN.findall(prompt)
    if len(operations) != 1 or len(re.findall(r"\d+", prompt)) != 2:
        return math.nan
    left, sign, right = operations[0]
    a = int(left)
    b = int(right)
    if sign == "+":
        return float(a + b)
    if sign == "-":
        return float(a - b)
    return float(a * b)


# Gold answers in the rows of an unknown dataset

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
    column_by_name = {key.lower(): key for key in row}
    for name in GOLD_COLUMNS:
        column = column_by_name.get(name)
        if column is not None and gold_text(row[column]):
            return column
    return None


def gold_text(value: Any) -> str:
    """Return a gold answer as text; empty for a value without one."""
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
# Length without content.
LONG_TEXT = " ".join(["therefore"] * 200)
# Numbers that many small tasks have as answers.
SMALL_NUMBERS = range(-20, 41)
# All of them. A reward that reads the first or the last number is sound: these two are no answers.
NUMBERS_TEXT = " ".join(map(str, (1000001, *SMALL_NUMBERS, 1000003)))


def other_answers(
    gold: str, answers: Iterable[str], value: Callable[[str], float | None] = value_of
) -> list[str]:
    """Return those answers that are not gold in other words, by the number that `value` reads."""
    others = [answer for answer in answers if answer.casefold() != gold.casefold()]
    gold_value = value(gold)
    if gold_value is None or math.isnan(gold_value):
        return others
    return [answer for answer in others if value(answer) != gold_value]


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
    # Most marks at once, for a reader that looks for any one of them.
    "The answer is {0}. <answer>{0}</answer> \\boxed{{{0}}}\n#### {0}",
)
PLAIN_FORMAT = ANSWER_FORMATS[0]
COMBINED_FORMAT = ANSWER_FORMATS[-1]
# Words by which the code of a reward, or a prompt, names a format, and the part of the format.
FORMAT_MARKS = {
    "####": "####",
    "boxed": "\\boxed",
    "<answer>": "<answer>",
    "<think>": "<think>",
    "<reasoning>": "<reasoning>",
    "Answer:": "Answer:",
    "answer is": "answer is",
    "json": '"answer"',
    "```": "```",
}


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
PART_READERS: dict[str, Callable[[str], str]] = {
    "": lambda answer: answer,
    "the answer as Python prints it": _as_python,
    "the first of a list of answers": _first_of_list,
}


@dataclass(frozen=True)
class Form:
    """A way to write an answer: the words around it, and the part of it that is written."""

    words: str
    part: str = ""

    def write(self, answer: str) -> str:
        """Return an answer in this form."""
        return self.words.format(PART_READERS[self.part](answer))

    @property
    def example(self) -> str:
        """The form of the word GOLD, quoted."""
        return repr(self.words.format("GOLD"))

    def __str__(self) -> str:
        return f"{self.example} with {self.part}" if self.part else self.example


def forms_of(answers: Sequence[str]) -> list[Form]:
    """Return every form in which these answers can be written, the plain one first."""
    forms: list[Form] = []
    for part, read_part in PART_READERS.items():
        is_whole = part == ""
        if is_whole or any(read_part(answer) != answer for answer in answers):
            forms += [Form(words, part) for words in ANSWER_FORMATS]
    return forms


def likely_forms(hints: str) -> list[Form]:
    """Return all forms of an answer, the likeliest first: those whose marks the hints name, the
    plain one, one with most marks at once, then the others.
    """
    scores: dict[str, int] = {}
    for words in ANSWER_FORMATS:
        marks = [mark for mark, part in FORMAT_MARKS.items() if part in words]
        n_named = sum(mark in hints for mark in marks)
        scores[words] = 2 * n_named - len(marks)
    by_score = sorted(ANSWER_FORMATS, key=lambda words: -scores[words])
    named = [words for words in by_score if scores[words] > 0 and words != COMBINED_FORMAT]
    ordered = dict.fromkeys((*named[:1], PLAIN_FORMAT, COMBINED_FORMAT, *named, *ANSWER_FORMATS))
    return [Form(words) for words in ordered]


# Classes of answers

# Kinds of answers on which parsers fail, by a property of the gold answer: an average over all
# answers hides a kind that is always rejected.
CLASS_TESTS: dict[str, Callable[[str], bool]] = {
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
# What a scorer does that rejects a class, as far as the class shows it.
REMEDY_BY_CLASS = {
    "negative": "Read the minus sign as a part of the number.",
    "zero": "Ask whether the number is None, not whether it is true: 0 counts as false.",
    "a decimal": "Read decimals whole, and compare numbers as numbers.",
    "written with thousands separators": "Take the commas out of both sides.",
    "a number of two digits or more": "Read all digits of a number, not one.",
    "no number": "Compare answers as text where they are no numbers.",
    "several words": "Read the whole answer, not one word of it.",
    "written with capitals": "Fold the case of both sides alike.",
    "written with signs or punctuation": "Treat signs and punctuation alike on both sides.",
    "longer than 8 characters": "Read the whole answer: nothing may cut it.",
}
# Tasks of each class that are tried: at least this many, and this share of all.
MIN_PER_CLASS = 3
CLASS_SHARE = 1 / 8
# Share of a class that is rejected, less that of all others, from which the class explains the
# rejections.
MIN_CLASS_GAP = 0.6
# Rejected members that name a class: one may be an odd row.
MIN_CLASS_MEMBERS = 2


def draw_every_class(items: Sequence[T], gold: Callable[[T], str], count: int) -> list[T]:
    """Return at most `count` items: some of every class of gold answers among them, then the others
    in their order.
    """
    per_class = max(MIN_PER_CLASS, int(count * CLASS_SHARE))
    members_by_class: list[list[int]] = []
    for is_member in CLASS_TESTS.values():
        members = [i for i, item in enumerate(items) if is_member(gold(item))]
        members_by_class.append(members[:per_class])
    # In turn, so that even a few are of many classes.
    in_turn = chain.from_iterable(zip_longest(*members_by_class))
    indices = dict.fromkeys(i for i in in_turn if i is not None)  # a set that keeps its order
    indices.update(dict.fromkeys(range(len(items))))
    return [items[i] for i in list(indices)[:count]]


def name_class(rejected: Sequence[str], accepted: Sequence[str]) -> str:
    """Name the class of answers that is rejected most often compared with all others, with counts;
    empty if no class explains the rejections.
    """
    class_name, counts = _rejected_class(rejected, accepted)
    return counts if class_name else ""


def remedy_of_class(rejected: Sequence[str], accepted: Sequence[str]) -> str:
    """Return what to change in a scorer that rejects a class of answers; empty if no class explains
    the rejections.
    """
    class_name, _ = _rejected_class(rejected, accepted)
    return REMEDY_BY_CLASS.get(class_name, "")


def _rejected_class(rejected: Sequence[str], accepted: Sequence[str]) -> tuple[str, str]:
    """Return the class that explains the rejections best, and its counts in words."""
    largest_gap = MIN_CLASS_GAP
    name = ""
    description = ""
    for class_name, is_member in CLASS_TESTS.items():
        rejected_members = sum(map(is_member, rejected))
        members = rejected_members + sum(map(is_member, accepted))
        rejected_others = len(rejected) - rejected_members
        others = len(rejected) + len(accepted) - members
        if rejected_members < MIN_CLASS_MEMBERS or not others:
            continue
        gap = rejected_members / members - rejected_others / others
        if gap > largest_gap:
            largest_gap = gap
            name = class_name
            description = (
                f"{rejected_members} of {members} that are {class_name}, {rejected_others} of"
                f" {others} others"
            )
    return name, description


# Tasks with short answers

INTEGER_PATTERN = re.compile(r"-?[0-9]+")
Rule = Literal["exact", "partial", "rich"]
Place = Literal["start", "end"]
# Rewards of a wrong number: pairs of a largest distance from the answer and what it earns.
NEAR_MISS_REWARDS: dict[Rule, tuple[tuple[float, float], ...]] = {
    "partial": ((1, 0.5), (5, 0.25)),
    "rich": ((1, 0.7), (2, 0.4), (5, 0.1), (10, -0.2), (math.inf, -0.5)),
}
# Rewards of the result of another operation on the task's operands, and of any other answer.
OTHER_OPERATION_REWARD = -0.5
WRONG_REWARD = -1.0


def extract(completion: str, place: Place = "start") -> str:
    """Return the answer in a completion: a number at its start, else its first word; empty for an
    empty completion.

    With `place` "end", the last number of the first line that has text: what comes before it is
    work.
    """
    text = completion.strip()
    if place == "end":
        numbers = INTEGER_PATTERN.findall(text.partition("\n")[0])
        return numbers[-1] if numbers else ""
    number = INTEGER_PATTERN.match(text)
    if number:
        return number.group()
    return fold_word(text.split(maxsplit=1)[0]) if text else ""


def fold_word(word: str) -> str:
    """Return a word as it is compared: case and trailing punctuation do not matter."""
    return word.lower().rstrip(".,;:!?'\")")


def is_right(completion: str, answer: str, place: Place = "start") -> bool:
    """Return True if a completion gives the answer."""
    return extract(completion, place) == fold_word(answer)


def read_number(text: str, base: int) -> int | None:
    """Return the value of an extracted answer; None if it is no number in this base."""
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
    applied_rule: Rule = rule if task.data.get("base") else "exact"
    answer = extract(completion, place)
    value = 1.0 if correct else _grade_wrong(applied_rule, answer, task)
    return Reward.of(applied_rule, value, -1.0, 1.0, correct)


def _grade_wrong(rule: Rule, answer: str, task: Task) -> float:
    if rule == "exact":
        return WRONG_REWARD
    value = read_number(answer, task.data["base"])
    gold_value = read_number(task.answer, task.data["base"])
    if value is None or gold_value is None:
        return WRONG_REWARD
    for max_distance, earned in NEAR_MISS_REWARDS[rule]:
        if abs(value - gold_value) <= max_distance:
            return earned
    a = task.data.get("a")
    b = task.data.get("b")
    if not isinstance(a, int) or not isinstance(b, int):
        return WRONG_REWARD
    return OTHER_OPERATION_REWARD if value in (a + b, a - b, a * b) else WRONG_REWARD


class OneTurn:
    """A play that ends with the model's first message; silence is graded as an empty answer."""

    tools: Sequence[Tool] = ()

    def __init__(self, task: Task, rule: Rule, place: Place = "start", examples: str = "") -> None:
        first, *others = task.messages
        # Here and not in the task: whether it is held out depends on the question alone.
        self.messages = (replace(first, content=examples + first.content), *others)
        self._task = task
        self._rule = rule
        self._place = place
        self._reply = ""

    async def respond(self, message: Message) -> Sequence[Message] | None:
        self._reply = message.content
        return None

    async def score(self) -> Reward:
        return grade(self._rule, self._reply, self._task, self._place)

    async def close(self) -> None:
        """Do nothing: there is nothing to free."""
