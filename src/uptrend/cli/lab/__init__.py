"""`uptrend lab`: test hypotheses by experiment, compute verdicts, keep the journal."""

import typer

from uptrend.cli.lab.experiments import judge, run, sweep
from uptrend.cli.lab.files import import_files, init, list_hypotheses, new, report

app = typer.Typer(no_args_is_help=True, add_completion=False, rich_markup_mode=None)


@app.callback()
def lab() -> None:
    """Test one suspicion at a time; the verdict is computed.

    \b
    uptrend lab init debug              make a lab
    uptrend lab new h01 h03 --dir debug add ready hypotheses
    uptrend lab run h01 --dir debug     run it, and judge it
    uptrend lab report debug --html     write the journal
    """


app.command("init")(init)
app.command("new")(new)
app.command("list")(list_hypotheses)
app.command("run")(run)
app.command("judge")(judge)
app.command("sweep")(sweep)
app.command("report")(report)
app.command("import")(import_files)
