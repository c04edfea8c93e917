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
import threading
import time
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection, Listener, wait
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from uptrend.bridge.trl.batch import LossPass, Settings, TrlBatch, TrlStep, as_float64, as_numpy
from uptrend.bridge.trl.guard import describe_error
from uptrend.bridge.trl.merging import StepCollector, merge_steps
from uptrend.bridge.trl.rollouts import RewardRange, correctness, make_rollouts, make_table
from uptrend.records import Basis, Evidence, Reward, Role, Rollout, RunDirectory, Severity
from uptrend.training import metrics as measure

# Steps of one and the same reward after which a rejected gold answer is more than a suspicion.
MIN_CONSTANT_STEPS = 5
# Seconds between two checks that the trainer lives: a process that it forked may hold the socket
# open.
PARENT_CHECK_S = 2.0
# Seconds that the other processes may take to send the rest once the training is over.
LAST_STEPS_S = 10.0
# Seconds between two checks for processes that have come since.
LAST_CHECK_S = 0.2
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

    def take_steps(self, steps: list[TrlStep]) -> None:
        """Write a step, as several processes saw it."""
        is_alone = self._settings.processes == 1
        self.take_step(steps[0] if is_alone else merge_steps(steps, self._batches))

    def report_absence(self, process: int) -> None:
        """Report a process whose rollouts are missing from here on."""
        reason = (
            f"process {process} of {self._settings.processes} has sent no rollouts of its own: is"
            " its trainer watched too?"
        )
        self._send("event", "partial", reason=reason)
        self._send("print", reason)

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
        # Where the sampler gave no log-probabilities, the model stands for it in a probe.
        line |= step.gaps
        if step.batches:
            line |= sampler_metrics(step.batches[0])
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
            start = 0
            for size in batch.process_sizes or (batch.size,):
                tables.setdefault(batch.step, []).append(table.slice(start, size))
                start += size
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
        for batch, own in zip(step.batches, rollouts_by_batch, strict=True):
            # Without the rows of every process, places do not say which group a row is in.
            if len(batch.process_sizes or (batch.size,)) == self._settings.processes:
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


class ProcessListener:
    """Lets the other processes of the training in, and keeps their connections."""

    def __init__(self, host: str, key: bytes) -> None:
        self._listener = Listener((host, 0), authkey=key)
        self.port: int = self._listener.address[1]
        self.connections: dict[Connection, int] = {}  # process of each
        self.n_seen = 0  # processes that have ever connected
        self._lock = threading.Lock()
        thread = threading.Thread(target=self._accept, name="uptrend-accept", daemon=True)
        thread.start()

    def _accept(self) -> None:
        while True:
            # Whoever does not know the key, or leaves at once, is no process of this training.
            with contextlib.suppress(Exception):
                connection = self._listener.accept()
                process = int(connection.recv())
                with self._lock:
                    self.connections = {**self.connections, connection: process}
                    self.n_seen += 1

    def close(self, connection: Connection) -> None:
        """Forget a process that has ended."""
        with self._lock:
            self.connections = {c: n for c, n in self.connections.items() if c is not connection}
        connection.close()


class RecordingProcess:
    """Receives what the processes of a training send, and has it written."""

    def __init__(self, trainer: Connection) -> None:
        self._trainer = trainer
        self._writer: Writer | None = None
        self._collector: StepCollector | None = None
        self._listener: ProcessListener | None = None
        self._processes = 1

    def run(self, is_alone: Callable[[], bool]) -> None:
        """Write everything that comes, until None or the trainer's end; an error is reported, and
        the next is tried.
        """
        deadline = float("inf")  # until the training is over
        with contextlib.suppress(EOFError, OSError):  # the trainer is gone
            while time.monotonic() < deadline and not self._is_finished(deadline):
                ready = self._wait(deadline)
                if not ready and is_alone():
                    break
                for connection in ready:
                    if connection is not self._trainer:
                        self._take_from_process(connection)
                        continue
                    message = self._trainer.recv()
                    if message is None:
                        deadline = time.monotonic() + LAST_STEPS_S
                    else:
                        self._take(0, *message)
        if self._collector is not None:
            self._attempt(self._collector.flush)
        if self._writer is not None:
            self._attempt(self._writer.write, None)

    def _is_finished(self, deadline: float) -> bool:
        """Return True once the training is over and the other processes have sent everything."""
        if deadline == float("inf"):
            return False
        listener = self._listener
        collector = self._collector
        if listener is None or collector is None:
            return True
        n_expected = self._processes - 1 - len(collector.absent)
        return listener.n_seen >= n_expected and not listener.connections

    def _wait(self, deadline: float) -> list[Connection]:
        """Wait for messages, for a moment: processes may have come since."""
        connections = [] if self._listener is None else [*self._listener.connections]
        if deadline == float("inf"):
            connections.append(self._trainer)
            return _ready(connections, PARENT_CHECK_S)
        if not connections:
            time.sleep(LAST_CHECK_S)
        return _ready(connections, LAST_CHECK_S)

    def _take_from_process(self, connection: Connection) -> None:
        assert self._listener is not None
        process = self._listener.connections[connection]
        try:
            kind, args, values = connection.recv()
        except (EOFError, OSError):
            self._listener.close(connection)
            return
        if kind == "event":
            self._send(kind, *args, **values)
        else:
            self._take(process, kind, args)

    def _take(self, process: int, kind: str, args: tuple[Any, ...]) -> None:
        """Take a message of a process; the first one of the first process begins the record."""
        if self._writer is None or self._collector is None:
            path, settings, reward_range, rendezvous = args
            self._writer = Writer(self._send, path, settings, reward_range)
            self._collector = StepCollector(
                settings.processes,
                self._writer.take_steps,
                self._writer.take_evaluation,
                self._writer.report_absence,
            )
            self._processes = settings.processes
            if rendezvous is not None:
                self._attempt(self._listen, *rendezvous)
            port = None if self._listener is None else self._listener.port
            self._send("ready", port)
        elif kind == "take_step":
            self._attempt(self._collector.add_step, process, *args)
        elif kind == "take_evaluation":
            self._attempt(self._collector.add_evaluation, process, args)
        else:
            self._attempt(getattr(self._writer, kind), *args)

    def _listen(self, host: str, key: bytes) -> None:
        self._listener = ProcessListener(host, key)

    def _send(self, kind: str, *args: Any, **values: Any) -> None:
        # Without a trainer that reads them, the files are still worth writing.
        with contextlib.suppress(OSError):
            self._trainer.send((kind, args, values))

    def _attempt(self, job: Callable[..., None], *args: Any) -> None:
        try:
            job(*args)
        except Exception as error:
            self._send("note", "records", describe_error(error))


def _ready(connections: list[Connection], timeout_s: float) -> list[Connection]:
    """Return the connections that have something to read, once one has."""
    ready = wait(connections, timeout_s)
    return [connection for connection in connections if connection in ready]


if __name__ == "__main__":
    os.nice(10)  # training goes first
    parent = os.getppid()
    RecordingProcess(Connection(int(sys.argv[1]))).run(lambda: os.getppid() != parent)
