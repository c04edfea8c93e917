"""The training loop, from top to bottom: sample → score → advantages → update → record → evaluate →
checkpoint.

A replay (replay.py) follows the same loop with rollouts from another run's records, a warm start
(warmstart.py) with an expert's demonstrations and advantages of 1.

Several processes run it side by side (ranks.py): each plays and computes its part, and all make the
same update.

Left out on purpose: a critic and a reward model (answers are checked, not judged), and every
reaction to events: code that watches, warns or stops is an observer.

n = rollout, k = turn (one column for all turns where credit goes to the whole rollout), b =
sequence, s = sampled token of it.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from uptrend.algo import kl_penalty
from uptrend.config import Config
from uptrend.config.schema import Credit, Scale
from uptrend.policy.checkpoint import BEST_NAME, random_states, save_checkpoint
from uptrend.policy.optimizer import Optimizer
from uptrend.policy.weights import WeightMeter
from uptrend.records import Evaluation, Rollout, Run
from uptrend.rollout.sampler import Sampler
from uptrend.tasks import event_loop
from uptrend.tasks.pool import Cursor, eval_sections
from uptrend.training.components import Components, LoopPlan, RunContext
from uptrend.training.gather import (
    HeldoutResult,
    ResumePoint,
    RolloutPlayer,
    StepQueue,
    join_results,
    play_heldout,
    read_queue,
)
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
    trainer = build_trainer(context)
    # Rollouts have generators of their own; dropout and whatever a component draws use this one. A
    # checkpoint sets it to where the run left off.
    torch.manual_seed(config.seed + context.ranks.rank)
    resume_point = restore_checkpoint(context, plan, trainer)
    # A server may hold anyone's weights. All ranks take part, because each may hold a part of them.
    event_loop.run(trainer.sampler.load(policy.named(), resume_point.step))

    queue = StepQueue(
        context, trainer.player, resume_point, last_step=plan.last_step, ahead=plan.ahead
    )
    with queue, open_recorder(context, plan) as recorder:
        saver = CheckpointSaver(context, plan, trainer, recorder, queue)
        is_fit_recorded = False
        step = resume_point.step
        stop: Stop | None = None
        evaluations: dict[str, Evaluation]  # by label of the held-out set, "" for the first
        if plan.is_new:
            # The accuracy before training is what every later one is compared with.
            evaluations = evaluate_heldout(context, trainer.player, recorder, step)
            saver.best_accuracy = evaluations[""].accuracy
            stop = notify_observers(context, plan, step, {}, (), evaluations)

        while step < plan.last_step and stop is None:
            step += 1
            clock = Clock(policy.device)

            # Sample and score, or wait for what was sampled ahead.
            gathered = queue.take(step)
            clock.lap("sample")

            # Update the weights.
            exp = components.layout(gathered.rollouts, config, recorded=gathered.recorded)
            trainer.meter.remember()  # what `movement` below is measured from
            update, advantages_n = learn(
                components, trainer.learner, exp, gathered.rollouts, step, config
            )
            update_seconds = clock.lap("update")
            trainer.learner.consider_compiling(update_seconds, plan.last_step - step)

            # Give them to the sampler. One that shares the policy's only notes their version.
            event_loop.run(trainer.sampler.load(policy.named(), step))
            queue.weights_changed(step)
            clock.lap("load")

            # Record. Rows and files are made on the recorder's thread, while the next step samples.
            memory_fit = trainer.learner.memory_fit
            if memory_fit is not None and not is_fit_recorded:
                plan.directory.event("fitted", step=step, **asdict(memory_fit))
                is_fit_recorded = True
            rollouts = RecordedRollouts(gathered.rollouts, exp, update, gathered.dropped)
            movement = trainer.meter.movement()
            result = StepResult(gathered, exp, update, advantages_n.numpy(), movement)
            line: dict[str, Any] = {"step": step, "time": time.time()}
            line |= components.metrics(result)
            line |= record_rank_digests(context, plan, trainer.meter, step)
            clock.lap("record")
            line |= clock.metrics()
            line["memory/peak/gib"] = peak_memory_gib(policy.device)
            recorder.step(line, rollouts)

            reset_every = config.learning.kl.reset_every
            if reset_every and step % reset_every == 0:
                policy.reset_reference()
                plan.directory.event("reference-reset", step=step)

            # Evaluate if it is due, let observers see all of it, and save if that is due or one of
            # them stops the run here.
            evaluations = {}
            if plan.is_due(step, config.eval.every):
                evaluations = evaluate_heldout(context, trainer.player, recorder, step)
            stop = notify_observers(context, plan, step, line, rollouts, evaluations)
            saver.save_if_due(step, gathered.cursor, evaluations.get(""), stop)

        if step >= plan.last_step:
            stop = None  # a Stop after the last step stopped nothing
        recorder.drain()
        plan.on_end(stop)
    return stop


@dataclass(frozen=True)
class Trainer:
    """Parts of a run that the loop drives, made from its components."""

    optimizer: Optimizer
    learner: Learner
    sampler: Sampler
    player: RolloutPlayer
    meter: WeightMeter  # measures how far each update moves the weights


def build_trainer(context: RunContext) -> Trainer:
    """Make the parts of a run."""
    config = context.config
    policy = context.policy
    optimizer = context.components.optimizer(policy.flat, config.learning)
    learner = context.components.learner(policy, optimizer, config)
    learner.join(context.ranks)
    sampler = context.components.sampler(policy)
    player = RolloutPlayer(policy, sampler, config, context.ranks)
    return Trainer(optimizer, learner, sampler, player, WeightMeter(policy.flat))


def restore_checkpoint(context: RunContext, plan: LoopPlan, trainer: Trainer) -> ResumePoint:
    """Load the plan's checkpoint, if it has one; return where the run stands."""
    if plan.checkpoint is None:
        return ResumePoint()
    state = context.components.restore(plan.checkpoint, context.policy, trainer.optimizer)
    if "fitted" in state:
        trainer.learner.adopt_memory_fit(state["fitted"])
    queue = read_queue(plan.checkpoint) if plan.ahead else {}
    return ResumePoint(state["step"], Cursor.from_table(state["cursor"]), queue)


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
    kl = learning.kl
    compare = partial(components.advantages, baseline=learning.baseline)
    # A rollout without a sequence failed before its first token, so it has no reward, and its
    # number here is never looked at.
    groups_n = torch.empty(len(rollouts), dtype=torch.long)
    groups_n[exp.rollouts_b] = exp.groups_b
    returns_nk = returns_of(exp, rollouts, learning.credit)
    advantages_nk = _compare_turns(compare, returns_nk, groups_n, learning.scale)

    reference_bs = None
    old_bs = None
    if kl.beta > 0:
        reference_bs = learner.logprobs(exp, reference=True)
    # k1 is taken from the reward, because in the loss its gradient is 0 on average
    # (algo/losses.py); after scaling, as the deviation of the rewards would take beta out again.
    if reference_bs is not None and kl.estimator == "k1":
        old_bs = learner.logprobs(exp, reference=False)
        penalties_n = _kl_penalties(exp, old_bs, reference_bs, len(rollouts))
        penalties_n[returns_nk.isnan().all(1)] = torch.nan  # compared with no other's
        centered_n = compare(penalties_n, groups_n, scale="none")
        advantages_nk = advantages_nk - kl.beta * centered_n[:, None]

    advantages_bs = _spread_over_tokens(advantages_nk, exp)
    if learner.needs_old and old_bs is None:
        old_bs = learner.logprobs(exp, reference=False, advantages_bs=advantages_bs)
    update = learner.update(exp, advantages_bs, step, old_bs=old_bs, reference_bs=reference_bs)

    # A rollout's own advantage, for metrics, is the mean over the turns that it has. The others'
    # returns are NaN, for which the comparison gives 0: they add at most a penalty to the sum.
    n_turns_n = (~returns_nk.isnan()).sum(1).clamp(min=1)
    return update, advantages_nk.sum(1) / n_turns_n


def _compare_turns(
    compare: Callable[..., Tensor], returns_nk: Tensor, groups_n: Tensor, scale: Scale
) -> Tensor:
    """Compare each turn's return with that of the same turn in the group's other rollouts."""
    # The group of an advantage is a pair (group, turn).
    n_turns = returns_nk.shape[1]
    groups_nk = groups_n[:, None] * n_turns + torch.arange(n_turns)
    advantages = compare(returns_nk.flatten(), groups_nk.flatten(), scale=scale)
    return advantages.view(-1, n_turns)


def _kl_penalties(
    exp: Experience, policy_bs: Tensor, reference_bs: Tensor, n_rollouts: int
) -> Tensor:
    """Sum up each rollout's k1 from log-probabilities by the policy and by the reference."""
    penalties_b = kl_penalty(policy_bs.cpu(), reference_bs.cpu(), exp.mask_bs)
    return torch.zeros(n_rollouts).index_add(0, exp.rollouts_b, penalties_b)


def _spread_over_tokens(advantages_nk: Tensor, exp: Experience) -> Tensor:
    """Give each sampled token the advantage of its turn; with one column, of its rollout."""
    last_column = advantages_nk.shape[1] - 1
    columns_bs = exp.turns_bs.clamp(max=last_column)
    return advantages_nk[exp.rollouts_b[:, None], columns_bs]


def returns_of(exp: Experience, rollouts: Sequence[Rollout], credit: Credit) -> Tensor:
    """Return each rollout's reward, or by turn the rewards from there on, [n, k]; NaN for none."""
    rewards: list[float] = []
    has_turn_rewards = False
    for rollout in rollouts:
        if rollout.reward is None:
            rewards.append(torch.nan)
        else:
            rewards.append(rollout.reward.total)
            has_turn_rewards |= bool(rollout.reward.turns)
    rewards_n1 = torch.tensor(rewards)[:, None]
    if credit == "rollout" or not has_turn_rewards:
        return rewards_n1

    last_turns_b = (exp.turns_bs * exp.real_bs).amax(1)
    last_turns_n = torch.zeros(len(rollouts), dtype=torch.long)
    last_turns_n = last_turns_n.scatter_reduce(0, exp.rollouts_b, last_turns_b, "amax")
    # A reward that is not given by turns came with the last one: it follows every turn.
    returns_nk = rewards_n1.repeat(1, int(exp.turns_bs.max()) + 1)
    for n, rollout in enumerate(rollouts):
        if rollout.reward is not None and rollout.reward.turns:
            for turn in range(returns_nk.shape[1]):
                returns_nk[n, turn] = sum(rollout.reward.turns[turn:])
        returns_nk[n, last_turns_n[n] + 1 :] = torch.nan
    return returns_nk


@contextmanager
def open_recorder(context: RunContext, plan: LoopPlan) -> Iterator[Recorder]:
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


def record_rank_digests(
    context: RunContext, plan: LoopPlan, meter: WeightMeter, step: int
) -> dict[str, int]:
    """Compare the ranks' weights: return the number of different ones as a metric, and write an
    event with each rank's digest if they differ.
    """
    if context.ranks.count == 1:
        return {}
    digests = context.ranks.exchange(meter.digest())
    different = set(digests)
    if len(different) > 1:
        for process, digest in enumerate(digests):
            plan.directory.event("digest", step=step, process=process, digest=digest)
    return {"ranks/weights/count": len(different)}


def evaluate_heldout(
    context: RunContext, player: RolloutPlayer, recorder: Recorder, step: int
) -> dict[str, Evaluation]:
    """Evaluate on the held-out tasks and record the results; return them by label, which is "" for
    the first set.
    """
    sections = eval_sections(context.config)
    heldout = context.heldout
    results: dict[str, HeldoutResult] = {}
    for label, tasks in heldout.by_label.items():
        config = replace(context.config, eval=sections[label])
        results[label] = play_heldout(player, tasks, step, config)
    if heldout.joined:
        results[""] = join_results([results[label] for label in heldout.joined])
    lines: dict[str, dict[str, Any]] = {}
    for label, result in results.items():
        lines[label] = evaluation_line(result.evaluation)
        lines[label]["hash"] = heldout.sets[label].hash if label else heldout.hash
    # One line of evals.jsonl per step: the first set's, with those of further sets inside.
    line = lines.pop("")
    if lines:
        line["sets"] = lines
    rollouts = {label: result.rollouts for label, result in results.items()}
    recorder.evaluation(line, rollouts.pop(""), rollouts)
    return {label: result.evaluation for label, result in results.items()}


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
    first_stop: Stop | None = None
    for observer in plan.observers:
        stop = observer.step(record)
        first_stop = first_stop or stop
    return context.ranks.broadcast(first_stop)


class CheckpointSaver:
    """Writes a run's checkpoints when they are due, and the one with the best held-out
    accuracy.
    """

    def __init__(
        self,
        context: RunContext,
        plan: LoopPlan,
        trainer: Trainer,
        recorder: Recorder,
        queue: StepQueue,
    ) -> None:
        self._context = context
        self._plan = plan
        self._trainer = trainer
        self._recorder = recorder
        self._queue = queue
        # A resumed run goes on from the best accuracy that it has recorded.
        accuracies = [line["accuracy"] for line in Run(plan.directory.path).eval_lines]
        numbers = [float(accuracy) for accuracy in accuracies if accuracy is not None]
        self.best_accuracy = max(numbers, default=-1.0)

    def save_if_due(
        self, step: int, cursor: Cursor, evaluation: Evaluation | None, stop: Stop | None
    ) -> None:
        """Save at every `checkpoints.every`-th step, at the last one and when a Stop ends the run,
        and beside these if the evaluation is the best so far.
        """
        if not self._plan.saves:
            return
        checkpoints = self._context.config.checkpoints
        # With the cursor a resumed run goes on to draw the tasks that come next.
        state: dict[str, Any] = {"step": step, "cursor": cursor.to_table()}
        memory_fit = self._trainer.learner.memory_fit
        if memory_fit is not None:
            state["fitted"] = asdict(memory_fit)
        if stop is not None or self._plan.is_due(step, checkpoints.every):
            self._save(state)
            self._plan.directory.event("checkpoint", step=step)
        if evaluation is not None and evaluation.accuracy > self.best_accuracy:
            self.best_accuracy = evaluation.accuracy
            if checkpoints.best:
                state["accuracy"] = evaluation.accuracy
                self._save(state, BEST_NAME)

    def _save(self, state: dict[str, Any], name: str = "") -> None:
        """Write a checkpoint: one rank does, or all if each holds a part of the weights."""
        context = self._context
        self._recorder.drain()  # records first: a checkpoint is never ahead of them
        self._plan.directory.sync()
        other_states = context.ranks.exchange(random_states())[1:]
        if other_states:
            state = {**state, "others": other_states}
        if context.policy.is_sharded or context.ranks.rank == 0:
            save_checkpoint(
                self._plan.directory.path,
                context.policy,
                self._trainer.optimizer,
                state,
                context.config.checkpoints.keep,
                name,
                write_extra_files=self._queue.save,
            )
        context.ranks.barrier()
