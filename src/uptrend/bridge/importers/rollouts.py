"""Rollouts that another trainer saved, as rows of `records.schema`; what it did not save is null.

A format is a table of `[rollouts]` in `dialects.toml`. Most are records with one column per role,
which `read_plain` reads; records with more inside have readers of their own in `episodes`.

A reader turns one record into rows with the schema's columns. Two differ: `group` is None where the
trainer saved no id, and `weighted` is False for parts that may be no parts of the reward.
"""

import hashlib
import json
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np
import pyarrow as pa

from uptrend.bridge.importers.readers import Row, parse_number
from uptrend.records.dialects import SavedFormat, ending_of, names_for, saved_formats
from uptrend.records.errors import DAMAGE_ERRORS
from uptrend.records.rollout import Role
from uptrend.records.schema import ROLLOUT_SCHEMA

# Difference of rewards below which they are equal but for rounding.
REWARD_TOLERANCE = 1e-9
# Difference of a reward and the sum of its parts that is rounding: verl sums tokens in fp32.
PARTS_TOLERANCE = 1e-4
# Characters of the hash of a prompt that names its task.
TASK_ID_CHARACTERS = 12
# Characters of a gold answer: a longer one is a document that says more than the answer.
MAX_GOLD_CHARACTERS = 10_000
# Rewards by token that are summed, and tokens of a rollout: above any context of today.
MAX_TOKENS = 2_000_000


def find_format(record: Row) -> SavedFormat | None:
    """Return the format of a record; None if it is no rollout."""
    for format in saved_formats():
        if is_of_format(record, format):
            return format
    return None


def is_of_format(record: Row, format: SavedFormat) -> bool:
    """Return True for a record with the signs of a format; without signs, with text and reward."""
    if format.signs:
        return all(sign in record for sign in format.signs)
    has_text = isinstance(_first(record, format, "completion"), str | list)
    return has_text and _reward(record, format) is not None


def read_plain(record: Row, format: SavedFormat, with_texts: bool = True) -> Iterator[Row]:
    """Yield the rollout of a record with one column per role."""
    prompt = _first(record, format, "prompt")
    messages: list[dict[str, str | None]] = []
    if with_texts:
        completion = _first(record, format, "completion")
        messages = [*to_messages(prompt, "user"), *to_messages(completion, "assistant")]
    reward = _reward(record, format)
    parts = dict(_numeric_extras(record, format))
    scores = record.get("metrics")
    if isinstance(scores, dict):
        parts |= {name: parse_number(score) for name, score in scores.items()}
    known_parts = finite(parts)
    has_total = any(column in record for column in ("reward", *format.columns.get("reward", ())))
    if not has_total and known_parts:
        # TRL saves no total with completions. A reward of null stays unknown, as of a failed
        # attempt: it is not the sum of its parts.
        reward = sum(known_parts.values())
    family = _first(record, format, "family")
    error = _first(record, format, "error")
    yield {
        "group": _group(record, format),
        "task": task_of(prompt),
        "family": None if family is None else str(family),
        "answer": gold_answer(_first(record, format, "answer")),
        "messages": messages,
        "reward": reward,
        "parts": to_parts(known_parts),
        "weighted": reward is None or format.name == "trl" or isinstance(scores, dict),
        "ended": _ending(record, format),
        "error": str(error) if error else None,
        **_tokens(record, format),
    }


def _first(record: Row, format: SavedFormat, role: str) -> Any:
    """Return the value of the first of a role's columns that has one."""
    for column in format.columns.get(role, ()):
        value: Any = record.get(column)
        if value is None and "." in column:
            value = record
            for key in column.split("."):
                value = value.get(key) if isinstance(value, dict) else None
        if value is not None:
            return value
    return None


def _reward(record: Row, format: SavedFormat) -> float | None:
    """Return the reward of a record: a number, or one per token, which add up to it."""
    value = _first(record, format, "reward")
    if isinstance(value, list):
        numbers = [parse_number(item) for item in value[:MAX_TOKENS]]
        known = [number for number in numbers if number is not None]
        return sum(known) if known and len(known) == len(value) else None
    if isinstance(value, dict):
        # slime's rewards by name: which of them counts is a setting, mostly this one.
        value = value.get("score", value.get("reward"))
    return parse_number(value)


def _numeric_extras(record: Row, format: SavedFormat) -> Iterator[tuple[str, float]]:
    """Yield columns of numbers that may be parts of the reward."""
    if not format.extras:
        return
    roles = _columns_with_roles(format.name)
    for name, value in record.items():
        # __name__ is the form of a writer's own columns, such as pandas' __index_level_0__.
        is_number = type(value) in (float, int, bool)
        if is_number and name not in roles and not name.startswith("__"):
            yield name, float(value)


@cache
def _columns_with_roles(name: str) -> frozenset[str]:
    """Return the columns of a format that are surely no parts of the reward."""
    format = next(format for format in saved_formats() if format.name == name)
    roles = {column for columns in format.columns.values() for column in columns}
    return frozenset(roles.union(names_for("not_parts")))


def _group(record: Row, format: SavedFormat) -> str | None:
    value = _first(record, format, "group")
    if value is None:
        return None
    match = re.search(format.group, str(value)) if format.group else None
    return match[1] if match else str(value)


def _ending(record: Row, format: SavedFormat) -> str | None:
    word = _first(record, format, "ended")
    if isinstance(word, str):
        return ending_of(word)
    return "length" if _first(record, format, "truncated") is True else None


def _tokens(record: Row, format: SavedFormat) -> Row:
    """Return the columns by token of a record."""
    advantage = parse_number(_first(record, format, "advantage"))
    ids = _first(record, format, "tokens")
    length = _first(record, format, "response_length")
    if not isinstance(ids, list) or not isinstance(length, int) or not 0 < length <= len(ids):
        return {"advantages": None if advantage is None else [advantage]}

    mask = _first(record, format, "mask")
    if not isinstance(mask, list) or len(mask) != length:
        mask = [1] * length
    n_prompt = len(ids) - length
    roles = [Role.PROMPT.value] * n_prompt
    # What the response's mask leaves out was not written by the model: replies of tools.
    roles += [Role.MODEL.value if item else Role.TOOL.value for item in mask]
    columns: Row = {
        "ids": to_ids(ids),
        "roles": roles,
        "weights": [0.0] * n_prompt + [float(bool(item)) for item in mask],
    }
    for name in ("sampler", "learner", "reference"):
        values = _first(record, format, name)
        if isinstance(values, list) and len(values) in (length, len(ids)):
            pad: list[float | None] = [None] * (len(ids) - len(values))
            numbers = pad + [parse_number(value) for value in values]
            # Trainers write 0 for tokens that nobody sampled.
            written = zip(numbers, roles, strict=True)
            columns[name] = [number if role == Role.MODEL else None for number, role in written]
    if advantage is not None:
        columns["advantages"] = [advantage] * len(ids)
    return columns


def to_ids(values: Sequence[Any]) -> list[int | None]:
    """Return token ids; None for what is none."""
    return [value if isinstance(value, int) and 0 <= value < 2**31 else None for value in values]


def finite(parts: Mapping[str, float | None]) -> dict[str, float]:
    """Return the parts whose value is known."""
    known: dict[str, float] = {}
    for name, value in parts.items():
        if value is not None and np.isfinite(value):
            known[name] = value
    return known


def to_parts(
    values: Mapping[str, float], weights: Mapping[str, float] | None = None
) -> list[dict[str, Any]]:
    """Return parts of a reward as the schema has them, of weight 1 unless weights are known."""
    weight_by_name = weights or {}
    parts: list[dict[str, Any]] = []
    for name, value in values.items():
        parts.append({"name": name, "value": value, "weight": weight_by_name.get(name, 1.0)})
    return parts


def gold_answer(value: Any) -> str | None:
    """Return a gold answer as text: of an object, what stands under a usual name; None for several
    answers, of which nobody knows which must be said.
    """
    if isinstance(value, dict):
        names = (name for name in names_for("golds") if value.get(name) is not None)
        value = value.get(next(names, ""))
    if isinstance(value, list):
        value = value[0] if len(value) == 1 else None
    if value is None or isinstance(value, dict | list):
        return None
    text = str(value)
    return text if len(text) <= MAX_GOLD_CHARACTERS else None


def task_of(prompt: Any) -> str | None:
    """Return the id of a prompt's task: equal prompts have equal ids; None without a prompt."""
    if prompt is None:
        return None
    text = prompt
    if not isinstance(prompt, str):
        text = json.dumps(prompt, sort_keys=True, default=str)
    digest = hashlib.sha256(text.encode("utf-8", "replace"))
    return digest.hexdigest()[:TASK_ID_CHARACTERS]


def to_messages(content: Any, default_role: str) -> list[dict[str, str | None]]:
    """Return a text, or a list of texts and messages, as messages of the schema."""
    if not content:
        return []
    items = content if isinstance(content, list) else [str(content)]
    messages: list[dict[str, str | None]] = []
    for item in items:
        message = item if isinstance(item, dict) else {"content": str(item)}
        calls = message.get("tool_calls")
        messages.append(
            {
                "role": str(message.get("role", default_role)),
                "content": _text_of(message.get("content")),
                "calls": _calls_of(calls) if calls else None,
            }
        )
    return messages


def _text_of(content: Any) -> str:
    """Return a message's content as text: the texts of parts, or anything else as JSON."""
    if content is None or isinstance(content, str):
        return content or ""
    if isinstance(content, list) and all(isinstance(part, dict) for part in content):
        texts = [part.get("text") for part in content]
        return "\n".join(text for text in texts if isinstance(text, str))
    return json.dumps(content, default=str)


def _calls_of(calls: Any) -> str:
    """Return tool calls as JSON with the schema's names; OpenAI's stand under `function`."""
    items = calls
    if isinstance(calls, str):
        try:
            items = json.loads(calls)
        except (ValueError, RecursionError):
            return calls
    if not isinstance(items, list):
        return json.dumps(items, default=str)
    named: list[Any] = []
    for item in items:
        function = item.get("function") if isinstance(item, dict) else None
        call = function if isinstance(function, dict) else item
        if isinstance(call, dict):
            call = {"name": call.get("name"), "arguments": call.get("arguments")}
        named.append(call)
    return json.dumps(named, default=str)


def drop_unrelated_parts(rows: Sequence[Row]) -> None:
    """Leave out parts that may be none and do not add up to the rewards of a step: they measure
    something else. A single one that is the reward says nothing new.
    """
    unsure = [row for row in rows if not row.get("weighted", True)]
    for row in unsure:
        parts = row.get("parts") or ()
        total = sum(part["value"] * part["weight"] for part in parts)
        reward = row["reward"] or 0.0
        if len(parts) < 2 or abs(total - reward) > PARTS_TOLERANCE * max(1.0, abs(reward)):
            for other in unsure:
                other["parts"] = []
            return


def to_table(rows: Iterable[Row], step: int, run: str = "") -> tuple[pa.Table, int]:
    """Return the rows of a step as a table, each with its group and its index in the group, and
    how many rows no column can hold: these are left out.
    """
    sizes: dict[str, int] = defaultdict(int)
    columns: list[Row] = []
    group = ""
    for row in rows:
        sequence = row.get("sequence", 0)
        if sequence == 0:
            group = group_name(row, step)
            sizes[group] += 1
        index = sizes[group] - 1
        columns.append(row | {"run": run, "step": step, "group": group, "index": index})
        columns[-1]["sequence"] = sequence
        columns[-1]["messages"] = row.get("messages") or None
    try:
        return pa.Table.from_pylist(columns, schema=ROLLOUT_SCHEMA), 0
    except DAMAGE_ERRORS:
        whole = [row for row in columns if _is_storable(row)]
        return pa.Table.from_pylist(whole, schema=ROLLOUT_SCHEMA), len(columns) - len(whole)


def _is_storable(row: Row) -> bool:
    """Return False for a row with a value that no column can hold, such as half a surrogate."""
    try:
        pa.Table.from_pylist([row], schema=ROLLOUT_SCHEMA)
    except DAMAGE_ERRORS:
        return False
    return True


def group_name(row: Row, step: int) -> str:
    """Return the id of a row's group; without one, equal tasks of a step are a group."""
    group = row.get("group")
    return f"{step}-{row.get('task')}" if group is None else str(group)


def step_metrics(rows: Sequence[Row], step: int) -> dict[str, float]:
    """Compute the metrics of a step's rewards, groups, endings and lengths."""
    rollouts = [row for row in rows if not row.get("sequence")]
    rewards_by_group: dict[str, list[float]] = defaultdict(list)
    values_by_part: dict[str, list[float]] = defaultdict(list)
    endings: list[str] = []
    lengths: list[int] = []
    for row in rollouts:
        reward = row.get("reward")
        if reward is not None:
            rewards_by_group[group_name(row, step)].append(reward)
        for part in row.get("parts") or ():
            values_by_part[part["name"]].append(part["value"])
        if row.get("ended"):
            endings.append(row["ended"])
        roles = row.get("roles")
        if roles:
            lengths.append(roles.count(Role.MODEL.value))

    rewards = [reward for group in rewards_by_group.values() for reward in group]
    metrics = {
        "reward/mean": float(np.mean(rewards)) if rewards else np.nan,
        "sampling/rollouts/count": float(len(rollouts)),
    }
    stds: list[float] = []
    dead: list[bool] = []
    for group_rewards in rewards_by_group.values():
        if len(group_rewards) > 1:
            stds.append(float(np.std(group_rewards, ddof=1)))
            dead.append(max(group_rewards) - min(group_rewards) < REWARD_TOLERANCE)
    if stds:
        metrics["reward/group_std/mean"] = float(np.mean(stds))
        metrics["advantage/dead/share"] = float(np.mean(dead))
    if endings:
        metrics["sampling/ended/length/share"] = endings.count("length") / len(endings)
    if lengths:
        metrics["sampling/length/mean"] = float(np.mean(lengths))
    for name, values in values_by_part.items():
        metrics[f"reward/part/{name}/mean"] = float(np.mean(values))
        metrics[f"reward/part/{name}/std"] = float(np.std(values))
    return metrics
