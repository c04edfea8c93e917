"""The same runs as tasks of a real Ray: the same results, and a lost worker's run is made again."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from test_workers import PATHS, Watching, has_steps, lines, make, pid_of, planned_runs

from uptrend.lab.ray_workers import RayWorkers
from uptrend.records import LabError, Run

pytestmark = pytest.mark.slow

ray: Any = pytest.importorskip("ray", reason="Ray is not installed")


@pytest.fixture(scope="module")
def cluster() -> Iterator[str]:
    """A real Ray of two cores, whose workers find the tests' own modules."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        patch.setenv("PYTHONPATH", PATHS["PYTHONPATH"])
        context = ray.init(
            num_cpus=2, include_dashboard=False, _node_ip_address="127.0.0.1", log_to_driver=False,
            configure_logging=False, object_store_memory=80 * 2**20,
        )  # fmt: skip
        yield str(context.address_info["gcs_address"])
        ray.shutdown()


@pytest.mark.usefixtures("cluster")
class TestCluster:
    def test_runs_are_those_of_local_processes(self, tmp_path: Path) -> None:
        here, there = planned_runs(tmp_path / "here"), planned_runs(tmp_path / "there")
        make(here, Watching())
        watch = Watching()
        outcomes = make(there, watch, RayWorkers())
        assert sorted(o.planned.arm + o.status for o in outcomes) == ["afinished", "bfinished"]
        assert [lines(e.folder) for e in there] == [lines(e.folder) for e in here]
        tables = [
            [Run(e.folder).eval_rollouts(3).drop(["run"]) for e in work] for work in (here, there)
        ]
        assert tables[0] == tables[1]
        assert [o.was_there for o in make(there, watch, RayWorkers())] == [True, True]
        assert len(watch.begun) == 2

    def test_a_lost_workers_run_is_made_again(self, tmp_path: Path) -> None:
        (work, *_) = planned_runs(tmp_path, "slow", steps=8)
        lost: list[int] = []

        def kill() -> None:
            if has_steps(work) and not lost:
                child = pid_of(work)
                lost.extend([child, int(Path(f"/proc/{child}/stat").read_text().split()[3])])
                assert "ray::" in Path(f"/proc/{lost[1]}/cmdline").read_text()
                os.kill(lost[1], signal.SIGKILL)

        (outcome,) = make([work], Watching(kill), RayWorkers())
        assert (outcome.status, len(lost)) == ("finished", 2)
        assert [event["event"] for event in Run(work.folder).events] == ["started", "finished"]
        assert pid_of(work) not in lost

    def test_a_run_comes_back_from_a_node_that_does_not_see_the_folder(
        self, tmp_path: Path
    ) -> None:
        class Unseen(RayWorkers):
            @contextlib.contextmanager
            def _open(self, planned_runs: Any) -> Iterator[None]:
                with super()._open(planned_runs):
                    self._mark.unlink()
                    yield

        (work, *_) = planned_runs(tmp_path / "lab")
        (outcome,) = make([work], Watching(), Unseen())
        assert (outcome.status, outcome.planned, Run(work.folder).status) == (
            "finished",
            work,
            "finished",
        )
        assert not (work.folder / ".lock").exists()
        assert len(lines(work.folder)) == 2

    def test_ctrl_c_has_runs_end_their_step_and_they_are_continued(self, tmp_path: Path) -> None:
        (work, *_) = planned_runs(tmp_path, "slow", steps=20)

        def interrupt() -> None:
            if has_steps(work):
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            make([work], Watching(interrupt), RayWorkers())
        assert Run(work.folder).status == "stopped"
        assert [o.status for o in make([work], Watching(), RayWorkers())] == ["finished"]
        assert [e["event"] for e in Run(work.folder).events] == [
            "started",
            "stopped",
            "resumed",
            "finished",
        ]

    def test_a_cluster_without_gpus_is_said(self, tmp_path: Path) -> None:
        (work, *_) = planned_runs(tmp_path)
        work.config["compute"]["device"] = "cuda"
        with pytest.raises(LabError, match="The Ray cluster has no GPU for this run"):
            make([work], Watching(), RayWorkers())


CLIENT = """
import sys
from pathlib import Path
from test_workers import Watching, make, planned_runs
from uptrend.lab.ray_workers import RayWorkers
work = planned_runs(Path(sys.argv[1]))
print([o.status + o.reason for o in make(work, Watching(), RayWorkers(sys.argv[2]))])
"""


def test_a_ray_address_is_a_client_of_a_cluster_elsewhere(cluster: str, tmp_path: Path) -> None:
    pytest.importorskip("grpc", reason="ray:// addresses need grpcio")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    where = ["--address", cluster, "--host", "127.0.0.1", "--port", str(port), "--mode", "legacy"]
    command, env = [sys.executable, "-m", "ray.util.client.server", *where], os.environ | PATHS
    server = subprocess.Popen(
        command, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        client = [sys.executable, "-c", CLIENT, str(tmp_path / "lab"), f"ray://127.0.0.1:{port}"]
        told = subprocess.run(
            client, env=env, capture_output=True, text=True, check=False, timeout=300
        )
        assert told.stdout.splitlines()[-1:] == ["['finished', 'finished']"], told.stderr[-2000:]
    finally:
        server.kill()
        server.wait()


def test_a_cluster_that_is_not_there_is_an_error(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def refuse(**_: object) -> None:
        raise ConnectionError("nobody there.\nand more")

    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(ray, "init", refuse)
    with pytest.raises(LabError, match=r"no Ray cluster at auto: nobody there"):
        make(planned_runs(tmp_path), Watching(), RayWorkers("auto"))
