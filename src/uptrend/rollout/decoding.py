"""The decoding loop of a batch: choose, write, advance; retire rows that are done; a CUDA graph on a GPU.

Turns of many rollouts come in batches of every size. On a GPU the number of rows is rounded up to one of few
sizes, so that a graph captured once serves the turns to come; the rows that fill up belong to nobody.

n = row, v = vocabulary, m = sampled token of a turn.
"""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from uptrend.policy.graphed import shared_pool
from uptrend.rollout.cache import SlotCache
from uptrend.rollout.choice import choose
from uptrend.rollout.decoder import Decoder
from uptrend.rollout.sampler import Limits

RETIRE = 0.75
"""Rows are moved together once no more than this share of them is alive."""
FEWEST = 8
"""On a GPU, the rows that a batch has at least: fewer would hardly be faster."""
LOOK_EVERY = 8
"""On a GPU, how many tokens are decoded before the host asks who is done: asking waits for the device."""


@dataclass
class _State:
    """What changes from token to token, in tensors that keep their addresses."""

    tokens: Tensor
    positions: Tensor
    done: Tensor
    budget: Tensor
    uniforms_nm: Tensor
    ids_nm: Tensor
    logprobs_nm: Tensor
    order: Tensor
    turn: Tensor
    """How many tokens each row has sampled."""

    @classmethod
    def empty(cls, n: int, m: int, device: torch.device) -> "_State":
        def ints(*shape: int) -> Tensor:
            return torch.zeros(*shape, dtype=torch.long, device=device)

        def floats(*shape: int) -> Tensor:
            return torch.zeros(*shape, device=device)

        return cls(
            ints(n), ints(n), torch.zeros(n, dtype=torch.bool, device=device), ints(n), floats(n, m), ints(n, m),
            floats(n, m), ints(n), ints(n),
        )  # fmt: skip


class Decoding:
    """Samples turns to their end from the logits after their contexts."""

    def __init__(self, device: torch.device, decoder: Decoder, cache: SlotCache) -> None:
        self._device, self._decoder, self._cache = device, decoder, cache
        self._states: dict[int, _State] = {}
        self._graphs: dict[tuple[int, int, int, Limits], torch.cuda.CUDAGraph] = {}

    def forget_graphs(self) -> None:
        """The cache's buffers have moved."""
        self._graphs.clear()

    def rows_for(self, n: int) -> int:
        """How many rows of the cache a batch of n takes: on a GPU 8, 16, 32, 64, … of them."""
        return n if self._device.type == "cpu" else max(FEWEST, 1 << (n - 1).bit_length())

    def run(
        self,
        logits_nv: Tensor,
        lengths: list[int],
        uniforms_nm: NDArray[np.float32],
        budget: NDArray[np.int64],
        limits: Limits,
        stops_v: Tensor,
    ) -> tuple[NDArray[np.int64], NDArray[np.float32], list[int]]:
        """Token ids and log-probabilities in the order given, and which of the rows given now sits in each row.

        Rows that only fill up have numbers from `len(lengths)` on.
        """
        n, m = uniforms_nm.shape
        began = rows = self.rows_for(n)
        state = self._room(rows, m)
        self._cache.look(max(lengths) + int(budget.max()))
        if self._device.type == "cuda":
            self._graph(state, rows, limits, stops_v)  # capturing scribbles on the state: first
        self._begin(state, rows, lengths, uniforms_nm, budget)
        self._take(state, n, logits_nv, limits, stops_v)
        for k in range(1, int(budget.max())):
            if self._device.type == "cpu" or k % LOOK_EVERY == 0:
                alive = int((~state.done[:rows]).sum())
                if alive == 0:
                    break
                rows = self._retire(state, rows, alive)
            self._advance(state, rows, limits, stops_v)
        order = state.order[:began].cpu()
        back = torch.argsort(order)[:n]
        ids_nm, logprobs_nm = (x[:began].cpu()[back].numpy() for x in (state.ids_nm, state.logprobs_nm))
        return ids_nm, logprobs_nm, order.tolist()

    def _room(self, rows: int, m: int) -> _State:
        """A state with room for so many rows; a larger one makes graphs over the smaller one useless."""
        state = self._states.get(m)
        if state is None or len(state.tokens) < rows:
            self.forget_graphs()
            state = self._states[m] = _State.empty(rows, m, self._device)
        return state

    def _begin(
        self, s: _State, rows: int, lengths: list[int], uniforms_nm: NDArray[np.float32], budget: NDArray[np.int64]
    ) -> None:
        n = len(lengths)
        s.order[:rows] = torch.arange(rows, device=self._device)
        s.turn[:rows] = 0
        s.budget[:rows] = 0
        s.positions[:rows] = 0
        s.positions[:n] = (torch.tensor(lengths) - 1).to(self._device)  # `_take` moves on to the first free place
        s.uniforms_nm[:n] = torch.from_numpy(uniforms_nm).to(self._device)
        s.budget[:n] = torch.from_numpy(budget).to(self._device)
        s.done[:rows] = s.budget[:rows] <= 0

    def _take(self, s: _State, rows: int, logits_nv: Tensor, limits: Limits, stops_v: Tensor) -> None:
        """Choose each row's next token and note it."""
        turn = s.turn[:rows, None]
        tokens, logprobs = choose(logits_nv, s.uniforms_nm[:rows].gather(1, turn).squeeze(1), limits)
        s.ids_nm[:rows].scatter_(1, turn, tokens[:, None])
        s.logprobs_nm[:rows].scatter_(1, turn, logprobs[:, None])
        s.tokens[:rows] = tokens
        last = s.uniforms_nm.shape[1] - 1
        s.turn[:rows] = (s.turn[:rows] + 1).clamp(max=last)
        s.positions[:rows] = (s.positions[:rows] + 1).clamp(max=self._cache.reach - 1)
        s.done[:rows] |= stops_v[tokens] | (s.turn[:rows] >= s.budget[:rows])

    def _step(self, s: _State, rows: int, limits: Limits, stops_v: Tensor) -> None:
        logits = self._decoder(s.tokens[:rows], s.positions[:rows], self._cache)
        self._take(s, rows, logits, limits, stops_v)

    def _advance(self, s: _State, rows: int, limits: Limits, stops_v: Tensor) -> None:
        if self._device.type == "cuda":
            self._graph(s, rows, limits, stops_v).replay()
        else:
            self._step(s, rows, limits, stops_v)

    def _graph(self, s: _State, rows: int, limits: Limits, stops_v: Tensor) -> torch.cuda.CUDAGraph:
        """The step for so many rows as one launch, captured at its first use."""
        key = (s.uniforms_nm.shape[1], rows, self._cache.reach, limits)
        if key not in self._graphs:
            saved = [t.clone() for t in vars(s).values()]
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
            for tensor, value in zip(vars(s).values(), saved, strict=True):
                tensor.copy_(value)
        return self._graphs[key]

    def _retire(self, s: _State, rows: int, alive: int) -> int:
        """Put rows that are alive in front, where few enough are; how many are decoded from now on."""
        wanted = self.rows_for(alive)
        if wanted > RETIRE * rows:
            return rows
        front = torch.argsort(s.done[:rows].int(), stable=True)
        for tensor in (
            s.tokens,
            s.positions,
            s.done,
            s.budget,
            s.uniforms_nm,
            s.ids_nm,
            s.logprobs_nm,
            s.order,
            s.turn,
        ):
            tensor[:rows] = tensor[:rows][front]
        self._cache.permute(front)
        return wanted
