"""The two tools: their descriptions for the model, and what is wrong with a call that can't be carried out."""

from uptrend.records import Message, Tool, ToolCall

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
