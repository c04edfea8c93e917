"""A hypothesis as a Markdown file: front matter that the machine reads, sections that people write."""

import dataclasses
import re
import typing
from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import Any

from uptrend.config.load import convert, unknown
from uptrend.config.tables import flatten, to_key, to_toml
from uptrend.lab.front_matter import FENCE, Page, read_page
from uptrend.records import Arm, Confidence, ConfigError, Hypothesis, LabError
from uptrend.records.renamed import current

NAME = re.compile(r"(h\d{2,})-[\w-]+")
"""What a file is called, without its ending: the id, then a few words."""

SECTIONS = (
    "Description",
    "Why it explains the behavior",
    "Validation method",
    "Invalidation criteria",
    "Results",
)
"""The headings of the prose, in their order."""

COMMENTS = {
    "title": "the claim in a few words; it should be possible that it is wrong",
    "priority": "high, medium or low: what to test first",
    "status": "the machine writes it: pending, testing, validated, invalidated or inconclusive",
    "confidence": "the machine writes it: high, medium or low",
    "cause": "the catalogue id that it is about (docs/findings/), or empty",
    "explains": "what would be explained if it held, in a sentence",
    "recipe": "the base recipe, relative to the lab's folder",
    "metric": "eval/accuracy, eval/reward, eval/part/NAME, eval/pass@K, or a metric of the steps",
    "direction": "up, down or either: where the arms go, against the control",
    "smallest": "the smallest effect that matters, in the metric's unit",
    "seeds": "the same in every arm; 5 or more, 8 where several hypotheses are judged together",
    "alpha": "the chance of a wrong verdict that is accepted",
    "steps": "steps a run; 0 for the recipe's",
    "method": "train: every arm is a run; replay: a recorded run is updated from again",
    "source": 'what a replay replays, a run a seed: { run = "runs/NAME-s{seed}-*", step = 0 }',
    "stops_early": "whether to end once the confidence sequence over seeds is clear",
    "validated_if": "in effect, low, high, smallest, control, arm and p; effects count in the claimed direction",
    "invalidated_if": "likewise; where both are met it is invalidated: an effect, but smaller than matters",
    "prerequisites": 'hypotheses to decide first, such as ["h01"]',
    "allows": "catalogue ids that may be found in an arm besides the cause itself",
}
"""What to write for each key; docs/hypotheses.md has more."""

ARMS = "# The arms: the recipe with these config values on top (docs/config.md). One of them is the control."
NO_ARMS = "# No arms: the validation method below says what decides. Arms would be tables such as [arms.control]."
EXAMPLE = '# "learning.kl.beta" = 0.1  # for example: what this arm changes, and nothing else'


def read(path: Path) -> Hypothesis:
    """The hypothesis that a file holds; an error names the file, the line and the key."""
    match = NAME.fullmatch(path.stem)
    if match is None:
        raise LabError(f"{path.name} should be called hNN-a-few-words.md, for example h01-kl-penalty-required.md.")
    page = read_page(path)
    table = page.table
    values, arms = _values(page, table), _arms(page, table.get("arms", {}))
    if not values.get("title", "").strip():
        raise LabError(f"{page.at('title')}: title is missing. Write {COMMENTS['title']}.")
    return _with_current_names(Hypothesis(id=match[1], arms=arms, **{"recipe": "", **values}))


def _with_current_names(h: Hypothesis) -> Hypothesis:
    """Replace names of earlier versions: a file that was written before a rename still says the same."""
    arms = tuple(
        dataclasses.replace(arm, overrides={current(key): value for key, value in arm.overrides.items()})
        for arm in h.arms
    )
    allows = tuple(current(id) for id in h.allows)
    return dataclasses.replace(h, metric=current(h.metric), cause=current(h.cause), allows=allows, arms=arms)


def _values(page: Page, table: Mapping[str, Any]) -> dict[str, Any]:
    """Every key but the arms, converted; a key that nobody knows is an error with the nearest one."""
    hints = typing.get_type_hints(Hypothesis)
    known = [*COMMENTS, "arms"]
    values = dict[str, Any]()
    for key, value in table.items():
        if key not in known:
            raise LabError(f"{page.at(key)}: {unknown(key, key, known, 'The front matter')}")
        if key != "arms":
            values[key] = _value(page, key, hints[key], value)
    return values


def _value(page: Page, key: str, kind: Any, value: Any) -> Any:
    if key == "confidence":
        return _choice(page, key, Confidence, value) if value else None
    if isinstance(kind, type) and issubclass(kind, StrEnum):
        return _choice(page, key, kind, value)
    try:
        return convert(kind, value, key)
    except ConfigError as error:
        raise LabError(f"{page.at(key)}: {error} Write {COMMENTS[key]}.") from None


def _choice(page: Page, key: str, kind: type[StrEnum], value: Any) -> StrEnum:
    try:
        return kind(convert(typing.Literal[tuple(str(choice) for choice in kind)], value, key))
    except ConfigError as error:
        raise LabError(f"{page.at(key)}: {error}") from None


def _arms(page: Page, tables: Any) -> tuple[Arm, ...]:
    if not isinstance(tables, Mapping) or not all(isinstance(table, Mapping) for table in tables.values()):
        raise LabError(f"{page.at('arms')}: write each arm as a table [arms.NAME] with the config values it changes.")
    arms = list[Arm]()
    for name, table in tables.items():
        is_control = table.get("control", False)
        if not isinstance(is_control, bool):
            raise LabError(
                f"{page.at(f'arms.{name}')}: control = {is_control!r} in arm {name} should be true or false."
            )
        overrides = flatten({key: value for key, value in table.items() if key != "control"})
        arms.append(Arm(name, overrides, is_control))
    return tuple(arms)


def render(h: Hypothesis, prose: Mapping[str, str]) -> str:
    """A new file's text: every key with a comment that says what to write, then the sections."""
    lines = [FENCE, *_settings(h), "", ARMS if h.arms else NO_ARMS]
    for arm in h.arms:
        lines += [f"[arms.{to_key(arm.name)}]"]
        lines += ["control = true"] if arm.is_control else []
        lines += [f"{to_key(key)} = {to_toml(value)}" for key, value in arm.overrides.items()]
        lines += [EXAMPLE] if not arm.is_control and not any(other.overrides for other in h.arms) else []
        lines += [] if arm is h.arms[-1] else [""]
    lines += [FENCE, "", f"# {h.id.upper()}: {' '.join(h.title.split())}", ""]
    for section in (*SECTIONS, *(name for name in prose if name not in SECTIONS)):
        text = prose.get(section, "").strip("\n")
        lines += [f"## {section}", "", *([text, ""] if text else [])]
    return "\n".join(lines).rstrip("\n") + "\n"


def _settings(h: Hypothesis) -> list[str]:
    """A line a key; a value that is long has its comment above it."""
    lines = list[str]()
    for key, comment in COMMENTS.items():
        value = getattr(h, key)
        if key == "source":
            if value is None:
                continue
            value = dataclasses.asdict(value)
        line = f"{key} = {to_toml('' if value is None else value)}"
        lines += [f"{line:<40}  # {comment}"] if len(line) <= 40 else [f"# {comment}", line]
    return lines


def sections(body: str) -> dict[str, str]:
    """The prose under each `##` heading; what stands before the first has the name ""."""
    parts = re.split(r"^## (.+?)[ \t\r]*$\n?", body, flags=re.MULTILINE)
    found = {"": parts[0].strip("\n")}
    found |= {name: text.strip("\n") for name, text in zip(parts[1::2], parts[2::2], strict=True)}
    return found
