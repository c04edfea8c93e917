"""Library of the runs, logs and journals in the served folders, which it watches for changes."""

import base64
import contextlib
import math
import os
import threading
import time
from collections import Counter, OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from uptrend.dashboard import curves
from uptrend.dashboard.findings import log_row, report_columns
from uptrend.dashboard.index import ReadIndex
from uptrend.dashboard.sources import RUN_FILES, DashboardSource, Stamp, find_sources
from uptrend.dashboard.worker import ReaderProcess
from uptrend.records import RecordError
from uptrend.records.directory import is_being_written
from uptrend.records.lines import plain

# Time between two looks at all files; for many files, a multiple of the time that a look takes, so
# that looking takes about a twentieth of a core at most.
MIN_PAUSE_S = 1.0
PAUSE_PER_LOOK = 20.0
# Time between two reports on a run that grows.
REPORT_PAUSE_S = 10.0
# Time that closing waits for a look that is under way.
CLOSE_TIMEOUT_S = 5
Row = dict[str, Any]


@dataclass
class LibraryEntry:
    """A source with its row; of a log with several runs, one of them."""

    source: DashboardSource
    stamp: Stamp
    row: Row
    """Empty for a file that is no log after all; its entry stays, so that it is not read again."""
    part: int = 0
    """Number of the run in its log."""

    @property
    def has_row(self) -> bool:
        """False for a file that only looked like a log: no page shows it."""
        return bool(self.row)

    @property
    def is_readable(self) -> bool:
        """False if its files could not be read; the row has the `error`."""
        return bool(self.row.get("status") != "unreadable")

    @property
    def row_without_config(self) -> Row:
        """Row for pages, which show the config elsewhere or not at all."""
        return {**self.row, "config": {}}


@dataclass
class IndexProgress:
    """Progress of reading what is new."""

    indexing: bool = True
    done: int = 0
    total: int = 0
    version: int = 0
    """Counts changes of rows."""


class RunTables:
    """Metrics of runs, from the reader process; requested again when their file has changed."""

    def __init__(self, index: ReadIndex, reader: ReaderProcess) -> None:
        self._index = index
        self._reader = reader
        # By run: stamp of its file, table, and bytes in memory. The one used last comes last.
        self._tables: OrderedDict[Path, tuple[Any, pa.Table, int]] = OrderedDict()
        self._lock = threading.Lock()

    def of_run(self, path: Path) -> pa.Table:
        """Return the metrics of a run, one row per step."""
        stamp = None
        with contextlib.suppress(OSError):
            status = os.stat(path / curves.METRICS_FILE)
            stamp = status.st_mtime_ns, status.st_size, status.st_ino
        with self._lock:
            if path in self._tables:
                known_stamp, table, _ = self._tables[path]
                if known_stamp == stamp:
                    self._tables.move_to_end(path)
                    return table

        table, size = self._request(path)
        with self._lock:
            self._tables[path] = stamp, table, size
            self._tables.move_to_end(path)
            while len(self._tables) > 1 and self._bytes_in_memory() > curves.MAX_BYTES_IN_MEMORY:
                self._tables.popitem(last=False)
        return table

    def _request(self, path: Path) -> tuple[pa.Table, int]:
        """Return the metrics of a run and the bytes that they take in memory."""
        file = self._index.file_of(path)
        answer = self._reader.call("run_table", str(path), str(file), curves.MIN_INDEXED_BYTES)
        encoded = answer["arrow"]
        if encoded is None:  # they are in the file, and mapped
            return _mapped_table(file), 0
        table = pa.ipc.open_stream(base64.b64decode(encoded)).read_all()
        return table, len(encoded)

    def _bytes_in_memory(self) -> int:
        return sum(size for _, _, size in self._tables.values())


class Library:
    """Runs, logs and journals of some folders."""

    def __init__(self, roots: Sequence[Path], home: Path) -> None:
        self.roots = tuple(roots)
        self.index = ReadIndex(home)
        # Three processes: a page does not wait while a log is read or a run judged, which takes
        # minutes, and logs that are dropped on a page neither wait for those of the folders nor
        # hold them up. The watcher reads runs by `page_reader` too, which takes moments for each:
        # by `background_reader`, it would wait while a run is judged.
        self.background_reader = ReaderProcess(self.folders)
        self.page_reader = ReaderProcess(self.folders)
        self.upload_reader = ReaderProcess()
        self._tables = RunTables(self.index, self.page_reader)
        self.progress = IndexProgress()
        self._entries: dict[str, LibraryEntry] = {}
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True, name="uptrend-index")
        # By source, the time at which its latest report began, or will begin if it is scheduled.
        self._report_start_times: dict[str, float] = {}
        self.report_counts: Counter[str] = Counter()
        """Number of reports made, by source."""
        self.closing = False
        """True when the server is about to end: streams end first."""

    def start(self) -> "Library":
        """Read the folders in the background, and continue to watch them."""
        self._thread.start()
        return self

    def close(self) -> None:
        self._stop.set()
        self.background_reader.close()
        self.page_reader.close()
        self.upload_reader.close()
        if self._thread.is_alive():
            self._thread.join(timeout=CLOSE_TIMEOUT_S)
        self.index.close()

    def folders(self) -> list[str]:
        """Return the folders outside which nothing is read.

        The reader checks them again: a link may take a file's place after it was checked here.
        """
        roots = [Path(os.path.realpath(root)) for root in self.roots]
        return [str(root.parent if root.is_file() else root) for root in roots]

    def _watch(self) -> None:
        pause_s = 0.0
        while not self._stop.wait(pause_s):
            begun = time.monotonic()
            # A disk that comes and goes: the next look may find it again.
            with contextlib.suppress(Exception):
                self.refresh()
            pause_s = MIN_PAUSE_S
            if self.progress.total == 0:  # nothing was read: the time is that of the look
                pause_s = max(pause_s, PAUSE_PER_LOOK * (time.monotonic() - begun))
            self.progress.indexing = False
            self.progress.total = 0
            self.progress.done = 0

    def refresh(self) -> None:
        """Look at all files once, and read those that changed, the newest first."""
        sources = find_sources(self.roots)
        stamps = {id: source.stamp() for id, source in sources.items()}
        entries = dict(self._entries)
        removed = [id for id, entry in entries.items() if entry.source.id not in sources]
        changed = [id for id in sources if id not in entries or entries[id].stamp != stamps[id]]
        changed.sort(key=lambda id: stamps[id], reverse=True)

        self.progress.total = len(changed)
        for id in removed:
            self._entries.pop(id, None)
        for id in changed:
            if self._stop.is_set():
                return
            self._update_entries(sources[id], stamps[id])
            self.progress.done += 1
            self.progress.version += 1
        self._update_statuses()
        self.progress.version += len(removed)

    def _update_statuses(self) -> None:
        """Read the status of runs again that started or stopped being written without a change of
        their files: a run writes its last file while it still holds its lock.
        """
        for entry in list(self._entries.values()):
            status = entry.row.get("status")
            if status not in ("running", "killed"):
                continue
            if is_being_written(entry.source.path) == (status == "running"):
                continue
            with contextlib.suppress(RecordError):
                entry.row["status"] = self._read_fresh_facts(entry.source)["row"]["status"]
                self.progress.version += status != entry.row["status"]

    def _update_entries(self, source: DashboardSource, stamp: Stamp) -> None:
        """Replace the entries of a source by those that its files give now."""
        rows = self._cached_rows(source, stamp)
        if not rows:
            rows = [{}]  # for an entry without a row
        for part, row in enumerate(rows):
            id = _part_id(source, part)
            if row:
                row = {"id": id, **row}
            self._entries[id] = LibraryEntry(source, stamp, row, part)

        # A log may have fewer runs than before.
        part = len(rows)
        while True:
            id = _part_id(source, part)
            entry = self._entries.get(id)
            if entry is None or entry.source.id != source.id:
                return
            del self._entries[id]
            part += 1

    def _cached_rows(self, source: DashboardSource, stamp: Stamp) -> list[Row]:
        """Return one row per run of a source, from the index if it has them; none for a file that
        is no log after all.
        """
        rows: list[Row] | None = self.index.get(source.key, "rows", stamp)
        if rows is None:
            rows = plain(self._read_fresh_rows(source, stamp))
            if not self._stop.is_set():  # else the reader may have been ended under it
                self.index.put(source.key, "rows", stamp, rows)
        if rows and source.kind == "run":
            # A report may have been made here since, of the same files.
            report = self.index.get(source.key, "report", _judged_stamp(source))
            if report:
                rows = [{**rows[0], **report_columns(report)}]
        return rows or []

    def _read_fresh_rows(self, source: DashboardSource, stamp: Stamp) -> list[Row]:
        """Read a source's files for its rows; one that can't be read gets a row that says so."""
        try:
            source.check_all()
            if source.kind == "run":
                return [self._cached_facts(source, stamp)["row"]]
            if source.kind == "log":
                return self._read_log(source, stamp)
            return [{"kind": "lab", "name": source.path.name, "path": str(source.path)}]
        except RecordError as error:
            # A file that only looked like a log gets no row, unless a user named it.
            named_paths = [Path(os.path.realpath(root)) for root in self.roots]
            if source.strong or source.path in named_paths:
                return [_unreadable_row(source, str(error))]
            return []
        except Exception as error:
            # A damaged record may have anything anywhere, and the next one is not to blame.
            reason = f"It does not read as a {source.kind}: {type(error).__name__} {error}."
            return [_unreadable_row(source, reason)]

    def _read_log(self, source: DashboardSource, stamp: Stamp) -> list[Row]:
        """Read a log, store its facts in the index and its curves in files, and return its rows."""
        file = self.index.file_of(source.path)
        log_runs = self.background_reader.call(
            "read_log", str(source.path), str(file.parent), file.stem
        )
        self.index.put(source.key, "log", stamp, log_runs)
        return [log_row(source, log_run) for log_run in log_runs]

    def facts(self, entry: LibraryEntry) -> Row:
        """Return what was read of a run besides its table: settings, evaluations, notes, markers,
        reports. It is read again if its files have changed.
        """
        return self._cached_facts(entry.source, entry.source.stamp())

    def _cached_facts(self, source: DashboardSource, stamp: Stamp) -> Row:
        facts: Row | None = self.index.get(source.key, "run", stamp)
        if facts is None:
            facts = self._read_fresh_facts(source)
            self.index.put(source.key, "run", stamp, facts)
        return facts

    def _read_fresh_facts(self, source: DashboardSource) -> Row:
        source.check_all()
        file = self.index.file_of(source.path)
        facts: Row = self.page_reader.call(
            "read_run", str(source.path), str(file), curves.MIN_INDEXED_BYTES
        )
        return facts

    def entries(self, kind: str) -> list[LibraryEntry]:
        """Return all entries of one kind of source."""
        entries = list(self._entries.values())
        return [entry for entry in entries if entry.source.kind == kind and entry.has_row]

    def rows(self, kinds: Sequence[str] = ("run", "log")) -> list[Row]:
        """Return the rows of some kinds, in no order."""
        entries = list(self._entries.values())
        return [entry.row for entry in entries if entry.row.get("kind") in kinds]

    def entry(self, id: str, *kinds: str) -> LibraryEntry:
        """Return the entry of an id; RecordError if there is none of these kinds."""
        entry = self._entries.get(id)
        if entry is None and self.progress.indexing:
            self.read_now(id)
            entry = self._entries.get(id)
        if entry is None or not entry.has_row or (kinds and entry.source.kind not in kinds):
            raise RecordError(f"There is no {' or '.join(kinds) or 'run'} {id} here.")
        return entry

    def read_now(self, id: str) -> None:
        """Read one source before its turn, for a page that shows it."""
        if id in self._entries:
            source: DashboardSource | None = self._entries[id].source
        else:
            sources = find_sources(self.roots)
            id_of_log = id.rpartition("@")[0]
            source = sources.get(id) or sources.get(id_of_log)
        if source is not None:
            self._update_entries(source, source.stamp())

    def current_entry(self, id: str) -> LibraryEntry:
        """Return a run's entry, its row read again if its files have changed."""
        entry = self.entry(id, "run", "log")
        if entry.source.stamp() != entry.stamp:
            self.read_now(id)
        return self.entry(id, "run", "log")

    def lab_folder(self, id: str) -> Path:
        """Return the folder of a journal, in which no link leads out of the served folder."""
        source = self.entry(id, "lab").source
        source.check_all()
        return source.path

    def log_facts(self, entry: LibraryEntry) -> Row:
        """Return what was read of one run of a log, when its entry was made: settings, evaluations,
        notes, report.
        """
        log_runs = self.index.get(entry.source.key, "log", entry.stamp)
        if log_runs is None:  # the index was deleted while the server runs
            self._read_log(entry.source, entry.stamp)
            log_runs = self.index.get(entry.source.key, "log", entry.stamp) or [{}]
        return dict(log_runs[entry.part])

    def table(self, entry: LibraryEntry) -> pa.Table:
        """Return the curves of a run or a log, one row per step."""
        if entry.source.kind == "run":
            return self._tables.of_run(entry.source.path)
        file = self.index.file_of(entry.source.path, entry.part)
        if not file.exists():
            self._read_log(entry.source, entry.stamp)
        return _mapped_table(file)

    def report(self, entry: LibraryEntry) -> Row | None:
        """Return the doctor's report, dated by its step; None while the first one is being made."""
        if entry.source.kind == "log":
            report: Row | None = self.log_facts(entry).get("report")
            return report
        report = self.known_report(entry)
        if report is not None:
            return report

        self._schedule_report(entry.source)
        # Of whatever age: no stamp is asked for.
        older_reports = [self.index.get(entry.source.key, "report")]
        with contextlib.suppress(RecordError, OSError):
            live_report = self.facts(entry)["report"]  # by the doctor of the run, a few steps ago
            older_reports.append(live_report)
        return max(
            filter(None, older_reports), key=lambda report: report.get("step", 0), default=None
        )

    def known_report(self, entry: LibraryEntry) -> Row | None:
        """Return the report on a run as its files are now; None if there is none yet."""
        source = entry.source
        report: Row | None = self.index.get(source.key, "report", _judged_stamp(source))
        if report is None:
            with contextlib.suppress(RecordError, OSError):
                report = self.facts(entry)["saved"]
        return report

    def _schedule_report(self, source: DashboardSource) -> None:
        """Have a run judged, at once or some time after its last report; once if called often."""
        now = time.monotonic()
        latest_start = self._report_start_times.get(source.id, -math.inf)
        is_scheduled = latest_start > now
        if is_scheduled:
            return
        next_start = max(now, latest_start + REPORT_PAUSE_S)
        self._report_start_times[source.id] = next_start
        timer = threading.Timer(next_start - now, self.diagnose, args=(source,))
        timer.daemon = True
        timer.start()

    def diagnose(self, source: DashboardSource) -> None:
        """Have a run judged, and store the report."""
        stamp = _judged_stamp(source)
        try:
            source.check_below(source.path / "rollouts", source.path / "evals")
            report = self.background_reader.call("diagnose_run", str(source.path))
        except RecordError as error:
            report = {
                "trend": "",
                "sentence": f"The doctor could not judge it. {error}",
                "findings": [],
                "steps": 0,
            }
        if self._stop.is_set():  # the reader may have been ended under it
            return
        self.index.put(source.key, "report", stamp, report)
        self.report_counts[source.id] += 1
        entry = self._entries.get(source.id)
        if entry is not None and entry.has_row:
            entry.row = {**entry.row, **report_columns(report)}
            self.progress.version += 1


def _part_id(source: DashboardSource, part: int) -> str:
    """Return the id of one run of a log; of the first one, and of other sources, the source's."""
    return source.id if part == 0 else f"{source.id}@{part + 1}"


def _judged_stamp(source: DashboardSource) -> Stamp:
    """Return the stamp of the files of a run that a report judges: all but the report's own."""
    return source.stamp()[: RUN_FILES.index("findings.json")]


def _mapped_table(file: Path) -> pa.Table:
    return pa.ipc.open_file(pa.memory_map(str(file))).read_all()


def _unreadable_row(source: DashboardSource, error: str) -> Row:
    return {
        "kind": source.kind,
        "name": source.path.name,
        "path": str(source.path),
        "status": "unreadable",
        "error": error,
    }
