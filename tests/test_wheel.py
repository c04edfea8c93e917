"""The wheel, installed alone into an empty environment: everything is in it, and it runs without
the repository.
"""

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PIP = [sys.executable, "-m", "pip", "--disable-pip-version-check"]


def call(*command: object, folder: Path, code: int = 0) -> str:
    """Run a command as a user would who has no checkout; return all that it said."""
    env = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    done = subprocess.run(
        [str(part) for part in command],
        cwd=folder, env=env, text=True, check=False, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    assert done.returncode == code, done.stdout
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel as `python -m build` makes it: from the source distribution, out of a clean
    copy.
    """
    source = tmp_path_factory.mktemp("source") / "copy"
    unwanted = shutil.ignore_patterns("__pycache__", "*.egg-info")
    shutil.copytree(ROOT / "src", source / "src", ignore=unwanted)
    for name in ("pyproject.toml", "MANIFEST.in", "README.md", "CHANGELOG.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    said = call(sys.executable, "-m", "build", source, folder=source)
    warnings = [
        line
        for line in said.splitlines()
        if "warning" in line.lower() and "byte-compiling" not in line
    ]
    assert not warnings
    (made,) = (source / "dist").glob("*.whl")
    return made


@pytest.mark.slow
def test_the_wheel_holds_every_file_of_the_package(wheel: Path) -> None:
    files = {
        path.relative_to(ROOT / "src").as_posix()
        for path in (ROOT / "src" / "uptrend").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    with zipfile.ZipFile(wheel) as archive:
        held = {name for name in archive.namelist() if ".dist-info/" not in name}
        licenses = [name for name in archive.namelist() if name.endswith("licenses/LICENSE")]
    assert held == files
    assert licenses


@pytest.mark.slow
def test_the_wheel_works_without_torch_and_without_the_repository(
    wheel: Path, tmp_path: Path
) -> None:
    folder, python = tmp_path / "elsewhere", tmp_path / "env" / "bin" / "python"
    folder.mkdir()
    call(sys.executable, "-m", "venv", "--without-pip", tmp_path / "env", folder=folder)
    exact = ("-c", ROOT / "constraints.txt")
    call(
        *PIP, "--python", python, "install", "--quiet", "--no-compile", *exact, wheel, folder=folder
    )
    uptrend = python.with_name("uptrend")
    log = next((ROOT / "tests" / "data" / "formats" / "trl-bars" / "raw").iterdir())
    (folder / "recipe.toml").write_text('[model]\nname = "tiny"\n', encoding="utf-8")

    assert "uptrend train" in call(uptrend, "--help", folder=folder)
    assert "arithmetic" in call(uptrend, "tasks", "list", folder=folder)
    assert "gold answers reach the maximum" in call(
        uptrend, "tasks", "validate", "arithmetic", folder=folder
    )
    assert "TRL, 20 points, after step 100 LEARNING " in " ".join(
        call(uptrend, "doctor", log, folder=folder).split()
    )
    said = call(uptrend, "train", "recipe.toml", folder=folder, code=2)
    assert said == "error: torch is not installed. Install it with: pip install 'uptrend[train]'\n"
    call(
        python,
        "-c",
        "import importlib.util as u; assert u.find_spec('torch') is None",
        folder=folder,
    )
