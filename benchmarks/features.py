"""Options of the update and the sampler on one recipe, over seeds: what each does to learning,
memory and time.

    python benchmarks/features.py --seeds 1 2 --out features.json
    python benchmarks/features.py --only plain top-p

Every variant is the same run of arithmetic with one option changed. A line has held-out accuracy
before and after, the mean reward of the last ten steps, the gap between learner and sampler, the
weights of a correction, seconds a step (median) and the peak of memory, each as mean and range over
seeds.
"""

import argparse
import gc
import json
import statistics
import tempfile
from pathlib import Path
from typing import Any

import torch

from uptrend.config import load_config
from uptrend.records import Run
from uptrend.runner.runs import train_recipe

BASE = {
    "model": {"name": "smollm2-135m"},
    "tasks": {"name": "arithmetic", "train": 990},
    "eval": {"name": "arithmetic", "tasks": 200, "every": 0},
    "sampling": {"groups": 16, "size": 16, "max_tokens": 6, "trim": True},
    "learning": {"lr": 2e-5, "loss": "grpo", "warmup": 0},
    "doctor": {"live": False},
    "compute": {"compile": "never"},
}
SEQUENCE = ("learning.correction=sequence", "learning.correction_cap=2.0")
VARIANTS: dict[str, tuple[str, ...]] = {
    "plain": (),
    "top-p": ("sampling.top_p=0.95", *SEQUENCE),
    "top-k": ("sampling.top_k=20", *SEQUENCE),
    "min-p": ("sampling.min_p=0.05", *SEQUENCE),
    "repetition penalty": ("sampling.repetition_penalty=1.05", *SEQUENCE),
    "icepop": ("learning.correction=token", "learning.correction_mode=mask", "learning.correction_floor=0.5",
               "learning.correction_cap=5.0"),
    "two-sided": ("learning.updates=2", "learning.clip_max=4.0"),
    "gspo": ("learning.loss=gspo", "learning.updates=2", "learning.clip_low=3e-4", "learning.clip_high=4e-4"),
    "overlong": ("sampling.overlong=3", "sampling.overlong_penalty=0.5"),
    "k1": ("learning.kl.beta=0.02", "learning.kl.estimator=k1"),
    "k3": ("learning.kl.beta=0.02",),
    "reference reset": ("learning.kl.beta=0.02", "learning.kl.reset_every=10"),
    "8-bit": ("learning.optimizer=adamw-8bit",),
    "tokens that fit": ("learning.tokens=0",),
    "checkpointing": ("model.gradient_checkpointing=true",),
}  # fmt: skip
COLUMNS = (
    "before",
    "after",
    "reward",
    "gap",
    "weight",
    "masked",
    "clipped",
    "kl",
    "seconds",
    "gib",
)


def main() -> None:
    """Run the variants and print a table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="+", choices=VARIANTS, default=list(VARIANTS))
    parser.add_argument("--seeds", nargs="+", type=int, default=[1])
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument(
        "--set", nargs="+", default=[], dest="sets", help="overrides of every variant"
    )
    parser.add_argument("--out", type=Path, help="figures as JSON, written after every run")
    args = parser.parse_args()
    found: dict[str, list[dict[str, Any]]] = {}
    print("| option |", " | ".join(COLUMNS), "|", flush=True)
    for name in args.only:
        for seed in args.seeds:
            overrides = [
                f"seed={seed}",
                f"learning.steps={args.steps}",
                *args.sets,
                *VARIANTS[name],
            ]
            gc.collect()  # the run before: its model, graphs and optimizer
            if torch.cuda.is_available():
                torch.cuda.empty_cache()
                torch.cuda.reset_peak_memory_stats()
            try:
                with tempfile.TemporaryDirectory() as folder:
                    run = train_recipe(load_config(BASE, overrides), runs=folder, name="run")
                    found.setdefault(name, []).append(figures(run))
            except Exception as error:  # one option that fails must not hide the others
                print(f"| {name} | {type(error).__name__}: {error}", flush=True)
                break
            if args.out:
                args.out.write_text(json.dumps(found, indent=1))
        else:
            print(
                f"| {name} |",
                " | ".join(cell([line[key] for line in found[name]]) for key in COLUMNS),
                "|",
                flush=True,
            )


def figures(run: Run) -> dict[str, Any]:
    """Return the figures of a run."""
    lines, last = run.metric_lines, run.metric_lines[-10:]

    def mean(key: str) -> float | None:
        values = [line[key] for line in last if line.get(key) is not None]
        return statistics.fmean(values) if values else None

    return {
        "before": run.eval_lines[0]["accuracy"],
        "after": run.eval_lines[-1]["accuracy"],
        "reward": mean("reward/mean"),
        "gap": mean("sampler/gap/mean"),
        "weight": mean("correction/weight/mean"),
        "masked": mean("correction/masked/share"),
        "clipped": (mean("clip/low/share") or 0) + (mean("clip/high/share") or 0),
        "kl": mean("kl/reference/mean"),
        "seconds": statistics.median(line["seconds/step"] for line in lines[len(lines) // 2 :]),
        "gib": max(line["memory/peak/gib"] for line in lines),
        "events": [event for event in run.events if event["event"] == "fitted"],
    }


def cell(values: list[float | None]) -> str:
    """Return mean and range."""
    known = [value for value in values if value is not None]
    if not known:
        return ""
    ends = f" ({min(known):.3g}–{max(known):.3g})" if len(known) > 1 else ""
    return f"{statistics.fmean(known):.3g}{ends}"


if __name__ == "__main__":
    main()
