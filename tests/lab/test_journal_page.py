"""The page: whole, escaped, without anything from elsewhere; and its brothers in Markdown and JSON."""

import html
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest

from journals import KL, SIZES, WEIGHTS, entry_of, judged, make_lab, validated_kl, write_runs
from uptrend.lab import blocks
from uptrend.lab.journal import record
from uptrend.lab.journal.axes import padded, ticks
from uptrend.lab.journal.page import page
from uptrend.lab.journal.prose import to_html
from uptrend.lab.journal.report import to_markdown, to_table
from uptrend.lab.notebook import Notebook
from uptrend.records import Arm, Priority, Status

EVIL = '<script>alert(1)</script> & "quotes"'
VOID = {"area", "br", "circle", "hr", "img", "input", "line", "link", "meta", "path", "polyline"}


class Outline(HTMLParser):
    """What is on a page: tags that are all closed, attributes, and the text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.text = ""
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID or tag == "polyline":
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data

    def count(self, tag: str, style: str = "") -> int:
        return sum(
            name == tag and (not style or style in (attrs.get("class") or "").split()) for name, attrs in self.tags
        )


@pytest.fixture(autouse=True)
def no_matplotlib(monkeypatch: pytest.MonkeyPatch) -> None:
    """The page draws its own pictures."""
    monkeypatch.setitem(sys.modules, "matplotlib", None)


@pytest.fixture
def lab(tmp_path: Path) -> Notebook:
    """Two verdicts, one hypothesis that waits, and words that would be markup."""
    evil = replace(
        WEIGHTS, id="h04", title=EVIL, explains=EVIL, priority=Priority.LOW, cause=EVIL, recipe=EVIL,
        arms=(Arm("plain", {}, True), Arm(EVIL, {"tasks.name": EVIL})), validated_if=EVIL, prerequisites=("h01",),
    )  # fmt: skip
    notebook = make_lab(tmp_path / "lab", KL, SIZES, WEIGHTS, evil, problem=f"It does **not** learn. {EVIL}")
    three = {"4 × 64": [0.30, 0.31, 0.29], "16 × 16": [0.38, 0.39, 0.385], "64 × 4": [0.33, 0.35, 0.31]}
    write_runs(notebook.folder, SIZES, three)
    record(notebook, SIZES, judged(SIZES, three, Status.VALIDATED), entry_of(SIZES, three))
    two = {"fp32": [0.36, 0.35, 0.37], "bf16": [0.20, 0.22, 0.21]}
    write_runs(notebook.folder, WEIGHTS, two)
    told = judged(WEIGHTS, two, Status.INCONCLUSIVE, void=EVIL, refused={"bf16": EVIL}, because=EVIL)
    record(notebook, WEIGHTS, told, entry_of(WEIGHTS, two, machine=EVIL, notes=(EVIL,)))
    return notebook


def test_everything_is_there(lab: Notebook) -> None:
    outline = Outline(page(lab))
    assert outline.count("article") == 4
    assert [attrs["id"] for tag, attrs in outline.tags if tag == "article"] == ["h01", "h02", "h03", "h04"]
    for said in ("It does", "What is known", "Roadmap", "Phase 1: high priority", "Experiments log", "30.0% → 38.5%"):
        assert said in outline.text
    assert "VALIDATED: More generations help at equal rollouts (H02, 2026-11-15)" in outline.text
    assert "runs/h02-1616-s2" in outline.text


def test_curves_and_intervals_are_drawn(lab: Notebook) -> None:
    outline = Outline(page(lab))
    assert outline.count("polyline", "seed") == 2 * (9 + 6)  # held-out and reward, a line a run
    assert outline.count("polyline", "mean") == 2 * (3 + 2)
    assert outline.count("circle", "dot") == 2 * 3 + 3
    assert outline.count("svg", "strip") == 2
    assert outline.count("svg", "chart") == 2 * 3


def test_it_needs_no_run_directories(lab: Notebook) -> None:
    before = page(lab)
    shutil.rmtree(lab.folder / "runs")
    assert page(lab) == before


def test_nothing_comes_from_elsewhere_and_nothing_runs(lab: Notebook) -> None:
    text = page(lab)
    outline = Outline(text)
    assert not {tag for tag, _ in outline.tags} & {"script", "link", "img", "iframe", "object", "embed", "base"}
    assert not [attrs for _, attrs in outline.tags if "src" in attrs or any(name.startswith("on") for name in attrs)]
    assert not re.search(r"url\(|@import|https?://", text)
    style = next(part for part in re.findall(r"<style>(.*?)</style>", text, re.DOTALL))
    assert "prefers-color-scheme: dark" in style
    assert "@media print" in style


def test_what_files_say_is_escaped(lab: Notebook) -> None:
    log = lab.log
    log.write_text(f"{log.read_text()}\n{EVIL}\n\n[a link](javascript:alert(1)) ![a picture](https://x.org/a.png)\n")
    text = page(lab)
    outline = Outline(text)
    assert "<script" not in text
    assert outline.text.count("<script>alert(1)</script>") >= 10
    assert not [attrs for _, attrs in outline.tags if "javascript" in (attrs.get("href") or "")]
    assert "[picture: a picture]" in outline.text


def test_every_link_leads_somewhere(lab: Notebook) -> None:
    outline = Outline(page(lab))
    ids = {attrs["id"] for _, attrs in outline.tags if "id" in attrs}
    links = [attrs["href"] or "" for tag, attrs in outline.tags if tag == "a"]
    assert {"#h01", "#h02", "fixes/h02-more-generations-help-at-equal-rollouts.md"} <= set(links)
    for link in links:
        assert link[1:] in ids if link.startswith("#") else (lab.folder / link).exists()


def test_an_empty_lab_and_one_that_was_never_run(tmp_path: Path) -> None:
    assert "No hypotheses yet." in Outline(page(make_lab(tmp_path / "empty"))).text
    outline = Outline(page(make_lab(tmp_path / "new", KL)))
    assert outline.count("svg") == 0
    assert "learning.kl.beta = 0.1" in outline.text


def test_runs_of_an_experiment_that_goes_on_are_shown(tmp_path: Path) -> None:
    notebook = make_lab(tmp_path / "lab", KL)
    row = '{"arm": "beta 0.1", "seed": 7, "hash": "x", "folder": "runs/b-s7", "status": "running", "reason": ""}'
    (notebook.results("h01") / "runs.json").write_text(f'{{"schema": 1, "runs": [{row}]}}')
    text = Outline(page(notebook)).text
    assert "0 of 1 finished" in text
    assert "runs/b-s7" in text


def test_a_damaged_verdict_is_named_and_the_rest_is_shown(lab: Notebook) -> None:
    for damaged in ("{", '{"status": "maybe"}', "[]"):
        (lab.results("h02") / "verdict.json").write_text(damaged)
        text = Outline(page(lab)).text
        assert "verdict.json" in text
        assert "Judge again" in text
        assert "bf16 weights lose small updates" in text


def test_what_was_imported_is_told_apart(lab: Notebook) -> None:
    text = blocks.put(lab.log.read_text(), "imported 1f", "## A1: High-rank LoRA\n\nNo improvement observed.")
    lab.log.write_text(f"{text}\nBetween two entries I thought of the weather.\n")
    (lab.folder / "imported").mkdir()
    (lab.folder / "imported" / "notes.md").write_text("# Old notes\n\nSee [the log](../01-experiments-log.md).\n")
    made = page(lab)
    log, imported = made.index('id="log"'), made.index('id="imported"')
    assert log < made.index("Between two entries") < imported < made.index("<summary>A1: High-rank LoRA</summary>")
    assert "<summary>Old notes</summary>" in made
    assert 'href="01-experiments-log.md"' in made


def test_a_hypothesis_without_arms_and_with_a_report_of_others(tmp_path: Path) -> None:
    notebook = make_lab(tmp_path / "lab", replace(KL, arms=(), recipe=""))
    path = notebook.path_of("h01")
    path.write_text(f"{path.read_text()}\nReported: partially validated.\n")
    text = Outline(page(notebook)).text
    assert "It has no arms yet" in text
    assert "Reported: partially validated." in text


def test_the_machine_s_results_are_not_told_twice(lab: Notebook) -> None:
    path = lab.path_of("h02")
    path.write_text(f"{path.read_text()}\nI am not sure of this.\n")
    text = Outline(page(lab)).text
    assert "I am not sure of this." in text
    assert "All figures: verdict.json" not in text


def test_markdown_and_json(lab: Notebook) -> None:
    markdown = to_markdown(lab)
    assert "### H02 VALIDATED: More generations help at equal rollouts" in markdown
    assert "| 16 × 16 | 3 | 38.5% | +8.5 points |" in markdown
    table = to_table(lab)
    assert [h["status"] for h in table["hypotheses"]] == ["pending", "validated", "inconclusive", "pending"]
    second = table["hypotheses"][1]
    assert second["verdict"]["comparisons"][0]["interval"]["effect"] == pytest.approx(0.085)
    assert second["experiment"]["command"] == "uptrend lab run h02"
    assert (len(second["runs"]), second["runs"][3]["value"]) == (9, 0.38)
    assert second["fix"] == "fixes/h02-more-generations-help-at-equal-rollouts.md"


def test_prose_keeps_below_the_page_s_headings_and_finds_its_neighbors() -> None:
    made = to_html("# One\n\n[two](../01-log.md) [three](https://x.org)\n\n<b>raw</b>", below=2, place="hypotheses")
    assert "<h3>One</h3>" in made
    assert 'href="01-log.md"' in made
    assert 'href="https://x.org"' in made
    assert "&lt;b&gt;raw" in made


@pytest.mark.parametrize(
    ("ends", "expected"),
    [((0.0, 1.0), [0, 0.2, 0.4, 0.6, 0.8, 1]), ((-3.1, 12.2), [0, 5, 10]), ((0.113, 0.141), [0.12, 0.13, 0.14])],
)
def test_ticks_are_round(ends: tuple[float, float], expected: list[float]) -> None:
    assert ticks(*ends) == pytest.approx(expected)


def test_a_level_line_has_room_about_it() -> None:
    low, high = padded([0.5, 0.5])
    assert low < 0.5 < high
    assert padded([]) == pytest.approx((-0.06, 1.06))


@pytest.mark.slow
@pytest.mark.needs_package("chromium")
@pytest.mark.parametrize("width", [380, 1200])
def test_a_browser_needs_no_scrolling_sideways(tmp_path: Path, width: int) -> None:
    notebook, _, _, _ = validated_kl(tmp_path / "lab")
    asks = "const d = frames[0].document; document.body.dataset.said = d.documentElement.scrollWidth + ' ' + "
    asks += "d.querySelector('article .chart').getBoundingClientRect().width"
    frame = f'<iframe srcdoc="{html.escape(page(notebook))}" width="{width}" height="900" style="border:0"></iframe>'
    (tmp_path / "frame.html").write_text(f"{frame}<script>onload = () => {{ {asks} }}</script>")
    done = subprocess.run(
        ["chromium", "--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--no-first-run",
         "--disable-component-update", "--disable-sync", f"--user-data-dir={tmp_path / 'profile'}",
         "--window-size=1300,1000", "--dump-dom", (tmp_path / "frame.html").as_uri()],
        capture_output=True, text=True, timeout=120, check=True,
    )  # fmt: skip
    (said,) = re.findall(r'data-said="(\d+) ([\d.]+)"', done.stdout)
    assert int(said[0]) <= width
    assert 280 <= float(said[1]) <= 440
