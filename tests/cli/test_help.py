"""`--help`: fast, readable in narrow terminals, and in the words that stand in the code."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import typer

from uptrend import __version__
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
        for line in shown.partition("\n\n")[
            2
        ].splitlines():  # after the usage, which has the program's own name
            assert len(line) <= (80 if "uptrend" in line else 60), line  # examples are not wrapped
            assert not line.endswith("...") or "[ARGS]" in line, line


def test_brackets_survive(uptrend: Uptrend) -> None:
    assert "[warmstart]" in uptrend("warmstart", "--help").out
    assert """--set 'tasks.operations=["+"]'""" in uptrend("tasks", "show", "--help").out
    assert "No such command 'trane'. Did you mean 'train'" in uptrend("trane", code=2).err
    tuned = uptrend("train", "recipes/tiny.toml", "--learning_rate", "1e-5", code=2).err
    assert "No such option: --learning_rate. Did you mean --set learning.lr=VALUE?" in tuned
    assert "--set" not in uptrend("doctor", "--learning_rate", "1e-5", code=2).err
    assert "No such command 'shw'. Did you mean 'show'?" in uptrend("runs", "shw", code=2).err


@pytest.mark.parametrize(
    ("asked", "said"), [("--help", "train"), ("--version", f"uptrend {__version__}")]
)
def test_help_and_version_load_nothing_heavy(asked: str, said: str) -> None:
    code = f"""
import sys
from uptrend.cli.main import main
try:
    main(["{asked}"])
except SystemExit as end:
    assert not end.code
print({{"torch", "matplotlib", "jinja2", "scipy", "pandas"}} & set(sys.modules))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "set()"
    assert said in done.stdout


@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        ("uptrend pre", ["preflight"]),
        ("uptrend --ver", ["--version"]),
        ("uptrend runs sh", ["show"]),
        ("uptrend runs show f", ["fast", "first"]),
        ("uptrend plot fa", ["fast"]),
        ("uptrend train reci", ["recipes/deep/er.toml", "recipes/one.toml"]),
        (
            "uptrend train recipes/one.toml --set learning.cl",
            [f"learning.clip_{end}=" for end in ("low", "high", "max")],
        ),
    ],
)
def test_the_shell_completes(typed: str, offered: list[str], make_run: Callable[..., Path]) -> None:
    for name in ("fast", "first", "slow"):
        folder = make_run(name, steps=2).parents[1]
    (folder / "recipes" / "deep").mkdir(parents=True)
    for name in ("one.toml", "deep/er.toml"):
        (folder / "recipes" / name).touch()
    asks = {
        "_UPTREND_COMPLETE": "complete_bash",
        "COMP_WORDS": typed,
        "COMP_CWORD": str(len(typed.split()) - 1),
    }
    code = "import sys; sys.argv = ['uptrend']; from uptrend.cli.main import main; main()"
    command = [sys.executable, "-c", code]
    done = subprocess.run(
        command, cwd=folder, env=os.environ | asks, capture_output=True, text=True, check=False
    )
    assert done.stdout.split() == offered, done.stderr


@pytest.mark.parametrize(
    ("load", "before", "after"),
    [(99.0, "", "PASSIVE"), (0.1, "", None), (99.0, "ACTIVE", "ACTIVE")],
)
def test_threads_do_not_spin_where_processes_compete_for_cores(
    load: float, before: str, after: str | None, monkeypatch: pytest.MonkeyPatch, uptrend: Uptrend
) -> None:
    monkeypatch.setenv("OMP_WAIT_POLICY", before)
    if not before:
        monkeypatch.delenv("OMP_WAIT_POLICY")
    monkeypatch.setattr(os, "getloadavg", lambda: (load, load, load))
    uptrend("--version")
    assert os.environ.get("OMP_WAIT_POLICY") == after
