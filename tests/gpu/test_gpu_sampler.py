"""The sampler on a GPU: its kernels against plain torch, its turns against the model's own
forward.
"""

import asyncio
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

if not torch.cuda.is_available():
    pytest.skip("needs a GPU", allow_module_level=True)
pytest.importorskip("triton")

import transformers

from talk import speak
from uptrend.policy import attention
from uptrend.policy.policy import Policy
from uptrend.policy.weights import FlatWeights
from uptrend.rollout import kernels
from uptrend.rollout.decoder import KernelDecoder
from uptrend.rollout.decoding import StateSize, _State, choose
from uptrend.rollout.endings import ENDED
from uptrend.rollout.inprocess import InProcessSampler
from uptrend.rollout.sampler import Extension, Limits

DEVICE, BF16 = torch.device("cuda"), torch.bfloat16
LIMITS = Limits(24, 600)
# bf16 rounds at every product: log-probabilities of these models differ by hundredths (0.023 on
# average, 0.085 at most, on an H200 from a forward whose logits are rounded too).
CLOSE = 0.12


class Words:
    """A tokenizer of numbers."""

    eos_token_id = 1
    pad_token_id = 1

    def __len__(self) -> int:
        return 500

    def decode(self, ids: Any) -> str:
        return " ".join(str(int(i)) for i in ids) + " "

    def batch_decode(self, lists: Any) -> list[str]:
        return [self.decode(ids) for ids in lists]


def make_policy(
    kind: str, lora: bool = False, dtype: torch.dtype = torch.float32, **changes: Any
) -> Policy:
    """A random model in a policy; adapters have a random B."""
    sizes = {
        "vocab_size": 500, "hidden_size": 256, "intermediate_size": 384, "num_hidden_layers": 3,
        "num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 64, "max_position_embeddings": 1024,
        "eos_token_id": 1, "pad_token_id": 1, "bos_token_id": None,
    }  # fmt: skip
    config = getattr(transformers, f"{kind}Config")(**{**sizes, **changes})
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(
        config, attn_implementation=attention.register()
    )
    model = model.to(DEVICE, dtype).eval()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            weight.copy_((1.0 if "norm" in name else 0.0) + 0.06 * torch.randn_like(weight))
    if lora:
        peft = pytest.importorskip("peft")
        wish = peft.LoraConfig(
            r=4, lora_alpha=8, target_modules="all-linear", task_type="CAUSAL_LM"
        )
        model = peft.get_peft_model(model, wish).eval()
        for name, weight in model.named_parameters():
            if "lora_B" in name:
                weight.data.normal_(std=0.05)
    return Policy(model, Words(), DEVICE, FlatWeights(model))


def full_logprobs(policy: Policy, ids: list[int]) -> Tensor:
    """Log-probabilities of every token after the first, from the whole forward."""
    tensor = torch.tensor([ids], device=DEVICE)
    with torch.no_grad(), torch.autocast("cuda", dtype=BF16):
        logits = policy.model(input_ids=tensor).logits[0, :-1].float()
    return torch.log_softmax(logits, -1).gather(1, tensor[0, 1:, None]).squeeze(1).cpu()


def check(
    policy: Policy, sampler: InProcessSampler, whole: list[list[int]], said: list[Extension]
) -> None:
    for ids, extension in zip(whole, said, strict=True):
        ids += extension.ids.tolist()
        expected = full_logprobs(policy, ids)[len(ids) - 1 - len(extension.ids) :].numpy()
        np.testing.assert_allclose(extension.logprobs, expected, atol=CLOSE)
        assert np.abs(extension.logprobs - expected).mean() < CLOSE / 4
    assert sampler.cache.n_used_pages > 0


@pytest.mark.parametrize("has_norm", [False, True])
@pytest.mark.parametrize(
    ("heads", "shared", "size"), [(9, 3, 64), (28, 4, 128), (4, 2, 16), (32, 1, 32), (8, 8, 256)]
)
def test_attention_over_pages(heads: int, shared: int, size: int, has_norm: bool) -> None:
    page, n = 64, 6
    torch.manual_seed(0)
    pool = torch.randn(2, shared, 80 * page, size, device=DEVICE, dtype=BF16)
    expected_pool = pool.clone()
    table = (torch.randperm(79, device=DEVICE)[: n * 12] + 1).view(n, 12)
    positions = torch.tensor([0, 1, page - 1, page, 3 * page + 5, 12 * page - 1], device=DEVICE)
    qkv = torch.randn(n, (heads + 2 * shared) * size, device=DEVICE, dtype=BF16)
    angles = 6 * torch.rand(12 * page, size // 2, device=DEVICE)
    cos_table, sin_table = angles.cos().repeat(1, 2), angles.sin().repeat(1, 2)
    cos, sin = cos_table[positions], sin_table[positions]
    norms = [torch.rand(size, device=DEVICE) + 0.5 if has_norm else None for _ in range(2)]
    # Seats in another order than rows.
    rows = torch.randperm(n, device=DEVICE)
    seats = torch.argsort(rows)
    out = kernels.rope_write_attend(
        qkv,
        cos_ld=cos_table,
        sin_ld=sin_table,
        pool=pool,
        table_sp=table[seats],
        slots_n=rows,
        positions_s=positions[seats],
        page_tokens=page,
        query_heads=heads,
        scaling=size**-0.5,
        epsilon=1e-6,
        q_norm_d=norms[0],
        k_norm_d=norms[1],
    )
    q, k, v = qkv.view(n, -1, size).split([heads, shared, shared], 1)

    def turned(x: Tensor, weight: Tensor | None) -> Tensor:
        x = x.float() if weight is None else F.rms_norm(x.float(), (size,), weight, 1e-6)
        first, second = x.chunk(2, -1)
        return (x * cos[:, None] + torch.cat((-second, first), -1) * sin[:, None]).to(BF16)

    q, k = turned(q, norms[0]), turned(k, norms[1])
    for i, position in enumerate(positions.tolist()):
        slots = (table[i][:, None] * page + torch.arange(page, device=DEVICE)).flatten()[
            : position + 1
        ]
        expected_pool[0][:, slots[-1]], expected_pool[1][:, slots[-1]] = k[i], v[i]
        keys, values = (x[:, slots].float() for x in expected_pool)
        seen = F.scaled_dot_product_attention(
            q[i][:, None].float(), keys, values, enable_gqa=True, scale=size**-0.5
        )
        torch.testing.assert_close(out[i].float(), seen.flatten(), atol=0.03, rtol=0.03)
    torch.testing.assert_close(pool, expected_pool, atol=0.03, rtol=0.02)


@pytest.mark.parametrize("temperature", [1.0, 0.7, 0.0])
def test_the_next_token_is_that_of_plain_torch(temperature: float) -> None:
    torch.manual_seed(0)
    n, v, m = 64, 49152, 5
    logits, state = (
        2 * torch.randn(n, v, device=DEVICE),
        _State(n + 1, StateSize(m, 0, 0, 4), DEVICE),
    )
    state.uniforms_sm.uniform_()
    state.done_s[1:], state.max_tokens_s[:] = False, 3
    state.n_sampled_s[:] = torch.arange(n + 1, device=DEVICE) % 3
    rows = torch.arange(1, n + 1, device=DEVICE)
    endings = torch.zeros(2, v, dtype=torch.int32, device=DEVICE)
    rows[-1] = 0  # fills up
    place = state.n_sampled_s[rows].masked_fill(state.done_s[rows], m)
    tokens, logprobs, _ = choose(logits, state.uniforms_sm[rows, place], Limits(m, 99, temperature))
    # One token ends a turn at once; another leads to a state in which the next one of them does.
    endings[:, tokens[2]] = ENDED
    endings[0, tokens[3]] = 1
    endings[1, tokens[4]] = ENDED
    state.endings_s[rows[4]] = 1
    before = state.n_sampled_s[rows].clone()
    kernels.pick(logits, rows, state, endings, temperature)
    same = state.ids_sm[rows, place] == tokens
    assert (
        float(same.float().mean()) > 0.96
    )  # sums in another order: u may fall on the other side of an edge
    torch.testing.assert_close(
        state.logprobs_sm[rows, place][same], logprobs[same], atol=1e-4, rtol=0
    )
    assert torch.equal(state.n_sampled_s[rows], before + (rows > 0))
    assert bool(state.done_s[rows[2]])
    assert int(state.endings_s[rows[3]]) == 1
    assert bool(state.done_s[rows[4]])
    assert torch.equal(state.done_s[rows][5:-1], (before + 1 >= 3)[5:-1])


def test_norms_and_gates() -> None:
    torch.manual_seed(0)
    x, y = torch.randn(7, 576, device=DEVICE), torch.randn(7, 576, device=DEVICE, dtype=BF16)
    weight, total = torch.rand(576, device=DEVICE), x + y.float()
    out = kernels.add_norm_(x, y, weight, 1e-5, BF16)
    torch.testing.assert_close(x, total)
    torch.testing.assert_close(out, F.rms_norm(total, (576,), weight, 1e-5).to(BF16))
    gate_up = torch.randn(7, 2 * 1536, device=DEVICE, dtype=BF16)
    gate, up = gate_up.float().chunk(2, -1)
    torch.testing.assert_close(kernels.gate(gate_up), (F.silu(gate) * up).to(BF16))


@pytest.mark.parametrize("dtype", [torch.float32, BF16], ids=["fp32", "bf16"])
@pytest.mark.parametrize("lora", [False, True], ids=["full", "lora"])
@pytest.mark.parametrize("kind", ["Llama", "Qwen2", "Qwen3"])
def test_turns_are_the_models_own_forward(kind: str, lora: bool, dtype: torch.dtype) -> None:
    """Three turns of streams of all lengths that come one after another, before and after an
    update.
    """
    policy = make_policy(kind, lora, dtype)
    sampler = InProcessSampler(policy)
    assert isinstance(sampler._decoder, KernelDecoder)
    for version in range(2):
        draw = np.random.default_rng(version)
        streams = range(100 * version, 100 * version + 19)
        whole = [draw.integers(2, 500, 1 + 7 * (i % 9)).tolist() for i in range(19)]
        news = [list(ids) for ids in whole]
        for _ in range(3):
            check(
                policy,
                sampler,
                whole,
                speak(sampler, list(zip(streams, news, streams, strict=True)), LIMITS),
            )
            news = [draw.integers(2, 500, 1 + i % 4).tolist() for i in range(19)]
            whole = [[*ids, *new] for ids, new in zip(whole, news, strict=True)]
        with torch.no_grad():
            policy.flat.values.mul_(1.1)
        asyncio.run(sampler.load((), version + 1))


def test_frozen_weights_are_not_copied() -> None:
    policy = make_policy("Llama", lora=True, dtype=BF16)
    before = torch.cuda.memory_allocated()
    decoder = InProcessSampler(policy)._decoder
    assert isinstance(decoder, KernelDecoder)
    assert all(fused.storage == "view" for layer in decoder._layers for fused in layer.fused)
    weights = sum(p.nbytes for p in policy.core.parameters())
    assert torch.cuda.memory_allocated() - before < weights / 2


@pytest.mark.parametrize(
    "cut", [{}, {"temperature": 0.0}, {"top_p": 0.8}, {"repetition_penalty": 1.3}]
)
def test_a_graph_says_what_single_launches_say(
    cut: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    policy, limits = make_policy("Llama"), Limits(20, 600, **cut)
    asks = [(i, [2 + i, 5, 9], i) for i in range(11)]
    graphed = speak(InProcessSampler(policy), asks, limits)
    sampler = InProcessSampler(policy)

    class Eager:
        def __init__(self, *given: Any) -> None:
            self.given = given

        def replay(self) -> None:
            state, n, _ = self.given
            sampler.cache.cover(limits.context)
            sampler._decoding._step(state, state.slots_n[:n])

    monkeypatch.setattr(sampler._decoding, "_graph", Eager)
    for one, other in zip(graphed, speak(sampler, asks, limits), strict=True):
        assert one.ids.tolist() == other.ids.tolist()
        np.testing.assert_allclose(one.logprobs, other.logprobs, atol=1e-3)


def test_other_head_sizes_go_through_the_models_own_forward() -> None:
    policy = make_policy("Llama", head_dim=24)
    sampler = InProcessSampler(policy)
    assert not isinstance(sampler._decoder, KernelDecoder)
    whole = [[3 + i, 7, 11] for i in range(5)]
    check(
        policy,
        sampler,
        whole,
        speak(sampler, [(i, list(ids), i) for i, ids in enumerate(whole)], LIMITS),
    )


def test_a_small_cache_on_a_gpu() -> None:
    policy = make_policy("Llama")
    size = InProcessSampler(policy).cache.page_bytes
    sampler = InProcessSampler(policy, cache_bytes=12 * size)
    whole = [list(range(2, 60 + i)) for i in range(9)]
    news = [list(ids) for ids in whole]
    for _ in range(3):
        check(
            policy,
            sampler,
            whole,
            speak(sampler, [(i, ids, i) for i, ids in enumerate(news)], LIMITS),
        )
        news = [[7, 8]] * 9
        whole = [[*ids, 7, 8] for ids in whole]
    assert sampler.cache.n_pages <= 11
