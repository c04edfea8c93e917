"""A machine-learning problem as MLGym describes it: a YAML file, its datasets, starter code,
evaluator, answers.

`uptrend:` in the YAML file has what MLGym's format lacks; for some tasks of MLGym, known.toml has
it. The answers never enter a workspace. Each problem has examples: with a generator, an example is
a seed of data; without one, all examples are the same problem.

A folder may come from an untrusted source: nothing of it runs outside a sandbox, and its paths may
not lead out of it.
"""

import base64
import json
import shlex
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any, Literal

from uptrend.records import TasksetError
from uptrend.records.files import MAX_RECIPE_BYTES, TOO_DEEP, read_file
from uptrend.sandbox import Bounds, FileProblem, Sandbox

SHIPPED_FOLDER = Path(__file__).with_name("shipped")
# The workspace's path in MLGym's containers, which its scripts name; here they run in the folder
# itself.
MLGYM_WORKSPACE = b"/home/agent/workspace"
Kind = Literal["csv", "code", "model"]  # of a submission
KIND_BY_ENTRYPOINT: dict[str, Kind] = {
    "CSVSubmissionTasks": "csv",
    "PythonSubmissionTasks": "code",
    "ModelSubmissionTasks": "model",
    "LMSubmissionTasks": "model",
}
DEFAULT_SUBMISSIONS: dict[Kind, str] = {
    "csv": "submission.csv",
    "code": "strategy.py",
    "model": ".",
}
DEFAULT_TIMEOUT_S = 3600
Files = Mapping[str, bytes]  # by path in a workspace
# Datasets up to this size are copied into every workspace.
MAX_COPIED_BYTES = 32 << 20


@dataclass(frozen=True)
class Example:
    """One instance of a problem: the agent's files, and those added to score a split."""

    workspace: Files
    validation: Files
    test: Files


@dataclass(frozen=True)
class Problem:
    """One MLGym task."""

    name: str  # stem of its YAML file
    title: str
    description: str
    kind: Kind
    submission: str  # path of the submission
    timeout: float  # seconds that one command may take
    starter: Files  # files that the agent begins with
    folders: Mapping[str, Path]  # datasets, which the agent may read, by name in the workspace
    evaluator: str  # path of the script that scores
    baseline: str  # path of the script that makes the first submission; empty for none
    baseline_score: float | None
    metric: str  # key of the evaluator's output that counts
    sign: int  # 1 if more is better, -1 if less is
    par: float | None  # score that earns the whole reward
    best: float | None  # value that can't be beaten
    answers: str  # path of the answers in MLGym's workspace; empty if unknown
    hidden: Files  # answers and other secret files, by their path there
    key: str  # column of the answers that names a row
    generator: Path | None  # script that makes examples
    generator_files: Files  # files of the generator's folder, by their paths there
    players: Path | None  # folder of scripted players
    notes: tuple[str, ...] = ()

    def improvement(self, score: float, baseline: float) -> float:
        """Return the change over a baseline in units of the task, within [-1, 1].

        1 is par; without par, the best value; without either, a gain as large as the baseline.
        """
        if self.par is not None:
            goal = self.par
        elif self.best is not None:
            goal = self.best
        else:
            goal = 0.0
        unit = abs(goal - baseline) or abs(baseline) or 1.0
        gain = self.sign * (score - baseline)
        return min(1.0, max(-1.0, gain / unit))

    @cached_property
    def _data(self) -> dict[str, Path]:
        return _files_of(self.folders)

    @cached_property
    def is_mounted(self) -> bool:
        """True if datasets are too large to copy into every workspace: they are mounted
        read-only.
        """
        size = sum(path.stat().st_size for path in self._data.values())
        if size <= MAX_COPIED_BYTES:
            return False
        secrets = sorted(self.hidden.keys() & self._data.keys())
        if secrets:
            raise TasksetError(
                f"{self.name}: move {secrets[0]} out of its large data folder, which the agent can"
                " read."
            )
        return True

    @cached_property
    def visible(self) -> dict[str, bytes]:
        """Datasets as files of a workspace, without the answers; empty if they are mounted."""
        if self.is_mounted:
            return {}
        files = {}
        for name, path in self._data.items():
            if name not in self.hidden:
                files[name] = path.read_bytes()
        return files

    @property
    def mounts(self) -> dict[str, Path]:
        """Datasets as folders of a workspace."""
        return dict(self.folders) if self.is_mounted else {}


def _files_of(folders: Mapping[str, Path]) -> dict[str, Path]:
    """Return the files of some folders by their paths in a workspace; links are left out."""
    files = {}
    for top, folder in folders.items():
        for path in _files_below(folder):
            files[f"{top}/{path.relative_to(folder).as_posix()}"] = path
    return files


def _files_below(folder: Path) -> list[Path]:
    paths = sorted(folder.rglob("*"))
    return [path for path in paths if path.is_file() and not path.is_symlink()]


@dataclass(frozen=True)
class TaskFile:
    """A YAML file of a folder of tasks; the paths that it names must stay inside that folder."""

    root: Path
    path: Path
    table: Mapping[str, Any]

    def resolve(self, key: str, value: Any, base: str = "") -> Path:
        """Return the file or folder that a key names, relative to the root or to `base` in it."""
        if not isinstance(value, str) or not value or "\0" in value:
            raise TasksetError(f"{self.path}: {key} = {value!r} should be a path in {self.root}.")
        path = self.root / base / value
        self._check_inside(key, value, path)
        return path

    def walk(self, key: str, value: Any) -> list[Path]:
        """Return everything below a folder that a key names, sorted; links must stay inside as
        well.
        """
        top = self.resolve(key, value)
        paths = sorted(top.rglob("*"))  # follows no link to a folder
        for path in paths:
            if path.is_symlink():
                self._check_inside(key, f"{value}/{path.relative_to(top).as_posix()}", path)
        return paths

    def _check_inside(self, key: str, value: str, path: Path) -> None:
        try:
            is_inside = path.resolve().is_relative_to(self.root.resolve())
        except (OSError, RuntimeError):  # a loop of links
            is_inside = False
        if not is_inside:
            raise TasksetError(
                f"{self.path}: {key} = {value!r} leads out of {self.root}; name a path inside, and"
                " copy there what it needs."
            )


@cache
def _known() -> dict[str, Any]:
    return tomllib.loads(Path(__file__).with_name("known.toml").read_text(encoding="utf-8"))


def names(folder: str = "") -> list[str]:
    """Return the tasks of a MLGym checkout, or those that come with Uptrend."""
    return sorted(path.stem for path in (_root(folder) / "configs" / "tasks").glob("*.yaml"))


def _root(folder: str) -> Path:
    root = Path(folder).expanduser() if folder else SHIPPED_FOLDER
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
        root, TaskFile(root, path, {}).resolve("tasks.problems", f"{name}.yaml", "configs/tasks")
    )
    table = file.table
    extra = {**_known()["tasks"].get(name, {}), **(table.get("uptrend") or {})}
    notes: list[str] = []

    # The submission and the script that scores it.
    entrypoint = table.get("task_entrypoint", "CSVSubmissionTasks")
    kind = KIND_BY_ENTRYPOINT.get(entrypoint)
    if kind is None:
        entrypoints = ", ".join(KIND_BY_ENTRYPOINT)
        raise TasksetError(f"{path}: task_entrypoint {entrypoint} is none of {entrypoints}.")
    if not table.get("evaluation_paths"):
        raise TasksetError(f"{path}: it has no evaluation_paths.")
    evaluator = str(table["evaluation_paths"][0])

    # Datasets and the metric.
    folders, dataset_docs = _read_datasets(file, name, notes, is_generated="generator" in extra)
    description = str(table.get("description", "")).replace("{dataset_docs}", dataset_docs)
    baseline_scores: dict[str, float] = {}
    for key, value in (table.get("baseline_scores") or [{}])[0].items():
        baseline_scores[key.lower()] = float(value)
    metric = str(extra.get("metric") or next(iter(baseline_scores), "")).lower()
    metric_facts = {**_known()["metrics"].get(metric, {}), **extra}
    if metric_facts.get("direction") not in ("up", "down"):
        raise TasksetError(
            f"{path}: say whether more or less of {metric or 'its metric'!r} is better: add"
            f" `uptrend:` with `direction: up` or `down`{'' if metric else ' and `metric:`'}."
        )

    # Answers and other secret files, which leave the starter code.
    secret_files = table.get("secret_files") or ()
    answers = str(extra.get("answers") or next(iter(secret_files), ""))
    if kind == "csv" and not answers and "generator" not in extra:
        notes.append(
            f"{name} names no answers (`uptrend:` with `answers:`): all of its data is in the"
            " workspace, and validate only checks the format"
        )
    starter = _read_starter(file)
    secret_paths = {str(secret) for secret in (answers, *secret_files) if secret}
    hidden: dict[str, bytes] = {}
    for workspace_path, data_file in _files_of(folders).items():
        if workspace_path in secret_paths:
            hidden[workspace_path] = data_file.read_bytes()
    for workspace_path in secret_paths & starter.keys():
        hidden[workspace_path] = starter[workspace_path]
    if evaluator not in starter:
        raise TasksetError(f"{path}: its evaluator {evaluator} is not among starter_code.")
    if answers and folders and answers not in hidden:
        raise TasksetError(
            f"{path}: its answers {answers!r} are not there; write the path in the workspace, as"
            " data/…"
        )
    if kind == "csv" and answers in hidden and not extra.get("key"):
        raise TasksetError(
            f"{path}: say which column of {answers} names a row: add `key:` below `uptrend:`."
        )

    # Uptrend's own additions.
    generator = file.resolve("generator", extra["generator"]) if "generator" in extra else None
    players = file.resolve("players", extra["players"]) if "players" in extra else None
    if players:
        file.walk("players", extra["players"])  # checks links before anything is read
    return Problem(
        name=name,
        title=str(table.get("name", name)),
        kind=kind,
        submission=str(extra.get("submission") or DEFAULT_SUBMISSIONS[kind]),
        description=description.strip(),
        timeout=float(table.get("training_timeout") or DEFAULT_TIMEOUT_S),
        starter={path: data for path, data in starter.items() if path not in hidden},
        folders=folders,
        evaluator=evaluator,
        baseline=_baseline(table, kind, evaluator),
        baseline_score=baseline_scores.get(metric),
        metric=metric,
        sign=1 if metric_facts["direction"] == "up" else -1,
        par=metric_facts.get("par"),
        best=metric_facts.get("best"),
        answers=answers,
        hidden=hidden,
        key=str(extra.get("key", "")),
        generator=generator,
        generator_files=_read_generator_files(file, generator) if generator else {},
        players=players,
        notes=tuple(notes),
    )


def _read_datasets(
    file: TaskFile, name: str, notes: list[str], *, is_generated: bool
) -> tuple[dict[str, Path], str]:
    """Return the folder of the dataset by its name in the workspace, and the text on all datasets.

    Add a note for a dataset that is missing, unless a generator makes the data.
    """
    folders: dict[str, Path] = {}
    docs: list[str] = []
    for config in file.table.get("dataset_configs") or []:
        dataset_file = _read_yaml(file.root, file.resolve("dataset_configs", config, "configs"))
        dataset = dataset_file.table
        title = dataset.get("name", Path(config).stem).upper()
        docs.append(f"{title}:\n{dataset.get('description', '')}")
        data_path = dataset.get("data_path") if dataset.get("is_local", True) else None
        if data_path and dataset_file.resolve("data_path", data_path).is_dir():
            if folders:
                raise TasksetError(
                    f"{file.path}: several datasets would lie in one folder, data; join them."
                )
            dataset_file.walk("data_path", data_path)  # checks links before anything is read
            folders["data"] = file.root / data_path
        elif not is_generated:
            notes.append(f"{name}: its dataset {dataset.get('data_path')} is not on this machine")
    return folders, "\n\n".join(docs)


def _baseline(table: Mapping[str, Any], kind: str, evaluator: str) -> str:
    """Return the script that makes the first submission; empty for code, where the starter code is
    one.
    """
    scripts = [str(path) for path in table.get("baseline_paths") or () if str(path) != evaluator]
    return scripts[0] if scripts and kind != "code" else ""


def _read_yaml(root: Path, path: Path) -> TaskFile:
    import yaml

    if path.exists() and not path.is_file():  # reading a named pipe would never end
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


def _read_starter(file: TaskFile) -> dict[str, bytes]:
    """Return starter code as MLGym lays it out: each file or folder by its own name in the
    workspace.
    """
    table = file.table
    entries = [("starter_code", entry) for entry in table.get("starter_code") or ()]
    if table.get("sample_submission"):
        entries.append(("sample_submission", table["sample_submission"]))
    files: dict[str, bytes] = {}
    for key, entry in entries:
        top = file.resolve(key, entry)
        if top.is_dir():
            paths = [path for path in file.walk(key, entry) if path.is_file()]
        else:
            paths = [top]
        for path in paths:
            if not path.is_file():
                raise TasksetError(
                    f"{path} is missing: {table.get('id', 'the task')} names it as starter code."
                )
            data = path.read_bytes()
            if path.suffix == ".py":
                data = data.replace(MLGYM_WORKSPACE, b".")
            files[path.relative_to(top.parent).as_posix()] = data
    return files


def _read_generator_files(file: TaskFile, generator: Path) -> dict[str, bytes]:
    """Return the generator and the files beside it, which it may read."""
    if not generator.is_file():
        raise TasksetError(f"{generator} is missing: {file.path} names it as generator.")
    folder = generator.parent
    paths = _files_below(folder)
    if sum(path.stat().st_size for path in paths) > MAX_COPIED_BYTES:
        raise TasksetError(
            f"{folder} is copied for its generator and has more than {MAX_COPIED_BYTES >> 20}"
            f" megabytes; put {generator.name} into a folder with what it reads."
        )
    # The generator itself may be a link, which is not among the files.
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in [*paths, generator]}


# Examples: made by a generator in a sandbox of its own, or the problem's own files

EXAMPLE_PARTS = ("workspace", "validation", "test")
MAX_EXAMPLE_BYTES = 64 << 20  # of an example's files, as base64
MAX_ERROR_CHARACTERS = 300  # of a generator's last line
EXAMPLE_FILE = "made.json"  # in the workspace

# Runs in the sandbox, where the generator's folder is copied to `generator`. For Python 3.9 on,
# which an image may have.
MAKE_PROGRAM = r"""
import base64, json, runpy, sys
from pathlib import Path
script = sys.argv[1]
seed = int(sys.argv[2])
heldout = sys.argv[3] == "True"
example_file = Path(sys.argv[4]).resolve()  # the generator may change the folder
generator = runpy.run_path(str(Path("generator", script).resolve()))
parts = generator["make"](seed, heldout)
if not isinstance(parts, dict) or not {"workspace", "validation", "test"} <= parts.keys():
    sys.exit("make(seed, heldout) should return files for workspace, validation and test")
files = {}
for part in ("workspace", "validation", "test"):
    for path, data in parts[part].items():
        if not isinstance(path, str) or not isinstance(data, bytes):
            sys.exit(f"{part} should have bytes by path, and has {data!r:.60} by {path!r:.60}")
    files[part] = {path: base64.b64encode(data).decode() for path, data in parts[part].items()}
example_file.write_text(json.dumps(files))
"""


async def make_example(
    problem: Problem, sandbox: Sandbox, bounds: Bounds, seed: int, heldout: bool
) -> Example:
    """Make the example of a seed, in a sandbox that only the files of the example leave."""
    if problem.generator is None:
        return Example(problem.starter, problem.hidden, problem.hidden)
    files = {"make_example.py": MAKE_PROGRAM.encode()}
    for path, data in problem.generator_files.items():
        files[f"generator/{path}"] = data
    script = problem.generator.name
    words = ["python", "make_example.py", script, str(seed), str(heldout), EXAMPLE_FILE]
    async with await sandbox.open(files, bounds) as workspace:
        outcome = await workspace.run(shlex.join(words), seconds=problem.timeout)
        try:
            if outcome.code or outcome.stopped:
                raise ValueError(_last_line(outcome.output) or f"exit code {outcome.code}")
            content = await workspace.read(EXAMPLE_FILE, MAX_EXAMPLE_BYTES)
            parts = _read_parts(json.loads(content))
        except (FileProblem, ValueError, RecursionError) as error:
            bound = outcome.stopped
            reason = f"it reached its bound of {bound}" if bound else str(error)
            raise TasksetError(
                f"The generator {problem.generator} made no example of seed {seed}: {reason}."
            ) from None
    return Example({**problem.starter, **parts["workspace"]}, parts["validation"], parts["test"])


def _read_parts(example: Any) -> dict[str, Files]:
    """Return the files of each part; raise ValueError for anything else, since the generator may
    have written the file itself.
    """
    parts: dict[str, Files] = {}
    try:
        for part in EXAMPLE_PARTS:
            parts[part] = {path: base64.b64decode(text) for path, text in example[part].items()}
    except (TypeError, KeyError, AttributeError):
        raise ValueError("it should return files for workspace, validation and test") from None
    return parts


def _last_line(output: str) -> str:
    _, _, line = output.strip().rpartition("\n")
    return line[-MAX_ERROR_CHARACTERS:].removesuffix(".")
