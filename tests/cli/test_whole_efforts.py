"""Command lines of three efforts, shortened: they train to the end, record every step, and can be
diagnosed.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from uptrend.records import Run
from uptrend.tasksets.musique.atlas import AtlasOptions, rows

pytestmark = pytest.mark.slow

CHECKOUT = Path(__file__).parents[2]
UPTREND = (sys.executable, "-m", "uptrend")
STEPS = 2


def run_words(words: list[str], folder: Path) -> str:
    """Run a command in a folder as a person would, and return what it prints."""
    environment = os.environ | {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "COLUMNS": "160"}
    done = subprocess.run(
        words, cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    return done.stdout


def check_run(path: Path, steps: int = STEPS) -> Run:
    """Check that a run is whole, and that the doctor reads it."""
    run = Run(path)
    assert (run.status, run.last_step) == ("finished", steps)
    assert [line["step"] for line in run.metric_lines] == list(range(1, steps + 1))
    assert [line["step"] for line in run.eval_lines][-1] == steps
    for step in range(1, steps + 1):
        assert len(run.rollouts(step=step)) == run.metric_lines[step - 1]["sampling/rollouts/count"]
    assert run.checkpoints
    report = json.loads(run_words([*UPTREND, "doctor", str(path), "--format", "json"], path.parent))
    assert report["steps"] == steps
    return run


def sets(**options: object) -> list[str]:
    pairs = [f"{key.replace('__', '.')}={value}" for key, value in options.items()]
    return [word for pair in pairs for word in ("--set", pair)]


def test_questions_of_several_hops_by_the_flags_of_their_log(tmp_path: Path) -> None:
    questions = rows(12, 0, AtlasOptions(paragraphs=6))
    file = tmp_path / "questions.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in questions))
    flags = (
        "--bf16 --loss-type grpo --lora-r 16 --lora-alpha 32 --scale-rewards --max-grad-norm 0.01 "
    )
    flags += "--learning-rate 1e-5 --logging-steps 1 --output-dir ./outputs/debug-test "
    flags += (
        f"--batch-size 2 --num-generations 2 --gradient-accumulation-steps 2 --max-steps {STEPS} "
    )
    flags += f"--model tiny --datasets {file} --eval-tasks 2 --max-new-tokens 8 --max-turns 2"
    script = str(CHECKOUT / "scripts" / "train_musique.py")
    said = run_words([sys.executable, script, "train", *flags.split()], tmp_path)
    assert "Run: outputs/debug-test" in said
    config = check_run(tmp_path / "outputs/debug-test").config
    assert (config["tasks"]["retriever"], config["model"]["lora"]["r"]) == ("hybrid", 16)
    assert (config["learning"]["loss"], config["learning"]["max_grad_norm"]) == ("grpo", 0.01)


def test_the_arithmetic_baseline(tmp_path: Path) -> None:
    recipe = str(CHECKOUT / "recipes" / "arithmetic" / "baseline.toml")
    shorter = sets(model__name="tiny", learning__steps=STEPS, learning__warmup=1, eval__tasks=8)
    run_words([*UPTREND, "train", recipe, *shorter], tmp_path)
    config = check_run(tmp_path / "runs/baseline").config
    assert (config["sampling"]["groups"], config["sampling"]["size"]) == (4, 16)
    assert (config["learning"]["kl"]["beta"], config["learning"]["lr"]) == (0.1, 5e-6)


@pytest.mark.needs_package("bubblewrap")
def test_machine_learning_tasks_by_other_trainers_settings(tmp_path: Path) -> None:
    settings = str(CHECKOUT / "configs" / "mlgym" / "rl_debug.toml")
    shorter = sets(
        model__name="tiny",
        learning__steps=STEPS,
        sampling__groups=1,
        sampling__size=2,
        sampling__max_tokens=16,
        sampling__max_turns=2,
        eval__tasks=1,
    )
    # Preflight plays the experts of a slow taskset for a minute or more.
    run_words(
        [*UPTREND, "train", settings, *shorter, "--no-preflight", "--name", "debug"], tmp_path
    )
    run = check_run(tmp_path / "runs/debug")
    assert run.config["tasks"]["problems"] == ["titanic"]
    assert {line["commands/sandbox_failures/count"] for line in run.metric_lines} == {0}
