"""`uptrend preflight`, and the probes that `uptrend train` asks by itself."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from uptrend.doctor.probes import PROBES
from uptrend.doctor.report import saved_report
from uptrend.records import Run
from uptrend.runner import diagnose

Call = Callable[..., Any]
SETTINGS = (
    "sampling.groups=4", "sampling.size=8", "compute.threads=1", "compute.device=cpu", "learning.steps=2",
    "learning.warmup=0", "eval.tasks=8",
)  # fmt: skip
RECIPE = Path(__file__).parents[2] / "recipes" / "tiny.toml"
CUT = ("--set", "tasks.name=examples.autopsies.cut:Cut")  # cuts the answer off before it is graded
REJECTED = "reward.gold-rejected"


@pytest.fixture
def call(uptrend: Call, tiny_folder: str) -> Call:
    """Run a command on a small recipe."""
    sets = [word for value in (*SETTINGS, f"model.name={tiny_folder}") for word in ("--set", value)]
    return lambda *arguments, code=0: uptrend(*arguments, *sets, code=code)


def only(*names: str) -> list[str]:
    return [word for name in names for word in ("--only", name)]


def test_a_healthy_recipe_passes_with_one_line_per_probe(call: Call) -> None:
    lines = call(
        "preflight", RECIPE, *only("gold", "agreement", "masks", "tool-swap")
    ).out.splitlines()
    assert [line.split()[:2] for line in lines[:4]] == [
        ["✓", "gold"], ["✓", "agreement"], ["✓", "masks"], ["–", "tool-swap"],
    ]  # fmt: skip
    assert "50 of 50 gold answers reach the maximum, 0 of 200 corrupted ones do" in lines[0]
    assert lines[3].endswith("not asked: no tools")
    assert sum(line.startswith("  Calculate: ") for line in lines) == 3
    assert lines[-1].startswith("nothing found by 3 probes (1 do not apply)")


def test_a_critical_finding_exits_with_1_and_says_what_to_do(call: Call) -> None:
    out = call("preflight", RECIPE, *CUT, *only("gold", "dead-groups"), code=1).out
    for words in (
        "✗ gold",
        f"critical  {REJECTED}",
        "also explains: advantage.dead-groups-low",
        "  fix: ",
    ):
        assert words in out


def test_json_is_one_object(call: Call) -> None:
    asked = ("preflight", RECIPE, *only("step-size"), "--set", "learning.lr=1e-9")
    told = call(*asked, "--format", "json").json
    assert (told["version"], told["passed"]) == (1, True)
    (probe,), (finding,) = told["probes"], told["findings"]
    assert (probe["name"], probe["ok"], probe["findings"]) == (
        "step-size",
        False,
        ["optimizer.lr-small"],
    )
    assert (finding["id"], finding["severity"]) == ("optimizer.lr-small", "warning")
    call(*asked, "--fail-on", "warning", code=1)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (
            ("preflight", RECIPE, "--only", "prompt-swop"),
            "there is no such probe. There are gold, bounds, repeats",
        ),
        (("preflight", "none.toml"), "none.toml"),
        (("train", RECIPE, "--allow", "mask.attention-blnd"), "Did you mean mask.attention-blind?"),
    ],
)
def test_bad_input_is_a_sentence_and_exit_code_2(
    call: Call, arguments: tuple[object, ...], words: str
) -> None:
    assert words in call(*arguments, code=2).err


@pytest.mark.slow
def test_training_asks_first_and_does_not_begin_on_a_critical_finding_unless_allowed(
    call: Call, tmp_path: Path
) -> None:
    ask = ("train", RECIPE, "--runs", tmp_path, "--quiet")
    assert "preflight: nothing found by " in call(*ask, "--name", "asked").err
    assert call(*ask, "--no-preflight", "--name", "unasked").err == ""
    asked, unasked = Run(tmp_path / "asked"), Run(tmp_path / "unasked")
    assert [e["event"] for e in asked.events][:2] == ["started", "preflight"]
    assert {p["name"] for p in asked.events[1]["probes"]} >= {
        "gold",
        "prompt-swap",
        "agreement",
        "masks",
        "sign",
    }
    states = [
        (r.checkpoints[-1] / "model" / "model.safetensors").read_bytes() for r in (asked, unasked)
    ]
    assert states[0] == states[1]
    said = call(*ask, *CUT, "--name", "refused", code=1).err
    assert f"Not started: {REJECTED}: " in said
    assert f"To train anyway: --allow {REJECTED}, or --no-preflight" in said
    assert not (tmp_path / "refused").exists()
    call(*ask, *CUT, "--allow", REJECTED, "--name", "allowed")
    told = next(
        event for event in Run(tmp_path / "allowed").events if event["event"] == "preflight"
    )
    assert (told["passed"], REJECTED in [found["id"] for found in told["findings"]]) == (
        False,
        True,
    )


@pytest.mark.slow
def test_a_refused_run_that_is_kept_says_why_on_every_surface(
    call: Call, uptrend: Call, tmp_path: Path
) -> None:
    call(
        "train",
        RECIPE,
        "--runs",
        tmp_path,
        "--quiet",
        *CUT,
        "--name",
        "kept",
        "--keep-refused",
        code=1,
    )
    run = Run(tmp_path / "kept")
    assert (run.status, run.last_step, run.eval_lines) == ("stopped", 0, [])
    assert run.stopped is not None
    assert (run.stopped.by, run.stopped.finding) == ("preflight", REJECTED)
    report = diagnose(run.path)
    assert report.trend.headline == "not started"
    assert report.findings[0].id == REJECTED
    assert report.findings[0].severity == "critical"
    told = uptrend("doctor", run.path).out
    assert "NOT STARTED" in told
    assert f"1. {REJECTED}" in told
    shown = uptrend("runs", "show", run.path).flat
    assert "trend not started: Preflight did not let it begin." in shown
    assert REJECTED in shown
    saved = saved_report(run)  # which tables of runs show
    assert saved is not None
    assert saved["findings"][0]["id"] == REJECTED
    assert uptrend("doctor", run.path, "--format", "json").json["findings"][0]["id"] == REJECTED


def test_a_probe_that_raises_is_a_line_and_the_others_go_on(
    call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: object) -> Any:
        raise RuntimeError("CUDA error:\n  out of memory")

    monkeypatch.setitem(PROBES, "order", replace(PROBES["order"], function=fail))
    asked = ("preflight", RECIPE, *only("leak", "order", "schedule"))
    lines = call(*asked, code=2).out.splitlines()
    assert [line.split()[:2] for line in lines[:3]] == [
        ["✓", "leak"],
        ["!", "order"],
        ["✓", "schedule"],
    ]
    assert lines[1].endswith("failed: RuntimeError: CUDA error: out of memory")
    assert lines[-1].startswith("nothing found by 2 probes (0 do not apply, 1 failed)")
    told = call(*asked, "--format", "json", code=2).json
    assert [(p["name"], p["error"]) for p in told["probes"] if p["error"]] == [
        ("order", "RuntimeError: CUDA error: out of memory")
    ]
    assert (told["passed"], [p["ok"] for p in told["probes"]]) == (False, [True, False, True])
