"""A step of the trainer, and the settings that are needed to read it. No torch."""

from dataclasses import dataclass, field, replace
from typing import Any, Self

from uptrend.bridge.trl.batch import Pass, TrlBatch


@dataclass
class TrlStep:
    """One step of the trainer."""

    began: float = 0.0
    step: int = 0
    batches: list[TrlBatch] = field(default_factory=list)
    passes: list[Pass] = field(default_factory=list)
    gradient: Any = None
    """Gradient norm before clipping; None where the trainer does not clip, and so computes none."""
    lr: float = float("nan")
    skipped: bool = False
    moved: dict[str, float] = field(default_factory=dict)
    """Metrics of the weights."""
    gaps: dict[str, Any] = field(default_factory=dict)
    sampling: float = 0.0
    seconds: float = 0.0
    waited: float = 0.0
    memory: float = 0.0
    """The most memory taken so far, in GiB."""

    def portable(self) -> Self:
        """The same in arrays and plain values, for another process."""
        return replace(
            self,
            batches=[batch.portable() for batch in self.batches],
            passes=[seen.portable() for seen in self.passes],
            gradient=None if self.gradient is None else float(self.gradient),
        )


@dataclass(frozen=True)
class Settings:
    """Settings of the trainer that rollouts and metrics depend on."""

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
