"""One evaluation on the held-out tasks, with the interval that its size allows."""

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class Evaluation:
    """How many of the fixed held-out tasks were answered rightly after a step."""

    step: int
    """After how many steps; 0 is the model before training."""
    tasks: int
    """How many tasks were played."""
    correct: int
    """How many of them greedily answered rightly."""
    failed: int
    """How many could not be scored; they count as not right, and are shown apart."""
    reward: float | None
    """Mean reward over those that were scored; None where none was."""
    by_family: dict[str, float]
    """Accuracy by kind of task."""
    parts: dict[str, float]
    """The mean of each component of the reward over those that were scored."""
    pass_at: dict[int, float]
    """The chance that one of k sampled answers is right, by k; empty unless asked for."""
    seconds: float
    """How long it took."""

    @property
    def accuracy(self) -> float:
        """The fraction of held-out tasks answered rightly."""
        return self.correct / self.tasks if self.tasks else math.nan

    @property
    def interval(self) -> tuple[float, float]:
        """The 95% interval of the accuracy."""
        return wilson(self.correct, self.tasks)


def wilson(successes: int, trials: int, z: float = 1.959964) -> tuple[float, float]:
    """Wilson's score interval for a fraction (JASA 22, 1927); it behaves at 0, at 1 and for few trials."""
    if trials == 0:
        return 0.0, 1.0
    p = successes / trials
    spread = z * math.sqrt(p * (1 - p) / trials + z * z / (4 * trials * trials))
    center = p + z * z / (2 * trials)
    scale = 1 + z * z / trials
    return max(0.0, (center - spread) / scale), min(1.0, (center + spread) / scale)


def pass_at_k(correct: int, attempts: int, k: int) -> float:
    """The unbiased chance that one of k attempts is right, from `correct` of all `attempts`.

    Chen et al. 2021, Evaluating large language models trained on code, equation 1.
    """
    assert 0 <= correct <= attempts
    assert 1 <= k <= attempts
    if attempts - correct < k:
        return 1.0
    return 1.0 - math.prod((attempts - correct - i) / (attempts - i) for i in range(k))


def mcnemar(only_a: int, only_b: int) -> float:
    """The exact two-sided p-value of a paired comparison, from the tasks that only one side answered rightly.

    If neither were better, each such task would fall to either side like a fair coin (McNemar 1947).
    """
    n, k = only_a + only_b, min(only_a, only_b)
    both_tails = 2 * sum(math.comb(n, i) for i in range(k + 1))
    return float(min(1.0, both_tails / 2**n))
