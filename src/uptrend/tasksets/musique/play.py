"""The options of `musique`, and one rollout: two tools over the question's documents, the reply's
tags, and the reward.
"""

import re
import string
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Annotated, Literal

from annotated_types import Ge, Le

from uptrend.records import ConfigError, Message, Part, Reward, Task, Tool
from uptrend.tasksets.musique.atlas import AtlasOptions
from uptrend.tasksets.musique.retrieval import Index, RetrieverName
from uptrend.tasksets.musique.rows import Document

# The reply

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


# Rewards: SQuAD's exact match and F1, recall and precision of documents shown and cited. Beside the
# answer and its aliases, numbers are accepted as digits or as words, and ordinals likewise.

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


# Options and the rollout


@dataclass(frozen=True, kw_only=True)
class MusiqueOptions:
    """The options of `musique`."""

    file: str = ""
    """JSON lines in MuSiQue's own schema; a relative path starts at the current folder."""
    datasets: str = ""
    """Hub datasets as path,config,split, several joined by a semicolon."""
    atlas: AtlasOptions = field(default_factory=AtlasOptions)
    """The invented world that questions come from where neither a file nor datasets are named."""
    split: Literal["quarter", "train", "heldout"] = "quarter"
    """Of a file or datasets: hold out a quarter, train on every row, or hold out every row."""
    noise_rate: Annotated[float, Ge(0), Le(1)] = 1.0
    """The chance that a paragraph which does not support the answer is kept: 1 keeps all, 0
    none.
    """
    retriever: RetrieverName = "lexical"
    """Retriever: golden, lexical, semantic or hybrid."""
    returned: Annotated[int, Ge(1)] = 2
    """Number of documents that a search shows."""
    embedder: str = "minilm"
    """Model of semantic and hybrid: minilm, or any sentence-transformers model."""
    longest: Annotated[int, Ge(0)] = 8000
    """Characters of a document that are shown; 0 for all."""
    weights: RewardWeights = field(default_factory=RewardWeights)
    """Weight of each part of the reward."""
    scale_by_hops: bool = False
    """Multiply the reward by hops/2, so that its maximum is 1 for two hops and 2 for four."""
    duplicates: float = 0.1
    """The share of rows that may repeat an earlier question before `uptrend tasks validate`
    objects.
    """
    chat: bool = True
    """Send prompts through the model's chat template."""

    def __post_init__(self) -> None:
        weights = asdict(self.weights).values()
        if self.file and self.datasets:
            raise ConfigError(
                "file and datasets are both given; name one of them.", is_of_field=True
            )
        if min(weights) < 0 or not sum(weights):
            raise ConfigError("weights should be 0 or more, and not all 0.", is_of_field=True)


def _tool(name: str, does: str, argument: str, meaning: str) -> Tool:
    properties = {argument: {"type": "string", "description": meaning}}
    return Tool(name, does, {"type": "object", "properties": properties, "required": [argument]})


SEARCH = _tool(
    "retrieve_documents",
    "Searches the documents and shows the best ones.",
    "query",
    "What to look for.",
)
OPEN = _tool("get_document", "Shows one document.", "doc_id", "Its ID.")
TOOLS = (SEARCH, OPEN)
ARGUMENTS = {SEARCH.name: "query", OPEN.name: "doc_id"}
NEITHER = "Call a tool, or finish with <think>, <cite> and <answer>."
BOTH = "You called a tool and answered in the same turn. Do one of them."


class WrongCall(Exception):  # noqa: N818 (what it is)
    """A call that can't be carried out; its text is what the model is told."""


def argument(message: Message) -> tuple[str, str]:
    """Return the tool that a message calls, and its argument."""
    if message.problem:
        raise WrongCall(message.problem)
    if len(message.calls) > 1:
        raise WrongCall(
            f"You made {len(message.calls)} calls in one turn, and none was carried out. Make one a"
            " turn."
        )
    call = message.calls[0]
    if call.name not in ARGUMENTS:
        raise WrongCall(f"There is no tool {call.name!r}. There are {' and '.join(ARGUMENTS)}.")
    name = ARGUMENTS[call.name]
    if unknown := [key for key in call.arguments if key != name]:
        raise WrongCall(f"{call.name} has no argument {unknown[0]!r}. It takes {name}.")
    value = call.arguments.get(name)
    if isinstance(value, bool) or not isinstance(value, str | int) or not str(value).strip():
        said = "is missing" if name not in call.arguments else f"is {value!r}"
        raise WrongCall(f"{call.name} needs {name}, a text that is not empty; it {said}.")
    return call.name, str(value).strip()


@dataclass
class QuestionPlay:
    """A rollout in progress."""

    task: Task
    documents: Sequence[Document]
    index: Index
    options: MusiqueOptions
    # IDs of the documents that a tool has shown, in order
    shown: dict[str, None] = field(default_factory=dict)
    turns: int = 0
    mistakes: int = 0  # calls that could not be carried out
    reply: Reply = field(default_factory=lambda: read_reply(""))  # last thing that was said
    tools: Sequence[Tool] = TOOLS

    @property
    def messages(self) -> tuple[Message, ...]:
        """Instructions and the question."""
        return self.task.messages

    async def respond(self, message: Message) -> Sequence[Message] | None:
        """Carry out a call; an answer ends the rollout."""
        self.turns += 1
        self.reply = read_reply(message.content)
        asks = bool(message.calls or message.problem)
        if self.reply.answer is not None and not asks:
            return None
        try:
            if self.reply.answer is not None and not message.problem:
                # neither taken now nor where the rollout ends with it
                self.reply = replace(self.reply, answer=None)
                raise WrongCall(BOTH)
            if not asks:
                raise WrongCall(NEITHER)
            return [Message("tool", await self._carry_out(*argument(message)))]
        except WrongCall as mistake:
            self.mistakes += 1
            return [Message("tool" if asks else "user", str(mistake))]

    async def _carry_out(self, tool: str, wanted: str) -> str:
        if tool == SEARCH.name:
            places = await self.index.search(wanted, self.options.returned)
            return "\n\n".join(self._show(self.documents[place]) for place in places) or (
                "No document matches. Use other words."
            )
        for document in self.documents:
            if document.id == wanted:
                return self._show(document)
        raise WrongCall(f"There is no document {wanted!r}. Use an ID that a search has shown.")

    def _show(self, document: Document) -> str:
        self.shown[document.id] = None
        text = document.shown()
        longest = self.options.longest
        if longest and len(text) > longest:
            return (
                f"{text[:longest]}\n[Cut: the first {longest:,} of the document's {len(text):,}"
                " characters.]"
            )
        return text

    async def score(self) -> Reward:
        """Score the last reply with the documents that were shown."""
        supporting = [document.id for document in self.documents if document.supporting]
        scale = len(supporting) / 2 if self.options.scale_by_hops else 1.0
        clean = 1 - self.mistakes / max(1, self.turns)
        accepted = self.task.data["accepted"]
        weights = self.options.weights
        return reward(self.reply, accepted, supporting, self.shown, weights, scale, clean)

    async def close(self) -> None:
        """Nothing is held."""
