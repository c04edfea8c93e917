"""A generation of TRL as rollouts of our own: the same rows as a run of Uptrend records. No
torch.
"""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from uptrend.bridge.trl.batch import Settings, TrlBatch, as_numpy, roles_of
from uptrend.records import (
    Ending,
    Message,
    Part,
    Reward,
    Role,
    Rollout,
    ToolCall,
    rollouts_table,
    task_id,
)
from uptrend.records import Sequence as Tokens

UNSCORED_ERROR = "scorer: every reward function returned None"
# Rounding below the reward of a gold answer that still counts as right.
REWARD_ROUNDING = 1e-6


@dataclass
class RewardRange:
    """Range of the reward. TRL states none: it covers all rewards so far, and that of a gold
    answer.
    """

    names: list[str]  # reward functions
    weights: list[float]  # their factors in the total
    low: NDArray[np.float64]  # least reward of each so far
    high: NDArray[np.float64]  # highest reward of each so far
    # Reward of a gold answer by each function that tells right answers from wrong ones; NaN for all
    # others.
    right: NDArray[np.float64]

    @classmethod
    def of(cls, names: Sequence[str], weights: Sequence[float]) -> Self:
        """Return the range of no rewards yet."""
        low = np.full(len(names), np.inf)
        high = np.full(len(names), -np.inf)
        return cls(list(names), list(weights), low, high, right=np.full(len(names), np.nan))

    def widen(self, rewards: NDArray[np.float64]) -> None:
        """Widen the range by some rewards, one column per function."""
        self.low = np.fmin.reduce([*rewards, self.low])  # of a number and NaN, the number
        self.high = np.fmax.reduce([*rewards, self.high])

    def bounds(self, is_scored: NDArray[np.bool_] | None = None) -> tuple[float, float]:
        """Return the least and the most that the total can be, of all functions or of those that
        score a row; NaN while only one value was ever seen.
        """
        # A function returns None for rows that are not its own: there it can't earn anything.
        weights = np.array(self.weights) * (True if is_scored is None else is_scored)
        low = float(np.dot(self.low, weights))
        high = float(np.dot(self.high, weights))
        return (low, high) if low < high else (float("nan"), float("nan"))

    def reward(self, rewards: NDArray[np.float64]) -> Reward | None:
        """Make one rollout's reward; None where every function returned None."""
        if np.isnan(rewards).all():
            return None
        parts: list[Part] = []
        for i, name in enumerate(self.names):
            if not np.isnan(rewards[i]):
                value = float(rewards[i])
                low = float(self.low[i])
                high = float(self.high[i])
                parts.append(Part(name, value, low, high, float(self.weights[i])))
        total = sum(part.value * part.weight for part in parts)
        is_judged = ~np.isnan(rewards) & ~np.isnan(self.right)
        is_accepted = rewards[is_judged] >= self.right[is_judged] - REWARD_ROUNDING
        is_right = bool(is_judged.any() and is_accepted.all())
        return Reward(total, *self.bounds(~np.isnan(rewards)), is_right, tuple(parts))


def correctness(rollouts: Sequence[Rollout], reward_range: RewardRange) -> list[bool | None]:
    """Return right or wrong for each rollout; None where that is unknown, since no function that
    tells it has scored the row.
    """
    judges = {
        name
        for name, right in zip(reward_range.names, reward_range.right, strict=True)
        if not np.isnan(right)
    }
    correct: list[bool | None] = []
    for rollout in rollouts:
        reward = rollout.reward
        is_judged = reward is not None and any(part.name in judges for part in reward.parts)
        correct.append(reward.correct if reward is not None and is_judged else None)
    return correct


def make_table(run: str, rollouts: Sequence[Rollout], reward_range: RewardRange) -> pa.Table:
    """Make the rows, with null where TRL keeps nothing."""
    table = rollouts_table(run, rollouts)
    columns = {"correct": pa.array(correctness(rollouts, reward_range), pa.bool_())}
    for name in ("reward_low", "reward_high"):
        values = table[name].to_numpy(zero_copy_only=False)
        columns[name] = pa.array(values, pa.float64(), from_pandas=True)
    for name in ("sampler", "learner"):
        logprobs = [getattr(rollout.sequences[0], name) for rollout in rollouts]
        if not any(np.isfinite(values).any() for values in logprobs):
            # Without a single value, TRL keeps none.
            columns[name] = pa.nulls(len(table), table.schema.field(name).type)
    for name, column in columns.items():
        index = table.schema.get_field_index(name)
        table = table.set_column(index, table.schema.field(index), column)
    return table


def make_rollouts(batch: TrlBatch, reward_range: RewardRange, settings: Settings) -> list[Rollout]:
    """Make every rollout of a generation, with all that the learner computed on its tokens; each is
    one sequence.
    """
    prompts = [_messages(prompt, "user") for prompt in batch.prompts]
    tasks = [task_id(prompt) for prompt in prompts]
    groups = name_groups(tasks, settings.group_size)
    group_sizes = Counter(groups)
    is_partial = len(batch.process_sizes or (batch.size,)) < settings.processes
    group_counts: dict[str, int] = {}
    rollouts: list[Rollout] = []
    for row, tokens in enumerate(token_columns(batch, settings)):
        group = groups[row]
        index = group_counts.get(group, 0)
        group_counts[group] = index + 1
        if is_partial and group_sizes[group] % settings.group_size:
            # The rest lies on a process that is not recorded: no one can check this advantage.
            tokens = replace(tokens, advantages=np.full(len(tokens.ids), np.nan, np.float32))
        completion = _messages(batch.completions[row], "assistant")
        reward = reward_range.reward(as_numpy(batch.rewards)[row])
        written = batch.written[row]
        is_stopped = bool(written) and written[-1] in settings.stop_tokens
        rollouts.append(
            Rollout(
                step=batch.step,
                group=group,
                index=index,
                task=tasks[row],
                family="",
                answer=batch.answers[row],
                seed=settings.seed,
                messages=(*prompts[row], *completion),
                sequences=(tokens,),
                reward=reward,
                ended=Ending.STOP_TOKEN if is_stopped else Ending.LENGTH,
                error=None if reward is not None else UNSCORED_ERROR,
                seconds=batch.seconds,
            )
        )
    return rollouts


def name_groups(tasks: Sequence[str], size: int) -> list[str]:
    """Name each rollout's group by its true prompt; two groups of one prompt stay two while each is
    whole.
    """
    blocks = [tasks[start : start + size] for start in range(0, len(tasks), size)]
    if len(tasks) % size or any(len(set(block)) > 1 for block in blocks):
        return list(tasks)
    block_counts: dict[str, int] = {}
    names: list[str] = []
    for block in blocks:
        task = block[0]
        count = block_counts.get(task, 0) + 1
        block_counts[task] = count
        name = task if count == 1 else f"{task}-{count}"
        names += [name] * size
    return names


def token_columns(batch: TrlBatch, settings: Settings) -> list[Tokens]:
    """Cut TRL's padded tensors into the token columns of one row per rollout, without padding.

    Roles and turns come from the sampler's calls and not from TRL's own masks, which they serve to
    check.
    """
    mask = batch.loss_mask
    weights = loss_weights(mask, settings.loss_type, settings.max_tokens)
    advantages = as_numpy(batch.output["advantages"])
    sampler = batch.column("sampling_per_token_logps")
    reference = batch.column("ref_per_token_logps")

    # What the loss saw, where it has passed over a row; TRL's own mask elsewhere.
    learner = np.full(mask.shape, np.nan)
    masks = [batch.output["prompt_mask"], batch.output["completion_mask"]]
    attention = np.concatenate([as_numpy(part) != 0 for part in masks], axis=1)
    for loss_pass in batch.passes:
        rows = as_numpy(loss_pass.rows)
        learner[rows] = as_numpy(loss_pass.logprobs)
        attention[rows] = as_numpy(loss_pass.attention) != 0
    # What TRL keeps was computed before any update; a pass over rows of a long generation may not.
    old = batch.column("old_per_token_logps")
    if old is not None:
        learner = np.where(np.isnan(learner), learner, old)

    prompt_width = batch.output["prompt_ids"].shape[1]
    sequences: list[Tokens] = []
    for row, written in enumerate(batch.written):
        prompt = batch.prompt(row)
        n_written = len(written)
        roles, turns = _roles_and_turns(batch, row)
        is_model = roles == Role.MODEL
        no_prompt = np.zeros(len(prompt), np.float32)
        own_weights = weights[row, :n_written]
        if advantages.ndim == 1:
            own_advantages = np.full(n_written, advantages[row])
        else:  # a subclass gives one per token
            own_advantages = advantages[row, :n_written]
        sequences.append(
            Tokens(
                ids=np.array(prompt + written, np.int32),
                turns=turns,
                roles=roles,
                versions=np.where(is_model, batch.version, -1).astype(np.int32),
                sampler=_model_logprobs(sampler, row, is_model, n_written),
                weights=np.concatenate([no_prompt, own_weights]).astype(np.float32),
                attended=attention[row, prompt_width - len(prompt) : prompt_width + n_written],
                advantages=np.concatenate([no_prompt, own_advantages]).astype(np.float32),
                learner=_model_logprobs(learner, row, is_model, n_written),
                reference=(
                    None
                    if reference is None
                    else _model_logprobs(reference, row, is_model, n_written)
                ),
            )
        )
    return sequences


def _roles_and_turns(batch: TrlBatch, row: int) -> tuple[NDArray[np.int8], NDArray[np.int32]]:
    """Return the author and the turn of each token of a row."""
    prompt = batch.prompt(row)
    written = batch.written[row]
    if batch.calls:
        return roles_of(prompt, written, batch.calls, row)
    # The user's own function sampled: TRL's tool mask is all there is.
    tool_mask = batch.output.get("tool_mask")
    roles = np.full(len(prompt) + len(written), Role.MODEL, np.int8)
    roles[: len(prompt)] = Role.PROMPT
    if tool_mask is not None:
        is_tool = as_numpy(tool_mask)[row, : len(written)] == 0
        roles[len(prompt) :][is_tool] = Role.TOOL
    return roles, np.zeros(len(roles), np.int32)


def _model_logprobs(
    values: NDArray[np.float64] | None, row: int, is_model: NDArray[np.bool_], n_written: int
) -> NDArray[np.float32]:
    """Return the values of the model's tokens as a column of a row's tokens; NaN elsewhere, and
    where TRL keeps no values.
    """
    column = np.full(len(is_model), np.nan, np.float32)
    n_prompt = len(is_model) - n_written
    if values is not None:
        column[n_prompt:] = np.where(is_model[n_prompt:], values[row, :n_written], np.nan)
    return column


def loss_weights(mask: NDArray[Any], loss: str, max_tokens: int) -> NDArray[np.float64]:
    """Return each token's weight in TRL's loss, by its formula for the loss type, over the
    generation.
    """
    mask = mask.astype(np.float64)
    n_rows = len(mask)
    if loss in ("grpo", "sapo"):  # the mean over rows of the mean over a row's tokens
        row_tokens = np.maximum(1.0, mask.sum(1, keepdims=True))
        return np.asarray(mask / row_tokens / n_rows)
    if loss == "dr_grpo":  # the longest completion divides, not each row's own length
        return np.asarray(mask / (n_rows * max_tokens))
    n_tokens = max(1.0, float(mask.sum()))
    return np.asarray(mask / n_tokens)


def _messages(conversation: Any, role: str) -> tuple[Message, ...]:
    """Return a prompt or completion as messages; a plain text is of one role."""
    if isinstance(conversation, str):
        conversation = [{"role": role, "content": conversation}]
    return tuple(map(_message, conversation))


def _message(message: Mapping[str, Any]) -> Message:
    content = message.get("content") or ""
    if not isinstance(content, str):
        content = json.dumps(content, default=str, ensure_ascii=False)
    calls: list[ToolCall] = []
    for call in message.get("tool_calls") or ():
        if not isinstance(call, Mapping):
            continue
        function = call.get("function", call)
        arguments = function.get("arguments")
        if not isinstance(arguments, Mapping):
            arguments = {"text": str(arguments)}
        calls.append(ToolCall(str(function.get("name", "")), arguments))
    return Message(message["role"], content, tuple(calls))
