"""Index of what was read, in the user's cache, so that no run or log is read twice."""

import contextlib
import hashlib
import json
import os
import shutil
import sqlite3
import tempfile
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

INDEX_SCHEMA = 5
# Time after which the columns of a run that no page has shown are removed.
MAX_UNUSED_S = 30 * 86400.0
# Time that a request waits for another server that writes to the same index.
LOCK_TIMEOUT_S = 10
# Characters of a file's name: 96 bits of a digest, which no two sources share.
NAME_CHARACTERS = 24
ROLLOUT_COLUMNS = (
    "step",
    "heldout",
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
CREATE_ENTRIES = (
    "create table if not exists entries (path, name, stamp, value, primary key (path, name))"
)
CREATE_ROLLOUTS = (
    f"create table if not exists rollouts (path, {QUOTED_COLUMNS}, "
    'primary key (path, heldout, step, "group", "index", nth)) without rowid'
)
CREATE_TASK_INDEX = "create index if not exists by_task on rollouts (path, task, step)"


class ReadIndex:
    """Rows of runs, reports, columns of curves, and lines of rollouts.

    It can be deleted at any time: what is missing or out of date is read again. A stamp (times and
    sizes of files) tells if an entry is up to date. It is SQLite beside files of columns, and safe
    to use from several threads and servers.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder / f"index-{INDEX_SCHEMA}"
        try:
            self.columns.mkdir(parents=True, exist_ok=True)
            self._database = _open_database(str(self.folder / "index.sqlite"))
        except (OSError, sqlite3.Error):
            # A damaged or locked file costs reading everything again, not the dashboard; so does a
            # home that can't be written.
            self._database = _open_database(":memory:")
            self._temporary_folder = tempfile.TemporaryDirectory(prefix="uptrend-")
            self.folder = Path(self._temporary_folder.name)
            self.columns.mkdir()
        self._lock = threading.RLock()
        self._remove_unused_columns()

    def _remove_unused_columns(self) -> None:
        with contextlib.suppress(OSError):
            for file in self.columns.iterdir():
                if time.time() - file.stat().st_mtime > MAX_UNUSED_S:
                    file.unlink()

    @property
    def columns(self) -> Path:
        """Folder of the files of columns."""
        return self.folder / "columns"

    def file_of(self, path: Path, part: int = 0) -> Path:
        """Return the file for the columns of a source."""
        digest = hashlib.sha256(os.fsencode(path)).hexdigest()
        return self.columns / f"{digest[:NAME_CHARACTERS]}-{part}.arrow"

    def get(self, key: str, name: str, stamp: Any = None) -> Any | None:
        """Return an entry; None if there is none, or it has another stamp than the one given."""
        query = "select stamp, value from entries where path=? and name=?"
        for entry_stamp, value in self._execute(query, os.fsencode(key), name):
            if stamp is None or entry_stamp == json.dumps(stamp):
                return json.loads(value)
        return None

    def put(self, key: str, name: str, stamp: Any, value: Any) -> None:
        """Store a JSON value under a stamp."""
        row = (os.fsencode(key), name, json.dumps(stamp), json.dumps(value))
        with contextlib.suppress(sqlite3.Error):  # a full disk
            self._execute("insert or replace into entries values (?, ?, ?, ?)", *row)

    def put_rollouts(
        self, key: str, heldout: bool, step: int, lines: Iterable[Mapping[str, Any]]
    ) -> None:
        """Store the lines of a step's rollouts, in place of those that were there."""
        path = os.fsencode(key)
        rows: list[tuple[Any, ...]] = []
        for line in lines:
            rows.append((path, *(line[name] for name in ROLLOUT_COLUMNS)))
        marks = ", ".join("?" * (1 + len(ROLLOUT_COLUMNS)))
        # As a context, the database commits, or rolls back after an error.
        with self._lock, contextlib.suppress(sqlite3.Error), self._database:
            self._database.execute("begin")
            self._database.execute(
                "delete from rollouts where path=? and heldout=? and step=?", (path, heldout, step)
            )
            self._database.executemany(f"insert or replace into rollouts values ({marks})", rows)

    def rollouts(
        self, key: str, where: str, values: Sequence[Any], rest: str = ""
    ) -> list[dict[str, Any]]:
        """Return the lines of rollouts that meet a condition on their columns; `rest` is what
        follows it in SQL.
        """
        query = f"select {QUOTED_COLUMNS} from rollouts where path=? and {where} {rest}"
        rows = self._execute(query, os.fsencode(key), *values)
        return [dict(zip(ROLLOUT_COLUMNS, row, strict=True)) for row in rows]

    def count_rollouts(self, key: str, where: str, values: Sequence[Any]) -> int:
        """Return the number of lines that meet a condition."""
        query = f"select count(*) from rollouts where path=? and {where}"
        [(count,)] = self._execute(query, os.fsencode(key), *values)
        return int(count)

    def close(self) -> None:
        with self._lock:
            self._database.close()

    def _execute(self, query: str, *values: Any) -> list[Any]:
        with self._lock:
            try:
                return self._database.execute(query, values).fetchall()
            except sqlite3.DatabaseError as error:
                # A damaged file raises the base class itself; everything else a class below it.
                if type(error) is not sqlite3.DatabaseError:
                    raise
                self._database = _open_database(":memory:")
                return self._database.execute(query, values).fetchall()


def _open_database(path: str) -> sqlite3.Connection:
    database = sqlite3.connect(
        path, check_same_thread=False, timeout=LOCK_TIMEOUT_S, isolation_level=None
    )
    database.execute("pragma journal_mode=wal")
    database.execute("pragma synchronous=off")  # what a crash loses is read again
    for statement in (CREATE_ENTRIES, CREATE_ROLLOUTS, CREATE_TASK_INDEX):
        database.execute(statement)
    return database


def delete_index(folder: Path) -> None:
    """Delete the index in a folder, of all versions."""
    shutil.rmtree(folder, ignore_errors=True)
