"""What a step of the trainer leaves behind, and what has to be known of the trainer to read it."""

from dataclasses import dataclass, field
from typing import Any, Self

from uptrend.bridge.trl.batch import Batch, Pass
from uptrend.bridge.trl.weights import Snapshot


@dataclass
class Step:
    """What one step of the trainer left behind."""

    began: float = 0.0
    step: int = 0
    batches: list[Batch] = field(default_factory=list)
    passes: list[tuple[Batch, Pass]] = field(default_factory=list)
    gradient: Any = None
    lr: float = float("nan")
    skipped: bool = False
    moved: tuple[Snapshot | None, Snapshot] | None = None
    gaps: dict[str, Any] = field(default_factory=dict)
    sampling: float = 0.0
    seconds: float = 0.0
    waited: float = 0.0


@dataclass(frozen=True)
class Settings:
    """What rollouts and metrics need to know of the trainer."""

    seed: int
    stops: frozenset[int]
    loss: str
    max_tokens: int
    size: int
    beta: float
    clip: tuple[float, float]
    lr: float
    max_norm: float
    processes: int

    @classmethod
    def of(cls, trainer: Any) -> Self:
        """From a trainer."""
        args = trainer.args
        return cls(
            args.seed, frozenset(trainer.eos_token_ids), args.loss_type, args.max_completion_length,
            args.num_generations, args.beta, (trainer.epsilon_low, trainer.epsilon_high), args.learning_rate,
            float(args.max_grad_norm or 0.0), trainer.accelerator.num_processes,
        )  # fmt: skip
