"""The training loop, from top to bottom: sample → score → advantages → update → record → evaluate →
checkpoint.

A replay (replay.py) follows the same loop with rollouts from another run's records, a warm start
(warmstart.py) with an expert's demonstrations and advantages of 1.

Several processes go through it side by side (ranks.py): each plays and computes its part, all make
the same update.

Left out on purpose: a critic and a reward model (answers are checked, not judged), and every
reaction to what happens: whatever watches, warns or stops is an observer.
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
from uptrend.training.components import Components, LoopPlan, RunContext
from uptrend.training.gather import ResumePoint, RolloutPlayer, StepQueue, play_heldout, read_queue
from uptrend.training.learner import Experience, Learner, Update
from uptrend.training.metrics import Clock, StepResult, evaluation_line, peak_memory_gib
from uptrend.training.observer import StepRecord, Stop
from uptrend.training.ranks import rank_loss_as_error
from uptrend.training.recorder import RecordedRollouts, Recorder


@rank_loss_as_error()
def run_loop(context: RunContext, plan: LoopPlan) -> Stop | None:
    """Run the training loop; return the Stop that ended it early, None if it reached its last
    step.
    """
    config = context.config
    policy = context.policy
    components = context.components
    optimizer = components.optimizer(policy.flat, config.learning)
    learner = components.learner(policy, optimizer, config)
    learner.join(context.ranks)
    sampler = components.sampler(policy)
    player = RolloutPlayer(policy, sampler, config, context.ranks)
    meter = WeightMeter(policy.flat)
    best = best_accuracy(Run(plan.directory.path))
    # Rollouts have generators of their own; dropout and whatever a component draws depend on this
    # one.
    torch.manual_seed(config.seed + context.ranks.rank)

    resume_point = restore_checkpoint(context, plan, optimizer, learner)
    # A server may hold anything; all ranks take part, since each may have a part of the weights.
    event_loop.run(sampler.load(policy.named(), resume_point.step))
    queue = StepQueue(context, player, resume_point, last_step=plan.last_step, ahead=plan.ahead)
    step = resume_point.step
    stop: Stop | None = None
    evaluations: dict[str, Evaluation]  # by label of the held-out set
    is_fit_recorded = False

    with queue, recording(context, plan) as recorder:
        # The accuracy before training is what every later one is compared with.
        if plan.is_new:
            evaluations = evaluate_heldout(context, player, recorder, step)
            best = max(best, evaluations[""].accuracy)
            stop = notify_observers(context, plan, step, {}, (), evaluations)

        while step < plan.last_step and stop is None:
            step += 1
            clock = Clock(policy.device)

            # Sample and score, or wait for what is sampled ahead.
            gathered = queue.take(step)
            clock.lap("sample")

            # Learn, and give the sampler the new weights; one that shares the policy's only hears
            # of their version.
            exp = components.layout(gathered.rollouts, config, recorded=gathered.recorded)
            meter.before()
            update, advantages_n = learn(components, learner, exp, gathered.rollouts, step, config)
            learner.consider_compiling(clock.lap("update"), plan.last_step - step)
            event_loop.run(sampler.load(policy.named(), step))
            queue.weights_changed(step)
            clock.lap("load")

            # Record. Rows and files are made on the recorder's thread, while the next step samples.
            if learner.fitted is not None and not is_fit_recorded:
                plan.directory.event("fitted", step=step, **asdict(learner.fitted))
                is_fit_recorded = True
            rollouts = RecordedRollouts(gathered.rollouts, exp, update, gathered.dropped)
            result = StepResult(gathered, exp, update, advantages_n.numpy(), meter.after())
            line = {"step": step, "time": time.time(), **components.metrics(result)}
            line |= compare_ranks(context, plan, meter, step)
            clock.lap("record")
            line |= clock.metrics() | {"memory/peak/gib": peak_memory_gib(policy.device)}
            recorder.step(line, rollouts)

            if config.learning.kl.reset_every and step % config.learning.kl.reset_every == 0:
                policy.reset_reference()
                plan.directory.event("reference-reset", step=step)

            # Evaluate, let observers see it all, and save where it is due or one of them stops the
            # run here.
            evaluations = {}
            if plan.is_due(step, config.eval.every):
                evaluations = evaluate_heldout(context, player, recorder, step)
            stop = notify_observers(context, plan, step, line, rollouts, evaluations)
            # The cursor remembers the place among the tasks, so that a resumed run draws on.
            state: dict[str, Any] = {"step": step, "cursor": asdict(gathered.cursor)}
            if learner.fitted is not None:
                state["fitted"] = asdict(learner.fitted)
            if plan.saves and (plan.is_due(step, config.checkpoints.every) or stop is not None):
                save(context, plan, recorder, optimizer, queue, state)
                plan.directory.event("checkpoint", step=step)
            if evaluations and evaluations[""].accuracy > best:
                best = evaluations[""].accuracy
                if plan.saves and config.checkpoints.best:
                    save(
                        context, plan, recorder, optimizer, queue, state | {"accuracy": best}, BEST
                    )

        if step >= plan.last_step:
            stop = None  # a Stop after the last step stopped nothing
        recorder.drain()
        plan.on_end(stop)
    return stop


def best_accuracy(run: Run) -> float:
    """Return the best recorded held-out accuracy of a run; -1 where there is none."""
    accuracies = [line["accuracy"] for line in run.eval_lines]
    return max((float(accuracy) for accuracy in accuracies if accuracy is not None), default=-1.0)


def restore_checkpoint(
    context: RunContext, plan: LoopPlan, optimizer: Optimizer, learner: Learner
) -> ResumePoint:
    """Load the plan's checkpoint, if it has one; return where the run stands."""
    if plan.checkpoint is None:
        return ResumePoint()
    state = context.components.restore(plan.checkpoint, context.policy, optimizer)
    if "fitted" in state:
        learner.adopt(state["fitted"])
    queue = read_queue(plan.checkpoint) if plan.ahead else {}
    return ResumePoint(state["step"], Cursor(**state["cursor"]), queue)


def learn(
    components: Components,
    learner: Learner,
    exp: Experience,
    rollouts: Sequence[Rollout],
    step: int,
    config: Config,
) -> tuple[Update, Tensor]:
    """Compute the advantage of each rollout and make the update that they cause; return both."""
    learning = config.learning
    kl = config.learning.kl
    reference_bs = learner.logprobs(exp, reference=True) if kl.beta > 0 else None
    groups_n = torch.empty(len(rollouts), dtype=torch.long)
    groups_n[exp.rollouts_b] = exp.groups_b
    # One column for a reward of the whole rollout, else one per turn. They are compared among
    # rollouts of a group, and turns with the same turn of the others.
    returns_nk = returns_of(exp, rollouts, learning.credit)
    turns = returns_nk.shape[1]
    groups_nk = groups_n[:, None] * turns + torch.arange(turns)
    how = {"scale": learning.scale, "baseline": learning.baseline}
    advantages_nk = components.advantages(returns_nk.flatten(), groups_nk.flatten(), **how).view(
        -1, turns
    )
    old_bs = None
    # k1 is taken from the reward, because in the loss its gradient is 0 on average
    # (algo/losses.py); after scaling, as the deviation of the rewards would take beta out again.
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
    """Return each rollout's reward, or by turn the rewards from there on; NaN where there is none:
    [n, k].
    """
    rewards_n1 = torch.tensor(
        [[torch.nan if r.reward is None else r.reward.total] for r in rollouts]
    )
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
def recording(context: RunContext, plan: LoopPlan) -> Iterator[Recorder]:
    """Open a recorder for the length of a run; tell observers of its beginning, and of its end
    however it ends.
    """
    recorder = Recorder(plan.directory, context.ranks)
    for observer in plan.observers:
        observer.before(Run(plan.directory.path))
    try:
        yield recorder
    finally:
        try:
            recorder.close()
        finally:
            for observer in plan.observers:
                observer.after(Run(plan.directory.path))


def evaluate_heldout(
    context: RunContext, player: RolloutPlayer, recorder: Recorder, step: int
) -> dict[str, Evaluation]:
    """Evaluate on the held-out tasks and record the results; return them by label, which is "" for
    the first set.
    """
    sections = eval_sections(context.config)
    evaluations: dict[str, Evaluation] = {}
    lines: dict[str, dict[str, Any]] = {}
    rollouts: dict[str, list[Rollout]] = {}
    for label, tasks in context.heldout.by_label.items():
        config = replace(context.config, eval=sections[label])
        evaluations[label], rollouts[label] = play_heldout(player, tasks, step, config)
        lines[label] = evaluation_line(evaluations[label]) | {"hash": tasks.hash}
    line = lines.pop("")
    if lines:
        line["sets"] = lines
    recorder.evaluation(line, rollouts.pop(""), rollouts)
    return evaluations


def notify_observers(
    context: RunContext,
    plan: LoopPlan,
    step: int,
    line: dict[str, Any],
    rollouts: Sequence[Rollout],
    evaluations: dict[str, Evaluation],
) -> Stop | None:
    """Show the step to every observer; return the first Stop, which is all ranks'."""
    sets = {label: evaluation for label, evaluation in evaluations.items() if label}
    record = StepRecord(step, line, rollouts, evaluations.get(""), sets)
    stops = [observer.step(record) for observer in plan.observers]
    return context.ranks.broadcast(next((stop for stop in stops if stop is not None), None))


def save(
    context: RunContext,
    plan: LoopPlan,
    recorder: Recorder,
    optimizer: Optimizer,
    queue: StepQueue,
    state: dict[str, Any],
    name: str = "",
) -> None:
    """Write a checkpoint: one rank does, or all where each holds a part of the weights."""
    recorder.drain()  # records first: a checkpoint is never ahead of them
    plan.directory.sync()
    if others := context.ranks.exchange(random_states())[1:]:
        state = {**state, "others": others}
    if context.policy.is_sharded or context.ranks.rank == 0:
        keep = context.config.checkpoints.keep
        save_checkpoint(
            plan.directory.path, context.policy, optimizer, state, keep, name, also=queue.save
        )
    context.ranks.barrier()


def compare_ranks(
    context: RunContext, plan: LoopPlan, meter: WeightMeter, step: int
) -> dict[str, int]:
    """Count the different sets of weights that ranks hold, and write them down where there is more
    than one.
    """
    if context.ranks.count == 1:
        return {}
    digests = context.ranks.exchange(meter.digest())
    if len(set(digests)) > 1:
        for process, digest in enumerate(digests):
            plan.directory.event("digest", step=step, process=process, digest=digest)
    return {"ranks/weights/count": len(set(digests))}
