"""Seconds a training step: Uptrend against TRL's GRPOTrainer, in one process, taking turns.

    python benchmarks/step.py --groups 16 --size 16 --tokens 8 --steps 12
    python benchmarks/step.py --tokens 64 --out results.json
    python benchmarks/step.py --lora

Both train the same model on the same tasks with the same sizes, precision, learning rate, KL penalty and
reward. Each has a thread; a baton lets one of them make a step, then the other, so that both see the same
machine. The first steps of each (compilation, graph capture, allocation) are reported apart. Peak memory is
taken in a process for each.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from uptrend.config import Config, load_config
from uptrend.runner.runs import train
from uptrend.tasks.arithmetic import is_right
from uptrend.tasks.pool import heldout, pool

WARM = 3


@dataclass
class Baton:
    """Lets the contestants step in turn."""

    names: list[str]
    turn: int = 0
    done: set[str] = field(default_factory=set)
    changed: threading.Condition = field(default_factory=threading.Condition)

    def take(self, name: str) -> None:
        with self.changed:
            self.changed.wait_for(lambda: self.names[self.turn] == name)

    def give(self, name: str, *, last: bool = False) -> None:
        with self.changed:
            if last:
                self.done.add(name)
            for _ in self.names:
                self.turn = (self.turn + 1) % len(self.names)
                if self.names[self.turn] not in self.done:
                    break
            self.changed.notify_all()


@dataclass
class Timing:
    """What one contestant did."""

    seconds: list[float] = field(default_factory=list)
    rewards: list[float] = field(default_factory=list)
    phases: list[dict[str, float]] = field(default_factory=list)


class StepWatch:
    """An observer of Uptrend's loop that times steps between batons."""

    def __init__(self, baton: Baton, timing: Timing) -> None:
        self.baton, self.timing, self.began = baton, timing, 0.0

    def before(self, run: Any) -> None:  # noqa: ARG002
        self.baton.take("uptrend")

    def step(self, record: Any) -> None:
        sync()
        if record.step > 0:
            self.timing.seconds.append(time.perf_counter() - self.began)
            self.timing.rewards.append(record.metrics.get("reward/mean", float("nan")))
            self.timing.phases.append({k[8:]: v for k, v in record.metrics.items() if k.startswith("seconds/")})
        self.baton.give("uptrend")
        self.baton.take("uptrend")
        self.began = time.perf_counter()

    def after(self, run: Any) -> None:  # noqa: ARG002
        self.baton.give("uptrend", last=True)


def sync() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def recipe(args: argparse.Namespace) -> Config:
    table: dict[str, Any] = {
        "name": "step",
        "model": {"name": args.model, "lora": {"r": 16, "alpha": 32} if args.lora else None},
        "tasks": {"name": "arithmetic", "train": 900},
        "eval": {"name": "arithmetic", "tasks": 8, "every": 0},
        "sampling": {"groups": args.groups, "size": args.size, "max_tokens": args.tokens, "temperature": 1.0},
        "compute": {"compile": args.compile},
        "learning": {
            "steps": args.steps + WARM,
            "lr": args.lr,
            "kl": {"beta": args.beta},
            "tokens": args.budget,
        },
    }
    if not args.lora:
        del table["model"]["lora"]
    return load_config(table)


def run_uptrend(config: Config, folder: Path, baton: Baton, timing: Timing) -> None:
    try:
        baton.take("uptrend")  # loading models in two threads at once does not work either
        train(config, runs=folder, observers=[StepWatch(baton, timing)])
    finally:
        baton.give("uptrend", last=True)


def run_trl(config: Config, args: argparse.Namespace, folder: Path, baton: Baton, timing: Timing) -> None:
    try:
        baton.take("trl")
        make_trl(config, args, folder, baton, timing).train()
    finally:
        baton.give("trl", last=True)


def make_trl(config: Config, args: argparse.Namespace, folder: Path, baton: Baton, timing: Timing) -> Any:
    from datasets import Dataset
    from peft import LoraConfig
    from transformers import AutoModelForCausalLM, AutoTokenizer, PrinterCallback, TrainerCallback
    from trl import GRPOConfig, GRPOTrainer

    from uptrend.policy.known import find_model

    source = find_model(config.model.name)
    tasks = pool(config, heldout(config)).stages[0].tasks
    answers = {t.messages[0].content: t.answer for t in tasks}

    def reward(prompts: list[str], completions: list[str], **_: Any) -> list[float]:
        return [1.0 if is_right(c, answers[p]) else -1.0 for p, c in zip(prompts, completions, strict=True)]

    class Turns(TrainerCallback):  # type: ignore[misc]
        def on_train_begin(self, *_: Any, **__: Any) -> None:
            baton.take("trl")
            self.began = time.perf_counter()

        def on_step_end(self, *_: Any, **__: Any) -> None:
            sync()
            timing.seconds.append(time.perf_counter() - self.began)
            baton.give("trl")
            baton.take("trl")
            self.began = time.perf_counter()

        def on_log(self, _a: Any, _s: Any, _c: Any, logs: dict[str, Any] | None = None, **__: Any) -> None:
            if logs and "reward" in logs:
                timing.rewards.append(float(logs["reward"]))

    on_gpu = torch.cuda.is_available()
    arguments = GRPOConfig(
        output_dir=str(folder / "trl"), max_steps=config.learning.steps, logging_steps=1, report_to=[],
        save_strategy="no", disable_tqdm=True, seed=0, bf16=on_gpu, use_cpu=not on_gpu,
        per_device_train_batch_size=args.groups * args.size, num_generations=args.size,
        max_completion_length=args.tokens, temperature=1.0, learning_rate=args.lr, lr_scheduler_type="constant",
        beta=args.beta, loss_type="grpo", gradient_checkpointing=False, use_bias_correction_kl=False,
        use_transformers_continuous_batching=args.trl_continuous,
    )  # fmt: skip
    model = AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32)
    adapters = LoraConfig(r=16, lora_alpha=32, target_modules="all-linear", task_type="CAUSAL_LM")
    trainer = GRPOTrainer(
        model=model, args=arguments, processing_class=AutoTokenizer.from_pretrained(source, padding_side="left"),
        train_dataset=Dataset.from_list([{"prompt": p} for p in answers]), reward_funcs=reward, callbacks=[Turns()],
        peft_config=adapters if args.lora else None,
    )  # fmt: skip
    trainer.remove_callback(PrinterCallback)
    return trainer


def compete(args: argparse.Namespace, names: list[str]) -> dict[str, Timing]:
    """Run the contestants named, in turn."""
    import peft  # noqa: F401 (lazy imports of two threads get in each other's way: all of them first)
    import transformers  # noqa: F401
    from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback  # noqa: F401

    import uptrend.training.loop  # noqa: F401

    if "trl" in names:
        from trl import GRPOConfig, GRPOTrainer  # noqa: F401
    config, baton = recipe(args), Baton(names)
    timings = {name: Timing() for name in names}
    with tempfile.TemporaryDirectory() as folder:
        jobs = {
            "uptrend": lambda: run_uptrend(config, Path(folder), baton, timings["uptrend"]),
            "trl": lambda: run_trl(config, args, Path(folder), baton, timings["trl"]),
        }
        threads = [threading.Thread(target=jobs[name]) for name in names]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    return timings


def peak_memory(name: str, argv: list[str]) -> float:
    """GiB at most, of a process that runs one contestant alone for a few steps."""
    command = [sys.executable, __file__, *argv, "--only", name, "--steps", "2"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=os.environ)
    return float(json.loads(done.stdout.splitlines()[-1])["peak_gib"]) if done.returncode == 0 else float("nan")


def summary(timing: Timing) -> dict[str, Any]:
    warm = timing.seconds[WARM:]
    quartiles = statistics.quantiles(warm, n=4) if len(warm) > 1 else [float("nan")] * 3
    phases = {k: statistics.median(p[k] for p in timing.phases[WARM:] if k in p) for k in (timing.phases or [{}])[-1]}
    return {
        "median": statistics.median(warm), "q1": quartiles[0], "q3": quartiles[2], "first": timing.seconds[0],
        "steps": len(warm), "reward_first": statistics.mean(timing.rewards[:3]),
        "reward_last": statistics.mean(timing.rewards[-3:]), "phases": phases,
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in {"groups": 16, "size": 16, "tokens": 8, "steps": 12, "budget": 16384}.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--lr", type=float, default=1e-5)
    parser.add_argument("--beta", type=float, default=0.1)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--lora", action="store_true")
    parser.add_argument("--compile", default="never", choices=["auto", "never", "always"], help="Uptrend's")
    parser.add_argument("--trl-continuous", action="store_true", help="TRL's continuous batching instead of generate()")
    parser.add_argument("--only", choices=["uptrend", "trl"], help="one contestant alone, for its peak memory")
    parser.add_argument("--no-memory", action="store_true", help="leave the memory processes out")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    if args.only:
        timings = compete(args, [args.only])
        from uptrend.training.metrics import peak_memory_gib

        device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        print(json.dumps({"peak_gib": peak_memory_gib(device), "seconds": timings[args.only].seconds}))
        return
    rows = {name: summary(t) for name, t in compete(args, ["uptrend", "trl"]).items()}
    if not args.no_memory:
        for name in rows:
            rows[name]["peak_gib"] = peak_memory(name, sys.argv[1:])
    report(args, rows)


def report(args: argparse.Namespace, rows: dict[str, dict[str, Any]]) -> None:
    where = torch.cuda.get_device_name() if torch.cuda.is_available() else f"CPU, {torch.get_num_threads()} threads"
    kind = "LoRA r=16" if args.lora else "full"
    print(
        f"{args.model}, {kind}, {args.groups} x {args.size} rollouts of {args.tokens} tokens, beta {args.beta}, {where}"
    )
    print(f"{'':8} {'median s':>9} {'quartiles':>15} {'first s':>8} {'peak GiB':>9}  reward first → last")
    for name, row in rows.items():
        quartiles, peak = f"{row['q1']:.3f}–{row['q3']:.3f}", row.get("peak_gib", float("nan"))
        print(
            f"{name:8} {row['median']:9.3f} {quartiles:>15} {row['first']:8.2f} {peak:9.2f}"
            f"  {row['reward_first']:+.2f} → {row['reward_last']:+.2f}"
        )
    print(f"ratio    {rows['trl']['median'] / rows['uptrend']['median']:9.2f} times")
    print("phases   " + ", ".join(f"{k} {v:.3f}" for k, v in rows["uptrend"]["phases"].items()))
    if args.out:
        args.out.write_text(
            json.dumps({"args": {k: str(v) for k, v in vars(args).items()}, "where": where, "rows": rows}, indent=1)
        )


if __name__ == "__main__":
    main()
