"""What `uptrend runs` prints, from the plain objects of summary.py."""

from typing import Any

from rich.table import Table
from rich.text import Text

from uptrend.cli.console import phase_bar
from uptrend.cli.sparkline import sparkline
from uptrend.cli.summary import HELD_OUT, HeldOutSummary
from uptrend.config.tables import flatten
from uptrend.stats.formatting import NONE, duration, number, p_value, percent, plural, setting, size

COLORS = {"running": "cyan", "finished": "green", "stopped": "yellow", "failed": "red", "killed": "red"}
ROOM_FOR_INTERVALS = 90
"""The width from which a list of runs shows them."""


def runs_table(summaries: list[dict[str, Any]], width: int) -> Table:
    """One row a run, with the columns that there is room for."""
    table = Table(box=None, pad_edge=False, header_style="dim", padding=(0, 2, 0, 0))
    columns: list[tuple[str, int]] = [  # with the width from which there is room for each
        ("run", 0), ("status", 0), ("step", 0), ("model", 110), ("taskset", 110), ("loss", 120),
        ("held-out", 0), ("reward", 70), ("started", 140), ("a step", 130),
    ]  # fmt: skip
    shown = [name for name, least in columns if width >= least]
    for name in shown:
        title = "held-out (95% interval)" if name == "held-out" and width >= ROOM_FOR_INTERVALS else name
        table.add_column(title, overflow="fold", no_wrap=name != "run", min_width=8 if name == "run" else None)
    for told in summaries:
        seconds = told["seconds_per_step"]
        cells: dict[str, str | Text] = {
            "run": told["name"],
            "status": Text(told["status"], COLORS.get(told["status"], "")),
            "step": f"{told['step']}/{told['steps'] or '–'}",
            "model": str(told["model"]),
            "taskset": str(told["taskset"]),
            "loss": str(told["loss"]),
            "held-out": before_after(told, with_interval=width >= ROOM_FOR_INTERVALS),
            "reward": number(told["reward"]),
            "started": str(told["started"] or NONE)[:16].replace("T", " "),
            "a step": duration(seconds),
        }
        table.add_row(*(cells[name] for name in shown))
    return table


def before_after(told: dict[str, Any], with_interval: bool) -> str:
    """Held-out accuracy at the start and now."""
    sides = [told["before"], told["after"]]
    words = [
        NONE if s is None else str(HeldOutSummary(**s)) if with_interval else percent(s["accuracy"]) for s in sides
    ]
    return words[0] if words[1] == NONE else " → ".join(words)


def headline(told: dict[str, Any]) -> Text:
    """A run in one line."""
    seconds = told["seconds_per_step"]
    pace = "" if seconds is None else f", {duration(seconds)} a step"
    status = Text(told["status"], COLORS.get(told["status"], ""))
    return Text(told["name"], "bold").append("  ").append_text(status).append(
        f"  {told['step']} of {told['steps']} steps{pace}  {told['path']}"
    )  # fmt: skip


def facts(told: dict[str, Any]) -> Table:
    """What a run was given."""
    config = flatten(told["config"])
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(style="dim", no_wrap=True)
    table.add_column()
    weights = told["weights"] or {}
    count = weights.get("parameters")
    table.add_row("model", f"{told['model']}" + (f", {plural(count, 'parameter')}" if count else ""))
    for section in ("tasks", "eval"):
        scalars = [(k, v) for k, v in (told[section] or {}).items() if isinstance(v, str | int | float)]
        table.add_row(section, ", ".join(f"{key} {value}" for key, value in scalars))
    for section, keys in {
        "sampling": ("groups", "size", "temperature", "max_tokens", "max_turns"),
        "learning": ("loss", "scale", "lr", "kl.beta", "updates", "minibatches"),
    }.items():
        facts = {key: config.get(f"{section}.{key}") for key in keys}
        table.add_row(section, ", ".join(f"{key} {setting(value, quote=False)}" for key, value in facts.items()))
    machine = told["machine"] or {}
    threads = f"{machine['threads']} threads" if machine.get("threads") else None
    words = (machine.get("device"), machine.get("gpu") or machine.get("cpu"), threads)
    table.add_row("machine", ", ".join(str(word) for word in words if word))
    for note in told["notes"] or []:
        table.add_row("note", str(note))
    return table


def curves_table(told: dict[str, Any], width: int) -> Table:
    """Each curve as blocks, with its first and last value."""
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(style="dim", no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    room = max(8, min(60, width - 46))
    for key, values in told["curves"].items():
        finite = [value for value in values if value is not None]
        table.add_row(key, sparkline(values, room), f"{number(finite[0])} → {number(finite[-1])}")
    return table


def evaluations_table(told: dict[str, Any]) -> Table:
    """Every evaluation with its 95% interval."""
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(style="dim", no_wrap=True)
    for _ in range(2):
        table.add_column(no_wrap=True)
    for line in told["evaluations"]:
        held = HeldOutSummary(**line)
        table.add_row(f"held-out after step {held.step}", str(held), f"{held.correct} of {held.tasks}")
    return table


def time_and_files(told: dict[str, Any], width: int) -> Table:
    """Where a step's time goes, and what the run takes on disk."""
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(style="dim", no_wrap=True)
    table.add_column()
    if told["phases"]:
        table.add_row("step time", phase_bar(told["phases"], min(30, width // 4), width - 11))
    table.add_row("files", ", ".join(f"{name} {size(count)}" for name, count in told["files"].items()))
    return table


def difference_table(difference: dict[str, list[Any]]) -> Table:
    """The keys that were set differently."""
    table = Table(box=None, pad_edge=False, header_style="dim", padding=(0, 2, 0, 0))
    table.add_column("config", overflow="fold")
    table.add_column("A", overflow="fold")
    table.add_column("B", overflow="fold")
    for key, (one, other) in difference.items():
        table.add_row(key, *(setting(value, quote=False) for value in (one, other)))
    return table


def side_by_side(curves: dict[str, dict[str, list[float | None]]], width: int) -> Table:
    """Both sides of each curve on one scale, one under the other."""
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(style="dim", no_wrap=True)
    for _ in range(3):
        table.add_column(no_wrap=True)
    longest = max((len(values) for pair in curves.values() for values in pair.values()), default=1)
    room = max(8, min(60, width - 49))
    for key, pair in curves.items():
        finite = [value for values in pair.values() for value in values if value is not None]
        for side, values in pair.items():
            # A shorter run gets a shorter line, so that equal places are equal steps.
            share = room if key == HELD_OUT else max(1, room * len(values) // longest)
            line = sparkline(values, share, min(finite), max(finite))
            known = [value for value in values if value is not None]
            ends = f"{number(known[0])} → {number(known[-1])}" if known else NONE
            table.add_row(key if side == "a" else "", Text(side.upper(), "bold"), line, ends)
    return table


def paired_sentences(told: dict[str, Any]) -> Text:
    """What the held-out tasks say, and what they do not."""
    text = Text()
    for side in ("a", "b"):
        text.append(side.upper(), "bold").append(f"  held-out {before_after(told[side], True)}\n")
    paired = told["paired"]
    if paired is None:
        return text.append("They share no held-out task, so their accuracies can't be paired.")
    text.append(f"Of {paired['tasks']} tasks that both were asked (A after step {paired['step_a']}, ")
    text.append(f"B after step {paired['step_b']}), ")
    text.append(f"{paired['only_a']} were answered rightly by A alone and {paired['only_b']} by B alone ")
    text.append(f"(exact McNemar p {p_value(paired['p'])}). ")
    return text.append(paired["caveat"], "dim")
