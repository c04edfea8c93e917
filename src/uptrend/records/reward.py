"""What a rollout earned, with the parts that it is made of and the bounds of each."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Part:
    """One component of a reward."""

    name: str
    """What it measures."""
    value: float
    """What this rollout got."""
    low: float
    """The least it can be."""
    high: float
    """The most it can be."""
    weight: float = 1.0
    """Its factor in the total."""


@dataclass(frozen=True)
class Reward:
    """The score of one rollout."""

    total: float
    """What the learner is given."""
    low: float
    """The least that the total can be."""
    high: float
    """The most that the total can be; a gold answer reaches it."""
    correct: bool
    """Whether the answer is right, however it is graded: held-out accuracy counts these."""
    parts: tuple[Part, ...] = ()
    """The components, in a fixed order."""

    @classmethod
    def of(cls, name: str, value: float, low: float, high: float, correct: bool) -> "Reward":
        """A reward of one part."""
        return cls(value, low, high, correct, (Part(name, value, low, high),))
