"""A positive control: a few supervised steps on gold answers must make them likelier, and the model right.

If the whole chain of learner, synchronization, sampler and reward is sound, learning 16 tasks by heart is easy.
Where it fails, what failed says where: log-probabilities, the sampler, or the reward.
"""

from dataclasses import dataclass, replace

import torch

from uptrend.config import Config
from uptrend.doctor.probes.bench import CRITICAL, MEDIUM, WARNING, Bench
from uptrend.doctor.probes.result import Result, not_asked, told
from uptrend.records import Evidence, Finding, Rollout
from uptrend.training.warmstart import supervised

STEPS = 24
LEARNED = -0.1
"""A mean log-probability of gold tokens at which they are known by heart."""
RATE = 0.06
"""The learning rate, times the model's width: 1e-4 at 576; ten times as much for adapters."""


@dataclass(frozen=True)
class Taught:
    """Before and after."""

    logprobs: tuple[float, float]
    """The mean log-probability of gold tokens."""
    right: tuple[float, float]
    """The share of greedy answers that are right."""
    reward: tuple[float, float]
    """Their mean reward."""
    steps: int
    """How many updates it took."""


def probe(bench: Bench) -> Result:
    """Teach 16 tasks, look, and forget."""
    gold = [r for r in bench.demonstrations if r.reward is not None and r.sampled_tokens]
    if not gold:
        return not_asked("the expert's rollouts do not fit into the limits")
    taught = teach(bench, gold)
    (low, high), (wrong, right) = taught.logprobs, taught.right
    figure = f"{taught.steps} supervised steps on {len(gold)} gold answers: log-probability {low:.2f} → {high:.2f} a "
    figure += f"token, right {wrong:.0%} → {right:.0%}"
    return told(figure, _findings(bench, taught))


def teach(bench: Bench, gold: list[Rollout]) -> Taught:
    """Supervised steps, evaluated before and after; the weights come back."""
    config = _config(bench)
    plays = [bench.tasks[r.task] for r in gold]
    before = bench.play(plays, 1, 0.0, "control")
    exp = bench.components.layout(gold, config)
    with bench.scratch():
        learner, _ = bench.make_learner(config)
        means = list[float]()
        for step in range(1, STEPS + 1):
            update = learner.update(exp, torch.ones(len(exp.lines)), step, old_bs=None, reference_bs=None)
            means.append(float(update.learner_bs[exp.mask_bs].nanmean()))
            if means[-1] > LEARNED and step > 2:
                break
        means.append(float(learner.logprobs(exp, reference=False).cpu()[exp.mask_bs].nanmean()))
        bench.synchronize(version=1)
        after = bench.play(plays, 1, 0.0, "control")
    shares = [sum(bool(r.reward and r.reward.correct) for r in rs) / len(rs) for rs in (before, after)]
    rewards = [sum(r.reward.total if r.reward else 0.0 for r in rs) / len(rs) for rs in (before, after)]
    return Taught((means[0], means[-1]), (shares[0], shares[1]), (rewards[0], rewards[1]), len(means) - 1)


def _config(bench: Bench) -> Config:
    config = supervised(bench.config, len(bench.demonstrations))
    width = bench.policy.core.config.hidden_size
    lr = RATE / width * (10 if bench.policy.has_adapters else 1)
    learning = replace(config.learning, lr=lr, steps=STEPS, schedule="constant", warmup=0, beta2=0.99)
    return replace(config, learning=learning)


def _findings(bench: Bench, taught: Taught) -> list[Finding]:
    (low, high), (wrong, right) = taught.logprobs, taught.right
    evidence = Evidence(
        f"log-probability {low:.2f} → {high:.2f}, right {wrong:.0%} → {right:.0%} in {taught.steps} steps", high - low
    )
    if high < low - 0.1:
        summary = "Supervised steps make gold answers less likely: the update goes the wrong way."
        return [bench.found("advantage.sign", CRITICAL, MEDIUM, summary, evidence)]
    if high - low < 0.02 and low < 2 * LEARNED:
        summary = "Supervised steps do not make gold answers likelier: what trains does not reach the output."
        return [bench.found("optimizer.frozen", CRITICAL, MEDIUM, summary, evidence)]
    known = high > 2 * LEARNED
    if known and right < 0.5 and taught.reward[1] < taught.reward[0] + 0.05:
        summary = "The learner knows 16 gold answers by heart, and the sampler does not say them or is not paid for "
        return [bench.found("sync.stale-weights", WARNING, MEDIUM, summary + "them.", evidence)]
    return []
