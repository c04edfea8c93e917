"""The decoding loop of all turns that run: choose, write, advance; a CUDA graph on a GPU.

A token is chosen from its logits with one uniform number: the token at which the cumulative
probability passes u. One number per token from the rollout's own generator makes a rollout
independent of the others in its batch. The sum runs in two levels, over blocks of the vocabulary
and then inside the block that u falls into: a running sum over the whole vocabulary would take
longer than the model's own step on a GPU.

Each running turn has a seat: its places in tensors that keep their addresses. A step takes the
seats that are alive as its rows, so that turns come and go without anything being moved. On a GPU
the number of rows is rounded up to one of few sizes, each with a graph that is captured once; seat
0 belongs to nobody and fills up. A turn that is done stays as it is until the host has seen so.

n = row, v = vocabulary, c = block, w = place in a block, m = sampled token of a turn, k = token
that could be drawn.
"""

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from uptrend.policy.graphed import TOGETHER, capturing
from uptrend.policy.logprobs import penalize
from uptrend.records import Ending
from uptrend.rollout.cache import PagedCache
from uptrend.rollout.decoder import Decoder
from uptrend.rollout.sampler import Limits

BLOCK = 256


def choose(
    logits_nv: Tensor, uniforms_n: Tensor, limits: Limits, seen_nv: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Choose one token per row; return its log-probability in the distribution that it was drawn
    from too.

    Where limits leave tokens out, those that could be drawn are returned as well, -1 in the place
    of the others.
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
    if missing := -mass_nv.shape[-1] % BLOCK:
        mass_nv = torch.nn.functional.pad(mass_nv, (0, missing))  # the last block is filled up
    mass_ncw = mass_nv.reshape(len(mass_nv), -1, BLOCK)
    mass_nc = mass_ncw.sum(-1)
    total_n = mass_nc.sum(-1)
    token_n = best_n if limits.temperature == 0 else _invert(mass_ncw, mass_nc, uniforms_n)
    chosen_n = logits.gather(-1, token_n[:, None]).squeeze(-1)
    return token_n, chosen_n - top_n - total_n.log(), None


def _invert(mass_ncw: Tensor, mass_nc: Tensor, uniforms_n: Tensor) -> Tensor:
    """Return the place where the running sum passes u times the whole; never a token without
    mass.
    """
    sum_nc = mass_nc.cumsum(-1)
    aim_n = uniforms_n.clamp(max=1 - 1e-6) * sum_nc[:, -1]
    block_n = (sum_nc <= aim_n[:, None]).sum(-1).clamp(max=mass_nc.shape[-1] - 1)
    before_n = (sum_nc - mass_nc).gather(-1, block_n[:, None])
    inside_nw = mass_ncw[torch.arange(len(block_n), device=block_n.device), block_n]
    sum_nw = inside_nw.cumsum(-1) + before_n
    passed_nw = sum_nw > aim_n[:, None]
    # Rounding can leave u just past the block's own sum: then its last token with any mass is
    # meant.
    last_n = BLOCK - 1 - (inside_nw > 0).flip(-1).int().argmax(-1)
    place_n = torch.where(passed_nw.any(-1), (passed_nw & (inside_nw > 0)).int().argmax(-1), last_n)
    return block_n * BLOCK + place_n


def _choose_among_likeliest(
    logits: Tensor, uniforms_n: Tensor, limits: Limits
) -> tuple[Tensor, Tensor, Tensor]:
    """Choose where top-k, then top-p, then min-p leave tokens out; the likeliest one always
    stays.
    """
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

    def __init__(
        self, tokenizer: Any, stop_ids: tuple[int, ...], vocabulary: int, device: torch.device
    ) -> None:
        self._tokenizer = tokenizer
        self._stop_ids = set(stop_ids)
        self._vocabulary = vocabulary
        self._device = device
        self._tables: dict[tuple[str, ...], Tensor] = {}

    def table(self, limits: Limits) -> Tensor:
        """Return one flag per token of the vocabulary: True where a turn surely ends with it."""
        if limits.stop not in self._tables:
            known = min(self._vocabulary, len(self._tokenizer))
            texts = self._tokenizer.batch_decode([[i] for i in range(known)]) if limits.stop else []
            ends = torch.zeros(self._vocabulary, dtype=torch.bool)
            ends[
                [i for i, text in enumerate(texts) if any(stop in text for stop in limits.stop)]
            ] = True
            ends[[i for i in self._stop_ids if i < self._vocabulary]] = True
            self._tables[limits.stop] = ends.to(self._device)
        return self._tables[limits.stop]

    def find(self, ids: NDArray[np.int64], limits: Limits) -> tuple[int, Ending]:
        """Return the number of sampled tokens that belong to the turn, and what ended it."""
        count = len(ids)
        # nothing is sampled after a stop token
        has_stopped = count > 0 and int(ids[-1]) in self._stop_ids
        if limits.stop and self._has_stop(ids, limits):
            # A text that holds a stop text holds it with more tokens too.
            text_at = (
                bisect_left(
                    range(1, count + 1), True, key=lambda n: self._has_stop(ids[:n], limits)
                )
                + 1
            )
            if text_at < count or not has_stopped:
                return text_at, Ending.STOP_TEXT
        if has_stopped:
            return count, Ending.STOP_TOKEN
        return len(ids), Ending.LENGTH if len(ids) == limits.max_tokens else Ending.CONTEXT_FULL

    def _has_stop(self, ids: NDArray[np.int64], limits: Limits) -> bool:
        # the last one by itself, as in the table
        texts = self._tokenizer.batch_decode([ids, ids[-1:]])
        return any(stop in text for text in texts for stop in limits.stop)


# On a GPU, the rows that a step has at least: fewer would hardly be faster.
FEWEST = 8
# Tokens that are decoded before the host looks who is done: on a GPU looking waits for the device.
LOOK_EVERY = 8
# On a GPU, what attention covers is rounded up to this where it does not follow each row's length.
REACH = 256


@dataclass(eq=False)
class Turn:
    """A turn that runs."""

    pages: list[int]  # pages of its stream, enough for all that it may say
    length: int  # tokens of its context
    budget: int  # the most tokens that it may say
    seat: int = 0
    since: int = 0  # number of steps that were made before it came


class Said(NamedTuple):
    """Everything that was sampled for a turn."""

    ids: NDArray[np.int64]
    logprobs: NDArray[np.float32]
    support_mk: NDArray[np.int32]


class _State:
    """State of turns that changes from token to token, one row for each seat."""

    def __init__(self, seats: int, m: int, k: int, v: int, p: int, device: torch.device) -> None:
        self.tokens, self.positions, self.budget, self.turn = torch.zeros(
            4, seats, dtype=torch.long, device=device
        )
        self.done = torch.ones(seats, dtype=torch.bool, device=device)
        self.table_np = torch.zeros(seats, p, dtype=torch.long, device=device)
        # The last column is written by those that are done.
        self.uniforms_nm, self.logprobs_nm = torch.zeros(2, seats, m + 1, device=device)
        self.ids_nm = torch.zeros(seats, m + 1, dtype=torch.long, device=device)
        # k is 0 where all can come
        self.support_nmk = torch.zeros(seats, m + 1, k, dtype=torch.int32, device=device)
        # v is 0 without a repetition penalty
        self.seen_nv = torch.zeros(seats, v, dtype=torch.bool, device=device)
        self.rows = torch.zeros(seats, dtype=torch.long, device=device)  # seats that a step decodes

    def take_over(self, other: "_State") -> None:
        """Copy the first seats from a smaller state."""
        for name, tensor in vars(other).items():
            getattr(self, name)[: len(tensor)] = tensor


class Decoding:
    """Samples turns from the logits after their contexts on, all of the same limits."""

    def __init__(
        self, device: torch.device, decoder: Decoder, cache: PagedCache, pool: str = TOGETHER
    ) -> None:
        self._device = device
        self._decoder = decoder
        self._cache = cache
        self._pool = pool
        self._states: dict[tuple[int, int, int, int], _State] = {}
        self._shape = 0, 0, 0, 0
        self._limits = Limits(0, 0)
        self._stops_v = torch.empty(0)
        self._graphs: dict[tuple[int, int, Limits], torch.cuda.CUDAGraph] = {}
        self._turns: dict[int, Turn] = {}  # by seat
        self._steps = 0

    def forget_graphs(self) -> None:
        """Drop all graphs: buffers have moved."""
        self._graphs.clear()

    def rows_for(self, n: int) -> int:
        """Return the rows of a step for n turns: on a GPU 8, 16, 32, 64, … of them."""
        return n if self._device.type == "cpu" else max(FEWEST, 1 << (n - 1).bit_length())

    def join(
        self,
        turns: Sequence[Turn],
        logits_nv: Tensor,
        uniforms_nm: NDArray[np.float32],
        limits: Limits,
        stops_v: Tensor,
        seen_nv: Tensor | None = None,
    ) -> None:
        """Seat turns beside those that run and choose their first tokens.

        `seen_nv` has the tokens of each turn's context, for a repetition penalty.
        """
        v = logits_nv.shape[1]
        width = self._cache.pages_for(limits.context)
        self._shape = limits.max_tokens, min(limits.width, v), 0 if seen_nv is None else v, width
        self._limits = limits
        self._stops_v = stops_v
        s = self._with_seats(len(self._turns) + len(turns))
        free = (seat for seat in range(1, len(s.done)) if seat not in self._turns)
        for turn, seat in zip(turns, free, strict=False):
            turn.seat = seat
            turn.since = self._steps
            self._turns[seat] = turn
        rows = np.zeros((len(turns), 3 + width), np.int64)
        for row, turn in zip(rows, turns, strict=True):
            # `_take` moves on to the first free position
            row[:3] = turn.seat, turn.budget, turn.length - 1
            row[3 : 3 + len(turn.pages)] = turn.pages
        about = torch.from_numpy(rows).to(self._device, non_blocking=True)
        at = about[:, 0].contiguous()
        s.budget[at] = about[:, 1]
        s.positions[at] = about[:, 2]
        s.table_np[at] = about[:, 3:]
        s.turn[at] = 0
        s.done[at] = False
        s.uniforms_nm[at, :-1] = torch.from_numpy(uniforms_nm).to(self._device, non_blocking=True)
        if seen_nv is not None:
            s.seen_nv[at] = seen_nv
        self._take(s, at, logits_nv)

    def run(self) -> None:
        """Decode some tokens; on a CPU until somebody is done, on a GPU without waiting for the
        device.
        """
        turns = list(self._turns.values())
        steps = min(
            LOOK_EVERY, max((t.budget - self._steps + t.since for t in turns), default=1) - 1
        )
        if steps <= 0:
            return
        s = self._states[self._shape]
        n = self.rows_for(len(turns))
        rows = [turn.seat for turn in turns] + [0] * (n - len(turns))
        if self._device.type == "cuda":
            replay = self._graph(s, n, turns).replay  # a capture fills the rows with nobody: first
            s.rows[:n] = torch.tensor(rows).to(self._device, non_blocking=True)
            for _ in range(steps):
                replay()
            self._steps += steps
            return
        s.rows[:n] = torch.tensor(rows)
        firsts = [
            t.pages[0] if t.pages == list(range(t.pages[0], t.pages[-1] + 1)) else 0 for t in turns
        ]
        firsts += [0] * (n - len(turns))
        reach = max(turn.length - turn.since for turn in turns) + 1
        while steps and not s.done[s.rows[: len(turns)]].any():
            self._cache.cover(reach + self._steps, firsts)
            self._step(s, s.rows[:n])
            self._steps += 1
            steps -= 1

    def ended(self) -> list[Turn]:
        """Return turns that are done, in the order in which they came; waits for the device."""
        if not self._turns:
            return []
        done = self._states[self._shape].done.tolist()
        return [turn for seat, turn in self._turns.items() if done[seat]]

    def drop(self, turns: Iterable[Turn]) -> None:
        """Free the turns' seats."""
        for turn in turns:
            self._turns.pop(turn.seat, None)

    def take_out(self, turns: Sequence[Turn]) -> list[Said]:
        """Free the turns' seats; return what they said."""
        s = self._states[self._shape]
        at = torch.tensor([turn.seat for turn in turns]).to(self._device)
        self.drop(turns)
        counts = s.turn[at].tolist()
        said = [
            x[at, : max(counts)].cpu().numpy() for x in (s.ids_nm, s.logprobs_nm, s.support_nmk)
        ]
        return [Said(*(x[row, :count] for x in said)) for row, count in enumerate(counts)]

    def _with_seats(self, count: int) -> _State:
        """Return the state of these limits with seats for so many turns and for nobody."""
        old = self._states.get(self._shape)
        seats = self.rows_for(count) + 1
        if old is None or len(old.done) < seats:
            self.forget_graphs()  # those over a smaller state are useless
            new = self._states[self._shape] = _State(seats, *self._shape, self._device)
            if old is not None:
                new.take_over(old)
        return self._states[self._shape]

    def _take(self, s: _State, rows: Tensor, logits_nv: Tensor) -> None:
        """Choose each row's next token and note it; rows that are done stay as they are."""
        if self._decoder.kernels is not None and s.support_nmk.shape[2] == s.seen_nv.shape[1] == 0:
            self._decoder.kernels.pick(logits_nv, rows, s, self._stops_v, self._limits.temperature)
            return
        turn = s.turn[rows]
        done = s.done[rows]
        positions = s.positions[rows]
        place = turn.masked_fill(done, s.ids_nm.shape[1] - 1)
        seen_nv = s.seen_nv[rows] if s.seen_nv.shape[1] else None
        tokens, logprobs, support_nk = choose(
            logits_nv, s.uniforms_nm[rows, place], self._limits, seen_nv
        )
        s.ids_nm[rows, place] = tokens
        s.logprobs_nm[rows, place] = logprobs
        if support_nk is not None:
            s.support_nmk[rows, place] = support_nk.int()
        if seen_nv is not None:
            # a number would be copied from the host
            s.seen_nv[rows, tokens] = torch.ones_like(done)
        s.tokens[rows] = torch.where(done, s.tokens[rows], tokens)
        s.turn[rows] = turn + ~done
        s.positions[rows] = positions + ~done
        s.done[rows] = done | self._stops_v[tokens] | (turn + 1 >= s.budget[rows])

    def _step(self, s: _State, rows: Tensor) -> None:
        table_np = (
            s.table_np[:, : self._cache.reach // self._cache.page]
            if self._decoder.has_reach
            else s.table_np
        )
        self._take(s, rows, self._decoder(s.tokens, s.positions, table_np, rows))

    def _graph(self, s: _State, n: int, turns: Sequence[Turn]) -> torch.cuda.CUDAGraph:
        """Return the step for so many rows as one launch, captured at its first use."""
        reach = self._limits.context
        if self._decoder.has_reach:
            reach = min(
                reach, -(-max(turn.length + turn.budget for turn in turns) // REACH) * REACH
            )
        key = n, reach, self._limits
        if key not in self._graphs:
            self._cache.cover(reach)
            s.rows[:n] = 0
            side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                self._step(s, s.rows[:n])
            torch.cuda.current_stream().wait_stream(side)
            graph = torch.cuda.CUDAGraph()
            with capturing(graph, self._device, self._pool):
                self._step(s, s.rows[:n])
            self._graphs[key] = graph
        return self._graphs[key]
