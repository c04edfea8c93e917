"""Hypotheses that no experiment could decide, refused before anything runs, and faults for which an
arm is refused.

The sentences are in texts.toml.
"""

import math
import os
import re
from collections import Counter
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
    TasksetError,
    view_of,
)
from uptrend.records.metrics import find_metric, first_step, is_first_step, is_gain
from uptrend.tasks.pool import with_own_limits

# Name of an arm: short, and nothing that would be a path.
ARM_NAME = re.compile(r"[^\s./\\-][^/\\\x00-\x1f]{0,39}")
# Config keys that an arm can't set, and why.
RESERVED_KEYS = {"seed": "the lab sets it, from `seeds`", "name": "the lab names its runs itself"}
# Beginnings of config keys that a replay can't change: its rollouts were recorded, and its schedule
# is the run's.
FIXED_IN_REPLAY = (
    "tasks",
    "sampling.",
    "eval.name",
    "eval.seed",
    "eval.tasks",
    "model.name",
    "learning.steps",
)
EXAMPLE_SOURCE = 'source = { run = "runs/NAME-s{seed}-*", step = 0 }'


def check(
    hypothesis: Hypothesis, folder: Path, *, makes_runs: bool = True, more_seeds: int = 0
) -> None:
    """Raise a LabError at the first thing that keeps a hypothesis from being decided.

    `more_seeds` is the number that its experiment adds to its own. Runs that exist are judged
    however few there are.
    """
    _check_arms(hypothesis, folder)
    _check_seeds(hypothesis)
    _require(hypothesis, hypothesis.steps >= 0, "negative-steps")
    _check_metric(hypothesis)
    _check_criteria(hypothesis)
    if makes_runs or not hypothesis.seeds:
        _check_number_of_seeds(hypothesis, more_seeds)
    _check_catalogue_ids(hypothesis)
    _check_method(hypothesis, folder)
    _check_configs(hypothesis, folder)
    _check_prerequisites(hypothesis, folder)


def warn_of_length(hypothesis: Hypothesis, steps: int) -> list[str]:
    """Return warnings of what runs of so few steps can't show."""
    warnings: list[str] = []
    metric = find_metric(measure.curve_of(hypothesis.metric))
    is_better_higher = metric is not None and metric.better == "more"
    shows_learning = hypothesis.metric.startswith("eval/") or is_better_higher
    if shows_learning and steps < MIN_TREND_POINTS:
        warnings.append(
            f"{plural(steps, 'step')} per run: fewer than {MIN_TREND_POINTS} show no trend"
            " (run.too-short), so that a verdict holds for so few steps alone"
        )
    least_steps = [check.at_least for check in ALL_CHECKS if hypothesis.cause in check.ids]
    needed = max(least_steps, default=0)
    if steps < needed:
        warnings.append(
            f"{plural(steps, 'step')} per run: the doctor needs {needed} to tell whether the"
            f" control has {hypothesis.cause}"
        )
    return warnings


def _check_seeds(hypothesis: Hypothesis) -> None:
    """Refuse seeds that occur twice or are negative."""
    counts = Counter(hypothesis.seeds)
    repeated = sorted(seed for seed, count in counts.items() if count > 1)
    _require(hypothesis, not repeated, "repeated-seeds", seeds=", ".join(map(str, repeated)))
    lowest = min(hypothesis.seeds, default=0)
    _require(hypothesis, lowest >= 0, "negative-seed", seed=lowest)


def _check_number_of_seeds(hypothesis: Hypothesis, more: int) -> None:
    """Refuse fewer seeds than can be a verdict, whatever they show."""
    count = len(hypothesis.seeds) + more
    least = least_seeds(hypothesis)
    is_ranked = is_first_step(hypothesis.metric)
    # Arms share alpha where the sign test itself decides; elsewhere it stands beside an interval
    # that shares it.
    alpha = alpha_of(hypothesis) if is_ranked else hypothesis.alpha
    is_two_sided = is_ranked or hypothesis.direction is Direction.EITHER
    sides = 2.0 if is_two_sided else 1.0
    # All differences have one sign by chance with a probability of 2**-count per side.
    least_p = min(1.0, sides * 2.0**-count)
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
        p=number(least_p),
    )


def _refuse(hypothesis: Hypothesis, reason: str, **values: Any) -> NoReturn:
    """Raise a LabError with a sentence of texts.toml."""
    sentence = texts("refusals")[reason].format(hypothesis=hypothesis, **values)
    raise LabError(f"{hypothesis.id}: {sentence}")


def _require(hypothesis: Hypothesis, is_met: bool, reason: str, **values: Any) -> None:
    """Refuse a hypothesis unless a condition is met."""
    if not is_met:
        _refuse(hypothesis, reason, **values)


def _check_arms(hypothesis: Hypothesis, folder: Path) -> None:
    """Refuse arms that can't be compared: none, unnamed, or not with exactly one control."""
    probe = ""
    if hypothesis.cause in CATALOGUE:
        probe = CATALOGUE[hypothesis.cause].experiment.probe
    if probe and not hypothesis.arms:
        recipe = os.path.normpath(folder / hypothesis.recipe)
        _refuse(hypothesis, "probe", recipe=recipe, probe=probe)
    for arm in hypothesis.arms:
        _require(hypothesis, bool(ARM_NAME.fullmatch(arm.name)), "arm-name", name=arm.name)
    names = [arm.name for arm in hypothesis.arms]
    controls = [arm.name for arm in hypothesis.arms if arm.is_control]
    _require(hypothesis, bool(controls), "no-control", names=", ".join(names) or "none at all")
    _require(hypothesis, len(controls) == 1, "two-controls", names=" and ".join(controls))
    _require(hypothesis, len(hypothesis.arms) > 1, "one-arm")


def _check_metric(hypothesis: Hypothesis) -> None:
    """Refuse a metric that is not compared, and effects or values that it can't have."""
    metric = hypothesis.metric
    if not measure.is_known(metric):
        _refuse(hypothesis, "metric", why=measure.unknown_metric(metric))
    _require(hypothesis, 0 < hypothesis.alpha < 0.5, "alpha")
    _require(hypothesis, 0 < hypothesis.smallest < math.inf, "smallest")
    low, high = measure.bounds(metric) or (-math.inf, math.inf)
    _require(hypothesis, hypothesis.smallest < high - low, "smallest-large", low=low, high=high)

    first_step_goal = first_step(metric)
    if first_step_goal is None:
        return
    base, goal = first_step_goal
    low, high = measure.bounds(base) or (-math.inf, math.inf)
    is_in_bounds = low < goal <= high
    _require(hypothesis, is_in_bounds, "reached-bounds", base=base, value=goal, low=low, high=high)
    _require(hypothesis, not hypothesis.stops_early, "reached-early")


def _check_criteria(hypothesis: Hypothesis) -> None:
    """Refuse criteria other than those that every verdict uses."""
    for key in ("validated_if", "invalidated_if"):
        # Version 0.1 read other criteria; a verdict by these would answer another question than the
        # file asks.
        text = getattr(hypothesis, key).strip()
        usual = Hypothesis.__dataclass_fields__[key].default
        _require(hypothesis, text == usual, "criterion", key=key, text=text, usual=usual)


def _check_catalogue_ids(hypothesis: Hypothesis) -> None:
    """Refuse ids that are not in the catalogue."""
    named = [("cause", hypothesis.cause)] if hypothesis.cause else []
    named += [("allows", id) for id in hypothesis.allows if id]
    for key, id in named:
        if id not in CATALOGUE:
            hint = nearest(id, CATALOGUE) or texts("refusals")["no-hint"]
            _refuse(hypothesis, "catalogue", key=key, id=id, hint=hint)


def _check_method(hypothesis: Hypothesis, folder: Path) -> None:
    """Refuse a replay without a run, or of what can't be changed in it."""
    if hypothesis.method is Method.TRAIN:
        _require(hypothesis, hypothesis.source is None, "source-unused")
        return
    if hypothesis.source is None:
        _refuse(hypothesis, "source-missing", example=EXAMPLE_SOURCE)
    source = hypothesis.source
    if "{seed}" not in source.run:  # else `plan` finds the run of each seed
        run = folder / source.run
        exists = (run / "run.json").is_file()
        _require(hypothesis, exists, "source-run", run=run, example=EXAMPLE_SOURCE)
    _require(hypothesis, source.step >= 0, "source-step")
    fixed: tuple[str, ...] = FIXED_IN_REPLAY
    if source.step:  # weights of a later step have the shape of the run's adapter
        fixed = (*fixed, "model.lora")
    for arm in hypothesis.arms:
        for key in arm.overrides:
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
    for key, reason in RESERVED_KEYS.items():
        is_free = key not in arm.overrides
        _require(hypothesis, is_free, "reserved", arm=arm.name, key=key, why=reason)
    steps: dict[str, Any] = {}
    if hypothesis.steps:
        _require(hypothesis, "learning.steps" not in arm.overrides, "steps-twice", arm=arm.name)
        steps["learning.steps"] = hypothesis.steps
    try:
        return to_table(with_own_limits(load_config(recipe, {**steps, **arm.overrides})))
    except (ConfigError, TasksetError) as error:
        _refuse(hypothesis, "config", arm=arm.name, error=error)


def _check_configs(hypothesis: Hypothesis, folder: Path) -> None:
    """Refuse arms that can't be run, do not differ, or do not measure the metric alike."""
    recipe = read_recipe(hypothesis, folder)
    configs = {arm.name: resolve(hypothesis, arm, recipe) for arm in hypothesis.arms}
    for one, other in combinations(configs, 2):
        differing = difference(what_matters(configs[one]), what_matters(configs[other]))
        _require(hypothesis, bool(differing), "same-arms", one=one, other=other)
        if is_gain(hypothesis.metric):  # it compares arms with other held-out tasks
            continue
        for key in differing:
            is_same_tasks = not key.startswith("eval.") or key == "eval.every"
            _require(hypothesis, is_same_tasks, "held-out", key=key, one=one, other=other)

    base, _ = first_step(hypothesis.metric) or (hypothesis.metric, None)
    k = int(base.partition("eval/pass@")[2].partition("/")[0] or 0)
    for name, config in configs.items():
        attempts = config["eval"]["attempts"]
        _require(hypothesis, attempts >= k, "attempts", wanted=k, arm=name, attempts=attempts)
        if base.startswith("kl/"):
            _require(hypothesis, config["learning"]["kl"]["beta"] > 0, "kl", arm=name)

    if base == hypothesis.metric:
        return
    # A first step is seen at evaluations only: with other evaluations, or another end, it would be
    # another one.
    for key in ("eval.every", "learning.steps"):
        values = {flatten(config)[key] for config in configs.values()}
        is_same = len(values) == 1 and all(values)
        listed = " or ".join(map(str, sorted(values)))
        _require(hypothesis, is_same, "reached-grid", key=key, values=listed)


def _check_prerequisites(hypothesis: Hypothesis, folder: Path) -> None:
    """Refuse prerequisites that the lab does not have, or that wait for the hypothesis itself."""
    hypotheses: dict[str, Hypothesis] = {}
    if hypothesis.prerequisites and is_lab(folder):
        readable, _ = Notebook(folder).readable
        hypotheses = {other.id: other for other in readable}
    known = ", ".join(sorted(hypotheses.keys() - {hypothesis.id})) or "no other"
    hypotheses[hypothesis.id] = hypothesis  # as it stands, not as its file may have it
    for id in hypothesis.prerequisites:
        _require(hypothesis, id in hypotheses, "prerequisite", id=id, known=known)

    paths = [[hypothesis.id]]  # of prerequisites, from the hypothesis on
    visited = {hypothesis.id}
    while paths:
        path = paths.pop()
        last = hypotheses.get(path[-1])
        if last is None:
            continue
        for id in last.prerequisites:
            if id == hypothesis.id:
                _refuse(hypothesis, "circle", way=" waits for ".join([*path, id]))
            if id not in visited:
                visited.add(id)
                paths.append([*path, id])


def allowed_ids(hypothesis: Hypothesis) -> tuple[str, ...]:
    """Return catalogue ids that may be found in an arm: the cause, what it explains, and what the
    author allows.
    """
    ids: list[str] = []
    for id in (hypothesis.cause, *hypothesis.allows):
        if id in CATALOGUE:
            ids += [id, *sorted(all_symptoms(id))]
    return tuple(dict.fromkeys(ids))


def faults(run: Run, allows: set[str]) -> list[str]:
    """Return the critical faults that would make a comparison worthless, each in a sentence; a mere
    suspicion is none.
    """
    summaries: dict[str, str] = {}
    preflights = [event for event in run.events if event.get("event") == "preflight"]
    if preflights:
        for row in preflights[-1]["findings"]:
            if row["severity"] == Severity.CRITICAL and row["symptom_of"] is None:
                summaries[row["id"]] = row["summary"]
    for finding in diagnose(view_of(run)).findings:
        is_sure = finding.basis is not Basis.SUSPICION
        if is_sure and finding.severity is Severity.CRITICAL:
            summaries[finding.id] = finding.summary
    return [f"{id}: {summary}" for id, summary in summaries.items() if id not in allows]
