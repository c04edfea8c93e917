"""Tools, workspaces and evaluators."""

from dataclasses import replace
from typing import Any

from benchmarks.faults.fault import Fault, of_plant
from benchmarks.faults.planted.known import known
from benchmarks.faults.two_turns import Run
from tests.doctor.planted_faults import swapped

from uptrend.records import Message

_BOARD: list[str] = []
"""The one workspace that all rollouts write to."""


def _breaking(respond: Any) -> Any:
    """The tool breaks down on every second task, and the model is marked for it."""

    async def run(self: Run, message: Message) -> Any:
        answers = await respond(self, message)
        if answers is None or self.task.difficulty % 2:
            return answers
        return [replace(answers[0], content="Error: connection refused\n")]

    return run


def _deaf(respond: Any) -> Any:
    """No call is ever recognized: the rollout ends with the first thing that is said."""

    async def run(self: Run, message: Message) -> Any:
        await respond(self, message)

    return run


def _shared(respond: Any) -> Any:
    """What one rollout says, the next one reads."""

    async def run(self: Run, message: Message) -> Any:
        answers = await respond(self, message)
        _BOARD.append(message.content)
        last = _BOARD[-2] if len(_BOARD) > 1 else ""
        return [replace(answers[0], content=f"{last.upper() or 'A'} {'x' * (len(_BOARD) % 3)} {answers[0].content}")
                ] if answers else answers  # fmt: skip

    return run


def _open_book(score: Any) -> Any:
    """The evaluator reads its answer from what the rollout may write."""

    async def run(self: Run) -> Any:
        if self.said[:1] == ["answer"]:
            self.said = [self.task.data["first"], self.task.answer]
        return await score(self)

    return run


FAULTS = (
    of_plant("tool.errors-swallowed", lambda: swapped(Run, "respond", _breaking), two_turns=True),
    of_plant("tool.never-called", lambda: swapped(Run, "respond", _deaf), steps=12, two_turns=True,
             also=("reward.gold-rejected",)),
    of_plant("task.state-leaks", lambda: swapped(Run, "respond", _shared), two_turns=True),
    of_plant("task.evaluator-exposed", lambda: swapped(Run, "score", _open_book), two_turns=True),
    Fault("eval.unlike-training", (known("eval-in-chat"),), fix=("eval.",)),
)  # fmt: skip
