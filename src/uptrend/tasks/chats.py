"""`warmstart.file`: recorded conversations as tasks, so that a warm start demonstrates them as it
does an expert's rollouts.

A conversation's task opens with the messages before its first one by the assistant. Its script says
the assistant's messages, and its play answers each with the recorded messages that follow.
"""

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, get_args

from uptrend.records import Message, Reward, Task, TasksetError, Tool, ToolCall
from uptrend.records.rollout import Speaker, task_id
from uptrend.tasks.data import read_json_lines
from uptrend.tasks.taskset import Script, add_note

# Name by which a recipe's `[tasks]` finds this taskset: it is no choice for RL.
TASKSET_NAME = "uptrend.tasks.chats:Chats"
ROLES: tuple[str, ...] = get_args(Speaker)
EXAMPLE_LINE = (
    '{"messages": [{"role": "user", "content": "2 + 2?"}, {"role": "assistant", "content": "4"}]}'
)
EXAMPLE_CALL = '{"function": {"name": "search", "arguments": {"query": "x"}}}'
EXAMPLE_TOOL = '{"function": {"name": "search", "description": "...", "parameters": {...}}}'
# Keys of messages that other trainers read, with what to do instead: left unread, they would change
# what is learned without a word.
UNREAD_KEYS = {
    "weight": "every message of the assistant is learned; leave the conversation out instead",
    "reasoning_content": "write thoughts into content, between <think> and </think>",
    "function_call": "write calls as tool_calls",
}
# Characters of a value that an error quotes.
MAX_QUOTED_CHARACTERS = 60


@dataclass(frozen=True, kw_only=True)
class ChatsOptions:
    """Options of `Chats`."""

    file: str
    """File of conversations, one JSON object per line."""
    chat: bool | None = None
    """Send conversations through the model's chat template; by default as `model.chat` says."""


@dataclass(frozen=True)
class AssistantTurn:
    """A message of the assistant, and what follows it before the next one."""

    message: Message
    answers: tuple[Message, ...]


@dataclass(frozen=True)
class RecordedChat:
    """A recorded conversation."""

    prompt: tuple[Message, ...]
    turns: tuple[AssistantTurn, ...]
    tools: tuple[Tool, ...]


class Chats:
    """Recorded conversations, to be imitated."""

    name: ClassVar[str] = "chats"
    version: ClassVar[str] = "1"
    Options: ClassVar[type[Any]] = ChatsOptions

    def __init__(self, options: ChatsOptions, seed: int) -> None:  # noqa: ARG002 (nothing is drawn)
        self.chat = options.chat
        self.notes: list[str] = []
        self._file = options.file
        self._conversations: dict[str, RecordedChat] = {}
        self._tasks: list[Task] = []
        path = Path(options.file)
        for where, row in read_json_lines(path, EXAMPLE_LINE):
            conversation = read_conversation(row, where)
            id = where.replace(options.file, path.name, 1)
            data = {"messages": row["messages"], "tools": row.get("tools")}
            self._conversations[id] = conversation
            self._tasks.append(Task(conversation.prompt, "", path.stem, data=data, id=id))
        if not self._tasks:
            raise TasksetError(
                f"{path} has no conversations; a line is, for example, {EXAMPLE_LINE}."
            )

    def train(self, count: int, exclude: Collection[str] = ()) -> list[Task]:
        """Return the first `count` conversations, without those that ask a held-out question."""
        tasks: list[Task] = []
        for task in self._tasks:
            if _question_ids(self._conversations[task.id]).isdisjoint(exclude):
                tasks.append(task)
        n_all = len(self._tasks)
        n_asking = n_all - len(tasks)
        if not tasks:
            raise TasksetError(
                f"{self._file}: all conversations ask questions that [eval] holds out. Use other"
                " conversations, or another [eval]."
            )
        if n_asking:
            add_note(
                self.notes,
                f"{self._file}: {n_asking} of {n_all} conversations ask a question that [eval]"
                " holds out, and were left out",
            )
        if count < len(tasks):
            add_note(
                self.notes,
                f"{self._file}: the first {count} of {n_all} conversations are learned"
                f" (warmstart.tasks = {count})",
            )
        return tasks[:count]

    def heldout(self, count: int) -> list[Task]:  # noqa: ARG002 (none is held out)
        return []

    def open(self, task: Task, seed: int) -> "Chat":  # noqa: ARG002 (nothing is random here)
        return Chat(self._conversations[task.id])

    def gold(self, task: Task) -> Script:
        for turn in self._conversations[task.id].turns:
            yield turn.message

    def corrupted(self, task: Task) -> Iterable[Script]:  # noqa: ARG002 (there is no reward)
        return ()


class Chat:
    """A recorded conversation in which the assistant's messages are said again."""

    def __init__(self, conversation: RecordedChat) -> None:
        self.messages = conversation.prompt
        self.tools: Sequence[Tool] = conversation.tools
        self._turns = conversation.turns
        self._n_said = 0

    async def respond(self, message: Message) -> Sequence[Message] | None:  # noqa: ARG002 (recorded)
        answers = self._turns[self._n_said].answers
        self._n_said += 1
        return None if self._n_said == len(self._turns) else answers

    async def score(self) -> Reward:
        """Return 1 for a whole conversation, 0 for one that was cut."""
        is_whole = self._n_said == len(self._turns)
        return Reward.of("whole", float(is_whole), 0.0, 1.0, is_whole)

    async def close(self) -> None:
        """Do nothing: there is nothing to free."""


def _question_ids(conversation: RecordedChat) -> set[str]:
    """Return the ids that tasks with this conversation's prompt, or with a message of its user,
    have in every taskset.
    """
    messages = list(conversation.prompt)
    for turn in conversation.turns:
        messages += turn.answers
    ids = {task_id(conversation.prompt)}
    for message in messages:
        if message.role == "user":
            ids.add(task_id([message]))
    return ids


# Reading


def read_conversation(row: Mapping[str, Any], where: str) -> RecordedChat:
    """Return a line of the file as a conversation, or raise an error that begins with `where` and
    says what would be right.
    """
    if "messages" not in row:
        raise TasksetError(
            f"{where} has no messages; a line is, for example, {EXAMPLE_LINE}. Its keys are"
            f" {', '.join(row) or 'none'}."
        )
    entries = row["messages"]
    if not isinstance(entries, list) or not entries:
        raise TasksetError(
            f"{where} has messages = {_quote(entries)}; they should be a list, for example"
            f" {EXAMPLE_LINE}."
        )
    messages: list[Message] = []
    for number, entry in enumerate(entries, 1):
        messages.append(_read_message(entry, f"{where}: message {number}"))

    turn_indices = [i for i, message in enumerate(messages) if message.role == "assistant"]
    if not turn_indices:
        raise TasksetError(
            f"{where} has no message of the assistant, so there is nothing to learn."
        )
    if messages[0].role not in ("system", "user"):
        raise TasksetError(
            f"{where} begins with a message of role {messages[0].role!r}; the first should be"
            " system or user, which the assistant answers."
        )
    if messages[-1].role != "assistant":
        raise TasksetError(
            f"{where} ends with a message of role {messages[-1].role!r}; the last should be the"
            " assistant's. Leave out what follows it."
        )
    turns: list[AssistantTurn] = []
    next_indices = [*turn_indices[1:], len(messages)]
    for index, next_index in zip(turn_indices, next_indices, strict=True):
        turns.append(AssistantTurn(messages[index], tuple(messages[index + 1 : next_index])))
    prompt = tuple(messages[: turn_indices[0]])
    return RecordedChat(prompt, tuple(turns), _read_tools(row.get("tools"), where))


def _read_message(entry: Any, where: str) -> Message:
    if not isinstance(entry, Mapping):
        raise TasksetError(f"{where} = {_quote(entry)} should be an object with role and content.")
    role = entry.get("role")
    if role not in ROLES:
        raise TasksetError(
            f"{where} has role {_quote(role)}; it should be one of {', '.join(ROLES)}."
        )
    for key, advice in UNREAD_KEYS.items():
        # A weight of 1 says what is done anyway.
        if entry.get(key) not in (None, "", 1):
            raise TasksetError(f"{where} has {key} = {_quote(entry[key])}: {advice}.")
    calls = _read_calls(entry.get("tool_calls"), where)
    if calls and role != "assistant":
        raise TasksetError(f"{where} has tool_calls; only the assistant's messages have them.")
    content = entry.get("content")
    if content is None and calls:
        content = ""
    if not isinstance(content, str):
        raise TasksetError(f"{where} has content {_quote(content)}; it should be a text.")
    if role == "assistant" and not content and not calls:
        raise TasksetError(f"{where} is empty; a message of the assistant should say something.")
    return Message(role, content, calls)


def _read_calls(entries: Any, where: str) -> tuple[ToolCall, ...]:
    calls: list[ToolCall] = []
    for function in _functions(entries, f"{where}: tool_calls", EXAMPLE_CALL):
        arguments = function.get("arguments")
        if isinstance(arguments, str):  # JSON inside JSON, as OpenAI's API has it
            try:
                arguments = json.loads(arguments)
            except (ValueError, RecursionError):
                arguments = None
        if not isinstance(arguments, Mapping):
            raise TasksetError(
                f"{where}: the arguments of {function['name']} should be an object, for example"
                f" {EXAMPLE_CALL}."
            )
        calls.append(ToolCall(function["name"], arguments))
    return tuple(calls)


def _read_tools(entries: Any, where: str) -> tuple[Tool, ...]:
    tools: list[Tool] = []
    for function in _functions(entries, f"{where}: tools", EXAMPLE_TOOL):
        description = function.get("description") or ""
        parameters = function.get("parameters") or {"type": "object", "properties": {}}
        if not isinstance(description, str) or not isinstance(parameters, Mapping):
            raise TasksetError(
                f"{where}: the tool {function['name']} should have a text as description and an"
                f" object as parameters, for example {EXAMPLE_TOOL}."
            )
        tools.append(Tool(function["name"], description, parameters))
    return tuple(tools)


def _functions(entries: Any, where: str, example: str) -> list[Mapping[str, Any]]:
    """Return the functions in a list of tools or calls, in OpenAI's form or without its wrapper."""
    if entries is None:
        return []
    functions: list[Mapping[str, Any]] = []
    for entry in entries if isinstance(entries, list) else [entries]:
        function = entry.get("function", entry) if isinstance(entry, Mapping) else entry
        if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
            raise TasksetError(
                f"{where} has {_quote(entry)}; each should be an object with a name, for example"
                f" {example}."
            )
        functions.append(function)
    return functions


def _quote(value: Any) -> str:
    text = repr(value)
    if len(text) <= MAX_QUOTED_CHARACTERS:
        return text
    return f"{text[:MAX_QUOTED_CHARACTERS]}..."
