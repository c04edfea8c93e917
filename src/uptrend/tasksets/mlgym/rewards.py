"""Rewards of a rollout, by scheme: what is paid for, out of one set of facts.

Improvements are changes of the score over the baseline, in the better direction, in units of the
task (from the baseline to par), within [-1, 1]: no task drowns another.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from uptrend.records import Part, Reward

Scheme = Literal["final", "validation-change", "validate-required", "code-quality", "graded"]


@dataclass(frozen=True)
class DenseParts:
    """`dense`: weights of parts beside the scheme's own reward."""

    validated: float = 0.0
    """For having validated at all: 0 or 1."""
    clean: float = 0.0
    """For commands without error: the share that were none."""
    change: float = 0.0
    """For the change of the validation score from the first validation to the last."""


@dataclass(frozen=True)
class Facts:
    """Facts about a finished rollout."""

    final: float | None  # improvement of what was submitted; None where nothing valid was
    # the same change as a share of the baseline, without bounds; 0 where nothing valid was
    relative: float
    validations: Sequence[float]  # improvement at each validation that gave a score
    commands: int
    errors: int  # commands that were refused, failed or were stopped
    edits: int
    bad_edits: int  # edits that the linter refused
    runs: int  # commands of the shell
    bad_runs: int  # those with another exit code than 0

    @property
    def error_rate(self) -> float:
        return self.errors / self.commands if self.commands else 0.0


def reward_of(facts: Facts, scheme: Scheme, dense: DenseParts) -> Reward:
    """Return a rollout's reward; parts of weight 0 are recorded and not paid."""
    final = -1.0 if facts.final is None else facts.final
    validated = float(bool(facts.validations))
    last = facts.validations[-1] if facts.validations else 0.0
    change = last - facts.validations[0] if facts.validations else 0.0
    if scheme == "validation-change":  # from the baseline, whatever is submitted in the end
        main = last
    elif scheme == "validate-required":
        main = final if validated else -1.0
    elif scheme == "graded":
        is_scored = validated and facts.final is not None
        main = _clip(5 * facts.relative - 0.5 - 0.5 * facts.error_rate) if is_scored else -1.0
    else:
        main = final
    parts = [Part(scheme, main, -1, 1)]
    if scheme == "code-quality":
        syntax = _clean(facts.bad_edits, facts.edits)
        runs = _clean(facts.bad_runs, facts.runs)
        parts = [
            Part("final", final, -1, 1, 0.5),
            Part("syntax", syntax, 0, 1, 0.2),
            Part("runs", runs, 0, 1, 0.2),
        ]
        dense = replace(dense, clean=dense.clean + 0.1)
    if scheme not in ("final", "code-quality"):
        parts.append(Part("final", final, -1, 1, 0.0))
    parts += [
        Part("validated", validated, 0, 1, dense.validated),
        Part("clean", 1 - facts.error_rate, 0, 1, dense.clean),
    ]
    if dense.change:
        parts.append(Part("change", _clip(change / 2), -1, 1, dense.change))
    total, low, high = (
        sum(p.weight * getattr(p, of) for p in parts) for of in ("value", "low", "high")
    )
    return Reward(total, low, high, final >= 1, tuple(parts))


def _clean(bad: int, count: int) -> float:
    return 1 - bad / count if count else 0.0


def _clip(value: float) -> float:
    return min(1.0, max(-1.0, value))
