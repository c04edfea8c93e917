"""One AdamW over one long vector is AdamW over the parameters."""

import math
import re
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, Trainer

from models import make_policy, write_model
from uptrend.config import Learning
from uptrend.policy.optimizer import Optimizer, learning_rate
from uptrend.policy.policy import Policy
from uptrend.policy.weights import digest
from uptrend.records import MissingExtra
from uptrend.records.errors import install_command

BATCH = torch.arange(4, 28).view(2, 12)


def decay_names(model: torch.nn.Module) -> set[str]:
    """Return the parameters that transformers' Trainer decays; it reads nothing of itself for
    that.
    """
    return set(Trainer.get_decay_parameter_names(None, model))


def gradient(model: torch.nn.Module) -> None:
    model(input_ids=BATCH, labels=BATCH).loss.backward()


@pytest.mark.parametrize("max_norm", [0.0, 0.05, 1e6])
def test_steps_equal_torchs_on_the_plain_parameters(llama_folder: Path, max_norm: float) -> None:
    policy = make_policy(llama_folder)
    learning = Learning(lr=3e-3, weight_decay=0.1, beta1=0.8, beta2=0.95, max_grad_norm=max_norm)
    mine = Optimizer(policy.flat, learning)
    plain = AutoModelForCausalLM.from_pretrained(llama_folder, dtype=torch.float32)
    names = decay_names(plain)
    kinds = [
        [p for n, p in plain.named_parameters() if (n in names) is decays]
        for decays in (True, False)
    ]
    groups = [{"params": kinds[0], "weight_decay": 0.1}, {"params": kinds[1], "weight_decay": 0.0}]
    theirs = torch.optim.AdamW(groups, lr=3e-3, betas=(0.8, 0.95))
    for step in range(1, 4):
        gradient(policy.model)
        applied = mine.apply(3e-3 / step)
        gradient(plain)
        norm = torch.nn.utils.clip_grad_norm_(plain.parameters(), max_norm or math.inf)
        for group in theirs.param_groups:
            group["lr"] = 3e-3 / step
        theirs.step()
        theirs.zero_grad()
        assert applied.norm_before == pytest.approx(float(norm), rel=1e-4)
        assert applied.norm_after == pytest.approx(min(float(norm), max_norm or math.inf), rel=1e-4)
    for name, weight in plain.named_parameters():
        torch.testing.assert_close(
            dict(policy.model.named_parameters())[name], weight, atol=1e-6, rtol=1e-4
        )


@pytest.mark.parametrize("kind", ["llama", "qwen2", "qwen3", "stablelm", "gpt_neox"])
@pytest.mark.parametrize("lora", [False, True], ids=["full", "lora"])
def test_norms_and_biases_are_not_decayed(kind: str, lora: bool, tmp_path: Path) -> None:
    policy = make_policy(write_model(tmp_path, kind), lora=lora)
    trained = {n for n, p in policy.model.named_parameters() if p.requires_grad}
    expected = decay_names(policy.model) & trained
    assert {slot.name for slot in policy.flat.slots if slot.decays} == expected
    assert (expected == trained) is lora
    before = {n: p.detach().clone() for n, p in policy.model.named_parameters()}
    Optimizer(policy.flat, Learning(weight_decay=0.5)).apply(
        0.1
    )  # without a gradient, only decay moves a weight
    for name, weight in policy.model.named_parameters():
        torch.testing.assert_close(
            weight.detach(), before[name] * (0.95 if name in expected else 1.0)
        )


def test_decay_apart_from_adamw_is_adamws_of_two_parameter_groups(tmp_path: Path) -> None:
    policy = make_policy(write_model(tmp_path, "qwen2"))
    mine = Optimizer(policy.flat, Learning(weight_decay=0.1, max_grad_norm=0))
    stretches = [slice(slot.start, slot.start + slot.shape.numel()) for slot in policy.flat.slots]
    copies = [torch.nn.Parameter(policy.flat.values.data[stretch].clone()) for stretch in stretches]
    groups = [
        {
            "params": [
                c for c, s in zip(copies, policy.flat.slots, strict=True) if s.decays is decays
            ],
            "weight_decay": d,
        }
        for decays, d in ((True, 0.1), (False, 0.0))
    ]
    theirs = torch.optim.AdamW(groups, lr=1e-2, fused=True)
    for _ in range(5):
        policy.flat.gradient.normal_()
        for copy, stretch in zip(copies, stretches, strict=True):
            copy.grad = policy.flat.gradient[stretch].clone()
        mine.apply(1e-2)
        theirs.step()
    # The same formula but for one rounding: torch's kernel subtracts lr * decay * w, its plain loop
    # multiplies as here.
    torch.testing.assert_close(
        policy.flat.values.data, torch.cat([c.data for c in copies]), rtol=1e-6, atol=1e-7
    )


def train_both(folder: Path, steps: int) -> tuple[Policy, Optimizer, Policy, Optimizer]:
    """Learn one batch by heart with AdamW's memory in 8 bits, and in full."""
    made: list[Any] = []
    for name in ("adamw-8bit", "adamw"):
        policy = make_policy(folder)
        optimizer = Optimizer(policy.flat, Learning(optimizer=name, weight_decay=0.1))  # type: ignore[arg-type]
        for _ in range(steps):
            gradient(policy.model)
            optimizer.apply(3e-3)
        made += [policy, optimizer]
    return made[0], made[1], made[2], made[3]


def test_eight_bits_are_close_to_adamw(llama_folder: Path) -> None:
    pytest.importorskip("bitsandbytes", reason="the extra eightbit is not installed")
    start = make_policy(llama_folder).flat.values.data
    eight, memory, full, whole = train_both(llama_folder, 20)
    moved, expected = eight.flat.values.data - start, full.flat.values.data - start
    assert not torch.equal(moved, expected)
    assert float(torch.cosine_similarity(moved, expected, dim=0)) > 0.98
    assert float(moved.norm()) == pytest.approx(float(expected.norm()), rel=0.05)
    losses = [p.model(input_ids=BATCH, labels=BATCH).loss.item() for p in (eight, full)]
    assert losses[0] == pytest.approx(losses[1], rel=0.1)
    sizes = [
        sum(t.numel() * t.element_size() for t in o.memory().values()) for o in (memory, whole)
    ]
    assert 0.24 < sizes[0] / sizes[1] < 0.30


def test_eight_bits_over_weights_in_parts(
    llama_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("bitsandbytes", reason="the extra eightbit is not installed")

    def steps() -> tuple[Tensor, Optimizer]:
        policy, noise = make_policy(llama_folder), torch.Generator().manual_seed(0)
        optimizer = Optimizer(policy.flat, Learning(optimizer="adamw-8bit"))
        for _ in range(3):
            policy.flat.gradient.normal_(generator=noise)
            optimizer.apply(1e-2)
        return policy.flat.values.data, optimizer

    whole, _ = steps()
    monkeypatch.setattr("uptrend.policy.optimizer.MAX_PART_SIZE", 4096)  # a whole number of blocks
    several, optimizer = steps()
    parts = -(-whole.numel() // 4096)
    assert {int(name.split(".")[0]) for name in optimizer.memory()} == set(range(parts))
    full = (parts - 1) * 4096  # the last part is too short for 8 bits to pay
    assert torch.equal(several[:full], whole[:full])
    assert optimizer.reached() > 0.9


def test_eight_bits_need_their_extra(llama_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "bitsandbytes", None)
    with pytest.raises(MissingExtra, match=re.escape(install_command("eightbit"))):
        Optimizer(make_policy(llama_folder).flat, Learning(optimizer="adamw-8bit"))


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_gradient_that_is_not_finite_changes_nothing(llama_folder: Path, value: float) -> None:
    policy = make_policy(llama_folder)
    optimizer = Optimizer(policy.flat, Learning())
    gradient(policy.model)
    optimizer.apply(1e-3)
    before, memory = digest(policy.flat), _memory(policy, optimizer)
    gradient(policy.model)
    policy.flat.gradient[123] = value
    applied = optimizer.apply(1e-3)
    assert applied.skipped
    assert not math.isfinite(applied.norm_before)
    assert digest(policy.flat) == before
    assert all(torch.equal(a, b) for a, b in zip(memory, _memory(policy, optimizer), strict=True))
    gradient(policy.model)
    assert not optimizer.apply(1e-3).skipped
    assert digest(policy.flat) != before


def _memory(policy: Policy, optimizer: Optimizer) -> list[torch.Tensor]:
    return [value.clone() for value in optimizer.adamw.state[policy.flat.values].values()]


@pytest.mark.parametrize(
    ("schedule", "warmup", "expected"),
    [
        ("constant", 0, [1, 1, 1, 1, 1, 1]),
        ("constant", 3, [1 / 3, 2 / 3, 1, 1, 1, 1]),
        ("linear", 0, [1, 5 / 6, 4 / 6, 3 / 6, 2 / 6, 1 / 6]),
        ("linear", 2, [1 / 2, 1, 1, 3 / 4, 2 / 4, 1 / 4]),
        ("cosine", 2, [1 / 2, 1, 1, 0.853553, 0.5, 0.146447]),
        ("linear", 6, [1 / 6, 2 / 6, 3 / 6, 4 / 6, 5 / 6, 1]),
    ],
)
def test_the_learning_rate_follows_its_schedule(
    schedule: str, warmup: int, expected: list[float]
) -> None:
    learning = Learning(steps=6, lr=2e-4, schedule=schedule, warmup=warmup)  # type: ignore[arg-type]
    rates = [learning_rate(learning, step) for step in range(1, 7)]
    assert rates == pytest.approx([2e-4 * x for x in expected], rel=1e-5)
