"""Hypotheses to start from: a file to fill in, a cause of the catalogue, or one of the ready
ones.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

from uptrend.config import load_config, to_table
from uptrend.config.load import nearest
from uptrend.doctor.catalogue import (
    CATALOGUE,
    Cause,
    resolve_experiment,
    settings_beside,
    settings_in_force,
)
from uptrend.lab import lab_error
from uptrend.lab.hypothesis_file import read, read_page, sections
from uptrend.lab.refuse import read_recipe, resolve
from uptrend.policy.known import with_known_lr
from uptrend.present.formatting import assignments, plural, render
from uptrend.records import (
    Arm,
    ConfigError,
    Direction,
    Experiment,
    Finding,
    Hypothesis,
    LabError,
    Priority,
    TasksetError,
    from_lines,
)
from uptrend.records.metrics import complete_claim, outcome_of
from uptrend.records.renamed import current
from uptrend.records.view import value_at
from uptrend.tasks.pool import with_own_limits

CONTROL_NAME = "control"
# Smallest effect that matters where an experiment is about whether there is an effect at all.
DEFAULT_SMALLEST = 0.01
# KL penalty too small to pull; without any the KL is not measured.
MEASURING_BETA = 1e-6
# Attempts for pass@k, where the recipe samples none.
DEFAULT_ATTEMPTS = 8


@dataclass(frozen=True)
class Draft:
    """A hypothesis and the prose of its file."""

    hypothesis: Hypothesis
    prose: Mapping[str, str]


def blank_draft(id: str, recipe: Path | None, folder: Path) -> Draft:
    """Return a file to fill in: a control, and an arm in which nothing is changed yet."""
    arms = (Arm(CONTROL_NAME, {}, is_control=True), Arm("changed"))
    hypothesis = Hypothesis(id, "Say what you suspect", relative(recipe, folder), arms)
    return Draft(hypothesis, sections(render("lab/templates/by-hand.md")))


def with_title(draft: Draft, title: str) -> Draft:
    """Return a draft with another title; with its own if that is empty."""
    if not title:
        return draft
    return replace(draft, hypothesis=replace(draft.hypothesis, title=title))


def find_cause(id: str) -> Cause:
    """Return a cause of the catalogue by its id."""
    id = current(id)
    if id not in CATALOGUE:
        hint = nearest(id, CATALOGUE)
        if not hint:
            hint = " Their ids: uptrend explain. Ready ones: uptrend lab list --ready."
        raise LabError(f"There is no {id} in the catalogue.{hint}")
    return CATALOGUE[id]


def draft_from_cause(
    id: str, cause: Cause, recipe: Path | None, folder: Path, finding: Finding | None = None
) -> Draft:
    """Return a cause of the catalogue as a hypothesis, its experiment's arms made concrete for a
    recipe.
    """
    if not cause.experiment.arms:
        kind = "probe" if cause.experiment.probe else "doctor"
        raise lab_error(f"{kind}-decides", cause=cause, recipe=recipe or "RECIPE")
    base_recipe = relative(recipe, folder)
    try:
        # With what runs choose, since arms may have multiples of it.
        config = to_table(with_known_lr(with_own_limits(load_config(folder / base_recipe))))
    except (ConfigError, TasksetError) as error:
        raise LabError(str(error)) from None
    # The recipe as the doctor sees the config of a run.
    view = from_lines([], source="", name="", config=config)
    cause = cause.for_run(view)
    experiment = finding.experiment if finding else None
    if not experiment:
        experiment = resolve_experiment(cause, settings_in_force(view))
    for overrides in experiment.arms.values():
        for key in overrides:
            section, _, name = key.rpartition(".")
            if section and view.value(section) is None:
                raise LabError(
                    f"{cause.id} is about {section}.{name}, and {base_recipe} has no {section}:"
                    " name one that has."
                )

    metric, same = _same_in_every_arm(experiment, config)
    direction = Direction(experiment.direction)
    claim = experiment.claim.replace(
        outcome_of(experiment.metric, direction), outcome_of(metric, direction)
    )
    arms: list[Arm] = []
    for name, overrides in experiment.arms.items():
        arms.append(Arm(name, {**same, **overrides}, is_control=name == CONTROL_NAME))
    hypothesis = Hypothesis(
        id,
        title=claim.rstrip("."),
        recipe=base_recipe,
        arms=tuple(arms),
        priority=Priority.HIGH if finding else Priority.MEDIUM,
        cause=cause.id,
        explains=cause.what,
        metric=metric,
        direction=direction,
        smallest=experiment.smallest or DEFAULT_SMALLEST,
        steps=experiment.steps,
        allows=cause.explains,
    )
    hypothesis = _without_arms_like_control(hypothesis, folder)
    text = render(
        "lab/templates/cause.md",
        hypothesis=hypothesis,
        cause=cause,
        claim=claim,
        finding=finding,
        catalogue=CATALOGUE,
        plural=plural,
        assignments=assignments,
    )
    return Draft(hypothesis, sections(text))


def _without_arms_like_control(hypothesis: Hypothesis, folder: Path) -> Hypothesis:
    """Leave out arms that the recipe has already, unless nothing would be left to compare."""
    recipe = read_recipe(hypothesis, folder)
    control_config = resolve(hypothesis, hypothesis.control, recipe)
    differing: list[Arm] = []
    for arm in hypothesis.arms:
        if arm.is_control or resolve(hypothesis, arm, recipe) != control_config:
            differing.append(arm)
    return replace(hypothesis, arms=tuple(differing)) if len(differing) > 1 else hypothesis


def _same_in_every_arm(
    experiment: Experiment, config: Mapping[str, Any]
) -> tuple[str, dict[str, Any]]:
    """Return the metric by the lab's name, and the values that all arms need so that each of them
    can be run.
    """
    same: dict[str, Any] = {}
    metric = experiment.metric
    known = partial(value_at, config)
    if metric == "eval/pass_at":
        attempts = config["eval"]["attempts"] or DEFAULT_ATTEMPTS
        metric = f"eval/pass@{attempts}"
        same["eval.attempts"] = attempts
    if metric.startswith("kl/") and not known("learning.kl.beta"):
        same["learning.kl.beta"] = MEASURING_BETA
    length: dict[str, Any] = {"learning.steps": experiment.steps} if experiment.steps else {}
    beside: dict[str, Any] = {}
    for overrides in (same, *experiment.arms.values()):
        beside |= settings_beside({**length, **overrides}, known)
    return metric, same | beside


@cache
def all_ready() -> dict[str, Draft]:
    """Return the ready hypotheses by id; their recipes are relative to the repository's root."""
    paths = sorted((Path(__file__).parent / "ready").glob("h*.md"))
    drafts: dict[str, Draft] = {}
    for path in paths:
        hypothesis = read(path)
        title = complete_claim(hypothesis.title, hypothesis.metric, hypothesis.direction)
        hypothesis = replace(hypothesis, title=title)
        drafts[hypothesis.id] = Draft(hypothesis, sections(read_page(path).body))
    return drafts


def draft_from_ready(
    ready_id: str, id: str, recipe: Path | None, folder: Path, existing: Sequence[Hypothesis]
) -> Draft:
    """Return a ready hypothesis under an id of a lab, on its own recipe or another.

    Of its prerequisites only those that are in the lab are kept.
    """
    drafts = all_ready()
    if ready_id not in drafts:
        raise LabError(f"There is no ready hypothesis {ready_id}; there are {', '.join(drafts)}.")
    hypothesis = drafts[ready_id].hypothesis
    base_recipe = relative(recipe or Path(hypothesis.recipe), folder)
    # In the lab they have other ids.
    titles = {drafts[ready].hypothesis.title for ready in hypothesis.prerequisites}
    prerequisites = tuple(other.id for other in existing if other.title in titles)
    hypothesis = replace(hypothesis, id=id, recipe=base_recipe, prerequisites=prerequisites)
    prose: dict[str, str] = {}
    for name, text in drafts[ready_id].prose.items():
        prose[name] = text.replace("RECIPE", base_recipe)
    return Draft(hypothesis, prose)


def relative(recipe: Path | None, folder: Path) -> str:
    """Return a recipe's path as a hypothesis has it: from the lab's folder."""
    if recipe is None:
        raise lab_error("no-recipe")
    if not recipe.is_file():
        raise lab_error("no-recipe-file", recipe=recipe)
    return Path(os.path.relpath(recipe, folder)).as_posix()
