"""Groups and advantages: by curves, and by true ids against torch's own advantages."""

import dataclasses
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch

from curve_runs import findings, flat, healthy, lacks, ramp, severities
from synthetic import rollout_of
from tampered import Row, each, tampered, without
from uptrend.algo import advantages
from uptrend.doctor.case import Case
from uptrend.doctor.diagnose import diagnose
from uptrend.doctor.rows import recomputed
from uptrend.records import Confidence, Reward, Role, RunView, Sequence, Severity, rollouts_table

NOTE, WARNING, CRITICAL = Severity.NOTE, Severity.WARNING, Severity.CRITICAL
LOW, HIGH, ONE = "advantage.dead-groups-low", "advantage.dead-groups-high", "config.group-of-one"
WRONG, SIGN, BLOWN, UNSEEN = "advantage.wrong-groups", "advantage.sign", "advantage.blow-up", "advantage.metric-blind"
CAUSES = ("advantage.", ONE)
REWARD, SPREAD, DEAD = "reward/mean", "reward/group_std/mean", "advantage/dead/share"
SIDES = {"advantage/dead_low/share": 0.7, "advantage/dead_high/share": 0.1}
ALL_DEAD = {DEAD: 1.0, REWARD: flat(0.1, noise=0.02)}

CURVES: dict[str, tuple[dict[str, Any], dict[str, Severity]]] = {
    "healthy": ({}, {}),
    "dead, with their side counted": ({REWARD: flat(0.05, noise=0.01), DEAD: 0.8, **SIDES}, {LOW: WARNING}),
    "dead, of which only sides are counted": (
        {"without": (DEAD,), REWARD: flat(0.05, noise=0.01), **SIDES}, {LOW: WARNING}),
    "dead at the top": ({REWARD: flat(0.9, noise=0.01), "reward/max": 1.0, DEAD: 0.95}, {HIGH: CRITICAL}),
    "dead at the bottom": ({REWARD: flat(0.02, noise=0.01), "reward/max": 1.0, DEAD: 0.95}, {LOW: CRITICAL}),
    "dead because it has learned": ({DEAD: ramp(0.1, 0.9), REWARD: ramp(0.3, 0.98, noise=0.02)}, {HIGH: NOTE}),
    "dead by the groups' deviation": (
        {"without": (DEAD,), REWARD: abs(flat(0.05, noise=0.03)), SPREAD: np.where(np.arange(120) % 4 == 0, 0.2, 0.0)},
        {LOW: WARNING}),
    "dead in a short run": ({"steps": 8, DEAD: 0.55, REWARD: flat(0.1, 8)}, {LOW: NOTE}),
    "a reward that has leveled out high": (
        {REWARD: np.minimum(ramp(0.3, 1.5), 0.95), SPREAD: ramp(0.4, 0.05), DEAD: 0.2}, {HIGH: NOTE}),
    "a group of one": ({"config": {"sampling": {"size": 1}}}, {ONE: CRITICAL}),
    "a group of eight": ({"config": {"sampling": {"size": 8}}}, {}),
    "groups that never differ in batches that do": (ALL_DEAD | {"reward/std": 0.4}, {LOW: CRITICAL, ONE: NOTE}),
    "some groups that differ": (ALL_DEAD | {DEAD: 0.9, "reward/std": 0.4}, {LOW: CRITICAL}),
    "groups that never differ, of a sure policy": (
        ALL_DEAD | {"reward/std": 0.4, "learner/entropy/mean": 0.04}, {LOW: CRITICAL}),
}  # fmt: skip


@pytest.mark.parametrize("name", CURVES)
def test_curves(name: str) -> None:
    bent, expected = CURVES[name]
    assert severities(healthy(**bent), CAUSES) == expected


def test_how_sure_the_side_is() -> None:
    counted = findings(healthy(**CURVES["dead, with their side counted"][0]), LOW)[LOW]
    assert (counted.confidence, counted.evidence[0].value) == (Confidence.HIGH, pytest.approx(0.8))
    assert findings(healthy(**CURVES["dead at the top"][0]), HIGH)[HIGH].confidence is Confidence.MEDIUM
    middle = healthy(**{REWARD: flat(0.4, noise=0.01), DEAD: 0.95})
    assert findings(middle, LOW)[LOW].confidence is Confidence.LOW


def test_what_curves_lack() -> None:
    assert {LOW, HIGH} <= lacks(healthy(without=(DEAD, SPREAD)), CAUSES)
    assert {LOW, HIGH, ONE, WRONG, BLOWN, UNSEEN, "advantage.length-bias"} <= lacks(healthy(4), CAUSES)


def test_the_cause_of_dead_groups_comes_before_them() -> None:
    one = diagnose(healthy(config={"sampling": {"size": 1}}, **ALL_DEAD)).findings[0]
    assert one.id == ONE
    assert LOW in {f.id for f in one.explains}


def advise(rows: list[Row], values: np.ndarray) -> None:
    for row, value in zip(rows, values, strict=True):
        row["advantages"] = [float(value) * (role == 1) for role in row["roles"]]


def centered(rows: list[Row], order: np.ndarray | None = None) -> np.ndarray:
    """Torch's advantages: by group ids, or by position after a shuffle."""
    rewards, groups = (np.array([row[key] for row in rows]) for key in ("reward", "group"))
    values = np.empty(len(rows))
    place = np.arange(len(rows)) if order is None else order
    numbers = np.unique(groups, return_inverse=True)[1] if order is None else np.arange(len(rows)) // 8
    given = torch.from_numpy(rewards[place]), torch.from_numpy(numbers)
    values[place] = advantages(*given, scale="group", baseline="mean").numpy()
    return values


def shuffled(rows: list[Row]) -> None:
    advise(rows, centered(rows, np.random.default_rng(0).permutation(len(rows))))


def nudged(rows: list[Row]) -> None:
    values = centered(rows)
    values[11] += 0.05
    advise(rows, values)


def swapped(rows: list[Row]) -> None:
    rows[0]["group"], rows[8]["group"] = rows[8]["group"], rows[0]["group"]


def times(factor: float) -> Callable[[list[Row]], None]:
    return lambda rows: advise(rows, factor * centered(rows))


ROLLOUTS: dict[str, tuple[Any, dict[str, Any], dict[str, Severity]]] = {
    "healthy": (list, {}, {}),
    "advantages by position": (shuffled, {}, {WRONG: CRITICAL}),
    "one wrong advantage": (nudged, {}, {WRONG: CRITICAL}),
    "one wrong advantage, another trainer": (nudged, {"trainer": "trl", "config": {}}, {WRONG: CRITICAL}),
    "groups of two tasks": (swapped, {}, {WRONG: CRITICAL}),
    "the wrong sign": (times(-1), {}, {SIGN: CRITICAL}),
    "groups of one": (
        each(lambda row: row.update(group=f"{row['group']}-{row['index']}")), {},
        {ONE: CRITICAL, BLOWN: CRITICAL, UNSEEN: WARNING}),
    "twice the size": (times(2), {}, {BLOWN: CRITICAL}),
    "less than the size": (times(0.5), {}, {BLOWN: WARNING}),
    "any size where it is not scaled by group": (times(1000), {"scale": "none"}, {BLOWN: WARNING}),
    "any size of a leave-one-out baseline": (times(1000), {"baseline": "leave_one_out"}, {BLOWN: CRITICAL}),
    "rewards that hardly differ": (
        each(lambda row: row.update(reward=-1.0 + 1e-5 * (row["index"] % 3))), {},
        {WRONG: CRITICAL, BLOWN: WARNING, UNSEEN: WARNING}),
    "a metric that does not see dead groups": (
        each(lambda row: row.update(reward=-1.0), range(40)), {"metrics": {DEAD: np.zeros(4)}},
        {WRONG: CRITICAL, UNSEEN: WARNING}),
}  # fmt: skip


@pytest.mark.parametrize("name", ROLLOUTS)
def test_advantages_by_group(tiny: RunView, name: str) -> None:
    edit, changes, expected = ROLLOUTS[name]
    fields = {key: changes[key] for key in changes if key in ("trainer", "config", "metrics")}
    learning = {key: value for key, value in changes.items() if key not in fields}
    if learning:
        fields["config"] = {**tiny.config, "learning": {**tiny.config["learning"], **learning}}
    assert severities(tampered(tiny, edit, **fields), CAUSES) == expected


def test_figures(tiny: RunView) -> None:
    def first(edit: Any, id: str, at: int = 0, **changes: Any) -> Any:
        return findings(tampered(tiny, edit, **changes), id)[id].evidence[at]

    assert "do not sum to 0" in first(shuffled, WRONG, 1).text
    assert (first(nudged, WRONG).value, first(swapped, WRONG).value) == (4 / 32, 8 / 32)
    assert first(times(1000), BLOWN).value > np.sqrt(7)
    blind = ROLLOUTS["a metric that does not see dead groups"]
    assert first(blind[0], UNSEEN, **blind[1]).value >= 5 / 8


def test_what_rollouts_lack(tiny: RunView) -> None:
    penalized = {**tiny.config, "learning": {**tiny.config["learning"], "kl": {"beta": 0.1, "estimator": "k1"}}}
    for view in (replace(tiny, config=penalized), without(tiny, "group"), without(tiny, "advantages")):
        assert WRONG in lacks(view, CAUSES)
        assert findings(view, CAUSES) == {}
    unlogged = {key: value for key, value in tiny.metrics.items() if key != DEAD}
    assert UNSEEN in lacks(replace(tiny, metrics=unlogged), CAUSES)


@pytest.mark.parametrize("scale", ["group", "batch", "none"])
@pytest.mark.parametrize("baseline", ["mean", "leave_one_out"])
def test_recomputed_advantages_are_torchs(tiny: RunView, scale: Any, baseline: Any) -> None:
    g = Case(tiny).groups[0]
    given = torch.from_numpy(g.reward_n), torch.from_numpy(g.group_n)
    expected = advantages(*given, scale=scale, baseline=baseline).numpy()
    np.testing.assert_allclose(recomputed(g, scale, baseline), expected, atol=1e-9)


def rollouts(step: int, top: float, wrong_length: int) -> pa.Table:
    """Return eight groups of eight, half of them right; right ones have about 6 tokens."""
    random, made = np.random.default_rng(step), []
    for at in range(64):
        is_right = at % 2 == 0
        count = (6 if is_right else wrong_length) + int(random.integers(0, 3)) + 2
        sequence = Sequence(
            ids=np.arange(count, dtype=np.int32),
            turns=np.zeros(count, np.int32),
            roles=np.array([Role.PROMPT] * 2 + [Role.MODEL] * (count - 2), np.int8),
            versions=np.full(count, step, np.int32),
            sampler=np.full(count, -0.5, np.float32),
        )
        reward = Reward.of("answer", top * is_right, 0.0, top, is_right)
        plain = rollout_of(step, f"g{at // 8}", at % 8, is_right)
        made.append(dataclasses.replace(plain, sequences=(sequence,), reward=reward))
    return rollouts_table("run", made)


@pytest.mark.parametrize(
    ("top", "wrong", "expected"),
    [(1.0, 6, {}), (1.0, 24, {"advantage.length-bias": WARNING}), (2.0, 6, {"reward.scale-moves": WARNING})],
)
def test_wrong_rollouts_that_grow_and_bounds_that_move(top: float, wrong: int, expected: dict[str, Severity]) -> None:
    def read(step: int) -> pa.Table:
        way = (step - 1) / 11
        return rollouts(step, 1 + (top - 1) * way, round(6 + (wrong - 6) * way))

    view = healthy(12, trainer="uptrend", rollout_steps=tuple(range(1, 13)), read_rollouts=read)
    found = findings(view, ("advantage.length-bias", "reward.scale-moves"))
    assert {id: f.severity for id, f in found.items()} == expected
    assert lacks(view, "advantage.length-bias") == set()
