"""`Count the words: cat cat cat. Answer: ` and `Count the letters in: cat. Answer: `"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from uptrend.records import Task, TasksetError
from uptrend.tasks.arithmetic.family import Family, check_range, question
from uptrend.tasks.arithmetic.play import Grading

Kind = Literal["words", "letters"]

# What letters are counted in: ten words of each length from 3 to 10, and the short ones that there are.
SPELLED = """
a I
an as at be by do go he if in is it me my no of on or so to up us we
ant bee cat dog egg fox hat jar key map
bear book cake door fish gold lamp moon star tree
apple bread chair dream grape house juice lemon river stone
banana bridge candle doctor flower garden island kitten orange winter
balloon chicken diamond freedom giraffe holiday kitchen morning pumpkin rainbow
airplane birthday computer dinosaur elephant football hospital mountain sandwich triangle
adventure butterfly chocolate crocodile dangerous education furniture hamburger important telephone
basketball blackberry chimpanzee dictionary friendship helicopter strawberry television toothbrush university
"""
REPEATED = """
apple cat dog star book tree fish moon lamp door bear cake
house river stone bread chair lemon egg fox key map hat jar
"""


@dataclass(frozen=True, kw_only=True)
class CountingProblems:
    """Which problems."""

    kinds: tuple[Kind, ...] = ("words", "letters")
    """What is counted."""
    high: int = 10
    """The largest count; the least is 1. Words with more than 10 letters are not asked about."""


@dataclass(frozen=True, kw_only=True)
class CountingOptions(CountingProblems, Grading):
    """The options of `counting`."""


class Counting(Family):
    """How many words, or letters in a word: `Count the words: cat cat cat. Answer: `."""

    name: ClassVar[str] = "counting"
    Options: ClassVar[type[Any]] = CountingOptions

    def __init__(self, options: CountingOptions, seed: int) -> None:
        super().__init__(options, seed)
        check_range(self.name, 1, options.high)
        if not options.kinds:
            raise TasksetError("counting: kinds is empty; it takes words and letters.")

    def problems(self) -> Iterator[tuple[str, str, int]]:
        """Every word as often as may be, and every word whose letters are few enough."""
        if "words" in self.options.kinds:
            counts = range(1, self.options.high + 1)
            yield from (("words", word, count) for word in REPEATED.split() for count in counts)
        if "letters" in self.options.kinds:
            short = (word for word in SPELLED.split() if len(word) <= self.options.high)
            yield from (("letters", word, len(word)) for word in short)

    def task(self, problem: tuple[str, str, int]) -> Task:
        """Harder is a larger count."""
        kind, word, count = problem
        asked = f"words: {' '.join([word] * count)}" if kind == "words" else f"letters in: {word}"
        data = {"kind": kind, "word": word, "base": 10}
        return Task(question(f"Count the {asked}. Answer: "), str(count), self.name, float(count), data)
