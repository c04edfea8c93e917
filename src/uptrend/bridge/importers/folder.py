"""A folder that another trainer or tracker wrote: what is in it, and how its files belong together."""

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from uptrend.bridge.importers.assemble import views_of_log
from uptrend.bridge.importers.beside import settings_in
from uptrend.bridge.importers.completions import SUMMED, completion_files, read_completions, reader
from uptrend.bridge.importers.content import read_bytes
from uptrend.bridge.importers.files import read_file, read_logs
from uptrend.bridge.importers.log import Log
from uptrend.bridge.importers.rollouts import GROUPED
from uptrend.records.dialects import recognize
from uptrend.records.errors import RecordError
from uptrend.records.view import RunView

_LOGS = (".jsonl", ".json", ".csv", ".tsv", ".log", ".txt", ".out", ".gz", ".ndjson")
# Files of a model or of Python packages, which are no logs.
_OTHERS = re.compile(
    r"(?:tokenizer|special_tokens|vocab|merges|added_tokens|generation_config|preprocessor|adapter_|config\.json|"
    r"requirements|README|LICENSE|model\.safetensors)"
)


def read_folder(folder: Path) -> list[RunView]:
    """The runs of a folder: a Trainer's output, W&B's runs, event files, or logs lying in it."""
    for read in (_trainer_output, _wandb_runs, _event_files, _loose_logs):
        views = read(folder)
        if views:
            return views
    raise RecordError(
        f"{folder} holds nothing that is known here: neither run.json nor trainer_state.json, event files, "
        "a .wandb file, completions, or a log as JSON, CSV or text."
    )


def _trainer_output(folder: Path) -> list[RunView]:
    """A Trainer's output: the newest state, with the completions that were kept beside it."""
    files = completion_files(folder)
    states = [folder / "trainer_state.json", *folder.glob("checkpoint-*/trainer_state.json")]
    states = sorted((path for path in states if path.exists()), key=_global_step)
    if not states:
        return [read_completions(list(files.values()))] if files else []
    views = read_file(states[-1])
    adapter = _adapter(states[-1].parent)
    views = [replace(view, source=str(folder), config=_joined(view.config, adapter)) for view in views]
    views = _or_longer(views, _event_files(folder))
    if files and views:
        views[-1] = _with_completions(views[-1], files)
    return views


def _or_longer(views: list[RunView], events: list[RunView]) -> list[RunView]:
    """The event files' last run where it went beyond the last checkpoint, with the checkpoint's settings."""
    if not views or not events or len(events[-1].steps) <= len(views[-1].steps):
        return views
    note = "The event files go beyond the last checkpoint's state and were read in its place."
    config = _joined(events[-1].config, dict(views[-1].config))
    source, notes = views[-1].source, (*events[-1].notes, note)
    return [*views[:-1], replace(events[-1], source=source, config=config, notes=notes)]


def _global_step(path: Path) -> int:
    try:
        state = json.loads(path.read_bytes())
        return int(state["global_step"])
    except (ValueError, KeyError, TypeError):
        return -1


def _adapter(folder: Path) -> dict[str, Any]:
    try:
        found = json.loads((folder / "adapter_config.json").read_bytes())
        return {"model": {"lora": {"r": found["r"], "alpha": found["lora_alpha"]}}}
    except (OSError, ValueError, KeyError, TypeError):
        return {}


def _joined(config: Any, more: dict[str, Any]) -> dict[str, Any]:
    tables = {key: {**more.get(key, {}), **config.get(key, {})} for key in {*config, *more}}
    return dict(sorted(tables.items()))


def _with_completions(view: RunView, files: dict[int, Path]) -> RunView:
    notes = (*view.notes, GROUPED, SUMMED)
    read = reader(files, frozenset(view.parts()))
    return replace(view, rollout_steps=tuple(files), read_rollouts=read, notes=notes)


def _wandb_runs(folder: Path) -> list[RunView]:
    places = ("*.wandb", "*run-*/*.wandb", "wandb/*run-*/*.wandb")
    found = {path.resolve(): path for place in places for path in sorted(folder.glob(place))}
    return [view for path in found.values() for view in read_file(path)]


def _event_files(folder: Path) -> list[RunView]:
    """Event files of one folder are one log, in the order in which they were begun; each folder is its own."""
    by_folder: dict[Path, list[Path]] = {}
    for path in sorted(folder.rglob("*tfevents*")):
        if path.is_file() and path.stat().st_size:
            by_folder.setdefault(path.parent, []).append(path)
    views: list[RunView] = []
    for place, paths in sorted(by_folder.items()):
        logs = [log for path in paths for log in read_logs(path, read_bytes(path))]
        rows = [row for log in sorted(logs, key=_began) for row in log.rows]
        notes = list(dict.fromkeys(note for log in logs for note in log.notes))
        if rows:
            views += views_of_log(Log(rows, notes=notes), str(place))
    return [view for view in views if len(view.steps)] or views


def _began(log: Log) -> float:
    return float(log.rows[0]["time"]) if log.rows else 0.0


def _loose_logs(folder: Path) -> list[RunView]:
    """Every log that lies in the folder or just below; prime-rl's trainer and orchestrator write one each."""
    views: list[RunView] = []
    joint: list[Log] = []
    for path in _candidates(folder):
        try:
            data = read_bytes(path)
            logs = read_logs(path, data)
        except RecordError:
            continue
        if (
            len(logs) == 1
            and logs[0].rows
            and recognize([key for row in logs[0].rows[:20] for key in row]) == "prime-rl"
        ):
            joint += logs
            continue
        try:
            views += read_file(path)
        except RecordError:
            continue
    if joint:
        rows = [row for log in joint for row in log.rows]
        views += views_of_log(Log(rows, notes=[note for log in joint for note in log.notes]), str(folder))
    return _distinct(views)


def _candidates(folder: Path) -> Iterator[Path]:
    for pattern in ("*", "*/*"):
        for path in sorted(folder.glob(pattern)):
            if path.is_file() and path.suffix in _LOGS and not _OTHERS.match(path.name) and not settings_in(path):
                yield path


def _distinct(views: list[RunView]) -> list[RunView]:
    """Without a second copy of a run, as CSV beside JSON; a view with fewer metrics goes."""
    kept: dict[tuple[Any, ...], RunView] = {}
    for view in views:
        _, rewards = view.curve("reward/mean")
        key = (len(view.steps), *(round(float(value), 6) for value in rewards)) if len(rewards) else (id(view),)
        if key not in kept or len(kept[key].metrics) < len(view.metrics):
            kept[key] = view
    return list(kept.values())
