"""Facts as short paragraphs."""

from typing import Any

from uptrend.tasks.musique.atlas.chain import Chain
from uptrend.tasks.musique.atlas.colors import COLORS
from uptrend.tasks.musique.atlas.relation import Kind
from uptrend.tasks.musique.atlas.world import Entity, Fact, World

MOST_WORDS = 45
"""How long a paragraph may become."""
THIRD_SENTENCE = 0.35
"""How many paragraphs have three sentences; all others have two."""


def write_paragraphs(world: World, chain: Chain) -> list[dict[str, Any]]:
    """A paragraph for each entity that facts are about, in random order; the chain's own support the answer."""
    supporting = [fact.subject.name for fact in chain]
    colors: dict[Kind, list[str]] = {}
    written = [(entity.name, _write(world, entity, colors)) for entity in world.facts]
    world.rng.shuffle(written)
    return [
        {"idx": i, "title": title, "paragraph_text": text, "is_supporting": title in supporting}
        for i, (title, text) in enumerate(written)
    ]


def _write(world: World, entity: Entity, colors: dict[Kind, list[str]]) -> str:
    facts = list(world.facts[entity])
    world.rng.shuffle(facts)
    sentences: list[str] = []
    for fact in facts:
        sentences.append(_say(fact.relation.sentences[fact.wording], entity, sentences, fact))
    wanted = 3 if world.rng.random() < THIRD_SENTENCE else 2
    while len(sentences) < wanted:
        color = _say(_next_color(world, entity.kind, colors), entity, sentences)
        if len(" ".join([*sentences, color]).split()) > MOST_WORDS:
            break
        sentences.append(color)
    return " ".join(sentences)


def _say(sentence: str, entity: Entity, before: list[str], fact: Fact | None = None) -> str:
    """A sentence about an entity, by its whole name in the first one and then by a short form."""
    stated = fact.object.called if fact and fact.object else str(entity.year)
    text = sentence.format(s=entity.short if before else entity.called, o=stated)
    return text[0].upper() + text[1:]


def _next_color(world: World, kind: Kind, colors: dict[Kind, list[str]]) -> str:
    """None is used twice before all were."""
    if not colors.get(kind):
        colors[kind] = list(COLORS[kind])
        world.rng.shuffle(colors[kind])
    return colors[kind].pop()
