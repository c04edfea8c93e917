"""A lab's folder: made once, never overwritten, and of its files only the machine's parts change."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from uptrend.lab.naming import slug
from uptrend.lab.notebook import Notebook
from uptrend.lab.order import in_order
from uptrend.lab.overview import roadmap
from uptrend.records import Arm, Confidence, Hypothesis, LabError, Priority, Status

KL = Hypothesis(
    id="h01",
    title="A KL penalty is required",
    recipe="../tiny.toml",
    arms=(Arm("without", {}, is_control=True), Arm("with", {"learning.kl.beta": 0.1})),
    explains="Runs without one collapse.",
)


def files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture
def notebook(tmp_path: Path) -> Notebook:
    return Notebook.init(tmp_path / "debug", problem="Reward stays at 65%.")


def test_init_makes_the_seeds_structure(notebook: Notebook) -> None:
    folder = notebook.folder
    assert set(files(folder)) == {"README.md", "00-problem-statement.md", "01-experiments-log.md", ".gitignore"}
    for name in ("hypotheses", "experimental-results", "fixes"):
        assert (folder / name).is_dir()
    readme = (folder / "README.md").read_text()
    for part in ("# debug", "Reward stays at 65%.", "## Status", "## Roadmap", "## Protocol", "No hypotheses yet"):
        assert part in readme
    assert "Reward stays at 65%." in (folder / "00-problem-statement.md").read_text()
    assert (folder / ".gitignore").read_text() == "runs/\n"


def test_a_lab_is_made_once(notebook: Notebook, tmp_path: Path) -> None:
    before = files(notebook.folder)
    with pytest.raises(LabError, match=r"is a lab already. Add to it with: uptrend lab new --dir"):
        Notebook.init(notebook.folder)
    assert files(notebook.folder) == before
    other = tmp_path / "mine"
    other.mkdir()
    (other / "README.md").write_text("My project")
    with pytest.raises(LabError, match=r"README.md is there already. A lab needs a folder of its own"):
        Notebook.init(other)
    assert files(other) == {"README.md": b"My project"}


def test_an_ignore_file_is_added_to(tmp_path: Path) -> None:
    (tmp_path / ".gitignore").write_text("*.pyc")
    Notebook.init(tmp_path)
    assert (tmp_path / ".gitignore").read_text() == "*.pyc\nruns/\n"


def test_a_folder_that_is_no_lab(tmp_path: Path) -> None:
    with pytest.raises(LabError, match=r"is not a lab. Make one with: uptrend lab init"):
        Notebook(tmp_path)


def test_a_hypothesis_is_added_found_and_listed(notebook: Notebook) -> None:
    path = notebook.add(KL, {"Description": "Beta 0 fails."})
    assert path.name == "h01-a-kl-penalty-is-required.md"
    assert notebook.hypotheses == [KL]
    for name in ("h01", "H1", "1", "h01-a-kl-penalty-is-required.md", str(path)):
        assert notebook.path_of(name) == path
    assert notebook.next_id() == "h02"
    readme = (notebook.folder / "README.md").read_text()
    row = "| [H01: A KL penalty is required](hypotheses/h01-a-kl-penalty-is-required.md) | medium | ⏳ pending | – |"
    assert f"{row} Runs without one collapse. |" in readme
    assert "### Phase 2: medium priority" in readme
    with pytest.raises(LabError, match=r"is h01 already; the next free id is h02"):
        notebook.add(KL, {})


def test_an_id_that_is_not_there(notebook: Notebook) -> None:
    with pytest.raises(LabError, match=r"There is no hypothesis h07 in .*It has none yet; write one with"):
        notebook.path_of("h07")
    notebook.add(KL, {})
    with pytest.raises(LabError, match=r"no hypothesis h02.*Did you mean h01\? It has h01"):
        notebook.hypothesis("h02")


def test_hypotheses_come_in_order_past_ninety_nine(notebook: Notebook) -> None:
    for id in ("h100", "h02", "h10"):
        notebook.add(replace(KL, id=id), {})
    assert [h.id for h in notebook.hypotheses] == ["h02", "h10", "h100"]
    assert notebook.next_id() == "h101"


def test_two_files_of_one_id_are_an_error(notebook: Notebook) -> None:
    path = notebook.add(KL, {})
    path.with_name("h01-another.md").write_bytes(path.read_bytes())
    with pytest.raises(LabError, match=r"h01-a-kl-penalty-is-required.md and h01-another.md have one id"):
        _ = notebook.hypotheses


def test_setting_a_status_changes_two_lines_and_the_readmes_blocks(notebook: Notebook) -> None:
    path = notebook.add(KL, {"Description": "By hand."})
    edited = path.read_text().replace("smallest = 0.05 ", "smallest = 0.04 ").replace("By hand.", "By\u2028hand.  \r\n")
    path.write_bytes(edited.encode())
    readme = notebook.folder / "README.md"
    readme.write_bytes(readme.read_bytes().replace(b"## Protocol", b"## My notes\n\ntabs\t \n\n## Protocol"))
    old_page, old_readme = path.read_bytes().split(b"\n"), readme.read_bytes()
    notebook.set_status("h01", Status.VALIDATED, Confidence.HIGH)
    new_page = path.read_bytes().split(b"\n")
    changed = [(a, b) for a, b in zip(old_page, new_page, strict=True) if a != b]
    assert [b.partition(b"#")[0].strip() for _, b in changed] == [b'status = "validated"', b'confidence = "high"']
    assert notebook.hypothesis("h01") == replace(KL, smallest=0.04, status=Status.VALIDATED, confidence=Confidence.HIGH)
    assert "| ✅ validated | high |" in readme.read_text()
    end = b"## My notes\n\ntabs\t \n\n## Protocol"
    assert readme.read_bytes().partition(end)[2] == old_readme.partition(end)[2]
    notebook.set_status("h01", Status.PENDING, None)
    assert path.read_bytes().split(b"\n") == old_page


def test_a_verdicts_sentence_is_the_note(notebook: Notebook) -> None:
    notebook.add(KL, {})
    (notebook.results("h01") / "verdict.json").write_text(
        json.dumps({"sentence": "Ends 4 points | lower (p .03). More."})
    )
    notebook.refresh()
    assert "| Ends 4 points \\| lower (p .03). |" in (notebook.folder / "README.md").read_text()


def test_a_file_that_is_being_edited_does_not_stop_anothers_verdict(notebook: Notebook) -> None:
    notebook.add(KL, {})
    (notebook.folder / "hypotheses" / "h02-half.md").write_text('+++\ntitle = "half')
    notebook.set_status("h01", Status.TESTING, None)
    readme = (notebook.folder / "README.md").read_text()
    assert "🧪 testing" in readme
    assert "hypotheses/h02-half.md: the front matter is not closed" in readme
    with pytest.raises(LabError, match=r"not closed"):
        _ = notebook.hypotheses


def test_a_readme_that_was_removed_is_written_again(notebook: Notebook) -> None:
    (notebook.folder / "README.md").unlink()
    notebook.add(KL, {})
    assert "H01: A KL penalty is required" in (notebook.folder / "README.md").read_text()


def test_results_and_runs_are_made(notebook: Notebook) -> None:
    assert notebook.results("H1") == notebook.folder / "experimental-results" / "h01"
    assert notebook.results("h01").is_dir()
    assert notebook.runs == notebook.folder / "runs"
    assert notebook.runs.is_dir()


def test_the_roadmap_goes_by_priority_prerequisites_and_what_is_open() -> None:
    hypotheses = [
        replace(KL, id="h01", title="one", prerequisites=("h03",)),
        replace(KL, id="h02", title="two", priority=Priority.HIGH),
        replace(KL, id="h03", title="three"),
        replace(KL, id="h04", title="four", status=Status.INVALIDATED),
        replace(KL, id="h05", title="five", status=Status.INCONCLUSIVE, priority=Priority.LOW),
    ]
    text = roadmap(hypotheses)
    parts = ("Phase 1", "H02: two", "Phase 2", "H03: three", "H01: one", "Phase 3", "H05: five", "Decided")
    places = [text.index(part) for part in parts]
    assert places == sorted(places)
    assert "**H01: one** (after H03)." in text
    assert text.endswith("- ❌ H04: four")
    circle = [replace(KL, id="h01", prerequisites=("h02",)), replace(KL, id="h02", prerequisites=("h01",))]
    assert [h.id for h in in_order(circle)] == ["h01", "h02"]


def test_slugs() -> None:
    assert slug("KL: beta = 0.1 ist für Größe nötig, oder?") == "kl-beta-0-1-ist-fur-groe"
    assert slug("!?") == "hypothesis"
