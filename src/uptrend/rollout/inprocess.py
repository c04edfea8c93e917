"""The sampler in this process, on the weights that train.

All turns that are waited for at once are one batch: contexts that are the same (a group's) are computed once
and shared, later turns pay only for what is new, rows that are done are retired, and on a GPU the decoding
step is a CUDA graph. A batch runs until all its turns have ended; turns that ask meanwhile make the next one. It runs
in the thread that waits for the plays, so that their tools' timers and connections go on.

n = row (a stream), u = distinct context, q = new token.
"""

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import torch
from torch import Tensor

from uptrend.policy.graphed import Graphed
from uptrend.policy.policy import Policy
from uptrend.rollout.cache import SlotCache
from uptrend.rollout.decoder import append, head, make_decoder
from uptrend.rollout.decoding import Decoding, Endings
from uptrend.rollout.sampler import Extension, Limits
from uptrend.tasks.event_loop import in_caller

# On a GPU prompts are padded to a multiple of this, so that their graphs are reused.
GRAIN = 16
# Tokens of contexts that go through the model at once.
PREFILL = 1 << 15
# Rounds of the event loop that a batch lasts at least. A tool that takes fewer (it awaits, but nothing outside of this
# process) has its next turn in the next batch however fast decoding is, so that batches do not depend on time.
PATIENCE = 16


@dataclass
class _SamplerStream:
    row: int  # its row in the cache
    length: int  # number of its tokens in the cache
    draws: np.random.Generator  # random generator of this rollout
    waiting: list[int] = field(default_factory=list)  # its newest sampled token, not yet in the cache
    context: list[int] = field(default_factory=list)  # all its tokens, kept for a repetition penalty alone


@dataclass(frozen=True)
class _Request:
    stream: int
    ids: Sequence[int]
    limits: Limits
    seed: int
    answer: asyncio.Future[Extension]


class InProcessSampler:
    """A sampler that shares its weights with the learner."""

    def __init__(self, policy: Policy, decoding: type[Decoding] = Decoding) -> None:
        self._policy = policy
        self._decoder = make_decoder(policy)
        self._cache = SlotCache(policy.core.config.num_hidden_layers, policy.device)
        self._decoding = decoding(policy.device, self._decoder, self._cache)
        self._endings = Endings(policy.tokenizer, policy.stop_ids, policy.core.config.vocab_size, policy.device)
        self._compute = Graphed(self.read_contexts, policy.device)
        self._streams: dict[int, _SamplerStream] = {}
        self._pending: list[_Request] = []
        self._serving: asyncio.Task[None] | None = None
        self._is_decoding = False
        self._released: list[int] = []
        self._version = 0
        self._stale = True
        self.prefilled = 0  # tokens that have gone through a prefill, for the record of what sharing saves

    async def extend(self, stream: int, ids: Sequence[int], limits: Limits, seed: int) -> Extension:
        loop = asyncio.get_running_loop()
        request = _Request(stream, ids, limits, seed, loop.create_future())
        self._pending.append(request)
        if self._serving is None or self._serving.done():
            self._serving = loop.create_task(self._serve())  # begins after every turn that is ready now has asked
        return await request.answer

    def release(self, stream: int) -> None:
        self._released.append(stream)
        self._forget_released()

    def load(self, tensors: Iterable[tuple[str, Tensor]], version: int) -> None:
        """Take the new version; the weights are the learner's own, so only what was copied from them is renewed."""
        del tensors
        self._version = version
        self._stale = True

    async def _serve(self) -> None:
        """Decode batch after batch while turns wait; those that ask meanwhile make the next batch."""
        while self._pending:
            await self._flush()
            await asyncio.sleep(0)  # turns that were answered, and whose tools answer at once, ask again

    async def _flush(self) -> None:
        requests, self._pending = self._pending, []
        requests = [r for r in requests if not r.answer.done()]  # some were cancelled
        for limits in dict.fromkeys(r.limits for r in requests):
            batch = [r for r in requests if r.limits == limits]
            batch.sort(key=lambda r: r.stream not in self._streams)  # streams with a past take the first rows
            self._is_decoding = True
            decoding = asyncio.ensure_future(in_caller(partial(self._decode, batch, limits)))
            try:
                for _ in range(PATIENCE):
                    await asyncio.sleep(0)
                for request, extension in zip(batch, await decoding, strict=True):
                    if not request.answer.done():  # its rollout was cancelled meanwhile
                        request.answer.set_result(extension)
            except Exception as error:  # every waiting turn must hear of it
                for request in batch:
                    if not request.answer.done():
                        request.answer.set_exception(error)
            finally:
                for request in batch:
                    request.answer.cancel()  # an interruption: all others are done by now
                self._is_decoding = False
                self._forget_released()

    def _forget_released(self) -> None:
        while self._released and not self._is_decoding:  # decoding, in another thread, goes through the streams
            self._streams.pop(self._released.pop(), None)

    def _decode(self, batch: list[_Request], limits: Limits) -> list[Extension]:
        with torch.inference_mode():
            return self._run(batch, limits)

    def _run(self, batch: list[_Request], limits: Limits) -> list[Extension]:
        if self._stale:
            self._decoder.renew()
            self._stale = False
        streams = self._place(batch)
        room = [limits.context - s.length - len(s.waiting) - len(r.ids) for s, r in zip(streams, batch, strict=True)]
        budget = np.clip(room, 0, limits.max_tokens)
        logits_nv = self._read(batch, streams, int(budget.max()))
        uniforms = np.stack([s.draws.random(limits.max_tokens, dtype=np.float32) for s in streams])
        lengths = [s.length for s in streams]
        seen_nv = self._seen(batch, streams) if limits.repetition_penalty != 1 else None
        ids, logprobs, supports, order = self._decoding.run(
            logits_nv, lengths, uniforms, budget, limits, self._endings.table(limits), seen_nv
        )
        for row, original in enumerate(order):
            if original < len(streams):
                streams[original].row = row
        extensions = []
        for stream, said, scores, drawn, most in zip(streams, ids, logprobs, supports, budget, strict=True):
            count, ended = self._endings.find(said[:most], limits)
            if count:
                stream.length += count - 1  # the last sampled token has not been read back yet
                stream.waiting = [int(said[count - 1])]
            turn = said[:count].astype(np.int32), scores[:count].astype(np.float32)
            if seen_nv is not None:
                stream.context += turn[0].tolist()
            could_mk = drawn[:count] >= 0
            support = (could_mk.sum(1).astype(np.int32), drawn[:count][could_mk]) if limits.width else None
            extensions.append(Extension(*turn, ended, self._version, support))
        return extensions

    def _seen(self, batch: list[_Request], streams: list[_SamplerStream]) -> Tensor:
        """Mark the tokens of the vocabulary that each stream's context holds."""
        seen_nv = torch.zeros(len(batch), self._policy.core.config.vocab_size, dtype=torch.bool)
        for row_v, request, stream in zip(seen_nv, batch, streams, strict=True):
            stream.context += request.ids
            row_v[stream.context] = True
        return seen_nv.to(self._policy.device)

    def _place(self, batch: list[_Request]) -> list[_SamplerStream]:
        """Give each stream of the batch the row of its place in it; other streams move behind all that it takes."""
        fresh = [r for r in batch if r.stream not in self._streams]
        for request in fresh:
            self._streams[request.stream] = _SamplerStream(-1, 0, np.random.default_rng(request.seed))
        streams = [self._streams[r.stream] for r in batch]
        chosen = {id(s) for s in streams}
        others = [s for s in self._streams.values() if s.row >= 0 and id(s) not in chosen]
        gap: list[_SamplerStream | None] = [None] * (self._decoding.rows_for(len(batch)) - len(batch))
        wanted = [*streams, *gap, *others]
        self._grow(len(wanted), 0)
        if any(s is not None and 0 <= s.row != place for place, s in enumerate(wanted)):
            free = iter(sorted(set(range(self._cache.shape[0])) - {s.row for s in wanted if s is not None}))
            order = [s.row if s is not None and s.row >= 0 else next(free) for s in wanted]
            self._cache.permute(torch.tensor(order, device=self._policy.device))
        for place, stream in enumerate(wanted):
            if stream is not None:
                stream.row = place
        return streams

    def _read(self, batch: list[_Request], streams: list[_SamplerStream], budget: int) -> Tensor:
        """Take in what is new of every stream; return the logits after it, one row each."""
        device, vocabulary = self._policy.device, self._policy.core.config.vocab_size
        logits_nv = torch.empty(len(batch), vocabulary, device=device)
        later = sum(s.length > 0 for s in streams)
        if later:
            news = [[*s.waiting, *r.ids] for s, r in zip(streams[:later], batch[:later], strict=True)]
            logits_nv[:later] = self._reread(news, streams[:later], budget)
        if later < len(batch):
            logits_nv[later:] = self._prefill([tuple(r.ids) for r in batch[later:]], later, budget)
        for request, stream in zip(batch, streams, strict=True):
            stream.length += len(stream.waiting) + len(request.ids)
            stream.waiting = []
        return logits_nv

    def _prefill(self, contexts: list[tuple[int, ...]], first: int, budget: int) -> Tensor:
        """Compute each distinct context once, then copy it to every row that has it."""
        distinct = list(dict.fromkeys(contexts))
        ids_ut, lengths_u = _pad(distinct, self._policy.device, GRAIN)
        self.prefilled += sum(map(len, distinct))
        shares = -(-ids_ut.numel() // PREFILL)
        parts = [self._compute(*part) for part in zip(ids_ut.chunk(shares), lengths_u.chunk(shares), strict=True)]
        logits_uv = torch.cat([part[0] for part in parts])
        keys, values = (torch.cat([part[i] for part in parts], 1) for i in (1, 2))
        place = {context: i for i, context in enumerate(distinct)}
        which = torch.tensor([place[c] for c in contexts], device=self._policy.device)
        rows = self._decoding.rows_for(first + len(contexts))
        self._grow(max(rows, self._cache.shape[0]), ids_ut.shape[1] + budget, keys)
        self._cache.fill(first, keys[:, which], values[:, which])
        return logits_uv[which]

    def read_contexts(self, ids_ut: Tensor, lengths_u: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Run whole contexts through the model; return the logits after each, and all keys and values."""
        from transformers import DynamicCache

        past = DynamicCache()
        # Compiled layers would be compiled anew for every layer of a growing cache.
        with self._policy.arithmetic(), torch.compiler.set_stance("force_eager"):
            out = self._policy.core.get_decoder()(input_ids=ids_ut, past_key_values=past, use_cache=True)
        rows = torch.arange(len(ids_ut), device=ids_ut.device)
        logits_uv = head(self._policy, out.last_hidden_state[rows, lengths_u - 1]).float()
        dtype = torch.bfloat16 if self._policy.device.type == "cuda" else past.layers[0].values.dtype
        keys, values = (torch.stack([getattr(x, n) for x in past.layers]).to(dtype) for n in ("keys", "values"))
        return logits_uv, keys, values

    def _reread(self, news: list[list[int]], streams: list[_SamplerStream], budget: int) -> Tensor:
        """Read a later turn: only what was said since goes through the model."""
        ids_nq, lengths_n = _pad(news, self._policy.device)
        self.prefilled += sum(map(len, news))
        starts = torch.tensor([s.length for s in streams], device=self._policy.device)
        positions_nq = starts[:, None] + torch.arange(ids_nq.shape[1], device=self._policy.device)
        last = int(positions_nq.max()) + 1
        self._grow(0, last + budget)
        self._cache.cover(last)
        hidden = append(self._policy, ids_nq, positions_nq, self._cache)
        return head(self._policy, hidden[torch.arange(len(news)), lengths_n - 1]).float()

    def _grow(self, rows: int, length: int, like: Tensor | None = None) -> None:
        like = self._cache.keys if like is None else like
        if like.numel() and self._cache.reserve(rows, length, like):
            self._decoding.forget_graphs()


def _pad(lists: Sequence[Sequence[int]], device: torch.device, grain: int = 1) -> tuple[Tensor, Tensor]:
    """Pad ids to the right: causal attention never sees what follows. Return the true lengths too."""
    width = max(map(len, lists))
    width = -(-width // grain) * grain if device.type == "cuda" else width
    ids = torch.tensor([[*tokens, *[0] * (width - len(tokens))] for tokens in lists])
    return ids.to(device), torch.tensor([len(x) for x in lists]).to(device)
