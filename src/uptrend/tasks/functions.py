"""Reward functions that users write: what they are called with, where they run, and what they may
return.

    def reward(prompt, completion, answer, **row): ...        a number, parts by name, or None for "can't tell"
    def reward(prompts, completions, **columns): ...          TRL's: a list of numbers, one per completion

Either may be `async`. A function takes only the columns that it names, or all of them with `**row`.
`answer` is the column that `tasks.answer` names, also where a row has another one of that name.
Values have the types that the row has; what is recorded as a task's answer is text.

A function that takes time runs in worker processes, where it can be stopped and where as many run
side by side as there are cores. A worker imports it by name; a closure or a function of a notebook
has none that a worker could import, and runs in threads of this process. A quick one is called
where it is needed: handing it to a worker would take longer than it does.
"""  # noqa: E501 (a table)

import asyncio
import contextlib
import copy
import functools
import inspect
import json
import math
import numbers
import statistics
import sys
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from datetime import time as daytime
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any, TypeVar, cast

from uptrend.config.functions import Function, is_registered, load_named
from uptrend.records import ConfigError, Task, TasksetError
from uptrend.records.worker_process import WorkerDied
from uptrend.tasks.event_loop import Threads, in_callers_turn
from uptrend.tasks.workers import count_cores, shared_pool

# Seconds that a quick function takes, by the median of its last calls: about ten times what handing
# a call to a worker takes.
QUICK_S = 1e-3
# Calls that are measured before a function counts as quick.
MIN_MEASURED_CALLS = 3
# Calls whose median counts.
MEASURED_CALLS = 16
# Seconds of one call after which a quick function is measured anew, in workers.
SLOW_S = 0.05
# Characters of a wrong value that an error quotes.
QUOTED_CHARACTERS = 80
# Columns that TRL adds to those of the dataset, for functions that name them.
TRL_COLUMNS: dict[str, Any] = {
    "trainer_state": None,
    "log_extra": lambda *_: None,
    "log_metric": lambda *_: None,
}
# What a function says of one completion: a number, parts by name, or None if it can't tell.
Value = float | dict[str, float] | None
# Returns a task's row and the answer in it, in the types that the row has.
ColumnsOf = Callable[[Task], tuple[Mapping[str, Any], Any]]


# Attribute by which a function that must not be called in vain is known.
_REMOTE_MARK = "__uptrend_remote__"
_may_call_remote: ContextVar[bool] = ContextVar("reward functions that cost money", default=True)
F = TypeVar("F", bound=Callable[..., Any])


def remote(function: F) -> F:
    """Mark a reward function, an object that can be called, or its class as one that costs money or
    quota, such as a judge behind an API.

    Training calls it for what is trained and evaluated. `watch`, preflight and `uptrend tasks
    validate` never do, and say what is therefore not known.

        @uptrend.remote
        def judge(completions, **columns): ...
    """
    if not callable(function):
        raise TypeError(f"uptrend.remote marks what can be called, not {_quote(function)}")
    try:
        setattr(function, _REMOTE_MARK, True)
    except (AttributeError, TypeError):  # a bound method, or built in
        wrapped = functools.partial(function)
        functools.update_wrapper(wrapped, function)
        setattr(wrapped, _REMOTE_MARK, True)
        return cast(F, wrapped)
    return function


def is_remote(function: Any) -> bool:
    """Return True for a function that `remote` marks, itself or inside partial objects, decorators
    and `__call__`.
    """
    inner = function
    while inner is not None:
        if hasattr(inner, _REMOTE_MARK) or hasattr(type(inner).__call__, _REMOTE_MARK):
            return True
        if isinstance(inner, functools.partial):
            inner = inner.func
        else:
            inner = getattr(inner, "__wrapped__", None)
    return False


@contextmanager
def without_remote() -> Iterator[None]:
    """Leave functions that `remote` marks uncalled inside the context: they can't tell any
    reward.
    """
    token = _may_call_remote.set(False)
    try:
        yield
    finally:
        _may_call_remote.reset(token)


def may_call(*, is_remote: bool) -> bool:
    """Return False inside `without_remote` for a function that `remote` marks."""
    return not is_remote or _may_call_remote.get()


class FunctionFailed(TasksetError):  # noqa: N818 (what happened to a rollout)
    """A function that raised, or whose worker ended: where, and with what."""


def load_function(name: str) -> Function:
    """Return the reward function that `module:function` or `file.py:function` names."""
    try:
        function: Function = load_named(name, "reward")
    except ConfigError as error:
        raise TasksetError(str(error)) from error.__cause__
    return function


def place_of(function: Any, words: Sequence[str] = ()) -> str:
    """Return `file.py:line` of a function: of its first line with the first of some words that
    occurs in it, else of its definition; empty where no source can be read.
    """
    inner = inspect.unwrap(function.func if isinstance(function, functools.partial) else function)
    if not (inspect.isfunction(inner) or inspect.ismethod(inner)):
        inner = type(inner).__call__
    try:
        lines, first_line = inspect.getsourcelines(inner)
        file = Path(inspect.getfile(inner)).name
    except (OSError, TypeError):  # built in, or of a session without a file
        return ""
    for word in words:
        for i, line in enumerate(lines):
            if word in line:
                return f"{file}:{first_line + i}"
    return f"{file}:{first_line}"


# Signatures


@dataclass(frozen=True)
class _Signature:
    """Parameters of a reward function."""

    names: frozenset[str]  # those that can be passed by name
    required: list[str]  # those that need a value; no positional-only one can get any
    takes_all: bool  # True with `**row`
    is_batched: bool  # True for TRL's signature


def _read_signature(function: Function) -> _Signature:
    names: set[str] = set()
    required: list[str] = []
    takes_all = False
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind is parameter.VAR_KEYWORD:
            takes_all = True
        elif parameter.kind is parameter.POSITIONAL_ONLY:
            required.append(parameter.name)
        elif parameter.kind is not parameter.VAR_POSITIONAL:
            names.add(parameter.name)
            if parameter.default is parameter.empty:
                required.append(parameter.name)
    return _Signature(frozenset(names), required, takes_all, "completions" in names)


def _check_required(signature: _Signature, name: str, columns: Sequence[str]) -> None:
    """Raise TasksetError for a parameter that neither the rows nor we have a value for."""
    if signature.is_batched:
        known = {*columns, "prompts", "completions", *TRL_COLUMNS}
    else:
        known = {*columns, "prompt", "completion"}
    missing = next((parameter for parameter in signature.required if parameter not in known), None)
    if missing is None:
        return
    hint = ""
    if missing == "answer":
        hint = " Which column is it? Set tasks.answer (answer= in Python)."
    others = ", ".join(column for column in columns if column != "prompt")
    raise TasksetError(
        f"The reward {name} takes {missing}, which no row has.{hint} It can take prompt,"
        f" completion, {others}; or TRL's prompts, completions and columns."
    )


# Calls


class RewardFunction:
    """A user's reward function of either signature."""

    def __init__(
        self, name: str, columns: Sequence[str], columns_of: ColumnsOf, function: Function
    ) -> None:
        self.name = name
        self._function = function
        self._signature = _read_signature(function)
        _check_required(self._signature, name, columns)
        self._columns_of = columns_of
        self._is_async = inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(
            type(function).__call__
        )
        self.is_remote = is_remote(function)
        self.is_importable = is_importable(function, name)
        self._seconds: deque[float] = deque(maxlen=MEASURED_CALLS)
        self._workers = shared_pool("uptrend.tasks.function_worker", *_source_of(function))
        self._threads = Threads(count_cores(), "reward")
        self._needs_main_thread = False

    def place(self, words: Sequence[str] = ()) -> str:
        """Return `file.py:line` of its code, as `place_of` does."""
        return place_of(self._function, words)

    @property
    def is_batched(self) -> bool:
        """True with TRL's signature: one call gets several completions."""
        return self._signature.is_batched

    @property
    def is_sync(self) -> bool:
        """True unless it is `async`."""
        return not self._is_async

    @property
    def is_called(self) -> bool:
        """False where it costs money, and nothing is trained or evaluated."""
        return may_call(is_remote=self.is_remote)

    @property
    def sees_answer(self) -> bool:
        """True if it can see the answer, or other columns of the row."""
        own_texts = {"prompt", "prompts", "completion", "completions", *TRL_COLUMNS}
        return self._signature.takes_all or bool(self._signature.names - own_texts)

    async def score(
        self, completions: Sequence[str], tasks: Sequence[Task]
    ) -> Sequence[Value | Exception]:
        """Return the value of each completion, or the error where it failed."""
        if not self.is_called:
            return [None] * len(completions)
        if self.is_batched:
            try:
                return await self._call(self._batch_values(completions, tasks), len(completions))
            except Exception as error:
                return [error] * len(completions)
        if len(completions) == 1:
            return [await self._score_one(completions[0], tasks[0])]
        calls = [self._score_one(*each) for each in zip(completions, tasks, strict=True)]
        return await asyncio.gather(*calls)

    async def _score_one(self, completion: str, task: Task) -> Value | Exception:
        row = self._row_of(task)
        values = {**row, "prompt": _prompt_of(row, task), "completion": completion}
        try:
            return (await self._call(values, None))[0]
        except Exception as error:
            return error

    def _row_of(self, task: Task) -> dict[str, Any]:
        """Return a task's row, with its answer as `answer`: None if the function needs one and the
        task has none.
        """
        row, answer = self._columns_of(task)
        needs_answer = "answer" in self._signature.required
        if needs_answer or "answer" in row or answer is not None:
            return {**row, "answer": answer}
        return {**row}

    def _batch_values(self, completions: Sequence[str], tasks: Sequence[Task]) -> dict[str, Any]:
        """Return what TRL would pass: columns as lists, and conversations as conversations."""
        prompts: list[Any] = []
        replies: list[Any] = []
        rows: list[dict[str, Any]] = []
        for completion, task in zip(completions, tasks, strict=True):
            row = self._row_of(task)
            prompt = _prompt_of(row, task)
            is_conversation = isinstance(prompt, list)
            prompts.append(prompt)
            replies.append(
                [{"role": "assistant", "content": completion}] if is_conversation else completion
            )
            rows.append(row)
        columns = dict.fromkeys(key for row in rows for key in row)
        values: dict[str, Any] = {}
        for key in columns:
            if key not in ("prompt", "completion"):
                values[key] = [row.get(key) for row in rows]
        return values | {"prompts": prompts, "completions": replies} | TRL_COLUMNS

    async def _call(self, values: Mapping[str, Any], count: int | None) -> list[Value]:
        """Return the values of a batch of `count` completions, or of one where that is None.

        The function is called in one of five places:
            in this event loop, if it is `async`;
            in this thread, if its last calls were quick;
            in a worker process, if a worker can import it;
            in a thread of the pool, if not;
            in the caller's thread, in its turn, if it turned out to need the main thread.
        """
        arguments: dict[str, Any] = {}
        for key, value in values.items():
            if self._signature.takes_all or key in self._signature.names:
                arguments[key] = value
        if self._is_async:
            try:
                returned = await self._function(**_copied(arguments))
            except Exception as error:
                raise _failure(self._function, error) from error
            return read_values(returned, self.name, count)
        job = partial(self._call_here, arguments, count)
        if self._is_quick():
            return job()
        if self.is_importable:
            return await self._call_in_worker(arguments, count)
        if self._needs_main_thread:
            return await in_callers_turn(job)
        try:
            return await self._threads.do(job)
        except FunctionFailed as error:
            # Python lets the main thread alone set signals, as time limits of libraries do.
            if "main thread" not in str(error):
                raise
            self._needs_main_thread = True
            return await in_callers_turn(job)

    def _is_quick(self) -> bool:
        measured = self._seconds
        return len(measured) >= MIN_MEASURED_CALLS and statistics.median(measured) <= QUICK_S

    def _call_here(self, arguments: Mapping[str, Any], count: int | None) -> list[Value]:
        """Call the function in this thread."""
        started = time.perf_counter()
        values = call_function(self._function, self.name, _copied(arguments), count)
        self._note_seconds(time.perf_counter() - started)
        return values

    def _note_seconds(self, seconds: float) -> None:
        if seconds > SLOW_S:
            self._seconds.clear()
        self._seconds.append(seconds)

    async def _call_in_worker(self, arguments: Mapping[str, Any], count: int | None) -> list[Value]:
        rows = {key: value for key, value in arguments.items() if key not in TRL_COLUMNS}
        # A first request without arguments imports the function, outside the call's time limit.
        import_request = {"function": self.name, "path": sys.path, "folder": str(Path.cwd())}
        call_request = {
            **import_request,
            "arguments": encode_arguments(rows),
            "trl": [key for key in arguments if key in TRL_COLUMNS],
            "count": count,
        }
        try:
            answer = await self._workers.call(call_request, prepare=import_request)
        except WorkerDied as problem:
            raise FunctionFailed(f"the worker of {self.name} failed: {problem}") from None
        if "failed" in answer:
            raise FunctionFailed(answer["failed"])
        if "error" in answer:
            raise TasksetError(answer["error"])
        self._note_seconds(answer["seconds"])
        values: list[Value] = answer["values"]
        return values


def _source_of(function: Function) -> tuple[str, str, int]:
    """Return what a worker that has imported a function depends on: the current folder, its file,
    and when that was changed.
    """
    file = ""
    changed_ns = 0
    with contextlib.suppress(OSError, TypeError):  # built in, or of a notebook
        file = inspect.getfile(inspect.unwrap(function))
        changed_ns = Path(file).stat().st_mtime_ns
    return str(Path.cwd()), file, changed_ns


def _prompt_of(row: Mapping[str, Any], task: Task) -> Any:
    prompt = row.get("prompt")
    return prompt if isinstance(prompt, list) else task.messages[-1].content


def _copied(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return copies, as datasets give them: a function may pop from a list."""
    copies: dict[str, Any] = {}
    for key, value in arguments.items():
        copies[key] = value if key in TRL_COLUMNS else copy.deepcopy(value)
    return copies


def is_importable(function: Function, name: str) -> bool:
    """Return True if a worker gets this function by its name."""
    source, _, attribute = name.rpartition(":")
    if source == "__main__":
        return False
    if not is_registered(name):
        return True  # `load_function` found it so
    module = sys.modules.get(source)
    if module is None or getattr(module, "__spec__", None) is None:
        return False
    return getattr(module, attribute, None) is function


def call_function(
    function: Function, name: str, arguments: Mapping[str, Any], count: int | None
) -> list[Value]:
    """Return what a function says of `count` completions, or of one where that is None."""
    try:
        returned = function(**arguments)
    except Exception as error:
        raise _failure(function, error) from error
    return read_values(returned, name, count)


def _failure(function: Function, error: Exception) -> FunctionFailed:
    """Return where a function raised, and what: its own last line, or that of what it called."""
    frames = traceback.extract_tb(error.__traceback__)
    code = getattr(inspect.unwrap(function), "__code__", None)
    own_file = None if code is None else code.co_filename
    own_frames = [frame for frame in frames if frame.filename == own_file]
    place = ""
    if own_frames or frames:
        frame = own_frames[-1] if own_frames else frames[-1]
        place = f"{Path(frame.filename).name}, line {frame.lineno}: "
    message = " ".join(str(error).split())
    return FunctionFailed(f"{place}{type(error).__name__}{': ' if message else ''}{message}")


def encode_arguments(arguments: Mapping[str, Any]) -> str:
    """Return arguments as JSON for a worker, with the types that rows of files have besides."""
    return json.dumps(arguments, default=_tag)


def decode_arguments(text: str) -> dict[str, Any]:
    """Return the arguments that `encode_arguments` wrote."""
    arguments: dict[str, Any] = json.loads(text, object_hook=_untag)
    return arguments


# Types of a Parquet file's cells that JSON lacks, by name: how each becomes a text, and comes back.
CELL_TYPES: dict[str, tuple[type, Callable[[Any], str], Callable[[str], Any]]] = {
    "datetime": (datetime, datetime.isoformat, datetime.fromisoformat),
    "date": (date, date.isoformat, date.fromisoformat),
    "time": (daytime, daytime.isoformat, daytime.fromisoformat),
    "timedelta": (
        timedelta,
        lambda value: str(value // timedelta(microseconds=1)),
        lambda text: timedelta(microseconds=int(text)),
    ),
    "decimal": (Decimal, str, Decimal),
    "bytes": (bytes, bytes.hex, bytes.fromhex),
}
CELL_KEY = "uptrend cell"


def _tag(value: Any) -> dict[str, str]:
    for name, (kind, to_text, _) in CELL_TYPES.items():
        if isinstance(value, kind):
            return {CELL_KEY: name, "text": to_text(value)}
    raise TypeError(f"a row has a {type(value).__name__}")


def _untag(table: dict[str, Any]) -> Any:
    if CELL_KEY not in table:
        return table
    _, _, from_text = CELL_TYPES[table[CELL_KEY]]
    return from_text(table["text"])


# Values


def read_values(returned: Any, name: str, count: int | None) -> list[Value]:
    """Return what a function returned as plain values; raise TasksetError for anything else."""
    if count is None:
        return [read_value(returned, name)]
    if not isinstance(returned, Sequence | Mapping) and hasattr(returned, "tolist"):
        returned = returned.tolist()  # numpy's arrays and torch's tensors, as TRL takes them
    if not isinstance(returned, list | tuple):
        raise TasksetError(
            f"{name} returned {_quote(returned)}: it should be a list with a number for each"
            " completion"
        )
    if len(returned) != count:
        noun = "completion" if count == 1 else "completions"
        rewards = "reward" if len(returned) == 1 else "rewards"
        raise TasksetError(f"{name} returned {len(returned)} {rewards} for {count} {noun}")
    return [read_value(value, name) for value in returned]


def read_value(value: Any, name: str) -> Value:
    """Return a function's reward of one completion as plain numbers; None means that it can't
    tell.
    """
    if value is None:
        return None
    if isinstance(value, Mapping):
        parts: dict[str, float] = {}
        for key, part in value.items():
            if part is None:
                continue
            # A truth value is no reward, except for this part, which says whether the answer is
            # right: Python's own. `_read_number` refuses all others, and numpy's.
            if key == "correct" and isinstance(part, bool):
                part = float(part)
            parts[str(key)] = _read_number(part, f"{name}, part {key},")
        return parts or None
    return _read_number(value, name)


def _read_number(value: Any, name: str) -> float:
    is_truth_value = type(value).__name__ in ("bool", "bool_")  # Python's and numpy's
    is_number = isinstance(value, numbers.Real | Decimal) and not is_truth_value
    if is_number and not math.isnan(value):
        return float(value)
    hint = "it should be a number, a dict of numbers, or None"
    if is_truth_value:
        hint = "write float(...), so that it is a number"
    elif is_number:
        hint = "it should be a number, or None if it can't tell"
    elif hasattr(value, "item"):
        hint = "it should be a number: write .item()"
    raise TasksetError(f"{name} returned {_quote(value)}: {hint}")


def _quote(value: Any) -> str:
    text = " ".join(repr(value).split())
    return text if len(text) <= QUOTED_CHARACTERS else f"{text[: QUOTED_CHARACTERS - 1]}…"
