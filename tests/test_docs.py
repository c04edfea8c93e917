"""What the pages say is there: links, pages, recipes, commands and snippets."""

import ast
import importlib
import re
import shlex
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest
import typer

import uptrend
from uptrend.cli.main import VERBS
from uptrend.config import load_config

ROOT = Path(__file__).parents[1]
PAGES = sorted(
    path for pattern in ("*.md", "docs/**/*.md", "recipes/**/*.md", "benchmarks/**/*.md") for path in ROOT.glob(pattern)
)
RECIPES = sorted((ROOT / "recipes").rglob("*.toml"))


def name(path: Path) -> str:
    return str(path.relative_to(ROOT))


def linked(page: Path) -> list[Path]:
    """Return the files that a page's relative links and pictures point to."""
    found = re.findall(r"\[[^\]]*\]\(([^)\s]+)\)", page.read_text(encoding="utf-8"))
    targets = [target.partition("#")[0] for target in found]
    return [page.parent / target for target in targets if target and "://" not in target]


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)


def commands() -> list[str]:
    """Every `uptrend …` line of every page's shell blocks, comments left out."""
    lines = [line for page in PAGES for block in blocks(page, "bash") for line in block.splitlines()]
    found = re.findall(r"(?:^|&& )(uptrend [^&#\n]+)", "\n".join(lines), re.MULTILINE)
    return sorted({line.strip() for line in found})


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_links_and_pictures_are_there_and_snippets_are_python_and_toml(page: Path) -> None:
    assert not [path for path in linked(page) if not path.exists()]
    for snippet in blocks(page, "python"):
        ast.parse(snippet)
    for recipe in blocks(page, "toml"):
        tomllib.loads(recipe)


def test_the_index_has_every_page_and_every_package_has_one() -> None:
    pages = {path.name for path in (ROOT / "docs").glob("*.md")} - {"README.md"}
    listed = linked(ROOT / "docs" / "README.md")
    assert {path.name for path in listed if path.resolve().parent == ROOT / "docs"} == pages
    packages = {path.parent.name for path in Path(uptrend.__file__).parent.glob("*/__init__.py")}
    assert {f"{package}.md" for package in packages - {"runner"}} <= pages


def test_recipes_load_and_the_readme_shows_the_quickstart() -> None:
    assert [load_config(recipe).name for recipe in RECIPES] == [path.stem.replace("_", "-") for path in RECIPES]
    (shown,) = blocks(ROOT / "README.md", "toml")
    assert load_config(tomllib.loads(shown)) == load_config(ROOT / "recipes" / "quickstart.toml")


def test_the_readme_snippet_runs(
    make_run: Callable[..., Path], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(make_run("quickstart", steps=4).parents[1])
    (snippet,) = blocks(ROOT / "README.md", "python")
    exec(compile(snippet, "README.md", "exec"), {})
    assert "reward/mean" in capsys.readouterr().out


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


def test_every_verb_has_its_section() -> None:
    page = (ROOT / "docs" / "cli.md").read_text(encoding="utf-8")
    assert re.findall(r"^## (\w+)$", page, re.MULTILINE) == list(VERBS)
