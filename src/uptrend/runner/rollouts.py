"""Recorded rollouts, played again without a model: a task must give the same replies and the same
reward to the same messages.
"""

import math
import os
from collections.abc import Mapping, Sequence
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
from uptrend.runner.prepare import check_tasks, with_demonstrated_tasks
from uptrend.tasks import event_loop
from uptrend.tasks.pool import make_heldout, make_pool

# Relative difference up to which rewards are the same: subtracting the penalty rounds.
REWARD_RELATIVE_TOLERANCE = 1e-9


@dataclass(frozen=True)
class Difference:
    """Part of a rollout whose repetition is not what was recorded."""

    where: str  # prompt, turn N (as `runs show` counts them), reward or error
    recorded: Any
    now: Any


@dataclass(frozen=True)
class Repeated:
    """Recorded rollout beside its repetition."""

    recorded: Rollout
    again: Rollout
    differences: list[Difference]


def repeat_rollouts(
    run: Run, recorded: Sequence[Rollout], of_heldout: bool = False
) -> list[Repeated]:
    """Open the tasks of rollouts as their run did, give them its model's messages again, and
    compare replies and rewards.

    `of_heldout` is for rollouts of an evaluation on the first held-out set.
    """
    if "hash" not in (run.info.get("tasks") or {}):
        raise RecordError(
            f"{run.path} can't be played again: it does not say which tasks it played."
        )
    config = load_config(run.config)
    heldout = make_heldout(config)
    if run.info.get("kind") == "warmstart":
        config = with_demonstrated_tasks(config)
    pool = make_pool(config, heldout)
    check_tasks(run, pool, heldout)

    requests: list[RolloutRequest] = []
    for rollout in recorded:
        # The rollouts of several sources name theirs.
        heldout_set = heldout.sets.get(rollout.source, heldout)
        taskset = heldout_set.taskset
        tasks = heldout_set.tasks
        if not of_heldout:
            source = next((each for each in pool.sources if each.label == rollout.source), pool)
            stage = source.stages[source.stage_at(max(1, rollout.step))]
            taskset = stage.taskset
            tasks = stage.tasks
        task = next((task for task in tasks if task.id == rollout.task), None)
        if task is None:
            raise RecordError(
                f"{run.path} has a rollout of task {rollout.task}, which is not among its tasks."
            )
        if run.info.get("kind") == "warmstart":  # demonstrations are opened with seed 0
            open_seed = 0
        elif of_heldout:
            open_seed = derive_seed(heldout_set.seed, "open", task.id)
        else:
            open_seed = derive_open_seed(config.seed, rollout.group)
        request = RolloutRequest(
            task, taskset, rollout.step, rollout.group, rollout.index, rollout.seed, open_seed
        )
        requests.append(request)

    # By identity: requests of an evaluation may have the same step, group and index.
    messages_by_request: dict[int, list[Message]] = {}
    for request, rollout in zip(requests, recorded, strict=True):
        indices = _repeated_indices(rollout)
        messages_by_request[id(request)] = [rollout.messages[index] for index in indices]
    most_messages = max(map(len, messages_by_request.values()), default=0)
    repetitions = event_loop.run(
        play_messages(
            requests,
            lambda request: repeat_messages(messages_by_request[id(request)]),
            Limits(max_tokens=1, context=1),
            max_turns=most_messages + 1,
            rows=config.sampling.rows or os.cpu_count() or 1,
            timeouts=Timeouts(config.sampling.tool_timeout),
            retries=config.sampling.retries,
        )
    )
    repeated = []
    for rollout, repetition in zip(recorded, repetitions, strict=True):
        repeated.append(Repeated(rollout, repetition, _differences(rollout, repetition)))
    return repeated


def _repeated_indices(rollout: Rollout) -> list[int]:
    """Return the indices of the model's messages, but of one that the time limit cut short."""
    if _is_cut(rollout):
        return rollout.model_message_indices[:-1]
    return rollout.model_message_indices


def _is_cut(rollout: Rollout) -> bool:
    return rollout.ended is Ending.TIME_LIMIT and rollout.messages[-1].role == "assistant"


def _differences(recorded: Rollout, again: Rollout) -> list[Difference]:
    differences = []
    messages = recorded.messages
    if _is_cut(recorded):
        messages = messages[:-1]
    model_indices = _repeated_indices(recorded)
    for index, (before, after) in enumerate(zip_longest(messages, again.messages)):
        text_before = _message_text(before)
        text_after = _message_text(after)
        if text_before != text_after:
            turns_before = sum(model_index < index for model_index in model_indices)
            where = f"turn {turns_before - 1}" if turns_before else "prompt"
            differences.append(Difference(where, text_before, text_after))
    if _is_cut(recorded):
        return differences  # the effect of a command that was cut off can't be repeated

    if boundary_of(recorded.error) in ("open", "respond", "score") or again.error is not None:
        if recorded.error != again.error:
            differences.append(Difference("error", recorded.error, again.error))
        return differences
    if recorded.reward is not None:
        rewards_before = _task_rewards(recorded.reward)
        rewards_after = _task_rewards(again.reward)
        if not _are_close(rewards_before, rewards_after):
            differences.append(Difference("reward", rewards_before, rewards_after))
    return differences


def _message_text(message: Message | None) -> str | None:
    if message is None:
        return None
    return f"{message.role}: {message.content}"


def _task_rewards(reward: Reward | None) -> dict[str, float]:
    """Return a task's own reward and its parts, without the recipe's penalty for length."""
    if reward is None:
        return {}
    parts = {part.name: part.value for part in reward.parts}
    total = reward.total - parts.pop(OVERLONG_PART, 0.0)
    return {"reward": total, "correct": float(reward.correct), **parts}


def _are_close(before: Mapping[str, float], after: Mapping[str, float]) -> bool:
    if before.keys() != after.keys():
        return False
    return all(
        math.isclose(before[key], after[key], rel_tol=REWARD_RELATIVE_TOLERANCE) for key in before
    )
