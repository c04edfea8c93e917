"""Seconds a training step: Uptrend against TRL's GRPOTrainer, in one process, taking turns.

    python benchmarks/step.py --groups 16 --size 16 --tokens 8 --steps 12
    python benchmarks/step.py --tokens 256 --stop-rate 0.02 --out results.json
    python benchmarks/step.py --shape 7b --lora --set model.weights=bf16 --only uptrend
    python benchmarks/step.py --turns 4 --reply 64 --record-cost

Both train the same model on the same tasks with the same sizes, precision, learning rate, KL
penalty and reward. Each has a thread; a baton lets one of them make a step, then the other, so that
both see the same machine. The first steps of each (compilation, graph capture, allocation) are
reported apart. Peak memory is taken in a process for each.

Tokens and FLOPs are what a step needs, by the same count for both: sampling, the reference and the
update each take a group's prompt once and every other token once. Padding, prompts computed again
and activations computed again count as time, not as work. MFU is these FLOPs per second over
--peak-tflops.
"""

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from step_work import (
    SHAPES,
    WARM,
    Cost,
    PhasedLearner,
    Replies,
    Timing,
    make_shape,
    memory,
    phase,
    print_profile,
    rows_of,
    summary,
    sync,
    text_of,
    with_ends,
    work_of,
)  # fmt: skip
from uptrend.config import Config, load_config
from uptrend.policy.known import find_model
from uptrend.policy.policy import DTYPE_BY_NAME
from uptrend.runner.observers import LiveDoctor
from uptrend.runner.prepare import prepare
from uptrend.runner.runs import start
from uptrend.tasks.answers import is_right
from uptrend.tasks.pool import make_heldout, make_pool
from uptrend.training import loop
from uptrend.training.gather import gather


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


class StepWatch:
    """An observer of Uptrend's loop that times steps between batons, and profiles the one after the
    last.
    """

    def __init__(self, baton: Baton, timing: Timing, last: int, *, profile: bool) -> None:
        self.baton, self.timing, self.began, self.last = baton, timing, 0.0, last
        self.profiler = torch.profiler.profile() if profile else None
        if profile:  # graphs tell of their kernels where a profiler was there before them
            os.environ["TEARDOWN_CUPTI"] = "0"
            with torch.profiler.profile():
                sync()
        self.rollouts: list[Any] = []

    def gather(self, *given: Any) -> Any:
        """Sample a step's groups, and keep them to be counted when the step's time has been
        taken.
        """
        with phase("sample", is_on=self.profiler is not None):
            gathered = gather(*given)
        self.rollouts = gathered.rollouts
        return gathered

    def before(self, run: Any) -> None:  # noqa: ARG002
        self.baton.take("uptrend")

    def step(self, record: Any) -> None:
        if 0 < record.step <= self.last:
            self.timing.add(self.began)
            self.timing.rewards.append(record.metrics.get("reward/mean", float("nan")))
            self.timing.phases.append(
                {k[8:]: v for k, v in record.metrics.items() if k.startswith("seconds/")}
            )
            self.timing.work.append(
                work_of(row for rollout in self.rollouts for row in rows_of(rollout))
            )
            for thread in threading.enumerate():
                if (
                    thread.name == "recorder"
                    and thread.ident
                    and hasattr(time, "pthread_getcpuclockid")
                ):
                    self.timing.recorder.append(
                        time.clock_gettime(time.pthread_getcpuclockid(thread.ident))
                    )
        elif record.step > self.last and self.profiler:
            sync()
            self.profiler.stop()
            print_profile(self.profiler)
        self.baton.give("uptrend")
        self.baton.take("uptrend")
        if record.step == self.last and self.profiler:
            self.profiler.start()
        self.began = time.perf_counter()

    def after(self, run: Any) -> None:  # noqa: ARG002
        self.baton.give("uptrend", last=True)


class NoRecorder:
    """Recorder that keeps nothing."""

    def __init__(self, *_: Any) -> None: ...

    def step(self, *_: Any) -> None: ...

    evaluation = drain = close = before = after = step


def recipe(args: argparse.Namespace) -> Config:
    tasks: dict[str, Any] = {"name": "arithmetic"}
    if args.turns > 1:
        text = text_of(find_model(args.model), args.reply)
        tasks = {"name": f"{Replies.__module__}:Replies", "turns": args.turns, "text": text}
    context = max(2048, args.turns * (args.tokens + args.reply + 64))
    table: dict[str, Any] = {
        "name": "step",
        "model": {"name": args.model},
        "tasks": {**tasks, "train": 900},
        "eval": {**tasks, "tasks": 8, "every": 0},
        "sampling": {"groups": args.groups, "size": args.size, "max_tokens": args.tokens, "temperature": 1.0,
                     "max_turns": args.turns, "context": context},
        "compute": {"compile": args.compile},
        "learning": {"steps": args.steps + WARM, "lr": args.lr, "kl": {"beta": args.beta}, "tokens": args.budget,
                     "loss": "grpo", "warmup": 0},
    }  # fmt: skip
    if args.lora:
        table["model"]["lora"] = {"r": 16, "alpha": 32}
    return load_config(table, args.set)


def run_uptrend(
    config: Config, args: argparse.Namespace, folder: Path, baton: Baton, timing: Timing
) -> None:
    try:
        baton.take("uptrend")  # loading models in two threads at once does not work either
        last = config.learning.steps
        watch = StepWatch(baton, timing, last, profile=args.profile)
        if args.profile:
            config = replace(config, learning=replace(config.learning, steps=last + 1))
        prepared = prepare(config)
        parts = replace(prepared.components, gather=watch.gather)
        if args.profile:
            parts = replace(parts, learner=PhasedLearner)
        if args.records == "none":  # in a process of its own: nothing else would be recorded either
            parts = replace(parts, metrics=lambda _: {})
            loop.Recorder = loop.WeightMeter = NoRecorder  # type: ignore[misc, assignment]
        loop.save_checkpoint = lambda *_, **__: None  # type: ignore[assignment]  # after the last step; a large model's disk
        doctor = [LiveDoctor(lambda _: None)] if args.records == "all" else []
        start(replace(prepared, components=parts), folder / "run", [watch, *doctor])
    finally:
        baton.give("uptrend", last=True)


def run_trl(
    config: Config, args: argparse.Namespace, folder: Path, baton: Baton, timing: Timing
) -> None:
    try:
        baton.take("trl")
        make_trl(config, args, folder, baton, timing).train()
    finally:
        baton.give("trl", last=True)


def make_trl(
    config: Config, args: argparse.Namespace, folder: Path, baton: Baton, timing: Timing
) -> Any:
    from datasets import Dataset
    from peft import LoraConfig
    from transformers import AutoModelForCausalLM, AutoTokenizer, PrinterCallback, TrainerCallback
    from trl import GRPOConfig, GRPOTrainer

    source = find_model(config.model.name)
    tokenizer = AutoTokenizer.from_pretrained(source, padding_side="left")
    tasks = make_pool(config, make_heldout(config)).stages[0].tasks
    answers = {t.messages[0].content: t.answer for t in tasks}
    lengths = {prompt: len(tokenizer(prompt).input_ids) for prompt in answers}
    said: list[tuple[str, int, int, int]] = []

    def reward(
        prompts: list[str], completions: list[str], completion_ids: list[list[int]], **_: Any
    ) -> list[float]:
        said[:] = [
            (p, lengths[p], len(ids), len(ids))
            for p, ids in zip(prompts, completion_ids, strict=True)
        ]
        return [
            1.0 if is_right(c, answers[p]) else -1.0
            for p, c in zip(prompts, completions, strict=True)
        ]

    class Turns(TrainerCallback):  # type: ignore[misc]
        def on_train_begin(self, *_: Any, **__: Any) -> None:
            baton.take("trl")
            self.began = time.perf_counter()

        def on_step_end(self, *_: Any, **__: Any) -> None:
            timing.add(self.began)
            timing.work.append(work_of(said))
            baton.give("trl")
            baton.take("trl")
            self.began = time.perf_counter()

        def on_log(
            self, _a: Any, _s: Any, _c: Any, logs: dict[str, Any] | None = None, **__: Any
        ) -> None:
            if logs and "reward" in logs:
                timing.rewards.append(float(logs["reward"]))

    on_gpu, rollouts = torch.cuda.is_available(), args.groups * args.size
    batch = args.trl_batch or rollouts
    continuous = {"max_memory_percent": args.trl_continuous} if args.trl_continuous else None
    arguments = GRPOConfig(
        output_dir=str(folder / "trl"), max_steps=config.learning.steps, logging_steps=1, report_to=[],
        save_strategy="no", disable_tqdm=True, seed=0, bf16=on_gpu, use_cpu=not on_gpu,
        per_device_train_batch_size=batch, gradient_accumulation_steps=rollouts // batch, num_generations=args.size,
        max_completion_length=args.tokens, temperature=1.0, learning_rate=args.lr, lr_scheduler_type="constant",
        beta=args.beta, loss_type="grpo", gradient_checkpointing=config.model.gradient_checkpointing,
        use_bias_correction_kl=False, use_transformers_continuous_batching=continuous is not None,
        transformers_continuous_batching_config=continuous,
    )  # fmt: skip
    model = AutoModelForCausalLM.from_pretrained(source, dtype=DTYPE_BY_NAME[config.model.weights])
    adapters = LoraConfig(r=16, lora_alpha=32, target_modules="all-linear", task_type="CAUSAL_LM")
    trainer = GRPOTrainer(
        model=model, args=arguments, processing_class=tokenizer,
        train_dataset=Dataset.from_list([{"prompt": p} for p in answers]), reward_funcs=reward, callbacks=[Turns()],
        peft_config=adapters if args.lora else None,
    )  # fmt: skip
    trainer.remove_callback(PrinterCallback)
    return trainer


def compete(args: argparse.Namespace, config: Config, names: list[str]) -> dict[str, Timing]:
    """Run the contestants named, in turn; those that failed have no steps."""
    import peft  # noqa: F401 (lazy imports of two threads get in each other's way: all of them first)
    from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback  # noqa: F401

    if "trl" in names:
        from trl import GRPOConfig, GRPOTrainer  # noqa: F401
    baton, timings = Baton(names), {name: Timing() for name in names}
    jobs = {"uptrend": run_uptrend, "trl": run_trl}
    with tempfile.TemporaryDirectory() as folder:
        given = {name: (config, args, Path(folder), baton, timings[name]) for name in names}
        if len(names) == 1:  # here: torch's profiler sees kernels from the main thread alone
            jobs[names[0]](*given[names[0]])
            return timings
        threads = [threading.Thread(target=jobs[name], args=given[name]) for name in names]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    return timings


def run_apart(argv: list[str], model: str, *more: str) -> dict[str, Any]:
    """Run one contestant in a process of its own, on a model that is ready; return its row, empty
    where it failed.
    """
    with tempfile.NamedTemporaryFile(suffix=".json") as file:
        ready = [
            "--model",
            model,
            "--shape",
            "",
            "--stop-rate",
            "0",
            "--no-memory",
            "--out",
            file.name,
        ]
        command = [
            sys.executable,
            __file__,
            *(a for a in argv if a not in ("--record-cost", "--profile")),
        ]
        done = subprocess.run(
            [*command, *ready, *more], capture_output=True, text=True, check=False, env=os.environ
        )
        if done.returncode != 0:
            print(done.stderr[-2000:], file=sys.stderr)
            return {}
        return next(iter(json.loads(Path(file.name).read_text())["rows"].values()), {})


def record_cost(argv: list[str], model: str) -> dict[str, float]:
    """Compare a run that records and is watched with one that does neither, one after the other."""
    full, bare = (
        run_apart(argv, model, "--only", "uptrend", "--records", kind) for kind in ("all", "none")
    )
    if not full or not bare:
        return {}
    pairs = list(zip(full["seconds"], bare["seconds"], strict=True))[WARM:]
    return {
        "full": full["median"], "bare": bare["median"], "share": statistics.median(f / b - 1 for f, b in pairs),
        "record": full["phases"]["record"], "recorder_cpu": full["recorder_cpu"], "doctor_cpu": full["doctor_cpu"],
    }  # fmt: skip


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for name, default in {
        "groups": 16,
        "size": 16,
        "tokens": 8,
        "steps": 12,
        "budget": 16384,
    }.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    add = parser.add_argument
    add("--lr", type=float, default=1e-5)
    add("--beta", type=float, default=0.1)
    add("--model", default="smollm2-135m")
    add(
        "--shape",
        default="",
        choices=["", *SHAPES],
        help="random weights of this shape instead of --model",
    )
    add("--tokenizer", default="smollm2-135m", help="the shape's: a known model, or a folder")
    add("--stop-rate", type=float, default=0.0,
        help="share of sampled tokens that end a rollout: tokens chosen at random until, in samples of the model, they "
        "do; the model's own ends no longer do. 0 leaves the model as it is")  # fmt: skip
    add("--turns", type=int, default=1,
        help="turns of a rollout, of --tokens tokens at most each; Uptrend alone, as TRL takes several turns only of a "
        "model that calls tools")  # fmt: skip
    add(
        "--reply",
        type=int,
        default=32,
        help="tokens that the task answers after each turn but the last, about",
    )
    add("--lora", action="store_true")
    add("--compile", default="auto", choices=["auto", "never", "always"], help="Uptrend's")
    add("--set", action="append", default=[], metavar="KEY=VALUE",
        help="override a key of Uptrend's recipe; TRL follows learning.steps, model.weights and "
        "model.gradient_checkpointing alone")  # fmt: skip
    add("--trl-continuous", type=float, nargs="?", const=0.5, default=0.0, metavar="SHARE",
        help="TRL's continuous batching instead of generate(), with this share of free memory for its cache, which it "
        "makes anew in every step (TRL's default: 0.5). On a GPU, TRL then casts the weights that train to bf16",
        )  # fmt: skip
    add(
        "--trl-batch",
        type=int,
        default=0,
        help="rollouts per pass of TRL's update, a divisor of all; 0 for all",
    )
    add("--only", choices=["uptrend", "trl"], help="one contestant alone")
    add("--no-memory", action="store_true", help="leave the memory processes out")
    add(
        "--peak-tflops",
        type=float,
        help="the device's, for MFU (default on CUDA: 989, an H100's or H200's in bf16)",
    )
    add(
        "--profile",
        action="store_true",
        help="profile one more step of Uptrend's; with --only uptrend",
    )
    add("--records", default="usual", choices=["usual", "all", "none"],
        help="what Uptrend records: metrics and rollouts, the same with the live doctor beside it, or nothing at all",
        )  # fmt: skip
    add("--record-cost", action="store_true",
        help="also run Uptrend alone with --records all and none, in two processes one after the other, with the same "
        "seeds (take --steps 30 or more, as the doctor starts in the first). The cost is the median over steps of how "
        "much longer the first one's step takes: metrics, measuring the weights' movement, waiting for the recorder's "
        "thread, and whatever it and the doctor's process take from the step. Their CPU time is told apart, as it may "
        "run beside the step")  # fmt: skip
    add("--out", type=Path)
    args = parser.parse_args()
    if args.turns > 1 or args.profile:
        if args.only == "trl":
            parser.error("--turns and --profile are for Uptrend alone")
        args.only = "uptrend"
    if args.records == "none" and args.only != "uptrend":
        parser.error("--records none needs --only uptrend")
    if args.trl_batch and args.groups * args.size % args.trl_batch:
        parser.error("--trl-batch must divide groups times size")
    if args.peak_tflops is None and torch.cuda.is_available():
        args.peak_tflops = 989.0
    return args


def main() -> None:
    args = parse()
    args.label = args.shape or args.model
    with tempfile.TemporaryDirectory() as folder:
        if args.shape:
            args.model = str(make_shape(args.shape, args.tokenizer, Path(folder) / args.shape))
        if args.stop_rate:
            before = recipe(args)
            prompts = [
                t.messages[0].content
                for t in make_pool(before, make_heldout(before)).stages[0].tasks
            ]
            ended, share = with_ends(
                find_model(args.model), prompts, args.tokens, args.stop_rate, Path(folder) / "ended"
            )
            args.model = str(ended)
            print(f"ends     {share:.4f} of sampled tokens end a rollout")
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
        race(args)


def race(args: argparse.Namespace) -> None:
    config, names = recipe(args), [args.only] if args.only else ["uptrend", "trl"]
    learning = config.learning
    forwards = (learning.kl.beta > 0) + (learning.updates * learning.minibatches > 1)
    cost = Cost.of(
        find_model(args.model), forwards=forwards, updates=learning.updates, frozen=args.lora
    )
    timings = compete(args, config, names)
    rows = {
        n: summary(t, cost, args.peak_tflops) for n, t in timings.items() if len(t.seconds) > WARM
    }
    for name, row in rows.items():
        if args.only:
            row["memory"] = memory(timings[name])
        elif not args.no_memory:
            row["memory"] = run_apart(sys.argv[1:], args.model, "--only", name, "--steps", "2").get(
                "memory", {}
            )
    if "uptrend" in rows and (cpu := timings["uptrend"].recorder[WARM - 1 :]):
        rows["uptrend"]["recorder_cpu"] = (cpu[-1] - cpu[0]) / max(1, len(cpu) - 1)
        children = resource.getrusage(resource.RUSAGE_CHILDREN)
        rows["uptrend"]["doctor_cpu"] = (
            children.ru_utime + children.ru_stime if args.records == "all" else 0.0
        )
    report(args, rows, record_cost(sys.argv[1:], args.model) if args.record_cost else {})
    if failed := [name for name in names if name not in rows]:
        sys.exit(f"{', '.join(failed)} failed")


def report(
    args: argparse.Namespace, rows: dict[str, dict[str, Any]], cost: dict[str, float]
) -> None:
    where = (
        torch.cuda.get_device_name()
        if torch.cuda.is_available()
        else f"CPU, {torch.get_num_threads()} threads"
    )
    kind, turns = (
        "LoRA r=16" if args.lora else "full",
        f"{args.turns} turns of " if args.turns > 1 else "",
    )
    print(
        f"{args.label}, {kind}, {args.groups} x {args.size} rollouts of {turns}{args.tokens} tokens, "
        f"beta {args.beta}, {where}"
    )
    print(f"{'':8} {'median s':>9} {'quartiles':>15} {'first s':>8}  reward first → last")
    for name, row in rows.items():
        quartiles = f"{row['q1']:.3f}–{row['q3']:.3f}"
        rewards = f"{row['reward_first']:+.2f} → {row['reward_last']:+.2f}"
        print(f"{name:8} {row['median']:9.3f} {quartiles:>15} {row['first']:8.2f}  {rewards}")
    print(
        f"{'':8} {'length':>9} {'sampled/s':>10} {'tokens/s':>10} {'TFLOP/s':>8} {'MFU':>6}  peak GiB"
    )
    for name, row in rows.items():
        used = "–" if row["mfu"] is None else f"{row['mfu']:.1%}"
        rates = f"{row['sampled_per_s']:10,.0f} {row['tokens_per_s']:10,.0f} {row['tflops']:8.3g} {used:>6}"
        peak = ", ".join(f"{kind} {gib:.2f}" for kind, gib in row.get("memory", {}).items())
        print(f"{name:8} {row['length']:9.1f} {rates}  {peak}")
    if len(rows) == 2:
        print(f"ratio    {rows['trl']['median'] / rows['uptrend']['median']:9.2f} times")
    if "uptrend" in rows:
        print("phases   " + ", ".join(f"{k} {v:.3f}" for k, v in rows["uptrend"]["phases"].items()))
    if cost:
        print(
            f"records  {cost['share']:+.1%} of a step: {cost['full']:.3f} s with, {cost['bare']:.3f} s without; record "
            f"{cost['record']:.3f} s; CPU beside it: recorder {cost['recorder_cpu']:.3f} s per step, doctor "
            f"{cost['doctor_cpu']:.2f} s in all"
        )
    if args.out:
        said = {
            "args": {k: str(v) for k, v in vars(args).items()},
            "where": where,
            "rows": rows,
            "record_cost": cost,
        }
        args.out.write_text(json.dumps(said, indent=1))


if __name__ == "__main__":
    main()
