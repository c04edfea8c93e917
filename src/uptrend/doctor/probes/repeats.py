"""How many of the training tasks are different, and whether a step draws more than there are."""

from uptrend.doctor.probes.bench import CRITICAL, HIGH, WARNING, Bench
from uptrend.doctor.probes.result import Result, told
from uptrend.doctor.probes.texts import question
from uptrend.records import Evidence

LEAST = 0.9


def probe(bench: Bench) -> Result:
    """Count different questions, in the pool and in the step that was drawn."""
    findings = []
    worst = 1.0
    for stage in bench.pool.stages:
        unique = len({question(task) for task in stage.tasks})
        share = unique / len(stage.tasks)
        if share < LEAST:
            summary = f"Of {len(stage.tasks)} training tasks only {unique} are different."
            severity = CRITICAL if share < 0.5 else WARNING
            findings.append(
                bench.found("data.duplicates", severity, HIGH, summary, Evidence(f"{share:.0%} are unique", share))
            )
        worst = min(worst, share)
    drawn = {r.group: r.task for r in (*bench.rollouts, *bench.gathered.dropped)}
    known = {task: question(bench.tasks[task][0]) for task in drawn.values() if task in bench.tasks}
    repeated = len(drawn) - len({known.get(task, task) for task in drawn.values()})
    groups, tasks = bench.config.sampling.groups, min(len(s.tasks) for s in bench.pool.stages)
    if groups > tasks or (repeated and worst >= LEAST):
        summary = f"A step draws the same task more than once: {groups} groups of {tasks} tasks."
        text = f"{repeated} of {len(drawn)} groups repeat another's task"
        findings.append(bench.found("data.batch-exceeds", WARNING, HIGH, summary, Evidence(text, repeated)))
    return told(f"{worst:.1%} of training tasks are unique; {repeated} of {len(drawn)} groups repeat a task", findings)
