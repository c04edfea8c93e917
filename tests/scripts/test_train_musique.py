"""The script: its flags as a recipe, what it refuses, and real runs of it."""

import json
import os
import random
import subprocess
import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from uptrend.config import load_config, to_table
from uptrend.records import Run
from uptrend.tasks.musique.atlas import AtlasOptions, rows

SCRIPT = Path(__file__).parents[2] / "scripts" / "train_musique.py"
FULL = "bdsaglam/musique,answerable,train"
VALIDATION = "bdsaglam/musique,answerable,validation"
WITHOUT_TORCH = """
import runpy, sys
sys.modules["torch"], sys.argv = None, sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""
"""Runs a script where importing torch is an error."""


def call(
    *arguments: object, folder: Path, code: int = 0, torch: bool = True, **variables: str
) -> subprocess.CompletedProcess[str]:
    """Run the script as a person would."""
    start = [sys.executable] if torch else [sys.executable, "-c", WITHOUT_TORCH]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", **variables}
    words = [*start, str(SCRIPT), *map(str, arguments)]
    done = subprocess.run(
        words, cwd=folder, env=environment, capture_output=True, text=True, check=False, preexec_fn=_on_one_core
    )
    assert done.returncode == code, done.stdout + done.stderr
    return done


def _on_one_core() -> None:
    """The script takes a thread a core, and two of them on a busy machine wait for each other more than they work."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {random.choice(sorted(os.sched_getaffinity(0)))})


def dry(folder: Path, *arguments: object) -> dict[str, Any]:
    """The recipe that flags become, without torch."""
    said = call("train", *arguments, "--dry-run", folder=folder, torch=False).stdout
    table = tomllib.loads(said)
    config = load_config(table)  # what is printed is a recipe
    assert to_table(config) | {"learning": table["learning"]} == table | {"model": {"lora": None} | table["model"]}
    return table


def pick(table: dict[str, Any], keys: str) -> list[Any]:
    """Some keys of a recipe."""
    found = []
    for key in keys.split():
        value: Any = table
        for part in key.split("."):
            value = value[part]
        found.append(value)
    return found


@pytest.fixture(scope="module")
def questions(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Twelve invented questions in MuSiQue's schema."""
    path = tmp_path_factory.mktemp("questions") / "questions.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows(12, 0, AtlasOptions(paragraphs=6))))
    return path


A1 = ("--model Qwen/Qwen2.5-7B-Instruct --lora-r 64 --lora-alpha 128 --batch-size 16 --num-generations 8 "
      f"--gradient-accumulation-steps 8 --datasets {FULL}")  # fmt: skip
A3 = ("--model Qwen/Qwen2.5-7B-Instruct --scale-rewards --loss-type dr_grpo --lora-r 16 --lora-alpha 32 "
      "--batch-size 16 --num-generations 8 --gradient-accumulation-steps 2")  # fmt: skip
G2 = ("--loss-type grpo --scale-rewards --lora-r 8 --lora-alpha 16 --batch-size 8 --num-generations 16 "
      "--max-grad-norm 0.1 --learning-rate 1e-6")  # fmt: skip
STANDARD = ("--datasets bdsaglam/musique-mini,answerable,train[:100] --batch-size 8 --num-generations 8 "
            "--max-steps 50 --logging-steps 1 --output-dir ./outputs/debug-h02-test")  # fmt: skip


@pytest.mark.parametrize(
    ("flags", "groups", "size", "lora", "loss", "lr"),
    [
        (A1, 16 * 8 // 8, 8, (64, 128), "grpo", 1e-5),
        (A3, 16 * 2 // 8, 8, (16, 32), "dr_grpo", 1e-5),
        (G2, 8 * 8 // 16, 16, (8, 16), "grpo", 1e-6),
        (STANDARD, 8 * 8 // 8, 8, (16, 32), "grpo", 1e-5),
    ],
    ids=["a1", "a3", "g2", "standard"],
)
def test_their_command_lines(
    flags: str, groups: int, size: int, lora: tuple[int, int], loss: str, lr: float, tmp_path: Path
) -> None:
    table = dry(tmp_path, *flags.split())
    assert pick(table, "sampling.groups sampling.size learning.loss learning.lr") == [groups, size, loss, lr]
    assert pick(table, "model.name model.lora.r model.lora.alpha") == ["Qwen/Qwen2.5-7B-Instruct", *lora]
    # And their script's defaults.
    keys = "sampling.max_tokens sampling.max_prompt sampling.context sampling.max_turns sampling.temperature"
    assert pick(table, keys) == [1024, 4096, 8192, 10, 0.5]
    keys = "learning.scale learning.kl.beta learning.updates learning.max_grad_norm model.weights"
    assert pick(table, keys) == ["group", 0.04, 1, 0.1, "fp32"]
    keys = "name retriever noise_rate scale_by_hops split"
    for section in ("tasks", "eval"):
        assert pick(table[section], keys) == ["musique", "hybrid", 1.0, False, "quarter"]
    assert table["tasks"]["datasets"] == table["eval"]["datasets"]
    if flags == STANDARD:
        assert pick(table, "name learning.steps tasks.datasets") == [
            "debug-h02-test", 50, "bdsaglam/musique-mini,answerable,train[:100]",
        ]  # fmt: skip
    else:
        assert table["tasks"]["datasets"] == FULL
        assert "steps" not in table["learning"]  # one pass over a dataset that nobody has looked into


def test_every_other_flag(tmp_path: Path) -> None:
    table = dry(
        tmp_path, "--model", "tiny", "--no-peft", "--datasets", f"{FULL}[:256];x/y,,train", "--train-tasks", 99,
        "--eval-datasets", VALIDATION, "--eval-tasks", 50, "--noise-rate", 0.5, "--retriever", "lexical",
        "--max-prompt-length", 2048, "--max-new-tokens", 64, "--max-completion-length", 512, "--max-turns", 4,
        "--temperature", 0.9, "--kl-beta", 0,
        "--no-scale-rewards", "--scale-by-hops", "--num-iterations", 2, "--save-steps", 7, "--eval-steps", 5,
        "--max-steps", 3, "--seed", 11, "--no-gradient-checkpointing", "--max-grad-norm", 0.01, "--loss-type", "bnpo",
    )  # fmt: skip
    assert "lora" not in table["model"]
    keys = "name seed model.name model.gradient_checkpointing checkpoints.every learning.steps learning.updates"
    assert pick(table, keys) == ["musique", 11, "tiny", False, 7, 3, 2]
    keys = "learning.scale learning.kl.beta learning.max_grad_norm learning.loss"
    assert pick(table, keys) == ["none", 0.0, 0.01, "bnpo"]
    keys = "max_prompt max_tokens context max_turns temperature"
    assert pick(table["sampling"], keys) == [2048, 64, 2560, 4, 0.9]
    keys = "train split datasets noise_rate retriever scale_by_hops"
    assert pick(table["tasks"], keys) == [99, "train", f"{FULL}[:256];x/y,,train", 0.5, "lexical", True]
    keys = "tasks every split datasets noise_rate retriever scale_by_hops"
    assert pick(table["eval"], keys) == [50, 5, "heldout", VALIDATION, 0.5, "lexical", True]


def test_one_pass_is_counted_where_no_hub_is_needed(questions: Path, tmp_path: Path) -> None:
    steps = ("--batch-size", 2, "--num-generations", 4, "--gradient-accumulation-steps", 4)
    table = dry(tmp_path, "--datasets", questions, *steps)
    assert pick(table, "tasks.file tasks.train sampling.groups learning.steps") == [str(questions), 9, 2, 9 // 2]
    table = dry(tmp_path, "--datasets", "atlas", "--train-tasks", 30, "--eval-tasks", 3, *steps)
    assert pick(table, "tasks.file tasks.datasets tasks.train learning.steps") == ["", "", 30, 15]


def test_what_is_accepted_and_changes_nothing(tmp_path: Path) -> None:
    done = call("train", "--bf16", "--logging-steps", 1, "--dry-run", folder=tmp_path, torch=False)
    assert "weights that train stay fp32" in done.stderr
    assert "every step is recorded" in done.stderr
    assert done.stdout == call("train", "--dry-run", folder=tmp_path, torch=False).stdout


def refusal(folder: Path, *arguments: object, **variables: str) -> str:
    return call(*arguments, folder=folder, code=2, torch=False, **variables).stderr


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--data-parallel-size", 2], "--gradient-accumulation-steps 16 gives a step as many rollouts as 2 processes"),
        (["--batch-size", 3, "--gradient-accumulation-steps", 3], "Use --batch-size 8, or --num-generations 9."),
        (["--batch-size", 6, "--gradient-accumulation-steps", 2], "Use --batch-size 8, or --num-generations 6."),
        (["--batch-size", 1, "--gradient-accumulation-steps", 1], "Use --batch-size 8."),
        (["--num-generations", 1], "a group of one has nothing to compare with"),
        (["--datasets", "musique"], "should be path,config,split"),
        (["--datasets", ";"], "--datasets is empty"),
        (["--datasets", "a.jsonl;b.jsonl"], "use one .jsonl file"),
        (["--datasets", "none.jsonl"], "none.jsonl can't be read"),
        (["--eval-datasets", "atlas;x/y,,train"], "or the word atlas"),
        (["--loss-type", "ppo"], "'grpo', 'dr_grpo', 'bnpo'"),
        (["--retriever", "google"], "'golden', 'lexical', 'semantic', 'hybrid'"),
        (["--noise-rate", 2], "noise_rate = 2.0 should be at least 0 and at most 1"),
        (["--temperature", 0], "sampling.temperature = 0.0"),
    ],
)
def test_what_cannot_work_is_a_sentence(flags: Sequence[object], said: str, tmp_path: Path) -> None:
    heard = refusal(tmp_path, "train", *flags)
    assert said in heard
    assert "Traceback" not in heard


def test_several_processes_are_refused(tmp_path: Path) -> None:
    heard = refusal(tmp_path, "train", *A1.split(), WORLD_SIZE="3")
    assert "one process on one GPU, not in 3" in heard
    assert "--gradient-accumulation-steps 24" in heard
    assert call("train", "--dry-run", folder=tmp_path, torch=False, WORLD_SIZE="1").stdout


@pytest.mark.slow
def test_training_and_evaluating(questions: Path, tmp_path: Path) -> None:
    done = call(
        "train", "--model", "tiny", "--no-peft", "--datasets", questions, "--retriever", "golden", "--max-steps", 1,
        "--batch-size", 2, "--num-generations", 2, "--gradient-accumulation-steps", 2, "--max-new-tokens", 8,
        "--max-turns", 2, "--eval-tasks", 2, "--kl-beta", 0, "--no-gradient-checkpointing",
        "--output-dir", "outputs/first", folder=tmp_path,
    )  # fmt: skip
    assert "Run: outputs/first" in done.stdout
    run = Run(tmp_path / "outputs" / "first")
    assert (run.status, run.last_step, len(run.checkpoints)) == ("finished", 1, 1)
    assert (run.config["tasks"]["train"], run.config["eval"]["tasks"]) == (9, 2)
    assert len(run.rollouts(step=1)) == 4

    again = refusal(tmp_path, "train", "--output-dir", "outputs/first")
    assert "already holds a run" in again
    assert "uptrend train --resume outputs/first" in again

    # A run brings its own questions and limits.
    done = call("evaluate", "--model", "outputs/first", "--limit", 1, folder=tmp_path)
    assert "outputs/first: " in done.stdout
    assert "of 1 held-out task (95% interval" in done.stdout
    (line,) = map(json.loads, (tmp_path / "evaluation.jsonl").read_text().splitlines())
    assert line["question"] in questions.read_text()
    assert (line["turns"], line["parts"].keys() >= {"exact_match", "f1"}) == (2, True)


@pytest.mark.slow
def test_evaluating_a_model(tiny_folder: str, questions: Path, tmp_path: Path) -> None:
    done = call(
        "evaluate", "--model", tiny_folder, "--datasets", questions, "--retriever", "golden", "--max-new-tokens", 8,
        "--max-turns", 1, "--limit", 2, "--output", "answers.jsonl", folder=tmp_path,
    )  # fmt: skip
    lines = [json.loads(line) for line in (tmp_path / "answers.jsonl").read_text().splitlines()]
    families = sorted({line["family"] for line in lines})
    header, tasks, *figures = done.stdout.splitlines()[1:]
    assert header.split() == [*families, "all"]
    assert tasks.split()[-1] == str(len(lines)) == "2"
    assert any(line.startswith("retrieval recall") and "(" in line for line in figures)
    assert figures[-1] == "Answers: answers.jsonl"


def test_a_model_brings_no_questions(tmp_path: Path) -> None:
    assert "say which with --datasets" in refusal(tmp_path, "evaluate", "--model", "tiny")
    heard = refusal(tmp_path, "evaluate", "--model", "tiny", "--datasets", "atlas", "--output", "answers.csv")
    assert "answers.csv should end in .jsonl" in heard
