"""Work of the reader process: all that pages show of the files of runs and of their rollouts.

The server opens none of these files: they may hold anything, and what takes too much memory to read
ends this process, not the server. Paths come from the server, which has checked where their links
lead.
"""

import base64
import contextlib
import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from functools import cache, lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from uptrend.config.tables import flatten
from uptrend.dashboard.curves import TIME, Columns, sparkline, values_of
from uptrend.dashboard.findings import found_in, markers
from uptrend.doctor.report import saved_report
from uptrend.policy.known import tokenizer_of
from uptrend.records import RecordError, Role, Run, RunView
from uptrend.records.lines import plain
from uptrend.records.run import read_parquet
from uptrend.records.schema import ROLLOUT_SCHEMA
from uptrend.records.summary import summarize
from uptrend.records.table import RolloutTable, Row
from uptrend.runner import views_of

Place = Mapping[str, Any]
"""A step's rollouts: `files`, or `log` with the `part` of it that is the run; and the `step`."""
LINE_COLUMNS = [
    "step",
    "group",
    "index",
    "sequence",
    "task",
    "family",
    "reward",
    "correct",
    "ended",
    "error",
    "seconds",
    "kept",
    "messages",
    "turns",
    "roles",
    "advantages",
]
LINE_FACTS = ("task", "family", "reward", "correct", "ended", "error", "kept", "seconds")
QUESTION = 160
TEXT = 240
SHOWN = (
    "ids",
    "turns",
    "roles",
    "versions",
    "sampler",
    "weights",
    "attended",
    "advantages",
    "learner",
    "reference",
)
INFO = ("created", "uptrend", "python", "machine", "tasks", "eval", "model", "packages", "kind")


@cache
def _columns() -> Columns:
    return Columns()


def read_run(path: str, file: str, large: int) -> Row:
    """Return the row of a run for the table, and what its page needs besides: settings,
    evaluations, notes, report.
    """
    run = Run(path)
    table, _ = _columns().of_run(run, Path(file), large)
    times = values_of(table, TIME)
    saved = live = None
    with contextlib.suppress(RecordError, AttributeError, LookupError, OSError, TypeError):
        saved = saved_report(run, len(table))
    with contextlib.suppress(RecordError, AttributeError, LookupError, OSError, TypeError):
        live = run.report
    status = run.status
    report = saved or (live if status == "running" else None)
    events = run.events
    created = _seconds(run.info.get("created"))
    last = float(times[-1]) if len(times) else None
    moments = (created, last, *(event.get("time") for event in events[-1:]))
    row = {
        **summarize(run, partial(values_of, table)),
        "path": path,
        "kind": "run",
        "trainer": run.info.get("trainer", "uptrend"),
        "sparkline": sparkline(values_of(table, "reward/mean")),
        **found_in(report),
        "created": created,
        "updated": max([t for t in moments if isinstance(t, int | float)], default=None),
        "seconds": last - created if last and created and last > created else None,
        "config": flatten(run.config),
    }
    stopped = run.stopped
    numbers = table["step"].to_numpy() if len(table) else np.zeros(0)
    return {
        "row": plain(row),
        "config": run.config,
        "evals": run.eval_lines,
        "saved": saved,
        "report": live,
        "notes": [*(run.info.get("notes") or ()), *run.notes],
        "markers": markers(run, numbers, values_of(table, TIME)),
        "info": {key: run.info[key] for key in INFO if key in run.info},
        "stopped": {"by": stopped.by, "why": stopped.sentence} if stopped else None,
    }


def run_table(path: str, file: str, large: int) -> Row:
    """Return the metrics of a run in Arrow's format as base64; null where a file of columns has
    them.
    """
    table, is_in_file = _columns().of_run(Run(path), Path(file), large)
    if is_in_file:
        return {"arrow": None}
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return {"arrow": base64.b64encode(sink.getvalue()).decode()}


def pair_runs(path: str, other: str) -> Row | None:
    """Return the comparison of two runs on the held-out tasks that both were asked; None where they
    share none.
    """
    from uptrend.stats import comparison  # scipy only where runs are compared

    return comparison.pair_runs(Run(path), Run(other))


@lru_cache(4)
def _views(path: Path, stamp: str) -> list[RunView]:
    del stamp  # part of the cache's key
    return views_of(path)


def _read_step(path: str, place: Place, columns: list[str] | None = None) -> pa.Table:
    """Return the rollouts of a step, or some of their columns."""
    if "files" not in place:
        table = _views(Path(path), json.dumps(place["stamp"]))[place["part"]].read_rollouts(
            place["step"]
        )
        table = pa.concat_tables(
            [ROLLOUT_SCHEMA.empty_table(), table], promote_options="permissive"
        )
        return table if columns is None else table.select(columns)
    try:
        return read_parquet([Path(file) for file in place["files"]], columns)
    except (pa.ArrowException, ValueError) as error:  # of other columns than ours
        raise RecordError(f"{place['files'][0]} is damaged: {error}") from None


def reward_bounds(path: str, place: Place) -> list[float] | None:
    """Return the least and greatest reward that a rollout of a step can have; None where nobody
    said.
    """
    table = _read_step(path, place, ["reward_low", "reward_high"])
    if table["reward_low"].null_count == len(table):
        return None
    return [pc.min(table["reward_low"]).as_py(), pc.max(table["reward_high"]).as_py()]


def rollout_lines(path: str, place: Place, held: bool) -> list[Row]:
    """Return one line per rollout of a step."""
    return list(lines_of(RolloutTable(place["step"], _read_step(path, place, LINE_COLUMNS)), held))


def _places(table: RolloutTable) -> Iterator[tuple[str, int, int]]:
    """Yield each rollout's group, its index, and which of several by this name it is."""
    counts: Counter[tuple[str, int]] = Counter()
    for group, index in zip(table.values("group"), table.values("index"), strict=True):
        name = str(group or ""), int(index or 0)
        yield *name, counts[name]
        counts[name] += 1


def lines_of(table: RolloutTable, held: bool) -> Iterator[Row]:
    """Yield one line per rollout of a table that has LINE_COLUMNS."""
    facts = {key: table.values(key) for key in LINE_FACTS}
    texts = table.messages.text_m
    calls = table.messages.calls_m.to_pylist()
    for n, (group, index, nth) in enumerate(_places(table)):
        own = table.model_message_indices_n[n]
        yield {
            "step": table.step,
            "held": held,
            "group": group,
            "index": index,
            "nth": nth,
            **{key: column[n] for key, column in facts.items()},
            "tokens": int(table.lengths_n[n]),
            "turns": len(own),
            "advantage": table.advantage(n),
            "tools": ",".join(
                sorted({name for at in own if calls[at] for name in _tool_names(calls[at])})
            ),
            "question": _cut(table.question_n[n], QUESTION),
            "text": next((text for at in reversed(own) if (text := _cut(texts[at], TEXT))), ""),
        }


def _tool_names(calls: str) -> list[str]:
    try:
        names = [str(call.get("name")) for call in json.loads(calls)]
    except (ValueError, AttributeError, TypeError, RecursionError):
        return []
    # SQLite keeps no half of a surrogate pair
    return [name.encode("utf-8", "replace").decode() for name in names]


def _cut(text: str, most: int) -> str:
    """Return the beginning of a text in one line."""
    return " ".join(text.strip()[: 4 * most].split())[:most]


def search_step(path: str, place: Place, text: str) -> list[list[Any]]:
    """Return group, index, number and surroundings of each rollout of a step that has a text in
    lower case.
    """
    columns = ["group", "index", "sequence", "messages"]
    table = RolloutTable(place["step"], _read_step(path, place, columns))
    texts = table.messages.text_m
    found = list[list[Any]]()
    for name, places in zip(_places(table), table.message_range_n, strict=True):
        whole = "\n".join(texts[places.start : places.stop])
        at = whole.lower().find(text)
        if at >= 0:
            begin = max(0, at - 60)
            found.append([*name, "…" * (begin > 0) + " ".join(whole[begin : begin + TEXT].split())])
    return found


def show_rollout(
    path: str,
    place: Place,
    group: str,
    index: int,
    nth: int,
    characters: int,
    tokens: int,
    root: str | None,
) -> Row:
    """Return one rollout: messages by turn, reward by part, commands, and its tokens with all their
    figures.

    `root` is the folder outside which no tokenizer is read; None where there is none to be read.
    """
    step = place["step"]
    table = _read_step(path, place)
    chosen = pc.and_(
        pc.equal(table["group"], group), pc.equal(pc.fill_null(table["index"], 0), index)
    )
    rows = table.filter(chosen)
    if not len(rows):
        raise RecordError(
            f"Step {step} of {Path(path).name} has no rollout {index} in group {group}."
        )
    several = RolloutTable(step, rows)
    if not 0 <= nth < len(several):
        raise RecordError(
            f"Step {step} of {Path(path).name} has no rollout {group}/{index} number {nth}."
        )
    rollout = several.rollout(nth)

    def cut(message: Mapping[str, Any]) -> dict[str, Any]:
        content = message["content"] or ""
        return {
            "role": message["role"],
            "content": content[:characters],
            "length": len(content),
            "calls": _calls(message["calls"]),
            "problem": message["problem"],
        }

    tokenizer = (
        None if root is None else _tokenizer(Path(path), Path(root), tuple(Run(path).checkpoints))
    )
    pieces = None if tokenizer is None else lambda ids: pieces_by(tokenizer, ids)
    shown: Row = plain(
        {
            **{
                key: value
                for key, value in rollout.facts.items()
                if key not in ("messages", "commands")
            },
            "prompt": [cut(message) for message in rollout.prompt],
            "turns": [
                {
                    "message": cut(turn.message),
                    "replies": [cut(reply) for reply in turn.replies],
                    "commands": [
                        {
                            **c,
                            "command": c["command"][:characters],
                            "said": (c["said"] or "")[:characters],
                        }
                        for c in turn.commands
                    ],
                }
                for turn in rollout.turns
            ],
            "sequences": [
                _sequence(row, pieces, tokens)
                for row in rollout.sequences
                if row["ids"] is not None
            ],
            "has_text": pieces is not None,
        }
    )
    return shown


def _calls(told: str | None) -> Any:
    try:
        return json.loads(told) if told else []
    except (ValueError, RecursionError):
        return []


def _sequence(row: Row, pieces: Callable[[Sequence[int]], list[str]] | None, most: int) -> Row:
    """Return a sequence's tokens, and counts by role of those that were trained and that attention
    could not see.
    """
    roles = row["roles"] or []
    weights = row["weights"] or []
    attended = row["attended"] or []
    counts = [
        {
            "role": role.name.lower(),
            "tokens": roles.count(role),
            "trained": (
                sum(w != 0 for w, r in zip(weights, roles, strict=False) if r == role)
                if weights
                else None
            ),
            "hidden": (
                sum(not a for a, r in zip(attended, roles, strict=False) if r == role)
                if attended
                else None
            ),
        }
        for role in Role
        if role in roles
    ]
    columns = {name: (row[name] or [])[:most] for name in SHOWN}
    texts = pieces(columns["ids"]) if pieces else None
    return {"length": len(row["ids"]), "counts": counts, "texts": texts, **columns}


@lru_cache(4)
def _tokenizer(path: Path, root: Path, checkpoints: tuple[Path, ...]) -> Any:
    del checkpoints  # a new one may be the first to have a tokenizer
    try:
        return tokenizer_of(Run(path), below=root)
    except Exception:  # the file of a foreign tokenizer may hold anything
        return None


def pieces_by(tokenizer: Any, ids: Sequence[int]) -> list[str]:
    """Return the text of each token; of one character in several tokens, the last has it."""
    texts: list[str] = []
    waiting: list[int] = []
    for id in ids:
        waiting.append(id)
        text = str(tokenizer.decode(waiting, skip_special_tokens=False))
        if text.endswith("\ufffd") and len(waiting) < 4:
            texts.append("")
            continue
        name = tokenizer.id_to_token(id) or ""
        texts.append(f" {text}" if name.startswith("▁") and not text.startswith(" ") else text)
        waiting = []
    return texts


def _seconds(moment: Any) -> float | None:
    try:
        return datetime.fromisoformat(str(moment)).timestamp()
    except ValueError:
        return None
