"""Tasks from a file, through `jsonl`, an older name of `data` for short answers."""

import asyncio
import json

import pytest

from uptrend.config import load_config
from uptrend.records import TasksetError
from uptrend.records.renamed import RenamedWarning
from uptrend.tasks.pool import make_taskset
from uptrend.tasks.taskset import play_script, say, shortage_note
from uptrend.tasks.validate import validate

SUMS = [{"prompt": f"{n} + {n} = ", "answer": str(2 * n)} for n in range(80)]


@pytest.fixture
def make(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # relative paths start at the current folder

    def made(rows, seed=0, **options):
        text = "\n".join(row if isinstance(row, str) else json.dumps(row) for row in rows)
        (tmp_path / "t.jsonl").write_text(text)
        return jsonl("t.jsonl", seed, **options)

    return made


def jsonl(file, seed=0, **options):
    with pytest.warns(RenamedWarning, match="jsonl is called data now"):
        tasks = load_config({"tasks": {"name": "jsonl", "file": file, **options}}).tasks
    return make_taskset(tasks.name, tasks.options, seed)


def test_rows_become_tasks(make):
    row = {
        "prompt": "2 + 3 = ",
        "answer": 5,
        "difficulty": "hard",
        "family": "sums",
        "topic": "addition",
    }
    more = [
        {"prompt": "Sky? ", "answer": "Blue"},
        {"prompt": "Sea? ", "answer": "Deep", "difficulty": []},
    ]
    five, blue, deep = sorted(
        make([row, "", *more], split=False).heldout(10), key=lambda task: task.answer
    )
    assert (five.answer, five.family, five.difficulty, five.data["row"]["topic"]) == (
        "5",
        "sums",
        3.0,
        "addition",
    )
    assert five.messages[0].content == "2 + 3 = "
    assert (blue.answer, blue.family, blue.difficulty, deep.difficulty) == ("Blue", "t", 0.0, 0.0)


def test_a_quarter_is_held_out_whatever_the_seed(make):
    first, other = make(SUMS, seed=0), make(SUMS, seed=1)
    assert (len(first.train(60)), len(first.heldout(20))) == (60, 20)
    assert first.notes == [
        "t.jsonl: a quarter of the tasks is held out, chosen by the hash of their content"
    ]
    held_out = {t.id for t in first.heldout(80)}
    assert held_out == {t.id for t in other.heldout(80)}
    assert held_out.isdisjoint(t.id for t in other.train(80))
    assert first.train(60) != other.train(60)
    assert len(first.train(80, exclude=[t.id for t in first.train(5)])) == 55


def test_few_tasks_and_duplicates_are_noted(make):
    taskset = make(SUMS[:8])
    assert (len(taskset.train(500)), len(taskset.heldout(200))) == (6, 2)
    assert taskset.notes[1:] == [shortage_note("t.jsonl", 6, 2)]
    taskset = make([*SUMS[:8], *SUMS[:2], {"prompt": "0 + 0 = ", "answer": "1"}], split=False)
    assert {t.answer for t in taskset.heldout(8) if t.messages[0].content == "0 + 0 = "} == {"0"}
    assert (taskset.train(8), len(taskset.heldout(9))) == ([], 8)
    repeated, short = taskset.notes
    assert "3 of 11 rows" in repeated
    assert "1 of them have another answer" in repeated
    assert short == "t.jsonl has 8 tasks, fewer than asked for: all are held out"


@pytest.mark.parametrize(("allowed", "passed"), [(0.2, True), (0.19, False)])
def test_validate_objects_to_more_duplicates_than_allowed(make, allowed, passed):
    report = validate(lambda: make([*SUMS[:40], *SUMS[:10]], duplicates=allowed), 30, 10)
    figures = {check.name: check.figure for check in report.checks}
    assert figures["duplicates are few"] == f"10 of 50 rows (20.0%), {allowed:.1%} allowed"
    assert report.passed is passed


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("{", "is not JSON"),
        ("[1]", "should be an object"),
        ('{"answer": "1"}', "has no prompt"),
        ('{"prompt": "a"}', "has no answer"),
        ('{"prompt": " ", "answer": "1"}', "prompt = ' ' should be a text"),
        ('{"prompt": 5, "answer": "1"}', "prompt = 5 should be a text"),
        *(
            (f'{{"prompt": "a", "answer": {answer}}}', "can't be graded")
            for answer in ('""', "null", '"New York"', "7.5")
        ),
    ],
)
def test_bad_rows_are_named(make, line, said):
    with pytest.raises(TasksetError) as error:
        make([SUMS[0], line])
    assert "t.jsonl:2" in str(error.value)
    assert said in str(error.value)


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("none", None, "No such file"),
        (".", None, "can't be read"),
        ("b", b"\xff", "not UTF-8"),
        ("e", b"\n", "no rows"),
    ],
)
def test_files_that_cannot_be_read(tmp_path, name, content, said):
    if content:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(TasksetError, match=said):
        jsonl(str(tmp_path / name))


def test_numbers_are_graded_by_distance_and_words_exactly(make):
    rows = [
        {"prompt": "n", "answer": 42.0, "metadata": {"a": 6, "b": 7, "operation": "*"}},
        {"prompt": "w", "answer": "blue", "base": 16},
        {"prompt": "o", "answer": "42", "a": "six", "b": 7, "operation": "*"},
    ]
    taskset = make(rows, reward="partial", split=False)
    tasks = {task.messages[0].content: task for task in taskset.heldout(3)}
    earned = {
        "n": {"42": 1.0, "43": 0.5, "13": -0.5, "99": -1.0},
        "w": {"Blue.": 1.0, "red": -1.0, "7": -1.0},
        "o": {"42": 1.0, "43": 0.5, "13": -1.0},
    }
    for key, totals in earned.items():
        played = {
            said: asyncio.run(play_script(taskset, tasks[key], say(said)))[1].total
            for said in totals
        }
        assert played == totals
