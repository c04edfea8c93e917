"""`uptrend runs`: list runs, show one run or one of its rollouts, compare two runs."""

import heapq
import math
import statistics
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from uptrend.bridge.importers.detect import is_log_name
from uptrend.cli.console import AsJson, RunArgument, make_app, open_run, print_json
from uptrend.cli.rollouts import (
    LogWithRollouts,
    decoder_of,
    find_rollouts,
    open_rollouts,
    print_rollout,
)
from uptrend.config.tables import difference, flatten
from uptrend.doctor.report import latest_report
from uptrend.present.formatting import (
    NO_VALUE,
    duration,
    estimate,
    number,
    p_value,
    percent,
    plural,
    setting,
    size,
    visible,
)
from uptrend.present.terminal import columns, phase_shares, sparkline, terminal
from uptrend.records import RecordError, Run
from uptrend.records.finding import dated
from uptrend.records.summary import HELDOUT_CURVE, curves, describe, find_runs, summarize
from uptrend.records.table import RolloutGroup, RolloutTable

app = make_app("List runs, show one, compare two.")
STATUS_COLORS = {
    "running": "cyan",
    "finished": "green",
    "stopped": "yellow",
    "failed": "red",
    "killed": "red",
}
HOW_TO_MAKE_ONE = "Make one with: uptrend train recipe.toml"
SEVERITY_COLORS = {"critical": "red", "warning": "yellow"}
# Terminal width from which a list of runs shows intervals and settings.
MIN_WIDE_WIDTH = 140
WIDE_HEADINGS = ("model", "taskset", "loss", "started", "per step")
WIDE_KEYS = ("model", "taskset", "loss")
# Config keys that `runs show` prints, by section.
SETTINGS_SHOWN = {
    "sampling": ("groups", "size", "temperature", "max_tokens", "max_turns"),
    "learning": ("loss", "scale", "lr", "kl.beta", "updates", "minibatches"),
}
# Width of a curve; its name and its first and last value take the rest of the terminal.
MIN_CURVE_WIDTH = 8
MAX_CURVE_WIDTH = 60
CURVE_TEXTS_WIDTH = 49
# Folder in which runs are made, and listed if none is named.
DEFAULT_FOLDER = Path("runs")
# Different rewards that a group's row lists.
MAX_REWARDS_LISTED = 4


@app.command("list")
def list_runs(
    folder: Annotated[Path, typer.Argument(help="Folder that holds the runs.")] = DEFAULT_FOLDER,
    as_json: AsJson = False,
) -> None:
    """List the runs of a folder, newest first.

    \b
    uptrend runs list
    uptrend runs list elsewhere --json
    """
    # The default folder is only made by the first run: until then it is an empty one.
    if not folder.is_dir() and folder != DEFAULT_FOLDER:
        if folder.exists():
            raise RecordError(f"{folder} is a file; runs are folders.")
        raise RecordError(f"{folder} does not exist. {HOW_TO_MAKE_ONE}")
    if (folder / "run.json").exists():
        raise RecordError(f"{folder} is a run itself: uptrend runs show {folder}")
    runs, broken = find_runs(folder)
    if as_json:
        failures = [{"path": str(path), "reason": reason} for path, reason in broken.items()]
        print_json({"runs": runs, "broken": failures})
        return
    console = terminal()
    if not runs and not broken:
        text = f"There are no runs in {folder}/. {HOW_TO_MAKE_ONE}"
        if folder.is_dir() and any(is_log_name(path) for path in folder.iterdir()):
            text += f" Other trainers' logs: uptrend doctor {folder}"
        console.print(text, soft_wrap=True)
    if runs:
        console.print(_runs_table(runs, console.width >= MIN_WIDE_WIDTH))
    for path, reason in broken.items():
        console.print(Text.assemble((path.name, "bold"), (" can't be read: ", "red"), reason))


def _runs_table(runs: Sequence[dict[str, Any]], is_wide: bool) -> Table:
    headings = ["run", "status", "step", "held-out", "reward"]
    if is_wide:
        headings = ["run", "status", "step", "held-out (95% interval)", "reward", *WIDE_HEADINGS]
    rows = []
    for run in runs:
        row = [
            run["name"],
            Text(run["status"], STATUS_COLORS.get(run["status"], "")),
            f"{run['step']}/{run['steps'] or NO_VALUE}",
            _heldout(run, is_wide),
            number(run["reward"]),
        ]
        if is_wide:
            minute = str(run["created"] or NO_VALUE)[: len("2026-01-31T12:00")].replace("T", " ")
            settings = [str(run[key]) for key in WIDE_KEYS]
            row += [*settings, minute, duration(run["per_step"])]
        rows.append(row)
    return columns(*headings, rows=rows, wraps="run")


@app.command("show")
def show_run(
    run: RunArgument,
    rollout: Annotated[
        str, typer.Option(help="Show a step, a group or a rollout: STEP, STEP/GROUP/INDEX.")
    ] = "",
    best: Annotated[
        int, typer.Option(min=0, help="List this many rollouts with the highest reward.")
    ] = 0,
    worst: Annotated[
        int, typer.Option(min=0, help="List this many rollouts with the lowest reward.")
    ] = 0,
    full: Annotated[
        bool, typer.Option("--full", help="Show a rollout's messages uncut, and its tokens.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Show one run, or its rollouts.

    \b
    uptrend runs show quickstart
    uptrend runs show quickstart --rollout 12      groups
    uptrend runs show quickstart --rollout 12/3    one group
    uptrend runs show quickstart --rollout 12/3/5  one rollout
    uptrend runs show quickstart --worst 5

    Of a run: trend, findings, config, curves, evaluations, time and files. Of a rollout: messages,
    commands with what they took, reward and tokens; long texts are cut.
    """
    shows_rollouts = bool(rollout or best or worst)
    opened = open_rollouts(run) if shows_rollouts else open_run(run)
    console = terminal()
    if best or worst:
        _show_extremes(console, opened, rollout, {"best": best, "worst": worst}, as_json)
    elif rollout or isinstance(opened, LogWithRollouts):
        _show_rollouts(console, opened, rollout, as_json, full)
    elif as_json:
        print_json(describe(opened, latest_report(opened)))
    else:
        description = describe(opened, latest_report(opened))
        console.print(_headline(description))
        curves_by_metric = {metric: {"": curve} for metric, curve in description["curves"].items()}
        curve_rows = _draw_curves(curves_by_metric, console.width)
        sections = (_diagnosis(description), _facts(description), curve_rows, _results(description))
        for rows in sections:
            if rows:
                console.print()
                console.print(columns(rows=rows))


@app.command("compare")
def compare_runs(a: RunArgument, b: RunArgument, as_json: AsJson = False) -> None:
    """Compare two runs.

    \b
    uptrend runs compare slow fast

    It shows settings that differ, curves side by side, and the held-out tasks pair by pair.
    """
    comparison = _compare(open_run(a), open_run(b))
    if as_json:
        print_json(comparison)
        return
    console = terminal()
    for side in ("a", "b"):
        console.print(Text(f"{side.upper()}  ", "bold").append_text(_headline(comparison[side])))

    rows = []
    for key, pair in comparison["difference"].items():
        rows.append((key, *(setting(value, quote=False) for value in pair)))
    console.print()
    console.print(columns("config", "A", "B", rows=rows) if rows else "The configs are the same.")
    console.print()
    console.print(columns(rows=_draw_curves(comparison["curves"], console.width)))
    console.print()
    for side in ("a", "b"):
        accuracy = f"  held-out {_heldout(comparison[side], True)}"
        console.print(Text(side.upper(), "bold").append(accuracy, "not bold"))

    paired = comparison["paired"]
    if paired is None:
        console.print("They share no held-out task, so their accuracies can't be paired.")
        return
    console.print(
        f"Of {paired['tasks']} tasks that both were asked (A after step {paired['step_a']}, B after"
        f" step {paired['step_b']}), {paired['only_a']} were answered correctly by A alone and"
        f" {paired['only_b']} by B alone (exact McNemar p {p_value(paired['p'])})."
        f" {paired['caveat']}"
    )


def _compare(a: Run, b: Run) -> dict[str, Any]:
    # Imported only here, with scipy: `runs list` stays fast.
    from uptrend.stats.comparison import pair_runs

    curves_a = curves(a)
    curves_b = curves(b)
    curve_pairs = {}
    for key in [*curves_a, *curves_b]:
        curve_pairs[key] = {"a": curves_a.get(key, []), "b": curves_b.get(key, [])}
    return {
        "a": summarize(a),
        "b": summarize(b),
        "difference": {key: list(pair) for key, pair in difference(a.config, b.config).items()},
        "curves": curve_pairs,
        "paired": pair_runs(a, b),
    }


def _heldout(run: dict[str, Any], has_intervals: bool) -> str:
    """Format held-out accuracy before and after training."""
    texts = []
    for evaluation in (run["before"], run["after"]):
        if evaluation is None:
            texts.append(NO_VALUE)
        elif has_intervals:
            texts.append(_accuracy(evaluation))
        else:
            texts.append(percent(evaluation["accuracy"]))
    before, after = texts
    if after == NO_VALUE:
        return before
    return f"{before} → {after}"


def _accuracy(evaluation: Mapping[str, Any]) -> str:
    return estimate(evaluation["accuracy"], evaluation["low"], evaluation["high"])


def _headline(run: dict[str, Any]) -> Text:
    pace = "" if run["per_step"] is None else f", {duration(run['per_step'])} per step"
    status = (run["status"], STATUS_COLORS.get(run["status"], ""))
    progress = f"  {run['step']} of {run['steps']} steps{pace}  {run['path']}"
    return Text.assemble((run["name"], "bold"), "  ", status, progress)


def _diagnosis(run: dict[str, Any]) -> list[tuple[str, str | Text]]:
    doctor = run["doctor"]
    stop = run["stopped"]
    rows: list[tuple[str, str | Text]] = []
    if stop:
        rows.append((f"stopped by {stop['by']}", stop["why"]))
    rows.append(("doctor", dated(doctor["step"])))
    rows.append(("trend", f"{doctor['headline']}: {doctor['sentence']}"))
    findings = doctor["findings"]
    if findings:
        finding = findings[0]
        color = SEVERITY_COLORS.get(finding["severity"], "")
        text = f"{finding['severity']}: {finding['id']}: {finding['summary']}"
        rows.append(("finding", Text(text, color)))
        if finding["fix"]:
            rows.append(("fix", finding["fix"]))
    if len(findings) > 1:
        others = [f"{finding['id']} ({finding['severity']})" for finding in findings[1:]]
        rows.append(("also", ", ".join(others)))
    rows.append(("more", doctor["more"]))
    return rows


def _facts(run: dict[str, Any]) -> list[tuple[str, str]]:
    model = str(run["model"])
    n_parameters = (run["weights"] or {}).get("parameters")
    if n_parameters:
        model += f", {plural(n_parameters, 'parameter')}"
    rows = [("model", model)]
    for section in ("tasks", "eval"):
        parts = []
        for key, value in (run[section] or {}).items():
            if isinstance(value, str | int | float):
                parts.append(f"{key} {value}")
        rows.append((section, ", ".join(parts)))
        for source in (run[section] or {}).get("sources", ()):
            facts = f"{percent(source['share'])} of groups, count {source['count']}"
            rows.append(("", f"{source['label']}: {facts}, hash {source['hash']}"))
    config = flatten(run["config"])
    for section, keys in SETTINGS_SHOWN.items():
        settings = []
        for key in keys:
            value = config.get(f"{section}.{key}")
            settings.append(f"{key} {setting(value, quote=False)}")
        rows.append((section, ", ".join(settings)))
    machine = run["machine"] or {}
    machine_parts = [machine.get("device"), machine.get("gpu") or machine.get("cpu")]
    if machine.get("threads"):
        machine_parts.append(f"{machine['threads']} threads")
    rows.append(("machine", ", ".join(str(part) for part in machine_parts if part)))
    return rows + [("note", str(note)) for note in run["notes"] or []]


def _draw_curves(
    curves_by_metric: Mapping[str, Mapping[str, Sequence[float | None]]], width: int
) -> list[tuple[str, Text]]:
    """Draw curves as blocks with their first and last value; those of two runs below each other,
    on one scale.

    Each metric has one curve per run, by the name of the run's side, which is empty for one alone.
    """
    longest = 1
    for curve_by_side in curves_by_metric.values():
        longest = max(longest, *map(len, curve_by_side.values()))
    full_width = max(MIN_CURVE_WIDTH, min(MAX_CURVE_WIDTH, width - CURVE_TEXTS_WIDTH, longest))

    rows = []
    for key, curve_by_side in curves_by_metric.items():
        is_heldout = key == HELDOUT_CURVE
        metric = "eval/accuracy" if is_heldout else key
        all_values = list(chain.from_iterable(curve_by_side.values()))
        finite = [value for value in all_values if value is not None and math.isfinite(value)]
        low = min(finite, default=0)
        high = max(finite, default=0)
        name = key
        for side, values in curve_by_side.items():
            curve_width = full_width
            if not is_heldout and not key.startswith("eval/"):
                # A shorter run gets a shorter line, so that the same column is the same step.
                curve_width = max(1, full_width * len(values) // longest)
            line = sparkline(values, curve_width, low, high, metric)
            recorded = [value for value in values if value is not None]
            ends = NO_VALUE
            if recorded:
                ends = f"{number(recorded[0])} → {number(recorded[-1])}"
            label = (f"{side.upper()}  " if side else "", "bold")
            rows.append((name, Text.assemble(label, f"{line:<{full_width}}  {ends}")))
            name = ""  # only beside the first of two
    return rows


def _results(run: dict[str, Any]) -> list[tuple[str, str]]:
    rows = []
    for name, evaluations in {"held-out": run["evaluations"], **run["sets"]}.items():
        for evaluation in evaluations:
            counts = f"{evaluation['correct']} of {evaluation['tasks']}"
            heading = f"{name} after step {evaluation['step']}"
            rows.append((heading, f"{_accuracy(evaluation)}  {counts}"))
    if run["phases"]:
        rows.append(("step time", phase_shares(run["phases"])))
    if run["log"]:
        rows.append(("log", run["log"]))
    files = [f"{name} {size(n_bytes)}" for name, n_bytes in run["files"].items()]
    rows.append(("files", ", ".join(files)))
    return rows


def _show_rollouts(
    console: Console, run: Run | LogWithRollouts, name: str, as_json: bool, full: bool
) -> None:
    """Show a step's groups, a group's rollouts, or one rollout with its tokens, as named."""
    table, groups, rollout_row = find_rollouts(run, name)
    if rollout_row is not None:
        rollout = table.rollout(rollout_row)
        if as_json:
            print_json({**rollout.facts, "sequences": rollout.sequences})
        else:
            print_rollout(console, rollout, decoder_of(run), full)
        return
    group_tables = [_describe_group(table, group) for group in groups]
    if "/" not in name:
        if as_json:
            print_json({"step": table.step, "groups": group_tables})
        else:
            _print_groups(console, group_tables)
        return

    group = groups[0]
    rollouts = [_describe_rollout(table, group, row) for row in group.rollout_by_index.values()]
    if as_json:
        print_json({**group_tables[0], "rollouts": rollouts})
    else:
        _print_groups(console, group_tables)
        console.print()
        _print_rollouts(console, rollouts)


def _describe_group(table: RolloutTable, group: RolloutGroup) -> dict[str, Any]:
    """Return a group's figures and its question."""
    first = next(iter(group.rollout_by_index.values()))
    rewards = []
    for row in group.rollout_by_index.values():
        reward = table.value("reward", row)
        if reward is not None:
            rewards.append(reward)
    return {
        "step": table.step,
        "number": group.number,
        "group": group.name,
        "task": table.value("task", first),
        "question": " ".join(table.question_n[first].split()),
        "rewards": rewards,
        "mean": statistics.fmean(rewards) if rewards else None,
        # Of one rollout alone too: there is nothing to compare it with.
        "dead": len(set(rewards)) == 1,
        "kept": bool(table.kept_n[first]),
    }


def _describe_rollout(table: RolloutTable, group: RolloutGroup, row: int) -> dict[str, Any]:
    """Return a rollout's figures and the text that the model wrote."""
    # As in RolloutTable, n = row of the table and m = message.
    texts = [table.messages.text_m[m] for m in table.model_message_indices_n[row]]
    keys = ("group", "index", "task", "reward", "correct", "ended", "error")
    return {
        "rollout": f"{table.step}/{group.number}/{table.value('index', row)}",
        **{key: table.value(key, row) for key in keys},
        "advantage": table.advantage(row),
        "tokens": int(table.model_length_n[row]),
        "text": " ".join(" ".join(texts).split()),
    }


def _show_extremes(
    console: Console,
    run: Run | LogWithRollouts,
    step: str,
    counts: Mapping[str, int],
    as_json: bool,
) -> None:
    """List the rollouts with the highest or lowest reward of a run, or of a step."""
    if step and not step.isdigit():
        raise RecordError(
            "--best and --worst list rollouts of a run or of a step: --rollout"
            f" {step.partition('/')[0]}"
        )
    steps = [int(step)] if step else run.rollout_steps
    rollouts_by_end: dict[str, list[dict[str, Any]]] = {}
    for end, count in counts.items():
        if not count:
            continue
        choose = heapq.nlargest if end == "best" else heapq.nsmallest
        # Of equal rewards, the earlier.
        extremes = choose(count, _read_rewards(run, steps), key=lambda entry: entry[0])
        rollouts = []
        for _, rollout_step, row in extremes:
            table = RolloutTable(rollout_step, run.rollouts(rollout_step))
            for group in table.groups:
                if row in group.rollout_by_index.values():
                    rollouts.append(_describe_rollout(table, group, row))
                    break
        rollouts_by_end[end] = rollouts
    if as_json:
        print_json(rollouts_by_end)
        return
    for end, rollouts in rollouts_by_end.items():
        console.print(Text(f"{end} {plural(len(rollouts), 'rollout')} by reward", "bold"))
        _print_rollouts(console, rollouts)


def _read_rewards(
    run: Run | LogWithRollouts, steps: Iterable[int]
) -> Iterator[tuple[float, int, int]]:
    """Yield reward, step and row of every rollout that has a reward.

    Steps are read one at a time and without their tokens, so that a long run fits into memory.
    """
    for step in steps:
        table = RolloutTable(step, run.rollouts(step).select(["reward", "sequence"]))
        for row, reward in enumerate(table.values("reward")):
            if reward is not None:
                yield reward, step, row


def _print_groups(console: Console, groups: Sequence[dict[str, Any]]) -> None:
    rows: list[Sequence[str | Text]] = []
    for group in groups:
        counted = Counter(group["rewards"]).most_common()
        rewards = [f"{number(reward)} ×{count}" for reward, count in counted[:MAX_REWARDS_LISTED]]
        if len(counted) > MAX_REWARDS_LISTED:
            rewards.append("…")
        state: str | Text = "alive"
        if group["dead"]:
            # A dead group that is not kept gave way to another one in its step.
            state = Text("dead" if group["kept"] else "replaced", "red")
        question = visible(group["question"] or str(group["task"]))
        row = (
            f"{group['step']}/{group['number']}",
            number(group["mean"]),
            state,
            ", ".join(rewards),
            Text(question, no_wrap=True, overflow="ellipsis"),
        )
        rows.append(row)
    console.print(
        columns("group", "mean", "", "rewards", "task", rows=rows, right=["mean"], wraps="task")
    )


def _print_rollouts(console: Console, rollouts: Sequence[dict[str, Any]]) -> None:
    rows = []
    for rollout in rollouts:
        text = Text(visible(rollout["text"]), no_wrap=True, overflow="ellipsis")
        if rollout["error"]:
            text = Text(visible(rollout["error"]), "red", no_wrap=True, overflow="ellipsis")
        numbers = [number(rollout[key]) for key in ("reward", "advantage", "tokens")]
        rows.append((rollout["rollout"], *numbers, rollout["ended"], text))
    headings = ("rollout", "reward", "advantage", "tokens", "ended", "text")
    right = ("reward", "advantage", "tokens")
    console.print(columns(*headings, rows=rows, right=right, wraps="text"))
