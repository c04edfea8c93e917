"""Rollouts that another trainer kept as text, with the columns of `records.schema`; what it did not
keep is null.

TRL writes `completions/completions_00010.parquet`, one file per logged step: step, prompt and
completion (text or messages), one column per reward function under its name, what the user's
`log_extra` added, and advantage. Other trainers write one JSON object per attempt, as verifiers'
`results.jsonl` has them.
"""

import hashlib
import json
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from uptrend.bridge.importers.readers import Log, Row, columns_in, parse_number
from uptrend.bridge.importers.runs import step_column
from uptrend.records.dialects import names_for
from uptrend.records.errors import RecordError
from uptrend.records.files import read_table
from uptrend.records.schema import ROLLOUT_SCHEMA
from uptrend.records.view import Floats, RunView

_NOTE_ON_GROUPS = (
    "Rollouts are grouped by the text of their prompt within a step: the log has no group ids."
)
_NOTE_ON_SUMS = (
    "A rollout's reward is the sum of its parts: TRL logs neither the total nor the weights with"
    " completions."
)
# Rows by which attempts are told from points of a curve.
N_HEAD_ROWS = 50
# Steps whose completions stay in memory.
N_CACHED_STEPS = 8
# Difference of rewards below which they are equal but for rounding.
REWARD_TOLERANCE = 1e-9
# Characters of the hash of a prompt that names its task.
TASK_ID_CHARACTERS = 12
ReadStep = Callable[[int], pa.Table]


def is_rollouts(rows: list[Row]) -> bool:
    """Return True if rows are attempts (a text and its reward) and not points of a curve."""
    head = rows[:N_HEAD_ROWS]
    n_texts = 0
    n_rewards = 0
    for row in head:
        completions = [row.get(key) for key in names_for("completions")]
        n_texts += any(isinstance(completion, str | list) for completion in completions)
        n_rewards += parse_number(row.get("reward")) is not None
    # Half of the rows may lack one of the two: errors have no reward, and tool calls no text.
    return n_texts * 2 > len(head) and n_rewards * 2 > len(head)


def view_of_rollouts(log: Log, source: str) -> RunView:
    """Return a log of attempts as a curve if they have steps, else as one evaluation."""
    column = step_column(log.rows)
    tables = _tables_by_step(log, column)
    notes = (*log.notes, _NOTE_ON_GROUPS)
    if column is not None:
        view = _view_of_curve(source, list(tables), tables.__getitem__, notes)
        return replace(view, name=log.name)

    table = tables[0]
    evaluation = {
        "step": 0,
        "reward": _step_metrics(table)["reward/mean"],
        "tasks": len(set(table["task"].to_pylist())),
    }
    note = "The rows are attempts without a step: they are read as one evaluation, not as a curve."
    return RunView(
        source=source,
        trainer="verifiers" if "example_id" in log.rows[0] else "unknown",
        name=log.name,
        steps=np.zeros(0, dtype=np.int64),
        metrics={},
        evals=(evaluation,),
        rollout_steps=(0,),
        read_rollouts=lambda _: table,
        read_heldout=lambda _: table,
        notes=(*notes, note),
    )


def _tables_by_step(log: Log, step_name: str | None) -> dict[int, pa.Table]:
    """Return a log's attempts by step, in order; all of them at step 0 if no column counts
    steps.
    """
    rollouts_by_step: dict[int, list[Row]] = defaultdict(list)
    for row in log.rows:
        number = parse_number(row.get(step_name)) if step_name else 0
        if number is None:
            continue  # belongs to no point of the curve
        step = int(number)
        parts: dict[str, float | None] = {}
        scores = row.get("metrics")
        if isinstance(scores, dict):
            parts = {key: parse_number(value) for key, value in scores.items()}
        rollouts_by_step[step].append(_rollout(row, parts, step))
    tables: dict[int, pa.Table] = {}
    for step in sorted(rollouts_by_step):
        tables[step] = _to_table(rollouts_by_step[step], log.name)
    return tables


def completion_files(folder: Path) -> dict[int, Path]:
    """Return TRL's files of completions by step, in order.

    The step is that in the file's name, so that no file is read; `_step_of` reads files that the
    user names, which may be renamed.
    """
    files: list[tuple[int, Path]] = []
    for pattern in ("completions/completions_*.parquet", "completions_*.parquet"):
        for path in folder.glob(pattern):
            match = re.search(r"_(\d+)\.parquet$", path.name)
            if match:
                files.append((int(match[1]), path))
    return dict(sorted(files))


def with_completions(view: RunView, files: Mapping[int, Path]) -> RunView:
    """Add completions to the view of a trainer's state, whose metrics name the parts of the
    reward.
    """
    return replace(
        view,
        rollout_steps=tuple(files),
        read_rollouts=_completion_reader(files, frozenset(view.parts())),
        notes=(*view.notes, _NOTE_ON_GROUPS, _NOTE_ON_SUMS),
    )


def view_of_completions(paths: Sequence[Path]) -> RunView:
    """Return completions without a trainer's state as a curve."""
    files = dict(sorted((_step_of(path), path) for path in paths))
    source = str(paths[0] if len(paths) == 1 else paths[0].parent)
    read_step = _completion_reader(files, frozenset())
    notes = (
        "Only completions were found: the curve is made from them.",
        _NOTE_ON_GROUPS,
        _NOTE_ON_SUMS,
    )
    view = _view_of_curve(source, list(files), read_step, notes)
    return replace(view, trainer="trl")


def _step_of(path: Path) -> int:
    """Return the step in a file of completions, else that in its name."""
    try:
        column = read_table(path, ["step"])["step"]
        return int(column[0].as_py()) if len(column) else 0
    except (RecordError, KeyError, TypeError):
        match = re.search(r"(\d+)\.parquet$", path.name)
        return int(match[1]) if match else 0


def _view_of_curve(
    source: str, steps: list[int], read_step: ReadStep, notes: tuple[str, ...]
) -> RunView:
    """Return a view whose points are computed from each step's rollouts."""
    points = [_step_metrics(read_step(step)) for step in steps]
    metrics: dict[str, Floats] = {}
    for key in columns_in(points):
        values = [point.get(key, np.nan) for point in points]
        metrics[key] = np.array(values)
    return RunView(
        source=source,
        trainer="unknown",
        name="",
        steps=np.array(steps, dtype=np.int64),
        metrics=metrics,
        rollout_steps=tuple(steps),
        read_rollouts=read_step,
        notes=notes,
    )


def _completion_reader(files: Mapping[int, Path], part_names: frozenset[str]) -> ReadStep:
    """Return a function that reads a step's rollouts; their parts are the columns named, else every
    other number.
    """

    @lru_cache(maxsize=N_CACHED_STEPS)
    def read_step(step: int) -> pa.Table:
        if step not in files:
            raise RecordError(f"There are no completions of step {step}.")
        path = files[step]
        table = read_table(path)
        if not {"prompt", "completion"} <= set(table.column_names):
            raise RecordError(
                f"{path} has no columns prompt and completion: it is not one of TRL's completions"
                " files."
            )
        numeric = _numeric_columns(table.schema)
        part_columns = [name for name in numeric if name in part_names]
        if not part_columns:
            # __name__ is the form of a writer's own columns, such as pandas' __index_level_0__.
            part_columns = [name for name in numeric if not name.startswith("__")]
        rollouts: list[Row] = []
        for row in table.to_pylist():
            parts = {name: parse_number(row[name]) for name in part_columns}
            rollouts.append(_rollout(row, parts, step))
        return _to_table(rollouts, "")

    return read_step


def _numeric_columns(schema: pa.Schema) -> list[str]:
    """Return the columns of numbers that may be parts of the reward."""
    no_parts = names_for("not_parts")  # prompt, advantage, reward ...
    names: list[str] = []
    for column in schema:
        is_number = pa.types.is_floating(column.type) or pa.types.is_integer(column.type)
        if is_number and column.name not in no_parts:
            names.append(column.name)
    return names


def _rollout(row: Mapping[str, Any], parts: Mapping[str, float | None], step: int) -> Row:
    """Return one attempt as a row of the schema, but for its group."""
    known_parts: dict[str, float] = {}
    for name, value in parts.items():
        if value is not None and np.isfinite(value):
            known_parts[name] = value
    reward = None
    if "reward" in row:
        # A reward of null stays unknown, as of a failed attempt: it is not the sum of its parts.
        reward = parse_number(row.get("reward"))
    elif known_parts:
        # TRL logs no total with completions.
        reward = sum(known_parts.values())

    prompt = row.get("prompt", row.get("question", ""))
    prompt_text = prompt
    if not isinstance(prompt, str):
        prompt_text = json.dumps(prompt, sort_keys=True, default=str)
    completions = (row.get(key) for key in names_for("completions"))
    completion = next((text for text in completions if text is not None), "")
    advantage = parse_number(row.get("advantage"))
    return {
        "step": step,
        "sequence": 0,
        "task": hashlib.sha256(prompt_text.encode()).hexdigest()[:TASK_ID_CHARACTERS],
        "answer": str(row["answer"]) if row.get("answer") is not None else None,
        "messages": [*_to_messages(prompt, "user"), *_to_messages(completion, "assistant")],
        "reward": reward,
        "parts": [{"name": name, "value": value} for name, value in known_parts.items()],
        "ended": "length" if row.get("is_truncated") is True else None,
        "error": str(row["error"]) if row.get("error") else None,
        "advantages": None if advantage is None else [advantage],
    }


def _to_messages(content: Any, default_role: str) -> list[dict[str, str | None]]:
    """Return a text, or a list of texts and messages, as messages of the schema."""
    if not content:
        return []
    items = content if isinstance(content, list) else [str(content)]
    messages: list[dict[str, str | None]] = []
    for item in items:
        message = item if isinstance(item, Mapping) else {"content": str(item)}
        text = message.get("content") or ""
        if not isinstance(text, str):
            text = json.dumps(text, default=str)
        calls = message.get("tool_calls")
        messages.append(
            {
                "role": str(message.get("role", default_role)),
                "content": text,
                "calls": json.dumps(calls, default=str) if calls else None,
            }
        )
    return messages


def _to_table(rows: Iterable[Row], run: str) -> pa.Table:
    """Return rows as a table, each with its group and its index in the group."""
    sizes: dict[tuple[int, str], int] = defaultdict(int)
    grouped: list[Row] = []
    for row in rows:
        step = row["step"]
        task = row["task"]
        index = sizes[step, task]
        grouped.append(row | {"run": run, "group": f"{step}-{task}", "index": index})
        sizes[step, task] += 1
    return pa.Table.from_pylist(grouped, schema=ROLLOUT_SCHEMA)


def _step_metrics(table: pa.Table) -> dict[str, float]:
    """Compute the metrics of a step's rewards and groups."""
    rewards = [np.nan if reward is None else reward for reward in table["reward"].to_pylist()]
    rewards_by_group: dict[str, list[float]] = defaultdict(list)
    for group, reward in zip(table["group"].to_pylist(), rewards, strict=True):
        if np.isfinite(reward):
            rewards_by_group[group].append(reward)
    metrics = {
        "reward/mean": float(np.nanmean(rewards)) if rewards_by_group else np.nan,
        "sampling/rollouts/count": float(table.num_rows),
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
    return metrics
