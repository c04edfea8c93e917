"""Reading answers, the three rules, the generated families, their split, and the mix."""

import asyncio
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from uptrend.config import build
from uptrend.records import ConfigError, Message, Reward, Task, TasksetError
from uptrend.tasks.answers import extract, grade, is_right
from uptrend.tasks.pool import make_taskset
from uptrend.tasks.taskset import (
    Taskset,
    held_out_quarter,
    may_be_held_out,
    play_script,
    shortage_note,
)
from uptrend.tasksets.arithmetic import (  # fmt: skip
    FAMILIES,
    Arithmetic,
    ArithmeticOptions,
    Binary,
    ComparisonFamily,
    Counting,
    Mixed,
    MixedOptions,
    apportion,
)

ALL = 10_000
EVERY = pytest.mark.parametrize("cls", FAMILIES.values(), ids=FAMILIES)


def make(cls, seed=0, **options):
    return cls(cls.Options(**options), seed)


def mix(seed=0, **table):
    return Mixed(build(MixedOptions, table, "tasks"), seed)


def families(tasks):
    return Counter(task.family for task in tasks)


@pytest.mark.parametrize(
    ("said", "read"),
    [
        ("23", "23"), ("  23\n", "23"), ("-7", "-7"), ("- 7", "-"), ("23.", "23"), ("23 apples", "23"), ("7.5", "7"),
        ("7th", "7"), ("007", "007"), ("-0", "-0"), ("+7", "+7"), ("(7)", "(7"), ("The answer is 7", "the"),
        ("YES!", "yes"), ("No, because 3", "no"), ("yes\nno", "yes"), ("", ""), ("   \n", ""), ("?!", ""), ("٣", "٣"),
    ],
)  # fmt: skip
def test_extraction(said, read):
    assert extract(said) == read


@pytest.mark.parametrize(
    ("said", "read"),
    [
        (" 130 + 52 = 182\nCalculate: 3", "182"),
        ("\n 7 - 9 = -2", "-2"),
        ("I can't tell", ""),
        ("", ""),
        ("12", "12"),
    ],
)
def test_an_answer_at_the_end_comes_after_its_working(said: str, read: str) -> None:
    assert extract(said, "end") == read


def test_worked_examples_stand_before_every_question() -> None:
    options = ArithmeticOptions(examples="Calculate: 1 + 1 = 2\n", place="end")
    taskset = Arithmetic(options, 0)
    (task,) = taskset.heldout(1)
    assert [task] == Arithmetic(ArithmeticOptions(), 0).heldout(1)  # held out by its question alone
    assert (
        taskset.open(task, 0).messages[0].content
        == f"Calculate: 1 + 1 = 2\n{task.messages[0].content}"
    )
    rewards = [
        grade("exact", said, task, "end").total
        for said in (f"3 = {task.answer}", f"{task.answer} = 3x", "3")
    ]
    assert rewards == [1.0, -1.0, -1.0]


def test_answers_are_compared_as_text():
    right = [("7", "7"), ("7 8", "7"), ("Yes.", "yes"), ("yes", "Yes"), ("101", "101")]
    wrong = [
        ("77", "7"),
        ("007", "7"),
        ("-0", "0"),
        ("It is 7", "7"),
        ("yesterday", "yes"),
        ("", "7"),
        ("0101", "101"),
    ]
    assert [pair for pair in right + wrong if is_right(*pair)] == right


PRODUCT = make(Arithmetic).task((6, "*", 7))
FIVE = make(Binary).task(5)
THREE = make(Counting).task(("words", "cat", 3))
SMALLER = make(ComparisonFamily).task((3, 7))


@pytest.mark.parametrize(
    ("task", "rule", "earned"),
    [
        (PRODUCT, "exact", {"42": 1, "41": -1}),
        # 042 is right, but written otherwise. 13 is 6 + 7 and -1 is 6 - 7.
        (PRODUCT, "partial", {
            "42": 1, "42 and more": 1, "41": 0.5, "43": 0.5, "042": 0.5, "44": 0.25, "37": 0.25, "47": 0.25, "48": -1,
            "36": -1, "13": -0.5, "-1": -0.5, "1": -1, "1000": -1, "forty-two": -1, "it is 42": -1, "": -1, "4_2": -1,
            "9" * 5000: -1,  # more than Python reads
        }),
        # 5 is 2 + 3, but also off by one: the distance comes first.
        (make(Arithmetic).task((2, "*", 3)), "partial", {"5": 0.5, "-1": -0.5}),
        (PRODUCT, "rich", {
            "42": 1, "43": 0.7, "41": 0.7, "042": 0.7, "44": 0.4, "40": 0.4, "45": 0.1, "47": 0.1, "48": -0.2,
            "52": -0.2, "32": -0.2, "53": -0.5, "31": -0.5, "-42": -0.5, "none": -1, "": -1,
        }),
        # Distances are of values; 5 and 102 are no numbers in base two.
        (FIVE, "rich", {"101": 1, "110": 0.7, "111": 0.4, "0101": 0.7, "1111": -0.2, "5": -1}),
        (FIVE, "partial", {"100": 0.5, "102": -1}),
        (THREE, "rich", {"4": 0.7}),
        (THREE, "partial", {"9": -1}),
        *((SMALLER, rule, {"No.": 1, "yes": -1, "7": -1}) for rule in ("exact", "partial", "rich")),
    ],
)  # fmt: skip
def test_rules(task, rule, earned):
    assert {said: grade(rule, said, task).total for said in earned} == earned
    name = "exact" if task is SMALLER else rule  # words are graded exactly under every rule
    assert grade(rule, task.answer, task) == Reward.of(name, 1.0, -1.0, 1.0, True)


@given(
    st.sampled_from(["exact", "partial", "rich"]),
    st.text(max_size=30) | st.integers().map(str),
    st.integers(-400, 400),
)
def test_only_the_answer_reaches_the_maximum(rule, said, answer):
    task = Task((Message("user", "?"),), str(answer), "x", data={"base": 10})
    reward = grade(rule, said, task)
    assert -1.0 <= reward.total <= 1.0
    assert (reward.total == 1.0) == reward.correct


@pytest.mark.parametrize(
    ("cls", "options", "count", "answers"),
    [
        (Arithmetic, {}, 21 * 21 * 3, {
            "Calculate: 15 + 8 = ": "23", "Calculate: 7 - 12 = ": "-5", "Calculate: 20 * 20 = ": "400"}),
        (Arithmetic, {"operations": ("+",), "low": 5, "high": 10}, 36, {"Calculate: 5 + 10 = ": "15"}),
        (Counting, {}, 345, {
            "Count the words: cat cat cat. Answer: ": "3", "Count the letters in: banana. Answer: ": "6"}),
        (Counting, {"kinds": ("letters",), "high": 4}, 45, {"Count the letters in: bear. Answer: ": "4"}),
        (Counting, {"kinds": ("words",), "high": 2}, 48, {"Count the words: cat cat. Answer: ": "2"}),
        (ComparisonFamily, {}, 441, {
            f"Is {a} greater than {b}? Answer yes or no: ": "yes" if a > b else "no"
            for a, b in ((3, 7), (7, 3), (7, 7))}),
        (Binary, {}, 16, {f"Convert {n} to binary: ": bin(n)[2:] for n in range(16)}),
    ],
)  # fmt: skip
def test_prompts_and_answers(cls, options, count, answers):
    taskset = make(cls, **options)
    tasks = {
        task.messages[0].content: task.answer
        for task in [*taskset.train(ALL), *taskset.heldout(ALL)]
    }
    assert len(tasks) == count
    assert answers.items() <= tasks.items()


@EVERY
def test_families_keep_to_the_interface(cls):
    taskset = make(cls)
    assert isinstance(taskset, Taskset)
    assert len({task.id for task in [*taskset.train(10), *taskset.heldout(4)]}) == 14
    assert (taskset.notes, taskset.chat, make(cls, chat=True).chat) == ([], False, True)
    first, again, other = (make(cls, seed).train(ALL) for seed in (0, 0, 1))
    assert first == again != other
    assert sorted(t.id for t in first) == sorted(t.id for t in other)
    left_out = {task.id for task in first[:5]}
    assert left_out.isdisjoint(task.id for task in taskset.train(ALL, left_out))
    assert "5 of those to train on are left out" in taskset.notes[0]


@pytest.mark.parametrize(
    ("name", "options", "said"),
    [
        ("arithmetic", {"low": 5, "high": 4}, "tasks.high = 4 should be at least 5"),
        ("arithmetic", {"operations": []}, "tasks.operations .* it takes"),
        ("counting", {"high": 0}, "tasks.high = 0 should be at least 1"),
        ("counting", {"kinds": []}, "tasks.kinds .* it takes words and letters"),
        ("comparison", {"high": -1}, "tasks.high = -1 should be at least 0"),
        ("binary", {"high": -1}, "tasks.high = -1 should be 0 or more"),
        ("mixed", {"binary": {"high": -1}}, "tasks.binary.high = -1"),
        (
            "mixed",
            {"shares": {"arithmetics": 1}},
            r"shares.arithmetics names no family. Did you mean arithmetic\?",
        ),
        ("mixed", {"shares": {"x": 1}}, "There are arithmetic, counting"),
        (
            "mixed",
            {"shares": {"arithmetic": -0.5, "binary": 1}},
            "shares.arithmetic = -0.5 should be 0 or more",
        ),
        ("mixed", {"shares": {"arithmetic": 0}}, "shares leave nothing"),
        ("mixed", {"arithmetic": {"reward": "rich"}}, "tasks.arithmetic.reward is not a known key"),
    ],
)
def test_options_that_can_not_work_are_refused(name, options, said):
    with pytest.raises(ConfigError, match=said):
        make_taskset(name, options, 0)


def test_the_salt_splits_three_to_one_and_never_changes():
    sizes = {
        cls: (len(make(cls).train(ALL)), len(make(cls).heldout(ALL))) for cls in FAMILIES.values()
    }
    train, held_out = sizes.pop(Arithmetic)
    assert train + held_out == 1323
    assert abs(held_out - 331) <= 5
    assert sizes == {Binary: (12, 4), ComparisonFamily: (331, 110), Counting: (259, 86)}
    small = make(Binary)
    assert [len(small.train(500)), len(small.heldout(200)), len(small.train(500))] == [12, 4, 12]
    assert small.notes == [shortage_note("binary", 12, 4)]
    with pytest.raises(TasksetError, match="more than 2,000,000 tasks"):
        make(Binary, high=3_000_000).train(1)
    # Another salt or hash would silently make other held-out sets, and old numbers incomparable.
    assert [n for n in range(16) if may_be_held_out(f"{n:016x}")] == [1, 7]


@settings(max_examples=25, deadline=None)
@given(
    seeds=st.tuples(st.integers(0, 2**32), st.integers(0, 2**32)),
    highs=st.tuples(st.integers(2, 25), st.integers(2, 25)),
    cls=st.sampled_from([Arithmetic, ComparisonFamily]),
)
def test_no_training_set_meets_any_held_out_set(seeds, highs, cls):
    trained, held_out = (
        make(cls, seeds[0], high=highs[0]).train(ALL),
        make(cls, seeds[1], high=highs[1]).heldout(ALL),
    )
    assert not {task.id for task in trained} & {task.id for task in held_out}


@given(st.sets(st.text(min_size=1, max_size=8), max_size=60))
def test_a_file_holds_out_a_quarter(ids):
    quarter = held_out_quarter(ids)
    assert quarter == held_out_quarter(sorted(ids, reverse=True))
    assert quarter <= ids
    assert abs(len(quarter) - len(ids) / 4) <= 0.5
    assert len(quarter) >= 1 or len(ids) < 2


def test_shares_hold_in_what_is_drawn_and_families_are_shuffled():
    taskset = mix()
    tasks = taskset.train(200)
    assert families(tasks) == {"arithmetic": 100, "counting": 50, "comparison": 50}
    assert 35 <= families(tasks[:100])["arithmetic"] <= 65
    assert families(taskset.heldout(100)) == {"arithmetic": 50, "counting": 25, "comparison": 25}
    assert taskset.notes == []
    assert mix(seed=0).train(50) == mix(seed=0).train(50) != mix(seed=1).train(50)
    tasks = mix(shares={"binary": 1, "arithmetic": 9, "counting": 0}).train(100)
    assert families(tasks) == {"binary": 10, "arithmetic": 90}
    narrow = mix(arithmetic={"high": 9}, comparison={"low": 15, "high": 20})
    tasks = narrow.train(200)
    assert families(tasks) == {"arithmetic": 100, "counting": 50, "comparison": len(tasks) - 150}
    assert all(
        t.data["a"] <= 9 if t.family == "arithmetic" else t.data.get("a", 15) >= 15 for t in tasks
    )
    assert [note.partition(" has ")[0] for note in narrow.notes] == ["comparison"]


def test_reward_and_chat_of_a_mix_hold_for_all():
    taskset = mix(reward="rich", chat=True, shares={"arithmetic": 1, "binary": 1})
    assert taskset.chat is True
    assert asyncio.run(taskset.open(taskset.train(1)[0], seed=0).score()).total == -1.0  # silence
    for task in taskset.train(20):
        scripts = [taskset.gold(task), next(iter(taskset.corrupted(task)))]
        assert [asyncio.run(play_script(taskset, task, script))[1].total for script in scripts] == [
            1.0,
            0.7,
        ]


@given(st.integers(0, 500), st.lists(st.floats(0.01, 10), min_size=1, max_size=4))
def test_apportion_adds_up_and_stays_near(count, shares):
    parts = apportion(count, dict(zip("abcd", shares, strict=False)))
    assert sum(parts.values()) == count
    for share, part in zip(shares, parts.values(), strict=True):
        assert abs(part - count * share / sum(shares)) < 1 + 1e-9


def test_apportion_gives_the_rest_to_the_largest_remainders():
    assert apportion(150, {"a": 0.5, "b": 0.25, "c": 0.25}) == {"a": 75, "b": 38, "c": 37}
    assert apportion(7, {"a": 0.61, "b": 0.39}) == {"a": 4, "b": 3}
    assert apportion(7, {"a": 0.68, "b": 0.32}) == {"a": 5, "b": 2}
