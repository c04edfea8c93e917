"""vLLM servers as a sampler: tokens go in, tokens with their log-probabilities come out.

A turn sends its whole stream, of which the server's prefix cache knows most. So any server can take
any turn: where one dies or hangs, its turns go to another, and it comes back once it is healthy and
has the current weights.

New weights are written to a file that the servers can read: an adapter, or all weights. They wait
until the turns that run have ended, so that each turn has one version, and go to every server under
a name that nothing else has. A server is asked for that name after a load, and whenever it turns
from idle to busy, since it may have been restarted. While it is busy, a restart would break the
connections.

Nothing about a server is believed: each time it got weights, log-probabilities of a few tokens are
compared with the learner's. This also finds another model, and log-probabilities that ignore the
temperature.

n = token of the comparison, v = vocabulary.
"""

import asyncio
import contextlib
import fcntl
import json
import os
import secrets
import shutil
import tempfile
import time
import warnings
import weakref
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

from uptrend.config import Sampling
from uptrend.policy.policy import Policy
from uptrend.records import Ending, ModelError, ServerWarning
from uptrend.rollout.endings import Endings
from uptrend.rollout.http import HttpClient, RequestRefused, error_sentence
from uptrend.rollout.play import derive_seed
from uptrend.rollout.sampler import Extension, Limits
from uptrend.rollout.vllm_supervisor import KEY, SHARED
from uptrend.tasks.event_loop import in_caller, together

# seconds that such a folder has not changed, before it may be taken for a killed process's
ABANDONED = 60.0
START = "Start it with `uptrend models serve RECIPE`."
LOADS = ("/collective_rpc", "/v1/load_lora_adapter")
# Requests at once to one server, which queues more than 256 turns anyway: each takes a file
# descriptor.
AT_ONCE = 256
# What the sampler must not do, whatever the model's own generation config wishes.
PLAIN = {
    "top_p": 1.0,
    "top_k": 0,
    "min_p": 0.0,
    "repetition_penalty": 1.0,
    "ignore_eos": True,
    "logprobs": 0,
    "return_token_ids": True,
    "skip_special_tokens": False,
}
# The tokenizers must agree on this text, and log-probabilities after each of its first tokens.
TEXT = 'What is 12 + 34? The answer is 46, not 47.\n\n{"x": [1]} Ünïcode 東京 <|im_end|></s>'
COMPARED = 16
TEMPERATURE = 0.5  # of the comparison: other than 1, so that one that is ignored shows


class _Out(Exception):  # noqa: N818 (the server's state)
    """A server that does not answer, or can't."""


@dataclass(eq=False)
class _Server:
    url: str
    base: str = ""  # its model's name; empty before it was met
    streams: int = 0  # streams that stay with it
    turns: int = 0  # turns that wait or run there
    is_known: bool = False  # true while its turns prove that it still has the current weights
    problem: str = ""  # why it gets no turns; empty where it works
    watch: asyncio.Task[None] | None = None  # looks after it while it is out
    # one conversation about weights at a time
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    gate: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(AT_ONCE))


@dataclass(eq=False)
class _ServedStream:
    seed: int
    ids: list[int] = field(default_factory=list)  # all its tokens
    turns: int = 0
    server: _Server | None = None


@dataclass(frozen=True, eq=False)
class _Weights:
    name: str  # as servers know them: no other load of any run has it
    version: int
    place: Path  # an adapter's folder, or a file with all weights
    # the learner's, for the comparison; None where there is none to be had
    logits_nv: Tensor | None


class VllmSampler:
    """A sampler that runs on vLLM servers."""

    # seconds for a turn, and more for each token that it may say; then its server is out
    deadline = 300.0, 0.25
    loading = 600.0  # seconds for a server to take weights
    outage = 300.0  # seconds to wait for a server where all are out
    every = 2.0  # seconds between looks at a server that is out
    tries = 8  # servers in a row that may fail at one turn
    # mean distance of log-probabilities, in nats, that rounding explains: of fp32, of bf16 on a GPU
    near = 1e-3, 0.25

    def __init__(self, policy: Policy, sampling: Sampling) -> None:
        self._policy = policy
        self._context = sampling.context
        self._client = HttpClient(KEY)
        self._servers = [_Server(url.rstrip("/").removesuffix("/v1")) for url in sampling.servers]
        self._endings = Endings(
            policy.tokenizer, policy.stop_ids, policy.core.config.vocab_size, policy.device
        )
        self._streams: dict[int, _ServedStream] = {}
        self._weights: _Weights | None = None
        self._token = secrets.token_hex(4)
        self._loads = 0
        self._running = 0
        self._lock = asyncio.Lock()
        self._go = asyncio.Event()
        self._quiet = asyncio.Event()
        self._back = asyncio.Event()
        self._go.set()
        self._folder = _make_folder()
        weakref.finalize(self, shutil.rmtree, self._folder, ignore_errors=True)

    async def extend(self, stream: int, ids: Sequence[int], limits: Limits, seed: int) -> Extension:
        s = self._streams.setdefault(stream, _ServedStream(seed))
        s.ids += ids
        s.turns += 1
        budget = max(0, min(limits.context - len(s.ids), limits.max_tokens))
        if self._weights is None:
            await self._begin()
        while not self._go.is_set():
            await self._go.wait()
        assert self._weights is not None
        said = list[int]()
        logprobs = list[float]()
        stopped = None
        version = self._weights.version
        if budget:
            self._running += 1
            try:
                said, logprobs, stopped = await self._speak(s, budget, limits)
            finally:
                self._running -= 1
                if not self._running:
                    self._quiet.set()
        count, ended = self._endings.find(np.array(said, np.int64), limits)
        if isinstance(stopped, str) and ended in (Ending.LENGTH, Ending.CONTEXT_FULL):
            ended = Ending.STOP_TEXT  # which the server sees in its own decoding alone
        s.ids += said[:count]
        versions = np.full(count, version, np.int32)
        return Extension(
            np.array(said[:count], np.int32),
            np.array(logprobs[:count], np.float32),
            ended,
            versions,
        )

    def release(self, stream: int) -> None:
        if (s := self._streams.pop(stream, None)) is not None and s.server is not None:
            s.server.streams -= 1

    async def load(self, weights: Iterable[tuple[str, Tensor]] | Path, version: int) -> None:
        """Give all servers new weights, once the turns that run have ended; those that come
        meanwhile wait.
        """
        async with self._lock:
            await self._load(weights, version)

    async def _begin(self) -> None:
        async with self._lock:
            if self._weights is None:  # of turns that begin together, the first one loads
                await self._load(self._policy.named(), 0)

    async def _load(self, weights: Iterable[tuple[str, Tensor]] | Path, version: int) -> None:
        self._go.clear()
        try:
            while self._running:
                self._quiet.clear()
                await self._quiet.wait()
            self._folder.mkdir(exist_ok=True)  # somebody may have cleaned up
            for old in self._folder.iterdir():  # first: memory may hold one copy alone
                shutil.rmtree(old) if old.is_dir() else old.unlink()
            self._weights = await in_caller(partial(self._write, weights, version))
            for server in self._servers:
                if server.problem:
                    self._watch(server)  # however long it has been out
            await together(self._renew(server) for server in self._servers if not server.problem)
        finally:
            self._go.set()

    def _write(self, weights: Iterable[tuple[str, Tensor]] | Path, version: int) -> _Weights:
        """Write weights where servers read them."""
        self._loads += 1
        name = f"uptrend-{self._token}-{self._loads}"
        policy = self._policy
        if isinstance(weights, Path):
            return _Weights(name, version, weights, None)
        # Copies: tensors of the learner are views of one buffer. On a GPU a sampler's weights are
        # bf16.
        own = {
            key: w.detach().to(torch.bfloat16 if w.is_cuda else w.dtype).to("cpu", copy=True)
            for key, w in weights
        }
        place = self._folder / (name if policy.has_adapters else f"{name}.safetensors")
        try:
            if policy.has_adapters:
                place.mkdir()
                named = {key.replace(".default.", "."): w for key, w in own.items()}
                save_file(named, place / "adapter_model.safetensors")
                policy.model.peft_config["default"].save_pretrained(place)
            else:
                save_file(own, place)
        except (OSError, SafetensorError) as error:
            raise ModelError(
                f"The weights for vLLM can't be written to {self._folder} ({error}). Set {SHARED}"
                " to a folder with more space that the servers read too."
            ) from error
        # Where each rank has a part of the weights, all would have to compute this together.
        return _Weights(name, version, place, None if policy.is_sharded else _logits(policy))

    async def _speak(
        self, s: _ServedStream, budget: int, limits: Limits
    ) -> tuple[list[int], list[float], Any]:
        """Let a server say the next turn of a stream; return tokens, log-probabilities and the
        reason to stop.
        """
        body = {
            "prompt": s.ids,
            "max_tokens": budget,
            "temperature": limits.temperature,
            "stop": list(limits.stop),
        }
        # 31 bits
        body |= {
            "stop_token_ids": self._policy.stop_ids,
            "seed": derive_seed(s.seed, s.turns) >> 32,
        }
        seconds = self.deadline[0] + self.deadline[1] * budget
        problem = ""
        for _ in range(self.tries):
            server = await self._choose(s)
            server.turns += 1
            try:
                async with server.gate:
                    await self._make_sure(server)
                    choice = (await self._complete(server, body, seconds))[0]
                    if choice["finish_reason"] == "abort":
                        raise _Out("it aborted a turn")
                    return (
                        choice["token_ids"],
                        choice["logprobs"]["token_logprobs"],
                        choice["stop_reason"],
                    )
            except _Out as out:
                problem = f"{server.url}: {out}"
                self._lose(server, str(out))
            except RequestRefused as refusal:
                if refusal.args[0] != 404:
                    raise self._error(server, f"refuses a turn: {refusal.args[1]}") from None
                # it has lost the weights
                problem = f"{server.url}: {refusal.args[1]}"
                server.is_known = False
            finally:
                server.turns -= 1
                server.is_known &= server.turns > 0
        raise ModelError(f"{self.tries} attempts at one turn have failed; the last: {problem}.")

    async def _choose(self, s: _ServedStream) -> _Server:
        """Return a stream's server, or another one where that is out."""
        while not (up := [server for server in self._servers if not server.problem]):
            self._back.clear()
            for server in self._servers:
                self._watch(server)
            try:
                async with asyncio.timeout(self.outage):
                    await self._back.wait()
            except TimeoutError:
                told = "; ".join(f"{server.url}: {server.problem}" for server in self._servers)
                raise ModelError(
                    f"No vLLM server has answered for {self.outage:g} s. {told}. {START}"
                ) from None
        if s.server not in up:
            if s.server is not None:
                s.server.streams -= 1
            s.server = min(up, key=lambda server: server.streams)
            s.server.streams += 1
        return s.server

    def _lose(self, server: _Server, problem: str) -> None:
        """Give a server no more turns until it is well again."""
        if not server.problem:
            told = (
                f"The vLLM server {server.url} is out ({problem}). Until it is back its turns go to"
                " another, or wait."
            )
            warnings.warn(told, ServerWarning, stacklevel=2)
        server.problem = problem
        server.is_known = False
        self._watch(server)

    def _watch(self, server: _Server) -> None:
        if server.watch is None or server.watch.done():
            server.watch = asyncio.get_running_loop().create_task(self._recover(server))

    async def _recover(self, server: _Server) -> None:
        """Look at a server that is out until it is healthy and has the current weights, for as long
        as is waited.
        """
        for _ in range(1 + int(self.outage / self.every)):
            await asyncio.sleep(self.every)
            try:
                await self._call(server, "/health", timeout=self.every + 3)
                await self._renew(server)
            except (_Out, ModelError) as problem:
                server.problem = str(problem).removeprefix(f"The vLLM server {server.url} ")
                continue
            server.problem = ""
            warnings.warn(f"The vLLM server {server.url} is back.", ServerWarning, stacklevel=2)
            self._back.set()
            return

    async def _make_sure(self, server: _Server) -> None:
        """Ask a server that was idle which weights it has, and give it the current ones where it
        has others.
        """
        async with server.lock:
            if not server.is_known:
                assert self._weights is not None
                if await self._own_name(server) != self._weights.name:
                    await self._give(server)
                server.is_known = True

    async def _renew(self, server: _Server) -> None:
        """Give a server the current weights; look closely at one that is new, or was out."""
        async with server.lock:
            try:
                if not server.base or server.problem:
                    await self._meet(server)
                else:
                    await self._own_name(server)
                await self._give(server)
            except RequestRefused as refusal:
                raise self._error(
                    server, f"can't be given weights: {refusal.args[1]}. {START}"
                ) from None
            except _Out as out:
                if not server.base:
                    raise self._error(server, f"does not answer: {out}. {START}") from None
                if server.problem:
                    raise
                self._lose(server, str(out))

    async def _meet(self, server: _Server) -> None:
        """Raise ModelError where a server can't serve this policy."""
        models = (await self._call(server, "/v1/models")).get("data", ())
        model = next(
            (model for model in models if model.get("max_model_len") and not model.get("parent")),
            None,
        )
        if model is None:
            raise self._error(
                server, f"is no vLLM: its /v1/models tells of no model's length. {START}"
            )
        base = str(model["id"])
        most = int(model["max_model_len"])
        if most < self._context:
            raise self._error(
                server,
                f"takes {most} tokens, and sampling.context = {self._context}. Start it with"
                f" --max-model-len {self._context}, as `uptrend models serve RECIPE` does, or lower"
                " sampling.context.",
            )
        asked = {"model": base, "prompt": TEXT, "add_special_tokens": False}
        theirs = (await self._call(server, "/tokenize", asked)).get("tokens", [])
        ours = self._policy.tokenizer(TEXT, add_special_tokens=False).input_ids
        if theirs != ours:
            at = next((n for n, (a, b) in enumerate(zip(ours, theirs, strict=False)) if a != b), 0)
            raise self._error(
                server,
                f"serves {base} with another tokenizer than the model that learns: token {at} of a"
                f" text is {theirs[at : at + 1]} there and {ours[at : at + 1]} here. Serve the"
                " recipe's model.",
            )
        if self._policy.has_adapters:
            # a server without our extension can't have other weights
            with contextlib.suppress(RequestRefused):
                if any(
                    (await self._call(server, "/collective_rpc", {"method": "uptrend_name"})).get(
                        "results", ()
                    )
                ):
                    raise self._error(
                        server,
                        "has the weights of a run without adapters. Start it again: adapters need"
                        " the model as it was.",
                    )
        server.base = base

    async def _give(self, server: _Server) -> None:
        """Load the current weights, and check that it worked."""
        weights = self._weights
        server.is_known = False
        assert weights is not None
        place = str(weights.place)
        seconds = self.loading
        if self._policy.has_adapters:
            await self._call(
                server,
                "/v1/load_lora_adapter",
                {"lora_name": weights.name, "lora_path": place},
                seconds,
            )
            for name in await self._adapters(server):
                if name.startswith(f"uptrend-{self._token}-") and name != weights.name:
                    await self._call(server, "/v1/unload_lora_adapter", {"lora_name": name})
        else:
            asked = {"method": "uptrend_load", "kwargs": {"path": place, "name": weights.name}}
            await self._call(server, "/collective_rpc", asked, seconds)
        # It keeps what it read under old weights, and can't forget that while a turn runs that
        # nobody waits for.
        try:
            async with asyncio.timeout(self.loading):
                while await self._call(server, "/reset_prefix_cache", {}) != {"success": True}:
                    await asyncio.sleep(0.1)
        except TimeoutError:
            raise _Out("its prefix cache can't be emptied") from None
        if (name := await self._name(server)) != weights.name:
            raise self._error(
                server,
                f"took version {weights.version} of the weights and still has "
                f"{name or 'those that it began with'}. {START}",
            )
        await self._compare(server, weights)

    async def _name(self, server: _Server) -> str:
        """Return the name of the weights that a server has; of adapters, the current one's where it
        is there.
        """
        if self._policy.has_adapters:
            assert self._weights is not None
            return self._weights.name if self._weights.name in await self._adapters(server) else ""
        results = (await self._call(server, "/collective_rpc", {"method": "uptrend_name"})).get(
            "results", ()
        )
        return str(results[0]) if len(set(results)) == 1 else "different ones in its workers"

    async def _own_name(self, server: _Server) -> str:
        """Return the name of a server's weights; raise ModelError where another run gave it them
        meanwhile.
        """
        if (name := await self._name(server)) and not name.startswith(f"uptrend-{self._token}-"):
            raise self._error(
                server,
                f"has got other weights than this run's since the last step ({name}): each run"
                " needs servers of its own.",
            )
        return name

    async def _adapters(self, server: _Server) -> list[str]:
        return [model["id"] for model in (await self._call(server, "/v1/models")).get("data", ())]

    async def _compare(self, server: _Server, weights: _Weights) -> None:
        """Raise ModelError where a server's log-probabilities are not the learner's."""
        if weights.logits_nv is None:
            return
        ids = _text_ids(self._policy)
        body = {
            "prompt": [ids[:n] for n in range(1, len(ids) + 1)],
            "max_tokens": 1,
            "temperature": TEMPERATURE,
        }
        choices = sorted(
            await self._complete(server, {**body, "seed": 0}, self.loading),
            key=lambda c: c["index"],
        )
        said_n1 = torch.tensor([choice["token_ids"][:1] for choice in choices])
        theirs_n = torch.tensor([choice["logprobs"]["token_logprobs"][0] for choice in choices])
        gaps = []
        for temperature in (TEMPERATURE, 1.0):
            ours_n = (
                torch.log_softmax(weights.logits_nv / temperature, -1).gather(1, said_n1).squeeze(1)
            )
            gaps.append(float((theirs_n - ours_n).abs().mean()))
        near = self.near[self._policy.device.type != "cpu"]
        if gaps[0] <= near:
            return
        if gaps[1] <= near:
            raise self._error(
                server,
                "gives log-probabilities that ignore the temperature. Start it with --logprobs-mode"
                " processed_logprobs, as `uptrend models serve RECIPE` does.",
            )
        raise self._error(
            server,
            f"serves {server.base}, whose log-probabilities are {gaps[0]:.2g} nats from the"
            f" learner's after version {weights.version} was loaded: it is another model, or not"
            f" all weights arrived. {START}",
        )

    async def _complete(
        self, server: _Server, body: dict[str, Any], seconds: float
    ) -> list[dict[str, Any]]:
        """Sample, from the current weights alone."""
        assert self._weights is not None
        # Never from the base beside adapters: rows of the base are wrong in such a batch.
        model = self._weights.name if self._policy.has_adapters else server.base
        reply = await self._call(
            server, "/v1/completions", {"model": model, **body, **PLAIN}, seconds
        )
        try:
            choices: list[dict[str, Any]] = reply["choices"]
            is_whole = all(
                len(c["token_ids"]) == len(c["logprobs"]["token_logprobs"]) > 0 for c in choices
            )
            if is_whole and choices and reply["model"] == model:
                return choices
        except (LookupError, TypeError):
            pass
        raise self._error(
            server, f"gave a reply without the tokens of {model}: {str(reply)[:200]}. {START}"
        )

    async def _call(
        self, server: _Server, path: str, body: dict[str, Any] | None = None, timeout: float = 30.0
    ) -> dict[str, Any]:
        """Return a reply, read as JSON; empty where it is no table."""
        try:
            reply = await self._client.exchange(server.url + path, body, timeout)
        except TimeoutError:
            raise _Out(f"no reply to {path} within {timeout:g} s") from None
        except OSError as error:
            raise _Out(error.strerror or str(error) or type(error).__name__) from None
        if reply.status >= 400:
            raise self._failure(server, path, reply.status, error_sentence(reply.content))
        try:
            found = json.loads(reply.content)
        except ValueError:
            found = None
        return found if isinstance(found, dict) else {}

    def _failure(self, server: _Server, path: str, status: int, text: str) -> Exception:
        """Return the error of a request to which a server replied with an error's status."""
        if status in (401, 403):
            state = "holds another key than the server's" if os.environ.get(KEY) else "is not set"
            return self._error(server, f"refuses {path}: the environment variable {KEY} {state}.")
        # A worker that can't load something fails with 500 as well as an engine that has died.
        is_refused = status == 500 and path in LOADS and "EngineCore" not in text
        if status >= 500 and not is_refused:
            return _Out(f"{status} {text}")
        return RequestRefused(status, f"{path}: {status} {text}")

    def _error(self, server: _Server, text: str) -> ModelError:
        return ModelError(f"The vLLM server {server.url} {text}")


def _make_folder() -> Path:
    """Make a folder for weights, and remove those that killed processes have left: shared memory
    would stay full.
    """
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else tempfile.gettempdir()
    parent = Path(os.environ.get(SHARED) or memory)
    prefix = "uptrend-weights-"
    for old in parent.glob(f"{prefix}*"):
        # another user's, or one whose process lives and holds its lock
        with contextlib.suppress(OSError):
            if time.time() - old.stat().st_mtime > ABANDONED:
                held = _lock(old)
                shutil.rmtree(old)
                os.close(held)
    try:
        folder = Path(tempfile.mkdtemp(prefix=prefix, dir=parent))
    except OSError as error:
        raise ModelError(
            f"No folder for weights can be made in {parent} ({error.strerror}): {SHARED} names it."
        ) from error
    with contextlib.suppress(OSError):  # some network file systems have no locks
        _lock(folder)
    return folder


def _lock(folder: Path) -> int:
    """Lock a folder until this process ends or closes what is returned; raises OSError where
    another one has it.
    """
    held = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(held)
        raise
    return held


def _text_ids(policy: Policy) -> list[int]:
    ids: list[int] = policy.tokenizer(TEXT, add_special_tokens=False).input_ids
    return ids[:COMPARED]


def _logits(policy: Policy) -> Tensor:
    """Compute the learner's logits after each token of the comparison."""
    ids = torch.tensor(_text_ids(policy), device=policy.device)
    with torch.no_grad(), policy.arithmetic(), torch.compiler.set_stance("force_eager"):
        head = policy.core.get_output_embeddings().weight
        return torch.nn.functional.linear(policy.hidden(ids), head).float().cpu()
