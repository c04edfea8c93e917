"""Scores submissions from outside: evaluator and answers meet a submission in fresh sandboxes,
never in the agent's.

A CSV file is data: the evaluator runs beside it. Submitted code never shares a process or a file
system with evaluator and answers: it runs in a sandbox of its own, and the evaluator's calls of it
are passed on as plain literals. Only a submitted model runs beside the evaluator, which must load
it; a recipe has to allow that (`trust`).
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
MAX_SUBMISSION_BYTES = 1 << 24
# Characters of an evaluator's output that an error quotes.
MAX_OUTPUT_QUOTED = 300

# Runs the evaluator with a stand-in for the submitted module: every call of it becomes a line to
# the host. The last line is (None, output, error).
EVALUATE_PROGRAM = r"""
import ast, io, runpy, sys, types
name = sys.argv[1]
script = sys.argv[2]
sys.argv = sys.argv[2:]
host = sys.stdout
captured = io.StringIO()

def make_remote(function):
    def call(*arguments):
        print(repr((function, arguments)), file=host, flush=True)
        kind, value = ast.literal_eval(sys.stdin.readline())
        if kind == "error":
            raise RuntimeError(value)
        return value
    return call

module = types.ModuleType(name)
module.__getattr__ = make_remote
sys.modules[name] = module
sys.stdout = captured
sys.path.insert(0, ".")
reason = ""
try:
    runpy.run_path(script, run_name="__main__")
except BaseException as error:
    if not isinstance(error, SystemExit) or error.code:
        reason = f"{error}"[:1000] or repr(error)
print(repr((None, captured.getvalue()[-65536:], reason)), file=host, flush=True)
"""
# Runs the submitted code, and answers each line, a call, with a line: ("value", …) or ("error", …).
# What the code prints goes to stderr.
SERVE_PROGRAM = r"""
import ast, importlib, os, sys
calls = sys.stdin
answers = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)
sys.path.insert(0, ".")
module = import_error = None
try:
    module = importlib.import_module(sys.argv[1])
except BaseException as error:
    import_error = repr(error)
for line in calls:
    function, arguments = ast.literal_eval(line)
    try:
        if import_error:
            answer = ("error", import_error)
        else:
            answer = ("value", getattr(module, function)(*arguments))
        if ast.literal_eval(repr(answer)) != answer:
            raise ValueError
    except BaseException as error:
        answer = ("error", f"{type(error).__name__}: {error}"[:500])
    print(repr(answer), file=answers, flush=True)
"""


@dataclass(frozen=True)
class Judged:
    """Score of a submission, or the reason why it has none."""

    score: float | None
    reason: str = ""  # one sentence for the agent; empty with a score
    metrics: Mapping[str, float] | None = None


# Submitted files by path, or the verdict on a submission without any.
Submission = dict[str, bytes] | Judged


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

    async def copy_out(self, workspace: Workspace) -> Submission:
        """Return the submitted files, or a verdict with the reason why there are none."""
        problem = self._problem
        if problem.kind == "model":  # everything but the datasets
            paths = []
            for path, _ in await workspace.listing():
                if path.partition("/")[0] not in problem.mounts:
                    paths.append(path)
        else:
            paths = [problem.submission]
        files = {}
        try:
            for path in paths:
                files[path] = await workspace.read(f"/workspace/{path}", MAX_SUBMISSION_BYTES)
        except FileProblem as file_problem:
            return Judged(None, f"There is no valid {problem.submission} to score: {file_problem}")
        return files

    async def judge(self, files: Submission, split: Split, answers: Mapping[str, bytes]) -> Judged:
        """Score submitted files; an evaluator that prints no score is the submission's fault."""
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
                files, answers = _cut_to_split(problem, files, answers, split)
            except (ValueError, csv.Error) as error:
                return Judged(None, f"{problem.submission} can't be read as CSV: {error}")
        # The evaluator may import starter code. Its own files come last, over submitted ones.
        submitted = files if problem.kind == "csv" or self._trust else {}
        evaluator = {problem.evaluator: problem.starter[problem.evaluator]}
        inside = {**problem.starter, **problem.visible, **submitted, **evaluator, **answers}
        if problem.kind == "code":
            output, is_valid = await self._evaluate_code(files, inside)
        else:
            output, is_valid = await self._evaluate(inside)
        # Output of an evaluator that failed is no score: the submission may have written it.
        metrics = read_metrics(output) if is_valid else {}
        score = metrics.get(problem.metric)
        if score is None or not math.isfinite(score):
            reason = " ".join(output.split())[-MAX_OUTPUT_QUOTED:]
            reason = reason or "the evaluator printed nothing"
            return Judged(None, f"{problem.submission} is not valid: {reason}")
        return Judged(score, metrics=metrics)

    async def _evaluate(self, inside: dict[str, bytes]) -> tuple[str, bool]:
        """Return the output of the evaluator, and False if it failed."""
        problem = self._problem
        if problem.kind == "model":
            option = "--config_fname ."
        else:
            option = f"--submission_file {problem.submission}"
        command = f"python {problem.evaluator} {option}"
        async with await self._sandbox.open(inside, self._bounds, problem.mounts) as workspace:
            outcome = await workspace.run(command, seconds=problem.timeout)
        return outcome.output, not (outcome.code or outcome.stopped)

    async def _evaluate_code(
        self, files: dict[str, bytes], inside: dict[str, bytes]
    ) -> tuple[str, bool]:
        """Run evaluator and submitted code in two sandboxes, and pass calls on.

        Return the evaluator's output; if it failed, the reason and False.
        """
        problem = self._problem
        timeout = problem.timeout
        module = problem.submission.removesuffix(".py")
        inside = {**inside, "_stand_in.py": EVALUATE_PROGRAM.encode()}
        inside.pop(problem.submission, None)
        files = {**files, "_serve.py": SERVE_PROGRAM.encode()}
        async with (
            await self._sandbox.open(inside, self._bounds, problem.mounts) as evaluator_workspace,
            await self._sandbox.open(files, self._bounds) as code_workspace,
        ):
            try:
                async with asyncio.timeout(timeout):  # for all calls together
                    code = await code_workspace.start(f"python _serve.py {module}")
                    evaluator = await evaluator_workspace.start(
                        f"python _stand_in.py {module} {problem.evaluator}"
                    )
                    line = await evaluator.ask(None, timeout)
                    while not line.startswith("(None, "):
                        answer = await code.ask(line, timeout)
                        line = await evaluator.ask(answer, timeout)
            except FileProblem as silence:
                return f"the evaluation broke off: {silence}", False
            except TimeoutError:
                return f"its evaluation took longer than {timeout:g} seconds", False
        _, output, error = ast.literal_eval(line)
        return error or output, not error


def read_metrics(text: str) -> dict[str, float]:
    """Return the last JSON object of numbers in an evaluator's output, with keys in lower case."""
    for candidate in reversed(re.findall(r"\{[^{}]*\}", text)):
        try:
            table = json.loads(candidate)
            return {str(key).lower(): float(value) for key, value in table.items()}
        except (ValueError, TypeError, AttributeError, OverflowError, RecursionError):
            continue
    return {}


def _cut_to_split(
    problem: Problem, files: dict[str, bytes], answers: Mapping[str, bytes], split: Split
) -> tuple[dict[str, bytes], Mapping[str, bytes]]:
    """Cut answers and submission to the rows of a split: half of a test set is for validation."""
    if problem.answers not in answers:
        return files, answers
    header, *answer_rows = _read_csv(answers[problem.answers])
    submitted_header, *submitted_rows = _read_csv(files[problem.submission])
    key_column = header.index(problem.key)
    answer_keys = [row[key_column] for row in answer_rows]
    split_keys = {key for key in answer_keys if _is_validation(key) == (split == "validation")}

    if problem.key in submitted_header:
        column = submitted_header.index(problem.key)
        row_by_key = {row[column]: row for row in submitted_rows if len(row) > column}
        split_rows = []
        for key in answer_keys:
            if key in split_keys and key in row_by_key:
                split_rows.append(row_by_key[key])
    else:  # rows in the order of the answers
        pairs = zip(submitted_rows, answer_keys, strict=False)
        split_rows = [row for row, key in pairs if key in split_keys]

    split_answers = [row for row in answer_rows if row[key_column] in split_keys]
    split_files = {problem.submission: _write_csv(submitted_header, split_rows)}
    return split_files, {**answers, problem.answers: _write_csv(header, split_answers)}


def _is_validation(key: str) -> bool:
    return hashlib.sha256(key.encode()).digest()[0] % 2 == 0


def _read_csv(data: bytes) -> list[list[str]]:
    text = data.decode("utf-8", "replace")
    rows = [row for row in csv.reader(io.StringIO(text)) if row]
    if not rows:
        raise ValueError("it is empty")
    return rows


def _write_csv(header: list[str], rows: list[list[str]]) -> bytes:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([header, *rows])
    return text.getvalue().encode()
