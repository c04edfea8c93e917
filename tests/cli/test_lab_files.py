"""`uptrend lab init, new, list, report and import`, in this process and without torch."""

import subprocess
import sys
import webbrowser
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from journals import validated_kl
from uptrend.config import load_config, to_table
from uptrend.lab.notebook import Notebook
from uptrend.records import Run

ROOT = Path(__file__).parents[2]
JOURNALS = sorted((ROOT / "tests" / "data" / "journals").glob("00*.txt"))
TINY = ("--recipe", "recipes/tiny.toml")
Lab = Callable[..., Any]


@pytest.fixture
def lab(monkeypatch: pytest.MonkeyPatch, uptrend: Callable[..., Any]) -> Lab:
    """`lab("new", "h01")` runs `uptrend lab` at the root, as ready hypotheses name recipes of the
    repository.
    """
    monkeypatch.chdir(ROOT)
    return lambda *words, **options: uptrend("lab", *words, **options)


@pytest.fixture
def folder(lab: Lab, tmp_path: Path) -> Path:
    lab("init", tmp_path / "debug", "--problem", "Reward is flat.")
    return tmp_path / "debug"


def test_init_and_new_by_hand(lab: Lab, folder: Path, tmp_path: Path) -> None:
    assert "Reward is flat." in (folder / "00-problem-statement.md").read_text()
    assert f"{folder} is a lab already" in lab("init", folder, code=2).err
    assert f"uptrend lab init {tmp_path}" in lab("list", "--dir", tmp_path, code=2).err
    out = lab("new", "--dir", folder, *TINY, "--title", "Groups are too small").out
    assert "hypotheses/h01-groups-are-too-small.md" in out
    assert (
        folder / Notebook(folder).hypothesis("h01").recipe
    ).resolve() == ROOT / "recipes" / "tiny.toml"


def test_new_from_the_catalogue(lab: Lab, folder: Path) -> None:
    lab("new", "optimizer.lr-small", "data.memorized", "--dir", folder, *TINY)
    first, second = Notebook(folder).hypotheses
    assert [(h.id, h.cause) for h in (first, second)] == [
        ("h01", "optimizer.lr-small"),
        ("h02", "data.memorized"),
    ]
    assert [arm.overrides["learning.lr"] for arm in first.treated] == pytest.approx(
        [2.5e-3, 2.5e-2]
    )
    assert second.treated[0].overrides == {"tasks.train": 2800}


def test_new_from_the_ready_ones(lab: Lab, folder: Path) -> None:
    assert "A probe decides it" in lab("new", "h03", "h02", "h01", "h03", "--dir", folder).out
    found = {h.id: h for h in Notebook(folder).hypotheses}
    assert list(found) == ["h01", "h02", "h03", "h04"]  # the second h03 gets the next number
    assert (found["h03"].prerequisites, found["h04"].prerequisites) == (
        (),
        ("h01",),
    )  # h01 was not there yet


def test_new_from_a_finding(lab: Lab, folder: Path, make_run: Callable[..., Path]) -> None:
    path = make_run("flat", steps=40, lift=0.0, overrides=("learning.lr=3e-4", "sampling.size=4"))
    for _ in range(2):
        lab("new", "--dir", folder, "--from", f"{path}#sampling.entropy-collapse")
    h = Notebook(folder).hypothesis("h01")
    assert (h.cause, h.metric, h.priority) == ("sampling.entropy-collapse", "eval/pass@8", "high")
    assert h.recipe == "recipes/flat.toml" == Notebook(folder).hypothesis("h02").recipe
    table = to_table(load_config(folder / h.recipe))
    assert {**table, "compute": None} == {
        **to_table(load_config(Run(path).config)),
        "compute": None,
    }
    (folder / h.recipe).write_text("changed")  # another recipe of this name is left alone
    lab("new", "--dir", folder, "--from", f"{path}#sampling.entropy-collapse")
    assert Notebook(folder).hypothesis("h03").recipe == "recipes/flat-2.toml"
    error = lab("new", "--dir", folder, "--from", f"{path}#kl.strangles", code=2).err
    assert "The doctor finds no kl.strangles in" in error
    log = f"{path / 'metrics.jsonl'}#sampling.entropy-collapse"
    assert "name a recipe with --recipe" in lab("new", "--dir", folder, "--from", log, code=2).err
    lab("new", "--dir", folder, "--from", log, *TINY)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--from", "runs/x"], "for example runs/quickstart#kl.strangles"),
        (["h01", "--from", "runs/x#a"], "leave one of them out"),
        (["kl.strangle"], "There is no kl.strangle in the catalogue. Did you mean kl.strangles?"),
        (["zzzz"], "There is no zzzz in the catalogue. Their ids: uptrend explain"),
        (["kl.strangles", "--recipe", "none.toml"], "There is no recipe at none.toml"),
        (["kl.strangles", *TINY], "the arms control and no penalty don't differ on"),
        (["h77"], "There is no ready hypothesis h77; there are h01, h02"),
        ([], "--recipe"),
    ],
)
def test_what_new_refuses(lab: Lab, folder: Path, arguments: list[str], message: str) -> None:
    assert message in lab("new", *arguments, "--dir", folder, code=2).err
    assert Notebook(folder).hypotheses == []


def test_list(lab: Lab, folder: Path) -> None:
    assert "There are no hypotheses" in lab("list", "--dir", folder).out
    lab("new", "h01", "h02", "--dir", folder)
    (folder / "hypotheses" / "h09-half.md").write_text("+++\n")
    assert "can't be read: hypotheses/h09-half.md" in lab("list", "--dir", folder).out
    listed = lab("list", "--dir", folder, "--format", "json").json
    assert [h["id"] for h in listed["hypotheses"]] == ["h01", "h02"]
    first = listed["hypotheses"][0]
    assert first["arms"]["scaled"] == {"control": True, "overrides": {"learning.scale": "group"}}
    assert (first["status"], first["confidence"], first["seeds"]) == (
        "pending",
        None,
        [0, 1, 2, 3, 4],
    )
    assert Path(first["path"]).is_file()
    assert len(listed["broken"]) == 1
    ready = lab("list", "--ready", "-f", "json").json
    assert [h["id"] for h in ready["ready"]] == [f"h0{n}" for n in range(1, 10)]
    shown = lab("list", "--ready").out
    assert all(cause["id"] in shown and cause["arms"][0] == "control" for cause in ready["causes"])


def test_import(lab: Lab, tmp_path: Path) -> None:
    into = tmp_path / "journal"
    assert (
        "8 hypotheses, 18 log entries; 0 were there already"
        in lab("import", *JOURNALS, "--into", into).out
    )
    found = lab("import", *JOURNALS, "--into", into, "--format", "json").json
    assert found["new"] == {"hypotheses": 0, "entries": 0}
    assert (found["already"], found["written"]) == (26, [])
    assert [file["experiments"] for file in found["files"]] == [7, 0, 0, 7, 4]
    assert [file["hypotheses"] for file in found["files"]] == [0, 0, 4, 4, 0]
    assert found["files"][3]["runs"] == 6
    assert found["files"][1]["prose"] == [[1, 25]]
    run = next(one for one in found["experiments"] if one["runs"] == ["qk7wm2xa"])
    line = next(
        n
        for n, text in enumerate(JOURNALS[3].read_text().splitlines(), 1)
        if "Reward: 0.8125" in text
    )
    assert run["figures"][0] == {"name": "reward", "value": 0.8125, "line": line}
    h02 = next(one for one in found["hypotheses"] if one["named"] == "h02")
    assert (h02["reported"], h02["confidence"], h02["priority"]) == (
        "partially validated",
        "high",
        "medium",
    )
    assert "There is no file none.md" in lab("import", "none.md", "--into", into, code=2).err


def test_report(lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = validated_kl(tmp_path / "lab")[0].folder
    page, other, opened = folder / "report.html", tmp_path / "other", list[str]()
    lab("report", folder, "--html")
    lab("report", folder, "--html", "--out", other)
    assert other.read_text() == page.read_text()
    assert page.read_text().startswith("<!doctype html>")
    monkeypatch.setattr(webbrowser, "open", opened.append)
    lab("report", folder, "--open")
    assert opened == [page.resolve().as_uri()]
    said = lab("report", folder).out
    assert "H01 VALIDATED" in said
    lab("report", folder, "--format", "markdown", "--out", other)
    assert other.read_text() == said
    table = lab("report", folder, "--format", "json").json
    assert (table["schema"], table["hypotheses"][0]["verdict"]["status"]) == (1, "validated")
    assert "ask for two things" in lab("report", folder, "--html", "--format", "json", code=2).err
    assert "is not a lab" in lab("report", tmp_path / "nowhere", "--html", code=2).err


def test_none_of_it_loads_torch(tmp_path: Path) -> None:
    code = """
import sys
from uptrend.cli.main import app
for words in (["init", "d"], ["new", "kl.runaway", "--dir", "d", "--recipe", RECIPE], ["list", "--dir", "d"],
              ["list", "--ready"], ["import", "j.md", "--into", "d"], ["report", "d"]):
    sys.argv = ["uptrend", "lab", *words]
    app(standalone_mode=False)
heavy = {"torch", "transformers", "scipy.stats", "ray"} & sys.modules.keys()
assert not heavy, heavy
"""
    (tmp_path / "j.md").write_text("# J\n")
    script = f"RECIPE = {str(ROOT / 'recipes' / 'tiny.toml')!r}\n{code}"
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
