"""What `uptrend eval --tasks` names, and the limits under which it is played by who was not trained on it."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import typer

from uptrend.config import load_config, to_table
from uptrend.config.load import apply_override
from uptrend.records import Run
from uptrend.tasks.registry import find


def prepare(target: str, tasks: str | None, overrides: Iterable[str]) -> tuple[str | None, list[str]]:
    """The tasks and overrides to evaluate with: MuSiQue's files named as such, and limits that suit the taskset."""
    given = list(overrides)
    if tasks is not None and tasks.endswith(".jsonl") and (rows := count_musique(Path(tasks))):
        given = [*source_overrides(file=tasks, tasks=rows), *given]
        tasks = musique_of(target)
    return tasks, [*_limits(target, _as_table(tasks, given)), *given]


def eval_section(tasks: str) -> dict[str, Any]:
    """`[eval]` for what --tasks names."""
    if tasks.endswith(".toml"):
        return dict(to_table(load_config(tasks))["eval"])
    if tasks.endswith(".jsonl"):
        return {"name": "jsonl", "file": tasks, "split": False, "tasks": 1_000_000}
    return {"name": tasks}


def musique_of(target: str) -> str | None:
    """The taskset to name for questions of MuSiQue; None leaves a run of that kind its own retriever and reward."""
    own = _run_config(target)
    return None if own is not None and own["eval"]["name"] == "musique" else "musique"


def source_overrides(*, file: str = "", datasets: str = "", tasks: int) -> list[str]:
    """Overrides that make [eval] play every question of a file or of hub datasets; of the atlas where neither is."""
    source = {"file": file, "datasets": datasets, "split": "heldout", "tasks": tasks}
    return [f"eval.{key}={json.dumps(value, ensure_ascii=False)}" for key, value in source.items()]


def _limits(target: str, table: dict[str, Any]) -> list[str]:
    """The limits that the taskset needs and nobody gave, as overrides, and said so."""
    name, own = table["eval"].get("name"), _run_config(target)
    if name is None or (own is not None and own["eval"]["name"] == name):
        return []
    # What a taskset needs where [sampling]'s defaults (one turn of 8 tokens) would be useless; most need nothing.
    needed: dict[str, int] = getattr(find(name), "LIMITS", {})
    there = {} if own is None else own["sampling"]
    given = table.get("sampling", {})
    missing = {
        f"sampling.{key}": value for key, value in needed.items() if key not in given and there.get(key, 0) < value
    }
    if missing:
        said = ", ".join(f"{key} = {value}" for key, value in missing.items())
        typer.echo(f"{name} is played with {said}; --set changes them.", err=True)
    return [f"{key}={value}" for key, value in missing.items()]


def _run_config(target: str) -> dict[str, Any] | None:
    """The config of a run; None where the target is a model."""
    return Run(target).config if (Path(target) / "run.json").exists() else None


def _as_table(tasks: str | None, overrides: list[str]) -> dict[str, Any]:
    """A recipe of what was asked for, to look into."""
    table: dict[str, Any] = {"eval": {} if tasks is None else eval_section(tasks)}
    for override in overrides:
        apply_override(table, override)
    return table


def count_musique(path: Path) -> int:
    """How many rows a file has, if its first one is MuSiQue's; 0 for another, or one that can't be read."""
    try:
        rows = [line for line in path.read_text(encoding="utf-8").split("\n") if line.strip()]
        first = json.loads(rows[0])
    except (OSError, ValueError, IndexError):  # the taskset that reads it says what is wrong
        return 0
    return len(rows) if isinstance(first, dict) and "paragraphs" in first else 0
