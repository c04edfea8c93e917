"""Rewards of the `data` taskset: ready ones by name, and functions of yours, in our signature or
TRL's.

    def reward(prompt, completion, answer, **row): ...        a number, parts by name, or None for "can't tell"
    def reward(prompts, completions, **columns): ...          TRL's: called with lists of one, returns a list

Either may be `async`. A function takes only the columns that it names, or all of them with `**row`.
Values have the types that the row has; what is recorded as a task's answer is text.
"""  # noqa: E501 (a table)

import copy
import functools
import importlib
import importlib.util
import inspect
import json
import math
import os
import re
import sys
import urllib.request
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any
from weakref import WeakValueDictionary

from uptrend.config.load import nearest
from uptrend.records import (
    ConfigError,
    MissingExtra,
    Part,
    Reward,
    RewardOutOfBounds,
    Task,
    TasksetError,
)
from uptrend.records.files import parse_json
from uptrend.records.worker_process import WorkerDied, WorkerProcess
from uptrend.tasks.answers import fold_word, grade
from uptrend.tasks.event_loop import Threads, in_callers_turn

UNKNOWN = (math.nan, math.nan)
# Columns that TRL adds to those of the dataset, for functions that name them.
_FROM_TRL: dict[str, Any] = {
    "trainer_state": None,
    "log_extra": lambda *_: None,
    "log_metric": lambda *_: None,
}
Function = Callable[..., Any]
_NO_FUNCTIONS: Mapping[str, Function] = MappingProxyType({})
_given: ContextVar[Mapping[str, Function]] = ContextVar(
    "functions that were passed as objects", default=_NO_FUNCTIONS
)


class Undecided(TasksetError):  # noqa: N818 (the function's own answer)
    """No reward function could judge a rollout: it is recorded without a reward."""


@dataclass(frozen=True, kw_only=True)
class Judge:
    """`judge`: a model behind an OpenAI-compatible server that grades answers."""

    url: str = "http://localhost:8000/v1"
    """The server's address, up to and with /v1."""
    model: str = ""
    """Name of the model there."""
    prompt: str = (
        "Question: {prompt}\n\nReference answer: {answer}\n\nAnswer to grade: {completion}\n\nIs"
        " the answer to grade right? Reply with yes or no, or with a number from 0 (wrong) to 1"
        " (right)."
    )
    """Message to the judge; its reply is read as yes, no, or a number from 0 to 1."""
    key: str = "OPENAI_API_KEY"
    """Environment variable that holds the key, where the server wants one."""
    at_once: int = 16
    """The most requests at the same time."""
    timeout: float = 60.0
    """Seconds to wait for a reply."""


@dataclass(frozen=True, kw_only=True)
class RewardOptions:
    """Options of everything that scores one answer."""

    reward: Any = "exact"
    """Ready reward (exact, contains, number, regex, math, json-schema, judge), `module:function`,
    `file.py:function`, or a list of these.
    """
    weights: tuple[float, ...] = ()
    """Weight of each reward in the list; empty for 1 each."""
    bounds: Any = ()
    """Bounds of your functions: [low, high] for each of them, or a list of such pairs. Empty where
    they are unknown.
    """
    correct_from: float | None = None
    """Total from which an answer counts as right. Without it a part named `correct` decides, else
    the first reward: at its upper bound, or from 1 where that is unknown.
    """
    pattern: str = ""
    """Regular expression of `regex`: what its first group (or all of it) matches must be the
    answer.
    """
    schema: str = ""
    """JSON schema file of `json-schema`."""
    judge: Judge = field(default_factory=Judge)
    """Server of `judge`."""

    def __post_init__(self) -> None:
        names = [self.reward] if isinstance(self.reward, str) else self.reward
        if (
            not names
            or not isinstance(names, list | tuple)
            or not all(isinstance(n, str) and n for n in names)
        ):
            raise ConfigError(
                f"reward = {self.reward!r} should be a name or a list of names.", is_of_field=True
            )
        object.__setattr__(self, "reward", tuple(names))
        if self.weights and len(self.weights) != len(names):
            text = (
                f"weights = {list(self.weights)} should have one number for each of the"
                f" {len(names)} rewards."
            )
            raise ConfigError(text, is_of_field=True)
        object.__setattr__(self, "bounds", _pairs(self.bounds, len(names)))
        if "regex" in names and not self.pattern:
            raise ConfigError(
                'pattern is missing: regex needs one, such as "answer: (.+)".', is_of_field=True
            )
        if "json-schema" in names and not self.schema:
            raise ConfigError(
                "schema is missing: json-schema needs the path of a JSON schema.", is_of_field=True
            )
        if "judge" in names and not self.judge.model:
            raise ConfigError(
                "judge.model is missing: name the model that the server has.", is_of_field=True
            )


def _pairs(bounds: Any, count: int) -> tuple[tuple[float, float], ...]:
    """Return [low, high], or a list of pairs, as one pair per reward."""
    flat = list(bounds) if isinstance(bounds, list | tuple) else [bounds]
    if len(flat) == 2 and not isinstance(flat[0], list | tuple):
        flat = [flat] * count
    try:
        pairs = tuple((float(low), float(high)) for low, high in flat)
    except (TypeError, ValueError):
        pairs = ((1.0, 0.0),)
    if (pairs and len(pairs) != count) or any(low > high for low, high in pairs):
        text = f"bounds = {bounds!r} should be [low, high], or such a pair for each reward."
        raise ConfigError(text, is_of_field=True)
    return pairs


# ---- Ready rewards: of (completion, task, options), each between 0 and 1.


def _folded(text: str) -> str:
    return " ".join(fold_word(word) for word in text.split())


def exact(completion: str, task: Task, options: RewardOptions) -> float:  # noqa: ARG001 (one signature for all)
    """Compare texts without case, spacing and trailing punctuation."""
    return float(_folded(completion) == _folded(task.answer))


def contains(completion: str, task: Task, options: RewardOptions) -> float:  # noqa: ARG001
    """Look for the answer as whole words anywhere."""
    return float(f" {_folded(task.answer)} " in f" {_folded(completion)} ")


_DECIMAL = re.compile(r"-?\d[\d,]*(?:\.\d+)?|-?\.\d+")


def final_number(text: str) -> float | None:
    """Return the number after the last ####, as GSM8K writes it, else the last number; None where
    there is none.
    """
    _, mark, rest = text.rpartition("####")
    found = _DECIMAL.findall(rest)
    return float(found[0 if mark else -1].replace(",", "")) if found else None


def number(completion: str, task: Task, options: RewardOptions) -> float:  # noqa: ARG001
    """Compare final numbers."""
    said = final_number(completion)
    right = final_number(task.answer)
    return float(
        said is not None
        and right is not None
        and math.isclose(said, right, rel_tol=1e-9, abs_tol=1e-9)
    )


def regex(completion: str, task: Task, options: RewardOptions) -> float:
    """Compare what the pattern captures with the answer."""
    found = re.search(options.pattern, completion)
    return float(
        found is not None and _folded(found[(found.lastindex and 1) or 0]) == _folded(task.answer)
    )


def json_schema(completion: str, task: Task, options: RewardOptions) -> float:  # noqa: ARG001
    """Check JSON, bare or in a ``` block, against the schema."""
    fenced = re.search(r"```(?:json)?\s*(.*?)```", completion, re.DOTALL)
    try:
        found = parse_json(fenced[1] if fenced else completion)
    except ValueError:
        return 0.0
    return float(_validator(options.schema).is_valid(found))


@functools.cache
def _validator(path: str) -> Any:
    try:
        from jsonschema import validators
    except ImportError:
        raise MissingExtra("jsonschema", "rewards") from None
    try:
        schema = json.loads(Path(path).read_text(encoding="utf-8"))
        kind = validators.validator_for(schema)
        kind.check_schema(schema)
    except Exception as error:
        raise TasksetError(
            f"tasks.schema: {path} is no JSON schema: {error}.".replace("\n", " ")
        ) from None
    return kind(schema)


# Seconds in which math-verify compares an answer with the gold one, as long as it gives itself for
# one comparison.
MATH_SECONDS = 5.0


class MathVerifier:
    """`math`: compares mathematics by math-verify, in a process of its own.

    An expression such as 9^9^9^9 takes for ever, and no thread can be interrupted.
    """

    def __init__(self) -> None:
        if importlib.util.find_spec("math_verify") is None:
            raise MissingExtra("math-verify", "rewards")
        self._worker = WorkerProcess("uptrend.tasks.math_worker")
        self._thread = Threads(1, "math")  # decoding goes on meanwhile

    async def __call__(self, completion: str, task: Task) -> float:
        return await self._thread.do(partial(self._compare, task.answer, completion))

    def _compare(self, gold: str, completion: str) -> float:
        try:
            found = self._worker.call([gold, completion], MATH_SECONDS)
        except TimeoutError:
            raise TasksetError(f"math-verify took longer than {MATH_SECONDS:g} s") from None
        except WorkerDied as problem:
            raise TasksetError(f"math-verify failed: {problem}") from None
        if "error" in found:
            raise TasksetError(f"math-verify failed: {found['error']}")
        return float(found["equal"])


# One for all tasksets that use it, which ends with the last of them.
_VERIFIERS: "WeakValueDictionary[str, MathVerifier]" = WeakValueDictionary()


def math_verifier() -> MathVerifier:
    """Return the one of this process."""
    verifier = _VERIFIERS.get("math")
    if verifier is None:
        verifier = _VERIFIERS["math"] = MathVerifier()
    return verifier


class Grader:
    """Asks the judge, each question once, a few at a time."""

    def __init__(self, judge: Judge) -> None:
        self._judge = judge
        self._known = dict[str, float]()
        self._threads = Threads(judge.at_once, "judge")

    async def __call__(self, completion: str, task: Task) -> float:
        values = {
            "prompt": task.messages[-1].content,
            "answer": task.answer,
            "completion": completion,
        }
        return await self._threads.do(partial(self._grade, fill(self._judge.prompt, values)))

    def _grade(self, text: str) -> float:
        if text not in self._known:
            self._known[text] = self._ask(text)
        return self._known[text]

    def _ask(self, text: str) -> float:
        judge = self._judge
        body = {
            "model": judge.model,
            "temperature": 0,
            "messages": [{"role": "user", "content": text}],
        }
        headers = {"Content-Type": "application/json"}
        if key := os.environ.get(judge.key):
            headers["Authorization"] = f"Bearer {key}"
        url = judge.url.rstrip("/") + "/chat/completions"
        request = urllib.request.Request(url, json.dumps(body).encode(), headers)
        try:
            with urllib.request.urlopen(request, timeout=judge.timeout) as reply:
                said = str(json.load(reply)["choices"][0]["message"]["content"])
        except (OSError, ValueError, LookupError, TypeError) as error:
            raise TasksetError(f"the judge at {url} gave no grade: {error}") from None
        found = re.findall(r"\b(yes|no|[01](?:\.\d+)?)\b", said.lower())
        if not found:
            raise TasksetError(
                f"the judge replied {said[:80]!r}: neither yes, no, nor a number from 0 to 1"
            )
        return min(1.0, float({"yes": 1, "no": 0}.get(found[-1], found[-1])))


READY: dict[str, Callable[[str, Task, RewardOptions], float]] = {
    "exact": exact,
    "contains": contains,
    "number": number,
    "regex": regex,
    "json-schema": json_schema,
}
# Arithmetic's rules, for short answers at the start of what is said; between -1 and 1.
ARITHMETIC_RULES = {"start": "exact", "partial": "partial", "rich": "rich"}
NAMES_WITHOUT_SERVER = (*READY, "math")
READY_NAMES = (*NAMES_WITHOUT_SERVER, "judge", *ARITHMETIC_RULES)
NAMES_WITHOUT_ANSWER = ("json-schema", "judge")


# ---- From names to the terms of a reward.


# Returns a task's row and the answer in it, in the types that the row has.
ColumnsOf = Callable[[Task], tuple[Mapping[str, Any], Any]]
Score = Callable[[str, Task], Awaitable[float | Mapping[str, float] | None]]


@dataclass(frozen=True)
class RewardTerm:
    """One reward: its name, weight and bounds, and a function from a completion to its parts."""

    name: str
    weight: float
    bounds: tuple[float, float]
    score: Score
    is_ready: bool
    uses_answer: bool  # False where the answer can't matter


def make_terms(
    options: RewardOptions, columns: Sequence[str], columns_of: ColumnsOf
) -> list[RewardTerm]:
    """Return the rewards that options name; `columns` are those that a function may take."""
    terms: list[RewardTerm] = []
    score: Score
    for i, name in enumerate(options.reward):
        is_ready = name in READY_NAMES
        short = name.rpartition(":")[2]
        bounds = options.bounds[i] if options.bounds else UNKNOWN
        if is_ready:
            bounds = (-1.0, 1.0) if name in ARITHMETIC_RULES else (0.0, 1.0)
            score = _ready(name, options)
            uses_answer = name not in NAMES_WITHOUT_ANSWER
        else:
            score, uses_answer = _of_function(load_function(name), name, columns, columns_of)
        unique = f"{short}-{i + 1}" if short in [term.name for term in terms] else short
        weight = options.weights[i] if options.weights else 1.0
        terms.append(RewardTerm(unique, weight, bounds, score, is_ready, uses_answer))
    return terms


def _ready(name: str, options: RewardOptions) -> Callable[[str, Task], Awaitable[float]]:
    if name == "judge":
        return Grader(options.judge)
    if name == "math":
        return math_verifier()

    async def score(completion: str, task: Task) -> float:
        if name in ARITHMETIC_RULES:
            return grade(ARITHMETIC_RULES[name], completion, task).total  # type: ignore[arg-type]
        return READY[name](completion, task, options)

    return score


@contextmanager
def register_functions(functions: Mapping[str, Function]) -> Iterator[None]:
    """Let these functions be found under their names while tasks are made: they need not be
    importable.
    """
    token = _given.set({**_given.get(), **functions})
    try:
        yield
    finally:
        _given.reset(token)


def import_name(function: Function) -> str:
    """Return `module:name` of a function, as a recipe would write it."""
    named = function.func if isinstance(function, functools.partial) else function
    qualified = getattr(named, "__qualname__", type(named).__qualname__)
    return f"{getattr(named, '__module__', '__main__')}:{qualified.rpartition('.<locals>.')[2]}"


def load_function(name: str) -> Function:
    """Return the function that `module:function` or `file.py:function` names; modules are looked up
    here first.
    """
    if name in _given.get():
        return _given.get()[name]
    module, _, attribute = name.rpartition(":")
    if not module:
        near = (
            nearest(name, READY_NAMES)
            or f" There are {', '.join(READY_NAMES)}; yours is written module:function."
        )
        raise TasksetError(f"There is no reward {name!r}.{near}")
    try:
        found: Any = _load_file(Path(module)) if module.endswith(".py") else _import(module)
    except Exception as error:  # user code fails in any way
        raise TasksetError(
            f"The reward {name} can't be loaded: {type(error).__name__}: {error}."
        ) from error
    function = getattr(found, attribute, None)
    if callable(function):
        return function  # type: ignore[no-any-return]
    if module == "__main__":
        raise TasksetError(
            f"The reward {attribute} was a function of a script or notebook, which is not here. Put"
            " it into a file and name it file.py:function, or pass the function to uptrend.train"
            " or uptrend.resume."
        )
    there = [
        key
        for key, value in vars(found).items()
        if inspect.isfunction(value) and not key.startswith("_")
    ]
    raise TasksetError(f"{module} has no function {attribute}.{nearest(attribute, there)}")


def _import(module: str) -> Any:
    if str(Path.cwd()) not in sys.path:  # a module of one's own lies where the command is given
        sys.path.append(str(Path.cwd()))
    return importlib.import_module(module)


def _load_file(path: Path) -> Any:
    if not path.exists():
        raise FileNotFoundError(f"there is no file {path}")
    name = f"uptrend_rewards_{abs(hash(path.resolve()))}"
    if (loaded := sys.modules.get(name)) is None:
        if (folder := str(path.resolve().parent)) not in sys.path:  # it may import its neighbors
            sys.path.append(folder)
        spec = importlib.util.spec_from_file_location(name, path)
        assert spec is not None
        assert spec.loader is not None
        sys.modules[name] = loaded = importlib.util.module_from_spec(spec)
        try:
            spec.loader.exec_module(loaded)
        except BaseException:
            del sys.modules[name]
            raise
    return loaded


def _of_function(
    function: Function, name: str, columns: Sequence[str], columns_of: ColumnsOf
) -> tuple[Score, bool]:
    """Wrap a function of either signature; also return True where it can see the answer."""
    parameters = inspect.signature(function).parameters.values()
    takes_all = any(p.kind is p.VAR_KEYWORD for p in parameters)
    named = {p.name for p in parameters if p.kind in (p.KEYWORD_ONLY, p.POSITIONAL_OR_KEYWORD)}
    is_batched = "completions" in named
    known = {
        *columns,
        *(("prompts", "completions", *_FROM_TRL) if is_batched else ("prompt", "completion")),
    }
    needed = [
        p.name
        for p in parameters
        if p.name not in known
        and (p.kind is p.POSITIONAL_ONLY or (p.name in named and p.default is p.empty))
    ]
    if needed:
        which = (
            " Which column is it? Set tasks.answer (answer= in Python)."
            if needed[0] == "answer"
            else ""
        )
        others = ", ".join(column for column in columns if column != "prompt")
        raise TasksetError(
            f"The reward {name} takes {needed[0]}, which no row has.{which} It can take prompt,"
            f" completion, {others}; or TRL's prompts, completions and columns."
        )
    is_async = inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(
        type(function).__call__
    )

    async def score(completion: str, task: Task) -> float | Mapping[str, float] | None:
        row, answer = columns_of(task)
        asked = row["prompt"] if isinstance(row.get("prompt"), list) else task.messages[-1].content
        values: dict[str, Any]
        if is_batched:
            # TRL passes columns as they are, and gives conversations back as they came.
            said = (
                [{"role": "assistant", "content": completion}]
                if isinstance(asked, list)
                else completion
            )
            others = {
                key: value for key, value in row.items() if key not in ("prompt", "completion")
            }
            if "answer" in named:
                others.setdefault("answer", answer)
            values = {key: [value] for key, value in others.items()} | {
                "prompts": [asked],
                "completions": [said],
            }
            values |= _FROM_TRL
        else:
            values = {**row, "prompt": asked, "completion": completion}
            if "answer" in row or answer is not None:
                values["answer"] = answer
        taken = {key: value for key, value in values.items() if takes_all or key in named}
        # A copy each time, as datasets give one: a function may pop from a list.
        arguments = {
            key: value if key in _FROM_TRL else copy.deepcopy(value) for key, value in taken.items()
        }
        found = (
            await function(**arguments)
            if is_async
            else await in_callers_turn(partial(function, **arguments))
        )
        if is_batched:
            if len(found) != 1:
                raise TasksetError(f"{name} returned {len(found)} rewards for 1 completion")
            found = found[0]
        return _read(found, name)

    return score, takes_all or bool(
        named - {"prompt", "prompts", "completion", "completions", *_FROM_TRL}
    )


def _read(found: Any, name: str) -> float | dict[str, float] | None:
    """Return what a function gave as plain numbers; None and NaN can't tell."""
    if isinstance(found, Mapping):
        parts = {str(key): _read(value, name) for key, value in found.items()}
        kept = {key: value for key, value in parts.items() if isinstance(value, float)}
        return kept or None
    if found is None:
        return None
    try:
        value = float(found)
    except (TypeError, ValueError):
        raise TasksetError(
            f"{name} returned {found!r}: it should be a number, a dict of numbers, or None"
        ) from None
    return None if math.isnan(value) else value


async def score(
    terms: Sequence[RewardTerm], options: RewardOptions, completion: str, task: Task
) -> Reward:
    """Return the weighted sum of all rewards that can tell, with their parts; Undecided where none
    can.
    """
    parts = list[Part]()
    totals = list[tuple[float, float, float]]()
    decided = list[bool]()
    told = list[bool]()  # by a part that is named so
    for term in terms:
        value = await term.score(completion, task)
        if value is None:
            continue
        low, high = term.bounds
        earned = sum(value.values()) if isinstance(value, Mapping) else value
        if earned < low - 1e-6 or earned > high + 1e-6:
            raise RewardOutOfBounds(term.name, earned, low, high)
        if isinstance(value, Mapping):
            prefix = f"{term.name}-" if len(terms) > 1 else ""
            parts += [
                Part(prefix + key, each, *UNKNOWN, term.weight) for key, each in value.items()
            ]
            told += [value["correct"] > 0] if "correct" in value else []
            value = earned
        else:
            parts.append(Part(term.name, value, low, high, term.weight))
        decided += [value >= (1.0 if math.isnan(high) else high) - 1e-9]
        low, high = sorted((term.weight * low, term.weight * high))
        totals.append((term.weight * value, low, high))
    if not totals:
        raise Undecided("no reward function could tell")
    total, low, high = (sum(each) for each in zip(*totals, strict=True))
    is_right_answer = (
        (told or decided)[0] if options.correct_from is None else total >= options.correct_from
    )
    return Reward(total, low, high, is_right_answer, tuple(parts))


# ---- Texts with columns in them.

_COLUMN = re.compile(r"\{\{|\}\}|\{(\w+)\}")


def fill(template: str, row: Mapping[str, Any]) -> str:
    """Return a template with `{column}` replaced by its value; `{{` and `}}` are braces. KeyError
    names a column.
    """
    braces = {"{{": "{", "}}": "}"}
    return _COLUMN.sub(lambda found: braces.get(found[0]) or str(row[found[1]]), template)
