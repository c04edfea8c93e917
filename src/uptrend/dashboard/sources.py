"""Contents of a folder: run directories, other trainers' logs, and journals. Nothing outside it is
read.
"""

import contextlib
import os
import stat
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from uptrend.bridge.importers.detect import MAX_FOLDER_DEPTH, SKIPPED_FOLDERS, is_log_name
from uptrend.bridge.importers.saved import is_step_folder
from uptrend.lab.notebook import is_lab
from uptrend.records import RecordError

RUN_FILES = ("run.json", "metrics.jsonl", "evals.jsonl", "events.jsonl", "findings.json")
RUN_FOLDERS = ("rollouts", "evals", "checkpoints", "logs", ".lock")
# What is looked at below a log's folder for changes.
MAX_LOG_FILES = 2000
MAX_LOG_DEPTH = 3
# Folder of a journal that holds its runs, which are sources of their own.
LAB_RUNS = "runs"

# Pairs of a time in nanoseconds and a size in bytes.
Stamp = tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class DashboardSource:
    """A run directory, a log or a journal in one of the served folders."""

    id: str
    """Name in addresses: the served folder's name and the path below it."""
    kind: Literal["run", "log", "lab"]
    path: Path
    root: Path
    """Served folder, resolved: links out of it are not followed."""
    strong: bool = True
    """False for a log that is recognized by its files' endings alone."""

    @property
    def key(self) -> str:
        """Name in the index; below another root, other links are allowed."""
        return f"{self.path}\0{self.root}"

    def check(self, path: Path) -> Path:
        """Return a path below the source; RecordError if it is a pipe, or a link out of the served
        folder.
        """
        name = path.relative_to(self.path)
        if not Path(os.path.realpath(path)).is_relative_to(self.root):
            raise RecordError(f"{name} is a link to a place outside {self.root.name}: not read.")
        # Reading a pipe could wait forever.
        if path.exists() and not path.is_file() and not path.is_dir():
            raise RecordError(f"{name} is neither a file nor a folder: not read.")
        return path

    def check_all(self) -> None:
        """Check every file that is read for the source, except those that are checked one by
        one.
        """
        if self.kind == "run":
            for name in RUN_FILES + RUN_FOLDERS:
                self.check(self.path / name)
        else:
            self.check_below(self.path)

    def check_below(self, *folders: Path) -> None:
        """Check every link below folders of the source, except in a journal's runs."""
        for folder in folders:
            for path in _special_files(folder, self._other_sources):
                self.check(path)

    def stamp(self) -> Stamp:
        """Return times and sizes of its files: another stamp means that it changed."""
        if self.kind == "run":
            return tuple(_time_and_size(f"{self.path}/{name}") for name in RUN_FILES)
        paths = _watched_files(self.path, SKIPPED_FOLDERS | self._other_sources)
        last_time = 0
        total_size = 0
        for path in paths:
            time, size = _time_and_size(path)
            last_time = max(last_time, time)
            total_size += size
        return (last_time, total_size), (len(paths), 0)

    @property
    def _other_sources(self) -> set[str]:
        """Names of folders below it that are sources of their own."""
        return {LAB_RUNS} if self.kind == "lab" else set()


def find_sources(roots: Iterable[Path]) -> dict[str, DashboardSource]:
    """Return the sources in folders, and files that are one, by id; a folder may not exist yet."""
    sources_by_id: dict[str, DashboardSource] = {}
    name_counts: Counter[str] = Counter()
    for root_path in roots:
        root = Path(os.path.realpath(root_path))
        name = root.name
        name_counts[name] += 1
        if name_counts[name] > 1:
            name += f"~{name_counts[name]}"
        if root.is_file():
            sources = [_log(root, root)]
        else:
            sources = list(_scan(root, root, 0, _is_in_lab_runs(root)))
        for source in sources:
            path_below = source.path.relative_to(root).as_posix()
            id = name if path_below == "." else f"{name}/{path_below}"
            # A file's name may hold bytes that are no UTF-8.
            id = os.fsencode(id).decode("utf-8", "replace")
            sources_by_id[id] = replace(source, id=id)
    return sources_by_id


def _is_in_lab_runs(folder: Path) -> bool:
    """Return True for a lab's folder of runs, and everything below it."""
    return any(path.name == LAB_RUNS and is_lab(path.parent) for path in (folder, *folder.parents))


def _scan(folder: Path, root: Path, depth: int, is_of_lab: bool) -> Iterator[DashboardSource]:
    if os.path.exists(folder / "run.json"):
        yield DashboardSource("", "run", folder, root)
        return

    folders, files = _entries(folder, root)
    if is_lab(folder):
        yield DashboardSource("", "lab", folder, root)
        is_of_lab = True
        folders = [path for path in folders if path.name == LAB_RUNS]
        files = []
    if any(_is_name_of_log(path.name) for path in files + folders):
        yield _log(folder, root)
        return

    # Folders of one step each, in which trainers save rollouts, are one run.
    if any(is_step_folder(path.name) for path in folders):
        yield replace(_log(folder, root), strong=False)
        return

    sources_below: list[DashboardSource] = []
    if depth < MAX_FOLDER_DEPTH:
        for child in folders:
            sources_below += _scan(child, root, depth + 1, is_of_lab)

    # What a run printed lies beside its folder, under its name. In a lab, every file outside of
    # the runs' folders was printed by one.
    loose_logs: list[Path] = []
    if not is_of_lab:
        run_folders = {source.path for source in sources_below if source.kind == "run"}
        for path in files:
            if is_log_name(path) and path.with_suffix("") not in run_folders:
                loose_logs.append(path)
    if loose_logs and not any(source.strong for source in sources_below):
        # A run's logs lie together, often in several formats.
        yield replace(_log(folder, root), strong=False)
        return
    yield from sources_below
    for path in loose_logs:
        yield replace(_log(path, root), strong=False)


def _log(path: Path, root: Path) -> DashboardSource:
    return DashboardSource("", "log", path, root if root.is_dir() else root.parent)


def _is_name_of_log(name: str) -> bool:
    """Return True for names that only trainers and trackers give."""
    return (
        name == "trainer_state.json"
        or "tfevents" in name
        or name.endswith(".wandb")
        or name.startswith("checkpoint-")
    )


def _entries(folder: Path, root: Path) -> tuple[list[Path], list[Path]]:
    """Return folders and files, sorted; hidden ones and links out of the root are left out."""
    folders: list[Path] = []
    files: list[Path] = []
    try:
        entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
    except OSError:  # gone by now, not there yet, or without permission to read
        return [], []
    for entry in entries:
        if entry.name.startswith(".") or entry.name in SKIPPED_FOLDERS:
            continue
        path = Path(entry.path)
        is_folder = path.is_dir()  # False for a link to itself, where the entry would raise
        if entry.is_symlink():
            leads_out = not Path(os.path.realpath(path)).is_relative_to(root)
            if is_folder or leads_out:
                continue
        if is_folder:
            folders.append(path)
        else:
            files.append(path)
    return folders, files


def _special_files(path: Path, skipped: set[str]) -> Iterator[Path]:
    """Yield the path, and below it what is neither a file nor a folder: links, pipes, devices."""
    yield path
    for folder, folders, names in os.walk(path):
        for name in (*folders, *names):
            with contextlib.suppress(OSError):
                mode = os.lstat(f"{folder}/{name}").st_mode
                if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
                    yield Path(folder, name)
        folders[:] = set(folders) - skipped


def _watched_files(
    path: Path, skipped: set[str], max_depth: int = MAX_LOG_DEPTH, max_files: int = MAX_LOG_FILES
) -> list[Path]:
    """Return the files that a log or a journal may be read from, links included."""
    if not path.is_dir() or path.is_symlink():
        return [path]
    files: list[Path] = []
    for folder, folders, names in os.walk(path):
        here = Path(folder)
        files += [here / name for name in names]
        files += [here / name for name in folders if (here / name).is_symlink()]
        depth = len(here.relative_to(path).parts)
        if depth >= max_depth or len(files) > max_files:
            folders.clear()
        folders[:] = sorted(set(folders) - skipped)
    return files[:max_files]


def _time_and_size(path: Path | str) -> tuple[int, int]:
    """Return when a file was changed and its bytes; zeros if it does not exist."""
    try:
        status = os.stat(path)
    except OSError:
        return 0, 0
    return status.st_mtime_ns, status.st_size
