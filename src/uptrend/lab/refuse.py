"""Hypotheses that no experiment could decide, refused before anything runs, and faults for which an
arm is refused.

texts.toml has the sentences.
"""

import math
import os
import re
from collections.abc import Mapping
from itertools import combinations
from pathlib import Path
from typing import Any, NoReturn

from uptrend.config import load_config, to_table
from uptrend.config.load import nearest, read_toml
from uptrend.config.tables import difference, flatten
from uptrend.doctor.catalogue import CATALOGUE, all_symptoms
from uptrend.doctor.checks import ALL_CHECKS
from uptrend.doctor.diagnose import diagnose
from uptrend.doctor.trend import MIN_TREND_POINTS
from uptrend.lab import measure, texts
from uptrend.lab.compare import alpha_of, least_seeds
from uptrend.lab.notebook import Notebook, is_lab
from uptrend.lab.plan import what_matters
from uptrend.present.formatting import number, plural
from uptrend.records import (
    Arm,
    Basis,
    ConfigError,
    Direction,
    Hypothesis,
    LabError,
    Method,
    Run,
    Severity,
    view_of,
)
from uptrend.records.metrics import find_metric, first_step, is_gain

# Short, and nothing that would be a path.
ARM_NAME = re.compile(r"[^\s./\\-][^/\\\x00-\x1f]{0,39}")
# Config keys that an arm can't set, and why.
RESERVED = {"seed": "the lab sets it, from `seeds`", "name": "the lab names its runs itself"}
# Config keys that a replay can't change: its rollouts were recorded, and its schedule is the run's.
FIXED = (
    "tasks",
    "sampling.",
    "eval.name",
    "eval.seed",
    "eval.tasks",
    "model.name",
    "learning.steps",
)
SOURCE = 'source = { run = "runs/NAME-s{seed}-*", step = 0 }'


def check(
    hypothesis: Hypothesis, folder: Path, *, makes_runs: bool = True, more_seeds: int = 0
) -> None:
    """Raise a LabError at the first thing that keeps a hypothesis from being decided.

    `more_seeds` are those that its experiment adds to its own. Runs that exist are judged however
    few there are.
    """
    _check_arms(hypothesis, folder)
    repeated = sorted({seed for seed in hypothesis.seeds if hypothesis.seeds.count(seed) > 1})
    _require(hypothesis, not repeated, "repeated-seeds", seeds=", ".join(map(str, repeated)))
    _require(
        hypothesis,
        min(hypothesis.seeds, default=0) >= 0,
        "negative-seed",
        seed=min(hypothesis.seeds, default=0),
    )
    _require(hypothesis, hypothesis.steps >= 0, "negative-steps")
    _check_metric_and_criteria(hypothesis)
    if makes_runs or not hypothesis.seeds:
        _check_seeds(hypothesis, more_seeds)
    for key, id in (("cause", hypothesis.cause), *(("allows", id) for id in hypothesis.allows)):
        hint = nearest(id, CATALOGUE) or texts("refusals")["no-hint"]
        _require(hypothesis, not id or id in CATALOGUE, "catalogue", key=key, id=id, hint=hint)
    _check_method(hypothesis, folder)
    _check_configs(hypothesis, folder)
    _check_prerequisites(hypothesis, folder)


def warn_of_length(hypothesis: Hypothesis, steps: int) -> list[str]:
    """Return what so few steps can't show, to be said before they are run."""
    warnings = list[str]()
    row = find_metric(measure.curve_of(hypothesis.metric))
    is_learning = hypothesis.metric.startswith("eval/") or (
        row is not None and row.better == "more"
    )
    if is_learning and steps < MIN_TREND_POINTS:
        warnings.append(
            f"{plural(steps, 'step')} per run: fewer than {MIN_TREND_POINTS} show no trend"
            " (run.too-short), so that a verdict holds for so few steps alone"
        )
    checks = [check.at_least for check in ALL_CHECKS if hypothesis.cause in check.ids]
    if checks and steps < max(checks):
        warnings.append(
            f"{plural(steps, 'step')} per run: the doctor needs {max(checks)} to tell whether the"
            f" control has {hypothesis.cause}"
        )
    return warnings


def _check_seeds(hypothesis: Hypothesis, more: int) -> None:
    # No outcome of fewer than the least seeds is a verdict, so that nothing is run for it.
    count = len(hypothesis.seeds) + more
    least = least_seeds(hypothesis)
    is_ranked = first_step(hypothesis.metric) is not None
    # Arms share alpha where the sign test itself decides; elsewhere it stands beside an interval
    # that shares it.
    alpha = alpha_of(hypothesis) if is_ranked else hypothesis.alpha
    sides = 2.0 if is_ranked or hypothesis.direction is Direction.EITHER else 1.0
    _require(
        hypothesis,
        count >= least,
        "few-seeds",
        count=plural(count, "seed"),
        seeds=list(hypothesis.seeds),
        least=least,
        example=list(range(least)),
        test="sign test" if is_ranked else "exact sign-flip test",
        alpha=alpha,
        p=number(min(1.0, sides * 2.0**-count)),
    )


def _refuse(hypothesis: Hypothesis, reason: str, **values: Any) -> NoReturn:
    raise LabError(
        f"{hypothesis.id}: {texts('refusals')[reason].format(hypothesis=hypothesis, **values)}"
    )


def _require(hypothesis: Hypothesis, is_met: bool, reason: str, **values: Any) -> None:
    if not is_met:
        _refuse(hypothesis, reason, **values)


def _check_arms(hypothesis: Hypothesis, folder: Path) -> None:
    probe = CATALOGUE[hypothesis.cause].experiment.probe if hypothesis.cause in CATALOGUE else ""
    _require(
        hypothesis,
        bool(hypothesis.arms or not probe),
        "probe",
        recipe=os.path.normpath(folder / hypothesis.recipe),
        probe=probe,
    )
    for arm in hypothesis.arms:
        _require(hypothesis, bool(ARM_NAME.fullmatch(arm.name)), "arm-name", name=arm.name)
    names = [arm.name for arm in hypothesis.arms]
    controls = [arm.name for arm in hypothesis.arms if arm.is_control]
    _require(hypothesis, bool(controls), "no-control", names=", ".join(names) or "none at all")
    _require(hypothesis, len(controls) == 1, "two-controls", names=" and ".join(controls))
    _require(hypothesis, len(hypothesis.arms) > 1, "one-arm")


def _check_metric_and_criteria(hypothesis: Hypothesis) -> None:
    _require(
        hypothesis,
        measure.is_known(hypothesis.metric),
        "metric",
        why=measure.unknown_metric(hypothesis.metric),
    )
    _require(hypothesis, 0 < hypothesis.alpha < 0.5, "alpha")
    _require(hypothesis, 0 < hypothesis.smallest < math.inf, "smallest")
    low, high = measure.bounds(hypothesis.metric) or (-math.inf, math.inf)
    _require(hypothesis, hypothesis.smallest < high - low, "smallest-large", low=low, high=high)
    if (goal := first_step(hypothesis.metric)) is not None:
        low, high = measure.bounds(goal[0]) or (-math.inf, math.inf)
        _require(
            hypothesis,
            low < goal[1] <= high,
            "reached-bounds",
            base=goal[0],
            value=goal[1],
            low=low,
            high=high,
        )
        _require(hypothesis, not hypothesis.stops_early, "reached-early")
    for key in ("validated_if", "invalidated_if"):
        # Version 0.1 read other criteria; a verdict by these would answer another question than the
        # file asks.
        text = getattr(hypothesis, key).strip()
        usual = Hypothesis.__dataclass_fields__[key].default
        _require(hypothesis, text == usual, "criterion", key=key, text=text, usual=usual)


def _check_method(hypothesis: Hypothesis, folder: Path) -> None:
    if hypothesis.method is Method.TRAIN:
        _require(hypothesis, hypothesis.source is None, "source-unused")
        return
    if hypothesis.source is None:
        _refuse(hypothesis, "source-missing", example=SOURCE)
    run = folder / hypothesis.source.run
    # `plan` finds the runs of each seed
    is_there = "{seed}" in hypothesis.source.run or (run / "run.json").is_file()
    _require(hypothesis, is_there, "source-run", run=run, example=SOURCE)
    _require(hypothesis, hypothesis.source.step >= 0, "source-step")
    # later weights have the shape that they have
    fixed = (*FIXED, "model.lora") if hypothesis.source.step else FIXED
    for key in (key for arm in hypothesis.arms for key in arm.overrides):
        _require(hypothesis, not key.startswith(fixed), "fixed", key=key)


def read_recipe(hypothesis: Hypothesis, folder: Path) -> dict[str, Any]:
    """Read the base recipe as a table."""
    _require(hypothesis, bool(hypothesis.recipe), "no-recipe", folder=folder)
    try:
        return read_toml(folder / hypothesis.recipe)
    except ConfigError as error:
        _refuse(hypothesis, "recipe", error=error, folder=folder)


def resolve(hypothesis: Hypothesis, arm: Arm, recipe: Mapping[str, Any]) -> dict[str, Any]:
    """Return every config value of an arm, checked; the step budget included."""
    for key, why in RESERVED.items():
        _require(hypothesis, key not in arm.overrides, "reserved", arm=arm.name, key=key, why=why)
    _require(
        hypothesis,
        not hypothesis.steps or "learning.steps" not in arm.overrides,
        "steps-twice",
        arm=arm.name,
    )
    steps = {"learning.steps": hypothesis.steps} if hypothesis.steps else {}
    try:
        return to_table(load_config(recipe, {**steps, **arm.overrides}))
    except ConfigError as error:
        _refuse(hypothesis, "config", arm=arm.name, error=error)


def _check_configs(hypothesis: Hypothesis, folder: Path) -> None:
    recipe = read_recipe(hypothesis, folder)
    configs = {arm.name: resolve(hypothesis, arm, recipe) for arm in hypothesis.arms}
    for (one, a), (other, b) in combinations(configs.items(), 2):
        differs = difference(what_matters(a), what_matters(b))
        _require(hypothesis, bool(differs), "same-arms", one=one, other=other)
        for key in differs:
            is_same = (
                not key.startswith("eval.") or key == "eval.every" or is_gain(hypothesis.metric)
            )
            _require(hypothesis, is_same, "held-out", key=key, one=one, other=other)
    base, _ = first_step(hypothesis.metric) or (hypothesis.metric, None)
    wanted = int(base.partition("eval/pass@")[2].partition("/")[0] or 0)
    for name, config in configs.items():
        attempts = config["eval"]["attempts"]
        _require(
            hypothesis, attempts >= wanted, "attempts", wanted=wanted, arm=name, attempts=attempts
        )
        _require(
            hypothesis,
            not base.startswith("kl/") or config["learning"]["kl"]["beta"] > 0,
            "kl",
            arm=name,
        )
    # A first step is seen at evaluations only: with other evaluations, or another end, it would be
    # another one.
    for key in ("eval.every", "learning.steps") if base != hypothesis.metric else ():
        values = {flatten(config)[key] for config in configs.values()}
        told = " or ".join(map(str, sorted(values)))
        _require(hypothesis, len(values) == 1 and all(values), "reached-grid", key=key, values=told)


def _check_prerequisites(hypothesis: Hypothesis, folder: Path) -> None:
    others = (
        {other.id: other for other in Notebook(folder).readable[0]}
        if hypothesis.prerequisites and is_lab(folder)
        else {}
    )
    others[hypothesis.id] = hypothesis
    known = ", ".join(sorted(set(others) - {hypothesis.id})) or "no other"
    for id in hypothesis.prerequisites:
        _require(hypothesis, id in others, "prerequisite", id=id, known=known)
    # Follow prerequisites from the hypothesis; a way back to it is a circle.
    ways = [[hypothesis.id]]
    seen = {hypothesis.id}
    while ways:
        way = ways.pop()
        for id in others[way[-1]].prerequisites if way[-1] in others else ():
            _require(
                hypothesis,
                id != hypothesis.id,
                "circle",
                way=" waits for ".join([*way, hypothesis.id]),
            )
            if id not in seen:
                seen.add(id)
                ways.append([*way, id])


def allowed(hypothesis: Hypothesis) -> tuple[str, ...]:
    """Return catalogue ids that may be found in an arm: the cause, what it explains, and what the
    author allows.
    """
    ids = [id for id in (hypothesis.cause, *hypothesis.allows) if id in CATALOGUE]
    return tuple(dict.fromkeys(id for known in ids for id in (known, *sorted(all_symptoms(known)))))


def faults(run: Run, allows: set[str]) -> list[str]:
    """Return the critical faults that would make a comparison worthless, each in a sentence; a mere
    guess is none.
    """
    asked = [event for event in run.events if event.get("event") == "preflight"]
    found = asked[-1]["findings"] if asked else []
    told = {
        x["id"]: x["summary"]
        for x in found
        if x["severity"] == Severity.CRITICAL and x["symptom_of"] is None
    }
    sure = [x for x in diagnose(view_of(run)).findings if x.basis is not Basis.SUSPICION]
    told |= {x.id: x.summary for x in sure if x.severity is Severity.CRITICAL}
    return [f"{id}: {said}" for id, said in told.items() if id not in allows]
