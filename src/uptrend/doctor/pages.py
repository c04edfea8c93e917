"""A cause's page, with its front matter told in words: for `uptrend explain` and the site."""

import ast
import json
import re
import tomllib
from collections.abc import Iterator, Mapping
from functools import cache
from operator import attrgetter
from pathlib import Path
from typing import Any

from uptrend.config import load_config
from uptrend.doctor import case, checks
from uptrend.doctor.catalogue import (
    CATALOGUE,
    FOLDER,
    Cause,
    complete_fix,
    fill,
    resolve_experiment,
    trial_counts,
    usual_rates_in_words,
)
from uptrend.records import Fix, Times, dialects
from uptrend.tasks import proof

TRAINERS = {"uptrend": "Uptrend", **dialects.TRAINER_NAMES, "any": "Any trainer"}


# A threshold in a page's text: a constant of a module of checks, of `case` or `proof`, or, behind
# `probes.`, of a module of probes; as a percentage where % follows.
THRESHOLD = re.compile(r"\{(probes\.)?(\w+)\.([A-Z][A-Z0-9_]*)(%?)\}")
OTHER_MODULES = {"case": case, "proof": proof}


def causes_by_section() -> tuple[str, dict[str, list[Cause]]]:
    """Return the text before the list of causes, and the causes by the title of their section."""
    _, front, text = (FOLDER / "README.md").read_text(encoding="utf-8").split("+++\n", 2)
    return text, {
        title: [
            cause
            for family in families
            for id, cause in CATALOGUE.items()
            if id.startswith(f"{family}.")
        ]
        for title, families in tomllib.loads(front)["sections"].items()
    }


def cause_page(cause: Cause) -> str:
    """Return a cause's page as Markdown."""
    rivals = [
        f"- {f'[{rival.id}]({rival.id}.md)' if rival.id in CATALOGUE else rival.id.capitalize()}:"
        f" {rival.tells_apart}."
        for rival in cause.rivals
    ]
    fix = complete_fix(cause.fix)
    blocks = [
        f"# {cause.id}",
        cause.what,
        _with_thresholds(cause.body),
        "## What else it could be",
        "\n".join(rivals),
        "## How to prove it",
        cause.how,
        "\n".join(["```bash", *_proof(cause), "```"]),
        _claim(cause),
        "## How to fix it",
        fix.sentence,
        "\n".join(_fixes(cause, fix)),
        *_in_several_turns(cause, fix),
        "## In trials"
        if trial_counts(cause.id, "records") or trial_counts(cause.id, "scalars")
        else "",
        "\n".join(_trials(cause)),
    ]
    return "\n\n".join(block for block in blocks if block) + "\n"


def _in_several_turns(cause: Cause, fix: Fix) -> Iterator[str]:
    """Yield what tasks of several turns need instead."""
    if (other := cause.in_several_turns) is not None:
        other_fix = complete_fix(other.fix)
        yield f"In tasks of several turns: {other_fix.sentence[0].lower()}{other_fix.sentence[1:]}"
        shared = set(_fixes(cause, fix))
        yield "\n".join(line for line in _fixes(other, other_fix) if line not in shared)


def _with_thresholds(text: str) -> str:
    """Return a page's text with the checks' thresholds, and the usual learning rates, in their
    places.
    """

    def shown(match: re.Match[str]) -> str:
        is_of_probe, name, constant, is_percentage = match.groups()
        if is_of_probe:
            value = _numbers_of_probes(name)[constant]
        else:
            value = getattr(OTHER_MODULES.get(name) or getattr(checks, name), constant)
        return f"{100 * value:g}%" if is_percentage else f"{value:g}"

    return THRESHOLD.sub(shown, text).replace("{usual_rates}", usual_rates_in_words())


@cache
def _numbers_of_probes(module: str) -> dict[str, float]:
    """Return the numbers that a module of probes names, by its source: probes load torch."""
    source = (Path(__file__).parent / "probes" / f"{module}.py").read_text(encoding="utf-8")
    numbers: dict[str, float] = {}
    for statement in ast.parse(source).body:
        if not isinstance(statement, ast.Assign) or not isinstance(statement.value, ast.Constant):
            continue
        value = statement.value.value
        for target in statement.targets:
            if isinstance(target, ast.Name) and isinstance(value, int | float):
                numbers[target.id] = value
    return numbers


def _trials(cause: Cause) -> Iterator[str]:
    """Yield how often it was named, and rightly, in trials."""
    for source, words in {
        "records": "From a run's records",
        "scalars": "From scalars alone",
    }.items():
        counts = trial_counts(cause.id, source)
        told = [
            f"{said} {counts[part]} of {counts[whole]} runs {which}"
            for part, whole, said, which in (
                ("right", "named", "right in", "where it was named first"),
                ("found", "planted", "among the first three in", "that had it"),
            )
            if whole in counts
        ]
        if told:
            yield f"{words}: {', '.join(told)}.\n"


def _proof(cause: Cause) -> list[str]:
    """Return the commands that decide: the probe, then one run per arm and its comparison with the
    control.
    """
    probe = cause.experiment.probe
    lines = [f"uptrend preflight recipe.toml --only {probe}"] if probe else []
    slugs = [name.replace(" ", "-") for name in cause.experiment.arms]
    for slug, changes in zip(slugs, cause.experiment.arms.values(), strict=True):
        sets = "".join(f" --set {_assignment(key, value)}" for key, value in changes.items())
        relative = [value for value in changes.values() if isinstance(value, Times)]
        note = f"  # {relative[0]}, here of the default" if relative else ""
        lines.append(f"uptrend train recipe.toml{sets} --name {slug}{note}")
    lines += [f"uptrend runs compare {slugs[0]} {slug}" for slug in slugs[1:]]
    values = {
        key: [value] for key, value in complete_fix(cause.fix).changes.get("uptrend", {}).items()
    }
    return (
        lines
        or [fill(command, values) for command in cause.commands]
        or ["uptrend doctor runs/mine"]
    )


def _assignment(key: str, value: Any) -> str:
    if isinstance(value, Times):
        now = attrgetter(key)(load_config({}))
        value = (
            round(now * value.factor)
            if isinstance(now, int)
            else float(f"{now * value.factor:.3g}")
        )
    text = f"{key}={value if isinstance(value, str) else json.dumps(value)}"
    return f"'{text}'" if re.search(r"[\[\]\"{} ]", text) else text


def _claim(cause: Cause) -> str:
    experiment = resolve_experiment(cause)
    if not experiment.arms:
        return ""
    after = f" after {experiment.steps} steps" if experiment.steps else ""
    claim = experiment.claim[0].lower() + experiment.claim[1:]
    return f"Claim: {claim} Compared is `{experiment.metric}`{after}."


def _fixes(cause: Cause, fix: Fix) -> Iterator[str]:
    for trainer, title in TRAINERS.items():
        notes = [note.partition(": ") for note in fix.notes.get(trainer, ())]
        settings = ", ".join(
            _settings(trainer, fix.changes.get(trainer, {}), {key: note for key, _, note in notes})
        )
        words = "; ".join(part for part in (settings, cause.advice.get(trainer, "")) if part)
        if words:
            yield f"- **{title}**: {words}"


def _settings(trainer: str, changes: Mapping[str, Any], notes: Mapping[str, str]) -> Iterator[str]:
    for key, value in changes.items():
        # TRL and verifiers take Python arguments; the others, and verifiers' dotted keys, take
        # TOML.
        is_python = trainer == "trl" or (trainer == "verifiers" and "." not in key)
        if isinstance(value, Times) or (isinstance(value, str) and " " in value):
            setting = f"`{key}`: {value}"
        else:
            setting = f"`{key}={_python(value)}`" if is_python else f"`{key} = {_toml(value)}`"
        yield f"{setting} ({notes[key]})" if key in notes else setting


def _python(value: Any) -> str:
    if isinstance(value, str):
        return value if "(" in value else f'"{value}"'  # a call such as LoraConfig(...) is code
    return repr(value)


def _toml(value: Any) -> str:
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{key} = {_toml(inner)}" for key, inner in value.items()) + " }"
    return json.dumps(value, ensure_ascii=False)
