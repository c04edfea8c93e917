"""A lab's folder: made once, never overwritten, and of its files only the machine's parts
change.
"""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from uptrend.lab.hypothesis_file import prerequisites_first
from uptrend.lab.notebook import Notebook, roadmap, slug
from uptrend.records import Arm, Confidence, Hypothesis, LabError, Priority, Status

ARMS = (Arm("without", {}, is_control=True), Arm("with", {"learning.kl.beta": 0.1}))
KL = Hypothesis(
    "h01", "A KL penalty is required", "../tiny.toml", ARMS, explains="Runs without one collapse."
)


def files(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


@pytest.fixture
def notebook(tmp_path: Path) -> Notebook:
    return Notebook.init(tmp_path / "debug", problem="Reward stays at 65%.")


def readme(notebook: Notebook) -> str:
    return (notebook.folder / "README.md").read_text()


def test_init_makes_a_lab_once_and_overwrites_nothing(notebook: Notebook, tmp_path: Path) -> None:
    before = files(notebook.folder)
    assert set(before) == {
        "README.md",
        "00-problem-statement.md",
        "01-experiments-log.md",
        ".gitignore",
    }
    assert all(
        (notebook.folder / name).is_dir()
        for name in ("hypotheses", "experimental-results", "fixes")
    )
    for part in (
        "# debug",
        "Reward stays at 65%.",
        "## Status",
        "## Roadmap",
        "## Protocol",
        "No hypotheses yet",
    ):
        assert part in readme(notebook)
    assert b"Reward stays at 65%." in before["00-problem-statement.md"]
    with pytest.raises(LabError, match=r"is a lab already. Add to it with: uptrend lab new --dir"):
        Notebook.init(notebook.folder)
    assert files(notebook.folder) == before
    other = tmp_path / "mine"
    other.mkdir()
    (other / ".gitignore").write_text("*.pyc")
    with pytest.raises(LabError, match=r"is not a lab. Make one with: uptrend lab init"):
        Notebook(other)
    (other / "README.md").write_text("My project")
    with pytest.raises(
        LabError, match=r"README.md is there already. A lab needs a folder of its own"
    ):
        Notebook.init(other)
    (other / "README.md").unlink()
    Notebook.init(other)
    assert (other / ".gitignore").read_text() == "*.pyc\nruns/\n"


def test_a_hypothesis_is_added_found_and_listed(notebook: Notebook) -> None:
    with pytest.raises(
        LabError, match=r"There is no hypothesis h07 in .*It has none yet; write one with"
    ):
        notebook.path_of("h07")
    path = notebook.add(KL, {"Description": "Beta 0 fails."})
    assert (path.name, notebook.hypotheses) == ("h01-a-kl-penalty-is-required.md", [KL])
    for name in ("h01", "H1", "1", path.name, str(path)):
        assert notebook.path_of(name) == path
    row = "| [H01: A KL penalty is required](hypotheses/h01-a-kl-penalty-is-required.md) | medium | ⏳ pending | – |"
    assert f"{row} Runs without one collapse. |" in readme(notebook)
    with pytest.raises(LabError, match=r"is h01 already; the next free id is h02"):
        notebook.add(KL, {})
    with pytest.raises(LabError, match=r"no hypothesis h02.*Did you mean h01\? It has h01"):
        notebook.hypothesis("h02")
    for id in ("h100", "h10"):
        notebook.add(replace(KL, id=id), {})
    assert ([h.id for h in notebook.hypotheses], notebook.next_id()) == (
        ["h01", "h10", "h100"],
        "h101",
    )
    path.with_name("h01-another.md").write_bytes(path.read_bytes())
    with pytest.raises(
        LabError, match=r"h01-a-kl-penalty-is-required.md and h01-another.md have one id"
    ):
        _ = notebook.hypotheses


def test_setting_a_status_changes_two_lines_and_the_readmes_blocks(notebook: Notebook) -> None:
    path = notebook.add(KL, {"Description": "By hand."})
    edited = (
        path.read_text()
        .replace("smallest = 0.05 ", "smallest = 0.04 ")
        .replace("By hand.", "By\u2028hand.  \r\n")
    )
    path.write_bytes(edited.encode())
    page, end = notebook.folder / "README.md", b"## My notes\n\ntabs\t \n\n## Protocol"
    page.write_bytes(page.read_bytes().replace(b"## Protocol", end))
    old_page, old_readme = path.read_bytes().split(b"\n"), page.read_bytes()
    notebook.set_status("h01", Status.VALIDATED, Confidence.HIGH)
    changed = [b for a, b in zip(old_page, path.read_bytes().split(b"\n"), strict=True) if a != b]
    assert [line.partition(b"#")[0].strip() for line in changed] == [
        b'status = "validated"',
        b'confidence = "high"',
    ]
    assert notebook.hypothesis("h01") == replace(
        KL, smallest=0.04, status=Status.VALIDATED, confidence=Confidence.HIGH
    )
    assert "| ✅ validated | high |" in readme(notebook)
    assert page.read_bytes().partition(end)[2] == old_readme.partition(end)[2]
    notebook.set_status("h01", Status.PENDING, None)
    assert path.read_bytes().split(b"\n") == old_page


def test_the_readme_says_what_is_known_and_is_written_again(notebook: Notebook) -> None:
    (notebook.folder / "README.md").unlink()
    notebook.add(KL, {})
    said = {"sentence": "Ends 4 points | lower (p .03). More."}
    (notebook.results("H1") / "verdict.json").write_text(json.dumps(said))
    (notebook.folder / "hypotheses" / "h02-half.md").write_text('+++\ntitle = "half')  # under edit
    notebook.set_status("h01", Status.TESTING, None)
    assert "🧪 testing | – | Ends 4 points \\| lower (p .03). |" in readme(notebook)
    assert "hypotheses/h02-half.md: the front matter is not closed" in readme(notebook)
    assert notebook.results("h01") == notebook.folder / "experimental-results" / "h01"


def test_the_roadmap_goes_by_priority_prerequisites_and_what_is_open() -> None:
    hypotheses = [
        replace(KL, id="h01", title="one", prerequisites=("h03",)),
        replace(KL, id="h02", title="two", priority=Priority.HIGH),
        replace(KL, id="h03", title="three"),
        replace(KL, id="h04", title="four", status=Status.INVALIDATED),
        replace(KL, id="h05", title="five", status=Status.INCONCLUSIVE, priority=Priority.LOW),
    ]
    text = roadmap(hypotheses)
    parts = (
        "Phase 1",
        "H02: two",
        "Phase 2",
        "H03: three",
        "H01: one** (after H03).",
        "Phase 3",
        "H05",
        "Decided",
    )
    places = [text.index(part) for part in parts]
    assert places == sorted(places)
    assert text.endswith("- ❌ H04: four (measured: held-out accuracy ends higher)")
    circle = [
        replace(KL, id="h01", prerequisites=("h02",)),
        replace(KL, id="h02", prerequisites=("h01",)),
    ]
    assert [h.id for h in prerequisites_first(circle)] == ["h01", "h02"]
    assert slug("KL: beta = 0.1 ist für Größe nötig, oder?") == "kl-beta-0-1-ist-fur-groe"
    assert slug("!?") == "hypothesis"
