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
    found = group.get_command(typer.Context(group), verb)  # type: ignore[attr-defined]
    commands = getattr(found, "commands", {verb: found})
    assert {command.rich_markup_mode for command in commands.values()} == {None}
