"""How tools are told to a model: as schemas for its chat template, or in words where that has no tools."""

import json
from collections.abc import Sequence
from typing import Any

from uptrend.records import Tool, ToolCall

EXAMPLES = {"integer": 1, "number": 1.5, "boolean": True, "array": [], "object": {}}
"""A value of each type of JSON schema, for an example; other types are texts."""


def schemas(tools: Sequence[Tool]) -> list[dict[str, Any]]:
    """Tools as chat templates expect them."""
    told = [{"name": t.name, "description": t.description, "parameters": dict(t.parameters)} for t in tools]
    return [{"type": "function", "function": function} for function in told]


def describe(tools: Sequence[Tool]) -> str:
    """The tools in words: a line each."""
    lines = (f"{t.name}({', '.join(_arguments(t))}): {' '.join(t.description.split())}" for t in tools)
    return "\n".join(["You can call these tools:", *lines])


def example_call(tool: Tool) -> ToolCall:
    """A call of a tool, with a value for each argument that it needs."""
    needed = _required(tool)
    return ToolCall(tool.name, {name: _value(schema) for name, schema in _properties(tool).items() if name in needed})


def _properties(tool: Tool) -> dict[str, Any]:
    return dict(tool.parameters.get("properties", {}))


def _required(tool: Tool) -> list[str]:
    return list(tool.parameters.get("required", _properties(tool)))


def _arguments(tool: Tool) -> list[str]:
    """Each argument with its type, and whether it can be left out."""
    needed = _required(tool)
    return [f"{n}: {'' if n in needed else 'optional '}{_kind(s)}" for n, s in _properties(tool).items()]


def _kind(schema: dict[str, Any]) -> str:
    kinds = schema.get("type", "any")
    if schema.get("enum"):
        return " or ".join(json.dumps(value, ensure_ascii=False) for value in schema["enum"])
    return " or ".join(kinds) if isinstance(kinds, list) else str(kinds)


def _value(schema: dict[str, Any]) -> Any:
    return schema["enum"][0] if schema.get("enum") else EXAMPLES.get(str(schema.get("type")), "...")
