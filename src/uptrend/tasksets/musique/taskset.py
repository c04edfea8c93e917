"""`musique`: multi-hop questions whose documents the model looks up with tools, over several
turns.
"""

import re
from collections.abc import Callable, Collection, Iterable, Sequence
from copy import copy
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar, get_args

from uptrend.records import Message, Task, TasksetError, ToolCall
from uptrend.tasks.taskset import LoadedTasks, Script, may_be_held_out, say
from uptrend.tasksets.musique.atlas import rows
from uptrend.tasksets.musique.play import (
    ARGUMENTS,
    OPEN,
    SEARCH,
    MusiqueOptions,
    QuestionPlay,
    exact_match,
    write_reply,
)
from uptrend.tasksets.musique.retrieval import IndexCache, RetrieverName, retriever
from uptrend.tasksets.musique.rows import (
    Document,
    documents_of,
    read_file,
    read_hub,
    to_task,
    to_tasks,
)

RETRIEVERS: tuple[RetrieverName, ...] = get_args(RetrieverName)
# Atlas questions looked at for each that is asked for, before giving up: one in four is held out.
ENOUGH = 60


class Musique:
    """Multi-hop questions with retrieval tools: MuSiQue's files, hub datasets, or an invented
    world.
    """

    name: ClassVar[str] = "musique"
    version: ClassVar[str] = "2"
    Options: ClassVar[type[Any]] = MusiqueOptions
    WHOLE: ClassVar[dict[str, Any]] = {"split": "heldout"}
    LIMITS: ClassVar[dict[str, int]] = {"max_tokens": 128, "max_turns": 8, "context": 4096}

    def __init__(self, options: MusiqueOptions, seed: int) -> None:
        self.options = options
        self.seed = seed
        self.chat = options.chat
        self.notes: list[str] = []
        self._indices = IndexCache(retriever(options.retriever, options.embedder))
        self.loaded: LoadedTasks | None = None
        if source := options.file or options.datasets:
            read = read_hub(options.datasets) if options.datasets else read_file(Path(options.file))
            tasks = list(to_tasks(read, options.noise_rate))
            if not tasks:
                raise TasksetError(f"{source} has no question that can be answered.")
            order = f"{self.name}-{seed}"
            self.loaded = LoadedTasks(
                source, tasks, options.split, order, options.duplicates, self.notes
            )

    def train(self, count: int, exclude: Collection[str] = ()) -> list[Task]:
        if self.loaded:
            return self.loaded.train(count, exclude)
        return self._invented(
            count, lambda task: not may_be_held_out(task.id) and task.id not in exclude
        )

    def heldout(self, count: int) -> list[Task]:
        if self.loaded:
            return self.loaded.heldout(count)
        return self._invented(count, lambda task: may_be_held_out(task.id))

    def _invented(self, count: int, wanted: Callable[[Task], bool]) -> list[Task]:
        made = rows(count * ENOUGH, self.seed, self.options.atlas)
        tasks = (to_task(row, str(row["id"]), self.options.noise_rate) for row in made)
        return list(islice(filter(wanted, tasks), count))

    def open(self, task: Task, seed: int) -> QuestionPlay:  # noqa: ARG002 (nothing is left to chance)
        """Begin a rollout; its group shares the index of its documents."""
        documents = documents_of(task)
        return QuestionPlay(task, documents, self._indices.index(task.id, documents), self.options)

    def gold(self, task: Task) -> Script:
        """Return the expert: at the maximum under the golden retriever, at its ceiling under
        another.
        """
        return expert(task, documents_of(task))

    def corrupted(self, task: Task) -> Iterable[Script]:
        """Yield players that leave out what earns the maximum."""
        documents = documents_of(task)
        weights = self.options.weights
        cites = weights.citation_recall + weights.citation_precision
        if cites + weights.retrieval_recall + weights.retrieval_precision:
            yield say(write_reply("I know this.", (), task.answer))
        first = steps_of(task, documents)[0].answer
        if not exact_match(first, task.data["accepted"]):  # in real files it may be
            yield lazy(task, documents)
        if cites:
            yield citing(task, documents, ())
        if weights.citation_precision and not all(document.supporting for document in documents):
            yield citing(task, documents, tuple(document.id for document in documents))
        yield say("I do not know.")

    def cheaters(self, task: Task) -> Iterable[Script]:
        """Yield players that answer, open and cite everything."""
        documents = documents_of(task)
        weights = self.options.weights
        # The answer and then every title, each in a tag of its own, the last one wrong.
        wrong = [d.title for d in documents if not exact_match(d.title, task.data["accepted"])]
        tags = "".join(
            f"<answer>{answer}</answer>" for answer in [task.answer, *wrong, "none of these"]
        )
        yield say(f"<think>One of these.</think>\n<cite></cite>\n{tags}")
        # otherwise to open and cite everything is what is asked for
        if weights.exact_match + weights.f1:
            yield hoarding(documents)

    def proof(self) -> "Musique":
        """Return the same tasks where the expert can reach the maximum: two documents of one title
        need two shown.
        """
        return self._with(retriever="golden", returned=max(2, self.options.returned))

    def variants(self) -> "dict[str, Callable[[], Musique]]":
        """Return makers of the same tasks under each retriever, for the expert's ceiling."""
        return {name: partial(self._with, retriever=name) for name in RETRIEVERS}

    def _with(self, **changes: Any) -> "Musique":
        other = copy(self)
        other.options = replace(self.options, **changes)
        other._indices = IndexCache(retriever(other.options.retriever, other.options.embedder))
        return other


# Scripted players: an expert that follows the question's decomposition, and lazy ones that must
# earn less.
#
# The expert looks for each step's document with words that a good player could use: the
# sub-question with what was found before, then the name that the document is about. It knows which
# document it needs, and cites and opens only IDs that a tool has shown it.

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
