"""TRL on two processes, watched: rows of both are recorded, groups are whole, and no process waits
for one that is not watched or whose watch fails.
"""

import json
import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from one_process import ROWS
from small_sums import SIZE

from uptrend.records import Role, Run

pytestmark = pytest.mark.slow

PROCESSES = 2
# Seconds for two processes that load torch and TRL on a busy machine; a deadlock never ends.
TIMEOUT_S = 300


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def train(model: str, folder: Path, case: str) -> str:
    """Train on two processes; return what they printed."""
    launcher = ["torch.distributed.run", f"--nproc-per-node={PROCESSES}"]
    launcher += ["--master-addr=127.0.0.1", f"--master-port={free_port()}"]
    script = Path(__file__).with_name("one_process.py")
    command = [sys.executable, "-m", *launcher, str(script), model, str(folder), case]
    bin_folder = str(Path(sys.executable).parent)  # where DeepSpeed looks for ninja
    env = os.environ | {
        "OMP_NUM_THREADS": "1",
        "ACCELERATE_DEEPSPEED_ZERO_STAGE": "3",
        "DS_ACCELERATOR": "cpu",
        "PATH": f"{bin_folder}:{os.environ['PATH']}",
    }
    env["PYTHONPATH"] = os.pathsep.join(sys.path)
    result = subprocess.run(command, capture_output=True, text=True, env=env, timeout=TIMEOUT_S)
    assert result.returncode == 0, result.stderr[-4000:]
    return result.stderr


SAME = {
    "reward/mean": "reward",
    "learner/entropy/mean": "entropy",
    "sampling/length/mean": "completions/mean_length",
    "gradient/norm/before": "grad_norm",
    "advantage/dead/share": "frac_reward_zero_std",
    "loss/total": "loss",
}
"""Metrics that TRL logs as well, over all processes."""


def check_metrics(run: Run, folder: Path) -> None:
    logged = json.loads((folder / "logged.json").read_text())
    assert len(run.metric_lines) == len(logged) == 3
    for line, theirs in zip(run.metric_lines, logged, strict=True):
        assert line["sampling/rollouts/count"] == PROCESSES * ROWS
        for ours, their_name in SAME.items():
            # Entropy is a mean of the processes' means there, and one over all tokens here.
            tolerance = 0.1 if ours == "learner/entropy/mean" else 1e-3
            expected = pytest.approx(float(theirs[their_name]), rel=tolerance, abs=1e-4)
            assert line[ours] == expected, ours


def test_rows_of_both_processes_are_recorded_and_groups_are_whole(
    tiny_folder: str, tmp_path: Path
) -> None:
    printed = train(tiny_folder, tmp_path, "healthy")
    run = Run(tmp_path / "uptrend")
    assert (run.status, run.last_step) == ("finished", 3)
    assert printed.count("uptrend: recording to") == 1
    assert "watching" not in printed
    alarms = [event for event in run.events if event["event"] in ("finding", "probed", "partial")]
    assert [event for event in alarms if event.get("severity") != "note"] == []
    check_metrics(run, tmp_path)

    parts = sorted(path.name for path in (run.path / "rollouts" / "000001").iterdir())
    assert parts == ["part-0.parquet", "part-1.parquet"]
    rows = run.rollouts(1).to_pylist()
    prompts_by_group: dict[str, list[str]] = {}
    for row in rows:
        prompts_by_group.setdefault(row["group"], []).append(row["messages"][0]["content"])
    assert [len(prompts) for prompts in prompts_by_group.values()] == [SIZE] * 3
    assert all(len(set(prompts)) == 1 for prompts in prompts_by_group.values())
    for row in rows:
        assert row["correct"] == (row["reward"] == 1.0)
        start = row["roles"].index(Role.MODEL)
        assert all(value < 0 for value in row["learner"][start:])
        assert all(row["attended"])
    # In the loss every token of the generation has the same weight, and all of them together 1.
    weights = [weight for row in rows for weight in row["weights"] if weight]
    assert sum(weights) == pytest.approx(1.0, abs=1e-5)
    assert max(weights) == pytest.approx(min(weights))


def test_groups_that_one_process_mixes_are_named(tiny_folder: str, tmp_path: Path) -> None:
    printed = train(tiny_folder, tmp_path, "mixed")
    assert printed.count("CRITICAL advantage.wrong-groups") == 1
    run = Run(tmp_path / "uptrend")
    (event,) = [e for e in run.events if e.get("id") == "advantage.wrong-groups"][:1]
    assert (event["event"], event["step"]) == ("probed", 1)
    assert event["evidence"][0]["text"].startswith("2 of 3 groups of 4 hold more than one prompt")


def test_a_process_that_is_not_watched_is_reported_and_keeps_nobody_waiting(
    tiny_folder: str, tmp_path: Path
) -> None:
    printed = train(tiny_folder, tmp_path, "first process only")
    assert "process 1 of 2 has sent no rollouts of its own" in printed
    run = Run(tmp_path / "uptrend")
    assert (run.status, run.last_step) == ("finished", 3)
    assert [line["sampling/rollouts/count"] for line in run.metric_lines] == [ROWS] * 3
    assert "partial" in [event["event"] for event in run.events]
    assert not [event for event in run.events if event.get("id") == "advantage.wrong-groups"]


@pytest.mark.skipif(
    shutil.which("c++") is None, reason="DeepSpeed builds an extension with a C++ compiler"
)
def test_weights_in_parts_and_a_probe_that_fails_in_one_process(
    tiny_folder: str, tmp_path: Path
) -> None:
    pytest.importorskip("deepspeed")
    printed = train(tiny_folder, tmp_path, "zero-3")
    run = Run(tmp_path / "uptrend")
    assert (run.status, run.last_step) == ("finished", 3)
    check_metrics(run, tmp_path)
    assert "watching the update in process 1 failed; the run goes on" in printed
    failures = [event for event in run.events if event["event"] == "watch-failed"]
    assert failures
    assert all("planted" in failure["error"] for failure in failures)
    first = run.metric_lines[0]
    # The first process has asked the gathered model, and both measure their parts of the weights.
    assert first["sampler/gap/max"] < 1e-3
    assert first["weights/changed/share"] > 0.9
    assert run.info["model"]["parameters"] == run.info["model"]["trainable"] > 900_000
