"""`uptrend tasks` on MLGym folders from elsewhere: code stays in the sandbox, paths in the
folder.
"""

# ruff: noqa: ARG005 (ways to break out share a signature)

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mlgym_folder import write_folder

Uptrend = Callable[..., Any]
# Makes an example, and on the way tries to leave a file on the host and to read one.
GENERATOR = """
from pathlib import Path
import os

def make(seed, heldout):
    try:
        Path({marker!r}).write_text("here")
    except OSError:
        pass
    rows = [f"{{n}},{{n % 2}}" for n in range(20)]
    answers = "\\n".join(["id,y", *rows]).encode()
    neighbor = Path(__file__).with_name("rows.txt").read_bytes()
    seen = os.path.exists({secret!r})
    return {{
        "workspace": {{"neighbor.txt": neighbor, "seed.txt": f"{{seed}} {{heldout}} {{seen}}".encode()}},
        "validation": {{"data/answers.csv": answers}},
        "test": {{"data/answers.csv": answers}},
    }}
"""


def with_generator(root: Path, source: str, **names: object) -> Path:
    """Write a folder whose task has a generator, a file beside it, and a player that looks at what
    it made.
    """
    write_folder(
        root, extra="  generator: data/toy/make.py\n  players: data/toy/players\n  par: 1.0\n"
    )
    (root / "data/toy/make.py").write_text(source.format(**names))
    (root / "data/toy/rows.txt").write_text("beside the generator")
    (root / "data/toy/players").mkdir()
    lines = "''.join(f'{n},{n%2}\\n' for n in range(20))"
    right = f"python -c \"open('submission.csv','w').write('id,y\\n'+{lines})\""
    expert = f"grep beside neighbor.txt\n%%\n{right}\n%%\nsubmit\n"
    (root / "data/toy/players/expert-right.txt").write_text(expert)
    (root / "data/toy/players/weak-baseline.txt").write_text("python baseline.py\n%%\nsubmit\n")
    return root


def options(root: Path, *more: str) -> list[str]:
    sets = [f"tasks.folder={root}", "tasks.train=2", "eval.tasks=1", *more]
    return [word for each in sets for word in ("--set", each)]


@pytest.mark.slow
@pytest.mark.needs_package("bubblewrap")
def test_a_generator_runs_in_the_sandbox(tmp_path: Path, uptrend: Uptrend) -> None:
    marker, secret = tmp_path / "written-on-the-host", tmp_path / "secret"
    secret.write_text("x")
    root = with_generator(tmp_path / "mlgym", GENERATOR, marker=str(marker), secret=str(secret))
    uptrend("tasks", "show", "mlgym", *options(root))
    report = uptrend("tasks", "validate", "mlgym", *options(root), "--json").json
    checks = {check["name"]: check for check in report["reports"][0]["checks"]}
    assert (
        checks["gold answers reach the maximum"]["figure"] == "3 of 3 do"
    )  # its examples are played
    assert not marker.exists()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("source", "sentence"),
    [
        ("raise SystemExit('no rows today')", "no rows today"),
        ("def make(seed, heldout):\n    return 1 / 0", "ZeroDivisionError: division by zero"),
        (
            "def make(seed, heldout):\n    return 3",
            "should return files for workspace, validation and test",
        ),
        (
            "def make(seed, heldout):\n    return dict(workspace={{}}, validation={{}})",
            "should return files for",
        ),
        (
            "def make(seed, heldout):\n    return dict(workspace={{'a': 1}}, validation={{}}, test={{}})",
            "bytes",
        ),
    ],
)
def test_a_generator_that_fails_is_named(
    source: str, sentence: str, tmp_path: Path, uptrend: Uptrend
) -> None:
    root = with_generator(tmp_path / "mlgym", source)
    said = uptrend(
        "tasks", "validate", "mlgym", *options(root, "tasks.sandbox=process"), code=1
    ).flat
    assert "data/toy/make.py" in said
    assert sentence in said


def change(root: Path, old: str, new: str, file: str = "tasks/toy.yaml") -> None:
    table = root / "configs" / file
    assert old in table.read_text()
    table.write_text(table.read_text().replace(old, new))


def link(place: Path, target: Path) -> None:
    if place.is_dir():
        os.rename(place, place.with_name(f"{place.name}-before"))
    else:
        place.unlink(missing_ok=True)
    place.symlink_to(target)


@pytest.mark.parametrize(
    ("break_out", "file", "key", "value"),
    [
        (
            lambda root, out: change(
                root, "data_path: data/toy/data", f"data_path: {out}", "datasets/toy.yaml"
            ),
            "configs/datasets/toy.yaml",
            "data_path",
            "{out}",
        ),
        (
            lambda root, out: change(
                root, "data_path: data/toy/data", "data_path: ../outside", "datasets/toy.yaml"
            ),
            "configs/datasets/toy.yaml",
            "data_path",
            "../outside",
        ),
        (
            lambda root, out: link(root / "data/toy/data", out),
            "configs/datasets/toy.yaml",
            "data_path",
            "data/toy/data",
        ),
        (
            lambda root, out: (root / "data/toy/data/more").symlink_to(out),
            "configs/datasets/toy.yaml",
            "data_path",
            "data/toy/data/more",
        ),
        (
            lambda root, out: change(root, "[datasets/toy.yaml]", f"['{out}/outside.yaml']"),
            "configs/tasks/toy.yaml",
            "dataset_configs",
            "{out}/outside.yaml",
        ),
        (
            lambda root, out: link(root / "configs/datasets/toy.yaml", out / "outside.yaml"),
            "configs/tasks/toy.yaml",
            "dataset_configs",
            "datasets/toy.yaml",
        ),
        (
            lambda root, out: change(
                root, "data/toy/baseline.py,", f"data/toy/baseline.py, {out}/secret.txt,"
            ),
            "configs/tasks/toy.yaml",
            "starter_code",
            "{out}/secret.txt",
        ),
        (
            lambda root, out: link(root / "data/toy/baseline.py", out / "secret.txt"),
            "configs/tasks/toy.yaml",
            "starter_code",
            "data/toy/baseline.py",
        ),
        (
            lambda root, out: (
                change(root, "data/toy/evaluate.py]", "data/toy/evaluate.py, data/toy/code]"),
                (root / "data/toy/code").mkdir(),
                (root / "data/toy/code/more").symlink_to(out / "secret.txt"),
            ),
            "configs/tasks/toy.yaml",
            "starter_code",
            "data/toy/code/more",
        ),
        (
            lambda root, out: change(
                root, "uptrend:", "sample_submission: ../outside/secret.txt\nuptrend:"
            ),
            "configs/tasks/toy.yaml",
            "sample_submission",
            "../outside/secret.txt",
        ),
        (
            lambda root, out: change(root, "uptrend:", f"uptrend:\n  generator: {out}/make.py"),
            "configs/tasks/toy.yaml",
            "generator",
            "{out}/make.py",
        ),
        (
            lambda root, out: change(root, "uptrend:", "uptrend:\n  players: ../outside"),
            "configs/tasks/toy.yaml",
            "players",
            "../outside",
        ),
        (
            lambda root, out: (
                change(root, "uptrend:", "uptrend:\n  players: data/toy"),
                (root / "data/toy/weak-x.txt").symlink_to(out / "secret.txt"),
            ),
            "configs/tasks/toy.yaml",
            "players",
            "data/toy/weak-x.txt",
        ),
        (
            lambda root, out: link(root / "configs/tasks/toy.yaml", out / "outside.yaml"),
            "configs/tasks/toy.yaml",
            "tasks.problems",
            "toy",
        ),
        (
            lambda root, out: change(root, "data/toy/baseline.py,", '"data/toy/\\0",'),
            "configs/tasks/toy.yaml",
            "starter_code",
            "data/toy",
        ),
        (
            lambda root, out: change(root, "data/toy/baseline.py,", "[3],"),
            "configs/tasks/toy.yaml",
            "starter_code",
            "[3]",
        ),
    ],
)
def test_paths_stay_inside_the_folder(
    break_out: Callable[[Path, Path], Any],
    file: str,
    key: str,
    value: str,
    tmp_path: Path,
    uptrend: Uptrend,
) -> None:
    root, outside = Path(write_folder(tmp_path / "mlgym")), tmp_path / "outside"
    outside.mkdir()
    (outside / "secret.txt").write_text("a secret of the host")
    (outside / "make.py").write_text("raise SystemExit('ran')")
    (outside / "outside.yaml").write_text(
        "name: a secret of the host\ndescription: a secret of the host\n"
    )
    break_out(root, outside)
    arguments = ("tasks", "show", "mlgym", *options(root, "tasks.sandbox=process"), "--json")
    said = uptrend(*arguments, code=2)
    assert "a secret of the host" not in said.out + said.err
    assert f"{root / file}: {key} = " in said.err
    assert value.format(out=outside) in said.err
    assert said.err.count("\n") == 1


def test_a_named_pipe_is_not_waited_for(tmp_path: Path, uptrend: Uptrend) -> None:
    root = Path(write_folder(tmp_path / "mlgym", extra="  players: data/toy\n"))
    os.mkfifo(root / "data/toy/weak-pipe.txt")
    arguments = ("tasks", "show", "mlgym", *options(root, "tasks.sandbox=process"))
    uptrend(*arguments)
    (root / "configs/datasets/toy.yaml").unlink()
    os.mkfifo(root / "configs/datasets/toy.yaml")
    assert "configs/datasets/toy.yaml is not a file" in uptrend(*arguments, code=2).err
