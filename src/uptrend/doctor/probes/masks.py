"""What is trained, by who wrote it: every token that the model said, and nothing else."""

from collections.abc import Iterator

import numpy as np

from uptrend.doctor.probes.bench import CRITICAL, HIGH, WARNING, Bench, name_of
from uptrend.doctor.probes.result import Piece, Result, told
from uptrend.records import Ending, Evidence, Finding, Role, Rollout, Sequence
from uptrend.training.recorder import Annotated

SHOWN = 3


def probe(bench: Bench) -> Result:
    """Count trained tokens by role in the update that was tried."""
    done = bench.updated
    rollouts = list(Annotated(done.rollouts, done.exp, done.update, ()))
    rows = [(r, s) for r in rollouts for s in r.sequences]
    trained = {role: sum(int(_trained(s)[s.roles == int(role)].sum()) for _, s in rows) for role in Role}
    counts = {role: sum(int((s.roles == int(role)).sum()) for _, s in rows) for role in Role}
    findings = [*_foreign(bench, rows), *_untrained(bench, rows)]
    figure = "trained: " + ", ".join(f"{trained[r]} of {counts[r]} {r.name.lower()} tokens" for r in Role if counts[r])
    return told(figure, findings, tuple(_pieces(bench, r.sequences[0]) for r in _shown(rollouts)))


def _trained(sequence: Sequence) -> np.ndarray:
    assert sequence.weights is not None
    return np.asarray(sequence.weights != 0)


def _foreign(bench: Bench, rows: list[tuple[Rollout, Sequence]]) -> list[Finding]:
    """Trained tokens that no model sampled."""
    wrong = [(r, int((_trained(s) & (s.versions < 0)).sum())) for r, s in rows]
    total = sum(count for _, count in wrong)
    if not total:
        return []
    worst = max(wrong, key=lambda item: item[1])
    summary = f"{total} tokens are trained that the model did not write: prompts or tool results are in the loss."
    evidence = Evidence(f"{worst[1]} in one rollout", total, rollout=name_of(worst[0]))
    return [bench.found("mask.tool-trained", CRITICAL, HIGH, summary, evidence)]


def _untrained(bench: Bench, rows: list[tuple[Rollout, Sequence]]) -> list[Finding]:
    """Tokens that the model sampled and the loss leaves out, without the recipe saying so."""
    stops = np.array(bench.policy.stop_ids)
    said = missing = stopped = missing_stops = 0
    example: Rollout | None = None
    for rollout, s in rows:
        if _left_out(bench, rollout):
            continue
        sampled, out = s.versions >= 0, ~_trained(s)
        is_stop = sampled & np.isin(s.ids, stops)
        said, missing = said + int(sampled.sum()), missing + int((sampled & out & ~is_stop).sum())
        stopped, missing_stops = stopped + int(is_stop.sum()), missing_stops + int((is_stop & out).sum())
        example = rollout if example is None and (sampled & out).any() else example
    where = "" if example is None else name_of(example)
    if missing:
        missing += missing_stops
        summary = f"{missing} of {said} tokens that the model sampled are not in the loss, and no option says so."
        severity = CRITICAL if missing > 0.5 * said else WARNING
        evidence = Evidence(f"{missing / said:.1%} of its tokens", missing / said, rollout=where)
        return [bench.found("mask.model-untrained", severity, HIGH, summary, evidence)]
    if missing_stops:
        summary = (
            f"{missing_stops} of {stopped} stop tokens that the model sampled are not in the loss: it can't learn "
        )
        evidence = Evidence(f"{missing_stops / stopped:.0%} of sampled stop tokens", missing_stops, rollout=where)
        return [bench.found("mask.stop-untrained", CRITICAL, HIGH, summary + "when to stop.", evidence)]
    return []


def _left_out(bench: Bench, rollout: Rollout) -> bool:
    """Whether the recipe leaves it out of the loss."""
    cut = rollout.ended in (Ending.LENGTH, Ending.CONTEXT_FULL)
    return rollout.reward is None or not rollout.kept or (bench.config.learning.mask_truncated and cut)


def _shown(rollouts: list[Rollout]) -> list[Rollout]:
    """A few that differ: one a group, right and wrong."""
    ranked = sorted(rollouts, key=lambda r: -(r.reward.total if r.reward else -9))
    picked = [ranked[0], ranked[len(ranked) // 2], ranked[-1]]
    return list({id(r): r for r in picked}.values())[:SHOWN]


def _pieces(bench: Bench, sequence: Sequence) -> tuple[Piece, ...]:
    return tuple(_runs(bench, sequence))


def _runs(bench: Bench, s: Sequence) -> Iterator[Piece]:
    """Tokens in a row that are alike in role, training and attention."""
    assert s.attended is not None
    keys = list(zip(s.roles.tolist(), _trained(s).tolist(), s.attended.tolist(), strict=True))
    start = 0
    for end in range(1, len(keys) + 1):
        if end == len(keys) or keys[end] != keys[start]:
            text = bench.policy.tokenizer.decode(s.ids[start:end].tolist(), clean_up_tokenization_spaces=False)
            yield Piece(text, Role(keys[start][0]), keys[start][1], keys[start][2])
            start = end
