"""The runs of an experiment: arms × seeds, each known by the hash of all that could change its
result.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

from uptrend.lab import lab_error
from uptrend.records import Arm, Hypothesis, LabError, Method, Run, Source
from uptrend.records.machine import installed_versions
from uptrend.records.metrics import is_gain

# Sections of a config that can't change a run's numbers: its name, what is kept of it, who looks
# on.
LEFT_OUT = ("name", "checkpoints", "doctor", "track")
# Characters of the hash in a folder's name.
LENGTH = 10
# Bytes at either end of a large file by which it is known.
ENDS = 1 << 20


@dataclass(frozen=True)
class Resolved:
    """A recipe with an arm's overrides and a seed, every value filled in."""

    config: Mapping[str, Any]
    tasks: str  # hash of the tasks that it trains on
    held_out: str  # hash of the tasks that it is evaluated on


@dataclass(frozen=True)
class PlannedRun:
    """One run of an experiment."""

    arm: str
    seed: int
    hash: str  # hash of everything that could change its result
    config: Mapping[str, Any]
    folder: Path  # run directory, existing or to be made
    allows: tuple[str, ...] = ()  # catalogue ids that must not stop it
    method: Method = Method.TRAIN
    source: Source | None = None  # run that a replay replays; a path that can be opened
    asks: bool = True  # True if the cheap probes are asked first; one seed per arm is enough


class Launcher(Protocol):
    """Interface to packages that the lab may not import: `runner` says how a run is started."""

    def resolve(self, recipe: Path, overrides: Mapping[str, Any]) -> Resolved:
        """Load a recipe with overrides (the seed among them), make its tasks, and hash them."""

    def command(self, planned: PlannedRun) -> list[str]:
        """Return the command line that makes a planned run in its own process, or continues it."""


def version() -> str:
    """Return Uptrend's version, as runs record it."""
    return installed_versions(["uptrend"]).get("uptrend", "unknown")


def digest(value: Any) -> str:
    """Hash a plain value, whatever the order of its keys."""
    return hashlib.sha256(
        json.dumps(value, sort_keys=True, ensure_ascii=False).encode()
    ).hexdigest()


def resolve(
    hypothesis: Hypothesis, arm: Arm, recipe: Path, launcher: Launcher, **also: Any
) -> Resolved:
    """Resolve an arm at the first seed; the others differ in the seed alone."""
    steps = {"learning.steps": hypothesis.steps} if hypothesis.steps else {}
    return launcher.resolve(recipe, {**steps, **arm.overrides, "seed": hypothesis.seeds[0], **also})


def planned_runs(
    hypothesis: Hypothesis,
    arms: Mapping[str, Resolved],
    lab: Path,
    allows: tuple[str, ...] = (),
    made_by: str = "",
) -> list[PlannedRun]:
    """Plan every run, all arms of the first seed first, so that whole seeds can be compared early.

    `made_by` is the version of Uptrend that makes them; this one by default.
    """
    hashes = {name: resolved.held_out for name, resolved in arms.items()}
    if len(set(hashes.values())) > 1 and not is_gain(hypothesis.metric):
        told = ", ".join(f"{name} {hash[:LENGTH]}" for name, hash in hashes.items())
        raise lab_error("held-out", told=told)
    found = list[PlannedRun]()
    for seed in hypothesis.seeds:
        source = _source(hypothesis, seed, lab)
        runs = lab / "runs"
        for arm in hypothesis.arms:
            resolved = arms[arm.name]
            config = {**resolved.config, "seed": seed}
            hash = run_hash(
                config,
                resolved.tasks,
                resolved.held_out,
                made_by or version(),
                hypothesis.method,
                source,
            )
            # Not by the arm's name: another hypothesis may need this very run, or another recipe
            # have made it.
            there = sorted(runs.glob(f"*-s{seed}-{hash[:LENGTH]}/"))
            folder = there[0] if there else runs / f"{config['name']}-s{seed}-{hash[:LENGTH]}"
            asks = seed == hypothesis.seeds[0]
            found.append(
                PlannedRun(
                    arm.name, seed, hash, config, folder, allows, hypothesis.method, source, asks
                )
            )
    return found


def shared(planned_runs: Iterable[PlannedRun]) -> dict[str, PlannedRun]:
    """Return each run once, by its hash: allowed what any hypothesis allows, and probed if any
    wants it probed.
    """
    found = dict[str, PlannedRun]()
    for planned in planned_runs:
        first = found.setdefault(planned.hash, planned)
        allows = tuple(dict.fromkeys((*first.allows, *planned.allows)))
        found[planned.hash] = replace(first, allows=allows, asks=first.asks or planned.asks)
    return found


def run_hash(
    config: Mapping[str, Any],
    tasks: str,
    held_out: str,
    made_by: str,
    method: Method,
    source: Source | None,
) -> str:
    """Hash everything that could change a run's result, for a replay all that its source
    recorded.
    """
    files = [Path(source.run) / name for name in ("run.json", "metrics.jsonl")] if source else []
    recorded = digest([_ends(file) for file in files if file.exists()])
    table: dict[str, Any] = {
        "config": what_matters(config),
        "tasks": tasks,
        "held_out": held_out,
        "uptrend": made_by,
    }
    table |= {"method": str(method), "model": fingerprint(config)}
    return digest({**table, "source": None if source is None else [recorded, source.step]})


def what_matters(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return a config without what can't change a run's numbers."""
    return {key: value for key, value in config.items() if key not in LEFT_OUT}


def is_finished(planned: PlannedRun) -> bool:
    """Return True if its run exists, whole and with this config."""
    if (
        not (planned.folder / "run.json").exists()
        or (run := Run(planned.folder)).status != "finished"
    ):
        return False
    if planned.method is Method.TRAIN and not _is_made_from(run.config, planned.config):
        raise lab_error("other-config", planned=planned)
    return True


def _is_made_from(made: Mapping[str, Any], planned: Mapping[str, Any]) -> bool:
    """Return True where a run's config is the planned one, but for what a plan leaves to the
    run.
    """
    made_model = dict(made["model"])
    planned_model = dict(planned["model"])
    if planned_model.get("chat", "auto") == "auto":  # older plans have none
        made_model.pop("chat", None)
        planned_model.pop("chat", None)
    return what_matters({**made, "model": made_model}) == what_matters(
        {**planned, "model": planned_model}
    )


def _source(hypothesis: Hypothesis, seed: int, lab: Path) -> Source | None:
    # The run that a replay of this seed replays: each seed its own, since the same rollouts would
    # repeat it.
    if hypothesis.source is None:
        return None
    if "{seed}" not in hypothesis.source.run and len(hypothesis.seeds) > 1:
        raise lab_error("one-source", hypothesis=hypothesis, count=len(hypothesis.seeds))
    pattern = hypothesis.source.run.replace("{seed}", str(seed))
    found = [Path(pattern)] if Path(pattern).is_absolute() else sorted(lab.glob(pattern))
    found = [path for path in found if (path / "run.json").exists()]
    if len(found) != 1:
        raise LabError(
            f"{hypothesis.id}: the source {pattern} should be one run of {lab}, and there are"
            f" {len(found)}."
        )
    return Source(str(found[0]), hypothesis.source.step)


def fingerprint(config: Mapping[str, Any]) -> list[tuple[str, str]] | None:
    """Hash a model's folder by its files, so that one that was made anew is another; None for a
    name.
    """
    model = Path(config["model"]["name"]).expanduser()
    if not model.is_dir():
        return None
    return [
        (path.relative_to(model).as_posix(), _ends(path))
        for path in sorted(model.rglob("*"))
        if path.is_file()
    ]


def _ends(path: Path) -> str:
    # Hash a file by its size and both its ends: weights are large, and their first bytes are names
    # and shapes.
    size = path.stat().st_size
    with path.open("rb") as file:
        head = file.read(ENDS)
        file.seek(max(len(head), size - ENDS))
        tail = file.read(ENDS)
    return hashlib.sha256(f"{size} ".encode() + head + tail).hexdigest()
