"""Rows that share a prompt give what each sequence gives alone, with fewer tokens."""

import numpy as np
import pytest
import torch

from uptrend.training.packing import Cost, Grain, Line, pack, see

SHARE, ALONE = Cost(token=1.0, pair=0.0), Cost(token=0.0, pair=1.0)


def lines_of(shapes: list[tuple[int, list[int]]]) -> list[Line]:
    """Groups of (prompt length, tail lengths) with random tokens; all of a tail is sampled."""
    chance = np.random.default_rng(0)
    lines = []
    for group, (prompt, tails) in enumerate(shapes):
        head = chance.integers(1, 90, prompt)
        for tail in tails:
            ids = np.concatenate([head, chance.integers(1, 90, tail)])
            places = np.arange(prompt, prompt + tail)
            lines.append(Line(ids, places, np.ones(len(ids), bool), prompt, group, len(lines)))
    return lines


def test_a_group_shares_its_prompt_where_that_is_cheaper() -> None:
    lines = lines_of([(20, [3, 4, 5, 2])])
    (shared,) = pack(lines, range(4), 1000, SHARE, Grain(width=1), 5)
    assert shared.ids_rt.shape == (1, 20 + 14)
    assert shared.mask is not None
    (alone,) = pack(lines, range(4), 1000, ALONE, Grain(width=1), 5)
    assert alone.ids_rt.shape == (4, 25)
    assert alone.mask is None


def test_different_prompts_are_never_shared() -> None:
    lines = lines_of([(20, [3, 4]), (20, [3, 4])])
    for micro in pack(lines, range(4), 1000, SHARE, Grain(width=1), 4):
        assert micro.ids_rt.shape == (2, 27)
    mixed = [Line(x.ids, x.sampled, x.visible, x.prompt, 0, x.rollout) for x in lines]
    assert sum(len(m.ids_rt) for m in pack(mixed, range(4), 1000, SHARE, Grain(), 4)) == 4


@pytest.mark.parametrize("cost", [SHARE, ALONE, Cost(token=100.0, pair=1.0)])
@pytest.mark.parametrize("budget", [1, 30, 64, 100, 257, 5000])
@pytest.mark.parametrize("grain", [Grain(), Grain(width=1), Grain(64, 512)])
def test_a_micro_batch_keeps_to_its_budget(cost: Cost, budget: int, grain: Grain) -> None:
    lines = lines_of([(9, [3, 9, 30, 1]), (17, [4] * 7), (1, [2, 2]), (33, [60])])
    micros = pack(lines, range(len(lines)), budget, cost, grain, 60)
    assert sorted(i for m in micros for i in m.numbers) == list(range(len(lines)))
    for micro in micros:
        assert micro.ids_rt.numel() <= budget or len(micro.numbers) == 1


def test_every_sampled_token_is_predicted_from_the_token_before_it() -> None:
    lines = lines_of([(9, [3, 5]), (4, [7, 2, 6])])
    for cost in (SHARE, ALONE):
        for micro in pack(lines, [0, 1, 2, 4], 40, cost, Grain(), 7):
            flat = micro.ids_rt.flatten()
            at = zip(*(x.tolist() for x in micro.at_m), strict=True)
            for (line, place), predictor, target in zip(
                at, micro.predictors_m.tolist(), micro.targets_m.tolist(), strict=True
            ):
                source = lines[micro.numbers[line]]
                assert target == source.ids[source.sampled[place]]
                assert flat[predictor] == source.ids[source.sampled[place] - 1]


def test_who_sees_whom() -> None:
    """Two tails of two and one token behind a prompt of two whose second token is hidden, and padding."""
    part = torch.tensor([[0, 0, 1, 1, 2, -1]])
    visible = torch.tensor([[True, False, True, True, True, False]])
    expected = torch.tensor([
        [1, 0, 0, 0, 0, 0],
        [1, 1, 0, 0, 0, 0],
        [1, 0, 1, 0, 0, 0],
        [1, 0, 1, 1, 0, 0],
        [1, 0, 0, 0, 1, 0],
        [1, 0, 0, 0, 0, 1],
    ])  # fmt: skip
    assert torch.equal(see(part, visible)[0, 0].int(), expected.int())
