"""A recipe's tasks and reward as TRL takes them, for the script that `uptrend convert RECIPE --to
trl` writes.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from uptrend.config import load_config
from uptrend.policy.known import with_known_chat
from uptrend.records import Task
from uptrend.tasks.event_loop import run
from uptrend.tasks.functions import remote
from uptrend.tasks.pool import make_heldout, make_pool
from uptrend.tasks.rewards import Undecided
from uptrend.tasks.taskset import play_script, say

Rows = list[dict[str, Any]]


def tasks_of(recipe: str | Path) -> tuple[Rows, Rows, Any]:
    """Return the rows to train on, the rows held out, and a reward function; a task is played with
    one answer.
    """
    config = with_known_chat(load_config(recipe))
    heldout = make_heldout(config)
    stage = make_pool(config, heldout).stages[0]
    is_chat = config.model.chat if stage.taskset.chat is None else stage.taskset.chat
    played_tasks = {task.id: (task, stage.taskset) for task in stage.tasks}
    played_tasks |= {task.id: (task, heldout.taskset) for task in heldout.tasks}

    def make_rows(tasks: Sequence[Task]) -> Rows:
        rows: Rows = []
        for task in tasks:
            prompt: Any = [
                {"role": message.role, "content": message.content} for message in task.messages
            ]
            if is_chat is False:
                prompt = "".join(message.content for message in task.messages)
            rows.append({"prompt": prompt, "task": task.id})
        return rows

    def score(text: str, id: str) -> float | None:
        task, taskset = played_tasks[id]
        try:
            _, outcome = run(play_script(taskset, task, say(text)))
        except Undecided:
            return None
        return outcome.total

    def reward(completions: list[Any], task: list[str], **_: Any) -> list[float | None]:
        rewards: list[float | None] = []
        for completion, id in zip(completions, task, strict=True):
            text = completion if isinstance(completion, str) else completion[-1]["content"]
            rewards.append(score(text, id))
        return rewards

    functions = getattr(stage.taskset, "remote_rewards", ())
    return make_rows(stage.tasks), make_rows(heldout.tasks), remote(reward) if functions else reward
