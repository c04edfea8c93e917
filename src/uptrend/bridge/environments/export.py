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

PROJECT = """\
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
TYPES = {
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
        # a relative path would start wherever the environment is used
        if split["options"].get("file"):
            split["options"]["file"] = str(Path(split["options"]["file"]).resolve())
    exported = ExportedTasks(table)
    offered = [exported.open(row["row"]).tools for split in splits for row in exported.rows(split)]
    if any(tools != offered[0] for tools in offered):
        raise TasksetError(
            f"{name} offers other tools from task to task; an environment of verifiers has the same"
            " in all."
        )
    title = "uptrend-" + re.sub("[^a-z0-9]+", "-", name.lower()).strip("-")
    package = title.replace("-", "_")
    tools = [_written(tool) for tool in offered[0]]
    module = render(
        "bridge/templates/environment.py.txt", name=name, tools=tools, max_turns=max_turns
    )
    files = {
        "pyproject.toml": PROJECT.format(title=title, name=name, package=package),
        f"{package}/__init__.py": (
            f"from {package}.environment import PlayEnv, PlayTaskset\n\n"
            '__all__ = ["PlayEnv", "PlayTaskset"]\n'
        ),
        f"{package}/environment.py": module,
        f"{package}/tasks.json": json.dumps(table, indent=1) + "\n",
    }
    for path, text in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text, encoding="utf-8")
    return title


def _written(tool: Tool) -> dict[str, str]:
    """Return a tool as the pieces of a method."""
    arguments = tool.parameters.get("properties", {})
    required = tool.parameters.get("required", ())
    kinds = {key: TYPES.get(str(about.get("type")), "Any") for key, about in arguments.items()}
    written = sorted((key not in required, key) for key in arguments)
    signature = "".join(
        f", {key}: {kinds[key]}" + (" | None = None" if free else "") for free, key in written
    )
    meanings = "".join(
        f" {key}: {about['description']}"
        for key, about in arguments.items()
        if "description" in about
    )
    passed = "{" + ", ".join(f"{key!r}: {key}" for key in arguments) + "}"
    described = (tool.description + meanings).replace("\\", "\\\\").replace('"', '\\"')
    return {
        "name": tool.name,
        "signature": signature,
        "description": described,
        "arguments": passed,
    }


class ExportedTasks:
    """The tasks of an exported package; `table` is its tasks.json."""

    def __init__(self, table: Path | Mapping[str, Any]) -> None:
        self._splits = (
            json.loads(table.read_text(encoding="utf-8")) if isinstance(table, Path) else table
        )["splits"]
        self._tasksets: dict[str, Taskset] = {}

    def rows(self, split: str) -> Iterator[dict[str, Any]]:
        """Yield every task of a split as the fields of verifiers' task data."""
        held = self._taskset("eval").heldout(self._splits["eval"]["count"])
        taskset = self._taskset(split)
        count = self._splits[split]["count"]
        for task in held if split == "eval" else taskset.train(count, {task.id for task in held}):
            said = [asdict(message) for message in taskset.open(task, 0).messages]
            told = [{"role": m["role"], "content": m["content"]} for m in said]
            yield {
                "prompt": told,
                "answer": task.answer,
                "row": {"split": split, "task": asdict(task)},
            }

    def open(self, row: Mapping[str, Any]) -> Play:
        """Begin a rollout of a row's task."""
        table = dict(row["task"])
        messages = tuple(Message(m["role"], m["content"]) for m in table.pop("messages"))
        return self._taskset(row["split"]).open(Task(messages, **table), 0)

    async def answer(self, row: Mapping[str, Any], said: Sequence[Any]) -> list[str] | None:
        """Return what the task answers to the last of verifiers' assistant messages; None where it
        is over.
        """
        _, answers = await self._replay(row, said)
        return None if answers is None else [message.content for message in answers]

    async def score(self, row: Mapping[str, Any], said: Sequence[Any]) -> Reward:
        """Return the reward of what was said."""
        reward, _ = await self._replay(row, said)
        return reward

    async def call(self, play: Play, tool: str, arguments: Mapping[str, Any]) -> str:
        """Return what a tool says."""
        given = {key: value for key, value in arguments.items() if value is not None}
        answers = await play.respond(Message("assistant", "", (ToolCall(tool, given),)))
        return "\n".join(message.content for message in answers or ())

    async def _replay(
        self, row: Mapping[str, Any], said: Sequence[Any]
    ) -> tuple[Reward, Sequence[Message] | None]:
        play = self.open(row)
        answers = None
        try:
            for message in said:
                calls = [
                    (call.name, json.loads(call.arguments)) for call in message.tool_calls or ()
                ]
                read = tuple(ToolCall(name, arguments) for name, arguments in calls)
                answers = await play.respond(Message("assistant", message.content or "", read))
                if answers is None:
                    break
            return await play.score(), answers
        finally:
            await play.close()

    def _taskset(self, split: str) -> Taskset:
        if split not in self._tasksets:
            given = self._splits[split]
            self._tasksets[split] = make_taskset(given["name"], given["options"], given["seed"])
        return self._tasksets[split]
