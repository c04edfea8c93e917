"""The sampler in this process, on the weights that train.

Turns run side by side and join between tokens: what is new of their contexts is read, back to back
in one row, with contexts that are the same (a group's) computed once and shared. The work is done
in short jobs, in the thread that waits for the plays: see who is done, read the contexts of those
that wait, launch the next tokens. Plays are answered, and their tools work, while a GPU decodes on.

Streams keep their tokens on the host. One that has to give its pages to others while it waits for a
tool is read again.

n = row (a turn), u = distinct context, q = new token, l = token of a context, v = vocabulary.
"""

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from uptrend.policy.attention import Packed
from uptrend.policy.graphed import TOGETHER, Graphed, wait_for
from uptrend.policy.policy import Policy
from uptrend.records import ModelError
from uptrend.rollout.decoder import make_cache, make_decoder
from uptrend.rollout.decoding import Decoding, Endings, Said, Turn
from uptrend.rollout.sampler import Extension, Limits
from uptrend.tasks.event_loop import in_caller

# Tokens of contexts that go through the model at once; fewer where attention needs a mask of them
# all.
PREFILL = 1 << 15
PREFILL_MASKED = 1 << 12
# Rounds of the event loop after turns were answered, before the next tokens are asked for. A tool
# that takes fewer (it awaits, but nothing outside of this process) has its next turn there however
# fast decoding is: what runs side by side does not depend on time.
PATIENCE = 16
# On a CPU, turns wait until they are this part of those that run: reading one takes as long as a
# token of many.
JOIN = 0.25


@dataclass(eq=False)
class _Stream:
    seed: int  # seed of this rollout's random numbers
    drawn: int = 0  # number of them that were drawn
    ids: list[int] = field(default_factory=list)  # all its tokens
    cached: int = 0  # number of them whose keys and values are in its pages
    pages: list[int] = field(default_factory=list)
    runs: bool = False  # true while a turn of it runs


@dataclass(frozen=True, eq=False)
class _Request:
    stream: int
    ids: Sequence[int]
    limits: Limits
    seed: int
    answer: asyncio.Future[Extension]


Answer = tuple[_Request, Extension | ModelError]


class InProcessSampler:
    """A sampler that shares its weights with the learner."""

    pool = TOGETHER  # memory of its graphs

    def __init__(
        self, policy: Policy, decoding: type[Decoding] = Decoding, budget: float | None = None
    ) -> None:
        """Make a sampler whose cache takes up to `budget` bytes; None for a part of what is
        free.
        """
        self._policy = policy
        config = policy.core.config
        device = policy.device
        self.cache = make_cache(policy, budget, self._forget_graphs)
        self._decoder = make_decoder(policy, self.cache)
        self._decoding = decoding(device, self._decoder, self.cache, self.pool)
        self._endings = Endings(policy.tokenizer, policy.stop_ids, config.vocab_size, device)
        self._compute = Graphed(self.read_contexts, device, pool=self.pool)
        self._streams: dict[int, _Stream] = {}  # those whose last turn ended long ago first
        self._pending: list[_Request] = []  # not yet seen by a job
        self._queue: list[_Request] = []
        self._running: dict[Turn, tuple[_Request, int]] = {}  # with the version that began it
        self._serving: asyncio.Task[None] | None = None
        self._is_decoding = self._is_loading = False
        self._patience = 0  # rounds of the event loop before the next job
        self._released: list[int] = []
        self._version = 0
        self._stale = True

    async def extend(self, stream: int, ids: Sequence[int], limits: Limits, seed: int) -> Extension:
        loop = asyncio.get_running_loop()
        request = _Request(stream, ids, limits, seed, loop.create_future())
        self._pending.append(request)
        if self._serving is None or self._serving.done():
            # begins after every turn that is ready now has asked
            self._serving = loop.create_task(self._serve())
        return await request.answer

    def release(self, stream: int) -> None:
        self._released.append(stream)
        # jobs, in another thread, go through them
        if not (self._is_decoding or self._is_loading or self._running):
            self._forget(self._released)

    async def load(self, weights: Iterable[tuple[str, Tensor]] | Path, version: int) -> None:
        """Take the new version; the weights are the learner's own, so only what was copied from
        them is renewed.
        """
        del weights
        self._version = version
        self._stale = True

    def _forget_graphs(self) -> None:
        self._decoding.forget_graphs()
        self._compute = Graphed(self.read_contexts, self._policy.device, pool=self.pool)

    async def _serve(self) -> None:
        """Do job after job while somebody waits for a turn."""
        while self._pending or self._queue or self._running:
            while self._is_loading:  # in another thread
                await asyncio.sleep(0.001)
            for _ in range(self._patience):
                await asyncio.sleep(0)
            self._queue += self._pending
            self._pending = []
            requests = [*self._queue, *(request for request, _ in self._running.values())]
            if all(request.answer.done() for request in requests):
                self._drop_all()  # all were cancelled; a job would find no caller
                break
            released = self._released
            self._released = []
            self._is_decoding = True
            self._patience = 1
            try:
                answers = await in_caller(partial(self._work, released))
                self._patience = PATIENCE if answers else 1
                for request, answer in answers:
                    if request.answer.done():  # its rollout was cancelled meanwhile
                        continue
                    if isinstance(answer, ModelError):
                        request.answer.set_exception(answer)
                    else:
                        request.answer.set_result(answer)
            except Exception as error:  # every waiting turn must hear of it
                for request in self._drop_all():
                    if not request.answer.done():
                        request.answer.set_exception(error)
            except BaseException:  # an interruption
                for request in self._drop_all():
                    request.answer.cancel()
                raise
            finally:
                self._is_decoding = False
        self._forget(self._released)

    def _forget(self, released: list[int]) -> None:
        while released:
            if (stream := self._streams.pop(released.pop(), None)) is not None:
                self.cache.give(stream.pages)

    def _drop_all(self) -> list[_Request]:
        """End all turns without an answer; return their requests. No stream's keys and values are
        relied on.
        """
        requests = [*(request for request, _ in self._running.values()), *self._queue]
        self._decoding.drop(self._running)
        self._running = {}
        self._queue = []
        for stream in self._streams.values():
            self._evict(stream)
        return requests

    def _evict(self, stream: _Stream) -> None:
        self.cache.give(stream.pages)
        stream.pages = []
        stream.cached = 0
        stream.runs = False

    def _work(self, released: list[int]) -> list[Answer]:
        """See who is done, let those that wait join, decode on; return the answers that there
        are.
        """
        with torch.inference_mode():
            answers = self._collect(set(released))
            self._forget(released)
            self._take_weights()
            if self._stale:
                self.cache.settle()
                self._decoder.renew()
                self._stale = False
            answers += self._admit()
            self._decoding.run()
        return answers

    def _take_weights(self) -> None:
        """Take weights that wait to be loaded, between turns; the learner's own are there
        already.
        """

    def _collect(self, released: set[int]) -> list[Answer]:
        """Take out turns that are done, and those that nobody waits for any more."""
        out = dict.fromkeys(self._decoding.ended())
        for turn, (request, _) in self._running.items():
            if request.answer.done() or request.stream in released:
                out[turn] = None
        said = self._decoding.take_out(list(out)) if out else []
        return [
            self._end(*self._running.pop(turn), each) for turn, each in zip(out, said, strict=True)
        ]

    def _end(self, request: _Request, version: int, said: Said) -> Answer:
        """Keep what belongs to the turn in its stream, with the pages that it needs."""
        limits = request.limits
        count, ended = self._endings.find(said.ids, limits)
        stream = self._streams.pop(request.stream)
        self._streams[request.stream] = stream  # the last to lose its pages
        ids = said.ids[:count].astype(np.int32)
        if stream.runs:
            stream.cached = len(stream.ids) + count - 1  # the last token has not been read
            stream.runs = False
            kept = self.cache.pages_for(stream.cached)
            self.cache.give(stream.pages[kept:])
            del stream.pages[kept:]
        stream.ids += ids.tolist()
        could_mk = said.support_mk[:count] >= 0
        support = (
            (could_mk.sum(1).astype(np.int32), said.support_mk[:count][could_mk])
            if limits.width
            else None
        )
        versions = np.full(count, version, np.int32)
        return request, Extension(
            ids, said.logprobs[:count].astype(np.float32), ended, versions, support
        )

    def _admit(self) -> list[Answer]:
        """Let turns that wait join those that run, as far as their limits are the same and pages
        are left.
        """
        # some were cancelled
        self._queue = [request for request in self._queue if not request.answer.done()]
        running = [request.limits for request, _ in self._running.values()]
        limits = next((x for x in (*running, *(r.limits for r in self._queue))), None)
        waiting = [request for request in self._queue if request.limits == limits]
        if limits is None or (
            self._policy.device.type == "cpu" and len(waiting) < JOIN * len(running)
        ):
            return []
        answers: list[Answer] = []
        joining = _Joining()
        gone = set[_Request]()
        for request in waiting:
            if request.stream not in self._streams:
                self._streams[request.stream] = _Stream(request.seed)
            stream = self._streams[request.stream]
            length = len(stream.ids) + len(request.ids)
            budget = max(0, min(limits.context - length, limits.max_tokens))
            if budget and (needed := self.cache.pages_for(length + budget)) > self.cache.most:
                answers.append((request, self._too_large(length + budget, needed)))
            elif budget and not self._place(stream, request.ids, needed, joining):
                break  # until others have ended
            else:
                stream.ids += request.ids
                if budget:
                    joining.turns.append(Turn(stream.pages, length, budget))
                    joining.draws.append((stream.seed, stream.drawn))
                    self._running[joining.turns[-1]] = request, self._version
                else:
                    nothing = Said(
                        np.zeros(0, np.int64), np.zeros(0, np.float32), np.zeros((0, 0), np.int32)
                    )
                    answers.append(self._end(request, self._version, nothing))
                stream.drawn += limits.max_tokens
            gone.add(request)
        self._queue = [request for request in self._queue if request not in gone]
        if joining.turns:
            self._begin(joining, limits)
        return answers

    def _too_large(self, tokens: int, pages: int) -> ModelError:
        gib = self.cache.page_bytes / 2**30
        return ModelError(
            f"A turn of {tokens} tokens takes {pages * gib:.2f} GiB of keys and values, and the"
            f" sampler's cache may have {self.cache.most * gib:.2f} GiB. Lower sampling.context or"
            " sampling.max_tokens."
        )

    def _place(self, stream: _Stream, ids: Sequence[int], needed: int, joining: "_Joining") -> bool:
        """Get a turn's pages, of which those that its prompt fills may be another's; False where
        too few are left.
        """
        whole = (*stream.ids, *ids) if stream.cached == 0 else (id(stream),)
        number, first = joining.readers.setdefault(whole, (len(joining.readers), stream))
        full = len(whole) // self.cache.page if first is not stream else 0
        shared = first.pages[:full] if full >= self.cache.least_shared else []
        while (pages := self.cache.take(needed - len(shared or stream.pages))) is None:
            idle = (s for s in self._streams.values() if s.pages and not s.runs and s is not stream)
            if (oldest := next(idle, None)) is None:
                if first is stream:
                    del joining.readers[whole]
                return False
            self._evict(oldest)
        self.cache.share(shared)
        stream.pages = [*(shared or stream.pages), *pages]
        stream.runs = True
        if first is not stream:
            stop = self.cache.pages_for(len(whole))
            joining.sources += first.pages[len(shared) : stop]
            joining.targets += stream.pages[len(shared) : stop]
        joining.which.append(number)
        return True

    def _begin(self, joining: "_Joining", limits: Limits) -> None:
        """Read what is new of the contexts, and seat the turns."""
        logits_uv = self._read([stream for _, stream in joining.readers.values()])
        self.cache.copy(joining.sources, joining.targets)
        device = self._policy.device
        vocabulary = self._policy.core.config.vocab_size
        seen_nv = None
        if limits.repetition_penalty != 1:
            seen_nv = torch.zeros(len(joining.turns), vocabulary, dtype=torch.bool)
            for row_v, turn in zip(seen_nv, joining.turns, strict=True):
                row_v[self._streams[self._running[turn][0].stream].ids] = True
            seen_nv = seen_nv.to(device)
        logits_nv = logits_uv[torch.tensor(joining.which).to(device)]
        stops_v = self._endings.table(limits)
        uniforms_nm = draw_uniforms(joining.draws, limits.max_tokens)
        self._decoding.join(joining.turns, logits_nv, uniforms_nm, limits, stops_v, seen_nv)

    def _read(self, streams: list[_Stream]) -> Tensor:
        """Take in what is new of streams; return the logits after it, one row each."""
        parts: list[list[_Stream]] = []
        size = 0
        most = PREFILL if self._decoder.packs else PREFILL_MASKED
        for stream in streams:
            new = len(stream.ids) - stream.cached
            if not parts or size + new > most:
                parts.append([])
                size = 0
            parts[-1].append(stream)
            size += new
        return torch.cat([self._compute(*self._pack(part))[0][: len(part)] for part in parts])

    def _pack(self, streams: list[_Stream]) -> tuple[Any, ...]:
        """Lay new tokens of streams back to back; on a GPU filled up to one of few shapes with
        tokens of nobody.
        """
        lengths = [len(s.ids) - s.cached for s in streams]
        totals = [len(s.ids) for s in streams]
        longest = max(lengths)
        longest_keys = max(totals)
        if fills_up := self._policy.device.type == "cuda":
            longest, longest_keys = (1 << (x - 1).bit_length() for x in (longest, longest_keys))
            fill = _rounded(sum(lengths)) - sum(lengths)
            fillers = [longest] * (fill // longest) + [fill % longest]
            fillers += [0] * (
                (1 << (len(lengths) + len(fillers)).bit_length()) - len(lengths) - len(fillers)
            )
            lengths = lengths + fillers
            totals = totals + fillers
        ids, positions, slots = np.zeros((3, sum(lengths)), np.int64)
        key_slots = np.zeros(_rounded(sum(totals)) if fills_up else sum(totals), np.int64)
        starts, key_starts = np.zeros((2, len(lengths) + 1), np.int32)
        np.cumsum(lengths, out=starts[1:])
        np.cumsum(totals, out=key_starts[1:])
        for stream, start, key_start in zip(
            streams, starts.tolist(), key_starts.tolist(), strict=False
        ):
            at = np.arange(len(stream.ids))
            own = (
                np.array(stream.pages)[at // self.cache.page] * self.cache.page
                + at % self.cache.page
            )
            place = slice(start, start + len(own) - stream.cached)
            ids[place] = stream.ids[stream.cached :]
            positions[place] = at[stream.cached :]
            slots[place] = own[stream.cached :]
            key_slots[key_start : key_start + len(own)] = own
        arrays = [
            ids,
            positions,
            slots,
            starts,
            key_starts,
            *([key_slots] if any(s.cached for s in streams) else []),
        ]
        ids_q, positions_q, slots_q, starts_n, key_starts_n, *keys = (
            torch.from_numpy(x).to(self._policy.device, non_blocking=True) for x in arrays
        )
        slots_l = keys[0] if keys else None
        return ids_q, positions_q, slots_q, starts_n, key_starts_n, longest, longest_keys, slots_l

    def read_contexts(
        self,
        ids_q: Tensor,
        positions_q: Tensor,
        slots_q: Tensor,
        starts_n: Tensor,
        key_starts_n: Tensor,
        longest: int,
        longest_keys: int,
        slots_l: Tensor | None,
    ) -> tuple[Tensor, ...]:
        """Run new tokens through the model, into their slots; return the logits after each segment.

        `slots_l` are those of all tokens of each segment's context, None where all of them are new.
        """
        self.cache.aim_packed(slots_q, slots_l)
        if self._decoder.packs:
            about: dict[str, Any] = {
                "packed": Packed(starts_n, key_starts_n, longest, longest_keys)
            }
        else:
            keys = torch.arange(len(slots_q if slots_l is None else slots_l), device=ids_q.device)
            segment_q = torch.bucketize(
                torch.arange(len(ids_q), device=ids_q.device), starts_n[1:].long(), right=True
            )
            place_ql = keys - key_starts_n[segment_q][:, None]
            about = {
                "attention_mask": ((place_ql >= 0) & (place_ql <= positions_q[:, None]))[None, None]
            }
        # Compiled layers would be compiled anew for every layer.
        with self._policy.arithmetic(), torch.compiler.set_stance("force_eager"):
            out = self._policy.core.get_decoder()(
                inputs_embeds=self._policy.embed(ids_q[None]),
                position_ids=positions_q[None],
                past_key_values=self.cache,
                use_cache=True,
                **about,
            )
        return (self._decoder.logits(out.last_hidden_state[0, starts_n[1:].long() - 1]).float(),)


class CopySampler(InProcessSampler):
    """A sampler with weights of its own: it goes on while the learner changes those that train."""

    pool = "apart"

    def __init__(
        self, policy: Policy, decoding: type[Decoding] = Decoding, budget: float | None = None
    ) -> None:
        own = policy.copy()
        super().__init__(own, decoding, budget)
        self._weights = dict(own.model.named_parameters())
        # weights that wait, and their version
        self._loading: tuple[Iterable[tuple[str, Tensor]], int] | None = None

    async def load(self, weights: Iterable[tuple[str, Tensor]] | Path, version: int) -> None:
        """Copy new weights as soon as the turns that run have ended; those that wait are sampled by
        the new ones.
        """
        assert not isinstance(weights, Path)
        self._loading = weights, version
        while self._loading is not None and self._serving is not None and not self._serving.done():
            await asyncio.sleep(0.001)
        if self._loading is not None:  # nothing runs, and nothing begins meanwhile
            self._is_loading = True
            try:
                await in_caller(self._take_weights)
            finally:
                self._is_loading = False

    def _admit(self) -> list[Answer]:
        return [] if self._loading is not None else super()._admit()

    def _take_weights(self) -> None:
        if self._loading is None or self._running:
            return
        weights, version = self._loading
        self._wait()  # for the update, which may be in another stream of the device
        with torch.no_grad():
            for name, tensor in weights:
                self._weights[name].copy_(tensor)
        self._wait()
        for stream in self._streams.values():  # keys and values of older weights
            self._evict(stream)
        self._version = version
        self._stale = True
        self._loading = None

    def _wait(self) -> None:
        if self._policy.device.type == "cuda":
            wait_for(self._policy.device)


@dataclass
class _Joining:
    """Turns that join at once."""

    turns: list[Turn] = field(default_factory=list)
    # seed, and random numbers drawn before
    draws: list[tuple[int, int]] = field(default_factory=list)
    # one for each distinct context
    readers: dict[tuple[int, ...], tuple[int, _Stream]] = field(default_factory=dict)
    which: list[int] = field(default_factory=list)  # the number of each turn's reader
    sources: list[int] = field(default_factory=list)  # pages of readers
    targets: list[int] = field(default_factory=list)  # and their copies


def draw_uniforms(draws: Sequence[tuple[int, int]], count: int) -> NDArray[np.float32]:
    """Return so many random numbers from 0 to 1 for each seed, after those drawn before: [n,
    count].

    A hash of seed and number (SplitMix64: Steele, Lea and Flood 2014), for all at once: a generator
    for each rollout takes longer to make than what it draws.
    """
    seeds_n1 = np.array([[seed % 2**64] for seed, _ in draws], np.uint64)
    numbers_nm = np.array([[before + 1] for _, before in draws], np.uint64) + np.arange(
        count, dtype=np.uint64
    )
    bits_nm = _mix(
        np.add(_mix(seeds_n1), numbers_nm * np.uint64(0x9E3779B97F4A7C15), dtype=np.uint64)
    )
    return (bits_nm >> np.uint64(40)).astype(np.float32) * np.float32(2**-24)


def _mix(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def _rounded(n: int) -> int:
    """Round up to one of four sizes between powers of two."""
    step = max(64, 1 << (n.bit_length() - 3))
    return -(-n // step) * step
