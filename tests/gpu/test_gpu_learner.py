"""The learner on a GPU: kernels, graphs and compiled layers give what plain torch gives, one
sequence at a time.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from models import make_policy, write_model
from steps import SHAPES, Kept, advantages_of, config_of, rollouts_of, update
from uptrend.config import Lora, Model
from uptrend.policy.attention import Packed, attend_on_gpu, attend_one_by_one
from uptrend.policy.graphed import Graphed
from uptrend.policy.logprobs import _Plain, by_device
from uptrend.policy.policy import Policy, load_policy
from uptrend.training.learner import MIN_SHARED_PROMPT_SHARE, Learner, lay_out

if not torch.cuda.is_available():
    pytest.skip("needs a GPU", allow_module_level=True)
GPU = torch.device("cuda")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model with weights of a usual size: rounding shows less than with larger ones."""
    folder = write_model(
        tmp_path_factory.mktemp("llama"), hidden_size=64, num_attention_heads=4, head_dim=16
    )
    weights = load_file(folder / "model.safetensors")
    save_file(
        {n: w * (0.3 if w.ndim > 1 else 1) for n, w in weights.items()},
        folder / "model.safetensors",
        {"format": "pt"},
    )
    return folder


def policy_of(folder: Path, lora: bool = False, compiled: bool = False, **wish: Any) -> Policy:
    wanted = Model(name=str(folder), lora=Lora(r=4, alpha=8.0) if lora else None, **wish)
    policy = load_policy(str(folder), wanted, GPU, seed=0, keep_reference=True, compiled=compiled)
    if lora:
        with torch.no_grad():
            for label, weight in policy.model.named_parameters():
                if "lora_B" in label:
                    weight.copy_(
                        0.1 * torch.randn(weight.shape, generator=torch.Generator().manual_seed(1))
                    )
    return policy


def apart(mine: Tensor, theirs: Tensor) -> float:
    """Distance relative to length."""
    return float(
        (mine.detach().float().cpu() - theirs.detach().float().cpu()).norm()
        / theirs.detach().float().cpu().norm()
    )


@pytest.mark.parametrize("heads", [(4, 4), (9, 3), (8, 1)])
@pytest.mark.parametrize("size", [16, 64, 128])
@pytest.mark.parametrize("window", [None, 5])
def test_attention_is_that_of_sdpa(heads: tuple[int, int], size: int, window: int | None) -> None:
    """Shared prompts too: the second and third segment see the first one's keys before their
    own.
    """
    torch.manual_seed(0)
    query, key, value = (
        torch.randn(40, h, size).bfloat16().requires_grad_() for h in (heads[0], heads[1], heads[1])
    )
    places = torch.cat(
        [
            torch.arange(12),
            torch.arange(12),
            torch.arange(12, 20),
            torch.arange(12),
            torch.arange(20, 40),
        ]
    )
    packed = Packed(
        torch.tensor([0, 12, 20, 40, 40]).int(), torch.tensor([0, 12, 32, 64, 64]).int(), 128, 128
    )
    grads = []
    for device, attend in (("cpu", attend_one_by_one), ("cuda", attend_on_gpu)):
        kind = torch.float32 if device == "cpu" else torch.bfloat16
        q, k, v = (x.detach().to(device, kind).requires_grad_() for x in (query, key, value))
        own = (k.float()[places.to(device)].to(kind), v.float()[places.to(device)].to(kind))
        there = Packed(*(x.to(device) if isinstance(x, Tensor) else x for x in packed))
        out = attend(q, *own, there, size**-0.5, window)
        weight = torch.randn(out.shape, generator=torch.Generator().manual_seed(3)).to(device, kind)
        (out * weight).sum().backward()
        grads.append([out, q.grad, k.grad, v.grad])
    assert max(map(apart, grads[1], grads[0])) < 0.02


@pytest.mark.parametrize("entropy", [False, True])
def test_the_head_s_kernels_are_plain_torch(entropy: bool) -> None:
    torch.manual_seed(0)
    z, y = 3 * torch.randn(37, 49153, device=GPU), torch.randint(0, 49153, (37,), device=GPU)
    z[0, 5:] = -1e30  # left out by a sampler
    y[0] = 2
    kernels = by_device(z)
    assert kernels is not _Plain
    mine, theirs = kernels.reduce(z.clone(), y), _Plain.reduce(z.clone().double(), y)
    for a, b in zip(mine, theirs, strict=True):
        torch.testing.assert_close(a.double(), b, atol=2e-5, rtol=1e-5)
    grads = torch.randn(37, device=GPU), torch.randn(37, device=GPU) if entropy else None
    given = y, theirs[2].float(), theirs[1].float(), *grads
    assert (
        apart(kernels.grad_logits(z.clone(), *given), _Plain.grad_logits(z.clone(), *given)) < 0.005
    )


WAYS = {
    "plain": ({}, {}),
    "adapters": ({"lora": True}, {}),
    "shared prompts": ({}, {"share": True}),
    "gspo": ({}, {"loss": "gspo", "clip_low": 3e-4, "clip_high": 4e-4}),
    "sequence correction": ({}, {"correction": "sequence"}),
    "entropy": ({}, {"entropy": 0.1}),
    "two updates": ({}, {"updates": 2}),
    "small micro-batches": ({}, {"tokens": 40}),
    "checkpointing": ({"gradient_checkpointing": True}, {}),
    "compiled": ({"compiled": True}, {}),
}


@pytest.mark.parametrize("way", WAYS)
def test_graphs_have_the_gradient_of_the_cpu(
    folder: Path, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Twice: the first step captures, the second replays; rollouts of several turns and lengths."""
    wish, learning = (dict(x) for x in WAYS[way])
    monkeypatch.setitem(
        MIN_SHARED_PROMPT_SHARE, "cuda", 0.0 if learning.pop("share", False) else 1.1
    )
    config = config_of(kl={"beta": 0.1}, scale="none", **learning)
    on_cpu = make_policy(folder, lora=wish.get("lora", False), reference=True)
    policy = policy_of(folder, **wish)
    if wish.get("lora"):
        policy.flat.values.data.copy_(on_cpu.flat.values.data)
    kept: Any = Kept(policy.flat)
    learner = Learner(policy, kept, config)
    for seed in (0, 1):
        rollouts = rollouts_of(SHAPES, seed)
        exp = lay_out(rollouts, config)
        reference = learner.logprobs(exp, reference=True)
        old = learner.logprobs(exp, reference=False) if learner.needs_old else None
        done = learner.update(
            exp, advantages_of(rollouts, exp, config), 1, old_bs=old, reference_bs=reference
        )
        theirs, gradients = update(on_cpu, rollouts, config)
        if way != "gspo":  # it clips by less than rounding
            assert apart(kept.gradients[-1], gradients[-1]) < 0.06
        real = exp.real_bs
        assert float((done.learner_bs - theirs.learner_bs)[real].abs().mean()) < 0.03
        # Weights have not changed: not a bit apart, but for sums that compiled code may order
        # otherwise.
        if wish.get("compiled"):
            assert float((done.learner_bs - done.reference_bs)[real].abs().mean()) < 0.005
        elif not wish.get("lora"):
            assert torch.equal(done.learner_bs[real], done.reference_bs[real])
    if not wish.get("gradient_checkpointing"):
        assert learner._gradient_graphs._captures


def test_a_graph_is_the_function_without_one(folder: Path) -> None:
    policy, config, rollouts = policy_of(folder), config_of(kl={"beta": 0.1}), rollouts_of(SHAPES)
    gradients = []
    for most in (0, 32):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("uptrend.policy.graphed.MAX_GRAPHS", most)
            gradients += update(policy, rollouts, config)[1]
    assert apart(gradients[1], gradients[0]) < 0.01


def test_a_graph_is_captured_once_for_each_shape() -> None:
    calls = []

    def double(x: Tensor, by: int) -> tuple[Tensor]:
        calls.append(by)
        return (x * by,)

    graphed = Graphed(double, GPU)
    for size, by in ((3, 2), (3, 2), (4, 2), (3, 5), (3, 2)):
        x = torch.randn(size, device=GPU)
        assert torch.equal(graphed(x, by)[0], x * by)
    assert len(calls) == 3 * 3  # two calls before the capture, and the capture


def test_a_frozen_model_is_kept_in_bf16_and_is_the_policy_to_the_bit(folder: Path) -> None:
    policy, config, rollouts = policy_of(folder), config_of(kl={"beta": 0.1}), rollouts_of(SHAPES)
    assert {p.dtype for p in policy.reference.parameters() if p.ndim == 2} == {torch.bfloat16}
    done, _ = update(policy, rollouts, config)
    assert float(done.sums.kl) == 0.0
    adapted = policy_of(folder, lora=True)
    base = {
        p.dtype for n, p in adapted.model.named_parameters() if "lora_" not in n and p.ndim == 2
    }
    assert base == {torch.bfloat16}
    assert adapted.flat.values.dtype == torch.float32


def test_a_rollout_alone_is_itself_in_a_batch(folder: Path) -> None:
    policy, config, rollouts = policy_of(folder), config_of(), rollouts_of(SHAPES)
    learner: Any = Learner(policy, Kept(policy.flat), config)  # type: ignore[arg-type]
    together = learner.logprobs(lay_out(rollouts, config), reference=False)
    for n, rollout in enumerate(rollouts):
        if rollout.sampled_tokens:
            alone = learner.logprobs(
                lay_out([replace(rollout, group="g0")], config), reference=False
            )[0]
            said = alone[~alone.isnan()]
            assert float((together[n, : len(said)] - said).abs().mean()) < 0.03
    assert np.isfinite(together[0, 0].item())
