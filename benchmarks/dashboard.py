"""The dashboard beside TensorBoard and Trackio, on made runs and in a real browser.

    python benchmarks/dashboard.py make DEST              # 1,002 runs, about 2.7 GB; --runs 20 --steps 100 for a try
    python benchmarks/dashboard.py others DEST            # the same scalars for TensorBoard and Trackio
    python benchmarks/dashboard.py measure DEST --others  # a Markdown table

Made are `--runs` runs of `--steps` steps, a run `long` of 100 times as many steps, and a run
`rollouts` with 200 rollouts per step. The same seed gives the same files.
"""

# ruff: noqa: I001 (names of records side by side)

import contextlib
import json
import math
import os
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import urlencode
from urllib.request import Request, urlopen

import numpy as np
import psutil
import typer

from uptrend.config import load_config, to_table
from uptrend.doctor import report as reports
from uptrend.records import (
    Basis, Ending, Evidence, Finding, Message, Report, Reward, Role, Rollout, RunDirectory, Sequence, Severity,
    ToolCall, Trend, TrendKind, rollouts_table,
)  # fmt: skip
from uptrend.records.lines import read_lines, to_line
from uptrend.records.schema import SCHEMA_VERSION
from uptrend.stats.intervals import wilson

# Metrics of a run's lines: mean before training, mean after it, noise; * for whole numbers.
METRICS = """
reward/mean .2 .8 .03; reward/std .4 .25 .02; reward/min 0 0 0; reward/max 1 1 0; reward/correct/share .2 .75 .04
reward/part/exact/mean .2 .8 .03; sampling/rollouts/count* 200 200 0; sampling/failed/count* 0 0 .3
sampling/resampled/groups* 0 0 0; sampling/old/groups* 0 0 0; sampling/length/mean 30 42 1.5
sampling/length/max* 80 110 9; sampling/prompt/mean 20 20 .3; sampling/prompt/max* 24 24 1
sampling/context/mean 60 72 1.6; sampling/context/max* 120 140 10; sampling/truncated/share .06 .01 .006
sampling/turns/mean 1.8 2.1 .05; sampling/distinct/share .9 .4 .02; sampling/ended/stop-token/share .94 .99 .006
sampling/lag/mean 0 0 0; sampling/lag/max* 0 0 0; advantage/abs/mean .8 .7 .04; advantage/abs/max 3.7 3.7 .1
advantage/dead/share .3 .35 .04; advantage/dead_low/share .3 .05 .03; advantage/dead_high/share 0 .3 .03
sampler/kl/mean 2e-4 4e-4 5e-5; sampler/ratio/mean 1 1 1e-4; sampler/ess/share .999 .998 2e-4
sampler/gap/mean .004 .006 4e-4; sampler/gap/max .3 .5 .1; learner/entropy/mean 1.2 .4 .02; learner/ratio/mean 1 1 1e-3
clip/low/share .001 .004 5e-4; clip/high/share .002 .006 8e-4; loss/total 0 0 .01; loss/policy 0 0 .01
loss/kl 0 .002 1e-4; loss/entropy 0 0 0; gradient/norm/before 2.5 .8 .2; gradient/norm/after 1 .8 .05
optimizer/lr 1 0 0; optimizer/updates/count* 1 1 0; optimizer/skipped/count* 0 0 0; tokens/padding/share .1 .1 .01
tokens/prompt/count* 4000 4000 60; tokens/trained/prompt/count* 0 0 0; tokens/model/count* 6000 8400 300
tokens/trained/model/count* 6000 8400 300; tokens/tool/count* 2000 2300 90; tokens/trained/tool/count* 0 0 0
time/tokens/per_second 6300 8200 400; weights/norm 47.3 47.4 .003; weights/update/norm .06 .005 .002
weights/changed/share .99 .98 .002; weights/update/embedding/norm .003 4e-4 1e-4
weights/update/attention/norm .03 .002 .001; weights/update/mlp/norm .05 .004 .002
weights/update/norm/norm .002 2e-4 5e-5; seconds/sample 2.1 2.6 .2; seconds/update 1.4 1.7 .1
seconds/load 8e-4 1e-3 1e-4; seconds/record .014 .013 .001; seconds/step 3.6 4.4 .3; memory/peak/gib 8.9 12.2 .02
"""
COLUMNS = [part.split() for part in METRICS.replace("\n", ";").split(";") if part.strip()]
RATES = (1e-6, 3e-6, 5e-6, 1e-5, 2e-5, 3e-5, 5e-5, 1e-4)
# Share of the way from before to after that a run goes at each rate; too large a rate makes it
# worse than before.
GAINS = (0.1, 0.3, 0.5, 0.8, 1.0, 1.0, 0.6, -0.2)
BETAS = (0.0, 0.001, 0.01, 0.04, 0.1)
START = 1_760_000_000.0  # time of the first run; fixed, so that the same seed gives the same files
LONG, ROLLOUTS = 1004, 1005  # places in the sweep of the two other runs, which learn and finish
PROJECT = "benchmark"  # of Trackio
TASKS, GROUPS, SIZE = 200, 25, 8
WORDS = "the model reads a question, looks for what it needs in notes and figures, adds them up and says why"
FLAGS = "no-sandbox disable-gpu disable-quic no-first-run disable-background-networking disable-component-update"
FLAGS += " disable-sync"

app = typer.Typer(add_completion=False, help=__doc__)


@app.command()
def make(
    dest: Annotated[Path, typer.Argument(help="New folder for the runs.")],
    runs: Annotated[int, typer.Option(help="Number of runs beside `long` and `rollouts`.")] = 1000,
    steps: Annotated[
        int, typer.Option(help="Steps of a run; `long` has 100 times as many.")
    ] = 1000,
    seed: int = 0,
) -> None:
    """Make run directories in the format that `uptrend train` writes."""
    began = time.perf_counter()
    for place in range(runs):
        write_run(dest / f"run-{place + 1:04d}", place, steps, seed)
    write_run(dest / "long", LONG, 100 * steps, seed)
    write_run(dest / "rollouts", ROLLOUTS, steps, seed)
    write_rollouts(dest / "rollouts", steps, seed)
    print(f"{runs + 2} runs, {size_of(dest):.2f} GB, made in {time.perf_counter() - began:.0f} s")


def write_run(path: Path, place: int, steps: int, seed: int) -> None:
    """Write a run without rollouts. Its place in the sweep gives its config; lines are written in
    one go.
    """
    at = place % len(RATES)
    beta, own = BETAS[place // len(RATES) % len(BETAS)], place // (len(RATES) * len(BETAS))
    settings = (
        f"learning.steps={steps}",
        f"learning.lr={RATES[at]}",
        f"learning.kl.beta={beta}",
        f"seed={own}",
    )
    random, began = np.random.default_rng([seed, place]), START + 7200 * place
    tasks = {"name": "arithmetic", "version": "1", "seed": 0}
    info = {
        "schema": SCHEMA_VERSION, "name": path.name, "created": datetime.fromtimestamp(began, UTC).isoformat(),
        "uptrend": "0.2.0", "python": "3.11.7", "packages": {"numpy": np.__version__},
        "machine": {"device": "cpu", "threads": 2, "processes": 1, "parallel": "ddp", "cpu": "x86_64", "gpu": None},
        "config": to_table(load_config({"name": path.name, "model": {"name": "tiny"}}, settings)),
        "tasks": {**tasks, "count": 666, "hash": "e888e070d72c1251"},
        "eval": {**tasks, "count": TASKS, "hash": "4084fc43b49f4d08"},
        "model": {"name": "tiny", "parameters": 995_968, "trainable": 995_968, "digest": "ffffca60bc6e6000"},
        "notes": [],
    }  # fmt: skip
    with RunDirectory.create(path, info):
        pass
    # One run in 40 failed, one in 40 was stopped and one in 40 killed; the others finished.
    end = {7: "failed", 17: "stopped", 27: "killed"}.get(place % 40, "finished")
    last = steps if end == "finished" else steps * 2 // 3
    progress = (
        GAINS[at]
        * (1 + 0.1 * random.standard_normal())
        * (1 - np.exp(-4 * np.arange(1, last + 1) / steps))
    )
    times = began + np.cumsum(random.uniform(3, 5, last))
    columns = [np.arange(1, last + 1).tolist(), times.tolist()]
    template = '{"step":%d,"time":%r'
    for name, before, after, noise in COLUMNS:
        key, low, high = name.rstrip("*"), float(before), float(after)
        values = low + (high - low) * progress + float(noise) * random.standard_normal(last)
        if key == "optimizer/lr":
            values = RATES[at] * (1 - np.arange(last) / steps)
        if low >= 0 and high >= 0 and not key.startswith("loss/"):
            values = np.clip(values, 0, 1 if key.endswith("/share") else None)
        columns.append((np.rint(values).astype(int) if name.endswith("*") else values).tolist())
        template += f',"{key}":%{"d" if name.endswith("*") else "r"}'
    template += "}\n"
    with (path / "metrics.jsonl").open("w") as file:
        file.writelines(template % row for row in zip(*columns, strict=True))
    evaluated = [
        step for step in (0, steps // 4, steps // 2, steps * 3 // 4, steps) if step <= last
    ]
    shares = [0.2 + (0.55 * progress[step - 1] if step else 0.0) for step in evaluated]
    lines = [
        evaluation_line(
            step, int(random.binomial(TASKS, min(max(share, 0.0), 1.0))), times[max(step - 1, 0)]
        )
        for step, share in zip(evaluated, shares, strict=True)
    ]
    (path / "evals.jsonl").write_bytes(b"".join(map(to_line, lines)))
    told = {"failed": {"error": "OutOfMemoryError: a batch did not fit"}}.get(end, {"step": last})
    told |= {"stopped_by": "user", "reason": "Ctrl-C"} if end == "stopped" else {}
    events: list[dict[str, Any]] = [{"event": "started", "time": began, "pid": 1000 + place}]
    events += [] if end == "killed" else [{"event": end, "time": times[-1], **told}]
    (path / "events.jsonl").write_bytes(b"".join(map(to_line, events)))
    if GAINS[at] < 0.4 or place % 3 == 0:
        size, kind = (
            "large" if GAINS[at] < 0 else "small",
            TrendKind.FLAT if GAINS[at] < 0.4 else TrendKind.LEARNING,
        )
        evidence = (Evidence("reward does not rise", 0.2, "reward/mean", last),)
        cause = (
            f"optimizer.lr-{size}",
            Severity.WARNING,
            Basis.SIGNAL,
            f"The learning rate is too {size}.",
            evidence,
        )
        findings = (Finding(*cause),) if kind is TrendKind.FLAT else ()
        trend = Trend(kind, "Made for a benchmark.", headline=kind)
        report = Report(path.name, "uptrend", path.name, last, trend, findings, ())
        (path / "findings.json").write_text(json.dumps(reports.to_table([report]), indent=1))


def evaluation_line(step: int, correct: int, when: float) -> dict[str, Any]:
    share, (low, high) = correct / TASKS, wilson(correct, TASKS)
    return {
        "step": step, "accuracy": share, "low": low, "high": high, "tasks": TASKS, "correct": correct, "failed": 0,
        "by_family": {"arithmetic": share}, "reward": share, "parts": {"exact": share}, "pass_at": {}, "seconds": 1.1,
        "time": when, "hash": "4084fc43b49f4d08",
    }  # fmt: skip


def write_rollouts(path: Path, steps: int, seed: int) -> None:
    """Write rollouts for each step and each evaluation of a run that has only lines so far."""
    random = np.random.default_rng([seed, 1_000_000])
    sentences = [" ".join(random.choice(WORDS.split(), 20)) for _ in range(512)]
    writer = RunDirectory(path)
    for step in range(1, steps + 1):
        writer.rollouts(step, rollouts_table(path.name, played(step, random, sentences)))
    lines = list(read_lines(path / "evals.jsonl"))
    (path / "evals.jsonl").unlink()
    for line in lines:
        writer.evaluation(line, rollouts_table(path.name, played(line["step"], random, sentences)))


def played(step: int, random: np.random.Generator, sentences: list[str]) -> Iterator[Rollout]:
    """Yield a step's rollouts: two turns of the model with a tool's answer between, 48 to 72
    tokens.
    """
    count = GROUPS * SIZE
    ids = random.integers(4, 90, (count, 72), np.int32)
    logprobs = -random.exponential(0.5, (count, 72)).astype(np.float32)
    gaps = random.normal(0, 0.004, (count, 72)).astype(np.float32)
    right, ends = random.random(count) < 0.5, random.integers(48, 73, count)
    said, numbers = random.integers(0, len(sentences), (count, 5)), random.integers(0, 1000, count)
    roles = np.repeat(
        np.array([Role.PROMPT, Role.MODEL, Role.TOOL, Role.MODEL], np.int8), (20, 14, 10, 28)
    )
    turns = np.repeat(np.array([0, 1], np.int32), (34, 38))
    sampled = roles == Role.MODEL
    nan = np.float32(np.nan)
    for at in range(count):
        group, index = divmod(at, SIZE)
        n, mine, number = ends[at], sampled[: ends[at]], str(numbers[group])
        mean = right[group * SIZE : (group + 1) * SIZE].mean()
        sequence = Sequence(
            ids=ids[at, :n], turns=turns[:n], roles=roles[:n],
            versions=np.where(mine, np.int32(step - 1), np.int32(-1)),
            sampler=np.where(mine, logprobs[at, :n], nan),
            weights=np.where(mine, np.float32(1 / (count * mine.sum())), np.float32(0)),
            attended=np.ones(n, bool),
            advantages=np.where(mine, np.float32(right[at] - mean), np.float32(0)),
            learner=np.where(mine, logprobs[at, :n] + gaps[at, :n], nan),
        )  # fmt: skip
        words = [sentences[place] for place in said[at]]
        messages = (
            Message("system", "Answer with a number. You may look things up first."),
            Message("user", f"Question {numbers[group]}: {sentences[said[group * SIZE, 0]]}?"),
            Message("assistant", f"{words[1]}.", (ToolCall("search", {"query": words[2]}),)),
            Message("tool", f"1. {words[3]}\n2. {words[4]}"),
            Message("assistant", f"{words[0]}.\n\nAnswer: {number if right[at] else 'unknown'}"),
        )
        reward = Reward.of("exact", float(right[at]), 0.0, 1.0, bool(right[at]))
        yield Rollout(
            step, f"{step:06d}-{group:04d}", index, f"task-{step % 40:02d}-{group:02d}", "arithmetic", number, at,
            messages, (sequence,), reward, Ending.STOP_TOKEN, None, 2.5,
        )  # fmt: skip


@app.command()
def others(dest: Annotated[Path, typer.Argument(help="Folder that `make` made.")]) -> None:
    """Write the runs' scalars for TensorBoard and Trackio, by their own writers, into new folders
    beside DEST.
    """
    for name, write in {"tensorboard": write_tensorboard, "trackio": write_trackio}.items():
        began, folder = time.perf_counter(), beside(dest, name)
        folder.mkdir()
        write(folder, sorted(path.parent for path in dest.glob("*/run.json")))
        print(
            f"{name}: {size_of(folder):.2f} GB, written in {time.perf_counter() - began:.0f} s",
            flush=True,
        )


def size_of(folder: Path) -> float:
    """Return a folder's size in GB."""
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file()) / 1e9


def beside(dest: Path, name: str) -> Path:
    return dest.with_name(f"{dest.name}-{name}")


def write_tensorboard(folder: Path, runs: list[Path]) -> None:
    from tensorboard.compat.proto import event_pb2, summary_pb2
    from tensorboard.summary.writer.event_file_writer import EventFileWriter

    for path in runs:
        writer = EventFileWriter(str(folder / path.name))
        for line in read_lines(path / "metrics.jsonl"):
            step, when = line.pop("step"), line.pop("time")
            values = [
                summary_pb2.Summary.Value(tag=key, simple_value=value)
                for key, value in line.items()
            ]
            writer.add_event(
                event_pb2.Event(
                    wall_time=when, step=step, summary=summary_pb2.Summary(value=values)
                )
            )
        writer.close()


def write_trackio(folder: Path, runs: list[Path]) -> None:
    os.environ["TRACKIO_DIR"] = str(folder)  # read when it is imported
    from trackio.sqlite_storage import SQLiteStorage

    for path in runs:
        lines = list(read_lines(path / "metrics.jsonl"))
        steps = [line.pop("step") for line in lines]
        times = [datetime.fromtimestamp(line.pop("time"), UTC).isoformat() for line in lines]
        config = json.loads((path / "run.json").read_text())["config"]
        # What its server does with the points that a run sends it, a whole run at once.
        SQLiteStorage.bulk_log(PROJECT, path.name, lines, steps, times, config)


# Of a page, the server's address and the number of the try; returns the time at which it was done,
# or None for now.
Act = Callable[[Any, str, int], float | None]
# Notes when the dashboard's pages say that they are drawn: plotly's script, which runs after that,
# blocks who waits.
NOTES = """
new MutationObserver(() => { (window.seen ||= {})[document.body?.dataset.ready] ??= Date.now() / 1000; })
    .observe(document, {subtree: true, attributes: true, attributeFilter: ["data-ready"]});
"""


@dataclass(frozen=True)
class Tool:
    """A server and the pages that are timed."""

    name: str
    words: list[str]  # its command, up to the port
    environment: dict[str, str]
    ready: str  # meaning of `is_ready`
    is_ready: Callable[[str, str], bool]  # of its address and what it has printed
    pages: list[tuple[str, Act, Act | None]]  # name, what is timed, and what comes before
    index: Path | None = None  # folder that it keeps from one start to the next


@app.command()
def measure(
    dest: Annotated[Path, typer.Argument(help="Folder that `make` made.")],
    others: Annotated[
        bool, typer.Option(help="Measure TensorBoard and Trackio too, on what `others` wrote.")
    ] = False,
    only: Annotated[str, typer.Option(help="Measure one: uptrend, tensorboard or trackio.")] = "",
    tries: Annotated[
        int, typer.Option(help="Times that each page is opened, and each server started.")
    ] = 5,
    limit: Annotated[float, typer.Option(help="Seconds after which a page is given up.")] = 120,
) -> None:
    """Start each server, open its pages in a headless browser, and print a Markdown table."""
    from playwright.sync_api import sync_playwright

    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended"))  # so that servers end too
    dest = dest.resolve()
    count, size = len(list(dest.glob("*/run.json"))), size_of(dest)
    print(
        f"{count} runs, {size:.2f} GB; {tries} tries each: median (least–most), in seconds. Files are in the system's"
    )
    print(
        "cache. A first visit has an empty browser cache; a second one is by the same browser, in a new tab.\n"
    )
    print("| | first visit | second visit |\n|---|---|---|", flush=True)
    with sync_playwright() as playwright, tempfile.TemporaryDirectory() as home:
        path = shutil.which("chromium") or shutil.which("google-chrome")
        browser = playwright.chromium.launch(
            executable_path=path, args=[f"--{flag}" for flag in FLAGS.split()]
        )
        tools = [
            own(dest, count, Path(home)),
            tensorboard_tool(dest, count),
            trackio_tool(dest, count),
        ]
        for tool in tools if others or only else tools[:1]:
            if only in ("", tool.name.lower()):
                measure_tool(tool, browser, tries, limit)
        browser.close()


def own(dest: Path, count: int, home: Path) -> Tool:
    """Return the dashboard; its pages have their name in body.dataset.ready once they are drawn."""
    steps = len(list((dest / "rollouts/rollouts").iterdir()))

    def is_indexed(url: str, _: str) -> bool:
        status = json.loads(ask(f"{url}/api/status"))
        return not status["indexing"] and status["counts"]["run"] == count

    def fragment(route: str, run: str, **values: Any) -> str:
        return f"#/{route}?" + urlencode({"run": f"{dest.name}/{run}", **values})

    def rollout(at: int) -> str:
        step = steps // 2 + at  # another file each time
        return fragment("rollout", "rollouts", step=step, group=f"{step:06d}-0007", index=0)

    def wait(page: Any, route: str) -> float:
        page.wait_for_selector(
            f"body[data-ready='{route}']", state="attached"
        )  # its policy forbids to wait by script
        at: float = page.evaluate("route => window.seen[route]", route)
        return at

    def opened(route: str, to: Callable[[int], str]) -> Act:
        def act(page: Any, url: str, at: int) -> float:
            page.goto(f"{url}/{to(at)}", wait_until="commit")
            return wait(page, route)

        return act

    def zoomed(page: Any, url: str, at: int) -> None:
        curves(page, url, at)
        page.wait_for_selector(".js-plotly-plot path.js-line", state="attached")

    def clicked(page: Any, _: str, at: int) -> float:
        page.locator("table a", has_text=f"run-{count - 2 - at:04d}").first.click()
        return wait(page, "run")

    def followed(page: Any, _: str, at: int) -> float:
        page.evaluate("to => { location.hash = to }", rollout(at + 10))
        return wait(page, "rollout")

    table = opened("runs", lambda _: "")
    curves = opened("run", lambda at: fragment("run", f"run-{at + 1:04d}"))
    return Tool(
        "Uptrend", [sys.executable, "-m", "uptrend", "serve", str(dest), "--no-open", "--no-token", "--port"],
        {"UPTREND_HOME": str(home)}, "every run is indexed", is_indexed,
        [
            ("first page, a table of runs", table, None),
            ("curves of a run, first drawn plainly", curves, None),
            ("curves of a run, until they answer to the mouse", zoomed, None),
            ("curves of the long run, first drawn plainly", opened("run", lambda _: fragment("run", "long")), None),
            ("curves of a run, by a click in the table", clicked, table),
            ("a rollout, opened by its address", opened("rollout", rollout), None),
            ("a rollout, from a page that is open", followed, table),
        ], home,
    )  # fmt: skip


def tensorboard_tool(dest: Path, count: int) -> Tool:
    """Return TensorBoard. Its first tab fetches a chart's points of all runs, `Scalars` those of
    checked runs.
    """

    def is_loaded(url: str, said: str) -> bool:
        return "Finished load cycle" in said and len(json.loads(ask(f"{url}/data/runs"))) == count

    def listed(page: Any, url: str, _: int) -> None:
        page.goto(url, wait_until="commit")
        page.wait_for_selector("runs-data-table tb-data-table-content-row")
        page.wait_for_selector("scalar-card line-chart canvas", state="attached")

    def checked(page: Any, *_: Any) -> None:
        box = page.locator("runs-data-table mat-checkbox input").first  # that of all runs
        if not box.is_checked():  # of many runs it checks none by itself
            box.click()
        # Charts are canvases; the tables below them have values once points are there.
        page.wait_for_selector(
            "scalar-card:not(:has(mat-spinner)) tb-data-table-content-row", state="attached"
        )

    def one(name: Callable[[int], str]) -> Act:
        def act(page: Any, url: str, at: int) -> None:
            page.goto(f"{url}/#scalars&regexInput=%5E{name(at)}%24", wait_until="commit")
            page.wait_for_selector("tf-scalar-card .plot path[d^=M]", state="attached")

        return act

    words = [sys.executable, "-m", "tensorboard.main", "--logdir", str(beside(dest, "tensorboard"))]
    return Tool(
        "TensorBoard", [*words, "--extra_data_server_flags=--verbose", "--port"], {}, "every run is read", is_loaded,
        [
            ("first page, runs listed and charts framed", listed, None),
            ("curves of a run, filtered by its name in `Scalars`", one(lambda at: f"run-{at + 1:04d}"), None),
            ("curves of the long run, thinned to 1,000 steps, the same way", one(lambda _: "long"), None),
            ("first chart of all runs, checked on the first page", checked, listed),
        ],
    )  # fmt: skip


def trackio_tool(dest: Path, count: int) -> Tool:
    """Return Trackio; its page fetches all metrics of all chosen runs before it draws a chart."""

    def has_runs(url: str, _: str) -> bool:
        return (
            len(json.loads(ask(f"{url}/api/get_runs_for_project", {"project": PROJECT}))["data"])
            == count
        )

    def drawn(names: Callable[[int], list[str]]) -> Act:
        def act(page: Any, url: str, at: int) -> None:
            page.goto(
                f"{url}/?project={PROJECT}&run_ids={','.join(names(at))}", wait_until="commit"
            )
            page.wait_for_selector(".plot-container[data-metric] canvas")

        return act

    program = "import sys, trackio; trackio.show(sys.argv[1], open_browser=False, server_port=int(sys.argv[2]))"
    return Tool(
        "Trackio", [sys.executable, "-c", program, PROJECT], {"TRACKIO_DIR": str(beside(dest, "trackio"))},
        "every run is listed", has_runs,
        [
            ("curves of a run", drawn(lambda at: [f"run-{at + 1:04d}"]), None),
            ("curves of the long run, thinned to 3,000 steps", drawn(lambda _: ["long"]), None),
            ("curves of 10 runs", drawn(lambda at: [f"run-{at + i + 1:04d}" for i in range(10)]), None),
            ("first page, which draws all runs", drawn(lambda _: []), None),
        ],
    )  # fmt: skip


def measure_tool(tool: Tool, browser: Any, tries: int, limit: float) -> None:
    """Print a tool's rows: starts, pages, memory."""
    peak = 0
    for state in (", without an index", ", with its index") if tool.index else ("",):
        times = []
        for _ in range(tries):
            if tool.index and "without" in state:
                shutil.rmtree(tool.index, ignore_errors=True)
            with serving(tool) as server:
                times.append(server.seconds)
            peak = max(peak, server.peak)
        print_row(f"{tool.name}: start until {tool.ready}{state}", times)
    with serving(tool) as server:
        for name, act, before in tool.pages:
            print_row(
                f"{tool.name}: {name}",
                *visits(browser, server, act, before, tries, limit),
                limit=limit,
            )
        now = server.now
    cells = f"{now / 2**20:,.0f} MiB | {max(peak, server.peak) / 2**20:,.0f} MiB"
    print(
        f"| {tool.name}: memory of its processes after these pages, and the most in any of its starts | {cells} |"
    )


def visits(
    browser: Any, server: "Server", act: Act, before: Act | None, tries: int, limit: float
) -> list[list[float]]:
    """Time an action in a new browser context and once more in the same one; a row ends with its
    first failure.
    """
    from playwright.sync_api import Error

    times: list[list[float]] = [[], []]
    for at in range(tries):
        context = browser.new_context(viewport={"width": 1440, "height": 900})
        context.set_default_timeout(1000 * limit)
        context.add_init_script(NOTES)
        for seconds in times:
            page = context.new_page()
            try:
                if before:
                    before(page, server.url, at)
                began = time.time()
                seconds.append((act(page, server.url, at) or time.time()) - began)
            except Error as error:
                print(str(error).splitlines()[0], file=sys.stderr, flush=True)
                seconds.append(math.inf)
            page.close()  # open pages go on asking for news, and a server may still work on what was asked
            server.rest(limit)
        context.close()
        if math.inf in (*times[0], *times[1]):
            break
    return times


def print_row(name: str, *columns: list[float], limit: float = 0) -> None:
    cells = [
        f"not within {limit:.0f} s" if math.inf in times
        else f"{statistics.median(times):.3g} ({min(times):.3g}–{max(times):.3g})"
        for times in columns
    ]  # fmt: skip
    print(f"| {' | '.join([name, *cells, *[''] * (2 - len(cells))])} |", flush=True)


@dataclass
class Server:
    """A server's process with all that it starts."""

    process: subprocess.Popen[bytes]
    url: str
    seconds: float = 0.0  # until it was ready
    now: int = 0  # bytes of resident memory
    peak: int = 0

    def family(self) -> list[psutil.Process]:
        with contextlib.suppress(psutil.Error):
            first = psutil.Process(self.process.pid)
            return [first, *first.children(recursive=True)]
        return []

    def rest(self, limit: float) -> None:
        """Wait until its processes do nothing."""
        ends, before = time.perf_counter() + limit, -1.0
        while time.perf_counter() < ends:
            with contextlib.suppress(psutil.Error):
                spent = sum(sum(each.cpu_times()[:2]) for each in self.family())
                if 0 <= spent - before < 0.05 and before >= 0:
                    return
                before = spent
            time.sleep(0.5)

    def watch(self) -> None:
        """Sample memory until it ends: a child that has ended takes its own peak with it."""
        while self.process.poll() is None:
            total = 0
            for each in self.family():
                with contextlib.suppress(psutil.Error):
                    total += each.memory_info().rss
            self.now, self.peak = total or self.now, max(self.peak, total)
            time.sleep(0.1)


@contextlib.contextmanager
def serving(tool: Tool) -> Iterator[Server]:
    """Start a server on a free port and wait until it is ready; end it with all that it started."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with tempfile.NamedTemporaryFile() as log:
        began, environment = time.perf_counter(), {**os.environ, **tool.environment}
        process = subprocess.Popen(
            [*tool.words, str(port)], stdout=log, stderr=log, env=environment
        )
        server = Server(process, f"http://127.0.0.1:{port}")
        threading.Thread(target=server.watch, daemon=True).start()
        try:
            while not server.seconds:
                said = Path(log.name).read_text(errors="replace")
                if process.poll() is not None:
                    raise SystemExit(
                        f"{tool.name} ended with {process.returncode}:\n{said[-2000:]}"
                    )
                with contextlib.suppress(OSError):  # it does not listen yet
                    if tool.is_ready(server.url, said):
                        server.seconds = time.perf_counter() - began
                time.sleep(0.02)
            yield server
        finally:
            for each in server.family():
                with contextlib.suppress(psutil.Error):
                    each.terminate()
            process.wait(60)


def ask(url: str, values: dict[str, str] | None = None) -> bytes:
    body = None if values is None else json.dumps(values).encode()
    with urlopen(Request(url, body, {"Content-Type": "application/json"}), timeout=60) as answer:
        said: bytes = answer.read()
    return said


if __name__ == "__main__":
    app()
