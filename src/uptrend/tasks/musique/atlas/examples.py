"""Rows as MuSiQue's files have them, each from a world of its own."""

import hashlib
import random
import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count as count_up
from typing import Any

from uptrend.records import ConfigError
from uptrend.tasks.musique.atlas.chain import Chain, draw_relations, lay
from uptrend.tasks.musique.atlas.distractors import surround
from uptrend.tasks.musique.atlas.paragraphs import write_paragraphs
from uptrend.tasks.musique.atlas.question import compose, decompose
from uptrend.tasks.musique.atlas.world import World

SHAPES = {2: "2hop", 3: "3hop1", 4: "4hop1"}
"""How the ids of chains begin in MuSiQue's files, by the number of hops."""
MOST_PARAGRAPHS = 50
"""More would exhaust the common words that names are made with."""


@dataclass(frozen=True)
class AtlasOptions:
    """Which questions."""

    hops: tuple[int, ...] = (2, 3, 4)
    """The numbers of hops that questions need, equally frequent."""
    paragraphs: int = 20
    """Documents a question, supporting ones included; at least two more than the most hops. From twice the hops on,
    there is a near miss for every hop."""

    def __post_init__(self) -> None:
        if not self.hops or not set(self.hops) <= set(SHAPES) or len(set(self.hops)) < len(self.hops):
            raise ConfigError(f"hops = {list(self.hops)} should have some of 2, 3 and 4, each once.", is_of_field=True)
        least = max(self.hops) + 2
        if not least <= self.paragraphs <= MOST_PARAGRAPHS:
            raise ConfigError(
                f"paragraphs = {self.paragraphs} should be from {least} (with questions of "
                f"{max(self.hops)} hops) to {MOST_PARAGRAPHS}.",
                is_of_field=True,
            )


def make_world(seed: int, options: AtlasOptions) -> tuple[World, Chain]:
    """A world, and the chain of facts in it that its question asks along."""
    rng = random.Random(f"atlas-{seed}")
    hops = rng.choice(options.hops)
    world = World(rng)
    chain = lay(world, draw_relations(rng, hops))
    surround(world, chain, options.paragraphs)
    return world, chain


def row(seed: int, options: AtlasOptions) -> dict[str, Any]:
    """One example, a pure function of its arguments."""
    world, chain = make_world(seed, options)
    paragraphs = write_paragraphs(world, chain)
    made = {
        "id": f"{SHAPES[len(chain)]}__atlas-{seed}",
        "paragraphs": paragraphs,
        "question": compose(chain),
        "question_decomposition": decompose(chain, paragraphs, seed),
        "answer": chain[-1].answer,
        "answer_aliases": chain[-1].aliases,
        "answerable": True,
    }
    _check(made, [(fact.subject.name, fact.answer) for fact in chain])
    return made


def rows(count: int, seed: int, options: AtlasOptions) -> Iterator[dict[str, Any]]:
    """So many examples with different questions; a larger count begins with the same ones."""
    asked: set[str] = set()
    for i in count_up():
        if len(asked) == count:
            return
        made = row(_derive(seed, i), options)
        if made["question"] not in asked:
            asked.add(made["question"])
            yield made


def _derive(seed: int, i: int) -> int:
    # Hashed, as seeds that only count up would give neighboring seeds most rows in common.
    return int.from_bytes(hashlib.sha256(f"atlas-{seed}-{i}".encode()).digest()[:5])


def _check(made: dict[str, Any], hops: list[tuple[str, str]]) -> None:
    """Each hop is stated by one paragraph, its subject's, and the question names nothing that it asks for."""
    for (subject, answer), part in zip(hops, made["question_decomposition"], strict=True):
        texts = [paragraph["paragraph_text"] for paragraph in made["paragraphs"]]
        stating = [i for i, text in enumerate(texts) if _names(text, subject) and _names(text, answer)]
        assert stating == [part["paragraph_support_idx"]], (made["id"], subject, answer, stating)
        assert not _names(made["question"], answer), (made["id"], answer)


def _names(text: str, name: str) -> bool:
    return name in text and re.search(rf"\b{name}\b", text) is not None
