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

# Sections of a config that can't change a run's numbers: its name, what is kept of it, and what
# watches it.
SECTIONS_NOT_HASHED = ("name", "checkpoints", "doctor", "track")
# Characters of the hash in a folder's name.
HASH_LENGTH = 10
# Bytes at either end of a large file that its hash covers.
HASHED_END_BYTES = 1 << 20


@dataclass(frozen=True)
class Resolved:
    """A recipe with an arm's overrides and a seed, every value filled in."""

    config: Mapping[str, Any]
    tasks: str  # hash of the tasks that it trains on
    held_out: str  # hash of the tasks that it is evaluated on
    omitted: frozenset[str] = frozenset()  # keys that neither recipe nor arm set; not recorded


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
    is_probed: bool = True  # True if the cheap probes run first; one seed per arm is enough


class Launcher(Protocol):
    """Interface to packages that the lab may not import: `runner` starts runs."""

    def resolve(self, recipe: Path, overrides: Mapping[str, Any]) -> Resolved:
        """Load a recipe with overrides (the seed among them), make its tasks, and hash them."""

    def command(self, planned: PlannedRun) -> list[str]:
        """Return the command line that makes a planned run in its own process, or continues it."""


def version() -> str:
    """Return Uptrend's version, as runs record it."""
    return installed_versions(["uptrend"]).get("uptrend", "unknown")


def digest(value: Any) -> str:
    """Hash a plain value, whatever the order of its keys."""
    text = json.dumps(value, sort_keys=True, ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()


def resolve(
    hypothesis: Hypothesis, arm: Arm, recipe: Path, launcher: Launcher, **fixed: Any
) -> Resolved:
    """Resolve an arm at the first seed, with `fixed` config values; other seeds differ in the seed
    alone.
    """
    overrides: dict[str, Any] = {}
    if hypothesis.steps:
        overrides["learning.steps"] = hypothesis.steps
    overrides |= arm.overrides
    overrides["seed"] = hypothesis.seeds[0]
    return launcher.resolve(recipe, overrides | fixed)


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
    held_out_hashes = {resolved.held_out for resolved in arms.values()}
    if len(held_out_hashes) > 1 and not is_gain(hypothesis.metric):
        parts = [f"{name} {resolved.held_out[:HASH_LENGTH]}" for name, resolved in arms.items()]
        raise lab_error("held-out", hashes=", ".join(parts))
    runs = lab / "runs"
    planned: list[PlannedRun] = []
    for seed in hypothesis.seeds:
        source = _source(hypothesis, seed, lab)
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
            suffix = f"s{seed}-{hash[:HASH_LENGTH]}"
            existing = sorted(runs.glob(f"*-{suffix}/"))
            run = PlannedRun(
                arm=arm.name,
                seed=seed,
                hash=hash,
                config=config,
                folder=existing[0] if existing else runs / f"{config['name']}-{suffix}",
                allows=allows,
                method=hypothesis.method,
                source=source,
                is_probed=seed == hypothesis.seeds[0],
            )
            planned.append(run)
    return planned


def shared(planned_runs: Iterable[PlannedRun]) -> dict[str, PlannedRun]:
    """Return each run once, by its hash: allowed what any hypothesis allows, and probed if it is
    probed for any.
    """
    by_hash: dict[str, PlannedRun] = {}
    for planned in planned_runs:
        first = by_hash.setdefault(planned.hash, planned)
        allows = tuple(dict.fromkeys((*first.allows, *planned.allows)))
        is_probed = first.is_probed or planned.is_probed
        by_hash[planned.hash] = replace(first, allows=allows, is_probed=is_probed)
    return by_hash


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
    recorded: list[Any] | None = None
    if source is not None:
        files = [Path(source.run) / name for name in ("run.json", "metrics.jsonl")]
        file_hashes = [_hash_ends(file) for file in files if file.exists()]
        recorded = [digest(file_hashes), source.step]
    table = {
        "config": what_matters(config),
        "tasks": tasks,
        "held_out": held_out,
        "uptrend": made_by,
        "method": str(method),
        "model": fingerprint(config),
        "source": recorded,
    }
    return digest(table)


def what_matters(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return a config without what can't change a run's numbers."""
    return {key: value for key, value in config.items() if key not in SECTIONS_NOT_HASHED}


def is_finished(planned: PlannedRun) -> bool:
    """Return True if its run exists, whole and with this config."""
    if not (planned.folder / "run.json").exists():
        return False
    run = Run(planned.folder)
    if run.status != "finished":
        return False
    if planned.method is Method.TRAIN and not _is_made_from(run.config, planned.config):
        raise lab_error("other-config", planned=planned)
    return True


def _is_made_from(run_config: Mapping[str, Any], planned_config: Mapping[str, Any]) -> bool:
    """Return True if a run's config is the planned one, but for what a plan leaves to the run."""
    run_model = dict(run_config["model"])
    planned_model = dict(planned_config["model"])
    if planned_model.get("chat", "auto") == "auto":  # older plans have none
        run_model.pop("chat", None)
        planned_model.pop("chat", None)
    run_values = what_matters({**run_config, "model": run_model})
    planned_values = what_matters({**planned_config, "model": planned_model})
    return run_values == planned_values


def _source(hypothesis: Hypothesis, seed: int, lab: Path) -> Source | None:
    """Return the run that a replay of this seed replays: each seed its own, since the same rollouts
    would repeat it.
    """
    if hypothesis.source is None:
        return None
    if "{seed}" not in hypothesis.source.run and len(hypothesis.seeds) > 1:
        raise lab_error("one-source", hypothesis=hypothesis, count=len(hypothesis.seeds))
    pattern = hypothesis.source.run.replace("{seed}", str(seed))
    paths = [Path(pattern)]
    if not Path(pattern).is_absolute():
        paths = sorted(lab.glob(pattern))
    runs = [path for path in paths if (path / "run.json").exists()]
    if len(runs) != 1:
        raise LabError(
            f"{hypothesis.id}: the source {pattern} should be one run of {lab}, and there are"
            f" {len(runs)}."
        )
    return Source(str(runs[0]), hypothesis.source.step)


def fingerprint(config: Mapping[str, Any]) -> list[tuple[str, str]] | None:
    """Hash a model's folder by its files, so that one that was made anew is another; None for a
    name.
    """
    folder = Path(config["model"]["name"]).expanduser()
    if not folder.is_dir():
        return None
    hashes: list[tuple[str, str]] = []
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            hashes.append((path.relative_to(folder).as_posix(), _hash_ends(path)))
    return hashes


def _hash_ends(path: Path) -> str:
    """Hash a file by its size and both its ends."""
    # Weights are large, and their first bytes are names and shapes.
    size = path.stat().st_size
    with path.open("rb") as file:
        head = file.read(HASHED_END_BYTES)
        file.seek(max(len(head), size - HASHED_END_BYTES))
        tail = file.read(HASHED_END_BYTES)
    return hashlib.sha256(f"{size} ".encode() + head + tail).hexdigest()
