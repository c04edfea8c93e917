"""What may be said of an entity: a relation, and the kinds of entities that have relations."""

from dataclasses import dataclass
from typing import Literal

Kind = Literal["person", "novel", "painting", "company", "ship", "city", "region", "river", "mountain"]

TWO_PART: tuple[Kind, ...] = ("person", "novel", "painting", "company", "ship")
"""The kinds whose names have two parts, so that another name may share one of them."""


@dataclass(frozen=True, kw_only=True)
class Relation:
    """One relation from entities of a kind to entities of a kind, or to the subject's year."""

    name: str
    """What it is called; unique."""
    subject: Kind
    """The kind of entity that it is said of."""
    object: Kind | Literal["year"]
    """The kind of entity that it leads to."""
    phrase: str
    """The object as a noun phrase; it ends with {s}, so that phrases nest without closing words piling up."""
    ask: str
    """A question for the object; {s} is a name, a noun phrase, or the number of an earlier answer."""
    sentences: tuple[str, ...]
    """Ways to state it in 10 to 20 words; {s} is the subject's name, or a short form of it."""
    older: tuple[int, int] = (0, 0)
    """By how many years the object is older than the subject, at least and at most; negative for younger."""
    female: bool | None = None
    """Whether the object is a woman; None where it may be anybody."""
    bars: tuple[str, ...] = ()
    """Relations that the object's own paragraph must not state, as they would undo or contradict this one."""
