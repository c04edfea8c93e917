"""Metrics of a step by hand: the same functions serve our loop and a watched TRL."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from synthetic import rollout_of
from uptrend.records import Ending, Executed, Reward, Role, Rollout, Sequence
from uptrend.records.metrics import find_metric
from uptrend.training import metrics

NAN = math.nan


def scored(*rewards: tuple[str, float], low: float = 0.0, high: float = 1.0) -> list[Rollout]:
    """Rollouts by group and total reward; NaN is one that could not be scored."""
    return [
        replace(
            rollout_of(1, group),
            reward=None if math.isnan(r) else Reward.of("r", r, low, high, r == high),
        )
        for group, r in rewards
    ]


def dead(rollouts: list[Rollout], **rest: Any) -> tuple[float | None, ...]:
    line = metrics.advantage_metrics(rollouts, np.zeros(len(rollouts)), **rest)
    return tuple(line.get(f"advantage/{kind}/share") for kind in ("dead", "dead_low", "dead_high"))


def tokens(prompt: int, said: int, tool: int = 0) -> Sequence:
    roles = np.array([Role.PROMPT] * prompt + [Role.MODEL] * said + [Role.TOOL] * tool, np.int8)
    count = len(roles)
    return Sequence(np.arange(count, dtype=np.int32), np.zeros(count, np.int32), roles, np.zeros(count, np.int32),
                    np.zeros(count, np.float32))  # fmt: skip


def test_dead_groups_have_a_sign_and_go_by_their_id() -> None:
    rewards = [0, 0, 1, 1, 0.5, 0.5, 0, 1, NAN, NAN, 0, NAN]
    rollouts = scored(*zip("eebbhhaaiieb", map(float, rewards), strict=True))
    assert dead(rollouts) == (0.75, 0.25, 0.25)
    assert dead(rollouts, groups=["one"] * 12) == (0, 0, 0)


def test_bounds_are_each_groups_own_and_may_be_unknown() -> None:
    rollouts = [
        *scored(("a", -0.2), ("a", -0.2), low=-0.2),
        *scored(("b", 1.0), ("b", 1.0), high=2.0),
    ]
    assert dead(rollouts) == (1.0, 0.5, 0.0)
    assert dead(scored(("a", 0.0), ("a", 0.0), low=NAN, high=NAN)) == (1.0, None, None)


def test_the_largest_advantage_is_by_size_and_nothing_scored_has_no_dead_groups() -> None:
    line = metrics.advantage_metrics(
        scored(("a", NAN), ("a", NAN)), np.array([-3.0, 1.0], np.float32)
    )
    assert line == {"advantage/abs/mean": 2.0, "advantage/abs/max": 3.0}
    assert metrics.reward_metrics(scored(("a", NAN))) == {}


@pytest.mark.parametrize(
    ("rewards", "is_dead"),
    [
        ([0.1 + 0.2, 0.3], True),
        ([0.3, 0.3001], False),
        ([7.0], True),
        ([], True),
        ([math.inf, 0.0], False),
        ([1e9, 1e9 + 1], True),
    ],
)
def test_equal_up_to_rounding_is_dead(rewards: list[float], is_dead: bool) -> None:
    assert metrics.is_dead(rewards) is is_dead


def test_rewards_and_who_knows_what_is_right() -> None:
    rollouts = scored(("a", 0.0), ("a", 1.0), ("a", NAN))
    line = metrics.reward_metrics(rollouts)
    assert (line["reward/mean"], line["reward/std"], line["reward/correct/share"]) == (
        0.5,
        0.5,
        0.5,
    )
    assert line["reward/part/r/mean"] == 0.5
    assert metrics.reward_metrics(rollouts, [True, None, True])["reward/correct/share"] == 1
    assert "reward/correct/share" not in metrics.reward_metrics(rollouts, [None] * 3)


def test_lengths_of_prompts_and_contexts() -> None:
    shapes = [(tokens(4, 3),), (tokens(6, 1, tool=2), tokens(8, 2)), (tokens(5, 0),), ()]
    endings = [Ending.LENGTH, Ending.CONTEXT_FULL, Ending.STOP_TOKEN, Ending.TASK_ERROR]
    rollouts = [
        replace(rollout_of(1), sequences=sequences, ended=ended)
        for sequences, ended in zip(shapes, endings, strict=True)
    ]
    line = metrics.sampling_metrics(rollouts)
    assert (line["sampling/length/mean"], line["sampling/length/max"]) == (6 / 4, 3)
    assert (line["sampling/prompt/mean"], line["sampling/prompt/max"]) == (5, 6)
    assert (line["sampling/context/mean"], line["sampling/context/max"]) == ((7 + 10 + 5) / 3, 10)
    assert line["sampling/truncated/share"] == 0.5
    assert line["sampling/ended/length/share"] == 0.25
    assert line["sampling/distinct/share"] == 0.75
    assert "sampling/resampled/groups" not in line
    assert metrics.sampling_metrics(rollouts, rollouts)["sampling/resampled/groups"] == 1


def test_commands_and_failures_of_sandboxes() -> None:
    ran = (Executed(0, "ls", 0.5, 0), Executed(1, "python a.py", 2.5, 1, error=True))
    rollouts = [
        replace(rollout_of(1), commands=ran, sandbox_failures=1),
        rollout_of(1),
        rollout_of(1),
        rollout_of(1),
    ]
    line = metrics.sampling_metrics(rollouts, [replace(rollout_of(1), sandbox_failures=2)])
    found = {key: value for key, value in line.items() if key.startswith("commands/")}
    means = {
        "commands/rollout/mean": 0.5,
        "commands/error/share": 0.5,
        "commands/seconds/mean": 1.5,
    }
    assert found == means | {"commands/sandbox_failures/count": 3}
    assert not [
        key for key in metrics.sampling_metrics(rollouts[1:]) if key.startswith("commands/")
    ]
    dead = metrics.sampling_metrics([replace(rollout_of(1), sandbox_failures=3)])
    assert [key for key in dead if key.startswith("commands/")] == [
        "commands/sandbox_failures/count"
    ]


@pytest.mark.parametrize(("families", "shown"), [(1, 0), (2, 2), (20, 20), (21, 0)])
def test_rewards_by_kind_of_task(families: int, shown: int) -> None:
    rollouts = [replace(rollout_of(1, correct=i > 0), family=f"f{i}") for i in range(families)] * 2
    rollouts += [
        replace(rollout_of(1), family="unscored", reward=None),
        replace(rollout_of(1), family=""),
    ]
    line = metrics.reward_metrics(rollouts)
    found = {key: value for key, value in line.items() if key.startswith("reward/family/")}
    assert found == {f"reward/family/f{i}/mean": float(i > 0) for i in range(shown)}
    assert all(find_metric(key) for key in found)


def test_tokens_by_role() -> None:
    rollouts = [
        replace(rollout_of(1), sequences=(tokens(2, 3, tool=1),)),
        replace(rollout_of(1), sequences=()),
    ]
    line = metrics.role_metrics(rollouts, np.array([False, True, True, True, False, False]))
    assert [line[f"tokens/{role}/count"] for role in ("prompt", "model", "tool")] == [2, 3, 1]
    assert [line[f"tokens/trained/{role}/count"] for role in ("prompt", "model", "tool")] == [
        1,
        2,
        0,
    ]


def test_learner_against_sampler_by_hand() -> None:
    ratio = [2.0, 3.0, 0.5, 0.8]
    sampler = np.log([0.25, 0.3, 0.4, 0.5, NAN])
    line = metrics.gap_metrics(sampler + np.log([*ratio, 1.0]), sampler)
    assert line["sampler/ess/share"] == pytest.approx(
        sum(ratio) ** 2 / (4 * sum(r * r for r in ratio))
    )
    assert line["sampler/ratio/mean"] == pytest.approx(sum(ratio) / 4)
    assert line["sampler/kl/mean"] == pytest.approx(sum(r - 1 - math.log(r) for r in ratio) / 4)
    assert line["sampler/gap/mean"] == pytest.approx(sum(abs(math.log(r)) for r in ratio) / 4)
    assert line["sampler/gap/max"] == pytest.approx(math.log(3))


def test_the_same_policy_has_no_gap_and_no_token_has_no_line() -> None:
    same = np.log([0.25, 0.5])
    assert list(metrics.gap_metrics(same, same).values()) == [0.0, 1.0, 1.0, 0.0, 0.0]
    assert metrics.gap_metrics(same, np.full(2, NAN)) == {}


def test_the_gap_estimates_the_divergence_of_learner_from_sampler() -> None:
    draw = np.random.default_rng(0)
    sampler, learner = (p / p.sum() for p in np.exp(draw.normal(size=(2, 20))))
    drawn = draw.choice(20, 200_000, p=sampler)
    line = metrics.gap_metrics(np.log(learner[drawn]), np.log(sampler[drawn]))
    assert line["sampler/kl/mean"] == pytest.approx(
        float((sampler * np.log(sampler / learner)).sum()), rel=0.02
    )
    assert line["sampler/ratio/mean"] == pytest.approx(1, abs=0.01)


def test_means_over_no_tokens_are_absent_and_broken_ones_are_not() -> None:
    assert metrics.pass_metrics({"tokens": 0, "ratio": 0, "entropy": 0}) == {}
    sums = {
        "tokens": 4,
        "ratio": 4,
        "clipped_low": 1,
        "clipped_high": 0,
        "entropy": None,
        "kl": NAN,
    }
    line = metrics.pass_metrics(sums)
    assert np.isnan(line.pop("kl/reference/mean"))
    assert line == {"learner/ratio/mean": 1.0, "clip/low/share": 0.25, "clip/high/share": 0.0}


def test_updates_of_a_step() -> None:
    line = metrics.optimizer_metrics([2.0, 4.0], [1.0, 1.0], [False, True], 1e-3)
    assert line == {
        "gradient/norm/before": 3.0, "gradient/norm/after": 1.0, "optimizer/lr": 1e-3,
        "optimizer/updates/count": 1, "optimizer/skipped/count": 1,
    }  # fmt: skip
    unknown = metrics.optimizer_metrics([], [], [False], None)
    assert unknown == {"optimizer/updates/count": 1, "optimizer/skipped/count": 0}
