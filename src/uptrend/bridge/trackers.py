"""Trackers behind one interface: W&B, Trackio, TensorBoard, MLflow, and a webhook that hears of
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
ENVIRONMENT = {
    "WANDB_SILENT": "true",
    "WANDB_CONSOLE": "off",
    "WANDB_ERROR_REPORTING": "false",
    "GRADIO_ANALYTICS_ENABLED": "False",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_LOGGING_LEVEL": "WARNING",
}
WEBHOOK = "webhook"
# of an alert, as W&B and Trackio name them
LEVELS = {"critical": "ERROR", "warning": "WARN", "note": "INFO"}
# Seconds that a webhook may take, and W&B to upload the rest of a run before it leaves it to `wandb
# sync`.
WEBHOOK_SECONDS = 10
UPLOAD_SECONDS = 300


@dataclass(frozen=True)
class Start:
    """Description of a run for a tracker."""

    name: str
    project: str
    config: Mapping[str, Any]  # flat, with dotted keys
    notes: str
    path: Path  # run directory, absolute
    id: str = ""  # run of the tracker to go on with; empty for a new one
    step: int = 0  # last step that it has already


@dataclass(frozen=True)
class Alert:
    """Finding that somebody should hear of now."""

    id: str
    severity: str  # critical, warning, or note for one that no longer holds
    summary: str
    fix: str

    @property
    def text(self) -> str:
        """Summary and fix."""
        return f"{self.summary}\nFix: {self.fix}" if self.fix else self.summary


class Tracker:
    """Interface to a tracker; every method may raise."""

    package = ""  # package to import

    def start(self, run: Start) -> tuple[str, str]:
        """Start a run, or go on with one; return its id and where it is to be found."""
        raise NotImplementedError

    def metrics(self, step: int, values: Mapping[str, float], when: float) -> None:
        """Log numbers of a step, taken at a time in seconds since 1970."""

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

    def start(self, run: Start) -> tuple[str, str]:
        import wandb
        from wandb.sdk.lib import wbauth

        settings = wandb.setup().settings
        is_offline = settings.mode == "offline"
        # with a key from the environment, .netrc or a settings file, and no question
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
            settings=wandb.Settings(finish_timeout=UPLOAD_SECONDS),
        )
        # W&B's own step only rises, and drops what comes late: evaluations, and steps that a
        # resumed run makes again.
        self._run.define_metric("step")
        self._run.define_metric("*", step_metric="step")
        offline = f"offline, send it with: wandb sync {Path(self._run.dir).parent}"
        return self._run.id, offline if is_offline else self._run.url or "disabled"

    def metrics(self, step: int, values: Mapping[str, float], when: float) -> None:
        self._run.log({**values, "step": step, "_timestamp": when})

    def table(
        self, name: str, columns: Sequence[str], rows: Sequence[Sequence[Any]], step: int
    ) -> None:
        table = self._wandb.Table(
            columns=list(columns), data=[list(row) for row in rows], allow_mixed_types=True
        )
        self._run.log({name: table, "step": step})

    def alert(self, alert: Alert, step: int) -> None:  # noqa: ARG002 (has no steps)
        self._run.alert(f"{alert.severity}: {alert.id}", alert.text, LEVELS[alert.severity])
        tags = dict.fromkeys((*(self._run.tags or ()), alert.id))
        if alert.severity == "note":
            del tags[alert.id]
        self._run.tags = tuple(tags)

    def finish(self, status: str) -> None:
        self._run.finish(exit_code=status == "failed")


class Trackio(Tracker):
    """Trackio: a local database, or a Space where TRACKIO_SPACE_ID names one."""

    package = "trackio"

    def start(self, run: Start) -> tuple[str, str]:
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
        return (
            self._run.id,
            f"{self._run.url or trackio.utils.TRACKIO_DIR}, see it with: trackio show",
        )

    def metrics(self, step: int, values: Mapping[str, float], when: float) -> None:  # noqa: ARG002 (keeps its own time)
        self._run.log(dict(values), step=step)

    def table(
        self, name: str, columns: Sequence[str], rows: Sequence[Sequence[Any]], step: int
    ) -> None:
        data = [list(row) for row in rows]
        self._run.log({name: self._trackio.Table(columns=list(columns), data=data)}, step=step)

    def alert(self, alert: Alert, step: int) -> None:
        level = self._trackio.AlertLevel[LEVELS[alert.severity]]
        self._run.alert(f"{alert.severity}: {alert.id}", alert.text, level, step=step)

    def finish(self, status: str) -> None:  # noqa: ARG002 (has no status)
        self._trackio.finish()


class TensorBoard(Tracker):
    """TensorBoard: event files in the run directory; tables are Markdown."""

    package = "tensorboard"

    def start(self, run: Start) -> tuple[str, str]:
        from tensorboard.compat.proto import event_pb2, summary_pb2
        from tensorboard.plugins.text import metadata
        from tensorboard.summary.writer.event_file_writer import EventFileWriter
        from tensorboard.util import tensor_util

        folder = run.path / "tensorboard"
        self._events = event_pb2
        self._summaries = summary_pb2
        self._tensors = tensor_util
        self._is_text = metadata.create_summary_metadata("", "")
        self._writer = EventFileWriter(str(folder))
        # TensorBoard no longer shows what earlier files have of these steps.
        first = run.step + 1 if run.id else 0
        log = event_pb2.SessionLog(status=event_pb2.SessionLog.START)
        self._writer.add_event(event_pb2.Event(wall_time=time.time(), step=first, session_log=log))
        self._text("notes", run.notes, first)
        self.table("config", ("key", "value"), list(run.config.items()), first)
        return str(folder), f"{folder}, see it with: tensorboard --logdir {run.path.parent}"

    def metrics(self, step: int, values: Mapping[str, float], when: float) -> None:
        self._add(
            [self._summaries.Summary.Value(tag=k, simple_value=v) for k, v in values.items()],
            step,
            when,
        )

    def table(
        self, name: str, columns: Sequence[str], rows: Sequence[Sequence[Any]], step: int
    ) -> None:
        cells = [
            [str(cell).replace("|", "\\|").replace("\n", "<br>") for cell in row]
            for row in (columns, *rows)
        ]
        lines = [f"| {' | '.join(row)} |" for row in cells]
        self._text(name, "\n".join([lines[0], "|---" * len(columns) + "|", *lines[1:]]), step)

    def alert(self, alert: Alert, step: int) -> None:
        self._text(f"alerts/{alert.id}", f"**{alert.severity}** {alert.text}", step)

    def finish(self, status: str) -> None:  # noqa: ARG002 (has no status)
        self._writer.close()

    def _text(self, name: str, text: str, step: int) -> None:
        tensor = self._tensors.make_tensor_proto([text])
        self._add(
            [self._summaries.Summary.Value(tag=name, metadata=self._is_text, tensor=tensor)],
            step,
            time.time(),
        )

    def _add(self, values: list[Any], step: int, when: float) -> None:
        summary = self._summaries.Summary(value=values)
        self._writer.add_event(self._events.Event(wall_time=when, step=step, summary=summary))
        self._writer.flush()


class Mlflow(Tracker):
    """MLflow: the server that MLFLOW_TRACKING_URI names, or a database beside the run
    directories.
    """

    package = "mlflow"

    def start(self, run: Start) -> tuple[str, str]:
        from mlflow import MlflowClient, entities

        folder = run.path.parent
        uri = os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{folder / 'mlflow.db'}"
        # Without a server, artifacts would go into the folder that happens to be the current one.
        artifacts = (folder / "mlartifacts").as_uri() if uri.startswith("sqlite:") else None
        self._entities = entities
        self._client = MlflowClient(tracking_uri=uri)
        if run.id:
            self._id = run.id
            self._client.update_run(self._id, status="RUNNING")
            return self._id, uri
        found = self._client.get_experiment_by_name(run.project)
        experiment = (
            found.experiment_id if found else self._client.create_experiment(run.project, artifacts)
        )
        tags = {"mlflow.note.content": run.notes}
        self._id = self._client.create_run(experiment, run_name=run.name, tags=tags).info.run_id
        parameters = [entities.Param(key, str(value)) for key, value in run.config.items()]
        for at in range(0, len(parameters), 100):  # the most that MLflow takes at once
            self._client.log_batch(self._id, params=parameters[at : at + 100])
        return self._id, uri

    def metrics(self, step: int, values: Mapping[str, float], when: float) -> None:
        # no @ of pass@k
        named = {re.sub(r"[^\w./ :-]", "_", key): value for key, value in values.items()}
        metrics = [
            self._entities.Metric(key, value, int(when * 1000), step)
            for key, value in named.items()
        ]
        self._client.log_batch(self._id, metrics=metrics)

    def table(
        self, name: str, columns: Sequence[str], rows: Sequence[Sequence[Any]], step: int
    ) -> None:
        # The form that MLflow shows as a table; its own log_table needs pandas.
        self._client.log_dict(
            self._id, {"columns": columns, "data": rows}, f"{name}/{step:06d}.json"
        )

    def alert(self, alert: Alert, step: int) -> None:  # noqa: ARG002 (tags have no steps)
        self._client.set_tag(self._id, f"finding.{alert.id}", f"{alert.severity}: {alert.text}")

    def finish(self, status: str) -> None:
        self._client.set_terminated(
            self._id, {"stopped": "KILLED", "failed": "FAILED"}.get(status, "FINISHED")
        )


class Webhook(Tracker):
    """Webhook as Slack takes it; it hears of findings and of nothing else."""

    def __init__(self, url: str) -> None:
        self._url = url

    def start(self, run: Start) -> tuple[str, str]:
        self._name = run.name
        return "", ""

    def alert(self, alert: Alert, step: int) -> None:
        text = f"{self._name}, step {step}: {alert.severity}: {alert.id}\n{alert.text}"
        body = json.dumps({"text": text}).encode()
        kind = {"Content-Type": "application/json"}
        with urllib.request.urlopen(
            urllib.request.Request(self._url, body, kind), timeout=WEBHOOK_SECONDS
        ):
            pass  # an answer of 400 or above has raised


TRACKERS: dict[str, type[Tracker]] = {
    "wandb": Wandb,
    "trackio": Trackio,
    "tensorboard": TensorBoard,
    "mlflow": Mlflow,
}


def chosen(track: Track) -> list[str]:
    """Return the trackers that a config asks for; raise where a package or the webhook's variable
    is missing.
    """
    for name in track.to:
        if find_spec(TRACKERS[name].package) is None:
            raise MissingExtra(TRACKERS[name].package, name)
    if track.webhook and not _webhook_url(track).startswith(("http://", "https://")):
        raise ConfigError(
            f"track.webhook = {track.webhook}: this environment variable should hold a URL."
        )
    return [*dict.fromkeys(track.to), *([WEBHOOK] if track.webhook else [])]


def make_tracker(name: str, track: Track) -> Tracker:
    """Make a tracker that has not started yet."""
    for key, value in ENVIRONMENT.items():
        os.environ.setdefault(key, value)
    return Webhook(_webhook_url(track)) if name == WEBHOOK else TRACKERS[name]()


def _webhook_url(track: Track) -> str:
    return os.environ.get(track.webhook.removeprefix("$"), "")
