"""A finished run becomes one number, and the same by held-out task; metrics in words."""

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from synthetic import evaluation_of, info_of, line_of, rollout_of
from uptrend.lab import measure
from uptrend.records import LabError, Part, Reward, Run, RunDirectory, rollouts_table
from uptrend.records.metrics import outcome_of


def test_accuracy_is_that_of_the_last_evaluation_and_its_tasks_add_up_to_it(
    make_run: Callable[..., Path],
) -> None:
    path = make_run("a", rights=(15, 28))
    seen = measure.measure(Run(path), "eval/accuracy", "control", 3, path.parent.parent)
    assert (seen.arm, seen.seed, seen.run) == ("control", 3, "runs/a")
    assert (seen.value, seen.before, len(seen.tasks)) == (28 / 40, 15 / 40, 40)
    assert sum(seen.tasks.values()) == 28
    assert set(seen.families.values()) == {"add"}


def test_a_gain_is_the_last_evaluation_less_the_first_and_has_no_tasks(
    make_run: Callable[..., Path],
) -> None:
    run = Run(make_run("a", rights=(15, 28)))
    seen = measure.measure(run, "eval/accuracy/gain", "control", 0, run.path)
    assert (seen.value, seen.before, seen.tasks) == (pytest.approx(13 / 40), 0.0, {})
    assert measure.in_line(run.eval_lines[0], "eval/accuracy/gain") == 15 / 40
    assert measure.bounds("eval/accuracy/gain") == (-1.0, 1.0)
    assert (
        measure.effect_text("eval/accuracy/gain", 0.1)
        == "+10.0 points of gain in held-out accuracy"
    )
    assert not measure.is_gain("eval/part/gain"), "a part of that name"
    assert not measure.is_known("reward/mean/gain"), "steps have no first evaluation"


def test_a_metric_of_the_steps_is_its_mean_over_the_last_quarter(
    make_run: Callable[..., Path],
) -> None:
    run = Run(make_run("a", steps=20))
    seen = measure.measure(run, "reward/mean", "control", 0, run.path)
    last = [line["reward/mean"] for line in run.metric_lines if line["step"] > 15]
    assert len(last) == 5
    assert (seen.value, seen.tasks) == (pytest.approx(np.mean(last)), {})


@pytest.mark.parametrize(("last", "fall"), [(0.2, 0.6), (0.8, 0.0)])
def test_a_fall_is_the_best_stretch_less_the_end(tmp_path: Path, last: float, fall: float) -> None:
    rewards = [*np.linspace(0.2, 0.8, 8), *[0.8] * 4, *np.linspace(0.8, last, 4), *[last] * 4]
    with RunDirectory.create(tmp_path / "r", info_of("r", ("learning.steps=20",))) as directory:
        for step, reward in enumerate(rewards, start=1):
            directory.step({"step": step, "time": 0.0, "reward/mean": float(reward)})
        directory.event("finished", step=20)
    seen = measure.measure(Run(tmp_path / "r"), "reward/mean/fall", "control", 0, tmp_path)
    ends = np.mean(rewards[-5:])
    assert seen.value == pytest.approx(max(np.mean(rewards[i : i + 5]) for i in range(16)) - ends)
    assert seen.value == pytest.approx(fall, abs=0.13)
    assert measure.bounds("reward/correct/share/fall") == (0.0, 1.0)
    assert measure.is_share("reward/correct/share/fall")
    assert not measure.is_known("eval/accuracy/fall"), "evaluations are too few for a best stretch"
    assert not measure.is_known("loss/total/fall"), "of a loss nobody says that more is better"
    assert (
        measure.effect_text("reward/mean/fall", -0.2)
        == "−0.2 in the fall of training reward from its best"
    )


@pytest.mark.parametrize(
    ("metric", "direction", "said"),
    [
        ("eval/accuracy", "up", "held-out accuracy ends higher"),
        ("eval/pass@8", "down", "held-out pass@8 ends lower"),
        ("eval/part/form", "either", "the held-out reward's part form ends elsewhere"),
        ("eval/accuracy/gain", "up", "the gain in held-out accuracy is larger"),
        (
            "eval/accuracy/first-step@0.8",
            "down",
            "the number of steps to held-out accuracy 0.8 is smaller",
        ),
        ("reward/mean/fall", "down", "the fall of training reward from its best is smaller"),
        ("kl/reference/mean", "down", "KL to the start ends lower"),
        (
            "gradient/norm/after",
            "up",
            "gradient/norm/after ends higher",
        ),  # a metric without a title
        ("reward/part/form/mean", "up", "reward/part/form/mean ends higher"),
    ],
)
def test_what_a_claim_says_is_generated_from_its_metric(
    metric: str, direction: str, said: str
) -> None:
    assert outcome_of(metric, direction) == said


def write_attempts(path: Path) -> Path:
    """Two tasks: greedy right and wrong, then four attempts each, of which 1 and 0 are right; one
    has no reward.
    """
    line = line_of(evaluation_of(1, 1, 3)) | {
        "pass_at": {"1": 0.125, "4": 0.5},
        "parts": {"form": 0.25},
    }
    parts = (Part("answer", 1.0, 0.0, 1.0, 1.0), Part("form", 0.25, 0.0, 1.0, 0.5))
    greedy = [rollout_of(1, f"g{n}", 0, n == 0, f"t{n}") for n in range(2)]
    greedy[0] = replace(greedy[0], reward=Reward(1.125, 0.0, 1.5, True, parts))
    sampled = [
        rollout_of(1, f"g{n}", i, n == 0 and i == 3, f"t{n}") for n in range(2) for i in range(4)
    ]
    failed = replace(rollout_of(1, "g2", 0, False, "t2"), reward=None)
    with RunDirectory.create(path, info_of("attempts", ("learning.steps=1",))) as directory:
        directory.evaluation(line, rollouts_table("attempts", [*greedy, failed, *sampled]))
        directory.event("finished", step=1)
    return path


@pytest.mark.parametrize(
    ("metric", "tasks"),
    [
        (
            "eval/accuracy",
            {"t0": 1.0, "t1": 0.0, "t2": 0.0},
        ),  # sampled attempts count for pass@k alone
        ("eval/pass@4", {"t0": 1.0, "t1": 0.0}),
        ("eval/pass@1", {"t0": 0.25, "t1": 0.0}),
        ("eval/reward", {"t0": 1.125, "t1": 0.0}),  # what could not be scored has no reward
        ("eval/part/form", {"t0": 0.25}),
    ],
)
def test_a_metric_by_task(tmp_path: Path, metric: str, tasks: dict[str, float]) -> None:
    seen = measure.measure(Run(write_attempts(tmp_path / "attempts")), metric, "a", 0, tmp_path)
    assert dict(seen.tasks) == tasks


@pytest.mark.parametrize(
    ("value", "step", "reached"), [("0.3", 0, True), ("0.5", 8, True), ("0.95", 13, False)]
)
def test_the_first_step_that_reaches_a_value(
    tmp_path: Path, value: str, step: int, reached: bool
) -> None:
    with RunDirectory.create(tmp_path / "r", info_of("r", ("learning.steps=12",))) as directory:
        for at, right in {0: 12, 4: 19, 8: 24, 12: 22}.items():
            rows = [rollout_of(at, f"e{i}", 0, i < right, f"task-{i}") for i in range(40)]
            directory.evaluation(line_of(evaluation_of(at, right, 40)), rollouts_table("r", rows))
        directory.event("finished", step=12)
    metric = f"eval/accuracy/first-step@{value}"
    seen = measure.measure(Run(tmp_path / "r"), metric, "a", 0, tmp_path)
    assert (seen.value, seen.reached, seen.before, seen.tasks) == (step, reached, None, {})
    assert (
        measure.in_line(Run(tmp_path / "r").eval_lines[1], metric) == 19 / 40
    )  # the curve behind it


@pytest.mark.parametrize(
    ("metric", "says"),
    [
        ("eval/part/style", "Of parts and attempts it has exact;"),
        ("eval/pass@8", "eval.attempts samples several answers"),
        ("clip/low/share", "recorded no clip/low/share"),
        ("accuracy", "accuracy is no metric. Did you mean eval/accuracy?"),
    ],
)
def test_what_a_run_lacks_is_said(make_run: Callable[..., Path], metric: str, says: str) -> None:
    run = Run(make_run("a"))
    with pytest.raises(LabError, match=re.escape(says)):
        measure.measure(run, metric, "a", 0, run.path)


@pytest.mark.parametrize("end", [None, "stopped", "failed"])
def test_only_a_finished_run_is_compared(make_run: Callable[..., Path], end: str | None) -> None:
    run = Run(make_run("a", end=end))
    with pytest.raises(LabError, match="only a finished run is compared"):
        measure.measure(run, "eval/accuracy", "a", 0, run.path)


def test_which_metrics_can_be_compared() -> None:
    known = [
        "eval/accuracy",
        "eval/pass@16",
        "eval/part/exact",
        "reward/mean",
        "eval/pass@4/first-step@0.5",
    ]
    assert all(measure.is_known(metric) for metric in known)
    unknown = [
        "accuracy",
        "eval/pass@0",
        "eval/pass@",
        "eval/part/",
        "step",
        "reward",
        "reward/mean/first-step@1",
    ]
    unknown += ["eval/accuracy/first-step@x", "eval/accuracy/first-step@nan", "eval/x/first-step@1"]
    assert not any(measure.is_known(metric) for metric in unknown)
    bounds = [
        measure.bounds(metric)
        for metric in ("eval/accuracy", "eval/pass@4", "advantage/dead/share")
    ]
    assert bounds == [(0.0, 1.0)] * 3
    assert measure.bounds("eval/reward") is None
