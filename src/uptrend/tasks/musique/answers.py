"""When an answer is right: SQuAD's normalization, exact match and F1, the best over all accepted answers.

Beside the answer and its aliases, numbers are accepted as digits or as words, and ordinals likewise.
"""

import re
import string
from collections import Counter
from collections.abc import Iterable

SMALL = [
    "zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve",
    "thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen",
]  # fmt: skip
TENS = {
    "twenty": 20, "thirty": 30, "forty": 40, "fifty": 50, "sixty": 60, "seventy": 70, "eighty": 80, "ninety": 90,
}  # fmt: skip
ORDINALS = [
    "zeroth", "first", "second", "third", "fourth", "fifth", "sixth", "seventh", "eighth", "ninth", "tenth",
    "eleventh", "twelfth", "thirteenth", "fourteenth", "fifteenth", "sixteenth", "seventeenth", "eighteenth",
    "nineteenth",
]  # fmt: skip


def normalize(text: str) -> str:
    """SQuAD's: lower case, without punctuation and articles, single spaces."""
    text = "".join(c for c in text.lower() if c not in string.punctuation)
    return " ".join(re.sub(r"\b(a|an|the)\b", " ", text).split())


def _plain(text: str) -> str:
    """Normalized; an answer of nothing but articles ("A", a vitamin) keeps them, or every silence would be right."""
    return normalize(text) or " ".join("".join(c for c in text if c not in string.punctuation).split())


def exact_match(said: str, accepted: Iterable[str]) -> float:
    """1 where what was said is one of the accepted answers, else 0."""
    words = _words(said)
    return float(any(words == _words(answer) for answer in accepted))


def f1(said: str, accepted: Iterable[str]) -> float:
    """The harmonic mean of precision and recall over words, the best of the accepted answers."""
    return max((_f1(_words(said), _words(answer)) for answer in accepted), default=0.0)


def _f1(said: list[str], answer: list[str]) -> float:
    if not said or not answer:
        return float(said == answer)
    shared = sum((Counter(said) & Counter(answer)).values())
    return 2 * shared / (len(said) + len(answer))


def _words(text: str) -> list[str]:
    """Normalized words, numbers and ordinals in digits."""
    words: list[str] = []
    # A hyphen inside a number ("twenty-one") would otherwise glue its words together.
    for word in _plain(re.sub(rf"\b({'|'.join(TENS)})-(?=[a-z])", r"\1 ", text.lower())).split():
        tens = TENS.get(words[-1]) if words else None
        if tens is not None and word in SMALL[1:10]:
            words[-1] = str(tens + SMALL.index(word))
        elif tens is not None and word in ORDINALS[1:10]:
            words[-1] = _ordinal(tens + ORDINALS.index(word))
        else:
            words.append(word)
    return [_digits(word) for word in words]


def _digits(word: str) -> str:
    if word in SMALL:
        return str(SMALL.index(word))
    if word in TENS:
        return str(TENS[word])
    if word in ORDINALS:
        return _ordinal(ORDINALS.index(word))
    tenth = word.removesuffix("ieth") + "y"
    return _ordinal(TENS[tenth]) if word.endswith("ieth") and tenth in TENS else word


def _ordinal(number: int) -> str:
    ending = "th" if number % 100 in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{ending}"
