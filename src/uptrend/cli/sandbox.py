"""`uptrend sandbox`: see where a model's commands can run."""

from dataclasses import asdict

import typer
from rich.text import Text

from uptrend.cli.console import AsJson, make_app, print_json
from uptrend.present.formatting import NO_VALUE
from uptrend.present.terminal import columns, terminal
from uptrend.sandbox import survey
from uptrend.sandbox.backends import CONTAINERFILE

app = make_app("See where a model's commands can run.")


@app.callback()
def sandbox() -> None:
    """See where a model's commands can run."""


@app.command()
def check(as_json: AsJson = False) -> None:
    """List the sandboxes that work here.

    \b
    uptrend sandbox check
    uptrend sandbox check --json

    Each is opened, runs Python and is closed. `auto` takes the first that works, but never
    `process`, which contains nothing; the exit code is 1 if there is none.
    """
    backends = survey()
    auto = next(
        (backend.name for backend in backends if backend.works and backend.name != "process"), None
    )
    if as_json:
        tables = [asdict(backend) for backend in backends]
        print_json({"auto": auto, "backends": tables, "containerfile": str(CONTAINERFILE)})
    else:
        rows = []
        for backend in backends:
            mark = Text("✓", "green") if backend.works else Text("✗", "red")
            time = NO_VALUE if backend.seconds is None else f"{backend.seconds * 1000:.0f} ms"
            rows.append((mark, backend.name, time, backend.why))
        terminal().print(columns("", "sandbox", "opens in", "", rows=rows, right=["opens in"]))
        terminal().print(f"\nauto takes {auto or 'none: install bubblewrap, or name one'}.")
    if auto is None:
        raise typer.Exit(1)
