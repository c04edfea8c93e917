"""Recognition of formats: `read_views` finds the reader of a file or folder by its content.

A new file format is one function from a `LogFile` to its logs, and one entry in `READERS`. It
returns None for a file of another format, and an empty list for a file of its format that holds no
rows.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from uptrend.bridge.importers import rollouts
from uptrend.bridge.importers.console import read_console
from uptrend.bridge.importers.readers import Log, LogFile, columns_in, number, open_log
from uptrend.bridge.importers.settings import settings_beside, settings_in
from uptrend.bridge.importers.tables import read_csv, read_json
from uptrend.bridge.importers.trackers import read_events, read_wandb
from uptrend.bridge.importers.views import view_of_settings, views_of_log
from uptrend.config.tables import flatten, nest
from uptrend.records.dialects import is_bookkeeping, recognize
from uptrend.records.directory import SET_ASIDE_FOLDER
from uptrend.records.errors import RecordError, damage_as_error
from uptrend.records.files import read_json as read_json_file
from uptrend.records.run import Run
from uptrend.records.view import Floats, RunView, view_of

Reader = Callable[[LogFile], list[Log] | None]
# Readers of files, in the order in which they are tried: the console takes any text that has
# metrics.
READERS: tuple[Reader, ...] = (read_wandb, read_events, read_json, read_csv, read_console)

_SUFFIXES = (".jsonl", ".json", ".csv", ".tsv", ".log", ".txt", ".out", ".gz", ".ndjson")
# Folders below which no log is looked for, how deep others are looked into, and how many files are
# tried.
SKIPPED = {
    "node_modules",
    "site-packages",
    "__pycache__",
    "venv",
    "model",
    "checkpoints",
    "completions",
    SET_ASIDE_FOLDER,
}
DEPTH = 6
MOST_FILES = 2000
NAMED = 5  # files that a note names
# Points that two logs of one run share at least, and their share of the shorter one's.
FEWEST_SHARED = 3
SHARED = 0.8
ROUNDING = 1e-3  # relative: a Trainer prints four digits
# Folder that W&B made for one run.
_WANDB_RUN = re.compile(r"(^|-)run-")
# Files of a model, of Python packages or of W&B itself, which are no logs.
_OTHERS = re.compile(
    r"(?:tokenizer|special_tokens|vocab|merges|added_tokens|generation_config|preprocessor|adapter_|config\.json|"
    r"debug(?:-internal)?\.log|requirements|README|LICENSE|model\.safetensors)"
)


def read_views(path: Path) -> list[RunView]:
    """Return every run that a file or folder holds, whoever wrote it; RecordError where nothing can
    be read.
    """
    if not path.exists():
        raise RecordError(f"{path} does not exist.")
    return FolderReading().read(path) if path.is_dir() else _read_file(path)


def is_log_name(path: Path) -> bool:
    """Return True where a file may be a log by its name: its content decides."""
    return path.suffix in _SUFFIXES and not _OTHERS.match(path.name)


def _read_file(path: Path) -> list[RunView]:
    with damage_as_error(path):
        return _read_known(path)


def _read_known(path: Path) -> list[RunView]:
    file = open_log(path)
    if file.head.startswith(b"PAR1"):
        return [rollouts.view_of_completions([path])]
    # A config or summary would otherwise be taken for a log of one row.
    if alone := settings_in(path):
        return [view_of_settings(alone, str(path))]
    return _views_of(path, _read_logs(file))


def _views_of(path: Path, logs: list[Log]) -> list[RunView]:
    if len(logs) == 1 and rollouts.is_rollouts(logs[0].rows):
        return [rollouts.view_of_rollouts(logs[0], str(path))]
    settings, name = settings_beside(path)
    if settings:
        note = f"Settings were taken from {name} beside it."
        logs = [
            replace(log, facts={**settings, **log.facts}, notes=(*log.notes, note)) for log in logs
        ]
    views = [view for log in logs for view in views_of_log(log, str(path))]
    # A single row without a known metric is a stray object, not a run.
    views = [view for view in views if view.metrics or view.evals or len(view.steps) > 1]
    if not views:
        raise RecordError(
            f"{path} holds no rows of metrics: neither a point of training nor an evaluation."
        )
    return views


def _read_logs(file: LogFile) -> list[Log]:
    """Return the logs of the first reader that knows the file; RecordError where none does."""
    logs = next((found for read in READERS if (found := read(file)) is not None), None)
    if logs:
        return logs
    if file.first in ("[", "{"):
        raise RecordError(
            f"{file.path} is JSON, but holds no rows of metrics: expected is a list of objects, one"
            " per logged point."
        )
    raise RecordError(
        f"{file.path} holds no metrics that could be recognized: expected is JSON, CSV,"
        " dictionaries that a trainer printed, or lines with a step and named numbers, such as"
        " `step 7, reward: 0.5, kl: 0.01`."
    )


class FolderReading:
    """Reads every log of a folder and of the folders below it, once each, and keeps what was left
    out and why.

    The same rule for whoever reads a folder: run directories, Trainers' outputs, W&B's runs, event
    files and loose logs are all read; of a run that lies there in several formats, the one that
    says most.
    """

    def __init__(self) -> None:
        self._runs: list[tuple[str, RunView]] = []  # format and run
        self._broken: list[str] = []
        self._without_metrics: list[Path] = []
        self._seen: set[Path] = set()
        self._tried = 0

    def read(self, root: Path) -> list[RunView]:
        """Return the runs, with notes on what was left out; RecordError where there is none."""
        for path, _ in self._walk(root, 0):
            self._add(path.suffix, path, _read_file)
        views = _without_copies(self._runs)
        views = [view for view in views if len(view.steps) or view.evals] or views
        if self._tried > MOST_FILES:
            self._broken.append(f"only {MOST_FILES} files were tried: name a folder below {root}.")
        if not views:
            if self._broken:
                raise RecordError(" ".join(self._broken))
            raise RecordError(
                f"{root} holds nothing that is known here: expected is run.json,"
                " trainer_state.json, event files, a .wandb file, completions, or a log as JSON,"
                f" CSV or text. {self._no_metrics(root)}".strip()
            )
        notes = [f"Left out: {why}" for why in self._broken]
        notes += (
            [f"Left out: {text[0].lower()}{text[1:]}"] if (text := self._no_metrics(root)) else []
        )
        return [replace(view, notes=(*view.notes, *notes)) for view in views]

    def _no_metrics(self, root: Path) -> str:
        if not self._without_metrics:
            return ""
        named = [str(path.relative_to(root)) for path in self._without_metrics[:NAMED]]
        rest = len(self._without_metrics) - len(named)
        return f"No metrics in {', '.join(named)}{f' and {rest} more' if rest else ''}."

    def _add(self, format: str, path: Path, read: Callable[[Path], list[RunView]]) -> None:
        """Read a log; one that can't be read hides no other."""
        try:
            with damage_as_error(path):
                self._runs += [(format, view) for view in read(path)]
        except RecordError as error:
            self._broken.append(str(error))

    def _walk(self, folder: Path, depth: int) -> list[tuple[Path, Log]]:
        """Read a folder and what is below it; return logs of prime-rl whose other half may lie
        beside the folder.
        """
        real = folder.resolve()
        if real in self._seen:  # a link to another folder of these
            return []
        self._seen.add(real)
        if (folder / "run.json").exists():
            self._add("run.json", folder, lambda run: [view_of(Run(run))])
            return []
        try:
            entries = sorted(path for path in folder.iterdir() if not path.name.startswith("."))
        except OSError as error:
            self._broken.append(f"{folder} could not be read: {error.strerror or error}.")
            return []
        files = [path for path in entries if path.is_file()]
        folders = [path for path in entries if path.is_dir() and path.name not in SKIPPED]
        if tracked := [path for path in files if path.suffix == ".wandb"]:
            for path in tracked:
                self._add(path.suffix, path, _read_file)
            if _WANDB_RUN.search(folder.name):
                return []  # its console and its settings lie below
        if _is_trainer_output(folder):
            self._add("trainer_state.json", folder, _trainer_output)
            folders = [path for path in folders if not path.name.startswith("checkpoint-")]
        if any("tfevents" in path.name for path in files):
            self._read_events([path for path in files if "tfevents" in path.name])
        parts = [part for path in files if (part := self._read_loose(path)) is not None]
        if depth == DEPTH and folders:
            names = ", ".join(path.name for path in folders[:NAMED])
            self._broken.append(
                f"what is below {folder} ({names}) is too deep: name a folder there."
            )
            folders = []
        for child in folders:
            parts += self._walk(child, depth + 1)
        return self._joined(parts, folder)

    def _read_events(self, files: list[Path]) -> None:
        """Read the event files of one folder as one log, in the order in which they were begun."""
        logs = list[Log]()
        for path in files:
            try:
                if path.stat().st_size:
                    with damage_as_error(path):
                        logs += _read_logs(open_log(path))
            except (RecordError, OSError) as error:
                self._broken.append(str(error))
        logs = sorted(
            (log for log in logs if log.rows),
            key=lambda log: number(log.rows[0].get("time")) or 0.0,
        )
        self._add("tfevents", files[0].parent, partial(_as_one, logs))

    def _read_loose(self, path: Path) -> tuple[Path, Log] | None:
        """Read a file that may be a log; a log of one half of prime-rl is returned, and not read
        yet.
        """
        if not is_log_name(path) or path.name == "trainer_state.json" or settings_in(path):
            return None
        # what a run of ours printed, beside its folder
        if (path.with_suffix("") / "run.json").exists():
            return None
        self._tried += 1
        if self._tried > MOST_FILES:
            return None
        try:
            with damage_as_error(path):
                logs = _read_logs(open_log(path))
                columns = [key for row in logs[0].rows[:20] for key in row]
                if len(logs) == 1 and recognize(columns) == "prime-rl":
                    return path, logs[0]
                self._runs += [(path.suffix, view) for view in _views_of(path, logs)]
        except RecordError:
            self._without_metrics.append(path)
        return None

    def _joined(self, parts: list[tuple[Path, Log]], folder: Path) -> list[tuple[Path, Log]]:
        """Read halves of one run, prime-rl's trainer and orchestrator, as one: they share no
        metric.
        """
        groups = list[tuple[set[str], list[tuple[Path, Log]]]]()
        for part in parts:
            columns = {column for column in columns_in(part[1].rows) if not is_bookkeeping(column)}
            group = next((group for group in groups if not group[0] & columns), None)
            if group is None:
                groups.append((columns, [part]))
            else:
                group[0].update(columns)
                group[1].append(part)
        for _, found in groups:
            if len(found) > 1:
                logs = [log for _, log in found]
                self._add("prime-rl", folder, partial(_as_one, logs))
        return [found[0] for _, found in groups if len(found) == 1]


def _without_copies(runs: list[tuple[str, RunView]]) -> list[RunView]:
    """Return each run once: a run directory before logs, then the log with most points, then with
    most metrics.

    Only logs of different formats can be of one run: two of the same are a run that was made again.
    """
    kept: dict[int, tuple[str, RunView]] = {}
    for place in sorted(
        range(len(runs)), key=lambda place: _richness(runs[place][1]), reverse=True
    ):
        format, view = runs[place]
        same = (
            at
            for at, (its_format, other) in kept.items()
            if its_format != format and _is_copy(view, other)
        )
        if (at := next(same, None)) is None:
            kept[place] = format, view
        else:
            its_format, other = kept[at]
            kept[at] = its_format, _with_copy(other, view)
    return [view for _, (_, view) in sorted(kept.items())]


def _richness(view: RunView) -> tuple[bool, int, int]:
    return (Path(view.source) / "run.json").exists(), len(view.steps), len(view.metrics)


def _with_copy(view: RunView, copy: RunView) -> RunView:
    """Add what only the copy says: settings, and rollouts."""
    notes = (*view.notes, f"Left out: {copy.source} is another log of this run.")
    view = replace(view, config=_filled(view.config, copy.config), notes=notes)
    if copy.rollout_steps and not view.rollout_steps:
        notes = (*view.notes, *(note for note in copy.notes if note not in view.notes))
        view = replace(
            view, rollout_steps=copy.rollout_steps, read_rollouts=copy.read_rollouts, notes=notes
        )
    return view


def _is_copy(view: RunView, other: RunView) -> bool:
    """Tell whether two logs hold the same run: where both have a point, its metrics are the same.

    Points of logs of the same length are compared in order, since a console may have no steps. A
    Trainer that logs every tenth step writes the mean of ten.
    """
    few, many = sorted((view, other), key=lambda each: len(each.steps))
    if len(few.steps) == len(many.steps):
        here = there = np.arange(len(few.steps))
    else:
        _, here, there = np.intersect1d(few.steps, many.steps, return_indices=True)
    if len(here) < max(FEWEST_SHARED, SHARED * len(few.steps)):
        return False
    names = (
        ["reward/mean"]
        if _varies(few, "reward/mean")
        else sorted(few.metrics.keys() & many.metrics.keys())
    )
    if any(name not in many.metrics for name in names) or not any(
        _varies(few, name) for name in names
    ):
        return False
    begin = np.concatenate([[0], there[:-1] + 1])
    for name in names:
        own = few.metrics[name][here]
        theirs = many.metrics[name]
        means = np.array(
            [theirs[first : last + 1].mean() for first, last in zip(begin, there, strict=True)]
        )
        if not _agree(own, theirs[there]) and not _agree(own, means):
            return False
    return True


def _varies(view: RunView, name: str) -> bool:
    _, values = view.curve(name)
    return name != "optimizer/lr" and len(values) > 1 and bool((values != values[0]).any())


def _agree(one: Floats, other: Floats) -> bool:
    both = np.isfinite(one) & np.isfinite(other)
    return bool(both.any()) and bool(np.allclose(one[both], other[both], rtol=ROUNDING, atol=1e-9))


def _is_trainer_output(folder: Path) -> bool:
    states = (folder / "trainer_state.json", *folder.glob("checkpoint-*/trainer_state.json"))
    return any(path.exists() for path in states) or bool(rollouts.completion_files(folder))


def _trainer_output(folder: Path) -> list[RunView]:
    """Read the newest state of a Trainer's output, with the completions that were kept beside
    it.
    """
    files = rollouts.completion_files(folder)
    states = [folder / "trainer_state.json", *folder.glob("checkpoint-*/trainer_state.json")]
    states = sorted(
        (path for path in states if path.exists()),
        key=lambda path: _from_json(path, "global_step", -1),
    )
    if not states:
        return [rollouts.view_of_completions(list(files.values()))] if files else []
    adapter = states[-1].parent / "adapter_config.json"
    lora = {"r": _from_json(adapter, "r", 0), "alpha": _from_json(adapter, "lora_alpha", 0)}
    more = {"model": {"lora": lora}} if all(lora.values()) else {}
    # A damaged state does not hide the one before it.
    read = list[RunView]()
    broken = tuple[str, ...]()
    while states and not read:
        try:
            read = _read_file(states[-1])
        except RecordError as error:
            broken = (*broken, f"Left out: {error}")
            states.pop()
    if not read:
        raise RecordError(" ".join(broken))
    views = [
        replace(
            view,
            source=str(folder),
            config=_filled(view.config, more),
            notes=(*view.notes, *broken),
        )
        for view in read
    ]
    if files:
        views[-1] = rollouts.with_completions(views[-1], files)
    return views


def _from_json(path: Path, key: str, default: int) -> int:
    try:
        return int(read_json_file(path)[key])
    except (OSError, RecordError, ValueError, KeyError, TypeError, RecursionError):
        return default


def _filled(config: Mapping[str, Any], more: Mapping[str, Any]) -> dict[str, Any]:
    return nest({**flatten(more), **flatten(config)})


def _as_one(logs: list[Log], source: Path) -> list[RunView]:
    notes = tuple(dict.fromkeys(note for log in logs for note in log.notes))
    return (
        views_of_log(Log([row for log in logs for row in log.rows], notes=notes), str(source))
        if logs
        else []
    )
