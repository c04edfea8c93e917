"""A small invented world: kinds, relations, names, entities, and the facts that hold in it.

Every question has a world of its own, so that nothing learned from one answers another. Sentence
templates and syllables are in atlas.toml.
"""

import random
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

Kind = Literal[
    "person", "novel", "painting", "company", "ship", "city", "region", "river", "mountain"
]
KINDS: tuple[Kind, ...] = get_args(Kind)
# The kinds whose names have two parts, so that another name may share one of them.
TWO_PART: tuple[Kind, ...] = ("person", "novel", "painting", "company", "ship")


@dataclass(frozen=True, kw_only=True)
class Relation:
    """One relation from entities of a kind to entities of a kind, or to the subject's year."""

    name: str
    subject: Kind
    object: Kind | Literal["year"]
    # object as a noun phrase; it ends with {s}, so that phrases nest without closing words piling
    # up
    phrase: str
    # question for the object; {s} is a name, a noun phrase, or the number of an earlier answer
    ask: str
    # ways to state it in 10 to 20 words; {s} is the subject's name, or a short form of it
    sentences: Sequence[str]
    older: Sequence[int] = (0, 0)
    """By how many years the object is older than the subject, at least and at most; negative for
    younger.
    """
    female: bool | None = None  # True where the object is a woman; None where it may be anybody
    bars: Sequence[str] = ()
    """Relations that the object's own paragraph must not state, as they would undo or contradict
    this one.
    """


ATLAS: Any = tomllib.loads(Path(__file__).with_name("atlas.toml").read_text(encoding="utf-8"))
RELATIONS = tuple(Relation(**relation) for relation in ATLAS["relations"])
OF: dict[Kind, tuple[Relation, ...]] = {
    kind: tuple(relation for relation in RELATIONS if relation.subject == kind) for kind in KINDS
}
_SYLLABLES = ATLAS["syllables"]
STARTS = _SYLLABLES["starts"].split()
ENDINGS = {shape: syllables.split() for shape, syllables in _SYLLABLES["endings"].items()}
COMMON = {kind: words.split() for kind, words in ATLAS["common"].items()}
MIDDLES = _SYLLABLES["middles"]
INNER = _SYLLABLES["inner"]
VOWELS = _SYLLABLES["vowels"]
# Syllables make these too, but they are taken.
MEANT = {"Albania", "Corona", "Pelvis"}
# Tries for a name without words in common; only very large worlds need more than a few.
TRIES = 200


class Names:
    """The names of one world: pairwise different, and without a word in common unless asked for."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._words: set[str] = set(MEANT)

    def new(self, kind: str, *, female: bool = False, namesake: str = "") -> str:
        """Return a name for an entity of this kind; it shares the first or last part of a namesake
        of two parts.
        """
        kept = self._rng.choice((0, -1))
        words = [""]
        fresh = [""]
        for _ in range(TRIES):
            words = self._draw(kind, female)
            fresh = [word for word in words if word != "of"]
            if namesake:
                fresh.remove(words[kept])
                words[kept] = namesake.split()[kept]
            if self._words.isdisjoint(fresh):
                break
        self._words.update(fresh)
        return " ".join(words)

    def _draw(self, kind: str, female: bool) -> list[str]:
        if kind == "person":
            return [
                self._spell("woman" if female else "man", MIDDLES),
                self._spell("family", INNER),
            ]
        if kind == "company":
            return [self._spell("word", MIDDLES), self._rng.choice(COMMON[kind])]
        if kind == "ship":
            return [self._rng.choice(COMMON[kind]), self._spell("word", MIDDLES)]
        if kind in COMMON:
            return [self._rng.choice(COMMON[kind]), "of", self._spell("word", INNER)]
        return [self._spell(kind, VOWELS if kind in ("city", "mountain") else MIDDLES)]

    def _spell(self, shape: str, middles: list[str]) -> str:
        choose = self._rng.choice
        return str(choose(STARTS) + choose(middles) + choose(ENDINGS[shape]))


# When worlds are; no chain leads from there to years before 1000 or after today.
YEARS = (1530, 1730)
# Years that other facts stay within.
SPAN = (1050, 1990)
# The most years between an entity that nothing dates and its world's own year.
NEARBY = 60
# Articles before the names of these kinds.
ARTICLED: dict[Kind, str] = {"river": "the river ", "ship": "the "}


@dataclass(frozen=True, eq=False)
class Entity:
    """Somebody or something; equal only to itself, as names are unique and hashing by identity is
    quick.
    """

    kind: Kind
    name: str  # whole name, which no other entity of its world has
    year: int  # when it began; every entity of a world has a year of its own

    @property
    def called(self) -> str:
        """Its name as a sentence has it."""
        return ARTICLED.get(self.kind, "") + self.name

    @property
    def short(self) -> str:
        """Short form for later sentences. Never he or she, nor "the river": those could mean the
        object.
        """
        if self.kind == "person":
            return self.name.split()[0]
        return f"the {self.name}" if self.kind == "river" else f"the {self.kind}"


@dataclass(frozen=True)
class Fact:
    """One thing that holds."""

    subject: Entity
    relation: Relation
    # entity that the relation leads to; None where that is the subject's year
    object: Entity | None
    wording: int  # number of the relation's sentence that states it

    @property
    def answer(self) -> str:
        """The object as an answer."""
        return str(self.subject.year) if self.object is None else self.object.name

    @property
    def aliases(self) -> list[str]:
        """Other natural forms of the answer: those with an article."""
        if self.object is None or self.object.kind not in ARTICLED:
            return []
        return list(dict.fromkeys((f"the {self.object.name}", self.object.called)))


class World:
    """Entities and facts, which grow; what was said is never contradicted."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.facts: dict[Entity, list[Fact]] = {}
        """Facts of each entity's paragraph; an entity that is only mentioned has none."""
        self._year = rng.randrange(*YEARS)
        self._names = Names(rng)
        self._years: set[int] = set()
        self._barred: dict[Entity, set[str]] = {}
        self._led_to: set[tuple[str, Entity]] = set()

    def new(
        self, kind: Kind, year: int | None = None, female: bool | None = None, namesake: str = ""
    ) -> Entity:
        """Make an entity; with a namesake, one whose name shares a word with that name."""
        if year is None:
            year = self._year + self.rng.randrange(-NEARBY, NEARBY)
        while year in self._years:
            year -= 1
        self._years.add(year)
        if female is None:
            female = self.rng.random() < 0.5
        entity = Entity(kind, self._names.new(kind, female=female, namesake=namesake), year)
        self._barred[entity] = set()
        return entity

    def state(
        self, subject: Entity, relation: Relation, wording: int | None = None, namesake: str = ""
    ) -> Fact:
        """State a fact whose object is new."""
        if relation.object == "year":
            return self._state(subject, relation, None, wording)
        year = subject.year - self.rng.randint(*relation.older)
        return self._state(
            subject, relation, self.new(relation.object, year, relation.female, namesake), wording
        )

    def link(self, subject: Entity, relation: Relation, among: Sequence[Entity]) -> Fact | None:
        """State a fact whose object is one of these entities, if one of them may be."""
        least, most = relation.older
        # Within a kind (a river into a river) links could close a circle; between kinds, years keep
        # them sensible.
        fitting = [
            entity
            for entity in among
            if entity.kind == relation.object != subject.kind
            and least <= subject.year - entity.year <= most
            and (relation.name, entity) not in self._led_to
            and not any(fact.relation.name in relation.bars for fact in self.facts.get(entity, ()))
        ]
        return self._state(subject, relation, self.rng.choice(fitting)) if fitting else None

    def sayable(self, subject: Entity) -> list[Relation]:
        """Return the relations that may still be stated of an entity."""
        said = {fact.relation.name for fact in self.facts.get(subject, ())} | self._barred[subject]
        return [
            relation
            for relation in OF[subject.kind]
            if relation.name not in said
            and SPAN[0] <= subject.year - relation.older[1]
            and subject.year - relation.older[0] <= SPAN[1]
        ]

    def _state(
        self, subject: Entity, relation: Relation, entity: Entity | None, wording: int | None = None
    ) -> Fact:
        if wording is None:
            wording = self.rng.randrange(len(relation.sentences))
        fact = Fact(subject, relation, entity, wording)
        self.facts.setdefault(subject, []).append(fact)
        if entity is not None:
            self._barred[entity].update(relation.bars)
            self._led_to.add((relation.name, entity))
        return fact
