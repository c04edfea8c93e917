"""Contents of the given folders, kept up to date: rows for the table, readers of one run, log or
journal.
"""

import base64
import contextlib
import os
import threading
import time
from collections import Counter, OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from uptrend.config.tables import flatten
from uptrend.dashboard import curves
from uptrend.dashboard.findings import found_in
from uptrend.dashboard.index import ReadIndex
from uptrend.dashboard.sources import FoundSource, Stamp, find_sources
from uptrend.dashboard.worker import ReaderProcess
from uptrend.records import RecordError
from uptrend.records.directory import is_being_written, plain
from uptrend.records.summary import run_row

# Seconds between two looks at all files: at least so many, and so many times what a look takes.
PAUSE = 1.0
REST = 20.0
# Seconds between two reports on a run that grows.
REPORT_PAUSE = 10.0
Row = dict[str, Any]


@dataclass
class LibraryEntry:
    """A source with its row; of a log that holds several runs, one of them."""

    source: FoundSource
    stamp: Stamp
    row: Row
    part: int = 0


@dataclass
class IndexProgress:
    """Progress of reading what is new."""

    indexing: bool = True
    done: int = 0
    total: int = 0
    version: int = 0
    """Counts changes of rows."""


class RunTables:
    """Metrics of runs as the reader process gives them; each is asked for again where its file
    changed.
    """

    def __init__(self, index: ReadIndex, reader: ReaderProcess) -> None:
        self._index = index
        self._reader = reader
        self._held: OrderedDict[Path, tuple[Any, pa.Table, int]] = OrderedDict()
        self._lock = threading.Lock()

    def of_run(self, path: Path) -> pa.Table:
        """Return the metrics of a run, one row per step."""
        now = None
        with contextlib.suppress(OSError):
            stat = os.stat(path / curves.METRICS)
            now = stat.st_mtime_ns, stat.st_size, stat.st_ino
        with self._lock:
            if path in self._held and self._held[path][0] == now:
                self._held.move_to_end(path)
                return self._held[path][1]
        file = self._index.file_of(path)
        arrow = self._reader.call("run_table", str(path), str(file), curves.LARGE)["arrow"]
        if arrow is None:
            # mapped, not in memory
            table = pa.ipc.open_file(pa.memory_map(str(file))).read_all()
            size = 0
        else:
            table = pa.ipc.open_stream(base64.b64decode(arrow)).read_all()
            size = len(arrow)
        with self._lock:
            self._held[path] = now, table, size
            self._held.move_to_end(path)
            while (
                len(self._held) > 1
                and sum(size for _, _, size in self._held.values()) > curves.HELD
            ):
                self._held.popitem(last=False)
        return table


class Library:
    """Runs, logs and journals of some folders."""

    def __init__(self, roots: Sequence[Path], home: Path) -> None:
        self.roots = tuple(roots)
        self.index = ReadIndex(home)
        # Processes of their own: a page does not wait until a log is read or a run judged, which
        # takes minutes, and logs that are dropped on a page neither wait for those of the folders
        # nor hold them up.
        self.worker, self.pages = ReaderProcess(self.folders), ReaderProcess(self.folders)
        self.uploads = ReaderProcess()
        self._tables = RunTables(self.index, self.pages)
        self.progress = IndexProgress()
        self._entries: dict[str, LibraryEntry] = {}
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True, name="uptrend-index")
        # when the last report was begun, or the next one is due
        self._reports: dict[str, float] = {}
        self.judged: Counter[str] = Counter()
        """Reports made so far, by source."""
        self.closing = False
        """True where the server is about to end: streams end first."""

    def start(self) -> "Library":
        """Read what is there in the background, and go on looking for changes."""
        self._thread.start()
        return self

    def close(self) -> None:
        self._stop.set()
        self.worker.close()
        self.pages.close()
        self.uploads.close()
        if self._thread.is_alive():
            self._thread.join(timeout=5)
        self.index.close()

    def _watch(self) -> None:
        pause = 0.0
        while not self._stop.wait(pause):
            begun = time.monotonic()
            # a disk that comes and goes: the next look may find it again
            with contextlib.suppress(Exception):
                self.refresh()
            pause = (
                max(PAUSE, REST * (time.monotonic() - begun)) if self.progress.total == 0 else PAUSE
            )
            self.progress.indexing = False
            self.progress.total = 0
            self.progress.done = 0

    def folders(self) -> list[str]:
        """Return the folders outside which nothing is read: a link may take a file's place after it
        was looked at.
        """
        roots = [Path(os.path.realpath(root)) for root in self.roots]
        return [str(root.parent if root.is_file() else root) for root in roots]

    def refresh(self) -> None:
        """Look at all files once, and read those that changed, the newest first."""
        sources = find_sources(self.roots)
        entries = dict(self._entries)
        known = {id: entry.stamp for id, entry in entries.items()}
        stamps = {id: source.stamp() for id, source in sources.items()}
        gone = [id for id, entry in entries.items() if entry.source.id not in sources]
        stale = sorted(
            (id for id in sources if known.get(id) != stamps[id]),
            key=lambda id: stamps[id],
            reverse=True,
        )
        self.progress.total = len(stale)
        for id in gone:
            self._entries.pop(id, None)
        for id in stale:
            if self._stop.is_set():
                return
            self._read(sources[id], stamps[id])
            self.progress.done += 1
            self.progress.version += 1
        for entry in list(self._entries.values()):
            status = entry.row.get("status")
            # A run writes its last file while it still holds its lock: its status changes without a
            # file.
            if status in ("running", "killed") and is_being_written(entry.source.path) != (
                status == "running"
            ):
                with contextlib.suppress(RecordError):
                    entry.row["status"] = self._read_facts(entry.source)["row"]["status"]
                    self.progress.version += status != entry.row["status"]
        self.progress.version += len(gone)

    def _read(self, source: FoundSource, stamp: Stamp) -> None:
        """Put the entries of a source in the place of those that it had."""
        rows = self._rows_of(source, stamp) or [{}]  # no log after all: not read again
        for number, row in enumerate(rows):
            key = source.id if number == 0 else f"{source.id}@{number + 1}"
            self._entries[key] = LibraryEntry(
                source, stamp, {"id": key, **row} if row else {}, number
            )
        number = len(rows) + 1
        while (old := self._entries.get(f"{source.id}@{number}")) and old.source.id == source.id:
            del self._entries[f"{source.id}@{number}"]  # a log that holds fewer runs than before
            number += 1

    def _rows_of(self, source: FoundSource, stamp: Stamp) -> list[Row]:
        """Return a row per run of a source; none for a file that is no log after all."""
        kept: list[Row] | None = self.index.get(source.key, "rows", stamp)
        if kept is None:
            try:
                source.check_all()
                is_run = source.kind == "run"
                kept = (
                    [self._facts(source, stamp)["row"]]
                    if is_run
                    else self._rows_of_other(source, stamp)
                )
            except RecordError as error:
                # A file that only looked like a log is not worth a row, unless somebody asked for
                # it.
                is_asked = source.strong or source.path in (
                    Path(os.path.realpath(root)) for root in self.roots
                )
                kept = [_broken(source, str(error))] if is_asked else []
            # A damaged record may hold anything anywhere, and the next one is not to blame.
            except Exception as error:
                kept = [
                    _broken(
                        source,
                        f"It does not read as a {source.kind}: {type(error).__name__} {error}.",
                    )
                ]
            kept = plain(kept)
            if not self._stop.is_set():  # else the worker may have been ended under it
                self.index.put(source.key, "rows", stamp, kept)
        # A report that was made here since, of the same files.
        if (
            kept
            and source.kind == "run"
            and (report := self.index.get(source.key, "report", source.stamp()[:4]))
        ):
            kept = [{**kept[0], **found_in(report)}]
        return kept or []

    def _rows_of_other(self, source: FoundSource, stamp: Stamp) -> list[Row]:
        if source.kind == "lab":
            return [{"kind": "lab", "name": source.path.name, "path": str(source.path)}]
        files = self.index.file_of(source.path)
        told = self.worker.call("read_log", str(source.path), str(files.parent), files.stem)
        self.index.put(source.key, "log", stamp, told)
        return [_log_row(source, one) for one in told]

    def facts(self, entry: LibraryEntry) -> Row:
        """Return what was read of a run besides its table: settings, evaluations, notes, markers,
        reports.
        """
        return self._facts(entry.source, entry.source.stamp())

    def _facts(self, source: FoundSource, stamp: Stamp) -> Row:
        known: Row | None = self.index.get(source.key, "run", stamp)
        if known is None:
            known = self._read_facts(source)
            self.index.put(source.key, "run", stamp, known)
        return known

    def _read_facts(self, source: FoundSource) -> Row:
        source.check_all()
        file = self.index.file_of(source.path)
        facts: Row = self.pages.call("read_run", str(source.path), str(file), curves.LARGE)
        return facts

    def entries(self, kind: str) -> list[LibraryEntry]:
        """Return all that is known of one kind."""
        return [
            entry
            for entry in list(self._entries.values())
            if entry.source.kind == kind and entry.row
        ]

    def rows(self, kinds: Sequence[str] = ("run", "log")) -> list[Row]:
        """Return the rows of some kinds, in no order."""
        return [
            entry.row for entry in list(self._entries.values()) if entry.row.get("kind") in kinds
        ]

    def entry(self, id: str, *kinds: str) -> LibraryEntry:
        """Return what an id names; RecordError where nothing is known by it."""
        found = self._entries.get(id)
        if found is None and self.progress.indexing:
            self.refresh_one(id)
            found = self._entries.get(id)
        if found is None or not found.row or (kinds and found.source.kind not in kinds):
            raise RecordError(f"There is no {' or '.join(kinds) or 'run'} {id} here.")
        return found

    def refresh_one(self, id: str) -> None:
        """Read one source before its turn: somebody is looking at it."""
        if id in self._entries:
            source: FoundSource | None = self._entries[id].source
        else:
            sources = find_sources(self.roots)
            source = sources.get(id) or sources.get(id.rpartition("@")[0])
        if source is not None:
            self._read(source, source.stamp())

    def fresh(self, id: str) -> LibraryEntry:
        """Return a run's entry, its row read again where its files changed since."""
        entry = self.entry(id, "run", "log")
        if entry.source.stamp() != entry.stamp:
            self.refresh_one(id)
        return self.entry(id, "run", "log")

    def lab(self, id: str) -> Path:
        """Return the folder of a journal, in which no link leads out of what was given."""
        source = self.entry(id, "lab").source
        source.check_all()
        return source.path

    def log(self, entry: LibraryEntry) -> Row:
        """Return what was kept of one run of a log: settings, evaluations, notes, report."""
        told = self.index.get(entry.source.key, "log", entry.stamp)
        if told is None:  # the index was deleted under us
            self._rows_of_other(entry.source, entry.stamp)
            told = self.index.get(entry.source.key, "log", entry.stamp) or [{}]
        return dict(told[entry.part])

    def table(self, entry: LibraryEntry) -> pa.Table:
        """Return the curves of a run or a log, one row per step."""
        if entry.source.kind == "run":
            return self._tables.of_run(entry.source.path)
        file = self.index.file_of(entry.source.path, entry.part)
        if not file.exists():
            self._rows_of_other(entry.source, entry.stamp)
        return pa.ipc.open_file(pa.memory_map(str(file))).read_all()

    def report(self, entry: LibraryEntry) -> dict[str, Any] | None:
        """Return the doctor's report, dated by its step; None while the first one is being made."""
        if entry.source.kind == "log":
            report: dict[str, Any] | None = self.log(entry).get("report")
            return report
        found = self.known_report(entry)
        if found is not None:
            return found
        now = time.monotonic()
        due = max(now, self._reports.get(entry.source.id, -1e9) + REPORT_PAUSE)
        if self._reports.get(entry.source.id, -1e9) <= now:  # else one is on its way
            self._reports[entry.source.id] = due
            timer = threading.Timer(due - now, self.diagnose, args=(entry.source,))
            timer.daemon = True
            timer.start()
        older = [self.index.get(entry.source.key, "report")]
        with contextlib.suppress(RecordError, OSError):
            older.append(self.facts(entry)["report"])  # the live doctor's, a few steps ago
        return max(filter(None, older), key=lambda report: report.get("step", 0), default=None)

    def known_report(self, entry: LibraryEntry) -> dict[str, Any] | None:
        """Return the report of a run as it is now; None where nobody made one."""
        found: dict[str, Any] | None = self.index.get(
            entry.source.key, "report", entry.source.stamp()[:4]
        )
        if found is None:
            with contextlib.suppress(RecordError, OSError):
                found = self.facts(entry)["saved"]
        return found

    def diagnose(self, source: FoundSource) -> None:
        """Have a run judged, and keep the report."""
        stamp = source.stamp()[:4]
        try:
            source.check_below(source.path / "rollouts", source.path / "evals")
            report = self.worker.call("diagnose_run", str(source.path))
        except RecordError as error:
            report = {
                "trend": "",
                "sentence": f"The doctor could not judge it. {error}",
                "findings": [],
                "steps": 0,
            }
        if not self._stop.is_set():  # else the worker was ended under it
            self.index.put(source.key, "report", stamp, report)
            self.judged[source.id] += 1
            if (entry := self._entries.get(source.id)) and entry.row:
                entry.row = {**entry.row, **found_in(report)}
                self.progress.version += 1


def _broken(source: FoundSource, why: str) -> Row:
    return {
        "kind": source.kind,
        "name": source.path.name,
        "path": str(source.path),
        "status": "unreadable",
        "error": why,
    }


def _log_name(path: Path) -> str:
    """Return the name of a log: with its folder's, where it says little by itself."""
    return (
        f"{path.parent.name}/{path.name}"
        if path.is_file() or path.name in ("raw", "logs", "output")
        else path.name
    )


def _log_row(source: FoundSource, told: Row) -> Row:
    """Return the row of one run of a log, from what `read_log` told of it."""
    config = flatten(told["config"])
    evals = told["evals"]
    scores = [e for e in evals if isinstance(e.get("accuracy", e.get("reward")), int | float)]
    ends = [
        {"accuracy": e.get("accuracy"), "reward": e.get("reward"), "step": e.get("step", 0)}
        for e in scores
    ]
    row = run_row(
        name=told["name"] or _log_name(source.path),
        path=str(source.path),
        status="log",
        step=told["last_step"],
        steps=config.get("learning.steps"),
        config=told["config"],
        before=ends[0] if len(ends) > 1 else None,
        after=ends[-1] if ends else None,
        reward=told["reward"],
    )
    return {
        **row,
        "kind": "log",
        "trainer": told["trainer"],
        "sparkline": told["sparkline"],
        **found_in(told["report"]),
        "updated": source.stamp()[0][0] / 1e9,
        "seconds": None,
        "config": config,
    }
