"""Runs as processes of this machine: side by side, tried again, stopped and gone on with, waited for."""

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from quick_runs import QuickLauncher
from uptrend.lab import plan
from uptrend.lab.launcher import PlannedRun
from uptrend.lab.workers import local, machine
from uptrend.lab.workers.local import LocalWorkers
from uptrend.lab.workers.work import Outcome, log_of
from uptrend.records import Arm, Hypothesis, Run
from uptrend.records.directory import is_being_written

pytestmark = pytest.mark.slow

TESTS = Path(__file__).parents[1]


class Watching:
    """Remembers what workers tell; `on_tick` may act at a moment of its choice."""

    def __init__(self, on_tick: Callable[[], None] = lambda: None) -> None:
        self.begun: list[tuple[str, str]] = []
        self.said: list[str] = []
        self.tick = on_tick

    def began(self, planned: PlannedRun, note: str = "") -> None:
        self.begun.append((f"{planned.arm}{planned.seed}", note))

    def ended(self, outcome: Outcome) -> None:
        """Not told by workers."""

    def say(self, line: str) -> None:
        self.said.append(line)


def planned_runs(folder: Path, how: str = "finish", seeds: tuple[int, ...] = (0,), steps: int = 3) -> list[PlannedRun]:
    folder.mkdir(exist_ok=True)
    recipe = folder / "base.toml"
    recipe.write_text(f'name = "quick"\nmodel = {{ name = "{how}" }}\nlearning = {{ steps = {steps} }}\n')
    h = Hypothesis("h01", "t", "base.toml", (Arm("a", {}, True), Arm("b", {"learning.lr": 2e-3})), seeds=seeds)
    launcher = QuickLauncher()
    return plan.planned_runs(h, {arm.name: launcher.resolve(recipe, arm.overrides) for arm in h.arms}, folder)


def make(work: list[PlannedRun], watch: Watching, at_once: int | None = 2, **machine: Any) -> list[Outcome]:
    return list(LocalWorkers(at_once, **machine).run(work, QuickLauncher(), lambda _: True, watch))


def lines(folder: Path) -> list[object]:
    return [Run(folder).metric_lines, [line | {"seconds": 0} for line in Run(folder).eval_lines]]


def test_every_run_is_made_and_none_twice(tmp_path: Path) -> None:
    work = planned_runs(tmp_path, seeds=(0, 1))
    watch = Watching()
    first = make(work, watch)
    assert sorted(f"{o.planned.arm}{o.planned.seed} {o.status}" for o in first) == [
        "a0 finished", "a1 finished", "b0 finished", "b1 finished",
    ]  # fmt: skip
    assert all(o.seconds is not None and not o.was_there for o in first)
    again = make(work, watch)
    assert [(o.planned, o.status, o.was_there) for o in again] == [(e, "finished", True) for e in work]
    assert len(watch.begun) == 4


def test_what_is_not_wanted_when_its_turn_comes_is_left_out(tmp_path: Path) -> None:
    done: list[Outcome] = []
    for outcome in LocalWorkers(1).run(
        planned_runs(tmp_path, seeds=(0, 1)), QuickLauncher(), lambda _: not done, Watching()
    ):
        done.append(outcome)
    assert [o.planned.arm for o in done] == ["a"]


def test_a_run_that_fails_is_tried_once_more(tmp_path: Path) -> None:
    (work, *_) = planned_runs(tmp_path, "fail-once")
    watch = Watching()
    (outcome,) = make([work], watch)
    assert outcome.status == "finished"
    assert watch.begun == [("a0", ""), ("a0", "try 2")]


def test_a_run_that_fails_twice_is_told_with_its_error(tmp_path: Path) -> None:
    (work, *_) = planned_runs(tmp_path, "fail")
    watch = Watching()
    (outcome,) = make([work], watch)
    assert (outcome.status, outcome.reason) == ("failed", "RuntimeError: out of luck")
    assert len(watch.begun) == 2


def test_a_command_that_makes_no_run_is_told_by_its_last_line(tmp_path: Path) -> None:
    class Broken(QuickLauncher):
        def command(self, planned: PlannedRun) -> list[str]:
            del planned
            return [sys.executable, "-c", "raise SystemExit('no such model')"]

    (work, *_) = planned_runs(tmp_path)
    (outcome,) = LocalWorkers(1).run([work], Broken(), lambda _: True, Watching())
    assert (outcome.status, outcome.reason) == ("failed", "no such model (it ended with exit code 1)")
    assert log_of(work).read_text() == "no such model\n" * 2


def test_a_run_that_the_cheap_probes_refuse_is_not_tried_again(tmp_path: Path) -> None:
    (work, *_) = planned_runs(tmp_path, "refuse")
    watch = Watching()
    (outcome,) = make([work], watch)
    assert (outcome.status, outcome.reason) == ("refused", "reward.constant: nothing to learn")
    assert len(watch.begun) == 1


def test_ctrl_c_stops_children_after_their_step_and_the_rest_equals_an_undisturbed_run(tmp_path: Path) -> None:
    work = planned_runs(tmp_path / "disturbed", "slow", steps=6)

    def interrupt() -> None:
        if all(Run(e.folder).metric_lines if (e.folder / "run.json").exists() else 0 for e in work):
            raise KeyboardInterrupt

    watch = Watching(interrupt)
    with pytest.raises(KeyboardInterrupt):
        make(work, watch)
    assert watch.said == ["Stopping 2 runs after this step; Ctrl-C again ends at once."]
    assert [Run(e.folder).status for e in work] == ["stopped", "stopped"]
    assert [o.status for o in make(work, Watching())] == ["finished", "finished"]
    assert [e["event"] for e in Run(work[0].folder).events][:3] == ["started", "stopped", "resumed"]
    calm = planned_runs(tmp_path / "calm", "slow", steps=6)
    make(calm, Watching())
    assert [lines(e.folder) for e in work] == [lines(e.folder) for e in calm]


def test_a_killed_child_is_made_again(tmp_path: Path) -> None:
    (work, *_) = planned_runs(tmp_path, "slow", steps=5)
    killed: list[int] = []

    def kill() -> None:
        run = Run(work.folder) if (work.folder / "run.json").exists() else None
        if run and run.metric_lines and not killed:
            killed.append(run.events[0]["pid"])
            os.kill(killed[0], signal.SIGKILL)

    watch = Watching(kill)
    (outcome,) = make([work], watch)
    assert (outcome.status, len(watch.begun), len(killed)) == ("finished", 2, 1)
    assert [event["event"] for event in Run(work.folder).events] == ["started", "finished"]


PARENT = """
import sys
from test_local_workers import Watching, planned_runs
from pathlib import Path
from uptrend.lab.workers.local import LocalWorkers
from quick_runs import QuickLauncher
work = planned_runs(Path(sys.argv[1]), "slow", steps=12)
list(LocalWorkers(2).run(work, QuickLauncher(), lambda _: True, Watching()))
"""


def start_parent(folder: Path) -> "subprocess.Popen[bytes]":
    paths = os.pathsep.join([str(TESTS), str(TESTS / "lab")])
    paths = os.pathsep.join([paths, os.environ.get("PYTHONPATH", "")])
    variables = {**os.environ, "PYTHONPATH": paths}
    parent = subprocess.Popen([sys.executable, "-c", PARENT, str(folder)], env=variables, start_new_session=True)
    for _ in range(600):
        if len(list(folder.glob("runs/*/metrics.jsonl"))) == 2 or parent.poll() is not None:
            break
        threading.Event().wait(0.05)
    return parent


def test_children_of_a_killed_parent_go_on_and_are_waited_for(tmp_path: Path) -> None:
    folder = tmp_path / "lab"
    parent = start_parent(folder)
    work = planned_runs(folder, "slow", steps=12)
    pids = [Run(e.folder).events[0]["pid"] for e in work]
    parent.kill()
    parent.wait()
    assert all(is_being_written(e.folder) for e in work)
    watch = Watching()
    outcomes = make(work, watch)
    assert watch.begun == [("a0", "made by another process"), ("b0", "made by another process")]
    assert [(o.status, o.was_there) for o in outcomes] == [("finished", True)] * 2
    assert [[e["pid"] for e in Run(e.folder).events if "pid" in e] for e in work] == [[pid] for pid in pids]


def test_ctrl_c_of_a_terminal_reaches_children_once(tmp_path: Path) -> None:
    folder = tmp_path / "lab"
    parent = start_parent(folder)
    work = planned_runs(folder, "slow", steps=12)
    groups = [os.getpgid(Run(e.folder).events[0]["pid"]) for e in work]
    assert os.getpgid(parent.pid) not in groups
    os.killpg(parent.pid, signal.SIGINT)  # as a terminal does: to everybody of the group
    assert parent.wait(20) != 0
    assert [Run(e.folder).status for e in work] == ["stopped", "stopped"]


def test_a_second_ctrl_c_ends_children_at_once(tmp_path: Path) -> None:
    folder = tmp_path / "lab"
    parent = start_parent(folder)
    work = planned_runs(folder, "slow", steps=12)
    for planned in work:  # children that hear nothing, as in a long step
        os.kill(Run(planned.folder).events[0]["pid"], signal.SIGSTOP)
    parent.send_signal(signal.SIGINT)
    with pytest.raises(subprocess.TimeoutExpired):
        parent.wait(0.5)
    parent.send_signal(signal.SIGINT)
    assert parent.wait(20) != 0
    assert [Run(e.folder).status for e in work] == ["killed", "killed"]


class TestRoom:
    """As many as fit: cores, and what the first run's first step says of memory."""

    @pytest.fixture
    def most(self, tmp_path: Path) -> Callable[..., int]:
        def count(cores: int, free: float, steps: int = 3) -> int:
            work = planned_runs(tmp_path / f"{cores}-{free}", "slow", steps=steps)
            going: list[int] = []
            watch = Watching(lambda: going.append(sum(is_being_written(e.folder) for e in work)))
            make(work, watch, None, cores=lambda: cores, free_gib=lambda _: {"": free}, look=0.0)
            return max(going)

        return count

    def test_no_more_than_cores(self, most: Callable[..., int]) -> None:
        assert most(1, 100.0) == 1

    def test_as_many_as_cores_where_memory_allows(self, most: Callable[..., int]) -> None:
        assert most(2, 100.0, steps=16) == 2

    def test_no_more_than_memory(self, most: Callable[..., int]) -> None:
        assert most(4, 0.2) == 1  # a run takes 0.25 GiB with a margin of a quarter

    def test_the_first_is_alone_until_it_has_told_what_it_takes(self, tmp_path: Path) -> None:
        work = planned_runs(tmp_path, "slow")
        seen: list[int] = []

        class Looking(Watching):
            def began(self, planned: PlannedRun, note: str = "") -> None:
                seen.append(len(Run(work[0].folder).metric_lines) if (work[0].folder / "run.json").exists() else 0)
                super().began(planned, note)

        make(work, Looking(), None, cores=lambda: 8)
        assert seen[0] == 0
        assert all(steps >= 1 for steps in seen[1:])


def test_gpus_are_told_by_nvidia_smi_within_those_that_may_be_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "nvidia-smi"
    program.write_text("#!/bin/sh\necho '0, GPU-aa, 143000'\necho '1, GPU-bb, 71680'\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert machine.free_gib(True) == {"0": pytest.approx(139.65, abs=0.01), "1": 70.0}
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-bb")
    assert machine.free_gib(True) == {"GPU-bb": 70.0}


def test_a_run_on_a_gpu_needs_more_than_it_says(tmp_path: Path) -> None:
    (work, *_) = planned_runs(tmp_path)
    assert machine.need_gib(work) is None
    work.folder.mkdir(parents=True)
    (work.folder / "metrics.jsonl").write_text(json.dumps({"step": 1, "memory/peak/gib": 8.0}) + "\n")
    assert machine.need_gib(work) == 10.0
    config = {**work.config, "compute": {**work.config["compute"], "device": "cuda"}}
    assert machine.need_gib(replace(work, config=config)) == 11.0


def test_children_wait_asleep_and_see_only_their_gpu(tmp_path: Path) -> None:
    (work, *_) = planned_runs(tmp_path)
    variables = local.surroundings(work)
    assert (variables["OMP_WAIT_POLICY"], variables["OMP_NUM_THREADS"]) == ("PASSIVE", "1")
    config = {**work.config, "compute": {**work.config["compute"], "device": "cuda"}}
    assert local.surroundings(replace(work, config=config), "1")["CUDA_VISIBLE_DEVICES"] == "1"
