"""The same actions, played twice at once: rollouts that share a workspace see each other's traces."""

from uptrend.doctor.probes.bench import CRITICAL, HIGH, Bench, name_of
from uptrend.doctor.probes.replay import Replayed, replay_all
from uptrend.doctor.probes.result import Result, not_asked, told
from uptrend.records import Evidence, Rollout

AT_MOST = 24


def probe(bench: Bench) -> Result:
    """Replay the expert's and the model's rollouts one by one, and then in pairs side by side with others."""
    played = [r for r in (*bench.demonstrations, *bench.rollouts) if r.task in bench.tasks and r.error is None]
    chosen = _different(played)[:AT_MOST]
    if not chosen:
        return not_asked("no rollout went through")
    plays = [bench.tasks[r.task] for r in chosen]
    alone, again = replay_all(chosen, plays), replay_all(chosen, plays)
    twice = replay_all([*chosen, *chosen], [*plays, *plays], at_once=True)
    # A scorer that can't repeat itself says nothing of state: then only what was observed counts.
    scored = all(_same(a, b) for a, b in zip(alone, again, strict=True))
    sure = [i for i in range(len(chosen)) if _same(alone[i], again[i], scored)]
    mates = [(alone[i], twice[i], twice[i + len(chosen)]) for i in range(len(chosen))]
    leaks = [i for i in sure if not all(_same(mates[i][0], other, scored) for other in mates[i][1:])]
    observed = sum(len(p.observed) for p in alone)
    figure = (
        f"{len(leaks)} of {len(sure)} rollouts ({observed} observations) come out otherwise side by side than alone"
    )
    if not leaks:
        return told(figure)
    summary = f"Rollouts of this taskset share state: {len(leaks)} of {len(sure)} see something else in company."
    first = leaks[0]
    text = f"alone {_last(alone[first])!r}, side by side {_last(twice[first])!r}"
    evidence = Evidence(text, len(leaks) / len(sure), rollout=name_of(chosen[first]))
    return told(figure, [bench.found("task.state-leaks", CRITICAL, HIGH, summary, evidence)])


def _same(a: Replayed, b: Replayed, scored: bool = True) -> bool:
    rewards = [None if p.reward is None else round(p.reward.total, 9) for p in (a, b)]
    return a.observed == b.observed and (not scored or rewards[0] == rewards[1])


def _last(played: Replayed) -> str:
    seen = [text for answers in played.observed for text in answers]
    return f"{seen[-1][-60:] if seen else ''} → {played.reward.total if played.reward else 'failed'}"


def _different(rollouts: list[Rollout]) -> list[Rollout]:
    """One that says the same is enough; two rollouts of a task stay where they differ."""
    return list({(r.task, tuple(m.content for m in r.messages)): r for r in rollouts}.values())
