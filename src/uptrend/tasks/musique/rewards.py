"""What a rollout earns: a weighted mean of how right the answer is, what was found, what was cited, and the form.

total = Σ weight · part / Σ weight                 at most 1, whatever the number of hops
total = hops/2 · Σ weight · part / Σ weight        with `scale_by_hops`: 1 for two hops, 2 for four
"""

from collections.abc import Collection
from dataclasses import asdict, dataclass

from uptrend.records import Part, Reward
from uptrend.tasks.musique.answers import exact_match, f1
from uptrend.tasks.musique.reply import Reply


@dataclass(frozen=True)
class RewardWeights:
    """How much each part counts; only their ratios matter."""

    exact_match: float = 1.0
    """The answer is an accepted one, after SQuAD's normalization."""
    f1: float = 0.9
    """The answer's words against an accepted answer's."""
    retrieval_recall: float = 1.0
    """Which share of the supporting documents the tools showed."""
    retrieval_precision: float = 0.4
    """Which share of what the tools showed is supporting."""
    citation_recall: float = 0.6
    """Which share of the supporting documents is cited."""
    citation_precision: float = 0.0
    """Which share of what is cited is supporting."""
    format: float = 0.1
    """The three tags, each once and in order."""


def reward(
    reply: Reply, accepted: Collection[str], supporting: Collection[str], shown: Collection[str],
    weights: RewardWeights, scale: float, clean: float,
) -> Reward:  # fmt: skip
    """The reward of a reply, given which documents support the answer and which the tools showed.

    `clean` is the share of turns without a mistake in a call: recorded, not rewarded.
    """
    said = [reply.answer] if reply.answer is not None else []
    values = {
        "exact_match": max((exact_match(answer, accepted) for answer in said), default=0.0),
        "f1": max((f1(answer, accepted) for answer in said), default=0.0),
        "retrieval_recall": recall(shown, supporting),
        "retrieval_precision": precision(shown, supporting),
        "citation_recall": recall(reply.cited, supporting),
        "citation_precision": precision(reply.cited, supporting),
        "format": reply.format,
    }
    given = asdict(weights)
    whole = sum(given.values())
    parts = [Part(name, value, 0.0, 1.0, scale * given[name] / whole) for name, value in values.items()]
    total = sum(part.weight * part.value for part in parts)
    parts.append(Part("clean_turns", clean, 0.0, 1.0, 0.0))
    return Reward(min(total, scale), 0.0, scale, bool(values["exact_match"]), tuple(parts))


def recall(found: Collection[str], wanted: Collection[str]) -> float:
    """The share of what is wanted that was found."""
    return len(set(found) & set(wanted)) / len(set(wanted))


def precision(found: Collection[str], wanted: Collection[str]) -> float:
    """The share of what was found that is wanted; 0 where nothing was found."""
    return len(set(found) & set(wanted)) / len(set(found)) if found else 0.0
