"""Scoring from outside: the evaluator and the answers meet a submission in fresh sandboxes, never
in the agent's.

A CSV file is data: the evaluator runs beside it. Submitted code never shares a process or a file
system with evaluator and answers: it runs in a sandbox of its own, and each call that the evaluator
makes of it crosses over as plain literals. Only what a task is trusted with by option (`trust`) is
run beside the evaluator: models that it must load.
"""

import ast
import asyncio
import csv
import hashlib
import io
import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from uptrend.sandbox import Bounds, FileProblem, Sandbox, Workspace
from uptrend.tasksets.mlgym.problem import Problem

Split = Literal["validation", "test"]
LARGEST = 1 << 24  # bytes of a submission

# Runs beside the evaluator. Its module of that name is a stand-in: every call of it becomes a line
# to the host.
STAND_IN = r"""
import ast, io, runpy, sys, types
name, script, real, sys.argv = sys.argv[1], sys.argv[2], sys.stdout, sys.argv[2:]
module, captured, failed = types.ModuleType(name), io.StringIO(), ""
def remote(function):
    def call(*arguments):
        print(repr((function, arguments)), file=real, flush=True)
        kind, value = ast.literal_eval(sys.stdin.readline())
        if kind == "error":
            raise RuntimeError(value)
        return value
    return call
module.__getattr__ = remote
sys.modules[name], sys.stdout = module, captured
sys.path.insert(0, ".")
try:
    runpy.run_path(script, run_name="__main__")
except BaseException as error:
    if not isinstance(error, SystemExit) or error.code:
        failed = f"{error}"[:1000] or repr(error)
print(repr((None, captured.getvalue()[-65536:], failed)), file=real, flush=True)
"""
# Runs beside the submitted code, which may print what it likes.
SERVE = r"""
import ast, importlib, os, sys
lines, out = sys.stdin, os.fdopen(os.dup(1), "w")
os.dup2(2, 1)
sys.path.insert(0, ".")
try:
    module, broken = importlib.import_module(sys.argv[1]), None
except BaseException as error:
    broken = repr(error)
for line in lines:
    function, arguments = ast.literal_eval(line)
    try:
        answer = ("error", broken) if broken else ("value", getattr(module, function)(*arguments))
        if ast.literal_eval(repr(answer)) != answer:
            raise ValueError
    except BaseException as error:
        answer = ("error", f"{type(error).__name__}: {error}"[:500])
    print(repr(answer), file=out, flush=True)
"""


@dataclass(frozen=True)
class Judged:
    """Score of a submission; None with a sentence for the agent where there is none."""

    score: float | None
    said: str = ""
    metrics: Mapping[str, float] | None = None


class SubmissionScorer:
    """Scores submissions of one problem."""

    def __init__(self, problem: Problem, sandbox: Sandbox, bounds: Bounds, trust: bool) -> None:
        self._problem = problem
        self._sandbox = sandbox
        self._bounds = bounds
        self._trust = trust

    async def score(
        self, workspace: Workspace, split: Split, answers: Mapping[str, bytes]
    ) -> Judged:
        """Copy the submission out of a workspace and score it on a split."""
        return await self.judge(await self.copy_out(workspace), split, answers)

    async def copy_out(self, workspace: Workspace) -> dict[str, bytes] | Judged:
        """Return what is submitted, as bytes; a verdict says why nothing is."""
        problem = self._problem
        try:
            if problem.kind != "model":
                return {
                    problem.submission: await workspace.read(
                        f"/workspace/{problem.submission}", LARGEST
                    )
                }
            own = [
                path
                for path, _ in await workspace.listing()
                if path.partition("/")[0] not in problem.mounts
            ]
            return {path: await workspace.read(f"/workspace/{path}", LARGEST) for path in own}
        except FileProblem as missing:
            return Judged(None, f"There is no valid {problem.submission} to score: {missing}")

    async def judge(
        self, files: dict[str, bytes] | Judged, split: Split, answers: Mapping[str, bytes]
    ) -> Judged:
        """Score what was copied out; an evaluator that prints no score is the submission's
        fault.
        """
        if isinstance(files, Judged):
            return files
        problem = self._problem
        if problem.kind == "csv" and problem.generator is None:
            if not problem.answers and split == "validation":
                return Judged(
                    None,
                    f"{problem.submission} was found. This task has no validation split to score"
                    " it on.",
                )
            try:
                files, answers = _half(problem, files, answers, split)
            except (ValueError, csv.Error) as error:
                return Judged(None, f"{problem.submission} can't be read as CSV: {error}")
        # Starter code may be what the evaluator imports; the task's own files come last, over all
        # that was submitted.
        beside = files if problem.kind == "csv" or self._trust else {}
        inside = {**problem.starter, **problem.visible, **beside, **self._evaluator(), **answers}
        # What a failed evaluator or the submission itself wrote is no score, whatever it looks
        # like.
        if problem.kind == "code":
            text, is_valid = await self._evaluate_code(files, inside)
        else:
            async with await self._sandbox.open(inside, self._bounds, problem.mounts) as scoring:
                outcome = await scoring.run(self._command(), seconds=problem.timeout)
                text = outcome.output
                is_valid = not (outcome.code or outcome.stopped)
        metrics = read_metrics(text) if is_valid else {}
        score = metrics.get(problem.metric)
        if score is None or not math.isfinite(score):
            said = " ".join(text.split())[-300:] or "the evaluator printed nothing"
            return Judged(None, f"{problem.submission} is not valid: {said}")
        return Judged(score, metrics=metrics)

    def _evaluator(self) -> dict[str, bytes]:
        return {self._problem.evaluator: self._problem.starter[self._problem.evaluator]}

    def _command(self) -> str:
        flag = (
            "--config_fname ."
            if self._problem.kind == "model"
            else f"--submission_file {self._problem.submission}"
        )
        return f"python {self._problem.evaluator} {flag}"

    async def _evaluate_code(
        self, files: dict[str, bytes], inside: dict[str, bytes]
    ) -> tuple[str, bool]:
        """Run evaluator and submitted code in two sandboxes, and pass calls on.

        Return what the evaluator printed, and False with a reason where it did not come to its end.
        """
        problem = self._problem
        name = self._problem.submission.removesuffix(".py")
        inside = {path: data for path, data in inside.items() if path != problem.submission}
        async with (
            await self._sandbox.open(
                {**inside, "_stand_in.py": STAND_IN.encode()}, self._bounds, problem.mounts
            ) as scoring,
            await self._sandbox.open({**files, "_serve.py": SERVE.encode()}, self._bounds) as code,
        ):
            try:
                async with asyncio.timeout(problem.timeout):  # all calls together
                    player = await code.start(f"python _serve.py {name}")
                    evaluator = await scoring.start(
                        f"python _stand_in.py {name} {problem.evaluator}"
                    )
                    line = await evaluator.ask(None, problem.timeout)
                    while not line.startswith("(None, "):
                        line = await evaluator.ask(
                            await player.ask(line, problem.timeout), problem.timeout
                        )
            except FileProblem as silent:
                return f"the evaluation broke off: {silent}", False
            except TimeoutError:
                return f"its evaluation took longer than {problem.timeout:g} seconds", False
        _, printed, failed = ast.literal_eval(line)
        return failed or printed, not failed


def read_metrics(text: str) -> dict[str, float]:
    """Return the last JSON object of numbers in an evaluator's output, with keys in lower case."""
    for found in reversed(re.findall(r"\{[^{}]*\}", text)):
        try:
            table = json.loads(found)
            return {str(key).lower(): float(value) for key, value in table.items()}
        except (ValueError, TypeError, AttributeError, OverflowError, RecursionError):
            continue
    return {}


def _half(
    problem: Problem, files: dict[str, bytes], answers: Mapping[str, bytes], split: Split
) -> tuple[dict[str, bytes], Mapping[str, bytes]]:
    """Cut answers and submission to the rows of a split: a task that has only a test set gives half
    to validation.
    """
    if problem.answers not in answers:
        return files, answers
    head, *rows = _read(answers[problem.answers])
    sub_head, *sub_rows = _read(files[problem.submission])
    at = head.index(problem.key)
    wanted = {row[at] for row in rows if _is_public(row[at]) == (split == "validation")}
    if problem.key in sub_head:
        place = sub_head.index(problem.key)
        by_key = {row[place]: row for row in sub_rows if len(row) > place}
        kept = [by_key[row[at]] for row in rows if row[at] in wanted and row[at] in by_key]
    else:  # rows in the order of the answers
        kept = [row for row, answer in zip(sub_rows, rows, strict=False) if answer[at] in wanted]
    cut = {problem.answers: _write(head, [row for row in rows if row[at] in wanted])}
    return {problem.submission: _write(sub_head, kept)}, {**answers, **cut}


def _is_public(key: str) -> bool:
    return hashlib.sha256(key.encode()).digest()[0] % 2 == 0


def _read(data: bytes) -> list[list[str]]:
    rows = [row for row in csv.reader(io.StringIO(data.decode("utf-8", "replace"))) if row]
    if not rows:
        raise ValueError("it is empty")
    return rows


def _write(head: list[str], rows: list[list[str]]) -> bytes:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([head, *rows])
    return text.getvalue().encode()
