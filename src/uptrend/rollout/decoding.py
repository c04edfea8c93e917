"""The decoding loop of all turns that run: choose, write, advance; a CUDA graph on a GPU.

Each running turn has a slot: its places in tensors that keep their addresses. A step takes the
slots of the running turns as its rows, so that turns come and go without anything being moved. On a
GPU the number of rows is rounded up to one of few sizes, each with a graph that is captured once;
slot 0 belongs to no turn and fills up. A turn that is done stays as it is until the host has seen
that.

A token is chosen from its logits with one uniform number: the token at which the cumulative
probability passes u. One number per token from the rollout's own generator makes a rollout
independent of the others in its batch.

n = row, s = slot, v = vocabulary, b = block of the vocabulary, w = place in a block, m = sampled
token of a turn, k = token that could be drawn, p = page of a slot, e = state of the automaton that
ends turns.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from uptrend.policy.graphed import SHARED_POOL, capturing
from uptrend.policy.logprobs import penalize
from uptrend.rollout.cache import PagedCache
from uptrend.rollout.decoder import Decoder
from uptrend.rollout.endings import ENDED, FIRST_STATE
from uptrend.rollout.sampler import Limits

# Tokens that are decoded before the host looks which turns are done: on a GPU looking waits for the
# device.
STEPS_BETWEEN_LOOKS = 8
# Rows that a step has at least on a GPU: fewer would hardly be faster.
MIN_GPU_ROWS = 8
# On a GPU, places that attention covers are rounded up to this if it does not follow each row's
# own length: one graph for each length would be too many.
COVERED_TOKENS_MULTIPLE = 256
# Tokens per block in which `choose` sums probabilities.
BLOCK_TOKENS = 256
# Just below 1. In fp32, u times the whole could round up to the whole, which no token passes.
MAX_UNIFORM = 1 - 1e-6


@dataclass(eq=False)
class Turn:
    """A turn that runs."""

    pages: list[int]  # pages of its stream, enough for all that it may sample
    length: int  # tokens of its context
    max_tokens: int  # maximum tokens that it may sample
    slot: int = 0
    first_step: int = 0  # number of steps that were done before it joined


class SampledTurn(NamedTuple):
    """Everything that was sampled for a turn."""

    ids_m: NDArray[np.int64]
    logprobs_m: NDArray[np.float32]
    support_mk: NDArray[np.int32]  # tokens that could be drawn, -1 for those left out


class StateSize(NamedTuple):
    """Size of a state in everything but slots; turns of equal limits share a state."""

    tokens: int  # m
    support: int  # k; 0 if all tokens can be drawn
    vocabulary: int  # v; 0 without a repetition penalty
    pages: int  # p


class _State:
    """State of turns that changes from token to token, one row for each slot."""

    def __init__(self, n_slots: int, size: StateSize, device: torch.device) -> None:
        def zeros(*shape: int, dtype: torch.dtype = torch.long) -> Tensor:
            return torch.zeros(n_slots, *shape, dtype=dtype, device=device)

        self.tokens_s = zeros()  # the last sampled token, which the next step reads
        self.positions_s = zeros()  # its position
        self.max_tokens_s = zeros()
        self.n_sampled_s = zeros()
        self.endings_s = zeros()  # state of the automaton that ends the turn
        self.done_s = torch.ones(n_slots, dtype=torch.bool, device=device)
        self.table_sp = zeros(size.pages)
        # Slots that are done write to an additional last column, which is never read: each row of a
        # graph has to write somewhere.
        n_columns = size.tokens + 1
        self.uniforms_sm = zeros(n_columns, dtype=torch.float32)
        self.ids_sm = zeros(n_columns)
        self.logprobs_sm = zeros(n_columns, dtype=torch.float32)
        self.support_smk = zeros(n_columns, size.support, dtype=torch.int32)
        self.seen_sv = zeros(size.vocabulary, dtype=torch.bool)  # tokens of the context
        self.slots_n = zeros()  # the slots that a step decodes; a graph reads them here

    def copy_from(self, smaller: "_State") -> None:
        """Copy the first slots from a smaller state."""
        for name, tensor in vars(smaller).items():
            getattr(self, name)[: len(tensor)] = tensor


class Decoding:
    """Samples turns, all of the same limits, from the logits after their contexts on."""

    def __init__(
        self, device: torch.device, decoder: Decoder, cache: PagedCache, pool: str = SHARED_POOL
    ) -> None:
        self._device = device
        self._decoder = decoder
        self._cache = cache
        self._graph_pool = pool
        self._states: dict[StateSize, _State] = {}
        self._graphs: dict[tuple[int, int, Limits], torch.cuda.CUDAGraph] = {}
        self._turns: dict[int, Turn] = {}  # by slot
        self._n_steps = 0
        # Those of the running turns.
        self._size = StateSize(0, 0, 0, 0)
        self._limits = Limits(0, 0)
        self._endings_ev = torch.empty(0)

    def forget_graphs(self) -> None:
        """Drop all graphs: tensors that they read have moved."""
        self._graphs.clear()

    def rows_for(self, n: int) -> int:
        """Return the rows of a step for n turns: on a GPU 8, 16, 32, 64, … of them."""
        if self._device.type == "cpu":
            return n
        return max(MIN_GPU_ROWS, 1 << (n - 1).bit_length())

    def join(
        self,
        turns: Sequence[Turn],
        logits_nv: Tensor,
        uniforms_nm: NDArray[np.float32],
        limits: Limits,
        endings_ev: Tensor,
        seen_nv: Tensor | None = None,
    ) -> None:
        """Put turns into slots beside those that run and choose their first tokens.

        `endings_ev` is the table of `Endings`; `seen_nv` has the tokens of each turn's context, for
        a repetition penalty.
        """
        vocabulary = logits_nv.shape[1]
        self._limits = limits
        self._endings_ev = endings_ev
        self._size = StateSize(
            tokens=limits.max_tokens,
            support=min(limits.width, vocabulary),
            vocabulary=0 if seen_nv is None else vocabulary,
            pages=self._cache.pages_for(limits.context),
        )
        state = self._state_with_slots_for(len(self._turns) + len(turns))
        free_slots = [slot for slot in range(1, len(state.done_s)) if slot not in self._turns]
        for turn, slot in zip(turns, free_slots, strict=False):
            turn.slot = slot
            turn.first_step = self._n_steps
            self._turns[slot] = turn

        # Slot, maximum tokens, position and pages (filled up with page 0) of each turn: in one
        # array, because each copy to a GPU costs the host time.
        rows = np.zeros((len(turns), 3 + self._size.pages), np.int64)
        for row, turn in zip(rows, turns, strict=True):
            row[0] = turn.slot
            row[1] = turn.max_tokens
            row[2] = turn.length - 1  # `_choose_tokens` moves on to the first free position
            row[3 : 3 + len(turn.pages)] = turn.pages
        device_rows = torch.from_numpy(rows).to(self._device, non_blocking=True)
        uniforms = torch.from_numpy(uniforms_nm).to(self._device, non_blocking=True)
        slots_n = device_rows[:, 0].contiguous()
        state.max_tokens_s[slots_n] = device_rows[:, 1]
        state.positions_s[slots_n] = device_rows[:, 2]
        state.table_sp[slots_n] = device_rows[:, 3:]
        state.n_sampled_s[slots_n] = 0
        state.endings_s[slots_n] = FIRST_STATE
        state.done_s[slots_n] = False
        state.uniforms_sm[slots_n, :-1] = uniforms
        if seen_nv is not None:
            state.seen_sv[slots_n] = seen_nv
        self._choose_tokens(state, slots_n, logits_nv)

    def run(self) -> None:
        """Decode some tokens; on a CPU until a turn is done, on a GPU without waiting for the
        device.
        """
        turns = list(self._turns.values())
        # The first token of a turn was chosen when it joined, before its first step.
        steps_left = [turn.first_step + turn.max_tokens - 1 - self._n_steps for turn in turns]
        steps = min(STEPS_BETWEEN_LOOKS, max(steps_left, default=0))
        if steps <= 0:
            return
        state = self._states[self._size]
        n = self.rows_for(len(turns))
        slots = [turn.slot for turn in turns] + [0] * (n - len(turns))
        if self._device.type == "cuda":
            self._replay_steps(state, turns, slots, steps)
        else:
            self._run_steps(state, turns, slots, steps)

    def done_turns(self) -> list[Turn]:
        """Return turns that are done, in the order in which they came; waits for the device."""
        if not self._turns:
            return []
        done = self._states[self._size].done_s.tolist()
        return [turn for slot, turn in self._turns.items() if done[slot]]

    def remove(self, turns: Iterable[Turn]) -> None:
        """Free the turns' slots."""
        for turn in turns:
            self._turns.pop(turn.slot, None)

    def take_out(self, turns: Sequence[Turn]) -> list[SampledTurn]:
        """Free the turns' slots; return what was sampled."""
        state = self._states[self._size]
        slots_n = torch.tensor([turn.slot for turn in turns]).to(self._device)
        self.remove(turns)
        counts = state.n_sampled_s[slots_n].tolist()
        longest = max(counts)
        ids_nm = state.ids_sm[slots_n, :longest].cpu().numpy()
        logprobs_nm = state.logprobs_sm[slots_n, :longest].cpu().numpy()
        support_nmk = state.support_smk[slots_n, :longest].cpu().numpy()
        sampled_turns = []
        for n, count in enumerate(counts):
            sampled = SampledTurn(ids_nm[n, :count], logprobs_nm[n, :count], support_nmk[n, :count])
            sampled_turns.append(sampled)
        return sampled_turns

    def _state_with_slots_for(self, n_turns: int) -> _State:
        """Return the state of this size, grown if it has too few slots for turns and slot 0."""
        n_slots = self.rows_for(n_turns) + 1
        state = self._states.get(self._size)
        if state is None or len(state.done_s) < n_slots:
            self.forget_graphs()  # they read and write the smaller state
            larger = _State(n_slots, self._size, self._device)
            if state is not None:
                larger.copy_from(state)
            self._states[self._size] = larger
            state = larger
        return state

    def _run_steps(
        self, state: _State, turns: Sequence[Turn], slots: Sequence[int], steps: int
    ) -> None:
        """Decode on a CPU, until a turn is done."""
        state.slots_n[: len(slots)] = torch.tensor(slots)
        first_pages = []
        for turn in turns:
            first = turn.pages[0]
            is_contiguous = turn.pages == list(range(first, turn.pages[-1] + 1))
            first_pages.append(first if is_contiguous else 0)
        first_pages += [0] * (len(slots) - len(turns))
        # Each turn grows by a token per step, so the longest one stays the longest.
        longest = max(turn.length - turn.first_step for turn in turns)
        for _ in range(steps):
            if state.done_s[state.slots_n[: len(turns)]].any():
                break
            self._cache.cover(longest + self._n_steps + 1, first_pages)
            self._step(state, state.slots_n[: len(slots)])
            self._n_steps += 1

    def _replay_steps(
        self, state: _State, turns: Sequence[Turn], slots: Sequence[int], steps: int
    ) -> None:
        """Launch steps on a GPU."""
        # Before the slots are set: a capture sets them all to slot 0.
        graph = self._graph(state, len(slots), turns)
        device_slots = torch.tensor(slots).to(self._device, non_blocking=True)
        state.slots_n[: len(slots)] = device_slots
        for _ in range(steps):
            graph.replay()
        self._n_steps += steps

    def _graph(self, state: _State, n: int, turns: Sequence[Turn]) -> torch.cuda.CUDAGraph:
        """Return the step for n rows as one launch, captured at its first use."""
        covered = self._limits.context
        if self._decoder.covers_rows_evenly:
            longest = max(turn.length + turn.max_tokens for turn in turns)
            rounded = -(-longest // COVERED_TOKENS_MULTIPLE) * COVERED_TOKENS_MULTIPLE
            covered = min(covered, rounded)
        # Limits decide which branches `choose` takes, and which state is used.
        key = (n, covered, self._limits)
        if key in self._graphs:
            return self._graphs[key]

        # With slot 0 in every row, the steps that a capture takes change no turn.
        self._cache.cover(covered)
        state.slots_n[:n] = 0
        # A step before the capture, so that everything loaded or tuned at first use is there.
        side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            self._step(state, state.slots_n[:n])
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with capturing(graph, self._device, self._graph_pool):
            self._step(state, state.slots_n[:n])
        self._graphs[key] = graph
        return graph

    def _step(self, state: _State, slots_n: Tensor) -> None:
        """Compute the logits after each slot's last token and choose the next one."""
        table_sp = state.table_sp
        if self._decoder.covers_rows_evenly:
            table_sp = table_sp[:, : self._cache.pages_for(self._cache.covered_tokens)]
        logits_nv = self._decoder(state.tokens_s, state.positions_s, table_sp, slots_n)
        self._choose_tokens(state, slots_n, logits_nv)

    def _choose_tokens(self, state: _State, slots_n: Tensor, logits_nv: Tensor) -> None:
        """Choose each slot's next token and store it; slots that are done stay as they are."""
        has_support = state.support_smk.shape[2] > 0
        has_penalty = state.seen_sv.shape[1] > 0
        kernels = self._decoder.kernels
        if kernels is not None and not has_support and not has_penalty:
            kernels.pick(logits_nv, slots_n, state, self._endings_ev, self._limits.temperature)
            return

        # No branch may depend on a value here: on a GPU this is captured in a graph.
        n_sampled_n = state.n_sampled_s[slots_n]
        positions_n = state.positions_s[slots_n]
        done_n = state.done_s[slots_n]
        last_column = state.ids_sm.shape[1] - 1
        column_n = n_sampled_n.masked_fill(done_n, last_column)
        seen_nv = state.seen_sv[slots_n] if has_penalty else None
        uniforms_n = state.uniforms_sm[slots_n, column_n]
        tokens_n, logprobs_n, support_nk = choose(logits_nv, uniforms_n, self._limits, seen_nv)

        state.ids_sm[slots_n, column_n] = tokens_n
        state.logprobs_sm[slots_n, column_n] = logprobs_n
        if support_nk is not None:
            state.support_smk[slots_n, column_n] = support_nk.int()
        if has_penalty:
            # A tensor of the device: the number True would be copied from the host.
            state.seen_sv[slots_n, tokens_n] = torch.ones_like(done_n)
        state.tokens_s[slots_n] = torch.where(done_n, state.tokens_s[slots_n], tokens_n)
        state.n_sampled_s[slots_n] = n_sampled_n + ~done_n
        state.positions_s[slots_n] = positions_n + ~done_n
        is_full_n = n_sampled_n + 1 >= state.max_tokens_s[slots_n]
        ending_n = self._endings_ev[state.endings_s[slots_n], tokens_n]
        state.endings_s[slots_n] = ending_n.clamp(min=FIRST_STATE).long()
        state.done_s[slots_n] = done_n | (ending_n == ENDED) | is_full_n


def choose(
    logits_nv: Tensor, uniforms_n: Tensor, limits: Limits, seen_nv: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Choose one token per row; return tokens and their log-probabilities in the distribution that
    they were drawn from.

    If limits leave tokens out, those that could be drawn are returned as well, [n, k], with -1 in
    place of the others.
    """
    logits = logits_nv.float()
    if seen_nv is not None:
        logits = penalize(logits, seen_nv, limits.repetition_penalty)
    if limits.temperature not in (0, 1):
        logits = logits / limits.temperature
    if limits.width:
        return _choose_among_likeliest(logits, uniforms_n, limits)

    # Probabilities times a constant, exp(z - top): their sum is needed for log-probabilities
    # anyway.
    top_n, likeliest_n = logits.max(-1)
    mass_nv = (logits - top_n[:, None]).exp_()
    n_missing = -mass_nv.shape[-1] % BLOCK_TOKENS
    if n_missing:
        mass_nv = torch.nn.functional.pad(mass_nv, (0, n_missing))  # fills up the last block
    mass_nbw = mass_nv.reshape(len(mass_nv), -1, BLOCK_TOKENS)
    mass_nb = mass_nbw.sum(-1)
    total_n = mass_nb.sum(-1)

    if limits.temperature == 0:
        token_n = likeliest_n
    else:
        token_n = _invert_cumulative(mass_nbw, mass_nb, uniforms_n)
    chosen_n = logits.gather(-1, token_n[:, None]).squeeze(-1)
    return token_n, chosen_n - top_n - total_n.log(), None


def _invert_cumulative(mass_nbw: Tensor, mass_nb: Tensor, uniforms_n: Tensor) -> Tensor:
    """Return the token at which the running sum passes u times the whole; never one without mass.

    First over blocks, then inside the block that u falls into: a running sum over the whole
    vocabulary would take longer than the model's own step on a GPU.
    """
    sum_nb = mass_nb.cumsum(-1)
    target_n = uniforms_n.clamp(max=MAX_UNIFORM) * sum_nb[:, -1]
    last_block = mass_nb.shape[-1] - 1
    block_n = (sum_nb <= target_n[:, None]).sum(-1).clamp(max=last_block)

    sum_before_n1 = (sum_nb - mass_nb).gather(-1, block_n[:, None])
    row_n = torch.arange(len(block_n), device=block_n.device)
    mass_nw = mass_nbw[row_n, block_n]
    has_mass_nw = mass_nw > 0
    passes_nw = mass_nw.cumsum(-1) + sum_before_n1 > target_n[:, None]
    first_n = (passes_nw & has_mass_nw).int().argmax(-1)
    # Rounding can leave u just past the block's own sum: then its last token with any mass is
    # meant.
    last_n = BLOCK_TOKENS - 1 - has_mass_nw.flip(-1).int().argmax(-1)
    place_n = torch.where(passes_nw.any(-1), first_n, last_n)
    return block_n * BLOCK_TOKENS + place_n


def _choose_among_likeliest(
    logits_nv: Tensor, uniforms_n: Tensor, limits: Limits
) -> tuple[Tensor, Tensor, Tensor]:
    """Choose after top-k, then top-p, then min-p have left tokens out; the likeliest one always
    stays.
    """
    # The likeliest tokens come first.
    k = min(limits.width, logits_nv.shape[-1])
    top_nk, ids_nk = logits_nv.topk(k, -1)
    # top-p and min-p count in the distribution that top-k leaves.
    normalized = top_nk if limits.top_k else logits_nv
    log_p_nk = top_nk - normalized.logsumexp(-1, keepdim=True)
    p_nk = log_p_nk.exp()
    left_out_nk = p_nk < limits.min_p * p_nk[:, :1]
    if limits.top_p < 1:
        p_before_nk = p_nk.cumsum(-1) - p_nk
        left_out_nk |= p_before_nk >= limits.top_p

    sum_nk = p_nk.masked_fill(left_out_nk, 0).cumsum(-1)
    target_n1 = uniforms_n[:, None].clamp(max=MAX_UNIFORM) * sum_nk[:, -1:]
    rank_n1 = (sum_nk <= target_n1).sum(-1, keepdim=True).clamp(max=k - 1)
    token_n1 = ids_nk.gather(-1, rank_n1)
    # Relative to what is left of the whole.
    logprob_n1 = log_p_nk.gather(-1, rank_n1) - sum_nk[:, -1:].log()
    support_nk = ids_nk.masked_fill(left_out_nk, -1)
    return token_n1.squeeze(-1), logprob_n1.squeeze(-1), support_nk
