"""A doctor's differential as a roadmap: the causes that remain as hypotheses, in phases by how
likely they are, each with the command that decides it and its cost.
"""

from dataclasses import dataclass

from uptrend.doctor.catalogue import CATALOGUE
from uptrend.doctor.report import cost_in_words
from uptrend.lab import lab_error
from uptrend.lab.notebook import PHASE_TITLES
from uptrend.present.formatting import percent, render
from uptrend.records import Differential, NextStep, Priority, Report, Standing, Suspect

# Probabilities from which a cause that no finding names has high, and medium priority.
HIGH_PROBABILITY = 0.1
MEDIUM_PROBABILITY = 0.03
# Causes of low priority that are written out; the others are named.
MAX_LOW = 6


@dataclass(frozen=True)
class Planned:
    """A cause that remains, as the roadmap has it."""

    name: str
    """H01, H02, … in order."""
    suspect: Suspect
    issue: str
    command: str
    cost: str
    probability: str


def roadmap_of(report: Report) -> str:
    """Return a roadmap in Markdown for a run that does not learn."""
    differential = report.differential
    if differential is None:
        raise lab_error("no-differential", run=report.source, trend=report.trend.in_words)
    by_phase: dict[str, list[Planned]] = {}
    unwritten: list[str] = []
    count = 0
    for priority, phase in PHASE_TITLES.items():
        suspects = [s for s in differential.suspects if _priority(s) is priority]
        if priority is Priority.LOW:
            unwritten = [suspect.id for suspect in suspects[MAX_LOW:]]
            suspects = suspects[:MAX_LOW]
        for suspect in suspects:
            count += 1
            planned = _planned(f"H{count:02d}", suspect, differential, report)
            by_phase.setdefault(phase, []).append(planned)
    return render(
        "lab/templates/differential.md",
        report=report,
        phases=by_phase,
        unwritten=unwritten,
        excluded=differential.with_standing(Standing.EXCLUDED),
        elsewhere=percent(differential.elsewhere, 0),
        next_steps=[(step, cost_in_words(step)) for step in differential.next_steps],
    )


def _priority(suspect: Suspect) -> Priority | None:
    """Return the priority of a cause; None for one that is excluded."""
    if suspect.standing is Standing.EXCLUDED:
        return None
    if suspect.standing is Standing.SUPPORTED or suspect.probability >= HIGH_PROBABILITY:
        return Priority.HIGH
    return Priority.MEDIUM if suspect.probability >= MEDIUM_PROBABILITY else Priority.LOW


def _planned(name: str, suspect: Suspect, differential: Differential, report: Report) -> Planned:
    step = _deciding_step(suspect.id, differential)
    if step is not None:
        command = step.command
        cost = cost_in_words(step)
    else:
        command = _own_command(suspect.id, report)
        cost = "not known"
    issue = CATALOGUE[suspect.id].what
    return Planned(name, suspect, issue, command, cost, percent(suspect.probability, 0))


def _deciding_step(id: str, differential: Differential) -> NextStep | None:
    """Return the first test that decides a cause."""
    steps = [step for step in differential.next_steps if id in step.splits]
    return steps[0] if steps else None


def _own_command(id: str, report: Report) -> str:
    """Return the command of a cause's own experiment; its page where that has none."""
    experiment = CATALOGUE[id].experiment
    if experiment.probe and report.trainer == "uptrend":
        return f"uptrend preflight {report.source} --only {experiment.probe}"
    if experiment.arms:
        return f"uptrend lab new {id} --dir LAB --recipe RECIPE"
    return f"uptrend explain {id}"
