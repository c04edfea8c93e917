"""Tools that are never called or that fail, and rollouts that share state."""

from typing import Any

import pytest

from curve_runs import findings, flat, healthy, lacks, severities
from tampered import Row, each, tampered, without
from uptrend.records import Confidence, RunView, Severity

NEVER, SWALLOWED, LEAKS = "tool.never-called", "tool.errors-swallowed", "task.state-leaks"
CAUSES = (NEVER, SWALLOWED, LEAKS)
WARNING = Severity.WARNING
IDLE = {"sampling/turns/mean": 1.0, "tokens/tool/count": 0.0, "reward/mean": flat()}
ALLOWED = {"config": {"sampling": {"max_turns": 10}}}

CURVES: dict[str, tuple[dict[str, Any], dict[str, Severity]]] = {
    "turns that are not used": (IDLE | ALLOWED, {NEVER: WARNING}),
    "turns that are not used by a run that learns": (
        {"sampling/turns/mean": 1.0, "tokens/tool/count": 0.0} | ALLOWED, {NEVER: Severity.NOTE}),
    "tokens from tools": (IDLE | ALLOWED | {"tokens/tool/count": 9.0}, {}),
    "one turn allowed": (IDLE | {"config": {"sampling": {"max_turns": 1}}}, {}),
    # TRL's log counts calls only where there are tools; another's turns say nothing.
    "TRL's count of calls": (IDLE, {NEVER: WARNING}),
    "another trainer's turns": (IDLE | {"trainer": "verl"}, {}),
    "rollouts that tools failed": (
        {"sampling/failed/count": 16.0, "sampling/rollouts/count": 64.0, "sampling/ended/tool-error/share": 0.25},
        {SWALLOWED: WARNING}),
}  # fmt: skip


@pytest.mark.parametrize("name", CURVES)
def test_curves(name: str) -> None:
    bent, expected = CURVES[name]
    assert severities(healthy(**bent), CAUSES) == expected


def talk(row: Row, begin: int = 0) -> None:
    row["messages"] = [*row["messages"][:2], {**row["messages"][2], "calls": None}][begin:]


def fail(row: Row, error: str = "TimeoutError: the search did not answer") -> None:
    row["correct"] = False
    for message in row["messages"]:
        if message["role"] == "tool":
            message["content"] = error


def act(row: Row, answer: str) -> None:
    call = {"role": "assistant", "content": "look", "calls": "[]", "problem": None}
    row["messages"] = [*row["messages"][:2], call, {"role": "tool", "content": answer, "calls": None, "problem": None}]


ROLLOUTS: dict[str, tuple[Any, dict[str, Severity]]] = {
    "healthy": (list, {}),
    "no calls": (each(talk), {NEVER: WARNING}),
    "no calls, and no word of tools": (each(lambda row: talk(row, 1)), {}),
    "breakdowns that are scored": (each(fail, range(32)), {SWALLOWED: WARNING}),
    "the model's own mistakes": (each(lambda row: fail(row, "ValueError: this query is empty"), range(32)), {}),
    "crashes that are scored": (each(lambda row: row.update(ended="tool-error"), [3]), {SWALLOWED: WARNING}),
    "other observations": (
        each(lambda row: act(row, "a file" if row["index"] % 2 else "another's file")), {LEAKS: WARNING}),
    "clocks": (each(lambda row: act(row, f"done in {row['index']} ms")), {}),
}  # fmt: skip


@pytest.mark.parametrize("name", ROLLOUTS)
def test_planted_faults(musique: RunView, name: str) -> None:
    edit, expected = ROLLOUTS[name]
    assert severities(tampered(musique, edit), CAUSES) == expected


def test_evidence(musique: RunView) -> None:
    found = {
        name: findings(tampered(musique, edit), tuple(expected))[next(iter(expected))]
        for name, (edit, expected) in ROLLOUTS.items()
        if expected
    }
    broken, example = found["breakdowns that are scored"].evidence
    assert 0.3 < (broken.value or 0) < 0.7
    assert "TimeoutError" in example.text
    assert found["crashes that are scored"].confidence is Confidence.HIGH
    leak = found["other observations"].evidence[0]
    assert leak.value == 64 / 112
    assert leak.rollout.startswith("1/")


def test_what_is_lacking(tiny: RunView, musique: RunView) -> None:
    assert lacks(healthy(), CAUSES) == set(CAUSES)
    assert lacks(tiny, CAUSES) == {LEAKS}, "no two rollouts of a task were answered"
    assert lacks(without(musique, "messages"), CAUSES) == set(CAUSES)
    assert SWALLOWED in lacks(without(musique, "reward"), CAUSES)
