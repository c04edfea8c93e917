"""Learner against sampler on the same tokens, before anything is learned: they must agree to rounding."""

from dataclasses import dataclass

import torch
from torch import Tensor

from uptrend.doctor.probes.bench import CRITICAL, HIGH, MEDIUM, NOTE, WARNING, Bench
from uptrend.doctor.probes.result import Result, not_asked, told
from uptrend.records import Evidence, Finding
from uptrend.rollout.sampler import Limits
from uptrend.training.metrics import gap_metrics

NEAR_FP32, NEAR_BF16 = 1e-3, 0.1  # seen on a healthy H200: 0.029, and 0.040 with bf16 weights
LOOKED_AT = 8
"""Rollouts that are scored a third way where the two disagree."""


@dataclass(frozen=True)
class Gap:
    """Distance of two sides on the same tokens."""

    mean: float
    """The mean distance in nats."""
    most: float
    """The largest."""
    kl: float
    """KL(sampler ‖ learner)."""
    ratio: float
    """The mean of learner/sampler probability."""
    ess: float
    """The effective share of rollouts."""

    def __str__(self) -> str:
        return f"gap {self.mean:.1e} nats on average, {self.most:.1e} at most"


def gap_of(learner_bs: Tensor, sampler_bs: Tensor, mask_bs: Tensor) -> Gap:
    """The distance on trained tokens."""
    mask_bs = mask_bs & ~learner_bs.isnan() & sampler_bs.isfinite()
    line = gap_metrics(*(side_bs[mask_bs].cpu().numpy() for side_bs in (learner_bs, sampler_bs)))
    figures = ("gap/mean", "gap/max", "kl/mean", "ratio/mean", "ess/share")
    return Gap(*(line[f"sampler/{figure}"] for figure in figures)) if line else Gap(0.0, 0.0, 0.0, 1.0, 1.0)


def probe(bench: Bench) -> Result:
    """Compare, and where they disagree ask by which distribution."""
    exp = bench.exp
    if not bool(exp.real_bs.any()):
        return not_asked("nothing was sampled")
    gap = gap_of(bench.logprobs_bs, exp.sampler_bs, exp.real_bs)
    near = bench.near(NEAR_FP32, NEAR_BF16)
    figure = f"{gap} ({'fp32' if bench.exact else 'bf16'}: below {near:g}), KL {gap.kl:.1e}, ESS {gap.ess:.2f}"
    if gap.mean <= near and gap.kl <= 0.01:
        return told(figure)
    return told(figure, [_explain(bench, gap)])


def _explain(bench: Bench, gap: Gap) -> Finding:
    grave = not 0.5 <= gap.ratio <= 2 or gap.ess < 0.3 or gap.kl > 0.1
    evidence = Evidence(f"{gap}; mean ratio {gap.ratio:.2f}, ESS {gap.ess:.2f}, KL {gap.kl:.2g}", gap.kl)
    sides = _distributions(bench)
    if sides is not None:
        small = gap.kl < 0.01 and gap.ess > 0.9
        severity = CRITICAL if grave else NOTE if small else WARNING
        summary = f"Tokens are drawn from another distribution than is learned: the sampler's is {sides[1]}, the "
        return bench.found(
            "sampling.truncated-distribution", severity, HIGH, summary + f"learner's is {sides[0]}.", evidence
        )
    summary = "Learner and sampler give the same tokens different probabilities before anything was learned."
    return bench.found("precision.mismatch", CRITICAL if grave else WARNING, MEDIUM, summary, evidence)


def _distributions(bench: Bench) -> tuple[str, str] | None:
    """The distributions that learner and sampler have, where each is plainly one and they differ."""
    s = bench.config.sampling
    cut = [f"top_p {s.top_p:g}"] * (s.top_p < 1) + [f"top_k {s.top_k}"] * (s.top_k > 0)
    candidates = {}
    for temperature in dict.fromkeys((s.temperature, 1.0)):
        candidates[f"temperature {temperature:g}"] = Limits(1, 1, temperature)
        if cut:
            name = ", ".join([f"temperature {temperature:g}", *cut])
            candidates[name] = Limits(1, 1, temperature, top_p=s.top_p, top_k=s.top_k)
    rows = [b for b, line in enumerate(bench.exp.lines) if len(line.sampled)][:LOOKED_AT]
    plain = {name: [_plain(bench, b, limits) for b in rows] for name, limits in candidates.items()}
    near = bench.near(1e-3, 3e-2)
    found = []
    for side_bs in (bench.logprobs_bs, bench.exp.sampler_bs):
        gaps = {
            name: float(torch.cat([side_bs[b, : len(v)] - v for b, v in zip(rows, values, strict=True)]).abs().mean())
            for name, values in plain.items()
        }
        best = min(gaps, key=lambda name: gaps[name])
        if not gaps[best] <= near:
            return None
        found.append(best)
    return (found[0], found[1]) if found[0] != found[1] else None


def _plain(bench: Bench, b: int, limits: Limits) -> Tensor:
    """A sequence's log-probabilities by neither side: the whole sequence alone, all logits."""
    line, policy = bench.exp.lines[b], bench.policy
    ids = torch.from_numpy(line.ids).to(policy.device)
    with torch.no_grad(), policy.arithmetic():
        hidden = policy.hidden(ids[None], None, None)[0, torch.from_numpy(line.sampled - 1).to(policy.device)]
        logits = torch.nn.functional.linear(hidden, policy.core.get_output_embeddings().weight).float()
    return _chosen(logits, ids[torch.from_numpy(line.sampled).to(policy.device)], limits).cpu()


def _chosen(logits_mv: Tensor, targets_m: Tensor, limits: Limits) -> Tensor:
    """The targets' log-probabilities in the distribution that the limits leave."""
    z = torch.log_softmax(logits_mv / limits.temperature, -1)
    ordered, order = z.sort(-1, descending=True)
    beyond = ordered.exp().cumsum(-1) - ordered.exp() >= limits.top_p if limits.top_p < 1 else ordered.isnan()
    if limits.top_k:
        beyond[:, limits.top_k :] = True
    z = z.masked_fill(torch.zeros_like(beyond).scatter(-1, order, beyond), -torch.inf)
    return torch.log_softmax(z, -1).gather(-1, targets_m[:, None]).squeeze(-1)
