"""Rollouts from open to close, of a real sampler and of scripts: turns, tools, limits, and
everything that can fail.
"""

# ruff: noqa: ARG002

import asyncio
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest.mock import AsyncMock, Mock

import numpy as np
import pytest

from chats import PREFILL, SEARCH, calling, put_on
from chats import whole as template
from models import character_tokenizer, encode, make_policy
from uptrend.policy.policy import Policy
from uptrend.records import (
    Ending,
    Message,
    Reward,
    Role,
    Rollout,
    Task,
    TasksetError,
    Tool,
    ToolCall,
)
from uptrend.rollout.calls import CALL_FORMATS
from uptrend.rollout.inprocess import InProcessSampler
from uptrend.rollout.play import RolloutRequest, demonstrate, play_all
from uptrend.rollout.render import Renderer
from uptrend.rollout.sampler import Extension, Limits
from uptrend.tasks.taskset import Script, play_script

LIMITS = Limits(max_tokens=6, context=4000)
QUESTION = Task(
    (Message("system", "Be brief."), Message("user", "Which color?")), "purple", "colors"
)
RIGHT = Reward.of("turns", 3.0, 0.0, 9.0, True)


class Colors:
    """A taskset whose plays take some turns and fail where told to; its expert searches twice and
    answers.
    """

    def __init__(
        self, turns: int = 3, fails_at: str = "", gold: str = "right", chat: bool = True
    ) -> None:
        self.turns, self.fails_at, self.script, self.chat = turns, fails_at, gold, chat
        self.tools: tuple[Tool, ...] = (SEARCH,)
        self.plays: list[Color] = []
        self.most_at_once = self.scripts_closed = 0

    def open(self, task: Task, seed: int) -> "Color":
        if self.fails_at == "open":
            raise OSError("no sandbox")
        self.plays.append(Color(task, self))
        self.most_at_once = max(self.most_at_once, sum(p.closed == 0 for p in self.plays))
        return self.plays[-1]

    def gold(self, task: Task) -> Script:
        try:
            if self.script == "silent":
                return
            heard = yield calling("", "first")
            assert [m.content for m in heard] == ["result 1", "Go on."], (
                "a script hears what the task answers"
            )
            if self.script == "fails":
                raise LookupError("no document")
            if self.script == "two at once":
                yield calling("", "second", "third")
            yield calling("" if self.script == "no words" else "Hm.", "second")
            if self.script != "gives up":
                yield Message("assistant", "purple")
        finally:
            self.scripts_closed += 1


@dataclass
class Color:
    """One rollout's side."""

    task: Task
    taskset: Colors
    heard: list[str] = field(default_factory=list)
    closed: int = 0

    @property
    def messages(self) -> tuple[Message, ...]:
        if self.taskset.fails_at == "messages":
            raise KeyError("question")
        return self.task.messages

    @property
    def tools(self) -> tuple[Tool, ...]:
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


def requests_of(taskset: Colors, count: int) -> list[RolloutRequest]:
    return [RolloutRequest(QUESTION, taskset, 4, "g", i, 50 + i) for i in range(count)]  # type: ignore[arg-type]


def play(
    policy: Policy, taskset: Colors, count: int = 3, max_turns: int = 5, limits: Limits = LIMITS, rows: int = 0,
    sampler: Any = None,
) -> list[Rollout]:  # fmt: skip
    """Let the model play, and see that whatever was opened is closed once."""
    renderers = {True: Renderer(policy.tokenizer, policy.stop_ids, chat=True)}
    sampler = sampler or InProcessSampler(policy)
    try:
        return asyncio.run(
            play_all(requests_of(taskset, count), sampler, renderers, limits, max_turns, rows)
        )
    finally:
        assert all(p.closed == 1 for p in taskset.plays)


def test_a_rollout_of_three_turns(policy: Policy) -> None:
    taskset = Colors()
    for index, (rollout, opened) in enumerate(
        zip(play(policy, taskset), taskset.plays, strict=True)
    ):
        assert (rollout.step, rollout.group, rollout.index, rollout.seed) == (
            4,
            "g",
            index,
            50 + index,
        )
        turn = ["assistant", "tool", "user"]
        assert [m.role for m in rollout.messages] == ["system", "user", *turn, *turn, "assistant"]
        assert [m.content for m in rollout.messages if m.role == "assistant"] == opened.heard
        assert (rollout.reward, rollout.error) == (RIGHT, None)
        assert rollout.ended in (Ending.STOP_TOKEN, Ending.LENGTH)


def test_too_many_turns(policy: Policy) -> None:
    for rollout in play(policy, Colors(turns=9), max_turns=2):
        assert (rollout.ended, rollout.sequences[0].turns.max()) == (Ending.TURN_LIMIT, 1)
        assert rollout.reward == Reward.of("turns", 2.0, 0.0, 9.0, False)


def first_prompt(policy: Policy) -> int:
    """Count its tokens."""
    return len(
        Renderer(policy.tokenizer, policy.stop_ids, chat=True).first_prompt(
            QUESTION.messages, [SEARCH]
        )
    )


@pytest.mark.parametrize("space", [3, 12, 40, 90, 103, 104, 106])
def test_a_context_that_fills_up(policy: Policy, space: int) -> None:
    """In a turn or between two: what the task answered last is kept, though the model never read
    it.
    """
    limits, taskset = Limits(max_tokens=6, context=first_prompt(policy) + space), Colors(turns=9)
    for rollout, opened in zip(play(policy, taskset, limits=limits), taskset.plays, strict=True):
        assert (rollout.ended, rollout.error) == (Ending.CONTEXT_FULL, None)
        assert rollout.reward is not None
        assert len(rollout.sequences[0].ids) <= limits.context
        assert [m.content for m in rollout.messages[-2:]] == [
            f"result {len(opened.heard)}",
            "Go on.",
        ]


@pytest.mark.parametrize("limit", ["context", "max_prompt", ""])
def test_a_prompt_that_does_not_fit_has_failed(policy: Policy, limit: str) -> None:
    tokens = first_prompt(policy)
    limits = (
        Limits(6, 4000, prompt=tokens - 1)
        if limit == "max_prompt"
        else Limits(6, tokens + (limit == ""))
    )
    (rollout,) = play(policy, Colors(turns=1), count=1, limits=limits)
    if limit:
        assert (rollout.ended, rollout.sampled_tokens, rollout.reward) == (
            Ending.CONTEXT_FULL,
            0,
            None,
        )
        assert f"prompt: {tokens} tokens " in str(rollout.error)
        assert f"sampling.{limit} = " in str(rollout.error)
    else:  # one token fits
        assert (rollout.error, rollout.sampled_tokens) == (None, 1)


CALL = '<tool>{"name": "search", "arguments": {}}</tool>'


@pytest.mark.parametrize(
    ("text", "tools", "message"),
    [
        (f"So.\n{CALL}", True, Message("assistant", "So.", (ToolCall("search", {}),))),
        (f"{CALL}{CALL}", True, Message("assistant", "", (ToolCall("search", {}),) * 2)),
        ("<tool>{}</tool>", True, CALL_FORMATS["plain"].read("<tool>{}</tool>")),
        (f"So.\n{CALL}", False, Message("assistant", f"So.\n{CALL}")),
    ],
    ids=["call", "calls", "problem", "no tools"],
)
def test_the_task_hears_calls_where_it_has_tools(
    policy: Policy, text: str, tools: bool, message: Message
) -> None:
    taskset = Colors(turns=1)
    taskset.tools = taskset.tools if tools else ()
    ids = np.array([*encode(policy, text), policy.tokenizer.eos_token_id], np.int32)
    said = Extension(ids, np.zeros(len(ids), np.float32), Ending.STOP_TOKEN, np.zeros_like(ids))
    (rollout,) = play(policy, taskset, count=1, sampler=Mock(extend=AsyncMock(return_value=said)))
    assert rollout.messages[-1] == message
    assert taskset.plays[0].heard == [message.content]


@pytest.mark.parametrize(
    ("where", "ended", "said", "turns"),
    [
        ("open", Ending.TASK_ERROR, "open: OSError('no sandbox')", 0),
        ("messages", Ending.TASK_ERROR, "open: KeyError('question')", 0),
        ("respond", Ending.TOOL_ERROR, "respond: TimeoutError('the tool hangs')", 2),
        ("score", Ending.TASK_ERROR, "score: ValueError('no judge')", 3),
        (
            "close",
            None,
            "close: RuntimeError('still running')",
            3,
        ),  # keeps its ending and its reward
    ],
)
def test_what_fails_in_a_task_is_data(
    policy: Policy, where: str, ended: Ending | None, said: str, turns: int
) -> None:
    for rollout in play(policy, Colors(fails_at=where)):
        assert (rollout.error, rollout.reward) == (said, None if ended else RIGHT)
        assert rollout.ended in ([ended] if ended else [Ending.STOP_TOKEN, Ending.LENGTH])
        assert sum(m.role == "assistant" for m in rollout.messages) == turns
        assert bool(rollout.sampled_tokens) == bool(turns)


def test_what_fails_in_the_sampler_ends_the_run(policy: Policy) -> None:
    with pytest.raises(ConnectionError, match="the server is gone"):
        play(
            policy,
            Colors(),
            sampler=Mock(extend=AsyncMock(side_effect=ConnectionError("the server is gone"))),
        )


@pytest.mark.parametrize(("rows", "most"), [(0, 7), (1, 1), (3, 3)])
def test_so_many_side_by_side(policy: Policy, rows: int, most: int) -> None:
    taskset = Colors(turns=2)
    assert [r.index for r in play(policy, taskset, count=7, rows=rows)] == list(range(7))
    assert taskset.most_at_once == most


def templated(name: str, thinks: bool) -> tuple[Any, list[int]]:
    """A tokenizer with a model's template, or with its own; `thinks` ends prompts inside
    thoughts.
    """
    if name:
        return put_on(character_tokenizer(), name, thinks=thinks)
    tokenizer = character_tokenizer()
    tokenizer.chat_template += PREFILL * thinks
    return tokenizer, [tokenizer.eos_token_id]


def show(
    taskset: Colors,
    name: str = "qwen2_5",
    count: int = 1,
    turns: int = 9,
    context: int = 4000,
    thinks: bool = False,
) -> list[Rollout]:
    """Let the expert play in a template's tokens, and see that everything is closed."""
    tokenizer, stops = templated(name, thinks)
    renderers = {taskset.chat: Renderer(tokenizer, stops, chat=taskset.chat)}
    rollouts = asyncio.run(
        demonstrate(requests_of(taskset, count), renderers, Limits(200, context), turns, rows=2)
    )
    assert all(p.closed == 1 for p in taskset.plays)
    assert taskset.scripts_closed == count
    return rollouts


@pytest.mark.parametrize("name", ["qwen2_5", "qwen3", "llama3_1"])
def test_a_demonstration_is_the_conversation_in_the_models_format(name: str) -> None:
    tokenizer, stops = put_on(character_tokenizer(), name)
    (rollout,) = show(Colors(gold="no words" if name == "llama3_1" else "right"), name)
    assert (rollout.reward, rollout.error, rollout.ended) == (RIGHT, None, Ending.STOP_TOKEN)
    prompt = template(tokenizer, list(rollout.messages[:-1]), [SEARCH], speak=True)
    said = tokenizer("purple", add_special_tokens=False).input_ids
    assert rollout.sequences[0].ids.tolist() == [*prompt, *said, stops[1]]


THINKING = ["qwen3", "llama3_1", ""]  # one of each format


@pytest.mark.parametrize("name", THINKING)
def test_a_script_closes_the_thoughts_that_the_prompt_begins(name: str) -> None:
    taskset = Colors(gold="no words" if name == "llama3_1" else "right")
    (rollout,) = show(taskset, name, thinks=True)
    messages, reward = asyncio.run(play_script(taskset, QUESTION, taskset.gold(QUESTION)))  # type: ignore[arg-type]
    assert (list(rollout.messages), rollout.reward) == (messages, reward)
    tokenizer, stops = templated(name, thinks=True)
    assert tokenizer.decode(rollout.sequences[0].ids).count("<think>\n\n</think>\n\n") == 3
    renderer = Renderer(tokenizer, stops, chat=True)
    prompt = renderer.first_prompt(QUESTION.messages, ())
    assert (
        renderer.text(renderer.write(Message("assistant", " 12"), prompt), prompt) == " 12"
    )  # without tools


@pytest.mark.parametrize("name", THINKING)
@pytest.mark.parametrize("closed", [True, False])
def test_thoughts_that_the_prompt_begins_hold_no_call(name: str, closed: bool) -> None:
    tokenizer, stops = templated(name, thinks=True)
    renderer = Renderer(tokenizer, stops, chat=True)
    call = CALL_FORMATS[renderer.format].write(calling("", "red"))
    text = f"{call} or not?{'</think>' if closed else ''}"
    for said, calls in (
        (text, ()),
        (f"{text}\n{call}", calling("", "red").calls if closed else ()),
    ):
        ids = np.array([*tokenizer(said, add_special_tokens=False).input_ids, stops[-1]], np.int32)
        extension = Extension(
            ids, np.zeros(len(ids), np.float32), Ending.STOP_TOKEN, np.zeros_like(ids)
        )
        sampler = Mock(extend=AsyncMock(return_value=extension))
        (rollout,) = asyncio.run(
            play_all(requests_of(Colors(turns=1), 1), sampler, {True: renderer}, LIMITS, 1)
        )
        assert rollout.messages[-1] == Message("assistant", text if calls else said, calls)


def test_roles_turns_and_logprobs_are_as_in_a_rollout() -> None:
    for rollout in show(Colors(), count=5):
        (s,) = rollout.sequences
        starts = np.r_[0, np.flatnonzero(np.diff(s.roles)) + 1]
        assert s.roles[starts].tolist() == [
            Role.PROMPT,
            Role.MODEL,
            Role.TOOL,
            Role.MODEL,
            Role.TOOL,
            Role.MODEL,
        ]
        assert s.turns[starts].tolist() == [0, 0, 1, 1, 2, 2]
        assert np.isnan(s.sampler).all()  # nobody sampled them
        assert set(s.versions) == {-1}


@pytest.mark.parametrize("chat", [True, False], ids=["in words", "raw"])
def test_it_says_what_the_script_says_without_a_model(chat: bool) -> None:
    taskset = Colors(chat=chat)
    (rollout,) = show(taskset)
    messages, reward = asyncio.run(play_script(taskset, QUESTION, taskset.gold(QUESTION)))  # type: ignore[arg-type]
    assert (list(rollout.messages), rollout.reward) == (messages, reward)


@pytest.mark.parametrize(("gold", "turns"), [("gives up", 2), ("silent", 0)])
def test_a_script_that_ends_before_the_task_does(gold: str, turns: int) -> None:
    (rollout,) = show(Colors(gold=gold))
    assert (rollout.ended, rollout.error) == (Ending.STOP_TOKEN, None)
    assert rollout.reward is not None
    assert sum(m.role == "assistant" for m in rollout.messages) == turns
    assert bool(rollout.sampled_tokens) == bool(turns)


def test_a_script_that_fails_or_cannot_begin_is_data() -> None:
    taskset = Colors(gold="fails")
    rollouts = show(taskset, count=2)
    taskset.gold = Mock(side_effect=LookupError("no document"))  # type: ignore[method-assign]
    for rollout in (*rollouts, *show(taskset, count=2)):
        assert (rollout.ended, rollout.reward) == (Ending.TASK_ERROR, None)
        assert rollout.error == "gold: LookupError('no document')"


def test_a_script_that_the_model_has_no_words_for_is_refused() -> None:
    with pytest.raises(TasksetError, match="holds one call a turn"):
        show(Colors(gold="two at once"), "llama3_1")


def test_limits_hold_for_scripts_too() -> None:
    (rollout,) = show(Colors(), turns=2)
    assert rollout.ended == Ending.TURN_LIMIT
    tokenizer, stops = put_on(character_tokenizer(), "qwen2_5")
    first = len(Renderer(tokenizer, stops, chat=True).first_prompt(QUESTION.messages, [SEARCH]))
    (rollout,) = show(Colors(), context=first + 9)
    assert (rollout.ended, rollout.reward, rollout.sampled_tokens) == (Ending.CONTEXT_FULL, None, 0)
    assert str(rollout.error).startswith("turn 0: ")
