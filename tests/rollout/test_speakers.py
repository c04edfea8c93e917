"""Demonstrations are laid out as rollouts of the model are, token for token."""

# ruff: noqa: ARG002

import asyncio
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from chats import SEARCH, calling, put_on
from chats import whole as template
from models import character_tokenizer
from uptrend.records import Ending, Message, Reward, Role, Rollout, Task, TasksetError
from uptrend.rollout.play import RolloutRequest, ScriptSpeaker, demonstrate
from uptrend.rollout.render import Renderer
from uptrend.rollout.sampler import Limits
from uptrend.tasks.taskset import Script, play_script

QUESTION = Task((Message("system", "Be brief."), Message("user", "Which color?")), "purple", "colors")
LIMITS = Limits(max_tokens=200, context=4000)


class Colors:
    """A taskset whose expert looks twice and answers with what it heard."""

    chat = True

    def __init__(self, gold: str = "right") -> None:
        self.script, self.plays = gold, list[Color]()
        self.closed = 0

    def open(self, task: Task, seed: int) -> "Color":
        self.plays.append(Color(task))
        return self.plays[-1]

    def gold(self, task: Task) -> Script:
        try:
            if self.script == "silent":
                return
            heard = yield calling("", "first")
            assert [m.content for m in heard] == ["result 1"], "a script hears what the task answers"
            if self.script == "fails":
                raise LookupError("no document")
            if self.script == "two at once":
                yield calling("", "second", "third")
            heard = yield calling("Hm.", "second") if self.script != "no words" else calling("", "second")
            if self.script != "gives up":
                yield Message("assistant", f"purple after {heard[0].content}")
        finally:
            self.closed += 1


@dataclass
class Color:
    """One rollout's side."""

    task: Task
    heard: list[Message] = field(default_factory=list)
    tools = (SEARCH,)
    closed: int = 0

    @property
    def messages(self) -> tuple[Message, ...]:
        return self.task.messages

    async def respond(self, message: Message) -> list[Message] | None:
        self.heard.append(message)
        await asyncio.sleep(0)
        return [Message("tool", f"result {len(self.heard)}")] if message.calls else None

    async def score(self) -> Reward:
        right = bool(self.heard) and self.heard[-1].content == "purple after result 2"
        return Reward.of("right", float(right), 0.0, 1.0, right)

    async def close(self) -> None:
        self.closed += 1


def show(tokenizer: Any, stops: list[int], taskset: Colors, count: int = 1, **limits: Any) -> list[Rollout]:
    requests = [RolloutRequest(QUESTION, taskset, 0, "gold", i, 0) for i in range(count)]  # type: ignore[arg-type]
    renderers = {taskset.chat: Renderer(tokenizer, stops, chat=taskset.chat)}
    turns = limits.pop("max_turns", 9)
    rollouts = asyncio.run(demonstrate(requests, renderers, Limits(**{**vars(LIMITS), **limits}), turns, rows=2))
    assert all(p.closed == 1 for p in taskset.plays)
    assert taskset.closed == count
    return rollouts


@pytest.mark.parametrize("name", ["qwen2_5", "qwen3", "llama3_1"])
def test_a_demonstration_is_the_conversation_in_the_models_format(name: str) -> None:
    tokenizer, stops = put_on(character_tokenizer(), name)
    taskset = Colors("no words" if name == "llama3_1" else "right")
    (rollout,) = show(tokenizer, stops, taskset)
    (s,) = rollout.sequences
    assert (rollout.reward, rollout.error, rollout.ended) == (
        Reward.of("right", 1.0, 0.0, 1.0, True),
        None,
        Ending.STOP_TOKEN,
    )
    before_last = list(rollout.messages[:-1])
    prompt = template(tokenizer, before_last, [SEARCH], speak=True)
    said = tokenizer("purple after result 2", add_special_tokens=False).input_ids
    assert s.ids.tolist() == [*prompt, *said, stops[1]]


def test_roles_turns_and_logprobs_are_as_in_a_rollout() -> None:
    tokenizer, stops = put_on(character_tokenizer(), "qwen2_5")
    for rollout in show(tokenizer, stops, Colors(), count=5):
        (s,) = rollout.sequences
        changes = np.flatnonzero(np.diff(s.roles)) + 1
        parts = [(Role(int(roles[0])), set(turns)) for roles, turns in _split(changes, s.roles, s.turns)]
        assert parts == [
            (Role.PROMPT, {0}), (Role.MODEL, {0}), (Role.TOOL, {1}), (Role.MODEL, {1}), (Role.TOOL, {2}),
            (Role.MODEL, {2}),
        ]  # fmt: skip
        assert np.isnan(s.sampler).all()  # nobody sampled them
        assert set(s.versions) == {-1}
        turns = [tokenizer.decode(ids[roles == Role.MODEL]) for ids, roles in _split(changes, s.ids, s.roles)]
        assert [t for t in turns if t] == [
            '<tool_call>\n{"name": "search", "arguments": {"query": "first"}}\n</tool_call><|im_end|>',
            'Hm.\n<tool_call>\n{"name": "search", "arguments": {"query": "second"}}\n</tool_call><|im_end|>',
            "purple after result 2<|im_end|>",
        ]


def _split(places: np.ndarray, *arrays: np.ndarray) -> Any:
    return zip(*(np.split(a, places) for a in arrays), strict=True)


@pytest.mark.parametrize("chat", [True, False], ids=["in words", "raw"])
def test_it_says_what_the_script_says_without_a_model(chat: bool) -> None:
    tokenizer, taskset = character_tokenizer(), Colors()
    taskset.chat = chat
    (rollout,) = show(tokenizer, [tokenizer.eos_token_id], taskset)
    messages, reward = asyncio.run(play_script(taskset, QUESTION, taskset.gold(QUESTION)))  # type: ignore[arg-type]
    assert (list(rollout.messages), rollout.reward) == (messages, reward)


@pytest.mark.parametrize(("gold", "turns"), [("gives up", 2), ("silent", 0)])
def test_a_script_that_ends_before_the_task_does(gold: str, turns: int) -> None:
    tokenizer, stops = put_on(character_tokenizer(), "qwen2_5")
    (rollout,) = show(tokenizer, stops, Colors(gold))
    assert (rollout.ended, rollout.error) == (Ending.STOP_TOKEN, None)
    assert rollout.reward is not None
    assert sum(m.role == "assistant" for m in rollout.messages) == turns
    roles = rollout.sequences[0].roles
    assert (int(roles[-1]) == Role.MODEL) if turns else not len(roles)


def test_a_script_that_fails_is_data() -> None:
    tokenizer, stops = put_on(character_tokenizer(), "qwen2_5")
    for rollout in show(tokenizer, stops, Colors("fails"), count=2):
        assert (rollout.ended, rollout.reward) == (Ending.TASK_ERROR, None)
        assert rollout.error == "gold: LookupError('no document')"
        assert rollout.sampled_tokens > 0


def test_a_script_that_cannot_begin_is_data() -> None:
    class Scriptless(Colors):
        def gold(self, *_: object) -> Script:
            raise LookupError("no such task")

    tokenizer, stops = put_on(character_tokenizer(), "qwen2_5")
    request = RolloutRequest(QUESTION, Scriptless(), 0, "gold", 0, 0)  # type: ignore[arg-type]
    (rollout,) = asyncio.run(demonstrate([request], {True: Renderer(tokenizer, stops, chat=True)}, LIMITS, 3))
    assert (rollout.ended, rollout.reward, rollout.error) == (
        Ending.TASK_ERROR,
        None,
        "gold: LookupError('no such task')",
    )


def test_a_script_that_the_model_has_no_words_for_is_refused() -> None:
    tokenizer, stops = put_on(character_tokenizer(), "llama3_1")
    with pytest.raises(TasksetError, match="holds one call a turn"):
        show(tokenizer, stops, Colors("two at once"))


def test_limits_hold_for_scripts_too() -> None:
    tokenizer, stops = put_on(character_tokenizer(), "qwen2_5")
    (rollout,) = show(tokenizer, stops, Colors(), max_turns=2)
    assert rollout.ended == Ending.TURN_LIMIT
    first = len(Renderer(tokenizer, stops, chat=True).first(QUESTION.messages, [SEARCH]))
    (rollout,) = show(tokenizer, stops, Colors(), context=first + 9)
    assert (rollout.ended, rollout.reward, rollout.sampled_tokens) == (Ending.CONTEXT_FULL, None, 0)
    assert rollout.error is not None
    assert rollout.error.startswith("turn 0: ")
    assert rollout.error.endswith(f" tokens do not fit into sampling.context = {first + 9:,}")


def test_a_speaker_that_is_done_stays_done() -> None:
    tokenizer = character_tokenizer()

    def once() -> Script:
        yield Message("assistant", "4")

    async def listen() -> list[Any]:
        speaker = ScriptSpeaker(once(), Renderer(tokenizer, [2], chat=True))
        return [await speaker.say([5, 6], ()) for _ in range(3)]

    first, *rest = asyncio.run(listen())
    assert first.ids.tolist() == [*tokenizer("4").input_ids, 2]
    assert rest == [None, None]
