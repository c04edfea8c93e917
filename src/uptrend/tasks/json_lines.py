"""Files of JSON lines: one object a line, and where each stands."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from uptrend.records import TasksetError


def read_json_lines(path: Path, example: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Every object of a file with its place, as file:line; blank lines are skipped. `example` shows what is right."""
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise TasksetError(f"The task file {path} can't be read: {reason}.") from None
    for number, line in enumerate(lines, 1):
        if line.strip():
            yield f"{path}:{number}", _object(line, f"{path}:{number}", example)


def _object(line: str, where: str, example: str) -> dict[str, Any]:
    try:
        row = json.loads(line)
    except ValueError as error:
        raise TasksetError(f"{where} is not JSON: {error}.") from None
    if not isinstance(row, dict):
        raise TasksetError(f"{where} should be an object, for example {example}.")
    return row
