"""`--help`: fast, readable in narrow terminals, and in the words that stand in the code."""

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
import typer

from uptrend.cli.main import VERBS, app

Uptrend = Callable[..., Any]


@pytest.mark.parametrize("verb", VERBS)
def test_help_fits_a_narrow_terminal_and_is_not_read_as_markup(verb: str, uptrend: Uptrend) -> None:
    group = typer.main.get_command(app)
    context = typer.Context(group, resilient_parsing=True)
    found = group.get_command(context, verb)  # type: ignore[attr-defined]
    names = found.list_commands(context) if hasattr(found, "list_commands") else []
    for words in [[verb], *([verb, name] for name in names)]:
        shown = uptrend(*words, "--help", width=60).out
        for line in shown.splitlines()[1:]:
            assert len(line) <= (80 if "uptrend" in line else 60), line  # examples are not wrapped
            assert not line.endswith("..."), line


def test_brackets_survive(uptrend: Uptrend) -> None:
    assert "[warmstart]" in uptrend("warmstart", "--help").out
    assert """--set 'tasks.operations=["+"]'""" in uptrend("tasks", "show", "--help").out
    assert "No such command 'trane'" in uptrend("trane", code=2).err


def test_help_loads_nothing_heavy() -> None:
    code = """
import sys
from uptrend.cli.main import main
try:
    main(["--help"])
except SystemExit as end:
    assert not end.code
print({"torch", "matplotlib", "jinja2", "scipy", "pandas"} & set(sys.modules))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "set()"
    assert "train" in done.stdout
