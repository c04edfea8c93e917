"""Names that other trainers give to our settings and metrics, read from `dialects.toml`.

Settings go both ways: `to_theirs` writes one of ours for another trainer, `read_setting` finds one
among a trainer's. Metrics go one way, from a column of a log to our name: `translate`.
"""

import json
import re
import tomllib
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from functools import cache
from itertools import takewhile
from pathlib import Path
from typing import Any

# Trainers whose settings are known, and how they write themselves.
TRAINER_NAMES = {"trl": "TRL", "verifiers": "verifiers", "prime-rl": "prime-rl", "verl": "verl"}
# Trainers whose metrics are known, in the order in which a name is looked up that is not of the
# log's own trainer.
METRIC_DIALECTS = (
    "trl",
    "verl",
    "prime-rl",
    "verifiers",
    "tinker",
    "open-instruct",
    "openrlhf",
    "plain",
)
# A setting that is named in a note: words joined by dots or underscores.
_NAME_IN_NOTE = re.compile(r"[a-z]\w*(?:[._]\w+)+")
# Looks up a value by name; None where there is none.
Lookup = Callable[[str], Any]


@dataclass(frozen=True)
class Assignment:
    """Settings of another trainer that say what one of ours says."""

    settings: Mapping[str, Any]
    """Values by name; empty where the trainer can't be told."""
    note: str = ""


@dataclass(frozen=True)
class Setting:
    """One trainer's words for a setting; the fields are described at the top of `dialects.toml`."""

    name: tuple[str, ...] = ()
    same: tuple[str, ...] = ()
    values: Mapping[Any, Any] = field(default_factory=dict)
    none: Any = None
    times: str = ""
    counts_updates: bool = False
    beside: Mapping[str, Any] = field(default_factory=dict)
    also: Mapping[str, str] = field(default_factory=dict)
    default: Any = None
    note: str = ""

    def write(self, value: Any, times: Any) -> Mapping[str, Any]:
        """Return the settings that say our value, `times` being the value of the setting that
        multiplies it.
        """
        if not self.name:
            return {}
        if value is None or value == self.none:
            return {self.name[0]: None}
        if (
            isinstance(value, str)
            and (self.same or self.values)
            and value not in (*self.same, *self.values)
        ):
            return {}
        theirs = value
        if isinstance(value, str | int | float) and value in self.values:
            theirs = self.values[value]
            if isinstance(theirs, dict):
                return theirs
            theirs = theirs[0] if isinstance(theirs, tuple) else theirs
        if self.times and isinstance(value, int | float):
            theirs = value * times if isinstance(times, int | float) else f"{value} × {times}"
        return {self.name[0]: theirs, **self.beside}

    def read(self, value: Any, find: Lookup) -> list[Any]:
        """Return our values that a value may mean, the surest first: those that need several
        settings to say.
        """
        sure = []
        others = []
        for ours, theirs in self.values.items():
            if isinstance(theirs, dict):
                if self.name[0] in theirs and all(
                    is_same(find(name), each) for name, each in theirs.items()
                ):
                    sure.append(ours)
            elif any(
                is_same(value, each)
                for each in (theirs if isinstance(theirs, tuple) else (theirs,))
            ):
                others.append(ours)
        return [*sure, *(text for text in self.same if is_same(value, text)), *others]

    def difference(self, key: str) -> str:
        """Say how its value differs from that of our key; empty where a value means the same in
        both.
        """
        sentences = [f"it is {key} × {self.times}"] if self.times else []
        if self.counts_updates:
            sentences.append(
                "it counts optimizer updates, learning.updates × learning.minibatches of which are"
                " a step"
            )
        for ours, theirs in self.values.items():
            tables = theirs if isinstance(theirs, tuple) else (theirs,)
            for each in tables:
                if text := _in_words(each):
                    sentences.append(f"{text} is {json.dumps(ours)}")
        if self.none is not None:
            sentences.append(f"None is {json.dumps(self.none)}")
        # others repeat the values
        if self.note and (self.times or self.none is not None or not self.name):
            sentences.append(self.note)
        return "; ".join(sentences)


def to_theirs(
    key: str, value: Any, trainer: str, known: Lookup = lambda _: None
) -> Assignment | None:
    """Translate a setting of ours, None where nothing is known of it; `known` gives values of our
    other settings.

    A `Times` stays one. Where a value is multiplied by another setting that is not known, the
    product is a text.
    """
    setting = settings().get(key, {}).get(trainer)
    if setting is None:
        return None
    times = None
    if setting.times:
        times = known(setting.times)
        times = settings()[setting.times][trainer].name[0] if times is None else times
    return Assignment(setting.write(value, times), setting.note)


def to_ours(trainer: str, name: str) -> str | None:
    """Return our key of another trainer's setting, None where it is no translation of one."""
    found = (
        key
        for key, entry in settings().items()
        if trainer in entry and name in entry[trainer].name[:1]
    )
    return next(found, None)


def meanings(name: str, own_words: Collection[str] = ()) -> dict[str, list[str]]:
    """Return our keys that another trainer's setting may mean, each with how values differ there.

    Names are compared by their last words, so that `rollout.n` and `sampling.num_generations` are
    known too; of several the closest count. `own_words` are words that mean a key of ours: alone
    they are nobody else's name.
    """
    words = name.lower().replace("-", "_").split(".")
    closest = (0, False)
    keys = dict[str, list[str]]()
    for theirs, key, difference in _known_names():
        parts = theirs.lower().replace("-", "_").split(".")
        pairs = zip(reversed(words), reversed(parts), strict=False)
        shared = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
        rank_metric = (shared, shared == len(parts))
        if not shared or ".".join(parts[-shared:]) in own_words or rank_metric < closest:
            continue
        if rank_metric > closest:
            closest = rank_metric
            keys = {}
        differences = keys.setdefault(key, [])
        if difference and difference not in differences:
            differences.append(difference)
    return keys


@cache
def _known_names() -> tuple[tuple[str, str, str], ...]:
    """Return every name of another trainer with our key and how values differ, in words."""
    names = list[tuple[str, str, str]]()
    for key, entry in settings().items():
        for trainer, setting in entry.items():
            difference = setting.difference(key)
            sentence = f"In {TRAINER_NAMES[trainer]}, {difference}." if difference else ""
            tables = [table for table in setting.values.values() if isinstance(table, dict)]
            beside = {name for table in (*tables, setting.beside) for name in table}
            in_note = {
                word.rstrip(".:;,") for word in _NAME_IN_NOTE.findall(setting.note)
            } - settings().keys()
            every_name = dict.fromkeys([*setting.name, *sorted(beside), *sorted(in_note)])
            names += [(name, key, sentence) for name in every_name]
            names += [
                (name, key, f"In {TRAINER_NAMES[trainer]}, {name} {text}.")
                for name, text in setting.also.items()
            ]
        names += [(name, key, "") for name in _table()[key].get("logs", ())]
    return tuple(names)


def read_setting(key: str, trainer: str, find: Lookup) -> Any:
    """Return our value of a setting from what a trainer was told, None where that does not say."""
    value = next(
        (value for name in names_of(key, trainer) if (value := find(name)) is not None), None
    )
    return None if value is None else our_value(key, value, trainer, find)


def our_value(key: str, value: Any, trainer: str, find: Lookup = lambda _: None) -> Any:
    """Translate a value of a setting, unchanged where it has no translation; `find` gives the
    settings beside it.
    """
    entry = settings()[key]
    # A log of nobody in particular may have any trainer's values.
    ordered = [entry[who] for who in dict.fromkeys([trainer, *TRAINER_NAMES]) if who in entry]
    return next((ours for setting in ordered for ours in setting.read(value, find)), value)


@cache
def names_of(key: str, trainer: str) -> tuple[str, ...]:
    """Return the names that mean a setting, the surest first: more dots say more, then the
    trainer's own names.
    """
    entry = {
        who: each.name for who, each in settings()[key].items() if each.name and not each.times
    }
    own = entry.pop(trainer, ())
    logs = tuple(_table()[key].get("logs", ()))
    others = (names[0] for names in entry.values())
    found = dict.fromkeys([*own, *(name for name in others if name not in logs), *logs])
    return tuple(sorted(found, key=lambda name: -name.count(".")))


@cache
def logged_settings() -> tuple[str, ...]:
    """Return our keys that logs tell."""
    return tuple(key for key in settings() if "logs" in _table()[key])


@cache
def settings() -> Mapping[str, Mapping[str, Setting]]:
    """Return what each trainer calls our settings, by our key and trainer."""
    return {
        key: {trainer: _parsed(entry[trainer]) for trainer in TRAINER_NAMES if trainer in entry}
        for key, entry in _table().items()
        if key not in ("reading", "converting") and not key.startswith("metric:")
    }


def is_machinery(trainer: str, name: str) -> bool:
    """Return True for a setting of the machine, of logs or of files, which does not change what is
    learned.
    """
    return re.search(_table()["converting"][trainer], name) is not None


def other_default(trainer: str, name: str) -> Any:
    """Return the value of a setting without a translation where nothing is said; None where it is
    off.
    """
    return _table()["converting"]["defaults"][trainer].get(name)


@cache
def metric_names(trainer: str) -> Mapping[str, str]:
    """Return our name of each of a trainer's metrics; of several that mean the same, the first
    counts.
    """
    found: dict[str, str] = {}
    for key, entry in _table().items():
        if key.startswith("metric:"):
            found |= dict.fromkeys(_listed(entry.get(trainer, [])), key.removeprefix("metric:"))
    return found


def metric_name(metric: str, trainer: str) -> str:
    """Return a trainer's present name of a metric of ours."""
    return _listed(_table()[f"metric:{metric}"][trainer])[0]


@cache
def plain_name(column: str) -> str:
    """Return a column's name without what loggers add: `train/` before it, and spaces around a
    slash.
    """
    name = re.sub(r"\s*/\s*", "/", column.strip())
    return name.removeprefix("train/") or name


@cache
def is_bookkeeping(column: str) -> bool:
    """Say whether a column counts or times instead of measuring."""
    return plain_name(column).lower() in _table()["reading"]["bookkeeping"]


@cache
def names_for(role: str) -> tuple[str, ...]:
    """Return the names that play a role in logs, a list of `[reading]` in `dialects.toml`; the
    surest come first.
    """
    return tuple(_table()["reading"][role])


@cache
def matches(column: str, role: str) -> bool:
    """Return True where a column has the form of a role, a pattern of `[reading.patterns]` in
    `dialects.toml`.
    """
    return re.search(_table()["reading"]["patterns"][role], plain_name(column)) is not None


def translate(column: str, trainer: str) -> str | None:
    """Return our name of a trainer's metric, None where there is none."""
    found = rank_metric(column, trainer)
    return found[1] if found else None


@cache
def rank_metric(column: str, trainer: str) -> tuple[int, str] | None:
    """Return the place of a column among the names that hold for this trainer, and our name for
    it.
    """
    name = plain_name(column)
    if trainer == "uptrend":
        return (0, name)
    key = re.sub(r"\s+", "_", name).lower()
    # The trainer's own names, then home-made ones, then everybody else's.
    own = [trainer] if trainer in METRIC_DIALECTS else []
    for at, who in enumerate(dict.fromkeys([*own, "plain", *METRIC_DIALECTS])):
        names = metric_names(who)
        if key in names:
            return 1000 * at + list(names).index(key), names[key]
        for place, pattern, ours in _patterns(who):
            match = pattern.fullmatch(name)
            part = match.groupdict().get("name", "") if match else ""
            if match and part.lower().split("_")[0] not in _table()["reading"]["statistics"]:
                return 1000 * at + place, ours.replace("NAME", part)
    return None


def recognize(columns: list[str]) -> str:
    """Return the trainer whose own names a log has most of; unknown where they could be
    anybody's.
    """
    keys = {re.sub(r"\s+", "_", plain_name(column)).lower() for column in columns}
    if {"advantage/dead/share", "optimizer/lr"} & keys:
        return "uptrend"
    scores = {
        trainer: sum(re.fullmatch("|".join(signs), key) is not None for key in keys)
        for trainer, signs in _table()["reading"]["signs"].items()
    }
    best = max(scores, key=lambda trainer: scores[trainer])
    return best if scores[best] else "unknown"


@cache
def _table() -> Mapping[str, Any]:
    return tomllib.loads(Path(__file__).with_name("dialects.toml").read_text(encoding="utf-8"))


def _parsed(entry: str | list[str] | dict[str, Any]) -> Setting:
    if not isinstance(entry, dict):
        return Setting(tuple(_listed(entry)))
    values = {
        _typed(ours): tuple(v) if isinstance(v, list) else v
        for ours, v in entry.get("values", {}).items()
    }
    names = tuple(_listed(entry.get("name", [])))
    same = tuple(entry.get("same", ()))
    return Setting(**entry | {"name": names, "same": same, "values": values})


def _in_words(value: Any) -> str:
    """Write a value of another trainer, or a table of its settings; empty where the table is."""
    if isinstance(value, Mapping):
        return " with ".join(f"{name} = {json.dumps(each)}" for name, each in value.items())
    return json.dumps(value)


def _listed(names: str | list[str]) -> list[str]:
    return [names] if isinstance(names, str) else names


def _typed(key: str) -> Any:
    try:
        return json.loads(key)  # our value may be a number, and a TOML key is always a text
    except ValueError:
        return key


def is_same(one: Any, other: Any) -> bool:
    """Tell whether two values of a setting mean the same: numbers by size, texts whatever their
    case.
    """
    is_number = all(
        isinstance(value, int | float) and not isinstance(value, bool) for value in (one, other)
    )
    return bool(one == other) or (not is_number and str(one).lower() == str(other).lower())


@cache
def _patterns(trainer: str) -> list[tuple[int, re.Pattern[str], str]]:
    found = []
    for place, (theirs, ours) in enumerate(metric_names(trainer).items()):
        if "NAME" in theirs or "AGENT" in theirs:
            text = re.escape(theirs).replace("AGENT", "[^/]+").replace("NAME", r"(?P<name>[^/\s]+)")
            found.append((place, re.compile(text), ours))
    return found
