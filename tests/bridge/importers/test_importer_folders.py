"""A folder with several logs: all are read, each run once, and what is left out is named."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from written_logs import (
    console,
    event_file,
    lines,
    noted,
    only,
    state,
    table,
    trl_rows,
    wandb_file,
    write,
)

import uptrend
from uptrend.bridge.importers import read_views

Rows = list[dict[str, Any]]


def rows_of(count: int, slope: float) -> Rows:
    """Make a run of its own: another slope is another reward."""
    return [{**row, "reward": row["reward"] * slope} for row in trl_rows(count)]


def wandb(rows: Rows, name: str) -> bytes:
    return wandb_file(
        [{**row, "_step": at} for at, row in enumerate(rows)], {"num_generations": 8}, name
    )


def found(folder: Path) -> dict[str, int]:
    """Return the sources in a folder with their points."""
    return {
        str(Path(view.source).relative_to(folder)): len(view.steps) for view in read_views(folder)
    }


FOLDERS: dict[str, dict[str, tuple[str | bytes, str, int]]] = {
    "two runs of W&B": {
        "offline-run-1-a/run-a.wandb": (wandb(rows_of(40, 1.0), "a"), "offline-run-1-a/run-a.wandb", 40),
        "offline-run-2-b/run-b.wandb": (wandb(rows_of(30, 0.5), "b"), "offline-run-2-b/run-b.wandb", 30),
    },
    "W&B and a table": {
        "wandb/offline-run-1-a/run-a.wandb": (
            wandb(rows_of(40, 1.0), "a"), "wandb/offline-run-1-a/run-a.wandb", 40,
        ),
        "other.jsonl": (lines(rows_of(25, 0.3)), "other.jsonl", 25),
    },
    "tables": {
        name: (content, name, count)
        for name, content, count in (
            ("a.csv", table(rows_of(30, 0.2)), 30), ("b.csv", table(rows_of(30, 0.4)), 30),
            ("c.jsonl", lines(rows_of(20, 0.6)), 20), ("d.jsonl", lines(rows_of(20, 0.8)), 20),
        )
    },
    "a Trainer's state and another run's table": {
        "trainer_state.json": (state(rows_of(30, 0.9)), ".", 30),
        "other.csv": (table(rows_of(20, 0.1)), "other.csv", 20),
    },
    "outputs of several kinds": {
        "a/checkpoint-30/trainer_state.json": (state(rows_of(30, 0.9)), "a", 30),
        "b/events.out.tfevents.3.x": (event_file(rows_of(20, 0.1)), "b", 20),
        "c/d/e/log.jsonl": (lines(rows_of(22, 0.2)), "c/d/e/log.jsonl", 22),
        "f.log": (console(rows_of(15, 0.4)), "f.log", 15),
    },
}  # fmt: skip


@pytest.mark.parametrize("files", FOLDERS.values(), ids=FOLDERS.keys())
def test_every_log_of_a_folder_is_read(
    files: dict[str, tuple[str | bytes, str, int]], tmp_path: Path
) -> None:
    for name, (content, _, _) in files.items():
        write(tmp_path / name, content)
    expected = {source: points for _, source, points in files.values()}
    assert found(tmp_path) == expected
    report = uptrend.diagnose(tmp_path)
    assert report.steps == max(expected.values())
    assert {run.source for run in report.runs} == {str(tmp_path / source) for source in expected}


def test_logs_beside_run_directories_are_read_too(make_run: Callable[..., Path]) -> None:
    folder = make_run("mine", steps=12).parent
    write(folder / "theirs.jsonl", lines(rows_of(20, 1.0)))
    write(folder / "deep" / "er" / "log.csv", table(rows_of(15, 0.5)))
    write(
        folder / "mine.log",
        "step 1/12  reward 0.21\nstep 2/12  reward 0.22\nstep 3/12  reward 0.3\n",
    )  # its console
    assert found(folder) == {"mine": 12, "theirs.jsonl": 20, "deep/er/log.csv": 15}
    assert [run.steps for run in uptrend.diagnose(folder).runs] == [20, 15, 12]


def test_a_run_in_several_formats_is_read_once_and_the_others_are_named(tmp_path: Path) -> None:
    rows = rows_of(40, 1.0)
    write(tmp_path / "checkpoint-20" / "trainer_state.json", state(rows[:20]))
    write(tmp_path / "train.log", console(rows[:30]))
    write(tmp_path / "runs" / "today" / "events.out.tfevents.1", event_file(rows))
    write(tmp_path / "wandb" / "run-1-a" / "run-a.wandb", wandb(rows, "calm-sea"))
    write(tmp_path / "wandb" / "run-1-a" / "files" / "output.log", console(rows[:30]))
    write(tmp_path / "wandb" / "debug.log", "connected\n")
    view = only(tmp_path)
    assert (len(view.steps), view.value("learning.steps"), view.value("sampling.size")) == (
        40,
        500,
        8,
    )
    named = [note.split()[2] for note in view.notes if note.endswith("is another log of this run.")]
    assert len(named) == 3
    assert {str(tmp_path), str(tmp_path / "train.log")} < set(named)


@pytest.mark.parametrize("every", [1, 4])
def test_a_watched_run_stands_for_its_trainers_log(
    every: int, make_run: Callable[..., Path]
) -> None:
    path = make_run("uptrend", steps=12)
    rewards = only(path).metrics["reward/mean"]
    means = [float(np.mean(rewards[step - every : step])) for step in range(every, 13, every)]
    rows = [
        {"step": every * (at + 1), "reward": mean, "loss": 0.1} for at, mean in enumerate(means)
    ]
    write(path.parent / "checkpoint-12" / "trainer_state.json", state(rows))
    view = only(path.parent)
    assert (view.source, len(view.steps)) == (str(path), 12)
    assert noted(view, f"Left out: {path.parent} is another log of this run.")


def test_runs_that_are_alike_but_not_the_same_are_two(tmp_path: Path) -> None:
    flat = [{**row, "reward": 0.0} for row in rows_of(20, 1.0)]
    write(tmp_path / "a.jsonl", lines(flat))
    write(
        tmp_path / "b.jsonl", lines([{**row, "grad_norm": row["grad_norm"] + 0.1} for row in flat])
    )
    write(tmp_path / "c.csv", table(flat))
    assert len(found(tmp_path)) == 2  # c is a copy of a


def test_what_is_left_out_is_named(tmp_path: Path) -> None:
    write(tmp_path / "a.jsonl", lines(rows_of(20, 0.2)))
    write(tmp_path / "b.csv", b"\0\1\2\3" * 100)
    write(tmp_path / "c.json", '{"x": [')
    write(tmp_path / "d" / "trainer_state.json", b'{"global_step": 30, "log_history": "none"}')
    for name in "123456":
        write(tmp_path / "deep" / "/".join("123456"[: int(name)]) / "notes.md", "")
    write(tmp_path / "deep" / "1/2/3/4/5/6/7" / "log.jsonl", lines(rows_of(20, 0.3)))
    view = only(tmp_path)
    assert noted(view, "Left out: no metrics in b.csv, c.json.")
    assert noted(view, f"Left out: {tmp_path / 'd' / 'trainer_state.json'}")
    assert noted(view, "is too deep: name a folder there.")


def test_a_link_to_a_folder_above_ends(tmp_path: Path) -> None:
    write(tmp_path / "a" / "log.jsonl", lines(rows_of(20, 0.2)))
    (tmp_path / "a" / "up").symlink_to(tmp_path)
    (tmp_path / "b").symlink_to(tmp_path / "a")
    assert len(found(tmp_path)) == 1


def test_halves_of_prime_rl_are_one_run_and_those_of_two_runs_two(tmp_path: Path) -> None:
    for run, slope in (("x", 0.02), ("y", 0.01)):
        orchestrator = [
            {"step": n, "train/agg/all/main/reward/mean": slope * n} for n in range(1, 21)
        ]
        trainer = [
            {"step": n, "mismatch_kl/all/mean": 0.01 * n, "optim/grad_norm": 0.5}
            for n in range(1, 21)
        ]
        for part, rows in (("orchestrator", orchestrator), ("trainer", trainer)):
            write(
                tmp_path / run / part / "metrics.jsonl",
                "".join(json.dumps(row) + "\n" for row in rows),
            )
    views = read_views(tmp_path)
    assert [Path(view.source).name for view in views] == ["x", "y"]
    assert [float(np.round(view.metrics["reward/mean"][-1], 6)) for view in views] == [0.4, 0.2]
    assert all("gradient/norm/before" in view.metrics for view in views)


CARD = """# A model

- It is a model: 2
### Framework versions

- TRL: 0.14.0
- Transformers: 4.48.2
- Pytorch: 2.5.1+cu124
- Python: 3.11
"""


def test_versions_beside_a_log_are_read_and_judged(tmp_path: Path) -> None:
    checkpoint = tmp_path / "out" / "checkpoint-40"
    log = write(checkpoint / "trainer_state.json", state(trl_rows(40)))
    assert only(log).info["packages"] == {}
    write(tmp_path / "out" / "README.md", CARD)
    view = only(log)
    versions = {"trl": "0.14.0", "transformers": "4.48.2", "torch": "2.5.1+cu124"}
    assert view.info["packages"] == versions
    assert noted(view, "README.md")
    named = {finding.id: finding for finding in uptrend.diagnose(log).findings}
    assert (
        "https://github.com/huggingface/trl/pull/2708" in named["tokens.padding"].evidence[0].text
    )

    write(checkpoint / "requirements.txt", "trl==0.15.2\nsomething==1.0\nvllm @ file:///x\n")
    assert only(log).info["packages"] == {"trl": "0.15.2"}, "the nearer file counts"
    (checkpoint / "requirements.txt").unlink()
    (checkpoint / "requirements.txt").mkdir()
    assert only(log).info["packages"] == versions
