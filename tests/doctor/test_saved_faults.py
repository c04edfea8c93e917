"""Faults in rollouts that other trainers saved: each is named in every format that shows it, and
the healthy twin is silent.
"""

from pathlib import Path

import pytest

import uptrend
from saved_rollouts import WRITERS, attempts
from uptrend.records import Report, Severity

# Formats without steps, of which an evaluation is judged; without texts; and with endings.
EVALUATIONS = {"verifiers", "skyrl"}
WITHOUT_TEXTS = {"tinker"}
WITH_ENDINGS = set(WRITERS) - {"verl", "verl with uid", "trl"}
CAUSES = {
    "unpaid": ("reward.strict-parser", set(WRITERS) - WITHOUT_TEXTS),
    "equal": ("reward.constant", set(WRITERS) - EVALUATIONS),
    "constant": ("advantage.dead-groups-low", set(WRITERS) - EVALUATIONS),
    "cut": ("context.completion-truncated", WITH_ENDINGS),
    "mismatch": ("precision.mismatch", {"prime-rl"}),
}
CASES = [(name, fault, cause) for fault, (cause, names) in CAUSES.items() for name in sorted(names)]


def diagnose(folder: Path, name: str, fault: str) -> Report:
    # One evaluation has the rollouts of one step.
    groups = 32 if name == "skyrl" else 8
    WRITERS[name](folder, attempts(fault, groups=groups))
    return uptrend.diagnose(folder)


def warned_of(report: Report) -> set[str]:
    found = [finding for top in report.findings for finding in (top, *top.explains)]
    return {finding.id for finding in found if finding.severity is not Severity.NOTE}


@pytest.mark.parametrize("name", WRITERS)
def test_healthy_rollouts_are_no_reason_to_warn(name: str, tmp_path: Path) -> None:
    report = diagnose(tmp_path / "run", name, "")
    assert warned_of(report) == set()
    assert report.steps == (0 if name in EVALUATIONS else 8)


@pytest.mark.parametrize(("name", "fault", "cause"), CASES, ids=[f"{n}-{f}" for n, f, _ in CASES])
def test_a_planted_fault_is_named(name: str, fault: str, cause: str, tmp_path: Path) -> None:
    assert cause in warned_of(diagnose(tmp_path / "run", name, fault))
