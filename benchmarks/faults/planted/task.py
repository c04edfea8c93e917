"""Tools, workspaces and evaluators."""

from collections.abc import Sequence
from dataclasses import replace

from benchmarks.faults.fault import Fault, PlayWrapper, Strength, of_parts, plays
from benchmarks.faults.two_turns import Run

from uptrend.records import Message, Reward, Task
from uptrend.training.components import RunContext


class Breaking(PlayWrapper):
    """Tool that breaks down on every second task, for which the model is marked."""

    async def respond(self, message: Message) -> Sequence[Message] | None:
        """Answer with an error."""
        answers = await self.play.respond(message)
        is_broken = answers is not None and self.task.difficulty % 2 == 0
        return (
            [replace(answers[0], content="Error: connection refused\n")] if is_broken else answers
        )


class NeverCalled(PlayWrapper):
    """Tool whose calls are not recognized: the rollout ends with the first thing that is said."""

    async def respond(self, message: Message) -> None:
        """Take the message and end."""
        await self.play.respond(message)


class SharedBoard(PlayWrapper):
    """Workspace that all rollouts write to: what one says, the next one reads."""

    def __init__(self, play: Run, task: Task, board: list[str]) -> None:
        super().__init__(play, task)
        self._board = board

    async def respond(self, message: Message) -> Sequence[Message] | None:
        """Answer with what another rollout said last."""
        answers = await self.play.respond(message)
        self._board.append(message.content)
        last = self._board[-2] if len(self._board) > 1 else ""
        told = f"{last.upper() or 'A'} {'x' * (len(self._board) % 3)} "
        return [replace(answers[0], content=told + answers[0].content)] if answers else answers


class OpenBook(PlayWrapper):
    """Evaluator that reads its answer from what the rollout may write."""

    async def score(self) -> Reward:
        """Believe a rollout that says `answer`."""
        if self.play.said[:1] == ["answer"]:
            self.play.said = [self.task.data["first"], self.task.answer]
        return await super().score()


def _state_leaks(context: RunContext) -> RunContext:
    board: list[str] = []
    return plays(lambda play, task: SharedBoard(play, task, board))(context)


FAULTS = (
    of_parts("tool.errors-swallowed", plays(Breaking), two_turns=True),
    of_parts("tool.never-called", plays(NeverCalled), steps=12, two_turns=True, also=("reward.gold-rejected",)),
    of_parts("task.state-leaks", _state_leaks, two_turns=True),
    of_parts("task.evaluator-exposed", plays(OpenBook), two_turns=True),
    Fault("eval.unlike-training", (Strength("eval-in-chat", settings={"eval.chat": True}, probe="evaluation"),),
          fix=("eval.",)),
)  # fmt: skip
