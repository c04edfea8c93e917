"""Positive controls: if learner, synchronization, sampler and reward are sound, 16 tasks are easily
learned.

Where it fails, what failed says where: log-probabilities, the sampler, or the reward.

b = sequence, s = sampled token of it.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch

from uptrend.config import Config
from uptrend.doctor.check import CRITICAL, NOTE, SIGNAL, SUSPICION, WARNING
from uptrend.doctor.probes.bench import DEMONSTRATED_TASKS, Bench
from uptrend.doctor.probes.probe import Answer, probe, require
from uptrend.doctor.probes.rollouts import pass_rates
from uptrend.records import Rollout
from uptrend.training.loop import learn
from uptrend.training.warmstart import supervised

# Supervised steps on the gold answers; they end early once these are known by heart.
SUPERVISED_STEPS = 24
MIN_SUPERVISED_STEPS = 3
# Adam's second-moment decay, short enough for so few steps.
SUPERVISED_BETA2 = 0.99
# Learning rate times the model's width: 1e-4 at 576. Adapters take ten times as much.
WIDTH_TIMES_LR = 0.06
ADAPTER_LR_FACTOR = 10
# Mean log-probability of gold tokens that are known by heart; the double still counts as learned.
LEARNED_LOGPROB = -0.1
# Nats by which gold answers must fall to become less likely, and rise to become likelier.
MIN_LOGPROB_FALL = 0.1
MIN_LOGPROB_RISE = 0.02
# Share of right answers below which the sampler does not say what the learner knows, and gain in
# reward below which it is not paid for it.
MIN_RIGHT_SHARE = 0.5
MIN_REWARD_GAIN = 0.05
# Fall of accuracy on the taught tasks that is not chance: 4 of 16.
MIN_ACCURACY_FALL = 0.25
# Share of answers in gold's words from which the model says gold, and the scorer is at fault.
MIN_GOLD_WORDS = 0.5


@probe(
    "control",
    finds=["advantage.sign", "optimizer.frozen", "sync.stale-weights", "reward.gold-rejected"],
    cheap=False,
)
def control(bench: Bench) -> Answer:
    """Teach 16 gold answers by 24 supervised steps: they must become likelier and be said."""
    golds = list[Rollout]()
    for rollout in bench.demonstrations:
        if rollout.reward is not None and rollout.sampled_tokens:
            golds.append(rollout)
    require(golds, "the expert's rollouts do not fit into the limits")
    tasks = [bench.tasks[rollout.task] for rollout in golds]
    config = _supervised_config(bench)
    experience = bench.experience(golds, config)

    untaught = bench.play(tasks, 1, "control", temperature=0.0)
    logprobs = list[float]()  # of gold tokens, before each step
    with bench.scratch():
        learner, _ = bench.make_learner(config)
        advantages_bs = torch.ones_like(experience.sampler_bs)
        for step in range(1, SUPERVISED_STEPS + 1):
            update = learner.update(experience, advantages_bs, step, old_bs=None, reference_bs=None)
            logprobs.append(float(update.learner_bs[experience.mask_bs].nanmean()))
            if logprobs[-1] > LEARNED_LOGPROB and step >= MIN_SUPERVISED_STEPS:
                break
        logprob_before = logprobs[0]
        logprobs_after_bs = bench.logprobs(experience, learner)
        logprob_after = float(logprobs_after_bs[experience.mask_bs].nanmean())
        bench.synchronize(1)
        taught = bench.play(tasks, 1, "control", temperature=0.0)

    right_before = _right_share(untaught)
    right_after = _right_share(taught)
    logprob_gain = logprob_after - logprob_before
    reward_before = _mean_reward(untaught)
    reward_after = _mean_reward(taught)
    change = f"log-probability {logprob_before:.2f} → {logprob_after:.2f}"
    right_change = f"{right_before:.0%} → {right_after:.0%}"
    yield f"{len(logprobs)} supervised steps on {len(golds)} gold answers: {change} per token, "
    yield f"right {right_change}"

    was_known = logprob_before >= 2 * LEARNED_LOGPROB
    is_learned = logprob_after > 2 * LEARNED_LOGPROB
    is_unpaid = right_after < MIN_RIGHT_SHARE and reward_after < reward_before + MIN_REWARD_GAIN
    if logprob_after < logprob_before - MIN_LOGPROB_FALL:
        id = "advantage.sign"
        severity = CRITICAL
        summary = "Supervised steps make gold answers less likely: the update goes the wrong way."
    elif logprob_gain < MIN_LOGPROB_RISE and not was_known:
        id = "optimizer.frozen"
        severity = CRITICAL
        summary = (
            "Supervised steps do not make gold answers likelier: what trains does not reach the"
            " output."
        )
    elif is_learned and is_unpaid:
        id = "sync.stale-weights"
        severity = WARNING
        summary = (
            "The learner knows 16 gold answers by heart; the sampler does not say them or is not"
            " paid for them."
        )
    elif right_after <= right_before - MIN_ACCURACY_FALL:
        # A sampler that says gold's words and is not paid has a scorer at fault; one that says
        # others is not what the learner taught.
        in_gold_words = [
            answer.response == gold.response for answer, gold in zip(taught, golds, strict=True)
        ]
        gold_share = sum(in_gold_words) / len(taught)
        id = "reward.gold-rejected" if gold_share >= MIN_GOLD_WORDS else "sync.stale-weights"
        severity = WARNING
        summary = (
            f"Gold answers become likelier, and the model less often right: {right_change}; "
            f"{gold_share:.0%} of its answers are gold's words."
        )
    else:
        return
    text = f"{change}, right {right_change} in {len(logprobs)} steps"
    yield bench.finding(id, severity, summary, text, logprob_gain, basis=SIGNAL)


def _supervised_config(bench: Bench) -> Config:
    """Return the recipe for supervised steps, at a learning rate that suits the model's width."""
    config = supervised(bench.config, len(bench.demonstrations))
    lr = WIDTH_TIMES_LR / bench.policy.core.config.hidden_size
    if bench.policy.has_adapters:
        lr *= ADAPTER_LR_FACTOR
    learning = replace(
        config.learning,
        lr=lr,
        steps=SUPERVISED_STEPS,
        schedule="constant",
        warmup=0,
        beta2=SUPERVISED_BETA2,
    )
    return replace(config, learning=learning)


def _right_share(rollouts: Sequence[Rollout]) -> float:
    """Return the share of rollouts that are right; one without a score is not."""
    right = [rollout for rollout in rollouts if rollout.reward and rollout.reward.correct]
    return len(right) / len(rollouts)


def _mean_reward(rollouts: Sequence[Rollout]) -> float:
    """Return the mean reward of rollouts; one without a score has 0."""
    total = sum(rollout.reward.total for rollout in rollouts if rollout.reward)
    return total / len(rollouts)


# RL steps on the tasks that were drawn, and steps at either end whose rewards are averaged.
RL_STEPS = 12
END_STEPS = 3


@probe("rl-control", finds=["optimizer.lr-small"], cheap=False, full=True)
def rl_control(bench: Bench) -> Answer:
    """Make 12 RL steps on the same tasks at the recipe's constant rate: their reward must rise."""
    n_alive = pass_rates(bench.rollouts).dead.count(False)
    require(n_alive > 1, "all groups are dead: there is nothing to learn from")
    tasks = bench.drawn[:DEMONSTRATED_TASKS]
    learning = replace(bench.config.learning, schedule="constant", warmup=0, steps=RL_STEPS)
    config = replace(bench.config, learning=learning)
    rewards = list[float]()  # mean reward of each step
    with bench.scratch():
        learner, _ = bench.make_learner(config)
        for step in range(1, RL_STEPS + 1):
            rollouts = bench.play(tasks, config.sampling.size, f"rl-{step}")
            totals = [rollout.reward.total for rollout in rollouts if rollout.reward]
            rewards.append(float(np.mean(totals)))
            experience = bench.experience(rollouts, config)
            learn(bench.components, learner, experience, rollouts, step, config)
            bench.synchronize(step)

    first = float(np.mean(rewards[:END_STEPS]))
    last = float(np.mean(rewards[-END_STEPS:]))
    yield f"{RL_STEPS} RL steps on {len(tasks)} tasks: reward {first:.2f} → {last:.2f}"
    if not last > first:  # NaN too
        summary = f"{RL_STEPS} RL steps on the same few tasks do not raise their reward."
        text = f"reward {first:.3f} in the first three steps, {last:.3f} in the last three"
        yield bench.finding(
            "optimizer.lr-small", NOTE, summary, text, last - first, basis=SUSPICION
        )
