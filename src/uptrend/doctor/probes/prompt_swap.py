"""The learner must react when the prompt is another one: a blind attention mask shows in no curve."""

from uptrend.doctor.probes.bench import CRITICAL, HIGH, Bench
from uptrend.doctor.probes.result import Result, not_asked, told
from uptrend.doctor.probes.swap import reaction, with_other
from uptrend.records import Evidence, Role, Rollout

STILL = 1e-3
"""Nats: an unseen prompt moves nothing at all, a seen one a good part of a nat."""
GROUPS = 4


def probe(bench: Bench) -> Result:
    """Exchange prompts between groups, and look at the same answers."""
    groups: dict[str, list[Rollout]] = {}
    for rollout in bench.rollouts:
        if rollout.sampled_tokens:
            groups.setdefault(rollout.group, []).append(rollout)
    chosen = [members[:4] for members in groups.values()][:GROUPS]
    if len(chosen) < 2:
        return not_asked("fewer than two groups said anything")
    before = [r for members in chosen for r in members]
    others = [*chosen[1:], chosen[0]]
    after = [with_other(r, o[0], Role.PROMPT) for members, o in zip(chosen, others, strict=True) for r in members]
    moved, tokens = reaction(bench, before, after, Role.PROMPT)
    if not tokens:
        return not_asked("all prompts are the same")
    figure = f"another prompt moves the answers' log-probabilities by {moved:.3g} nats (a blind learner: 0)"
    if moved > STILL:
        return told(figure)
    summary = "The learner can't see the prompt: another question leaves its log-probabilities where they were."
    evidence = Evidence(f"{moved:.2g} nats on average over {tokens} tokens of {len(before)} rollouts", moved)
    return told(figure, [bench.found("mask.attention-blind", CRITICAL, HIGH, summary, evidence)])
