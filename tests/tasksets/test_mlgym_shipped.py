"""Shipped ML-research tasks: their scripted players, played in a plain folder, score as the tasks
say.
"""

import hashlib
import json
import os
import random
import re
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

import uptrend

SHIPPED = Path(uptrend.__file__).parent / "tasksets" / "mlgym" / "shipped"
NAMES = sorted(path.stem for path in (SHIPPED / "configs" / "tasks").glob("*.yaml"))
# The first bytes of a digest over all files of train example 3 and held-out example 3.
DIGESTS = {
    "prisonersDilemma": "81206153b8514261",
    "imageClassificationDigits": "8f95bbfc39f6fe49",
    "regressionHousePrice": "665f176c17ab10ab",
    "titanic": "08da718647609143",
}


def load(name: str) -> dict[str, Any]:
    """Read a task's YAML."""
    return yaml.safe_load(
        (SHIPPED / "configs" / "tasks" / f"{name}.yaml").read_text(encoding="utf-8")
    )


def make(task: dict[str, Any], seed: int, heldout: bool) -> dict[str, dict[str, bytes]]:
    """Return the files of one example."""
    return runpy.run_path(str(SHIPPED / task["uptrend"]["generator"]))["make"](seed, heldout)


def turns(text: str, seed: int) -> list[str]:
    """Return a player's commands with the choices of one example."""

    def choose(match: re.Match[str]) -> str:
        return random.Random(f"{seed} {match[1]}").choice(match[1].split("|"))

    return [turn.strip("\n") for turn in re.sub(r"\{\{(.*?)\}\}", choose, text).split("\n%%\n")]


def score(
    task: dict[str, Any], files: dict[str, bytes], submission: Path, folder: Path
) -> float | None:
    """Evaluate a submission in a fresh folder; None if it is invalid."""
    folder.mkdir()
    for path in [SHIPPED / path for path in task["starter_code"]]:
        if path.name in task["evaluation_paths"]:
            (folder / path.name).write_bytes(path.read_bytes())
    for path, data in files.items():
        (folder / path).write_bytes(data)
    if submission.is_symlink() or not submission.is_file():
        return None
    (folder / submission.name).write_bytes(submission.read_bytes())
    argv = [sys.executable, task["evaluation_paths"][0], "--submission_file", submission.name]
    done = subprocess.run(
        argv, cwd=folder, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode in (0, 1), done.stderr
    assert done.stdout or (done.stderr.count("\n") == 1 and "Traceback" not in done.stderr), (
        done.stderr
    )
    return json.loads(done.stdout)[task["uptrend"]["metric"]] if done.stdout else None


def play(
    task: dict[str, Any], example: dict[str, dict[str, bytes]], commands: list[str], folder: Path
) -> float | None:
    """Give commands one by one, and return the test score."""
    place = folder / "workspace"
    place.mkdir(parents=True)
    for path in [SHIPPED / path for path in task["starter_code"]]:
        (place / path.name).write_bytes(path.read_bytes())
    for path, data in example["workspace"].items():
        (place / path).write_bytes(data)
    python = {
        "PATH": f"{Path(sys.executable).parent}:{os.defpath}",
        "OMP_NUM_THREADS": "1",
        "PYTHONHASHSEED": "0",
    }
    submission = place / (
        "strategy.py" if task["task_entrypoint"].startswith("Python") else "submission.csv"
    )
    edited = next(Path(path).name for path in task["starter_code"] if "evaluate" not in path)
    assert commands[-1] == "submit"
    for number, command in enumerate(commands):
        verb, _, rest = command.partition("\n")
        if verb in ("validate", "submit"):
            split = "test" if verb == "submit" else "validation"
            final = score(task, example[split], submission, folder / f"score-{number}")
        elif verb.startswith("edit "):
            first, last = (int(line) for line in verb.removeprefix("edit ").split(":"))
            lines = (place / edited).read_text().split("\n")
            added = rest.split("\n")
            assert added.pop() == "end_of_edit"
            assert 1 <= first <= last < len(lines)
            lines[first - 1 : last] = added
            compile("\n".join(lines), edited, "exec")
            (place / edited).write_text("\n".join(lines))
        elif verb.split()[0] not in ("open", "create"):
            argv = ["bash", "-c", command]
            done = subprocess.run(
                argv,
                cwd=place,
                env=python,
                capture_output=True,
                text=True,
                timeout=120,
                check=False,
            )
            printed = done.stdout.count("\n")
            assert "python baseline.py" not in command or (
                done.returncode == 0 and 1 <= printed <= 2
            ), done.stderr
    return final


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("heldout", [False, True])
def test_only_the_expert_reaches_par(name: str, heldout: bool, tmp_path: Path) -> None:
    task, seed = load(name), 1
    uptrend, sign = task["uptrend"], 1 if task["uptrend"]["direction"] == "up" else -1
    example = make(task, seed, heldout)
    scores = {
        path.stem: play(
            task, example, turns(path.read_text(encoding="utf-8"), seed), tmp_path / path.stem
        )
        for path in sorted((SHIPPED / uptrend["players"]).glob("*.txt"))
    }
    kinds = [player.partition("-")[0] for player in scores]
    assert (kinds.count("expert"), kinds.count("cheat")) == (1, 5)
    baseline = task["baseline_scores"][0][uptrend["metric"]]
    progress = {  # 0 at the baseline's mean score, 1 at par
        player: None
        if value is None
        else sign * (value - baseline) / (sign * (uptrend["par"] - baseline))
        for player, value in scores.items()
    }
    untouched = progress["weak-untouched"]
    assert untouched == pytest.approx(0, abs=0.15)
    for player, value in progress.items():
        kind = player.partition("-")[0]
        assert (value is not None and value >= 1) == (kind == "expert"), progress
        assert kind != "cheat" or value is None or value <= untouched, progress
    weak = sorted(
        value
        for player, value in progress.items()
        if player.startswith("weak") and value is not None
    )
    assert len(weak) >= 5
    assert weak[0] < -0.03 < 0.5 < weak[-1] < 0.9, progress


@pytest.mark.parametrize("name", NAMES)
def test_a_submission_is_checked(name: str, tmp_path: Path) -> None:
    task = load(name)
    example, best = make(task, 2, False), 0.0 if task["uptrend"]["direction"] == "down" else 1.0
    if "answers.csv" in example["test"]:
        header, *rows = example["test"]["answers.csv"].decode().splitlines()
        other = example["validation"]["answers.csv"].decode().splitlines()[1:]
        truth = [header, *rows, *other]
        good = {"\n".join(truth): best, "\n".join([header, *truth[:0:-1]]): best}
        bad = [
            "",
            "\0",
            "x" * 200_000,
            header,
            "\n".join([header, *rows[1:]]),
            "\n".join([header.upper(), *rows]),
        ]
        bad += [
            "\n".join([header, *(row.split(",")[0] + wrong for row in rows)])
            for wrong in ("", ",", ",nan", ",1e99")
        ]
    else:
        good = {"def row_strategy(history):\n    history.clear()\n    return False": 2.3}
        returned = [
            "return 2",
            "return '0'",
            "return [0]",
            "pass",
            "raise ValueError('a\\nb')",
            "raise SystemExit",
        ]
        bad = ["", "\0", "def (", *(f"def row_strategy(history):\n    {line}" for line in returned)]
    name = "strategy.py" if task["task_entrypoint"].startswith("Python") else "submission.csv"
    for number, (text, expected) in enumerate([*good.items(), *((text, None) for text in bad)]):
        (tmp_path / name).write_text(text)
        given = score(task, example["test"], tmp_path / name, tmp_path / f"score-{number}")
        assert given == (expected and pytest.approx(expected, abs=0.1)), text[:200]


@pytest.mark.parametrize("name", NAMES)
def test_examples_are_the_same_on_every_machine(name: str) -> None:
    task = load(name)
    digest = hashlib.sha256()
    for heldout in (False, True):
        example = make(task, 3, heldout)
        assert sorted(example) == ["test", "validation", "workspace"]
        for part, files in sorted(example.items()):
            for path, data in sorted(files.items()):
                digest.update(f"{part}/{path}:{len(data)}\n".encode() + data)
    assert digest.hexdigest()[:16] == DIGESTS[name]
    assert make(task, 3, False) != make(task, 3, True)


def test_held_out_digits_are_images_of_their_own() -> None:
    def normalize(images: np.ndarray) -> np.ndarray:
        images = images - images.mean(axis=1, keepdims=True)
        return images / np.linalg.norm(images, axis=1, keepdims=True)

    module = runpy.run_path(str(SHIPPED / "data" / "imageClassificationDigits" / "make.py"))
    known, found = normalize(module["load"]("images").astype(float)), {}
    for heldout in (False, True):
        files = module["make"](4, heldout)["workspace"].values()
        pixels = np.concatenate(
            [np.loadtxt(data.decode().splitlines()[1:], delimiter=",")[:, 1:] for data in files]
        )
        found[heldout] = set((normalize(pixels) @ known.T).argmax(axis=1).tolist())
    assert min(map(len, found.values())) > 750
    assert len(found[False] & found[True]) <= 10  # images of low contrast may be taken for another


@pytest.mark.parametrize("name", NAMES)
def test_a_small_context_holds_what_the_agent_reads(name: str) -> None:
    task = load(name)
    assert len(task["description"].split()) <= 120
    for path in task["starter_code"]:
        assert len((SHIPPED / path).read_text(encoding="utf-8").splitlines()) <= 60, path
    edited = (SHIPPED / task["starter_code"][0]).read_text(encoding="utf-8")
    assert len(edited.splitlines()) <= 25
