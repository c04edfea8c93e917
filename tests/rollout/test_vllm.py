"""The sampler on vLLM servers: a real one where vLLM is installed, and a small stand-in for what
can go wrong.
"""

import asyncio
import contextlib
import gc
import json
import os
import re
import signal
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from models import encode, full_logits, make_policy, write_model
from served import ROOT, SmallVllm, is_alive, serve_tiny, servers
from uptrend.config import Sampling, load_config
from uptrend.doctor.probes import run_probes
from uptrend.doctor.probes.bench import Bench
from uptrend.policy.policy import Policy
from uptrend.records import ConfigError, Ending, ModelError, ServerWarning
from uptrend.records.schema import rollouts_of
from uptrend.rollout.http import HttpClient
from uptrend.rollout.inprocess import InProcessSampler
from uptrend.rollout.sampler import Extension, Limits, Sampler
from uptrend.rollout.vllm import VllmSampler
from uptrend.runner.prepare import prepare
from uptrend.runner.runs import train_recipe
from uptrend.tasks import event_loop
from uptrend.training.components import choose_components
from uptrend.training.ranks import OneRank

LIMITS = Limits(max_tokens=6, context=200, temperature=0.7)
PROMPTS = ["12+30=", "7-19=", "8*9=", "40+2="]


class Quick(VllmSampler):
    """Waits less than a person would."""

    turn_timeout_s = 30.0
    token_timeout_s = 0.0
    load_timeout_s = 30.0
    outage_timeout_s = 10.0
    poll_s = 0.1


def sampler_of(
    policy: Policy, *urls: str, kind: type[VllmSampler] = VllmSampler, context: int = 512
) -> VllmSampler:
    return kind(policy, Sampling(engine="vllm", servers=urls, context=context))


def say(
    sampler: Sampler, prompts: Sequence[Sequence[int]], limits: Limits = LIMITS, seed: int = 0
) -> list[Extension]:
    """Let a sampler say one turn after each prompt, all at once."""

    async def one(stream: int, ids: Sequence[int]) -> Extension:
        try:
            return await sampler.extend(stream, ids, limits, seed + stream)
        finally:
            sampler.release(stream)

    return event_loop.run(event_loop.together(one(n, ids) for n, ids in enumerate(prompts)))


def gaps(
    policy: Policy, prompts: Sequence[Sequence[int]], said: Sequence[Extension], temperature: float
) -> Any:
    """Learner's log-probabilities less the sampler's, of every sampled token."""
    found = []
    for ids, each in zip(prompts, said, strict=True):
        whole = [*ids, *each.ids.tolist()]
        logprobs = torch.log_softmax(
            full_logits(policy, whole)[len(ids) - 1 : -1] / (temperature or 1.0), -1
        )
        found.append(
            logprobs.gather(1, torch.tensor(whole[len(ids) :])[:, None])[:, 0].numpy()
            - each.logprobs
        )
    return np.concatenate(found)


def perturb(policy: Policy, strength: float, seed: int = 0) -> None:
    noise = torch.Generator().manual_seed(seed)
    values = policy.flat.values.data
    values.add_(strength * torch.randn(values.shape, generator=noise))


def load(sampler: Sampler, policy: Policy, version: int) -> None:
    event_loop.run(sampler.load(policy.named(), version))


# --- a real server


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, int]]:
    """One server for adapters and for whole weights."""
    with serve_tiny(
        tmp_path_factory.mktemp("vllm"),
        "--set",
        "model.lora={r=8}",
        "--set",
        "sampling.context=512",
    ) as it:
        yield it


@pytest.fixture
def vllm(server: tuple[str, int], tiny_folder: str) -> tuple[str, int]:
    """The server with the weights that it began with."""
    weights = {"path": f"{tiny_folder}/model.safetensors", "name": ""}
    asked = json.dumps({"method": "uptrend_load", "kwargs": weights}).encode()
    urllib.request.urlopen(f"{server[0]}/collective_rpc", asked).close()
    return server


KINDS = pytest.mark.parametrize("lora", [False, True], ids=["full", "lora"])


@KINDS
@pytest.mark.slow
def test_tokens_are_as_likely_as_the_learner_says(vllm: Any, tiny_folder: str, lora: bool) -> None:
    """At several temperatures, also greedily, and after several turns."""
    policy = make_policy(tiny_folder, lora=lora)
    sampler = sampler_of(policy, vllm[0])
    prompts = [encode(policy, text) for text in PROMPTS * 8]
    for temperature in (1.0, 0.5, 0.0):
        limits = replace(LIMITS, temperature=temperature)
        said = say(sampler, prompts, limits)
        apart = gaps(policy, prompts, said, temperature)
        weights = np.exp(apart.astype(np.float64))
        ess = weights.sum() ** 2 / (len(weights) * (weights**2).sum())
        print(f"\n{lora=} {temperature=}: {len(apart)} tokens, mean {np.abs(apart).mean():.1e}, "
              f"max {np.abs(apart).max():.1e}, ESS {ess:.6f}")  # fmt: skip
        assert np.abs(apart).max() < 1e-3
        again = say(sampler, prompts, limits)
        assert [e.ids.tolist() for e in said] == [e.ids.tolist() for e in again]
    other = say(sampler, prompts, replace(LIMITS, temperature=1.0), seed=1000)
    assert [e.ids.tolist() for e in other] != [e.ids.tolist() for e in said]


@pytest.mark.slow
def test_more_prompts_than_a_server_reads_at_once(vllm: Any, tiny_folder: str) -> None:
    """A CPU's vLLM ended where it read one with a seed in parts."""
    policy = make_policy(tiny_folder)
    prompts = [encode(policy, f"{n}+" * 100) for n in range(100, 132)]
    said = say(sampler_of(policy, vllm[0]), prompts, Limits(2, 500))
    assert sum(map(len, prompts)) > 8192
    assert np.abs(gaps(policy, prompts, said, 1.0)).max() < 1e-3


@pytest.mark.slow
def test_turns_end_as_in_this_process(vllm: Any, tiny_folder: str) -> None:
    """By the stop token, a text, length or context, in one turn and in two: greedily, so that
    tokens are the same.
    """
    policy = make_policy(tiny_folder)
    samplers: list[Sampler] = [sampler_of(policy, vllm[0]), InProcessSampler(policy)]
    endings = set()
    prompts = [encode(policy, text) for text in PROMPTS]
    answer = policy.tokenizer.decode(
        say(samplers[1], prompts[:1], replace(LIMITS, temperature=0.0))[0].ids
    )
    for stop, most, context in [
        ((), 6, 200),
        ((answer[0],), 6, 200),
        ((answer[:2],), 6, 200),
        ((), 1, 200),
        ((), 6, 8),
    ]:
        limits = Limits(most, context, temperature=0.0, stop=stop)

        async def converse(sampler: Sampler, n: int, limits: Limits = limits) -> list[Extension]:
            turns = [await sampler.extend(n, prompts[n], limits, n)]
            turns.append(await sampler.extend(n, prompts[n], limits, n))
            sampler.release(n)
            return turns

        there, here = (
            event_loop.run(event_loop.together(converse(s, n) for n in range(4))) for s in samplers
        )
        for a, b in zip(chain(*there), chain(*here), strict=True):
            assert (a.ids.tolist(), a.ended) == (b.ids.tolist(), b.ended)
            np.testing.assert_allclose(a.logprobs, b.logprobs, atol=1e-3)
            endings.add(a.ended)
    assert endings == {Ending.STOP_TOKEN, Ending.STOP_TEXT, Ending.LENGTH, Ending.CONTEXT_FULL}


@KINDS
@pytest.mark.slow
def test_servers_follow_the_learner(vllm: Any, tiny_folder: str, lora: bool) -> None:
    """Each token carries the version that said it, and a turn that runs during a load has one
    version.
    """
    policy = make_policy(tiny_folder, lora=lora)
    sampler, prompts = sampler_of(policy, vllm[0]), [encode(policy, text) for text in PROMPTS]
    before, seconds = policy.flat.values.data.clone(), []
    for version in (1, 2, 3):
        was = policy.flat.values.data.clone()
        perturb(policy, 0.02, version)
        began = time.perf_counter()
        load(sampler, policy, version)
        seconds.append(time.perf_counter() - began)
        said = say(sampler, prompts)
        assert np.abs(gaps(policy, prompts, said, 0.7)).max() < 1e-3
        assert {int(v) for e in said for v in e.versions} == {version}
        policy.flat.values.data.copy_(was)
        assert (
            np.abs(gaps(policy, prompts, said, 0.7)).max() > 0.01
        )  # which is not what it was before
    policy.flat.values.data.copy_(before)
    print(f"\n{lora=}: {min(seconds):.2f} s per load")

    async def both() -> tuple[Extension, Extension]:
        long = replace(LIMITS, max_tokens=150, temperature=1.0)
        turn = asyncio.create_task(sampler.extend(0, encode(policy, "a"), long, 0))
        await asyncio.sleep(0.05)
        loading = asyncio.create_task(sampler.load(policy.named(), 4))
        await asyncio.sleep(0)
        later = await sampler.extend(1, prompts[0], LIMITS, 0)
        await loading
        return await turn, later

    turn, later = event_loop.run(both())
    assert (set(turn.versions.tolist()), set(later.versions.tolist())) == ({3}, {4})


class BuiltInReload(VllmSampler):
    """Loads by vLLM's own `reload_weights`, which leaves a tied head as it was on a CPU."""

    async def _call(self, server: Any, path: str, body: Any = None, timeout_s: float = 30.0) -> Any:
        if body and body.get("method") == "uptrend_load":
            self.named = body["kwargs"]["name"]
            place = Path(body["kwargs"]["path"])
            folder = place.with_suffix("")
            folder.mkdir()
            place.rename(folder / "model.safetensors")
            return await super()._call(
                server,
                path,
                {"method": "reload_weights", "kwargs": {"weights_path": str(folder)}},
                timeout_s,
            )
        if body and body.get("method") == "uptrend_name":
            return {"results": [self.named]}
        return await super()._call(server, path, body, timeout_s)


@pytest.mark.slow
def test_a_tied_head_that_stays_behind_is_noticed(vllm: Any, tiny_folder: str) -> None:
    policy = make_policy(tiny_folder)
    perturb(policy, 0.02)
    with pytest.raises(
        ModelError, match=r"log-probabilities are .* nats from the learner's after version 1 "
    ):
        load(sampler_of(policy, vllm[0], kind=BuiltInReload), policy, 1)
    load(sampler_of(policy, vllm[0]), policy, 1)  # and put right


class KeepsCache(VllmSampler):
    """Leaves what servers have read under old weights."""

    async def _call(self, server: Any, path: str, body: Any = None, timeout_s: float = 30.0) -> Any:
        return (
            {"success": True}
            if path == "/reset_prefix_cache"
            else await super()._call(server, path, body, timeout_s)
        )


class LoadsNothing(VllmSampler):
    """Gives new weights a name alone."""

    max_fp32_gap_nats = 100.0
    max_bf16_gap_nats = 100.0

    def _write(self, weights: Any, version: int) -> Any:
        if getattr(self, "first", None) is None:
            self.first = [(key, w.clone()) for key, w in weights]
        return super()._write(self.first, version)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "lora", "found"),
    [
        (VllmSampler, False, None),
        (VllmSampler, True, None),
        (KeepsCache, False, "sync.prefix-cache"),
        (LoadsNothing, False, "sync.stale-weights"),
    ],
)
def test_the_doctor_probes_servers(
    vllm: Any, tiny_folder: str, kind: type[VllmSampler], lora: bool, found: str | None
) -> None:
    """On prompts that are longer than a block of the prefix cache, which on a CPU has 128
    tokens.
    """
    recipe = {
        "model": {"name": tiny_folder, **({"lora": {"r": 4}} if lora else {})},
        "tasks": {"name": "letters:Letters", "train": 30, "times": 60},
        "eval": {"name": "letters:Letters", "tasks": 4, "times": 60},
        "sampling": {
            "groups": 4,
            "size": 4,
            "max_tokens": 6,
            "engine": "vllm",
            "servers": [vllm[0]],
            "context": 400,
        },
        "compute": {"threads": 1, "device": "cpu"},
    }
    p = prepare(load_config(recipe))
    components = replace(p.components, sampler=lambda policy: kind(policy, p.config.sampling))
    results = list(
        run_probes(Bench(replace(p, components=components), 4), ["agreement", "synchronize"])
    )
    print(*(f"\n{r.name}: {r.figure}" for r in results))
    assert not any(r.error for r in results)
    assert [f.id for r in results for f in r.findings] == ([found] if found else [])


@KINDS
@pytest.mark.slow
def test_a_recipe_trains_on_a_server(vllm: Any, tmp_path: Path, lora: bool) -> None:
    sets = {
        "sampling.engine": "vllm",
        "sampling.servers": [vllm[0]],
        "sampling.context": 512,
        "learning.steps": 3,
    }
    sets |= {"sampling.groups": 8, "sampling.size": 8, "eval.tasks": 20, "learning.warmup": 0}
    sets |= {"model.lora": {"r": 8, "alpha": 16}, "learning.lr": 2e-3} if lora else {}
    config = load_config(ROOT / "recipes" / "tiny.toml", sets)
    run = train_recipe(config, runs=tmp_path, name="served", preflight=True)
    assert run.status == "finished"
    assert max(line["sampler/gap/max"] for line in run.metric_lines) < 1e-3
    for step in (1, 2, 3):
        versions = {
            int(v)
            for r in rollouts_of(run.rollouts(step))
            for s in r.sequences
            for v in s.versions[s.sampled]
        }
        assert versions == {step - 1}


@pytest.mark.slow
def test_a_server_that_is_killed_comes_back_with_the_current_weights(
    vllm: Any, tiny_folder: str
) -> None:
    """Last of this module: what serves it is started again."""
    url, pid = vllm
    policy = make_policy(tiny_folder)
    sampler, prompts = sampler_of(policy, url), [encode(policy, text) for text in PROMPTS * 4]
    perturb(policy, 0.3)  # it then says anything, at length
    load(sampler, policy, 5)
    before = servers(pid)

    async def killed() -> list[Extension]:
        long = Limits(max_tokens=400, context=500)
        turns = [
            asyncio.create_task(sampler.extend(n, ids, long, n)) for n, ids in enumerate(prompts)
        ]
        await asyncio.sleep(0.3)
        assert not all(turn.done() for turn in turns)
        os.killpg(before[0], signal.SIGKILL)
        return [await turn for turn in turns]

    said = event_loop.run(killed())
    assert len(before) == len(servers(pid)) == 1
    assert before != servers(pid)
    assert {int(v) for e in said for v in e.versions} == {5}
    assert np.abs(gaps(policy, prompts, said, 1.0)).max() < 1e-3


def group_of(leader: int) -> list[int]:
    """Numbers of the processes of a group."""
    pids = [int(folder.name) for folder in Path("/proc").iterdir() if folder.name.isdigit()]
    return [pid for pid in pids if is_alive(pid) and os.getpgid(pid) == leader]


def status(url: str, method: str, key: str = "") -> int:
    headers = {
        "Content-Type": "application/json",
        **({"Authorization": f"Bearer {key}"} if key else {}),
    }
    data = b"{}" if method in ("POST", "PUT") else None
    try:
        with urllib.request.urlopen(
            urllib.request.Request(url, data, headers, method=method), timeout=60
        ) as reply:
            return int(reply.status)
    except urllib.error.HTTPError as error:
        return error.code


@pytest.mark.slow
def test_a_server_for_other_machines_asks_for_its_key_and_ends_with_its_supervisor(
    tmp_path: Path, tiny_folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On every path that vLLM itself lists in its log, with development endpoints and those for
    adapters.
    """
    monkeypatch.setenv("VLLM_API_KEY", "correct-horse")
    sets = ("--set", "model.lora={r=8}", "--set", "sampling.context=512")
    with serve_tiny(tmp_path, *sets, "--host", "0.0.0.0", code=-signal.SIGKILL) as (url, pid):
        (log,) = tmp_path.glob("vllm/*.log")
        routes = re.findall(r"Route: (\S+), Methods: (.*)", log.read_text())
        assert {"/collective_rpc", "/update_weights", "/v1/load_lora_adapter"} <= {
            path for path, _ in routes
        }
        without = {
            (path, method): status(url + path, method)
            for path, methods in routes
            for method in methods.split(", ")
        }
        assert {place for place, code in without.items() if code != 401} == {("/health", "GET")}
        assert status(f"{url}/is_sleeping", "GET", "correct-horse") == 200
        for lora in (False, True):
            policy = make_policy(tiny_folder, lora=lora)
            sampler = sampler_of(policy, url)
            load(sampler, policy, 1)
            prompts = [encode(policy, text) for text in PROMPTS]
            assert (
                np.abs(gaps(policy, prompts, say(sampler, prompts), LIMITS.temperature)).max()
                < 1e-3
            )
            if not lora:  # adapters need the weights that it began with
                weights = {"path": f"{tiny_folder}/model.safetensors", "name": ""}
                asked = {"method": "uptrend_load", "kwargs": weights}
                event_loop.run(HttpClient("VLLM_API_KEY").exchange(f"{url}/collective_rpc", asked))
        (server,) = servers(pid)
        group = group_of(server)
        assert len(group) > 1  # with its engine
        os.kill(pid, signal.SIGKILL)
        try:
            limit = time.monotonic() + 120
            while any(map(is_alive, group)):
                assert time.monotonic() < limit
                time.sleep(0.1)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(server, signal.SIGKILL)


# --- a stand-in that fails


@pytest.fixture
def small(llama_folder: Path) -> Iterator[Callable[..., SmallVllm]]:
    """Makes small servers of a model of random weights."""
    with contextlib.ExitStack() as stack:

        def make(folder: Path = llama_folder, **options: Any) -> SmallVllm:
            server = SmallVllm(str(folder), **options)
            stack.callback(server.server_close)
            stack.callback(server.shutdown)
            return server

        yield make


SHORT = Limits(max_tokens=3, context=100)


@KINDS
def test_a_server_is_asked_for_plain_sampling_of_the_current_weights(
    small: Any, llama_folder: Path, lora: bool
) -> None:
    """Never for the base beside adapters, whose rows vLLM then gets wrong."""
    server, policy = small(lora=lora), make_policy(llama_folder, lora=lora)
    sampler, prompts = sampler_of(policy, server.url, kind=Quick), [[5, 6], [7, 8, 9]]
    for version in (1, 2):
        perturb(policy, 0.1, version)
        load(sampler, policy, version)
        said = say(sampler, prompts, SHORT)
        assert np.abs(gaps(policy, prompts, said, 1.0)).max() < 1e-3
    turns, loads = server.turns(), [path for path, _ in server.asked]
    assert len(turns) == 4
    assert len({turn["model"] for turn in turns}) == (2 if lora else 1)
    assert all(
        turn["seed"] < 2**31 and turn["stop_token_ids"] == list(policy.stop_ids) for turn in turns
    )
    assert all(
        (turn["top_p"], turn["top_k"], turn["min_p"], turn["repetition_penalty"]) == (1, 0, 0, 1)
        for turn in turns
    )
    assert loads.count("/reset_prefix_cache") == 2
    assert len(server.adapters) == lora


@KINDS
def test_every_request_brings_the_key(
    small: Any, llama_folder: Path, monkeypatch: pytest.MonkeyPatch, lora: bool
) -> None:
    server, policy = small(lora=lora), make_policy(llama_folder, lora=lora)
    server.key = "correct-horse"
    perturb(policy, 0.1)
    for key, state in ((None, "is not set"), ("other", "holds another key than the server's")):
        monkeypatch.setenv("VLLM_API_KEY", key) if key else monkeypatch.delenv(
            "VLLM_API_KEY", raising=False
        )
        with pytest.raises(
            ModelError, match=f"refuses /v1/models: the environment variable VLLM_API_KEY {state}"
        ):
            load(sampler_of(policy, server.url, kind=Quick), policy, 1)
    monkeypatch.setenv("VLLM_API_KEY", "correct-horse")
    sampler = sampler_of(policy, server.url, kind=Quick)
    for version in (1, 2):
        load(sampler, policy, version)
        say(sampler, [[5, 6]], SHORT)
    assert len(server.turns()) == 2


def test_a_rollout_has_a_seed_for_each_turn(small: Any, llama_folder: Path) -> None:
    server, policy = small(), make_policy(llama_folder)
    sampler = sampler_of(policy, server.url, kind=Quick)

    async def turns() -> None:
        for stream, seed in ((0, 1), (1, 2), (2, 1)):
            for _ in range(2):
                await sampler.extend(stream, [5, 6], SHORT, seed)

    event_loop.run(turns())
    a, b, c, d, *again = [turn["seed"] for turn in server.turns()]
    assert len({a, b, c, d}) == 4
    assert again == [a, b]


@pytest.mark.parametrize(
    ("fault", "says"),
    [
        (
            "dead",
            "does not answer: the connection ended before the reply did. Start it with `uptrend models serve",
        ),
        ("short", "takes 64 tokens, and sampling.context = 512. Start it with --max-model-len 512"),
        (
            "tokenizer",
            "serves small with another tokenizer than the model that learns: token 0 of a text is [",
        ),
        (
            "raw",
            "gives log-probabilities that ignore the temperature. Start it with --logprobs-mode processed_logprobs",
        ),
        ("same name", "took version 1 of the weights and still has those that it began with"),
        ("no effect", "serves small, whose log-probabilities are "),
        (
            "/collective_rpc",
            "can't be given weights: /collective_rpc: 500 no. Start it with `uptrend models serve",
        ),
    ],
)
def test_a_server_that_can_t_be_used_is_refused_at_once(
    small: Any, llama_folder: Path, fault: str, says: str
) -> None:
    server, policy = small(), make_policy(llama_folder)
    server.fault = fault
    perturb(policy, 0.1)
    with pytest.raises(ModelError) as caught:
        load(sampler_of(policy, server.url, kind=Quick), policy, 1)
    print(f"\n{fault}: {caught.value}")
    assert f"The vLLM server {server.url} {says}" in str(caught.value)


def test_adapters_need_the_base_as_it_was(small: Any, llama_folder: Path) -> None:
    server, policy = small(lora=True), make_policy(llama_folder, lora=True)
    server.name = "uptrend-of-another-run"
    with pytest.raises(
        ModelError, match=r"has the weights of a run without adapters\. Start it again"
    ):
        load(sampler_of(policy, server.url, kind=Quick), policy, 1)


def test_no_server_and_another_model(small: Any, llama_folder: Path, tmp_path: Path) -> None:
    policy = make_policy(llama_folder, lora=True)
    with pytest.raises(
        ModelError, match=r"127\.0\.0\.1:9 does not answer: .*refused.* Start it with"
    ):
        load(sampler_of(policy, "http://127.0.0.1:9", kind=Quick), policy, 1)
    other = small(write_model(tmp_path / "other", seed=7), lora=True)
    with pytest.raises(
        ModelError, match=r"serves small, whose log-probabilities are .* it is another model"
    ):
        load(sampler_of(policy, other.url, kind=Quick), policy, 1)


@pytest.mark.parametrize("fault", ["dead", "hangs", "aborts", "/v1/completions"])
def test_turns_of_a_server_that_fails_go_to_another(
    small: Any, llama_folder: Path, fault: str
) -> None:
    """They are sampled there from the start, with the same seeds; it comes back once it is well."""
    first, second, policy = small(), small(), make_policy(llama_folder)
    sampler = sampler_of(policy, first.url, f"{second.url}/v1/", kind=Quick)
    prompts = [[5, n] for n in range(8)]
    before = say(sampler, prompts, SHORT)
    assert [len(server.turns()) for server in (first, second)] == [4, 4]
    first.fault, sampler.turn_timeout_s = fault, 3.0
    with pytest.warns(ServerWarning, match=f"{first.url} is out .* its turns go to another"):
        assert [e.ids.tolist() for e in say(sampler, prompts, SHORT)] == [
            e.ids.tolist() for e in before
        ]
    assert len(second.turns()) == 12
    load(sampler, policy, 3)  # the one that is out gets them later
    first.fault, count = "", len(first.turns())
    for _ in range(100):
        assert {int(v) for e in say(sampler, prompts, SHORT) for v in e.versions} == {3}
        if len(first.turns()) > count:
            break
        time.sleep(0.2)
    assert len(first.turns()) - count == 4
    assert first.name == second.name


@KINDS
def test_a_server_that_was_restarted_while_idle_gets_the_weights_again(
    small: Any, llama_folder: Path, lora: bool
) -> None:
    server, policy = small(lora=lora), make_policy(llama_folder, lora=lora)
    perturb(policy, 0.1)
    sampler, prompts = sampler_of(policy, server.url, kind=Quick), [[5, 6], [7, 8]]
    load(sampler, policy, 1)
    say(sampler, prompts, SHORT)
    server.name, server.adapters = "", []
    server.policy.flat.values.data.zero_()
    said = say(sampler, prompts, SHORT)
    assert np.abs(gaps(policy, prompts, said, 1.0)).max() < 1e-3


def test_a_server_that_another_run_takes_is_used_no_more(small: Any, llama_folder: Path) -> None:
    server, policy = small(), make_policy(llama_folder)
    mine, other = (sampler_of(policy, server.url, kind=Quick) for _ in range(2))
    load(mine, policy, 1)
    load(other, policy, 1)
    for used in (lambda: say(mine, [[5, 6]], SHORT), lambda: load(mine, policy, 2)):
        with pytest.raises(ModelError, match="each run needs servers of its own"):
            used()


def test_all_servers_out_is_an_error_after_a_while(small: Any, llama_folder: Path) -> None:
    servers, policy = [small(), small()], make_policy(llama_folder)
    sampler = sampler_of(policy, *(server.url for server in servers), kind=Quick)
    load(sampler, policy, 1)
    sampler.outage_timeout_s = 1.5
    sampler.turn_timeout_s = sampler.load_timeout_s = 0.5
    servers[0].fault, servers[1].fault, began = "dead", "hangs", time.perf_counter()
    with pytest.raises(ModelError) as caught:
        say(sampler, [[5, 6]], SHORT)
    print(f"\nall out: {caught.value}")
    assert "No vLLM server has answered for 1.5 s." in str(caught.value)
    assert all(server.url in str(caught.value) for server in servers)
    assert time.perf_counter() - began < 60


def test_a_turn_that_is_cancelled_lets_weights_come(small: Any, llama_folder: Path) -> None:
    server, policy = small(), make_policy(llama_folder)
    sampler = sampler_of(policy, server.url, kind=Quick)
    sampler.turn_timeout_s = 60.0
    load(sampler, policy, 1)

    async def cancelled() -> None:
        server.fault = "hangs"
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(0.2):
                await sampler.extend(0, [5, 6], SHORT, 0)
        server.fault = ""
        await sampler.load(policy.named(), 2)

    event_loop.run(cancelled())
    assert {int(v) for e in say(sampler, [[5, 6]], SHORT) for v in e.versions} == {2}


def test_weights_that_a_killed_process_left_are_removed(
    llama_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of one that lives stay, and those of this one go with it."""
    monkeypatch.setenv("UPTREND_WEIGHTS", str(tmp_path))
    policy = make_policy(llama_folder)
    mine = sampler_of(policy, "http://127.0.0.1:9")
    (living,) = tmp_path.iterdir()
    dead = tmp_path / "uptrend-weights-dead"
    dead.mkdir()
    (dead / "weights.safetensors").write_bytes(b"")
    for folder in (dead, living):
        os.utime(folder, (0, 0))
    another = sampler_of(policy, "http://127.0.0.1:9")
    assert living.exists()
    assert not dead.exists()
    assert len(list(tmp_path.iterdir())) == 2
    del mine, another
    gc.collect()
    assert list(tmp_path.iterdir()) == []
    monkeypatch.setenv("UPTREND_WEIGHTS", str(tmp_path / "nowhere"))
    with pytest.raises(ModelError, match=r"No folder for weights can be made in .*nowhere"):
        sampler_of(policy, "http://127.0.0.1:9")


def test_other_ranks_take_part_in_gathering_weights_alone() -> None:
    config = load_config({"sampling": {"engine": "vllm"}})
    ranks = OneRank()
    ranks.rank = 1
    sampler, seen = choose_components(config, ranks).sampler(None), []  # type: ignore[arg-type]

    def named() -> Iterable[tuple[str, torch.Tensor]]:
        for name in "ab":
            seen.append(name)
            yield name, torch.zeros(1)

    event_loop.run(sampler.load(named(), 1))
    assert seen == ["a", "b"]


@pytest.mark.parametrize("shaping", ["top_p=0.9", "top_k=5", "min_p=0.1", "repetition_penalty=1.1"])
def test_what_the_learner_could_not_follow_is_refused(shaping: str) -> None:
    with pytest.raises(ConfigError, match=r"sampling.engine = 'vllm' needs sampling.top_p = 1"):
        load_config({"sampling": {"engine": "vllm"}}, [f"sampling.{shaping}"])
