"""Readers of records that hold a rollout's messages, tokens or turns inside: verifiers' episodes,
which prime-rl saves too, its exports of tokens, ART's trajectories and tinker-cookbook's summaries.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from uptrend.bridge.importers.readers import Row, parse_number
from uptrend.bridge.importers.rollouts import (
    finite,
    gold_answer,
    read_plain,
    task_of,
    to_ids,
    to_messages,
    to_parts,
)
from uptrend.records.dialects import SavedFormat, ending_of, names_for
from uptrend.records.rollout import Role

Reader = Callable[[Row], Iterator[Row]]
# Branches of a message graph that are read: a history that is rewritten at every turn has one for
# each, of which the last are most of it.
MAX_BRANCHES = 8
# First number that is no step: records keep steps in 32 bits.
STEP_LIMIT = 2**31
# First number that is no length of an action in tokens: a damaged line would fill the memory.
LENGTH_LIMIT = 2**20


def read_record(
    record: Row, format: SavedFormat, position: int, with_texts: bool = True
) -> Iterator[Row]:
    """Yield the rollouts of a record; more than one row of a rollout if it has several sequences.

    Metrics need no texts. Raises whatever a damaged record leads to.
    """
    if format.reader == "plain":
        return read_plain(record, format, with_texts)
    if format.reader == "trajectory_groups":
        return read_trajectory_group(record, position)
    return _READERS[format.reader](record)


def step_of(record: Row, format: SavedFormat) -> int | None:
    """Return the step that a record names; None if it names none."""
    columns = format.columns.get("step", ())
    value: Any = next((record[column] for column in columns if column in record), None)
    if format.reader == "episodes":
        work = _object(_object(record.get("run")).get("work"))
        value = work.get("step")
    elif format.reader == "summaries":
        value = record.get("iteration")
    elif format.reader == "exports":
        value = record.get("step")
    number = parse_number(value)
    # Of NaN this comparison is false as well.
    return int(number) if number is not None and abs(number) < STEP_LIMIT else None


def is_evaluation_record(record: Row, format: SavedFormat) -> bool:
    """Return True for a record that says that it is of an evaluation."""
    if format.is_heldout:
        return True
    if format.reader == "episodes":
        run = _object(record.get("run"))
        return run.get("type") == "eval" or _object(run.get("work")).get("type") == "eval"
    if format.reader == "summaries":
        return str(record.get("split", "train")).startswith(("eval", "test"))
    return False


def _object(value: Any) -> Mapping[str, Any]:
    """Return an object of JSON; an empty one for anything else."""
    return value if isinstance(value, Mapping) else {}


def _objects_in(value: Any) -> list[Mapping[str, Any]]:
    """Return the objects of a list; none of anything else."""
    items = value if isinstance(value, list) else []
    return [item for item in items if isinstance(item, Mapping)]


def _parse_object(value: Any) -> Mapping[str, Any]:
    """Return an object that may be written as a text of JSON."""
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            return {}
    return _object(value)


# ---- verifiers and prime-rl: a line is an episode of traces, one per agent. A trace is a graph of
# messages, each with the tokens that it adds; a path from a root to a leaf is what was trained.


def read_episode(record: Row) -> Iterator[Row]:
    """Yield the rollouts of an episode: one per agent that is trained."""
    task = _object(record.get("task"))
    group = _object(record.get("group")).get("id")
    for trace in _objects_in(record.get("traces")):
        if _object(trace.get("agent")).get("trainable") is False:
            continue
        yield from _read_trace(trace, task, record, group)
    if not record.get("traces") and record.get("errors"):
        # It failed before its first message: recorded, without a reward.
        yield _episode_facts({}, task, record, group) | {"messages": []}


def _read_trace(
    trace: Mapping[str, Any], task: Mapping[str, Any], record: Row, group: Any
) -> Iterator[Row]:
    nodes = _objects_in(trace.get("nodes"))
    branches = _branches(nodes)
    facts = _episode_facts(trace, _object(trace.get("task")) or task, record, group)
    last = branches[-1] if branches else []
    messages: list[Row] = []
    for node in last:
        messages += to_messages([node.get("message")], "assistant")
    facts["messages"] = messages
    if not any(node.get("token_ids") for branch in branches for node in branch):
        yield facts
        return
    for sequence, branch in enumerate(branches):
        yield facts | _tokens_of(branch) | {"sequence": sequence}


def _episode_facts(
    trace: Mapping[str, Any], task: Mapping[str, Any], record: Row, group: Any
) -> Row:
    """Return the columns of a rollout that are not by token."""
    data = _object(task.get("data"))
    values: dict[str, float | None] = {}
    weights: dict[str, float] = {}
    for name, reward in _object(trace.get("rewards")).items():
        values[name] = parse_number(_object(reward).get("score"))
        weight = parse_number(_object(reward).get("weight"))
        weights[name] = 1.0 if weight is None else weight
    parts = finite(values)
    is_scored = bool(parts) and len(parts) == len(values)
    errors = _objects_in(trace.get("errors")) or _objects_in(record.get("errors"))
    error = errors[-1] if errors else None
    task_id = task.get("key") or task.get("hash") or task_of(data.get("prompt"))
    timing = _object(trace.get("timing"))
    agent = _object(timing.get("agent"))
    start = parse_number(agent.get("start"))
    end = parse_number(agent.get("end"))
    return {
        "group": None if group is None else str(group),
        "task": None if task_id is None else str(task_id),
        "family": str(task["type"]) if task.get("type") else None,
        "answer": gold_answer(data),
        "reward": sum(parts[name] * weights[name] for name in parts) if is_scored else None,
        "parts": to_parts(parts, weights),
        "ended": _trace_ending(trace),
        "error": f"{error.get('type')}: {error.get('message')}" if error else None,
        "seconds": end - start if start and end and end > start else None,
    }


def _trace_ending(trace: Mapping[str, Any]) -> str | None:
    """Return the ending of a trace: that of its last call, unless a limit stopped it."""
    condition = trace.get("stop_condition")
    calls = [call for call in _objects_in(trace.get("calls")) if not call.get("error")]
    if calls and calls[-1].get("finish_reason") == "length":
        return "length"
    if not isinstance(condition, str):
        return None
    return "task-error" if condition.endswith("error") else ending_of(condition)


def _branches(nodes: Sequence[Mapping[str, Any]]) -> list[list[Mapping[str, Any]]]:
    """Return the paths from a root to each leaf, the last ones if there are many."""
    parents = [_parent(node, index) for index, node in enumerate(nodes)]
    inner = set(parents)
    leaves = [index for index in range(len(nodes)) if index not in inner]
    branches: list[list[Mapping[str, Any]]] = []
    for leaf in leaves[-MAX_BRANCHES:]:
        path: list[Mapping[str, Any]] = []
        index: int | None = leaf
        while index is not None:
            path.append(nodes[index])
            index = parents[index]
        branches.append(path[::-1])
    return branches


def _parent(node: Mapping[str, Any], index: int) -> int | None:
    """Return the node before a node; a later one, as a damaged file may name it, is none."""
    parent = node.get("parent")
    return parent if isinstance(parent, int) and 0 <= parent < index else None


def _tokens_of(branch: Sequence[Mapping[str, Any]]) -> Row:
    """Return the columns by token of a path of messages."""
    ids: list[Any] = []
    roles: list[int] = []
    turns: list[int] = []
    streams: dict[str, list[float | None]] = {column: [] for column in _STREAMS}
    turn = 0
    for node in branch:
        own_ids = node.get("token_ids") or []
        mask = node.get("mask") or []
        if len(mask) != len(own_ids):
            mask = [False] * len(own_ids)
        # Tokens that were not sampled are the prompt until the model's first message, and then
        # replies to it, with the template around them.
        other_role = Role.TOOL if turn else Role.PROMPT
        ids += own_ids
        roles += [Role.MODEL.value if sampled else other_role.value for sampled in mask]
        turns += [turn] * len(own_ids)
        for column, name in _STREAMS.items():
            streams[column] += _spread(node.get(name), mask)
        turn += bool(node.get("sampled"))
    columns: Row = {"ids": to_ids(ids), "roles": roles, "turns": turns}
    for column, values in streams.items():
        if any(value is not None for value in values):
            columns[column] = values
    return columns


# Lists of a node that have one value per sampled token, by our column.
_STREAMS = {
    "sampler": "logprobs",
    "learner": "trainer_logprobs",
    "reference": "reference_logprobs",
    "advantages": "advantages",
}


def _spread(values: Any, mask: Sequence[Any]) -> list[float | None]:
    """Return values of sampled tokens as values of all tokens; None for the others, and for all if
    there is not one for each.
    """
    spread: list[float | None] = [None] * len(mask)
    sampled = [place for place, is_sampled in enumerate(mask) if is_sampled]
    if isinstance(values, list) and len(values) == len(sampled):
        for place, value in zip(sampled, values, strict=True):
            spread[place] = parse_number(value)
    return spread


def read_export(record: Row) -> Iterator[Row]:
    """Yield a sequence as prime-rl's trainer saw it: tokens and log-probabilities, no texts."""
    ids = record.get("token_ids")
    mask = record.get("loss_mask")
    if not isinstance(ids, list) or not isinstance(mask, list) or len(ids) != len(mask):
        return
    prompt_length = mask.index(True) if True in mask else len(mask)
    roles = [Role.PROMPT.value] * prompt_length
    for is_trained in mask[prompt_length:]:
        roles.append(Role.MODEL.value if is_trained else Role.TOOL.value)
    columns: Row = {"ids": to_ids(ids), "roles": roles, "weights": [float(item) for item in mask]}
    names = {
        "sampler": "inference_logprobs",
        "learner": "trainer_logprobs",
        "advantages": "advantages",
    }
    for column, name in names.items():
        values = record.get(name)
        if isinstance(values, list) and len(values) == len(ids):
            numbers = map(parse_number, values)
            columns[column] = [
                number if item else None for number, item in zip(numbers, mask, strict=True)
            ]
    family = record.get("env_name")
    yield {"family": None if family is None else str(family), "messages": [], **columns}


# ---- ART: a row of Parquet is a trajectory, a line of its older JSON a group of them


def read_trajectory(record: Row) -> Iterator[Row]:
    """Yield the rollout of a row of ART's Parquet file."""
    messages = _objects_in(record.get("messages"))
    yield _trajectory(record, messages, str(record.get("group_index")), None)


def read_trajectory_group(record: Row, position: int) -> Iterator[Row]:
    """Yield the rollouts of a line of ART's older JSON: a group, named by its position."""
    for trajectory in _objects_in(record.get("trajectories")):
        messages: list[Mapping[str, Any]] = []
        reason = None
        for item in _objects_in(trajectory.get("messages_and_choices")):
            # What the model wrote is a choice, as the server returned it.
            inner = item.get("message")
            is_choice = isinstance(inner, Mapping)
            reason = item.get("finish_reason") if is_choice else reason
            message = inner if isinstance(inner, Mapping) else item
            messages.append({**message, "trainable": is_choice})
        yield _trajectory(trajectory, messages, str(position), reason)


def _trajectory(
    record: Mapping[str, Any], messages: Sequence[Mapping[str, Any]], group: str, reason: Any
) -> Row:
    metrics = _parse_object(record.get("metrics"))
    metadata = _parse_object(record.get("metadata"))
    is_trained = [bool(message.get("trainable")) for message in messages]
    prompt = messages[: is_trained.index(True)] if True in is_trained else messages
    finish_reason = reason or metadata.get("finish_reason") or metadata.get("stop_reason")
    return {
        "group": group,
        "task": task_of([[message.get("role"), message.get("content")] for message in prompt]),
        "answer": gold_answer(metadata),
        "messages": to_messages(list(messages), "assistant"),
        "reward": parse_number(record.get("reward")),
        "parts": [],
        "ended": ending_of(finish_reason) if isinstance(finish_reason, str) else None,
        "seconds": parse_number(metrics.get("duration")),
    }


# ---- tinker-cookbook: a line is a trajectory's lengths, rewards and metrics by step, without texts


def read_summary(record: Row) -> Iterator[Row]:
    """Yield the rollout of a summary; its tokens are counted, not known."""
    steps = _objects_in(record.get("steps"))
    roles: list[int] = []
    turns: list[int] = []
    logs: dict[str, Any] = {}
    metrics: dict[str, Any] = {}
    for turn, step in enumerate(steps):
        length = step.get("ac_len")
        if isinstance(length, int) and 0 < length < LENGTH_LIMIT:
            roles += [Role.MODEL.value] * length
            turns += [turn] * length
        logs |= _object(step.get("logs"))
        metrics |= _object(step.get("metrics"))
    metrics |= _object(record.get("trajectory_metrics"))
    correct = parse_number(metrics.get("correct"))
    tags = record.get("tags")
    prompt = _first_text(logs, names_for("prompts"))
    messages = to_messages(prompt, "user")
    messages += to_messages(_first_text(logs, names_for("completions")), "assistant")
    yield {
        "group": str(record.get("group_idx")),
        "task": None if prompt is None else task_of(prompt),
        "family": "/".join(map(str, tags)) if isinstance(tags, list) and tags else None,
        "answer": gold_answer(logs),
        "messages": messages,
        "reward": parse_number(record.get("total_reward")),
        "correct": None if correct not in (0.0, 1.0) else bool(correct),
        "parts": [],
        "ended": _summary_ending(parse_number(metrics.get("truncated"))),
        "roles": roles or None,
        "turns": turns or None,
    }


def _first_text(logs: Mapping[str, Any], names: Iterable[str]) -> str | None:
    """Return the text under the first of several names that has one."""
    for name in names:
        text = logs.get(name)
        if isinstance(text, str):
            return text
    return None


def _summary_ending(truncated: float | None) -> str | None:
    if truncated is None:
        return None
    return "length" if truncated else "stop-token"


_READERS: dict[str, Reader] = {
    "episodes": read_episode,
    "exports": read_export,
    "trajectories": read_trajectory,
    "summaries": read_summary,
}
