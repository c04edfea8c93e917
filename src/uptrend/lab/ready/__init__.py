"""Ready hypotheses: eight that people had of runs that did not learn, each with its arms or the probe that decides."""

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from importlib import resources
from pathlib import Path

from uptrend.lab import hypothesis_file
from uptrend.lab.draft import Draft, relative
from uptrend.lab.hypothesis_file import read_page
from uptrend.records import Hypothesis, LabError


@cache
def all_ready() -> dict[str, Draft]:
    """The ready ones by id; their recipes are relative to the repository's root."""
    folder = resources.files(__name__)
    with resources.as_file(folder) as path:
        return {draft.hypothesis.id: draft for draft in map(_read, sorted(Path(path).glob("h*.md")))}


def of_ready(named: str, id: str, recipe: Path | None, folder: Path, there: Sequence[Hypothesis]) -> Draft:
    """A ready one under an id of a lab, on its own recipe or another; it waits only for those that are there."""
    found = all_ready()
    if named not in found:
        raise LabError(f"There is no ready hypothesis {named}; there are {', '.join(found)}.")
    h, prose = found[named].hypothesis, found[named].prose
    base = relative(recipe or Path(h.recipe), folder)
    titles = {found[first].hypothesis.title for first in h.prerequisites}
    first = tuple(other.id for other in there if other.title in titles)
    h = replace(h, id=id, recipe=base, prerequisites=first)
    return Draft(h, {name: text.replace("RECIPE", base) for name, text in prose.items()})


def _read(path: Path) -> Draft:
    prose = hypothesis_file.sections(read_page(path).body)
    prose.pop("")  # the heading, which is written anew
    return Draft(hypothesis_file.read(path), prose)
