"""Contents of the given folders, kept up to date: the index of what was read, rows for the table,
readers of one run, log or journal.
"""

import base64
import contextlib
import hashlib
import json
import os
import shutil
import sqlite3
import tempfile
import threading
import time
from collections import Counter, OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from uptrend.dashboard import curves
from uptrend.dashboard.findings import log_row, report_columns
from uptrend.dashboard.sources import DashboardSource, Stamp, find_sources
from uptrend.dashboard.worker import ReaderProcess
from uptrend.records import RecordError
from uptrend.records.directory import is_being_written
from uptrend.records.lines import plain

# Seconds between two looks at all files: at least so many, and so many times what a look takes.
PAUSE = 1.0
REST = 20.0
# Seconds between two reports on a run that grows.
REPORT_PAUSE = 10.0
INDEX_SCHEMA = 4
# Seconds after which the columns of a run that nobody looked at are removed.
UNUSED = 30 * 86400.0
ROLLOUT_COLUMNS = (
    "step",
    "held",
    "group",
    "index",
    "nth",
    "task",
    "family",
    "reward",
    "correct",
    "ended",
    "error",
    "tokens",
    "turns",
    "advantage",
    "tools",
    "kept",
    "seconds",
    "question",
    "text",
)
# In quotes, because `group` and `index` are words of SQL.
QUOTED_COLUMNS = ", ".join(f'"{name}"' for name in ROLLOUT_COLUMNS)
Row = dict[str, Any]


@dataclass
class LibraryEntry:
    """A source with its row; of a log that holds several runs, one of them."""

    source: DashboardSource
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


class ReadIndex:
    """Memory of what was read, in the user's cache: rows of runs, reports, columns of curves, and
    lines of rollouts.

    It can be deleted at any time: what is missing or out of date is read again. A stamp (times and
    sizes of files) says whether an entry still holds. It is SQLite beside files of columns, and
    safe to use from several threads and servers.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder / f"index-{INDEX_SCHEMA}"
        try:
            self.columns.mkdir(parents=True, exist_ok=True)
            self._database = self._open(str(self.folder / "index.sqlite"))
        except (OSError, sqlite3.Error):
            # A damaged or locked file costs a reading, not the dashboard; so does a home that can't
            # be written.
            self._database = self._open(":memory:")
            self._instead = tempfile.TemporaryDirectory(prefix="uptrend-")
            self.folder = Path(self._instead.name)
            self.columns.mkdir()
        self._lock = threading.RLock()
        with contextlib.suppress(OSError):
            for file in self.columns.iterdir():
                if time.time() - file.stat().st_mtime > UNUSED:
                    file.unlink()

    @staticmethod
    def _open(path: str) -> sqlite3.Connection:
        database = sqlite3.connect(path, check_same_thread=False, timeout=10, isolation_level=None)
        database.execute("pragma journal_mode=wal")
        database.execute("pragma synchronous=off")  # a cache
        database.execute(
            "create table if not exists entries (path, name, stamp, value, primary key (path,"
            " name))"
        )
        database.execute(
            f"create table if not exists rollouts (path, {QUOTED_COLUMNS}, "
            'primary key (path, held, step, "group", "index", nth)) without rowid'
        )
        database.execute("create index if not exists by_task on rollouts (path, task, step)")
        return database

    @property
    def columns(self) -> Path:
        """Folder of the files of columns."""
        return self.folder / "columns"

    def file_of(self, path: Path, part: int = 0) -> Path:
        """Return the file for the columns of a source."""
        name = hashlib.sha256(os.fsencode(path)).hexdigest()[:24]
        return self.columns / f"{name}-{part}.arrow"

    def get(self, key: str, name: str, stamp: Any = None) -> Any | None:
        """Return an entry that was put under the same stamp; None where there is none."""
        query = "select stamp, value from entries where path=? and name=?"
        for known, value in self._execute(query, os.fsencode(key), name):
            if stamp is None or known == json.dumps(stamp):
                return json.loads(value)
        return None

    def _execute(self, query: str, *values: Any) -> list[Any]:
        with self._lock:
            try:
                return self._database.execute(query, values).fetchall()
            except sqlite3.DatabaseError as error:
                if type(error) is not sqlite3.DatabaseError:
                    raise
                self._database = self._open(":memory:")  # the file is damaged
                return self._database.execute(query, values).fetchall()

    def put(self, key: str, name: str, stamp: Any, value: Any) -> None:
        """Keep a JSON value."""
        row = (os.fsencode(key), name, json.dumps(stamp), json.dumps(value))
        with contextlib.suppress(sqlite3.Error):  # a full disk
            self._execute("insert or replace into entries values (?, ?, ?, ?)", *row)

    def put_rollouts(
        self, key: str, held: bool, step: int, rows: Iterable[Mapping[str, Any]]
    ) -> None:
        """Keep the lines of a step's rollouts, in place of those that were there."""
        marks = ", ".join("?" * (1 + len(ROLLOUT_COLUMNS)))
        path = os.fsencode(key)
        lines = [(path, *(row[name] for name in ROLLOUT_COLUMNS)) for row in rows]
        # committed, or rolled back
        with self._lock, contextlib.suppress(sqlite3.Error), self._database:
            self._database.execute("begin")
            self._database.execute(
                "delete from rollouts where path=? and held=? and step=?", (path, held, step)
            )
            self._database.executemany(f"insert or replace into rollouts values ({marks})", lines)

    def rollouts(
        self, key: str, where: str, values: Sequence[Any], rest: str = ""
    ) -> list[dict[str, Any]]:
        """Return lines of rollouts that meet a condition on their columns."""
        query = f"select {QUOTED_COLUMNS} from rollouts where path=? and {where} {rest}"
        found = self._execute(query, os.fsencode(key), *values)
        return [dict(zip(ROLLOUT_COLUMNS, row, strict=True)) for row in found]

    def count_rollouts(self, key: str, where: str, values: Sequence[Any]) -> int:
        """Return the number of lines that meet a condition."""
        query = f"select count(*) from rollouts where path=? and {where}"
        return int(self._execute(query, os.fsencode(key), *values)[0][0])

    def close(self) -> None:
        with self._lock:
            self._database.close()


def forget(folder: Path) -> None:
    """Delete the whole index."""
    shutil.rmtree(folder, ignore_errors=True)


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
            stat = os.stat(path / curves.METRICS_FILE)
            now = stat.st_mtime_ns, stat.st_size, stat.st_ino
        with self._lock:
            if path in self._held and self._held[path][0] == now:
                self._held.move_to_end(path)
                return self._held[path][1]
        file = self._index.file_of(path)
        arrow = self._reader.call("run_table", str(path), str(file), curves.MIN_INDEXED_BYTES)[
            "arrow"
        ]
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
                and sum(size for _, _, size in self._held.values()) > curves.MAX_BYTES_IN_MEMORY
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

    def _read(self, source: DashboardSource, stamp: Stamp) -> None:
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

    def _rows_of(self, source: DashboardSource, stamp: Stamp) -> list[Row]:
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
            kept = [{**kept[0], **report_columns(report)}]
        return kept or []

    def _rows_of_other(self, source: DashboardSource, stamp: Stamp) -> list[Row]:
        if source.kind == "lab":
            return [{"kind": "lab", "name": source.path.name, "path": str(source.path)}]
        files = self.index.file_of(source.path)
        told = self.worker.call("read_log", str(source.path), str(files.parent), files.stem)
        self.index.put(source.key, "log", stamp, told)
        return [log_row(source, one) for one in told]

    def facts(self, entry: LibraryEntry) -> Row:
        """Return what was read of a run besides its table: settings, evaluations, notes, markers,
        reports.
        """
        return self._facts(entry.source, entry.source.stamp())

    def _facts(self, source: DashboardSource, stamp: Stamp) -> Row:
        known: Row | None = self.index.get(source.key, "run", stamp)
        if known is None:
            known = self._read_facts(source)
            self.index.put(source.key, "run", stamp, known)
        return known

    def _read_facts(self, source: DashboardSource) -> Row:
        source.check_all()
        file = self.index.file_of(source.path)
        facts: Row = self.pages.call(
            "read_run", str(source.path), str(file), curves.MIN_INDEXED_BYTES
        )
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
            source: DashboardSource | None = self._entries[id].source
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

    def diagnose(self, source: DashboardSource) -> None:
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
                entry.row = {**entry.row, **report_columns(report)}
                self.progress.version += 1


def _broken(source: DashboardSource, why: str) -> Row:
    return {
        "kind": source.kind,
        "name": source.path.name,
        "path": str(source.path),
        "status": "unreadable",
        "error": why,
    }
