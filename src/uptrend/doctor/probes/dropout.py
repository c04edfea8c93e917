"""The same weights and tokens must give the same probabilities, looking or learning: dropout does not."""

from uptrend.doctor.probes.bench import HIGH, NOTE, WARNING, Bench
from uptrend.doctor.probes.rehearsal import rehearse
from uptrend.doctor.probes.result import Result, not_asked, told
from uptrend.records import Evidence

NEAR_FP32, NEAR_BF16 = 1e-4, 3e-2


def probe(bench: Bench) -> Result:
    """Twice the same forward, in each mode, and the modes against each other."""
    if not any(r.sampled_tokens for r in bench.batch):
        return not_asked("nothing was sampled")
    seen = rehearse(bench)
    (one, two), (look, again) = seen.learning_bs, seen.logprobs_bs
    pairs = {"looking twice": (look, again), "learning twice": (one, two), "learning and looking": (one, look)}
    gaps = {name: float((a - b)[seen.real_bs].abs().nanmean()) for name, (a, b) in pairs.items()}
    worst = max(gaps, key=lambda name: gaps[name])
    near = bench.near(NEAR_FP32, NEAR_BF16)
    figure = f"the same forward twice differs by {gaps[worst]:.1e} nats (below {near:g})"
    if gaps[worst] <= near:
        return told(figure)
    lora = bench.config.model.lora
    asked = lora is not None and lora.dropout > 0 and gaps["looking twice"] <= near
    summary = f"The learner's forward is not the same twice ({worst}): dropout is on, and ratios are noise."
    if asked and lora is not None:
        summary = f"model.lora.dropout = {lora.dropout:g} makes ratios noisy: learning and looking differ."
    evidence = Evidence(f"{gaps[worst]:.2g} nats on average between {worst}", gaps[worst])
    return told(figure, [bench.found("policy.dropout-on", NOTE if asked else WARNING, HIGH, summary, evidence)])
