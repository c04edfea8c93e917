"""run.nonfinite: NaN or infinity in what drives the update, or in an average over tokens that exist.

A loss, a gradient or a weight that is not finite is always a fault: whatever breaks earlier reaches them. KL, entropy,
ratios and gaps are averages over tokens. At a step that trains nothing (no tokens, or no live group under `skip_dead`)
there is nothing to average, and NaN there is another word for absent.
"""

from uptrend.doctor.check import Outcome, finding
from uptrend.records import Confidence, Evidence, RunView, Severity
from uptrend.records.metrics import must_be_finite

DRIVERS = ("loss/", "gradient/", "weights/")
TOKENS = ("tokens/model/count", "tokens/trained/model/count", "sampling/length/mean")


def check(view: RunView) -> Outcome:
    """Name the first values that were not finite; at the end of a run they are what ended it."""
    bad = _broken(view)
    if not bad:
        return []
    first = min(steps[0] for steps in bad.values())
    count = max(len(steps) for steps in bad.values())
    names = sorted(metric for metric, steps in bad.items() if steps[0] == first)
    last_step = int(view.steps[-1]) if len(view.steps) else first
    is_last = any(steps[-1] >= last_step for steps in bad.values())
    is_lasting = is_last or count > 0.05 * len(view.steps)
    tail = ", and the run ends so" if is_last else f", {count} time{'s' if count > 1 else ''} in all"
    evidence = [Evidence(f"{metric} at step{'s' if len(s) > 1 else ''} {_few(s)}.", None, metric, s[0])
                for metric, s in sorted(bad.items())]  # fmt: skip
    return [
        finding(
            view,
            "run.nonfinite",
            Severity.CRITICAL if is_lasting else Severity.WARNING,
            Confidence.HIGH,
            f"{' and '.join(names)} {'are' if len(names) > 1 else 'is'} not finite at step {first}{tail}.",
            evidence,
        )
    ]


def _broken(view: RunView) -> dict[str, tuple[int, ...]]:
    """Return the steps at which each metric is not finite although there was something to compute it from."""
    empty = {step for metric in TOKENS for step in _steps_at(view, metric, 0.0)}
    idle = empty | _steps_at(view, "gradient/norm/before", 0.0) | _steps_at(view, "advantage/dead/share", 1.0)
    broken = {
        metric: tuple(step for step in steps if step not in (empty if metric.startswith(DRIVERS) else idle))
        for metric, steps in view.nonfinite.items()
        if must_be_finite(metric) or metric == "reward/mean"
    }
    return {metric: steps for metric, steps in broken.items() if steps}


def _steps_at(view: RunView, metric: str, value: float) -> set[int]:
    """Return the steps at which a metric has exactly this value."""
    steps, values = view.curve(metric)
    return {int(step) for step in steps[values == value]}


def _few(steps: tuple[int, ...]) -> str:
    return ", ".join(map(str, steps[:5])) + (f" and {len(steps) - 5} more" if len(steps) > 5 else "")
