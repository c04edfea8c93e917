"""Each autopsy, with few steps: its cause is named first, before step 1, and the fixed run has
none.
"""

import json
import runpy
import sys
from pathlib import Path
from typing import Any

import pytest

import uptrend
from uptrend.records import Message, Run
from uptrend.tasks import event_loop
from uptrend.tasksets.mlgym.taskset import MlGym, MlGymOptions

pytestmark = pytest.mark.slow

AUTOPSIES = Path(__file__).parents[2] / "examples" / "autopsies"


@pytest.fixture
def perform(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Runs a script as from the command line; gives the folder of its runs."""
    monkeypatch.syspath_prepend(str(AUTOPSIES))
    monkeypatch.chdir(AUTOPSIES.parents[1])

    def run(name: str, steps: int, **more: str) -> Path:
        out = tmp_path / name
        further = [word for option, value in more.items() for word in (f"--{option}", value)]
        monkeypatch.setattr(
            sys, "argv", [f"{name}.py", "--steps", str(steps), "--out", str(out), *further]
        )
        runpy.run_path(str(AUTOPSIES / f"{name}.py"), run_name="__main__")
        return out

    return run


def before_step_1(path: Path) -> list[str]:
    """The causes that the probes found, where they stopped the run before its first step."""
    run = Run(path)
    assert run.status == "stopped"
    assert run.last_step == 0
    return found_by_probes(run)


def found_by_probes(run: Run) -> list[str]:
    (asked,) = (event for event in run.events if event["event"] == "preflight")
    return [finding["id"] for finding in asked["findings"] if not finding.get("symptom_of")]


def first_found(path: Path) -> str:
    """What `uptrend doctor` told first; it has left its report in the run."""
    report = json.loads((path / "findings.json").read_text())
    return str(report["findings"][0]["id"])


def alarms(path: Path) -> list[str]:
    return [finding.id for finding in uptrend.diagnose(path).findings if finding.severity != "note"]


def is_well(path: Path, steps: int) -> bool:
    run = Run(path)
    return (
        run.status == "finished"
        and run.last_step == steps
        and found_by_probes(run) == []
        and alarms(path) == []
    )


def test_the_blind_learner(perform: Any) -> None:
    out = perform("blind", steps=1)
    assert before_step_1(out / "blind") == ["mask.attention-blind"]
    assert Run(out / "blind-anyway").last_step == 1
    assert first_found(out / "blind-anyway") == "mask.attention-blind"
    assert is_well(out / "fixed", steps=1)


def test_the_wrong_slice(perform: Any) -> None:
    out = perform("slice", steps=4)  # with fewer there is no warm-up, which its rate needs
    assert before_step_1(out / "sliced") == ["reward.gold-rejected"]
    assert [line["reward/mean"] for line in Run(out / "sliced-anyway").metric_lines] == [-1.0] * 4
    assert first_found(out / "sliced-anyway") == "reward.gold-rejected"
    assert is_well(out / "fixed", steps=4)


def test_the_reward_that_waits_for_a_command(perform: Any) -> None:
    # tiny has never heard of the command; its probes alone would take minutes here
    out = perform(
        "never",
        steps=2,
        only="unpaid",
        untaught="tiny",
        context="3600",
        probe="no",
        sandbox="process",
    )
    assert [line["reward/mean"] for line in Run(out / "unpaid").metric_lines] == [0.0] * 2
    assert first_found(out / "unpaid") == "reward.never-computed"


def test_rollouts_that_share_a_folder_see_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(AUTOPSIES.parents[1]))
    from examples.autopsies.shared import SharedWorkspace

    def second_sees(kind: type[MlGym]) -> str:
        taskset = kind(MlGymOptions(problems=("titanic",), sandbox="process"), 0)
        task = taskset.train(1)[0]

        async def converse() -> str:
            plays = [taskset.open(task, 0) for _ in range(2)]
            try:
                for play, command in zip(plays, ("rm train.csv", "ls"), strict=True):
                    answers = await play.respond(Message("assistant", command))
                return answers[0].content if answers else ""
            finally:
                for play in plays:
                    await play.close()

        return event_loop.run(converse())

    assert "train.csv" in second_sees(MlGym)
    assert "train.csv" not in second_sees(SharedWorkspace)


def test_a_folder_that_is_taken_is_left_alone(
    perform: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "slice").mkdir()
    with pytest.raises(SystemExit) as ended:
        perform("slice", steps=1)
    assert ended.value.code == 2
    assert "is there already" in capsys.readouterr().err
    assert list((tmp_path / "slice").iterdir()) == []
