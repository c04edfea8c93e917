"""A step's rollouts as flat arrays: what checks of tokens, masks, advantages and texts read.

Nothing here loops over tokens. Where a trainer did not keep a column, its array is None, and the check says so.

n = rollout, r = row (a sequence of a rollout), t = token of all rows one after another, m = message, g = group.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from uptrend.records import Ending, Evidence, Role

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Flags = NDArray[np.bool_]

# Endings of rollouts that were cut.
CUT = (Ending.LENGTH.value, Ending.CONTEXT_FULL.value)
# What trainers add to a deviation before they divide by it.
EPSILON = 1e-4


@dataclass(frozen=True)
class Talk:
    """Messages as flat columns."""

    rollout_m: Ints
    role_m: NDArray[np.str_]
    content_m: pa.Array
    calls_m: pa.Array
    """Tools that it asks for, as JSON; null for none."""
    problem_m: pa.Array
    """Error of a call that could not be read; null for none."""

    def matches(self, pattern: str, most: int = 2**31) -> Flags:
        """Flag messages of at most so many characters in which a regular expression is found."""
        found = pc.match_substring_regex(self.content_m, pattern, ignore_case=True)
        is_short = pc.less_equal(pc.utf8_length(self.content_m), most)
        return np.asarray(pc.fill_null(pc.and_(found, is_short), False).to_numpy(zero_copy_only=False), np.bool_)


class Rows:
    """The rollouts of one step."""

    def __init__(self, step: int, table: pa.Table) -> None:
        self.step = step
        self.table = table.combine_chunks()
        starts_r = ~(self.numbers("sequence") > 0)
        self.heads_n: Ints = np.flatnonzero(starts_r)
        """First row of each rollout."""
        self.rollout_r: Ints = np.cumsum(starts_r) - 1

    def __len__(self) -> int:
        return len(self.heads_n)

    def numbers(self, name: str) -> Floats:
        """Return a plain column by row, as numbers; NaN where it is null."""
        return np.asarray(pc.cast(self._column(name), pa.float64()).to_numpy(zero_copy_only=False), np.float64)

    def texts(self, name: str) -> list[str | None]:
        """Return a column of texts by rollout."""
        found: list[str | None] = self._column(name).take(pa.array(self.heads_n)).to_pylist()
        return found

    def by_rollout(self, name: str) -> Floats:
        """Return a plain column by rollout, as numbers; NaN where it is null."""
        return self.numbers(name)[self.heads_n]

    def has(self, *names: str) -> bool:
        """True where each of these columns was kept at all."""
        columns = [self.table.column(name) for name in names if name in self.table.column_names]
        return len(columns) == len(names) and all(column.null_count < len(column) for column in columns)

    def name(self, rollout: int) -> str:
        """Return the name by which a person opens a rollout: `step/group/index`."""
        row = int(self.heads_n[rollout])
        group, index = (self._column(key)[row].as_py() for key in ("group", "index"))
        return f"{self.step}/{group}/{index}"

    @cached_property
    def reward_n(self) -> Floats:
        """Reward of each rollout; NaN where it was not scored."""
        return self.by_rollout("reward")

    @cached_property
    def kept_n(self) -> Flags:
        """True where it was learned from, as far as that is known."""
        return np.asarray(self.by_rollout("kept") != 0)

    @cached_property
    def group_n(self) -> Ints | None:
        """Number of each rollout's true group; None without ids."""
        return _codes(self.texts("group"))

    @cached_property
    def task_n(self) -> Ints | None:
        """Number of each rollout's task within this step; None without ids."""
        return _codes(self.texts("task"))

    @cached_property
    def ended_n(self) -> NDArray[np.str_]:
        """Ending of each rollout; empty where it is not known."""
        return np.array([text or "" for text in self.texts("ended")], dtype=np.str_)

    @cached_property
    def cut_n(self) -> Flags:
        """True where a rollout was cut by length."""
        return np.asarray(np.isin(self.ended_n, CUT))

    @cached_property
    def said_n(self) -> list[str | None]:
        """The model's last message; None where it said nothing."""
        spoken = np.flatnonzero(self.talk.role_m == "assistant")
        said: list[str | None] = [None] * len(self)
        texts = self.talk.content_m.take(pa.array(spoken)).to_pylist()
        for rollout, text in zip(self.talk.rollout_m[spoken], texts, strict=True):
            said[rollout] = text  # the last one stays
        return said

    @cached_property
    def parts_n(self) -> list[dict[str, float]]:
        """Weighted parts of each rollout's reward, by name."""
        given = self._column("parts").take(pa.array(self.heads_n)).to_pylist()
        return [{part["name"]: part["value"] * part["weight"] for part in parts or ()} for parts in given]

    @cached_property
    def asked_n(self) -> list[str]:
        """Messages before the model's first, without instructions."""
        asked, begun = [""] * len(self), [False] * len(self)
        for n, role, text in zip(self.talk.rollout_m, self.talk.role_m, self.talk.content_m.to_pylist(), strict=True):
            begun[n] |= role == "assistant"
            asked[n] += f"{text} " * (role != "system" and not begun[n])
        return asked

    @cached_property
    def talk(self) -> Talk:
        """All messages of all rollouts, one after another."""
        column = self._column("messages").take(pa.array(self.heads_n))
        flat = column.flatten()
        role = np.asarray(pc.fill_null(flat.field("role"), "").to_numpy(zero_copy_only=False), dtype=np.str_)
        rollout = np.repeat(np.arange(len(self)), _lengths(column))
        return Talk(rollout, role, flat.field("content"), flat.field("calls"), flat.field("problem"))

    @cached_property
    def length_r(self) -> Ints:
        return _lengths(self._column("ids" if self.has("ids") else "roles"))

    @cached_property
    def row_t(self) -> Ints:
        return np.repeat(np.arange(len(self.length_r)), self.length_r)

    @cached_property
    def rollout_t(self) -> Ints:
        return self.rollout_r[self.row_t]

    @cached_property
    def role_t(self) -> Ints:
        """Role of each token; -1 where it is not known."""
        role = self.tokens("roles")
        return np.full(len(self.row_t), -1) if role is None else np.nan_to_num(role, nan=-1).astype(np.int64)

    @cached_property
    def model_t(self) -> Flags:
        """True where the model wrote a token."""
        return np.asarray(self.role_t == Role.MODEL)

    @cached_property
    def lengths_n(self) -> Ints:
        """Tokens that the model wrote, by rollout."""
        return np.bincount(self.rollout_t[self.model_t], minlength=len(self))

    @cached_property
    def lag_n(self) -> Floats | None:
        """Updates that the weights that sampled each rollout were behind; None where they are not known."""
        versions = self.tokens("versions")
        return None if versions is None else self.step - 1 - self.mean_n(versions, self.model_t & np.isfinite(versions))

    def mean_n(self, values_t: Floats, among_t: Flags) -> Floats:
        """Return the mean over some tokens of each rollout; NaN where it has none."""
        sums = np.bincount(self.rollout_t[among_t], weights=values_t[among_t], minlength=len(self))
        counts = np.bincount(self.rollout_t[among_t], minlength=len(self))
        return np.where(counts > 0, sums / np.maximum(counts, 1), np.nan)

    def tokens(self, name: str) -> Floats | None:
        """Return a column by token as numbers, NaN where it is null; None where it was not kept."""
        return self.read_tokens(name) if self.has(name) else None

    def read_tokens(self, name: str) -> Floats:
        """Return a column by token of which it is known that it was kept; NaN in rows of another length."""
        column = self._column(name)
        given_r = _lengths(column)
        whole_r = (given_r == self.length_r) & (given_r > 0)
        values = np.full(len(self.row_t), np.nan)
        flat = pc.cast(column.flatten(), pa.float64()).to_numpy(zero_copy_only=False)
        values[whole_r[self.row_t]] = flat[np.repeat(whole_r, given_r)]
        return values

    def flag(self, rollouts: Ints) -> Flags:
        """Flag the rollouts with these numbers."""
        return np.asarray(np.bincount(rollouts, minlength=len(self)) > 0)

    def ragged_n(self, name: str) -> Flags:
        """Flag rollouts in which a token column is there, but not as long as the row."""
        given_r = _lengths(self._column(name))
        return self.flag(self.rollout_r[(given_r > 0) & (given_r != self.length_r)])

    def _column(self, name: str) -> pa.Array:
        column = self.table.column(name)
        return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


@dataclass(frozen=True)
class Chosen:
    """Some rollouts of one step."""

    rows: Rows
    place_n: Ints
    """Their numbers among all rollouts of the step."""

    def whole(self, flags: Flags) -> Flags:
        """Spread flags of these rollouts over all of the step."""
        whole = np.zeros(len(self.rows), np.bool_)
        whole[self.place_n[flags]] = True
        return whole


@dataclass(frozen=True)
class Grouped(Chosen):
    """The scored and kept rollouts of one step, by the true group of each."""

    group_n: Ints
    """Their groups, from 0."""
    reward_n: Floats
    advantage_n: Floats | None
    """Recorded advantages; None where nothing was recorded."""

    @cached_property
    def size_g(self) -> Ints:
        return np.bincount(self.group_n)

    @cached_property
    def dead_g(self) -> Flags:
        """Groups whose rewards are all the same number, to fp32's precision, which trainers compare in."""
        reward = self.reward_n.astype(np.float32)
        low, high = np.full(len(self.size_g), np.inf, np.float32), np.full(len(self.size_g), -np.inf, np.float32)
        np.minimum.at(low, self.group_n, reward)
        np.maximum.at(high, self.group_n, reward)
        return np.asarray(low == high)

    @cached_property
    def centered_n(self) -> Floats:
        """Rewards less the mean of their group."""
        return self.reward_n - (group_sum(self.reward_n, self.group_n) / self.size_g)[self.group_n]

    @cached_property
    def deviation_g(self) -> Floats:
        """Standard deviation of each group's rewards."""
        squares = group_sum(self.centered_n**2, self.group_n)
        return np.asarray(np.sqrt(squares / np.maximum(self.size_g - 1, 1)))


def grouped(r: Rows) -> Grouped | None:
    """Return a step by true groups; None without group ids or rewards."""
    place_n = np.flatnonzero(r.kept_n & np.isfinite(r.reward_n) & r.has("reward"))
    if r.group_n is None or not len(place_n):
        return None
    group_n = np.unique(r.group_n[place_n], return_inverse=True)[1].astype(np.int64)
    advantage, weight = r.tokens("advantages"), r.tokens("weights")
    advantage_n = None
    if advantage is not None:
        # Tokens left out of the loss were never given an advantage: a mask that forgets them is no fault of the groups.
        known = r.model_t & np.isfinite(advantage)
        if weight is not None:
            known &= np.nan_to_num(weight) != 0
        advantage_n = r.mean_n(advantage, known)[place_n]
    return Grouped(r, place_n, group_n, r.reward_n[place_n], advantage_n)


def recomputed(g: Grouped, scale: str, baseline: str) -> Floats:
    """Return the advantages that these rewards give in these groups."""
    # Written once more in numpy and fp64: a check that used the trainer's own functions would repeat their mistakes.
    size_n = g.size_g[g.group_n]
    advantage_n = g.centered_n
    if baseline == "leave_one_out":
        advantage_n = advantage_n * size_n / np.maximum(size_n - 1, 1)
    if scale == "group":
        advantage_n = advantage_n / (g.deviation_g[g.group_n] + EPSILON)
    elif scale == "batch" and len(g.reward_n) > 1:
        advantage_n = advantage_n / (np.std(g.reward_n, ddof=1) + EPSILON)
    return np.where(g.dead_g[g.group_n], 0.0, advantage_n)


def seen_in(rows: Sequence[Rows], flags: Sequence[Flags], text: str, value: float, metric: str = "") -> Evidence:
    """Return evidence that points at the first flagged rollout; `flags` are by rollout, one array per step."""
    for r, flags_n in zip(rows, flags, strict=True):
        if flags_n.any():
            return Evidence(text, value, metric, r.step, r.name(int(flags_n.argmax())))
    return Evidence(text, value, metric)


def seen_among(steps: Sequence[Chosen], flags: Sequence[Flags], text: str, value: float, metric: str = "") -> Evidence:
    """Return evidence that points at the first flagged one of the chosen rollouts."""
    whole = [chosen.whole(f) for chosen, f in zip(steps, flags, strict=True)]
    return seen_in([chosen.rows for chosen in steps], whole, text, value, metric)


def count_flags(flags: Iterable[Flags]) -> int:
    """Return the number of flags that are set, over all steps."""
    return sum(int(f.sum()) for f in flags)


def group_sum(values: Floats, codes: Ints) -> Floats:
    """Return the sum over each group."""
    return np.bincount(codes, weights=values, minlength=int(codes.max(initial=-1)) + 1).astype(np.float64)


def _codes(texts: list[str | None]) -> Ints | None:
    if not texts or any(text is None for text in texts):
        return None
    return np.unique(np.array(texts, dtype=np.str_), return_inverse=True)[1].astype(np.int64)


def _lengths(column: pa.Array) -> Ints:
    return np.asarray(pc.fill_null(pc.list_value_length(column), 0).to_numpy(zero_copy_only=False), np.int64)
