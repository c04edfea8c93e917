"""Reading a run directory, from a notebook or a program.

run = Run("runs/quickstart")
run.metrics.to_pandas().plot("step", "reward/mean")
to_polars(run.rollouts(step=12))
"""

import contextlib
import re
import sys
from functools import cached_property
from pathlib import Path
from typing import Any

import pyarrow as pa

from uptrend.records.directory import (
    END_EVENTS,
    START_EVENTS,
    Stop,
    eval_path,
    is_being_written,
    recorded_steps,
)
from uptrend.records.errors import MissingExtra, RecordError
from uptrend.records.files import (
    MAX_LINES_BYTES,
    MAX_LOG_BYTES,
    check_cells,
    check_size,
    read_json,
    read_table,
    size_in_memory,
)
from uptrend.records.finding import causes, dated, headline, html_table
from uptrend.records.lines import parse_lines
from uptrend.records.renamed import upgrade, upgrade_event, upgrade_keys, upgrade_metrics
from uptrend.records.schema import ROLLOUT_SCHEMA, SCHEMA_VERSION

# Causes in a notebook's table; the report has all.
MAX_CAUSES_SHOWN = 3


class Run:
    """View of a run directory; one that still grows or whose process was killed reads too.

    A run of an older schema has today's names here; its files stay as they are.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.info: dict[str, Any] = _read_info(self.path)
        self._damaged: dict[str, int] = {}

    def __repr__(self) -> str:
        reason = f", {self.stopped.sentence}" if self.stopped is not None else ""
        steps = f"{self.last_step} of {self.steps} steps"
        return f"Run({str(self.path)!r}, {self.status}, {steps}{reason})"

    def _repr_html_(self) -> str:
        """Return a table for notebooks: path, status, held-out accuracy, last metrics, findings."""
        from uptrend.records.summary import summarize  # which imports this module

        row = summarize(self)
        rows = [
            ("run", row["path"]),
            ("status", f"{row['status']}, {row['step']} of {row['steps']} steps"),
        ]
        for evaluation in (row["before"], row["after"]):
            if evaluation is not None and evaluation["accuracy"] is not None:
                interval = f"{evaluation['low']:.1%} to {evaluation['high']:.1%}"
                accuracy = f"{evaluation['accuracy']:.1%} ({interval})"
                rows.append((f"held-out after step {evaluation['step']}", accuracy))
        last_line = self.metric_lines[-1] if self.metric_lines else {}
        for key in ("reward/mean", "advantage/dead/share"):
            if last_line.get(key) is not None:
                rows.append((key, f"{last_line[key]:.4g}"))
        report = self.report
        if report is not None:
            rows.append(("doctor", f"{dated(report['step'])}: {headline(report)}"))
            if report["step"] == self.last_step or self.status == "running":
                for cause in causes(report)[:MAX_CAUSES_SHOWN]:
                    rows.append((cause["severity"], f"{cause['id']}: {cause['summary']}"))
            else:
                rows.append(("", f"Out of date. A new one: uptrend.diagnose({str(self.path)!r})"))
        return html_table(rows)

    @property
    def name(self) -> str:
        return self.path.resolve().name

    @property
    def schema(self) -> int:
        """Version of the directory's layout."""
        return int(self.info["schema"])

    @property
    def config(self) -> dict[str, Any]:
        """Resolved config with every value."""
        config: dict[str, Any] = self.info["config"]
        return config

    @property
    def metrics(self) -> pa.Table:
        """One row per step, one column per metric."""
        return _table(self.metric_lines)

    @cached_property
    def metric_lines(self) -> list[dict[str, Any]]:
        """Metrics as they were at the first use, one dictionary per step."""
        lines = self._records("metrics.jsonl")
        return lines if self.schema > 1 else list(map(upgrade_metrics, lines))

    @property
    def evals(self) -> pa.Table:
        """One row per evaluation."""
        return _table(self.eval_lines)

    @cached_property
    def eval_lines(self) -> list[dict[str, Any]]:
        """Evaluations as they were at the first use."""
        return self._records("evals.jsonl")

    @property
    def events(self) -> list[dict[str, Any]]:
        """Events in order; events.toml has their kinds and fields."""
        lines = self._records("events.jsonl")
        return lines if self.schema > 1 else list(map(upgrade_event, lines))

    def _records(self, name: str) -> list[dict[str, Any]]:
        """Return the records of a file of lines, and count its damaged lines."""
        path = self.path / name
        with contextlib.suppress(OSError):  # parse_lines says what is wrong
            check_size(path, path.stat().st_size, MAX_LOG_BYTES)
        records = []
        self._damaged[name] = 0
        size = 0
        for line, record in parse_lines(path):
            if record is not None:
                size += size_in_memory(line)
                check_size(path, size, MAX_LINES_BYTES)
                # Interned, because each record would have its own copy of all keys.
                records.append({sys.intern(key): value for key, value in record.items()})
            elif line.endswith(b"\n"):  # without it, its process still writes it, or was killed
                self._damaged[name] += 1
        return records

    @property
    def notes(self) -> list[str]:
        """Sentences on lines that could not be read, one per file."""
        self.metric_lines, self.eval_lines, self.events  # noqa: B018 (each counts its damaged lines)
        notes = []
        for name, count in self._damaged.items():
            if count == 1:
                notes.append(f"1 line of {name} could not be read and is left out.")
            elif count > 1:
                notes.append(f"{count} lines of {name} could not be read and are left out.")
        return notes

    @property
    def report(self) -> dict[str, Any] | None:
        """Last report of the doctor, as findings.json has it; its `step` dates it. None without
        one.
        """
        path = self.path / "findings.json"
        if not path.exists():
            return None
        try:
            report: dict[str, Any] = read_json(path)
        except ValueError as error:
            raise RecordError(
                f"{path} is not JSON: {error}. Write it again: uptrend doctor {self.path}"
            ) from None
        if report.get("schema", 1) == 1:
            report = upgrade(report, "report", "metrics", "causes", "probes")
        if "step" not in report:  # from a version that counted points alone
            points = self.metric_lines[: report.get("steps", 0)]
            report["step"] = int(points[-1]["step"]) if points else 0
        return report

    def rollouts(self, step: int | None = None) -> pa.Table:
        """Read the rollouts of one step, or of all; one row per sequence."""
        steps = self.rollout_steps
        if step is not None and step not in steps:
            recorded = f"{steps[0]} to {steps[-1]}" if steps else "none yet"
            raise RecordError(f"{self.path} has no rollouts of step {step}; it has {recorded}.")
        tables = [ROLLOUT_SCHEMA.empty_table()]
        for number in steps if step is None else [step]:
            folder = self.path / "rollouts" / f"{number:06d}"
            tables.append(read_parquet(sorted(folder.glob("part-*.parquet"))))
        return pa.concat_tables(tables, promote_options="default")

    @property
    def rollout_steps(self) -> list[int]:
        """Steps whose rollouts were recorded, ascending; a step is recorded with its line, which
        comes after its rollouts.
        """
        steps_with_line = {line["step"] for line in self.metric_lines}
        rollout_steps = recorded_steps(self.path / "rollouts").values()
        return sorted(steps_with_line.intersection(rollout_steps))

    def eval_rollouts(self, step: int, label: str = "") -> pa.Table:
        """Read the held-out rollouts of the evaluation after a step; those of a further set by its
        label.
        """
        path = eval_path(self.path, step, label)
        steps = [line["step"] for line in self.eval_lines]
        if step not in steps or not path.exists():
            recorded = ", ".join(map(str, steps)) or "none"
            set_text = f" on {label}" if label else ""
            raise RecordError(
                f"{self.path} has no evaluation{set_text} after step {step}; it has {recorded}."
            )
        return read_parquet([path])

    @property
    def last_step(self) -> int:
        """Last step with a metrics line; 0 before the first."""
        return int(self.metric_lines[-1]["step"]) if self.metric_lines else 0

    @property
    def start(self) -> int:
        """Step whose weights it began with: 0, except for a replay."""
        return int(self.info.get("replay", {}).get("step", 0))

    @property
    def steps(self) -> int | None:
        """Last planned step; None if it is not known."""
        steps = self.info.get("replay", {}).get("last")
        steps = steps or self.config.get("learning", {}).get("steps")
        return None if steps is None else int(steps)

    @property
    def status(self) -> str:
        """State: running, finished, stopped (interrupted, or by an observer), failed, or killed."""
        if is_being_written(self.path):
            return "running"
        kind = self._last_start_or_end.get("event")
        return str(kind) if kind in END_EVENTS else "killed"

    @property
    def stopped(self) -> Stop | None:
        """Reason and origin of a stop; None for a run that ended otherwise or goes on."""
        event = self._last_start_or_end
        if event.get("event") != "stopped":
            return None
        return Stop(
            str(event.get("reason", "")),
            event.get("stopped_by", "observer"),
            str(event.get("finding", "")),
        )

    @property
    def _last_start_or_end(self) -> dict[str, Any]:
        kinds = START_EVENTS + END_EVENTS
        events = [event for event in self.events if event.get("event") in kinds]
        return events[-1] if events else {}

    @property
    def checkpoints(self) -> list[Path]:
        """Checkpoints, oldest first, without copies that a user keeps under other names."""
        return list(step_folders(self.path / "checkpoints").values())


def step_folders(checkpoints: Path) -> dict[int, Path]:
    """Return the checkpoints in a folder by their step, ascending."""
    folder_by_step: dict[int, Path] = {}
    for path in sorted(checkpoints.glob("step-*")):
        match = re.fullmatch(r"step-(\d{6,})", path.name)
        if match and path.is_dir():
            folder_by_step[int(match[1])] = path
    return dict(sorted(folder_by_step.items()))


def _read_info(folder: Path) -> dict[str, Any]:
    path = folder / "run.json"
    try:
        info: dict[str, Any] = read_json(path)
    except (FileNotFoundError, NotADirectoryError):
        raise RecordError(f"{folder} holds no run (no run.json).") from None
    except OSError as error:
        raise RecordError(f"{path} could not be read: {error.strerror}.") from None
    except (ValueError, RecursionError) as error:
        raise RecordError(f"{path} is not JSON: {error}.") from None
    has_schema = isinstance(info, dict) and isinstance(info.get("schema"), int)
    if not has_schema or not isinstance(info.get("config"), dict):
        raise RecordError(f"{path} does not describe a run: it needs schema and config.")
    if info["schema"] > SCHEMA_VERSION:
        raise RecordError(
            f"{folder} was written by a newer Uptrend (schema {info['schema']}, this one reads"
            f" {SCHEMA_VERSION}). Upgrade Uptrend to read it."
        )
    if info["schema"] > 1:
        return info
    return {**info, "config": upgrade_keys(info["config"], noted=False)}


def to_polars(table: pa.Table) -> Any:
    """Turn an Arrow table into a polars frame (pandas needs no help: `table.to_pandas()`)."""
    try:
        import polars
    except ImportError:
        raise MissingExtra("polars", "frames") from None
    return polars.from_arrow(table)


def to_pandas(table: pa.Table) -> Any:
    """Turn an Arrow table into a pandas frame."""
    try:
        import pandas  # noqa: F401
    except ImportError:
        raise MissingExtra("pandas", "frames") from None
    return table.to_pandas()


def _table(lines: list[dict[str, Any]]) -> pa.Table:
    keys = list(dict.fromkeys(key for line in lines for key in line))
    check_cells("The run", len(lines), len(keys))
    return pa.table({key: pa.array([line.get(key) for line in lines]) for key in keys})


def read_parquet(paths: list[Path], columns: list[str] | None = None) -> pa.Table:
    """Read several files of rollouts as one table, or some of its columns; a column that a file of
    an older version lacks is null.
    """
    empty = ROLLOUT_SCHEMA.empty_table()
    tables = [empty if columns is None else empty.select(columns)]
    for path in paths:
        size_before = sum(table.nbytes for table in tables)
        tables.append(read_table(path, columns, size_before))
    return pa.concat_tables(tables, promote_options="default")
