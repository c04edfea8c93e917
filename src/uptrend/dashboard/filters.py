"""Filters of runs: words and conditions on columns and config keys, sorting, and errors that say
what is wrong with a filter.
"""

import re
from collections.abc import Collection, Mapping, Sequence
from operator import itemgetter
from typing import Any

from uptrend.config.load import nearest
from uptrend.records import UptrendError

Row = dict[str, Any]
CONDITION_PATTERN = re.compile(r"([\w./@-]+)(>=|<=|!=|=|>|<|~)(.*)")
SPACED_SIGN_PATTERN = re.compile(r"\s*(>=|<=|!=|=|>|<|~)\s*")
WORD_PATTERN = re.compile(r'"[^"]*"|\S+')
LOGICAL_WORDS = ("OR", "AND", "NOT", "||", "&&")
# Columns of the table; `before`, `after` and the severities are computed from others.
COLUMNS = (
    "id",
    "name",
    "kind",
    "path",
    "trainer",
    "status",
    "step",
    "steps",
    "model",
    "taskset",
    "loss",
    "seed",
    "before",
    "after",
    "reward",
    "trend",
    "headline",
    "findings",
    "finding",
    "created",
    "updated",
    "seconds",
    "per_step",
    "critical",
    "warning",
    "note",
    "error",
)
# Columns in which a word of a filter may occur.
SEARCHED_COLUMNS = (
    "name",
    "id",
    "path",
    "model",
    "taskset",
    "trainer",
    "status",
    "trend",
    "headline",
    "finding",
    "error",
)
# Weights that sort by critical findings first, then by warnings; no run has 1000 of a severity.
CRITICAL_WEIGHT = 1_000_000
WARNING_WEIGHT = 1000
# Relative difference up to which numbers are equal, chosen by hand: rounding, as of 57% to 0.57, is
# smaller, and differences that people type are larger.
EQUAL_TOLERANCE = 1e-9
# Characters of a wrong key or value that an error quotes.
MAX_QUOTED = 80


class BadRequest(UptrendError):  # noqa: N818 (HTTP's word)
    """A request with a wrong parameter; the message says which, and what would be right."""


def choose(rows: Sequence[Row], text: str = "", sort: str = "-updated") -> list[Row]:
    """Return the rows that meet every word of a filter, sorted; BadRequest for a key that no run
    has.

    `learning.lr>1e-5 status=running tiny` has two conditions on columns or config keys and a word
    that has to occur in the name, path, model, task, trainer, status or first finding. `-` before
    the key to sort by puts the largest first.
    """
    keys = set(COLUMNS)
    for row in rows:
        keys.update(row.get("config", ()))
    # A condition may be written with spaces around its sign.
    text = SPACED_SIGN_PATTERN.sub(r"\1", text)
    for word in WORD_PATTERN.findall(text):
        unquoted = word.strip('"')
        condition = CONDITION_PATTERN.fullmatch(unquoted)
        if condition and not word.startswith('"'):
            key, sign, value = condition.groups()
            key = known_key(key, keys)
            _check_value(key, sign, value, rows)
            rows = [row for row in rows if _meets(value_of(row, key), sign, value)]
        elif unquoted in LOGICAL_WORDS:
            raise BadRequest(
                f"There is no {unquoted} in a filter: all of its words and conditions have to hold."
            )
        else:
            rows = [row for row in rows if unquoted.lower() in _searched_text(row)]
    key = known_key(sort.removeprefix("-"), keys)
    return _sorted(rows, key, descending=sort.startswith("-"))


def _sorted(rows: Sequence[Row], key: str, *, descending: bool) -> list[Row]:
    """Sort rows by a key: first numbers, then texts, and in either order last those without a
    value.
    """
    numbers: list[tuple[float, Row]] = []
    texts: list[tuple[str, Row]] = []
    without_value: list[Row] = []
    for row in rows:
        value = value_of(row, key)
        if value is None:
            without_value.append(row)
        elif _is_number(value):
            numbers.append((value, row))
        else:
            texts.append((str(value).lower(), row))
    numbers.sort(key=itemgetter(0), reverse=descending)
    texts.sort(key=itemgetter(0), reverse=descending)
    return [row for _, row in (*numbers, *texts)] + without_value


def known_key(key: str, keys: Collection[str]) -> str:
    """Return a key as it is spelled; BadRequest if no run has it.

    Before the first run any dotted key is accepted: a config may have it.
    """
    for known in keys:
        if known.lower() == key.lower():
            return known
    is_before_first_run = set(COLUMNS).issuperset(keys)
    if "." in key and is_before_first_run:
        return key

    same_ending = sorted(known for known in keys if known.endswith(f".{key.lower()}"))
    hint = f" Did you mean {same_ending[0]}?" if same_ending else nearest(key, keys)
    raise BadRequest(
        f"No run has a column or config key {key[:MAX_QUOTED]}.{hint}"
        f" The columns are {', '.join(COLUMNS)}; config keys have dots, such as learning.lr."
    )


def _check_value(key: str, sign: str, value: str, rows: Sequence[Row]) -> None:
    """Raise BadRequest if a condition has no value, or orders what is no number."""
    if not value:
        raise BadRequest(f"{key}{sign} needs a value, such as {key}{sign}1.")
    if sign not in (">", ">=", "<", "<="):
        return
    quoted = value[:MAX_QUOTED]
    if _number(value) is None:
        raise BadRequest(f"{key}{sign}{quoted}: {quoted} is no number.")
    all_values = [value_of(row, key) for row in rows]
    known_values = [known for known in all_values if known is not None]
    if known_values and not any(map(_is_number, known_values)):
        raise BadRequest(f"{key}{sign}{quoted}: {key} is no number.")


def _number(text: str) -> float | None:
    """Return a number as people write it: 1e-5, or 50% for 0.5."""
    divisor = 100 if text.endswith("%") else 1
    try:
        return float(text.removesuffix("%")) / divisor
    except ValueError:
        return None


def value_of(row: Mapping[str, Any], key: str) -> Any:
    """Return a row's value by the name of a column or of a config key."""
    if key in ("before", "after"):
        score = row.get(key) or {}
        accuracy = score.get("accuracy")
        return score.get("reward") if accuracy is None else accuracy
    counts = row.get("findings")
    if key in ("critical", "warning", "note"):
        return (counts or {}).get(key)
    if key == "findings":
        return counts and (
            counts["critical"] * CRITICAL_WEIGHT
            + counts["warning"] * WARNING_WEIGHT
            + counts["note"]
        )
    value = row.get(key)
    return row.get("config", {}).get(key) if value is None else value


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float)


def _searched_text(row: Mapping[str, Any]) -> str:
    return " ".join(str(row.get(key) or "") for key in SEARCHED_COLUMNS).lower()


def _meets(value: Any, sign: str, wanted: str) -> bool:
    """Return True if a row's value meets a condition; what is no number is equal to its text."""
    if sign == "~":
        return wanted.lower() in str(value).lower()
    if isinstance(value, bool) or not _is_number(value):
        is_same = str(value).lower() == wanted.lower()
        if sign == "=":
            return is_same
        return sign == "!=" and not is_same

    number = _number(wanted)
    if number is None:
        return sign == "!="
    value = float(value)
    is_equal = abs(value - number) <= EQUAL_TOLERANCE * max(abs(value), abs(number))
    is_met_by_sign: dict[str, bool] = {
        "=": is_equal,
        "!=": not is_equal,
        ">": value > number and not is_equal,
        "<": value < number and not is_equal,
        ">=": value >= number or is_equal,
        "<=": value <= number or is_equal,
    }
    return is_met_by_sign[sign]
