"""What one update does to the weights' bits, at this learning rate and precision."""

from uptrend.doctor.probes.bench import CRITICAL, HIGH, WARNING, Bench
from uptrend.doctor.probes.result import Result, not_asked, told
from uptrend.policy.weights import movable_share
from uptrend.records import Evidence, Finding

FEW, SOME = 0.1, 0.5


def probe(bench: Bench) -> Result:
    """The share of weights with a gradient whose bits changed."""
    done, flat = bench.updated, bench.policy.flat
    bits = {4: "fp32", 2: "bf16"}[flat.values.element_size()]
    trains = 1.0 if bench.policy.has_adapters else flat.values.numel() / bench.policy.parameters
    if not done.update.advantages_b.any() and bench.config.learning.entropy == 0:
        return not_asked("all groups are dead: there is no gradient")  # that of KL is 0 at the reference itself
    possible = done.gradient_share or 1.0
    share = min(1.0, done.moved.changed / possible)
    lr = bench.config.learning.lr
    figure = f"{done.moved.changed:.1%} of {flat.values.numel():,} {bits} weights change at lr {lr:g}, "
    figure += f"{share:.1%} of those with a gradient"
    if done.moved.changed == 0 or done.gradient_share == 0:
        if movable_share(flat, lr) < FEW:
            return told(figure, [_underflow(bench, share, bits)])
        summary = "No weight changes by an update: what trains is frozen, or not what the optimizer holds."
        evidence = Evidence(f"the update's length is {done.moved.update:.2g}", done.moved.update)
        return told(figure, [bench.found("optimizer.frozen", CRITICAL, HIGH, summary, evidence)])
    findings = []
    if share < SOME and bits == "bf16":
        findings.append(_underflow(bench, share, bits))
    if trains < 0.5:
        summary = f"Only {trains:.1%} of the model's weights train, though no adapters were asked for."
        findings.append(bench.found("optimizer.frozen", WARNING, HIGH, summary, Evidence(f"{trains:.1%}", trains)))
    return told(figure, findings)


def _underflow(bench: Bench, share: float, bits: str) -> Finding:
    lr = bench.config.learning.lr
    movable = movable_share(bench.policy.flat, lr)
    summary = f"{bits} weights round the update away: at lr {lr:g} only {share:.1%} of them change."
    text = f"{share:.1%} changed; a step of {lr:g} is large enough for {movable:.1%} of the weights"
    severity = CRITICAL if share < FEW else WARNING
    return bench.found("precision.update-underflow", severity, HIGH, summary, Evidence(text, share))
