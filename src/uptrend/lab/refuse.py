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


def check(h: Hypothesis, folder: Path, *, makes_runs: bool = True, more_seeds: int = 0) -> None:
    """Raise a LabError at the first thing that keeps a hypothesis from being decided.

    `more_seeds` are those that its experiment adds to its own. Runs that exist are judged however
    few there are.
    """
    _check_arms(h, folder)
    repeated = sorted({seed for seed in h.seeds if h.seeds.count(seed) > 1})
    _require(h, not repeated, "repeated-seeds", seeds=", ".join(map(str, repeated)))
    _require(h, min(h.seeds, default=0) >= 0, "negative-seed", seed=min(h.seeds, default=0))
    _require(h, h.steps >= 0, "negative-steps")
    _check_metric_and_criteria(h)
    if makes_runs or not h.seeds:
        _check_seeds(h, more_seeds)
    for key, id in (("cause", h.cause), *(("allows", id) for id in h.allows)):
        hint = nearest(id, CATALOGUE) or texts("refusals")["no-hint"]
        _require(h, not id or id in CATALOGUE, "catalogue", key=key, id=id, hint=hint)
    _check_method(h, folder)
    _check_configs(h, folder)
    _check_prerequisites(h, folder)


def warn_of_length(h: Hypothesis, steps: int) -> list[str]:
    """Return what so few steps can't show, to be said before they are run."""
    warnings = list[str]()
    row = find_metric(measure.curve_of(h.metric))
    is_learning = h.metric.startswith("eval/") or (row is not None and row.better == "more")
    if is_learning and steps < MIN_TREND_POINTS:
        warnings.append(
            f"{plural(steps, 'step')} per run: fewer than {MIN_TREND_POINTS} show no trend"
            " (run.too-short), so that a verdict holds for so few steps alone"
        )
    checks = [check.at_least for check in ALL_CHECKS if h.cause in check.ids]
    if checks and steps < max(checks):
        warnings.append(
            f"{plural(steps, 'step')} per run: the doctor needs {max(checks)} to tell whether the"
            f" control has {h.cause}"
        )
    return warnings


def _check_seeds(h: Hypothesis, more: int) -> None:
    # No outcome of fewer than the least seeds is a verdict, so that nothing is run for it.
    count = len(h.seeds) + more
    least = least_seeds(h)
    is_ranked = first_step(h.metric) is not None
    # Arms share alpha where the sign test itself decides; elsewhere it stands beside an interval
    # that shares it.
    alpha = alpha_of(h) if is_ranked else h.alpha
    sides = 2.0 if is_ranked or h.direction is Direction.EITHER else 1.0
    _require(
        h,
        count >= least,
        "few-seeds",
        count=plural(count, "seed"),
        seeds=list(h.seeds),
        least=least,
        example=list(range(least)),
        test="sign test" if is_ranked else "exact sign-flip test",
        alpha=alpha,
        p=number(min(1.0, sides * 2.0**-count)),
    )


def _refuse(h: Hypothesis, reason: str, **values: Any) -> NoReturn:
    raise LabError(f"{h.id}: {texts('refusals')[reason].format(h=h, **values)}")


def _require(h: Hypothesis, is_met: bool, reason: str, **values: Any) -> None:
    if not is_met:
        _refuse(h, reason, **values)


def _check_arms(h: Hypothesis, folder: Path) -> None:
    probe = CATALOGUE[h.cause].experiment.probe if h.cause in CATALOGUE else ""
    _require(
        h,
        bool(h.arms or not probe),
        "probe",
        recipe=os.path.normpath(folder / h.recipe),
        probe=probe,
    )
    for arm in h.arms:
        _require(h, bool(ARM_NAME.fullmatch(arm.name)), "arm-name", name=arm.name)
    names = [arm.name for arm in h.arms]
    controls = [arm.name for arm in h.arms if arm.is_control]
    _require(h, bool(controls), "no-control", names=", ".join(names) or "none at all")
    _require(h, len(controls) == 1, "two-controls", names=" and ".join(controls))
    _require(h, len(h.arms) > 1, "one-arm")


def _check_metric_and_criteria(h: Hypothesis) -> None:
    _require(h, measure.is_known(h.metric), "metric", why=measure.unknown_metric(h.metric))
    _require(h, 0 < h.alpha < 0.5, "alpha")
    _require(h, 0 < h.smallest < math.inf, "smallest")
    low, high = measure.bounds(h.metric) or (-math.inf, math.inf)
    _require(h, h.smallest < high - low, "smallest-large", low=low, high=high)
    if (goal := first_step(h.metric)) is not None:
        low, high = measure.bounds(goal[0]) or (-math.inf, math.inf)
        _require(
            h,
            low < goal[1] <= high,
            "reached-bounds",
            base=goal[0],
            value=goal[1],
            low=low,
            high=high,
        )
        _require(h, not h.stops_early, "reached-early")
    for key in ("validated_if", "invalidated_if"):
        # Version 0.1 read other criteria; a verdict by these would answer another question than the
        # file asks.
        text = getattr(h, key).strip()
        usual = Hypothesis.__dataclass_fields__[key].default
        _require(h, text == usual, "criterion", key=key, text=text, usual=usual)


def _check_method(h: Hypothesis, folder: Path) -> None:
    if h.method is Method.TRAIN:
        _require(h, h.source is None, "source-unused")
        return
    if h.source is None:
        _refuse(h, "source-missing", example=SOURCE)
    run = folder / h.source.run
    # `plan` finds the runs of each seed
    is_there = "{seed}" in h.source.run or (run / "run.json").is_file()
    _require(h, is_there, "source-run", run=run, example=SOURCE)
    _require(h, h.source.step >= 0, "source-step")
    # later weights have the shape that they have
    fixed = (*FIXED, "model.lora") if h.source.step else FIXED
    for key in (key for arm in h.arms for key in arm.overrides):
        _require(h, not key.startswith(fixed), "fixed", key=key)


def read_recipe(h: Hypothesis, folder: Path) -> dict[str, Any]:
    """Read the base recipe as a table."""
    _require(h, bool(h.recipe), "no-recipe", folder=folder)
    try:
        return read_toml(folder / h.recipe)
    except ConfigError as error:
        _refuse(h, "recipe", error=error, folder=folder)


def resolve(h: Hypothesis, arm: Arm, recipe: Mapping[str, Any]) -> dict[str, Any]:
    """Return every config value of an arm, checked; the step budget included."""
    for key, why in RESERVED.items():
        _require(h, key not in arm.overrides, "reserved", arm=arm.name, key=key, why=why)
    _require(h, not h.steps or "learning.steps" not in arm.overrides, "steps-twice", arm=arm.name)
    steps = {"learning.steps": h.steps} if h.steps else {}
    try:
        return to_table(load_config(recipe, {**steps, **arm.overrides}))
    except ConfigError as error:
        _refuse(h, "config", arm=arm.name, error=error)


def _check_configs(h: Hypothesis, folder: Path) -> None:
    recipe = read_recipe(h, folder)
    configs = {arm.name: resolve(h, arm, recipe) for arm in h.arms}
    for (one, a), (other, b) in combinations(configs.items(), 2):
        differs = difference(what_matters(a), what_matters(b))
        _require(h, bool(differs), "same-arms", one=one, other=other)
        for key in differs:
            is_same = not key.startswith("eval.") or key == "eval.every" or is_gain(h.metric)
            _require(h, is_same, "held-out", key=key, one=one, other=other)
    base, _ = first_step(h.metric) or (h.metric, None)
    wanted = int(base.partition("eval/pass@")[2].partition("/")[0] or 0)
    for name, config in configs.items():
        attempts = config["eval"]["attempts"]
        _require(h, attempts >= wanted, "attempts", wanted=wanted, arm=name, attempts=attempts)
        _require(
            h, not base.startswith("kl/") or config["learning"]["kl"]["beta"] > 0, "kl", arm=name
        )
    # A first step is seen at evaluations only: with other evaluations, or another end, it would be
    # another one.
    for key in ("eval.every", "learning.steps") if base != h.metric else ():
        values = {flatten(config)[key] for config in configs.values()}
        told = " or ".join(map(str, sorted(values)))
        _require(h, len(values) == 1 and all(values), "reached-grid", key=key, values=told)


def _check_prerequisites(h: Hypothesis, folder: Path) -> None:
    others = (
        {other.id: other for other in Notebook(folder).readable[0]}
        if h.prerequisites and is_lab(folder)
        else {}
    )
    others[h.id] = h
    known = ", ".join(sorted(set(others) - {h.id})) or "no other"
    for id in h.prerequisites:
        _require(h, id in others, "prerequisite", id=id, known=known)
    # Follow prerequisites from the hypothesis; a way back to it is a circle.
    ways = [[h.id]]
    seen = {h.id}
    while ways:
        way = ways.pop()
        for id in others[way[-1]].prerequisites if way[-1] in others else ():
            _require(h, id != h.id, "circle", way=" waits for ".join([*way, h.id]))
            if id not in seen:
                seen.add(id)
                ways.append([*way, id])


def allowed(h: Hypothesis) -> tuple[str, ...]:
    """Return catalogue ids that may be found in an arm: the cause, what it explains, and what the
    author allows.
    """
    ids = [id for id in (h.cause, *h.allows) if id in CATALOGUE]
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
