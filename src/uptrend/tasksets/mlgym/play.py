"""One rollout of `mlgym` and its reward: a workspace of its own, one command per turn, validation
on one split, the final score on another.
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
from uptrend.tasksets.mlgym.scoring import Judged, Split, Submission, SubmissionScorer

# Recorded in place of a command at the end of a rollout that did not submit.
AUTOMATIC_SUBMISSION = "(automatic submission)"
COMMAND_TOOL = Tool(
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


# Rewards by scheme, all from the same facts. Improvements are changes of the score over the
# baseline, in the better direction, in units of the task (from the baseline to par), and within
# [-1, 1], so that no task drowns another.

Scheme = Literal["final", "validation-change", "validate-required", "code-quality", "graded"]


@dataclass(frozen=True)
class DenseParts:
    """`dense`: weights of parts beside the scheme's own reward."""

    validated: float = 0.0
    """For at least one validation: 0 or 1."""
    clean: float = 0.0
    """For commands without error: their share of all."""
    change: float = 0.0
    """For the change of the validation score from the first validation to the last."""


# Weights of the scheme code-quality: of the final score, edits and commands without error, and of
# all commands without error.
CODE_QUALITY_FINAL = 0.5
CODE_QUALITY_SYNTAX = 0.2
CODE_QUALITY_RUNS = 0.2
CODE_QUALITY_CLEAN = 0.1
# The scheme graded: a slope on the change relative to the baseline, less a constant and a penalty
# on the rate of errors. No change earns -0.5 at best; a gain of 30% of the baseline earns 1.
GRADED_SLOPE = 5.0
GRADED_OFFSET = 0.5
GRADED_ERROR_PENALTY = 0.5
# Reward of a rollout without a valid submission, or without the validation that a scheme demands.
FAILURE_REWARD = -1.0


@dataclass(frozen=True)
class Facts:
    """Facts about a finished rollout."""

    final: float | None  # improvement of the submission; None without a valid one
    relative: float  # the same change as a share of the baseline, without bounds; 0 without
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
    final = FAILURE_REWARD if facts.final is None else facts.final
    clean_weight = dense.clean
    if scheme == "final":
        parts = [Part("final", final, -1, 1)]
    elif scheme == "code-quality":
        syntax = _clean_share(facts.bad_edits, facts.edits)
        runs = _clean_share(facts.bad_runs, facts.runs)
        parts = [
            Part("final", final, -1, 1, CODE_QUALITY_FINAL),
            Part("syntax", syntax, 0, 1, CODE_QUALITY_SYNTAX),
            Part("runs", runs, 0, 1, CODE_QUALITY_RUNS),
        ]
        clean_weight += CODE_QUALITY_CLEAN
    else:
        scheme_value = _scheme_value(facts, scheme)
        parts = [Part(scheme, scheme_value, -1, 1), Part("final", final, -1, 1, 0.0)]

    has_validated = bool(facts.validations)
    parts += [
        Part("validated", float(has_validated), 0, 1, dense.validated),
        Part("clean", 1 - facts.error_rate, 0, 1, clean_weight),
    ]
    if dense.change:
        change = facts.validations[-1] - facts.validations[0] if has_validated else 0.0
        # Half, since a change between two values within [-1, 1] is within [-2, 2].
        parts.append(Part("change", _clip(change / 2), -1, 1, dense.change))
    total = sum(part.weight * part.value for part in parts)
    low = sum(part.weight * part.low for part in parts)
    high = sum(part.weight * part.high for part in parts)
    return Reward(total, low, high, correct=final >= 1, parts=tuple(parts))


def _scheme_value(facts: Facts, scheme: Scheme) -> float:
    """Return the value of validation-change, validate-required or graded."""
    if scheme == "validation-change":  # whatever is submitted in the end
        return facts.validations[-1] if facts.validations else 0.0
    if not facts.validations or facts.final is None:
        return FAILURE_REWARD
    if scheme == "validate-required":
        return facts.final
    penalty = GRADED_ERROR_PENALTY * facts.error_rate
    return _clip(GRADED_SLOPE * facts.relative - GRADED_OFFSET - penalty)


def _clean_share(bad: int, count: int) -> float:
    return 1 - bad / count if count else 0.0


def _clip(value: float) -> float:
    return min(1.0, max(-1.0, value))


# The rollout

T = TypeVar("T")
# Examples in the cache: a group opens the same one many times, but files take memory.
MAX_CACHED_EXAMPLES = 64


class SharedWork(Generic[T]):
    """Results of work that a whole group waits for and that is done once; failed work is tried
    again.
    """

    def __init__(self, max_results: int = 0) -> None:
        self._max_results = max_results  # the least recently used are dropped; 0 for no limit
        self._tasks: OrderedDict[Hashable, asyncio.Task[T]] = OrderedDict()

    async def result(self, key: Hashable, work: Callable[[], Coroutine[None, None, T]]) -> T:
        """Return a key's result, computed by `work` if it is not cached."""
        task = self._tasks.get(key)
        has_failed = task is not None and task.done() and (task.cancelled() or task.exception())
        if task is None or has_failed:
            task = asyncio.ensure_future(work())
            self._tasks[key] = task
        self._tasks.move_to_end(key)
        if self._max_results and len(self._tasks) > self._max_results:
            self._tasks.popitem(last=False)
        with waiting():
            return await asyncio.shield(task)


@dataclass
class Arena:
    """Shared objects of all rollouts of one problem, none of which a rollout can change."""

    problem: Problem
    sandbox: Sandbox
    scorer: SubmissionScorer
    bounds: Bounds
    slots: asyncio.Semaphore  # limits the commands that run at once, which slow each other down
    # scores of the baseline on validation and test
    baselines: SharedWork[tuple[float, float]] = field(default_factory=SharedWork)
    examples: SharedWork[Example] = field(default_factory=lambda: SharedWork(MAX_CACHED_EXAMPLES))

    async def example(self, task: Task) -> Example:
        """Return a task's example."""
        return await self.examples.result(task.id, lambda: self._make_example(task))

    async def _make_example(self, task: Task) -> Example:
        seed = task.data["seed"]
        heldout = task.data["heldout"]
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
        return await self.baselines.result(task.id, lambda: self._measure_baseline(example))

    async def _measure_baseline(self, example: Example) -> tuple[float, float]:
        async with holding(self.slots), await self.open(example) as workspace:
            if self.problem.baseline:
                await workspace.run(f"python {self.problem.baseline}", seconds=self.problem.timeout)
            files = await self.scorer.copy_out(workspace)
        validation = await self.scorer.judge(files, "validation", example.validation)
        test = await self.scorer.judge(files, "test", example.test)
        for verdict in (validation, test):
            if verdict.score is None:
                name = self.problem.name
                raise RuntimeError(f"the baseline of {name} has no score: {verdict.reason}")
        return validation.score or 0.0, test.score or 0.0


@dataclass
class CommandCount:
    """Number of commands of a kind, and of those with an error."""

    total: int = 0
    errors: int = 0

    def add(self, is_error: bool) -> None:
        """Count one command."""
        self.total += 1
        self.errors += is_error


@dataclass
class ResearchPlay:
    """A rollout in progress."""

    task: Task
    arena: Arena
    scheme: Scheme
    dense: DenseParts
    keep: str  # best or last submission
    window: int  # lines of a file that the editor shows
    turn_limit: int  # turns after which the work is submitted; 0 for no limit of its own
    tools: Sequence[Tool] = ()
    commands: list[Executed] = field(default_factory=list)
    _terminal: Terminal | None = None
    _example: Example | None = None  # made when the workspace is opened
    _baseline: tuple[float, float] = (0.0, 0.0)  # its scores on validation and test
    _validations: list[float] = field(default_factory=list)  # improvements
    # improvement of the best validation so far, and the files that it scored
    _best: tuple[float, Submission] | None = None
    _is_submitted: bool = False
    _has_command: bool = False  # True from the first message on, whether its command ran or not
    _work: asyncio.Task[tuple[CommandReply, float | None]] | None = None  # the command under way
    _edits: CommandCount = field(default_factory=CommandCount)
    _shell_commands: CommandCount = field(default_factory=CommandCount)

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
        self._has_command = True
        terminal = await self._open()
        score = None
        command = message.content
        async with holding(self.arena.slots):
            began = time.perf_counter()
            try:
                command = command_of(message)
                self._work = asyncio.ensure_future(self._carry_out(terminal, command))
                # A time limit may end the wait: the command then goes on, and the files that it
                # leaves are scored.
                reply, score = await asyncio.shield(self._work)
            except WrongCommand as refusal:
                reply = CommandReply(str(refusal), code=1)
        seconds = time.perf_counter() - began

        # Record the command.
        is_error = bool(reply.code or reply.stopped)
        turn = len(self.commands)
        is_last = self._is_submitted or 0 < self.turn_limit <= turn + 1
        text = _plain(reply.text)
        # The rollout ends, so this reply is in no message.
        unread = text if is_last and not self._is_submitted else ""
        self.commands.append(
            Executed(
                turn=turn,
                command=command,
                seconds=seconds,
                code=reply.code,
                stopped=reply.stopped,
                score=score,
                error=is_error,
                said=unread,
            )
        )
        if reply.kind == "edit":
            self._edits.add(is_error)
        elif reply.kind == "shell":
            self._shell_commands.add(is_error)
        if is_last:
            return None

        prompt = _plain(self._prompt(terminal, turn))
        is_call = bool(message.calls or message.problem)
        return [Message("tool" if is_call else "user", f"{text}\n{prompt}")]

    def _prompt(self, terminal: Terminal, turn: int) -> str:
        open_file = terminal.open_file or "none"
        turns_left = f", {self.turn_limit - turn - 1} turns left" if self.turn_limit else ""
        folder = terminal.workspace.cwd
        return f"(open file: {open_file}, folder: {folder}{turns_left})\nbash-$"

    async def _carry_out(
        self, terminal: Terminal, command: str
    ) -> tuple[CommandReply, float | None]:
        """Return the reply to a command, and the score of a validation."""
        if command.strip() == "validate":
            return await self._validate(terminal)
        self._is_submitted = command.strip() == "submit"
        if self._is_submitted:
            return CommandReply("Submitted."), None
        return await terminal.carry_out(command), None

    async def _validate(self, terminal: Terminal) -> tuple[CommandReply, float | None]:
        files = await self.arena.scorer.copy_out(terminal.workspace)
        verdict = await self._judge(files, "validation")
        if verdict.score is None:
            return CommandReply(verdict.reason, code=1), None
        problem = self.arena.problem
        baseline, _ = self._baseline
        improvement = problem.improvement(verdict.score, baseline)
        self._validations.append(improvement)
        if self._best is None or improvement > self._best[0]:
            self._best = (improvement, files)
        result = f"Validation {problem.metric}: {verdict.score:.4f} (baseline {baseline:.4f})"
        return CommandReply(result), verdict.score

    async def _judge(self, files: Submission, split: Split) -> Judged:
        assert self._example is not None
        answers = self._example.validation if split == "validation" else self._example.test
        return await self.arena.scorer.judge(files, split, answers)

    async def score(self) -> Reward:
        """Score the submission on the test split: the best validated one, or the last."""
        final = None
        relative = 0.0
        n_commands = len(self.commands)
        n_errors = sum(command.error for command in self.commands)
        # If a time limit ended the opening, which is not the agent's fault, the files that it would
        # have begun with are submitted.
        if self._has_command:
            await self._open()
        if self._terminal is not None:
            verdict = await self._judge_submission(self._terminal)
            if not self._is_submitted or not self.commands:
                self.commands.append(
                    Executed(n_commands, AUTOMATIC_SUBMISSION, seconds=0.0, code=0)
                )
            submission = self.commands[-1]
            if verdict.score is None:
                self.commands[-1] = replace(submission, code=1, error=True, said=verdict.reason)
            else:
                self.commands[-1] = replace(submission, score=verdict.score)
                problem = self.arena.problem
                _, baseline = self._baseline
                final = problem.improvement(verdict.score, baseline)
                relative = problem.sign * (verdict.score - baseline) / (abs(baseline) or 1.0)
        facts = Facts(
            final=final,
            relative=relative,
            validations=self._validations,
            commands=n_commands,
            errors=n_errors,
            edits=self._edits.total,
            bad_edits=self._edits.errors,
            runs=self._shell_commands.total,
            bad_runs=self._shell_commands.errors,
        )
        return reward_of(facts, self.scheme, self.dense)

    async def _judge_submission(self, terminal: Terminal) -> Judged:
        if self._work is not None:
            await asyncio.wait([self._work])
        async with holding(self.arena.slots):
            files = await self.arena.scorer.copy_out(terminal.workspace)
            if self.keep == "best" and self._best is not None:
                files = await self._better_of(files, *self._best)
            return await self._judge(files, "test")

    async def _better_of(
        self, last: Submission, best_improvement: float, best: Submission
    ) -> Submission:
        """Return the last submission or the best one before it, by their validation scores."""
        if last == best:
            return last
        verdict = await self._judge(last, "validation")
        if verdict.score is None:
            return best
        improvement = self.arena.problem.improvement(verdict.score, self._baseline[0])
        return last if improvement >= best_improvement else best

    async def close(self) -> None:
        """Remove the workspace."""
        if self._work is not None:
            self._work.cancel()
        if self._terminal is not None:
            await self._terminal.workspace.close()
        if self._work is not None:
            await asyncio.wait([self._work])


def _plain(text: str) -> str:
    """Make control characters visible, and replace surrogates: names of files may have both."""
    return readable(text.encode("utf-8", "replace"))
