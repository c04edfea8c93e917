"""Tasks where the model agrees with itself and not with the gold answer: some golds may be wrong."""

import json
from collections import Counter

from uptrend.doctor.probes.bench import CRITICAL, HIGH, LOW, NOTE, WARNING, Bench, name_of
from uptrend.doctor.probes.replay import last_words
from uptrend.doctor.probes.result import Result, not_asked, told
from uptrend.doctor.probes.texts import question
from uptrend.records import Evidence, Rollout

AGREED = 0.9
MANY = 0.2


def probe(bench: Bench) -> Result:
    """Questions with two golds; and groups that are nearly all of one wrong answer, where the model is mostly right."""
    golds: dict[tuple[str, str], set[str]] = {}
    for task in (task for stage in bench.pool.stages for task in stage.tasks):
        same = task.id, json.dumps(task.data, sort_keys=True)  # the same words about other documents may differ
        golds.setdefault(same, set()).add(task.answer)
    if torn := {same: answers for same, answers in golds.items() if len(answers) > 1}:
        share = len(torn) / len(golds)
        same, answers = next(iter(torn.items()))
        asked = question(bench.tasks[same[0]][0])
        evidence = Evidence(f"{asked[:80]!r} has the golds {', '.join(sorted(answers))}", share)
        summary = f"{len(torn)} of {len(golds)} questions have more than one gold answer: at least one is wrong."
        severity = CRITICAL if share >= 0.02 else WARNING
        return told(summary, [bench.found("data.wrong-gold", severity, HIGH, summary, evidence)])
    groups: dict[str, list[Rollout]] = {}
    for rollout in bench.rollouts:
        if rollout.reward is not None:
            groups.setdefault(rollout.group, []).append(rollout)
    right = sum(r.reward.correct for g in groups.values() for r in g if r.reward) / max(
        1, sum(map(len, groups.values()))
    )
    if len(groups) < 8 or right < 0.5:
        return not_asked(f"the model is right in {right:.0%}: what it agrees on says nothing about gold")
    against = [g for g in groups.values() if _against(g)]
    share = len(against) / len(groups)
    figure = f"{len(against)} of {len(groups)} groups agree on another answer than gold"
    if share < MANY:
        return told(figure)
    summary = f"In {len(against)} of {len(groups)} groups nearly all rollouts give one answer that is not gold."
    text = f"{last_words(against[0][0])[-40:]!r} against {against[0][0].answer!r}"
    evidence = Evidence(text, share, rollout=name_of(against[0][0]))
    return told(figure, [bench.found("data.wrong-gold", NOTE, LOW, summary, evidence)])


def _against(group: list[Rollout]) -> bool:
    words, count = Counter(" ".join(last_words(r).split()) for r in group).most_common(1)[0]
    wrong = any(not r.reward.correct for r in group if r.reward and " ".join(last_words(r).split()) == words)
    return wrong and count >= AGREED * len(group)
