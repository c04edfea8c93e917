"""A generation of TRL as rollouts of our own: the same rows as a run of Uptrend records. No
torch.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from uptrend.bridge.trl.batch import MODEL, PROMPT, TOOL, Settings, TrlBatch, as_numpy, roles_of
from uptrend.records import (
    Ending,
    Message,
    Part,
    Reward,
    Rollout,
    ToolCall,
    rollouts_table,
    task_id,
)
from uptrend.records import Sequence as Tokens

UNSCORED = "scorer: every reward function returned None"


@dataclass
class RewardRange:
    """Range of the reward: TRL states none, so it is what was seen, and what a gold answer
    earns.
    """

    names: list[str]  # reward functions
    weights: list[float]  # their factors in the total
    low: NDArray[np.float64]  # least that each has given
    high: NDArray[np.float64]  # most that each has given
    # function that tells a right answer from a wrong one, where re-scoring found it
    judge: int | None = None
    right: float = float("nan")  # what it gives a gold answer

    @classmethod
    def of(cls, names: Sequence[str], weights: Sequence[float]) -> Self:
        """Begin with nothing seen."""
        return cls(
            list(names), list(weights), np.full(len(names), np.inf), np.full(len(names), -np.inf)
        )

    def widen(self, rewards: NDArray[np.float64]) -> None:
        """Widen the range by some rewards, one column per function."""
        self.low = np.fmin.reduce([*rewards, self.low])  # of a number and NaN, the number
        self.high = np.fmax.reduce([*rewards, self.high])

    def bounds(self) -> tuple[float, float]:
        """Return the least and the most that the total can be; NaN while only one value was ever
        seen.
        """
        low, high = (float(np.dot(side, self.weights)) for side in (self.low, self.high))
        return (low, high) if low < high else (float("nan"), float("nan"))

    def reward(self, rewards: NDArray[np.float64]) -> Reward | None:
        """Make one rollout's reward; None where no function gave any."""
        if np.isnan(rewards).all():
            return None
        sides = zip(self.names, rewards, self.low, self.high, self.weights, strict=True)
        parts = tuple(
            Part(name, *map(float, values)) for name, *values in sides if not np.isnan(values[0])
        )
        is_right = self.judge is not None and bool(rewards[self.judge] >= self.right - 1e-6)
        return Reward(
            sum(part.value * part.weight for part in parts), *self.bounds(), is_right, parts
        )


def correctness(rollouts: Sequence[Rollout], scale: RewardRange) -> list[bool | None]:
    """Return right or wrong for each rollout; None where that is unknown."""
    return [None if scale.judge is None or r.reward is None else r.reward.correct for r in rollouts]


def make_table(run: str, rollouts: Sequence[Rollout], scale: RewardRange) -> pa.Table:
    """Make the rows, with null where TRL keeps nothing."""
    table = rollouts_table(run, rollouts)
    columns = {"correct": pa.array(correctness(rollouts, scale), pa.bool_())}
    for name in ("reward_low", "reward_high"):
        columns[name] = pa.array(
            table[name].to_numpy(zero_copy_only=False), pa.float64(), from_pandas=True
        )
    for name in ("sampler", "learner"):
        if not any(np.isfinite(getattr(r.sequences[0], name)).any() for r in rollouts):
            # not one value: TRL kept none
            columns[name] = pa.nulls(len(table), table.schema.field(name).type)
    for name, column in columns.items():
        at = table.schema.get_field_index(name)
        table = table.set_column(at, table.schema.field(at), column)
    return table


def make_rollouts(batch: TrlBatch, scale: RewardRange, settings: Settings) -> list[Rollout]:
    """Make every rollout of a generation, with all that the learner computed on its tokens; each is
    one sequence.
    """
    tasks = [_messages(prompt, "user") for prompt in batch.prompts]
    groups = groups_of([task_id(task) for task in tasks], settings.size)
    places: dict[str, int] = {}
    rollouts = []
    for row, tokens in enumerate(token_columns(batch, settings)):
        group = groups[row]
        written = batch.written[row]
        index = places[group] = places.get(group, -1) + 1
        reward = scale.reward(as_numpy(batch.rewards)[row])
        stopped = bool(written) and written[-1] in settings.stops
        rollouts.append(
            Rollout(
                step=batch.step,
                group=group,
                index=index,
                task=task_id(tasks[row]),
                family="",
                answer=batch.answers[row],
                seed=settings.seed,
                messages=(*tasks[row], *_messages(batch.completions[row], "assistant")),
                sequences=(tokens,),
                reward=reward,
                ended=Ending.STOP_TOKEN if stopped else Ending.LENGTH,
                error=None if reward is not None else UNSCORED,
                seconds=batch.seconds,
            )
        )
    return rollouts


def groups_of(tasks: Sequence[str], size: int) -> list[str]:
    """Name each rollout's group by its true prompt; two groups of one prompt stay two while each is
    whole.
    """
    blocks = [tasks[start : start + size] for start in range(0, len(tasks), size)]
    if len(tasks) % size or any(len(set(block)) > 1 for block in blocks):
        return list(tasks)
    times: dict[str, int] = {}
    names = []
    for block in blocks:
        times[block[0]] = times.get(block[0], 0) + 1
        names += [block[0] if times[block[0]] == 1 else f"{block[0]}-{times[block[0]]}"] * size
    return names


def token_columns(batch: TrlBatch, settings: Settings) -> list[Tokens]:
    """Cut TRL's padded tensors into the token columns of one row per rollout, without padding.

    Roles and turns come from the sampler's calls, never from TRL's own masks: those are what is
    checked.
    """
    out = batch.output
    mask = batch.loss_mask
    weights = loss_weights(mask, settings.loss, settings.max_tokens)
    width = out["prompt_ids"].shape[1]
    attention = np.concatenate(
        [as_numpy(out[f"{part}_mask"]) != 0 for part in ("prompt", "completion")], axis=1
    )
    sampler, reference = (batch.column(f"{side}_per_token_logps") for side in ("sampling", "ref"))
    learner = np.full(mask.shape, np.nan)
    for seen in batch.passes:
        rows = as_numpy(seen.rows)
        learner[rows] = as_numpy(seen.logprobs)
        attention[rows] = as_numpy(seen.attention) != 0
    advantages = as_numpy(out["advantages"])
    tools = out.get("tool_mask")
    sequences = []
    for row, written in enumerate(batch.written):
        prompt = batch.prompt(row)
        size = len(written)
        before = np.zeros(len(prompt), np.float32)
        if batch.calls:
            roles, turns = roles_of(prompt, written, batch.calls, row)
        else:  # the user's own function sampled: TRL's tool mask is all there is
            own = np.ones(size) if tools is None else as_numpy(tools)[row, :size]
            roles = np.concatenate([before + PROMPT, np.where(own != 0, MODEL, TOOL)]).astype(
                np.int8
            )
            turns = np.zeros(len(roles), np.int32)
        logprobs = []
        for values in (sampler, learner, reference):
            column = np.full(len(roles), np.nan, np.float32)
            if values is not None:
                column[len(prompt) :] = np.where(
                    roles[len(prompt) :] == MODEL, values[row, :size], np.nan
                )
            logprobs.append(column)
        # One per rollout, or one per token where a subclass gives those.
        tail = np.full(size, advantages[row]) if advantages.ndim == 1 else advantages[row, :size]
        sequences.append(
            Tokens(
                ids=np.array(prompt + written, np.int32),
                turns=turns,
                roles=roles,
                versions=np.where(roles == MODEL, batch.version, -1).astype(np.int32),
                sampler=logprobs[0],
                weights=np.concatenate([before, weights[row, :size]]).astype(np.float32),
                attended=attention[row, width - len(prompt) : width + size],
                advantages=np.concatenate([before, tail]).astype(np.float32),
                learner=logprobs[1],
                reference=None if reference is None else logprobs[2],
            )
        )
    return sequences


def loss_weights(mask: NDArray[Any], loss: str, max_tokens: int) -> NDArray[np.float64]:
    """Return each token's weight in TRL's loss, by its formula for the loss type, over the
    generation.
    """
    mask = mask.astype(np.float64)
    if loss in ("grpo", "sapo"):
        return np.asarray(mask / np.maximum(1.0, mask.sum(1, keepdims=True)) / len(mask))
    if loss == "dr_grpo":
        return np.asarray(mask / (len(mask) * max_tokens))
    return np.asarray(mask / max(1.0, float(mask.sum())))


def _messages(said: Any, role: str) -> tuple[Message, ...]:
    """Return a prompt or completion as messages; a plain text is of one role."""
    return tuple(
        map(_message, [{"role": role, "content": said}] if isinstance(said, str) else said)
    )


def _message(message: Mapping[str, Any]) -> Message:
    content = message.get("content") or ""
    calls = [
        call.get("function", call)
        for call in message.get("tool_calls") or ()
        if isinstance(call, Mapping)
    ]
    given = [(str(call.get("name", "")), call.get("arguments")) for call in calls]
    return Message(
        message["role"],
        (
            content
            if isinstance(content, str)
            else json.dumps(content, default=str, ensure_ascii=False)
        ),
        tuple(
            ToolCall(name, args if isinstance(args, Mapping) else {"text": str(args)})
            for name, args in given
        ),
    )
