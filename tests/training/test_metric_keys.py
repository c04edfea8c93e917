"""Every key that a real run writes has its paragraph in docs/metrics.md."""

import re
from pathlib import Path
from typing import Any

import pytest

from uptrend.config import load_config
from uptrend.records import Run
from uptrend.runner.runs import train, warmstart

PAGE = (Path(__file__).parents[2] / "docs" / "metrics.md").read_text(encoding="utf-8")
STEP_KEYS = re.findall(r"^### `(.+)`$", PAGE, re.MULTILINE)
EVAL_KEYS = re.findall(r"^### evals: `(.+)`$", PAGE, re.MULTILINE)


def table(llama_folder: Path) -> dict[str, Any]:
    """As much as one run can have: turns, failures, resampling, a reference, attempts."""
    return {
        "model": {"name": str(llama_folder)},
        "tasks": {"name": "letters:Letters", "train": 30, "turns": 2, "fails": 7},
        "eval": {"name": "letters:Letters", "tasks": 4, "attempts": 2},
        "sampling": {"groups": 8, "size": 4, "max_tokens": 6, "max_turns": 2, "resample": 1, "stop": ["q"]},
        "learning": {"steps": 2, "kl": {"beta": 0.1}, "entropy": 0.01},
        "warmstart": {"tasks": 8, "batch": 4},
        "compute": {"threads": 1},
    }


@pytest.fixture(scope="module")
def run(llama_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
    return train(table(llama_folder), runs=tmp_path_factory.mktemp("runs"))


@pytest.fixture(scope="module")
def warm(llama_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder = tmp_path_factory.mktemp("warm")
    return warmstart(load_config(table(llama_folder)), folder / "model", runs=folder)


def test_every_key_of_a_step_is_explained(run: Run, warm: Run) -> None:
    patterns = [re.compile(re.sub(r"[A-Z]+", "[^/]+", key)) for key in STEP_KEYS]
    for line in [*run.metric_lines, *warm.metric_lines]:
        missing = [key for key in line if not any(p.fullmatch(key) for p in patterns)]
        assert missing == []


def test_every_explained_key_of_a_step_is_written(run: Run, warm: Run) -> None:
    written = {key for line in [*run.metric_lines, *warm.metric_lines] for key in line}
    for key in STEP_KEYS:
        pattern = re.compile(re.sub(r"[A-Z]+", "[^/]+", key))
        assert any(pattern.fullmatch(name) for name in written), key


def test_the_keys_of_an_evaluation_are_the_explained_ones(run: Run, warm: Run) -> None:
    for line in [*run.eval_lines, *warm.eval_lines]:
        assert sorted(line) == sorted(EVAL_KEYS)


def test_values_are_plain_numbers(run: Run) -> None:
    for line in run.metric_lines:
        assert all(value is None or isinstance(value, int | float) for value in line.values())
