"""Records reach the disk in order, from another thread, and an error there is raised in the loop."""

from pathlib import Path

import pytest

from synthetic import evaluation_of, info_of, line_of, rollout_of
from uptrend.records import RecordError, Run, RunDirectory
from uptrend.training.recorder import Recorder


@pytest.fixture
def directory(tmp_path: Path) -> RunDirectory:
    return RunDirectory.create(tmp_path / "run", info_of("run"))


def test_everything_is_there_after_a_drain(directory: RunDirectory) -> None:
    recorder = Recorder(directory)
    for step in range(1, 12):
        recorder.step(step, [rollout_of(step)], {"step": step})
    recorder.evaluation(line_of(evaluation_of(11, 3, 4)), [rollout_of(11, f"e{i}") for i in range(4)])
    recorder.drain()
    run = Run(directory.path)
    assert [line["step"] for line in run.metric_lines] == list(range(1, 12))
    assert (len(run.rollouts()), len(run.eval_rollouts(11))) == (11, 4)
    recorder.close()


def test_an_error_is_raised_once_and_nothing_is_written_past_it(directory: RunDirectory) -> None:
    recorder = Recorder(directory)
    recorder.step(1, [rollout_of(1)], {"step": 1})
    recorder.drain()
    (directory.path / "rollouts" / "000002").write_text("in the way")
    recorder.step(2, [rollout_of(2)], {"step": 2})
    with pytest.raises(RecordError, match="000002"):  # noqa: PT012 (at whichever of the two the thread has got that far)
        recorder.evaluation(line_of(evaluation_of(1, 3, 4)), [rollout_of(1)])
        recorder.drain()
    recorder.close()
    assert [line["step"] for line in Run(directory.path).metric_lines] == [1]
    assert Run(directory.path).eval_lines == []


def test_an_error_is_raised_at_the_end_at_the_latest(directory: RunDirectory) -> None:
    (directory.path / "rollouts").write_text("in the way")
    recorder = Recorder(directory)
    recorder.step(1, [rollout_of(1)], {"step": 1})
    with pytest.raises(RecordError, match="could not be written"):
        recorder.close()
