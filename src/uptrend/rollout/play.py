"""Playing tasks: from a task to a finished rollout, many at once; the model speaks through a sampler, or a script does.

What fails inside a task (opening it, its answer, its score, closing it) is written into the rollout with the
boundary at which it failed; it neither scores 0 nor stops the run. What fails in the sampler stops the run: it
is ours.
"""

import asyncio
import hashlib
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

import numpy as np

from uptrend.records import Ending, Message, Reward, Role, Rollout, Task, Tool, UptrendError
from uptrend.records import Sequence as Tokens
from uptrend.rollout.render import Renderer
from uptrend.rollout.sampler import Extension, Limits, Sampler
from uptrend.tasks.taskset import Play, Script, Taskset


def derive(*parts: int | str) -> int:
    """A 63-bit seed from any identifying parts."""
    digest = hashlib.blake2b(repr(parts).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1


class Speaker(Protocol):
    """One side of a rollout, which takes its turn whenever the task has answered."""

    async def say(self, new: Sequence[int], heard: Sequence[Message]) -> Extension | None:
        """Hear what is new, as tokens and as messages, and speak; None where there is nothing more to say."""


@dataclass(frozen=True)
class ModelSpeaker:
    """The model, in a stream of a sampler."""

    sampler: Sampler
    stream: int
    """The stream's number; whoever chose it releases it."""
    limits: Limits
    """Sampling parameters of a turn, and what ends it."""
    seed: int
    """The stream's seed."""

    async def say(self, new: Sequence[int], heard: Sequence[Message]) -> Extension | None:
        """See Speaker; a model hears tokens alone."""
        del heard
        return await self.sampler.extend(self.stream, new, self.limits, self.seed)


class ScriptSpeaker:
    """A scripted player, whose messages become the tokens that the model would have said."""

    def __init__(self, script: Script, renderer: Renderer) -> None:
        self._script, self._renderer = script, renderer
        self._began = False
        self.error: str | None = None
        """Error in the script; it then says nothing more."""

    async def say(self, new: Sequence[int], heard: Sequence[Message]) -> Extension | None:
        """See Speaker; a script hears messages alone."""
        del new
        message = self._next(heard)
        if message is None:
            return None
        ids = np.array(self._renderer.write(message), np.int32)
        # Nobody sampled them: they have no log-probability and no version, as prompts have none.
        return Extension(ids, np.full(len(ids), np.nan, np.float32), Ending.STOP_TOKEN, version=-1)

    def _next(self, heard: Sequence[Message]) -> Message | None:
        try:
            if self._began:
                return self._script.send(heard)
            self._began = True
            return next(self._script)
        except StopIteration:
            return None
        except UptrendError:
            raise  # already says what would be right, and to a person
        except Exception as problem:
            self.error = f"gold: {problem!r}"
            return None


@dataclass(frozen=True)
class RolloutRequest:
    """One rollout to be played: which task, and who it is."""

    task: Task
    taskset: Taskset
    step: int
    group: str
    index: int
    seed: int


@dataclass
class _Transcript:
    """The tokens of a rollout as they come."""

    ids: list[int] = field(default_factory=list)
    turns: list[int] = field(default_factory=list)
    roles: list[int] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)

    def read(self, ids: Sequence[int], turn: int, role: Role) -> None:
        """Tokens that somebody else wrote."""
        self._add(ids, [float("nan")] * len(ids), turn, role, -1)

    def say(self, said: Extension, turn: int) -> None:
        """Tokens that the model sampled."""
        self._add(said.ids.tolist(), said.logprobs.tolist(), turn, Role.MODEL, said.version)

    def _add(self, ids: Sequence[int], logprobs: Sequence[float], turn: int, role: Role, version: int) -> None:
        self.ids += ids
        self.logprobs += logprobs
        self.turns += [turn] * len(ids)
        self.roles += [int(role)] * len(ids)
        self.versions += [version] * len(ids)

    def tokens(self) -> Tokens:
        """As a recorded sequence."""
        return Tokens(
            ids=np.array(self.ids, np.int32),
            turns=np.array(self.turns, np.int32),
            roles=np.array(self.roles, np.int8),
            versions=np.array(self.versions, np.int32),
            sampler=np.array(self.logprobs, np.float32),
        )


@dataclass(frozen=True)
class _Conversation:
    """A rollout in progress: who takes part, under which limits, and what has been said."""

    opened: Play
    """The task's side."""
    tools: tuple[Tool, ...]
    """Tools that the model may call."""
    speaker: Speaker
    """The model's side."""
    renderer: Renderer
    """Turns messages into tokens and back."""
    limits: Limits
    """The most tokens."""
    max_turns: int
    """The most turns."""
    messages: list[Message]
    """All that was said so far."""
    tokens: _Transcript
    """All tokens so far."""


async def play_all(
    requests: Sequence[RolloutRequest],
    sampler: Sampler,
    renderers: dict[bool, Renderer],
    limits: Limits,
    max_turns: int,
    rows: int = 0,
) -> list[Rollout]:
    """Let the model play every request, at most `rows` side by side (0 for all), in the order given."""

    async def one(stream: int, request: RolloutRequest) -> Rollout:
        speaker = ModelSpeaker(sampler, stream, limits, request.seed)
        try:
            return await play(request, speaker, renderers[request.taskset.chat], limits, max_turns)
        finally:
            sampler.release(stream)

    return await _side_by_side(one, requests, rows)


async def demonstrate(
    requests: Sequence[RolloutRequest], renderers: dict[bool, Renderer], limits: Limits, max_turns: int, rows: int = 0
) -> list[Rollout]:
    """Let each task's scripted expert play its request, in the tokens that the model would have to say."""

    async def one(_: int, request: RolloutRequest) -> Rollout:
        renderer, script = renderers[request.taskset.chat], _gold(request)
        speaker = ScriptSpeaker(script, renderer)
        try:
            rollout = await play(request, speaker, renderer, limits, max_turns)
        finally:
            script.close()
        if speaker.error is None:
            return rollout
        return replace(rollout, reward=None, ended=Ending.TASK_ERROR, error=speaker.error)

    return await _side_by_side(one, requests, rows)


def _gold(request: RolloutRequest) -> Script:
    """The expert's script, begun at its first turn: also what fails before that is the script's failure."""
    yield from request.taskset.gold(request.task)


async def _side_by_side(
    one: Callable[[int, RolloutRequest], Awaitable[Rollout]], requests: Sequence[RolloutRequest], rows: int
) -> list[Rollout]:
    gate = asyncio.Semaphore(rows or len(requests) or 1)

    async def gated(number: int, request: RolloutRequest) -> Rollout:
        async with gate:
            return await one(number, request)

    return list(await asyncio.gather(*(gated(i, request) for i, request in enumerate(requests))))


async def play(
    request: RolloutRequest, speaker: Speaker, renderer: Renderer, limits: Limits, max_turns: int
) -> Rollout:
    """One rollout, from its first prompt to its score."""
    began = time.perf_counter()
    tokens, messages, tools, reward = _Transcript(), list(request.task.messages), tuple[Tool, ...](), None
    opened: Play | None = None
    ended, error = Ending.TASK_ERROR, None
    try:
        try:
            opened = request.taskset.open(request.task, request.seed)
            messages, tools = list(opened.messages), tuple(opened.tools)
        except Exception as problem:
            error = f"open: {problem!r}"
        if opened is not None and error is None:
            talk = _Conversation(opened, tools, speaker, renderer, limits, max_turns, messages, tokens)
            ended, error = await _converse(talk)
            if error is None:
                reward, ended, error = await _score(opened, ended)
    finally:
        error = await _close(opened, error)
    return Rollout(
        step=request.step, group=request.group, index=request.index, task=request.task.id, family=request.task.family,
        answer=request.task.answer, seed=request.seed, messages=tuple(messages), sequences=(tokens.tokens(),),
        reward=reward, ended=ended, error=error, seconds=time.perf_counter() - began,
    )  # fmt: skip


async def _converse(talk: _Conversation) -> tuple[Ending, str | None]:
    """Turn after turn, until something ends it; what ended it, and what failed."""
    heard: Sequence[Message] = talk.messages[:]
    new, role = talk.renderer.first(heard, talk.tools), Role.PROMPT
    if 0 < talk.limits.prompt < len(new):
        return Ending.CONTEXT_FULL, f"prompt: {len(new):,} tokens exceed sampling.max_prompt = {talk.limits.prompt:,}"
    for turn in range(talk.max_turns):
        if len(talk.tokens.ids) + len(new) >= talk.limits.context:
            return Ending.CONTEXT_FULL, None if turn else _too_long("prompt", len(new), talk.limits)
        said = await talk.speaker.say(new, heard)
        if said is None:
            return Ending.STOP_TOKEN, None
        whole = len(talk.tokens.ids) + len(new) + len(said.ids)
        if whole > talk.limits.context:  # a script's turn: a sampler's is cut
            return Ending.CONTEXT_FULL, _too_long(f"turn {turn}", whole, talk.limits)
        talk.tokens.read(new, turn, role)
        talk.tokens.say(said, turn)
        message = _message(talk, said)
        talk.messages.append(message)
        try:
            answers = await talk.opened.respond(message)
        except Exception as problem:
            return Ending.TOOL_ERROR, f"respond: {problem!r}"
        heard = answers or ()
        talk.messages.extend(heard)
        if answers is None or said.ended == Ending.CONTEXT_FULL:
            return said.ended, None
        new, role = talk.renderer.later(said.ids.tolist(), heard, talk.tools), Role.TOOL
    return Ending.TURN_LIMIT, None


def _message(talk: _Conversation, said: Extension) -> Message:
    """Return the message; without tools nothing is a call, whatever it looks like."""
    ids = said.ids.tolist()
    return talk.renderer.read(ids) if talk.tools else Message("assistant", talk.renderer.text(ids))


def _too_long(what: str, tokens: int, limits: Limits) -> str:
    return f"{what}: {tokens:,} tokens do not fit into sampling.context = {limits.context:,}"


async def _score(opened: Play, ended: Ending) -> tuple[Reward | None, Ending, str | None]:
    try:
        return await opened.score(), ended, None
    except Exception as problem:
        return None, Ending.TASK_ERROR, f"score: {problem!r}"


async def _close(opened: Play | None, error: str | None) -> str | None:
    """Free what the play holds; what failed before counts more than what fails here."""
    try:
        if opened is not None:
            await opened.close()
    except Exception as problem:
        return error or f"close: {problem!r}"
    return error
