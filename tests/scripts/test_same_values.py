"""scripts/same_values.py: it sees a value that has changed, in every kind of file."""

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from synthetic import write_run
from uptrend.config import load_config
from uptrend.config.schema import Estimator, Loss

sys.path.append(str(Path(__file__).parents[2] / "scripts"))

from same_values import RUNS, SMALL, differences

SCRIPT = Path(__file__).parents[2] / "scripts" / "same_values.py"


@pytest.fixture
def folders(tmp_path: Path) -> tuple[Path, Path]:
    before = tmp_path / "before"
    checkpoint = write_run(before / "tiny", steps=3) / "checkpoints" / "step-000003"
    (checkpoint / "model").mkdir(parents=True)
    (checkpoint / "model" / "model.safetensors").write_bytes(b"weights")
    (checkpoint / "optimizer.safetensors").write_bytes(b"moments")
    (checkpoint / "state.json").write_text('{"step": 3, "cursor": {}}')
    shutil.copytree(before, tmp_path / "after")
    return before, tmp_path / "after"


def alter_line(path: Path, number: int, changes: dict[str, Any]) -> None:
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    lines[number] |= changes
    path.write_text("".join(f"{json.dumps(line)}\n" for line in lines))


def alter_rows(path: Path, alter: Callable[[list[dict[str, Any]]], None]) -> None:
    table = pq.read_table(path)
    rows = table.to_pylist()
    alter(rows)
    pq.write_table(pa.Table.from_pylist(rows, table.schema), path)


def test_copies_are_the_same_but_for_what_a_clock_wrote(folders: tuple[Path, Path]) -> None:
    run = folders[1] / "tiny"
    measured = {
        "seconds/step": 99.0,
        "time/tokens/per_second": 9.0,
        "memory/peak/gib": 9.0,
        "time": 1.0,
    }
    alter_line(run / "metrics.jsonl", 1, measured)
    alter_line(run / "events.jsonl", 0, {"time": 1.0, "pid": 1})
    alter_line(run / "evals.jsonl", 0, {"time": 1.0, "seconds": 1.0})
    alter_rows(next(run.rglob("rollouts/*/*.parquet")), lambda rows: rows[0].update(seconds=9.0))
    info = json.loads((run / "run.json").read_text())
    (run / "run.json").write_text(json.dumps({**info, "created": "later"}))
    assert differences(*folders, ["tiny"]) == []


def test_a_changed_metric_is_seen(folders: tuple[Path, Path]) -> None:
    metrics = folders[1] / "tiny" / "metrics.jsonl"
    reward = json.loads(metrics.read_text().splitlines()[1])["reward/mean"]
    alter_line(metrics, 1, {"reward/mean": reward + 1e-9})
    (line,) = differences(*folders, ["tiny"])
    assert line.startswith("tiny metrics.jsonl:1 reward/mean: ")


@pytest.mark.parametrize("folder", ["rollouts", "evals"])
def test_a_changed_token_is_seen(folders: tuple[Path, Path], folder: str) -> None:
    def alter(rows: list[dict[str, Any]]) -> None:
        rows[0]["ids"][-1] += 1

    alter_rows(next((folders[1] / "tiny" / folder).rglob("*.parquet")), alter)
    (line,) = differences(*folders, ["tiny"])
    assert ".parquet:0 ids: " in line


def test_a_column_of_another_type_is_seen(folders: tuple[Path, Path]) -> None:
    path = next((folders[1] / "tiny").rglob("rollouts/*/*.parquet"))
    table = pq.read_table(path)
    place = table.schema.get_field_index("step")
    wider = table.set_column(place, "step", table["step"].cast(pa.int64()))
    pq.write_table(wider, path)
    (line,) = differences(*folders, ["tiny"])
    assert ".parquet columns: " in line


@pytest.mark.parametrize(
    ("section", "key", "value"),
    [
        ("sampling", "tool_timeout", 1.0),  # has a duration's name, and is none
        ("learning", "steps", 3.0),  # the same number of another type
        ("learning", "correction", None),
    ],
)
def test_a_changed_setting_is_seen(
    folders: tuple[Path, Path], section: str, key: str, value: Any
) -> None:
    path = folders[1] / "tiny" / "run.json"
    info = json.loads(path.read_text())
    info["config"][section][key] = value
    path.write_text(json.dumps(info))
    (line,) = differences(*folders, ["tiny"])
    assert line.startswith(f"tiny run.json config {section} {key}: ")


def test_a_setting_that_is_gone_is_seen_whatever_it_was(folders: tuple[Path, Path]) -> None:
    path = folders[1] / "tiny" / "run.json"
    info = json.loads(path.read_text())
    assert info["config"]["learning"].pop("correction") == "none"
    path.write_text(json.dumps(info))
    (line,) = differences(*folders, ["tiny"])
    assert line == "tiny run.json config learning correction: 'none' → absent"


@pytest.mark.parametrize("name", ["model/model.safetensors", "optimizer.safetensors", "state.json"])
def test_a_changed_checkpoint_is_seen(folders: tuple[Path, Path], name: str) -> None:
    path = folders[1] / "tiny" / "checkpoints" / "step-000003" / name
    path.write_bytes(
        path.read_bytes()
        .replace(b"weights", b"others")
        .replace(b"moments", b"")
        .replace(b"3", b"4")
    )
    (line,) = differences(*folders, ["tiny"])
    assert line.startswith(f"tiny checkpoints/step-000003/{name}")


def test_an_empty_table_and_a_file_that_are_gone_are_seen(folders: tuple[Path, Path]) -> None:
    run = folders[1] / "tiny"
    (run / "checkpoints" / "step-000003" / "state.json").write_text('{"step": 3}')
    (run / "new.md").touch()
    assert differences(*folders, ["tiny"]) == [
        "tiny checkpoints/step-000003/state.json cursor: {} → absent",
        "tiny new.md: absent → 'e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855'",
    ]


def test_the_folder_of_the_code_may_be_another(folders: tuple[Path, Path]) -> None:
    for folder, code in zip(folders, ("/one/checkout", "/other"), strict=True):
        (folder / "checkout.txt").write_text(code)
        path = folder / "tiny" / "run.json"
        info = json.loads(path.read_text())
        info["config"]["tasks"]["file"] = f"{code}/rows.jsonl"
        path.write_text(json.dumps(info))
        (folder / "tiny" / "README.md").write_text(f"model: {code}/tiny")
    assert differences(*folders, ["tiny"]) == []


def test_a_folder_without_the_run_is_refused_before_any_training(tmp_path: Path) -> None:
    command = [sys.executable, str(SCRIPT), "compare", str(tmp_path), "--only", "tiny"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert f"{tmp_path} has no run tiny; record it" in done.stderr


def test_two_recordings_are_compared(folders: tuple[Path, Path]) -> None:
    before, after = map(str, folders)
    command = [sys.executable, str(SCRIPT), "compare", before, "--only", "tiny", "--with", after]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.splitlines()[-1]) == (0, "Nothing differs.")
    alter_line(folders[1] / "tiny" / "events.jsonl", 0, {"event": "other"})
    assert subprocess.run(command, capture_output=True, check=False).returncode == 1


def test_its_runs_use_every_loss_and_kl_estimator() -> None:
    recipes = [
        load_config(SCRIPT.parents[1] / recipe, [*SMALL, *more]) for recipe, more in RUNS.values()
    ]
    assert {config.learning.loss for config in recipes} == set(get_args(Loss))
    estimators = {config.learning.kl.estimator for config in recipes if config.learning.kl.beta}
    assert estimators == set(get_args(Estimator))
