"""The rules of the house: what loads torch, what is public, which packages there are and how files are named.

Which package may import which is import-linter's, in pyproject.toml.
"""

import ast
import json
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from importlib.metadata import packages_distributions, requires
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import uptrend
from uptrend.records import Run

SOURCE = Path(uptrend.__file__).parent
PACKAGES = sorted(path.parent.name for path in SOURCE.glob("*/__init__.py"))
NO_TORCH = (
    "uptrend.stats.comparison, uptrend.stats.trend, uptrend.stats.drawing, uptrend.tasks.registry, "
    "uptrend.training.observer"
)
HEAVY = ("torch", "transformers", "peft", "accelerate")
LIGHT = [
    ["--help"],
    ["tasks", "list"],
    ["tasks", "show", "arithmetic"],
    ["tasks", "validate", "binary"],
    ["doctor", "demo", "--no-save"],
    ["runs", "list"],
    ["runs", "show", "demo"],
    ["runs", "compare", "demo", "demo"],
    ["plot", "demo", "--out", "demo.svg"],
    ["models", "list"],
    ["lab", "list", "--ready"],
]

CALL = """
from uptrend.cli.main import main
try:
    main()
except SystemExit as end:
    assert not end.code, end.code
"""


def loaded_after(code: str, folder: Path) -> set[str]:
    """The packages that a fresh process has loaded after running some code."""
    report = "\nimport json, sys\nprint('\\n' + json.dumps(sorted({m.partition('.')[0] for m in sys.modules})))"
    done = subprocess.run([sys.executable, "-c", code + report], cwd=folder, capture_output=True, text=True, check=True)
    return set(json.loads(done.stdout.splitlines()[-1]))


@pytest.mark.parametrize("modules", ["uptrend", "uptrend.records, uptrend.config", NO_TORCH])
def test_what_is_imported_loads_no_torch(modules: str, tmp_path: Path) -> None:
    loaded = loaded_after(f"import {modules}\nassert callable(uptrend.train)", tmp_path)
    assert "uptrend" in loaded
    assert loaded.isdisjoint((*HEAVY, "pandas", "polars") if modules != NO_TORCH else HEAVY)


@pytest.mark.parametrize("arguments", LIGHT, ids=" ".join)
def test_commands_that_only_look_load_no_torch(arguments: list[str], make_run: Callable[..., Path]) -> None:
    folder = make_run("demo", steps=2).parents[1]
    code = f"import sys\nsys.argv = ['uptrend', *{arguments}]\n" + CALL
    assert loaded_after(code, folder).isdisjoint(HEAVY)


def core_packages() -> set[str]:
    """The distributions that `pip install uptrend` brings, without any extra."""
    found, waiting = set[str](), ["uptrend"]
    while waiting:
        name = canonicalize_name(waiting.pop())
        if name not in found:
            found.add(name)
            needed = [Requirement(line) for line in requires(name) or ()]
            waiting += [r.name for r in needed if r.marker is None or r.marker.evaluate({"extra": ""})]
    return found


@pytest.mark.parametrize("arguments", [["--help"], ["tasks", "list"], ["runs", "list"]], ids=" ".join)
def test_commands_that_only_look_need_no_extra(arguments: list[str], tmp_path: Path) -> None:
    code = f"import sys\nsys.argv = ['uptrend', *{arguments}]\n" + CALL
    core, known = core_packages(), packages_distributions()
    # pyarrow loads what it finds of its own accord: that is not ours.
    at_start = loaded_after("import filelock, numpy, pyarrow, rich, typer", tmp_path)
    loaded = [name for name in loaded_after(code, tmp_path) - at_start if name in known]
    assert "uptrend" in loaded
    assert [name for name in loaded if core.isdisjoint(map(canonicalize_name, known[name]))] == []


def test_the_public_surface() -> None:
    names = {
        "Observer", "Report", "Reward", "Run", "Task", "Taskset", "diagnose", "evaluate", "load_config", "replay",
        "resume", "train",
    }  # fmt: skip
    assert set(uptrend.__all__) == names | {"__version__"}
    assert {name for name in vars(uptrend) if not name.startswith("_")} - set(PACKAGES) == names
    assert uptrend.Run is Run
    assert uptrend.load_config({"seed": 3}).seed == 3


def test_train_returns_its_run(tmp_path: Path) -> None:
    recipe = {
        "name": "called", "model": {"name": "tiny"}, "tasks": {"train": 8}, "eval": {"tasks": 4},
        "sampling": {"groups": 2, "size": 2, "max_tokens": 4}, "learning": {"steps": 1},
    }  # fmt: skip
    run = uptrend.train(recipe, runs=tmp_path, name="one")
    assert isinstance(run, Run)
    assert (run.path, run.status, run.last_step) == (tmp_path / "one", "finished", 1)


def test_a_class_name_is_defined_once_and_every_module_says_what_it_is() -> None:
    trees = {path: ast.parse(path.read_text(encoding="utf-8")) for path in SOURCE.rglob("*.py")}
    nodes = (node for tree in trees.values() for node in ast.walk(tree))
    names = Counter(node.name for node in nodes if isinstance(node, ast.ClassDef))
    assert not {name: count for name, count in names.items() if count > 1}
    assert not [path for path, tree in trees.items() if not ast.get_docstring(tree)]
    files = [*trees, *Path(__file__).parent.rglob("*.py")]
    assert not [path for path in files if path.stem in ("utils", "util", "common", "helpers", "misc")]
