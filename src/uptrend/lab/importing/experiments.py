"""Experiments of a journal: by letter and number, by « Experiment 1.0 », by run id, or by the hypothesis they test."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from uptrend.lab.importing.found import FoundExperiment
from uptrend.lab.importing.marks import (
    cells_in,
    date_in,
    fields_in,
    figures_in,
    runs_in,
    settings_in,
    status_in,
)
from uptrend.lab.importing.outline import OutlineLine, Section, code_of

CODED = re.compile(r"([A-Z]\d*)\.\s+(.+)")
NUMBERED = re.compile(r"Experiment (\d+(?:\.\d+)?):\s*(.+)")
OUTCOMES = ("Outcome", "Issue", "Common Pattern", "Pattern", "Result", "Analysis")
TRIED = ("Tested", "Values", "Standard", "Tried")
CLAIM = "Hypothesis"


def experiments_of(sections: Sequence[Section]) -> tuple[list[FoundExperiment], dict[int, str]]:
    """The experiments, those of one run joined, and for each of their lines the title under which it is told."""
    known = {run for section in sections for line in section.lines for run in runs_in(line.text)}
    categories = {title for title in _letters(sections) if any(_is_under(title, section) for section in sections)}
    parts = list[tuple[str, str, list[Section]]]()
    level = 0  # of the experiment whose subsections are being read
    for section in sections:
        begun = _begin(section, categories, known)
        if begun is not None:
            parts.append((*begun, [section]))
            level = section.level
        elif level and section.level > level:
            parts[-1][2].append(section)
        else:
            level = 0
    found = _joined([_read(key, title, own, known) for key, title, own in parts])
    where = {line.number: one.title for one in found for line in one.lines}
    return [*found, *_mentioned(sections, found)], where


def _begin(section: Section, categories: set[str], known: set[str]) -> tuple[str, str] | None:
    """An experiment's key and title, where a section begins one."""
    if section.title in categories:
        return None
    for pattern in (CODED, NUMBERED):
        match = pattern.match(section.title)
        if match and (len(match[1]) > 1 or _tells(section)):
            return match[1], match[2]
    named = runs_in(section.title, known) or [run for line in section.body for run in _run_field(line)]
    claims = any(CLAIM in fields_in(line.text) for line in section.body if not line.in_code)
    return ((named or [""])[0], _plain(section.title)) if named or claims else None


def _tells(section: Section) -> bool:
    """Whether a heading such as « B. No PEFT » is an experiment and not a chapter."""
    return any(line.in_code or fields_in(line.text) for line in section.body)


def _run_field(line: OutlineLine) -> list[str]:
    return runs_in(line.text) if "Run ID" in line.text else []


def _letters(sections: Sequence[Section]) -> list[str]:
    """Headings such as « A. Qwen with LoRA », which may hold A1 and A2 or be experiments themselves."""
    return [section.title for section in sections if re.match(r"[A-Z]\.\s", section.title)]


def _is_under(title: str, section: Section) -> bool:
    return title in section.above and CODED.match(section.title) is not None


def _plain(title: str) -> str:
    """A heading without its number, date, run id and status."""
    title = re.sub(r"^\d+\.\s+", "", title)
    title = re.split(r"\s+-\s+(?:20\d\d-|Run ID|[A-Z]{4,})|\s+\([a-z0-9]{8}\)", title)[0]
    return re.sub(r"\s+Results$", "", title.strip())


def _read(key: str, title: str, sections: Sequence[Section], known: set[str]) -> FoundExperiment:
    """All that a section and those under it say of an experiment."""
    lines = tuple(line for section in sections for line in section.lines)
    texts = [line.text for line in lines if not line.in_code]
    fields = {name: value for text in texts for name, value in fields_in(text).items()}
    commands = tuple(code_of(lines))
    named = [*runs_in(sections[0].title, known), *(run for line in lines for run in _run_field(line))]
    told = [status_in(text) for text in texts]
    return FoundExperiment(
        key,
        title.strip(),
        lines,
        date_in(*texts, *reversed(sections[0].above)),
        tuple(dict.fromkeys(named)),
        tuple(word for word in told if word),
        _settings(lines, commands, fields),
        tuple(figure for line in lines if not line.in_code for figure in figures_in(line.text, line.number)),
        commands,
        next((fields[name] for name in OUTCOMES if name in fields), ""),
    )


def _settings(lines: Sequence[OutlineLine], commands: Sequence[str], fields: Mapping[str, str]) -> dict[str, str]:
    """Parameters from tables of two columns, from key=value pairs, from a command's flags and from what was tried."""
    found, is_table = list[tuple[str, str]](), False
    for line in lines:
        cells = cells_in(line.text)
        is_table = cells[:1] == ["Parameter"] or (is_table and line.text.lstrip().startswith("|"))
        if is_table and len(cells) == 2 and cells[0] != "Parameter":
            found.append((cells[0], cells[1].strip("`")))
        elif not line.in_code and not line.text.startswith("#"):
            found += settings_in(line.text).items()
    for command in commands:
        found += settings_in(command, is_command=True).items()
    return _several([*found, *((name, fields[name]) for name in TRIED if fields.get(name))])


def _several(pairs: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Pairs as a table; of a name with several values all are kept."""
    values = dict[str, list[str]]()
    for name, value in pairs:
        values[name] = list(dict.fromkeys([*values.get(name, []), value]))
    return {name: ", ".join(several) for name, several in values.items()}


def _joined(found: Sequence[FoundExperiment]) -> list[FoundExperiment]:
    """Experiments of one run as one, in the place of the first; later figures and statuses after earlier ones."""
    by_key = dict[str, FoundExperiment]()
    for place, one in enumerate(found):
        key = one.runs[0] if one.runs else f"#{place}"
        first = by_key.get(key)
        by_key[key] = one if first is None else _join(first, one)
    return list(by_key.values())


def _join(one: FoundExperiment, other: FoundExperiment) -> FoundExperiment:
    return replace(
        one,
        lines=one.lines + other.lines,
        date=one.date or other.date,
        statuses=one.statuses + other.statuses,
        settings={**other.settings, **one.settings},
        figures=one.figures + other.figures,
        commands=one.commands + other.commands,
        outcome=other.outcome or one.outcome,
    )


def _mentioned(sections: Sequence[Section], found: Sequence[FoundExperiment]) -> list[FoundExperiment]:
    """Runs that only a sentence tells of: « Run ljokc85g achieved 0.75 reward with beta=0.1 »."""
    known = {run for one in found for run in one.runs}
    more = dict[str, FoundExperiment]()
    for section in sections:
        for line in section.lines:
            for run in runs_in(line.text):
                if run not in known:
                    date = date_in(section.title, *reversed(section.above))
                    own = replace(section, title="", lines=(line,))
                    one = replace(_read(run, f"Run {run}", [own], known), date=date, runs=(run,))
                    more[run] = _join(more[run], one) if run in more else one
    return list(more.values())
