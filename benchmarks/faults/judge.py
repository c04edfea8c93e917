"""What was said of a case, and whether it was right: from the run directory, and from its scalars
alone. No torch.
"""

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from benchmarks.faults.fault import Fault
from benchmarks.faults.planted import FAULTS
from benchmarks.faults.scalars import write_trainer_state

from uptrend.bridge.importers import read_views
from uptrend.doctor.check import make_finding, rank
from uptrend.doctor.diagnose import diagnose
from uptrend.records import Basis, Finding, Run, RunView, Severity, view_of

LOOKS = (1, 2, 5, 10, 20, 30, 40, 60)
"""Steps after which the doctor is asked again."""


@dataclass(frozen=True)
class Said:
    """What one reader said of one run."""

    alarms: tuple[str, ...]
    """Ids of warnings and critical findings, in order."""
    fixes: tuple[tuple[str, ...], ...] = ()
    """The config keys that each one's fix changes."""
    notes: tuple[str, ...] = ()
    """Ids of notes."""


@dataclass(frozen=True)
class Judged:
    """One case."""

    case: dict[str, Any]
    """What was run."""
    full: Said
    """With everything: preflight and all records."""
    scalars: Said
    """With what TRL would have logged."""
    noticed_at: int | None
    """After how many steps an alarm came; 0 for preflight, None for never."""
    scalars_at: int | None = None
    """The same for scalars alone."""
    sampled: Said = Said(())
    """With what TRL would have logged beside vLLM."""
    sampled_at: int | None = None
    """The same for that."""

    @property
    def fault(self) -> Fault | None:
        """What was planted."""
        return FAULTS[self.case["fault"]] if self.case["fault"] else None

    def line(self) -> str:
        """In a line."""
        if self.fault is None:
            return (
                f"{'ok    ' if not self.full.alarms else 'ALARM '} {' '.join(self.full.alarms)} | scalars "
                + (" ".join(self.scalars.alarms) or "-")
            )
        right = (
            "first "
            if is_first(self.full, self.fault)
            else "among "
            if is_among(self.full, self.fault)
            else "MISS  "
        )
        right = right if self.full.alarms or right != "MISS  " else "SILENT"
        told = ", ".join(self.full.alarms) or f"(notes: {', '.join(self.full.notes)})"
        return f"{right} at {self.noticed_at}: {told} | scalars {', '.join(self.scalars.alarms) or '-'}"


def is_first(said: Said, fault: Fault) -> bool:
    """Whether the right cause stands first."""
    return bool(said.alarms) and said.alarms[0] in fault.right


def is_among(said: Said, fault: Fault) -> bool:
    """Whether it is among the first three."""
    return bool(fault.right & set(said.alarms[:3]))


def is_fixed(said: Said, fault: Fault) -> bool:
    """Whether the first finding's fix is right: it changes what is wrong, or names the cause where
    code is wrong.
    """
    if not said.alarms:
        return False
    if not fault.fix:
        return is_first(said, fault)
    changed = said.fixes[0] if said.fixes else ()
    return any(key.startswith(wanted) for key in changed for wanted in fault.fix)


def judge_case(folder: Path) -> Judged:
    """Read a case's folder."""
    case = json.loads((folder / "case.json").read_text())
    view = _with_preflight(view_of(Run(folder / "run")), folder)
    before = _preflight(folder, view)
    full = _said(_together(before, view))
    log = read_views(write_trainer_state(Run(folder / "run"), folder / "trainer_state.json"))
    scalars = _said(_scalar_findings(log))
    more = read_views(
        write_trainer_state(Run(folder / "run"), folder / "with_vllm.json", with_sampler=True)
    )
    sampled = _said(_scalar_findings(more))
    early = 0 if _said(before).alarms else _first_look(view) if full.alarms else None
    looks = [
        _first_look(views[0]) if said.alarms else None
        for views, said in ((log, scalars), (more, sampled))
    ]
    return Judged(case, full, scalars, early, looks[0], sampled, looks[1])


def _with_preflight(view: RunView, folder: Path) -> RunView:
    """The run as `uptrend train` would have left it: with an event that says what its preflight
    found.
    """
    probes = json.loads((folder / "preflight.json").read_text())["probes"]
    return replace(view, events=({"event": "preflight", "probes": probes}, *view.events))


def _preflight(folder: Path, view: RunView) -> list[Finding]:
    """Preflight's findings as they were written down; of what they explain, the ids."""
    told = json.loads((folder / "preflight.json").read_text())["findings"]
    return [
        replace(
            _finding(view, f["id"], f["severity"], f["basis"], f["summary"]),
            explains=tuple(_finding(view, _id(e), "note", "suspicion", "") for e in f["explains"]),
        )
        for f in told
        if not f.get("symptom_of")
    ]


def _finding(view: RunView, id: str, severity: str, basis: str, summary: str) -> Finding:
    return make_finding(view, id, Severity(severity), Basis(basis), summary, ())


def _id(explained: Any) -> str:
    return explained if isinstance(explained, str) else str(explained["id"])


def _together(before: list[Finding], view: RunView) -> list[Finding]:
    """Preflight's causes and the run's in one order; what preflight folded under a cause stays
    folded.
    """
    folded = {symptom.id for cause in before for symptom in cause.explains}
    after = [f for f in diagnose(view).findings if f.id not in folded]
    return list(rank([*before, *after]))


def _scalar_findings(views: list[RunView]) -> list[Finding]:
    return [f for view in views for f in diagnose(view).findings]


def _said(findings: list[Finding]) -> Said:
    alarms = [f for f in findings if f.severity is not Severity.NOTE]
    keys = [tuple(f.fix.changes.get("uptrend", {})) if f.fix else () for f in alarms]
    notes = [f.id for f in findings if f.severity is Severity.NOTE]
    return Said(tuple(f.id for f in alarms), tuple(keys), tuple(notes))


def _first_look(view: RunView) -> int | None:
    """The first of the looks at which there is an alarm."""
    last = int(view.steps[-1]) if len(view.steps) else 0
    for steps in sorted({*(n for n in LOOKS if n < last), last}):
        if _said(list(diagnose(until(view, steps)).findings)).alarms:
            return steps
    return None


def until(view: RunView, step: int) -> RunView:
    """The run as it stood after a step."""
    keep = view.steps <= step
    return replace(
        view,
        steps=view.steps[keep],
        metrics={name: values[keep] for name, values in view.metrics.items()},
        nonfinite={name: tuple(s for s in at if s <= step) for name, at in view.nonfinite.items()
                   if np.any(np.array(at) <= step)},
        evals=tuple(line for line in view.evals if line.get("step", 0) <= step),
        rollout_steps=tuple(s for s in view.rollout_steps if s <= step),
        unknown={name: values[keep] for name, values in view.unknown.items()},
    )  # fmt: skip
