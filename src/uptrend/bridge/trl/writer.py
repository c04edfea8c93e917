"""The files of a watched run: what the trainer handed over becomes rollouts, a line and findings. No torch."""

import time
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from uptrend.bridge.trl import metrics as trl_metrics
from uptrend.bridge.trl.batch import Pass, TrlBatch
from uptrend.bridge.trl.groups import Groups
from uptrend.bridge.trl.rollouts import Made, groups_of, make_rollouts
from uptrend.bridge.trl.scale import RewardRange, Suspicion
from uptrend.bridge.trl.step import Settings, TrlStep
from uptrend.bridge.trl.voice import Upward
from uptrend.records import Confidence, Evidence, RunDirectory, Severity
from uptrend.training import metrics as measure

CONSTANT = 5
"""Steps of one and the same reward after which a rejected gold answer is more than a suspicion."""


class Writer:
    """Writes all but events.jsonl, in a run directory that the trainer's process has made and holds."""

    def __init__(self, path: Path, settings: Settings, scale: RewardRange, voice: Upward) -> None:
        self._directory = RunDirectory(path)
        self._settings, self._scale, self._voice = settings, scale, voice
        self._suspicion: Suspicion | None = None
        self._groups = Groups(voice, settings.size)
        self._steady = 0
        self._batches: dict[int, TrlBatch] = {}
        self._unwritten: list[tuple[TrlBatch, Made]] = []
        self._waiting: list[int] = []

    def know(self, scale: RewardRange, suspicion: Suspicion | None) -> None:
        """Take the answers of the reward functions, before the first step."""
        self._scale, self._suspicion = scale, suspicion

    def write(self, step: TrlStep) -> None:
        """Write a step."""
        passes = self._arrived(step)
        line: dict[str, Any] = {"step": step.step, "time": time.time()}
        if step.batches:
            line |= self._sampled(step)
        if passes:
            line |= trl_metrics.learner_metrics(passes, self._settings.beta, self._settings.clip)
        line |= self._updated(step) | step.gaps
        if step.batches and not step.gaps:
            line |= trl_metrics.sampler_metrics(step.batches[0])
        line |= {
            "seconds/sample": step.sampling,
            "seconds/update": max(0.0, step.seconds - step.sampling - step.waited),
            "seconds/watch": step.waited,
            "seconds/step": step.seconds,
            "memory/peak/gib": step.memory,
        }
        self.write_rollouts(whole=False)
        self._directory.metrics(line)
        self._waiting.append(step.step)
        self._tell_written()

    def write_rollouts(self, whole: bool) -> None:
        """Write generations that the loss has seen all of, or all; what it saw after their step is added first."""
        parts: dict[int, int] = {}
        left = []
        for batch, made in self._unwritten:
            if batch.seen < batch.size and not whole:
                left.append((batch, made))
                continue
            late = len(batch.passes) > made.passes
            part = parts[batch.step] = parts.get(batch.step, -1) + 1
            table = (self._made(batch) if late else made).table(self._directory.path.name)
            self._directory.rollouts(batch.step, table, part)
        self._unwritten = left
        if whole:
            self._tell_written()

    def write_evaluation(self, batches: list[TrlBatch], metrics: dict[str, Any], step: int) -> None:
        """Write an evaluation."""
        made = [self._made(b) for b in batches]
        every = Made([r for m in made for r in m.rollouts], [k for m in made for k in m.known])
        known = [right for right in every.known if right is not None]
        rewards = [r.reward.total for r in every.rollouts if r.reward is not None]
        mean = float(np.mean(rewards)) if rewards else None
        self._voice.event("evaluation", step=step, reward=mean, tasks=len(rewards))
        if not known:
            return  # an accuracy that nobody can know is not made up
        from uptrend.stats.intervals import (
            wilson,
        )  # scipy only where needed: this process starts fast

        low, high = wilson(sum(known), len(known))
        line = {
            "step": step, "accuracy": float(np.mean(known)), "low": low, "high": high, "tasks": len(known),
            "correct": sum(known), "failed": len(every.known) - len(known), "reward": mean,
            "seconds": metrics.get("eval_runtime"), "time": time.time(),
        }  # fmt: skip
        line = {key: value for key, value in line.items() if value is not None}
        self._directory.evaluation(line, every.table(self._directory.path.name))

    def _arrived(self, step: TrlStep) -> list[tuple[TrlBatch, Pass]]:
        """Put the looks of the loss beside their generations; one of a step that never came has none."""
        if step.batches:
            self._batches = {n: b for n, b in self._batches.items() if b.seen < b.size}
            self._batches |= {b.number: b for b in step.batches}
        passes = [(self._batches[p.batch], p) for p in step.passes if p.batch in self._batches]
        for batch, seen in passes:
            batch.take(seen)
        return passes

    def _sampled(self, step: TrlStep) -> dict[str, Any]:
        """Metrics of the step's generations."""
        rewards = np.concatenate([b.rewards.astype(np.float64) for b in step.batches])
        advantages = np.concatenate([b.output["advantages"].reshape(b.size, -1)[:, 0] for b in step.batches])
        self._scale.see(rewards)
        totals = np.nansum(rewards * np.array(self._scale.weights), axis=1)
        totals[np.isnan(rewards).all(1)] = np.nan
        made = [self._made(b) for b in step.batches]
        self._unwritten += zip(step.batches, made, strict=True)
        every = Made([r for m in made for r in m.rollouts], [k for m in made for k in m.known])
        groups = [f"{n}/{r.group}" for n, m in enumerate(made) for r in m.rollouts]
        self._judge_gold(totals, step.step)
        if self._settings.processes == 1:
            for batch, found in zip(step.batches, made, strict=True):
                self._groups.judge(batch, found.rollouts)
        trained = np.concatenate([np.asarray(s.weights) != 0 for r in every.rollouts for s in r.sequences])
        dead = [b.trl_dead for b in step.batches if b.trl_dead is not None]
        return {
            **measure.reward_metrics(every.rollouts, every.known),
            **trl_metrics.spread_metrics(every.rollouts, groups),
            **measure.advantage_metrics(every.rollouts, advantages, groups),
            **({"trl/frac_reward_zero_std": float(np.mean(dead))} if dead else {}),
            **measure.sampling_metrics(every.rollouts),
            **measure.role_metrics(every.rollouts, trained),
        }

    def _updated(self, step: TrlStep) -> dict[str, Any]:
        """Metrics of the update."""
        norm, limit = step.gradient, self._settings.max_norm
        before = [] if norm is None else [norm]
        after = [min(norm, limit) if limit > 0 else norm for norm in before]
        lr = None if np.isnan(step.lr) else step.lr
        return {**measure.optimizer_metrics(before, after, [step.skipped], lr), **step.moved}

    def _judge_gold(self, totals: NDArray[np.float64], step: int) -> None:
        """A gold answer that no way of writing it saves, and a reward that never moves: each alone proves little."""
        low, high = self._scale.bounds()
        self._steady = self._steady + 1 if np.isnan(low) or low == high else 0
        if self._suspicion is None or self._steady < CONSTANT:
            return
        names = ", ".join(self._suspicion.names)
        self._voice.say(
            "reward.gold-rejected",
            Severity.WARNING,
            Confidence.MEDIUM,
            f"The reward function {names} gives gold answers no more than wrong ones, however they were written, and "
            "every rollout the same.",
            [
                Evidence(f"Gold and corrupted answers from the column {self._suspicion.column!r} earned the same in "
                         "every form that was tried."),
                Evidence(f"All {self._steady} steps so far: one reward.", float(np.nanmean(totals)), "reward/mean",
                         step),
            ],
        )  # fmt: skip

    def _made(self, batch: TrlBatch) -> Made:
        return make_rollouts(batch, groups_of(batch, self._settings.size), self._scale, self._settings)

    def _tell_written(self) -> None:
        """A step is written when its line and its rollouts are."""
        open_steps = {batch.step for batch, _ in self._unwritten}
        done = [step for step in self._waiting if step not in open_steps]
        self._waiting = [step for step in self._waiting if step in open_steps]
        if done:
            self._voice.tell(written=done)
