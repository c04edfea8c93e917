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

from uptrend.bridge.importers.readers import Log, Row, parse_number
from uptrend.bridge.importers.runs import step_column
from uptrend.records.dialects import names_for
from uptrend.records.errors import RecordError
from uptrend.records.files import read_table
from uptrend.records.schema import ROLLOUT_SCHEMA
from uptrend.records.view import RunView

_GROUPED = (
    "Rollouts are grouped by the text of their prompt within a step: the log has no group ids."
)
_SUMMED = (
    "A rollout's reward is the sum of its parts: TRL logs neither the total nor the weights with"
    " completions."
)


def is_rollouts(rows: list[Row]) -> bool:
    """Return True where rows are attempts (a text and its reward) and not points of a curve."""
    # Half of the rows may lack one of the two: errors have no reward, and tool calls no text.
    few = rows[:50]
    texts = sum(
        any(isinstance(row.get(key), str | list) for key in names_for("completions")) for row in few
    )
    rewards = sum(parse_number(row.get("reward")) is not None for row in few)
    return texts * 2 > len(few) and rewards * 2 > len(few)


def view_of_rollouts(log: Log, source: str) -> RunView:
    """Return a log of attempts as a curve where they have steps, else as one evaluation."""
    column = step_column(log.rows)
    by_step: dict[int, list[Row]] = defaultdict(list)
    for row in log.rows:
        step = parse_number(row.get(column)) if column else 0
        if step is not None:
            scores = row.get("metrics")
            parts = (
                {key: parse_number(value) for key, value in scores.items()}
                if isinstance(scores, dict)
                else {}
            )
            by_step[int(step)].append(_rollout(row, parts, int(step)))
    tables = {step: _to_table(rows, log.name) for step, rows in sorted(by_step.items())}
    notes = (*log.notes, _GROUPED)
    if column is not None:
        return _curve(source, "unknown", log.name, list(tables), tables.__getitem__, notes)
    table = tables[0]
    result = {
        "step": 0,
        "reward": _step_metrics(table)["reward/mean"],
        "tasks": len(set(table["task"].to_pylist())),
    }
    note = "The rows are attempts without a step: they are read as one evaluation, not as a curve."
    trainer = "verifiers" if "example_id" in log.rows[0] else "unknown"
    view = _curve(source, trainer, log.name, [], lambda _: table, (*notes, note))
    return replace(view, evals=(result,), rollout_steps=(0,), read_heldout=lambda _: table)


def completion_files(folder: Path) -> dict[int, Path]:
    """Return TRL's files of completions by step, in order."""
    paths = (
        *folder.glob("completions/completions_*.parquet"),
        *folder.glob("completions_*.parquet"),
    )
    matches = ((re.search(r"_(\d+)\.parquet$", path.name), path) for path in paths)
    return dict(sorted((int(match[1]), path) for match, path in matches if match))


def with_completions(view: RunView, files: Mapping[int, Path]) -> RunView:
    """Add completions to the view of a trainer's state, whose metrics name the parts of the
    reward.
    """
    read = _completion_reader(files, frozenset(view.parts()))
    return replace(
        view, rollout_steps=tuple(files), read_rollouts=read, notes=(*view.notes, _GROUPED, _SUMMED)
    )


def view_of_completions(paths: Sequence[Path]) -> RunView:
    """Return completions without a trainer's state as a curve."""
    steps = []
    for path in paths:
        try:
            column = read_table(path, ["step"])["step"]
            steps.append(int(column[0].as_py()) if len(column) else 0)
        except (RecordError, KeyError, TypeError):
            match = re.search(r"(\d+)\.parquet$", path.name)
            steps.append(int(match[1]) if match else 0)
    files = dict(sorted(zip(steps, paths, strict=True)))
    source = str(paths[0] if len(paths) == 1 else paths[0].parent)
    notes = ("Only completions were found: the curve is made from them.", _GROUPED, _SUMMED)
    return _curve(source, "trl", "", list(files), _completion_reader(files, frozenset()), notes)


def _curve(
    source: str,
    trainer: str,
    name: str,
    steps: list[int],
    read: Callable[[int], pa.Table],
    notes: tuple[str, ...],
) -> RunView:
    lines = [_step_metrics(read(step)) for step in steps]
    keys = dict.fromkeys(key for line in lines for key in line)
    return RunView(
        source=source,
        trainer=trainer,
        name=name,
        steps=np.array(steps, dtype=np.int64),
        metrics={key: np.array([line.get(key, np.nan) for line in lines]) for key in keys},
        rollout_steps=tuple(steps),
        read_rollouts=read,
        notes=notes,
    )


def _completion_reader(
    files: Mapping[int, Path], parts: frozenset[str]
) -> Callable[[int], pa.Table]:
    """Return a function that reads a step's rollouts; their parts are the columns named, else every
    other number.
    """

    @lru_cache(maxsize=8)
    def read(step: int) -> pa.Table:
        if step not in files:
            raise RecordError(f"There are no completions of step {step}.")
        path = files[step]
        table = read_table(path)
        if not {"prompt", "completion"} <= set(table.column_names):
            raise RecordError(
                f"{path} has no columns prompt and completion: it is not one of TRL's completions"
                " files."
            )
        kinds = {
            column.name: column.type
            for column in table.schema
            if column.name not in names_for("not_parts")
        }
        numbers = [
            name
            for name, kind in kinds.items()
            if pa.types.is_floating(kind) or pa.types.is_integer(kind)
        ]
        named = [name for name in numbers if name in parts] or [
            name for name in numbers if not name.startswith("__")
        ]
        rows = [
            _rollout(row, {name: parse_number(row[name]) for name in named}, step)
            for row in table.to_pylist()
        ]
        return _to_table(rows, "")

    return read


def _rollout(row: Mapping[str, Any], parts: Mapping[str, float | None], step: int) -> Row:
    """Return one attempt as a row of the schema, but for its group."""
    prompt = row.get("prompt", row.get("question", ""))
    said = next((row[key] for key in names_for("completions") if row.get(key) is not None), "")
    known = {
        name: value for name, value in parts.items() if value is not None and np.isfinite(value)
    }
    # TRL logs no total with completions.
    reward = (
        parse_number(row.get("reward"))
        if "reward" in row
        else sum(known.values())
        if known
        else None
    )
    advantage = parse_number(row.get("advantage"))
    text = prompt if isinstance(prompt, str) else json.dumps(prompt, sort_keys=True, default=str)
    return {
        "step": step,
        "sequence": 0,
        "task": hashlib.sha256(text.encode()).hexdigest()[:12],
        "answer": str(row["answer"]) if row.get("answer") is not None else None,
        "messages": [*_messages(prompt, "user"), *_messages(said, "assistant")],
        "reward": reward,
        "parts": [{"name": name, "value": value} for name, value in known.items()],
        "ended": "length" if row.get("is_truncated") is True else None,
        "error": str(row["error"]) if row.get("error") else None,
        "advantages": None if advantage is None else [advantage],
    }


def _messages(said: Any, role: str) -> list[dict[str, str | None]]:
    found: list[dict[str, str | None]] = []
    for part in said if isinstance(said, list) else [str(said)] if said else []:
        message = part if isinstance(part, Mapping) else {"content": str(part)}
        content = message.get("content") or ""
        calls = message.get("tool_calls")
        found.append(
            {
                "role": str(message.get("role", role)),
                "content": (
                    content if isinstance(content, str) else json.dumps(content, default=str)
                ),
                "calls": json.dumps(calls, default=str) if calls else None,
            }
        )
    return found


def _to_table(rows: Iterable[Row], run: str) -> pa.Table:
    """Return rows with their groups and their places in them, as a table."""
    counts: dict[tuple[int, str], int] = defaultdict(int)
    filled = []
    for row in rows:
        key = (row["step"], row["task"])
        filled.append(
            row | {"run": run, "group": f"{row['step']}-{row['task']}", "index": counts[key]}
        )
        counts[key] += 1
    return pa.Table.from_pylist(filled, schema=ROLLOUT_SCHEMA)


def _step_metrics(table: pa.Table) -> dict[str, float]:
    """Compute the metrics of a step's rewards and groups."""
    rewards = [np.nan if reward is None else reward for reward in table["reward"].to_pylist()]
    groups: dict[str, list[float]] = defaultdict(list)
    for group, reward in zip(table["group"].to_pylist(), rewards, strict=True):
        if np.isfinite(reward):
            groups[group].append(reward)
    mean = float(np.nanmean(rewards)) if groups else np.nan
    found = {"reward/mean": mean, "sampling/rollouts/count": float(table.num_rows)}
    many = [values for values in groups.values() if len(values) > 1]
    if many:
        found["reward/group_std/mean"] = float(np.mean([np.std(values, ddof=1) for values in many]))
        found["advantage/dead/share"] = float(
            np.mean([max(values) - min(values) < 1e-9 for values in many])
        )
    return found
