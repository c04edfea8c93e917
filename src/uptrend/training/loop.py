"""The training loop, from top to bottom: sample → score → advantages → update → record → evaluate → checkpoint.

A replay (replay.py) takes the same course with rollouts from another run's records in place of sampled ones.

Left out on purpose: a critic and a reward model (answers are checked, not judged), several processes and a
sampler elsewhere (the sampler's interface bears it; this loop has one process), and every reaction to what
happens: whoever wants to watch, warn or stop is an observer.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from uptrend.algo import advantages, kl_penalty
from uptrend.config import Config
from uptrend.policy.checkpoint import load_checkpoint, save_checkpoint
from uptrend.policy.measure import Movement, WeightMeter
from uptrend.policy.optimizer import Optimizer
from uptrend.policy.policy import Policy
from uptrend.records import Evaluation, Rollout, Run, RunDirectory
from uptrend.rollout.inprocess import InProcessSampler
from uptrend.tasks.pool import Cursor, HeldOut, Pool
from uptrend.training import metrics as measure
from uptrend.training.annotate import Annotated
from uptrend.training.evaluate import evaluate
from uptrend.training.gather import Gathered, RolloutPlayer, gather
from uptrend.training.learner import Experience, Learner, Update, experience
from uptrend.training.observer import Observer, StepRecord, Stop
from uptrend.training.recorder import Recorder


@dataclass(frozen=True)
class Parts:
    """What a run is made of; `cli` joins it."""

    config: Config
    policy: Policy
    pool: Pool
    held_out: HeldOut
    directory: RunDirectory
    observers: Sequence[Observer] = ()


@dataclass(frozen=True)
class Course:
    """Where a run begins and ends, and who gives it rollouts."""

    gather: Callable[[RolloutPlayer, Cursor, int], Gathered]
    """A step's rollouts."""
    last: int
    """Its last step."""
    checkpoint: Path | None = None
    """What it begins with; None for the model as it was made."""
    is_new: bool = True
    """Whether it has not begun yet, so that the model is evaluated first."""


@contextmanager
def recording(parts: Parts) -> Iterator[Recorder]:
    """A recorder for as long as the run goes; observers hear of its beginning, and of its end however it ends."""
    recorder = Recorder(parts.directory)
    for observer in parts.observers:
        observer.before(Run(parts.directory.path))
    try:
        yield recorder
        recorder.drain()
    finally:
        try:
            recorder.close()
        finally:
            for observer in parts.observers:
                observer.after(Run(parts.directory.path))


def train(parts: Parts, resume: bool = False) -> Stop | None:
    """Run a recipe to its end, or until an observer stops it; everything is in the run directory."""
    config = parts.config

    def sample(table: RolloutPlayer, cursor: Cursor, step: int) -> Gathered:
        return gather(table, parts.pool, cursor, step, config)

    checkpoint = Run(parts.directory.path).checkpoints[-1] if resume else None
    return run_course(parts, Course(sample, config.learning.steps, checkpoint, is_new=not resume))


def run_course(parts: Parts, course: Course) -> Stop | None:
    """The loop itself."""
    config, policy = parts.config, parts.policy
    optimizer = Optimizer(policy.flat, config.learning)
    learner = Learner(policy, optimizer, config)
    sampler = InProcessSampler(policy)
    table = RolloutPlayer(policy, sampler, config)
    scale = WeightMeter(policy.flat)
    step, cursor = 0, Cursor()
    stop: Stop | None = None
    held: Evaluation | None
    torch.manual_seed(config.seed)

    if course.checkpoint is not None:
        state = load_checkpoint(course.checkpoint, policy, optimizer)
        step, cursor = state["step"], Cursor(**state["cursor"])
        sampler.load((), version=step)
    with recording(parts) as recorder:
        if course.is_new:
            held = evaluate_held_out(parts, table, recorder, step)
            stop = tell_observers(parts, StepRecord(step, {}, (), held))
        while step < course.last and stop is None:
            step += 1
            clock = measure.Clock(policy.device)

            gathered = course.gather(table, cursor, step)
            cursor = gathered.cursor
            clock.lap("sample")

            exp = experience(gathered.rollouts, config, recorded=gathered.recorded)
            scale.before()
            update, seen = learn(learner, exp, gathered.rollouts, step, config)
            sampler.load((), version=step)
            clock.lap("update")

            rollouts = Annotated(gathered.rollouts, exp, update, gathered.dropped)
            line = _line(step, gathered, exp, update, scale.after(), config) | seen
            clock.lap("record")
            line |= clock.metrics() | {"memory/peak/gib": measure.peak_memory_gib(policy.device)}
            recorder.step(step, rollouts, line)

            held = evaluate_held_out(parts, table, recorder, step) if _is_due(step, config.eval.every, course) else None
            stop = tell_observers(parts, StepRecord(step, line, rollouts, held))
            if _is_due(step, config.checkpoints.every, course) or stop is not None:
                recorder.drain()  # records first: a checkpoint never stands ahead of them
                state = {"step": step, "cursor": asdict(cursor)}
                save_checkpoint(parts.directory.path, policy, optimizer, state, config.checkpoints.keep)
                parts.directory.event("checkpoint", step=step)
    return stop if step < course.last else None  # a wish after the last step stops nothing


def learn(
    learner: Learner, exp: Experience, rollouts: Sequence[Rollout], step: int, config: Config
) -> tuple[Update, dict[str, Any]]:
    """Advantages and the update that they cause."""
    kl = config.learning.kl
    reference_bs = learner.look(exp, reference=True) if kl.beta > 0 else None
    old_bs = learner.look(exp, reference=False) if learner.needs_old else None
    rewards_n = torch.tensor([torch.nan if r.reward is None else r.reward.total for r in rollouts])
    groups_n = torch.empty(len(rollouts), dtype=torch.long)
    groups_n[exp.rollouts_b] = exp.groups_b
    taught_n = rewards_n
    if kl.beta > 0 and kl.estimator == "k1" and old_bs is not None and reference_bs is not None:
        penalty_b = kl_penalty(old_bs.cpu(), reference_bs.cpu(), exp.mask_bs)
        taught_n = rewards_n - kl.beta * torch.zeros(len(rollouts)).index_add(0, exp.rollouts_b, penalty_b)
    advantages_n = advantages(taught_n, groups_n, scale=config.learning.scale, baseline=config.learning.baseline)
    update = learner.update(exp, advantages_n[exp.rollouts_b], step, old_bs=old_bs, reference_bs=reference_bs)
    return update, measure.advantage_metrics(rewards_n, groups_n, advantages_n, rollouts)


def _line(
    step: int, gathered: Gathered, exp: Experience, update: Update, moved: Movement, config: Config
) -> dict[str, Any]:
    return {
        "step": step,
        "time": time.time(),
        **measure.reward_metrics(gathered.rollouts),
        **measure.sampling_metrics(gathered, exp, config.sampling.size),
        **measure.learner_metrics(exp, update),
        **measure.token_metrics(gathered.rollouts, exp, update),
        **measure.weight_metrics(moved),
    }


def evaluate_held_out(parts: Parts, table: RolloutPlayer, recorder: Recorder, step: int) -> Evaluation:
    """Evaluate on the held-out tasks, and write down what came of it."""
    held, rollouts = evaluate(table, parts.held_out, step, parts.config)
    line = {
        "step": step, "accuracy": held.accuracy, "low": held.low, "high": held.high, "tasks": held.tasks,
        "correct": held.correct, "failed": held.failed, "reward": held.reward, "by_family": held.by_family,
        "parts": held.parts, "pass_at": {str(k): v for k, v in held.pass_at.items()}, "seconds": held.seconds,
        "time": time.time(), "hash": parts.held_out.hash,
    }  # fmt: skip
    recorder.evaluation(line, rollouts)
    return held


def tell_observers(parts: Parts, record: StepRecord) -> Stop | None:
    """Every observer sees the step; the first that wants to stop is heard."""
    wishes = [observer.step(record) for observer in parts.observers]
    return next((wish for wish in wishes if wish is not None), None)


def _is_due(step: int, every: int, course: Course) -> bool:
    return step == course.last or (every > 0 and step % every == 0)
