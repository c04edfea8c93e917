"""The process that records a watched run, so that the trainer's interpreter and thread stay its own. No torch.

    python -m uptrend.bridge.trl.writer SOCKET

Steps come through the socket, and findings, events and failures go back through it (record.py is the other end). It
ends with the trainer, however that ends, and writes what it still holds: a killed trainer leaves a whole directory.
"""

import contextlib
import os
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from importlib.abc import MetaPathFinder
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np

from uptrend.bridge.trl.batch import Pass, Settings, TrlBatch, TrlStep, as_numpy
from uptrend.bridge.trl.rollouts import Made, RewardRange, join, make_rollouts
from uptrend.records import Confidence, Evidence, Role, Rollout, RunDirectory, Severity
from uptrend.training import metrics as measure

CONSTANT = 5
"""Steps of one and the same reward after which a rejected gold answer is more than a suspicion."""
ENOUGH = 8
"""Groups that must have been seen before TRL's metric is called blind."""
CHECK = 2.0
"""Seconds between two checks that the trainer lives: a process that it forked may hold the socket open."""

Line = dict[str, Any]
Send = Callable[..., None]
"""Sends a message to the trainer's process: its kind, `say`, `event`, `failed` or `written`, and its arguments."""


class Writer:
    """Writes everything but run.json and events.jsonl, in a run directory that the trainer's process has made."""

    def __init__(self, send: Send, path: Path, settings: Settings, scale: RewardRange) -> None:
        self._send, self._settings, self._scale = send, settings, scale
        self._directory, self._name = RunDirectory(path), path.name
        self._suspects: tuple[str, list[str]] | None = None
        self._steady = 0
        self._groups = self._dead = 0
        self._told = 0.0
        self._batches: dict[int, TrlBatch] = {}
        self._unwritten: list[tuple[TrlBatch, Made]] = []
        self._waiting: list[int] = []

    def take_scale(self, scale: RewardRange, suspects: tuple[str, list[str]] | None) -> None:
        """Take the result of re-scoring: the range, and the functions that accepted no gold answer of a column."""
        self._scale, self._suspects = scale, suspects

    def take_step(self, step: TrlStep) -> None:
        """Write a step."""
        passes = self._take_passes(step)
        line: Line = {"step": step.step, "time": time.time()}
        if step.batches:
            line |= self._sampled(step)
        if passes:
            line |= learner_metrics(passes, self._settings)
        norms = [] if step.gradient is None else [float(step.gradient)]
        limit = self._settings.max_norm
        clipped = [min(norm, limit) if limit > 0 else norm for norm in norms]
        line |= measure.optimizer_metrics(norms, clipped, [step.skipped], None if np.isnan(step.lr) else step.lr)
        line |= step.moved | step.gaps
        if step.batches and not step.gaps:
            line |= sampler_metrics(step.batches[0])
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
        """Write generations that the loss has passed over completely, or all where `whole`."""
        parts: dict[int, int] = {}
        left = []
        for batch, made in self._unwritten:
            if batch.seen < batch.size and not whole:
                left.append((batch, made))
                continue
            part = parts[batch.step] = parts.get(batch.step, -1) + 1
            late = len(batch.passes) > made.passes  # the loss passed over some rows after the step of the generation
            self._directory.rollouts(batch.step, (self._make(batch) if late else made).table(self._name), part)
        self._unwritten = left
        if whole:
            self._tell_written()

    def take_evaluation(self, batches: list[TrlBatch], seconds: float | None, step: int) -> None:
        """Write an evaluation; without a known right answer there is no accuracy, and only an event."""
        made = join([self._make(batch) for batch in batches])
        held = measure.evaluation_of(step, made.rollouts, seconds or 0.0)
        self._send("event", "evaluation", step=step, reward=held.reward, tasks=held.tasks - held.failed)
        if any(right is not None for right in made.known):
            self._directory.evaluation(measure.evaluation_line(held), made.table(self._name))

    def _make(self, batch: TrlBatch) -> Made:
        return make_rollouts(batch, self._scale, self._settings)

    def _take_passes(self, step: TrlStep) -> list[tuple[TrlBatch, Pass]]:
        """Put passes of the loss beside their generations; those of a generation that never came are dropped."""
        if step.batches:
            self._batches = {n: b for n, b in self._batches.items() if b.seen < b.size}
            self._batches |= {b.number: b for b in step.batches}
        passes = [(self._batches[p.batch], p) for p in step.passes if p.batch in self._batches]
        for batch, seen in passes:
            batch.take(seen)
        return passes

    def _tell_written(self) -> None:
        """Report steps whose line and rollouts are both on disk."""
        open_steps = {batch.step for batch, _ in self._unwritten}
        done = [step for step in self._waiting if step not in open_steps]
        self._waiting = [step for step in self._waiting if step in open_steps]
        if done:
            self._send("written", done)

    def _sampled(self, step: TrlStep) -> Line:
        """Compute the metrics of a step's generations, by the functions that serve our own loop."""
        for batch in step.batches:
            self._scale.widen(batch.rewards.astype(np.float64))
        made = [self._make(batch) for batch in step.batches]
        self._unwritten += zip(step.batches, made, strict=True)
        every = join(made)
        self._judge_gold(every.rollouts, step.step)
        if self._settings.processes == 1:
            for batch, found in zip(step.batches, made, strict=True):
                self._judge_groups(batch, found.rollouts)
                self._judge_metric(batch, found.rollouts)
                self._judge_tokens(batch, found.rollouts)
        groups = [f"{n}/{r.group}" for n, m in enumerate(made) for r in m.rollouts]
        advantages = np.concatenate([b.output["advantages"].reshape(b.size, -1)[:, 0] for b in step.batches])
        trained = np.concatenate([np.asarray(s.weights) != 0 for r in every.rollouts for s in r.sequences])
        dead = [float(b.trl_dead) for b in step.batches if b.trl_dead is not None]
        return {
            **measure.reward_metrics(every.rollouts, every.known),
            **spread_metrics(every.rollouts, groups),
            **measure.advantage_metrics(every.rollouts, advantages, groups),
            **({"trl/frac_reward_zero_std": float(np.mean(dead))} if dead else {}),
            **measure.sampling_metrics(every.rollouts),
            **measure.role_metrics(every.rollouts, trained),
        }

    def _judge_gold(self, rollouts: Sequence[Rollout], step: int) -> None:
        """Report a gold answer that no way of writing it saves, once the reward has stayed the same for long."""
        low, high = self._scale.bounds()
        self._steady = self._steady + 1 if np.isnan(low) or low == high else 0
        if self._suspects is None or self._steady < CONSTANT:
            return
        column, names = self._suspects
        totals = [r.reward.total for r in rollouts if r.reward is not None]
        self._send(
            "say", "reward.gold-rejected", Severity.WARNING, Confidence.MEDIUM,
            f"The reward function {', '.join(names)} gives gold answers no more than wrong ones, however they were "
            "written, and every rollout the same.",
            [Evidence(f"Gold and corrupted answers from the column {column!r} earned the same in every form that was "
                      "tried."),
             Evidence(f"All {self._steady} steps so far: one reward.", float(np.mean(totals or [np.nan])),
                      "reward/mean", step)],
        )  # fmt: skip

    def _judge_groups(self, batch: TrlBatch, rollouts: Sequence[Rollout]) -> None:
        """Check that each block of a group's size holds one prompt: TRL compares rollouts by their place."""
        size, tasks = self._settings.size, [r.task for r in rollouts]
        blocks = [set(tasks[start : start + size]) for start in range(0, len(tasks), size)]
        mixed = sum(len(block) > 1 for block in blocks)
        if mixed:
            self._send(
                "say", "advantage.wrong-groups", Severity.CRITICAL, Confidence.HIGH,
                "Rollouts of different prompts are compared with each other: TRL groups by place, and places are "
                "mixed.",
                [Evidence(f"{mixed} of {len(blocks)} groups of {size} hold more than one prompt.",
                          mixed / len(blocks), step=batch.step)],
            )  # fmt: skip

    def _judge_metric(self, batch: TrlBatch, rollouts: Sequence[Rollout]) -> None:
        """Check TRL's own share of dead groups; where rewards are scaled over the batch, it misses them."""
        size = self._settings.size
        if batch.trl_dead is None or len(rollouts) % size:
            return
        totals = np.array([np.nan if r.reward is None else r.reward.total for r in rollouts]).reshape(-1, size)
        scored = totals[~np.isnan(totals).any(1)]
        self._groups += len(scored)
        self._dead += sum(measure.is_dead(group) for group in scored)
        self._told += float(batch.trl_dead) * len(scored)
        if self._groups < ENOUGH:
            return
        true, told = self._dead / self._groups, self._told / self._groups
        if true - told < 0.05:
            return
        is_grave = true >= 0.3 and true - told >= 0.2
        self._send(
            "say", "advantage.metric-blind", Severity.WARNING if is_grave else Severity.NOTE, Confidence.HIGH,
            f"TRL's frac_reward_zero_std says {told:.0%}, but {true:.0%} of the groups are dead: with this "
            "scale_rewards it looks at the deviation of the whole batch.",
            [Evidence(f"{self._dead} of {self._groups} groups had one and the same reward on every rollout; TRL's "
                      f"metric came to {told:.2f}.", true, "advantage/dead/share", batch.step)],
        )  # fmt: skip

    def _judge_tokens(self, batch: TrlBatch, rollouts: Sequence[Rollout]) -> None:
        """Check that the loss is given what the sampler wrote, id by id."""
        tokens = [r.sequences[0] for r in rollouts]
        lost = [r for r, t in zip(rollouts, tokens, strict=True) if len(t.ids) and not (t.roles == Role.MODEL).any()]
        if batch.calls and lost:
            self._send(
                "say", "tokens.retokenized", Severity.CRITICAL, Confidence.HIGH,
                "Tokens that are trained are not those that were sampled.",
                [Evidence(f"{len(lost)} of {len(rollouts)} completions of step {batch.step} are none that the sampler "
                          "wrote.", float(len(lost)), step=batch.step,
                          rollout=f"{batch.step}/{lost[0].group}/{lost[0].index}")],
            )  # fmt: skip


def spread_metrics(rollouts: Sequence[Rollout], groups: Sequence[str]) -> Line:
    """Deviations that TRL logs and our loop does not: within groups, and of each component of the reward."""
    scored = measure.rewards_by_group(rollouts, groups)
    within = [np.std([r.total for r in rewards]) for rewards in scored]
    parts = measure.part_values([reward for rewards in scored for reward in rewards])
    return {
        **({"reward/group_std/mean": float(np.mean(within))} if within else {}),
        **{f"reward/part/{name}/std": float(np.std(values)) for name, values in parts.items()},
    }


def learner_metrics(passes: Sequence[tuple[TrlBatch, Pass]], settings: Settings) -> Line:
    """Sum up the tokens that the step's losses passed over."""
    sums = dict.fromkeys(("tokens", "ratio", "clipped_low", "clipped_high", "entropy", "kl"), 0.0)
    low, high = settings.clip
    places = real = 0
    for batch, seen in passes:
        rows, now = as_numpy(seen.rows), as_numpy(seen.logprobs).astype(np.float64)
        width = now.shape[1]
        mask = batch.loss_mask[rows, :width]
        old, reference = (batch.column(f"{side}_per_token_logps") for side in ("old", "ref"))
        ratio = np.exp(np.clip(now - (now if old is None else old[rows, :width]), -20, 20))
        gain = as_numpy(batch.output["advantages"])[rows]
        gain = gain[:, None] if gain.ndim == 1 else gain[:, :width]
        sums["tokens"] += int(mask.sum())
        sums["ratio"] += float(ratio[mask].sum())
        sums["clipped_low"] += int(((ratio < 1 - low) & (gain < 0) & mask).sum())
        sums["clipped_high"] += int(((ratio > 1 + high) & (gain > 0) & mask).sum())
        if seen.entropies is not None:
            sums["entropy"] += float(as_numpy(seen.entropies)[mask].sum())
        if reference is not None:
            sums["kl"] += float(measure.k3((reference[rows, :width] - now)[mask]).sum())
        attention = as_numpy(seen.attention) != 0
        places, real = places + attention.size, real + int(attention.sum())
    unknown = {"kl": not settings.beta, "entropy": any(seen.entropies is None for _, seen in passes)}
    losses = [float(seen.loss) for _, seen in passes if seen.loss is not None]
    return {
        **measure.pass_metrics({name: None if unknown.get(name) else total for name, total in sums.items()}),
        **({"loss/total": float(np.sum(losses))} if losses else {}),
        **({"tokens/padding/share": 1 - real / places} if places else {}),
    }


def sampler_metrics(batch: TrlBatch) -> Line:
    """Compare learner and sampler on the same tokens, where TRL kept the sampler's log-probabilities."""
    sampler, old = (batch.column(f"{side}_per_token_logps") for side in ("sampling", "old"))
    if sampler is None or not batch.passes:
        return {}
    pairs = []
    for seen in batch.passes:
        rows = as_numpy(seen.rows)
        learner = as_numpy(seen.logprobs).astype(np.float64) if old is None else old[rows]
        mask = batch.loss_mask[rows]
        pairs.append(np.stack([learner[mask], sampler[rows][mask]]))
    return measure.gap_metrics(*np.concatenate(pairs, axis=1))


def record(trainer: Connection, is_alone: Callable[[], bool]) -> None:
    """Write everything that comes, until None or the trainer's end; an error is reported, and the next is tried."""
    writer: Writer | None = None

    def send(kind: str, *args: Any, **values: Any) -> None:
        with contextlib.suppress(OSError):  # nobody listens any more: the files are still worth writing
            trainer.send((kind, args, values))

    def attempt(part: str, job: Callable[..., None], *args: Any) -> None:
        try:
            job(*args)
        except Exception as error:
            where = traceback.extract_tb(error.__traceback__)[-1]
            send("failed", part, f"{type(error).__name__}: {error} ({where.filename}:{where.lineno})")

    with contextlib.suppress(EOFError, OSError):  # the trainer is gone
        while True:
            if not trainer.poll(CHECK):
                if is_alone():
                    break
                continue
            message = trainer.recv()
            if message is None:
                break
            kind, args = message
            if writer is None:
                writer = Writer(send, *args)
            else:
                attempt("records", getattr(writer, kind), *args)
    if writer is not None:
        attempt("records", writer.write_rollouts, True)


class _NoPandas(MetaPathFinder):
    """Hides pandas: pyarrow would load it, for half a second, only to ask whether an array is one of its."""

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> None:
        del path, target
        if fullname == "pandas":
            raise ModuleNotFoundError("hidden", name=fullname)


if __name__ == "__main__":
    sys.meta_path.insert(0, _NoPandas())
    os.nice(10)  # training goes first
    parent = os.getppid()
    record(Connection(int(sys.argv[1])), lambda: os.getppid() != parent)
