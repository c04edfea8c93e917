"""MuSiQue's rows as tasks: the official schema, read from a file or handed over by a hub dataset."""

import random
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from uptrend.records import Message, Task, TasksetError
from uptrend.records.rollout import task_id
from uptrend.tasks.json_lines import read_json_lines
from uptrend.tasks.musique.documents import Document
from uptrend.tasks.musique.reply import INSTRUCTIONS

NEEDED = ("question", "answer", "paragraphs")


def read_file(path: Path) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Every row of a file of JSON lines, with where it stands."""
    return read_json_lines(path, '{"question": "…", "answer": "…", "paragraphs": […]}')


def to_tasks(rows: Iterable[tuple[str, Mapping[str, Any]]], noise_rate: float) -> Iterator[Task]:
    """Rows as tasks; questions that say of themselves that they have no answer are left out."""
    for where, row in rows:
        if _flag(row, "answerable", where, otherwise=True):
            yield to_task(row, where, noise_rate)


def to_task(row: Mapping[str, Any], where: str, noise_rate: float = 1.0) -> Task:
    """One row as a task, or an error that says where and what would be right."""
    question, answer = _text(row, "question", where), _text(row, "answer", where)
    paragraphs = [_paragraph(p, f"{where}: paragraphs[{n}]", n) for n, p in enumerate(_list(row, "paragraphs", where))]
    if not paragraphs:
        raise TasksetError(f"{where} has no paragraphs; a row of MuSiQue has {', '.join(NEEDED)} and more.")
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
    aliases = [_as_text(alias, f"{where}: answer_aliases") for alias in _list(row, "answer_aliases", where)]
    return Task(
        messages=(Message("system", INSTRUCTIONS), asked),
        answer=answer,
        family=f"{hops}hop",
        difficulty=float(hops),
        data={
            "accepted": list(dict.fromkeys([answer, *aliases])),
            "documents": _with_noise(paragraphs, noise_rate, identity),
            "decomposition": [_step(s, where) for s in _list(row, "question_decomposition", where)],
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


def _paragraph(given: Any, where: str, number: int) -> dict[str, Any]:
    if not isinstance(given, Mapping):
        raise TasksetError(f"{where} should be an object, not {given!r}.")
    return {
        "id": str(given.get("idx", number)),
        "title": str(given.get("title") or ""),
        "text": _text(given, "paragraph_text", where),
        "supporting": _flag(given, "is_supporting", where),
    }


def _step(given: Any, where: str) -> dict[str, Any]:
    if not isinstance(given, Mapping):
        raise TasksetError(f"{where}: question_decomposition should hold objects, not {given!r}.")
    step = {key: str(given.get(key, "")) for key in ("question", "answer")}
    return {**step, "support": str(given.get("paragraph_support_idx", ""))}


def _text(given: Mapping[str, Any], key: str, where: str) -> str:
    if given.get(key) in (None, ""):
        raise TasksetError(f"{where} has no {key}; a row of MuSiQue has {', '.join(NEEDED)} and more.")
    return _as_text(given[key], f"{where}: {key}")


def _as_text(value: Any, where: str) -> str:
    if isinstance(value, bool) or not isinstance(value, str | int | float) or not str(value).strip():
        raise TasksetError(f"{where} = {value!r} should be a text.")
    return str(value).strip()


def _list(given: Mapping[str, Any], key: str, where: str) -> list[Any]:
    value = given.get(key)
    if value is not None and not isinstance(value, list | tuple):
        raise TasksetError(f"{where}: {key} = {str(value)[:40]!r} should be a list.")
    return list(value or ())


def _flag(given: Mapping[str, Any], key: str, where: str, *, otherwise: bool | None = None) -> bool:
    value = given.get(key, otherwise)
    if not isinstance(value, bool):
        said = "is missing" if value is None else f"is {value!r}"
        raise TasksetError(f"{where}: {key} {said}; it should be true or false.")
    return value
