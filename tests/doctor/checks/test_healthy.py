"""Silence on healthy runs, and on any part of their records."""

from dataclasses import replace

import numpy as np
import pytest

from curve_runs import evaluations, healthy, ramp
from tampered import without
from uptrend.doctor.checks import examine
from uptrend.records import CannotTell, Finding, RunView, Severity
from uptrend.records.schema import TOKEN_COLUMNS

LEARNING = np.exp(-8 * np.linspace(0, 1, 300))
MOSTLY_SOLVED = {
    "reward/mean": 1 - 0.7 * LEARNING, "advantage/dead/share": 0.95 * (1 - LEARNING),
    "reward/group_std/mean": 0.4 * LEARNING, "learner/entropy/mean": 0.02 + LEARNING,
}  # fmt: skip


def alarms(view: RunView) -> list[tuple[str, str]]:
    found = [f for f in examine(view) if isinstance(f, Finding)]
    return [(f.id, f.summary) for f in found if f.severity is not Severity.NOTE]


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("steps", [40, 120, 400])
def test_no_alarm_on_a_run_that_learns(steps: int, seed: int) -> None:
    parts = {"correctness/mean": ramp(0.1, 0.5, steps, 0.05), "correctness/std": 0.4,
             "format/mean": 0.2, "format/std": 0.02}  # fmt: skip
    evals = evaluations(0.3, 0.42, 0.5, 0.57, 0.66, every=steps // 5)
    view = healthy(steps, seed, evals=evals, **{f"reward/part/{name}": value for name, value in parts.items()})
    assert alarms(view) == []


def test_no_alarm_on_a_run_that_has_learned_all() -> None:
    assert alarms(healthy(300, **MOSTLY_SOLVED)) == []


@pytest.mark.parametrize("points", [3, 6, 9, 15, 25, 60])
def test_no_alarm_while_a_run_of_ours_is_young(points: int) -> None:
    assert alarms(healthy(points, trainer="uptrend", **{"optimizer/lr": 1e-5})) == []


def test_nothing_is_found_in_an_empty_log() -> None:
    view = RunView(source="log", trainer="unknown", name="", steps=np.zeros(0, np.int64), metrics={})
    assert [f for f in examine(view) if isinstance(f, Finding)] == []


def test_no_alarm_on_recorded_runs(tiny: RunView, musique: RunView) -> None:
    for view in (tiny, musique):
        assert alarms(view) == []


ROLLOUTS_NEEDED = {
    "context.completion-truncated", "context.prompt-truncated", "data.duplicates", "data.leak", "data.order",
    "mask.tool-trained", "sampling.few-generations", "sampling.temperature-low", "sync.off-policy", "tokens.padding",
    "tokens.retokenized", "tokens.template",
}  # fmt: skip


def reasons(view: RunView) -> dict[str, set[str]]:
    lacking = [c for c in examine(view) if isinstance(c, CannotTell)]
    return {id: {c.needs for c in lacking if c.id == id} for id in {c.id for c in lacking}}


@pytest.mark.parametrize("kind", ["no rollouts", "warm start"])
def test_what_can_not_be_told_without_sampled_rollouts(kind: str, tiny: RunView) -> None:
    if kind == "warm start":
        view = replace(tiny, metrics={**tiny.metrics, "warmstart/loss/mean": np.ones(len(tiny.steps))})
        why = "a warm start learns from an expert's rollouts, not from sampled ones"
    else:
        view, why = replace(tiny, rollout_steps=()), "no rollouts were kept"
    told = reasons(view)
    assert {id for id in ROLLOUTS_NEEDED if why in told.get(id, ())} == ROLLOUTS_NEEDED


def test_trainers_that_keep_less_are_no_alarm(tiny: RunView) -> None:
    kept_by_few = ("group", "task", "answer", "correct", "parts", "ended", "kept", "reward_low", "reward_high",
                   "family", "sequence", "index", "error")  # fmt: skip
    texts = replace(without(tiny, *TOKEN_COLUMNS, *kept_by_few), trainer="trl", config={}, info={})
    nothing = replace(without(tiny, *tiny.read_rollouts(1).column_names), trainer="unknown")
    for view in (texts, nothing):
        assert alarms(view) == []
        assert len(reasons(view)) > 10
