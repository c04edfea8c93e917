"""Recognition of formats: `read_views` finds the reader of a file or folder by its content.

A new file format is one function from a `LogFile` to its logs, and one entry in `READERS`. It returns None for a file
of another format, and an empty list for a file of its format that holds no rows.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from uptrend.bridge.importers import rollouts
from uptrend.bridge.importers.console import read_console
from uptrend.bridge.importers.readers import Log, LogFile, number, open_log
from uptrend.bridge.importers.settings import settings_beside, settings_in
from uptrend.bridge.importers.tables import read_csv, read_json
from uptrend.bridge.importers.trackers import read_events, read_wandb
from uptrend.bridge.importers.views import view_of_settings, views_of_log
from uptrend.records.dialects import recognize
from uptrend.records.errors import RecordError
from uptrend.records.memory import read_json as read_json_file
from uptrend.records.run import Run
from uptrend.records.view import RunView, view_of

Found = TypeVar("Found")
Reader = Callable[[LogFile], list[Log] | None]
# Readers of files, in the order in which they are tried: the console takes any text that has metrics.
READERS: tuple[Reader, ...] = (read_wandb, read_events, read_json, read_csv, read_console)

_SUFFIXES = (".jsonl", ".json", ".csv", ".tsv", ".log", ".txt", ".out", ".gz", ".ndjson")
# Files of a model or of Python packages, which are no logs.
_OTHERS = re.compile(
    r"(?:tokenizer|special_tokens|vocab|merges|added_tokens|generation_config|preprocessor|adapter_|config\.json|"
    r"requirements|README|LICENSE|model\.safetensors)"
)


def read_views(path: Path) -> list[RunView]:
    """Return every run that a file or folder holds, whoever wrote it; RecordError where nothing can be read."""
    if not path.exists():
        raise RecordError(f"{path} does not exist.")
    if not path.is_dir():
        return _read_file(path)
    # The first that finds anything wins: a Trainer's output holds event files too, with fewer settings.
    for read in (_run_directories, _trainer_output, _wandb_runs, _event_files, _loose_logs):
        if views := read(path):
            return views
    raise RecordError(
        f"{path} holds nothing that is known here: expected is run.json, trainer_state.json, event files, "
        "a .wandb file, completions, or a log as JSON, CSV or text."
    )


def is_log_name(path: Path) -> bool:
    """Return True where a file may be a log by its name: its content decides."""
    return path.suffix in _SUFFIXES and not _OTHERS.match(path.name)


def _read_file(path: Path) -> list[RunView]:
    with _damage_named(path):
        return _read_known(path)


@contextmanager
def _damage_named(path: Path) -> Iterator[None]:
    """Raise RecordError for whatever a damaged file leads to: it holds anything, anywhere, and nobody foresees it."""
    try:
        yield
    except (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError) as error:
        raise RecordError(f"{path} is damaged and could not be read: {type(error).__name__}: {error}") from error


def _read_each(paths: Iterable[Path], read: Callable[[Path], list[Found]]) -> tuple[list[Found], tuple[str, ...]]:
    """Read what several files hold, and return notes on those that can't be read; RecordError where none can."""
    found, broken = list[Found](), list[str]()
    for path in paths:
        try:
            with _damage_named(path):
                found += read(path)
        except RecordError as error:
            broken.append(str(error))
    if broken and not found:
        raise RecordError(" ".join(broken))
    return found, tuple(f"Left out: {why}" for why in broken)


def _read_known(path: Path) -> list[RunView]:
    file = open_log(path)
    if file.head.startswith(b"PAR1"):
        return [rollouts.view_of_completions([path])]
    # A config or summary would otherwise be taken for a log of one row.
    if alone := settings_in(path):
        return [view_of_settings(alone, str(path))]
    logs = _read_logs(file)
    if len(logs) == 1 and rollouts.is_rollouts(logs[0].rows):
        return [rollouts.view_of_rollouts(logs[0], str(path))]
    settings, name = settings_beside(path)
    if settings:
        note = f"Settings were taken from {name} beside it."
        logs = [replace(log, facts={**settings, **log.facts}, notes=(*log.notes, note)) for log in logs]
    views = [view for log in logs for view in views_of_log(log, str(path))]
    # A single row without a known metric is a stray object, not a run.
    views = [view for view in views if view.metrics or view.evals or len(view.steps) > 1]
    if not views:
        raise RecordError(f"{path} holds no rows of metrics: neither a point of training nor an evaluation.")
    return views


def _read_logs(file: LogFile) -> list[Log]:
    """Return the logs of the first reader that knows the file; RecordError where none does."""
    logs = next((found for read in READERS if (found := read(file)) is not None), None)
    if logs:
        return logs
    if file.first in ("[", "{"):
        raise RecordError(
            f"{file.path} is JSON, but holds no rows of metrics: expected is a list of objects, one per logged point."
        )
    raise RecordError(
        f"{file.path} holds no metrics that could be recognized: expected is JSON, CSV, dictionaries that a trainer "
        "printed, or lines with a step and named numbers, such as `step 7, reward: 0.5, kl: 0.01`."
    )


def _run_directories(folder: Path) -> list[RunView]:
    """Read our own run directory, or all in a folder such as `runs`; one that can't be read is named in the notes."""
    if (folder / "run.json").exists():
        return [view_of(Run(folder))]
    children = sorted(file.parent for file in folder.glob("*/run.json"))
    views, broken = _read_each(children, lambda child: [view_of(Run(child))])
    return [replace(view, notes=(*view.notes, *broken)) for view in views]


def _trainer_output(folder: Path) -> list[RunView]:
    """Read the newest state of a Trainer's output, with the completions that were kept beside it."""
    files = rollouts.completion_files(folder)
    states = [folder / "trainer_state.json", *folder.glob("checkpoint-*/trainer_state.json")]
    states = sorted((path for path in states if path.exists()), key=lambda path: _from_json(path, "global_step", -1))
    if not states:
        return [rollouts.view_of_completions(list(files.values()))] if files else []
    adapter = states[-1].parent / "adapter_config.json"
    lora = {"r": _from_json(adapter, "r", 0), "alpha": _from_json(adapter, "lora_alpha", 0)}
    more = {"model": {"lora": lora}} if all(lora.values()) else {}
    # A damaged state hides neither the one before it nor the event files.
    events = list[RunView]()
    with suppress(RecordError):
        events = _event_files(folder)
    read, broken = list[RunView](), tuple[str, ...]()
    while states and not read:
        try:
            read = _read_file(states[-1])
        except RecordError as error:
            broken = (*broken, f"Left out: {error}")
            states.pop()
    if not read and not events:
        raise RecordError(" ".join(broken))
    views = [
        replace(view, source=str(folder), config=_filled(view.config, more), notes=(*view.notes, *broken))
        for view in read or events
    ]
    # A run that was killed between checkpoints logged more to its event files.
    if events and len(events[-1].steps) > len(views[-1].steps):
        note = "The event files go beyond the last checkpoint's state and were read in its place."
        config = _filled(events[-1].config, views[-1].config)
        views[-1] = replace(events[-1], source=str(folder), config=config, notes=(*events[-1].notes, note))
    if files:
        views[-1] = rollouts.with_completions(views[-1], files)
    return views


def _from_json(path: Path, key: str, default: int) -> int:
    try:
        return int(read_json_file(path)[key])
    except (OSError, RecordError, ValueError, KeyError, TypeError, RecursionError):
        return default


def _filled(config: Mapping[str, Any], more: Mapping[str, Any]) -> dict[str, Any]:
    return {key: {**more.get(key, {}), **config.get(key, {})} for key in sorted({*config, *more})}


def _wandb_runs(folder: Path) -> list[RunView]:
    places = ("*.wandb", "*run-*/*.wandb", "wandb/*run-*/*.wandb")
    found = {path.resolve(): path for place in places for path in sorted(folder.glob(place))}
    views, broken = _read_each(found.values(), _read_file)
    return [replace(view, notes=(*view.notes, *broken)) for view in views]


def _event_files(folder: Path) -> list[RunView]:
    """Read the event files of each folder as one log, in the order in which they were begun."""
    files = [path for path in sorted(folder.rglob("*tfevents*")) if path.is_file() and path.stat().st_size]
    found, broken = _read_each(files, lambda path: [(path.parent, log) for log in _read_logs(open_log(path))])
    by_folder: dict[Path, list[Log]] = {}
    for place, log in found:
        by_folder.setdefault(place, []).append(log)
    views: list[RunView] = []
    for place, logs in sorted(by_folder.items()):
        logs = sorted((log for log in logs if log.rows), key=lambda log: number(log.rows[0].get("time")) or 0.0)
        views += _as_one(logs, place)
    views = [replace(view, notes=(*view.notes, *broken)) for view in views]
    # A folder without a point counts only where no other has one.
    return [view for view in views if len(view.steps)] or views


def _as_one(logs: list[Log], source: Path) -> list[RunView]:
    notes = tuple(dict.fromkeys(note for log in logs for note in log.notes))
    return views_of_log(Log([row for log in logs for row in log.rows], notes=notes), str(source)) if logs else []


def _loose_logs(folder: Path) -> list[RunView]:
    """Read every log that lies in the folder or just below; prime-rl's trainer and orchestrator write one each."""
    views: list[RunView] = []
    parts: list[Log] = []
    for path in (*sorted(folder.glob("*")), *sorted(folder.glob("*/*"))):
        if not path.is_file() or not is_log_name(path) or settings_in(path):
            continue
        try:
            with _damage_named(path):
                logs = _read_logs(open_log(path))
            if len(logs) == 1 and recognize([key for row in logs[0].rows[:20] for key in row]) == "prime-rl":
                parts += logs
            else:
                views += _read_file(path)
        except RecordError:
            continue
    # A second copy of a run, as CSV beside JSON, is left out: the one with fewer metrics.
    kept: dict[tuple[Any, ...], RunView] = {}
    for view in (*views, *_as_one(parts, folder)):
        _, rewards = view.curve("reward/mean")
        # Six digits: CSV and JSON may print the same float differently.
        key = (len(view.steps), *(round(float(value), 6) for value in rewards)) if len(rewards) else (id(view),)
        if key not in kept or len(kept[key].metrics) < len(view.metrics):
            kept[key] = view
    return list(kept.values())
