"""What was fixed before the first step, and whether somebody changed it afterwards.

specification.json has the criteria, each arm's resolved config, the hashes of its tasks and of a model's folder, and
the package's version. Whoever looks at results and then changes what decides has no test any more: that voids the
verdict. Two ways on are honest, and recorded: to begin anew (the old results are kept aside), and more seeds, judged by
the confidence sequence, which may be looked at as often as one likes.
"""

import json
import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from uptrend.lab.changes import changed, void
from uptrend.lab.launcher import Launcher, Resolved
from uptrend.lab.notebook import Notebook
from uptrend.lab.plan import digest, fingerprint, planned_runs, resolve, version
from uptrend.records import Direction, Hypothesis, LabError
from uptrend.records.directory import write_whole

__all__ = [
    "Specification", "changed", "describe", "extend", "freeze", "read", "restart", "seen_before", "version", "void",
]  # fmt: skip

SCHEMA = 1
FILE = "specification.json"
CRITERIA = (
    "metric", "direction", "smallest", "seeds", "alpha", "stops_early", "validated_if", "invalidated_if",
    "method", "source", "cause", "allows",
)  # fmt: skip
"""The keys of a hypothesis that decide; a title or a priority may be fixed."""


@dataclass(frozen=True)
class Specification:
    """A hypothesis as it stood before its first step."""

    hypothesis: str
    """Its id."""
    criteria: Mapping[str, Any]
    """What decides."""
    arms: Mapping[str, Mapping[str, Any]]
    """By arm: whether it is the control, its resolved config, and the hashes of its tasks."""
    uptrend: str
    """The package's version."""
    written: str = ""
    """When."""
    more: tuple[int, ...] = ()
    """Seeds that were added after results could be seen."""
    before: int = 0
    """How many earlier specifications were set aside."""

    @property
    def hash(self) -> str:
        """Of all that decides."""
        return digest([self.hypothesis, self.criteria, self.arms, self.uptrend])

    def resolved(self) -> dict[str, Resolved]:
        """Each arm as it is to be run."""
        return {name: Resolved(arm["config"], arm["tasks"], arm["held_out"]) for name, arm in self.arms.items()}

    def hypothesis_of(self, h: Hypothesis) -> Hypothesis:
        """The hypothesis with the seeds that were added."""
        return replace(h, seeds=(*h.seeds, *self.more))


def freeze(notebook: Notebook, h: Hypothesis, launcher: Launcher) -> Specification:
    """What stands written for a hypothesis; written now if nothing is yet."""
    found = read(notebook, h.id)
    if found is not None:
        return found
    now = replace(describe(notebook, h, launcher), before=len(_aside(notebook, h.id)))
    planned_runs(h, now.resolved(), notebook.folder)  # what can't be run is refused before it is fixed
    write(notebook, now)
    return now


def describe(notebook: Notebook, h: Hypothesis, launcher: Launcher, like: Specification | None = None) -> Specification:
    """The specification that a hypothesis's file gives today, on the kind of machine that `like` was written on."""
    arms = dict[str, dict[str, Any]]()
    for arm in h.arms:
        resolved = resolve(h, arm, notebook.folder / h.recipe, launcher, **_machine(like, arm.name))
        arms[arm.name] = {
            "control": arm.is_control,
            "config": json.loads(json.dumps(resolved.config)),
            "tasks": resolved.tasks,
            "held_out": resolved.held_out,
        }
        files = fingerprint(resolved.config)
        arms[arm.name] |= {} if files is None else {"model": digest(files)}
    criteria = json.loads(json.dumps({key: _plain(getattr(h, key)) for key in CRITERIA}))
    written = datetime.now(UTC).isoformat(timespec="seconds")
    return Specification(h.id, criteria, arms, version(), written)


def _machine(like: Specification | None, arm: str) -> dict[str, Any]:
    """Where it was frozen it stays: a verdict may be computed on a laptop from runs of a GPU."""
    if like is None or arm not in like.arms:
        return {}
    compute = like.arms[arm]["config"].get("compute", {})
    return {f"compute.{key}": compute[key] for key in ("threads",) if key in compute}


def _plain(value: Any) -> Any:
    return asdict(value) if hasattr(value, "__dataclass_fields__") else value


def extend(notebook: Notebook, then: Specification, count: int) -> Specification:
    """The specification with so many more seeds, recorded as added after results could be seen."""
    if then.criteria["direction"] == Direction.EITHER and not then.criteria["stops_early"]:
        raise LabError(
            f"{then.hypothesis} claims either direction without stops_early, so that its first verdict spends all of "
            "alpha and none is left for more seeds. Begin anew, with stops_early = true and all the seeds."
        )
    seeds = [*then.criteria["seeds"], *then.more]
    more = (*then.more, *range(max(seeds) + 1, max(seeds) + 1 + count))
    extended = replace(then, more=more)
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
    """The hashes of runs that earlier specifications of a hypothesis were judged by."""
    found = set[str]()
    for folder in _aside(notebook, id):
        path = folder / "runs.json"
        if path.exists():
            runs = json.loads(path.read_text(encoding="utf-8"))["runs"]
            found |= {run["hash"] for run in runs if run["status"] == "finished"}
    return found


def _aside(notebook: Notebook, id: str) -> list[Path]:
    return sorted(path for path in notebook.results(id).glob("before-*") if path.is_dir())


def read(notebook: Notebook, id: str) -> Specification | None:
    """What stands written, or nothing."""
    path = notebook.results(id) / FILE
    if not path.exists():
        return None
    try:
        table = json.loads(path.read_text(encoding="utf-8"))
        found = Specification(
            table["hypothesis"], table["criteria"], table["arms"], table["uptrend"], table["written"],
            tuple(table["more"]), table["before"],
        )  # fmt: skip
    except (ValueError, KeyError, TypeError) as error:
        raise LabError(f"{path} is damaged ({error!r}). Begin anew with: uptrend lab run {id} --restart") from None
    if found.hash != table.get("hash"):
        raise LabError(
            f"{path} was edited: its hash is {found.hash[:10]}, and it says {str(table.get('hash'))[:10]}. "
            f"Put it back, or begin anew with: uptrend lab run {id} --restart"
        )
    return found


def write(notebook: Notebook, specification: Specification) -> None:
    """Put it on disk, whole."""
    table = {"schema": SCHEMA, "hash": specification.hash, **asdict(specification)}
    text = json.dumps(table, indent=2, ensure_ascii=False)
    write_whole(notebook.results(specification.hypothesis) / FILE, text.encode())
