"""Install hints: a missing package is named with a command that works for the Uptrend that runs."""

import json
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SERVE_WITHOUT_PLOTLY = """
import sys
sys.modules["plotly"] = None
from uptrend.cli.main import main
main(["serve", "."])
"""


def hint(packages: Path, folder: Path) -> list[str]:
    """Serve without plotly, by the Uptrend of a folder of packages; return the words of the
    hint.
    """
    environment = {**os.environ, "PYTHONPATH": str(packages)}
    command = [sys.executable, "-P", "-c", SERVE_WITHOUT_PLOTLY]
    done = subprocess.run(
        command, cwd=folder, env=environment, text=True, capture_output=True, check=False
    )
    assert done.returncode == 2, done.stderr
    start = "error: plotly is not installed. Install it with: "
    assert done.stderr.startswith(start)
    return shlex.split(done.stderr.removeprefix(start))


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of packages with Uptrend in it, as pip leaves it."""
    folder = tmp_path_factory.mktemp("site-packages")
    unwanted = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "src" / "uptrend", folder / "uptrend", ignore=unwanted)
    about = folder / "uptrend-0.2.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.4\nName: uptrend\nVersion: 0.2.0\n")
    return folder


@pytest.mark.slow
def test_a_checkout_names_itself(tmp_path: Path) -> None:
    assert hint(ROOT / "src", tmp_path) == ["pip", "install", "-e", f"{ROOT}[dashboard]"]


@pytest.mark.slow
def test_an_installed_package_names_what_it_was_installed_from(
    packages: Path, tmp_path: Path
) -> None:
    assert hint(packages, tmp_path) == ["pip", "install", "uptrend[dashboard]"]

    source = packages / "uptrend-0.2.0.dist-info" / "direct_url.json"
    checkout = tmp_path / "my checkout"
    source.write_text(json.dumps({"url": checkout.as_uri(), "dir_info": {}}))
    assert hint(packages, tmp_path) == ["pip", "install", "uptrend[dashboard]"], (
        "the checkout is gone"
    )
    checkout.mkdir()
    assert hint(packages, tmp_path) == ["pip", "install", f"{checkout}[dashboard]"]

    source.write_text(json.dumps({"url": (tmp_path / "uptrend.whl").as_uri(), "archive_info": {}}))
    assert hint(packages, tmp_path) == ["pip", "install", "uptrend[dashboard]"]
