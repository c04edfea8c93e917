"""Recorded rollouts as a table: what a rollout is, its group, its turns and its texts."""

from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest

from synthetic import rollout_of
from uptrend.records import Executed, Message, Role, Rollout, Sequence, ToolCall, rollouts_table
from uptrend.records.schema import TOKEN_COLUMNS
from uptrend.records.table import RolloutTable

PROMPT, MODEL, TOOL = (int(role) for role in (Role.PROMPT, Role.MODEL, Role.TOOL))
# A prompt that shows by an example how to answer, and a rollout of two turns.
MESSAGES = (
    Message("system", "Answer with a number."),
    Message("user", "1 + 1 ="),
    Message("assistant", "2"),
    Message("user", "2 + 3 ="),
    Message("assistant", "", (ToolCall("add", {"a": 2, "b": 3}),)),
    Message("tool", "5"),
    Message("assistant", "It is 5."),
)


def sequence_of(roles: list[int], turns: list[int], advantages: list[float] | None) -> Sequence:
    size = len(roles)
    return Sequence(
        ids=np.arange(size, dtype=np.int32), turns=np.array(turns, np.int32), roles=np.array(roles, np.int8),
        versions=np.zeros(size, np.int32), sampler=np.zeros(size, np.float32),
        advantages=None if advantages is None else np.array(advantages, np.float32),
    )  # fmt: skip


def talk(index: int, *sequences: Sequence, group: str = "000012-0003") -> Rollout:
    return replace(rollout_of(12, group, index), messages=MESSAGES, sequences=sequences)


ONE_SEQUENCE = sequence_of([PROMPT, MODEL, TOOL, MODEL, MODEL], [0, 0, 0, 1, 1], [9, 1, 9, 2, 3])
# The chat template rewrote the history, so that each turn has a sequence of its own.
TWO_SEQUENCES = (
    sequence_of([PROMPT, MODEL], [0, 0], [9, 1]),
    sequence_of([PROMPT, TOOL, MODEL], [0, 0, 1], [9, 9, 4]),
)


@pytest.fixture
def table() -> RolloutTable:
    rollouts = [talk(0, ONE_SEQUENCE), talk(1, *TWO_SEQUENCES), talk(2)]
    return RolloutTable(12, rollouts_table("demo", rollouts))


def test_a_rollout_is_all_of_its_sequences(table: RolloutTable) -> None:
    assert len(table) == 3
    assert table.rollout_r.tolist() == [0, 1, 1, 2]
    assert table.model_length_n.tolist() == [3, 2, 0]
    assert [table.name(n) for n in range(3)] == [f"12/000012-0003/{index}" for index in range(3)]
    assert [table.advantage(n) for n in range(3)] == [2.0, 2.5, None]
    assert table.values("index") == [0, 1, 2]
    assert [len(table.rollout(n).sequences) for n in range(3)] == [1, 2, 1]
    assert [sequence["advantages"] for sequence in table.rollout(1).sequences] == [
        [9, 1],
        [9, 9, 4],
    ]


@pytest.mark.parametrize("place", [0, 1])
def test_an_answer_that_the_prompt_quotes_is_not_the_models(
    table: RolloutTable, place: int
) -> None:
    assert table.turn_count_n[place] == 2
    assert table.question_n[place] == "1 + 1 = 2 2 + 3 ="
    assert table.response_n[place] == "It is 5."
    shown = table.rollout(place)
    assert [message["content"] for message in shown.prompt] == [m.content for m in MESSAGES[:4]]
    assert [turn.message["content"] for turn in shown.turns] == ["", "It is 5."]
    assert [[reply["content"] for reply in turn.replies] for turn in shown.turns] == [["5"], []]


def test_the_nouns_have_the_same_turns(table: RolloutTable) -> None:
    for place, rollout in enumerate([talk(0, ONE_SEQUENCE), talk(1, *TWO_SEQUENCES)]):
        start = table.message_range_n[place].start
        assert [
            start + at for at in rollout.model_message_indices
        ] == table.model_message_indices_n[place]
        assert rollout.model_messages == [MESSAGES[4], MESSAGES[6]]
        assert rollout.response == table.response_n[place]
        assert rollout.name == table.name(place)


def test_without_tokens_every_message_of_an_assistant_counts(table: RolloutTable) -> None:
    assert table.turn_count_n[2] is None
    assert table.question_n[2] == "1 + 1 ="
    assert len(table.rollout(2).turns) == 3
    # Another trainer's log has messages and rewards alone.
    bare = table.table.drop_columns([*TOKEN_COLUMNS]).to_pylist()
    imported = RolloutTable(12, pa.Table.from_pylist(bare, schema=table.table.schema))
    assert imported.response_n == ["It is 5."] * 3
    assert [imported.advantage(n) for n in range(3)] == [None] * 3


def test_a_rollout_that_never_answered_has_no_turn() -> None:
    refused = replace(talk(0, sequence_of([PROMPT, PROMPT], [0, 0], None)), messages=MESSAGES[:4])
    table = RolloutTable(12, rollouts_table("demo", [refused]))
    assert (table.turn_count_n, table.response_n, table.rollout(0).turns) == ([0], [None], [])
    assert table.question_n == ["1 + 1 = 2 2 + 3 ="]
    assert refused.response == ""


def test_commands_go_with_the_message_that_gave_them_and_a_submission_with_the_last() -> None:
    commands = tuple(
        Executed(turn, command, 0.1, 0)
        for turn, command in ((0, "ls"), (1, "cat x"), (2, "submit"))
    )
    table = RolloutTable(
        12, rollouts_table("demo", [replace(talk(0, ONE_SEQUENCE), commands=commands)])
    )
    assert [[c["command"] for c in turn.commands] for turn in table.rollout(0).turns] == [
        ["ls"],
        ["cat x", "submit"],
    ]


def test_groups_have_the_number_of_their_name_or_their_place() -> None:
    names = ["000012-0007", "a/b", "000012-0003", "000012-0003"]
    rollouts = [talk(len(names) - n, ONE_SEQUENCE, group=name) for n, name in enumerate(names)]
    groups = RolloutTable(12, rollouts_table("demo", rollouts)).groups
    assert [(group.number, group.name, dict(group.rollout_by_index)) for group in groups] == [
        (3, "000012-0003", {1: 3, 2: 2}), (7, "000012-0007", {4: 0}), (2, "a/b", {3: 1}),
    ]  # fmt: skip


def test_the_first_of_each_group_of_an_evaluation_is_greedy() -> None:
    names = ["e0", "e1", "e0", "e1", "e0"]
    table = RolloutTable(3, rollouts_table("demo", [rollout_of(3, name) for name in names]))
    assert table.greedy_n.tolist() == [True, True, False, False, False]
