"""One rollout's side of a question: two tools over its own documents, the reply's format, and the score."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from uptrend.records import Message, Reward, Task, Tool, ToolCall
from uptrend.tasks.musique.retrieval import Index
from uptrend.tasks.musique.rewards import Reply, RewardWeights, read_reply, reward
from uptrend.tasks.musique.rows import Document

SEARCH = Tool(
    "retrieve_documents",
    "Searches the documents and shows the best ones.",
    {"type": "object", "properties": {"query": {"type": "string", "description": "What to look for."}},
     "required": ["query"]},
)  # fmt: skip
OPEN = Tool(
    "get_document",
    "Shows one document.",
    {"type": "object", "properties": {"doc_id": {"type": "string", "description": "Its ID."}}, "required": ["doc_id"]},
)
TOOLS = (SEARCH, OPEN)
ARGUMENTS = {SEARCH.name: "query", OPEN.name: "doc_id"}
"""The one argument of each."""


class WrongCall(Exception):  # noqa: N818 (what it is)
    """A call that can't be carried out; its text is what the model is told."""


def argument(message: Message) -> tuple[str, str]:
    """The tool that a message calls, and its argument."""
    if message.problem:
        raise WrongCall(message.problem)
    if len(message.calls) > 1:
        raise WrongCall(f"You made {len(message.calls)} calls in one turn, and none was carried out. Make one a turn.")
    return _argument(message.calls[0])


def _argument(call: ToolCall) -> tuple[str, str]:
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


NEITHER = "Call a tool, or finish with <think>, <cite> and <answer>."
BOTH = "You called a tool and answered in the same turn. Do one of them."


@dataclass(frozen=True)
class Rules:
    """Rules that all rollouts of a taskset share."""

    weights: RewardWeights
    """Weights of the reward's parts."""
    scale_by_hops: bool
    """Let the maximum grow with the hops."""
    returned: int
    """Documents that a search shows."""
    longest: int
    """Characters of a document that are shown; 0 for all."""


@dataclass
class QuestionPlay:
    """A rollout in progress."""

    task: Task
    """The question."""
    documents: Sequence[Document]
    index: Index
    rules: Rules
    shown: dict[str, None] = field(default_factory=dict)
    """IDs of the documents that a tool has shown, in order."""
    turns: int = 0
    """Turns of the model."""
    mistakes: int = 0
    """Calls that could not be carried out."""
    reply: Reply = field(default_factory=lambda: read_reply(""))
    """The last thing that was said."""

    @property
    def messages(self) -> tuple[Message, ...]:
        """Instructions and the question."""
        return self.task.messages

    @property
    def tools(self) -> Sequence[Tool]:
        """Search, and look at one."""
        return TOOLS

    async def respond(self, message: Message) -> Sequence[Message] | None:
        """Carry out a call; an answer ends the rollout."""
        self.turns += 1
        self.reply = read_reply(message.content)
        asks = bool(message.calls or message.problem)
        if self.reply.answer is not None and not asks:
            return None
        try:
            if self.reply.answer is not None and not message.problem:
                self.reply = replace(self.reply, answer=None)  # neither taken now nor where the rollout ends with it
                raise WrongCall(BOTH)
            if not asks:
                raise WrongCall(NEITHER)
            return [Message("tool", await self._carry_out(*argument(message)))]
        except WrongCall as mistake:
            self.mistakes += 1
            return [Message("tool" if asks else "user", str(mistake))]

    async def _carry_out(self, tool: str, wanted: str) -> str:
        if tool == SEARCH.name:
            places = await self.index.search(wanted, self.rules.returned)
            found = [self.documents[place] for place in places]
            return "\n\n".join(map(self._show, found)) or "No document matches. Use other words."
        for document in self.documents:
            if document.id == wanted:
                return self._show(document)
        raise WrongCall(f"There is no document {wanted!r}. Use an ID that a search has shown.")

    def _show(self, document: Document) -> str:
        self.shown[document.id] = None
        text, longest = document.shown(), self.rules.longest
        if longest and len(text) > longest:
            return f"{text[:longest]}\n[Cut: the first {longest:,} of the document's {len(text):,} characters.]"
        return text

    async def score(self) -> Reward:
        """Score the last reply with the documents that were shown."""
        supporting = [document.id for document in self.documents if document.supporting]
        return reward(
            self.reply,
            self.task.data["accepted"],
            supporting,
            self.shown,
            self.rules.weights,
            scale=len(supporting) / 2 if self.rules.scale_by_hops else 1.0,
            clean=1 - self.mistakes / max(1, self.turns),
        )

    async def close(self) -> None:
        """Nothing is held."""
