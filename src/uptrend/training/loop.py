"""The training loop, from top to bottom: sample → score → advantages → update → record → evaluate → checkpoint.

A replay (replay.py) follows the same loop with rollouts from another run's records, a warm start (warmstart.py)
with an expert's demonstrations and advantages of 1.

Several processes go through it side by side (ranks.py): each plays and computes its part, all make the same update.

Left out on purpose: a critic and a reward model (answers are checked, not judged), and every reaction to what happens:
whatever watches, warns or stops is an observer.
"""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from typing import Any

import torch
from torch import Tensor

from uptrend.algo import kl_penalty
from uptrend.config import Config
from uptrend.config.schema import Credit
from uptrend.policy.checkpoint import BEST, random_states, save_checkpoint
from uptrend.policy.optimizer import Optimizer
from uptrend.policy.weights import WeightMeter
from uptrend.records import Evaluation, Rollout, Run
from uptrend.tasks import event_loop
from uptrend.tasks.pool import Cursor, eval_sections
from uptrend.training.ahead import Place, StepQueue, read_queue
from uptrend.training.components import Components, Course, Parts
from uptrend.training.gather import Gathered, RolloutPlayer, evaluate
from uptrend.training.learner import Experience, Learner, Update
from uptrend.training.metrics import Clock, Learned, evaluation_line, peak_memory_gib
from uptrend.training.observer import StepRecord, Stop
from uptrend.training.ranks import losses
from uptrend.training.recorder import Annotated, Recorder


def train(parts: Parts, resume: bool = False) -> Stop | None:
    """Train a recipe to its end, or until an observer stops it; everything is in the run directory."""
    config, gather = parts.config, parts.components.gather

    def sample(player: RolloutPlayer, cursor: Cursor, step: int) -> Gathered:
        return gather(player, parts.pool, cursor, step, config)

    checkpoint = Run(parts.directory.path).checkpoints[-1] if resume else None
    ahead = config.sampling.ahead
    with losses():
        return run_course(parts, Course(sample, config.learning.steps, checkpoint, is_new=not resume, ahead=ahead))


def run_course(parts: Parts, course: Course) -> Stop | None:
    """Run the loop; return the wish that stopped it before its last step, None where it reached the end."""
    config, policy, components, ranks = parts.config, parts.policy, parts.components, parts.ranks
    optimizer = components.optimizer(policy.flat, config.learning)
    learner = components.learner(policy, optimizer, config)
    learner.join(ranks)
    sampler = components.sampler(policy)
    player = RolloutPlayer(policy, sampler, config, ranks)
    meter = WeightMeter(policy.flat)
    at, told = Place(), False
    stop: Stop | None = None
    held: Evaluation | None
    others: dict[str, Evaluation]
    known = [line["accuracy"] for line in Run(parts.directory.path).eval_lines]
    best = max((float(accuracy) for accuracy in known if accuracy is not None), default=-1.0)
    # Rollouts have generators of their own; dropout and whatever a component draws depend on this one.
    torch.manual_seed(config.seed + ranks.rank)

    if course.checkpoint is not None:
        state = components.restore(course.checkpoint, policy, optimizer)
        at = Place(state["step"], Cursor(**state["cursor"]), read_queue(course.checkpoint) if course.ahead else {})
        if "fitted" in state:
            learner.adopt(state["fitted"])
    # A server may hold anything; all ranks take part, since each may have a part of the weights.
    event_loop.run(sampler.load(policy.named(), at.step))
    step, queue = at.step, StepQueue(course.gather, player, ranks, at, last=course.last, ahead=course.ahead)
    with queue, recording(parts) as recorder:
        # The accuracy before training is what every later one is compared with.
        if course.is_new:
            held, others = evaluate_held_out(parts, player, recorder, step)
            best = max(best, held.accuracy)
            stop = tell_observers(parts, StepRecord(step, {}, (), held, others))
        while step < course.last and stop is None:
            step += 1
            clock = Clock(policy.device)

            # Sample and score, or wait for what is sampled ahead.
            gathered = queue.take(step)
            clock.lap("sample")

            # Learn, and give the sampler the new weights; one that shares the policy's only hears of their version.
            exp = components.layout(gathered.rollouts, config, recorded=gathered.recorded)
            meter.before()
            update, advantages_n = learn(components, learner, exp, gathered.rollouts, step, config)
            learner.consider_compiling(clock.lap("update"), course.last - step)
            event_loop.run(sampler.load(policy.named(), step))
            queue.loaded(step)
            clock.lap("load")
            fitted = {} if learner.fitted is None else {"fitted": asdict(learner.fitted)}
            if fitted and not told:
                parts.directory.event("fitted", step=step, **fitted["fitted"])
                told = True

            # Record. Rows and files are made on the recorder's thread, while the next step samples.
            rollouts = Annotated(gathered.rollouts, exp, update, gathered.dropped)
            learned = Learned(gathered, exp, update, advantages_n.numpy(), meter.after())
            line = {"step": step, "time": time.time(), **components.metrics(learned)}
            line |= compare_ranks(parts, meter, step)
            clock.lap("record")
            line |= clock.metrics() | {"memory/peak/gib": peak_memory_gib(policy.device)}
            recorder.step(line, rollouts)

            if config.learning.kl.reset_every and step % config.learning.kl.reset_every == 0:
                policy.reset_reference()
                parts.directory.event("reference-reset", step=step)

            # Evaluate, let observers see it all, and save where it is due or one of them stops the run here.
            is_due = course.is_due(step, config.eval.every)
            held, others = evaluate_held_out(parts, player, recorder, step) if is_due else (None, {})
            stop = tell_observers(parts, StepRecord(step, line, rollouts, held, others))
            # The cursor remembers the place among the tasks, so that a resumed run draws on.
            saved, state = config.checkpoints, {"step": step, "cursor": asdict(gathered.cursor), **fitted}
            if course.saves and (course.is_due(step, saved.every) or stop is not None):
                save(parts, recorder, optimizer, queue, state)
                parts.directory.event("checkpoint", step=step)
            if held is not None and held.accuracy > best:
                best = held.accuracy
                if course.saves and saved.best:
                    save(parts, recorder, optimizer, queue, state | {"accuracy": best}, BEST)
        stop = stop if step < course.last else None  # a wish after the last step stops nothing
        recorder.drain()
        parts.ended(stop)
    return stop


def learn(
    components: Components, learner: Learner, exp: Experience, rollouts: Sequence[Rollout], step: int, config: Config
) -> tuple[Update, Tensor]:
    """Compute the advantage of each rollout and make the update that they cause; return both."""
    learning, kl = config.learning, config.learning.kl
    reference_bs = learner.logprobs(exp, reference=True) if kl.beta > 0 else None
    groups_n = torch.empty(len(rollouts), dtype=torch.long)
    groups_n[exp.rollouts_b] = exp.groups_b
    # One column for a reward of the whole rollout, else one per turn. They are compared among rollouts of a group, and
    # turns with the same turn of the others.
    returns_nk = returns_of(exp, rollouts, learning.credit)
    turns = returns_nk.shape[1]
    groups_nk = groups_n[:, None] * turns + torch.arange(turns)
    how = {"scale": learning.scale, "baseline": learning.baseline}
    advantages_nk = components.advantages(returns_nk.flatten(), groups_nk.flatten(), **how).view(-1, turns)
    old_bs = None
    # k1 is taken from the reward, because in the loss its gradient is 0 on average (algo/losses.py); after scaling, as
    # the deviation of the rewards would take beta out again.
    if reference_bs is not None and kl.estimator == "k1":
        old_bs = learner.logprobs(exp, reference=False)
        penalty_b = kl_penalty(old_bs.cpu(), reference_bs.cpu(), exp.mask_bs)
        penalty_n = torch.zeros(len(rollouts)).index_add(0, exp.rollouts_b, penalty_b)
        penalty_n[returns_nk.isnan().all(1)] = torch.nan
        centered_n = components.advantages(penalty_n, groups_n, **how | {"scale": "none"})
        advantages_nk = advantages_nk - kl.beta * centered_n[:, None]
    advantages_bs = advantages_nk[exp.rollouts_b[:, None], exp.turns_bs.clamp(max=turns - 1)]
    if learner.needs_old and old_bs is None:
        old_bs = learner.logprobs(exp, reference=False, advantages_bs=advantages_bs)
    update = learner.update(exp, advantages_bs, step, old_bs=old_bs, reference_bs=reference_bs)
    return update, advantages_nk.sum(1) / (~returns_nk.isnan()).sum(1).clamp(min=1)


def returns_of(exp: Experience, rollouts: Sequence[Rollout], credit: Credit) -> Tensor:
    """Return each rollout's reward, or by turn the rewards from there on; NaN where there is none: [n, k]."""
    rewards_n1 = torch.tensor([[torch.nan if r.reward is None else r.reward.total] for r in rollouts])
    if credit == "rollout" or not any(r.reward is not None and r.reward.turns for r in rollouts):
        return rewards_n1
    # Rewards without turns came with the last one: they follow every turn.
    returns_nk = rewards_n1.repeat(1, int(exp.turns_bs.max()) + 1)
    last_n = torch.zeros(len(rollouts), dtype=torch.long).scatter_reduce(
        0, exp.rollouts_b, (exp.turns_bs * exp.real_bs).amax(1), "amax"
    )
    for row_k, r, last in zip(returns_nk, rollouts, last_n.tolist(), strict=True):
        if r.reward is not None and r.reward.turns:
            for turn in range(len(row_k)):
                row_k[turn] = sum(r.reward.turns[turn:])
        row_k[last + 1 :] = torch.nan
    return returns_nk


@contextmanager
def recording(parts: Parts) -> Iterator[Recorder]:
    """Open a recorder for the length of a run; tell observers of its beginning, and of its end however it ends."""
    recorder = Recorder(parts.directory, parts.ranks)
    for observer in parts.observers:
        observer.before(Run(parts.directory.path))
    try:
        yield recorder
    finally:
        try:
            recorder.close()
        finally:
            for observer in parts.observers:
                observer.after(Run(parts.directory.path))


def evaluate_held_out(
    parts: Parts, player: RolloutPlayer, recorder: Recorder, step: int
) -> tuple[Evaluation, dict[str, Evaluation]]:
    """Evaluate on the held-out tasks and record the results; return those of the first set, and of others by label."""
    sections, sets = eval_sections(parts.config), parts.held_out.by_label
    played = {
        label: evaluate(player, held_out, step, replace(parts.config, eval=sections[label]))
        for label, held_out in sets.items()
    }
    lines = {label: evaluation_line(held) | {"hash": sets[label].hash} for label, (held, _) in played.items()}
    rollouts = {label: found for label, (_, found) in played.items()}
    line = lines.pop("")
    recorder.evaluation(line | ({"sets": lines} if lines else {}), rollouts.pop(""), rollouts)
    results = {label: held for label, (held, _) in played.items()}
    return results.pop(""), results


def tell_observers(parts: Parts, record: StepRecord) -> Stop | None:
    """Show the step to every observer; return the first wish to stop, which is all ranks'."""
    wishes = [observer.step(record) for observer in parts.observers]
    return parts.ranks.broadcast(next((wish for wish in wishes if wish is not None), None))


def save(
    parts: Parts, recorder: Recorder, optimizer: Optimizer, queue: StepQueue, state: dict[str, Any], name: str = ""
) -> None:
    """Write a checkpoint: one rank does, or all where each holds a part of the weights."""
    recorder.drain()  # records first: a checkpoint is never ahead of them
    parts.directory.sync()
    if others := parts.ranks.exchange(random_states())[1:]:
        state = {**state, "others": others}
    if parts.policy.is_sharded or parts.ranks.rank == 0:
        keep = parts.config.checkpoints.keep
        save_checkpoint(parts.directory.path, parts.policy, optimizer, state, keep, name, also=queue.save)
    parts.ranks.barrier()


def compare_ranks(parts: Parts, meter: WeightMeter, step: int) -> dict[str, int]:
    """Count the different sets of weights that ranks hold, and write them down where there is more than one."""
    if parts.ranks.count == 1:
        return {}
    digests = parts.ranks.exchange(meter.digest())
    if len(set(digests)) > 1:
        for process, digest in enumerate(digests):
            parts.directory.event("digest", step=step, process=process, digest=digest)
    return {"ranks/weights/count": len(set(digests))}
