"""From a view of a run to the doctor's report. No torch."""

from uptrend.doctor.case import Case
from uptrend.doctor.checks import examine
from uptrend.doctor.curves import REWARD, thinned
from uptrend.doctor.rank import PROOF, rank
from uptrend.records import CannotTell, Finding, Report, RunView


def diagnose(view: RunView) -> Report:
    """Run every check on a run, and put what they found in order."""
    case = Case(view)
    outcomes = examine(view, case)
    acquitted = _acquitted(view)
    findings = rank(o for o in outcomes if isinstance(o, Finding) and (o.basis is PROOF or o.id not in acquitted))
    seen = {f.id for top in findings for f in (top, *top.explains)}
    lacking = {o.id: o for o in outcomes if isinstance(o, CannotTell) and o.id not in seen}
    damaged = f"step{'s' * (len(case.damaged_steps) > 1)} {', '.join(map(str, case.damaged_steps))}"
    damage = [f"The rollouts of {damaged} are damaged and were left out."] if case.damaged_steps else []
    return Report(
        source=view.source,
        trainer=view.trainer,
        name=view.name,
        steps=len(view.steps),
        trend=case.trend,
        findings=findings,
        cannot_tell=tuple(lacking[id] for id in sorted(lacking)),
        notes=(*view.notes, *damage),
        unknown=tuple(sorted(view.unknown)),
        curve=thinned(*view.curve(REWARD)),
    )


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
