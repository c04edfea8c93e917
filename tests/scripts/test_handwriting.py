"""The check that names and statements of src do not slide back."""

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "scripts" / "handwriting.py"
CLEAN = "reply = read()\nlengths = [len(word) for word in reply]\n"


def check(folder: Path, text: str) -> "subprocess.CompletedProcess[str]":
    """Run the check of a repository whose src holds one module."""
    (folder / "scripts").mkdir()
    (folder / "src").mkdir()
    (folder / "scripts" / SCRIPT.name).write_text(SCRIPT.read_text())
    (folder / "src" / "module.py").write_text(text)
    command = [sys.executable, "-P", str(folder / "scripts" / SCRIPT.name)]
    return subprocess.run(command, capture_output=True, text=True)


def test_clean_code_passes(tmp_path: Path) -> None:
    # One comprehension in many statements: the limit is a share.
    done = check(tmp_path, CLEAN + "total = 0\n" * 40)
    assert (done.returncode, done.stdout) == (0, "")


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("told = read()\n" * 3000, "vague names"),
        ("low, high = 0, 1\n" * 3, "tuple assignments"),
        ("rows = [1 for _ in range(3)]\n" * 3, "comprehensions"),
        ("rows = [1,  2]  # fmt: skip\n", "format skips"),
    ],
)
def test_what_slides_back_is_named_with_its_place(tmp_path: Path, text: str, kind: str) -> None:
    done = check(tmp_path, text)
    assert done.returncode == 1
    assert done.stdout.startswith(f"{kind}: ")
    assert "module.py:1" in done.stdout
