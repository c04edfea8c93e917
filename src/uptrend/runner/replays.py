"""Joining the rooms into a replay: another run's records, its model made again, and a run directory of its own."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from uptrend.config import load_config
from uptrend.policy.known import need_train_extra
from uptrend.records import Run, RunDirectory
from uptrend.runner.prepare import check_tasks, free_place, info_of, make_policy, recorded, resolve
from uptrend.tasks.pool import heldout, pool
from uptrend.training.observer import Observer

if TYPE_CHECKING:
    from uptrend.policy.policy import Policy
    from uptrend.training.replay import Replay

BY_CONSTRUCTION = ("precision.mismatch", "sync.stale-weights", "sync.off-policy", "policy.dropout-on")
"""Causes that a gap between sampler and learner points to elsewhere; here another policy sampled, by design."""


def replay(
    run: Run,
    step: int,
    *,
    steps: int | None = None,
    overrides: Iterable[str] = (),
    runs: Path = Path("runs"),
    name: str | None = None,
    observers: Sequence[Observer] = (),
) -> Run:
    """Learn from a run's recorded rollouts again, from its checkpoint of a step on; gives back the replay's run."""
    need_train_extra()
    from uptrend.training.components import Parts
    from uptrend.training.replay import plan
    from uptrend.training.replay import replay as learn_again

    asked = plan(run, step, steps, overrides)
    begun = name is not None and _was_begun(runs / name, asked)
    path = runs / str(name) if begun else free_place(runs, name, f"{run.name}-replay", "Choose another --name.")
    config = resolve(asked.config)
    held_out = heldout(config)
    tasks = pool(config, held_out)
    check_tasks(run, tasks, held_out)
    asked = replace(asked, config=config)
    policy = _policy(asked)
    info = _told(info_of(path, config, tasks, held_out, policy), asked)
    with _directory(path, info, asked) as directory, recorded(directory, resume=begun) as outcome:
        for id, reason in _acquittals(asked):
            directory.event("acquitted", id=id, reason=reason)
        outcome.stop = learn_again(Parts(config, policy, tasks, held_out, directory, observers), asked)
    return Run(path)


def _acquittals(asked: "Replay") -> list[tuple[str, str]]:
    """Return the causes that the doctor must not report, with the reason."""
    gaps = BY_CONSTRUCTION if asked.changed else ()
    length = ("run.too-short", "a replay's rewards are those of the run that it replays")
    return [length, *((id, "a replay learns from another policy's rollouts") for id in gaps)]


def _policy(asked: "Replay") -> "Policy":
    """The model that the run began with, checked as it was, then made as it shall be."""
    from uptrend.training.replay import check_start

    config = asked.config
    as_it_was = replace(config, model=load_config(asked.run.config).model)
    policy = make_policy(as_it_was)
    check_start(policy, asked)
    return policy if as_it_was == config else make_policy(config)


def _told(info: dict[str, Any], asked: "Replay") -> dict[str, Any]:
    """Return the part of run.json that only a replay has."""
    source = asked.run
    notes = list(info["notes"])
    if len(asked.changed) > 1:
        notes.append(f"{len(asked.changed)} keys were changed at once; what each of them does can't be told apart.")
    if elsewhere := [k for k in ("machine", "packages", "uptrend") if info[k] != source.info.get(k)]:
        notes.append(f"{source.path} was made with other {' and '.join(elsewhere)}: the last bits may differ.")
    return {**info, "kind": "replay", "replay": _about(asked), "notes": notes}


def _about(asked: "Replay") -> dict[str, Any]:
    """Return the source of a replay, as JSON gives it back."""
    changed = {key: list(pair) for key, pair in asked.changed.items()}
    return {"source": str(asked.run.path.resolve()), "step": asked.step, "last": asked.last, "changed": changed}


def _was_begun(path: Path, asked: "Replay") -> bool:
    """Return True where this very replay is there, unfinished."""
    if not (path / "run.json").exists():
        return False
    there = Run(path)
    return there.info.get("replay") == _about(asked) and there.status != "finished"


def _directory(path: Path, info: dict[str, Any], asked: "Replay") -> RunDirectory:
    """A new run directory, or that of an unfinished replay, emptied: made again, it gives the same numbers."""
    if not (path / "run.json").exists():
        return RunDirectory.create(path, info)
    directory = RunDirectory.reopen(path)
    directory.rewind(asked.step - 1)  # of its evaluation before the first step too
    directory.write_info(info)
    return directory
