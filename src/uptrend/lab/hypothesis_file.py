"""A hypothesis as a Markdown file: TOML front matter between two `+++` lines, then sections that
people write.

Writing changes one value on one line, or the block between two marks, `<!-- uptrend:results -->`
and `<!-- /uptrend:results -->`. Everything else stays byte for byte, so texts are read as bytes
(line ends as they are) and lines end at "\\n" only.
"""

import re
import tomllib
import typing
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Any

from uptrend.config.load import convert, unknown
from uptrend.config.tables import flatten, to_toml
from uptrend.lab import lab_error, templates, texts
from uptrend.records import Arm, Confidence, ConfigError, Hypothesis, LabError, RecordError
from uptrend.records.files import parse_toml, read_file
from uptrend.records.renamed import current

FENCE = "+++"
# Any block that the machine writes within people's text: its name, and its content.
BLOCK = re.compile(
    r"^<!-- uptrend:(.+?) -->[ \t\r]*\n(.*?)^<!-- /uptrend:\1 -->[ \t\r]*$",
    re.MULTILINE | re.DOTALL,
)
# Name of a file without its ending: the id, then a few words.
NAME = re.compile(r"(h\d{2,})-[\w-]+")
# Headings of the prose, in their order.
SECTIONS = (
    "Description",
    "Why it explains the behavior",
    "Validation method",
    "Invalidation criteria",
    "Results",
)
# Text to write for each key, in the file's order.
COMMENTS = texts("keys")


@dataclass(frozen=True)
class Page:
    """A Markdown file in its two parts; head (with both its fences) and body joined are the
    file.
    """

    path: Path
    head: str
    body: str

    @property
    def inner(self) -> str:
        """The TOML between the fences."""
        return "".join(_lines(self.head)[1:-1])

    @property
    def table(self) -> dict[str, Any]:
        """The front matter's values."""
        try:
            return parse_toml(self.inner)
        except tomllib.TOMLDecodeError as error:
            # The reader counts lines from the TOML's first; in the file the fence stands above it.
            said = re.sub(
                r"at line (\d+)", lambda match: f"at line {int(match[1]) + 1}", str(error)
            )
            raise LabError(f"{self.path}: the front matter is not TOML: {said}.") from None

    def at(self, key: str) -> str:
        """Return the file and the line on which a top-level key, or an arm by its dotted name, is
        set.
        """
        first, _, arm = key.partition(".")
        setting = rf"\s*[\"']?{re.escape(first)}[\"']?\s*="
        table = rf"\s*\[\s*{re.escape(first)}\s*\.\s*[\"']?{re.escape(arm)}\b" if arm else r"(?!)"
        for number, line in enumerate(_lines(self.head), start=1):
            if re.match(table, line) or re.match(setting, line):
                return f"{self.path}:{number}"
        return str(self.path)


def read_page(path: Path) -> Page:
    """Read a file's two parts; an error says where a fence is missing."""
    try:
        text = read_file(path).decode("utf-8")
    except FileNotFoundError:
        raise LabError(f"There is no file {path}.") from None
    except UnicodeDecodeError as error:
        raise LabError(f"{path} is not UTF-8 at byte {error.start}: save it as UTF-8.") from None
    except OSError as error:
        raise LabError(f"{path} could not be read: {error.strerror}.") from None
    except RecordError as error:  # a folder or a pipe, or too large
        raise LabError(str(error)) from None
    lines = _lines(text)
    if not lines or lines[0].removeprefix("\ufeff").rstrip() != FENCE:
        raise LabError(
            f"{path}:1: a hypothesis begins with a line {FENCE}, then TOML, then {FENCE} again."
        )
    for number, line in enumerate(lines[1:], start=1):
        if line.rstrip() == FENCE:
            head = "".join(lines[: number + 1])
            return Page(path, head, text[len(head) :])
    raise LabError(
        f"{path}: the front matter is not closed. Write a line {FENCE} between the TOML and the"
        " prose."
    )


def set_values(page: Page, values: Mapping[str, str]) -> Page:
    """Return the page with these top-level texts; comments, order and every other byte stay."""
    import tomlkit

    opening, *_, closing = _lines(page.head)
    document = tomlkit.parse(page.inner)
    for key, value in values.items():
        if key not in document:
            # with this file's line end
            opening += f"{key} = {to_toml(value)}" + opening[len(opening.rstrip()) :]
        elif document[key] != value:
            document[key] = str(value)
    return replace(page, head=opening + tomlkit.dumps(document) + closing)


def read(path: Path) -> Hypothesis:
    """Read a hypothesis; an error names the file, the line and the key."""
    match = NAME.fullmatch(path.stem)
    if match is None:
        raise LabError(
            f"{path.name} should be called hNN-a-few-words.md, for example"
            " h01-kl-penalty-required.md."
        )
    page = read_page(path)
    table = page.table
    arms = _arms(page, table.pop("arms", {}))
    values = {"recipe": "", **{key: _value(page, key, value) for key, value in table.items()}}
    if not values.get("title", "").strip():
        raise LabError(f"{page.at('title')}: title is missing. Write {COMMENTS['title']}.")
    # A file that was written before a rename still says the same.
    values |= {key: current(values[key]) for key in ("metric", "cause") if key in values}
    values["allows"] = tuple(current(id) for id in values.get("allows", ()))
    return Hypothesis(id=match[1], arms=arms, **values)


def _value(page: Page, key: str, value: Any) -> Any:
    if key not in COMMENTS:
        raise LabError(
            f"{page.at(key)}: {unknown(key, key, [*COMMENTS, 'arms'], 'The front matter')}"
        )
    if key == "confidence" and not value:
        return None
    kind = Confidence if key == "confidence" else typing.get_type_hints(Hypothesis)[key]
    is_choice = isinstance(kind, type) and issubclass(kind, StrEnum)
    try:
        if is_choice:
            return kind(convert(typing.Literal[tuple(str(choice) for choice in kind)], value, key))
        return convert(kind, value, key)
    except ConfigError as error:
        hint = "" if is_choice else f" Write {COMMENTS[key]}."
        raise LabError(f"{page.at(key)}: {error}{hint}") from None


def _arms(page: Page, tables: Any) -> tuple[Arm, ...]:
    if not isinstance(tables, Mapping) or not all(
        isinstance(table, Mapping) for table in tables.values()
    ):
        raise LabError(
            f"{page.at('arms')}: write each arm as a table [arms.NAME] with the config values it"
            " changes."
        )
    arms = list[Arm]()
    for name, table in tables.items():
        is_control = table.get("control", False)
        if not isinstance(is_control, bool):
            where = page.at(f"arms.{name}")
            raise LabError(
                f"{where}: control = {is_control!r} in arm {name} should be true or false."
            )
        overrides = flatten({key: value for key, value in table.items() if key != "control"})
        arms.append(
            Arm(name, {current(key): value for key, value in overrides.items()}, is_control)
        )
    return tuple(arms)


def render(hypothesis: Hypothesis, prose: Mapping[str, str]) -> str:
    """Return a new file's text: every key with a comment that says what to write, then the
    sections.
    """
    values = {key: getattr(hypothesis, key) for key in COMMENTS} | {
        "confidence": hypothesis.confidence or ""
    }
    values["source"] = None if hypothesis.source is None else asdict(hypothesis.source)
    sections = {name: prose.get(name, "").strip("\n") for name in (*SECTIONS, *prose)}
    page = (
        templates()
        .get_template("hypothesis.jinja")
        .render(hypothesis=hypothesis, comments=COMMENTS, values=values, prose=sections)
    )
    return page.rstrip("\n") + "\n"


def sections(body: str) -> dict[str, str]:
    """Return the prose under each `##` heading; the title before the first is left out."""
    _, *parts = re.split(r"^## (.+?)[ \t\r]*$\n?", body, flags=re.MULTILINE)
    return {name: text.strip("\n") for name, text in zip(parts[::2], parts[1::2], strict=True)}


def put_block(text: str, name: str, content: str, after: str = "") -> str:
    """Return a text with a block's content replaced; a new block goes under the heading `after`, or
    to the end.
    """
    end = "\r\n" if "\r\n" in text or text.endswith("\r") else "\n"
    lines = content.strip("\r\n").replace("\r\n", "\n").split("\n")
    # A content that quotes a mark must not end its own block.
    inner = end.join(re.sub(r"^<!--(?= /?uptrend:)", "&lt;!--", line) for line in lines)
    block = f"<!-- uptrend:{name} -->{end}{inner}{end}<!-- /uptrend:{name} -->"
    if marks := _marks(text, name):
        return text[: marks[0].start()] + block + text[marks[1].end() :]
    heading = re.search(rf"^{re.escape(after)}[ \t\r]*$\n?", text, re.MULTILINE) if after else None
    if heading is None:
        before = text if not text or text.endswith("\n") else text + end
        gap = end if before.strip() else ""
        line = f"{after}{end}{end}" if after else ""
        return f"{before}{gap}{line}{block}{end}"
    before = text[: heading.end()]
    rest = text[heading.end() :]
    before += "" if before.endswith("\n") else end
    return f"{before}{end}{block}{end}{rest if not rest or rest.startswith(end) else end + rest}"


def get_block(text: str, name: str) -> str | None:
    """Return a block's content; None where there is no such block."""
    marks = _marks(text, name)
    return text[marks[0].end() : marks[1].start()].strip("\r\n") if marks else None


def _marks(text: str, name: str) -> tuple[re.Match[str], re.Match[str]] | None:
    both = f"<!-- uptrend:{name} -->", f"<!-- /uptrend:{name} -->"
    starts, ends = (
        [*re.finditer(rf"^{re.escape(mark)}(?=[ \t\r]*$)", text, re.MULTILINE)] for mark in both
    )
    if not starts and not ends:
        return None
    if len(starts) != 1 or len(ends) != 1 or ends[0].start() < starts[0].start():
        raise lab_error("block-marks", name=name, both=both)
    return starts[0], ends[0]


def prerequisites_first(hypotheses: Sequence[Hypothesis]) -> list[Hypothesis]:
    """Return hypotheses with those first that others among them wait for; otherwise as given."""
    left = list(hypotheses)
    done = list[Hypothesis]()
    while left:
        waiting = {hypothesis.id for hypothesis in left}
        # Where all wait for each other, the first goes first: `refuse` names the circle.
        done.append(
            next(
                (hypothesis for hypothesis in left if not waiting & set(hypothesis.prerequisites)),
                left[0],
            )
        )
        left.remove(done[-1])
    return done


def _lines(text: str) -> list[str]:
    # Lines with their ends; only "\n" ends one, as in TOML.
    return re.findall(r"[^\n]*\n|[^\n]+$", text)
