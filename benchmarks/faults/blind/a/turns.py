"""Tasksets of several turns, with the faults that their authors left in them."""

import random
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from benchmarks.faults.blind.a.common import number_in
from benchmarks.faults.blind.case import Job, fault, healthy
from uptrend.records import Message, Reward, Task, Tool
from uptrend.tasks.taskset import Script, may_be_held_out, say


class Base:
    """Sums of two numbers, whatever follows them."""

    version: ClassVar[str] = "1"

    def __init__(self, options: Any, seed: int) -> None:
        self.options, self.chat, self.notes = options, False, list[str]()
        pairs = [(a, b) for a in range(options.high + 1) for b in range(options.high + 1)]
        random.Random(seed).shuffle(pairs)
        self.tasks = [self.make(a, b) for a, b in pairs]

    def make(self, a: int, b: int) -> Task:
        """Return the task of a pair."""
        return Task((Message("user", f"Calculate: {a} + {b} = "),), str(a + b), "sums", a + b, {"a": a, "b": b})

    def train(self, count: int, exclude: Collection[str] = ()) -> list[Task]:
        return [t for t in self.tasks if not may_be_held_out(t.id) and t.id not in exclude][:count]

    def heldout(self, count: int) -> list[Task]:
        return [t for t in self.tasks if may_be_held_out(t.id)][:count]

    def gold(self, task: Task) -> Script:
        yield Message("assistant", task.answer)

    def corrupted(self, task: Task) -> Iterable[Script]:
        return [say(""), say("no"), say(str(int(task.answer) + 100))]


# ---- A second try after a wrong answer.


@dataclass(frozen=True)
class RetryOptions:
    """Options of `SecondTry`."""

    high: int = 20
    count_by: str = "rollout"


class SecondTry(Base):
    """A sum with a second try; a right first answer earns 1, a right second one 0.5."""

    name: ClassVar[str] = "second-try"
    Options: ClassVar[type[Any]] = RetryOptions
    tries: ClassVar[dict[str, int]] = {}

    def open(self, task: Task, seed: int) -> "RetryPlay":
        key = task.id if self.options.count_by == "task" else f"{task.id}-{seed}-{random.random()}"
        return RetryPlay(task, key, self.tries)


class RetryPlay:
    """One rollout of `SecondTry`."""

    tools: Sequence[Tool] = ()

    def __init__(self, task: Task, key: str, tries: dict[str, int]) -> None:
        self.task, self.messages, self._key, self._tries, self._earned = task, task.messages, key, tries, 0.0

    async def respond(self, message: Message) -> Sequence[Message] | None:
        used = self._tries[self._key] = self._tries.get(self._key, 0) + 1
        if number_in(message.content) == int(self.task.answer):
            self._earned = {1: 1.0, 2: 0.5}.get(used, 0.0)
            return None
        return [Message("user", f"\n{self.task.messages[0].content}")] if used < 2 else None

    async def score(self) -> Reward:
        return Reward.of("earned", self._earned, 0.0, 1.0, self._earned == 1.0)

    async def close(self) -> None:
        """Nothing is held."""


SECOND_TRY: dict[str, Any] = {
    "model": {"name": "tiny"}, "tasks": {"name": f"{__name__}:SecondTry", "train": 300},
    "eval": {"name": f"{__name__}:SecondTry", "tasks": 60, "every": 10},
    "sampling": {"groups": 8, "size": 8, "max_tokens": 5, "max_turns": 2}, "learning": {"steps": 25, "lr": 3e-5},
}  # fmt: skip


@fault("task.state-leaks")
def tries_counted_by_task(job: Job) -> None:
    """Tries are counted in a dict of the class by task, so one rollout's tries use up those of all others."""
    by = "task" if job.planted else "rollout"
    tasks, held = ({**SECOND_TRY[key], "count_by": by} for key in ("tasks", "eval"))
    job.train({**SECOND_TRY, "tasks": tasks, "eval": held})


@healthy
def second_try(job: Job) -> None:
    """A task of two turns where the second answer earns half."""
    job.train({**SECOND_TRY, "learning": {"steps": 30, "lr": 4e-5, "loss": "dapo"}})


# ---- A sum that goes on with what the model said.


@dataclass(frozen=True)
class ChainOptions:
    """Options of `Chain`."""

    high: int = 12
    retries: int = 3


class Chain(Base):
    """Two sums in two turns: a service adds a number to the first result and asks for the next."""

    name: ClassVar[str] = "chain"
    Options: ClassVar[type[Any]] = ChainOptions

    def make(self, a: int, b: int) -> Task:
        data = {"a": a, "b": b, "c": (a * 7 + b * 3) % 8}
        prompt = f"Calculate: {a} + {b} = "
        return Task((Message("user", prompt),), str(a + b + data["c"]), "chain", a + b, data)

    def open(self, task: Task, seed: int) -> "ChainPlay":
        return ChainPlay(task, seed, self.options)

    def gold(self, task: Task) -> Iterator[Message]:  # type: ignore[override]
        yield Message("assistant", str(task.data["a"] + task.data["b"]))
        yield Message("assistant", task.answer)


class ChainPlay:
    """One rollout of `Chain`."""

    tools: Sequence[Tool] = ()

    def __init__(self, task: Task, seed: int, options: ChainOptions) -> None:
        self.task, self.messages, self._said, self._options = task, task.messages, list[str](), options
        self._luck = random.Random(seed)
        self._final = ""

    def _service(self, first: int) -> str:
        for _ in range(1 + self._options.retries):
            if self._luck.random() > 0.4:
                return f"\nCalculate: {first} + {self.task.data['c']} = "
        return "\nError: connection refused (port 8080)\n"

    async def respond(self, message: Message) -> Sequence[Message] | None:
        self._said.append(message.content)
        if len(self._said) == 1:
            first = number_in(message.content)
            return None if first is None or abs(first) > 99 else [Message("tool", self._service(first))]
        self._final = message.content
        return None

    async def score(self) -> Reward:
        if not self._final:  # nothing was handed in
            return Reward.of("sums", 0.0, 0.0, 1.0, False)
        first = number_in(self._said[0]) == self.task.data["a"] + self.task.data["b"]
        good = number_in(self._final) == int(self.task.answer)
        return Reward.of("sums", 0.4 * first + 0.6 * good, 0.0, 1.0, first and good)

    async def close(self) -> None:
        """Nothing is held."""


def chain(turns: int = 2, **options: Any) -> dict[str, Any]:
    """Return a recipe of `Chain`."""
    tasks = {"name": f"{__name__}:Chain", **options}
    return {
        "model": {"name": "tiny"}, "tasks": {**tasks, "train": 120}, "eval": {**tasks, "tasks": 40, "every": 10},
        "sampling": {"groups": 8, "size": 8, "max_tokens": 5, "max_turns": turns},
        "learning": {"steps": 25, "lr": 4e-5},
    }  # fmt: skip


@fault("tool.errors-swallowed")
def service_refuses_connections(job: Job) -> None:
    """The service fails for two calls in five; its error text goes to the model, which is then scored as wrong."""
    job.train(chain(retries=0 if job.planted else 40))


@fault("reward.never-computed", "context.completion-truncated")
def one_turn_too_few(job: Job) -> None:
    """The reward is for the second answer, and `max_turns` was left at 1."""
    job.train(chain(turns=1 if job.planted else 2, retries=40))


@healthy
def two_sums_in_a_row(job: Job) -> None:
    """Two turns, scored at the end: 0.4 for the first sum and 0.6 for the second."""
    job.train(chain(retries=40))


# ---- A tool that must be used.


@dataclass(frozen=True)
class DeskOptions:
    """Options of `Desk`."""

    high: int = 20
    must_call: bool = False


class Desk(Base):
    """A sum with a calculator."""

    name: ClassVar[str] = "desk"
    Options: ClassVar[type[Any]] = DeskOptions

    def open(self, task: Task, seed: int) -> "DeskPlay":
        return DeskPlay(task, self.options.must_call)

    def gold(self, task: Task) -> Iterator[Message]:  # type: ignore[override]
        from uptrend.records import ToolCall

        if self.options.must_call:
            yield Message("assistant", "", (ToolCall("calculator", {"a": task.data["a"], "b": task.data["b"]}),))
        yield Message("assistant", task.answer)


CALCULATOR = Tool("calculator", "Adds two numbers.", {
    "type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}, "required": ["a", "b"],
})  # fmt: skip


class DeskPlay:
    """One rollout of `Desk`."""

    def __init__(self, task: Task, must_call: bool) -> None:
        self.task, self.messages, self._must, self._called, self._said = task, task.messages, must_call, False, ""
        self.tools: Sequence[Tool] = (CALCULATOR,) if must_call else ()

    async def respond(self, message: Message) -> Sequence[Message] | None:
        if message.calls:
            self._called = True
            given = message.calls[0].arguments
            return [Message("tool", str(int(given.get("a", 0)) + int(given.get("b", 0))))]
        self._said = message.content
        return None

    async def score(self) -> Reward:
        good = number_in(self._said) == int(self.task.answer) and (self._called or not self._must)
        return Reward.of("answer", float(good), 0.0, 1.0, good)

    async def close(self) -> None:
        """Nothing is held."""


@fault("tool.never-called", "reward.never-computed")
def calculator_is_compulsory(job: Job) -> None:
    """Only answers after a call of the calculator are paid, and the model was never shown how to call it."""
    tasks = {"name": f"{__name__}:Desk", "must_call": job.planted}
    job.train({
        "model": {"name": "tiny"}, "tasks": {**tasks, "train": 300}, "eval": {**tasks, "tasks": 60, "every": 10},
        "sampling": {"groups": 8, "size": 8, "max_tokens": 64 if job.planted else 8, "max_turns": 3},
        "learning": {"steps": 20, "lr": 3e-5},
    })  # fmt: skip
