"""Before the first step the policy is its own reference: KL must be 0."""

import torch

from uptrend.doctor.probes.bench import CRITICAL, HIGH, WARNING, Bench
from uptrend.doctor.probes.result import Result, not_asked, told
from uptrend.records import Evidence

NEAR_FP32, NEAR_BF16 = 1e-6, 1e-3


def probe(bench: Bench) -> Result:
    """The learner's log-probabilities against the reference's."""
    if bench.config.learning.kl.beta == 0:
        return not_asked("no KL penalty: learning.kl.beta = 0")
    exp = bench.experience(bench.batch)
    mine, theirs = bench.logprobs(exp), bench.logprobs(exp, reference=True)
    back = (theirs - mine)[exp.real_bs]
    kl = float((torch.expm1(back) - back).nanmean())
    near = bench.near(NEAR_FP32, NEAR_BF16)
    figure = f"KL to the reference at step 0 is {kl:.1e} (below {near:g})"
    if abs(kl) <= near:
        return told(figure)
    summary = f"The reference is not the model that the run begins with: KL is {kl:.2g} before the first step."
    evidence = Evidence(f"log-probabilities differ by {float(back.abs().nanmean()):.2g} nats on average", kl)
    severity = CRITICAL if kl > 0.01 else WARNING
    return told(figure, [bench.found("kl.reference", severity, HIGH, summary, evidence)])
