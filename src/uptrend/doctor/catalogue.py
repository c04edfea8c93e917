"""The causes: each is one page, `doctor/findings/ID.md`. Its TOML front matter is for programs, the
rest for people.

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
from uptrend.records import Basis, Confidence, Experiment, Fix, Limit, Rival, RunView, Times
from uptrend.records.dialects import TRAINER_NAMES, Lookup, is_same, to_ours, to_theirs
from uptrend.records.metrics import complete_claim

FOLDER = Path(__file__).parent / "findings"
# A setting in a sentence of a page's front matter: its value in the page's own change stands in its
# place.
PLACEHOLDER = re.compile(r"\{([a-z_]\w*(?:\.\w+)*)\}")
# Links that nearly every log measures. Cut completions may kill groups and so hold the policy;
# where groups are alive, they hold nothing, and a policy that does not move is a matter of its
# updates.
MEASURED = frozenset({"advantage.dead-groups-low", "advantage.dead-groups-high"})
# How often findings were right in trials. The benchmark writes the file: for each cause and source
# (records, or scalars alone), in how many runs it was named first and how often rightly, and in how
# many it was planted and named among the first three; the same for each kind of finding (its basis
# and source).
TRIALS_FILE = FOLDER / "measured.toml"
# A cause's own trials weigh against those of its kind as if the kind had so many runs; fewer own
# runs are never high.
KIND_WEIGHT = 5
# Shares of right findings from which a confidence is high, and medium.
HIGH_SHARE = 0.9
MEDIUM_SHARE = 0.6
# A cause whose own share is no more than this, in `KIND_WEIGHT` runs at least, is a rival and no
# diagnosis.
RARE_SHARE = 0.2


class Kind(StrEnum):
    """The sort of evidence that shows a cause."""

    INVARIANT = "I"
    """Something that must hold exactly, or to rounding, on one batch."""
    PROBE = "P"
    """A question to the model, before training."""
    CURVE = "C"
    """A check on recorded curves."""


@dataclass(frozen=True)
class Cause:
    """One reason why a run does not learn."""

    id: str
    """`family.name`; it never changes."""
    kind: Kind
    what: str
    """One sentence that describes it: the page's first."""
    fix: Fix
    experiment: Experiment
    rivals: tuple[Rival, ...] = ()
    """Causes that look the same."""
    explains: tuple[str, ...] = ()
    """Ids of causes whose signal it also produces: where both are found, those are its symptoms."""
    in_scalars: bool = False
    """True where a metrics log alone shows it for certain, though it is an invariant or needs a
    probe elsewhere.
    """
    body: str = ""
    """The page below its first sentence."""
    how: str = ""
    """How to prove it, in words."""
    commands: tuple[str, ...] = ()
    """Commands that prove it, where neither a probe nor arms do."""
    advice: Mapping[str, str] = field(default_factory=dict)
    """Words on the fix by trainer, beside the settings."""
    in_several_turns: "Cause | None" = None
    """The cause where tasks take several turns, if its experiment or fix differs there."""

    def for_run(self, view: RunView) -> "Cause":
        """Return the cause as it is for the tasks of a run."""
        return (
            self.in_several_turns if self.in_several_turns and takes_several_turns(view) else self
        )


def parse_cause(id: str, page: str) -> Cause:
    """Return the cause that a page describes."""
    _, front, text = page.split("+++\n", 2)
    table = tomllib.loads(front)
    several_turns = table.pop("several_turns", None)
    cause = _cause_of(id, table, text)
    if several_turns is None:
        return cause
    return replace(
        cause, in_several_turns=_cause_of(id, _overlaid(tomllib.loads(front), several_turns), text)
    )


def _cause_of(id: str, table: dict[str, Any], text: str) -> Cause:
    what, _, body = text.removeprefix(f"# {id}\n").strip().partition("\n\n")
    experiment = table["experiment"]
    fix = table["fix"]
    how = experiment.pop("how", "")
    commands = experiment.pop("commands", ())
    return Cause(
        id,
        Kind[table["kind"].upper()],
        what,
        Fix(fix["say"], _values_by_name(fix.get("set", {})), tuple(fix.get("untranslated", ()))),
        _with_claim(
            Experiment(**{**experiment, "arms": _values_by_name(experiment.get("arms", {}))})
        ),
        rivals=tuple(Rival(other, apart) for other, apart in table.get("rivals", {}).items()),
        explains=tuple(table.get("explains", ())),
        in_scalars=table.get("in_scalars", False),
        body=body,
        how=how,
        commands=tuple(commands),
        advice=fix.get("advice", {}),
    )


def _with_claim(experiment: Experiment) -> Experiment:
    return replace(
        experiment, claim=complete_claim(experiment.claim, experiment.metric, experiment.direction)
    )


def _overlaid(table: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return a table with some values changed, at any depth."""
    changed = {
        key: _overlaid(table[key], value) if isinstance(table.get(key), Mapping) else value
        for key, value in changes.items()
    }
    return {**table, **changed}


def takes_several_turns(view: RunView) -> bool:
    """Return True where a run's rollouts may take several turns, or were cut because they wanted
    to.
    """
    turns, cut = (
        view.curve(metric)[1]
        for metric in ("sampling/turns/mean", "sampling/ended/turn-limit/share")
    )
    return (view.value("sampling.max_turns") or 1) > 1 or bool((turns > 1).any() or (cut > 0).any())


def _values_by_name(tables: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return settings by name, with relative values such as `{ times = 10 }` and `{ at_least = 16
    }` read as such.
    """

    def value(given: Any) -> Any:
        match given:
            case {"at_least": limit}:
                return Limit(limit, is_minimum=True, off=given.get("off"))
            case {"at_most": limit}:
                return Limit(limit, is_minimum=False, off=given.get("off"))
            case {"times": factor}:
                return Times(factor)
            case {"divide": divisor}:
                return Times(1 / divisor)
            case {"unset": True}:  # TOML has no null
                return None
        return given

    return {
        name: {key: value(given) for key, given in keys.items()} for name, keys in tables.items()
    }


CATALOGUE: dict[str, Cause] = {
    path.stem: parse_cause(path.stem, path.read_text(encoding="utf-8"))
    for path in sorted(FOLDER.glob("*.*.md"))
}


def all_symptoms(id: str, found: Set[str] = MEASURED) -> set[str]:
    """Return what a cause explains, and what that explains in turn; a measured link counts only
    where it was found.
    """
    symptoms: set[str] = set()
    waiting = list(CATALOGUE[id].explains)
    while waiting:
        symptom = waiting.pop()
        if symptom not in symptoms:
            symptoms.add(symptom)
            waiting += (
                CATALOGUE[symptom].explains if symptom in found or symptom not in MEASURED else ()
            )
    return symptoms


@cache
def _trials() -> Mapping[str, Any]:
    return tomllib.loads(TRIALS_FILE.read_text(encoding="utf-8")) if TRIALS_FILE.exists() else {}


def trial_counts(id: str, source: str) -> Mapping[str, int]:
    """Return a cause's counts (`named`, `right`, `planted`, `found`) by records or scalars; empty
    if never tried.
    """
    found: Mapping[str, int] = _trials().get("causes", {}).get(id, {}).get(source, {})
    return found


def is_mostly_wrong(id: str, source: str) -> bool:
    """Tell whether another cause lay behind nearly every trial run in which this one was named
    first.
    """
    own = trial_counts(id, source)
    named = own.get("named", 0)
    right = own.get("right", 0)
    return named >= KIND_WEIGHT and right / named <= RARE_SHARE


def confidence_of(id: str, basis: Basis, source: str) -> tuple[Confidence, str]:
    """Return the confidence in a finding, and the count behind it in words."""
    own = trial_counts(id, source)
    kind = _trials().get("kinds", {}).get(source, {}).get(basis, {})
    named = own.get("named", 0)
    right = own.get("right", 0)
    of_kind = kind.get("named", 0)
    usual = (kind.get("right", 0) + 1) / (of_kind + 2)
    share = (right + KIND_WEIGHT * usual) / (named + KIND_WEIGHT)
    level = (
        Confidence.HIGH
        if share >= HIGH_SHARE
        else Confidence.MEDIUM
        if share >= MEDIUM_SHARE
        else Confidence.LOW
    )
    if named < KIND_WEIGHT and level is Confidence.HIGH:
        level = Confidence.MEDIUM
    if not of_kind:
        return Confidence.MEDIUM if basis is not Basis.SUSPICION else Confidence.LOW, ""
    others = f"findings of its kind in {kind['right']} of {of_kind}"
    if not named:
        return level, f"never named first in a trial; {others}"
    return level, f"right in {right} of {named} trial runs where it was named first, {others}"


def usual_learning_rates(known: Lookup) -> tuple[float, float]:
    """Return the rates that suit Adam by the number of weights: 2e-5 at most for billions; adapters
    take ten times.
    """
    weights = known("model.parameters")
    adapter = 10.0 if known("model.lora") else 1.0
    if not isinstance(weights, int | float) or weights <= 0:
        return 1e-6 * adapter, 2e-4 * adapter
    high = min(2e-4, max(1e-5, 2e-5 * (1e9 / weights) ** (1 / 3)))
    return high / 20 * adapter, high * adapter


def usual_rates_in_words() -> str:
    """Return the rates that suit models of several sizes."""
    sizes = {"a billion weights": {"model.parameters": 1e9}, "a million": {"model.parameters": 1e6}}
    sizes["adapters of a billion"] = {"model.parameters": 1e9, "model.lora": True}
    rates = {size: usual_learning_rates(known.get) for size, known in sizes.items()}
    return ", ".join(f"{low:.2g} to {high:.2g} for {size}" for size, (low, high) in rates.items())


def settings_in_force(view: RunView) -> Lookup:
    """Return what is in force in a run by our keys, or by its trainer's own names; and the number
    of weights.
    """
    weights = (view.info.get("model") or {}).get("parameters")
    raw = view.info.get("raw")
    own: Mapping[str, Any] = raw if isinstance(raw, Mapping) else {}

    def known(key: str) -> Any:
        if key == "model.parameters":
            return weights
        value = view.value(key)
        return own.get(key) if value is None else value

    return known


def complete_fix(fix: Fix, trainer: str = "", known: Lookup = lambda _: None) -> Fix:
    """Return the fix for a run: its sentence with values, its changes in the settings of every
    trainer.

    `known` gives what is in force in a run of `trainer`, by our keys and by its own names. With it
    relative values become concrete, and what the run has already is no change but `in_force`.
    Values of another trainer than the run's own are not known: relative ones stay relative.
    """
    wanted = fix.changes.get("uptrend", {})
    ours = _concrete(wanted, known)
    held = {key for key, value in ours.items() if _is_in_force(key, value, known)}
    ours_held = {key: ours[key] for key in ours if key in held}
    in_force = _translated(ours_held, trainer, known)[0] or dict(ours_held)
    changes = {"uptrend": {key: value for key, value in ours.items() if key not in held}}
    notes: dict[str, tuple[str, ...]] = {}
    left = {
        key: value
        for key, value in wanted.items()
        if key not in held and key not in fix.untranslated
    }
    for who in TRAINER_NAMES:
        known_here: Lookup = known if who == trainer else _unknown
        changes[who], notes[who] = _translated(_concrete(left, known_here), who, known_here)
        for key, value in _concrete(fix.changes.get(who, {}), known_here, who).items():
            is_held = who == trainer and _is_in_force(key, value, known, who)
            (in_force if is_held else changes[who])[key] = value
    values = {key: [value] for key, value in ours.items()}
    marked = {
        key: [f"{setting(value, quote=False)} (in force already)"]
        for key, value in ours_held.items()
    }
    named = set(PLACEHOLDER.findall(fix.sentence))
    is_moot = bool(named) and named <= held and not changes.get(trainer)
    sentence = _moot(in_force) if is_moot else fill(fix.sentence, values | marked)
    is_all_held = bool(in_force) and held >= wanted.keys() and not changes.get(trainer)
    if is_all_held and not is_moot and assignments(in_force) not in sentence:
        sentence = f"{sentence} {_already(in_force)}."
    given = {
        who: {key: _filled(value, values) for key, value in keys.items()}
        for who, keys in changes.items()
        if keys
    }
    return replace(
        fix,
        sentence=sentence,
        changes=given,
        notes={who: notes[who] for who in given if notes.get(who)},
        in_force=in_force,
    )


def resolve_experiment(cause: Cause, known: Lookup = lambda _: None) -> Experiment:
    """Return a cause's experiment with its arms' values made concrete, and its claim with them or
    with the fix's.
    """
    experiment = cause.experiment
    arms = {name: _concrete(keys, known) for name, keys in experiment.arms.items()}
    values = dict[str, list[Any]]({"steps": [experiment.steps]})
    for keys in (
        *arms.values(),
        *([] if arms else [_concrete(cause.fix.changes.get("uptrend", {}), known)]),
    ):
        for key, value in keys.items():
            values.setdefault(key, []).append(value)
    return replace(experiment, claim=fill(experiment.claim, values), arms=arms)


def fill(text: str, values: Mapping[str, Iterable[Any]]) -> str:
    """Return a sentence with settings in braces replaced by their values, several joined by
    `or`.
    """

    def shown(match: re.Match[str]) -> str:
        words = (
            value.in_words if isinstance(value, Times) else setting(value, quote=False)
            for value in values[match[1]]
        )
        return " or ".join(dict.fromkeys(words))

    return PLACEHOLDER.sub(shown, text)


def _filled(value: Any, values: Mapping[str, Iterable[Any]]) -> Any:
    return fill(value, values) if isinstance(value, str) else value


def _moot(in_force: Mapping[str, Any]) -> str:
    return f"{_already(in_force)}, so that the cause is another: look at the rivals."


def _already(in_force: Mapping[str, Any]) -> str:
    verb = "is" if len(in_force) == 1 else "are"
    return f"{assignments(in_force)} {verb} in force already"


def _unknown(_: str) -> None:
    """Know no setting."""


def _translated(
    ours: Mapping[str, Any], trainer: str, known: Lookup
) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Return settings of ours in a trainer's words, and notes on them; our own words are ours."""
    if trainer not in TRAINER_NAMES:
        return dict(ours), ()
    settings = dict[str, Any]()
    notes = list[str]()
    for key, value in ours.items():
        found = to_theirs(key, value, trainer, known)
        if found is not None and found.settings:
            settings |= found.settings
            notes += [f"{next(iter(found.settings))}: {found.note}"] if found.note else []
    return settings, tuple(notes)


def _is_in_force(key: str, value: Any, known: Lookup, trainer: str = "uptrend") -> bool:
    """Tell whether a run has a value already, under the name of its trainer."""
    now = known(key)
    if now is None and trainer in TRAINER_NAMES and (ours := to_ours(trainer, key)) is not None:
        found = to_theirs(ours, known(ours), trainer, known) if known(ours) is not None else None
        now = found.settings.get(key) if found is not None else None
    return now is not None and is_same(now, value)


def _concrete(keys: Mapping[str, Any], known: Lookup, trainer: str = "uptrend") -> dict[str, Any]:
    """Return settings with each relative value computed, where the value that it is relative to is
    known.
    """
    made = dict(keys)
    for key, value in keys.items():
        ours = key if trainer == "uptrend" else to_ours(trainer, key) or key
        now = known(key) if known(ours) is None else known(ours)
        if isinstance(value, Limit):
            made[key] = value.applied_to(now)
        elif (
            isinstance(value, Times) and isinstance(now, int | float) and not isinstance(now, bool)
        ):
            scaled = now * value.factor
            if ours == "learning.lr" and str(known("learning.optimizer")).lower() != "sgd":
                # a rate that is off by orders of magnitude is not mended by a factor
                low, high = usual_learning_rates(known)
                scaled = (
                    min(scaled, high / 2)
                    if value.factor < 1
                    else max(scaled, min(0.4 * low * value.factor, high))
                )
            made[key] = round(scaled) if isinstance(now, int) else float(f"{scaled:.3g}")
    return made
