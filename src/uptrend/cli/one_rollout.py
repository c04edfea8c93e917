"""One rollout for a person: what was said, what it earned, and its tokens by role, with what was trained and seen."""

from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from rich.console import Console
from rich.table import Table
from rich.text import Text

from uptrend.config.load import nearest
from uptrend.records import RecordError, Role, Run
from uptrend.records.schema import TOKEN_COLUMNS
from uptrend.stats.formatting import NONE, duration, number

ROLES = {"system": "dim", "user": "cyan", "assistant": "green", "tool": "yellow"}
TOKENS = {Role.PROMPT: "cyan", Role.MODEL: "green", Role.TOOL: "yellow"}
SHOWN = 12
"""Tokens of a span that are printed as ids where there is no tokenizer."""
Decode = Callable[[Sequence[int]], str]


def find_rollout(run: Run, named: str) -> list[dict[str, Any]]:
    """The rows of a rollout that is named `step/group/index`."""
    parts = named.rsplit("/", 1)[0].split("/", 1) + named.rsplit("/", 1)[1:]
    if len(parts) != 3 or not parts[0].isdigit() or not parts[2].isdigit():
        raise RecordError(f"--rollout {named}: it should be step/group/index, such as 12/000012-0003/5.")
    step, group, index = int(parts[0]), parts[1], int(parts[2])
    table = run.rollouts(step)
    rows = table.filter(pc.and_(pc.equal(table["group"], group), pc.equal(table["index"], index)))
    if not rows.num_rows:
        raise RecordError(
            f"Step {step} of {run.path} has no rollout {index} in a group {group}.{_what_there_is(table, group)}"
        )
    found: list[dict[str, Any]] = rows.to_pylist()
    return found


def _what_there_is(table: pa.Table, group: str) -> str:
    """The group that may have been meant, or its rollouts."""
    groups = sorted({str(name) for name in table["group"].to_pylist()})
    if group not in groups:
        return nearest(group, groups) or f" It has {groups[0]} to {groups[-1]}."
    indexes = table.filter(pc.equal(table["group"], group))["index"]
    return f" Its rollouts are {pc.min(indexes)} to {pc.max(indexes)}."


def describe_rollout(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """The same as one plain object: the rollout's columns, and its sequences' token columns."""
    plain = {key: value for key, value in rows[0].items() if key not in (*TOKEN_COLUMNS, "sequence")}
    return {**plain, "sequences": [{name: row[name] for name in TOKEN_COLUMNS} for row in rows]}


def print_rollout(console: Console, rows: list[dict[str, Any]], decode: Decode | None) -> None:
    """Headline, reward, conversation and tokens."""
    first = rows[0]
    console.print(_headline(first))
    if first["error"]:
        console.print(Text(f"error: {first['error']}", "red"))
    console.print(_reward(first))
    for message in first["messages"] or ():
        console.print()
        console.print(_message(message))
    for row in rows:
        console.print()
        console.print(_spans(row, decode))
    if decode is None:
        console.print(Text("Tokens are ids: the run has no checkpoint with a tokenizer.", "dim"))


def tokenizer_of(run: Run) -> Decode | None:
    """What turns ids into text, from the run's last checkpoint; None where there is none."""
    paths = [path / "model" / "tokenizer.json" for path in run.checkpoints]
    found = [path for path in paths if path.exists()]
    try:
        from tokenizers import Tokenizer
    except ImportError:
        return None
    if not found:
        return None
    tokenizer = Tokenizer.from_file(str(found[-1]))
    return lambda ids: str(tokenizer.decode(list(ids), skip_special_tokens=False))


def _headline(row: dict[str, Any]) -> Text:
    text = Text(f"{row['step']}/{row['group']}/{row['index']}", "bold")
    facts = [f"task {row['task']}", f"family {row['family']}", f"ended {row['ended']}"]
    if row["seconds"] is not None:
        facts.append(duration(row["seconds"]))
    if row["kept"] is False:
        facts.append("not learned from: its group was dead and another was sampled")
    return text.append("  ".join(["", *facts]), "not bold")


def _reward(row: dict[str, Any]) -> Text:
    if row["reward"] is None:
        return Text("no reward").append(f"  gold answer {row['answer']!r}", "dim")
    mark = {True: ("right", "green"), False: ("wrong", "red"), None: ("", "")}[row["correct"]]
    text = Text(f"reward {number(row['reward'])}").append(f" {mark[0]}", mark[1])
    text.append(f" of {number(row['reward_low'])} to {number(row['reward_high'])}", "dim")
    for part in row["parts"] or ():
        text.append(f"  {part['name']} {number(part['value'])}")
        if part["weight"] != 1:
            text.append(f" × {number(part['weight'])}", "dim")
    return text.append(f"  gold answer {row['answer']!r}", "dim")


def _message(message: dict[str, Any]) -> Text:
    text = Text(f"{message['role']}: ", f"bold {ROLES.get(message['role'], '')}").append(message["content"] or "")
    if message["calls"]:
        text.append(f"\ncalls {message['calls']}", "yellow")
    if message["problem"]:
        text.append(f"\n{message['problem']}", "red")
    return text


def _spans(row: dict[str, Any], decode: Decode | None) -> Table:
    """A line for each run of tokens that have the same role, turn, weight and visibility."""
    table = Table(box=None, pad_edge=False, header_style="dim", padding=(0, 2, 0, 0))
    for name in ("turn", "role", "tokens", "trained", "attended", "advantage", "sampler", "learner", "text"):
        table.add_column(name, overflow="fold", no_wrap=name != "text")
    for span in spans(row):
        ids = [row["ids"][i] for i in span]
        at = span[0]
        role = _at(row, "roles", at)
        color = TOKENS.get(role, "")
        table.add_row(
            number(_at(row, "turns", at)),
            Text(NONE if role is None else Role(role).name.lower(), color),
            str(len(span)),
            _yes_no(_at(row, "weights", at), "no"),
            _yes_no(_at(row, "attended", at), "hidden"),
            number(_at(row, "advantages", at)),
            _mean(row, "sampler", span),
            _mean(row, "learner", span),
            Text(decode(ids) if decode else _short(ids), color),
        )
    return table


def spans(row: dict[str, Any]) -> Iterator[list[int]]:
    """The places of neighboring tokens that are alike."""

    def kind(place: int) -> tuple[Any, ...]:
        weight = _at(row, "weights", place)
        trained = None if weight is None else weight != 0
        return trained, *(_at(row, name, place) for name in ("turns", "roles", "attended", "advantages"))

    for _, places in groupby(range(len(row["ids"] or ())), kind):
        yield list(places)


def _at(row: dict[str, Any], name: str, place: int) -> Any:
    column = row[name]
    return None if column is None else column[place]


def _yes_no(value: float | bool | None, no: str) -> Text:
    if value is None:
        return Text(NONE, "dim")
    return Text("yes") if value else Text(no, "red" if no == "hidden" else "dim")


def _mean(row: dict[str, Any], name: str, span: list[int]) -> str:
    known = [value for value in (_at(row, name, place) for place in span) if value is not None]
    return number(sum(known) / len(known) if known else None)


def _short(ids: list[int]) -> str:
    return " ".join(map(str, ids[:SHOWN])) + (" …" if len(ids) > SHOWN else "")
