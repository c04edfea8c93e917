"""What moved in the weights, counted directly."""

from pathlib import Path

import pytest
import torch
from torch import nn

from models import make_policy
from uptrend.policy.weights import FlatWeights, WeightMeter, digest, movable_share


class Block(nn.Module):
    """Weights with names of three groups."""

    def __init__(self, size: int, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        g = torch.Generator().manual_seed(0)
        self.embed = nn.Parameter(torch.randn(size, generator=g).to(dtype))
        self.attn = nn.Parameter(torch.randn(2 * size, generator=g).to(dtype))
        self.norm = nn.Parameter(torch.randn(7, generator=g).to(dtype))


@pytest.mark.parametrize(("size", "tolerance"), [(5_000, 1e-6), (600_000, 0.02)])
def test_norms_and_shares_are_those_of_the_change(size: int, tolerance: float) -> None:
    """The larger one is looked at in a sixteenth of its places."""
    flat = FlatWeights(Block(size))
    scale = WeightMeter(flat)
    scale.remember()
    then = flat.values.detach().clone()
    g = torch.Generator().manual_seed(1)
    moves = torch.rand(flat.values.shape, generator=g) < 0.3
    with torch.no_grad():
        flat.values += 0.01 * torch.randn(flat.values.shape, generator=g) * moves
    now = flat.values.detach()
    seen = scale.movement()
    assert seen.norm == pytest.approx(float(now.norm()), rel=tolerance)
    assert seen.update == pytest.approx(float((now - then).norm()), rel=tolerance)
    assert seen.changed == pytest.approx(float((now != then).float().mean()), rel=tolerance)
    assert list(seen.by_group) == ["embedding", "attention", "norm"]
    for group, span in flat.spans().items():
        assert seen.by_group[group] == pytest.approx(
            float((now - then)[span].norm()), rel=2 * tolerance
        )


def test_a_group_that_is_frozen_shows_0() -> None:
    flat = FlatWeights(Block(600_000))
    scale = WeightMeter(flat)
    scale.remember()
    with torch.no_grad():
        flat.values[flat.spans()["attention"]] *= 1.01
    seen = scale.movement()
    assert (seen.by_group["embedding"], seen.by_group["norm"]) == (0.0, 0.0)
    assert seen.by_group["attention"] == pytest.approx(seen.update)
    assert seen.changed == pytest.approx(2 / 3, rel=1e-3)


def test_bf16_weights_move_only_where_the_step_is_large_enough() -> None:
    """At 1.0 neighbors are 1/128 above and 1/256 below, and half-way rounds to even: back to
    1.0.
    """
    model = Block(1)
    model.embed.data = torch.tensor([1.0, 1.0, 0.5, 2.0**-10], dtype=torch.bfloat16)
    model.attn.data = torch.tensor([0.0], dtype=torch.bfloat16)
    model.norm.data = torch.tensor([100.0, -1.0, -0.25], dtype=torch.bfloat16)
    flat = FlatWeights(model)
    assert movable_share(flat, 2.0**-8) == 6 / 8  # all but 100 and -1
    assert movable_share(flat, 2.0**-9) == 4 / 8  # 0.5, 1/1024, 0 and -0.25
    assert movable_share(flat, 1e-5) == 2 / 8  # 1/1024 and 0
    assert movable_share(flat, 1e-7) == 1 / 8


def test_the_digest_is_of_every_bit(llama_folder: Path) -> None:
    flat = make_policy(llama_folder).flat
    before = digest(flat)
    assert before == digest(make_policy(llama_folder).flat)
    assert len(before) == 32
    bits = flat.values.data.view(torch.int32)
    for place in (0, 1, bits.numel() // 2, bits.numel() - 1):
        bits[place] ^= 1
        assert digest(flat) != before
        bits[place] ^= 1
    assert digest(flat) == before
    flat.values.data[[3, 4]] = flat.values.data[[4, 3]]
    assert digest(flat) != before
