"""What the pages say is there: links, recipes, snippets. Commands are understood; those of the first pages are run."""

import ast
import importlib
import logging
import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import typer
from mkdocs.commands.build import build
from mkdocs.config import load_config as load_site
from scripts.docs import ELSEWHERE, LINK, PARTS, lead_links

from uptrend.cli.main import VERBS
from uptrend.config import load_config
from uptrend.doctor.catalogue import CATALOGUE
from uptrend.records.dialects import LOGGERS

ROOT = Path(__file__).parents[1]
DOCS = sorted((ROOT / "docs").rglob("*.md"))
PAGES = DOCS + sorted(
    path for pattern in ("*.md", "recipes/**/*.md", "benchmarks/**/*.md") for path in ROOT.glob(pattern)
)
RECIPES = sorted((ROOT / "recipes").rglob("*.toml"))
FIRST = [f"start/{name}.md" for name in ("install", "data", "read", "doctor", "prove")]

# What is run in place of a page's command, so that all together take some 90 seconds: fewer tasks, steps, seeds.
TRAIN = "uptrend train recipes/tiny.toml --set sampling.groups=8 --set eval.tasks=40 --set doctor.live=false"
FEW = "--set learning.steps=4 --set learning.warmup=0"
SHORTER = {
    "uptrend train recipes/tiny.toml": f"{TRAIN} {FEW}",
    "uptrend train recipes/tiny.toml --set learning.lr=1e-4 --set seed=1 --name slower":
        f"{TRAIN} {FEW} --set seed=1 --name slower --no-preflight",
    "uptrend train recipes/tiny.toml --set learning.lr=3e-3 --set learning.steps=30 --name too-fast":
        f"{TRAIN} --set learning.lr=3e-3 --set learning.steps=30 --name too-fast --no-preflight",
    "uptrend train sums/recipe.toml":
        "uptrend train sums/recipe.toml --set learning.steps=2 --set sampling.max_tokens=8 --set doctor.live=false",
    "uptrend preflight recipes/tiny.toml": "uptrend preflight recipes/tiny.toml --only gold --only masks",
    "uptrend lab run h01 --dir debug":
        "sed -i 's/^seeds = [^#]*/seeds = [0, 1] /; s/^alpha = 0.05/alpha = 0.3/; s/^steps = 0/steps = 10/' "
        "debug/hypotheses/*.md && "
        "uptrend lab run h01 --dir debug",
}  # fmt: skip


def name(path: Path) -> str:
    return str(path.relative_to(ROOT))


def blocks(page: Path, language: str) -> list[str]:
    """Return the code blocks of a language."""
    text = page.read_text(encoding="utf-8")
    return re.findall(rf"```{language}\b[^\n]*\n(.*?)```", text, re.DOTALL)


def commands() -> list[str]:
    """Every `uptrend …` line of every page's shell blocks, comments left out."""
    lines = [line for page in PAGES for block in blocks(page, "bash") for line in block.splitlines()]
    found = re.findall(r"(?:^|&& )(uptrend [^&\n]+?)(?: +# [^\n]*)?$", "\n".join(lines), re.MULTILINE)
    return sorted({line.strip() for line in found})


@pytest.mark.slow
def test_the_site_builds_without_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Broken links and anchors are warnings, and so is a page that the navigation lacks."""
    with caplog.at_level(logging.WARNING, logger="mkdocs"):
        build(load_site(str(ROOT / "mkdocs.yml"), site_dir=str(tmp_path / "site")))
    assert [record.getMessage() for record in caplog.records] == []
    made = {path.relative_to(tmp_path / "site").with_suffix("").as_posix() for path in tmp_path.rglob("*.html")}
    assert made >= {path.relative_to(ROOT / "docs").with_suffix("").as_posix() for path in DOCS}
    assert made >= {f"causes/{id}" for id in CATALOGUE} | {"causes/index", "measured/results"}
    text = "".join(path.read_text(encoding="utf-8") for path in tmp_path.rglob("*.html"))
    assert not re.search(r"<(?:script|img|iframe)[^>]+src=\"https?:|<link[^>]+stylesheet[^>]+https?:", text)
    assert "<!-- generated" not in text


def test_links_that_leave_docs_lead_to_pages_or_become_paths() -> None:
    page = "[a](../../benchmarks/RESULTS.md#x) [loop.py](../../src/uptrend/training/loop.py) ![i](../images/h200.png)"
    led = "[a](../measured/results.md#x) `src/uptrend/training/loop.py` ![i](../images/h200.png)"
    assert lead_links(page, "guide/how.md") == led
    assert lead_links("[nowhere](../../gone.md)", "guide/how.md") == "[nowhere](../../gone.md)"
    assert lead_links("![i](../docs/images/h200.png)", "measured/results.md") == "![i](../images/h200.png)"


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_links_are_there_and_snippets_are_python_and_toml(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    paths = [page.parent / link["path"] for link in LINK.finditer(text) if "://" not in link["path"]]
    generated = ROOT / "docs" / "causes"  # checked with the site
    assert [path for path in paths if not path.exists() and path.resolve().parent != generated] == []
    for snippet in blocks(page, "python"):
        ast.parse(snippet)
    for recipe in blocks(page, "toml"):
        tomllib.loads(recipe)


def test_the_first_pages_are_short_and_each_generated_part_has_its_place() -> None:
    words = {page: len((ROOT / "docs" / page).read_text(encoding="utf-8").split()) for page in FIRST}
    assert max(words.values()) <= 450, words
    text = "\n".join(page.read_text(encoding="utf-8") for page in DOCS)
    wanted = {part for part in PARTS if part != "names"} | {f"names {trainer}" for trainer in LOGGERS}
    assert set(re.findall(r"<!-- generated: (.+?) -->", text)) == wanted
    assert all((ROOT / path).exists() for path in ELSEWHERE.values())


def test_recipes_load() -> None:
    assert [load_config(recipe).name for recipe in RECIPES] == [path.stem.replace("_", "-") for path in RECIPES]


@pytest.mark.slow
def test_the_readme_snippet_runs(tmp_path: Path) -> None:
    """The first one as it stands, but with the small model and for one step."""
    snippet = blocks(ROOT / "README.md", "python")[0].replace("smollm2-135m", "tiny").replace("steps=60", "steps=1")
    (tmp_path / "first.py").write_text(snippet)
    done = subprocess.run([sys.executable, "first.py"], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert "Report('runs/reward', 1 steps, too-short)" in done.stdout


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


@pytest.mark.slow
def test_the_first_pages_commands_run(tmp_path: Path) -> None:
    """Run the bash blocks of the first pages in order, in one folder; not those after a comment `not run: why`."""
    shutil.copytree(ROOT / "recipes", tmp_path / "recipes")
    (tmp_path / "bin").mkdir()
    script = tmp_path / "bin" / "uptrend"
    script.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m uptrend "$@"\n')
    script.chmod(0o755)
    (tmp_path / "questions.jsonl").write_text(
        "".join(f'{{"question": "Calculate: {a}+{b} = ", "answer": "{a + b}"}}\n' for a in range(21) for b in range(5))
    )
    environment = os.environ | {"PATH": f"{script.parent}:{os.environ['PATH']}", "OMP_NUM_THREADS": "1"}
    ran = set[str]()
    for page in FIRST:
        text = (ROOT / "docs" / page).read_text(encoding="utf-8")
        runnable = re.sub(r"<!-- not run: [^>]+ -->\n```bash\n.*?```", "", text, flags=re.DOTALL)
        for line in "".join(re.findall(r"```bash\n(.*?)```", runnable, re.DOTALL)).splitlines():
            shorter = SHORTER.get(line, line)
            ran.add(line)
            done = subprocess.run(
                ["bash", "-c", shorter], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300
            )
            assert done.returncode == 0, f"{page}: {shorter}\n{done.stdout[-2000:]}{done.stderr[-2000:]}"
    assert ran >= set(SHORTER)
    assert (tmp_path / "debug" / "report.html").exists()
