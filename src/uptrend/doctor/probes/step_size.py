"""How far one update moves what the policy says, and how far a run of such updates could."""

import torch

from uptrend.doctor.probes.bench import CRITICAL, HIGH, NOTE, WARNING, Bench
from uptrend.doctor.probes.result import Result, not_asked, told
from uptrend.policy.optimizer import learning_rate
from uptrend.records import Evidence

LITTLE = 1e-3
"""KL of a whole run below which nothing can have been learned."""
SLOW = 1e-6
FAR = 5.0
"""Nats that half of the tokens may move in one update: beyond, nothing of the model's choice is left."""


def probe(bench: Bench) -> Result:
    """Policy KL of one step; Adam's first step is its longest, so more than this no step does."""
    done, learning = bench.updated, bench.config.learning
    if not done.update.advantages_b.any() and learning.kl.beta == 0:
        return not_asked("all groups are dead: there is no update")
    change = (done.after_bs - done.before_bs)[done.exp.real_bs]
    kl = float((torch.expm1(change) - change).nanmean())
    worth = sum(learning_rate(learning, step) for step in range(1, learning.steps + 1)) / learning.lr
    most = kl * worth**2  # if every step pushed the same way
    figure = f"one update at lr {learning.lr:g} moves the policy by KL {kl:.1e}"
    moved = float(change.abs().nan_to_num(torch.inf).median())
    if moved > FAR:
        summary = f"The learning rate {learning.lr:g} is far too large: one update leaves nothing of the model."
        evidence = Evidence(f"median change of a token's log-probability {moved:.3g} nats; below 1 is usual", moved)
        return told(figure, [bench.found("optimizer.lr-large", CRITICAL, HIGH, summary, evidence)])
    evidence = Evidence(f"KL {kl:.2g} of one step, at most {most:.2g} in {learning.steps} steps", kl)
    if done.moved.changed > 0 and 0 <= most < LITTLE:
        summary = f"The learning rate {learning.lr:g} is too small: {learning.steps} such steps can't move the policy."
        return told(figure, [bench.found("optimizer.lr-small", WARNING, HIGH, summary, evidence)])
    if done.moved.changed > 0 and kl < SLOW:
        summary = f"The learning rate {learning.lr:g} moves the policy very little a step."
        return told(figure, [bench.found("optimizer.lr-small", NOTE, HIGH, summary, evidence)])
    return told(figure)
