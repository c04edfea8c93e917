"""The process that records: what it needs, and what is left when it, the trainer or a person ends
things.
"""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from small_sums import GROUPS, SIZE, make_trainer
from transformers import TrainerCallback

from uptrend.bridge.trl import watch
from uptrend.bridge.trl.record import MAX_QUEUED_STEPS, SubprocessRecorder
from uptrend.records import Run

pytestmark = pytest.mark.slow

SCRIPT = """
import os, signal, sys, time
from pathlib import Path
from small_sums import make_trainer
from test_recording import AtStep
from uptrend.bridge.trl import watch

folder = Path(sys.argv[2])
with (folder / "read").open("a") as file:
    file.write("once\\n")
trainer = make_trainer(sys.argv[1], folder, steps=9)
watching = watch(trainer)

def kill():
    lines = watching.path / "metrics.jsonl"
    while not lines.exists() or lines.read_text().count("\\n") < 2:
        time.sleep(0.01)
    (folder / "pid").write_text(str(watching.record.subprocess_recorder.pid))
    os.kill(os.getpid(), signal.SIGKILL)

trainer.add_callback(AtStep(3, kill))
trainer.train()
"""


class AtStep(TrainerCallback):
    """Does something at the end of a step."""

    def __init__(self, step: int, act: Any) -> None:
        self._step, self._act = step, act

    def on_step_end(self, _: Any, state: Any, *__: Any, **___: Any) -> None:
        if state.global_step == self._step:
            self._act()


def test_recording_loads_no_torch() -> None:
    code = "import sys, uptrend.bridge.trl.writer\nprint('torch' in sys.modules)"
    assert (
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout
        == "False\n"
    )


def test_when_its_process_is_killed_training_goes_on_and_says_so(
    tiny_folder: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trainer = make_trainer(tiny_folder, tmp_path, steps=4)
    watching = watch(trainer)

    def kill() -> None:
        assert watching.record is not None
        assert watching.record.subprocess_recorder.pid is not None
        os.kill(watching.record.subprocess_recorder.pid, signal.SIGKILL)

    trainer.add_callback(AtStep(2, kill))
    trainer.train()
    assert trainer.state.global_step == 4
    assert capsys.readouterr().err.count("the process that records has ended (code -9)") == 1
    run = Run(watching.path)
    assert run.status == "finished"
    (lost,) = (event["lost"] for event in run.events if "lost" in event)
    assert {3, 4} <= set(lost)
    assert sorted({line["step"] for line in run.metric_lines} | set(lost)) == [1, 2, 3, 4]


def test_a_killed_trainer_leaves_a_whole_directory_and_no_process(
    tiny_folder: str, tmp_path: Path
) -> None:
    """And its script has no `if __name__ == "__main__"`: nothing but the script itself reads it."""
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    paths = os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, str(script), tiny_folder, str(tmp_path)], env=os.environ | {"PYTHONPATH": paths},
        capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert (tmp_path / "read").read_text() == "once\n"
    recorder, until = Path("/proc") / (tmp_path / "pid").read_text(), time.monotonic() + 30
    while recorder.exists() and (recorder / "cmdline").read_bytes():  # a zombie has none
        assert time.monotonic() < until, "the process that records did not end"
        time.sleep(0.05)
    run = Run(tmp_path / "uptrend")
    assert run.status == "killed"
    assert [line["step"] for line in run.metric_lines][:2] == [1, 2]
    assert run.rollouts().num_rows >= 2 * GROUPS * SIZE
    assert list(run.path.rglob("*.tmp*")) == []


def test_an_interrupted_run_is_recorded_to_its_last_step(tiny_folder: str, tmp_path: Path) -> None:
    trainer = make_trainer(tiny_folder, tmp_path, steps=4)
    watching = watch(trainer, rescore=False, probes=False)
    trainer.add_callback(AtStep(2, lambda: os.kill(os.getpid(), signal.SIGINT)))
    with pytest.raises(KeyboardInterrupt):
        trainer.train()
    run = Run(watching.path)
    assert run.status == "stopped"
    assert [line["step"] for line in run.metric_lines] == [1, 2]
    assert [event for event in run.events if event["event"] == "records-lost"] == []


def test_a_process_that_takes_nothing_is_waited_for_but_not_forever() -> None:
    troubles: list[str] = []
    recorder = SubprocessRecorder(
        lambda *_: None, troubles.append, send_timeout_s=0.1, close_timeout_s=0.3
    )
    assert recorder.pid is not None
    os.kill(recorder.pid, signal.SIGSTOP)
    began, steps = time.monotonic(), MAX_QUEUED_STEPS + 4
    for step in range(1, steps + 1):
        recorder.send("take_step", lambda: (b"x" * (2 << 20),), step)
    assert recorder.close() == list(range(1, steps + 1))
    assert time.monotonic() - began < 60  # without a deadline it would never end
    assert len(troubles) == 1
    assert "has taken nothing for 0.1 s; steps are left out" in troubles[0]


def test_without_a_process_nothing_is_recorded_and_the_trainer_is_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sys, "executable", "/no/such/python")
    troubles: list[str] = []
    recorder = SubprocessRecorder(lambda *_: None, troubles.append)
    recorder.send("take_step", tuple, 1)
    assert recorder.close() == [1]
    assert recorder.pid is None
    assert len(troubles) == 1
