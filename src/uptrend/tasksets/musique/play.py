"""The options of `musique`, and one rollout: two tools over the question's documents, and the
score.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Annotated, Literal

from annotated_types import Ge, Le

from uptrend.records import ConfigError, Message, Reward, Task, Tool
from uptrend.tasksets.musique.atlas import AtlasOptions
from uptrend.tasksets.musique.retrieval import Index, RetrieverName
from uptrend.tasksets.musique.rewards import Reply, RewardWeights, read_reply, reward
from uptrend.tasksets.musique.rows import Document


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
