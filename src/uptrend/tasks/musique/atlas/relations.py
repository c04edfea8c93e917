"""Everything that may be said, by the kind of entity that it is said of."""

from typing import get_args

from uptrend.tasks.musique.atlas.makings import MAKINGS
from uptrend.tasks.musique.atlas.people import PEOPLE
from uptrend.tasks.musique.atlas.places import PLACES
from uptrend.tasks.musique.atlas.relation import Kind, Relation

RELATIONS: tuple[Relation, ...] = (*PEOPLE, *MAKINGS, *PLACES)
KINDS: tuple[Kind, ...] = get_args(Kind)
OF: dict[Kind, tuple[Relation, ...]] = {
    kind: tuple(relation for relation in RELATIONS if relation.subject == kind) for kind in KINDS
}
