"""Scripted players: an expert that follows the question's decomposition, and lazy ones that must earn less.

The expert looks for each step's document with words that a good player could use: the sub-question with what
was found before, then the name that the document is about. It knows which document it needs, and cites and
opens only IDs that a tool has shown it.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from uptrend.records import Message, Task, ToolCall
from uptrend.tasks.musique.play import OPEN, SEARCH
from uptrend.tasks.musique.rewards import exact_match, write_reply
from uptrend.tasks.musique.rows import Document
from uptrend.tasks.taskset import Script

ID = re.compile(r"^Document ID: (.+)$", re.MULTILINE)


@dataclass(frozen=True)
class ExpertStep:
    """One hop."""

    document: Document
    """Document to find."""
    question: str
    """Question to it, with earlier answers filled in."""
    answer: str
    """Its answer; empty where the row has none."""


def expert(task: Task, documents: Sequence[Document]) -> Script:
    """Look everything up, then answer."""
    seen: dict[str, None] = {}
    for step in _steps(task, documents):
        for query in _queries(step):
            if step.document.id in seen:
                break
            heard = yield _search(query)
            seen |= dict.fromkeys(i for message in heard for i in ID.findall(message.content))
    found = [step for step in _steps(task, documents) if step.document.id in seen]
    think = " ".join(f"{step.answer}." for step in found[:-1] if step.answer)
    cited = tuple(dict.fromkeys(step.document.id for step in found))
    yield Message("assistant", write_reply(think, cited, task.answer))


def blind(task: Task) -> Script:
    """The right answer without having looked anything up."""
    yield Message("assistant", write_reply("I know this.", (), task.answer))


def lazy(task: Task, documents: Sequence[Document]) -> Script:
    """Looks for the first step alone and answers with what it finds there."""
    step = _steps(task, documents)[0]
    heard = yield _search(step.question)
    seen = [i for message in heard for i in ID.findall(message.content)]
    yield Message("assistant", write_reply("The first that I found.", tuple(seen), step.answer))


def first_answer(task: Task, documents: Sequence[Document]) -> str:
    """Return the lazy player's answer."""
    return _steps(task, documents)[0].answer


def citing(task: Task, documents: Sequence[Document], cited: tuple[str, ...]) -> Script:
    """Looks everything up as the expert does, and cites something else."""
    script = expert(task, documents)
    said = next(script)
    while said.calls:
        heard = yield said
        said = script.send(heard)
    yield Message("assistant", write_reply("I cite as I like.", cited, task.answer))


def spraying(task: Task, documents: Sequence[Document]) -> Script:
    """The answer and then every title, each in a tag of its own, the last one wrong."""
    wrong = [d.title for d in documents if not exact_match(d.title, task.data["accepted"])]
    answers = [task.answer, *wrong, "none of these"]
    tags = "".join(f"<answer>{answer}</answer>" for answer in answers)
    yield Message("assistant", f"<think>One of these.</think>\n<cite></cite>\n{tags}")


def hoarding(documents: Sequence[Document]) -> Script:
    """Opens and cites every document, and answers with a pattern that fits anything."""
    for document in documents:
        yield Message("assistant", "", (ToolCall(OPEN.name, {"doc_id": document.id}),))
    cited = tuple(document.id for document in documents)
    yield Message("assistant", write_reply("It is in one of them.", cited, ".*"))


def silent() -> Script:
    """Says nothing of use."""
    yield Message("assistant", "I do not know.")


def _steps(task: Task, documents: Sequence[Document]) -> list[ExpertStep]:
    """Each supporting document with what is asked of it, in the order in which they are needed."""
    by_id = {document.id: document for document in documents}
    answers: list[str] = []
    steps = []
    for part in task.data["decomposition"]:
        document = by_id.get(part["support"])
        question = re.sub(r"#(\d+)", partial(_earlier, answers), part["question"].replace(">>", " "))
        answers.append(part["answer"])
        if document is not None and document.supporting:
            steps.append(ExpertStep(document, " ".join(question.split()) or document.title, answers[-1]))
    named = {step.document.id for step in steps}
    rest = [document for document in documents if document.supporting and document.id not in named]
    return steps + [ExpertStep(document, document.title, "") for document in rest]


def _earlier(answers: list[str], reference: re.Match[str]) -> str:
    number = int(reference[1])
    return answers[number - 1] if 0 < number <= len(answers) else reference[0]


def _queries(step: ExpertStep) -> Iterator[str]:
    title = step.document.title
    yield step.question
    yield title
    yield f"{title} {step.question}"


def _search(query: str) -> Message:
    return Message("assistant", "", (ToolCall(SEARCH.name, {"query": query}),))
