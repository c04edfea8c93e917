"""`jsonl`: questions and answers from a file of JSON lines."""

import json
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from uptrend.records import Message, Task, TasksetError
from uptrend.tasks.arithmetic import NUMBER, Grading, OneTurnTaskset, is_right
from uptrend.tasks.taskset import GivenTasks

EXAMPLE = '{"prompt": "2 + 2 = ", "answer": "4"}'
# Words that files use for difficulty, as numbers from 0.
LEVELS = ("very_easy", "easy", "medium", "hard", "very_hard")


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
        path = Path(options.file)
        tasks = [read_row(row, where, path.stem) for where, row in read_json_lines(path, EXAMPLE)]
        if not tasks:
            raise TasksetError(f"The task file {path} has no rows.")
        self.given = GivenTasks(
            options.file, tasks, "quarter" if options.split else "heldout", f"{self.name}-{seed}", options.duplicates,
            self.notes,
        )  # fmt: skip

    def train(self, count: int, exclude: Collection[str] = ()) -> list[Task]:
        return self.given.train(count, exclude)

    def heldout(self, count: int) -> list[Task]:
        return self.given.heldout(count)


def read_json_lines(path: Path, example: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Every object of a file with its place, as file:line; blank lines are skipped. `example` shows what is right."""
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise TasksetError(f"The task file {path} can't be read: {reason}.") from None
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        where = f"{path}:{number}"
        try:
            row = json.loads(line)
        except ValueError as error:
            raise TasksetError(f"{where} is not JSON: {error}.") from None
        if not isinstance(row, dict):
            raise TasksetError(f"{where} should be an object, for example {example}.")
        yield where, row


def read_row(row: dict[str, Any], where: str, family: str) -> Task:
    """One row as a task, or an error that says where and what would be right."""
    for key in ("prompt", "answer"):
        if key not in row:
            raise TasksetError(f"{where} has no {key}; each row needs a prompt and an answer.")
    prompt, answer = row.pop("prompt"), row.pop("answer")
    if isinstance(answer, float) and answer.is_integer():
        answer = int(answer)
    if isinstance(answer, int) and not isinstance(answer, bool):
        answer = str(answer)
    if not isinstance(answer, str) or not answer.strip() or not is_right(answer, answer.strip()):
        raise TasksetError(f"{where}: answer = {answer!r} can't be graded; it should be a whole number or one word.")
    answer = answer.strip()
    if not isinstance(prompt, str) or not prompt.strip():
        raise TasksetError(f"{where}: prompt = {prompt!r} should be a text that is not empty.")
    # Operands may stand in `metadata`; by them the partial rule knows the result of another operation.
    metadata = row.get("metadata")
    facts = metadata if isinstance(metadata, dict) else row
    has_operands = "operation" in facts and all(type(facts.get(key)) is int for key in ("a", "b"))
    operands = {key: facts[key] for key in ("a", "b", "operation")} if has_operands else {}
    data = {**operands, **row, "base": 10 if NUMBER.fullmatch(answer) else None}
    kind, level = row.get("family"), row.get("difficulty", 0.0)
    difficulty = LEVELS.index(level) if level in LEVELS else level if isinstance(level, int | float) else 0.0
    return Task((Message("user", prompt),), answer, kind if isinstance(kind, str) else family, float(difficulty), data)
