"""The run directory of a watched run, from the trainer's side: made and held here, filled by a process beside it.

Only this process writes run.json and events.jsonl, only the other one the rest. What is said is said from here.
"""

import resource
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch

from uptrend.bridge.trl.batch import TrlBatch
from uptrend.bridge.trl.findings_log import FindingsLog
from uptrend.bridge.trl.guard import Guard
from uptrend.bridge.trl.precision import TracedUpdate, judge_update
from uptrend.bridge.trl.scale import RewardRange, Suspicion
from uptrend.bridge.trl.settings import describe_run
from uptrend.bridge.trl.step import Settings, TrlStep
from uptrend.bridge.trl.subprocess_recorder import SubprocessRecorder
from uptrend.bridge.trl.voice import say_again
from uptrend.bridge.trl.weights import Move, WatchedWeights
from uptrend.records import Run, RunDirectory, RunView
from uptrend.records.schema import VERSION
from uptrend.training.metrics import weight_metrics


class Record:
    """Holds one run directory."""

    def __init__(self, trainer: Any, path: Path, weights: WatchedWeights, guard: Guard) -> None:
        self._weights, self._guard = weights, guard
        self._settings = Settings.of(trainer)
        dtypes = weights.dtypes()
        step = trainer.state.global_step
        goes_on = bool(step and (path / "run.json").exists() and Run(path).schema == VERSION)
        self.path = path if goes_on else free_path(path)
        info = describe_run(trainer, self.path, dtypes)
        self._directory = RunDirectory.reopen(path) if goes_on else RunDirectory.create(self.path, info)
        if goes_on:
            self._directory.rewind(step)
        view = RunView(
            source=str(self.path), trainer="trl", name=self.path.name, steps=np.zeros(0, np.int64), metrics={},
            config=info["config"], rollout_steps=(1,),
        )  # fmt: skip
        self.scale = RewardRange.of(trainer.reward_func_names, trainer.reward_weights.tolist())
        self.subprocess_recorder = SubprocessRecorder(self._heard, guard.failed, self._trouble)
        self.subprocess_recorder.send("begin", lambda: (self.path, self._settings, self.scale))
        self.findings_log = FindingsLog(view, self.path, self.event)
        self.event("resumed" if step else "started", step=step)
        self.event("weights", step=step, digest=weights.digest(), dtypes=dtypes)
        if self._settings.processes > 1:
            self.event("partial", reason="several processes: only the first one's rollouts are recorded")

    def event(self, kind: str, **values: Any) -> None:
        """Append to events.jsonl."""
        self._directory.event(kind, **values)

    def know(self, suspicion: Suspicion | None) -> None:
        """The reward functions have answered."""
        self.subprocess_recorder.send("known", lambda: (self.scale, suspicion))

    def take(self, step: TrlStep, move: Move | None) -> None:
        """A step of the trainer is done."""
        step.memory = memory_gib()
        self.subprocess_recorder.send("step", lambda: (self._finished(step, move),), step.step)

    def take_evaluation(self, batches: list[TrlBatch], metrics: dict[str, Any], step: int) -> None:
        """An evaluation is done."""
        plain = {"eval_runtime": metrics.get("eval_runtime")}
        self.subprocess_recorder.send("evaluation", lambda: ([b.portable() for b in batches], plain, step))

    def end(self, how: str, **values: Any) -> None:
        """Let the rest be written, let the doctor look once more, and close the directory."""
        lost = self.subprocess_recorder.close()
        if lost:
            named = ", ".join(map(str, lost[:5])) + (f" … {lost[-1]}" if len(lost) > 5 else "")
            self._trouble(f"{len(lost)} steps were not recorded, or not whole: {named}", lost=lost)
        self.event("weights", digest=self._weights.digest(), dtypes=self._weights.dtypes())
        self.event(how, **values)
        self.findings_log.end()
        self._directory.unlock()

    def _finished(self, step: TrlStep, move: Move | None) -> TrlStep:
        """On the subprocess recorder's thread: read what the devices have computed by now, and judge it."""
        whole = step.portable()
        if move is not None:
            moved = self._weights.movement(move)
            whole.moved = weight_metrics(moved)
            update = TracedUpdate(step.step, moved.changed, whole.gradient or 0.0, step.lr)
            judge_update(self.findings_log, update, move.after, self._settings.lr)
        self.findings_log.hear()
        return whole

    def _heard(self, line: dict[str, Any]) -> None:
        """What the process that records has to tell."""
        if "finding" in line:
            say_again(self.findings_log, line["finding"])
        if "event" in line:
            self.event(line["event"][0], **line["event"][1])
        if "failed" in line:
            self._guard.note(*line["failed"])

    def _trouble(self, text: str, **values: Any) -> None:
        """Records are lost: say so, and write it down."""
        print(f"uptrend: {text}. The training goes on.", file=sys.stderr, flush=True)
        self.event("records-lost", reason=text, **values)


def free_path(path: Path) -> Path:
    """The path, or its next free neighbor where a run lies already."""
    number, free = 1, path
    while (free / "run.json").exists():
        number += 1
        free = path.with_name(f"{path.name}-{number}")
    return free


def memory_gib() -> float:
    """The most memory taken so far: the GPU's, or the process's."""
    if torch.cuda.is_available():
        return torch.cuda.max_memory_allocated() / 2**30
    used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return used / 2**30 if sys.platform == "darwin" else used / 2**20
