"""Total learning rate of a run: a warm-up or a decay can eat it."""

from uptrend.doctor.probes.bench import HIGH, WARNING, Bench
from uptrend.doctor.probes.result import Result, told
from uptrend.records import Evidence

LITTLE = 0.3


def probe(bench: Bench) -> Result:
    """Compare Σ lr over the planned steps with a constant rate."""
    learning = bench.config.learning
    rates = [bench.learner.rate(step) for step in range(1, learning.steps + 1)]
    share = sum(rates) / (learning.lr * learning.steps)
    figure = f"Σ lr is {share:.0%} of {learning.steps} steps at {learning.lr:g} (largest {max(rates):.2g})"
    if share >= LITTLE:
        return told(figure)
    summary = f"The schedule leaves {share:.0%} of the learning rate: warm-up or decay eats the run."
    evidence = Evidence(f"Σ lr = {sum(rates):.2g}; the last is {rates[-1]:.2g}", share)
    return told(figure, [bench.found("optimizer.schedule", WARNING, HIGH, summary, evidence)])
