"""Advantages: by group id, whatever the order."""

import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from uptrend.algo import advantages

NAN = math.nan
SCALES = ("group", "batch", "none")
BASELINES = ("mean", "leave_one_out")


def of(values: list[float]) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


@st.composite
def steps(draw: st.DrawFn) -> tuple[Tensor, Tensor]:
    """Rewards (some equal, some unscored) of groups of any sizes, ids and order."""
    numbers = draw(st.lists(st.integers(-5, 5).map(lambda i: i * 17), min_size=1, max_size=24))
    reward = st.one_of(st.sampled_from([0.0, 0.1, 1.0, NAN]), st.floats(-10, 10))
    rewards = draw(st.lists(reward, min_size=len(numbers), max_size=len(numbers)))
    return of(rewards), torch.tensor(numbers)


def test_hand_computed_groups_of_unequal_size_out_of_order() -> None:
    rewards, groups = of([1, 5, 0, 3, 2]), torch.tensor([40, 9, 40, 9, 40])
    centered = advantages(rewards, groups, scale="none", baseline="mean")
    torch.testing.assert_close(centered, of([0, 1, -1, -1, 1]))
    others = advantages(rewards, groups, scale="none", baseline="leave_one_out")
    torch.testing.assert_close(others, of([1 - 2 / 2, 5 - 3, 0 - 3 / 2, 3 - 5, 2 - 1 / 2]))
    scaled = advantages(rewards, groups, scale="group", baseline="mean")
    pair = 1 / (math.sqrt(2) + 1e-4)
    torch.testing.assert_close(scaled, of([0, pair, -1 / 1.0001, -pair, 1 / 1.0001]))
    deviation = math.sqrt((1.2**2 + 2.8**2 + 2.2**2 + 0.8**2 + 0.2**2) / 4)
    by_step = advantages(rewards, groups, scale="batch", baseline="mean")
    torch.testing.assert_close(by_step, centered / (deviation + 1e-4))


@settings(max_examples=200, deadline=None)
@given(steps(), st.sampled_from(SCALES), st.sampled_from(BASELINES), st.randoms())
def test_order_sums_bounds_and_dead_groups(
    step: tuple[Tensor, Tensor], scale: Any, baseline: Any, random: Any
) -> None:
    rewards, groups = step
    result = advantages(rewards, groups, scale=scale, baseline=baseline)
    assert result.isfinite().all()
    order = list(range(len(rewards)))
    random.shuffle(order)
    shuffled = advantages(rewards[order], groups[order], scale=scale, baseline=baseline)
    torch.testing.assert_close(shuffled, result[order], atol=1e-9, rtol=1e-9)
    for group in groups.unique():
        inside = (groups == group) & ~rewards.isnan()
        size = int(inside.sum())
        assert abs(float(result[inside].sum())) < 1e-6 * max(1.0, float(result.abs().max()))
        if (
            scale == "group" and size > 1
        ):  # the farthest that one of `size` numbers can be, in deviations
            bound = (size - 1) / math.sqrt(size) if baseline == "mean" else math.sqrt(size)
            assert float(result[inside].abs().max()) <= bound + 1e-9
        if len(rewards[inside].unique()) <= 1:
            assert (result[groups == group] == 0).all()
    assert (result[rewards.isnan()] == 0).all()


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("baseline", BASELINES)
def test_equal_rewards_give_exactly_zero(scale: Any, baseline: Any) -> None:
    # 0.1 is not a binary fraction: the mean of seven of them is not 0.1, and 1e-4 would magnify the
    # rest.
    rewards = torch.tensor([0.1] * 7 + [0.0, 1.0])
    groups = torch.tensor([1] * 7 + [2, 2])
    assert (advantages(rewards, groups, scale=scale, baseline=baseline)[:7] == 0).all()


def test_an_unscored_rollout_counts_for_nothing_and_no_rollouts_have_no_advantages() -> None:
    groups = torch.tensor([1, 1, 1, 2, 2])
    result = advantages(of([0, 1, NAN, NAN, 5]), groups, scale="none", baseline="mean")
    torch.testing.assert_close(result, of([-0.5, 0.5, 0, 0, 0]))
    assert advantages(of([]), of([]).long(), scale="group", baseline="mean").shape == (0,)
