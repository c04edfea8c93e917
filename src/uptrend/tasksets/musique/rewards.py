"""The reply's tags and its rewards: SQuAD's exact match and F1, recall and precision of documents
shown and cited.

Beside the answer and its aliases, numbers are accepted as digits or as words, and ordinals
likewise.
"""

import re
import string
from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import asdict, dataclass

from uptrend.records import Part, Reward

TAGS = ("think", "cite", "answer")


@dataclass(frozen=True)
class Reply:
    """A message's tags, read."""

    answer: str | None  # text of the last answer; None where there is none
    cited: tuple[str, ...]  # document IDs of the last citation, each once
    # share of the three tags that stand there exactly once, closed; 1 only where they are in order
    format: float


def read_reply(text: str) -> Reply:
    """Take a message apart; tags that are missing or not closed are simply not there."""
    found = {tag: re.findall(rf"<{tag}>(.*?)</{tag}>", text, re.DOTALL) for tag in TAGS}
    cited = re.split(r"[,;\s]+", found["cite"][-1]) if found["cite"] else []
    ids = [c.strip("[]#.\"'") for c in cited]
    # Counted tag by tag, so that a second opening or closing spoils the tag that it belongs to.
    once = [tag for tag in TAGS if text.count(f"<{tag}>") == text.count(f"</{tag}>") == 1]
    marks = [text.index(mark) for tag in once for mark in (f"<{tag}>", f"</{tag}>")]
    whole = sum(text.index(f"<{tag}>") < text.index(f"</{tag}>") for tag in once)
    return Reply(
        answer=found["answer"][-1].strip() if found["answer"] else None,
        cited=tuple(dict.fromkeys(i for i in ids if i)),
        format=min(whole, len(TAGS) if marks == sorted(marks) else len(TAGS) - 1) / len(TAGS),
    )


def write_reply(think: str, cited: tuple[str, ...], answer: str) -> str:
    """Return a reply in the format that is asked for."""
    return f"<think>{think}</think>\n<cite>{', '.join(cited)}</cite>\n<answer>{answer}</answer>"


SMALL = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen"
    " sixteen seventeen eighteen nineteen"
)
SMALL_ORDINALS = (
    "zeroth first second third fourth fifth sixth seventh eighth ninth tenth eleventh twelfth"
    " thirteenth fourteenth fifteenth sixteenth seventeenth eighteenth nineteenth"
)
TENS = {
    "twenty": 20,
    "thirty": 30,
    "forty": 40,
    "fifty": 50,
    "sixty": 60,
    "seventy": 70,
    "eighty": 80,
    "ninety": 90,
}
NUMBERS = {word: n for n, word in enumerate(SMALL.split())} | TENS
ORDINALS = {word: n for n, word in enumerate(SMALL_ORDINALS.split())} | {
    f"{w[:-1]}ieth": n for w, n in TENS.items()
}


def normalize(text: str) -> str:
    """Return a text by SQuAD's rules: lower case, without punctuation and articles, single
    spaces.
    """
    text = "".join(c for c in text.lower() if c not in string.punctuation)
    return " ".join(re.sub(r"\b(a|an|the)\b", " ", text).split())


def exact_match(said: str, accepted: Iterable[str]) -> float:
    """Return 1 where what was said is one of the accepted answers, else 0."""
    words = _words(said)
    return float(any(words == _words(answer) for answer in accepted))


def f1(said: str, accepted: Iterable[str]) -> float:
    """Return the harmonic mean of precision and recall over words, the best of the accepted
    answers.
    """
    words = _words(said)
    best = 0.0
    for answer in map(_words, accepted):
        shared = sum((Counter(words) & Counter(answer)).values())
        best = max(
            best,
            2 * shared / (len(words) + len(answer)) if words and answer else float(words == answer),
        )
    return best


# Normalized words, numbers and ordinals in digits.
def _words(text: str) -> list[str]:
    # A hyphen inside a number ("twenty-one") would otherwise glue its words together.
    text = re.sub(rf"\b({'|'.join(TENS)})-(?=[a-z])", r"\1 ", text.lower())
    # An answer of nothing but articles ("A", a vitamin) keeps them, or every silence would be
    # right.
    plain = normalize(text) or "".join(c for c in text if c not in string.punctuation)
    words: list[str] = []
    for word in plain.split():
        tens = TENS.get(words[-1], 0) if words else 0
        if tens and 1 <= NUMBERS.get(word, 0) <= 9:
            words[-1] = str(tens + NUMBERS[word])
        elif tens and 1 <= ORDINALS.get(word, 0) <= 9:
            words[-1] = _ordinal(tens + ORDINALS[word])
        else:
            words.append(word)
    return [
        str(NUMBERS[w]) if w in NUMBERS else _ordinal(ORDINALS[w]) if w in ORDINALS else w
        for w in words
    ]


def _ordinal(number: int) -> str:
    ending = (
        "th" if number % 100 in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    )
    return f"{number}{ending}"


@dataclass(frozen=True)
class RewardWeights:
    """Weight of each part; only their ratios matter."""

    exact_match: float = 1.0
    """The answer is an accepted one, after SQuAD's normalization."""
    f1: float = 0.9
    """The answer's words against an accepted answer's."""
    retrieval_recall: float = 1.0
    """Share of the supporting documents that the tools showed."""
    retrieval_precision: float = 0.4
    """Share of shown documents that are supporting."""
    citation_recall: float = 0.6
    """Share of the supporting documents that are cited."""
    citation_precision: float = 0.0
    """Share of cited documents that are supporting."""
    format: float = 0.1
    """The three tags, each once and in order."""


def reward(
    reply: Reply,
    accepted: Collection[str],
    supporting: Collection[str],
    shown: Collection[str],
    weights: RewardWeights,
    scale: float,
    clean: float,
) -> Reward:
    """Return the reward of a reply, given which documents support the answer and which the tools
    showed.

    `clean` is the share of turns without a mistake in a call: recorded, not rewarded.
    """
    answer = reply.answer
    found, cited = (len(set(ids) & set(supporting)) for ids in (shown, reply.cited))
    values = {
        "exact_match": 0.0 if answer is None else exact_match(answer, accepted),
        "f1": 0.0 if answer is None else f1(answer, accepted),
        "retrieval_recall": found / len(supporting),
        "retrieval_precision": found / max(1, len(shown)),
        "citation_recall": cited / len(supporting),
        "citation_precision": cited / max(1, len(reply.cited)),
        "format": reply.format,
    }
    given = asdict(weights)
    whole = sum(given.values())
    parts = [
        Part(name, value, 0.0, 1.0, scale * given[name] / whole) for name, value in values.items()
    ]
    total = sum(part.weight * part.value for part in parts)
    parts.append(Part("clean_turns", clean, 0.0, 1.0, 0.0))
    return Reward(min(total, scale), 0.0, scale, bool(values["exact_match"]), tuple(parts))
