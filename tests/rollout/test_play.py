"""Rollouts from open to close, with a real sampler: turns, tools, limits, and everything that can fail."""

# ruff: noqa: ARG002

import asyncio
import re
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import pytest

from models import encode, full_logits, make_policy
from talk import expected_logprobs
from uptrend.policy.policy import Policy
from uptrend.records import Ending, Message, Reward, Role, Rollout, Task, Tool, ToolCall
from uptrend.rollout.calls import FORMATS
from uptrend.rollout.inprocess import InProcessSampler
from uptrend.rollout.play import RolloutRequest, play_all
from uptrend.rollout.render import Renderer
from uptrend.rollout.sampler import Extension, Limits

LIMITS = Limits(max_tokens=6, context=500)
QUESTION = Task((Message("user", "Guess a number."),), "7", "guess")


class Guessing:
    """A taskset whose every play talks for some turns, and fails where it is told to."""

    chat = True
    tools = (Tool("look", "Looks.", {}),)

    def __init__(self, turns: int = 3, fails_at: str = "", opened: "list[Guess] | None" = None) -> None:
        self.turns, self.fails_at = turns, fails_at
        self.plays: list[Guess] = [] if opened is None else opened
        self.most_at_once = 0

    def open(self, task: Task, seed: int) -> "Guess":
        if self.fails_at == "open":
            raise OSError("no sandbox")
        self.plays.append(Guess(task, self))
        self.most_at_once = max(self.most_at_once, sum(p.closed == 0 for p in self.plays))
        return self.plays[-1]


@dataclass
class Guess:
    """One rollout's side."""

    task: Task
    taskset: Guessing
    heard: list[str] = field(default_factory=list)
    closed: int = 0

    @property
    def messages(self) -> tuple[Message, ...]:
        if self.taskset.fails_at == "messages":
            raise KeyError("question")
        return self.task.messages

    @property
    def tools(self) -> tuple[Tool, ...]:
        if self.taskset.fails_at == "tools":
            raise KeyError("tools")
        return self.taskset.tools

    async def respond(self, message: Message) -> list[Message] | None:
        self.heard.append(message.content)
        await asyncio.sleep(0)
        if self.taskset.fails_at == "respond" and len(self.heard) == 2:
            raise TimeoutError("the tool hangs")
        if len(self.heard) == self.taskset.turns:
            return None
        return [Message("tool", f"result {len(self.heard)}"), Message("user", "Go on.")]

    async def score(self) -> Reward:
        if self.taskset.fails_at == "score":
            raise ValueError("no judge")
        return Reward.of("turns", float(len(self.heard)), 0.0, 9.0, len(self.heard) == 3)

    async def close(self) -> None:
        self.closed += 1
        if self.taskset.fails_at == "close":
            raise RuntimeError("still running")


@pytest.fixture(scope="module")
def policy(llama_folder: Path) -> Policy:
    return make_policy(llama_folder)


def play(
    policy: Policy,
    taskset: Guessing,
    count: int = 3,
    max_turns: int = 5,
    limits: Limits = LIMITS,
    rows: int = 0,
) -> list[Rollout]:
    requests = [RolloutRequest(QUESTION, taskset, 4, "g", i, 50 + i) for i in range(count)]  # type: ignore[arg-type]
    renderers = {True: Renderer(policy.tokenizer, policy.stop_ids, chat=True)}
    return asyncio.run(play_all(requests, InProcessSampler(policy), renderers, limits, max_turns, rows))


def test_a_rollout_of_three_turns(policy: Policy) -> None:
    taskset = Guessing()
    rollouts = play(policy, taskset)
    for index, (rollout, opened) in enumerate(zip(rollouts, taskset.plays, strict=True)):
        assert (rollout.step, rollout.group, rollout.index, rollout.seed) == (4, "g", index, 50 + index)
        assert [m.role for m in rollout.messages] == [
            "user", "assistant", "tool", "user", "assistant", "tool", "user", "assistant",
        ]  # fmt: skip
        assert [m.content for m in rollout.messages if m.role == "assistant"] == opened.heard
        assert (rollout.reward, rollout.error) == (Reward.of("turns", 3.0, 0.0, 9.0, True), None)
        assert rollout.ended in (Ending.STOP_TOKEN, Ending.LENGTH)
        assert opened.closed == 1


def test_every_token_is_accounted_for(policy: Policy) -> None:
    for rollout in play(policy, Guessing()):
        (s,) = rollout.sequences
        assert s.roles[0] == Role.PROMPT
        changes = np.flatnonzero(np.diff(s.roles)) + 1
        parts = [(Role(int(p[0])).name, len(p)) for p in np.split(s.roles, changes)]
        assert [name for name, _ in parts] == ["PROMPT", "MODEL", "TOOL", "MODEL", "TOOL", "MODEL"]
        assert s.turns[np.r_[0, changes]].tolist() == [0, 0, 1, 1, 2, 2]
        assert np.array_equal(s.versions >= 0, s.sampled)
        assert np.array_equal(~np.isnan(s.sampler), s.sampled)
        whole = s.ids.tolist()
        logits = full_logits(policy, whole)
        for place in np.flatnonzero(s.sampled):
            (expected,) = expected_logprobs(logits[:place], whole[: place + 1], [whole[place]], LIMITS)
            assert s.sampler[place] == pytest.approx(expected, abs=2e-4)


def test_the_tokens_are_the_templates_and_the_models(policy: Policy) -> None:
    (rollout,) = play(policy, Guessing(turns=2), count=1)
    (s,) = rollout.sequences
    text = policy.tokenizer.decode(s.ids)
    assert text.startswith("<turn>system\nYou can call these tools:\nlook(): Looks.\n")
    assert "<turn>user\nGuess a number.<end>\n<turn>assistant\n" in text
    assert "<turn>user\n<result>\nresult 1\n</result>\nGo on.<end>\n<turn>assistant\n" in text
    for message in rollout.messages:
        assert message.content in text


def test_too_many_turns(policy: Policy) -> None:
    taskset = Guessing(turns=9)
    for rollout in play(policy, taskset, max_turns=2):
        assert rollout.ended == Ending.TURN_LIMIT
        assert rollout.reward is not None
        assert rollout.reward.total == 2.0
        assert rollout.sequences[0].turns.max() == 1
    assert all(p.closed == 1 for p in taskset.plays)


def first_prompt(policy: Policy, taskset: Guessing) -> int:
    """How many tokens it has."""
    renderer = Renderer(policy.tokenizer, policy.stop_ids, chat=True)
    return len(renderer.first(QUESTION.messages, taskset.tools))


@pytest.mark.parametrize("room", [3, 12, 40, 90, 103, 104, 106])
def test_a_context_that_fills_up(policy: Policy, room: int) -> None:
    """In a turn or between two: what the task answered last is kept, though the model never read it."""
    limits = Limits(max_tokens=6, context=first_prompt(policy, Guessing()) + room)
    taskset = Guessing(turns=9)
    for rollout, opened in zip(play(policy, taskset, limits=limits), taskset.plays, strict=True):
        assert (rollout.ended, rollout.error) == (Ending.CONTEXT_FULL, None)
        assert rollout.reward is not None
        assert len(rollout.sequences[0].ids) <= limits.context
        assert [m.content for m in rollout.messages[-2:]] == [f"result {len(opened.heard)}", "Go on."]


@pytest.mark.parametrize("missing", [0, 5, -1])
def test_a_prompt_that_does_not_fit_has_failed(policy: Policy, missing: int) -> None:
    tokens = first_prompt(policy, Guessing())
    (rollout,) = play(policy, Guessing(turns=1), count=1, limits=Limits(max_tokens=6, context=tokens - missing))
    if missing < 0:  # room for one token
        assert (rollout.error, rollout.sampled_tokens) == (None, 1)
    else:
        assert (rollout.ended, rollout.sampled_tokens, rollout.reward) == (Ending.CONTEXT_FULL, 0, None)
        assert rollout.error == f"prompt: {tokens} tokens do not fit into sampling.context = {tokens - missing}"


def test_long_numbers_are_easy_to_read(policy: Policy) -> None:
    question = replace(QUESTION, messages=(Message("user", "x" * 5000),))
    request = RolloutRequest(question, Guessing(), 1, "g", 0, 0)  # type: ignore[arg-type]
    renderers = {True: Renderer(policy.tokenizer, policy.stop_ids, chat=True)}
    (rollout,) = asyncio.run(play_all([request], InProcessSampler(policy), renderers, Limits(6, 2048), 5))
    assert rollout.error is not None
    assert re.fullmatch(r"prompt: 5,\d\d\d tokens do not fit into sampling\.context = 2,048", rollout.error)


CALL = '<tool>{"name": "look", "arguments": {}}</tool>'


class Parrot:
    """A sampler that always says the same."""

    def __init__(self, policy: Policy, text: str) -> None:
        self.ids = np.array([*encode(policy, text), policy.tokenizer.eos_token_id], np.int32)

    async def extend(self, *_: object) -> Extension:
        return Extension(self.ids, np.zeros(len(self.ids), np.float32), Ending.STOP_TOKEN, 0)

    def release(self, stream: int) -> None:
        pass


@pytest.mark.parametrize(
    ("text", "tools", "message"),
    [
        (f"So.\n{CALL}", True, Message("assistant", "So.", (ToolCall("look", {}),))),
        (f"{CALL}{CALL}", True, Message("assistant", "", (ToolCall("look", {}),) * 2)),
        ("<tool>{}</tool>", True, FORMATS["plain"].read("<tool>{}</tool>")),
        (f"So.\n{CALL}", False, Message("assistant", f"So.\n{CALL}")),
    ],
    ids=["call", "calls", "problem", "no tools"],
)
def test_the_task_hears_calls_where_it_has_tools(policy: Policy, text: str, tools: bool, message: Message) -> None:
    taskset = Guessing(turns=1)
    taskset.tools = taskset.tools if tools else ()  # type: ignore[assignment]
    request = RolloutRequest(QUESTION, taskset, 1, "g", 0, 0)  # type: ignore[arg-type]
    renderers = {True: Renderer(policy.tokenizer, policy.stop_ids, chat=True)}
    parrot = Parrot(policy, text)
    (rollout,) = asyncio.run(play_all([request], parrot, renderers, LIMITS, 5))  # type: ignore[arg-type]
    assert rollout.messages[-1] == message
    assert taskset.plays[0].heard == [message.content]


@pytest.mark.parametrize(
    ("where", "ended", "said", "turns"),
    [
        ("open", Ending.TASK_ERROR, "open: OSError('no sandbox')", 0),
        ("messages", Ending.TASK_ERROR, "open: KeyError('question')", 0),
        ("tools", Ending.TASK_ERROR, "open: KeyError('tools')", 0),
        ("respond", Ending.TOOL_ERROR, "respond: TimeoutError('the tool hangs')", 2),
        ("score", Ending.TASK_ERROR, "score: ValueError('no judge')", 3),
    ],
)
def test_what_fails_in_a_task_is_data(policy: Policy, where: str, ended: Ending, said: str, turns: int) -> None:
    taskset = Guessing(fails_at=where)
    for rollout in play(policy, taskset):
        assert (rollout.ended, rollout.error, rollout.reward) == (ended, said, None)
        assert sum(m.role == "assistant" for m in rollout.messages) == turns
        assert bool(rollout.sampled_tokens) == bool(turns)
    assert all(p.closed == 1 for p in taskset.plays)


def test_a_play_that_cannot_be_closed_keeps_its_reward(policy: Policy) -> None:
    for rollout in play(policy, Guessing(fails_at="close")):
        assert rollout.error == "close: RuntimeError('still running')"
        assert rollout.reward is not None
        assert rollout.ended in (Ending.STOP_TOKEN, Ending.LENGTH)


def test_one_that_fails_does_not_disturb_the_others(policy: Policy) -> None:
    alone = play(policy, Guessing(), count=1)[0]
    requests = [
        RolloutRequest(QUESTION, taskset, 4, "g", i, 50 + i)  # type: ignore[arg-type]
        for i, taskset in enumerate((Guessing(), Guessing(fails_at="respond"), Guessing(fails_at="open")))
    ]
    renderers = {True: Renderer(policy.tokenizer, policy.stop_ids, chat=True)}
    together = asyncio.run(play_all(requests, InProcessSampler(policy), renderers, LIMITS, 5))
    assert [r.error is None for r in together] == [True, False, False]
    assert together[0].messages == alone.messages
    np.testing.assert_allclose(together[0].sequences[0].sampler, alone.sequences[0].sampler, atol=1e-4)


class Broken:
    """A sampler whose server is gone."""

    async def extend(self, *_: object) -> None:
        raise ConnectionError("the server is gone")

    def release(self, stream: int) -> None:
        pass


def test_what_fails_in_the_sampler_ends_the_run(policy: Policy) -> None:
    taskset = Guessing()
    requests = [RolloutRequest(QUESTION, taskset, 1, "g", i, i) for i in range(3)]  # type: ignore[arg-type]
    renderers = {True: Renderer(policy.tokenizer, policy.stop_ids, chat=True)}
    with pytest.raises(ConnectionError, match="the server is gone"):
        asyncio.run(play_all(requests, Broken(), renderers, LIMITS, 5))  # type: ignore[arg-type]
    assert all(p.closed == 1 for p in taskset.plays)


@pytest.mark.parametrize(("rows", "most"), [(0, 7), (1, 1), (3, 3)])
def test_so_many_side_by_side(policy: Policy, rows: int, most: int) -> None:
    taskset = Guessing(turns=2)
    rollouts = play(policy, taskset, count=7, rows=rows)
    assert [r.index for r in rollouts] == list(range(7))
    assert taskset.most_at_once == most


def test_rows_do_not_change_what_is_said(policy: Policy) -> None:
    free, few = (play(policy, Guessing(), count=5, rows=rows) for rows in (0, 2))
    for one, other in zip(free, few, strict=True):
        assert one.messages == other.messages
        assert one.sequences[0].ids.tolist() == other.sequences[0].ids.tolist()


def test_streams_are_released(policy: Policy) -> None:
    """The same sampler plays again under the same numbers, and nothing is left of the first time."""
    sampler = InProcessSampler(policy)
    renderers = {True: Renderer(policy.tokenizer, policy.stop_ids, chat=True)}
    requests = [RolloutRequest(QUESTION, Guessing(fails_at=f), 4, "g", i, i) for i, f in enumerate(("", "respond", ""))]  # type: ignore[arg-type]
    first, second = (asyncio.run(play_all(requests, sampler, renderers, LIMITS, 5)) for _ in range(2))
    for one, other in zip(first, second, strict=True):
        assert one.sequences[0].ids.tolist() == other.sequences[0].ids.tolist()
