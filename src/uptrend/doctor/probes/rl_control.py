"""The same control by RL: a few steps on 16 tasks, over and over, must raise their reward (`--full`)."""

from dataclasses import replace

import numpy as np

from uptrend.doctor.probes.bench import DEMONSTRATED, LOW, NOTE, Bench
from uptrend.doctor.probes.pass_rates import groups_of
from uptrend.doctor.probes.result import Result, not_asked, told
from uptrend.records import Evidence

STEPS = 12


def probe(bench: Bench) -> Result:
    """GRPO on the same tasks at the recipe's learning rate, constant; compare the first steps with the last."""
    live = sum(not dead for dead in groups_of(bench.rollouts).dead)
    if live < 2:
        return not_asked("all groups are dead: there is nothing to learn from")
    learning = replace(bench.config.learning, schedule="constant", warmup=0, steps=STEPS)
    config = replace(bench.config, learning=learning)
    tasks = bench.drawn[:DEMONSTRATED]
    means = list[float]()
    with bench.scratch():
        learner, _ = bench.make_learner(config)
        for step in range(1, STEPS + 1):
            rollouts = bench.play(tasks, config.sampling.size, config.sampling.temperature, f"rl-{step}")
            means.append(float(np.mean([r.reward.total for r in rollouts if r.reward])))
            bench.learn(learner, bench.components.layout(rollouts, config), rollouts, step, config)
            bench.synchronize(version=step)
    first, last = float(np.mean(means[:3])), float(np.mean(means[-3:]))
    figure = f"{STEPS} RL steps on {len(tasks)} tasks: reward {first:.2f} → {last:.2f}"
    if last > first:
        return told(figure)
    summary = f"{STEPS} RL steps on the same few tasks do not raise their reward."
    evidence = Evidence(f"reward {first:.3f} in the first three steps, {last:.3f} in the last three", last - first)
    return told(figure, [bench.found("optimizer.lr-small", NOTE, LOW, summary, evidence)])
