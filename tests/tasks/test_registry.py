"""Tasksets are found by name, by module and class, and by entry points of other packages."""

import sys

import pytest

from uptrend.records import TasksetError
from uptrend.tasks.registry import BUILT_IN, find, names
from uptrend.tasksets.arithmetic import Arithmetic


def test_built_in_tasksets_have_names_and_lines():
    assert all(find(name).name == name for name in BUILT_IN)
    assert all(line and "\n" not in line for line in names().values())


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("arithmatic", "Did you mean arithmetic?"),
        ("zzz", "There are arithmetic, counting"),
        ("no_such_module:Class", "No module named 'no_such_module'"),
        ("json:Nothing", "can't be loaded"),
        ("json:", "can't be loaded"),
        ("json:JSONDecoder", "it lacks name, version, Options"),
    ],
)
def test_a_name_that_is_not_found_is_explained(name, said):
    with pytest.raises(TasksetError) as error:
        find(name)
    assert said in str(error.value)


def test_module_and_class(tmp_path, monkeypatch):
    assert find("uptrend.tasksets.arithmetic:Arithmetic") is Arithmetic
    (tmp_path / "beside_the_recipe.py").write_text(
        "from uptrend.tasksets.arithmetic import Binary as Mine"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    assert find("beside_the_recipe:Mine").name == "binary"


def test_entry_points_of_other_packages(tmp_path, monkeypatch):
    code = "from uptrend.tasksets.arithmetic import Binary\nclass Bits(Binary):\n    'Bits.'\n    name = 'bits'\n"
    (tmp_path / "other_package.py").write_text(code)
    info = tmp_path / "other_package-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: other-package\nVersion: 1.0\n")
    points = "[uptrend.tasksets]\nbits = other_package:Bits\nbroken = other_package:Gone\n"
    (info / "entry_points.txt").write_text(points)
    monkeypatch.syspath_prepend(str(tmp_path))
    assert find("bits").name == "bits"
    assert names()["bits"] == "Bits."
    assert "can't be loaded" in names()["broken"]
    with pytest.raises(TasksetError, match="Did you mean bits"):
        find("bitz")
