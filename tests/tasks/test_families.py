"""What the generated families make."""

import asyncio
import random

import pytest

from uptrend.records import Message, TasksetError
from uptrend.tasks.arithmetic import Arithmetic, Binary, ComparisonFamily, Counting
from uptrend.tasks.taskset import Taskset, play_script

FAMILIES = [Arithmetic, Counting, ComparisonFamily, Binary]
ALL = 10_000


def make(cls, seed=0, **options):
    return cls(cls.Options(**options), seed)


def by_prompt(taskset):
    return {task.messages[0].content: task for task in [*taskset.train(ALL), *taskset.heldout(ALL)]}


def test_arithmetic_prompts_and_answers():
    tasks = by_prompt(make(Arithmetic))
    assert len(tasks) == 21 * 21 * 3
    assert tasks["Calculate: 15 + 8 = "].answer == "23"
    assert tasks["Calculate: 12 - 7 = "].answer == "5"
    assert tasks["Calculate: 7 - 12 = "].answer == "-5"
    assert tasks["Calculate: 4 * 9 = "].answer == "36"
    task = tasks["Calculate: 20 * 20 = "]
    assert (task.answer, task.difficulty, task.family) == ("400", 400.0, "arithmetic")
    assert task.data == {"a": 20, "b": 20, "operation": "*", "base": 10}
    assert task.messages == (Message("user", "Calculate: 20 * 20 = "),)


def test_arithmetic_options():
    tasks = by_prompt(make(Arithmetic, operations=("+",), low=5, high=10))
    assert len(tasks) == 36
    assert all(" + " in prompt for prompt in tasks)
    assert min(task.data["a"] for task in tasks.values()) == 5


def test_counting_prompts_and_answers():
    tasks = by_prompt(make(Counting))
    assert tasks["Count the words: cat cat cat. Answer: "].answer == "3"
    assert tasks["Count the letters in: banana. Answer: "].answer == "6"
    assert {task.answer for task in tasks.values()} == {str(n) for n in range(1, 11)}
    assert len(tasks) >= 200
    assert {task.data["kind"] for task in by_prompt(make(Counting, kinds=("letters",))).values()} == {"letters"}
    assert max(int(task.answer) for task in by_prompt(make(Counting, high=4)).values()) == 4


def test_comparison_prompts_and_answers():
    tasks = by_prompt(make(ComparisonFamily))
    assert len(tasks) == 441
    assert tasks["Is 3 greater than 7? Answer yes or no: "].answer == "no"
    assert tasks["Is 7 greater than 3? Answer yes or no: "].answer == "yes"
    assert tasks["Is 7 greater than 7? Answer yes or no: "].answer == "no"
    assert sum(task.answer == "yes" for task in tasks.values()) == 210


def test_binary_prompts_and_answers():
    tasks = by_prompt(make(Binary))
    assert {p: t.answer for p, t in tasks.items()} == {f"Convert {n} to binary: ": bin(n)[2:] for n in range(16)}


@pytest.mark.parametrize("cls", FAMILIES)
def test_families_keep_to_the_interface(cls):
    taskset = make(cls)
    assert isinstance(taskset, Taskset)
    train, held_out = taskset.train(10), taskset.heldout(4)
    assert (len(train), len(held_out)) == (10, 4)
    assert len({task.id for task in [*train, *held_out]}) == 14
    assert taskset.notes == []
    assert taskset.chat is False
    assert make(cls, chat=True).chat is True


@pytest.mark.parametrize("cls", FAMILIES)
def test_the_seed_decides_the_order_and_nothing_else(cls):
    first, again, other = (make(cls, seed).train(ALL) for seed in (0, 0, 1))
    assert first == again
    assert first != other
    assert sorted(t.id for t in first) == sorted(t.id for t in other)


@pytest.mark.parametrize("cls", FAMILIES)
def test_excluded_tasks_are_not_trained_on(cls):
    left_out = [task.id for task in make(cls).train(5)]
    taskset = make(cls)
    rest = taskset.train(ALL, exclude=left_out)
    assert not {task.id for task in rest} & set(left_out)
    assert "5 of those to train on are left out" in taskset.notes[0]


def test_a_small_family_says_so_once():
    taskset = make(Binary)
    assert len(taskset.train(500)) == 12
    assert len(taskset.heldout(200)) == 4
    taskset.train(500)
    assert taskset.notes == ["binary has 16 tasks, fewer than asked for: 12 to train on, 4 held out (3 to 1)"]


@pytest.mark.parametrize(
    ("cls", "options", "said"),
    [
        (Arithmetic, {"low": 5, "high": 4}, "high = 4 should be at least 5"),
        (Arithmetic, {"operations": ()}, "operations is empty"),
        (Counting, {"high": 0}, "high = 0 should be at least 1"),
        (Counting, {"kinds": ()}, "kinds is empty"),
        (ComparisonFamily, {"high": -1}, "high = -1 should be at least 0"),
        (Binary, {"high": -1}, "high = -1 should be at least 0"),
    ],
)
def test_options_that_leave_nothing_are_refused(cls, options, said):
    with pytest.raises(TasksetError, match=said):
        make(cls, **options)


def test_a_family_too_large_to_list_is_refused():
    with pytest.raises(TasksetError, match="more than 2,000,000 tasks"):
        make(Binary, high=3_000_000).train(1)


@pytest.mark.parametrize("cls", FAMILIES)
@pytest.mark.parametrize("rule", ["exact", "partial", "rich"])
def test_gold_reaches_the_maximum_and_corrupted_do_not(cls, rule):
    taskset = make(cls, reward=rule)

    async def totals(task):
        gold = (await play_script(taskset, task, taskset.gold(task)))[1]
        others = [(await play_script(taskset, task, script))[1] for script in taskset.corrupted(task)]
        return gold, others

    for task in random.Random(0).sample(taskset.train(ALL), 12):
        gold, others = asyncio.run(totals(task))
        assert gold.total == gold.high == 1.0
        assert gold.correct
        assert len(others) == 4
        assert all(other.total < 1.0 and not other.correct for other in others)


def test_silence_is_graded_as_an_empty_answer():
    taskset = make(Arithmetic)
    play = taskset.open(taskset.train(1)[0], seed=0)
    assert asyncio.run(play.score()).total == -1.0
    assert asyncio.run(play.respond(Message("assistant", taskset.train(1)[0].answer))) is None
    assert asyncio.run(play.score()).total == 1.0
