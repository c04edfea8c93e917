"""The run directory of a watched run: what the trainer's thread hands over becomes rollouts, a line and findings."""

import time
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from uptrend.bridge.trl import metrics as measure
from uptrend.bridge.trl.batch import Batch, as_numpy
from uptrend.bridge.trl.groups import Groups
from uptrend.bridge.trl.guard import Guard
from uptrend.bridge.trl.herald import Herald
from uptrend.bridge.trl.precision import Update, judge_update
from uptrend.bridge.trl.probes.gold import answer_of, core_of, gold_column
from uptrend.bridge.trl.probes.rewards import Suspicion
from uptrend.bridge.trl.rollouts import Made, groups_of, make_rollouts
from uptrend.bridge.trl.scale import Scale
from uptrend.bridge.trl.scribe import Scribe, breathe
from uptrend.bridge.trl.settings import describe_run
from uptrend.bridge.trl.step import Settings, Step
from uptrend.bridge.trl.weights import Weights
from uptrend.records import Confidence, Evidence, RunDirectory, RunView, Severity, wilson

CONSTANT = 5
"""Steps of one and the same reward after which a rejected gold answer is more than a suspicion."""


class Record:
    """Writes one run directory, on a thread of its own."""

    def __init__(self, trainer: Any, path: Path, weights: Weights, guard: Guard) -> None:
        self._weights = weights
        self.settings = Settings.of(trainer)
        dtypes = weights.dtypes()
        step = trainer.state.global_step
        if step and (path / "run.json").exists():
            self.path = path
            self._directory = RunDirectory.reopen(path)
            self._directory.rewind(step)
        else:
            self.path = free_path(path)
            self._directory = RunDirectory.create(self.path, describe_run(trainer, self.path, dtypes))
        info = describe_run(trainer, self.path, dtypes)
        view = RunView(
            source=str(self.path), trainer="trl", name=self.path.name, steps=np.zeros(0, np.int64), metrics={},
            config=info["config"], rollout_steps=(1,),
        )  # fmt: skip
        self.herald = Herald(view, self.path, self.event)
        self.scale = Scale.of(trainer.reward_func_names, trainer.reward_weights.tolist())
        self.suspicion: Suspicion | None = None
        self._groups = Groups(self.herald, self.settings.size)
        self._steady = 0
        self._unwritten: list[tuple[Batch, Made]] = []
        self._scribe = Scribe(guard.failed)
        self.event("resumed" if step else "started", step=step)
        self.event("weights", step=step, digest=weights.digest(), dtypes=dtypes)
        if self.settings.processes > 1:
            self.event("partial", reason="several processes: only the first one's rollouts are recorded")

    def event(self, kind: str, **values: Any) -> None:
        """Append to events.jsonl."""
        self._directory.event(kind, **values)

    def take(self, step: Step) -> None:
        """A step of the trainer is done."""
        self._scribe.do("records", lambda: self._write(step))

    def take_evaluation(self, batches: list[Batch], metrics: dict[str, Any], step: int) -> None:
        """An evaluation is done."""
        self._scribe.do("evaluations", lambda: self._write_evaluation(batches, metrics, step))

    def end(self, how: str, error: str) -> None:
        """Write what is left, let the doctor look once more, and close the directory."""
        self._scribe.do("records", lambda: self._write_rollouts(whole=True))
        self._scribe.close()
        self.event("weights", digest=self._weights.digest(), dtypes=self._weights.dtypes())
        self.event(how, **({"error": error} if error else {}))
        self.herald.end()
        self._directory.unlock()

    # On the scribe's thread

    def _write(self, step: Step) -> None:
        line: dict[str, Any] = {"step": step.step, "time": time.time()}
        if step.batches:
            line |= self._sampled(step)
        if step.passes:
            line |= measure.learner_metrics(step.passes, self.settings.beta, self.settings.clip)
        breathe()
        line |= self._updated(step) | step.gaps
        if step.batches and not step.gaps:
            line |= measure.sampler_metrics(step.batches[0])
        line |= {
            "seconds/sample": step.sampling,
            "seconds/update": max(0.0, step.seconds - step.sampling - step.waited),
            "seconds/watch": step.waited,
            "seconds/step": step.seconds,
            "memory/peak/gib": measure.memory_gib(),
        }
        self._write_rollouts(whole=False)
        self._directory.metrics(line)
        self.herald.hear()

    def _sampled(self, step: Step) -> dict[str, Any]:
        """What the step's generations came to."""
        rewards = np.concatenate([as_numpy(b.rewards).astype(np.float64) for b in step.batches])
        advantages = np.concatenate([as_numpy(b.output["advantages"]).reshape(b.size, -1)[:, 0] for b in step.batches])
        self.scale.see(rewards)
        totals = np.nansum(rewards * np.array(self.scale.weights), axis=1)
        totals[np.isnan(rewards).all(1)] = np.nan
        made = [self._made(b) for b in step.batches]
        self._unwritten += zip(step.batches, made, strict=True)
        every = Made([r for m in made for r in m.rollouts], [k for m in made for k in m.known])
        groups = [f"{n}/{r.group}" for n, m in enumerate(made) for r in m.rollouts]
        self._judge_gold(totals, step.step)
        if self.settings.processes == 1:
            for batch, found in zip(step.batches, made, strict=True):
                self._groups.judge(batch, found.rollouts)
        dead = [b.trl_dead for b in step.batches if b.trl_dead is not None]
        return {
            **measure.reward_metrics(rewards, totals, every, self.scale),
            **measure.group_metrics(totals, groups, advantages, self.scale),
            **({"trl/frac_reward_zero_std": float(np.mean(dead))} if dead else {}),
            **measure.sampling_metrics(every.rollouts),
            **measure.token_metrics(every.rollouts),
        }

    def _updated(self, step: Step) -> dict[str, Any]:
        """What the update did."""
        norm = float("nan") if step.gradient is None else float(step.gradient)
        limit = self.settings.max_norm
        line: dict[str, Any] = {
            "gradient/norm/before": norm,
            "gradient/norm/after": min(norm, limit) if limit > 0 else norm,
            "optimiser/lr": step.lr,
            "optimiser/updates/count": int(not step.skipped),
            "optimiser/skipped/count": int(step.skipped),
        }
        if step.moved is None or step.moved[0] is None:
            return line
        moved = self._weights.movement(step.moved[0], step.moved[1])
        judge_update(
            self.herald, Update(step.step, moved.changed, norm, step.lr), step.moved[1], self.settings.lr
        )  # fmt: skip
        return line | moved.metrics

    def _judge_gold(self, totals: NDArray[np.float64], step: int) -> None:
        """A gold answer that no way of writing it saves, and a reward that never moves: each alone proves little."""
        low, high = self.scale.bounds()
        self._steady = self._steady + 1 if np.isnan(low) or low == high else 0
        if self.suspicion is None or self._steady < CONSTANT:
            return
        names = ", ".join(self.suspicion.names)
        self.herald.say(
            "reward.gold-rejected",
            Severity.WARNING,
            Confidence.MEDIUM,
            f"The reward function {names} gives gold answers no more than wrong ones, however they were written, and "
            "every rollout the same.",
            [
                Evidence(f"Gold and corrupted answers from the column {self.suspicion.column!r} earned the same in "
                         "every form that was tried."),
                Evidence(f"All {self._steady} steps so far: one reward.", float(np.nanmean(totals)), "reward/mean",
                         step),
            ],
        )  # fmt: skip

    def _made(self, batch: Batch) -> Made:
        column = gold_column(batch.examples[0])
        answers = [core_of(answer_of(e.get(column))) if column else "" for e in batch.examples]
        return make_rollouts(batch, groups_of(batch, self.settings.size), self.scale, answers, self.settings)

    def _write_rollouts(self, whole: bool) -> None:
        """Write generations that the loss has seen all of, or all; what it saw after their step is added first."""
        parts: dict[int, int] = {}
        left = []
        for batch, made in self._unwritten:
            if batch.seen < batch.size and not whole:
                left.append((batch, made))
                continue
            late = len(batch.passes) > made.passes
            part = parts[batch.step] = parts.get(batch.step, -1) + 1
            self._directory.rollouts(batch.step, (self._made(batch) if late else made).table(self.path.name), part)
        self._unwritten = left

    def _write_evaluation(self, batches: list[Batch], metrics: dict[str, Any], step: int) -> None:
        made = [self._made(b) for b in batches]
        every = Made([r for m in made for r in m.rollouts], [k for m in made for k in m.known])
        known = [right for right in every.known if right is not None]
        rewards = [r.reward.total for r in every.rollouts if r.reward is not None]
        self.event("evaluation", step=step, reward=float(np.mean(rewards)) if rewards else None, tasks=len(rewards))
        if not known:
            return  # an accuracy that nobody can know is not made up
        low, high = wilson(sum(known), len(known))
        line = {
            "step": step, "accuracy": float(np.mean(known)), "low": low, "high": high, "tasks": len(known),
            "correct": sum(known), "failed": len(every.known) - len(known), "reward": float(np.mean(rewards)),
            "seconds": metrics.get("eval_runtime"), "time": time.time(),
        }  # fmt: skip
        self._directory.evaluation(line, every.table(self.path.name))


def free_path(path: Path) -> Path:
    """The path, or its next free neighbour where a run lies already."""
    number, free = 1, path
    while (free / "run.json").exists():
        number += 1
        free = path.with_name(f"{path.name}-{number}")
    return free
