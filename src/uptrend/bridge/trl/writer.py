"""The process that records a watched run, so that the trainer's interpreter and thread stay its
own. No torch.

    python -m uptrend.bridge.trl.writer SOCKET

Steps come through the socket, and findings, events and failures go back through it (record.py is
the other end). It ends with the trainer, however that ends, and writes what it still holds: a
killed trainer leaves a whole directory.
"""

import contextlib
import os
import sys
import time
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from uptrend.bridge.trl.batch import MODEL, Pass, Settings, TrlBatch, TrlStep, as_numpy
from uptrend.bridge.trl.guard import describe_error
from uptrend.bridge.trl.rollouts import RewardRange, correctness, make_rollouts, make_table
from uptrend.records import Basis, Evidence, Rollout, RunDirectory, Severity
from uptrend.training import metrics as measure

# steps of one and the same reward after which a rejected gold answer is more than a suspicion
CONSTANT = 5
# seconds between two checks that the trainer lives: a process that it forked may hold the socket
# open
CHECK = 2.0

Line = dict[str, Any]
# Sends a message to the trainer's process: its kind, `say`, `event`, `note` or `written`, and its
# arguments.
Send = Callable[..., None]


class Writer:
    """Writes everything but run.json and events.jsonl, in a run directory that the trainer's
    process has made.
    """

    def __init__(self, send: Send, path: Path, settings: Settings, scale: RewardRange) -> None:
        self._send = send
        self._settings = settings
        self._scale = scale
        self._directory = RunDirectory(path)
        self._name = path.name
        self._suspects: tuple[str, list[str]] | None = None
        self._steady = 0  # steps of one and the same reward
        self._batches: dict[int, TrlBatch] = {}
        # Generations with their rollouts; None where the loss has not passed over all rows yet.
        self._unwritten: list[tuple[TrlBatch, list[Rollout] | None]] = []
        self._waiting: list[int] = []  # steps whose rollouts are not on disk

    def take_scale(self, scale: RewardRange, suspects: tuple[str, list[str]] | None) -> None:
        """Take the result of re-scoring: the range, and the functions that accepted no gold answer
        of a column.
        """
        self._scale = scale
        self._suspects = suspects

    def take_step(self, step: TrlStep) -> None:
        """Write a step."""
        if step.batches:
            self._batches = {n: b for n, b in self._batches.items() if not b.is_whole}
            self._batches |= {b.number: b for b in step.batches}
        # Passes over a generation that never came are dropped.
        passes = [(self._batches[p.batch], p) for p in step.passes if p.batch in self._batches]
        for batch, seen in passes:
            batch.take(seen)
        norms = [] if step.gradient is None else [float(step.gradient)]
        clipped = [min(norm, self._settings.max_norm or np.inf) for norm in norms]
        line: Line = {
            "step": step.step,
            "time": time.time(),
            **(self._sampled(step) if step.batches else {}),
            **(learner_metrics(passes, self._settings) if passes else {}),
            **measure.optimizer_metrics(
                norms, clipped, [step.skipped], None if np.isnan(step.lr) else step.lr
            ),
            **step.moved,
            **(sampler_metrics(step.batches[0]) if step.batches else {}),
            **step.gaps,
            **surprise_metrics(
                [(batch, seen) for batch, seen in passes if batch.step == step.step]
            ),
            "seconds/sample": step.sampling,
            "seconds/update": max(0.0, step.seconds - step.sampling - step.waited),
            "seconds/watch": step.waited,
            "seconds/step": step.seconds,
            "memory/peak/gib": step.memory,
        }
        self.write(line)

    def write(self, line: Line | None) -> None:
        """Write generations that the loss has passed over completely, then the step's line; all,
        without a line.
        """
        tables: dict[int, list[pa.Table]] = {}
        left = []
        for batch, rollouts in self._unwritten:
            if line is not None and not batch.is_whole:
                left.append((batch, rollouts))
                continue
            made = (
                make_rollouts(batch, self._scale, self._settings) if rollouts is None else rollouts
            )
            tables.setdefault(batch.step, []).append(make_table(self._name, made, self._scale))
        self._unwritten = left
        own = [] if line is None else tables.pop(line["step"], [])
        for step, parts in tables.items():  # generations of earlier steps, whose lines are written
            first = self._directory.part_count(step)
            for part, table in enumerate(parts, first):
                self._directory.rollouts(step, table, part)
        if line is not None:
            self._directory.step(line, *own)
            self._waiting.append(line["step"])
        still_open = {batch.step for batch, _ in left}
        if done := [step for step in self._waiting if step not in still_open]:
            self._send("written", done)
        self._waiting = [step for step in self._waiting if step in still_open]

    def take_evaluation(self, batches: list[TrlBatch], seconds: float | None, step: int) -> None:
        """Write an evaluation; without a known right answer there is no accuracy, and only an
        event.
        """
        rollouts = [
            r for batch in batches for r in make_rollouts(batch, self._scale, self._settings)
        ]
        held = measure.evaluation_of(step, rollouts, seconds or 0.0)
        self._send(
            "event", "evaluation", step=step, reward=held.reward, tasks=held.tasks - held.failed
        )
        if any(right is not None for right in correctness(rollouts, self._scale)):
            self._directory.evaluation(
                measure.evaluation_line(held), make_table(self._name, rollouts, self._scale)
            )

    def _sampled(self, step: TrlStep) -> Line:
        """Compute the metrics of a step's generations, by the functions that serve our own loop."""
        batches = step.batches
        for batch in batches:
            self._scale.widen(batch.rewards.astype(np.float64))
        made = [make_rollouts(batch, self._scale, self._settings) for batch in batches]
        self._unwritten += [
            (b, rollouts if b.is_whole else None) for b, rollouts in zip(batches, made, strict=True)
        ]
        every = [r for rollouts in made for r in rollouts]
        self._judge_gold(every, step.step)
        if self._settings.processes == 1:
            for batch, rollouts in zip(batches, made, strict=True):
                self._judge_batch(batch, rollouts)
        groups = [f"{n}/{r.group}" for n, rollouts in enumerate(made) for r in rollouts]
        advantages = np.concatenate(
            [b.output["advantages"].reshape(b.size, -1)[:, 0] for b in batches]
        )
        trained = np.concatenate([np.asarray(r.sequences[0].weights) != 0 for r in every])
        dead = [float(b.trl_dead) for b in batches if b.trl_dead is not None]
        return {
            **measure.reward_metrics(every, correctness(every, self._scale)),
            **spread_metrics(every, groups),
            **measure.advantage_metrics(every, advantages, groups),
            **({"trl/frac_reward_zero_std": float(np.mean(dead))} if dead else {}),
            **measure.sampling_metrics(every),
            **measure.role_metrics(every, trained),
        }

    def _judge_gold(self, rollouts: Sequence[Rollout], step: int) -> None:
        """Report a gold answer that no way of writing it saves, once the reward has stayed the same
        for long.
        """
        self._steady = self._steady + 1 if np.isnan(self._scale.bounds()[0]) else 0
        if self._suspects is None or self._steady < CONSTANT:
            return
        column, names = self._suspects
        mean = float(
            np.mean([r.reward.total for r in rollouts if r.reward is not None] or [np.nan])
        )
        summary = (
            f"The reward function {', '.join(names)} gives gold answers no more than wrong ones,"
            " however they were written, and every rollout the same."
        )
        text = (
            f"Gold and corrupted answers from the column {column!r} earned the same in every form"
            " that was tried."
        )
        steady = Evidence(
            f"All {self._steady} steps so far: one reward.", mean, "reward/mean", step
        )
        evidence = [Evidence(text), steady]
        self._send("say", "reward.gold-rejected", Severity.WARNING, summary, evidence, Basis.SIGNAL)

    def _judge_batch(self, batch: TrlBatch, rollouts: Sequence[Rollout]) -> None:
        """Check that each block of a group's size holds one prompt, and that the loss gets what the
        sampler wrote.
        """
        size = self._settings.size
        tasks = [r.task for r in rollouts]
        blocks = [set(tasks[start : start + size]) for start in range(0, len(tasks), size)]
        if mixed := sum(len(block) > 1 for block in blocks):
            summary = (
                "Rollouts of different prompts are compared with each other: "
                "TRL groups by place, and places are mixed."
            )
            text = f"{mixed} of {len(blocks)} groups of {size} hold more than one prompt."
            shown = Evidence(text, mixed / len(blocks), step=batch.step)
            self._send("say", "advantage.wrong-groups", Severity.CRITICAL, summary, [shown])
        lost = [
            r
            for r in rollouts
            if len(r.sequences[0].ids) and not (r.sequences[0].roles == MODEL).any()
        ]
        if batch.calls and lost:
            text = (
                f"{len(lost)} of {len(rollouts)} completions of step {batch.step} are none that the"
                " sampler wrote."
            )
            shown = Evidence(text, float(len(lost)), step=batch.step, rollout=lost[0].name)
            summary = "Tokens that are trained are not those that were sampled."
            self._send("say", "tokens.retokenized", Severity.CRITICAL, summary, [shown])


def spread_metrics(rollouts: Sequence[Rollout], groups: Sequence[str]) -> Line:
    """Deviations that TRL logs and our loop does not: within groups, and of each component of the
    reward.
    """
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
        rows = as_numpy(seen.rows)
        now = as_numpy(seen.logprobs).astype(np.float64)
        width = now.shape[1]
        mask = batch.loss_mask[rows, :width]
        old, reference = (batch.column(f"{side}_per_token_logps") for side in ("old", "ref"))
        ratio = np.exp(np.clip(now - (now if old is None else old[rows, :width]), -20, 20))
        gain = as_numpy(batch.output["advantages"])[rows]
        gain = gain[:, None] if gain.ndim == 1 else gain[:, :width]
        sums["tokens"] += int(mask.sum())
        sums["ratio"] += float(ratio[mask].sum())
        # The clip binds only where it would stop the update from going on: PPO's minimum of two
        # surrogates.
        sums["clipped_low"] += int(((ratio < 1 - low) & (gain < 0) & mask).sum())
        sums["clipped_high"] += int(((ratio > 1 + high) & (gain > 0) & mask).sum())
        if seen.entropies is not None:
            sums["entropy"] += float(as_numpy(seen.entropies)[mask].sum())
        if reference is not None:
            sums["kl"] += float(measure.k3((reference[rows, :width] - now)[mask]).sum())
        attention = as_numpy(seen.attention) != 0
        places = places + attention.size
        real = real + int(attention.sum())
    unknown = {
        "kl": not settings.beta,
        "entropy": any(seen.entropies is None for _, seen in passes),
    }
    losses = [float(seen.loss) for _, seen in passes if seen.loss is not None]
    return {
        **measure.pass_metrics(
            {name: None if unknown.get(name) else total for name, total in sums.items()}
        ),
        **({"loss/total": float(np.sum(losses))} if losses else {}),
        **({"tokens/padding/share": 1 - real / places} if places else {}),
    }


def surprise_metrics(passes: Sequence[tuple[TrlBatch, Pass]]) -> Line:
    """Compare the mean −log p of sampled tokens with the learner's entropy: equal where it drew
    them itself.
    """
    excess = [
        (-as_numpy(seen.logprobs).astype(np.float64) - as_numpy(seen.entropies))[
            batch.loss_mask[as_numpy(seen.rows)]
        ]
        for batch, seen in passes
        if seen.is_first and seen.entropies is not None
    ]
    each = np.concatenate(excess) if excess else np.zeros(0)
    return {"sampler/surprise/mean": float(each.mean())} if len(each) else {}


def sampler_metrics(batch: TrlBatch) -> Line:
    """Compare learner and sampler on the same tokens, where TRL kept the sampler's
    log-probabilities.
    """
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
    """Write everything that comes, until None or the trainer's end; an error is reported, and the
    next is tried.
    """
    writer: Writer | None = None

    def send(kind: str, *args: Any, **values: Any) -> None:
        # nobody listens any more: the files are still worth writing
        with contextlib.suppress(OSError):
            trainer.send((kind, args, values))

    def attempt(job: Callable[..., None], *args: Any) -> None:
        try:
            job(*args)
        except Exception as error:
            send("note", "records", describe_error(error))

    with contextlib.suppress(EOFError, OSError):  # the trainer is gone
        while trainer.poll(CHECK) or not is_alone():
            if not trainer.poll():
                continue
            message = trainer.recv()
            if message is None:
                break
            kind, args = message
            if writer is None:
                writer = Writer(send, *args)
            else:
                attempt(getattr(writer, kind), *args)
    if writer is not None:
        attempt(writer.write, None)


if __name__ == "__main__":
    os.nice(10)  # training goes first
    parent = os.getppid()
    record(Connection(int(sys.argv[1])), lambda: os.getppid() != parent)
