"""Playing tasks: from a task to a finished rollout, many at once.

What fails inside a task (opening it, its answer, its score, closing it) is written into the rollout with the
boundary at which it failed; it neither scores 0 nor stops the run. What fails in the sampler stops the run: it
is ours.
"""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from uptrend.records import Ending, Message, Reward, Role, Rollout, Task
from uptrend.records import Sequence as Tokens
from uptrend.rollout.render import Renderer
from uptrend.rollout.sampler import Extension, Limits, Sampler
from uptrend.tasks.taskset import Play, Taskset


@dataclass(frozen=True)
class Seat:
    """One rollout to be played: which task, and who it is."""

    task: Task
    taskset: Taskset
    step: int
    group: str
    index: int
    seed: int


@dataclass
class _Stream:
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


async def play_all(
    seats: Sequence[Seat],
    sampler: Sampler,
    renderers: dict[bool, Renderer],
    limits: Limits,
    max_turns: int,
    rows: int = 0,
) -> list[Rollout]:
    """Play every seat, at most `rows` side by side (0 for all), in the order given."""
    gate = asyncio.Semaphore(rows or len(seats) or 1)

    async def one(stream: int, seat: Seat) -> Rollout:
        async with gate:
            return await play(seat, sampler, renderers[seat.taskset.chat], limits, max_turns, stream)

    return list(await asyncio.gather(*(one(i, seat) for i, seat in enumerate(seats))))


async def play(
    seat: Seat, sampler: Sampler, renderer: Renderer, limits: Limits, max_turns: int, stream: int
) -> Rollout:
    """One rollout, from its first prompt to its score."""
    began = time.perf_counter()
    tokens, messages, reward = _Stream(), list(seat.task.messages), None
    ended, error = Ending.TASK_ERROR, None
    try:
        opened = seat.taskset.open(seat.task, seat.seed)
    except Exception as problem:
        opened, error = None, f"open: {problem!r}"
    if opened is not None:
        try:
            messages = list(opened.messages)
            ended, error = await _converse(opened, messages, tokens, seat, sampler, renderer, limits, max_turns, stream)
            if error is None:
                reward, ended, error = await _score(opened, ended)
        finally:
            sampler.release(stream)
            try:
                await opened.close()
            except Exception as problem:
                error = error or f"close: {problem!r}"
    return Rollout(
        step=seat.step, group=seat.group, index=seat.index, task=seat.task.id, family=seat.task.family,
        answer=seat.task.answer, seed=seat.seed, messages=tuple(messages), sequences=(tokens.tokens(),),
        reward=reward, ended=ended, error=error, seconds=time.perf_counter() - began,
    )  # fmt: skip


async def _converse(
    opened: Play, messages: list[Message], tokens: _Stream, seat: Seat, sampler: Sampler, renderer: Renderer,
    limits: Limits, max_turns: int, stream: int,
) -> tuple[Ending, str | None]:  # fmt: skip
    """Turn after turn, until something ends it; what ended it, and what failed."""
    new, role = renderer.first(messages, opened.tools), Role.PROMPT
    for turn in range(max_turns):
        if len(tokens.ids) + len(new) >= limits.context:
            return Ending.CONTEXT_FULL, None
        tokens.read(new, turn, role)
        said = await sampler.extend(stream, new, limits, seat.seed)
        tokens.say(said, turn)
        message = Message("assistant", renderer.text(said.ids.tolist()))
        messages.append(message)
        try:
            answers = await opened.respond(message)
        except Exception as problem:
            return Ending.TOOL_ERROR, f"respond: {problem!r}"
        if answers is None or said.ended == Ending.CONTEXT_FULL:
            return said.ended, None
        messages.extend(answers)
        new, role = renderer.later(said.ids.tolist(), answers, opened.tools), Role.TOOL
    return Ending.TURN_LIMIT, None


async def _score(opened: Play, ended: Ending) -> tuple[Reward | None, Ending, str | None]:
    try:
        return await opened.score(), ended, None
    except Exception as problem:
        return None, Ending.TASK_ERROR, f"score: {problem!r}"
