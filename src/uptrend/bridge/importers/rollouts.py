"""Rollouts that another trainer kept as text, with the columns of `records.schema`; what it did not keep is null."""

import hashlib
import json
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from uptrend.bridge.importers.log import Log, Row, is_finite, number
from uptrend.bridge.importers.steps import step_column
from uptrend.records.schema import ROLLOUTS
from uptrend.records.view import RunView

GROUPED = "Rollouts are grouped by the text of their prompt within a step: the log has no group ids."
_SAID = ("completion", "response", "output", "completions")


def is_rollouts(rows: list[Row]) -> bool:
    """Whether rows are attempts (a text and its reward) and not points of a curve."""
    few = rows[:50]
    texts = sum(any(isinstance(row.get(key), str | list) for key in _SAID) for row in few)
    return bool(few) and texts * 2 > len(few) and sum(is_finite(row.get("reward")) for row in few) * 2 > len(few)


def rollout_row(row: Mapping[str, Any], parts: Mapping[str, float | None], step: int) -> Row:
    """One attempt as a row of the schema, but for its group."""
    prompt = row.get("prompt", row.get("question", ""))
    said = next((row[key] for key in _SAID if row.get(key) is not None), "")
    known = {name: value for name, value in parts.items() if value is not None and np.isfinite(value)}
    reward = number(row.get("reward")) if "reward" in row else sum(known.values()) if known else None
    advantage = number(row.get("advantage"))
    return {
        "step": step,
        "sequence": 0,
        "task": _digest(prompt),
        "answer": str(row["answer"]) if row.get("answer") is not None else None,
        "messages": [*_messages(prompt, "user"), *_messages(said, "assistant")],
        "reward": reward,
        "parts": [{"name": name, "value": value} for name, value in known.items()],
        "ended": "length" if row.get("is_truncated") is True else None,
        "error": str(row["error"]) if row.get("error") else None,
        "advantages": None if advantage is None else [advantage],
    }


def to_table(rows: Iterable[Row], run: str) -> pa.Table:
    """Rows with their groups and their places in them, as a table."""
    counts: dict[tuple[int, str], int] = defaultdict(int)
    filled = []
    for row in rows:
        key = (row["step"], row["task"])
        filled.append(row | {"run": run, "group": f"{row['step']}-{row['task']}", "index": counts[key]})
        counts[key] += 1
    return pa.Table.from_pylist(filled, schema=ROLLOUTS)


def step_metrics(table: pa.Table) -> dict[str, float]:
    """What the rollouts of a step say of its reward and its groups."""
    rewards = np.array([np.nan if r is None else r for r in table["reward"].to_pylist()])
    groups: dict[str, list[float]] = defaultdict(list)
    for group, reward in zip(table["group"].to_pylist(), rewards, strict=True):
        if np.isfinite(reward):
            groups[group].append(float(reward))
    found = {"reward/mean": _mean(rewards), "sampling/rollouts/count": float(len(rewards))}
    many = [values for values in groups.values() if len(values) > 1]
    if many:
        found["reward/group_std/mean"] = float(np.mean([np.std(values, ddof=1) for values in many]))
        found["advantage/dead/share"] = float(np.mean([max(values) - min(values) < 1e-9 for values in many]))
    return found


def view_of_rollouts(log: Log, source: str) -> RunView:
    """A log of attempts: a curve where they have steps, else one evaluation, as verifiers' `results.jsonl` is."""
    column = step_column(log.rows)
    by_step: dict[int, list[Row]] = defaultdict(list)
    for row in log.rows:
        step = number(row.get(column)) if column else 0
        if step is not None:
            by_step[int(step)].append(rollout_row(row, _parts(row), int(step)))
    tables = {step: to_table(rows, log.name) for step, rows in sorted(by_step.items())}
    notes = (*log.notes, GROUPED)
    if column is None:
        return _evaluation_view(log, source, tables[0], notes)
    lines = [step_metrics(table) for table in tables.values()]
    names = dict.fromkeys(name for line in lines for name in line)
    return RunView(
        source=source, trainer="unknown", name=log.name,
        steps=np.array(list(tables), dtype=np.int64),
        metrics={name: np.array([line.get(name, np.nan) for line in lines]) for name in names},
        rollout_steps=tuple(tables), read_rollouts=tables.__getitem__, notes=notes,
    )  # fmt: skip


def _evaluation_view(log: Log, source: str, table: pa.Table, notes: tuple[str, ...]) -> RunView:
    rewards = np.array([np.nan if r is None else r for r in table["reward"].to_pylist()])
    result = {"step": 0, "reward": _mean(rewards), "tasks": len(set(table["task"].to_pylist()))}
    said = "The rows are attempts without a step: they are read as one evaluation, not as a curve."
    return RunView(
        source=source, trainer="verifiers" if "example_id" in log.rows[0] else "unknown", name=log.name,
        steps=np.zeros(0, dtype=np.int64), metrics={}, evals=(result,), rollout_steps=(0,),
        read_rollouts=lambda _: table, held_out=lambda _: table, notes=(*notes, said),
    )  # fmt: skip


def _parts(row: Row) -> dict[str, float | None]:
    metrics = row.get("metrics")
    return {key: number(value) for key, value in metrics.items()} if isinstance(metrics, dict) else {}


def _mean(values: np.ndarray) -> float:
    return float(np.nanmean(values)) if np.isfinite(values).any() else float("nan")


def _digest(prompt: Any) -> str:
    text = prompt if isinstance(prompt, str) else json.dumps(prompt, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def _messages(said: Any, role: str) -> list[dict[str, str | None]]:
    if isinstance(said, list):
        return [_message(part, role) for part in said]
    return [{"role": role, "content": str(said)}] if said else []


def _message(part: Any, role: str) -> dict[str, str | None]:
    if not isinstance(part, Mapping):
        return {"role": role, "content": str(part)}
    content, calls = part.get("content"), part.get("tool_calls")
    text = content if isinstance(content, str) or content is None else json.dumps(content, default=str)
    said = str(part.get("role", role))
    return {"role": said, "content": text or "", "calls": json.dumps(calls, default=str) if calls else None}
