"""`uptrend rollouts`, and a rollout of many commands as `uptrend runs show` prints it."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shells import Shells
from synthetic import info_of, rollout_of
from uptrend.records import Ending, Executed, Message, Reward, Run, RunDirectory, rollouts_table
from uptrend.runner.runs import train_recipe

Uptrend = Callable[..., Any]
TABLE = {"name": "shells:Shells", "train": 12, "raises": 2, "sandbox_fails": 1}


@pytest.fixture(scope="module")
def run(llama_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A run of two steps; some of its rollouts failed in the task, some sandboxes did, and long
    ones were penalized.
    """
    recipe = {
        "name": "shells", "model": {"name": str(llama_folder)}, "tasks": TABLE,
        "eval": {"name": "shells:Shells", "tasks": 3, "every": 1, "attempts": 2},
        "sampling": {"groups": 4, "size": 2, "max_tokens": 6, "max_turns": 4, "overlong": 20},
        "learning": {"steps": 2}, "compute": {"threads": 1},
    }  # fmt: skip
    return train_recipe(recipe, runs=tmp_path_factory.mktemp("runs"))


def test_rollouts_come_out_the_same(run: Run, uptrend: Uptrend) -> None:
    rows = run.rollouts().to_pylist()
    assert {row["error"] for row in rows} == {None, "respond: KeyError('no file')"}
    assert any(
        part["name"] == "overlong" and part["value"] < 0 for row in rows for part in row["parts"]
    )
    for step in (1, 2):
        assert (
            uptrend("rollouts", "verify", run.path, "--step", step).out
            == "8 of 8 rollouts came out the same.\n"
        )
    assert (
        uptrend("rollouts", "verify", run.path, "--rollout", "2/1").out
        == "2 of 2 rollouts came out the same.\n"
    )
    replayed = uptrend("rollouts", "verify", run.path, "--step", 2, "--heldout", "--json").json
    assert (replayed["same"], len(replayed["rollouts"])) == (True, 3 + 2 * 3)
    assert {one["turns"] for one in replayed["rollouts"]} == {3}


@pytest.mark.parametrize(
    ("what", "where", "said"),
    [
        ("output", "turn 0", "turn 0, now: user: other "),
        ("reward", "reward", "reward, recorded: {'reward': 0."),
        ("seed", "turn 0", "turn 0, now: user: out "),
    ],
)
def test_what_differs_is_named(
    run: Run, what: str, where: str, said: str, uptrend: Uptrend, monkeypatch: pytest.MonkeyPatch
) -> None:
    if what == "output":
        monkeypatch.setattr(Shells, "word", "other")
    elif what == "reward":
        monkeypatch.setattr("letters.Reward.of", lambda *_: Reward(0.5, 0.0, 1.0, True))
    else:
        monkeypatch.setattr("uptrend.runner.rollouts.derive_open_seed", lambda *_: 5)
    name = next(
        f"1/{r['group']}/{r['index']}"
        for r in run.rollouts(1).to_pylist()
        if r["reward"] is not None
    )
    shown = uptrend("rollouts", "verify", run.path, "--rollout", name, code=1)
    assert said in shown.out
    assert shown.out.endswith("0 of 1 rollout came out the same.\n")
    (one,) = uptrend("rollouts", "verify", run.path, "--rollout", name, "--json", code=1).json[
        "rollouts"
    ]
    assert one["differences"][0]["where"] == where


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "Name what to play again"),
        (("--step", 1, "--rollout", "1/0/0"), "Name what to play again"),
        (("--rollout", "1/9"), "has no group 9"),
        (("--step", 9), "has no rollouts of step 9; it has 1 to 2"),
    ],
)
def test_what_can_not_be_played_again(
    run: Run,
    arguments: tuple[object, ...],
    message: str,
    uptrend: Uptrend,
    make_run: Callable[..., Path],
) -> None:
    assert message in uptrend("rollouts", "verify", run.path, *arguments, code=2).err
    other = make_run("other", steps=1)  # its tasks are not those of its recipe
    assert "gives other tasks now" in uptrend("rollouts", "verify", other, "--step", 1, code=2).err


def test_an_export_can_be_read(run: Run, tmp_path: Path, uptrend: Uptrend) -> None:
    folder = tmp_path / "out"
    said = uptrend("rollouts", "write", run.path, "--to", folder, "--step", 2).out
    assert said == f"Wrote 8 rollouts, index.md and index.json to {folder}\n"
    index = json.loads((folder / "index.json").read_text())
    assert [one["file"] for one in index[:3]] == [
        "000002-0000-00.md",
        "000002-0000-01.md",
        "000002-0001-00.md",
    ]
    assert sorted(path.name for path in folder.iterdir()) == sorted(
        ["index.json", "index.md", *(one["file"] for one in index)]
    )
    whole = next(one for one in index if one["commands"] == 3)
    text = (folder / whole["file"]).read_text()
    row = next(
        r for r in run.rollouts(2).to_pylist() if f"2/{r['group']}/{r['index']}" == whole["rollout"]
    )
    for message in row["messages"]:
        assert message["content"].replace("\x1b", "\\x1b") in text
    assert text.count("## Turn ") == 3
    assert "\x1b" not in text
    assert "stopped by time, score 0." in text
    listed = (folder / "index.md").read_text()
    assert f"| [{whole['rollout']}]({whole['file']}) | {row['family']} {row['task']} | " in listed
    assert (
        "not an empty folder" in uptrend("rollouts", "write", run.path, "--to", folder, code=2).err
    )
    assert (
        "no rollouts of step 9"
        in uptrend("rollouts", "write", run.path, "--to", tmp_path / "a", "--step", 9, code=2).err
    )
    assert not (tmp_path / "a").exists()
    uptrend("rollouts", "write", run.path, "--to", tmp_path / "held", "--heldout")
    assert len(list((tmp_path / "held").glob("eval-*.md"))) == 3 * 9


@pytest.mark.parametrize("width", [60, 80, 120])
def test_a_rollout_of_commands_is_read_from_top_to_bottom(
    tmp_path: Path, width: int, uptrend: Uptrend
) -> None:
    ran = (
        Executed(0, "python baseline.py", 1.5, 1, error=True),
        Executed(1, "validate", 12.0, -9, "memory", 0.875),
        Executed(1, "\x1b[2J", 0.1, 0),
        Executed(
            2, "(automatic submission)", 0.2, 1, error=True, said="There is no submission.csv."
        ),
    )
    prompt = "\n".join(f"line {i} of a long prompt" for i in range(40))
    messages = (
        Message("user", "An example"), Message("assistant", "ls"), Message("user", prompt),
        Message("assistant", "Let us begin.\npython baseline.py"), Message("user", "\x1b[31mno module\x1b[0m\x9b1m"),
        Message("assistant", "validate"),
    )  # fmt: skip
    one = rollout_of(1, "000001-0000")
    turns = replace(one.sequences[0], turns=np.array([0, 0, 0, 1, 1], np.int32))
    folder = tmp_path / "runs" / "demo"
    with RunDirectory.create(folder, info_of("demo")) as directory:
        long = replace(
            one, messages=messages, commands=ran, ended=Ending.TIME_LIMIT, sequences=(turns,)
        )
        directory.step({"step": 1}, rollouts_table("demo", [long]))
    shown = uptrend("runs", "show", folder, "--rollout", "1/0/0", width=width).out
    assert not set(shown) & {"\x1b", "\x9b"}
    assert max(map(len, shown.splitlines())) <= width
    words = " ".join(shown.split())
    places = [
        words.index(part)
        for part in (
            "ended time-limit 0.1 s 4 commands", "user: An example", "assistant: ls", "line 11", "characters: --full",
            "turn 0, assistant: Let us begin. python baseline.py", r"user: \x1b[31mno module\x1b[0m\x9b1m",
            "1.5 s, exit 1, error", "turn 1, assistant: validate", "12 s, exit -9, stopped by memory, score 0.875",
            r"$ \x1b[2J 0.1 s, exit 0", "$ (automatic submission) There is no submission.csv. 0.2 s, exit 1, error",
            "reward 1 correct of 0 to 1 answer 1",
        )
    ]  # fmt: skip
    assert places == sorted(places)
    assert "line 12" not in words
    full = uptrend("runs", "show", folder, "--rollout", "1/0/0", "--full", width=width).flat
    assert "line 39" in full
    assert "0 model 1" in full  # its tokens
