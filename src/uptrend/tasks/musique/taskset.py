"""`musique`: multi-hop questions whose documents the model looks up with tools, over several turns."""

import random
from collections.abc import Callable, Collection, Iterable, Iterator
from copy import copy
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property, partial
from itertools import islice
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, get_args

from annotated_types import Ge, Le

from uptrend.records import ConfigError, Task, TasksetError
from uptrend.tasks.musique import expert
from uptrend.tasks.musique.atlas import AtlasOptions, rows
from uptrend.tasks.musique.play import QuestionPlay, Rules
from uptrend.tasks.musique.retrieval import Name as RetrieverName
from uptrend.tasks.musique.retrieval import Shelf, retriever
from uptrend.tasks.musique.rewards import RewardWeights, exact_match
from uptrend.tasks.musique.rows import documents_of, read_file, read_hub, to_task, to_tasks
from uptrend.tasks.taskset import Script, held_out_quarter, may_be_held_out, shortfall

RETRIEVERS: tuple[RetrieverName, ...] = get_args(RetrieverName)
ENOUGH = 60
"""Atlas questions looked at for each that is asked for, before giving up: one in four is held out."""


@dataclass(frozen=True, kw_only=True)
class MusiqueOptions:
    """The options of `musique`."""

    file: str = ""
    """JSON lines in MuSiQue's own schema; a relative path starts at the current folder."""
    datasets: str = ""
    """Hub datasets as path,config,split, several joined by a semicolon."""
    atlas: AtlasOptions = field(default_factory=AtlasOptions)
    """The invented world that questions come from where neither a file nor datasets are named."""
    split: Literal["quarter", "train", "heldout"] = "quarter"
    """Of a file or datasets: hold out a quarter, train on every row, or hold out every row."""
    noise_rate: Annotated[float, Ge(0), Le(1)] = 1.0
    """The chance that a paragraph which does not support the answer is kept: 1 keeps all, 0 none."""
    retriever: RetrieverName = "lexical"
    """Retriever: golden, lexical, semantic or hybrid."""
    returned: Annotated[int, Ge(1)] = 2
    """Number of documents that a search shows."""
    embedder: str = "minilm"
    """Model of semantic and hybrid: minilm, or any sentence-transformers model."""
    longest: Annotated[int, Ge(0)] = 8000
    """Characters of a document that are shown; 0 for all."""
    weights: RewardWeights = field(default_factory=RewardWeights)
    """Weight of each part of the reward."""
    scale_by_hops: bool = False
    """Multiply the reward by hops/2, so that its maximum is 1 for two hops and 2 for four."""
    duplicates: float = 0.1
    """The share of rows that may repeat an earlier question before `uptrend tasks validate` objects."""
    chat: bool = True
    """Send prompts through the model's chat template."""

    def __post_init__(self) -> None:
        weights = asdict(self.weights)
        _need(not (self.file and self.datasets), "file and datasets are both given; name one of them.")
        _need(min(weights.values()) >= 0 < sum(weights.values()), "weights should be 0 or more, and not all 0.")


class Musique:
    """Multi-hop questions with retrieval tools: MuSiQue's files, hub datasets, or an invented world."""

    name: ClassVar[str] = "musique"
    version: ClassVar[str] = "2"
    Options: ClassVar[type[Any]] = MusiqueOptions
    WHOLE: ClassVar[dict[str, Any]] = {"split": "heldout"}
    LIMITS: ClassVar[dict[str, int]] = {"max_tokens": 128, "max_turns": 8, "context": 4096}

    def __init__(self, options: MusiqueOptions, seed: int) -> None:
        self.options, self.seed = options, seed
        self.chat = options.chat
        self.notes: list[str] = []
        self._shelf = Shelf(retriever(options.retriever, options.embedder))
        self._rules = Rules(options.weights, options.scale_by_hops, options.returned, options.longest)
        self._given = list(self._read()) if options.file or options.datasets else None
        self.rows = self.duplicate_rows = 0
        self.duplicates_allowed = options.duplicates
        if self._given is not None:
            self._given = self._unique(self._given)
            random.Random(f"{self.name}-{seed}").shuffle(self._given)

    def train(self, count: int, exclude: Collection[str] = ()) -> list[Task]:
        """Questions to train on, hops mixed."""
        if self._given is None:
            return self._invented(count, lambda task: not may_be_held_out(task.id) and task.id not in exclude)
        left_out = self._held_out.union(exclude)
        return self._limit([task for task in self._given if task.id not in left_out], count)

    def heldout(self, count: int) -> list[Task]:
        """Questions that are never trained on."""
        if self._given is None:
            return self._invented(count, lambda task: may_be_held_out(task.id))
        return self._limit([task for task in self._given if task.id in self._held_out], count)

    def open(self, task: Task, seed: int) -> QuestionPlay:  # noqa: ARG002 (nothing is left to chance)
        """Begin a rollout; its group shares the index of its documents."""
        documents = documents_of(task)
        return QuestionPlay(task, documents, self._shelf.index(task.id, documents), self._rules)

    def gold(self, task: Task) -> Script:
        """The expert: at the maximum under the golden retriever, at its ceiling under another."""
        return expert.expert(task, documents_of(task))

    def corrupted(self, task: Task) -> Iterable[Script]:
        """Players that leave out what earns the maximum."""
        documents, weights = documents_of(task), self.options.weights
        looks = weights.retrieval_recall + weights.retrieval_precision
        cites = weights.citation_recall + weights.citation_precision
        if looks + cites:
            yield expert.blind(task)
        if not exact_match(expert.first_answer(task, documents), task.data["accepted"]):  # in real files it may be
            yield expert.lazy(task, documents)
        if cites:
            yield expert.citing(task, documents, ())
        if weights.citation_precision and not all(document.supporting for document in documents):
            yield expert.citing(task, documents, tuple(document.id for document in documents))
        yield expert.silent()

    def cheaters(self, task: Task) -> Iterable[Script]:
        """Players that answer, open and cite everything."""
        documents, weights = documents_of(task), self.options.weights
        yield expert.spraying(task, documents)
        if weights.exact_match + weights.f1:  # otherwise to open and cite everything is what is asked for
            yield expert.hoarding(documents)

    def proof(self) -> "Musique":
        """The same tasks where the expert can reach the maximum: two documents of one title need two shown."""
        proving = self.under("golden")
        proving._rules = replace(self._rules, returned=max(2, self._rules.returned))
        return proving

    def variants(self) -> "dict[str, Callable[[], Musique]]":
        """Return makers of the same tasks under each retriever, for the expert's ceiling."""
        return {name: partial(self.under, name) for name in RETRIEVERS}

    def under(self, name: RetrieverName) -> "Musique":
        """The same tasks with another retriever."""
        other = copy(self)
        other.options = replace(self.options, retriever=name)
        other._shelf = Shelf(retriever(name, self.options.embedder))
        return other

    def _read(self) -> Iterator[Task]:
        options = self.options
        source = read_hub(options.datasets) if options.datasets else read_file(Path(options.file))
        tasks = list(to_tasks(source, options.noise_rate))
        if not tasks:
            raise TasksetError(f"{self._source} has no question that can be answered.")
        return iter(tasks)

    def _unique(self, tasks: list[Task]) -> list[Task]:
        unique: dict[str, Task] = {}
        for task in tasks:
            unique.setdefault(task.id, task)
        self.rows, self.duplicate_rows = len(tasks), len(tasks) - len(unique)
        if self.duplicate_rows:
            repeated = f"{self.duplicate_rows} of {self.rows} rows repeat an earlier question and were removed"
            self._note(f"{self._source}: {repeated}")
        return list(unique.values())

    def _invented(self, count: int, wanted: Any) -> list[Task]:
        made = rows(count * ENOUGH, self.seed, self.options.atlas)
        tasks = (to_task(row, str(row["id"]), self.options.noise_rate) for row in made)
        return list(islice(filter(wanted, tasks), count))

    @cached_property
    def _held_out(self) -> frozenset[str]:
        ids = [task.id for task in self._given or ()]
        if self.options.split == "quarter":
            return held_out_quarter(ids)
        return frozenset(ids) if self.options.split == "heldout" else frozenset()

    def _limit(self, tasks: list[Task], count: int) -> list[Task]:
        if len(tasks) < count and self._given is not None:
            held, whole = len(self._held_out), {"train": "to train on", "heldout": "held out"}.get(self.options.split)
            told = f"{self._source} has {len(self._given)} tasks, fewer than asked for: all are {whole}"
            self._note(told if whole else shortfall(self._source, len(self._given) - held, held))
        return tasks[:count]

    @property
    def _source(self) -> str:
        return self.options.file or self.options.datasets

    def _note(self, text: str) -> None:
        if text not in self.notes:
            self.notes.append(text)


def _need(holds: bool, otherwise: str) -> None:
    if not holds:
        raise ConfigError(otherwise, is_of_field=True)
