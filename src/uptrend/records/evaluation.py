"""One evaluation on the held-out tasks."""

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class Evaluation:
    """Results on the fixed held-out tasks after a step."""

    step: int
    """Steps before it; 0 is the model before training."""
    tasks: int
    """Tasks that were played."""
    correct: int
    """Tasks whose greedy answer was right."""
    low: float
    """Lower end of the accuracy's 95% interval."""
    high: float
    """Upper end of the accuracy's 95% interval."""
    failed: int
    """Tasks that could not be scored; they count as not right, and are shown apart."""
    reward: float | None
    """Mean reward over the tasks that were scored; None where none was."""
    by_family: dict[str, float]
    """Accuracy by kind of task."""
    parts: dict[str, float]
    """Mean of each component of the reward over the tasks that were scored."""
    pass_at: dict[int, float]
    """Chance that one of k sampled answers is right, by k; empty unless asked for."""
    seconds: float
    """Duration."""

    @property
    def accuracy(self) -> float:
        """Fraction of held-out tasks answered right."""
        return self.correct / self.tasks if self.tasks else math.nan
