"""One recipe in several layouts: processes, servers, sampling ahead. Throughput and learning, as a
Markdown table.

    python benchmarks/scale.py --layouts one,ahead-1,ddp,fsdp2,zero3 --steps 20 --seeds 0
    python benchmarks/scale.py --layouts one,vllm,vllm-ahead-1 --server http://127.0.0.1:8000 --seeds 0,1,2

Layouts are run one after the other, seed by seed, so that a machine's slow minutes meet all of
them.
"""

import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Annotated

import typer

from uptrend.records import Run

ROOT = Path(__file__).parents[1]
TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
AHEAD = ("learning.correction=token",)
# Words after the Python that starts a layout, and what it sets.
LAYOUTS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "one": ((), ()),
    "corrected": ((), AHEAD),
    "ahead-1": ((), (*AHEAD, "sampling.ahead=1")),
    "ahead-2": ((), (*AHEAD, "sampling.ahead=2")),
    "ddp": (TORCHRUN, ()),
    "fsdp2": (TORCHRUN, ("compute.parallel=fsdp2",)),
    "zero3": (TORCHRUN, ("compute.parallel=zero3",)),
    "vllm": ((), ("sampling.engine=vllm",)),
    "vllm-ahead-1": ((), (*AHEAD, "sampling.engine=vllm", "sampling.ahead=1")),
    "vllm-ahead-2": ((), (*AHEAD, "sampling.engine=vllm", "sampling.ahead=2")),
    "vllm-ddp": (TORCHRUN, ("sampling.engine=vllm",)),
    "vllm-ddp-ahead-1": (TORCHRUN, (*AHEAD, "sampling.engine=vllm", "sampling.ahead=1")),
    "vllm-fsdp2": (TORCHRUN, ("sampling.engine=vllm", "compute.parallel=fsdp2")),
}


def main(
    layouts: Annotated[
        str, typer.Option(help=f"Some of {', '.join(LAYOUTS)}.")
    ] = "one,ahead-1,ddp",
    recipe: Annotated[Path, typer.Option(help="Recipe to train.")] = ROOT / "recipes/tiny.toml",
    seeds: Annotated[str, typer.Option(help="Seeds of the runs.")] = "0",
    steps: Annotated[int, typer.Option(help="Steps of a run; 0 for the recipe's.")] = 20,
    server: Annotated[
        str, typer.Option(help="Address of a vLLM that `uptrend models serve RECIPE` started.")
    ] = "",
    threads: Annotated[int, typer.Option(help="Torch threads of each process.")] = 1,
    sets: Annotated[
        list[str] | None, typer.Option("--set", help="Further settings of all layouts.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder for the runs; a temporary one otherwise.")
    ] = None,
) -> None:
    """Train a recipe in each layout and print what it took and what came of it."""
    names, folder = layouts.split(","), out or Path(tempfile.mkdtemp())
    runs: dict[str, list[Run]] = {name: [] for name in names}
    for seed in seeds.split(","):
        for name in names:
            words, own = LAYOUTS[name]
            given = [*own, *(sets or ()), f"seed={seed}", f"compute.threads={threads}"]
            given += [f"learning.steps={steps}"] if steps else []
            given += [f'sampling.servers=["{server}"]'] if server else []
            command = [
                sys.executable,
                *words,
                "-m",
                "uptrend",
                "train",
                str(recipe),
                "--no-preflight",
                "--quiet",
            ]
            command += ["--runs", str(folder), "--name", f"{name}-{seed}"]
            environment = {**os.environ, "OMP_NUM_THREADS": str(threads)}
            done = subprocess.run(
                [*command, *(word for each in given for word in ("--set", each))],
                env=environment, capture_output=True, text=True, check=False,
            )  # fmt: skip
            if done.returncode:
                print(
                    f"{name}, seed {seed}: exit {done.returncode}\n{(done.stdout + done.stderr)[-2000:]}"
                )
                continue
            runs[name].append(Run(folder / f"{name}-{seed}"))
            print(f"{name}, seed {seed}: done", file=sys.stderr, flush=True)
    columns = (
        "layout",
        "s/step",
        "sampled tok/s",
        "trained tok/s",
        "wait s",
        "update s",
        "load s",
        "lag",
        "held-out",
    )
    print(f"| {' | '.join(columns)} |\n|{'---|' * len(columns)}")
    for name, found in runs.items():
        if found:
            print(f"| {name} | {' | '.join(row(found))} |")


def row(runs: list[Run]) -> list[str]:
    """Return a layout's cells: medians over steps but the first two, with quartiles; accuracy by
    mean and range.
    """
    lines = [line for run in runs for line in run.metric_lines if line["step"] > 2]

    def median(key: str) -> float:
        return statistics.median(line[key] for line in lines)

    seconds = [line["seconds/step"] for line in lines]
    low, _, high = statistics.quantiles(seconds, n=4)
    tokens = statistics.mean(line["tokens/model/count"] for line in lines)
    trained = statistics.mean(line["tokens/trained/model/count"] for line in lines)
    whole = statistics.mean(seconds)
    before, after = ([100 * run.eval_lines[at]["accuracy"] for run in runs] for at in (0, -1))
    shown = f"{statistics.mean(before):.1f} → {statistics.mean(after):.1f}%"
    shown += f" ({min(after):.1f}–{max(after):.1f})" if len(runs) > 1 else ""
    return [
        f"{statistics.median(seconds):.3g} ({low:.3g}–{high:.3g})", f"{tokens / whole:,.0f}", f"{trained / whole:,.0f}",
        f"{median('seconds/sample'):.3g}", f"{median('seconds/update'):.3g}", f"{median('seconds/load'):.3g}",
        f"{median('sampling/lag/mean'):.1f}", shown,
    ]  # fmt: skip


if __name__ == "__main__":
    typer.run(main)
