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
    ARGUMENT_BY_TOOL,
    OPEN_TOOL,
    SEARCH_TOOL,
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
# Atlas questions drawn per task before giving up. One in four is held out, so 60 are plenty.
MAX_ROWS_PER_TASK = 60


class Musique:
    """Multi-hop questions with retrieval tools: MuSiQue's files, datasets of the hub, or an
    invented world.
    """

    name: ClassVar[str] = "musique"
    version: ClassVar[str] = "2"
    Options: ClassVar[type[Any]] = MusiqueOptions
    HOLD_OUT_ALL: ClassVar[dict[str, Any]] = {"split": "heldout"}
    SAMPLING_LIMITS: ClassVar[dict[str, int]] = {"max_tokens": 256, "max_turns": 8, "context": 4096}

    def __init__(self, options: MusiqueOptions, seed: int) -> None:
        self.options = options
        self.seed = seed
        self.chat = options.chat
        self.notes: list[str] = []
        self._indices = IndexCache(retriever(options.retriever, options.embedder))
        self.loaded: LoadedTasks | None = None
        source = options.file or options.datasets
        if source:
            if options.datasets:
                located_rows = read_hub(options.datasets)
            else:
                located_rows = read_file(Path(options.file))
            tasks = list(to_tasks(located_rows, options.noise_rate))
            if not tasks:
                raise TasksetError(f"{source} has no question that can be answered.")
            shuffle_seed = f"{self.name}-{seed}"
            self.loaded = LoadedTasks(
                source, tasks, options.split, shuffle_seed, options.duplicates, self.notes
            )

    def train(self, count: int, exclude: Collection[str] = ()) -> list[Task]:
        if self.loaded:
            return self.loaded.train(count, exclude)
        return self._invent(
            count, lambda task: not may_be_held_out(task.id) and task.id not in exclude
        )

    def heldout(self, count: int) -> list[Task]:
        if self.loaded:
            return self.loaded.heldout(count)
        return self._invent(count, lambda task: may_be_held_out(task.id))

    def _invent(self, count: int, is_eligible: Callable[[Task], bool]) -> list[Task]:
        examples = rows(count * MAX_ROWS_PER_TASK, self.seed, self.options.atlas)
        tasks = (to_task(row, str(row["id"]), self.options.noise_rate) for row in examples)
        return list(islice(filter(is_eligible, tasks), count))

    def open(self, task: Task, seed: int) -> QuestionPlay:  # noqa: ARG002 (nothing is left to chance)
        """Begin a rollout; its group shares the index of its documents."""
        documents = documents_of(task)
        index = self._indices.index(task.id, documents)
        return QuestionPlay(task, documents, index, self.options)

    def gold(self, task: Task) -> Script:
        """Return the expert: at the maximum under the golden retriever, at its ceiling under
        another.
        """
        return expert(task, documents_of(task))

    def corrupted(self, task: Task) -> Iterable[Script]:
        """Yield players that leave out what earns the maximum."""
        documents = documents_of(task)
        weights = self.options.weights
        rewards_citations = weights.citation_recall + weights.citation_precision > 0
        rewards_retrieval = weights.retrieval_recall + weights.retrieval_precision > 0
        if rewards_citations or rewards_retrieval:
            yield say(write_reply("I know this.", (), task.answer))
        first_answer = steps_of(task, documents)[0].answer
        # In real files, the first step's answer may be right.
        if not exact_match(first_answer, task.data["accepted"]):
            yield lazy(task, documents)
        if rewards_citations:
            yield citing(task, documents, ())
        if weights.citation_precision and not all(document.supporting for document in documents):
            yield citing(task, documents, tuple(document.id for document in documents))
        yield say("I do not know.")

    def cheaters(self, task: Task) -> Iterable[Script]:
        """Yield players that answer, open and cite everything."""
        documents = documents_of(task)
        weights = self.options.weights
        # The answer and then every title, each in a tag of its own, the last one wrong.
        answers = [task.answer]
        for document in documents:
            if not exact_match(document.title, task.data["accepted"]):
                answers.append(document.title)
        answers.append("none of these")
        tags = "".join(f"<answer>{answer}</answer>" for answer in answers)
        yield say(f"<think>One of these.</think>\n<cite></cite>\n{tags}")
        # If no answer is rewarded, to open and cite everything is no cheat.
        if weights.exact_match + weights.f1:
            yield hoarding(documents)

    def proof(self) -> "Musique":
        """Return the same tasks with options under which the expert can reach the maximum.

        Searches show at least two documents, since two may have the same title.
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
# sub-question with earlier answers filled in, then the name that the document is about. It knows
# which document it needs, and cites and opens only IDs that a tool has shown it.

# As Document.render writes it.
DOCUMENT_ID = re.compile(r"^Document ID: (.+)$", re.MULTILINE)
# An earlier answer in MuSiQue's questions, such as #1.
ANSWER_REFERENCE = re.compile(r"#\d+")


@dataclass(frozen=True)
class ExpertStep:
    """One hop."""

    document: Document  # document to find
    question: str  # question it answers, with earlier answers filled in
    answer: str  # empty if the row has none


def steps_of(task: Task, documents: Sequence[Document]) -> list[ExpertStep]:
    """Return each supporting document with the question it answers, in the order in which they are
    needed; those that the decomposition leaves out come last.
    """
    supporting = {document.id: document for document in documents if document.supporting}
    answers: dict[str, str] = {}

    def fill_in(reference: re.Match[str]) -> str:
        return answers.get(reference[0], reference[0])

    steps = []
    for number, hop in enumerate(task.data["decomposition"], 1):
        # Some of MuSiQue's questions are "entity >> relation".
        question = ANSWER_REFERENCE.sub(fill_in, hop["question"].replace(">>", " "))
        question = " ".join(question.split())
        answers[f"#{number}"] = hop["answer"]
        document = supporting.get(hop["support"])
        if document is not None:
            steps.append(ExpertStep(document, question or document.title, hop["answer"]))
    planned = {step.document.id for step in steps}
    for document in supporting.values():
        if document.id not in planned:
            steps.append(ExpertStep(document, document.title, ""))
    return steps


def expert(task: Task, documents: Sequence[Document]) -> Script:
    """Look everything up, then answer."""
    steps = steps_of(task, documents)
    retrieved: set[str] = set()
    for step in steps:
        title = step.document.title
        for query in (step.question, title, f"{title} {step.question}"):
            if step.document.id in retrieved:
                break
            results = yield _call(SEARCH_TOOL.name, query)
            retrieved.update(_document_ids(results))
    completed = [step for step in steps if step.document.id in retrieved]
    think = " ".join(f"{step.answer}." for step in completed[:-1] if step.answer)
    cited = tuple(dict.fromkeys(step.document.id for step in completed))
    yield Message("assistant", write_reply(think, cited, task.answer))


def lazy(task: Task, documents: Sequence[Document]) -> Script:
    """Look up the first step alone, and give its answer."""
    step = steps_of(task, documents)[0]
    results = yield _call(SEARCH_TOOL.name, step.question)
    cited = tuple(_document_ids(results))
    yield Message("assistant", write_reply("The first that I found.", cited, step.answer))


def citing(task: Task, documents: Sequence[Document], cited: tuple[str, ...]) -> Script:
    """Look everything up as the expert does, and cite something else."""
    script = expert(task, documents)
    message = next(script)
    while message.calls:
        results = yield message
        message = script.send(results)
    yield Message("assistant", write_reply("I cite as I like.", cited, task.answer))


def hoarding(documents: Sequence[Document]) -> Script:
    """Open and cite every document, and answer with a pattern that fits anything."""
    for document in documents:
        yield _call(OPEN_TOOL.name, document.id)
    cited = tuple(document.id for document in documents)
    yield Message("assistant", write_reply("It is in one of them.", cited, ".*"))


def _call(tool: str, argument: str) -> Message:
    return Message("assistant", "", (ToolCall(tool, {ARGUMENT_BY_TOOL[tool]: argument}),))


def _document_ids(results: Sequence[Message]) -> list[str]:
    ids: list[str] = []
    for message in results:
        ids += DOCUMENT_ID.findall(message.content)
    return ids
