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
ENTITY_KINDS: tuple[Kind, ...] = get_args(Kind)
# Kinds whose names have two parts, so that another name may share one of them.
TWO_PART_KINDS: tuple[Kind, ...] = ("person", "novel", "painting", "company", "ship")


@dataclass(frozen=True, kw_only=True)
class Relation:
    """A relation from entities of a kind to entities of a kind, or to the subject's year."""

    name: str
    subject: Kind
    object: Kind | Literal["year"]
    # object as a noun phrase ("the mother of {s}"); it ends with {s}, so that phrases nest without
    # closing words piling up
    phrase: str
    # question for the object; {s} is a name, a noun phrase, or the number of an earlier answer
    ask: str
    # ways to state it in 10 to 20 words; {s} is the subject's name, or a short form of it
    sentences: Sequence[str]
    older: Sequence[int] = (0, 0)
    """Years by which the object is older than the subject, at least and at most; negative for
    younger.
    """
    female: bool | None = None  # True if the object is a woman; None for either
    bars: Sequence[str] = ()
    """Relations that the object's own paragraph must not state, as they would undo or contradict
    this one.
    """


TEMPLATES: Any = tomllib.loads(Path(__file__).with_name("atlas.toml").read_text(encoding="utf-8"))
RELATIONS = tuple(Relation(**relation) for relation in TEMPLATES["relations"])


def _relations_of(kind: Kind) -> list[Relation]:
    return [relation for relation in RELATIONS if relation.subject == kind]


RELATIONS_BY_SUBJECT = {kind: _relations_of(kind) for kind in ENTITY_KINDS}

# A name is a start, a middle and an ending, or such a name beside a common word.
_SYLLABLES = TEMPLATES["syllables"]
NAME_STARTS = _SYLLABLES["starts"].split()
NAME_ENDINGS = {shape: syllables.split() for shape, syllables in _SYLLABLES["endings"].items()}
LONG_MIDDLES = _SYLLABLES["middles"]
INNER_MIDDLES = _SYLLABLES["inner"]
VOWEL_MIDDLES = _SYLLABLES["vowels"]
COMMON_WORDS = {kind: words.split() for kind, words in TEMPLATES["common"].items()}
# Syllables can make these words too, but they mean something.
REAL_WORDS = {"Albania", "Corona", "Pelvis"}
# Draws of a name without words in common; only very large worlds need more than a few.
MAX_NAME_DRAWS = 200


class Names:
    """Names of one world: all different, with no word in common except between namesakes."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._used_words: set[str] = set(REAL_WORDS)

    def new(self, kind: str, *, female: bool = False, namesake: str = "") -> str:
        """Return a name for an entity of this kind; it shares the first or last part of a namesake
        of two parts.
        """
        shared_part = self._rng.choice((0, -1))
        words = [""]
        new_words = [""]
        for _ in range(MAX_NAME_DRAWS):
            words = self._draw(kind, female)
            new_words = [word for word in words if word != "of"]
            if namesake:
                new_words.remove(words[shared_part])
                words[shared_part] = namesake.split()[shared_part]
            if self._used_words.isdisjoint(new_words):
                break
        self._used_words.update(new_words)
        return " ".join(words)

    def _draw(self, kind: str, female: bool) -> list[str]:
        if kind == "person":
            first_name = self._spell("woman" if female else "man", LONG_MIDDLES)
            family_name = self._spell("family", INNER_MIDDLES)
            return [first_name, family_name]
        if kind == "company":
            word = self._spell("word", LONG_MIDDLES)
            return [word, self._rng.choice(COMMON_WORDS[kind])]
        if kind == "ship":
            common_word = self._rng.choice(COMMON_WORDS[kind])
            return [common_word, self._spell("word", LONG_MIDDLES)]
        if kind in COMMON_WORDS:
            common_word = self._rng.choice(COMMON_WORDS[kind])
            return [common_word, "of", self._spell("word", INNER_MIDDLES)]
        middles = VOWEL_MIDDLES if kind in ("city", "mountain") else LONG_MIDDLES
        return [self._spell(kind, middles)]

    def _spell(self, shape: str, middles: list[str]) -> str:
        start = self._rng.choice(NAME_STARTS)
        middle = self._rng.choice(middles)
        ending = self._rng.choice(NAME_ENDINGS[shape])
        return str(start + middle + ending)


# First and last year of worlds' own years; no chain leads from there to years before 1000 or after
# today.
WORLD_YEARS = (1530, 1730)
# Years that other facts stay within.
MIN_FACT_YEAR = 1050
MAX_FACT_YEAR = 1990
# Maximum years between an entity that nothing dates and its world's own year.
MAX_YEARS_APART = 60
# Articles before the names of these kinds.
ARTICLES: dict[Kind, str] = {"river": "the river ", "ship": "the "}


@dataclass(frozen=True, eq=False)
class Entity:
    """A person, place, work or company; equal only to itself, as names are unique and hashing by
    identity is quick.
    """

    kind: Kind
    name: str  # whole name, which no other entity of its world has
    year: int  # when it began; every entity of a world has a year of its own

    @property
    def called(self) -> str:
        """Name as a sentence has it, with an article."""
        return ARTICLES.get(self.kind, "") + self.name

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
    """A relation of a subject to an object."""

    subject: Entity
    relation: Relation
    object: Entity | None  # None if the relation leads to the subject's year
    wording: int  # number of the relation's sentence that states it

    @property
    def answer(self) -> str:
        """Object as an answer."""
        return str(self.subject.year) if self.object is None else self.object.name

    @property
    def aliases(self) -> list[str]:
        """Other natural forms of the answer: those with an article."""
        if self.object is None or self.object.kind not in ARTICLES:
            return []
        return list(dict.fromkeys((f"the {self.object.name}", self.object.called)))


class World:
    """Entities and facts, which grow; no fact contradicts an earlier one."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.facts: dict[Entity, list[Fact]] = {}
        """Facts of each entity's paragraph; an entity that is only mentioned has none."""
        self._year = rng.randrange(*WORLD_YEARS)
        self._names = Names(rng)
        self._used_years: set[int] = set()
        self._barred: dict[Entity, set[str]] = {}
        self._stated_objects: set[tuple[str, Entity]] = set()  # with the relation's name

    def new(
        self, kind: Kind, year: int | None = None, female: bool | None = None, namesake: str = ""
    ) -> Entity:
        """Make an entity; with a namesake, one whose name shares a word with that name."""
        if year is None:
            year = self._year + self.rng.randrange(-MAX_YEARS_APART, MAX_YEARS_APART)
        while year in self._used_years:
            year -= 1
        self._used_years.add(year)
        if female is None:
            female = self.rng.random() < 0.5
        name = self._names.new(kind, female=female, namesake=namesake)
        entity = Entity(kind, name, year)
        self._barred[entity] = set()
        return entity

    def state(
        self, subject: Entity, relation: Relation, wording: int | None = None, namesake: str = ""
    ) -> Fact:
        """State a fact whose object is new."""
        if relation.object == "year":
            return self._state(subject, relation, None, wording)
        year = subject.year - self.rng.randint(*relation.older)
        entity = self.new(relation.object, year, relation.female, namesake)
        return self._state(subject, relation, entity, wording)

    def link(
        self, subject: Entity, relation: Relation, candidates: Sequence[Entity]
    ) -> Fact | None:
        """State a fact whose object is one of the candidates; return None if none can be it."""
        objects = [entity for entity in candidates if self._can_link(subject, relation, entity)]
        if not objects:
            return None
        return self._state(subject, relation, self.rng.choice(objects))

    def _can_link(self, subject: Entity, relation: Relation, entity: Entity) -> bool:
        # Within a kind (a river into a river) links could close a circle; between kinds, years keep
        # them sensible.
        if entity.kind != relation.object or entity.kind == subject.kind:
            return False
        min_older, max_older = relation.older
        if not min_older <= subject.year - entity.year <= max_older:
            return False
        if (relation.name, entity) in self._stated_objects:
            return False
        return self._stated_names(entity).isdisjoint(relation.bars)

    def _stated_names(self, subject: Entity) -> set[str]:
        """Return the names of the relations that were stated of an entity."""
        return {fact.relation.name for fact in self.facts.get(subject, ())}

    def unstated(self, subject: Entity) -> list[Relation]:
        """Return the relations that may still be stated of an entity."""
        excluded = self._stated_names(subject) | self._barred[subject]
        relations = []
        for relation in RELATIONS_BY_SUBJECT[subject.kind]:
            min_older, max_older = relation.older
            is_in_years = (
                subject.year - max_older >= MIN_FACT_YEAR
                and subject.year - min_older <= MAX_FACT_YEAR
            )
            if relation.name not in excluded and is_in_years:
                relations.append(relation)
        return relations

    def _state(
        self, subject: Entity, relation: Relation, entity: Entity | None, wording: int | None = None
    ) -> Fact:
        if wording is None:
            wording = self.rng.randrange(len(relation.sentences))
        fact = Fact(subject, relation, entity, wording)
        self.facts.setdefault(subject, []).append(fact)
        if entity is not None:
            self._barred[entity].update(relation.bars)
            self._stated_objects.add((relation.name, entity))
        return fact
