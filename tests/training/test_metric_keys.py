"""Lines of real runs against the table of metrics: every key is in it, values are in bounds, and
none is made up.
"""

import re
from pathlib import Path
from typing import Any

import pytest

from uptrend.config import load_config
from uptrend.doctor.diagnose import diagnose
from uptrend.records import Run, view_of
from uptrend.records.metrics import find_metric, sections, step_metrics
from uptrend.runner.runs import train_recipe, warmstart


def table(llama_folder: Path) -> dict[str, Any]:
    """As much as one run can have: commands, failures, resampling, a reference, attempts, two
    held-out sets.
    """
    return {
        "model": {"name": str(llama_folder)},
        "tasks": {"name": "shells:Shells", "train": 30, "turns": 2, "fails": 7, "sandbox_fails": 1},
        "eval": {
            "name": "shells:Shells",
            "tasks": 4,
            "attempts": 2,
            "sets": [{"label": "few", "tasks": 2}],
        },
        "sampling": {
            "groups": 8,
            "size": 4,
            "max_tokens": 6,
            "max_turns": 2,
            "resample": 1,
            "stop": ["q"],
        },
        "learning": {"steps": 2, "kl": {"beta": 0.1}, "entropy": 0.01, "correction": "token"},
        "warmstart": {"tasks": 8, "batch": 4},
        "compute": {"threads": 1},
    }


@pytest.fixture(scope="module")
def run(llama_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
    return train_recipe(table(llama_folder), runs=tmp_path_factory.mktemp("runs"))


@pytest.fixture(scope="module")
def warm(llama_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder = tmp_path_factory.mktemp("warm")
    return warmstart(load_config(table(llama_folder)), folder / "model", runs=folder)


def train_one_group(llama_folder: Path, folder: Path, steps: int = 4, **tasks: int) -> Run:
    """A run with one group per step and `learning.skip_dead`."""
    wanted = table(llama_folder) | {
        "tasks": {"name": "letters:Letters", "train": 30, **tasks},
        "eval": {"name": "letters:Letters", "tasks": 4, **tasks},
        "sampling": {"groups": 1, "size": 4, "max_tokens": 6},
        "learning": {"steps": steps, "skip_dead": True},
    }
    return train_recipe(wanted, runs=folder)


def nulls(run: Run) -> set[str]:
    return {
        key
        for line in [*run.metric_lines, *run.eval_lines]
        for key, value in line.items()
        if value is None
    }


def test_every_key_is_in_the_table_and_every_value_in_its_bounds(run: Run, warm: Run) -> None:
    for line in [*run.metric_lines, *warm.metric_lines]:
        for key, value in line.items():
            metric = find_metric(key)
            assert metric is not None, key
            assert isinstance(value, int | float), key
            assert metric.low is None or value >= metric.low, key
            assert metric.high is None or value <= metric.high, key


def test_every_metric_of_our_own_is_written(run: Run, warm: Run) -> None:
    written = {key for line in [*run.metric_lines, *warm.metric_lines] for key in line}
    # Of several processes: test_ranks.py sees that they write it, and nothing else.
    written |= {"ranks/weights/count"}
    # Of tasks that are drawn by their pass rate: test_pass_rates.py sees them.
    written |= {"sampling/pass_rate/mean", "sampling/passed_over/count"}
    # Of several tasksets: test_source_runs.py sees them.
    written |= {"source/own/reward/mean"}
    for metric in step_metrics():
        pattern = re.compile(re.sub("[A-Z]+", "[^/]+", metric.key))
        assert any(pattern.fullmatch(name) for name in written) is metric.own, metric.key

    keys = [
        metric.key
        for section in sections()
        if section.file == "evals.jsonl"
        for metric in section.metrics
    ]
    for line in [*run.eval_lines, *warm.eval_lines]:
        assert sorted(line) == sorted(keys)


def test_a_step_without_a_live_group_writes_no_null_and_raises_no_alarm(
    llama_folder: Path, tmp_path: Path
) -> None:
    run = train_one_group(llama_folder, tmp_path, steps=8, dead=2)
    dead = [line for line in run.metric_lines if line["advantage/dead/share"] == 1]
    live = [line for line in run.metric_lines if line["advantage/dead/share"] == 0]
    assert dead
    assert live
    means = {
        "learner/entropy/mean",
        "learner/ratio/mean",
        "clip/low/share",
        "sampler/gap/mean",
        "tokens/padding/share",
    }
    assert all(means.isdisjoint(line) and line["gradient/norm/before"] == 0 for line in dead)
    assert all(means <= set(line) for line in live)
    assert nulls(run) == set()
    assert "run.nonfinite" not in {finding.id for finding in diagnose(view_of(run)).findings}


def test_a_loss_that_is_not_finite_is_written_as_null_and_found(
    llama_folder: Path, tmp_path: Path
) -> None:
    run = train_one_group(llama_folder, tmp_path, infinite=1)
    assert {"loss/total", "gradient/norm/before"} <= nulls(run)
    assert "run.nonfinite" in {finding.id for finding in diagnose(view_of(run)).findings}
