"""Whether held-out questions are trained on: by id, and by what they ask."""

from uptrend.doctor.probes.bench import CRITICAL, HIGH, WARNING, Bench
from uptrend.doctor.probes.result import Result, told
from uptrend.doctor.probes.texts import question
from uptrend.records import Evidence


def probe(bench: Bench) -> Result:
    """Compare held-out tasks with all training tasks."""
    held = bench.held_out.tasks
    asked = {question(task) for stage in bench.pool.stages for task in stage.tasks}
    leaked = [task for task in held if task.id in bench.tasks or question(task) in asked]
    figure = f"{len(leaked)} of {len(held)} held-out tasks occur in training"
    if not leaked:
        return told(figure)
    share = len(leaked) / len(held)
    summary = f"{len(leaked)} of {len(held)} held-out tasks are trained on: held-out accuracy can't be believed."
    example = Evidence(f"for example {question(leaked[0])[:80]!r}", share)
    return told(figure, [bench.found("data.leak", CRITICAL if share > 0.01 else WARNING, HIGH, summary, example)])
