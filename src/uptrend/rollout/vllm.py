"""vLLM servers as a sampler: tokens go in, tokens with their log-probabilities come out.

A turn sends its whole stream, of which the server's prefix cache has most. So any server can take
any turn: if one dies or hangs, its turns go to another, and it is used again once it is healthy and
has the current weights.

New weights are written to a file that the servers can read: an adapter, or all weights. Loading
them waits until the running turns have ended, so that each turn has one version. Every server gets
them under a name that no other load has. A server is asked for that name after a load, and whenever
it turns from idle to busy, since it may have been restarted. While it is busy, a restart would
break the connections.

After each load, log-probabilities of a few tokens are compared with the learner's, because a server
may report success and serve old weights. This also finds another model, and log-probabilities that
ignore the temperature.

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
from uptrend.rollout.vllm_supervisor import KEY_VARIABLE, WEIGHTS_FOLDER_VARIABLE
from uptrend.tasks.event_loop import in_caller, together

# Age from which a weights folder without a lock belongs to a killed process. A younger one may not
# be locked yet.
ABANDONED_S = 60.0
FOLDER_PREFIX = "uptrend-weights-"
START_ADVICE = "Start it with `uptrend models serve RECIPE`."
LOAD_PATHS = ("/collective_rpc", "/v1/load_lora_adapter")
CACHE_POLL_S = 0.1  # between attempts at emptying a server's prefix cache
# vLLM queues turns beyond 256 anyway, and each request takes a file descriptor.
MAX_REQUESTS_PER_SERVER = 256
# Options that turn off what the model's own generation config may ask for.
PLAIN_SAMPLING = {
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
COMPARED_TEXT = (
    'What is 12 + 34? The answer is 46, not 47.\n\n{"x": [1]} Ünïcode 東京 <|im_end|></s>'
)
COMPARED_TOKENS = 16
# Other than 1, so that the comparison shows a temperature that is ignored.
COMPARED_TEMPERATURE = 0.5


class _ServerDown(Exception):  # noqa: N818 (the server's state)
    """A server that gives no answer, or none that is of use."""


@dataclass(eq=False)
class _Server:
    url: str
    base: str = ""  # its model's name; empty before the first contact
    streams: int = 0  # streams that stay with it
    turns: int = 0  # turns that wait or run there
    is_current: bool = False  # True while its turns prove that it has the current weights
    problem: str = ""  # why it gets no turns; empty if it works
    recovery: asyncio.Task[None] | None = None  # polls it while it is down
    weights_lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    requests: asyncio.Semaphore = field(
        default_factory=lambda: asyncio.Semaphore(MAX_REQUESTS_PER_SERVER)
    )


@dataclass(eq=False)
class _ServedStream:
    seed: int
    ids: list[int] = field(default_factory=list)  # all its tokens
    turns: int = 0
    server: _Server | None = None


@dataclass(frozen=True, eq=False)
class _Weights:
    name: str  # name that servers have them under: no other load of any run has it
    version: int
    path: Path  # an adapter's folder, or a file with all weights
    # The learner's logits, for the comparison; None if they can't be computed here.
    logits_nv: Tensor | None


class VllmSampler:
    """A sampler that runs on vLLM servers."""

    # Time for a turn, and more for each token that it may have; then its server is down.
    turn_timeout_s = 300.0
    token_timeout_s = 0.25
    load_timeout_s = 600.0  # for a server to take weights
    outage_timeout_s = 300.0  # to wait for a server while all are down
    poll_s = 2.0  # between polls of a server that is down
    max_attempts = 8  # servers in a row that may fail at one turn
    # Mean difference of log-probabilities that rounding explains: of fp32, and of bf16 on a GPU.
    max_fp32_gap_nats = 1e-3
    max_bf16_gap_nats = 0.25

    def __init__(self, policy: Policy, sampling: Sampling) -> None:
        self._policy = policy
        self._context = sampling.context
        self._client = HttpClient(KEY_VARIABLE)
        self._servers = [_Server(url.rstrip("/").removesuffix("/v1")) for url in sampling.servers]
        self._endings = Endings(
            policy.tokenizer, policy.stop_ids, policy.core.config.vocab_size, policy.device
        )
        self._streams: dict[int, _ServedStream] = {}
        self._weights: _Weights | None = None
        # Begins the names of this run's weights.
        self._name_prefix = f"uptrend-{secrets.token_hex(4)}-"
        self._n_loads = 0
        self._n_running_turns = 0
        self._load_lock = asyncio.Lock()
        self._may_sample = asyncio.Event()  # cleared during a load
        self._may_sample.set()
        self._are_turns_done = asyncio.Event()
        self._is_server_back = asyncio.Event()
        self._folder = _make_folder()
        weakref.finalize(self, shutil.rmtree, self._folder, ignore_errors=True)

    async def extend(self, stream: int, ids: Sequence[int], limits: Limits, seed: int) -> Extension:
        s = self._streams.setdefault(stream, _ServedStream(seed))
        s.ids += ids
        s.turns += 1
        max_tokens = max(0, min(limits.context - len(s.ids), limits.max_tokens))
        if self._weights is None:
            await self._load_first()
        # Another load may have begun before this turn gets to run.
        while not self._may_sample.is_set():
            await self._may_sample.wait()
        assert self._weights is not None
        version = self._weights.version

        new_ids: list[int] = []
        logprobs: list[float] = []
        stop_reason = None
        if max_tokens:
            self._n_running_turns += 1
            try:
                new_ids, logprobs, stop_reason = await self._sample_turn(s, max_tokens, limits)
            finally:
                self._n_running_turns -= 1
                if self._n_running_turns == 0:
                    self._are_turns_done.set()
        count, ended = self._endings.find(np.array(new_ids, np.int64), limits)
        if isinstance(stop_reason, str) and ended in (Ending.LENGTH, Ending.CONTEXT_FULL):
            ended = Ending.STOP_TEXT  # one that only the server's own decoding shows
        s.ids += new_ids[:count]
        return Extension(
            ids=np.array(new_ids[:count], np.int32),
            logprobs=np.array(logprobs[:count], np.float32),
            ended=ended,
            versions=np.full(count, version, np.int32),
        )

    def release(self, stream: int) -> None:
        s = self._streams.pop(stream, None)
        if s is not None and s.server is not None:
            s.server.streams -= 1

    # Weights.

    async def load(self, weights: Iterable[tuple[str, Tensor]] | Path, version: int) -> None:
        """Load new weights into all servers, once the running turns have ended; turns that begin
        meanwhile wait.
        """
        async with self._load_lock:
            await self._load(weights, version)

    async def _load_first(self) -> None:
        async with self._load_lock:
            if self._weights is None:  # of turns that begin together, the first one loads
                await self._load(self._policy.named(), 0)

    async def _load(self, weights: Iterable[tuple[str, Tensor]] | Path, version: int) -> None:
        self._may_sample.clear()
        try:
            while self._n_running_turns:
                self._are_turns_done.clear()
                await self._are_turns_done.wait()
            self._folder.mkdir(exist_ok=True)  # it may have been cleaned up
            # Old weights are removed first, because memory may hold one copy only.
            for path in self._folder.iterdir():
                if path.is_dir():
                    shutil.rmtree(path)
                else:
                    path.unlink()
            self._weights = await in_caller(partial(self._write, weights, version))
            for server in self._servers:
                if server.problem:
                    self._start_recovery(server)  # the last one may have given up
            await together(self._update(server) for server in self._servers if not server.problem)
        finally:
            self._may_sample.set()

    def _write(self, weights: Iterable[tuple[str, Tensor]] | Path, version: int) -> _Weights:
        """Write weights where servers read them."""
        self._n_loads += 1
        name = f"{self._name_prefix}{self._n_loads}"
        policy = self._policy
        if isinstance(weights, Path):
            return _Weights(name, version, weights, None)
        tensors: dict[str, Tensor] = {}
        for key, tensor in weights:
            # A sampler's weights on a GPU are bf16. Copies, because tensors of the learner are
            # views of one buffer.
            dtype = torch.bfloat16 if tensor.is_cuda else tensor.dtype
            tensors[key] = tensor.detach().to(dtype).to("cpu", copy=True)
        path = self._folder / (name if policy.has_adapters else f"{name}.safetensors")
        try:
            if policy.has_adapters:
                path.mkdir()
                # As PEFT names them in an adapter's file.
                named = {key.replace(".default.", "."): tensors[key] for key in tensors}
                save_file(named, path / "adapter_model.safetensors")
                policy.model.peft_config["default"].save_pretrained(path)
            else:
                save_file(tensors, path)
        except (OSError, SafetensorError) as error:
            raise ModelError(
                f"The weights for vLLM can't be written to {self._folder} ({error}). Set"
                f" {WEIGHTS_FOLDER_VARIABLE} to a folder with more space that the servers read too."
            ) from error
        # Where each rank has a part of the weights, all would have to compute logits together.
        logits_nv = None if policy.is_sharded else _compared_logits(policy)
        return _Weights(name, version, path, logits_nv)

    async def _update(self, server: _Server) -> None:
        """Load the current weights into a server; check one that is new, or was down."""
        async with server.weights_lock:
            try:
                if not server.base or server.problem:
                    await self._check_server(server)
                else:
                    await self._own_weights_name(server)
                await self._send_weights(server)
            except RequestRefused as refusal:
                problem = f"can't be given weights: {refusal.reason}. {START_ADVICE}"
                raise self._error(server, problem) from None
            except _ServerDown as down:
                if not server.base:
                    problem = f"does not answer: {down}. {START_ADVICE}"
                    raise self._error(server, problem) from None
                if server.problem:
                    raise
                self._mark_down(server, str(down))

    async def _ensure_current(self, server: _Server) -> None:
        """Ask a server that was idle for its weights' name, and load the current ones if it has
        others.
        """
        async with server.weights_lock:
            if server.is_current:
                return
            assert self._weights is not None
            if await self._own_weights_name(server) != self._weights.name:
                await self._send_weights(server)
            server.is_current = True

    async def _check_server(self, server: _Server) -> None:
        """Raise ModelError if a server can't serve this policy."""
        models = (await self._call(server, "/v1/models")).get("data", ())
        bases = [m for m in models if m.get("max_model_len") and not m.get("parent")]
        if not bases:
            problem = "is no vLLM: its /v1/models tells of no model's length."
            raise self._error(server, f"{problem} {START_ADVICE}")
        base = str(bases[0]["id"])
        max_context = int(bases[0]["max_model_len"])
        if max_context < self._context:
            raise self._error(
                server,
                f"takes {max_context} tokens, and sampling.context = {self._context}. Start it with"
                f" --max-model-len {self._context}, as `uptrend models serve RECIPE` does, or lower"
                " sampling.context.",
            )

        body = {"model": base, "prompt": COMPARED_TEXT, "add_special_tokens": False}
        server_ids = (await self._call(server, "/tokenize", body)).get("tokens", [])
        own_ids = self._policy.tokenizer(COMPARED_TEXT, add_special_tokens=False).input_ids
        if server_ids != own_ids:
            pairs = enumerate(zip(own_ids, server_ids, strict=False))
            n = next((n for n, (own, other) in pairs if own != other), 0)
            raise self._error(
                server,
                f"serves {base} with another tokenizer than the model that learns: token {n} of a"
                f" text is {server_ids[n : n + 1]} there and {own_ids[n : n + 1]} here. Serve the"
                " recipe's model.",
            )
        if self._policy.has_adapters:
            names: Sequence[str] = ()
            with contextlib.suppress(RequestRefused):  # a server without our workers has the base
                names = await self._worker_weights_names(server)
            if any(names):
                raise self._error(
                    server,
                    "has the weights of a run without adapters. Start it again: adapters need"
                    " the model as it was.",
                )
        server.base = base

    async def _send_weights(self, server: _Server) -> None:
        """Load the current weights, and check that it worked."""
        weights = self._weights
        assert weights is not None
        server.is_current = False
        path = str(weights.path)
        if self._policy.has_adapters:
            body = {"lora_name": weights.name, "lora_path": path}
            await self._call(server, "/v1/load_lora_adapter", body, self.load_timeout_s)
            for name in await self._adapters(server):
                if name.startswith(self._name_prefix) and name != weights.name:
                    await self._call(server, "/v1/unload_lora_adapter", {"lora_name": name})
        else:
            load = {"method": "uptrend_load", "kwargs": {"path": path, "name": weights.name}}
            await self._call(server, "/collective_rpc", load, self.load_timeout_s)
        # Its prefix cache has keys and values of the old weights. It can't be emptied while a turn
        # runs, such as one that was cancelled here.
        try:
            async with asyncio.timeout(self.load_timeout_s):
                while await self._call(server, "/reset_prefix_cache", {}) != {"success": True}:
                    await asyncio.sleep(CACHE_POLL_S)
        except TimeoutError:
            raise _ServerDown("its prefix cache can't be emptied") from None
        name = await self._weights_name(server)
        if name != weights.name:
            served = name or "those that it began with"
            raise self._error(
                server,
                f"took version {weights.version} of the weights and still has {served}."
                f" {START_ADVICE}",
            )
        await self._check_logprobs(server, weights)

    async def _weights_name(self, server: _Server) -> str:
        """Return the name of a server's weights, or of the current adapter if it has that; empty
        for those that it began with.
        """
        if self._policy.has_adapters:
            assert self._weights is not None
            return self._weights.name if self._weights.name in await self._adapters(server) else ""
        names = await self._worker_weights_names(server)
        return str(names[0]) if len(set(names)) == 1 else "different ones in its workers"

    async def _worker_weights_names(self, server: _Server) -> Sequence[str]:
        """Return the name of the weights that each of a server's workers has."""
        reply = await self._call(server, "/collective_rpc", {"method": "uptrend_name"})
        names: Sequence[str] = reply.get("results", ())
        return names

    async def _own_weights_name(self, server: _Server) -> str:
        """Return the name of a server's weights; raise ModelError if another run has loaded others
        meanwhile.
        """
        name = await self._weights_name(server)
        if name and not name.startswith(self._name_prefix):
            raise self._error(
                server,
                f"has got other weights than this run's since the last step ({name}): each run"
                " needs servers of its own.",
            )
        return name

    async def _adapters(self, server: _Server) -> list[str]:
        reply = await self._call(server, "/v1/models")
        return [model["id"] for model in reply.get("data", ())]

    async def _check_logprobs(self, server: _Server, weights: _Weights) -> None:
        """Raise ModelError if a server's log-probabilities are not the learner's."""
        logits_nv = weights.logits_nv
        if logits_nv is None:
            return
        ids = _compared_ids(self._policy)
        body = {
            "prompt": [ids[:n] for n in range(1, len(ids) + 1)],
            "max_tokens": 1,
            "temperature": COMPARED_TEMPERATURE,
            "seed": 0,
        }
        choices = await self._complete(server, body, self.load_timeout_s)
        choices.sort(key=lambda choice: choice["index"])
        sampled_n1 = torch.tensor([choice["token_ids"][:1] for choice in choices])
        server_logprobs_n = torch.tensor(
            [choice["logprobs"]["token_logprobs"][0] for choice in choices]
        )

        def gap_at(temperature: float) -> float:
            logprobs_nv = torch.log_softmax(logits_nv / temperature, -1)
            logprobs_n = logprobs_nv.gather(1, sampled_n1).squeeze(1)
            return float((server_logprobs_n - logprobs_n).abs().mean())

        is_fp32 = self._policy.device.type == "cpu"
        max_gap = self.max_fp32_gap_nats if is_fp32 else self.max_bf16_gap_nats
        gap = gap_at(COMPARED_TEMPERATURE)
        if gap <= max_gap:
            return
        if gap_at(1.0) <= max_gap:
            raise self._error(
                server,
                "gives log-probabilities that ignore the temperature. Start it with --logprobs-mode"
                " processed_logprobs, as `uptrend models serve RECIPE` does.",
            )
        raise self._error(
            server,
            f"serves {server.base}, whose log-probabilities are {gap:.2g} nats from the"
            f" learner's after version {weights.version} was loaded: it is another model, or not"
            f" all weights arrived. {START_ADVICE}",
        )

    # Turns.

    async def _sample_turn(
        self, s: _ServedStream, max_tokens: int, limits: Limits
    ) -> tuple[list[int], list[float], Any]:
        """Sample the next turn of a stream on a server; return tokens, log-probabilities and the
        reason to stop.
        """
        body = {
            "prompt": s.ids,
            "max_tokens": max_tokens,
            "temperature": limits.temperature,
            "stop": list(limits.stop),
            "stop_token_ids": self._policy.stop_ids,
            "seed": derive_seed(s.seed, s.turns) >> 32,  # 31 bits, which vLLM takes
        }
        timeout_s = self.turn_timeout_s + self.token_timeout_s * max_tokens
        problem = ""
        for _ in range(self.max_attempts):
            server = await self._choose_server(s)
            server.turns += 1
            try:
                async with server.requests:
                    await self._ensure_current(server)
                    choice = (await self._complete(server, body, timeout_s))[0]
                    if choice["finish_reason"] == "abort":
                        raise _ServerDown("it aborted a turn")
                    logprobs = choice["logprobs"]["token_logprobs"]
                    return choice["token_ids"], logprobs, choice["stop_reason"]
            except _ServerDown as down:
                problem = f"{server.url}: {down}"
                self._mark_down(server, str(down))
            except RequestRefused as refusal:
                if refusal.status != 404:
                    raise self._error(server, f"refuses a turn: {refusal.reason}") from None
                # It has lost the weights.
                problem = f"{server.url}: {refusal.reason}"
                server.is_current = False
            finally:
                server.turns -= 1
                if server.turns == 0:
                    server.is_current = False
        raise ModelError(
            f"{self.max_attempts} attempts at one turn have failed; the last: {problem}."
        )

    async def _choose_server(self, s: _ServedStream) -> _Server:
        """Return a stream's server, or another one if that is down."""
        working = self._working_servers()
        while not working:
            await self._wait_for_server()
            working = self._working_servers()
        if s.server not in working:
            if s.server is not None:
                s.server.streams -= 1
            s.server = min(working, key=lambda server: server.streams)
            s.server.streams += 1
        return s.server

    def _working_servers(self) -> list[_Server]:
        return [server for server in self._servers if not server.problem]

    async def _wait_for_server(self) -> None:
        self._is_server_back.clear()
        for server in self._servers:
            self._start_recovery(server)
        try:
            async with asyncio.timeout(self.outage_timeout_s):
                await self._is_server_back.wait()
        except TimeoutError:
            problems = "; ".join(f"{server.url}: {server.problem}" for server in self._servers)
            raise ModelError(
                f"No vLLM server has answered for {self.outage_timeout_s:g} s. {problems}."
                f" {START_ADVICE}"
            ) from None

    def _mark_down(self, server: _Server, problem: str) -> None:
        """Give a server no more turns until it has recovered."""
        if not server.problem:
            warnings.warn(
                f"The vLLM server {server.url} is out ({problem}). Until it is back its turns go to"
                " another, or wait.",
                ServerWarning,
                stacklevel=2,
            )
        server.problem = problem
        server.is_current = False
        self._start_recovery(server)

    def _start_recovery(self, server: _Server) -> None:
        if server.recovery is None or server.recovery.done():
            server.recovery = asyncio.get_running_loop().create_task(self._recover(server))

    async def _recover(self, server: _Server) -> None:
        """Poll a server that is down until it is healthy and has the current weights; give up after
        the time of an outage.
        """
        for _ in range(1 + int(self.outage_timeout_s / self.poll_s)):
            await asyncio.sleep(self.poll_s)
            try:
                await self._call(server, "/health", timeout_s=self.poll_s + 3)
                await self._update(server)
            except (_ServerDown, ModelError) as problem:
                server.problem = str(problem).removeprefix(f"The vLLM server {server.url} ")
                continue
            server.problem = ""
            warnings.warn(f"The vLLM server {server.url} is back.", ServerWarning, stacklevel=2)
            self._is_server_back.set()
            return

    # Requests.

    async def _complete(
        self, server: _Server, body: dict[str, Any], timeout_s: float
    ) -> list[dict[str, Any]]:
        """Sample from the current weights; return the reply's choices."""
        assert self._weights is not None
        # Never from the base beside adapters: vLLM gets the base's rows of such a batch wrong.
        model = self._weights.name if self._policy.has_adapters else server.base
        request = {"model": model, **body, **PLAIN_SAMPLING}
        reply = await self._call(server, "/v1/completions", request, timeout_s)
        if not _has_tokens_of(reply, model):
            start = str(reply)[:200]
            raise self._error(
                server, f"gave a reply without the tokens of {model}: {start}. {START_ADVICE}"
            )
        choices: list[dict[str, Any]] = reply["choices"]
        return choices

    async def _call(
        self,
        server: _Server,
        path: str,
        body: dict[str, Any] | None = None,
        timeout_s: float = 30.0,
    ) -> dict[str, Any]:
        """Return a reply, read as a JSON object; empty if it is none."""
        try:
            reply = await self._client.exchange(server.url + path, body, timeout_s)
        except TimeoutError:
            raise _ServerDown(f"no reply to {path} within {timeout_s:g} s") from None
        except OSError as error:
            raise _ServerDown(error.strerror or str(error) or type(error).__name__) from None
        if reply.status >= 400:
            raise self._status_error(server, path, reply.status, error_sentence(reply.content))
        try:
            content = json.loads(reply.content)
        except ValueError:
            return {}
        return content if isinstance(content, dict) else {}

    def _status_error(self, server: _Server, path: str, status: int, reason: str) -> Exception:
        """Return the error of a reply with an error's status."""
        if status in (401, 403):
            has_key = os.environ.get(KEY_VARIABLE)
            state = "holds another key than the server's" if has_key else "is not set"
            problem = f"refuses {path}: the environment variable {KEY_VARIABLE} {state}."
            return self._error(server, problem)
        # A worker that can't load something has status 500, like an engine that has died.
        is_load_refused = status == 500 and path in LOAD_PATHS and "EngineCore" not in reason
        if status >= 500 and not is_load_refused:
            return _ServerDown(f"{status} {reason}")
        return RequestRefused(status, f"{path}: {status} {reason}")

    def _error(self, server: _Server, problem: str) -> ModelError:
        return ModelError(f"The vLLM server {server.url} {problem}")


def _has_tokens_of(reply: dict[str, Any], model: str) -> bool:
    """Return True for a reply of this model with tokens, each with its log-probability."""
    try:
        for choice in reply["choices"]:
            n_logprobs = len(choice["logprobs"]["token_logprobs"])
            if not len(choice["token_ids"]) == n_logprobs > 0:
                return False
        return bool(reply["choices"]) and reply["model"] == model
    except (LookupError, TypeError):
        return False


def _make_folder() -> Path:
    """Make a folder for weights, and remove those that killed processes have left: shared memory
    would stay full.
    """
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else tempfile.gettempdir()
    parent = Path(os.environ.get(WEIGHTS_FOLDER_VARIABLE) or memory)
    for folder in parent.glob(f"{FOLDER_PREFIX}*"):
        # Errors: another user's folder, or one whose process lives and holds its lock.
        with contextlib.suppress(OSError):
            if time.time() - folder.stat().st_mtime > ABANDONED_S:
                lock = _lock(folder)
                shutil.rmtree(folder)
                os.close(lock)
    try:
        folder = Path(tempfile.mkdtemp(prefix=FOLDER_PREFIX, dir=parent))
    except OSError as error:
        raise ModelError(
            f"No folder for weights can be made in {parent} ({error.strerror}):"
            f" {WEIGHTS_FOLDER_VARIABLE} names it."
        ) from error
    with contextlib.suppress(OSError):  # some network file systems have no locks
        _lock(folder)
    return folder


def _lock(folder: Path) -> int:
    """Lock a folder until this process ends or closes the returned descriptor; raise OSError if
    another one has locked it.
    """
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def _compared_ids(policy: Policy) -> list[int]:
    ids: list[int] = policy.tokenizer(COMPARED_TEXT, add_special_tokens=False).input_ids
    return ids[:COMPARED_TOKENS]


def _compared_logits(policy: Policy) -> Tensor:
    """Compute the learner's logits after each compared token, [n, v]."""
    ids = torch.tensor(_compared_ids(policy), device=policy.device)
    with torch.no_grad(), policy.arithmetic(), torch.compiler.set_stance("force_eager"):
        head = policy.core.get_output_embeddings().weight
        return torch.nn.functional.linear(policy.hidden(ids), head).float().cpu()
