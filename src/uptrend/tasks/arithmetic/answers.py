"""How an answer is read from what a model said: the one place, for training and for evaluation alike.

A number at the very start counts; without one, the first word. Answers are compared as text: "007" is not
"7", "-0" is not "0". What comes later is never looked at, so an answer hidden in prose is wrong.
"""

import re

NUMBER = re.compile(r"-?[0-9]+")


def extract(completion: str) -> str:
    """The answer in what a model said; empty where it said nothing."""
    text = completion.strip()
    if number := NUMBER.match(text):
        return number.group()
    return fold(text.split(maxsplit=1)[0]) if text else ""


def fold(word: str) -> str:
    """A word as it is compared: case and trailing punctuation do not matter."""
    return word.lower().rstrip(".,;:!?'\")")


def is_right(completion: str, answer: str) -> bool:
    """Whether what a model said is the answer."""
    return extract(completion) == fold(answer)


def read_number(text: str, base: int) -> int | None:
    """The value of an extracted answer, or None for what is no number in this base."""
    if not NUMBER.fullmatch(text):
        return None
    try:
        return int(text, base)
    except ValueError:  # a digit that the base lacks, or more digits than Python will read
        return None
