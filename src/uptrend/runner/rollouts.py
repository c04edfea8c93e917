"""Recorded rollouts, played again without a model: a task must answer and score the same words as
it did.
"""

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

from uptrend.config import load_config
from uptrend.records import Ending, Message, RecordError, Reward, Rollout, Run, boundary_of
from uptrend.records.rollout import OVERLONG_PART
from uptrend.rollout.play import (
    RolloutRequest,
    Timeouts,
    derive_open_seed,
    derive_seed,
    play_messages,
    repeat_messages,
)
from uptrend.rollout.sampler import Limits
from uptrend.runner.prepare import check_tasks
from uptrend.tasks import event_loop
from uptrend.tasks.pool import make_heldout, make_pool


@dataclass(frozen=True)
class Difference:
    """A place at which a repetition is not what was recorded."""

    where: str  # prompt, turn N (as `runs show` counts them), reward or error
    recorded: Any
    now: Any


@dataclass(frozen=True)
class Repeated:
    """A recorded rollout beside its repetition."""

    recorded: Rollout
    again: Rollout
    differences: list[Difference]


def repeat_rollouts(
    run: Run, recorded: Sequence[Rollout], of_heldout: bool = False
) -> list[Repeated]:
    """Open the tasks of rollouts as their run did, say what its model said, and compare answers and
    rewards.

    `of_heldout` is for rollouts of an evaluation on the first held-out set.
    """
    if "hash" not in (run.info.get("tasks") or {}):
        raise RecordError(
            f"{run.path} can't be played again: it does not say which tasks it played."
        )
    config = load_config(run.config)
    heldout = make_heldout(config)
    requests = list[RolloutRequest]()
    s = config.sampling
    tasks = make_pool(config, heldout)
    check_tasks(run, tasks, heldout)
    is_taught = run.info.get("kind") == "warmstart"  # whose demonstrations are opened with seed 0
    for r in recorded:
        stage = tasks.stages[tasks.stage_at(max(1, r.step))]
        taskset, among = (
            (heldout.taskset, heldout.tasks) if of_heldout else (stage.taskset, stage.tasks)
        )
        task = next((task for task in among if task.id == r.task), None)
        if task is None:
            raise RecordError(
                f"{run.path} has a rollout of task {r.task}, which is not among its tasks."
            )
        seed = (
            derive_seed(heldout.seed, "open", task.id)
            if of_heldout
            else derive_open_seed(config.seed, r.group)
        )
        requests.append(
            RolloutRequest(
                task, taskset, r.step, r.group, r.index, r.seed, 0 if is_taught else seed
            )
        )
    places = [_places(r) for r in recorded]
    said = [[r.messages[place] for place in at] for r, at in zip(recorded, places, strict=True)]
    # an evaluation repeats places
    words = {id(request): each for request, each in zip(requests, said, strict=True)}
    limits = Limits(max_tokens=1, context=1)
    turns = max(map(len, said), default=0) + 1
    rows = s.rows or os.cpu_count()
    again = event_loop.run(
        play_messages(
            requests,
            lambda request: repeat_messages(words[id(request)]),
            limits,
            turns,
            rows or 1,
            Timeouts(s.tool_timeout),
            s.retries,
        )
    )
    pairs = zip(recorded, again, places, strict=True)
    return [Repeated(then, now, _differences(then, now, at)) for then, now, at in pairs]


def _places(r: Rollout) -> list[int]:
    """Return the places of what is said again: all of the model's messages, but one that the time
    limit cut short.
    """
    return r.model_message_indices[:-1] if _is_cut(r) else r.model_message_indices


def _is_cut(r: Rollout) -> bool:
    return r.ended is Ending.TIME_LIMIT and r.messages[-1].role == "assistant"


def _differences(recorded: Rollout, again: Rollout, places: Sequence[int]) -> list[Difference]:
    found = []
    messages = recorded.messages[: len(recorded.messages) - _is_cut(recorded)]
    for at, (then, now) in enumerate(zip_longest(messages, again.messages)):
        if _said(then) != _said(now):
            turn = sum(place < at for place in places)
            found.append(
                Difference(f"turn {turn - 1}" if turn else "prompt", _said(then), _said(now))
            )
    if _is_cut(recorded):
        return found  # what the command had done by then can't be repeated
    if boundary_of(recorded.error) in ("open", "respond", "score") or again.error is not None:
        errors = recorded.error, again.error
        return found if errors[0] == errors[1] else [*found, Difference("error", *errors)]
    then = _earned(recorded.reward)
    now = _earned(again.reward)
    is_same = then.keys() == now.keys() and all(
        math.isclose(then[key], now[key], rel_tol=1e-9) for key in then
    )
    return (
        found if is_same or recorded.reward is None else [*found, Difference("reward", then, now)]
    )


def _said(message: Message | None) -> str | None:
    return None if message is None else f"{message.role}: {message.content}"


def _earned(reward: Reward | None) -> dict[str, float]:
    """Return a task's own reward and its parts, without what the recipe took for length."""
    if reward is None:
        return {}
    parts = {part.name: part.value for part in reward.parts}
    total = reward.total - parts.pop(OVERLONG_PART, 0.0)
    return {"reward": total, "correct": float(reward.correct), **parts}
