"""What a reader of one format hands on: rows as the trainer wrote them, before anything is made of them."""

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

Row = dict[str, Any]


@dataclass
class Log:
    """One log, read but not yet understood."""

    rows: list[Row]
    """A dictionary a logged point, in the order of the file, under the trainer's own names."""
    name: str = ""
    """The run's name, where the format has one."""
    trainer: str = ""
    """Who wrote it, where the format tells; else it is found from the names."""
    facts: dict[str, Any] = field(default_factory=dict)
    """Settings that the log mentions, under the trainer's own names, nested as found."""
    last_step: int = 0
    """How far a progress bar came; 0 where there is none. Rows without a step are spread over it."""
    notes: list[str] = field(default_factory=list)
    """What the reader had to do, in sentences."""
    runs: int = 1
    """Number of runs that it holds one after the other."""


def number(value: Any) -> float | None:
    """A value as a number: numerals in strings and percentages too, None where it is none."""
    if isinstance(value, int | float):
        return float(value)
    if not isinstance(value, str):
        return None
    text = value.strip()
    try:
        return float(text[:-1]) / 100 if text.endswith("%") else float(text)
    except ValueError:
        return None


def is_finite(value: Any) -> bool:
    """Whether a value is a finite number."""
    found = number(value)
    return found is not None and math.isfinite(found)


def flatten(table: Mapping[str, Any], joint: str = "/", depth: int = 4) -> Row:
    """A nested table as one level, names joined; lists stay as they are."""
    return dict(_leaves(table, "", joint, depth))


def _leaves(table: Mapping[str, Any], head: str, joint: str, depth: int) -> Iterator[tuple[str, Any]]:
    for key, value in table.items():
        if isinstance(value, Mapping) and depth:
            yield from _leaves(value, f"{head}{key}{joint}", joint, depth - 1)
        else:
            yield f"{head}{key}", value


def columns_in(rows: Iterable[Row]) -> list[str]:
    """Every column that any row has, in the order in which they first appear."""
    seen: dict[str, None] = {}
    for row in rows:
        if not row.keys() <= seen.keys():
            seen.update(dict.fromkeys(row))
    return list(seen)
