"""`uptrend serve`: the dashboard; `uptrend export`: one run as a single page."""

import contextlib
import socket
import webbrowser
from pathlib import Path
from typing import Annotated

import typer

from uptrend.cli.console import RunArgument, open_run
from uptrend.policy.known import home, need_extra
from uptrend.present.formatting import size
from uptrend.records import UptrendError

DEFAULT_FOLDER = Path("runs")
# Addresses that listen on every interface; a browser needs a name.
ALL_INTERFACES = ("0.0.0.0", "::")


def command(
    folders: Annotated[
        list[Path] | None,
        typer.Argument(
            help=(
                "Folders of runs, journals and other trainers' logs, or single logs. Default: runs."
            ),
            metavar="[RUNS]...",
            readable=False,
        ),
    ] = None,
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port; 0 takes a free one.")] = 8765,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    token: Annotated[
        str, typer.Option(help="Token to ask for; a new one at each start by default.")
    ] = "",
    no_token: Annotated[
        bool,
        typer.Option(
            "--no-token", help="Ask for none: everyone on this machine can read. Loopback only."
        ),
    ] = False,
    names: Annotated[
        list[str] | None,
        typer.Option("--name", help="Further host name that a browser may use. Repeatable."),
    ] = None,
    opens: Annotated[bool, typer.Option("--open/--no-open", help="Open a browser.")] = False,
    reindex: Annotated[
        bool, typer.Option("--reindex", help="Discard the cache, and read everything again.")
    ] = False,
) -> None:
    """Open the dashboard: runs, tokens, findings and verdicts in a browser.

    \b
    uptrend serve                       runs of ./runs
    uptrend serve runs lab outputs      several folders
    uptrend serve trainer_state.json    another trainer's log
    uptrend serve --port 0 --open       any port, and a browser

    It reads run directories, logs that `uptrend doctor` reads, and labs; nothing is written to
    them. Records are cached under UPTREND_HOME. The address that is printed has a token, which
    every request needs. Over SSH, forward the port: ssh -L 8765:localhost:8765 MACHINE
    """
    for package in ("starlette", "uvicorn", "plotly"):
        need_extra(package, "dashboard")
    from uptrend.dashboard.index import delete_index
    from uptrend.dashboard.library import Library
    from uptrend.dashboard.server import LOOPBACK_NAMES, DashboardServer, new_token, open_socket
    from uptrend.rollout.http import is_loopback

    paths = folders or [DEFAULT_FOLDER]
    for path in paths:
        if not path.exists() and path != DEFAULT_FOLDER:
            raise UptrendError(f"{path} does not exist. Name a folder of runs, a journal or a log.")
    if no_token and token:
        raise UptrendError("--no-token and --token exclude each other: leave one out.")
    if no_token and not is_loopback(host):
        raise UptrendError(
            f"--no-token would show everything to whoever reaches {host}. Leave it out, or --host."
        )
    if not no_token:
        token = token or new_token()
    cache = home() / "dashboard"
    if reindex:
        delete_index(cache)
    listener = open_socket(host, port)
    port = listener.getsockname()[1]
    url_host = host
    if host in ALL_INTERFACES:
        url_host = socket.gethostname()
    if ":" in url_host:  # IPv6
        url_host = f"[{url_host}]"
    url = f"http://{url_host}:{port}/"
    if token:
        url += f"?token={token}"
    allowed_hosts = [*LOOPBACK_NAMES, host, url_host, *(names or ())]
    server = DashboardServer(Library(paths, cache), allowed_hosts, token)
    typer.echo(f"Uptrend dashboard: {url}\nReading {', '.join(map(str, paths))}. Ctrl-C ends it.")
    if not paths[0].exists():
        typer.echo(f"There is no {paths[0]}/ yet: its runs appear as they are made.")
    if opens:
        webbrowser.open(url)
    with contextlib.suppress(KeyboardInterrupt):  # the usual way to end it
        server.run(sockets=[listener])


def export(
    run: RunArgument,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="File to write. Default: NAME.html.")
    ] = None,
    rollouts: Annotated[
        int, typer.Option(min=0, help="Maximum number of rollouts to include, with their tokens.")
    ] = 200,
) -> None:
    """Write one run as a single page that opens without a server.

    \b
    uptrend export quickstart
    uptrend export runs/quickstart --out report.html --rollouts 50

    Curves, findings and config are whole; of rollouts, those that findings name,
    and whole groups from the first to the last step.
    """
    need_extra("plotly", "dashboard")
    need_extra("starlette", "dashboard")
    from uptrend.dashboard.export import export_run

    if Path(run).exists() and not (Path(run) / "run.json").exists():
        raise UptrendError(
            f"{run} is no run directory: logs of other trainers are shown by uptrend serve {run}."
        )
    opened = open_run(run)
    target = out or Path(f"{opened.name}.html")
    n_rollouts = export_run(opened.path, target, rollouts)
    typer.echo(f"Wrote {target} ({size(target.stat().st_size)}, {n_rollouts} rollouts)")
