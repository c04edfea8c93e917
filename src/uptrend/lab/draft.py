"""Hypotheses to start from: a file to fill in, a cause of the catalogue, or one of the ready
ones.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from uptrend.config import load_config, to_table
from uptrend.config.load import nearest
from uptrend.doctor.catalogue import CATALOGUE, Cause, resolve_experiment, settings_in_force
from uptrend.lab import lab_error
from uptrend.lab.hypothesis_file import read, read_page, sections
from uptrend.lab.refuse import read_recipe, resolve
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
    from_lines,
)
from uptrend.records.metrics import complete_claim, outcome_of
from uptrend.records.renamed import current

CONTROL = "control"
# Smallest effect that matters where an experiment is about whether there is an effect at all.
SMALLEST = 0.01
# KL penalty too small to pull; without any the KL is not measured.
WATCHED = 1e-6
# Attempts for pass@k, where the recipe samples none.
ATTEMPTS = 8


@dataclass(frozen=True)
class Draft:
    """A hypothesis and the prose of its file."""

    hypothesis: Hypothesis
    prose: Mapping[str, str]


def by_hand(id: str, recipe: Path | None, folder: Path) -> Draft:
    """Return a file to fill in: a control, and an arm in which nothing is changed yet."""
    arms = (Arm(CONTROL, {}, is_control=True), Arm("changed"))
    hypothesis = Hypothesis(id, "Say what you suspect", relative(recipe, folder), arms)
    return Draft(hypothesis, sections(render("lab/templates/by-hand.md")))


def retitled(draft: Draft, title: str) -> Draft:
    """Return the same under another title, where one is given."""
    return replace(draft, hypothesis=replace(draft.hypothesis, title=title)) if title else draft


def find_cause(id: str) -> Cause:
    """Return a cause of the catalogue by its id."""
    id = current(id)
    if id not in CATALOGUE:
        hint = (
            nearest(id, CATALOGUE)
            or " Their ids: uptrend explain. Ready ones: uptrend lab list --ready."
        )
        raise LabError(f"There is no {id} in the catalogue.{hint}")
    return CATALOGUE[id]


def of_cause(
    id: str, cause: Cause, recipe: Path | None, folder: Path, finding: Finding | None = None
) -> Draft:
    """Return a cause of the catalogue as a hypothesis, its experiment's arms made concrete for a
    recipe.
    """
    if not cause.experiment.arms:
        kind = "probe" if cause.experiment.probe else "doctor"
        raise lab_error(f"{kind}-decides", cause=cause, recipe=recipe or "RECIPE")
    named = relative(recipe, folder)
    try:
        table = to_table(load_config(folder / named))
    except ConfigError as error:
        raise LabError(str(error)) from None
    # the recipe as the doctor sees the config of a run
    view = from_lines([], source="", name="", config=table)
    cause = cause.for_run(view)
    resolved = (finding and finding.experiment) or resolve_experiment(
        cause, settings_in_force(view)
    )
    for key in (key for keys in resolved.arms.values() for key in keys):
        section, _, name = key.rpartition(".")
        if section and view.value(section) is None:
            raise LabError(
                f"{cause.id} is about {section}.{name}, and {named} has no {section}: name one that"
                " has."
            )
    metric, same = _same_in_every_arm(resolved, table)
    direction = Direction(resolved.direction)
    claim = resolved.claim.replace(
        outcome_of(resolved.metric, direction), outcome_of(metric, direction)
    )
    arms = tuple(
        Arm(name, {**same, **keys}, name == CONTROL) for name, keys in resolved.arms.items()
    )
    hypothesis = Hypothesis(
        id,
        claim.rstrip("."),
        named,
        arms,
        Priority.HIGH if finding else Priority.MEDIUM,
        cause=cause.id,
        explains=cause.what,
        metric=metric,
        direction=direction,
        smallest=resolved.smallest or SMALLEST,
        steps=resolved.steps,
        allows=cause.explains,
    )
    base = read_recipe(hypothesis, folder)
    control = resolve(hypothesis, hypothesis.control, base)
    kept = tuple(
        arm
        for arm in hypothesis.arms
        if arm.is_control or resolve(hypothesis, arm, base) != control
    )
    # an arm that the recipe has already is left out, unless nothing would be left to compare
    if len(kept) > 1:
        hypothesis = replace(hypothesis, arms=kept)
    told = {
        "hypothesis": hypothesis,
        "cause": cause,
        "claim": claim,
        "finding": finding,
        "catalogue": CATALOGUE,
    }
    text = render("lab/templates/cause.md", plural=plural, assignments=assignments, **told)
    return Draft(hypothesis, sections(text))


def _same_in_every_arm(
    experiment: Experiment, table: Mapping[str, Any]
) -> tuple[str, dict[str, Any]]:
    # The metric by the lab's name, and the values that all arms need so that each of them can be
    # run.
    same = dict[str, Any]()
    metric = experiment.metric
    learning = table["learning"]
    if metric == "eval/pass_at":
        attempts = table["eval"]["attempts"] or ATTEMPTS
        metric = f"eval/pass@{attempts}"
        same = {"eval.attempts": attempts}
    if metric.startswith("kl/") and not learning["kl"]["beta"]:
        same["learning.kl.beta"] = WATCHED
    every = [same, *experiment.arms.values()]
    pulls = any(keys.get(key) for keys in every for key in ("learning.kl.beta", "learning.entropy"))
    if pulls and learning["skip_dead"]:
        same["learning.skip_dead"] = False  # with either of them dead groups teach too
    if experiment.steps and learning["warmup"] > experiment.steps:
        same["learning.warmup"] = 0
    return metric, same


@cache
def all_ready() -> dict[str, Draft]:
    """Return the ready hypotheses by id; their recipes are relative to the repository's root."""
    paths = sorted((Path(__file__).parent / "ready").glob("h*.md"))
    drafts = dict[str, Draft]()
    for path in paths:
        hypothesis = read(path)
        hypothesis = replace(
            hypothesis,
            title=complete_claim(hypothesis.title, hypothesis.metric, hypothesis.direction),
        )
        drafts[hypothesis.id] = Draft(hypothesis, sections(read_page(path).body))
    return drafts


def of_ready(
    named: str, id: str, recipe: Path | None, folder: Path, there: Sequence[Hypothesis]
) -> Draft:
    """Return a ready hypothesis under an id of a lab, on its own recipe or another.

    Of its prerequisites only those that are in the lab are kept.
    """
    found = all_ready()
    if named not in found:
        raise LabError(f"There is no ready hypothesis {named}; there are {', '.join(found)}.")
    hypothesis = found[named].hypothesis
    prose = found[named].prose
    base = relative(recipe or Path(hypothesis.recipe), folder)
    titles = {found[first].hypothesis.title for first in hypothesis.prerequisites}
    first = tuple(other.id for other in there if other.title in titles)
    hypothesis = replace(hypothesis, id=id, recipe=base, prerequisites=first)
    return Draft(hypothesis, {name: text.replace("RECIPE", base) for name, text in prose.items()})


def relative(recipe: Path | None, folder: Path) -> str:
    """Return a recipe's path as a hypothesis has it: from the lab's folder."""
    if recipe is None:
        raise lab_error("no-recipe")
    if not recipe.is_file():
        raise lab_error("no-recipe-file", recipe=recipe)
    return Path(os.path.relpath(recipe, folder)).as_posix()
