"""The page: whole, escaped, with nothing from elsewhere; and the same as Markdown and JSON."""

import html
import re
import shutil
import subprocess
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest

from journals import KL, SIZES, WEIGHTS, entry_of, judged, make_lab, validated_kl, write_runs
from uptrend.lab.hypothesis_file import put_block
from uptrend.lab.journal import record
from uptrend.lab.journal.page import page, to_html, to_markdown, to_table
from uptrend.lab.notebook import Notebook
from uptrend.records import Arm, Priority, Status

EVIL = '<script>alert(1)</script> & "quotes"'
VOID = {"br", "hr", "img", "link", "meta"}


class Outline(HTMLParser):
    """Tags of a page, all of them closed, with their attributes, and its text."""

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
        self.open += [tag] if tag not in VOID else []

    def handle_endtag(self, tag: str) -> None:
        assert tag in VOID or self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data

    def all(self, tag: str, attribute: str) -> list[str]:
        return [
            attrs[attribute] or ""
            for name, attrs in self.tags
            if name == tag and attribute in attrs
        ]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two verdicts, one hypothesis that waits, and words that would be markup."""
    evil = replace(
        WEIGHTS, id="h04", title=EVIL, explains=EVIL, priority=Priority.LOW, cause=EVIL, recipe=EVIL,
        arms=(Arm("plain", {}, True), Arm(EVIL, {"tasks.name": EVIL})), validated_if=EVIL, prerequisites=("h01",),
    )  # fmt: skip
    folder = tmp_path_factory.mktemp("labs") / "lab"
    notebook = make_lab(folder, KL, SIZES, WEIGHTS, evil, problem=f"It does **not** learn. {EVIL}")
    three = {
        "4 × 64": [0.30, 0.31, 0.29],
        "16 × 16": [0.38, 0.39, 0.385],
        "64 × 4": [0.33, 0.35, 0.31],
    }
    write_runs(notebook.folder, SIZES, three)
    record(notebook, SIZES, judged(SIZES, three, Status.VALIDATED), entry_of(SIZES, three))
    two = {"fp32": [0.36, 0.35, 0.37], "bf16": [0.20, 0.22, 0.21]}
    told = judged(
        WEIGHTS, two, Status.INCONCLUSIVE, void=EVIL, refused={"bf16": EVIL}, because=EVIL
    )
    record(notebook, WEIGHTS, told, entry_of(WEIGHTS, two, machine=EVIL, notes=(EVIL,)))
    log = notebook.log.read_text()
    notebook.log.write_text(
        f"{log}\n{EVIL}\n\n[a link](javascript:alert(1)) ![a picture](https://x.org/a.png)\n"
    )
    return folder


@pytest.fixture
def lab(made: Path, tmp_path: Path) -> Notebook:
    """A copy that may be written to."""
    return Notebook(shutil.copytree(made, tmp_path / "lab"))


def test_everything_is_there_without_run_directories(lab: Notebook) -> None:
    shutil.rmtree(lab.folder / "runs")
    text = page(lab)
    outline = Outline(text)
    assert outline.all("article", "id") == ["h01", "h02", "h03", "h04"]
    assert outline.all("h2", "id") == ["question", "known", "roadmap", "hypotheses", "log"]
    for said in (
        "30.0% → 38.5%",
        "VALIDATED: More generations help",
        "(H02, 2026-11-15)",
        "runs/h02-1616-s2",
    ):
        assert said in outline.text
    links, known = (
        outline.all("a", "href"),
        {attrs["id"] for _, attrs in outline.tags if "id" in attrs},
    )
    assert {"#h01", "#h02", "fixes/h02-more-generations-help-at-equal-rollouts.md"} <= set(links)
    assert all(
        link[1:] in known if link.startswith("#") else (lab.folder / link).exists()
        for link in links
    )
    strips, labels = outline.all("svg", "aria-label")[:2], outline.all("svg", "aria-label")[2:]
    assert strips[0].startswith("effect +1.70 times")  # 8.5 of 5 points
    effects = "effects with their intervals"
    assert labels == [effects, "Held-out accuracy by step", "Training reward by step", effects]
    ids = [str(attrs["id"]) for _, attrs in outline.tags if "id" in attrs]
    own = [
        id for id in ids if not re.fullmatch(r"[mp][0-9a-f]{10}", id)
    ]  # matplotlib's markers and clips repeat
    assert len(own) == len(set(own))


def test_nothing_comes_from_elsewhere_nothing_runs_and_all_is_escaped(lab: Notebook) -> None:
    text = page(lab)
    outline = Outline(text)
    assert not {tag for tag, _ in outline.tags} & {
        "script",
        "link",
        "img",
        "iframe",
        "object",
        "embed",
        "base",
    }
    assert not [
        attrs
        for _, attrs in outline.tags
        if "src" in attrs or any(name.startswith("on") for name in attrs)
    ]
    assert not re.search(r"@import|https?://|url\((?!#)", text.replace("https://x.org/a.png", ""))
    assert "<script" not in text
    assert outline.text.count("<script>alert(1)</script>") >= 10
    assert "[picture: a picture]" in outline.text
    assert "prefers-color-scheme: dark" in text
    assert "@media print" in text


def test_an_empty_lab_one_that_was_never_run_and_one_that_goes_on(tmp_path: Path) -> None:
    assert Outline(page(make_lab(tmp_path / "empty"))).all("h2", "id") == [
        "question",
        "known",
        "log",
    ]
    notebook = make_lab(tmp_path / "new", KL, replace(SIZES, arms=(), recipe=""))
    outline = Outline(page(notebook))
    assert not outline.all("svg", "aria-label")
    assert "learning.kl.beta = 0.1" in outline.text
    assert "It has no arms yet" in outline.text
    row = '{"arm": "beta 0.1", "seed": 7, "hash": "x", "folder": "runs/b-s7", "status": "running", "reason": ""}'
    (notebook.results("h01") / "runs.json").write_text(f'{{"schema": 1, "runs": [{row}]}}')
    outline = Outline(page(notebook))
    assert re.search(r"0 of\s+1 finished", outline.text)
    assert "runs/b-s7" in outline.text


@pytest.mark.parametrize("name", ["verdict.json", "curves.json"])
@pytest.mark.parametrize("damaged", ["{", '{"status": "maybe", "runs": [1]}', "[1]"])
def test_damaged_results_are_named_and_the_rest_is_shown(
    lab: Notebook, name: str, damaged: str
) -> None:
    (lab.results("h02") / name).write_text(damaged)
    text = Outline(page(lab)).text
    assert all(said in text for said in (name, "Judge again", "bf16 weights lose small updates"))
    assert "Judge again" in to_markdown(lab)


def test_what_was_imported_is_told_apart_and_results_are_not_told_twice(lab: Notebook) -> None:
    text = put_block(
        lab.log.read_text(), "imported 1f", "## A1: High-rank LoRA\n\nNo improvement observed."
    )
    lab.log.write_text(f"{text}\nBetween two entries I thought of the weather.\n")
    (lab.folder / "imported").mkdir()
    (lab.folder / "imported" / "notes.md").write_text(
        "# Old notes\n\nSee [the log](../01-experiments-log.md).\n"
    )
    path = lab.path_of("h02")
    path.write_text(f"{path.read_text()}\nI am not sure of this.\n")
    made = page(lab)
    order = [
        'id="log"',
        "Between two entries",
        'id="imported"',
        "<summary>A1: High-rank LoRA<",
        "<summary>Old notes</",
    ]
    assert sorted(order, key=made.index) == order
    assert 'href="01-experiments-log.md"' in made
    assert "I am not sure of this." in made
    assert "All figures: <a" not in made


def test_markdown_and_json(lab: Notebook) -> None:
    markdown = to_markdown(lab)
    assert "### H02 VALIDATED: " in markdown
    assert "| 16 × 16 | 3 | 38.5% | +8.5 points |" in markdown
    table = to_table(lab)
    assert [h["status"] for h in table["hypotheses"]] == [
        "pending",
        "validated",
        "inconclusive",
        "pending",
    ]
    second = table["hypotheses"][1]
    assert second["verdict"]["comparisons"][0]["interval"]["effect"] == pytest.approx(0.085)
    assert second["experiment"]["command"] == "uptrend lab run h02"
    assert (len(second["runs"]), second["runs"][3]["value"]) == (9, 0.38)
    assert second["fix"] == "fixes/h02-more-generations-help-at-equal-rollouts.md"


def test_prose_keeps_below_the_page_s_headings_and_finds_its_neighbors() -> None:
    made = to_html(
        "# One\n\n[two](../01-log.md) [three](https://x.org)\n\n<b>raw</b>",
        below=2,
        folder="hypotheses",
    )
    for said in ("<h3>One</h3>", 'href="01-log.md"', 'href="https://x.org"', "&lt;b&gt;raw"):
        assert said in made


@pytest.mark.slow
@pytest.mark.needs_package("chromium")
@pytest.mark.parametrize("width", [380, 1200])
def test_a_browser_needs_no_scrolling_sideways(tmp_path: Path, width: int) -> None:
    notebook, _, _, _ = validated_kl(tmp_path / "lab")
    asks = "const d = frames[0].document; document.body.dataset.said = d.documentElement.scrollWidth + ' ' + "
    asks += "d.querySelector('article figure svg').getBoundingClientRect().width"
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
