"""Gradients of micro-batches must add up to the gradient of one pass."""

from uptrend.doctor.probes.bench import CRITICAL, HIGH, WARNING, Bench
from uptrend.doctor.probes.rehearsal import rehearse
from uptrend.doctor.probes.result import Result, not_asked, told
from uptrend.records import Evidence

NEAR_FP32, NEAR_BF16 = 1e-3, 5e-2


def probe(bench: Bench) -> Result:
    """One pass against micro-batches of a few rollouts."""
    if not any(r.sampled_tokens for r in bench.batch):
        return not_asked("nothing was sampled")
    seen = rehearse(bench)
    apart_bs = seen.learning_bs[0] - seen.micro_bs
    if float(apart_bs[seen.real_bs].abs().nanmean()) > bench.near(1e-3, 5e-2):
        return not_asked("forward passes differ, so gradients can't be compared")
    near = bench.near(NEAR_FP32, NEAR_BF16)
    figure = f"gradients of one pass and of {seen.passes} rows in micro-batches differ by {seen.difference:.1e} "
    figure += f"of their length (below {near:g})"
    if seen.difference <= near:
        return told(figure)
    severity = CRITICAL if seen.difference > 0.5 else WARNING
    summary = "Gradients of micro-batches do not add up to those of one pass: their number changes what is learned."
    evidence = Evidence(f"{seen.difference:.2g} of the length apart, {seen.ratio:.2f} times as long", seen.difference)
    return told(figure, [bench.found("optimizer.accumulation", severity, HIGH, summary, evidence)])
