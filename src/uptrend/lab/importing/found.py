"""What an importer found in a journal."""

from dataclasses import dataclass, field

from uptrend.lab.importing.marks import Figure
from uptrend.lab.importing.outline import OutlineLine


@dataclass(frozen=True)
class FoundExperiment:
    """One experiment, whatever sections tell of it."""

    key: str
    """A1, 1.0 or a run id; empty where it has neither."""
    title: str
    """Its heading, without date and run id."""
    lines: tuple[OutlineLine, ...]
    """All lines that tell of it, in order."""
    date: str = ""
    """When, where it is said."""
    runs: tuple[str, ...] = ()
    """Run ids."""
    statuses: tuple[str, ...] = ()
    """Where it was reported to stand, the last said last."""
    settings: dict[str, str] = field(default_factory=dict)
    """Parameters, in the journal's names."""
    figures: tuple[Figure, ...] = ()
    """Measured numbers."""
    commands: tuple[str, ...] = ()
    """Fenced code."""
    outcome: str = ""
    """What came of it, in the journal's words."""


@dataclass(frozen=True)
class FoundHypothesis:
    """One hypothesis."""

    id: str
    """h03, where the journal numbers it; empty where not."""
    claim: str
    """What it says."""
    lines: tuple[OutlineLine, ...] = ()
    """All lines that tell of it, in order."""
    priority: str = ""
    """high, medium or low, where it is said."""
    statuses: tuple[str, ...] = ()
    """Where it was reported to stand, the last said last."""
    confidence: str = ""
    """As reported: high, medium or low."""
    notes: str = ""
    """The table's note."""
    fields: dict[str, str] = field(default_factory=dict)
    """Issue, Test, Reasoning and what else is said by name."""
    runs: tuple[str, ...] = ()
    """Runs that were to test it."""


@dataclass(frozen=True)
class Journal:
    """One source, read."""

    name: str
    """The file's name."""
    title: str
    """Its first heading."""
    lines: tuple[OutlineLine, ...]
    """All of it, repaired."""
    repaired: int
    """How many torn characters were made whole."""
    is_problem: bool
    """Whether it is a problem statement."""
    experiments: tuple[FoundExperiment, ...]
    hypotheses: tuple[FoundHypothesis, ...]
    recognized: frozenset[int]
    """Lines of which something was understood."""
    elsewhere: dict[int, str]
    """Lines that go into an entry or a hypothesis, by the heading under which they do; the rest stays where it is."""

    @property
    def prose(self) -> list[tuple[int, int]]:
        """First and last of each stretch of lines of which nothing was understood, blank ones apart."""
        kept = [line.number for line in self.lines if line.text.strip() and line.number not in self.recognized]
        spans = list[tuple[int, int]]()
        blank = {line.number for line in self.lines if not line.text.strip()}
        for number in kept:
            joins = spans and all(between in blank for between in range(spans[-1][1] + 1, number))
            if joins:
                spans[-1] = (spans[-1][0], number)
            else:
                spans.append((number, number))
        return spans
