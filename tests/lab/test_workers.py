"""Runs as processes of this machine: side by side, tried again, stopped and continued, waited
for.
"""

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

from quick_runs import QuickLauncher, main
from uptrend.lab import plan
from uptrend.lab.plan import PlannedRun
from uptrend.lab.workers import (
    Outcome,
    Workers,
    free_gib,
    log_of,
    need_gib,
    set_aside_unfinished,
    threads_of,
)
from uptrend.records import Arm, Hypothesis, Run
from uptrend.records.directory import is_being_written
from uptrend.runner.runs import TrainLauncher

pytestmark = pytest.mark.slow

TESTS = Path(__file__).parents[1]
PATHS = {
    "PYTHONPATH": os.pathsep.join(
        [str(TESTS), str(TESTS / "lab"), os.environ.get("PYTHONPATH", "")]
    )
}


class Watching:
    """Remembers progress; `on_tick` may act at a moment of its choice."""

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


def planned_runs(
    folder: Path, how: str = "finish", seeds: tuple[int, ...] = (0,), steps: int = 3
) -> list[PlannedRun]:
    folder.mkdir(exist_ok=True)
    recipe = folder / "base.toml"
    recipe.write_text(
        f'name = "quick"\nmodel = {{ name = "{how}" }}\nlearning = {{ steps = {steps} }}\n'
    )
    h = Hypothesis(
        "h01", "t", "base.toml", (Arm("a", {}, True), Arm("b", {"learning.lr": 2e-3})), seeds=seeds
    )
    arms = {arm.name: QuickLauncher().resolve(recipe, arm.overrides) for arm in h.arms}
    return plan.planned_runs(h, arms, folder)


def make(work: list[PlannedRun], watch: Watching, workers: Any = None) -> list[Outcome]:
    return list((workers or Workers(2)).run(work, QuickLauncher(), lambda _: True, watch))


def lines(folder: Path) -> list[object]:
    return [Run(folder).metric_lines, [line | {"seconds": 0} for line in Run(folder).eval_lines]]


def has_steps(planned: PlannedRun) -> bool:
    return (planned.folder / "run.json").exists() and bool(Run(planned.folder).metric_lines)


def pid_of(planned: PlannedRun) -> int:
    return int(Run(planned.folder).events[0]["pid"])


def test_every_run_is_made_and_none_twice(tmp_path: Path) -> None:
    work, watch = planned_runs(tmp_path, seeds=(0, 1)), Watching()
    first = make(work, watch)
    made = sorted(f"{o.planned.arm}{o.planned.seed} {o.status}" for o in first)
    assert made == ["a0 finished", "a1 finished", "b0 finished", "b1 finished"]
    assert all(o.seconds is not None and not o.was_there for o in first)
    assert [(o.planned, o.status, o.was_there) for o in make(work, watch)] == [
        (e, "finished", True) for e in work
    ]
    assert len(watch.begun) == 4


def test_what_is_not_wanted_when_its_turn_comes_is_left_out(tmp_path: Path) -> None:
    done: list[Outcome] = []
    work = planned_runs(tmp_path, seeds=(0, 1))
    for outcome in Workers(1).run(work, QuickLauncher(), lambda _: not done, Watching()):
        done.append(outcome)
    assert [o.planned.arm for o in done] == ["a"]


@pytest.mark.parametrize(
    ("how", "status", "reason", "begun"),
    [
        ("fail-once", "finished", "", [("a0", ""), ("a0", "try 2")]),
        ("fail", "failed", "RuntimeError: out of luck", [("a0", ""), ("a0", "try 2")]),
        ("refuse", "refused", "reward.constant: nothing to learn", [("a0", "")]),
    ],
)
def test_a_run_that_fails_is_tried_once_more(
    tmp_path: Path, how: str, status: str, reason: str, begun: list[tuple[str, str]]
) -> None:
    (work, *_), watch = planned_runs(tmp_path, how), Watching()
    (outcome,) = make([work], watch)
    assert (outcome.status, outcome.reason, watch.begun) == (status, reason, begun)


def test_a_command_that_makes_no_run_is_told_by_its_last_line_and_has_its_environment(
    tmp_path: Path,
) -> None:
    class Broken(QuickLauncher):
        def command(self, planned: PlannedRun) -> list[str]:
            del planned
            names = "'OMP_WAIT_POLICY', 'OMP_NUM_THREADS', 'CUDA_VISIBLE_DEVICES'"
            return [
                sys.executable,
                "-c",
                f"import os; raise SystemExit(' '.join(os.environ[n] for n in ({names})))",
            ]

    (work, *_) = planned_runs(tmp_path)
    work = replace(
        work, config={**work.config, "compute": {**work.config["compute"], "device": "cuda"}}
    )
    workers = Workers(1, free_gib=lambda _: {"7": 80.0})
    (outcome,) = workers.run([work], Broken(), lambda _: True, Watching())
    assert (outcome.status, outcome.reason) == ("failed", "PASSIVE 1 7 (it ended with exit code 1)")
    assert log_of(work).read_text() == "PASSIVE 1 7\n" * 2


def test_ctrl_c_stops_children_after_their_step_and_the_rest_equals_an_undisturbed_run(
    tmp_path: Path,
) -> None:
    work = planned_runs(tmp_path / "disturbed", "slow", steps=6)

    def interrupt() -> None:
        if all(has_steps(planned) for planned in work):
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
        if has_steps(work) and not killed:
            killed.append(pid_of(work))
            os.kill(killed[0], signal.SIGKILL)

    watch = Watching(kill)
    (outcome,) = make([work], watch)
    assert (outcome.status, len(watch.begun), len(killed)) == ("finished", 2, 1)
    assert [event["event"] for event in Run(work.folder).events] == ["started", "finished"]


PARENT = """
import sys
from pathlib import Path
from test_workers import Watching, make, planned_runs
make(planned_runs(Path(sys.argv[1]), "slow", steps=24), Watching())
"""


@pytest.fixture
def orphans(tmp_path: Path) -> "tuple[subprocess.Popen[bytes], list[PlannedRun]]":
    """A process that makes two runs, and these."""
    folder = tmp_path / "lab"
    command = [sys.executable, "-c", PARENT, str(folder)]
    parent = subprocess.Popen(command, env=os.environ | PATHS, start_new_session=True)
    for _ in range(600):
        if len(list(folder.glob("runs/*/metrics.jsonl"))) == 2 or parent.poll() is not None:
            break
        threading.Event().wait(0.05)
    return parent, planned_runs(folder, "slow", steps=24)


def test_children_of_a_killed_parent_go_on_and_are_waited_for(orphans: Any) -> None:
    parent, work = orphans
    pids = [pid_of(planned) for planned in work]
    parent.kill()
    parent.wait()
    assert all(is_being_written(e.folder) for e in work)
    watch = Watching()
    outcomes = make(work, watch)
    assert watch.begun == [("a0", "made by another process"), ("b0", "made by another process")]
    assert [(o.status, o.was_there) for o in outcomes] == [("finished", True)] * 2
    assert [pid_of(planned) for planned in work] == pids


def test_ctrl_c_of_a_terminal_reaches_children_once(orphans: Any) -> None:
    parent, work = orphans
    assert os.getpgid(parent.pid) not in [os.getpgid(pid_of(planned)) for planned in work]
    os.killpg(parent.pid, signal.SIGINT)  # as a terminal does: to everybody of the group
    assert parent.wait(120) != 0
    assert [Run(e.folder).status for e in work] == ["stopped", "stopped"]


def test_a_second_ctrl_c_ends_children_at_once(orphans: Any) -> None:
    parent, work = orphans
    for planned in work:  # children that hear nothing, as in a long step
        os.kill(pid_of(planned), signal.SIGSTOP)
    parent.send_signal(signal.SIGINT)
    with pytest.raises(subprocess.TimeoutExpired):
        parent.wait(0.5)
    parent.send_signal(signal.SIGINT)
    assert parent.wait(120) != 0
    assert [Run(e.folder).status for e in work] == ["killed", "killed"]


@pytest.mark.parametrize(
    ("cores", "free", "steps", "most"),
    [
        (1, 100.0, 3, 1),
        (2, 100.0, 16, 2),
        (4, 0.2, 3, 1),
    ],  # a run takes 0.25 GiB with a margin of a quarter
)
def test_as_many_run_as_cores_and_memory_allow(
    tmp_path: Path, cores: int, free: float, steps: int, most: int
) -> None:
    work, going, steps_seen = planned_runs(tmp_path, "slow", steps=steps), list[int](), list[bool]()

    class Looking(Watching):
        def began(self, planned: PlannedRun, note: str = "") -> None:
            steps_seen.append(has_steps(work[0]))
            super().began(planned, note)

    watch = Looking(lambda: going.append(sum(is_being_written(e.folder) for e in work)))
    make(work, watch, Workers(cores=lambda: cores, free_gib=lambda _: {"": free}, retry_s=0.0))
    assert max(going) == most
    assert steps_seen == [False, True]  # the first is alone until it has told what it takes


def test_gpus_are_told_by_nvidia_smi_within_those_that_may_be_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "nvidia-smi"
    program.write_text("#!/bin/sh\necho '0, GPU-aa, 143000'\necho '1, GPU-bb, 71680'\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert free_gib(True) == {"0": pytest.approx(139.65, abs=0.01), "1": 70.0}
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-bb")
    assert free_gib(True) == {"GPU-bb": 70.0}
    program.write_text("#!/bin/sh\necho 'No devices were found'\n")
    assert free_gib(True) == {}
    monkeypatch.setenv("PATH", "")
    assert free_gib(True) == {}
    assert free_gib(False)[""] > 0


def test_a_run_on_a_gpu_needs_more_than_it_says(tmp_path: Path) -> None:
    (work, *_) = planned_runs(tmp_path)
    assert need_gib(work) is None
    work.folder.mkdir(parents=True)
    (work.folder / "metrics.jsonl").write_text(
        json.dumps({"step": 1, "memory/peak/gib": 8.0}) + "\n"
    )
    assert need_gib(work) == 10.0
    config = {**work.config, "compute": {**work.config["compute"], "device": "cuda"}}
    assert need_gib(replace(work, config=config)) == 11.0


def test_a_recipe_of_two_processes_is_trained_by_two(tmp_path: Path) -> None:
    recipe = tmp_path / "base.toml"
    recipe.write_text(
        'name = "quick"\nmodel = { name = "tiny" }\n'
        'tasks = { name = "arithmetic", train = 20 }\neval = { name = "arithmetic", tasks = 4, every = 0 }\n'
        "sampling = { groups = 3, size = 2, max_tokens = 3 }\nlearning = { steps = 2 }\n"
        'compute = { device = "cpu", processes = 2 }\n'
    )
    h = Hypothesis("h01", "t", "base.toml", (Arm("a", {}, True),), seeds=(0,))
    launcher = TrainLauncher()
    work = plan.planned_runs(h, {"a": launcher.resolve(recipe, {})}, tmp_path)
    assert threads_of(work[0]) == 2
    (done,) = Workers(1).run(work, launcher, lambda _: True, Watching())
    assert done.status == "finished", done.reason
    run = Run(work[0].folder)
    assert run.info["machine"]["processes"] == 2
    assert [line["ranks/weights/count"] for line in run.metric_lines] == [1, 1]


def test_a_run_that_makes_way_is_set_aside(tmp_path: Path) -> None:
    planned, *_ = planned_runs(tmp_path, "fail")
    planned.folder.parent.mkdir(parents=True, exist_ok=True)
    files = dict[str, bytes]()
    for number in (1, 2):  # an attempt that fails at its first step, begun again by the next call
        assert main(planned.folder, dict(planned.config), []) == 1
        files[f"{planned.folder.name}-{number}"] = (planned.folder / "metrics.jsonl").read_bytes()
        set_aside_unfinished(planned)
        assert not planned.folder.exists()
    aside = planned.folder.parent / "set-aside"
    assert {path.name: (path / "metrics.jsonl").read_bytes() for path in aside.iterdir()} == files
