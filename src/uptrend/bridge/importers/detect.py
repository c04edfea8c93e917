"""Recognition of formats: `read_views` finds the reader of a file or folder by its content.

A new file format is one function from a `LogFile` to its logs, and one entry in `FILE_READERS`. It
returns None for a file of another format, and an empty list for a file of its format that holds no
rows.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from uptrend.bridge.importers import saved
from uptrend.bridge.importers.console import read_console
from uptrend.bridge.importers.pasted import read_pasted
from uptrend.bridge.importers.readers import (
    Log,
    LogFile,
    columns_in,
    log_of_bytes,
    open_log,
    parse_number,
)
from uptrend.bridge.importers.rollouts import is_of_format
from uptrend.bridge.importers.settings import settings_beside, settings_in, versions_beside
from uptrend.bridge.importers.tables import read_csv, read_json
from uptrend.bridge.importers.trackers import read_events, read_trackio, read_wandb
from uptrend.bridge.importers.views import view_of_settings, views_of_log
from uptrend.config.tables import flatten, nest
from uptrend.records.dialects import is_bookkeeping, recognize
from uptrend.records.directory import SET_ASIDE_FOLDER
from uptrend.records.errors import RecordError, damage_as_error
from uptrend.records.files import read_batches
from uptrend.records.files import read_json as read_json_file
from uptrend.records.run import Run
from uptrend.records.view import Floats, RunView, view_of

Reader = Callable[[LogFile], list[Log] | None]
# Readers of files, in the order in which they are tried: the console takes any text that has
# metrics.
FILE_READERS: tuple[Reader, ...] = (
    read_wandb,
    read_trackio,
    read_events,
    read_json,
    read_csv,
    read_console,
)
# Name of a text that comes from no file.
PASTED_NAME = "pasted text"

# Bounds of a search below a folder. Chosen by hand: beyond them it is a home or a disk rather than
# a folder of runs.
MAX_FOLDER_DEPTH = 6
MAX_FILES_TRIED = 2000
# Files whose first record is read to see whether they hold rollouts: a run may have one per step.
MAX_FILES_SNIFFED = 20_000
# Hidden folders in which a trainer, ART, keeps its runs.
LOG_FOLDERS_HIDDEN = {".art"}
SKIPPED_FOLDERS = {
    "node_modules",
    "site-packages",
    "__pycache__",
    "venv",
    "model",
    "checkpoints",
    SET_ASIDE_FOLDER,
}
_LOG_SUFFIXES = (".jsonl", ".json", ".csv", ".tsv", ".log", ".txt", ".out", ".gz", ".ndjson", ".db")
# Parquet files of one step each: others are data.
_PARQUET_OF_A_STEP = re.compile(r"(?:completions_|step_|rollouts?_)?\d+\.parquet")
# Files of a model, of Python packages or of W&B itself, which are no logs.
_NO_LOG_NAME = re.compile(
    r"(?:tokenizer|special_tokens|vocab|merges|added_tokens|generation_config|preprocessor|adapter_|config\.json|"
    r"debug(?:-internal)?\.log|requirements|README|LICENSE|model\.safetensors)"
)
# Folder that W&B made for one run.
_WANDB_RUN_FOLDER = re.compile(r"(^|-)run-")
# Names of files or folders in a note.
MAX_NAMES_IN_NOTE = 5
# Rows by whose columns a log is recognized as one half of a run of prime-rl.
N_ROWS_TO_RECOGNIZE = 20


def read_views(path: Path) -> list[RunView]:
    """Return every run of a file or folder, of any trainer; RecordError if nothing can be read."""
    if not path.exists():
        raise RecordError(f"{path} does not exist.")
    return FolderReading().read(path) if path.is_dir() else _read_file(path)


def read_pasted_views(data: bytes) -> list[RunView]:
    """Return every run of a text that was pasted or piped; RecordError if nothing can be read."""
    path = Path(PASTED_NAME)
    with damage_as_error(path):
        return _views_of_logs(path, _read_logs(log_of_bytes(path, data), is_named=True))


def is_log_name(path: Path) -> bool:
    """Return True if a file may be a log by its name: its content decides."""
    if path.suffix == ".parquet":
        return _PARQUET_OF_A_STEP.fullmatch(path.name) is not None
    return path.suffix in _LOG_SUFFIXES and not _NO_LOG_NAME.match(path.name)


def _read_file(path: Path) -> list[RunView]:
    with damage_as_error(path):
        rollouts = saved.recognize_file(path, path.parent)
        if rollouts is not None:
            return [saved.SavedRollouts.of_files([rollouts]).view()]
        if saved.is_pickled_rollouts(path):
            raise RecordError(saved.why_pickled([path]))
        file = open_log(path)
        if file.head.startswith(b"PAR1"):
            next(read_batches(path))  # of a damaged table, its error is the better reason
            raise RecordError(f"{path} is a table without columns of prompts, texts and rewards.")
        # A config or summary would otherwise be taken for a log of one row.
        settings = settings_in(path)
        if settings:
            return [view_of_settings(settings, str(path))]
        return _views_of(path, _read_logs(file, is_named=True))


def _views_of(path: Path, logs: list[Log]) -> list[RunView]:
    """Return the runs of a file's logs, with the settings and versions beside it."""
    settings, settings_name = settings_beside(path)
    versions, versions_name = versions_beside(path)
    if versions:
        note = f"Versions of packages were taken from {versions_name} beside it."
        logs = [replace(log, packages=versions, notes=(*log.notes, note)) for log in logs]
    return _views_of_logs(path, logs, settings, settings_name)


def _views_of_logs(
    path: Path, logs: list[Log], settings: Mapping[str, Any] | None = None, settings_name: str = ""
) -> list[RunView]:
    rollout_format = saved.is_rollouts(logs[0].rows) if len(logs) == 1 else None
    if rollout_format is not None:
        return [saved.SavedRollouts.of_log(logs[0], str(path), rollout_format).view()]

    views: list[RunView] = []
    for log in logs:
        if settings:
            facts = {**settings, **log.facts}
            note = f"Settings were taken from {settings_name} beside it."
            log = replace(log, facts=facts, notes=(*log.notes, note))
        logged = views_of_log(log, str(path)) if log.rows else []
        if log.rollouts:
            logged = _with_rollouts(logged, log, str(path))
        for view in logged:
            # A single row without a known metric is a stray object, not a run.
            if view.metrics or view.evals or len(view.steps) > 1:
                views.append(view)
    if not views:
        raise RecordError(
            f"{path} holds no rows of metrics: neither a point of training nor an evaluation."
        )
    return views


def _with_rollouts(views: list[RunView], log: Log, source: str) -> list[RunView]:
    """Add the rollouts of a log to its last run; without one they are a run."""
    rollout_format = saved.is_rollouts(log.rollouts)
    if rollout_format is None:
        return views
    rows = [row for row in log.rollouts if is_of_format(row, rollout_format)]
    rollouts = saved.SavedRollouts.of_log(Log(rows, log.name), source, rollout_format)
    if not views:
        return [rollouts.view()]
    return [*views[:-1], rollouts.add_to(views[-1], is_proven=False)]


def _read_logs(file: LogFile, is_named: bool = False) -> list[Log]:
    """Return the logs of the first reader that knows the file; RecordError if none does.

    A file that a user named may be a paste as well. In a folder such a text is the summary of a run
    whose log lies beside it.
    """
    for read in FILE_READERS:
        logs = read(file)
        if logs:
            return logs
        if logs is not None:
            break
    pasted = read_pasted(file) if is_named else None
    if pasted:
        return pasted
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


class LoggedRun(NamedTuple):
    """Run as one of its logs has it."""

    format: str
    view: RunView


@dataclass(frozen=True)
class HalfRun:
    """Log of prime-rl's trainer or of its orchestrator, which share no metric."""

    path: Path
    log: Log
    metrics: frozenset[str]
    """Columns of the log but for counters and times."""


class FolderReading:
    """Reads every log of a folder and of the folders below it once, and notes what is left out.

    Run directories, Trainers' outputs, W&B's runs, event files and loose logs are all read. Of a
    run in several formats, the richest log counts.
    """

    def __init__(self) -> None:
        self._runs: list[LoggedRun] = []
        self._broken: list[str] = []
        self._without_metrics: list[Path] = []
        self._seen: set[Path] = set()
        self._n_tried = 0
        self._root = Path()
        self._rollout_files: list[saved.SavedFile] = []
        self._pickles: list[Path] = []
        self._n_sniffed = 0

    def read(self, root: Path) -> list[RunView]:
        """Return the runs, with notes on what was left out; RecordError if there is none."""
        self._root = root
        for half in self._walk(root, depth=0):
            self._add(half.path.suffix, half.path, _read_file)
        views = self._join_rollouts(_drop_copies(self._runs))
        # Files that hold settings alone are runs without a point: they count if nothing else does.
        views = [view for view in views if len(view.steps) or view.evals] or views
        if self._pickles:
            self._broken.append(saved.why_pickled(self._pickles))

        if self._n_tried > MAX_FILES_TRIED:
            self._broken.append(
                f"only {MAX_FILES_TRIED} files were tried: name a folder below {root}."
            )
        names = self._name_without_metrics(root)
        if not views:
            if self._broken:
                raise RecordError(" ".join(self._broken))
            no_metrics = f" No metrics in {names}." if names else ""
            raise RecordError(
                f"{root} holds nothing that is known here: expected is run.json,"
                " trainer_state.json, event files, a .wandb file, saved rollouts, or a log as JSON,"
                f" CSV or text.{no_metrics}"
            )
        notes = [f"Left out: {reason}" for reason in self._broken]
        if names:
            notes.append(f"Left out: no metrics in {names}.")
        return [replace(view, notes=(*view.notes, *notes)) for view in views]

    def _name_without_metrics(self, root: Path) -> str:
        """Return names of files that hold no metrics; empty if there are none."""
        first = self._without_metrics[:MAX_NAMES_IN_NOTE]
        n_more = len(self._without_metrics) - len(first)
        names = ", ".join(str(path.relative_to(root)) for path in first)
        return f"{names} and {n_more} more" if n_more else names

    def _add(self, format: str, path: Path, read: Callable[[Path], list[RunView]]) -> None:
        """Read a log; one that can't be read hides no other."""
        try:
            with damage_as_error(path):
                for view in read(path):
                    self._runs.append(LoggedRun(format, view))
        except RecordError as error:
            self._broken.append(str(error))

    def _walk(self, folder: Path, depth: int) -> list[HalfRun]:
        """Read a folder and what is below it; return logs of prime-rl whose other half may lie
        beside the folder.
        """
        # A link may lead to a folder that was read.
        real_folder = folder.resolve()
        if real_folder in self._seen:
            return []
        self._seen.add(real_folder)
        if (folder / "run.json").exists():
            self._add("run.json", folder, _read_run)
            return []

        try:
            entries = sorted(folder.iterdir())
        except OSError as error:
            self._broken.append(f"{folder} could not be read: {error.strerror or error}.")
            return []
        files: list[Path] = []
        folders: list[Path] = []
        for path in entries:
            if path.name.startswith(".") and path.name not in LOG_FOLDERS_HIDDEN:
                continue
            if path.is_file():
                if not self._is_rollout_file(path):
                    files.append(path)
            elif path.is_dir() and path.name not in SKIPPED_FOLDERS:
                folders.append(path)

        wandb_files = [path for path in files if path.suffix == ".wandb"]
        for path in wandb_files:
            self._add(path.suffix, path, _read_file)
        if wandb_files and _WANDB_RUN_FOLDER.search(folder.name):
            return []  # its console and its settings lie below

        if _is_trainer_output(folder):
            self._add("trainer_state.json", folder, _read_trainer_output)
            folders = [path for path in folders if not path.name.startswith("checkpoint-")]

        event_files = [path for path in files if "tfevents" in path.name]
        if event_files:
            self._read_events(event_files)

        # Beside the rollouts of one step there are sums of it, and no logs of a run. This folder's
        # rollouts were found last.
        last_file = self._rollout_files[-1] if self._rollout_files else None
        if last_file and last_file.path.parent == folder and last_file.folder_is_a_step:
            files = []
        halves: list[HalfRun] = []
        for path in files:
            half = self._read_loose(path)
            if half is not None:
                halves.append(half)
        if depth == MAX_FOLDER_DEPTH and folders:
            names = ", ".join(path.name for path in folders[:MAX_NAMES_IN_NOTE])
            self._broken.append(
                f"what is below {folder} ({names}) is too deep: name a folder there."
            )
            folders = []
        for child in folders:
            halves += self._walk(child, depth + 1)
        return self._join_halves(halves, folder)

    def _is_rollout_file(self, path: Path) -> bool:
        """Return True for a file of rollouts, which is read with those of other steps."""
        if path.suffix in saved.PICKLE_SUFFIXES:
            if saved.is_pickled_rollouts(path):
                self._pickles.append(path)
            return False
        if path.suffix != ".parquet" and not is_log_name(path):
            return False
        self._n_sniffed += 1
        if self._n_sniffed > MAX_FILES_SNIFFED:
            if self._n_sniffed == MAX_FILES_SNIFFED + 1:
                self._broken.append(
                    f"only {MAX_FILES_SNIFFED:,} files were searched for rollouts: name a folder"
                    f" below {self._root}."
                )
            return False
        if path.is_symlink() and not path.resolve().is_relative_to(self._root.resolve()):
            self._broken.append(f"{path} is a link to a place outside {self._root}: not read.")
            return True
        file = saved.recognize_file(path, self._root)
        if file is None:
            return False
        self._rollout_files.append(file)
        return True

    def _join_rollouts(self, views: list[RunView]) -> list[RunView]:
        """Add saved rollouts to the runs whose they are; those of no run are runs of their own.

        They are a run's if its logged rewards are theirs, or if it is the only one in the folder
        nearest to them that has one.
        """
        # Those of training first: evaluations go to the run that they made.
        sets = sorted(saved.collect(self._rollout_files), key=lambda rollouts: rollouts.is_heldout)
        for rollouts in sets:
            try:
                with damage_as_error(Path(rollouts.source)):
                    self._join(rollouts, views)
            except (RecordError, OSError) as error:
                self._broken.append(str(error))
        return views

    def _join(self, rollouts: saved.SavedRollouts, views: list[RunView]) -> None:
        """Add one set of rollouts to its run, or as a run of its own."""
        candidates = [number for number, view in enumerate(views) if view.trainer != "uptrend"]
        if not rollouts.is_heldout:
            agreeing = [number for number in candidates if saved.agrees(rollouts, views[number])]
            for number in agreeing:
                if views[number].rollout_steps:
                    self._broken.append(
                        f"{rollouts.source} has rollouts of {views[number].source} once more."
                    )
                    return
            if len(agreeing) == 1:
                views[agreeing[0]] = rollouts.add_to(views[agreeing[0]], is_proven=True)
                return
        nearest_runs = _nearest(rollouts.source, [(n, views[n].source) for n in candidates])
        if not rollouts.is_heldout:
            # A run has the rollouts of its training once.
            nearest_runs = [number for number in nearest_runs if not views[number].rollout_steps]
        if len(nearest_runs) == 1:
            view = views[nearest_runs[0]]
            if rollouts.is_heldout or saved.shares_steps(rollouts, view):
                views[nearest_runs[0]] = rollouts.add_to(view, is_proven=False)
                return
        views.append(rollouts.view())

    def _read_events(self, paths: list[Path]) -> None:
        """Read the event files of one folder as one log, in the order in which they were begun."""
        logs: list[Log] = []
        for path in paths:
            try:
                if path.stat().st_size:
                    with damage_as_error(path):
                        logs += _read_logs(open_log(path))
            except (RecordError, OSError) as error:
                self._broken.append(str(error))
        logs = [log for log in logs if log.rows]
        logs.sort(key=lambda log: parse_number(log.rows[0].get("time")) or 0.0)
        self._add("tfevents", paths[0].parent, partial(_join_logs, logs))

    def _read_loose(self, path: Path) -> HalfRun | None:
        """Read a file that may be a log; return one half of a run of prime-rl unread."""
        if not is_log_name(path) or path.name == "trainer_state.json" or settings_in(path):
            return None
        # The output of a run of ours lies beside its folder.
        if (path.with_suffix("") / "run.json").exists():
            return None
        self._n_tried += 1
        if self._n_tried > MAX_FILES_TRIED:
            return None
        try:
            with damage_as_error(path):
                logs = _read_logs(open_log(path))
                columns = columns_in(logs[0].rows[:N_ROWS_TO_RECOGNIZE])
                if len(logs) == 1 and recognize(columns) == "prime-rl":
                    names = columns_in(logs[0].rows)
                    metrics = frozenset(name for name in names if not is_bookkeeping(name))
                    return HalfRun(path, logs[0], metrics)
                for view in _views_of(path, logs):
                    self._runs.append(LoggedRun(path.suffix, view))
        except RecordError:
            self._without_metrics.append(path)
        return None

    def _join_halves(self, halves: list[HalfRun], folder: Path) -> list[HalfRun]:
        """Read halves of one run as one; return those without another half."""
        runs: list[list[HalfRun]] = []
        for half in halves:
            for members in runs:
                if all(half.metrics.isdisjoint(member.metrics) for member in members):
                    members.append(half)
                    break
            else:
                runs.append([half])

        unpaired: list[HalfRun] = []
        for members in runs:
            if len(members) == 1:
                unpaired += members
            else:
                logs = [member.log for member in members]
                self._add("prime-rl", folder, partial(_join_logs, logs))
        return unpaired


def _nearest(source: str, others: Sequence[tuple[int, str]]) -> list[int]:
    """Return the numbers of those sources that lie nearest: they share the deepest folder with a
    source.
    """
    folders = {saved.place_of(source), *saved.place_of(source).parents}
    depth_by_number: dict[int, int] = {}
    for number, other in others:
        place = saved.place_of(other)
        shared = folders.intersection((place, *place.parents))
        depth_by_number[number] = max(len(folder.parts) for folder in shared)
    deepest = max(depth_by_number.values(), default=0)
    return [number for number, depth in depth_by_number.items() if depth == deepest]


def _read_run(folder: Path) -> list[RunView]:
    return [view_of(Run(folder))]


def _join_logs(logs: list[Log], source: Path) -> list[RunView]:
    """Read logs as one, their rows in order."""
    if not logs:
        return []
    rows = list(chain.from_iterable(log.rows for log in logs))
    notes = dict.fromkeys(chain.from_iterable(log.notes for log in logs))
    return views_of_log(Log(rows, notes=tuple(notes)), str(source))


def _is_trainer_output(folder: Path) -> bool:
    return bool(_state_files(folder))


def _state_files(folder: Path) -> list[Path]:
    """Return the Trainer's states in a folder and in its checkpoints, the newest last."""
    paths = [folder / "trainer_state.json", *folder.glob("checkpoint-*/trainer_state.json")]
    existing = [path for path in paths if path.exists()]
    return sorted(existing, key=lambda path: _json_number(path, "global_step", default=-1))


def _read_trainer_output(folder: Path) -> list[RunView]:
    """Read the newest state of a Trainer's output."""
    states = _state_files(folder)
    adapter = states[-1].parent / "adapter_config.json"
    rank = _json_number(adapter, "r", default=0)
    alpha = _json_number(adapter, "lora_alpha", default=0)
    settings: dict[str, Any] = {}
    if rank and alpha:
        settings["model.lora.r"] = rank
        settings["model.lora.alpha"] = alpha

    # A damaged state does not hide the one before it.
    views: list[RunView] = []
    broken: list[str] = []
    for state in reversed(states):
        try:
            views = _read_file(state)
        except RecordError as error:
            broken.append(str(error))
        if views:
            break
    else:
        raise RecordError(" ".join(broken))

    for index, view in enumerate(views):
        config = _fill_config(view.config, settings)
        notes = (*view.notes, *(f"Left out: {reason}" for reason in broken))
        views[index] = replace(view, source=str(folder), config=config, notes=notes)
    return views


def _json_number(path: Path, key: str, default: int) -> int:
    try:
        return int(read_json_file(path)[key])
    except (OSError, RecordError, ValueError, KeyError, TypeError, RecursionError):
        return default


def _fill_config(config: Mapping[str, Any], more: Mapping[str, Any]) -> dict[str, Any]:
    """Add settings by dotted key that a config does not have."""
    return nest({**more, **flatten(config)})


# Points that two logs of one run share: at least these, and this share of the shorter log's.
# Chosen by hand: each of the two may lack some points of the other.
MIN_SHARED_POINTS = 3
MIN_SHARED_SHARE = 0.8
# Relative difference of a value in two logs of one run: a Trainer prints four digits. The absolute
# one is for values of 0.
ROUNDING_TOLERANCE = 1e-3
ZERO_TOLERANCE = 1e-9


def _drop_copies(runs: list[LoggedRun]) -> list[RunView]:
    """Return each run once: a run directory before logs, then the log with most points, then with
    most metrics.

    Only logs of different formats can be of one run: two of the same are a run that was made again.
    """
    richness = [_richness(run.view) for run in runs]
    richest_first = sorted(range(len(runs)), key=richness.__getitem__, reverse=True)
    originals: dict[int, LoggedRun] = {}
    for index in richest_first:
        run = runs[index]
        for original_index, original in originals.items():
            if original.format != run.format and _is_copy(run.view, original.view):
                joined = _add_copy(original.view, run.view)
                originals[original_index] = original._replace(view=joined)
                break
        else:
            originals[index] = run
    return [originals[index].view for index in sorted(originals)]


def _richness(view: RunView) -> tuple[bool, int, int]:
    is_run_directory = (Path(view.source) / "run.json").exists()
    return is_run_directory, len(view.steps), len(view.metrics)


def _add_copy(view: RunView, copy: RunView) -> RunView:
    """Add what the copy alone has: settings, and rollouts."""
    notes = [*view.notes, f"Left out: {copy.source} is another log of this run."]
    rollout_source = view
    if copy.rollout_steps and not view.rollout_steps:
        rollout_source = copy
        notes += [note for note in copy.notes if note not in notes]
    return replace(
        view,
        config=_fill_config(view.config, flatten(copy.config)),
        rollout_steps=rollout_source.rollout_steps,
        read_rollouts=rollout_source.read_rollouts,
        notes=tuple(notes),
    )


def _is_copy(view: RunView, other: RunView) -> bool:
    """Return True if two logs hold the same run: where both have a point, its metrics are the same.

    Points of logs of the same length are compared in order, since a console may have no steps. A
    Trainer that logs every tenth step writes the mean of ten.
    """
    shorter, longer = sorted((view, other), key=lambda log: len(log.steps))
    # Indices of shared points in the shorter and in the longer log.
    if len(shorter.steps) == len(longer.steps):
        short_i = long_i = np.arange(len(shorter.steps))
    else:
        _, short_i, long_i = np.intersect1d(shorter.steps, longer.steps, return_indices=True)
    if len(short_i) < max(MIN_SHARED_POINTS, MIN_SHARED_SHARE * len(shorter.steps)):
        return False

    names = sorted(shorter.metrics.keys() & longer.metrics.keys())
    if _varies(shorter, "reward/mean"):
        names = ["reward/mean"]
    if not any(_varies(shorter, name) for name in names):
        return False

    # First of the longer log's points since the one that was shared before.
    first_i = np.concatenate([[0], long_i[:-1] + 1])
    for name in names:
        if name not in longer.metrics:
            return False
        values = shorter.metrics[name][short_i]
        others = longer.metrics[name]
        means: list[float] = []
        for first, last in zip(first_i, long_i, strict=True):
            means.append(others[first : last + 1].mean())
        if not _agree(values, others[long_i]) and not _agree(values, np.array(means)):
            return False
    return True


def _varies(view: RunView, name: str) -> bool:
    # A schedule is the same in any run.
    if name == "optimizer/lr":
        return False
    _, values = view.curve(name)
    return len(values) > 1 and bool((values != values[0]).any())


def _agree(values: Floats, others: Floats) -> bool:
    both = np.isfinite(values) & np.isfinite(others)
    if not both.any():
        return False
    is_close = np.isclose(values[both], others[both], rtol=ROUNDING_TOLERANCE, atol=ZERO_TOLERANCE)
    return bool(is_close.all())
