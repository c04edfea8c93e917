"""scripts/same_values.py: it sees a value that has changed, in every kind of file."""

import json
import shutil
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from synthetic import write_run

sys.path.append(str(Path(__file__).parents[2] / "scripts"))

from same_values import RUNS, differences


@pytest.fixture
def folders(tmp_path: Path) -> tuple[Path, Path]:
    before = tmp_path / "before"
    write_run(before / "tiny", steps=3)
    shutil.copytree(before, tmp_path / "after")
    return before, tmp_path / "after"


def test_copies_are_the_same_but_for_what_a_clock_wrote(folders: tuple[Path, Path]) -> None:
    metrics = folders[1] / "tiny" / "metrics.jsonl"
    lines = [json.loads(line) | {"seconds/step": 99.0, "time": 1.0} for line in metrics.read_text().splitlines()]
    metrics.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    assert differences(*folders, ["tiny"]) == []


def test_a_changed_metric_is_seen(folders: tuple[Path, Path]) -> None:
    metrics = folders[1] / "tiny" / "metrics.jsonl"
    lines = [json.loads(line) for line in metrics.read_text().splitlines()]
    lines[1]["reward/mean"] += 1e-9
    metrics.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    (line,) = differences(*folders, ["tiny"])
    assert line.startswith("tiny metrics.jsonl:1 reward/mean: ")


def test_a_changed_token_is_seen(folders: tuple[Path, Path]) -> None:
    path = next((folders[1] / "tiny").rglob("rollouts/*/*.parquet"))
    table = pq.read_table(path)
    rows = table.to_pylist()
    rows[0]["ids"][-1] += 1
    pq.write_table(pa.Table.from_pylist(rows, table.schema), path)
    (line,) = differences(*folders, ["tiny"])
    assert ".parquet:0 ids: " in line


def test_its_recipes_are_there() -> None:
    for recipe, _ in RUNS.values():
        assert (Path(__file__).parents[2] / recipe).is_file()
