"""The TOML between two `+++` lines at the head of a Markdown file; what follows is prose.

Writing changes as little as there is to change: one value on one line. Everything else stays byte for byte, so texts
are read as bytes (line ends as they are) and lines end at "\\n" only.
"""

import re
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from uptrend.config.tables import to_toml
from uptrend.records import LabError

FENCE = "+++"


@dataclass(frozen=True)
class Page:
    """A Markdown file in its two parts; head and body joined are the file."""

    path: Path
    """Where it is, for errors."""
    head: str
    """The front matter with both its fences."""
    body: str
    """The prose."""

    @property
    def inner(self) -> str:
        """The TOML between the fences."""
        lines = _lines(self.head)
        return "".join(lines[1:-1])

    @property
    def table(self) -> dict[str, Any]:
        """The front matter's values."""
        try:
            return tomllib.loads(self.inner)
        except tomllib.TOMLDecodeError as error:
            raise LabError(f"{self.path}: the front matter is not TOML: {_in_file(str(error))}.") from None

    def line_of(self, key: str) -> int | None:
        """The line on which a top-level key, or an arm by its dotted name, is set."""
        first, _, rest = key.partition(".")
        table = rf"\[\s*{re.escape(first)}\s*\.\s*[\"']?{re.escape(rest.partition('.')[0])}\b" if rest else None
        for number, line in enumerate(_lines(self.head), start=1):
            if (table and re.match(rf"\s*{table}", line)) or _setting(first).match(line):
                return number
        return None

    def at(self, key: str) -> str:
        """File and line, as an error says them."""
        line = self.line_of(key)
        return f"{self.path}:{line}" if line else str(self.path)


def read_page(path: Path) -> Page:
    """A file's two parts."""
    try:
        text = path.read_bytes().decode("utf-8")
    except FileNotFoundError:
        raise LabError(f"There is no file {path}.") from None
    except UnicodeDecodeError as error:
        raise LabError(f"{path} is not UTF-8 at byte {error.start}: save it as UTF-8.") from None
    except OSError as error:
        raise LabError(f"{path} could not be read: {error.strerror}.") from None
    return split(text, path)


def split(text: str, path: Path) -> Page:
    """The two parts of a text; a missing fence is an error that says where to put it."""
    lines = _lines(text)
    if not lines or lines[0].removeprefix("\ufeff").rstrip() != FENCE:
        raise LabError(f"{path}:1: a hypothesis begins with a line {FENCE}, then TOML, then {FENCE} again.")
    for number, line in enumerate(lines[1:], start=1):
        if line.rstrip() == FENCE:
            head = "".join(lines[: number + 1])
            return Page(path, head, text[len(head) :])
    raise LabError(f"{path}: the front matter is not closed. Write a line {FENCE} between the TOML and the prose.")


def set_value(page: Page, key: str, value: str) -> Page:
    """One top-level text set to another; a line is added where it had none."""
    if page.table.get(key) == value:
        return page
    wanted = {**page.table, key: value}
    for changed in _candidates(page, key, value):
        if _reads(changed) == wanted:
            return changed
    raise LabError(f'{page.at(key)}: write {key} on a line of its own, as {key} = "{page.table.get(key, value)}".')


def _candidates(page: Page, key: str, value: str) -> list[Page]:
    """Every text in which a line that looks like the key's has the new value; a look-alike may stand in a text."""
    lines = _lines(page.head)
    found = list[Page]()
    for place, line in enumerate(lines[1:-1], start=1):
        match = _setting(key).match(line)
        if match:
            new = f"{match[1]}{to_toml(value)}{line[match.end() :]}"
            found.append(Page(page.path, "".join([*lines[:place], new, *lines[place + 1 :]]), page.body))
    if key not in page.table:
        end = "\r\n" if lines[0].endswith("\r\n") else "\n"
        new = f"{key} = {to_toml(value)}{end}"
        found.append(Page(page.path, "".join([lines[0], new, *lines[1:]]), page.body))
    return found


def _setting(key: str) -> re.Pattern[str]:
    """A line that sets a key; its text, where it is one on a single line, ends the match."""
    return re.compile(rf"(\s*[\"']?{re.escape(key)}[\"']?\s*=\s*)(?:\"[^\"\n]*\"|'[^'\n]*')?")


def _reads(page: Page) -> dict[str, Any] | None:
    try:
        return tomllib.loads(page.inner)
    except tomllib.TOMLDecodeError:
        return None


def _lines(text: str) -> list[str]:
    """Lines with their ends; only "\\n" ends one, as in TOML."""
    return re.findall(r"[^\n]*\n|[^\n]+$", text)


def _in_file(message: str) -> str:
    """What the TOML reader says, its line counted from the file's first, where the fence is."""
    return re.sub(r"at line (\d+)", lambda match: f"at line {int(match[1]) + 1}", message)
