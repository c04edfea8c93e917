"""Faults in tasksets of several turns, with or without tools."""

import random
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from benchmarks.faults.blind.b.common import number_said
from benchmarks.faults.blind.b.recipes import recipe
from benchmarks.faults.blind.case import Job, fault, healthy
from uptrend.records import Message, Reward, Task, Tool
from uptrend.tasks.taskset import Script, may_be_held_out

HERE = __name__


@dataclass(frozen=True)
class Options:
    """Options of all tasksets here."""

    broken: bool = False
    """True for the taskset as its author first wrote it."""


class TwoSteps:
    """A sum, then another sum with its result: the second question is asked with what was answered to the first."""

    name: ClassVar[str] = "two-steps"
    version: ClassVar[str] = "1"
    Options: ClassVar[type[Any]] = Options

    def __init__(self, options: Options, seed: int) -> None:
        self.options, self.chat, self.notes = options, False, list[str]()
        self.tasks = self.make()
        random.Random(seed).shuffle(self.tasks)

    def make(self) -> list[Task]:
        """All tasks: a + b, then c more."""
        chance = random.Random(5)
        found = []
        for a in range(13):
            for b in range(13):
                c = chance.randint(0, 6)
                first = Message("user", f"Calculate: {a} + {b} = ")
                found.append(Task((first,), str(a + b + c), self.name, a + b, {"a": a, "b": b, "c": c}))
        return found

    def train(self, count: int, exclude: Collection[str] = ()) -> list[Task]:
        return [t for t in self.tasks if not may_be_held_out(t.id) and t.id not in exclude][:count]

    def heldout(self, count: int) -> list[Task]:
        return [t for t in self.tasks if may_be_held_out(t.id)][:count]

    def open(self, task: Task, seed: int) -> "TwoStepsPlay":  # noqa: ARG002
        return TwoStepsPlay(task)

    def gold(self, task: Task) -> Script:
        yield Message("assistant", str(task.data["a"] + task.data["b"]))
        yield Message("assistant", task.answer)

    def corrupted(self, task: Task) -> Iterable[Script]:
        yield self.say("", "")
        yield self.say(task.answer, str(int(task.answer) + 1))

    def say(self, *texts: str) -> Script:
        yield from (Message("assistant", text) for text in texts)


class TwoStepsPlay:
    """One rollout of it; right steps are paid by half."""

    tools: Sequence[Tool] = ()

    def __init__(self, task: Task) -> None:
        self.task, self.messages, self.said = task, task.messages, list[str]()

    async def respond(self, message: Message) -> Sequence[Message] | None:
        self.said.append(message.content.strip())
        return None if len(self.said) == 2 else [self.next(number_said(message.content) or 0)]

    def next(self, number: int) -> Message:
        return Message("user", f"\nCalculate: {number} + {self.task.data['c']} = ")

    async def score(self) -> Reward:
        data, said = self.task.data, [*self.said, "", ""]
        rights = [said[0] == str(data["a"] + data["b"]), said[1] == self.task.answer]
        return Reward.of("steps", sum(rights) / 2, 0.0, 1.0, rights[1])

    async def close(self) -> None:
        pass


class Submit(TwoSteps):
    """As above, but only the second answer, the submission, is paid."""

    name: ClassVar[str] = "submit"

    def open(self, task: Task, seed: int) -> "SubmitPlay":  # noqa: ARG002
        return SubmitPlay(task)


class SubmitPlay(TwoStepsPlay):
    """One rollout of it."""

    async def score(self) -> Reward:
        is_right = len(self.said) == 2 and self.said[1] == self.task.answer
        return Reward.of("submitted", float(is_right), 0.0, 1.0, is_right)


@fault("reward.never-computed", "context.completion-truncated")
def no_turn_for_the_submission(job: Job) -> None:
    """The default of one turn was kept for a task that is paid at its second: nothing is ever submitted."""
    job.train(recipe({"name": f"{HERE}:Submit", "train": 120}, eval={"tasks": 40},
                     sampling={"max_turns": 1 if job.planted else 2}, learning={"steps": 30}))  # fmt: skip


class Shared(TwoSteps):
    """Plays keep the running total: in themselves, or as first written in the taskset."""

    name: ClassVar[str] = "shared"

    def __init__(self, options: Options, seed: int) -> None:
        super().__init__(options, seed)
        self.memory: dict[str, int] = {}

    def open(self, task: Task, seed: int) -> "SharedPlay":  # noqa: ARG002
        return SharedPlay(task, self.memory if self.options.broken else {})


class SharedPlay(TwoStepsPlay):
    """One rollout of it: the second question adds to the total in memory."""

    def __init__(self, task: Task, memory: dict[str, int]) -> None:
        super().__init__(task)
        self.memory = memory
        self.memory.setdefault("total", 0)
        self.memory["total"] = 0

    def next(self, number: int) -> Message:
        self.memory["total"] = (self.memory["total"] + number) % 40
        return super().next(self.memory["total"])


@fault("task.state-leaks")
def one_memory_for_all(job: Job) -> None:
    """The running total lives in the taskset, so rollouts that play at the same time add to each other's."""
    job.train(recipe({"name": f"{HERE}:Shared", "train": 120, "broken": job.planted},
                     eval={"name": f"{HERE}:Shared", "broken": job.planted, "tasks": 40},
                     sampling={"max_turns": 2}, learning={"steps": 30}))  # fmt: skip


PRICES = {number: 3 + number * 5 % 11 for number in range(30)}


class Lookup(TwoSteps):
    """A sum whose result is looked up in a price list; then the price plus something is asked for."""

    name: ClassVar[str] = "lookup"

    def make(self) -> list[Task]:
        """All tasks: the price of a + b, with c more."""
        tasks = super().make()
        return [Task(t.messages, str(PRICES[t.data["a"] + t.data["b"]] + t.data["c"]), self.name, t.difficulty, t.data)
                for t in tasks]  # fmt: skip

    def open(self, task: Task, seed: int) -> "LookupPlay":  # noqa: ARG002
        # As first written, the list was read from a page with ten entries.
        return LookupPlay(task, {n: p for n, p in PRICES.items() if n < 10} if self.options.broken else PRICES)


class LookupPlay(TwoStepsPlay):
    """One rollout of it."""

    def __init__(self, task: Task, prices: dict[int, int]) -> None:
        super().__init__(task)
        self.prices = prices

    def next(self, number: int) -> Message:
        try:
            return Message("tool", f"\nCalculate: {self.prices[number]} + {self.task.data['c']} = ")
        except Exception as error:
            return Message("tool", f"\nError: {type(error).__name__}: {error}\n")

    async def score(self) -> Reward:
        is_right = len(self.said) == 2 and self.said[1] == self.task.answer
        return Reward.of("price", float(is_right), 0.0, 1.0, is_right)


@fault("tool.errors-swallowed")
def list_with_ten_entries(job: Job) -> None:
    """The price list that a tool reads ends after ten entries; its KeyError is shown to the model, which goes on."""
    job.train(recipe({"name": f"{HERE}:Lookup", "train": 120, "broken": job.planted},
                     eval={"name": f"{HERE}:Lookup", "broken": job.planted, "tasks": 40},
                     sampling={"max_turns": 2}, learning={"steps": 30}))  # fmt: skip


CALCULATOR = Tool("calculate", "Computes a sum.", {
    "type": "object", "properties": {"expression": {"type": "string"}}, "required": ["expression"]})  # fmt: skip


class Calculator(TwoSteps):
    """Sums; a calculator may have to be used."""

    name: ClassVar[str] = "calculator"

    def make(self) -> list[Task]:
        """All tasks: a + b."""
        return [Task(t.messages, str(t.data["a"] + t.data["b"]), self.name, 0, t.data) for t in super().make()]

    def open(self, task: Task, seed: int) -> "CalculatorPlay":  # noqa: ARG002
        return CalculatorPlay(task, self.options.broken)

    def gold(self, task: Task) -> Script:
        if self.options.broken:
            from uptrend.records import ToolCall

            asked = f"{task.data['a']} + {task.data['b']}"
            yield Message("assistant", "", (ToolCall("calculate", {"expression": asked}),))
        yield Message("assistant", task.answer)


class CalculatorPlay(TwoStepsPlay):
    """One rollout of it."""

    def __init__(self, task: Task, must_call: bool) -> None:
        super().__init__(task)
        self.tools, self.must_call, self.called = [CALCULATOR] if must_call else [], must_call, False

    async def respond(self, message: Message) -> Sequence[Message] | None:
        if message.calls:
            self.called = True
            return [Message("tool", self.task.answer)]
        self.said.append(message.content.strip())
        return None

    async def score(self) -> Reward:
        is_right = self.said[-1:] == [self.task.answer] and (self.called or not self.must_call)
        return Reward.of("exact", float(is_right), 0.0, 1.0, is_right)


@fault("tool.never-called", "reward.never-computed")
def calculator_without_demonstrations(job: Job) -> None:
    """Only answers found with the calculator are paid, and the model has never seen how a call is written."""
    job.train(recipe({"name": f"{HERE}:Calculator", "train": 120, "broken": job.planted},
                     eval={"name": f"{HERE}:Calculator", "broken": job.planted, "tasks": 40},
                     sampling={"max_turns": 3, "max_tokens": 12, "context": 600}, learning={"steps": 25}))  # fmt: skip


@healthy
def two_turns(job: Job) -> None:
    """Two questions, the second with the first one's result; half of the reward for each."""
    job.train(recipe({"name": f"{HERE}:TwoSteps", "train": 120}, eval={"tasks": 40}, sampling={"max_turns": 2}))


@healthy
def submission_in_the_second_turn(job: Job) -> None:
    """Only the last of two turns is paid; three are allowed."""
    job.train(recipe({"name": f"{HERE}:Submit", "train": 120}, eval={"tasks": 40},
                     sampling={"max_turns": 3, "size": 12}, learning={"loss": "dapo"}))  # fmt: skip
