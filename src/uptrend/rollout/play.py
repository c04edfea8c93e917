"""Playing tasks: from a task to a finished rollout, many at once; the model speaks through a
sampler, or a script does.

What fails inside a task (opening it, its answer, its score, closing it) is written into the rollout
with the boundary at which it failed; it neither scores 0 nor stops the run. A sandbox that fails is
ours: the rollout is played again. What fails in the sampler is ours too, and stops the run.
"""

import asyncio
import hashlib
import math
import time
from collections.abc import Awaitable, Callable, Coroutine, Generator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar, cast

import numpy as np

from uptrend.config import Sampling
from uptrend.records import Ending, Message, Role, Rollout, SandboxFailed, Task, Tool, UptrendError
from uptrend.records import Sequence as Tokens
from uptrend.records.rollout import Ints
from uptrend.rollout.render import Renderer
from uptrend.rollout.sampler import Extension, Limits, Sampler
from uptrend.tasks.event_loop import TimeLimit, together
from uptrend.tasks.taskset import Play, Script, Taskset, commands_of

T = TypeVar("T")
# Boundary at which a rollout failed, and the error.
Failure = tuple[str, Exception | str]


def derive(*parts: int | str) -> int:
    """Derive a 63-bit seed from any identifying parts."""
    digest = hashlib.blake2b(repr(parts).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1


def derive_open_seed(run_seed: int, group: str) -> int:
    """Derive the seed that a group's rollouts open their task with; the group's name has its step
    and its number.
    """
    return derive(run_seed, "open", group)


# The model's side of a rollout: hears what is new, as tokens and as messages, and the task's tools,
# and speaks; None where it is done.
Say = Callable[[Sequence[int], Sequence[Message], Sequence[Tool]], Awaitable[Extension | None]]


class NoTurn(Exception):  # noqa: N818 (what the model gives)
    """A turn that the model could not take: what ends the rollout, and why."""

    def __init__(self, ended: Ending, why: str) -> None:
        super().__init__(why)
        self.ended = ended


class ScriptSpeaker:
    """A scripted player, whose messages become the tokens that the model would have said."""

    def __init__(self, script: Script, renderer: Renderer) -> None:
        self._script = script
        self._renderer = renderer
        self._began = False
        self.error: str | None = None  # error in the script; it then says nothing more

    async def say(
        self, new: Sequence[int], heard: Sequence[Message], _: Sequence[Tool]
    ) -> Extension | None:
        """Speak the script's next turn; a script hears messages alone."""
        try:
            message = self._script.send(heard) if self._began else next(self._script)
            self._began = True
        except StopIteration:
            return None
        except UptrendError:
            raise  # already says what would be right, and to a person
        except Exception as problem:
            self.error = f"gold: {problem!r}"
            return None
        ids = np.array(self._renderer.write(message, new), np.int32)
        # Nobody sampled them: they have no log-probability and no version, as prompts have none.
        return Extension(
            ids, np.full(len(ids), np.nan, np.float32), Ending.STOP_TOKEN, np.full_like(ids, -1)
        )


@dataclass(frozen=True)
class RolloutRequest:
    """One rollout to be played: its task, and its place in the run."""

    task: Task
    taskset: Taskset
    step: int
    group: str
    index: int
    seed: int  # seed of its sampling
    open_seed: int = 0  # seed that its task is opened with, the same for a whole group
    # what `demonstrate` plays; None for the task's expert
    script: Callable[[], Script] | None = None


@dataclass(frozen=True)
class Timeouts:
    """Seconds that playing may take; 0 for any time."""

    # What a call waits for its turn does not count.
    tool: float = 0.0  # one call of the task, to answer, to score or to close; then it has failed
    rollout: float = 0.0  # all turns of a rollout; then it ends and is scored


ANY_TIME = Timeouts()


def patience(sampling: Sampling) -> tuple[Timeouts, int]:
    """Return a recipe's timeouts, and how often a rollout whose sandbox fails is played again."""
    return Timeouts(sampling.tool_timeout, sampling.rollout_timeout), sampling.retries


class _NoAnswer(Exception):  # noqa: N818 (what the task gives)
    """A call of the task that took too long."""


class _Transcript:
    """The tokens of a rollout as they come."""

    def __init__(self) -> None:
        self.length = 0
        self._parts: list[tuple[Ints, int, Role, Extension | None]] = []

    def add(
        self, ids: Sequence[int] | Ints, turn: int, role: Role, said: Extension | None = None
    ) -> None:
        """Add tokens of one role; `said` is the model's turn where it wrote them."""
        self.length += len(ids)
        self._parts.append((np.asarray(ids, np.int32), turn, role, said))

    def tokens(self) -> Tokens:
        parts = self._parts
        sizes = [len(ids) for ids, *_ in parts]

        def column(kind: Any, values: list[Any]) -> Any:
            return np.repeat(np.array(values, kind), sizes)

        logprobs = column(np.float32, [math.nan] * len(parts))
        versions = column(np.int32, [-1] * len(parts))
        end = 0
        for ids, _, _, said in parts:
            end += len(ids)
            if said is not None:
                logprobs[end - len(ids) : end] = said.logprobs
                versions[end - len(ids) : end] = said.versions
        said_all = [said for *_, said in parts]
        supports = [None if said is None else said.support for said in said_all]
        support = None
        if any(found is not None for found in supports):
            none = [np.zeros(size, np.int32) for size in sizes]
            support = (
                np.concatenate(
                    [
                        z if found is None else found[0]
                        for z, found in zip(none, supports, strict=True)
                    ]
                ),
                np.concatenate([found[1] for found in supports if found is not None]),
            )
        return Tokens(
            ids=np.concatenate([np.zeros(0, np.int32), *(ids for ids, *_ in parts)]),
            turns=column(np.int32, [turn for _, turn, _, _ in parts]),
            roles=column(np.int8, [int(role) for _, _, role, _ in parts]),
            versions=versions,
            sampler=logprobs,
            support=support,
        )


async def play_all(
    requests: Sequence[RolloutRequest],
    sampler: Sampler,
    renderers: Mapping[bool | None, Renderer],
    limits: Limits,
    max_turns: int,
    rows: int = 0,
    timeouts: Timeouts = ANY_TIME,
    retries: int = 0,
) -> list[Rollout]:
    """Let the model play every request, at most `rows` side by side (0 for all), in the order
    given.

    A rollout whose sandbox fails is played again from its start, with the same seeds, up to
    `retries` times.
    """

    async def one(stream: int, request: RolloutRequest) -> Rollout:
        async def say(new: Sequence[int], *_: object) -> Extension:  # a model hears tokens alone
            return await sampler.extend(stream, new, limits, request.seed)

        try:
            return await play(
                request, say, renderers[request.taskset.chat], limits, max_turns, timeouts
            )
        finally:
            sampler.release(stream)

    return await _side_by_side(one, requests, rows, retries)


async def demonstrate(
    requests: Sequence[RolloutRequest],
    renderers: Mapping[bool | None, Renderer],
    limits: Limits,
    max_turns: int,
    rows: int = 0,
    timeouts: Timeouts = ANY_TIME,
    retries: int = 0,
) -> list[Rollout]:
    """Let each request's script, or its task's expert, play it in the tokens that the model would
    have to say.
    """

    def gold(request: RolloutRequest) -> Script:
        # Begun at its first turn: also what fails before that is the script's failure.
        yield from request.script() if request.script else request.taskset.gold(request.task)

    async def one(_: int, request: RolloutRequest) -> Rollout:
        renderer = renderers[request.taskset.chat]
        script = gold(request)
        speaker = ScriptSpeaker(script, renderer)
        try:
            rollout = await play(request, speaker.say, renderer, limits, max_turns, timeouts)
        finally:
            script.close()
        if speaker.error is None:
            return rollout
        return replace(rollout, reward=None, ended=Ending.TASK_ERROR, error=speaker.error)

    return await _side_by_side(one, requests, rows, retries)


def echo(said: Sequence[Message]) -> Say:
    """Return a speaker that says recorded messages again."""
    left = iter(said)
    nothing = np.zeros(0, np.int32)

    async def say(*_: Any) -> Extension | None:
        message = next(left, None)
        ended = Extension(
            nothing, nothing.astype(np.float32), Ending.STOP_TOKEN, nothing, message=message
        )
        return None if message is None else ended

    return say


async def speak_all(
    requests: Sequence[RolloutRequest],
    begin: Callable[[RolloutRequest], Say],
    limits: Limits,
    max_turns: int,
    rows: int = 0,
    timeouts: Timeouts = ANY_TIME,
    retries: int = 0,
) -> list[Rollout]:
    """Let a model that hears and speaks messages play every request: its rollouts have no
    tokens.
    """

    async def one(_: int, request: RolloutRequest) -> Rollout:
        return await play(request, begin(request), None, limits, max_turns, timeouts)

    return await _side_by_side(one, requests, rows, retries)


async def _side_by_side(
    one: Callable[[int, RolloutRequest], Awaitable[Rollout]],
    requests: Sequence[RolloutRequest],
    rows: int,
    retries: int,
) -> list[Rollout]:
    gate = asyncio.Semaphore(rows or len(requests) or 1)

    async def gated(number: int, request: RolloutRequest) -> Rollout:
        async with gate:
            for attempt in range(retries + 1):
                # a stream that nobody has used
                rollout = await one(number + attempt * len(requests), request)
                if not rollout.sandbox_failures:
                    break
            return replace(rollout, sandbox_failures=rollout.sandbox_failures + attempt)

    return await together(gated(i, request) for i, request in enumerate(requests))


async def play(
    request: RolloutRequest,
    say: Say,
    renderer: Renderer | None,
    limits: Limits,
    max_turns: int,
    timeouts: Timeouts,
) -> Rollout:
    """Play one rollout, from its first prompt to its score; without a renderer in messages
    alone.
    """
    began = time.perf_counter()
    tokens = _Transcript()
    messages = list(request.task.messages)
    tools = tuple[Tool, ...]()
    reward = None
    opened: Play | None = None
    ended = Ending.TASK_ERROR
    failed = cast(Failure | None, None)
    try:
        try:
            opened = request.taskset.open(request.task, request.open_seed)
            messages = list(opened.messages)
            tools = tuple(opened.tools)
        except Exception as problem:
            failed = "open", problem
        if opened is not None and failed is None:
            limit = TimeLimit(timeouts.rollout)
            try:
                with limit.counting():
                    conversation = _converse(
                        opened,
                        tools,
                        messages,
                        tokens,
                        say,
                        renderer,
                        limits,
                        max_turns,
                        timeouts.tool,
                    )
                    ended, failed = await limit.enforce(conversation)
            except TimeoutError:
                if not limit.has_expired:  # the sampler's own
                    raise
                ended = Ending.TIME_LIMIT
            try:
                reward = await _within(timeouts.tool, opened.score()) if failed is None else None
            except Exception as problem:
                ended = Ending.TASK_ERROR
                failed = ("score", problem)
    finally:
        try:
            if opened is not None:
                await _within(timeouts.tool, opened.close())
        except Exception as problem:
            failed = failed or ("close", problem)  # what failed before counts more
    return Rollout(
        step=request.step,
        group=request.group,
        index=request.index,
        task=request.task.id,
        family=request.task.family,
        answer=request.task.answer,
        seed=request.seed,
        messages=tuple(messages),
        sequences=(tokens.tokens(),) if renderer else (),
        reward=reward,
        ended=ended,
        error=_told(failed),
        seconds=time.perf_counter() - began,
        commands=() if opened is None else commands_of(opened),
        # What was scored stays, also where the sandbox can't be closed.
        sandbox_failures=int(
            reward is None and failed is not None and isinstance(failed[1], SandboxFailed)
        ),
    )


async def _within(seconds: float, call: Awaitable[T]) -> T:
    """Wait so long for a call of the task (0 for any time), then cancel it and raise."""
    if not seconds:
        return await call
    limit = TimeLimit(seconds)
    try:
        with limit.counting():
            if isinstance(call, Coroutine):
                try:
                    call = _Begun(call, call.send(None))
                except (
                    StopIteration
                ) as done:  # most calls never wait, and a timer takes longer than they do
                    return done.value  # type: ignore[no-any-return]
            return await limit.enforce(call)
    except TimeoutError:
        if limit.has_expired:
            raise _NoAnswer(f"no answer within sampling.tool_timeout = {seconds:g} s") from None
        raise  # the task's own


class _Begun(Awaitable[T]):
    """A coroutine that has begun to wait for something, to be waited for further."""

    def __init__(self, call: Coroutine[Any, Any, T], waits_for: Any) -> None:
        self._call = call
        self._waits_for = waits_for

    def __await__(self) -> Generator[Any, Any, T]:
        while True:
            try:
                sent = yield self._waits_for
            except BaseException as problem:
                step = partial(self._call.throw, problem)
            else:
                step = partial(self._call.send, sent)
            try:
                self._waits_for = step()
            except StopIteration as done:
                return done.value  # type: ignore[no-any-return]


def _told(failed: Failure | None) -> str | None:
    if failed is None:
        return None
    where, problem = failed
    return f"{where}: {problem if isinstance(problem, str | _NoAnswer) else repr(problem)}"


async def _converse(
    opened: Play,
    tools: Sequence[Tool],
    messages: list[Message],
    tokens: _Transcript,
    say: Say,
    renderer: Renderer | None,
    limits: Limits,
    max_turns: int,
    timeout: float,
) -> tuple[Ending, Failure | None]:
    """Play turn after turn, adding to messages and tokens; return what ended it, and what
    failed.
    """
    heard: Sequence[Message] = messages[:]
    new = renderer.first(heard, tools) if renderer else []
    role = Role.PROMPT
    if 0 < limits.prompt < len(new):
        return Ending.CONTEXT_FULL, (
            "prompt",
            f"{len(new):,} tokens exceed sampling.max_prompt = {limits.prompt:,}",
        )
    too_long = f"tokens do not fit into sampling.context = {limits.context:,}"
    for turn in range(max_turns):
        if tokens.length + len(new) >= limits.context:
            return Ending.CONTEXT_FULL, None if turn else ("prompt", f"{len(new):,} {too_long}")
        try:
            said = await say(new, heard, tools)
        except NoTurn as problem:
            # What was said before the context was full is scored.
            is_scored = turn > 0 and problem.ended == Ending.CONTEXT_FULL
            return problem.ended, (
                None if is_scored else (f"turn {turn}" if turn else "prompt", str(problem))
            )
        if said is None:
            return Ending.STOP_TOKEN, None
        ids = said.ids.tolist()
        whole = tokens.length + len(new) + len(ids)
        if whole > limits.context:  # a script's turn: a sampler's is cut
            return Ending.CONTEXT_FULL, (f"turn {turn}", f"{whole:,} {too_long}")
        tokens.add(new, turn, role)
        tokens.add(said.ids, turn, Role.MODEL, said)
        if renderer is None:
            assert said.message is not None
            message = said.message
        else:  # without tools nothing is a call, whatever it looks like
            message = (
                renderer.read(ids, new) if tools else Message("assistant", renderer.text(ids, new))
            )
        messages.append(message)
        try:
            answers = await _within(timeout, opened.respond(message))
        except Exception as problem:
            return Ending.TOOL_ERROR, ("respond", problem)
        heard = answers or ()
        messages.extend(heard)
        if answers is None or said.ended == Ending.CONTEXT_FULL:
            return said.ended, None
        new = renderer.later(ids, heard, tools) if renderer else []
        role = Role.TOOL
    return Ending.TURN_LIMIT, None
