"""The learner must react when a tool's result is another one."""

from uptrend.doctor.probes.bench import CRITICAL, HIGH, Bench
from uptrend.doctor.probes.prompt_swap import STILL
from uptrend.doctor.probes.result import Result, not_asked, told
from uptrend.doctor.probes.swap import reaction, with_other
from uptrend.records import Evidence, Role


def probe(bench: Bench) -> Result:
    """Exchange tool results between the expert's rollouts, which call tools whatever the model can do."""
    if not bench.tools:
        return not_asked("no tools")
    heard = [r for r in bench.demonstrations if (r.sequences[0].roles == int(Role.TOOL)).any()][:8]
    if len(heard) < 2:
        return not_asked("the expert heard nothing from a tool")
    after = [with_other(r, o, Role.TOOL) for r, o in zip(heard, [*heard[1:], heard[0]], strict=True)]
    moved, tokens = reaction(bench, heard, after, Role.TOOL)
    if not tokens:
        return not_asked("all tool results are the same")
    figure = f"another tool result moves what is said after it by {moved:.3g} nats (a blind learner: 0)"
    if moved > STILL:
        return told(figure)
    summary = "The learner can't see tool results: other documents leave its log-probabilities where they were."
    evidence = Evidence(f"{moved:.2g} nats on average over {tokens} tokens of {len(heard)} rollouts", moved)
    return told(figure, [bench.found("mask.attention-blind", CRITICAL, HIGH, summary, evidence)])
