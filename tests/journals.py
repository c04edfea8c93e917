"""Labs with verdicts in them, by the real writers, for tests of the journal: judgments are made by
hand.
"""

import math
import random
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from scipy import stats

from synthetic import evaluation_of, info_of, line_of, metrics_of
from uptrend.lab.journal import ArmRun, Entry, record
from uptrend.lab.notebook import Notebook
from uptrend.records import (
    Arm,
    Comparison,
    Confidence,
    Direction,
    Hypothesis,
    Interval,
    Priority,
    RunDirectory,
    Status,
    Verdict,
)
from uptrend.records.lines import append_line

Values = Mapping[str, Sequence[float]]

PENALTIES = (
    Arm("no penalty", {"learning.kl.beta": 0.0}, True),
    Arm("beta 0.1", {"learning.kl.beta": 0.1}),
)
KL = Hypothesis(
    "h01", "A KL penalty is required for arithmetic", "recipe.toml", PENALTIES, Priority.HIGH, cause="kl.runaway",
    explains="Rewards collapse without it.",
)  # fmt: skip
GROUPS = tuple(
    Arm(
        f"{size} × {256 // size}",
        {"sampling.size": size, "sampling.groups": 256 // size},
        size == 4,
    )
    for size in (4, 16, 64)
)
SIZES = Hypothesis("h02", "More generations help at equal rollouts", "recipe.toml", GROUPS)
PRECISIONS = (Arm("fp32", {"model.weights": "fp32"}, True), Arm("bf16", {"model.weights": "bf16"}))
WEIGHTS = Hypothesis(
    "h03", "bf16 weights lose small updates", "recipe.toml", PRECISIONS, Priority.HIGH,
    cause="precision.update-underflow", direction=Direction.DOWN,
)  # fmt: skip


def judged(h: Hypothesis, values: Values, status: Status, **more: Any) -> Verdict:
    """A verdict on final values by arm, with Student's interval; what it says is the caller's."""
    control = values[h.control.name]
    compared = tuple(
        compare(h, name, control, values[name], status) for name in values if name != h.control.name
    )
    sentence = f"The effect is {100 * max(c.interval.effect for c in compared):+.1f} points."
    told = {
        "confidence": Confidence.MEDIUM,
        "because": "Five seeds or more, and the tests agree.",
        **more,
    }
    return Verdict(
        h.id,
        status,
        sentence=sentence,
        comparisons=compared,
        specification="abcdef0123456789",
        **told,
    )


def compare(
    h: Hypothesis, arm: str, control: Sequence[float], values: Sequence[float], status: Status
) -> Comparison:
    """One arm against the control, paired by place."""
    sign = -1 if h.direction is Direction.DOWN else 1
    d = [sign * (a - c) for c, a in zip(control, values, strict=True)]
    mean, error = statistics.fmean(d), statistics.stdev(d) / math.sqrt(len(d))
    reach = float(stats.t.ppf(1 - h.alpha / 2 / len(h.treated), len(d) - 1)) * error
    return Comparison(
        arm=arm, seeds=tuple(range(len(d))), differences=tuple(d), control_mean=statistics.fmean(control),
        arm_mean=statistics.fmean(values), interval=Interval(mean, mean - reach, mean + reach),
        level=1 - h.alpha / len(h.treated), p=float(2 * stats.t.sf(abs(mean / error), len(d) - 1)), p_adjusted=None,
        sign_flip=0.5 ** len(d), sign_flip_both=0.5 ** (len(d) - 1), sign_flip_least=0.5 ** len(d),
        improvement=Interval(0.9, 0.7, 0.98), tasks_too=Interval(mean, mean - 1.3 * reach, mean + 1.3 * reach),
        iqm=None, power=0.83, seeds_needed=len(d) + 5 if status is Status.INCONCLUSIVE else None, status=status,
        sentence=f"{100 * mean:+.1f} points.",
    )  # fmt: skip


def entry_of(
    h: Hypothesis, values: Values, date: str = "2026-11-15T12:30:05", **more: Any
) -> Entry:
    """How it was made, with one run per value."""
    base = h.control.overrides
    differences = {
        arm.name: {key: (base.get(key), value) for key, value in arm.overrides.items()}
        for arm in h.treated
    }
    runs = tuple(
        ArmRun(name, seed, "finished", f"runs/{run_name(h, name, seed)}", value, 0.12, 31.5)
        for name, of_arm in values.items()
        for seed, value in enumerate(of_arm)
    )
    told = {
        "seconds": 640.0,
        "machine": "a CPU of 2 cores",
        "version": "0.4.0",
        "runs": runs,
        **more,
    }
    return Entry(date, f"uptrend lab run {h.id}", h.recipe, differences, **told)


def run_name(h: Hypothesis, arm: str, seed: int) -> str:
    """The name of an arm's run directory."""
    return f"{h.id}-{''.join(c for c in arm if c.isalnum())}-s{seed}"


def write_runs(lab: Path, h: Hypothesis, values: Values, steps: int = 4) -> None:
    """One run directory per value, with what the journal reads: the value is the share of 40
    held-out tasks.
    """
    for arm, seed, value in (
        (arm, *pair) for arm, of_arm in values.items() for pair in enumerate(of_arm)
    ):
        path, noise, right = (
            lab / "runs" / run_name(h, arm, seed),
            random.Random(seed),
            round(40 * value),
        )
        with RunDirectory.create(
            path, info_of(path.name, (f"learning.steps={steps}", f"seed={seed}"))
        ) as directory:
            directory.event("started", step=0)
            for step in range(1, steps + 1):
                directory.step(metrics_of(step, steps, noise, right / 40))
            for step in (0, steps // 2, steps):
                append_line(
                    path / "evals.jsonl",
                    line_of(evaluation_of(step, 5 + (right - 5) * step // steps, 40)),
                )
            directory.event("finished", step=steps)


def make_lab(
    folder: Path, *hypotheses: Hypothesis, problem: str = "The reward does not rise."
) -> Notebook:
    """A lab with these hypotheses, nothing tested yet."""
    notebook = Notebook.init(folder, problem)
    for h in hypotheses:
        notebook.add(h, {"Description": f"The claim: {h.title}."})
    return notebook


def validated_kl(folder: Path) -> tuple[Notebook, Verdict, Entry, list[Path]]:
    """A lab whose first hypothesis was run and holds."""
    notebook = make_lab(folder, KL)
    values = {"no penalty": [0.30, 0.32, 0.28, 0.31], "beta 0.1": [0.40, 0.43, 0.41, 0.42]}
    write_runs(notebook.folder, KL, values)
    verdict, entry = judged(KL, values, Status.VALIDATED), entry_of(KL, values)
    return notebook, verdict, entry, record(notebook, KL, verdict, entry)
