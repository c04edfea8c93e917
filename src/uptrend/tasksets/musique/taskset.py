"""`musique`: multi-hop questions whose documents the model looks up with tools, over several
turns.
"""

from collections.abc import Callable, Collection, Iterable
from copy import copy
from dataclasses import replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar, get_args

from uptrend.records import Task, TasksetError
from uptrend.tasks.taskset import GivenTasks, Script, may_be_held_out, say
from uptrend.tasksets.musique import expert
from uptrend.tasksets.musique.atlas import rows
from uptrend.tasksets.musique.play import MusiqueOptions, QuestionPlay
from uptrend.tasksets.musique.retrieval import IndexCache, RetrieverName, retriever
from uptrend.tasksets.musique.rewards import exact_match, write_reply
from uptrend.tasksets.musique.rows import documents_of, read_file, read_hub, to_task, to_tasks

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
        self.given: GivenTasks | None = None
        if source := options.file or options.datasets:
            read = read_hub(options.datasets) if options.datasets else read_file(Path(options.file))
            tasks = list(to_tasks(read, options.noise_rate))
            if not tasks:
                raise TasksetError(f"{source} has no question that can be answered.")
            order = f"{self.name}-{seed}"
            self.given = GivenTasks(
                source, tasks, options.split, order, options.duplicates, self.notes
            )

    def train(self, count: int, exclude: Collection[str] = ()) -> list[Task]:
        if self.given:
            return self.given.train(count, exclude)
        return self._invented(
            count, lambda task: not may_be_held_out(task.id) and task.id not in exclude
        )

    def heldout(self, count: int) -> list[Task]:
        if self.given:
            return self.given.heldout(count)
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
        return expert.expert(task, documents_of(task))

    def corrupted(self, task: Task) -> Iterable[Script]:
        """Yield players that leave out what earns the maximum."""
        documents = documents_of(task)
        weights = self.options.weights
        cites = weights.citation_recall + weights.citation_precision
        if cites + weights.retrieval_recall + weights.retrieval_precision:
            yield say(write_reply("I know this.", (), task.answer))
        first = expert.steps_of(task, documents)[0].answer
        if not exact_match(first, task.data["accepted"]):  # in real files it may be
            yield expert.lazy(task, documents)
        if cites:
            yield expert.citing(task, documents, ())
        if weights.citation_precision and not all(document.supporting for document in documents):
            yield expert.citing(task, documents, tuple(document.id for document in documents))
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
            yield expert.hoarding(documents)

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
