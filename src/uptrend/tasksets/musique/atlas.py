"""An invented atlas: multi-hop questions over people, places and works that exist nowhere, made
offline by seed.

Rows have the fields of MuSiQue's files. Each comes from a world of its own (`atlas_world`).
"""

import hashlib
import random
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import count as count_up
from typing import Any

from uptrend.records import ConfigError
from uptrend.tasksets.musique.atlas_world import (
    ATLAS,
    KINDS,
    OF,
    TWO_PART,
    Entity,
    Fact,
    Kind,
    Relation,
    World,
)

# Share of chains that end with a year, where they can.
YEAR_SHARE = 0.3
# Share of paragraphs that state a second fact; the others have only sentences that no question asks
# about.
SECOND_FACT = 0.75
# Share of second facts that lead to the answer's kind, where they can, so that it has many rivals.
LIKE_ANSWER = 0.5
# The most words of a paragraph.
MOST_WORDS = 45
# Share of paragraphs with three sentences; all others have two.
THIRD_SENTENCE = 0.35
# Beginnings of the ids in MuSiQue's files, by the number of hops.
SHAPES = {2: "2hop", 3: "3hop1", 4: "4hop1"}
# More would exhaust the common words that names are made with.
MOST_PARAGRAPHS = 50

Chain = tuple[Fact, ...]


@dataclass(frozen=True)
class AtlasOptions:
    """Options of the atlas."""

    hops: tuple[int, ...] = (2, 3, 4)
    """The numbers of hops that questions need, equally frequent."""
    paragraphs: int = 20
    """Documents per question, supporting ones included; at least two more than the most hops. From
    twice the hops on, there is a near miss for every hop.
    """

    def __post_init__(self) -> None:
        if (
            not self.hops
            or not set(self.hops) <= set(SHAPES)
            or len(set(self.hops)) < len(self.hops)
        ):
            raise ConfigError(
                f"hops = {list(self.hops)} should have some of 2, 3 and 4, each once.",
                is_of_field=True,
            )
        most = max(self.hops)
        if not most + 2 <= self.paragraphs <= MOST_PARAGRAPHS:
            bounds = f"from {most + 2} (with questions of {most} hops) to {MOST_PARAGRAPHS}"
            raise ConfigError(
                f"paragraphs = {self.paragraphs} should be {bounds}.", is_of_field=True
            )


def rows(count: int, seed: int, options: AtlasOptions) -> Iterator[dict[str, Any]]:
    """Yield so many examples with different questions; a larger count begins with the same ones."""
    asked: set[str] = set()
    for i in count_up():
        if len(asked) == count:
            return
        # Hashed, as seeds that only count up would give neighboring seeds most rows in common.
        made = row(
            int.from_bytes(hashlib.sha256(f"atlas-{seed}-{i}".encode()).digest()[:5]), options
        )
        if made["question"] not in asked:
            asked.add(made["question"])
            yield made


def row(seed: int, options: AtlasOptions) -> dict[str, Any]:
    """Return one example, a pure function of the arguments."""
    world, chain = make_world(seed, options)
    paragraphs = write_paragraphs(world, chain)
    made: dict[str, Any] = {
        "id": f"{SHAPES[len(chain)]}__atlas-{seed}",
        "paragraphs": paragraphs,
        "question": compose(chain),
        "question_decomposition": decompose(chain, paragraphs, seed),
        "answer": chain[-1].answer,
        "answer_aliases": chain[-1].aliases,
        "answerable": True,
    }
    # Each hop is stated by one paragraph, its subject's, and the question names nothing that it
    # asks for.
    for fact, part in zip(chain, made["question_decomposition"], strict=True):
        texts = [paragraph["paragraph_text"] for paragraph in paragraphs]
        stating = [
            i
            for i, text in enumerate(texts)
            if _names(text, fact.subject.name) and _names(text, fact.answer)
        ]
        assert stating == [part["paragraph_support_idx"]], (
            made["id"],
            fact.subject.name,
            fact.answer,
            stating,
        )
        assert not _names(made["question"], fact.answer), (made["id"], fact.answer)
    return made


def _names(text: str, name: str) -> bool:
    return name in text and re.search(rf"\b{name}\b", text) is not None


def make_world(seed: int, options: AtlasOptions) -> tuple[World, Chain]:
    """Make a world, and the chain of facts in it that its question asks along."""
    rng = random.Random(f"atlas-{seed}")
    hops = rng.choice(options.hops)
    world = World(rng)
    chain = lay(world, draw_relations(rng, hops))
    surround(world, chain, options.paragraphs)
    return world, chain


def draw_relations(rng: random.Random, hops: int) -> tuple[Relation, ...]:
    """Draw a chain: no relation twice, and at least one subject whose name another name can share a
    word with.
    """
    while True:
        kind = rng.choice(KINDS)
        walked = list[Relation]()
        barred = list[str]()
        ends_with_year = rng.random() < YEAR_SHARE
        while len(walked) < hops:
            to_year = ends_with_year and len(walked) == hops - 1
            unused = [
                relation
                for relation in OF[kind]
                if relation not in walked and relation.name not in barred
            ]
            ways = [relation for relation in unused if (relation.object == "year") == to_year]
            if not ways:
                break
            relation = rng.choice(ways)
            walked.append(relation)
            barred = list(relation.bars)
            if relation.object != "year":
                kind = relation.object
        if len(walked) == hops and any(relation.subject in TWO_PART for relation in walked):
            return tuple(walked)


def lay(
    world: World, relations: Sequence[Relation], like: Chain = (), namesakes: Sequence[str] = ()
) -> Chain:
    """Make new entities that these relations join; with a chain to be like, in the same words as
    there.

    The i-th subject's name shares a word with the i-th of the namesakes, where that is not empty.
    """
    names = [*namesakes, *[""] * (len(relations) + 1 - len(namesakes))]
    subject = world.new(relations[0].subject, namesake=names[0])
    facts = []
    for i, relation in enumerate(relations):
        fact = world.state(subject, relation, like[i].wording if like else None, names[i + 1])
        facts.append(fact)
        subject = fact.object or subject
    return tuple(facts)


def surround(world: World, chain: Chain, paragraphs: int) -> None:
    """Fill a world that has only the chain, until this many of its entities have paragraphs."""
    own = [entity for fact in chain for entity in (fact.subject, fact.object) if entity]
    _lay_likenesses(world, chain, paragraphs)
    while len(world.facts) < paragraphs:
        _add(world, chain)
    for subject in list(world.facts):
        _say_more(world, subject, chain[-1].relation, own)


# Chains of the same relations in the same words, two or three where there is room. The first one's
# names share words with the chain's own, and where it does not fit whole it has the last hops: a
# near miss matters most beside the answer.
def _lay_likenesses(world: World, chain: Chain, paragraphs: int) -> None:
    tail = chain[-min(len(chain), paragraphs - len(chain)) :]
    able = [i for i, fact in enumerate(tail) if fact.subject.kind in TWO_PART]
    sure = world.rng.choice(able) if able else -1
    sharing = [i for i in able if i == sure or world.rng.random() < 0.5]
    namesakes = [fact.subject.name if i in sharing else "" for i, fact in enumerate(tail)]
    lay(world, [fact.relation for fact in tail], tail, namesakes)
    for _ in range(world.rng.choice((1, 2))):
        if len(world.facts) + len(chain) <= paragraphs:
            lay(world, [fact.relation for fact in chain], chain)


# One more paragraph: about an entity that was only mentioned, the answer perhaps, or about a new
# one.
def _add(world: World, chain: Chain) -> None:
    mentioned = [fact.object for facts in world.facts.values() for fact in facts if fact.object]
    untold = [entity for entity in mentioned if entity not in world.facts]
    if untold and world.rng.random() < 0.5:
        subject = world.rng.choice(untold)
    else:
        subject = world.new(world.rng.choice(chain).subject.kind)
    world.state(subject, world.rng.choice(world.sayable(subject)))


# A second fact; it may lead to any entity but the chain's own, which nothing else may mention.
def _say_more(world: World, subject: Entity, last: Relation, own: list[Entity]) -> None:
    ways = world.sayable(subject)
    if not ways or world.rng.random() >= SECOND_FACT:
        return
    rivals = [relation for relation in ways if relation.object == last.object]
    relation = world.rng.choice(rivals if rivals and world.rng.random() < LIKE_ANSWER else ways)
    others = [entity for entity in world.facts if entity not in own and entity != subject]
    if not world.link(subject, relation, others):
        world.state(subject, relation)


def write_paragraphs(world: World, chain: Chain) -> list[dict[str, Any]]:
    """Write a paragraph for each entity that facts are about, in random order; the chain's own
    support the answer.
    """
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

    def say(sentence: str, stated: str) -> str:
        # By the whole name in the first sentence, and then by a short form.
        text = sentence.format(s=entity.short if sentences else entity.called, o=stated)
        return text[0].upper() + text[1:]

    for fact in facts:
        stated = fact.object.called if fact.object else str(entity.year)
        sentences.append(say(fact.relation.sentences[fact.wording], stated))
    wanted = 3 if world.rng.random() < THIRD_SENTENCE else 2
    while len(sentences) < wanted:
        if not colors.get(entity.kind):  # no color is used twice before all were
            colors[entity.kind] = list(ATLAS["colors"][entity.kind])
            world.rng.shuffle(colors[entity.kind])
        color = say(colors[entity.kind].pop(), "")
        if len(" ".join([*sentences, color]).split()) > MOST_WORDS:
            break
        sentences.append(color)
    return " ".join(sentences)


def compose(chain: Chain) -> str:
    """Return the question: noun phrases nest from the first entity outwards, and the last relation
    asks.
    """
    phrase = chain[0].subject.called
    for fact in chain[:-1]:
        phrase = fact.relation.phrase.format(s=phrase)
    return chain[-1].relation.ask.format(s=phrase)


def decompose(chain: Chain, paragraphs: list[dict[str, Any]], seed: int) -> list[dict[str, Any]]:
    """Return the question of each hop; #1 is the answer of the first one, and so on."""
    places = {paragraph["title"]: paragraph["idx"] for paragraph in paragraphs}
    return [
        {
            "id": seed * 10 + i,
            "question": fact.relation.ask.format(s=f"#{i}" if i else fact.subject.called),
            "answer": fact.answer,
            "paragraph_support_idx": places[fact.subject.name],
        }
        for i, fact in enumerate(chain)
    ]
