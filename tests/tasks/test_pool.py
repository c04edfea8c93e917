"""From a config to tasks: options, the held-out set, stages, and drawing."""

import dataclasses
import json
import sys
import types

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from uptrend.config import load_config, to_table
from uptrend.records import ConfigError, TasksetError, tasks_hash
from uptrend.tasks.pool import Cursor, make_heldout, make_pool, resolve_options
from uptrend.tasksets.arithmetic import Arithmetic

CURRICULUM = [
    {"start": 1, "operations": ["+"], "high": 10},
    {"start": 4, "high": 10},
    {"start": 6, "train": 40},
]


def configure(tasks=None, evaluation=None, groups=4, seed=0):
    table = {
        "seed": seed,
        "tasks": tasks or {},
        "eval": evaluation or {},
        "sampling": {"groups": groups},
    }
    return load_config(table)


@pytest.fixture
def file(tmp_path, monkeypatch):
    """Write rows that both data and musique read to t.jsonl in the current folder."""
    paragraph = {"idx": 0, "title": "t", "paragraph_text": "text", "is_supporting": True}
    rows = [{"question": f"Who is {n}?", "prompt": f"{n} = ", "answer": n, "paragraphs": [paragraph]}
            for n in range(40)]  # fmt: skip
    monkeypatch.chdir(tmp_path)
    (tmp_path / "t.jsonl").write_text("\n".join(map(json.dumps, rows)))
    return tmp_path / "t.jsonl"


def fill(config):
    return make_pool(config, make_heldout(config))


def draw_ids(filled, steps, count, cursor=None, first=1):
    cursor, drawn = cursor or Cursor(), []
    for step in range(first, first + steps):
        tasks, cursor = filled.draw(step, count, cursor)
        drawn.append([task.id for task, _ in tasks])
    return drawn, cursor


class Leaky(Arithmetic):
    """Arithmetic that trains on a held-out task."""

    def train(self, count, exclude=()):
        return [*super().train(count - 1, exclude), *self.heldout(1)]


@pytest.mark.parametrize(
    ("tasks", "evaluation", "said"),
    [
        ({"hihg": 3}, {}, "tasks.hihg is not a known key. Did you mean high?"),
        ({"trian": 3}, {}, "tasks.trian is not a known key. Did you mean train?"),
        ({}, {"operatoins": ["+"]}, "eval.operatoins is not a known key. Did you mean operations?"),
        ({"high": "ten"}, {}, "tasks.high = 'ten' should be a whole number"),
        ({"name": "data"}, {"name": "arithmetic"}, "tasks.file: it is missing"),
        (
            {"stages": [{"start": 1, "hig": 3}]},
            {},
            "tasks.stages[0].hig is not a known key. Did you mean high?",
        ),
        ({"stages": [{"start": 1, "stages": []}]}, {}, "tasks.stages[0].stages"),
        (
            {},
            {"name": "musique", "atlas": {"paragraphs": 2}},
            "eval.atlas.paragraphs = 2 should be from 6",
        ),
        (
            {"stages": [{"start": 1, "name": "musique", "atlas": {"hops": [7]}}]},
            {},
            "tasks.stages[0].atlas.hops = [7]",
        ),
        ({}, {"low": 0, "high": 0, "operations": ["+"]}, "eval: arithmetic has no held-out tasks"),
        ({"name": "binary"}, {}, "tasks has 12 tasks, fewer than sampling.groups = 16: lower"),
        (
            {"stages": [{"start": 1}, {"start": 2, "name": "binary"}]},
            {},
            "tasks.stages[1] has 12 tasks",
        ),
        ({"name": "leaky_tasks:Leaky"}, {}, "trains on 1 held-out tasks"),
    ],
)
def test_sections_that_can_not_work(tasks, evaluation, said, monkeypatch):
    module = types.ModuleType("leaky_tasks")
    module.Leaky = Leaky
    monkeypatch.setitem(sys.modules, "leaky_tasks", module)
    with pytest.raises((ConfigError, TasksetError)) as error:
        fill(configure(tasks, evaluation, groups=16))
    assert said in str(error.value)


def test_the_held_out_set_does_not_depend_on_what_is_trained_on():
    first, second = (
        make_heldout(configure({"high": 10, "seed": 3}, seed=9)),
        make_heldout(configure({"name": "mixed"}, {"name": "arithmetic"})),
    )
    assert (
        first.hash
        == second.hash
        == tasks_hash(first.tasks)
        != make_heldout(configure(evaluation={"seed": 1})).hash
    )
    described = {"name": "arithmetic", "version": "1", "seed": 0, "count": 200, "hash": first.hash}
    assert first.describe() == described


@pytest.mark.parametrize(
    ("name", "tasks", "sizes", "split"),
    [
        ("data", {"train": 30}, (40, 30), "all"),  # a file that only evaluates is used whole
        ("musique", {"train": 30}, (40, 30), "heldout"),
        *((name, {"name": name, "file": "t.jsonl", **stages}, (10, 30), split)
          for name, split in (("data", "quarter"), ("musique", "quarter"))
          for stages in ({}, {"stages": [{"start": 1, "name": "arithmetic"}, {"start": 2}]})),
    ],
)  # fmt: skip
def test_a_file_that_is_also_trained_on_is_split(file, name, tasks, sizes, split):
    config = configure(tasks, {"name": name, "file": str(file)})
    held_out = make_heldout(config)
    trained = make_pool(config, held_out).stages[-1].tasks
    assert (len(held_out.tasks), len(trained)) == sizes
    assert {task.id for task in trained}.isdisjoint(task.id for task in held_out.tasks)
    key = {"data": "hold_out", "musique": "split"}[name]
    assert resolve_options(config).eval.options[key] == split


def test_stages_lie_over_the_section():
    filled = fill(configure({"reward": "rich", "train": 60, "stages": CURRICULUM}))
    assert [(stage.start, len(stage.tasks)) for stage in filled.stages] == [
        (1, 60),
        (4, 60),
        (6, 40),
    ]
    operations = [{task.data["operation"] for task in stage.tasks} for stage in filled.stages]
    assert operations[:2] == [{"+"}, {"+", "-", "*"}]
    assert [max(task.data["a"] for task in stage.tasks) for stage in filled.stages] == [10, 10, 20]
    assert all(stage.options["reward"] == "rich" for stage in filled.stages)


def test_a_stage_changes_a_family_table_key_by_key_and_shares_as_a_whole():
    family = {"operations": ["+"], "high": 20}
    mix = {
        "name": "mixed",
        "train": 20,
        "arithmetic": family,
        "shares": {"arithmetic": 1, "binary": 1},
    }
    stages = [{"start": 1, "arithmetic": {"high": 10}}, {"start": 2, "shares": {"arithmetic": 1}}]
    first, second = fill(configure({**mix, "stages": stages})).stages
    assert first.options["arithmetic"] == {**family, "low": 0, "high": 10}
    assert second.options["arithmetic"] == {**family, "low": 0}
    assert second.options["shares"] == {"arithmetic": 1.0}


@pytest.mark.parametrize(
    ("base", "stage", "options"),
    [
        ({}, {"name": "musique"}, {"chat": True, "split": "quarter"}),
        ({"chat": False}, {"name": "musique"}, {"chat": False}),
        ({"name": "data"}, {"name": "musique"}, {"chat": True, "split": "quarter", "file": "t.jsonl"}),
        ({"name": "data"}, {"name": "musique", "file": ""}, {"split": "quarter", "file": ""}),
        ({"operations": ["+"], "high": 7, "reward": "rich"}, {"name": "comparison", "seed": 3},
         {"reward": "rich", "chat": False, "low": 0, "high": 7}),
    ],
)  # fmt: skip
def test_a_stage_inherits_what_was_written_and_not_what_was_filled_in(file, base, stage, options):
    """Also after the config was resolved, kept and read again."""
    source = {"file": file.name} if base.get("name") == "data" else {}
    config = configure(
        {**base, **source, "train": 20, "stages": [{"start": 1}, {"start": 5, **stage}]}
    )
    resolved = resolve_options(config)
    again = load_config(json.loads(json.dumps(to_table(resolved))))
    assert again == resolved == resolve_options(again)
    assert fill(resolved).describe() == fill(again).describe() == fill(config).describe()
    last = fill(again).stages[1]
    assert options.items() <= last.options.items()
    draw = {"draw": "order", "pass_low": 0.02, "pass_high": 0.9}
    own = {"start": 5, "name": stage["name"], "seed": stage.get("seed", 0), "train": 20, **draw}
    assert resolved.tasks.stages[1] == {**own, **last.options}
    rest = {"tasks": config.tasks, "eval": config.eval, "sampling": config.sampling}
    assert dataclasses.replace(resolved, **rest) == config


def test_a_step_never_repeats_a_task_and_an_epoch_leaves_none_twice():
    drawn, cursor = draw_ids(fill(configure({"train": 10})), 4, 4)
    assert all(len(set(step)) == 4 for step in drawn)
    assert len({*drawn[0], *drawn[1]}) == 8
    assert (cursor, drawn[:2] != drawn[2:]) == (Cursor(stage=0, epoch=1, position=8), True)
    drawn, cursor = draw_ids(fill(configure({"train": 12})), 3, 4)
    assert (len({task for step in drawn for task in step}), cursor) == (12, Cursor(0, 0, 12))


def test_stages_begin_at_their_beginning_and_go_on_from_a_saved_cursor():
    filled = fill(configure({"train": 30, "stages": CURRICULUM}))
    whole, _ = draw_ids(filled, 12, 4)
    assert draw_ids(filled, 3, 4)[1] == Cursor(0, 0, 12)
    tasks, cursor = filled.draw(4, 4, Cursor(0, 0, 12))
    assert cursor == Cursor(1, 0, 4)
    assert all(taskset is filled.stages[1].taskset for _, taskset in tasks)
    assert filled.draw(100, 4, cursor)[1] == Cursor(2, 0, 4)
    saved = Cursor(**json.loads(json.dumps(dataclasses.asdict(draw_ids(filled, 5, 4)[1]))))
    assert draw_ids(filled, 7, 4, saved, first=6)[0] == whole[5:]
    with pytest.raises(TasksetError, match="41 tasks were to be drawn of the 40"):
        filled.draw(100, 41, Cursor())


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 9), st.integers(0, 9), st.integers(4, 40), st.integers(1, 4))
def test_the_order_is_a_matter_of_both_seeds(task_seed, run_seed, train, count):
    filled, again, other = (
        fill(configure({"seed": task_seed, "train": train}, {"tasks": 5}, seed=run_seed + more))
        for more in (0, 0, 1)
    )
    drawn, _ = draw_ids(filled, 20, count)
    assert drawn == draw_ids(again, 20, count)[0] != draw_ids(other, 20, count)[0]
    assert all(len(set(step)) == count for step in drawn)
    assert filled.stages[0].tasks == other.stages[0].tasks


def test_describe_says_what_is_trained_on():
    filled = fill(configure({"train": 100, "stages": CURRICULUM}))
    described = filled.describe()
    assert json.loads(json.dumps(described)) == described
    assert (described["name"], described["count"], len(described["notes"])) == (
        "arithmetic",
        96 + 100 + 40,
        1,
    )
    assert described["stages"][0] == {
        "start": 1, "name": "arithmetic", "version": "1", "seed": 0, "count": 96,
        "hash": tasks_hash(filled.stages[0].tasks),
        "options": {
            "reward": "exact", "chat": False, "operations": ["+"], "low": 0, "high": 10, "examples": "",
            "place": "start",
        },
    }  # fmt: skip
