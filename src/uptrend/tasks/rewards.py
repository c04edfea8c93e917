"""Rewards of the `data` taskset: ready ones by name, functions of yours (`functions`), and their
weighted sum.
"""

import asyncio
import functools
import importlib.util
import json
import math
import os
import re
import urllib.request
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal

from uptrend.config.functions import Function, is_registered
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
from uptrend.records.worker_process import WorkerDied
from uptrend.tasks.answers import fold_word, grade
from uptrend.tasks.event_loop import Threads
from uptrend.tasks.functions import ColumnsOf, RewardFunction, Value, load_function, may_call
from uptrend.tasks.workers import shared_pool

UNKNOWN_BOUNDS = (math.nan, math.nan)
# Tolerances of rounding: of a comparison of numbers, of a sum of parts at its bounds, and of a
# reward that reaches its upper bound.
NUMBER_TOLERANCE = 1e-9
BOUND_TOLERANCE = 1e-6
MAXIMUM_TOLERANCE = 1e-9
# Characters of a judge's reply that an error quotes.
QUOTED_CHARACTERS = 80


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
    per: Literal["group", "step"] = "group"
    """Completions that a function of TRL's signature gets at once: those of a group, or all that
    are sampled for a step.
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
    """`math`: compares mathematics by math-verify, in worker processes.

    An expression such as 9^9^9^9 takes forever, and a thread can't be interrupted.
    """

    def __init__(self) -> None:
        if importlib.util.find_spec("math_verify") is None:
            raise MissingExtra("math-verify", "rewards")
        self._workers = shared_pool("uptrend.tasks.math_worker")

    async def __call__(self, completion: str, task: Task) -> float:
        try:
            comparison = await self._workers.call([task.answer, completion], MATH_TIMEOUT_S)
        except TimeoutError:
            raise TasksetError(f"math-verify took longer than {MATH_TIMEOUT_S:g} s") from None
        except WorkerDied as problem:
            raise TasksetError(f"math-verify failed: {problem}") from None
        if "error" in comparison:
            raise TasksetError(f"math-verify failed: {comparison['error']}")
        return float(comparison["equal"])


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


# Returns the value of each completion, or the error where it failed.
Score = Callable[[Sequence[str], Sequence[Task]], Awaitable[Sequence[Value | Exception]]]


@dataclass(frozen=True)
class RewardTerm:
    """One reward: its name, weight and bounds, and a function from completions to their values."""

    name: str
    weight: float
    bounds: tuple[float, float]
    score: Score
    is_ready: bool
    uses_answer: bool  # False where the answer can't matter
    is_batched: bool = False  # True for a function that compares completions
    is_remote: bool = False  # True for a function that `functions.remote` marks
    note: str = ""  # for the user
    # returns `file.py:line` of a user's function, see `functions.place_of`
    place: Callable[[Sequence[str]], str] = lambda _: ""

    @property
    def is_called(self) -> bool:
        """False for a function that costs money, inside `functions.without_remote`."""
        return may_call(is_remote=self.is_remote)


def make_terms(
    options: RewardOptions, columns: Sequence[str], columns_of: ColumnsOf
) -> list[RewardTerm]:
    """Return the rewards that options name; `columns` are those that a function may take."""
    terms: list[RewardTerm] = []
    for i, name in enumerate(options.reward):
        weight = options.weights[i] if options.weights else 1.0
        term_name = name.rpartition(":")[2]
        if term_name in [term.name for term in terms]:
            term_name = f"{term_name}-{i + 1}"
        if name in READY_NAMES:
            term = RewardTerm(
                term_name,
                weight,
                bounds=(-1.0, 1.0) if name in ARITHMETIC_RULES else (0.0, 1.0),
                score=_each(_ready_score(name, options)),
                is_ready=True,
                uses_answer=name not in NAMES_WITHOUT_ANSWER,
            )
        else:
            function = RewardFunction(name, columns, columns_of, _load(name))
            term = RewardTerm(
                term_name,
                weight,
                bounds=options.bounds[i] if options.bounds else UNKNOWN_BOUNDS,
                score=function.score,
                is_ready=False,
                uses_answer=function.sees_answer,
                is_batched=function.is_batched,
                is_remote=function.is_remote,
                note=_note_on_place(function),
                place=function.place,
            )
        terms.append(term)
    return terms


def _load(name: str) -> Function:
    if ":" not in name and not is_registered(name):
        hint = nearest(name, READY_NAMES)
        if not hint:
            hint = f" There are {', '.join(READY_NAMES)}; yours is written module:function."
        raise TasksetError(f"There is no reward {name!r}.{hint}")
    return load_function(name)


def _note_on_place(function: RewardFunction) -> str:
    if function.is_importable or not function.is_sync:
        return ""
    name = function.name.rpartition(":")[2]
    return (
        f"the reward {name} is no function of a module, so if it takes time it runs in threads of"
        " this process, where it can't be stopped; put it into a file to run it in worker processes"
    )


def _ready_score(name: str, options: RewardOptions) -> Callable[[str, Task], Awaitable[float]]:
    if name == "judge":
        return Grader(options.judge)
    if name == "math":
        return MathVerifier()

    async def score(completion: str, task: Task) -> float:
        if name in ARITHMETIC_RULES:
            return grade(ARITHMETIC_RULES[name], completion, task).total  # type: ignore[arg-type]
        return TEXT_REWARDS[name](completion, task, options)

    return score


def _each(score_one: Callable[[str, Task], Awaitable[float]]) -> Score:
    """Return a score of several completions, each by itself."""

    async def settle(completion: str, task: Task) -> Value | Exception:
        try:
            return await score_one(completion, task)
        except Exception as error:
            return error

    async def score(
        completions: Sequence[str], tasks: Sequence[Task]
    ) -> Sequence[Value | Exception]:
        if len(completions) == 1:
            return [await settle(completions[0], tasks[0])]
        pairs = zip(completions, tasks, strict=True)
        return await asyncio.gather(*(settle(completion, task) for completion, task in pairs))

    return score


async def score(
    terms: Sequence[RewardTerm],
    options: RewardOptions,
    completions: Sequence[str],
    tasks: Sequence[Task],
) -> list[Reward | Exception]:
    """Return the reward of each completion, or the error where it has none."""
    columns = [await term.score(completions, tasks) for term in terms]
    rewards: list[Reward | Exception] = []
    for values in zip(*columns, strict=True):
        try:
            rewards.append(_add_up(terms, options, values))
        except Exception as error:
            rewards.append(error)
    return rewards


def _add_up(
    terms: Sequence[RewardTerm], options: RewardOptions, values: Sequence[Value | Exception]
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
    for term, value in zip(terms, values, strict=True):
        if isinstance(value, Exception):
            raise value
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
