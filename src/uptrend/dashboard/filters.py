"""Choice of runs by words and conditions on columns and config keys, their order, and what is wrong
with a filter.
"""

import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from uptrend.config.load import nearest
from uptrend.records import UptrendError

Row = dict[str, Any]
CONDITION = re.compile(r"([\w./@-]+)(>=|<=|!=|=|>|<|~)(.*)")
SIGNS = re.compile(r"\s*(>=|<=|!=|=|>|<|~)\s*")
# Columns of the table; `before`, `after` and the severities are read out of others.
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


class BadRequest(UptrendError):  # noqa: N818 (HTTP's word)
    """A question with a wrong parameter; the message says which, and what would be right."""


def choose(rows: Sequence[Row], text: str = "", sort: str = "-updated") -> list[Row]:
    """Return the rows that meet every word of a filter, in an order; BadRequest for a key that no
    run has.

    `learning.lr>1e-5 status=running tiny` has two conditions on columns or config keys and a word
    that has to occur in the name, path, model, task, trainer, status or first finding. `-` before
    the key to sort by puts the largest first.
    """
    keys = {*COLUMNS, *(key for row in rows for key in row.get("config", ()))}
    for word in re.findall(r'"[^"]*"|\S+', SIGNS.sub(r"\1", text)):
        plain = word.strip('"')
        match = CONDITION.fullmatch(plain)
        if match and not word.startswith('"'):
            key, sign, value = match.groups()
            key = known_key(key, keys)
            _check_value(key, sign, value, rows)
            rows = [row for row in rows if _meets(value_of(row, key), sign, value)]
        elif plain in ("OR", "AND", "NOT", "||", "&&"):
            raise BadRequest(
                f"There is no {plain} in a filter: all of its words and conditions have to hold."
            )
        else:
            rows = [row for row in rows if plain.lower() in _words(row)]
    key = known_key(sort.removeprefix("-"), keys)
    falls = sort.startswith("-")
    keyed = [(value_of(row, key), row) for row in rows]
    lacking = [row for value, row in keyed if value is None]
    numbers = sorted((p for p in keyed if _is_number(p[0])), key=lambda p: p[0], reverse=falls)
    texts = [p for p in keyed if p[0] is not None and not _is_number(p[0])]
    texts.sort(key=lambda p: str(p[0]).lower(), reverse=falls)
    return [row for _, row in (*numbers, *texts)] + lacking


def known_key(key: str, keys: Collection[str]) -> str:
    """Return a key as it is spelled; BadRequest where no run has it. Before the first run any
    dotted key may come.
    """
    found = next((known for known in keys if known.lower() == key.lower()), None)
    if found is None and ("." not in key or not set(COLUMNS).issuperset(keys)):
        ends = sorted(known for known in keys if known.endswith(f".{key.lower()}"))
        hint = f" Did you mean {ends[0]}?" if ends else nearest(key, keys)
        columns = (
            f"The columns are {', '.join(COLUMNS)}; config keys have dots, such as learning.lr."
        )
        raise BadRequest(f"No run has a column or config key {key[:80]}.{hint} {columns}")
    return found or key


def _check_value(key: str, sign: str, value: str, rows: Sequence[Row]) -> None:
    if not value:
        raise BadRequest(f"{key}{sign} needs a value, such as {key}{sign}1.")
    if sign not in (">", ">=", "<", "<="):
        return
    known = [found for row in rows if (found := value_of(row, key)) is not None]
    if _number(value) is None or (known and not any(map(_is_number, known))):
        raise BadRequest(
            f"{key}{sign}{value[:80]}: {value[:80] if _number(value) is None else key} is no"
            " number."
        )


def _number(text: str) -> float | None:
    """Return a number as people write it: 1e-5, or 50% for 0.5."""
    try:
        return float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        return None


def value_of(row: Mapping[str, Any], key: str) -> Any:
    """Return a row's value by the name of a column or of a config key."""
    if key in ("before", "after"):
        held = row.get(key) or {}
        return held.get("accuracy") if held.get("accuracy") is not None else held.get("reward")
    if key in ("critical", "warning", "note"):
        return (row.get("findings") or {}).get(key)
    if key == "findings":
        counts = row.get("findings")
        return counts and counts["critical"] * 1_000_000 + counts["warning"] * 1000 + counts["note"]
    found = row.get(key)
    return row.get("config", {}).get(key) if found is None else found


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float)


def _words(row: Mapping[str, Any]) -> str:
    keys = (
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
    return " ".join(str(row.get(key) or "") for key in keys).lower()


def _meets(value: Any, sign: str, wanted: str) -> bool:
    if sign == "~":
        return wanted.lower() in str(value).lower()
    if isinstance(value, bool) or not _is_number(value):
        same = str(value).lower() == wanted.lower()
        return same if sign == "=" else not same if sign == "!=" else False
    number = _number(wanted)
    if number is None:
        return sign == "!="
    value = float(value)
    close = abs(value - number) <= 1e-9 * max(abs(value), abs(number))
    answers: dict[str, bool] = {
        "=": close,
        "!=": not close,
        ">": value > number and not close,
        "<": value < number and not close,
        ">=": value >= number or close,
        "<=": value <= number or close,
    }
    return answers[sign]
