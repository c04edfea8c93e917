"""Turns rows of MuSiQue into tasks: from JSON lines, or from datasets of the hub
(`path,config,split[:N]`, joined by `;`).

`where` is the file and line of a row, or its dataset and number, for errors.
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
EXPECTED_FIELDS = "a row of MuSiQue has question, answer, paragraphs and more."
# Our keys of a step of the decomposition, with MuSiQue's.
STEP_KEYS = {"question": "question", "answer": "answer", "support": "paragraph_support_idx"}
# Characters of a wrong value that an error quotes.
MAX_VALUE_QUOTED = 40
# A split of a dataset, such as train or train[:256].
SPLIT_PATTERN = re.compile(r"[\w.+-]+(\[[^\[\]]*\])?")

Row = Mapping[str, Any]
LocatedRow = tuple[str, Row]
# The fields of a Document.
Paragraph = dict[str, Any]


@dataclass(frozen=True)
class Document:
    """One paragraph that a question may be answered from."""

    id: str
    title: str
    text: str
    supporting: bool  # True where the answer needs it

    def render(self) -> str:
        """Return the document as a tool's result shows it."""
        return f"Document ID: {self.id}\n# {self.title}\n{self.text}"


def documents_of(task: Task) -> list[Document]:
    """Return the documents of a task."""
    return [Document(**document) for document in task.data["documents"]]


def to_tasks(rows: Iterable[LocatedRow], noise_rate: float) -> Iterator[Task]:
    """Yield rows as tasks; questions marked as not answerable are left out."""
    for where, row in rows:
        if _flag(row, "answerable", where, default=True):
            yield to_task(row, where, noise_rate)


def to_task(row: Row, where: str, noise_rate: float = 1.0) -> Task:
    """Return one row as a task; raise a TasksetError with the place of what is missing or wrong."""
    question = _text(row, "question", where)
    answer = _text(row, "answer", where)
    paragraphs = _paragraphs(row, where)
    hops = sum(paragraph["supporting"] for paragraph in paragraphs)
    if not hops:
        raise TasksetError(
            f"{where}: no paragraph is supporting (is_supporting), so neither retrieval nor"
            " citation can be scored. Mark at least one, or remove the row."
        )
    user_message = Message("user", question)
    # By the question alone: other instructions or fewer documents do not make it another task.
    identity = task_id([user_message])
    accepted = [answer]
    for alias in _list(row, "answer_aliases", where):
        accepted.append(_as_text(alias, f"{where}: answer_aliases"))
    steps = _list(row, "question_decomposition", where)
    return Task(
        messages=(Message("system", INSTRUCTIONS), user_message),
        answer=answer,
        family=f"{hops}hop",
        difficulty=float(hops),
        data={
            "accepted": list(dict.fromkeys(accepted)),
            "documents": _drop_noise(paragraphs, noise_rate, identity),
            "decomposition": [_step(step, where) for step in steps],
            "source": str(row.get("id", where)),
        },
        id=identity,
    )


def _paragraphs(row: Row, where: str) -> list[Paragraph]:
    paragraphs = []
    for number, paragraph in enumerate(_list(row, "paragraphs", where)):
        paragraphs.append(_paragraph(paragraph, f"{where}: paragraphs[{number}]", number))
    if not paragraphs:
        raise TasksetError(f"{where} has no paragraphs; {EXPECTED_FIELDS}")
    if len({paragraph["id"] for paragraph in paragraphs}) < len(paragraphs):
        raise TasksetError(
            f"{where}: two paragraphs have the same idx, so that neither can be cited."
        )
    return paragraphs


def _paragraph(paragraph: Any, where: str, number: int) -> Paragraph:
    if not isinstance(paragraph, Mapping):
        raise TasksetError(f"{where} should be an object, not {paragraph!r}.")
    return {
        "id": str(paragraph.get("idx", number)),
        "title": str(paragraph.get("title") or ""),
        "text": _text(paragraph, "paragraph_text", where),
        "supporting": _flag(paragraph, "is_supporting", where),
    }


def _drop_noise(paragraphs: list[Paragraph], noise_rate: float, identity: str) -> list[Paragraph]:
    """Return all supporting paragraphs, and each other one with a chance of `noise_rate`."""
    # Seeded by the task, so that a question always has the same documents.
    rng = random.Random(f"noise-{identity}")
    documents = []
    for paragraph in paragraphs:
        is_drawn = rng.random() < noise_rate
        if is_drawn or paragraph["supporting"]:
            documents.append(paragraph)
    return documents


def _step(step: Any, where: str) -> dict[str, str]:
    if not isinstance(step, Mapping):
        raise TasksetError(f"{where}: question_decomposition should hold objects, not {step!r}.")
    return {key: str(step.get(source_key, "")) for key, source_key in STEP_KEYS.items()}


def _text(table: Mapping[str, Any], key: str, where: str) -> str:
    if table.get(key) in (None, ""):
        raise TasksetError(f"{where} has no {key}; {EXPECTED_FIELDS}")
    return _as_text(table[key], f"{where}: {key}")


def _as_text(value: Any, where: str) -> str:
    is_text = isinstance(value, str | int | float) and not isinstance(value, bool)
    if not is_text or not str(value).strip():
        raise TasksetError(f"{where} = {value!r} should be a text.")
    return str(value).strip()


def _list(table: Mapping[str, Any], key: str, where: str) -> list[Any]:
    value = table.get(key)
    if value is not None and not isinstance(value, list | tuple):
        raise TasksetError(f"{where}: {key} = {str(value)[:MAX_VALUE_QUOTED]!r} should be a list.")
    return list(value or ())


def _flag(table: Mapping[str, Any], key: str, where: str, *, default: bool | None = None) -> bool:
    value = table.get(key, default)
    if not isinstance(value, bool):
        problem = "is missing" if value is None else f"is {value!r}"
        raise TasksetError(f"{where}: {key} {problem}; it should be true or false.")
    return value


def read_file(path: Path) -> Iterator[LocatedRow]:
    """Yield every row of a file of JSON lines, with its file and line."""
    return read_json_lines(path, '{"question": "…", "answer": "…", "paragraphs": […]}')


@dataclass(frozen=True)
class HubSource:
    """One dataset."""

    path: str  # id on the hub, or a folder
    config: str  # empty for the only one
    split: str


def read_sources(text: str) -> list[HubSource]:
    """Return the datasets that a string names."""
    sources = []
    for entry in text.split(";"):
        entry = entry.strip()
        if not entry:
            continue
        parts = [part.strip() for part in entry.split(",")]
        if len(parts) != 3 or not parts[0] or not SPLIT_PATTERN.fullmatch(parts[2]):
            raise ConfigError(
                f"datasets = {entry!r} should be path,config,split, for example "
                "bdsaglam/musique,answerable,train[:256]; several are joined by a semicolon."
            )
        sources.append(HubSource(*parts))
    return sources


def read_hub(text: str) -> Iterator[LocatedRow]:
    """Yield every row of the datasets that a string names, with its dataset and number."""
    for source in read_sources(text):
        yield from read_dataset(source.path, source.config, source.split)
