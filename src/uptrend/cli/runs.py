"""`uptrend runs`: list runs, show one run or one of its rollouts, compare two runs."""

import heapq
import math
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.text import Text

from uptrend.bridge.importers.detect import is_log_name
from uptrend.cli.console import AsJson, RunArgument, make_app, open_run, print_json
from uptrend.cli.rollouts import decoder_of, find_rollouts, print_rollout
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
MAKE_ONE = "Make one with: uptrend train recipe.toml"
SEVERITY_COLORS = {"critical": "red", "warning": "yellow"}
WIDE_FROM = 140
"""Terminal width from which a list of runs shows intervals and settings."""
WIDE = ("model", "taskset", "loss", "started", "per step")
SETTINGS = {
    "sampling": ("groups", "size", "temperature", "max_tokens", "max_turns"),
    "learning": ("loss", "scale", "lr", "kl.beta", "updates", "minibatches"),
}


@app.command("list")
def list_runs(
    folder: Annotated[Path, typer.Argument(help="Folder that holds the runs.")] = Path("runs"),
    as_json: AsJson = False,
) -> None:
    """List the runs of a folder, newest first.

    \b
    uptrend runs list
    uptrend runs list elsewhere --json
    """
    if not folder.is_dir() and folder != Path("runs"):
        raise RecordError(
            f"{folder} is a file; runs are folders."
            if folder.exists()
            else f"{folder} does not exist. {MAKE_ONE}"
        )
    if (folder / "run.json").exists():
        raise RecordError(f"{folder} is a run itself: uptrend runs show {folder}")
    runs, broken = find_runs(folder)
    if as_json:
        print_json(
            {
                "runs": runs,
                "broken": [{"path": str(path), "reason": why} for path, why in broken.items()],
            }
        )
        return
    console = terminal()
    if not runs and not broken:
        text = f"There are no runs in {folder}/. {MAKE_ONE}"
        is_log = folder.is_dir() and any(is_log_name(path) for path in folder.iterdir())
        logs = f" Other trainers' logs: uptrend doctor {folder}" if is_log else ""
        console.print(text + logs, soft_wrap=True)
    is_wide = console.width >= WIDE_FROM
    rows = []
    for run in runs:
        status = Text(run["status"], STATUS_COLORS.get(run["status"], ""))
        row = [
            run["name"],
            status,
            f"{run['step']}/{run['steps'] or NO_VALUE}",
            _heldout(run, is_wide),
        ]
        row.append(number(run["reward"]))
        if is_wide:
            created = str(run["created"] or NO_VALUE)[:16].replace("T", " ")
            row += [*(str(run[key]) for key in WIDE[:3]), created, duration(run["per_step"])]
        rows.append(row)
    if rows:
        heldout = "held-out (95% interval)" if is_wide else "held-out"
        headings = ("run", "status", "step", heldout, "reward", *(WIDE if is_wide else ()))
        console.print(columns(*headings, rows=rows, wraps="run"))
    for path, why in broken.items():
        console.print(Text.assemble((path.name, "bold"), (" can't be read: ", "red"), why))


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
    opened = open_run(run)
    console = terminal()
    if best or worst:
        _show_extremes(console, opened, rollout, {"best": best, "worst": worst}, as_json)
    elif rollout:
        _show_rollouts(console, opened, rollout, as_json, full)
    elif as_json:
        print_json(describe(opened, latest_report(opened)))
    else:
        described = describe(opened, latest_report(opened))
        console.print(_headline(described))
        drawn = _draw_curves(described["curves"], console.width)
        for section in (_diagnosis(described), _facts(described), drawn, _results(described)):
            if section:
                console.print()
                console.print(columns(rows=section))


@app.command("compare")
def compare_runs(a: RunArgument, b: RunArgument, as_json: AsJson = False) -> None:
    """Compare two runs.

    \b
    uptrend runs compare slow fast

    It shows settings that differ, curves side by side, and the held-out tasks pair by pair.
    """
    compared = _compare(open_run(a), open_run(b))
    if as_json:
        print_json(compared)
        return
    console = terminal()
    paired = compared["paired"]
    for side in ("a", "b"):
        console.print(Text(f"{side.upper()}  ", "bold").append_text(_headline(compared[side])))
    rows = [
        (key, *(setting(v, quote=False) for v in pair))
        for key, pair in compared["difference"].items()
    ]
    console.print()
    console.print(columns("config", "A", "B", rows=rows) if rows else "The configs are the same.")
    console.print()
    console.print(columns(rows=_draw_curves(compared["curves"], console.width)))
    console.print()
    for side in ("a", "b"):
        console.print(
            Text(side.upper(), "bold").append(
                f"  held-out {_heldout(compared[side], True)}", "not bold"
            )
        )
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
    # scipy only where two runs are compared: `runs list` stays fast
    from uptrend.stats.comparison import pair_runs

    curves_a = curves(a)
    curves_b = curves(b)
    keys = dict.fromkeys([*curves_a, *curves_b])
    return {
        "a": summarize(a),
        "b": summarize(b),
        "difference": {key: list(pair) for key, pair in difference(a.config, b.config).items()},
        "curves": {key: {"a": curves_a.get(key, []), "b": curves_b.get(key, [])} for key in keys},
        "paired": pair_runs(a, b),
    }


def _heldout(run: dict[str, Any], has_intervals: bool) -> str:
    texts = []
    for evaluation in (run["before"], run["after"]):
        if evaluation is None:
            texts.append(NO_VALUE)
        else:
            texts.append(
                _accuracy(evaluation) if has_intervals else percent(evaluation["accuracy"])
            )
    before, after = texts
    return before if after == NO_VALUE else f"{before} → {after}"


def _accuracy(evaluation: Mapping[str, Any]) -> str:
    return estimate(evaluation["accuracy"], evaluation["low"], evaluation["high"])


def _headline(run: dict[str, Any]) -> Text:
    pace = "" if run["per_step"] is None else f", {duration(run['per_step'])} per step"
    status = (run["status"], STATUS_COLORS.get(run["status"], ""))
    where = f"  {run['step']} of {run['steps']} steps{pace}  {run['path']}"
    return Text.assemble((run["name"], "bold"), "  ", status, where)


def _diagnosis(run: dict[str, Any]) -> list[tuple[str, str | Text]]:
    doctor = run["doctor"]
    findings = run["doctor"]["findings"]
    rows: list[tuple[str, str | Text]] = [("doctor", dated(doctor["step"]))]
    rows.append(("trend", f"{doctor['headline']}: {doctor['sentence']}"))
    if stopped := run["stopped"]:
        rows.insert(0, (f"stopped by {stopped['by']}", stopped["why"]))
    for found in findings[:1]:
        color = SEVERITY_COLORS.get(found["severity"], "")
        rows.append(
            ("finding", Text(f"{found['severity']}: {found['id']}: {found['summary']}", color))
        )
        rows += [("fix", found["fix"])] if found["fix"] else []
    if len(findings) > 1:
        rows.append(
            ("also", ", ".join(f"{found['id']} ({found['severity']})" for found in findings[1:]))
        )
    return [*rows, ("more", doctor["more"])]


def _facts(run: dict[str, Any]) -> list[tuple[str, str]]:
    config = flatten(run["config"])
    machine = run["machine"] or {}
    count = (run["weights"] or {}).get("parameters")
    rows = [("model", f"{run['model']}" + (f", {plural(count, 'parameter')}" if count else ""))]
    for section in ("tasks", "eval"):
        scalars = [
            (k, v) for k, v in (run[section] or {}).items() if isinstance(v, str | int | float)
        ]
        rows.append((section, ", ".join(f"{key} {value}" for key, value in scalars)))
    for section, keys in SETTINGS.items():
        settings = [f"{key} {setting(config.get(f'{section}.{key}'), quote=False)}" for key in keys]
        rows.append((section, ", ".join(settings)))
    threads = f"{machine['threads']} threads" if machine.get("threads") else None
    parts = (machine.get("device"), machine.get("gpu") or machine.get("cpu"), threads)
    rows.append(("machine", ", ".join(str(part) for part in parts if part)))
    return rows + [("note", str(note)) for note in run["notes"] or []]


def _draw_curves(curves: Mapping[str, Any], width: int) -> list[tuple[str, Text]]:
    """Draw curves as blocks with their first and last value; of two runs, under each other on one
    scale.
    """
    pairs = {
        key: found if isinstance(found, dict) else {"": found} for key, found in curves.items()
    }
    longest = max((len(values) for pair in pairs.values() for values in pair.values()), default=1)
    space = max(8, min(60, width - 49, longest))
    rows = []
    for key, pair in pairs.items():
        finite = [
            v for values in pair.values() for v in values if v is not None and math.isfinite(v)
        ]
        for place, (side, values) in enumerate(pair.items()):
            # A shorter run gets a shorter line, so that equal places are equal steps.
            share = (
                space
                if key == HELDOUT_CURVE or key.startswith("eval/")
                else max(1, space * len(values) // longest)
            )
            metric = "eval/accuracy" if key == HELDOUT_CURVE else key
            line = sparkline(values, share, min(finite, default=0), max(finite, default=0), metric)
            known = [value for value in values if value is not None]
            ends = f"{number(known[0])} → {number(known[-1])}" if known else NO_VALUE
            label = (f"{side.upper()}  " if side else "", "bold")
            rows.append(
                (key if not place else "", Text.assemble(label, f"{line:<{space}}  {ends}"))
            )
    return rows


def _results(run: dict[str, Any]) -> list[tuple[str, str]]:
    rows = []
    for name, evaluations in {"held-out": run["evaluations"], **run["sets"]}.items():
        for evaluation in evaluations:
            counts = f"{evaluation['correct']} of {evaluation['tasks']}"
            rows.append(
                (f"{name} after step {evaluation['step']}", f"{_accuracy(evaluation)}  {counts}")
            )
    if run["phases"]:
        rows.append(("step time", phase_shares(run["phases"])))
    rows += [("log", run["log"])] if run["log"] else []
    return [
        *rows,
        ("files", ", ".join(f"{name} {size(count)}" for name, count in run["files"].items())),
    ]


def _show_rollouts(console: Console, run: Run, named: str, as_json: bool, full: bool) -> None:
    """Show what is named: a step's groups, a group's rollouts, or one rollout with its tokens."""
    table, groups, place = find_rollouts(run, named)
    if place is not None:
        rollout = table.rollout(place)
        if as_json:
            print_json({**rollout.facts, "sequences": rollout.sequences})
        else:
            print_rollout(console, rollout, decoder_of(run), full)
        return
    described = [_describe_group(table, group) for group in groups]
    is_group = "/" in named
    listed = (
        [
            _describe_rollout(table, groups[0], place)
            for place in groups[0].rollout_by_index.values()
        ]
        if is_group
        else []
    )
    if as_json:
        print_json(
            {**described[0], "rollouts": listed}
            if is_group
            else {"step": table.step, "groups": described}
        )
        return
    _print_groups(console, described)
    if is_group:
        console.print()
        _print_listed(console, listed)


def _describe_group(table: RolloutTable, group: RolloutGroup) -> dict[str, Any]:
    """Return a group's figures and its question."""
    first = next(iter(group.rollout_by_index.values()))
    values = [table.value("reward", place) for place in group.rollout_by_index.values()]
    rewards = [reward for reward in values if reward is not None]
    return {
        "step": table.step,
        "number": group.number,
        "group": group.name,
        "task": table.value("task", first),
        "question": " ".join(table.question_n[first].split()),
        "rewards": rewards,
        "mean": statistics.fmean(rewards) if rewards else None,
        "dead": len(set(rewards)) == 1,
        "kept": bool(table.kept_n[first]),
    }


def _describe_rollout(table: RolloutTable, group: RolloutGroup, place: int) -> dict[str, Any]:
    """Return a rollout's figures and the text that the model wrote."""
    texts = [table.messages.text_m[at] for at in table.model_message_indices_n[place]]
    keys = ("group", "index", "task", "reward", "correct", "ended", "error")
    return {
        "rollout": f"{table.step}/{group.number}/{table.value('index', place)}",
        **{key: table.value(key, place) for key in keys},
        "advantage": table.advantage(place),
        "tokens": int(table.lengths_n[place]),
        "text": " ".join(" ".join(texts).split()),
    }


def _show_extremes(
    console: Console, run: Run, step: str, counts: Mapping[str, int], as_json: bool
) -> None:
    """List the rollouts with the highest or lowest reward of a run, or of a step."""
    if step and not step.isdigit():
        raise RecordError(
            "--best and --worst list rollouts of a run or of a step: --rollout"
            f" {step.partition('/')[0]}"
        )
    found = dict[str, list[dict[str, Any]]]()
    for which, count in counts.items():
        # One step at a time and without its tokens, so that a long run fits into memory; of equal
        # rewards, the earlier.
        rewards = (
            (reward, one, place)
            for one in ([int(step)] if step else run.rollout_steps)
            for place, reward in enumerate(
                RolloutTable(one, run.rollouts(one).select(["reward", "sequence"])).values("reward")
            )
            if reward is not None
        )
        choose = heapq.nlargest if which == "best" else heapq.nsmallest
        listed = []
        for _, one, place in choose(count, rewards, key=lambda row: row[0]):
            table = RolloutTable(one, run.rollouts(one))
            group = next(
                group for group in table.groups if place in group.rollout_by_index.values()
            )
            listed.append(_describe_rollout(table, group, place))
        found |= {which: listed} if count else {}
    if as_json:
        print_json(found)
        return
    for which, listed in found.items():
        console.print(Text(f"{which} {plural(len(listed), 'rollout')} by reward", "bold"))
        _print_listed(console, listed)


def _print_groups(console: Console, groups: Sequence[dict[str, Any]]) -> None:
    rows: list[Sequence[str | Text]] = []
    for group in groups:
        counted = Counter(group["rewards"]).most_common()
        rewards = ", ".join(f"{number(reward)} ×{count}" for reward, count in counted[:4])
        state = Text("dead" if group["kept"] else "replaced", "red") if group["dead"] else "alive"
        question = Text(
            visible(group["question"] or str(group["task"])), no_wrap=True, overflow="ellipsis"
        )
        rows.append(
            (
                f"{group['step']}/{group['number']}",
                number(group["mean"]),
                state,
                rewards + (", …" if len(counted) > 4 else ""),
                question,
            )
        )
    console.print(
        columns("group", "mean", "", "rewards", "task", rows=rows, right=["mean"], wraps="task")
    )


def _print_listed(console: Console, listed: Sequence[dict[str, Any]]) -> None:
    rows = []
    for one in listed:
        text = Text(
            visible(one["error"] or one["text"]),
            "red" if one["error"] else "",
            no_wrap=True,
            overflow="ellipsis",
        )
        figures = (number(one["reward"]), number(one["advantage"]), number(one["tokens"]))
        rows.append((one["rollout"], *figures, one["ended"], text))
    headings = ("rollout", "reward", "advantage", "tokens", "ended", "text")
    console.print(columns(*headings, rows=rows, right=headings[1:4], wraps="text"))
