"""Contents of the given folders, kept up to date: rows for the table, readers of one run, log or journal."""

import contextlib
import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from uptrend.config.tables import flatten
from uptrend.dashboard.curves import Columns, sparkline, values_of
from uptrend.dashboard.index import ReadIndex
from uptrend.dashboard.sources import FoundSource, Stamp, find_sources
from uptrend.dashboard.worker import ReaderProcess
from uptrend.doctor.report import plain
from uptrend.doctor.saved import saved_report
from uptrend.lab.notebook import Notebook
from uptrend.records import LabError, RecordError, Run, RunView, view_of
from uptrend.runner import views_of
from uptrend.runner.summary import SETTINGS, held_out

# Seconds between two looks at all files: at least so many, and so many times what a look takes.
PAUSE, REST = 1.0, 20.0
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


class Library:
    """Runs, logs and journals of some folders."""

    def __init__(self, roots: Sequence[Path], home: Path) -> None:
        self.roots, self.index, self.worker = tuple(roots), ReadIndex(home), ReaderProcess()
        self.columns = Columns(self.index)
        self.progress = IndexProgress()
        self._entries: dict[str, LibraryEntry] = {}
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True, name="uptrend-index")
        self._reports: dict[str, float] = {}  # when the last report was begun, or the next one is due
        self.judged: Counter[str] = Counter()
        """Reports made so far, by source."""
        self.closing = False
        """True where the server is about to end: streams end first."""
        self._views: Callable[..., list[RunView]] = lru_cache(4)(_read_views)

    def start(self) -> "Library":
        """Read what is there in the background, and go on looking for changes."""
        self._thread.start()
        return self

    def close(self) -> None:
        self._stop.set()
        self.worker.close()
        if self._thread.is_alive():
            self._thread.join(timeout=5)
        self.index.close()

    def _watch(self) -> None:
        pause = 0.0
        while not self._stop.wait(pause):
            begun = time.monotonic()
            with contextlib.suppress(Exception):  # a disk that comes and goes: the next look may find it again
                self.refresh()
            pause = max(PAUSE, REST * (time.monotonic() - begun)) if self.progress.total == 0 else PAUSE
            self.progress.indexing, self.progress.total, self.progress.done = False, 0, 0

    def refresh(self) -> None:
        """Look at all files once, and read those that changed, the newest first."""
        sources, entries = find_sources(self.roots), dict(self._entries)
        known = {id: entry.stamp for id, entry in entries.items()}
        stamps = {id: source.stamp() for id, source in sources.items()}
        gone = [id for id, entry in entries.items() if entry.source.id not in sources]
        stale = sorted((id for id in sources if known.get(id) != stamps[id]), key=lambda id: stamps[id], reverse=True)
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
            if entry.row.get("status") in ("running", "killed"):
                # A run writes its last file while it still holds its lock: its status changes without a file.
                with contextlib.suppress(RecordError, OSError, TypeError, AttributeError):
                    status = Run(entry.source.path).status
                    self.progress.version += status != entry.row["status"]
                    entry.row["status"] = status
        self.progress.version += len(gone)

    def _read(self, source: FoundSource, stamp: Stamp) -> None:
        """Put the entries of a source in the place of those that it had."""
        rows = self._rows_of(source, stamp) or [{}]  # no log after all: not read again
        for number, row in enumerate(rows):
            key = source.id if number == 0 else f"{source.id}@{number + 1}"
            self._entries[key] = LibraryEntry(source, stamp, {"id": key, **row} if row else {}, number)
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
                kept = [self._run_row(source)] if source.kind == "run" else self._rows_of_other(source, stamp)
            except RecordError as error:
                # A file that only looked like a log is not worth a row, unless somebody asked for it.
                is_asked = source.strong or source.path in (Path(os.path.realpath(root)) for root in self.roots)
                kept = [_broken(source, str(error))] if is_asked else []
            except Exception as error:  # a damaged record may hold anything anywhere, and the next one is not to blame
                kept = [_broken(source, f"It does not read as a {source.kind}: {type(error).__name__} {error}.")]
            kept = plain(kept)
            if not self._stop.is_set():  # else the worker may have been ended under it
                self.index.put(source.key, "rows", stamp, kept)
        # A report that was made here since, of the same files.
        if kept and source.kind == "run" and (report := self.index.get(source.key, "report", source.stamp()[:4])):
            kept = [{**kept[0], **_found(report)}]
        return kept or []

    def _rows_of_other(self, source: FoundSource, stamp: Stamp) -> list[Row]:
        if source.kind == "lab":
            return [{"kind": "lab", "name": source.path.name, "path": str(source.path)}]
        files = self.index.file_of(source.path)
        told = self.worker.call("read_log", str(source.path), str(files.parent), files.stem)
        self.index.put(source.key, "log", stamp, told)
        return [_log_row(source, one) for one in told]

    def _run_row(self, source: FoundSource) -> Row:
        run = Run(source.path)
        config, table = flatten(run.config), self.columns.of_run(run)
        evaluations = [asdict(one) for one in held_out(run)]
        rewards, times, steps = (values_of(table, key) for key in ("reward/mean", "time", "seconds/step"))
        known = rewards[np.isfinite(rewards)]
        report = None
        with contextlib.suppress(RecordError, AttributeError):
            report = saved_report(run, len(table)) or (run.report if run.status == "running" else None)
        events = run.events
        created, last = _seconds(run.info.get("created")), float(times[-1]) if len(times) else None
        moments = (created, last, *(event.get("time") for event in events[-1:]))
        return {
            "kind": "run", "name": run.name, "path": str(source.path), "trainer": run.info.get("trainer", "uptrend"),
            "status": run.status, "step": int(table["step"][-1].as_py()) if len(table) else 0, "steps": run.steps,
            **{name: config.get(key) for name, key in SETTINGS.items()},
            "before": next((e for e in evaluations if e["step"] == run.start), None),
            "after": next((e for e in reversed(evaluations) if e["step"] > run.start), None),
            "reward": float(known[-1]) if len(known) else None, "sparkline": sparkline(rewards),
            **_found(report), "created": created,
            "updated": max([t for t in moments if isinstance(t, int | float)], default=None),
            "seconds": last - created if last and created and last > created else None,
            "per_step": float(np.nanmedian(steps)) if np.isfinite(steps).any() else None, "config": config,
        }  # fmt: skip

    def entries(self, kind: str) -> list[LibraryEntry]:
        """Return all that is known of one kind."""
        return [entry for entry in list(self._entries.values()) if entry.source.kind == kind and entry.row]

    def rows(self, kinds: Sequence[str] = ("run", "log")) -> list[Row]:
        """Return the rows of some kinds, in no order."""
        return [entry.row for entry in list(self._entries.values()) if entry.row.get("kind") in kinds]

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

    def run(self, id: str) -> tuple[LibraryEntry, Run]:
        """Open a run directory."""
        entry = self.entry(id, "run")
        entry.source.check_all()
        return entry, Run(entry.source.path)

    def lab(self, id: str) -> Notebook:
        """Open a journal."""
        source = self.entry(id, "lab").source
        source.check_all()
        try:
            return Notebook(source.path)
        except LabError as error:
            raise RecordError(str(error)) from None

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
            return self.columns.of_run(Run(entry.source.path))
        file = self.index.file_of(entry.source.path, entry.part)
        if not file.exists():
            self._rows_of_other(entry.source, entry.stamp)
        return pa.ipc.open_file(pa.memory_map(str(file))).read_all()

    def view(self, entry: LibraryEntry) -> RunView:
        """Return a run or a log with its rollouts."""
        entry.source.check_all()
        if entry.source.kind == "run":
            return view_of(Run(entry.source.path))
        return self._views(entry.source.path, entry.stamp)[entry.part]

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
        with contextlib.suppress(RecordError, OSError, LookupError, TypeError, AttributeError):
            older.append(Run(entry.source.path).report)  # the live doctor's, a few steps ago
        return max(filter(None, older), key=lambda report: report.get("step", 0), default=None)

    def known_report(self, entry: LibraryEntry) -> dict[str, Any] | None:
        """Return the report of a run as it is now; None where nobody made one."""
        found: dict[str, Any] | None = self.index.get(entry.source.key, "report", entry.source.stamp()[:4])
        if found is None:
            with contextlib.suppress(RecordError, OSError, LookupError, TypeError, AttributeError):
                found = saved_report(Run(entry.source.path), len(self.table(entry)))
        return found

    def diagnose(self, source: FoundSource) -> None:
        """Have a run judged, and keep the report."""
        stamp = source.stamp()[:4]
        try:
            source.check_below(source.path / "rollouts", source.path / "evals")
            report = self.worker.call("diagnose_run", str(source.path))
        except RecordError as error:
            report = {"trend": "", "sentence": f"The doctor could not judge it. {error}", "findings": [], "steps": 0}
        if not self._stop.is_set():  # else the worker was ended under it
            self.index.put(source.key, "report", stamp, report)
            self.judged[source.id] += 1
            if (entry := self._entries.get(source.id)) and entry.row:
                entry.row = {**entry.row, **_found(report)}
                self.progress.version += 1


def _read_views(path: Path, stamp: Stamp) -> list[RunView]:
    del stamp  # part of the cache's key
    return views_of(path)


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
    return f"{path.parent.name}/{path.name}" if path.is_file() or path.name in ("raw", "logs", "output") else path.name


def _log_row(source: FoundSource, told: Row) -> Row:
    """Return the row of one run of a log, from what `read_log` told of it."""
    config, evals = flatten(told["config"]), told["evals"]
    scores = [e for e in evals if isinstance(e.get("accuracy", e.get("reward")), int | float)]
    ends = [{"accuracy": e.get("accuracy"), "reward": e.get("reward"), "step": e.get("step", 0)} for e in scores]
    return {
        "kind": "log", "name": told["name"] or _log_name(source.path), "path": str(source.path), "status": "log",
        "trainer": told["trainer"], "step": told["last_step"], "steps": config.get("learning.steps"),
        **{name: config.get(key) for name, key in SETTINGS.items()},
        "before": ends[0] if len(ends) > 1 else None, "after": ends[-1] if ends else None,
        "reward": told["reward"], "sparkline": told["sparkline"], **_found(told["report"]), "created": None,
        "updated": source.stamp()[0][0] / 1e9, "seconds": None, "per_step": None, "config": config,
    }  # fmt: skip


def _found(report: Mapping[str, Any] | None) -> Row:
    """Return the trend and the number of causes by severity, with the step that dates them; no doctor looked: None."""
    if report is None:
        return {"trend": None, "findings": None, "finding": None, "of_step": None}
    causes = [finding for finding in report["findings"] if finding["symptom_of"] is None]
    counts = {kind: sum(f["severity"] == kind for f in causes) for kind in ("critical", "warning", "note")}
    first = causes[0]["id"] if causes and causes[0]["severity"] != "note" else None
    return {"trend": report["trend"], "findings": counts, "finding": first, "of_step": report.get("step")}


def _seconds(moment: Any) -> float | None:
    try:
        return datetime.fromisoformat(str(moment)).timestamp()
    except ValueError:
        return None
