"""Tool calls: formats in which models write them, and tools in words where a template has none.

A format reads a turn's text into a message and writes a message as the text that a model would say.
What can't be read is not thrown away: the message keeps the whole text, makes no call, and names
the problem in a sentence that the task can show to the model.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from uptrend.records import Message, TasksetError, Tool, ToolCall

# A value of each type of JSON schema, for an example; other types are texts.
EXAMPLES = {"integer": 1, "number": 1.5, "boolean": True, "array": [], "object": {}}


def schemas(tools: Sequence[Tool]) -> list[dict[str, Any]]:
    """Return tools as chat templates expect them."""
    told = [
        {"name": t.name, "description": t.description, "parameters": dict(t.parameters)}
        for t in tools
    ]
    return [{"type": "function", "function": function} for function in told]


def describe(tools: Sequence[Tool]) -> str:
    """Describe tools in words, one line each."""
    lines = ["You can call these tools:"]
    for tool in tools:
        arguments = []
        for name, (schema, is_needed) in _arguments(tool).items():
            kinds = schema.get("type", "any")
            kind = " or ".join(kinds) if isinstance(kinds, list) else str(kinds)
            if schema.get("enum"):
                kind = " or ".join(
                    json.dumps(value, ensure_ascii=False) for value in schema["enum"]
                )
            arguments.append(f"{name}: {kind if is_needed else f'optional {kind}'}")
        lines.append(f"{tool.name}({', '.join(arguments)}): {' '.join(tool.description.split())}")
    return "\n".join(lines)


def example_call(tool: Tool) -> ToolCall:
    """Make a call of a tool, with a value for each argument that it needs."""
    needed = {name: schema for name, (schema, is_needed) in _arguments(tool).items() if is_needed}
    values = {
        name: (s.get("enum") or [EXAMPLES.get(str(s.get("type")), "...")])[0]
        for name, s in needed.items()
    }
    return ToolCall(tool.name, values)


def _arguments(tool: Tool) -> dict[str, tuple[dict[str, Any], bool]]:
    """Return each argument's schema, and True where it can't be left out."""
    properties = tool.parameters.get("properties", {})
    needed = tool.parameters.get("required", properties)
    return {name: (schema, name in needed) for name, schema in properties.items()}


PYTHON_TAG = "<|python_tag|>"
THINK = "<think>"
END_THINK = "</think>"


class CallFormat(Protocol):
    """One way in which calls are written."""

    @property
    def marks(self) -> tuple[str, ...]:
        """Markup; a tokenizer may have a special token for each piece."""

    def read(self, text: str) -> Message:
        """Read a turn without thoughts: its words, its calls, or what is wrong with them."""

    def write(self, message: Message) -> str:
        """Return the text of a turn; what `read` makes of it is the message."""


class _Unreadable(Exception):  # noqa: N818 (what a call is)
    """A call that can't be read; its text is what is wrong."""


@dataclass(frozen=True)
class Tagged:
    """Each call as JSON between two tags, anywhere in the text."""

    opening: str  # the tag before a call
    closing: str  # the tag after it
    gap: str = ""  # text between a tag and the JSON

    @property
    def marks(self) -> tuple[str, ...]:
        return self.opening, self.closing

    def read(self, text: str) -> Message:
        words = ""
        calls = list[ToolCall]()
        place = 0
        begin = text.find(self.opening)
        try:
            while begin >= 0:
                call, end = self._call(text, begin + len(self.opening))
                words += text[place:begin].removesuffix("\n")
                calls.append(call)
                place = end
                begin = text.find(self.opening, end)
        except _Unreadable as problem:
            right = f'{self.opening}{{"name": "...", "arguments": {{...}}}}{self.closing}'
            return Message("assistant", text, problem=f"{problem}; a call is written as {right}")
        return Message("assistant", words + text[place:], tuple(calls))

    def write(self, message: Message) -> str:
        calls = [
            f"{self.opening}{self.gap}{_dump(c, 'arguments')}{self.gap}{self.closing}"
            for c in message.calls
        ]
        return "\n".join([message.content, *calls] if message.content else calls)

    def _call(self, text: str, place: int) -> tuple[ToolCall, int]:
        """Read the call whose tag ends at a place; return where its closing tag ends too."""
        unclosed = _Unreadable(f"A call begins with {self.opening}, but {self.closing} is missing")
        if self.closing not in text[place:]:
            raise unclosed
        # not up to the closing tag: one inside of an argument's text closes nothing
        value, end = _parse(text, place)
        rest = text[end:].lstrip()
        if self.closing not in rest:
            raise unclosed
        if not rest.startswith(self.closing):
            raise _Unreadable(
                f"More than a JSON object stands between {self.opening} and {self.closing}"
            )
        return _call_of(value), len(text) - len(rest) + len(self.closing)


class Bare:
    """Llama 3.1: the turn is the call, one JSON object, with or without a tag before it.

    Words before a call are only told apart from it by the tag. Several objects are read as several
    calls, so that the task can say that one a turn is allowed; they are never written, as Llama's
    own template refuses them.
    """

    marks = (PYTHON_TAG,)

    def read(self, text: str) -> Message:
        words, tag, said = text.partition(PYTHON_TAG)
        if text.lstrip().startswith("{"):
            words = ""
            said = text
        elif not tag:
            return Message("assistant", text)
        try:
            return Message("assistant", words, tuple(self._calls(said.strip())))
        except _Unreadable as problem:
            right = (
                'a turn that calls a tool holds nothing but {"name": "...", "parameters": {...}}'
            )
            return Message("assistant", text, problem=f"{problem}; {right}")

    def write(self, message: Message) -> str:
        if len(message.calls) > 1:
            raise TasksetError(
                f"A scripted turn makes {len(message.calls)} tool calls, but this model's format"
                " holds one call a turn. Make the calls in turns of their own."
            )
        if not message.calls:
            return message.content
        return (message.content and message.content + PYTHON_TAG) + _dump(
            message.calls[0], "parameters"
        )

    def _calls(self, said: str) -> list[ToolCall]:
        calls = list[ToolCall]()
        place = 0
        while place < len(said) or not calls:
            value, place = _parse(said, place)
            calls.append(_call_of(value))
            rest = said[place:].lstrip("; \t\r\n")
            if rest and not rest.startswith("{"):
                raise _Unreadable("More text follows the call")
            place = len(said) - len(rest)
        return calls


def read_turn(calls: CallFormat, text: str, *, in_thoughts: bool = False) -> Message:
    """Read a turn; a call inside the thoughts that begin it, or that its prompt began, is not
    made.
    """
    if not in_thoughts and not text.lstrip().startswith(THINK):
        return calls.read(text)
    thought, closing, said = text.partition(END_THINK)
    message = calls.read(said)  # nothing where the thoughts were never closed
    return replace(message, content=thought + closing + message.content)


def read_served(text: str, calls: Sequence[Any]) -> Message:
    """Read a turn whose calls a server has taken out of its text."""
    try:
        return Message(
            "assistant",
            text,
            tuple(_call_of({**c, "arguments": c.get("arguments") or {}}) for c in calls),
        )
    except (_Unreadable, TypeError, AttributeError) as problem:
        whole = "\n".join(
            [*([text] if text else []), *(json.dumps(call, ensure_ascii=False) for call in calls)]
        )
        return Message(
            "assistant",
            whole,
            problem=f"{problem}; a call has a name, and arguments as a JSON object",
        )


FORMATS: dict[str, CallFormat] = {
    "plain": Tagged("<tool>", "</tool>"),
    "qwen": Tagged("<tool_call>", "</tool_call>", "\n"),
    "llama": Bare(),
}
# Text in a chat template by which a format is recognized.
SIGNS = {"qwen": "<tool_call>", "llama": "ipython"}


def format_of(tokenizer: Any) -> str:
    """Name the format in which a tokenizer's chat template has calls; plain where it knows no
    tools.
    """
    tool = Tool(
        "probe_tool", "Probes.", {"type": "object", "properties": {"word": {"type": "string"}}}
    )
    call = ToolCall(tool.name, {"word": "x"})
    asked = [{"role": "user", "content": "x"}]
    functions = schemas([tool])
    told = _render(tokenizer, asked, functions)
    if told is None or told == _render(tokenizer, asked, None):
        return "plain"
    source = str(tokenizer.chat_template)
    name = next((name for name, sign in SIGNS.items() if sign in source), "plain")
    calling = {
        "role": "assistant",
        "content": "",
        "tool_calls": [{"type": "function", "function": vars(call)}],
    }
    shown = (_render(tokenizer, [*asked, calling], functions) or "").removeprefix(told)
    # A template that writes calls in another way under the same tags (Qwen3-Coder's are XML) would
    # be misread.
    contradicts = (
        tool.name in shown and FORMATS[name].write(Message("assistant", "", (call,))) not in shown
    )
    return "plain" if contradicts else name


def _render(
    tokenizer: Any, messages: list[dict[str, Any]], tools: list[dict[str, Any]] | None
) -> str | None:
    try:
        text: str = tokenizer.apply_chat_template(messages, tools=tools, tokenize=False)
    except Exception:  # templates raise what they like where they do not know something
        return None
    return text


def _parse(text: str, place: int) -> tuple[Any, int]:
    """Return the JSON value at a place, and where it ends."""
    place += len(text[place:]) - len(text[place:].lstrip())
    try:
        value, end = json.JSONDecoder().raw_decode(text, place)
        # Python reads more than can be written down: numbers without end, halves of characters,
        # endless nesting.
        json.dumps(value, ensure_ascii=False, allow_nan=False).encode()
    except json.JSONDecodeError as error:
        raise _Unreadable(
            f"The call is not JSON: {error.msg} at its character {error.pos - place + 1}"
        ) from None
    except (ValueError, RecursionError):
        raise _Unreadable(
            "The call is not JSON: it has a number or a text that can't be written down"
        ) from None
    return value, end


def _call_of(value: Any) -> ToolCall:
    """Read a JSON value as a call, with the liberties that models take."""
    if not isinstance(value, dict):
        raise _Unreadable("The call is not a JSON object")
    name = value.get("name")
    if not isinstance(name, str) or not name:
        raise _Unreadable("The call has no name that says which tool")
    arguments = value.get("arguments", value.get("parameters", {}))
    if isinstance(arguments, str):  # JSON inside JSON
        try:
            inner, end = _parse(arguments, 0)
            arguments = None if arguments[end:].strip() else inner
        except _Unreadable:
            arguments = None
    if not isinstance(arguments, dict):
        raise _Unreadable("The call's arguments are not a JSON object")
    return ToolCall(name, arguments)


def _dump(call: ToolCall, word: str) -> str:
    return json.dumps({"name": call.name, word: dict(call.arguments)}, ensure_ascii=False)
