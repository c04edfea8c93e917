"""One rollout of `mlgym`: a workspace of its own, one command per turn, validation on one split,
the end on another; and its reward.
"""

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable, Coroutine, Hashable, Sequence
from dataclasses import dataclass, field, replace
from typing import Generic, Literal, TypeVar

from uptrend.records import Executed, Message, Part, Reward, Task, Tool
from uptrend.sandbox import Bounds, Sandbox, Workspace
from uptrend.sandbox.workspace import readable
from uptrend.tasks.event_loop import holding, waiting
from uptrend.tasksets.mlgym.commands import CommandReply, Terminal, WrongCommand, command_of
from uptrend.tasksets.mlgym.problem import Example, Problem, make_example
from uptrend.tasksets.mlgym.scoring import Judged, Split, SubmissionScorer

AUTOMATIC = "(automatic submission)"  # at the end of a rollout that did not submit
COMMAND = Tool(
    "command",
    "Runs one command in the workspace.",
    {
        "type": "object",
        "properties": {
            "command": {"type": "string", "description": "The command, all of its lines."}
        },
        "required": ["command"],
    },
)


# Rewards, by scheme: what is paid for, out of one set of facts. Improvements are changes of the
# score over the baseline, in the better direction, in units of the task (from the baseline to par),
# within [-1, 1]: no task drowns another.

Scheme = Literal["final", "validation-change", "validate-required", "code-quality", "graded"]


@dataclass(frozen=True)
class DenseParts:
    """`dense`: weights of parts beside the scheme's own reward."""

    validated: float = 0.0
    """For having validated at all: 0 or 1."""
    clean: float = 0.0
    """For commands without error: the share that were none."""
    change: float = 0.0
    """For the change of the validation score from the first validation to the last."""


@dataclass(frozen=True)
class Facts:
    """Facts about a finished rollout."""

    final: float | None  # improvement of what was submitted; None where nothing valid was
    # the same change as a share of the baseline, without bounds; 0 where nothing valid was
    relative: float
    validations: Sequence[float]  # improvement at each validation that gave a score
    commands: int
    errors: int  # commands that were refused, failed or were stopped
    edits: int
    bad_edits: int  # edits that the linter refused
    runs: int  # commands of the shell
    bad_runs: int  # those with another exit code than 0

    @property
    def error_rate(self) -> float:
        return self.errors / self.commands if self.commands else 0.0


def reward_of(facts: Facts, scheme: Scheme, dense: DenseParts) -> Reward:
    """Return a rollout's reward; parts of weight 0 are recorded and not paid."""
    final = -1.0 if facts.final is None else facts.final
    validated = float(bool(facts.validations))
    last = facts.validations[-1] if facts.validations else 0.0
    change = last - facts.validations[0] if facts.validations else 0.0
    if scheme == "validation-change":  # from the baseline, whatever is submitted in the end
        main = last
    elif scheme == "validate-required":
        main = final if validated else -1.0
    elif scheme == "graded":
        is_scored = validated and facts.final is not None
        main = _clip(5 * facts.relative - 0.5 - 0.5 * facts.error_rate) if is_scored else -1.0
    else:
        main = final
    parts = [Part(scheme, main, -1, 1)]
    if scheme == "code-quality":
        syntax = _clean(facts.bad_edits, facts.edits)
        runs = _clean(facts.bad_runs, facts.runs)
        parts = [
            Part("final", final, -1, 1, 0.5),
            Part("syntax", syntax, 0, 1, 0.2),
            Part("runs", runs, 0, 1, 0.2),
        ]
        dense = replace(dense, clean=dense.clean + 0.1)
    if scheme not in ("final", "code-quality"):
        parts.append(Part("final", final, -1, 1, 0.0))
    parts += [
        Part("validated", validated, 0, 1, dense.validated),
        Part("clean", 1 - facts.error_rate, 0, 1, dense.clean),
    ]
    if dense.change:
        parts.append(Part("change", _clip(change / 2), -1, 1, dense.change))
    total, low, high = (
        sum(p.weight * getattr(p, of) for p in parts) for of in ("value", "low", "high")
    )
    return Reward(total, low, high, final >= 1, tuple(parts))


def _clean(bad: int, count: int) -> float:
    return 1 - bad / count if count else 0.0


def _clip(value: float) -> float:
    return min(1.0, max(-1.0, value))


# The rollout

T = TypeVar("T")
EXAMPLES = 64  # that are kept: a group opens the same one many times, and files take memory


class SharedWork(Generic[T]):
    """Results of work that a whole group waits for and that is done once; what failed is tried
    again.
    """

    def __init__(self, most: int = 0) -> None:
        self._most = most  # results that are kept, the latest; 0 for all
        self._tasks: OrderedDict[Hashable, asyncio.Task[T]] = OrderedDict()

    async def result(self, key: Hashable, work: Callable[[], Coroutine[None, None, T]]) -> T:
        """Return a key's result; `work` makes it where it is not here."""
        task = self._tasks.get(key)
        if task is None or (task.done() and (task.cancelled() or task.exception())):
            task = self._tasks[key] = asyncio.ensure_future(work())
        self._tasks.move_to_end(key)
        if self._most and len(self._tasks) > self._most:
            self._tasks.popitem(last=False)
        with waiting():
            return await asyncio.shield(task)


@dataclass
class Arena:
    """What all rollouts of one problem share: nothing that a rollout can change."""

    problem: Problem
    sandbox: Sandbox
    scorer: SubmissionScorer
    bounds: Bounds
    # commands that run at once, so that none is slowed down by too many others
    slots: asyncio.Semaphore
    baselines: SharedWork[tuple[float, float]] = field(default_factory=SharedWork)
    examples: SharedWork[Example] = field(default_factory=lambda: SharedWork(EXAMPLES))

    async def example(self, task: Task) -> Example:
        """Return a task's example."""
        return await self.examples.result(
            task.id, lambda: self._make(task.data["seed"], task.data["heldout"])
        )

    async def _make(self, seed: int, heldout: bool) -> Example:
        async with holding(self.slots):
            return await make_example(self.problem, self.sandbox, self.bounds, seed, heldout)

    async def open(self, example: Example) -> Workspace:
        """Make a fresh workspace."""
        files = {**self.problem.visible, **example.workspace}
        return await self.sandbox.open(files, self.bounds, self.problem.mounts)

    async def baseline(self, task: Task, example: Example) -> tuple[float, float]:
        """Return the baseline's scores on validation and test: the task's own, or measured once per
        example.
        """
        problem = self.problem
        if problem.baseline_score is not None and problem.generator is None:
            return problem.baseline_score, problem.baseline_score
        return await self.baselines.result(task.id, lambda: self._measure(example))

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
    scheme: Scheme
    dense: DenseParts
    keep: str  # best or last submission
    window: int
    limit: int  # turns after which it is submitted; 0 for no limit of its own
    tools: Sequence[Tool] = ()
    commands: list[Executed] = field(default_factory=list)
    _terminal: Terminal | None = None
    _example: Example | None = None  # made when the workspace is opened
    _baseline: tuple[float, float] = (0.0, 0.0)
    _validations: list[float] = field(default_factory=list)
    # best validation so far, and what was validated
    _best: tuple[float, dict[str, bytes] | Judged] | None = None
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
            self._example = await self.arena.example(self.task)
            self._baseline = await self.arena.baseline(self.task, self._example)
            seconds = min(self.arena.bounds.seconds, self.arena.problem.timeout)
            self._terminal = Terminal(await self.arena.open(self._example), self.window, seconds)
        return self._terminal

    async def respond(self, message: Message) -> Sequence[Message] | None:
        """Carry out a command; `submit` and the last turn end the rollout."""
        self._is_asked = True
        terminal = await self._open()
        score = None
        command = message.content
        async with holding(self.arena.slots):
            began = time.perf_counter()
            try:
                command = command_of(message)
                self._work = asyncio.ensure_future(self._carry_out(terminal, command))
                # A time limit may end the wait: the command then goes on, and what it leaves is
                # scored.
                reply, score = await asyncio.shield(self._work)
            except WrongCommand as refused:
                reply = CommandReply(str(refused), code=1)
        seconds = time.perf_counter() - began
        is_error = bool(reply.code or reply.stopped)
        turn = len(self.commands)
        is_last = self._submitted or 0 < self.limit <= turn + 1
        # Names of files and folders may be no text, or hide control characters.
        said = readable(reply.text.encode("utf-8", "replace"))
        unread = said if is_last and not self._submitted else ""
        self.commands.append(
            Executed(turn, command, seconds, reply.code, reply.stopped, score, is_error, unread)
        )
        if reply.kind:
            self._counts[reply.kind][0] += 1
            self._counts[reply.kind][1] += is_error
        if is_last:
            return None
        left = f", {self.limit - turn - 1} turns left" if self.limit else ""
        shown = (
            f"(open file: {terminal.open_file or 'none'}, folder:"
            f" {terminal.workspace.cwd}{left})\nbash-$"
        )
        observed = readable(shown.encode("utf-8", "replace"))
        return [
            Message("tool" if message.calls or message.problem else "user", f"{said}\n{observed}")
        ]

    async def _carry_out(
        self, terminal: Terminal, command: str
    ) -> tuple[CommandReply, float | None]:
        if command.strip() == "validate":
            return await self._validate(terminal)
        self._submitted = command.strip() == "submit"
        return (
            CommandReply("Submitted.") if self._submitted else await terminal.carry_out(command)
        ), None

    async def _validate(self, terminal: Terminal) -> tuple[CommandReply, float | None]:
        files = await self.arena.scorer.copy_out(terminal.workspace)
        verdict = await self._judge(files, "validation")
        if verdict.score is None:
            return CommandReply(verdict.said, code=1), None
        improvement = self.arena.problem.improvement(verdict.score, self._baseline[0])
        self._validations.append(improvement)
        if self._best is None or improvement > self._best[0]:
            self._best = improvement, files
        said = (
            f"Validation {self.arena.problem.metric}: {verdict.score:.4f} (baseline"
            f" {self._baseline[0]:.4f})"
        )
        return CommandReply(said), verdict.score

    async def _judge(self, files: dict[str, bytes] | Judged, split: Split) -> Judged:
        assert self._example is not None
        answers = self._example.validation if split == "validation" else self._example.test
        return await self.arena.scorer.judge(files, split, answers)

    async def score(self) -> Reward:
        """Score what is submitted on the test split: the best validated submission, or the last."""
        final = None
        relative = 0.0
        count = len(self.commands)
        errors = sum(command.error for command in self.commands)
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
                verdict = await self._judge(files, "test")
            if not self._submitted or not self.commands:
                self.commands.append(Executed(count, AUTOMATIC, 0.0, 0))
            if verdict.score is not None:
                problem = self.arena.problem
                base = self._baseline[1]
                final = problem.improvement(verdict.score, base)
                relative = problem.sign * (verdict.score - base) / (abs(base) or 1.0)
                self.commands[-1] = replace(self.commands[-1], score=verdict.score)
            else:
                self.commands[-1] = replace(
                    self.commands[-1], code=1, error=True, said=verdict.said
                )
        facts = Facts(
            final,
            relative,
            self._validations,
            count,
            errors,
            *self._counts["edit"],
            *self._counts["shell"],
        )
        return reward_of(facts, self.scheme, self.dense)

    async def _better(self, last: dict[str, bytes] | Judged) -> dict[str, bytes] | Judged:
        """Return the last submission or the best one before it, by their validation scores."""
        assert self._best is not None
        if last == self._best[1]:
            return last
        verdict = await self._judge(last, "validation")
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
