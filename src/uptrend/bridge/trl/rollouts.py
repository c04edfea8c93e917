"""A generation of TRL as rollouts of our own: the same rows as a run of Uptrend records."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from uptrend.bridge.trl.batch import TrlBatch, as_numpy
from uptrend.bridge.trl.columns import Columns
from uptrend.bridge.trl.scale import RewardRange
from uptrend.records import Ending, Message, Part, Reward, Rollout, ToolCall, rollouts_table, task_id

UNSCORED = "scorer: every reward function returned None"


@dataclass(frozen=True)
class Made:
    """Rollouts with what the schema has no class for."""

    rollouts: list[Rollout]
    known: list[bool | None]
    """Whether each is right; None where nobody can say."""
    passes: int = 0
    """How many looks of the loss they hold."""

    def table(self, run: str) -> pa.Table:
        """The rows, with null where TRL keeps nothing."""
        table = rollouts_table(run, self.rollouts)
        sizes = [max(1, len(r.sequences)) for r in self.rollouts]
        known = [value for value, size in zip(self.known, sizes, strict=True) for _ in range(size)]
        columns = {"correct": pa.array(known, pa.bool_())}
        for name in ("reward_low", "reward_high"):
            columns[name] = pa.array(table[name].to_numpy(zero_copy_only=False), pa.float64(), from_pandas=True)
        for name in ("sampler", "learner"):
            if not any(np.isfinite(getattr(s, name)).any() for r in self.rollouts for s in r.sequences):
                columns[name] = pa.nulls(len(table), table.schema.field(name).type)  # kept nowhere: not missing here
        for name, column in columns.items():
            at = table.schema.get_field_index(name)
            table = table.set_column(at, table.schema.field(at), column)
        return table


def groups_of(batch: TrlBatch, size: int) -> list[str]:
    """Each rollout's group by its true prompt; two groups of one prompt stay two while each is whole."""
    tasks = [task_id(prompt_messages(prompt)) for prompt in batch.prompts]
    blocks = [tasks[start : start + size] for start in range(0, len(tasks), size)]
    if len(tasks) % size or any(len(set(block)) > 1 for block in blocks):
        return tasks
    times: dict[str, int] = {}
    names = []
    for block in blocks:
        times[block[0]] = times.get(block[0], 0) + 1
        names += [block[0] if times[block[0]] == 1 else f"{block[0]}-{times[block[0]]}"] * size
    return names


def make_rollouts(batch: TrlBatch, groups: Sequence[str], scale: RewardRange, settings: Any) -> Made:
    """Every rollout of a generation, with all that the learner computed on its tokens."""
    passes = len(batch.passes)
    columns = Columns(batch, settings)
    rewards, bounds = as_numpy(batch.rewards), scale.bounds()
    places: dict[str, int] = {}
    rollouts, known = [], []
    for row in range(batch.size):
        index = places[groups[row]] = places.get(groups[row], -1) + 1
        first = prompt_messages(batch.prompts[row])
        reward = _reward(rewards[row], scale, bounds)
        rollouts.append(
            Rollout(
                step=batch.step, group=groups[row], index=index, task=task_id(first), family="",
                answer=batch.answers[row], seed=settings.seed, messages=(*first, *said(batch.completions[row])),
                sequences=(columns.tokens(row),), reward=reward, ended=_ending(batch.written[row], settings.stops),
                error=None if reward is not None else UNSCORED, seconds=batch.seconds,
            )
        )  # fmt: skip
        known.append(None if reward is None else scale.is_right(rewards[row]))
    return Made(rollouts, known, passes)


def _reward(rewards: NDArray[np.float64], scale: RewardRange, bounds: tuple[float, float]) -> Reward | None:
    if np.isnan(rewards).all():
        return None
    parts = tuple(
        Part(name, float(value), float(low), float(high), float(weight))
        for name, value, low, high, weight in zip(
            scale.names, rewards, scale.low, scale.high, scale.weights, strict=True
        )
        if not np.isnan(value)
    )
    total = sum(part.value * part.weight for part in parts)
    return Reward(total, *bounds, bool(scale.is_right(rewards)), parts)


def _ending(written: list[int], stops: frozenset[int]) -> Ending:
    return Ending.STOP_TOKEN if written and written[-1] in stops else Ending.LENGTH


def prompt_messages(prompt: Any) -> tuple[Message, ...]:
    """A prompt as messages; a plain text is what the user says."""
    return (Message("user", prompt),) if isinstance(prompt, str) else tuple(map(_message, prompt))


def said(completion: Any) -> tuple[Message, ...]:
    """A completion as messages."""
    return (Message("assistant", completion),) if isinstance(completion, str) else tuple(map(_message, completion))


def _message(message: Mapping[str, Any]) -> Message:
    content = message.get("content") or ""
    calls = [call.get("function", call) for call in message.get("tool_calls") or () if isinstance(call, Mapping)]
    return Message(
        message["role"],
        content if isinstance(content, str) else json.dumps(content, default=str, ensure_ascii=False),
        tuple(ToolCall(str(c.get("name", "")), _arguments(c.get("arguments"))) for c in calls),
    )


def _arguments(given: Any) -> Mapping[str, Any]:
    return given if isinstance(given, Mapping) else {"text": str(given)}
