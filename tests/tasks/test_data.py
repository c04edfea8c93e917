"""Rows and rewards of one's own."""
# ruff: noqa: ARG001, ARG005 (a reward function takes what it is given)

import asyncio
import csv
import json
import math
import sys
import threading
import types
from datetime import datetime
from decimal import Decimal
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from uptrend.config import load_config
from uptrend.config.functions import register_functions
from uptrend.records import ConfigError, TasksetError, task_id
from uptrend.records.rollout import Message
from uptrend.tasks import rewards
from uptrend.tasks.data import serialize_rows
from uptrend.tasks.pool import make_heldout, make_pool, make_taskset
from uptrend.tasks.taskset import known_gold, play_script, say
from uptrend.tasks.validate import validate

ROWS = [
    {"question": f"{n} + 1?", "solution": f"It is {n + 1}. #### {n + 1}", "level": n % 3}
    for n in range(40)
]
COLUMNS = {"prompt": "question", "answer": "solution"}


@pytest.fixture
def make(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def made(rows=ROWS, seed=0, functions=None, **options):
        (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
        with register_functions({f"mine:{name}": f for name, f in (functions or {}).items()}):
            return make_taskset("data", {"file": "rows.jsonl", **options}, seed)

    return made


def reward_of(taskset, said, task=None):
    return asyncio.run(play_script(taskset, task or taskset.train(1)[0], say(said)))[1]


def test_every_format_gives_the_same_tasks(make, tmp_path):
    (tmp_path / "rows.json").write_text(json.dumps(ROWS))
    with (tmp_path / "rows.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, ROWS[0])
        writer.writeheader()
        writer.writerows(ROWS)
    pq.write_table(pa.Table.from_pylist(ROWS), tmp_path / "rows.parquet")
    expected = [(t.id, t.answer) for t in make(**COLUMNS, reward="number").train(99)]
    assert len(expected) == 30
    for name in ("rows.json", "rows.csv", "rows.parquet"):
        found = make_taskset("data", {"file": name, **COLUMNS, "reward": "number"}, 0).train(99)
        assert [(t.id, t.answer) for t in found] == expected


def test_a_hub_dataset_is_read_by_its_split(tmp_path):
    folder = tmp_path / "numbers"
    folder.mkdir()
    for split, part in {"train": ROWS[:30], "test": ROWS[30:]}.items():
        (folder / f"{split}.jsonl").write_text("\n".join(map(json.dumps, part)))
    config = load_config(
        {
            "tasks": {
                "name": "data",
                "dataset": str(folder),
                **COLUMNS,
                "reward": "number",
                "hold_out": "none",
            },
            "eval": {"split": "test"},
        }
    )
    held = make_heldout(config)
    assert {t.messages[0].content for t in held.tasks} == {row["question"] for row in ROWS[30:]}
    assert len(make_pool(config, held).stages[0].tasks) == 30


def test_templates_system_and_conversations(make):
    plain = make(**COLUMNS, reward="number").train(1)[0]
    told = make(
        prompt="Q: {question} {{x}}", answer="solution", system="Be brief.", reward="number"
    )
    task = next(t for t in told.train(99) if t.id == plain.id)
    assert plain.id == task_id(
        [Message("user", plain.messages[0].content)]
    )  # words around a question change no id
    assert [m.role for m in task.messages] == ["system", "user"]
    assert task.messages[1].content == f"Q: {plain.messages[0].content} {{x}}"
    talk = [
        {"role": "user", "content": "2+2?"},
        {"role": "assistant", "content": "4"},
        {"role": "user", "content": "+1?"},
    ]
    task = make([{"prompt": talk, "answer": "5"}], hold_out="none").train(1)[0]
    assert [m.content for m in task.messages] == ["2+2?", "4", "+1?"]


@pytest.mark.parametrize(
    ("reward", "answer", "right", "wrong", "options"),
    [
        ("exact", "New York", " new  york.", "York", {}),
        ("contains", "Paris", "It is Paris, I think", "It is Parish", {}),
        ("number", "so 1,234 #### 1,234.0", "first 7 then 1234", "1234 or 7", {}),
        ("number", "0.5", "-1 #### .5", "none", {}),
        ("number", "5 #### 12", "3 #### 12 of 30", "12 #### 30", {}),
        ("regex", "blue", "color: Blue.", "blue", {"pattern": r"color: (\w+)"}),
        ("math", r"\frac{1}{2}", "so $0.5$", "0.6", {}),
        ("json-schema", "{}", 'Here: ```json\n{"a": 1}\n```', '{"a": "x"}', {"schema": "s.json"}),
    ],
)  # fmt: skip
def test_ready_rewards(make, tmp_path, reward, answer, right, wrong, options):
    (tmp_path / "s.json").write_text(
        json.dumps({"required": ["a"], "properties": {"a": {"type": "number"}}})
    )
    taskset = make([{"prompt": "?", "answer": answer}], reward=reward, hold_out="none", **options)
    assert (reward_of(taskset, right).total, reward_of(taskset, right).correct) == (1.0, True)
    assert (reward_of(taskset, wrong).total, reward_of(taskset, wrong).correct) == (0.0, False)
    assert (reward_of(taskset, "").low, reward_of(taskset, "").high) == (0.0, 1.0)


def test_a_judge_behind_a_server(make):
    asked = []

    class Server(BaseHTTPRequestHandler):
        def do_POST(self):
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            asked.append(
                (
                    self.path,
                    self.headers["Authorization"],
                    body["model"],
                    body["messages"][0]["content"],
                )
            )
            said = (
                "Yes."
                if "to grade: good" in asked[-1][3]
                else "0.25"
                if "to grade: half" in asked[-1][3]
                else "hmm"
            )
            reply = json.dumps({"choices": [{"message": {"content": said}}]}).encode()
            self.send_response(200)
            self.end_headers()
            self.wfile.write(reply)

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Server)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    judge = {
        "url": f"http://127.0.0.1:{server.server_port}/v1",
        "model": "m",
        "key": "KEY_FOR_TESTS",
    }
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("KEY_FOR_TESTS", "secret")
        taskset = make(**COLUMNS, reward="judge", judge=judge, hold_out="none")
        assert [reward_of(taskset, said).total for said in ("good", "good", "half")] == [
            1.0,
            1.0,
            0.25,
        ]
        assert len(asked) == 2  # each question once
        assert asked[0][:3] == ("/v1/chat/completions", "Bearer secret", "m")
        with pytest.raises(TasksetError, match="replied 'hmm'"):
            reward_of(taskset, "bad")
    server.shutdown()
    server.server_close()
    with pytest.raises(TasksetError, match="gave no grade"):
        reward_of(taskset, "worse")


async def waits(completion, answer, level):
    await asyncio.sleep(0)
    return float(level)


FUNCTIONS = {
    "number": lambda prompt, completion, answer, **row: len(completion) + row["level"] * 0,
    "parts": lambda completion, **_: {"correct": "right" in completion, "long": 0.5},
    "trl": lambda prompts, completions, solution, **kwargs: [float(completions[0] in solution[0])],
    "waits": waits,
    "silent": lambda completion: None,
    "nan": lambda completion: math.nan,
}


@pytest.mark.parametrize(
    ("rewards", "weights", "said", "total", "correct", "parts"),
    [
        ("number", [], "abc", 3.0, True, {"number": 3.0}),
        ("parts", [], "right", 1.5, True, {"correct": 1.0, "long": 0.5}),
        ("parts", [], "wrong", 0.5, False, {"correct": 0.0, "long": 0.5}),
        ("trl", [], "It is", 1.0, True, {"trl": 1.0}),
        (
            ["number", "parts"],
            [2, 0.5],
            "abc",
            6.25,
            False,
            {"number": 3.0, "parts-correct": 0.0, "parts-long": 0.5},
        ),
        (["silent", "number"], [], "a", 1.0, True, {"number": 1.0}),
    ],
)
def test_functions_of_ones_own(make, rewards, weights, said, total, correct, parts):
    names = [rewards] if isinstance(rewards, str) else rewards
    taskset = make(
        **COLUMNS, reward=[f"mine:{n}" for n in names], weights=weights, functions=FUNCTIONS
    )
    reward = reward_of(taskset, said)
    assert (reward.total, reward.correct, {p.name: p.value for p in reward.parts}) == (
        total,
        correct,
        parts,
    )
    assert math.isnan(reward.low + reward.high)
    assert any("bounds are unknown" in note for note in taskset.notes)


def test_async_functions_bounds_and_what_cannot_be_told(make):
    taskset = make(**COLUMNS, reward="mine:waits", bounds=[0, 2], functions=FUNCTIONS)
    by_level = {t.data["row"]["level"]: reward_of(taskset, "x", t) for t in taskset.train(30)}
    assert {level: (r.total, r.low, r.high, r.correct) for level, r in by_level.items()} == {
        0: (0, 0, 2, False), 1: (1, 0, 2, False), 2: (2, 0, 2, True)
    }  # fmt: skip
    with pytest.raises(rewards.Undecided):
        reward_of(make(**COLUMNS, reward="mine:silent", functions=FUNCTIONS), "x")
    with pytest.raises(TasksetError, match="mine:nan returned nan"):
        reward_of(make(**COLUMNS, reward="mine:nan", functions=FUNCTIONS), "x")


def test_the_first_reward_decides_and_bounds_hold(make):
    functions = {
        "right": lambda completion, answer: float(completion == answer),
        "short": lambda completion: -0.1,
    }
    both = {"reward": ["mine:right", "mine:short"], "functions": functions}
    taskset = make(**COLUMNS, **both)
    task = taskset.train(1)[0]
    assert reward_of(taskset, task.answer, task).correct  # 0.9 in all
    assert not reward_of(taskset, "no", task).correct
    with pytest.raises(TasksetError, match=r"short returned -0.1, outside tasks.bounds = \[0, 1\]"):
        reward_of(make(**COLUMNS, **both, bounds=[0, 1]), "x")


def test_trl_gets_conversations_as_they_came(make):
    seen = {}

    def trl(prompts, completions, level, log_metric, **kwargs):
        seen.update(prompts=prompts, completions=completions, level=level, others=sorted(kwargs))
        return [0.5]

    talk = [{"role": "user", "content": "hi"}]
    row = {"prompt": talk, "level": 3, "topic": "x"}
    assert (
        reward_of(
            make([row], reward="mine:trl", hold_out="none", functions={"trl": trl}), "yo"
        ).total
        == 0.5
    )
    assert seen["prompts"] == [talk]
    assert seen["completions"] == [[{"role": "assistant", "content": "yo"}]]
    assert (seen["level"], seen["others"]) == ([3], ["log_extra", "topic", "trainer_state"])


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"reward": "exakt"}, "There is no reward 'exakt'. Did you mean exact?"),
        ({"reward": []}, "tasks.reward = [] should be a name"),
        ({"reward": "regex"}, "tasks.pattern is missing"),
        ({"reward": "json-schema"}, "tasks.schema is missing"),
        ({"reward": "judge"}, "tasks.judge.model is missing"),
        (
            {"reward": ["exact", "number"], "weights": [1]},
            "tasks.weights = [1.0] should have one number for each",
        ),
        ({"bounds": [1, 0]}, "tasks.bounds = [1, 0] should be [low, high]"),
        ({"reward": "nowhere:f"}, "The reward nowhere:f can't be loaded: ModuleNotFoundError"),
        ({"reward": "none.py:f"}, "there is no file none.py"),
        ({"reward": "own.py:rewrad"}, "own.py has no function rewrad. Did you mean reward?"),
        ({"reward": "own.py:odd"}, "takes colour, which no row has"),
        (
            {"reward": "own.py:asks", "answer": "anwser"},
            "takes answer, which no row has. Which column is it?",
        ),
        ({"reward": "__main__:<lambda>"}, "was a function of a script"),
        ({"prompt": "questoin"}, "has no questoin. Did you mean question?"),
        ({"answer": "{x}"}, "has no {x}; each row needs a prompt and an answer"),
        ({"file": ""}, "tasks.file: it is missing"),
        ({"dataset": "a/b"}, "tasks.file: both were given"),
        ({"hold_out": "half"}, "tasks.hold_out = 'half' is not one of"),
    ],
)
def test_options_that_cannot_work(make, tmp_path, options, said):
    (tmp_path / "own.py").write_text(
        "def reward(completion): return 1\ndef odd(completion, colour): return 1\n"
        "def asks(completion, answer): return 1\n"
    )
    with pytest.raises((ConfigError, TasksetError)) as error:
        make(**COLUMNS | options)
    assert said in str(error.value)


def test_validate_takes_gold_from_answers_and_shuffles_them(make):
    good = validate(lambda: make(**COLUMNS, reward="number"), 30, 10)
    assert good.passed, [c for c in good.checks if not c.passed]
    same = [row | {"solution": f"{n} less {n - 7} #### 7"} for n, row in enumerate(ROWS)]
    assert validate(
        lambda: make([*same, *ROWS], **COLUMNS, reward="number", duplicates=1), 30, 10
    ).passed
    wrong = [row | {"solution": f"#### {n}"} for n, row in enumerate(ROWS)]
    lax = validate(
        lambda: make(
            wrong, **COLUMNS, reward="mine:lax", bounds=[0, 1], functions={"lax": lax_reward}
        ),
        30,
        10,
    )
    assert {c.name for c in lax.checks if not c.passed} >= {
        "corrupted answers stay below it",
        "cheaters stay below it",
    }


def lax_reward(completion, answer):
    return float(bool(completion.strip()))


@pytest.mark.parametrize(("function", "passed"), [("fair", True), ("blind", False)])
def test_validate_compares_where_bounds_are_unknown(make, function, passed):
    functions = {
        "fair": lambda completion, answer: 5.0 * (completion == answer),
        "blind": lambda completion, **_: 1.0,
    }
    report = validate(
        lambda: make(**COLUMNS, reward=f"mine:{function}", functions=functions), 30, 10
    )
    named = {c.name: c for c in report.checks}
    assert named["no corrupted answer earns as much as gold"].passed is passed
    assert "unknown bounds" in named["rewards keep their bounds"].figure


def test_rows_without_answers_are_not_judged_by_gold(make):
    rows = [{"prompt": f"Write about {n}."} for n in range(40)]
    report = validate(
        lambda: make(rows, reward="mine:f", functions={"f": lambda completion: len(completion)}),
        30,
        10,
    )
    assert report.passed
    assert (
        "not judged" in {c.name: c.figure for c in report.checks}["gold answers reach the maximum"]
    )


def test_a_module_in_the_current_folder_and_a_file_beside_the_recipe(make, tmp_path, monkeypatch):
    make(**COLUMNS)
    (tmp_path / "my_rewards.py").write_text("def f(completion): return 1.0\n")
    monkeypatch.delitem(sys.modules, "my_rewards", raising=False)
    assert reward_of(make(**COLUMNS, reward="my_rewards:f"), "x").total == 1.0
    recipe = tmp_path / "recipe.toml"
    recipe.write_text(
        '[tasks]\nname = "data"\nfile = "rows.jsonl"\nreward = ["my_rewards.py:f"]\nprompt = "question"\n'
    )
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "my_rewards.py").write_text("another recipe's")  # the recipe's own comes first
    monkeypatch.chdir(elsewhere)
    (tmp_path / "beside_rewards.py").write_text("ONE = 1.0\n")
    (tmp_path / "my_rewards.py").write_text(
        "from beside_rewards import ONE\ndef f(completion): return ONE\n"
    )
    config = load_config(recipe)
    assert config.tasks.options["file"] == str(tmp_path / "rows.jsonl")
    assert config.tasks.options["reward"] == [f"{tmp_path / 'my_rewards.py'}:f"]
    assert config.eval.name == "data"
    assert len(make_heldout(config).tasks) == 10  # taken over from [tasks]


def test_a_broken_module_says_so(make, tmp_path):
    (tmp_path / "own.py").write_text("1 / 0")
    with pytest.raises(TasksetError, match=r"own\.py:f can't be loaded: ZeroDivisionError"):
        make(**COLUMNS, reward="own.py:f")
    assert not [
        name
        for name, module in sys.modules.items()
        if isinstance(module, types.ModuleType) and "own.py" in name
    ]


OWN = {
    "whole": 3, "decimal": 2.5, "whole as decimal": 4.0, "truth": True, "nothing": None, "texts": ["3", "three"],
    "nested": {"a": [1, 2], "b": {"c": None}},
}  # fmt: skip
DATED = {"when": datetime(2024, 5, 6, 7, 8), "price": Decimal("1.50"), "raw": b"\x00\xff"}


def write_rows(kind, rows, folder):
    """Write rows as one kind of source; return the options that name it."""
    file = folder / f"own.{kind}"
    if kind == "memory":
        suffix, content = serialize_rows(rows)
        file = folder / f"own{suffix}"
        file.write_bytes(content)
    elif kind == "parquet":
        pq.write_table(pa.Table.from_pylist(rows), file)
    elif kind == "jsonl":
        file.write_text("\n".join(map(json.dumps, rows)))
    elif kind == "json":
        file.write_text(json.dumps(rows))
    else:
        (folder / "hub").mkdir()
        pq.write_table(pa.Table.from_pylist(rows), folder / "hub" / "train.parquet")
        return {"dataset": str(folder / "hub")}
    return {"file": str(file)}


@pytest.mark.parametrize("kind", ["memory", "jsonl", "json", "parquet", "dataset"])
def test_functions_get_the_rows_own_values(kind, tmp_path):
    seen = []
    functions = {
        "mine:ours": lambda completion, answer, **row: seen.append((answer, row)) or 1.0,
        "mine:trl": lambda completions, answer, **columns: (
            seen.append((answer[0], columns)) or [1.0]
        ),
    }
    dates = DATED if kind in ("memory", "parquet", "dataset") else {}
    rows = [{"prompt": f"{n}?", "answer": n + 1, **OWN, **dates} for n in range(8)]
    with register_functions(functions):
        taskset = make_taskset(
            "data", {**write_rows(kind, rows, tmp_path), "reward": list(functions)}, 0
        )
    for task in taskset.train(99):
        reward_of(taskset, "x", task)
    assert len(seen) == 2 * 6
    for (answer, row), (answer_in_trl, columns) in zip(seen[::2], seen[1::2], strict=True):
        n = int(row["prompt"][:-1])
        assert (answer, answer_in_trl, type(answer)) == (n + 1, n + 1, int)
        for name, value in {**OWN, **dates}.items():
            assert (row[name], type(row[name])) == (value, type(value))
            assert columns[name] == [value]
    assert {task.answer for task in taskset.train(99)} <= {str(n + 1) for n in range(8)}


def test_functions_of_both_signatures_get_the_answer_that_the_config_names(tmp_path):
    seen = []
    functions = {
        "mine:ours": lambda completion, answer: seen.append(answer) or 1.0,
        "mine:trl": lambda completions, answer: seen.append(answer[0]) or [1.0],
        "mine:every": lambda completions, **columns: seen.append(columns["answer"][0]) or [1.0],
    }
    source = write_rows("memory", [{"prompt": "?", "answer": "thus 5", "gold": 5}], tmp_path)
    options = {**source, "answer": "gold", "reward": list(functions), "hold_out": "none"}
    with register_functions(functions):
        taskset = make_taskset("data", options, 0)
        reward_of(taskset, "5")
    assert seen == [5, 5, 5]


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        (3, "3"), (2.5, "2.5"), (4.0, "4"), (True, "true"), (["3", "three"], '["3", "three"]'), ({"a": 1}, '{"a": 1}'),
        (np.int64(3), "3"), (np.float32(2.5), "2.5"), (np.bool_(True), "true"), (np.array([1, 2]), "[1, 2]"),
        (datetime(2024, 5, 6), "2024-05-06 00:00:00"), (Decimal("1.50"), "1.50"), (None, ""), (math.nan, ""),
    ],
)  # fmt: skip
def test_an_answer_of_any_type_is_scored_as_it_is_and_recorded_as_text(answer, text, tmp_path):
    seen = []
    functions = {"mine:f": lambda completion, answer: seen.append(answer) or 1.0}
    rows = [{"prompt": "first?", "answer": "first"}] if answer is None else []
    source = write_rows("memory", [{"prompt": "?", "answer": answer}, *rows], tmp_path)
    with register_functions(functions):
        taskset = make_taskset("data", {**source, "reward": "mine:f", "hold_out": "none"}, 0)
    task = next(task for task in taskset.train(9) if task.messages[0].content == "?")
    assert task.answer == text
    reward_of(taskset, "x", task)
    own = answer.tolist() if hasattr(answer, "tolist") else answer
    assert (repr(seen[0]), type(seen[0])) == (repr(own), type(own))
    assert bool(known_gold(taskset, task)) is bool(text)


def test_a_function_may_change_what_it_gets(tmp_path):
    functions = {"mine:f": lambda completions, answer: [float(answer[0].pop() == completions[0])]}
    source = write_rows("memory", [{"prompt": "?", "answer": ["a", "b"]}], tmp_path)
    with register_functions(functions):
        taskset = make_taskset("data", {**source, "reward": "mine:f", "hold_out": "none"}, 0)
    assert [reward_of(taskset, "b").total for _ in range(3)] == [1.0, 1.0, 1.0]
    # An answer of another column, and a conversation, are the function's own too.
    functions = {"mine:f": lambda completion, answer: float(answer.pop() == completion)}
    source = write_rows("memory", [{"prompt": "?", "gold": ["a", "b"]}], tmp_path)
    with register_functions(functions):
        taskset = make_taskset(
            "data", {**source, "answer": "gold", "reward": "mine:f", "hold_out": "none"}, 0
        )
    assert [reward_of(taskset, "b").total for _ in range(3)] == [1.0, 1.0, 1.0]
    functions = {
        "mine:f": lambda prompts, completions: (
            prompts[0].append(completions[0]) or [float(len(prompts[0]))]
        )
    }
    source = write_rows("memory", [{"prompt": [{"role": "user", "content": "?"}]}], tmp_path)
    with register_functions(functions):
        taskset = make_taskset("data", {**source, "reward": "mine:f", "hold_out": "none"}, 0)
    assert [reward_of(taskset, "b").total for _ in range(3)] == [2.0, 2.0, 2.0]


@pytest.mark.parametrize(
    ("reward", "said"),
    [
        ("exact", "7"),
        ("number", "so 7"),
        ("math", "$7.0$"),
        ("contains", "7 it is"),
        ("partial", "7"),
        ("rich", "7"),
    ],
)
def test_ready_rewards_take_answers_that_are_numbers(make, reward, said):
    taskset = make([{"prompt": "3 + 4?", "answer": 7}], reward=reward, hold_out="none")
    assert (reward_of(taskset, said).total, reward_of(taskset, said).correct) == (1.0, True)


def test_validate_gives_a_function_the_rows_own_answer(make):
    rows = [{"prompt": f"{n} + 1?", "answer": n + 1} for n in range(40)]
    functions = {
        "f": lambda completions, answer: [
            float(c == str(a) and a + 0 == a) for c, a in zip(completions, answer, strict=True)
        ]
    }
    report = validate(
        lambda: make(rows, reward="mine:f", bounds=[0, 1], functions=functions), 30, 10
    )
    assert report.passed, [check for check in report.checks if not check.passed]


@pytest.mark.parametrize("value", [object(), {1, 2}])
def test_what_no_file_keeps_is_refused(value):
    with pytest.raises(
        TasksetError, match=f"is a {type(value).__name__}, which no file of rows can keep"
    ):
        serialize_rows([{"prompt": "?", "answer": value}])
