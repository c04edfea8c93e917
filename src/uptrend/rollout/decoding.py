"""The decoding loop of a batch: choose, write, advance; retire rows that are done; a CUDA graph on a GPU.

A token is chosen from its logits with one uniform number: the token at which the cumulative probability passes u. One
number per token from the rollout's own generator makes a rollout independent of the others in its batch. The sum runs
in two levels, over blocks of the vocabulary and then inside the block that u falls into: a running sum over the whole
vocabulary would take longer than the model's own step on a GPU.

Turns of many rollouts come in batches of every size. On a GPU the number of rows is rounded up to one of few
sizes, so that a graph captured once serves the turns to come; the rows that fill up belong to nobody.

n = row, v = vocabulary, c = block, w = place in a block, m = sampled token of a turn, k = token that could be drawn.
"""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from uptrend.policy.graphed import shared_pool
from uptrend.policy.logprobs import penalize
from uptrend.records import Ending
from uptrend.rollout.cache import SlotCache
from uptrend.rollout.decoder import Decoder
from uptrend.rollout.sampler import Limits

BLOCK = 256


def choose(
    logits_nv: Tensor, uniforms_n: Tensor, limits: Limits, seen_nv: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Choose one token per row; return its log-probability in the distribution that it was drawn from too.

    Where limits leave tokens out, those that could be drawn are returned as well, -1 in the place of the others.
    """
    logits = logits_nv.float()
    if seen_nv is not None:
        logits = penalize(logits, seen_nv, limits.repetition_penalty)
    if limits.temperature not in (0, 1):
        logits = logits / limits.temperature
    if limits.width:
        return _choose_among_likeliest(logits, uniforms_n, limits)
    top_n, best_n = logits.max(-1)
    mass_nv = (logits - top_n[:, None]).exp_()
    mass_nv = torch.nn.functional.pad(mass_nv, (0, -mass_nv.shape[-1] % BLOCK))  # the last block is filled up
    mass_ncw = mass_nv.reshape(len(mass_nv), -1, BLOCK)
    mass_nc = mass_ncw.sum(-1)
    total_n = mass_nc.sum(-1)
    token_n = best_n if limits.temperature == 0 else _invert(mass_ncw, mass_nc, uniforms_n)
    chosen_n = logits.gather(-1, token_n[:, None]).squeeze(-1)
    return token_n, chosen_n - top_n - total_n.log(), None


def _invert(mass_ncw: Tensor, mass_nc: Tensor, uniforms_n: Tensor) -> Tensor:
    """Return the place where the running sum passes u times the whole; never a token without mass."""
    sum_nc = mass_nc.cumsum(-1)
    aim_n = uniforms_n.clamp(max=1 - 1e-6) * sum_nc[:, -1]
    block_n = (sum_nc <= aim_n[:, None]).sum(-1).clamp(max=mass_nc.shape[-1] - 1)
    before_n = (sum_nc - mass_nc).gather(-1, block_n[:, None])
    inside_nw = mass_ncw[torch.arange(len(block_n), device=block_n.device), block_n]
    sum_nw = inside_nw.cumsum(-1) + before_n
    passed_nw = sum_nw > aim_n[:, None]
    # Rounding can leave u just past the block's own sum: then its last token with any mass is meant.
    last_n = BLOCK - 1 - (inside_nw > 0).flip(-1).int().argmax(-1)
    place_n = torch.where(passed_nw.any(-1), (passed_nw & (inside_nw > 0)).int().argmax(-1), last_n)
    return block_n * BLOCK + place_n


def _choose_among_likeliest(logits: Tensor, uniforms_n: Tensor, limits: Limits) -> tuple[Tensor, Tensor, Tensor]:
    """Choose where top-k, then top-p, then min-p leave tokens out; the likeliest one always stays."""
    top_nk, ids_nk = logits.topk(min(limits.width, logits.shape[-1]), -1)
    log_p_nk = top_nk - (top_nk if limits.top_k else logits).logsumexp(-1, keepdim=True)
    p_nk = log_p_nk.exp()
    beyond_nk = p_nk < limits.min_p * p_nk[:, :1]
    if limits.top_p < 1:
        beyond_nk |= p_nk.cumsum(-1) - p_nk >= limits.top_p  # what came before already reached it
    sum_nk = p_nk.masked_fill(beyond_nk, 0).cumsum(-1)
    aim_n1 = uniforms_n[:, None].clamp(max=1 - 1e-6) * sum_nk[:, -1:]
    place_n1 = (sum_nk <= aim_n1).sum(-1, keepdim=True).clamp(max=sum_nk.shape[1] - 1)
    logprob_n = (log_p_nk.gather(-1, place_n1) - sum_nk[:, -1:].log()).squeeze(-1)
    return ids_nk.gather(-1, place_n1).squeeze(-1), logprob_n, ids_nk.masked_fill(beyond_nk, -1)


class Endings:
    """Knows every token that ends a turn, by itself or because its text holds a stop text."""

    def __init__(self, tokenizer: Any, stop_ids: tuple[int, ...], vocabulary: int, device: torch.device) -> None:
        self._tokenizer, self._stop_ids = tokenizer, set(stop_ids)
        self._vocabulary, self._device = vocabulary, device
        self._tables: dict[tuple[str, ...], Tensor] = {}

    def table(self, limits: Limits) -> Tensor:
        """Return one flag per token of the vocabulary: True where a turn surely ends with it."""
        if limits.stop not in self._tables:
            known = min(self._vocabulary, len(self._tokenizer))
            texts = self._tokenizer.batch_decode([[i] for i in range(known)]) if limits.stop else []
            ends = torch.zeros(self._vocabulary, dtype=torch.bool)
            ends[[i for i, text in enumerate(texts) if any(stop in text for stop in limits.stop)]] = True
            ends[[i for i in self._stop_ids if i < self._vocabulary]] = True
            self._tables[limits.stop] = ends.to(self._device)
        return self._tables[limits.stop]

    def find(self, ids: NDArray[np.int64], limits: Limits) -> tuple[int, Ending]:
        """Return the number of sampled tokens that belong to the turn, and what ended it."""
        # A token is at least a byte of a stop text: no more than these last ones can hold it.
        last = max([16, *(len(stop.encode()) for stop in limits.stop)])
        for count, token in enumerate(ids, 1):
            if int(token) in self._stop_ids:
                return count, Ending.STOP_TOKEN
            text = self._tokenizer.decode(ids[max(0, count - last) : count]) if limits.stop else ""
            if any(stop in text for stop in limits.stop):
                return count, Ending.STOP_TEXT
        return len(ids), Ending.LENGTH if len(ids) == limits.max_tokens else Ending.CONTEXT_FULL


# Rows are moved together once no more than this share of them is alive.
RETIRE = 0.75
# On a GPU, the rows that a batch has at least: fewer would hardly be faster.
FEWEST = 8
# On a GPU, how many tokens are decoded before the host asks who is done: asking waits for the device.
LOOK_EVERY = 8


class _State:
    """State of up to n rows that changes from token to token, in tensors that keep their addresses."""

    def __init__(self, n: int, m: int, k: int, v: int, device: torch.device) -> None:
        self.tokens, self.positions, self.budget, self.order = torch.zeros(4, n, dtype=torch.long, device=device)
        self.turn = torch.zeros(n, dtype=torch.long, device=device)  # number of tokens that each row has sampled
        self.done = torch.zeros(n, dtype=torch.bool, device=device)
        self.uniforms_nm, self.logprobs_nm = torch.zeros(2, n, m, device=device)
        self.ids_nm = torch.zeros(n, m, dtype=torch.long, device=device)
        self.support_nmk = torch.zeros(n, m, k, dtype=torch.int32, device=device)  # k is 0 where all can be drawn
        self.seen_nv = torch.zeros(n, v, dtype=torch.bool, device=device)  # v is 0 without a repetition penalty

    @property
    def tensors(self) -> list[Tensor]:
        """All of it."""
        return list(vars(self).values())


class Decoding:
    """Samples turns to their end from the logits after their contexts."""

    def __init__(self, device: torch.device, decoder: Decoder, cache: SlotCache) -> None:
        self._device, self._decoder, self._cache = device, decoder, cache
        self._states: dict[tuple[int, int, int], _State] = {}
        self._graphs: dict[tuple[int, int, int, Limits], torch.cuda.CUDAGraph] = {}

    def forget_graphs(self) -> None:
        """Drop all graphs: the cache's buffers have moved."""
        self._graphs.clear()

    def rows_for(self, n: int) -> int:
        """Return the rows of the cache that a batch of n takes: on a GPU 8, 16, 32, 64, … of them."""
        return n if self._device.type == "cpu" else max(FEWEST, 1 << (n - 1).bit_length())

    def run(
        self, logits_nv: Tensor, lengths: list[int], uniforms_nm: NDArray[np.float32], budget: NDArray[np.int64],
        limits: Limits, stops_v: Tensor, seen_nv: Tensor | None = None,
    ) -> tuple[NDArray[np.int64], NDArray[np.float32], NDArray[np.int32], list[int]]:  # fmt: skip
        """Return token ids, log-probabilities and supports in the order given, and the row that sits in each row now.

        Rows that only fill up have numbers from `len(lengths)` on. `seen_nv` has the tokens of each row's context,
        for a repetition penalty.
        """
        n, m = uniforms_nm.shape
        began = rows = self.rows_for(n)
        shape = m, min(limits.width, logits_nv.shape[1]), 0 if seen_nv is None else logits_nv.shape[1]
        state = self._states.get(shape)
        if state is None or len(state.tokens) < rows:
            self.forget_graphs()  # those over a smaller state are useless
            state = self._states[shape] = _State(rows, *shape, self._device)
        self._cache.cover(max(lengths) + int(budget.max()))
        if self._device.type == "cuda":
            self._graph(state, rows, limits, stops_v)  # capturing scribbles on the state: first
        for tensor in (state.turn, state.budget, state.positions):
            tensor[:rows] = 0
        state.order[:rows] = torch.arange(rows, device=self._device)
        state.positions[:n] = (torch.tensor(lengths) - 1).to(self._device)  # `_take` moves on to the first free place
        state.uniforms_nm[:n] = torch.from_numpy(uniforms_nm).to(self._device)
        state.budget[:n] = torch.from_numpy(budget).to(self._device)
        state.done[:rows] = state.budget[:rows] <= 0
        if seen_nv is not None:
            state.seen_nv[:n] = seen_nv
        self._take(state, n, logits_nv, limits, stops_v)
        for k in range(1, int(budget.max())):
            if self._device.type == "cpu" or k % LOOK_EVERY == 0:
                alive = int((~state.done[:rows]).sum())
                if alive == 0:
                    break
                rows = self._retire(state, rows, alive)
            if self._device.type == "cuda":
                self._graph(state, rows, limits, stops_v).replay()
            else:
                self._step(state, rows, limits, stops_v)
        order = state.order[:began].cpu()
        back = torch.argsort(order)[:n]
        said = (x[:began].cpu()[back].numpy() for x in (state.ids_nm, state.logprobs_nm, state.support_nmk))
        return (*said, order.tolist())

    def _take(self, s: _State, rows: int, logits_nv: Tensor, limits: Limits, stops_v: Tensor) -> None:
        """Choose each row's next token and note it."""
        turn = s.turn[:rows, None]
        seen_nv = s.seen_nv[:rows] if s.seen_nv.shape[1] else None
        uniforms_n = s.uniforms_nm[:rows].gather(1, turn).squeeze(1)
        tokens, logprobs, support_nk = choose(logits_nv, uniforms_n, limits, seen_nv)
        s.ids_nm[:rows].scatter_(1, turn, tokens[:, None])
        s.logprobs_nm[:rows].scatter_(1, turn, logprobs[:, None])
        if support_nk is not None:
            place = turn[:, :, None].expand(-1, -1, support_nk.shape[1])
            s.support_nmk[:rows].scatter_(1, place, support_nk[:, None].int())
        if seen_nv is not None:
            seen_nv.scatter_(1, tokens[:, None], True)
        s.tokens[:rows] = tokens
        last = s.uniforms_nm.shape[1] - 1
        s.turn[:rows] = (s.turn[:rows] + 1).clamp(max=last)
        s.positions[:rows] = (s.positions[:rows] + 1).clamp(max=self._cache.reach - 1)
        s.done[:rows] |= stops_v[tokens] | (s.turn[:rows] >= s.budget[:rows])

    def _step(self, s: _State, rows: int, limits: Limits, stops_v: Tensor) -> None:
        logits = self._decoder(s.tokens[:rows], s.positions[:rows], self._cache)
        self._take(s, rows, logits, limits, stops_v)

    def _graph(self, s: _State, rows: int, limits: Limits, stops_v: Tensor) -> torch.cuda.CUDAGraph:
        """Return the step for so many rows as one launch, captured at its first use."""
        key = (s.uniforms_nm.shape[1], rows, self._cache.reach, limits)  # limits decide on the state's other sizes
        if key not in self._graphs:
            saved = [tensor.clone() for tensor in s.tensors]
            s.positions.fill_(self._cache.reach - 1)  # warm-ups write where a real token will be written over
            side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                self._step(s, rows, limits, stops_v)
            torch.cuda.current_stream().wait_stream(side)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, pool=shared_pool(self._device)):
                self._step(s, rows, limits, stops_v)
            self._graphs[key] = graph
            for tensor, value in zip(s.tensors, saved, strict=True):
                tensor.copy_(value)
        return self._graphs[key]

    def _retire(self, s: _State, rows: int, alive: int) -> int:
        """Put rows that are alive in front, where few enough are; return how many are decoded from now on."""
        wanted = self.rows_for(alive)
        if wanted > RETIRE * rows:
            return rows
        front = torch.argsort(s.done[:rows].int(), stable=True)
        for tensor in s.tensors:
            tensor[:rows] = tensor[:rows][front]
        self._cache.permute(front)
        return wanted
