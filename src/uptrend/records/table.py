"""Recorded rollouts as flat columns: the one reader of rollouts, their groups, turns and texts.

A column is read at its first use, and nothing here loops over tokens. The array of a column that a
trainer did not keep is None; callers report that it is missing.

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
# Length of a text above any that Arrow holds.
NO_LENGTH_LIMIT = 2**31


@dataclass(frozen=True)
class Messages:
    """Messages as flat columns."""

    rollout_m: Ints
    role_m: NDArray[np.object_]
    content_m: pa.Array
    calls_m: pa.Array
    """Tool calls as JSON; null for none."""
    problem_m: pa.Array
    """Error of a call that could not be read; null for none."""

    @cached_property
    def text_m(self) -> list[str]:
        """Content of each message, and its calls after a space if it has any."""
        texts = []
        for content, calls in zip(
            self.content_m.to_pylist(), self.calls_m.to_pylist(), strict=True
        ):
            text = content or ""
            texts.append(f"{text} {calls}" if calls else text)
        return texts

    def matches(self, pattern: str, max_characters: int = NO_LENGTH_LIMIT) -> Flags:
        """Flag messages that match a regular expression somewhere and are not too long."""
        is_match = pc.match_substring_regex(self.content_m, pattern, ignore_case=True)
        is_short = pc.less_equal(pc.utf8_length(self.content_m), max_characters)
        flags = pc.fill_null(pc.and_(is_match, is_short), False)
        return np.asarray(flags.to_numpy(zero_copy_only=False), np.bool_)


@dataclass(frozen=True)
class RecordedTurn:
    """One message of the model, the task's replies, and the commands that it ran."""

    message: Row
    replies: list[Row]
    commands: list[Row]


@dataclass(frozen=True)
class RecordedRollout:
    """One rollout as plain values, for people to read."""

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
    """Number at the end of a name such as `000012-3`, as Uptrend names groups; of other names the
    position among the groups of the step.
    """
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
        """Return True if each of these columns has a value in some row."""
        for name in names:
            if name not in self.table.column_names:
                return False
            column = self.table.column(name)
            if column.null_count == len(column):
                return False
        return True

    def numbers(self, name: str) -> Floats:
        """Return a plain column by rollout, as numbers; NaN where it is null."""
        column = pc.cast(self._column_n(name), pa.float64())
        return np.asarray(column.to_numpy(zero_copy_only=False), np.float64)

    def values(self, name: str) -> list[Any]:
        """Return a column by rollout, as Python's values; None where it is null."""
        values: list[Any] = self._column_n(name).to_pylist()
        return values

    def texts(self, name: str) -> list[str | None]:
        """Return a column of texts by rollout; None where it is null."""
        return self.values(name)

    def value(self, name: str, rollout: int) -> Any:
        """Return the value of a column for one rollout."""
        return self._column(name)[int(self.first_row_n[rollout])].as_py()

    def name(self, rollout: int) -> str:
        """Return the name by which a person opens a rollout: `step/group/index`."""
        return f"{self.step}/{self.value('group', rollout)}/{self.value('index', rollout)}"

    def rollout(self, rollout: int) -> RecordedRollout:
        """Return one rollout, for people to read."""
        first_row = int(self.first_row_n[rollout])
        row_count = int((self.rollout_r == rollout).sum())
        rows = self.table.slice(first_row, row_count).to_pylist()
        facts = dict(rows[0])
        for name in (*TOKEN_COLUMNS, "sequence"):
            facts.pop(name, None)
        messages = facts["messages"] or []
        first_message = self.message_range_n[rollout].start
        model_indices = [m - first_message for m in self.model_message_indices_n[rollout]]
        return RecordedRollout(
            name=self.name(rollout),
            facts=facts,
            prompt=messages[: model_indices[0]] if model_indices else messages,
            turns=_split_turns(messages, model_indices, facts.get("commands") or []),
            sequences=[{name: row[name] for name in TOKEN_COLUMNS} for row in rows],
        )

    @cached_property
    def groups(self) -> list[RolloutGroup]:
        """Groups by name, each with its rollouts by index."""
        rollouts_by_group: dict[str, dict[int, int]] = {}
        indices = self.values("index")
        for n, group in enumerate(self.values("group")):
            rollouts_by_group.setdefault(str(group), {})[indices[n] or 0] = n
        groups = []
        for position, name in enumerate(sorted(rollouts_by_group)):
            own_number = name.removeprefix(f"{self.step:06d}-")
            is_ours = own_number != name and own_number.isdigit()
            number = int(own_number) if is_ours else position
            by_index = dict(sorted(rollouts_by_group[name].items()))
            groups.append(RolloutGroup(number, name, by_index))
        return groups

    @cached_property
    def reward_n(self) -> Floats:
        """Reward of each rollout; NaN if it was not scored."""
        return self.numbers("reward")

    @cached_property
    def parts_n(self) -> list[dict[str, float]]:
        """Weighted parts of each rollout's reward, by name."""
        return [
            {part["name"]: part["value"] * part["weight"] for part in parts or ()}
            for parts in self.values("parts")
        ]

    @cached_property
    def advantage_n(self) -> Floats:
        """Mean advantage of the tokens that the model wrote; NaN if none is known."""
        advantage = self.read_tokens_if_kept("advantages")
        if advantage is None:
            return np.full(len(self), np.nan)
        if not self.has("roles"):
            # Trainers that save no tokens save one advantage for all of them.
            lists = self.values("advantages")
            single = [values[0] if values and len(values) == 1 else None for values in lists]
            return np.array(single, np.float64)
        return self.mean_n(advantage, self.model_t & np.isfinite(advantage))

    def advantage(self, rollout: int) -> float | None:
        """Return the mean advantage of the tokens that the model wrote; None if none is known."""
        mean = float(self.advantage_n[rollout])
        return mean if np.isfinite(mean) else None

    @cached_property
    def greedy_n(self) -> Flags:
        """True for the greedy answers of an evaluation: the first of each group, before its sampled
        attempts.
        """
        first_by_group: dict[str, int] = {}
        for n, group in enumerate(self.values("group")):
            first_by_group.setdefault(group, n)
        return self.flag(np.fromiter(first_by_group.values(), np.int64))

    @cached_property
    def kept_n(self) -> Flags:
        """True unless the rollout is known to be dropped from learning."""
        # NaN, for not known, differs from 0 too.
        return np.asarray(self.numbers("kept") != 0)

    @cached_property
    def group_n(self) -> Ints | None:
        """Number of each rollout's group within this step; None if a rollout has no group id."""
        return _number_texts(self.texts("group"))

    @cached_property
    def task_n(self) -> Ints | None:
        """Number of each rollout's task within this step; None if a rollout has no task id."""
        return _number_texts(self.texts("task"))

    @cached_property
    def ended_n(self) -> NDArray[np.str_]:
        """Ending of each rollout; empty if it is not known."""
        return np.array([text or "" for text in self.texts("ended")], dtype=np.str_)

    @cached_property
    def cut_n(self) -> Flags:
        """True for rollouts that were cut by length."""
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
        """Range of each rollout's messages among all."""
        counts_n = np.bincount(self.messages.rollout_m, minlength=len(self))
        ends = np.cumsum(counts_n).tolist()
        return [range(start, end) for start, end in pairwise([0, *ends])]

    @cached_property
    def model_message_indices_n(self) -> list[list[int]]:
        """Indices among all messages of those that the model wrote, by rollout; a prompt may quote
        others.
        """
        roles = self.messages.role_m.tolist()
        indices_n = []
        for messages, turns in zip(self.message_range_n, self.turn_count_n, strict=True):
            indices = find_model_messages(roles[messages.start : messages.stop], turns)
            indices_n.append([messages.start + index for index in indices])
        return indices_n

    @cached_property
    def prompt_range_n(self) -> list[range]:
        """Range among all messages of those before the model's first, by rollout."""
        ranges = []
        for messages, own in zip(self.message_range_n, self.model_message_indices_n, strict=True):
            end = own[0] if own else messages.stop
            ranges.append(range(messages.start, end))
        return ranges

    @cached_property
    def question_n(self) -> list[str]:
        """Question of each rollout: its prompt without instructions."""
        roles = self.messages.role_m.tolist()
        contents = self.messages.content_m.to_pylist()
        questions = []
        for prompt in self.prompt_range_n:
            questions.append(" ".join(contents[m] or "" for m in prompt if roles[m] != "system"))
        return questions

    @cached_property
    def response_n(self) -> list[str | None]:
        """Content of the model's last message, without its calls; None if it wrote none."""
        last_m = [indices[-1] if indices else None for indices in self.model_message_indices_n]
        column = self.messages.content_m.take(pa.array(last_m, pa.int64()))
        contents: list[str | None] = column.to_pylist()
        return contents

    @cached_property
    def turn_count_n(self) -> list[int | None]:
        """Number of the model's turns by rollout; None if its tokens, or their turns, were not
        kept.
        """
        turn_t = self.read_tokens_if_kept("turns")
        if turn_t is None or not self.has("roles"):
            return [None] * len(self)
        counts = self._count_distinct_turns(turn_t).tolist()
        has_tokens_r = self._counted_column.is_valid().to_numpy(zero_copy_only=False)
        has_tokens_n = self.flag(self.rollout_r[has_tokens_r])
        return [count if has_tokens_n[n] else None for n, count in enumerate(counts)]

    def _count_distinct_turns(self, turn_t: Floats) -> Ints:
        """Return the number of distinct turns among the model's tokens of each rollout."""
        known_turn_t = np.nan_to_num(turn_t).clip(0).astype(np.int64)
        # One key for each turn of each rollout.
        max_turns = known_turn_t.max(initial=0) + 1
        keys = (self.rollout_t * max_turns + known_turn_t)[self.model_t]
        # Tokens of a turn mostly follow each other, so that few keys are left to sort. The first
        # key differs from what is put before it: -1 is no key.
        changed_keys = keys[np.diff(keys, prepend=-1) != 0]
        return np.bincount(np.unique(changed_keys) // max_turns, minlength=len(self))

    @property
    def _counted_column(self) -> pa.Array:
        """Column by which the tokens of each row are counted."""
        return self._column("ids" if self.has("ids") else "roles")

    @cached_property
    def length_r(self) -> Ints:
        """Number of tokens by row, whoever wrote them."""
        return count_items(self._counted_column).astype(np.int64)

    @cached_property
    def row_t(self) -> Ints:
        return np.repeat(np.arange(len(self.length_r)), self.length_r)

    @cached_property
    def rollout_t(self) -> Ints:
        return self.rollout_r[self.row_t]

    @cached_property
    def role_t(self) -> Ints:
        """Role of each token; -1 if it is not known."""
        role_t = self.read_tokens_if_kept("roles")
        if role_t is None:
            return np.full(len(self.row_t), -1)
        return np.nan_to_num(role_t, nan=-1).astype(np.int64)

    @cached_property
    def model_t(self) -> Flags:
        """True for tokens that the model wrote."""
        return np.asarray(self.role_t == Role.MODEL)

    @cached_property
    def model_length_n(self) -> Ints:
        """Number of tokens that the model wrote, by rollout."""
        return np.bincount(self.rollout_t[self.model_t], minlength=len(self))

    @cached_property
    def lag_n(self) -> Floats | None:
        """Number of updates by which each rollout's weights were behind; None if it is unknown."""
        version_t = self.read_tokens_if_kept("versions")
        if version_t is None:
            return None
        sampled_t = self.model_t & np.isfinite(version_t)
        # Step s updates the weights of version s - 1 (training/gather.py).
        return self.step - 1 - self.mean_n(version_t, sampled_t)

    def mean_n(self, values_t: Floats, among_t: Flags) -> Floats:
        """Return the mean over the flagged tokens of each rollout; NaN without any."""
        rollouts = self.rollout_t[among_t]
        sums = np.bincount(rollouts, weights=values_t[among_t], minlength=len(self))
        counts = np.bincount(rollouts, minlength=len(self))
        return np.where(counts > 0, sums / np.maximum(counts, 1), np.nan)

    def read_tokens_if_kept(self, name: str) -> Floats | None:
        """Return a column by token as `read_tokens` does; None if it was not kept."""
        return self.read_tokens(name) if self.has(name) else None

    def read_tokens(self, name: str) -> Floats:
        """Return a column by token that was kept, as numbers; NaN where it is null, and in rows
        where it is not as long as the row.
        """
        column = self._column(name)
        own_length_r = count_items(column)
        is_whole_r = (own_length_r == self.length_r) & (own_length_r > 0)
        value_t = np.full(len(self.row_t), np.nan)
        own_values = pc.cast(column.flatten(), pa.float64()).to_numpy(zero_copy_only=False)
        value_t[is_whole_r[self.row_t]] = own_values[np.repeat(is_whole_r, own_length_r)]
        return value_t

    def flag(self, rollouts: Ints) -> Flags:
        """Flag the rollouts with these numbers."""
        return np.asarray(np.bincount(rollouts, minlength=len(self)) > 0)

    def ragged_n(self, name: str) -> Flags:
        """Flag rollouts with a row whose token column has values, but not one for each token."""
        own_length_r = count_items(self._column(name))
        is_ragged_r = (own_length_r > 0) & (own_length_r != self.length_r)
        return self.flag(self.rollout_r[is_ragged_r])

    def _column(self, name: str) -> pa.Array:
        column = self.table.column(name)
        return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()

    def _column_n(self, name: str) -> pa.Array:
        column = self._column(name)
        return column if len(column) == len(self) else column.take(pa.array(self.first_row_n))


def _split_turns(
    messages: list[Row], model_indices: list[int], commands: list[Row]
) -> list[RecordedTurn]:
    """Part messages and commands by the model's messages, whose indices are given."""
    last_turn = len(model_indices) - 1
    turns = []
    for turn, (start, end) in enumerate(pairwise([*model_indices, len(messages)])):
        # A submission at the end belongs to no message, and counts as one more turn.
        own_commands = [command for command in commands if min(command["turn"], last_turn) == turn]
        turns.append(RecordedTurn(messages[start], messages[start + 1 : end], own_commands))
    return turns


def _number_texts(texts: list[str | None]) -> Ints | None:
    """Return the same number for equal texts, from 0; None if any is missing."""
    if not texts or any(text is None for text in texts):
        return None
    _, numbers = np.unique(np.array(texts, dtype=np.str_), return_inverse=True)
    return numbers.astype(np.int64)
