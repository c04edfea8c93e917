"""`uptrend eval` and `uptrend models`: figures by family and part, rollouts that are written, and
what is refused.
"""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from models import make_policy, write_model
from synthetic import evaluation_of, rollout_of
from uptrend.cli.evaluate import break_down, example_row, print_scored
from uptrend.config import Learning
from uptrend.policy.checkpoint import save_checkpoint
from uptrend.policy.optimizer import Optimizer
from uptrend.records import Ending, Message, Part, Reward, Rollout, ToolCall
from uptrend.runner.evaluation import Scored, find_tasks
from uptrend.stats.intervals import wilson
from uptrend.tasksets.musique.atlas import AtlasOptions, rows

Uptrend = Callable[..., Any]
SHORT = (
    "--set",
    "eval.retriever=golden",
    "--set",
    "sampling.max_tokens=4",
    "--set",
    "sampling.max_turns=2",
)


def rollout(family: str, total: float | None, exact: float = 0.0, f1: float = 0.0) -> Rollout:
    """A rollout whose reward has two parts; without a total, one that could not be scored."""
    parts = (Part("exact_match", exact, 0.0, 1.0), Part("f1", f1, 0.0, 1.0))
    reward = None if total is None else Reward(total, 0.0, 1.0, bool(exact), parts)
    return replace(
        rollout_of(0),
        family=family,
        reward=reward,
        error=None if reward else "score: RuntimeError()",
    )


HAND = [
    rollout("2hop", 1.0, 1.0, 1.0),
    rollout("2hop", 0.5, 0.0, 0.5),
    rollout("2hop", 0.0, 0.0, 0.0),
    rollout("3hop", 0.5, 1.0, 1.0),
    rollout("3hop", None),
]


def mean(value: float, low: float, high: float) -> Any:
    return pytest.approx({"mean": value, "low": low, "high": high})


def test_figures_by_hand(capsys: pytest.CaptureFixture[str]) -> None:
    rows = break_down(HAND)
    assert [(row["family"], row["tasks"], row["failed"]) for row in rows] == [
        ("2hop", 3, 0),
        ("3hop", 2, 1),
        ("all", 5, 1),
    ]
    two, three, everything = rows
    assert two["reward"]["mean"] == pytest.approx(0.5)
    assert two["parts"]["exact_match"] == mean(1 / 3, *wilson(1, 3))
    assert two["parts"]["f1"] == mean(0.5, 0.0, 1.0)  # 1 draw in 27 is all of the least
    assert three["correct"] == mean(0.5, *wilson(1, 2))  # what could not be scored is not correct
    assert three["parts"]["exact_match"] == mean(1.0, *wilson(1, 1))  # and has no parts
    assert three["parts"]["f1"] == mean(1.0, 1.0, 1.0)  # no fraction, as it is one half elsewhere
    assert everything["correct"] == mean(0.4, *wilson(2, 5))
    failed, _ = break_down([rollout("2hop", None)])
    assert (failed["failed"], failed["reward"], failed["parts"]) == (1, None, {})
    assert break_down([])[0]["tasks"] == 0
    print_scored(Scored("tiny", replace(evaluation_of(0, 2, 5), failed=1), HAND, [], "", 1.0))
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert lines[1:4] == [
        ["2hop", "3hop", "all"],
        ["tasks", "3", "2", "5"],
        ["not", "scored", "0", "1", "1"],
    ]
    assert lines[6][:4] == ["exact", "match", "0.333", "(0.0615–0.792)"]
    assert lines[-1] == ["1", "could", "not", "be", "scored"]


def test_an_example_has_the_whole_conversation() -> None:
    said = (
        Message("system", "Look it up."),
        Message("user", "Who?"),
        Message("assistant", "", (ToolCall("search", {"query": "who"}),)),
        Message("tool", "Nobody."),
        Message("assistant", "<oops", problem="not closed"),
        Message("user", "Try again."),
        Message("assistant", "Nobody"),
    )
    shown = example_row(replace(HAND[1], messages=said, answer="Somebody", ended=Ending.TURN_LIMIT))
    messages, calls = shown.pop("messages"), [{"name": "search", "arguments": {"query": "who"}}]
    assert shown == {
        "task": "t0", "family": "2hop", "attempt": None, "question": "Who?", "answer": "Somebody", "said": "Nobody",
        "correct": False, "reward": 0.5, "parts": {"exact_match": 0.0, "f1": 0.5}, "ended": "turn-limit",
        "error": None, "turns": 3, "calls": calls,
    }  # fmt: skip
    assert messages[2] == {"role": "assistant", "content": "", "calls": tuple(calls)}
    assert messages[4] == {"role": "assistant", "content": "<oops", "problem": "not closed"}
    failed = example_row(HAND[4], attempt=3)
    assert (failed["reward"], failed["parts"], failed["attempt"]) == (None, {}, 3)


@pytest.fixture
def questions(tmp_path: Path) -> Path:
    """Three invented questions in MuSiQue's schema, one of each number of hops."""
    path = tmp_path / "questions.jsonl"
    made = [
        next(iter(rows(1, hops, AtlasOptions(hops=(hops,), paragraphs=6)))) for hops in (2, 3, 4)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in made))
    return path


@pytest.fixture
def problems(tmp_path: Path) -> Path:
    """Ten questions that tiny was never taught: none of them is an arithmetic task."""
    path = tmp_path / "problems.jsonl"
    path.write_text(
        "\n".join(
            json.dumps({"prompt": f"Calculate: {n} + {n} = ?", "answer": 2 * n}) for n in range(10)
        )
    )
    return path


def test_a_model_on_a_file(
    tiny_folder: str, problems: Path, tmp_path: Path, uptrend: Uptrend
) -> None:
    out = tmp_path / "said.parquet"
    options = ("--set", "compute.threads=1", "--attempts", 2, "--json", "--out", out)
    found = uptrend("eval", tiny_folder, "--tasks", problems, *options).json
    assert (found["target"], found["tasks"], found["failed"]) == (tiny_folder, 10, 0)
    assert found["accuracy"] == found["correct"] / 10
    assert found["pass_at"]["1"] <= found["pass_at"]["2"]
    table = pq.read_table(out)
    assert len(table) == 10 + 20
    assert sum(table["correct"].to_pylist()[:10]) == found["correct"]
    (tmp_path / "folder.jsonl").mkdir()
    options = ("--set", "eval.tasks=2", "--out", tmp_path / "folder.jsonl")
    assert (
        "can't be written: Is a directory"
        in uptrend("eval", tiny_folder, "--tasks", problems, *options, code=2).err
    )


def test_tasks_are_not_written_over(tiny_folder: str, problems: Path, uptrend: Uptrend) -> None:
    before = problems.read_bytes()
    error = uptrend("eval", tiny_folder, "--tasks", problems, "--out", problems, code=2).err
    assert "is the file of the tasks. Choose another one: it would be overwritten." in error
    assert problems.read_bytes() == before


def test_the_figures_for_people(
    llama_folder: Path,
    questions: Path,
    tmp_path: Path,
    uptrend: Uptrend,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    printed = uptrend("eval", llama_folder, "--tasks", "arithmetic", "--set", "eval.tasks=40")
    first, family = printed.out.splitlines()
    assert "of 40 held-out tasks (95% interval" in first
    assert family.split()[0] == "arithmetic"
    assert printed.err == ""
    recipe = tmp_path / "recipe.toml"
    recipe.write_text(
        f'[eval]\nname = "musique"\nfile = "{questions}"\nsplit = "heldout"\ntasks = 2\n'
    )
    printed = uptrend("eval", llama_folder, "--tasks", recipe, *SHORT)
    assert printed.out.splitlines()[2].split() == ["tasks", "1", "1", "2"]
    out = tmp_path / "answers.jsonl"
    printed = uptrend(
        "eval", llama_folder, "--tasks", questions, *SHORT, "--out", out, "--json", "--attempts", 2
    )
    assert [(row["family"], row["tasks"]) for row in printed.json["breakdown"]] == [
        ("2hop", 1), ("3hop", 1), ("4hop", 1), ("all", 3),
    ]  # fmt: skip
    assert printed.json["breakdown"][-1]["parts"]["f1"].keys() == {"mean", "low", "high"}
    assert "sampling.context = 4096" in printed.err
    examples = [json.loads(line) for line in out.read_text().splitlines()]
    assert [line["attempt"] for line in examples] == [None] * 3 + [0, 1] * 3
    asked = {
        json.loads(line)["question"]: json.loads(line)["answer"]
        for line in questions.read_text().splitlines()
    }
    assert {line["question"]: line["answer"] for line in examples} == asked
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    counted = uptrend(
        "eval", llama_folder, "--tasks", "arithmetic", "--set", "eval.tasks=3", "--attempts", 2
    )
    assert "9/9" in counted.err


def test_an_adapter_can_be_evaluated(llama_folder: Path, tmp_path: Path, uptrend: Uptrend) -> None:
    policy = make_policy(llama_folder, lora=True)
    place = save_checkpoint(tmp_path, policy, Optimizer(policy.flat, Learning()), {"step": 1}, 1)
    found = uptrend(
        "eval", place / "adapter", "--tasks", "arithmetic", "--set", "eval.tasks=5", "--json"
    ).json
    assert found["tasks"] == 5


def test_a_run_keeps_its_options_and_low_limits_are_raised(
    make_run: Callable[..., Path], questions: Path, problems: Path
) -> None:
    expected = [
        f'eval.file="{questions}"',
        'eval.datasets=""',
        'eval.split="heldout"',
        "eval.tasks=3",
        "seed=1",
    ]
    limits = ["sampling.max_tokens=256", "sampling.max_turns=8", "sampling.context=4096"]
    notes: list[str] = []
    musique = str(
        make_run("musique", steps=1, overrides=("eval.name=musique", "eval.retriever=golden"))
    )
    assert find_tasks(musique, str(questions), ["seed=1"], notes.append) == (None, expected)
    assert find_tasks(musique, "musique", [], notes.append) == ("musique", [])
    other = str(make_run("other", steps=1))
    assert find_tasks(other, str(questions), ["seed=1"]) == ("musique", [*limits, *expected])
    roomy = str(make_run("roomy", steps=1, overrides=("sampling.context=8192",)))
    for tasks in (None, "arithmetic", "comparison", str(problems)):
        assert find_tasks(roomy, tasks, [], notes.append) == (tasks, [])
    assert notes == []
    assert find_tasks(roomy, "musique", [], notes.append) == (
        "musique",
        limits[:2],
    )  # its larger context is kept
    assert "sampling.max_tokens = 256, sampling.max_turns = 8" in notes[0]
    chosen = ["eval.name=musique", "sampling.max_turns=2"]
    assert find_tasks(roomy, None, chosen) == (None, [limits[0], *chosen])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["eval", "nothing"], "There is no model 'nothing'"),
        (["eval", "tiny", "--tasks", "arithmatic"], "Did you mean arithmetic?"),
        (["eval", "tiny", "--tasks", "none.jsonl"], "none.jsonl can't be read"),
        (["eval", "tiny", "--set", "eval.taks=3"], "eval.taks is not a known key"),
        (["eval", "nothing", "--out", "answers.csv"], "answers.csv should end in .jsonl"),
        (["eval", "nothing", "--out", "no/such/folder.parquet"], "folder.parquet can't be written"),
        (["models", "show", "nothing"], "There is no model 'nothing'"),
        (
            ["models", "pull", "gemma3-270m"],
            "if you accept them: uptrend models pull gemma3-270m --accept-terms",
        ),
        (
            ["eval", "gemma3-270m"],
            "Gemma is provided under and subject to the Gemma Terms of Use found at ai.google",
        ),
        (["models", "pull", "tiny", "--gguf", "x.gguf"], "--gguf is for smollm2-135m, gemma3-270m"),
    ],
)
def test_bad_input_is_one_sentence(
    uptrend: Uptrend,
    arguments: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("UPTREND_HOME", str(tmp_path))
    assert message in uptrend(*arguments, code=2).err


def test_models(
    tiny_folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, uptrend: Uptrend
) -> None:
    shown = uptrend("models", "show", "tiny", "--json").json
    assert shown["folder"] == tiny_folder
    assert (shown["type"], shown["layers"], shown["hidden"], shown["end of turn"]) == (
        "llama",
        5,
        128,
        "<end>",
    )
    assert shown["chat template"] is True
    assert 1_900_000 < shown["bytes"] < 2_100_000
    assert "qwen3" in uptrend("models", "show", write_model(tmp_path / "model", "qwen3")).out
    assert uptrend("models", "pull", "tiny").out.strip() == tiny_folder
    monkeypatch.setenv("UPTREND_HOME", str(tmp_path))
    listed = uptrend("models", "list", "--json").json
    assert listed["home"] == str(tmp_path)
    assert {"name", "parameters", "source", "license", "terms", "download", "cached"} <= set(
        listed["models"][0]
    )
    cached = {model["name"]: model["cached"] for model in listed["models"]}
    assert cached == {"smollm2-135m": [], "gemma3-270m": [], "tiny": [tiny_folder]}
    pulled = tmp_path / "models" / "smollm2-135m"
    pulled.mkdir(parents=True)
    assert uptrend("models", "list", "--json").json["models"][0]["cached"] == [str(pulled)]
    assert "Apache-2.0" in uptrend("models", "list").out
