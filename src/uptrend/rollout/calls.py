"""Tool calls: formats in which models write them, and descriptions of tools for templates without
tools.

A format reads a turn's text into a message and writes a message as the text that a model would
sample. What can't be read is not thrown away: the message keeps the whole text, makes no call, and
names the problem in a sentence that the task can show to the model.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from uptrend.records import Message, TasksetError, Tool, ToolCall

# A value of each type of JSON schema, for an example; other types are texts.
EXAMPLE_VALUES = {"integer": 1, "number": 1.5, "boolean": True, "array": [], "object": {}}


def tool_schemas(tools: Sequence[Tool]) -> list[dict[str, Any]]:
    """Return tools as chat templates expect them."""
    schemas: list[dict[str, Any]] = []
    for tool in tools:
        function = {
            "name": tool.name,
            "description": tool.description,
            "parameters": dict(tool.parameters),
        }
        schemas.append({"type": "function", "function": function})
    return schemas


def describe_tools(tools: Sequence[Tool]) -> str:
    """Describe tools as text, one line each."""
    lines = ["You can call these tools:"]
    for tool in tools:
        arguments: list[str] = []
        for argument in _arguments(tool):
            kind = _describe_type(argument.schema)
            if not argument.is_required:
                kind = f"optional {kind}"
            arguments.append(f"{argument.name}: {kind}")
        description = " ".join(tool.description.split())
        lines.append(f"{tool.name}({', '.join(arguments)}): {description}")
    return "\n".join(lines)


def _describe_type(schema: dict[str, Any]) -> str:
    if schema.get("enum"):
        return " or ".join(json.dumps(value, ensure_ascii=False) for value in schema["enum"])
    kinds = schema.get("type", "any")
    return " or ".join(kinds) if isinstance(kinds, list) else str(kinds)


def example_call(tool: Tool) -> ToolCall:
    """Make a call of a tool, with a value for each required argument."""
    values: dict[str, Any] = {}
    for argument in _arguments(tool):
        if argument.is_required:
            example = EXAMPLE_VALUES.get(str(argument.schema.get("type")), "...")
            choices = argument.schema.get("enum") or [example]
            values[argument.name] = choices[0]
    return ToolCall(tool.name, values)


@dataclass(frozen=True)
class _Argument:
    """An argument of a tool."""

    name: str
    schema: dict[str, Any]
    is_required: bool


def _arguments(tool: Tool) -> list[_Argument]:
    properties = tool.parameters.get("properties", {})
    required = tool.parameters.get("required", properties)
    return [_Argument(name, schema, name in required) for name, schema in properties.items()]


PYTHON_TAG = "<|python_tag|>"
THINK_TAG = "<think>"
END_THINK_TAG = "</think>"


class CallFormat(Protocol):
    """Format in which a model writes its calls."""

    @property
    def marks(self) -> tuple[str, ...]:
        """Tags around calls; a tokenizer may have a special token for each."""

    def read(self, text: str) -> Message:
        """Read a turn without thoughts: its text and its calls, or the problem with them."""

    def write(self, message: Message) -> str:
        """Return the text of a turn, from which `read` makes the same message."""


class _Unreadable(Exception):  # noqa: N818 (a state of the call, not of the program)
    """A call that can't be read; its text names the problem."""


@dataclass(frozen=True)
class TaggedCalls:
    """Each call as JSON between two tags, anywhere in the text."""

    opening: str  # the tag before a call
    closing: str  # the tag after it
    gap: str = ""  # text between a tag and the JSON

    @property
    def marks(self) -> tuple[str, ...]:
        return self.opening, self.closing

    def read(self, text: str) -> Message:
        content = ""
        calls: list[ToolCall] = []
        end_of_last = 0
        start = text.find(self.opening)
        try:
            while start >= 0:
                call, end = self._read_call(text, start + len(self.opening))
                content += text[end_of_last:start].removesuffix("\n")
                calls.append(call)
                end_of_last = end
                start = text.find(self.opening, end)
        except _Unreadable as problem:
            right = f'{self.opening}{{"name": "...", "arguments": {{...}}}}{self.closing}'
            return Message("assistant", text, problem=f"{problem}; a call is written as {right}")
        return Message("assistant", content + text[end_of_last:], tuple(calls))

    def write(self, message: Message) -> str:
        lines: list[str] = []
        if message.content:
            lines.append(message.content)
        for call in message.calls:
            value = _dump(call, "arguments")
            lines.append(f"{self.opening}{self.gap}{value}{self.gap}{self.closing}")
        return "\n".join(lines)

    def _read_call(self, text: str, start: int) -> tuple[ToolCall, int]:
        """Read the call that starts right after its tag; return the end of its closing tag too."""
        unclosed = _Unreadable(f"A call begins with {self.opening}, but {self.closing} is missing")
        if self.closing not in text[start:]:
            raise unclosed
        # Parsed, not cut at the closing tag: an argument's text may have that tag in it.
        value, end = _parse(text, start)
        rest = text[end:].lstrip()
        if self.closing not in rest:
            raise unclosed
        if not rest.startswith(self.closing):
            raise _Unreadable(
                f"More than a JSON object stands between {self.opening} and {self.closing}"
            )
        return _call_of(value), len(text) - len(rest) + len(self.closing)


class BareCalls:
    """Llama 3.1: the turn is the call, one JSON object, with or without a tag before it.

    Only the tag separates text before a call from it. Several objects are read as several calls, so
    that the task can answer that a turn may make one; they are never written, as Llama's own
    template refuses them.
    """

    marks = (PYTHON_TAG,)

    def read(self, text: str) -> Message:
        content, tag, calls = text.partition(PYTHON_TAG)
        if text.lstrip().startswith("{"):
            content = ""
            calls = text
        elif not tag:
            return Message("assistant", text)
        try:
            return Message("assistant", content, tuple(self._read_calls(calls.strip())))
        except _Unreadable as problem:
            right = '{"name": "...", "parameters": {...}}'
            problem_text = f"{problem}; a turn that calls a tool holds nothing but {right}"
            return Message("assistant", text, problem=problem_text)

    def write(self, message: Message) -> str:
        if len(message.calls) > 1:
            raise TasksetError(
                f"A scripted turn makes {len(message.calls)} tool calls, but this model's format"
                " holds one call a turn. Make the calls in turns of their own."
            )
        if not message.calls:
            return message.content
        call = _dump(message.calls[0], "parameters")
        if not message.content:
            return call
        return message.content + PYTHON_TAG + call

    def _read_calls(self, text: str) -> list[ToolCall]:
        calls: list[ToolCall] = []
        start = 0
        while start < len(text) or not calls:
            value, end = _parse(text, start)
            calls.append(_call_of(value))
            rest = text[end:].lstrip("; \t\r\n")
            if rest and not rest.startswith("{"):
                raise _Unreadable("More text follows the call")
            start = len(text) - len(rest)
        return calls


def read_turn(calls: CallFormat, text: str, *, in_thoughts: bool = False) -> Message:
    """Read a turn; a call inside the thoughts that begin it, or that its prompt began, is not
    made.
    """
    if not in_thoughts and not text.lstrip().startswith(THINK_TAG):
        return calls.read(text)
    thoughts, closing, turn = text.partition(END_THINK_TAG)  # the turn is empty if they never end
    message = calls.read(turn)
    return replace(message, content=thoughts + closing + message.content)


def read_parsed_turn(text: str, calls: Sequence[Any]) -> Message:
    """Read a turn whose calls a server has taken out of its text."""
    try:
        tool_calls: list[ToolCall] = []
        for call in calls:
            tool_calls.append(_call_of({**call, "arguments": call.get("arguments") or {}}))
        return Message("assistant", text, tuple(tool_calls))
    except (_Unreadable, TypeError, AttributeError) as error:
        lines = [text] if text else []
        lines += [json.dumps(call, ensure_ascii=False) for call in calls]
        problem = f"{error}; a call has a name, and arguments as a JSON object"
        return Message("assistant", "\n".join(lines), problem=problem)


CALL_FORMATS: dict[str, CallFormat] = {
    "plain": TaggedCalls("<tool>", "</tool>"),
    "qwen": TaggedCalls("<tool_call>", "</tool_call>", "\n"),
    "llama": BareCalls(),
}
# Text in a chat template by which a format is recognized.
TEMPLATE_SIGNS = {"qwen": "<tool_call>", "llama": "ipython"}


def format_of(tokenizer: Any) -> str:
    """Return the name of the format in which a tokenizer's chat template has calls; plain if it
    ignores tools.
    """
    schema = {"type": "object", "properties": {"word": {"type": "string"}}}
    tool = Tool("probe_tool", "Probes.", schema)
    question = {"role": "user", "content": "x"}
    schemas = tool_schemas([tool])
    rendered_question = _render(tokenizer, [question], schemas)
    if rendered_question is None or rendered_question == _render(tokenizer, [question], None):
        return "plain"

    source = str(tokenizer.chat_template)
    name = next((name for name, sign in TEMPLATE_SIGNS.items() if sign in source), "plain")
    # A template that writes calls in another way under the same tags (Qwen3-Coder's are XML) would
    # be misread, so a call has to come out as our format writes it.
    call = ToolCall(tool.name, {"word": "x"})
    calling = {
        "role": "assistant",
        "content": "",
        "tool_calls": [{"type": "function", "function": vars(call)}],
    }
    rendered = _render(tokenizer, [question, calling], schemas) or ""
    rendered_call = rendered.removeprefix(rendered_question)
    expected_call = CALL_FORMATS[name].write(Message("assistant", "", (call,)))
    if tool.name in rendered_call and expected_call not in rendered_call:
        return "plain"
    return name


def _render(
    tokenizer: Any, messages: list[dict[str, Any]], tools: list[dict[str, Any]] | None
) -> str | None:
    try:
        text: str = tokenizer.apply_chat_template(messages, tools=tools, tokenize=False)
    except Exception:  # templates raise anything for what they do not know
        return None
    return text


def _parse(text: str, start: int) -> tuple[Any, int]:
    """Return the JSON value that begins at `start` or after spaces, and its end."""
    rest = text[start:]
    start += len(rest) - len(rest.lstrip())
    try:
        value, end = json.JSONDecoder().raw_decode(text, start)
        # Python reads more than can be written down: infinite numbers, halves of characters,
        # endless nesting.
        json.dumps(value, ensure_ascii=False, allow_nan=False).encode()
    except json.JSONDecodeError as error:
        raise _Unreadable(
            f"The call is not JSON: {error.msg} at its character {error.pos - start + 1}"
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
            value, end = _parse(arguments, 0)
            arguments = None if arguments[end:].strip() else value
        except _Unreadable:
            arguments = None
    if not isinstance(arguments, dict):
        raise _Unreadable("The call's arguments are not a JSON object")
    return ToolCall(name, arguments)


def _dump(call: ToolCall, arguments_key: str) -> str:
    value = {"name": call.name, arguments_key: dict(call.arguments)}
    return json.dumps(value, ensure_ascii=False)
