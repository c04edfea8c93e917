"""Our tasksets as environments of verifiers: a package that others install, which plays and scores
through Uptrend.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from uptrend.present.formatting import render
from uptrend.records import ConfigError, Message, Reward, Task, TasksetError, Tool, ToolCall
from uptrend.tasks.pool import make_taskset
from uptrend.tasks.taskset import Play, Taskset

PROJECT_TEMPLATE = """\
[project]
name = "{title}"
version = "0.1.0"
description = "Uptrend's {name} as an environment of verifiers."
requires-python = ">=3.11"
dependencies = ["uptrend", "verifiers>=0.4"]

[build-system]
requires = ["setuptools>=77"]
build-backend = "setuptools.build_meta"

[tool.setuptools]
packages = ["{package}"]
package-data = {{ {package} = ["tasks.json"] }}
"""
PYTHON_TYPES = {
    "string": "str",
    "integer": "int",
    "number": "float",
    "boolean": "bool",
    "array": "list",
    "object": "dict",
}


def export(splits: Mapping[str, Mapping[str, Any]], max_turns: int | None, folder: Path) -> str:
    """Write a package of `train` and `eval` tasks, each with name, options, seed and count; return
    its name.
    """
    if folder.exists() and any(folder.iterdir()):
        raise ConfigError(f"{folder} is not empty; name a folder that does not exist yet.")
    name = splits["train"]["name"]
    if name.startswith("verifiers:"):
        raise TasksetError(f"{name} is an environment of verifiers already.")
    table = json.loads(json.dumps({"splits": splits}))
    for split in table["splits"].values():
        # A relative path would start wherever the environment is used.
        if split["options"].get("file"):
            split["options"]["file"] = str(Path(split["options"]["file"]).resolve())
    exported = ExportedTasks(table)
    tools_by_task: list[Sequence[Tool]] = []
    for split in splits:
        for row in exported.rows(split):
            tools_by_task.append(exported.open(row["row"]).tools)
    if any(tools != tools_by_task[0] for tools in tools_by_task):
        raise TasksetError(
            f"{name} offers other tools from task to task; an environment of verifiers has the same"
            " in all."
        )
    title = "uptrend-" + re.sub("[^a-z0-9]+", "-", name.lower()).strip("-")
    package = title.replace("-", "_")
    methods = [_describe_method(tool) for tool in tools_by_task[0]]
    module = render(
        "bridge/templates/environment.py.txt", name=name, tools=methods, max_turns=max_turns
    )
    files = {
        "pyproject.toml": PROJECT_TEMPLATE.format(title=title, name=name, package=package),
        f"{package}/__init__.py": (
            f"from {package}.environment import PlayEnv, PlayTaskset\n\n"
            '__all__ = ["PlayEnv", "PlayTaskset"]\n'
        ),
        f"{package}/environment.py": module,
        f"{package}/tasks.json": json.dumps(table, indent=1) + "\n",
    }
    for name_in_folder, text in files.items():
        path = folder / name_in_folder
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return title


def _describe_method(tool: Tool) -> dict[str, str]:
    """Return a tool as the pieces of a method."""
    properties = tool.parameters.get("properties", {})
    required = tool.parameters.get("required", ())
    signature = ""
    # Python wants arguments with a default last.
    for key in sorted(properties, key=lambda key: (key not in required, key)):
        python_type = PYTHON_TYPES.get(str(properties[key].get("type")), "Any")
        signature += f", {key}: {python_type}"
        if key not in required:
            signature += " | None = None"

    description = tool.description
    for key, schema in properties.items():
        if "description" in schema:
            description += f" {key}: {schema['description']}"
    arguments = ", ".join(f"{key!r}: {key}" for key in properties)
    return {
        "name": tool.name,
        "signature": signature,
        "description": description.replace("\\", "\\\\").replace('"', '\\"'),
        "arguments": "{" + arguments + "}",
    }


class ExportedTasks:
    """The tasks of an exported package; `table` is its tasks.json."""

    def __init__(self, table: Path | Mapping[str, Any]) -> None:
        loaded = json.loads(table.read_text("utf-8")) if isinstance(table, Path) else table
        self._splits = loaded["splits"]
        self._tasksets: dict[str, Taskset] = {}

    def rows(self, split: str) -> Iterator[dict[str, Any]]:
        """Yield every task of a split as the fields of verifiers' task data."""
        tasks = self._taskset("eval").heldout(self._splits["eval"]["count"])
        taskset = self._taskset(split)
        if split != "eval":
            heldout_ids = {task.id for task in tasks}
            tasks = taskset.train(self._splits[split]["count"], heldout_ids)
        for task in tasks:
            messages = taskset.open(task, 0).messages
            yield {
                "prompt": [{"role": m.role, "content": m.content} for m in messages],
                "answer": task.answer,
                "row": {"split": split, "task": asdict(task)},
            }

    def open(self, row: Mapping[str, Any]) -> Play:
        """Begin a rollout of a row's task."""
        table = dict(row["task"])
        messages = tuple(Message(m["role"], m["content"]) for m in table.pop("messages"))
        return self._taskset(row["split"]).open(Task(messages, **table), 0)

    async def answer(self, row: Mapping[str, Any], replies: Sequence[Any]) -> list[str] | None:
        """Return the task's answer to the last of the model's replies, as verifiers' assistant
        messages; None where it is over.
        """
        _, answers = await self._replay(row, replies)
        return None if answers is None else [message.content for message in answers]

    async def score(self, row: Mapping[str, Any], replies: Sequence[Any]) -> Reward:
        """Return the reward of the model's replies."""
        reward, _ = await self._replay(row, replies)
        return reward

    async def call(self, play: Play, tool: str, arguments: Mapping[str, Any]) -> str:
        """Return a tool's answer."""
        filled = {key: value for key, value in arguments.items() if value is not None}
        message = Message("assistant", "", (ToolCall(tool, filled),))
        answers = await play.respond(message)
        return "\n".join(message.content for message in answers or ())

    async def _replay(
        self, row: Mapping[str, Any], replies: Sequence[Any]
    ) -> tuple[Reward, Sequence[Message] | None]:
        play = self.open(row)
        answers = None
        try:
            for reply in replies:
                calls: list[ToolCall] = []
                for call in reply.tool_calls or ():
                    calls.append(ToolCall(call.name, json.loads(call.arguments)))
                message = Message("assistant", reply.content or "", tuple(calls))
                answers = await play.respond(message)
                if answers is None:
                    break
            return await play.score(), answers
        finally:
            await play.close()

    def _taskset(self, split: str) -> Taskset:
        if split not in self._tasksets:
            table = self._splits[split]
            self._tasksets[split] = make_taskset(table["name"], table["options"], table["seed"])
        return self._tasksets[split]
