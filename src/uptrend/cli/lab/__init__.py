"""`uptrend lab`: hypotheses tested by experiments, verdicts computed, the journal kept. One file a verb."""

import typer

from uptrend.cli.verbs import verbs

VERBS = {
    "init": ("uptrend.cli.lab.init", "command", "Make a lab: problem, hypotheses, experiments log, results, fixes."),
    "new": ("uptrend.cli.lab.new", "command", "Start a hypothesis: by hand, from a catalogue id or from a finding."),
    "list": ("uptrend.cli.lab.listing", "command", "What there is to test, what is known, and the ready ones."),
    "run": ("uptrend.cli.lab.run", "command", "Run a hypothesis's arms over its seeds, and judge it."),
    "judge": ("uptrend.cli.lab.judge", "command", "Judge hypotheses from the runs that are there."),
    "sweep": ("uptrend.cli.lab.sweep", "command", "Run a grid or a list of config values over seeds."),
    "report": ("uptrend.cli.lab.report", "command", "The whole lab as one page."),
    "import": ("uptrend.cli.lab.importing", "command", "Read a journal that people kept by hand into a lab."),
}

app = typer.Typer(cls=verbs(VERBS), no_args_is_help=True, add_completion=False, rich_markup_mode=None)


@app.callback()
def lab() -> None:
    """Test one suspicion at a time, and let the machine compute the verdict.

    \b
    uptrend lab init debug                               a folder of hypotheses
    uptrend lab new h01 h03 --dir debug                  ready ones; or from the catalogue, or a finding
    uptrend lab run h01 --dir debug                      its arms over its seeds, and the verdict
    uptrend lab report debug --html                      the whole journal as a page
    """
