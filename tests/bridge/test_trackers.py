"""Trackers, by what their own packages read back; and a run beside trackers that fail or hang."""

import http.server
import json
import math
import os
import random
import re
import socket
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

import uptrend
from synthetic import evaluation_of, info_of, line_of, metrics_of, rollout_of, write_run
from uptrend.bridge import tracking as sending
from uptrend.bridge.importers.readers import open_log
from uptrend.bridge.importers.trackers import read_events, read_wandb
from uptrend.bridge.trackers import (
    TRACKER_ENVIRONMENT,
    TRACKERS,
    Alert,
    TrackedRun,
    Tracker,
    make_tracker,
)
from uptrend.config import load_config
from uptrend.doctor.report import save_report
from uptrend.lab.plan import what_matters
from uptrend.records import ConfigError, MissingExtra, Run, RunDirectory, rollouts_table
from uptrend.records.errors import install_command
from uptrend.runner import diagnose, observers
from uptrend.runner.observers import Tracking
from uptrend.runner.prepare import need_extras

STEPS = 4
EVALUATED = (0, 2, 4)
KEYS = (
    "MLFLOW_TRACKING_URI",
    "WANDB_API_KEY",
    "WANDB_DIR",
    "WANDB_MODE",
    "TRACKIO_SPACE_ID",
    "HF_TOKEN",
)


@dataclass
class Shown:
    """A run as a tracker has it."""

    name: str
    metrics: dict[str, dict[int, float]] = field(default_factory=dict)  # by key and step
    tables: dict[str, dict[int, int]] = field(
        default_factory=dict
    )  # number of rows by name and step
    texts: str = ""  # every table as text
    alerts: str = ""
    config: Mapping[str, Any] = field(default_factory=dict)

    def put(self, step: int, values: Mapping[str, Any]) -> None:
        for key, value in values.items():
            self.metrics.setdefault(key, {})[step] = value

    def put_table(self, name: str, step: int, rows: list[Any]) -> None:
        self.tables.setdefault(name, {})[step] = len(rows)
        self.texts += json.dumps(rows)


def read_back_wandb(run: Path) -> Shown:
    shown = Shown("")
    for file in sorted(run.glob("wandb/offline-run-*/run-*.wandb")):
        (log,) = read_wandb(open_log(file)) or []
        shown.name, shown.config = log.name, shown.config or log.facts
        shown.alerts += file.read_bytes().decode(errors="replace")
        for row in log.rows:
            step = row.pop("step")
            if place := [key for key in row if key.endswith("/path")]:
                table = json.loads((file.parent / "files" / row[place[0]]).read_text())
                shown.put_table(place[0].removesuffix("/path"), step, table["data"])
            else:
                shown.put(
                    step, {key: value for key, value in row.items() if not key.startswith("_")}
                )
    return shown


def read_back_trackio(run: Path) -> Shown:
    with sqlite3.connect(run.parents[1] / "trackio" / "sums.db") as database:
        rows = database.execute("select run_name, step, metrics from metrics").fetchall()
        ((config,),) = database.execute("select config from configs").fetchall()
        alerts = database.execute("select title, text from alerts").fetchall()
    (name,) = {row[0] for row in rows}
    shown = Shown(name, alerts=str(alerts), config=json.loads(config))
    for _, step, line in rows:
        values = json.loads(line)
        held = {key: value for key, value in values.items() if isinstance(value, dict)}
        for key, value in held.items():
            shown.put_table(key, step, value["_value"])
        shown.put(step, {key: value for key, value in values.items() if key not in held})
    return shown


def read_back_tensorboard(run: Path) -> Shown:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    seen = EventAccumulator(
        str(run / "tensorboard"), size_guidance={"scalars": 0, "tensors": 0}
    ).Reload()
    shown = Shown("first")  # the folder is the run's
    for key in seen.Tags()["scalars"]:
        shown.metrics[key] = {event.step: event.value for event in seen.Scalars(key)}
    for key in seen.Tags()["tensors"]:
        for event in seen.Tensors(key):
            text = event.tensor_proto.string_val[0].decode()
            if key.startswith("alerts/"):
                shown.alerts += f"critical: {key}: {text}"
            elif key == "config":
                pairs = [line.strip("| ").split(" | ") for line in text.splitlines()[2:]]
                shown.config = {
                    pair[0]: json.loads(pair[1]) for pair in pairs if pair[0] == "learning.lr"
                }
            elif key != "notes":
                shown.put_table(key, event.step, text.splitlines()[2:])
    # Our own reader sees the same numbers.
    files = sorted((run / "tensorboard").iterdir())
    rows = [row for file in files for log in read_events(open_log(file)) or [] for row in log.rows]
    assert {
        row["step"]: row["reward/mean"] for row in rows if "reward/mean" in row
    } == shown.metrics["reward/mean"]
    return shown


def read_back_mlflow(run: Path) -> Shown:
    from mlflow import MlflowClient

    client = MlflowClient(tracking_uri=f"sqlite:///{run.parent / 'mlflow.db'}")
    experiment = client.get_experiment_by_name("sums")
    assert experiment is not None
    (there,) = client.search_runs([experiment.experiment_id])
    config = {"learning.lr": float(there.data.params["learning.lr"])}
    shown = Shown(str(there.info.run_name), alerts=str(there.data.tags), config=config)
    for key in there.data.metrics:
        shown.metrics[key] = {
            m.step: m.value for m in client.get_metric_history(there.info.run_id, key)
        }
    for folder in client.list_artifacts(there.info.run_id):
        for file in client.list_artifacts(there.info.run_id, folder.path):
            path = Path(client.download_artifacts(there.info.run_id, file.path))
            shown.put_table(folder.path, int(path.stem), json.loads(path.read_text())["data"])
    assert there.info.status == "FINISHED"
    return shown


READERS = {
    "wandb": read_back_wandb, "trackio": read_back_trackio, "tensorboard": read_back_tensorboard,
    "mlflow": read_back_mlflow,
}  # fmt: skip


def environment(home: Path) -> dict[str, str]:
    """Variables with which nothing is written outside a folder and nobody is logged in."""
    folders = {f"XDG_{kind}_HOME": str(home / kind.lower()) for kind in ("CACHE", "CONFIG", "DATA")}
    kept = {key: value for key, value in os.environ.items() if key not in KEYS}
    return {**kept, **folders, "HOME": str(home), "TRACKIO_DIR": str(home / "trackio")}


@pytest.fixture
def at_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The same for the processes that this one starts."""
    for key in KEYS:
        monkeypatch.delenv(key, raising=False)
    for key, value in {**TRACKER_ENVIRONMENT, **environment(tmp_path)}.items():
        monkeypatch.setenv(key, value)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def expect(shown: Shown, run: Run) -> None:
    """Compare what a tracker shows with what the records hold."""
    wanted: dict[str, dict[int, float]] = {}
    for line in run.metric_lines:
        for key, value in line.items():
            if key not in ("step", "time") and value is not None:
                wanted.setdefault(key, {})[line["step"]] = value
    for line in run.eval_lines:
        for key in ("accuracy", "low", "high", "tasks"):
            wanted.setdefault(f"eval/{key}", {})[line["step"]] = line[key]
    assert set(wanted) <= set(shown.metrics)
    for key, values in wanted.items():
        assert shown.metrics[key] == pytest.approx(values, rel=1e-5), key


@pytest.fixture(scope="module")
def sent(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """A run sent to every tracker by the command line: its directory, and what the command
    printed.
    """
    home = tmp_path_factory.mktemp("home")
    run = write_run(home / "runs" / "demo", steps=STEPS)
    info = json.loads((run / "run.json").read_text())
    del info["config"]["track"]  # as a version without trackers wrote it
    (run / "run.json").write_text(json.dumps(info))
    words = [word for name in TRACKERS for word in ("--to", name)]
    command = [
        sys.executable,
        "-m",
        "uptrend",
        "track",
        "demo",
        "--json",
        "--project",
        "sums",
        "--name",
        "first",
    ]
    done = subprocess.run(
        [*command, *words], cwd=home, env=environment(home), capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert {path.name for path in home.iterdir()} <= {
        "runs",
        "trackio",
        "cache",
        "config",
        "data",
        ".cache",
        ".config",
    }
    assert {path.name for path in (home / "runs").iterdir()} == {"demo", "mlflow.db", "mlartifacts"}
    return run, json.loads(done.stdout)


@pytest.mark.slow
@pytest.mark.parametrize("name", TRACKERS)
def test_a_run_is_sent_whole(sent: tuple[Path, dict[str, Any]], name: str) -> None:
    path, printed = sent
    shown, run = READERS[name](path), Run(path)
    expect(shown, run)
    assert shown.name == "first"
    assert shown.config["learning.lr"] == run.config["learning"]["lr"]
    assert shown.tables["held-out"] == dict.fromkeys(EVALUATED, 40)
    assert shown.tables["rollouts"] == {1: 1, 2: 1, 4: 1}
    assert "2 + 3 =" in shown.texts
    assert list(shown.tables["findings"]) == [STEPS]
    assert "run.nonfinite" in shown.texts
    assert "critical" in shown.alerts
    assert "run.nonfinite" in shown.alerts
    (one,) = [each for each in printed["trackers"] if each["tracker"] == name]
    points = sum(len(values) for key, values in shown.metrics.items() if key != "step")
    assert one["sent"]["metrics"] == points
    assert one["sent"]["rows of held-out"] == 120
    assert one["sent"]["tables"] == 7
    assert one["project"] == "sums"
    assert one["id"]


def go_on(path: Path, steps: range, name: str) -> None:
    """Write steps into a run directory and send them, as a run does."""
    directory, since = RunDirectory(path), Run(path).last_step
    directory.event("resumed" if since else "started", pid=os.getpid())
    observer = Tracking([name])
    is_apart = name in (
        "tensorboard",
        "trackio",
    )  # quick to load; Trackio reads its folder once per process
    if is_apart:
        observer.before(Run(path))
    for step in steps:
        directory.step(
            metrics_of(step, 4, random.Random(step)), rollouts_table("demo", [rollout_of(step)])
        )
    held = evaluation_of(steps.stop - 1, 20, 40)
    rows = [rollout_of(held.step, f"e{i}", task=f"task-{i}") for i in range(40)]
    directory.evaluation(line_of(held), rollouts_table("demo", rows))
    directory.event("finished", step=held.step)
    if is_apart:
        observer.after(Run(path))
        return
    track = load_config(Run(path).config).track
    sender = sending.Sender(
        path, name, make_tracker(name, track), track, continues=True, since=since,
        on_event=lambda line: directory.event(line.pop("event"), tracker=name, **line),
    )  # fmt: skip
    sender.send()
    sender.finish(None)


@pytest.mark.slow
@pytest.mark.parametrize("name", TRACKERS)
def test_a_resumed_run_goes_on_with_the_trackers_run(at_home: Path, name: str) -> None:
    path = at_home / "runs" / "demo"
    RunDirectory.create(path, info_of("demo", ("track.project=sums", "track.name=first"))).unlock()
    go_on(path, range(1, 4), name)
    RunDirectory(path).rewind(2)  # to a checkpoint, as `uptrend train --resume` does
    go_on(path, range(3, 5), name)
    events = [event for event in Run(path).events if event["event"] in ("tracked", "track-failed")]
    assert [event["event"] for event in events] == ["tracked", "tracked"]
    assert len({event["id"] for event in events}) == 1
    shown = READERS[name](path)
    assert shown.name == "first"
    assert sorted(shown.metrics["reward/mean"]) == [1, 2, 3, 4]
    assert 4 in shown.tables["held-out"]
    # TensorBoard can hide what the rewind took back.
    assert sorted(shown.metrics["eval/accuracy"]) == ([4] if name == "tensorboard" else [3, 4])


class Server(http.server.ThreadingHTTPServer):
    """A webhook that keeps what it was sent, or answers with an error."""

    def __init__(self, status: int = 200) -> None:
        self.status, self.texts = status, list[str]()
        super().__init__(("127.0.0.1", 0), Answer)


class Answer(http.server.BaseHTTPRequestHandler):
    server: Server

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.texts.append(json.loads(body)["text"])
        self.send_response(self.server.status)
        self.end_headers()

    def log_message(self, *_: object) -> None: ...


@pytest.fixture
def serve(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Server]]:
    """`serve(status=500)` starts a webhook and puts its URL into $HOOK."""
    servers: list[Server] = []

    def start(status: int = 200) -> Server:
        servers.append(Server(status))
        threading.Thread(target=servers[-1].serve_forever, daemon=True).start()
        monkeypatch.setenv("HOOK", f"http://127.0.0.1:{servers[-1].server_port}/")
        return servers[-1]

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


FINDING = {
    "id": "kl.runaway",
    "severity": "warning",
    "confidence": "high",
    "summary": "It runs away.",
    "step": 3,
}


def test_a_webhook_hears_of_each_finding_once(at_home: Path, serve: Callable[..., Server]) -> None:
    server = serve()
    path = write_run(at_home / "runs" / "demo", steps=2, overrides=("track.webhook=$HOOK",))
    directory = RunDirectory(path)
    note = FINDING | {"id": "data.duplicates", "severity": "note"}
    for finding in (FINDING, FINDING | {"severity": "critical"}, note):
        observer = Tracking(["webhook"])
        observer.before(Run(path))
        directory.event("finding", **finding)
        observer.after(Run(path))
    assert [text.splitlines()[0] for text in server.texts] == [
        "demo, step 3: warning: kl.runaway",
        "demo, step 3: critical: kl.runaway",
    ]
    assert "It runs away.\nFix: " in server.texts[0]
    assert len([event for event in Run(path).events if event["event"] == "notified"]) == 2
    assert server.server_name not in (path / "run.json").read_text()


def test_a_tracker_hears_what_no_longer_holds(at_home: Path, serve: Callable[..., Server]) -> None:
    server = serve()
    path = write_run(at_home / "runs" / "demo", steps=6, overrides=("track.webhook=$HOOK",))
    directory = RunDirectory(path)
    early = {"severity": "warning", "symptom_of": None, "summary": "It was measured.", "fix": None}
    events: list[tuple[str, dict[str, Any]]] = [
        ("preflight", {"findings": [{**early, "id": "advantage.dead-groups-low"}]}),
        ("finding", FINDING),
        ("withdrawn", {"id": "kl.runaway", "step": 5}),
    ]
    for kind, fields in events:
        directory.event(kind, **fields)
    save_report(path, [replace(diagnose(path), findings=())])
    for _ in range(2):  # a resumed run says nothing twice
        observer = Tracking(["webhook"])
        observer.before(Run(path))
        observer.after(Run(path))
    assert [text.splitlines()[0] for text in server.texts] == [
        "demo, step 0: warning: advantage.dead-groups-low",
        "demo, step 3: warning: kl.runaway",
        "demo, step 5: note: kl.runaway",
        "demo, step 6: note: advantage.dead-groups-low",
    ]
    assert server.texts[2].endswith("It no longer asks for a change.")


RECIPE: dict[str, Any] = {
    "name": "tracked", "model": {"name": "tiny"}, "tasks": {"train": 8}, "eval": {"tasks": 4, "every": 1},
    "sampling": {"groups": 2, "size": 4, "max_tokens": 4}, "learning": {"steps": 3}, "compute": {"threads": 1},
}  # fmt: skip


@pytest.mark.slow
def test_trackers_that_fail_or_hang_change_nothing(
    at_home: Path,
    serve: Callable[..., Server],
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    server = serve(500)
    with socket.create_server(("127.0.0.1", 0)) as silent:  # accepts, and never answers
        host = f"127.0.0.1:{silent.getsockname()[1]}"
        monkeypatch.setenv("WANDB_BASE_URL", f"http://{host}")
        (at_home / ".netrc").write_text(f"machine {host} login user password {'0' * 40}")
        monkeypatch.setattr(observers, "TRACKERS_TIMEOUT_S", 12.0)
        alone = uptrend.train(RECIPE, runs=at_home, name="alone")

        class Finds:
            """Observer that puts a finding into the events, as the live doctor does."""

            def before(self, run: Run) -> None:
                RunDirectory(run.path).event("finding", **FINDING)

            def step(self, record: Any) -> None: ...

            def after(self, run: Run) -> None: ...

        track = {"to": ["wandb", "tensorboard"], "webhook": "$HOOK"}
        began = time.monotonic()
        run = uptrend.train(
            RECIPE | {"track": track}, runs=at_home, name="watched", observers=[Finds()]
        )
        assert time.monotonic() - began < 40  # W&B waits 90 s for an answer, and again
    assert run.status == "finished"

    def figures(run: Run) -> list[dict[str, Any]]:
        left_out = ("time", "seconds", "memory")
        return [
            {k: v for k, v in line.items() if not k.startswith(left_out)}
            for line in run.metric_lines
        ]

    assert figures(run) == figures(alone)
    assert len(run.metric_lines) == 3
    failed = {
        event["tracker"]: event["error"] for event in run.events if event["event"] == "track-failed"
    }
    assert "did not end within 12 s" in failed["wandb"]
    assert "HTTP Error 500" in failed["webhook"]
    assert "tensorboard" not in failed
    err = capfd.readouterr().err
    assert "wandb: it did not end within 12 s. To send the whole run: uptrend track" in err
    assert "webhook: HTTPError" in err
    assert server.texts
    expect(read_back_tensorboard(run.path), run)
    # Switched on later, a tracker receives all of the run.
    resumed = uptrend.resume(alone.path, ["learning.steps=4", 'track.to=["tensorboard"]'])
    assert resumed.last_step == 4
    expect(read_back_tensorboard(resumed.path), resumed)


class Unsteady(Tracker):
    """A tracker that raises in one of its methods: the first times, or always."""

    def __init__(self, method: str, times: float) -> None:
        self.method, self.left, self.calls = method, times, list[str]()

    def _call(self, method: str, what: str = "") -> None:
        if method == self.method and self.left > 0:
            self.left -= 1
            raise ConnectionError("no route")
        self.calls.append(f"{method} {what}".strip())

    def start(self, run: TrackedRun) -> tuple[str, str]:
        self._call("start")
        return run.name, "here"

    def metrics(self, step: int, values: Mapping[str, float], time_s: float) -> None:
        assert values
        assert time_s > 0
        self._call("metrics", f"{'eval' if 'eval/accuracy' in values else 'step'} {step}")

    def table(self, name: str, columns: Any, rows: Any, step: int) -> None:
        assert {len(row) for row in rows} == {len(columns)}
        self._call("table", f"{name} {step}")

    def alert(self, alert: Alert, step: int) -> None:
        self._call("alert", f"{alert.id} {step}")

    def finish(self, status: str) -> None:
        self._call("finish", status)


METHODS = ("start", "metrics", "table", "alert", "finish")


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("times", [2, math.inf])
def test_what_failed_is_tried_again_and_given_up_in_the_end(
    make_run: Callable[..., Path], monkeypatch: pytest.MonkeyPatch, method: str, times: float
) -> None:
    path, tracker, said = make_run("demo", steps=4), Unsteady(method, times), list[dict[str, Any]]()
    RunDirectory(path).event("finding", **FINDING)
    monkeypatch.setattr(sending, "POLL_INTERVAL_S", 0.0)
    monkeypatch.setitem(TRACKERS, "unsteady", lambda: tracker)
    read, write = os.pipe()
    ends_at_once = method == "finish"  # which is asked for once, when the run is over
    with os.fdopen(read) as orders, os.fdopen(write, "w") as asks:

        def hear(line: dict[str, Any]) -> None:
            said.append(line)
            if line["event"] == "notified":
                print(file=asks, flush=True)

        sending.follow(path, "unsteady", 0, orders, hear)
    failures = [line["error"] for line in said if line["event"] == "track-failed"]
    assert failures[0].startswith("ConnectionError: no route; ")
    if times == 2 and not ends_at_once:
        assert len(failures) == 1
        assert failures[0].endswith("it is tried again")
        assert tracker.calls[-1] == "finish finished"
        steps = [call for call in tracker.calls if call.startswith("metrics step")]
        assert steps == [f"metrics step {step}" for step in range(1, 5)]
        assert {f"table held-out {step}" for step in EVALUATED} <= set(tracker.calls)
        assert "alert kl.runaway 3" in tracker.calls
    else:
        assert failures[-1].endswith("no more is sent")
        assert len(failures) <= 2


def test_what_can_not_work_is_refused_before_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(
        ConfigError, match=r"track.to\[0\] = 'wandbb' is not one of .* Did you mean wandb\?"
    ):
        load_config({"track": {"to": ["wandbb"]}})
    with pytest.raises(ConfigError, match=r"name the environment variable .* such as \$SLACK_URL"):
        load_config({"track": {"webhook": "https://hooks.example/secret"}})
    config = load_config({"track": {"to": ["wandb"], "webhook": "$HOOK"}})
    monkeypatch.delenv("HOOK", raising=False)
    with pytest.raises(ConfigError, match=r"\$HOOK: this environment variable should hold a URL"):
        need_extras(config)
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(MissingExtra, match=re.escape(install_command("wandb"))):
        need_extras(config)


def test_tracking_is_nothing_of_the_run() -> None:
    config, tracked = ({"seed": 1, "track": {"to": to}} for to in ([], ["wandb"]))
    assert what_matters(config) == what_matters(tracked) == {"seed": 1}
