"""A journal that people kept by hand, read: what is structured is recognized, the rest stays prose."""

from pathlib import Path

from uptrend.lab.importing.experiments import experiments_of
from uptrend.lab.importing.found import FoundExperiment, FoundHypothesis, Journal
from uptrend.lab.importing.hypotheses import claimed, numbered
from uptrend.lab.importing.marks import cells_in, fields_in, figures_in, runs_in, settings_in, status_in
from uptrend.lab.importing.outline import OutlineLine, lines_of, sections_of
from uptrend.lab.importing.repair import repair
from uptrend.records import LabError


def read_journal(path: Path) -> Journal:
    """All that is understood of a file."""
    text, repaired = repair(_text(path))
    sections = sections_of(text)
    title = next((section.title for section in sections if section.level == 1), path.stem)
    experiments, told = experiments_of(sections)
    hypotheses, owned = numbered(sections)
    hypotheses += claimed(experiments)
    return Journal(
        path.name,
        title,
        tuple(lines_of(text)),
        repaired,
        "problem statement" in title.lower(),
        tuple(experiments),
        tuple(hypotheses),
        _recognized(experiments, hypotheses),
        {**told, **owned},
    )


def _text(path: Path) -> str:
    try:
        return path.read_bytes().decode("utf-8").removeprefix("\ufeff")
    except FileNotFoundError:
        raise LabError(f"There is no file {path}.") from None
    except UnicodeDecodeError as error:
        raise LabError(f"{path} is not UTF-8 at byte {error.start}: save it as UTF-8, then import it.") from None
    except OSError as error:
        raise LabError(f"{path} could not be read: {error.strerror}.") from None


def _recognized(experiments: list[FoundExperiment], hypotheses: list[FoundHypothesis]) -> frozenset[int]:
    """Lines of experiments and hypotheses that say something by a form that is known."""
    told = [one.lines for one in experiments] + [one.lines for one in hypotheses]
    first = {lines[0].number for lines in told if lines}
    lines = [line for several in told for line in several]
    return frozenset(line.number for line in lines if line.number in first or _says_something(line))


def _says_something(line: OutlineLine) -> bool:
    text = line.text
    if not text.strip():
        return False
    if line.in_code:
        return True  # a command
    seen = (fields_in(text), cells_in(text), runs_in(text), status_in(text), figures_in(text, 0), settings_in(text))
    return any(seen) or text.lstrip().startswith("#")
