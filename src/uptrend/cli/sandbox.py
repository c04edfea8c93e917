"""`uptrend sandbox`: see where a model's commands can run."""

from dataclasses import asdict

import typer
from rich.text import Text

from uptrend.cli.console import AsJson, make_app, print_json
from uptrend.present.terminal import columns, terminal
from uptrend.sandbox import survey
from uptrend.sandbox.backends import CONTAINERFILE

app = make_app("See where a model's commands can run.")


@app.callback()
def sandbox() -> None:
    """See where a model's commands can run."""


@app.command()
def check(as_json: AsJson = False) -> None:
    """Say which sandboxes work here.

    \b
    uptrend sandbox check
    uptrend sandbox check --json

    Each is opened, runs Python and is closed. `auto` takes the first that works, but never
    `process`, which contains nothing; the exit code is 1 if there is none.
    """
    found = survey()
    chosen = next(
        (usable.name for usable in found if usable.works and usable.name != "process"), None
    )
    if as_json:
        backends = [asdict(usable) for usable in found]
        print_json({"auto": chosen, "backends": backends, "containerfile": str(CONTAINERFILE)})
    else:
        marks = {True: Text("✓", "green"), False: Text("✗", "red")}
        took = [
            "–" if usable.seconds is None else f"{usable.seconds * 1000:.0f} ms" for usable in found
        ]
        rows = [
            (marks[usable.works], usable.name, time, usable.why)
            for usable, time in zip(found, took, strict=True)
        ]
        terminal().print(columns("", "sandbox", "opens in", "", rows=rows, right=["opens in"]))
        terminal().print(f"\nauto takes {chosen or 'none: install bubblewrap, or name one'}.")
    if chosen is None:
        raise typer.Exit(1)
