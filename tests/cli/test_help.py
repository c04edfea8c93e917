"""What --help says, in the words that stand in the code."""

import pytest
import typer

from uptrend.cli.main import VERBS, app, main


def text_of(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    with pytest.raises(SystemExit) as end:
        main([*arguments, "--help"])
    assert end.value.code == 0
    return " ".join(capsys.readouterr().out.split())


def test_brackets_survive(capsys: pytest.CaptureFixture[str]) -> None:
    assert "A recipe: a TOML file; its [warmstart] says how much." in text_of(capsys, "warmstart")
    assert """--set 'tasks.operations=["+"]'""" in text_of(capsys, "tasks", "show")


@pytest.mark.parametrize("verb", VERBS)
def test_no_help_is_read_as_markup(verb: str) -> None:
    group = typer.main.get_command(app)
    context = typer.Context(group, resilient_parsing=True)
    found = group.get_command(context, verb)  # type: ignore[attr-defined]
    names = found.list_commands(context) if hasattr(found, "list_commands") else []
    commands = [found.get_command(context, name) for name in names] or [found]
    assert {command.rich_markup_mode for command in commands} == {None}
