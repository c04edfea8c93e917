"""Trackers behind one interface: W&B, Trackio, TensorBoard, MLflow, and a webhook that receives
findings.

Each package is an extra of its own name and is imported where its tracker starts. None of them asks
anything: W&B without an API key writes offline.
"""

import json
import os
import re
import time
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from uptrend.config import Track
from uptrend.records import ConfigError, MissingExtra

# No telemetry and no news from the trackers themselves, unless the user's environment wants them.
TRACKER_ENVIRONMENT = {
    "WANDB_SILENT": "true",
    "WANDB_CONSOLE": "off",
    "WANDB_ERROR_REPORTING": "false",
    "GRADIO_ANALYTICS_ENABLED": "False",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_LOGGING_LEVEL": "WARNING",
}
WEBHOOK_NAME = "webhook"
# Levels of an alert, as W&B and Trackio name them.
LEVEL_BY_SEVERITY = {"critical": "ERROR", "warning": "WARN", "note": "INFO"}
# Seconds that a webhook may take, and W&B to upload the rest of a run before it leaves it to `wandb
# sync`.
WEBHOOK_TIMEOUT_S = 10
UPLOAD_TIMEOUT_S = 300
# Parameters of a request, of which MLflow takes no more.
MAX_PARAMETERS_PER_REQUEST = 100
# How MLflow names the end of a run.
MLFLOW_STATUS = {"finished": "FINISHED", "stopped": "KILLED", "failed": "FAILED"}


@dataclass(frozen=True)
class TrackedRun:
    """Run as a tracker is to show it."""

    name: str
    project: str
    config: Mapping[str, Any]  # flat, with dotted keys
    notes: str
    path: Path  # run directory, absolute
    id: str = ""  # tracker's run to continue; empty for a new one
    step: int = 0  # last step that it has already


@dataclass(frozen=True)
class Alert:
    """Finding that asks for attention now."""

    id: str
    severity: str  # critical, warning, or note for one that no longer holds
    summary: str
    fix: str

    @property
    def text(self) -> str:
        """Summary and fix."""
        if not self.fix:
            return self.summary
        return f"{self.summary}\nFix: {self.fix}"


class Tracker:
    """Interface to a tracker; every method may raise."""

    package = ""  # package to import

    def start(self, run: TrackedRun) -> tuple[str, str]:
        """Start a run, or continue one; return its id and a text that says where it is shown."""
        raise NotImplementedError

    def metrics(self, step: int, values: Mapping[str, float], time_s: float) -> None:
        """Log numbers of a step, measured `time_s` seconds after 1970."""

    def table(
        self, name: str, columns: Sequence[str], rows: Sequence[Sequence[Any]], step: int
    ) -> None:
        """Log a table."""

    def alert(self, alert: Alert, step: int) -> None:
        """Report a finding; a note says that an earlier alert no longer holds."""

    def finish(self, status: str) -> None:
        """End the run: finished, stopped or failed."""


class Wandb(Tracker):
    """Weights & Biases."""

    package = "wandb"

    def start(self, run: TrackedRun) -> tuple[str, str]:
        import wandb
        from wandb.sdk.lib import wbauth

        settings = wandb.setup().settings
        is_offline = settings.mode == "offline"
        # The key is from the environment, .netrc or a settings file; nothing is asked.
        if settings.mode == "online":
            key = wbauth.authenticate_session(
                host=settings.base_url, source="uptrend", prompt=False
            )
            is_offline = key is None
        self._wandb = wandb
        self._run = wandb.init(
            project=run.project,
            name=run.name,
            id=run.id or None,
            resume="allow" if run.id else None,
            dir=os.environ.get("WANDB_DIR") or run.path,
            config=dict(run.config),
            notes=run.notes,
            mode="offline" if is_offline else None,
            settings=wandb.Settings(finish_timeout=UPLOAD_TIMEOUT_S),
        )
        # W&B's own step only rises, and drops what comes late: evaluations, and steps that a
        # resumed run makes again.
        self._run.define_metric("step")
        self._run.define_metric("*", step_metric="step")
        location = self._run.url or "disabled"
        if is_offline:
            location = f"offline, send it with: wandb sync {Path(self._run.dir).parent}"
        return self._run.id, location

    def metrics(self, step: int, values: Mapping[str, float], time_s: float) -> None:
        self._run.log({**values, "step": step, "_timestamp": time_s})

    def table(
        self, name: str, columns: Sequence[str], rows: Sequence[Sequence[Any]], step: int
    ) -> None:
        table = self._wandb.Table(
            columns=list(columns), data=[list(row) for row in rows], allow_mixed_types=True
        )
        self._run.log({name: table, "step": step})

    def alert(self, alert: Alert, step: int) -> None:  # noqa: ARG002 (has no steps)
        level = LEVEL_BY_SEVERITY[alert.severity]
        self._run.alert(f"{alert.severity}: {alert.id}", alert.text, level)
        tags = list(self._run.tags or ())
        if alert.severity == "note":
            tags = [tag for tag in tags if tag != alert.id]
        elif alert.id not in tags:
            tags.append(alert.id)
        self._run.tags = tuple(tags)

    def finish(self, status: str) -> None:
        self._run.finish(exit_code=status == "failed")


class Trackio(Tracker):
    """Trackio: a local database, or a Space where TRACKIO_SPACE_ID names one."""

    package = "trackio"

    def start(self, run: TrackedRun) -> tuple[str, str]:
        import trackio

        # Its own watch of the machine would see this process, which does not train.
        self._trackio = trackio
        self._run = trackio.init(
            run.project,
            name=run.name,
            config={**run.config, "notes": run.notes},
            embed=False,
            auto_log_cpu=False,
            resume="allow" if run.id else "never",
        )
        location = self._run.url or trackio.utils.TRACKIO_DIR
        return self._run.id, f"{location}, see it with: trackio show"

    def metrics(self, step: int, values: Mapping[str, float], time_s: float) -> None:  # noqa: ARG002 (keeps its own time)
        self._run.log(dict(values), step=step)

    def table(
        self, name: str, columns: Sequence[str], rows: Sequence[Sequence[Any]], step: int
    ) -> None:
        data = [list(row) for row in rows]
        self._run.log({name: self._trackio.Table(columns=list(columns), data=data)}, step=step)

    def alert(self, alert: Alert, step: int) -> None:
        level = self._trackio.AlertLevel[LEVEL_BY_SEVERITY[alert.severity]]
        self._run.alert(f"{alert.severity}: {alert.id}", alert.text, level, step=step)

    def finish(self, status: str) -> None:  # noqa: ARG002 (has no status)
        self._trackio.finish()


class TensorBoard(Tracker):
    """TensorBoard: event files in the run directory; tables are Markdown."""

    package = "tensorboard"

    def start(self, run: TrackedRun) -> tuple[str, str]:
        from tensorboard.compat.proto import event_pb2, summary_pb2
        from tensorboard.plugins.text import metadata
        from tensorboard.summary.writer.event_file_writer import EventFileWriter
        from tensorboard.util import tensor_util

        folder = run.path / "tensorboard"
        self._event_pb2 = event_pb2
        self._summary_pb2 = summary_pb2
        self._tensor_util = tensor_util
        self._text_metadata = metadata.create_summary_metadata("", "")
        self._writer = EventFileWriter(str(folder))
        # A session that starts at a step hides what earlier files have of it and of later ones.
        first_step = run.step + 1 if run.id else 0
        session = event_pb2.SessionLog(status=event_pb2.SessionLog.START)
        event = event_pb2.Event(wall_time=time.time(), step=first_step, session_log=session)
        self._writer.add_event(event)
        self._add_text("notes", run.notes, first_step)
        self.table("config", ("key", "value"), list(run.config.items()), first_step)
        return str(folder), f"{folder}, see it with: tensorboard --logdir {run.path.parent}"

    def metrics(self, step: int, values: Mapping[str, float], time_s: float) -> None:
        scalars: list[Any] = []
        for name, value in values.items():
            scalars.append(self._summary_pb2.Summary.Value(tag=name, simple_value=value))
        self._add(scalars, step, time_s)

    def table(
        self, name: str, columns: Sequence[str], rows: Sequence[Sequence[Any]], step: int
    ) -> None:
        lines: list[str] = []
        for row in (columns, *rows):
            cells = [str(cell).replace("|", "\\|").replace("\n", "<br>") for cell in row]
            lines.append(f"| {' | '.join(cells)} |")
        lines.insert(1, "|---" * len(columns) + "|")
        self._add_text(name, "\n".join(lines), step)

    def alert(self, alert: Alert, step: int) -> None:
        self._add_text(f"alerts/{alert.id}", f"**{alert.severity}** {alert.text}", step)

    def finish(self, status: str) -> None:  # noqa: ARG002 (has no status)
        self._writer.close()

    def _add_text(self, name: str, text: str, step: int) -> None:
        tensor = self._tensor_util.make_tensor_proto([text])
        value = self._summary_pb2.Summary.Value(
            tag=name, metadata=self._text_metadata, tensor=tensor
        )
        self._add([value], step, time.time())

    def _add(self, values: list[Any], step: int, time_s: float) -> None:
        summary = self._summary_pb2.Summary(value=values)
        event = self._event_pb2.Event(wall_time=time_s, step=step, summary=summary)
        self._writer.add_event(event)
        self._writer.flush()


class Mlflow(Tracker):
    """MLflow: the server that MLFLOW_TRACKING_URI names, or a database beside the run
    directories.
    """

    package = "mlflow"

    def start(self, run: TrackedRun) -> tuple[str, str]:
        from mlflow import MlflowClient, entities

        folder = run.path.parent
        uri = os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{folder / 'mlflow.db'}"
        self._entities = entities
        self._client = MlflowClient(tracking_uri=uri)
        if run.id:
            self._id = run.id
            self._client.update_run(self._id, status="RUNNING")
            return self._id, uri
        experiment = self._client.get_experiment_by_name(run.project)
        if experiment:
            experiment_id = experiment.experiment_id
        else:
            artifacts = None
            # Without a server, artifacts would go into the folder that happens to be the current
            # one.
            if uri.startswith("sqlite:"):
                artifacts = (folder / "mlartifacts").as_uri()
            experiment_id = self._client.create_experiment(run.project, artifacts)
        tags = {"mlflow.note.content": run.notes}
        created = self._client.create_run(experiment_id, run_name=run.name, tags=tags)
        self._id = created.info.run_id
        parameters = [entities.Param(key, str(value)) for key, value in run.config.items()]
        for first in range(0, len(parameters), MAX_PARAMETERS_PER_REQUEST):
            batch = parameters[first : first + MAX_PARAMETERS_PER_REQUEST]
            self._client.log_batch(self._id, params=batch)
        return self._id, uri

    def metrics(self, step: int, values: Mapping[str, float], time_s: float) -> None:
        # MLflow refuses other characters in a name, such as the @ of pass@k.
        renamed = {re.sub(r"[^\w./ :-]", "_", name): value for name, value in values.items()}
        time_ms = int(time_s * 1000)
        metrics: list[Any] = []
        for name, value in renamed.items():
            metrics.append(self._entities.Metric(name, value, time_ms, step))
        self._client.log_batch(self._id, metrics=metrics)

    def table(
        self, name: str, columns: Sequence[str], rows: Sequence[Sequence[Any]], step: int
    ) -> None:
        # The form that MLflow shows as a table; its own log_table needs pandas.
        table = {"columns": columns, "data": rows}
        self._client.log_dict(self._id, table, f"{name}/{step:06d}.json")

    def alert(self, alert: Alert, step: int) -> None:  # noqa: ARG002 (tags have no steps)
        self._client.set_tag(self._id, f"finding.{alert.id}", f"{alert.severity}: {alert.text}")

    def finish(self, status: str) -> None:
        self._client.set_terminated(self._id, MLFLOW_STATUS[status])


class Webhook(Tracker):
    """Webhook as Slack takes it; it receives findings and nothing else."""

    def __init__(self, url: str) -> None:
        self._url = url

    def start(self, run: TrackedRun) -> tuple[str, str]:
        self._name = run.name
        return "", ""

    def alert(self, alert: Alert, step: int) -> None:
        text = f"{self._name}, step {step}: {alert.severity}: {alert.id}\n{alert.text}"
        body = json.dumps({"text": text}).encode()
        headers = {"Content-Type": "application/json"}
        request = urllib.request.Request(self._url, body, headers)
        with urllib.request.urlopen(request, timeout=WEBHOOK_TIMEOUT_S):
            pass  # a status of 400 or above has raised


TRACKERS: dict[str, type[Tracker]] = {
    "wandb": Wandb,
    "trackio": Trackio,
    "tensorboard": TensorBoard,
    "mlflow": Mlflow,
}


def select_trackers(track: Track) -> list[str]:
    """Return the trackers that a config asks for; raise if a package or the webhook's variable is
    missing.
    """
    for name in track.to:
        if find_spec(TRACKERS[name].package) is None:
            raise MissingExtra(TRACKERS[name].package, name)
    if track.webhook and not _webhook_url(track).startswith(("http://", "https://")):
        raise ConfigError(
            f"track.webhook = {track.webhook}: this environment variable should hold a URL."
        )
    names: list[str] = list(dict.fromkeys(track.to))
    if track.webhook:
        names.append(WEBHOOK_NAME)
    return names


def make_tracker(name: str, track: Track) -> Tracker:
    """Make a tracker that has not started yet."""
    for key, value in TRACKER_ENVIRONMENT.items():
        os.environ.setdefault(key, value)
    if name == WEBHOOK_NAME:
        return Webhook(_webhook_url(track))
    return TRACKERS[name]()


def _webhook_url(track: Track) -> str:
    return os.environ.get(track.webhook.removeprefix("$"), "")
