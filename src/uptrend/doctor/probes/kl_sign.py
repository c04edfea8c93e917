"""A KL penalty must pull back: away from the reference, and with nothing else to learn, KL must fall."""

from dataclasses import replace

import torch
from torch import Tensor

from uptrend.doctor.probes.bench import CRITICAL, HIGH, Bench
from uptrend.doctor.probes.result import Result, not_asked, told
from uptrend.records import Evidence, Reward

ROLLOUTS = 16
NOISE = 0.05


def probe(bench: Bench) -> Result:
    """Push the weights off, give all rollouts the same reward, and make one update."""
    kl = bench.config.learning.kl
    if kl.beta == 0:
        return not_asked("no KL penalty: learning.kl.beta = 0")
    if kl.estimator == "k1":
        return not_asked("k1 acts in the reward, not in the loss")
    config = replace(bench.config, learning=replace(bench.config.learning, entropy=0.0, updates=1, minibatches=1))
    same = Reward.of("same", 0.0, -1.0, 1.0, False)
    rollouts = [replace(r, reward=same) for r in bench.batch[:ROLLOUTS]]
    exp = bench.experience(rollouts)
    with bench.scratch():
        _push_off(bench)
        values = bench.policy.flat.values.data
        off = values.clone()
        learner, _ = bench.make_learner(config)
        reference_bs = learner.logprobs(exp, reference=True).cpu()
        before_bs = learner.logprobs(exp, reference=False).cpu()
        bench.learn(learner, exp, rollouts, max(1, config.learning.warmup), config)
        moved = float((learner.logprobs(exp, reference=False).cpu() - before_bs)[exp.real_bs].abs().nanmean())
        # To first order, a tenth of the way back: a whole first step of Adam overshoots.
        apart = float((reference_bs - before_bs)[exp.real_bs].abs().nanmean())
        values.sub_(off).mul_(min(1.0, 0.1 * apart / max(moved, 1e-6))).add_(off)
        after_bs = learner.logprobs(exp, reference=False).cpu()
    before, after = (_kl(x, reference_bs, exp.real_bs) for x in (before_bs, after_bs))
    figure = f"a little way along an update of the penalty alone, KL goes from {before:.4g} to {after:.4g}"
    if before < 1e-6 or not bench.exact:
        return not_asked("too little moves to tell in this precision")
    if after <= before:
        return told(figure)
    summary = "The KL penalty pushes away from the reference: with nothing else to learn, KL rises."
    evidence = Evidence(f"KL {before:.4g} before and {after:.4g} after", after - before)
    return told(figure, [bench.found("kl.sign", CRITICAL, HIGH, summary, evidence)])


def _push_off(bench: Bench) -> None:
    """Noise on all weights, so that there is something to pull back."""
    values = bench.policy.flat.values
    chance = torch.Generator(values.device).manual_seed(0)
    for part in torch.split(values.data, 1 << 20):
        size = NOISE * (float(part.float().square().mean().sqrt()) or 0.3)
        noise = torch.randn(part.shape, generator=chance, device=part.device, dtype=torch.float32)
        part.add_((size * noise).to(part.dtype))


def _kl(learner_bs: Tensor, reference_bs: Tensor, real_bs: Tensor) -> float:
    back = (reference_bs - learner_bs)[real_bs]
    return float((torch.expm1(back) - back).nanmean())
