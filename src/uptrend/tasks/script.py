"""Play a script, without a model, through a task's real play object."""

from collections.abc import Sequence

from uptrend.records import Message, Reward, Task
from uptrend.tasks.taskset import Script, Taskset


async def play_script(taskset: Taskset, task: Task, script: Script, seed: int = 0) -> tuple[list[Message], Reward]:
    """Everything that was said, and what it earned; the script hears each of the task's answers."""
    play = taskset.open(task, seed)
    try:
        messages = list(play.messages)
        said = next(script, None)
        while said is not None:
            messages.append(said)
            answers = await play.respond(said)
            if answers is None:
                break
            messages.extend(answers)
            said = _go_on(script, answers)
        return messages, await play.score()
    finally:
        script.close()
        await play.close()


def _go_on(script: Script, answers: Sequence[Message]) -> Message | None:
    try:
        return script.send(answers)
    except StopIteration:
        return None
