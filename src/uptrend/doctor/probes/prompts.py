"""Whether prompts fit: one that is too long is never cut here, but it can't be played either."""

from uptrend.doctor.probes.bench import CRITICAL, HIGH, NOTE, WARNING, Bench
from uptrend.doctor.probes.result import Result, told
from uptrend.records import Ending, Evidence
from uptrend.rollout.render import Renderer

TASKS = 200


def probe(bench: Bench) -> Result:
    """Render prompts of training tasks, and count rollouts whose context ran full."""
    s, stage = bench.config.sampling, bench.pool.stages[0]
    renderer = Renderer(bench.policy.tokenizer, bench.policy.stop_ids, stage.taskset.chat, s.trim)
    lengths = [len(renderer.first(task.messages, bench.tools)) for task in stage.tasks[:TASKS]]
    limit = min(s.max_prompt or s.context, s.context - 1)
    over = sum(length > limit for length in lengths)
    full = [r for r in bench.rollouts if r.ended is Ending.CONTEXT_FULL and r.reward is not None]
    figure = f"the longest of {len(lengths)} prompts has {max(lengths)} tokens of {limit}; {over} do not fit, "
    figure += f"{len(full)} of {len(bench.rollouts)} rollouts fill the context"
    findings = []
    if over:
        share = over / len(lengths)
        severity = CRITICAL if share > 0.5 else WARNING if share > 0.01 else NOTE
        summary = f"{over} of {len(lengths)} prompts are longer than {limit} tokens and can't be played."
        evidence = Evidence(f"the longest has {max(lengths)} tokens", share)
        findings.append(bench.found("context.prompt-truncated", severity, HIGH, summary, evidence))
    return told(figure, findings)
