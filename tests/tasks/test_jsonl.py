"""Tasks from a file."""

import asyncio
import json

import pytest

from uptrend.records import Message, TasksetError
from uptrend.tasks.jsonl import Jsonl, JsonlOptions
from uptrend.tasks.taskset import play_script
from uptrend.tasks.validate import validate


def write(path, rows):
    path.write_text("\n".join(row if isinstance(row, str) else json.dumps(row) for row in rows))
    return str(path)


def sums(count):
    return [{"prompt": f"{n} + {n} = ", "answer": str(2 * n)} for n in range(count)]


def make(file, seed=0, **options):
    return Jsonl(JsonlOptions(file=file, **options), seed)


def test_rows_become_tasks(tmp_path):
    row = {"prompt": "2 + 3 = ", "answer": 5, "difficulty": "hard", "family": "sums", "topic": "addition"}
    file = write(tmp_path / "t.jsonl", [row, "", {"prompt": "Sky? ", "answer": "Blue"}])
    five, blue = sorted(make(file, split=False).heldout(10), key=lambda task: task.answer)
    assert (five.answer, five.family, five.difficulty) == ("5", "sums", 3.0)
    assert five.data["topic"] == "addition"
    assert five.messages[0].content == "2 + 3 = "
    assert (blue.answer, blue.family, blue.difficulty) == ("Blue", "t", 0.0)


def test_a_quarter_is_held_out_whatever_the_seed(tmp_path):
    file = write(tmp_path / "t.jsonl", sums(80))
    first, other = make(file, seed=0), make(file, seed=1)
    assert (len(first.train(60)), len(first.heldout(20))) == (60, 20)
    assert first.notes == []
    assert {t.id for t in first.heldout(80)} == {t.id for t in other.heldout(80)}
    assert first.train(60) != other.train(60)
    assert not {t.id for t in first.train(80)} & {t.id for t in other.heldout(80)}
    assert len(first.train(80, exclude=[t.id for t in first.train(5)])) == 55


def test_a_short_file_is_split_three_to_one_and_says_so(tmp_path):
    file = write(tmp_path / "t.jsonl", sums(8))
    taskset = make(file)
    assert (len(taskset.train(500)), len(taskset.heldout(200))) == (6, 2)
    assert taskset.notes == [f"{file} has 8 tasks, fewer than asked for: 6 to train on, 2 held out (3 to 1)"]


def test_without_a_split_everything_is_held_out(tmp_path):
    taskset = make(write(tmp_path / "t.jsonl", sums(8)), split=False)
    assert len(taskset.heldout(8)) == 8
    assert taskset.train(8) == []


def test_duplicates_are_removed_and_noted(tmp_path):
    file = write(tmp_path / "t.jsonl", [*sums(8), *sums(2), {"prompt": "0 + 0 = ", "answer": "1"}])
    taskset = make(file, split=False)
    assert len(taskset.heldout(8)) == 8
    assert (taskset.rows, taskset.duplicate_rows) == (11, 3)
    assert taskset.notes == [
        f"{file}: 3 of 11 rows repeat an earlier prompt and were removed; 1 of them have another answer than the first"
    ]
    assert {t.answer for t in taskset.heldout(8) if t.messages[0].content == "0 + 0 = "} == {"0"}


@pytest.mark.parametrize(("allowed", "passed"), [(0.2, True), (0.19, False)])
def test_validate_objects_to_more_duplicates_than_allowed(tmp_path, allowed, passed):
    file = write(tmp_path / "t.jsonl", [*sums(40), *sums(10)])
    report = validate(lambda: make(file, duplicates=allowed), 30, 10)
    (check,) = [check for check in report.checks if check.name == "duplicates are few"]
    assert check.passed is passed
    assert check.figure == f"10 of 50 rows (20.0%), {allowed:.1%} allowed"
    assert report.passed is passed


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("{", "t.jsonl:2 is not JSON"),
        ("[1]", "t.jsonl:2 should be an object"),
        ('{"answer": "1"}', "t.jsonl:2 has no prompt"),
        ('{"prompt": "a"}', "t.jsonl:2 has no answer"),
        ('{"prompt": " ", "answer": "1"}', "t.jsonl:2: prompt = ' ' should be a text"),
        ('{"prompt": 5, "answer": "1"}', "t.jsonl:2: prompt = 5 should be a text"),
        ('{"prompt": "a", "answer": ""}', "t.jsonl:2: answer = '' can't be graded"),
        ('{"prompt": "a", "answer": null}', "t.jsonl:2: answer = None can't be graded"),
        ('{"prompt": "a", "answer": true}', "t.jsonl:2: answer = True can't be graded"),
        ('{"prompt": "a", "answer": "New York"}', "t.jsonl:2: answer = 'New York' can't be graded"),
        ('{"prompt": "a", "answer": 7.5}', "t.jsonl:2: answer = 7.5 can't be graded"),
    ],
)
def test_bad_rows_are_named(tmp_path, line, said):
    file = write(tmp_path / "t.jsonl", [*sums(1), line])
    with pytest.raises(TasksetError) as error:
        make(file)
    assert said in str(error.value)


def test_files_that_cannot_be_read(tmp_path):
    with pytest.raises(TasksetError, match="can't be read: No such file"):
        make(str(tmp_path / "none.jsonl"))
    with pytest.raises(TasksetError, match="can't be read"):
        make(str(tmp_path))
    (tmp_path / "binary.jsonl").write_bytes(b"\xff\xfe")
    with pytest.raises(TasksetError, match="not UTF-8"):
        make(str(tmp_path / "binary.jsonl"))
    (tmp_path / "empty.jsonl").write_text("\n\n")
    with pytest.raises(TasksetError, match="has no rows"):
        make(str(tmp_path / "empty.jsonl"))


def test_relative_paths_start_at_the_current_folder(tmp_path, monkeypatch):
    write(tmp_path / "t.jsonl", sums(8))
    monkeypatch.chdir(tmp_path)
    assert len(make("t.jsonl").train(6)) == 6


def test_numbers_are_graded_by_distance_and_words_exactly(tmp_path):
    operands = {"a": 6, "b": 7, "operation": "*"}
    rows = [
        {"prompt": "n", "answer": 42.0, "metadata": operands},
        {"prompt": "w", "answer": "blue", "base": 16},
        {"prompt": "o", "answer": "42", "a": "six", "b": 7, "operation": "*"},
    ]
    taskset = make(write(tmp_path / "t.jsonl", rows), reward="partial", split=False)
    tasks = {task.messages[0].content: task for task in taskset.heldout(3)}

    def total(key, said):
        play = taskset.open(tasks[key], 0)
        asyncio.run(play.respond(Message("assistant", said)))
        return asyncio.run(play.score()).total

    assert [total("n", said) for said in ("42", "43", "13", "99")] == [1.0, 0.5, -0.5, -1.0]
    assert [total("w", said) for said in ("Blue.", "red", "7")] == [1.0, -1.0, -1.0]
    assert [total("o", said) for said in ("42", "43", "13")] == [1.0, 0.5, -1.0]


LEVELS = ["very_easy", "easy", "medium", "hard", "very_hard"]


def evaluation_rows(count):
    """Write sums and divisions in the format of a standard arithmetic evaluation; each tenth repeats."""
    rows = []
    for n in range(count):
        if n % 10 == 9:
            rows.append(rows[-1])
            continue
        a, b, operation = (n * (n + 2), n + 2, "/") if n % 7 == 0 else (n, 3, "+")
        result = a // b if operation == "/" else a + b
        facts = {"a": a, "b": b, "operation": operation, "result": result}
        prompt = f"Calculate: {a} {operation} {b} = "
        rows.append({"prompt": prompt, "answer": str(result), "difficulty": LEVELS[n % 5], "metadata": facts})
    return rows


def test_an_evaluation_with_metadata_and_repetitions_loads_and_is_proved(tmp_path):
    file = write(tmp_path / "evaluation.jsonl", evaluation_rows(200))
    taskset = make(file, split=False)
    tasks = taskset.heldout(500)
    assert (taskset.rows, len(tasks)) == (200, 180)
    assert sum(task.data["operation"] == "/" for task in tasks) == 26
    assert all(task.data["metadata"]["result"] == int(task.answer) for task in tasks)
    assert {task.difficulty for task in tasks} == {0.0, 1.0, 2.0, 3.0, 4.0}
    for task in tasks[:20]:
        assert asyncio.run(play_script(taskset, task, taskset.gold(task)))[1].total == 1.0
    assert validate(lambda: make(file), 100, 40).passed
