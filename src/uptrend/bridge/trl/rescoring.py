"""Calls of a trainer's reward functions beyond its own: which functions may be called again, on how
many completions, and what the calls cost.

A call may cost money or time. So by default a function gets at most as many completions again as
the generation had, and none where it is asynchronous, slow or marked `uptrend.remote`.
"""

import asyncio
import contextlib
import copy
import functools
import inspect
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from re import Pattern
from types import CodeType, FunctionType
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from uptrend.bridge.trl.batch import last_text
from uptrend.tasks.functions import is_remote

# Seconds of the trainer's own first call above which a function is not called again.
SLOW_CALL_S = 0.05
# Seconds that all extra calls of a function together may take.
CALLS_TIMEOUT_S = 2.0
# Functions of the user's that are read for the names in their code.
MAX_READ_FUNCTIONS = 50
# Characters of a completion that a message quotes.
QUOTED_COMPLETION = 40

Floats = NDArray[np.float64]
# Prompt, completion and row of the dataset, as TRL passes them.
Row = tuple[Any, Any, dict[str, Any]]


class CallTimer:
    """Measures the trainer's own first call of each reward function."""

    def __init__(self, trainer: Any) -> None:
        self._trainer = trainer
        self._functions: list[Any] | None = None  # the trainer's own, while they are measured
        self.seconds: dict[int, float] = {}

    def begin(self) -> None:
        """Put functions that measure themselves in the place of the trainer's."""
        functions = self._trainer.reward_funcs
        self._functions = functions
        self._trainer.reward_funcs = [
            self._measured(i, function) if _can_be_timed(function) else function
            for i, function in enumerate(functions)
        ]

    def end(self) -> None:
        """Put the trainer's functions back."""
        if self._functions is not None:
            self._trainer.reward_funcs = self._functions
        self._functions = None

    def _measured(self, place: int, function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function, updated=())
        def measured(*args: Any, **kwargs: Any) -> Any:
            began = time.perf_counter()
            rewards = function(*args, **kwargs)
            self.seconds[place] = time.perf_counter() - began
            return rewards

        return measured


def _can_be_timed(function: Any) -> bool:
    """Return True for a function whose call can be timed: neither a model nor a coroutine."""
    is_model = isinstance(function, torch.nn.Module)
    return callable(function) and not is_model and not is_async(function)


def is_async(function: Any) -> bool:
    """Return True for a function that returns a coroutine."""
    return any(map(inspect.iscoroutinefunction, (function, type(function).__call__)))


def why_not_called(function: Any, seconds: float, *, is_allowed: bool) -> str:
    """Return why a function is not called again; empty if it may be. With `is_allowed` the user has
    asked for calls, so that it may be slow or asynchronous.
    """
    if isinstance(function, torch.nn.Module) or not callable(function):
        return "it is a model"
    if is_remote(function):
        return "it is marked uptrend.remote"
    if is_allowed:
        return ""
    if is_async(function):
        return "it is asynchronous"
    if seconds > SLOW_CALL_S:
        return f"its first call took {seconds:.2f} s, more than {SLOW_CALL_S:g} s"
    return ""


@dataclass
class Spending:
    """Extra calls of one reward function."""

    calls: int = 0
    completions: int = 0
    seconds: float = 0.0


@dataclass(frozen=True)
class CallFailure:
    """A completion that a reward function fails on."""

    error: str
    """The exception, with the line of the user's code that raised it."""
    completion: str


@dataclass
class RewardCaller:
    """Calls one reward function again, as long as its budget lasts."""

    trainer: Any
    function: int
    """Its place among the trainer's."""
    budget: int
    """Completions that it may be called on."""
    own_row: Row
    """A row that the trainer's own call has scored."""
    spent: Spending = field(default_factory=Spending)
    failures: list[CallFailure] = field(default_factory=list)
    refusal: str = ""
    """Error of a function that fails on fewer rows than a generation has, whatever they are."""

    @property
    def left(self) -> int:
        """Completions that the function may still be called on."""
        if self.refusal or self.spent.seconds > CALLS_TIMEOUT_S:
            return 0
        return self.budget - self.spent.completions

    def call(self, rows: Sequence[Row]) -> Floats:
        """Return the rewards of rows; NaN for None, and for all rows of a call that failed or that
        the budget does not allow.
        """
        if not rows or len(rows) > self.left:
            return np.full(len(rows), np.nan)
        try:
            return self._call(rows)
        except Exception as error:  # the user's code may fail in any way
            self._find_failing_row(rows, error)
            return np.full(len(rows), np.nan)

    def _call(self, rows: Sequence[Row]) -> Floats:
        """Call the function with TRL's own arguments."""
        trainer = self.trainer
        # Each column is copied at once, so that rows that share an object still do.
        prompts, completions, examples = map(_deep_copies, zip(*rows, strict=True))
        texts = list(map(last_text, completions))
        columns: dict[str, list[Any]] = {}
        for key in examples[0]:
            if key not in ("prompt", "completion", "completion_ids"):
                columns[key] = [example.get(key) for example in examples]
        ids = trainer._tokenizer(texts, add_special_tokens=False)["input_ids"]
        function = trainer.reward_funcs[self.function]

        self.spent.calls += 1
        self.spent.completions += len(rows)
        began = time.perf_counter()
        try:
            rewards = function(
                prompts=prompts,
                completions=completions,
                completion_ids=ids,
                **columns,
                trainer_state=trainer.state,
                log_extra=lambda *_: None,
                log_metric=lambda *_: None,
            )
            if inspect.iscoroutine(rewards):
                rewards = asyncio.run_coroutine_threadsafe(rewards, trainer.async_loop).result()
        finally:
            self.spent.seconds += time.perf_counter() - began
        return np.array([np.nan if reward is None else float(reward) for reward in rewards])

    def _find_failing_row(self, rows: Sequence[Row], error: Exception) -> None:
        """Halve rows that a call failed on until one is left; note it if the call without it
        passes.
        """
        has_passed = False
        while len(rows) > 1:
            first = rows[: len(rows) // 2]
            if len(first) > self.left:
                return
            try:
                self._call(first)
            except Exception as own_error:
                if type(own_error) is not type(error):
                    return  # fewer rows are a fault of their own, such as no whole group
                error = own_error
                rows = first
            else:
                has_passed = True
                rows = rows[len(first) :]
        # Every part failed: the row is at fault only if one that is known to be good passes alone.
        if not has_passed and self.left:
            with contextlib.suppress(Exception):
                self._call([self.own_row])
                has_passed = True
        if has_passed:
            completion = last_text(rows[0][1])[-QUOTED_COMPLETION:]
            self.failures.append(CallFailure(describe_failure(error), completion))
        else:
            self.refusal = describe_failure(error)


def _deep_copies(column: Sequence[Any]) -> list[Any]:
    return copy.deepcopy(list(column))


def describe_failure(error: Exception) -> str:
    """Return an exception with the file and line that raised it."""
    frames = traceback.extract_tb(error.__traceback__)
    place = f"{Path(frames[-1].filename).name}:{frames[-1].lineno}: " if frames else ""
    return f"{place}{type(error).__name__}: {error}"


# What a function's code names: columns that it may read, and words of the format that it wants


def names_in_code(function: Any) -> list[str] | None:
    """Return parameters, variables and texts in a function's code, and in that of the functions and
    patterns that it uses; None where no code can be read.
    """
    names: list[str] = []
    seen: set[int] = set()
    waiting = [function]
    n_read = 0
    while waiting and n_read < MAX_READ_FUNCTIONS:
        code_owner = _with_code(waiting.pop())
        if code_owner is None or id(code_owner.__code__) in seen:
            continue
        seen.add(id(code_owner.__code__))
        n_read += 1
        names += _words_of(code_owner.__code__)
        for value in _used_values(code_owner):
            if isinstance(value, str):
                names.append(value)
            elif isinstance(value, Pattern):
                names.append(str(value.pattern))
            elif callable(value) and not isinstance(value, type):
                waiting.append(value)
    return names if n_read else None


def _with_code(value: Any) -> FunctionType | None:
    """Return the Python function behind something that can be called; None without any."""
    while isinstance(value, functools.partial):
        value = value.func
    value = inspect.unwrap(value)
    if inspect.ismethod(value):
        value = value.__func__
    if not isinstance(value, FunctionType):
        value = type(value).__call__
    return value if isinstance(value, FunctionType) else None


def _words_of(code: CodeType) -> Iterator[str]:
    """Return the names and texts of code, and of the functions inside it."""
    yield from code.co_varnames
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, str):
            yield constant
        elif isinstance(constant, tuple | frozenset):
            yield from (each for each in constant if isinstance(each, str))
        elif isinstance(constant, CodeType):
            yield from _words_of(constant)


def _used_values(function: FunctionType) -> Iterator[Any]:
    """Return the values that a function's code refers to by a global name or in its closure."""
    names = set(function.__code__.co_names)
    for constant in function.__code__.co_consts:
        if isinstance(constant, CodeType):
            names |= set(constant.co_names)
    for name in sorted(names):
        value = function.__globals__.get(name)
        # Only the user's own: the code of libraries names everything.
        is_own = getattr(value, "__module__", None) == function.__module__
        if is_own or isinstance(value, str | Pattern):
            yield value
    for cell in function.__closure__ or ():
        try:
            yield cell.cell_contents
        except ValueError:  # not filled yet
            continue
