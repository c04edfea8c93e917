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
from uptrend.tasks.pool import make_heldout, make_pool
from uptrend.tasks.rewards import Undecided
from uptrend.tasks.taskset import play_script, say

Rows = list[dict[str, Any]]


def tasks_of(recipe: str | Path) -> tuple[Rows, Rows, Any]:
    """Return the rows to train on, the rows held out, and a reward function; a task is played with
    one answer.
    """
    config = with_known_chat(load_config(recipe))
    held = make_heldout(config)
    stage = make_pool(config, held).stages[0]
    known = {task.id: (task, stage.taskset) for task in stage.tasks} | {
        t.id: (t, held.taskset) for t in held.tasks
    }

    def rows(tasks: Sequence[Task]) -> Rows:
        said = [
            [{"role": message.role, "content": message.content} for message in task.messages]
            for task in tasks
        ]
        raw = ["".join(message.content for message in task.messages) for task in tasks]
        chat = config.model.chat if stage.taskset.chat is None else stage.taskset.chat
        prompts: list[Any] = raw if chat is False else [*said]
        return [
            {"prompt": prompt, "task": task.id} for prompt, task in zip(prompts, tasks, strict=True)
        ]

    def score(text: str, id: str) -> float | None:
        task, taskset = known[id]
        try:
            return run(play_script(taskset, task, say(text)))[1].total
        except Undecided:
            return None

    def reward(completions: list[Any], task: list[str], **_: Any) -> list[float | None]:
        texts = [said if isinstance(said, str) else said[-1]["content"] for said in completions]
        return [score(text, id) for text, id in zip(texts, task, strict=True)]

    return rows(stage.tasks), rows(held.tasks), reward
