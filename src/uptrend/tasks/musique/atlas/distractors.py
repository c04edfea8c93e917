"""What a world has besides a question's own chain: chains like it, and other entities of the same kinds."""

from uptrend.tasks.musique.atlas.chain import Chain, lay
from uptrend.tasks.musique.atlas.relation import TWO_PART, Relation
from uptrend.tasks.musique.atlas.world import Entity, World

SECOND_FACT = 0.75
"""How many paragraphs state a second fact; the others have only sentences that no question asks about."""
LIKE_ANSWER = 0.5
"""How many of the second facts lead to the answer's kind, where they can, so that it has many rivals."""


def surround(world: World, chain: Chain, paragraphs: int) -> None:
    """Fill a world that has only the chain, until this many of its entities have paragraphs."""
    own = [entity for fact in chain for entity in (fact.subject, fact.object) if entity]
    _lay_likenesses(world, chain, paragraphs)
    while len(world.facts) < paragraphs:
        _add(world, chain)
    for subject in list(world.facts):
        _say_more(world, subject, chain[-1].relation, own)


def _lay_likenesses(world: World, chain: Chain, paragraphs: int) -> None:
    """Chains of the same relations in the same words, two or three where there is room.

    The first one's names share words with the chain's own, and where it does not fit whole it has the last hops:
    a near miss matters most beside the answer.
    """
    tail = chain[-min(len(chain), paragraphs - len(chain)) :]
    lay(world, [fact.relation for fact in tail], tail, _namesakes(world, tail))
    for _ in range(world.rng.choice((1, 2))):
        if len(world.facts) + len(chain) <= paragraphs:
            lay(world, [fact.relation for fact in chain], chain)


def _namesakes(world: World, chain: Chain) -> list[str]:
    """For each subject its name, if the one beside it should share a word with it, at least once if it can."""
    able = [i for i, fact in enumerate(chain) if fact.subject.kind in TWO_PART]
    sure = world.rng.choice(able) if able else -1
    sharing = [i for i in able if i == sure or world.rng.random() < 0.5]
    return [fact.subject.name if i in sharing else "" for i, fact in enumerate(chain)]


def _add(world: World, chain: Chain) -> None:
    """One more paragraph: about an entity that was only mentioned, the answer perhaps, or about a new one."""
    mentioned = [fact.object for facts in world.facts.values() for fact in facts if fact.object]
    untold = [entity for entity in mentioned if entity not in world.facts]
    if untold and world.rng.random() < 0.5:
        subject = world.rng.choice(untold)
    else:
        subject = world.new(world.rng.choice(chain).subject.kind)
    world.state(subject, world.rng.choice(world.sayable(subject)))


def _say_more(world: World, subject: Entity, last: Relation, own: list[Entity]) -> None:
    """A second fact; it may lead to any entity but the chain's own, which nothing else may mention."""
    ways = world.sayable(subject)
    if not ways or world.rng.random() >= SECOND_FACT:
        return
    rivals = [relation for relation in ways if relation.object == last.object]
    relation = world.rng.choice(rivals if rivals and world.rng.random() < LIKE_ANSWER else ways)
    others = [entity for entity in world.facts if entity not in own and entity != subject]
    if not world.link(subject, relation, others):
        world.state(subject, relation)
