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

UNKNOWN_BOUNDS = (math.nan, math.nan)
# Tolerances of rounding: of a comparison of numbers, of a sum of parts at its bounds, and of a
# reward that reaches its upper bound.
NUMBER_TOLERANCE = 1e-9
BOUND_TOLERANCE = 1e-6
MAXIMUM_TOLERANCE = 1e-9
# Characters of a judge's reply that an error quotes.
QUOTED_CHARACTERS = 80
# Columns that TRL adds to those of the dataset, for functions that name them.
TRL_COLUMNS: dict[str, Any] = {
    "trainer_state": None,
    "log_extra": lambda *_: None,
    "log_metric": lambda *_: None,
}
Function = Callable[..., Any]
_NO_FUNCTIONS: Mapping[str, Function] = MappingProxyType({})
_registered: ContextVar[Mapping[str, Function]] = ContextVar(
    "functions that were passed as objects", default=_NO_FUNCTIONS
)


class Undecided(TasksetError):  # noqa: N818 (the function's own answer)
    """No reward function could judge a rollout: it is recorded without a reward."""


@dataclass(frozen=True, kw_only=True)
class Judge:
    """`judge`: a model behind an OpenAI-compatible server that grades answers."""

    url: str = "http://localhost:8000/v1"
    """Address of the server, up to and including /v1."""
    model: str = ""
    """Name of the model on the server."""
    prompt: str = (
        "Question: {prompt}\n\nReference answer: {answer}\n\nAnswer to grade: {completion}\n\nIs"
        " the answer to grade right? Reply with yes or no, or with a number from 0 (wrong) to 1"
        " (right)."
    )
    """Message to the judge; its reply is read as yes, no, or a number from 0 to 1."""
    key: str = "OPENAI_API_KEY"
    """Environment variable that holds the key, if the server requires one."""
    at_once: int = 16
    """Maximum number of simultaneous requests."""
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
        is_list = isinstance(names, list | tuple) and bool(names)
        if not is_list or not all(isinstance(name, str) and name for name in names):
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
    listed = list(bounds) if isinstance(bounds, list | tuple) else [bounds]
    is_one_pair = len(listed) == 2 and not isinstance(listed[0], list | tuple)
    if is_one_pair:
        listed = [listed] * count
    try:
        pairs = tuple((float(low), float(high)) for low, high in listed)
        is_valid = not pairs or len(pairs) == count
    except (TypeError, ValueError):
        pairs = ()
        is_valid = False
    if not is_valid or any(low > high for low, high in pairs):
        text = f"bounds = {bounds!r} should be [low, high], or such a pair for each reward."
        raise ConfigError(text, is_of_field=True)
    return pairs


# Ready rewards: of (completion, task, options), each between 0 and 1


def _folded(text: str) -> str:
    return " ".join(fold_word(word) for word in text.split())


def exact(completion: str, task: Task, options: RewardOptions) -> float:  # noqa: ARG001 (one signature for all)
    """Compare texts without case, spacing and trailing punctuation."""
    return float(_folded(completion) == _folded(task.answer))


def contains(completion: str, task: Task, options: RewardOptions) -> float:  # noqa: ARG001
    """Look for the answer as whole words anywhere."""
    return float(f" {_folded(task.answer)} " in f" {_folded(completion)} ")


_DECIMAL_PATTERN = re.compile(r"-?\d[\d,]*(?:\.\d+)?|-?\.\d+")


def final_number(text: str) -> float | None:
    """Return the number after the last ####, as GSM8K writes it, else the last number; None in a
    text without numbers.
    """
    _, mark, rest = text.rpartition("####")
    numbers = _DECIMAL_PATTERN.findall(rest)
    if not numbers:
        return None
    final = numbers[0] if mark else numbers[-1]
    return float(final.replace(",", ""))


def number(completion: str, task: Task, options: RewardOptions) -> float:  # noqa: ARG001
    """Compare final numbers."""
    value = final_number(completion)
    gold = final_number(task.answer)
    if value is None or gold is None:
        return 0.0
    return float(math.isclose(value, gold, rel_tol=NUMBER_TOLERANCE, abs_tol=NUMBER_TOLERANCE))


def regex(completion: str, task: Task, options: RewardOptions) -> float:
    """Compare what the pattern captures with the answer."""
    match = re.search(options.pattern, completion)
    if match is None:
        return 0.0
    captured = match[1] if match.lastindex else match[0]
    return float(_folded(captured) == _folded(task.answer))


def json_schema(completion: str, task: Task, options: RewardOptions) -> float:  # noqa: ARG001
    """Check JSON, bare or in a ``` block, against the schema."""
    fenced = re.search(r"```(?:json)?\s*(.*?)```", completion, re.DOTALL)
    try:
        value = parse_json(fenced[1] if fenced else completion)
    except ValueError:
        return 0.0
    return float(_validator(options.schema).is_valid(value))


@functools.cache
def _validator(path: str) -> Any:
    try:
        from jsonschema import validators
    except ImportError:
        raise MissingExtra("jsonschema", "rewards") from None
    try:
        schema = json.loads(Path(path).read_text(encoding="utf-8"))
        validator_class = validators.validator_for(schema)
        validator_class.check_schema(schema)
    except Exception as error:
        raise TasksetError(
            f"tasks.schema: {path} is no JSON schema: {error}.".replace("\n", " ")
        ) from None
    return validator_class(schema)


# Time limit of comparing an answer with the gold one: math-verify's own for one comparison.
MATH_TIMEOUT_S = 5.0


class MathVerifier:
    """`math`: compares mathematics by math-verify, in a process of its own.

    An expression such as 9^9^9^9 takes forever, and a thread can't be interrupted.
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
            comparison = self._worker.call([gold, completion], MATH_TIMEOUT_S)
        except TimeoutError:
            raise TasksetError(f"math-verify took longer than {MATH_TIMEOUT_S:g} s") from None
        except WorkerDied as problem:
            raise TasksetError(f"math-verify failed: {problem}") from None
        if "error" in comparison:
            raise TasksetError(f"math-verify failed: {comparison['error']}")
        return float(comparison["equal"])


# At most one verifier per process: all tasksets share it, and its worker ends with the last of
# them.
_SHARED_VERIFIER: "WeakValueDictionary[str, MathVerifier]" = WeakValueDictionary()


def math_verifier() -> MathVerifier:
    """Return the verifier of this process."""
    verifier = _SHARED_VERIFIER.get("math")
    if verifier is None:
        verifier = MathVerifier()
        _SHARED_VERIFIER["math"] = verifier
    return verifier


class Grader:
    """Sends answers to the judge: each message once, a few at a time."""

    def __init__(self, judge: Judge) -> None:
        self._judge = judge
        self._grade_by_message = dict[str, float]()
        self._threads = Threads(judge.at_once, "judge")

    async def __call__(self, completion: str, task: Task) -> float:
        values = {
            "prompt": task.messages[-1].content,
            "answer": task.answer,
            "completion": completion,
        }
        message = fill(self._judge.prompt, values)
        return await self._threads.do(partial(self._grade, message))

    def _grade(self, message: str) -> float:
        if message not in self._grade_by_message:
            self._grade_by_message[message] = self._request_grade(message)
        return self._grade_by_message[message]

    def _request_grade(self, message: str) -> float:
        judge = self._judge
        body = {
            "model": judge.model,
            "temperature": 0,
            "messages": [{"role": "user", "content": message}],
        }
        headers = {"Content-Type": "application/json"}
        if key := os.environ.get(judge.key):
            headers["Authorization"] = f"Bearer {key}"
        url = judge.url.rstrip("/") + "/chat/completions"
        request = urllib.request.Request(url, json.dumps(body).encode(), headers)
        try:
            with urllib.request.urlopen(request, timeout=judge.timeout) as response:
                reply = str(json.load(response)["choices"][0]["message"]["content"])
        except (OSError, ValueError, LookupError, TypeError) as error:
            raise TasksetError(f"the judge at {url} gave no grade: {error}") from None
        grades = re.findall(r"\b(yes|no|[01](?:\.\d+)?)\b", reply.lower())
        if not grades:
            raise TasksetError(
                f"the judge replied {reply[:QUOTED_CHARACTERS]!r}: neither yes, no, nor a number"
                " from 0 to 1"
            )
        # The last one: a judge may reason before it decides.
        grade_text = grades[-1]
        if grade_text in ("yes", "no"):
            return float(grade_text == "yes")
        return min(1.0, float(grade_text))


TEXT_REWARDS: dict[str, Callable[[str, Task, RewardOptions], float]] = {
    "exact": exact,
    "contains": contains,
    "number": number,
    "regex": regex,
    "json-schema": json_schema,
}
# Arithmetic's rules, for short answers at the start of a completion; between -1 and 1.
ARITHMETIC_RULES = {"start": "exact", "partial": "partial", "rich": "rich"}
NAMES_WITHOUT_SERVER = (*TEXT_REWARDS, "math")
READY_NAMES = (*NAMES_WITHOUT_SERVER, "judge", *ARITHMETIC_RULES)
NAMES_WITHOUT_ANSWER = ("json-schema", "judge")


# From names to the terms of a reward


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
        if is_ready:
            bounds = (-1.0, 1.0) if name in ARITHMETIC_RULES else (0.0, 1.0)
            score = _ready_score(name, options)
            uses_answer = name not in NAMES_WITHOUT_ANSWER
        else:
            bounds = options.bounds[i] if options.bounds else UNKNOWN_BOUNDS
            score, uses_answer = _wrap(load_function(name), name, columns, columns_of)
        term_name = name.rpartition(":")[2]
        if term_name in [term.name for term in terms]:
            term_name = f"{term_name}-{i + 1}"
        weight = options.weights[i] if options.weights else 1.0
        terms.append(RewardTerm(term_name, weight, bounds, score, is_ready, uses_answer))
    return terms


def _ready_score(name: str, options: RewardOptions) -> Callable[[str, Task], Awaitable[float]]:
    if name == "judge":
        return Grader(options.judge)
    if name == "math":
        return math_verifier()

    async def score(completion: str, task: Task) -> float:
        if name in ARITHMETIC_RULES:
            return grade(ARITHMETIC_RULES[name], completion, task).total  # type: ignore[arg-type]
        return TEXT_REWARDS[name](completion, task, options)

    return score


@contextmanager
def register_functions(functions: Mapping[str, Function]) -> Iterator[None]:
    """Let `load_function` return these functions by name inside the context: they need not be
    importable.
    """
    token = _registered.set({**_registered.get(), **functions})
    try:
        yield
    finally:
        _registered.reset(token)


def import_name(function: Function) -> str:
    """Return `module:name` of a function, as a recipe would write it."""
    inner = function.func if isinstance(function, functools.partial) else function
    module = getattr(inner, "__module__", "__main__")
    qualified_name = getattr(inner, "__qualname__", type(inner).__qualname__)
    return f"{module}:{qualified_name.rpartition('.<locals>.')[2]}"


def load_function(name: str) -> Function:
    """Return the function that `module:function` or `file.py:function` names; a registered one of
    that name comes first.
    """
    if name in _registered.get():
        return _registered.get()[name]
    source, _, attribute = name.rpartition(":")
    if not source:
        hint = nearest(name, READY_NAMES)
        if not hint:
            hint = f" There are {', '.join(READY_NAMES)}; yours is written module:function."
        raise TasksetError(f"There is no reward {name!r}.{hint}")
    try:
        module: Any = _load_file(Path(source)) if source.endswith(".py") else _import(source)
    except Exception as error:  # user code fails in any way
        raise TasksetError(
            f"The reward {name} can't be loaded: {type(error).__name__}: {error}."
        ) from error
    function = getattr(module, attribute, None)
    if callable(function):
        return function  # type: ignore[no-any-return]
    if source == "__main__":
        raise TasksetError(
            f"The reward {attribute} was a function of a script or notebook, which is not here. Put"
            " it into a file and name it file.py:function, or pass the function to uptrend.train"
            " or uptrend.resume."
        )
    function_names = [
        key
        for key, value in vars(module).items()
        if inspect.isfunction(value) and not key.startswith("_")
    ]
    raise TasksetError(f"{source} has no function {attribute}.{nearest(attribute, function_names)}")


def _import(module: str) -> Any:
    # A user's own module is in the folder where the command is run.
    if str(Path.cwd()) not in sys.path:
        sys.path.append(str(Path.cwd()))
    return importlib.import_module(module)


def _load_file(path: Path) -> Any:
    if not path.exists():
        raise FileNotFoundError(f"there is no file {path}")
    name = f"uptrend_rewards_{abs(hash(path.resolve()))}"
    if name in sys.modules:
        return sys.modules[name]
    folder = str(path.resolve().parent)
    if folder not in sys.path:  # it may import its neighbors
        sys.path.append(folder)
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


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


def _wrap(
    function: Function, name: str, columns: Sequence[str], columns_of: ColumnsOf
) -> tuple[Score, bool]:
    """Wrap a function of either signature; also return True where it can see the answer."""
    signature = _read_signature(function)
    _check_required(signature, name, columns)
    is_async = inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(
        type(function).__call__
    )

    async def score(completion: str, task: Task) -> float | Mapping[str, float] | None:
        row, answer = columns_of(task)
        prompt = row.get("prompt")
        if not isinstance(prompt, list):
            prompt = task.messages[-1].content
        if signature.is_batched:
            values = _batch_of_one(row, answer, prompt, completion, signature)
        else:
            values = {**row, "prompt": prompt, "completion": completion}
            if "answer" in row or answer is not None:
                values["answer"] = answer

        arguments: dict[str, Any] = {}
        for key, value in values.items():
            if signature.takes_all or key in signature.names:
                # A copy each time, as datasets give one: a function may pop from a list.
                arguments[key] = value if key in TRL_COLUMNS else copy.deepcopy(value)
        if is_async:
            returned = await function(**arguments)
        else:
            returned = await in_callers_turn(partial(function, **arguments))
        if signature.is_batched:
            if len(returned) != 1:
                raise TasksetError(f"{name} returned {len(returned)} rewards for 1 completion")
            returned = returned[0]
        return _to_numbers(returned, name)

    own_texts = {"prompt", "prompts", "completion", "completions", *TRL_COLUMNS}
    sees_answer = signature.takes_all or bool(signature.names - own_texts)
    return score, sees_answer


def _batch_of_one(
    row: Mapping[str, Any], answer: Any, prompt: Any, completion: str, signature: _Signature
) -> dict[str, Any]:
    """Return what TRL would pass for one completion: columns as they are, and conversations as
    conversations.
    """
    columns = {key: value for key, value in row.items() if key not in ("prompt", "completion")}
    if "answer" in signature.names:
        columns.setdefault("answer", answer)
    values: dict[str, Any] = {key: [value] for key, value in columns.items()}
    is_conversation = isinstance(prompt, list)
    reply = [{"role": "assistant", "content": completion}] if is_conversation else completion
    values["prompts"] = [prompt]
    values["completions"] = [reply]
    return values | TRL_COLUMNS


def _to_numbers(returned: Any, name: str) -> float | dict[str, float] | None:
    """Return a function's reward as plain numbers; None and NaN mean that it can't tell."""
    if isinstance(returned, Mapping):
        parts: dict[str, float] = {}
        for key, part in returned.items():
            number = _to_numbers(part, name)
            if isinstance(number, float):
                parts[str(key)] = number
        return parts or None
    if returned is None:
        return None
    try:
        value = float(returned)
    except (TypeError, ValueError):
        raise TasksetError(
            f"{name} returned {returned!r}: it should be a number, a dict of numbers, or None"
        ) from None
    return None if math.isnan(value) else value


async def score(
    terms: Sequence[RewardTerm], options: RewardOptions, completion: str, task: Task
) -> Reward:
    """Return the weighted sum of all rewards that can tell, with their parts; raise Undecided if
    none can.
    """
    parts: list[Part] = []
    # By reward that can tell: weighted value, weighted bounds, and True at its upper bound.
    totals: list[float] = []
    lows: list[float] = []
    highs: list[float] = []
    at_maximum: list[bool] = []
    correct_parts: list[bool] = []  # verdicts of parts that are named `correct`
    for term in terms:
        value = await term.score(completion, task)
        if value is None:
            continue
        low, high = term.bounds
        earned = sum(value.values()) if isinstance(value, Mapping) else value
        if earned < low - BOUND_TOLERANCE or earned > high + BOUND_TOLERANCE:
            raise RewardOutOfBounds(term.name, earned, low, high)
        if isinstance(value, Mapping):
            prefix = f"{term.name}-" if len(terms) > 1 else ""
            for key, part_value in value.items():
                parts.append(Part(prefix + key, part_value, *UNKNOWN_BOUNDS, term.weight))
            if "correct" in value:
                correct_parts.append(value["correct"] > 0)
        else:
            parts.append(Part(term.name, earned, low, high, term.weight))
        # As a rule a reward of unknown bounds pays 1 for a right answer.
        maximum = 1.0 if math.isnan(high) else high
        at_maximum.append(earned >= maximum - MAXIMUM_TOLERANCE)
        totals.append(term.weight * earned)
        # A negative weight swaps the bounds.
        lowest, highest = sorted((term.weight * low, term.weight * high))
        lows.append(lowest)
        highs.append(highest)
    if not totals:
        raise Undecided("no reward function could tell")
    total = sum(totals)
    if options.correct_from is not None:
        is_correct = total >= options.correct_from
    else:
        is_correct = correct_parts[0] if correct_parts else at_maximum[0]
    return Reward(total, sum(lows), sum(highs), is_correct, tuple(parts))


# Texts with columns in them

_COLUMN_PATTERN = re.compile(r"\{\{|\}\}|\{(\w+)\}")
BRACES = {"{{": "{", "}}": "}"}


def fill(template: str, row: Mapping[str, Any]) -> str:
    """Return a template with `{column}` replaced by its value; `{{` and `}}` are braces.

    A column that the row lacks raises KeyError.
    """

    def replace_match(match: re.Match[str]) -> str:
        column = match[1]
        return BRACES[match[0]] if column is None else str(row[column])

    return _COLUMN_PATTERN.sub(replace_match, template)
