"""Drawing tasks by their estimated pass rate: which come, which are passed over, and that a resumed
run draws the same.
"""

import json
from dataclasses import replace
from pathlib import Path

import pytest

import uptrend
from uptrend.config import load_config
from uptrend.records import ConfigError, Ending, Reward, Rollout, Run
from uptrend.tasks.pass_rates import PassBounds, observe, pass_over
from uptrend.tasks.pool import Cursor, Pool, make_heldout, make_pool, resolve_options


def make(**tasks: object) -> Pool:
    table = {
        "tasks": {"name": "arithmetic", "train": 12, "draw": "pass-rate", **tasks},
        "sampling": {"groups": 4},
    }
    config = resolve_options(load_config(table))
    return make_pool(config, make_heldout(config))


def rollout(task: str, correct: bool | None, group: str = "g") -> Rollout:
    reward = None if correct is None else Reward(float(correct), 0.0, 1.0, correct)
    return Rollout(
        step=1, group=group, index=0, task=task, family="", answer="", seed=0, messages=(), sequences=(),
        reward=reward, ended=Ending.STOP_TOKEN, error=None, seconds=0.0,
    )  # fmt: skip


def test_an_estimate_is_a_running_mean_of_groups() -> None:
    rates = observe({}, [rollout("a", True), rollout("a", False), rollout("b", None)])
    assert rates == {"a": 0.5}
    rates = observe(rates, [rollout("a", True, "h"), rollout("a", True, "h")])
    assert rates == {"a": 0.75}
    assert observe(rates, [rollout("a", None)]) == rates


def test_what_was_passed_over_comes_back() -> None:
    bounds = PassBounds(0.02, 0.9)
    rates = {"always": 1.0, "never": 0.0}
    draws: dict[str, int] = {}
    for epoch in range(1, 9):
        rates = pass_over(rates, rates)
        for task, rate in rates.items():
            if bounds.hold(rate):
                draws.setdefault(task, epoch)
    assert draws == {"always": 5, "never": 1}


def test_tasks_outside_of_the_bounds_are_passed_over() -> None:
    pool = make()
    ids = [task.id for task in pool.stages[0].tasks]
    rates = dict.fromkeys(ids[:6], 1.0) | dict.fromkeys(ids[6:8], 0.5)
    cursor = Cursor(pass_rates=rates)
    drawn, after = pool.draw(1, 4, cursor)
    chosen = {task.id for task, _ in drawn}
    assert len(chosen) == 4
    assert not chosen & set(ids[:6])
    passed = {task for task in ids[:6] if after.pass_rates[task] < 1.0}
    assert len(passed) == after.passed_over
    # The rest of a step never repeats a task.
    more, _ = pool.draw(1, 2, after, chosen)
    assert not {task.id for task, _ in more} & chosen


def test_if_too_few_are_within_the_bounds_the_nearest_fill_up() -> None:
    pool = make()
    ids = [task.id for task in pool.stages[0].tasks]
    rates = dict.fromkeys(ids, 1.0) | {ids[3]: 0.5, ids[7]: 0.92}
    drawn, _ = pool.draw(1, 4, Cursor(pass_rates=rates))
    chosen = [task.id for task, _ in drawn]
    assert len(set(chosen)) == 4
    assert {ids[3], ids[7]} <= set(chosen)


def test_a_cursor_comes_back_from_json() -> None:
    pool = make()
    _, cursor = pool.draw(1, 4, Cursor(pass_rates={"a": 1 / 3}))
    assert Cursor.from_table(json.loads(json.dumps(cursor.to_table()))) == cursor


def test_bounds_the_wrong_way_round_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"tasks\.pass_low = 0\.9 should be below"):
        make(pass_low=0.9, pass_high=0.1)


def test_draws_in_order_are_as_before() -> None:
    pool = make(draw="order")
    ids = [task.id for task in pool.stages[0].tasks]
    cursor = Cursor()
    seen: list[str] = []
    for step in range(1, 4):
        drawn, cursor = pool.draw(step, 4, cursor)
        cursor = pool.observe(cursor, [rollout(task.id, True) for task, _ in drawn])
        seen += [task.id for task, _ in drawn]
    assert sorted(seen) == sorted(ids)
    assert cursor == Cursor(position=12)


@pytest.mark.slow
def test_a_resumed_run_draws_what_the_whole_run_draws(tmp_path: Path) -> None:
    recipe = {
        "model": {"name": "tiny"},
        "tasks": {"name": "arithmetic", "train": 24, "draw": "pass-rate", "pass_high": 0.6},
        "sampling": {"groups": 4, "size": 4, "resample": 1},
        "learning": {"steps": 8, "lr": 1e-4},
        "eval": {"tasks": 4},
        "checkpoints": {"every": 4, "keep": 2},
        "compute": {"threads": 1},
        "doctor": {"live": False},
    }

    def train(name: str, steps: int) -> Run:
        table = recipe | {"learning": {"steps": steps, "lr": 1e-4}}
        return uptrend.train(table, name=name, preflight=False, progress=False, runs=tmp_path)

    whole = train("whole", 8)
    part = train("part", 4)
    resumed = uptrend.resume(part.path, overrides=["learning.steps=8"], progress=False)
    for step in range(1, 9):
        tasks = [run.rollouts(step)["task"].to_pylist() for run in (whole, resumed)]
        assert tasks[0] == tasks[1]
    assert "sampling/pass_rate/mean" in whole.metrics.column_names
    assert sum(whole.metrics["sampling/passed_over/count"].to_pylist()) > 0
    assert replace(Cursor(), pass_rates={}) == Cursor()
