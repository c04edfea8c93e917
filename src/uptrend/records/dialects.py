"""Names that other trainers give to our settings and metrics, read from `dialects.toml`.

Settings go both ways: `to_theirs` writes one of ours for another trainer, `read_setting` finds one
among a trainer's. Metrics go one way, from a column of a log to our name: `translate`.
"""

import json
import re
import tomllib
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
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
# Ranks of metrics of one dialect; those of the next begin above them.
RANKS_PER_DIALECT = 1000
# Returns a value by name; None for an unknown name.
Lookup = Callable[[str], Any]


@dataclass(frozen=True)
class Assignment:
    """Settings of another trainer that mean the same as one of ours."""

    settings: Mapping[str, Any]
    """Values by name; empty if the trainer has no such setting."""
    note: str = ""


@dataclass(frozen=True)
class Setting:
    """Translation of a setting to one trainer; the head of `dialects.toml` describes the fields."""

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
        """Return the settings that mean our value, `times` being the value of the setting that
        multiplies it; empty if none do.
        """
        if not self.name:
            return {}
        name = self.name[0]
        if value is None or value == self.none:
            return {name: None}
        is_listed = value in (*self.same, *self.values)
        if isinstance(value, str) and (self.same or self.values) and not is_listed:
            return {}
        theirs = value
        if isinstance(value, str | int | float) and value in self.values:
            theirs = self.values[value]
            if isinstance(theirs, dict):
                return theirs
            if isinstance(theirs, tuple):
                theirs = theirs[0]
        if self.times and isinstance(value, int | float):
            theirs = value * times if isinstance(times, int | float) else f"{value} × {times}"
        return {name: theirs, **self.beside}

    def read(self, value: Any, find: Lookup) -> list[Any]:
        """Return our values that a value may mean, the surest first: those that several settings
        express together.
        """
        by_several = []
        by_value = []
        for ours, theirs in self.values.items():
            if isinstance(theirs, dict):
                are_set = all(is_same(find(name), each) for name, each in theirs.items())
                if self.name[0] in theirs and are_set:
                    by_several.append(ours)
            elif any(is_same(value, each) for each in _as_tuple(theirs)):
                by_value.append(ours)
        unchanged = [text for text in self.same if is_same(value, text)]
        return [*by_several, *unchanged, *by_value]

    def difference(self, key: str) -> str:
        """Return how its value differs from that of our key, in words; empty if a value means the
        same in both.
        """
        sentences = []
        if self.times:
            sentences.append(f"it is {key} × {self.times}")
        if self.counts_updates:
            sentences.append(
                "it counts optimizer updates, learning.updates × learning.minibatches of which are"
                " a step"
            )
        for ours, theirs in self.values.items():
            for each in _as_tuple(theirs):
                text = _value_in_words(each)
                if text:
                    sentences.append(f"{text} is {json.dumps(ours)}")
        if self.none is not None:
            sentences.append(f"None is {json.dumps(self.none)}")
        # Other notes repeat the values.
        if self.note and (self.times or self.none is not None or not self.name):
            sentences.append(self.note)
        return "; ".join(sentences)


def to_theirs(
    key: str, value: Any, trainer: str, known: Lookup = lambda _: None
) -> Assignment | None:
    """Translate a setting of ours; None if its translation is unknown. `known` returns values of
    our other settings.

    A `Multiplied` stays one. If a value is multiplied by another setting of unknown value, the
    product is a text.
    """
    setting = settings().get(key, {}).get(trainer)
    if setting is None:
        return None
    times = None
    if setting.times:
        times = known(setting.times)
        if times is None:
            times = settings()[setting.times][trainer].name[0]
    return Assignment(setting.write(value, times), setting.note)


def to_ours(trainer: str, name: str) -> str | None:
    """Return our key of another trainer's setting, None if it is no translation of one."""
    for key, entry in settings().items():
        if trainer in entry and name in entry[trainer].name[:1]:
            return key
    return None


def meanings(name: str, own_words: Collection[str] = ()) -> dict[str, list[str]]:
    """Return our keys that another trainer's setting may mean, each with sentences on how values
    differ.

    Names are compared by their last words, so that `rollout.n` and `sampling.num_generations` are
    known too; of several the closest count. `own_words` are words that mean a key of ours: alone
    they are not taken for another trainer's.
    """
    words = _split_words(name)
    closest = (0, False)  # last words in common, and True for all words of the known name
    differences_by_key: dict[str, list[str]] = {}
    for known in _known_names():
        known_words = _split_words(known.name)
        n_shared = _count_shared_end(words, known_words)
        closeness = (n_shared, n_shared == len(known_words))
        is_own = n_shared > 0 and ".".join(known_words[-n_shared:]) in own_words
        if n_shared == 0 or is_own or closeness < closest:
            continue
        if closeness > closest:
            closest = closeness
            differences_by_key = {}
        differences = differences_by_key.setdefault(known.key, [])
        if known.difference and known.difference not in differences:
            differences.append(known.difference)
    return differences_by_key


def _split_words(name: str) -> list[str]:
    return name.lower().replace("-", "_").split(".")


def _count_shared_end(one: list[str], other: list[str]) -> int:
    """Return the number of last words that two names share."""
    count = 0
    for word, other_word in zip(reversed(one), reversed(other), strict=False):
        if word != other_word:
            break
        count += 1
    return count


@dataclass(frozen=True)
class _KnownName:
    """A setting's name in another trainer or in logs."""

    name: str
    key: str
    """Our key."""
    difference: str
    """Sentence on how values differ; empty if they do not."""


@cache
def _known_names() -> tuple[_KnownName, ...]:
    """Return every name of a setting in other trainers and in logs."""
    names: list[_KnownName] = []
    for key, entry in settings().items():
        for trainer, setting in entry.items():
            display_name = TRAINER_NAMES[trainer]
            difference = setting.difference(key)
            sentence = f"In {display_name}, {difference}." if difference else ""
            for name in _all_names(setting):
                names.append(_KnownName(name, key, sentence))
            for name, text in setting.also.items():
                names.append(_KnownName(name, key, f"In {display_name}, {name} {text}."))
        for name in _table()[key].get("logs", ()):
            names.append(_KnownName(name, key, ""))
    return tuple(names)


def _all_names(setting: Setting) -> Iterable[str]:
    """Return the names of a setting, of those that go with it, and of those in its note."""
    beside = set(setting.beside)
    for theirs in setting.values.values():
        if isinstance(theirs, dict):
            beside |= theirs.keys()
    in_note = {word.rstrip(".:;,") for word in _NAME_IN_NOTE.findall(setting.note)}
    in_note -= settings().keys()
    return dict.fromkeys([*setting.name, *sorted(beside), *sorted(in_note)])


def read_setting(key: str, trainer: str, find: Lookup) -> Any:
    """Return our value of a setting from a trainer's settings, None if they do not have it."""
    for name in names_of(key, trainer):
        value = find(name)
        if value is not None:
            return our_value(key, value, trainer, find)
    return None


def our_value(key: str, value: Any, trainer: str, find: Lookup = lambda _: None) -> Any:
    """Translate a value of a setting, unchanged if it has no translation; `find` returns the values
    of other settings.
    """
    entry = settings()[key]
    # The log of an unknown trainer may have any trainer's values.
    for dialect in dict.fromkeys([trainer, *TRAINER_NAMES]):
        if dialect in entry:
            meant = entry[dialect].read(value, find)
            if meant:
                return meant[0]
    return value


@cache
def names_of(key: str, trainer: str) -> tuple[str, ...]:
    """Return the names that mean a setting, the surest first: those with more dots, then the
    trainer's own.
    """
    own_names: tuple[str, ...] = ()
    other_names: list[str] = []
    log_names = tuple(_table()[key].get("logs", ()))
    for dialect, setting in settings()[key].items():
        if not setting.name or setting.times:
            continue
        if dialect == trainer:
            own_names = setting.name
        elif setting.name[0] not in log_names:
            other_names.append(setting.name[0])
    names = dict.fromkeys([*own_names, *other_names, *log_names])
    return tuple(sorted(names, key=lambda name: -name.count(".")))


@cache
def logged_settings() -> tuple[str, ...]:
    """Return our keys whose values logs have."""
    return tuple(key for key in settings() if "logs" in _table()[key])


@cache
def settings() -> Mapping[str, Mapping[str, Setting]]:
    """Return the translations of our settings, by our key and trainer."""
    translations: dict[str, dict[str, Setting]] = {}
    for key, entry in _table().items():
        if key in ("reading", "converting") or key.startswith("metric:"):
            continue
        translations[key] = {}
        for trainer in TRAINER_NAMES:
            if trainer in entry:
                translations[key][trainer] = _to_setting(entry[trainer])
    return translations


def is_machinery(trainer: str, name: str) -> bool:
    """Return True for a setting of the machine, of logs or of files, which does not change what is
    learned.
    """
    return re.search(_table()["converting"][trainer], name) is not None


def other_default(trainer: str, name: str) -> Any:
    """Return the default of a setting without a translation; None if it is off by default."""
    return _table()["converting"]["defaults"][trainer].get(name)


@cache
def metric_names(trainer: str) -> Mapping[str, str]:
    """Return our name of each of a trainer's metrics; of several that mean the same, the first
    counts.
    """
    names: dict[str, str] = {}
    for key, entry in _table().items():
        if key.startswith("metric:"):
            for name in _as_list(entry.get(trainer, [])):
                names[name] = key.removeprefix("metric:")
    return names


def metric_name(metric: str, trainer: str) -> str:
    """Return a trainer's present name of a metric of ours; empty if it has none."""
    names = _as_list(_table()[f"metric:{metric}"].get(trainer, []))
    return names[0] if names else ""


@cache
def plain_name(column: str) -> str:
    """Return a column's name without what loggers add: `train/` before it, and spaces around a
    slash.
    """
    name = re.sub(r"\s*/\s*", "/", column.strip())
    return name.removeprefix("train/") or name


@cache
def is_bookkeeping(column: str) -> bool:
    """Return True for a column that counts or times instead of measuring."""
    return plain_name(column).lower() in _table()["reading"]["bookkeeping"]


@cache
def names_for(role: str) -> tuple[str, ...]:
    """Return the names for a role in logs, the surest first: a list of `[reading]` in
    `dialects.toml`.
    """
    return tuple(_table()["reading"][role])


@cache
def matches(column: str, role: str) -> bool:
    """Return True if a column has the form of a role, a pattern of `[reading.patterns]` in
    `dialects.toml`.
    """
    return re.search(_table()["reading"]["patterns"][role], plain_name(column)) is not None


def translate(column: str, trainer: str) -> str | None:
    """Return our name of a trainer's metric, None for an unknown one."""
    ranked = rank_metric(column, trainer)
    return ranked[1] if ranked else None


@cache
def rank_metric(column: str, trainer: str) -> tuple[int, str] | None:
    """Return the rank of a column among the names of this trainer and of others, the surest 0, and
    our name for it.
    """
    name = plain_name(column)
    if trainer == "uptrend":
        return (0, name)
    key = _metric_key(column)
    # The trainer's own names, then home-made ones, then those of all others.
    own_dialect = [trainer] if trainer in METRIC_DIALECTS else []
    dialects = dict.fromkeys([*own_dialect, "plain", *METRIC_DIALECTS])
    for number, dialect in enumerate(dialects):
        first_rank = number * RANKS_PER_DIALECT
        names = metric_names(dialect)
        if key in names:
            return first_rank + list(names).index(key), names[key]
        for index, pattern, ours in _patterns(dialect):
            match = pattern.fullmatch(name)
            if match is None:
                continue
            part = match.groupdict().get("name", "")
            # A statistic in the place of a name, such as `reward/std`, is no part of the reward.
            if part.lower().split("_")[0] not in _table()["reading"]["statistics"]:
                return first_rank + index, ours.replace("NAME", part)
    return None


def _metric_key(column: str) -> str:
    return re.sub(r"\s+", "_", plain_name(column)).lower()


def recognize(columns: list[str]) -> str:
    """Return the trainer whose own names a log has most of; unknown if it has none of any."""
    keys = {_metric_key(column) for column in columns}
    if {"advantage/dead/share", "optimizer/lr"} & keys:
        return "uptrend"
    scores: dict[str, int] = {}
    for trainer, signs in _table()["reading"]["signs"].items():
        pattern = re.compile("|".join(signs))
        scores[trainer] = sum(pattern.fullmatch(key) is not None for key in keys)
    best = max(scores, key=lambda trainer: scores[trainer])
    return best if scores[best] else "unknown"


@cache
def _table() -> Mapping[str, Any]:
    return tomllib.loads(Path(__file__).with_name("dialects.toml").read_text(encoding="utf-8"))


def _to_setting(entry: str | list[str] | dict[str, Any]) -> Setting:
    """Return an entry of the table as a setting; one without further fields is its names."""
    if not isinstance(entry, dict):
        return Setting(tuple(_as_list(entry)))
    values: dict[Any, Any] = {}
    for ours, theirs in entry.get("values", {}).items():
        values[_to_value(ours)] = tuple(theirs) if isinstance(theirs, list) else theirs
    names = tuple(_as_list(entry.get("name", [])))
    same = tuple(entry.get("same", ()))
    return Setting(**entry | {"name": names, "same": same, "values": values})


def _value_in_words(value: Any) -> str:
    """Write a value of another trainer, or a table of its settings; empty for an empty table."""
    if isinstance(value, Mapping):
        return " with ".join(f"{name} = {json.dumps(each)}" for name, each in value.items())
    return json.dumps(value)


def _as_list(names: str | list[str]) -> list[str]:
    return [names] if isinstance(names, str) else names


def _as_tuple(theirs: Any) -> tuple[Any, ...]:
    return theirs if isinstance(theirs, tuple) else (theirs,)


def _to_value(key: str) -> Any:
    """Return our value, which may be a number, from a TOML key, which is always a text."""
    try:
        return json.loads(key)
    except ValueError:
        return key


def is_same(one: Any, other: Any) -> bool:
    """Return True if two values of a setting mean the same: numbers by size, texts whatever their
    case.
    """
    if one == other:
        return True
    if _is_number(one) and _is_number(other):
        return False
    return str(one).lower() == str(other).lower()


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


@cache
def _patterns(dialect: str) -> list[tuple[int, re.Pattern[str], str]]:
    """Return the names of a dialect with placeholders: rank, pattern and our name of each."""
    patterns = []
    for index, (theirs, ours) in enumerate(metric_names(dialect).items()):
        if "NAME" in theirs or "AGENT" in theirs:
            text = re.escape(theirs).replace("AGENT", "[^/]+").replace("NAME", r"(?P<name>[^/\s]+)")
            patterns.append((index, re.compile(text), ours))
    return patterns
