"""run.nonfinite: NaN or infinity in loss, gradient, KL or log-probabilities."""

from uptrend.doctor.check import Outcome, finding
from uptrend.records import Confidence, Evidence, RunView, Severity
from uptrend.records.metrics import must_be_finite


def check(view: RunView) -> Outcome:
    """Name the first values that were not finite; at the end of a run they are what ended it."""
    silent = _silent(view)
    found = {m: tuple(s for s in steps if s not in silent) for m, steps in view.nonfinite.items()}
    bad = {metric: steps for metric, steps in found.items() if must_be_finite(metric) and steps}
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


def _silent(view: RunView) -> set[int]:
    """Steps in which nothing was said or nothing trained: a mean of nothing is unknown, and no number that broke."""
    told = ("tokens/model/count", "tokens/trained/model/count", "sampling/length/mean")
    counts = [view.curve(metric) for metric in told]
    return {int(step) for steps, tokens in counts for step in steps[tokens == 0]}


def _few(steps: tuple[int, ...]) -> str:
    return ", ".join(map(str, steps[:5])) + (f" and {len(steps) - 5} more" if len(steps) > 5 else "")
