"""Memory of what was read, in the user's cache: rows of runs, reports, columns of curves, and lines
of rollouts.

It can be deleted at any time: what is missing or out of date is read again. A stamp (times and
sizes of files) says whether an entry still holds.
"""

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

SCHEMA = 3
UNUSED = 30 * 86400.0
"""Seconds after which the columns of a run that nobody looked at are removed."""
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


class ReadIndex:
    """SQLite beside files of columns; safe to use from several threads and servers."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / f"index-{SCHEMA}"
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
