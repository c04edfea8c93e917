"""The lab that `make lab-demo` runs: its hypotheses are read, their arms are valid recipes, and it
has a page.
"""

import subprocess
import sys
import tomllib
from pathlib import Path
from shutil import copytree

import pytest

from uptrend.config import load_config

LAB = Path(__file__).parents[2] / "examples" / "lab-demo"
HYPOTHESES = sorted((LAB / "hypotheses").glob("*.md"))


@pytest.mark.parametrize("page", HYPOTHESES, ids=lambda page: page.stem)
def test_every_arm_is_a_recipe(page: Path) -> None:
    hypothesis = tomllib.loads(page.read_text().split("+++")[1])
    for overrides in hypothesis["arms"].values():
        values = {key: value for key, value in overrides.items() if key != "control"}
        load_config(LAB / hypothesis["recipe"], values)


@pytest.mark.slow
def test_the_lab_is_listed_and_has_a_page(tmp_path: Path) -> None:
    folder = tmp_path / "lab"
    copytree(LAB, folder)

    def run(*words: str) -> str:
        command = [sys.executable, "-m", "uptrend", "lab", *words]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    listed = run("list", "--dir", str(folder))
    assert listed.count("pending") == len(HYPOTHESES) == 9
    run("report", str(folder), "--html")
    assert "KL penalty" in (folder / "report.html").read_text()
