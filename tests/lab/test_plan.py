"""The runs that an experiment needs, and by what they are known."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from quick_runs import QuickLauncher
from synthetic import write_run
from uptrend.lab import plan
from uptrend.lab.plan import Resolved
from uptrend.records import Arm, Hypothesis, LabError, Method, Source

H = Hypothesis(
    "h01", "t", "base.toml", (Arm("a", {}, True), Arm("b", {"learning.lr": 2e-3})), seeds=(3, 7)
)


@pytest.fixture
def arms(tmp_path: Path) -> dict[str, Resolved]:
    recipe = tmp_path / "base.toml"
    recipe.write_text('name = "quick"\n')
    return {
        arm.name: QuickLauncher().resolve(recipe, {**arm.overrides, "seed": 3}) for arm in H.arms
    }


def hash_of(
    config: dict[str, Any], tasks: str = "t", held_out: str = "e", made_by: str = "1"
) -> str:
    return plan.run_hash(config, tasks, held_out, made_by, Method.TRAIN, None)


def test_whole_seeds_come_first_and_each_run_has_its_seed(
    arms: dict[str, Resolved], tmp_path: Path
) -> None:
    planned = plan.planned_runs(H, arms, tmp_path)
    assert [(e.seed, e.arm, e.config["seed"], e.is_probed) for e in planned] == [
        (3, "a", 3, True), (3, "b", 3, True), (7, "a", 7, False), (7, "b", 7, False),
    ]  # fmt: skip
    assert len({e.hash for e in planned}) == 4
    assert planned[1].folder == tmp_path / "runs" / f"quick-s3-{planned[1].hash[:10]}"


def test_the_hash_is_of_what_could_change_the_result(
    arms: dict[str, Resolved], tmp_path: Path
) -> None:
    config = dict(arms["a"].config)
    first = hash_of(config)
    same = [
        {"name": "other"},
        {"checkpoints": {"every": 5, "keep": 2}},
        {"doctor": {"live": False}},
    ]
    assert {hash_of(config | each) for each in same} == {
        first,
        hash_of(dict(reversed(config.items()))),
    }
    others = [
        hash_of(config, tasks="u"),
        hash_of(config, held_out="f"),
        hash_of(config, made_by="2"),
    ]
    others += [
        hash_of({**config, "compute": {**config["compute"], "threads": 2}}),
        hash_of({**config, "seed": 9}),
    ]
    assert len({first, *others}) == 6
    weights = (
        tmp_path / "model" / "model.safetensors"
    )  # a folder that was made anew is another model
    weights.parent.mkdir()
    config["model"] = {**config["model"], "name": str(weights.parent)}
    hashes = []
    for last in (b"\0", b"\0", b"\1"):
        weights.write_bytes(bytes((3 << 20) - 1) + last)
        hashes.append(hash_of(config))
    assert hashes[0] == hashes[1] != hashes[2]


def test_runs_that_can_not_be_compared_are_refused(
    arms: dict[str, Resolved], tmp_path: Path
) -> None:
    with pytest.raises(
        LabError, match=r"different held-out tasks \(a bb, b cc\).*Write one \[eval\]"
    ):
        plan.planned_runs(H, {**arms, "b": replace(arms["b"], held_out="cc")}, tmp_path)
    gains = replace(H, metric="eval/accuracy/gain")  # of other tasks, only what was gained compares
    assert (
        len(plan.planned_runs(gains, {**arms, "b": replace(arms["b"], held_out="cc")}, tmp_path))
        == 4
    )
    (planned, *_) = plan.planned_runs(H, arms, tmp_path)
    assert not plan.is_finished(planned)
    write_run(planned.folder, steps=2)
    with pytest.raises(LabError, match="and another config"):
        plan.is_finished(planned)


def test_each_seed_replays_a_run_of_its_own(arms: dict[str, Resolved], tmp_path: Path) -> None:
    replayed = replace(H, method=Method.REPLAY, source=Source("runs/base-s{seed}-*", 0))
    with pytest.raises(LabError, match=r"runs/base-s3-\* should be one run .* there are 0"):
        plan.planned_runs(replayed, arms, tmp_path)
    runs = [
        write_run(tmp_path / "runs" / f"base-s{seed}-abc", steps=2, seed=seed) for seed in H.seeds
    ]
    first = plan.planned_runs(replayed, arms, tmp_path)
    assert [Path(e.source.run).name for e in first if e.source] == ["base-s3-abc"] * 2 + [
        "base-s7-abc"
    ] * 2
    with (runs[0] / "metrics.jsonl").open("a") as file:
        file.write('{"step": 3}\n')  # what was recorded is part of the hash
    then = plan.planned_runs(replayed, arms, tmp_path)
    assert [a.hash == b.hash for a, b in zip(first, then, strict=True)] == [
        False,
        False,
        True,
        True,
    ]
    with pytest.raises(LabError, match=r"one outcome over again.*\{seed\}"):
        plan.planned_runs(replace(replayed, source=Source("runs/base")), arms, tmp_path)
