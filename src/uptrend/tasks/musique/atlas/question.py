"""A chain as a question that names only its first entity, and as the single questions that lead to the answer."""

from typing import Any

from uptrend.tasks.musique.atlas.chain import Chain


def compose(chain: Chain) -> str:
    """The question: noun phrases nest from the first entity outwards, and the last relation asks."""
    phrase = chain[0].subject.called
    for fact in chain[:-1]:
        phrase = fact.relation.phrase.format(s=phrase)
    return chain[-1].relation.ask.format(s=phrase)


def decompose(chain: Chain, paragraphs: list[dict[str, Any]], seed: int) -> list[dict[str, Any]]:
    """The question of each hop; #1 is the answer of the first one, and so on."""
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
