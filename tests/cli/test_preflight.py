"""`uptrend preflight`, and the probes that `uptrend train` asks by itself."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from uptrend.cli.main import main
from uptrend.records import Run
from uptrend.runner.runs import train

Call = Callable[..., tuple[int, str, str]]
SETTINGS = (
    "sampling.groups=4", "sampling.size=8", "compute.threads=1", "compute.device=cpu", "learning.steps=2",
    "learning.warmup=0", "eval.tasks=8",
)  # fmt: skip
RECIPE = Path(__file__).parents[2] / "recipes" / "tiny.toml"
CUT = ("--set", "tasks.name=examples.autopsies.cut:Cut")  # cuts the answer off before it is graded
REJECTED = "reward.gold-rejected"


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str], tiny_folder: str) -> Call:
    """Run a command; return its exit code, stdout and stderr."""

    def run(*arguments: object) -> tuple[int, str, str]:
        sets = [word for value in (*SETTINGS, f"model.name={tiny_folder}") for word in ("--set", value)]
        with pytest.raises(SystemExit) as end:
            main([*map(str, arguments), *sets])
        said = capsys.readouterr()
        return int(end.value.code or 0), said.out, said.err

    return run


def only(*names: str) -> list[str]:
    return [word for name in names for word in ("--only", name)]


def test_a_healthy_recipe_passes_with_one_line_per_probe(call: Call) -> None:
    code, out, _ = call("preflight", RECIPE, *only("gold", "agreement", "masks", "tool-swap"))
    lines = out.splitlines()
    assert code == 0
    assert [line.split()[:2] for line in lines[:4]] == [
        ["✓", "gold"], ["✓", "agreement"], ["✓", "masks"], ["–", "tool-swap"],
    ]  # fmt: skip
    assert "50 of 50 gold answers reach the maximum, 0 of 200 corrupted ones do" in lines[0]
    assert lines[3].endswith("not asked: no tools")
    assert sum(line.startswith("  Calculate: ") for line in lines) == 3
    assert lines[-1].startswith("nothing found by 3 probes (1 do not apply)")


def test_a_critical_finding_exits_with_1_and_says_what_to_do(call: Call) -> None:
    code, out, _ = call("preflight", RECIPE, *CUT, *only("gold", "dead-groups"))
    assert code == 1
    for words in ("✗ gold", f"critical  {REJECTED}", "also explains: advantage.dead-groups-low", "  fix: "):
        assert words in out


def test_json_is_one_object(call: Call) -> None:
    asked = ("preflight", RECIPE, *only("step-size"), "--set", "learning.lr=1e-9")
    code, out, _ = call(*asked, "--format", "json")
    told: dict[str, Any] = json.loads(out)
    assert (code, told["version"], told["passed"]) == (0, 1, True)
    (probe,), (finding,) = told["probes"], told["findings"]
    assert (probe["name"], probe["ok"], probe["findings"]) == ("step-size", False, ["optimizer.lr-small"])
    assert (finding["id"], finding["severity"]) == ("optimizer.lr-small", "warning")
    assert {"confidence", "summary", "evidence", "rivals", "experiment", "fix", "explains", "page"} <= set(finding)
    assert call(*asked, "--fail-on", "warning")[0] == 1


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("preflight", RECIPE, "--only", "prompt-swop"), "there is no such probe. There are gold, repeats"),
        (("preflight", "none.toml"), "none.toml"),
        (("train", RECIPE, "--allow", "mask.attention-blnd"), "Did you mean mask.attention-blind?"),
    ],
)
def test_bad_input_is_a_sentence_and_exit_code_2(call: Call, arguments: tuple[object, ...], words: str) -> None:
    code, _, err = call(*arguments)
    assert code == 2
    assert words in err


@pytest.mark.slow
def test_training_asks_first_and_keeps_the_figures(call: Call, tmp_path: Path) -> None:
    code, _, err = call("train", RECIPE, "--runs", tmp_path, "--quiet")
    assert code == 0
    assert "preflight: nothing found by " in err
    run = Run(tmp_path / "tiny")
    assert [e["event"] for e in run.events][:2] == ["started", "preflight"]
    assert run.events[1]["passed"]
    assert {p["name"] for p in run.events[1]["probes"]} >= {"gold", "prompt-swap", "agreement", "masks", "sign"}
    code, _, err = call("train", RECIPE, "--runs", tmp_path, "--quiet", "--no-preflight", "--name", "unasked")
    assert (code, err) == (0, "")
    unasked = Run(tmp_path / "unasked")
    assert [line["reward/mean"] for line in unasked.metric_lines] == [line["reward/mean"] for line in run.metric_lines]
    assert unasked.info["model"]["digest"] == run.info["model"]["digest"]
    states = [(r.checkpoints[-1] / "model" / "model.safetensors").read_bytes() for r in (run, unasked)]
    assert states[0] == states[1]


@pytest.mark.slow
def test_training_does_not_begin_on_a_critical_finding_unless_it_is_allowed(call: Call, tmp_path: Path) -> None:
    cut = ("train", RECIPE, *CUT, "--runs", tmp_path, "--quiet")
    code, _, err = call(*cut)
    assert code == 1
    assert REJECTED in err
    run = Run(tmp_path / "tiny")
    assert (run.status, run.last_step, run.eval_lines) == ("stopped", 0, [])
    assert run.stopped is not None
    assert (run.stopped.by, run.stopped.finding) == ("preflight", REJECTED)
    assert call(*cut, "--no-preflight", "--name", "unasked")[0] == 0
    assert call(*cut, "--allow", REJECTED, "--name", "allowed")[0] == 0
    told = next(event for event in Run(tmp_path / "allowed").events if event["event"] == "preflight")
    assert (told["passed"], REJECTED in [found["id"] for found in told["findings"]]) == (False, True)
    assert Run(tmp_path / "unasked").last_step == 2


def test_python_asks_only_when_told_to(llama_folder: Path, tmp_path: Path) -> None:
    recipe = {
        "model": {"name": str(llama_folder)}, "tasks": {"name": "letters:Letters", "train": 30},
        "eval": {"name": "letters:Letters", "tasks": 4, "every": 0}, "learning": {"steps": 1, "lr": 1e-3},
        "sampling": {"groups": 4, "size": 4, "max_tokens": 6}, "compute": {"threads": 1},
    }  # fmt: skip
    for asked in (False, True):
        events = [e["event"] for e in train(recipe, runs=tmp_path, name=str(asked), preflight=asked).events]
        assert (("preflight" in events), events[-1]) == (asked, "finished")
