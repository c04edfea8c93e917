"""The process that records a watched run, so that the trainer's interpreter and thread stay its
own. No torch.

    python -m uptrend.bridge.trl.writer SOCKET

Steps come through the socket, and findings, events and failures go back through it (record.py is
the other end). However the trainer ends, this process first writes the rest and then ends too: a
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

from uptrend.bridge.trl.batch import LossPass, Settings, TrlBatch, TrlStep, as_float64, as_numpy
from uptrend.bridge.trl.guard import describe_error
from uptrend.bridge.trl.rollouts import RewardRange, correctness, make_rollouts, make_table
from uptrend.records import Basis, Evidence, Reward, Role, Rollout, RunDirectory, Severity
from uptrend.training import metrics as measure

# Steps of one and the same reward after which a rejected gold answer is more than a suspicion.
MIN_CONSTANT_STEPS = 5
# Seconds between two checks that the trainer lives: a process that it forked may hold the socket
# open.
PARENT_CHECK_S = 2.0
# Log-ratios are cut here, as in training/metrics.py: a token that is impossible for one side would
# overflow.
MAX_LOG_RATIO = 20

Line = dict[str, Any]
# Sends a message to the trainer's process: its kind, `report`, `event`, `note` or `written`, and
# its arguments.
Send = Callable[..., None]
# A pass of the loss with the generation that it passed over.
BatchPass = tuple[TrlBatch, LossPass]


class Writer:
    """Writes everything but run.json and events.jsonl, in a run directory that the trainer's
    process has made.
    """

    def __init__(
        self, send: Send, path: Path, settings: Settings, reward_range: RewardRange
    ) -> None:
        self._send = send
        self._settings = settings
        self._reward_range = reward_range
        self._directory = RunDirectory(path)
        self._name = path.name
        self._suspects: tuple[str, list[str]] | None = None
        self._constant_steps = 0  # steps so far of one and the same reward
        self._batches: dict[int, TrlBatch] = {}
        # Generations with their rollouts; None where the loss has not passed over all rows yet.
        self._unwritten: list[tuple[TrlBatch, list[Rollout] | None]] = []
        self._waiting: list[int] = []  # steps whose rollouts are not on disk

    def take_reward_range(
        self, reward_range: RewardRange, suspects: tuple[str, list[str]] | None
    ) -> None:
        """Take the result of re-scoring: the range, and the functions that accepted no gold answer
        of a column.
        """
        self._reward_range = reward_range
        self._suspects = suspects

    def take_step(self, step: TrlStep) -> None:
        """Write a step."""
        if step.batches:
            self._batches = {n: batch for n, batch in self._batches.items() if not batch.is_whole}
            self._batches |= {batch.number: batch for batch in step.batches}
        passes: list[BatchPass] = []
        for loss_pass in step.passes:
            batch = self._batches.get(loss_pass.batch)
            if batch is not None:  # else it is dropped: its generation never came
                batch.add_pass(loss_pass)
                passes.append((batch, loss_pass))
        passes_over_new = [each for each in passes if each[0].step == step.step]

        line: Line = {"step": step.step, "time": time.time()}
        if step.batches:
            line |= self._sampling_metrics(step)
        if passes:
            line |= learner_metrics(passes, self._settings)
        line |= self._optimizer_metrics(step)
        line |= step.moved
        if step.batches:
            line |= sampler_metrics(step.batches[0])
        line |= step.gaps
        line |= surprise_metrics(passes_over_new)
        line |= {
            "seconds/sample": step.sampling,
            "seconds/update": max(0.0, step.seconds - step.sampling - step.waited),
            "seconds/watch": step.waited,
            "seconds/step": step.seconds,
            "memory/peak/gib": step.memory,
        }
        self.write(line)

    def write(self, line: Line | None) -> None:
        """Write generations that the loss has passed over completely, then the step's line; without
        a line, write all generations.
        """
        tables: dict[int, list[pa.Table]] = {}
        unfinished: list[tuple[TrlBatch, list[Rollout] | None]] = []
        for batch, rollouts in self._unwritten:
            if line is not None and not batch.is_whole:
                unfinished.append((batch, rollouts))
                continue
            if rollouts is None:
                rollouts = make_rollouts(batch, self._reward_range, self._settings)
            table = make_table(self._name, rollouts, self._reward_range)
            tables.setdefault(batch.step, []).append(table)
        self._unwritten = unfinished

        own_tables = [] if line is None else tables.pop(line["step"], [])
        for step, parts in tables.items():  # generations of earlier steps, whose lines are written
            first = self._directory.part_count(step)
            for part, table in enumerate(parts, first):
                self._directory.rollouts(step, table, part)
        if line is not None:
            self._directory.step(line, *own_tables)
            self._waiting.append(line["step"])

        open_steps = {batch.step for batch, _ in unfinished}
        written_steps = [step for step in self._waiting if step not in open_steps]
        if written_steps:
            self._send("written", written_steps)
        self._waiting = [step for step in self._waiting if step in open_steps]

    def take_evaluation(self, batches: list[TrlBatch], seconds: float | None, step: int) -> None:
        """Write an evaluation; without a known right answer there is no accuracy, and only an
        event.
        """
        rollouts: list[Rollout] = []
        for batch in batches:
            rollouts += make_rollouts(batch, self._reward_range, self._settings)
        evaluation = measure.evaluation_of(step, rollouts, seconds or 0.0)
        self._send(
            "event",
            "evaluation",
            step=step,
            reward=evaluation.reward,
            tasks=evaluation.tasks - evaluation.failed,
        )
        if any(is_right is not None for is_right in correctness(rollouts, self._reward_range)):
            table = make_table(self._name, rollouts, self._reward_range)
            self._directory.evaluation(measure.evaluation_line(evaluation), table)

    def _optimizer_metrics(self, step: TrlStep) -> Line:
        """Return the metrics of a step's update, from the gradient's norm before clipping."""
        norms = [] if step.gradient is None else [float(step.gradient)]
        max_norm = self._settings.max_norm or np.inf
        clipped = [min(norm, max_norm) for norm in norms]
        lr = None if np.isnan(step.lr) else step.lr
        return measure.optimizer_metrics(norms, clipped, [step.skipped], lr)

    def _sampling_metrics(self, step: TrlStep) -> Line:
        """Compute the metrics of a step's generations, by the functions that serve our own loop."""
        for batch in step.batches:
            self._reward_range.widen(batch.rewards.astype(np.float64))

        rollouts: list[Rollout] = []
        groups: list[str] = []
        rollouts_by_batch = [
            make_rollouts(batch, self._reward_range, self._settings) for batch in step.batches
        ]
        for number, (batch, own) in enumerate(zip(step.batches, rollouts_by_batch, strict=True)):
            self._unwritten.append((batch, own if batch.is_whole else None))
            rollouts += own
            groups += [f"{number}/{rollout.group}" for rollout in own]

        self._judge_gold(rollouts, step.step)
        if self._settings.processes == 1:
            for batch, own in zip(step.batches, rollouts_by_batch, strict=True):
                self._judge_batch(batch, own)

        advantages = [b.output["advantages"].reshape(b.size, -1)[:, 0] for b in step.batches]
        is_trained = [np.asarray(rollout.sequences[0].weights) != 0 for rollout in rollouts]
        dead_shares = [float(b.trl_dead) for b in step.batches if b.trl_dead is not None]
        line = measure.reward_metrics(rollouts, correctness(rollouts, self._reward_range))
        line |= spread_metrics(rollouts, groups)
        line |= measure.advantage_metrics(rollouts, np.concatenate(advantages), groups)
        if dead_shares:
            line["trl/frac_reward_zero_std"] = float(np.mean(dead_shares))
        line |= measure.sampling_metrics(rollouts)
        line |= measure.role_metrics(rollouts, np.concatenate(is_trained))
        return line

    def _judge_gold(self, rollouts: Sequence[Rollout], step: int) -> None:
        """Report gold answers that are paid in no form, once rewards stay constant for long."""
        is_constant = np.isnan(self._reward_range.bounds()[0])
        self._constant_steps = self._constant_steps + 1 if is_constant else 0
        if self._suspects is None or self._constant_steps < MIN_CONSTANT_STEPS:
            return
        column, names = self._suspects
        totals = [rollout.reward.total for rollout in rollouts if rollout.reward is not None]
        mean = float(np.mean(totals or [np.nan]))
        summary = (
            f"The reward function {', '.join(names)} gives gold answers no more than wrong ones,"
            " in the forms that were tried, and every rollout the same."
        )
        equal_scores = Evidence(
            f"Gold and corrupted answers from the column {column!r} earned the same in every form"
            " that was tried."
        )
        constant_reward = Evidence(
            f"All {self._constant_steps} steps so far: one reward.", mean, "reward/mean", step
        )
        evidence = [equal_scores, constant_reward]
        self._send(
            "report", "reward.gold-rejected", Severity.WARNING, summary, evidence, Basis.SIGNAL
        )

    def _judge_batch(self, batch: TrlBatch, rollouts: Sequence[Rollout]) -> None:
        """Check that each block of a group's size holds one prompt, and that the loss gets what the
        sampler wrote.
        """
        size = self._settings.group_size
        tasks = [rollout.task for rollout in rollouts]
        blocks = [set(tasks[start : start + size]) for start in range(0, len(tasks), size)]
        n_mixed = sum(len(block) > 1 for block in blocks)
        if n_mixed:
            summary = (
                "Rollouts of different prompts are compared with each other: "
                "TRL groups by place, and places are mixed."
            )
            text = f"{n_mixed} of {len(blocks)} groups of {size} hold more than one prompt."
            evidence = Evidence(text, n_mixed / len(blocks), step=batch.step)
            self._send("report", "advantage.wrong-groups", Severity.CRITICAL, summary, [evidence])

        foreign: list[Rollout] = []  # none of their tokens is the sampler's
        for rollout in rollouts:
            sequence = rollout.sequences[0]
            if len(sequence.ids) and not (sequence.roles == Role.MODEL).any():
                foreign.append(rollout)
        if batch.calls and foreign:
            text = (
                f"{len(foreign)} of {len(rollouts)} completions of step {batch.step} are none that"
                " the sampler wrote."
            )
            evidence = Evidence(text, float(len(foreign)), step=batch.step, rollout=foreign[0].name)
            summary = "Tokens that are trained are not those that were sampled."
            self._send("report", "tokens.retokenized", Severity.CRITICAL, summary, [evidence])


def spread_metrics(rollouts: Sequence[Rollout], groups: Sequence[str]) -> Line:
    """Return deviations that TRL logs and our loop does not: within groups, and of each component
    of the reward.
    """
    deviations: list[float] = []
    rewards: list[Reward] = []
    for own in measure.rewards_by_group(rollouts, groups):
        deviations.append(float(np.std([reward.total for reward in own])))
        rewards += own
    line: Line = {}
    if deviations:
        line["reward/group_std/mean"] = float(np.mean(deviations))
    for name, values in measure.part_values(rewards).items():
        line[f"reward/part/{name}/std"] = float(np.std(values))
    return line


def learner_metrics(passes: Sequence[BatchPass], settings: Settings) -> Line:
    """Sum up the tokens that the step's losses passed over."""
    sums = dict.fromkeys(("tokens", "ratio", "clipped_low", "clipped_high", "entropy", "kl"), 0.0)
    low, high = settings.clip
    n_places = 0  # tokens of the padded batches
    n_attended = 0
    for batch, loss_pass in passes:
        rows = as_numpy(loss_pass.rows)
        now = as_float64(loss_pass.logprobs)
        width = now.shape[1]
        mask = batch.loss_mask[rows, :width]
        old = batch.column("old_per_token_logps")
        log_ratio = now - (now if old is None else old[rows, :width])
        ratio = np.exp(np.clip(log_ratio, -MAX_LOG_RATIO, MAX_LOG_RATIO))
        advantage = as_numpy(batch.output["advantages"])[rows]
        advantage = advantage[:, None] if advantage.ndim == 1 else advantage[:, :width]
        sums["tokens"] += int(mask.sum())
        sums["ratio"] += float(ratio[mask].sum())
        # The clip binds only where it would stop the update from going on: PPO's minimum of two
        # surrogates.
        sums["clipped_low"] += int(((ratio < 1 - low) & (advantage < 0) & mask).sum())
        sums["clipped_high"] += int(((ratio > 1 + high) & (advantage > 0) & mask).sum())
        if loss_pass.entropies is not None:
            sums["entropy"] += float(as_numpy(loss_pass.entropies)[mask].sum())
        reference = batch.column("ref_per_token_logps")
        if reference is not None:
            sums["kl"] += float(measure.k3((reference[rows, :width] - now)[mask]).sum())
        attention = as_numpy(loss_pass.attention) != 0
        n_places += attention.size
        n_attended += int(attention.sum())

    known_sums: dict[str, float | None] = {**sums}
    if not settings.beta:
        known_sums["kl"] = None
    if any(loss_pass.entropies is None for _, loss_pass in passes):
        known_sums["entropy"] = None
    line = measure.pass_metrics(known_sums)
    losses = [float(loss_pass.loss) for _, loss_pass in passes if loss_pass.loss is not None]
    if losses:
        line["loss/total"] = float(np.sum(losses))
    if n_places:
        line["tokens/padding/share"] = 1 - n_attended / n_places
    return line


def surprise_metrics(passes: Sequence[BatchPass]) -> Line:
    """Compare the mean −log p of sampled tokens with the learner's entropy: equal where it drew
    them itself.
    """
    excesses = [np.zeros(0)]
    for batch, loss_pass in passes:
        if loss_pass.is_first and loss_pass.entropies is not None:
            excess = -as_float64(loss_pass.logprobs) - as_numpy(loss_pass.entropies)
            excesses.append(excess[batch.loss_mask[as_numpy(loss_pass.rows)]])
    excess = np.concatenate(excesses)
    return {"sampler/surprise/mean": float(excess.mean())} if len(excess) else {}


def sampler_metrics(batch: TrlBatch) -> Line:
    """Compare learner and sampler on the same tokens, where TRL keeps the sampler's
    log-probabilities.
    """
    sampler = batch.column("sampling_per_token_logps")
    old = batch.column("old_per_token_logps")
    if sampler is None or not batch.passes:
        return {}
    learner_parts = []
    sampler_parts = []
    for loss_pass in batch.passes:
        rows = as_numpy(loss_pass.rows)
        mask = batch.loss_mask[rows]
        learner = as_float64(loss_pass.logprobs) if old is None else old[rows]
        learner_parts.append(learner[mask])
        sampler_parts.append(sampler[rows][mask])
    return measure.gap_metrics(np.concatenate(learner_parts), np.concatenate(sampler_parts))


def record(trainer: Connection, is_alone: Callable[[], bool]) -> None:
    """Write everything that comes, until None or the trainer's end; an error is reported, and the
    next is tried.
    """
    writer: Writer | None = None

    def send(kind: str, *args: Any, **values: Any) -> None:
        # Without a trainer that reads them, the files are still worth writing.
        with contextlib.suppress(OSError):
            trainer.send((kind, args, values))

    def attempt(job: Callable[..., None], *args: Any) -> None:
        try:
            job(*args)
        except Exception as error:
            send("note", "records", describe_error(error))

    with contextlib.suppress(EOFError, OSError):  # the trainer is gone
        while trainer.poll(PARENT_CHECK_S) or not is_alone():
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
