"""logs/train.log: what a person reads with `tail -f` while a run goes on, and after."""

import re
from pathlib import Path
from typing import Any

import pytest

from synthetic import info_of
from uptrend.cli.main import main
from uptrend.records import Run, RunDirectory, TasksetError
from uptrend.runner.runs import resume_run, train_recipe
from uptrend.runner.view import count_epochs
from uptrend.training.observer import StepRecord

MOMENT = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d[+-]\d\d:\d\d ")


class Reader:
    """Reads the log while the run goes on; fails where told to."""

    def __init__(self, path: Path, fails_at: int = -1) -> None:
        self.path, self.fails_at, self.seen = (
            path / "logs" / "train.log",
            fails_at,
            dict[int, str](),
        )

    def before(self, run: Run) -> None: ...

    def step(self, record: StepRecord) -> None:
        self.seen[record.step] = self.path.read_text()
        if record.step == self.fails_at:
            raise TasksetError("The disk of \x1b[31mtasks is gone.")

    def after(self, run: Run) -> None: ...


def recipe(folder: Path, **tasks: Any) -> dict[str, Any]:
    return {
        "model": {"name": str(folder)}, "tasks": {"name": "shells:Shells", "train": 12, "count": 16, **tasks},
        "eval": {"name": "shells:Shells", "tasks": 4, "every": 2, "count": 16},
        "sampling": {"groups": 4, "size": 8, "max_tokens": 6, "max_turns": 4},
        "learning": {"steps": 3}, "checkpoints": {"every": 1}, "compute": {"threads": 1},
    }  # fmt: skip


def lines_of(path: Path) -> list[str]:
    """Lines of the log without their times, which are in order."""
    lines = (path / "logs" / "train.log").read_text().splitlines()
    assert all(MOMENT.match(line) for line in lines)
    return [MOMENT.sub("", line) for line in lines]


def test_everything_is_logged_at_once(
    llama_folder: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    wanted = recipe(llama_folder, raises=7, sandbox_fails=1)
    reader = Reader(tmp_path / "run")
    path = train_recipe(wanted, runs=tmp_path, name="run", observers=[reader]).path
    lines = lines_of(path)
    kinds = [line.partition(":")[0].split(" ")[0] for line in lines]
    assert kinds[:5] == ["started", "run", "12", "note", "held-out"]
    assert lines[3].startswith("note: learning.lr = 1e-05: the recipe leaves it out")
    assert lines[2] == "12 examples, 4 per step, 3 steps per epoch, 1 epoch"
    assert [kind for kind in kinds[5:] if kind not in ("failed", "rollout")] == [
        "step", "checkpoint", "step", "held-out", "checkpoint", "step", "held-out", "checkpoint", "finished",
    ]  # fmt: skip
    (first, *_) = [line for line in lines if line.startswith("step 1/3 reward ")]
    assert re.search(
        r"commands [\d.]+ command errors [\d.]+ .*tokens/s [\d,.]+ [\d.]+ s per step .* left$",
        first,
    )
    failed = [line for line in lines if line.startswith("failed: ")]
    assert failed[0].endswith("/4 and 3 more: respond: KeyError('no file')")
    assert len(failed) == 2  # tasks 7 and 14, a group of each
    played = {r["index"] for r in Run(path).rollouts().to_pylist() if r["sandbox_failures"]}
    assert played
    assert sum(line.endswith("played again, 1 sandbox failure") for line in lines) >= len(played)
    assert "step 1/3" in reader.seen[2]  # before the run ends
    assert re.search(r"held-out after step 2: .* of 4 tasks", "\n".join(lines))
    resume_run(path, ["learning.steps=4"])
    again = lines_of(path)
    assert again[: len(lines)] == lines
    assert again[len(lines)].startswith("resumed: pid ")
    assert again[-1] == "finished: step 4"
    monkeypatch.setenv("COLUMNS", "400")
    with pytest.raises(SystemExit):
        main(["runs", "show", str(path)])
    assert str(path / "logs" / "train.log") in capsys.readouterr().out


def test_a_run_that_fails_says_why_in_its_last_line(llama_folder: Path, tmp_path: Path) -> None:
    with pytest.raises(TasksetError):
        train_recipe(
            recipe(llama_folder), runs=tmp_path, name="run", observers=[Reader(tmp_path / "run", 1)]
        )
    assert (
        lines_of(tmp_path / "run")[-1]
        == r"failed: TasksetError: The disk of \x1b[31mtasks is gone."
    )


STAGES = [{"start": 1, "count": 40}, {"start": 21, "count": 9}]


@pytest.mark.parametrize(
    ("stages", "kind", "said"),
    [
        (STAGES[:1], None, "40 examples, 4 per step, 10 steps per epoch, 20 epochs"),
        (STAGES, None, "40 examples, 4 per step, 10 steps per epoch, 2 epochs; "
                       "from step 21 on 9 examples, 4 per step, 2 steps per epoch, 90 epochs"),
        (STAGES[:1], "warmstart", ""),
        (None, None, ""),
    ],
)  # fmt: skip
def test_epochs_are_counted(tmp_path: Path, stages: Any, kind: str | None, said: str) -> None:
    info = info_of("demo", ("learning.steps=200", "sampling.groups=4"))
    info["tasks"] |= {"stages": stages} if stages else {}
    with RunDirectory.create(tmp_path / "demo", info | ({"kind": kind} if kind else {})):
        assert count_epochs(Run(tmp_path / "demo")) == said
