"""Playing tasks: from a task to a finished rollout, many at once; the model's turns come from a
sampler, a script or a server.

What fails inside a task (opening it, its answer, its score, closing it) is written into the rollout
with the boundary at which it failed; it neither scores 0 nor stops the run. A sandbox that fails is
ours: the rollout is played again. What fails in the sampler is ours too, and stops the run.
"""

import asyncio
import hashlib
import time
from collections.abc import Awaitable, Callable, Coroutine, Generator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple, TypeVar

import numpy as np

from uptrend.config import Sampling
from uptrend.records import (
    Ending,
    Message,
    Reward,
    Role,
    Rollout,
    SandboxFailed,
    Task,
    TasksetError,
    Tool,
    UptrendError,
)
from uptrend.records import Sequence as Tokens
from uptrend.records.rollout import Ints
from uptrend.rollout.render import Renderer
from uptrend.rollout.sampler import Extension, Limits, Sampler
from uptrend.tasks.event_loop import TimeLimit, together
from uptrend.tasks.functions import FunctionFailed
from uptrend.tasks.taskset import Play, ScoresTogether, Script, Taskset, commands_of

T = TypeVar("T")

# Policy version of a token that no policy sampled: those of prompts, tools and scripts.
NO_VERSION = -1


def derive_seed(*parts: int | str) -> int:
    """Derive a 63-bit seed from any identifying parts."""
    digest = hashlib.blake2b(repr(parts).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1


def derive_open_seed(run_seed: int, group: str) -> int:
    """Derive the seed that a group's rollouts open their task with; the group's name has its step
    and its number.
    """
    return derive_seed(run_seed, "open", group)


# Requests


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
    # Script that `demonstrate` plays; None for the task's expert.
    script: Callable[[], Script] | None = None
    source: str = ""  # label of the task's source; empty if there is one


@dataclass(frozen=True)
class Timeouts:
    """Seconds that playing may take; 0 for no limit."""

    # Time that a call waits for its turn does not count.
    tool: float = 0.0  # one call of the task, to answer, to score or to close; then it has failed
    rollout: float = 0.0  # all turns of a rollout; then it ends and is scored

    @classmethod
    def of(cls, sampling: Sampling) -> "Timeouts":
        """Return those of a recipe."""
        return cls(sampling.tool_timeout, sampling.rollout_timeout)


NO_TIMEOUTS = Timeouts()


# The model's side of a rollout


@dataclass(frozen=True)
class TurnPrompt:
    """Input of the model before one of its turns."""

    ids: Sequence[int]  # tokens to read; none for a model that reads messages
    messages: Sequence[Message]  # messages since its last turn
    tools: Sequence[Tool]
    # True if `ids` are the whole conversation, which replaces all tokens that it has read before.
    is_whole: bool = False


# Returns the model's next turn; None ends the rollout.
NextTurn = Callable[[TurnPrompt], Awaitable[Extension | None]]
# Scores a play together with others; None for a play that scores itself.
JointScore = Callable[[Play], Awaitable[Reward]] | None


class TurnFailed(Exception):  # noqa: N818 (named as SandboxFailed is)
    """A turn that the model could not take: how the rollout ends, and why."""

    def __init__(self, ended: Ending, why: str) -> None:
        super().__init__(why)
        self.ended = ended


class ScriptedTurns:
    """Turns of a script, in the tokens that the model would have sampled."""

    def __init__(self, script: Script, renderer: Renderer) -> None:
        self._script = script
        self._renderer = renderer
        self._is_started = False
        self.error: str | None = None  # error in the script, which then takes no more turns

    async def next_turn(self, prompt: TurnPrompt) -> Extension | None:
        """Return the script's next turn; a script reads messages alone."""
        try:
            script = self._script
            message = script.send(prompt.messages) if self._is_started else next(script)
            self._is_started = True
        except StopIteration:
            return None
        except UptrendError:
            raise  # its text is already meant for the user
        except Exception as problem:
            self.error = f"gold: {problem!r}"
            return None
        ids = np.array(self._renderer.write(message, prompt.ids), np.int32)
        return Extension(
            ids=ids,
            logprobs=np.full(len(ids), np.nan, np.float32),
            ended=Ending.STOP_TOKEN,
            versions=np.full_like(ids, NO_VERSION),
        )


def message_turn(message: Message, ended: Ending) -> Extension:
    """Return a turn that came as a message, without tokens."""
    no_ids = np.zeros(0, np.int32)
    no_logprobs = np.zeros(0, np.float32)
    return Extension(no_ids, no_logprobs, ended, no_ids, message=message)


def repeat_messages(messages: Sequence[Message]) -> NextTurn:
    """Return a model that takes its turns from recorded messages."""
    remaining = iter(messages)

    async def next_turn(*_: Any) -> Extension | None:
        message = next(remaining, None)
        if message is None:
            return None
        return message_turn(message, Ending.STOP_TOKEN)

    return next_turn


# Many rollouts


async def play_all(
    requests: Sequence[RolloutRequest],
    sampler: Sampler,
    renderers: Mapping[bool | None, Renderer],
    limits: Limits,
    max_turns: int,
    rows: int = 0,
    timeouts: Timeouts = NO_TIMEOUTS,
    retries: int = 0,
) -> list[Rollout]:
    """Let a sampler's model play every request; return the rollouts in the same order.

    At most `rows` are played side by side (0 for all). A rollout whose sandbox fails is played
    again from its start, with the same seeds, up to `retries` times.
    """

    async def play_one(stream: int, request: RolloutRequest, joint_score: JointScore) -> Rollout:
        seed = request.seed

        async def next_turn(prompt: TurnPrompt) -> Extension:
            nonlocal seed
            if prompt.is_whole:
                sampler.release(stream)
                # A stream's random numbers begin anew: with the same seed they would repeat.
                seed = derive_seed(seed, "sequence")
            return await sampler.extend(stream, prompt.ids, limits, seed)

        renderer = renderers[request.taskset.chat]
        try:
            return await play(
                request, next_turn, renderer, limits, max_turns, timeouts, joint_score
            )
        finally:
            sampler.release(stream)

    return await _play_side_by_side(play_one, requests, rows, retries, timeouts.tool)


async def demonstrate(
    requests: Sequence[RolloutRequest],
    renderers: Mapping[bool | None, Renderer],
    limits: Limits,
    max_turns: int,
    rows: int = 0,
    timeouts: Timeouts = NO_TIMEOUTS,
    retries: int = 0,
) -> list[Rollout]:
    """Let each request's script, or its task's expert, play it in the tokens that the model would
    have to sample.
    """

    def script_of(request: RolloutRequest) -> Script:
        # A generator, so that the script is made at its first turn: an error in making it is then
        # the script's failure too.
        if request.script:
            yield from request.script()
        else:
            yield from request.taskset.gold(request.task)

    async def play_one(_: int, request: RolloutRequest, joint_score: JointScore) -> Rollout:
        renderer = renderers[request.taskset.chat]
        script = script_of(request)
        turns = ScriptedTurns(script, renderer)
        try:
            rollout = await play(
                request, turns.next_turn, renderer, limits, max_turns, timeouts, joint_score
            )
        except TasksetError as error:  # of the renderer, which does not know the task
            raise TasksetError(f"Task {request.task.id}: {error}") from error
        finally:
            script.close()
        if turns.error is None:
            return rollout
        return replace(rollout, reward=None, ended=Ending.TASK_ERROR, error=turns.error)

    return await _play_side_by_side(play_one, requests, rows, retries, timeouts.tool)


async def play_messages(
    requests: Sequence[RolloutRequest],
    start_model: Callable[[RolloutRequest], NextTurn],
    limits: Limits,
    max_turns: int,
    rows: int = 0,
    timeouts: Timeouts = NO_TIMEOUTS,
    retries: int = 0,
) -> list[Rollout]:
    """Let a model that reads and writes messages play every request: its rollouts have no
    tokens.
    """

    async def play_one(_: int, request: RolloutRequest, joint_score: JointScore) -> Rollout:
        model = start_model(request)
        return await play(request, model, None, limits, max_turns, timeouts, joint_score)

    return await _play_side_by_side(play_one, requests, rows, retries, timeouts.tool)


async def _play_side_by_side(
    play_one: Callable[[int, RolloutRequest, JointScore], Awaitable[Rollout]],
    requests: Sequence[RolloutRequest],
    rows: int,
    retries: int,
    score_timeout: float,
) -> list[Rollout]:
    free_rows = asyncio.Semaphore(rows or len(requests) or 1)
    scorings = _joint_scorings(requests, score_timeout)

    async def play_with_retries(number: int, request: RolloutRequest) -> Rollout:
        scoring = scorings[number]
        row = _RowLease(free_rows)
        joint_score = None if scoring is None else partial(scoring.score, number, row)
        try:
            await row.take()
            for attempt in range(retries + 1):
                # A sampler's streams are used once, so each attempt has its own.
                stream = number + attempt * len(requests)
                rollout = await play_one(stream, request, joint_score)
                is_scored_jointly = scoring is not None and scoring.has_play(number)
                # Others were scored with it, so that its joint score can't be taken back.
                if not rollout.sandbox_failures or is_scored_jointly:
                    break
            return replace(rollout, sandbox_failures=rollout.sandbox_failures + attempt)
        finally:
            row.free()
            if scoring is not None:
                scoring.leave(number)

    return await together(play_with_retries(n, request) for n, request in enumerate(requests))


class _RowLease:
    """One of the places of rollouts that are played side by side."""

    def __init__(self, free_rows: asyncio.Semaphore) -> None:
        self._free_rows = free_rows
        self.is_taken = False

    async def take(self) -> None:
        """Wait for a place."""
        await self._free_rows.acquire()
        self.is_taken = True

    def free(self) -> None:
        """Leave the place to another rollout; a second time does nothing."""
        if self.is_taken:
            self.is_taken = False
            self._free_rows.release()


# Rollouts that are scored together


class _JointScoring:
    """Scores rollouts at once, as soon as each of them has ended or failed."""

    def __init__(self, taskset: ScoresTogether, timeout: float) -> None:
        self._taskset = taskset
        self._timeout = timeout
        self._playing: set[int] = set()  # numbers of requests
        self._plays: dict[int, Play] = {}
        self._rewards: asyncio.Future[dict[int, Reward | Exception]] | None = None
        self._is_complete = asyncio.Event()

    def expect(self, number: int) -> None:
        """Wait for the rollout of this request too."""
        self._playing.add(number)

    def leave(self, number: int) -> None:
        """Wait no longer for a rollout: it is there, or has failed."""
        self._playing.discard(number)
        if not self._playing and self._plays and self._rewards is None:
            # A task of its own, so that its time limit starts now, and not when a member began to
            # wait.
            self._rewards = asyncio.ensure_future(self._score_all())
            self._is_complete.set()

    def has_play(self, number: int) -> bool:
        """Return True if the rollout of this request came to be scored."""
        return number in self._plays

    async def score(self, number: int, row: "_RowLease", play: Play) -> Reward:
        """Return the reward of a play once all are scored; meanwhile others may take its row."""
        row.free()
        self._plays[number] = play
        self.leave(number)
        await self._is_complete.wait()
        assert self._rewards is not None
        try:
            # Not awaited directly: one rollout's cancellation would cancel the others' rewards.
            rewards = await asyncio.shield(self._rewards)
        except asyncio.CancelledError:
            self._rewards.cancel()  # all are cancelled
            raise
        reward = rewards[number]
        if isinstance(reward, Exception):
            raise reward
        return reward

    async def _score_all(self) -> dict[int, Reward | Exception]:
        numbers = sorted(self._plays)  # in the order of the requests, not of their ends
        plays = [self._plays[number] for number in numbers]
        call = self._taskset.score_together(plays)
        rewards = await _with_timeout(self._timeout, call)
        return dict(zip(numbers, rewards, strict=True))


def _joint_scorings(
    requests: Sequence[RolloutRequest], timeout: float
) -> list[_JointScoring | None]:
    """Return the joint scoring of each request; None for those that are scored alone."""
    tasksets = {id(request.taskset): request.taskset for request in requests}
    joint_tasksets: dict[int, ScoresTogether] = {}
    for identity, taskset in tasksets.items():
        if isinstance(taskset, ScoresTogether) and taskset.scored_with != "alone":
            joint_tasksets[identity] = taskset
    if not joint_tasksets:
        return [None] * len(requests)

    scorings: list[_JointScoring | None] = []
    by_members: dict[tuple[int, str], _JointScoring] = {}
    for number, request in enumerate(requests):
        joint = joint_tasksets.get(id(request.taskset))
        if joint is None:
            scorings.append(None)
            continue
        group = request.group if joint.scored_with == "group" else ""
        key = (id(joint), group)
        scoring = by_members.setdefault(key, _JointScoring(joint, timeout))
        scoring.expect(number)
        scorings.append(scoring)
    return scorings


# One rollout


async def play(
    request: RolloutRequest,
    next_turn: NextTurn,
    renderer: Renderer | None,
    limits: Limits,
    max_turns: int,
    timeouts: Timeouts,
    joint_score: JointScore = None,
) -> Rollout:
    """Play one rollout, from its first prompt to its score; without a renderer in messages
    alone.
    """
    rollout = _RolloutInPlay(request, next_turn, renderer, limits, max_turns, timeouts, joint_score)
    return await rollout.play()


@dataclass(frozen=True)
class _Failure:
    """An error of a task or a turn, and the boundary at which it came."""

    boundary: str  # prompt, turn N, open, respond, score or close
    problem: Exception | str

    def __str__(self) -> str:
        is_sentence = isinstance(self.problem, str | _CallTimeout | FunctionFailed)
        return f"{self.boundary}: {self.problem if is_sentence else repr(self.problem)}"


class _CallTimeout(Exception):  # noqa: N818 (a failure of the task, not of the program)
    """A call of the task that took too long."""


@dataclass(frozen=True)
class _Segment:
    """Tokens of one role in one turn."""

    ids: Ints
    turn: int
    role: Role
    extension: Extension | None  # the model's turn; None for tokens that it read


class _Transcript:
    """The tokens of one sequence as they come."""

    def __init__(self) -> None:
        self.length = 0
        self._segments: list[_Segment] = []

    def add(
        self, ids: Sequence[int] | Ints, turn: int, role: Role, extension: Extension | None = None
    ) -> None:
        """Add tokens of one role; `extension` is the model's turn if it wrote them."""
        self.length += len(ids)
        self._segments.append(_Segment(np.asarray(ids, np.int32), turn, role, extension))

    def tokens(self) -> Tokens:
        """Return the tokens so far, with a column for each of their properties."""
        ids = np.zeros(self.length, np.int32)
        turns = np.zeros(self.length, np.int32)
        roles = np.zeros(self.length, np.int8)
        versions = np.full(self.length, NO_VERSION, np.int32)
        logprobs = np.full(self.length, np.nan, np.float32)
        support_sizes = np.zeros(self.length, np.int32)
        support_ids: list[Ints] = []
        end = 0
        for segment in self._segments:
            start = end
            end += len(segment.ids)
            ids[start:end] = segment.ids
            turns[start:end] = segment.turn
            roles[start:end] = segment.role
            if segment.extension is None:
                continue
            versions[start:end] = segment.extension.versions
            logprobs[start:end] = segment.extension.logprobs
            if segment.extension.support is not None:
                sizes, drawn_from = segment.extension.support
                support_sizes[start:end] = sizes
                support_ids.append(drawn_from)
        return Tokens(
            ids=ids,
            turns=turns,
            roles=roles,
            versions=versions,
            sampler=logprobs,
            support=(support_sizes, np.concatenate(support_ids)) if support_ids else None,
        )


class _End(NamedTuple):
    """End of a rollout's turns."""

    ended: Ending
    failure: _Failure | None = None  # error that ended them; the rollout is then not scored


@dataclass
class _RolloutInPlay:
    """A rollout while it is played."""

    request: RolloutRequest
    next_turn: NextTurn
    renderer: Renderer | None
    limits: Limits
    max_turns: int
    timeouts: Timeouts
    joint_score: JointScore
    task_play: Play | None = None
    tools: tuple[Tool, ...] = ()
    messages: list[Message] = field(default_factory=list)
    # One per sequence of the rollout.
    transcripts: list[_Transcript] = field(default_factory=lambda: [_Transcript()])
    sequence_start: int = 0  # messages before the first turn of the last sequence
    ended: Ending = Ending.TASK_ERROR
    failure: _Failure | None = None

    async def play(self) -> Rollout:
        """Open the task, take turns, score and close."""
        started = time.perf_counter()
        reward = None
        try:
            self._open()
            if self.task_play is not None and self.failure is None:
                await self._converse(self.task_play)
                if self.failure is None:
                    reward = await self._score(self.task_play)
        finally:
            if self.task_play is not None:
                await self._close(self.task_play)
        return self._rollout(reward, time.perf_counter() - started)

    def _open(self) -> None:
        request = self.request
        self.messages = list(request.task.messages)
        try:
            self.task_play = request.taskset.open(request.task, request.open_seed)
            self.messages = list(self.task_play.messages)
            self.tools = tuple(self.task_play.tools)
        except Exception as problem:
            self.failure = _Failure("open", problem)

    async def _converse(self, task_play: Play) -> None:
        """Take turns until one ends the rollout, or its time limit does."""
        limit = TimeLimit(self.timeouts.rollout)
        try:
            with limit.counting():
                turns = self._take_turns(task_play)
                self.ended, self.failure = await limit.enforce(turns)
        except TimeoutError:
            if not limit.has_expired:
                raise  # the sampler's own
            self.ended = Ending.TIME_LIMIT

    async def _score(self, task_play: Play) -> Reward | None:
        try:
            if self.joint_score is not None:
                return await self.joint_score(task_play)
            return await _with_timeout(self.timeouts.tool, task_play.score())
        except Exception as problem:
            self.ended = Ending.TASK_ERROR
            self.failure = _Failure("score", problem)
            return None

    async def _close(self, task_play: Play) -> None:
        try:
            await _with_timeout(self.timeouts.tool, task_play.close())
        except Exception as problem:
            # An earlier failure explains more, and often this one too.
            self.failure = self.failure or _Failure("close", problem)

    def _rollout(self, reward: Reward | None, seconds: float) -> Rollout:
        request = self.request
        failure = self.failure
        # A sandbox that fails only at closing leaves a scored rollout, which counts.
        is_sandbox_failure = (
            reward is None and failure is not None and isinstance(failure.problem, SandboxFailed)
        )
        return Rollout(
            step=request.step,
            group=request.group,
            index=request.index,
            task=request.task.id,
            family=request.task.family,
            answer=request.task.answer,
            seed=request.seed,
            messages=tuple(self.messages),
            sequences=self._sequences(),
            reward=reward,
            ended=self.ended,
            error=None if failure is None else str(failure),
            seconds=seconds,
            commands=() if self.task_play is None else commands_of(self.task_play),
            sandbox_failures=int(is_sandbox_failure),
            source=request.source,
        )

    def _sequences(self) -> tuple[Tokens, ...]:
        if self.renderer is None:
            return ()
        return tuple(transcript.tokens() for transcript in self.transcripts)

    async def _take_turns(self, task_play: Play) -> _End:
        """Let model and task take turns until one of them, an error or a limit ends the rollout."""
        limits = self.limits
        self.sequence_start = len(self.messages)
        prompt = self._first_prompt()
        if 0 < limits.prompt < len(prompt.ids):
            problem = f"{len(prompt.ids):,} tokens exceed sampling.max_prompt = {limits.prompt:,}"
            return _End(Ending.CONTEXT_FULL, _Failure("prompt", problem))

        for turn in range(self.max_turns):
            extension = await self._take_model_turn(prompt, turn)
            if isinstance(extension, _End):
                return extension
            message = self._message_of(extension, prompt.ids)
            self.messages.append(message)

            try:
                answers = await _with_timeout(self.timeouts.tool, task_play.respond(message))
            except Exception as error:
                return _End(Ending.TOOL_ERROR, _Failure("respond", error))
            new_messages = answers or ()
            self.messages.extend(new_messages)
            if answers is None or extension.ended == Ending.CONTEXT_FULL:
                return _End(extension.ended)
            prompt = self._next_prompt(extension, new_messages)
        return _End(Ending.TURN_LIMIT)

    async def _take_model_turn(self, prompt: TurnPrompt, turn: int) -> Extension | _End:
        """Let the model take a turn and record its tokens, or return why it can't take one."""
        context = self.limits.context
        too_long = f"tokens do not fit into sampling.context = {context:,}"
        length = len(prompt.ids)
        if not prompt.is_whole:
            length += self.transcripts[-1].length
        if length >= context:
            if turn > 0:
                return _End(Ending.CONTEXT_FULL)  # the turns before are scored
            failure = _Failure("prompt", f"{len(prompt.ids):,} {too_long}")
            return _End(Ending.CONTEXT_FULL, failure)

        try:
            extension = await self.next_turn(prompt)
        except TurnFailed as error:
            if turn > 0 and error.ended == Ending.CONTEXT_FULL:
                return _End(error.ended)  # the turns before are scored
            boundary = f"turn {turn}" if turn > 0 else "prompt"
            return _End(error.ended, _Failure(boundary, str(error)))
        if extension is None:
            return _End(Ending.STOP_TOKEN)
        length += len(extension.ids)
        if length > context:  # by a script: samplers cut their turns
            failure = _Failure(f"turn {turn}", f"{length:,} {too_long}")
            return _End(Ending.CONTEXT_FULL, failure)

        if prompt.is_whole:
            self.transcripts.append(_Transcript())
        begins_sequence = turn == 0 or prompt.is_whole
        transcript = self.transcripts[-1]
        transcript.add(prompt.ids, turn, Role.PROMPT if begins_sequence else Role.TOOL)
        transcript.add(extension.ids, turn, Role.MODEL, extension)
        return extension

    def _first_prompt(self) -> TurnPrompt:
        messages = self.messages[:]
        ids = self.renderer.first_prompt(messages, self.tools) if self.renderer else []
        return TurnPrompt(ids, messages, self.tools)

    def _next_prompt(self, extension: Extension, messages: Sequence[Message]) -> TurnPrompt:
        """Return what follows a turn in the same sequence; if the model's template rewrites earlier
        turns, the whole conversation, which begins another one.
        """
        if self.renderer is None:
            return TurnPrompt([], messages, self.tools)
        if self.renderer.rewrites(self.messages, self.sequence_start, self.tools):
            self.sequence_start = len(self.messages)
            whole = self.renderer.whole_prompt(self.messages, self.tools)
            return TurnPrompt(whole, messages, self.tools, is_whole=True)
        ids = self.renderer.next_prompt(extension.ids.tolist(), messages, self.tools)
        return TurnPrompt(ids, messages, self.tools)

    def _message_of(self, extension: Extension, prompt: Sequence[int]) -> Message:
        """Return a turn of the model as a message; `prompt` is what it had just read."""
        if self.renderer is None:
            assert extension.message is not None
            return extension.message
        ids = extension.ids.tolist()
        if self.tools:
            return self.renderer.read(ids, prompt)
        # Without tools nothing is a call, even if it looks like one.
        return Message("assistant", self.renderer.text(ids, prompt))


async def _with_timeout(seconds: float, call: Awaitable[T]) -> T:
    """Wait for a call of the task; after `seconds` (0 for no limit) cancel it and raise."""
    if not seconds:
        return await call
    limit = TimeLimit(seconds)
    try:
        with limit.counting():
            if isinstance(call, Coroutine):
                # Most calls never have to wait, and take less time than setting a timer. So a call
                # is begun without one, and gets it at its first wait.
                try:
                    awaited = call.send(None)
                except StopIteration as done:
                    return done.value  # type: ignore[no-any-return]
                call = _BegunCall(call, awaited)
            return await limit.enforce(call)
    except TimeoutError:
        if limit.has_expired:
            problem = f"no answer within sampling.tool_timeout = {seconds:g} s"
            raise _CallTimeout(problem) from None
        raise  # the task's own


class _BegunCall(Awaitable[T]):
    """The rest of a coroutine that was begun by hand and has come to its first wait.

    An event loop runs a coroutine by its `send`, which returns what the coroutine waits for, and at
    its end raises StopIteration with the result. Once that was called, `await call` is not possible
    any more: it would resume the call before what it waits for is there. This waits first:

        awaited = call.send(None)  # runs up to the first wait
        result = await _BegunCall(call, awaited)
    """

    def __init__(self, call: Coroutine[Any, Any, T], awaited: Any) -> None:
        self._call = call
        self._awaited = awaited

    def __await__(self) -> Generator[Any, Any, T]:
        # The same as `yield from self._call`, but for the first wait.
        while True:
            try:
                value = yield self._awaited
            except BaseException as problem:  # for example a cancellation
                resume = partial(self._call.throw, problem)
            else:
                resume = partial(self._call.send, value)
            try:
                self._awaited = resume()
            except StopIteration as done:
                return done.value  # type: ignore[no-any-return]
