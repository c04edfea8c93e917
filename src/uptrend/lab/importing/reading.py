"""Reading a journal that was kept by hand: experiments, hypotheses, statuses, run ids, settings and
figures.

Headings, fields, tables and code are recognized, with the words and forms of words.toml; the rest
stays prose.
"""

import dataclasses
import re
import tomllib
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby, takewhile
from pathlib import Path
from typing import Any, Literal, NamedTuple

from uptrend.records import LabError
from uptrend.records.files import read_named

WORDS = tomllib.loads((Path(__file__).parent / "words.toml").read_text(encoding="utf-8"))
FIELDS: dict[str, list[str]] = WORDS["fields"]
PRIORITIES: dict[str, str] = WORDS["priorities"]
FORMS = {
    name: re.compile(form.replace("MEASURED", WORDS["forms"]["measured"]))
    for name, form in WORDS["forms"].items()
}


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
    """One experiment or hypothesis, whatever sections tell of it."""

    kind: Literal["experiment", "hypothesis"]
    key: str  # A1, 1.0 or a run id of an experiment, h03 of a hypothesis; empty where it has none
    title: str  # heading without date and run id, or the claim
    lines: tuple[OutlineLine, ...]  # all that tell of it, in order
    date: str = ""
    runs: tuple[str, ...] = ()
    statuses: tuple[str, ...] = ()  # as reported, the last said last
    # texts that are given by name: Issue, Test, Outcome …
    fields: dict[str, str] = field(default_factory=dict)
    settings: dict[str, str] = field(default_factory=dict)  # parameters, in the journal's names
    figures: tuple[Figure, ...] = ()
    commands: tuple[str, ...] = ()  # fenced code
    priority: str = ""  # high, medium or low, as confidence is
    confidence: str = ""
    notes: str = ""  # note of a status table

    @property
    def outcome(self) -> str:
        """Outcome in the journal's words."""
        return next((self.fields[name] for name in FIELDS["outcome"] if self.fields.get(name)), "")


@dataclass(frozen=True)
class Journal:
    """One source, read."""

    name: str  # of the file
    title: str  # first heading
    is_problem: bool  # a problem statement
    lines: tuple[OutlineLine, ...]  # all of it
    experiments: tuple[JournalItem, ...]
    hypotheses: tuple[JournalItem, ...]
    elsewhere: dict[
        int, str
    ]  # title or id of the entry or hypothesis that a line goes to; the rest stays

    @property
    def recognized(self) -> frozenset[int]:
        """Lines that tell of an experiment or a hypothesis, blank ones apart."""
        lines = [line for one in (*self.experiments, *self.hypotheses) for line in one.lines]
        return frozenset(line.number for line in lines if line.text.strip())

    @property
    def prose(self) -> list[tuple[int, int]]:
        """First and last line of each stretch of the others; blank lines do not end one."""
        written = [line.number for line in self.lines if line.text.strip()]
        recognized = self.recognized
        stretches = [
            (is_known, list(run))
            for is_known, run in groupby(written, lambda number: number in recognized)
        ]
        return [(run[0], run[-1]) for is_known, run in stretches if not is_known]


def read_journal(path: Path) -> Journal:
    """Read a file and recognize what has a known form."""
    try:
        text = read_named(path).decode("utf-8").removeprefix("\ufeff")
    except FileNotFoundError:
        raise LabError(f"There is no file {path}.") from None
    except UnicodeDecodeError as error:
        raise LabError(
            f"{path} is not UTF-8 at byte {error.start}: save it as UTF-8, then import it."
        ) from None
    except OSError as error:
        raise LabError(f"{path} could not be read: {error.strerror}.") from None
    sections = sections_of(text)
    title = next((section.title for section in sections if section.level == 1), path.stem)
    lines = tuple(line for section in sections for line in section.lines)
    told = _told_in_sections(sections)
    experiments = _joined(one for one in told if one.kind == "experiment")
    numbered = [one for one in told if one.kind == "hypothesis"]
    where = {line.number: one.title for one in experiments for line in one.lines}
    where |= {line.number: one.key for one in numbered for line in one.lines}
    experiments += _told_in_a_line(sections, {run for one in experiments for run in one.runs})
    hypotheses = sorted(_joined([*numbered, *_listed(lines)]), key=lambda one: int(one.key[1:]))
    hypotheses += _claimed(experiments)
    is_problem = "problem statement" in title.lower()
    return Journal(
        path.name, title, is_problem, lines, tuple(experiments), tuple(hypotheses), where
    )


def sections_of(text: str) -> list[Section]:
    """Return the sections of a Markdown text; a # in a shell block is no heading."""
    found = [Section(0, "", [], ())]
    fence = ""
    for number, raw in enumerate(text.split("\n"), start=1):
        mark = FORMS["fence"].match(raw)
        is_fence = mark is not None and fence in ("", mark[1])
        line = OutlineLine(number, raw.rstrip("\r"), bool(fence) or is_fence)
        if mark and is_fence:
            fence = "" if fence else mark[1]
        if not line.in_code and (heading := FORMS["heading"].match(line.text)):
            level = len(heading[1])
            above = list[Section]()
            for section in reversed(found):
                if section.level < (above[-1].level if above else level):
                    above.append(section)
            found.append(
                Section(level, heading[2], [line], tuple(section.title for section in above))
            )
        else:
            found[-1].lines.append(line)
    return found


def runs_in(text: str, known: Collection[str] = ()) -> list[str]:
    """Return the run ids in a text, in order."""
    named = [(match.start(), match[match.lastindex or 0]) for match in FORMS["run"].finditer(text)]
    for match in FORMS["bracketed"].finditer(text):
        if match[1] in known or not (match[1].isalpha() or match[1].isdigit()):
            named.append((match.start(), match[1]))
    return list(dict.fromkeys(run for _, run in sorted(named)))


def fields_in(text: str) -> dict[str, str]:
    """Return the `**Key**: value` pairs of a line, several where bars part them, or `- Key:
    value`.
    """
    bold = {match[1].strip(): match[2] for match in FORMS["field"].finditer(text)}
    bare = None if bold else FORMS["bare_field"].match(text)
    return {bare[1].strip(): bare[2]} if bare else bold


def statuses_in(*texts: str) -> tuple[str, ...]:
    """Return the plain words for where something stands, one at most per text."""
    words = (
        next((word for word, form in WORDS["statuses"].items() if re.search(form, text)), "")
        for text in texts
    )
    return tuple(word for word in words if word)


def reported(statuses: Sequence[str]) -> str:
    """Return the status that counts: the last that tells an outcome, or the last."""
    decided = [word for word in statuses if word not in ("testing", "pending", "finished")]
    return (decided or [*statuses] or [""])[-1]


def figures_in(text: str, line: int) -> list[Figure]:
    """Return the measured numbers that a line names, without those that were hoped for."""
    found = list[Figure]()
    for match in [*FORMS["stated"].finditer(text)] or FORMS["counted"].finditer(text):
        if not FORMS["expected"].search(text[: match.start()]):
            value = float(match["number"].lstrip("~").rstrip(".,").replace(",", "")) / (
                100 if match["percent"] else 1
            )
            found.append(Figure(" ".join(match["name"].lower().split()), round(value, 10), line))
    return found


def _date_in(texts: Iterable[str]) -> str:
    return next((match[1] for text in texts if (match := FORMS["date"].search(text))), "")


def _read(one: JournalItem, known: Collection[str] = ()) -> JournalItem:
    prose = [line for line in one.lines if not line.in_code]
    fields = {name: value for line in prose for name, value in fields_in(line.text).items()}
    code = groupby(one.lines, lambda line: line.in_code and not FORMS["fence"].match(line.text))
    commands = ["\n".join(line.text for line in block) for is_code, block in code if is_code]
    named = runs_in(one.lines[0].text, known) if one.lines[0].text.startswith("#") else []
    named += [run for line in one.lines if "Run ID" in line.text for run in runs_in(line.text)]
    return replace(
        one,
        date=_date_in(line.text for line in prose) or one.date,
        runs=one.runs or tuple(dict.fromkeys(named)),
        statuses=statuses_in(*(line.text for line in prose)),
        fields=fields,
        settings=_settings(one.lines, commands, fields),
        figures=tuple(figure for line in prose for figure in figures_in(line.text, line.number)),
        commands=tuple(commands),
    )


def _settings(
    lines: Iterable[OutlineLine], commands: Iterable[str], fields: dict[str, str]
) -> dict[str, str]:
    # Collect parameters from tables of two columns, key=value pairs, a command's flags and what was
    # tried.
    pairs = list[tuple[str, str]]()
    is_table = False
    for line in lines:
        row = FORMS["pair"].match(line.text)
        begins = row is not None and row[1] == "Parameter"
        is_table = begins or (is_table and line.text.lstrip().startswith("|"))
        if is_table and row and not begins:
            pairs.append((row[1], row[2].strip("`")))
        elif not line.in_code and not line.text.startswith("#"):
            # A value such as lr=5e-6, unless it is hoped for or measured.
            own = [
                m
                for m in FORMS["setting"].finditer(line.text)
                if not FORMS["measured"].fullmatch(m[1].lower())
            ]
            own = [
                match for match in own if not FORMS["expected"].search(line.text[: match.start()])
            ]
            pairs += {match[1]: match[2].strip("\"'").rstrip(".") for match in own}.items()
    for command in commands:  # --lora-r 16
        flags = FORMS["flag"].finditer(command)
        pairs += {match[1]: (match[2] or "true").strip("\"'") for match in flags}.items()
    pairs += [(name, fields[name]) for name in FIELDS["tried"] if fields.get(name)]
    values = {
        name: dict.fromkeys(value for other, value in pairs if other == name) for name, _ in pairs
    }
    return {name: ", ".join(several) for name, several in values.items()}


def _joined(found: Iterable[JournalItem]) -> list[JournalItem]:
    # Join mentions of one run or of one numbered hypothesis, in the place of the first, whose words
    # stay.
    by_key = dict[str, JournalItem]()
    for place, one in enumerate(found):
        key = one.key if one.kind == "hypothesis" else one.runs[0] if one.runs else f"#{place}"
        first = by_key.setdefault(key, one)
        if first is not one:
            values = dict[str, Any]()
            for name in (part.name for part in dataclasses.fields(one)):
                a = getattr(first, name)
                b = getattr(one, name)
                values[name] = (
                    {**b, **a} if isinstance(a, dict) else a + b if isinstance(a, tuple) else a or b
                )
            by_key[key] = replace(first, **values | {"runs": tuple(dict.fromkeys(values["runs"]))})
    return list(by_key.values())


def _told_in_sections(sections: Sequence[Section]) -> list[JournalItem]:
    # What has a section of its own, with the sections under it.
    known = {run for section in sections for line in section.lines for run in runs_in(line.text)}
    coded = [section for section in sections if FORMS["experiment"].match(section.title)]
    chapters = {
        above for section in coded for above in section.above if FORMS["chapter"].match(above)
    }
    # level of the section that began the last
    found = list[JournalItem]()
    level = 0
    for section in sections:
        begun = None if section.title in chapters else _begun(section, known)
        if begun:
            found.append(begun)
            level = section.level
        elif level and section.level > level:
            found[-1] = replace(found[-1], lines=(*found[-1].lines, *section.lines))
        else:
            level = 0
    return [_read(one, known) for one in found]


def _begun(section: Section, known: Collection[str]) -> JournalItem | None:
    title = section.title
    lines = tuple(section.lines)
    date = _date_in(section.above)
    body = section.lines[1:] if section.level else section.lines
    if match := FORMS["hypothesis"].match(title):
        flag = re.search(r"\[(\w+)", title)
        claim = FORMS["around_claim"].sub("", match[2]).strip()
        priority = PRIORITIES.get(flag[1].lower(), "") if flag else ""
        return JournalItem(
            "hypothesis", f"h{int(match[1]):02d}", claim, lines, date, priority=priority
        )
    match = FORMS["experiment"].match(title)
    # A heading such as « B. No PEFT » may be a chapter: it is an experiment where it has fields or
    # code.
    if match and (len(match[1]) > 1 or any(line.in_code or fields_in(line.text) for line in body)):
        return JournalItem("experiment", match[1], match[2].strip(), lines, date)
    named = runs_in(title, known) + [
        run for line in body if "Run ID" in line.text for run in runs_in(line.text)
    ]
    if named or any(
        name in fields_in(line.text)
        for line in body
        if not line.in_code
        for name in FIELDS["claim"]
    ):
        return JournalItem(
            "experiment",
            (named or [""])[0],
            FORMS["around_title"].sub("", title).strip(),
            lines,
            date,
        )
    return None


def _told_in_a_line(sections: Iterable[Section], told: Collection[str]) -> list[JournalItem]:
    # The runs that only a sentence tells of: « Run ljokc85g achieved 0.75 reward with beta=0.1 ».
    found = list[JournalItem]()
    for section in sections:
        date = _date_in([section.title, *section.above])
        for line in section.lines:
            new = [run for run in runs_in(line.text) if run not in told]
            found += [
                _read(JournalItem("experiment", run, f"Run {run}", (line,), date, (run,)))
                for run in new
            ]
    return _joined(found)


def _listed(lines: Sequence[OutlineLine]) -> list[JournalItem]:
    # The hypotheses of drawn folders, then those of status tables, which say what became of them.
    found = list[JournalItem]()
    for form in (FORMS["listed"], FORMS["tabled"]):
        for line, match in ((line, match) for line in lines if (match := form.search(line.text))):
            told = match.groupdict("")
            title = (
                told["title"].replace("-", " ").capitalize()
                if form is FORMS["listed"]
                else told["title"]
            )
            one = JournalItem(
                "hypothesis",
                f"h{int(told['number']):02d}",
                title,
                (line,),
                notes=told.get("notes", ""),
            )
            priority, sure = (
                PRIORITIES.get(told.get(name, "").lower(), "")
                for name in ("priority", "confidence")
            )
            found.append(
                replace(
                    one, priority=priority, confidence=sure, statuses=statuses_in(told["status"])
                )
            )
    return found


def _claimed(experiments: Iterable[JournalItem]) -> list[JournalItem]:
    # The hypotheses that an experiment states without a number; its statuses and runs are theirs.
    found = list[JournalItem]()
    for one in experiments:
        for at, line in enumerate(one.lines):
            claim = "" if line.in_code else fields_in(line.text).get(FIELDS["claim"][0], "")
            if claim:
                rest = takewhile(
                    lambda other: other.in_code or not other.text.startswith("#"), one.lines[at:]
                )
                hypothesis = _read(JournalItem("hypothesis", "", claim, tuple(rest)))
                fields = {"Experiment": one.title} | hypothesis.fields
                found.append(
                    replace(hypothesis, statuses=one.statuses, runs=one.runs, fields=fields)
                )
    return found
