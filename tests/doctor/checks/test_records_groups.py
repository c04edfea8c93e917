"""Groups and advantages by true ids, against torch's own advantages and the trainer's metrics."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from tampered import Row, findings, tampered, untold, without
from uptrend.algo import advantages
from uptrend.doctor.checks import advantage_by_group, advantage_by_rollout
from uptrend.doctor.groups import grouped, recomputed
from uptrend.doctor.kept import read_rows
from uptrend.records import RunView, Severity


def advise(rows: list[Row], values: np.ndarray) -> None:
    for row, value in zip(rows, values, strict=True):
        row["advantages"] = [float(value) * (role == 1) for role in row["roles"]]


def centered(rewards: np.ndarray, groups: np.ndarray) -> np.ndarray:
    numbers = torch.from_numpy(np.unique(groups, return_inverse=True)[1])
    return advantages(torch.from_numpy(rewards), numbers, scale="group", baseline="mean").numpy()


def column(rows: list[Row], name: str) -> np.ndarray:
    return np.array([row[name] for row in rows])


def with_learning(view: RunView, **changes: object) -> RunView:
    return replace(view, config={**view.config, "learning": {**view.config["learning"], **changes}})


@pytest.mark.parametrize("scale", ["group", "batch", "none"])
@pytest.mark.parametrize("baseline", ["mean", "leave_one_out"])
def test_recomputed_advantages_are_torchs(tiny: RunView, scale: str, baseline: str) -> None:
    g = grouped(read_rows(tiny)[0])
    assert g is not None
    expected = advantages(
        torch.from_numpy(g.reward_n),
        torch.from_numpy(g.group_n),
        scale=scale,
        baseline=baseline,  # type: ignore[arg-type]
    )
    np.testing.assert_allclose(recomputed(g, scale, baseline), expected.numpy(), atol=1e-9)


def test_advantages_by_position_after_a_shuffle(tiny: RunView) -> None:
    def by_position(rows: list[Row]) -> None:
        order = np.random.default_rng(0).permutation(len(rows))
        rewards = column(rows, "reward")
        values = np.empty(len(rows))
        values[order] = centered(rewards[order], np.arange(len(rows)) // 8)
        advise(rows, values)

    found = findings(advantage_by_group.check, tampered(tiny, by_position))
    assert set(found) == {"advantage.wrong-groups"}
    assert found["advantage.wrong-groups"].severity is Severity.CRITICAL
    assert "do not sum to 0" in found["advantage.wrong-groups"].evidence[1].text


def test_one_wrong_advantage_is_enough(tiny: RunView) -> None:
    def nudge(rows: list[Row]) -> None:
        values = centered(column(rows, "reward"), column(rows, "group"))
        values[11] += 0.05
        advise(rows, values)

    found = findings(advantage_by_group.check, tampered(tiny, nudge))["advantage.wrong-groups"]
    assert found.evidence[0].text.startswith("4 of 32 groups")


def test_groups_of_two_tasks(tiny: RunView) -> None:
    def mix(rows: list[Row]) -> None:
        rows[0]["group"], rows[8]["group"] = rows[8]["group"], rows[0]["group"]

    found = findings(advantage_by_group.check, tampered(tiny, mix))["advantage.wrong-groups"]
    assert found.evidence[0].text == "8 of 32 groups hold rollouts of more than one task"


def test_advantages_against_rewards(tiny: RunView) -> None:
    def negate(rows: list[Row]) -> None:
        advise(rows, -centered(column(rows, "reward"), column(rows, "group")))

    assert set(findings(advantage_by_group.check, tampered(tiny, negate))) == {"advantage.sign"}


def test_groups_of_one_by_their_ids(tiny: RunView) -> None:
    def part(rows: list[Row]) -> None:
        for n, row in enumerate(rows):
            row["group"] = f"{n}"

    assert set(findings(advantage_by_group.check, tampered(tiny, part))) == {"config.group-of-one"}


def test_advantages_that_hold_more_than_rewards_are_not_judged(tiny: RunView) -> None:
    shaped = with_learning(tiny, kl={"beta": 0.1, "estimator": "k1"})
    assert "a penalty" in untold(advantage_by_group.check, shaped)["advantage.wrong-groups"]
    assert untold(advantage_by_group.check, without(tiny, "group"))["advantage.wrong-groups"].endswith("column group")
    assert "no advantages" in untold(advantage_by_group.check, without(tiny, "advantages"))["advantage.wrong-groups"]


def test_a_metric_that_does_not_see_dead_groups(tiny: RunView) -> None:
    def kill(rows: list[Row]) -> None:
        for row in rows[:40]:
            row["reward"] = -1.0

    view = replace(tiny, metrics={**tiny.metrics, "advantage/dead/share": np.zeros(4)})
    found = findings(advantage_by_rollout.check, tampered(view, kill))["advantage.metric-blind"]
    assert found.evidence[0].value >= 5 / 8  # type: ignore[operator]
    metrics = {k: v for k, v in tiny.metrics.items() if k != "advantage/dead/share"}
    assert "advantage.metric-blind" in untold(advantage_by_rollout.check, replace(tiny, metrics=metrics))


def test_advantages_beyond_what_rewards_can_give(tiny: RunView) -> None:
    def blow(rows: list[Row]) -> None:
        advise(rows, centered(column(rows, "reward"), column(rows, "group")) * 1000)

    found = findings(advantage_by_rollout.check, tampered(tiny, blow))["advantage.blow-up"]
    assert found.severity is Severity.CRITICAL
    assert found.evidence[0].value > np.sqrt(7)  # type: ignore[operator]
    assert findings(advantage_by_rollout.check, with_learning(tampered(tiny, blow), scale="none")) == {}


def test_rewards_that_differ_by_next_to_nothing(tiny: RunView) -> None:
    def whisper(rows: list[Row]) -> None:
        for n, row in enumerate(rows):
            row["reward"] = -1.0 + 1e-5 * (n % 3)

    metrics = {**tiny.metrics, "advantage/dead/share": np.zeros(4)}
    found = findings(advantage_by_rollout.check, replace(tampered(tiny, whisper), metrics=metrics))
    assert found["advantage.blow-up"].severity is Severity.WARNING
    assert found["advantage.blow-up"].evidence[0].value == 1.0
