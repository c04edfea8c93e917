"""One rollout of `mlgym`: a workspace of its own, one command per turn, validation on one split, the end on another."""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache

from uptrend.records import Executed, Message, Reward, Task, Tool
from uptrend.tasks.mlgym.commands import CommandReply, Terminal, WrongCommand, command_of
from uptrend.tasks.mlgym.problem import Example, Problem
from uptrend.tasks.mlgym.rewards import DenseParts, Facts, Scheme, reward_of
from uptrend.tasks.mlgym.scoring import Judged, SubmissionScorer
from uptrend.tasks.sandbox import Bounds, Sandbox, Workspace
from uptrend.tasks.sandbox.workspace import readable
from uptrend.tasks.time_limit import holding, waiting

AUTOMATIC = "(automatic submission)"  # at the end of a rollout that did not submit
COMMAND = Tool(
    "command", "Runs one command in the workspace.",
    {"type": "object", "properties": {"command": {"type": "string", "description": "The command, all of its lines."}},
     "required": ["command"]},
)  # fmt: skip


@dataclass
class Arena:
    """What all rollouts of one problem share: nothing that a rollout can change."""

    problem: Problem
    sandbox: Sandbox
    scorer: SubmissionScorer
    bounds: Bounds
    slots: asyncio.Semaphore  # commands that run at once, so that none is slowed down by too many others
    baselines: dict[str, asyncio.Task[tuple[float, float]]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        # A group opens the same example many times, and making one takes some milliseconds.
        self.example = lru_cache(64)(self.problem.example)

    async def open(self, example: Example) -> Workspace:
        """Make a fresh workspace."""
        files = {**self.problem.visible, **example.workspace}
        return await self.sandbox.open(files, self.bounds, self.problem.mounts)

    async def baseline(self, task: Task, example: Example) -> tuple[float, float]:
        """Return the baseline's scores on validation and test: the task's own, or measured once per example."""
        problem = self.problem
        if problem.baseline_score is not None and problem.generator is None:
            return problem.baseline_score, problem.baseline_score
        measured = self.baselines.get(task.id)
        if measured is None or (measured.done() and (measured.cancelled() or measured.exception())):  # tried again
            measured = self.baselines[task.id] = asyncio.ensure_future(self._measure(example))
        with waiting():  # for work that a whole group shares
            return await asyncio.shield(measured)

    async def _measure(self, example: Example) -> tuple[float, float]:
        async with holding(self.slots), await self.open(example) as workspace:
            if self.problem.baseline:
                await workspace.run(f"python {self.problem.baseline}", seconds=self.problem.timeout)
            files = await self.scorer.copy_out(workspace)
        found = [
            await self.scorer.judge(files, "validation", example.validation),
            await self.scorer.judge(files, "test", example.test),
        ]
        if bad := [verdict.said for verdict in found if verdict.score is None]:
            raise RuntimeError(f"the baseline of {self.problem.name} has no score: {bad[0]}")
        return found[0].score or 0.0, found[1].score or 0.0


@dataclass
class ResearchPlay:
    """A rollout in progress."""

    task: Task
    arena: Arena
    example: Example
    scheme: Scheme
    dense: DenseParts
    keep: str  # best or last submission
    window: int
    limit: int  # turns after which it is submitted; 0 for no limit of its own
    tools: Sequence[Tool] = ()
    commands: list[Executed] = field(default_factory=list)
    _terminal: Terminal | None = None
    _baseline: tuple[float, float] = (0.0, 0.0)
    _validations: list[float] = field(default_factory=list)
    _best: tuple[float, dict[str, bytes] | Judged] | None = None  # best validation so far, and what was validated
    _submitted: bool = False
    _is_asked: bool = False  # a command was given, if not carried out
    _work: asyncio.Task[tuple[CommandReply, float | None]] | None = None  # the command under way
    _counts: dict[str, list[int]] = field(default_factory=lambda: {"edit": [0, 0], "shell": [0, 0]})

    @property
    def messages(self) -> tuple[Message, ...]:
        """Instructions and the problem."""
        return self.task.messages

    async def _open(self) -> Terminal:
        if self._terminal is None:
            self._baseline = await self.arena.baseline(self.task, self.example)
            seconds = min(self.arena.bounds.seconds, self.arena.problem.timeout)
            self._terminal = Terminal(await self.arena.open(self.example), self.window, seconds)
        return self._terminal

    async def respond(self, message: Message) -> Sequence[Message] | None:
        """Carry out a command; `submit` and the last turn end the rollout."""
        self._is_asked = True
        terminal, score = await self._open(), None
        command = message.content
        async with holding(self.arena.slots):
            began = time.perf_counter()
            try:
                command = command_of(message)
                self._work = asyncio.ensure_future(self._carry_out(terminal, command))
                # A time limit may end the wait: the command then goes on, and what it leaves is scored.
                reply, score = await asyncio.shield(self._work)
            except WrongCommand as refused:
                reply = CommandReply(str(refused), code=1)
        seconds, is_error = time.perf_counter() - began, bool(reply.code or reply.stopped)
        turn = len(self.commands)
        is_last = self._submitted or 0 < self.limit <= turn + 1
        # Names of files and folders may be no text, or hide control characters.
        said = readable(reply.text.encode("utf-8", "replace"))
        unread = said if is_last and not self._submitted else ""
        self.commands.append(Executed(turn, command, seconds, reply.code, reply.stopped, score, is_error, unread))
        if reply.kind:
            self._counts[reply.kind][0] += 1
            self._counts[reply.kind][1] += is_error
        if is_last:
            return None
        left = f", {self.limit - turn - 1} turns left" if self.limit else ""
        shown = f"(open file: {terminal.open_file or 'none'}, folder: {terminal.workspace.cwd}{left})\nbash-$"
        observed = readable(shown.encode("utf-8", "replace"))
        return [Message("tool" if message.calls or message.problem else "user", f"{said}\n{observed}")]

    async def _carry_out(self, terminal: Terminal, command: str) -> tuple[CommandReply, float | None]:
        if command.strip() == "validate":
            return await self._validate(terminal)
        self._submitted = command.strip() == "submit"
        return CommandReply("Submitted.") if self._submitted else await terminal.carry_out(command), None

    async def _validate(self, terminal: Terminal) -> tuple[CommandReply, float | None]:
        files = await self.arena.scorer.copy_out(terminal.workspace)
        verdict = await self.arena.scorer.judge(files, "validation", self.example.validation)
        if verdict.score is None:
            return CommandReply(verdict.said, code=1), None
        improvement = self.arena.problem.improvement(verdict.score, self._baseline[0])
        self._validations.append(improvement)
        if self._best is None or improvement > self._best[0]:
            self._best = improvement, files
        said = f"Validation {self.arena.problem.metric}: {verdict.score:.4f} (baseline {self._baseline[0]:.4f})"
        return CommandReply(said), verdict.score

    async def score(self) -> Reward:
        """Score what is submitted on the test split: the best validated submission, or the last."""
        final, relative = None, 0.0
        count, errors = len(self.commands), sum(command.error for command in self.commands)
        if self._is_asked:  # a slow start is not the agent's fault: what it began with is submitted
            await self._open()
        if self._terminal is not None:
            scorer = self.arena.scorer
            if self._work is not None:
                await asyncio.wait([self._work])
            async with holding(self.arena.slots):
                files = await scorer.copy_out(self._terminal.workspace)
                if self.keep == "best" and self._best is not None:
                    files = await self._better(files)
                verdict = await scorer.judge(files, "test", self.example.test)
            if not self._submitted or not self.commands:
                self.commands.append(Executed(count, AUTOMATIC, 0.0, 0))
            if verdict.score is not None:
                problem, base = self.arena.problem, self._baseline[1]
                final = problem.improvement(verdict.score, base)
                relative = problem.sign * (verdict.score - base) / (abs(base) or 1.0)
                self.commands[-1] = replace(self.commands[-1], score=verdict.score)
            else:
                self.commands[-1] = replace(self.commands[-1], code=1, error=True, said=verdict.said)
        facts = Facts(final, relative, self._validations, count, errors, *self._counts["edit"], *self._counts["shell"])
        return reward_of(facts, self.scheme, self.dense)

    async def _better(self, last: dict[str, bytes] | Judged) -> dict[str, bytes] | Judged:
        """Return the last submission or the best one before it, by their validation scores."""
        assert self._best is not None
        if last == self._best[1]:
            return last
        verdict = await self.arena.scorer.judge(last, "validation", self.example.validation)
        if verdict.score is None:
            return self._best[1]
        improvement = self.arena.problem.improvement(verdict.score, self._baseline[0])
        return last if improvement >= self._best[0] else self._best[1]

    async def close(self) -> None:
        """Remove the workspace."""
        if self._work is not None:
            self._work.cancel()
        if self._terminal is not None:
            await self._terminal.workspace.close()
        if self._work is not None:
            await asyncio.wait([self._work])
