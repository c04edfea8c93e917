"""How a taskset is found by what a recipe calls it."""

import sys

import pytest

from uptrend.records import TasksetError
from uptrend.tasks.arithmetic import Arithmetic
from uptrend.tasks.registry import BUILT_IN, find, names
from uptrend.tasks.taskset import Taskset


def test_built_in_tasksets_have_their_names():
    assert list(BUILT_IN) == ["arithmetic", "counting", "comparison", "binary", "mixed", "jsonl", "musique"]
    assert all(cls.name == name for name, cls in BUILT_IN.items())
    assert find("arithmetic") is Arithmetic


def test_every_taskset_has_a_line():
    lines = names()
    assert lines["binary"] == "Numbers in base two: `Convert 5 to binary: `."
    assert all(line and "\n" not in line for line in lines.values())


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("arithmatic", "There is no taskset 'arithmatic'. Did you mean arithmetic?"),
        (
            "zzz",
            "There is no taskset 'zzz'. There are arithmetic, counting, comparison, binary, mixed, jsonl",
        ),
        ("no_such_module:Class", "can't be loaded: No module named 'no_such_module'"),
        ("json:Nothing", "can't be loaded"),
        ("json:", "can't be loaded"),
        ("json:JSONDecoder", "json:JSONDecoder is not a taskset: it lacks name, version, Options"),
    ],
)
def test_what_is_not_found_is_explained(name, said):
    with pytest.raises(TasksetError) as error:
        find(name)
    assert said in str(error.value)


def test_module_and_class(tmp_path, monkeypatch):
    assert find("uptrend.tasks.arithmetic:Arithmetic") is Arithmetic
    (tmp_path / "beside_the_recipe.py").write_text(
        "from uptrend.tasks.arithmetic import Arithmetic\nclass Mine(Arithmetic):\n    name = 'mine'\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    assert find("beside_the_recipe:Mine").name == "mine"


def test_entry_points_of_other_packages(tmp_path, monkeypatch):
    (tmp_path / "other_package.py").write_text(
        "from uptrend.tasks.arithmetic import Binary\nclass Bits(Binary):\n    'Bits.'\n    name = 'bits'\n"
    )
    info = tmp_path / "other_package-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: other-package\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        "[uptrend.tasksets]\nbits = other_package:Bits\nbroken = other_package:Gone\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    assert find("bits").name == "bits"
    assert isinstance(find("bits")(find("bits").Options(), 0), Taskset)
    lines = names()
    assert lines["bits"] == "Bits."
    assert "can't be loaded" in lines["broken"]
    with pytest.raises(TasksetError, match="Did you mean bits"):
        find("bitz")
