"""Several tasksets in one pool: shares of the groups, a cursor for each, and what is refused."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from uptrend.config import Config, load_config
from uptrend.records import TasksetError
from uptrend.tasks.pool import Cursor, MixedPool, Pool, make_heldout, make_pool, resolve_options

LABELS = ("sums", "words")
GROUPS = 5


def configure(weights: tuple[float, ...] = (1, 2), groups: int = GROUPS, **first: Any) -> Config:
    """Return a config of arithmetic and counting, and of comparison if there are three weights."""
    tables: list[dict[str, Any]] = [
        {"name": "arithmetic", "label": "sums", "train": 40, "high": 9, **first},
        {"name": "counting", "label": "words", "train": 40},
        {"name": "comparison", "label": "pairs", "train": 40},
    ]
    tasks = [{**table, "weight": weight} for table, weight in zip(tables, weights, strict=False)]
    table = {"tasks": tasks, "eval": {"tasks": 10}, "sampling": {"groups": groups}}
    return load_config({**table, "learning": {"steps": 50}})


def fill(config: Config) -> Pool:
    return make_pool(config, make_heldout(config))


def draw_steps(
    pool: Pool, steps: range, cursor: Cursor, groups: int = GROUPS
) -> tuple[list[list[tuple[str, str]]], Cursor]:
    """Return the source and the task of each group, by step."""
    drawn = []
    for step in steps:
        slots, cursor = pool.assign(groups, cursor)
        draws, cursor = pool.draw_for(step, slots, cursor, [set() for _ in pool.sources])
        drawn.append([(draw.source, draw.task.id) for draw in draws])
    return drawn, cursor


@pytest.mark.parametrize("weights", [(1, 2), (1, 1), (0.3, 0.7), (5, 3, 0.5), (1, 1, 1)])
@pytest.mark.parametrize("groups", [1, 5, 8])
def test_shares_hold_over_the_run_to_within_a_group(
    weights: tuple[float, ...], groups: int
) -> None:
    pool = fill(configure(weights, groups))
    counts = [0] * len(weights)
    cursor = Cursor()
    for step in range(1, 61):
        slots, cursor = pool.assign(groups, cursor)
        assert len(slots) == groups
        counts = [count + slots.count(i) for i, count in enumerate(counts)]
        for count, weight in zip(counts, weights, strict=True):
            assert abs(count - step * groups * weight / sum(weights)) <= 1


def test_groups_of_a_step_take_turns() -> None:
    slots, _ = fill(configure((1, 1))).assign(6, Cursor())
    assert slots == [0, 1, 0, 1, 0, 1]


def test_each_source_draws_as_it_would_alone() -> None:
    config = configure((1, 1))
    pool = fill(config)
    drawn, _ = draw_steps(pool, range(1, 13), Cursor(), 4)
    for source in pool.sources:
        mixed = [task for step in drawn for label, task in step if label == source.label]
        alone = []
        cursor = Cursor()
        for step in range(1, 13):
            tasks, cursor = source.draw(step, 2, cursor)
            alone += [task.id for task, _ in tasks]
        assert mixed == alone


def test_a_saved_cursor_goes_on_where_it_was() -> None:
    stages = [{"start": 1, "high": 5}, {"start": 4}]
    pool = fill(configure(stages=stages, draw="pass-rate"))
    whole, _ = draw_steps(pool, range(1, 11), Cursor())
    _, cursor = draw_steps(pool, range(1, 6), Cursor())
    saved = Cursor.from_table(json.loads(json.dumps(cursor.to_table())))
    assert saved == cursor
    rest, _ = draw_steps(pool, range(6, 11), saved)
    assert rest == whole[5:]
    # The first source's curriculum moved on, and its share did not begin again.
    assert saved.sources[0].stage == 1
    assert [each.groups for each in saved.sources] == [8, 17]


def test_a_cursor_of_one_taskset_is_saved_as_ever() -> None:
    assert set(Cursor(1, 2, 3).to_table()) == {
        "stage", "epoch", "position", "pass_rates", "passed_over",
    }  # fmt: skip


def test_no_step_repeats_a_task_of_a_source() -> None:
    pool = fill(configure())
    drawn, _ = draw_steps(pool, range(1, 30), Cursor())
    assert all(max(Counter(step).values()) == 1 for step in drawn)


def test_the_entry_in_run_json_names_each_source() -> None:
    config = resolve_options(configure())
    heldout = make_heldout(config)
    entry = make_pool(config, heldout).describe()
    assert entry["name"] == "arithmetic + counting"
    assert [source["label"] for source in entry["sources"]] == list(LABELS)
    assert [source["share"] for source in entry["sources"]] == pytest.approx([1 / 3, 2 / 3])
    assert entry["count"] == sum(source["count"] for source in entry["sources"])
    evaluation = heldout.describe()
    assert set(evaluation["sets"]) == set(LABELS)
    assert evaluation["count"] == 20


def test_held_out_tasks_are_those_of_each_and_all_of_them_together() -> None:
    heldout = make_heldout(configure())
    assert set(heldout.by_label) == set(LABELS)
    joined = [task for label in LABELS for task in heldout.sets[label].tasks]
    assert list(heldout.tasks) == joined
    assert [heldout.sets[label].label for label in LABELS] == list(LABELS)


def test_an_eval_of_its_own_is_the_only_set() -> None:
    config = load_config(
        {
            "tasks": [{"name": "arithmetic"}, {"name": "counting", "train": 40}],
            "eval": {"name": "comparison", "tasks": 10},
        }
    )
    heldout = make_heldout(config)
    assert list(heldout.by_label) == [""]
    assert heldout.taskset.name == "comparison"


def test_overlapping_held_out_tasks_are_refused() -> None:
    tasks = [{"name": "arithmetic", "label": "a"}, {"name": "arithmetic", "label": "b", "high": 30}]
    config = load_config({"tasks": tasks, "eval": {"tasks": 300}})
    with pytest.raises(TasksetError, match=r"eval\.sets\.b has held-out tasks that eval\.sets\.a"):
        make_heldout(config)


def test_what_one_source_holds_out_no_other_may_train_on(tmp_path: Path) -> None:
    rows = [{"prompt": f"{n} + {n} = ", "answer": str(2 * n)} for n in range(60)]
    for name, part in {"some": rows[:40], "all": rows, "other": rows[50:]}.items():
        text = "\n".join(map(json.dumps, part))
        (tmp_path / f"{name}.jsonl").write_text(text)
    some, everything, other = (str(tmp_path / f"{name}.jsonl") for name in ("some", "all", "other"))
    config = load_config(
        {
            "tasks": [
                {"name": "data", "label": "some", "file": some, "reward": "exact"},
                {"name": "data", "label": "all", "file": everything, "reward": "exact"},
            ],
            "eval": {"sets": [{"label": "all", "file": other}]},
        }
    )
    heldout = make_heldout(config)
    with pytest.raises(
        TasksetError, match=r"tasks\.all trains on \d+ tasks? that eval\.sets\.some"
    ):
        make_pool(config, heldout)


def test_a_source_with_fewer_tasks_than_its_share_is_refused() -> None:
    config = configure((1, 9), groups=30, train=2)
    with pytest.raises(TasksetError, match=r"tasks\.sums has 2 tasks, and up to 3 of a step's 30"):
        fill(config)
    assert isinstance(fill(configure((1, 19), groups=30, train=2)), MixedPool)
