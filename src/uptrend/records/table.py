"""Recorded rollouts as flat columns: the one reader of what a rollout is, of its group, its turns
and its texts.

A column is read when it is first asked for, and nothing here loops over tokens. Where a trainer did
not keep a column, its array is None, and whoever asks says so.

n = rollout, r = row (a sequence of a rollout), t = token of all rows one after another, m =
message.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from uptrend.records.rollout import Ending, Role, find_model_messages
from uptrend.records.schema import TOKEN_COLUMNS, count_items, find_first_rows

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Flags = NDArray[np.bool_]
Row = dict[str, Any]

# Endings of rollouts that were cut.
CUT_ENDINGS = (Ending.LENGTH.value, Ending.CONTEXT_FULL.value)


@dataclass(frozen=True)
class Messages:
    """Messages as flat columns."""

    rollout_m: Ints
    role_m: NDArray[np.object_]
    content_m: pa.Array
    calls_m: pa.Array
    """Tools that it asks for, as JSON; null for none."""
    problem_m: pa.Array
    """Error of a call that could not be read; null for none."""

    @cached_property
    def text_m(self) -> list[str]:
        """Content of each message, and its calls after a space where it has some."""
        pairs = zip(self.content_m.to_pylist(), self.calls_m.to_pylist(), strict=True)
        return [f"{content or ''} {calls}" if calls else content or "" for content, calls in pairs]

    def matches(self, pattern: str, most: int = 2**31) -> Flags:
        """Flag messages of at most so many characters in which a regular expression is found."""
        is_match = pc.match_substring_regex(self.content_m, pattern, ignore_case=True)
        is_short = pc.less_equal(pc.utf8_length(self.content_m), most)
        return np.asarray(
            pc.fill_null(pc.and_(is_match, is_short), False).to_numpy(zero_copy_only=False),
            np.bool_,
        )


@dataclass(frozen=True)
class RecordedTurn:
    """One message of the model, what the task replied, and the commands that it ran."""

    message: Row
    replies: list[Row]
    commands: list[Row]


@dataclass(frozen=True)
class RecordedRollout:
    """One rollout as plain values, to be shown to a person."""

    name: str
    """`step/group/index`, by which a person opens it."""
    facts: Row
    """All columns of a rollout, by name."""
    prompt: list[Row]
    """Messages before the model's first."""
    turns: list[RecordedTurn]
    sequences: list[Row]
    """Columns by token, one dictionary per sequence."""


@dataclass(frozen=True)
class RolloutGroup:
    """Rollouts of one task that are compared with each other."""

    number: int
    """Number in its name in our runs, its place among the groups of the step in others."""
    name: str
    rollout_by_index: Mapping[int, int]
    """Number of each of its rollouts in the table, by index."""


class RolloutTable:
    """The rollouts of one step, or of one evaluation."""

    def __init__(self, step: int, table: pa.Table) -> None:
        self.step = step
        self.table = table.combine_chunks()
        self.first_row_n: Ints = find_first_rows(self.table)
        starts_r = np.zeros(len(self.table), np.int64)
        starts_r[self.first_row_n] = 1
        self.rollout_r: Ints = np.cumsum(starts_r) - 1

    def __len__(self) -> int:
        return len(self.first_row_n)

    def has(self, *names: str) -> bool:
        """True where each of these columns was kept at all."""
        columns = [self.table.column(name) for name in names if name in self.table.column_names]
        return len(columns) == len(names) and all(
            column.null_count < len(column) for column in columns
        )

    def numbers(self, name: str) -> Floats:
        """Return a plain column by row, as numbers; NaN where it is null."""
        return np.asarray(
            pc.cast(self._column(name), pa.float64()).to_numpy(zero_copy_only=False), np.float64
        )

    def by_rollout(self, name: str) -> Floats:
        """Return a plain column by rollout, as numbers; NaN where it is null."""
        return self.numbers(name)[self.first_row_n]

    def values(self, name: str) -> list[Any]:
        """Return a column by rollout, as Python's values; None where it is null."""
        values: list[Any] = self._column_n(name).to_pylist()
        return values

    def texts(self, name: str) -> list[str | None]:
        """Return a column of texts by rollout."""
        return self.values(name)

    def value(self, name: str, rollout: int) -> Any:
        """Return the value of a column for one rollout."""
        return self._column(name)[int(self.first_row_n[rollout])].as_py()

    def name(self, rollout: int) -> str:
        """Return the name by which a person opens a rollout: `step/group/index`."""
        return f"{self.step}/{self.value('group', rollout)}/{self.value('index', rollout)}"

    def rollout(self, rollout: int) -> RecordedRollout:
        """Return one rollout, to be shown."""
        first_row = int(self.first_row_n[rollout])
        row_count = int((self.rollout_r == rollout).sum())
        rows = self.table.slice(first_row, row_count).to_pylist()
        facts = {
            key: value for key, value in rows[0].items() if key not in (*TOKEN_COLUMNS, "sequence")
        }
        messages = facts["messages"] or []
        places = [
            place - self.message_range_n[rollout].start
            for place in self.model_message_indices_n[rollout]
        ]
        return RecordedRollout(
            name=self.name(rollout),
            facts=facts,
            prompt=messages[: places[0]] if places else messages,
            turns=_split_turns(messages, places, facts.get("commands") or []),
            sequences=[{key: row[key] for key in TOKEN_COLUMNS} for row in rows],
        )

    @cached_property
    def groups(self) -> list[RolloutGroup]:
        """Groups by name, each with its rollouts by index."""
        places: dict[str, dict[int, int]] = {}
        for n, (group, index) in enumerate(
            zip(self.values("group"), self.values("index"), strict=True)
        ):
            places.setdefault(str(group), {})[index or 0] = n
        groups = []
        for position, name in enumerate(sorted(places)):
            own_number = name.removeprefix(f"{self.step:06d}-")
            is_ours = own_number != name and own_number.isdigit()
            by_index = dict(sorted(places[name].items()))
            groups.append(RolloutGroup(int(own_number) if is_ours else position, name, by_index))
        return groups

    @cached_property
    def reward_n(self) -> Floats:
        """Reward of each rollout; NaN where it was not scored."""
        return self.by_rollout("reward")

    @cached_property
    def parts_n(self) -> list[dict[str, float]]:
        """Weighted parts of each rollout's reward, by name."""
        return [
            {part["name"]: part["value"] * part["weight"] for part in parts or ()}
            for parts in self.values("parts")
        ]

    @cached_property
    def advantage_n(self) -> Floats:
        """Mean advantage of the tokens that the model wrote; NaN where none is known."""
        advantage = self.tokens("advantages")
        if advantage is None:
            return np.full(len(self), np.nan)
        return self.mean_n(advantage, self.model_t & np.isfinite(advantage))

    def advantage(self, rollout: int) -> float | None:
        """Return the mean advantage of the tokens that the model wrote; None where none is
        known.
        """
        mean = float(self.advantage_n[rollout])
        return mean if np.isfinite(mean) else None

    @cached_property
    def greedy_n(self) -> Flags:
        """True for the greedy answers of an evaluation: the first of each group, whom sampled
        attempts follow.
        """
        first: dict[str, int] = {}
        for n, group in enumerate(self.values("group")):
            first.setdefault(group, n)
        return self.flag(np.fromiter(first.values(), np.int64))

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
        return np.asarray(np.isin(self.ended_n, CUT_ENDINGS))

    @cached_property
    def messages(self) -> Messages:
        """All messages of all rollouts, one after another."""
        column = self._column_n("messages")
        flat = column.flatten()
        # As objects: numpy's own strings all take as much memory as the longest, and a log's roles
        # may be anything.
        role = pc.fill_null(flat.field("role"), "").to_numpy(zero_copy_only=False)
        rollout = np.repeat(np.arange(len(self)), count_items(column))
        return Messages(
            rollout, role, flat.field("content"), flat.field("calls"), flat.field("problem")
        )

    @cached_property
    def message_range_n(self) -> list[range]:
        """Places of each rollout's messages among all."""
        ends = np.cumsum(np.bincount(self.messages.rollout_m, minlength=len(self))).tolist()
        return [range(start, end) for start, end in zip([0, *ends[:-1]], ends, strict=True)]

    @cached_property
    def model_message_indices_n(self) -> list[list[int]]:
        """Places among all messages of those that the model wrote, by rollout; a prompt may quote
        others.
        """
        roles = self.messages.role_m.tolist()
        own = []
        for places, turns in zip(self.message_range_n, self.turns_n, strict=True):
            within = find_model_messages(roles[places.start : places.stop], turns)
            own.append([places.start + place for place in within])
        return own

    @cached_property
    def prompt_range_n(self) -> list[range]:
        """Places among all messages of what the model read before it wrote its first."""
        pairs = zip(self.message_range_n, self.model_message_indices_n, strict=True)
        return [range(places.start, own[0] if own else places.stop) for places, own in pairs]

    @cached_property
    def question_n(self) -> list[str]:
        """What each rollout was asked: its prompt without instructions."""
        roles = self.messages.role_m.tolist()
        contents = self.messages.content_m.to_pylist()
        return [
            " ".join(contents[m] or "" for m in places if roles[m] != "system")
            for places in self.prompt_range_n
        ]

    @cached_property
    def response_n(self) -> list[str | None]:
        """Content of the model's last message, without its calls; None where it wrote none."""
        last = [own[-1] if own else None for own in self.model_message_indices_n]
        contents: list[str | None] = self.messages.content_m.take(
            pa.array(last, pa.int64())
        ).to_pylist()
        return contents

    @cached_property
    def turns_n(self) -> list[int | None]:
        """Turns of the model by rollout; None where its tokens, or the turn of each, were not
        kept.
        """
        turn = self.tokens("turns")
        if turn is None or not self.has("roles"):
            return [None] * len(self)
        turn = np.nan_to_num(turn).clip(0)
        width = turn.max(initial=0) + 1
        # One number for each turn of each rollout. Its tokens mostly stand in a row, so that few
        # numbers are sorted.
        number = (self.rollout_t * width + turn)[self.model_t]
        different = np.unique(number[np.diff(number, prepend=-1) != 0])
        counts = np.bincount((different // width).astype(np.int64), minlength=len(self)).tolist()
        is_known = self.flag(
            self.rollout_r[self._of_tokens.is_valid().to_numpy(zero_copy_only=False)]
        )
        return [count if known else None for count, known in zip(counts, is_known, strict=True)]

    @property
    def _of_tokens(self) -> pa.Array:
        """Column by which the tokens of each row are counted."""
        return self._column("ids" if self.has("ids") else "roles")

    @cached_property
    def length_r(self) -> Ints:
        """Tokens by row."""
        return count_items(self._of_tokens).astype(np.int64)

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
        return (
            np.full(len(self.row_t), -1)
            if role is None
            else np.nan_to_num(role, nan=-1).astype(np.int64)
        )

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
        """Updates that the weights that sampled each rollout were behind; None where they are not
        known.
        """
        versions = self.tokens("versions")
        return (
            None
            if versions is None
            else self.step - 1 - self.mean_n(versions, self.model_t & np.isfinite(versions))
        )

    def mean_n(self, values_t: Floats, among_t: Flags) -> Floats:
        """Return the mean over some tokens of each rollout; NaN where it has none."""
        sums = np.bincount(self.rollout_t[among_t], weights=values_t[among_t], minlength=len(self))
        counts = np.bincount(self.rollout_t[among_t], minlength=len(self))
        return np.where(counts > 0, sums / np.maximum(counts, 1), np.nan)

    def tokens(self, name: str) -> Floats | None:
        """Return a column by token as numbers, NaN where it is null; None where it was not kept."""
        return self.read_tokens(name) if self.has(name) else None

    def read_tokens(self, name: str) -> Floats:
        """Return a column by token of which it is known that it was kept; NaN in rows of another
        length.
        """
        column = self._column(name)
        own_length_r = count_items(column)
        whole_r = (own_length_r == self.length_r) & (own_length_r > 0)
        values = np.full(len(self.row_t), np.nan)
        flat = pc.cast(column.flatten(), pa.float64()).to_numpy(zero_copy_only=False)
        values[whole_r[self.row_t]] = flat[np.repeat(whole_r, own_length_r)]
        return values

    def flag(self, rollouts: Ints) -> Flags:
        """Flag the rollouts with these numbers."""
        return np.asarray(np.bincount(rollouts, minlength=len(self)) > 0)

    def ragged_n(self, name: str) -> Flags:
        """Flag rollouts in which a token column is there, but not as long as the row."""
        own_length_r = count_items(self._column(name))
        return self.flag(self.rollout_r[(own_length_r > 0) & (own_length_r != self.length_r)])

    def _column(self, name: str) -> pa.Array:
        column = self.table.column(name)
        return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()

    def _column_n(self, name: str) -> pa.Array:
        column = self._column(name)
        return column if len(column) == len(self) else column.take(pa.array(self.first_row_n))


def _split_turns(messages: list[Row], places: list[int], commands: list[Row]) -> list[RecordedTurn]:
    turns = []
    for turn, (start, end) in enumerate(pairwise([*places, len(messages)])):
        # A submission at the end was given by no message, and counts as a turn more.
        own = [command for command in commands if min(command["turn"], len(places) - 1) == turn]
        turns.append(RecordedTurn(messages[start], messages[start + 1 : end], own))
    return turns


def _codes(texts: list[str | None]) -> Ints | None:
    if not texts or any(text is None for text in texts):
        return None
    return np.unique(np.array(texts, dtype=np.str_), return_inverse=True)[1].astype(np.int64)
