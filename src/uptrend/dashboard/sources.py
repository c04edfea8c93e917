"""Contents of a folder: run directories, other trainers' logs, and journals. Nothing outside it is
read.
"""

import contextlib
import os
import stat
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from uptrend.bridge.importers.detect import MAX_FOLDER_DEPTH, SKIPPED_FOLDERS, is_log_name
from uptrend.lab.notebook import is_lab
from uptrend.records import RecordError

RUN_FILES = ("run.json", "metrics.jsonl", "evals.jsonl", "events.jsonl", "findings.json")
RUN_FOLDERS = ("rollouts", "evals", "checkpoints", "logs", ".lock")
# A log's folder: files and levels below it that are looked at for changes and links.
LOG_FILES = 2000
LOG_DEPTH = 3

Stamp = tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class FoundSource:
    """A run directory, a log or a journal that was found."""

    id: str
    """Name in addresses: the given folder's name and the path below it."""
    kind: Literal["run", "log", "lab"]
    path: Path
    root: Path
    """Folder that was given, resolved: links out of it are not followed."""
    strong: bool = True
    """False for a log that is known by its files' endings alone."""

    @property
    def key(self) -> str:
        """Name in the index; by another root other links are allowed."""
        return f"{self.path}\0{self.root}"

    def check(self, path: Path) -> Path:
        """Return a path below the source; RecordError where it is a pipe, or a link out of the
        given folder.
        """
        name = path.relative_to(self.path)
        if not Path(os.path.realpath(path)).is_relative_to(self.root):
            raise RecordError(f"{name} is a link to a place outside {self.root.name}: not read.")
        # reading it could wait for ever
        if path.exists() and not path.is_file() and not path.is_dir():
            raise RecordError(f"{name} is neither a file nor a folder: not read.")
        return path

    def check_all(self) -> None:
        """Check every file that is read for the source, but for those that are checked one by
        one.
        """
        if self.kind == "run":
            for name in RUN_FILES + RUN_FOLDERS:
                self.check(self.path / name)
        else:
            self.check_below(self.path)

    def check_below(self, *folders: Path) -> None:
        """Check every link below folders of the source; not the runs of a journal, which are
        sources of their own.
        """
        for folder in folders:
            for path in _odd(folder, {"runs"} if self.kind == "lab" else set()):
                self.check(path)

    def stamp(self) -> Stamp:
        """Return times and sizes of its files: another stamp means that it changed."""
        if self.kind == "run":
            return tuple(_stat(f"{self.path}/{name}") for name in RUN_FILES)
        stats = [
            _stat(path)
            for path in _files(
                self.path, SKIPPED_FOLDERS | ({"runs"} if self.kind == "lab" else set())
            )
        ]
        return (
            (max((time for time, _ in stats), default=0), sum(size for _, size in stats)),
            (len(stats), 0),
        )


def find_sources(roots: Iterable[Path]) -> dict[str, FoundSource]:
    """Return what the folders and files hold, by id; a folder that is not there yet holds
    nothing.
    """
    found: dict[str, FoundSource] = {}
    names: dict[str, int] = {}
    for given in roots:
        root = Path(os.path.realpath(given))
        names[root.name] = names.get(root.name, 0) + 1
        name = root.name + (f"~{names[root.name]}" if names[root.name] > 1 else "")
        below = (
            [_log(root, root)] if root.is_file() else list(_scan(root, root, 0, _is_of_lab(root)))
        )
        for source in below:
            rest = source.path.relative_to(root).as_posix()
            id = os.fsencode(name if rest == "." else f"{name}/{rest}").decode("utf-8", "replace")
            found[id] = replace(source, id=id)
    return found


def _is_of_lab(folder: Path) -> bool:
    """Return True for the runs of a lab, and what is below them."""
    return any(path.name == "runs" and is_lab(path.parent) for path in (folder, *folder.parents))


def _scan(folder: Path, root: Path, depth: int, of_lab: bool) -> Iterator[FoundSource]:
    if os.path.exists(folder / "run.json"):
        yield FoundSource("", "run", folder, root)
        return
    if is_lab(folder):
        yield FoundSource("", "lab", folder, root)
        of_lab = True
        folders = [path for path in _entries(folder, root)[0] if path.name == "runs"]
        files = list[Path]()
    else:
        folders, files = _entries(folder, root)
    if any(_is_strong(name) for name in (path.name for path in files + folders)):
        yield _log(folder, root)
        return
    below = (
        [source for child in folders for source in _scan(child, root, depth + 1, of_lab)]
        if depth < MAX_FOLDER_DEPTH
        else []
    )
    # What a run printed lies beside its folder, under its name. In a lab, whatever is no run's
    # folder was printed.
    runs = {source.path for source in below if source.kind == "run"}
    loose = [
        path
        for path in files
        if is_log_name(path) and not of_lab and path.with_suffix("") not in runs
    ]
    if loose and not any(source.strong for source in below):
        # a run's logs lie together, often in several formats
        yield replace(_log(folder, root), strong=False)
        return
    yield from below
    for path in loose:
        yield replace(_log(path, root), strong=False)


def _log(path: Path, root: Path) -> FoundSource:
    return FoundSource("", "log", path, root if root.is_dir() else root.parent)


def _is_strong(name: str) -> bool:
    return (
        name == "trainer_state.json"
        or "tfevents" in name
        or name.endswith(".wandb")
        or name.startswith("checkpoint-")
    )


def _entries(folder: Path, root: Path) -> tuple[list[Path], list[Path]]:
    """Return folders and files, sorted; hidden ones and links out of the root are left out."""
    folders = list[Path]()
    files = list[Path]()
    try:
        entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
    except OSError:  # gone by now, not there yet, or not ours to read
        return [], []
    for entry in entries:
        if entry.name.startswith(".") or entry.name in SKIPPED_FOLDERS:
            continue
        path = Path(entry.path)
        is_folder = path.is_dir()  # False for a link to itself, where the entry would raise
        if entry.is_symlink() and (
            is_folder or not Path(os.path.realpath(path)).is_relative_to(root)
        ):
            continue
        (folders if is_folder else files).append(path)
    return folders, files


def _odd(path: Path, skipped: set[str]) -> Iterator[Path]:
    """Yield what is neither a file nor a folder, at any depth: links, pipes, devices."""
    yield path
    for folder, folders, names in os.walk(path):
        for name in (*folders, *names):
            with contextlib.suppress(OSError):
                mode = os.lstat(f"{folder}/{name}").st_mode
                if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
                    yield Path(folder, name)
        folders[:] = set(folders) - skipped


def _files(path: Path, skipped: set[str], depth: int = LOG_DEPTH) -> list[Path]:
    """Return the files that a log or a journal may be read from, links included."""
    if not path.is_dir() or path.is_symlink():
        return [path]
    found: list[Path] = []
    for folder, folders, names in os.walk(path):
        here = Path(folder)
        links = [name for name in folders if (here / name).is_symlink()]
        found += [here / name for name in (*names, *links)]
        if len(here.relative_to(path).parts) >= depth or len(found) > LOG_FILES:
            folders.clear()
        folders[:] = sorted(set(folders) - skipped)
    return found[:LOG_FILES]


def _stat(path: Path | str) -> tuple[int, int]:
    try:
        found = os.stat(path)
    except OSError:
        return 0, 0
    return found.st_mtime_ns, found.st_size
