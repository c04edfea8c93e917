"""Options of `musique`, and one rollout: two tools over the question's documents, the reply's
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

    answer: str | None  # text of the last answer; None without one
    cited: tuple[str, ...]  # document IDs of the last citation, each once
    # share of the three tags that occur exactly once, closed; 1 only if they are in order
    format: float


def read_reply(text: str) -> Reply:
    """Parse a message's tags; those that are missing or not closed count as absent."""
    contents = {tag: re.findall(rf"<{tag}>(.*?)</{tag}>", text, re.DOTALL) for tag in TAGS}
    answer = contents["answer"][-1].strip() if contents["answer"] else None
    citation = contents["cite"][-1] if contents["cite"] else ""
    ids = [word.strip("[]#.\"'") for word in re.split(r"[,;\s]+", citation)]
    return Reply(
        answer=answer, cited=tuple(dict.fromkeys(filter(None, ids))), format=_format_share(text)
    )


def _format_share(text: str) -> float:
    """Return the share of the tags that occur exactly once, closed; 1 only if they are in order."""
    well_formed = 0
    positions: list[int] = []
    for tag in TAGS:
        # Counted tag by tag, so that a second opening or closing spoils the tag it belongs to.
        if text.count(f"<{tag}>") == text.count(f"</{tag}>") == 1:
            start = text.index(f"<{tag}>")
            end = text.index(f"</{tag}>")
            positions += [start, end]
            well_formed += start < end
    if positions != sorted(positions):
        well_formed = min(well_formed, len(TAGS) - 1)
    return well_formed / len(TAGS)


def write_reply(think: str, cited: tuple[str, ...], answer: str) -> str:
    """Return a reply in the format that the instructions ask for."""
    return f"<think>{think}</think>\n<cite>{', '.join(cited)}</cite>\n<answer>{answer}</answer>"


# Rewards: SQuAD's exact match and F1, recall and precision of documents shown and cited. Beside the
# answer and its aliases, numbers are accepted as digits or as words, and ordinals likewise.

NUMBERS_BELOW_20 = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen"
    " sixteen seventeen eighteen nineteen"
)
ORDINALS_BELOW_20 = (
    "zeroth first second third fourth fifth sixth seventh eighth ninth tenth eleventh twelfth"
    " thirteenth fourteenth fifteenth sixteenth seventeenth eighteenth nineteenth"
)
TENS_BY_WORD = {
    "twenty": 20,
    "thirty": 30,
    "forty": 40,
    "fifty": 50,
    "sixty": 60,
    "seventy": 70,
    "eighty": 80,
    "ninety": 90,
}
NUMBERS_BY_WORD = {word: n for n, word in enumerate(NUMBERS_BELOW_20.split())} | TENS_BY_WORD
ORDINALS_BY_WORD = {word: n for n, word in enumerate(ORDINALS_BELOW_20.split())}
ORDINALS_BY_WORD |= {f"{word[:-1]}ieth": n for word, n in TENS_BY_WORD.items()}
# A hyphen inside a number ("twenty-one") would otherwise glue its words together.
HYPHEN_AFTER_TENS = re.compile(rf"\b({'|'.join(TENS_BY_WORD)})-(?=[a-z])")


def normalize(text: str) -> str:
    """Return a text by SQuAD's rules: lower case, without punctuation and articles, single
    spaces.
    """
    text = _drop_punctuation(text.lower())
    return " ".join(re.sub(r"\b(a|an|the)\b", " ", text).split())


def _drop_punctuation(text: str) -> str:
    return "".join(character for character in text if character not in string.punctuation)


def exact_match(reply: str, accepted: Iterable[str]) -> float:
    """Return 1 if a reply is one of the accepted answers, else 0."""
    words = _words(reply)
    return float(any(words == _words(answer) for answer in accepted))


def f1(reply: str, accepted: Iterable[str]) -> float:
    """Return the harmonic mean of precision and recall over words, the best of the accepted
    answers.
    """
    reply_words = _words(reply)
    best = 0.0
    for answer in accepted:
        answer_words = _words(answer)
        if reply_words and answer_words:
            n_shared = (Counter(reply_words) & Counter(answer_words)).total()
            score = 2 * n_shared / (len(reply_words) + len(answer_words))
        else:
            score = float(reply_words == answer_words)
        best = max(best, score)
    return best


def _words(text: str) -> list[str]:
    """Return the normalized words of a text, with numbers and ordinals in digits."""
    text = HYPHEN_AFTER_TENS.sub(r"\1 ", text.lower())
    # An answer of nothing but articles ("A", a vitamin) keeps them, or every empty reply would be
    # right.
    plain = normalize(text) or _drop_punctuation(text)
    # First join tens with the ones behind them: "twenty", "first" is 21st.
    words: list[str] = []
    for word in plain.split():
        tens = TENS_BY_WORD.get(words[-1], 0) if words else 0
        if tens and 1 <= NUMBERS_BY_WORD.get(word, 0) <= 9:
            words[-1] = str(tens + NUMBERS_BY_WORD[word])
        elif tens and 1 <= ORDINALS_BY_WORD.get(word, 0) <= 9:
            words[-1] = _ordinal(tens + ORDINALS_BY_WORD[word])
        else:
            words.append(word)
    return [_in_digits(word) for word in words]


def _in_digits(word: str) -> str:
    if word in NUMBERS_BY_WORD:
        return str(NUMBERS_BY_WORD[word])
    if word in ORDINALS_BY_WORD:
        return _ordinal(ORDINALS_BY_WORD[word])
    return word


def _ordinal(number: int) -> str:
    if number % 100 in (11, 12, 13):
        return f"{number}th"
    ending = {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
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
    retrieved: Collection[str],
    weights: RewardWeights,
    scale: float,
    clean: float,
) -> Reward:
    """Return the reward of a reply, given the IDs of the documents that support the answer and of
    those that the tools showed.

    `clean` is the share of turns without a mistake in a call: recorded, not rewarded.
    """
    answer = reply.answer
    n_retrieved = len(set(retrieved).intersection(supporting))
    n_cited = len(set(reply.cited).intersection(supporting))
    values = {
        "exact_match": 0.0 if answer is None else exact_match(answer, accepted),
        "f1": 0.0 if answer is None else f1(answer, accepted),
        "retrieval_recall": n_retrieved / len(supporting),
        "retrieval_precision": n_retrieved / max(1, len(retrieved)),
        "citation_recall": n_cited / len(supporting),
        "citation_precision": n_cited / max(1, len(reply.cited)),
        "format": reply.format,
    }
    weight_by_name = asdict(weights)
    weight_sum = sum(weight_by_name.values())
    parts = []
    for name, value in values.items():
        weight = scale * weight_by_name[name] / weight_sum
        parts.append(Part(name, value, low=0.0, high=1.0, weight=weight))
    total = sum(part.weight * part.value for part in parts)
    parts.append(Part("clean_turns", clean, low=0.0, high=1.0, weight=0.0))
    return Reward(
        total=min(total, scale),  # the weights' sum may exceed the scale by rounding
        low=0.0,
        high=scale,
        correct=bool(values["exact_match"]),
        parts=tuple(parts),
    )


# Options and the rollout


@dataclass(frozen=True, kw_only=True)
class MusiqueOptions:
    """Options of `musique`."""

    file: str = ""
    """JSON lines in MuSiQue's own schema; a relative path starts at the current folder."""
    datasets: str = ""
    """Hub datasets as path,config,split, several joined by a semicolon."""
    atlas: AtlasOptions = field(default_factory=AtlasOptions)
    """Invented world that questions come from if neither a file nor datasets are named."""
    split: Literal["quarter", "train", "heldout"] = "quarter"
    """Of a file or datasets: hold out a quarter, train on every row, or hold out every row."""
    noise_rate: Annotated[float, Ge(0), Le(1)] = 1.0
    """Chance that a paragraph which does not support the answer is kept: 1 keeps all, 0 none."""
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
    """Share of rows that may repeat an earlier question before `uptrend tasks validate` objects."""
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


def _tool(name: str, description: str, argument: str, argument_description: str) -> Tool:
    properties = {argument: {"type": "string", "description": argument_description}}
    schema = {"type": "object", "properties": properties, "required": [argument]}
    return Tool(name, description, schema)


SEARCH_TOOL = _tool(
    "retrieve_documents",
    "Searches the documents and shows the best ones.",
    "query",
    "What to look for.",
)
OPEN_TOOL = _tool("get_document", "Shows one document.", "doc_id", "Its ID.")
TOOLS = (SEARCH_TOOL, OPEN_TOOL)
ARGUMENT_BY_TOOL = {SEARCH_TOOL.name: "query", OPEN_TOOL.name: "doc_id"}
NO_CALL_NO_ANSWER = "Call a tool, or finish with <think>, <cite> and <answer>."
CALL_AND_ANSWER = "You called a tool and answered in the same turn. Do one of them."


class WrongTurn(Exception):  # noqa: N818 (what it is)
    """A turn whose call is missing, or can't be carried out; its text is the reply to the model."""


def read_call(message: Message) -> tuple[str, str]:
    """Return the tool that a message calls, and its argument; raise WrongTurn if it is not one
    call that a tool takes.
    """
    if message.problem:
        raise WrongTurn(message.problem)
    if len(message.calls) > 1:
        raise WrongTurn(
            f"You made {len(message.calls)} calls in one turn, and none was carried out. Make one a"
            " turn."
        )
    call = message.calls[0]
    if call.name not in ARGUMENT_BY_TOOL:
        tools = " and ".join(ARGUMENT_BY_TOOL)
        raise WrongTurn(f"There is no tool {call.name!r}. There are {tools}.")
    name = ARGUMENT_BY_TOOL[call.name]
    for key in call.arguments:
        if key != name:
            raise WrongTurn(f"{call.name} has no argument {key!r}. It takes {name}.")
    value = call.arguments.get(name)
    is_text = isinstance(value, str | int) and not isinstance(value, bool)
    if not is_text or not str(value).strip():
        problem = f"is {value!r}" if name in call.arguments else "is missing"
        raise WrongTurn(f"{call.name} needs {name}, a text that is not empty; it {problem}.")
    return call.name, str(value).strip()


@dataclass
class QuestionPlay:
    """A rollout in progress."""

    task: Task
    documents: Sequence[Document]
    index: Index
    options: MusiqueOptions
    # IDs of the documents that a tool has shown, in order
    retrieved: dict[str, None] = field(default_factory=dict)
    turns: int = 0
    mistakes: int = 0  # turns with neither an answer nor one call that could be carried out
    reply: Reply = field(default_factory=lambda: read_reply(""))  # tags of the last message
    tools: Sequence[Tool] = TOOLS

    @property
    def messages(self) -> tuple[Message, ...]:
        """Instructions and the question."""
        return self.task.messages

    async def respond(self, message: Message) -> Sequence[Message] | None:
        """Carry out a call; an answer ends the rollout."""
        self.turns += 1
        self.reply = read_reply(message.content)
        has_answer = self.reply.answer is not None
        # `message.problem` is the error of a call that could not be read.
        is_call = bool(message.calls or message.problem)
        if has_answer and not is_call:
            return None

        if not is_call:
            refusal = NO_CALL_NO_ANSWER
        elif has_answer and not message.problem:
            # The answer counts neither now nor if the rollout ends with this message.
            self.reply = replace(self.reply, answer=None)
            refusal = CALL_AND_ANSWER
        else:
            try:
                tool, argument = read_call(message)
                return [Message("tool", await self._carry_out(tool, argument))]
            except WrongTurn as error:
                refusal = str(error)
        self.mistakes += 1
        return [Message("tool" if is_call else "user", refusal)]

    async def _carry_out(self, tool: str, argument: str) -> str:
        if tool == SEARCH_TOOL.name:
            indices = await self.index.search(argument, self.options.returned)
            if not indices:
                return "No document matches. Use other words."
            return "\n\n".join(self._show(self.documents[index]) for index in indices)
        for document in self.documents:
            if document.id == argument:
                return self._show(document)
        raise WrongTurn(f"There is no document {argument!r}. Use an ID that a search has shown.")

    def _show(self, document: Document) -> str:
        self.retrieved[document.id] = None
        text = document.render()
        longest = self.options.longest
        if not longest or len(text) <= longest:
            return text
        note = f"[Cut: the first {longest:,} of the document's {len(text):,} characters.]"
        return f"{text[:longest]}\n{note}"

    async def score(self) -> Reward:
        """Score the last reply with the documents that were shown."""
        supporting = [document.id for document in self.documents if document.supporting]
        scale = len(supporting) / 2 if self.options.scale_by_hops else 1.0
        clean = 1 - self.mistakes / max(1, self.turns)
        accepted = self.task.data["accepted"]
        weights = self.options.weights
        return reward(self.reply, accepted, supporting, self.retrieved, weights, scale, clean)

    async def close(self) -> None:
        """Do nothing: a rollout holds no resources."""
