"""The run directory of a watched run, from the trainer's side: created and locked here, filled by
another process.

Only this process writes run.json (TRL's arguments as a recipe) and events.jsonl, and prints; only
the other one (writer.py) writes the rest.
"""

import contextlib
import json
import multiprocessing
import os
import platform
import queue
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from uptrend.bridge.trl.batch import Settings, TrlBatch, TrlStep
from uptrend.bridge.trl.findings_log import FindingsLog
from uptrend.bridge.trl.guard import Guard, describe_error
from uptrend.bridge.trl.processes import Rendezvous, make_key
from uptrend.bridge.trl.rollouts import RewardRange
from uptrend.bridge.trl.weights import (
    Move,
    WatchedWeights,
    dtype_name,
    judge_update,
    most_common,
    size_of,
)
from uptrend.config.tables import nest
from uptrend.policy.model_files import NEUTRAL_GENERATION, describe_model, hidden_settings
from uptrend.records import Run, RunDirectory, RunView
from uptrend.records.dialects import read_setting
from uptrend.records.directory import describe_location, free_path
from uptrend.records.machine import RECORDED_PACKAGES, installed_versions, recorded_environment
from uptrend.records.schema import SCHEMA_VERSION
from uptrend.records.worker_process import ONE_THREAD, start_module
from uptrend.training.metrics import peak_memory_gib

# Steps that may wait to be sent before the trainer waits.
MAX_QUEUED_STEPS = 8
# Seconds that the trainer waits for a process that takes nothing, before steps are left out; and
# for each further step, while it still takes nothing.
SEND_TIMEOUT_S = 20.0
STUCK_SEND_TIMEOUT_S = 0.001
# Seconds that the rest may take once the training is over.
CLOSE_TIMEOUT_S = 60.0
# Lost steps that a message names.
MAX_STEPS_NAMED = 5

# Settings that are arguments of TRL under another name; the rest of a recipe is computed.
TRANSLATED_SETTINGS = (
    "seed",
    "model.gradient_checkpointing",
    "sampling.size",
    "sampling.temperature",
    "sampling.top_p",
    "sampling.top_k",
    "sampling.min_p",
    "sampling.repetition_penalty",
    "sampling.max_tokens",
    "learning.lr",
    "learning.schedule",
    "learning.loss",
    "learning.scale",
    "learning.clip_low",
    "learning.kl.beta",
    "learning.entropy",
    "learning.mask_truncated",
    "learning.updates",
    "learning.max_grad_norm",
    "learning.weight_decay",
    "learning.beta1",
    "learning.beta2",
)

# Makes the arguments of a call of one of the writer's methods.
MakeArguments = Callable[[], tuple[Any, ...]]


class SubprocessRecorder:
    """Sends steps to the process that records, in order, and receives its messages.

    The trainer's thread only puts things into a queue; another thread makes and sends them. Records
    come before speed: where the process can't keep up, the trainer waits, but not forever, and what
    is not written in the end is reported.
    """

    def __init__(
        self,
        take_message: Callable[..., None],
        report_loss: Callable[[str], None],
        *,
        send_timeout_s: float = SEND_TIMEOUT_S,
        close_timeout_s: float = CLOSE_TIMEOUT_S,
    ) -> None:
        self._take_message = take_message
        self._report_loss = report_loss
        self._send_timeout_s = send_timeout_s
        self._close_timeout_s = close_timeout_s
        self._calls: queue.Queue[tuple[str, MakeArguments] | None] = queue.Queue(MAX_QUEUED_STEPS)
        self._unwritten: set[int] = set()  # steps that were sent
        self._is_over = False
        self._is_stuck = False
        self._gone = threading.Event()
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115  # lives as long as the process
        self._socket, writer_socket = multiprocessing.Pipe()
        self._process: subprocess.Popen[bytes] | None = None
        try:
            self._process = start_module(
                "uptrend.bridge.trl.writer",
                str(writer_socket.fileno()),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=self._errors,
                env=os.environ | ONE_THREAD,
                pass_fds=[writer_socket.fileno()],
            )
        except OSError as error:
            self._gone.set()
            self._report_loss(
                f"no process to record with could be started ({error}); nothing is recorded"
            )
        writer_socket.close()
        self._thread = threading.Thread(target=self._deliver, name="uptrend-deliver", daemon=True)
        self._thread.start()

    def send(self, method: str, make_arguments: MakeArguments, step: int | None = None) -> None:
        """Queue a call of one of the writer's methods, whose arguments are made later, on another
        thread.
        """
        if step is not None:
            self._unwritten.add(step)
        if self._gone.is_set():
            return
        timeout_s = STUCK_SEND_TIMEOUT_S if self._is_stuck else self._send_timeout_s
        try:
            self._calls.put((method, make_arguments), timeout=timeout_s)
            self._is_stuck = False
        except queue.Full:
            if not self._is_stuck:
                self._report_loss(
                    "the process that records has taken nothing for"
                    f" {self._send_timeout_s:g} s; steps are left out"
                )
            self._is_stuck = True

    def close(self) -> list[int]:
        """Let the process write the rest, with a deadline; return the steps that were sent but
        never written.
        """
        self._is_over = True
        deadline = time.monotonic() + self._close_timeout_s
        with contextlib.suppress(queue.Full):
            self._calls.put(None, timeout=self._close_timeout_s)
        self._thread.join(max(0.0, deadline - time.monotonic()))
        if self._process is not None:
            if self._thread.is_alive():
                self._process.kill()
            self._process.wait()
        self._thread.join(1.0)
        self._socket.close()
        self._errors.close()
        return sorted(self._unwritten)

    @property
    def pid(self) -> int | None:
        """Process that records; None where it could not be started."""
        return None if self._process is None else self._process.pid

    def _deliver(self) -> None:
        """Send queued calls, on a thread of its own."""
        while (call := self._calls.get()) is not None:
            if self._gone.is_set():
                continue
            method, make_arguments = call
            try:
                self._socket.send((method, make_arguments()))
                if method == "begin":
                    self._receive()  # its answer, which says where other processes can reach it
                while self._socket.poll():
                    self._receive()
            except (OSError, EOFError):
                self._report_gone()
            except Exception as error:
                self._take_message("note", "records", describe_error(error))
        with contextlib.suppress(OSError, EOFError):
            self._socket.send(None)
            while True:  # until it ends
                self._receive()

    def _receive(self) -> None:
        kind, args, values = self._socket.recv()
        try:
            if kind == "written":
                self._unwritten.difference_update(*args)
            else:
                self._take_message(kind, *args, **values)
        except Exception as error:
            self._take_message("note", "what was recorded", describe_error(error))

    def _report_gone(self) -> None:
        """Report once that the process has ended; after the training, close() says which steps were
        not written.
        """
        if self._is_over or self._process is None:
            return
        self._gone.set()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(1.0)
        self._errors.seek(0)
        output = self._errors.read().decode(errors="replace").strip()
        last_line = f" saying {output.splitlines()[-1]!r}" if output else ""
        self._report_loss(
            f"the process that records has ended (code {self._process.returncode}){last_line};"
            " nothing more is recorded"
        )


class Record:
    """Holds one run directory."""

    def __init__(
        self,
        trainer: Any,
        path: Path,
        weights: WatchedWeights,
        guard: Guard,
        rendezvous: Rendezvous | None = None,
    ) -> None:
        self._weights = weights
        self._guard = guard
        self._rendezvous = rendezvous
        self._key = make_key()
        self._device = trainer.accelerator.device
        self._settings = Settings.of(trainer)
        dtypes = weights.dtypes()
        step = trainer.state.global_step
        is_resumed = bool(
            step and (path / "run.json").exists() and Run(path).schema == SCHEMA_VERSION
        )
        self.path = path if is_resumed else free_path(path)
        info = describe_run(trainer, self.path, dtypes)
        if is_resumed:
            self._directory = RunDirectory.reopen(path)
            self._directory.rewind(step)
        else:
            self._directory = RunDirectory.create(self.path, info)
        self.event = self._directory.event
        view = RunView(
            source=str(self.path),
            trainer="trl",
            name=self.path.name,
            steps=np.zeros(0, np.int64),
            metrics={},
            config=info["config"],
            rollout_steps=(1,),
        )
        self.reward_range = RewardRange.of(
            trainer.reward_func_names, trainer.reward_weights.tolist()
        )
        self.subprocess_recorder = SubprocessRecorder(self._take_message, self._report_loss)
        address = None if rendezvous is None else (rendezvous.host, self._key)
        self.subprocess_recorder.send(
            "begin", lambda: (self.path, self._settings, self.reward_range, address)
        )
        self.findings_log = FindingsLog(view, self.path, self.event)
        self.event("resumed" if step else "started", step=step)
        start = f"from step {step + 1} " if is_resumed else ""
        location = describe_location(self.path, path.name)
        print(f"uptrend: recording {start}to {location}", file=sys.stderr, flush=True)
        self.event("weights", step=step, digest=weights.digest(), dtypes=dtypes)
        if self._settings.processes > 1 and rendezvous is None:
            reason = (
                f"{self._settings.processes} processes train, and only the first one's rollouts are"
                " recorded: MASTER_ADDR and MASTER_PORT name no store where the others could be met"
            )
            self.event("partial", reason=reason)
            print(f"uptrend: {reason}", file=sys.stderr, flush=True)

    def take_reward_range(self, suspects: tuple[str, list[str]] | None) -> None:
        """Take the result of re-scoring, once it has widened `reward_range`."""
        self.subprocess_recorder.send("take_reward_range", lambda: (self.reward_range, suspects))

    def take_step(self, step: TrlStep, move: Move | None) -> None:
        """Record a step of the trainer."""
        step.memory = peak_memory_gib(self._device)

        def make_arguments() -> tuple[TrlStep]:
            # Reads what the devices have computed by now; on the sending thread, so that the
            # trainer does not wait.
            copy: TrlStep = step.portable()
            if move is not None:
                copy.moved = self._weights.metrics(move)
                _, weights = move
                judge_update(self.findings_log, copy, weights, self._settings.lr)
            self.findings_log.report_diagnoses()
            return (copy,)

        self.subprocess_recorder.send("take_step", make_arguments, step.step)

    def take_evaluation(self, batches: list[TrlBatch], seconds: float | None, step: int) -> None:
        """Record an evaluation."""
        self.subprocess_recorder.send(
            "take_evaluation", lambda: ([batch.portable() for batch in batches], seconds, step)
        )

    def end(self, status: str, **values: Any) -> None:
        """Let the writer and the doctor finish, and close the directory."""
        lost = self.subprocess_recorder.close()
        if lost:
            steps = ", ".join(map(str, lost[:MAX_STEPS_NAMED]))
            if len(lost) > MAX_STEPS_NAMED:
                steps += f" … {lost[-1]}"
            text = f"{len(lost)} steps were not recorded, or not whole: {steps}"
            self._report_loss(text, lost=lost)
        self.event("weights", digest=self._weights.digest(), dtypes=self._weights.dtypes())
        self.event(status, **values)
        self.findings_log.end()
        self._directory.unlock()

    def _take_message(self, kind: str, *args: Any, **values: Any) -> None:
        """Take a message of the process that records: `report`, `event`, `print`, `ready` or
        `note`.
        """
        if kind == "report":
            self.findings_log.report(*args, **values)
        elif kind == "event":
            self.event(*args, **values)
        elif kind == "print":
            print(f"uptrend: {args[0]}", file=sys.stderr, flush=True)
        elif kind == "ready":
            if self._rendezvous is not None:
                self._rendezvous.publish(args[0], self._key)
        else:
            self._guard.note(*args, **values)

    def _report_loss(self, text: str, **values: Any) -> None:
        """Report lost records, in the terminal and in the events."""
        print(f"uptrend: {text}. The training goes on.", file=sys.stderr, flush=True)
        self.event("records-lost", reason=text, **values)


def describe_run(trainer: Any, path: Path, dtypes: Mapping[str, int]) -> dict[str, Any]:
    """Return run.json: TRL's settings under our keys where they have one, and all as TRL has
    them.
    """
    parameters = list(trainer.model.parameters())
    eval_dataset = getattr(trainer, "eval_dataset", None)
    config = recipe(trainer, dtypes)
    versions = installed_versions(RECORDED_PACKAGES)
    return {
        "schema": SCHEMA_VERSION,
        "name": path.name,
        "trainer": "trl",
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "uptrend": versions.pop("uptrend", "unknown"),
        "python": platform.python_version(),
        "packages": versions,
        "environment": recorded_environment(),
        "machine": {
            "device": str(trainer.accelerator.device),
            "processes": trainer.accelerator.num_processes,
        },
        "config": config,
        "raw": json.loads(json.dumps(trainer.args.to_dict(), default=str)),
        "tasks": {"name": "trl dataset", "train": _row_count(trainer.train_dataset)},
        "eval": {"name": "trl dataset", "tasks": _row_count(eval_dataset)},
        "model": {
            "name": config["model"]["name"],
            "parameters": sum(map(size_of, parameters)),
            "trainable": sum(size_of(p) for p in parameters if p.requires_grad),
            "special": special_ids(trainer.processing_class),
            "files": describe_model(trainer.model, trainer.processing_class, _template(trainer)),
        },
        "sampler": _describe_sampler(trainer),
        "notes": [],
    }


def _template(trainer: Any) -> str | None:
    """Return the chat template that TRL uses in place of the tokenizer's own; None without one."""
    template: str | None = getattr(trainer, "chat_template", None)
    return template


def _describe_sampler(trainer: Any) -> dict[str, Any]:
    """Return what samples for TRL, and the settings of the model's files that it applies by
    itself.
    """
    if getattr(trainer, "rollout_func", None) is not None:
        return {"engine": "rollout_func"}
    if trainer.use_vllm:  # which gets every setting explicitly
        return {"engine": "vllm", "hidden": {}}
    args = trainer.args
    intended = {name: getattr(args, name, None) for name in NEUTRAL_GENERATION}
    intended |= args.generation_kwargs or {}
    applied = trainer.generation_config
    return {
        "engine": "generate",
        "hidden": hidden_settings(applied, trainer.model.generation_config, intended),
    }


def special_ids(tokenizer: Any) -> list[int]:
    """Return the ids of tokens that are no text, such as those that end a turn."""
    tokenizer = getattr(tokenizer, "tokenizer", tokenizer)  # of a processor, its own
    tokens = getattr(tokenizer, "added_tokens_decoder", {})
    return sorted(int(id) for id, token in tokens.items() if token.special)


def recipe(trainer: Any, dtypes: Mapping[str, int]) -> dict[str, Any]:
    """Return TRL's arguments as the nested table of a recipe; those without an equivalent are only
    in `raw`.
    """
    args = trainer.args
    model = trainer.model
    steps = int(trainer.state.max_steps or args.max_steps)
    turns: int | None = 1
    if getattr(trainer, "tools", None) or getattr(trainer, "environments", None):
        # TRL limits calls of tools, and the answer comes after the last of them.
        calls = getattr(args, "max_tool_calling_iterations", None)
        turns = None if calls is None else int(calls) + 1

    overrides = getattr(args, "generation_kwargs", None) or {}

    def argument(name: str) -> Any:
        value = overrides.get(name, getattr(args, name, None))
        return getattr(value, "value", value)  # an enumeration's value

    settings = {key: read_setting(key, "trl", argument) for key in TRANSLATED_SETTINGS}
    if argument("multi_objective_aggregation") == "normalize_then_sum":
        # Each function's rewards are scaled by themselves, which no name of ours says.
        settings["learning.scale"] = None
    # DeepSpeed casts the model for arithmetic, and learns in fp32 copies.
    learned_dtype = "torch.float32"
    if not trainer.is_deepspeed_enabled:
        learned_dtype = most_common(dtypes, default=learned_dtype)
    minibatches = round(args.steps_per_generation / args.gradient_accumulation_steps)
    return nest(
        {
            "name": Path(args.output_dir).name,
            "model.name": str(getattr(model.config, "_name_or_path", "") or type(model).__name__),
            "model.weights": dtype_name(learned_dtype),
            **_lora(model),
            "tasks.name": "trl dataset",
            "tasks.train": _row_count(trainer.train_dataset) or 0,
            "sampling.groups": args.generation_batch_size // args.num_generations,
            "sampling.max_turns": turns,
            **settings,
            "sampling.top_k": settings["sampling.top_k"] or 0,
            "learning.steps": steps,
            "learning.warmup": args.get_warmup_steps(steps),
            "learning.baseline": "mean",
            "learning.clip_high": args.epsilon if args.epsilon_high is None else args.epsilon_high,
            "learning.kl.estimator": "k3",
            "learning.minibatches": max(1, minibatches),
        }
    )


def _lora(model: Any) -> dict[str, Any]:
    adapters = getattr(model, "peft_config", None)
    adapter = adapters.get("default") if isinstance(adapters, Mapping) else None
    if adapter is None or not hasattr(adapter, "lora_alpha"):
        return {}
    return {
        "model.lora.r": adapter.r,
        "model.lora.alpha": float(adapter.lora_alpha),
        "model.lora.dropout": float(adapter.lora_dropout),
    }


def _row_count(dataset: Any) -> int | None:
    """Return the length of a dataset; None where it has none, or there is no dataset."""
    try:
        return len(dataset)
    except TypeError:
        return None
