"""A run with two tasksets: recorded apart, resumed exactly, groups never mixed."""

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

import uptrend
from uptrend.algo import advantages
from uptrend.config import load_config
from uptrend.records import Run, RunView, UptrendError, rollouts_of, view_of
from uptrend.records.summary import heldout, heldout_sets, summarize
from uptrend.records.table import RolloutTable
from uptrend.records.view import source_views
from uptrend.runner.prepare import prepare
from uptrend.runner.rollouts import repeat_rollouts
from uptrend.runner.runs import start

STEPS = 6
GROUPS = 3
SIZE = 4
# A function that pays 10 to 20 where arithmetic pays −1 to 1: groups that mix would show it.
REWARD = """
def score(prompt, completion, answer):
    return 20.0 if completion.strip().startswith(answer) else 10.0 + len(completion) % 3
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sources")
    (folder / "rewards.py").write_text(REWARD)
    rows = [{"prompt": f"Calculate: {n} + 1 = ", "answer": str(n + 1)} for n in range(40, 90)]
    (folder / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    return folder


def recipe(folder: Path, steps: int = STEPS) -> dict[str, Any]:
    """Return a recipe of arithmetic, and of rows with twice its weight and other bounds."""
    own = {
        "name": "data",
        "label": "own",
        "weight": 2,
        "file": str(folder / "rows.jsonl"),
        "reward": f"{folder / 'rewards.py'}:score",
        "bounds": [10, 20],
        "chat": False,
    }
    return {
        "model": {"name": "tiny", "chat": False},
        "tasks": [{"name": "arithmetic", "label": "sums", "train": 30, "high": 9}, own],
        "sampling": {"groups": GROUPS, "size": SIZE, "max_tokens": 6, "resample": 1},
        "learning": {"steps": steps, "lr": 1e-4},
        "eval": {"tasks": 5, "every": 3},
        "checkpoints": {"every": 3, "keep": 2},
        "compute": {"threads": 1},
        "doctor": {"live": False},
    }


def train(folder: Path, name: str, steps: int = STEPS) -> Run:
    table = recipe(folder, steps)
    return uptrend.train(table, name=name, preflight=False, progress=False, runs=folder)


@pytest.fixture(scope="module")
def run(folder: Path) -> Run:
    return train(folder, "whole")


def test_every_rollout_names_its_source_and_shares_hold(run: Run) -> None:
    rollouts = run.rollouts()
    kept = rollouts.filter(rollouts["kept"])
    groups_by_source = Counter(
        source for source, _ in set(zip(*(kept[n].to_pylist() for n in ("source", "group")), strict=True))
    )  # fmt: skip
    assert groups_by_source == {"sums": STEPS, "own": 2 * STEPS}


def test_a_group_has_one_task_of_one_source(run: Run) -> None:
    columns = [run.rollouts()[name].to_pylist() for name in ("step", "group", "source", "task")]
    by_group: dict[tuple[int, str], set[tuple[str, str]]] = {}
    for step, group, source, task in zip(*columns, strict=True):
        by_group.setdefault((step, group), set()).add((source, task))
    assert all(len(members) == 1 for members in by_group.values())


def advantages_by_group(run: Run) -> dict[tuple[int, str], tuple[Any, Any]]:
    """Return the rewards and the recorded advantages of each group."""
    groups: dict[tuple[int, str], tuple[list[float], list[float]]] = {}
    for step in run.rollout_steps:
        table = RolloutTable(step, run.rollouts(step))
        names = table.values("group")
        for n in np.flatnonzero(table.kept_n):
            rewards, recorded = groups.setdefault((step, names[n]), ([], []))
            rewards.append(float(table.reward_n[n]))
            recorded.append(float(table.advantage_n[n]))
    return {key: (np.array(a), np.array(b)) for key, (a, b) in groups.items()}


def mixes_groups(run: Run) -> bool:
    """Return True if some group's advantages are not those of its own rewards."""
    for rewards, recorded in advantages_by_group(run).values():
        own = (rewards - rewards.mean()) / (rewards.std(ddof=1) + 1e-4)
        if not np.allclose(recorded, own, atol=2e-3):
            return True
    return False


def test_advantages_are_those_of_the_group_whatever_the_other_source_pays(run: Run) -> None:
    spread = [np.ptp(rewards) for rewards, _ in advantages_by_group(run).values()]
    assert max(spread) > 0
    assert not mixes_groups(run)


def test_a_part_that_mixes_groups_is_caught(folder: Path) -> None:
    def by_step(rewards_n: Any, groups_n: Any, **how: Any) -> Any:
        return advantages(rewards_n, groups_n * 0, **how)

    context = prepare(load_config(recipe(folder, 2)))
    wrong = replace(context.components, advantages=by_step)
    assert mixes_groups(start(replace(context, components=wrong), folder / "mixed"))


def test_rewards_are_recorded_apart(run: Run) -> None:
    for step, line in zip(run.rollout_steps, run.metric_lines, strict=True):
        table = RolloutTable(step, run.rollouts(step))
        sources = np.array(table.values("source"))
        for label, low, high in (("sums", -1, 1), ("own", 10, 20)):
            rewards = table.reward_n[(sources == label) & table.kept_n]
            assert line[f"source/{label}/reward/mean"] == pytest.approx(rewards.mean())
            assert low <= rewards.min() <= rewards.max() <= high
            assert line[f"source/{label}/sampling/rollouts/count"] == len(rewards)
        assert line["reward/mean"] == pytest.approx(table.reward_n[table.kept_n].mean())
        dead = [line[f"source/{label}/advantage/dead/share"] for label in ("sums", "own")]
        assert line["advantage/dead/share"] == pytest.approx((dead[0] + 2 * dead[1]) / 3)


def test_held_out_accuracy_is_apart_and_over_all(run: Run) -> None:
    whole = heldout(run)
    sets = heldout_sets(run)
    assert set(sets) == {"sums", "own"}
    assert [evaluation.step for evaluation in whole] == [0, 3, 6]
    for place, evaluation in enumerate(whole):
        parts = [evaluations[place] for evaluations in sets.values()]
        assert evaluation.tasks == sum(part.tasks for part in parts) == 10
        assert evaluation.correct == sum(part.correct for part in parts)
    rows = run.eval_rollouts(3)
    assert set(rows["source"].to_pylist()) == {"sums", "own"}
    assert run.eval_rollouts(3, "own").num_rows == 5
    assert summarize(run)["taskset"] == "arithmetic + data"


def test_a_source_can_be_read_alone(run: Run) -> None:
    view: RunView = source_views(view_of(run))["own"]
    assert view.curve("reward/mean")[1].min() >= 10
    assert set(view.read_rollouts(1)["source"].to_pylist()) == {"own"}
    assert view.read_heldout(3).num_rows == 5
    assert view.value("tasks.name") == "data"
    assert [entry["tasks"] for entry in view.evals] == [5, 5, 5]
    assert "weights/norm" in view.metrics  # what all sources share


def test_a_resumed_run_is_the_whole_run(folder: Path, run: Run) -> None:
    part = train(folder, "part", 3)
    resumed = uptrend.resume(part.path, overrides=[f"learning.steps={STEPS}"], progress=False)
    for step in range(1, STEPS + 1):
        columns = ("group", "source", "task", "ids", "reward", "advantages")
        ours, theirs = (each.rollouts(step).select(columns) for each in (resumed, run))
        assert ours.to_pylist() == theirs.to_pylist()
    weights = [
        (each.checkpoints[-1] / "model" / "model.safetensors").read_bytes()
        for each in (resumed, run)
    ]
    assert weights[0] == weights[1]


def test_other_weights_would_be_another_run(run: Run) -> None:
    with pytest.raises(UptrendError, match=r"tasks\.own\.weight would make"):
        uptrend.resume(run.path, overrides=["tasks.own.weight=3", "learning.steps=9"])


def test_rollouts_are_played_again_by_their_own_taskset(run: Run) -> None:
    for recorded, of_heldout in ((run.rollouts(2), False), (run.eval_rollouts(3), True)):
        repeated = repeat_rollouts(run, rollouts_of(recorded), of_heldout)
        assert {each.recorded.source for each in repeated} == {"sums", "own"}
        assert not any(each.differences for each in repeated)


def test_a_run_of_one_taskset_has_neither_column_nor_metrics_of_sources(folder: Path) -> None:
    table = recipe(folder, 1) | {"tasks": {"name": "arithmetic", "train": 30, "high": 9}}
    one = uptrend.train(table, name="one", preflight=False, progress=False, runs=folder)
    assert not any(key.startswith("source/") for key in one.metric_lines[0])
    path = next((one.path / "rollouts").rglob("*.parquet"))
    assert "source" not in pq.read_schema(path).names
    assert "sources" not in one.info["tasks"]
