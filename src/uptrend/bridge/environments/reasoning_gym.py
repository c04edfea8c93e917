"""reasoning-gym's generators as tasksets: its own options, its own scoring, our split."""

import os
import random
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from functools import cache
from itertools import count as count_up
from itertools import islice
from typing import Any, ClassVar, get_type_hints

import reasoning_gym
from reasoning_gym.factory import DATASETS
from reasoning_gym.utils import extract_answer

from uptrend.bridge.environments import ForeignField, options_from
from uptrend.config.load import nearest
from uptrend.records import ConfigError, Message, Reward, Task, TasksetError
from uptrend.tasks.answers import INTEGER_PATTERN, OneTurn
from uptrend.tasks.taskset import Script, Taskset, add_note, may_be_held_out, say, shortage_note

# Entries are generated in parts of this size: some generators draw all their entries at the
# beginning.
PART_SIZE = 500
# A generator that repeats itself this many times in a row has no more tasks.
MAX_REPEATS = 500
# Rounding of a generator's score below 1 that still counts as correct.
SCORE_ROUNDING = 1e-9
# Generators that go over sets of texts: their tasks, or only the way answers are written, depend on
# Python's hash seed.
BY_HASH_SEED = {
    "intermediate_integration",
    "isomorphic_strings",
    "knight_swap",
    "polynomial_multiplication",
    "ransom_note",
    "word_ladder",
}


@dataclass(frozen=True, kw_only=True)
class GymOptions:
    """Options of every generator, beside its own."""

    instruction: str = "\nGive the final answer between <answer> and </answer>."
    """Text after every question."""
    tagged: bool = False
    """Count only an answer between <answer> and </answer>; otherwise one without tags is read
    whole.
    """
    chat: bool = True
    """Send prompts through the model's chat template."""


class GymPlay(OneTurn):
    """A question, and the generator's own score of the answer."""

    def __init__(self, messages: tuple[Message, ...], grade: Callable[[str], Reward]) -> None:
        self.messages = messages
        self._grade = grade
        self._reply = ""

    async def score(self) -> Reward:
        return self._grade(self._reply)


class Gym:
    """A generator of reasoning-gym; `taskset_of` makes a class of it for each."""

    name: ClassVar[str]
    version: ClassVar[str] = reasoning_gym.__version__
    Options: ClassVar[type[Any]]
    dataset: ClassVar[type[Any]]

    def __init__(self, options: Any, seed: int) -> None:
        self.options = options
        self.chat = options.chat
        self.notes = list[str]()
        self._seed = random.Random(f"{self.name}-{seed}").getrandbits(31)
        has_random_hashes = os.environ.get("PYTHONHASHSEED", "random") == "random"
        if self.name.partition(":")[2] in BY_HASH_SEED and has_random_hashes:
            add_note(
                self.notes,
                f"{self.name} gives the same tasks in every process only where PYTHONHASHSEED"
                " is set",
            )
        self._parts: dict[int, Any] = {}
        self._entries: dict[int, dict[str, Any]] = {}

    def train(self, count: int, exclude: Collection[str] = ()) -> list[Task]:
        excluded = frozenset(exclude)
        return self._take(
            count, lambda task: not may_be_held_out(task.id) and task.id not in excluded
        )

    def heldout(self, count: int) -> list[Task]:
        return self._take(count, lambda task: may_be_held_out(task.id))

    def open(self, task: Task, seed: int) -> GymPlay:  # noqa: ARG002 (nothing is random in these tasks)
        question = task.messages[0]
        # Here and not in the task: whether it is held out depends on the question alone.
        prompt = replace(question, content=question.content + self.options.instruction)
        return GymPlay((prompt,), lambda reply: self._grade(task, reply))

    def gold(self, task: Task) -> Script:
        if not task.answer or not self._grade(task, self._write(task.answer)).correct:
            raise TasksetError(
                f"{self.name} has no gold answer for some of its tasks, such as {task.id}."
            )
        return say(self._write(task.answer))

    def corrupted(self, task: Task) -> Iterable[Script]:
        """Return scripts of silence, garbage, and a number that is one too large."""
        wrong_answers = ["@@ ??"]
        if INTEGER_PATTERN.fullmatch(task.answer):
            wrong_answers.append(str(int(task.answer) + 1))
        return map(say, ["", *map(self._write, wrong_answers)])

    def _write(self, answer: str) -> str:
        """Write an answer as the instruction asks for it."""
        is_tagged = self.options.instruction or self.options.tagged
        return f"<answer>{answer}</answer>" if is_tagged else answer

    def _grade(self, task: Task, reply: str) -> Reward:
        answer = extract_answer(reply)
        if answer is None and not self.options.tagged:
            answer = reply.strip()
        index = task.data["index"]
        entry = self._entry(index)
        score = 0.0
        if answer:
            # Some fail at what they can't read; that their own answers pass is validated.
            with suppress(Exception):
                score = float(self._part(index).score_answer(answer, entry))
        return Reward.of("score", score, 0.0, 1.0, correct=score >= 1 - SCORE_ROUNDING)

    def _part(self, index: int) -> Any:
        """Return the dataset of the part that an entry is in."""
        number = index // PART_SIZE
        if number not in self._parts:
            seed = (self._seed + number * PART_SIZE) % 2**31
            config = self.options.make(seed=seed, size=PART_SIZE)
            self._parts[number] = self.dataset(config)
        return self._parts[number]

    def _entry(self, index: int) -> dict[str, Any]:
        if index not in self._entries:
            self._entries[index] = self._part(index)[index % PART_SIZE]
        return self._entries[index]

    def _tasks(self) -> Iterator[Task]:
        """Yield every task once, until the generator has no more."""
        seen = set[str]()
        repeats = 0
        for index in count_up():
            try:
                entry = self._entry(index)
            except IndexError:  # as word_ladder does where no pair of words is left
                return
            answer = "" if entry["answer"] is None else str(entry["answer"])
            task = Task(
                (Message("user", entry["question"]),), answer, self.name, data={"index": index}
            )
            if task.id in seen:
                repeats += 1
                if repeats == MAX_REPEATS:
                    return
                continue
            repeats = 0
            seen.add(task.id)
            if not answer:
                add_note(
                    self.notes,
                    f"{self.name} gives no gold answers to some of its tasks: they are only scored",
                )
            yield task

    def _take(self, count: int, is_wanted: Callable[[Task], bool]) -> list[Task]:
        """Return the first of the wanted tasks; note where they are fewer."""
        tasks = list(islice(filter(is_wanted, self._tasks()), count))
        if len(tasks) < count:
            ids = [task.id for task in self._tasks()]
            n_heldout = sum(map(may_be_held_out, ids))
            add_note(self.notes, shortage_note(self.name, len(ids) - n_heldout, n_heldout))
        return tasks


@cache
def taskset_of(name: str) -> type[Taskset]:
    """Return the taskset of a generator."""
    if name not in DATASETS:
        near = nearest(name, DATASETS) or f" There are {', '.join(sorted(DATASETS))}."
        raise TasksetError(f"reasoning-gym has no generator {name!r}.{near}")
    dataset, config = DATASETS[name]
    members = {
        "name": f"reasoning-gym:{name}",
        "dataset": dataset,
        "Options": _options_of(name, config),
        "__doc__": f"{dataset.__doc__ or name}",
    }
    return type("Gym", (Gym,), members)


def _options_of(name: str, config: type[Any]) -> type[Any]:
    """Make options of a generator's config; its seed and size are ours to set."""
    hints = get_type_hints(config)
    defaults = {each.name: getattr(config(), each.name) for each in fields(config)}

    def make(self: Any, **ours: Any) -> Any:
        values: dict[str, Any] = {}
        for key, default in defaults.items():
            if not hasattr(self, key):
                continue
            values[key] = getattr(self, key)
            # Generators tell lists from tuples; recipes have lists alone.
            if isinstance(default, list | tuple):
                values[key] = type(default)(values[key])
        return config(**values, **ours)

    def check(self: Any) -> None:
        try:
            probe = make(self, seed=0, size=PART_SIZE)
            if hasattr(probe, "validate"):
                probe.validate()
        except (AssertionError, TypeError, ValueError) as error:
            raise ConfigError(
                f"reasoning-gym:{name} can't be made with these options: {error}."
            ) from None

    foreign_fields: list[ForeignField] = []
    for key, default in defaults.items():
        if key != "size":
            foreign_fields.append(ForeignField(key, hints[key], default))
    return options_from(GymOptions, foreign_fields, {"make": make, "__post_init__": check})
