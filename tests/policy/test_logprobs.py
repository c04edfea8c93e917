"""Chunked log-probabilities and entropies against plain log_softmax in float64."""

from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from uptrend.policy.logprobs import Shaping, token_logprobs

Case = tuple[Tensor, Tensor, Tensor, Tensor, Tensor]


def case(tokens: int, words: int, hidden: int, seed: int = 0) -> Case:
    """Hidden states, head, targets, and how much the loss weighs each log-probability and
    entropy.
    """
    g = torch.Generator().manual_seed(seed)
    h = torch.randn(tokens, hidden, generator=g)
    w = torch.randn(words, hidden, generator=g)
    y = torch.randint(words, (tokens,), generator=g)
    a, b = torch.randn(2, tokens, generator=g)
    return h, w, y, a, b


def plainly(h: Tensor, w: Tensor, y: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
    """The definition."""
    logp = torch.log_softmax(h @ w.T / temperature, -1)
    return logp.gather(1, y[:, None])[:, 0], -(logp.exp() * logp).sum(-1)


def with_gradients(fn, parts: Case, temperature: float, dtype: torch.dtype) -> list[Tensor]:  # type: ignore[no-untyped-def]
    """Both outputs, and the gradients of a weighted sum of them."""
    h, w = (x.detach().to(dtype, copy=True).requires_grad_() for x in parts[:2])
    logp, entropy = fn(h, w, parts[2], temperature)
    (parts[3].to(dtype) @ logp + parts[4].to(dtype) @ entropy).backward()
    assert h.grad is not None
    assert w.grad is not None
    return [logp.detach(), entropy.detach(), h.grad, w.grad]


def close(mine: list[Tensor], theirs: list[Tensor]) -> None:
    for a, b in zip(mine, theirs, strict=True):
        torch.testing.assert_close(a.double(), b.double(), atol=2e-5, rtol=2e-5)


@settings(max_examples=25, deadline=None)
@given(
    tokens=st.integers(1, 17),
    words=st.integers(2, 60),
    hidden=st.integers(1, 24),
    temperature=st.sampled_from([0.3, 0.7, 1.0, 1.7]),
    seed=st.integers(0, 1000),
)
def test_values_and_gradients_are_the_definition(
    tokens: int, words: int, hidden: int, temperature: float, seed: int
) -> None:
    parts = case(tokens, words, hidden, seed)
    mine = with_gradients(token_logprobs, parts, temperature, torch.float32)
    close(mine, with_gradients(plainly, parts, temperature, torch.float64))


@pytest.mark.parametrize("penalty", [1.0, 1.6])
@pytest.mark.parametrize("kept", [0, 3])
@pytest.mark.parametrize("chunk", [31 * 2, 1 << 26])
def test_a_changed_distribution_has_the_values_and_gradients_of_its_definition(
    penalty: float, kept: int, chunk: int
) -> None:
    parts = case(12, 31, 8, seed=4)
    targets = parts[2]
    g = torch.Generator().manual_seed(5)
    contexts, places = (
        torch.randint(31, (3, 9), generator=g),
        torch.randint(1, 10, (12,), generator=g),
    )
    lines = torch.arange(12) % 3
    support = (
        torch.cat([targets[:, None], torch.randint(31, (12, kept), generator=g)], 1)
        if kept
        else None
    )
    seen = Shaping(support, penalty, contexts, lines, places) if penalty != 1 else Shaping(support)

    def slowly(h: Tensor, w: Tensor, y: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
        logprobs, entropies = [], []
        for m, token in enumerate(y.tolist()):
            z = w @ h[m]
            if penalty != 1:
                for v in set(contexts[lines[m], : places[m]].tolist()):
                    z = torch.cat(
                        [z[:v], (z[v] / penalty if z[v] > 0 else z[v] * penalty)[None], z[v + 1 :]]
                    )
            ids = sorted(set(support[m].tolist())) if support is not None else list(range(31))
            logp = torch.log_softmax(z[ids] / temperature, -1)
            logprobs.append(logp[ids.index(token)])
            entropies.append(-(logp.exp() * logp).sum())
        return torch.stack(logprobs), torch.stack(entropies)

    mine = with_gradients(
        partial(token_logprobs, chunk=chunk, shaping=seen), parts, 0.7, torch.float32
    )
    close(mine, with_gradients(slowly, parts, 0.7, torch.float64))


@pytest.mark.parametrize("rows", [1, 3, 7, 40])
def test_chunks_change_nothing(rows: int) -> None:
    parts = case(20, 31, 8)
    whole = with_gradients(token_logprobs, parts, 0.7, torch.float32)
    chunked = partial(token_logprobs, chunk=rows * 31)
    close(with_gradients(chunked, parts, 0.7, torch.float32), whole)


@pytest.mark.parametrize("output", [0, 1])
def test_each_output_has_its_own_gradient(output: int) -> None:
    h, w, y, a, _ = case(9, 13, 5)
    grads = []
    for fn, dtype in ((token_logprobs, torch.float32), (plainly, torch.float64)):
        x = h.to(dtype, copy=True).requires_grad_()
        (fn(x, w.to(dtype), y, 0.9)[output] @ a.to(dtype)).backward()
        grads.append(x.grad)
    close(grads[:1], grads[1:])


def test_large_logits_do_not_overflow() -> None:
    h, w, y, a, b = case(6, 11, 4)
    parts = (1e3 * h, w, y, a, b)
    mine = with_gradients(token_logprobs, parts, 0.5, torch.float32)
    assert all(x.isfinite().all() for x in mine)
    torch.testing.assert_close(
        mine[0].double(), plainly(1e3 * h.double(), w.double(), y, 0.5)[0], rtol=1e-5, atol=1e-2
    )


def test_in_bf16_arithmetic_sums_are_still_fp32() -> None:
    parts = case(12, 50, 16)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        mine = with_gradients(token_logprobs, parts, 1.0, torch.float32)
    exact = with_gradients(plainly, parts, 1.0, torch.float64)
    assert {x.dtype for x in mine} == {torch.float32}
    for a, b in zip(mine, exact, strict=True):
        assert float((a - b).norm() / b.norm()) < 0.03
    total = torch.stack(
        [token_logprobs(parts[0][:1], parts[1], torch.tensor([v]), 1.0)[0] for v in range(50)]
    )
    assert float(total.exp().sum()) == pytest.approx(1.0, abs=1e-5)
