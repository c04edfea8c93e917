"""Chains of facts: each one's object is the next one's subject, and the last one's object is an answer."""

import random
from collections.abc import Sequence

from uptrend.tasks.musique.atlas.relation import TWO_PART, Relation
from uptrend.tasks.musique.atlas.relations import KINDS, OF
from uptrend.tasks.musique.atlas.world import Fact, World

YEAR_SHARE = 0.3
"""How many chains end with a year, where they can."""

Chain = tuple[Fact, ...]


def draw_relations(rng: random.Random, hops: int) -> tuple[Relation, ...]:
    """The relations of a chain: none twice, and at least one subject whose name another name can share a word with."""
    while True:
        walked = _walk(rng, hops)
        if len(walked) == hops and any(relation.subject in TWO_PART for relation in walked):
            return walked


def lay(world: World, relations: Sequence[Relation], like: Chain = (), namesakes: Sequence[str] = ()) -> Chain:
    """Make new entities that these relations join; with a chain to be like, in the same words as there.

    The i-th subject's name shares a word with the i-th of the namesakes, where that is not empty.
    """
    names = [*namesakes, *[""] * (len(relations) + 1 - len(namesakes))]
    subject, facts = world.new(relations[0].subject, namesake=names[0]), []
    for i, relation in enumerate(relations):
        fact = world.state(subject, relation, like[i].wording if like else None, names[i + 1])
        facts.append(fact)
        subject = fact.object or subject
    return tuple(facts)


def _walk(rng: random.Random, hops: int) -> tuple[Relation, ...]:
    kind, walked, barred = rng.choice(KINDS), list[Relation](), tuple[str, ...]()
    ends_with_year = rng.random() < YEAR_SHARE
    while len(walked) < hops:
        leads_to_year = ends_with_year and len(walked) == hops - 1
        ways = [
            relation
            for relation in OF[kind]
            if (relation.object == "year") == leads_to_year and relation not in walked and relation.name not in barred
        ]
        if not ways:
            break
        relation = rng.choice(ways)
        walked.append(relation)
        barred = relation.bars
        if relation.object != "year":
            kind = relation.object
    return tuple(walked)
