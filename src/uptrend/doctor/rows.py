"""A step's rollouts as flat arrays: what checks of tokens, masks, advantages and texts read.

Nothing here loops over tokens. Where a trainer did not keep a column, its array is None, and the check says so.

n = rollout, r = row (a sequence of a rollout), t = token of all rows one after another.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from uptrend.records import Ending, Role

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Flags = NDArray[np.bool_]

CUT = (Ending.LENGTH.value, Ending.CONTEXT_FULL.value)
"""Endings of rollouts that were cut."""


@dataclass(frozen=True)
class Talk:
    """Messages as flat columns."""

    rollout_m: Ints
    """Which rollout each belongs to."""
    role_m: NDArray[np.str_]
    """Who said it."""
    content_m: pa.Array
    """What was said."""
    calls_m: pa.Array
    """The tools that it asks for, as JSON; null for none."""
    problem_m: pa.Array
    """What was wrong with a call that could not be read; null for nothing."""

    def matches(self, pattern: str) -> Flags:
        """Where a regular expression is found in what was said."""
        found = pc.fill_null(pc.match_substring_regex(self.content_m, pattern, ignore_case=True), False)
        return np.asarray(found.to_numpy(zero_copy_only=False), np.bool_)

    def is_short(self, most: int) -> Flags:
        """What has at most so many characters."""
        length = pc.fill_null(pc.utf8_length(self.content_m), 0)
        return np.asarray(length.to_numpy(zero_copy_only=False) <= most)


class Rows:
    """The rollouts of one step."""

    def __init__(self, step: int, table: pa.Table) -> None:
        self.step = step
        self.table = table.combine_chunks()
        sequence_r = self.numbers("sequence")
        starts_r = ~(sequence_r > 0)
        self.heads_n: Ints = np.flatnonzero(starts_r)
        """The first row of each rollout."""
        self.rollout_r: Ints = np.cumsum(starts_r) - 1
        """Which rollout each row belongs to."""

    def __len__(self) -> int:
        return len(self.heads_n)

    def numbers(self, name: str) -> Floats:
        """A plain column by row, as numbers; NaN where it is null."""
        return np.asarray(pc.cast(self._column(name), pa.float64()).to_numpy(zero_copy_only=False), np.float64)

    def texts(self, name: str) -> list[str | None]:
        """A column of texts by rollout."""
        found: list[str | None] = self._column(name).take(pa.array(self.heads_n)).to_pylist()
        return found

    def by_rollout(self, name: str) -> Floats:
        """A plain column by rollout, as numbers; NaN where it is null."""
        return self.numbers(name)[self.heads_n]

    def has(self, *names: str) -> bool:
        """Whether each of these columns was kept at all."""
        return all(name in self.table.column_names and self._is_kept(name) for name in names)

    def name(self, rollout: int) -> str:
        """How a person opens a rollout: `step/group/index`."""
        row = int(self.heads_n[rollout])
        group, index = (self._column(key)[row].as_py() for key in ("group", "index"))
        return f"{self.step}/{group}/{index}"

    @cached_property
    def reward_n(self) -> Floats:
        """What each rollout earned; NaN where it was not scored."""
        return self.by_rollout("reward")

    @cached_property
    def kept_n(self) -> Flags:
        """Whether it was learned from, as far as that is known."""
        return np.asarray(self.by_rollout("kept") != 0)

    @cached_property
    def group_n(self) -> Ints | None:
        """The number of each rollout's true group; None without ids."""
        return _codes(self.texts("group"))

    @cached_property
    def task_n(self) -> Ints | None:
        """The number of each rollout's task within this step; None without ids."""
        return _codes(self.texts("task"))

    @cached_property
    def ended_n(self) -> NDArray[np.str_]:
        """How each rollout ended; empty where that is not known."""
        return np.array([text or "" for text in self.texts("ended")], dtype=np.str_)

    @cached_property
    def cut_n(self) -> Flags:
        """Which rollouts were cut by length."""
        return np.asarray(np.isin(self.ended_n, CUT))

    @cached_property
    def said_n(self) -> list[str | None]:
        """The last thing that the model said; None where it said nothing."""
        spoken = np.flatnonzero(self.talk.role_m == "assistant")
        said: list[str | None] = [None] * len(self)
        texts = self.talk.content_m.take(pa.array(spoken)).to_pylist()
        for rollout, text in zip(self.talk.rollout_m[spoken], texts, strict=True):
            said[rollout] = text  # the last one stays
        return said

    @cached_property
    def messages_n(self) -> list[list[dict[str, str | None]]]:
        """All that was said, for the few checks that read conversations."""
        column = self._column("messages").take(pa.array(self.heads_n))
        return [messages or [] for messages in column.to_pylist()]

    @cached_property
    def talk(self) -> "Talk":
        """All messages of all rollouts, one after another."""
        column = self._column("messages").take(pa.array(self.heads_n))
        flat = column.flatten()
        role = np.asarray(pc.fill_null(flat.field("role"), "").to_numpy(zero_copy_only=False), dtype=np.str_)
        rollout = np.repeat(np.arange(len(self)), _lengths(column))
        return Talk(rollout, role, flat.field("content"), flat.field("calls"), flat.field("problem"))

    @cached_property
    def length_r(self) -> Ints:
        """Tokens of each row."""
        return _lengths(self._column("ids" if self._is_kept("ids") else "roles"))

    @cached_property
    def row_t(self) -> Ints:
        """Each token's row."""
        return np.repeat(np.arange(len(self.length_r)), self.length_r)

    @cached_property
    def rollout_t(self) -> Ints:
        """Each token's rollout."""
        return self.rollout_r[self.row_t]

    @cached_property
    def starts_r(self) -> Ints:
        """The place of each row's first token."""
        return np.asarray(np.cumsum(self.length_r) - self.length_r, np.int64)

    @cached_property
    def role_t(self) -> Ints:
        """Who wrote each token; -1 where that is not known."""
        role = self.tokens("roles")
        return np.full(len(self.row_t), -1) if role is None else np.nan_to_num(role, nan=-1).astype(np.int64)

    @cached_property
    def model_t(self) -> Flags:
        """Which tokens the model wrote."""
        return np.asarray(self.role_t == Role.MODEL)

    @cached_property
    def lengths_n(self) -> Ints:
        """Tokens that the model wrote, by rollout."""
        return np.bincount(self.rollout_t[self.model_t], minlength=len(self))

    @cached_property
    def lag_n(self) -> Floats | None:
        """How many updates the weights that sampled each rollout were behind; None where that is not known."""
        versions = self.tokens("versions")
        if versions is None:
            return None
        known = self.model_t & np.isfinite(versions)
        sums = np.bincount(self.rollout_t[known], weights=versions[known], minlength=len(self))
        counts = np.bincount(self.rollout_t[known], minlength=len(self))
        return self.step - 1 - np.where(counts > 0, sums / np.maximum(counts, 1), np.nan)

    def tokens(self, name: str) -> Floats | None:
        """A column by token as numbers, NaN where it is null; None where it was not kept."""
        if not self.has(name):
            return None
        column = self._column(name)
        given_r = _lengths(column)
        whole_r = (given_r == self.length_r) & (given_r > 0)
        flat = np.asarray(pc.cast(column.flatten(), pa.float64()).to_numpy(zero_copy_only=False), np.float64)
        if whole_r.all() and len(flat) == len(self.row_t):
            return flat
        values = np.full(len(self.row_t), np.nan)
        values[whole_r[self.row_t]] = flat[np.repeat(whole_r, given_r)]
        return values

    def any_n(self, flags_t: Flags) -> Flags:
        """Which rollouts have a token with the flag."""
        return np.asarray(np.bincount(self.rollout_t[flags_t], minlength=len(self)) > 0)

    def ragged_r(self, name: str) -> Flags:
        """Rows in which a token column is there, but not as long as the row."""
        given_r = _lengths(self._column(name))
        return np.asarray((given_r > 0) & (given_r != self.length_r))

    def _column(self, name: str) -> pa.Array:
        column = self.table.column(name)
        return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()

    def _is_kept(self, name: str) -> bool:
        column = self.table.column(name)
        return bool(column.null_count < len(column))


def group_sum(values: Floats, codes: Ints) -> Floats:
    """The sum over each group, by group."""
    return np.bincount(codes, weights=values, minlength=int(codes.max(initial=-1)) + 1).astype(np.float64)


def _codes(texts: list[str | None]) -> Ints | None:
    if not texts or any(text is None for text in texts):
        return None
    return np.unique(np.array(texts, dtype=np.str_), return_inverse=True)[1].astype(np.int64)


def _lengths(column: pa.Array) -> Ints:
    return np.asarray(pc.fill_null(pc.list_value_length(column), 0).to_numpy(zero_copy_only=False), np.int64)
