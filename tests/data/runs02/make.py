"""Make the runs of this folder, in the current folder, with the code and packages of version 0.2.

    git worktree add OLD e0e4300                     # with an environment in OLD/.venv: make -C OLD setup
    mkdir made && cd made && PYTHONPATH=OLD/tests OLD/.venv/bin/python REPOSITORY/tests/data/runs02/make.py

Two minutes of one core. Checkpoints are deleted where no test resumes from them: they would be 40 MB.
"""

import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import small_musique
from models import write_model
from uptrend.policy.known import find_model

HERE = Path(__file__).parent
OLD = Path(small_musique.__file__).parents[1]
TRAIN = ("--runs", ".", "--no-preflight", "--quiet")
MUSIQUE = {"file": "questions.jsonl", "retriever": "lexical", "returned": 1}


def uptrend(*words: str) -> None:
    """Call a verb."""
    subprocess.run([sys.executable, "-m", "uptrend", *words], check=True)


def make_models() -> None:
    """Teach random models of a few thousand weights their tasks' formats, so that tools and programs are called."""
    write_model(Path("start-arithmetic"))
    write_model(
        Path("start-mlgym"), hidden_size=48, intermediate_size=96, max_position_embeddings=2048
    )
    small_musique.write_questions(Path("questions.jsonl"), 500)
    small_musique.write_small(Path("start-musique"), MUSIQUE, hidden_size=32, intermediate_size=64)
    more = {
        "arithmetic": [],
        "mlgym": [],
        "musique": [
            'tasks.file="questions.jsonl"',
            'eval.file="questions.jsonl"',
            "tasks.train=360",
            "warmstart={ tasks = 360, epochs = 6, batch = 24, lr = 5e-3, warmup = 10 }",
        ],
    }
    for name, settings in more.items():
        recipe = "interrupted" if name == "arithmetic" else name
        sets = [
            word for each in [f'model.name="start-{name}"', *settings] for word in ("--set", each)
        ]
        path = str(HERE / "recipes" / f"{recipe}.toml")
        uptrend("warmstart", path, "--out", f"models/{name}", "--runs", "taught", "--quiet", *sets)


def make_interrupted() -> None:
    """Interrupt a run as Ctrl-C does, once it has recorded two steps."""
    command = [
        sys.executable,
        "-m",
        "uptrend",
        "train",
        str(HERE / "recipes" / "interrupted.toml"),
        *TRAIN,
    ]
    process = subprocess.Popen(command)
    metrics = Path("interrupted/metrics.jsonl")
    while process.poll() is None and not (
        metrics.exists() and metrics.read_text().count("\n") >= 2
    ):
        time.sleep(0.001)
    process.send_signal(signal.SIGINT)
    process.wait()


def make_watched(name: str, fault: str) -> None:
    """Train with TRL, watched, on a model that the run calls by a relative name."""
    script = str(OLD / "examples" / "watch_trl.py")
    words = ["--model", "tiny", "--steps", "6", "--fault", fault, "--out", "watched"]
    subprocess.run([sys.executable, script, *words], check=True)
    Path("watched/uptrend").rename(name)


def main() -> None:
    """Make all of them."""
    make_models()
    questions = Path("questions.jsonl").read_text().splitlines(keepends=True)
    Path("musique.jsonl").write_text("".join(questions[:32]))
    for name in ("own", "musique", "mlgym"):
        uptrend("train", str(HERE / "recipes" / f"{name}.toml"), *TRAIN)
    launcher = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node",
        "2",
        "-m",
    ]
    recipe = str(HERE / "recipes" / "two-ranks.toml")
    subprocess.run([*launcher, "uptrend", "train", recipe, *TRAIN], check=True)
    shutil.copytree(find_model("tiny"), "tiny")
    make_watched("trl", "none")
    make_watched("trl-cut", "cut")
    make_interrupted()
    for name in ("own", "musique", "mlgym", "two-ranks"):
        shutil.rmtree(f"{name}/checkpoints")
    for name in ("start-arithmetic", "start-mlgym", "start-musique", "taught", "tiny"):
        shutil.rmtree(name)
    Path("questions.jsonl").unlink()


if __name__ == "__main__":
    main()
