"""`uptrend lab init, new, list and import` as they are typed."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from uptrend.cli.main import main
from uptrend.config import load_config, to_table
from uptrend.lab.notebook import Notebook
from uptrend.lab.refuse import check
from uptrend.records import Run

ROOT = Path(__file__).parents[2]
JOURNALS = sorted((ROOT / "tests" / "data" / "journals").glob("00*.txt"))


@pytest.fixture(autouse=True)
def at_the_root(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ready hypotheses name recipes of the repository."""
    monkeypatch.chdir(ROOT)


@pytest.fixture
def lab(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> str:
    folder = str(tmp_path / "debug")
    assert run(capsys, "init", folder, "--problem", "Reward is flat.")[0] == 0
    return folder


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    """Run `uptrend lab`; give the exit code and what was said."""
    code = 0
    try:
        main(["lab", *arguments])
    except SystemExit as end:
        code = int(end.code or 0)
    said = capsys.readouterr()
    return code, said.out, said.err


def test_init_says_what_it_made_and_is_refused_twice(capsys: pytest.CaptureFixture[str], lab: str) -> None:
    assert "Reward is flat." in (Path(lab) / "00-problem-statement.md").read_text()
    code, _, error = run(capsys, "init", lab)
    assert code == 2
    assert error == f"error: {lab} is a lab already. Add to it with: uptrend lab new --dir {lab}\n"


def test_new_by_hand(capsys: pytest.CaptureFixture[str], lab: str) -> None:
    code, out, _ = run(capsys, "new", "--dir", lab, "--recipe", "recipes/tiny.toml", "--title", "Groups are too small")
    assert code == 0
    assert "hypotheses/h01-groups-are-too-small.md" in out
    assert f"uptrend lab run h01 --dir {lab}" in out
    h = Notebook(lab).hypothesis("h01")
    assert (Path(lab) / h.recipe).resolve() == ROOT / "recipes" / "tiny.toml"
    code, _, error = run(capsys, "new", "--dir", lab)
    assert code == 2
    assert "Name the recipe that the arms start from with --recipe" in error


def test_new_from_the_catalogue(capsys: pytest.CaptureFixture[str], lab: str) -> None:
    code, _, _ = run(
        capsys, "new", "optimizer.lr-small", "data.memorized", "--dir", lab, "--recipe", "recipes/tiny.toml"
    )
    assert code == 0
    notebook = Notebook(lab)
    assert [(h.id, h.cause) for h in notebook.hypotheses] == [("h01", "optimizer.lr-small"), ("h02", "data.memorized")]
    lrs = [arm.overrides["learning.lr"] for arm in notebook.hypothesis("h01").treated]
    assert lrs == pytest.approx([2.5e-3, 2.5e-2])
    assert notebook.hypothesis("h02").treated[0].overrides == {"tasks.train": 2800}
    for h in notebook.hypotheses:
        check(h, Path(lab))
    code, _, error = run(capsys, "new", "mask.tool-trained", "--dir", lab, "--recipe", "recipes/tiny.toml")
    assert code == 2
    assert "uptrend preflight recipes/tiny.toml --only masks" in error
    assert len(notebook.hypotheses) == 2


def test_new_from_the_ready_ones(capsys: pytest.CaptureFixture[str], lab: str) -> None:
    code, out, _ = run(capsys, "new", "h03", "h02", "h01", "h03", "--dir", lab)
    assert code == 0
    assert "A probe decides it" in out
    found = {h.id: h for h in Notebook(lab).hypotheses}
    assert list(found) == ["h01", "h02", "h03", "h04"]  # the second h03 gets the next number
    assert found["h04"].title == found["h03"].title
    assert found["h04"].prerequisites == ("h01",)
    assert found["h03"].prerequisites == ()  # h01 was not there yet
    code, _, error = run(capsys, "new", "h77", "--dir", lab)
    assert code == 2
    assert "There is no ready hypothesis h77" in error


def test_new_from_a_finding_uses_the_runs_own_config(
    capsys: pytest.CaptureFixture[str], lab: str, make_run: Callable[..., Path]
) -> None:
    path = make_run("flat", steps=40, lift=0.0, overrides=("learning.lr=3e-4", "sampling.size=4"))
    for _ in range(2):
        code, _, error = run(capsys, "new", "--dir", lab, "--from", f"{path}#sampling.entropy-collapse")
        assert (code, error) == (0, "")
    h = Notebook(lab).hypothesis("h01")
    assert (h.cause, h.metric, h.priority) == ("sampling.entropy-collapse", "eval/pass@8", "high")
    assert h.recipe == "recipes/flat.toml" == Notebook(lab).hypothesis("h02").recipe
    table = to_table(load_config(Path(lab) / h.recipe))
    assert {**table, "compute": None} == {**to_table(load_config(Run(path).config)), "compute": None}
    page = Notebook(lab).path_of("h01").read_text()
    assert "The doctor found it (" in page
    code, _, error = run(capsys, "new", "--dir", lab, "--from", f"{path}#kl.strangles")
    assert code == 2
    assert "The doctor finds no kl.strangles in" in error
    assert "sampling.entropy-collapse" in error


def test_a_finding_in_anothers_log_needs_a_recipe(
    capsys: pytest.CaptureFixture[str], lab: str, make_run: Callable[..., Path]
) -> None:
    log = make_run("flat", steps=40, lift=0.0) / "metrics.jsonl"
    finding = f"{log}#sampling.entropy-collapse"
    code, _, error = run(capsys, "new", "--dir", lab, "--from", finding)
    assert code == 2
    assert "has no config of Uptrend's: name a recipe with --recipe" in error
    assert run(capsys, "new", "--dir", lab, "--from", finding, "--recipe", "recipes/tiny.toml")[0] == 0


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (
            ["--from", "runs/x"],
            "--from runs/x: write a run and a finding of it, for example runs/quickstart#kl.strangles",
        ),
        (["h01", "--from", "runs/x#a"], "--from names what to start from, and so does h01: leave one of them out"),
        (["kl.strangle"], "There is no kl.strangle in the catalogue. Did you mean kl.strangles?"),
        (["kl.strangles", "--recipe", "none.toml"], "There is no recipe at none.toml"),
        (["kl.strangles", "--recipe", "recipes/tiny.toml"], "the arms control and beta 0 don't differ on"),
    ],
)
def test_what_new_refuses(capsys: pytest.CaptureFixture[str], lab: str, arguments: list[str], said: str) -> None:
    code, _, error = run(capsys, "new", *arguments, "--dir", lab)
    assert code == 2
    assert said in error
    assert Notebook(lab).hypotheses == []


def test_a_folder_that_is_no_lab(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    for arguments in (["new", "h01"], ["list"]):
        code, _, error = run(capsys, *arguments, "--dir", str(tmp_path))
        assert code == 2
        assert f"{tmp_path} is not a lab. Make one with: uptrend lab init {tmp_path}" in error


def test_list(capsys: pytest.CaptureFixture[str], lab: str) -> None:
    assert "There are no hypotheses" in run(capsys, "list", "--dir", lab)[1]
    run(capsys, "new", "h01", "h02", "--dir", lab)
    (Path(lab) / "hypotheses" / "h09-half.md").write_text("+++\n")
    code, out, _ = run(capsys, "list", "--dir", lab)
    assert code == 0
    assert "scaled, unscaled" in out
    assert "a probe decides" in out
    assert "can't be read: hypotheses/h09-half.md" in out
    told = json.loads(run(capsys, "list", "--dir", lab, "--format", "json")[1])
    assert [h["id"] for h in told["hypotheses"]] == ["h01", "h02"]
    first = told["hypotheses"][0]
    assert first["arms"]["scaled"] == {"control": True, "overrides": {"learning.scale": "group"}}
    assert (first["status"], first["confidence"], first["seeds"]) == ("pending", None, [0, 1, 2, 3, 4])
    assert Path(first["path"]).is_file()
    assert len(told["broken"]) == 1


def test_list_ready(capsys: pytest.CaptureFixture[str]) -> None:
    out = run(capsys, "list", "--ready")[1]
    assert "h08" in out
    assert "kl.strangles" in out
    told = json.loads(run(capsys, "list", "--ready", "-f", "json")[1])
    assert [h["id"] for h in told["ready"]] == [f"h0{n}" for n in range(1, 9)]
    assert {
        "id": "kl.strangles",
        "claim": "At beta 0 the KL grows and the reward rises.",
        "arms": ["control", "beta 0"],
    } in (told["causes"])


def test_import_makes_the_lab_and_tells_what_it_found(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    into = str(tmp_path / "journal")
    code, out, _ = run(capsys, "import", *map(str, JOURNALS), "--into", into)
    assert code == 0
    assert "8 hypotheses, 18 log entries; 0 were there already" in out
    code, out, _ = run(capsys, "import", *map(str, JOURNALS), "--into", into, "--format", "json")
    told = json.loads(out)
    assert told["new"] == {"hypotheses": 0, "entries": 0}
    assert (told["already"], told["written"]) == (26, [])
    counts = {file["name"][:3]: file for file in told["files"]}
    assert [counts[name]["experiments"] for name in counts] == [7, 0, 0, 7, 4]
    assert [counts[name]["hypotheses"] for name in counts] == [0, 0, 4, 4, 0]
    assert (counts["003"]["runs"], counts["003"]["repaired"]) == (6, 6)
    assert counts["001"]["prose"] == [[1, 25]]
    run_told = next(one for one in told["experiments"] if one["runs"] == ["qk7wm2xa"])
    line = next(n for n, text in enumerate(JOURNALS[3].read_text().splitlines(), 1) if "Reward: 0.8125" in text)
    assert run_told["figures"][0] == {"name": "reward", "value": 0.8125, "line": line}
    h02 = next(one for one in told["hypotheses"] if one["named"] == "h02")
    assert (h02["reported"], h02["confidence"], h02["priority"]) == ("partially validated", "high", "medium")


def test_import_of_a_file_that_is_not_there(capsys: pytest.CaptureFixture[str], lab: str) -> None:
    code, _, error = run(capsys, "import", "none.md", "--into", lab)
    assert (code, error) == (2, "error: There is no file none.md.\n")


def test_none_of_it_loads_torch(tmp_path: Path) -> None:
    """In a fresh process: the lab's files are read and written without what trains."""
    code = """
import sys
from uptrend.cli.main import app
for words in (["init", "d"], ["new", "kl.runaway", "--dir", "d", "--recipe", RECIPE], ["list", "--dir", "d"],
              ["list", "--ready"], ["import", "j.md", "--into", "d"]):
    sys.argv = ["uptrend", "lab", *words]
    app(standalone_mode=False)
heavy = {"torch", "transformers", "scipy.stats", "matplotlib", "ray"} & sys.modules.keys()
assert not heavy, heavy
"""
    (tmp_path / "j.md").write_text("# J\n")
    recipe = str(ROOT / "recipes" / "tiny.toml")
    done = subprocess.run(
        [sys.executable, "-c", f"RECIPE = {recipe!r}\n{code}"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
