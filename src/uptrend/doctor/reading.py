"""A second reader of answers, independent of every taskset's own: does a text say the gold answer?

`says` is strict: it must be what the text says, plainly or where answers are put. `says_somehow` also takes what a
person would: a box, a sentence that names the answer, a number in another format.
"""

import re
from functools import lru_cache

_BOX = re.compile(r"\\boxed\s*\{([^{}]*)\}")
_MARK = re.compile(r"####\s*(.+)")
_NAMED = re.compile(r"answer(?:\s+is|\s*:|\s*=)\s*([^\n]+)", re.IGNORECASE)
_NUMBER = re.compile(r"[-+]?\d[\d,]*(?:\.\d+)?")
LONGEST = 2000
"""Characters in which an answer is looked for."""
_EDGES = " \t\r\n.,;:!?'\"`*_$()[]"


def fold(text: str) -> str:
    """A text as it is compared: case, spaces and punctuation at its edges do not matter."""
    return " ".join(text.lower().split()).strip(_EDGES)


def answer_of(text: str) -> str:
    """What a text gives as its answer: inside the last tags, or its first line."""
    begin = text.rfind("<answer>")
    if begin >= 0 and "</answer>" in text[begin:]:
        return fold(text[begin + len("<answer>") :].partition("</answer>")[0])
    return fold(text.strip().partition("\n")[0][:LONGEST])


def says(text: str, gold: str) -> bool:
    """Whether the answer is the gold one, word for word."""
    return answer_of(text) == fold(gold) and bool(fold(gold))


def says_somehow(text: str, gold: str) -> bool:
    """Whether a person would take it as the gold answer."""
    wanted = {fold(gold), _number(gold)} - {""}
    return bool(wanted & _readings(text))


@lru_cache(maxsize=4096)
def _readings(text: str) -> frozenset[str]:
    """Every answer that a text can be taken for."""
    end = text[-LONGEST:]  # what comes long before the end is work, not an answer
    given = [*_BOX.findall(end)[-1:], *_MARK.findall(end)[-1:], *_NAMED.findall(end)[-1:], answer_of(text)]
    numbers = {_number(part) for part in _NUMBER.findall(end)} if len(text) <= LONGEST else set()
    alone = numbers if len(numbers) == 1 else set()
    return frozenset({fold(part) for part in given} | {_number(part) for part in given} | alone) - {""}


def _number(text: str) -> str:
    """A text that is one number, without its formatting; empty for any other."""
    found = _NUMBER.findall(text)
    bare = fold(text).lstrip("=≈ ").replace("\\", "")
    if len(found) != 1 or len(bare) > len(found[0]) + 2:
        return ""
    value = float(found[0].replace(",", ""))
    return str(int(value)) if value.is_integer() else repr(value)
