"""A sequence alone and in a batch must have the same log-probabilities."""

import torch

from uptrend.doctor.probes.bench import CRITICAL, HIGH, WARNING, Bench, name_of
from uptrend.doctor.probes.result import Result, not_asked, told
from uptrend.records import Evidence

NEAR_FP32, NEAR_BF16 = 1e-4, 0.15
"""Of the worst of a few short rollouts. In bf16 an unlikely token alone moves by tenths of a nat: 0.053 on an H200."""
ROLLOUTS = 5


def probe(bench: Bench) -> Result:
    """The longest, the shortest and some between, each alone, against the whole step."""
    order = sorted(range(len(bench.rollouts)), key=lambda n: len(bench.rollouts[n].sequences[0].ids))
    order = [n for n in order if bench.rollouts[n].sampled_tokens]
    if not order:
        return not_asked("nothing was sampled")
    chosen = sorted({order[round(i * (len(order) - 1) / (ROLLOUTS - 1))] for i in range(ROLLOUTS)})
    rows = {n: (bench.exp.rollouts_b == n).nonzero().squeeze(1) for n in chosen}
    gaps = {}
    for n in chosen:
        exp = bench.experience([bench.rollouts[n]])
        alone = bench.logprobs(exp)
        width = min(alone.shape[1], bench.logprobs_bs.shape[1])
        together = bench.logprobs_bs[rows[n], :width]
        gaps[n] = float(torch.nan_to_num(alone[:, :width] - together).abs()[exp.real_bs[:, :width]].mean())
    worst = max(gaps, key=lambda n: gaps[n])
    near = bench.near(NEAR_FP32, NEAR_BF16)
    figure = f"alone and in a batch of {len(bench.rollouts)} differ by {gaps[worst]:.1e} nats (below {near:g})"
    if gaps[worst] <= near:
        return told(figure)
    summary = "A rollout's log-probabilities depend on what it is batched with: padding or positions are not masked."
    evidence = Evidence(f"{gaps[worst]:.2g} nats on average", gaps[worst], rollout=name_of(bench.rollouts[worst]))
    severity = CRITICAL if gaps[worst] > max(0.05, 2 * near) else WARNING
    return told(figure, [bench.found("tokens.padding", severity, HIGH, summary, evidence)])
