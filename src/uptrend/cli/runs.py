"""`uptrend runs`: list runs, show one run or one of its rollouts, compare two runs."""

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Annotated, Any

import pyarrow.compute as pc
import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from uptrend.cli.console import AsJson, RunArgument, columns, phase_shares, print_json, sparkline, terminal
from uptrend.cli.summary import HELD_OUT, HeldOutSummary, compare, describe, find_runs, open_run
from uptrend.config.load import nearest
from uptrend.config.tables import flatten
from uptrend.records import RecordError, Role, Run
from uptrend.records.schema import TOKEN_COLUMNS
from uptrend.stats.formatting import NONE, duration, number, p_value, percent, plural, setting, size

app = typer.Typer(help="List runs, show one, compare two.", no_args_is_help=True, rich_markup_mode=None)

STATUS_COLORS = {"running": "cyan", "finished": "green", "stopped": "yellow", "failed": "red", "killed": "red"}
ROLE_COLORS = {"system": "dim", "user": "cyan", "assistant": "green", "tool": "yellow"}
TOKEN_COLORS = {Role.PROMPT: "cyan", Role.MODEL: "green", Role.TOOL: "yellow"}
INTERVALS_FROM, ALL_FROM = 90, 140
"""Terminal widths from which a list of runs shows intervals, and all columns."""
WIDE = ("model", "taskset", "loss", "started", "per step")
IDS = 12
"""Token ids of a span that are printed where there is no tokenizer."""


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
    runs, broken = find_runs(folder)
    if as_json:
        print_json({"runs": runs, "broken": [{"path": str(path), "reason": why} for path, why in broken.items()]})
        return
    console = terminal()
    if not runs and not broken:
        console.print(f"There are no runs in {folder}/. Make one with: uptrend train recipe.toml", soft_wrap=True)
    if runs:
        console.print(_runs_table(runs, console.width))
    for path, why in broken.items():
        console.print(Text.assemble((path.name, "bold"), (" can't be read: ", "red"), why))


@app.command("show")
def show_run(
    run: RunArgument,
    rollout: Annotated[str, typer.Option(help="Show one rollout, named STEP/GROUP/INDEX, with its tokens.")] = "",
    as_json: AsJson = False,
) -> None:
    """Show one run, or one of its rollouts.

    \b
    uptrend runs show quickstart
    uptrend runs show quickstart --rollout 12/000012-0003/5

    Of a run: config, curves, evaluations, time and files. Of a rollout: messages, reward and tokens.
    """
    opened = open_run(run)
    if rollout:
        rows = _find_rollout(opened, rollout)
        if as_json:
            rest = {key: value for key, value in rows[0].items() if key not in (*TOKEN_COLUMNS, "sequence")}
            print_json({**rest, "sequences": [{name: row[name] for name in TOKEN_COLUMNS} for row in rows]})
        else:
            _print_rollout(terminal(), rows, _decoder(opened))
        return
    described = describe(opened)
    if as_json:
        print_json(described)
        return
    console = terminal()
    console.print(_headline(described))
    for section in (_facts(described), _curves(described["curves"], console.width), _results(described)):
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
    compared = compare(open_run(a), open_run(b))
    if as_json:
        print_json(compared)
        return
    console = terminal()
    for side in ("a", "b"):
        console.print(Text(f"{side.upper()}  ", "bold").append_text(_headline(compared[side])))
    console.print()
    if compared["difference"]:
        rows = [(key, *(setting(v, quote=False) for v in pair)) for key, pair in compared["difference"].items()]
        console.print(columns("config", "A", "B", rows=rows))
    else:
        console.print("The configs are the same.")
    console.print()
    console.print(columns(rows=_curves(compared["curves"], console.width)))
    console.print()
    console.print(_paired_sentences(compared))


def _runs_table(runs: list[dict[str, Any]], width: int) -> Table:
    """Make one row per run, with the columns that fit."""
    has_intervals = width >= INTERVALS_FROM
    rows = []
    for run in runs:
        step = f"{run['step']}/{run['steps'] or NONE}"
        status = Text(run["status"], STATUS_COLORS.get(run["status"], ""))
        row = [run["name"], status, step, _before_after(run, has_intervals), number(run["reward"])]
        if width >= ALL_FROM:
            started = str(run["started"] or NONE)[:16].replace("T", " ")
            row += [*(str(run[key]) for key in WIDE[:3]), started, duration(run["seconds_per_step"])]
        rows.append(row)
    held_out = "held-out (95% interval)" if has_intervals else "held-out"
    wide = WIDE if width >= ALL_FROM else ()
    return columns("run", "status", "step", held_out, "reward", *wide, rows=rows, wraps="run")


def _before_after(run: dict[str, Any], has_intervals: bool) -> str:
    """Format held-out accuracy at the start and now."""
    held = [None if one is None else HeldOutSummary(**one) for one in (run["before"], run["after"])]
    before, after = [NONE if h is None else str(h) if has_intervals else percent(h.accuracy) for h in held]
    return before if after == NONE else f"{before} → {after}"


def _headline(run: dict[str, Any]) -> Text:
    seconds = run["seconds_per_step"]
    pace = "" if seconds is None else f", {duration(seconds)} per step"
    status = (run["status"], STATUS_COLORS.get(run["status"], ""))
    where = f"  {run['step']} of {run['steps']} steps{pace}  {run['path']}"
    return Text.assemble((run["name"], "bold"), "  ", status, where)


def _facts(run: dict[str, Any]) -> list[tuple[str, str]]:
    """List the model, tasks, main settings and machine."""
    config, machine = flatten(run["config"]), run["machine"] or {}
    count = (run["weights"] or {}).get("parameters")
    rows = [("model", f"{run['model']}" + (f", {plural(count, 'parameter')}" if count else ""))]
    for section in ("tasks", "eval"):
        scalars = [(k, v) for k, v in (run[section] or {}).items() if isinstance(v, str | int | float)]
        rows.append((section, ", ".join(f"{key} {value}" for key, value in scalars)))
    for section, keys in {
        "sampling": ("groups", "size", "temperature", "max_tokens", "max_turns"),
        "learning": ("loss", "scale", "lr", "kl.beta", "updates", "minibatches"),
    }.items():
        settings = [f"{key} {setting(config.get(f'{section}.{key}'), quote=False)}" for key in keys]
        rows.append((section, ", ".join(settings)))
    threads = f"{machine['threads']} threads" if machine.get("threads") else None
    parts = (machine.get("device"), machine.get("gpu") or machine.get("cpu"), threads)
    rows.append(("machine", ", ".join(str(part) for part in parts if part)))
    return rows + [("note", str(note)) for note in run["notes"] or []]


def _curves(curves: Mapping[str, Any], width: int) -> list[tuple[str, Text]]:
    """Draw curves as blocks with their first and last value; of two runs, under each other on one scale."""
    pairs = {key: found if isinstance(found, dict) else {"": found} for key, found in curves.items()}
    longest = max((len(values) for pair in pairs.values() for values in pair.values()), default=1)
    space = max(8, min(60, width - 49, longest))
    rows = []
    for key, pair in pairs.items():
        finite = [v for values in pair.values() for v in values if v is not None and math.isfinite(v)]
        for place, (side, values) in enumerate(pair.items()):
            # A shorter run gets a shorter line, so that equal places are equal steps.
            share = space if key == HELD_OUT else max(1, space * len(values) // longest)
            line = sparkline(values, share, min(finite, default=0), max(finite, default=0))
            known = [value for value in values if value is not None]
            ends = f"{number(known[0])} → {number(known[-1])}" if known else NONE
            label = (f"{side.upper()}  " if side else "", "bold")
            rows.append((key if not place else "", Text.assemble(label, f"{line:<{space}}  {ends}")))
    return rows


def _results(run: dict[str, Any]) -> list[tuple[str, str]]:
    """List the evaluations, the time by phase and the files."""
    rows = []
    for held in [HeldOutSummary(**line) for line in run["evaluations"]]:
        rows.append((f"held-out after step {held.step}", f"{held}  {held.correct} of {held.tasks}"))
    if run["phases"]:
        rows.append(("step time", phase_shares(run["phases"])))
    rows.append(("files", ", ".join(f"{name} {size(count)}" for name, count in run["files"].items())))
    return rows


def _paired_sentences(compared: dict[str, Any]) -> Text:
    text, paired = Text(), compared["paired"]
    for side in ("a", "b"):
        text.append(side.upper(), "bold").append(f"  held-out {_before_after(compared[side], True)}\n")
    if paired is None:
        return text.append("They share no held-out task, so their accuracies can't be paired.")
    text.append(
        f"Of {paired['tasks']} tasks that both were asked (A after step {paired['step_a']}, B after step "
        f"{paired['step_b']}), {paired['only_a']} were answered correctly by A alone and {paired['only_b']} by B alone "
        f"(exact McNemar p {p_value(paired['p'])}). "
    )
    return text.append(paired["caveat"], "dim")


def _find_rollout(run: Run, named: str) -> list[dict[str, Any]]:
    """Return the rows of a rollout named `step/group/index`; a group's name may contain slashes."""
    # Imported runs name groups freely: only the first and the last slash separate.
    step, _, rest = named.partition("/")
    group, _, index = rest.rpartition("/")
    if not group or not step.isdigit() or not index.isdigit():
        raise RecordError(f"--rollout {named}: it should be step/group/index, such as 12/000012-0003/5.")
    table = run.rollouts(int(step))
    own = table.filter(pc.equal(table["group"], group))
    rows: list[dict[str, Any]] = own.filter(pc.equal(own["index"], int(index))).to_pylist()
    if rows:
        return rows
    groups = sorted({str(name) for name in table["group"].to_pylist()})
    there = nearest(group, groups) or f" It has {groups[0]} to {groups[-1]}."
    if own.num_rows:
        there = f" Its rollouts are {pc.min(own['index'])} to {pc.max(own['index'])}."
    raise RecordError(f"Step {step} of {run.path} has no rollout {index} in a group {group}.{there}")


def _print_rollout(console: Console, rows: list[dict[str, Any]], decode: Callable[[Sequence[int]], str] | None) -> None:
    """Print headline, reward, conversation and tokens."""
    first = rows[0]
    facts = [f"task {first['task']}", f"family {first['family']}", f"ended {first['ended']}"]
    if first["seconds"] is not None:
        facts.append(duration(first["seconds"]))
    if first["kept"] is False:
        facts.append("not learned from: its group was dead and another was sampled")
    name = f"{first['step']}/{first['group']}/{first['index']}"
    console.print(Text.assemble((name, "bold"), "  ", "  ".join(facts)))
    if first["error"]:
        console.print(Text(f"error: {first['error']}", "red"))
    console.print(_reward(first))
    for message in first["messages"] or ():
        text = Text.assemble(
            (f"\n{message['role']}: ", f"bold {ROLE_COLORS.get(message['role'], '')}"), message["content"] or ""
        )
        text.append(f"\ncalls {message['calls']}" if message["calls"] else "", "yellow")
        console.print(text.append(f"\n{message['problem']}" if message["problem"] else "", "red"))
    for row in rows:
        console.print()
        console.print(_spans_table(row, decode))
    if decode is None:
        console.print("Tokens are ids: the run has no checkpoint with a tokenizer.", style="dim")


def _decoder(run: Run) -> Callable[[Sequence[int]], str] | None:
    """Return the decoder of the run's last checkpoint that has a tokenizer."""
    paths = [path / "model" / "tokenizer.json" for path in run.checkpoints]
    found = [path for path in paths if path.exists()]
    if not found:
        return None
    try:
        from tokenizers import Tokenizer
    except ImportError:
        return None
    tokenizer = Tokenizer.from_file(str(found[-1]))
    return lambda ids: str(tokenizer.decode(list(ids), skip_special_tokens=False))


def _reward(row: dict[str, Any]) -> Text:
    text = Text("no reward")
    if row["reward"] is not None:
        mark = {True: (" correct", "green"), False: (" wrong", "red"), None: ("", "")}[row["correct"]]
        bounds = (f" of {number(row['reward_low'])} to {number(row['reward_high'])}", "dim")
        text = Text.assemble(f"reward {number(row['reward'])}", mark, bounds)
        for part in row["parts"] or ():
            text.append(f"  {part['name']} {number(part['value'])}")
            text.append(f" × {number(part['weight'])}" if part["weight"] != 1 else "", "dim")
    return text.append(f"  gold answer {row['answer']!r}", "dim")


def _spans_table(row: dict[str, Any], decode: Callable[[Sequence[int]], str] | None) -> Table:
    """Make one line per span of tokens with the same turn, role, trained or not, visibility and advantage."""
    tokens = {name: row[name] or [None] * len(row["ids"] or ()) for name in TOKEN_COLUMNS}
    trained = [None if weight is None else weight != 0 for weight in tokens["weights"]]
    kinds = zip(tokens["turns"], tokens["roles"], trained, tokens["attended"], tokens["advantages"], strict=True)
    rows: list[list[str | Text]] = []
    for (turn, role, is_trained, is_seen, advantage), span in groupby(enumerate(kinds), key=lambda pair: pair[1]):
        places = [place for place, _ in span]
        ids = [tokens["ids"][place] for place in places]
        means = []
        for name in ("sampler", "learner"):
            known = [tokens[name][place] for place in places if tokens[name][place] is not None]
            means.append(number(sum(known) / len(known) if known else None))
        text = decode(ids) if decode else " ".join(map(str, ids[:IDS])) + (" …" if len(ids) > IDS else "")
        color = TOKEN_COLORS.get(role, "")
        rows.append(
            [
                number(turn),
                Text(NONE if role is None else Role(role).name.lower(), color),
                str(len(places)),
                NONE if is_trained is None else "yes" if is_trained else Text("no", "dim"),
                NONE if is_seen is None else "yes" if is_seen else Text("hidden", "red"),
                number(advantage),
                *means,
                Text(text, color),
            ]
        )
    headings = ("turn", "role", "tokens", "trained", "attended", "advantage", "sampler", "learner", "text")
    return columns(*headings, rows=rows, wraps="text")
