"""Positive controls: if learner, synchronization, sampler and reward are sound, 16 tasks are easily
learned.

Where it fails, what failed says where: log-probabilities, the sampler, or the reward.
"""

from dataclasses import replace

import numpy as np
import torch

from uptrend.doctor.probes.bench import DEMONSTRATED, Bench
from uptrend.doctor.probes.probe import (
    CRITICAL,
    NOTE,
    SIGNAL,
    SUSPICION,
    WARNING,
    Answer,
    probe,
    require,
)
from uptrend.doctor.probes.rollouts import pass_rates
from uptrend.training.loop import learn
from uptrend.training.warmstart import supervised

LEARNED = -0.1  # mean log-probability of gold tokens that are known by heart
FALL = 0.25  # fall of accuracy on the taught tasks that is no chance: 4 of 16
RATE = 0.06  # learning rate times the model's width: 1e-4 at 576; ten times as much for adapters


@probe(
    "control",
    finds=["advantage.sign", "optimizer.frozen", "sync.stale-weights", "reward.gold-rejected"],
    cheap=False,
)
def control(bench: Bench) -> Answer:
    """Teach 16 gold answers by 24 supervised steps: they must become likelier, and the model
    right.
    """
    gold = [r for r in bench.demonstrations if r.reward is not None and r.sampled_tokens]
    require(gold, "the expert's rollouts do not fit into the limits")
    lr = RATE / bench.policy.core.config.hidden_size * (10 if bench.policy.has_adapters else 1)
    config = supervised(bench.config, len(bench.demonstrations))
    learning = replace(config.learning, lr=lr, steps=24, schedule="constant", warmup=0, beta2=0.99)
    config = replace(config, learning=learning)
    exp = bench.experience(gold, config)
    plays = [bench.tasks[r.task] for r in gold]
    means = list[float]()
    before = bench.play(plays, 1, "control", temperature=0.0)
    with bench.scratch():
        learner, _ = bench.make_learner(config)
        for step in range(1, learning.steps + 1):
            update = learner.update(
                exp, torch.ones_like(exp.sampler_bs), step, old_bs=None, reference_bs=None
            )
            means.append(float(update.learner_bs[exp.mask_bs].nanmean()))
            if means[-1] > LEARNED and step > 2:
                break
        low = means[0]
        high = float(bench.logprobs(exp, learner)[exp.mask_bs].nanmean())
        bench.synchronize(1)
        after = bench.play(plays, 1, "control", temperature=0.0)
    wrong, right = (
        sum(bool(r.reward and r.reward.correct) for r in rs) / len(rs) for rs in (before, after)
    )
    earned, earns = (
        sum(r.reward.total if r.reward else 0.0 for r in rs) / len(rs) for rs in (before, after)
    )
    change = f"log-probability {low:.2f} → {high:.2f}"
    yield f"{len(means)} supervised steps on {len(gold)} gold answers: {change} per token, "
    yield f"right {wrong:.0%} → {right:.0%}"
    if high < low - 0.1:
        id = "advantage.sign"
        severity = CRITICAL
        summary = "Supervised steps make gold answers less likely: the update goes the wrong way."
    elif high - low < 0.02 and low < 2 * LEARNED:
        id = "optimizer.frozen"
        severity = CRITICAL
        summary = (
            "Supervised steps do not make gold answers likelier: what trains does not reach the"
            " output."
        )
    elif high > 2 * LEARNED and right < 0.5 and earns < earned + 0.05:
        id = "sync.stale-weights"
        severity = WARNING
        summary = (
            "The learner knows 16 gold answers by heart; the sampler does not say them or is not"
            " paid for them."
        )
    elif right <= wrong - FALL:
        # Who says gold's words and is not paid has a scorer at fault; who says others is not what
        # the learner taught.
        said = sum(r.response == gold[i].response for i, r in enumerate(after)) / len(after)
        id = "reward.gold-rejected" if said >= 0.5 else "sync.stale-weights"
        severity = WARNING
        summary = (
            f"Gold answers become likelier, and the model less often right: {wrong:.0%} →"
            f" {right:.0%}; "
        )
        summary += f"{said:.0%} of its answers are gold's words."
    else:
        return
    text = f"{change}, right {wrong:.0%} → {right:.0%} in {len(means)} steps"
    yield bench.found(id, severity, summary, text, high - low, basis=SIGNAL)


@probe("rl-control", finds=["optimizer.lr-small"], cheap=False, full=True)
def rl_control(bench: Bench) -> Answer:
    """Make 12 RL steps on the same tasks at the recipe's learning rate, constant: their reward must
    rise.
    """
    alive = sum(not dead for dead in pass_rates(bench.rollouts).dead)
    require(alive > 1, "all groups are dead: there is nothing to learn from")
    steps = 12
    tasks = bench.drawn[:DEMONSTRATED]
    means = list[float]()
    learning = replace(bench.config.learning, schedule="constant", warmup=0, steps=steps)
    config = replace(bench.config, learning=learning)
    with bench.scratch():
        learner, _ = bench.make_learner(config)
        for step in range(1, steps + 1):
            rollouts = bench.play(tasks, config.sampling.size, f"rl-{step}")
            means.append(float(np.mean([r.reward.total for r in rollouts if r.reward])))
            learn(
                bench.components,
                learner,
                bench.experience(rollouts, config),
                rollouts,
                step,
                config,
            )
            bench.synchronize(step)
    first = float(np.mean(means[:3]))
    last = float(np.mean(means[-3:]))
    yield f"{steps} RL steps on {len(tasks)} tasks: reward {first:.2f} → {last:.2f}"
    if not last > first:
        summary = f"{steps} RL steps on the same few tasks do not raise their reward."
        text = f"reward {first:.3f} in the first three steps, {last:.3f} in the last three"
        yield bench.found("optimizer.lr-small", NOTE, summary, text, last - first, basis=SUSPICION)
