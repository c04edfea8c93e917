"""Several families in given shares."""

import asyncio
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from uptrend.config import build
from uptrend.records import ConfigError, TasksetError
from uptrend.tasks.mixed import Mixed, MixedOptions, apportion
from uptrend.tasks.taskset import play_script


def make(seed=0, **table):
    return Mixed(build(MixedOptions, table, "tasks"), seed)


def families(tasks):
    return Counter(task.family for task in tasks)


def test_shares_hold_in_what_is_drawn():
    taskset = make()
    assert families(taskset.train(200)) == {"arithmetic": 100, "counting": 50, "comparison": 50}
    assert families(taskset.heldout(100)) == {"arithmetic": 50, "counting": 25, "comparison": 25}
    assert taskset.notes == []


def test_shares_are_normalized_and_may_name_any_family():
    tasks = make(shares={"binary": 1, "arithmetic": 9, "counting": 0}).train(100)
    assert families(tasks) == {"binary": 10, "arithmetic": 90}


def test_apportion_gives_the_rest_to_the_largest_remainders():
    assert apportion(150, {"a": 0.5, "b": 0.25, "c": 0.25}) == {"a": 75, "b": 38, "c": 37}
    assert apportion(10, {"a": 1, "b": 1, "c": 1}) == {"a": 4, "b": 3, "c": 3}
    assert apportion(7, {"a": 0.61, "b": 0.39}) == {"a": 4, "b": 3}
    assert apportion(7, {"a": 0.68, "b": 0.32}) == {"a": 5, "b": 2}


@given(st.integers(0, 500), st.lists(st.floats(0.01, 10), min_size=1, max_size=4))
def test_apportion_adds_up_and_stays_near(count, shares):
    parts = apportion(count, dict(zip("abcd", shares, strict=False)))
    assert sum(parts.values()) == count
    for share, part in zip(shares, parts.values(), strict=True):
        assert abs(part - count * share / sum(shares)) < 1 + 1e-9


def test_families_are_shuffled_together():
    first_half = families(make().train(200)[:100])
    assert 35 <= first_half["arithmetic"] <= 65
    assert make(seed=0).train(50) == make(seed=0).train(50)
    assert make(seed=0).train(50) != make(seed=1).train(50)


def test_a_table_for_each_family():
    tasks = make(arithmetic={"high": 3}, comparison={"low": 18}).train(60)
    assert all(t.data["a"] <= 3 for t in tasks if t.family == "arithmetic")
    assert all(t.data["a"] >= 18 for t in tasks if t.family == "comparison")


def test_a_short_family_is_noted():
    taskset = make(comparison={"high": 5})
    assert families(taskset.train(200)) == {"arithmetic": 100, "counting": 50, "comparison": 30}
    assert taskset.notes == ["comparison has 36 tasks, fewer than asked for: 30 to train on, 6 held out (about 3 to 1)"]


def test_reward_and_chat_hold_for_all():
    taskset = make(reward="rich", chat=True, shares={"arithmetic": 1, "binary": 1})
    assert taskset.chat is True
    for task in taskset.train(20):
        reward = asyncio.run(play_script(taskset, task, taskset.gold(task)))[1]
        assert (reward.total, reward.parts[0].name) == (1.0, "rich")
        near = asyncio.run(play_script(taskset, task, next(iter(taskset.corrupted(task)))))[1]
        assert near.total == 0.7


@pytest.mark.parametrize(
    ("shares", "said"),
    [
        ({"arithmetics": 1}, "shares.arithmetics names no family. Did you mean arithmetic?"),
        ({"arithmetic": -0.5, "binary": 1}, "shares.arithmetic = -0.5 should be 0 or more"),
        ({"arithmetic": 0}, "shares leave nothing"),
        ({}, "shares leave nothing"),
    ],
)
def test_wrong_shares_are_refused(shares, said):
    with pytest.raises(TasksetError, match=said.replace("?", r"\?")):
        make(shares=shares)


@pytest.mark.parametrize("key", ["reward", "chat", "hihg"])
def test_a_family_table_takes_only_its_problems(key):
    with pytest.raises(ConfigError, match=rf"tasks\.arithmetic\.{key} is not a known key"):
        make(arithmetic={key: 1})
