"""What no experiment could decide, refused before anything runs, with a sentence that says what to write."""

import math
import os
import re
from pathlib import Path
from typing import NoReturn

from uptrend.config.load import nearest
from uptrend.doctor.catalogue import CATALOGUE
from uptrend.lab import criteria, measure
from uptrend.lab.arms import check_configs
from uptrend.lab.notebook import Notebook, is_lab
from uptrend.lab.order import circle
from uptrend.records import Hypothesis, LabError, Method

ARM_NAME = re.compile(r"[^\s./\\-][^/\\\x00-\x1f]{0,39}")
"""Short, and nothing that would be a path."""

FIXED = ("tasks.", "sampling.", "eval.name", "eval.seed", "eval.tasks", "model.name", "learning.steps")
"""What a replay can't change: its rollouts were recorded, and its schedule is the run's."""


def check(h: Hypothesis, folder: Path) -> None:
    """Raise a LabError at the first thing that keeps a hypothesis from being decided."""
    _check_arms(h, folder)
    _check_seeds(h)
    _check_metric(h)
    _check_criteria(h)
    _check_catalogue(h)
    _check_method(h, folder)
    check_configs(h, folder)
    _check_prerequisites(h, folder)


def _check_arms(h: Hypothesis, folder: Path) -> None:
    probe = CATALOGUE[h.cause].experiment.probe if h.cause in CATALOGUE else ""
    if not h.arms and probe:
        recipe = os.path.normpath(folder / h.recipe)
        _refuse(
            h, f"it has no arms: a probe decides it. Ask: uptrend preflight {recipe} --only {probe}. Or write arms."
        )
    for arm in h.arms:
        if not ARM_NAME.fullmatch(arm.name):
            _refuse(h, f"the arm's name {arm.name!r} becomes part of a file's name: use a few letters and digits.")
    controls = [arm.name for arm in h.arms if arm.is_control]
    if not controls:
        names = ", ".join(arm.name for arm in h.arms) or "none at all"
        _refuse(
            h,
            f"no arm is the control (its arms: {names}). Write control = true in the table [arms.NAME] of the arm "
            "that the others are compared with.",
        )
    if len(controls) > 1:
        _refuse(h, f"{' and '.join(controls)} are both the control. Leave control = true in one of them.")
    if len(h.arms) < 2:
        _refuse(
            h,
            f"there is nothing to compare {controls[0]} with. Write a second table, for example [arms.changed], with "
            "the config values that it changes.",
        )


def _check_seeds(h: Hypothesis) -> None:
    if len(set(h.seeds)) < len(h.seeds):
        twice = sorted({seed for seed in h.seeds if h.seeds.count(seed) > 1})
        _refuse(h, f"seeds has {', '.join(map(str, twice))} more than once: a repeated run is no new evidence.")
    if len(h.seeds) < 2:
        _refuse(
            h,
            f"seeds = {list(h.seeds)}: one run an arm says something about two models and nothing about the setting. "
            "Write at least two, better five: seeds = [0, 1, 2, 3, 4].",
        )
    if min(h.seeds) < 0:
        _refuse(h, f"seeds has {min(h.seeds)}: a seed is 0 or more.")
    if h.steps < 0:
        _refuse(h, f"steps = {h.steps} should be 0, for the recipe's, or more.")


def _check_metric(h: Hypothesis) -> None:
    if not measure.is_known(h.metric):
        _refuse(h, f"{h.metric!r} {measure.unknown_metric(h.metric)}")
    if not 0 < h.alpha < 0.5:
        _refuse(h, f"alpha = {h.alpha:g} should be above 0 and below 0.5; 0.05 is usual.")
    if not 0 < h.smallest < math.inf:
        _refuse(
            h,
            f"smallest = {h.smallest:g} should be above 0: it is the smallest effect that matters, in the unit of "
            f"{h.metric}. Without one nothing can be ruled out.",
        )
    bounds = measure.bounds(h.metric)
    if bounds and h.smallest >= bounds[1] - bounds[0]:
        _refuse(
            h,
            f"smallest = {h.smallest:g}: {h.metric} lies between {bounds[0]:g} and {bounds[1]:g}, so that no effect "
            "is that large. Five points are smallest = 0.05.",
        )


def _check_criteria(h: Hypothesis) -> None:
    for key in ("validated_if", "invalidated_if"):
        text = getattr(h, key)
        try:
            criterion = criteria.parse(text)
        except LabError as error:
            _refuse(h, f"{key}: {error}")
        if not criteria.possible(criterion, h.smallest, measure.bounds(h.metric)):
            usual = Hypothesis.__dataclass_fields__[key].default
            _refuse(
                h,
                f"{key} = {text!r} can't be met by any outcome of {h.metric} with smallest = {h.smallest:g}. "
                f"Write one that can, such as {key} = {usual!r}.",
            )


def _check_catalogue(h: Hypothesis) -> None:
    for key, ids in (("cause", [h.cause] if h.cause else []), ("allows", h.allows)):
        for id in ids:
            if id not in CATALOGUE:
                hint = nearest(id, CATALOGUE) or " Leave it empty, or write an id of docs/findings/."
                _refuse(h, f"{key} = {id!r} is not in the catalogue.{hint}")


def _check_method(h: Hypothesis, folder: Path) -> None:
    example = 'source = { run = "runs/NAME-s{seed}-*", step = 0 }'  # a run a seed
    if h.method is Method.TRAIN:
        if h.source is not None:
            _refuse(h, 'a source is for a replay. Write method = "replay", or leave source out.')
        return
    if h.source is None:
        _refuse(h, f"a replay needs a run whose rollouts it replays. Write {example}.")
    run = folder / h.source.run
    if "{seed}" not in h.source.run and not (run / "run.json").is_file():  # a run a seed is plan.py's to find
        _refuse(h, f"there is no run at {run}. Write a run directory, relative to the lab's folder, as {example}.")
    if h.source.step < 0:
        _refuse(h, f"source.step = {h.source.step} should be 0, the model before training, or a later step.")
    fixed = (*FIXED, "model.lora") if h.source.step else FIXED  # later weights have the shape that they have
    for key in (key for arm in h.arms for key in arm.overrides if key.startswith(fixed)):
        _refuse(
            h,
            f"{key} can't differ in a replay: its rollouts and its schedule are those of the run. "
            'Write method = "train", or change another value of [learning].',
        )


def _check_prerequisites(h: Hypothesis, folder: Path) -> None:
    if not h.prerequisites:
        return
    others = {other.id: other for other in Notebook(folder).readable[0]} if is_lab(folder) else {}
    others[h.id] = h
    for id in h.prerequisites:
        if id not in others:
            known = ", ".join(other for other in others if other != h.id) or "no other"
            _refuse(h, f"prerequisites has {id!r}, and the lab has {known}. Write ids such as h01, or [].")
    way = circle(h.id, others)
    if way:
        _refuse(h, f"{' waits for '.join(way)}: a circle. Leave one of them out of its `prerequisites`.")


def _refuse(h: Hypothesis, sentence: str) -> NoReturn:
    raise LabError(f"{h.id}: {sentence}")
