"""Commands that are imported when they are called, so that `--help` is quick and needs no torch."""

import importlib
from collections.abc import Mapping
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup


def verbs(table: Mapping[str, tuple[str, str, str]]) -> type[TyperGroup]:
    """A group of commands by name: the module, the function or app in it, and a line of help."""

    class Verbs(TyperGroup):
        is_called = False
        """Whether one of them is called, and not their list asked for."""

        def list_commands(self, ctx: Any) -> list[str]:  # noqa: ARG002 (Click's signature)
            return list(table)

        def resolve_command(self, ctx: Any, args: list[str]) -> Any:
            self.is_called = True
            try:
                return super().resolve_command(ctx, args)
            finally:
                self.is_called = False

        def get_command(self, ctx: Any, cmd_name: str) -> Any:
            if cmd_name not in table:
                return None
            module, attribute, summary = table[cmd_name]
            if not (self.is_called or ctx.resilient_parsing):
                return TyperCommand(cmd_name, short_help=summary)
            found = getattr(importlib.import_module(module), attribute)
            if isinstance(found, typer.Typer):
                return typer.main.get_command(found)
            single = typer.Typer(add_completion=False, rich_markup_mode=None)  # [section] is no markup
            single.command(cmd_name)(found)
            return typer.main.get_command(single)

    return Verbs
