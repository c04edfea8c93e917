"""From a view of a run to the doctor's report. No torch."""

from collections.abc import Iterable
from dataclasses import replace

from uptrend.doctor.case import Case
from uptrend.doctor.checks import examine
from uptrend.doctor.curves import REWARD, thinned
from uptrend.doctor.rank import alarms, rank
from uptrend.records import CannotTell, Finding, Report, RunView, TrendKind

# Alarms beside which a rising reward does not show that the task is learned.
PAID_ALONE = {
    "reward.hackable", "reward.component-dominates", "reward.length-hacking", "kl.runaway", "data.memorized",
    "task.evaluator-exposed", "reward.misaligned", "data.leak",
}  # fmt: skip


def diagnose(view: RunView) -> Report:
    """Run every check on a run, and put what they found in order."""
    case = Case(view)
    outcomes = examine(view, case)
    acquitted = _acquitted(view)
    findings = rank(o for o in outcomes if isinstance(o, Finding) and o.id not in acquitted)
    seen = {f.id: f for top in findings for f in (top, *top.explains)}
    lacking = {o.id: o for o in outcomes if isinstance(o, CannotTell) and o.id not in seen}
    damaged = f"step{'s' * (len(case.damaged_steps) > 1)} {', '.join(map(str, case.damaged_steps))}"
    damage = [f"The rollouts of {damaged} are damaged and were left out."] if case.damaged_steps else []
    return Report(
        source=view.source,
        trainer=view.trainer,
        name=view.name,
        steps=len(view.steps),
        trend=replace(case.trend, headline=_headline(case, seen.values())),
        findings=findings,
        cannot_tell=tuple(lacking[id] for id in sorted(lacking)),
        missing=tuple(_missing(case)),
        notes=(*view.notes, *damage),
        unknown=tuple(sorted(view.unknown)),
        curve=thinned(*view.curve(REWARD)),
    )


def _headline(case: Case, findings: Iterable[Finding]) -> str:
    """Return the trend in words, qualified by what else is seen."""
    kind, change, found = case.trend.kind, case.held_out, {finding.id for finding in alarms(findings)}
    if "run.nonfinite" in found:
        return f"{kind}, then NaN"
    is_left = change is not None and (change.fell or (change.effect <= 0 and change.interval is not None))
    if case.is_learning:
        return "reward rises, task not shown" if is_left or found & PAID_ALONE else str(kind)
    if change is not None and (change.fell or case.is_learned):
        return f"{kind}, held-out {'falls' if change.fell else 'rises'}"
    return str(kind)


# Evidence, settings that give it by trainer, and what it would show.
HOW = {
    "no held-out tasks": ({"uptrend": "eval.tasks = 100 and eval.every = 10", "trl": 'eval_dataset, eval_strategy = "steps"'},
                          "would show whether it learns the task"),
    "no rollouts": ({"trl": "uptrend.bridge.trl.watch(trainer)"}, "would show tokens, masks, advantages and texts"),
    "no KL": ({"uptrend": "learning.kl.beta = 0.001", "trl": "beta = 0.001"}, "would show how far the policy has moved"),
    "no entropy": ({}, "would show whether it still explores"),
    "no endings": ({}, "would show whether the length limit cuts answers"),
    "no dead groups": ({}, "or deviations within groups would show how much there is to learn from"),
}  # fmt: skip


def _missing(case: Case) -> Iterable[str]:
    """Say which kinds of evidence a run lacks, and how to get each."""
    view, kl = case.view, case.curve("kl/reference/mean")[1]
    is_there = {
        "no held-out tasks": case.held_out is not None, "no rollouts": bool(view.rollout_steps),
        "no KL": bool(kl.any()) or case.has("weights/update/norm"), "no entropy": case.has("learner/entropy/mean"),
        "no endings": len(case.cut_by_length) > 0, "no dead groups": len(case.dead_groups) > 0,
    }  # fmt: skip
    for what, (ways, shows) in HOW.items():
        if not is_there[what] and len(view.steps) and not case.has("warmstart/loss/mean"):
            yield f"{what}: {ways.get(view.trainer, what.removeprefix('no ') + ' in the log')} {shows}"


def _acquitted(view: RunView) -> set[str]:
    """Return causes that a probe has excluded, whatever records look like: gold in another format was not rejected."""
    excluded = set[str]()
    for event in view.events:
        if event.get("event") == "acquitted":
            excluded.add(str(event.get("id")))
        for probe in event.get("probes", ()) if event.get("event") == "preflight" else ():
            if probe.get("name") == "gold" and probe.get("ok") and not probe.get("skipped"):
                excluded.add("reward.gold-rejected")
    return excluded
