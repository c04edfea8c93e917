"""Wrong files and folders, as somebody names them on the first day: a sentence with what is right,
and exit code 2.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Uptrend = Callable[..., Any]

WRONG: list[tuple[str, str]] = [
    ("train nope.toml", "There is no recipe at nope.toml."),
    ("train empty", "empty is a folder; a recipe is a TOML file."),
    ("train noise.toml", "noise.toml is not a text file; a recipe is TOML."),
    ("train bad.toml", "bad.toml is not TOML: Invalid value (at line 1, column 6)."),
    ("train typo.toml", "learnig.lr is not a known key. Did you mean learning.lr?"),
    ("train blank.toml", "blank.toml is empty: name at least tasks and model."),
    ("preflight blank.toml", "blank.toml is empty: name at least tasks and model."),
    (
        "train train.py",
        "train.py is no recipe, which is TOML; a script or settings of TRL become one by: uptrend convert",
    ),
    (
        "train grpo.json",
        "grpo.json is no recipe, which is TOML; a script or settings of TRL become one by: uptrend co",
    ),
    ("doctor nope", "nope does not exist."),
    (
        "doctor empty",
        "empty holds nothing that is known here: expected is run.json, trainer_state.json, event files,",
    ),
    ("doctor notes", "saved rollouts, or a log as JSON, CSV or text. No metrics in diary.txt."),
    ("doctor noise.log", "noise.log is a binary file of no kind that is known here"),
    ("doctor typo.toml", "typo.toml is a recipe and no log: uptrend preflight typo.toml"),
    ("runs list nope", "nope does not exist."),
    ("runs list noise.log", "noise.log is a file; runs are folders."),
    ("runs list runs/demo", "runs/demo is a run itself: uptrend runs show runs/demo"),
    ("runs show dem", "There is no run at dem or runs/dem. Did you mean demo?"),
    (
        "runs show empty",
        "empty is no run of Uptrend: it has no run.json. Other trainers' logs: uptrend doctor empty",
    ),
    ("plot log.jsonl", "log.jsonl is no run of Uptrend: it has no run.json."),
    (
        "convert nope",
        "nope does not exist: name a training script of TRL (.py), a dumped GRPOConfig (.json), prime-rl's",
    ),
    ("convert empty", "empty is a folder: name one file, a training script of TRL (.py),"),
    ("convert noise.log", "noise.log is not a text file: name a training script of TRL (.py),"),
    ("convert typo.toml", "learnig.lr is not a known key. Did you mean learning.lr?"),
    ("convert log.jsonl", "log.jsonl is none of these: a training script of TRL (.py),"),
    ("tasks validate nope.toml", "There is no recipe at nope.toml."),
    ("tasks validate typo.toml", "learnig.lr is not a known key. Did you mean learning.lr?"),
    ("serve nope", "nope does not exist. Name a folder of runs, a journal or a log."),
    ("lab list --dir empty", "empty is not a lab. Make one with: uptrend lab init empty"),
]


@pytest.fixture
def first_day(make_run: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a run, a log, a recipe with a typo, and files of no kind."""
    folder = make_run("demo", steps=3).parents[1]
    files = {
        "noise.toml": b"\x80\xff\x00\x01" * 50, "noise.log": b"\x80\xff\x00\x01" * 50, "bad.toml": b"lr = = 2\n",
        "typo.toml": b"[learnig]\nlr = 1e-5\n", "blank.toml": b"", "train.py": b"import trl\n", "grpo.json": b"{}",
        "log.jsonl": b'{"step": 1, "reward": 0.5}\n{"step": 2, "reward": 0.6}\n',
    }  # fmt: skip
    for name, content in files.items():
        (folder / name).write_bytes(content)
    (folder / "empty").mkdir()
    (folder / "notes").mkdir()
    (folder / "notes" / "diary.txt").write_text("Today nothing was learned.\n")
    monkeypatch.chdir(folder)
    return folder


@pytest.mark.usefixtures("first_day")
@pytest.mark.parametrize(("typed", "said"), WRONG, ids=[typed for typed, _ in WRONG])
def test_a_wrong_name_is_answered_with_what_is_right(
    typed: str, said: str, uptrend: Uptrend
) -> None:
    error = uptrend(*typed.split(), code=2).err
    assert error.startswith("error: ")
    assert said in error
    assert "Errno" not in error


@pytest.mark.usefixtures("first_day")
def test_a_folder_of_logs_is_no_folder_of_runs(uptrend: Uptrend) -> None:
    assert (
        "There are no runs in empty/. Make one with: uptrend train recipe.toml\n"
        in uptrend("runs", "list", "empty").out
    )
    said = uptrend("runs", "list", ".").out
    assert said.endswith("uptrend train recipe.toml Other trainers' logs: uptrend doctor .\n")
