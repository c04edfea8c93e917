"""The specification that is fixed before the first step, and changes made to it afterwards.

specification.json has the criteria, each arm's resolved config, the hashes of its tasks and of a
model's folder, and the package's version. Criteria that change after results were seen are no test
of them any more: that voids the verdict. Two ways on are honest, and recorded: to begin anew (the
old results are kept aside), and more seeds, judged by the confidence sequence, which holds however
often one looks.
"""

import json
import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from uptrend.config import Config, difference, to_table
from uptrend.config.load import chosen_keys
from uptrend.config.tables import flatten
from uptrend.lab import lab_error
from uptrend.lab.notebook import Notebook
from uptrend.lab.plan import (
    HASH_LENGTH,
    Launcher,
    Resolved,
    digest,
    fingerprint,
    planned_runs,
    resolve,
    version,
    what_matters,
)
from uptrend.present.formatting import setting
from uptrend.records import Direction, Hypothesis
from uptrend.records.files import parse_json, read_file, write_atomically
from uptrend.records.metrics import is_first_step
from uptrend.records.renamed import upgrade, upgrade_keys

SCHEMA_VERSION = 1
SPECIFICATION_FILE = "specification.json"
# Keys of a hypothesis that decide; a title or a priority may be corrected.
CRITERIA_KEYS = (
    "metric",
    "direction",
    "smallest",
    "seeds",
    "alpha",
    "stops_early",
    "validated_if",
    "invalidated_if",
    "method",
    "source",
    "cause",
    "allows",
)
# What each hash of an arm is about.
HASH_LABELS = {"tasks": "training tasks", "held_out": "held-out tasks", "model": "model's folder"}


@dataclass(frozen=True)
class Specification:
    """A hypothesis as it stood before its first step."""

    hypothesis: str  # its id
    criteria: Mapping[str, Any]  # values of the keys that decide
    # by arm: control or not, its resolved config, and the hashes of its tasks
    arms: Mapping[str, Mapping[str, Any]]
    uptrend: str  # the package's version
    written: str = ""  # time of writing
    more: tuple[int, ...] = ()  # seeds that were added after results could be seen
    before: int = 0  # number of earlier specifications that were set aside
    # by arm: keys that neither recipe nor arm set; empty for one that was read
    omitted: Mapping[str, frozenset[str]] = field(default_factory=dict, compare=False)

    @property
    def hash(self) -> str:
        """Hash of all that decides."""
        return digest([self.hypothesis, self.criteria, self.arms, self.uptrend])

    def resolved(self) -> dict[str, Resolved]:
        """Return each arm as it is to be run."""
        return {
            name: Resolved(arm["config"], arm["tasks"], arm["held_out"])
            for name, arm in self.arms.items()
        }


def freeze(notebook: Notebook, hypothesis: Hypothesis, launcher: Launcher) -> Specification:
    """Return the specification on record for a hypothesis; it is written now if there is none
    yet.
    """
    recorded = read(notebook, hypothesis.id)
    if recorded is not None:
        return recorded
    n_before = len(_folders_before(notebook, hypothesis.id))
    now = replace(describe(notebook, hypothesis, launcher), before=n_before)
    # What can't be run is refused before it is fixed.
    planned_runs(hypothesis, now.resolved(), notebook.folder)
    write(notebook, now)
    return now


def describe(
    notebook: Notebook,
    hypothesis: Hypothesis,
    launcher: Launcher,
    like: Specification | None = None,
) -> Specification:
    """Return the specification that a hypothesis's file gives today, with the threads that `like`
    was written for.
    """
    recipe = notebook.folder / hypothesis.recipe
    arms: dict[str, dict[str, Any]] = {}
    omitted: dict[str, frozenset[str]] = {}
    for arm in hypothesis.arms:
        fixed: dict[str, Any] = {}
        if like and arm.name in like.arms:
            compute = like.arms[arm.name]["config"].get("compute", {})
            if "threads" in compute:
                fixed["compute.threads"] = compute["threads"]
        resolved = resolve(hypothesis, arm, recipe, launcher, **fixed)
        omitted[arm.name] = resolved.omitted
        values = asdict(resolved)
        del values["omitted"]
        arms[arm.name] = {"control": arm.is_control, **_through_json(values)}
        files = fingerprint(resolved.config)
        if files is not None:
            arms[arm.name]["model"] = digest(files)
    values = asdict(hypothesis)
    criteria = _through_json({key: values[key] for key in CRITERIA_KEYS})
    now = datetime.now(UTC).isoformat(timespec="seconds")
    return Specification(hypothesis.id, criteria, arms, version(), now, omitted=omitted)


def _through_json(table: Mapping[str, Any]) -> dict[str, Any]:
    """Return a table that compares and hashes like one that was read from a file: lists for tuples,
    texts for enums.
    """
    return dict(json.loads(json.dumps(table)))


def changed(then: Specification, now: Specification) -> list[str]:
    """Name each difference between the record and the files: `smallest 0.05 → 0.02`.

    Only keys that the record has are compared: one that a later version of Uptrend added, at its
    default, is no change, nor is a name that was changed (records/renamed.toml), nor the default of
    another version for a key that the recipe leaves out.
    """
    old_criteria = upgrade(then.criteria, "metrics", "causes")
    pairs: dict[str, tuple[Any, Any]] = {}
    for key, value in now.criteria.items():
        if key in old_criteria:
            pairs[key] = (old_criteria[key], value)
    changes = _word_differences(pairs)
    changes += [f"arm {name} is gone" for name in then.arms if name not in now.arms]
    changes += [f"arm {name} is new" for name in now.arms if name not in then.arms]

    # A change that all arms have in common is named once.
    common_arms = [name for name in now.arms if name in then.arms]
    arms_by_change: dict[str, list[str]] = {}
    for name in common_arms:
        left_to_defaults = now.omitted.get(name, frozenset())
        if then.uptrend == now.uptrend:
            left_to_defaults = frozenset()  # it has the same defaults
        for change in _changes_of_arm(then.arms[name], now.arms[name], left_to_defaults):
            arms_by_change.setdefault(change, []).append(name)
    for change, names in arms_by_change.items():
        is_common = len(names) == len(common_arms)
        changes.append(change if is_common else f"{' and '.join(names)}: {change}")
    return changes


def _changes_of_arm(
    then: Mapping[str, Any], now: Mapping[str, Any], left_to_defaults: frozenset[str]
) -> list[str]:
    """Name each difference between an arm's record and what it resolves to now, but for keys that
    are left to other defaults.
    """
    old_config = upgrade_keys(then["config"], noted=False)
    old_keys = flatten(old_config)
    defaults = flatten(to_table(Config()))
    pairs: dict[str, tuple[Any, Any]] = {}
    all_pairs = difference(what_matters(old_config), what_matters(now["config"]))
    for key, pair in all_pairs.items():
        if key.startswith("compute.device") or key in left_to_defaults:
            continue
        if key == "model.chat" and key not in old_keys:
            # A key that came later, decided by how the model was trained; recorded runs keep the
            # form of prompt that they used.
            continue
        # `model.lora.r` is on record too where `model.lora` was null.
        is_on_record = any(f"{key}.".startswith(f"{old_key}.") for old_key in old_keys)
        value = pair[1]
        if is_on_record or value != defaults.get(key, value):
            pairs[key] = pair

    for key, label in HASH_LABELS.items():
        old_hash = then.get(key)
        # A model's folder that is not on this machine is no change: judging needs only the runs.
        pairs[f"hash of its {label}"] = (old_hash, now.get(key, old_hash))
    changes = _word_differences(pairs)
    if now["control"] and not then["control"]:
        changes.append("it is the control now")
    return changes


def side_effects(now: Specification) -> list[str]:
    """Name each value that runs choose otherwise in an arm than in the control, since neither the
    recipe nor the arm sets it: adapters get another learning rate than all weights.
    """
    control = next(name for name, arm in now.arms.items() if arm["control"])
    sentences: list[str] = []
    for name, arm in now.arms.items():
        left_out = now.omitted.get(name, frozenset()) & now.omitted.get(control, frozenset())
        pairs = difference(now.arms[control]["config"], arm["config"])
        chosen = {key: pairs[key] for key in pairs.keys() & chosen_keys() & left_out}
        for change in sorted(_word_differences(chosen)):
            sentences.append(
                f"{name} changes {change} too, which runs choose where it is left out: set it in"
                " the recipe to compare at the same value"
            )
    return sentences


def _word_differences(pairs: Mapping[str, tuple[Any, Any]]) -> list[str]:
    """Name each pair whose values differ: `smallest 0.05 → 0.02`."""
    texts: list[str] = []
    for key, (then, now) in pairs.items():
        if then != now:
            texts.append(f"{key} {setting(then, quote=False)} → {setting(now, quote=False)}")
    return texts


def extend(notebook: Notebook, then: Specification, count: int) -> Specification:
    """Add seeds to a specification, recorded as added after results could be seen."""
    criteria = then.criteria
    if criteria["direction"] == Direction.EITHER and not criteria["stops_early"]:
        raise lab_error("extend-either", id=then.hypothesis, **criteria)
    if is_first_step(criteria["metric"]):
        raise lab_error("extend-median", id=then.hypothesis, **criteria)
    first = max([*criteria["seeds"], *then.more]) + 1
    added = range(first, first + count)
    extended = replace(then, more=(*then.more, *added))
    write(notebook, extended)
    return extended


def restart(notebook: Notebook, id: str) -> Path | None:
    """Set all that an experiment left aside under before-N, so that it can begin anew."""
    results = notebook.results(id)
    current = [path for path in results.iterdir() if not path.name.startswith("before-")]
    if not current:
        return None
    number = len(_folders_before(notebook, id)) + 1
    folder = results / f"before-{number}"
    folder.mkdir()
    for path in current:
        shutil.move(path, folder / path.name)
    return folder


def seen_before(notebook: Notebook, id: str) -> set[str]:
    """Return the hashes of runs that earlier specifications of a hypothesis were judged by."""
    hashes: set[str] = set()
    for folder in _folders_before(notebook, id):
        path = folder / "runs.json"
        rows = parse_json(read_file(path))["runs"] if path.exists() else []
        hashes.update(row["hash"] for row in rows if row["status"] == "finished")
    return hashes


def _folders_before(notebook: Notebook, id: str) -> list[Path]:
    """Return the folders of earlier specifications, set aside by `restart`."""
    return sorted(path for path in notebook.results(id).glob("before-*") if path.is_dir())


def read(notebook: Notebook, id: str) -> Specification | None:
    """Return the specification on record, if there is one."""
    path = notebook.results(id) / SPECIFICATION_FILE
    if not path.exists():
        return None
    try:
        table = parse_json(read_file(path))
        names = [member.name for member in fields(Specification) if member.name != "omitted"]
        values = {name: table[name] for name in names}
        specification = replace(Specification(**values), more=tuple(table["more"]))
    except (ValueError, KeyError, TypeError) as error:
        raise lab_error("specification-damaged", path=path, error=error, id=id) from None
    recorded = str(table.get("hash"))
    if specification.hash != recorded:
        raise lab_error(
            "specification-edited",
            path=path,
            actual=specification.hash[:HASH_LENGTH],
            recorded=recorded[:HASH_LENGTH],
            id=id,
        )
    return specification


def write(notebook: Notebook, specification: Specification) -> None:
    """Write a specification, whole."""
    table = {"schema": SCHEMA_VERSION, "hash": specification.hash, **asdict(specification)}
    del table["omitted"]
    text = json.dumps(table, indent=2, ensure_ascii=False)
    path = notebook.results(specification.hypothesis) / SPECIFICATION_FILE
    write_atomically(path, text.encode())
