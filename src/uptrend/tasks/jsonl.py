"""`jsonl`: questions and answers from a file of JSON lines."""

import json
import random
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

from uptrend.records import Message, Task, TasksetError
from uptrend.tasks.arithmetic import NUMBER, Grading, OneTurnTaskset, is_right
from uptrend.tasks.taskset import held_out_quarter, shortfall


def read_json_lines(path: Path, example: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Every object of a file with its place, as file:line; blank lines are skipped. `example` shows what is right."""
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise TasksetError(f"The task file {path} can't be read: {reason}.") from None
    for number, line in enumerate(lines, 1):
        if line.strip():
            yield f"{path}:{number}", _object(line, f"{path}:{number}", example)


def _object(line: str, where: str, example: str) -> dict[str, Any]:
    try:
        row = json.loads(line)
    except ValueError as error:
        raise TasksetError(f"{where} is not JSON: {error}.") from None
    if not isinstance(row, dict):
        raise TasksetError(f"{where} should be an object, for example {example}.")
    return row


EXAMPLE = '{"prompt": "2 + 2 = ", "answer": "4"}'
"""Example of a row."""
LEVELS = ("very_easy", "easy", "medium", "hard", "very_hard")
"""Words that files use for difficulty, as numbers from 0."""


@dataclass(frozen=True, kw_only=True)
class JsonlOptions(Grading):
    """The options of `jsonl`."""

    file: str
    """The file; a relative path starts at the current folder."""
    split: bool = True
    """Hold out a quarter of the rows. Without, all of them may be held out and none trained on."""
    duplicates: float = 0.1
    """The share of rows that may repeat an earlier prompt before `uptrend tasks validate` objects."""


class Jsonl(OneTurnTaskset):
    """Your own tasks, from a file with a prompt and an answer a line."""

    name: ClassVar[str] = "jsonl"
    version: ClassVar[str] = "1"
    Options: ClassVar[type[Any]] = JsonlOptions
    WHOLE: ClassVar[dict[str, Any]] = {"split": False}

    def __init__(self, options: JsonlOptions, seed: int) -> None:
        super().__init__(options, seed)
        rows = read_tasks(Path(options.file))
        unique: dict[str, Task] = {}
        for task in rows:
            unique.setdefault(task.id, task)
        self.rows = len(rows)
        self.duplicate_rows = len(rows) - len(unique)
        self.duplicates_allowed: float = options.duplicates
        self._tasks = list(unique.values())
        random.Random(f"{self.name}-{seed}").shuffle(self._tasks)
        if self.duplicate_rows:
            self.note(self._say_duplicates(rows, unique))

    def train(self, count: int, exclude: Collection[str] = ()) -> list[Task]:
        """Rows of the three quarters to train on."""
        left_out = self._held_out.union(exclude)
        return self._limit([task for task in self._tasks if task.id not in left_out], count)

    def heldout(self, count: int) -> list[Task]:
        """Rows of the quarter that is held out."""
        return self._limit([task for task in self._tasks if task.id in self._held_out], count)

    @cached_property
    def _held_out(self) -> frozenset[str]:
        ids = [task.id for task in self._tasks]
        return held_out_quarter(ids) if self.options.split else frozenset(ids)

    def _limit(self, tasks: list[Task], count: int) -> list[Task]:
        if len(tasks) < count and self.options.split:
            held = len(self._held_out)
            self.note(shortfall(self.options.file, len(self._tasks) - held, held))
        elif len(tasks) < count:
            self.note(f"{self.options.file} has {len(self._tasks)} tasks, fewer than asked for: all are held out")
        return tasks[:count]

    def _say_duplicates(self, rows: list[Task], unique: dict[str, Task]) -> str:
        repeated = f"{self.duplicate_rows} of {self.rows} rows repeat an earlier prompt and were removed"
        differing = sum(task.answer != unique[task.id].answer for task in rows)
        also = f"; {differing} of them have another answer than the first" if differing else ""
        return f"{self.options.file}: {repeated}{also}"


def read_tasks(path: Path) -> list[Task]:
    """Every row of a file as a task; blank lines are skipped."""
    tasks = [read_row(row, where, path.stem) for where, row in read_json_lines(path, EXAMPLE)]
    if not tasks:
        raise TasksetError(f"The task file {path} has no rows.")
    return tasks


def read_row(row: dict[str, Any], where: str, family: str) -> Task:
    """One row as a task, or an error that says where and what would be right."""
    for key in ("prompt", "answer"):
        if key not in row:
            raise TasksetError(f"{where} has no {key}; each row needs a prompt and an answer.")
    prompt, answer = row.pop("prompt"), _answer(row.pop("answer"), where)
    if not isinstance(prompt, str) or not prompt.strip():
        raise TasksetError(f"{where}: prompt = {prompt!r} should be a text that is not empty.")
    kind = row.get("family")
    data = {**_operands(row), **row, "base": 10 if NUMBER.fullmatch(answer) else None}
    return Task((Message("user", prompt),), answer, kind if isinstance(kind, str) else family, _difficulty(row), data)


def _answer(value: Any, where: str) -> str:
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    if isinstance(value, str) and value.strip() and is_right(value, value.strip()):
        return value.strip()
    raise TasksetError(f"{where}: answer = {value!r} can't be graded; it should be a whole number or one word.")


def _operands(row: dict[str, Any]) -> dict[str, Any]:
    """Return the operands out of `metadata`, by which the partial rule knows a wrong operation."""
    metadata = row.get("metadata")
    found = metadata if isinstance(metadata, dict) else row
    if "operation" not in found or not all(type(found.get(key)) is int for key in ("a", "b")):
        return {}
    return {key: found[key] for key in ("a", "b", "operation")}


def _difficulty(row: dict[str, Any]) -> float:
    value = row.get("difficulty", 0.0)
    if value in LEVELS:
        return float(LEVELS.index(value))
    return float(value) if isinstance(value, int | float) else 0.0
