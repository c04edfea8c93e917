"""Which runs an experiment needs: arms × seeds, each known by the hash of all that could change its result."""

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from importlib import metadata
from pathlib import Path
from typing import Any

from uptrend.lab.launcher import Launcher, PlannedRun, Resolved
from uptrend.records import Arm, Hypothesis, LabError, Method, Run, Source

LEFT_OUT = ("name", "checkpoints", "doctor")
"""Sections of a config that can't change a run's numbers: what it is called, what is kept of it, who looks on."""
LENGTH = 10
"""Characters of the hash in a folder's name."""
ENDS = 1 << 20
"""Bytes at either end of a large file by which it is known."""


def version() -> str:
    """Uptrend's, as runs record it."""
    try:
        return metadata.version("uptrend")
    except metadata.PackageNotFoundError:
        return "unknown"


def digest(value: Any) -> str:
    """The hash of a plain value, whatever the order of its keys."""
    return hashlib.sha256(json.dumps(value, sort_keys=True, ensure_ascii=False).encode()).hexdigest()


def resolve(h: Hypothesis, arm: Arm, recipe: Path, launcher: Launcher, **also: Any) -> Resolved:
    """An arm with every config value, at the first seed; the others differ in the seed alone."""
    steps = {"learning.steps": h.steps} if h.steps else {}
    return launcher.resolve(recipe, {**steps, **arm.overrides, "seed": h.seeds[0], **also})


def planned_runs(
    h: Hypothesis, arms: Mapping[str, Resolved], lab: Path, allows: tuple[str, ...] = (), made_by: str = ""
) -> list[PlannedRun]:
    """Plan every run, all arms of the first seed first, so that whole seeds are compared as soon as can be.

    `made_by` is the version of Uptrend that makes them; this one by default.
    """
    _same_held_out(arms)
    by = made_by or version()
    return [_planned(h, arm, seed, arms[arm.name], lab, allows, by) for seed in h.seeds for arm in h.arms]


def _planned(
    h: Hypothesis, arm: Arm, seed: int, resolved: Resolved, lab: Path, allows: tuple[str, ...], made_by: str
) -> PlannedRun:
    config, runs = {**resolved.config, "seed": seed}, lab / "runs"
    source = _source(h, seed, lab)
    hashed = run_hash(config, resolved.tasks, resolved.held_out, made_by, h.method, source)
    # Not by the arm's name: another hypothesis may need the very same run, or a recipe of another name have made it.
    folder = runs / f"{config['name']}-s{seed}-{hashed[:LENGTH]}"
    folder = next(iter(sorted(runs.glob(f"*-s{seed}-{hashed[:LENGTH]}/"))), folder)
    return PlannedRun(arm.name, seed, hashed, config, folder, allows, h.method, source, asks=seed == h.seeds[0])


def shared(planned_runs: Iterable[PlannedRun]) -> dict[str, PlannedRun]:
    """Each run once, by its hash: what one hypothesis allows may not stop it, and any of them may want it probed."""
    found = dict[str, PlannedRun]()
    for planned in planned_runs:
        first = found.setdefault(planned.hash, planned)
        allows = tuple(dict.fromkeys((*first.allows, *planned.allows)))
        found[planned.hash] = replace(first, allows=allows, asks=first.asks or planned.asks)
    return found


def run_hash(
    config: Mapping[str, Any], tasks: str, held_out: str, made_by: str, method: Method, source: Source | None
) -> str:
    """Of everything that could change a run's result."""
    return digest(
        {
            "config": what_matters(config),
            "tasks": tasks,
            "held_out": held_out,
            "uptrend": made_by,
            "method": str(method),
            "model": fingerprint(config),
            "source": None if source is None else [_identity(Path(source.run)), source.step],
        }
    )


def what_matters(config: Mapping[str, Any]) -> dict[str, Any]:
    """A config without what can't change a run's numbers."""
    return {key: value for key, value in config.items() if key not in LEFT_OUT}


def is_finished(planned: PlannedRun) -> bool:
    """Whether its run is there, whole and the very one that is meant."""
    if not (planned.folder / "run.json").exists():
        return False
    run = Run(planned.folder)
    if run.status != "finished":
        return False
    if planned.method is Method.TRAIN and what_matters(run.config) != what_matters(planned.config):
        raise LabError(
            f"{planned.folder} has the name of a run of arm {planned.arm}, and another config. Rename or remove it."
        )
    return True


def _same_held_out(arms: Mapping[str, Resolved]) -> None:
    """Accuracies on different tasks can't be compared, whatever the seeds."""
    hashes = {name: resolved.held_out for name, resolved in arms.items()}
    if len(set(hashes.values())) > 1:
        told = ", ".join(f"{name} {hash[:LENGTH]}" for name, hash in hashes.items())
        raise LabError(
            f"The arms are evaluated on different held-out tasks ({told}), so that they can't be compared. "
            "Write one [eval] into the recipe, with its own name and options, and change it in no arm."
        )


def _source(h: Hypothesis, seed: int, lab: Path) -> Source | None:
    """What a replay of this seed replays: a run of its own, since the same rollouts again would only repeat it."""
    if h.source is None:
        return None
    if "{seed}" not in h.source.run and len(h.seeds) > 1:
        raise LabError(
            f"{h.id} replays {h.source.run} for each of {len(h.seeds)} seeds, which would be one outcome over again. "
            'Name a run a seed, for example source = { run = "runs/base-s{seed}" }; * stands for anything.'
        )
    pattern = h.source.run.replace("{seed}", str(seed))
    found = [Path(pattern)] if Path(pattern).is_absolute() else sorted(lab.glob(pattern))
    found = [path for path in found if (path / "run.json").exists()]
    if len(found) != 1:
        raise LabError(f"{h.id}: the source {pattern} should be one run of {lab}, and there are {len(found)}.")
    return Source(str(found[0]), h.source.step)


def _identity(run: Path) -> str:
    """What a replay's source is: its description and all that it recorded."""
    files = [run / "run.json", run / "metrics.jsonl"]
    if not files[0].exists():
        raise LabError(f"The source of a replay should be a run directory, and {run} is none.")
    return digest([_ends(file) for file in files if file.exists()])


def fingerprint(config: Mapping[str, Any]) -> list[tuple[str, str]] | None:
    """A model folder by its files, so that one that was made anew is another; none for a name."""
    model = Path(config["model"]["name"]).expanduser()
    if not model.is_dir():
        return None
    return [(file.relative_to(model).as_posix(), _ends(file)) for file in _files(model)]


def _files(folder: Path) -> Iterator[Path]:
    yield from (path for path in sorted(folder.rglob("*")) if path.is_file())


def _ends(path: Path) -> str:
    """A file by its size and both its ends: weights are large, and their first bytes are only names and shapes."""
    size = path.stat().st_size
    with path.open("rb") as file:
        head = file.read(ENDS)
        file.seek(max(len(head), size - ENDS))
        tail = file.read(ENDS)
    return hashlib.sha256(f"{size} ".encode() + head + tail).hexdigest()
