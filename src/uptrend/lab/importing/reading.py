"""Reading a journal that was kept by hand: experiments, hypotheses, statuses, run ids, settings and
figures.

Headings, fields, tables and code are recognized, with the words and forms of words.toml; the rest
stays prose.
"""

import dataclasses
import re
import tomllib
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby, takewhile
from pathlib import Path
from typing import Any, Literal, NamedTuple

from uptrend.records import LabError
from uptrend.records.files import read_named

JOURNAL_WORDS: dict[str, dict[str, Any]] = tomllib.loads(
    (Path(__file__).parent / "words.toml").read_text(encoding="utf-8")
)
FIELD_NAMES: dict[str, list[str]] = JOURNAL_WORDS["fields"]
PRIORITY_WORDS: dict[str, str] = JOURNAL_WORDS["priorities"]
STATUS_FORMS: dict[str, str] = JOURNAL_WORDS["statuses"]
# Statuses of work that has no outcome yet.
UNDECIDED_STATUSES = ("testing", "pending", "finished")


def _compile_forms(forms: Mapping[str, str]) -> dict[str, re.Pattern[str]]:
    """Compile the regular expressions of words.toml, with the names of measured figures put in."""
    compiled: dict[str, re.Pattern[str]] = {}
    for name, form in forms.items():
        compiled[name] = re.compile(form.replace("MEASURED", forms["measured"]))
    return compiled


LINE_FORMS = _compile_forms(JOURNAL_WORDS["forms"])


class OutlineLine(NamedTuple):
    """One line of a source."""

    number: int  # counted from 1
    text: str
    in_code: bool  # between two fences


class Section(NamedTuple):
    """A heading and its lines, up to the next heading of any level."""

    level: int  # 1 for #; 0 for what stands before the first heading
    title: str
    lines: list[OutlineLine]  # the heading first
    above: tuple[str, ...]  # titles of the headings that it stands under, the innermost first


class Figure(NamedTuple):
    """A measured number that a journal names."""

    name: str  # in the journal's words, in lower case
    value: float  # 30% is 0.3
    line: int


@dataclass(frozen=True)
class JournalItem:
    """One experiment or hypothesis, from all sections and lines about it."""

    kind: Literal["experiment", "hypothesis"]
    key: str  # A1, 1.0 or a run id of an experiment, h03 of a hypothesis; empty where it has none
    title: str  # heading without date and run id, or the claim
    lines: tuple[OutlineLine, ...]  # all lines about it, in order
    date: str = ""
    runs: tuple[str, ...] = ()
    statuses: tuple[str, ...] = ()  # as reported, the latest last
    fields: dict[str, str] = field(default_factory=dict)  # by name: Issue, Test, Outcome …
    settings: dict[str, str] = field(default_factory=dict)  # parameters, in the journal's names
    figures: tuple[Figure, ...] = ()
    commands: tuple[str, ...] = ()  # fenced code
    priority: str = ""  # high, medium or low, as confidence is
    confidence: str = ""
    notes: str = ""  # note of a status table

    @property
    def outcome(self) -> str:
        """Outcome in the journal's words."""
        for name in FIELD_NAMES["outcome"]:
            if self.fields.get(name):
                return self.fields[name]
        return ""


@dataclass(frozen=True)
class Journal:
    """One source, read."""

    name: str  # of the file
    title: str  # first heading
    is_problem: bool  # a problem statement
    lines: tuple[OutlineLine, ...]  # all of it
    experiments: tuple[JournalItem, ...]
    hypotheses: tuple[JournalItem, ...]
    # Title of the log entry or key of the hypothesis that a line moves to, by line number; the
    # other lines stay on the journal's page.
    moved_to: dict[int, str]

    @property
    def recognized(self) -> frozenset[int]:
        """Numbers of the lines about an experiment or a hypothesis, blank ones apart."""
        numbers: set[int] = set()
        for item in (*self.experiments, *self.hypotheses):
            numbers.update(line.number for line in item.lines if line.text.strip())
        return frozenset(numbers)

    @property
    def prose(self) -> list[tuple[int, int]]:
        """First and last line of each stretch of the others; blank lines do not end one."""
        recognized = self.recognized
        written = [line.number for line in self.lines if line.text.strip()]
        stretches: list[tuple[int, int]] = []
        for is_recognized, stretch in groupby(written, lambda number: number in recognized):
            numbers = list(stretch)
            if not is_recognized:
                stretches.append((numbers[0], numbers[-1]))
        return stretches


def read_journal(path: Path) -> Journal:
    """Read a file and recognize what has a known form."""
    sections = sections_of(_read_text(path))
    titles = [section.title for section in sections if section.level == 1]
    title = titles[0] if titles else path.stem
    lines = tuple(line for section in sections for line in section.lines)

    items = _items_of_sections(sections)
    experiments = _merge_mentions([item for item in items if item.kind == "experiment"])
    numbered = [item for item in items if item.kind == "hypothesis"]
    # Before the items below are added: they come from single lines, which stay in the prose too.
    moved_to: dict[int, str] = {}
    for experiment in experiments:
        moved_to |= {line.number: experiment.title for line in experiment.lines}
    for hypothesis in numbered:
        moved_to |= {line.number: hypothesis.key for line in hypothesis.lines}

    # A run that has a section needs no experiment for the sentences that mention it.
    known_runs = {run for experiment in experiments for run in experiment.runs}
    experiments += _items_of_sentences(sections, known_runs)
    hypotheses = _merge_mentions([*numbered, *_listed_hypotheses(lines)])
    hypotheses.sort(key=lambda hypothesis: int(hypothesis.key[1:]))
    hypotheses += _claimed_hypotheses(experiments)
    return Journal(
        name=path.name,
        title=title,
        is_problem="problem statement" in title.lower(),
        lines=lines,
        experiments=tuple(experiments),
        hypotheses=tuple(hypotheses),
        moved_to=moved_to,
    )


def _read_text(path: Path) -> str:
    """Read a file of UTF-8."""
    try:
        return read_named(path).decode("utf-8").removeprefix("\ufeff")
    except FileNotFoundError:
        raise LabError(f"There is no file {path}.") from None
    except UnicodeDecodeError as error:
        raise LabError(
            f"{path} is not UTF-8 at byte {error.start}: save it as UTF-8, then import it."
        ) from None
    except OSError as error:
        raise LabError(f"{path} could not be read: {error.strerror}.") from None


def sections_of(text: str) -> list[Section]:
    """Return the sections of a Markdown text; a # in a shell block is no heading."""
    sections = [Section(0, "", [], ())]
    fence = ""  # mark that opened the current block of code
    for number, raw in enumerate(text.split("\n"), start=1):
        fence_match = LINE_FORMS["fence"].match(raw)
        # Inside a block of ``` a line of ~~~ is code, and the other way round.
        is_fence = fence_match is not None and fence in ("", fence_match["mark"])
        line = OutlineLine(number, raw.rstrip("\r"), bool(fence) or is_fence)
        if fence_match and is_fence:
            fence = "" if fence else fence_match["mark"]

        heading = None if line.in_code else LINE_FORMS["heading"].match(line.text)
        if heading is None:
            sections[-1].lines.append(line)
        else:
            level = len(heading["marks"])
            above = _titles_above(sections, level)
            sections.append(Section(level, heading["title"], [line], above))
    return sections


def _titles_above(sections: Sequence[Section], level: int) -> tuple[str, ...]:
    """Return the titles that a heading after these sections stands under, the innermost first."""
    titles: list[str] = []
    for section in reversed(sections):
        if section.level < level:
            titles.append(section.title)
            level = section.level
    return tuple(titles)


def runs_in(text: str, known: Collection[str] = ()) -> list[str]:
    """Return the run ids in a text, in order."""
    positions: list[tuple[int, str]] = []
    for match in LINE_FORMS["run"].finditer(text):
        # One group for each way to write it; one of the three matches.
        run = match["labeled"] or match["reported"] or match["linked"]
        positions.append((match.start(), run))
    for match in LINE_FORMS["bracketed"].finditer(text):
        word = match["word"]
        is_mixed = not word.isalpha() and not word.isdigit()
        if is_mixed or word in known:
            positions.append((match.start(), word))
    positions.sort()
    return list(dict.fromkeys(run for _, run in positions))


def fields_in(text: str) -> dict[str, str]:
    """Return the `**Key**: value` pairs of a line, several where bars part them, or `- Key:
    value`.
    """
    fields: dict[str, str] = {}
    for match in LINE_FORMS["field"].finditer(text):
        fields[match["name"].strip()] = match["text"]
    if fields:
        return fields
    bare = LINE_FORMS["bare_field"].match(text)
    return {bare["name"].strip(): bare["text"]} if bare else {}


def statuses_in(*texts: str) -> tuple[str, ...]:
    """Return the plain words for where something stands, one at most per text."""
    statuses: list[str] = []
    for text in texts:
        for status, form in STATUS_FORMS.items():
            if re.search(form, text):
                statuses.append(status)
                break
    return tuple(statuses)


def reported(statuses: Sequence[str]) -> str:
    """Return the status that counts: the last that is an outcome, else the last; empty where none
    was reported.
    """
    outcomes = [status for status in statuses if status not in UNDECIDED_STATUSES]
    if outcomes:
        return outcomes[-1]
    return statuses[-1] if statuses else ""


def figures_in(text: str, line: int) -> list[Figure]:
    """Return the measured numbers of a line, without those that were expected."""
    matches = list(LINE_FORMS["stated"].finditer(text)) or list(
        LINE_FORMS["counted"].finditer(text)
    )
    figures: list[Figure] = []
    for match in matches:
        if _is_expectation(text, match):
            continue
        digits = match["number"].lstrip("~").rstrip(".,").replace(",", "")
        value = float(digits)
        if match["percent"]:
            value /= 100
        name = " ".join(match["name"].lower().split())
        # 30 / 100 need not be 0.3 to the last bit.
        figures.append(Figure(name, round(value, 10), line))
    return figures


def _is_expectation(text: str, match: re.Match[str]) -> bool:
    """Return True if the words before a match say that it was hoped for, or is another run's."""
    return LINE_FORMS["expected"].search(text[: match.start()]) is not None


def _date_in(texts: Iterable[str]) -> str:
    """Return the first date in the texts; empty if they have none."""
    for text in texts:
        match = LINE_FORMS["date"].search(text)
        if match:
            return match["date"]
    return ""


def _fill_in(item: JournalItem, known_runs: Collection[str] = ()) -> JournalItem:
    """Return an item with the runs, statuses, fields, settings, figures and code of its lines."""
    prose = [line for line in item.lines if not line.in_code]
    fields: dict[str, str] = {}
    figures: list[Figure] = []
    for line in prose:
        fields |= fields_in(line.text)
        figures += figures_in(line.text, line.number)

    commands: list[str] = []
    for is_command, block in groupby(item.lines, _is_command_line):
        if is_command:
            commands.append("\n".join(line.text for line in block))

    first = item.lines[0].text
    runs = runs_in(first, known_runs) if first.startswith("#") else []
    runs += _runs_of_fields(item.lines)
    return replace(
        item,
        # A date of the item's own lines counts before that of a heading above it.
        date=_date_in(line.text for line in prose) or item.date,
        # The run of an item that one sentence makes is known: no other in the sentence replaces it.
        runs=item.runs or tuple(dict.fromkeys(runs)),
        # All in order, of which `reported` takes the one that counts.
        statuses=statuses_in(*(line.text for line in prose)),
        fields=fields,
        settings=_settings(item.lines, commands, fields),
        figures=tuple(figures),
        commands=tuple(commands),
    )


def _is_command_line(line: OutlineLine) -> bool:
    """Return True for a line of fenced code that is not the fence."""
    return line.in_code and not LINE_FORMS["fence"].match(line.text)


def _runs_of_fields(lines: Iterable[OutlineLine]) -> list[str]:
    """Return the run ids of the lines with a field `Run ID`."""
    runs: list[str] = []
    for line in lines:
        if "Run ID" in line.text:
            runs += runs_in(line.text)
    return runs


def _settings(
    lines: Iterable[OutlineLine], commands: Iterable[str], fields: Mapping[str, str]
) -> dict[str, str]:
    """Collect parameters from tables of two columns, key=value pairs, flags of commands and the
    fields of what was tried; several values of one are joined by commas.
    """
    pairs = _pairs_of_lines(lines)
    for command in commands:
        pairs += _flags_in(command).items()
    for name in FIELD_NAMES["tried"]:
        if fields.get(name):
            pairs.append((name, fields[name]))
    return _join_values(pairs)


def _pairs_of_lines(lines: Iterable[OutlineLine]) -> list[tuple[str, str]]:
    """Return the names and values in tables that begin with `| Parameter |`, and in sentences."""
    pairs: list[tuple[str, str]] = []
    in_table = False
    for line in lines:
        row = LINE_FORMS["pair"].match(line.text)
        is_head = row is not None and row["name"] == "Parameter"
        in_table = is_head or (in_table and line.text.lstrip().startswith("|"))
        if row and in_table and not is_head:
            pairs.append((row["name"], row["value"].strip("`")))
        elif not line.in_code and not line.text.startswith("#"):
            pairs += _settings_in(line.text).items()
    return pairs


def _flags_in(command: str) -> dict[str, str]:
    """Return the flags of a command, such as --lora-r 16; one without a value is true."""
    flags: dict[str, str] = {}
    for match in LINE_FORMS["flag"].finditer(command):
        flags[match["name"]] = (match["value"] or "true").strip("\"'")
    return flags


def _join_values(pairs: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Return the distinct values of each name in order, joined by commas."""
    values_by_name: dict[str, list[str]] = {}
    for name, value in pairs:
        values = values_by_name.setdefault(name, [])
        if value not in values:
            values.append(value)
    return {name: ", ".join(values) for name, values in values_by_name.items()}


def _settings_in(text: str) -> dict[str, str]:
    """Return the values of a line such as lr=5e-6, without those that were expected or measured."""
    settings: dict[str, str] = {}
    for match in LINE_FORMS["setting"].finditer(text):
        is_measured = LINE_FORMS["measured"].fullmatch(match["name"].lower())
        if not is_measured and not _is_expectation(text, match):
            settings[match["name"]] = match["value"].strip("\"'").rstrip(".")
    return settings


def _merge_mentions(items: Iterable[JournalItem]) -> list[JournalItem]:
    """Merge mentions of one run or of one numbered hypothesis, in the place of the first."""
    by_key: dict[str, JournalItem] = {}
    for number, item in enumerate(items):
        key = item.key
        if item.kind == "experiment":
            # One without a run is an experiment of its own, whatever its title.
            key = item.runs[0] if item.runs else f"#{number}"
        by_key[key] = _merge(by_key[key], item) if key in by_key else item
    return list(by_key.values())


def _merge(first: JournalItem, second: JournalItem) -> JournalItem:
    """Join two mentions: where both have a text or a key, the first's stays."""
    values: dict[str, Any] = {}
    for part in dataclasses.fields(JournalItem):
        mine = getattr(first, part.name)
        other = getattr(second, part.name)
        if isinstance(mine, dict):
            values[part.name] = {**other, **mine}
        elif isinstance(mine, tuple):
            values[part.name] = mine + other
        else:
            values[part.name] = mine or other
    values["runs"] = tuple(dict.fromkeys(values["runs"]))
    return JournalItem(**values)


def _items_of_sections(sections: Sequence[Section]) -> list[JournalItem]:
    """Return what has a section of its own, with the sections under it."""
    known_runs: set[str] = set()
    chapters: set[str] = set()  # headings that group experiments, and are none
    for section in sections:
        for line in section.lines:
            known_runs.update(runs_in(line.text))
        if LINE_FORMS["experiment"].match(section.title):
            chapters.update(title for title in section.above if LINE_FORMS["chapter"].match(title))

    items: list[JournalItem] = []
    level = 0  # of the section that began the last item; 0 after a section that belongs to none
    for section in sections:
        item = None if section.title in chapters else _item_begun_by(section, known_runs)
        if item:
            items.append(item)
            level = section.level
        elif level and section.level > level:
            last = items[-1]
            items[-1] = replace(last, lines=(*last.lines, *section.lines))
        else:
            level = 0
    return [_fill_in(item, known_runs) for item in items]


def _item_begun_by(section: Section, known_runs: Collection[str]) -> JournalItem | None:
    """Return the experiment or hypothesis whose heading this is, if it is one's."""
    title = section.title
    lines = tuple(section.lines)
    date = _date_in(section.above)
    body = section.lines[1:] if section.level else section.lines

    match = LINE_FORMS["hypothesis"].match(title)
    if match:
        flag = re.search(r"\[(\w+)", title)
        claim = LINE_FORMS["around_claim"].sub("", match["claim"]).strip()
        priority = _read_priority(flag[1]) if flag else ""
        key = f"h{int(match['number']):02d}"
        return JournalItem("hypothesis", key, claim, lines, date, priority=priority)

    match = LINE_FORMS["experiment"].match(title)
    if match:
        # A heading such as « B. No PEFT » may be a chapter: it is an experiment where it has fields
        # or code.
        number = match["number"]
        has_number = len(number) > 1  # A1 or 1.0, not A
        if has_number or any(line.in_code or fields_in(line.text) for line in body):
            return JournalItem("experiment", number, match["title"].strip(), lines, date)

    runs = runs_in(title, known_runs) + _runs_of_fields(body)
    names: set[str] = set()
    for line in body:
        if not line.in_code:
            names |= fields_in(line.text).keys()
    if not runs and names.isdisjoint(FIELD_NAMES["claim"]):
        return None
    key = runs[0] if runs else ""
    title = LINE_FORMS["around_title"].sub("", title).strip()
    return JournalItem("experiment", key, title, lines, date)


def _items_of_sentences(
    sections: Iterable[Section], known_runs: Collection[str]
) -> list[JournalItem]:
    """Return runs that only a sentence mentions: « Run ljokc85g achieved 0.75 reward with
    beta=0.1 ».
    """
    items: list[JournalItem] = []
    for section in sections:
        date = _date_in([section.title, *section.above])
        for line in section.lines:
            for run in runs_in(line.text):
                if run not in known_runs:
                    item = JournalItem("experiment", run, f"Run {run}", (line,), date, (run,))
                    items.append(_fill_in(item))
    return _merge_mentions(items)


def _listed_hypotheses(lines: Sequence[OutlineLine]) -> list[JournalItem]:
    """Return the hypotheses of drawn folders, then those of status tables, which have later
    statuses.
    """
    items: list[JournalItem] = []
    for form in ("listed", "tabled"):
        for line in lines:
            match = LINE_FORMS[form].search(line.text)
            if match is None:
                continue
            texts = match.groupdict("")
            title = texts["title"]
            if form == "listed":  # a file's name
                title = title.replace("-", " ").capitalize()
            item = JournalItem(
                "hypothesis",
                f"h{int(texts['number']):02d}",
                title,
                (line,),
                statuses=statuses_in(texts["status"]),
                priority=_read_priority(texts["priority"]),
                confidence=_read_priority(texts.get("confidence", "")),
                notes=texts.get("notes", ""),
            )
            items.append(item)
    return items


def _read_priority(word: str) -> str:
    """Return high, medium or low; empty for another word."""
    return PRIORITY_WORDS.get(word.lower(), "")


def _claimed_hypotheses(experiments: Iterable[JournalItem]) -> list[JournalItem]:
    """Return the hypotheses that experiments state without a number, with the experiments' statuses
    and runs.
    """
    claim_field = FIELD_NAMES["claim"][0]
    hypotheses: list[JournalItem] = []
    for experiment in experiments:
        for number, line in enumerate(experiment.lines):
            claim = "" if line.in_code else fields_in(line.text).get(claim_field, "")
            if not claim:
                continue
            lines = _lines_to_heading(experiment.lines[number:])
            hypothesis = _fill_in(JournalItem("hypothesis", "", claim, lines))
            hypothesis = replace(
                hypothesis,
                statuses=experiment.statuses,
                runs=experiment.runs,
                fields={"Experiment": experiment.title} | hypothesis.fields,
            )
            hypotheses.append(hypothesis)
    return hypotheses


def _lines_to_heading(lines: Iterable[OutlineLine]) -> tuple[OutlineLine, ...]:
    """Return the lines before the first heading."""

    def is_text(line: OutlineLine) -> bool:
        return line.in_code or not line.text.startswith("#")

    return tuple(takewhile(is_text, lines))
