"""MuSiQue's rows as tasks: the official schema, read from a file or handed over by a hub dataset."""

import json
import random
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from uptrend.records import Message, Task, TasksetError
from uptrend.records.task import task_id
from uptrend.tasks.musique.documents import Document
from uptrend.tasks.musique.reply import INSTRUCTIONS

NEEDED = ("question", "answer", "paragraphs")
PARAGRAPH = ("paragraph_text", "is_supporting")


def read_file(path: Path) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Every row of a file of JSON lines, with where it stands; blank lines are skipped."""
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise TasksetError(f"The task file {path} can't be read: {reason}.") from None
    for number, line in enumerate(lines, 1):
        if line.strip():
            yield f"{path}:{number}", _parse(line, f"{path}:{number}")


def to_tasks(rows: Iterable[tuple[str, Mapping[str, Any]]], noise_rate: float) -> Iterator[Task]:
    """Rows as tasks; questions that say of themselves that they have no answer are left out."""
    for where, row in rows:
        if row.get("answerable", True):
            yield to_task(row, where, noise_rate)


def to_task(row: Mapping[str, Any], where: str, noise_rate: float = 1.0) -> Task:
    """One row as a task, or an error that says where and what would be right."""
    for key in NEEDED:
        if not row.get(key):
            raise TasksetError(f"{where} has no {key}; a row of MuSiQue has {', '.join(NEEDED)} and more.")
    question, answer = str(row["question"]).strip(), str(row["answer"]).strip()
    paragraphs = [_paragraph(p, n, where) for n, p in enumerate(row["paragraphs"])]
    if len({p["id"] for p in paragraphs}) < len(paragraphs):
        raise TasksetError(f"{where}: two paragraphs have the same idx, so that neither can be cited.")
    hops = sum(p["supporting"] for p in paragraphs)
    if not hops:
        raise TasksetError(
            f"{where}: no paragraph is supporting (is_supporting), so neither retrieval nor citation can be scored. "
            "Mark at least one, or remove the row."
        )
    # Known by the question alone: other instructions or fewer documents do not make it another task.
    asked = Message("user", question)
    identity = task_id([asked])
    return Task(
        messages=(Message("system", INSTRUCTIONS), asked),
        answer=answer,
        family=f"{hops}hop",
        difficulty=float(hops),
        data={
            "accepted": list(dict.fromkeys([answer, *map(str, row.get("answer_aliases") or ())])),
            "documents": _with_noise(paragraphs, noise_rate, identity),
            "decomposition": [dict(step) for step in row.get("question_decomposition") or ()],
            "source": str(row.get("id", where)),
        },
        id=identity,
    )


def documents_of(task: Task) -> list[Document]:
    """What a task's tools can find."""
    return [Document(**document) for document in task.data["documents"]]


def _with_noise(paragraphs: list[dict[str, Any]], rate: float, identity: str) -> list[dict[str, Any]]:
    """Every supporting paragraph, and each other one with this probability: by the question, so always the same."""
    chance = random.Random(f"noise-{identity}")
    kept = [chance.random() < rate for _ in paragraphs]
    return [p for p, keep in zip(paragraphs, kept, strict=True) if keep or p["supporting"]]


def _paragraph(given: Any, number: int, where: str) -> dict[str, Any]:
    if not isinstance(given, Mapping):
        raise TasksetError(f"{where}: paragraphs[{number}] should be an object, not {given!r}.")
    for key in PARAGRAPH:
        if key not in given:
            raise TasksetError(f"{where}: paragraphs[{number}] has no {key}.")
    return {
        "id": str(given.get("idx", number)),
        "title": str(given.get("title", "")),
        "text": str(given["paragraph_text"]),
        "supporting": bool(given["is_supporting"]),
    }


def _parse(line: str, where: str) -> Mapping[str, Any]:
    try:
        row = json.loads(line)
    except ValueError as error:
        raise TasksetError(f"{where} is not JSON: {error}.") from None
    if not isinstance(row, dict):
        raise TasksetError(f"{where} should be an object with {', '.join(NEEDED)}.")
    return row
