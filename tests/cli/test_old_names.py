"""Names and runs of version 0.1 on the command line: read, or refused in a sentence."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from uptrend.config import load_config
from uptrend.records import CheckpointError, Run
from uptrend.records.lines import read_lines, to_line
from uptrend.records.renamed import names
from uptrend.runner.evaluation import load_for_eval
from uptrend.runner.runs import replay, resume_run, train_recipe

SCHEMA1 = Path(__file__).parents[1] / "data" / "schema1"
Uptrend = Callable[..., Any]


@pytest.fixture(scope="module")
def old(letters: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Run with a checkpoint, as 0.1 would have written it."""
    table = {**letters, "checkpoints": {"every": 2}}
    run = train_recipe(load_config(table), runs=tmp_path_factory.mktemp("runs"))
    info = json.loads((run.path / "run.json").read_text())
    (run.path / "run.json").write_text(json.dumps({**info, "schema": 1, "uptrend": "0.1.0"}))
    before = {new: name for name, new in names("metrics", "files").items()}
    lines = [
        {before.get(key, key): value for key, value in line.items()}
        for line in read_lines(run.path / "metrics.jsonl")
    ]
    (run.path / "metrics.jsonl").write_bytes(b"".join(map(to_line, lines)))
    (checkpoint,) = run.checkpoints
    state = json.loads((checkpoint / "state.json").read_text())
    del state["checksum"]
    state["files"] = {before.get(name, name): sums for name, sums in state["files"].items()}
    (checkpoint / "state.json").write_text(json.dumps(state))
    shutil.move(checkpoint / "optimizer.safetensors", checkpoint / "optimiser.safetensors")
    return Run(run.path)


def test_a_run_of_schema_1_is_shown_compared_drawn_and_diagnosed(
    uptrend: Uptrend, tmp_path: Path
) -> None:
    shown = uptrend("runs", "show", SCHEMA1, "--json").json
    assert (shown["status"], shown["step"]) == ("finished", 3)
    assert uptrend("runs", "compare", SCHEMA1, SCHEMA1, "--json").json["paired"]["tasks"] == 4
    report = uptrend("doctor", SCHEMA1, "--no-save", "--format", "json").json
    assert report["trend"] == "too-short"
    assert "run.nonfinite" not in {finding["id"] for finding in report["findings"]}
    drawn = uptrend("plot", SCHEMA1, "--metric", "optimiser/lr", "--out", tmp_path / "lr.svg")
    assert "note: optimiser/lr is called optimizer/lr now" in drawn.err


def test_a_schema_1_checkpoint_is_not_resumed_and_its_weights_can_be_evaluated(old: Run) -> None:
    with pytest.raises(
        CheckpointError, match=r"written by Uptrend 0\.1\.0, whose checkpoints .* `uptrend eval`"
    ):
        resume_run(old.path, ["learning.steps=4"])
    config, policy, held_out = load_for_eval(str(old.path), None, ())
    assert len(held_out.tasks) == config.eval.tasks == 4
    assert policy.parameters > 0


def test_a_schema_1_run_is_replayed_from_its_first_step_alone(old: Run, tmp_path: Path) -> None:
    again = replay(old, 0, runs=tmp_path)
    assert [line["reward/mean"] for line in again.metric_lines] == [
        line["reward/mean"] for line in old.metric_lines
    ]
    assert again.schema == 2
    with pytest.raises(CheckpointError, match="checkpoints this version can't resume from"):
        replay(old, 2, runs=tmp_path)


def test_old_causes_and_probes_are_accepted_with_one_note(uptrend: Uptrend, tmp_path: Path) -> None:
    lab, recipe = tmp_path / "lab", tmp_path / "base.toml"
    uptrend("lab", "init", lab)
    recipe.write_text('name = "base"\n[model]\nname = "tiny"\n[learning]\nlr = 1e-5\n')
    printed = uptrend(
        "lab", "new", "optimiser.lr-small", "optimiser.lr-small", "--dir", lab, "--recipe", recipe
    )
    assert printed.err.count("note: optimiser.lr-small is called optimizer.lr-small now") == 1
    assert (
        'cause = "optimizer.lr-small"'
        in (lab / printed.out.split()[1].removeprefix(f"{lab}/")).read_text()
    )
    error = uptrend(
        "train", recipe, "--allow", "optimiser.frozen", "--allow", "no.such-cause", code=2
    ).err
    assert "note: optimiser.frozen is called optimizer.frozen now" in error
    assert "no.such-cause is not in the catalogue" in error
    error = uptrend("preflight", recipe, "--only", "synchronise", "--only", "nothing", code=2).err
    assert "note: synchronise is called synchronize now" in error


def test_old_names_of_commands_run_with_a_note(old: Run, uptrend: Uptrend, tmp_path: Path) -> None:
    repeated = uptrend("rollouts", "replay", old.path, "--step", 1)
    assert (
        repeated.err
        == "note: rollouts replay is called rollouts verify now; the old name still works.\n"
    )
    assert "came out the same" in repeated.out
    written = uptrend("rollouts", "export", old.path, "--to", tmp_path / "readable", "--step", 1)
    assert (
        written.err
        == "note: rollouts export is called rollouts write now; the old name still works.\n"
    )
    assert (tmp_path / "readable" / "index.md").exists()
    packed = uptrend("tasks", "export", "arithmetic", "--to", tmp_path / "sums")
    assert (
        packed.err == "note: tasks export is called tasks package now; the old name still works.\n"
    )
    listed = uptrend("rollouts", "--help").out
    assert "verify" in listed
    assert "replay" not in listed


def test_an_old_hypothesis_file_is_read(uptrend: Uptrend, tmp_path: Path) -> None:
    lab = tmp_path / "lab"
    uptrend("lab", "init", lab)
    (lab / "base.toml").write_text('name = "base"\n[model]\nname = "tiny"\n')
    (lab / "hypotheses" / "h01-rate.md").write_text(
        '+++\ntitle = "A rate"\nrecipe = "base.toml"\nmetric = "optimiser/lr"\ncause = "optimiser.lr-small"\n'
        'allows = ["tokens.retokenised"]\n[arms.control]\ncontrol = true\n[arms.fast]\n"learning.lr" = 1e-3\n+++\n'
    )
    printed = uptrend("lab", "list", "--dir", lab, "--format", "json")
    (listed,) = printed.json["hypotheses"]
    assert (listed["metric"], listed["cause"]) == ("optimizer/lr", "optimizer.lr-small")
    assert "note: tokens.retokenised is called tokens.retokenized now" in printed.err
