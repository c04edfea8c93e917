"""A finished run becomes one number, and the same by held-out task."""

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from synthetic import evaluation_of, info_of, line_of, rollout_of
from uptrend.lab import measure
from uptrend.records import LabError, Part, Reward, Run, RunDirectory, rollouts_table


def test_accuracy_is_that_of_the_last_evaluation_and_its_tasks_add_up_to_it(make_run: Callable[..., Path]) -> None:
    path = make_run("a", rights=(15, 28))
    seen = measure.measure(Run(path), "eval/accuracy", "control", 3, path.parent.parent)
    assert (seen.arm, seen.seed, seen.run) == ("control", 3, "runs/a")
    assert seen.value == 28 / 40
    assert seen.before == 15 / 40
    assert len(seen.tasks) == 40
    assert sum(seen.tasks.values()) == 28
    assert set(seen.families.values()) == {"add"}


def test_a_metric_of_the_steps_is_its_mean_over_the_last_quarter(make_run: Callable[..., Path]) -> None:
    run = Run(make_run("a", steps=20))
    seen = measure.measure(run, "reward/mean", "control", 0, run.path)
    last = [line["reward/mean"] for line in run.metric_lines if line["step"] > 15]
    assert len(last) == 5
    assert seen.value == pytest.approx(np.mean(last))
    assert seen.tasks == {}


def test_values_that_are_not_finite_are_left_out(make_run: Callable[..., Path]) -> None:
    run = Run(make_run("a", steps=2))
    assert measure.measure(run, "loss/total", "control", 0, run.path).value == 0.0


def write_attempts(path: Path) -> Path:
    """Two tasks: greedy right and wrong, then four attempts each, of which 1 and 0 are right; one has no reward."""
    line = line_of(evaluation_of(1, 1, 3)) | {"pass_at": {"1": 0.125, "4": 0.5}}
    greedy = [rollout_of(1, f"g{n}", 0, n == 0, f"t{n}") for n in range(2)]
    sampled = [rollout_of(1, f"g{n}", i, n == 0 and i == 3, f"t{n}") for n in range(2) for i in range(4)]
    failed = replace(rollout_of(1, "g2", 0, False, "t2"), reward=None)
    info = info_of("attempts", ("learning.steps=1",))
    with RunDirectory.create(path, info) as directory:
        directory.evaluation(line, rollouts_table("attempts", [*greedy, failed, *sampled]))
        directory.event("finished", step=1)
    return path


def test_sampled_attempts_count_for_pass_at_k_alone(tmp_path: Path) -> None:
    run = Run(write_attempts(tmp_path / "attempts"))
    assert measure.measure(run, "eval/accuracy", "a", 0, tmp_path).tasks == {"t0": 1.0, "t1": 0.0, "t2": 0.0}
    at_four = measure.measure(run, "eval/pass@4", "a", 0, tmp_path)
    assert at_four.value == 0.5
    assert at_four.tasks == {"t0": 1.0, "t1": 0.0}
    assert measure.measure(run, "eval/pass@1", "a", 0, tmp_path).tasks == {"t0": 0.25, "t1": 0.0}


def test_what_could_not_be_scored_has_no_reward(tmp_path: Path) -> None:
    run = Run(write_attempts(tmp_path / "attempts"))
    assert measure.measure(run, "eval/reward", "a", 0, tmp_path).tasks == {"t0": 1.0, "t1": 0.0}


def test_a_part_of_the_reward_by_task(tmp_path: Path) -> None:
    parts = (Part("answer", 1.0, 0.0, 1.0, 1.0), Part("form", 0.25, 0.0, 1.0, 0.5))
    rollout = replace(rollout_of(1, "g0", 0, True, "t0"), reward=Reward(1.125, 0.0, 1.5, True, parts))
    line = line_of(evaluation_of(1, 1, 1)) | {"parts": {"answer": 1.0, "form": 0.25}}
    with RunDirectory.create(tmp_path / "r", info_of("r", ("learning.steps=1",))) as directory:
        directory.evaluation(line, rollouts_table("r", [rollout]))
        directory.event("finished", step=1)
    seen = measure.measure(Run(tmp_path / "r"), "eval/part/form", "a", 0, tmp_path)
    assert (seen.value, dict(seen.tasks)) == (0.25, {"t0": 0.25})


@pytest.mark.parametrize(
    ("metric", "says"),
    [
        ("eval/part/style", "Its reward has the parts exact."),
        ("eval/pass@8", "Set eval.attempts"),
        ("clip/low/share", "recorded no clip/low/share"),
        ("accuracy", "accuracy is no metric. Did you mean eval/accuracy?"),
        ("reward/men", "Did you mean reward/mean?"),
    ],
)
def test_what_a_run_lacks_is_said(make_run: Callable[..., Path], metric: str, says: str) -> None:
    run = Run(make_run("a"))
    with pytest.raises(LabError, match=re.escape(says)):
        measure.measure(run, metric, "a", 0, run.path)


@pytest.mark.parametrize("options", [{"end": None}, {"end": "stopped"}, {"end": "failed"}])
def test_only_a_finished_run_is_compared(make_run: Callable[..., Path], options: dict[str, Any]) -> None:
    run = Run(make_run("a", **options))
    with pytest.raises(LabError, match="only a finished run is compared"):
        measure.measure(run, "eval/accuracy", "a", 0, run.path)


@pytest.mark.parametrize("metric", ["eval/accuracy", "eval/pass@16", "eval/part/exact", "reward/mean", "seconds/step"])
def test_known_metrics(metric: str) -> None:
    assert measure.is_known(metric)


@pytest.mark.parametrize("metric", ["accuracy", "eval/pass@0", "eval/pass@", "eval/part/", "step", "reward", "eval/x"])
def test_unknown_metrics(metric: str) -> None:
    assert not measure.is_known(metric)


def test_bounds_are_those_of_fractions() -> None:
    assert measure.bounds("eval/accuracy") == measure.bounds("eval/pass@4") == (0.0, 1.0)
    assert measure.bounds("advantage/dead/share") == (0.0, 1.0)
    assert measure.bounds("eval/reward") is None
