"""Invents an atlas: multi-hop questions over people, places and works that exist nowhere, made
offline by seed.

Rows have the fields of MuSiQue's files. Each comes from a world of its own (`atlas_world`). The
order of random draws is part of the taskset's version: another order gives other questions.
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
    ENTITY_KINDS,
    RELATIONS_BY_SUBJECT,
    TEMPLATES,
    TWO_PART_KINDS,
    Entity,
    Fact,
    Kind,
    Relation,
    World,
)

# Shares, chosen by hand so that near misses and filler sentences are common.
# Chains that end with a year, where they can.
YEAR_SHARE = 0.3
# Paragraphs that state a second fact; the others have only sentences that no question asks about.
SECOND_FACT_SHARE = 0.75
# Second facts that lead to the answer's kind, where they can, so that it has many rivals.
ANSWER_KIND_SHARE = 0.5
# Paragraphs with three sentences; all others have two.
THIRD_SENTENCE_SHARE = 0.35
# Subjects of the chain whose name shares a word with a near miss's; one, drawn at random, always
# does.
NAMESAKE_SHARE = 0.5
# Additional paragraphs that are about an entity which another paragraph mentions; the others are
# about a new entity.
MENTIONED_SHARE = 0.5
MAX_PARAGRAPH_WORDS = 45
# Beginnings of the ids in MuSiQue's files, by the number of hops.
ID_PREFIXES = {2: "2hop", 3: "3hop1", 4: "4hop1"}
# Sentences that no question asks about, by kind of entity.
FILLER_TEMPLATES = TEMPLATES["colors"]
# More would exhaust the common words that names are made with.
MAX_PARAGRAPHS = 50

Chain = tuple[Fact, ...]
# With the fields of MuSiQue's files.
Row = dict[str, Any]
Paragraph = dict[str, Any]


@dataclass(frozen=True)
class AtlasOptions:
    """Options of the atlas."""

    hops: tuple[int, ...] = (2, 3, 4)
    """Numbers of hops that questions need, equally frequent."""
    paragraphs: int = 20
    """Documents per question, supporting ones included; at least two more than the most hops. From
    twice the hops on, there is a near miss for every hop.
    """

    def __post_init__(self) -> None:
        are_known = set(self.hops) <= set(ID_PREFIXES)
        are_unique = len(set(self.hops)) == len(self.hops)
        if not self.hops or not are_known or not are_unique:
            raise ConfigError(
                f"hops = {list(self.hops)} should have some of 2, 3 and 4, each once.",
                is_of_field=True,
            )
        most_hops = max(self.hops)
        min_paragraphs = most_hops + 2
        if not min_paragraphs <= self.paragraphs <= MAX_PARAGRAPHS:
            bounds = (
                f"from {min_paragraphs} (with questions of {most_hops} hops) to {MAX_PARAGRAPHS}"
            )
            raise ConfigError(
                f"paragraphs = {self.paragraphs} should be {bounds}.", is_of_field=True
            )


def rows(count: int, seed: int, options: AtlasOptions) -> Iterator[Row]:
    """Yield `count` examples with different questions; a larger count begins with the same ones."""
    questions: set[str] = set()
    for i in count_up():
        if len(questions) == count:
            return
        # Hashed, as seeds that only count up would give neighboring seeds most rows in common.
        digest = hashlib.sha256(f"atlas-{seed}-{i}".encode()).digest()
        example = row(int.from_bytes(digest[:5]), options)
        if example["question"] not in questions:
            questions.add(example["question"])
            yield example


def row(seed: int, options: AtlasOptions) -> Row:
    """Return one example, a pure function of the arguments."""
    world, chain = make_world(seed, options)
    paragraphs = write_paragraphs(world, chain)
    example: Row = {
        "id": f"{ID_PREFIXES[len(chain)]}__atlas-{seed}",
        "paragraphs": paragraphs,
        "question": compose(chain),
        "question_decomposition": decompose(chain, paragraphs, seed),
        "answer": chain[-1].answer,
        "answer_aliases": chain[-1].aliases,
        "answerable": True,
    }
    _assert_answerable(example, chain)
    return example


def _assert_answerable(example: Row, chain: Chain) -> None:
    """Assert that each hop is stated in its subject's paragraph and in no other, and that the
    question gives no answer away.
    """
    for fact, hop in zip(chain, example["question_decomposition"], strict=True):
        stating = []
        for paragraph in example["paragraphs"]:
            text = paragraph["paragraph_text"]
            if _names(text, fact.subject.name) and _names(text, fact.answer):
                stating.append(paragraph["idx"])
        details = (example["id"], fact.subject.name, fact.answer, stating)
        assert stating == [hop["paragraph_support_idx"]], details
        assert not _names(example["question"], fact.answer), details


def _names(text: str, name: str) -> bool:
    return name in text and re.search(rf"\b{name}\b", text) is not None


def make_world(seed: int, options: AtlasOptions) -> tuple[World, Chain]:
    """Make a world, and the chain of facts in it that its question asks along."""
    rng = random.Random(f"atlas-{seed}")
    hops = rng.choice(options.hops)
    world = World(rng)
    chain = make_chain(world, draw_relations(rng, hops))
    fill_world(world, chain, options.paragraphs)
    return world, chain


def draw_relations(rng: random.Random, hops: int) -> tuple[Relation, ...]:
    """Draw a chain: no relation twice, and at least one subject whose name another name can share a
    word with.
    """
    while True:
        relations = _try_relations(rng, hops)
        has_two_part_name = any(relation.subject in TWO_PART_KINDS for relation in relations)
        if len(relations) == hops and has_two_part_name:
            return tuple(relations)


def _try_relations(rng: random.Random, hops: int) -> list[Relation]:
    """Draw a chain of relations; it ends early at a kind that no unused relation continues."""
    kind = rng.choice(ENTITY_KINDS)
    relations: list[Relation] = []
    barred: Sequence[str] = ()
    ends_with_year = rng.random() < YEAR_SHARE
    for hop in range(hops):
        leads_to_year = ends_with_year and hop == hops - 1
        candidates = []
        for relation in RELATIONS_BY_SUBJECT[kind]:
            is_unused = relation not in relations and relation.name not in barred
            if is_unused and (relation.object == "year") == leads_to_year:
                candidates.append(relation)
        if not candidates:
            break
        relation = rng.choice(candidates)
        relations.append(relation)
        barred = relation.bars
        if relation.object != "year":
            kind = relation.object
    return relations


def make_chain(
    world: World,
    relations: Sequence[Relation],
    worded_like: Chain = (),
    namesakes: Sequence[str] = (),
) -> Chain:
    """Make new entities that these relations join, stated in the words of another chain if there is
    one.

    The i-th subject's name shares a word with the i-th of the namesakes, if that is not empty.
    """
    # Each fact makes its object, the next one's subject: one more entity than there are facts.
    n_without = len(relations) + 1 - len(namesakes)
    first_namesake, *object_namesakes = [*namesakes, *[""] * n_without]
    subject = world.new(relations[0].subject, namesake=first_namesake)
    facts = []
    for i, relation in enumerate(relations):
        wording = worded_like[i].wording if worded_like else None
        fact = world.state(subject, relation, wording, object_namesakes[i])
        facts.append(fact)
        if fact.object:  # not after a year, which leads nowhere
            subject = fact.object
    return tuple(facts)


def fill_world(world: World, chain: Chain, paragraphs: int) -> None:
    """Fill a world that has only the chain, until this many of its entities have paragraphs."""
    chain_entities: list[Entity] = []
    for fact in chain:
        chain_entities.append(fact.subject)
        if fact.object:
            chain_entities.append(fact.object)
    _add_near_misses(world, chain, paragraphs)
    while len(world.facts) < paragraphs:
        _add_paragraph(world, chain)
    for subject in list(world.facts):
        _add_second_fact(world, subject, chain[-1].relation, chain_entities)


def _add_near_misses(world: World, chain: Chain, paragraphs: int) -> None:
    """Add chains of the same relations in the same words: two or three, if they fit.

    The first one's names share words with the chain's own. If it does not fit whole, it has the
    last hops: a near miss matters most beside the answer.
    """
    n_hops = min(len(chain), paragraphs - len(chain))
    last_facts = chain[-n_hops:]
    namesakes = _draw_namesakes(world.rng, last_facts)
    make_chain(world, [fact.relation for fact in last_facts], last_facts, namesakes)
    relations = [fact.relation for fact in chain]
    for _ in range(world.rng.choice((1, 2))):
        if len(world.facts) + len(chain) <= paragraphs:
            make_chain(world, relations, chain)


def _draw_namesakes(rng: random.Random, facts: Chain) -> list[str]:
    """Draw the subjects whose names share a word with a near miss's, at least one where a name has
    two parts; return the name of each, and an empty one for the others.
    """
    two_part = [i for i, fact in enumerate(facts) if fact.subject.kind in TWO_PART_KINDS]
    certain = rng.choice(two_part) if two_part else None
    namesakes = [""] * len(facts)
    for i in two_part:
        if i == certain or rng.random() < NAMESAKE_SHARE:
            namesakes[i] = facts[i].subject.name
    return namesakes


def _add_paragraph(world: World, chain: Chain) -> None:
    """Add a paragraph about a new entity, or one that was only mentioned (perhaps the answer)."""
    only_mentioned = []
    for facts in world.facts.values():
        for fact in facts:
            if fact.object and fact.object not in world.facts:
                only_mentioned.append(fact.object)
    if only_mentioned and world.rng.random() < MENTIONED_SHARE:
        subject = world.rng.choice(only_mentioned)
    else:
        subject = world.new(world.rng.choice(chain).subject.kind)
    world.state(subject, world.rng.choice(world.unstated(subject)))


def _add_second_fact(
    world: World, subject: Entity, last: Relation, chain_entities: list[Entity]
) -> None:
    """Perhaps add a fact about a subject; it may lead to any entity but the chain's own, which
    nothing else may mention.
    """
    relations = world.unstated(subject)
    if not relations or world.rng.random() >= SECOND_FACT_SHARE:
        return
    rivals = [relation for relation in relations if relation.object == last.object]
    if rivals and world.rng.random() < ANSWER_KIND_SHARE:
        relations = rivals
    relation = world.rng.choice(relations)
    excluded = [*chain_entities, subject]
    others = [entity for entity in world.facts if entity not in excluded]
    if not world.link(subject, relation, others):
        world.state(subject, relation)


def write_paragraphs(world: World, chain: Chain) -> list[Paragraph]:
    """Write a paragraph for each entity that facts are about, in random order; the chain's own
    support the answer.
    """
    supporting = [fact.subject.name for fact in chain]
    fillers: dict[Kind, list[str]] = {}
    titled_texts = [(entity.name, _write(world, entity, fillers)) for entity in world.facts]
    world.rng.shuffle(titled_texts)
    paragraphs = []
    for i, (title, text) in enumerate(titled_texts):
        paragraphs.append(
            {"idx": i, "title": title, "paragraph_text": text, "is_supporting": title in supporting}
        )
    return paragraphs


def _write(world: World, entity: Entity, fillers: dict[Kind, list[str]]) -> str:
    """Write an entity's paragraph: its facts, and sentences that fill it up.

    `fillers` has the unused templates of each kind, so that none is used twice before all were.
    """
    facts = list(world.facts[entity])
    world.rng.shuffle(facts)
    sentences: list[str] = []
    for fact in facts:
        fact_object = fact.object.called if fact.object else str(entity.year)
        template = fact.relation.sentences[fact.wording]
        sentences.append(_sentence(template, entity, fact_object, is_first=not sentences))
    n_sentences = 3 if world.rng.random() < THIRD_SENTENCE_SHARE else 2
    while len(sentences) < n_sentences:
        if not fillers.get(entity.kind):
            fillers[entity.kind] = list(FILLER_TEMPLATES[entity.kind])
            world.rng.shuffle(fillers[entity.kind])
        filler = _sentence(fillers[entity.kind].pop(), entity, "", is_first=not sentences)
        paragraph = " ".join([*sentences, filler])
        if len(paragraph.split()) > MAX_PARAGRAPH_WORDS:
            break
        sentences.append(filler)
    return " ".join(sentences)


def _sentence(template: str, entity: Entity, fact_object: str, *, is_first: bool) -> str:
    """Fill in a template: the whole name in a paragraph's first sentence, then a short form."""
    subject = entity.called if is_first else entity.short
    text = template.format(s=subject, o=fact_object)
    return text[0].upper() + text[1:]


def compose(chain: Chain) -> str:
    """Return the question: noun phrases nest from the first entity outward, and the last relation
    asks.
    """
    phrase = chain[0].subject.called
    for fact in chain[:-1]:
        phrase = fact.relation.phrase.format(s=phrase)
    return chain[-1].relation.ask.format(s=phrase)


def decompose(chain: Chain, paragraphs: list[Paragraph], seed: int) -> list[dict[str, Any]]:
    """Return the question of each hop; #1 is the answer of the first one, and so on."""
    idx_by_title = {paragraph["title"]: paragraph["idx"] for paragraph in paragraphs}
    hops = []
    for i, fact in enumerate(chain):
        subject = f"#{i}" if i else fact.subject.called
        hops.append(
            {
                "id": seed * 10 + i,
                "question": fact.relation.ask.format(s=subject),
                "answer": fact.answer,
                "paragraph_support_idx": idx_by_title[fact.subject.name],
            }
        )
    return hops
