"""A hypothesis that is not written yet: by hand, or from what the catalogue knows of a cause."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from uptrend.config import load_config, to_table
from uptrend.config.load import nearest
from uptrend.doctor.catalogue import CATALOGUE, Cause, resolve_experiment
from uptrend.lab import blocks
from uptrend.lab.arms import read_recipe, resolve
from uptrend.records import (
    Arm,
    ConfigError,
    Direction,
    Experiment,
    Finding,
    Hypothesis,
    LabError,
    Priority,
    RunView,
    from_lines,
)
from uptrend.records.renamed import current
from uptrend.stats.formatting import assignments, plural

CONTROL = "control"
SMALLEST = 0.01
"""Where an experiment is about whether there is an effect at all, this is the least that counts."""
WATCHED = 1e-6
"""A KL penalty too small to pull: without any the KL is not measured."""
ATTEMPTS = 8
"""For pass@k, where the recipe samples no attempts."""
NOTHING_YET = blocks.put("", "results", "Nothing was run yet.").strip()
"""Block of the machine's; the first verdict takes its place."""

TO_FILL_IN = {
    "Description": "*What might be wrong, in a few sentences. Name the setting, the figure, and where you saw it.*",
    "Why it explains the behavior": "*If it holds: why does the run look as it does? What else would you then see?*",
    "Validation method": "*Which arm differs in what, and why nothing else differs. What does the metric miss?*",
    "Invalidation criteria": "*Which result would make you drop it? Write it before you run anything.*",
    "Results": NOTHING_YET,
}
"""Hints for each section of a new file."""


@dataclass(frozen=True)
class Draft:
    """A hypothesis and the prose of its file."""

    hypothesis: Hypothesis
    prose: Mapping[str, str]


def by_hand(id: str, recipe: Path | None, folder: Path) -> Draft:
    """A file to fill in: a control, and an arm in which nothing is changed yet."""
    arms = (Arm(CONTROL, {}, is_control=True), Arm("changed"))
    return Draft(Hypothesis(id, "Say what you suspect", relative(recipe, folder), arms), TO_FILL_IN)


def of_cause(id: str, cause: Cause, recipe: Path | None, folder: Path, finding: Finding | None = None) -> Draft:
    """What the catalogue says of a cause, with its experiment's arms made concrete for a recipe."""
    experiment = (finding and finding.experiment) or cause.experiment
    if not experiment.arms:
        raise LabError(_decided_elsewhere(cause, recipe))
    named = relative(recipe, folder)
    table = _table(folder / named)
    resolved = resolve_experiment(experiment, _as_view(table))
    _need_tables(cause, resolved, table, named)
    metric, same = _the_same_in_every_arm(resolved, table)
    arms = tuple(Arm(name, {**same, **keys}, name == CONTROL) for name, keys in resolved.arms.items())
    h = Hypothesis(
        id,
        resolved.claim.rstrip("."),
        named,
        arms,
        priority=Priority.HIGH if finding else Priority.MEDIUM,
        cause=cause.id,
        explains=cause.what,
        metric=metric,
        direction=Direction(resolved.direction),
        smallest=resolved.smallest or SMALLEST,
        steps=resolved.steps,
        allows=cause.explains,
    )
    h = replace(h, arms=_that_differ(h, read_recipe(h, folder)))
    return Draft(h, prose_of(h, cause, finding))


def _that_differ(h: Hypothesis, recipe: Mapping[str, Any]) -> tuple[Arm, ...]:
    """The arms without those that the recipe has already; all of them where none would be left to compare."""
    control = resolve(h, h.control, recipe)
    kept = tuple(arm for arm in h.arms if arm.is_control or resolve(h, arm, recipe) != control)
    return kept if len(kept) > 1 else h.arms


def find_cause(id: str) -> Cause:
    """Return a cause of the catalogue by its id."""
    id = current(id)
    if id not in CATALOGUE:
        hint = nearest(id, CATALOGUE) or " Their ids: docs/findings/. Ready ones: uptrend lab list --ready."
        raise LabError(f"There is no {id} in the catalogue.{hint}")
    return CATALOGUE[id]


def relative(recipe: Path | None, folder: Path) -> str:
    """A recipe's path as a hypothesis has it: from the lab's folder."""
    if recipe is None:
        raise LabError(
            "Name the recipe that the arms start from with --recipe, for example --recipe recipes/tiny.toml."
        )
    if not recipe.is_file():
        raise LabError(f"There is no recipe at {recipe}. Name one with --recipe, for example recipes/tiny.toml.")
    return Path(os.path.relpath(recipe, folder)).as_posix()


def _decided_elsewhere(cause: Cause, recipe: Path | None) -> str:
    probe = cause.experiment.probe
    if probe:
        how = f"A probe decides it without training: uptrend preflight {recipe or 'RECIPE'} --only {probe}"
    else:
        how = f"The doctor reads it from a run's records. What decides: {cause.experiment.claim}"
    return f"{cause.id} can't be decided by comparing arms. {how}"


def _table(path: Path) -> dict[str, Any]:
    try:
        return to_table(load_config(path))
    except ConfigError as error:
        raise LabError(str(error)) from None


def _as_view(table: Mapping[str, Any]) -> RunView:
    """A recipe as the doctor sees the config of a run that it would make."""
    return from_lines([], source="", name="", config=table)


def _need_tables(cause: Cause, experiment: Experiment, table: Mapping[str, Any], recipe: str) -> None:
    """A cause that is about adapters can't be tested on a recipe without them."""
    for key in (key for keys in experiment.arms.values() for key in keys):
        section, _, name = key.rpartition(".")
        if section and _as_view(table).value(section) is None:
            raise LabError(f"{cause.id} is about {section}.{name}, and {recipe} has no {section}: name one that has.")


def _the_same_in_every_arm(experiment: Experiment, table: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """The metric by the lab's name, and what all arms need so that each of them can be run."""
    same, metric, learning = dict[str, Any](), experiment.metric, table["learning"]
    if metric == "eval/pass_at":
        attempts = table["eval"]["attempts"] or ATTEMPTS
        metric, same = f"eval/pass@{attempts}", {"eval.attempts": attempts}
    if metric.startswith("kl/") and not learning["kl"]["beta"]:
        same["learning.kl.beta"] = WATCHED
    every = [same, *experiment.arms.values()]
    pulls = any(keys.get(key) for keys in every for key in ("learning.kl.beta", "learning.entropy"))
    if pulls and learning["skip_dead"]:
        same["learning.skip_dead"] = False  # with either of them dead groups teach too
    if experiment.steps and learning["warmup"] > experiment.steps:
        same["learning.warmup"] = 0
    return metric, same


def retitled(draft: Draft, title: str) -> Draft:
    """The same under another title, where one is given."""
    return replace(draft, hypothesis=replace(draft.hypothesis, title=title)) if title else draft


def prose_of(h: Hypothesis, cause: Cause, finding: Finding | None = None) -> dict[str, str]:
    """Return the sections for a cause of the catalogue, with what the doctor saw where it was found in a run."""
    return {
        "Description": _joined(cause.what, *(_seen(finding) if finding else ())),
        "Why it explains the behavior": _why(cause),
        "Validation method": _method(h, cause.experiment.probe),
        "Invalidation criteria": _criteria(h),
        "Results": NOTHING_YET,
    }


def _why(cause: Cause) -> str:
    """Return the symptoms that it would bring with it, and its rivals."""
    symptoms = [f"- `{id}`: {CATALOGUE[id].what}" for id in cause.explains]
    rivals = [f"- `{rival.id}`: {rival.tells_apart}" for rival in cause.rivals]
    return _joined(
        f"If it holds, an experiment shows it: {cause.experiment.claim}",
        "It would also explain:" if symptoms else "",
        "\n".join(symptoms),
        "What looks the same, and what tells it apart:" if rivals else "",
        "\n".join(rivals),
    )


def _seen(finding: Finding) -> tuple[str, str]:
    """Return the doctor's summary and its evidence."""
    told = f"The doctor found it ({finding.severity}, {finding.confidence} confidence): {finding.summary}"
    return told, "\n".join(f"- {piece.text}" for piece in finding.evidence)


def _method(h: Hypothesis, probe: str = "") -> str:
    """Name the arms, the metric that compares them, and the command."""
    arms = [
        f"- **{arm.name}**{' (the control)' if arm.is_control else ''}: "
        + (f"`{assignments(arm.overrides)}`" if arm.overrides else "the recipe as it is")
        for arm in h.arms
    ]
    asks = f"A probe asks the same without training: `uptrend preflight {h.recipe} --only {probe}`." if probe else ""
    told = f"`{h.metric}` at the end of the run is compared over {plural(len(h.seeds), 'seed')}, on `{h.recipe}`:"
    return _joined(told, "\n".join(arms), asks, f"```bash\nuptrend lab run {h.id}\n```")


def _criteria(h: Hypothesis) -> str:
    """Say in words what would validate it and what would rule it out."""
    where = {"up": "higher", "down": "lower", "either": "otherwise"}[h.direction]
    return (
        f"Validated if the arm ends {where}: `{h.validated_if}`. Invalidated if an effect of {h.smallest:g} or more is "
        f"excluded: `{h.invalidated_if}`. Anything between is inconclusive, and more seeds are asked for."
    )


def _joined(*parts: str) -> str:
    return "\n\n".join(part for part in parts if part)
