"""Does GRPO learn multi-hop questions after a warm start, and does it without the attention-mask
bug only?

    python benchmarks/musique.py run --to results                  warm start, then all arms at once on one GPU
    python benchmarks/musique.py run --to results --set learning.steps=2 --set eval.tasks=8    a look at the plumbing
    python benchmarks/musique.py report results                    the table, from the run directories alone
    python benchmarks/musique.py real FILE.jsonl smollm2-135m results/models/musique-warm --to real.json

Arms: healthy and blind (verifiers 0.1.2 to 0.1.6, benchmarks/faults/planted/masks.py) with three
seeds each, LoRA and the hybrid retriever with one. All begin with the same warm-started model and
are evaluated on the same held-out questions.
"""

import json
import subprocess
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from rich.console import Console
from rich.table import Table

from uptrend.records import Run

ROOT = Path(__file__).parents[1]
RECIPES = ROOT / "recipes" / "musique"
SETS = Annotated[list[str] | None, typer.Option("--set", help="Override one value in every run.")]
PARTS = (
    "exact_match",
    "f1",
    "retrieval_recall",
    "retrieval_precision",
    "citation_recall",
    "format",
)
app = typer.Typer(add_completion=False, no_args_is_help=True)


@dataclass(frozen=True)
class Arm:
    """One run."""

    name: str
    """Its run directory's name."""
    sets: tuple[str, ...] = ()
    """What it changes of the recipe."""
    is_blind: bool = False
    """True where the learner's attention mask is its loss mask."""


LORA = ("model.lora={r=16,alpha=32}", "learning.lr=3e-4")
ARMS = [
    *(Arm(f"healthy-{seed}", (f"seed={seed}",)) for seed in range(3)),
    Arm("blind-0", ("seed=0",), is_blind=True),
    Arm("lora-0", LORA),
    Arm("hybrid-0", ("tasks.retriever=hybrid", "eval.retriever=hybrid")),
    *(Arm(f"blind-{seed}", (f"seed={seed}",), is_blind=True) for seed in (1, 2)),
]
"""In the order in which they are begun."""


@app.command()
def run(
    to: Annotated[Path, typer.Option(help="Where runs, logs and the warm-started model go.")],
    arms: Annotated[
        str, typer.Option(help="Names of arms, or their beginnings, joined by commas.")
    ] = "",
    at_once: Annotated[int, typer.Option(help="How many arms run side by side.")] = 8,
    minutes: Annotated[float, typer.Option(help="End what is still running after so long.")] = 30.0,
    threads: Annotated[int, typer.Option(help="CPU threads a run.")] = 2,
    sets: SETS = None,
) -> None:
    """Warm start once, then run all arms side by side."""
    began = time.time()
    given = [x for value in (*(sets or ()), f"compute.threads={threads}") for x in ("--set", value)]
    warm = to / "models" / "musique-warm"
    if not warm.exists():
        command = [
            "warmstart",
            str(RECIPES / "warmstart.toml"),
            "--out",
            str(warm),
            "--runs",
            str(to / "runs"),
        ]
        _start(to, "warmstart", ["-m", "uptrend", *command, "--name", "warmstart", *given]).wait()
    chosen = [arm for arm in ARMS if not arms or arm.name.startswith(tuple(arms.split(",")))]
    waiting, running = list(chosen), dict[str, subprocess.Popen[bytes]]()
    while (waiting or running) and time.time() - began < 60 * minutes:
        while waiting and len(running) < at_once:
            arm = waiting.pop(0)
            running[arm.name] = _start(to, arm.name, _train(arm, to, warm, given))
        time.sleep(0.5)
        for name in [name for name, process in running.items() if process.poll() is not None]:
            print(
                f"{name}: exit {running.pop(name).returncode} after {time.time() - began:.0f} s",
                flush=True,
            )
    for name, process in running.items():
        process.kill()
        print(f"{name}: ended after {time.time() - began:.0f} s", flush=True)


@app.command()
def blind(
    recipe: Annotated[Path, typer.Argument(help="A recipe: a TOML file.")],
    name: Annotated[str, typer.Option(help="The run directory's name.")],
    runs: Annotated[Path, typer.Option(help="The folder that run directories go to.")],
    sets: SETS = None,
) -> None:
    """Train a recipe with a learner that sees neither question nor documents."""
    sys.path.append(str(ROOT))
    from benchmarks.faults.planted.masks import blind

    from uptrend.config import load_config
    from uptrend.runner.prepare import prepare
    from uptrend.runner.runs import start

    start(blind(prepare(load_config(recipe, sets or ()))), runs / name)


@app.command()
def report(folder: Annotated[Path, typer.Argument(help="What `run --to` wrote.")]) -> None:
    """Held-out figures before and after, and the difference between healthy and blind."""
    runs = {
        path.name: Run(path)
        for path in sorted((folder / "runs").iterdir())
        if (path / "evals.jsonl").exists()
    }
    table = Table("run", "steps", "reward", "exact match", *PARTS[1:])
    for name, one in runs.items():
        lines = one.eval_lines
        first, last = lines[0], lines[-1]
        cells = [f"{first['parts'][part]:.2f} → {last['parts'][part]:.2f}" for part in PARTS]
        table.add_row(
            name, str(last["step"]), f"{first['reward']:.3f} → {last['reward']:.3f}", *cells
        )
    Console(width=160).print(table)
    for measure in ("reward", "exact match"):
        _compare(runs, measure)


@app.command()
def real(
    file: Annotated[Path, typer.Argument(help="Examples in MuSiQue's own schema.")],
    models: Annotated[list[str], typer.Argument(help="Known models or folders.")],
    to: Annotated[
        Path, typer.Option(help="The JSON file to write, an entry a model and retriever.")
    ],
    sets: SETS = None,
) -> None:
    """Evaluate models on real examples with each retriever."""
    from uptrend.rollout.inprocess import InProcessSampler
    from uptrend.runner.evaluation import load_for_eval
    from uptrend.tasks.pool import make_heldout
    from uptrend.tasksets.musique.taskset import RETRIEVERS
    from uptrend.training.gather import RolloutPlayer as Players
    from uptrend.training.gather import play_heldout

    found = []
    limits = [
        "sampling.max_tokens=72",
        "sampling.max_turns=8",
        "sampling.context=4096",
        "sampling.rows=64",
    ]
    for model in models:
        source = {"name": "musique", "file": str(file), "split": "heldout"}
        given = [f"eval.{key}={value}" for key, value in source.items()] + [*limits, *(sets or ())]
        config, policy, _ = load_for_eval(model, None, given)
        players = Players(policy, InProcessSampler(policy), config)
        for name in RETRIEVERS:
            options = {**config.eval.options, "retriever": name}
            heldout = make_heldout(replace(config, eval=replace(config.eval, options=options)))
            held = play_heldout(players, heldout, 0, config).evaluation
            entry = {
                "model": model,
                "retriever": name,
                "tasks": held.tasks,
                "reward": held.reward,
                **held.parts,
            }
            found.append({**entry, "seconds": held.seconds})
            print(json.dumps(found[-1]), flush=True)
            to.write_text(json.dumps(found, indent=1))


def _compare(runs: dict[str, Run], measure: str) -> None:
    """Healthy minus blind after the last step: paired by question and seed, bootstrapped over
    questions.
    """
    pairs = [
        (f"healthy-{s}", f"blind-{s}")
        for s in range(3)
        if f"healthy-{s}" in runs and f"blind-{s}" in runs
    ]
    if not pairs:
        return
    gaps = np.array([_scores(runs[a], measure) - _scores(runs[b], measure) for a, b in pairs])
    means = gaps.mean(1)
    draws = np.random.default_rng(0).integers(gaps.shape[1], size=(4000, gaps.shape[1]))
    low, high = np.percentile(gaps.mean(0)[draws].mean(1), [2.5, 97.5])
    by_seed = ", ".join(f"{m:+.3f}" for m in means)
    print(
        f"healthy − blind, {measure}: {means.mean():+.3f}, 95% interval over questions {low:+.3f} to {high:+.3f}; "
        f"by seed {by_seed}"
    )
    if len(means) > 1:
        half = (
            {2: 12.706, 3: 4.303}[len(means)] * means.std(ddof=1) / len(means) ** 0.5
        )  # Student's t
        print(
            f"  95% t interval over {len(means)} seeds: {means.mean() - half:+.3f} to {means.mean() + half:+.3f}"
        )


def _scores(one: Run, measure: str) -> np.ndarray:
    """Each held-out question's score after the last step, in the order of its id."""
    rows = one.eval_rollouts(one.eval_lines[-1]["step"]).to_pylist()
    values = {
        row["task"]: float(row["reward"] if measure == "reward" else row["correct"]) for row in rows
    }
    return np.array([values[task] for task in sorted(values)])


def _train(arm: Arm, to: Path, warm: Path, given: list[str]) -> list[str]:
    program = [__file__, "blind"] if arm.is_blind else ["-m", "uptrend", "train"]
    sets = [x for value in (f"model.name={warm}", *arm.sets) for x in ("--set", value)]
    return [
        *program,
        str(RECIPES / "atlas.toml"),
        "--name",
        arm.name,
        "--runs",
        str(to / "runs"),
        *sets,
        *given,
    ]


def _start(to: Path, name: str, command: list[str]) -> subprocess.Popen[bytes]:
    (to / "logs").mkdir(parents=True, exist_ok=True)
    with (to / "logs" / f"{name}.log").open("wb") as log:
        return subprocess.Popen([sys.executable, *command], stdout=log, stderr=subprocess.STDOUT)


if __name__ == "__main__":
    app()
