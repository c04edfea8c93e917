"""Evidence that runs have the cause which a hypothesis is about: a cure is tested on what is ill.

The doctor reads the finished runs, as it does for whoever asks. What a cause's page says it
explains counts as a sign of it, where it asks for something to be done.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from uptrend.doctor.catalogue import CATALOGUE, all_symptoms
from uptrend.doctor.checks import CHECKS
from uptrend.doctor.diagnose import diagnose
from uptrend.doctor.trend import FEWEST_POINTS
from uptrend.lab.measure import curve_of
from uptrend.present.formatting import plural
from uptrend.records import Hypothesis, Run, Severity, view_of
from uptrend.records.metrics import find_metric


@dataclass(frozen=True)
class Signs:
    """The doctor's answer on one run about one cause."""

    found: tuple[str, ...]  # the cause itself, and alarms that it explains
    unseen: str = ""  # reason why the doctor could not tell, where it found nothing


@dataclass(frozen=True)
class Health:
    """State of a control before any cure; both are empty where it has the cause, or where no cause
    is named.
    """

    healthy: str = ""  # evidence that there is nothing to cure
    unseen: str = ""  # reason why that could not be told


def signs_of(run: Run, cause: str) -> Signs:
    """Return the signs of a cause in a finished run: by its records, and by the probes that were
    asked before it.
    """
    report = diagnose(view_of(run))
    severity = {each.id: each.severity for top in report.findings for each in (top, *top.explains)}
    probed = set[str]()
    for event in run.events:
        if event.get("event") == "preflight":
            severity |= {
                finding["id"]: Severity(finding["severity"]) for finding in event["findings"]
            }
            probed |= {
                probe["name"] for probe in event.get("probes", ()) if not probe.get("skipped")
            }
    alarms = {id for id, how_bad in severity.items() if how_bad is not Severity.NOTE}
    found = ({cause} & severity.keys()) | (all_symptoms(cause, severity.keys()) & alarms)
    if found:
        return Signs(tuple(sorted(found)))
    if CATALOGUE[cause].experiment.probe in probed:
        return Signs(())
    lacking = {lack.id: lack.needs for lack in report.cannot_tell}
    if not any(cause in check.ids for check in CHECKS):
        lacking.setdefault(cause, "a run's records do not show it")
    return Signs((), lacking.get(cause, ""))


def health_of_control(h: Hypothesis, signs: Mapping[str, Sequence[Signs]]) -> Health:
    """Judge by the signs in each arm's finished runs whether the control has the cause that a
    hypothesis is about.
    """
    control = signs.get(h.control.name, ())
    # Where an arm has the cause and the control has not, the claim is that the arm brings it about.
    is_caused = any(h.cause in run.found for arm in h.treated for run in signs.get(arm.name, ()))
    if not control or is_caused or any(run.found for run in control):
        return Health()
    unseen = next((run.unseen for run in control if run.unseen), "")
    if unseen:
        return Health(
            unseen=f"the doctor could not tell whether {h.control.name} has {h.cause}: {unseen}"
        )
    runs = plural(len(control), "finished run")
    return Health(healthy=f"the doctor finds no sign of {h.cause} in {runs} of {h.control.name}")


def warn_of_length(h: Hypothesis, steps: int) -> list[str]:
    """Return what so few steps can't show, to be said before they are run."""
    warnings = list[str]()
    row = find_metric(curve_of(h.metric))
    is_learning = h.metric.startswith("eval/") or (row is not None and row.better == "more")
    if is_learning and steps < FEWEST_POINTS:
        warnings.append(
            f"{plural(steps, 'step')} per run: fewer than {FEWEST_POINTS} show no trend"
            " (run.too-short), so that a verdict holds for so few steps alone"
        )
    checks = [check.at_least for check in CHECKS if h.cause in check.ids]
    if checks and steps < max(checks):
        warnings.append(
            f"{plural(steps, 'step')} per run: the doctor needs {max(checks)} to tell whether the"
            f" control has {h.cause}"
        )
    return warnings
