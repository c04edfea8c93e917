"""What the pages say is there: links, recipes, snippets. Commands are understood; those of the
first pages are run.
"""

import ast
import importlib
import json
import logging
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import typer
from mkdocs.commands.build import build
from mkdocs.config import load_config as load_site
from scripts.doc_outputs import BLOCK, FIRST_PAGES, SHORTER, prepare_folder, refresh, run_block
from scripts.doc_outputs import PAGES as OUTPUT_PAGES
from scripts.doc_outputs import blocks as output_blocks
from scripts.docs import ELSEWHERE, LINK, PARTS, lead_links

import uptrend
from uptrend.cli.main import VERBS
from uptrend.config import load_config
from uptrend.doctor.catalogue import CATALOGUE
from uptrend.records.dialects import METRIC_DIALECTS

ROOT = Path(__file__).parents[1]
DOCS = sorted((ROOT / "docs").rglob("*.md"))
PAGES = DOCS + sorted(
    path
    for pattern in ("*.md", "recipes/**/*.md", "benchmarks/**/*.md")
    for path in ROOT.glob(pattern)
)
RECIPES = sorted((ROOT / "recipes").rglob("*.toml"))
# Commands whose output is not compared with what a page shows of it, and why.
NOT_COMPARED = {
    "uptrend train recipes/tiny.toml": "its last line judges 150 steps, which take minutes",
    "uptrend train recipes/tiny.toml --set learning.lr=3e-3 --set learning.steps=30 --name too-fast": (
        "what is said of a broken run depends on how it broke, and that on the processor"
    ),
    "uptrend doctor runs/too-fast": "the same",
    "uptrend lab run h01 --dir debug": "its verdict is of ten runs, which take minutes",
}
# What a snippet is shortened by, so that each takes seconds.
SHORTER_SNIPPETS = {
    '"smollm2-135m"': '"tiny"',
    "steps=60": "steps=1",
    "steps=100": "steps=1",
    "learning.steps=50": "learning.steps=1",
    "learning.steps=5": "learning.steps=1",
    "step-000100": "step-000002",
    "step=12": "step=2",
}
# What a shortened snippet prints, as far as it is known.
PRINTED = {
    (
        "README.md",
        0,
    ): ", 1 steps, too-short)",  # of runs/tiny-2, where another snippet's run is runs/tiny
    ("docs/reference/python.md", 0): "1 point of reward can't show a trend.",
    ("docs/guide/training.md", 1): "advantage.sign",
    ("docs/guide/sandbox.md", 0): "42",
}
MARKS = {"docs/guide/sandbox.md": [pytest.mark.needs_package("bubblewrap")]}
SNIPPET = re.compile(
    r"(?P<left_out><!-- not run: [^>]+ -->\n)?```python[^\n]*\n(?P<code>.*?)```", re.DOTALL
)


def name(path: Path) -> str:
    return str(path.relative_to(ROOT))


def blocks(page: Path, language: str) -> list[str]:
    """Return the code blocks of a language."""
    text = page.read_text(encoding="utf-8")
    return re.findall(rf"```{language}\b[^\n]*\n(.*?)```", text, re.DOTALL)


def snippets(page: Path, *, run: bool = False) -> list[str]:
    """Return the Python of a page: all of it, or what is run."""
    matches = SNIPPET.finditer(page.read_text(encoding="utf-8"))
    return [match["code"] for match in matches if match["left_out"] is None or not run]


def runnable_snippets() -> list[Any]:
    """Return page and number of each snippet that is run."""
    return [
        pytest.param(page, number, id=f"{name(page)}-{number}", marks=MARKS.get(name(page), ()))
        for page in PAGES
        for number in range(len(snippets(page, run=True)))
    ]


def commands() -> list[str]:
    """Every `uptrend …` line of every page's shell blocks, comments left out."""
    lines = [
        line for page in PAGES for block in blocks(page, "bash") for line in block.splitlines()
    ]
    found = re.findall(
        r"(?:^|&& )(uptrend [^&\n]+?)(?: +# [^\n]*)?$", "\n".join(lines), re.MULTILINE
    )
    return sorted({line.strip() for line in found})


@pytest.mark.slow
def test_the_site_builds_without_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Broken links and anchors are warnings, and so is a page that the navigation lacks."""
    with caplog.at_level(logging.WARNING, logger="mkdocs"):
        build(load_site(str(ROOT / "mkdocs.yml"), site_dir=str(tmp_path / "site")))
    assert [record.getMessage() for record in caplog.records] == []
    made = {
        path.relative_to(tmp_path / "site").with_suffix("").as_posix()
        for path in tmp_path.rglob("*.html")
    }
    assert made >= {path.relative_to(ROOT / "docs").with_suffix("").as_posix() for path in DOCS}
    assert made >= {f"causes/{id}" for id in CATALOGUE} | {"causes/index", "measured/results"}
    text = "".join(path.read_text(encoding="utf-8") for path in tmp_path.rglob("*.html"))
    assert not re.search(
        r"<(?:script|img|iframe)[^>]+src=\"https?:|<link[^>]+stylesheet[^>]+https?:", text
    )
    assert "<!-- generated" not in text


def test_links_that_leave_docs_lead_to_pages_or_become_paths() -> None:
    page = "[a](../../benchmarks/RESULTS.md#x) [loop.py](../../src/uptrend/training/loop.py) ![i](../images/h200.png)"
    led = "[a](../measured/results.md#x) `src/uptrend/training/loop.py` ![i](../images/h200.png)"
    assert lead_links(page, "guide/how.md") == led
    assert lead_links("[nowhere](../../gone.md)", "guide/how.md") == "[nowhere](../../gone.md)"
    cause = "[tokens.padding](../../src/uptrend/doctor/findings/tokens.padding.md)"
    assert lead_links(cause, "guide/trl.md") == "[tokens.padding](../causes/tokens.padding.md)"
    assert (
        lead_links("![i](../docs/images/h200.png)", "measured/results.md")
        == "![i](../images/h200.png)"
    )


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_links_are_there_and_snippets_are_python_and_toml(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    paths = [
        page.parent / link["path"] for link in LINK.finditer(text) if "://" not in link["path"]
    ]
    assert [path for path in paths if not path.exists()] == []
    for snippet in snippets(page):
        assert missing_names(snippet) == []
    for recipe in blocks(page, "toml"):
        tomllib.loads(recipe)


def missing_names(snippet: str) -> list[str]:
    """Return what a snippet imports from Uptrend, or reads from the package, and is not there."""
    missing = []
    for node in ast.walk(ast.parse(snippet)):
        if isinstance(node, ast.ImportFrom) and str(node.module).partition(".")[0] == "uptrend":
            module = importlib.import_module(str(node.module))
            missing += [
                f"{node.module}.{alias.name}"
                for alias in node.names
                if not hasattr(module, alias.name)
            ]
        elif (
            isinstance(node, ast.Attribute)
            and isinstance(node.value, ast.Name)
            and node.value.id == "uptrend"
        ):
            missing += [] if hasattr(uptrend, node.attr) else [f"uptrend.{node.attr}"]
    return missing


def test_the_first_pages_are_short_and_each_generated_part_has_its_place() -> None:
    words = {page.name: len(page.read_text(encoding="utf-8").split()) for page in FIRST_PAGES}
    assert max(words.values()) <= 450, words
    text = "\n".join(page.read_text(encoding="utf-8") for page in DOCS)
    wanted = {part for part in PARTS if part != "names"} | {
        f"names {trainer}" for trainer in METRIC_DIALECTS
    }
    assert set(re.findall(r"<!-- generated: (.+?) -->", text)) == wanted
    assert all((ROOT / path).exists() for path in ELSEWHERE.values())


def test_recipes_load() -> None:
    assert [load_config(recipe).name for recipe in RECIPES] == [
        path.stem.replace("_", "-") for path in RECIPES
    ]


@pytest.fixture(scope="module")
def snippet_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with what snippets read: a small recipe, a run of two steps, questions, a log."""
    folder = tmp_path_factory.mktemp("snippets")
    prepare_folder(folder)
    (folder / "recipes").unlink()
    (folder / "recipes").mkdir()
    recipe = (ROOT / "recipes" / "tiny.toml").read_text(encoding="utf-8")
    for key, value in {"tasks": 40, "groups": 4, "steps": 2, "warmup": 0}.items():
        recipe = re.sub(rf"(?m)^{key} = \d+", f"{key} = {value}", recipe)
    (folder / "recipes" / "tiny.toml").write_text(
        f"{recipe}\n[checkpoints]\nevery = 2\n", encoding="utf-8"
    )
    run = uptrend.train(
        folder / "recipes" / "tiny.toml", name="tiny", runs=folder / "runs", progress=False
    )
    shutil.copytree(run.path, folder / "runs" / "quickstart")
    log = {
        "log_history": [{"step": step, "reward": step / 50, "loss": 0.1} for step in range(1, 31)]
    }
    (folder / "trainer_state.json").write_text(json.dumps(log), encoding="utf-8")
    return folder


@pytest.mark.slow
@pytest.mark.parametrize(("page", "number"), runnable_snippets())
def test_snippets_run(page: Path, number: int, snippet_folder: Path) -> None:
    """Each as it stands, but with a small model and for few steps."""
    snippet = snippets(page, run=True)[number]
    for text, shorter in SHORTER_SNIPPETS.items():
        snippet = snippet.replace(text, shorter)
    file = snippet_folder / f"{page.stem}_{number}.py"
    file.write_text(snippet, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, file.name],
        cwd=snippet_folder,
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
    assert PRINTED.get((name(page), number), "") in done.stdout


@pytest.mark.parametrize("line", commands())
def test_commands_are_understood(line: str) -> None:
    _, verb, *arguments = shlex.split(line)
    module, attribute, _ = VERBS[verb]
    found = getattr(importlib.import_module(module), attribute)
    if not isinstance(found, typer.Typer):
        single = typer.Typer()
        single.command()(found)
        typer.main.get_command(single).make_context(verb, arguments)
    else:
        group = typer.main.get_command(found)
        command = group.get_command(typer.Context(group, resilient_parsing=True), arguments[0])
        command.make_context(arguments[0], arguments[1:])
    for word in arguments:
        assert not word.startswith("recipes/") or (ROOT / word).exists()


@pytest.mark.parametrize("page", OUTPUT_PAGES, ids=name)
def test_every_output_stands_below_commands_that_are_run(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert all(match["shown"] is None for match in BLOCK.finditer(text) if match["left_out"])
    rest = BLOCK.sub("", text)
    assert "```text" not in rest
    assert "```" not in re.sub(r"```\w.*?```", "", rest, flags=re.DOTALL), (
        "a block without a language"
    )


@pytest.mark.slow
def test_the_first_pages_commands_run_and_print_what_the_pages_show(tmp_path: Path) -> None:
    """Run the pages in order, in one folder, shortened; numbers are not compared."""
    environment = prepare_folder(tmp_path)
    not_compared = set[str]()
    shortened = set[str]()
    for block in (block for page in OUTPUT_PAGES for block in output_blocks(page)):
        printed = run_block(block, tmp_path, environment, shortened=True)
        shortened |= {*block.commands} & {*SHORTER}
        if excluded := {*block.commands} & {*NOT_COMPARED}:
            not_compared |= excluded
        elif block.shown is not None:
            lines = [f"{block.page.name} shows:", *block.shown, "but its commands print:", *printed]
            assert refresh(block.shown, printed), "\n".join(lines)
    assert shortened == {*SHORTER}
    assert not_compared == {*NOT_COMPARED}
    assert (tmp_path / "debug" / "report.html").exists()


def test_an_output_is_refreshed_where_its_words_and_lines_are_the_same() -> None:
    step, curve = "step 12/30  reward 0.48  1 min 4 s left", "▁▂█  0.1 → 0.9"
    printed = ["reading 3 files", step, curve, "Run: runs/tiny"]
    shown = ["...", "step 2/30 reward −1.2e-05 350 ms left", "...", "Run: runs/tiny"]
    assert refresh(shown, printed) == ["...", step, "...", "Run: runs/tiny"]
    assert refresh(["reading 1,024 files", "..."], printed) == ["reading 3 files", "..."]
    shown = ["...", "step 1/2 reward...", "▁ 2 → 3", "..."]
    assert refresh(shown, printed) == ["...", "step 12/30  reward...", curve, "..."]

    other_word = ["...", "step 1/2 loss 0.48 1 s left", "..."]
    missing_line = ["reading 3 files", "▁▂█ 0.1 → 0.9", "..."]
    another_end = [*printed, "one line more"]
    for shown in (other_word, missing_line, another_end, printed[::-1], printed[1:], printed[:-1]):
        assert refresh(shown, printed) is None
