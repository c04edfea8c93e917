"""`uptrend sandbox`: see where a model's commands can run."""

from dataclasses import asdict

import typer
from rich.text import Text

from uptrend.cli.console import AsJson, columns, make_app, print_json, terminal
from uptrend.stats.formatting import NONE
from uptrend.tasks.sandbox import survey
from uptrend.tasks.sandbox.backends import CONTAINERFILE

app = make_app("See where a model's commands can run.")


@app.callback()
def sandbox() -> None:
    """See where a model's commands can run."""


@app.command()
def check(as_json: AsJson = False) -> None:
    """Try every sandbox: open it, run Python in it, close it.

    \b
    uptrend sandbox check
    uptrend sandbox check --json

    `auto` takes the first that works, but never `process`, which contains nothing: exit code 1 if there is none.
    """
    found = survey()
    chosen = next((usable.name for usable in found if usable.works and usable.name != "process"), None)
    if as_json:
        backends = [asdict(usable) for usable in found]
        print_json({"auto": chosen, "backends": backends, "containerfile": str(CONTAINERFILE)})
    else:
        marks = {True: Text("✓", "green"), False: Text("✗", "red")}
        rows = [
            (marks[usable.works], usable.name, NONE if usable.seconds is None else f"{usable.seconds * 1000:.0f} ms",
             Text(usable.why))
            for usable in found
        ]  # fmt: skip
        terminal().print(columns("", "sandbox", "opens in", "", rows=rows, right=["opens in"], wraps=""))
        terminal().print(f"\nauto takes {chosen or 'none: install bubblewrap, or name one'}.")
    if chosen is None:
        raise typer.Exit(1)
