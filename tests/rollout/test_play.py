"""Rollouts from open to close, with a real sampler: turns, tools, limits, and everything that can fail."""

# ruff: noqa: ARG002

import asyncio
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest

from models import encode, full_logits, make_policy
from talk import expected_logprobs
from uptrend.policy.policy import Policy
from uptrend.records import Ending, Message, Reward, Role, Rollout, Task, Tool
from uptrend.rollout.inprocess import InProcessSampler
from uptrend.rollout.play import Seat, play_all
from uptrend.rollout.render import Renderer
from uptrend.rollout.sampler import Limits

LIMITS = Limits(max_tokens=6, context=500)
QUESTION = Task((Message("user", "Guess a number."),), "7", "guess")


class Guessing:
    """A taskset whose every play talks for some turns, and fails where it is told to."""

    chat = True

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
    tools: tuple[Tool, ...] = (Tool("look", "Looks.", {}),)

    @property
    def messages(self) -> tuple[Message, ...]:
        return self.task.messages

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
    seats = [Seat(QUESTION, taskset, 4, "g", i, 50 + i) for i in range(count)]  # type: ignore[arg-type]
    renderers = {True: Renderer(policy.tokenizer, policy.stop_ids, chat=True)}
    return asyncio.run(play_all(seats, InProcessSampler(policy), renderers, limits, max_turns, rows))


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
    assert text.startswith("<turn>user\nGuess a number.<end>\n<turn>assistant\n")
    assert "<turn>tool\nresult 1<end>\n<turn>user\nGo on.<end>\n<turn>assistant\n" in text
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


def test_a_context_that_fills_up_between_turns(policy: Policy) -> None:
    first = len(encode(policy, "<turn>user\nGuess a number.<end>\n<turn>assistant\n"))
    limits = Limits(max_tokens=6, context=first + 40)
    for rollout in play(policy, Guessing(turns=9), limits=limits):
        assert rollout.ended == Ending.CONTEXT_FULL
        assert rollout.reward is not None
        assert len(rollout.sequences[0].ids) <= limits.context


def test_a_prompt_that_does_not_fit_is_scored_unsaid(policy: Policy) -> None:
    (rollout,) = play(policy, Guessing(), count=1, limits=Limits(max_tokens=6, context=10))
    assert (rollout.ended, rollout.sampled_tokens) == (Ending.CONTEXT_FULL, 0)
    assert rollout.reward is not None
    assert rollout.reward.total == 0.0


@pytest.mark.parametrize(
    ("where", "ended", "said", "turns"),
    [
        ("open", Ending.TASK_ERROR, "open: OSError('no sandbox')", 0),
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
    seats = [
        Seat(QUESTION, taskset, 4, "g", i, 50 + i)  # type: ignore[arg-type]
        for i, taskset in enumerate((Guessing(), Guessing(fails_at="respond"), Guessing(fails_at="open")))
    ]
    renderers = {True: Renderer(policy.tokenizer, policy.stop_ids, chat=True)}
    together = asyncio.run(play_all(seats, InProcessSampler(policy), renderers, LIMITS, 5))
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
    seats = [Seat(QUESTION, taskset, 1, "g", i, i) for i in range(3)]  # type: ignore[arg-type]
    renderers = {True: Renderer(policy.tokenizer, policy.stop_ids, chat=True)}
    with pytest.raises(ConnectionError, match="the server is gone"):
        asyncio.run(play_all(seats, Broken(), renderers, LIMITS, 5))  # type: ignore[arg-type]
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
    seats = [Seat(QUESTION, Guessing(fails_at=f), 4, "g", i, i) for i, f in enumerate(("", "respond", ""))]  # type: ignore[arg-type]
    first, second = (asyncio.run(play_all(seats, sampler, renderers, LIMITS, 5)) for _ in range(2))
    for one, other in zip(first, second, strict=True):
        assert one.sequences[0].ids.tolist() == other.sequences[0].ids.tolist()
