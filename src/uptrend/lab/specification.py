"""The specification that is fixed before the first step, and changes made to it afterwards.

specification.json has the criteria, each arm's resolved config, the hashes of its tasks and of a
model's folder, and the package's version. Whoever looks at results and then changes what decides
has no test any more: that voids the verdict. Two ways on are honest, and recorded: to begin anew
(the old results are kept aside), and more seeds, judged by the confidence sequence, which may be
looked at as often as one likes.
"""

import json
import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from uptrend.config import Config, difference, to_table
from uptrend.config.tables import flatten
from uptrend.lab import lab_error
from uptrend.lab.notebook import Notebook
from uptrend.lab.plan import (
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
from uptrend.records.metrics import first_step
from uptrend.records.renamed import upgrade, upgrade_keys

SCHEMA = 1
FILE = "specification.json"
# Keys of a hypothesis that decide; a title or a priority may be corrected.
CRITERIA = (
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
HASHES = {"tasks": "training tasks", "held_out": "held-out tasks", "model": "model's folder"}


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
    found = read(notebook, hypothesis.id)
    if found is not None:
        return found
    now = replace(
        describe(notebook, hypothesis, launcher), before=len(_aside(notebook, hypothesis.id))
    )
    # what can't be run is refused before it is fixed
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
    arms = dict[str, dict[str, Any]]()
    for arm in hypothesis.arms:
        compute = (
            like.arms[arm.name]["config"].get("compute", {})
            if like and arm.name in like.arms
            else {}
        )
        threads = {"compute.threads": compute["threads"]} if "threads" in compute else {}
        resolved = resolve(
            hypothesis, arm, notebook.folder / hypothesis.recipe, launcher, **threads
        )
        # Through JSON, so that it compares and hashes like one that was read from the file.
        arms[arm.name] = {"control": arm.is_control, **json.loads(json.dumps(asdict(resolved)))}
        if (files := fingerprint(resolved.config)) is not None:
            arms[arm.name]["model"] = digest(files)
    values = asdict(hypothesis)
    criteria = json.loads(json.dumps({key: values[key] for key in CRITERIA}))
    return Specification(
        hypothesis.id, criteria, arms, version(), datetime.now(UTC).isoformat(timespec="seconds")
    )


def changed(then: Specification, now: Specification) -> list[str]:
    """Name each difference between the record and the files: `smallest 0.05 → 0.02`.

    Only keys that the record has are compared: one that a later version of Uptrend added, at its
    default, is no change, nor is a name that was changed (records/renamed.toml).
    """
    criteria = upgrade(then.criteria, "metrics", "causes")
    found = _differences(
        {key: (criteria[key], value) for key, value in now.criteria.items() if key in criteria}
    )
    found += [f"arm {name} is gone" for name in then.arms if name not in now.arms]
    found += [f"arm {name} is new" for name in now.arms if name not in then.arms]
    common = [name for name in now.arms if name in then.arms]
    where = dict[str, list[str]]()
    for name in common:
        for change in _changes(then.arms[name], now.arms[name]):
            where.setdefault(change, []).append(name)
    for change, names in where.items():
        found.append(change if len(names) == len(common) else f"{' and '.join(names)}: {change}")
    return found


def _changes(then: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    before = upgrade_keys(then["config"], noted=False)
    defaults = flatten(to_table(Config()))
    keys = difference(what_matters(before), what_matters(now["config"]))
    for key, (_, value) in list(keys.items()):
        if key == "model.chat" and key not in flatten(before):
            # decided since then by what the model was taught; its runs keep how they were asked
            del keys[key]
            continue
        # `model.lora.r` had its place too where `model.lora` was null.
        had_place = any(f"{key}.".startswith(f"{old}.") for old in flatten(before))
        if key.startswith("compute.device") or not (had_place or value != defaults.get(key, value)):
            del keys[key]
    # A model's folder that is not on this machine is no change: judging needs only the runs.
    hashes = {
        f"hash of its {of}": (then.get(key), now.get(key, then.get(key)))
        for key, of in HASHES.items()
    }
    became_control = now["control"] and not then["control"]
    return _differences(keys | hashes) + (["it is the control now"] if became_control else [])


def _differences(pairs: Mapping[str, tuple[Any, Any]]) -> list[str]:
    told = {key: [setting(value, quote=False) for value in pair] for key, pair in pairs.items()}
    return [f"{key} {told[key][0]} → {told[key][1]}" for key, (x, y) in pairs.items() if x != y]


def extend(notebook: Notebook, then: Specification, count: int) -> Specification:
    """Add seeds to a specification, recorded as added after results could be seen."""
    either = then.criteria["direction"] == Direction.EITHER and not then.criteria["stops_early"]
    if either or first_step(then.criteria["metric"]):
        raise lab_error(
            f"extend-{'either' if either else 'median'}", id=then.hypothesis, **then.criteria
        )
    first = max([*then.criteria["seeds"], *then.more]) + 1
    extended = replace(then, more=(*then.more, *range(first, first + count)))
    write(notebook, extended)
    return extended


def restart(notebook: Notebook, id: str) -> Path | None:
    """Set all that an experiment left aside under before-N, so that it can begin anew."""
    results = notebook.results(id)
    left = [path for path in results.iterdir() if not path.name.startswith("before-")]
    if not left:
        return None
    place = results / f"before-{len(_aside(notebook, id)) + 1}"
    place.mkdir()
    for path in left:
        shutil.move(path, place / path.name)
    return place


def seen_before(notebook: Notebook, id: str) -> set[str]:
    """Return the hashes of runs that earlier specifications of a hypothesis were judged by."""
    files = [folder / "runs.json" for folder in _aside(notebook, id)]
    runs = [run for path in files if path.exists() for run in parse_json(read_file(path))["runs"]]
    return {run["hash"] for run in runs if run["status"] == "finished"}


def _aside(notebook: Notebook, id: str) -> list[Path]:
    return sorted(path for path in notebook.results(id).glob("before-*") if path.is_dir())


def read(notebook: Notebook, id: str) -> Specification | None:
    """Return the specification on record, if there is one."""
    path = notebook.results(id) / FILE
    if not path.exists():
        return None
    try:
        table = parse_json(read_file(path))
        values = {field.name: table[field.name] for field in fields(Specification)}
        found = replace(Specification(**values), more=tuple(table["more"]))
    except (ValueError, KeyError, TypeError) as error:
        raise lab_error("specification-damaged", path=path, error=error, id=id) from None
    if found.hash != table.get("hash"):
        said = str(table.get("hash"))[:10]
        raise lab_error("specification-edited", path=path, found=found.hash[:10], said=said, id=id)
    return found


def write(notebook: Notebook, specification: Specification) -> None:
    """Write a specification, whole."""
    table = {"schema": SCHEMA, "hash": specification.hash, **asdict(specification)}
    text = json.dumps(table, indent=2, ensure_ascii=False)
    write_atomically(notebook.results(specification.hypothesis) / FILE, text.encode())
