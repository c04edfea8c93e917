"""MuSiQue's rows as tasks: from JSON lines, or from datasets of a hub (`path,config,split[:N]`,
joined by `;`).
"""

import random
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from uptrend.records import ConfigError, Message, Task, TasksetError
from uptrend.records.rollout import task_id
from uptrend.tasks.data import read_dataset, read_json_lines

INSTRUCTIONS = """\
Answer the question from documents that you look up with the tools. Make one tool call a turn. \
When you have found the answer, say it like this:
<think>what you found, step by step</think>
<cite>the IDs of the documents that you used, such as 3, 7</cite>
<answer>the answer alone</answer>"""
FIELDS = "a row of MuSiQue has question, answer, paragraphs and more."


@dataclass(frozen=True)
class Document:
    """One paragraph that a question may be answered from."""

    id: str
    title: str
    text: str
    supporting: bool  # True where the answer needs it

    def shown(self) -> str:
        """Return the document as a tool's result shows it."""
        return f"Document ID: {self.id}\n# {self.title}\n{self.text}"


def documents_of(task: Task) -> list[Document]:
    """Return the documents of a task."""
    return [Document(**document) for document in task.data["documents"]]


def to_tasks(rows: Iterable[tuple[str, Mapping[str, Any]]], noise_rate: float) -> Iterator[Task]:
    """Rows as tasks; questions that say of themselves that they have no answer are left out."""
    for where, row in rows:
        if _flag(row, "answerable", where, otherwise=True):
            yield to_task(row, where, noise_rate)


def to_task(row: Mapping[str, Any], where: str, noise_rate: float = 1.0) -> Task:
    """One row as a task, or an error that says where and what would be right."""
    question = _text(row, "question", where)
    answer = _text(row, "answer", where)
    paragraphs = [
        _paragraph(p, f"{where}: paragraphs[{n}]", n)
        for n, p in enumerate(_list(row, "paragraphs", where))
    ]
    if not paragraphs:
        raise TasksetError(f"{where} has no paragraphs; {FIELDS}")
    if len({p["id"] for p in paragraphs}) < len(paragraphs):
        raise TasksetError(
            f"{where}: two paragraphs have the same idx, so that neither can be cited."
        )
    hops = sum(p["supporting"] for p in paragraphs)
    if not hops:
        raise TasksetError(
            f"{where}: no paragraph is supporting (is_supporting), so neither retrieval nor"
            " citation can be scored. Mark at least one, or remove the row."
        )
    # Known by the question alone: other instructions or fewer documents do not make it another
    # task.
    asked = Message("user", question)
    identity = task_id([asked])
    chance = random.Random(f"noise-{identity}")  # so that a question always has the same documents
    kept = [chance.random() < noise_rate for _ in paragraphs]
    aliases = [
        _as_text(alias, f"{where}: answer_aliases") for alias in _list(row, "answer_aliases", where)
    ]
    return Task(
        messages=(Message("system", INSTRUCTIONS), asked),
        answer=answer,
        family=f"{hops}hop",
        difficulty=float(hops),
        data={
            "accepted": list(dict.fromkeys([answer, *aliases])),
            "documents": [
                p for p, keep in zip(paragraphs, kept, strict=True) if keep or p["supporting"]
            ],
            "decomposition": [_step(s, where) for s in _list(row, "question_decomposition", where)],
            "source": str(row.get("id", where)),
        },
        id=identity,
    )


def _paragraph(given: Any, where: str, number: int) -> dict[str, Any]:
    if not isinstance(given, Mapping):
        raise TasksetError(f"{where} should be an object, not {given!r}.")
    return {
        "id": str(given.get("idx", number)),
        "title": str(given.get("title") or ""),
        "text": _text(given, "paragraph_text", where),
        "supporting": _flag(given, "is_supporting", where),
    }


def _step(given: Any, where: str) -> dict[str, str]:
    if not isinstance(given, Mapping):
        raise TasksetError(f"{where}: question_decomposition should hold objects, not {given!r}.")
    keys = {"question": "question", "answer": "answer", "support": "paragraph_support_idx"}
    return {ours: str(given.get(theirs, "")) for ours, theirs in keys.items()}


def _text(given: Mapping[str, Any], key: str, where: str) -> str:
    if given.get(key) in (None, ""):
        raise TasksetError(f"{where} has no {key}; {FIELDS}")
    return _as_text(given[key], f"{where}: {key}")


def _as_text(value: Any, where: str) -> str:
    if (
        isinstance(value, bool)
        or not isinstance(value, str | int | float)
        or not str(value).strip()
    ):
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


def read_file(path: Path) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Every row of a file of JSON lines, with where it stands."""
    return read_json_lines(path, '{"question": "…", "answer": "…", "paragraphs": […]}')


@dataclass(frozen=True)
class HubSource:
    """One dataset: its id on the hub or a folder, its configuration (empty for the only one), and
    its split.
    """

    path: str
    config: str
    split: str


def read_sources(text: str) -> list[HubSource]:
    """The datasets that a string names."""
    sources = []
    for named in filter(None, map(str.strip, text.split(";"))):
        parts = [part.strip() for part in named.split(",")]
        if (
            len(parts) != 3
            or not parts[0]
            or not re.fullmatch(r"[\w.+-]+(\[[^\[\]]*\])?", parts[2])
        ):
            raise ConfigError(
                f"datasets = {named!r} should be path,config,split, for example "
                "bdsaglam/musique,answerable,train[:256]; several are joined by a semicolon."
            )
        sources.append(HubSource(*parts))
    return sources


def read_hub(text: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Every row of the datasets that a string names, with where it stands."""
    for source in read_sources(text):
        yield from read_dataset(source.path, source.config, source.split)
