"""How rollouts end: whether the budget cuts answers off, and whether the model ever stops."""

import numpy as np

from uptrend.doctor.probes.bench import CRITICAL, HIGH, NOTE, WARNING, Bench, name_of
from uptrend.doctor.probes.result import Result, told
from uptrend.doctor.probes.room import play_with
from uptrend.records import Ending, Evidence, Rollout

MANY = 0.15
NEARLY_ALL = 0.95
TASKS, SIZE = 8, 4


def probe(bench: Bench) -> Result:
    """Count endings; where many are cut, play the same rollouts on with twice the budget."""
    rollouts = bench.rollouts
    cut = [r for r in rollouts if r.ended is Ending.LENGTH or r.ended is Ending.CONTEXT_FULL]
    stops = np.array(bench.policy.stop_ids)
    stopped = sum(any(np.isin(s.ids[s.sampled], stops).any() for s in r.sequences) for r in rollouts)
    share = len(cut) / len(rollouts)
    figure = f"{share:.0%} of {len(rollouts)} rollouts are cut by length, {stopped} say a stop token"
    if unheard := _goes_on(bench):
        summary = f"{len(unheard)} of {len(rollouts)} rollouts go on after the tokenizer's end token: it stops nothing."
        text = f"token {bench.policy.tokenizer.eos_token_id} is sampled, and more after it"
        evidence = Evidence(text, len(unheard) / len(rollouts), rollout=name_of(unheard[0]))
        severity = CRITICAL if len(unheard) > 0.5 * len(rollouts) else WARNING
        return told(figure, [bench.found("sampling.no-stop", severity, HIGH, summary, evidence)])
    if share <= MANY:
        return told(figure)
    gain, noise, ended = _with_twice_the_budget(bench)
    figure += f"; twice the budget changes the reward by {gain:+.2f} ± {noise:.2f}"
    evidence = Evidence(f"{share:.0%} are cut; {gain:+.3f} ± {noise:.3f} with twice the tokens", share)
    # Where more room lets it stop, room is what was missing.
    never = ended < 0.02 and (stopped == 0 or (share >= NEARLY_ALL and stopped < 0.02 * len(rollouts)))
    if gain > 2 * noise and gain > 0.05 * _span(rollouts):
        what = "The budget cuts answers off" if not never else "The model never stops, and the budget cuts it off"
        summary = f"{what}: with twice sampling.max_tokens and sampling.context the same rollouts earn {gain:.2f} more."
        id = "sampling.no-stop" if never and share >= NEARLY_ALL else "context.completion-truncated"
        return told(figure, [bench.found(id, WARNING, HIGH, summary, evidence)])
    if share >= NEARLY_ALL and never:
        summary = "The model hardly ever stops by itself; the answer comes first, so that costs time and no reward."
        return told(figure, [bench.found("sampling.no-stop", NOTE, HIGH, summary, evidence)])
    return told(figure)


def _goes_on(bench: Bench) -> list[Rollout]:
    """Rollouts in which the model says that it has ended, and is not heard."""
    end = bench.policy.tokenizer.eos_token_id
    places = [(r, s, np.flatnonzero(s.sampled & (s.ids == end))) for r in bench.rollouts for s in r.sequences]
    return [r for r, s, at in places if any(i + 1 < len(s.ids) and s.sampled[i + 1] for i in at)]


def _with_twice_the_budget(bench: Bench) -> tuple[float, float, float]:
    """The mean gain of reward, its standard error, and the share that stops; what was said stays: same seeds."""
    s = bench.config.sampling
    roomy = {"max_tokens": 2 * s.max_tokens, "context": 2 * s.context}
    played = [play_with(bench, bench.drawn[:TASKS], SIZE, "budget", **limits) for limits in ({}, roomy)]
    pairs = [(a.reward.total, b.reward.total) for a, b in zip(*played, strict=True) if a.reward and b.reward]
    gains = np.array([b - a for a, b in pairs] or [0.0])
    ended = float(np.mean([r.ended is not Ending.LENGTH and r.ended is not Ending.CONTEXT_FULL for r in played[1]]))
    return float(gains.mean()), float(gains.std() / max(1, len(gains) - 1) ** 0.5), ended


def _span(rollouts: list[Rollout]) -> float:
    return max((r.reward.high - r.reward.low for r in rollouts if r.reward), default=1.0)
