"""Catalogue of causes: each is one page, `doctor/findings/ID.md`. Its TOML front matter is for
programs, the rest for people.

To add a cause, add its page, and a check or a probe that reports it. A number that belongs to a
setting is written once, in the page's changes: sentences have the setting's name in braces, and get
the value for the run at hand.
"""

import re
import tomllib
from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import cache
from pathlib import Path
from typing import Any

from uptrend.present.formatting import assignments, setting
from uptrend.records import Basis, Confidence, Experiment, Fix, Limit, Multiplied, Rival, RunView
from uptrend.records.dialects import TRAINER_NAMES, Lookup, is_same, to_ours, to_theirs
from uptrend.records.metrics import complete_claim

FINDINGS_FOLDER = Path(__file__).parent / "findings"
# A setting in a sentence of a page's front matter: its value in the page's own change replaces it.
SETTING_PLACEHOLDER = re.compile(r"\{([a-z_]\w*(?:\.\w+)*)\}")
# A metric in a page's text.
METRIC_PATTERN = re.compile(r"`([a-z_]+(?:/[\w-]+)+)`")
# Symptoms that nearly every log measures. Cut completions may kill groups and so stop the policy;
# if groups are alive, they stop nothing, and a policy that does not move has its cause in its
# updates.
MEASURED_IDS = frozenset({"advantage.dead-groups-low", "advantage.dead-groups-high"})

# How often findings were right in trials. The benchmark writes the file: for each cause and source
# (records, or scalars alone), in how many runs it was named first and how often rightly, and in how
# many it was planted and named among the first three; the same for each kind of finding (its basis
# and source).
TRIALS_FILE = FINDINGS_FOLDER / "measured.toml"
# What trial runs with and without each cause look like, and what public threads had.
LIKELIHOODS_FILE = FINDINGS_FOLDER / "likelihoods.toml"
# Runs of its own trials that weigh as much as the trials of all findings of its kind; with fewer, a
# cause's confidence is never high.
KIND_WEIGHT = 5
# Shares of right findings from which on a confidence is high, and medium.
HIGH_SHARE = 0.9
MEDIUM_SHARE = 0.6
# A cause whose own share is no more than this, in `KIND_WEIGHT` runs at least, is a rival and no
# diagnosis.
RARE_SHARE = 0.2

# Learning rates that suit Adam, chosen by hand. The largest falls with the cube root of the number
# of weights, between two bounds that also hold where that number is not known.
BILLION = 1e9
LARGEST_RATE_AT_A_BILLION = 2e-5
LARGEST_RATE_BOUNDS = (1e-5, 2e-4)
SMALLEST_RATE = 1e-6
RATE_RANGE = 20  # largest / smallest rate for one number of weights
ADAPTER_FACTOR = 10.0


class Kind(StrEnum):
    """The sort of evidence that shows a cause."""

    INVARIANT = "I"
    """Something that must hold exactly, or to rounding, on one batch."""
    PROBE = "P"
    """A question to the model, before training."""
    CURVE = "C"
    """A check on recorded curves."""


@dataclass(frozen=True)
class Condition:
    """Value that a setting or a metric must have for a cause to be possible."""

    name: str
    """A config key, or a metric, which has slashes."""
    relation: str
    """`above`, `below` or `not`."""
    limit: Any

    @property
    def is_metric(self) -> bool:
        return "/" in self.name

    def holds(self, value: Any) -> bool:
        """Return False for a value with which the cause is not possible."""
        if self.relation == "not":
            return bool(value != self.limit)
        if not _is_number(value):
            return True
        return bool(value > self.limit if self.relation == "above" else value < self.limit)

    def refusal(self, value: Any) -> str:
        """Return why a value excludes the cause."""
        if self.relation == "not":
            return f"{assignments({self.name: value})} is in force, which excludes it."
        if not self.is_metric:
            in_force = assignments({self.name: value})
            return f"{in_force} is in force: it takes a value {self.relation} {self.limit:g}."
        level = "at most" if self.relation == "above" else "at the end"
        return (
            f"{self.name} is {value:.3g} {level}: it takes a value {self.relation} {self.limit:g}."
        )


@dataclass(frozen=True)
class Cause:
    """One reason why a run does not learn."""

    id: str
    """`family.name`; it never changes."""
    kind: Kind
    what: str
    """One sentence that describes it: the first of its page."""
    fix: Fix
    experiment: Experiment
    rivals: tuple[Rival, ...] = ()
    """Causes that look the same."""
    explains: tuple[str, ...] = ()
    """Ids of causes whose signal it also produces: if both are found, those are its symptoms."""
    leads_to: tuple[str, ...] = ()
    """The same for what it produces in time alone, by changing the policy or the scores: never a
    symptom of it if it was there before the first update.
    """
    conditions: tuple[Condition, ...] = ()
    """Settings and metrics without which it is not possible."""
    in_scalars: bool = False
    """True if a metrics log alone shows it for certain, although it is an invariant or needs a
    probe elsewhere.
    """
    body: str = ""
    """The page below its first sentence."""
    how: str = ""
    """How to prove it, in words."""
    commands: tuple[str, ...] = ()
    """Commands that prove it, if neither a probe nor arms do."""
    advice: Mapping[str, str] = field(default_factory=dict)
    """Advice on the fix by trainer, beside the settings."""
    in_several_turns: "Cause | None" = None
    """The cause for tasks of several turns, if its experiment or fix differs there."""

    @property
    def metrics(self) -> tuple[str, ...]:
        """Metrics that its page names, in their order."""
        return tuple(dict.fromkeys(METRIC_PATTERN.findall(self.body)))

    def for_run(self, view: RunView) -> "Cause":
        """Return the cause as it is for the tasks of a run."""
        if self.in_several_turns and takes_several_turns(view):
            return self.in_several_turns
        return self


def parse_cause(id: str, page: str) -> Cause:
    """Return the cause that a page describes."""
    _, front, text = page.split("+++\n", 2)
    table = tomllib.loads(front)
    changes_in_several_turns = table.pop("several_turns", None)
    cause = _cause_of(id, table, text)
    if changes_in_several_turns is None:
        return cause
    # Parsed again, because making a cause takes entries out of its table.
    table = _overlaid(tomllib.loads(front), changes_in_several_turns)
    return replace(cause, in_several_turns=_cause_of(id, table, text))


def _cause_of(id: str, table: dict[str, Any], text: str) -> Cause:
    what, _, body = text.removeprefix(f"# {id}\n").strip().partition("\n\n")
    fix = table["fix"]
    experiment = table["experiment"]
    how = experiment.pop("how", "")
    commands = experiment.pop("commands", ())
    experiment["arms"] = settings_by_name(experiment.get("arms", {}))
    return Cause(
        id=id,
        kind=Kind[table["kind"].upper()],
        what=what,
        fix=Fix(
            sentence=fix["say"],
            changes=settings_by_name(fix.get("set", {})),
            untranslated=tuple(fix.get("untranslated", ())),
        ),
        experiment=_with_claim(Experiment(**experiment)),
        rivals=tuple(Rival(other, apart) for other, apart in table.get("rivals", {}).items()),
        explains=tuple(table.get("explains", ())),
        leads_to=tuple(table.get("leads_to", ())),
        conditions=tuple(
            Condition(name, relation, limit)
            for name, bounds in table.get("possible_if", {}).items()
            for relation, limit in bounds.items()
        ),
        in_scalars=table.get("in_scalars", False),
        body=body,
        how=how,
        commands=tuple(commands),
        advice=fix.get("advice", {}),
    )


def _with_claim(experiment: Experiment) -> Experiment:
    claim = complete_claim(experiment.claim, experiment.metric, experiment.direction)
    return replace(experiment, claim=claim)


def _overlaid(table: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return a table with some values changed, at any depth."""
    overlaid = dict(table)
    for key, value in changes.items():
        old = table.get(key)
        overlaid[key] = _overlaid(old, value) if isinstance(old, Mapping) else value
    return overlaid


def takes_several_turns(view: RunView) -> bool:
    """Return True if a run's rollouts may take several turns, or were cut because they tried to."""
    if (view.value("sampling.max_turns") or 1) > 1:
        return True
    _, turns = view.curve("sampling/turns/mean")
    _, cut_shares = view.curve("sampling/ended/turn-limit/share")
    return bool((turns > 1).any() or (cut_shares > 0).any())


def settings_by_name(tables: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return settings by name, with relative values such as `{ times = 10 }` and `{ at_least = 16
    }` parsed.
    """
    return {
        name: {key: _parse_value(raw) for key, raw in settings.items()}
        for name, settings in tables.items()
    }


def _parse_value(raw: Any) -> Any:
    match raw:
        case {"at_least": limit}:
            return Limit(limit, is_minimum=True, off=raw.get("off"))
        case {"at_most": limit}:
            return Limit(limit, is_minimum=False, off=raw.get("off"))
        case {"times": factor}:
            return Multiplied(factor)
        case {"divide": divisor}:
            return Multiplied(1 / divisor)
        case {"unset": True}:  # TOML has no null
            return None
    return raw


CATALOGUE: dict[str, Cause] = {
    path.stem: parse_cause(path.stem, path.read_text(encoding="utf-8"))
    for path in sorted(FINDINGS_FOLDER.glob("*.*.md"))
}


def all_symptoms(id: str, reported: Set[str] = MEASURED_IDS) -> set[str]:
    """Return what a cause explains, and what that explains in turn; the latter of a measured
    symptom only if it was reported.
    """
    symptoms: set[str] = set()
    pending = list(CATALOGUE[id].explains)
    while pending:
        symptom = pending.pop()
        if symptom in symptoms:
            continue
        symptoms.add(symptom)
        if symptom in reported or symptom not in MEASURED_IDS:
            pending += CATALOGUE[symptom].explains
    return symptoms


@cache
def _trials() -> Mapping[str, Any]:
    tables: dict[str, Any] = {}
    for path in (TRIALS_FILE, LIKELIHOODS_FILE):
        if path.exists():
            tables |= tomllib.loads(path.read_text(encoding="utf-8"))
    return tables


def trial_counts(id: str, source: str) -> Mapping[str, int]:
    """Return a cause's counts (`named`, `right`, `planted`, `found`) by records or scalars; empty
    if never tried.
    """
    return measured("causes", id, source)


def is_mostly_wrong(id: str, source: str) -> bool:
    """Return True if another cause lay behind nearly every trial run in which this one was named
    first.
    """
    counts = trial_counts(id, source)
    named = counts.get("named", 0)
    right = counts.get("right", 0)
    return named >= KIND_WEIGHT and right / named <= RARE_SHARE


def measured(*path: str) -> Mapping[str, Any]:
    """Return a table of what trials measured; empty where they did not."""
    table: Any = _trials()
    for name in path:
        table = table.get(name, {})
    return table if isinstance(table, Mapping) else {}


def right_share(id: str, basis: Basis, source: str) -> float:
    """Return the posterior mean of the share of right findings of a cause: those of its kind, by
    the rule of succession, are the prior, with the weight of KIND_WEIGHT runs.
    """
    kind_counts = measured("kinds", source, basis)
    counts = trial_counts(id, source)
    kind_share = (kind_counts.get("right", 0) + 1) / (kind_counts.get("named", 0) + 2)
    named = counts.get("named", 0)
    return float((counts.get("right", 0) + KIND_WEIGHT * kind_share) / (named + KIND_WEIGHT))


def confidence_of(id: str, basis: Basis, source: str) -> tuple[Confidence, str]:
    """Return the confidence in a finding, and the count behind it in words."""
    kind_counts = measured("kinds", source, basis)
    kind_named = kind_counts.get("named", 0)
    kind_right = kind_counts.get("right", 0)
    if not kind_named:
        return Confidence.LOW if basis is Basis.SUSPICION else Confidence.MEDIUM, ""

    counts = trial_counts(id, source)
    named = counts.get("named", 0)
    right = counts.get("right", 0)
    share = right_share(id, basis, source)
    if share >= HIGH_SHARE and named >= KIND_WEIGHT:
        confidence = Confidence.HIGH
    elif share >= MEDIUM_SHARE:
        confidence = Confidence.MEDIUM
    else:
        confidence = Confidence.LOW

    others = f"findings of its kind in {kind_right} of {kind_named}"
    if not named:
        return confidence, f"never named first in a trial; {others}"
    return confidence, f"right in {right} of {named} trial runs where it was named first, {others}"


def usual_learning_rates(known: Lookup) -> tuple[float, float]:
    """Return the smallest and largest rate that suit Adam for a number of weights; adapters take
    ten times as much.
    """
    factor = ADAPTER_FACTOR if known("model.lora") else 1.0
    lowest, highest = LARGEST_RATE_BOUNDS
    weights = known("model.parameters")
    if not isinstance(weights, int | float) or weights <= 0:
        return SMALLEST_RATE * factor, highest * factor
    largest = LARGEST_RATE_AT_A_BILLION * (BILLION / weights) ** (1 / 3)
    largest = min(highest, max(lowest, largest))
    return largest / RATE_RANGE * factor, largest * factor


def usual_rates_in_words() -> str:
    """Return the rates that suit models of several sizes."""
    models: dict[str, dict[str, Any]] = {
        "a billion weights": {"model.parameters": BILLION},
        "a million": {"model.parameters": 1e6},
        "adapters of a billion": {"model.parameters": BILLION, "model.lora": True},
    }
    ranges: list[str] = []
    for name, model in models.items():
        low, high = usual_learning_rates(model.get)
        ranges.append(f"{low:.2g} to {high:.2g} for {name}")
    return ", ".join(ranges)


def settings_in_force(view: RunView) -> Lookup:
    """Return what is in force in a run by our keys, or by its trainer's own names; and the number
    of weights.
    """
    weights = (view.info.get("model") or {}).get("parameters")
    raw = view.info.get("raw")
    settings_of_trainer: Mapping[str, Any] = raw if isinstance(raw, Mapping) else {}

    def known(key: str) -> Any:
        if key == "model.parameters":
            return weights
        value = view.value(key)
        return settings_of_trainer.get(key) if value is None else value

    return known


def complete_fix(fix: Fix, trainer: str = "", known: Lookup = lambda _: None) -> Fix:
    """Return the fix for a run: its sentence with values, its changes in the settings of every
    trainer.

    `known` gives what is in force in a run of `trainer`, by our keys and by its own names. With it
    relative values become concrete, and what the run has already is no change but `in_force`.
    Values of another trainer than the run's own are not known: relative ones stay relative.
    """
    # Our settings: those that are in force, and those that are left to change.
    wanted = fix.changes.get("uptrend", {})
    ours = _concrete(wanted, known)
    ours_in_force = {key: value for key, value in ours.items() if _is_in_force(key, value, known)}
    changes = {"uptrend": {key: value for key, value in ours.items() if key not in ours_in_force}}
    if trainer == "uptrend":
        changes["uptrend"] |= settings_beside(changes["uptrend"], known)
    in_force, _ = _translated(ours_in_force, trainer, known)
    if not in_force:
        in_force = dict(ours_in_force)

    # The same in the settings of every other trainer, and its own settings of the fix.
    left = {
        key: value
        for key, value in wanted.items()
        if key not in ours_in_force and key not in fix.untranslated
    }
    notes: dict[str, tuple[str, ...]] = {}
    for name in TRAINER_NAMES:
        is_own = name == trainer
        known_there: Lookup = known if is_own else _unknown
        settings, notes[name] = _translated(_concrete(left, known_there), name, known_there)
        own_settings = _concrete(fix.changes.get(name, {}), known_there, name)
        for key, value in own_settings.items():
            if is_own and _is_in_force(key, value, known, name):
                in_force[key] = value
            else:
                settings[key] = value
        changes[name] = settings

    # The sentence, which says what is in force already, and if that is all of it.
    values = {key: [value] for key, value in ours.items()}
    named = set(SETTING_PLACEHOLDER.findall(fix.sentence))
    has_changes = bool(changes.get(trainer))
    if named and named <= ours_in_force.keys() and not has_changes:
        sentence = f"{_already(in_force)}, so that the cause is another: look at the rivals."
    else:
        marked = {
            key: [f"{setting(value, quote=False)} (in force already)"]
            for key, value in ours_in_force.items()
        }
        sentence = fill(fix.sentence, values | marked)
        is_all_in_force = bool(in_force) and ours_in_force.keys() >= wanted.keys()
        if is_all_in_force and not has_changes and assignments(in_force) not in sentence:
            sentence = f"{sentence} {_already(in_force)}."

    filled_changes: dict[str, dict[str, Any]] = {}
    for name, settings in changes.items():
        if settings:
            filled_changes[name] = {
                key: fill(value, values) if isinstance(value, str) else value
                for key, value in settings.items()
            }
    return replace(
        fix,
        sentence=sentence,
        changes=filled_changes,
        notes={name: notes[name] for name in filled_changes if notes.get(name)},
        in_force=in_force,
    )


def settings_beside(settings: Mapping[str, Any], known: Lookup) -> dict[str, Any]:
    """Return what must change along with settings of ours, so that the config loads: some exclude
    others that are in force.
    """
    beside: dict[str, Any] = {}
    has_penalty = settings.get("learning.kl.beta") or settings.get("learning.entropy")
    if has_penalty and known("learning.skip_dead"):
        # With a KL penalty or an entropy bonus dead groups teach too.
        beside["learning.skip_dead"] = False
    warmup = settings.get("learning.warmup", known("learning.warmup"))
    steps = settings.get("learning.steps", known("learning.steps"))
    if _is_number(warmup) and _is_number(steps) and warmup > steps:
        # A run that is made shorter has no time for its warm-up; one that asks for it, for a part.
        beside["learning.warmup"] = steps if "learning.warmup" in settings else 0
    return beside


def resolve_experiment(cause: Cause, known: Lookup = lambda _: None) -> Experiment:
    """Return a cause's experiment with its arms' values made concrete, and its claim with them or
    with the fix's.
    """
    experiment = cause.experiment
    arms = {name: _concrete(settings, known) for name, settings in experiment.arms.items()}
    # A claim without arms is about the fix.
    claimed_settings = list(arms.values())
    if not arms:
        claimed_settings.append(_concrete(cause.fix.changes.get("uptrend", {}), known))
    values: dict[str, list[Any]] = {"steps": [experiment.steps]}
    for settings in claimed_settings:
        for key, value in settings.items():
            values.setdefault(key, []).append(value)
    return replace(experiment, claim=fill(experiment.claim, values), arms=arms)


def fill(text: str, values: Mapping[str, Iterable[Any]]) -> str:
    """Return a sentence with settings in braces replaced by their values, several joined by
    `or`.
    """

    def values_in_words(match: re.Match[str]) -> str:
        words: list[str] = []
        for value in values[match[1]]:
            if isinstance(value, Multiplied):
                words.append(value.in_words)
            else:
                words.append(setting(value, quote=False))
        return " or ".join(dict.fromkeys(words))

    return SETTING_PLACEHOLDER.sub(values_in_words, text)


def _already(in_force: Mapping[str, Any]) -> str:
    verb = "is" if len(in_force) == 1 else "are"
    return f"{assignments(in_force)} {verb} in force already"


def _unknown(_: str) -> None:
    """Know no setting."""


def _translated(
    ours: Mapping[str, Any], trainer: str, known: Lookup
) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Return settings of ours as settings of a trainer, and notes on them; unchanged if it is none
    whose settings are known.
    """
    if trainer not in TRAINER_NAMES:
        return dict(ours), ()
    settings: dict[str, Any] = {}
    notes: list[str] = []
    for key, value in ours.items():
        translation = to_theirs(key, value, trainer, known)
        if translation is None or not translation.settings:
            continue
        settings |= translation.settings
        if translation.note:
            first_name = next(iter(translation.settings))
            notes.append(f"{first_name}: {translation.note}")
    return settings, tuple(notes)


def _is_in_force(key: str, value: Any, known: Lookup, trainer: str = "uptrend") -> bool:
    """Return True if a run has a value already, under the name of its trainer."""
    current = known(key)
    our_key = to_ours(trainer, key) if trainer in TRAINER_NAMES else None
    if current is None and our_key is not None and known(our_key) is not None:
        translation = to_theirs(our_key, known(our_key), trainer, known)
        if translation is not None:
            current = translation.settings.get(key)
    return current is not None and is_same(current, value)


def _concrete(
    settings: Mapping[str, Any], known: Lookup, trainer: str = "uptrend"
) -> dict[str, Any]:
    """Return settings with each relative value computed, if the value that it is relative to is
    known.
    """
    concrete = dict(settings)
    for key, value in settings.items():
        our_key = key if trainer == "uptrend" else to_ours(trainer, key) or key
        current = known(our_key)
        if current is None:
            current = known(key)
        if isinstance(value, Limit):
            concrete[key] = value.applied_to(current)
        elif isinstance(value, Multiplied) and _is_number(current):
            scaled = current * value.factor
            is_sgd = str(known("learning.optimizer")).lower() == "sgd"
            if our_key == "learning.lr" and not is_sgd:
                scaled = _within_usual_rates(scaled, value.factor, known)
            is_whole = isinstance(current, int)
            concrete[key] = round(scaled) if is_whole else float(f"{scaled:.3g}")
    return concrete


def _within_usual_rates(rate: float, factor: float, known: Lookup) -> float:
    """Return a changed rate that Adam can use: a factor alone does not repair one that is off by
    orders of magnitude. The bounds are chosen by hand, well inside the usual rates.
    """
    low, high = usual_learning_rates(known)
    if factor < 1:
        return min(rate, high / 2)
    return max(rate, min(0.4 * low * factor, high))


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
