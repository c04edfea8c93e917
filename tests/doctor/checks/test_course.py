"""The course of short runs: held-out falls, headlines, missing evidence, and what is first where
much is wrong.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from curve_runs import evaluations, findings, flat, healthy, ramp, severities
from tampered import Row, each, tampered
from uptrend.doctor.case import Case
from uptrend.doctor.checks.data import times_met
from uptrend.doctor.diagnose import diagnose
from uptrend.records import Basis, RunView, Severity, TrendKind

NOTE, WARNING = Severity.NOTE, Severity.WARNING
LARGE, HACKABLE, MEMORIZED = "optimizer.lr-large", "reward.hackable", "data.memorized"
COLLAPSED = "run.collapsed"
UNLIKE, LONGER, TRUNCATED, NO_STOP = (
    "eval.unlike-training", "reward.length-hacking", "context.completion-truncated", "sampling.no-stop")  # fmt: skip
REWARD, CORRECT, ENTROPY, LENGTH = (
    "reward/mean",
    "reward/correct/share",
    "learner/entropy/mean",
    "sampling/length/mean",
)
SHORT: dict[str, Any] = {
    "steps": 30,
    "trainer": "uptrend",
    REWARD: flat(0.35, 30),
    ENTROPY: flat(0.6, 30, 0.02),
}
STILL = SHORT | {CORRECT: SHORT[REWARD]}
LONG = STILL | {"weights/update/norm": 0.4, "weights/norm": 47.0}
RISES = SHORT | {REWARD: ramp(0.3, 0.8, 30, 0.04)}
BY_HEART = RISES | {CORRECT: RISES[REWARD]}
EIGHT, ASKED = {"sampling": {"groups": 8}}, {"tasks": {"train": 1_000_000}}


def held(*scores: float, tasks: int = 100) -> dict[str, Any]:
    return {"evals": evaluations(*scores, tasks=tasks, every=30 // (len(scores) - 1))}


def of(count: int) -> dict[str, Any]:
    return {"config": {**EIGHT, **ASKED}, "info": {"tasks": {"count": count}}}


FALLS: dict[str, tuple[dict[str, Any], dict[str, Severity]]] = {
    "in one look": (STILL | held(0.71, 0.41), {COLLAPSED: WARNING}),
    "in one look, at long updates": (LONG | held(0.71, 0.41), {LARGE: WARNING}),
    "by little": (STILL | held(0.71, 0.62), {}),
    "within what 20 tasks show": (STILL | held(0.7, 0.5, tasks=20), {}),
    "by what only ten looks would find": (STILL | held(0.7, *[0.6] * 9, 0.55), {}),
    "by what three looks show, while answers hold": (STILL | held(0.7, 0.6, 0.5, 0.5), {COLLAPSED: NOTE}),
    "the same, with entropy that jumps": (
        STILL | {ENTROPY: np.where(np.arange(30) < 9, 0.6, 0.2)} | held(0.7, 0.6, 0.5, 0.5), {LARGE: WARNING}),
    "the same, with entropy that falls slowly": (
        STILL | {ENTROPY: ramp(0.6, 0.2, 30)} | held(0.7, 0.6, 0.5, 0.5), {COLLAPSED: NOTE}),
    "in five steps": (
        STILL | {"steps": 5, REWARD: 0.3, CORRECT: 0.3, ENTROPY: 0.6} | held(0.71, 0.41), {COLLAPSED: WARNING}),
    "while the reward rises and answers do not": (RISES | {CORRECT: 0.3} | held(0.7, 0.4), {HACKABLE: WARNING}),
    "while few tasks are solved": (BY_HEART | of(10) | held(0.7, 0.4), {MEMORIZED: WARNING}),
    "while many tasks are solved": (BY_HEART | of(5000) | held(0.7, 0.4), {COLLAPSED: WARNING}),
    "not at all": (STILL | held(0.7, 0.7), {}),
    "not, but training leaves it behind": (BY_HEART | of(10) | held(0.3, 0.3, tasks=400), {MEMORIZED: WARNING}),
    "not, and each task was met once": (BY_HEART | of(5000) | held(0.3, 0.3, tasks=400), {}),
}  # fmt: skip


@pytest.mark.parametrize("name", FALLS)
def test_held_out_falls(name: str) -> None:
    bent, expected = FALLS[name]
    assert severities(healthy(**bent), (LARGE, HACKABLE, MEMORIZED, COLLAPSED)) == expected


def test_a_fall_that_nothing_explains_is_a_suspicion() -> None:
    fall = findings(healthy(**STILL, **held(0.71, 0.41)), COLLAPSED)[COLLAPSED]
    assert fall.basis is Basis.SUSPICION
    both = STILL | {CORRECT: ramp(0.6, 0.05, 30), REWARD: ramp(0.6, 0.05, 30)}
    assert not findings(healthy(**both, **held(0.7, 0.3)), LARGE), "answers that fall are no steps"
    large = findings(healthy(**LONG, **held(0.71, 0.41)), LARGE)[LARGE]
    assert large.basis is Basis.SIGNAL
    assert "of the weights' length" in large.evidence[0].text


def paired(before: list[bool], after: list[bool]) -> RunView:
    tasks = [str(n) for n in range(len(before))]
    tables = {0: before, 30: after}
    evals = tuple(
        {"step": s, "accuracy": float(np.mean(t)), "tasks": len(tasks)} for s, t in tables.items()
    )
    return replace(
        healthy(**STILL),
        evals=evals,
        read_heldout=lambda step: pa.table({"task": tasks, "correct": tables[step]}),
    )


@pytest.mark.parametrize(
    ("gained", "lost", "count", "chance", "fell"),
    [(0, 0, 10, 1.0, False), (0, 5, 20, 0.0625, False), (0, 6, 20, 0.03125, True), (4, 14, 50, 0.0309, True),
     (14, 4, 50, 0.0309, False)],
)  # fmt: skip
def test_tasks_that_changed_sides_are_counted(
    gained: int, lost: int, count: int, chance: float, fell: bool
) -> None:
    rest = count - gained - lost
    change = Case(
        paired(
            [False] * gained + [True] * (lost + rest),
            [True] * gained + [False] * lost + [True] * rest,
        )
    ).heldout
    assert change is not None
    assert change.interval is not None
    assert change.chance == pytest.approx(chance, abs=1e-3)
    assert change.fell is fell
    assert change.interval[0] < change.effect < change.interval[1]


def test_models_that_drift_without_falling_are_seldom_blamed() -> None:
    """Forty runs whose held-out tasks change sides at random, a tenth of them at each
    evaluation.
    """
    blamed = 0
    for seed in range(40):
        draw = np.random.default_rng(seed)
        before = draw.random(60) < 0.6
        after = np.where(draw.random(60) < 0.2, draw.random(60) < 0.6, before)
        causes = (LARGE, HACKABLE, MEMORIZED, COLLAPSED)
        found = severities(paired(before.tolist(), after.tolist()), causes)
        blamed += WARNING in found.values()
    assert blamed <= 2


HEADLINES: dict[str, tuple[dict[str, Any], str]] = {
    "a rise": (BY_HEART | held(0.3, 0.7), "learning"),
    "a rise where held-out tasks were solved": (BY_HEART | of(5000) | held(0.97, 0.97), "learning"),
    "a rise, nothing held out": (BY_HEART, "learning"),
    "a rise that is not followed": (BY_HEART | of(5000) | held(0.7, 0.4), "reward rises, task not shown"),
    "a rise beside a runaway": (
        SHORT | {"kl/reference/mean": ramp(0, 3, 30), REWARD: ramp(0.3, 0.42, 30, 0.02)},
        "reward rises, task not shown"),
    "a rise that ends in NaN": (BY_HEART | {"nonfinite": {"loss/total": (30,)}}, "learning, then NaN"),
    "a fall of held-out tasks": (STILL | held(0.71, 0.41), "flat, held-out falls"),
    "a rise of held-out tasks": (STILL | held(0.3, 0.7), "flat, held-out rises"),
    "nothing": (STILL | held(0.5, 0.5), "flat"),
}  # fmt: skip


@pytest.mark.parametrize("name", HEADLINES)
def test_headlines(name: str) -> None:
    bent, headline = HEADLINES[name]
    assert diagnose(healthy(**bent)).trend.headline == headline


@pytest.mark.parametrize(
    ("bent", "missing"),
    [
        ({"trainer": "uptrend"}, ["no held-out tasks: eval.tasks = 100 would show", "no rollouts"]),
        ({"trainer": "trl"} | held(0.3, 0.7), ["no rollouts: uptrend.bridge.trl.watch(trainer)"]),
        (
            {"without": ("kl/reference/mean", ENTROPY)} | held(0.3, 0.7),
            ["no rollouts", "no KL", "no entropy"],
        ),
        ({"rollout_steps": (1,)} | held(0.3, 0.7), []),
    ],
)
def test_missing_evidence_is_named_with_how_to_get_it(
    bent: dict[str, Any], missing: list[str]
) -> None:
    told = diagnose(healthy(**bent)).missing
    assert len(told) == len(missing)
    assert all(line.startswith(start) for line, start in zip(told, missing, strict=True))


CUT = {
    "steps": 12,
    REWARD: 0.0,
    "reward/group_std/mean": 0.0,
    "advantage/dead/share": 1.0,
    "sampling/ended/length/share": 1.0,
}


@pytest.mark.parametrize(("longest", "first"), [(3.0, TRUNCATED), (64.0, NO_STOP)])
def test_truncation_comes_before_the_groups_that_it_kills(longest: float, first: str) -> None:
    assert diagnose(healthy(**CUT, **{"sampling/length/max": longest})).findings[0].id == first


SAME: dict[str, Any] = {
    "info": {"tasks": {"name": "data"}, "eval": {"name": "data"}},
    "sampling/rollouts/count": 64.0,
}
SAMPLED = STILL | SAME | {LENGTH: 3.0}


@pytest.mark.parametrize(
    ("bent", "is_unlike"),
    [
        ({CORRECT: 0.37} | held(0.68, 0.7, tasks=50), False),
        ({CORRECT: 0.0} | held(0.6, 0.6), True),
        ({CORRECT: 0.0, ENTROPY: 2.5} | held(0.6, 0.6), False),
        ({CORRECT: 0.9} | held(0.1, 0.1), True),
        ({CORRECT: 0.5} | held(0.3, 0.3), False),
        ({CORRECT: 0.0, "info": {"tasks": {"name": "data"}, "eval": {"name": "harder"}}} | held(0.6, 0.6), False),
    ],
)  # fmt: skip
def test_one_model_scored_two_ways(bent: dict[str, Any], is_unlike: bool) -> None:
    assert (UNLIKE in findings(healthy(**SAMPLED | bent), UNLIKE)) is is_unlike


@pytest.mark.parametrize(("pays", "found"), [(True, {LONGER: NOTE}), (False, {})])
def test_length_is_paid_only_where_longer_rollouts_earn_more(
    tiny: RunView, pays: bool, found: dict[str, Severity]
) -> None:
    rows = tampered(
        tiny,
        each(
            lambda row: row.update(
                reward=float(sum(row["roles"])) if pays else float(row["index"] % 2)
            )
        ),
    )
    grown = {**tiny.metrics, LENGTH: np.array([3.0, 3.0, 5.0, 6.0])}
    assert severities(replace(rows, metrics=grown), LONGER) == found


def fail_half(row: Row) -> None:
    is_right = row["index"] == 0 and number(row) % 3 == 0
    row.update(correct=is_right, reward=None if row["index"] >= 4 else float(is_right))


def number(row: Row) -> int:
    return int(row["group"].rpartition("-")[2])


def lengthen(row: Row) -> None:
    """Give the tasks of later steps longer prompts."""
    more = 5 * (row["step"] > 2)
    for name in row:
        if isinstance(row[name], list) and len(row[name]) == len(row["roles"]) and name != "roles":
            row[name] = [row[name][0]] * more + row[name]
    row["roles"] = [0] * more + row["roles"]


def only(count: int) -> Callable[[Row], None]:
    return lambda row: row.update(task=f"task {number(row) % count}")


@pytest.mark.parametrize(
    ("edit", "changes", "cause", "is_found"),
    [
        (fail_half, {}, "sampling.few-generations", False),
        (lengthen, {}, "data.order", True),
        (lambda _: None, {}, "data.order", False),
        (only(4), {"info": {}, "config": {}}, "data.batch-exceeds", True),
        (only(8), {"info": {}, "config": {}}, "data.batch-exceeds", False),
    ],
)  # fmt: skip
def test_faults_in_rows(
    tiny: RunView, edit: Any, changes: dict[str, Any], cause: str, is_found: bool
) -> None:
    found = severities(replace(tampered(tiny, each(edit)), **changes), cause)
    assert (cause in found) is is_found


@pytest.mark.parametrize(
    ("beta", "norms", "is_held"),
    [(1.0, 5.2, True), (0.2, 5.2, False), (0.2, 6.5, True), (1.0, 3.0, False)],
)
def test_a_penalty_that_rules_the_gradient(beta: float, norms: float, is_held: bool) -> None:
    kl, gradient = np.append(0.0, np.full(29, 0.03)), np.append(2.4, np.full(29, norms))
    bent = STILL | {
        "kl/reference/mean": kl,
        "gradient/norm/before": gradient,
        "config": {"learning": {"kl": {"beta": beta}}},
    }
    assert ("kl.strangles" in findings(healthy(**bent), "kl.strangles")) is is_held
    assert Case(healthy(**bent)).trend.kind is TrendKind.FLAT


@pytest.mark.parametrize(("edit", "times"), [(only(8), 4.0), (lambda _: None, 32 / 200)])
def test_tasks_are_counted_by_what_was_drawn(tiny: RunView, edit: Any, times: float) -> None:
    assert times_met(Case(tampered(tiny, each(edit)))) == pytest.approx(times, rel=0.1)


@pytest.mark.parametrize("reward", [0.1, 0.3, -0.7])
def test_equal_rewards_are_no_collapse_by_rounding(reward: float) -> None:
    assert Case(healthy(steps=30, **{REWARD: np.full(30, reward)})).collapse is None
