"""Pages of causes, with their front matter in words: for `uptrend explain` and the site."""

import ast
import json
import re
import tomllib
from collections.abc import Iterator, Mapping
from functools import cache
from operator import attrgetter
from pathlib import Path
from types import ModuleType
from typing import Any

from uptrend.config import load_config
from uptrend.doctor import case, checks
from uptrend.doctor.catalogue import (
    CATALOGUE,
    FINDINGS_FOLDER,
    Cause,
    complete_fix,
    fill,
    resolve_experiment,
    trial_counts,
    usual_rates_in_words,
)
from uptrend.present.formatting import shell_assignment
from uptrend.records import Fix, Multiplied, dialects
from uptrend.tasks import proof

TRAINER_TITLES = {"uptrend": "Uptrend", **dialects.TRAINER_NAMES, "any": "Any trainer"}
# A threshold in a page's text: a constant of a module of checks, of `case` or `proof`, or, after
# `probes.`, of a module of probes; as a percentage if % follows.
THRESHOLD_PATTERN = re.compile(r"\{(probes\.)?(\w+)\.([A-Z][A-Z0-9_]*)(%?)\}")
# Modules beside those of checks.
OTHER_MODULES = {"case": case, "proof": proof}
SOURCES_IN_WORDS = {"records": "From a run's records", "scalars": "From scalars alone"}


def causes_by_section() -> tuple[str, dict[str, list[Cause]]]:
    """Return the text before the list of causes, and the causes by the title of their section."""
    readme = (FINDINGS_FOLDER / "README.md").read_text(encoding="utf-8")
    _, front, text = readme.split("+++\n", 2)
    causes_by_title: dict[str, list[Cause]] = {}
    for title, families in tomllib.loads(front)["sections"].items():
        causes: list[Cause] = []
        for family in families:
            causes += [cause for id, cause in CATALOGUE.items() if id.startswith(f"{family}.")]
        causes_by_title[title] = causes
    return text, causes_by_title


def cause_page(cause: Cause) -> str:
    """Return a cause's page as Markdown."""
    rivals: list[str] = []
    for rival in cause.rivals:
        is_cause = rival.id in CATALOGUE
        title = f"[{rival.id}]({rival.id}.md)" if is_cause else rival.id.capitalize()
        rivals.append(f"- {title}: {rival.tells_apart}.")
    fix = complete_fix(cause.fix)
    has_trials = trial_counts(cause.id, "records") or trial_counts(cause.id, "scalars")
    blocks = [
        f"# {cause.id}",
        cause.what,
        _with_thresholds(cause.body),
        "## What else it could be",
        "\n".join(rivals),
        "## How to prove it",
        cause.how,
        "\n".join(["```bash", *_deciding_commands(cause), "```"]),
        _claim(cause),
        "## How to fix it",
        fix.sentence,
        "\n".join(_settings_by_trainer(cause, fix)),
        *_fix_in_several_turns(cause, fix),
        "## In trials" if has_trials else "",
        "\n".join(_trials(cause)),
    ]
    return "\n\n".join(block for block in blocks if block) + "\n"


def _fix_in_several_turns(cause: Cause, fix: Fix) -> Iterator[str]:
    """Yield what is different about the fix for tasks of several turns."""
    other = cause.in_several_turns
    if other is None:
        return
    other_fix = complete_fix(other.fix)
    yield f"In tasks of several turns: {other_fix.sentence[0].lower()}{other_fix.sentence[1:]}"
    same_lines = set(_settings_by_trainer(cause, fix))
    other_lines = _settings_by_trainer(other, other_fix)
    yield "\n".join(line for line in other_lines if line not in same_lines)


def _with_thresholds(text: str) -> str:
    """Return a page's text with the values of thresholds, and of the usual learning rates."""

    def threshold_in_words(match: re.Match[str]) -> str:
        probes_prefix, module, constant, percent_sign = match.groups()
        if probes_prefix:
            value = _numbers_of_probes(module)[constant]
        else:
            value = getattr(_module_of(module), constant)
        return f"{100 * value:g}%" if percent_sign else f"{value:g}"

    return THRESHOLD_PATTERN.sub(threshold_in_words, text).replace(
        "{usual_rates}", usual_rates_in_words()
    )


def _module_of(name: str) -> ModuleType:
    """Return the module of this name: `case`, `proof` or one of checks."""
    if name in OTHER_MODULES:
        return OTHER_MODULES[name]
    module: ModuleType = getattr(checks, name)
    return module


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
    """Yield how often trials named a cause, and how often rightly."""
    for source, source_in_words in SOURCES_IN_WORDS.items():
        counts = trial_counts(cause.id, source)
        shares: list[str] = []
        if "named" in counts:
            shares.append(
                f"right in {counts['right']} of {counts['named']} runs where it was named first"
            )
        if "planted" in counts:
            shares.append(
                f"among the first three in {counts['found']} of {counts['planted']} runs that had"
                " it"
            )
        if shares:
            # The empty line makes each a paragraph of its own.
            yield f"{source_in_words}: {', '.join(shares)}.\n"


def _deciding_commands(cause: Cause) -> list[str]:
    """Return the commands that decide: the probe, then one run per arm and its comparison with the
    control.
    """
    lines: list[str] = []
    probe = cause.experiment.probe
    if probe:
        lines.append(f"uptrend preflight recipe.toml --only {probe}")
    run_names: list[str] = []
    for arm, changes in cause.experiment.arms.items():
        run_name = arm.replace(" ", "-")
        run_names.append(run_name)
        sets = "".join(f" --set {_shell_change(key, value)}" for key, value in changes.items())
        relative = [value for value in changes.values() if isinstance(value, Multiplied)]
        comment = f"  # {relative[0]}, here of the default" if relative else ""
        lines.append(f"uptrend train recipe.toml{sets} --name {run_name}{comment}")
    # The first arm is the control.
    for run_name in run_names[1:]:
        lines.append(f"uptrend runs compare {run_names[0]} {run_name}")
    if lines:
        return lines

    settings = complete_fix(cause.fix).changes.get("uptrend", {})
    values = {key: [value] for key, value in settings.items()}
    commands = [fill(command, values) for command in cause.commands]
    return commands or ["uptrend doctor runs/mine"]


def _shell_change(key: str, value: Any) -> str:
    """Return a setting for `--set`, a relative value computed from the default."""
    if isinstance(value, Multiplied):
        default = attrgetter(key)(load_config({}))
        scaled = default * value.factor
        value = round(scaled) if isinstance(default, int) else float(f"{scaled:.3g}")
    return shell_assignment(key, value)


def _claim(cause: Cause) -> str:
    experiment = resolve_experiment(cause)
    if not experiment.arms:
        return ""
    after = f" after {experiment.steps} steps" if experiment.steps else ""
    claim = experiment.claim[0].lower() + experiment.claim[1:]
    return f"Claim: {claim} Compared is `{experiment.metric}`{after}."


def _settings_by_trainer(cause: Cause, fix: Fix) -> Iterator[str]:
    """Yield one line per trainer: the settings that fix a cause, and advice."""
    for trainer, title in TRAINER_TITLES.items():
        notes_by_setting: dict[str, str] = {}
        for note in fix.notes.get(trainer, ()):
            # Notes of fixes are "setting: text".
            key, _, text = note.partition(": ")
            notes_by_setting[key] = text
        changes = fix.changes.get(trainer, {})
        settings = ", ".join(_settings(trainer, changes, notes_by_setting))
        parts = [part for part in (settings, cause.advice.get(trainer, "")) if part]
        if parts:
            yield f"- **{title}**: {'; '.join(parts)}"


def _settings(trainer: str, changes: Mapping[str, Any], notes: Mapping[str, str]) -> Iterator[str]:
    for key, value in changes.items():
        # TRL and verifiers take Python arguments; the others, and verifiers' dotted keys, take
        # TOML.
        is_python = trainer == "trl" or (trainer == "verifiers" and "." not in key)
        is_in_words = isinstance(value, Multiplied) or (isinstance(value, str) and " " in value)
        if is_in_words:
            setting = f"`{key}`: {value}"
        elif is_python:
            setting = f"`{key}={_python(value)}`"
        else:
            setting = f"`{key} = {_toml(value)}`"
        yield f"{setting} ({notes[key]})" if key in notes else setting


def _python(value: Any) -> str:
    if isinstance(value, str):
        return value if "(" in value else f'"{value}"'  # a call such as LoraConfig(...) is code
    return repr(value)


def _toml(value: Any) -> str:
    if isinstance(value, dict):
        pairs = ", ".join(f"{key} = {_toml(inner)}" for key, inner in value.items())
        return f"{{ {pairs} }}"
    return json.dumps(value, ensure_ascii=False)
