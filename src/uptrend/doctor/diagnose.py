"""From a view of a run to the doctor's report. No torch."""

from uptrend.doctor.checks import examine
from uptrend.doctor.curves import REWARD, thinned
from uptrend.doctor.kept import unread_steps
from uptrend.doctor.rank import rank
from uptrend.doctor.trend import trend_of
from uptrend.records import CannotTell, Finding, Report, RunView


def diagnose(view: RunView) -> Report:
    """Run every check on a run, and put what they found in order."""
    outcomes = examine(view)
    acquitted = _acquitted(view)
    findings = rank(o for o in outcomes if isinstance(o, Finding) and o.id not in acquitted)
    seen = {f.id for top in findings for f in (top, *top.explains)}
    lacking = {o.id: o for o in outcomes if isinstance(o, CannotTell) and o.id not in seen}
    return Report(
        source=view.source,
        trainer=view.trainer,
        name=view.name,
        steps=len(view.steps),
        trend=trend_of(view),
        findings=findings,
        cannot_tell=tuple(lacking[id] for id in sorted(lacking)),
        notes=(*view.notes, *_damage(view)),
        unknown=tuple(sorted(view.unknown)),
        curve=thinned(*view.curve(REWARD)),
    )


def _acquitted(view: RunView) -> set[str]:
    """Causes that a probe has excluded, whatever records look like: gold in another format was not rejected."""
    told = {str(event.get("id")) for event in view.events if event.get("event") == "acquitted"}
    asked = [probe for event in view.events if event.get("event") == "preflight" for probe in event.get("probes", ())]
    gold = any(probe.get("name") == "gold" and probe.get("ok") and not probe.get("skipped") for probe in asked)
    return told | ({"reward.gold-rejected"} if gold else set())


def _damage(view: RunView) -> list[str]:
    """What could not be read of the rollouts, in a sentence."""
    unread = unread_steps(view)
    if not unread:
        return []
    return [
        f"The rollouts of step{'s' * (len(unread) > 1)} {', '.join(map(str, unread))} are damaged and were left out."
    ]
