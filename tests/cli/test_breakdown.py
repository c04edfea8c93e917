"""Figures by family and part, by hand and against scipy; and how `uptrend eval` tells and writes them."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from synthetic import rollout_of
from uptrend.cli.breakdown import Breakdown, Mean, break_down, breakdown_table, has_parts
from uptrend.cli.console import terminal
from uptrend.cli.examples import example
from uptrend.cli.main import main
from uptrend.records import Ending, Message, Part, Reward, Rollout, ToolCall
from uptrend.runner.evaluation import find_tasks
from uptrend.stats.intervals import wilson
from uptrend.tasks.musique.atlas import AtlasOptions, rows

Say = Callable[..., tuple[str, str]]


def rollout(family: str, total: float | None, exact: float = 0.0, f1: float = 0.0) -> Rollout:
    """A rollout whose reward has two parts; without a total, one that could not be scored."""
    parts = (Part("exact_match", exact, 0.0, 1.0), Part("f1", f1, 0.0, 1.0))
    reward = None if total is None else Reward(total, 0.0, 1.0, bool(exact), parts)
    return replace(rollout_of(0), family=family, reward=reward, error=None if reward else "score: RuntimeError()")


HAND = [
    rollout("2hop", 1.0, 1.0, 1.0),
    rollout("2hop", 0.5, 0.0, 0.5),
    rollout("2hop", 0.0, 0.0, 0.0),
    rollout("3hop", 0.5, 1.0, 1.0),
    rollout("3hop", None),
]


def test_rows_by_hand() -> None:
    two, three, everything = break_down(HAND)
    assert (two.family, two.tasks, two.failed) == ("2hop", 3, 0)
    assert (three.family, three.tasks, three.failed) == ("3hop", 2, 1)
    assert (everything.family, everything.tasks, everything.failed) == ("all", 5, 1)
    assert two.reward is not None
    assert two.reward.mean == pytest.approx(0.5)
    assert two.parts["exact_match"] == Mean(pytest.approx(1 / 3), *wilson(1, 3))
    assert two.parts["f1"].mean == pytest.approx(0.5)
    assert (two.parts["f1"].low, two.parts["f1"].high) == (0.0, 1.0)  # 1 draw in 27 is all of the least
    assert three.correct == Mean(0.5, *wilson(1, 2))  # what could not be scored is not correct
    assert three.parts["exact_match"] == Mean(1.0, *wilson(1, 1))  # and has no parts
    assert everything.correct == Mean(0.4, *wilson(2, 5))
    assert everything.parts["exact_match"] == Mean(0.5, *wilson(2, 4))


def test_a_part_has_one_kind_of_interval_in_all_rows() -> None:
    # In 3hop f1 happens to be 1 alone: still no fraction, as it is one half elsewhere.
    _, three, _ = break_down(HAND)
    assert three.parts["f1"] == Mean(1.0, 1.0, 1.0)


def test_where_nothing_was_scored() -> None:
    row, everything = break_down([rollout("2hop", None), rollout("2hop", None)])
    assert (row.tasks, row.failed, row.reward, row.parts) == (2, 2, None, {})
    assert everything.correct == Mean(0.0, *wilson(0, 2))
    assert not has_parts([row, everything])
    assert json.loads(json.dumps(row.plain()))["reward"] is None


def test_the_table_has_a_column_a_family(capsys: pytest.CaptureFixture[str]) -> None:
    terminal().print(breakdown_table(break_down(HAND)))
    said = capsys.readouterr().out.splitlines()
    assert said[0].split() == ["2hop", "3hop", "all"]
    assert [line.split("  ")[0] for line in said[1:]] == [
        "tasks",
        "not scored",
        "correct",
        "reward",
        "exact match",
        "f1",
    ]
    assert said[1].split() == ["tasks", "3", "2", "5"]
    assert "0.333 (0.0615–0.792)" in said[5]


def test_one_part_is_nothing_to_break_down() -> None:
    assert not has_parts(break_down([rollout_of(0)]))
    assert has_parts(break_down(HAND))
    assert isinstance(break_down([])[0], Breakdown)


def test_an_example_tells_all() -> None:
    said = (
        Message("system", "Look it up."),
        Message("user", "Who?"),
        Message("assistant", "", (ToolCall("search", {"query": "who"}),)),
        Message("tool", "Nobody."),
        Message("assistant", "<oops", problem="not closed"),
        Message("user", "Try again."),
        Message("assistant", "Nobody"),
    )
    told = example(replace(HAND[1], messages=said, answer="Somebody", ended=Ending.TURN_LIMIT))
    messages = told.pop("messages")
    assert told == {
        "task": "t0", "family": "2hop", "attempt": None, "question": "Who?", "answer": "Somebody", "said": "Nobody",
        "correct": False, "reward": 0.5, "parts": {"exact_match": 0.0, "f1": 0.5}, "ended": "turn-limit",
        "error": None, "turns": 3, "calls": [{"name": "search", "arguments": {"query": "who"}}],
    }  # fmt: skip
    assert messages[2] == {"role": "assistant", "content": "", "calls": told["calls"]}
    assert messages[4] == {"role": "assistant", "content": "<oops", "problem": "not closed"}
    assert example(HAND[4], attempt=3)["attempt"] == 3
    assert (example(HAND[4])["reward"], example(HAND[4])["parts"]) == (None, {})


@pytest.fixture
def say(capsys: pytest.CaptureFixture[str]) -> Say:
    """What a command prints, to stdout and to stderr."""

    def run(*arguments: object, code: int = 0) -> tuple[str, str]:
        capsys.readouterr()
        with pytest.raises(SystemExit) as end:
            main([str(a) for a in arguments])
        said = capsys.readouterr()
        assert end.value.code == code, said.err
        return said.out, said.err

    return run


@pytest.fixture
def questions(tmp_path: Path) -> Path:
    """Three invented questions in MuSiQue's schema, one of each number of hops."""
    path = tmp_path / "questions.jsonl"
    made = [next(iter(rows(1, hops, AtlasOptions(hops=(hops,), paragraphs=6)))) for hops in (2, 3, 4)]
    path.write_text("".join(json.dumps(row) + "\n" for row in made))
    return path


@pytest.fixture
def problems(tmp_path: Path) -> Path:
    """A file of prompts and answers."""
    path = tmp_path / "problems.jsonl"
    path.write_text('{"prompt": "1 + 1 = ", "answer": 2}\n')
    return path


SHORT = ("--set", "eval.retriever=golden", "--set", "sampling.max_tokens=4", "--set", "sampling.max_turns=2")


@pytest.mark.slow
def test_a_file_of_musique_by_hops(tiny_folder: str, questions: Path, tmp_path: Path, say: Say) -> None:
    out = tmp_path / "answers.jsonl"
    told, heard = say("eval", tiny_folder, "--tasks", questions, *SHORT, "--out", out, "--json", "--attempts", 2)
    found: dict[str, Any] = json.loads(told)
    assert [(row["family"], row["tasks"]) for row in found["breakdown"]] == [
        ("2hop", 1), ("3hop", 1), ("4hop", 1), ("all", 3),
    ]  # fmt: skip
    assert found["breakdown"][-1]["parts"]["f1"].keys() == {"mean", "low", "high"}
    assert heard == "musique is played with sampling.context = 4096; --set changes them.\n"
    examples = [json.loads(line) for line in out.read_text().splitlines()]
    assert [line["attempt"] for line in examples] == [None] * 3 + [0, 1] * 3
    asked = {json.loads(line)["question"]: json.loads(line)["answer"] for line in questions.read_text().splitlines()}
    assert {line["question"]: line["answer"] for line in examples} == asked
    assert all(line["turns"] == 2 and line["parts"].keys() >= {"exact_match", "f1"} for line in examples)
    assert [m["role"] for m in examples[0]["messages"]][:3] == ["system", "user", "assistant"]


def test_the_table_for_people(tiny_folder: str, questions: Path, tmp_path: Path, say: Say) -> None:
    out = tmp_path / "answers.parquet"
    told, _ = say("eval", tiny_folder, "--tasks", questions, *SHORT, "--set", "eval.tasks=2", "--out", out)
    first, header, tasks, *_ = told.splitlines()
    assert "of 2 held-out tasks" in first
    assert header.split()[-1] == "all"
    assert tasks.split() == ["tasks", "1", "1", "2"]
    assert len(pq.read_table(out)) == 2


def test_limits_are_for_those_that_were_given_none(tiny_folder: str, tmp_path: Path, say: Say) -> None:
    recipe = tmp_path / "recipe.toml"
    recipe.write_text('[eval]\nname = "musique"\ntasks = 1\n')
    _, heard = say("eval", tiny_folder, "--tasks", recipe, *SHORT[:2], "--set", "sampling.max_turns=1")
    assert heard == "musique is played with sampling.max_tokens = 128, sampling.context = 4096; --set changes them.\n"
    _, heard = say("eval", tiny_folder, "--tasks", "arithmetic", "--set", "eval.tasks=2")
    assert heard == ""


def test_the_bar_counts_to_the_end(llama_folder: Path, say: Say, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    _, heard = say("eval", llama_folder, "--tasks", "arithmetic", "--set", "eval.tasks=3", "--attempts", 2)
    assert "9/9" in heard


def test_a_run_keeps_its_own_retriever_on_another_file(make_run: Callable[..., Path], questions: Path) -> None:
    of_musique = make_run("musique", steps=1, overrides=("eval.name=musique", "eval.retriever=golden"))
    expected = [f'eval.file="{questions}"', 'eval.datasets=""', 'eval.split="heldout"', "eval.tasks=3", "seed=1"]
    assert find_tasks(str(of_musique), str(questions), ["seed=1"]) == (None, expected)
    of_arithmetic = make_run("arithmetic", steps=1)
    limits = ["sampling.max_tokens=128", "sampling.max_turns=8", "sampling.context=4096"]
    assert find_tasks(str(of_arithmetic), str(questions), ["seed=1"]) == ("musique", [*limits, *expected])


def test_limits_are_for_runs_of_other_tasks_too(make_run: Callable[..., Path], problems: Path) -> None:
    run = str(make_run("arithmetic", steps=1, overrides=("sampling.context=8192",)))
    limits = ["sampling.max_tokens=128", "sampling.max_turns=8"]  # what the run has more of, it keeps
    notes: list[str] = []
    assert find_tasks(run, "musique", [], notes.append) == ("musique", limits)
    assert notes == ["musique is played with sampling.max_tokens = 128, sampling.max_turns = 8; --set changes them."]
    chosen = ["eval.name=musique", "sampling.max_turns=2"]
    assert find_tasks(run, None, chosen) == (None, [limits[0], *chosen])
    for other in (None, "arithmetic", "comparison", str(problems)):
        assert find_tasks(run, other, [], notes.append) == (other, [])
    own = str(make_run("musique", steps=1, overrides=("eval.name=musique",)))
    assert find_tasks(own, "musique", [], notes.append) == ("musique", [])
    assert len(notes) == 1


@pytest.mark.parametrize("name", ["answers.csv", "answers"])
def test_another_ending_is_a_sentence(name: str, say: Say) -> None:
    _, heard = say("eval", "nothing", "--out", name, code=2)  # before anything is loaded
    assert f"{name} should end in .jsonl" in heard
    assert "or in .parquet" in heard
