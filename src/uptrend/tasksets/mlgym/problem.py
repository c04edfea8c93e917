"""A machine-learning problem as MLGym describes it: a YAML file, its datasets, starter code,
evaluator, answers.

`uptrend:` in the YAML file says what MLGym's format can't; where it is silent, known.toml knows
some tasks. The answers never enter a workspace. Each problem has examples: with a generator, an
example is a seed of data; without one, all examples are the same problem.

A folder may come from anybody: nothing of it runs outside a sandbox, and its paths may not lead out
of it.
"""

import base64
import json
import shlex
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any, Literal

from uptrend.records import TasksetError
from uptrend.records.files import MAX_RECIPE_BYTES, TOO_DEEP, read_file
from uptrend.sandbox import Bounds, FileProblem, Sandbox

SHIPPED = Path(__file__).with_name("shipped")
# Where MLGym's containers have the workspace; its scripts say so, and run here in the folder
# itself.
THEIR_WORKSPACE = b"/home/agent/workspace"
KINDS: dict[str, Literal["csv", "code", "model"]] = {
    "CSVSubmissionTasks": "csv",
    "PythonSubmissionTasks": "code",
    "ModelSubmissionTasks": "model",
    "LMSubmissionTasks": "model",
}
Files = Mapping[str, bytes]
COPIED = 32 << 20  # bytes of datasets that are copied into every workspace


@dataclass(frozen=True)
class Example:
    """One instance of a problem: what the agent gets, and what is added where a split is scored."""

    workspace: Files
    validation: Files
    test: Files


@dataclass(frozen=True)
class Problem:
    """One MLGym task."""

    name: str  # stem of its YAML file
    title: str
    description: str
    kind: Literal["csv", "code", "model"]  # of what is submitted
    submission: str  # path of what is submitted
    timeout: float  # seconds that one command may take
    starter: Files  # files that the agent begins with
    folders: Mapping[str, Path]  # datasets, which it may read
    evaluator: str  # path of the script that scores
    baseline: str  # path of the script that makes the first submission; empty where there is none
    baseline_score: float | None
    metric: str  # key of the evaluator's output that counts
    sign: int  # 1 where more is better, -1 where less is
    par: float | None  # score that earns the whole reward
    best: float | None  # value that can't be beaten
    # path of the answers in the workspace as MLGym lays it out; empty where none is known
    answers: str
    hidden: Files  # answers and other secret files, by their path there
    key: str  # column of the answers that names a row
    generator: Path | None  # script that makes examples
    neighbors: Files  # files of the generator's folder, itself among them, by their paths there
    players: Path | None  # folder of scripted players
    notes: tuple[str, ...] = ()

    def improvement(self, score: float, baseline: float) -> float:
        """Return the change over a baseline in units of the task, within [-1, 1].

        1 is par, or the best value where there is no par, or as much better as the baseline is
        large.
        """
        reach = next((end for end in (self.par, self.best) if end is not None), 0.0)
        unit = abs(reach - baseline) or abs(baseline) or 1.0
        return min(1.0, max(-1.0, self.sign * (score - baseline) / unit))

    @cached_property
    def _data(self) -> dict[str, Path]:
        return _files_of(self.folders)

    @cached_property
    def is_mounted(self) -> bool:
        """True where datasets are too large to copy into every workspace: they are shown
        read-only.
        """
        is_large = sum(path.stat().st_size for path in self._data.values()) > COPIED
        if is_large and (secret := sorted(self.hidden.keys() & self._data.keys())):
            raise TasksetError(
                f"{self.name}: move {secret[0]} out of its large data folder, which the agent can"
                " read."
            )
        return is_large

    @cached_property
    def visible(self) -> dict[str, bytes]:
        """Datasets as files of a workspace, without the answers; none where they are mounted."""
        if self.is_mounted:
            return {}
        return {
            place: path.read_bytes()
            for place, path in self._data.items()
            if place not in self.hidden
        }

    @property
    def mounts(self) -> dict[str, Path]:
        """Datasets as folders of a workspace."""
        return dict(self.folders) if self.is_mounted else {}


def _files_of(folders: Mapping[str, Path]) -> dict[str, Path]:
    """Return the files of some folders by their paths in a workspace; links are left out."""
    return {
        f"{top}/{path.relative_to(folder).as_posix()}": path
        for top, folder in folders.items()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and not path.is_symlink()
    }


@dataclass(frozen=True)
class TaskFile:
    """A YAML file of a folder of tasks; the paths that it names stay inside that folder."""

    root: Path
    path: Path
    table: Mapping[str, Any]

    def place(self, key: str, value: Any, base: str = "") -> Path:
        """Return a file or folder that a key names, from the root or from `base` in it."""
        if not isinstance(value, str) or not value or "\0" in value:
            raise TasksetError(f"{self.path}: {key} = {value!r} should be a path in {self.root}.")
        return self._inside(key, value, self.root / base / value)

    def below(self, key: str, value: Any) -> Iterator[Path]:
        """Yield everything below a folder that a key names, sorted; links stay inside as well."""
        top = self.place(key, value)
        for path in sorted(top.rglob("*")):  # which follows no link to a folder
            if path.is_symlink():
                self._inside(key, f"{value}/{path.relative_to(top).as_posix()}", path)
            yield path

    def _inside(self, key: str, value: str, path: Path) -> Path:
        try:
            is_inside = path.resolve().is_relative_to(self.root.resolve())
        except (OSError, RuntimeError):  # a loop of links leads nowhere
            is_inside = False
        if not is_inside:
            raise TasksetError(
                f"{self.path}: {key} = {value!r} leads out of {self.root}; name a path inside, and"
                " copy there what it needs."
            )
        return path


@cache
def _known() -> dict[str, Any]:
    return tomllib.loads(Path(__file__).with_name("known.toml").read_text(encoding="utf-8"))


def names(folder: str = "") -> list[str]:
    """Return the tasks of a MLGym checkout, or those that come with Uptrend."""
    return sorted(path.stem for path in (_root(folder) / "configs" / "tasks").glob("*.yaml"))


def _root(folder: str) -> Path:
    root = Path(folder).expanduser() if folder else SHIPPED
    if not (root / "configs" / "tasks").is_dir():
        raise TasksetError(f"{root} is no MLGym folder: it has no configs/tasks with YAML files.")
    return root


def load_problem(name: str, folder: str = "") -> Problem:
    """Read a task of a MLGym checkout, or one that comes with Uptrend."""
    root = _root(folder)
    name = name.removesuffix(".yaml")
    path = root / "configs" / "tasks" / f"{name}.yaml"
    if not path.is_file():
        raise TasksetError(
            f"There is no MLGym task {name!r} in {path.parent}. There are"
            f" {', '.join(names(folder))}."
        )
    file = _read_yaml(
        root, TaskFile(root, path, {}).place("tasks.problems", f"{name}.yaml", "configs/tasks")
    )
    table = file.table
    known = _known()
    ours = {**known["tasks"].get(name, {}), **(table.get("uptrend") or {})}
    kind = KINDS.get(entry := table.get("task_entrypoint", "CSVSubmissionTasks"))
    evaluators = table.get("evaluation_paths") or []
    if kind is None or not evaluators:
        lacks = (
            f"task_entrypoint {entry} is none of {', '.join(KINDS)}"
            if kind is None
            else "it has no evaluation_paths"
        )
        raise TasksetError(f"{path}: {lacks}.")
    notes = list[str]()
    folders = dict[str, Path]()
    docs = list[str]()
    for place in table.get("dataset_configs") or []:
        described = _read_yaml(root, file.place("dataset_configs", place, "configs"))
        dataset = described.table
        docs.append(
            f"{dataset.get('name', Path(place).stem).upper()}:\n{dataset.get('description', '')}"
        )
        data_path = dataset.get("data_path") if dataset.get("is_local", True) else None
        if data_path and described.place("data_path", data_path).is_dir():
            if folders:
                raise TasksetError(
                    f"{path}: several datasets would lie in one folder, data; join them."
                )
            # links in it, before anything is read
            for _ in described.below("data_path", data_path):
                pass
            folders["data"] = root / data_path
        elif "generator" not in ours:
            notes.append(f"{name}: its dataset {dataset.get('data_path')} is not on this machine")
    scores = {
        key.lower(): float(value)
        for key, value in ((table.get("baseline_scores") or [{}])[0]).items()
    }
    metric = str(ours.get("metric") or next(iter(scores), "")).lower()
    facts = {**known["metrics"].get(metric, {}), **ours}
    if facts.get("direction") not in ("up", "down"):
        raise TasksetError(
            f"{path}: say whether more or less of {metric or 'its metric'!r} is better: add"
            f" `uptrend:` with `direction: up` or `down`{'' if metric else ' and `metric:`'}."
        )
    answers = str(ours.get("answers") or next(iter(table.get("secret_files") or ()), ""))
    if kind == "csv" and not answers and "generator" not in ours:
        notes.append(
            f"{name} names no answers (`uptrend:` with `answers:`): all of its data is in the"
            " workspace, and validate only checks the format"
        )
    submission = str(
        ours.get("submission")
        or {"csv": "submission.csv", "code": "strategy.py", "model": "."}[kind]
    )
    starter = _starter(file)
    secret = {str(place) for place in (answers, *(table.get("secret_files") or ())) if place}
    everything = {
        place: found.read_bytes() for place, found in _files_of(folders).items() if place in secret
    } | starter
    hidden = {place: everything[place] for place in secret & everything.keys()}
    if str(evaluators[0]) not in starter:
        raise TasksetError(f"{path}: its evaluator {evaluators[0]} is not among starter_code.")
    if answers and folders and answers not in hidden:
        raise TasksetError(
            f"{path}: its answers {answers!r} are not there; write the path in the workspace, as"
            " data/…"
        )
    if kind == "csv" and answers in hidden and not ours.get("key"):
        raise TasksetError(
            f"{path}: say which column of {answers} names a row: add `key:` below `uptrend:`."
        )
    starter = {place: data for place, data in starter.items() if place not in hidden}
    generator = file.place("generator", ours["generator"]) if "generator" in ours else None
    players = file.place("players", ours["players"]) if "players" in ours else None
    for _ in file.below("players", ours["players"]) if players else ():
        pass
    return Problem(
        name=name,
        title=str(table.get("name", name)),
        kind=kind,
        submission=submission,
        description=str(table.get("description", ""))
        .replace("{dataset_docs}", "\n\n".join(docs))
        .strip(),
        timeout=float(table.get("training_timeout") or 3600),
        starter=starter,
        folders=folders,
        evaluator=str(evaluators[0]),
        baseline=_baseline(table, kind, str(evaluators[0])),
        baseline_score=scores.get(metric),
        metric=metric,
        sign=1 if facts["direction"] == "up" else -1,
        par=facts.get("par"),
        best=facts.get("best"),
        answers=answers,
        hidden=hidden,
        key=str(ours.get("key", "")),
        generator=generator,
        neighbors=_neighbors(file, generator) if generator else {},
        players=players,
        notes=tuple(notes),
    )


def _baseline(table: Mapping[str, Any], kind: str, evaluator: str) -> str:
    """Return the script that makes the first submission; where code is submitted, the starter code
    is one.
    """
    scripts = [str(path) for path in table.get("baseline_paths") or () if str(path) != evaluator]
    return scripts[0] if scripts and kind != "code" else ""


def _read_yaml(root: Path, path: Path) -> TaskFile:
    import yaml

    if path.exists() and not path.is_file():  # to read a named pipe never ends
        raise TasksetError(f"{path} is not a file.")
    try:
        table = yaml.safe_load(read_file(path, MAX_RECIPE_BYTES).decode("utf-8"))
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise TasksetError(f"{path} can't be read: {error}.") from None
    except RecursionError:
        raise TasksetError(f"{path} can't be read: {TOO_DEEP}.") from None
    if not isinstance(table, dict):
        raise TasksetError(f"{path} is no table of keys and values.")
    return TaskFile(root, path, table)


def _starter(file: TaskFile) -> dict[str, bytes]:
    """Return starter code as MLGym lays it out: each file or folder by its own name in the
    workspace.
    """
    table = file.table
    files: dict[str, bytes] = {}
    listed = [("starter_code", place) for place in table.get("starter_code") or ()]
    if table.get("sample_submission"):
        listed.append(("sample_submission", table["sample_submission"]))
    for key, place in listed:
        top = file.place(key, place)
        found = (
            [path for path in file.below(key, place) if path.is_file()] if top.is_dir() else [top]
        )
        for path in found:
            if not path.is_file():
                raise TasksetError(
                    f"{path} is missing: {table.get('id', 'the task')} names it as starter code."
                )
            data = path.read_bytes()
            files[path.relative_to(top.parent).as_posix()] = (
                data.replace(THEIR_WORKSPACE, b".") if path.suffix == ".py" else data
            )
    return files


def _neighbors(file: TaskFile, generator: Path) -> dict[str, bytes]:
    """Return the generator and the files beside it, which it may read."""
    if not generator.is_file():
        raise TasksetError(f"{generator} is missing: {file.path} names it as generator.")
    beside = [
        path
        for path in sorted(generator.parent.rglob("*"))
        if path.is_file() and not path.is_symlink()
    ]
    if sum(path.stat().st_size for path in beside) > COPIED:
        raise TasksetError(
            f"{generator.parent} is copied for its generator and has more than {COPIED >> 20}"
            f" megabytes; put {generator.name} into a folder with what it reads."
        )
    return {
        path.relative_to(generator.parent).as_posix(): path.read_bytes()
        for path in [*beside, generator]
    }


# Examples: made by a generator in a sandbox of its own, or the problem's own files

EXAMPLE_PARTS = ("workspace", "validation", "test")
LARGEST_EXAMPLE = 64 << 20  # bytes of an example's files, as base64
MADE = "made.json"  # in the workspace

# Runs in the sandbox, where the generator's folder is copied to `generator`. For Python 3.9: an
# image may have that.
MAKE = r"""
import base64, json, runpy, sys
from pathlib import Path
script, seed, heldout = sys.argv[1], int(sys.argv[2]), sys.argv[3] == "True"
made = Path(sys.argv[4]).resolve()  # the generator may go to another folder
parts = runpy.run_path(str(Path("generator", script).resolve()))["make"](seed, heldout)
if not isinstance(parts, dict) or not {"workspace", "validation", "test"} <= parts.keys():
    sys.exit("make(seed, heldout) should return files for workspace, validation and test")
files = {}
for part in ("workspace", "validation", "test"):
    for path, data in parts[part].items():
        if not isinstance(path, str) or not isinstance(data, bytes):
            sys.exit(f"{part} should have bytes by path, and has {data!r:.60} by {path!r:.60}")
    files[part] = {path: base64.b64encode(data).decode() for path, data in parts[part].items()}
made.write_text(json.dumps(files))
"""


async def make_example(
    problem: Problem, sandbox: Sandbox, bounds: Bounds, seed: int, heldout: bool
) -> Example:
    """Make the example of a seed; of what a generator does, only the files it returns come out."""
    if problem.generator is None:
        return Example(problem.starter, problem.hidden, problem.hidden)
    files: dict[str, bytes] = {
        f"generator/{place}": data for place, data in problem.neighbors.items()
    }
    async with await sandbox.open({**files, "make_example.py": MAKE.encode()}, bounds) as workspace:
        words = ["python", "make_example.py", problem.generator.name, str(seed), str(heldout), MADE]
        outcome = await workspace.run(shlex.join(words), seconds=problem.timeout)
        try:
            if outcome.code or outcome.stopped:
                raise ValueError(_last_line(outcome.output) or f"exit code {outcome.code}")
            parts = _read_parts(json.loads(await workspace.read(MADE, LARGEST_EXAMPLE)))
        except (FileProblem, ValueError, RecursionError) as error:
            bound = outcome.stopped
            reason = f"it reached its bound of {bound}" if bound else str(error)
            raise TasksetError(
                f"The generator {problem.generator} made no example of seed {seed}: {reason}."
            ) from None
    return Example({**problem.starter, **parts["workspace"]}, parts["validation"], parts["test"])


def _read_parts(made: Any) -> dict[str, Files]:
    """Return the files of each part; the generator may have written anything in their place."""
    try:
        return {
            part: {path: base64.b64decode(text) for path, text in made[part].items()}
            for part in EXAMPLE_PARTS
        }
    except (TypeError, KeyError, AttributeError):
        raise ValueError("it should return files for workspace, validation and test") from None


def _last_line(output: str) -> str:
    return output.strip().rpartition("\n")[2][-300:].removesuffix(".")
