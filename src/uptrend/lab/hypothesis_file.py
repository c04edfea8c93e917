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

Match = re.Match[str]

FENCE_LINE = "+++"
# Any block that commands write within people's text: its name, and its content.
BLOCK_FORM = re.compile(
    r"^<!-- uptrend:(.+?) -->[ \t\r]*\n(.*?)^<!-- /uptrend:\1 -->[ \t\r]*$",
    re.MULTILINE | re.DOTALL,
)
# Name of a file without its ending: the id, then a few words.
FILE_NAME = re.compile(r"(h\d{2,})-[\w-]+")
# Headings of the prose, in their order.
SECTION_NAMES = (
    "Description",
    "Why it explains the behavior",
    "Validation method",
    "Invalidation criteria",
    "Results",
)
# What to write for each key, in the file's order.
KEY_COMMENTS = texts("keys")


@dataclass(frozen=True)
class Page:
    """A Markdown file in two parts: head (with both its fences) and body, which joined are the
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
            # The parser counts lines from the TOML's first; in the file the fence is above it.
            reason = re.sub(
                r"at line (\d+)", lambda match: f"at line {int(match[1]) + 1}", str(error)
            )
            raise LabError(f"{self.path}: the front matter is not TOML: {reason}.") from None

    def at(self, key: str) -> str:
        """Return the file and the line on which a top-level key, or an arm by its dotted name, is
        set.
        """
        first, _, arm = key.partition(".")
        name = re.escape(first)
        forms = [rf"\s*[\"']?{name}[\"']?\s*="]  # key =
        if arm:  # [arms.NAME
            forms.append(rf"\s*\[\s*{name}\s*\.\s*[\"']?{re.escape(arm)}\b")
        for number, line in enumerate(_lines(self.head), start=1):
            if any(re.match(form, line) for form in forms):
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
    if not lines or lines[0].removeprefix("\ufeff").rstrip() != FENCE_LINE:
        raise LabError(
            f"{path}:1: a hypothesis begins with a line {FENCE_LINE}, then TOML, then {FENCE_LINE}"
            " again."
        )
    for number, line in enumerate(lines[1:], start=1):
        if line.rstrip() == FENCE_LINE:
            head = "".join(lines[: number + 1])
            return Page(path, head, text[len(head) :])
    raise LabError(
        f"{path}: the front matter is not closed. Write a line {FENCE_LINE} between the TOML and"
        " the prose."
    )


def set_values(page: Page, values: Mapping[str, str]) -> Page:
    """Return the page with these top-level texts; comments, order and every other byte stay."""
    import tomlkit

    opening, *_, closing = _lines(page.head)
    document = tomlkit.parse(page.inner)
    for key, value in values.items():
        if key not in document:
            line_end = opening[len(opening.rstrip()) :]
            opening += f"{key} = {to_toml(value)}{line_end}"
        elif document[key] != value:
            document[key] = str(value)
    return replace(page, head=opening + tomlkit.dumps(document) + closing)


def read(path: Path) -> Hypothesis:
    """Read a hypothesis; an error names the file, the line and the key."""
    name = FILE_NAME.fullmatch(path.stem)
    if name is None:
        raise LabError(
            f"{path.name} should be called hNN-a-few-words.md, for example"
            " h01-kl-penalty-required.md."
        )
    page = read_page(path)
    table = page.table
    arms = _arms(page, table.pop("arms", {}))
    values: dict[str, Any] = {"recipe": ""}
    for key, value in table.items():
        values[key] = _convert_value(page, key, value)
    if not values.get("title", "").strip():
        raise LabError(f"{page.at('title')}: title is missing. Write {KEY_COMMENTS['title']}.")
    # A file that was written before a rename still says the same.
    for key in ("metric", "cause"):
        if key in values:
            values[key] = current(values[key])
    values["allows"] = tuple(map(current, values.get("allows", ())))
    return Hypothesis(id=name[1], arms=arms, **values)


def _convert_value(page: Page, key: str, value: Any) -> Any:
    """Convert a value of the front matter to its field's type; an error says where it is set."""
    if key not in KEY_COMMENTS:
        known = [*KEY_COMMENTS, "arms"]
        raise LabError(f"{page.at(key)}: {unknown(key, key, known, 'The front matter')}")
    if key == "confidence" and not value:
        return None
    kind = Confidence if key == "confidence" else typing.get_type_hints(Hypothesis)[key]
    is_choice = isinstance(kind, type) and issubclass(kind, StrEnum)
    try:
        if is_choice:
            choices = tuple(str(choice) for choice in kind)
            return kind(convert(typing.Literal[choices], value, key))
        return convert(kind, value, key)
    except ConfigError as error:
        hint = "" if is_choice else f" Write {KEY_COMMENTS[key]}."
        raise LabError(f"{page.at(key)}: {error}{hint}") from None


def _arms(page: Page, tables: Any) -> tuple[Arm, ...]:
    """Return the arms of the tables [arms.NAME]."""
    is_table = isinstance(tables, Mapping)
    if not is_table or not all(isinstance(table, Mapping) for table in tables.values()):
        raise LabError(
            f"{page.at('arms')}: write each arm as a table [arms.NAME] with the config values it"
            " changes."
        )
    arms: list[Arm] = []
    for name, table in tables.items():
        values = dict(table)
        is_control = values.pop("control", False)
        if not isinstance(is_control, bool):
            where = page.at(f"arms.{name}")
            raise LabError(
                f"{where}: control = {is_control!r} in arm {name} should be true or false."
            )
        overrides = {current(key): value for key, value in flatten(values).items()}
        arms.append(Arm(name, overrides, is_control))
    return tuple(arms)


def render(hypothesis: Hypothesis, prose: Mapping[str, str]) -> str:
    """Return a new file's text: every key with a comment that says what to write, then the
    sections.
    """
    values = {key: getattr(hypothesis, key) for key in KEY_COMMENTS}
    values["confidence"] = hypothesis.confidence or ""
    if hypothesis.source is not None:
        values["source"] = asdict(hypothesis.source)
    sections: dict[str, str] = {}
    for name in (*SECTION_NAMES, *prose):
        sections[name] = prose.get(name, "").strip("\n")
    template = templates().get_template("hypothesis.jinja")
    text = template.render(
        hypothesis=hypothesis, comments=KEY_COMMENTS, values=values, prose=sections
    )
    return text.rstrip("\n") + "\n"


def sections(body: str) -> dict[str, str]:
    """Return the prose under each `##` heading; the title before the first is left out."""
    # Text before the first heading, then a name and a text by turns.
    _, *parts = re.split(r"^## (.+?)[ \t\r]*$\n?", body, flags=re.MULTILINE)
    names = parts[::2]
    texts = [text.strip("\n") for text in parts[1::2]]
    return dict(zip(names, texts, strict=True))


def put_block(text: str, name: str, content: str, after: str = "") -> str:
    """Return a text with a block's content replaced; a new block goes under the heading `after`, or
    to the end.
    """
    end = "\r\n" if "\r\n" in text or text.endswith("\r") else "\n"
    lines = content.strip("\r\n").replace("\r\n", "\n").split("\n")
    # A content that quotes a mark must not end its own block.
    inner = end.join(re.sub(r"^<!--(?= /?uptrend:)", "&lt;!--", line) for line in lines)
    block = f"<!-- uptrend:{name} -->{end}{inner}{end}<!-- /uptrend:{name} -->"

    marks = _marks(text, name)
    if marks:
        opening, closing = marks
        return text[: opening.start()] + block + text[closing.end() :]

    heading = None
    if after:
        heading = re.search(rf"^{re.escape(after)}[ \t\r]*$\n?", text, re.MULTILINE)
    before = text[: heading.end()] if heading else text
    if before and not before.endswith("\n"):
        before += end
    if heading is None:
        gap = end if before.strip() else ""
        new_heading = f"{after}{end}{end}" if after else ""
        return f"{before}{gap}{new_heading}{block}{end}"
    rest = text[heading.end() :]
    gap = end if rest and not rest.startswith(end) else ""
    return f"{before}{end}{block}{end}{gap}{rest}"


def get_block(text: str, name: str) -> str | None:
    """Return a block's content; None if there is no such block."""
    marks = _marks(text, name)
    if marks is None:
        return None
    opening, closing = marks
    return text[opening.end() : closing.start()].strip("\r\n")


def _marks(text: str, name: str) -> tuple[Match, Match] | None:
    """Find the two marks of a block; None if it has neither."""
    opening = f"<!-- uptrend:{name} -->"
    closing = f"<!-- /uptrend:{name} -->"
    openings = _find_lines(text, opening)
    closings = _find_lines(text, closing)
    if not openings and not closings:
        return None
    is_pair = len(openings) == 1 and len(closings) == 1
    if not is_pair or closings[0].start() < openings[0].start():
        raise lab_error("block-marks", name=name, opening=opening, closing=closing)
    return openings[0], closings[0]


def _find_lines(text: str, line: str) -> list[Match]:
    """Find each occurrence of a line, whatever white space ends it."""
    return list(re.finditer(rf"^{re.escape(line)}(?=[ \t\r]*$)", text, re.MULTILINE))


def prerequisites_first(hypotheses: Sequence[Hypothesis]) -> list[Hypothesis]:
    """Return hypotheses with those first that others among them wait for; otherwise in the same
    order.
    """
    waiting = list(hypotheses)
    ordered: list[Hypothesis] = []
    while waiting:
        ids = {hypothesis.id for hypothesis in waiting}
        free = [hypothesis for hypothesis in waiting if ids.isdisjoint(hypothesis.prerequisites)]
        # Where all wait for each other, the first goes first: `refuse` names the circle.
        next_one = free[0] if free else waiting[0]
        ordered.append(next_one)
        waiting.remove(next_one)
    return ordered


def _lines(text: str) -> list[str]:
    """Return lines with their ends; only "\\n" ends one, as in TOML."""
    return re.findall(r"[^\n]*\n|[^\n]+$", text)
