"""Scripted players: an expert that follows the question's decomposition, and lazy ones that must
earn less.

The expert looks for each step's document with words that a good player could use: the sub-question
with what was found before, then the name that the document is about. It knows which document it
needs, and cites and opens only IDs that a tool has shown it.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from uptrend.records import Message, Task, ToolCall
from uptrend.tasks.taskset import Script
from uptrend.tasksets.musique.play import ARGUMENTS, OPEN, SEARCH
from uptrend.tasksets.musique.rewards import write_reply
from uptrend.tasksets.musique.rows import Document

ID = re.compile(r"^Document ID: (.+)$", re.MULTILINE)


@dataclass(frozen=True)
class ExpertStep:
    """One hop."""

    document: Document  # document to find
    question: str  # question to it, with earlier answers filled in
    answer: str  # answer; empty where the row has none


def steps_of(task: Task, documents: Sequence[Document]) -> list[ExpertStep]:
    """Return each supporting document with what is asked of it, in the order in which they are
    needed.
    """
    by_id = {document.id: document for document in documents if document.supporting}
    answers: dict[str, str] = {}
    steps = []
    for number, part in enumerate(task.data["decomposition"], 1):
        question = re.sub(
            r"#\d+",
            lambda found: answers.get(found[0], found[0]),
            part["question"].replace(">>", " "),
        )
        answers[f"#{number}"] = part["answer"]
        if document := by_id.get(part["support"]):
            steps.append(
                ExpertStep(document, " ".join(question.split()) or document.title, part["answer"])
            )
    named = {step.document.id for step in steps}
    return steps + [
        ExpertStep(document, document.title, "") for i, document in by_id.items() if i not in named
    ]


def expert(task: Task, documents: Sequence[Document]) -> Script:
    """Look everything up, then answer."""
    steps = steps_of(task, documents)
    seen: set[str] = set()
    for step in steps:
        title = step.document.title
        for query in (step.question, title, f"{title} {step.question}"):
            if step.document.id in seen:
                break
            heard = yield _call(SEARCH.name, query)
            seen.update(_ids(heard))
    found = [step for step in steps if step.document.id in seen]
    think = " ".join(f"{step.answer}." for step in found[:-1] if step.answer)
    cited = tuple(dict.fromkeys(step.document.id for step in found))
    yield Message("assistant", write_reply(think, cited, task.answer))


def lazy(task: Task, documents: Sequence[Document]) -> Script:
    """Look for the first step alone and answer with what is found there."""
    step = steps_of(task, documents)[0]
    heard = yield _call(SEARCH.name, step.question)
    yield Message(
        "assistant", write_reply("The first that I found.", tuple(_ids(heard)), step.answer)
    )


def citing(task: Task, documents: Sequence[Document], cited: tuple[str, ...]) -> Script:
    """Look everything up as the expert does, and cite something else."""
    script = expert(task, documents)
    said = next(script)
    while said.calls:
        heard = yield said
        said = script.send(heard)
    yield Message("assistant", write_reply("I cite as I like.", cited, task.answer))


def hoarding(documents: Sequence[Document]) -> Script:
    """Open and cite every document, and answer with a pattern that fits anything."""
    for document in documents:
        yield _call(OPEN.name, document.id)
    cited = tuple(document.id for document in documents)
    yield Message("assistant", write_reply("It is in one of them.", cited, ".*"))


def _call(tool: str, argument: str) -> Message:
    return Message("assistant", "", (ToolCall(tool, {ARGUMENTS[tool]: argument}),))


def _ids(heard: Sequence[Message]) -> list[str]:
    return [found for message in heard for found in ID.findall(message.content)]
