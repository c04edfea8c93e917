"""Chat templates that change earlier turns: each change begins another sequence of the rollout, and
every sequence is what the template shows.
"""

import asyncio
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from chats import FINISH, SEARCH, calling, in_words, put_on, whole
from models import character_tokenizer
from uptrend.config import load_config
from uptrend.records import Ending, Message, Reward, Role, Rollout, Task, Tool
from uptrend.rollout.calls import CALL_FORMATS
from uptrend.rollout.play import RolloutRequest, play_all
from uptrend.rollout.render import Renderer, make_renderer
from uptrend.rollout.sampler import Extension, Limits

LIMITS = Limits(max_tokens=400, context=20_000)


class Conversation:
    """A play whose side of the conversation is known."""

    def __init__(self, first: Sequence[Message], answers: Sequence[Sequence[Message]], tools: Any):
        self.messages = first
        self.tools: Sequence[Tool] = tools
        self._answers = iter(answers)

    async def respond(self, _: Message) -> Sequence[Message] | None:
        return next(self._answers, None)

    async def score(self) -> Reward:
        return Reward(1.0, 0.0, 1.0, True)

    async def close(self) -> None:
        pass


class Conversations:
    name = "conversations"
    version = "1"
    chat = True

    def __init__(self, play: Conversation) -> None:
        self._play = play

    def open(self, task: Task, seed: int) -> Conversation:
        del task, seed
        return self._play


class Speaker:
    """A sampler that says known texts, and keeps what it was given."""

    def __init__(self, tokenizer: Any, texts: Sequence[str], stop: int) -> None:
        self._encode = lambda text: tokenizer(text, add_special_tokens=False).input_ids
        self._texts = iter(texts)
        self._stop = stop
        self.seeds: list[int] = []
        self.releases = 0

    async def extend(self, _: int, ids: Sequence[int], limits: Limits, seed: int) -> Extension:
        del ids, limits
        self.seeds.append(seed)
        said = np.array([*self._encode(next(self._texts)), self._stop], np.int32)
        return Extension(said, np.zeros(len(said), np.float32), Ending.STOP_TOKEN, said * 0)

    def release(self, _: int) -> None:
        self.releases += 1


def converse(
    name: str,
    first: Sequence[Message],
    turns: Sequence[str],
    answers: Sequence[Sequence[Message]],
    tools: Sequence[Tool] = (),
) -> tuple[Rollout, Any, Speaker, Renderer]:
    tokenizer, stops = put_on(character_tokenizer(), name)
    renderer = Renderer(tokenizer, stops, chat=True)
    speaker = Speaker(tokenizer, turns, stops[1])
    taskset: Any = Conversations(Conversation(first, answers, tools))
    task = Task(tuple(first), "", "test", 0.0, {}, "t")
    request = RolloutRequest(task, taskset, 0, "g", 0, seed=7)
    plays = play_all([request], speaker, {True: renderer}, LIMITS, len(turns))  # type: ignore[arg-type]
    (rollout,) = asyncio.run(plays)
    assert rollout.error is None
    return rollout, tokenizer, speaker, renderer


def template(tokenizer: Any, messages: Sequence[Message], **variables: Any) -> list[int]:
    text = tokenizer.apply_chat_template(
        [{"role": m.role, "content": m.content} for m in messages],
        add_generation_prompt=True,
        tokenize=False,
        **variables,
    )
    ids: list[int] = tokenizer(text, add_special_tokens=False).input_ids
    return ids


USER = Message("user", "Why?")
THOUGHT = "<think>\nIt is so.\n</think>\n\n"


def test_thoughts_that_the_template_takes_out_begin_another_sequence() -> None:
    turns = [f"{THOUGHT}Four.", f"{THOUGHT}Five.", "Six."]
    rollout, tokenizer, speaker, _ = converse("qwen3", [USER], turns, [[USER], [USER]])
    assert len(rollout.sequences) == 3
    messages = list(rollout.messages)
    for n, sequence in enumerate(rollout.sequences):
        prompt = sequence.ids[sequence.roles == int(Role.PROMPT)].tolist()
        assert prompt == template(tokenizer, messages[: 2 * n + 1])
        text = tokenizer.decode(sequence.ids[sequence.roles == int(Role.MODEL)])
        assert text.startswith(turns[n])
        assert set(sequence.turns.tolist()) == {n}
    assert "It is so" not in tokenizer.decode(rollout.sequences[2].ids)
    # Other random numbers for each sequence, and one stream released for each.
    assert len(set(speaker.seeds)) == 3
    assert speaker.releases == 3


@pytest.mark.parametrize("name", ["qwen2_5", "llama3_1", "gemma3"])
def test_a_template_that_keeps_turns_has_one_sequence(name: str) -> None:
    turns = [f"{THOUGHT}Four.", "Five.", "Six."]
    rollout, _, speaker, _ = converse(name, [USER], turns, [[USER], [USER]])
    assert len(rollout.sequences) == 1
    assert len(set(speaker.seeds)) == 1


def test_thoughts_stay_until_the_user_speaks_again() -> None:
    """Qwen3 keeps the thoughts of a turn that a tool answers."""
    turns = [
        f'{THOUGHT}<tool_call>\n{{"name": "search", "arguments": {{"query": "x"}}}}\n</tool_call>',
        "Four.",
    ]
    result = [Message("tool", "x is 4")]
    rollout, tokenizer, _, _ = converse("qwen3", [USER], turns, [result], [SEARCH])
    assert len(rollout.sequences) == 1
    assert "It is so" in tokenizer.decode(rollout.sequences[0].ids)


def test_a_variable_of_the_template_is_passed_on() -> None:
    tokenizer, stops = put_on(character_tokenizer(), "qwen3")
    plain = Renderer(tokenizer, stops, chat=True)
    quick = Renderer(tokenizer, stops, chat=True, template={"enable_thinking": False})
    assert plain.first_prompt([USER], ()) == template(tokenizer, [USER])
    assert quick.first_prompt([USER], ()) == template(tokenizer, [USER], enable_thinking=False)
    assert quick.first_prompt([USER], ()) != plain.first_prompt([USER], ())
    # From a recipe.
    policy: Any = SimpleNamespace(tokenizer=tokenizer, stop_ids=stops)
    config = load_config({"model": {"template": {"enable_thinking": False}}})
    renderer = make_renderer(policy, config, tasks_chat=True)
    assert renderer.first_prompt([USER], ()) == quick.first_prompt([USER], ())


WORDS = st.text("ab cd.", min_size=1, max_size=12).map(str.strip).filter(bool)
# One turn of the model: its thoughts, what it says, and its calls, each with its result.
TURNS = st.lists(
    st.tuples(st.booleans(), WORDS, st.lists(WORDS, max_size=2)), min_size=1, max_size=4
)
FORMATS = {"qwen2_5": "qwen", "qwen3": "qwen", "llama3_1": "llama", "gemma3": "plain"}
EMPTY_THOUGHTS = "<think>\n\n</think>\n\n"


@pytest.mark.slow
@pytest.mark.parametrize("name", ["qwen2_5", "qwen3", "llama3_1", "gemma3"])
def test_every_prompt_is_what_the_template_renders(name: str) -> None:
    """200 conversations with tools, thoughts and several turns: the ids that the model read before
    each turn are those of transformers' own rendering of the messages so far.
    """
    seen = {"conversations": 0, "calls": 0, "thoughts": 0, "sequences": 0, "prompts": 0}

    @settings(max_examples=200, deadline=None, suppress_health_check=list(HealthCheck))
    @given(turns=TURNS, words=st.lists(WORDS, min_size=5, max_size=5), has_system=st.booleans())
    def same(turns: list[tuple[bool, str, list[str]]], words: list[str], has_system: bool) -> None:
        tools = [SEARCH, FINISH]
        first = [Message("user", words[3])]
        if has_system or name == "gemma3":  # whose tools are offered in a system message
            first = [Message("system", words[4]), *first]
        spoken: list[str] = []
        answers: list[list[Message]] = []
        call_format = CALL_FORMATS[FORMATS[name]]
        for (thinks, word, queries), reply in zip(turns, words, strict=False):
            calls = queries[:1] if name == "llama3_1" else queries  # its template has one at most
            # The thoughts of a turn of Llama are no part of a call's message.
            content = "" if name == "llama3_1" and calls else THOUGHT * thinks + word
            spoken.append(call_format.write(calling(content, *calls)))
            results = [Message("tool", query) for query in calls]
            answers.append(results or [Message("user", reply)])
            seen["calls"] += len(calls)
            seen["thoughts"] += thinks

        rollout, tokenizer, _, _ = converse(name, first, spoken, answers[:-1], tools)
        seen["conversations"] += 1
        seen["sequences"] += len(rollout.sequences)
        models = [i for i, m in enumerate(rollout.messages) if m.role == "assistant"]
        assert len(models) == len(turns)
        for turn, index in enumerate(models):
            (sequence,) = [s for s in rollout.sequences if turn in s.turns[s.sampled]]
            is_before = sequence.turns < turn
            is_before |= (sequence.turns == turn) & ~sequence.sampled
            messages = list(rollout.messages[:index])
            if name == "gemma3":
                expected = whole(tokenizer, in_words(messages), [], speak=True)
            else:
                expected = whole(tokenizer, messages, tools, speak=True)
            if name == "qwen3":
                # It puts empty thoughts before turns that have none, unless the user spoke since.
                text = tokenizer.decode(expected).replace(EMPTY_THOUGHTS, "")
                expected = tokenizer(text, add_special_tokens=False).input_ids
            assert sequence.ids[is_before].tolist() == expected
            seen["prompts"] += 1

    same()
    assert min(seen["calls"], seen["thoughts"]) > 50
    assert seen["prompts"] > 300
    assert seen["conversations"] >= 200
    # Only Qwen3 takes thoughts out of earlier turns.
    assert (seen["sequences"] > seen["conversations"]) == (name == "qwen3")
