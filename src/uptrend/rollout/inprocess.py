"""The sampler in this process, on the weights that train.

Turns run side by side and join between tokens: new tokens of their contexts are read, back to back
in one row, with contexts that are the same (a group's) computed once and shared. The work is done
in short jobs, in the thread that waits for the plays: see which turns are done, read the contexts
of those that wait, launch the next tokens. Plays are answered, and their tools work, while a GPU
decodes on.

Streams keep their tokens on the host. One that has to give its pages to others while it waits for a
tool is read again.

n = segment (a stream's new tokens) or turn, u = distinct context, q = new token, l = token of a
context, m = random number of a turn, v = vocabulary, k = token that could be drawn.
"""

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from uptrend.policy.attention import Packed
from uptrend.policy.graphed import SHARED_POOL, Graphed, wait_for
from uptrend.policy.policy import Policy
from uptrend.records import ModelError
from uptrend.rollout.decoder import make_cache, make_decoder
from uptrend.rollout.decoding import Decoding, SampledTurn, Turn
from uptrend.rollout.endings import Endings
from uptrend.rollout.sampler import Extension, Limits
from uptrend.tasks.event_loop import in_caller

# New tokens of contexts that go through the model at once; fewer if attention needs a mask, which
# has an entry for each pair of tokens.
MAX_PREFILL_TOKENS = 1 << 15
MAX_MASKED_PREFILL_TOKENS = 1 << 12
# Rounds of the event loop between the end of turns and the next job, which decodes on. A tool that
# waits for nothing outside of this process answers within a few rounds, so that the next turn of
# its rollout always joins in that very job: which turns run side by side does not depend on how
# fast decoding is. The number was chosen by hand.
IDLE_ROUNDS = 16
# On a CPU, turns wait until they are this share of those that run: reading one takes as long as a
# token of many.
MIN_JOINING_SHARE = 0.25
# Seconds between two looks at what another thread does.
POLL_S = 0.001


@dataclass(eq=False)
class _Stream:
    seed: int  # seed of this rollout's random numbers
    n_drawn: int = 0  # random numbers drawn before the next turn
    ids: list[int] = field(default_factory=list)  # all its tokens
    n_cached: int = 0  # tokens whose keys and values are in its pages
    pages: list[int] = field(default_factory=list)
    is_running: bool = False  # True while a turn of it runs


@dataclass(frozen=True, eq=False)
class _Request:
    stream: int  # the number that the caller gave it
    ids: Sequence[int]  # tokens to append before the turn
    limits: Limits
    seed: int
    future: asyncio.Future[Extension]  # set when the turn is done


class _Result(NamedTuple):
    """The end of a request: its turn, or the error that it gets instead."""

    request: _Request
    outcome: Extension | ModelError


NO_TOKENS = SampledTurn(
    ids_m=np.zeros(0, np.int64),
    logprobs_m=np.zeros(0, np.float32),
    support_mk=np.zeros((0, 0), np.int32),
)


class InProcessSampler:
    """A sampler that shares its weights with the learner."""

    graph_pool = SHARED_POOL  # memory of its graphs

    def __init__(
        self, policy: Policy, decoding: type[Decoding] = Decoding, cache_bytes: float | None = None
    ) -> None:
        """Make a sampler whose cache takes up to `cache_bytes`; None for a share of the free
        memory.
        """
        self._policy = policy
        self._vocabulary = policy.core.config.vocab_size
        device = policy.device
        self.cache = make_cache(policy, cache_bytes, self._forget_graphs)
        self._decoder = make_decoder(policy, self.cache)
        self._decoding = decoding(device, self._decoder, self.cache, self.graph_pool)
        self._endings = Endings(policy.tokenizer, policy.stop_ids, self._vocabulary, device)
        self._graphed_prefill = Graphed(self.prefill, device, pool=self.graph_pool)
        # In the order of the ends of their last turns: the first one has been idle longest.
        self._streams: dict[int, _Stream] = {}
        self._version = 0
        self._weights_changed = True

        # A request is pending until the next job begins, then in the queue, then running.
        self._pending: list[_Request] = []
        self._queue: list[_Request] = []
        # With the version of the weights that began the turn.
        self._running: dict[Turn, tuple[_Request, int]] = {}
        self._released: list[int] = []  # streams

        self._jobs: asyncio.Task[None] | None = None
        self._idle_rounds = 0  # rounds of the event loop before the next job
        # Another thread works on streams meanwhile.
        self._is_decoding = False
        self._is_loading = False

    async def extend(self, stream: int, ids: Sequence[int], limits: Limits, seed: int) -> Extension:
        loop = asyncio.get_running_loop()
        request = _Request(stream, ids, limits, seed, loop.create_future())
        self._pending.append(request)
        if self._jobs is None or self._jobs.done():
            # A new task runs after all that are ready now, so that their requests are pending too.
            self._jobs = loop.create_task(self._run_jobs())
        return await request.future

    def release(self, stream: int) -> None:
        self._released.append(stream)
        # A job, in another thread, iterates over the streams; it forgets released ones itself.
        if not (self._is_decoding or self._is_loading or self._running):
            self._forget(self._released)

    async def load(self, weights: Iterable[tuple[str, Tensor]] | Path, version: int) -> None:
        """Note the new version; the weights are the learner's own, so only copies of them are
        refreshed.
        """
        del weights
        self._version = version
        self._weights_changed = True

    # Jobs: what runs in the event loop, and in the thread that waits for the plays.

    async def _run_jobs(self) -> None:
        """Do job after job while a play waits for a turn."""
        while self._pending or self._queue or self._running:
            while self._is_loading:
                await asyncio.sleep(POLL_S)
            for _ in range(self._idle_rounds):
                await asyncio.sleep(0)

            self._queue += self._pending
            self._pending = []
            requests = [*self._queue, *self._running_requests()]
            if all(request.future.done() for request in requests):
                self._drop_all()  # all were cancelled; a job would find no caller
                break

            # Streams that are released from here on wait for the next job.
            released = self._released
            self._released = []
            self._is_decoding = True
            self._idle_rounds = 1
            try:
                results = await in_caller(partial(self._do_job, released))
                self._idle_rounds = IDLE_ROUNDS if results else 1
                self._deliver(results)
            except Exception as error:
                # Every waiting play gets the error, and none waits forever.
                for request in self._drop_all():
                    if not request.future.done():
                        request.future.set_exception(error)
            except BaseException:  # an interruption
                for request in self._drop_all():
                    request.future.cancel()
                raise
            finally:
                self._is_decoding = False
        self._forget(self._released)

    def _do_job(self, released: list[int]) -> list[_Result]:
        """See which turns are done, let waiting ones join, decode on; return the results."""
        with torch.inference_mode():
            # First, because the pages of turns that are done are free for those that join.
            results = self._collect_done(set(released))
            self._forget(released)
            # Before turns join, so that none begins with older weights.
            self._copy_pending_weights()
            if self._weights_changed:
                self.cache.shrink_if_oversized()
                self._decoder.refresh()
                self._weights_changed = False
            results += self._admit()
            self._decoding.run()
        return results

    def _deliver(self, results: list[_Result]) -> None:
        """Wake the callers of `extend` with their turns or errors."""
        for request, outcome in results:
            if request.future.done():  # its rollout was cancelled meanwhile
                continue
            if isinstance(outcome, ModelError):
                request.future.set_exception(outcome)
            else:
                request.future.set_result(outcome)

    def _copy_pending_weights(self) -> None:
        """Copy weights that wait to be loaded, between turns; here the learner's own are used."""

    # Ends of turns.

    def _collect_done(self, released: set[int]) -> list[_Result]:
        """Take out turns that are done, and those that no play waits for any more."""
        turns = self._decoding.done_turns()
        for turn, (request, _) in self._running.items():
            is_abandoned = request.future.done() or request.stream in released
            if is_abandoned and turn not in turns:
                turns.append(turn)
        if not turns:
            return []
        results: list[_Result] = []
        for turn, sampled in zip(turns, self._decoding.take_out(turns), strict=True):
            request, version = self._running.pop(turn)
            results.append(_Result(request, self._end_turn(request, version, sampled)))
        return results

    def _end_turn(self, request: _Request, version: int, sampled: SampledTurn) -> Extension:
        """Append the turn's tokens to its stream; free the pages that it does not need."""
        count, ending = self._endings.find(sampled.ids_m, request.limits)
        ids_m = sampled.ids_m[:count].astype(np.int32)
        # Moved to the end of the streams: it is now the last to lose its pages.
        stream = self._streams.pop(request.stream)
        self._streams[request.stream] = stream
        stream.ids += ids_m.tolist()
        if stream.is_running:
            stream.n_cached = len(stream.ids) - 1  # the last token was sampled, but not read
            stream.is_running = False
            n_needed = self.cache.pages_for(stream.n_cached)
            self.cache.give_back(stream.pages[n_needed:])
            del stream.pages[n_needed:]

        support = None
        if request.limits.width:
            support_mk = sampled.support_mk[:count]
            could_be_drawn_mk = support_mk >= 0
            support = (could_be_drawn_mk.sum(1).astype(np.int32), support_mk[could_be_drawn_mk])
        logprobs_m = sampled.logprobs_m[:count].astype(np.float32)
        versions_m = np.full(count, version, np.int32)
        return Extension(ids_m, logprobs_m, ending, versions_m, support)

    def _drop_all(self) -> list[_Request]:
        """End all turns without an answer; return their requests.

        What the cache has of any stream may be incomplete after an error, so all are read again.
        """
        requests = [*self._running_requests(), *self._queue]
        self._decoding.remove(self._running)
        self._running = {}
        self._queue = []
        for stream in self._streams.values():
            self._evict(stream)
        return requests

    def _running_requests(self) -> list[_Request]:
        return [request for request, _ in self._running.values()]

    def _forget(self, released: list[int]) -> None:
        """Forget streams and empty the list."""
        while released:
            stream = self._streams.pop(released.pop(), None)
            if stream is not None:
                self.cache.give_back(stream.pages)

    def _evict(self, stream: _Stream) -> None:
        """Take a stream's pages; its tokens are read again in its next turn."""
        self.cache.give_back(stream.pages)
        stream.pages = []
        stream.n_cached = 0
        stream.is_running = False

    def _forget_graphs(self) -> None:
        """Drop all graphs: the cache that they write to has moved."""
        self._decoding.forget_graphs()
        self._graphed_prefill = Graphed(self.prefill, self._policy.device, pool=self.graph_pool)

    # Beginnings of turns.

    def _admit(self) -> list[_Result]:
        """Let waiting turns join those that run, if their limits are the same and pages are left;
        return the results of those that can't run.
        """
        self._queue = [request for request in self._queue if not request.future.done()]
        running = self._running_requests()
        if not running and not self._queue:
            return []
        # Those of the turns that run, else of the one that waits longest.
        limits = [*running, *self._queue][0].limits
        waiting = [request for request in self._queue if request.limits == limits]
        is_cpu = self._policy.device.type == "cpu"
        if is_cpu and len(waiting) < MIN_JOINING_SHARE * len(running):
            return []

        results: list[_Result] = []
        joining = _JoiningTurns()
        admitted = set[_Request]()
        for request in waiting:
            if request.stream not in self._streams:
                self._streams[request.stream] = _Stream(request.seed)
            stream = self._streams[request.stream]
            length = len(stream.ids) + len(request.ids)
            max_tokens = max(0, min(limits.context - length, limits.max_tokens))
            n_pages = self.cache.pages_for(length + max_tokens)
            if max_tokens and n_pages > self.cache.max_pages:
                results.append(_Result(request, self._too_large(length + max_tokens, n_pages)))
                admitted.add(request)
                continue
            if max_tokens and not self._allocate(stream, request.ids, n_pages, joining):
                break  # until others have ended

            admitted.add(request)
            stream.ids += request.ids
            if max_tokens:
                turn = Turn(stream.pages, length, max_tokens)
                joining.turns.append(turn)
                joining.draws.append((stream.seed, stream.n_drawn))
                self._running[turn] = (request, self._version)
            else:  # the context is full: the turn ends without a token
                extension = self._end_turn(request, self._version, NO_TOKENS)
                results.append(_Result(request, extension))
            stream.n_drawn += limits.max_tokens
        self._queue = [request for request in self._queue if request not in admitted]
        if joining.turns:
            self._begin(joining, limits)
        return results

    def _too_large(self, tokens: int, pages: int) -> ModelError:
        gib = self.cache.page_bytes / 2**30
        return ModelError(
            f"A turn of {tokens} tokens takes {pages * gib:.2f} GiB of keys and values, and the"
            f" sampler's cache may have {self.cache.max_pages * gib:.2f} GiB. Lower"
            " sampling.context or sampling.max_tokens."
        )

    def _allocate(
        self, stream: _Stream, new_ids: Sequence[int], n_pages: int, joining: "_JoiningTurns"
    ) -> bool:
        """Get a turn's pages, sharing those that its prompt fills with an equal one; False if too
        few are left.
        """
        # A stream with cached tokens goes on in its own pages: its key equals no other.
        context = (id(stream),) if stream.n_cached else (*stream.ids, *new_ids)
        reader = joining.readers.get(context)
        shared: list[int] = []
        if reader is not None:
            n_filled = len(context) // self.cache.page_tokens
            if n_filled >= self.cache.min_shared_pages:
                shared = reader.stream.pages[:n_filled]
        present = shared or stream.pages
        new_pages = self._take_pages(n_pages - len(present), stream)
        if new_pages is None:
            return False
        self.cache.share(shared)
        stream.pages = [*present, *new_pages]
        stream.is_running = True

        if reader is None:
            reader = _Reader(stream, logits_row=len(joining.readers))
            joining.readers[context] = reader
        else:
            # Pages with the rest of the prompt are copied, because the turns go on in them.
            n_prompt_pages = self.cache.pages_for(len(context))
            joining.copy_sources += reader.stream.pages[len(shared) : n_prompt_pages]
            joining.copy_targets += stream.pages[len(shared) : n_prompt_pages]
        joining.logits_rows.append(reader.logits_row)
        return True

    def _take_pages(self, count: int, stream: _Stream) -> list[int] | None:
        """Take pages for a stream, those of idle ones if too few are free; None if these do not
        suffice.
        """
        while (pages := self.cache.take(count)) is None:
            idle = self._longest_idle(stream)
            if idle is None:
                return None
            self._evict(idle)
        return pages

    def _longest_idle(self, stream: _Stream) -> _Stream | None:
        """Return the stream, other than this one, that has pages and has been idle longest."""
        for other in self._streams.values():
            if other.pages and not other.is_running and other is not stream:
                return other
        return None

    def _begin(self, joining: "_JoiningTurns", limits: Limits) -> None:
        """Read new tokens of the contexts and start to decode the turns."""
        logits_uv = self._prefill_streams([reader.stream for reader in joining.readers.values()])
        # After the prefill, which writes the pages that are copied.
        self.cache.copy(joining.copy_sources, joining.copy_targets)
        device = self._policy.device
        seen_nv = None
        if limits.repetition_penalty != 1:
            seen_nv = torch.zeros(len(joining.turns), self._vocabulary, dtype=torch.bool)
            for row_v, turn in zip(seen_nv, joining.turns, strict=True):
                request, _ = self._running[turn]
                row_v[self._streams[request.stream].ids] = True
            seen_nv = seen_nv.to(device)
        logits_nv = logits_uv[torch.tensor(joining.logits_rows).to(device)]
        uniforms_nm = draw_uniforms(joining.draws, limits.max_tokens)
        endings_ev = self._endings.table(limits)
        self._decoding.join(joining.turns, logits_nv, uniforms_nm, limits, endings_ev, seen_nv)

    # Prefill.

    def _prefill_streams(self, streams: list[_Stream]) -> Tensor:
        """Read new tokens of streams; return the logits after them, one row each."""
        max_tokens = MAX_PREFILL_TOKENS if self._decoder.packs else MAX_MASKED_PREFILL_TOKENS
        batches: list[list[_Stream]] = []
        batch_tokens = 0
        for stream in streams:
            n_new = len(stream.ids) - stream.n_cached
            if not batches or batch_tokens + n_new > max_tokens:
                batches.append([])
                batch_tokens = 0
            batches[-1].append(stream)
            batch_tokens += n_new

        logits = []
        for batch in batches:
            (logits_nv,) = self._graphed_prefill(*self._pack(batch))
            logits.append(logits_nv[: len(batch)])  # without those of filler segments
        return torch.cat(logits)

    def _pack(self, streams: list[_Stream]) -> tuple[Any, ...]:
        """Lay new tokens of streams back to back, as `prefill` takes them; on a GPU filled up to
        one of few shapes with filler tokens.
        """
        new_lengths = [len(stream.ids) - stream.n_cached for stream in streams]
        lengths = [len(stream.ids) for stream in streams]
        longest_new = max(new_lengths)
        longest = max(lengths)
        n_context = sum(lengths)
        if self._policy.device.type == "cuda":
            longest_new = _next_power_of_two(longest_new)
            longest = _next_power_of_two(longest)
            # Filler tokens are their own context.
            fillers = _filler_lengths(new_lengths, longest_new)
            new_lengths += fillers
            lengths += fillers
            n_context = _rounded_up(sum(lengths))

        # Filler tokens keep id 0, position 0 and cell 0, which is in page 0.
        ids_q, positions_q, cells_q = np.zeros((3, sum(new_lengths)), np.int64)
        cells_l = np.zeros(n_context, np.int64)
        # First new token and first key of each segment, and the number of all at the end.
        starts_n, key_starts_n = np.zeros((2, len(lengths) + 1), np.int32)
        np.cumsum(new_lengths, out=starts_n[1:])
        np.cumsum(lengths, out=key_starts_n[1:])
        page_tokens = self.cache.page_tokens
        for n, stream in enumerate(streams):
            position_l = np.arange(len(stream.ids))
            page_l = np.array(stream.pages)[position_l // page_tokens]
            cell_l = page_l * page_tokens + position_l % page_tokens
            new = slice(starts_n[n], starts_n[n] + new_lengths[n])
            ids_q[new] = stream.ids[stream.n_cached :]
            positions_q[new] = position_l[stream.n_cached :]
            cells_q[new] = cell_l[stream.n_cached :]
            cells_l[key_starts_n[n] : key_starts_n[n] + len(cell_l)] = cell_l

        def on_device(array: NDArray[Any]) -> Tensor:
            return torch.from_numpy(array).to(self._policy.device, non_blocking=True)

        any_cached = any(stream.n_cached for stream in streams)
        return (
            on_device(ids_q),
            on_device(positions_q),
            on_device(cells_q),
            on_device(starts_n),
            on_device(key_starts_n),
            longest_new,
            longest,
            on_device(cells_l) if any_cached else None,
        )

    def prefill(
        self,
        ids_q: Tensor,
        positions_q: Tensor,
        cells_q: Tensor,
        starts_n: Tensor,
        key_starts_n: Tensor,
        longest_new: int,
        longest: int,
        cells_l: Tensor | None,
    ) -> tuple[Tensor]:
        """Run new tokens through the model, into their cells; return the logits after each segment.

        `cells_l` are those of all tokens of each segment's context, None if all of them are new.
        """
        self.cache.set_packed_cells(cells_q, cells_l)
        attention: dict[str, Any] = {}
        if self._decoder.packs:
            attention["packed"] = Packed(starts_n, key_starts_n, longest_new, longest)
        else:
            # Each new token sees its own segment's keys, up to itself.
            n_keys = len(cells_q if cells_l is None else cells_l)
            key_l = torch.arange(n_keys, device=ids_q.device)
            token_q = torch.arange(len(ids_q), device=ids_q.device)
            segment_q = torch.bucketize(token_q, starts_n[1:].long(), right=True)
            place_ql = key_l - key_starts_n[segment_q][:, None]
            is_seen_ql = (place_ql >= 0) & (place_ql <= positions_q[:, None])
            attention["attention_mask"] = is_seen_ql[None, None]
        # Eager, because compiled layers would be compiled anew for every layer.
        with self._policy.arithmetic(), torch.compiler.set_stance("force_eager"):
            out = self._policy.core.get_decoder()(
                inputs_embeds=self._policy.embed(ids_q[None]),
                position_ids=positions_q[None],
                past_key_values=self.cache,
                use_cache=True,
                **attention,
            )
        last_n = starts_n[1:].long() - 1
        return (self._decoder.logits(out.last_hidden_state[0, last_n]).float(),)


class CopySampler(InProcessSampler):
    """A sampler with weights of its own: it goes on while the learner changes those that train."""

    # Not SHARED_POOL, whose graphs run one at a time: these run while the learner's do.
    graph_pool = "copy sampler"

    def __init__(
        self, policy: Policy, decoding: type[Decoding] = Decoding, cache_bytes: float | None = None
    ) -> None:
        copied = policy.copy()
        super().__init__(copied, decoding, cache_bytes)
        self._weights = dict(copied.model.named_parameters())
        # Weights that wait to be copied, and their version.
        self._loading: tuple[Iterable[tuple[str, Tensor]], int] | None = None

    async def load(self, weights: Iterable[tuple[str, Tensor]] | Path, version: int) -> None:
        """Copy new weights as soon as the turns that run have ended; those that wait are sampled by
        the new ones.
        """
        assert not isinstance(weights, Path)
        self._loading = (weights, version)
        # A job copies them if any runs.
        while self._loading is not None and self._jobs is not None and not self._jobs.done():
            await asyncio.sleep(POLL_S)
        if self._loading is not None:
            self._is_loading = True  # no job begins meanwhile
            try:
                await in_caller(self._copy_pending_weights)
            finally:
                self._is_loading = False

    def _admit(self) -> list[_Result]:
        if self._loading is not None:
            return []
        return super()._admit()

    def _copy_pending_weights(self) -> None:
        if self._loading is None or self._running:
            return
        weights, version = self._loading
        self._wait_for_device()  # the update may be in another stream of the device
        with torch.no_grad():
            for name, tensor in weights:
                self._weights[name].copy_(tensor)
        self._wait_for_device()
        # Keys and values are those of older weights.
        for stream in self._streams.values():
            self._evict(stream)
        self._version = version
        self._weights_changed = True
        self._loading = None

    def _wait_for_device(self) -> None:
        if self._policy.device.type == "cuda":
            wait_for(self._policy.device)


class _Reader(NamedTuple):
    """The first stream of a context, which reads it for all turns with the same one."""

    stream: _Stream
    logits_row: int  # row of the logits after the context


@dataclass
class _JoiningTurns:
    """Turns that join at once, and the distinct contexts that are read for them."""

    turns: list[Turn] = field(default_factory=list)
    # Of each turn, its seed and the random numbers that were drawn before.
    draws: list[tuple[int, int]] = field(default_factory=list)
    readers: dict[tuple[int, ...], _Reader] = field(default_factory=dict)  # by context
    logits_rows: list[int] = field(default_factory=list)  # of each turn
    # Pages of readers, and their copies for turns of the same context.
    copy_sources: list[int] = field(default_factory=list)
    copy_targets: list[int] = field(default_factory=list)


def draw_uniforms(draws: Sequence[tuple[int, int]], count: int) -> NDArray[np.float32]:
    """Return random numbers from 0 to 1, [n, count], for pairs of a seed and how many numbers were
    drawn from it before.

    A hash of seed and number (SplitMix64: Steele, Lea and Flood 2014), for all at once: making a
    generator for each rollout takes longer than drawing its numbers.
    """
    seeds_n1 = np.array([[seed % 2**64] for seed, _ in draws], np.uint64)
    firsts_n1 = np.array([[n_drawn + 1] for _, n_drawn in draws], np.uint64)
    numbers_nm = firsts_n1 + np.arange(count, dtype=np.uint64)
    # SplitMix64's state after this many numbers: it grows by 2**64 over the golden ratio for each.
    # The seed is mixed first, so that sequences of neighboring seeds are unrelated.
    increments_nm = numbers_nm * np.uint64(0x9E3779B97F4A7C15)
    states_nm = np.add(_mix(seeds_n1), increments_nm, dtype=np.uint64)
    # The upper 24 bits: fp32 holds them exactly, so that no number is rounded up to 1.
    bits_nm = _mix(states_nm) >> np.uint64(40)
    return bits_nm.astype(np.float32) * np.float32(2**-24)


def _mix(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """SplitMix64's output function."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def _filler_lengths(lengths: list[int], longest: int) -> list[int]:
    """Return lengths of filler segments, none above `longest`, so that the number of tokens and of
    segments become those of few shapes.
    """
    n_missing = _rounded_up(sum(lengths)) - sum(lengths)
    fillers = [longest] * (n_missing // longest) + [n_missing % longest]
    n_segments = len(lengths) + len(fillers)
    # The power of two above the number; unlike `_next_power_of_two`, never the number itself.
    n_filled_up = 1 << n_segments.bit_length()
    return fillers + [0] * (n_filled_up - n_segments)


def _next_power_of_two(n: int) -> int:
    return 1 << (n - 1).bit_length()


def _rounded_up(n: int) -> int:
    """Round up to a multiple of 64 and to one of four sizes between powers of two."""
    step = max(64, 1 << (n.bit_length() - 3))
    return -(-n // step) * step
