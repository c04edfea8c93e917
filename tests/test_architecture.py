"""Rules of the package: what loads torch or an extra, what is public, and how files and classes are
named.

Which package may import which is import-linter's, in pyproject.toml.
"""

import ast
import json
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

import uptrend
from uptrend.records import Run

SOURCE = Path(uptrend.__file__).parent
# What only the extras bring; pandas is not here, since pyarrow loads it of its own accord.
EXTRAS = {
    "accelerate", "bitsandbytes", "bm25s", "datasets", "gguf", "peft", "polars", "ray", "safetensors",
    "sentence_transformers", "statsmodels", "tokenizers", "torch", "transformers", "trl",
}  # fmt: skip
LIGHT = [
    "--help", "tasks list", "tasks show arithmetic", "tasks validate binary", "doctor demo --no-save", "runs list",
    "runs show demo", "runs compare demo demo", "plot demo --out demo.svg", "models list", "lab list --ready",
    "track demo --to tensorboard", "rollouts write demo --to readable",
    "explain optimizer.lr-large",
]  # fmt: skip
CALL = """
from uptrend.cli.main import main
try:
    main()
except SystemExit as end:
    assert not end.code, end.code
"""


def loaded_after(code: str, folder: Path) -> set[str]:
    """Return the packages that a fresh process has loaded after running some code."""
    report = "\nimport json, sys\nprint('\\n' + json.dumps(sorted({m.partition('.')[0] for m in sys.modules})))"
    done = subprocess.run(
        [sys.executable, "-c", code + report],
        cwd=folder,
        capture_output=True,
        text=True,
        check=True,
    )
    return set(json.loads(done.stdout.splitlines()[-1]))


def test_what_only_reads_loads_no_torch(tmp_path: Path) -> None:
    packages = "records, config, stats.comparison, stats.trend, present.drawing, tasks.registry, training.observer"
    modules = ", uptrend.".join(["uptrend", *packages.split(", ")])
    loaded = loaded_after(f"import {modules}\nassert callable(uptrend.train)", tmp_path)
    assert "uptrend" in loaded
    assert not loaded & {*EXTRAS, "pandas", "matplotlib", "jinja2"}


@pytest.mark.parametrize("arguments", LIGHT)
def test_commands_that_only_look_need_no_extra(
    arguments: str, make_run: Callable[..., Path]
) -> None:
    folder = make_run("demo", steps=2).parents[1]
    code = f"import sys\nsys.argv = ['uptrend', *{arguments.split()}]\n" + CALL
    assert not loaded_after(code, folder) & EXTRAS


@pytest.mark.parametrize(
    ("code", "others"),
    [
        ("import uptrend; uptrend.diagnose('runs/demo')", "uptrend.bridge.importers"),
        ("import uptrend.cli.train", "uptrend.lab"),
    ],
    ids=["own runs without importers", "training without the lab"],
)
def test_what_is_not_needed_is_not_loaded(
    code: str, others: str, make_run: Callable[..., Path]
) -> None:
    folder = make_run("demo", steps=2).parents[1]
    loaded_after(
        f"{code}\nimport sys\nassert not [m for m in sys.modules if m.startswith('{others}')]",
        folder,
    )


def test_the_public_surface() -> None:
    names = {
        "Observer", "Report", "Reward", "Run", "Task", "Taskset", "diagnose", "evaluate", "load_config", "remote",
        "replay", "resume", "train",
    }  # fmt: skip
    packages = {path.parent.name for path in SOURCE.glob("*/__init__.py")}
    assert set(uptrend.__all__) == names | {"__version__"}
    assert {name for name in vars(uptrend) if not name.startswith("_")} - packages == names
    assert uptrend.Run is Run
    assert uptrend.load_config({"seed": 3}).seed == 3


def test_train_returns_its_run(tmp_path: Path) -> None:
    recipe = {
        "name": "called", "model": {"name": "tiny"}, "tasks": {"train": 8}, "eval": {"tasks": 4},
        "sampling": {"groups": 2, "size": 2, "max_tokens": 4}, "learning": {"steps": 1},
    }  # fmt: skip
    run = uptrend.train(recipe, runs=tmp_path, name="one", preflight=False)
    assert isinstance(run, Run)
    assert (run.path, run.status, run.last_step) == (tmp_path / "one", "finished", 1)


def test_a_class_name_is_defined_once_and_every_module_says_what_it_is() -> None:
    trees = {path: ast.parse(path.read_text(encoding="utf-8")) for path in SOURCE.rglob("*.py")}
    nodes = (node for tree in trees.values() for node in ast.walk(tree))
    names = Counter(node.name for node in nodes if isinstance(node, ast.ClassDef))
    assert not {name: count for name, count in names.items() if count > 1}
    assert not [path for path, tree in trees.items() if not ast.get_docstring(tree)]
    files = [*trees, *Path(__file__).parent.rglob("*.py")]
    assert not [
        path for path in files if path.stem in ("utils", "util", "common", "helpers", "misc")
    ]


def test_nothing_is_unpickled() -> None:
    """A run directory or a model may come from anybody, and opening a pickle runs its code."""
    loaders, found = ("torch.load", "np.load", "numpy.load", "joblib.load"), []
    for path in SOURCE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            modules = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            modules += [str(node.module)] if isinstance(node, ast.ImportFrom) else []
            names = {module.partition(".")[0] for module in modules}
            called = ast.unparse(node.func) if isinstance(node, ast.Call) else ""
            if (
                names & {"pickle", "cPickle", "dill", "cloudpickle", "joblib", "shelve", "marshal"}
                or called in loaders
            ):
                found.append(f"{path.relative_to(SOURCE)}:{node.lineno}")
    assert found == []
