"""`uptrend preflight`, and what `uptrend train` asks by itself."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from uptrend.cli.main import main
from uptrend.records import Run
from uptrend.runner.runs import train

Call = Callable[..., tuple[int, str, str]]
SMALL = [
    "--set", "sampling.groups=4", "--set", "sampling.size=8", "--set", "compute.threads=1", "--set",
    "compute.device=cpu", "--set", "learning.steps=2", "--set", "learning.warmup=0", "--set", "eval.tasks=8",
]  # fmt: skip
RECIPE = Path(__file__).parents[2] / "recipes" / "tiny.toml"
CUT = ("--set", "tasks.name=examples.autopsies.cut:Cut")
"""A reward that cuts the answer off before it grades it."""


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str], tiny_folder: str) -> Call:
    """A command's exit code, and what it said on both streams."""

    def run(*arguments: object) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as end:
            main([*map(str, arguments), *SMALL, "--set", f"model.name={tiny_folder}"])
        said = capsys.readouterr()
        return int(end.value.code or 0), said.out, said.err

    return run


def test_a_healthy_recipe_passes_with_a_figure_a_probe(call: Call) -> None:
    code, out, _ = call(
        "preflight", RECIPE, "--only", "gold", "--only", "agreement", "--only", "masks", "--only", "tool-swap"
    )
    assert code == 0
    lines = out.splitlines()
    assert lines[0].startswith("✓ gold          50 of 50 gold answers reach the maximum, 0 of 200 corrupted ones do")
    assert lines[1].startswith("✓ agreement     gap ")
    assert "trained: 0 of " in lines[2]
    assert lines[3] == "– tool-swap     not asked: no tools"
    assert sum(line.startswith("  Calculate: ") for line in lines) == 3
    assert lines[-1].startswith("nothing found by 3 probes (1 do not apply)")


def test_a_critical_finding_exits_with_1_and_says_what_to_do(call: Call) -> None:
    code, out, _ = call("preflight", RECIPE, *CUT, "--only", "gold", "--only", "dead-groups")
    assert code == 1
    assert "✗ gold" in out
    assert "critical  reward.gold-rejected" in out
    assert "also explains: advantage.dead-groups-low" in out
    assert "docs/findings/reward.gold-rejected.md" in out


def test_json_is_one_object(call: Call) -> None:
    code, out, _ = call("preflight", RECIPE, "--only", "step-size", "--format", "json", "--set", "learning.lr=1e-9")
    told: dict[str, Any] = json.loads(out)
    assert (code, told["version"], told["passed"]) == (0, 1, True)
    (probe,), (finding,) = told["probes"], told["findings"]
    assert (probe["name"], probe["ok"], probe["findings"]) == ("step-size", False, ["optimizer.lr-small"])
    assert (finding["id"], finding["severity"]) == ("optimizer.lr-small", "warning")
    assert {"confidence", "summary", "evidence", "rivals", "experiment", "fix", "explains", "page"} <= set(finding)
    again, _, _ = call("preflight", RECIPE, "--only", "step-size", "--fail-on", "warning", "--set", "learning.lr=1e-9")
    assert again == 1


def test_bad_input_is_a_sentence_and_exit_code_2(call: Call, tmp_path: Path) -> None:
    code, _, err = call("preflight", RECIPE, "--only", "prompt-swop")
    assert code == 2
    assert "there is no such probe. There are gold, repeats" in err
    assert call("preflight", tmp_path / "none.toml")[0] == 2


@pytest.mark.slow
def test_training_asks_first_and_keeps_the_figures(call: Call, tmp_path: Path) -> None:
    code, _, err = call("train", RECIPE, "--runs", tmp_path, "--quiet")
    assert code == 0
    assert "preflight: nothing found by " in err
    run = Run(tmp_path / "tiny")
    assert [e["event"] for e in run.events][:2] == ["started", "preflight"]
    told = run.events[1]
    assert told["passed"]
    assert {p["name"] for p in told["probes"]} >= {"gold", "prompt-swap", "agreement", "masks", "sign"}
    code, _, err = call("train", RECIPE, "--runs", tmp_path, "--quiet", "--no-preflight", "--name", "unasked")
    assert (code, err) == (0, "")
    unasked = Run(tmp_path / "unasked")
    assert [line["reward/mean"] for line in unasked.metric_lines] == [line["reward/mean"] for line in run.metric_lines]
    assert unasked.info["model"]["digest"] == run.info["model"]["digest"]
    states = [(r.checkpoints[-1] / "model" / "model.safetensors").read_bytes() for r in (run, unasked)]
    assert states[0] == states[1]


@pytest.mark.slow
def test_training_does_not_begin_on_a_critical_finding(call: Call, tmp_path: Path) -> None:
    code, _, err = call("train", RECIPE, *CUT, "--runs", tmp_path, "--quiet")
    assert code == 1
    assert "Not begun: reward.gold-rejected: " in err
    run = Run(tmp_path / "tiny")
    assert (run.status, run.last_step, run.eval_lines) == ("stopped", 0, [])
    assert run.stopped is not None
    assert (run.stopped.by, run.stopped.finding) == ("preflight", "reward.gold-rejected")
    assert call("train", RECIPE, *CUT, "--runs", tmp_path, "--quiet", "--no-preflight", "--name", "anyway")[0] == 0
    assert Run(tmp_path / "anyway").last_step == 2


def test_python_asks_only_when_told_to(llama_folder: Path, tmp_path: Path) -> None:
    recipe = {
        "model": {"name": str(llama_folder)}, "tasks": {"name": "letters:Letters", "train": 30},
        "eval": {"name": "letters:Letters", "tasks": 4, "every": 0}, "learning": {"steps": 1, "lr": 1e-3},
        "sampling": {"groups": 4, "size": 4, "max_tokens": 6}, "compute": {"threads": 1},
    }  # fmt: skip
    events = [
        [e["event"] for e in train(recipe, runs=tmp_path, name=str(asked), preflight=asked).events]
        for asked in (False, True)
    ]
    assert ["preflight" in kinds for kinds in events] == [False, True]
    assert events[1][-1] == "finished"


@pytest.mark.slow
def test_a_cause_that_is_allowed_does_not_stop_a_run(call: Call, tmp_path: Path) -> None:
    code, _, err = call("train", RECIPE, *CUT, "--runs", tmp_path, "--quiet", "--allow", "reward.gold-rejected")
    assert code == 0, err
    told = next(event for event in Run(tmp_path / "tiny").events if event["event"] == "preflight")
    assert not told["passed"]
    assert "reward.gold-rejected" in [found["id"] for found in told["findings"]]


def test_only_causes_of_the_catalogue_can_be_allowed(call: Call, tmp_path: Path) -> None:
    code, _, err = call("train", RECIPE, "--runs", tmp_path, "--allow", "mask.attention-blnd")
    assert code == 2
    assert "--allow mask.attention-blnd is not in the catalogue. Did you mean mask.attention-blind?" in err
