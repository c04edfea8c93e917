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
from uptrend.tasks.arithmetic import Arithmetic
from uptrend.tasks.pool import Cursor, heldout, make_taskset, pool, resolve_options

CURRICULUM = [
    {"start": 1, "operations": ["+"], "high": 10},
    {"start": 4, "high": 10},
    {"start": 6, "train": 40},
]


def configure(tasks=None, evaluation=None, groups=4, seed=0):
    table = {"seed": seed, "tasks": tasks or {}, "eval": evaluation or {}, "sampling": {"groups": groups}}
    return load_config(table)


def fill(config):
    return pool(config, heldout(config))


def draw_ids(filled, steps, count, cursor=None, first=1):
    cursor, drawn = cursor or Cursor(), []
    for step in range(first, first + steps):
        tasks, cursor = filled.draw(step, count, cursor)
        drawn.append([task.id for task, _ in tasks])
    return drawn, cursor


@pytest.mark.parametrize(
    ("tasks", "evaluation", "said"),
    [
        ({"hihg": 3}, {}, "tasks.hihg is not a known key. Did you mean high?"),
        ({"trian": 3}, {}, "tasks.trian is not a known key. Did you mean train?"),
        ({}, {"operatoins": ["+"]}, "eval.operatoins is not a known key. Did you mean operations?"),
        ({"high": "ten"}, {}, "tasks.high = 'ten' should be a whole number"),
        (
            {"reward": "exakt"},
            {},
            "tasks.reward = 'exakt' is not one of exact, partial, rich. Did you mean exact?",
        ),
        ({"name": "mixed", "arithmetic": {"hgh": 3}}, {}, "tasks.arithmetic.hgh is not a known key"),
        ({"name": "jsonl"}, {}, "tasks.file is missing"),
        (
            {"stages": [{"start": 1, "hig": 3}]},
            {},
            "tasks.stages[0].hig is not a known key. Did you mean high?",
        ),
        ({"stages": [{"start": 1, "stages": []}]}, {}, "tasks.stages[0].stages"),
        ({}, {"name": "musique", "atlas": {"paragraphs": 2}}, "eval.atlas.paragraphs = 2 should be from 6"),
        ({"name": "musique", "atlas": {"hops": [7]}}, {}, "tasks.atlas.hops = [7] should have some of 2, 3 and 4"),
        (
            {"stages": [{"start": 1, "name": "musique", "atlas": {"paragraphs": 99}}]},
            {},
            "tasks.stages[0].atlas.paragraphs = 99 should be from 6",
        ),
    ],
)
def test_wrong_keys_are_named(tasks, evaluation, said):
    with pytest.raises(ConfigError) as error:
        fill(configure(tasks, evaluation))
    assert said in str(error.value)


def test_make_taskset():
    taskset = make_taskset("arithmetic", {"high": 3, "operations": ["+"]}, 5, "tasks")
    assert isinstance(taskset, Arithmetic)
    assert taskset.options == Arithmetic.Options(high=3, operations=("+",))
    assert taskset.seed == 5


def test_the_held_out_set_does_not_depend_on_what_is_trained_on():
    first = heldout(configure({"high": 10, "seed": 3}, seed=9))
    second = heldout(configure({"name": "mixed"}))
    assert first.hash == second.hash == tasks_hash(first.tasks)
    assert len(first.tasks) == 200
    assert first.hash != heldout(configure(evaluation={"seed": 1})).hash
    assert first.describe() == {
        "name": "arithmetic", "version": "1", "seed": 0, "count": 200, "hash": first.hash
    }  # fmt: skip


def test_an_evaluation_without_tasks_is_refused():
    with pytest.raises(TasksetError, match="eval: arithmetic has no held-out tasks"):
        heldout(configure(evaluation={"low": 0, "high": 0, "operations": ["+"]}))


def write_sums(path, count):
    rows = [{"prompt": f"Calculate: {n} + {n} = ", "answer": str(2 * n)} for n in range(count)]
    path.write_text("\n".join(map(json.dumps, rows)))
    return str(path)


def test_a_file_that_only_evaluates_is_used_whole(tmp_path):
    file = write_sums(tmp_path / "t.jsonl", 20)
    config = configure({"train": 2000}, {"name": "jsonl", "file": file})
    held_out = heldout(config)
    assert len(held_out.tasks) == 20
    trained = {task.id for task in pool(config, held_out).stages[0].tasks}
    assert not trained & {task.id for task in held_out.tasks}
    assert resolve_options(config).eval.options["split"] is False


@pytest.mark.parametrize("stages", [[], [{"start": 1, "name": "arithmetic"}, {"start": 2}]])
def test_a_file_that_is_also_trained_on_is_split(tmp_path, monkeypatch, stages):
    file = write_sums(tmp_path / "t.jsonl", 20)
    monkeypatch.chdir(tmp_path)
    config = configure({"name": "jsonl", "file": file, "stages": stages}, {"name": "jsonl", "file": "t.jsonl"})
    held_out = heldout(config)
    assert len(held_out.tasks) == 5
    assert len(pool(config, held_out).stages[-1].tasks) == 15
    assert resolve_options(config).eval.options["split"] is True


def test_too_few_tasks_for_a_step():
    with pytest.raises(TasksetError, match=r"tasks has 12 tasks, fewer than sampling\.groups = 16: lower"):
        fill(configure({"name": "binary"}, groups=16))
    with pytest.raises(TasksetError, match=r"tasks\.stages\[1\] has 12 tasks"):
        fill(configure({"stages": [{"start": 1}, {"start": 2, "name": "binary"}]}, groups=16))


def test_a_taskset_that_leaks_is_refused(monkeypatch):
    class Leaky(Arithmetic):
        def train(self, count, exclude=()):
            return [*super().train(count - 1, exclude), *self.heldout(1)]

    module = types.ModuleType("leaky_tasks")
    module.Leaky = Leaky
    monkeypatch.setitem(sys.modules, "leaky_tasks", module)
    with pytest.raises(TasksetError, match="trains on 1 held-out tasks"):
        fill(configure({"name": "leaky_tasks:Leaky"}))


def test_stages_lie_over_the_section():
    filled = fill(configure({"reward": "rich", "train": 60, "stages": CURRICULUM}))
    first, second, third = filled.stages
    assert [stage.start for stage in filled.stages] == [1, 4, 6]
    assert [len(stage.tasks) for stage in filled.stages] == [60, 60, 40]
    assert {task.data["operation"] for task in first.tasks} == {"+"}
    assert {task.data["operation"] for task in second.tasks} == {"+", "-", "*"}
    assert max(task.data["a"] for task in second.tasks) == 10
    assert max(task.data["a"] for task in third.tasks) == 20
    assert all(stage.options["reward"] == "rich" for stage in filled.stages)


def test_a_stage_changes_a_family_table_key_by_key_and_shares_as_a_whole():
    mix = {
        "name": "mixed",
        "arithmetic": {"operations": ["+"], "high": 20},
        "shares": {"arithmetic": 1, "binary": 1},
    }
    stages = [{"start": 1, "arithmetic": {"high": 10}}, {"start": 2, "shares": {"arithmetic": 1}}]
    first, second = fill(configure({**mix, "train": 20, "stages": stages})).stages
    assert first.options["arithmetic"] == {"operations": ["+"], "low": 0, "high": 10}
    assert second.options["arithmetic"] == {"operations": ["+"], "low": 0, "high": 20}
    assert second.options["shares"] == {"arithmetic": 1.0}


def test_a_stage_of_another_taskset_keeps_the_options_that_both_have():
    stages = [{"start": 1}, {"start": 2, "name": "comparison"}]
    _, second = fill(
        configure({"operations": ["+"], "high": 7, "reward": "rich", "train": 40, "stages": stages})
    ).stages
    assert second.taskset.name == "comparison"
    assert second.options == {"reward": "rich", "chat": False, "low": 0, "high": 7}


@pytest.mark.parametrize(
    ("base", "stage", "options"),
    [
        ({}, {"name": "musique"}, {"chat": True, "split": "quarter"}),
        ({"chat": False}, {"name": "musique"}, {"chat": False}),
        ({"name": "jsonl"}, {"name": "musique"}, {"chat": True, "split": "quarter", "file": None}),
        ({"name": "jsonl"}, {"name": "musique", "file": ""}, {"split": "quarter", "file": ""}),
        ({"name": "jsonl"}, {"name": "comparison", "seed": 3}, {"chat": False}),
    ],
)
def test_a_stage_inherits_what_was_written_and_not_what_was_filled_in(tmp_path, base, stage, options):
    """Also after the config was resolved, kept and read again."""
    if base.get("name") == "jsonl":
        rows = [
            {"id": f"2hop__{n}", "question": f"Who is {n}?", "prompt": f"{n} = ", "answer": str(n)} for n in range(40)
        ]
        for row in rows:
            row["paragraphs"] = [{"idx": 0, "title": "t", "paragraph_text": row["answer"], "is_supporting": True}]
            part = {"id": 1, "question": "Who?", "answer": row["answer"], "paragraph_support_idx": 0}
            row["question_decomposition"] = [part]
        (tmp_path / "t.jsonl").write_text("\n".join(map(json.dumps, rows)))
        base = {**base, "file": str(tmp_path / "t.jsonl")}
    config = configure({**base, "train": 20, "stages": [{"start": 1}, {"start": 5, **stage}]})
    resolved = resolve_options(config)
    again = load_config(json.loads(json.dumps(to_table(resolved))))
    assert again == resolved
    assert resolve_options(again) == resolved
    expected = fill(config).describe()
    assert fill(resolved).describe() == fill(again).describe() == expected
    last = fill(again).stages[1]
    wanted = {key: base.get("file") if value is None else value for key, value in options.items()}
    assert {key: last.options[key] for key in wanted} == wanted
    assert resolved.tasks.stages[1] == {
        "start": 5,
        "name": stage["name"],
        "seed": last.seed,
        "train": 20,
        **last.options,
    }
    assert last.seed == stage.get("seed", 0)


def test_a_step_never_repeats_a_task_and_an_epoch_leaves_none_twice():
    filled = fill(configure({"train": 10}))
    drawn, cursor = draw_ids(filled, 4, 4)
    assert all(len(set(step)) == 4 for step in drawn)
    assert len({*drawn[0], *drawn[1]}) == 8
    assert cursor == Cursor(stage=0, epoch=1, position=8)
    assert drawn[:2] != drawn[2:]


def test_a_whole_epoch_is_drawn_where_it_divides():
    drawn, cursor = draw_ids(fill(configure({"train": 12})), 3, 4)
    assert len({task for step in drawn for task in step}) == 12
    assert cursor == Cursor(0, 0, 12)


def test_stages_begin_at_their_beginning():
    filled = fill(configure({"train": 60, "stages": CURRICULUM}))
    _, cursor = draw_ids(filled, 3, 4)
    assert cursor == Cursor(0, 0, 12)
    tasks, cursor = filled.draw(4, 4, cursor)
    assert cursor == Cursor(1, 0, 4)
    assert all(taskset is filled.stages[1].taskset for _, taskset in tasks)
    assert filled.draw(100, 4, cursor)[1] == Cursor(2, 0, 4)


def test_drawing_goes_on_from_a_saved_cursor():
    config = configure({"train": 30, "stages": CURRICULUM})
    whole, _ = draw_ids(fill(config), 12, 4)
    _, cursor = draw_ids(fill(config), 5, 4)
    saved = Cursor(**json.loads(json.dumps(dataclasses.asdict(cursor))))
    rest, _ = draw_ids(fill(config), 7, 4, saved, first=6)
    assert rest == whole[5:]


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 9), st.integers(0, 9), st.integers(4, 40), st.integers(1, 4))
def test_the_order_is_a_matter_of_both_seeds(task_seed, run_seed, train, count):
    config = configure({"seed": task_seed, "train": train}, {"tasks": 5}, seed=run_seed)
    drawn, _ = draw_ids(fill(config), 20, count)
    assert drawn == draw_ids(fill(config), 20, count)[0]
    assert all(len(set(step)) == count for step in drawn)


def test_the_run_seed_changes_the_order_and_not_the_tasks():
    one, two = fill(configure({"train": 100}, seed=0)), fill(configure({"train": 100}, seed=1))
    assert one.stages[0].tasks == two.stages[0].tasks
    assert draw_ids(one, 1, 4)[0] != draw_ids(two, 1, 4)[0]


def test_more_than_there_are_cannot_be_drawn():
    with pytest.raises(TasksetError, match="5 tasks were to be drawn of the 4"):
        fill(configure({"train": 4})).draw(1, 5, Cursor())


def test_describe_says_what_is_trained_on():
    filled = fill(configure({"train": 100, "stages": CURRICULUM}))
    described = filled.describe()
    assert json.loads(json.dumps(described)) == described
    assert described["name"] == "arithmetic"
    assert described["count"] == 96 + 100 + 40
    assert described["notes"] == [
        "arithmetic has 121 tasks, fewer than asked for: 96 to train on, 25 held out (about 3 to 1)"
    ]
    first = described["stages"][0]
    assert first == {
        "start": 1, "name": "arithmetic", "version": "1", "seed": 0, "count": 96,
        "hash": tasks_hash(filled.stages[0].tasks),
        "options": {"reward": "exact", "chat": False, "operations": ["+"], "low": 0, "high": 10},
    }  # fmt: skip


def test_resolved_options_have_every_value_and_change_nothing():
    config = configure({"name": "mixed", "train": 50, "arithmetic": {"high": 10}}, {"high": 30})
    resolved = resolve_options(config)
    assert resolved.eval.options == {
        "reward": "exact", "chat": False, "operations": ["+", "-", "*"], "low": 0, "high": 30
    }  # fmt: skip
    assert resolved.tasks.options["arithmetic"] == {"operations": ["+", "-", "*"], "low": 0, "high": 10}
    assert resolved.tasks.options["binary"] == {"high": 15}
    assert dataclasses.replace(resolved, tasks=config.tasks, eval=config.eval) == config
    again = load_config(json.loads(json.dumps(to_table(resolved))))
    assert resolve_options(again) == resolved
    assert fill(again).describe() == fill(config).describe()
