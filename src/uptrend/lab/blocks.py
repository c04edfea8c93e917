"""The parts of a Markdown file that the machine writes: between two marks, and nothing outside them.

<!-- uptrend:results -->
…
<!-- /uptrend:results -->
"""

import re

from uptrend.records import LabError


def put(text: str, name: str, content: str, after: str = "") -> str:
    """The text with a block's content replaced; a new block goes under the heading `after`, or to the end."""
    end = "\r\n" if "\r\n" in text or text.endswith("\r") else "\n"
    block = f"{opening(name)}{end}{_harmless(content, end)}{end}{closing(name)}"
    span = _span(text, name)
    if span:
        return text[: span[0]] + block + text[span[1] :]
    heading = re.search(rf"^{re.escape(after)}[ \t\r]*$\n?", text, re.MULTILINE) if after else None
    if heading is None:
        before = text if not text or text.endswith("\n") else text + end
        return f"{before}{end if before.strip() else ''}{f'{after}{end}{end}' if after else ''}{block}{end}"
    before, rest = text[: heading.end()], text[heading.end() :]
    before += "" if before.endswith("\n") else end
    return f"{before}{end}{block}{end}{rest if not rest or rest.startswith(end) else end + rest}"


def get(text: str, name: str) -> str | None:
    """A block's content, or None where there is no such block."""
    span = _span(text, name)
    if span is None:
        return None
    inner = text[span[0] + len(opening(name)) : span[1] - len(closing(name))]
    return inner.strip("\r\n")


def names(text: str, prefix: str = "") -> list[str]:
    """The names of the blocks in a text, in their order."""
    found = re.findall(r"^<!-- uptrend:(.+?) -->[ \t\r]*$", text, re.MULTILINE)
    return [name for name in found if name.startswith(prefix)]


def opening(name: str) -> str:
    """The mark before a block."""
    return f"<!-- uptrend:{name} -->"


def closing(name: str) -> str:
    """The mark after it."""
    return f"<!-- /uptrend:{name} -->"


def _span(text: str, name: str) -> tuple[int, int] | None:
    """Where a block begins and ends, its marks included."""
    starts, ends = _marks(text, opening(name)), _marks(text, closing(name))
    if not starts and not ends:
        return None
    if len(starts) != 1 or len(ends) != 1 or ends[0] < starts[0]:
        raise LabError(
            f"The marks of the block {name} are not a pair: write {opening(name)} once, and {closing(name)} once "
            "below it, each on a line of its own."
        )
    return starts[0], ends[0] + len(closing(name))


def _marks(text: str, mark: str) -> list[int]:
    return [match.start() for match in re.finditer(rf"^{re.escape(mark)}(?=[ \t\r]*$)", text, re.MULTILINE)]


def _harmless(content: str, end: str) -> str:
    """A content in the file's line ends that can't be taken for a mark."""
    lines = content.strip("\r\n").replace("\r\n", "\n").split("\n")
    return end.join(re.sub(r"^<!--(?= /?uptrend:)", "&lt;!--", line) for line in lines)
