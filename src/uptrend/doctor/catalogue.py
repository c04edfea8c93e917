"""The causes: each is one page, `doctor/findings/ID.md`. Its TOML front matter is for programs, the rest for people.

To add a cause, add its page, and a check or a probe that reports it.
"""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import Any

from uptrend.records import Experiment, Fix, Rival, RunView, Times
from uptrend.records.dialects import TRAINERS, Find, to_ours, to_theirs
from uptrend.records.metrics import complete_claim

FOLDER = Path(__file__).parent / "findings"


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
    """True where a metrics log alone shows it for certain, though it is an invariant or needs a probe elsewhere."""
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

    def fitting(self, view: RunView) -> "Cause":
        """Return the cause as it is for the tasks of a run."""
        return self.in_several_turns if self.in_several_turns and takes_several_turns(view) else self


def parse_cause(id: str, page: str) -> Cause:
    """Return the cause that a page describes."""
    _, front, text = page.split("+++\n", 2)
    table = tomllib.loads(front)
    several_turns = table.pop("several_turns", None)
    cause = _cause_of(id, table, text)
    if several_turns is None:
        return cause
    return replace(cause, in_several_turns=_cause_of(id, _overlaid(tomllib.loads(front), several_turns), text))


def _cause_of(id: str, table: dict[str, Any], text: str) -> Cause:
    what, _, body = text.removeprefix(f"# {id}\n").strip().partition("\n\n")
    experiment, fix = table["experiment"], table["fix"]
    how, commands = experiment.pop("how", ""), experiment.pop("commands", ())
    return Cause(
        id,
        Kind[table["kind"].upper()],
        what,
        Fix(fix["say"], _values_by_name(fix.get("set", {})), tuple(fix.get("untranslated", ()))),
        _with_claim(Experiment(**{**experiment, "arms": _values_by_name(experiment.get("arms", {}))})),
        rivals=tuple(Rival(other, apart) for other, apart in table.get("rivals", {}).items()),
        explains=tuple(table.get("explains", ())),
        in_scalars=table.get("in_scalars", False),
        body=body,
        how=how,
        commands=tuple(commands),
        advice=fix.get("advice", {}),
    )


def _with_claim(experiment: Experiment) -> Experiment:
    return replace(experiment, claim=complete_claim(experiment.claim, experiment.metric, experiment.direction))


def _overlaid(table: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return a table with some values changed, at any depth."""
    changed = {
        key: _overlaid(table[key], value) if isinstance(table.get(key), Mapping) else value
        for key, value in changes.items()
    }
    return {**table, **changed}


def takes_several_turns(view: RunView) -> bool:
    """Return True where a run's rollouts may take several turns, or were cut because they wanted to."""
    turns, cut = (view.curve(metric)[1] for metric in ("sampling/turns/mean", "sampling/ended/turn-limit/share"))
    return (view.value("sampling.max_turns") or 1) > 1 or bool((turns > 1).any() or (cut > 0).any())


def _values_by_name(tables: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return settings by name, with `{ times = 10 }`, `{ divide = 3 }` and `{ unset = true }` read as values."""

    def value(given: Any) -> Any:
        match given:
            case {"times": factor}:
                return Times(factor)
            case {"divide": divisor}:
                return Times(1 / divisor)
            case {"unset": True}:  # TOML has no null
                return None
        return given

    return {name: {key: value(given) for key, given in keys.items()} for name, keys in tables.items()}


CATALOGUE: dict[str, Cause] = {
    path.stem: parse_cause(path.stem, path.read_text(encoding="utf-8")) for path in sorted(FOLDER.glob("*.*.md"))
}


def usual_rates(known: Find) -> tuple[float, float]:
    """Return the rates that suit Adam by the number of weights: 2e-5 at most for billions; adapters take ten times."""
    weights, adapter = known("model.parameters"), 10.0 if known("model.lora") else 1.0
    if not isinstance(weights, int | float) or weights <= 0:
        return 1e-6 * adapter, 2e-4 * adapter
    high = min(2e-4, max(1e-5, 2e-5 * (1e9 / weights) ** (1 / 3)))
    return high / 20 * adapter, high * adapter


def settings_of(view: RunView) -> Find:
    """Return the run's settings by our keys, with the number of the model's weights."""
    weights = (view.info.get("model") or {}).get("parameters")
    return lambda key: weights if key == "model.parameters" else view.value(key)


def complete_fix(fix: Fix, trainer: str = "", known: Find = lambda _: None) -> Fix:
    """Return the fix with the changes of every trainer: ours translated, and those that are the trainer's alone.

    `known` gives values of a run of `trainer` by our keys: with them every `Times` of ours and of its own is concrete.
    """
    ours = fix.changes.get("uptrend", {})
    changes, notes = {"uptrend": _concrete(ours, known)}, dict[str, tuple[str, ...]]()
    for who in TRAINERS:
        # Of another trainer than the run's own the values are not known: relative ones stay relative.
        known_here: Find = known if who == trainer else lambda _: None
        settings: dict[str, Any] = {}
        for key, value in _concrete(ours, known_here).items():
            found = to_theirs(key, value, who, known_here) if key not in fix.untranslated else None
            if found is not None and found.settings:
                settings |= found.settings
                note = (f"{next(iter(found.settings))}: {found.note}",) if found.note else ()
                notes[who] = (*notes.get(who, ()), *note)
        changes[who] = settings | _concrete(fix.changes.get(who, {}), known_here, who)
    given = {who: keys for who, keys in changes.items() if keys}
    return replace(fix, changes=given, notes={who: notes[who] for who in given if notes.get(who)})


def resolve_experiment(experiment: Experiment, view: RunView) -> Experiment:
    """Return the experiment with its arms' values made concrete."""
    known = settings_of(view)
    return replace(experiment, arms={name: _concrete(keys, known) for name, keys in experiment.arms.items()})


def _concrete(keys: Mapping[str, Any], known: Find, trainer: str = "uptrend") -> dict[str, Any]:
    """Return settings with each `Times` multiplied, where the value that it multiplies is known."""
    made = dict(keys)
    for key, value in keys.items():
        ours = key if trainer == "uptrend" else to_ours(trainer, key) or key
        now = known(ours)
        if isinstance(value, Times) and isinstance(now, int | float) and not isinstance(now, bool):
            scaled = now * value.factor
            if ours == "learning.lr" and str(known("learning.optimizer")).lower() != "sgd":
                low, high = usual_rates(known)  # a rate that is off by orders of magnitude is not mended by a factor
                scaled = min(scaled, high / 2) if value.factor < 1 else max(scaled, min(0.4 * low * value.factor, high))
            made[key] = round(scaled) if isinstance(now, int) else float(f"{scaled:.3g}")
    return made
