"""Functions of the reader process: everything that pages show from the files of runs and of their
rollouts.

The server opens none of these files: they may contain anything, and what takes too much memory to
read ends this process, not the server. Paths come from the server, which has checked where their
links lead.
"""

import base64
import contextlib
import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from functools import cache, lru_cache, partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from uptrend.config.tables import flatten
from uptrend.dashboard.curves import TIME_KEY, Columns, sparkline, steps_of, values_of
from uptrend.dashboard.findings import markers, report_columns
from uptrend.doctor.report import saved_report
from uptrend.policy.known import tokenizer_of
from uptrend.records import RecordError, Role, Run, RunView
from uptrend.records.lines import plain
from uptrend.records.run import read_parquet
from uptrend.records.schema import ROLLOUT_SCHEMA
from uptrend.records.summary import summarize
from uptrend.records.table import RecordedRollout, RolloutTable, Row
from uptrend.runner import views_of

# Location of a step's rollouts: `step` with `files`, or for a log with the `part` of it that is the
# run, and its `stamp`.
StepLocation = Mapping[str, Any]
# Name of a rollout within a step: group, index, and its number among those with the same two.
RolloutName = tuple[str, int, int]

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
# Columns that a line has as they are.
LINE_FACTS = ("task", "family", "reward", "correct", "ended", "error", "kept", "seconds")
# Characters of a line's texts, and of those before a match.
MAX_QUESTION_CHARACTERS = 160
MAX_TEXT_CHARACTERS = 240
CHARACTERS_BEFORE_MATCH = 60
# Characters that are read for each one that stays when white space is joined.
CHARACTERS_READ_PER_SHOWN = 4
# A character of UTF-8 has four bytes at most, and each token at least one of them.
MAX_TOKENS_PER_CHARACTER = 4
TOKEN_COLUMNS = (
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
# Entries of run.json that a run's page shows.
INFO_KEYS = (
    "created",
    "uptrend",
    "python",
    "machine",
    "tasks",
    "eval",
    "model",
    "packages",
    "kind",
)
# What damaged files of a report raise: without one, the rest of a run is still read.
REPORT_ERRORS = (RecordError, AttributeError, LookupError, OSError, TypeError)


@cache
def _columns() -> Columns:
    return Columns()


def read_run(path: str, file: str, min_indexed_bytes: int) -> Row:
    """Return the row of a run for the table, and what its page needs besides: settings,
    evaluations, notes, report.
    """
    run = Run(path)
    table, _ = _columns().of_run(run, Path(file), min_indexed_bytes)
    times = values_of(table, TIME_KEY)
    status = run.status

    saved = None
    live = None
    with contextlib.suppress(*REPORT_ERRORS):
        saved = saved_report(run, len(table))
    with contextlib.suppress(*REPORT_ERRORS):
        live = run.report
    report = saved
    if saved is None and status == "running":
        report = live  # a few steps old

    created_s = _timestamp(run.info.get("created"))
    last_step_s = float(times[-1]) if len(times) else None
    seconds = None
    if created_s and last_step_s and last_step_s > created_s:
        seconds = last_step_s - created_s
    updates = [created_s, last_step_s]
    updates += [event.get("time") for event in run.events[-1:]]
    # A damaged event may have no number for its time.
    update_times = [time for time in updates if isinstance(time, int | float)]

    row = {
        **summarize(run, partial(values_of, table)),
        "path": path,
        "kind": "run",
        "trainer": run.info.get("trainer", "uptrend"),
        "sparkline": sparkline(values_of(table, "reward/mean")),
        **report_columns(report),
        "created": created_s,
        "updated": max(update_times, default=None),
        "seconds": seconds,
        "config": flatten(run.config),
    }
    stopped = run.stopped
    return {
        "row": plain(row),
        "config": run.config,
        "evals": run.eval_lines,
        "saved": saved,
        "report": live,
        "notes": [*(run.info.get("notes") or ()), *run.notes],
        "markers": markers(run, steps_of(table), times),
        "info": {key: run.info[key] for key in INFO_KEYS if key in run.info},
        "stopped": {"by": stopped.by, "why": stopped.sentence} if stopped else None,
    }


def run_table(path: str, file: str, min_indexed_bytes: int) -> Row:
    """Return the metrics of a run in Arrow's format as base64; null if a file of columns has
    them.
    """
    table, is_in_file = _columns().of_run(Run(path), Path(file), min_indexed_bytes)
    if is_in_file:
        return {"arrow": None}
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return {"arrow": base64.b64encode(sink.getvalue()).decode()}


def pair_runs(path: str, other: str) -> Row | None:
    """Compare two runs on the held-out tasks that both attempted; None if they share none."""
    from uptrend.stats import comparison  # scipy only where runs are compared

    return comparison.pair_runs(Run(path), Run(other))


@lru_cache(4)
def _views(path: Path, stamp: str) -> list[RunView]:
    del stamp  # part of the cache's key
    return views_of(path)


def _read_step(path: str, location: StepLocation, columns: list[str] | None = None) -> pa.Table:
    """Return the rollouts of a step, or some of their columns."""
    if "files" in location:
        files = [Path(file) for file in location["files"]]
        try:
            return read_parquet(files, columns)
        except (pa.ArrowException, ValueError) as error:  # of other columns than ours
            raise RecordError(f"{files[0]} is damaged: {error}") from None

    views = _views(Path(path), json.dumps(location["stamp"]))
    table = views[location["part"]].read_rollouts(location["step"])
    # Other trainers' logs lack columns, which are null then.
    table = pa.concat_tables([ROLLOUT_SCHEMA.empty_table(), table], promote_options="permissive")
    return table if columns is None else table.select(columns)


def reward_bounds(path: str, location: StepLocation) -> list[float] | None:
    """Return the smallest and largest reward that a rollout of a step can get; None if they were
    not recorded.
    """
    table = _read_step(path, location, ["reward_low", "reward_high"])
    if table["reward_low"].null_count == len(table):
        return None
    low = pc.min(table["reward_low"]).as_py()
    high = pc.max(table["reward_high"]).as_py()
    return [low, high]


def rollout_lines(path: str, location: StepLocation, heldout: bool) -> list[Row]:
    """Return one line per rollout of a step."""
    table = RolloutTable(location["step"], _read_step(path, location, LINE_COLUMNS))
    facts = {key: table.values(key) for key in LINE_FACTS}
    texts_m = table.messages.text_m
    calls_m = table.messages.calls_m.to_pylist()
    lines: list[Row] = []
    for n, (group, index, nth) in enumerate(_rollout_names(table)):
        model_messages = table.model_message_indices_n[n]
        tools: set[str] = set()
        for m in model_messages:
            if calls_m[m]:
                tools.update(_tool_names(calls_m[m]))
        last_texts = (
            _first_characters(texts_m[m], MAX_TEXT_CHARACTERS) for m in reversed(model_messages)
        )
        line = {
            "step": table.step,
            "heldout": heldout,
            "group": group,
            "index": index,
            "nth": nth,
            **{key: values[n] for key, values in facts.items()},
            "tokens": int(table.model_length_n[n]),
            "turns": len(model_messages),
            "advantage": table.advantage(n),
            "tools": ",".join(sorted(tools)),
            "question": _first_characters(table.question_n[n], MAX_QUESTION_CHARACTERS),
            "text": next(filter(None, last_texts), ""),
        }
        lines.append(line)
    return lines


def _rollout_names(table: RolloutTable) -> Iterator[RolloutName]:
    """Yield the name of each rollout: several may have the same group and index."""
    counts: Counter[tuple[str, int]] = Counter()
    for raw_group, raw_index in zip(table.values("group"), table.values("index"), strict=True):
        group = str(raw_group or "")
        index = int(raw_index or 0)
        yield group, index, counts[group, index]
        counts[group, index] += 1


def _tool_names(calls: str) -> list[str]:
    try:
        names = [str(call.get("name")) for call in json.loads(calls)]
    except (ValueError, AttributeError, TypeError, RecursionError):
        return []
    # SQLite stores no half of a surrogate pair.
    return [name.encode("utf-8", "replace").decode() for name in names]


def _first_characters(text: str, most: int) -> str:
    """Return the beginning of a text in one line."""
    beginning = text.strip()[: CHARACTERS_READ_PER_SHOWN * most]
    return " ".join(beginning.split())[:most]


def search_step(path: str, location: StepLocation, text: str) -> list[list[Any]]:
    """Return group, index, number and surroundings of each rollout of a step that contains a text
    in lower case.
    """
    columns = ["group", "index", "sequence", "messages"]
    table = RolloutTable(location["step"], _read_step(path, location, columns))
    texts_m = table.messages.text_m
    matches: list[list[Any]] = []
    for name, messages in zip(_rollout_names(table), table.message_range_n, strict=True):
        conversation = "\n".join(texts_m[messages.start : messages.stop])
        position = conversation.lower().find(text)
        if position < 0:
            continue
        begin = max(0, position - CHARACTERS_BEFORE_MATCH)
        surroundings = " ".join(conversation[begin : begin + MAX_TEXT_CHARACTERS].split())
        if begin > 0:
            surroundings = "…" + surroundings
        matches.append([*name, surroundings])
    return matches


def show_rollout(
    path: str,
    location: StepLocation,
    group: str,
    index: int,
    nth: int,
    max_characters: int,
    max_tokens: int,
    root: str | None,
) -> Row:
    """Return one rollout: messages by turn, reward by part, commands, and its tokens with all their
    figures.

    `root` is the folder outside which no tokenizer is read; without it, none is.
    """
    rollout = _read_rollout(path, location, group, index, nth)
    facts = dict(rollout.facts)
    for key in ("messages", "commands"):  # they are shown by turn
        facts.pop(key, None)

    turns: list[Row] = []
    for turn in rollout.turns:
        replies = [_shown_message(reply, max_characters) for reply in turn.replies]
        commands: list[Row] = []
        for command in turn.commands:
            texts = {
                "command": command["command"][:max_characters],
                "said": (command["said"] or "")[:max_characters],
            }
            commands.append({**command, **texts})
        message = _shown_message(turn.message, max_characters)
        turns.append({"message": message, "replies": replies, "commands": commands})

    tokenizer = None
    if root is not None:
        tokenizer = _tokenizer(Path(path), Path(root), tuple(Run(path).checkpoints))
    sequences: list[Row] = []
    for row in rollout.sequences:
        if row["ids"] is not None:
            sequences.append(_sequence(row, tokenizer, max_tokens))

    page: Row = plain(
        {
            **facts,
            "prompt": [_shown_message(message, max_characters) for message in rollout.prompt],
            "turns": turns,
            "sequences": sequences,
            "has_text": tokenizer is not None,
        }
    )
    return page


def _read_rollout(
    path: str, location: StepLocation, group: str, index: int, nth: int
) -> RecordedRollout:
    step = location["step"]
    run_name = Path(path).name
    table = _read_step(path, location)
    is_of_group = pc.equal(table["group"], group)
    is_index = pc.equal(pc.fill_null(table["index"], 0), index)
    rows = table.filter(pc.and_(is_of_group, is_index))
    if not len(rows):
        raise RecordError(f"Step {step} of {run_name} has no rollout {index} in group {group}.")
    namesakes = RolloutTable(step, rows)
    if not 0 <= nth < len(namesakes):
        raise RecordError(f"Step {step} of {run_name} has no rollout {group}/{index} number {nth}.")
    return namesakes.rollout(nth)


def _shown_message(message: Mapping[str, Any], max_characters: int) -> Row:
    content = message["content"] or ""
    return {
        "role": message["role"],
        "content": content[:max_characters],
        "length": len(content),
        "calls": _parsed_calls(message["calls"]),
        "problem": message["problem"],
    }


def _parsed_calls(calls: str | None) -> Any:
    try:
        return json.loads(calls) if calls else []
    except (ValueError, RecursionError):
        return []


def _sequence(row: Row, tokenizer: Any | None, max_tokens: int) -> Row:
    """Return a sequence's tokens, and counts by role of those that were trained and that attention
    could not see.

    A count is None where it was not recorded.
    """
    roles = row["roles"] or []
    weights = row["weights"] or []
    attended = row["attended"] or []
    counts: list[Row] = []
    for role in Role:
        if role not in roles:
            continue
        n_trained = None
        if weights:
            pairs = zip(weights, roles, strict=False)
            n_trained = sum(weight != 0 for weight, other in pairs if other == role)
        n_hidden = None
        if attended:
            pairs = zip(attended, roles, strict=False)
            n_hidden = sum(not is_attended for is_attended, other in pairs if other == role)
        count = {
            "role": role.name.lower(),
            "tokens": roles.count(role),
            "trained": n_trained,
            "hidden": n_hidden,
        }
        counts.append(count)
    columns = {name: (row[name] or [])[:max_tokens] for name in TOKEN_COLUMNS}
    texts = None if tokenizer is None else _token_texts(tokenizer, columns["ids"])
    return {"length": len(row["ids"]), "counts": counts, "texts": texts, **columns}


@lru_cache(4)
def _tokenizer(path: Path, root: Path, checkpoints: tuple[Path, ...]) -> Any:
    del checkpoints  # part of the cache's key: a new one may be the first to have a tokenizer
    try:
        return tokenizer_of(Run(path), below=root)
    except Exception:  # the file of a foreign tokenizer may contain anything
        return None


def _token_texts(tokenizer: Any, ids: Sequence[int]) -> list[str]:
    """Return the text of each token; a character of several tokens is the last one's text."""
    texts: list[str] = []
    pending_ids: list[int] = []
    for id in ids:
        pending_ids.append(id)
        text = str(tokenizer.decode(pending_ids, skip_special_tokens=False))
        # Decoding bytes that are no whole character gives U+FFFD.
        if text.endswith("\ufffd") and len(pending_ids) < MAX_TOKENS_PER_CHARACTER:
            texts.append("")
            continue
        # Decoders of SentencePiece drop the space at the beginning of a text.
        name = tokenizer.id_to_token(id) or ""
        if name.startswith("▁") and not text.startswith(" "):
            text = f" {text}"
        texts.append(text)
        pending_ids = []
    return texts


def _timestamp(date: Any) -> float | None:
    """Return a date of ISO 8601 as seconds since 1970; None if it is no date."""
    try:
        return datetime.fromisoformat(str(date)).timestamp()
    except ValueError:
        return None
