"""A Markdown text as sections: each heading with the lines under it, and the headings that it stands under."""

import re
from dataclasses import dataclass

HEADING = re.compile(r"(#{1,6})\s+(.*?)\s*#*\s*$")
FENCE = re.compile(r"\s*(```|~~~)")


@dataclass(frozen=True)
class OutlineLine:
    """One line of a source."""

    number: int
    """Counted from 1."""
    text: str
    """Without its end."""
    in_code: bool
    """Whether it stands between two fences."""


@dataclass(frozen=True)
class Section:
    """A heading and what stands under it, up to the next heading of any level."""

    level: int
    """1 for #; 0 for what stands before the first heading."""
    title: str
    """The heading's text."""
    lines: tuple[OutlineLine, ...]
    """The heading itself first."""
    above: tuple[str, ...]
    """The titles that it stands under, the outermost first."""

    @property
    def body(self) -> tuple[OutlineLine, ...]:
        """The lines under the heading."""
        return self.lines[1:] if self.level else self.lines


def lines_of(text: str) -> list[OutlineLine]:
    """The lines of a text, those in code known as such: a # in a shell block is no heading."""
    found, fence = list[OutlineLine](), ""
    for number, line in enumerate(text.split("\n"), start=1):
        mark = FENCE.match(line)
        opens_or_closes = mark is not None and (not fence or mark[1] == fence)
        found.append(OutlineLine(number, line.rstrip("\r"), bool(fence) or opens_or_closes))
        if mark is not None and opens_or_closes:
            fence = "" if fence else mark[1]
    return found


def sections_of(text: str) -> list[Section]:
    """The sections of a text, in order."""
    starts = list[tuple[int, str, list[OutlineLine]]]()
    for line in lines_of(text):
        heading = None if line.in_code else HEADING.match(line.text)
        if heading is not None:
            starts.append((len(heading[1]), heading[2], [line]))
        elif starts:
            starts[-1][2].append(line)
        else:
            starts.append((0, "", [line]))
    found, above = list[Section](), list[tuple[int, str]]()
    for level, title, lines in starts:
        above = [(other, name) for other, name in above if other < level]
        found.append(Section(level, title, tuple(lines), tuple(name for _, name in above if name)))
        above.append((level, title))
    return found


def code_of(lines: tuple[OutlineLine, ...]) -> list[str]:
    """The fenced blocks among some lines, without their fences."""
    found, inside = list[str](), list[str]()
    for line in lines:
        if line.in_code and not FENCE.match(line.text):
            inside.append(line.text)
        elif inside:
            found.append("\n".join(inside))
            inside = []
    return [*found, "\n".join(inside)] if inside else found
