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


class Run:
    """View of a run directory; one that still grows or was killed half-way reads too.

    A run of an older schema has today's names here; its files stay as they are.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.info: dict[str, Any] = _read_info(self.path)
        self._damaged: dict[str, int] = {}

    def __repr__(self) -> str:
        told = f", {self.stopped.sentence}" if self.stopped is not None else ""
        return (
            f"Run({str(self.path)!r}, {self.status}, {self.last_step} of {self.steps} steps{told})"
        )

    def _repr_html_(self) -> str:
        """Return a table for notebooks: where it is, held-out accuracy, last metrics, findings."""
        from uptrend.records.summary import summarize  # it reads runs itself

        row = summarize(self)
        rows = [
            ("run", row["path"]),
            ("status", f"{row['status']}, {row['step']} of {row['steps']} steps"),
        ]
        for evaluation in (row["before"], row["after"]):
            if evaluation is not None and evaluation["accuracy"] is not None:
                ends = f"{evaluation['low']:.1%} to {evaluation['high']:.1%}"
                accuracy = f"{evaluation['accuracy']:.1%} ({ends})"
                rows.append((f"held-out after step {evaluation['step']}", accuracy))
        last = self.metric_lines[-1] if self.metric_lines else {}
        for key in ("reward/mean", "advantage/dead/share"):
            if last.get(key) is not None:
                rows.append((key, f"{last[key]:.4g}"))
        if (report := self.report) is not None:
            rows.append(("doctor", f"{dated(report['step'])}: {headline(report)}"))
            if report["step"] == self.last_step or self.status == "running":
                rows += [(f["severity"], f"{f['id']}: {f['summary']}") for f in causes(report)[:3]]
            else:
                rows.append(("", f"Out of date. A new one: uptrend.diagnose({str(self.path)!r})"))
        return html_table(rows)

    @property
    def name(self) -> str:
        return self.path.resolve().name

    @property
    def schema(self) -> int:
        """Version of the layout that it was written in."""
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
        """Metrics as they were when first asked for, one dictionary per step."""
        lines = self._records("metrics.jsonl")
        return lines if self.schema > 1 else list(map(upgrade_metrics, lines))

    @property
    def evals(self) -> pa.Table:
        """One row per evaluation."""
        return _table(self.eval_lines)

    @cached_property
    def eval_lines(self) -> list[dict[str, Any]]:
        """Evaluations as they were when first asked for."""
        return self._records("evals.jsonl")

    @property
    def events(self) -> list[dict[str, Any]]:
        """Events in order; events.toml has their kinds and fields."""
        lines = self._records("events.jsonl")
        return lines if self.schema > 1 else list(map(upgrade_event, lines))

    def _records(self, name: str) -> list[dict[str, Any]]:
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
                # else each has its own
                records.append({sys.intern(key): value for key, value in record.items()})
            elif line.endswith(b"\n"):  # else it is being written, or was as its process was killed
                self._damaged[name] += 1
        return records

    @property
    def notes(self) -> list[str]:
        """Sentences on lines that could not be read, one per file."""
        self.metric_lines, self.eval_lines, self.events  # noqa: B018 (each counts its own)
        return [
            f"{count} line{'' if count == 1 else 's'} of {name} could not be read and"
            f" {'is' if count == 1 else 'are'} left out."
            for name, count in self._damaged.items()
            if count
        ]

    @property
    def report(self) -> dict[str, Any] | None:
        """Last report of the doctor, as findings.json has it; its `step` dates it. None where there
        is none.
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
        if "step" not in report:  # of a version that counted points alone
            points = self.metric_lines[: report.get("steps", 0)]
            report["step"] = int(points[-1]["step"]) if points else 0
        return report

    def rollouts(self, step: int | None = None) -> pa.Table:
        """Read the rollouts of one step, or of all; one row per sequence."""
        steps = self.rollout_steps
        if step is not None and step not in steps:
            recorded = f"{steps[0]} to {steps[-1]}" if steps else "none yet"
            raise RecordError(f"{self.path} has no rollouts of step {step}; it has {recorded}.")
        folders = [
            self.path / "rollouts" / f"{one:06d}" for one in (steps if step is None else [step])
        ]
        tables = [read_parquet(sorted(folder.glob("part-*.parquet"))) for folder in folders]
        return pa.concat_tables([ROLLOUT_SCHEMA.empty_table(), *tables], promote_options="default")

    @property
    def rollout_steps(self) -> list[int]:
        """Steps whose rollouts were recorded, ascending; a step counts where its line is, which
        comes after them.
        """
        lines = {line["step"] for line in self.metric_lines}
        return sorted(lines.intersection(recorded_steps(self.path / "rollouts").values()))

    def eval_rollouts(self, step: int, label: str = "") -> pa.Table:
        """Read the held-out rollouts of the evaluation after a step; those of a further set by its
        label.
        """
        path = eval_path(self.path, step, label)
        steps = [line["step"] for line in self.eval_lines]
        if step not in steps or not path.exists():
            recorded = ", ".join(map(str, steps)) or "none"
            on = f" on {label}" if label else ""
            raise RecordError(
                f"{self.path} has no evaluation{on} after step {step}; it has {recorded}."
            )
        return read_parquet([path])

    @property
    def last_step(self) -> int:
        """Last step with a metrics line; 0 before the first."""
        return int(self.metric_lines[-1]["step"]) if self.metric_lines else 0

    @property
    def start(self) -> int:
        """Step whose weights it began with: 0, but for a replay."""
        return int(self.info.get("replay", {}).get("step", 0))

    @property
    def steps(self) -> int | None:
        """Last step that is planned; None where that is not known."""
        found = self.info.get("replay", {}).get("last") or self.config.get("learning", {}).get(
            "steps"
        )
        return None if found is None else int(found)

    @property
    def status(self) -> str:
        """State: running, finished, stopped (interrupted, or by an observer), failed, or killed."""
        if is_being_written(self.path):
            return "running"
        kind = self._turning_point.get("event")
        return str(kind) if kind in END_EVENTS else "killed"

    @property
    def stopped(self) -> Stop | None:
        """Reason of a run that was stopped, and by whom; None for a run that ended otherwise or
        goes on.
        """
        last = self._turning_point
        if last.get("event") != "stopped":
            return None
        return Stop(
            str(last.get("reason", "")),
            last.get("stopped_by", "observer"),
            str(last.get("finding", "")),
        )

    @property
    def _turning_point(self) -> dict[str, Any]:
        return next(
            (
                event
                for event in reversed(self.events)
                if event.get("event") in START_EVENTS + END_EVENTS
            ),
            {},
        )

    @property
    def checkpoints(self) -> list[Path]:
        """Checkpoints, oldest first; copies that a user keeps beside them under other names are
        none.
        """
        return list(step_folders(self.path / "checkpoints").values())


def step_folders(checkpoints: Path) -> dict[int, Path]:
    """Return the checkpoints in a folder by their step, ascending."""
    found = (
        (re.fullmatch(r"step-(\d{6,})", path.name), path)
        for path in checkpoints.glob("step-*")
        if path.is_dir()
    )
    return dict(sorted((int(match[1]), path) for match, path in found if match))


def _read_info(folder: Path) -> dict[str, Any]:
    path = folder / "run.json"
    try:
        info = read_json(path)
    except (FileNotFoundError, NotADirectoryError):
        raise RecordError(f"{folder} holds no run (no run.json).") from None
    except OSError as error:
        raise RecordError(f"{path} could not be read: {error.strerror}.") from None
    except (ValueError, RecursionError) as error:
        raise RecordError(f"{path} is not JSON: {error}.") from None
    if (
        not isinstance(info, dict)
        or not isinstance(info.get("schema"), int)
        or not isinstance(info.get("config"), dict)
    ):
        raise RecordError(f"{path} does not describe a run: it needs schema and config.")
    if info["schema"] > SCHEMA_VERSION:
        raise RecordError(
            f"{folder} was written by a newer Uptrend (schema {info['schema']}, this one reads"
            f" {SCHEMA_VERSION}). Upgrade Uptrend to read it."
        )
    return (
        info
        if info["schema"] > 1
        else {**info, "config": upgrade_keys(info["config"], noted=False)}
    )


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
    """Read several files of rollouts as one table, or some of its columns; one that an older
    version lacks is null.
    """
    tables = [
        ROLLOUT_SCHEMA.empty_table()
        if columns is None
        else ROLLOUT_SCHEMA.empty_table().select(columns)
    ]
    for path in paths:
        tables.append(read_table(path, columns, sum(table.nbytes for table in tables)))
    return pa.concat_tables(tables, promote_options="default")
