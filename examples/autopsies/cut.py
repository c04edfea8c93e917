"""`Cut`: arithmetic with a reward that cuts the prompt off the completion, though the completion
never had it.
"""

from collections.abc import Sequence

from uptrend.records import Message, Task
from uptrend.tasks.answers import OneTurn
from uptrend.tasksets.arithmetic import Arithmetic


class Play(OneTurn):
    """A play whose scorer believes that it is handed prompt and completion in one."""

    async def respond(self, message: Message) -> Sequence[Message] | None:
        """The fault: `completion[len(prompt):]`, in a trainer that hands over the completion
        alone.
        """
        prompt = "".join(m.content for m in self.messages)
        return await super().respond(Message("assistant", message.content[len(prompt) :]))


class Cut(Arithmetic):
    """Arithmetic whose right answers are cut away before they are looked at."""

    name = "cut"

    def open(self, task: Task, seed: int) -> Play:  # noqa: ARG002 (nothing is random)
        """Begin a rollout."""
        return Play(task, self.options.reward)
