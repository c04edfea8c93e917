"""The training loop, from top to bottom: sample → score → advantages → update → record → evaluate → checkpoint.

A replay (replay.py) follows the same loop with rollouts from another run's records, a warm start (warmstart.py)
with an expert's demonstrations and advantages of 1.

Left out on purpose: a critic and a reward model (answers are checked, not judged), several processes and a
sampler elsewhere (the sampler's interface allows it; this loop has one process), and every reaction to what
happens: whoever wants to watch, warn or stop is an observer.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path

import torch
from torch import Tensor

from uptrend.algo import kl_penalty
from uptrend.config import Config
from uptrend.policy.checkpoint import save_checkpoint
from uptrend.policy.policy import Policy
from uptrend.policy.weights import WeightMeter
from uptrend.records import Evaluation, Rollout, Run, RunDirectory
from uptrend.tasks.pool import Cursor, HeldOut, Pool
from uptrend.training.annotate import Annotated
from uptrend.training.components import Components
from uptrend.training.evaluate import evaluate
from uptrend.training.gather import Gathered, RolloutPlayer
from uptrend.training.learner import Experience, Learner, Update
from uptrend.training.metrics import Clock, Learned, peak_memory_gib
from uptrend.training.observer import Observer, StepRecord, Stop
from uptrend.training.recorder import Recorder


@dataclass(frozen=True)
class Parts:
    """A run's ingredients; `runner` joins them."""

    config: Config
    policy: Policy
    pool: Pool
    held_out: HeldOut
    directory: RunDirectory
    observers: Sequence[Observer] = ()
    components: Components = field(default_factory=Components)


@dataclass(frozen=True)
class Course:
    """Beginning and end of a run, and the source of its rollouts."""

    gather: Callable[[RolloutPlayer, Cursor, int], Gathered]
    """Provides a step's rollouts."""
    last: int
    """Last step."""
    checkpoint: Path | None = None
    """Checkpoint to begin with; None for the model as it was loaded."""
    is_new: bool = True
    """True where the run has not begun yet, so that the model is evaluated first."""
    saves: bool = True
    """True where checkpoints are written."""


@contextmanager
def recording(parts: Parts) -> Iterator[Recorder]:
    """Open a recorder for the length of a run; tell observers of its beginning, and of its end however it ends."""
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
    """Train a recipe to its end, or until an observer stops it; everything is in the run directory."""
    config, gather = parts.config, parts.components.gather

    def sample(player: RolloutPlayer, cursor: Cursor, step: int) -> Gathered:
        return gather(player, parts.pool, cursor, step, config)

    checkpoint = Run(parts.directory.path).checkpoints[-1] if resume else None
    return run_course(parts, Course(sample, config.learning.steps, checkpoint, is_new=not resume))


def run_course(parts: Parts, course: Course) -> Stop | None:
    """Run the loop."""
    config, policy, components = parts.config, parts.policy, parts.components
    optimizer = components.optimizer(policy.flat, config.learning)
    learner = components.learner(policy, optimizer, config)
    sampler = components.sampler(policy)
    player = RolloutPlayer(policy, sampler, config)
    meter = WeightMeter(policy.flat)
    step, cursor = 0, Cursor()
    stop: Stop | None = None
    held: Evaluation | None
    torch.manual_seed(config.seed)

    if course.checkpoint is not None:
        state = components.restore(course.checkpoint, policy, optimizer)
        step, cursor = state["step"], Cursor(**state["cursor"])
        sampler.load((), version=step)
    with recording(parts) as recorder:
        if course.is_new:
            held = evaluate_held_out(parts, player, recorder, step)
            stop = tell_observers(parts, StepRecord(step, {}, (), held))
        while step < course.last and stop is None:
            step += 1
            clock = Clock(policy.device)

            gathered = course.gather(player, cursor, step)
            cursor = gathered.cursor
            clock.lap("sample")

            exp = components.layout(gathered.rollouts, config, recorded=gathered.recorded)
            meter.before()
            update, advantages_n = learn(components, learner, exp, gathered.rollouts, step, config)
            sampler.load((), version=step)
            clock.lap("update")

            rollouts = Annotated(gathered.rollouts, exp, update, gathered.dropped)
            learned = Learned(gathered, exp, update, advantages_n.numpy(), meter.after())
            line = {"step": step, "time": time.time(), **components.metrics(learned)}
            clock.lap("record")
            line |= clock.metrics() | {"memory/peak/gib": peak_memory_gib(policy.device)}
            recorder.step(step, rollouts, line)

            is_due = _is_due(step, config.eval.every, course)
            held = evaluate_held_out(parts, player, recorder, step) if is_due else None
            stop = tell_observers(parts, StepRecord(step, line, rollouts, held))
            if course.saves and (_is_due(step, config.checkpoints.every, course) or stop is not None):
                recorder.drain()  # records first: a checkpoint never stands ahead of them
                state = {"step": step, "cursor": asdict(cursor)}
                save_checkpoint(parts.directory.path, policy, optimizer, state, config.checkpoints.keep)
                parts.directory.event("checkpoint", step=step)
    return stop if step < course.last else None  # a wish after the last step stops nothing


def learn(
    components: Components, learner: Learner, exp: Experience, rollouts: Sequence[Rollout], step: int, config: Config
) -> tuple[Update, Tensor]:
    """Compute the advantage of each rollout and make the update that they cause; return both."""
    kl = config.learning.kl
    reference_bs = learner.logprobs(exp, reference=True) if kl.beta > 0 else None
    old_bs = learner.logprobs(exp, reference=False) if learner.needs_old else None
    rewards_n = torch.tensor([torch.nan if r.reward is None else r.reward.total for r in rollouts])
    groups_n = torch.empty(len(rollouts), dtype=torch.long)
    groups_n[exp.rollouts_b] = exp.groups_b
    taught_n = rewards_n
    if kl.beta > 0 and kl.estimator == "k1" and old_bs is not None and reference_bs is not None:
        penalty_b = kl_penalty(old_bs.cpu(), reference_bs.cpu(), exp.mask_bs)
        taught_n = rewards_n - kl.beta * torch.zeros(len(rollouts)).index_add(0, exp.rollouts_b, penalty_b)
    scale, baseline = config.learning.scale, config.learning.baseline
    advantages_n = components.advantages(taught_n, groups_n, scale=scale, baseline=baseline)
    update = learner.update(exp, advantages_n[exp.rollouts_b], step, old_bs=old_bs, reference_bs=reference_bs)
    return update, advantages_n


def evaluate_held_out(parts: Parts, player: RolloutPlayer, recorder: Recorder, step: int) -> Evaluation:
    """Evaluate on the held-out tasks and record the result."""
    held, rollouts = evaluate(player, parts.held_out, step, parts.config)
    line = {
        "step": step, "accuracy": held.accuracy, "low": held.low, "high": held.high, "tasks": held.tasks,
        "correct": held.correct, "failed": held.failed, "by_family": held.by_family,
        **({} if held.reward is None else {"reward": held.reward}),
        "parts": held.parts, "pass_at": {str(k): v for k, v in held.pass_at.items()}, "seconds": held.seconds,
        "time": time.time(), "hash": parts.held_out.hash,
    }  # fmt: skip
    recorder.evaluation(line, rollouts)
    return held


def tell_observers(parts: Parts, record: StepRecord) -> Stop | None:
    """Show the step to every observer; return the first wish to stop."""
    wishes = [observer.step(record) for observer in parts.observers]
    return next((wish for wish in wishes if wish is not None), None)


def _is_due(step: int, every: int, course: Course) -> bool:
    return step == course.last or (every > 0 and step % every == 0)
