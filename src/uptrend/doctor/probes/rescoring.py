"""The same rollouts scored again, by task id, twice: the recorded rewards must come out."""

import numpy as np

from uptrend.doctor.probes.bench import CRITICAL, HIGH, WARNING, Bench, name_of
from uptrend.doctor.probes.replay import Replayed, replay_all
from uptrend.doctor.probes.result import Result, told
from uptrend.records import Evidence, Finding, Rollout

NEAR = 1e-6
AT_MOST = 64


def probe(bench: Bench) -> Result:
    """Say what was said to the task that the rollout names, and compare."""
    all_of_them = [*bench.rollouts, *bench.gathered.dropped]
    findings = _count(bench, all_of_them)
    scored = [r for r in all_of_them if r.reward is not None and r.task in bench.tasks][:AT_MOST]
    # One question may stand there with two golds, which is another fault: each is scored by its own.
    own = {(t.id, t.answer): (t, stage.taskset) for stage in reversed(bench.pool.stages) for t in stage.tasks}
    plays = [own.get((r.task, r.answer), bench.tasks[r.task]) for r in scored]
    first, second = (replay_all(scored, plays) for _ in range(2))
    unsure = [r for r, a, b in zip(scored, first, second, strict=True) if _differ(a, b)]
    if failed := [r for r, a in zip(scored, first, strict=True) if a.reward is None and r not in unsure]:
        findings.append(_error_scored(bench, failed, scored))
        kept = [i for i, r in enumerate(scored) if r not in failed]
        scored = [scored[i] for i in kept]
        first, second = ([x[i] for i in kept] for x in (first, second))
    recorded = np.array([r.reward.total for r in scored if r.reward])
    again = np.array([np.nan if p.reward is None else p.reward.total for p in first])
    wrong = [r for r, x, y in zip(scored, recorded, again, strict=True) if not abs(x - y) <= NEAR and r not in unsure]
    if len(unsure) > 0.01 * len(scored):
        findings.append(_nondeterministic(bench, unsure, scored, (first, second)))
    elif wrong and len(np.unique(recorded)) == 1 and len(np.unique(again)) > 1:
        findings.append(_broadcast(bench, recorded, again))
    elif wrong:
        findings.append(_misaligned(bench, wrong, scored, recorded, again))
    figure = f"{len(wrong)} of {len(scored)} recorded rewards differ from a second scoring, {len(unsure)} from a third"
    return told(figure, findings)


def _differ(a: Replayed, b: Replayed) -> bool:
    if a.reward is None or b.reward is None:
        return (a.reward is None) != (b.reward is None)
    return abs(a.reward.total - b.reward.total) > NEAR


def _count(bench: Bench, rollouts: list[Rollout]) -> list[Finding]:
    """As many rollouts come back, each in its own place, as were asked for."""
    size = bench.config.sampling.size
    counts = {g: sum(r.group == g for r in rollouts) for g in dict.fromkeys(r.group for r in rollouts)}
    odd = {group: count for group, count in counts.items() if count != size}
    if not odd:
        return []
    group, count = next(iter(odd.items()))
    summary = f"{len(odd)} of {len(counts)} groups came back with another number of rewards than rollouts."
    text = f"group {group} has {count} rollouts, sampling.size = {size}"
    return [bench.found("reward.wrong-length", CRITICAL, HIGH, summary, Evidence(text, count))]


def _error_scored(bench: Bench, failed: list[Rollout], scored: list[Rollout]) -> Finding:
    share = len(failed) / len(scored)
    summary = f"The scorer fails on {len(failed)} of {len(scored)} rollouts, and they have a reward all the same."
    got = failed[0].reward.total if failed[0].reward else float("nan")
    text = f"{failed[0].error or 'it fails when it is scored again'}; recorded {got:g}"
    evidence = Evidence(text, share, rollout=name_of(failed[0]))
    return bench.found("reward.error-scored", CRITICAL if share > 0.1 else WARNING, HIGH, summary, evidence)


def _nondeterministic(
    bench: Bench, unsure: list[Rollout], scored: list[Rollout], both: tuple[list[Replayed], list[Replayed]]
) -> Finding:
    share = len(unsure) / len(scored)
    place = scored.index(unsure[0])
    two = [p.reward.total if p.reward else float("nan") for p in (both[0][place], both[1][place])]
    return bench.found(
        "reward.nondeterministic", CRITICAL if share > 0.1 else WARNING, HIGH,
        f"The same rollout earns another reward when it is scored again: {len(unsure)} of {len(scored)} do.",
        Evidence(f"{two[0]:g}, then {two[1]:g}", share, rollout=name_of(unsure[0])),
    )  # fmt: skip


def _broadcast(bench: Bench, recorded: np.ndarray, again: np.ndarray) -> Finding:
    summary = "One reward was given to all rollouts: scored one by one, they earn different ones."
    text = f"recorded {recorded[0]:g} for all {len(recorded)}; scored again {len(np.unique(again))} different values"
    return bench.found("reward.wrong-length", CRITICAL, HIGH, summary, Evidence(text, float(recorded[0])))


def _misaligned(
    bench: Bench, wrong: list[Rollout], scored: list[Rollout], recorded: np.ndarray, again: np.ndarray
) -> Finding:
    evidence = [
        Evidence(
            f"recorded {recorded[scored.index(r)]:g}, by its task id {again[scored.index(r)]:g}", rollout=name_of(r)
        )
        for r in wrong[:3]
    ]
    shift = next((k for k in (1, -1, 2, -2) if np.allclose(np.roll(again, k)[2:-2], recorded[2:-2])), None)
    if shift is not None:
        evidence.insert(0, Evidence(f"shifted by {shift}, the second scoring gives the recorded rewards", shift))
    summary = f"{len(wrong)} of {len(scored)} rewards are not those of their rollout's task: answers are misaligned."
    return bench.found("reward.misaligned", CRITICAL, HIGH, summary, *evidence)
