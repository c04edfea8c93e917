"""Checks of groups, entropy and lengths on curves."""

import numpy as np
import pytest

from curve_runs import findings, flat, healthy, lacks, ramp, severities
from uptrend.records import Confidence, RunView, Severity

LOW, HIGH = "advantage.dead-groups-low", "advantage.dead-groups-high"
EMPTY = RunView(source="log", trainer="unknown", name="", steps=np.arange(30), metrics={})


def test_dead_groups_with_their_side_counted() -> None:
    view = healthy(**{"reward/mean": flat(0.05, noise=0.01), "advantage/dead/share": 0.8,
                      "advantage/dead_low/share": 0.7, "advantage/dead_high/share": 0.1})  # fmt: skip
    found = findings(view, "dead_groups")[LOW]
    assert (found.severity, found.confidence) == (Severity.WARNING, Confidence.HIGH)
    assert found.evidence[0].value == pytest.approx(0.8)


@pytest.mark.parametrize(("level", "id"), [(0.9, HIGH), (0.02, LOW)])
def test_the_side_is_judged_by_the_reward_where_it_was_not_counted(level: float, id: str) -> None:
    view = healthy(**{"reward/mean": flat(level, noise=0.01), "reward/max": 1.0, "advantage/dead/share": 0.95})
    found = findings(view, "dead_groups")
    assert set(found) == {id}
    assert (found[id].severity, found[id].confidence) == (Severity.CRITICAL, Confidence.MEDIUM)


def test_dead_groups_of_a_run_that_has_learned_are_a_note() -> None:
    view = healthy(**{"advantage/dead/share": ramp(0.1, 0.9), "reward/mean": ramp(0.3, 0.98, noise=0.02)})
    assert severities(view, "dead_groups") == {HIGH: Severity.NOTE}


def test_dead_groups_from_the_groups_deviation() -> None:
    spread = np.where(np.arange(120) % 4 == 0, 0.2, 0.0)
    view = healthy(without=("advantage/dead/share",),
                   **{"reward/mean": abs(flat(0.05, noise=0.03)), "reward/group_std/mean": spread})  # fmt: skip
    assert severities(view, "dead_groups") == {LOW: Severity.WARNING}


def test_dead_groups_need_their_metric() -> None:
    view = healthy(without=("advantage/dead/share", "reward/group_std/mean"))
    assert lacks(view, "dead_groups") == {LOW, HIGH}
    assert findings(healthy(), "dead_groups") == {}


def test_a_group_of_one() -> None:
    one = healthy(config={"sampling": {"size": 1}})
    assert severities(one, "group_of_one") == {"config.group-of-one": Severity.CRITICAL}
    assert findings(healthy(config={"sampling": {"size": 8}}), "group_of_one") == {}
    assert lacks(healthy(), "group_of_one") == {"config.group-of-one"}
