"""The same tokens everywhere: what the sampler read and said, what was recorded, and what the learner gets."""

from collections import Counter
from collections.abc import Iterable

import numpy as np

from uptrend.doctor.probes.bench import CRITICAL, HIGH, Bench, name_of
from uptrend.doctor.probes.result import Result, told
from uptrend.records import Evidence, Finding, Role, Rollout

Ids = tuple[int, ...]


def probe(bench: Bench) -> Result:
    """Compare ids along the way."""
    rollouts = [*bench.rollouts, *bench.gathered.dropped]
    findings = []
    read = _missing([_ids(r, said=False) for r in rollouts], [tuple(h.read) for h in bench.tap.heard])
    said = _missing([_ids(r, said=True) for r in rollouts], [tuple(h.said) for h in bench.tap.heard])
    if said:
        findings.append(_retokenized(bench, said, rollouts, "sampled"))
    if read:
        summary = f"{len(read)} of {len(rollouts)} rollouts are learned with another prompt than the sampler was given."
        findings.append(bench.found("tokens.template", CRITICAL, HIGH, summary, _example(bench, rollouts[read[0]])))
    given = [r for r in bench.rollouts for _ in r.sequences]
    recorded = [s for r in bench.rollouts for s in r.sequences]
    other = [
        b
        for b, (line, s) in enumerate(zip(bench.exp.lines, recorded, strict=True))
        if not np.array_equal(line.ids, s.ids)
    ]
    if other and not findings:
        b = other[0]
        places = np.flatnonzero(bench.exp.lines[b].ids[: len(recorded[b].ids)] != recorded[b].ids)
        in_prompt = len(places) > 0 and not recorded[b].sampled[places].any()
        if in_prompt:
            summary = f"The learner reads another prompt than the sampler did in {len(other)} of {len(recorded)} rows."
            findings.append(bench.found("tokens.template", CRITICAL, HIGH, summary, _example(bench, given[b])))
        else:
            findings.append(_retokenized(bench, other, given, "recorded"))
    tokens = sum(len(s.ids) for s in recorded)
    figure = f"{len(said) + len(other)} of {len(recorded)} sequences ({tokens:,} tokens) changed after sampling, "
    return told(figure + f"{len(read)} prompts differ", findings)


def _ids(rollout: Rollout, *, said: bool) -> Ids:
    return tuple(int(i) for s in rollout.sequences for i in s.ids[(s.roles == int(Role.MODEL)) == said])


def _missing(recorded: list[Ids], heard: Iterable[Ids]) -> list[int]:
    """The recorded ones that nobody heard; by content, as records may come in any order."""
    left = Counter(heard)
    missing = []
    for number, ids in enumerate(recorded):
        if left[ids] > 0:
            left[ids] -= 1
        elif ids:
            missing.append(number)
    return missing


def _retokenized(bench: Bench, changed: list[int], rollouts: list[Rollout], what: str) -> Finding:
    summary = f"{len(changed)} of {len(rollouts)} rollouts are learned with other tokens than were {what}."
    return bench.found("tokens.retokenized", CRITICAL, HIGH, summary, _example(bench, rollouts[changed[0]]))


def _example(bench: Bench, rollout: Rollout) -> Evidence:
    said = bench.policy.tokenizer.decode(list(_ids(rollout, said=True))[:12], clean_up_tokenization_spaces=False)
    return Evidence(f"for example the rollout that says {said!r}", rollout=name_of(rollout))
