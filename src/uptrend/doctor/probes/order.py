"""Whether tasks come sorted by difficulty or kind, in the order in which training draws them."""

from uptrend.doctor.probes.bench import HIGH, WARNING, Bench
from uptrend.doctor.probes.result import Result, told
from uptrend.records import Finding
from uptrend.tasks.pool import Cursor
from uptrend.tasks.validate import order


def probe(bench: Bench) -> Result:
    """Draw a whole epoch of each stage, and correlate with position."""
    figures, findings = [], list[Finding]()
    for number, stage in enumerate(bench.pool.stages):
        drawn, _ = bench.pool.draw(stage.start, len(stage.tasks), Cursor(stage=number))
        check = order([task for task, _ in drawn])
        figures.append(check.figure)
        if not check.passed:
            summary = f"Training draws its tasks in an order of difficulty or kind: {check.figure}."
            findings.append(bench.found("data.order", WARNING, HIGH, summary, check.figure))
    return told("; ".join(figures), findings)
