"""Runs as curves alone, for checks that read nothing else: a healthy one, and ways to bend it."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from uptrend.doctor.case import Case
from uptrend.doctor.check import Outcomes
from uptrend.doctor.checks import run_checks
from uptrend.records import CannotTell, Finding, RunView, Severity

STEPS = 120


def healthy(
    steps: int = STEPS, seed: int = 0, without: tuple[str, ...] = (), **bent: Any
) -> RunView:
    """Return a run that learns, 0.3 to 0.7, as TRL would log it; `bent` replaces metrics and fields
    of the view.
    """
    random = np.random.default_rng(seed)
    way = np.linspace(0, 1, steps)
    metrics = {
        "reward/mean": 0.3 + 0.4 * way + 0.05 * random.standard_normal(steps),
        "reward/group_std/mean": 0.35 + 0.02 * random.standard_normal(steps),
        "advantage/dead/share": np.clip(0.15 + 0.05 * random.standard_normal(steps), 0, 1),
        "sampling/length/mean": 200 + 5 * random.standard_normal(steps),
        "sampling/ended/length/share": np.clip(0.03 + 0.01 * random.standard_normal(steps), 0, 1),
        "kl/reference/mean": 0.05 * way * np.exp(0.1 * random.standard_normal(steps)),
        "learner/entropy/mean": 1.0 - 0.3 * way + 0.02 * random.standard_normal(steps),
        "gradient/norm/before": np.exp(0.3 * random.standard_normal(steps)),
        "optimizer/lr": 1e-5 * (1 - way),
        "loss/total": 0.001 * random.standard_normal(steps),
    }
    fields: dict[str, Any] = {
        "source": "log",
        "trainer": "trl",
        "name": "",
        "config": {"learning": {"lr": 1e-5}},
    }
    fields |= {key: bent.pop(key) for key in list(bent) if key in RunView.__dataclass_fields__}
    metrics |= {
        key: np.broadcast_to(np.asarray(value, float), (steps,)).copy()
        for key, value in bent.items()
    }
    kept = {key: value for key, value in metrics.items() if key not in without}
    return RunView(steps=np.arange(1, steps + 1), metrics=kept, **fields)


def ramp(first: float, last: float, steps: int = STEPS, noise: float = 0.0, seed: int = 1) -> Any:
    """Return a straight curve with noise."""
    return np.linspace(first, last, steps) + noise * np.random.default_rng(seed).standard_normal(
        steps
    )


def flat(level: float = 0.3, steps: int = STEPS, noise: float = 0.05) -> Any:
    """Return a curve that goes nowhere."""
    return ramp(level, level, steps, noise)


def outcomes(view: RunView, check: str | tuple[str, ...]) -> Outcomes:
    """Return what was said of the causes whose ids begin with this, or with one of them."""
    return [outcome for outcome in run_checks(Case(view)) if outcome.id.startswith(check)]


def findings(view: RunView, check: str | tuple[str, ...]) -> dict[str, Finding]:
    """Return what was found, by id; the worst where there are several of one."""
    order = list(Severity)
    found = [f for f in outcomes(view, check) if isinstance(f, Finding)]
    return {f.id: f for f in sorted(found, key=lambda f: order.index(f.severity), reverse=True)}


def lacks(view: RunView, check: str | tuple[str, ...]) -> set[str]:
    """Return the ids that could not be looked for."""
    return {c.id for c in outcomes(view, check) if isinstance(c, CannotTell)}


def severities(view: RunView, check: str | tuple[str, ...]) -> Mapping[str, Severity]:
    """Return the severities of what was found, by id."""
    return {id: f.severity for id, f in findings(view, check).items()}


def evaluations(*scores: float, tasks: int = 200, every: int = 20) -> tuple[dict[str, Any], ...]:
    """Return held-out evaluations in order."""
    return tuple({"step": i * every, "accuracy": s, "tasks": tasks} for i, s in enumerate(scores))
