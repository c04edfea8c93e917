"""Evaluation must be like training: the same tasks, played and scored by both paths."""

from uptrend.doctor.probes.bench import CRITICAL, HIGH, WARNING, Bench, name_of
from uptrend.doctor.probes.replay import replay_all
from uptrend.doctor.probes.result import Result, not_asked, told
from uptrend.records import Evidence, Rollout

TASKS = 8
SCORED = 64


def probe(bench: Bench) -> Result:
    """Greedy rollouts of held-out tasks by both tasksets, and training rollouts scored by both."""
    ours, theirs = bench.pool.stages[0].taskset, bench.held_out.taskset
    if type(ours) is not type(theirs):
        return not_asked(f"[eval] is another taskset ({theirs.name}) than [tasks] ({ours.name})")
    tasks = bench.held_out.tasks[:TASKS]
    by_eval, by_train = (bench.play([(t, ts) for t in tasks], 1, 0.0, "eval") for ts in (theirs, ours))
    asked = sum(_prompt(a) != _prompt(b) for a, b in zip(by_eval, by_train, strict=True))
    rollouts = [r for r in [*by_eval, *bench.rollouts][:SCORED] if r.reward is not None]
    known = {t.id: t for t in bench.held_out.tasks} | {i: task for i, (task, _) in bench.tasks.items()}
    rollouts = [r for r in rollouts if r.task in known]
    scores = [replay_all(rollouts, [(known[r.task], ts) for r in rollouts]) for ts in (theirs, ours)]
    unlike = [
        r for r, a, b in zip(rollouts, *scores, strict=True)
        if (a.reward is not None and a.reward.correct) != (b.reward is not None and b.reward.correct)
    ]  # fmt: skip
    figure = f"{len(unlike)} of {len(rollouts)} rollouts are right by one path and wrong by the other; "
    figure += f"{asked} of {len(tasks)} prompts differ"
    if unlike:
        summary = f"Evaluation scores otherwise than training: {len(unlike)} of {len(rollouts)} rollouts differ."
        share = len(unlike) / len(rollouts)
        evidence = Evidence(f"{share:.0%} of the same rollouts", share, rollout=name_of(unlike[0]))
        severity = CRITICAL if share > 0.1 else WARNING
        return told(figure, [bench.found("eval.unlike-training", severity, HIGH, summary, evidence)])
    if asked:
        summary = "Held-out tasks are asked otherwise than training tasks: [eval] and [tasks] render other prompts."
        evidence = Evidence(f"{asked} of {len(tasks)} prompts differ", asked)
        return told(figure, [bench.found("eval.unlike-training", WARNING, HIGH, summary, evidence)])
    return told(figure)


def _prompt(rollout: Rollout) -> tuple[int, ...]:
    s = rollout.sequences[0]
    return tuple(s.ids[(s.roles == 0)].tolist())
