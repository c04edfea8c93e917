"""What `uptrend eval --tasks` names, and the limits under which a plain model plays it."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import typer

from uptrend.config import load_config
from uptrend.config.load import apply_override
from uptrend.records import Run

LIMITS = {"musique": {"max_tokens": 128, "max_turns": 8, "context": 4096}}
"""[sampling] for a plain model, by taskset, where its defaults (one turn of 8 tokens) would be useless."""


def prepare(target: str, tasks: str | None, overrides: Iterable[str]) -> tuple[str | None, list[str]]:
    """The tasks and overrides to evaluate with: MuSiQue's files named as such, and limits that suit the taskset."""
    given = list(overrides)
    is_run = (Path(target) / "run.json").exists()
    if tasks is not None and tasks.endswith(".jsonl") and (rows := count_musique(Path(tasks))):
        given = [*source_overrides(file=tasks, tasks=rows), *given]
        tasks = musique_of(target)
    return tasks, given if is_run else [*_limits(_as_table(tasks, given)), *given]


def musique_of(target: str) -> str | None:
    """The taskset to name for questions of MuSiQue; None leaves a run of that kind its own retriever and reward."""
    is_run = (Path(target) / "run.json").exists()
    return None if is_run and Run(target).config["eval"]["name"] == "musique" else "musique"


def source_overrides(*, file: str = "", datasets: str = "", tasks: int) -> list[str]:
    """Overrides that make [eval] play every question of a file or of hub datasets; of the atlas where neither is."""
    source = {"file": file, "datasets": datasets, "split": "heldout", "tasks": tasks}
    return [f"eval.{key}={json.dumps(value, ensure_ascii=False)}" for key, value in source.items()]


def _limits(table: dict[str, Any]) -> list[str]:
    """Limits that nobody set, as overrides, and said so."""
    name, own = table["eval"].get("name", ""), table.get("sampling", {})
    missing = {f"sampling.{key}": value for key, value in LIMITS.get(name, {}).items() if key not in own}
    if missing:
        said = ", ".join(f"{key} = {value}" for key, value in missing.items())
        typer.echo(f"{name} is played with {said}; --set changes them.", err=True)
    return [f"{key}={value}" for key, value in missing.items()]


def _as_table(tasks: str | None, overrides: list[str]) -> dict[str, Any]:
    """A recipe of what was asked for, to look into."""
    name = load_config(tasks).eval.name if tasks is not None and tasks.endswith(".toml") else tasks
    table: dict[str, Any] = {"eval": {} if name is None else {"name": name}}
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
