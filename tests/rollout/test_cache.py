"""Pages of the cache: shared, freed, taken from streams that wait, and never more than the
budget.
"""

import asyncio
from pathlib import Path

import pytest
from test_inprocess import same

from models import encode, make_policy
from talk import PrefillCounter, speak
from uptrend.policy.policy import Policy
from uptrend.records import ModelError
from uptrend.rollout.cache import LOADS_BEFORE_SHRINKING
from uptrend.rollout.inprocess import InProcessSampler
from uptrend.rollout.sampler import Limits

LIMITS = Limits(8, 400)


@pytest.fixture(scope="module")
def policy(llama_folder: Path) -> Policy:
    return make_policy(llama_folder)


def with_pages(policy: Policy, count: int) -> PrefillCounter:
    return PrefillCounter(
        policy, cache_bytes=(count + 1) * InProcessSampler(policy).cache.page_bytes
    )


def test_a_long_prompt_is_shared_and_freed(policy: Policy) -> None:
    sampler, prompt = PrefillCounter(policy), (encode(policy, "What is this? ") * 30)[: 9 * 32 + 5]
    together = speak(sampler, [(i, prompt, i) for i in range(6)], LIMITS)
    assert (
        sampler.cache.n_used_pages == 9 + 6
    )  # the pages that it fills once, the last one for each
    assert sampler.prefilled == len(prompt)
    for i, said in enumerate(together):
        assert same(said, speak(InProcessSampler(policy), [(0, prompt, i)], LIMITS)[0])
    for i in range(5):
        sampler.release(i)
    assert sampler.cache.n_used_pages == 9 + 1
    sampler.release(5)
    assert sampler.cache.n_used_pages == 0


def test_many_turns_leave_nothing_behind(policy: Policy) -> None:
    sampler, prompt = InProcessSampler(policy), encode(policy, "Why? " * 3)
    for turn in range(6):
        speak(
            sampler,
            [(i, prompt if turn == 0 else prompt[: 3 * i + 1], i) for i in range(12)],
            LIMITS,
        )
    tokens = [len(stream.ids) - 1 for stream in sampler._streams.values()]
    assert sampler.cache.n_used_pages == sum(map(sampler.cache.pages_for, tokens))
    for i in range(12):
        sampler.release(i)
    assert (sampler.cache.n_used_pages, len(sampler.cache._free)) == (0, sampler.cache.n_pages)


@pytest.mark.parametrize("pages", [3, 7])
def test_a_small_cache_says_the_same(policy: Policy, pages: int) -> None:
    """Six streams of two pages each: those that wait lose theirs, and turns wait for those that
    run.
    """
    small, large = with_pages(policy, pages), PrefillCounter(policy)
    prompts = [encode(policy, f"{i}. What is it that this is? ") for i in range(6)]
    for turn in range(3):
        asks = [(i, prompts[i] if turn == 0 else prompts[i][:5], i) for i in range(6)]
        for one, other in zip(speak(small, asks, LIMITS), speak(large, asks, LIMITS), strict=True):
            assert same(one, other)
        assert small.cache.n_used_pages <= small.cache.n_pages <= pages
    assert large.cache.n_used_pages > pages
    assert small.prefilled > large.prefilled


def test_a_turn_that_can_never_fit_says_what_to_lower(policy: Policy) -> None:
    sampler, prompt = with_pages(policy, 3), encode(policy, "Why? ")

    async def both() -> list[object]:
        asks = (sampler.extend(i, prompt * (1 + 24 * i), LIMITS, 0) for i in range(2))
        return list(await asyncio.gather(*asks, return_exceptions=True))

    fine, error = asyncio.run(both())
    assert len(fine.ids) == 8  # type: ignore[attr-defined]
    assert isinstance(error, ModelError)
    assert "GiB" in str(error)
    assert "sampling.context or sampling.max_tokens" in str(error)


def test_a_turn_joins_while_another_runs(policy: Policy) -> None:
    """Of two streams one ends at once, at its context's end, and has two more turns before the
    other one is done.
    """
    sampler, order = InProcessSampler(policy), list[str]()
    prompt = encode(policy, "Why? ")
    limits = Limits(200, len(prompt) + 203)

    async def long() -> None:
        await sampler.extend(0, prompt, limits, 3)
        order.append("long")

    async def short() -> None:
        await sampler.extend(1, prompt * 41 + prompt[:1], limits, 1)
        order.append("short")
        await sampler.extend(1, prompt[:1], limits, 1)
        order.append("again")

    async def both() -> None:
        await asyncio.gather(long(), short())

    policy_stops, sampler._endings._stop_ids = sampler._endings._stop_ids, set()
    asyncio.run(both())
    sampler._endings._stop_ids = policy_stops
    assert order == ["short", "again", "long"]


def test_the_pool_shrinks_when_little_of_it_is_used(policy: Policy) -> None:
    sampler, prompt = InProcessSampler(policy), encode(policy, "Why? ")
    speak(sampler, [(i, prompt, i) for i in range(100)], LIMITS)
    for i in range(100):
        sampler.release(i)
    large = sampler.cache.n_pages
    for version in range(LOADS_BEFORE_SHRINKING + 2):
        asyncio.run(sampler.load((), version))
        speak(sampler, [(0, prompt, 0)], LIMITS)
    assert large >= 100
    assert sampler.cache.n_pages < 10
    assert same(
        speak(sampler, [(1, prompt, 5)], LIMITS)[0],
        speak(InProcessSampler(policy), [(1, prompt, 5)], LIMITS)[0],
    )
